"""The write-ahead journal of deletions and of handoff copies, by batch: started, done, or remaining."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

import sqlalchemy as sa

from artemis_lifecycle.errors import LeaseLost, PlanStateError
from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.leases import leases
from artemis_lifecycle.operations.plans import plans

JobKind = Literal["expiration", "orphans", "dropped"]


class BatchState(StrEnum):
    PLANNED = "planned"
    DELETING = "deleting"
    DONE = "done"
    FAILED = "failed"
    WAITING = "waiting"
    """Some of its files are kept for now: a writer is active, or another plan needs them."""


@dataclass(frozen=True)
class JobRecord:
    """One deletion: of an expiration plan, an orphan scan, or a scan of a dropped table. `job_id` is the id of the plan
    or scan. The totals from `deleted` on are set when the batches are deleted at the end of their retention
    (`forgotten_at`)."""

    job_id: db.Key
    kind: JobKind
    table_uuid: str
    table: str
    files_location: str
    started_at: db.FilledLater = None
    finished_at: datetime | None = None
    batches: db.Small = 0
    files: db.Count = 0
    bytes: db.Count = 0
    forgotten_at: datetime | None = None
    deleted: db.Count = 0
    absent: db.Count = 0
    kept: db.Count = 0
    failed: db.Count = 0
    deleted_bytes: db.Count = 0


jobs = db.table_of(JobRecord, "jobs", sa.Index("jobs_of_table", "table_uuid"))


@dataclass(frozen=True)
class BatchRecord:
    """One batch; counts are files of its latest attempt, `deleted_bytes` their size. `fence` is the lease's token."""

    job_id: db.Key
    batch: db.SmallKey
    state: BatchState
    files: db.Count
    bytes: db.Count
    deleted: db.Count
    absent: db.Count
    kept: db.Count
    failed: db.Count
    deleted_bytes: db.Count
    attempts: db.SmallCount
    fence: int | None
    error: str | None
    updated_at: db.Filled


batches = db.table_of(BatchRecord, "batches", sa.ForeignKeyConstraint(["job_id"], [jobs.c.job_id]))


@dataclass(frozen=True)
class HandoffBatchRecord:
    """One batch of copies; `copied` and `skipped` (already there and identical) count files."""

    plan_id: db.Key
    batch: db.SmallKey
    state: Literal["planned", "done", "failed"]
    files: db.Count
    bytes: db.Count
    copied: db.Count
    skipped: db.Count
    attempts: db.SmallCount
    error: str | None
    updated_at: db.Filled


handoff_batches = db.table_of(
    HandoffBatchRecord, "handoff_batches", sa.ForeignKeyConstraint(["plan_id"], [plans.c.plan_id])
)


