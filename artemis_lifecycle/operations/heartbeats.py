"""Heartbeats: a writer reports that it is active, so that no file of its table, or of its prefix, is treated as an
orphan.

A writer in another language needs two statements. Before its first file, and then repeatedly, it inserts into
lifecycle.heartbeats (or updates by primary key) with `expires_at` some time after clock_timestamp(). At its end, it
deletes the row.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from sqlalchemy import CheckConstraint, Column, Engine, Index, Integer, Text, delete, func, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import DBAPIError

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import Busy, LeaseLost, OperationsUnavailable, Refused
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.locks import busy_after
from artemis_lifecycle.operations.roles import INGEST, refusing
from artemis_lifecycle.operations.tables import Filled, Key, if_given, records, table_of, to_record, update_record
from artemis_lifecycle.storage.instants import elapsed

_LOG = escaping.logger(__name__)

_HISTORY = timedelta(days=30)


SHOWN = ("writer", "protects", "host", "pid", "at work since", "unless it beats, until")
"""A heartbeat for display: the columns of `Heartbeat.shown`."""


@dataclass(frozen=True)
class Heartbeat:
    """One active writer. `prefix` None protects the whole table; `host` and `pid` are unknown for foreign writers."""

    table_uuid: Key
    table: str
    writer_id: Key
    # Two processes may write under one id: when one ends, the other must stay protected.
    session: Annotated[Key, {"server_default": text("''")}]
    prefix: str | None
    host: str | None
    pid: Annotated[int | None, {"type_": Integer}]
    started_at: Filled
    last_beat_at: Filled
    expires_at: datetime

    @property
    def shown(self) -> tuple[object, ...]:
        """Return its display row; SHOWN has the column names."""
        protects = self.prefix or "the whole table"
        return self.writer_id, protects, self.host, self.pid, self.started_at, self.expires_at


heartbeats = table_of(
    Heartbeat,
    "heartbeats",
    # The Postgres login. A trigger sets it, and only that login (and the lifecycle) may end or renew the heartbeat.
    Column("login", Text),
    # Drivers cannot read times beyond these years, and one such row would stop every step that reads it.
    CheckConstraint(
        " AND ".join(
            f"{name} BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-30 00:00:00+00'"
            for name in ("started_at", "last_beat_at", "expires_at")
        ),
        name="heartbeats_times",
    ),
    Index("heartbeats_expiry", "expires_at"),
)


class Heartbeats:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def beat(
        self,
        table_uuid: str,
        table: str,
        writer_id: str,
        prefix: str | None = None,
        ttl: timedelta = timedelta(minutes=10),
        *,
        session: str | None = None,
        timeout: float = 30.0,
    ) -> Heartbeat:
        """Start or renew a heartbeat: protected until `ttl` from now. `session` distinguishes processes with one writer
        id (None: host and pid).

        The first beat, and one after a lapse, takes the table's lock (by a trigger), so that no deletion batch is
        between its last check and its deletes. Raises Busy if that lock is not free within `timeout` seconds; Refused
        if another Postgres login is writing under this id and session.
        """
        key = session or _this_process()
        with self._engine.begin() as connection:
            renewed = update_record(
                connection,
                Heartbeat,
                heartbeats.c.table_uuid == table_uuid,
                heartbeats.c.writer_id == writer_id,
                heartbeats.c.session == key,
                heartbeats.c.expires_at > func.clock_timestamp(),
                # Another prefix starts like another writer.
                heartbeats.c.prefix.is_not_distinct_from(prefix),
                table=table,
                last_beat_at=func.clock_timestamp(),
                expires_at=func.clock_timestamp() + ttl,
            )
        if renewed is not None:
            return renewed
        with (
            refusing(
                f"Postgres refuses the heartbeat of writer {writer_id}",
                table=table,
                untouched="the heartbeat of another login, if one is live under this id",
                hint=f"use a writer id of your own, and a login with {INGEST} (docs/roles.md)",
            ),
            around("heartbeats.enter"),
            self._engine.begin() as connection,
            busy_after(connection, timeout, table_uuid, table),
        ):
            connection.execute(delete(heartbeats).where(heartbeats.c.expires_at < func.clock_timestamp() - _HISTORY))
            statement = upsert(heartbeats).values(
                table_uuid=table_uuid,
                writer_id=writer_id,
                session=key,
                table_name=table,
                prefix=prefix,
                host=socket.gethostname(),
                pid=os.getpid(),
                expires_at=func.clock_timestamp() + ttl,
            )
            row = connection.execute(
                statement.on_conflict_do_update(
                    index_elements=list(heartbeats.primary_key),
                    set_={
                        "table_name": statement.excluded.table_name,
                        "prefix": statement.excluded.prefix,
                        "host": statement.excluded.host,
                        "pid": statement.excluded.pid,
                        "started_at": func.clock_timestamp(),
                        "last_beat_at": func.clock_timestamp(),
                        "expires_at": statement.excluded.expires_at,
                    },
                ).returning(heartbeats)
            ).one()
        return to_record(Heartbeat, row)

    def stop(self, table_uuid: str, writer_id: str, *, session: str | None = None) -> None:
        """End this session's protection. Without such a session, nothing changes."""
        with around("heartbeats.stop"), self._engine.begin() as connection:
            connection.execute(
                delete(heartbeats).where(
                    heartbeats.c.table_uuid == table_uuid,
                    heartbeats.c.writer_id == writer_id,
                    heartbeats.c.session == (session or _this_process()),
                )
            )

    def live(self, table_uuid: str | None = None) -> list[Heartbeat]:
        """Return the active writers by the Postgres clock, of one table or of all, longest active first."""
        where = (heartbeats.c.expires_at > func.clock_timestamp(), *if_given(heartbeats.c.table_uuid, table_uuid))
        return list(records(self._engine, Heartbeat, *where, order_by=(heartbeats.c.started_at,)))


