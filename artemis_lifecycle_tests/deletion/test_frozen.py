"""A worker that the system stops for a while, by a real SIGSTOP in the middle of a batch: whatever came alive until it
runs again is still there afterwards, and what it was about to do it does not do."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from sqlalchemy import text

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.deletion import worker
from artemis_lifecycle.deletion.batches import DeletionJob
from artemis_lifecycle.errors import Busy, Held, LeaseLost, LifecycleError
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.protection.protection import Protection
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.local import store
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.deletion.world import World, outcomes
from artemis_lifecycle_tests.deletion.world import local as on_disk

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads from /proc that a process is stopped"
)

BETWEEN_PIECES, AFTER_THE_LOOK, BETWEEN_FILES = "between two pieces", "after the final check", "between two files"
BEFORE_THE_CALL = "after every check, before the store is called"


@dataclass(frozen=True)
class Order:
    """What the other process deletes, and where it stops. A check, and a call, count for so many seconds."""

    job: DeletionJob
    place: str
    lasts: float


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _stopping_after(work: Callable[..., Any], ours: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
    """`work`, and a stop when it was done for the first time (for what is `ours`)."""
    calls = iter(range(10**6))

    def worked(*args: Any) -> Any:
        done = work(*args)
        if ours(*args) and next(calls) == 0:
            _stop()
        return done

    return worked


def _stopping_before(work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, and a stop before it begins for the first time."""
    calls = iter(range(10**6))

    def worked(*args: Any, **options: Any) -> Any:
        if next(calls) == 0:
            _stop()
        return work(*args, **options)

    return worked


def _worker(config: LifecycleConfig, pipe: Connection) -> None:
    """A process of its own, without Spark: the jobs are small. It tells how each order ended."""
    assert config.operations.uri is not None and config.operations.root is not None
    catalog = config.catalogs.live
    operations, reader = Operations.open(config.operations.uri), CatalogReader(catalog)
    folder = on_disk(str(catalog.warehouse))
    world = World(None, operations, reader, catalog.name, folder, config.operations.root)  # type: ignore[arg-type]
    while (order := pipe.recv()) is not None:
        with pytest.MonkeyPatch.context() as patch:
            pipe.send(_carried_out(world, order, patch))
    reader.close()
    operations.close()


def _carried_out(world: World, order: Order, patch: pytest.MonkeyPatch) -> str:
    asked = iter(range(10**6))
    # A piece, here a file, each second; or all at once.
    pieces = 1.0 if order.place == BETWEEN_PIECES else 100.0
    patch.setattr(worker, "_LOOK_LASTS", order.lasts)
    patch.setattr(worker, "_DELETES_LAST", order.lasts)
    if order.place == AFTER_THE_LOOK:
        patch.setattr(Protection, "kept", _stopping_after(Protection.kept))
    elif order.place == BEFORE_THE_CALL:
        patch.setattr(Stores, "remove", _stopping_before(Stores.remove))
    elif order.place == BETWEEN_FILES:
        of_table = f"/{order.job.table.replace('.', '/')}/"

        def is_of_table(path: str) -> bool:
            return of_table in path

        patch.setattr(store, "delete_file", _stopping_after(store.delete_file, is_of_table))

    def pause() -> str | None:
        # Asked before the batch, and between its pieces.
        if order.place == BETWEEN_PIECES and next(asked) == 1:
            _stop()
        return None

    try:
        with world.operations.leases.hold(order.job.table_uuid, step="deletion", owner="frozen") as lease:
            report = world.deleted_under(lease, order.job, pause=pause, requests_per_second=pieces)
    except LifecycleError as error:
        return type(error).__name__
    return f"deleted {report.deleted}, kept {report.kept}, failed {report.failed}"


