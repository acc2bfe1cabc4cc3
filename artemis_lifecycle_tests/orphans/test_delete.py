"""Deleting a stored scan, while the world goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from artemis_lifecycle.deletion import worker
from artemis_lifecycle.deletion.worker import DeletionSettings
from artemis_lifecycle.errors import NoSuchPlan, Refused, StalePlan
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.scans import ScanState
from artemis_lifecycle.protection.protection import Protection
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import Removals
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
    assert [each.job_id for each in world.operations.publications.pending(world.name)] == [scan.scan_id]


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


def test_a_file_that_is_rewritten_during_a_slow_check_stays(
    world: World, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a writer that asks nobody. What the first look said of the file is as old as what it said of the table."""
    orphan = world.drop_in(table, "data/orphan.parquet")
    other = world.drop_in(table, "data/other.parquet")
    scan = world.scan(table)
    began, look = elapsed(), Protection.kept
    checks: list[int] = []

    def slow(self: Protection, *files: Any) -> dict[int, str]:
        checks.append(1)
        if len(checks) == 1:
            orphan.write_bytes(b"written again")
        return look(self, *files)

    # The first look takes twenty seconds; nobody waits for them.
    monkeypatch.setattr(Protection, "kept", slow)
    for module in (worker, worker):
        monkeypatch.setattr(module, "elapsed", lambda: began + 20.0 * len(checks[:1]))
    monkeypatch.setattr(worker, "_DELETES_LAST", 600.0)

    report = world.delete_scan(scan)

    assert len(checks) > 1
    assert outcomes(report)["orphan.parquet"] == ("kept", "changed_since_listing")
    assert outcomes(report)["other.parquet"][0] == "deleted"
    assert orphan.read_bytes() == b"written again" and not other.exists()


class _Died(BaseException):
    pass


class _DyingStores(Stores):
    """Deletes half of its files, and dies."""

    def remove(self, paths: pa.Array, *, until: float | None = None) -> Removals:
        super().remove(paths.slice(0, len(paths) // 2), until=until)
        raise _Died


def test_many_files_of_a_batch_have_each_their_own_fate_and_so_after_a_death(
    world: World, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One revived, others not what was listed."""
    snapshot = world.current_snapshot(table)
    revived = world.data_file(table, snapshot)
    world.overwrite(table, 9)
    world.expire(table, snapshot)
    data = world.place(table) / "data"
    for number in range(700):
        (data / f"day={number % 7}").mkdir(exist_ok=True)
        (data / f"day={number % 7}" / f"{number:03}.parquet").write_bytes(b"PAR1" * (number % 3 + 1))
    world.age_all(table)
    orphans = {path.name: path for path in sorted(data.glob("day=*/*"))}
    scan = world.scan(table)
    found = scan.files().count()
    assert found >= 701

    world.java(table).newFastAppend().appendFile(revived).commit()
    orphans["111.parquet"].write_bytes(b"longer than it was")
    make_old(orphans["111.parquet"], OLD)
    make_old(orphans["222.parquet"], timedelta(hours=1))
    orphans["333.parquet"].unlink()
    orphans["444.parquet"].unlink()
    orphans["444.parquet"].mkdir()
    beside = [path.parent / f".{path.name}.crc" for path in orphans.values() if path.name.endswith("5.parquet")]
    for path in beside:
        path.write_bytes(b"crc")
    name = revived.location().rpartition("/")[2]
    kept = {
        name: ("kept", "reachable"),
        f".{name}.crc": ("kept", "reachable"),
        "111.parquet": ("kept", "changed_since_listing"),
        "222.parquet": ("kept", "changed_since_listing"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(world, "stores", _DyingStores())
        with pytest.raises(_Died):
            world.delete_scan(scan)
    half = [path for path in orphans.values() if path.is_file()]
    assert 0 < len(half) < 400

    report = world.delete_scan(scan)
    outcome_of = outcomes(report)
    assert {each: outcome_of[each] for each in outcome_of if outcome_of[each][0] == "kept"} == kept
    gone = {each: outcome_of[each] for each in orphans if each not in kept}
    assert {each for each, (outcome, _) in gone.items() if outcome == "deleted"} == {
        path.name for path in half if path.name not in kept
    }
    died = "listed, and no snapshot, plan or writer has it; an interrupted attempt may have deleted it"
    assert {what for what in gone.values() if what[0] != "deleted"} == {("absent", died)}
    assert report.deleted + report.already_absent == found - 4 and not report.failed
    assert report.bytes == sum(row["size_in_bytes"] for row in report.files().where("outcome = 'deleted'").collect())
    assert {path.name for path in data.glob("day=*/*")} == {"111.parquet", "222.parquet", "444.parquet"}
    assert not [path for path in beside if path.exists()]
    assert world.rows(table) == [1, 2, 9]


def test_a_hold_on_the_table_stops_it_and_one_on_snapshots_does_not(world: World, table: str) -> None:
    lost = world.drop_in(table, "data/lost.parquet")
    scan = world.scan(table)
    holds = world.operations.holds
    whole = holds.place(scan.table_uuid, table, "legal", "case 1")
    with pytest.raises(Refused, match=whole.hold_id):
        world.delete_scan(scan)
    assert lost.exists()
    holds.release(whole.hold_id, "ada")
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


def test_an_unknown_scan_is_reported_as_unknown(world: World, table: str) -> None:
    scan = world.scan(table)
    unknown = type(scan)(**{**scan.__dict__, "scan_id": "scan-of-nobody"})
    with pytest.raises(NoSuchPlan):
        world.delete_scan(unknown)
