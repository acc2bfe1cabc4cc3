"""What nobody had reproduced, and reading the code showed: each confirmed by a test, then fixed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import LifecycleError, PlanStateError, Refused, UnreadableMetadata
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import NOT_TRIED, Removals
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import Killed, lapse
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import (
    append,
    files_below,
    ids,
    make_all_old,
    outcomes,
    overwrite,
    place,
    sql,
    stray,
    take_up,
    warehouse,
)

# --- the table's lock -------------------------------------------------------------------------------------------------


def end_the_locks_session(lifecycle: Lifecycle, table_uuid: str) -> int:
    """What a restart of Postgres, or an administrator, does to it."""
    with lifecycle.operations.engine.begin() as connection:
        return connection.execute(
            text(
                "SELECT count(pg_terminate_backend(pid)) FROM lifecycle.locks JOIN pg_locks ON granted "
                "AND locktype = 'transactionid' AND transactionid = locks.xmax WHERE name = :name"
            ),
            {"name": f"table:{table_uuid}"},
        ).scalar_one()


def test_a_long_bulk_delete_stops_when_the_session_of_its_lock_ends(
    at_once: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hold, a writer or a restore may have the lock by then."""
    import numpy as np
    import pyarrow as pa

    table = make_table(at_once, "t", 1)
    lost = [stray(place(at_once, table), f"data/stray-{number:02}.parquet") for number in range(14)]
    scan = at_once.scan_orphans(table)
    uuid = at_once.steps.table_state(table).metadata.table_uuid
    remove, begun = Stores.remove, threading.Event()

    def slowly(self: Stores, paths: pa.Array, *, until: float) -> Removals:
        done = Removals(np.zeros(len(paths), np.int8))
        for row in range(len(paths)):
            if elapsed() >= until:
                done.errors[row] = f"{NOT_TRIED}: out of time"
                continue
            done.outcomes[row] = remove(self, paths.slice(row, 1), until=until).outcomes[0]
            begun.set()
            time.sleep(0.3)
        return done

    ended: list[int] = []

    def end() -> None:
        begun.wait(60)
        time.sleep(0.5)
        ended.append(end_the_locks_session(at_once, uuid))

    thread = threading.Thread(target=end)
    thread.start()
    with monkeypatch.context() as patch:
        patch.setattr(Stores, "remove", slowly)
        with pytest.raises(LifecycleError):
            at_once.delete_orphans(scan)
    thread.join()

    left = [path for path in lost if path.exists()]
    assert ended == [1] and 4 <= len(left) < len(lost)
    # A hold that came meanwhile stops the rest; without it the next run finishes.
    hold = at_once.hold(table, "legal", "case 7")
    with pytest.raises(Refused, match=hold.hold_id):
        at_once.delete_orphans(scan)
    assert [path for path in lost if path.exists()] == left
    at_once.release(hold.hold_id)
    at_once.delete_orphans(scan)
    assert not any(path.exists() for path in lost)


# --- close, then undelete ---------------------------------------------------------------------------------------------

KILLS = (
    "journal.start_batch:after",
    "quarantine.set_aside:after",
    "deletion.delete_files:after",
    "deletion.write_outcomes:before",
    "journal.finish_batch:before",
)


def die_at(point: str) -> Callable[[str], None]:
    def callback(reached: str) -> None:
        if reached == point:
            raise Killed(point)

    return callback


@pytest.fixture
def quarantine(make_config: MakeConfig) -> Any:
    return make_config(defaults={**WITHOUT_COLD, "deletion": {"grace": "0s", "mode": "quarantine"}})


