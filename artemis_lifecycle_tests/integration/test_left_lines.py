"""What counts as a line that a table has left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.errors import LifecycleError, StaleMetadata
from artemis_lifecycle.operations.known_tables import KnownTables
from artemis_lifecycle_tests.cold_tier.test_put_back import Place, forget, make, opened, require_no_handoff
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.protection.foreign import make_all_old, warehouse

__all__ = ["make", "opened"]


@pytest.mark.parametrize("tried", [False, True], ids=["no-attempt", "a-writers-attempt"])
def test_an_attempt_that_lost_its_swap_is_no_line_that_the_table_left(make: Callable[..., Place], tried: bool) -> None:
    place = make(f"attempt_{tried}", 2)
    lifecycle = place.lifecycle
    place.run("INSERT INTO {t} VALUES (1, 1)", "INSERT INTO {t} VALUES (2, 2)")
    place.archive()
    place.run("INSERT INTO {t} VALUES (3, 3)")
    now = place.metadata.metadata_location
    if tried:
        # A writer dies between its metadata file and its swap: nobody ever saw it as the table.
        place.run("INSERT INTO {t} VALUES (4, 4)")
        attempt = place.metadata.metadata_location
        place.put_back(now)
        then = time.time() - 3 * 3600
        os.utime(local(attempt), (then, then))
        with pytest.raises(StaleMetadata):
            lifecycle.scan_orphans(place.table)
        # A person says so.
        assert lifecycle.settle_metadata(place.table, who="ada", why="the writer was killed")
    forget(place)
    place.run("INSERT INTO {t} VALUES (94, 94)")
    plan = lifecycle.plan_expiration(place.table)
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)


def test_a_commit_between_the_pointers_and_the_records_of_a_look_is_not_lost(
    make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(defaults={**AT_ONCE, "deletion": {"grace": "7d"}}, tables={"db.*": {}})
    with open_lifecycle(config, spark=spark) as lifecycle:
        spark.sql(f"CREATE NAMESPACE {lifecycle.config.catalogs.live.name}.db")
        place = Place(lifecycle, "t")
        spark.sql(f"CREATE TABLE {place.qualified} (id int, a int) USING iceberg")
        snapshot_id = place.run("INSERT INTO {t} VALUES (1, 1)")
        lifecycle.observe_catalog()
        uuid, right, done = place.metadata.table_uuid, KnownTables.of_catalog, []

        def of_catalog(self: KnownTables, catalog: str) -> Any:
            if not done:
                done.append(True)
                # Another process tags a snapshot, while this one has just read the pointers.
                lifecycle.tag(place.table, "audit", snapshot_id)
            return right(self, catalog)

        with monkeypatch.context() as patch:
            patch.setattr(KnownTables, "of_catalog", of_catalog)
            lifecycle.observe_catalog()
        assert done
        place.refresh()
        lost = lifecycle.operations.table_locations.lost_pointers(uuid)
        left = lifecycle.operations.table_locations.left_ms(uuid)
        # What comes of it: the table commits on, and the night's orphan scan.
        place.run("ALTER TABLE {t} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='1')")
        for number in range(3):
            place.run(f"INSERT INTO {{t}} VALUES ({number}, 7)")
        make_all_old(warehouse(lifecycle, "live"))
        problem = None
        try:
            lifecycle.scan_orphans(place.table)
        except LifecycleError as error:
            problem = error
        assert (lost, left, problem) == (frozenset(), 0, None)


@pytest.mark.parametrize("cleaned", [False, True], ids=["keeps-schemas", "clean-metadata"])
@pytest.mark.parametrize("tried", [False, True], ids=["no-attempt", "a-writers-attempt"])
def test_a_busy_table_whose_schemas_are_cleaned_is_archived_after_a_writer_died(
    make_config: MakeConfig, spark: SparkSession, tried: bool, cleaned: bool
) -> None:
    """Only the product's own steps, and one killed writer: no other tool, no backup."""
    cleaning: dict[str, Any] = {**AT_ONCE, "retention": {"window": "1ms", "clean_metadata": cleaned}}
    with open_lifecycle(make_config(defaults=cleaning, tables={"db.*": {}}), spark=spark) as lifecycle:
        spark.sql(f"CREATE NAMESPACE {lifecycle.config.catalogs.live.name}.db")
        place = Place(lifecycle, "t")
        spark.sql(f"CREATE TABLE {place.qualified} (id int, a int) USING iceberg")
        place.run("INSERT INTO {t} VALUES (1, 1)", "ALTER TABLE {t} ADD COLUMN b int")
        place.run("INSERT INTO {t} VALUES (2, 2, 2)", "INSERT INTO {t} VALUES (3, 3, 3)")
        place.archive()
        place.run("INSERT INTO {t} VALUES (4, 4, 4)")
        now = place.metadata.metadata_location
        if tried:
            place.run("INSERT INTO {t} VALUES (5, 5, 5)")
            attempt = place.metadata.metadata_location
            place.put_back(now)
            then = time.time() - 3 * 3600
            os.utime(local(attempt), (then, then))
            with pytest.raises(StaleMetadata):
                lifecycle.scan_orphans(place.table)
            assert lifecycle.settle_metadata(place.table, who="ada", why="the writer was killed")
        # A busy day: the log no longer reaches back to the last night.
        place.run("ALTER TABLE {t} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='2')")
        for number in range(4):
            place.run(f"INSERT INTO {{t}} VALUES ({number}, 9, 9)")
        plan = lifecycle.plan_expiration(place.table)
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)


@pytest.mark.parametrize("named", [False, True], ids=["no-other-name", "under-another-name"])
def test_a_look_finds_that_a_table_was_put_back_to_a_state_that_has_a_name(
    make: Callable[..., Place], named: bool
) -> None:
    """As test_a_line_that_was_left_stays_left_once_the_metadata_log_is_cut."""
    place = make(f"named_{named}", 2)
    lifecycle = place.lifecycle
    place.run("INSERT INTO {t} VALUES (1, 1)")
    backup = place.metadata.metadata_location
    place.run("INSERT INTO {t} VALUES (2, 2)")
    place.run("INSERT INTO {t} VALUES (3, 3)")
    place.archive()
    live = lifecycle.config.catalogs.live.name
    if named:
        # A person looks at the older state first, under a name of its own.
        lifecycle.spark.sql(
            f"CALL {live}.system.register_table(table => 'db.check', metadata_file => '{backup}')"
        ).collect()
        lifecycle.steps.observe()
    place.put_back(backup)
    lifecycle.steps.observe()  # The sensor, within the hour.
    if named:
        lifecycle.spark.sql(f"DROP TABLE {live}.db.check")
    forget(place)
    require_no_handoff(place)
