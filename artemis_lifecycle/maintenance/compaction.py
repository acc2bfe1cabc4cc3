"""Small data files into larger ones, and deletes into the files they are about, by Iceberg's own actions.

The partitions that save most per byte go first (`ranking`), in batches of one commit each. Between batches the pace
waits (`pacing`), and the run may stop: what is committed stays, and the rest is found again by the next run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.config.policies import Compaction
from artemis_lifecycle.contracts import CommitLineage
from artemis_lifecycle.maintenance.actions import jvm_table, reading_whole_table, spark_actions, with_summary
from artemis_lifecycle.maintenance.fitness import Fitness
from artemis_lifecycle.maintenance.health import MIN_INPUT_FILES, TableHealth
from artemis_lifecycle.maintenance.pacing import CompactionPace
from artemis_lifecycle.maintenance.partition_filters import PartitionFilters
from artemis_lifecycle.maintenance.ranking import RankedPartition, batches
from artemis_lifecycle.operations.health import HealthRecord
from artemis_lifecycle.spark.runner import Runner, Spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class CompactedDataFiles:
    """What was rewritten. `needed` False: the table's health did not ask for it.

    `partitions` asked for it; `planned_files` and `planned_bytes` are this run's, and `left_partitions` wait for the
    next one, because of `stopped`. `bytes_per_second` is the highest rate of a batch, and `waited_seconds` the pauses
    that kept to the share. `statistics_file` is new. `before` and `after` are those of the whole table.
    """

    table: str
    needed: bool
    why: str
    partitions: int = 0
    planned_files: int = 0
    planned_bytes: int = 0
    left_partitions: int = 0
    stopped: str | None = None
    batches: int = 0
    rewritten_files: int = 0
    added_files: int = 0
    rewritten_bytes: int = 0
    failed_files: int = 0
    removed_delete_files: int = 0
    bytes_per_second: float = 0.0
    waited_seconds: float = 0.0
    statistics_file: str | None = None
    snapshot_id: int | None = None
    dry_run: bool = False
    before: Fitness | None = None
    after: Fitness | None = None


def why_compact(health: TableHealth | HealthRecord, thresholds: Compaction) -> str | None:
    """The reason to compact, in a sentence; None when there is none."""
    return why_small_files(health, thresholds) or why_deletes(health, thresholds)


def why_small_files(health: TableHealth | HealthRecord, thresholds: Compaction) -> str | None:
    """Small files as the reason to compact; None when there are too few."""
    if not health.data_files or health.rewritable_files / health.data_files < thresholds.min_rewritable_share:
        return None
    return (
        f"{health.rewritable_files:,} of {health.data_files:,} data files are small and have company in their partition"
    )


def why_deletes(health: TableHealth | HealthRecord, thresholds: Compaction) -> str | None:
    """Delete files as the reason to compact; None when there are too few."""
    if not health.data_files or health.delete_files / health.data_files < thresholds.min_delete_file_ratio:
        return None
    return f"{health.delete_files:,} delete files stand against {health.data_files:,} data files"


def compacted_data_files(
    spark: Spark,
    catalog: str,
    table: str,
    health: TableHealth,
    worker: CommitLineage,
    partitions: Sequence[RankedPartition],
    thresholds: Compaction | None = None,
    *,
    pace: CompactionPace | None = None,
    stop: Callable[[], str | None] = lambda: None,
    dry_run: bool = False,
) -> CompactedDataFiles:
    """Rewrite `partitions` in their order, if `health` asks for it, until `stop` returns a reason or the run's bytes
    are used up. A dry run only says what it would."""
    thresholds = thresholds or Compaction()
    why = why_compact(health, thresholds)
    if why is None:
        return CompactedDataFiles(table, False, "neither small files nor deletes ask for it", dry_run=dry_run)
    most, left = thresholds.max_run_bytes, 0
    taken = _within(partitions, most)
    planned = CompactedDataFiles(
        table,
        True,
        why,
        partitions=len(partitions),
        planned_files=sum(each.files for each in taken),
        planned_bytes=sum(each.size_in_bytes for each in taken),
        left_partitions=len(partitions) - len(taken),
        stopped=None if len(taken) == len(partitions) else f"compaction.max_run_bytes ({most:,}) are used up",
        dry_run=dry_run,
    )
    if dry_run or not taken:
        return planned
    # A batch below one file's size would be rewritten again by the next.
    batch_bytes = max(thresholds.batch_bytes, health.target_file_bytes)
    run = _Run(Runner(spark).session, catalog, table, worker, pace or CompactionPace(1.0), stop)
    deferred: list[tuple[RankedPartition, ...]] = []
    for batch in batches(taken, batch_bytes):
        if not run.rewrite_batch(batch, batch_bytes):
            deferred.append(batch)
        elif run.stopped is not None:
            left += len(batch)
    for batch in deferred:
        # They have no filter. The others go first, so that theirs are mostly what is left in the whole table.
        run.rewrite_batch(batch, batch_bytes, filtered=False)
        left += 0 if run.stopped is None else len(batch)
    if planned.stopped is None:
        run.rewrite_deletes()
    return replace(
        run.done(why),
        partitions=planned.partitions,
        planned_files=planned.planned_files,
        planned_bytes=planned.planned_bytes,
        left_partitions=planned.left_partitions + left,
        stopped=run.stopped or planned.stopped,
    )


def _within(partitions: Sequence[RankedPartition], most: int | None) -> Sequence[RankedPartition]:
    """The first partitions, until `most` bytes are reached; the first one always."""
    if most is None:
        return partitions
    total = 0
    for number, each in enumerate(partitions):
        if total >= most:
            return partitions[:number]
        total += each.size_in_bytes
    return partitions


def rewrite_data_files(
    spark: SparkSession, catalog: str, table: str, worker: CommitLineage, *, options: Mapping[str, str] | None = None
) -> CompactedDataFiles:
    """Iceberg's `rewrite_data_files` on the whole table at once, with its defaults under `options`, and the rewrite of
    position deletes after it; all with the worker's lineage."""
    run = _Run(spark, catalog, table, worker, CompactionPace(1.0))
    run.rewrite(options or {})
    run.rewrite_deletes()
    return run.done("asked for")


