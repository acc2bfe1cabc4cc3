"""Mark and sweep of a real Nessie catalog, whose tables Spark writes through Iceberg's NessieCatalog."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.deployments import FOLDER, take_over
from artemis_lifecycle.cli import app
from artemis_lifecycle.doctor.diagnosis import diagnose
from artemis_lifecycle.errors import LifecycleError, NotApplicable, OtherDeployment
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.walk.nessie import NessieTables
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.guardian import GUARDIAN
from artemis_lifecycle_tests.nessie.conftest import MakeWorld
from artemis_lifecycle_tests.nessie.world import World, deleting
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.databases import Databases, with_operations


def test_a_sweep_deletes_what_no_reference_shows_and_nothing_else(world: World) -> None:
    world.table("db.orders", rows=2)
    world.tag("before")
    world.create("work")
    world.insert("db.orders", 10, "work")
    world.create("idea")
    world.insert("db.orders", 99, "idea")
    world.table("db.fresh", "idea")
    lost = world.data_files("db.orders", "idea") - world.data_files("db.orders")
    lost.add(world.relative(str(world.content("db.orders", "idea")["metadataLocation"])))
    fresh = world.data_files("db.fresh", "idea")
    world.create("merged")
    world.insert("db.orders", 20, "merged")
    world.merge("merged")
    world.delete("merged")
    with world.open() as lifecycle:
        first = lifecycle.mark(world.name)
        assert (first.state, first.references, first.contents) == ("marked", 4, 2)
        assert {each.table for each in lifecycle.live_set(first.live_set_id).contents} == {
            f"{world.name}:db.orders",
            f"{world.name}:db.fresh@idea",
        }
        nothing = lifecycle.sweep(first.live_set_id, deferred=False)
        assert [(each.error, each.files) for each in nothing.tables] == [(None, 0)] * 2, "everything is live"
        world.delete("idea")
        again = lifecycle.mark(world.name)
        before = world.files()
        assert lost | fresh <= before
        done = lifecycle.sweep(again.live_set_id, deferred=False)
        assert done.live_set.state == "swept" and [each.error for each in done.tables] == [None]
        gone = before - world.files()
        assert lost <= gone and not fresh & gone, "the dropped table is reported, and stays"
        assert [each.table for each in done.unseen] == [f"{world.name}:db.fresh@idea"]
    assert world.rows("db.orders") == [0, 1, 20]
    assert world.rows("db.orders", "work") == [0, 1, 10]
    assert world.rows("db.orders", "before") == [0, 1]


def test_a_table_created_between_mark_and_sweep_keeps_its_files(make_world: MakeWorld) -> None:
    world = make_world({"unseen": "delete"})
    world.table("db.old")
    with world.open() as lifecycle:
        marked = lifecycle.mark(world.name)
        world.table("db.new", rows=2)
        # Also in the place of a table that the mark knows, as an engine may do that names locations itself.
        place = str(world.content("db.old")["metadataLocation"]).rpartition("/metadata/")[0]
        world.sql(f"CREATE TABLE {{}}.db.inside (n INT) USING iceberg LOCATION '{place}/inside'")
        world.insert("db.inside", 4)
        done = lifecycle.sweep(marked, deferred=False)
        assert all(each.error is None and each.waits is None for each in done.tables) and done.unseen == ()
    assert world.rows("db.new") == [0, 1] and world.rows("db.inside") == [4] and world.rows("db.old") == [0]


def test_commits_and_references_after_the_mark_protect_their_files_until_the_last_moment(world: World) -> None:
    world.table("db.t")
    world.create("idea")
    world.insert("db.t", 5, "idea")
    idea, wanted = world.head("idea"), world.data_files("db.t", "idea")
    world.delete("idea")
    with world.open() as lifecycle:
        marked = lifecycle.mark(world.name)
        deferred = lifecycle.sweep(marked)
        (table,) = deferred.tables
        assert table.scan_id is not None and table.files > 0 and table.deleted is None
        listed = {world.relative(row["path"]) for row in lifecycle.scan(table.scan_id).files().collect()}
        assert wanted - world.data_files("db.t") <= listed, "the deferred list can be inspected"
        before = world.files()
        # The branch comes back, by its hash; and main moves on.
        world.create("again")
        world.assign("again", idea)
        world.insert("db.t", 1)
        report = lifecycle.delete_orphans(table.scan_id)
        assert report.deleted == 0 and report.kept == table.files
        assert before <= world.files()
    assert world.rows("db.t", "again") == [0, 5] and world.rows("db.t") == [0, 1]


def test_a_reassigned_reference_makes_dead_only_with_the_next_mark(world: World) -> None:
    world.table("db.t")
    start = world.head()
    world.insert("db.t", 1)
    newer = world.data_files("db.t")
    with world.open() as lifecycle:
        marked = lifecycle.mark(world.name, {"main": 1})
        world.assign("main", start)
        lifecycle.sweep(marked, deferred=False)
        assert newer <= world.files()
        lifecycle.sweep(lifecycle.mark(world.name, {"main": 1}), deferred=False)
        assert not (newer - world.data_files("db.t")) & world.files()
    assert world.rows("db.t") == [0]


def test_policies_decide_how_far_back_a_reference_can_be_read(world: World) -> None:
    world.table("db.t", rows=0)
    heads = [world.head()]
    for row in range(4):
        world.sql("INSERT OVERWRITE {}.db.t VALUES (" + str(row) + ")")
        heads.append(world.head())
    with world.open() as lifecycle:
        marked = lifecycle.mark(world.name, {"main": "2 commits"}, snapshots="referenced")
        assert (marked.commits, marked.versions, marked.policies) == (2, 2, ("main: 2 commits",))
        lifecycle.sweep(marked, deferred=False)
    for name, head in (("three", heads[3]), ("two", heads[2])):
        world.create(name)
        world.assign(name, head)
    assert world.rows("db.t") == [3] and world.rows("db.t", "three") == [2]
    with pytest.raises(Exception, match=r"NotFoundException|does not exist"):
        world.rows("db.t", "two")


def test_schemas_specs_and_sort_orders_of_other_references_stay(world: World) -> None:
    world.table("db.t")
    world.create("wide")
    world.sql("ALTER TABLE {}.db.t ADD COLUMN extra STRING", "wide")
    world.sql("ALTER TABLE {}.db.t ADD PARTITION FIELD bucket(4, n)", "wide")
    world.sql("INSERT INTO {}.db.t VALUES (5, 'x')", "wide")
    world.sql("ALTER TABLE {}.db.t ADD PARTITION FIELD truncate(n, 10)")
    world.insert("db.t", 1)
    before = {
        ref: Path(str(world.content("db.t", ref)["metadataLocation"])[5:]).read_bytes() for ref in ("main", "wide")
    }
    with world.open() as lifecycle:
        for mode in ("all", "referenced"):
            done = lifecycle.sweep(lifecycle.mark(world.name, {"*": 1}, snapshots=mode), deferred=False)  # type: ignore[arg-type]
            assert [each.error for each in done.tables] == [None]
    for ref, content in before.items():
        assert Path(str(world.content("db.t", ref)["metadataLocation"])[5:]).read_bytes() == content
    assert world.rows("db.t") == [0, 1] and world.sql("SELECT n, extra FROM {}.db.t ORDER BY n", "wide") == [
        (0, None),
        (5, "x"),
    ]


def test_locations_no_longer_used_are_reported_and_go_only_under_their_own_policy(make_world: MakeWorld) -> None:
    world = make_world()
    world.table("db.moved")
    with world.open() as lifecycle:
        lifecycle.sweep(lifecycle.mark(world.name))
    old = {each for each in world.files() if each.startswith("db/moved")}
    world.sql(f"ALTER TABLE {{}}.db.moved SET LOCATION 'file:{world.folder}/elsewhere'")
    world.sql("INSERT OVERWRITE {}.db.moved VALUES (8)")
    world.sql("ALTER TABLE {}.db.moved SET TBLPROPERTIES ('write.metadata.previous-versions-max'='1')")
    world.insert("db.moved", 9)
    with world.open() as lifecycle:
        done = lifecycle.sweep(lifecycle.mark(world.name, {"*": 1}, snapshots="referenced"), deferred=False)
        (unused,) = done.unseen
        assert unused.location is not None and "db/moved" in unused.location
        assert old <= world.files(), "reported only"
    with deleting(world).open() as lifecycle:
        done = lifecycle.sweep(lifecycle.mark(world.name, {"*": 1}, snapshots="referenced"), deferred=False)
        assert all(each.error is None and each.waits is None for each in done.tables), done.tables
    assert not old & world.files()
    assert world.rows("db.moved") == [8, 9]


def test_sets_are_listed_shown_compared_and_deleted_in_the_terminal(world: World) -> None:
    world.table("db.t")
    path = world.config.home / "lifecycle.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(world.config.model_dump(mode="json", exclude_defaults=True, by_alias=True)))

    def artemis(*arguments: str) -> Any:
        done = CliRunner().invoke(app, [*arguments, "--config", str(path), "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    first = artemis("mark", world.name, "--policy", "main=1 commit", "--policy", "*=none")
    assert first["policies"] == ["main: 1 commits", "*: none"] and first["state"] == "marked"
    world.insert("db.t", 1)
    second = artemis("mark", world.name)
    assert {first["live_set_id"], second["live_set_id"]} <= {each["live_set_id"] for each in artemis("live-sets")}
    compared = artemis("live-sets", "compare", first["live_set_id"], second["live_set_id"])
    assert (compared["same_versions"], compared["only_before"], compared["only_after"]) == (1, 0, 2)
    swept = artemis("sweep", second["live_set_id"])
    shown = artemis("live-sets", "show", second["live_set_id"])
    assert [each["scan_id"] for each in shown["tables"]] == [each["scan_id"] for each in swept["tables"]]
    assert artemis("live-sets", "delete", first["live_set_id"]) == {"deleted": first["live_set_id"]}
    assert first["live_set_id"] not in {each["live_set_id"] for each in artemis("live-sets", "list")}


def test_a_nessie_table_has_the_walks_steps_and_refuses_those_that_its_references_decide(world: World) -> None:
    world.table("db.t")
    world.create("idea")
    world.table("db.idea", "idea")
    name = f"{world.name}:db.t"
    with world.open() as lifecycle:
        lifecycle.mark(world.name)
        assert [each for each in lifecycle.tables() if ":" in each] == [f"{world.name}:db.idea@idea", name]
        assert lifecycle.kind(name) == "nessie"
        assert len(lifecycle.snapshot_history(name).snapshots) == 1
        assert lifecycle.reachable_set(name).data_file_paths.count() == 1
        (data,) = world.data_files("db.t")
        assert lifecycle.explain(name, f"file:{world.folder}/{data}").verdict == "kept"
        stray = world.folder / Path(data).parent / "stray.parquet"
        stray.write_bytes(b"x")
        scan = lifecycle.scan_orphans(name)
        assert [world.relative(row["path"]) for row in scan.files().collect()] == [str(stray.relative_to(world.folder))]
        assert lifecycle.delete_orphans(scan).deleted == 1 and not stray.exists()
        with pytest.raises(NotApplicable, match="references"):
            lifecycle.plan_expiration(name)


def _live_table(world: World) -> list[str]:
    """Make a table of the live catalog; its files."""
    spark, live = world.spark, world.config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
    core_tables.sql(spark, f"CREATE TABLE {live}.db.a (n int) USING iceberg")
    core_tables.sql(spark, f"INSERT INTO {live}.db.a VALUES (1)")
    return [str(row[0]) for row in spark.sql(f"SELECT file_path FROM {live}.db.a.files").collect()]


def _take_up(world: World, files: list[str], reference: str) -> str:
    """Append the files to a table of the server; its name in Spark."""
    jvm: Any = world.spark._jvm
    path = f"{world.catalog(reference)}.db.r"
    reader = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(world.spark._jsparkSession, path)
    for each in files:
        file = jvm.org.apache.iceberg.DataFiles.builder(reader.spec()).withPath(each).withFormat("parquet")
        size = Path(each.removeprefix("file:")).stat().st_size
        reader.newAppend().appendFile(file.withFileSizeInBytes(size).withRecordCount(1).build()).commit()
    return path


def _expire_all(world: World, lifecycle: Lifecycle) -> int:
    for row in (2, 3):
        core_tables.sql(world.spark, f"INSERT OVERWRITE {world.config.catalogs.live.name}.db.a VALUES ({row})")
    plan = lifecycle.plan_expiration("db.a", now=datetime.now(UTC) + timedelta(days=60))
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    over = "UPDATE lifecycle.plans SET due_at = clock_timestamp() WHERE plan_id = :plan"
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text(over), {"plan": plan.plan_id})
    return lifecycle.delete_files(plan).deleted


@pytest.mark.parametrize("reference", ["main", "idea"])
@pytest.mark.parametrize("marked", ["never", "before", "after", "both"])
def test_a_table_keeps_what_it_reads_of_a_table_of_the_live_catalog(world: World, marked: str, reference: str) -> None:
    files = _live_table(world)
    world.table("db.r")
    world.create("idea")
    if marked in ("before", "both"):
        with world.open() as lifecycle:
            lifecycle.mark(world.name)
    path = _take_up(world, files, reference)
    with world.open() as lifecycle:
        if marked in ("after", "both"):
            lifecycle.mark(world.name)
        assert _expire_all(world, lifecycle) > 0
    assert all(Path(each.removeprefix("file:")).exists() for each in files)
    assert sorted(row[0] for row in world.spark.sql(f"SELECT n FROM {path}").collect()) == [0, 1]


@pytest.mark.nightly
def test_a_loss_without_the_readers_of_the_server_is_real(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard of the test above, taken out."""
    monkeypatch.setattr(NessieTables, "readers", lambda _: None)
    files = _live_table(world)
    world.table("db.r")
    _take_up(world, files, "main")
    with world.open() as lifecycle:
        GUARDIAN.damaged.update(each.removeprefix("file:") for each in files)
        assert _expire_all(world, lifecycle) > 0
    assert not any(Path(each.removeprefix("file:")).exists() for each in files)


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("spoiled", ["another format", "a lost file", "no answer"])
def test_a_live_table_keeps_its_files_where_a_server_cannot_be_read(world: World, spoiled: str, marked: bool) -> None:
    files = _live_table(world)
    world.table("db.r")
    world.table("db.other")
    world.create("idea")
    path = _take_up(world, files, "idea")
    if marked:
        with world.open() as lifecycle:
            lifecycle.mark(world.name)
    if spoiled == "another format":
        lake = {"type": "DELTA_LAKE_TABLE", "metadataLocationHistory": ["a"], "checkpointLocationHistory": []}
        world.put("main", "db.delta", lake)
    elif spoiled == "a lost file":
        world.insert("db.other", 1)
        lost = Path(str(world.content("db.other")["metadataLocation"]).removeprefix("file:"))
        GUARDIAN.damaged.add(str(lost))
        lost.unlink()
    else:
        silent = world.config.catalogs.others[world.name].model_copy(update={"uri": "http://127.0.0.1:9/api/v2"})
        others = world.config.catalogs.model_copy(update={"others": {world.name: silent}})
        world = replace(world, config=world.config.model_copy(update={"catalogs": others}))
    with world.open() as lifecycle:
        if spoiled == "no answer" and marked:
            # As last observed, on each of its branches.
            assert _expire_all(world, lifecycle) > 0
        else:
            with pytest.raises(LifecycleError):
                _expire_all(world, lifecycle)
    assert all(Path(each.removeprefix("file:")).exists() for each in files)
    assert sorted(row[0] for row in world.spark.sql(f"SELECT n FROM {path}").collect()) == [0, 1]


