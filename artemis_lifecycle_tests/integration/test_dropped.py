"""Tables that were dropped: their files are deleted once no reader can need them, and never a file that is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, ExecuteInProcessResult
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.defs.build import build_definitions
from artemis_lifecycle.defs.tags import OUTCOME_TAG, WAITS_FOR_TAG
from artemis_lifecycle.deletion.report import RECEIPTS
from artemis_lifecycle.errors import (
    ApprovalNeeded,
    BadInput,
    GarbageCollectionDisabled,
    GraceNotOver,
    NoSuchTable,
    PlanStateError,
    Refused,
    StalePlan,
    UnreadableMetadata,
)
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.orphans.dropped import DroppedTable
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import Killed, lapse
from artemis_lifecycle_tests.defs.conftest import written
from artemis_lifecycle_tests.deletion.world import local, make_old
from artemis_lifecycle_tests.end_report import add_lines
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.policies import AT_ONCE

POLICY: dict[str, Any] = {
    **AT_ONCE,
    "cold_tier": {"enabled": False},
    "deletion": {"grace": "0s", "remove_empty_folders": True},
    "orphans": {"min_age": "24h", "min_age_floor": "24h"},
    "dropped": {"keep": "30d"},
}


@pytest.fixture
def lifecycle(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    config = make_config(defaults=POLICY, tables={"db.*": {}})
    with open_lifecycle(config, spark=spark) as opened:
        yield opened


def _name(lifecycle: Lifecycle) -> str:
    return lifecycle.config.catalogs.live.name


def _place(lifecycle: Lifecycle, table: str) -> Path:
    return local(lifecycle.steps.table_state(table).metadata.location)


def _files(place: Path) -> set[Path]:
    """All files but receipts of earlier deletions, which stay."""
    return {path for path in place.rglob("*") if path.is_file() and RECEIPTS not in path.parts}


def _drop(lifecycle: Lifecycle, table: str, *, days_ago: int = 40) -> tuple[str, Path]:
    """Drop a table whose files are two months old, as if that had been seen so long ago."""
    place, table_uuid = _place(lifecycle, table), lifecycle.steps.table_state(table).metadata.table_uuid
    lifecycle.observe_catalog()
    for path in _files(place):
        make_old(path, timedelta(days=60))
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")
    assert [each.state for each in lifecycle.dropped_tables() if each.table_uuid == table_uuid] == ["waiting"]
    _missed(lifecycle, table_uuid, days_ago)
    return table_uuid, place


def _missed(lifecycle: Lifecycle, table_uuid: str, days_ago: int) -> None:
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE lifecycle.known_tables SET missing_since = clock_timestamp() - make_interval(days => :days) "
                "WHERE table_uuid = :table_uuid"
            ),
            {"days": days_ago, "table_uuid": table_uuid},
        )


def _of(lifecycle: Lifecycle, table_uuid: str) -> DroppedTable:
    return next(each for each in lifecycle.dropped_tables() if each.table_uuid == table_uuid)


def test_a_dropped_table_is_kept_for_its_time_and_deleted_once_approved(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "left", 4)
    neighbor = make_table(lifecycle, "stays", 2)
    # A plan that waits for its deletion when the table goes.
    plan = lifecycle.plan_expiration(table)
    lifecycle.commit_expiration(plan)
    table_uuid, place = _drop(lifecycle, table, days_ago=3)
    before = _files(place)
    assert before

    scan = lifecycle.scan_dropped(table)

    assert {local(row["path"]) for row in scan.files().collect()} == before
    assert {(row["origin"]) for row in scan.files().collect()} == {"dropped_table"}
    with pytest.raises(GraceNotOver, match=r"kept until"):
        lifecycle.delete_dropped(scan)
    _missed(lifecycle, table_uuid, 40)
    assert _of(lifecycle, table_uuid).state == "due"
    foreseen = lifecycle.delete_dropped(scan, dry_run=True)
    assert (foreseen.would_delete, foreseen.kept) == (len(before), 0)
    with pytest.raises(ApprovalNeeded, match=f"{len(before)} files"):
        lifecycle.delete_dropped(scan)
    assert _files(place) == before
    lifecycle.approve(scan, who="ada", why="the project ended")

    report = lifecycle.delete_orphans(scan)

    assert (report.deleted, report.kept, report.failed) == (len(before), 0, 0)
    assert not place.exists()
    assert _of(lifecycle, table_uuid).state == "gone"
    assert lifecycle.operations.plans.get(plan.plan_id).closed_why == "its table was dropped"
    receipt = lifecycle.receipt(scan)
    assert receipt.details["approved"] == "ada: the project ended"
    assert receipt.outcomes["deleted"]["files"] == len(before)
    lifecycle.publish_results()
    recorded = lifecycle.spark.table(f"{_name(lifecycle)}.lifecycle.deletions").where(f"job_id = '{scan.scan_id}'")
    assert {(row["job_kind"], row["outcome"]) for row in recorded.collect()} == {("dropped", "deleted")}
    assert lifecycle.read(neighbor).count() == 2
    # Again does nothing.
    assert lifecycle.delete_dropped(scan.scan_id).deleted == len(before)


_OWN_POINTS = ("plans.close", "scans.mark", "deletion.delete_files:after", "receipt.part:after", "known_tables.decide")
"""Crash points around what is done to a dropped table alone; `ARTEMIS_SOAK` tries all."""


@pytest.mark.nightly
def test_a_deletion_of_a_dropped_table_that_dies_anywhere_ends_the_same(lifecycle: Lifecycle) -> None:
    died: set[str] = set()
    all_points = "ARTEMIS_SOAK" in os.environ
    for attempt in range(80):
        table = make_table(lifecycle, f"dies_{attempt}", 1)
        table_uuid, place = _drop(lifecycle, table)
        files = _files(place)
        scan = lifecycle.scan_dropped(table)
        lifecycle.approve(scan, who="ada", why="a test")
        before = len(died)

        def die(name: str) -> None:
            if name not in died and (all_points or name.startswith(_OWN_POINTS)) and not name.startswith("leases."):
                died.add(name)
                raise Killed(name)

        try:
            with crash_points.installed(die):
                lifecycle.delete_dropped(scan)
        except Killed:
            lapse(lifecycle, "leases")
        report = lifecycle.delete_dropped(scan)
        assert (report.deleted + report.already_absent, report.failed) == (len(files), 0)
        assert not _files(place) and _of(lifecycle, table_uuid).state == "gone"
        if len(died) == before:
            break
    assert {"known_tables.decide:before", "scans.mark.done:after", "receipt.part:after"} <= died
    add_lines("deletion of a dropped table", [f"died at {len(died)} points"])


def test_a_renamed_table_is_not_dropped(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "old_name", 2)
    lifecycle.observe_catalog()
    lifecycle.spark.sql(f"ALTER TABLE {_name(lifecycle)}.{table} RENAME TO db.new_name")

    assert lifecycle.dropped_tables() == []
    with pytest.raises(NoSuchTable):
        lifecycle.scan_dropped(table)
    assert lifecycle.read("db.new_name").count() == 2


@pytest.mark.parametrize("written", ["before the drop", "after the drop"])
def test_a_last_commit_that_no_look_saw_in_a_folder_of_two_tables(lifecycle: Lifecycle, written: str) -> None:
    name = _name(lifecycle)
    make_table(lifecycle, "shared", 2)
    lifecycle.observe_catalog()
    lifecycle.spark.sql(f"ALTER TABLE {name}.db.shared RENAME TO db.neighbor")
    # In the same default place.
    table = make_table(lifecycle, "shared", 1)
    assert _place(lifecycle, table) == _place(lifecycle, "db.neighbor")
    lifecycle.observe_catalog()
    seen, place = lifecycle.get_current(table).metadata_location, _place(lifecycle, table)
    table_uuid = lifecycle.steps.table_uuid(table)
    core_tables.append(lifecycle.spark, f"{name}.{table}", [(7,)])
    unseen = local(lifecycle.resources.live_catalog.entry(table).metadata_location)
    for path in _files(place):
        make_old(path, timedelta(days=60))
    lifecycle.spark.sql(f"DROP TABLE {name}.{table}")
    lifecycle.observe_catalog()
    assert _of(lifecycle, table_uuid).metadata_location == seen
    _missed(lifecycle, table_uuid, 40)
    if written == "after the drop":
        # Somewhere else, somebody commits to it.
        make_old(unseen, timedelta(days=30))
    before = {each.snapshot_id for each in lifecycle.snapshot_history("db.neighbor").snapshots}
    scan = lifecycle.scan_dropped(table)
    lifecycle.approve(scan, who="ada", why="the project ended")

    if written == "after the drop":
        with pytest.raises(Refused, match="lives elsewhere"):
            lifecycle.delete_dropped(scan)
        return
    lifecycle.delete_dropped(scan)
    assert _of(lifecycle, table_uuid).state == "gone"
    for snapshot_id in before:
        assert lifecycle.read("db.neighbor", snapshot_id=snapshot_id).count() > 0


@pytest.mark.parametrize("when", ["before the scan", "before the deletion", "within the deletion"])
def test_a_table_that_is_registered_again_lives(lifecycle: Lifecycle, when: str) -> None:
    table = make_table(lifecycle, "comes_back", 3)
    pointer = lifecycle.steps.table_state(table).entry.metadata_location
    _, place = _drop(lifecycle, table)
    files = _files(place)

    def register() -> None:
        lifecycle.spark.sql(
            f"CALL {_name(lifecycle)}.system.register_table(table => 'db.again', metadata_file => '{pointer}')"
        )

    if when == "before the scan":
        register()
        with pytest.raises(NoSuchTable):
            lifecycle.scan_dropped(table)
    else:
        scan = lifecycle.scan_dropped(table)
        lifecycle.approve(scan, who="ada", why="a test")

        def at(name: str) -> None:
            if name == "journal.start_batch:before":
                register()

        if when == "before the deletion":
            register()
            with pytest.raises(StalePlan, match=r"db\.again"):
                lifecycle.delete_dropped(scan)
        else:
            with crash_points.installed(at), pytest.raises(StalePlan, match=r"as db\.again"):
                lifecycle.delete_dropped(scan)
    assert _files(place) == files
    assert lifecycle.read("db.again").count() == 3
    assert lifecycle.dropped_tables() == []
    # Its own orphan scan is not held up by the other one.
    assert lifecycle.scan_orphans("db.again").summary.orphan_files == 0


def test_a_table_of_the_same_name_in_the_same_place_keeps_its_place(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "again", 2)
    table_uuid, place = _drop(lifecycle, table)
    make_table(lifecycle, "again", 3)
    files = _files(place)

    scan = lifecycle.scan_dropped(table_uuid)
    lifecycle.approve(scan, who="ada", why="a test")
    report = lifecycle.delete_dropped(scan)

    assert (scan.summary.orphan_files, report.deleted) == (0, 0)
    assert _files(place) == files and lifecycle.read(table).count() == 3


def test_what_another_table_reads_of_it_stays(lifecycle: Lifecycle) -> None:
    table, reader = make_table(lifecycle, "source", 3), make_table(lifecycle, "reader", 1)
    jvm: Any = lifecycle.spark._jvm
    loader = jvm.org.apache.iceberg.spark.Spark3Util
    loaded = loader.loadIcebergTable(lifecycle.spark._jsparkSession, f"{_name(lifecycle)}.{table}")
    file = next(iter(loaded.currentSnapshot().addedDataFiles(loaded.io())))
    _, place = _drop(lifecycle, table)
    scan = lifecycle.scan_dropped(table)
    other = loader.loadIcebergTable(lifecycle.spark._jsparkSession, f"{_name(lifecycle)}.{reader}")
    other.newAppend().appendFile(file).commit()
    lifecycle.approve(scan, who="ada", why="a test")

    report = lifecycle.delete_dropped(scan)

    assert report.kept >= 1
    assert {row["reason"] for row in report.files().where("outcome = 'kept'").collect()} == {f"reachable from {reader}"}
    assert local(str(file.location())) in _files(place)
    lifecycle.spark.sql(f"REFRESH TABLE {_name(lifecycle)}.{reader}")
    assert lifecycle.read(reader).count() == 2
    assert lifecycle.scan_dropped(table).summary.orphan_files == 0


def test_what_forbids_it(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "forbidden", 2)
    hold = lifecycle.hold(table, "legal", "a case")
    _, place = _drop(lifecycle, table)
    files = _files(place)
    with pytest.raises(Refused, match="a case"):
        lifecycle.scan_dropped(table)
    lifecycle.release(hold.hold_id)
    scan = lifecycle.scan_dropped(table)
    lifecycle.approve(scan, who="ada", why="a test")
    # Another person's decision stays, and can be taken back.
    with pytest.raises(BadInput):
        lifecycle.keep_dropped(table, who="bob", why=" ")
    assert lifecycle.keep_dropped(table, who="bob", why="read from the other lake").state == "kept"
    with pytest.raises(Refused, match=r"bob decided.*other lake"):
        lifecycle.delete_dropped(scan)
    assert lifecycle.unkeep_dropped(table).state == "due"
    # A commit elsewhere writes a metadata file; a data file alone is what a writer left behind.
    late_data = place / "data" / "late.parquet"
    late_data.write_bytes(b"PAR1")
    make_old(late_data, timedelta(days=10))
    assert late_data in {local(row["path"]) for row in lifecycle.scan_dropped(table).files().collect()}
    elsewhere = place / "metadata" / "00009-0f3b5e52-9d6c-4a51-8c39-6f0e7f8d9b10.metadata.json"
    elsewhere.write_bytes(b"{}")
    make_old(elsewhere, timedelta(days=10))
    with pytest.raises(Refused, match="it lives elsewhere"):
        lifecycle.scan_dropped(table)
    # Also after the scan, and whatever was approved.
    with pytest.raises(Refused, match=r"after the scan .* it lives elsewhere"):
        lifecycle.delete_dropped(scan)
    assert _files(place) == {*files, late_data, elsewhere}
    elsewhere.unlink()
    make_old(late_data, timedelta(hours=1))
    with pytest.raises(Refused, match=r"1 files are younger than orphans\.min_age"):
        lifecycle.scan_dropped(table)
    late_data.unlink()
    # A table that cannot be read may be this one.
    stranger = make_table(lifecycle, "stranger", 1)
    pointer = local(lifecycle.steps.table_state(stranger).entry.metadata_location)
    whole = pointer.read_bytes()
    pointer.write_bytes(b"{")
    with pytest.raises(UnreadableMetadata, match="may be the dropped one"):
        lifecycle.delete_dropped(scan)
    assert lifecycle.operations.journal.job(scan.scan_id) is None or _files(place) == files
    pointer.write_bytes(whole)
    assert _files(place) == files
    assert lifecycle.delete_dropped(scan).deleted == len(files)
    assert lifecycle.read(stranger).count() == 1


def test_an_unreadable_table_hides_that_others_are_missing(lifecycle: Lifecycle) -> None:
    table, stranger = make_table(lifecycle, "missed", 1), make_table(lifecycle, "dark", 1)
    lifecycle.observe_catalog()
    known = lifecycle.steps.table_state(stranger).entry.metadata_location
    lifecycle.spark.sql(f"ALTER TABLE {_name(lifecycle)}.{stranger} RENAME TO db.dark_too")
    lifecycle.spark.sql(f"DELETE FROM {_name(lifecycle)}.db.dark_too WHERE true")
    pointer = local(lifecycle.steps.table_state("db.dark_too").entry.metadata_location)
    assert str(pointer) != str(local(known))
    whole = pointer.read_bytes()
    pointer.write_bytes(b"{")
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table}")

    assert list(lifecycle.observe_catalog()) == ["db.dark_too"]
    assert lifecycle.dropped_tables() == []
    pointer.write_bytes(whole)
    assert [each.table for each in lifecycle.dropped_tables()] == [table]


def test_a_table_with_gc_disabled_keeps_its_files(lifecycle: Lifecycle) -> None:
    disabled = make_table(lifecycle, "disabled", 1)
    lifecycle.spark.sql(f"ALTER TABLE {_name(lifecycle)}.{disabled} SET TBLPROPERTIES ('gc.enabled'='false')")
    _drop(lifecycle, disabled)
    with pytest.raises(GarbageCollectionDisabled):
        lifecycle.scan_dropped(disabled)


@pytest.mark.parametrize("seen_by", ["a step", "a look at the catalog"])
def test_what_a_purge_left_is_deleted_once_approved(lifecycle: Lifecycle, seen_by: str) -> None:
    table, beside = make_table(lifecycle, "purged", 4), make_table(lifecycle, "beside", 2)
    table_uuid, place = lifecycle.steps.table_state(table).metadata.table_uuid, _place(lifecycle, table)
    if seen_by == "a step":
        # Its files wait for the grace, and the purge knows nothing of them.
        core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {_name(lifecycle)}.{table} VALUES (9)")
        lifecycle.commit_expiration(lifecycle.plan_expiration(table))
    else:
        lifecycle.observe_catalog()
    (place / "data" / "orphan.parquet").write_bytes(b"1")
    # A clone reads one of its files, and keeps it.
    kept = next(path for path in _files(place) if path.suffix == ".parquet" and path.name != "orphan.parquet")
    lifecycle.spark.sql(
        f"CALL {_name(lifecycle)}.system.add_files(table => 'db.beside', source_table => '`parquet`.`file://{kept}`')"
    )
    held = kept.read_bytes()
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table} PURGE")
    if not kept.exists():
        kept.write_bytes(held)
    for path in _files(place):
        make_old(path, timedelta(days=60))
    assert _of(lifecycle, table_uuid).state == "purged"
    _missed(lifecycle, table_uuid, 3)

    scan = lifecycle.scan_dropped(table)

    left = _files(place) - {kept, kept.with_name(f".{kept.name}.crc")}
    assert {local(row["path"]) for row in scan.files().collect()} == left and place / "data" / "orphan.parquet" in left
    with pytest.raises(GraceNotOver):
        lifecycle.delete_dropped(scan)
    _missed(lifecycle, table_uuid, 40)
    with pytest.raises(ApprovalNeeded):
        lifecycle.delete_dropped(scan)
    assert lifecycle.clear_dropped() == []
    lifecycle.approve(scan, who="ada", why="what the purge left")
    assert lifecycle.delete_dropped(scan).deleted == len(left)
    assert not left & _files(place) and _of(lifecycle, table_uuid).state == "gone"
    assert lifecycle.spark.table(f"{_name(lifecycle)}.{beside}").count() == 3


def test_a_purge_of_a_table_that_was_never_seen_leaves_nothing_to_scan(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "unseen", 1)
    lifecycle.spark.sql(f"DROP TABLE {_name(lifecycle)}.{table} PURGE")
    with pytest.raises(NoSuchTable):
        lifecycle.scan_dropped(table)


def test_a_dropped_table_comes_back_from_quarantine(make_config: MakeConfig, spark: SparkSession) -> None:
    policy = {**POLICY, "deletion": {"grace": "0s", "mode": "quarantine"}}
    with open_lifecycle(make_config(defaults=policy), spark=spark) as lifecycle:
        table = make_table(lifecycle, "aside", 3)
        pointer = lifecycle.steps.table_state(table).entry.metadata_location
        table_uuid, place = _drop(lifecycle, table)
        files = _files(place)
        scan = lifecycle.scan_dropped(table)
        lifecycle.approve(scan, who="ada", why="a test")
        assert lifecycle.delete_dropped(scan).deleted == len(files)
        assert not _files(place) and len(lifecycle.quarantined(table)) == 1

        back = lifecycle.undelete(scan, who="bob", why="it was needed")

        assert (back.restored, _files(place)) == (len(files), files)
        assert _of(lifecycle, table_uuid).state == "due"
        lifecycle.spark.sql(
            f"CALL {_name(lifecycle)}.system.register_table(table => 'db.aside', metadata_file => '{pointer}')"
        )
        assert lifecycle.read(table).count() == 3
        assert os.stat(pointer.removeprefix("file:")).st_size > 0
        assert datetime.now(UTC) > lifecycle.quarantined(table)[0].began_at


def test_a_dropped_table_whose_row_came_back_is_undeleted_as_each_step_says(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    policy = {**POLICY, "deletion": {"grace": "0s", "mode": "quarantine"}}
    with open_lifecycle(make_config(defaults=policy), spark=spark) as lifecycle:
        table, row = make_table(lifecycle, "aside", 3), {"name": "aside"}
        pointer = lifecycle.steps.table_state(table).entry.metadata_location
        _drop(lifecycle, table)
        scan = lifecycle.scan_dropped(table)
        lifecycle.approve(scan, who="ada", why="a test")
        lifecycle.delete_dropped(scan)
        with lifecycle.operations.engine.begin() as connection:
            insert = "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location)"
            row |= {"catalog": _name(lifecycle), "at": pointer}
            connection.execute(text(f"{insert} VALUES (:catalog, 'db', :name, :at)"), row)
        steps = (lifecycle.plan_expiration, lifecycle.scan_orphans, lifecycle.read, lifecycle.table_health)
        for step in steps:
            with pytest.raises(UnreadableMetadata, match=f"quarantine.*artemis undelete {scan.scan_id} --who"):
                step(table)
        lifecycle.undelete(scan, who="ada", why="it came back")
        assert lifecycle.read(table).count() == 3
        lifecycle.plan_expiration(table)


def test_a_hold_or_a_word_keeps_what_a_dropped_table_has_in_quarantine(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    policy = {**POLICY, "deletion": {"grace": "0s", "mode": "quarantine"}}
    with open_lifecycle(make_config(defaults=policy), spark=spark) as lifecycle:
        table = make_table(lifecycle, "aside", 2)
        table_uuid, place = _drop(lifecycle, table)
        files = _files(place)
        early = lifecycle.hold(table, "legal", "a case before the deletion")
        with pytest.raises(Refused, match="a case before"):
            lifecycle.scan_dropped(table)
        lifecycle.release(early.hold_id)
        scan = lifecycle.scan_dropped(table)
        lifecycle.approve(scan, who="ada", why="a test")
        assert lifecycle.delete_dropped(scan).deleted == len(files)
        with lifecycle.operations.engine.begin() as connection:
            over = "UPDATE lifecycle.quarantines SET purge_after = clock_timestamp() - interval '1 day'"
            connection.execute(text(over))
        hold = lifecycle.hold(table_uuid, "legal", "a case")
        assert (hold.table, lifecycle.holds(table)) == (table, [hold])
        assert lifecycle.purge_quarantine(table) == []
        assert lifecycle.keep_dropped(table, who="ada", why="not yet").state == "kept"
        lifecycle.release(hold.hold_id)
        assert lifecycle.purge_quarantine(table_uuid) == []
        assert lifecycle.unkeep_dropped(table).state == "gone"
        assert [each.deleted for each in lifecycle.purge_quarantine(table)] == [len(files)]
        with pytest.raises(PlanStateError, match="gone, and its files with it"):
            lifecycle.hold(table, "legal", "too late")


@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
def test_the_daily_run_scans_waits_for_a_word_and_deletes(
    make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    tables: dict[str, Any] = {"db.*": {}, "scratch.*": {"dropped": {"approval": "guards"}}}
    config = make_config(defaults=POLICY, tables=tables)
    with open_lifecycle(config, spark=spark) as lifecycle:
        core_tables.sql(spark, f"CREATE NAMESPACE {_name(lifecycle)}.scratch")
        spark.sql(f"CREATE TABLE {_name(lifecycle)}.scratch.t USING iceberg AS SELECT 1 AS id")
        names = [make_table(lifecycle, name, 1) for name in ("asked", "early", "dark")]
        places = {name: _drop(lifecycle, name, days_ago=3 if name == "db.early" else 40)[1] for name in names}
        places["scratch.t"] = _drop(lifecycle, "scratch.t")[1]
        # One that stands against its deletion holds up no other.
        (places["db.dark"] / "metadata" / "v9.metadata.json").write_bytes(b"{}")

        assert {each.problem for each in lifecycle.clear_dropped(dry_run=True)} == {"it is to be scanned"}
        done = {each.dropped.table: each for each in lifecycle.clear_dropped()}

        assert set(done) == {"db.asked", "db.dark", "scratch.t"}
        assert done["scratch.t"].deleted and done["scratch.t"].problem is None and not places["scratch.t"].exists()
        assert done["db.asked"].waits and "are all that is left" in (done["db.asked"].problem or "")
        assert done["db.dark"].problem and "it lives elsewhere" in done["db.dark"].problem
        assert done["db.asked"].scan_id is not None
        # A person sees it wherever waits are seen, for as long as it waits.
        (said,) = _waits(lifecycle, done["db.asked"].scan_id)
        assert "db.asked waits for approval" in said
        run, outcome = _daily_run(config, tmp_path)
        assert run.success and outcome == ("waiting", "ApprovalNeeded")
        lifecycle.keep_dropped("db.asked", who="bob", why="one more look")
        assert not _waits(lifecycle, done["db.asked"].scan_id)
        lifecycle.unkeep_dropped("db.asked", who="bob")
        assert _waits(lifecycle, done["db.asked"].scan_id)
        lifecycle.approve(done["db.asked"].scan_id, who="ada", why="yes")
        again = {each.dropped.table: each for each in lifecycle.clear_dropped()}
        assert again["db.asked"].deleted == done["db.asked"].files and not places["db.asked"].exists()
        assert set(again) == {"db.asked", "db.dark"} and _files(places["db.early"]) and _files(places["db.dark"])
        assert not _waits(lifecycle, done["db.asked"].scan_id)
        lifecycle.keep_dropped("db.dark", who="bob", why="one more look")
        assert _daily_run(config, tmp_path)[1] == ("dry_run", None)


def _waits(lifecycle: Lifecycle, scan_id: str | None) -> list[str]:
    """What the fleet says of the scan's wait, which is what alerts go by."""
    open_ids = {wait.job_id for wait in lifecycle.operations.waits.open()}
    said = [each for each in lifecycle.fleet().other_waits if str(scan_id) in each]
    assert bool(said) == (scan_id in open_ids)
    return said


def _daily_run(config: LifecycleConfig, folder: Path) -> tuple[ExecuteInProcessResult, tuple[str | None, str | None]]:
    """A run of the daily job that only reports, and the tags that say how it ended."""
    with DagsterInstance.ephemeral() as instance:
        job = build_definitions(written(config, folder)).resolve_job_def("dropped_tables")
        result = job.execute_in_process(instance=instance)
        run = instance.get_run_by_id(result.run_id)
    assert run is not None
    return result, (run.tags.get(OUTCOME_TAG), run.tags.get(WAITS_FOR_TAG))