class _Run:
    """One compaction of one table: its actions, and what they did."""

    def __init__(
        self,
        spark: SparkSession,
        catalog: str,
        table: str,
        worker: CommitLineage,
        pace: CompactionPace,
        stop: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._spark, self._catalog, self._table, self._worker, self.pace = spark, catalog, table, worker, pace
        self._stop = stop
        self.stopped: str | None = None
        self._loaded = jvm_table(spark, catalog, table)
        self._before = self._snapshot_id()
        self._batches = self._rewritten = self._added = self._bytes = self._failed = self._deletes = 0

    def rewrite_batch(self, batch: Sequence[RankedPartition], batch_bytes: int, *, filtered: bool = True) -> bool:
        """Rewrite these partitions, a large one in several commits, unless the run is stopped. Return False if they
        have no filter."""
        size, files = sum(each.size_in_bytes for each in batch), sum(each.files for each in batch)
        # With fewer, Iceberg would find no group that is worth its rewrite.
        most = max(MIN_INPUT_FILES, math.ceil(files * min(1.0, batch_bytes / max(1, size))))
        # Without a filter, the number of files alone keeps a commit from taking the whole table.
        options = {"max-files-to-rewrite": str(most)} if most < files or not filtered else {}
        if any(each.for_deletes for each in batch):
            # Otherwise files of a good size would be left with their deletes.
            options["delete-file-threshold"] = "1"
        for _ in range(math.ceil(files / most)):
            self._wait()
            if self.stopped is not None:
                break
            self._loaded.refresh()
            found = None
            if filtered:
                # Made anew for each commit: a writer may have renamed a column since the last one.
                found = PartitionFilters(self._spark._jvm, self._loaded).of([each.partition for each in batch])
                if found is None:
                    return False
            if not self.rewrite(options, found):
                break
        return True

    def _wait(self) -> None:
        self.stopped = self.stopped or self.pace.wait(self._stop)

    def rewrite(self, options: Mapping[str, str], only: Any | None = None) -> int:
        """One commit of `rewrite_data_files`, by the table's sort order if it has one. Return the number of files."""
        current = self._loaded.currentSnapshot()
        if current is None:
            return 0
        action = spark_actions(self._spark).rewriteDataFiles(self._loaded)
        action = action.sort() if self._loaded.sortOrder().isSorted() else action.binPack()
        if only is not None:
            action = action.filter(only)
        for key, value in options.items():
            action = action.option(key, value)
        with self.pace.batch() as batch:
            result = with_summary(action, reading_whole_table(self._worker, current)).execute()
        read, count = result.rewrittenBytesCount(), result.rewrittenDataFilesCount()
        written = self._count(current, "added-files-size") if count else 0
        self.pace.moved(read + (read if written is None else written), batch.seconds)
        self._batches += 1
        self._rewritten += count
        self._added += result.addedDataFilesCount()
        self._bytes += read
        self._failed += result.failedDataFilesCount()
        dropped = self._count(current, "removed-delete-files") if count else 0
        self._deletes += result.removedDeleteFilesCount() if dropped is None else dropped
        return int(count)

    def rewrite_deletes(self) -> None:
        """Remove delete files that apply to no data file any more, and rewrite the position deletes that are left.

        No rewrite of data files takes them along: the new data files have the sequence number of the snapshot that was
        read, and so may the deletes (Iceberg's `use-starting-sequence-number`).
        """
        if self._with_deletes("total-delete-files") is None:
            return
        self._wait()
        current = None if self.stopped is not None else self._with_deletes("total-delete-files")
        if current is None:
            return
        actions = spark_actions(self._spark)
        dangling = with_summary(
            actions.removeDanglingDeleteFiles(self._loaded), reading_whole_table(self._worker, current)
        ).execute()
        self._deletes += sum(1 for _ in dangling.removedDeleteFiles())
        current = self._with_deletes("total-position-deletes")
        if current is None:
            return
        deletes = actions.rewritePositionDeletes(self._loaded)
        if self._rewritten or self._deletes:
            # Else the same files would be written again by each run, and each commit asks for the next run.
            deletes = deletes.option("rewrite-all", "true")
        with self.pace.batch() as batch:
            left = with_summary(deletes, reading_whole_table(self._worker, current)).execute()
        self.pace.moved(left.rewrittenBytesCount() + left.addedBytesCount(), batch.seconds)
        self._deletes += left.rewrittenDeleteFilesCount() - left.addedDeleteFilesCount()

    def _with_deletes(self, total: str) -> Any | None:
        """Return the table's snapshot as of now if that total of its summary is not 0."""
        self._loaded.refresh()
        current = self._loaded.currentSnapshot()
        return current if current is not None and int(current.summary().get(total) or 0) else None

    def done(self, why: str) -> CompactedDataFiles:
        self._loaded.refresh()
        after = self._snapshot_id()
        if after is None:
            return CompactedDataFiles(self._table, False, "the table has no snapshot")
        return CompactedDataFiles(
            table=self._table,
            needed=True,
            why=why,
            batches=self._batches,
            rewritten_files=self._rewritten,
            added_files=self._added,
            rewritten_bytes=self._bytes,
            failed_files=self._failed,
            removed_delete_files=self._deletes,
            bytes_per_second=round(self.pace.measured, 1),
            waited_seconds=round(self.pace.waited, 1),
            snapshot_id=after if after != self._before else None,
        )

    def _snapshot_id(self) -> int | None:
        current = self._loaded.currentSnapshot()
        return None if current is None else int(current.snapshotId())

    def _count(self, before: Any, key: str) -> int | None:
        """Return a count of the summary of the commit after `before`; None if another commit followed."""
        self._loaded.refresh()
        current = self._loaded.currentSnapshot()
        return int(current.summary().get(key) or 0) if current.parentId() == before.snapshotId() else None