@dataclass
class Another:
    """The other process, which works on one order at a time."""

    process: psutil.Process
    pipe: Connection

    @contextmanager
    def frozen(self, job: DeletionJob, place: str, lasts: float = 10.0) -> Iterator[Callable[[], str]]:
        """It deletes, and is stopped at that place while the block runs. What the block is given wakes it, and says how
        it ended."""
        self.pipe.send(Order(job, place, lasts))
        end = time.monotonic() + 60
        while self.process.status() != psutil.STATUS_STOPPED:
            assert not self.pipe.poll() and time.monotonic() < end, "it did not stop there"
            time.sleep(0.02)

        def wake() -> str:
            self.process.send_signal(signal.SIGCONT)
            assert self.pipe.poll(60), "it says nothing"
            return str(self.pipe.recv())

        yield wake


@pytest.fixture(scope="module")
def another(module_config: LifecycleConfig) -> Iterator[Another]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_worker, args=(module_config, there))
    process.start()
    known = psutil.Process(process.pid)
    try:
        yield Another(known, here)
        here.send(None)
    finally:
        with suppress(psutil.NoSuchProcess):
            known.send_signal(signal.SIGCONT)
        process.join(20)
        process.kill()
        process.join()


def _doomed(world: World, table: str) -> tuple[DeletionJob, Sequence[Any]]:
    """A table with three snapshots to expire, each with a data file of its own; the job, and Iceberg's objects of those
    files in the order in which they go."""
    world.create(table)
    expired = [world.append(table, number) for number in range(3)]
    world.overwrite(table, 9)
    files = sorted((world.data_file(table, snapshot) for snapshot in expired), key=lambda file: str(file.location()))
    return world.plan(table, *expired), files


def _there(world: World, job: DeletionJob) -> set[str]:
    rows = world.spark.read.parquet(job.files_location).collect()
    return {row["path"] for row in rows if on_disk(row["path"]).exists()}


@contextmanager
def _taken_over(world: World, job: DeletionJob) -> Iterator[None]:
    """Its lease lapses, as that of a process does which cannot renew it, and another process has the table."""
    with world.operations.engine.begin() as connection:
        connection.execute(
            text("UPDATE lifecycle.leases SET expires_at = clock_timestamp() WHERE table_uuid = :uuid"),
            {"uuid": job.table_uuid},
        )
    with world.operations.leases.hold(job.table_uuid, step="deletion", owner="another"):
        yield


def _name(file: Any) -> str:
    return str(file.location()).rpartition("/")[2]


def test_frozen_between_two_pieces_it_has_lost_the_table_to_another(world: World, another: Another) -> None:
    """Meanwhile a writer commits a doomed file again."""
    table = "frozen.pieces"
    job, files = _doomed(world, table)
    with another.frozen(job, BETWEEN_PIECES) as wake:
        left = _there(world, job)
        assert len(left) == job.files - 1
        # The table's lock is free: whoever makes files alive need not wait for a process that is stopped.
        with _taken_over(world, job), table_lock(world.operations.engine, job.table_uuid, timeout=1.0):
            world.java(table).newAppend().appendFile(files[1]).commit()
        assert wake() == LeaseLost.__name__
    assert _there(world, job) == left

    report = world.delete(job)
    assert outcomes(report)[_name(files[1])] == ("kept", "reachable")
    assert (report.deleted + report.already_absent, report.kept) == (job.files - 1, 1)
    assert len(world.rows(table)) == 2


def test_frozen_between_two_pieces_it_finds_the_hold_that_came_meanwhile(world: World, another: Another) -> None:
    """Its lease is still its own: the hold alone stops it."""
    table = "frozen.hold"
    job, _ = _doomed(world, table)
    with another.frozen(job, BETWEEN_PIECES) as wake:
        left = _there(world, job)
        placed = world.operations.holds.place(job.table_uuid, table, "legal", "case 7")
        assert wake() == Held.__name__
    assert len(left) == job.files - 1 and _there(world, job) == left
    world.operations.holds.release(placed.hold_id, "ada")
    assert world.delete(job).deleted == job.files


