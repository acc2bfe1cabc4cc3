"""The contract of live catalogs: on each, the whole walk, others' changes in each gap of it, faults of the server, and
deaths end as in a SQL catalog; and of two committers, never do both win."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.types import StringType
from pyspark.sql import SparkSession
from sqlalchemy import text
from tenacity import wait_none

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.commit import BaseState, BranchChange, Change
from artemis_lifecycle.catalogs.deployments import PROPERTY
from artemis_lifecycle.catalogs.identifier import NAMESPACE
from artemis_lifecycle.catalogs.settings import catalog_conf, pyiceberg_catalog
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.errors import CommitStateUnknown, GarbageCollectionDisabled, LifecycleError, MissingFile, Refused
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.metadata.table_metadata import read_metadata_json
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.spark.session import add_catalogs
from artemis_lifecycle_tests.catalogs.linearizability import Operation, is_linearizable
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deaths import Killed, lapse
from artemis_lifecycle_tests.rest import homes
from artemis_lifecycle_tests.rest.homes import SQL, Home
from artemis_lifecycle_tests.rest.servers import Proxy, Server, is_commit

LATER = datetime.now(UTC) + timedelta(days=60)
POLICY = {
    "retention": {"window": "1d", "min_snapshots": 2},
    "deletion": {"grace": "1ms"},
    "orphans": {"min_age": "0s", "min_age_floor": "0s", "max_share": 1},
}
YEAR_MS = 31_536_000_000
ROW = pa.table({"id": pa.array([1], pa.int64())})


@pytest.fixture(scope="module")
def glue() -> Iterator[Home]:
    with homes.glue() as home:
        yield home


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with homes.hive(tmp_path_factory.mktemp("hive")) as home:
        yield home


@pytest.fixture(scope="module")
def nessie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with homes.nessie(tmp_path_factory.mktemp("nessie")) as home:
        yield home


@pytest.fixture(scope="module")
def seaweed(seaweed_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return homes.of_rest("seaweed", seaweed_server, tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def adapter(adapter_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return homes.of_rest("adapter", adapter_server, tmp_path_factory.mktemp("state"))


HOMES = ("seaweed", "adapter", "glue", "hive")
"""Without Nessie, whose REST catalog cannot expire anything (the last test but one)."""


def homes_of(*short: str) -> list[Any]:
    """Every catalog; those in `short` in `make test`, too."""
    return [pytest.param(each, marks=() if each in short else pytest.mark.nightly) for each in HOMES]


@pytest.fixture
def home(request: pytest.FixtureRequest) -> Home:
    found: Home = SQL if request.param == "sql" else request.getfixturevalue(request.param)
    return found


@dataclass
class World:
    """A lifecycle on a catalog, and another client of the same catalog, which no proxy disturbs."""

    home: Home
    lifecycle: Lifecycle
    other: Any
    ids: dict[str, list[int]] = field(default_factory=dict)

    def table(self) -> str:
        """Five appends."""
        name = f"db.t{uuid.uuid4().hex[:8]}"
        self.other.create_namespace_if_not_exists("db")
        made = self.other.create_table(name, schema=ROW.schema)
        for _ in range(5):
            made.append(ROW)
        self.ids[name] = [each.snapshot_id for each in made.metadata.snapshots]
        return name

    def load(self, table: str) -> Table:
        found: Table = self.other.load_table(table)
        return found

    def has(self, table: str, snapshot_id: int) -> bool:
        return self.load(table).snapshot_by_id(snapshot_id) is not None

    def count(self, table: str) -> int:
        """The files of the table, but metadata files and receipts."""
        files = self.lifecycle.live_stores.list(self.load(table).location())
        return sum(each.path.endswith((".avro", ".parquet")) and "receipts" not in each.path for each in files)

    def plan(self, table: str) -> ExpirationPlan:
        return self.lifecycle.plan_expiration(table, now=LATER)

    def final(self, table: str) -> dict[str, Any]:
        """What the walk left: refs, snapshots, rows in both tiers, files; without names and ids. Reads every file that
        is reached."""
        live, ids = self.load(table), self.ids[table]
        place = {snapshot_id: number for number, snapshot_id in enumerate(ids)}
        reached = {live.metadata_location, *(each.metadata_file for each in live.metadata.metadata_log)}
        for snapshot in live.metadata.snapshots:
            reached.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(live.io):
                reached.add(manifest.manifest_path)
                reached |= {each.data_file.file_path for each in manifest.fetch_manifest_entry(live.io)}
        reached = {path.replace("file:///", "file:/") for path in reached}
        listed = self.lifecycle.live_stores.list(live.location())
        there = {file.path.replace("file:///", "file:/") for file in listed}
        assert reached <= there
        left = (path for path in there - reached if "/artemis-receipts/" not in path)
        kinds = Counter(path.rpartition(".")[2] for path in left)
        cold = pyiceberg_catalog(self.lifecycle.config.catalogs.cold).load_table(table)
        return {
            "refs": sorted(
                (name, ref.snapshot_ref_type.value, place[ref.snapshot_id], ref.max_ref_age_ms)
                for name, ref in live.metadata.refs.items()
            ),
            "live": {place[each.snapshot_id]: _rows(live, each.snapshot_id) for each in live.metadata.snapshots},
            "cold": {place[each.snapshot_id]: _rows(cold, each.snapshot_id) for each in cold.metadata.snapshots},
            "left": {kind: number for kind, number in kinds.items() if kind not in ("json", "crc")},
            "plan": self.lifecycle.plans(table)[0].status.value,
        }

    # --- what others do -----------------------------------------------------------------------------------------------

    def tag(self, table: str) -> None:
        doomed, now = self.ids[table][2], self.ids[table][-1]
        target = doomed if self.has(table, doomed) else now
        self.load(table).manage_snapshots().create_tag(target, "late", YEAR_MS).commit()

    def branch(self, table: str) -> None:
        doomed, now = self.ids[table][1], self.ids[table][-1]
        target = doomed if self.has(table, doomed) else now
        self.load(table).manage_snapshots().create_branch(target, "side", YEAR_MS).commit()

    def append(self, table: str) -> None:
        live = self.load(table)
        live.append(ROW)
        self.ids[table].append(live.metadata.current_snapshot_id or 0)

    def roll_back(self, table: str) -> None:
        doomed, kept = self.ids[table][1], self.ids[table][3]
        target = doomed if self.has(table, doomed) else kept
        self.load(table).manage_snapshots().set_current_snapshot(target).commit()


def _rows(table: Table, snapshot_id: int) -> int:
    return int(table.scan(snapshot_id=snapshot_id).to_arrow().num_rows)


ACTIONS = {"tag": World.tag, "branch": World.branch, "append": World.append, "roll_back": World.roll_back}
GAPS = ("planned", "copying", "copied", "checked", "committed", "deleting")
POINTS = {
    "handoff.batch:before": "copying",
    "catalog.commit:before": "checked",
    "deletion.delete_files:before": "deleting",
}
Open = Callable[[Home], World]


@pytest.fixture
def opened(make_config: MakeConfig, spark: SparkSession) -> Iterator[Open]:
    with ExitStack() as stack:

        def make(home: Home, behind: str | None = None) -> World:
            live = dict(home.live if behind is None else home.behind(behind).live)
            operations = {} if home.root is None else {"root": home.root}
            config = make_config(catalogs={"live": live}, operations=operations, defaults=POLICY)
            direct = config.catalogs.live
            if home.live:
                direct = Catalog.model_validate({"name": direct.name, **home.live})
            other = pyiceberg_catalog(direct)
            if direct.type == "rest":
                # The server belongs to no deployment.
                other.create_namespace_if_not_exists(NAMESPACE)
                other.update_namespace_properties(NAMESPACE, removals={PROPERTY})
            lifecycle = Lifecycle.open(config, spark=spark)
            stack.callback(_forget, lifecycle)
            return World(home, lifecycle, other)

        yield make


def _forget(lifecycle: Lifecycle) -> None:
    _forget_plans(lifecycle)
    lifecycle.resources.close()


def _forget_plans(lifecycle: Lifecycle) -> None:
    """The catalog goes with its test, and what is planned in it would stop the next one's deletions."""
    with lifecycle.operations.engine.begin() as connection:
        tables = ("plans", "known_tables", "table_locations", "seen_pointers", "swap_attempts")
        connection.execute(text(f"TRUNCATE {', '.join(f'lifecycle.{each}' for each in tables)} CASCADE"))


