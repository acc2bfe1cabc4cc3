from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from artemis_lifecycle.errors import Busy, LeaseLost
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.holds import Writing
from artemis_lifecycle.operations.locks import table_lock


def test_a_writer_is_live_inside_the_block_and_renews_itself(operations: Operations, table_uuid: str) -> None:
    with Writing(
        operations.heartbeats, table_uuid, "space.debris", "w1", "data/x", timedelta(seconds=0.9)
    ) as protection:
        (first,) = operations.heartbeats.live(table_uuid)
        assert (first.writer_id, first.prefix, first.table) == ("w1", "data/x", "space.debris")
        time.sleep(1.5)
        (later,) = operations.heartbeats.live(table_uuid)
        assert later.expires_at > first.expires_at
        assert later.started_at == first.started_at
        protection.check()
    assert operations.heartbeats.live(table_uuid) == []


def test_entering_waits_for_the_table_lock_and_renewing_does_not(operations: Operations, table_uuid: str) -> None:
    with table_lock(operations.engine, table_uuid), pytest.raises(Busy):
        operations.heartbeats.beat(table_uuid, "a.b", "w", timeout=0.2)
    assert operations.heartbeats.live(table_uuid) == []
    operations.heartbeats.beat(table_uuid, "a.b", "w")
    with table_lock(operations.engine, table_uuid):
        operations.heartbeats.beat(table_uuid, "a.b", "w", timeout=0.2)
        with pytest.raises(Busy):
            operations.heartbeats.beat(table_uuid, "a.b", "w", "another/prefix", timeout=0.2)
    operations.heartbeats.stop(table_uuid, "w")
    operations.heartbeats.stop(table_uuid, "w")
    assert operations.heartbeats.live(table_uuid) == []


def test_a_batch_that_holds_the_lock_ends_before_a_writer_begins(operations: Operations, table_uuid: str) -> None:
    order: list[str] = []

    def write() -> None:
        with Writing(operations.heartbeats, table_uuid, "a.b", "w"):
            order.append("writing")

    with table_lock(operations.engine, table_uuid):
        thread = threading.Thread(target=write)
        thread.start()
        time.sleep(0.3)
        order.append("batch done")
    thread.join()
    assert order == ["batch done", "writing"]


def test_a_writer_whose_protection_had_a_gap_learns_it_before_its_commit(
    operations: Operations, table_uuid: str
) -> None:
    with Writing(operations.heartbeats, table_uuid, "a.b", "w", ttl=timedelta(minutes=5)) as protection:
        with operations.engine.begin() as connection:
            connection.execute(
                text("UPDATE lifecycle.heartbeats SET expires_at = '2000-01-01Z' WHERE table_uuid = :t"),
                {"t": table_uuid},
            )
        with pytest.raises(LeaseLost, match="had a gap"):
            protection.check()
        # From here on it is protected again, but what it wrote before is not to be trusted.
        assert len(operations.heartbeats.live(table_uuid)) == 1
        with pytest.raises(LeaseLost, match="had a gap"):
            protection.check()


def test_the_end_of_one_writer_does_not_end_another_of_the_same_id(operations: Operations, table_uuid: str) -> None:
    with Writing(operations.heartbeats, table_uuid, "a.b", "shared"):
        with Writing(operations.heartbeats, table_uuid, "a.b", "shared"):
            assert len(operations.heartbeats.live(table_uuid)) == 2
        assert len(operations.heartbeats.live(table_uuid)) == 1


def test_a_writer_that_went_silent_is_no_longer_live(operations: Operations, table_uuid: str) -> None:
    operations.heartbeats.beat(table_uuid, "a.b", "crashed", ttl=timedelta(seconds=0.1))
    time.sleep(0.2)
    assert operations.heartbeats.live(table_uuid) == []


def test_a_foreign_writer_needs_two_statements(operations: Operations, table_uuid: str) -> None:
    with operations.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO lifecycle.heartbeats (table_uuid, writer_id, table_name, expires_at) "
                "VALUES (:t, 'flink', 'a.b', clock_timestamp() + interval '10 minutes') "
                "ON CONFLICT (table_uuid, writer_id, session) DO UPDATE SET expires_at = excluded.expires_at, "
                "last_beat_at = clock_timestamp()"
            ),
            {"t": table_uuid},
        )
    (beat,) = operations.heartbeats.live(table_uuid)
    assert (beat.writer_id, beat.host, beat.pid, beat.prefix) == ("flink", None, None, None)
    with operations.engine.begin() as connection:
        connection.execute(
            text("DELETE FROM lifecycle.heartbeats WHERE table_uuid = :t AND writer_id = 'flink'"), {"t": table_uuid}
        )
    assert operations.heartbeats.live(table_uuid) == []


def test_a_run_by_the_documented_statement_is_protected_under_the_prefix_that_it_declares(
    operations: Operations, table_uuid: str
) -> None:
    """An earlier run of the writer, alive or not, declared another one; two runs end together, as the page says."""
    beat = text(
        "INSERT INTO lifecycle.heartbeats (table_uuid, writer_id, table_name, prefix, expires_at) "
        "VALUES (:t, 'job', 'a.b', :prefix, clock_timestamp() + interval '10 minutes') "
        "ON CONFLICT (table_uuid, writer_id, session) DO UPDATE SET last_beat_at = clock_timestamp(), "
        "expires_at = EXCLUDED.expires_at"
    )
    declared = ["data/a", "data/b", None, "data/b", "data/a"]
    for number, prefix in enumerate(declared, 1):
        with operations.engine.begin() as connection:
            connection.execute(beat, {"t": table_uuid, "prefix": prefix})
        assert {each.prefix for each in operations.heartbeats.live(table_uuid)} == set(declared[:number])
    with operations.engine.begin() as connection:
        connection.execute(text("DELETE FROM lifecycle.heartbeats WHERE writer_id = 'job'"))
    assert operations.heartbeats.live(table_uuid) == []


def test_heartbeats_for_invented_tables_leave_no_locks_behind(operations: Operations, table_uuid: str) -> None:
    def locks() -> set[str]:
        with operations.engine.connect() as connection:
            return set(connection.execute(text("SELECT name FROM lifecycle.locks")).scalars())

    before = locks()
    invented = [f"{table_uuid}-{number}" for number in range(20)]
    for each in invented:
        operations.heartbeats.beat(each, "no.table", "w")
    assert len(locks() - before) == 20
    with table_lock(operations.engine, invented[0]):  # Who has the lock keeps it.
        for each in invented:
            operations.heartbeats.stop(each, "w")
        assert locks() - before == {f"table:{invented[0]}"}
        with pytest.raises(Busy), table_lock(operations.engine, invented[0], 0.2):
            pass
    with operations.engine.begin() as connection, pytest.raises(DBAPIError, match="only ever added to"):
        connection.execute(text("DELETE FROM lifecycle.locks"))
    # A lock that went while somebody waited for it is taken again.
    operations.heartbeats.beat(invented[1], "no.table", "w")
    operations.heartbeats.stop(invented[1], "w")
    with table_lock(operations.engine, invented[1]), pytest.raises(Busy):
        operations.heartbeats.beat(invented[1], "no.table", "w", timeout=0.2)
