"""A table with a dot in its name is a neighbor like any other: no deletion takes a file that it reads."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.deletion.world import local, make_old

OWNER = "db.owner"
NEIGHBORS = ("db.`x.y`", "db.`back``tick.`", "db.n s.`x.y`")


@pytest.fixture
def lifecycle(all_of_db: Lifecycle) -> Lifecycle:
    for namespace in ("db", "db.`n s`"):
        core_tables.sql(all_of_db.spark, f"CREATE NAMESPACE {all_of_db.config.catalogs.live.name}.{namespace}")
    return all_of_db


def _sql(lifecycle: Lifecycle, table: str) -> str:
    return parse(table).sql(lifecycle.config.catalogs.live.name)


def _create(lifecycle: Lifecycle, table: str, location: Path | None = None) -> None:
    place = f"LOCATION 'file://{location}'" if location is not None else ""
    core_tables.sql(lifecycle.spark, f"CREATE TABLE {_sql(lifecycle, table)} (id bigint) USING iceberg {place}")


def _append(lifecycle: Lifecycle, table: str, number: int) -> None:
    core_tables.append(lifecycle.spark, _sql(lifecycle, table), [(number,)])


def _overwrite(lifecycle: Lifecycle, table: str, number: int) -> None:
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {_sql(lifecycle, table)} VALUES ({number})")


def _rows(lifecycle: Lifecycle, table: str) -> list[int]:
    lifecycle.spark.catalog.refreshTable(_sql(lifecycle, table))
    return sorted(row["id"] for row in lifecycle.spark.table(_sql(lifecycle, table)).collect())


def _place(lifecycle: Lifecycle, table: str) -> Path:
    return local(lifecycle.steps.table_state(table).metadata.location)


def _take_up(lifecycle: Lifecycle, table: str, owner: str) -> None:
    """Add the current data files of `owner` to `table`, which reads them where they are."""
    spark: Any = lifecycle.spark
    load = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable
    theirs = load(spark._jsparkSession, _sql(lifecycle, owner))
    append = load(spark._jsparkSession, _sql(lifecycle, table)).newAppend()
    for file in theirs.currentSnapshot().addedDataFiles(theirs.io()):
        append = append.appendFile(file)
    append.commit()


def _age(lifecycle: Lifecycle) -> None:
    for path in local(str(lifecycle.config.catalogs.live.warehouse)).rglob("*"):
        if path.is_file():
            make_old(path, timedelta(days=30))


@pytest.mark.parametrize("neighbor", NEIGHBORS)
def test_an_expiration_keeps_what_it_has_taken_up(lifecycle: Lifecycle, neighbor: str) -> None:
    _create(lifecycle, OWNER)
    _append(lifecycle, OWNER, 1)
    _create(lifecycle, neighbor)
    _take_up(lifecycle, neighbor, OWNER)
    _overwrite(lifecycle, OWNER, 2)

    plan = lifecycle.plan_expiration(OWNER)
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    assert lifecycle.delete_files(plan).kept == 1
    assert (_rows(lifecycle, OWNER), _rows(lifecycle, neighbor)) == ([2], [1])


@pytest.mark.parametrize("neighbor", NEIGHBORS)
def test_an_orphan_deletion_keeps_what_it_has_taken_up(lifecycle: Lifecycle, neighbor: str) -> None:
    _create(lifecycle, OWNER)
    _append(lifecycle, OWNER, 1)
    _create(lifecycle, neighbor)
    _take_up(lifecycle, neighbor, OWNER)
    _overwrite(lifecycle, OWNER, 2)
    java: Any = lifecycle.spark
    loaded = java._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(java._jsparkSession, _sql(lifecycle, OWNER))
    # Another tool expires in metadata only: the neighbor alone reads the file from now on.
    expire = loaded.expireSnapshots().expireSnapshotId(lifecycle.snapshot_history(OWNER).snapshots[0].snapshot_id)
    expire.cleanExpiredFiles(False).commit()
    _age(lifecycle)

    scan = lifecycle.scan_orphans(OWNER)
    assert scan.orphan_data_files.count() == 0
    lifecycle.delete_orphans(scan)
    assert (_rows(lifecycle, OWNER), _rows(lifecycle, neighbor)) == ([2], [1])


@pytest.mark.parametrize("neighbor", NEIGHBORS)
def test_the_tables_around_it_keep_what_lies_in_its_location(lifecycle: Lifecycle, neighbor: str) -> None:
    _create(lifecycle, OWNER)
    _append(lifecycle, OWNER, 1)
    _create(lifecycle, neighbor, location=_place(lifecycle, OWNER) / "data" / "nested")
    _append(lifecycle, neighbor, 5)
    _overwrite(lifecycle, OWNER, 2)
    _age(lifecycle)

    lifecycle.delete_orphans(lifecycle.scan_orphans(OWNER))
    lifecycle.expire(OWNER)
    assert (_rows(lifecycle, OWNER), _rows(lifecycle, neighbor)) == ([2], [5])


def test_a_table_that_is_listed_and_has_no_metadata_is_not_taken_for_dropped(lifecycle: Lifecycle) -> None:
    """The catalog shows the table and says nothing of where it reads: nothing is deleted beside it."""
    _create(lifecycle, OWNER)
    _append(lifecycle, OWNER, 1)
    _overwrite(lifecycle, OWNER, 2)
    plan = lifecycle.plan_expiration(OWNER)
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    before = {path for path in _place(lifecycle, OWNER).rglob("*") if path.is_file()}
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, iceberg_type) "
                "VALUES (:catalog, 'db', 'x.y', 'TABLE')"
            ),
            {"catalog": lifecycle.config.catalogs.live.name},
        )
    _age(lifecycle)

    with pytest.raises(UnreadableMetadata, match=r"db\.`x\.y`"):
        lifecycle.delete_files(plan)
    with pytest.raises(UnreadableMetadata, match=r"db\.`x\.y`"):
        lifecycle.scan_orphans(OWNER)
    assert before <= set(_place(lifecycle, OWNER).rglob("*"))