def walked(world: World, table: str, gap: str = "", action: str = "") -> dict[str, Any]:
    """The walk, in one gap of which somebody else does something."""
    done = [not action]

    def reached(name: str) -> None:
        if gap in (name, POINTS.get(name)) and not done[0]:
            done[0] = True
            ACTIONS[action](world, table)

    with crash_points.installed(reached):
        for _ in range(3):
            with suppress(LifecycleError):
                # A step that finds another table than was planned for says so, and the next night plans again.
                night(world, table, reached)
                break
        else:
            night(world, table, reached)
    assert done[0]
    return world.final(table)


def night(world: World, table: str, reached: Callable[[str], None]) -> None:
    lifecycle = world.lifecycle
    plan = world.plan(table)
    reached("planned")
    lifecycle.hand_off(plan)
    reached("copied")
    lifecycle.commit_expiration(plan)
    reached("committed")
    assert lifecycle.delete_files(plan).failed == 0


_REFERENCE: dict[tuple[str, str], dict[str, Any]] = {}


def reference(opened: Open, gap: str, action: str) -> dict[str, Any]:
    """What the same ends as in a SQL catalog."""
    if (gap, action) not in _REFERENCE:
        world = opened(SQL)
        _REFERENCE[gap, action] = walked(world, world.table(), gap, action)
    return deepcopy(_REFERENCE[gap, action])


