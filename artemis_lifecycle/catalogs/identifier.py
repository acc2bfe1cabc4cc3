"""Table identifiers: a tuple of namespace levels and a name. Belongs here: every way to write one, and to read it back.
Does not belong: any other code that joins or splits names with dots.

- Text: `db.t`, as the API, lifecycle.yaml, the command line, partition keys and Postgres have it. A part that holds a
  dot or a backtick, begins or ends with white space, or is empty, stands in backticks as in Spark SQL: ``db.`x.y` ``.
  An identifier has one text and a text has one identifier, so that texts can be compared and used as keys.
- SQL: the same for a statement, with the catalog, and with backticks around whatever is not a plain word.
- Row: the key in a SQL catalog's tables, where the levels of a namespace are joined with dots and cannot be separated
again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.spark.sql import name as sql_name

_UNADDRESSABLE = re.compile(r"[/\\\x00-\x1f\x7f-\x9f]")
_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]*)")


@dataclass(frozen=True, slots=True, order=True)
class Identifier:
    """A table's namespace levels, one or more, and its name in the namespace. Raises BadInput without a namespace."""

    namespace: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        if not self.namespace:
            raise BadInput(
                f"{self.name!r} is not a table identifier: it has no namespace",
                hint=f"write namespace.{quoted(self.name)}",
            )

    @classmethod
    def of(cls, parts: Sequence[str]) -> Self:
        """The identifier of `parts`, the name last. Raises BadInput for fewer than two."""
        *namespace, name = parts or [""]
        return cls(tuple(namespace), name)

    @classmethod
    def of_row(cls, namespace: str, name: str) -> Self:
        """The identifier of a SQL catalog's row; every dot of its namespace counts as the edge of a level."""
        return cls(namespace_of_row(namespace), name)

    @property
    def parts(self) -> tuple[str, ...]:
        """The levels, then the name."""
        return (*self.namespace, self.name)

    @property
    def row(self) -> tuple[str, str]:
        """(table_namespace, table_name) in a SQL catalog."""
        return namespace_row(self.namespace), self.name

    def sql(self, *catalog: str) -> str:
        """The identifier in Spark SQL, after `catalog` where that is given."""
        return sql_name(*catalog, *self.parts)

    def suffixed(self, suffix: str) -> Self:
        """The identifier in the same namespace whose name ends in `suffix`."""
        return type(self)(self.namespace, self.name + suffix)

    def __str__(self) -> str:
        return dotted(self.parts)


def parse(text: str) -> Identifier:
    """The identifier whose text is `text`. Raises BadInput for what is none's, and for another spelling of one."""
    parts = parts_of(text, "table identifier", "write namespace.table")
    found = Identifier.of(parts)
    if str(found) != text:
        raise BadInput(f"{text!r} is another spelling of a table identifier", hint=f"write it as {found}")
    return found


def is_addressable(text: str) -> bool:
    """Return False if no engine can be trusted to find the table listed as `text`: a part is empty, `.` or `..`, or has
    a slash or a control character. Such names enter a SQL catalog as rows; paths made of them lead elsewhere."""
    try:
        parts = parse(text).parts
    except BadInput:
        parts = () if ":" in text else ("",)
    # Of a sibling catalog's table, whose name stands behind the catalog's and is joined with dots alone.
    parts += tuple(text.partition(":")[2].split(".")) if ":" in text else ()
    return not any(part in ("", ".", "..") or _UNADDRESSABLE.search(part) for part in parts)


def parse_namespace(text: str) -> tuple[str, ...]:
    """The levels of a namespace that is written as the namespace of a table is. Raises BadInput."""
    return parts_of(text, "namespace", "write it as a or a.b")


def namespace_of_row(namespace: str) -> tuple[str, ...]:
    """The levels of a namespace in a SQL catalog's row."""
    return tuple(namespace.split("."))


def namespace_row(levels: Sequence[str]) -> str:
    """The levels as a SQL catalog's row has them."""
    return ".".join(levels)


def dotted(parts: Sequence[str]) -> str:
    """The text of an identifier or a namespace with those parts."""
    return ".".join(map(quoted, parts))


def parts_of(text: str, what: str, do: str) -> tuple[str, ...]:
    """The parts of a dotted name, out of their backticks. Raises BadInput for an empty part without backticks."""
    parts: list[str] = []
    at = 0
    while True:
        match = _PART.match(text, at)
        assert match is not None  # the second alternative takes nothing, too
        in_backticks, plain = match.groups()
        at = match.end()
        if plain == "" or text[at : at + 1] not in ("", "."):
            raise BadInput(f"{text!r} is no {what}", hint=do)
        parts.append(plain if in_backticks is None else in_backticks.replace("``", "`"))
        if at == len(text):
            return tuple(parts)
        at += 1


def quoted(part: str) -> str:
    """A part as texts have it: in backticks where it could not be read back without them."""
    if part and part == part.strip() and "." not in part and "`" not in part:
        return part
    return "`" + part.replace("`", "``") + "`"
