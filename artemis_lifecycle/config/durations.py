"""Durations as text, in lifecycle.yaml and on the command line."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

_UNIT_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
    "y": 365 * 86_400_000,
}
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d|w|y)")


def parse_duration(text: object) -> timedelta:
    """Parse a duration written `<int><unit>`, the unit one of ms, s, m, h, d, w, y (365 d).

    Raises ValueError for anything else, including a number without a unit.
    """
    if isinstance(text, timedelta):
        return text
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write an integer and one of ms, s, m, h, d, w, y, such as 30d")
    try:
        return timedelta(milliseconds=int(match[1]) * _UNIT_MS[match[2]])
    except OverflowError as error:
        raise ValueError(f"{text!r} is longer than any calendar") from error


def format_duration(duration: timedelta) -> str:
    """Return the shortest text that `parse_duration` reads back as `duration` (whole milliseconds)."""
    total = duration // timedelta(milliseconds=1)
    for unit in ("y", "w", "d", "h", "m", "s"):
        if total and total % _UNIT_MS[unit] == 0:
            return f"{total // _UNIT_MS[unit]}{unit}"
    return f"{total}ms"


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)]