def test_a_table_of_the_live_catalog_that_reads_a_dead_branch_keeps_its_files(world: World) -> None:
    world.table("db.t")
    world.create("idea")
    world.insert("db.t", 5, "idea")
    wanted, metadata_file = world.data_files("db.t", "idea"), world.content("db.t", "idea")["metadataLocation"]
    world.delete("idea")
    live = world.config.catalogs.live.name
    core_tables.sql(world.spark, f"CREATE NAMESPACE {live}.db")
    world.spark.sql(f"CALL {live}.system.register_table(table => 'db.copy', metadata_file => '{metadata_file}')")
    with world.open() as lifecycle:
        done = lifecycle.sweep(lifecycle.mark(world.name, {"*": 1}), deferred=False)
        assert [each.error for each in done.tables] == [None]
    assert wanted <= world.files()
    assert sorted(row[0] for row in world.spark.sql(f"SELECT n FROM {live}.db.copy").collect()) == [0, 5]


def test_a_table_that_moved_to_the_server_is_not_deleted_where_it_was_dropped(world: World) -> None:
    live = world.config.catalogs.live.name
    world.table("db.first")
    core_tables.sql(world.spark, f"CREATE NAMESPACE {live}.db")
    core_tables.sql(world.spark, f"CREATE TABLE {live}.db.moving (n INT) USING iceberg")
    core_tables.sql(world.spark, f"INSERT INTO {live}.db.moving VALUES (7)")
    with world.open() as lifecycle:
        lifecycle.mark(world.name)
        pointer = lifecycle.resources.live_catalog.entry("db.moving").metadata_location
        lifecycle.observe_catalog()
        world.sql(f"CALL {{}}.system.register_table(table => 'db.moving', metadata_file => '{pointer}')")
        world.spark.sql(f"DROP TABLE {live}.db.moving")
        lifecycle.observe_catalog()
        with suppress(LifecycleError):
            scan = lifecycle.scan_dropped("db.moving")
            lifecycle.delete_dropped(scan)
    assert world.rows("db.moving") == [7]


