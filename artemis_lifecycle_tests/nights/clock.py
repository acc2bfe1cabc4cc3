"""One simulated clock for Postgres and for Dagster."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, text

_SCHEMA = """
CREATE SCHEMA simulated;
CREATE TABLE simulated.clock (at timestamptz NOT NULL);
INSERT INTO simulated.clock VALUES ('2000-01-01T00:00:00Z');
CREATE SEQUENCE simulated.ticks;
CREATE FUNCTION simulated.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql AS
  $$ SELECT at + nextval('simulated.ticks') * interval '1 microsecond' FROM simulated.clock $$;
"""


class SimulatedClock:
    """`clock_timestamp()` of one database, and the time of Dagster in this process. Each reading is a microsecond
    after the one before."""

    def __init__(self, admin: Engine, database: str, patch: pytest.MonkeyPatch) -> None:
        self.now = datetime(2000, 1, 1, tzinfo=UTC)
        self._engine = admin
        with admin.begin() as connection:
            connection.execute(text(_SCHEMA))
            # Where pg_catalog is not named, it comes first.
            connection.execute(text(f"ALTER DATABASE {database} SET search_path = public, simulated, pg_catalog"))
        patch.setattr("dagster._time._mockable_get_current_datetime", lambda: self.now)
        patch.setattr("dagster._time._mockable_get_current_timestamp", lambda: self.now.timestamp())

    def set(self, at: datetime) -> None:
        """Move to `at`. Never back."""
        if at <= self.now:
            return
        self.now = at.astimezone(UTC)
        with self._engine.begin() as connection:
            connection.execute(text("UPDATE simulated.clock SET at = :at"), {"at": at})
            connection.execute(text("ALTER SEQUENCE simulated.ticks RESTART"))
