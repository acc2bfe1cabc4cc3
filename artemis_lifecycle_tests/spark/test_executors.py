"""Executors that cannot run this project's tasks are found when the session starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from artemis_lifecycle.code_version import content_hash
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import ConfigError, EnvironmentMissing
from artemis_lifecycle.spark import executors
from artemis_lifecycle.spark.executors import ExecutorPython, from_executors
from artemis_lifecycle.spark.session import live_session, session_conf
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.spark.standalone import briefly, standalone

pytestmark = pytest.mark.slow

STARTS = """
import os, sys, time
from pathlib import Path
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.spark.executors import require_executors
from artemis_lifecycle.spark.session import live_session, open_session, session_conf

master, home, jars, *interpreters = sys.argv[1:]
for python in interpreters:
    own = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    spark = {"master": master, "python": python, "conf": own}
    config = LifecycleConfig.model_validate({"home": home, "spark": spark})
    conf = session_conf(config, {}, resolve(Path(jars)))
    began = time.monotonic()
    try:
        session = open_session(conf)
    except EnvironmentMissing as error:
        print("refused", f"{time.monotonic() - began:.0f}", error, live_session() is None)
        continue
    print("asked", [(each.executable, each.lacking) for each in require_executors(session)])
    session.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a standalone master with one worker, on loopback."""
    with standalone(tmp_path_factory.mktemp("cluster"), workers=1) as master:
        yield master


@pytest.mark.nightly
def test_executors_without_the_package_are_found_at_the_session_s_start(cluster: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    done = subprocess.run(
        [sys.executable, "-c", STARTS, cluster, tmp_path, REPOSITORY / ".artemis", bare, sys.executable],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1", **briefly()},
        capture_output=True,
        text=True,
        timeout=240,
    )
    refused, asked = done.stdout.splitlines() or [done.stderr] * 2
    assert refused.startswith("refused ") and refused.endswith(" True")
    assert int(refused.split()[1]) < 60 and f"({bare}), which lacks artemis_lifecycle, numpy" in refused
    assert "spark.python" in refused
    assert asked == f"asked [({sys.executable!r}, ())]"


def test_executors_with_other_code_are_refused_and_other_versions_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://h:7077"))
    own = f"numpy {version('numpy')}"
    for code in (content_hash(), "of yesterday", None):
        found = (ExecutorPython("h", "/opt/python", "3.11.7", (), code, (own, "pandas 1.0")),)
        monkeypatch.setattr(executors, "_ask_executors", lambda *_, found=found: found)
        if code == content_hash():
            assert executors.require_executors(session) == found
            assert [each.getMessage() for each in caplog.records] == [
                "The executor on h has pandas 1.0, which this process has not"
            ]
        else:
            with pytest.raises(EnvironmentMissing, match="other code of artemis-lifecycle"):
                executors.require_executors(session)


LATER = """
import sys
from pathlib import Path
import pyarrow as pa
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle.spark import executors, runner
from artemis_lifecycle.spark.session import open_session, session_conf

master, home, jars = sys.argv[1:]
conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
config = LifecycleConfig.model_validate({"home": home, "spark": {"master": master, "conf": conf}})
of, runner.force_executors = runner.Runner(open_session(session_conf(config, {}, resolve(Path(jars))))), True
rows = pa.table({"n": [1, 2]})
tasks = {
    "map": lambda: of.map(rows, iter, rows.schema).table(),
    "meet": lambda: of.meet([rows], "n", lambda side: side, rows.schema).table(),
    "tasks": lambda: of.tasks(abs, [1, 2]),
}
assert all(task() is not None for task in tasks.values())
executors._own_code = lambda: "0" * 64
for name, task in tasks.items():
    try:
        print(name, "ran", task())
    except EnvironmentMissing as error:
        print(name, error.what)
"""


def test_an_executor_with_other_code_that_comes_later_runs_no_task(cluster: str, tmp_path: Path) -> None:
    """None is there at the start where Spark allocates them as they are needed."""
    done = subprocess.run(
        [sys.executable, "-c", LATER, cluster, tmp_path, REPOSITORY / ".artemis"],
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **briefly(),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    said = done.stdout.splitlines()
    assert [each.split()[0] for each in said] == ["map", "meet", "tasks"], done.stderr[-2000:]
    assert all("has other code of artemis-lifecycle" in each for each in said)


def test_spark_python_is_the_interpreter_of_sessions() -> None:
    of = {"master": "spark://somewhere:7077", "python": "/opt/artemis/bin/python"}
    conf = session_conf(LifecycleConfig.model_validate({"spark": of}), {})
    assert conf["spark.pyspark.python"] == "/opt/artemis/bin/python"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("… ModuleNotFoundError: No module named 'artemis_lifecycle'\n\tat org.", "named 'artemis_lifecycle'"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in\n at", "version: 3.9"),
        (
            'Cannot run program "/opt/python" (in directory "."): error=2, No such file or directory',
            "have no /opt/python",
        ),
        ("ModuleNotFoundError: No module named 'my_udfs'", None),
    ],
)
def test_an_executor_that_comes_later_is_an_error_of_this_project(said: str, expected: str | None) -> None:
    found = from_executors(said)
    assert (found is None) if expected is None else (found is not None and expected in found.what)


@pytest.mark.parametrize("spark", [{"master": "sc://h:15002"}, {"conf": {"spark.remote": "sc://h"}}])
def test_spark_connect_is_refused_with_one_clear_line(
    spark: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "lifecycle.yaml"
    file.write_text(json.dumps({"spark": spark}))
    with pytest.raises(ConfigError, match=r"spark: master: Spark Connect has no JVM"):
        load_config(file, {})
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:15002")
    with pytest.raises(EnvironmentMissing, match="unset SPARK_REMOTE"):
        live_session()
