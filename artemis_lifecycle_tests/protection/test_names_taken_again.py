"""A name that one line of a uuid leaves, and another takes: what is known of the dropped one, its policy and what
people decided about it stay its own."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.deletion.report import RECEIPTS
from artemis_lifecycle.errors import LifecycleError, StaleMetadata
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deletion.world import local, make_old
from artemis_lifecycle_tests.policies import AT_ONCE, WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import expire_in_metadata, make_all_old, warehouse
from artemis_lifecycle_tests.protection.test_finding_10 import is_over
from artemis_lifecycle_tests.protection.test_two_names_of_one_uuid import (
    Opened,
    goes_on,
    make_original,
    one_goes_on_and_two_is_dropped,
    opened,
    replica_of,
)

__all__ = ["opened"]


def files_of(place: Path) -> set[Path]:
    return {path for path in place.rglob("*") if path.is_file() and RECEIPTS not in path.parts}


@pytest.mark.parametrize("renamed", [False, True], ids=["own-name", "name-taken"])
def test_the_policy_of_its_own_entry_still_holds(
    make_config: MakeConfig, spark: SparkSession, tmp_path: Path, renamed: bool
) -> None:
    """lifecycle.yaml has an entry for the table: years, and a person's word."""
    strict: dict[str, Any] = {"dropped": {"keep": "3650d", "approval": "required"}}
    config = make_config(
        defaults={
            **WITHOUT_COLD,
            "deletion": {"grace": "0s", "max_files": 10_000},
            "dropped": {"keep": "1d", "approval": "guards"},
        },
        tables={"db.*": {}, "db.replica": strict},
    )
    with open_lifecycle(config, spark=spark) as lifecycle:
        table, name = make_original(lifecycle), lifecycle.config.catalogs.live.name
        place = replica_of(lifecycle, table, tmp_path)
        lifecycle.observe_catalog()
        goes_on(lifecycle, table)
        lifecycle.spark.sql(f"DROP TABLE {name}.db.replica")
        lifecycle.observe_catalog()
        if renamed:
            lifecycle.spark.sql(f"ALTER TABLE {name}.{table} RENAME TO db.replica")
            lifecycle.observe_catalog()
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE lifecycle.known_tables SET missing_since = clock_timestamp() - interval '20 days' "
                    "WHERE missing_since IS NOT NULL"
                )
            )
        before = files_of(place)
        for path in before:
            make_old(path, timedelta(days=60))

        # Every night.
        lifecycle.clear_dropped()

        assert {path for path in before if not path.exists()} == set()


def test_a_purge_keeps_what_a_person_keeps_when_the_original_takes_its_name(opened: Opened, tmp_path: Path) -> None:
    lifecycle = opened({**WITHOUT_COLD, "deletion": {"grace": "0s", "mode": "quarantine"}, "dropped": {"keep": "0s"}})
    table, name = make_original(lifecycle), lifecycle.config.catalogs.live.name
    place = replica_of(lifecycle, table, tmp_path)
    lifecycle.observe_catalog()
    goes_on(lifecycle, table)
    files = files_of(place)
    for path in files:
        make_old(path, timedelta(days=60))
    lifecycle.spark.sql(f"DROP TABLE {name}.db.replica")
    scan = lifecycle.scan_dropped("db.replica")
    lifecycle.approve(scan, who="ada", why="a test")
    lifecycle.delete_dropped(scan)
    assert not any(path.exists() for path in files)
    # Somebody asks for it.
    assert lifecycle.keep_dropped("db.replica", who="bob", why="we need it back").state == "kept"
    # The original takes the name.
    lifecycle.spark.sql(f"ALTER TABLE {name}.{table} RENAME TO db.replica")
    lifecycle.observe_catalog()
    [lost] = lifecycle.dropped_tables()
    assert lost.state == "kept"
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("UPDATE lifecycle.quarantines SET purge_after = clock_timestamp() - interval '1 day'"))

    with suppress(LifecycleError):
        lifecycle.purge_quarantine("db.replica")

    done = lifecycle.undrop(lost.table, as_name="db.back", who="bob", why="we need it back")
    assert done.missing == 0
    assert lifecycle.read("db.back").count() == 3


