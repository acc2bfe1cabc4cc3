"""Commits through real REST catalogs, while others change the table at every point, answers are lost, and processes
die: no ref is ever lost, and what cannot be proven is said."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from artemis_lifecycle.catalogs.commit import BaseState, Change, CommitResult, TagChange
from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.rest import Answer, RestClient, new_marker
from artemis_lifecycle.catalogs.rest_commit import RestCommitter
from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import (
    CommitConflict,
    CommitStateUnknown,
    OperationsUnavailable,
    ReferencedSnapshot,
    Refused,
)
from artemis_lifecycle.metadata.lines import Line, Relation, relate
from artemis_lifecycle.metadata.table_metadata import read_metadata_json, read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.rest_commits import RestState
from artemis_lifecycle.storage.stores import Stores, StoreSettings
from artemis_lifecycle_tests.gate.upstream import gate_before
from artemis_lifecycle_tests.rest.servers import Proxy, Server

ROWS = pa.table({"id": pa.array([1], pa.int64())})
BEFORE = ("rest:loaded", "rest:recorded", "catalog.commit:before")
AFTER = ("catalog.commit:after", "rest:answered", "rest:proven", "rest_commits.settle:before")

pytestmark = pytest.mark.seconds


class Killed(BaseException):
    pass


@dataclass
class World:
    """A table of five appends, whose first three snapshots expire; and another client of it."""

    server: Server
    operations: Operations
    proxy: Proxy
    uri: str
    format_version: int = 2
    readers: list[CatalogReader] = field(default_factory=list)

    def __post_init__(self) -> None:
        catalog = self.server.catalog()
        self.other = load_catalog("other", **pyiceberg_properties(catalog))
        self.other.create_namespace_if_not_exists("ns")
        self.table = f"ns.t{uuid.uuid4().hex[:8]}"
        schema, version = ROWS.schema, {"format-version": str(min(self.format_version, 2))}
        made = self.other.create_table(self.table, schema=schema, properties=version)
        for _ in range(5):
            made.append(ROWS)
        if self.format_version == 3:
            # pyiceberg writes no manifests of version 3.
            with CatalogReader(catalog) as reader:
                upgrade = {"action": "upgrade-format-version", "format-version": 3}
                assert reader.rest_client().commit(parse(self.table), ([], [upgrade]), new_marker()).happened
        self.stores = Stores(StoreSettings.from_catalog(catalog))
        self.ids = [each.snapshot_id for each in self.metadata().snapshots]
        self.uuid = self.metadata().table_uuid
        self.base = self.metadata()

    def metadata(self) -> TableMetadata:
        return read_table_metadata(self.stores, self.other.load_table(self.table).metadata_location)

    def committer(self) -> RestCommitter:
        reader = CatalogReader(self.server.catalog(uri=self.uri))
        self.readers.append(reader)
        read = partial(read_metadata_json, self.stores)
        return RestCommitter(reader.rest_client(), self.operations.rest_commits, read, "me", "plan", longest_wait=0.1)

    def change(self, base: BaseState) -> Change | None:
        """Expire the first three snapshots, but not what a ref holds."""
        now = read_table_metadata(self.stores, base.metadata_location)
        held = {ref.snapshot_id for ref in now.refs.values()}
        if held.intersection(self.ids[:3]):
            raise ReferencedSnapshot("held", table=self.table)
        doomed = [each for each in self.ids[:3] if now.snapshot(each) is not None]
        return Change(expire_snapshot_ids=doomed) if doomed else None

    def expire(self) -> CommitResult:
        return self.committer()(self.table, self.change)

    def state(self) -> RestState:
        return self.operations.rest_commits.of_table(self.uuid)[-1].state

    def append(self) -> None:
        self.other.load_table(self.table).append(ROWS)

    def tag(self, name: str, snapshot_id: int) -> None:
        self.other.load_table(self.table).manage_snapshots().create_tag(snapshot_id, name).commit()

    def branch(self, name: str, snapshot_id: int) -> None:
        self.other.load_table(self.table).manage_snapshots().create_branch(snapshot_id, name, 1000, 2000, 3).commit()

    def roll_back(self, snapshot_id: int) -> None:
        self.other.load_table(self.table).manage_snapshots().set_current_snapshot(snapshot_id).commit()

    def rows(self, snapshot_id: int) -> int:
        return int(self.other.load_table(self.table).scan(snapshot_id=snapshot_id).to_arrow().num_rows)

    def close(self) -> None:
        for each in self.readers:
            each.close()


@pytest.fixture
def make_world(server: Server, postgres_uri: str) -> Iterator[Callable[..., World]]:
    proxy = Proxy(server.uri)
    made: list[World] = []
    with proxy.serving() as uri, Operations.open(postgres_uri) as operations:

        def make(format_version: int = 2) -> World:
            made.append(World(server, operations, proxy, uri, format_version))
            return made[-1]

        yield make
        for each in made:
            each.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


def once(point: str, act: Callable[[], object]) -> Callable[[str], None]:
    left = [True]

    def reached(name: str) -> None:
        if name == point and left:
            left.clear()
            act()

    return reached


def test_an_undisturbed_expiration_is_proven_exact(world: World) -> None:
    done = world.expire()
    [record] = world.operations.rest_commits.of_table(world.uuid)
    assert (record.state, record.used_location, record.put_back) == (RestState.PROVEN, world.base.metadata_location, ())
    assert (done.base_metadata_location, done.metadata_location) == (record.used_location, record.metadata_location)
    assert [each.snapshot_id for each in world.metadata().snapshots] == world.ids[3:]
    headers, _ = world.proxy.commits[-1]
    assert headers["Idempotency-Key"] == record.marker


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("point", BEFORE)
def test_refs_made_on_expired_snapshots_before_the_commit_are_put_back(
    make_world: Callable[..., World], point: str, version: int
) -> None:
    if version != 2 and point != BEFORE[-1]:
        pytest.skip("one point is enough")
    world = make_world(version)

    def others() -> None:
        world.tag("tag", world.ids[1])
        world.tag("same", world.ids[1])
        world.branch("branch", world.ids[0])

    with crash_points.installed(once(point, others)):
        world.expire()
    after = world.metadata()
    assert {name: ref.snapshot_id for name, ref in after.refs.items()} == {
        "main": world.ids[-1],
        "tag": world.ids[1],
        "same": world.ids[1],
        "branch": world.ids[0],
    }
    branch = after.refs["branch"]
    assert sorted((branch.max_ref_age_ms, branch.max_snapshot_age_ms, branch.min_snapshots_to_keep)) == [3, 1000, 2000]
    assert (world.rows(world.ids[1]), world.rows(world.ids[0])) == (2, 1)
    [record] = world.operations.rest_commits.of_table(world.uuid)
    assert record.state is RestState.PROVEN
    assert {(each.ref, each.snapshot_id) for each in record.refs_put_back} == {
        ("tag", world.ids[1]),
        ("same", world.ids[1]),
        ("branch", world.ids[0]),
    }
    before, now = world.base.snapshots_by_id[world.ids[1]], after.snapshots_by_id[world.ids[1]]
    assert now.manifest_list == before.manifest_list and now.summary == before.summary
    assert now.timestamp_ms > before.timestamp_ms
    assert version == 1 or now.sequence_number > before.sequence_number
    # One snapshot, in both lines.
    assert relate(Line.of(after), Line.of(world.base)) is Relation.AHEAD
    said = [each for each in world.operations.decisions.of_table(world.uuid) if each.kind == "put-back"]
    assert len(said) == 3 and all("was made or kept anew while" in each.why for each in said)


@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
def test_appends_and_other_tags_at_any_point_change_nothing_of_it(world: World, point: str) -> None:
    def others() -> None:
        world.tag("kept", world.ids[-1])
        world.append()

    with crash_points.installed(once(point, others)):
        world.expire()
    after = world.metadata()
    assert not {each.snapshot_id for each in after.snapshots} & set(world.ids[:3])
    assert after.refs["kept"].snapshot_id == world.ids[-1] and len(after.snapshots) == 3
    assert world.state() is RestState.PROVEN and world.operations.rest_commits.open(world.uuid) == ()


@pytest.mark.parametrize("point", BEFORE)
def test_a_rollback_to_an_expired_snapshot_keeps_it(world: World, point: str) -> None:
    with crash_points.installed(once(point, lambda: world.roll_back(world.ids[1]))), pytest.raises(ReferencedSnapshot):
        world.expire()
    after = world.metadata()
    assert after.current_snapshot_id == world.ids[1] and len(after.snapshots) == 5
    assert world.operations.rest_commits.of_table(world.uuid)[-1].state is RestState.REFUSED or point == BEFORE[0]


@pytest.mark.parametrize("fault", ["500", "409", "lose", "cut"])
def test_a_lost_answer_is_found_after_three_more_appends(world: World, fault: str) -> None:
    def others() -> None:
        for _ in range(3):
            world.append()

    world.proxy.next_commit(fault, others)
    with crash_points.installed(once("catalog.commit:before", lambda: world.tag("new", world.ids[2]))):
        done = world.expire()
    after = world.metadata()
    assert after.refs["new"].snapshot_id == world.ids[2] and world.rows(world.ids[2]) == 3
    assert len(after.snapshots) == 6 and len(world.proxy.commits) >= 1
    [record] = world.operations.rest_commits.of_table(world.uuid)
    assert record.state is RestState.PROVEN and record.metadata_location == done.metadata_location
    assert done.metadata_location != after.metadata_location


def test_a_commit_that_arrives_after_all_is_proven_then(world: World) -> None:
    world.proxy.next_commit("late")
    with pytest.raises(CommitStateUnknown, match="did not answer"):
        world.expire()
    assert world.state() is RestState.SENT and len(world.metadata().snapshots) == 5
    assert world.committer().settle(world.table, world.uuid, lambda _: None) == []
    world.tag("new", world.ids[2])
    assert world.proxy.arrive is not None and world.proxy.arrive().status_code == 200
    assert "new" not in world.metadata().refs
    [done] = world.committer().settle(world.table, world.uuid, lambda _: None)
    assert [each.ref for each in done.refs_put_back] == ["new"]
    assert world.metadata().refs["new"].snapshot_id == world.ids[2] and world.rows(world.ids[2]) == 3


def test_a_login_that_expires_in_the_middle_is_renewed(world: World) -> None:
    world.proxy.next_commit("expire")
    assert world.expire().attempts == 1 and len(world.proxy.commits) == 2
    [record] = world.operations.rest_commits.of_table(world.uuid)
    assert record.state is RestState.PROVEN and len(world.metadata().snapshots) == 2
    # The same commit, sent again.
    assert {headers["Idempotency-Key"] for headers, _ in world.proxy.commits} == {record.marker}


def test_commits_are_signed_for_a_server_that_checks_signatures(seaweed_server: Server, postgres_uri: str) -> None:
    """With SigV4, as Glue's and S3 Tables' REST front want it."""
    key, secret = seaweed_server.properties["credential"].split(":")
    keys = {"client.access-key-id": key, "client.secret-access-key": secret, "client.region": "us-east-1"}
    signing = {"rest.sigv4-enabled": "true", "rest.signing-name": "s3tables", "rest.signing-region": "us-east-1"}
    stores = {name: value for name, value in seaweed_server.properties.items() if name.startswith("s3.")}
    server = replace(seaweed_server, properties={**stores, **keys, **signing})
    with Operations.open(postgres_uri) as operations:
        world = World(server, operations, Proxy(server.uri), server.uri)
        with crash_points.installed(once("rest:recorded", lambda: world.tag("new", world.ids[2]))):
            world.expire()
        assert world.state() is RestState.PROVEN and world.metadata().refs["new"].snapshot_id == world.ids[2]
        world.close()
        wrong = replace(server, properties={**server.properties, "client.secret-access-key": "wrong"})
        with CatalogReader(wrong.catalog()) as reader, pytest.raises(OperationsUnavailable, match="ForbiddenError"):
            reader.namespaces()


def test_behind_the_gate_no_ref_is_lost_for_a_moment(seaweed_server: Server, postgres_uri: str) -> None:
    """The gate sends an expiration alone, and first looks for refs that it does not know."""
    with gate_before(seaweed_server.uri, LifecycleConfig()) as gate, Operations.open(postgres_uri) as operations:
        address = f"http://127.0.0.1:{gate.port}"
        world = World(replace(seaweed_server, uri=address), operations, Proxy(address), address)
        with (
            crash_points.installed(once("catalog.commit:before", lambda: world.tag("new", world.ids[2]))),
            pytest.raises(ReferencedSnapshot),
        ):
            world.expire()
        [record] = operations.rest_commits.of_table(world.uuid)
        assert record.state is RestState.REFUSED and "Ref new was made" in str(record.why)
        assert world.metadata().refs["new"].snapshot_id == world.ids[2] and len(world.metadata().snapshots) == 5
        world.change = lambda base: Change(expire_snapshot_ids=world.ids[:2])  # type: ignore[method-assign]
        assert world.expire().changed and world.state() is RestState.PROVEN
        world.close()


def test_a_server_that_is_busy_or_down_changes_nothing(world: World) -> None:
    world.proxy.next_commit("refuse")
    assert world.expire().attempts == 2
    assert [each.state for each in world.operations.rest_commits.of_table(world.uuid)] == [
        RestState.SENT,
        RestState.PROVEN,
    ]
    # The first may still come through, so it is looked for again.
    world.committer().settle(world.table, world.uuid, lambda _: None)
    world.proxy.fault = lambda method, path: "refuse" if method == "POST" else None
    world.ids = [each.snapshot_id for each in world.metadata().snapshots] + [0, 0]
    world.change = lambda base: Change(expire_snapshot_ids=world.ids[:1])  # type: ignore[method-assign]
    with pytest.raises((CommitConflict, ReferencedSnapshot)):
        world.expire()
    assert len(world.metadata().snapshots) == 2


@pytest.mark.parametrize("tagged", [False, True])
def test_an_attempt_that_a_later_one_overtook_is_waited_for_only_where_it_can_still_lose_a_ref(
    world: World, tagged: bool
) -> None:
    """Its base leaves the log of a busy table, and then nobody can prove what became of it."""
    world.proxy.next_commit("late")
    with pytest.raises(CommitStateUnknown, match="did not answer"):
        world.expire()
    late = world.proxy.arrive
    assert late is not None
    world.proxy.fault = lambda method, path: None
    tagging = once("catalog.commit:before", lambda: world.tag("new", world.ids[2]) if tagged else None)
    with crash_points.installed(tagging):
        world.expire()
    states = [each.state for each in world.operations.rest_commits.of_table(world.uuid)]
    assert states == [RestState.SENT, RestState.PROVEN]
    if tagged:
        # The snapshot that was put back goes again.
        assert late().status_code == 200 and "new" not in world.metadata().refs
        [done] = world.committer().settle(world.table, world.uuid, lambda _: None)
        assert [each.ref for each in done.refs_put_back] == ["new"]
        assert world.metadata().refs["new"].snapshot_id == world.ids[2] and world.rows(world.ids[2]) == 3
    else:
        for _ in range(3):
            world.append()
        [_, overtaking] = world.operations.rest_commits.of_table(world.uuid)
        world.stores.delete([world.base.metadata_location, str(overtaking.metadata_location)])
        assert world.committer().settle(world.table, world.uuid, lambda _: None) == []


@pytest.mark.parametrize("point", [*BEFORE, *AFTER, "catalog.put_back:before", "catalog.put_back:after"])
def test_a_process_that_dies_at_any_point_is_resumed(world: World, point: str) -> None:
    def die() -> None:
        raise Killed

    def reached(name: str) -> None:
        tagging(name)
        dying(name)

    tagging = once("rest:recorded", lambda: world.tag("new", world.ids[2]))
    dying = once(point, die)
    with crash_points.installed(reached), pytest.raises(Killed):
        world.expire()
    world.committer().settle(world.table, world.uuid, lambda _: None)
    if not world.operations.rest_commits.proven(world.uuid, "plan") and point != "rest:loaded":
        # It died before the commit, and the tag is seen now.
        with pytest.raises(ReferencedSnapshot):
            world.expire()
    after = world.metadata()
    if point == "rest:loaded":
        assert "new" not in after.refs
        return
    assert after.refs["new"].snapshot_id == world.ids[2] and world.rows(world.ids[2]) == 3
    assert len(after.snapshots) in (3, 5)
    if len(after.snapshots) == 3:
        assert world.operations.rest_commits.proven(world.uuid, "plan")
        assert world.operations.rest_commits.open(world.uuid) == ()


def test_a_ref_that_cannot_be_put_back_is_named_and_put_back_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("artemis_lifecycle.catalogs.rest_commit._PUT_BACKS", 2)

    def refuse_from_now_on() -> None:
        world.proxy.fault = lambda method, path: "refuse" if method == "POST" else None

    def reached(name: str) -> None:
        tagging(name)
        refusing(name)

    tagging = once("catalog.commit:before", lambda: world.tag("new", world.ids[2]))
    refusing = once("rest:answered", refuse_from_now_on)
    with (
        crash_points.installed(reached),
        pytest.raises(CommitStateUnknown, match=rf"ref new on snapshot {world.ids[2]} was lost"),
    ):
        world.expire()
    assert world.state() is RestState.UNPROVEN
    with pytest.raises(CommitStateUnknown, match="ref new on snapshot"):
        world.committer().settle(world.table, world.uuid, lambda _: None)
    world.proxy.fault = lambda method, path: None
    [done] = world.committer().settle(world.table, world.uuid, lambda _: None)
    assert [each.ref for each in done.refs_put_back] == ["new"]
    assert world.metadata().refs["new"].snapshot_id == world.ids[2] and world.rows(world.ids[2]) == 3


def test_a_base_that_is_gone_proves_nothing(world: World) -> None:
    def lose_the_base() -> None:
        world.stores.delete([world.base.metadata_location])

    with (
        crash_points.installed(once("rest:answered", lose_the_base)),
        pytest.raises(CommitStateUnknown, match="cannot"),
    ):
        world.expire()
    assert world.state() is RestState.UNPROVEN


def test_a_tag_is_set_and_removed_only_where_its_ref_did_not_change(world: World) -> None:
    set_tag = Change(set_tags=(TagChange("mine", world.ids[0], 1000),))
    done = world.committer()(world.table, lambda base: set_tag)
    assert done.changed and world.metadata().refs["mine"].max_ref_age_ms == 1000
    world.proxy.next_commit("lose", world.append)
    replace(world.committer(), plan_id=None)(world.table, lambda base: Change(remove_refs=("mine",)))
    assert "mine" not in world.metadata().refs
    seen: list[Any] = []

    def change(base: BaseState) -> Change | None:
        refs = read_table_metadata(world.stores, base.metadata_location).refs
        seen.append("mine" in refs)
        return None if "mine" in refs else set_tag

    with crash_points.installed(once("rest:recorded", lambda: world.tag("mine", world.ids[1]))):
        assert not world.committer()(world.table, change).changed
    assert seen == [False, True] and world.metadata().refs["mine"].snapshot_id == world.ids[1]
    assert world.operations.rest_commits.of_table(world.uuid) == ()


def test_a_tag_that_the_server_accepts_and_does_not_set_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Nessie does, whose tables have no refs."""
    accepted = Answer(True, location=world.base.metadata_location)
    monkeypatch.setattr(RestClient, "commit", lambda *_: accepted)
    set_tag = Change(set_tags=(TagChange("mine", world.ids[0]),))
    with pytest.raises(Refused, match="accepted the commit and did not set mine"):
        world.committer()(world.table, lambda base: set_tag)


def test_a_closed_plans_attempt_that_is_under_way_is_waited_for_beside_one_that_cannot_be_proven(world: World) -> None:
    world.proxy.next_commit("late")
    with pytest.raises(CommitStateUnknown, match="did not answer"):
        world.expire()
    late, doomed = world.proxy.arrive, world.ids
    assert late is not None
    world.append()
    between = world.metadata()
    world.proxy.fault = lambda method, path: None
    world.ids = [*doomed[3:5], 0]

    def lose_its_base() -> None:
        world.stores.delete([between.metadata_location])

    with (
        crash_points.installed(once("rest:answered", lose_its_base)),
        pytest.raises(CommitStateUnknown, match="cannot"),
    ):
        world.expire()
    world.ids = doomed
    world.committer().settle(world.table, world.uuid, lambda _: "a person closed it")
    states = [each.state for each in world.operations.rest_commits.of_table(world.uuid)]
    assert states == [RestState.SENT, RestState.CLOSED]