@pytest.mark.parametrize("place", [AFTER_THE_LOOK, BEFORE_THE_CALL])
@pytest.mark.parametrize("taken", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_frozen_after_its_final_check_it_deletes_nothing_by_it(
    world: World, another: Another, taken: bool, place: str
) -> None:
    """Its check is outdated by then: its lease is lost; or it is not, and it checks again."""
    table = f"frozen.look_{taken}_{len(place)}".lower()
    job, files = _doomed(world, table)
    with another.frozen(job, place, lasts=3.0) as wake:
        assert len(_there(world, job)) == job.files
        # It was stopped inside the lock: a hold or a restore waits, and says so.
        with pytest.raises(Busy), table_lock(world.operations.engine, job.table_uuid, timeout=0.2):
            pass
        # A writer asks nobody.
        world.java(table).newAppend().appendFile(files[0]).commit()
        with _taken_over(world, job) if taken else nullcontext():
            # Right before the request the lease has been checked; the time that is over is what stops it.
            time.sleep(0 if taken and place == AFTER_THE_LOOK else 3.1)
        assert wake() == (LeaseLost.__name__ if taken else f"deleted {job.files - 1}, kept 1, failed 0")
    if taken:
        assert len(_there(world, job)) == job.files
        report = world.delete(job)
        assert (report.deleted, report.kept) == (job.files - 1, 1)
    assert on_disk(str(files[0].location())).exists() and len(world.rows(table)) == 2


def test_frozen_in_a_call_to_the_store_it_goes_no_further(world: World, another: Another) -> None:
    """Between two files of one call: nobody else had the lock meanwhile, and the time for the call is over."""
    table = "frozen.store"
    job, files = _doomed(world, table)
    with another.frozen(job, BETWEEN_FILES, lasts=3.0) as wake:
        left = _there(world, job)
        assert len(left) == job.files - 1
        with pytest.raises(Busy), table_lock(world.operations.engine, job.table_uuid, timeout=0.2):
            pass
        world.java(table).newAppend().appendFile(files[1]).commit()
        with _taken_over(world, job):
            time.sleep(3.1)
        assert wake() == LeaseLost.__name__
    assert _there(world, job) == left

    report = world.delete(job)
    assert outcomes(report)[_name(files[0])][0] == "absent"
    assert (report.deleted + report.already_absent, report.kept, report.failed) == (job.files - 1, 1, 0)
    assert len(world.rows(table)) == 2


def _removing(paths: Sequence[str], pipe: Connection) -> None:
    """Takes many files away, and is stopped when one of the first is gone."""
    stores, wanted = Stores(), pa.array(paths)
    assert stores.exist(wanted).all()

    def watch() -> None:
        while os.path.exists(paths[50]):
            pass
        _stop()

    threading.Thread(target=watch, daemon=True).start()
    removals = stores.remove(wanted, until=elapsed() + 2.0)
    pipe.send(Counter(removals.errors.get(row, "gone") for row in range(len(paths))))


@pytest.mark.nightly
@pytest.mark.slow
def test_frozen_among_many_files_of_one_call_it_goes_no_further(tmp_path: Path) -> None:
    """Stopped between two files of one call, it tries none of the others."""
    paths = [f"{tmp_path}/{number % 8}/{number}" for number in range(12_000)]
    for folder in range(8):
        (tmp_path / str(folder)).mkdir()
    for path in paths:
        os.close(os.open(path, os.O_CREAT))
    paths.sort()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_removing, args=(paths, there))
    process.start()
    try:
        known, end = psutil.Process(process.pid), time.monotonic() + 60
        while known.status() != psutil.STATUS_STOPPED:
            assert not here.poll() and process.is_alive() and time.monotonic() < end, "it did not stop there"
            time.sleep(0.005)
        left = sum(map(os.path.exists, paths))
        time.sleep(2.1)
        known.send_signal(signal.SIGCONT)
        assert here.poll(60), "it says nothing"
        answer = here.recv()
    finally:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(process.pid).send_signal(signal.SIGCONT)
        process.join(20)
        process.kill()
        process.join()
    after = sum(map(os.path.exists, paths))
    assert 0 < left < len(paths)
    # One file, at most, of which it had just asked whether there is time.
    assert left - after <= 1
    assert answer == {"gone": len(paths) - after, "not tried: the time for this call was over": after}