@pytest.mark.parametrize("point", KILLS)
def test_close_and_undelete_after_a_killed_batch_bring_everything_back(
    quarantine: Any, spark: SparkSession, point: str
) -> None:
    with open_lifecycle(quarantine, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        overwrite(lifecycle, table, 9)
        plan = lifecycle.plan_expiration(table)
        lifecycle.commit_expiration(plan)
        before = {path: path.read_bytes() for row in plan.files().collect() if (path := local(row["path"])).exists()}
        with pytest.raises(Killed), crash_points.installed(die_at(point)):
            lifecycle.delete_files(plan)
        lapse(lifecycle, "leases")
        with pytest.raises(PlanStateError, match="still being deleted"):
            lifecycle.undelete(plan, who="ann", why="a mistake")
        assert lifecycle.close_plan(plan, who="ann", why="a mistake").status is PlanStatus.CLOSED

        done = lifecycle.undelete(plan, who="ann", why="a mistake")

        assert (done.failed, done.taken) == (0, 0)
        assert {path: path.read_bytes() for path in before if path.exists()} == before
        # And they stay, until that is closed.
        make_all_old(place(lifecycle, table))
        assert lifecycle.scan_orphans(table).summary.orphan_files == 0
        assert ids(lifecycle, table) == [9]


def test_an_orphan_deletion_that_was_killed_is_let_end_before_an_undelete(quarantine: Any, spark: SparkSession) -> None:
    with open_lifecycle(quarantine, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 1)
        lost = stray(place(lifecycle, table))
        scan = lifecycle.scan_orphans(table)
        with pytest.raises(Killed), crash_points.installed(die_at("deletion.delete_files:after")):
            lifecycle.delete_orphans(scan)
        lapse(lifecycle, "leases")
        with pytest.raises(PlanStateError) as refused:
            lifecycle.undelete(scan, who="ann", why="a mistake")
        assert f"artemis delete-orphans {scan.scan_id}" in str(refused.value)
        lifecycle.delete_orphans(scan)
        assert lifecycle.undelete(scan, who="ann", why="a mistake").restored == 1 and lost.exists()


# --- keep-dropped -----------------------------------------------------------------------------------------------------


def test_a_decision_to_keep_a_dropped_table_stops_its_running_deletion(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    defaults = {
        **WITHOUT_COLD,
        "deletion": {"grace": "0s", "requests_per_second": 2},
        "dropped": {"keep": "0s", "approval": "guards"},
    }
    with open_lifecycle(make_config(defaults=defaults, tables={"db.*": {}}), spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        folder = place(lifecycle, table)
        lifecycle.observe_catalog()
        make_all_old(folder)
        sql(lifecycle, f"DROP TABLE {{live}}.{table}")
        lifecycle.observe_catalog()
        scan = lifecycle.scan_dropped(table)
        kept: list[str] = []

        def keep() -> None:
            # It waits for the batch that has the lock.
            kept.append(lifecycle.keep_dropped(table, who="ann", why="the other lake reads it").state)

        person = threading.Thread(target=keep)

        def act(point: str) -> None:
            if point == "deletion.write_outcomes:after" and person.ident is None:
                person.start()
                time.sleep(1)

        before = {path for path in folder.rglob("*") if path.is_file()}
        with crash_points.installed(act), pytest.raises(Refused, match="the other lake reads it"):
            lifecycle.delete_dropped(scan)
        person.join()
        after = {path for path in folder.rglob("*") if path.is_file()}
        assert kept == ["kept"] and len(before) - len(after) <= 4 and len(after) > 4
        for dry_run in (True, False):
            with pytest.raises(Refused, match="the other lake reads it"):
                lifecycle.delete_dropped(scan, dry_run=dry_run)
        assert after == {path for path in folder.rglob("*") if path.is_file()}
        lifecycle.unkeep_dropped(table)
        assert lifecycle.delete_dropped(scan).pending == 0


# --- what neighbors still need ----------------------------------------------------------------------------------------


@pytest.fixture
def around(make_config: MakeConfig, spark: SparkSession) -> Any:
    return make_config(
        defaults=WITHOUT_COLD,
        tables={"db.inner": {"deletion": {"grace": "30d"}}, "db.reader": {"deletion": {"grace": "30d"}}},
    )


def share_a_file(lifecycle: Lifecycle) -> Path:
    """db.outer reads a file of db.inner, which lies inside it; both have replaced it, and db.outer's plan is due."""
    make_table(lifecycle, "outer", 1)
    at = place(lifecycle, "db.outer") / "data" / "inner"
    sql(lifecycle, f"CREATE TABLE {{live}}.db.inner (id int) USING iceberg LOCATION 'file://{at}'")
    append(lifecycle, "db.inner", 1)
    [shared] = (at / "data").glob("*.parquet")
    take_up(lifecycle, "db.outer", shared.parent)
    overwrite(lifecycle, "db.inner", 2)
    overwrite(lifecycle, "db.outer", 3)
    return shared


def test_a_neighbors_open_plan_and_its_grace_keep_its_files(around: Any, spark: SparkSession) -> None:
    with open_lifecycle(around, spark=spark) as lifecycle:
        shared = share_a_file(lifecycle)
        theirs = lifecycle.plan_expiration("db.inner")
        ours = lifecycle.plan_expiration("db.outer")
        lifecycle.commit_expiration(ours)
        assert outcomes(lifecycle.delete_files(ours))[str(shared)] == ("kept", "reachable from db.inner")
        lifecycle.commit_expiration(theirs)
        for dry_run in (True, False):
            done = lifecycle.delete_files(ours, dry_run=dry_run)
            assert outcomes(done)[str(shared)][0] == "kept" and shared.exists()


def test_a_neighbors_grace_is_over_before_a_shared_file_goes(around: Any, spark: SparkSession) -> None:
    with open_lifecycle(around, spark=spark) as lifecycle:
        shared = share_a_file(lifecycle)
        theirs = lifecycle.plan_expiration("db.inner")
        lifecycle.commit_expiration(theirs)
        ours = lifecycle.plan_expiration("db.outer")
        lifecycle.commit_expiration(ours)
        foreseen, done = lifecycle.delete_files(ours, dry_run=True), lifecycle.delete_files(ours)
        assert outcomes(foreseen)[str(shared)] == outcomes(done)[str(shared)] == ("kept", "open_plan")
        assert done.pending == 1
        lifecycle.close_plan(theirs, who="ann", why="over")
        assert outcomes(lifecycle.delete_files(ours))[str(shared)][0] == "deleted"


def test_the_grace_of_a_table_elsewhere_keeps_what_it_read(around: Any, spark: SparkSession) -> None:
    with open_lifecycle(around, spark=spark) as lifecycle:
        make_table(lifecycle, "owner", 1)
        make_table(lifecycle, "reader", 0)
        [shared] = (place(lifecycle, "db.owner") / "data").glob("*.parquet")
        take_up(lifecycle, "db.reader", shared.parent)
        overwrite(lifecycle, "db.reader", 2)
        overwrite(lifecycle, "db.owner", 3)
        theirs = lifecycle.plan_expiration("db.reader")
        lifecycle.commit_expiration(theirs)

        done = lifecycle.expire("db.owner")

        assert outcomes(done)[str(shared)] == ("kept", "open_plan")
        lifecycle.close_plan(theirs, who="ann", why="over")
        assert outcomes(lifecycle.delete_files(done.job_id))[str(shared)][0] == "deleted"


def test_a_neighbors_hold_keeps_what_it_covers(around: Any, spark: SparkSession) -> None:
    with open_lifecycle(around, spark=spark) as lifecycle:
        shared = share_a_file(lifecycle)
        theirs = lifecycle.plan_expiration("db.inner")
        lifecycle.commit_expiration(theirs)
        lifecycle.close_plan(theirs, who="ann", why="over")
        hold = lifecycle.hold("db.inner", "legal", "case 7")
        done = lifecycle.expire("db.outer")
        assert outcomes(done)[str(shared)] == ("kept", "held") and done.pending == 1
        lifecycle.release(hold.hold_id)
        assert outcomes(lifecycle.delete_files(done.job_id))[str(shared)][0] == "deleted"


def test_a_writer_of_a_table_that_reads_this_location_delays_what_it_may_commit(at_once: Lifecycle) -> None:
    make_table(at_once, "source", 1)
    make_table(at_once, "reader", 1)
    folder = place(at_once, "db.source")
    take_up(at_once, "db.reader", folder / "data")
    lost = stray(folder, "data/stray.parquet")
    scan = at_once.scan_orphans("db.source")
    uuid = at_once.snapshot_history("db.reader").table_uuid
    at_once.operations.heartbeats.beat(uuid, "db.reader", "writer", None, timedelta(hours=1))
    done = at_once.scan_orphans("db.source")
    assert (done.summary.orphan_files, done.summary.live_writers) == (0, 1)
    assert at_once.delete_orphans(scan).kept == 1 and lost.exists()
    at_once.operations.heartbeats.stop(uuid, "writer")
    assert at_once.delete_orphans(at_once.scan_orphans("db.source")).deleted == 1


def test_what_a_neighbor_undeleted_stays_until_that_is_closed(make_config: MakeConfig, spark: SparkSession) -> None:
    aside = {"deletion": {"grace": "0s", "mode": "quarantine"}}
    with open_lifecycle(make_config(defaults=WITHOUT_COLD, tables={"db.inner": aside}), spark=spark) as lifecycle:
        make_table(lifecycle, "outer", 1)
        at = place(lifecycle, "db.outer") / "data" / "inner"
        sql(lifecycle, f"CREATE TABLE {{live}}.db.inner (id int) USING iceberg LOCATION 'file://{at}'")
        append(lifecycle, "db.inner", 1)
        [shared] = (at / "data").glob("*.parquet")
        overwrite(lifecycle, "db.inner", 2)
        theirs = lifecycle.expire("db.inner")
        assert not shared.exists()
        lifecycle.undelete(theirs.job_id, who="ann", why="the audit reads it")
        take_up(lifecycle, "db.outer", shared.parent, shared.name)
        overwrite(lifecycle, "db.outer", 3)
        done = lifecycle.expire("db.outer")
        assert outcomes(done)[str(shared)][0] == "kept" and shared.exists()
        assert outcomes(done)[str(shared)][1] == "undeleted"


# --- a heartbeat's prefix ---------------------------------------------------------------------------------------------


def foreign_heartbeat(lifecycle: Lifecycle, table: str, prefix: str) -> None:
    """What a writer in another language puts into the table, unchecked."""
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO lifecycle.heartbeats (table_uuid, table_name, writer_id, session, prefix, expires_at) "
                "VALUES (:uuid, :table, 'foreign', 's', :prefix, clock_timestamp() + interval '10 minutes')"
            ),
            {"uuid": lifecycle.steps.table_state(table).metadata.table_uuid, "table": table, "prefix": prefix},
        )


def test_a_prefix_with_a_typo_protects_the_whole_table(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 1)
    folder = place(at_once, table)
    lost = [stray(folder, f"data/{name}/stray.parquet") for name in ("day=1", "day=2")]
    scan = at_once.scan_orphans(table)
    for prefix in (f"file://{folder}s/data/day=1", "data/dya=1", "../t/data", f"s3://bucket{folder}"):
        foreign_heartbeat(at_once, table, prefix)
        done = at_once.scan_orphans(table)
        assert (done.summary.orphan_files, done.summary.live_writers) == (0, 2), prefix
        with at_once.operations.engine.begin() as connection:
            connection.execute(text("DELETE FROM lifecycle.heartbeats"))
    foreign_heartbeat(at_once, table, "data/dya=1")
    assert {outcome for outcome, _ in outcomes(at_once.delete_orphans(scan)).values()} == {"kept"}
    assert all(path.exists() for path in lost)


def test_a_relative_prefix_is_read_where_the_tables_data_goes(at_once: Lifecycle) -> None:
    root = warehouse(at_once, "live") / "data-of-t"
    table = make_table(at_once, "t", 1, properties=f"'write.data.path'='file://{root}'")
    covered, free = stray(root, "day=1/stray.parquet"), stray(root, "day=2/stray.parquet")
    foreign_heartbeat(at_once, table, "day=1")
    at_once.delete_orphans(at_once.scan_orphans(table))
    assert covered.exists() and not free.exists()


# --- a table that cannot be read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["metadata file", "manifest list", "manifest"])
def test_a_table_elsewhere_that_never_could_be_read_stops_deletions_unless_it_is_named_isolated(
    make_config: MakeConfig, spark: SparkSession, broken: str
) -> None:
    config = make_config(defaults=WITHOUT_COLD)
    with open_lifecycle(config, spark=spark) as lifecycle:
        table, other = make_table(lifecycle, "t", 1), make_table(lifecycle, "broken", 1)
        lost = stray(place(lifecycle, table))
        overwrite(lifecycle, table, 5)
        plan = lifecycle.plan_expiration(table)
        lifecycle.commit_expiration(plan)
        metadata = lifecycle.steps.table_state(other).metadata
        [snapshot] = metadata.snapshots
        folder = place(lifecycle, other) / "metadata"
        [manifest] = folder.glob("*-m0.avro")
        victim = {
            "metadata file": local(metadata.metadata_location),
            "manifest list": local(str(snapshot.manifest_list)),
            "manifest": manifest,
        }[broken]
        (folder / f".{victim.name}.crc").unlink(missing_ok=True)
        victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
        before = files_below(place(lifecycle, table))
        for dry_run in (True, False):
            with pytest.raises(UnreadableMetadata, match="isolated") as stopped:
                lifecycle.delete_files(plan, dry_run=dry_run)
            assert other in str(stopped.value)
        with pytest.raises(UnreadableMetadata, match="isolated"):
            lifecycle.scan_orphans(table)
        assert before == files_below(place(lifecycle, table))
    live = config.catalogs.live.model_copy(update={"isolated": (other,)})
    config = config.model_copy(update={"catalogs": config.catalogs.model_copy(update={"live": live})})
    with open_lifecycle(config, spark=spark) as lifecycle:
        assert lifecycle.delete_files(plan.plan_id).kept == 0
        lifecycle.delete_orphans(lifecycle.scan_orphans(table))
        assert not lost.exists() and ids(lifecycle, table) == [5]


# --- checksum files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", ["orphan", "nothing", "expired"])
def test_a_file_with_the_name_of_a_checksum_file_that_a_table_names_stays(at_once: Lifecycle, beside: str) -> None:
    table = make_table(at_once, "t", 2)
    data = place(at_once, table) / "data"
    [first, second] = sorted(data.glob("*.parquet"))
    subject = second if beside == "expired" else data / "x.parquet"
    named = data / f".{subject.name}.crc"
    named.write_bytes(first.read_bytes())
    overwrite(at_once, table, 5)
    take_up(at_once, table, data, named.name)
    if beside == "orphan":
        stray(data, subject.name)
    read = ids(at_once, table)
    make_all_old(data)

    at_once.delete_orphans(at_once.scan_orphans(table))
    done = at_once.expire(table)

    assert outcomes(done)[str(second)][0] == "deleted" and not subject.exists()
    assert named.exists() and ids(at_once, table) == read
