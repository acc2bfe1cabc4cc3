from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import text

from artemis_lifecycle.embedded.postgres import CATALOGS, EmbeddedPostgres
from artemis_lifecycle.errors import Busy, LeaseLost, LeaseTaken, OperationsUnavailable
from artemis_lifecycle.operations.database import Operations, connect
from artemis_lifecycle.operations.journal import JobRecord
from artemis_lifecycle.operations.leases import Lease, mark
from artemis_lifecycle.operations.locks import table_lock

pytestmark = pytest.mark.slow


def _stop_renewing(lease: Lease) -> None:
    """As a process that is frozen: its thread renews nothing, and nothing is released."""
    lease._stop.set()
    lease._thread.join()


def _lapse(operations: Operations, lease: Lease) -> None:
    _stop_renewing(lease)
    with operations.engine.begin() as connection:
        connection.execute(
            text("UPDATE lifecycle.leases SET expires_at = clock_timestamp() - interval '1 ms' WHERE token = :token"),
            {"token": lease.token},
        )


def test_a_live_lease_is_refused_at_once_naming_holder_step_and_expiry(operations: Operations, table_uuid: str) -> None:
    with operations.leases.hold(
        table_uuid, step="handoff", owner="ada@mars", table="space.debris", run_id="run-1"
    ) as lease:
        asked = time.monotonic()
        with pytest.raises(LeaseTaken) as raised, operations.leases.hold(table_uuid, step="plan", owner="bob"):
            pass
        assert time.monotonic() - asked < 2
        for part in ("ada@mars", "handoff", "run-1", lease.expires_at.isoformat(), "space.debris"):
            assert part in str(raised.value)


def test_tokens_only_grow_over_all_tables(operations: Operations, table_uuid: str) -> None:
    tokens = []
    for uuid in (table_uuid, str(uuid4()), table_uuid):
        with operations.leases.hold(uuid, step="plan", owner="ada") as lease:
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))


def test_a_released_lease_is_free_and_an_error_releases_it_too(operations: Operations, table_uuid: str) -> None:
    with pytest.raises(ZeroDivisionError), operations.leases.hold(table_uuid, step="plan", owner="ada"):
        raise ZeroDivisionError
    with operations.leases.hold(table_uuid, step="plan", owner="bob"):
        assert [(lease.owner, lease.step) for lease in operations.leases.live(table_uuid)] == [("bob", "plan")]
    assert operations.leases.live(table_uuid) == []


def test_a_lease_is_renewed_while_the_block_runs(operations: Operations, table_uuid: str) -> None:
    with operations.leases.hold(table_uuid, step="plan", owner="ada", ttl=timedelta(seconds=0.9)) as lease:
        first = lease.expires_at
        time.sleep(1.6)
        assert lease.expires_at > first
        lease.check()


def test_of_many_contenders_one_gets_the_lease(operations: Operations, table_uuid: str) -> None:
    barrier, release = threading.Barrier(6), threading.Event()
    got: list[int] = []
    refused: list[LeaseTaken] = []

    def contend() -> None:
        barrier.wait()
        try:
            with operations.leases.hold(table_uuid, step="plan", owner="t") as lease:
                got.append(lease.token)
                release.wait(20)
        except LeaseTaken as error:
            refused.append(error)
            if len(refused) == 5:
                release.set()

    threads = [threading.Thread(target=contend) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 5)


def test_a_lapsed_lease_is_taken_over_and_its_holder_learns_it(operations: Operations, table_uuid: str) -> None:
    journal, job = operations.journal, JobRecord(f"job-{table_uuid}", "expiration", table_uuid, "a.b", "file:/f")
    journal.begin(job, [(1, 1)])
    with operations.leases.hold(table_uuid, step="deletion", owner="frozen") as frozen:
        journal.start_batch(job.job_id, 0, frozen.token)
        _lapse(operations, frozen)
        with operations.leases.hold(table_uuid, step="deletion", owner="heir") as heir:
            assert heir.token > frozen.token
            with pytest.raises(LeaseLost, match=f"token {heir.token} took the table over"):
                frozen.check()
            with pytest.raises(LeaseLost):
                journal.start_batch(job.job_id, 0, frozen.token)
            journal.start_batch(job.job_id, 0, heir.token)
            frozen.__exit__()
            assert [lease.owner for lease in operations.leases.live(table_uuid)] == ["heir"]
            heir.check()


