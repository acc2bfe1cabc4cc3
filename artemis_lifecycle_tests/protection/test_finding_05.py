"""Finding 5: a heartbeat stopped only the orphan scan, and a committed plan deleted files under the writer's hands. Now
every kind of deletion keeps what a live heartbeat covers, and an expiration goes on when the writer has ended."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import lapse
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import (
    ids,
    make_all_old,
    make_history,
    outcomes,
    overwrite,
    place,
    sql,
    stray,
    take_up,
)


def committed(lifecycle: Lifecycle, table: str) -> str:
    """A committed plan of which one data file, some manifests and lists may go."""
    plan = lifecycle.plan_expiration(table)
    lifecycle.commit_expiration(plan)
    return plan.plan_id


def old_data(lifecycle: Lifecycle, table: str) -> list[Path]:
    """Data files that the current snapshot does not have."""
    rows = sql(lifecycle, f"SELECT file_path FROM {{live}}.{table}.files")
    now = {Path(row["file_path"].removeprefix("file:")).name for row in rows}
    return [path for path in (place(lifecycle, table) / "data").rglob("*.parquet") if path.name not in now]


def status(lifecycle: Lifecycle, table: str) -> PlanStatus:
    return lifecycle.plans(table)[0].status


def test_an_expiration_keeps_everything_under_a_writers_hands_and_ends_when_the_writer_has(
    at_once: Lifecycle,
) -> None:
    table = make_table(at_once, "t", 1)
    overwrite(at_once, table, 5)
    plan, old = committed(at_once, table), old_data(at_once, table)
    with at_once.writing(table, "loader"):
        foreseen = at_once.delete_files(plan, dry_run=True)
        kept = at_once.delete_files(plan)
        assert outcomes(foreseen) == outcomes(kept)
        assert set(outcomes(kept).values()) == {("kept", "in_flight")}
        assert (kept.deleted, kept.kept) == (0, kept.pending) and kept.pending > 0
        assert kept.paused is not None and "in_flight" in kept.paused
        assert f"live writers: loader of {table}, until" in kept.paused
        assert status(at_once, table) is PlanStatus.DELETING
        # A run in between changes nothing, and says so again.
        assert at_once.delete_files(plan).pending == kept.pending
        # The writer takes up what it read before the expiration.
        take_up(at_once, table, old[0].parent, old[0].name)
    done = at_once.delete_files(plan)
    assert outcomes(done)[str(old[0])] == ("kept", "reachable")
    assert (done.deleted, done.pending) == (kept.kept - 1, 0)
    assert status(at_once, table) is PlanStatus.DONE
    assert ids(at_once, table) == [0, 5]


def test_a_prefix_protects_its_files_and_the_metadata_and_no_other(at_once: Lifecycle) -> None:
    make_history(at_once)
    plan, old = committed(at_once, "db.t"), old_data(at_once, "db.t")
    below = {str(path) for path in old if path.parent.name == "part=0"}
    assert below and below != {str(path) for path in old}
    with at_once.writing("db.t", "loader", prefix="data/part=0"):
        foreseen, done = at_once.delete_files(plan, dry_run=True), at_once.delete_files(plan)
        kept = {path for path, (outcome, _) in outcomes(done).items() if outcome == "kept"}
        assert {path for path in kept if path.endswith(".parquet")} == below
        assert {path for path in kept if not path.endswith(".parquet")} == {
            path for path in outcomes(done) if "/metadata/" in path
        }
        assert {path for path, (outcome, _) in outcomes(foreseen).items() if outcome == "kept"} == kept
        assert foreseen.would_delete == done.deleted == len(old) - len(below)
        # Also what the planned files of other partitions are: gone, and not counted twice afterwards.
        assert at_once.delete_files(plan).deleted == done.deleted
    ended = at_once.delete_files(plan)
    assert (ended.deleted, ended.pending, status(at_once, "db.t")) == (done.deleted + len(kept), 0, PlanStatus.DONE)


def test_a_writer_that_was_killed_holds_up_an_expiration_until_its_heartbeat_lapses(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 1)
    overwrite(at_once, table, 5)
    plan = committed(at_once, table)
    look = at_once.steps.table_state(table)
    at_once.operations.heartbeats.beat(look.metadata.table_uuid, table, "gone-writer")
    assert at_once.delete_files(plan).deleted == 0
    lapse(at_once, "heartbeats")
    assert at_once.delete_files(plan).pending == 0
    assert status(at_once, table) is PlanStatus.DONE


def test_a_writer_that_comes_while_files_are_being_deleted_keeps_the_rest(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    defaults = {**WITHOUT_COLD, "deletion": {"grace": "0s", "requests_per_second": 1}}
    with open_lifecycle(make_config(defaults=defaults), spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 1)
        overwrite(lifecycle, table, 5)
        plan = committed(lifecycle, table)
        uuid = lifecycle.steps.table_state(table).metadata.table_uuid

        engine, come_in = lifecycle.operations.engine, []

        def insert() -> None:
            with engine.begin() as connection:
                connection.exec_driver_sql(
                    "INSERT INTO lifecycle.heartbeats (table_uuid, table_name, writer_id, session, expires_at) "
                    f"VALUES ('{uuid}', '{table}', 'foreign', 's', clock_timestamp() + interval '10 minutes')"
                )

        def come(point: str) -> None:
            if point == "deletion.write_outcomes:after" and not come_in:
                # It waits for the table's lock, which the batch has, and is the first to get it.
                come_in.append(threading.Thread(target=insert))
                come_in[0].start()
                while not waiting():
                    time.sleep(0.05)

        def waiting() -> int:
            with engine.connect() as connection:
                return connection.exec_driver_sql(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = "
                    "current_database() AND query LIKE 'INSERT INTO lifecycle.heartbeats%%'"
                ).scalar_one()

        with crash_points.installed(come):
            done = lifecycle.delete_files(plan)
        come_in[0].join()
        assert done.deleted == 1 and done.kept == done.pending > 0
        lapse(lifecycle, "heartbeats")
        assert lifecycle.delete_files(plan).pending == 0


def test_a_heartbeat_on_a_table_that_reads_this_location_keeps_what_it_may_commit(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 1)
    inner = f"file://{place(at_once, table)}/data"
    sql(at_once, f"CREATE TABLE {{live}}.db.around (id int) USING iceberg LOCATION '{inner}'")
    overwrite(at_once, table, 5)
    plan, [old] = committed(at_once, table), old_data(at_once, table)
    with at_once.writing("db.around", "loader"):
        done = at_once.delete_files(plan)
        assert outcomes(done)[str(old)][0] == "kept" and old.exists()


@pytest.mark.parametrize("prefix", [None, "data"])
def test_every_other_kind_of_deletion_keeps_them_too(
    make_config: MakeConfig, spark: SparkSession, prefix: str | None
) -> None:
    defaults = {
        **WITHOUT_COLD,
        "deletion": {"grace": "0s", "mode": "quarantine"},
        "dropped": {"keep": "0s", "approval": "guards"},
    }
    config = make_config(defaults=defaults, tables={"db.*": {}}, quarantine={"retain": "1ms"})
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        folder = place(lifecycle, table)
        lost = stray(folder)
        scan = lifecycle.scan_orphans(table)
        with lifecycle.writing(table, "loader", prefix=prefix):
            assert lifecycle.scan_orphans(table).summary.live_writers == 1
            for dry_run in (True, False):
                assert outcomes(lifecycle.delete_orphans(scan, dry_run=dry_run)) == {str(lost): ("kept", "in_flight")}
        make_all_old(folder)
        lifecycle.observe_catalog()
        uuid = lifecycle.steps.table_state(table).metadata.table_uuid
        sql(lifecycle, f"DROP TABLE {{live}}.{table}")
        lifecycle.observe_catalog()
        lifecycle.operations.heartbeats.beat(uuid, table, "still-at-work", prefix)
        before = {path for path in folder.rglob("*") if path.is_file()}
        dropped = lifecycle.scan_dropped(table)
        covered = {path for path in before if prefix is None or "metadata" in path.parts or "data" in path.parts}
        assert dropped.summary.orphan_files == len(before) - len(covered)
        lifecycle.delete_dropped(dropped)
        assert covered <= set(folder.rglob("*"))
