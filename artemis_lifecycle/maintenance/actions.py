"""Iceberg's own maintenance actions in the JVM, and the lineage of what they commit. The procedures of Spark SQL are
thin coats of these; only the actions take summary keys (`snapshotProperty`).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.catalogs.identifier import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Worker:
    """Who does the upkeep, as its commits say in their summaries. `commit_hash` is that of the code that runs."""

    writer_id: str
    invocation_id: str
    commit_hash: str
    trigger_type: str = "schedule"
    operator: str | None = None
    ticket: str | None = None
    host: str = socket.gethostname()

    def summary(self, *, input_snapshot_id: int, rows: int, size_in_bytes: int) -> dict[str, str]:
        """The summary keys of a commit that rewrote what `input_snapshot_id` had."""
        keys = {
            "writer.id": self.writer_id,
            "writer.host": self.host,
            "writer.commit_hash": self.commit_hash,
            "writer.invocation_id": self.invocation_id,
            "input.snapshot_ids": f"[{input_snapshot_id}]",
            "input.row_count": str(rows),
            "input.bytes_compressed": str(size_in_bytes),
            "trigger.type": self.trigger_type,
            "trigger.operator": self.operator,
            "trigger.ticket": self.ticket,
        }
        return {key: value for key, value in keys.items() if value is not None}


def jvm_table(spark: SparkSession, catalog: str, table: str) -> Any:
    """The table as Iceberg's `org.apache.iceberg.Table`, read from the catalog now."""
    jvm: Any = spark._jvm
    # Iceberg asks for the active session of the thread; a thread that Python made may have none.
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, parse(table).sql(catalog))


def spark_actions(spark: SparkSession) -> Any:
    """`org.apache.iceberg.spark.actions.SparkActions` on the session."""
    jvm: Any = spark._jvm
    return jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession)


def with_summary(action: Any, summary: Mapping[str, str]) -> Any:
    """The action, with these keys in the summary of its commit."""
    for key, value in summary.items():
        action = action.snapshotProperty(key, value)
    return action
