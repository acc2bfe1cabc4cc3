"""The handoff's promises: every archived snapshot reads the same rows from cold storage alone; nothing in cold names
the live tier; a killed handoff goes on to the same bytes; what cannot be archived stops it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from sqlalchemy import Connection, text

from artemis_lifecycle.catalogs.guard import lift_guard
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import pyiceberg_properties, require_uri
from artemis_lifecycle.cold_tier.demand import Demand, Problem
from artemis_lifecycle.cold_tier.handoff import Handoff
from artemis_lifecycle.cold_tier.ledger import Ledger, handoff_ledger
from artemis_lifecycle.cold_tier.needed import find_needed
from artemis_lifecycle.cold_tier.scrub import verify_copies
from artemis_lifecycle.cold_tier.transfer import Consent, HandoffInput, TransferProgress, TransferSettings
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import HandoffFailed
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.database import connect
from artemis_lifecycle.spark.runner import Cost, Rows, Runner
from artemis_lifecycle_tests.cold_tier import histories
from artemis_lifecycle_tests.cold_tier.world import Print, World, fingerprint, named_paths, tree
from artemis_lifecycle_tests.conftest import MakeConfig, on_executors
from artemis_lifecycle_tests.deaths import Killed


@pytest.fixture
def world(config: LifecycleConfig, spark: SparkSession) -> World:
    made = World(spark, config)
    made.sql("CREATE NAMESPACE {live}.ns")
    return made


class Kept:
    """A table whose history was written once, and is put back for each test: its files, and its catalog's rows."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.home = world.live_root.parent
        self.prints = world.prints("live", world.ids())
        shutil.copytree(self.home, folder, symlinks=True)
        with self.catalog() as connection:
            self.rows = {table: self.rows_of(connection, table) for table in self.TABLES}

    TABLES = ("iceberg_namespace_properties", "iceberg_tables")

    @contextmanager
    def catalog(self) -> Iterator[Connection]:
        engine = connect(require_uri(self.world.config.catalogs.live))
        with engine.begin() as connection:
            yield connection
        engine.dispose()

    def rows_of(self, connection: Connection, table: str) -> list[dict[str, object]]:
        found = connection.execute(text(f"SELECT * FROM {table} WHERE catalog_name = :name"), {"name": self.world.live})
        return [dict(row._mapping) for row in found]

    def put_back(self) -> World:
        shutil.rmtree(self.home)
        shutil.copytree(self.folder, self.home, symlinks=True)
        with self.catalog() as connection:
            lift_guard(connection, self.world.cold)
            for table in self.TABLES:
                for name in (self.world.live, self.world.cold):
                    connection.execute(text(f"DELETE FROM {table} WHERE catalog_name = :name"), {"name": name})
                for row in self.rows[table]:
                    names = ", ".join(row)
                    values = ", ".join(f":{name}" for name in row)
                    connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)
        return self.world


def _kept(spark: SparkSession, config: LifecycleConfig, folder: Path, history: Callable[[World], None]) -> Kept:
    made = World(spark, config)
    made.sql("CREATE NAMESPACE {live}.ns")
    history(made)
    kept = Kept(made, folder / "kept")
    made.known.update(kept.prints)
    return kept


