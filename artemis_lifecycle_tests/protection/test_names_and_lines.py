"""A name is not a line: what a reader took up stays when its name, pointer or row is taken by another."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle_tests.deaths import killed_at
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import (
    append,
    ids,
    make_all_old,
    overwrite,
    pointer,
    register,
    set_pointer,
    sql,
    take_up,
    warehouse,
)
from artemis_lifecycle_tests.protection.test_finding_10 import create
from artemis_lifecycle_tests.protection.test_two_names_of_one_uuid import (
    Opened,
    goes_on,
    make_original,
    opened,
    replica_of,
)

__all__ = ["opened"]


@pytest.mark.parametrize("looked", [True, False], ids=["looked-between", "no-look-yet"])
def test_what_a_dropped_replica_reads_of_a_third_table_stays(opened: Opened, tmp_path: Path, looked: bool) -> None:
    lifecycle = opened({**WITHOUT_COLD, "dropped": {"keep": "30d"}})
    owner = create(lifecycle, "db.owner")
    table = make_original(lifecycle)
    replica_of(lifecycle, table, tmp_path)
    [shared] = (owner / "data").glob("*.parquet")
    take_up(lifecycle, "db.replica", owner / "data")
    last = pointer(lifecycle, "db.replica")
    goes_on(lifecycle, table)
    lifecycle.observe_catalog()
    # A swap by an engine.
    sql(lifecycle, "DROP TABLE {live}.db.replica")
    if looked:
        lifecycle.observe_catalog()
    sql(lifecycle, f"ALTER TABLE {{live}}.{table} RENAME TO db.replica")
    if looked:
        lifecycle.observe_catalog()
    # The same night, another table's walk.
    overwrite(lifecycle, "db.owner", 2)
    with suppress(LifecycleError):
        lifecycle.expire("db.owner")
    lifecycle.observe_catalog()
    [lost] = lifecycle.dropped_tables()
    assert (lost.state, lost.metadata_location) == ("waiting", last)
    assert shared.exists()
    assert lifecycle.undrop(lost.table, as_name="db.back", who="ada", why="back").missing == 0


@pytest.mark.parametrize("looked_at", ["never", "under-another-name", "under-another-name-and-dropped"])
def test_what_a_reader_took_up_stays_when_it_is_put_back_to_a_state_that_has_a_name(
    all_of_db: Lifecycle, looked_at: str
) -> None:
    lifecycle = all_of_db
    owner = create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    [shared] = (owner / "data").glob("*.parquet")
    before = pointer(lifecycle, "db.reader")
    take_up(lifecycle, "db.reader", owner / "data")
    last = pointer(lifecycle, "db.reader")
    lifecycle.observe_catalog()
    if looked_at != "never":
        # A person looks at the older state first, under a name of its own.
        register(lifecycle, "db.check", before)
        lifecycle.observe_catalog()
    if looked_at == "under-another-name-and-dropped":
        sql(lifecycle, "DROP TABLE {live}.db.check")
        lifecycle.observe_catalog()
    set_pointer(lifecycle, "db.reader", before)
    lifecycle.observe_catalog()  # The sensor, within the hour.
    overwrite(lifecycle, "db.owner", 2)
    with suppress(LifecycleError):
        lifecycle.expire("db.owner")
    assert shared.exists()
    register(lifecycle, "db.again", last)
    assert ids(lifecycle, "db.again") == [1, 1]


@pytest.mark.parametrize("killed", [False, True], ids=["lives", "killed"])
def test_what_a_reader_took_up_stays_when_the_step_that_found_it_put_back_is_killed(
    all_of_db: Lifecycle, killed: bool
) -> None:
    lifecycle = all_of_db
    owner = create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    [shared] = (owner / "data").glob("*.parquet")
    before = pointer(lifecycle, "db.reader")
    take_up(lifecycle, "db.reader", owner / "data")
    last = pointer(lifecycle, "db.reader")
    lifecycle.observe_catalog()
    set_pointer(lifecycle, "db.reader", before)
    if killed:
        with killed_at("table_locations.saw:before"):
            lifecycle.plan_expiration("db.reader")
    else:
        lifecycle.plan_expiration("db.reader")
    lifecycle.observe_catalog()
    overwrite(lifecycle, "db.owner", 2)
    with suppress(LifecycleError):
        lifecycle.expire("db.owner")
    assert shared.exists()
    register(lifecycle, "db.again", last)
    assert ids(lifecycle, "db.again") == [1, 1]


@pytest.mark.parametrize("second", [False, True], ids=["alone", "once-had-a-second-name"])
def test_what_a_reader_took_up_waits_while_a_manifest_of_its_lost_commit_cannot_be_read(
    all_of_db: Lifecycle, second: bool
) -> None:
    lifecycle = all_of_db
    owner = create(lifecycle, "db.owner")
    reader = create(lifecycle, "db.reader")
    [shared] = (owner / "data").glob("*.parquet")
    if second:
        register(lifecycle, "db.second", pointer(lifecycle, "db.reader"))
        lifecycle.observe_catalog()
        sql(lifecycle, "DROP TABLE {live}.db.second")
        lifecycle.observe_catalog()
        with lifecycle.operations.engine.begin() as connection:  # Long ago: its files are deleted.
            connection.execute(
                text("UPDATE lifecycle.known_tables SET gone_at = clock_timestamp() WHERE missing_since IS NOT NULL")
            )
    append(lifecycle, "db.reader", 5)
    before, known = pointer(lifecycle, "db.reader"), set((reader / "metadata").glob("*-m*.avro"))
    take_up(lifecycle, "db.reader", owner / "data")
    last = pointer(lifecycle, "db.reader")
    lifecycle.observe_catalog()
    set_pointer(lifecycle, "db.reader", before)
    lifecycle.observe_catalog()
    [manifest] = set((reader / "metadata").glob("*-m*.avro")) - known
    manifest.rename(manifest.with_suffix(".aside"))  # For a while.
    overwrite(lifecycle, "db.owner", 2)
    with suppress(LifecycleError):
        lifecycle.expire("db.owner")
    manifest.with_suffix(".aside").rename(manifest)
    assert shared.exists()
    register(lifecycle, "db.again", last)
    assert ids(lifecycle, "db.again") == [1, 1, 5]


@pytest.mark.parametrize("looked", ["after", "between", "never"])
def test_what_a_dropped_reader_reads_stays_though_its_name_is_taken(
    opened: Opened, tmp_path: Path, looked: str
) -> None:
    lifecycle = opened({**WITHOUT_COLD, "dropped": {"keep": "30d"}})
    table, name = make_original(lifecycle), lifecycle.config.catalogs.live.name
    owner = create(lifecycle, "db.owner")
    [shared] = (owner / "data").glob("*.parquet")
    replica_of(lifecycle, table, tmp_path)
    take_up(lifecycle, "db.replica", owner / "data")
    lifecycle.observe_catalog()
    goes_on(lifecycle, table)
    lifecycle.observe_catalog()
    pointer = lifecycle.get_current("db.replica").metadata_location
    lifecycle.spark.sql(f"DROP TABLE {name}.db.replica")
    if looked == "between":
        lifecycle.observe_catalog()
    lifecycle.spark.sql(f"ALTER TABLE {name}.{table} RENAME TO db.replica")
    if looked == "after":
        lifecycle.observe_catalog()
    overwrite(lifecycle, "db.owner", 9)
    make_all_old(warehouse(lifecycle, "live"))

    with suppress(LifecycleError):
        lifecycle.expire("db.owner")

    assert shared.exists()
    lifecycle.spark.sql(f"CALL {name}.system.register_table(table => 'db.back', metadata_file => '{pointer}')")
    assert len(lifecycle.read("db.back").collect()) == 4
