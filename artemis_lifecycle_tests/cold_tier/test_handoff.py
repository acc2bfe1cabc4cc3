"""The handoff's promises: every archived snapshot reads the same rows from cold storage alone; nothing in cold names
the live tier; a killed handoff goes on to the same bytes; what cannot be archived stops it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.cold_tier.handoff import Handoff, HandoffInput, HandoffProgress
from artemis_lifecycle.cold_tier.verify import verify_copies
from artemis_lifecycle.config import LifecycleConfig
from artemis_lifecycle.errors import HandoffFailed
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle_tests.cold_tier import histories
from artemis_lifecycle_tests.cold_tier.world import World, named_paths, tree
from artemis_lifecycle_tests.conftest import MakeConfig


@pytest.fixture
def world(config: LifecycleConfig, spark: SparkSession) -> World:
    made = World(spark, config)
    made.sql("CREATE NAMESPACE {live}.ns")
    return made


HISTORIES = {
    "version 1": (histories.version_1, (0, 2)),
    "version 2, deletes by partition": (partial(histories.merge_on_read, version=2), (0, 2)),
    "version 2, deletes by file": (partial(histories.merge_on_read, version=2, granularity="file"), ()),
    "version 3, deletion vectors": (partial(histories.merge_on_read, version=3), ()),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_archived_snapshots_read_the_same_rows_from_cold_storage_alone(world: World, name: str) -> None:
    history, python_reads = HISTORIES[name]
    history(world)
    plan = world.plan()
    before = world.prints("live", plan.snapshot_ids)
    by_python = [plan.snapshot_ids[index] for index in range(len(plan.snapshot_ids)) if python_reads]
    python_before = world.python_rows("live", by_python)
    assert len({count for count, _ in before.values()}) > 2

    done = world.hand_off(plan)

    assert done.archived == plan.snapshot_ids
    assert done.lost == ()
    assert done.verified_files == done.copied_files + done.reused_files
    with world.without_live():
        assert world.prints("cold", plan.snapshot_ids) == before
        assert world.python_rows("cold", by_python) == python_before
        # The compaction's and each delete's view of the table's own metadata tables work as well.
        for table in ("files", "manifests", "snapshots", "history", "all_entries"):
            world.sql(f"SELECT * FROM {{cold}}.ns.t.{table}").collect()


ALLOWED = (
    # Values of the table's rows, in partitions and in bounds of its columns.
    "data_file.partition.kind",
    "data_file.lower_bounds[",
    "data_file.upper_bounds[",
    "partitions.lower_bound",
    "partitions.upper_bound",
    # What its owner wrote in a property of his own, and what writers wrote in summaries.
    "properties.owner.docs",
)


@pytest.mark.parametrize("name", HISTORIES)
def test_no_path_in_cold_names_the_live_tier(world: World, name: str) -> None:
    HISTORIES[name][0](world)
    world.hand_off()
    outside = str(world.live_root.parent)
    cold = str(world.cold_root)
    named = [
        (file, field, value)
        for file, field, value in named_paths(world.cold_root)
        if outside in value and cold not in value and not field.startswith(ALLOWED)
    ]
    assert named == []
    delete_paths = [
        value
        for _, field, value in named_paths(world.cold_root)
        if "2147483546" in field or field in ("file_path", "statistics", "blobs.properties.referenced-data-file")
    ]
    assert all(value.startswith(f"file://{cold}") for value in delete_paths)
    if name != "version 1":
        assert delete_paths


def test_values_that_look_like_paths_are_untouched(world: World) -> None:
    histories.version_1(world)
    plan = world.plan()
    world.hand_off(plan)
    looks_like = f"file://{world.live_root}/ns/t/data/not-a-path"
    found = world.rows("cold", plan.snapshot_ids[1]).filter("id = 100").collect()[0]
    assert (found["kind"], found["note"]) == (looks_like, looks_like)
    assert world.metadata(tier="cold").properties["owner.docs"] == looks_like


def test_sizes_in_cold_manifests_are_those_of_the_cold_files(world: World) -> None:
    histories.merge_on_read(world, 2)
    world.hand_off()
    for table in ("all_files", "all_manifests"):
        path, size = ("file_path", "file_size_in_bytes") if table == "all_files" else ("path", "length")
        rows = world.sql(f"SELECT DISTINCT {path} AS path, {size} AS size FROM {{cold}}.ns.t.{table}").collect()
        assert len(rows) > 3
        for row in rows:
            found = world.stores.head(row["path"])
            assert found is not None
            assert found.size_in_bytes == row["size"], row["path"]


def test_a_second_handoff_of_the_plan_changes_nothing(world: World) -> None:
    histories.merge_on_read(world, 2)
    plan = world.plan()
    first = world.hand_off(plan)
    before = tree(world.cold_root)
    second = world.hand_off(plan)
    assert tree(world.cold_root) == before
    assert second.attempts == 0
    assert replace(second, attempts=first.attempts) == first


def test_a_later_handoff_copies_only_what_is_new_and_keeps_the_whole_history(world: World) -> None:
    histories.merge_on_read(world, 2)
    ids = world.ids()
    before = world.prints("live", ids[:-1])
    first = world.hand_off(world.plan(ids[:3]))
    world.sql(f"CALL {{live}}.system.expire_snapshots(table => 'ns.t', snapshot_ids => array({ids[0]}, {ids[1]}))")
    second = world.hand_off(world.plan(ids[3:-1]))
    assert first.copied_files
    assert second.copied_files
    assert second.reused_files == 0
    copied = [row["destination"] for done in (first, second) for row in done.files().collect()]
    assert len(copied) == len(set(copied))
    with world.without_live():
        assert world.prints("cold", ids[:-1]) == before
    log = [entry.snapshot_id for entry in world.metadata(tier="cold").snapshot_log]
    assert log == ids
    assert [s.snapshot_id for s in world.metadata(tier="cold").snapshots] == ids[:-1]


def test_a_snapshot_that_expires_late_takes_its_place_in_the_middle(world: World) -> None:
    histories.merge_on_read(world, 2)
    ids = world.ids()
    world.hand_off(world.plan([ids[0], ids[1], ids[3]]))
    world.hand_off(world.plan([ids[2]]))
    assert [s.snapshot_id for s in world.metadata(tier="cold").snapshots] == ids[:4]


def test_tags_of_archived_snapshots_are_tags_in_cold(world: World) -> None:
    histories.merge_on_read(world, 2)
    tagged = world.metadata().refs["before the update"].snapshot_id
    expected = world.prints("live", [tagged])[tagged]
    world.hand_off()
    from artemis_lifecycle_tests.cold_tier.world import fingerprint

    with world.without_live():
        assert fingerprint(world.sql("SELECT * FROM {cold}.ns.t VERSION AS OF 'before the update'")) == expected


def test_an_instant_whose_snapshot_is_not_in_cold_fails_in_every_engine(world: World) -> None:
    histories.version_1(world)
    metadata = world.metadata()
    ids = world.ids()
    world.hand_off(world.plan([ids[0], ids[2]]))
    at = {entry.snapshot_id: entry.timestamp_ms for entry in metadata.snapshot_log}

    def spark_reads(instant: int) -> int:
        stamp = f"timestamp_millis({instant})"
        return world.sql(f"SELECT * FROM {{cold}}.ns.t TIMESTAMP AS OF {stamp}").count()

    assert spark_reads(at[ids[0]]) == world.rows("live", ids[0]).count()
    assert spark_reads(at[ids[2]]) == world.rows("live", ids[2]).count()
    for absent in (ids[1], ids[-1]):
        with pytest.raises(Exception, match=r"Cannot find snapshot|snapshot"):
            spark_reads(at[absent])
    from pyiceberg.catalog import load_catalog

    from artemis_lifecycle.catalogs.settings import pyiceberg_properties

    catalog = world.config.catalogs.cold
    loaded = load_catalog(catalog.name, **pyiceberg_properties(catalog)).load_table("ns.t")
    first = loaded.snapshot_as_of_timestamp(at[ids[0]])
    assert first is not None
    assert first.snapshot_id == ids[0]
    assert loaded.snapshot_as_of_timestamp(at[ids[1]]) is None


def test_statistics_files_go_with_their_snapshots(world: World) -> None:
    histories.merge_on_read(world, 2)
    ids = world.ids()
    world.sql(
        f"CALL {{live}}.system.compute_table_stats(table => 'ns.t', snapshot_id => {ids[2]}, columns => array('id'))"
    )
    world.hand_off()
    (found,) = world.metadata(tier="cold").statistics
    assert found.snapshot_id == ids[2]
    (live,) = world.metadata().statistics
    assert found.path.startswith(f"file://{world.cold_root}/")
    assert world.stores.read(found.path) == world.stores.read(live.path)


def test_row_lineage_stays(world: World) -> None:
    histories.merge_on_read(world, 3)
    plan = world.plan()
    query = "SELECT id, _row_id, _last_updated_sequence_number FROM {tier}.ns.t VERSION AS OF {id} ORDER BY id"
    before = {
        snapshot_id: world.sql(query.replace("{tier}", world.live).replace("{id}", str(snapshot_id))).collect()
        for snapshot_id in plan.snapshot_ids
    }
    assert any(row["_row_id"] for rows in before.values() for row in rows)
    world.hand_off(plan)
    with world.without_live():
        for snapshot_id, rows in before.items():
            assert world.sql(query.replace("{tier}", world.cold).replace("{id}", str(snapshot_id))).collect() == rows


def test_a_table_upgraded_through_all_versions_reads_from_cold(world: World) -> None:
    histories.version_1(world)
    world.sql("ALTER TABLE {live}.ns.t SET TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')")
    world.sql("INSERT INTO {live}.ns.t VALUES (400, 'plain', NULL, 'two'), (401, 'plain', NULL, 'two')")
    world.sql("DELETE FROM {live}.ns.t WHERE id = 400")
    first = world.plan()
    before = world.prints("live", first.snapshot_ids)
    world.hand_off(first)
    world.sql("ALTER TABLE {live}.ns.t SET TBLPROPERTIES ('format-version'='3')")
    world.sql("DELETE FROM {live}.ns.t WHERE id = 300")
    world.sql("INSERT INTO {live}.ns.t VALUES (500, 'plain', NULL, 'three')")
    second = world.plan(world.ids()[len(first.snapshot_ids) : -1])
    before |= world.prints("live", second.snapshot_ids)
    world.hand_off(second)
    with world.without_live():
        assert world.prints("cold", list(before)) == before


# --- killed, and gone on with ---------------------------------------------------------------------------------------


class _Killed(Exception):  # noqa: N818
    pass


def _points(world: World, plan: HandoffInput) -> list[str]:
    seen: list[str] = []
    with crash_points.installed(seen.append):
        world.hand_off(plan)
    return seen


def test_killed_at_every_point_a_handoff_resumes_to_the_same_bytes(world: World, make_config: MakeConfig) -> None:
    histories.merge_on_read(world, 2)
    plan = world.plan()
    expected_world = world
    points = _points(expected_world, plan)
    expected = tree(world.cold_root)
    assert sum(point == "handoff.batch:after" for point in points) > 4
    shutil.rmtree(world.cold_root)
    for number in range(len(points)):
        # One kill after another, all in the life of one handoff, each at a later point than the one before.
        _reset(world)
        count = 0

        def die(name: str, at: int = number) -> None:
            nonlocal count
            count += 1
            if count == at + 1:
                raise _Killed(name)

        with pytest.raises(_Killed), crash_points.installed(die):
            world.hand_off(plan)
        done = world.hand_off(plan)
        assert done.archived == plan.snapshot_ids
        assert tree(world.cold_root) == expected


def _reset(world: World) -> None:
    """Both the cold tier and the handoff's state as before the first handoff."""
    from sqlalchemy import text

    from artemis_lifecycle.operations.database import connect

    shutil.rmtree(world.cold_root, ignore_errors=True)
    root = world.config.operations.root
    assert root is not None
    shutil.rmtree(Path(root.removeprefix("file://")), ignore_errors=True)
    assert world.config.catalogs.cold.uri is not None
    engine = connect(world.config.catalogs.cold.uri)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name = :name"), {"name": world.cold})
    engine.dispose()


