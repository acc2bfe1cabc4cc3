"""The kill switch: a row in Postgres that every worker looks at each second, wherever it runs."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, func, insert, select, update

from artemis_lifecycle.errors import LifecycleError, Paused
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import note
from artemis_lifecycle.operations.tables import pauses, to_record
from artemis_lifecycle.operations.texts import require_said

LOOKS_EVERY = 1.0
"""Seconds between two looks of a worker."""


@dataclass(frozen=True)
class Pause:
    """Who stopped the lifecycle, of one table or (`table_uuid` None) of all, since when and why."""

    pause_id: str
    table_uuid: str | None
    table: str | None
    who: str
    why: str
    since: datetime
    ended_at: datetime | None
    ended_by: str | None

    def __str__(self) -> str:
        what = "all tables are" if self.table is None else f"{self.table} is"
        return f"{what} paused by {self.who} since {self.since:%Y-%m-%d %H:%M:%S} UTC: {self.why}"


class Pauses:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(self, who: str, why: str, table_uuid: str | None = None, table: str | None = None) -> Pause:
        """Stop one table's work, or (without one) everybody's. The one that is in force already stays as it is."""
        require_said(table or "all tables", who=who, why=why)
        with around("pauses.begin"), self._engine.begin() as connection:
            row = connection.execute(
                select(pauses).where(pauses.c.ended_at.is_(None), pauses.c.table_uuid.is_not_distinct_from(table_uuid))
            ).first()
            if row is None:
                row = connection.execute(
                    insert(pauses)
                    .values(
                        pause_id=f"pause-{uuid.uuid4().hex[:12]}",
                        table_uuid=table_uuid,
                        table_name=table,
                        who=who,
                        why=why,
                    )
                    .returning(pauses)
                ).one()
                note(connection, "pause", row.pause_id, who=who, why=why, table_uuid=table_uuid, table=table)
        return to_record(Pause, row)

    def end(self, who: str, table_uuid: str | None = None, why: str | None = None) -> list[Pause]:
        """Let one table's work, or everybody's, go on; the pauses that this ended. Raises BadInput for nobody."""
        require_said(table_uuid or "all tables", who=who)
        with around("pauses.end"), self._engine.begin() as connection:
            rows = connection.execute(
                update(pauses)
                .where(pauses.c.ended_at.is_(None), pauses.c.table_uuid.is_not_distinct_from(table_uuid))
                .values(ended_at=func.clock_timestamp(), ended_by=who)
                .returning(pauses)
            ).all()
            ended = [to_record(Pause, row) for row in rows]
            for each in ended:
                of = {"table_uuid": each.table_uuid, "table": each.table}
                note(connection, "resume", each.pause_id, who=who, why=why, **of)
        return ended

    def in_force(self) -> list[Pause]:
        """Those that are not ended, of all tables first."""
        query = select(pauses).where(pauses.c.ended_at.is_(None)).order_by(pauses.c.table_uuid.nulls_first())
        with self._engine.connect() as connection:
            return [to_record(Pause, row) for row in connection.execute(query)]

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
        do="let it go on with artemis resume, or wait for the next night",
    )
