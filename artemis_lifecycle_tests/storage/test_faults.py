from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
from pathlib import Path

import pytest

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.storage.faults import Fault, FaultyStores, InjectedCrash


def _faulty(tmp_path: Path, *faults: Fault) -> FaultyStores:
    return FaultyStores(Stores(), tmp_path / "ledger", faults)


def test_without_faults_it_only_counts(tmp_path: Path) -> None:
    stores = _faulty(tmp_path)
    root = f"{tmp_path}/t"
    stores.write(f"{root}/a", b"12")
    stores.copy(f"{root}/a", f"{root}/b")
    assert stores.read(f"{root}/b") == b"12"
    assert sorted(file.path for file in stores.list(root)) == [f"{root}/a", f"{root}/b"]
    assert [outcome.outcome for outcome in stores.delete([f"{root}/a", f"{root}/b"])] == ["deleted", "deleted"]
    assert stores.head(f"{root}/a") is None
    assert stores.calls("write") == [f"{root}/a"]
    assert stores.calls("copy") == [f"{root}/a"]
    assert stores.calls("delete") == [f"{root}/a\n{root}/b"]


def test_it_fails_at_the_call_that_was_named_and_at_no_other(tmp_path: Path) -> None:
    stores = _faulty(tmp_path, Fault("write", 2, matching="plan"))
    stores.write(f"{tmp_path}/plan1", b"")
    stores.write(f"{tmp_path}/other", b"")
    with pytest.raises(InjectedCrash):
        stores.write(f"{tmp_path}/plan2", b"")
    assert stores.head(f"{tmp_path}/plan2") is None
    stores.write(f"{tmp_path}/plan2", b"")


def test_before_partway_and_after_leave_what_they_say(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_bytes(b"1234")
    stores = _faulty(
        tmp_path,
        Fault("delete", 1, "partway"),
        Fault("delete", 2, "after", "storage"),
        Fault("copy", 1, "partway"),
        Fault("copy", 2, "after"),
    )
    with pytest.raises(InjectedCrash):
        stores.delete([f"{tmp_path}/{name}" for name in "ab"])
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["b", "c", "d"]
    with pytest.raises(StorageError):
        stores.delete([f"{tmp_path}/b"])
    assert not (tmp_path / "b").exists()
    with pytest.raises(InjectedCrash):
        stores.copy(f"{tmp_path}/c", f"{tmp_path}/c2")
    assert (tmp_path / "c2").read_bytes() == b"12"
    with pytest.raises(InjectedCrash):
        stores.copy(f"{tmp_path}/c", f"{tmp_path}/c2")
    assert (tmp_path / "c2").read_bytes() == b"1234"


def test_a_crash_passes_those_who_catch_exceptions(tmp_path: Path) -> None:
    stores = _faulty(tmp_path, Fault("write", 1))

    def careless() -> None:
        with contextlib.suppress(Exception):
            stores.write(f"{tmp_path}/x", b"")

    with pytest.raises(InjectedCrash):
        careless()


def _write(pickled: bytes, path: str) -> None:
    pickle.loads(pickled).write(path, b"")


def test_calls_of_other_processes_count_too(tmp_path: Path) -> None:
    stores = _faulty(tmp_path, Fault("write", 3, kind="kill"))
    context = multiprocessing.get_context("fork")
    codes = []
    for number in range(4):
        worker = context.Process(target=_write, args=(pickle.dumps(stores), f"{tmp_path}/{number}"))
        worker.start()
        worker.join(timeout=30)
        codes.append(worker.exitcode)
    assert codes == [0, 0, -signal.SIGKILL, 0]
    assert len(stores.calls("write")) == 4
