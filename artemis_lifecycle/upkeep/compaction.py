"""Small data files into larger ones, and deletes into the files they are about, by Iceberg's own actions.

The partitions that save most per byte go first (`ranking`), in batches of one commit each. Between batches the pace
waits (`pacing`), and the run may stop: what is committed stays, and the rest is found again by the next run.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlalchemy import Engine

from artemis_lifecycle.commits.actions import jvm_table, reading_whole_table, spark_actions, with_summary
from artemis_lifecycle.config.policies import Compaction
from artemis_lifecycle.contracts import CommitLineage
from artemis_lifecycle.operations.fleet import HealthRecord
from artemis_lifecycle.spark.runner import Runner, Spark
from artemis_lifecycle.storage.pace import draw
from artemis_lifecycle.upkeep.health import MIN_INPUT_FILES, Fitness, TableHealth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- partition filters ------------------------------------------------------------------------------------------------
# Partitions as filters of Iceberg's actions: a term for each partition field, by the transform of its own spec.
#
# A filter may select more than its partitions (files of another spec, whose values it cannot see), and never less: it
# is only about what a rewrite takes first. Where a value has no literal that Iceberg reads back exactly (floats,
# decimals, binary values, a source column that is gone), the partition has no filter.

_MICROSECONDS = frozenset({"time", "timestamp", "timestamptz"})
_PLAIN = frozenset({"boolean", "int", "long", "date", "string"}) | _MICROSECONDS
_SMALLEST_LONG = 1 << 31
"""Py4J passes smaller integers as Java's int, and Iceberg takes none for a time."""


@dataclass(frozen=True)
class _Field:
    """`term` is the JVM's, None if it has no filter; `is_time`: its values must be long."""

    term: Any | None
    is_void: bool
    is_time: bool


class PartitionFilters:
    """Makes filters for the partitions of a table in the JVM, whose schema it keeps."""

    def __init__(self, jvm: Any, table: Any) -> None:
        self._expressions = jvm.org.apache.iceberg.expressions.Expressions
        self._table = table
        self._specs: dict[str, tuple[_Field, ...] | None] = {}

    def of(self, partitions: Sequence[str]) -> Any | None:
        """Return Iceberg's Expression for these partitions, as in `live_partitions`; None if one of them has none."""
        found = None
        for text in partitions:
            one = self._one(text)
            if one is None:
                return None
            found = one if found is None else getattr(self._expressions, "or")(found, one)
        return found

    def _one(self, text: str) -> Any | None:
        spec_id, *values = json.loads(text)
        if spec_id not in self._specs:
            self._specs[spec_id] = self._fields(int(spec_id))
        fields = self._specs[spec_id]
        if fields is None or len(fields) != len(values):
            return None
        whole = self._expressions.alwaysTrue()
        for part, value in zip(fields, values, strict=True):
            if part.is_void:
                continue
            if part.term is None or (part.is_time and value is not None and abs(value) < _SMALLEST_LONG):
                return None
            predicate = (
                self._expressions.isNull(part.term) if value is None else self._expressions.equal(part.term, value)
            )
            whole = getattr(self._expressions, "and")(whole, predicate)
        return whole

    def _fields(self, spec_id: int) -> tuple[_Field, ...] | None:
        spec, schema = self._table.specs().get(spec_id), self._table.schema()
        if spec is None:
            return None
        found = []
        for part in spec.fields():
            transform, name = str(part.transform()), schema.findColumnName(part.sourceId())
            kind = None if name is None else str(schema.findType(part.sourceId()))
            is_value = transform == "identity" or transform.startswith("truncate")
            term = None
            if name is not None and (kind in _PLAIN or not is_value):
                make = self._expressions
                term = make.ref(name) if transform == "identity" else make.transform(name, part.transform())
            found.append(_Field(term, transform == "void", is_value and kind in _MICROSECONDS))
        return tuple(found)


# --- ranking ----------------------------------------------------------------------------------------------------------
# Which partitions a compaction takes first: those that save a reader most time for each byte that is rewritten. Pure.
#
# The time is what `score` counts: requests for small files that become one, and for delete files with their bytes. It
# is that of a query that reads the whole partition. Which queries run is not in a table's metadata.

_PER_FILTER = 100
"""Partitions in one batch at most: each is a term of the filter that Iceberg evaluates for every file."""


@dataclass(frozen=True)
class RankedPartition:
    """`partition` as in `live_partitions`. `saved_seconds` is what one reader of all its files saves. `size_in_bytes`
    and `files` are what is rewritten for it. `for_deletes`: files of a good size with deletes are rewritten too."""

    partition: str
    saved_seconds: float
    size_in_bytes: int
    files: int
    for_deletes: bool