@pytest.fixture(scope="module")
def kept_v1(module_configs: MakeConfig, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return _kept(spark, module_configs(), tmp_path_factory.mktemp("v1"), histories.version_1)


@pytest.fixture(scope="module")
def kept_v2(module_configs: MakeConfig, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return _kept(spark, module_configs(), tmp_path_factory.mktemp("v2"), partial(histories.merge_on_read, version=2))


@pytest.fixture
def v1(kept_v1: Kept) -> World:
    """`histories.version_1`, as it was written."""
    return kept_v1.put_back()


@pytest.fixture
def v2(kept_v2: Kept) -> World:
    """`histories.merge_on_read` of format 2, as it was written."""
    return kept_v2.put_back()


HISTORIES = {
    "version 1": histories.version_1,
    "version 2, deletes by partition": partial(histories.merge_on_read, version=2),
    "version 2, deletes by file": partial(histories.merge_on_read, version=2, granularity="file"),
    "version 3, deletion vectors": partial(histories.merge_on_read, version=3),
    "version 4, once version 3": partial(histories.merge_on_read, version=3, upgraded_to=4),
}
PLACES = {"version 2, deletes by file": "executors"}
"""Where the handoff of a history runs; the others are small, and run in this process."""


@dataclass
class Archived:
    """A table after its handoff, and what it was before."""

    world: World
    table: str
    plan: HandoffInput
    done: Handoff
    prints: dict[int, Print]
    python_rows: dict[int, list[str]]
    version: int
    lineage: dict[int, list[Row]]

    def lineage_in(self, tier: str) -> dict[int, list[Row]]:
        catalog = self.world.live if tier == "live" else self.world.cold
        return {
            snapshot_id: self.world.sql(
                f"SELECT id, _row_id, _last_updated_sequence_number FROM {catalog}.{self.table} "
                f"VERSION AS OF {snapshot_id} ORDER BY id"
            ).collect()
            for snapshot_id in self.plan.snapshot_ids
            if self.version >= 3
        }


_LONG = ("version 1", "version 2, deletes by partition")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.nightly] * (name in _LONG)) for name in HISTORIES],
)
def archived(request: pytest.FixtureRequest, module_config: LifecycleConfig, spark: SparkSession) -> Archived:
    world = World(spark, module_config)
    world.sql("CREATE NAMESPACE IF NOT EXISTS {live}.ns")
    table = f"ns.t{list(HISTORIES).index(request.param)}"
    HISTORIES[request.param](world, table=table)
    if table != "ns.t0":
        ids = world.ids(table)
        world.sql(
            f"CALL {{live}}.system.compute_table_stats(table => '{table}', snapshot_id => {ids[2]}, "
            "columns => array('id'))"
        )
    plan = world.plan(table=table)
    made = Archived(
        world,
        table,
        plan,
        done=Handoff(plan.plan_id, table),
        prints=world.prints("live", plan.snapshot_ids, table),
        python_rows=world.python_rows("live", plan.snapshot_ids, table),
        version=world.metadata(table).format_version,
        lineage={},
    )
    made.lineage = made.lineage_in("live")
    with pytest.MonkeyPatch.context() as patch:
        if request.param in PLACES:
            on_executors(patch)
        made.done = world.hand_off(plan)
    return made


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("history", [pytest.param("v1", marks=pytest.mark.nightly), "v2"])
def test_what_is_needed_is_the_same_in_process_and_on_executors(history: str, request: pytest.FixtureRequest) -> None:
    """Before the table's first handoff; after it, when the ledger knows everything; and for the way back."""
    world: World = request.getfixturevalue(history)
    plan = world.plan()
    demand, handed_off = world.demand(plan)
    ledger = handed_off
    needed = []
    for turn in ("before", "after", "back") if history == "v2" else ("before",):
        if turn == "back":
            demand, ledger = world.demand_back(plan), Ledger(world.stores, f"{world.context().root}/nothing-yet")

        def found(demand: Demand = demand, ledger: Ledger = ledger) -> list[tuple[object, ...]]:
            with find_needed(Runner(world.spark), world.stores, demand, ledger) as rows:
                assert isinstance(rows, Rows)
                return sorted((tuple(row.values()) for row in rows.table().to_pylist()), key=repr)

        rows = found()
        with pytest.MonkeyPatch.context() as patch:
            on_executors(patch)
            assert found() == rows
        needed.append(sum("copy" in row for row in rows))
        checksums = [value for row in rows for value in row if str(value).startswith("sha256:")]
        assert len(checksums) == (needed[-1] if turn == "back" else 0)
        if history == "v2" and turn == "before":
            world.hand_off(plan)
    assert needed[0] > 20
    assert needed[1:] in ([], [0, needed[0]])


def test_archived_snapshots_read_the_same_rows_from_cold_storage_alone(archived: Archived) -> None:
    world, plan = archived.world, archived.plan
    assert len({count for count, _ in archived.prints.values()}) > 2
    assert archived.done.archived == plan.snapshot_ids
    assert archived.done.lost == ()
    assert archived.done.verified_files == archived.done.copied_files + archived.done.reused_files > 0
    with world.without_live():
        assert world.prints("cold", plan.snapshot_ids, archived.table) == archived.prints
        assert world.python_rows("cold", plan.snapshot_ids, archived.table) == archived.python_rows
        # The table's metadata tables read as well.
        for name in ("files", "manifests", "snapshots", "history", "all_entries"):
            world.sql(f"SELECT * FROM {{cold}}.{archived.table}.{name}").collect()


