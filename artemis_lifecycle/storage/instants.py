"""Instants as integers since 1970, as Iceberg, Arrow and file systems count them.

Conversions never use floats: those can lose a millisecond, and limits are inclusive. Durations are in seconds.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECOND = timedelta(microseconds=1)
# Linux' CLOCK_MONOTONIC stops while the machine is suspended, but a lease still lapses.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed() -> float:
    """Return the seconds since an arbitrary start, including time in suspension if the system counts it. Use it for
    deadlines that other machines also measure, such as leases. Each machine has a different start."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


def milliseconds(instant: datetime) -> int:
    """Return the milliseconds since 1970, as Iceberg's metadata counts them."""
    return (instant - _EPOCH) // _MILLISECOND


def microseconds(instant: datetime) -> int:
    """Return the microseconds since 1970, as Arrow and Iceberg's columns count them."""
    return (instant - _EPOCH) // _MICROSECOND


def of_milliseconds(since: int) -> datetime:
    """Return the instant in UTC."""
    return _EPOCH + timedelta(milliseconds=since)


def if_in_calendar(since: int | None) -> datetime | None:
    """Return the instant in UTC of these milliseconds; None if a writer's wrong clock gave a year that no calendar
    has."""
    try:
        return None if since is None else of_milliseconds(since)
    except OverflowError:
        return None


def of_microseconds(since: int) -> datetime:
    """Return the instant in UTC."""
    return _EPOCH + timedelta(microseconds=since)