def ranked(
    partitions: pa.Table, thresholds: Compaction, seconds: Callable[[int, int], float]
) -> tuple[RankedPartition, ...]:
    """Return the partitions that are worth a rewrite, the greatest saving per byte first.

    `partitions` is as of `partitions_with_work`; `seconds` is the time to read so many files with so many bytes.
    """
    found = []
    for row in partitions.to_pylist():
        for_deletes = row["delete_files"] > 0 and row["delete_files"] >= thresholds.min_delete_file_ratio * row["files"]
        if not for_deletes and not row["rewritable"]:
            continue
        saved = seconds(row["rewritable"] - row["rewritten"], 0)
        if for_deletes:
            saved += seconds(row["delete_files"], row["delete_bytes"])
        found.append(
            RankedPartition(
                partition=row["partition"],
                saved_seconds=saved,
                size_in_bytes=row["bytes"] + row["delete_bytes"] if for_deletes else row["rewritable_bytes"],
                files=row["files"] if for_deletes else row["rewritable"],
                for_deletes=for_deletes,
            )
        )
    found.sort(key=lambda each: (-each.saved_seconds / max(1, each.size_in_bytes), each.partition))
    return tuple(found)


def batches(partitions: Sequence[RankedPartition], batch_bytes: int) -> Iterator[tuple[RankedPartition, ...]]:
    """Yield the partitions in their order, in batches of at most about `batch_bytes`; a larger partition is alone."""
    batch: list[RankedPartition] = []
    for each in partitions:
        size = sum(other.size_in_bytes for other in batch) + each.size_in_bytes
        if batch and (size > batch_bytes or len(batch) == _PER_FILTER):
            yield tuple(batch)
            batch = []
        batch.append(each)
    if batch:
        yield tuple(batch)


# --- pacing -----------------------------------------------------------------------------------------------------------
# The pace of compactions: all of a deployment together move at most a share of the store's bandwidth.
#
# Iceberg's actions move their bytes inside of Spark. So a batch runs at the store's full speed, and then all
# compactions wait until its bytes, over the whole time, are the share. The bandwidth is
# `budgets.object_store_bytes_per_second`, or else the highest rate of this run's batches. Such a rate is never above
# what the store can do, so the share is not exceeded either; it is measured anew in each run, because stores and
# other load change. One row in Postgres (`storage.pace.draw`) has the time when the next batch may start, on
# whichever machine.

_BUCKET = "compaction/bytes"

SLOWEST = 1 << 20
"""Bytes per second that any store can do: batches too small to measure anything must not wait long."""

_CHECKED_EVERY = 1.0


@dataclass
class Batch:
    """How long a batch took."""

    seconds: float = 0.0


@dataclass
class CompactionPace:
    """`share` of `bandwidth` (bytes per second; None: measured). `check` is called while it waits, and may raise;
    `engine` None: this process alone counts."""

    share: float
    bandwidth: float | None = None
    engine: Engine | None = None
    check: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    measured: float = field(default=0.0, init=False)
    waited: float = field(default=0.0, init=False)
    _ready_at: float = field(default=0.0, init=False)

    def wait(self, stop: Callable[[], str | None] = lambda: None) -> str | None:
        """Wait until a batch may start: return None, or the reason of `stop` as soon as it has one."""
        while (reason := stop()) is None and (left := self._left()) > 0:
            self.check()
            began = self.clock()
            self.sleep(min(left, _CHECKED_EVERY))
            self.waited += self.clock() - began
        self.check()
        return reason

    def moved(self, size_in_bytes: int, seconds: float) -> None:
        """Charge a batch that moved so many bytes in so many seconds."""
        self.measured = max(self.measured, size_in_bytes / max(seconds, 0.001))
        bandwidth = self.bandwidth or max(self.measured, SLOWEST)
        self._charge(size_in_bytes / (self.share * bandwidth) - seconds)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Time a batch, which the caller then charges by `moved`. One that raises is charged here: what it moved is not
        known, so it counts as all that the store can do. A run that loses to other writers must not repeat its work at
        full speed."""
        batch, began, ended = Batch(), self.clock(), False
        try:
            yield batch
            ended = True
        finally:
            batch.seconds = self.clock() - began
            if not ended:
                self._charge(batch.seconds / self.share - batch.seconds)

    def _charge(self, rest: float) -> None:
        if rest <= 0:
            return
        if self.engine is None:
            self._ready_at = max(self._ready_at, self.clock()) + rest
        else:
            draw(self.engine, _BUCKET, rest)

    def _left(self) -> float:
        return self._ready_at - self.clock() if self.engine is None else draw(self.engine, _BUCKET, 0.0)


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
    asked: str | None = None,
    dry_run: bool = False,
) -> CompactedDataFiles:
    """Rewrite `partitions` in their order, if `health` asks for it, until `stop` returns a reason or the run's bytes
    are used up. A dry run only says what it would. `asked` says why these partitions alone are rewritten, whatever the
    whole table's health."""
    thresholds = thresholds or Compaction()
    why = asked or why_compact(health, thresholds)
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
    if asked is not None and deferred:
        left += sum(map(len, deferred))
        run.stopped = run.stopped or "the values of some partitions make no filter for Iceberg: compact the whole table"
        deferred = []
    for batch in deferred:
        # They have no filter. The others go first, so that theirs are mostly what is left in the whole table.
        run.rewrite_batch(batch, batch_bytes, filtered=False)
        left += 0 if run.stopped is None else len(batch)
    if planned.stopped is None and asked is None:
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