def test_a_resumed_handoff_does_not_copy_finished_batches_again(world: World) -> None:
    histories.merge_on_read(world, 2)
    plan = world.plan()
    batches = iter(range(3))

    def check() -> None:
        if next(batches, None) is None:
            raise _Killed

    with pytest.raises(_Killed):
        world.hand_off(plan, check=check)
    done_before = {path: (world.cold_root / path).stat().st_ino for path in tree(world.cold_root)}
    assert done_before
    progress: list[HandoffProgress] = []
    world.hand_off(plan, on_progress=progress.append)
    assert {path: (world.cold_root / path).stat().st_ino for path in done_before} == done_before
    assert progress[-1].done_files == progress[-1].files
    assert progress[-1].done_bytes == progress[-1].bytes


# --- what cannot be archived ----------------------------------------------------------------------------------------


def _local(path: str) -> Path:
    return Path(path.removeprefix("file://").removeprefix("file:"))


def _data_file(world: World, snapshot_id: int) -> str:
    """A data file that this snapshot reads and the ones before it do not."""
    rows = world.sql(f"SELECT file_path FROM {{live}}.ns.t.files VERSION AS OF {snapshot_id}").collect()
    entries = world.sql(
        "SELECT data_file.file_path AS path FROM {live}.ns.t.all_entries "
        f"WHERE snapshot_id = {snapshot_id} AND status = 1"
    ).collect()
    return sorted({row["path"] for row in entries} & {row["file_path"] for row in rows})[0]


