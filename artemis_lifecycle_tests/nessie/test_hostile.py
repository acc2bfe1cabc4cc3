"""What people, clocks, other engines and bad servers do to the sets of a Nessie catalog."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from artemis_lifecycle.errors import (
    BadInput,
    LifecycleError,
    NotApplicable,
    OperationsUnavailable,
    PlanStateError,
    Refused,
    StorageError,
    UnreadableMetadata,
)
from artemis_lifecycle.fleet.fleet import tonight
from artemis_lifecycle.live_sets import tables
from artemis_lifecycle.live_sets.tables import VersionMetadata, version_metadata
from artemis_lifecycle.nessie.references import NessieClient, NessieReferences
from artemis_lifecycle.operations.live_sets import LiveContent
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.nessie.conftest import MakeWorld
from artemis_lifecycle_tests.nessie.world import ROOT, World


def test_a_set_that_was_read_in_part_is_read_again(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next call in the process takes the tables that were not read for dropped ones."""
    world = make_world({"unseen": "delete"})
    world.table("db.a")
    world.table("db.b", rows=2)
    with world.open() as lifecycle:
        marked = lifecycle.mark(world.name)

        def throttled(stores: Stores, path: str) -> VersionMetadata:
            if "/db/b_" in path:
                raise StorageError("the store is throttled", path=path)
            return version_metadata(stores, path)

        with monkeypatch.context() as patch:
            patch.setattr(tables, "version_metadata", throttled)
            with pytest.raises(StorageError):
                lifecycle.sweep(marked, deferred=False)
            lifecycle.resources.others[world.name]._opened[marked.live_set_id]._read = (  # type: ignore[attr-defined]
                lambda path: version_metadata(lifecycle.live_stores, path)
            )
        done = lifecycle.sweep(marked, deferred=False)
        assert done.unseen == () and [each.error for each in done.tables] == [None, None]
    assert world.rows("db.a") == [0] and world.rows("db.b") == [0, 1]


def test_a_server_that_lost_its_version_store_makes_no_table_a_dropped_one(make_world: MakeWorld) -> None:
    world = make_world({"unseen": "delete"})
    world.table("db.t")
    head, before = world.head(), world.files()
    with world.open() as lifecycle:
        lifecycle.sweep(lifecycle.mark(world.name), deferred=False)
        world.assign("main", ROOT)
        (waiting,) = lifecycle.sweep(lifecycle.mark(world.name), deferred=False).tables
        assert waiting.waits is not None and "no table at all" in waiting.waits
    assert before <= world.files()
    world.assign("main", head)
    assert world.rows("db.t") == [0]


def test_a_version_without_snapshot_keeps_what_its_readers_see(world: World) -> None:
    """Put by the API, for example: Nessie's client then leaves the metadata's own current snapshot."""
    world.table("db.t", rows=0)
    for row in (0, 1):
        world.sql(f"INSERT OVERWRITE {{}}.db.t VALUES ({row})")
    content = {key: value for key, value in world.content("db.t").items() if key != "id"}
    world.put("main", "db.put", {**content, "snapshotId": -1})
    world.drop("db.t")
    with world.open() as lifecycle:
        done = lifecycle.sweep(lifecycle.mark(world.name, {"*": 1}, snapshots="referenced"), deferred=False)
        assert done.files > 0, "the older snapshot goes"
    assert world.rows("db.put") == [1]


def test_a_trial_mark_decides_nothing_until_a_person_approves_its_scan(make_world: MakeWorld) -> None:
    world = make_world({"policies": {"main": "30d"}})
    name = f"{world.name}:db.t"
    world.table("db.t", rows=0)
    world.sql("INSERT OVERWRITE {}.db.t VALUES (0)")
    old = world.head()
    world.sql("INSERT OVERWRITE {}.db.t VALUES (1)")
    with world.open() as lifecycle:
        trial = lifecycle.sweep(lifecycle.mark(world.name, {"*": 1}, snapshots="referenced")).tables[0]
        assert trial.scan_id is not None and trial.files > 0
        before = world.files()
        assert lifecycle.delete_orphans(lifecycle.scan_orphans(name)).deleted == 0
        assert lifecycle.delete_orphans(trial.scan_id).deleted == 0 and before <= world.files()
        trial = lifecycle.sweep(lifecycle.mark(world.name, {"*": 1}, snapshots="referenced")).tables[0]
        assert trial.scan_id is not None
        lifecycle.approve(trial.scan_id, who="a person", why="only the head is wanted")
        assert lifecycle.delete_orphans(trial.scan_id).deleted == trial.files
    world.create("old")
    world.assign("old", old)
    assert world.rows("db.t") == [1]
    with pytest.raises(Exception, match=r"NotFoundException|does not exist"):
        world.rows("db.t", "old")


