"""What becomes of a process that died inside a test's process."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle


def lapse(lifecycle: Lifecycle, protection: Literal["leases", "heartbeats"]) -> None:
    """What time does to the leases, or the heartbeats, of a process that is no more."""
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text(f"UPDATE lifecycle.{protection} SET expires_at = clock_timestamp() - interval '1 s'"))


class Killed(BaseException):
    """A kill: nothing in the code under test may catch it."""
