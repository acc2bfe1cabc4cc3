"""The outcomes of deletions as rows of the result table `deletions`: a history for people and audits. Deletion never
reads it: the journal in Postgres and the stored outcomes decide."""

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


def outcome_rows(stores: Stores, root: str, job: JobRecord, recorded_at: datetime) -> Iterator[pa.Table]:
    """Yield the job's outcomes with the columns of DELETIONS."""
    same = {"job_id": job.job_id, "job_kind": str(job.kind), "table_name": job.table, "table_uuid": job.table_uuid}
    instant = pa.scalar(recorded_at, pa.timestamp("us", "UTC"))
    for outcomes in outcome_tables(stores, root, job.job_id):
        columns: dict[str, pa.Array] = {name: pa.repeat(value, outcomes.num_rows) for name, value in same.items()}
        columns |= {name: outcomes.column(name) for name in ("path", "kind", "size_in_bytes", "outcome", "reason")}
        yield pa.table({**columns, "recorded_at": pa.repeat(instant, outcomes.num_rows)})
