"""The write-ahead journal of deletions, and of a handoff's copies, by batch: begun, done, or left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from sqlalchemy import Connection, Engine, Row, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.errors import LeaseLost, NoSuchPlan, PlanStateError
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import batches, handoff_batches, jobs, leases, to_record
from artemis_lifecycle.operations.texts import storable

JobKind = Literal["expiration", "orphans", "dropped"]


class BatchState(StrEnum):
    PLANNED = "planned"
    DELETING = "deleting"
    DONE = "done"
    FAILED = "failed"
    WAITING = "waiting"
    """Files of it stay for now: a writer is at work, or another plan holds them."""


@dataclass(frozen=True)
class JobRecord:
    """One deletion: of an expiration plan, an orphan scan, or a scan of a dropped table. `job_id` is the plan's or the
    scan's id. The sums from `deleted` on are set when the batches were `forgotten_at` their retention's end."""

    job_id: str
    kind: JobKind
    table_uuid: str
    table: str
    files_location: str
    started_at: datetime | None = None
    finished_at: datetime | None = None
    batches: int = 0
    files: int = 0
    bytes: int = 0
    forgotten_at: datetime | None = None
    deleted: int = 0
    absent: int = 0
    kept: int = 0
    failed: int = 0
    deleted_bytes: int = 0


@dataclass(frozen=True)
class BatchRecord:
    """One batch; counts are files of its latest attempt, `deleted_bytes` their size. `fence` is the lease's token."""

    job_id: str
    batch: int
    state: BatchState
    files: int
    bytes: int
    deleted: int
    absent: int
    kept: int
    failed: int
    deleted_bytes: int
    attempts: int
    fence: int | None
    error: str | None
    updated_at: datetime


@dataclass(frozen=True)
class BatchTotals:
    """Sums over a job's batches. `done` and `batches` count batches, all else files and bytes."""

    batches: int
    done: int
    files: int
    bytes: int
    deleted: int
    absent: int
    kept: int
    failed: int
    deleted_bytes: int
    attempts: int


@dataclass(frozen=True)
class HandoffBatchRecord:
    """One batch of copies; `copied` and `skipped` (already there and identical) count files."""

    plan_id: str
    batch: int
    state: Literal["planned", "done", "failed"]
    files: int
    bytes: int
    copied: int
    skipped: int
    attempts: int
    error: str | None
    updated_at: datetime


def _batch(row: Row[Any]) -> BatchRecord:
    record = to_record(BatchRecord, row)
    return replace(record, state=BatchState(record.state))


