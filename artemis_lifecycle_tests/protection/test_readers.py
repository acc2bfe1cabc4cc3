"""Every object of every catalog is a reader: views, functions, tables of other formats, tables of a version that this
release does not know. What they need stays, and what is unknown counts as needed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.guardian import on_disk
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import (
    append,
    ids,
    make_all_old,
    outcomes,
    overwrite,
    place,
    sql,
    stray,
    take_up,
    warehouse,
)
from artemis_lifecycle_tests.protection.test_finding_10 import create, drop, is_over


@pytest.fixture
def lifecycle(all_of_db: Lifecycle) -> Lifecycle:
    return all_of_db


def create_view(lifecycle: Lifecycle, name: str, location: Path | None = None) -> None:
    at = "" if location is None else f"TBLPROPERTIES ('location'='file://{location}')"
    sql(lifecycle, f"CREATE OR REPLACE VIEW {{live}}.db.{name} {at} AS SELECT 1 AS one")


def row_of(lifecycle: Lifecycle, name: str) -> tuple[str, str]:
    """The type and the pointer of any object."""
    with lifecycle.operations.engine.connect() as connection:
        found = connection.execute(
            text(
                "SELECT iceberg_type, metadata_location FROM iceberg_tables "
                "WHERE catalog_name = :catalog AND table_name = :name"
            ),
            {"catalog": lifecycle.config.catalogs.live.name, "name": name},
        ).one()
    return found[0], found[1]


def set_row(lifecycle: Lifecycle, name: str, **columns: str | None) -> None:
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(
            text(
                f"UPDATE iceberg_tables SET {', '.join(f'{each} = :{each}' for each in columns)} "
                "WHERE catalog_name = :catalog AND table_name = :name"
            ),
            {"catalog": lifecycle.config.catalogs.live.name, "name": name, **columns},
        )


def collect(lifecycle: Lifecycle, table: str) -> None:
    make_all_old(warehouse(lifecycle, "live"))
    lifecycle.delete_orphans(lifecycle.scan_orphans(table))


def versions(lifecycle: Lifecycle, view: str) -> set[Path]:
    """A view's metadata files, all of its versions."""
    return set(on_disk(row_of(lifecycle, view)[1]).parent.glob("*.metadata.json"))


@pytest.mark.parametrize("where", ["inside", "at the table", "in its metadata folder"])
def test_a_view_at_or_inside_a_table_outlives_an_orphan_scan(lifecycle: Lifecycle, where: str) -> None:
    table = create(lifecycle, "db.t")
    at = {"inside": table / "data" / "v", "at the table": table, "in its metadata folder": table / "metadata"}[where]
    for _ in range(2):
        create_view(lifecycle, "v", at)
    kept, lost = versions(lifecycle, "v"), stray(table)
    # The folder has the table's files, too, where the two share it.
    assert len(kept) >= 2

    collect(lifecycle, "db.t")

    assert all(path.exists() for path in kept) and not lost.exists()
    assert sql(lifecycle, "SELECT * FROM {live}.db.v")[0]["one"] == 1


@pytest.mark.parametrize("kind", ["VIEW", None, "view", "MVIEW"])
def test_a_view_that_replaced_a_table_outlives_the_tables_files(lifecycle: Lifecycle, kind: str | None) -> None:
    table = create(lifecycle, "db.t")
    data = set((table / "data").glob("*.parquet"))
    uuid = drop(lifecycle, "db.t")
    create_view(lifecycle, "t", table)
    set_row(lifecycle, "t", iceberg_type=kind)
    kept = on_disk(row_of(lifecycle, "t")[1])
    make_all_old(warehouse(lifecycle, "live"))
    lifecycle.observe_catalog()
    is_over(lifecycle, uuid)

    if kind is not None:
        scan = lifecycle.scan_dropped(uuid)
        lifecycle.approve(scan.scan_id, who="ann", why="nobody needs it")
        lifecycle.delete_dropped(scan)
        assert not any(path.exists() for path in data)
    assert kept.exists()


def test_a_view_that_no_catalog_lists_keeps_its_folder(lifecycle: Lifecycle) -> None:
    table = create(lifecycle, "db.t")
    create_view(lifecycle, "v", table / "data" / "v")
    [kept] = versions(lifecycle, "v")
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("DELETE FROM iceberg_tables WHERE table_name = 'v'"))
    lost = stray(table)
    collect(lifecycle, "db.t")
    assert kept.exists() and not lost.exists()


def test_a_table_registered_as_another_kind_of_object_is_a_reader(lifecycle: Lifecycle) -> None:
    create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    [shared] = (place(lifecycle, "db.owner") / "data").glob("*.parquet")
    take_up(lifecycle, "db.reader", shared.parent)
    set_row(lifecycle, "reader", iceberg_type="table")
    overwrite(lifecycle, "db.owner", 2)

    done = lifecycle.expire("db.owner")

    live = lifecycle.config.catalogs.live.name
    assert outcomes(done)[str(shared)] == ("kept", f"reachable from table {live}:db.reader") and shared.exists()


def test_a_dropped_table_that_is_registered_as_another_kind_of_object_is_not_missing(lifecycle: Lifecycle) -> None:
    create(lifecycle, "db.t")
    lifecycle.observe_catalog()
    set_row(lifecycle, "t", iceberg_type="table")
    lifecycle.observe_catalog()
    assert lifecycle.dropped_tables() == []
