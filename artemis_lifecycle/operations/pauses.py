"""The kill switch: a row in Postgres that every worker reads each second, wherever it runs."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import CheckConstraint, Engine, Index, func, text

from artemis_lifecycle.errors import LifecycleError, Paused
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision
from artemis_lifecycle.operations.tables import Filled, Key, insert_record, one, records, table_of, update_records
from artemis_lifecycle.operations.texts import require_said

LOOKS_EVERY = 1.0
"""Seconds between two reads of a worker."""


@dataclass(frozen=True)
class Pause:
    """Who stopped the lifecycle, of one table or (`table_uuid` None) of all, since when and why."""

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
        return f"{what} paused by {self.who} since {self.since:%Y-%m-%d %H:%M:%S} UTC: {self.why}"


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
        """Stop one table's work, or (without one) everybody's. The one that is in force already stays as it is."""
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

    def end(self, who: str, table_uuid: str | None = None, why: str | None = None) -> list[Pause]:
        """Let the work on one table, or on all, go on; returns the ended pauses. Raises BadInput without a person."""
        require_said(table_uuid or "all tables", who=who)
        those = (_IN_FORCE, pauses.c.table_uuid.is_not_distinct_from(table_uuid))
        with around("pauses.end"), self._engine.begin() as connection:
            ended = update_records(connection, Pause, *those, ended_at=func.clock_timestamp(), ended_by=who)
            for each in ended:
                NewDecision("resume", each.pause_id, who, why).record(connection, each)
        return list(ended)

    def in_force(self) -> list[Pause]:
        """Those that are not ended, of all tables first."""
        return list(records(self._engine, Pause, _IN_FORCE, order_by=(pauses.c.table_uuid.nulls_first(),)))

    def of_table(self, table_uuid: str) -> Pause | None:
        """The pause that stops a table's work now, if there is one."""
        return next((pause for pause in self.in_force() if pause.table_uuid in (None, table_uuid)), None)


class Watch:
    """Looks every second whether a step has to stop, for as long as the block runs. `why` says so from then on.

    `look` gives the reason to stop, or None; from when there is one `stop` is called each second, and may cancel what
    is under way: the step may be about to begin more of it. Where Postgres does not answer nothing is stopped for that:
    the lease, which needs it too, sees to it.
    """

    def __init__(self, look: Callable[[], str | None], stop: Callable[[], None] = lambda: None) -> None:
        self._look = look
        self._stop = stop
        self._why: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="artemis-watch", daemon=True)

    @property
    def why(self) -> str | None:
        return self._why

    def __enter__(self) -> Watch:
        self._why = self._look()
        if self._why is None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(max(0.0, LOOKS_EVERY - (time.monotonic() - began))):
            began = time.monotonic()
            try:
                self._why = self._why or self._look()
            except LifecycleError:
                continue
            if self._why is not None:
                self._stop()


def paused(table: str, why: str) -> Paused:
    """The error for work on `table` that a pause, or the end of its quiet window, stopped."""
    return Paused(
        f"The work stopped: {why}",
        table=table,
        untouched="what was not finished before; it is gone on with by the next run",
        hint="let it go on with artemis resume, or wait for the next window",
    )
