"""The session that a worker keeps, in a process of its own: it ends JVMs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from artemis_lifecycle.catalogs.settings import lifecycle_conf
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.defs.conftest import written

if TYPE_CHECKING:
    from pathlib import Path

    from artemis_lifecycle_tests.conftest import MakeConfig

PROGRAM = """
import os, signal, sys
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.defs.resources import session_settings
from artemis_lifecycle.spark.session import KeptSession
from artemis_lifecycle.spark.session import driver_pid

conf = session_settings(load_config(sys.argv[1]))
kept = KeptSession()
first = kept.open(conf)
assert kept.open(conf) is first and first.range(3).count() == 3
jvm = driver_pid()

# Settings that changed take effect: a catalog that is loaded keeps its own.
other = kept.open({**conf, sys.argv[2]: "nowhere"})
assert other is not first and other.conf.get(sys.argv[2]) == "nowhere"

# A JVM that was killed is replaced.
os.kill(driver_pid(), signal.SIGKILL)
import pyspark
pyspark.SparkContext._gateway.proc.wait()
again = kept.open(conf)
assert driver_pid() != jvm and again.range(3).count() == 3
print("done")
"""


@pytest.mark.nightly
def test_it_is_kept_until_its_settings_change_or_its_jvm_ends(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config()
    (name, *_) = (key for key in lifecycle_conf(config) if key.endswith(".warehouse"))
    program = [sys.executable, "-c", PROGRAM, str(written(config, tmp_path)), name]
    environment = {"ARTEMIS_JARS": str(REPOSITORY / ".artemis" / "jars"), **os.environ}
    ended = subprocess.run(
        program, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.stdout.strip().endswith("done"), ended.stderr[-4000:]