def test_a_table_that_got_its_name_after_the_mark_has_its_steps(world: World) -> None:
    world.table("db.a")
    world.create("idea")
    world.table("db.fresh", "idea")
    with world.open() as lifecycle:
        for change in (
            lambda: world.table("db.new"),
            lambda: world.sql("ALTER TABLE {}.db.a RENAME TO db.renamed"),
            lambda: world.merge("idea"),
            lambda: world.put("main", "db.twice", {**world.content("db.new"), "id": None}),
        ):
            lifecycle.mark(world.name)
            change()
            for name in (each for each in lifecycle.tables() if ":" in each and "@" not in each):
                assert lifecycle.snapshot_history(name).snapshots
                lifecycle.delete_orphans(lifecycle.scan_orphans(name))
        sets = len(lifecycle.live_sets())
        assert lifecycle.snapshot_history(f"{world.name}:db.twice").snapshots
        assert len(lifecycle.live_sets()) == sets, "a name is looked up without a mark for each"
    assert world.rows("db.renamed") == [0] and world.rows("db.fresh") == [0] and world.rows("db.twice") == [0]


def test_a_sensors_tick_never_marks(world: World) -> None:
    world.table("db.t")
    with world.open() as lifecycle:
        table = f"{world.name}:db.t"
        (window,) = tonight(lifecycle.resources, [table], lifecycle.operations.clock.now())
        assert window.progress.planned and window.progress.orphans_due
        with pytest.raises(NotApplicable):
            lifecycle.skip_if_idle(table)
        assert not [each for each in lifecycle.live_sets() if each.catalog == world.name]


def test_a_live_table_does_not_own_where_a_nessie_table_writes(world: World) -> None:
    live = world.config.catalogs.live.name
    core_tables.sql(world.spark, f"CREATE NAMESPACE IF NOT EXISTS {live}.db")
    core_tables.sql(world.spark, f"CREATE TABLE {live}.db.host (n INT) USING iceberg")
    core_tables.sql(world.spark, f"INSERT INTO {live}.db.host VALUES (1)")
    place = str(world.spark.sql(f"SELECT file_path FROM {live}.db.host.files").collect()[0][0]).rpartition("/")[0]
    world.table("db.guest", rows=0)
    world.sql(f"ALTER TABLE {{}}.db.guest SET TBLPROPERTIES ('write.data.path'='{place}/guest')")
    world.insert("db.guest", 4)
    stray = f"{place.removeprefix('file:')}/stray.parquet"
    with world.open() as lifecycle:
        lifecycle.mark(world.name)
        with open(stray, "wb") as file:
            file.write(b"x")
        assert lifecycle.delete_orphans(lifecycle.scan_orphans("db.host")).deleted == 1, "its own stray goes"
    assert world.rows("db.guest") == [4]


def test_a_set_that_is_deleted_while_it_is_marked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.table("db.t")
    with world.open() as lifecycle:
        sets = lifecycle.operations.live_sets
        store = sets.add_contents

        def late(rows: list[LiveContent]) -> None:
            sets.delete(rows[0].live_set_id)
            store(rows)

        monkeypatch.setattr(sets, "add_contents", late)
        with pytest.raises(PlanStateError, match="deleted while it was written"):
            lifecycle.mark(world.name)


@pytest.mark.parametrize(
    "given", [1.5, date(2026, 1, 1), timedelta(days=-1), datetime(2206, 1, 1, tzinfo=UTC), "2206-01-01T00:00:00Z", [1]]
)
def test_a_cutoff_that_none_can_mean_is_refused(world: World, given: Any) -> None:
    with world.open() as lifecycle, pytest.raises(BadInput):
        lifecycle.mark(world.name, {"*": given})


# --- servers --------------------------------------------------------------------------------------------------------

Answer = Callable[[int], tuple[int, dict[str, str], Any]]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """Start a server whose answers depend on how many requests it got. Return its address."""
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Answer) -> str:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                status, headers, body = answer(len(asked))
                content = json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/api/v2"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.seconds
@pytest.mark.parametrize("token", ["s3cret\n", "s3cret€", " s3cret"])
def test_a_token_that_no_header_can_have_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(BadInput) as refused:
        NessieClient("http://127.0.0.1:9/api/v2", token).get("config")
    assert "s3cret" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(("status", "error"), [(401, Refused), (404, UnreadableMetadata), (500, OperationsUnavailable)])
def test_a_server_that_refuses_does_not_count_as_one_that_is_down(
    serve: Callable[[Answer], str], status: int, error: type[LifecycleError]
) -> None:
    with pytest.raises(error):
        NessieReferences(NessieClient(serve(lambda count: (status, {}, {})))).references()


def test_a_server_that_asks_to_wait_for_a_day_is_not_waited_for(serve: Callable[[Answer], str]) -> None:
    uri = serve(lambda count: (503, {"Retry-After": "86400"}, {}))
    with pytest.raises(LifecycleError, match="503"):
        NessieClient(uri).get("config")


def test_references_without_the_default_branch_are_incomplete(serve: Callable[[Answer], str]) -> None:
    tag = {"name": "x", "type": "TAG", "hash": "00"}
    uri = serve(lambda count: (200, {}, {"defaultBranch": "main", "references": [tag], "hasMore": False}))
    with pytest.raises(UnreadableMetadata, match="default branch main"):
        NessieReferences(NessieClient(uri)).references()


def test_pages_in_a_circle_end(serve: Callable[[Answer], str]) -> None:
    uri = serve(lambda count: (200, {}, {"references": [], "hasMore": True, "token": "ab"[count % 2]}))
    with pytest.raises(UnreadableMetadata, match="another page"):
        list(NessieClient(uri).pages("trees", "references"))
