"""Table identifiers: a tuple of namespace levels and a name. No other code joins or splits names with dots.

- Text: `db.t`, as used by the API, lifecycle.yaml, the command line, partition keys and Postgres; `finance:db.t` for a
  table in `finance`, a catalog beside the live one. A part that contains
  a dot or a backtick, begins or ends with white space, or is empty, is in backticks as in Spark SQL: ``db.`x.y` ``. An
  identifier has one text and a text has one identifier, so that texts can be compared and used as keys.
- SQL: the same for a statement, with the catalog, and with backticks around everything that is not a plain word.
- Row: the key in a SQL catalog's tables, where the levels of a namespace are joined with dots and cannot be separated
  again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from artemis_lifecycle.config.names import dotted as dotted
from artemis_lifecycle.config.names import parts_of as parts_of
from artemis_lifecycle.config.names import quoted as quoted
from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.spark.sql import name as sql_name

NAMESPACE = "lifecycle"
"""This project's namespace in a live catalog. Excluded from discovery, from sensors and from the tables' schedules."""

_UNADDRESSABLE = re.compile(r"[/\\\x00-\x1f\x7f-\x9f]")


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
        """Return the identifier of `parts`, the name last. Raises BadInput for fewer than two."""
        *namespace, name = parts or [""]
        return cls(tuple(namespace), name)

    @classmethod
    def of_row(cls, namespace: str, name: str) -> Self:
        """Return the identifier of a SQL catalog's row; every dot of its namespace separates two levels."""
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
        """Return the identifier in Spark SQL, after `catalog` if given."""
        return sql_name(*catalog, *self.parts)

    def suffixed(self, suffix: str) -> Self:
        """Return the identifier in the same namespace with `suffix` appended to its name."""
        return type(self)(self.namespace, self.name + suffix)

    def __str__(self) -> str:
        return dotted(self.parts)


def parse(text: str) -> Identifier:
    """Return the identifier with this `text`. Raises BadInput for an invalid text, and for another spelling of an
    identifier."""
    parts = parts_of(text, "table identifier", "write namespace.table")
    found = Identifier.of(parts)
    if str(found) != text:
        raise BadInput(f"{text!r} is another spelling of a table identifier", hint=f"write it as {found}")
    return found


def parse_in(table: str, catalog: str) -> Identifier:
    """Return the identifier in `catalog` of the table with that key. Raises BadInput as `parse`."""
    return parse(table.removeprefix(f"{catalog}:"))


def is_addressable(text: str) -> bool:
    """Return False if engines cannot reliably find the table listed as `text`: a part is empty, `.` or `..`, or has a
    slash or a control character. Such names enter a SQL catalog as rows, but paths built from them lead elsewhere."""
    try:
        parts = parse(text).parts
    except BadInput:
        parts = () if ":" in text else ("",)
    # For a sibling catalog's table, the name follows the catalog's name and is joined with dots only.
    parts += tuple(text.partition(":")[2].split(".")) if ":" in text else ()
    return not any(part in ("", ".", "..") or _UNADDRESSABLE.search(part) for part in parts)


def parse_namespace(text: str) -> tuple[str, ...]:
    """Return the levels of a namespace, written like the namespace of a table. Raises BadInput."""
    return parts_of(text, "namespace", "write it as a or a.b")


def namespace_of_row(namespace: str) -> tuple[str, ...]:
    """Return the levels of a namespace in a SQL catalog's row."""
    return tuple(namespace.split("."))


def namespace_row(levels: Sequence[str]) -> str:
    """Return the levels as in a SQL catalog's row."""
    return ".".join(levels)


# --- entry ------------------------------------------------------------------------------------------------------------
# A catalog's entry for a table, or for any other object.

TABLE = "TABLE"

UNANSWERED = "CATALOG"
"""The type of an entry for a root of a catalog that does not answer: nobody can tell what reads there."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table as listed by its catalog: the pointer with which every read and every commit starts.

    For any other object of the catalog, `type` is the catalog's own word for it (a view, a function, a table of another
    format). `metadata_location` is empty if it has none, and `location` is its folder if the catalog names one.
    """

    catalog: str
    name: Identifier
    metadata_location: str
    previous_metadata_location: str | None = None
    type: str = TABLE
    location: str | None = None
    prefix: str = ""
    """`<catalog>:` for an entry of a catalog beside the live one."""

    problem: str | None = None
    """Why the catalog, which lists the table, cannot load it. Then `metadata_location` is empty."""

    @property
    def identifier(self) -> str:
        """The text of `name`, the key of the table's partition."""
        return f"{self.prefix}{self.name}"

    @property
    def namespace(self) -> str:
        """The namespace as in the row of a SQL catalog: levels joined by dots."""
        return self.name.row[0]

    @property
    def table(self) -> str:
        """The name in the namespace."""
        return self.name.name
