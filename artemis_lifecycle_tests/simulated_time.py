"""A clock whose time passes only in `sleep`, and by hand; and files of another time."""

from __future__ import annotations

import os
from datetime import datetime

from artemis_lifecycle.storage.local.store import local_path


def set_modified(path: str, instant: datetime) -> None:
    """Set the modification time of a local file."""
    os.utime(local_path(path), (instant.timestamp(), instant.timestamp()))


class SimulatedTime:
    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