def test_row_lineage_stays(archived: Archived) -> None:
    # Row lineage begins with version 3.
    assert any(row["_row_id"] for rows in archived.lineage.values() for row in rows) == (archived.version >= 3)
    with archived.world.without_live():
        assert archived.lineage_in("cold") == archived.lineage


ALLOWED = (
    # Values of the table's rows, in partitions and in bounds of its columns.
    "data_file.partition.kind",
    "data_file.lower_bounds[",
    "data_file.upper_bounds[",
    "partitions.lower_bound",
    "partitions.upper_bound",
    # What its owner wrote in a property of his own.
    "properties.owner.docs",
)


def test_no_path_in_cold_names_the_live_tier(archived: Archived) -> None:
    world = archived.world
    outside, cold = str(world.live_root.parent), str(world.cold_root)
    texts = list(named_paths(world.cold_root / archived.table.replace(".", "/")))
    named = [
        (file, field, value)
        for file, field, value in texts
        if outside in value and cold not in value and not field.startswith(ALLOWED)
    ]
    assert named == []
    delete_paths = [
        value
        for _, field, value in texts
        if "2147483546" in field or field in ("file_path", "statistics", "blobs.properties.referenced-data-file")
    ]
    assert all(value.startswith(f"file://{cold}") for value in delete_paths)
    assert bool(delete_paths) == (archived.version > 1)


def test_sizes_in_cold_manifests_are_those_of_the_cold_files(archived: Archived) -> None:
    for name in ("all_files", "all_manifests"):
        path, size = ("file_path", "file_size_in_bytes") if name == "all_files" else ("path", "length")
        rows = (
            archived.world.sql(f"SELECT DISTINCT {path} AS path, {size} AS size FROM {{cold}}.{archived.table}.{name}")
        ).collect()
        assert len(rows) > 3
        for row in rows:
            found = archived.world.stores.head(row["path"])
            assert found is not None
            assert found.size_in_bytes == row["size"], row["path"]


def test_statistics_files_go_with_their_snapshots(archived: Archived) -> None:
    before = archived.world.metadata(archived.table).statistics
    after = archived.world.metadata(archived.table, tier="cold").statistics
    assert [file.snapshot_id for file in after] == [file.snapshot_id for file in before]
    for live, cold in zip(before, after, strict=True):
        assert cold.path.startswith(f"file://{archived.world.cold_root}/")
        assert archived.world.stores.read(cold.path) == archived.world.stores.read(live.path)


def test_tags_of_archived_snapshots_are_tags_in_cold(archived: Archived) -> None:
    live, cold = (archived.world.metadata(archived.table, tier=tier).refs for tier in ("live", "cold"))
    assert set(cold) == set(live)
    with archived.world.without_live():
        for tag in set(cold) - {"main"}:
            rows = archived.world.sql(f"SELECT * FROM {{cold}}.{archived.table} VERSION AS OF '{tag}'")
            assert fingerprint(rows) == archived.prints[live[tag].snapshot_id]


def test_a_restored_snapshot_is_what_it_was_and_needs_nothing_of_the_cold_tier(archived: Archived) -> None:
    world, table = archived.world, archived.table
    # With deletes, where there are any; and all of an early schema and spec.
    chosen = (archived.plan.snapshot_ids[-2], archived.plan.snapshot_ids[2])
    done = {snapshot_id: world.restore(snapshot_id, f"back-{snapshot_id}", table) for snapshot_id in chosen}
    location = f"{world.live_root}/{table.replace('.', '/')}"
    for snapshot_id, restored in done.items():
        folder = f"{location}/restored/{restored.restore_id}"
        texts = list(named_paths(Path(folder)))
        assert len(texts) > 3
        strange = [
            (file, field, value)
            for file, field, value in texts
            if str(world.live_root.parent) in value and folder not in value and not field.startswith(ALLOWED)
        ]
        assert strange == []
        new = restored.snapshot_id
        assert new != snapshot_id
        with world.without_cold():
            assert fingerprint(world.rows("live", new, table)) == archived.prints[snapshot_id]
            found_by_python = world.python_rows("live", [new], table)
            assert found_by_python.get(new) == archived.python_rows.get(snapshot_id)
            if archived.version >= 3:
                found = world.sql(
                    f"SELECT id, _row_id, _last_updated_sequence_number FROM {{live}}.{table} "
                    f"VERSION AS OF {new} ORDER BY id"
                ).collect()
                assert found == archived.lineage[snapshot_id]
            # The branch takes commits like any other: deletes apply to what was restored.
            count = archived.prints[snapshot_id][0]
            branch = f"{{live}}.{table}.`branch_back-{snapshot_id}`"
            world.sql(f"DELETE FROM {branch} WHERE id % 2 = 0")
            world.sql(f"INSERT INTO {branch} (id) VALUES (-1)")
            left = world.sql(f"SELECT count(*), sum(id % 2) FROM {branch}").collect()[0]
            odd = world.rows("live", new, table).filter("id % 2 != 0 OR id IS NULL").count()
            assert left[0] == odd + 1 <= count + 1
    # Asked again, it is there already.
    again = world.restore(chosen[1], "kept apart", table)
    assert again.snapshot_id != done[chosen[1]].snapshot_id
    assert world.restore(chosen[1], "kept apart", table) == replace(again, attempts=0)