def test_two_configurations_of_one_server_are_two_deployments_and_only_one_has_its_tables(
    make_world: MakeWorld, databases: Databases, make_config: MakeConfig, tmp_path: Path
) -> None:
    world = make_world({"unseen": "delete"})
    world.table("db.r", rows=2)
    world.table("db.gone")
    other = world.config.catalogs.others[world.name]
    theirs = other.model_copy(update={"uri": world.api.replace("127.0.0.1", "localhost")})
    orphans = {"min_age": "0s", "min_age_floor": "0s", "max_share": 1}
    config = make_config(
        catalogs={"others": {"theirs": theirs}},
        operations={"uri": databases.make(), "root": f"file://{tmp_path}/other"},
        defaults={**WITHOUT_COLD, "orphans": orphans},
    )
    written = tmp_path / "lifecycle.yaml"
    written.write_text(config.model_dump_json(by_alias=True))
    with world.open() as first, open_lifecycle(config, spark=world.spark) as second:
        live = make_table(second, "t", 2)
        marked = first.mark(world.name)
        first.hold(f"{world.name}:db.r", "legal", "case")
        files = world.files()
        for step in (
            lambda: second.mark("theirs"),
            lambda: second.scan_orphans("theirs:db.r"),
            lambda: second.hold("theirs:db.r", "me", "mine"),
            lambda: second.writing("theirs:db.r", "w"),
        ):
            with pytest.raises(OtherDeployment, match="theirs belongs to another deployment"):
                step()
        (row,) = [each for each in diagnose(written) if each.name == "deployment of catalog theirs"]
        assert row.status == "failed" and str(world.config.operations.root) in row.detail
        # Whoever only reads the server's tables, as neighbors of its own, takes nothing and is not refused.
        assert second.tables() == [live, "theirs:db.gone", "theirs:db.r"]
        assert second.expire(live).deleted
        assert world.files() == files
        taken = second.take_over(who="ada", why="moved")
        assert [each.who for each in taken if each.catalog == "theirs"] == ["ada"]
        assert second.mark("theirs").state == "marked"
        for step in (
            lambda: first.sweep(marked, deferred=False),
            lambda: first.mark(world.name),
            lambda: first.list_objects(f"{world.name}:db.r"),
        ):
            with pytest.raises(OtherDeployment, match="ada"):
                step()
        first.take_over(who="ann", why="back")
        world.drop("db.gone")
        swept = first.sweep(first.mark(world.name), deferred=False)
        assert [each.error for each in swept.tables if "db.gone" in each.table] == [None]
        records = {path.name for path in (world.folder / FOLDER).glob("*.json")}
        assert records == {f"{world.name}{number}.json" for number in ("", ".2", ".3")}


def test_a_deletion_of_a_server_taken_over_meanwhile_stops_before_the_next_files(
    world: World, databases: Databases, tmp_path: Path
) -> None:
    world.table("db.r")
    config = with_operations(world.config, uri=databases.make(), root=f"file://{tmp_path}/other")
    with world.open() as first, open_lifecycle(config, spark=world.spark) as second:
        place = str(world.content("db.r")["metadataLocation"]).rpartition("/metadata/")[0]
        stray = f"{place}/data/stray.parquet"
        first.live_stores.write(stray, b"x")
        scan = first.scan_orphans(f"{world.name}:db.r")
        assert scan.summary.orphan_files == 1
        records = second.resources.records_of(world.name)

        def taken(point: str) -> None:
            if point == "deletion.seal_batches:after":
                take_over(records, second.resources.deployment, who="ada", why="meanwhile")

        with crash_points.installed(taken), pytest.raises(OtherDeployment, match="meanwhile"):
            first.delete_orphans(scan)
        assert first.live_stores.head(stray) is not None