class Writing:
    """A writer's protection inside `writing`."""

    def __init__(
        self,
        beats: Heartbeats,
        table_uuid: str,
        table: str,
        writer_id: str,
        prefix: str | None,
        ttl: timedelta,
        confirm: Callable[[], None],
    ) -> None:
        self.table = table
        self.writer_id = writer_id
        self.session = uuid.uuid4().hex
        self._beats = beats
        self._table_uuid = table_uuid
        self._prefix = prefix
        self._ttl = ttl
        self._confirm = confirm
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_always, name=f"heartbeat-{writer_id}", daemon=True)
        self._guard = threading.Lock()
        self._gap: str | None = None
        self._started_at: datetime | None = None
        self._deadline = float("inf")

    def check(self) -> None:
        """Beat now. Raises LeaseLost if the protection had a gap since the block began: a file written earlier may have
        been deleted as an orphan. Raises what `confirm` of `writing` raises."""
        self._beat()
        self._confirm()
        if self._gap is not None:
            raise LeaseLost(
                f"The heartbeat of writer {self.writer_id} had a gap: {self._gap}",
                table=self.table,
                untouched="the table's metadata",
                hint="do not commit the files written so far; write them again",
            )

    def _beat(self) -> None:
        with self._guard:
            asked_at = elapsed()
            beat = self._beats.beat(
                self._table_uuid, self.table, self.writer_id, self._prefix, self._ttl, session=self.session
            )
            if self._started_at is not None and beat.started_at != self._started_at:
                self._gap = f"it lapsed and started again at {beat.started_at.isoformat()}"
            elif elapsed() > self._deadline:
                # The renewal started in time but was committed late: in between it was invisible.
                self._gap = "it was renewed only after it had lapsed"
            self._started_at = beat.started_at
            self._deadline = asked_at + self._ttl.total_seconds()

    def _beat_always(self) -> None:
        while not self._stop.wait(self._ttl.total_seconds() / 3):
            try:
                self._beat()
            except (OperationsUnavailable, Busy, Refused, DBAPIError) as error:
                _LOG.warning("Writer %s of %s could not beat: %s", self.writer_id, self.table, error)

    def _start(self) -> None:
        self._beat()
        self._thread.start()

    def _end(self) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        # If Postgres is gone, the heartbeat lapses by itself, and the caller must see the writer's own error.
        with suppress(OperationsUnavailable, DBAPIError):
            self._beats.stop(self._table_uuid, self.writer_id, session=self.session)


@contextmanager
def writing(
    beats: Heartbeats,
    table_uuid: str,
    table: str,
    writer_id: str,
    prefix: str | None = None,
    ttl: timedelta = timedelta(minutes=10),
    *,
    confirm: Callable[[], None] = lambda: None,
) -> Iterator[Writing]:
    """Protect what is written inside the block. A thread beats every third of `ttl`.

    Entering takes the table's lock, and raises Busy if it is not free within 30 s. Call `check()` before committing. It
    also calls `confirm`, which raises if the heartbeat is not visible where it must be.
    """
    protection = Writing(beats, table_uuid, table, writer_id, prefix, ttl, confirm)
    protection._start()
    try:
        yield protection
    finally:
        protection._end()


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
