"""The deep archive: only what no other snapshot reads goes there; what is there is said to be, and read by nobody
before a thaw that two people stand for; a kill, a hold and a live file in between do no harm."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.cold_tier import deep_archive, rewriting
from artemis_lifecycle.cold_tier.deep_archive import due_snapshots
from artemis_lifecycle.cold_tier.paths import OWNER
from artemis_lifecycle.cold_tier.scrub import verify_copies
from artemis_lifecycle.config.deployment import ClassPrices, Prices
from artemis_lifecycle.deletion.report import RECEIPTS
from artemis_lifecycle.errors import (
    BadInput,
    HandoffFailed,
    InDeepArchive,
    LeaseTaken,
    NoSuchPlan,
    NoSuchTable,
    OperationsUnavailable,
    Refused,
    StorageError,
    UnreadableMetadata,
)
from artemis_lifecycle.metadata.types import LogEntry, Ref
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.cold_tier import LAPSED, OVER, ThawState
from artemis_lifecycle.protection.protection import Protection
from artemis_lifecycle.retention.rules import HistoryView, HoldView, SnapshotView
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.storage.local.store import LocalStore, aside_of, is_aside, local_path
from artemis_lifecycle.walk.cold_tier import ColdTier
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.cold_tier.test_put_back import put_back
from artemis_lifecycle_tests.cold_tier.world import Print, fingerprint, tree
from artemis_lifecycle_tests.conftest import MakeConfig, on_executors, open_lifecycle
from artemis_lifecycle_tests.deaths import Killed, killed_at, lapse
from artemis_lifecycle_tests.past_the_guard import past_the_guard
from artemis_lifecycle_tests.people import approve_thaw
from artemis_lifecycle_tests.policies import AND_ARCHIVED, AT_ONCE
from artemis_lifecycle_tests.protection.databases import Databases, with_operations
from artemis_lifecycle_tests.protection.databases import databases as databases
from artemis_lifecycle_tests.protection.foreign import expire_in_metadata


@dataclass
class Archive:
    """Tables whose history is in the cold tier, past its retention, with what each snapshot read before."""

    lifecycle: Lifecycle
    prints: dict[int, Print]

    def cold_root(self) -> Path:
        return Path(str(self.lifecycle.config.catalogs.cold.warehouse).removeprefix("file://"))

    def made(self, name: str, *statements: str, expired: bool = True) -> tuple[int, ...]:
        """A table written by the statements, all but its last snapshot expired; the ids."""
        lifecycle, table = self.lifecycle, f"db.{name}"
        full = f"{lifecycle.config.catalogs.live.name}.{table}"
        core_tables.sql(
            lifecycle.spark, f"CREATE TABLE {full} (id int) USING iceberg TBLPROPERTIES ('format-version'='2')"
        )
        for statement in statements:
            done = [str(snapshot.snapshot_id) for snapshot in lifecycle.snapshot_history(table).snapshots]
            statement = statement.format(*done, t=full, catalog=lifecycle.config.catalogs.live.name)
            core_tables.sql(lifecycle.spark, statement)
        ids = tuple(snapshot.snapshot_id for snapshot in lifecycle.snapshot_history(table).snapshots)
        for snapshot_id in ids:
            self.prints[snapshot_id] = fingerprint(lifecycle.read(table, snapshot_id=snapshot_id))
        if expired:
            lifecycle.expire(table)
        return ids

    def reads(self, name: str, snapshot_id: int) -> bool:
        """Whether the snapshot reads what it did; False where that has to wait for a thaw."""
        try:
            return fingerprint(self.lifecycle.read(f"db.{name}", snapshot_id=snapshot_id)) == self.prints[snapshot_id]
        except InDeepArchive:
            return False

    def readable(self, name: str, ids: tuple[int, ...]) -> list[bool]:
        return [self.reads(name, snapshot_id) for snapshot_id in ids]

    def aside(self, name: str) -> int:
        """Files of the table that are put aside."""
        return len(list((self.cold_root() / "db" / name).rglob("**/.deep-archive/*.parquet")))


@pytest.fixture(scope="module")
def archive(module_configs: MakeConfig, spark: SparkSession) -> Archive:
    lifecycle = Lifecycle.open(module_configs(defaults=AND_ARCHIVED, tables={"db.*": {}}), spark=spark)
    core_tables.sql(spark, f"CREATE NAMESPACE {lifecycle.config.catalogs.live.name}.db")
    return Archive(lifecycle, {})


ONE = "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id FROM range(0, 8)"
INSTEAD = "INSERT OVERWRITE {t} SELECT /*+ COALESCE(1) */ id FROM range(10, 14)"
MORE = "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id FROM range(20, 24)"
LAST = "INSERT OVERWRITE {t} SELECT /*+ COALESCE(1) */ id FROM range(30, 31)"


def test_archive_and_thaw_restore_the_same_bytes(archive: Archive) -> None:
    lifecycle = archive.lifecycle
    ids = first, second, *_ = archive.made("t", ONE, INSTEAD, MORE, LAST)
    before = tree(archive.cold_root())
    move = lifecycle.deep_archive("db.t", dry_run=True)
    assert (move.snapshot_ids, move.due_files, move.moved_files) == ((first, second), 1, 0)
    assert tree(archive.cold_root()) == before and lifecycle.operations.deep_moves.of_table(_uuid(lifecycle)) == []

    done = lifecycle.deep_archive("db.t")
    assert (done.moved_files, done.failed_files, done.still_live) == (1, 0, 0)
    files = done.files()
    assert files is not None and [row["path"] for row in files.collect() if "/data/" not in row["path"]] == []
    # The second has a neighbor that reads all its files, so that it is past its time and readable all the same.
    assert archive.readable("t", ids) == [False, True, True, True]
    route = lifecycle.route("db.t", snapshot_id=first)
    assert (route.tier, route.storage_class, route.readable_in) == ("deep-archive", "DEEP_ARCHIVE", timedelta(hours=48))
    cold = f"{lifecycle.config.catalogs.cold.name}.db.t"
    with pytest.raises(Exception, match=r"does not exist|NOT_EXIST|NotFound"):
        lifecycle.spark.sql(f"SELECT * FROM {cold} VERSION AS OF {first}").collect()
    with pytest.raises(InDeepArchive, match=r"about 48 hours.*artemis thaw"):
        lifecycle.query(f"SELECT * FROM db.t FOR VERSION AS OF {first}")
    with pytest.raises(InDeepArchive):
        lifecycle.restore("db.t", first, "too-early")
    assert lifecycle.scan_cold("db.t").unknown_files == 0
    verified = verify_copies(
        lifecycle.spark, lifecycle.live_stores, lifecycle.cold_stores, lifecycle.root, _uuid(lifecycle)
    )
    assert not verified.damaged
    again = lifecycle.deep_archive("db.t")
    assert (again.due_files, again.move_id) == (0, None)

    asked = lifecycle.request_thaw(
        "db.t", as_of=_committed(lifecycle, first), case_id="C-1", requester="Ann", reason="the audit asks"
    )
    assert (asked.snapshot_ids, asked.files, asked.state) == ((first,), 1, ThawState.REQUESTED)
    assert "C-1" in str(lifecycle.route("db.t", snapshot_id=first).thaw)
    with pytest.raises(Refused, match="cannot approve it"):
        lifecycle.approve_thaw(asked.thaw_id, " ann")
    assert archive.readable("t", ids) == [False, True, True, True]
    approve_thaw(lifecycle, asked.thaw_id, "Bob", "seen the case")
    assert lifecycle.thaws_to_follow() == [lifecycle.operations.thaws.get(asked.thaw_id)]
    followed = lifecycle.follow_thaw(asked.thaw_id)
    assert followed.state is ThawState.READABLE and followed.readable_until is not None
    assert followed.readable_until - followed.requested_at > timedelta(days=6)
    assert archive.readable("t", ids) == [True] * 4
    assert fingerprint(lifecycle.spark.sql(f"SELECT * FROM {cold} VERSION AS OF {first}")) == archive.prints[first]
    restored = lifecycle.restore("db.t", first, "audit")
    live = f"{lifecycle.config.catalogs.live.name}.db.t"
    assert fingerprint(lifecycle.spark.sql(f"SELECT * FROM {live} VERSION AS OF 'audit'")) == archive.prints[first]
    assert restored.copied_files > 0
    assert lifecycle.thaws_to_follow() == []

    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("UPDATE lifecycle.thaws SET readable_until = clock_timestamp() - interval '1 s'"))
    ended = lifecycle.follow_thaw(asked.thaw_id)
    assert (ended.state, ended.ended_why) == (ThawState.ENDED, OVER)
    assert archive.readable("t", ids) == [False, True, True, True]
    assert [(each.case_id, each.approved_by) for each in lifecycle.thaws("db.t", ended=True)] == [("C-1", "Bob")]
    assert lifecycle.thaws("db.t") == []


def test_a_snapshot_whose_live_files_are_gone_is_thawed_by_the_tables_uuid(archive: Archive, tmp_path: Path) -> None:
    """The catalog and the metadata files came back from a backup, the data files did not."""
    lifecycle, table = archive.lifecycle, "db.put_back"
    first, *_ = archive.made("put_back", ONE, INSTEAD, LAST, expired=False)
    backup = lifecycle.steps.table_state(table).metadata
    metadata = Path(backup.location.removeprefix("file:")) / "metadata"
    shutil.copytree(metadata, tmp_path / "metadata")
    lifecycle.expire(table)
    lifecycle.deep_archive(table)
    shutil.copytree(tmp_path / "metadata", metadata, dirs_exist_ok=True)
    put_back(lifecycle, table, backup.metadata_location)
    said = {"case_id": "C", "requester": "Ann", "reason": "why"}
    with pytest.raises(BadInput, match=f"artemis thaw {backup.table_uuid} --snapshot-id {first}"):
        lifecycle.request_thaw(table, [first], **said)
    asked = lifecycle.request_thaw(backup.table_uuid, [first], **said)
    approve_thaw(lifecycle, asked.thaw_id)
    assert lifecycle.follow_thaw(asked.thaw_id).state is ThawState.READABLE
    lifecycle.restore(table, first, "back")
    live = f"{lifecycle.config.catalogs.live.name}.{table}"
    assert fingerprint(lifecycle.spark.sql(f"SELECT * FROM {live} VERSION AS OF 'back'")) == archive.prints[first]


def test_a_thaw_is_refused_if_an_argument_is_missing(archive: Archive) -> None:
    lifecycle = archive.lifecycle
    first, *_ = archive.made("said", ONE, INSTEAD, LAST)
    with pytest.raises(NoSuchPlan):
        lifecycle.approve_thaw("thaw-none", "Bob")
    with pytest.raises(BadInput, match="can be read now"):
        lifecycle.request_thaw("db.said", [first], case_id="C", requester="Ann", reason="why")
    lifecycle.deep_archive("db.said")
    for missing in ("case_id", "requester", "reason"):
        said = {"case_id": "C", "requester": "Ann", "reason": "why"} | {missing: " "}
        with pytest.raises(BadInput, match=missing.replace("_", " ")):
            lifecycle.request_thaw("db.said", [first], **said)
    with pytest.raises(BadInput, match="Two selectors"):
        lifecycle.request_thaw("db.said", [first], tag="x", case_id="C", requester="Ann", reason="why")
    asked = lifecycle.request_thaw("db.said", [first], case_id="C", requester="Ann", reason="why", days=2)
    with pytest.raises(BadInput, match="needs who"):
        lifecycle.approve_thaw(asked.thaw_id, "")
    # Whoever writes the row by other means is held to the same.
    for change in ("approved_by = 'ANN '", "case_id = ''", "asked_at = clock_timestamp()"):
        with pytest.raises(IntegrityError), lifecycle.operations.engine.begin() as connection:
            connection.execute(text(f"UPDATE lifecycle.thaws SET {change} WHERE thaw_id = '{asked.thaw_id}'"))
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(
            text(f"UPDATE lifecycle.thaws SET lapses_at = clock_timestamp() WHERE thaw_id = '{asked.thaw_id}'")
        )
    with pytest.raises(Refused, match=LAPSED):
        approve_thaw(lifecycle, asked.thaw_id)
    assert lifecycle.follow_thaw(asked.thaw_id).ended_why == LAPSED
    other = lifecycle.request_thaw("db.said", [first], case_id="C", requester="Ann", reason="why")
    assert lifecycle.refuse_thaw(other.thaw_id, "Bob", "no such case").ended_by == "Bob"
    with pytest.raises(Refused, match="no such case"):
        approve_thaw(lifecycle, other.thaw_id)
    assert not archive.reads("said", first)


def test_a_hold_keeps_a_cold_snapshot_readable_also_one_that_comes_in_meanwhile(archive: Archive) -> None:
    lifecycle = archive.lifecycle
    ids = first, second, *_ = archive.made("held", ONE, INSTEAD, LAST, LAST)
    placed = lifecycle.hold("db.held", "legal", "case 7", snapshot_ids=[first])
    done = lifecycle.deep_archive("db.held")
    assert (done.snapshot_ids, done.held_snapshots, done.moved_files) == ((second,), (first,), 1)
    assert archive.readable("held", ids) == [True, False, True, True]
    lifecycle.release(placed.hold_id)

    def hold_the_table(point: str) -> None:
        if point == "deep_moves.begin:after":
            lifecycle.hold("db.held", "legal", "case 8")

    with crash_points.installed(hold_the_table), pytest.raises(Refused, match=r"legal placed a hold \(case 8\)"):
        lifecycle.deep_archive("db.held")
    # Nothing of it was moved, so that it is readable, and said to be.
    assert archive.aside("held") == 1
    assert archive.readable("held", ids) == [True, False, True, True]
    assert lifecycle.deep_archive("db.held").snapshot_ids == ()
    lifecycle.release(lifecycle.holds("db.held")[0].hold_id)
    assert lifecycle.deep_archive("db.held").moved_files == 1
    assert archive.readable("held", ids) == [False, False, True, True]


@pytest.mark.nightly
def test_a_file_that_another_cold_table_has_stays_readable(make_config: MakeConfig, spark: SparkSession) -> None:
    """A table that took another's file in (add_files) has a copy of its own in cold, and one that was registered in the
    cold catalog by hand reads another's."""
    tables = {"db.taker": {"cold_tier": {"retain": "7y"}}, "db.*": {}}
    with open_lifecycle(make_config(defaults=AND_ARCHIVED, tables=tables), spark=spark) as lifecycle:
        live = lifecycle.config.catalogs.live.name
        core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
        archive = Archive(lifecycle, {})
        core_tables.sql(
            spark, f"CREATE TABLE {live}.db.taker (id int) USING iceberg TBLPROPERTIES ('format-version'='2')"
        )
        taken = (
            "CALL {catalog}.system.add_files(table => 'db.taker', source_table => '`parquet`.`"
            + str(lifecycle.config.catalogs.live.warehouse)
            + "/db/giver/data`', check_duplicate_files => false)"
        )
        ids = archive.made("giver", ONE, taken, INSTEAD, INSTEAD, LAST)
        first = lifecycle.snapshot_history("db.taker").snapshots[0].snapshot_id
        read = fingerprint(lifecycle.read("db.taker", snapshot_id=first))
        core_tables.sql(spark, f"INSERT OVERWRITE {live}.db.taker VALUES (99)")
        lifecycle.expire("db.taker")

        dry = lifecycle.deep_archive("db.giver", dry_run=True)
        assert (dry.needed_elsewhere, dry.needed_by) == (0, ())
        done = lifecycle.deep_archive("db.giver")

        assert done.moved_files == dry.due_files > 0
        assert fingerprint(lifecycle.read("db.taker", snapshot_id=first)) == read
        assert archive.reads("giver", ids[0])


