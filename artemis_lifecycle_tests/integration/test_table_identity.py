"""A name is not a table: what was recorded of a table by its uuid is never done to another one with its name."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.contracts.summary import COMMIT_PROPERTY
from artemis_lifecycle.deletion.report import RECEIPTS
from artemis_lifecycle.errors import (
    BadInput,
    Busy,
    GraceNotOver,
    LifecycleError,
    LineageRejected,
    NoSuchTable,
    PlanStateError,
    Refused,
    StaleMetadata,
    StalePlan,
    UnreadableMetadata,
)
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.walk.undrop import Undropped
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import Killed
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table, set_ages
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.protection.foreign import set_pointer

POLICY: dict[str, Any] = {
    **AT_ONCE,
    "cold_tier": {"enabled": False},
    "deletion": {"grace": "0s"},
    "orphans": {"min_age": "0s", "min_age_floor": "0s"},
    "dropped": {"keep": "30d"},
    "lineage": {"mode": "report"},
}


@pytest.fixture
def lifecycle(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    with open_lifecycle(make_config(defaults=POLICY, tables={"db.*": {}}), spark=spark) as opened:
        yield opened


def _name(lifecycle: Lifecycle) -> str:
    return lifecycle.config.catalogs.live.name


def _uuid(lifecycle: Lifecycle, table: str) -> str:
    return lifecycle.steps.table_uuid(table)


def _place(lifecycle: Lifecycle, table: str) -> Path:
    return local(lifecycle.steps.table_state(table).metadata.location)


def _files(place: Path) -> set[Path]:
    return {path for path in place.rglob("*") if path.is_file() and RECEIPTS not in path.parts}


def test_a_commit_after_a_writer_whose_clock_was_ahead_says_when_to_try_again(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "ahead", 3)
    set_ages(lifecycle, table, [timedelta(days=2), timedelta(days=1), -timedelta(minutes=30)])
    plan = lifecycle.plan_expiration(table)
    rows = lifecycle.spark.createDataFrame([(1,)], "id int")
    for commit in (
        lambda: lifecycle.commit_expiration(plan),
        lambda: lifecycle.tag(table, "kept", ids_of(lifecycle, table)[0]),
        lambda: lifecycle.append(table, rows, {}),
    ):
        with pytest.raises(Busy, match=r"lies (29|30) minutes ahead of this host's clock.*try again at \d{4}-") as said:
            commit()
        assert "contradicts" not in str(said.value) and said.value.table == table


def test_a_sweep_keeps_what_a_table_dropped_after_the_mark_left_where_its_name_was_made_again(
    lifecycle: Lifecycle,
) -> None:
    table, stays = make_table(lifecycle, "again", 2), make_table(lifecycle, "stays", 1)
    marked = lifecycle.mark(lifecycle.config.catalogs.live.name)
    before, place = _uuid(lifecycle, table), _place(lifecycle, table)
    assert {each.table_uuid for each in lifecycle.operations.known_tables.of_catalog(_name(lifecycle))} >= {before}
    assert lifecycle.operations.table_locations.of_table(before)
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
    files = _files(place)
    make_table(lifecycle, "again", 1)
    after = _uuid(lifecycle, table)

    swept = {each.table: each for each in lifecycle.sweep(marked.live_set_id, deferred=False).tables}

    assert f"{after}, not {before}" in (swept[table].error or "") and swept[stays].error is None
    assert files <= _files(place)
    # Nor does an orphan scan of the new table take them: they wait for dropped.keep, and for approval.
    lifecycle.delete_orphans(lifecycle.scan_orphans(table))
    assert files <= _files(place) and lifecycle.read(table).count() == 1
    (gone,) = lifecycle.dropped_tables()
    assert (gone.table_uuid, gone.state) == (before, "waiting")
    with pytest.raises(GraceNotOver):
        lifecycle.delete_dropped(lifecycle.scan_dropped(before))


def test_what_was_recorded_of_a_table_goes_on_under_its_new_name(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "old", 3)
    committed = lifecycle.plan_expiration(table)
    lifecycle.commit_expiration(committed)
    (_place(lifecycle, table) / "data" / "orphan.parquet").write_bytes(b"1")
    scan = lifecycle.scan_orphans(table)
    hold = lifecycle.hold(table, "ada", "a consumer", ids_of(lifecycle, table)[-1:], kind="consumer", ttl="1h")
    core_tables.sql(lifecycle.spark, f"INSERT INTO {_name(lifecycle)}.{table} VALUES (7)")
    lifecycle.spark.sql(f"ALTER TABLE {_name(lifecycle)}.{table} RENAME TO db.new")
    # The old name is another table's by now.
    elsewhere = f"{lifecycle.config.catalogs.live.warehouse}/db/elsewhere"
    lifecycle.spark.sql(
        f"CREATE TABLE {_name(lifecycle)}.db.old USING iceberg LOCATION '{elsewhere}' AS SELECT 1 AS id"
    )
    others = _files(_place(lifecycle, "db.old"))

    assert lifecycle.advance(hold.hold_id, ids_of(lifecycle, "db.new")[-1]).hold_id == hold.hold_id
    assert lifecycle.delete_orphans(scan).deleted == 1
    report = lifecycle.delete_files(committed)
    assert (report.deleted > 0, report.failed) == (True, 0)
    assert lifecycle.read("db.new").count() == 4 and lifecycle.read("db.old").count() == 1
    assert others <= _files(_place(lifecycle, "db.old"))


def test_nothing_recorded_of_a_dropped_table_is_done_to_the_one_that_has_its_name(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "taken", 3)
    listing = lifecycle.list_objects(table)
    committed = lifecycle.plan_expiration(table)
    lifecycle.commit_expiration(committed)
    scan = lifecycle.scan_orphans(table)
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {_name(lifecycle)}.{table} VALUES (7)")
    waiting = lifecycle.plan_expiration(table)
    hold = lifecycle.hold(table, "ada", "a consumer", ids_of(lifecycle, table)[-1:], kind="consumer", ttl="1h")
    before = _uuid(lifecycle, table)
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
    make_table(lifecycle, "taken", 2)
    after, snapshots = _uuid(lifecycle, table), ids_of(lifecycle, table)
    files = _files(_place(lifecycle, table))

    for act in (
        lambda: lifecycle.commit_expiration(waiting),
        lambda: lifecycle.commit_expiration(waiting, dry_run=True),
        lambda: lifecycle.hand_off(waiting),
        lambda: lifecycle.delete_files(committed),
        lambda: lifecycle.delete_files(committed, dry_run=True),
        lambda: lifecycle.delete_orphans(scan),
        lambda: lifecycle.delete_orphans(scan, dry_run=True),
        lambda: lifecycle.scan_orphans(table, listing=listing),
        lambda: lifecycle.advance(hold.hold_id, snapshots[0]),
    ):
        with pytest.raises(StalePlan, match=f"{after}, not {before}"):
            act()
    assert ids_of(lifecycle, table) == snapshots and _files(_place(lifecycle, table)) == files


@pytest.mark.parametrize("seen", [False, True])
def test_a_plan_of_a_dropped_table_is_never_committed_to_its_replica(lifecycle: Lifecycle, seen: bool) -> None:
    """As Iceberg's rewrite_table_path makes one: the same uuid and snapshots, in a place of its own."""
    table = make_table(lifecycle, "original", 3)
    plan = lifecycle.plan_expiration(table)
    pointer = local(lifecycle.steps.table_state(table).metadata.metadata_location)
    replica = pointer.parents[2] / "replica" / "metadata"
    replica.mkdir(parents=True)
    metadata = json.loads(pointer.read_text())
    metadata |= {"location": f"file:{replica.parent}", "metadata-log": []}
    (replica / pointer.name).write_text(json.dumps(metadata))
    register = f"CALL {_name(lifecycle)}.system.register_table(table => 'db.replica', metadata_file => '%s')"
    lifecycle.spark.sql(register % f"file:{replica}/{pointer.name}")
    if seen:
        lifecycle.observe_catalog()
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
    with pytest.raises(NoSuchTable, match="continue"):
        lifecycle.commit_expiration(plan)
    assert len(ids_of(lifecycle, "db.replica")) == 3


