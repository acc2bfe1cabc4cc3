"""The NDV statistics of a table (Puffin files), by Iceberg's own action, when enough rows have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from artemis_lifecycle.config.policies import Compaction
from artemis_lifecycle.maintenance.actions import jvm_table, spark_actions
from artemis_lifecycle.metadata.types import TableMetadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_CHANGED = ("added-records", "deleted-records", "added-position-deletes")


def unanalyzed_records(metadata: TableMetadata) -> int:
    """Return how many rows were added or deleted since the newest statistics of the current snapshot's history; all
    rows if there are none. Rewrites change no row. Counts of the summaries; deletes by equality count as none."""
    analyzed = {each.snapshot_id for each in metadata.statistics if each.kind == "statistics"}
    changed, current = 0, metadata.current_snapshot
    for each in metadata.ancestors(metadata.current_snapshot_id):
        if each.snapshot_id in analyzed:
            return changed
        if each.summary.operation != "replace":
            changed += sum(each.summary.count(key) or 0 for key in _CHANGED)
    return 0 if current is None else current.summary.count("total-records") or 0


def why_statistics(changed: int, records: int, thresholds: Compaction) -> str | None:
    """Return the reason to compute the statistics again, in a sentence; None when there is none."""
    share = thresholds.statistics_after
    if share is None or not changed or changed < share * records:
        return None
    return f"{changed:,} rows changed since the statistics were computed, and the table has {records:,}"


def compute_statistics(spark: SparkSession, catalog: str, table: str) -> str | None:
    """Compute them for all columns of the current snapshot. Return the path of the statistics file; None for a table
    without a snapshot. Commits no snapshot, so it has no lineage."""
    loaded = jvm_table(spark, catalog, table)
    if loaded.currentSnapshot() is None:
        return None
    found = spark_actions(spark).computeTableStats(loaded).execute().statisticsFile()
    return None if found is None else str(found.path())
