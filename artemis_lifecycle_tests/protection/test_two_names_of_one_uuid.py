"""Two names of one uuid are two tables: a replica as Iceberg's `rewrite_table_path` makes it, which has the same names
of files too, and a table that was registered twice. What is known of one says nothing of the other."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.deletion.report import RECEIPTS
from artemis_lifecycle.errors import LifecycleError, Refused, StaleMetadata
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import killed_at
from artemis_lifecycle_tests.deletion.world import local, make_old
from artemis_lifecycle_tests.policies import AT_ONCE, WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import (
    expire_in_metadata,
    make_all_old,
    make_history,
    overwrite,
    take_up,
    warehouse,
)
from artemis_lifecycle_tests.protection.test_finding_10 import bring_back, create, drop, is_over

Opened = Callable[[dict[str, Any]], Lifecycle]


@pytest.fixture
def opened(make_config: MakeConfig, spark: SparkSession) -> Iterator[Opened]:
    """Opens a lifecycle whose policy for the tables of namespace db is this."""
    with ExitStack() as stack:
        yield lambda policy: stack.enter_context(
            open_lifecycle(make_config(defaults=policy, tables={"db.*": {}}), spark=spark)
        )


def replica_of(lifecycle: Lifecycle, table: str, tmp_path: Path) -> Path:
    """As Iceberg makes one, file by file: the same uuid, and the same names of files."""
    name, pointer = lifecycle.config.catalogs.live.name, lifecycle.get_current(table).metadata_location
    source = pointer.rpartition("/metadata/")[0]
    target = f"{source.rpartition('/')[0]}/replica"
    row = lifecycle.spark.sql(
        f"CALL {name}.system.rewrite_table_path(table => '{table}', source_prefix => '{source}', "
        f"target_prefix => '{target}', staging_location => 'file:{tmp_path}/staging')"
    ).collect()[0]
    with local(row["file_list_location"]).open() as file:
        for one, other in (line for line in csv.reader(file) if line):
            local(other).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(local(one), local(other))
    at = f"{target}/metadata/{row['latest_version']}"
    assert at.rpartition("/")[2] == pointer.rpartition("/")[2]
    lifecycle.spark.sql(f"CALL {name}.system.register_table(table => 'db.replica', metadata_file => '{at}')")
    return local(target)


def make_original(lifecycle: Lifecycle) -> str:
    """Make a table of three rows, and return its name."""
    table, name = "db.original", lifecycle.config.catalogs.live.name
    place = f"{warehouse(lifecycle, 'live')}/db/original"
    lifecycle.spark.sql(f"CREATE TABLE {name}.{table} (id BIGINT) USING iceberg LOCATION 'file:{place}'")
    for number in range(3):
        core_tables.sql(lifecycle.spark, f"INSERT INTO {name}.{table} VALUES ({number})")
    return table


def goes_on(lifecycle: Lifecycle, table: str, rows: str = "({})") -> None:
    """A busy table: its metadata log no longer reaches back to the replica's version."""
    name = lifecycle.config.catalogs.live.name
    core_tables.sql(
        lifecycle.spark, f"ALTER TABLE {name}.{table} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='1')"
    )
    for number in (7, 8, 9):
        core_tables.sql(lifecycle.spark, f"INSERT INTO {name}.{table} VALUES {rows.format(number)}")


def one_goes_on_and_two_is_dropped(lifecycle: Lifecycle) -> str:
    """Make a table, give it a second name, move the first elsewhere, and drop the second. Return their uuid."""
    make_history(lifecycle, "one")
    name = lifecycle.config.catalogs.live.name
    pointer = lifecycle.get_current("db.one").metadata_location
    lifecycle.spark.sql(f"CALL {name}.system.register_table(table => 'db.two', metadata_file => '{pointer}')")
    lifecycle.observe_catalog()
    elsewhere = f"file://{warehouse(lifecycle, 'live')}/db/moved"
    core_tables.sql(lifecycle.spark, f"ALTER TABLE {name}.db.one SET LOCATION '{elsewhere}'")
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {name}.db.one VALUES (9, 0), (9, 2)")
    lifecycle.spark.sql(f"DROP TABLE {name}.db.two")
    lifecycle.observe_catalog()
    return lifecycle.steps.table_uuid("db.one")


