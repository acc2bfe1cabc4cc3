"""What is an orphan, and above all what only looks like one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from artemis_lifecycle.errors import (
    BadInput,
    LocationConflict,
    MissingFile,
    NaiveDatetime,
    NoSuchTable,
    PrefixMismatch,
    StaleMetadata,
    UnreadableMetadata,
)
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.plans import PlanRecord, PlanStatus
from artemis_lifecycle.orphans.external_listing import given_listing
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.scan import OrphanScanResult, ScanSettings, load_scan, scan_orphans
from artemis_lifecycle.protection.ownership import subject
from artemis_lifecycle.storage.location import DEFAULT_RULES, LocationRules, normalize
from artemis_lifecycle_tests.deletion.world import World, local

OLD = timedelta(days=20)
COMMIT = "0f3b5e52-9d6c-4a51-8c39-6f0e7f8d9b10"


@pytest.fixture(scope="module")
def table(world: World) -> str:
    """One table with a little history; every file of it is old, so that age protects none."""
    name = "scan.shared"
    world.create(name)
    world.append(name, 1, 2)
    world.overwrite(name, 3)
    world.append(name, 4)
    world.age_all(name)
    return name


@pytest.fixture(autouse=True)
def clean(world: World) -> Iterator[None]:
    """A test's garbage is gone when it ends."""
    world.dropped.clear()
    yield
    for path in world.dropped:
        path.unlink(missing_ok=True)


def verdicts(scan: OrphanScanResult) -> dict[str, str]:
    """File name to verdict, of every listed file that the table does not reach."""
    return {row["path"].rpartition("/")[2]: row["verdict"] for row in scan.unreferenced().collect()}


def _file_of_nobody(world: World, table: str, name: str, *, recorded: str | None = None) -> Any:
    """A data file on disk, old, and Iceberg's object for it (under another path, if `recorded` says so)."""
    path = world.drop_in(table, name, age=OLD)
    world.dropped.remove(path)
    loaded = world.java(table)
    jvm: Any = world.spark._jvm
    return (
        jvm.org.apache.iceberg.DataFiles.builder(loaded.spec())
        .withPath(recorded or f"file://{path}")
        .withFormat("parquet")
        .withFileSizeInBytes(path.stat().st_size)
        .withRecordCount(1)
        .build()
    )


def test_orphans_are_found_and_nothing_else(world: World, table: str) -> None:
    world.drop_in(table, f"data/00000-1-{COMMIT}-0-00001.parquet")
    world.drop_in(table, f"metadata/snap-77-1-{COMMIT}.avro")
    world.drop_in(table, f"metadata/{COMMIT}-m0.avro")
    world.drop_in(table, "data/copied by hand", data=b"12345")
    metadata = world.metadata(table)

    scan = world.scan(table)

    found = {row["path"].rpartition("/")[2]: row for row in scan.files().collect()}
    assert {name: (row["kind"], row["origin"]) for name, row in found.items()} == {
        f"00000-1-{COMMIT}-0-00001.parquet": ("data", "crashed_writer"),
        f"snap-77-1-{COMMIT}.avro": ("manifest_list", "unknown"),
        f"{COMMIT}-m0.avro": ("manifest", "unknown"),
        "copied by hand": ("data", "unknown"),
    }
    assert {row["path"].rpartition("/")[2] for row in scan.orphan_data_files.collect()} == {
        f"00000-1-{COMMIT}-0-00001.parquet",
        "copied by hand",
    }
    assert scan.orphan_manifests.count() == 2
    assert scan.summary.orphan_files == 4
    assert scan.summary.orphan_bytes == 5 + 3 * 4
    assert scan.summary.listed_files == scan.summary.orphan_files + sum(
        count for reason, count in scan.summary.files_by_reason.items() if reason != "orphan"
    )
    # Spark's local files have checksum files beside them, which are no orphans while their file is none.
    assert scan.summary.files_by_reason["current_metadata"] == 2 * (len(metadata.metadata_log) + 1)
    assert set(verdicts(scan).values()) == {"orphan", "current_metadata"}
    assert scan.metadata_location == metadata.metadata_location
    assert found["copied by hand"]["size_in_bytes"] == 5
    assert world.rows(table) == [3, 4]


