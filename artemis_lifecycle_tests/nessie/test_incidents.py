"""One test for each place where Nessie's own garbage collector is known to hurt. The numbers are its issues."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import func, select

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import OperationsUnavailable, PlanStateError, Refused, UnreadableMetadata
from artemis_lifecycle.operations.live_sets import base_locations, live_contents, live_versions
from artemis_lifecycle_tests.nessie.conftest import MakeWorld
from artemis_lifecycle_tests.nessie.world import World, deleting


def collect(world: World, lifecycle: Lifecycle, policies: dict[str, int | str] | None = None) -> dict[str, str | None]:
    """Mark and sweep at once. Return the tables with their errors."""
    done = lifecycle.sweep(lifecycle.mark(world.name, policies), deferred=False)
    return {each.table: each.error or each.waits for each in done.tables}


def metadata_path(world: World, key: str, ref: str = "main") -> Path:
    return Path(str(world.content(key, ref)["metadataLocation"]).removeprefix("file:"))


def test_12363_two_contents_at_one_location_keep_each_others_files(world: World) -> None:
    world.table("db.first")
    content = world.content("db.first")
    # Registered again: another content with the same files. Then a table of its own, in the same place.
    world.put("main", "db.again", {key: value for key, value in content.items() if key != "id"})
    location = metadata_path(world, "db.first").parent.parent
    world.sql(f"CREATE TABLE {{}}.db.second (n INT) USING iceberg LOCATION 'file:{location}'")
    world.insert("db.second", 7)
    world.drop("db.first")
    with world.open() as lifecycle:
        assert set(collect(world, lifecycle, {"*": 1}).values()) == {None}
    assert world.rows("db.again") == [0] and world.rows("db.second") == [7]


def test_missing_metadata_of_a_live_version_is_never_taken_as_no_files(world: World) -> None:
    world.table("db.safe")
    world.table("db.lost", rows=2)
    old = metadata_path(world, "db.lost")
    world.insert("db.lost", 3)
    old_bytes = old.read_bytes()
    with world.open() as lifecycle:
        marked = lifecycle.mark(world.name)
        old.unlink()
        before = world.files()
        with pytest.raises(UnreadableMetadata, match=rf"{world.name}:db\.lost"):
            lifecycle.sweep(marked, deferred=False)
        assert world.files() == before, "neither this table nor any other lost a file"
        assert lifecycle.live_set(marked.live_set_id).live_set.state == "failed"
        with pytest.raises(PlanStateError, match="failed"):
            lifecycle.sweep(marked)
        old.write_bytes(old_bytes)
        assert set(collect(world, lifecycle).values()) == {None}


def test_more_live_files_than_any_filter_was_sized_for_are_all_kept(world: World) -> None:
    world.table("db.many", rows=0)
    world.sql("INSERT INTO {}.db.many SELECT /*+ REPARTITION(40) */ id FROM range(400)")
    world.create("idea")
    world.sql("INSERT INTO {}.db.many SELECT /*+ REPARTITION(40) */ id FROM range(400)", "idea")
    live, dead = world.data_files("db.many"), world.data_files("db.many", "idea")
    world.delete("idea")
    with world.open() as lifecycle:
        collect(world, lifecycle)
    assert len(live) == 40 and live <= world.files()
    assert not (dead - live) & world.files(), "exactly the others are gone: nothing is probably live"
    assert world.rows("db.many") == list(range(400))


def test_9097_and_11273_dropped_tables_are_reported_and_go_only_under_their_own_policy(make_world: MakeWorld) -> None:
    world = make_world({"unseen": "report"})
    world.table("db.kept")
    world.table("db.gone")
    gone = {each for each in world.files() if each.startswith("db/gone")}
    world.create("holds")
    world.drop("db.gone")
    with world.open() as lifecycle:
        assert collect(world, lifecycle, {"main": 1}) == {
            f"{world.name}:db.kept": None,
            f"{world.name}:db.gone@holds": None,
        }
        assert gone <= world.files() and world.rows("db.gone", "holds") == [0], "another reference shows it"
        world.delete("holds")
        done = lifecycle.sweep(lifecycle.mark(world.name, {"main": 1}), deferred=False)
        (unseen,) = done.unseen
        assert unseen.table == f"{world.name}:db.gone@holds" and unseen.first_seen <= unseen.last_seen <= unseen.due_at
        assert gone <= world.files(), "reported only"
    with deleting(world).open() as lifecycle:
        world.create("again", at=parent_of(world))
        done = lifecycle.sweep(lifecycle.mark(world.name, {"main": 1}), deferred=False)
        assert done.unseen == () and gone <= world.files(), "a reference shows it again"
        world.delete("again")
        done = lifecycle.sweep(lifecycle.mark(world.name, {"main": 1}), deferred=False)
        assert [each.waits for each in done.tables if "gone" in each.table] == [None], done
        assert not gone & world.files()
    assert world.rows("db.kept") == [0]


def parent_of(world: World) -> str:
    log = world.call("GET", "trees/main/history")["logEntries"]
    return str(log[1]["commitMeta"]["hash"])


def test_10235_a_purge_of_a_dropped_table_leaves_what_another_reference_still_shows(world: World) -> None:
    world.table("db.purged", rows=2)
    world.tag("release")
    with pytest.raises(Exception, match=r"gc\.enabled|GC is disabled"):
        world.sql("DROP TABLE {}.db.purged PURGE")
    world.sql("DROP TABLE {}.db.purged")
    with world.open() as lifecycle:
        assert collect(world, lifecycle, {"*": 1}) == {f"{world.name}:db.purged@release": None}
    assert world.rows("db.purged", "release") == [0, 1]
    # Where the purge did delete files of a live version, nothing else is guessed about that table.
    (metadata_path(world, "db.purged", "release")).unlink()
    left = world.files()
    with world.open() as lifecycle, pytest.raises(UnreadableMetadata):
        collect(world, lifecycle, {"*": 1})
    assert world.files() == left


def test_9879_statistics_files_of_live_versions_stay(world: World) -> None:
    world.table("db.counted", rows=2)
    path = metadata_path(world, "db.counted")
    node = json.loads(path.read_text())
    statistics = path.parent / "stats.puffin"
    partitions = path.parent / "partition-stats.parquet"
    for file in (statistics, partitions, path.parent / "other.puffin"):
        file.write_bytes(b"PFA1")
    snapshot, size = node["current-snapshot-id"], 4
    entry = {"snapshot-id": snapshot, "file-size-in-bytes": size, "statistics-path": f"file:{statistics}"}
    node["statistics"] = [{**entry, "file-footer-size-in-bytes": 4, "blob-metadata": []}]
    node["partition-statistics"] = [{**entry, "statistics-path": f"file:{partitions}"}]
    path.write_text(json.dumps(node))
    for mode in ("all", "referenced"):
        with world.open() as lifecycle:
            lifecycle.sweep(lifecycle.mark(world.name, snapshots=mode), deferred=False)  # type: ignore[arg-type]
        assert statistics.exists() and partitions.exists()
    assert not (path.parent / "other.puffin").exists(), "one that no metadata names is an orphan"


def test_10464_records_do_not_grow_for_ever(world: World) -> None:
    world.table("db.t", rows=3)
    with world.open() as lifecycle:
        sets = lifecycle.operations.live_sets
        for _ in range(4):
            lifecycle.sweep(lifecycle.mark(world.name), deferred=False)
        stored = [each.live_set_id for each in sets.all(world.name)]
        cutoff = lifecycle.operations.clock.now()
        assert set(sets.old(cutoff)) & set(stored) == set(stored[1:]), "the newest usable set stays"
        kept = lifecycle.config.model_copy(
            update={"records": lifecycle.config.records.model_copy(update={"live_sets": cutoff - cutoff})}
        )
        with Lifecycle.open(kept, spark=world.spark) as forgetful:
            foreseen = forgetful.forget_records(dry_run=True).counts["live_sets"]
            assert foreseen >= 3 and forgetful.forget_records().counts["live_sets"] == foreseen
        assert [each.live_set_id for each in sets.all(world.name)] == stored[:1]
        with lifecycle.operations.engine.connect() as connection:
            for table in (live_versions, live_contents):
                others = table.c.live_set_id.in_(stored[1:])
                assert connection.execute(select(func.count()).select_from(table).where(others)).scalar() == 0
            seen = select(func.count()).select_from(base_locations).where(base_locations.c.catalog == world.name)
            assert connection.execute(seen).scalar() == 1
        merged = list(lifecycle.live_stores.list(f"{lifecycle.root}/live-sets/{world.name}"))
        assert len(merged) == 1, "the same versions make the same file"
        world.insert("db.t", 9)
        lifecycle.sweep(lifecycle.mark(world.name), deferred=False)
        assert len(list(lifecycle.live_stores.list(f"{lifecycle.root}/live-sets/{world.name}"))) == 2
        with Lifecycle.open(kept, spark=world.spark) as forgetful:
            forgetful.forget_records()
        (file,) = lifecycle.live_stores.list(f"{lifecycle.root}/live-sets/{world.name}")
        assert file.path not in {each.path for each in merged}, "only the newest stays"
        stored = [each.live_set_id for each in sets.all(world.name)]
        lifecycle.delete_live_set(stored[0])
        assert sets.all(world.name) == ()


def test_5282_and_10046_snapshots_whose_files_are_gone(world: World) -> None:
    world.table("db.thinned", rows=1)
    first = world.data_files("db.thinned")
    world.sql("DELETE FROM {}.db.thinned WHERE n = 0")
    world.insert("db.thinned", 1)
    world.create("idea")
    world.insert("db.thinned", 5, "idea")
    dead = world.data_files("db.thinned", "idea") - world.data_files("db.thinned")
    world.delete("idea")
    node = json.loads(metadata_path(world, "db.thinned").read_text())
    oldest = min(node["snapshots"], key=lambda each: each["timestamp-ms"])
    # What an earlier collector, which kept only what references show, has left of the table's first snapshot.
    Path(oldest["manifest-list"].removeprefix("file:")).unlink()
    for file in first:
        (world.folder / file).unlink()
    with world.open() as lifecycle:
        before = world.files()
        (error,) = collect(world, lifecycle, {"main": 1}).values()
        assert error is not None and "referenced" in error and world.files() == before
        done = lifecycle.sweep(lifecycle.mark(world.name, {"main": 1}, snapshots="referenced"), deferred=False)
        assert [(each.error, each.waits) for each in done.tables] == [(None, None)]
    assert dead.isdisjoint(world.files()), "the lost snapshot stops nothing else"
    assert world.rows("db.thinned") == [1]


def test_what_is_neither_table_nor_view_is_refused_by_name_and_views_are_recorded(world: World) -> None:
    world.table("db.t")
    view = world.folder / "db/v/metadata/00000.metadata.json"
    view.parent.mkdir(parents=True)
    view.write_text("{}")
    content = {"type": "ICEBERG_VIEW", "metadataLocation": f"file:{view}", "versionId": 1, "schemaId": 0}
    world.put("main", "db.v", content)
    with world.open() as lifecycle:
        marked = lifecycle.mark(world.name)
        assert [(each.table, each.type) for each in lifecycle.live_set(marked.live_set_id).contents] == [
            (f"{world.name}:db.t", "ICEBERG_TABLE"),
            (f"{world.name}:db.v", "ICEBERG_VIEW"),
        ]
        assert [each.error for each in lifecycle.sweep(marked, deferred=False).tables] == [None] and view.exists()
        lake = {"type": "DELTA_LAKE_TABLE", "metadataLocationHistory": ["a"], "checkpointLocationHistory": []}
        world.put("main", "db.delta", lake)
        with pytest.raises(Refused, match=r"db\.delta.*DELTA_LAKE_TABLE"):
            lifecycle.mark(world.name)
        assert lifecycle.live_sets()[0].state == "failed"


def test_a_nessie_that_does_not_answer_fails_the_mark_and_stops_the_sweep(world: World) -> None:
    world.table("db.t")
    with world.open() as lifecycle:
        marked = lifecycle.mark(world.name)
    other = world.config.catalogs.others[world.name].model_copy(update={"uri": "http://127.0.0.1:9/api/v2"})
    catalogs = world.config.catalogs.model_copy(update={"others": {world.name: other}})
    before = world.files()
    gone = world.config.model_copy(update={"catalogs": catalogs})
    with Lifecycle.open(gone, spark=world.spark) as lifecycle:
        with pytest.raises(OperationsUnavailable):
            lifecycle.mark(world.name)
        assert lifecycle.live_sets()[0].state == "failed"
        with pytest.raises(OperationsUnavailable):
            lifecycle.sweep(marked)
        with pytest.raises(OperationsUnavailable):
            lifecycle.tables()
    assert world.files() == before