@pytest.mark.parametrize("looked", [False, True], ids=["never-dropped", "dropped-once-and-taken-back"])
def test_a_dropped_replica_that_a_person_keeps_stays(opened: Opened, tmp_path: Path, looked: bool) -> None:
    lifecycle = opened({**WITHOUT_COLD, "dropped": {"keep": "30d"}})
    table, name = make_original(lifecycle), lifecycle.config.catalogs.live.name
    pointer = lifecycle.get_current(table).metadata_location
    lifecycle.observe_catalog()
    if looked:
        # Dropped by mistake; the scan of what is left asks a person, who takes the table back.
        lifecycle.spark.sql(f"DROP TABLE {name}.{table}")
        lifecycle.scan_dropped(table)
        lifecycle.spark.sql(f"CALL {name}.system.register_table(table => '{table}', metadata_file => '{pointer}')")
    place = replica_of(lifecycle, table, tmp_path)
    lifecycle.observe_catalog()
    goes_on(lifecycle, table)
    lifecycle.spark.sql(f"DROP TABLE {name}.db.replica")
    lifecycle.keep_dropped("db.replica", who="ada", why="the replica is still needed")
    before = {path for path in place.rglob("*") if path.is_file() and RECEIPTS not in path.parts}
    assert before

    with suppress(StaleMetadata):
        lifecycle.delete_orphans(lifecycle.scan_orphans(table))

    assert {path for path in before if not path.exists()} == set()
    assert lifecycle.undrop("db.replica", who="ada", why="back").missing == 0
    lifecycle.spark.catalog.clearCache()
    assert sorted(row["id"] for row in lifecycle.read("db.replica").collect()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("by", "when"),
    [("replica", "before"), ("original", "before"), ("original", "meanwhile"), ("none-lives-on", "meanwhile")],
)
def test_a_purge_keeps_what_a_person_keeps_of_a_dropped_replica(
    opened: Opened, tmp_path: Path, by: str, when: str
) -> None:
    lifecycle = opened({**WITHOUT_COLD, "deletion": {"grace": "0s", "mode": "quarantine"}, "dropped": {"keep": "0s"}})
    table, name = make_original(lifecycle), lifecycle.config.catalogs.live.name
    # The namespace stays.
    lifecycle.spark.sql(f"CREATE TABLE {name}.db.bystander (id BIGINT) USING iceberg")
    place = replica_of(lifecycle, table, tmp_path)
    lifecycle.observe_catalog()
    goes_on(lifecycle, table)
    files = {path for path in place.rglob("*") if path.is_file() and RECEIPTS not in path.parts}
    for path in files:
        make_old(path, timedelta(days=60))
    lifecycle.spark.sql(f"DROP TABLE {name}.db.replica")
    scan = lifecycle.scan_dropped("db.replica")
    lifecycle.approve(scan, who="ada", why="a test")
    lifecycle.delete_dropped(scan)
    assert not any(path.exists() for path in files)
    if by == "none-lives-on":
        lifecycle.spark.sql(f"DROP TABLE {name}.{table}")
        lifecycle.observe_catalog()
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("UPDATE lifecycle.quarantines SET purge_after = clock_timestamp() - interval '1 day'"))

    asked = ["quarantines.record:before"]

    def somebody_asks_for_it(reached: str) -> None:
        # During the purge: after it has looked at the decisions, before it deletes the first file.
        if reached in asked:
            asked.remove(reached)
            assert lifecycle.keep_dropped("db.replica", who="bob", why="we need it back").state == "kept"

    if when == "before":
        somebody_asks_for_it(asked[0])
    with crash_points.installed(somebody_asks_for_it), suppress(Refused):
        # The schedule runs it for the name that the uuid has now.
        lifecycle.purge_quarantine(table if by == "original" else "db.replica")
    assert not asked

    done = lifecycle.undrop("db.replica", who="bob", why="we need it back")
    assert done.missing == 0
    assert lifecycle.read("db.replica").count() == 3


@pytest.mark.parametrize("begun", [False, True], ids=["never-begun", "begun-and-taken-back"])
def test_what_a_dropped_reader_reads_waits_while_a_manifest_is_unreadable(opened: Opened, begun: bool) -> None:
    lifecycle = opened({**WITHOUT_COLD, "dropped": {"keep": "10d"}})
    owner, reader = create(lifecycle, "db.owner"), create(lifecycle, "db.reader")
    take_up(lifecycle, "db.reader", owner / "data")
    metadata = lifecycle.get_current("db.reader").metadata_location
    if begun:
        uuid = drop(lifecycle, "db.reader")
        is_over(lifecycle, uuid)
        scan = lifecycle.scan_dropped(uuid)
        lifecycle.approve(scan, who="ada", why="a mistake")
        with killed_at("deletion.seal_batches:before"):
            lifecycle.delete_dropped(scan)
        # Nothing is deleted yet; a person takes the table back with an engine.
        assert len(bring_back(lifecycle, "db.reader", metadata)) == 2
    drop(lifecycle, "db.reader")
    overwrite(lifecycle, "db.owner", 9)
    manifests = sorted((reader / "metadata").glob("*-m*.avro"))
    assert manifests
    for path in manifests:
        path.rename(path.with_suffix(".aside"))

    with suppress(LifecycleError):
        lifecycle.expire("db.owner")

    for path in manifests:
        path.with_suffix(".aside").rename(path)
    assert len(bring_back(lifecycle, "db.reader", metadata)) == 2


