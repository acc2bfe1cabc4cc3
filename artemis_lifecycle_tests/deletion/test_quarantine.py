"""Quarantine: what is deleted can be brought back, whenever a worker dies; and what is brought back stays."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.sql import publish
from artemis_lifecycle.deletion.batches import QUARANTINED
from artemis_lifecycle.deletion.quarantine import QuarantinePlace, purge, quarantine_folder
from artemis_lifecycle.errors import LifecycleError, NoSuchPlan, OperationsUnavailable, PlanStateError, Refused
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.quarantines import QuarantineState
from artemis_lifecycle.protection.protection import UNDELETED
from artemis_lifecycle.storage.local.store import LocalStore
from artemis_lifecycle.storage.stores import place_of
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.cold_tier.world import Print, fingerprint
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import Killed, lapse
from artemis_lifecycle_tests.deletion.world import World, local, make_old, outcomes
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.protection.foreign import expire_in_metadata, set_pointer, take_up

ODD = ["plain.parquet", "a b%20c.parquet", "_hidden'\"quote.parquet", "ümlaut-" + "x" * 180, "new\nline.parquet"]


@pytest.fixture(scope="module")
def table(world: World) -> str:
    world.create("del.aside")
    world.append("del.aside", 1, 2)
    return "del.aside"


@pytest.mark.parametrize("point", ["quarantine.set_aside:after", "deletion.delete_files:after"])
def test_a_worker_that_dies_loses_no_file_whatever_its_name(
    world: World, table: str, tmp_path: Path, point: str
) -> None:
    """Every doomed file is at its path or in quarantine, and in the end in quarantine; what is alive stays, and has no
    copy there."""
    place = QuarantinePlace(f"file://{tmp_path}/quarantine", timedelta(days=1))
    alive = world.data_file(table, world.current_snapshot(table)).location()
    files = {f"file://{world.drop_in(table, f'data/{point[-12:-6]}/{name}')}": name for name in ODD}
    for path, content in files.items():
        local(path).write_text(content)
    job = world.job_of(table, [*((path, "data") for path in files), (alive, "data")])
    folder = quarantine_folder(place.root, job.table_uuid, job.job_id)
    with pytest.raises(Killed), crash_points.installed(_killed_at(point)):
        world.delete(job, files_per_batch=3, quarantine=place)
    for path, content in files.items():
        found = [each for each in (local(path), local(place_of(folder, path))) if each.exists()]
        assert found and {each.read_text() for each in found} == {content}
    report = world.delete(job, files_per_batch=3, quarantine=place)
    assert (report.deleted, report.already_absent, report.kept, report.failed) == (len(ODD), 0, 1, 0)
    assert report.quarantine == folder
    assert {row["outcome"] for row in report.files().collect()} == {QUARANTINED, "kept"}
    for path, content in files.items():
        assert not local(path).exists()
        assert local(place_of(folder, path)).read_text() == content
    assert local(alive).exists() and not local(place_of(folder, alive)).exists()


def test_what_came_alive_after_an_interrupted_move_keeps_its_only_copy(world: World, tmp_path: Path) -> None:
    """Moved, and the worker died before it was written down; then a snapshot that reads it came back."""
    table = world.create("del.revived")
    first = world.append(table, 1)
    before = world.reader.entry(table).metadata_location
    world.overwrite(table, 2)
    job = world.plan(table, first)
    place = QuarantinePlace(f"file://{tmp_path}/quarantine", timedelta(days=1))
    with pytest.raises(Killed), crash_points.installed(_killed_at("deletion.write_outcomes:before")):
        world.delete(job, quarantine=place)
    entry = world.reader.entry(table)
    with world.operations.engine.begin() as connection:
        publish(
            connection,
            entry.catalog,
            entry.identifier,
            expected_location=entry.metadata_location,
            new_location=before,
        )
    moved = [row["path"] for row in world.spark.read.parquet(job.files_location).collect()]
    folder = quarantine_folder(place.root, job.table_uuid, job.job_id)
    # Its files are gone, so reading the table is an error: nothing leaves quarantine.
    with pytest.raises(LifecycleError):
        world.delete(job, quarantine=place)
    assert all(local(place_of(folder, path)).exists() for path in moved)
    # If only a data file was moved, the check passes: it stays in quarantine, and an undelete finds it.
    data = next(path for path in moved if path.endswith(".parquet"))
    for path in moved:
        if path != data:
            local(place_of(folder, path)).rename(local(path))
    report = world.delete(job, quarantine=place)
    assert local(place_of(folder, data)).exists()
    assert [row["path"] for row in report.files().where(f"outcome = '{QUARANTINED}'").collect()] == [data]


def test_what_cannot_be_put_aside_is_not_deleted(
    world: World, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = QuarantinePlace(f"file://{tmp_path}/quarantine", timedelta(days=1))
    path = f"file://{world.drop_in(table, 'data/stays.parquet')}"
    job = world.job_of(table, [(path, "data")])
    folder = local(quarantine_folder(place.root, job.table_uuid, job.job_id))
    folder.mkdir(parents=True)
    (folder / "files").write_text("a file where the folder should be")
    report = world.delete(job, quarantine=place)
    assert (report.deleted, report.failed) == (0, 1) and local(path).exists()
    assert "put into quarantine" in outcomes(report)["stays.parquet"][1]
    (folder / "files").unlink()
    # A disk without links gets a copy.
    monkeypatch.setattr(LocalStore, "second_name", lambda store, one, other: False)
    report = world.delete(job, quarantine=place)
    assert (report.deleted, report.failed) == (1, 0) and not local(path).exists()
    # What began in quarantine ends there, whatever the policy says by now.
    assert world.delete(job).quarantine is not None


@pytest.fixture
def lifecycle(make_config: MakeConfig, spark: SparkSession) -> Lifecycle:
    policy = {**AT_ONCE, "cold_tier": {"enabled": False}, "deletion": {"grace": "0s", "mode": "quarantine"}}
    return Lifecycle.open(make_config(defaults=policy, tables={"db.*": {}}), spark=spark)


def test_a_deleted_snapshot_is_brought_back(lifecycle: Lifecycle) -> None:
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    table = make_table(lifecycle, "t", 2)
    spark.sql(f"INSERT OVERWRITE {live}.{table} SELECT /*+ COALESCE(1) */ 9 AS id")
    first, second, _ = ids_of(lifecycle, table)
    before: dict[int, Print] = {each: fingerprint(lifecycle.read(table, snapshot_id=each)) for each in (first, second)}
    report = lifecycle.expire(table)
    plan_id = report.job_id
    assert report.deleted > 3 and report.quarantine is not None
    assert lifecycle.scan_orphans(table).summary.orphan_files == 0
    [record] = lifecycle.quarantined(table)
    assert record.state is QuarantineState.KEPT and record.purge_after is not None
    assert lifecycle.purge_quarantine(table) == []

    # A stranger took one of the paths meanwhile: it is left alone, and said.
    moved = [row["path"] for row in report.files().where(f"outcome = '{QUARANTINED}'").collect()]
    lists = [path for path in moved if "/snap-" in path]
    local(lists[0]).write_text("somebody else's")
    done = lifecycle.undelete(plan_id, who="ada", why="the audit asks")
    assert (done.restored, done.present, done.taken, done.failed) == (len(moved) - 1, 0, 1, 0)
    assert done.problems == ((lists[0], "another file stands at its path"),)
    assert local(lists[0]).read_text() == "somebody else's"
    local(lists[0]).unlink()

    # Died at any write and run again, it comes to the same.
    died: set[str] = set()

    def die(name: str) -> None:
        if name.startswith("quarantine") and name not in died:
            died.add(name)
            raise Killed(name)

    while True:
        try:
            with crash_points.installed(die):
                done = lifecycle.undelete(plan_id, who="ada", why="the audit asks")
            break
        except Killed:
            lapse(lifecycle, "leases")
    assert len(died) >= 4 and done.restored + done.present == len(moved)
    assert all(local(path).exists() for path in moved)
    assert done.metadata_location is not None
    for snapshot_id, rows in before.items():
        frame = spark.read.format("iceberg").option("versionAsOf", snapshot_id).load(done.metadata_location)
        assert fingerprint(frame) == rows

    # Nobody takes it away again: not a scan, not a job that names those files.
    scan = lifecycle.scan_orphans(table)
    assert scan.summary.orphan_files == 0
    places = {local(path) for path in moved}
    assert {row["verdict"] for row in scan.unreferenced().collect() if local(row["path"]) in places} == {UNDELETED}
    explained = lifecycle.explain(table, moved[0])
    assert explained.verdict == "kept" and UNDELETED in explained.reasons[0] and "a file again" in explained.reasons[1]
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("UPDATE lifecycle.quarantines SET purge_after = clock_timestamp() - interval '1 s'"))
    assert lifecycle.purge_quarantine(table) == []

    # Until the undelete is closed. Then a scan finds them, and an undelete of the scan brings them back again.
    closed = lifecycle.close_plan(plan_id, who="ada", why="seen")
    assert lifecycle.close_plan(plan_id, who="bob", why="seen, too") == closed
    scan = lifecycle.scan_orphans(table)
    assert scan.summary.orphan_files == len(moved)
    assert lifecycle.delete_orphans(scan).deleted == len(moved)
    assert not any(local(path).exists() for path in moved)
    assert lifecycle.undelete(scan, who="ada", why="once more").restored == len(moved)
    assert lifecycle.scan_orphans(table).summary.orphan_files == 0
    lifecycle.close_plan(scan, who="ada", why="seen")

    # The plan's quarantine is past its time; the scan's is not.
    purged = lifecycle.purge_quarantine(table, dry_run=True)
    assert [(each.job_id, each.deleted) for each in purged] == [(plan_id, len(moved) + 1)]
    folder = local(record.folder)
    aside = {each for each in folder.rglob("*") if each.is_file()}
    assert aside
    # A hold keeps it, of the table or of one of its snapshots; also one that comes in meanwhile.
    for snapshot_ids in ((), tuple(before)[:1]):
        placed = lifecycle.operations.holds.place(
            table_uuid=record.table_uuid, table=table, owner="legal", reason="case 7", snapshot_ids=snapshot_ids
        )
        assert lifecycle.purge_quarantine(table) == []
        lifecycle.release(placed.hold_id)

    def hold_it(point: str) -> None:
        if point == "quarantines.record:after":
            lifecycle.hold(table, "legal", "case 8")

    with crash_points.installed(hold_it), pytest.raises(Refused, match="case 8"):
        lifecycle.purge_quarantine(table)
    assert {each for each in folder.rglob("*") if each.is_file()} == aside
    lifecycle.release(lifecycle.holds(table)[0].hold_id)
    with pytest.raises(Killed), crash_points.installed(_killed_at("quarantine.purge:after")):
        lifecycle.purge_quarantine(table)
    lapse(lifecycle, "leases")
    assert [each.job_id for each in lifecycle.purge_quarantine(table)] == [plan_id]
    assert not [each for each in folder.rglob("*") if each.is_file()]
    assert all(local(path).exists() for path in moved)
    with pytest.raises(PlanStateError, match="purged"):
        lifecycle.undelete(plan_id, who="ada", why="too late")
    with pytest.raises(NoSuchPlan):
        lifecycle.undelete("plan-unknown", who="ada", why="x")


@pytest.mark.parametrize("why", ["a hold", "its death, and a catalog that was put back"])
def test_what_a_purge_left_when_something_stopped_it_is_brought_back(lifecycle: Lifecycle, why: str) -> None:
    table = make_table(lifecycle, "stopped", 2)
    before, first = lifecycle.get_current(table).metadata_location, ids_of(lifecycle, table)[0]
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {lifecycle.config.catalogs.live.name}.{table} VALUES (9)")
    plan_id = lifecycle.expire(table).job_id
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("UPDATE lifecycle.quarantines SET purge_after = clock_timestamp() - interval '1 s'"))
    moved = len(list(local(lifecycle.quarantined(table)[0].folder).rglob("files/*")))

    def stop(point: str) -> None:
        if point == "quarantines.record:after":
            if why != "a hold":
                raise Killed(point)
            lifecycle.hold(table, "legal", "case 8")

    with crash_points.installed(stop), suppress(LifecycleError, Killed):
        lifecycle.purge_quarantine(table)
    lapse(lifecycle, "leases")
    if why != "a hold":
        set_pointer(lifecycle, table, before)
    with suppress(LifecycleError):
        lifecycle.purge_quarantine(table)

    done = lifecycle.undelete(plan_id, who="ada", why="the court asks")
    assert (done.restored + done.present, done.failed) == (moved, 0) and moved
    if why != "a hold":
        assert lifecycle.read(table, snapshot_id=first).count() == 1


def test_what_somebody_removed_from_quarantine_is_named(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "removed", 2)
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {lifecycle.config.catalogs.live.name}.{table} VALUES (9)")
    job_id = lifecycle.expire(table).job_id
    [record] = lifecycle.quarantined(table)
    first, second, *rest = sorted((local(record.folder) / "files").iterdir())
    first.unlink()
    second.unlink()
    done = lifecycle.undelete(job_id, who="ada", why="too early")
    assert (done.restored, done.failed) == (len(rest), 2)
    assert {why for _, why in done.problems} == {"it is no longer in quarantine"}
    assert not any(local(path).exists() for path, _ in done.problems)


@pytest.mark.parametrize("size", ["another size", "the same size"])
def test_another_file_is_named_where_the_copy_was_removed(lifecycle: Lifecycle, size: str) -> None:
    table = make_table(lifecycle, "replaced", 2)
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {lifecycle.config.catalogs.live.name}.{table} VALUES (9)")
    report = lifecycle.expire(table)
    [record] = lifecycle.quarantined(table)
    moved = [row["path"] for row in report.files().where(f"outcome = '{QUARANTINED}'").collect()]
    stranger, own = (each for each in moved if each.endswith(".parquet"))
    content = b"x" * (local(place_of(record.folder, stranger)).stat().st_size + (size == "another size"))
    local(place_of(record.folder, stranger)).unlink()
    local(stranger).write_bytes(content)
    # Somebody moved this one back by hand.
    local(place_of(record.folder, own)).rename(local(own))

    done = lifecycle.undelete(report.job_id, who="ada", why="the audit asks")
    assert (done.restored, done.present, done.taken, done.failed) == (len(moved) - 2, 1, 1, 0)
    [(path, why)] = done.problems
    said = "another file stands at its path" if size == "another size" else "the file at its path may be another one"
    assert (path, why) == (stranger, f"{said}; it is no longer in quarantine")
    assert local(stranger).read_bytes() == content


def test_what_the_database_has_forgotten_is_brought_back(lifecycle: Lifecycle) -> None:
    """It came back from before the plan, with the catalog: the table names files that are only in quarantine."""
    table = make_table(lifecycle, "forgotten", 2)
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {lifecycle.config.catalogs.live.name}.{table} VALUES (9)")
    first, *_ = ids_of(lifecycle, table)
    before, backup = fingerprint(lifecycle.read(table, snapshot_id=first)), lifecycle.steps.table_state(table).metadata
    job_id = lifecycle.expire(table).job_id
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        for name in ("quarantines", "batches", "jobs", "plans"):
            connection.execute(text(f"DELETE FROM lifecycle.{name}"))
        set_to = text("UPDATE iceberg_tables SET metadata_location = :to WHERE table_name = 'forgotten'")
        connection.execute(set_to, {"to": backup.metadata_location})
    core_tables.sql(lifecycle.spark, f"REFRESH TABLE {lifecycle.config.catalogs.live.name}.{table}")
    with pytest.raises(LifecycleError):
        lifecycle.table_health(table)
    with pytest.raises(NoSuchPlan, match="folders of"):
        lifecycle.undelete("another", who="ada", why="a backup")
    done = lifecycle.undelete(job_id, who="ada", why="a backup")
    assert done.restored > 3 and done.failed == 0
    assert fingerprint(lifecycle.read(table, snapshot_id=first)) == before
    [record] = lifecycle.quarantined(table)
    assert record.state is QuarantineState.UNDELETED and lifecycle.undelete(job_id, who="a", why="b").restored == 0


@pytest.mark.parametrize("catalog", ["is put back, too", "is as it was"])
def test_a_table_whose_metadata_file_is_in_quarantine_is_brought_back(
    make_config: MakeConfig, spark: SparkSession, catalog: str
) -> None:
    """The database came back from before the table was seen, and its files moved there."""
    policy = {**AT_ONCE, "cold_tier": {"enabled": False}, "deletion": {"grace": "0s", "mode": "quarantine"}}
    dropped = {"keep": "0s", "approval": "required"}
    config = make_config(defaults={**policy, "dropped": dropped}, tables={"db.*": {}})
    with open_lifecycle(config, spark=spark) as lifecycle:
        table, live = make_table(lifecycle, "gone", 2), config.catalogs.live.name
        last = ids_of(lifecycle, table)[-1]
        before = fingerprint(lifecycle.read(table, snapshot_id=last))
        where = lifecycle.steps.table_state(table).metadata.metadata_location
        lifecycle.observe_catalog()
        core_tables.sql(spark, f"DROP TABLE {live}.{table}")
        lifecycle.observe_catalog()
        scan = lifecycle.scan_dropped(table)
        lifecycle.approve(scan, who="ada", why="over")
        assert lifecycle.delete_dropped(scan).deleted > 3 and not local(where).exists()
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            for name in ("quarantines", "batches", "jobs", "scans", "known_tables"):
                connection.execute(text(f"DELETE FROM lifecycle.{name}"))
        row = text(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, "
            "iceberg_type) VALUES (:live, 'db', 'gone', :at, 'TABLE')"
        )

        def register() -> None:
            with lifecycle.operations.engine.begin() as connection:
                connection.execute(row, {"live": live, "at": where})

        if catalog == "is put back, too":
            register()
        with pytest.raises(LifecycleError):
            lifecycle.plan_expiration(table)
        assert lifecycle.undelete(scan.scan_id, who="ada", why="a backup").failed == 0
        if catalog == "is as it was":
            assert lifecycle.dropped_tables() == []
            register()
        assert fingerprint(lifecycle.read(table, snapshot_id=last)) == before


def test_what_is_brought_back_for_a_forgotten_table_stays_until_the_close(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    """Its folder of data files is in another table's place, where nothing else says whose they are."""
    policy = {**AT_ONCE, "cold_tier": {"enabled": False}, "deletion": {"grace": "0s", "mode": "quarantine"}}
    config = make_config(defaults={**policy, "dropped": {"keep": "0s"}}, tables={"db.*": {}})
    with open_lifecycle(config, spark=spark) as lifecycle:
        table, live = make_table(lifecycle, "gone", 2), config.catalogs.live.name
        make_table(lifecycle, "stays", 1)
        lifecycle.observe_catalog()
        data = f"{lifecycle.steps.table_state(table).metadata.location}/data"
        core_tables.sql(spark, f"DROP TABLE {live}.{table}")
        scan = lifecycle.scan_dropped(table)
        lifecycle.approve(scan, who="ada", why="over")
        assert lifecycle.delete_dropped(scan).deleted > 3
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            for name in ("quarantines", "batches", "jobs", "scans", "known_tables"):
                connection.execute(text(f"DELETE FROM lifecycle.{name}"))
        assert lifecycle.undelete(scan.scan_id, who="ada", why="a backup").failed == 0
        files = set(local(data).iterdir())
        for path in files:
            make_old(path, timedelta(days=60))
        spark.sql(f"CREATE TABLE {live}.db.other (id int) USING iceberg LOCATION '{data}'")
        core_tables.sql(spark, f"INSERT INTO {live}.db.other VALUES (5)")

        lifecycle.delete_orphans(found := lifecycle.scan_orphans("db.other"))
        assert files and all(path.exists() for path in files)
        verdicts = {row["verdict"] for row in found.unreferenced().collect() if local(row["path"]) in files}
        assert verdicts == {UNDELETED}
        lifecycle.close_plan(scan.scan_id, who="ada", why="seen")
        assert lifecycle.scan_orphans("db.other").summary.orphan_files == len(files)


