"""A process is called over only when that is certain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from artemis_lifecycle.operations.leases import is_over, mark

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nothing is ever called over")

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(SLEEPER)
    yield process
    process.kill()
    process.wait()


def _changed(written: str, **parts: object) -> str:
    return json.dumps({**json.loads(written), **parts})


def test_a_living_process_is_not_over_and_a_killed_one_is(sleeper: subprocess.Popen[bytes]) -> None:
    written = mark([sleeper.pid])
    assert written is not None
    assert not is_over(written)
    sleeper.kill()
    # Before its parent has asked how it ended, and after.
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert is_over(written)
    sleeper.wait()
    assert is_over(written)


def test_a_number_that_was_given_to_another_process_is_not_taken_for_the_first(
    sleeper: subprocess.Popen[bytes],
) -> None:
    written = mark([sleeper.pid])
    assert written is not None
    ((pid, start),) = json.loads(written)["processes"]
    assert is_over(_changed(written, processes=[[pid, start - 1]]))


def test_all_processes_of_a_mark_have_to_be_over(sleeper: subprocess.Popen[bytes]) -> None:
    driver = subprocess.Popen(SLEEPER)
    written = mark([sleeper.pid, driver.pid])
    sleeper.kill()
    sleeper.wait()
    assert not is_over(written)
    driver.kill()
    driver.wait()
    assert is_over(written)


@pytest.mark.parametrize("part", range(4), ids=["host", "boot", "process namespace", "time namespace"])
def test_processes_of_another_place_are_unknown(sleeper: subprocess.Popen[bytes], part: int) -> None:
    written = mark([sleeper.pid])
    assert written is not None
    sleeper.kill()
    sleeper.wait()
    kernel = json.loads(written)["kernel"]
    kernel[part] = "another"
    assert is_over(written)
    assert not is_over(_changed(written, kernel=kernel))


def test_what_is_not_known_is_not_over(sleeper: subprocess.Popen[bytes]) -> None:
    assert not is_over(None)
    sleeper.kill()
    sleeper.wait()
    assert mark([sleeper.pid]) is None
    assert mark([]) is None


def test_a_leader_that_ended_before_its_threads_is_not_over() -> None:
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('up', flush=True)\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"  # exit(2), of this thread alone
    )
    if os.uname().machine != "x86_64":
        pytest.skip("the number of the system call is another")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        written = mark([process.pid])
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        for _ in range(200):
            if " Z " in Path(f"/proc/{process.pid}/stat").read_text():
                break
            time.sleep(0.01)
        else:
            pytest.fail("the leader did not end")
        assert not is_over(written)
    finally:
        process.kill()
        process.communicate()
    assert is_over(written)
