"""Instants as whole numbers since 1970, as Iceberg, Arrow and file systems count them.

Never by way of a float: that loses a millisecond now and then, and limits are inclusive. Time that passes is seconds.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECOND = timedelta(microseconds=1)
# Linux' CLOCK_MONOTONIC stands still while the machine is suspended, and a lease lapses all the same.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed() -> float:
    """Seconds since an arbitrary start, those of a suspended machine included where the system counts them. For
    deadlines that others go by too, of leases above all; no two machines share the start."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


def milliseconds(instant: datetime) -> int:
    """Milliseconds since 1970, as Iceberg's metadata counts them."""
    return (instant - _EPOCH) // _MILLISECOND


def microseconds(instant: datetime) -> int:
    """Microseconds since 1970, as Arrow and Iceberg's columns count them."""
    return (instant - _EPOCH) // _MICROSECOND


def of_milliseconds(since: int) -> datetime:
    """The instant, in UTC."""
    return _EPOCH + timedelta(milliseconds=since)


def of_microseconds(since: int) -> datetime:
    """The instant, in UTC."""
    return _EPOCH + timedelta(microseconds=since)
