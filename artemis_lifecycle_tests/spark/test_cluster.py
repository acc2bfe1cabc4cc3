"""On a standalone cluster of two workers, every step ends as it does in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.spark.standalone import briefly, standalone

pytestmark = [pytest.mark.jvm, pytest.mark.slow]


def _run(*arguments: str, **given: Any) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1", **briefly()},
        capture_output=True,
        text=True,
        timeout=1500,
        **given,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _walk(master: str, folder: Path, postgres_uri: str, spark: dict[str, Any], *arguments: str) -> Any:
    tiers = {
        tier: {"name": f"cluster_{tier}", "uri": postgres_uri, "warehouse": f"file://{folder}/{tier}"}
        for tier in ("live", "cold")
    }
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        # Else the counts of tasks are written ten times a second, whatever happened since.
        "spark.ui.liveUpdate.period": "0",
    }
    config = {
        "catalogs": tiers,
        "operations": {"uri": postgres_uri, "root": f"file://{folder}/state"},
        "defaults": AT_ONCE,
        "spark": {"master": master, "python": spark["python"], "conf": conf | spark["conf"]},
        "home": str(REPOSITORY / ".artemis"),
    }
    said = _run("artemis_lifecycle_tests.spark.cluster_walk", *arguments, input=json.dumps(config))
    return json.loads(said.splitlines()[-1])


@pytest.mark.timeout(1800)
def test_two_workers_with_a_packed_environment_end_as_one_process_does(postgres_uri: str, tmp_path: Path) -> None:
    said = _run("artemis_lifecycle.cli", "pack-environment", str(tmp_path / "environment.tar.gz"))
    spark = yaml.safe_load(said.partition("\n")[2])["spark"]
    with standalone(tmp_path, workers=2) as master:
        found = _walk(master, tmp_path, postgres_uri, spark)
    assert found["on_executors"] == found["in_process"]
    results = found["on_executors"]
    assert len(results["orphans"]) == 40 and min(results["handoff"][0], results["compaction"][0]) > 0
    assert results["restore"][1] == results["rows"][0] and results["deletion of orphans"] == [40, 0, 0]
    tasks = {step: sum(each.values()) for step, each in found["tasks"].items()}
    assert {after for before, after in pairwise(tasks) if tasks[after] == tasks[before]} <= {"commit", "restore"}
    first, last = found["tasks"][""], found["tasks"]["restore"]
    assert len(last) == 2 and all(last[executor] > first.get(executor, 0) for executor in last)
    folders = [each.split() for each in found["workers"]]
    assert {Path(folder).relative_to(tmp_path).parts[0] for folder, _ in folders} == {"work-0", "work-1"}
    # The workers have no packages of their own.
    assert [package for folder, package in folders if not package.startswith(f"{folder}/environment/lib/")] == []


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_an_executor_that_is_killed_in_each_step_changes_nothing(postgres_uri: str, tmp_path: Path) -> None:
    spark = {"python": sys.executable, "conf": {"spark.executorEnv.PYTHONPATH": str(REPOSITORY)}}
    with standalone(tmp_path, workers=2) as master:
        found = _walk(master, tmp_path, postgres_uri, spark, str(tmp_path))
    assert found["on_executors"] == found["in_process"]
    assert len(found["killed"]) == 9
    idle = {step for step, how in found["killed"].items() if how == "idle"}
    assert idle <= {"commit", "restore"}
