"""Small data files into larger ones, by Iceberg's own action, where the table's health asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from artemis_lifecycle.config.policies import Compaction
from artemis_lifecycle.contracts import CommitLineage
from artemis_lifecycle.maintenance.actions import jvm_table, reading_whole_table, spark_actions, with_summary
from artemis_lifecycle.maintenance.health import TableHealth
from artemis_lifecycle.operations.health import HealthRecord
from artemis_lifecycle.spark.runner import Runner, Spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_CONCURRENCY = "max-concurrent-file-group-rewrites"


@dataclass(frozen=True)
class CompactionSettings:
    """`bandwidth_share` bounds the file groups that are rewritten at once, as a share of the session's cores (at least
    one). `options` are those of Iceberg's `rewrite_data_files`, and win.
    """

    thresholds: Compaction = field(default_factory=Compaction)
    bandwidth_share: float = 0.3
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CompactedDataFiles:
    """What was rewritten. `needed` False: the table's health did not ask for it, or a dry run found nothing to do."""

    table: str
    needed: bool
    why: str
    rewritten_files: int = 0
    added_files: int = 0
    rewritten_bytes: int = 0
    failed_files: int = 0
    removed_delete_files: int = 0
    snapshot_id: int | None = None
    dry_run: bool = False


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
    settings: CompactionSettings | None = None,
    *,
    dry_run: bool = False,
) -> CompactedDataFiles:
    """Rewrite what `health` asks for, in one commit with its lineage. A dry run only says why it would."""
    settings = settings or CompactionSettings()
    why = why_compact(health, settings.thresholds)
    if why is None:
        return CompactedDataFiles(table, False, "neither small files nor deletes ask for it", dry_run=dry_run)
    if dry_run:
        return CompactedDataFiles(table, True, why, dry_run=True)
    options = dict(settings.options)
    if health.rewritable_files == 0:
        # Only the deletes ask: without this, files of a good size would be left with theirs.
        options.setdefault("delete-file-threshold", "1")
    session, share = Runner(spark).session, settings.bandwidth_share
    return rewrite_data_files(session, catalog, table, worker, options=options, bandwidth_share=share, why=why)


def rewrite_data_files(
    spark: SparkSession,
    catalog: str,
    table: str,
    worker: CommitLineage,
    *,
    options: Mapping[str, str] | None = None,
    bandwidth_share: float = 0.3,
    why: str = "asked for",
) -> CompactedDataFiles:
    """Iceberg's `rewrite_data_files` with its defaults under `options`, and the worker's lineage in the summary.

    Position deletes that are left are rewritten after it. Some of them may apply to no data file any more, and no
    rewrite of data files would take them along: the new data files have the sequence number of the snapshot that was
    read, and so may the deletes (Iceberg's `use-starting-sequence-number`).
    """
    loaded = jvm_table(spark, catalog, table)
    current = loaded.currentSnapshot()
    if current is None:
        return CompactedDataFiles(table, False, "the table has no snapshot")
    before = current.snapshotId()
    action = spark_actions(spark).rewriteDataFiles(loaded)
    concurrency = str(max(1, int(spark.sparkContext.defaultParallelism * bandwidth_share)))
    for key, value in {_CONCURRENCY: concurrency, **(options or {})}.items():
        action = action.option(key, value)
    result = with_summary(action, reading_whole_table(worker, current)).execute()
    removed = result.removedDeleteFilesCount()
    loaded.refresh()
    rewritten = loaded.currentSnapshot()
    if int(rewritten.summary().get("total-delete-files") or 0):
        deletes = spark_actions(spark).rewritePositionDeletes(loaded).option("rewrite-all", "true")
        summary = reading_whole_table(worker, rewritten)
        left = with_summary(deletes.option(_CONCURRENCY, concurrency), summary).execute()
        removed += left.rewrittenDeleteFilesCount() - left.addedDeleteFilesCount()
        loaded.refresh()
    after = loaded.currentSnapshot().snapshotId()
    return CompactedDataFiles(
        table=table,
        needed=True,
        why=why,
        rewritten_files=result.rewrittenDataFilesCount(),
        added_files=result.addedDataFilesCount(),
        rewritten_bytes=result.rewrittenBytesCount(),
        failed_files=result.failedDataFilesCount(),
        removed_delete_files=removed,
        snapshot_id=after if after != before else None,
    )
