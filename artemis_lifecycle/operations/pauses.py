"""The kill switch: a row in Postgres that every worker reads every second, on any machine."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import CheckConstraint, Engine, Index, func, or_, text

from artemis_lifecycle.errors import LifecycleError, Paused
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision
from artemis_lifecycle.operations.tables import Filled, Key, insert_record, one, records, table_of, update_records
from artemis_lifecycle.operations.texts import require_said

CHECKED_EVERY = 1.0
"""Seconds between two reads of a worker."""


@dataclass(frozen=True)
class Pause:
    """Who stopped the lifecycle, for one table or (`table_uuid` None) for all, since when and why. It counts for the
    table, whatever its name is now, and for whatever table has the name: a person paused "db.t"."""

    pause_id: Key
    table_uuid: str | None
    table: str | None
    who: str
    why: str
    since: Filled
    ended_at: datetime | None
    ended_by: str | None

    def __str__(self) -> str:
        what = "all tables are" if self.table is None else f"{self.table} is"
        scope = "" if self.table is None else f" (table {self.table_uuid}, and any table with that name)"
        return f"{what} paused by {self.who} since {self.since:%Y-%m-%d %H:%M:%S} UTC{scope}: {self.why}"


pauses = table_of(
    Pause,
    "pauses",
    CheckConstraint("btrim(who) <> '' AND btrim(why) <> ''", name="pauses_said"),
    Index("pauses_in_force", "table_uuid", postgresql_where=text("ended_at IS NULL")),
)

_IN_FORCE = pauses.c.ended_at.is_(None)


class Pauses:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(self, who: str, why: str, table_uuid: str | None = None, table: str | None = None) -> Pause:
        """Stop one table's work, or all work without a table. An active pause does not change."""
        require_said(table or "all tables", who=who, why=why)
        with around("pauses.begin"), self._engine.begin() as connection:
            found = one(connection, Pause, _IN_FORCE, pauses.c.table_uuid.is_not_distinct_from(table_uuid))
            if found is None:
                pause_id = f"pause-{uuid.uuid4().hex[:12]}"
                found = insert_record(
                    connection, Pause, pause_id=pause_id, table_uuid=table_uuid, table=table, who=who, why=why
                )
                NewDecision("pause", pause_id, who, why).record(connection, found)
        return found

    def end(
        self, who: str, table_uuid: str | None = None, why: str | None = None, *, name: str | None = None
    ) -> list[Pause]:
        """Resume the work on one table (by its uuid, or by the name that it had when it was paused), or on all. Return
        the ended pauses. Raises BadInput without a person."""
        require_said(name or table_uuid or "all tables", who=who)
        those = pauses.c.table_uuid.is_not_distinct_from(table_uuid)
        if name is not None:
            those = or_(pauses.c.table_uuid == table_uuid, pauses.c.table_name == name)
        with around("pauses.end"), self._engine.begin() as connection:
            ended = update_records(connection, Pause, _IN_FORCE, those, ended_at=func.clock_timestamp(), ended_by=who)
            for each in ended:
                NewDecision("resume", each.pause_id, who, why).record(connection, each)
        return list(ended)

    def in_force(self) -> list[Pause]:
        """Return the active pauses, those of all tables first."""
        return list(records(self._engine, Pause, _IN_FORCE, order_by=(pauses.c.table_uuid.nulls_first(),)))

    def of_table(self, table_uuid: str, table: str) -> Pause | None:
        """Return the pause that currently stops a table's work, if any: by its uuid or its name."""
        those = (each for each in self.in_force() if each.table_uuid in (None, table_uuid) or each.table == table)
        return next(those, None)


class Watch:
    """Checks every second, while the block runs, whether a step has to stop. `why` then has the reason.

    `reason` returns the reason to stop, or None. Once there is one, `stop` is called every second, and may cancel
    running work, because the step may be about to start more. If Postgres does not answer, nothing is stopped for that
    reason: the lease, which also needs Postgres, takes care of it.
    """

    def __init__(self, reason: Callable[[], str | None], stop: Callable[[], None] = lambda: None) -> None:
        self._reason = reason
        self._stop = stop
        self._why: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="artemis-watch", daemon=True)

    @property
    def why(self) -> str | None:
        return self._why

    def __enter__(self) -> Watch:
        self._why = self._reason()
        if self._why is None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(max(0.0, CHECKED_EVERY - (time.monotonic() - began))):
            began = time.monotonic()
            try:
                self._why = self._why or self._reason()
            except LifecycleError:
                continue
            if self._why is not None:
                self._stop()


def paused(table: str, why: str) -> Paused:
    """Return the error for work on `table` that was stopped by a pause or the end of its quiet window."""
    return Paused(
        f"The work stopped: {why}",
        table=table,
        untouched="the unfinished work, which the next run continues",
        hint="run artemis resume, or wait for the next window",
    )
