"""Finding 10: a dropped table inside another's location lost its time, its approval and its legal hold: the outer
table's orphan scan deleted its files at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import Refused, UnreadableMetadata
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import (
    append,
    files_below,
    ids,
    make_all_old,
    overwrite,
    place,
    sql,
    stray,
    take_up,
    warehouse,
)


@pytest.fixture
def lifecycle(all_of_db: Lifecycle) -> Lifecycle:
    return all_of_db


def create(lifecycle: Lifecycle, table: str, location: Path | None = None) -> Path:
    sql(lifecycle, "CREATE NAMESPACE IF NOT EXISTS {live}.db")
    at = "" if location is None else f"LOCATION 'file://{location}'"
    sql(lifecycle, f"CREATE TABLE {{live}}.{table} (id int) USING iceberg {at}")
    append(lifecycle, table, 1)
    return place(lifecycle, table)


def drop(lifecycle: Lifecycle, table: str, how: str = "") -> str:
    """Drop a table that the lifecycle has seen; its uuid."""
    lifecycle.observe_catalog()
    uuid = lifecycle.steps.table_state(table).metadata.table_uuid
    sql(lifecycle, f"DROP TABLE {{live}}.{table} {how}")
    lifecycle.observe_catalog()
    make_all_old(warehouse(lifecycle, "live"))
    return uuid


def collect(lifecycle: Lifecycle, table: str) -> set[str]:
    before = files_below(warehouse(lifecycle, "live"))
    lifecycle.delete_orphans(lifecycle.scan_orphans(table))
    return before - files_below(warehouse(lifecycle, "live"))


def bring_back(lifecycle: Lifecycle, table: str, metadata: str) -> list[int]:
    sql(lifecycle, f"CALL {{live}}.system.register_table('{table}', '{metadata}')")
    return ids(lifecycle, table)


def is_over(lifecycle: Lifecycle, uuid: str) -> None:
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE lifecycle.known_tables SET missing_since = clock_timestamp() - interval '20 days' "
                "WHERE table_uuid = :uuid"
            ),
            {"uuid": uuid},
        )


@pytest.mark.parametrize("where", ["nested", "below a location set later", "at the same location"])
def test_a_dropped_table_keeps_its_time_inside_another_ones_location(lifecycle: Lifecycle, where: str) -> None:
    outer = create(lifecycle, "db.outer")
    inside = {"nested": outer / "data" / "inner", "at the same location": outer}.get(where)
    inner = create(lifecycle, "db.inner", inside)
    metadata = lifecycle.snapshot_history("db.inner").metadata_location
    stray(inner, "data/half-written.parquet")
    uuid = drop(lifecycle, "db.inner")
    if where == "below a location set later":
        sql(lifecycle, f"ALTER TABLE {{live}}.db.outer SET LOCATION 'file://{inner.parent}'")
        append(lifecycle, "db.outer", 2)
        make_all_old(warehouse(lifecycle, "live"))

    assert collect(lifecycle, "db.outer") == set()

    overwrite(lifecycle, "db.outer", 7)
    lifecycle.expire("db.outer")
    assert [each.state for each in lifecycle.dropped_tables() if each.table_uuid == uuid] == ["waiting"]
    assert bring_back(lifecycle, "db.inner", metadata) == [1]
    assert ids(lifecycle, "db.outer") == [7]


def test_its_legal_hold_outlives_its_time(lifecycle: Lifecycle) -> None:
    outer = create(lifecycle, "db.outer")
    create(lifecycle, "db.inner", outer / "data" / "inner")
    metadata = lifecycle.snapshot_history("db.inner").metadata_location
    hold = lifecycle.hold("db.inner", "legal", "case 7", kind="legal")
    uuid = drop(lifecycle, "db.inner")
    is_over(lifecycle, uuid)

    assert collect(lifecycle, "db.outer") == set()
    with pytest.raises(Refused, match=hold.hold_id):
        lifecycle.scan_dropped("db.inner")
    assert collect(lifecycle, "db.outer") == set()
    assert bring_back(lifecycle, "db.inner", metadata) == [1]


def test_its_approval_is_asked_for_before_its_files_go(lifecycle: Lifecycle) -> None:
    outer = create(lifecycle, "db.outer")
    inner = create(lifecycle, "db.inner", outer / "data" / "inner")
    uuid = drop(lifecycle, "db.inner")
    is_over(lifecycle, uuid)
    assert collect(lifecycle, "db.outer") == set()
    [waits] = lifecycle.clear_dropped()
    assert waits.deleted == 0 and "approve" in str(waits.problem)
    lifecycle.approve(str(waits.scan_id), who="ann", why="nobody needs it")
    [done] = lifecycle.clear_dropped()
    assert done.deleted == done.files > 0 and not files_below(inner)
    assert ids(lifecycle, "db.outer") == [1]
    # What comes after its end is the outer table's garbage.
    lost = stray(inner)
    assert collect(lifecycle, "db.outer") == {str(lost)}


def test_a_decision_to_keep_it_holds_against_the_outer_table_too(lifecycle: Lifecycle) -> None:
    outer = create(lifecycle, "db.outer")
    create(lifecycle, "db.inner", outer / "data" / "inner")
    uuid = drop(lifecycle, "db.inner")
    is_over(lifecycle, uuid)
    lifecycle.keep_dropped("db.inner", who="ann", why="read from the other lake")
    assert collect(lifecycle, "db.outer") == set()


def test_a_table_dropped_between_the_scan_and_the_deletion_keeps_its_files(lifecycle: Lifecycle) -> None:
    """The scan found its stray files when nothing of it stood there yet."""
    outer = create(lifecycle, "db.outer")
    lost = stray(outer, "data/inner/data/lost.parquet")
    scan = lifecycle.scan_orphans("db.outer")
    assert scan.summary.orphan_files == 1
    create(lifecycle, "db.inner", outer / "data" / "inner")
    take_up(lifecycle, "db.inner", lost.parent, lost.name)
    drop(lifecycle, "db.inner")
    for dry_run in (True, False):
        lifecycle.delete_orphans(scan, dry_run=dry_run)
        assert lost.exists()


def test_what_a_dropped_table_read_of_others_stays_for_its_time(lifecycle: Lifecycle) -> None:
    """An undropped clone would read files that only it had."""
    outer = create(lifecycle, "db.outer")
    create(lifecycle, "db.clone")
    take_up(lifecycle, "db.clone", outer / "data")
    metadata = lifecycle.snapshot_history("db.clone").metadata_location
    drop(lifecycle, "db.clone")
    overwrite(lifecycle, "db.outer", 7)
    lifecycle.expire("db.outer")
    make_all_old(warehouse(lifecycle, "live"))
    collect(lifecycle, "db.outer")
    assert bring_back(lifecycle, "db.clone", metadata) == [1, 1]


def test_a_renamed_table_is_not_dropped_and_keeps_all_it_has(lifecycle: Lifecycle) -> None:
    outer = create(lifecycle, "db.outer")
    inner = create(lifecycle, "db.inner", outer / "data" / "inner")
    lifecycle.observe_catalog()
    sql(lifecycle, "ALTER TABLE {live}.db.inner RENAME TO db.another")
    make_all_old(warehouse(lifecycle, "live"))
    assert lifecycle.dropped_tables() == []
    assert collect(lifecycle, "db.outer") == set()
    lost = stray(inner)
    assert collect(lifecycle, "db.outer") == set()
    assert collect(lifecycle, "db.another") == {str(lost)}
    assert ids(lifecycle, "db.another") == [1]


def test_of_a_purged_table_the_rest_is_the_outer_tables_garbage(lifecycle: Lifecycle) -> None:
    outer = create(lifecycle, "db.outer")
    inner = create(lifecycle, "db.inner", outer / "data" / "inner")
    drop(lifecycle, "db.inner", "PURGE")
    lost = stray(inner)
    assert str(lost) in collect(lifecycle, "db.outer")
    assert ids(lifecycle, "db.outer") == [1]


def test_of_a_purged_table_on_a_legal_hold_the_rest_stays(lifecycle: Lifecycle) -> None:
    outer = create(lifecycle, "db.outer")
    inner = create(lifecycle, "db.inner", outer / "data" / "inner")
    hold = lifecycle.hold("db.inner", "legal", "case 7", kind="legal")
    drop(lifecycle, "db.inner", "PURGE")
    left = stray(inner)
    # What it read, nobody can tell any more.
    with pytest.raises(UnreadableMetadata, match=hold.hold_id):
        collect(lifecycle, "db.outer")
    assert left.exists()
    lifecycle.release(hold.hold_id)
    assert str(left) in collect(lifecycle, "db.outer")


def test_an_unseen_table_is_recognized_by_its_metadata_files(lifecycle: Lifecycle) -> None:
    """It was made and dropped between two looks at the catalog."""
    outer = create(lifecycle, "db.outer")
    inner = create(lifecycle, "db.inner", outer / "data" / "inner")
    metadata = lifecycle.snapshot_history("db.inner").metadata_location
    sql(lifecycle, "DROP TABLE {live}.db.inner")
    make_all_old(warehouse(lifecycle, "live"))
    lost = stray(outer)
    assert collect(lifecycle, "db.outer") == {str(lost)}
    assert files_below(inner) and bring_back(lifecycle, "db.inner", metadata) == [1]


def test_its_own_open_plan_keeps_its_files_from_the_outer_table_and_ends_with_its_deletion(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    policy = {**WITHOUT_COLD, "deletion": {"grace": "90d"}, "dropped": {"keep": "0s", "approval": "guards"}}
    with open_lifecycle(make_config(defaults=policy, tables={"db.*": {}}), spark=spark) as lifecycle:
        outer = create(lifecycle, "db.outer")
        inner = create(lifecycle, "db.inner", outer / "data" / "inner")
        overwrite(lifecycle, "db.inner", 2)
        plan = lifecycle.plan_expiration("db.inner")
        lifecycle.commit_expiration(plan)
        drop(lifecycle, "db.inner")
        assert collect(lifecycle, "db.outer") == set()
        scan = lifecycle.scan_dropped("db.inner")
        foreseen, done = lifecycle.delete_dropped(scan, dry_run=True), lifecycle.delete_dropped(scan)
        assert (foreseen.would_delete, foreseen.kept) == (done.deleted, done.kept) == (scan.summary.orphan_files, 0)
        assert not files_below(inner) and ids(lifecycle, "db.outer") == [1]
