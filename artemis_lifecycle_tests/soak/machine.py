"""The lock that soaks share with other work of the machine, and the folder that outlives a run."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

LOCK: str | None = None

HOME: str | None = None


@contextmanager
def alone() -> Iterator[None]:
    """Have the machine's lock for the block, where there is one."""
    if LOCK is None:
        yield
        return
    with open(LOCK, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