def test_a_name_that_gets_another_table_before_the_lease_stops_the_step(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "race", 2)
    state = lifecycle.steps.table_state(table)
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
    make_table(lifecycle, "race", 1)
    with pytest.raises(StalePlan, match=state.metadata.table_uuid), lifecycle.steps.run(state, "deletion"):
        pytest.fail("the step began")


def test_two_names_of_one_uuid_are_two_readers_of_shared_files(lifecycle: Lifecycle) -> None:
    one = make_table(lifecycle, "one", 3)
    name, pointer = _name(lifecycle), lifecycle.steps.table_state(one).metadata.metadata_location
    lifecycle.spark.sql(f"CALL {name}.system.register_table(table => 'db.two', metadata_file => '{pointer}')")
    assert _uuid(lifecycle, "db.two") == _uuid(lifecycle, one)
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {name}.db.one VALUES (8), (9)")
    core_tables.sql(lifecycle.spark, f"INSERT INTO {name}.db.two VALUES (5)")
    for table in (one, "db.two", one):
        lifecycle.expire(table)
        with suppress(StaleMetadata):
            lifecycle.delete_orphans(lifecycle.scan_orphans(table))
        lifecycle.spark.catalog.clearCache()
        assert sorted(row["id"] for row in lifecycle.read(one).collect()) == [8, 9]
        assert sorted(row["id"] for row in lifecycle.read("db.two").collect()) == [0, 1, 2, 5]


