"""Locks in Postgres: one lock per table, shared by everything that makes files live and everything that deletes them.

A lock is a row of `lifecycle.locks`, locked while a transaction is open. Advisory locks are not used, because every
login of the server can take them. Heartbeats and holds take the table's lock by triggers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from artemis_lifecycle.errors import Busy, OperationsUnavailable
from artemis_lifecycle.operations.tables import metadata

locks = sa.Table("locks", metadata, sa.Column("name", sa.Text, primary_key=True))
"""A row for each lock that was ever taken; its holder has the row locked."""

LOCK_VERSION = 2
"""How tables are locked: version 1 used advisory locks. Leases record it."""

STARTERS_WAIT = 60.0
"""Seconds for which a starter waits for another."""

_LOCK_TIMEOUT = sa.text("SELECT set_config('lock_timeout', :wait, true)")
_LOCK_NOT_AVAILABLE = "55P03"

_HOLDER = """
    SELECT activity.pid, activity.usename, activity.application_name, host(activity.client_addr), activity.xact_start
    FROM pg_locks JOIN pg_stat_activity AS activity USING (pid) WHERE pg_locks.granted AND
"""


@dataclass(frozen=True)
class TableLock:
    """The lock, held while its transaction is open."""

    table: str | None
    _connection: sa.Connection

    def check(self) -> None:
        """Raise OperationsUnavailable if the session, and with it the lock, is gone."""
        if not self._connection.invalidated:
            self._connection.execute(sa.text("SELECT 1"))
            return
        raise OperationsUnavailable(
            "The session that held the table's lock is gone, and the lock with it",
            table=self.table,
            untouched="everything that was not started yet",
            hint="run the step again: it resumes",
        )


@contextmanager
def table_lock(
    engine: sa.Engine, table_uuid: str, timeout: float | timedelta = 30.0, *, table: str | None = None
) -> Iterator[TableLock]:
    """Hold the table's lock in a separate session. Waits in Postgres' queue for `timeout` (seconds), then raises Busy
    with the holder."""
    with engine.connect() as connection:
        try:
            # In a separate commit, so that others can see whose lock they wait for.
            with busy_after(connection, timeout, table_uuid, table):
                connection.execute(insert(locks).values(name=f"table:{table_uuid}").on_conflict_do_nothing())
            connection.commit()
            with busy_after(connection, timeout, table_uuid, table):
                # The server may end transactions that are long or idle; this one waits on purpose.
                connection.execute(
                    sa.text(
                        "SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN "
                        "('idle_in_transaction_session_timeout', 'transaction_timeout', 'idle_session_timeout')"
                    )
                )
                lock_row(connection, f"table:{table_uuid}")
            yield TableLock(table, connection)
        finally:
            # A session that is gone has already released it, and the caller must see its own error.
            with suppress(SQLAlchemyError, OperationsUnavailable):
                connection.commit()


def lock_row(connection: sa.Connection, name: str) -> None:
    """Wait for the lock `name`, and hold it until the connection's transaction ends."""
    while connection.execute(sa.select(locks.c.name).where(locks.c.name == name).with_for_update()).first() is None:
        connection.execute(insert(locks).values(name=name).on_conflict_do_nothing())


@contextmanager
def busy_after(
    connection: sa.Connection, timeout: float | timedelta, table_uuid: str, table: str | None = None
) -> Iterator[None]:
    """Let no statement of the block wait for a lock longer than `timeout` (seconds): raise Busy with the holder of the
    table's lock. Then the transaction must be rolled back."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout

    def busy() -> Busy:
        return Busy(
            f"The lock of table {table or table_uuid} was not free within {seconds:g} s: a commit, a deletion batch, "
            f"a hold, a writer's start or a restore has it{_holder_of_row(connection.engine, f'table:{table_uuid}')}",
            table=table,
            hint="try again; to end a session that never ends: SELECT pg_terminate_backend(PID)",
        )

    with _within(connection, seconds, busy):
        yield


def starters_lock(connection: sa.Connection, name: str) -> None:
    """Hold an advisory lock until the transaction ends, for things that are created once, before there is a row to
    lock: schemas, tables and triggers. Every login can take it. Raises Busy with the holder after STARTERS_WAIT."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)

    def busy() -> Busy:
        condition = "locktype = 'advisory' AND (classid::bigint << 32) | objid::bigint = :key"
        return Busy(
            f"Another session has had the lock {name} for {STARTERS_WAIT:g} s"
            f"{_holder(connection.engine, condition, key=key)}",
            hint="wait until it has started, or end it with: SELECT pg_terminate_backend(PID)",
        )

    with _within(connection, STARTERS_WAIT, busy):
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
    _wait_at_most(connection, 0)  # The starter continues in this transaction.


@contextmanager
def _within(connection: sa.Connection, seconds: float, busy: Callable[[], Busy]) -> Iterator[None]:
    """Raise `busy()` if a statement of the block waits longer for a lock. The limit ends with the transaction."""
    _wait_at_most(connection, seconds)
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "pgcode", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise busy() from error


def _wait_at_most(connection: sa.Connection, seconds: float) -> None:
    """0 means forever, as in Postgres."""
    milliseconds = max(1, int(seconds * 1000)) if seconds else 0
    connection.execute(_LOCK_TIMEOUT, {"wait": str(milliseconds)})


def _holder_of_row(engine: sa.Engine, name: str) -> str:
    condition = (
        "locktype = 'transactionid' AND pg_locks.transactionid = (SELECT xmax FROM lifecycle.locks WHERE name = :name)"
    )
    return _holder(engine, condition, name=name)


def _holder(engine: sa.Engine, condition: str, **values: object) -> str:
    """Return the session, as far as the server shows it."""
    row = None
    with suppress(SQLAlchemyError, OperationsUnavailable), engine.connect() as connection:
        row = connection.execute(sa.text(_HOLDER + condition), values).first()
    if row is None:
        return ""
    pid, login, program, address, since = row
    where = f" at {address}" if address else ""
    began = f", since {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if since else ""
    return f" (session {pid} of {login}, {program or 'no name'}{where}{began})"
