"""What soaks say at the end of their run, and the lock that they share with other work of the machine."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

TABLES: dict[str, list[tuple[str, ...]]] = {}
"""Tables by title; the first row is the head."""

LOCK: str | None = None

HOME: str | None = None


def tell(title: str, head: tuple[str, ...], row: tuple[str, ...]) -> None:
    """Add a row to the table of that title."""
    TABLES.setdefault(title, [head]).append(row)


@contextmanager
def machine() -> Iterator[None]:
    """Have the machine's lock for the block, where there is one."""
    if LOCK is None:
        yield
        return
    with open(LOCK, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