@pytest.mark.parametrize(
    "gap", [pytest.param(each, marks=() if each == "checked" else pytest.mark.nightly) for each in GAPS]
)
@pytest.mark.parametrize("home", homes_of("seaweed", "glue"), indirect=True)
def test_what_others_do_in_any_gap_ends_as_in_a_sql_catalog(opened: Open, home: Home, gap: str) -> None:
    world = opened(home)
    tables = {action: world.table() for action in ACTIONS}
    # S3's times are whole seconds: a file of the second in which the plan is sealed may be another one, and is kept.
    time.sleep(1.1)
    ends = {action: walked(world, table, gap, action) for action, table in tables.items()}
    expected = {action: reference(opened, gap, action) for action in ACTIONS}
    if home.live["type"] == "rest" and gap == "checked":
        # A branch that is put back has its snapshot. Its older ones expire, as planned before there was a branch.
        expected["branch"]["live"].pop(0, None)
    assert ends == expected


@pytest.mark.parametrize("home", homes_of("seaweed"), indirect=True)
def test_the_whole_walk_with_deletes_tags_a_restore_and_orphans_ends_as_in_a_sql_catalog(
    opened: Open, home: Home
) -> None:
    over = whole_walk(opened(home))
    assert over == whole_walk(opened(SQL))
    assert over["expired"] == [0, 2, 3, 4] and over["commit"] == (4, 0, ())