def test_a_lapsed_lease_is_lost_even_if_not_taken(operations: Operations, table_uuid: str) -> None:
    with operations.leases.hold(table_uuid, step="deletion", owner="frozen") as frozen:
        _lapse(operations, frozen)
        with pytest.raises(LeaseLost, match="without being renewed"):
            frozen.check()


def test_the_thread_of_a_lost_lease_ends(operations: Operations, table_uuid: str) -> None:
    with operations.leases.hold(table_uuid, step="plan", owner="a", ttl=timedelta(seconds=0.3)) as lease:
        with operations.engine.begin() as connection:
            connection.execute(
                text("UPDATE lifecycle.leases SET expires_at = '2000-01-01Z' WHERE token = :t"), {"t": lease.token}
            )
        lease._thread.join(timeout=5)
        assert not lease._thread.is_alive()
        with pytest.raises(LeaseLost):
            lease.check()


def test_runs_whose_lease_lapsed_are_named_until_they_take_another(operations: Operations, table_uuid: str) -> None:
    dead, alive = f"dead-{table_uuid}", f"alive-{table_uuid}"
    with operations.leases.hold(table_uuid, step="plan", owner="a", run_id=dead) as lease:
        _lapse(operations, lease)
        assert dead in operations.leases.lapsed_runs()
        with operations.leases.hold(table_uuid, step="plan", owner="b", run_id=alive) as other:
            assert dead in operations.leases.lapsed_runs()
            _lapse(operations, other)
            assert alive in operations.leases.lapsed_runs()
            with operations.leases.hold(table_uuid, step="plan", owner="b", run_id=alive):
                assert alive not in operations.leases.lapsed_runs()
        assert alive not in operations.leases.lapsed_runs()


def test_a_released_lease_has_not_lapsed(operations: Operations, table_uuid: str) -> None:
    with operations.leases.hold(
        table_uuid, step="plan", owner="a", run_id=f"good-{table_uuid}", ttl=timedelta(seconds=0.1)
    ):
        pass
    time.sleep(0.2)
    assert f"good-{table_uuid}" not in operations.leases.lapsed_runs()


def _hold_for_ever(uri: str, table_uuid: str, ready: object) -> None:
    operations = Operations.open(uri)
    with operations.leases.hold(table_uuid, step="deletion", owner="killed", ttl=timedelta(seconds=1), run_id="r-kill"):
        ready.set()  # type: ignore[attr-defined]
        time.sleep(60)


def test_a_killed_process_loses_its_lease_after_its_ttl(
    operations: Operations, postgres_uri: str, table_uuid: str
) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold_for_ever, args=(postgres_uri, table_uuid, ready))
    process.start()
    assert ready.wait(60)
    time.sleep(1.5)
    with pytest.raises(LeaseTaken), operations.leases.hold(table_uuid, step="deletion", owner="early"):
        pass
    process.kill()
    process.join()
    time.sleep(1.1)
    assert "r-kill" in operations.leases.lapsed_runs()
    with operations.leases.hold(table_uuid, step="deletion", owner="heir") as heir:
        heir.check()


def _hold_marked(uri: str, table_uuid: str, ready: object) -> None:
    operations = Operations.open(uri)
    with operations.leases.hold(
        table_uuid, step="deletion", owner="killed", run_id=f"r-{table_uuid}", process=mark([os.getpid()])
    ):
        ready.set()  # type: ignore[attr-defined]
        time.sleep(60)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nobody can tell that a process is over")