def test_a_cold_table_that_rotted_stops_only_its_own_moves(archive: Archive) -> None:
    """A handoff copies into its own table's place; what somebody registered by hand may read from any."""
    lifecycle, cold = archive.lifecycle, archive.lifecycle.config.catalogs.cold.name
    rotted, _ = archive.made("rotted", ONE, INSTEAD, LAST), archive.made("sound", ONE, INSTEAD, LAST)
    (rotten,) = (archive.cold_root() / "db" / "rotted").rglob(f"snap-{rotted[0]}-*.avro")
    good = rotten.read_bytes()

    def change(statement: str) -> None:
        with lifecycle.operations.engine.begin() as connection, past_the_guard(connection.exec_driver_sql):
            connection.execute(text(statement))

    rotten.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    try:
        change(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
            "SELECT catalog_name, table_namespace, 'by_hand', metadata_location, iceberg_type "
            f"FROM iceberg_tables WHERE catalog_name = '{cold}' AND table_name = 'rotted'"
        )
        with pytest.raises(UnreadableMetadata, match=r"Table db\.by_hand"):
            lifecycle.deep_archive("db.sound")
        change(f"DELETE FROM iceberg_tables WHERE catalog_name = '{cold}' AND table_name = 'by_hand'")
        with pytest.raises(UnreadableMetadata):
            lifecycle.deep_archive("db.rotted")
        assert (archive.aside("rotted"), archive.aside("sound")) == (0, 0)
        assert lifecycle.deep_archive("db.sound").moved_files == archive.aside("sound") > 0
    finally:
        rotten.write_bytes(good)
    assert lifecycle.deep_archive("db.rotted").moved_files == archive.aside("rotted") > 0