def test_a_lost_file_stops_the_handoff_and_with_approval_leaves_its_snapshots_out(world: World) -> None:
    histories.version_1(world)
    plan = world.plan()
    before = world.prints("live", plan.snapshot_ids)
    victim = _data_file(world, plan.snapshot_ids[2])
    users = [
        snapshot_id
        for snapshot_id in plan.snapshot_ids
        if victim
        in {
            row["file_path"]
            for row in world.sql(f"SELECT file_path FROM {{live}}.ns.t.files VERSION AS OF {snapshot_id}").collect()
        }
    ]
    assert 0 < len(users) < len(plan.snapshot_ids)
    _local(victim).unlink()
    with pytest.raises(HandoffFailed, match=r"gone") as failure:
        world.hand_off(plan)
    assert failure.value.path == victim
    assert not _published(world)

    done = world.hand_off(plan, allow_lost=True)

    assert set(done.lost) == set(users)
    assert [problem.path for problem in done.lost_files] == [victim]
    assert set(done.archived) == set(plan.snapshot_ids) - set(users)
    with world.without_live():
        assert world.prints("cold", done.archived) == {key: before[key] for key in done.archived}
    again = world.hand_off(plan, allow_lost=True)
    assert (again.lost, again.archived) == (done.lost, done.archived)