@pytest.mark.parametrize("why", ["a reader came back", "cold lost the copy"])
def test_a_purge_keeps_what_nothing_else_has(make_config: MakeConfig, spark: SparkSession, why: str) -> None:
    cold = {"enabled": why == "cold lost the copy"}
    policy = {**AT_ONCE, "cold_tier": cold, "deletion": {"grace": "0s", "mode": "quarantine"}}
    lifecycle = Lifecycle.open(make_config(defaults=policy, tables={"db.*": {}}), spark=spark)
    live = lifecycle.config.catalogs.live.name
    table = make_table(lifecycle, "t", 1)
    [row] = spark.sql(f"SELECT file_path FROM {live}.{table}.files").collect()
    data, before = local(row[0]), ""
    if why == "a reader came back":
        make_table(lifecycle, "r", 1)
        take_up(lifecycle, "db.r", data.parent)
        before = lifecycle.snapshot_history("db.r").metadata_location
        rows = ids("db.r", spark, live)
        spark.sql(f"INSERT OVERWRITE {live}.db.r SELECT 7 AS id")
        expire_in_metadata(lifecycle, "db.r", ids_of(lifecycle, "db.r")[:-1])
    spark.sql(f"INSERT OVERWRITE {live}.{table} SELECT 9 AS id")
    report = lifecycle.expire(table)
    [record] = lifecycle.quarantined(table)
    place = local(place_of(record.folder, row[0]))
    assert not data.exists() and place.exists()

    def execute(statement: str, **values: str) -> None:
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(text(statement), values)

    if before:
        execute(
            "UPDATE iceberg_tables SET metadata_location = :at WHERE catalog_name = :live AND table_name = 'r'",
            at=before,
            live=live,
        )
    else:
        [copy] = local(str(lifecycle.config.catalogs.cold.warehouse)).rglob(data.name)
        copy.unlink()
    execute("UPDATE lifecycle.quarantines SET purge_after = clock_timestamp() - interval '1 s'")
    [purged] = lifecycle.purge_quarantine(table)
    assert (purged.kept, purged.deleted) == (1, 0) and place.exists()
    lifecycle.undelete(report.job_id, who="ada", why="it is read again")
    if before:
        assert ids("db.r", spark, live) == rows
    else:
        lifecycle.hand_off(report.job_id)
        first = ids_of(lifecycle, table)[0]
        assert lifecycle.read(table, snapshot_id=first).count() == 1