def test_a_second_handoff_of_the_plan_changes_nothing(archived: Archived) -> None:
    before = tree(archived.world.cold_root)
    second = archived.world.hand_off(archived.plan)
    assert tree(archived.world.cold_root) == before
    assert second.attempts == 0
    assert replace(second, attempts=archived.done.attempts) == archived.done


@pytest.mark.parametrize(
    "place",
    [
        "in_process",
        pytest.param(
            "executors, with little to do",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_later_handoff_copies_only_what_is_new_and_keeps_the_whole_history(
    v2: World, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place != "in_process":
        # Few files, and large ones, on a table of which much was copied before.
        monkeypatch.setattr("artemis_lifecycle.spark.runner.IN_PROCESS", Cost(512, 500_000, 1))
    ids = v2.ids()
    before = v2.before(ids[:-1])
    first = v2.hand_off(v2.plan(ids[:3]))
    v2.sql(f"CALL {{live}}.system.expire_snapshots(table => 'ns.t', snapshot_ids => array({ids[0]}, {ids[1]}))")
    second = v2.hand_off(v2.plan(ids[3:-1]))
    assert first.copied_files
    assert second.copied_files
    assert second.reused_files == 0
    copied = [row["destination"] for done in (first, second) for row in done.files().collect()]
    assert len(copied) == len(set(copied))
    with v2.without_live():
        assert v2.prints("cold", ids[:-1]) == before
    log = [entry.snapshot_id for entry in v2.metadata(tier="cold").snapshot_log]
    assert log == ids
    assert [s.snapshot_id for s in v2.metadata(tier="cold").snapshots] == ids[:-1]


def test_a_snapshot_that_expires_late_takes_its_place_in_the_middle(v2: World) -> None:
    ids = v2.ids()
    v2.hand_off(v2.plan([ids[0], ids[1], ids[3]]))
    v2.hand_off(v2.plan([ids[2]]))
    assert [s.snapshot_id for s in v2.metadata(tier="cold").snapshots] == ids[:4]


def test_values_that_resemble_paths_are_untouched(v1: World) -> None:
    plan = v1.plan()
    v1.hand_off(plan)
    looks_like = f"file://{v1.live_root}/ns/t/data/not-a-path"
    found = v1.rows("cold", plan.snapshot_ids[1]).filter("id = 100").collect()[0]
    assert (found["kind"], found["note"]) == (looks_like, looks_like)
    assert v1.metadata(tier="cold").properties["owner.docs"] == looks_like


def test_an_instant_whose_snapshot_is_not_in_cold_fails_in_every_engine(v1: World) -> None:
    metadata = v1.metadata()
    ids = v1.ids()
    v1.hand_off(v1.plan([ids[0], ids[2]]))
    at = {entry.snapshot_id: entry.timestamp_ms for entry in metadata.snapshot_log}

    def spark_reads(instant: int) -> int:
        stamp = f"timestamp_millis({instant})"
        return v1.sql(f"SELECT * FROM {{cold}}.ns.t TIMESTAMP AS OF {stamp}").count()

    assert spark_reads(at[ids[0]]) == v1.rows("live", ids[0]).count()
    assert spark_reads(at[ids[2]]) == v1.rows("live", ids[2]).count()
    for absent in (ids[1], ids[-1]):
        with pytest.raises(Exception, match=r"Cannot find snapshot|snapshot"):
            spark_reads(at[absent])
    from pyiceberg.catalog import load_catalog

    catalog = v1.config.catalogs.cold
    loaded = load_catalog(catalog.name, **pyiceberg_properties(catalog)).load_table("ns.t")
    first = loaded.snapshot_as_of_timestamp(at[ids[0]])
    assert first is not None
    assert first.snapshot_id == ids[0]
    assert loaded.snapshot_as_of_timestamp(at[ids[1]]) is None


def test_a_table_upgraded_through_all_versions_reads_from_cold(v1: World) -> None:
    v1.sql("ALTER TABLE {live}.ns.t SET TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')")
    v1.sql("INSERT INTO {live}.ns.t VALUES (400, 'plain', NULL, 'two'), (401, 'plain', NULL, 'two')")
    v1.sql("DELETE FROM {live}.ns.t WHERE id = 400")
    first = v1.plan()
    before = v1.prints("live", first.snapshot_ids)
    v1.hand_off(first)
    v1.sql("ALTER TABLE {live}.ns.t SET TBLPROPERTIES ('format-version'='3')")
    v1.sql("DELETE FROM {live}.ns.t WHERE id = 300")
    v1.sql("INSERT INTO {live}.ns.t VALUES (500, 'plain', NULL, 'three')")
    second = v1.plan(v1.ids()[len(first.snapshot_ids) : -1])
    before |= v1.prints("live", second.snapshot_ids)
    v1.hand_off(second)
    with v1.without_live():
        assert v1.prints("cold", list(before)) == before


# --- killed, and gone on with ---------------------------------------------------------------------------------------


def test_killed_at_every_point_a_handoff_resumes_to_the_same_bytes(world: World) -> None:
    """One handoff dies at every point that it reaches, one after another, and gets a little further each time."""
    world.sql(
        "CREATE TABLE {live}.ns.t (id BIGINT) USING iceberg "
        "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
    )
    for start in (0, 10, 20):
        world.sql(f"INSERT INTO {{live}}.ns.t SELECT /*+ REPARTITION(1) */ id FROM range({start}, {start + 10})")
    world.sql("DELETE FROM {live}.ns.t WHERE id % 7 = 0")
    world.sql("INSERT INTO {live}.ns.t VALUES (99)")
    plan = world.plan()
    before = world.prints("live", plan.snapshot_ids)
    settings = TransferSettings(files_per_batch=3)
    world.hand_off(plan, settings=settings)
    expected = tree(world.cold_root)
    _reset(world)

    ledger = handoff_ledger(world.stores, world.context().root, plan.table_uuid)
    died: set[tuple[str, int]] = set()

    def die(name: str) -> None:
        point = (name, len(ledger.batches(plan.plan_id)))
        if point not in died:
            died.add(point)
            raise Killed(name)

    while True:
        count = len(died)
        try:
            with crash_points.installed(die):
                done = world.hand_off(plan, settings=settings)
            break
        except Killed:
            assert len(died) == count + 1
    assert len([name for name, _ in died if name == "handoff.batch:after"]) > 4
    assert {name for name, _ in died} >= {"handoff.metadata:before", "handoff.publish:before", "handoff.publish:after"}
    assert done.archived == plan.snapshot_ids
    assert tree(world.cold_root) == expected
    with world.without_live():
        assert world.prints("cold", plan.snapshot_ids) == before


def _reset(world: World) -> None:
    """The cold tier and the handoff's state as before the first handoff."""
    shutil.rmtree(world.cold_root)
    shutil.rmtree(Path(world.context().root.removeprefix("file://")))
    engine = connect(require_uri(world.config.catalogs.cold))
    with engine.begin() as connection:
        lift_guard(connection, world.cold)
        connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name = :name"), {"name": world.cold})
    engine.dispose()


def test_a_resumed_handoff_does_not_copy_finished_batches_again(v2: World) -> None:
    plan = v2.plan()
    batches = iter(range(3))

    def check() -> None:
        if next(batches, None) is None:
            raise Killed

    with pytest.raises(Killed):
        v2.hand_off(plan, check=check)
    done_before = {path: (v2.cold_root / path).stat().st_ino for path in tree(v2.cold_root)}
    assert done_before
    progress: list[TransferProgress] = []
    v2.hand_off(plan, on_progress=progress.append)
    assert {path: (v2.cold_root / path).stat().st_ino for path in done_before} == done_before
    assert progress[-1].done_files == progress[-1].files
    assert progress[-1].done_bytes == progress[-1].bytes


def test_two_handoffs_of_one_plan_at_once_end_as_one(v1: World) -> None:
    plan = v1.plan()
    before = v1.before(plan.snapshot_ids)
    with ThreadPoolExecutor(2) as pool:
        results = [future.result() for future in [pool.submit(v1.hand_off, plan) for _ in range(2)]]
    assert {result.cold_metadata_location for result in results} == {v1.metadata(tier="cold").metadata_location}
    with v1.without_live():
        assert v1.prints("cold", plan.snapshot_ids) == before


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


@pytest.mark.usefixtures("anywhere")
def test_a_lost_file_stops_the_handoff_and_with_approval_leaves_its_snapshots_out(v1: World) -> None:
    plan = v1.plan()
    before = v1.before(plan.snapshot_ids)
    victim = _data_file(v1, plan.snapshot_ids[2])
    users = [
        snapshot_id
        for snapshot_id in plan.snapshot_ids
        if victim
        in {
            row["file_path"]
            for row in v1.sql(f"SELECT file_path FROM {{live}}.ns.t.files VERSION AS OF {snapshot_id}").collect()
        }
    ]
    assert 0 < len(users) < len(plan.snapshot_ids)
    _local(victim).unlink()
    with pytest.raises(HandoffFailed, match=r"gone") as failure:
        v1.hand_off(plan)
    assert failure.value.path == victim
    assert not _published(v1)

    with pytest.raises(HandoffFailed, match="gone"):
        v1.hand_off(plan, approved=users[1:])
    done = v1.hand_off(plan, approved=users)

    assert set(done.lost) == set(users)
    assert [problem.path for problem in done.lost_files] == [victim]
    assert set(done.archived) == set(plan.snapshot_ids) - set(users)
    with v1.without_live():
        assert v1.prints("cold", done.archived) == {key: before[key] for key in done.archived}
    again = v1.hand_off(plan, approved=users)
    assert (again.lost, again.archived) == (done.lost, done.archived)


def test_a_snapshot_that_another_tool_expired_leaves_the_handoff_without_approval(v1: World) -> None:
    plan = v1.plan()
    before = v1.before(plan.snapshot_ids)
    theirs = plan.snapshot_ids[1:3]
    listed = ", ".join(map(str, theirs))
    v1.sql(f"CALL {{live}}.system.expire_snapshots(table => 'ns.t', snapshot_ids => array({listed}))")
    # It is lost as long as nobody says that it has left the table; saying so of another helps nothing.
    for others in ((), theirs[:1]):
        with pytest.raises(HandoffFailed, match="gone or damaged"):
            v1.hand_off(plan, overtaken=others)
    assert not _published(v1)

    done = v1.hand_off(plan, overtaken=theirs)

    assert (done.overtaken, done.lost) == (theirs, ())
    assert done.archived == tuple(snapshot for snapshot in plan.snapshot_ids if snapshot not in theirs)
    with v1.without_live():
        assert v1.prints("cold", done.archived) == {key: before[key] for key in done.archived}


def test_a_loss_that_cannot_be_placed_is_never_taken_for_overtaken() -> None:
    """A file is gone, and so is the manifest that says who reads it: no snapshot is known to feel it."""
    theirs, placed, unplaced = frozenset({1, 2}), Problem("a", "gone", (1,)), Problem("b", "gone", ())
    assert Consent(overtaken=theirs).to([placed])
    assert not Consent(overtaken=theirs).to([placed, unplaced])
    assert not Consent().to([unplaced])
    assert not Consent(overtaken=theirs, there=lambda path: True).to([placed])
    assert not Consent(approved=theirs).to([unplaced])
    assert not Consent(approved=frozenset({3})).to([placed])


def test_a_snapshot_whose_file_another_still_needs_is_not_overtaken(v1: World) -> None:
    plan = v1.plan()
    _local(_data_file(v1, plan.snapshot_ids[1])).unlink()
    with pytest.raises(HandoffFailed, match="gone"):
        v1.hand_off(plan, overtaken=plan.snapshot_ids[1:2])
    assert not _published(v1)


@pytest.mark.parametrize(
    ("what", "place"),
    [
        ("manifest", "in_process"),
        pytest.param("manifest", "executors", marks=pytest.mark.nightly),
        ("manifest list", "in_process"),
    ],
)
def test_lost_metadata_stops_the_handoff_and_with_approval_leaves_its_snapshots_out(
    v1: World, what: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "executors":
        on_executors(monkeypatch)
    plan = v1.plan()
    metadata = v1.metadata()
    snapshot = metadata.snapshot(plan.snapshot_ids[1])
    assert snapshot is not None
    if what == "manifest list":
        assert snapshot.manifest_list is not None
        _local(snapshot.manifest_list).unlink()
    else:
        rows = v1.sql(
            f"SELECT path FROM {{live}}.ns.t.manifests VERSION AS OF {snapshot.snapshot_id} "
            f"WHERE added_snapshot_id = {snapshot.snapshot_id}"
        ).collect()
        _local(rows[0]["path"]).unlink()
    with pytest.raises(HandoffFailed, match="gone or damaged"):
        v1.hand_off(plan)
    assert not _published(v1)
    done = v1.hand_off(plan, approved=plan.snapshot_ids)
    assert snapshot.snapshot_id in done.lost
    assert plan.snapshot_ids[0] in done.archived


def _published(world: World) -> bool:
    with CatalogReader(world.config.catalogs.cold) as reader:
        return reader.exists("ns.t")


def test_a_source_of_another_size_than_recorded_stops_the_handoff(v1: World) -> None:
    plan = v1.plan()
    victim = _local(_data_file(v1, plan.snapshot_ids[0]))
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(HandoffFailed, match="the metadata records"):
        v1.hand_off(plan)
    assert not _published(v1)


def test_a_file_of_nobody_knows_whom_at_a_copy_s_place_stays(v1: World) -> None:
    """Also before the table's first handoff: another deployment may have the same cold root."""
    plan = v1.plan()
    victim = _data_file(v1, plan.snapshot_ids[0])
    mirrored = v1.cold_root / _local(victim).relative_to(v1.live_root)
    mirrored.parent.mkdir(parents=True)
    good = _local(victim).read_bytes()
    other = bytes([good[0] ^ 1]) + good[1:]
    mirrored.write_bytes(other)
    for _ in range(2):
        with pytest.raises(HandoffFailed, match="another file is at its place"):
            v1.hand_off(plan)
        assert mirrored.read_bytes() == other and not _published(v1)
    mirrored.unlink()
    v1.hand_off(plan)
    assert mirrored.read_bytes() == good


def test_corruption_of_a_copy_is_found(v2: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = v2.plan()
    done = v2.hand_off(plan)
    root = v2.config.operations.root
    assert root is not None
    verify = partial(verify_copies, v2.spark, v2.stores, v2.stores, root, plan.table_uuid)
    whole = verify()
    assert not whole.damaged
    assert whole.checked_files == done.verified_files
    one, two = (row["destination"] for row in done.files().filter("kind = 'data'").limit(2).collect())
    data = bytearray(_local(one).read_bytes())
    data[len(data) // 2] ^= 0x10
    _local(one).write_bytes(bytes(data))
    _local(two).unlink()
    assert {path for path, _ in verify().damaged} == {one, two}
    assert {path for path, _ in verify(plan_id=plan.plan_id).damaged} == {one, two}
    share = verify(share=0.6)
    assert 0 < share.checked_files < whole.checked_files
    in_process = verify()
    on_executors(monkeypatch)
    assert (verify(), verify(share=0.6)) == (in_process, share)


def test_a_table_writes_nothing_outside_its_own_place_in_cold(v2: World) -> None:
    """Another table archives its own copies of shared files: each has its own paths inside."""
    plan = v2.plan()
    before = {path for path in v2.cold_root.rglob("*") if path.is_file()}
    v2.hand_off(plan)
    written = {path for path in v2.cold_root.rglob("*") if path.is_file()} - before
    assert written and all(path.is_relative_to(v2.cold_root / "ns" / "t") for path in written)
    assert any({"_outside", "_spelled"}.intersection(path.parts) for path in written)


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


def test_a_renamed_table_stays_one_cold_table(v2: World) -> None:
    ids = v2.ids()
    v2.hand_off(v2.plan(ids[:2]))
    v2.sql("ALTER TABLE {live}.ns.t RENAME TO ns.renamed")
    done = v2.hand_off(v2.plan(ids[2:4], table="ns.renamed"))
    assert done.cold_table == "ns.t"
    assert [s.snapshot_id for s in v2.metadata(tier="cold").snapshots] == ids[:4]


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


def test_a_plan_without_snapshots_is_a_no_op(v1: World) -> None:
    plan = v1.plan([])
    assert v1.hand_off(plan) == Handoff(plan.plan_id, "ns.t")


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