class Journal(db.Part):
    """Deletion jobs. A batch is recorded here before its first file is deleted, and after its last."""

    def begin(self, job: JobRecord, batch_sizes: Sequence[tuple[int, int]]) -> JobRecord:
        """Record the job and its batches, given as (files, bytes). A second call returns what is stored.

        Raises PlanStateError if the stored batches differ: the sealed list is not the one that was started.
        """
        with around("journal.begin"), self.engine.begin() as connection:
            files, size = sum(files for files, _ in batch_sizes), sum(size for _, size in batch_sizes)
            begun = replace(job, batches=len(batch_sizes), files=files, bytes=size)
            connection.execute(db.new(jobs, db.new_values(begun)))
            stored = _job(connection, job.job_id)
            known = _sizes(connection, batches, batches.c.job_id == job.job_id)
            if not known:
                _plan(connection, batches, batch_sizes, job_id=job.job_id)
            elif known != [tuple(size) for size in batch_sizes]:
                raise PlanStateError(
                    f"The journal has {job.job_id} with other batches ({len(known)}, not {len(batch_sizes)})",
                    table=job.table,
                    path=job.files_location,
                    untouched="the journal and all files",
                    hint="compare the sealed list with the journal before anything of it is deleted",
                )
        return stored

    def job(self, job_id: str) -> JobRecord | None:
        return db.one(self.engine, JobRecord, jobs.c.job_id == job_id)

    def of_table(self, table_uuid: str) -> tuple[JobRecord, ...]:
        """Return the table's deletions, newest first."""
        mine = jobs.c.table_uuid == table_uuid
        return db.records(self.engine, JobRecord, mine, order_by=(jobs.c.started_at.desc(),))

    def batches(self, job_id: str) -> tuple[BatchRecord, ...]:
        return db.records(self.engine, BatchRecord, batches.c.job_id == job_id, order_by=(batches.c.batch,))

    def unfinished(self, job_id: str) -> tuple[BatchRecord, ...]:
        """Return the batches that are not done: not started, interrupted, failed in part, or waiting."""
        return tuple(batch for batch in self.batches(job_id) if batch.state is not BatchState.DONE)

    def start_batch(self, job_id: str, batch: int, fence: int) -> BatchRecord:
        """Record that the batch's files will now be deleted, under the lease token `fence`.

        Raises LeaseLost if the job's batches or the table's lease have a newer token; PlanStateError if the batch is
        done; NoSuchPlan.
        """
        with around("journal.start_batch"), self.engine.begin() as connection:
            job = self._fenced(connection, job_id, fence)
            started = db.update_record(
                connection,
                BatchRecord,
                batches.c.job_id == job_id,
                batches.c.batch == batch,
                batches.c.state != BatchState.DONE,
                state=BatchState.DELETING,
                fence=fence,
                attempts=batches.c.attempts + 1,
                updated_at=sa.func.clock_timestamp(),
            )
            if started is None:
                raise PlanStateError(
                    f"Batch {batch} of {job_id} is done already, or was never started",
                    table=job.table,
                    untouched="its files",
                    hint="resume with the unfinished batches in the journal",
                )
        return started

    def finish_batch(
        self,
        job_id: str,
        batch: int,
        fence: int,
        deleted: int,
        absent: int,
        kept: int,
        failed: int,
        deleted_bytes: int,
        error: str | None = None,
        *,
        waiting: bool = False,
    ) -> BatchRecord:
        """Record the results of the batch's files: done; failed if any file failed or an `error` is given; or waiting.

        Raises LeaseLost if the batch no longer belongs to this fence.
        """
        with around("journal.finish_batch"), self.engine.begin() as connection:
            finished = db.update_record(
                connection,
                BatchRecord,
                batches.c.job_id == job_id,
                batches.c.batch == batch,
                batches.c.fence == fence,
                batches.c.state == BatchState.DELETING,
                state=BatchState.FAILED if failed or error else BatchState.WAITING if waiting else BatchState.DONE,
                deleted=deleted,
                absent=absent,
                kept=kept,
                failed=failed,
                deleted_bytes=deleted_bytes,
                error=db.storable(error),
                updated_at=sa.func.clock_timestamp(),
            )
            if finished is None:
                raise LeaseLost(
                    f"Batch {batch} of {job_id} is no longer under fencing token {fence}",
                    untouched="the journal's row, which another worker wrote",
                    hint="leave the job to that worker",
                )
        return finished

    def finish(self, job_id: str) -> JobRecord:
        """Record that the job is over. Raises PlanStateError while a batch is not done; NoSuchPlan."""
        with around("journal.finish"), self.engine.begin() as connection:
            job = _job(connection, job_id)
            left = connection.execute(
                sa.select(sa.func.count()).where(batches.c.job_id == job_id, batches.c.state != BatchState.DONE)
            ).scalar_one()
            if left:
                raise PlanStateError(
                    f"{left} batches of {job_id} are not done",
                    table=job.table,
                    untouched="the journal",
                    hint="run the deletion again: it resumes with those",
                )
            now = sa.func.coalesce(jobs.c.finished_at, sa.func.clock_timestamp())
            (finished,) = db.update_records(connection, JobRecord, jobs.c.job_id == job_id, finished_at=now)
        return finished

    @staticmethod
    def _fenced(connection: sa.Connection, job_id: str, fence: int) -> JobRecord:
        job = _job(connection, job_id)
        newest = connection.execute(
            sa.select(
                sa.func.greatest(
                    sa.select(sa.func.max(batches.c.fence)).where(batches.c.job_id == job_id).scalar_subquery(),
                    sa.select(sa.func.max(leases.c.token))
                    .where(leases.c.table_uuid == job.table_uuid)
                    .scalar_subquery(),
                )
            )
        ).scalar_one()
        if newest is not None and newest > fence:
            raise LeaseLost(
                f"Fencing token {fence} is older than {newest}: another worker took the table over",
                table=job.table,
                untouched="the files of the batch",
                hint="leave the job to that worker",
            )
        return job