@pytest.mark.parametrize("looked", [True, False], ids=["looked-between", "one-night"])
def test_a_dropped_replica_stays_when_its_name_is_taken_in_the_same_night(
    opened: Opened,
    tmp_path: Path,
    looked: bool,
) -> None:
    lifecycle = opened({**WITHOUT_COLD, "dropped": {"keep": "30d"}})
    table, name = make_original(lifecycle), lifecycle.config.catalogs.live.name
    place = replica_of(lifecycle, table, tmp_path)
    pointer = lifecycle.get_current("db.replica").metadata_location
    goes_on(lifecycle, table)
    lifecycle.observe_catalog()
    # A swap by an engine, between two looks.
    lifecycle.spark.sql(f"DROP TABLE {name}.db.replica")
    if looked:
        lifecycle.observe_catalog()
    lifecycle.spark.sql(f"ALTER TABLE {name}.{table} RENAME TO db.replica")
    before = files_of(place)
    assert before

    with suppress(StaleMetadata):
        lifecycle.delete_orphans(lifecycle.scan_orphans("db.replica"))

    assert {path for path in before if not path.exists()} == set()
    [lost] = lifecycle.dropped_tables()
    assert lost.metadata_location == pointer


@pytest.mark.parametrize("renamed", [False, True], ids=["own-name", "name-taken"])
def test_a_dropped_second_name_in_the_same_folder_stays(opened: Opened, renamed: bool) -> None:
    lifecycle = opened({**WITHOUT_COLD, "dropped": {"keep": "30d"}})
    table, name = make_original(lifecycle), lifecycle.config.catalogs.live.name
    pointer = lifecycle.get_current(table).metadata_location
    place = Path(pointer.removeprefix("file:")).parents[1]
    lifecycle.spark.sql(f"CALL {name}.system.register_table(table => 'db.second', metadata_file => '{pointer}')")
    before = files_of(place)
    for number in (20, 21):
        lifecycle.spark.sql(f"INSERT INTO {name}.db.second VALUES ({number})")
    theirs = files_of(place) - before
    assert theirs
    lifecycle.observe_catalog()
    for _ in range(3):
        goes_on(lifecycle, table)
    lifecycle.observe_catalog()
    lifecycle.spark.sql(f"DROP TABLE {name}.db.second")
    lifecycle.keep_dropped("db.second", who="ada", why="it is still needed")
    if renamed:
        lifecycle.spark.sql(f"ALTER TABLE {name}.{table} RENAME TO db.second")
        table = "db.second"
    make_all_old(warehouse(lifecycle, "live"))

    with suppress(StaleMetadata):
        lifecycle.delete_orphans(lifecycle.scan_orphans(table))

    assert {path for path in theirs if not path.exists() and ".crc" not in path.name} == set()
    assert [each.state for each in lifecycle.dropped_tables()] == ["kept"]


@pytest.mark.parametrize("looked", [True, False], ids=["looked", "no-look-since"])
def test_what_the_other_name_that_came_back_has_to_archive_stays(opened: Opened, looked: bool) -> None:
    lifecycle = opened({**AT_ONCE, "dropped": {"keep": "10d"}})
    table_uuid, name = one_goes_on_and_two_is_dropped(lifecycle), lifecycle.config.catalogs.live.name
    plan = lifecycle.plan_expiration("db.one")
    files = {local(row["path"]) for row in plan.files().collect()}
    assert files and all(path.exists() for path in files)
    expire_in_metadata(lifecycle, "db.one", plan.expired_snapshots)
    # Dropped by mistake, and noticed.
    last = lifecycle.get_current("db.one").metadata_location
    lifecycle.observe_catalog()
    lifecycle.spark.sql(f"DROP TABLE {name}.db.one")
    lifecycle.observe_catalog()
    is_over(lifecycle, table_uuid)
    make_all_old(warehouse(lifecycle, "live"))
    scan = lifecycle.scan_dropped("db.two")
    lifecycle.approve(scan, who="ada", why="nobody needs the second name")
    # Taken back with an engine.
    lifecycle.spark.sql(f"CALL {name}.system.register_table(table => 'db.one', metadata_file => '{last}')")
    if looked:
        lifecycle.observe_catalog()

    with suppress(LifecycleError):
        lifecycle.delete_dropped(scan)

    assert {path for path in files if not path.exists()} == set()
    assert not lifecycle.hand_off(plan).lost
