"""Each test tries to make a deletion destroy something alive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from artemis_lifecycle.errors import Busy, GarbageCollectionDisabled, Refused, StalePlan, UnreadableMetadata
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.protection.protection import Protection
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle_tests.deletion.world import World, local, outcomes


def _expired(world: World, table: str) -> tuple[int, int]:
    """A table with one snapshot to expire, whose file no other snapshot has."""
    world.create(table)
    first = world.append(table, 1, 2)
    return first, world.overwrite(table, 3)


def _after_batches(count: int, act: Callable[[], object]) -> Callable[[], str | None]:
    """A `pause` that never pauses, and acts once before the batch after `count` others."""
    asked = iter(range(1000))

    def pause() -> str | None:
        if next(asked) == count:
            act()
        return None

    return pause


def test_a_file_committed_again_after_the_plan_stays(world: World) -> None:
    first, _ = _expired(world, "look.readd")
    file = world.data_file("look.readd", first)
    job = world.plan("look.readd", first)
    world.java("look.readd").newAppend().appendFile(file).commit()

    report = world.delete(job)

    assert outcomes(report)[file.location().rpartition("/")[2]] == ("kept", "reachable")
    assert report.kept == 1
    assert report.deleted == job.files - 1
    assert world.rows("look.readd") == [1, 2, 3]


def test_a_file_committed_again_between_two_batches_stays(world: World) -> None:
    table = "look.between"
    world.create(table)
    doomed = [world.append(table, number) for number in range(4)]
    world.overwrite(table, 9)
    # The last data file by path: its batch is the last of the data files.
    files = sorted((world.data_file(table, snapshot) for snapshot in doomed), key=lambda file: str(file.location()))
    job = world.plan(table, *doomed)

    report = world.delete(
        job,
        files_per_batch=1,
        pause=_after_batches(2, lambda: world.java(table).newAppend().appendFile(files[3]).commit()),
    )

    assert outcomes(report)[files[3].location().rpartition("/")[2]] == ("kept", "reachable")
    assert len(world.rows(table)) == 2
    assert report.deleted == job.files - 1


def test_every_new_snapshot_between_two_checks_is_read_not_only_the_current_one(world: World) -> None:
    table = "look.branch"
    first, second = _expired(world, table)
    file = world.data_file(table, first)
    job = world.plan(table, first)
    world.spark.sql(f"ALTER TABLE {world.name}.{table} CREATE BRANCH audit AS OF VERSION {second}")

    def revive_on_a_branch() -> None:
        world.java(table).newAppend().appendFile(file).toBranch("audit").commit()
        world.append(table, 7)

    report = world.delete(job, files_per_batch=1, pause=_after_batches(0, revive_on_a_branch))

    assert outcomes(report)[file.location().rpartition("/")[2]] == ("kept", "reachable")
    assert world.rows(f"{table}.branch_audit") == [1, 2, 3]


def test_more_new_manifests_than_one_check_reads_require_a_full_check(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "look.many"
    first, _ = _expired(world, table)
    file = world.data_file(table, first)
    job = world.plan(table, first)
    monkeypatch.setattr("artemis_lifecycle.protection.table_state._MANIFESTS_ON_DRIVER", 0)

    report = world.delete(job, pause=_after_batches(0, lambda: world.java(table).newAppend().appendFile(file).commit()))

    assert outcomes(report)[file.location().rpartition("/")[2]] == ("kept", "reachable")


def test_a_plan_that_was_never_committed_deletes_nothing(world: World) -> None:
    first, _ = _expired(world, "look.uncommitted")
    job = world.plan("look.uncommitted", first, commit=False)

    report = world.delete(job)

    assert report.deleted == 0
    assert report.kept == job.files
    assert world.rows("look.uncommitted", first) == [1, 2]


def test_a_pointer_set_back_to_older_metadata_revives_its_snapshots(world: World) -> None:
    table = "look.pointer"
    first, _ = _expired(world, table)
    older = world.reader.entry(table).metadata_location
    job = world.plan(table, first)

    report = world.delete(job, files_per_batch=1, pause=_after_batches(0, lambda: _point(world, table, older)))

    assert report.deleted == 0
    assert world.rows(table, first) == [1, 2]


def test_a_dropped_table_stops_the_deletion(world: World) -> None:
    table = "look.dropped"
    first, _ = _expired(world, table)
    job = world.plan(table, first)
    before = world.on_disk(table)
    place = world.place(table)
    world.spark.sql(f"DROP TABLE {world.name}.{table}")

    with pytest.raises(StalePlan, match="no table"):
        world.delete(job)

    assert before == {str(path) for path in place.rglob("*") if path.is_file() and path.suffix != ".crc"}


def test_a_table_created_again_under_the_name_is_another_table(world: World) -> None:
    table = "look.again"
    first, _ = _expired(world, table)
    job = world.plan(table, first, commit=False)
    world.spark.sql(f"DROP TABLE {world.name}.{table}")
    world.create(table)

    with pytest.raises(StalePlan, match="another table"):
        world.delete(job)

    assert all(local(row["path"]).exists() for row in world.spark.read.parquet(job.files_location).collect())


def test_a_table_swapped_between_two_batches_stops_the_rest(world: World) -> None:
    table = "look.swapped"
    first, _ = _expired(world, table)
    world.create("look.other")
    job = world.plan(table, first)
    other = world.reader.entry("look.other").metadata_location

    with pytest.raises(StalePlan, match="another table"):
        world.delete(job, files_per_batch=1, pause=_after_batches(1, lambda: _point(world, table, other)))

    done = [batch.state for batch in world.operations.journal.batches(job.job_id)]
    assert done.count("done") == 1


@pytest.mark.parametrize("whole_table", [True, False])
def test_a_hold_stops_the_deletion_and_is_named(world: World, whole_table: bool) -> None:
    table = f"look.hold_{whole_table}".lower()
    first, _ = _expired(world, table)
    job = world.plan(table, first)
    before = world.on_disk(table)
    hold = world.operations.holds.place(job.table_uuid, table, "legal", "case 7", () if whole_table else (first, 12345))

    with pytest.raises(Refused, match=hold.hold_id):
        world.delete(job)
    assert world.on_disk(table) == before

    world.operations.holds.release(hold.hold_id, "ada")
    assert world.delete(job).deleted == job.files


def test_a_hold_on_other_snapshots_lets_the_deletion_pass(world: World) -> None:
    first, second = _expired(world, "look.otherhold")
    job = world.plan("look.otherhold", first)
    world.operations.holds.place(job.table_uuid, job.table, "legal", "case 8", (second,))

    assert world.delete(job).deleted == job.files


def test_a_hold_placed_between_two_batches_stops_the_rest(world: World) -> None:
    table = "look.latehold"
    first, _ = _expired(world, table)
    job = world.plan(table, first)
    place = _after_batches(1, lambda: world.operations.holds.place(job.table_uuid, table, "legal", "case 9"))

    with pytest.raises(Refused, match="case 9"):
        world.delete(job, files_per_batch=1, pause=place)

    existing = [local(row["path"]).exists() for row in world.spark.read.parquet(job.files_location).collect()]
    assert existing.count(False) == 1


def test_a_table_that_says_gc_disabled_by_now_stops_the_deletion(world: World) -> None:
    table = "look.gc"
    first, _ = _expired(world, table)
    job = world.plan(table, first)
    switch = f"ALTER TABLE {world.name}.{table} SET TBLPROPERTIES ('gc.enabled'='%s')"

    with pytest.raises(GarbageCollectionDisabled):
        world.delete(job, files_per_batch=1, pause=_after_batches(1, lambda: world.spark.sql(switch % "false")))
    assert world.deleted(job.job_id) == 1
    with pytest.raises(GarbageCollectionDisabled):
        world.scan(table)

    world.spark.sql(switch % "true")
    assert world.delete(job).deleted == job.files


def test_paths_outside_the_table_are_not_owned(world: World, tmp_path: Path) -> None:
    table = "look.outside"
    _expired(world, table)
    outside = tmp_path / "alien.parquet"
    outside.write_bytes(b"x")
    sibling = world.place(table).with_name("outside_too")
    sibling.mkdir()
    (sibling / "b.parquet").write_bytes(b"x")
    climbing = f"file://{world.place(table)}/data/../../outside_too/b.parquet"
    inside = world.drop_in(table, "data/garbage.parquet")
    job = world.job_of(
        table,
        [
            (f"file://{outside}", "data"),
            (f"file://{sibling}/b.parquet", "data"),
            (climbing, "data"),
            ("relative/c.parquet", "data"),
            ("hdfs://bucket/d.parquet", "data"),
            (f"file://{world.place(table)}", "data"),
            (f"file://{inside}", "data"),
        ],
    )

    report = world.delete(job)

    assert (report.deleted, report.kept) == (1, 6)
    assert {reason for outcome, reason in outcomes(report).values() if outcome == "kept"} == {"not_owned"}
    assert outside.exists()
    assert (sibling / "b.parquet").exists()
    assert not inside.exists()


def test_what_the_metadata_itself_needs_stays(world: World) -> None:
    table = "look.needed"
    _, second = _expired(world, table)
    metadata = world.metadata(table)
    live = world.data_file(table, second).location()
    paths = [metadata.metadata_location, metadata.metadata_log[0].metadata_file, live]
    hint = world.drop_in(table, "metadata/version-hint.text", data=b"3")

    report = world.delete(world.job_of(table, [(path, "metadata") for path in [*paths, f"file://{hint}"]]))

    assert (report.deleted, report.kept) == (0, 4)
    assert {reason for _, reason in outcomes(report).values()} == {"reachable", "current_metadata"}
    assert world.rows(table) == [3]


def test_a_file_that_a_table_inside_this_one_reads_stays(world: World) -> None:
    table = "look.around"
    first, _ = _expired(world, table)
    file = world.data_file(table, first)
    job = world.plan(table, first)
    world.create("look.nested", location=world.place(table) / "nested")
    world.java("look.nested").newAppend().appendFile(file).commit()

    report = world.delete(job)

    assert outcomes(report)[file.location().rpartition("/")[2]] == ("kept", "reachable from look.nested")
    assert world.rows("look.nested") == [1, 2]


def test_a_neighbor_that_appears_between_two_batches_is_checked(world: World) -> None:
    table = "look.late"
    world.create(table)
    doomed = [world.append(table, number) for number in range(2)]
    world.overwrite(table, 9)
    files = sorted((world.data_file(table, snapshot) for snapshot in doomed), key=lambda file: str(file.location()))
    job = world.plan(table, *doomed)

    def clone() -> None:
        world.create("look.latecomer", location=world.place(table) / "clone")
        world.java("look.latecomer").newAppend().appendFile(files[1]).commit()

    report = world.delete(job, files_per_batch=1, pause=_after_batches(1, clone))

    assert outcomes(report)[files[1].location().rpartition("/")[2]] == ("kept", "reachable from look.latecomer")


def _added(world: World, table: str, file: object) -> None:
    """Let a table read a file where it stands, as add_files and clones do."""
    world.java(table).newAppend().appendFile(file).commit()


def test_a_file_that_a_table_elsewhere_reads_stays(world: World) -> None:
    table, elsewhere = "look.shared", "look_far.reader"
    first, _ = _expired(world, table)
    file = world.data_file(table, first)
    job = world.plan(table, first)
    world.create(elsewhere)
    world.append(elsewhere, 7)
    _added(world, elsewhere, file)

    foreseen = world.delete(job, dry_run=True)
    report = world.delete(job)

    assert (foreseen.kept, foreseen.would_delete) == (1, job.files - 1)
    assert outcomes(report)[file.location().rpartition("/")[2]] == ("kept", f"reachable from {elsewhere}")
    assert world.rows(elsewhere) == [1, 2, 7]


def test_a_file_that_only_an_older_snapshot_of_a_table_elsewhere_reads_stays(world: World) -> None:
    table, elsewhere = "look.shared_once", "look_far.reader_once"
    first, _ = _expired(world, table)
    file = world.data_file(table, first)
    job = world.plan(table, first)
    world.create(elsewhere)
    _added(world, elsewhere, file)
    reading = world.current_snapshot(elsewhere)
    world.overwrite(elsewhere, 8)

    assert outcomes(world.delete(job))[file.location().rpartition("/")[2]] == ("kept", f"reachable from {elsewhere}")
    assert world.rows(elsewhere, reading) == [1, 2]


def test_a_table_elsewhere_that_starts_reading_between_two_batches_is_checked(world: World) -> None:
    table, elsewhere = "look.shared_late", "look_far.late_reader"
    world.create(elsewhere)
    world.append(elsewhere, 7)
    world.create(table)
    doomed = [world.append(table, number) for number in range(2)]
    world.overwrite(table, 9)
    files = sorted((world.data_file(table, snapshot) for snapshot in doomed), key=lambda file: str(file.location()))
    job = world.plan(table, *doomed)

    report = world.delete(job, files_per_batch=1, pause=_after_batches(1, lambda: _added(world, elsewhere, files[1])))

    assert outcomes(report)[files[0].location().rpartition("/")[2]][0] == "deleted"
    assert outcomes(report)[files[1].location().rpartition("/")[2]] == ("kept", f"reachable from {elsewhere}")
    assert len(world.rows(elsewhere)) == 2


@pytest.mark.parametrize("known", [True, False], ids=["known", "never-seen"])
def test_what_was_last_known_of_a_table_elsewhere_counts_while_it_cannot_be_read(world: World, known: bool) -> None:
    table, elsewhere = f"look.shared_dark_{known}".lower(), f"look_far.dark_reader_{known}".lower()
    first, second = _expired(world, table)
    file = world.data_file(table, first)
    world.create(elsewhere)
    _added(world, elsewhere, file)
    if known:
        # The first deletion of any table gets to know where the other one reads.
        garbage = world.drop_in(table, "data/garbage.parquet")
        assert world.delete(world.job_of(table, [(f"file://{garbage}", "data")])).deleted == 1
        world.append(elsewhere, 4)
    world.append(elsewhere, 5)
    job = world.plan(table, first)
    pointer = local(world.reader.entry(elsewhere).metadata_location)
    whole = pointer.read_bytes()
    pointer.write_bytes(b"{")
    try:
        with pytest.raises(UnreadableMetadata, match=elsewhere):
            world.delete(job)
        assert world.deleted(job.job_id) == 0
    finally:
        pointer.write_bytes(whole)
    assert outcomes(world.delete(job))[file.location().rpartition("/")[2]] == ("kept", f"reachable from {elsewhere}")
    assert world.rows(table, second) == [3]


def test_an_unreadable_table_blocks_overlapping_locations_only(world: World) -> None:
    table = "look.blocked"
    first, _ = _expired(world, table)
    job = world.plan(table, first)
    world.create("look.elsewhere")
    world.create("look.inside", location=world.place(table) / "inside")
    elsewhere = local(world.reader.entry("look.elsewhere").metadata_location)
    inside = local(world.reader.entry("look.inside").metadata_location)
    kept = {path: path.read_bytes() for path in (elsewhere, inside)}
    inside.write_bytes(b"{")
    try:
        with pytest.raises(UnreadableMetadata, match=r"look\.inside"):
            world.delete(job)
        assert world.deleted(job.job_id) == 0
        inside.write_bytes(kept[inside])
        elsewhere.write_bytes(b"{")
        assert world.delete(job).deleted == job.files
    finally:
        for path, data in kept.items():
            path.write_bytes(data)


def test_an_unreadable_manifest_stops_everything(world: World) -> None:
    table = "look.unreadable"
    first, second = _expired(world, table)
    snapshot = world.metadata(table).snapshot(second)
    assert snapshot is not None
    manifest = local(manifests_of(world.stores, snapshot).entries[0].manifest_path)
    job = world.plan(table, first)
    whole = manifest.read_bytes()
    before = world.on_disk(table)
    manifest.write_bytes(whole[:-20])

    with pytest.raises(UnreadableMetadata):
        world.delete(job)

    assert world.on_disk(table) == before
    manifest.write_bytes(whole)
    assert world.delete(job).deleted == job.files


@pytest.mark.no_guardian(reason="the test itself cuts a manifest short while the deletion runs")
def test_an_unreadable_manifest_that_comes_between_two_batches_stops_the_rest(world: World) -> None:
    table = "look.cutlater"
    first, _ = _expired(world, table)
    job = world.plan(table, first)

    def commit_and_cut() -> None:
        appended = world.append(table, 8)
        snapshot = world.metadata(table).snapshot(appended)
        assert snapshot is not None
        manifest = local(manifests_of(world.stores, snapshot).entries[0].manifest_path)
        manifest.write_bytes(manifest.read_bytes()[:-20])

    with pytest.raises(UnreadableMetadata):
        world.delete(job, files_per_batch=1, pause=_after_batches(1, commit_and_cut))

    assert world.deleted(job.job_id) == 1
    # Nobody ever knew where it reads: beside it nothing would be deleted any more.
    world.spark.sql(f"DROP TABLE {world.name}.{table}")


def test_a_worker_frozen_between_check_and_delete_checks_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table = "look.frozen"
    first, _ = _expired(world, table)
    file = world.data_file(table, first)
    job = world.plan(table, first)
    clock = _Clock()
    kept = Protection.kept
    checks = []

    def frozen(self: Protection, *files: Any) -> dict[int, str]:
        found = kept(self, *files)
        checks.append(1)
        if len(checks) == 1:
            # As if stopped here for a minute, while a writer commits.
            world.java(table).newAppend().appendFile(file).commit()
            clock.offset += 60
        return found

    monkeypatch.setattr(Protection, "kept", frozen)
    monkeypatch.setattr("artemis_lifecycle.deletion.worker.elapsed", clock)

    report = world.delete(job)

    assert len(checks) == 2
    assert outcomes(report)[file.location().rpartition("/")[2]] == ("kept", "reachable")
    assert world.rows(table) == [1, 2, 3]


def test_a_check_that_never_stays_fresh_deletes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table = "look.slow"
    world.create(table)
    lost = world.drop_in(table, "data/lost.parquet")
    monkeypatch.setattr("artemis_lifecycle.deletion.worker._LOOK_LASTS", 0.0)
    with pytest.raises(Busy, match="takes longer"):
        world.delete(world.job_of(table, [(f"file://{lost}", "data")]))
    assert lost.exists()


class _Clock:
    offset = 0.0

    def __call__(self) -> float:
        return elapsed() + self.offset


def _point(world: World, table: str, metadata_location: str) -> None:
    """Set the catalog's pointer by hand, as a careless restore of the catalog would."""
    namespace, name = table.split(".")
    engine = create_engine(world.operations.engine.url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE iceberg_tables SET metadata_location = :location "
                "WHERE catalog_name = :catalog AND table_namespace = :namespace AND table_name = :name"
            ),
            {"location": metadata_location, "catalog": world.name, "namespace": namespace, "name": name},
        )
    engine.dispose()
