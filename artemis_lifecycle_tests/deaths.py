"""What becomes of a process that died inside a test's process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.operations import crash_points


def lapse(lifecycle: Lifecycle, protection: Literal["leases", "heartbeats"]) -> None:
    """What time does to the leases, or the heartbeats, of a process that is no more."""
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text(f"UPDATE lifecycle.{protection} SET expires_at = clock_timestamp() - interval '1 s'"))


class Killed(BaseException):
    """A kill: nothing in the code under test may catch it."""


@contextmanager
def killed_at(point: str) -> Iterator[None]:
    """The block dies when it reaches the crash point, which it must."""

    def die(reached: str) -> None:
        if reached == point:
            raise Killed(reached)

    with pytest.raises(Killed), crash_points.installed(die):
        yield