def whole_walk(world: World) -> dict[str, Any]:
    """The walk of a table with deletes and a compaction, with a tag, an untag, an orphan and a restore; and what it
    leaves, without ids."""
    lifecycle = world.lifecycle
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    world.other.create_namespace_if_not_exists("db")
    table = f"db.w{uuid.uuid4().hex[:8]}"
    spark.sql(
        f"CREATE TABLE {live}.{table} (id int, part string) USING iceberg PARTITIONED BY (part) "
        "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
    )
    for start in (0, 8):
        spark.sql(f"INSERT INTO {live}.{table} SELECT id, 'p' || id % 2 FROM range({start}, {start + 8})")
    spark.sql(f"DELETE FROM {live}.{table} WHERE id IN (3, 12)")
    second = world.load(table).metadata.snapshots[1].snapshot_id
    spark.sql(f"ALTER TABLE {live}.{table} CREATE TAG audit AS OF VERSION {second}")
    lifecycle.compact_data_files(table)
    spark.sql(f"INSERT OVERWRITE {live}.{table} VALUES (20, 'p0'), (21, 'p1')")
    ids = world.ids[table] = [each.snapshot_id for each in world.load(table).metadata.snapshots]
    before = [rows(lifecycle, table, each) for each in ids]
    orphan = f"{world.load(table).location()}/data/part=p0/left.parquet"
    lifecycle.live_stores.write(orphan, b"left by a job that failed")
    time.sleep(1.1)
    lifecycle.tag(table, "mine", ids[0])
    lifecycle.untag(table, "mine")
    plan = lifecycle.plan_expiration(table, now=LATER, retain_last=1)
    lifecycle.hand_off(plan)
    done = lifecycle.commit_expiration(plan)
    report = lifecycle.delete_files(plan)
    again = lifecycle.delete_files(plan)
    restored = lifecycle.restore(table, ids[0], "back")
    assert [rows(lifecycle, table, each) for each in ids] == before
    assert rows(lifecycle, table, restored.snapshot_id) == before[0]
    scan = lifecycle.scan_orphans(table)
    orphans = [row["path"].rpartition("/")[2] for row in scan.files().collect()]
    deleted = lifecycle.delete_orphans(scan)
    world.ids[table] += [restored.snapshot_id]
    return {
        **world.final(table),
        "kinds": sorted((each.kind, each.files) for each in plan.summary.by_kind),
        "expired": [number for number, each in enumerate(ids) if each in plan.expired_snapshots],
        "commit": (done.snapshots_removed, done.refs_removed, done.put_back),
        "deleted": (report.deleted, report.kept, report.failed, again.deleted),
        "orphans": (orphans, deleted.deleted, deleted.failed),
        "status": [each.status for each in lifecycle.plans(table)],
    }


def rows(lifecycle: Lifecycle, table: str, snapshot_id: int) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in lifecycle.read(table, snapshot_id=snapshot_id).collect())


# --- faults of the server ---------------------------------------------------------------------------------------------

FAULTS = ("down", "refuse", "slow", "500", "lose", "cut", "expire")


@pytest.fixture
def disturbed(opened: Open, home: Home) -> Iterator[tuple[World, Proxy]]:
    """A world whose lifecycle reaches the catalog through a proxy."""
    proxy = homes.proxy_before(home)
    with proxy.serving() as address:
        yield opened(home, address), proxy


