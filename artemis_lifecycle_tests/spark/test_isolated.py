"""Calls in a process that may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from artemis_lifecycle.errors import StorageError, TooLarge
from artemis_lifecycle.spark.isolated import end_children, isolated, spread

pytestmark = pytest.mark.seconds


def process() -> int:
    return os.getpid()


def allocated(size: int) -> int:
    return len(bytes(size))


def too_large() -> None:
    raise TooLarge("It is too large", path="s3://b/large")


@pytest.mark.parametrize("ended_by", [signal.SIGSEGV, signal.SIGKILL])
def test_a_dead_child_names_the_file_and_the_next_call_has_another(ended_by: signal.Signals) -> None:
    first = isolated(process, "s3://b/fine")
    assert first == isolated(process, "s3://b/fine") != os.getpid()
    with pytest.raises(StorageError, match=f"died.*{-ended_by}") as died:
        isolated(os.kill, "s3://b/damaged", first, ended_by)
    assert died.value.path == "s3://b/damaged"
    assert isolated(process, "s3://b/fine") not in (first, os.getpid())


def test_what_a_call_raises_reaches_the_caller() -> None:
    with pytest.raises(TooLarge) as refused:
        isolated(too_large, "s3://b/large")
    assert refused.value.path == "s3://b/large"
    with pytest.raises(TooLarge) as refused:
        spread(too_large_below, [3, 2, 1, 0], 2)
    assert refused.value.path == "s3://b/large"


def too_large_below(number: int) -> None:
    if number < 2:
        too_large()


def squared(number: int) -> tuple[int, int, int]:
    time.sleep(0.01)
    return number * number, os.getpid(), os.getppid()


def test_spread_work_keeps_its_order_and_is_forked_from_a_process_without_threads() -> None:
    for _ in range(2):
        squares, processes, parents = zip(*spread(squared, range(40), 3), strict=True)
        assert squares == tuple(number * number for number in range(40))
        assert 1 < len(set(processes)) <= 3 and len(set(parents)) == 1
        parent = psutil.Process(parents[0])
        assert parent.ppid() == os.getpid() and parent.num_threads() == 1
    end_children()
    assert not parent.is_running()
    assert len(spread(squared, range(2), 2)) == 2


def killed_above(number: int) -> int:
    if number > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_dead_process_of_spread_work_is_an_error_and_not_the_end_of_this_one() -> None:
    with pytest.raises(StorageError, match="A process that read the table's metadata died"):
        spread(killed_above, range(4), 2)
    assert spread(killed_above, [1, 0], 2) == [1, 0]


_DRIVER = """
import os, sys, threading
from artemis_lifecycle.spark.isolated import spread
from artemis_lifecycle_tests.spark.test_isolated import busy
threading.Thread(target=spread, args=(busy, [sys.argv[1]] * 2, 2), daemon=True).start()
sys.stdin.read()
"""


def busy(folder: str) -> None:
    Path(folder, f"{os.getpid()} {os.getppid()}").touch()
    time.sleep(600)


def test_processes_end_at_once_when_their_driver_is_killed(tmp_path: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", _DRIVER, tmp_path], stdin=subprocess.PIPE)
    until = time.monotonic() + 60
    while len(found := [each.name for each in tmp_path.iterdir()]) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    processes = [psutil.Process(pid) for pid in {int(pid) for name in found for pid in name.split()}]
    assert len(processes) == 3
    driver.kill()
    driver.communicate()
    assert psutil.wait_procs(processes, timeout=30)[1] == []


def test_a_call_may_allocate_no_more_than_it_is_given_and_the_next_one_more() -> None:
    for _ in range(2):
        with pytest.raises(MemoryError):
            isolated(bytes, "s3://b/bomb", 3 << 30, memory=1 << 20)
    assert isolated(len, "s3://b/fine", bytes(3 << 20), memory=1 << 20) == 3 << 20
    assert isolated(allocated, "s3://b/large", 3 << 30) == 3 << 30


def test_a_fork_does_not_share_the_child() -> None:
    first = isolated(process, "s3://b/fine")
    read, write = os.pipe()
    if (forked := os.fork()) == 0:
        os.write(write, str(isolated(process, "s3://b/fine")).encode())
        os._exit(0)
    os.waitpid(forked, 0)
    assert int(os.read(read, 100)) != first
    os.close(read)
    os.close(write)
    assert isolated(process, "s3://b/fine") == first