@pytest.mark.usefixtures("anywhere")
def test_a_scan_stops_where_a_reachable_file_is_not_in_the_store(world: World) -> None:
    """As after a flipped bit in a manifest: it names another path, and the right file looks like an orphan."""
    table = world.create(f"scan.flipped_{uuid.uuid4().hex[:6]}")
    world.append(table, 1)
    right = world.place(table) / "data" / "00000-7-right.parquet"
    wrong = _file_of_nobody(
        world, table, "data/00000-7-right.parquet", recorded=f"file://{right}".replace("-7-", "-6-")
    )
    world.java(table).newAppend().appendFile(wrong).commit()
    world.age_all(table)

    assert verdicts(world.scan(table))[right.name] == "orphan"
    with pytest.raises(MissingFile, match=r"00000-6-right\.parquet"):
        world.scan(table, missing_files="error")
    # A file that was lost stops it too, and one that came after the listing does not.
    right.rename(right.with_name("00000-6-right.parquet"))
    listing = world.list(table)
    assert world.scan(table, listing, missing_files="error").summary.orphan_files == 0
    late = _file_of_nobody(world, table, "data/late.parquet")
    world.java(table).newAppend().appendFile(late).commit()
    behind = replace(listing, started_at=world.operations.clock.now(), finished_at=world.operations.clock.now())
    assert world.scan(table, behind, missing_files="error").summary.orphan_files == 0
    local(str(world.data_file(table, world.current_snapshot(table)).location())).unlink()
    with pytest.raises(MissingFile, match=r"late\.parquet"):
        world.scan(table, behind, missing_files="error")
    # What Hadoop left beside it does not stand for it.
    beside = world.drop_in(table, "data/.late.parquet.crc")
    with pytest.raises(MissingFile, match=r"late\.parquet"):
        world.scan(table, world.list(table), missing_files="error")
    beside.unlink()


def test_a_file_that_only_a_table_elsewhere_reads_is_not_an_orphan(world: World, table: str) -> None:
    elsewhere = "scan_far.reader"
    file = _file_of_nobody(world, table, "data/added-elsewhere.parquet")
    assert verdicts(world.scan(table))["added-elsewhere.parquet"] == "orphan"
    late = world.scan(table)

    world.create(elsewhere)
    world.java(elsewhere).newAppend().appendFile(file).commit()

    assert verdicts(world.scan(table))["added-elsewhere.parquet"] == f"reachable from {elsewhere}"
    report = world.delete_scan(late)
    assert (report.deleted, report.kept) == (0, 1)
    assert {row["reason"] for row in report.files().collect()} == {f"reachable from {elsewhere}"}
    world.spark.sql(f"DROP TABLE {world.name}.{elsewhere}")
    assert verdicts(world.scan(table))["added-elsewhere.parquet"] == "orphan"
    local(str(file.location())).unlink()


def test_another_process_reads_the_scan_by_its_id(world: World, table: str) -> None:
    world.drop_in(table, "data/found-again.parquet")
    scan = world.scan(table)
    elsewhere = Operations.open(world.operations.engine.url.render_as_string(hide_password=False))
    try:
        assert load_scan(world.spark, world.stores, elsewhere, scan.scan_id) == scan
    finally:
        elsewhere.close()


def test_a_commit_between_the_listing_and_the_history_is_never_an_orphan(world: World, table: str) -> None:
    file = _file_of_nobody(world, table, "data/in-between.parquet")
    listing = world.list(table)
    append = world.java(table).newFastAppend().appendFile(file)
    append.commit()
    try:
        scan = world.scan(table, listing)
    finally:
        world.java(table).newDelete().deleteFile(file).commit()
        world.age_all(table)

    assert "in-between.parquet" not in verdicts(scan)


def test_metadata_read_before_the_listing_ended_is_refused(world: World, table: str) -> None:
    before = world.operations.clock.now()
    listing = world.list(table)
    with pytest.raises(StaleMetadata, match="before the listing ended"):
        world.scan(table, listing, history_read_at=before)
    with pytest.raises(StaleMetadata):
        world.scan(table, listing, history_read_at=listing.finished_at - timedelta(microseconds=1))


def test_young_files_future_files_and_files_of_unknown_age_stay(world: World, table: str) -> None:
    world.drop_in(table, "data/young.parquet", age=timedelta(days=6, hours=23))
    world.drop_in(table, "data/future.parquet", age=-timedelta(days=3))
    world.drop_in(table, "data/old.parquet", age=timedelta(days=7, hours=1))
    place = world.metadata(table).location
    rows = [(f"{place}/data/ageless.parquet", None, 1)]
    given = given_listing(
        world.spark,
        world.stores,
        world.spark.createDataFrame(rows, "path string, last_modified timestamp, size_in_bytes bigint"),
        [place],
        taken_at=world.operations.clock.now(),
        root=world.root,
        clock=world.operations.clock.now,
        rules=DEFAULT_RULES,
    )

    scan = world.scan(table)

    found = verdicts(scan)
    assert (found["young.parquet"], found["future.parquet"], found["old.parquet"]) == (
        "too_young",
        "too_young",
        "orphan",
    )
    assert scan.skipped_in_flight == scan.summary.too_young == 2
    assert verdicts(world.scan(table, given)) == {"ageless.parquet": "unknown_age"}