def test_a_lease_is_free_at_once_when_its_process_is_known_to_be_over(
    operations: Operations, postgres_uri: str, table_uuid: str
) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold_marked, args=(postgres_uri, table_uuid, ready))
    process.start()
    assert ready.wait(60)
    early = operations.leases.hold(table_uuid, step="deletion", owner="early")
    with pytest.raises(LeaseTaken, match="killed holds the table for step deletion"), early:
        pass
    process.kill()
    process.join()
    with operations.leases.hold(table_uuid, step="deletion", owner="heir") as heir:
        heir.check()
        assert [lease.owner for lease in operations.leases.live(table_uuid)] == ["heir"]
        # What watches over runs need not wait for the two minutes either.
        assert f"r-{table_uuid}" in operations.leases.lapsed_runs()


def test_a_lease_without_a_mark_is_waited_for(operations: Operations, table_uuid: str) -> None:
    with operations.leases.hold(table_uuid, step="plan", owner="ada", process=None) as lease:
        _stop_renewing(lease)
        with pytest.raises(LeaseTaken), operations.leases.hold(table_uuid, step="plan", owner="bob"):
            pass


def test_a_lease_is_released_though_postgres_is_gone_at_the_end(postgres_uri: str, table_uuid: str) -> None:
    operations = Operations.open(postgres_uri)
    with (
        pytest.raises(OperationsUnavailable),
        operations.leases.hold(table_uuid, step="plan", owner="a"),
        operations.engine.connect() as connection,
    ):
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    assert operations.leases.live(table_uuid) == []
    operations.close()


def test_a_lease_is_released_when_postgres_restarts_at_the_end(table_uuid: str) -> None:
    home = Path(tempfile.mkdtemp(prefix="artemis-tests-"))
    home.chmod(0o755)
    server = EmbeddedPostgres(home, {"fsync": "off"})
    try:
        operations = Operations.open(f"{server.start()}/{CATALOGS}")
        again = threading.Timer(1.0, server.start)
        with operations.leases.hold(table_uuid, step="plan", owner="a"):
            server.stop()
            again.start()
        again.join()
        assert operations.leases.live(table_uuid) == []
        operations.close()
    finally:
        server.remove()
        shutil.rmtree(home, ignore_errors=True)


def test_the_table_lock_is_one_for_all_and_free_afterwards(
    operations: Operations, postgres_uri: str, table_uuid: str
) -> None:
    other = connect(postgres_uri, purpose="ingest")
    with table_lock(operations.engine, table_uuid, table="space.debris") as lock:
        lock.check()
        asked = time.monotonic()
        with pytest.raises(Busy, match=r"space\.debris"), table_lock(other, table_uuid, 0.3, table="space.debris"):
            pass
        assert 0.2 < time.monotonic() - asked < 5
        with table_lock(other, str(uuid4()), 0.3):
            pass
    with table_lock(other, table_uuid, timedelta(seconds=0.3)):
        pass
    other.dispose()


def test_whoever_waits_for_the_table_lock_gets_it_next(operations: Operations, table_uuid: str) -> None:
    order: list[str] = []

    def wait() -> None:
        with table_lock(operations.engine, table_uuid, 20):
            order.append("waiter")

    with table_lock(operations.engine, table_uuid):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.3)
        order.append("holder")
    thread.join()
    assert order == ["holder", "waiter"]


def test_a_table_lock_whose_session_died_says_so(operations: Operations, table_uuid: str) -> None:
    with table_lock(operations.engine, table_uuid) as lock:
        with operations.engine.connect() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM lifecycle.locks JOIN pg_locks ON granted "
                    "AND locktype = 'transactionid' AND transactionid = locks.xmax WHERE name = :name"
                ),
                {"name": f"table:{table_uuid}"},
            )
        for _ in range(2):
            with pytest.raises(OperationsUnavailable):
                lock.check()
    with table_lock(operations.engine, table_uuid, 1):
        pass


def test_the_session_of_a_lock_goes_back_without_a_timeout_on_it(operations: Operations, table_uuid: str) -> None:
    with table_lock(operations.engine, table_uuid, 0.5):
        pass
    for _ in range(3):
        with operations.engine.connect() as connection:
            assert connection.execute(text("SHOW lock_timeout")).scalar_one() == "0"
