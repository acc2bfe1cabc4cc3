"""The text of a dotted name, as lifecycle.yaml and commands write tables: its parts, and the one spelling of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from artemis_lifecycle.errors import BadInput

_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]*)")


def dotted(parts: Sequence[str]) -> str:
    """Return the text of an identifier or a namespace with those parts."""
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
    """Return a part as in texts: in backticks if it could not be parsed without them."""
    if part and part == part.strip() and "." not in part and "`" not in part:
        return part
    return "`" + part.replace("`", "``") + "`"


def spelled(text: str) -> str:
    """Return the one spelling of the table that `text` names; `text` itself if it names none, as a pattern may."""
    try:
        return dotted(parts_of(text, "table identifier", ""))
    except BadInput:
        return text
