"""`plan_query` selects exactly the files, and for each file exactly the deletes, that Iceberg's own planner selects."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from artemis_lifecycle.errors import BadInput, NoSuchSnapshot
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.planning.advice import Targets
from artemis_lifecycle.planning.plan import Query, QueryPlan, plan_query
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.planning.iceberg_planner import IcebergPlanner, Long, Planned
from artemis_lifecycle_tests.planning.random_tables import RandomTable, columns_of, predicate

SEED = int(os.environ["ARTEMIS_SEED"])
TARGETS = Targets(512 << 20, 8 << 20, 384 << 20, 5)


@pytest.fixture(scope="module")
def planner(spark: Any) -> IcebergPlanner:
    return IcebergPlanner(spark)


def ours(table: Any, query: Query) -> QueryPlan:
    location = table.operations().current().metadataFileLocation()
    stores = Stores()
    return plan_query(stores, "ns.t", read_table_metadata(stores, location), query, TARGETS)


def as_planned(plan: QueryPlan) -> Planned:
    rows = plan.to_arrow().to_pylist()
    data = plan.manifests_selected - plan.delete_manifests_selected
    return Planned(
        {row["path"]: tuple(sorted(row["deletes"])) for row in rows},
        frozenset(row["path"] for row in rows if row["residual"] == "true"),
        (data, plan.delete_manifests_selected),
    )


def require_same(found: Planned, expected: Planned, what: str) -> None:
    assert (found.files, found.manifests) == (expected.files, expected.manifests), what
    assert found.decided - expected.open == expected.decided, what


def compare(planner: IcebergPlanner, folder: Path, seed: int, predicates: int) -> None:
    dice = random.Random(seed)
    made = RandomTable(planner, dice, f"file://{folder}/t{seed}").make()
    table = made.table
    columns = columns_of(planner, table.schema())
    for number in range(predicates):
        case = predicate(dice, columns)
        found = as_planned(ours(table, Query(case.python)))
        require_same(found, planner.plan(table, case.java), f"table {seed}, predicate {number}: {case.python}")
    for snapshot in made.snapshots:
        # The schema of then; a later spec may have a column that it lacks, which Iceberg refuses.
        schema = planner.jvm.org.apache.iceberg.util.SnapshotUtil.schemaFor(table, snapshot)
        if snapshot == table.currentSnapshot().snapshotId():
            schema = table.schema()
        columns = columns_of(planner, schema)
        if not sources(table) <= {each.id for each in columns}:
            continue
        case = predicate(dice, columns)
        found = as_planned(ours(table, Query(case.python, snapshot_id=snapshot)))
        expected = planner.plan(table, case.java, schema=schema, snapshot=snapshot)
        require_same(found, expected, f"table {seed}, snapshot {snapshot}: {case.python}")


def sources(table: Any) -> set[int]:
    return {field.sourceId() for spec in table.specs().values() for field in spec.fields()}


@pytest.mark.parametrize("seed", range(6))
def test_files_and_deletes_are_those_of_icebergs_planner(planner: IcebergPlanner, tmp_path: Path, seed: int) -> None:
    compare(planner, tmp_path, seed + 1000 * SEED, 40)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6, 300))
def test_files_and_deletes_are_those_of_icebergs_planner_on_many_tables(
    planner: IcebergPlanner, tmp_path: Path, seed: int
) -> None:
    compare(planner, tmp_path, seed + 1000 * SEED, 40)


def test_refs_and_spellings_are_those_of_icebergs_scans(planner: IcebergPlanner, tmp_path: Path) -> None:
    made = RandomTable(planner, random.Random(3), f"file://{tmp_path}/t").make()
    table = made.table
    first, last = made.snapshots[0], made.snapshots[-1]
    table.manageSnapshots().createTag("then", first).createBranch("fork", last).commit()
    table.refresh()
    name = made.columns[0].name
    for ref in ("then", "fork", "main"):
        expected = planner.plan(table, f"NOT_NULL {name.upper()} 0", ref=ref, case_sensitive=False)
        found = ours(table, Query(f"{name.upper()} is not null", ref=ref, case_sensitive=False))
        assert as_planned(found).files == expected.files
    with pytest.raises(BadInput, match="did you mean c0"):
        ours(table, Query("C0 is not null"))
    with pytest.raises(NoSuchSnapshot):
        ours(table, Query("true", ref="elsewhere"))


def test_an_equality_delete_without_any_data_applies_to_nothing(planner: IcebergPlanner, tmp_path: Path) -> None:
    schema = '{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"id","type":"long","required":false}]}'
    properties = {"format-version": "2"}
    table = planner.create(schema, '{"spec-id":0,"fields":[]}', f"file://{tmp_path}/t", properties)
    erased = f"file://{tmp_path}/t/data/deletes.parquet"
    delete = planner.call("deleteFile", table, 0, erased, "equality", "", "1", Long(1), "", "")
    table.newRowDelta().addDeletes(delete).commit()
    table.refresh()
    found = ours(table, Query("id = 1"))
    assert as_planned(found) == planner.plan(table, "EQ id 1 x0100000000000000") == Planned({}, frozenset(), (0, 1))
