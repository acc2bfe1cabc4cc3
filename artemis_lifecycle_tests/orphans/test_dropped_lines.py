"""What is known of a dropped table of a uuid with several names: its last state, its row, and a person's word."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from artemis_lifecycle.errors import LifecycleError, StaleMetadata
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.expiration.aged import ids_of
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import (
    data_of,
    expire_in_metadata,
    ids,
    make_all_old,
    pointer,
    register,
    set_pointer,
    sql,
    warehouse,
)
from artemis_lifecycle_tests.protection.test_two_names_of_one_uuid import (
    Opened,
    goes_on,
    make_original,
    opened,
    replica_of,
)

__all__ = ["opened"]


@pytest.mark.parametrize("looked", [True, False], ids=["looked-between", "one-night"])
def test_a_refused_commit_is_no_last_state_of_a_table_set_apart(opened: Opened, tmp_path: Path, looked: bool) -> None:
    lifecycle = opened({**WITHOUT_COLD, "dropped": {"keep": "30d"}})
    table = make_original(lifecycle)
    replica_of(lifecycle, table, tmp_path)
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {lifecycle.config.catalogs.live.name}.db.replica VALUES (5)")
    lifecycle.observe_catalog()
    right, files = pointer(lifecycle, "db.replica"), data_of(lifecycle, "db.replica")
    assert len(files) == 4
    # A refused commit's metadata lies on top when the catalog is looked at.
    expire_in_metadata(lifecycle, "db.replica", ids_of(lifecycle, "db.replica")[:-1])
    set_pointer(lifecycle, "db.replica", right)
    lifecycle.observe_catalog()
    goes_on(lifecycle, table)
    lifecycle.observe_catalog()
    sql(lifecycle, "DROP TABLE {live}.db.replica")
    if looked:
        lifecycle.observe_catalog()
    sql(lifecycle, f"ALTER TABLE {{live}}.{table} RENAME TO db.replica")
    lifecycle.observe_catalog()
    [lost] = lifecycle.dropped_tables()
    assert lost.metadata_location == right
    with suppress(LifecycleError):
        lifecycle.undrop(lost.table, as_name="db.back", who="ada", why="a mistake")
        make_all_old(warehouse(lifecycle, "live"))
        with suppress(StaleMetadata):
            lifecycle.scan_orphans("db.back")
        # As the scan advises.
        lifecycle.settle_metadata("db.back", who="ada", why="the pointer is right")
        lifecycle.delete_orphans(lifecycle.scan_orphans("db.back"))
    assert {path for path in files if not path.exists()} == set()
    with suppress(LifecycleError):
        assert pointer(lifecycle, "db.back") == right


@pytest.mark.parametrize("third", [False, True], ids=["two-names", "a-third-name"])
def test_a_kept_dropped_table_stays_known_when_its_second_name_gets_another(opened: Opened, third: bool) -> None:
    lifecycle = opened({**WITHOUT_COLD, "dropped": {"keep": "30d"}})
    table = make_original(lifecycle)
    last, files = pointer(lifecycle, table), data_of(lifecycle, table)
    register(lifecycle, "db.two", last)
    lifecycle.observe_catalog()
    sql(lifecycle, f"DROP TABLE {{live}}.{table}")
    lifecycle.keep_dropped(table, who="ada", why="it is still needed")
    live = lifecycle.config.catalogs.live.name
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {live}.db.two VALUES (5)")
    plan = lifecycle.plan_expiration("db.two")
    lifecycle.commit_expiration(plan)
    # Its grace runs. Engines commit by day, between two looks.
    core_tables.sql(lifecycle.spark, f"INSERT INTO {live}.db.two VALUES (6)")
    if third:
        register(lifecycle, "db.three", pointer(lifecycle, "db.two"))
    lifecycle.observe_catalog()
    lifecycle.delete_files(plan)
    assert {path for path in files if not path.exists()} == set()
    assert [each.state for each in lifecycle.dropped_tables()] == ["kept"]
    assert lifecycle.undrop(table, who="ada", why="back").missing == 0


@pytest.mark.parametrize("busy", [False, True], ids=["log-reaches", "log-is-cut"])
def test_undrop_brings_no_state_of_the_other_name_back(opened: Opened, busy: bool) -> None:
    lifecycle = opened({**WITHOUT_COLD, "dropped": {"keep": "30d"}})
    table, live = make_original(lifecycle), lifecycle.config.catalogs.live.name
    last = pointer(lifecycle, table)
    register(lifecycle, "db.second", last)
    lifecycle.observe_catalog()
    sql(lifecycle, "DROP TABLE {live}.db.second")
    lifecycle.observe_catalog()
    most = 2 if busy else 100
    core_tables.sql(
        lifecycle.spark,
        f"ALTER TABLE {live}.{table} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='{most}')",
    )
    for number in (7, 8, 9, 10):
        core_tables.sql(lifecycle.spark, f"INSERT INTO {live}.{table} VALUES ({number})")
    lifecycle.observe_catalog()
    done = None
    with suppress(LifecycleError):
        done = lifecycle.undrop("db.second", who="ada", why="back")
    if done is not None:
        assert ids(lifecycle, "db.second") == [0, 1, 2]
        assert done.metadata_location == last


def test_a_table_that_is_registered_again_under_another_name_is_no_dropped_one(opened: Opened) -> None:
    lifecycle = opened({**WITHOUT_COLD, "dropped": {"keep": "30d"}})
    table = make_original(lifecycle)
    sql(lifecycle, "CREATE TABLE {live}.db.other (id int) USING iceberg")  # The namespace stays.
    lifecycle.observe_catalog()
    core_tables.sql(lifecycle.spark, f"INSERT INTO {lifecycle.config.catalogs.live.name}.{table} VALUES (3)")
    last = pointer(lifecycle, table)  # No look saw it.
    sql(lifecycle, f"DROP TABLE {{live}}.{table}")
    lifecycle.observe_catalog()
    assert lifecycle.undrop(table, as_name="db.back", who="ada", why="back").metadata_location == last
    assert lifecycle.dropped_tables() == []