def _undropped(lifecycle: Lifecycle, table: str, **options: Any) -> Undropped:
    done = lifecycle.undrop(table, **options)
    lifecycle.spark.catalog.clearCache()
    assert lifecycle.dropped_tables() == [] or done.table_uuid not in {
        each.table_uuid for each in lifecycle.dropped_tables()
    }
    return done


def test_a_dropped_table_comes_back_with_its_last_commits_and_its_open_scan_is_closed(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "back", 2)
    lifecycle.observe_catalog()
    # Nothing of this product saw these commits.
    for number in (7, 8):
        core_tables.sql(lifecycle.spark, f"INSERT INTO {_name(lifecycle)}.{table} VALUES ({number})")
    pointer, table_uuid = lifecycle.get_current(table).metadata_location, _uuid(lifecycle, table)
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
    scan = lifecycle.scan_dropped(table)

    done = _undropped(lifecycle, table, who="ada", why="dropped by mistake")

    assert (done.table, done.table_uuid, done.metadata_location, done.missing) == (table, table_uuid, pointer, 0)
    assert sorted(row["id"] for row in lifecycle.read(table).collect()) == [0, 1, 7, 8]
    assert lifecycle.operations.scans.get(scan.scan_id).state == "closed"
    with pytest.raises(PlanStateError):
        lifecycle.approve(scan, who="ada", why="too late")
    with pytest.raises(StalePlan, match="in the catalog again"):
        lifecycle.delete_dropped(scan)
    decision = lifecycle.operations.decisions.about(table_uuid)[-1]
    assert (decision.kind, decision.who, decision.why) == ("undrop", "ada", "dropped by mistake")
    rows = lifecycle._recording.rows(["table_uuid", "operation", "trigger_operator", "metadata_location"], table_uuid)
    assert [row for row in rows.to_pylist() if row["operation"] == "undrop"] == [
        {
            "table_uuid": table_uuid,
            "operation": "undrop",
            "trigger_operator": "ada",
            "metadata_location": pointer,
        }
    ]
    with pytest.raises(NoSuchTable):
        lifecycle.undrop(table)
    core_tables.sql(lifecycle.spark, f"INSERT INTO {_name(lifecycle)}.{table} VALUES (9)")
    assert lifecycle.read(table).count() == 5


