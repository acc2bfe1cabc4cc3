"""Iceberg's own maintenance actions in the JVM, and the lineage of what they commit. The procedures of Spark SQL are
thin coats of these; only the actions take summary keys (`snapshotProperty`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.contracts import CommitLineage, InputSnapshot
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
        spark._jsparkSession, parse(table).sql(own_catalog(spark, catalog))
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
