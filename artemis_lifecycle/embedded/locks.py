"""The file lock of the embedded stack. Locks on tables are in Postgres, where other machines see them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from artemis_lifecycle.errors import Busy, EnvironmentMissing


@contextmanager
def file_lock(path: Path, *, timeout: float) -> Iterator[None]:
    """Hold the lock file at `path`; makes its folder. The kernel releases it when its holder dies.

    Raises Busy after `timeout` seconds, and EnvironmentMissing if the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
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