def test_age_counts_from_the_listing_and_now_can_only_make_it_earlier(world: World, table: str) -> None:
    world.drop_in(table, "data/eight-days.parquet", age=timedelta(days=8))
    listing = world.list(table)
    now = world.operations.clock.now()
    assert verdicts(world.scan(table, listing, now=now + timedelta(days=30)))["eight-days.parquet"] == "orphan"
    assert verdicts(world.scan(table, listing, now=now - timedelta(days=2)))["eight-days.parquet"] == "too_young"
    older_than = now - timedelta(days=9)
    assert verdicts(world.scan(table, listing, older_than=older_than))["eight-days.parquet"] == "too_young"


def test_older_than_cannot_come_nearer_than_the_floor(world: World, table: str) -> None:
    listing = world.list(table)
    with pytest.raises(BadInput, match="min_age_floor"):
        world.scan(table, listing, older_than=listing.started_at - timedelta(hours=23))
    with pytest.raises(NaiveDatetime):
        world.scan(table, listing, older_than=datetime(2024, 1, 1))
    with pytest.raises(NaiveDatetime):
        world.scan(table, listing, now=datetime(2024, 1, 1))


def test_a_live_writer_keeps_every_unreferenced_file_of_its_table(world: World, table: str) -> None:
    world.drop_in(table, "data/half-written.parquet", age=timedelta(days=400))
    world.drop_in(table, f"metadata/{COMMIT}-m3.avro", age=timedelta(days=400))
    uuid_ = world.metadata(table).table_uuid
    beats = world.operations.heartbeats
    beats.beat(uuid_, table, "backfill", None, timedelta(minutes=5))
    try:
        scan = world.scan(table)
    finally:
        beats.stop(uuid_, "backfill")

    found = verdicts(scan)
    assert found["half-written.parquet"] == found[f"{COMMIT}-m3.avro"] == "in_flight"
    assert scan.summary.orphan_files == 0
    assert scan.skipped_in_flight == scan.summary.live_writers == 2
    assert verdicts(world.scan(table))["half-written.parquet"] == "orphan"


@pytest.mark.parametrize("absolute", [True, False])
def test_a_writers_prefix_covers_its_data_and_the_metadata_it_will_write(
    world: World, table: str, absolute: bool
) -> None:
    world.drop_in(table, "data/day=1/mine.parquet")
    world.drop_in(table, "data/day=11/other.parquet")
    world.drop_in(table, f"metadata/snap-5-1-{COMMIT}.avro")
    uuid_ = world.metadata(table).table_uuid
    prefix = f"{world.metadata(table).location}/data/day=1" if absolute else "data/day=1/"
    world.operations.heartbeats.beat(uuid_, table, "w1", prefix, timedelta(minutes=5))
    try:
        found = verdicts(world.scan(table))
    finally:
        world.operations.heartbeats.stop(uuid_, "w1")

    assert found["mine.parquet"] == found[f"snap-5-1-{COMMIT}.avro"] == "in_flight"
    assert found["other.parquet"] == "orphan"


def test_a_heartbeat_that_lapsed_protects_no_more(world: World, table: str) -> None:
    world.drop_in(table, "data/abandoned.parquet")
    uuid_ = world.metadata(table).table_uuid
    world.operations.heartbeats.beat(uuid_, table, "dead", None, timedelta(milliseconds=1))
    assert verdicts(world.scan(table))["abandoned.parquet"] == "orphan"


def test_files_of_open_plans_stay_until_their_plan_ends(world: World) -> None:
    table = "scan.planned"
    world.create(table)
    first = world.append(table, 1)
    world.overwrite(table, 2)
    job = world.plan(table, first)
    world.age_all(table)
    base = world.metadata(table).metadata_log[-1].metadata_file
    world.operations.plans.seal(
        PlanRecord(
            plan_id=job.job_id,
            content_id=job.job_id,
            table_uuid=job.table_uuid,
            table=table,
            status=PlanStatus.OPEN,
            base_metadata_location=base,
            files_location=job.files_location,
            rule="as-of",
            expired_snapshots=0,
            expired_refs=(),
            files=job.files,
            bytes=1,
            summary="{}",
            planned_at=world.operations.clock.now(),
        )
    )

    scan = world.scan(table)
    assert scan.summary.orphan_files == 0
    assert scan.summary.files_by_reason["open_plan"] == 2 * job.files

    world.operations.plans.close(job.job_id, "j.smith", "given up")
    scan = world.scan(table)
    assert scan.summary.orphan_files == 2 * job.files
    assert {normalize(subject(row["path"])) for row in scan.files().collect()} == {
        normalize(row["path"]) for row in world.spark.read.parquet(job.files_location).collect()
    }


