"""Deleting a stored scan, while the world goes on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from artemis_lifecycle.deletion.worker import DeletionSettings
from artemis_lifecycle.errors import NoSuchPlan, Refused, StalePlan
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.scans import ScanState
from artemis_lifecycle_tests.deletion.world import World, make_old, outcomes

OLD = timedelta(days=20)
COMMIT = "0f3b5e52-9d6c-4a51-8c39-6f0e7f8d9b10"


@pytest.fixture
def table(world: World, request: pytest.FixtureRequest) -> str:
    name = "orphans." + request.node.name.removeprefix("test_")[:40].replace("[", "_").rstrip("]")
    world.create(name)
    world.append(name, 1, 2)
    world.age_all(name)
    return name


def test_only_the_orphans_go_and_again_does_nothing(world: World, table: str) -> None:
    alive = world.on_disk(table)
    for index in range(3):
        world.drop_in(table, f"data/{index}.parquet", data=b"x" * 10)
    scan = world.scan(table)

    foreseen = world.delete_scan(scan, dry_run=True)
    assert (foreseen.would_delete, foreseen.would_delete_bytes) == (3, 30)
    assert world.operations.scans.get(scan.scan_id).state == ScanState.OPEN

    report = world.delete_scan(scan)
    assert (report.deleted, report.bytes, report.kept, report.failed) == (3, 30, 0, 0)
    assert world.on_disk(table) == alive
    assert world.operations.scans.get(scan.scan_id).state == ScanState.DONE
    assert world.delete_scan(scan) == report
    assert world.rows(table) == [1, 2]
    recorded = world.spark.table(f"{world.name}.lifecycle.deletions").where(f"job_id = '{scan.scan_id}'")
    assert {row["outcome"] for row in recorded.collect()} == {"deleted"}


def test_a_writer_that_begins_after_the_scan_keeps_its_files(world: World, table: str) -> None:
    data = world.drop_in(table, "data/mine/half.parquet")
    manifest = world.drop_in(table, f"metadata/{COMMIT}-m0.avro")
    other = world.drop_in(table, "data/other/lost.parquet")
    scan = world.scan(table)
    world.operations.heartbeats.beat(scan.table_uuid, table, "w", "data/mine", timedelta(minutes=5))
    try:
        foreseen = world.delete_scan(scan, dry_run=True)
        report = world.delete_scan(scan)
    finally:
        world.operations.heartbeats.stop(scan.table_uuid, "w")

    assert (foreseen.would_delete, foreseen.kept) == (1, 2)
    assert outcomes(report) == {
        data.name: ("kept", "in_flight"),
        manifest.name: ("kept", "in_flight"),
        other.name: ("deleted", "listed, and no snapshot, plan or writer has it"),
    }
    assert data.exists()
    assert manifest.exists()
    assert not other.exists()


def test_a_writer_that_begins_between_two_batches_keeps_the_rest(world: World, table: str) -> None:
    for index in range(4):
        world.drop_in(table, f"data/{index}.parquet")
    scan = world.scan(table)
    asked = iter(range(10))

    def pause() -> None:
        if next(asked) == 1:
            world.operations.heartbeats.beat(scan.table_uuid, table, "w", None, timedelta(minutes=5))

    report = world.delete_scan(scan, pause=pause, settings=DeletionSettings(files_per_batch=2))
    world.operations.heartbeats.stop(scan.table_uuid, "w")

    assert (report.deleted, report.kept) == (2, 2)


def test_a_file_that_a_commit_took_up_since_the_scan_stays(world: World, table: str) -> None:
    snapshot = world.current_snapshot(table)
    first = world.data_file(table, snapshot)
    name = first.location().rpartition("/")[2]
    world.overwrite(table, 9)
    world.expire(table, snapshot)
    world.age_all(table)
    scan = world.scan(table)
    assert name in {row["path"].rpartition("/")[2] for row in scan.files().collect()}
    world.java(table).newFastAppend().appendFile(first).commit()

    report = world.delete_scan(scan)

    assert outcomes(report)[name] == ("kept", "reachable")
    assert outcomes(report)[f".{name}.crc"] == ("kept", "reachable")
    assert world.rows(table) == [1, 2, 9]


def test_a_file_written_again_since_the_listing_is_another_file(world: World, table: str) -> None:
    rewritten = world.drop_in(table, "data/rewritten.parquet", data=b"old!")
    touched = world.drop_in(table, "data/touched.parquet")
    gone = world.drop_in(table, "data/gone.parquet")
    scan = world.scan(table)
    rewritten.write_bytes(b"new and longer")
    make_old(rewritten, OLD)
    make_old(touched, timedelta(hours=1))
    gone.unlink()

    report = world.delete_scan(scan)

    assert outcomes(report)["rewritten.parquet"] == ("kept", "changed_since_listing")
    assert outcomes(report)["touched.parquet"] == ("kept", "changed_since_listing")
    assert outcomes(report)["gone.parquet"][0] == "absent"
    assert rewritten.exists()
    assert touched.exists()


def test_a_hold_on_the_table_stops_it_and_one_on_snapshots_does_not(world: World, table: str) -> None:
    lost = world.drop_in(table, "data/lost.parquet")
    scan = world.scan(table)
    holds = world.operations.holds
    whole = holds.place(scan.table_uuid, table, "legal", "case 1")
    with pytest.raises(Refused, match=whole.hold_id):
        world.delete_scan(scan)
    assert lost.exists()
    holds.release(whole.hold_id)
    holds.place(scan.table_uuid, table, "legal", "case 2", (world.current_snapshot(table),))
    assert world.delete_scan(scan).deleted == 1


def test_a_table_dropped_since_the_scan_stops_it(world: World, table: str) -> None:
    lost = world.drop_in(table, "data/lost.parquet")
    scan = world.scan(table)
    world.spark.sql(f"DROP TABLE {world.name}.{table}")
    with pytest.raises(StalePlan):
        world.delete_scan(scan)
    assert lost.exists()


def test_a_table_created_around_an_orphan_since_the_scan_owns_it(world: World, table: str) -> None:
    lost = world.drop_in(table, "sub/data/lost.parquet")
    scan = world.scan(table)
    world.create("orphans.newcomer", location=world.place(table) / "sub")
    assert outcomes(world.delete_scan(scan)) == {"lost.parquet": ("kept", "other_table")}
    assert lost.exists()


def test_a_crash_in_scan_or_deletion_is_gone_on_from(world: World, table: str) -> None:
    for index in range(2):
        world.drop_in(table, f"data/{index}.parquet")
    alive = world.rows(table)

    def crash_at(name: str):  # type: ignore[no-untyped-def]
        def reached(point: str) -> None:
            if point == name:
                raise RuntimeError(name)

        return crash_points.installed(reached)

    for name in ("orphans.seal_listing:before", "orphans.seal_listing:after", "orphans.seal_scan:after"):
        with crash_at(name), pytest.raises(RuntimeError):
            world.scan(table)
    scan = world.scan(table)
    for name in ("scans.mark.deleting:after", "deletion.delete_files:after", "scans.mark.done:before"):
        with crash_at(name), pytest.raises(RuntimeError):
            world.delete_scan(scan)
        # Another scan leaves the files of the interrupted one to it.
        assert world.scan(table).summary.orphan_files == 0
    report = world.delete_scan(scan)
    assert report.deleted + report.already_absent == 2
    assert world.operations.scans.get(scan.scan_id).state == ScanState.DONE
    assert world.rows(table) == alive


def test_an_unknown_scan_is_said_to_be_unknown(world: World, table: str) -> None:
    scan = world.scan(table)
    unknown = type(scan)(**{**scan.__dict__, "scan_id": "scan-of-nobody"})
    with pytest.raises(NoSuchPlan):
        world.delete_scan(unknown)