@pytest.mark.parametrize("home", homes_of("seaweed"), indirect=True)
def test_whatever_becomes_of_a_commit_the_walk_ends_as_in_a_sql_catalog(
    opened: Open, disturbed: tuple[World, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, proxy = disturbed
    monkeypatch.setattr("artemis_lifecycle.catalogs.commit.wait_random_exponential", lambda **_: wait_none())
    tables = {fault: world.table() for fault in FAULTS}
    time.sleep(1.1)
    undisturbed = reference(opened, "", "")
    for fault, table in tables.items():
        lifecycle, plan = world.lifecycle, world.plan(table)
        lifecycle.hand_off(plan)
        before, errors = len(proxy.commits), list[str]()
        proxy.next_commit(fault)
        if fault == "down":
            # From the first commit on.
            proxy.fault = lambda method, path, before=before: "refuse" if len(proxy.commits) > before else None
        for _ in range(3):
            try:
                lifecycle.commit_expiration(plan)
                break
            except LifecycleError as error:
                errors.append(str(error))
                proxy.fault = lambda method, path: None
        else:
            raise AssertionError((fault, errors))
        assert len(proxy.commits) > before, fault
        assert not any("anysecret" in each for each in errors)
        assert lifecycle.delete_files(plan).failed == 0
        assert world.final(table) == undisturbed, (fault, errors)


# --- deaths -----------------------------------------------------------------------------------------------------------

DEATHS = ("catalog.commit:before", "catalog.commit:after", "commit:swapped")
REST_DEATHS = (
    *("rest:loaded", "rest:recorded", "rest:answered", "rest:proven"),
    *("catalog.put_back:before", "catalog.put_back:after", "rest_commits.settle:before", "rest_commits.settle:after"),
)


@pytest.mark.parametrize("home", homes_of("seaweed"), indirect=True)
def test_a_worker_that_dies_at_any_point_of_a_commit_is_resumed(opened: Open, home: Home) -> None:
    """Over REST, somebody makes a tag on an expiring snapshot right before the commit, which is lost and put back."""
    world = opened(home)
    over_rest = home.live["type"] == "rest"
    points = DEATHS + (REST_DEATHS if over_rest else ())
    tables = {point: world.table() for point in points}
    time.sleep(1.1)
    for point, table in tables.items():
        lifecycle, plan = world.lifecycle, world.plan(table)
        lifecycle.hand_off(plan)
        alive, tagged = [True], [not over_rest]

        def reached(name: str, table: str = table, point: str = point, alive=alive, tagged=tagged) -> None:
            if name == "catalog.commit:before" and not tagged[0]:
                tagged[0] = True
                world.tag(table)
            if name == point and alive[0]:
                alive[0] = False
                raise Killed(name)

        with crash_points.installed(reached):
            with pytest.raises(Killed):
                lifecycle.commit_expiration(plan)
            lapse(lifecycle, "leases")
            # The next night plans first, and finds what was committed.
            again = world.plan(table)
            for each in (plan, again):
                with suppress(LifecycleError):
                    lifecycle.hand_off(each)
                    lifecycle.commit_expiration(each)
                    assert lifecycle.delete_files(each).failed == 0
        if not over_rest:
            expected = reference(opened, "", "")
        elif tagged[0] and point != "rest:loaded":
            expected = reference(opened, "checked", "tag")
        assert world.final(table) == expected, point


# --- two committers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "home", ["sql", *homes_of("seaweed"), pytest.param("nessie", marks=pytest.mark.nightly)], indirect=True
)
def test_two_committers_never_both_win(opened: Open, home: Home) -> None:
    """Each appends to the list in the head of main (as Elle does), and expires what is old; somebody tags what expires,
    answers are lost, and the history of the list is one of a register. No tag that was made is lost."""
    plain = opened(home)
    table = plain.table()
    history: list[Operation] = []
    tags: dict[str, int] = {}
    with ExitStack() as stack:
        worlds = [plain]
        if home is not SQL:
            proxy = homes.proxy_before(home)
            dice = random.Random(1)
            faults = [None] * 6 + ["500", "lose"]
            proxy.fault = lambda method, path: dice.choice(faults) if is_commit(method, path) else None
            worlds.append(opened(home, stack.enter_context(proxy.serving())))
        run = partial(_committer, history=history, table=table)
        threads = [
            threading.Thread(target=run, args=(world.lifecycle, f"{number}"))
            for number, world in enumerate(worlds * (2 if home is SQL else 1))
        ]
        if home.name != "nessie":
            threads.append(threading.Thread(target=_tagger, args=(plain, table, tags)))
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    for world in worlds:
        rest = world.lifecycle.resources.rest_of(table)
        if rest is not None:
            rest.settle(table, str(plain.load(table).metadata.table_uuid), lambda _: None)
    _, end = _list(plain.lifecycle, plain.load(table).metadata_location)
    history.append(Operation("t", time.monotonic(), time.monotonic(), end))
    won = [each for each in history if each.outcome == "ok" and each.expected is not None]
    assert len(won) > 10 and is_linearizable(history, "")
    assert set(end.split(",")) >= {each.value.rpartition(",")[2] for each in won}
    # A history in which one win is gone is not.
    lost = replace(history[-1], value=won[0].expected or "")
    assert not is_linearizable([*history[:-1], lost], "")
    refs = plain.load(table).metadata.refs
    assert {tag: refs[tag].snapshot_id for tag in tags if tag in refs} == tags and (tags or home.name == "nessie")


def _list(lifecycle: Lifecycle, location: str) -> tuple[dict[str, Any], str]:
    """A metadata file, and the list in the head of its main branch."""
    node = read_metadata_json(lifecycle.live_stores, location)
    head = next(each for each in node["snapshots"] if each["snapshot-id"] == node["current-snapshot-id"])
    return node, head["summary"].get("list", "")


def _committer(lifecycle: Lifecycle, who: str, history: list[Operation], table: str) -> None:
    commit = lifecycle.resources.committer(table)
    for number in range(12):
        tried: dict[str, Operation] = {}

        def append(base: BaseState, number: int = number, tried: dict[str, Operation] = tried) -> Change:
            node, before = _list(lifecycle, base.metadata_location)
            after = f"{before},{who}.{number}" if before else f"{who}.{number}"
            tried[base.metadata_location] = Operation("t", 0, 0, after, before)
            head = next(each for each in node["snapshots"] if each["snapshot-id"] == node["current-snapshot-id"])
            made = random.getrandbits(62)
            numbers = {
                "snapshot-id": made,
                "parent-snapshot-id": head["snapshot-id"],
                "sequence-number": node["last-sequence-number"] + 1,
                "timestamp-ms": max(int(time.time() * 1000), node["last-updated-ms"]),
                "summary": {"operation": "append", "list": after},
            }
            snapshots = {made: json.dumps({**head, **numbers})}
            return Change(add_snapshots=snapshots, set_branches=[BranchChange("main", made)])

        def expire(base: BaseState) -> Change:
            node, _ = _list(lifecycle, base.metadata_location)
            held = {each["snapshot-id"] for each in node["refs"].values()}
            return Change([each["snapshot-id"] for each in node["snapshots"] if each["snapshot-id"] not in held][:-2])

        begun, outcome, base = time.monotonic(), "ok", ""
        try:
            base = commit(table, append).base_metadata_location
        except CommitStateUnknown:
            outcome = "unknown"
        except LifecycleError:
            continue
        mine = tried.get(base) or list(tried.values())[-1]
        history.append(replace(mine, start=begun, end=time.monotonic(), outcome=outcome))
        with suppress(LifecycleError):
            commit(table, expire)


def _tagger(world: World, table: str, tags: dict[str, int]) -> None:
    for number in range(12):
        live = world.load(table)
        oldest = min(live.metadata.snapshots, key=lambda each: each.sequence_number or 0).snapshot_id
        try:
            live.manage_snapshots().create_tag(oldest, f"t{number}").commit()
        except Exception:
            continue
        tags[f"t{number}"] = oldest


# --- a catalog that lost a table, or its newest state -----------------------------------------------------------------


def test_what_a_managed_store_deleted_with_its_table_is_not_registered_again(opened: Open, seaweed: Home) -> None:
    world = opened(seaweed)
    table = world.table()
    world.lifecycle.observe_catalog()
    world.other.drop_table(table)
    world.lifecycle.observe_catalog()
    with pytest.raises(MissingFile, match="was purged"):
        world.lifecycle.undrop(table)
    assert table not in world.lifecycle.tables()


@pytest.mark.nightly
@pytest.mark.parametrize("home", ["adapter", "glue", "hive"], indirect=True)
def test_a_dropped_table_comes_back_with_its_refs_and_its_plan_goes_on(opened: Open, home: Home) -> None:
    assert dropped_and_back(opened(home)) == dropped_and_back(opened(SQL))


def dropped_and_back(world: World) -> dict[str, Any]:
    table, lifecycle = world.table(), world.lifecycle
    world.tag(table)
    time.sleep(1.1)
    lifecycle.observe_catalog()
    plan = world.plan(table)
    lifecycle.hand_off(plan)
    # Somebody commits once more, unseen, before the drop.
    world.append(table)
    seen = world.load(table).metadata_location
    world.other.drop_table(table)
    lifecycle.observe_catalog()
    assert [each.table for each in lifecycle.dropped_tables()] == [table]
    done = lifecycle.undrop(table)
    assert done.metadata_location == seen and done.missing == 0
    with pytest.raises(LifecycleError):
        lifecycle.undrop(table)
    lifecycle.commit_expiration(plan)
    assert lifecycle.delete_files(plan).failed == 0
    return world.final(table)


@pytest.mark.nightly
@pytest.mark.parametrize("home", ["adapter", "glue", "hive"], indirect=True)
def test_a_catalog_that_comes_back_from_a_backup_loses_nothing(opened: Open, home: Home) -> None:
    """As after a SQL catalog did; but a restore into the table needs one that takes whole metadata."""
    over, expected = (put_back_to_a_backup(opened(each)) for each in (home, SQL))
    if home.live["type"] == "rest":
        # The archive has given out the id of a column.
        assert (over["widened"].pop("restored"), expected["widened"].pop("restored")) == (("Refused", 0), (True, 3))
    assert over == expected


def put_back_to_a_backup(world: World) -> dict[str, Any]:
    """A table for each moment at which the catalog goes back to its state before an expiration, and what all that is
    left of it answers, in both tiers."""
    lifecycle, ends = world.lifecycle, dict[str, Any]()
    tables = {moment: world.table() for moment in ("committed", "deleted", "diverged", "widened")}
    time.sleep(1.1)
    for moment, table in tables.items():
        backup, ids = world.load(table).metadata_location, world.ids[table]
        if moment == "widened":
            world.load(table).update_schema().add_column("more", StringType()).commit()
            world.append(table)
        plan = world.plan(table)
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)
        if moment != "committed":
            assert lifecycle.delete_files(plan).deleted
        world.append(table)
        world.other.drop_table(table)
        world.other.register_table(table, backup)
        if moment == "diverged":
            world.append(table)
        end = ends[moment] = {"answers": [answer(lifecycle, table, each) for each in ids]}
        if moment == "committed":
            report = lifecycle.delete_files(plan)
            end["deleted"] = report.deleted, report.failed
        else:
            files = world.count(table)
            done = said(lambda table=table, ids=ids: bool(lifecycle.restore(table, ids[0], "back").branch))
            end["restored"] = done, world.count(table) - files
        end["night"] = said(lambda table=table: night(world, table, lambda name: None))
        end["orphans"] = said(lambda table=table: lifecycle.delete_orphans(lifecycle.scan_orphans(table)).deleted)
        end["after"] = [answer(lifecycle, table, each) for each in ids]
        for before, after in zip(end["answers"], end["after"], strict=True):
            assert after == before or not isinstance(before, int), (moment, end)
        # A table whose files are gone would make the next one's deletion wait.
        world.other.drop_table(table)
        _forget_plans(lifecycle)
    return ends


