"""Calls in a process that may die."""

from __future__ import annotations

import os
import signal

import pytest

from artemis_lifecycle.errors import StorageError, TooLarge
from artemis_lifecycle.storage.isolated import isolated


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
