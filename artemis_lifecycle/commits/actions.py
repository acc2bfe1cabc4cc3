"""Iceberg's own maintenance actions in the JVM, and the lineage of what they commit. The procedures of Spark SQL are
thin coats of these; only the actions take summary keys (`snapshotProperty`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.catalogs.identifier import parse_in
from artemis_lifecycle.config.policies import Compaction
from artemis_lifecycle.contracts import CommitLineage, InputSnapshot
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.spark.session import own_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def reading_whole_table(worker: CommitLineage, snapshot: Any) -> dict[str, str]:
    """Return the summary keys of a commit by `worker` that rewrites what a snapshot (in the JVM) has."""
    totals = snapshot.summary()
    lineage = worker.reading(
        InputSnapshot(int(snapshot.snapshotId())),
        rows=int(totals.get("total-records") or 0),
        size_in_bytes=int(totals.get("total-files-size") or 0),
    )
    return lineage.summary()


def jvm_table(spark: SparkSession, catalog: str, table: str) -> Any:
    """The table as Iceberg's `org.apache.iceberg.Table`, read from the catalog now."""
    jvm: Any = spark._jvm
    # Iceberg asks for the active session of the thread; a thread that Python made may have none.
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        spark._jsparkSession, parse_in(table, catalog).sql(own_catalog(spark, catalog))
    )


def spark_actions(spark: SparkSession) -> Any:
    """`org.apache.iceberg.spark.actions.SparkActions` on the session."""
    jvm: Any = spark._jvm
    return jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession)


def with_summary(action: Any, summary: Mapping[str, str]) -> Any:
    """The action, with these keys in the summary of its commit."""
    for key, value in summary.items():
        action = action.snapshotProperty(key, value)
    return action


# --- statistics -------------------------------------------------------------------------------------------------------
# The NDV statistics of a table (Puffin files), by Iceberg's own action, when enough rows have changed.

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