def said(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except LifecycleError as error:
        return type(error).__name__


def answer(lifecycle: Lifecycle, table: str, snapshot_id: int) -> Any:
    """The rows of a snapshot, or why there are none."""
    try:
        return lifecycle.read(table, snapshot_id=snapshot_id).count()
    except Exception as error:
        return type(error).__name__


# --- a server that cannot ---------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_nessies_rest_catalog_keeps_one_snapshot_and_no_refs_and_says_so(opened: Open, nessie: Home) -> None:
    """Each of its commits writes the first metadata file of a table again, with the newest snapshot alone."""
    world = opened(nessie)
    table = world.table()
    files = {file.path for file in world.lifecycle.live_stores.list(world.load(table).location())}
    [kept] = world.ids[table]
    with pytest.raises(GarbageCollectionDisabled):
        world.plan(table)
    with pytest.raises(Refused, match="accepted the commit and did not set mine"):
        world.lifecycle.tag(table, "mine", kept)
    assert files <= {file.path for file in world.lifecycle.live_stores.list(world.load(table).location())}


# --- what only one kind of catalog has --------------------------------------------------------------------------------


def test_spark_writes_objects_with_the_keys_of_glue(glue: Home, spark: SparkSession) -> None:
    """Iceberg gives the provider of those keys a property without a value, for the client of S3."""
    given = glue.live["properties"]
    keys = {f"glue.{key}": given[f"client.{key}"] for key in ("region", "access-key-id", "secret-access-key")}
    properties = {key: value for key, value in given.items() if not key.startswith("client.")} | keys
    catalog = Catalog(name="glue_keys", type="glue", warehouse=glue.live["warehouse"], properties=properties)
    add_catalogs(spark, catalog_conf(catalog))
    try:
        spark.sql("CREATE NAMESPACE glue_keys.keys")
        spark.sql("CREATE TABLE glue_keys.keys.t (id int) USING iceberg")
        spark.sql("INSERT INTO glue_keys.keys.t VALUES (1)")
        assert spark.table("glue_keys.keys.t").count() == 1
    finally:
        for key in catalog_conf(catalog):
            spark.conf.unset(key)
