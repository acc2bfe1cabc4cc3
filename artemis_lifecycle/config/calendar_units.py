"""Calendar units: their names in lifecycle.yaml, and the unit that contains an instant. Add a new unit here only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import lru_cache
from typing import Literal

Unit = Literal["hour", "day", "week", "month", "year"]
Every = Literal["hourly", "daily", "weekly", "monthly", "yearly"]
"""A unit as lifecycle.yaml names it."""

UNITS: Mapping[Every, Unit] = {"hourly": "hour", "daily": "day", "weekly": "week", "monthly": "month", "yearly": "year"}

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_EPOCH = date(1970, 1, 1).toordinal()


def bucket_of(milliseconds: int, every: Unit) -> int:
    """Return the number of the calendar unit (UTC) that contains an instant, in milliseconds since the epoch."""
    if every == "hour":
        return milliseconds // _HOUR_MS
    day = milliseconds // _DAY_MS
    if every == "day":
        return day
    if every == "week":
        # 1970-01-01 was a Thursday; weeks begin on Monday.
        return (day + 3) // 7
    month = _month(day)
    return month if every == "month" else month // 12


@lru_cache(maxsize=65_536)
def _month(day: int) -> int:
    try:
        calendar = date.fromordinal(_EPOCH + day)
    except (ValueError, OverflowError):
        # A wrong clock; each such day is a bucket of its own, below every real month.
        return -(abs(day) + 1)
    return calendar.year * 12 + calendar.month - 1
