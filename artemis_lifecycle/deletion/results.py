"""The outcomes of deletions as an Iceberg table that anyone can query: `<live catalog>.lifecycle.deletions`.

A history for people and audits. Nothing that deletes reads it: the journal in Postgres and the stored outcomes decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from artemis_lifecycle.deletion.batches import DeletionJob
from artemis_lifecycle.deletion.worker import DeletionReport
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.spark.worker_errors import worker_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELETIONS = """
    job_id string COMMENT 'plan id or scan id',
    job_kind string COMMENT 'expiration or orphans',
    table_name string,
    table_uuid string,
    path string COMMENT 'as the metadata or the listing spelled it',
    kind string,
    size_in_bytes bigint,
    outcome string COMMENT 'deleted, absent, kept or failed',
    reason string,
    recorded_at timestamp COMMENT 'when the run ended that recorded it, by the clock of Postgres'
"""


def record_outcomes(
    spark: SparkSession, operations: Operations, catalog: str, job: DeletionJob, report: DeletionReport
) -> int:
    """Put the outcomes of `report` into `<catalog>.lifecycle.deletions`; returns the rows that the job has there.

    Call it under the table's lease, before the plan or scan is marked done: recording again what is there already does
    nothing, and rows of an earlier, unfinished run are replaced.
    """
    from pyspark.sql import functions as F

    rows = report.deleted + report.already_absent + report.kept + report.failed
    if not rows:
        return 0
    outcomes = report.files().select(
        F.lit(job.job_id).alias("job_id"),
        F.lit(job.kind).alias("job_kind"),
        F.lit(job.table).alias("table_name"),
        F.lit(job.table_uuid).alias("table_uuid"),
        "path",
        "kind",
        "size_in_bytes",
        "outcome",
        "reason",
        F.lit(operations.clock.now()).cast("timestamp").alias("recorded_at"),
    )
    with around("deletion.record_outcomes"), worker_errors():
        replace_rows(spark, f"{catalog}.lifecycle.deletions", DELETIONS, "months(recorded_at)", job.job_id, outcomes)
    return rows


def replace_rows(spark: SparkSession, table: str, columns: str, partition: str, job_id: str, rows: DataFrame) -> None:
    """Make `rows` all that `table` has of `job_id`. Creates namespace and table at first use.

    When the same outcomes stand there already nothing is committed. Two steps (delete, append) where an earlier run
    left others: dying between them leaves none, and the caller, whose job is not marked done, records again.
    """
    from pyspark.sql import functions as F

    namespace = table.rpartition(".")[0]
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING iceberg PARTITIONED BY ({partition}) "
        # Every table's job appends here, two at a time or more.
        "TBLPROPERTIES ('commit.retry.num-retries' = '20', 'write.delete.isolation-level' = 'snapshot')"
    )
    ours = spark.table(table).where(F.col("job_id") == job_id)
    present = {row["outcome"]: row["count"] for row in ours.groupBy("outcome").count().collect()}
    if present:
        wanted = {row["outcome"]: row["count"] for row in rows.groupBy("outcome").count().collect()}
        if present == wanted:
            return
        spark.sql(f"DELETE FROM {table} WHERE job_id = :job", args={"job": job_id})
    rows.writeTo(table).append()