@pytest.mark.nightly
def test_another_table_that_publishes_during_the_move_stops_it(archive: Archive) -> None:
    ids = archive.made("moving", ONE, INSTEAD, LAST)
    lifecycle = archive.lifecycle
    cold = lifecycle.config.catalogs.cold.name

    def change(statement: str) -> None:
        with lifecycle.operations.engine.begin() as connection, past_the_guard(connection.exec_driver_sql):
            connection.execute(text(statement))

    def publish(point: str) -> None:
        if point == "deep_moves.begin:after":
            change(
                "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, "
                "iceberg_type) SELECT catalog_name, table_namespace, 'other', metadata_location, iceberg_type "
                f"FROM iceberg_tables WHERE catalog_name = '{cold}' AND table_name = 'moving'"
            )

    with crash_points.installed(publish), pytest.raises(Refused, match=r"needed since .*reachable from db\.other"):
        lifecycle.deep_archive("db.moving")
    change(f"DELETE FROM iceberg_tables WHERE catalog_name = '{cold}' AND table_name = 'other'")
    assert archive.readable("moving", ids) == [True] * 3
    assert archive.lifecycle.deep_archive("db.moving").moved_files == 1


def test_nothing_moves_after_the_lock_was_lost(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, lifecycle = archive.made("unlocked", ONE, INSTEAD, LAST), archive.lifecycle
    kept = Protection.kept

    def then_lose_the_lock(*arguments: Any) -> dict[int, str]:
        reasons = kept(*arguments)
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM lifecycle.locks JOIN pg_locks ON granted "
                    "AND locktype = 'transactionid' AND transactionid = locks.xmax WHERE name = :name"
                ),
                {"name": f"table:{arguments[0]._deletion.table_uuid}"},
            )
        return reasons

    monkeypatch.setattr(Protection, "kept", then_lose_the_lock)
    with pytest.raises(OperationsUnavailable):
        lifecycle.deep_archive("db.unlocked")
    monkeypatch.undo()
    assert archive.aside("unlocked") == 0
    assert lifecycle.deep_archive("db.unlocked").moved_files == 1
    assert archive.readable("unlocked", ids) == [False, True, True]