def _job(connection: sa.Connection, job_id: str) -> JobRecord:
    found = db.one(connection, JobRecord, jobs.c.job_id == job_id, for_update=True)
    return db.required(found, f"No deletion job {job_id} is in the journal", "start it first")


def _sizes(connection: sa.Connection, table: sa.Table, mine: sa.ColumnElement[bool]) -> list[tuple[int, int]]:
    """Return (files, bytes) of the stored batches, in order."""
    query = sa.select(table.c.files, table.c.bytes).where(mine).order_by(table.c.batch)
    return [(row.files, row.bytes) for row in connection.execute(query)]


def _plan(connection: sa.Connection, table: sa.Table, sizes: Sequence[tuple[int, int]], **owner: str) -> None:
    rows = [
        {**owner, "batch": index, "state": BatchState.PLANNED, "files": files, "bytes": size}
        for index, (files, size) in enumerate(sizes)
    ]
    if rows:
        connection.execute(sa.insert(table), rows)


class HandoffBatches(db.Part):
    """The copies of a handoff, by batch of its plan's files."""

    def begin(self, plan_id: str, batch_sizes: Sequence[tuple[int, int]]) -> tuple[HandoffBatchRecord, ...]:
        """Record the batches, given as (files, bytes). A second call returns what is stored.

        If the division into batches differs, the stored ones are replaced, including finished ones: copying again is
        harmless.
        """
        with around("handoffs.begin"), self.engine.begin() as connection:
            mine = handoff_batches.c.plan_id == plan_id
            if _sizes(connection, handoff_batches, mine) != [tuple(size) for size in batch_sizes]:
                connection.execute(handoff_batches.delete().where(mine))
                _plan(connection, handoff_batches, batch_sizes, plan_id=plan_id)
        return self.batches(plan_id)

    def batches(self, plan_id: str) -> tuple[HandoffBatchRecord, ...]:
        mine = handoff_batches.c.plan_id == plan_id
        return db.records(self.engine, HandoffBatchRecord, mine, order_by=(handoff_batches.c.batch,))

    def unfinished(self, plan_id: str) -> tuple[HandoffBatchRecord, ...]:
        return tuple(batch for batch in self.batches(plan_id) if batch.state != "done")

    def finish_batch(
        self, plan_id: str, batch: int, copied: int, skipped: int, error: str | None = None
    ) -> HandoffBatchRecord:
        """Record that the batch is copied and verified, or failed with `error`. Raises NoSuchPlan."""
        with around("handoffs.finish_batch"), self.engine.begin() as connection:
            finished = db.update_record(
                connection,
                HandoffBatchRecord,
                handoff_batches.c.plan_id == plan_id,
                handoff_batches.c.batch == batch,
                state="failed" if error else "done",
                copied=copied,
                skipped=skipped,
                error=db.storable(error),
                attempts=handoff_batches.c.attempts + 1,
                updated_at=sa.func.clock_timestamp(),
            )
            return db.required(
                finished, f"No batch {batch} of the handoff of plan {plan_id} is stored", "start the handoff first"
            )