def test_statistics_and_the_version_hint_are_not_orphans(world: World) -> None:
    table = "scan.statistics"
    world.create(table)
    world.append(table, 1, 2)
    world.spark.sql(f"CALL {world.name}.system.compute_table_stats('{table}')")
    world.drop_in(table, "metadata/version-hint.text")
    world.drop_in(table, f"metadata/20240101_000000-{COMMIT}.stats")
    world.age_all(table)
    assert len(world.metadata(table).statistics) == 1

    scan = world.scan(table)

    assert [row["path"].rpartition("/")[2] for row in scan.files().collect()] == [f"20240101_000000-{COMMIT}.stats"]


def test_metadata_files_outside_the_log_go_only_after_the_window(world: World) -> None:
    table = "scan.log"
    world.create(table, properties="'write.metadata.previous-versions-max'='1'")
    for number in range(3):
        world.append(table, number)
    metadata = world.metadata(table)
    assert len(metadata.metadata_log) == 1
    world.age_all(table, timedelta(days=29))
    listing = world.list(table)
    assert world.scan(table, listing).summary.orphan_files == 0
    assert world.scan(table, listing).summary.too_young == 2 * 2

    world.age_all(table, timedelta(days=31))
    scan = world.scan(table)
    assert {row["kind"] for row in scan.files().collect()} == {"metadata"}
    assert scan.summary.orphan_files == 2 * 2


def test_another_tables_files_inside_this_one_are_its_own(world: World) -> None:
    table, inner, shared = "scan.outer", "scan.inner", "scan.same_place"
    world.create(table)
    world.append(table, 1)
    world.create(inner, location=world.place(table) / "inner")
    world.append(inner, 2)
    world.create(shared, location=world.place(table) / "inner" / "data")
    world.drop_in(table, "inner/data/lost.parquet")
    world.drop_in(table, "data/lost.parquet")
    world.age_all(table)

    found = {row["path"]: row["verdict"] for row in world.scan(table).unreferenced().collect()}
    place = world.place(table)
    assert found[f"file://{place}/inner/data/lost.parquet"] == "other_table"
    assert found[f"file://{place}/data/lost.parquet"] == "orphan"
    orphans = [path for path, verdict in found.items() if verdict == "orphan"]
    assert orphans == [f"file://{place}/data/lost.parquet"]

    # Seen from the inside: what the outer table reaches there is alive.
    file = _file_of_nobody(world, inner, "data/outer-reads-this.parquet")
    world.java(table).newFastAppend().appendFile(file).commit()
    assert verdicts(world.scan(inner))["outer-reads-this.parquet"] == "reachable from scan.outer"


def test_what_an_outer_table_reaches_is_not_an_orphan_of_the_inner_one(world: World, anywhere: str) -> None:
    around, inner = f"scan.around_{anywhere}", f"scan.within_{anywhere}"
    world.create(around)
    world.create(inner, location=world.place(around) / "within")
    world.append(inner, 1)
    file = _file_of_nobody(world, inner, "data/shared.parquet")
    world.drop_in(inner, "data/lost.parquet")
    world.java(around).newFastAppend().appendFile(file).commit()
    world.age_all(inner)

    found = verdicts(world.scan(inner))
    assert found["shared.parquet"] == f"reachable from {around}"
    assert found["lost.parquet"] == "orphan"

    # A writer of the outer table may be writing anywhere in it.
    outer = world.metadata(around).table_uuid
    world.operations.heartbeats.beat(outer, around, "w", None, timedelta(minutes=5))
    try:
        assert verdicts(world.scan(inner))["lost.parquet"] == "in_flight"
    finally:
        world.operations.heartbeats.stop(outer, "w")


