"""Advisory locks of Postgres: one lock per table, shared by whoever makes files alive and whoever deletes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from artemis_lifecycle.errors import Busy, OperationsUnavailable

_LOCK_NOT_AVAILABLE = "55P03"


def lock_key(name: str) -> int:
    """The signed 64-bit key of an advisory lock, the same in every process and version."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)


@dataclass(frozen=True)
class TableLock:
    """The lock, held while its session lives."""

    table_uuid: str
    table: str | None
    _connection: Connection

    def check(self) -> None:
        """Raise OperationsUnavailable when the session is gone, and the lock with it."""
        if not self._connection.invalidated:
            self._connection.execute(text("SELECT 1"))
            return
        raise OperationsUnavailable(
            "The session that held the table's lock is gone, and the lock with it",
            table=self.table,
            untouched="whatever was not yet begun",
            do="run the step again: it resumes",
        )


@contextmanager
def table_lock(
    engine: Engine, table_uuid: str, timeout: float | timedelta = 30.0, *, table: str | None = None
) -> Iterator[TableLock]:
    """Hold the table's lock on a session of its own. Waits in Postgres' queue for `timeout` (seconds), then raises
    Busy. It is a session lock: a pooler between here and Postgres must not change sessions under a client.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    key = lock_key(f"artemis:{table_uuid}")
    with engine.connect() as pooled:
        connection = pooled.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(
            text("SELECT set_config('lock_timeout', :wait, false)"), {"wait": str(max(1, int(seconds * 1000)))}
        )
        try:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": key})
        except DBAPIError as error:
            if getattr(error.orig, "pgcode", None) != _LOCK_NOT_AVAILABLE:
                raise
            raise Busy(
                f"The lock of table {table or table_uuid} was not free within {seconds:g} s: a deletion batch, a hold, "
                "a writer's start or a restore has it",
                table=table,
                untouched="everything",
                do="try again",
            ) from error
        finally:
            _quietly(connection, "SELECT set_config('lock_timeout', '0', false)")
        try:
            yield TableLock(table_uuid, table, connection)
        finally:
            _quietly(connection, f"SELECT pg_advisory_unlock({key})")


def _quietly(connection: Connection, statement: str) -> None:
    """Run it, or drop the session, which ends what the session held."""
    if connection.invalidated:
        return
    try:
        connection.execute(text(statement))
    except (DBAPIError, OperationsUnavailable):
        connection.invalidate()
