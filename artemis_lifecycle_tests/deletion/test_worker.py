"""What a deletion promises: it does its job, stops and goes on, and says what became of every file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import text

from artemis_lifecycle.deletion.quarantine import QuarantinePlace
from artemis_lifecycle.errors import LeaseLost, StorageError
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.journal import BatchState
from artemis_lifecycle.storage.stores import DeleteOutcome, Stores
from artemis_lifecycle_tests.deletion.world import World, local, outcomes


class FailingStores(Stores):
    """Refuses to delete the paths that end in one of `refused`."""

    refused: tuple[str, ...] = ()

    def delete(self, paths: Sequence[str], *, until: float | None = None, **_: object) -> list[DeleteOutcome]:
        going = [path for path in paths if not path.endswith(self.refused)]
        done = {outcome.path: outcome for outcome in super().delete(going, until=until)}
        return [done.get(path) or DeleteOutcome(path, "failed", "503 SlowDown") for path in paths]


@pytest.fixture(scope="module")
def table(world: World) -> str:
    """One table for all jobs of files that a test drops into it."""
    world.create("del.shared")
    world.append("del.shared", 1, 2)
    return "del.shared"


def _garbage(world: World, table: str, name: str, count: int) -> list[tuple[str, str]]:
    return [(f"file://{world.drop_in(table, f'data/{name}-{i:03}.parquet')}", "data") for i in range(count)]


def test_a_job_deletes_its_files_and_nothing_else(world: World, anywhere: str) -> None:
    table = f"del.plain_{anywhere}"
    world.create(table)
    first = world.append(table, 1, 2)
    world.overwrite(table, 3)
    third = world.append(table, 4)
    job = world.plan(table, first)
    doomed = {str(local(row["path"])) for row in world.spark.read.parquet(job.files_location).collect()}
    before = world.on_disk(table)

    foreseen = world.delete(job, dry_run=True)
    assert world.on_disk(table) == before
    assert world.operations.journal.job(job.job_id) is None
    assert (foreseen.would_delete, foreseen.deleted, foreseen.kept) == (job.files, 0, 0)
    assert {row["outcome"] for row in foreseen.files().collect()} == {"would_delete"}

    report = world.delete(job)

    assert report.deleted == job.files == len(doomed) >= 3
    assert (report.failed, report.kept, report.already_absent, report.pending) == (0, 0, 0, 0)
    assert before - world.on_disk(table) == doomed
    # Hadoop's checksum files go with their files, and only with them.
    beside = {str(path) for path in world.place(table).rglob(".*.crc")}
    assert beside == {sidecar(path) for path in world.on_disk(table)}
    assert world.rows(table, third) == [3, 4]
    assert {outcome for outcome, _ in outcomes(report).values()} == {"deleted"}
    assert report.bytes == foreseen.would_delete_bytes > 0
    # Again: nothing is left to do, and the report is the same.
    assert world.delete(job) == report


def test_data_files_go_before_the_metadata_that_names_them(world: World, table: str) -> None:
    names = ["metadata/snap-1-1-x.avro", "metadata/x-m0.avro", "data/b.parquet", "data/a.parquet", "metadata/s.stats"]
    kinds = ["manifest_list", "manifest", "data", "position_deletes", "statistics"]
    job = world.job_of(
        table, [(f"file://{world.drop_in(table, name)}", kind) for name, kind in zip(names, kinds, strict=True)]
    )
    gone: list[str] = []

    class Watching(Stores):
        def delete(self, paths: Sequence[str], *, until: float | None = None, **_: object) -> list[DeleteOutcome]:
            gone.extend(path.rpartition("/")[2] for path in _without_sidecars(paths))
            return super().delete(paths, until=until)

    world.delete(job, stores=Watching(), files_per_batch=2)

    assert gone == ["a.parquet", "b.parquet", "s.stats", "x-m0.avro", "snap-1-1-x.avro"]


def test_a_file_that_is_gone_already_is_absent_and_no_error(world: World, table: str) -> None:
    files = _garbage(world, table, "absent", 2)
    local(files[0][0]).unlink()
    report = world.delete(world.job_of(table, files))
    assert (report.deleted, report.already_absent, report.failed) == (1, 1, 0)


def test_failed_files_are_tried_again_then_reported_and_the_next_run_goes_on(world: World, table: str) -> None:
    job = world.job_of(table, _garbage(world, table, "failing", 5))
    stores = FailingStores()
    stores.refused = ("failing-003.parquet",)

    report = world.delete(job, stores=stores, files_per_batch=2, rounds=2)

    assert (report.deleted, report.failed, report.pending) == (4, 1, 0)
    assert outcomes(report)["failing-003.parquet"] == ("failed", "503 SlowDown")
    failed = [batch for batch in world.operations.journal.batches(job.job_id) if batch.state == BatchState.FAILED]
    assert [batch.attempts for batch in failed] == [2]
    assert failed[0].error == "503 SlowDown"

    again = world.delete(job)
    assert (again.deleted, again.failed) == (5, 0)
    stored = world.operations.journal.job(job.job_id)
    assert stored is not None
    assert stored.finished_at is not None


def test_a_pause_stops_between_batches_and_the_next_run_goes_on(world: World, table: str) -> None:
    job = world.job_of(table, _garbage(world, table, "paused", 6))
    asked = iter(["", "", "the quiet window is over"])

    report = world.delete(job, files_per_batch=2, pause=lambda: next(asked) or None)

    assert (report.deleted, report.pending, report.paused) == (4, 2, "the quiet window is over")
    assert world.delete(job).deleted == 6


def test_the_pace_never_holds_more_than_a_second_of_files_under_the_lock(world: World, table: str) -> None:
    job = world.job_of(table, _garbage(world, table, "paced", 7))
    calls: list[int] = []
    reserved: list[int] = []

    class Counting(Stores):
        def reserve_deletes(self, paths: pa.Array) -> None:
            reserved.append(len(paths))

        def delete(self, paths: Sequence[str], *, until: float | None = None, **_: object) -> list[DeleteOutcome]:
            calls.append(len(_without_sidecars(paths)))
            return super().delete(paths, until=until)

    report = world.delete(job, stores=Counting(), requests_per_second=3.0)

    assert [call for call in calls if call] == [3, 3, 1] == reserved
    assert report.deleted == 7


def test_an_empty_job_is_done_at_once(world: World, table: str) -> None:
    job = world.job_of(table, [])
    report = world.delete(job)
    assert (report.deleted, report.pending) == (0, 0)
    assert report.files().count() == 0
    stored = world.operations.journal.job(job.job_id)
    assert stored is not None
    assert stored.finished_at is not None


@pytest.mark.usefixtures("anywhere")
def test_a_sealed_list_that_lost_rows_deletes_nothing(world: World, table: str) -> None:
    files = _garbage(world, table, "short", 3)
    job = world.job_of(table, files)
    short = type(job)(**{**job.__dict__, "files": 4})
    for dry_run in (True, False):
        with pytest.raises(StorageError, match="its record says 4"):
            world.delete(short, dry_run=dry_run)
    assert all(local(path).exists() for path, _ in files)


def test_a_damaged_batch_deletes_nothing(world: World, table: str) -> None:
    files = _garbage(world, table, "damaged", 3)
    job = world.job_of(table, files)
    assert world.delete(job, pause=lambda: "not yet").pending == 3
    part = next(local(f"{world.root}/deletions/{job.job_id}/batches").glob("batch-*.parquet"))
    part.write_bytes(part.read_bytes()[:-1] + b"\0")
    with pytest.raises(StorageError, match="checksum"):
        world.delete(job)
    assert all(local(path).exists() for path, _ in files)


@pytest.mark.parametrize("aside", [False, True])
def test_checksum_files_go_also_when_their_files_went_before_a_death(
    world: World, table: str, tmp_path: Path, aside: bool
) -> None:
    """One that outlives its file makes Hadoop refuse another of that name."""
    files = _garbage(world, table, f"beside-{aside}", 2)
    beside = [local(sidecar(path)) for path, _ in files]
    for each in beside:
        each.write_bytes(b"crc")
    job = world.job_of(table, files)
    place = QuarantinePlace(f"file://{tmp_path}/quarantine", timedelta(days=1)) if aside else None

    def crash(name: str) -> None:
        if name == "deletion.delete_files:after":
            raise _Crash

    with pytest.raises(_Crash), crash_points.installed(crash):
        world.delete(job, quarantine=place)
    assert not any(local(path).exists() for path, _ in files) and all(each.exists() for each in beside)
    report = world.delete(job, quarantine=place)
    assert report.deleted + report.already_absent == 2
    assert not any(each.exists() for each in beside)


def test_folders_that_a_deletion_left_empty_go_where_that_is_wanted(world: World, table: str) -> None:
    data = local(world.metadata(table).location) / "data"
    files = [
        f"file://{world.drop_in(table, f'data/day={day}/hour={hour}/x.parquet')}" for day in (1, 2) for hour in (1, 2)
    ]
    # One hour has a file that stays; another folder was empty before.
    alive = data / "day=1" / "hour=1" / "stays.parquet"
    alive.write_text("x")
    (data / "day=3").mkdir()
    report = world.delete(world.job_of(table, [(path, "data") for path in files]), remove_empty_folders=True)
    assert report.deleted == 4 and alive.exists()
    assert sorted(str(each.relative_to(data)) for each in data.rglob("*") if each.is_dir() and "=" in each.name) == [
        "day=1",
        "day=1/hour=1",
        "day=3",
    ]
    path = f"file://{world.drop_in(table, 'data/day=9/x.parquet')}"
    world.delete(world.job_of(table, [(path, "data")]))
    assert (data / "day=9").is_dir()
    alive.unlink()


def test_the_slower_of_two_workers_deletes_nothing_more(world: World, table: str) -> None:
    job = world.job_of(table, _garbage(world, table, "fenced", 4))
    leases = world.operations.leases
    states: list[int] = []

    def lose_the_lease() -> str | None:
        if len(states) == 1:
            _expire_leases(world, job.table_uuid)
            with leases.hold(job.table_uuid, step="delete", owner="the faster one", ttl=timedelta(minutes=5)):
                pass
        states.append(1)
        return None

    with pytest.raises(LeaseLost):
        world.delete(job, files_per_batch=2, pause=lose_the_lease)

    assert world.deleted(job.job_id) == 2
    assert sum(local(path).exists() for path, _ in _paths(world, job.files_location)) == 2
    assert world.delete(job).deleted == 4


class _Crash(Exception):  # noqa: N818
    pass


def sidecar(path: str) -> str:
    """Where Hadoop's local file system keeps the checksums of a file."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


def _without_sidecars(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if not path.endswith(".crc")]


def _paths(world: World, folder: str) -> list[tuple[str, str]]:
    return [(row["path"], row["kind"]) for row in world.spark.read.parquet(folder).collect()]


def _expire_leases(world: World, table_uuid: str) -> None:
    with world.operations.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE lifecycle.leases SET expires_at = clock_timestamp() - interval '1 second' "
                "WHERE table_uuid = :uuid"
            ),
            {"uuid": table_uuid},
        )