def test_anything_unreadable_is_an_error_and_no_scan(world: World, table: str) -> None:
    world.drop_in(table, "data/orphan.parquet")
    metadata = world.metadata(table)
    snapshot = metadata.current_snapshot
    assert snapshot is not None
    assert snapshot.manifest_list is not None
    manifest = local(manifests_of(world.stores, snapshot).entries[0].manifest_path)
    pointed = local(metadata.metadata_location)
    before = world.operations.scans.of_table(metadata.table_uuid)
    listing = world.list(table)
    for path, kept in ((manifest, -7), (manifest, None), (local(snapshot.manifest_list), 0), (pointed, -7)):
        whole = path.read_bytes()
        path.write_bytes(whole[:kept])
        if kept is None:
            path.unlink()
        try:
            with pytest.raises(UnreadableMetadata):
                _scan_as(world, table, metadata.table_uuid, listing)
        finally:
            path.write_bytes(whole)
    assert world.operations.scans.of_table(metadata.table_uuid) == before
    world.age_all(table)


def _scan_as(world: World, table: str, table_uuid: str, listing: Listing) -> OrphanScanResult:
    settings = ScanSettings(timedelta(days=7), timedelta(hours=24), timedelta(days=30))
    return scan_orphans(world.context(table), listing, settings, table_uuid=table_uuid)


def test_a_table_that_is_gone_or_another_is_not_scanned(world: World, table: str) -> None:
    with pytest.raises(NoSuchTable, match="another table"):
        _scan_as(world, table, str(uuid.uuid4()), world.list(table))


def test_a_prefix_mismatch_is_an_error_that_names_the_pair(world: World) -> None:
    table = "scan.mismatch"
    world.create(table)
    place = world.place(table)
    recorded = f"hdfs://nn1{place}/data/live.parquet"
    file = _file_of_nobody(world, table, "data/live.parquet", recorded=recorded)
    world.java(table).newFastAppend().appendFile(file).commit()
    world.drop_in(table, "data/lost.parquet")
    world.age_all(table)
    listing = world.list(table)

    with pytest.raises(PrefixMismatch) as error:
        world.scan(table, listing)
    assert f"file://{place}/data/live.parquet and {recorded}" in str(error.value)

    ignored = verdicts(world.scan(table, listing, prefix_mismatch="ignore"))
    assert (ignored["live.parquet"], ignored["lost.parquet"]) == ("prefix_mismatch", "orphan")
    assert verdicts(world.scan(table, listing, prefix_mismatch="delete"))["live.parquet"] == "orphan"
    equal = LocationRules(equal_schemes={"hdfs": "file"}, equal_authorities={"nn1": ""})
    assert "live.parquet" not in verdicts(world.scan(table, listing, rules=equal))


def test_lookalike_names_are_different_files(world: World) -> None:
    table = "scan.alike"
    world.create(table)
    alive = ["data/a b.parquet", "data/ü.parquet", "data/Upper.parquet", "data/x/-y.parquet", "data/q?x#y.parquet"]
    dead = ["data/a%20b.parquet", "data/u\u0308.parquet", "data/upper.parquet", "data/x/y.parquet", "data/q.parquet"]
    append = world.java(table).newFastAppend()
    for name in alive:
        append = append.appendFile(_file_of_nobody(world, table, name))
    append.commit()
    for name in dead:
        world.drop_in(table, name)
    world.age_all(table)

    found = {row["path"].partition("/alike/")[2] for row in world.scan(table).files().collect()}

    assert found == set(dead)


def test_the_order_of_reading_protects_a_writer_that_ends_during_the_scan(
    world: World, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits and stops its heartbeat after heartbeats were read and before the pointer is: seen by both."""
    file = _file_of_nobody(world, table, "data/finishing.parquet")
    uuid_ = world.metadata(table).table_uuid
    beats = world.operations.heartbeats
    beats.beat(uuid_, table, "finishing", None, timedelta(minutes=5))
    listing = world.list(table)
    live = type(beats).live
    asked: list[object] = []

    def commit_and_stop(self: object, table_uuid: str | None = None) -> object:
        found = live(self, table_uuid)  # type: ignore[arg-type]
        if not asked:
            asked.append(1)
            world.java(table).newFastAppend().appendFile(file).commit()
            beats.stop(uuid_, "finishing")
        return found

    monkeypatch.setattr(type(beats), "live", commit_and_stop)
    try:
        scan = world.scan(table, listing)
    finally:
        monkeypatch.undo()
        world.java(table).newDelete().deleteFile(file).commit()
        world.age_all(table)

    assert scan.summary.orphan_files == 0
    assert "finishing.parquet" not in verdicts(scan)


def test_a_table_at_the_root_of_its_store_is_refused(world: World, table: str) -> None:
    with pytest.raises(LocationConflict):
        world.list(table, "file:///")


def test_times_are_utc(world: World, table: str) -> None:
    scan = world.scan(table)
    assert scan.listed_at.tzinfo is not None
    assert scan.metadata_read_at >= scan.listed_at
    assert scan.listed_at.astimezone(UTC) == scan.listed_at
