"""Plans as rows of the result table `plan_files`, for people. No decision uses them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from artemis_lifecycle.catalogs.results import ResultTable
from artemis_lifecycle.operations.plans import PlanRecord
from artemis_lifecycle.storage.frames import frame_batches
from artemis_lifecycle.storage.stores import Stores

PLAN_FILES = ResultTable(
    "plan_files",
    """
    plan_id string,
    table_name string,
    table_uuid string,
    path string COMMENT 'as the metadata spells it',
    kind string,
    size_in_bytes bigint,
    reason string,
    planned_at timestamp
    """,
    key="plan_id",
    instant="planned_at",
)


def plan_rows(stores: Stores, plan: PlanRecord) -> Iterator[pa.Table]:
    """Yield the plan's files with the columns of PLAN_FILES."""
    same = {"plan_id": plan.plan_id, "table_name": plan.table, "table_uuid": plan.table_uuid}
    instant = pa.scalar(plan.planned_at, pa.timestamp("us", "UTC"))
    for files in frame_batches(plan.files_location, stores):
        columns: dict[str, pa.Array] = {name: pa.repeat(value, files.num_rows) for name, value in same.items()}
        columns |= {name: files.column(name) for name in ("path", "kind", "size_in_bytes", "reason")}
        yield pa.table({**columns, "planned_at": pa.repeat(instant, files.num_rows)})
