"""Plans as an Iceberg table that anyone can query: `<live catalog>.lifecycle.plan_files`. Nothing decides by it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from artemis_lifecycle.catalogs.results import NAMESPACE, append_new, replace_rows
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.frames import frame_batches, pieces
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVER = datetime(2000, 1, 1, tzinfo=UTC)  # Before Iceberg, so before every plan.

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


def publish_plan(spark: SparkSession, stores: Stores, catalog: str, plan: ExpirationPlan) -> None:
    """Append the plan's files to `<catalog>.lifecycle.plan_files`; doing it again changes nothing.

    This process writes them (`append_new`); Spark does what that leaves: the first plan, and one with older rows.
    """
    from pyspark.sql import functions as F

    if plan.summary.files == 0:
        return
    table, planned_at = f"{catalog}.{NAMESPACE}.plan_files", ("planned_at", plan.decided_at)
    with worker_errors():
        # A superseded plan may be open again, with rows of long ago.
        if append_new(spark, stores, table, "plan_id", plan.plan_id, planned_at, _EVER, _rows(stores, plan)):
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
        replace_rows(spark, table, PLAN_FILES, "months(planned_at)", "plan_id", plan.plan_id, rows)


def _rows(stores: Stores, plan: ExpirationPlan) -> Iterator[pa.Table]:
    """The plan's files with the columns of PLAN_FILES, each piece for a file of its own."""
    same = {"plan_id": plan.plan_id, "table_name": plan.table, "table_uuid": plan.table_uuid}
    batches = frame_batches(plan.files_location, stores)
    for files in pieces(pa.Table.from_batches([batch]) for batch in batches):
        columns: dict[str, pa.Array] = {name: pa.repeat(value, files.num_rows) for name, value in same.items()}
        columns |= {name: files.column(name) for name in ("path", "kind", "size_in_bytes", "reason")}
        instant = pa.scalar(plan.decided_at, pa.timestamp("us", "UTC"))
        yield pa.table({**columns, "planned_at": pa.repeat(instant, files.num_rows)})
