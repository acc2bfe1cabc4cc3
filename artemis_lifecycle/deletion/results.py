"""The outcomes of deletions as an Iceberg table that anyone can query: `<live catalog>.lifecycle.deletions`.

A history for people and audits. Nothing that deletes reads it: the journal in Postgres and the stored outcomes decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from artemis_lifecycle.catalogs.results import append_new
from artemis_lifecycle.deletion.batches import DeletionJob, outcome_tables
from artemis_lifecycle.deletion.worker import DeletionReport
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_ROWS_OF_A_FILE = 500_000

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
    spark: SparkSession,
    operations: Operations,
    catalog: str,
    job: DeletionJob,
    report: DeletionReport,
    stores: Stores | None = None,
    root: str | None = None,
) -> int:
    """Put the outcomes of `report` into `<catalog>.lifecycle.deletions`; returns the rows that the job has there.

    Call it under the table's lease, before the plan or scan is marked done: recording again what is there already does
    nothing, and rows of an earlier, unfinished run are replaced. With the job's `stores` and `root` this process writes
    what is new (`append_new`); Spark does without them.
    """
    from pyspark.sql import functions as F

    rows = report.deleted + report.already_absent + report.kept + report.failed
    if not rows:
        return 0
    table, recorded_at = f"{catalog}.lifecycle.deletions", operations.clock.now()
    if stores is not None and root is not None:
        parts, begun = _rows(stores, root, job, recorded_at), operations.journal.job(job.job_id)
        since = recorded_at if begun is None or begun.started_at is None else begun.started_at
        with around("deletion.record_outcomes"), worker_errors():
            if append_new(spark, stores, table, "job_id", job.job_id, ("recorded_at", recorded_at), since, parts):
                return rows
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
        F.lit(recorded_at).cast("timestamp").alias("recorded_at"),
    )
    with around("deletion.record_outcomes"), worker_errors():
        replace_rows(spark, table, DELETIONS, "months(recorded_at)", job.job_id, outcomes)
    return rows


def _rows(stores: Stores, root: str, job: DeletionJob, recorded_at: datetime) -> Iterator[pa.Table]:
    """The job's outcomes with the columns of DELETIONS, each piece for a file of its own."""
    import pyarrow as pa

    def made(tables: Sequence[pa.Table]) -> pa.Table:
        outcomes = pa.concat_tables(tables)

        def every(value: object, kind: pa.DataType) -> pa.Array:
            return pa.repeat(pa.scalar(value, kind), outcomes.num_rows)

        told = {"job_id": job.job_id, "job_kind": job.kind, "table_name": job.table, "table_uuid": job.table_uuid}
        columns = {name: every(value, pa.string()) for name, value in told.items()}
        columns |= {name: outcomes.column(name) for name in ("path", "kind", "size_in_bytes", "outcome", "reason")}
        return pa.table({**columns, "recorded_at": every(recorded_at, pa.timestamp("us", "UTC"))})

    waiting: list[pa.Table] = []
    for part in outcome_tables(stores, root, job.job_id):
        waiting.append(part)
        if sum(each.num_rows for each in waiting) >= _ROWS_OF_A_FILE:
            yield made(waiting)
            waiting = []
    if waiting:
        yield made(waiting)


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
