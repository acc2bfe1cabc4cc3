"""Finding 9: a former location leaked for ever. A table owns every location that it has had, unless another table lives
there now."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import (
    append,
    files_below,
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


def move(lifecycle: Lifecycle, table: str, to: Path) -> Path:
    """Set another location; returns the former one."""
    former = place(lifecycle, table)
    sql(lifecycle, f"ALTER TABLE {{live}}.{table} SET LOCATION 'file://{to}'")
    return former


def create_at(lifecycle: Lifecycle, table: str, location: Path) -> None:
    sql(lifecycle, f"CREATE TABLE {{live}}.{table} (id int) USING iceberg LOCATION 'file://{location}'")


def test_an_expiration_deletes_at_the_former_location(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 3)
    former = move(at_once, table, warehouse(at_once, "live") / "moved")
    overwrite(at_once, table, 7)
    old = set(former.rglob("data/*.parquet"))
    assert len(old) == 3

    done = at_once.expire(table)

    assert {outcomes(done)[str(path)][0] for path in old} == {"deleted"}
    assert done.kept == 0 and at_once.plans(table)[0].status is PlanStatus.DONE
    assert ids(at_once, table) == [7]


def test_a_scan_collects_the_former_locations_of_its_own_accord_and_by_name(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 1)
    formers = []
    for number, name in enumerate(("second", "third"), start=1):
        formers.append(move(at_once, table, warehouse(at_once, "live") / name))
        append(at_once, table, number)
    lost = [stray(former, f"data/stray-{number}.parquet") for number, former in enumerate(formers)]
    make_all_old(warehouse(at_once, "live"))
    for former, file in zip(formers, lost, strict=True):
        scan = at_once.scan_orphans(table, location=f"file://{former}")
        assert {local(row["path"]) for row in scan.files().collect()} == {file}
    scan = at_once.scan_orphans(table)
    assert {local(row["path"]) for row in scan.files().collect()} == set(lost)
    assert at_once.delete_orphans(scan).deleted == 2
    assert ids(at_once, table) == [0, 1, 2]


def test_a_former_location_stays_its_own_after_the_metadata_log_forgot_it(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    with open_lifecycle(make_config(defaults=WITHOUT_COLD), spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 1, properties="'write.metadata.previous-versions-max'='1'")
        lifecycle.list_objects(table)
        former = move(lifecycle, table, warehouse(lifecycle, "live") / "moved")
        for number in range(1, 5):
            append(lifecycle, table, number)
        lost = stray(former)
        make_all_old(warehouse(lifecycle, "live"))
        log = lifecycle.steps.table_state(table).metadata.metadata_log
        assert not any(str(former) in entry.metadata_file for entry in log)

        scan = lifecycle.scan_orphans(table, location=f"file://{former}")

        assert lost in {local(row["path"]) for row in scan.files().collect()}
        lifecycle.delete_orphans(scan)
        assert not lost.exists() and ids(lifecycle, table) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("where", ["equal", "around", "nested"])
def test_where_another_table_lives_now_its_files_stay(at_once: Lifecycle, where: str) -> None:
    table = make_table(at_once, "t", 2)
    former = move(at_once, table, warehouse(at_once, "live") / "moved")
    overwrite(at_once, table, 7)
    theirs = {"equal": former, "around": former.parent, "nested": former / "data" / "inner"}[where]
    create_at(at_once, "db.other", theirs)
    append(at_once, "db.other", 9)
    left, own = stray(theirs, "data/theirs.parquet"), stray(former, "data/whose.parquet")
    make_all_old(warehouse(at_once, "live"))
    before = files_below(warehouse(at_once, "live"))

    at_once.delete_orphans(at_once.scan_orphans(table))
    try:
        at_once.delete_orphans(at_once.scan_orphans(table, location=f"file://{former}"))
    except BadInput:
        assert where != "nested"
    done = at_once.expire(table)

    gone = before - files_below(warehouse(at_once, "live"))
    # Around the inner table the former location is still the table's own.
    assert left.exists() and own.exists() is (where != "nested")
    expired = set(outcomes(done))
    assert gone <= expired | ({str(own)} if where == "nested" else set())
    assert ids(at_once, "db.other") == [9] and ids(at_once, table) == [7]


def test_a_table_that_comes_to_a_former_location_after_the_scan_keeps_its_files(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 2)
    former = move(at_once, table, warehouse(at_once, "live") / "moved")
    append(at_once, table, 2)
    file = stray(former, "data/theirs.parquet")
    make_all_old(warehouse(at_once, "live"))
    scan = at_once.scan_orphans(table)
    assert scan.summary.orphan_files == 1
    create_at(at_once, "db.other", former)
    for dry_run in (True, False):
        [(outcome, why)] = outcomes(at_once.delete_orphans(scan, dry_run=dry_run)).values()
        assert outcome == "kept" and why in ("not_owned", "other_table")
    assert file.exists()


def test_what_a_table_elsewhere_reads_at_a_former_location_stays(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 1)
    former = move(at_once, table, warehouse(at_once, "live") / "moved")
    reader = make_table(at_once, "reader", 0)
    take_up(at_once, reader, former / "data")
    overwrite(at_once, table, 7)
    done = at_once.expire(table)
    assert [why for what, why in outcomes(done).values() if what == "kept"] == [f"reachable from {reader}"]
    make_all_old(warehouse(at_once, "live"))
    at_once.delete_orphans(at_once.scan_orphans(table))
    assert ids(at_once, reader) == [0]


def test_another_tables_former_location_is_not_this_ones(at_once: Lifecycle) -> None:
    table, other = make_table(at_once, "t", 1), make_table(at_once, "u", 1)
    former = move(at_once, other, warehouse(at_once, "live") / "moved")
    append(at_once, other, 1)
    lost = stray(former)
    with pytest.raises(BadInput, match="not one of the table's locations"):
        at_once.scan_orphans(table, location=f"file://{former}")
    assert lost.exists()


def test_a_former_location_outside_the_roots_is_the_expirations_only(
    make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    """What the table's own metadata names may go anywhere; what nobody names, only below the roots."""
    with open_lifecycle(make_config(defaults=WITHOUT_COLD), spark=spark) as lifecycle:
        sql(lifecycle, "CREATE NAMESPACE {live}.db")
        create_at(lifecycle, "db.t", tmp_path / "outside")
        append(lifecycle, "db.t", 0)
        former = move(lifecycle, "db.t", warehouse(lifecycle, "live") / "db" / "t")
        overwrite(lifecycle, "db.t", 1)
        foreign = stray(former, "data/thesis.txt")
        [old] = (former / "data").glob("*.parquet")
        assert outcomes(lifecycle.expire("db.t"))[str(old)][0] == "deleted"
        make_all_old(former)
        lifecycle.delete_orphans(lifecycle.scan_orphans("db.t"))
        scan = lifecycle.scan_orphans("db.t", location=f"file://{former}")
        assert scan.summary.orphan_files == 0 and scan.summary.files_by_reason["outside_roots"] >= 1
        assert foreign.exists()