def test_what_the_other_name_of_a_dropped_table_has_to_archive_stays(opened: Opened) -> None:
    lifecycle = opened({**AT_ONCE, "dropped": {"keep": "10d"}})
    table_uuid = one_goes_on_and_two_is_dropped(lifecycle)
    is_over(lifecycle, table_uuid)
    make_all_old(warehouse(lifecycle, "live"))
    plan = lifecycle.plan_expiration("db.one")
    files = {local(row["path"]) for row in plan.files().collect()}
    assert files and all(path.exists() for path in files)
    expire_in_metadata(lifecycle, "db.one", plan.expired_snapshots)
    make_all_old(warehouse(lifecycle, "live"))

    with suppress(LifecycleError):
        scan = lifecycle.scan_dropped("db.two")
        lifecycle.approve(scan, who="ada", why="nobody needs the second name")
        lifecycle.delete_dropped(scan)

    assert {path for path in files if not path.exists()} == set()
    assert not lifecycle.hand_off(plan).lost


@pytest.mark.parametrize("replicated", [False, True], ids=["alone", "with-a-replica"])
def test_what_an_overtaken_plan_has_to_archive_stays(opened: Opened, tmp_path: Path, replicated: bool) -> None:
    lifecycle = opened({**AT_ONCE, "dropped": {"keep": "10d"}})
    table, name = "db.original", lifecycle.config.catalogs.live.name
    live = warehouse(lifecycle, "live")
    core_tables.sql(lifecycle.spark, f"CREATE NAMESPACE IF NOT EXISTS {name}.db")
    core_tables.sql(
        lifecycle.spark,
        f"CREATE TABLE {name}.{table} (id INT, part INT) USING iceberg PARTITIONED BY (part) "
        f"LOCATION 'file:{live}/db/original'",
    )
    core_tables.append(lifecycle.spark, f"{name}.{table}", [(0, 0), (100, 1)])
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {name}.{table} PARTITION (part = 0) VALUES (1)")
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {name}.{table} VALUES (2, 0), (200, 1)")
    first, second = [each.snapshot_id for each in lifecycle.snapshot_history(table).snapshots][:2]
    read = sorted(
        local(row["file_path"])
        for row in core_tables.answer(
            lifecycle.spark, f"SELECT file_path FROM {name}.{table}.files VERSION AS OF {first}"
        )
    )
    assert len(read) == 2
    if replicated:
        replica_of(lifecycle, table, tmp_path)
    lifecycle.observe_catalog()
    goes_on(lifecycle, table, "({}, 0)")
    # The second snapshot stays.
    began = lifecycle.steps.table_state(table).metadata.snapshots_by_id[second].timestamp_ms
    plan = lifecycle.plan_expiration(table, older_than=datetime.fromtimestamp(began / 1000, UTC))
    assert plan.expired_snapshots == (first,)
    expire_in_metadata(lifecycle, table, [first, second])
    make_all_old(live)

    with suppress(LifecycleError):
        lifecycle.delete_orphans(lifecycle.scan_orphans(table))

    assert all(path.exists() for path in read)
    assert not lifecycle.hand_off(plan).lost


@pytest.mark.parametrize("renamed", [False, True], ids=["own-name", "name-of-the-dropped-one"])
def test_a_dropped_replica_stays_when_the_original_takes_its_name(
    opened: Opened, tmp_path: Path, renamed: bool
) -> None:
    lifecycle = opened({**WITHOUT_COLD, "dropped": {"keep": "30d"}})
    table, name = make_original(lifecycle), lifecycle.config.catalogs.live.name
    place = replica_of(lifecycle, table, tmp_path)
    pointer = lifecycle.get_current("db.replica").metadata_location
    lifecycle.observe_catalog()
    goes_on(lifecycle, table)
    lifecycle.spark.sql(f"DROP TABLE {name}.db.replica")
    lifecycle.keep_dropped("db.replica", who="ada", why="it is still needed")
    if renamed:
        lifecycle.spark.sql(f"ALTER TABLE {name}.{table} RENAME TO db.replica")
        table = "db.replica"
    before = {path for path in place.rglob("*") if path.is_file() and RECEIPTS not in path.parts}
    assert before

    with suppress(StaleMetadata):
        lifecycle.delete_orphans(lifecycle.scan_orphans(table))

    assert {path for path in before if not path.exists()} == set()
    [lost] = lifecycle.dropped_tables()
    assert (lost.state, lost.table.startswith("db.replica"), lost.metadata_location) == ("kept", True, pointer)
    assert lifecycle.undrop(lost.table, as_name="db.back", who="ada", why="it is needed").missing == 0
    assert lifecycle.read("db.back").count() == 3