def test_a_file_that_the_live_table_has_again_stays_readable(archive: Archive) -> None:
    """Its next expired snapshots will read it, and no handoff copies a file twice."""
    back = "CALL {catalog}.system.rollback_to_snapshot(table => '{t}', snapshot_id => {0})"
    ids = first, *_ = archive.made("live", ONE, INSTEAD, back, MORE)
    done = archive.lifecycle.deep_archive("db.live")
    assert done.snapshot_ids == (first,) and (done.still_live, done.due_files) == (1, 0)
    assert archive.readable("live", ids) == [True, True, True]


@pytest.mark.parametrize("name", ["waits", "rolled_back", "thawed", "gone", "forgotten"])
def test_what_a_plan_archives_needs_no_thaw(archive: Archive, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's snapshot reads the first one's file, and another tool has expired it. A copy that is aside all the
    same, as after a rollback, comes back, also if the database does not know it; where live has lost the file, the
    snapshot is known to need a thaw."""
    lifecycle, table = archive.lifecycle, f"db.{name}"
    full = f"{lifecycle.config.catalogs.live.name}.{table}"
    back = "CALL {catalog}.system.rollback_to_snapshot(table => '{t}', snapshot_id => {0})"
    first, _, again = archive.made(name, ONE, INSTEAD, back, MORE)
    for _ in range(2):
        core_tables.sql(lifecycle.spark, LAST.format(t=full))
    plan = lifecycle.plan_expiration(table)
    assert again in plan.expired_snapshots
    expire_in_metadata(lifecycle, table, plan.expired_snapshots)
    if name != "waits":
        # No plan was open when it was moved.
        monkeypatch.setattr(ColdTier, "_waiting", lambda *_: [])
    if name == "gone":
        # As of an object, which has to be written again.
        monkeypatch.setattr(LocalStore, "unarchive", lambda *_: False)
    done = lifecycle.deep_archive(table)
    assert (done.moved_files, done.still_live) == ((0, 1) if name == "waits" else (1, 0))
    if name == "forgotten":
        _forget(lifecycle, table)
    if name == "thawed":
        asked = lifecycle.request_thaw(table, [first], case_id="C", requester="Ann", reason="why")
        approve_thaw(lifecycle, asked.thaw_id)
        lifecycle.follow_thaw(asked.thaw_id)
    assert again in lifecycle.hand_off(plan).archived
    lifecycle.commit_expiration(plan)
    lifecycle.delete_files(plan)
    if name == "thawed":
        lifecycle.refuse_thaw(asked.thaw_id, "Bob", "seen")
    readable = name != "gone"
    assert archive.readable(name, (first, again)) == [readable, readable]
    assert lifecycle.route(table, snapshot_id=again).tier == ("cold" if readable else "deep-archive")
    assert archive.aside(name) == (not readable)
    if not readable:
        asked = lifecycle.request_thaw(table, [again], case_id="C", requester="Ann", reason="why")
        approve_thaw(lifecycle, asked.thaw_id)
        lifecycle.follow_thaw(asked.thaw_id)
        assert archive.reads(name, again)


def test_an_archived_delete_file_is_not_replaced_by_another_rewrite_of_it(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On S3 a file leaves its class by being written again; pyarrow names its version in each file that it writes."""
    lifecycle, table = archive.lifecycle, "db.newer_library"
    full = f"{lifecycle.config.catalogs.live.name}.{table}"
    on_read = "ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')"
    back = "CALL {catalog}.system.rollback_to_snapshot(table => '{t}', snapshot_id => {1})"
    _, deleted, _, again = archive.made(
        "newer_library", on_read, ONE, "DELETE FROM {t} WHERE id = 3", INSTEAD, back, MORE
    )
    for _ in range(2):
        core_tables.sql(lifecycle.spark, LAST.format(t=full))
    plan = lifecycle.plan_expiration(table)
    expire_in_metadata(lifecycle, table, plan.expired_snapshots)
    # No plan was open when it was moved.
    monkeypatch.setattr(ColdTier, "_waiting", lambda *_: [])
    assert lifecycle.deep_archive(table).moved_files >= 2
    write, put_stream = LocalStore.write, LocalStore.put_stream

    def leave(path: str, overwrite: bool) -> None:
        if overwrite and is_aside(local_path(path)):
            Path(aside_of(local_path(path))).unlink()

    def written(self: LocalStore, path: str, data: bytes, **how: Any) -> object:
        leave(path, how["overwrite"])
        return write(self, path, data, **how)

    def streamed(self: LocalStore, path: str, chunks: Any, **how: Any) -> None:
        leave(path, how["overwrite"])
        put_stream(self, path, chunks, **how)

    class Newer(pq.ParquetWriter):  # type: ignore[misc]
        def close(self) -> None:
            self.add_key_value_metadata({"written by": "the pyarrow of seven years later"})
            super().close()

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "unarchive", lambda *_: False)
        patch.setattr(LocalStore, "write", written)
        patch.setattr(LocalStore, "put_stream", streamed)
        patch.setattr(rewriting.pq, "ParquetWriter", Newer)
        assert again in lifecycle.hand_off(plan).archived
        lifecycle.commit_expiration(plan)
    for snapshot_id in (deleted, again):
        assert lifecycle.route(table, snapshot_id=snapshot_id).tier == "deep-archive"
    asked = lifecycle.request_thaw(table, [deleted, again], case_id="C", requester="Ann", reason="why")
    approve_thaw(lifecycle, asked.thaw_id)
    lifecycle.follow_thaw(asked.thaw_id)
    assert archive.readable("newer_library", (deleted, again)) == [True, True]


