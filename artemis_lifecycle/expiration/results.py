"""Plans as an Iceberg table that anyone can query: `<live catalog>.lifecycle.plan_files`. Nothing decides by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from artemis_lifecycle.catalogs.results import NAMESPACE, replace_rows
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.spark.worker_errors import worker_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN_FILES = """
    plan_id string,
    table_name string,
    table_uuid string,
    path string COMMENT 'as the metadata spells it',
    kind string,
    size_in_bytes bigint,
    reason string,
    planned_at timestamp
"""


def publish_plan(spark: SparkSession, catalog: str, plan: ExpirationPlan) -> None:
    """Append the plan's files to `<catalog>.lifecycle.plan_files`; doing it again changes nothing."""
    from pyspark.sql import functions as F

    if plan.summary.files == 0:
        return
    rows = plan.files().select(
        F.lit(plan.plan_id).alias("plan_id"),
        F.lit(plan.table).alias("table_name"),
        F.lit(plan.table_uuid).alias("table_uuid"),
        "path",
        "kind",
        "size_in_bytes",
        "reason",
        F.lit(plan.decided_at).cast("timestamp").alias("planned_at"),
    )
    with worker_errors():
        replace_rows(spark, f"{catalog}.{NAMESPACE}.plan_files", PLAN_FILES, "plan_id", "plan_id", plan.plan_id, rows)
