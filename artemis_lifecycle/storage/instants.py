"""Instants as integers since 1970, as Iceberg, Arrow and file systems count them.

Conversions never use floats: those can lose a millisecond, and limits are inclusive. Durations are in seconds.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECOND = timedelta(microseconds=1)
_FIRST, _LAST = datetime(1, 1, 2, tzinfo=UTC) - _EPOCH, datetime(9999, 12, 30, tzinfo=UTC) - _EPOCH
# Linux' CLOCK_MONOTONIC stops while the machine is suspended, but a lease still lapses.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed() -> float:
    """Return the seconds since an arbitrary start, including time in suspension if the system counts it. Use it for
    deadlines that other machines also measure, such as leases. Each machine has a different start."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


def is_late(until: float | None) -> bool:
    """Return True once `elapsed` is `until`. None is never."""
    return until is not None and elapsed() >= until


def milliseconds(instant: datetime) -> int:
    """Return the milliseconds since 1970, as Iceberg's metadata counts them."""
    return (instant - _EPOCH) // _MILLISECOND


def microseconds(instant: datetime) -> int:
    """Return the microseconds since 1970, as Arrow and Iceberg's columns count them."""
    return (instant - _EPOCH) // _MICROSECOND


def if_in_calendar(since: int | None) -> datetime | None:
    """Return the instant in UTC of these milliseconds; None if a writer's wrong clock gave a year that no calendar
    has."""
    if since is None:
        return None
    found = in_calendar(since)
    return found if milliseconds(found) == since else None


def in_calendar(since: int) -> datetime:
    """Return the instant in UTC of these milliseconds, which a writer may set to any number: at most the first or the
    last instant that drivers of every time zone hold. Keeps the order of instants."""
    return _within(_MILLISECOND, since)


def of_microseconds(since: int) -> datetime:
    """Return the instant in UTC of these microseconds, within the calendar as `in_calendar`."""
    return _within(_MICROSECOND, since)


def instant_text(since: int) -> str:
    """Return these milliseconds as text: the instant, or the number itself if no calendar has it."""
    found = if_in_calendar(since)
    return f"{since} ms since 1970" if found is None else found.isoformat()


def _within(unit: timedelta, since: int) -> datetime:
    return _EPOCH + min(max(since, _FIRST // unit), _LAST // unit) * unit