@pytest.mark.parametrize("name", ["again", "closed", "nothing_aside"])
def test_a_handoff_that_dies_before_its_copies_are_back_leads_to_a_thaw(
    archive: Archive, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle, table = archive.lifecycle, f"db.dies_{name}"
    back = "CALL {catalog}.system.rollback_to_snapshot(table => '{t}', snapshot_id => {0})"
    *_, again = archive.made(
        f"dies_{name}", *((ONE, INSTEAD, LAST) if name == "nothing_aside" else (ONE, INSTEAD, back, MORE))
    )
    full = f"{lifecycle.config.catalogs.live.name}.{table}"
    for _ in range(2):
        core_tables.sql(lifecycle.spark, LAST.format(t=full))
    with monkeypatch.context() as at:
        if name != "nothing_aside":
            plan = lifecycle.plan_expiration(table)
            expire_in_metadata(lifecycle, table, plan.expired_snapshots)
            at.setattr(ColdTier, "_waiting", lambda *_: [])
        assert lifecycle.deep_archive(table).moved_files == 1
    plan = lifecycle.plan_expiration(table) if name == "nothing_aside" else plan

    def die(point: str) -> None:
        cold = lifecycle.cold_metadata(table)
        if point in ("deep_moves.mark:before", "deep_moves.settle:before") and cold and cold.snapshot(again):
            raise Killed(point)

    def dead(*_: object) -> bool:
        raise Killed

    if name != "nothing_aside":
        monkeypatch.setattr(LocalStore, "unarchive", dead)
    with crash_points.installed(die), pytest.raises(Killed):
        lifecycle.hand_off(plan)
    monkeypatch.undo()
    lapse(lifecycle, "leases")
    if name == "nothing_aside":
        expire_in_metadata(lifecycle, table, plan.expired_snapshots)
    assert lifecycle.route(table, snapshot_id=again).tier == "deep-archive"
    said = {"case_id": "C", "requester": "Ann", "reason": "why"}
    if name == "again":
        lifecycle.hand_off(plan)
    elif name == "nothing_aside":
        with pytest.raises(BadInput, match="can be read now"):
            lifecycle.request_thaw(table, [again], **said)
    else:
        lifecycle.close_plan(plan, who="Ann", why="enough")
        asked = lifecycle.request_thaw(table, [again], **said)
        approve_thaw(lifecycle, asked.thaw_id)
        lifecycle.follow_thaw(asked.thaw_id)
        assert archive.reads(f"dies_{name}", again)
        return
    assert lifecycle.route(table, snapshot_id=again).tier == "cold"
    assert archive.readable(f"dies_{name}", (again,)) == [True]


@pytest.mark.parametrize("then", ["keeps", "held", "dropped", "root"])
def test_a_database_that_has_forgotten_a_move_learns_it_when_it_takes_over(archive: Archive, then: str) -> None:
    """It was put back to before the move, or is new; with `operations.root`, or without it."""
    lifecycle, table = archive.lifecycle, f"db.forgets_{then}"
    first, second, *_ = archive.made(f"forgets_{then}", ONE, MORE, INSTEAD, LAST)
    assert lifecycle.deep_archive(table).moved_files == 2
    table_uuid = _uuid(lifecycle, table)
    _forget(lifecycle, table, and_lists=then == "root")
    assert lifecycle.route(table, snapshot_id=first).tier == "cold"  # It does not know better yet.
    if then == "held":
        lifecycle.hold(table, "legal", "a case", snapshot_ids=(first,))
    if then == "dropped":
        lifecycle.observe_catalog()
        core_tables.sql(lifecycle.spark, f"DROP TABLE {lifecycle.config.catalogs.live.name}.{table}")
        lifecycle.observe_catalog()
    for _ in range(2):
        lifecycle.take_over(who="Ann", why="a backup")
        assert lifecycle.operations.deep_moves.snapshots(table_uuid) == {first, second}
    if then != "dropped":
        assert archive.readable(f"forgets_{then}", (first, second)) == [False, False]
    said = {"case_id": "C", "requester": "Ann", "reason": "why"}
    asked = lifecycle.request_thaw(table, [first, second], **said)
    approve_thaw(lifecycle, asked.thaw_id)
    assert (asked.files, lifecycle.follow_thaw(asked.thaw_id).state) == (2, ThawState.READABLE)
    cold = f"{lifecycle.config.catalogs.cold.name}.{table}"
    for each in (first, second):
        assert fingerprint(lifecycle.spark.sql(f"SELECT * FROM {cold} VERSION AS OF {each}")) == archive.prints[each]


@pytest.mark.no_guardian(reason="it does not know that the move was forgotten")
def test_a_copy_in_an_archive_class_without_a_record_of_its_move_is_none(archive: Archive) -> None:
    """The root and its database were put back together, and nobody took over: the live file stays."""
    lifecycle, table = archive.lifecycle, "db.unknown_move"
    first, second, *_ = archive.made("unknown_move", ONE, MORE, INSTEAD, LAST, expired=False)
    plan = lifecycle.plan_expiration(table)
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    copies = [*(archive.cold_root() / "db" / "unknown_move").rglob("data/*.parquet")]
    for path in copies:
        lifecycle.cold_stores.archive(str(path))
    assert archive.aside("unknown_move") == len(copies) > 0
    assert lifecycle.delete_files(plan).kept == len(copies)
    lifecycle.take_over(who="Ann", why="a backup")
    assert archive.readable("unknown_move", (first, second)) == [False, False]
    asked = lifecycle.request_thaw(table, [first, second], case_id="C", requester="Ann", reason="why")
    approve_thaw(lifecycle, asked.thaw_id)
    lifecycle.follow_thaw(asked.thaw_id)
    assert archive.readable("unknown_move", (first, second)) == [True, True]


def _forget(lifecycle: Lifecycle, table: str, *, and_lists: bool = False) -> None:
    if and_lists:
        moves = lifecycle.operations.deep_moves.of_table(_uuid(lifecycle, table))
        for folder in {local_path(move.files_location) for move in moves}:
            shutil.rmtree(folder)
    with lifecycle.operations.engine.begin() as connection:
        for name in ("deep_snapshots", "deep_moves"):
            forget = text(f"DELETE FROM lifecycle.{name} WHERE table_uuid = :of")
            connection.execute(forget, {"of": _uuid(lifecycle, table)})


@pytest.mark.parametrize(("anew", "forgotten"), [(False, False), (True, False), (False, True)])
def test_a_dropped_table_s_deep_archive_is_thawed_by_its_name_or_uuid(
    archive: Archive, anew: bool, forgotten: bool
) -> None:
    """Also where a new operations database has never seen the table."""
    lifecycle, name = archive.lifecycle, f"dropped_{anew}_{forgotten}".lower()
    table, live = f"db.{name}", lifecycle.config.catalogs.live.name
    first, second, _ = archive.made(name, ONE, INSTEAD, LAST)
    lifecycle.deep_archive(table)
    table_uuid = _uuid(lifecycle, table)
    lifecycle.observe_catalog()
    core_tables.sql(lifecycle.spark, f"DROP TABLE {live}.{table}")
    lifecycle.observe_catalog()
    if anew:
        core_tables.sql(lifecycle.spark, f"CREATE TABLE {live}.{table} (id int) USING iceberg")
    if forgotten:
        with lifecycle.operations.engine.begin() as connection:
            for records in ("deep_snapshots", "deep_moves", "known_tables"):
                forget = text(f"DELETE FROM lifecycle.{records} WHERE table_uuid = :of")
                connection.execute(forget, {"of": table_uuid})
        lifecycle.recover_archive(table, who="Ann", why="a new database")
    said = {"case_id": "C", "requester": "Ann", "reason": "why"}
    with pytest.raises(BadInput, match="not all in the archive"):
        lifecycle.request_thaw(table_uuid, [second], **said)
    with pytest.raises(NoSuchTable):
        lifecycle.request_thaw("db.never_there", [first], **said)
    asked = lifecycle.request_thaw(table_uuid if anew else table, [first], **said)
    assert (asked.table, asked.table_uuid, asked.files) == (table, table_uuid, 1)
    approve_thaw(lifecycle, asked.thaw_id)
    assert lifecycle.follow_thaw(asked.thaw_id).state is ThawState.READABLE
    cold = f"{lifecycle.config.catalogs.cold.name}.{table}"
    assert fingerprint(lifecycle.spark.sql(f"SELECT * FROM {cold} VERSION AS OF {first}")) == archive.prints[first]


def test_two_deployments_with_one_cold_warehouse_share_no_copy(
    archive: Archive, make_config: MakeConfig, spark: SparkSession, databases: Databases
) -> None:
    """One's move to the deep archive takes no copy from the other's archive."""
    warehouse, uri = archive.lifecycle.config.catalogs.cold.warehouse, databases.make()
    catalogs = {"live": {"uri": uri}, "cold": {"uri": uri, "warehouse": warehouse}}
    config = with_operations(make_config(defaults=AT_ONCE, tables={"db.*": {}}, catalogs=catalogs), uri=uri)
    archive.made("shared", ONE, INSTEAD, LAST)
    place = archive.cold_root() / "db" / "shared"
    before = tree(place)
    with open_lifecycle(config, spark) as lifecycle:
        live = config.catalogs.live.name
        core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
        second = Archive(lifecycle, {})
        ids = second.made("shared", ONE, INSTEAD, LAST)
        own = archive.cold_root() / "_tables" / _uuid(lifecycle, "db.shared")
        metadata = lifecycle.cold_metadata("db.shared")
        assert metadata is not None and metadata.location == f"file://{own}" and tree(place) == before
        assert (
            lifecycle.scan_cold("db.shared").unknown_files
            == archive.lifecycle.scan_cold("db.shared").unknown_files
            == 0
        )
        assert archive.lifecycle.deep_archive("db.shared").moved_files
        assert second.readable("shared", ids) == [True, True, True]
        # As where both had settled on one place before places had owners.
        (own / OWNER).write_bytes((place / OWNER).read_bytes())
        core_tables.sql(spark, f"INSERT OVERWRITE {live}.db.shared VALUES (1)")
        held = tree(own)
        with pytest.raises(HandoffFailed, match="several deployments"):
            lifecycle.expire("db.shared")
        assert tree(own) == held and second.readable("shared", ids) == [True, True, True]


def test_a_move_waits_for_a_catalog_that_does_not_answer(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    archive.made("silent", ONE, INSTEAD, LAST)

    def silent(self: Resources, table: str, *, strict: bool = False) -> None:
        if strict:
            raise OperationsUnavailable("a catalog does not answer")

    monkeypatch.setattr(Resources, "readers_of", silent)
    with pytest.raises(OperationsUnavailable):
        archive.lifecycle.deep_archive("db.silent")
    assert archive.aside("silent") == 0


def test_a_cold_file_that_a_live_table_took_in_stays_readable(archive: Archive) -> None:
    """Also one that takes it in while the move is under way."""
    lifecycle = archive.lifecycle
    live = lifecycle.config.catalogs.live.name
    taken = f"SELECT count(*) FROM {live}.db.review"

    def take(name: str) -> None:
        folder = f"file://{archive.cold_root()}/db/{name}/data"
        core_tables.sql(
            lifecycle.spark,
            f"CALL {live}.system.add_files(table => 'db.review', source_table => '`parquet`.`{folder}`')",
        )

    lifecycle.spark.sql(f"CREATE TABLE {live}.db.review (id int) USING iceberg")
    ids = archive.made("taken", ONE, INSTEAD, LAST)
    take("taken")
    read = lifecycle.spark.sql(taken).collect()
    done = lifecycle.deep_archive("db.taken")
    assert (done.due_files, done.needed_elsewhere, done.needed_by) == (0, 1, ("db.review",))
    assert archive.readable("taken", ids) == [True] * 3 and lifecycle.spark.sql(taken).collect() == read
    archive.made("taken_late", ONE, INSTEAD, LAST)

    def at(point: str) -> None:
        if point == "deep_moves.begin:after":
            take("taken_late")

    with crash_points.installed(at), pytest.raises(Refused, match=r"needed since .*reachable from db\.review"):
        lifecycle.deep_archive("db.taken_late")
    assert archive.aside("taken_late") == 0
    core_tables.sql(lifecycle.spark, f"DROP TABLE {live}.db.review")


def test_what_a_person_waits_for_does_not_move_meanwhile(archive: Archive) -> None:
    lifecycle = archive.lifecycle
    ids = first, *_ = archive.made("open", ONE, INSTEAD, MORE, LAST)
    lifecycle.deep_archive("db.open")
    lifecycle.request_thaw("db.open", [first], case_id="C", requester="Ann", reason="why")
    assert lifecycle.deep_archive("db.open").held_snapshots == (first,)
    assert archive.readable("open", ids) == [False, True, True, True]


@pytest.mark.nightly
def test_killed_while_it_settles_a_killed_move_it_goes_on(archive: Archive) -> None:
    lifecycle = archive.lifecycle
    ids = archive.made("killed", ONE, INSTEAD, LAST, LAST)
    for fatal in ("deep_archive.batch:after", "deep_moves.settle:before", "deep_moves.settle:after"):

        def die(point: str, fatal: str = fatal) -> None:
            if point == fatal:
                raise Killed(point)

        with pytest.raises(Killed), crash_points.installed(die):
            lifecycle.deep_archive("db.killed")
        lapse(lifecycle, "leases")
    lifecycle.deep_archive("db.killed")
    assert archive.aside("killed") == 2
    assert archive.readable("killed", ids) == [False, False, True, True]
    assert lifecycle.deep_archive("db.killed").due_files == 0


def test_what_the_store_will_not_archive_stays_readable_and_is_tried_again(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle = archive.lifecycle
    ids = first, second, *_ = archive.made("busy", ONE, INSTEAD, LAST, LAST)
    put_away, tried = LocalStore.archive, []

    def refuse_the_second(self: LocalStore, path: str, storage_class: str) -> bool:
        tried.append(path)
        if len(tried) == 2:
            raise StorageError("The store has had enough", path=path, untouched="the file", hint="wait")
        return put_away(self, path, storage_class)

    monkeypatch.setattr(deep_archive, "_FILES_PER_BATCH", 1)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "archive", refuse_the_second)
        done = lifecycle.deep_archive("db.busy")
    assert (done.due_files, done.moved_files, done.failed_files) == (2, 1, 1)
    assert done.failures[0][1] == "The store has had enough"
    deep = lifecycle.operations.deep_moves.snapshots(_uuid(lifecycle, "db.busy"))
    assert len(deep) == 1 and deep < {first, second}
    assert archive.readable("busy", ids) == [each not in deep for each in ids]
    assert lifecycle.deep_archive("db.busy").moved_files == 1
    assert archive.readable("busy", ids) == [False, False, True, True]


@pytest.mark.nightly
def test_on_executors_it_is_the_same(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    lifecycle = archive.lifecycle
    on_executors(monkeypatch)
    first, *_ = ids = archive.made("many", ONE, INSTEAD, LAST)
    assert lifecycle.deep_archive("db.many").moved_files == 1
    asked = lifecycle.request_thaw("db.many", [first], case_id="C", requester="Ann", reason="why")
    approve_thaw(lifecycle, asked.thaw_id)
    followed = lifecycle.follow_thaw(asked.thaw_id)
    assert followed.readable_until is not None
    assert timedelta(days=6) < followed.readable_until - datetime.now(UTC) <= timedelta(days=7)
    assert archive.readable("many", ids) == [True] * 3


def test_nothing_moves_where_the_policy_keeps_it_or_nothing_is_cold(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    policy = {**AND_ARCHIVED, "cold_tier": {"retain": "1ms", "then": "keep"}}
    lifecycle = Lifecycle.open(make_config(defaults=policy, tables={"db.*": {}}), spark=spark)
    core_tables.sql(spark, f"CREATE NAMESPACE {lifecycle.config.catalogs.live.name}.db")
    core_tables.sql(spark, f"CREATE TABLE {lifecycle.config.catalogs.live.name}.db.none (id int) USING iceberg")
    with pytest.raises(NoSuchTable, match="not handed off yet"):
        lifecycle.deep_archive("db.none")
    Archive(lifecycle, {}).made("t", ONE, INSTEAD, LAST)
    assert lifecycle.deep_archive("db.t").snapshot_ids == ()
    held = lifecycle.operations.leases.hold(_uuid(lifecycle), step="plan", owner="another", table="db.t")
    with held, pytest.raises(LeaseTaken):
        lifecycle.deep_archive("db.t")


def test_costs_are_the_bytes_on_the_disk_by_the_price_table(archive: Archive, tmp_path: Path) -> None:
    lifecycle = archive.lifecycle
    ids = archive.made("costs", ONE, INSTEAD, MORE, LAST)
    live = f"{lifecycle.config.catalogs.live.name}.db.costs"
    lifecycle.spark.sql(f"ALTER TABLE {live} CREATE TAG `now`")
    moved = lifecycle.deep_archive("db.costs")
    prices = {"STANDARD": {"gb_month": 2}, "GLACIER_IR": {"gb_month": 1, "put_per_1000": 500, "get_per_1000": 0}}
    config = lifecycle.config.model_copy(update={"prices": Prices.model_validate({"classes": prices})})
    found = Lifecycle.open(config, spark=lifecycle.spark).costs("db.costs")
    tiers = {tier.tier: tier for tier in found.tiers}
    assert {name: tier.size_in_bytes for name, tier in tiers.items()} == {
        "live": _on_disk(Path(str(config.catalogs.live.warehouse).removeprefix("file://")) / "db" / "costs"),
        "cold": _on_disk(archive.cold_root() / "db" / "costs") - moved.due_bytes,
        "deep-archive": moved.due_bytes,
    }
    assert [tier.snapshots for tier in found.tiers] == [1, 2, 1]
    cold = tiers["cold"]
    assert cold.per_month == pytest.approx(cold.size_in_bytes / 2**30)
    # Each copy is one write and one reading back; the archived file is among them.
    assert cold.requests == 2 * (cold.files + 1)
    assert cold.requests_price == pytest.approx(0.5 * (cold.files + 1))
    assert (tiers["deep-archive"].per_month, found.per_month) == (None, None)
    assert [(tag.ref, tag.tier, tag.size_in_bytes) for tag in found.tags] == [("now", "live", 0)]
    assert list(found.to_pandas()["tier"]) == ["live", "cold", "deep-archive"]
    assert found.plot("svg").startswith(b"<?xml") and ids
    whole = config.prices.model_copy(
        update={"classes": dict.fromkeys(["STANDARD", "GLACIER_IR", "DEEP_ARCHIVE"], ClassPrices(gb_month=1))}
    )
    total = Lifecycle.open(config.model_copy(update={"prices": whole}), spark=lifecycle.spark).costs("db.costs")
    assert total.per_month == pytest.approx(sum(tier.size_in_bytes for tier in found.tiers) / 2**30)


def _on_disk(folder: Path) -> int:
    """Bytes of a table's files, without what no snapshot reaches."""
    # A receipt is the lifecycle's own, and no file of the table.
    whole = (path for path in folder.rglob("*") if path.is_file() and RECEIPTS not in path.parts)
    files = [path for path in whole if not path.name.endswith((".crc", ".json"))]
    return sum(path.stat().st_size for path in files)


def _uuid(lifecycle: Lifecycle, table: str = "db.t") -> str:
    return lifecycle.snapshot_history(table).table_uuid


def _committed(lifecycle: Lifecycle, snapshot_id: int) -> datetime:
    cold = lifecycle.cold_metadata("db.t")
    assert cold is not None
    snapshot = cold.snapshot(snapshot_id)
    assert snapshot is not None
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


# --- which snapshots are due ------------------------------------------------------------------------------------------


def test_a_snapshot_of_two_moves_keeps_the_mark_of_the_second_where_the_first_is_settled(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle, table = archive.lifecycle, "db.two_moves"
    first, both, second, *_ = archive.made("two_moves", ONE, MORE, "DELETE FROM {t} WHERE id < 8", LAST, LAST)
    count = itertools.count()
    # The ids are random: half of all times they are in this order.
    monkeypatch.setattr(deep_archive, "new_id", lambda kind: f"{kind}-{next(count):032x}")
    placed = lifecycle.hold(table, "legal", "case 1", snapshot_ids=[second])

    def hold_the_first(point: str) -> None:
        if point == "deep_moves.begin:after":
            lifecycle.hold(table, "legal", "case 2", snapshot_ids=[first])

    with crash_points.installed(hold_the_first), pytest.raises(Refused):
        lifecycle.deep_archive(table)
    lifecycle.release(placed.hold_id)
    assert lifecycle.deep_archive(table).moved_files >= 1
    marked = lifecycle.operations.deep_moves.snapshots(_uuid(lifecycle, table))
    assert {both, second} <= marked and first not in marked
    assert not archive.reads("two_moves", both)

    _forget(lifecycle, table)
    lifecycle.take_over(who="Ann", why="a new operations database")
    assert lifecycle.operations.deep_moves.snapshots(_uuid(lifecycle, table)) == marked
    lifecycle.request_thaw(table, [both], case_id="C", requester="Ann", reason="it is needed")


def test_a_handoff_that_dies_after_it_took_a_copy_back_leaves_the_marks_of_other_moves(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle, table = archive.lifecycle, "db.two_moves_dies"
    full = f"{lifecycle.config.catalogs.live.name}.{table}"
    back = "CALL {catalog}.system.rollback_to_snapshot(table => '{t}', snapshot_id => {0})"
    other = "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id FROM range(40, 44)"
    delete = "DELETE FROM {t} WHERE id < 8"
    first, both, second, _, again = archive.made("two_moves_dies", ONE, MORE, delete, INSTEAD, back, other)
    for _ in range(2):
        core_tables.sql(lifecycle.spark, LAST.format(t=full))
    plan = lifecycle.plan_expiration(table)
    assert again in plan.expired_snapshots
    expire_in_metadata(lifecycle, table, plan.expired_snapshots)
    # No plan was open when it was moved.
    monkeypatch.setattr(ColdTier, "_waiting", lambda *_: [])
    placed = lifecycle.hold(table, "legal", "case 1", snapshot_ids=[second])
    lifecycle.deep_archive(table)
    lifecycle.release(placed.hold_id)
    lifecycle.deep_archive(table)
    assert {first, both, second} <= lifecycle.operations.deep_moves.snapshots(_uuid(lifecycle, table))

    with killed_at("deep_moves.settle:after"):
        lifecycle.hand_off(plan)
    lapse(lifecycle, "leases")
    lifecycle.hand_off(plan)
    assert both in lifecycle.operations.deep_moves.snapshots(_uuid(lifecycle, table))
    assert not archive.reads("two_moves_dies", both)


@st.composite
def pasts(draw: st.DrawFn) -> HistoryView:
    times = sorted(draw(st.lists(st.integers(0, 100), min_size=1, max_size=12, unique=True)))
    # The log also names snapshots that are not there, and goes back and forth between those that are.
    jumps = draw(st.lists(st.tuples(st.integers(0, 110), st.integers(1, len(times) + 3)), max_size=12))
    log = sorted((dict(jumps) | {at: number for number, at in enumerate(times, start=1)}).items())
    return HistoryView(
        snapshots=[SnapshotView(number, None, at) for number, at in enumerate(times, start=1)],
        refs={"main": Ref("main", len(times), "branch"), "kept": Ref("kept", 1, "tag")},
        log=tuple(LogEntry(at, number) for at, number in log),
        current_snapshot_id=len(times),
        properties={"history.expire.min-snapshots-to-keep": "100"},
    )


@given(past=pasts(), retain=st.integers(0, 120), now=st.integers(0, 200), held=st.integers(1, 12))
def test_no_instant_inside_the_retention_needs_a_thaw(past: HistoryView, retain: int, now: int, held: int) -> None:
    window, hold = timedelta(milliseconds=retain), HoldView("h", "legal", "why", (held,))
    due = set(due_snapshots(past, window, now, [hold]))
    # A hold may also name a snapshot that only the live table has: then it keeps nothing here.
    stays = {past.current_snapshot_id, held}
    assert due <= {snapshot.snapshot_id for snapshot in past.snapshots} - stays
    for instant in range(now - retain, now + 1):
        current = [entry.snapshot_id for entry in past.log if entry.timestamp_ms <= instant]
        if current:
            assert current[-1] not in due
    # And whatever was neither young nor current inside the retention is due: nothing waits for ever.
    stays |= {entry.snapshot_id for entry in past.log if now - retain <= entry.timestamp_ms}
    # The one before the edge stays also where another began at the very edge.
    stays |= set([entry.snapshot_id for entry in past.log if entry.timestamp_ms < now - retain][-1:])
    old = {snapshot.snapshot_id for snapshot in past.snapshots if snapshot.timestamp_ms < now - retain}
    assert old - stays <= due
    assert due_snapshots(past, window, now, [HoldView("h", "legal", "why")]) == ()