def ids(table: str, spark: SparkSession, live: str) -> list[int]:
    spark.catalog.refreshTable(f"{live}.{table}")
    return sorted(row[0] for row in spark.sql(f"SELECT id FROM {live}.{table}").collect())


def test_a_purge_that_lost_its_lock_deletes_nothing(world: World, tmp_path: Path) -> None:
    """The lock's session is ended after the question what to keep, and before the first delete."""
    moved = tmp_path / "job" / "files" / "a.parquet"
    moved.parent.mkdir(parents=True)
    moved.write_text("moved")
    engine = world.operations.engine
    record = world.operations.quarantines.begin("job", "a-table", "db.t", f"file://{tmp_path}/job", timedelta(0))

    def lose_the_lock(files: pa.Table) -> Mapping[int, str]:
        with engine.connect() as other:
            other.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM lifecycle.locks JOIN pg_locks ON granted "
                    "AND locktype = 'transactionid' AND transactionid = locks.xmax WHERE name = 'table:a-table'"
                )
            )
        return {}

    lock = partial(table_lock, engine, "a-table", table="db.t")
    with pytest.raises(OperationsUnavailable):
        purge(world.stores, record, kept=lose_the_lock, lock=lock)
    assert moved.read_text() == "moved"


def _killed_at(point: str):  # type: ignore[no-untyped-def]
    def die(name: str) -> None:
        if name == point:
            raise Killed(name)

    return die
