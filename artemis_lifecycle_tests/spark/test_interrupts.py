"""A signal leaves no secret behind, and says what it interrupted, what is safe, and what to run next."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.seconds
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_spark_starts_leaves_no_secret_and_says_what_to_run(
    sent: signal.Signals, status: int, postgres_uri: str, tmp_path: Path
) -> None:
    temporary, file = tmp_path / "tmp", tmp_path / "lifecycle.yaml"
    temporary.mkdir()
    tiers = {each: {"uri": postgres_uri, "warehouse": str(tmp_path / each)} for each in ("live", "cold")}
    operations = {"uri": postgres_uri, "root": str(tmp_path / "state")}
    home = {"home": str(REPOSITORY / ".artemis"), "spark": {"master": "local[1]"}}
    file.write_text(yaml.safe_dump({"catalogs": tiers, "operations": operations, **home}))
    process = subprocess.Popen(
        [sys.executable, "-m", "artemis_lifecycle.cli", "query", "SELECT 1", "--json", "-c", str(file)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not list(temporary.glob("artemis-spark-*/private.properties")):
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.02)
    process.send_signal(sent)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert not list(temporary.glob("artemis-spark-*"))
    said = json.loads(output)
    assert said["error"] == "Interrupted"
    assert all(word in said["message"] for word in ("Under way: ", "Safe: ", "Next: run the same command again"))
    assert "Traceback" not in errors


def test_a_program_that_gets_sigterm_while_its_session_starts_still_ends_by_it(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, time\n"
        "from artemis_lifecycle.spark.session import interruptible\n"
        "from artemis_lifecycle.spark.session import _private_properties\n"
        "with interruptible(then_end=True), _private_properties({'password': 'topsecret'}):\n"
        "    os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=60)
    assert done.returncode == -signal.SIGTERM and not list(tmp_path.iterdir())


def test_a_signal_that_python_drops_in_the_hooks_of_a_fork_is_not_lost(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, time\n"
        "from artemis_lifecycle.spark.session import Terminated, interruptible\n"
        "class Dropping:\n"
        "    def __del__(self): os.kill(os.getpid(), signal.SIGTERM); time.sleep(0)\n"
        "try:\n"
        "    with interruptible():\n"
        "        Dropping(); time.sleep(30)\n"
        "except Terminated: sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 7