class Journal:
    """Deletion jobs. A batch is written here before its first file goes, and after its last."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(self, job: JobRecord, batch_sizes: Sequence[tuple[int, int]]) -> JobRecord:
        """Write the job and its batches, given as (files, bytes). Beginning it again returns what is stored.

        Raises PlanStateError when the stored batches are others: the sealed list is not the one that was begun.
        """
        with around("journal.begin"), self._engine.begin() as connection:
            connection.execute(
                upsert(jobs)
                .values(
                    job_id=job.job_id,
                    kind=job.kind,
                    table_uuid=job.table_uuid,
                    table_name=job.table,
                    files_location=job.files_location,
                    batches=len(batch_sizes),
                    files=sum(files for files, _ in batch_sizes),
                    bytes=sum(size for _, size in batch_sizes),
                )
                .on_conflict_do_nothing()
            )
            stored = to_record(
                JobRecord, connection.execute(select(jobs).where(jobs.c.job_id == job.job_id).with_for_update()).one()
            )
            known = connection.execute(
                select(batches.c.files, batches.c.bytes).where(batches.c.job_id == job.job_id).order_by(batches.c.batch)
            ).all()
            if not known and batch_sizes:
                connection.execute(
                    insert(batches),
                    [
                        {
                            "job_id": job.job_id,
                            "batch": index,
                            "state": BatchState.PLANNED,
                            "files": files,
                            "bytes": size,
                        }
                        for index, (files, size) in enumerate(batch_sizes)
                    ],
                )
            elif [tuple(row) for row in known] != [tuple(size) for size in batch_sizes]:
                raise PlanStateError(
                    f"The journal knows {job.job_id} with other batches ({len(known)}, not {len(batch_sizes)})",
                    table=job.table,
                    path=job.files_location,
                    untouched="the journal and all files",
                    do="compare the sealed list with the journal before anything of it is deleted",
                )
        return stored

    def job(self, job_id: str) -> JobRecord | None:
        with self._engine.connect() as connection:
            row = connection.execute(select(jobs).where(jobs.c.job_id == job_id)).first()
        return None if row is None else to_record(JobRecord, row)

    def unfinished_jobs(self, table_uuid: str | None = None) -> tuple[JobRecord, ...]:
        """Jobs begun and not finished, oldest first."""
        query = select(jobs).where(jobs.c.finished_at.is_(None)).order_by(jobs.c.started_at)
        if table_uuid is not None:
            query = query.where(jobs.c.table_uuid == table_uuid)
        with self._engine.connect() as connection:
            return tuple(to_record(JobRecord, row) for row in connection.execute(query))

    def batches(self, job_id: str) -> tuple[BatchRecord, ...]:
        query = select(batches).where(batches.c.job_id == job_id).order_by(batches.c.batch)
        with self._engine.connect() as connection:
            return tuple(map(_batch, connection.execute(query)))

    def unfinished(self, job_id: str) -> tuple[BatchRecord, ...]:
        """The batches that are not done: never begun, begun and interrupted, failed in part, or waiting."""
        return tuple(batch for batch in self.batches(job_id) if batch.state is not BatchState.DONE)

    def start_batch(self, job_id: str, batch: int, fence: int) -> BatchRecord:
        """Write that the batch's files are about to go, under the lease token `fence`.

        Raises LeaseLost when a newer token stands in the job's batches or on the table's lease; PlanStateError when the
        batch is done; NoSuchPlan.
        """
        with around("journal.start_batch"), self._engine.begin() as connection:
            job = self._fenced(connection, job_id, fence)
            row = connection.execute(
                update(batches)
                .where(batches.c.job_id == job_id, batches.c.batch == batch, batches.c.state != BatchState.DONE)
                .values(
                    state=BatchState.DELETING,
                    fence=fence,
                    attempts=batches.c.attempts + 1,
                    updated_at=func.clock_timestamp(),
                )
                .returning(batches)
            ).first()
            if row is None:
                raise PlanStateError(
                    f"Batch {batch} of {job_id} is done already, or was never begun",
                    table=job.table,
                    untouched="its files",
                    do="resume with the batches that the journal calls unfinished",
                )
        return _batch(row)

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
        """Write what became of the batch's files: done; failed when any file failed or an `error` is given; or waiting.

        Raises LeaseLost when it is no longer this fence's batch.
        """
        with around("journal.finish_batch"), self._engine.begin() as connection:
            row = connection.execute(
                update(batches)
                .where(
                    batches.c.job_id == job_id,
                    batches.c.batch == batch,
                    batches.c.fence == fence,
                    batches.c.state == BatchState.DELETING,
                )
                .values(
                    state=(
                        BatchState.FAILED if failed or error else BatchState.WAITING if waiting else BatchState.DONE
                    ),
                    deleted=deleted,
                    absent=absent,
                    kept=kept,
                    failed=failed,
                    deleted_bytes=deleted_bytes,
                    error=storable(error),
                    updated_at=func.clock_timestamp(),
                )
                .returning(batches)
            ).first()
            if row is None:
                raise LeaseLost(
                    f"Batch {batch} of {job_id} is no longer under fencing token {fence}",
                    untouched="the journal's row, which another worker wrote",
                    do="leave the job to that worker",
                )
        return _batch(row)

    def finish(self, job_id: str) -> JobRecord:
        """Write that the job is over. Raises PlanStateError while a batch is not done; NoSuchPlan."""
        with around("journal.finish"), self._engine.begin() as connection:
            job = _job(connection, job_id)
            left = connection.execute(
                select(func.count()).where(batches.c.job_id == job_id, batches.c.state != BatchState.DONE)
            ).scalar_one()
            if left:
                raise PlanStateError(
                    f"{left} batches of {job_id} are not done",
                    table=job.table,
                    untouched="the journal",
                    do="run the deletion again: it resumes with those",
                )
            row = connection.execute(
                update(jobs)
                .where(jobs.c.job_id == job_id)
                .values(finished_at=func.coalesce(jobs.c.finished_at, func.clock_timestamp()))
                .returning(jobs)
            ).one()
        return to_record(JobRecord, row)

    def totals(self, job_id: str) -> BatchTotals:
        def total(name: str) -> Any:
            return func.coalesce(func.sum(batches.c[name]), 0).label(name)

        sums = [
            total(name)
            for name in ("files", "bytes", "deleted", "absent", "kept", "failed", "deleted_bytes", "attempts")
        ]
        query = select(
            func.count().label("batches"),
            func.count().filter(batches.c.state == BatchState.DONE).label("done"),
            *sums,
        ).where(batches.c.job_id == job_id)
        with self._engine.connect() as connection:
            row = connection.execute(query).one()
        return BatchTotals(**{name: int(value) for name, value in row._mapping.items()})

    @staticmethod
    def _fenced(connection: Connection, job_id: str, fence: int) -> JobRecord:
        job = _job(connection, job_id)
        newest = connection.execute(
            select(
                func.greatest(
                    select(func.max(batches.c.fence)).where(batches.c.job_id == job_id).scalar_subquery(),
                    select(func.max(leases.c.token)).where(leases.c.table_uuid == job.table_uuid).scalar_subquery(),
                )
            )
        ).scalar_one()
        if newest is not None and newest > fence:
            raise LeaseLost(
                f"Fencing token {fence} is older than {newest}: another worker took the table over",
                table=job.table,
                untouched="the files of the batch",
                do="leave the job to that worker",
            )
        return job


def _job(connection: Connection, job_id: str) -> JobRecord:
    row = connection.execute(select(jobs).where(jobs.c.job_id == job_id).with_for_update()).first()
    if row is None:
        raise NoSuchPlan(f"No deletion job {job_id} is in the journal", untouched="everything", do="begin it first")
    return to_record(JobRecord, row)


class HandoffBatches:
    """The copies of a handoff, by batch of its plan's files."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(self, plan_id: str, batch_sizes: Sequence[tuple[int, int]]) -> tuple[HandoffBatchRecord, ...]:
        """Write the batches, given as (files, bytes); beginning again returns what is stored.

        Batches of another division replace the stored ones, done ones included: copying again is harmless.
        """
        with around("handoffs.begin"), self._engine.begin() as connection:
            known = connection.execute(
                select(handoff_batches.c.files, handoff_batches.c.bytes)
                .where(handoff_batches.c.plan_id == plan_id)
                .order_by(handoff_batches.c.batch)
            ).all()
            if [tuple(row) for row in known] != [tuple(size) for size in batch_sizes]:
                connection.execute(handoff_batches.delete().where(handoff_batches.c.plan_id == plan_id))
                if batch_sizes:
                    connection.execute(
                        insert(handoff_batches),
                        [
                            {"plan_id": plan_id, "batch": index, "state": "planned", "files": files, "bytes": size}
                            for index, (files, size) in enumerate(batch_sizes)
                        ],
                    )
        return self.batches(plan_id)

    def batches(self, plan_id: str) -> tuple[HandoffBatchRecord, ...]:
        query = select(handoff_batches).where(handoff_batches.c.plan_id == plan_id).order_by(handoff_batches.c.batch)
        with self._engine.connect() as connection:
            return tuple(to_record(HandoffBatchRecord, row) for row in connection.execute(query))

    def unfinished(self, plan_id: str) -> tuple[HandoffBatchRecord, ...]:
        return tuple(batch for batch in self.batches(plan_id) if batch.state != "done")

    def finish_batch(
        self, plan_id: str, batch: int, copied: int, skipped: int, error: str | None = None
    ) -> HandoffBatchRecord:
        """Write that the batch is copied and verified, or failed with `error`. Raises NoSuchPlan."""
        with around("handoffs.finish_batch"), self._engine.begin() as connection:
            row = connection.execute(
                update(handoff_batches)
                .where(handoff_batches.c.plan_id == plan_id, handoff_batches.c.batch == batch)
                .values(
                    state="failed" if error else "done",
                    copied=copied,
                    skipped=skipped,
                    error=storable(error),
                    attempts=handoff_batches.c.attempts + 1,
                    updated_at=func.clock_timestamp(),
                )
                .returning(handoff_batches)
            ).first()
            if row is None:
                raise NoSuchPlan(
                    f"No batch {batch} of the handoff of plan {plan_id} is stored",
                    untouched="everything",
                    do="begin the handoff first",
                )
        return to_record(HandoffBatchRecord, row)
