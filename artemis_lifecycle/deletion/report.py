"""The report of a deletion: what happened to a job's files over all its runs, from the journal and the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from artemis_lifecycle.deletion.batches import DeletionJob
from artemis_lifecycle.deletion.outcomes import OUTCOMES, outcome_frame, read_outcomes, waiting_rows
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.journal import BatchRecord, BatchState, JobRecord
from artemis_lifecycle.spark.runner import Spark
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class DeletionReport:
    """What happened to a job's files over all runs so far. Counts are files; `bytes` is the size of the deleted ones.
    Files that were moved into quarantine count as deleted, because the table no longer has them; `quarantine` is their
    folder.

    `pending` files wait for another run: `paused` says why, `pending_until` when their plan's grace ends. In an
    expiration, files that are kept only for now (a writer, another table's hold, an open plan, a missing archived copy)
    count as both kept and pending. A dry run counts `would_delete` and `would_delete_bytes` instead of deleted files.
    """

    job_id: str
    table: str
    deleted: int
    already_absent: int
    kept: int
    failed: int
    bytes: int
    pending: int = 0
    pending_until: datetime | None = None
    paused: str | None = None
    quarantine: str | None = None
    dry_run: bool = False
    would_delete: int = 0
    would_delete_bytes: int = 0
    _files: Callable[[], DataFrame] | None = field(default=None, repr=False, compare=False)

    def files(self) -> DataFrame:
        """Return DataFrame[path, kind, size_in_bytes, outcome, reason] of every file with an outcome.

        `outcome` is deleted, quarantined, absent, kept or failed; in a dry run also would_delete.
        """
        if self._files is None:
            from pyspark.sql import SparkSession

            return SparkSession.builder.getOrCreate().createDataFrame([], OUTCOMES)
        return self._files()

    @property
    def has_outcomes(self) -> bool:
        """Return True if any file has an outcome."""
        return bool(self.deleted or self.already_absent or self.kept or self.failed)

    @classmethod
    def foreseen(cls, job: DeletionJob, size_in_bytes: int, files: Callable[[], DataFrame]) -> DeletionReport:
        """Return the dry-run report of a job that is not due yet: all its files, DataFrame[path, kind, size_in_bytes,
        reason]."""

        def judged() -> DataFrame:
            from pyspark.sql import functions as F

            return files().select("path", "kind", "size_in_bytes", F.lit("would_delete").alias("outcome"), "reason")

        return cls(
            job_id=job.job_id,
            table=job.table,
            deleted=0,
            already_absent=0,
            kept=0,
            failed=0,
            bytes=0,
            dry_run=True,
            would_delete=job.files,
            would_delete_bytes=size_in_bytes,
            _files=judged,
        )


def report_of(
    spark: Spark,
    stores: Stores,
    operations: Operations,
    job: DeletionJob,
    root: str,
    paused: str | None = None,
) -> DeletionReport:
    """Return the report of a job from the journal. If the job never began, all its files are pending."""
    quarantine = operations.quarantines.find(job.job_id)
    known = operations.journal.job(job.job_id)
    counted: Sequence[JobRecord | BatchRecord]
    if known is not None and known.forgotten_at is not None:
        counted, pending = [known], 0
    else:
        settled = (BatchState.DONE, BatchState.FAILED, BatchState.WAITING)
        batches = [each for each in operations.journal.batches(job.job_id) if each.state in settled]
        waiting = sum(
            pc.sum(waiting_rows(read_outcomes(stores, root, job.job_id, each.batch))).as_py() or 0
            for each in batches
            if each.state == BatchState.WAITING
        )
        counted, pending = batches, job.files - sum(each.files for each in batches) + waiting
    return DeletionReport(
        job_id=job.job_id,
        table=job.table,
        deleted=sum(record.deleted for record in counted),
        already_absent=sum(record.absent for record in counted),
        kept=sum(record.kept for record in counted),
        failed=sum(record.failed for record in counted),
        bytes=sum(record.deleted_bytes for record in counted),
        pending=pending,
        paused=paused,
        quarantine=None if quarantine is None else quarantine.folder,
        _files=lambda: outcome_frame(spark, stores, root, job.job_id),
    )
