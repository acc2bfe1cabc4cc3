"""What step ran for which table in which night, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from types import MappingProxyType
from typing import Any, Literal

from sqlalchemy import Engine, Row, func, insert, select, update

from artemis_lifecycle.errors import NoSuchPlan
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import steps
from artemis_lifecycle.operations.texts import storable

StepState = Literal["running", "done", "failed", "pending", "skipped"]

ENDED_UNSAID = "its process ended before the step did; the next run of the step goes on from there"
"""What the record of a step says whose process was killed."""


@dataclass(frozen=True)
class StepRecord:
    """One run of a step. `night` is the date that its schedule belongs to; `counts` are the step's own figures."""

    step_id: int
    table_uuid: str
    table: str
    step: str
    night: date
    owner: str
    run_id: str | None
    dry_run: bool
    state: StepState
    counts: Mapping[str, int]
    error: str | None
    started_at: datetime
    finished_at: datetime | None


def _record(row: Row[Any]) -> StepRecord:
    return StepRecord(
        step_id=row.step_id,
        table_uuid=row.table_uuid,
        table=row.table_name,
        step=row.step,
        night=row.night,
        owner=row.owner,
        run_id=row.run_id,
        dry_run=row.dry_run,
        state=row.state,
        counts=MappingProxyType(dict(row._mapping["counts"])),
        error=row.error,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


class Steps:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def start(
        self,
        table_uuid: str,
        table: str,
        step: str,
        night: date,
        owner: str,
        run_id: str | None = None,
        dry_run: bool = False,
    ) -> int:
        """Write that the step begins; returns its `step_id`. Call it under the table's lease, unless it is a dry run.

        A step of the table that is still said to run has lost that lease: its process ended before it could say so.
        """
        with around("steps.start"), self._engine.begin() as connection:
            if not dry_run:
                connection.execute(
                    update(steps)
                    .where(steps.c.table_uuid == table_uuid, steps.c.state == "running", steps.c.dry_run.is_(False))
                    .values(state="failed", error=ENDED_UNSAID, finished_at=func.clock_timestamp())
                )
            return int(
                connection.execute(
                    insert(steps)
                    .values(
                        table_uuid=table_uuid,
                        table_name=table,
                        step=step,
                        night=night,
                        owner=owner,
                        run_id=run_id,
                        dry_run=dry_run,
                        state="running",
                    )
                    .returning(steps.c.step_id)
                ).scalar_one()
            )

    def finish(
        self,
        step_id: int,
        state: Literal["done", "failed", "pending", "skipped"],
        counts: Mapping[str, int] | None = None,
        error: str | None = None,
    ) -> StepRecord:
        """Write how the step ended; `pending` is one that waits, for its grace or the next quiet window."""
        with around("steps.finish"), self._engine.begin() as connection:
            row = connection.execute(
                update(steps)
                .where(steps.c.step_id == step_id)
                .values(
                    state=state,
                    counts=dict(counts or {}),
                    error=storable(error),
                    finished_at=func.clock_timestamp(),
                )
                .returning(steps)
            ).first()
        if row is None:
            raise NoSuchPlan(f"No step {step_id} was started", untouched="everything", do="start it first")
        return _record(row)

    def latest(self, table_uuid: str, step: str) -> StepRecord | None:
        """The newest run of the step, dry runs left out."""
        query = (
            select(steps)
            .where(steps.c.table_uuid == table_uuid, steps.c.step == step, steps.c.dry_run.is_(False))
            .order_by(steps.c.step_id.desc())
            .limit(1)
        )
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        return None if row is None else _record(row)

    def done_on(self, table_uuid: str, night: date) -> set[str]:
        """The steps done for that night; dry runs and skipped ones do not count."""
        query = (
            select(steps.c.step)
            .where(
                steps.c.table_uuid == table_uuid,
                steps.c.night == night,
                steps.c.state == "done",
                steps.c.dry_run.is_(False),
            )
            .distinct()
        )
        with self._engine.connect() as connection:
            return set(connection.execute(query).scalars())

    def of_night(self, night: date) -> list[StepRecord]:
        """What ran for that night, of every table, oldest first; dry runs left out."""
        query = select(steps).where(steps.c.night == night, steps.c.dry_run.is_(False)).order_by(steps.c.step_id)
        with self._engine.connect() as connection:
            return list(map(_record, connection.execute(query)))

    def history(self, table_uuid: str, limit: int = 100) -> list[StepRecord]:
        """Newest first, dry runs included."""
        query = select(steps).where(steps.c.table_uuid == table_uuid).order_by(steps.c.step_id.desc()).limit(limit)
        with self._engine.connect() as connection:
            return list(map(_record, connection.execute(query)))