@pytest.mark.parametrize("killed_at", [None, "table_locations.made:before"])
def test_a_dropped_table_comes_back_with_the_last_commit_of_the_lifecycle_itself(
    lifecycle: Lifecycle, killed_at: str | None
) -> None:
    def die(name: str) -> None:
        if name == killed_at:
            raise Killed(name)

    table = make_table(lifecycle, "own", 2)
    with suppress(Killed), crash_points.installed(die):
        lifecycle.tag(table, "audit", ids_of(lifecycle, table)[0])
    pointer = lifecycle.resources.live_catalog.entry(table).metadata_location
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
    lifecycle.observe_catalog()
    assert _undropped(lifecycle, table).metadata_location == pointer
    assert "audit" in lifecycle.snapshot_history(table).refs


@pytest.mark.parametrize("then", ["close", "hold", "look"])
def test_an_undrop_leaves_out_a_commit_that_died_before_its_swap(lifecycle: Lifecycle, then: str) -> None:
    def die(name: str) -> None:
        if name == "table_locations.made:before":
            raise Killed(name)

    table = make_table(lifecycle, "dead", 2)
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {_name(lifecycle)}.{table} VALUES (7)")
    ids, pointer = ids_of(lifecycle, table), lifecycle.get_current(table).metadata_location
    plan = lifecycle.plan_expiration(table)
    with pytest.raises(Killed), crash_points.installed(die):
        lifecycle.commit_expiration(plan)
    assert lifecycle.resources.live_catalog.entry(table).metadata_location != pointer
    set_pointer(lifecycle, table, pointer)
    if then == "close":
        lifecycle.close_plan(plan, who="ada", why="not yet")
    elif then == "hold":
        lifecycle.hold(table, "legal", "case", ids[:1])
    else:
        lifecycle.observe_catalog()
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")

    assert _undropped(lifecycle, table).metadata_location == pointer
    assert ids_of(lifecycle, table) == ids


@pytest.mark.parametrize("look", ["observe", "plan", "take over"])
def test_an_undrop_registers_no_file_that_was_there_when_the_catalog_had_another(
    lifecycle: Lifecycle, look: str
) -> None:
    """A commit that died before its swap, a moment before somebody looked, and long before the hourly record."""
    table = make_table(lifecycle, "lost", 1)
    pointer = lifecycle.get_current(table).metadata_location
    core_tables.sql(lifecycle.spark, f"INSERT INTO {_name(lifecycle)}.{table} VALUES (7)")
    refused = local(lifecycle.get_current(table).metadata_location)
    set_pointer(lifecycle, table, pointer)
    lifecycle.observe_catalog()
    time.sleep(0.1)
    written = (datetime.now(UTC) - timedelta(milliseconds=50)).timestamp()
    os.utime(refused, (written, written))
    if look == "observe":
        lifecycle.observe_catalog()
    elif look == "plan":
        lifecycle.plan_expiration(table)
    else:
        lifecycle.take_over(who="ada", why="its database came back from a backup")
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
    with pytest.raises(Refused, match="were there when it was last seen") as named:
        lifecycle.undrop(table)
    assert refused.name in named.value.what and local(pointer).name in named.value.what
    assert table not in lifecycle.tables()


def test_an_undrop_does_not_step_over_a_newest_file_that_is_damaged(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "cut", 1)
    lifecycle.observe_catalog()
    core_tables.sql(lifecycle.spark, f"INSERT INTO {_name(lifecycle)}.{table} VALUES (7)")
    newest = local(lifecycle.resources.live_catalog.entry(table).metadata_location)
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnreadableMetadata, match=re.escape(newest.name)):
        lifecycle.undrop(table)
    newest.write_bytes(whole)
    assert _undropped(lifecycle, table).metadata_location.endswith(newest.name)


