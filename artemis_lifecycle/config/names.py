"""Dotted names of tables, in lifecycle.yaml and commands: parsing, quoting, and normal form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache

from artemis_lifecycle.errors import BadInput

_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]*)")
_APART = re.compile(r" \(dropped \d{4}-\d\d-\d\d \d{6}-\d{6}\)(?=`?$)")


def dotted(parts: Sequence[str]) -> str:
    """Return the text of an identifier or a namespace."""
    return ".".join(map(quoted, parts))


def parts_of(text: str, what: str, do: str) -> tuple[str, ...]:
    """Return the parts of a dotted name, without their backticks. Raises BadInput for an empty part without
    backticks."""
    parts: list[str] = []
    at = 0
    while True:
        match = _PART.match(text, at)
        assert match is not None  # the second alternative also matches nothing
        in_backticks, plain = match.groups()
        at = match.end()
        if plain == "" or text[at : at + 1] not in ("", "."):
            raise BadInput(f"{text!r} is not a valid {what}", hint=do)
        parts.append(plain if in_backticks is None else in_backticks.replace("``", "`"))
        if at == len(text):
            return tuple(parts)
        at += 1


def quoted(part: str) -> str:
    """Return a part of a name, in backticks if it cannot be parsed without them."""
    if part and part == part.strip() and "." not in part and "`" not in part:
        return part
    return "`" + part.replace("`", "``") + "`"


def apart(table: str, at: datetime) -> str:
    """Return the name under which a dropped table stays known if another table has its name."""
    end = "`" if table.endswith("`") else ""
    return f"{table.removesuffix(end)} (dropped {at:%Y-%m-%d %H%M%S-%f}){end}"


def name_of(table: str) -> str:
    """Return the name that a dropped table had, which may be known by `apart`; that of any other table."""
    return _APART.sub("", table)


def spelled(text: str) -> str:
    """Return the normal form of a table name; `text` itself if it is not a name, as a pattern may not be."""
    try:
        return dotted(parts_of(text, "table identifier", ""))
    except BadInput:
        return text


def regular_expression(pattern: str) -> str:
    """Return the regular expression, for Python and Postgres, of a pattern of names. Its only wildcard is `*`: a name
    may have any other character, and an entry for `t[1]` must not govern `t1`."""
    return ".*".join(re.sub(r"[\\.^$|()\[\]{}+?]", r"\\\g<0>", each) for each in re.split(r"\*+", pattern))


@lru_cache(maxsize=1 << 15)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(regular_expression(pattern), re.DOTALL)


def fits(name: str, pattern: str) -> bool:
    return _compiled(pattern).fullmatch(name) is not None