@pytest.mark.parametrize("what", ["manifest", "manifest list"])
def test_lost_metadata_stops_the_handoff_and_with_approval_leaves_its_snapshots_out(world: World, what: str) -> None:
    histories.version_1(world)
    plan = world.plan()
    metadata = world.metadata()
    snapshot = metadata.snapshot(plan.snapshot_ids[1])
    assert snapshot is not None
    if what == "manifest list":
        assert snapshot.manifest_list is not None
        _local(snapshot.manifest_list).unlink()
    else:
        rows = world.sql(
            f"SELECT path FROM {{live}}.ns.t.manifests VERSION AS OF {snapshot.snapshot_id} "
            f"WHERE added_snapshot_id = {snapshot.snapshot_id}"
        ).collect()
        _local(rows[0]["path"]).unlink()
    with pytest.raises(HandoffFailed, match="gone or damaged"):
        world.hand_off(plan)
    assert not _published(world)
    done = world.hand_off(plan, allow_lost=True)
    assert snapshot.snapshot_id in done.lost
    assert plan.snapshot_ids[0] in done.archived


def _published(world: World) -> bool:
    from artemis_lifecycle.catalogs.live import CatalogReader

    with CatalogReader(world.config.catalogs.cold) as reader:
        return reader.exists("ns.t")


def test_a_source_of_another_size_than_recorded_stops_the_handoff(world: World) -> None:
    histories.version_1(world)
    plan = world.plan()
    victim = _local(_data_file(world, plan.snapshot_ids[0]))
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(HandoffFailed, match="the metadata records"):
        world.hand_off(plan)
    assert not _published(world)


def test_a_copy_that_was_corrupted_before_it_counted_is_redone(world: World) -> None:
    histories.version_1(world)
    plan = world.plan()
    victim = _data_file(world, plan.snapshot_ids[0])
    mirrored = world.cold_root / _local(victim).relative_to(world.live_root)
    mirrored.parent.mkdir(parents=True)
    good = _local(victim).read_bytes()
    mirrored.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    world.hand_off(plan)
    assert mirrored.read_bytes() == good


