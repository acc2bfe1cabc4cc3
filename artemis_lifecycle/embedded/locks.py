"""One starter at a time. Belongs here: the file lock of the embedded stack. Does not belong: locks on tables
(`operations/` has those, in Postgres, where workers on other machines see them).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from artemis_lifecycle.errors import Busy, EnvironmentMissing


@contextmanager
def file_lock(path: Path, *, timeout: float, folder: int | None = None) -> Iterator[None]:
    """Hold the lock file at `path`, whose folder is made, or is open already as descriptor `folder`. Waits at most
    `timeout` seconds, then raises Busy.

    The kernel lets go of it when its holder dies. Raises EnvironmentMissing where the folder cannot be written.
    """
    try:
        if folder is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(path if folder is None else path.name, flags, 0o644, dir_fd=folder)
    except OSError as error:
        raise EnvironmentMissing(
            f"The embedded stack's folder cannot be written: {error}",
            path=str(path.parent),
            hint="run as the user who owns it, or name another folder in ARTEMIS_HOME",
        ) from error
    try:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Busy(
                        f"Another process has been starting or stopping the embedded stack for {timeout:.0f} s",
                        path=str(path),
                        hint="try again, or end that process",
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)