def test_an_undrop_takes_no_name_that_a_table_or_a_view_has_and_no_guess_among_several(lifecycle: Lifecycle) -> None:
    uuids = []
    for rows in (1, 2):
        uuids.append(_uuid(lifecycle, make_table(lifecycle, "twice", rows)))
        lifecycle.observe_catalog()
        lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.db.twice")
        lifecycle.observe_catalog()
    with pytest.raises(BadInput) as several:
        lifecycle.undrop("db.twice")
    assert all(f"{each} (missed since 20" in str(several.value) for each in uuids)
    lifecycle.spark.sql(f"CREATE VIEW {_name(lifecycle)}.db.twice AS SELECT 1 AS id")
    with pytest.raises(Refused, match=r"a view with the name db\.twice"):
        lifecycle.undrop("db.twice", uuids[0])
    lifecycle.spark.sql(f"DROP VIEW {_name(lifecycle)}.db.twice")
    assert _undropped(lifecycle, "db.twice", uuid=uuids[0]).table_uuid == uuids[0]
    with pytest.raises(Refused, match=r"a table with the name db\.twice"):
        lifecycle.undrop(uuids[1])
    with pytest.raises(BadInput, match="no such namespace"):
        lifecycle.undrop(uuids[1], as_name="nowhere.twice")
    assert _undropped(lifecycle, "db.twice", as_name="db.second").table_uuid == uuids[1]
    assert lifecycle.read("db.twice").count() == 1 and lifecycle.read("db.second").count() == 2


def test_an_undrop_registers_only_a_complete_state_or_what_a_person_accepts(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "partly", 3)
    lifecycle.spark.sql(f"DELETE FROM {_name(lifecycle)}.{table} WHERE id = 0")
    lifecycle.observe_catalog()
    plan_files = {
        row["id"]: local(row["file"])
        for row in lifecycle.spark.sql(
            f"SELECT id, input_file_name() AS file FROM {_name(lifecycle)}.{table}"
        ).collect()
    }
    history = next(
        local(row["file_path"])
        for row in lifecycle.spark.sql(f"SELECT file_path FROM {_name(lifecycle)}.{table}.all_data_files").collect()
        if local(row["file_path"]) not in plan_files.values()
    )
    table_uuid = _uuid(lifecycle, table)
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
    history.unlink()
    whole = plan_files[1].read_bytes()
    plan_files[1].write_bytes(whole + b"x")
    plan_files[1].with_name(f".{plan_files[1].name}.crc").unlink(missing_ok=True)
    for options in ({}, {"incomplete": True}, {"incomplete": True, "who": "ada"}):
        with pytest.raises(LifecycleError) as refused:
            lifecycle.undrop(table, **options)
        if not options:
            assert isinstance(refused.value, Refused) and plan_files[1].name in str(refused.value)
    assert table not in lifecycle.tables()
    plan_files[1].write_bytes(whole)
    # Its history is not whole, and its current state is.
    done = _undropped(lifecycle, table)
    assert [local(each) for each in done.missing_files] == [history] and done.table_uuid == table_uuid
    assert sorted(row["id"] for row in lifecycle.read(table).collect()) == [1, 2]
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
    plan_files[1].unlink()
    done = _undropped(lifecycle, table, incomplete=True, who="ada", why="better than nothing")
    assert {local(each) for each in done.missing_files} == {history, plan_files[1]}


