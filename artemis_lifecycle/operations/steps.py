"""Which step ran for which table in which maintenance window, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Literal

import sqlalchemy as sa

from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import change

StepState = Literal["running", "done", "failed", "pending", "skipped"]

ENDED_UNSAID = "its process ended before the step did; the next run of the step goes on from there"
"""The error in the record of a step whose process was killed."""


@dataclass(frozen=True)
class StepRecord:
    """One run of a step. `window_day` identifies its maintenance window; `counts` are the step's own figures. `policy`
    is the digest of the table's retention at that time (`Retention.digest`)."""

    step_id: db.Serial
    table_uuid: str
    table: str
    step: str
    window_day: date
    owner: str
    run_id: str | None
    dry_run: bool
    state: StepState
    counts: Annotated[Mapping[str, int], {"server_default": sa.text("'{}'")}]
    error: str | None
    started_at: db.Filled
    finished_at: datetime | None
    policy: str | None


steps = db.table_of(
    StepRecord,
    "steps",
    sa.Index("steps_of_table", "table_uuid", "step_id"),
    sa.Index("steps_of_window", "window_day", "table_uuid"),
    # Each tick of the window's sensor reads when each step of each table last ended.
    sa.Index(
        "steps_ended",
        "table_name",
        "step",
        "finished_at",
        postgresql_include=["state"],
        postgresql_where=sa.text("state IN ('done', 'skipped') AND dry_run IS FALSE"),
    ),
)


@dataclass(frozen=True)
class StepTotal:
    """The sum of one figure of one step over the table's deleted records, without dry runs: a total never falls."""

    table: db.Key
    step: db.Key
    figure: db.Key
    total: int


step_totals = db.table_of(StepTotal, "step_totals")


class Steps(db.Part):
    def start(
        self,
        table_uuid: str,
        table: str,
        step: str,
        window_day: date,
        owner: str,
        run_id: str | None = None,
        dry_run: bool = False,
        policy: str | None = None,
    ) -> int:
        """Record that the step begins. Return its `step_id`. The caller holds the table's lease, except for a dry run.

        If another step of the table is still recorded as running, it has lost that lease: its process ended before it
        could record its end.
        """
        with around("steps.start"), self.engine.begin() as connection:
            if not dry_run:
                connection.execute(
                    sa.update(steps)
                    .where(steps.c.table_uuid == table_uuid, steps.c.state == "running", steps.c.dry_run.is_(False))
                    .values(state="failed", error=ENDED_UNSAID, finished_at=sa.func.clock_timestamp())
                )
            started = db.insert_record(
                connection,
                StepRecord,
                table_uuid=table_uuid,
                table=table,
                step=step,
                window_day=window_day,
                owner=owner,
                run_id=run_id,
                dry_run=dry_run,
                state="running",
                policy=policy,
            )
        return started.step_id

    def finish(
        self,
        step_id: int,
        state: Literal["done", "failed", "pending", "skipped"],
        counts: Mapping[str, int] | None = None,
        error: str | None = None,
    ) -> StepRecord:
        """Record how the step ended; `pending` means that it waits for its grace or the next quiet window."""
        ended = change(
            self.engine,
            "steps.finish",
            StepRecord,
            steps.c.step_id == step_id,
            state=state,
            counts=dict(counts or {}),
            error=db.storable(error),
            finished_at=sa.func.clock_timestamp(),
        )
        return db.required(ended, f"No step {step_id} was started", "start it first")

    def skip(
        self, table_uuid: str, table: str, step: str, window_day: date, owner: str, policy: str | None = None
    ) -> None:
        """Record that a step has nothing to do in this window. Needs no lease, because it changes no other record."""
        with around("steps.skip"), self.engine.begin() as connection:
            db.insert_record(
                connection,
                StepRecord,
                table_uuid=table_uuid,
                table=table,
                step=step,
                window_day=window_day,
                owner=owner,
                dry_run=False,
                state="skipped",
                policy=policy,
                finished_at=sa.func.clock_timestamp(),
            )

    def of_window(self, window_day: date) -> list[StepRecord]:
        """Return what ran in that window, for every table, oldest first; without dry runs."""
        real = (steps.c.window_day == window_day, steps.c.dry_run.is_(False))
        return list(db.records(self.engine, StepRecord, *real, order_by=(steps.c.step_id,)))

    def history(self, table_uuid: str, limit: int = 100) -> list[StepRecord]:
        """Newest first, including dry runs."""
        newest = (steps.c.step_id.desc(),)
        return list(db.records(self.engine, StepRecord, steps.c.table_uuid == table_uuid, order_by=newest, limit=limit))
