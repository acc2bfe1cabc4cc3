"""Finding 16: `write.data.path` names any folder, and the scan took what stood there. An orphan scan collects only
below the warehouse and below `catalogs.live.roots`; an expiration deletes what the table's own metadata names."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import (
    ids,
    make_all_old,
    outcomes,
    overwrite,
    place,
    sql,
    stray,
    warehouse,
)

PROPERTIES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a user's files."""
    folder = tmp_path / "home"
    for name in ("docs/thesis.txt", ".ssh/id", "photos/1.parquet", "00001-x.metadata.json"):
        stray(folder, name)
    return folder


def foreign_files(home: Path) -> set[Path]:
    return {path for path in home.rglob("*") if path.is_file() and path.suffix in (".txt", "", ".json")} | {
        home / "photos" / "1.parquet"
    }


@pytest.mark.parametrize("name", PROPERTIES)
def test_no_scan_takes_a_file_below_a_folder_that_only_a_property_names(
    at_once: Lifecycle, home: Path, name: str
) -> None:
    table = make_table(at_once, "t", 1)
    theirs = foreign_files(home)
    sql(at_once, f"ALTER TABLE {{live}}.{table} SET TBLPROPERTIES ('{name}'='file://{home}')")
    make_all_old(home)
    scan = at_once.scan_orphans(table)
    assert not [row["path"] for row in scan.files().collect() if str(home) in row["path"]]
    assert scan.summary.files_by_reason["outside_roots"] >= len(theirs)
    at_once.delete_orphans(scan)
    assert all(path.exists() for path in theirs)
    explained = at_once.explain(table, f"file://{home}/docs/thesis.txt")
    assert (explained.verdict, explained.holders) == ("kept", ("outside_roots",))


def test_the_tables_own_location_outside_is_treated_alike(at_once: Lifecycle, home: Path) -> None:
    sql(at_once, "CREATE NAMESPACE {live}.db")
    sql(at_once, f"CREATE TABLE {{live}}.db.t (id int) USING iceberg LOCATION 'file://{home}'")
    sql(at_once, "INSERT INTO {live}.db.t VALUES (1)")
    theirs = foreign_files(home)
    make_all_old(home)
    assert at_once.scan_orphans("db.t").summary.orphan_files == 0
    assert all(path.exists() for path in theirs)


def test_an_expiration_deletes_what_the_metadata_names_and_nothing_else(at_once: Lifecycle, home: Path) -> None:
    table = make_table(at_once, "t", 1, properties=f"'write.data.path'='file://{home}'")
    theirs = {path for path in foreign_files(home) if path.suffix != ""}
    [old] = [path for path in home.rglob("*.parquet") if path.name != "1.parquet"]
    overwrite(at_once, table, 5)
    done = at_once.expire(table)
    assert outcomes(done)[str(old)][0] == "deleted"
    assert all(path.exists() for path in theirs) and (home / ".ssh" / "id").exists()
    assert ids(at_once, table) == [5]


def test_with_the_root_listed_strays_go_and_what_is_outside_the_roots_stays(
    make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    listed, beside = tmp_path / "lake", tmp_path / "lake-of-others"
    config = make_config(defaults=WITHOUT_COLD, catalogs={"live": {"roots": [f"file:{listed}/"]}})
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 1, properties=f"'write.data.path'='file://{listed}/t'")
        goes, stays = stray(listed / "t", "stray.parquet"), stray(beside, "t/stray.parquet")
        other = make_table(lifecycle, "u", 1, properties=f"'write.data.path'='file://{beside}/t'")
        for each in (table, other):
            lifecycle.delete_orphans(lifecycle.scan_orphans(each))
        assert not goes.exists() and stays.exists()
        assert ids(lifecycle, table) == [0] and ids(lifecycle, other) == [0]


def test_a_property_that_names_a_folder_around_the_warehouse_reaches_no_further(
    at_once: Lifecycle, tmp_path: Path
) -> None:
    """The root of everything that this test has: the warehouse, the other tiers, a user's files."""
    table = make_table(at_once, "t", 1)
    theirs = stray(tmp_path, "home/docs/thesis.txt")
    sql(at_once, f"ALTER TABLE {{live}}.{table} SET TBLPROPERTIES ('write.data.path'='file://{tmp_path}')")
    lost = stray(place(at_once, table))
    at_once.delete_orphans(at_once.scan_orphans(table))
    assert theirs.exists() and not lost.exists()
    assert ids(at_once, table) == [0]


def test_a_link_below_the_warehouse_leads_no_scan_outside(at_once: Lifecycle, home: Path) -> None:
    table = make_table(at_once, "t", 1)
    link = warehouse(at_once, "live") / "linked"
    link.symlink_to(home)
    theirs = foreign_files(home)
    sql(at_once, f"ALTER TABLE {{live}}.{table} SET TBLPROPERTIES ('write.data.path'='file://{link}')")
    at_once.delete_orphans(at_once.scan_orphans(table))
    assert all(path.exists() for path in theirs)


def test_a_root_that_is_taken_from_the_policy_after_the_scan_protects_again(
    make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    config = make_config(defaults=WITHOUT_COLD, catalogs={"live": {"roots": [f"file://{tmp_path}/lake"]}})
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 1, properties=f"'write.data.path'='file://{tmp_path}/lake/t'")
        lost = stray(tmp_path / "lake" / "t", "stray.parquet")
        scan = lifecycle.scan_orphans(table)
        assert scan.summary.orphan_files == 1
    live = config.catalogs.live.model_copy(update={"roots": ()})
    config = config.model_copy(update={"catalogs": config.catalogs.model_copy(update={"live": live})})
    with open_lifecycle(config, spark=spark) as lifecycle:
        done = lifecycle.delete_orphans(scan.scan_id)
        assert outcomes(done)[str(lost)] == ("kept", "outside_roots") and lost.exists()