def test_an_undrop_brings_back_what_a_deletion_moved_into_quarantine(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    policy = {**POLICY, "deletion": {"grace": "0s", "mode": "quarantine"}, "dropped": {"keep": "0s"}}
    with open_lifecycle(make_config(defaults=policy, tables={"db.*": {}}), spark=spark) as lifecycle:
        table = make_table(lifecycle, "aside", 3)
        lifecycle.observe_catalog()
        place, files = _place(lifecycle, table), _files(_place(lifecycle, table))
        lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
        scan = lifecycle.scan_dropped(table)
        lifecycle.approve(scan, who="ada", why="a test")
        assert lifecycle.delete_dropped(scan).deleted == len(files) and not _files(place)

        done = _undropped(lifecycle, table, as_name="db.again")

        assert (done.restored, done.missing, _files(place)) == (len(files), 0, files)
        assert lifecycle.read("db.again").count() == 3
        # It lives like any other table.
        core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {_name(lifecycle)}.db.again VALUES (5)")
        assert lifecycle.expire("db.again").deleted > 0 and lifecycle.read("db.again").count() == 1


def test_an_undrop_takes_no_other_file_of_the_same_size_for_a_quarantined_one(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    policy = {**POLICY, "deletion": {"grace": "0s", "mode": "quarantine"}, "dropped": {"keep": "0s"}}
    config = make_config(defaults=policy, tables={"db.*": {}}, quarantine={"retain": "1ms"})
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "aside_by_size", 3)
        lifecycle.observe_catalog()
        rows = spark.sql(f"SELECT id, input_file_name() AS file FROM {_name(lifecycle)}.{table}").collect()
        one, other = (local(row["file"]) for row in sorted(rows, key=lambda row: row["id"])[:2])
        content = one.read_bytes(), other.read_bytes()
        assert len(content[0]) == len(content[1])
        spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
        scan = lifecycle.scan_dropped(table)
        lifecycle.approve(scan, who="ada", why="a test")
        lifecycle.delete_dropped(scan)
        # Copied back by hand, to a wrong name.
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(content[0])

        with pytest.raises(Refused, match="another file stands at its path"):
            lifecycle.undrop(table)
        done = lifecycle.undrop(table, incomplete=True, who="ada", why="history is enough")
        assert done.missing >= 1
        lifecycle.purge_quarantine(table)
        kept = [each for each in local(str(lifecycle.config.quarantine.root)).rglob("*") if each.is_file()]
        assert any(each.read_bytes() == content[1] for each in kept)


def test_an_undrop_passes_the_gate_only_with_what_was_in_the_catalog_before(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    policy = {**POLICY, "lineage": {"mode": "reject"}}
    with open_lifecycle(make_config(defaults=policy, tables={"db.*": {}}), spark=spark) as lifecycle:
        seen, unseen = make_table(lifecycle, "seen", 1), make_table(lifecycle, "unseen", 1)
        lifecycle.observe_catalog()
        # As a commit that the gate refused, which has written its metadata file before.
        core_tables.sql(lifecycle.spark, f"INSERT INTO {_name(lifecycle)}.{unseen} VALUES (7)")
        uuids = [_uuid(lifecycle, table) for table in (seen, unseen)]
        for table in (seen, unseen):
            lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
        lifecycle.enable_gate()

        assert lifecycle.undrop(seen, who="ada").table_uuid == uuids[0]

        noted = json.loads(lifecycle.steps.table_state(seen).metadata.properties[COMMIT_PROPERTY])
        assert (noted["operation"], noted["trigger.operator"]) == ("undrop", "ada")
        with pytest.raises(LineageRejected):
            lifecycle.undrop(unseen)
        assert unseen not in lifecycle.tables() and lifecycle.read(seen).count() == 1


def test_a_uuid_in_capital_letters_is_the_same_table_once_a_writer_spells_it_small(lifecycle: Lifecycle) -> None:
    """Iceberg compares uuids without case, and pyiceberg writes them in small letters."""
    table = make_table(lifecycle, "t", 4)
    catalog = lifecycle.config.catalogs.live
    pointer = local(lifecycle.snapshot_history(table).metadata_location)
    metadata = json.loads(pointer.read_text())
    small = metadata["table-uuid"]
    spelled = pointer.with_name("00009-capitals.metadata.json")
    spelled.write_text(json.dumps({**metadata, "table-uuid": small.upper()}))
    set_pointer(lifecycle, table, f"file://{spelled}")
    held = ids_of(lifecycle, table)
    lifecycle.hold(table, "legal", "case")
    with lifecycle.operations.engine.begin() as connection:
        beat = "(table_uuid, writer_id, table_name, expires_at) VALUES (:uuid, 'w', 't', now())"
        connection.execute(text(f"INSERT INTO lifecycle.heartbeats {beat}"), {"uuid": small.upper()})
        assert connection.execute(text("SELECT table_uuid FROM lifecycle.heartbeats")).scalars().all() == [small]
    with load_catalog(catalog.name, **pyiceberg_properties(catalog)) as python:
        written = python.load_table(table)
        written.append(pa.Table.from_pylist([{"id": 9}], schema=written.schema().as_arrow()))
    assert json.loads(local(lifecycle.snapshot_history(table).metadata_location).read_text())["table-uuid"] == small
    assert [hold.reason for hold in lifecycle.holds(table)] == ["case"]
    assert lifecycle.dropped_tables() == []
    lifecycle.expire(table)
    assert set(held) <= set(ids_of(lifecycle, table))
