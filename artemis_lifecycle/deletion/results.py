"""The outcomes of deletions as a queryable Iceberg table: `<live catalog>.lifecycle.deletions`.

A history for people and audits. Deletion never reads it: the journal in Postgres and the stored outcomes decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pyarrow as pa

from artemis_lifecycle.catalogs.results import ResultTable
from artemis_lifecycle.deletion.outcomes import outcome_tables
from artemis_lifecycle.operations.journal import JobRecord
from artemis_lifecycle.storage.stores import Stores

DELETIONS = ResultTable(
    "deletions",
    """
    job_id string COMMENT 'plan id or scan id',
    job_kind string COMMENT 'expiration, orphans or dropped',
    table_name string,
    table_uuid string,
    path string COMMENT 'as the metadata or the listing spelled it',
    kind string,
    size_in_bytes bigint,
    outcome string COMMENT 'deleted, absent, kept or failed',
    reason string,
    recorded_at timestamp COMMENT 'when the run ended that recorded it, by the clock of Postgres'
    """,
    key="job_id",
    instant="recorded_at",
)


def record_outcomes(
    spark: SparkSession,
    operations: Operations,
    catalog: str,
    job: DeletionJob,
    report: DeletionReport,
    stores: Stores | None = None,
    root: str | None = None,
) -> int:
    """Write the outcomes of `report` to `<catalog>.lifecycle.deletions`. Return the number of rows that the job has
    there.

    The caller holds the table's lease, and calls this before the plan or scan is marked done. Recording the same
    outcomes again does nothing. Rows of an earlier, unfinished run are replaced. With the job's `stores` and `root`,
    this process appends the new rows (`append_new`) without Spark.
    """
    from pyspark.sql import functions as F

    rows = report.deleted + report.already_absent + report.kept + report.failed
    if not rows:
        return 0
    table, recorded_at = f"{catalog}.{NAMESPACE}.deletions", operations.clock.now()
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
        replace_rows(spark, table, DELETIONS, "months(recorded_at)", "job_id", job.job_id, outcomes, alike=("outcome",))
    return rows


def _rows(stores: Stores, root: str, job: DeletionJob, recorded_at: datetime) -> Iterator[pa.Table]:
    """Yield the job's outcomes with the columns of DELETIONS, one piece per file."""
    told = {"job_id": job.job_id, "job_kind": job.kind, "table_name": job.table, "table_uuid": job.table_uuid}
    for outcomes in pieces(outcome_tables(stores, root, job.job_id)):

        def every(value: object, kind: pa.DataType, rows: int = outcomes.num_rows) -> pa.Array:
            return pa.repeat(pa.scalar(value, kind), rows)

        columns = {name: every(value, pa.string()) for name, value in told.items()}
        columns |= {name: outcomes.column(name) for name in ("path", "kind", "size_in_bytes", "outcome", "reason")}
        yield pa.table({**columns, "recorded_at": pa.repeat(instant, outcomes.num_rows)})