def test_corruption_of_a_copy_is_found(world: World) -> None:
    histories.merge_on_read(world, 2)
    plan = world.plan()
    done = world.hand_off(plan)
    root = world.config.operations.root
    assert root is not None
    look = partial(verify_copies, world.spark, world.stores, world.stores, root, plan.table_uuid)
    whole = look()
    assert whole.passed
    assert whole.checked_files == done.verified_files
    one, two = (row["destination"] for row in done.files().filter("kind = 'data'").limit(2).collect())
    data = bytearray(_local(one).read_bytes())
    data[len(data) // 2] ^= 0x10
    _local(one).write_bytes(bytes(data))
    _local(two).unlink()
    assert {path for path, _ in look().damaged} == {one, two}
    assert {path for path, _ in look(plan_id=plan.plan_id).damaged} == {one, two}


def test_a_foreign_file_at_a_mirrored_path_is_never_replaced(world: World) -> None:
    histories.merge_on_read(world, 2)
    plan = world.plan()
    victim = next(
        row["path"]
        for row in world.sql("SELECT DISTINCT file_path AS path FROM {live}.ns.t.all_data_files").collect()
        if "/elsewhere/" in row["path"]
    )
    mirrored = world.cold_root / _local(victim).relative_to(world.live_root)
    mirrored.parent.mkdir(parents=True)
    mirrored.write_bytes(b"somebody else's")
    with pytest.raises(HandoffFailed, match="Another file stands"):
        world.hand_off(plan)
    assert mirrored.read_bytes() == b"somebody else's"


# --- names ----------------------------------------------------------------------------------------------------------


def test_a_table_dropped_and_made_again_gets_a_cold_table_of_its_own(world: World) -> None:
    histories.version_1(world)
    first = world.plan()
    before = world.prints("live", first.snapshot_ids)
    done = world.hand_off(first)
    world.sql("DROP TABLE {live}.ns.t PURGE")
    histories.merge_on_read(world, 2)
    second = world.plan()
    before_second = world.prints("live", second.snapshot_ids)
    done_second = world.hand_off(second)
    assert done.cold_table == "ns.t"
    assert done_second.cold_table == f"ns.t__{second.table_uuid[:8]}"
    with world.without_live():
        assert world.prints("cold", first.snapshot_ids) == before
        assert world.prints("cold", second.snapshot_ids, table=done_second.cold_table) == before_second


def test_a_renamed_table_stays_one_cold_table(world: World) -> None:
    histories.merge_on_read(world, 2)
    ids = world.ids()
    world.hand_off(world.plan(ids[:2]))
    world.sql("ALTER TABLE {live}.ns.t RENAME TO ns.renamed")
    done = world.hand_off(world.plan(ids[2:4], table="ns.renamed"))
    assert done.cold_table == "ns.t"
    assert [s.snapshot_id for s in world.metadata(tier="cold").snapshots] == ids[:4]


def test_a_table_outside_the_live_warehouse_is_archived_too(world: World) -> None:
    place = f"file://{world.live_root.parent}/far away/table"
    world.sql(f"CREATE TABLE {{live}}.ns.t (id BIGINT) USING iceberg LOCATION '{place}'")
    for value in range(3):
        world.sql(f"INSERT INTO {{live}}.ns.t VALUES ({value})")
    plan = world.plan()
    before = world.prints("live", plan.snapshot_ids)
    world.hand_off(plan)
    shutil.move(world.live_root.parent / "far away", world.live_root.parent / "gone")
    assert world.prints("cold", plan.snapshot_ids) == before
    assert world.metadata(tier="cold").location == f"file://{world.cold_root}/_tables/{plan.table_uuid}"


# --- no-ops, and the batch rows --------------------------------------------------------------------------------------


def test_a_table_without_a_cold_tier_is_a_no_op(make_config: MakeConfig, spark: SparkSession) -> None:
    world = World(spark, make_config(tables={"ns.t": {"cold_tier": {"enabled": False}}}))
    world.sql("CREATE NAMESPACE {live}.ns")
    histories.version_1(world)
    plan = world.plan()
    assert world.hand_off(plan) == Handoff(plan.plan_id, "ns.t")
    assert not world.cold_root.exists()


def test_a_plan_without_snapshots_is_a_no_op(world: World) -> None:
    histories.version_1(world)
    plan = world.plan([])
    assert world.hand_off(plan) == Handoff(plan.plan_id, "ns.t")


def test_v1_manifests_named_inline_are_archived(world: World) -> None:
    """As Iceberg wrote v1 before it had manifest lists."""
    world.sql("CREATE TABLE {live}.ns.t (id BIGINT) USING iceberg TBLPROPERTIES ('format-version'='1')")
    for value in range(3):
        world.sql(f"INSERT INTO {{live}}.ns.t VALUES ({value})")
    plan = world.plan()
    before = world.prints("live", plan.snapshot_ids)
    metadata = json.loads(world.stores.read(plan.base_metadata_location))
    for snapshot in metadata["snapshots"]:
        rows = world.sql(f"SELECT path FROM {{live}}.ns.t.manifests VERSION AS OF {snapshot['snapshot-id']}").collect()
        snapshot["manifests"] = [row["path"] for row in rows]
        del snapshot["manifest-list"]
    world.stores.write(plan.base_metadata_location, json.dumps(metadata).encode(), overwrite=True)
    world.hand_off(plan)
    with world.without_live():
        assert world.prints("cold", plan.snapshot_ids) == before


@pytest.fixture(autouse=True)
def _leave_no_folder(world: World) -> Iterator[None]:
    yield
    moved = world.live_root.with_name("moved-away")
    if moved.exists():
        moved.rename(world.live_root)
