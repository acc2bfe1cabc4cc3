"""The Postgres clock: one clock for all machines that work on the tables."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

_NOW = sa.text("SELECT clock_timestamp()")


class Clock:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def now(self) -> datetime:
        """Return the instant of the call, not of a transaction's start; aware, in UTC."""
        with self._engine.connect() as connection:
            now: datetime = connection.execute(_NOW).scalar_one()
        return now.astimezone(UTC)
