"""On a standalone cluster of two workers, every step ends as it does in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.spark.standalone import briefly, standalone

pytestmark = [pytest.mark.jvm, pytest.mark.slow]


def test_two_workers_end_as_one_process_does(postgres_uri: str, tmp_path: Path) -> None:
    tiers = {
        tier: {"name": f"cluster_{tier}", "uri": postgres_uri, "warehouse": f"file://{tmp_path}/{tier}"}
        for tier in ("live", "cold")
    }
    with standalone(tmp_path, workers=2) as master:
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
            "spark.sql.shuffle.partitions": "2",
            # Else the counts of tasks are written ten times a second, whatever happened since.
            "spark.ui.liveUpdate.period": "0",
        }
        config = {
            "catalogs": tiers,
            "operations": {"uri": postgres_uri, "root": f"file://{tmp_path}/state"},
            "defaults": AT_ONCE,
            "spark": {"master": master, "python": sys.executable, "conf": conf},
            "home": str(REPOSITORY / ".artemis"),
        }
        done = subprocess.run(
            [sys.executable, "-m", "artemis_lifecycle_tests.spark.cluster_walk"],
            input=json.dumps(config),
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1", **briefly()},
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["on_executors"] == said["in_process"]
    assert len(said["on_executors"]["orphans"]) == 40 and said["on_executors"]["handoff"][0] > 0
    for before, after in pairwise(said["tasks"].values()):
        assert sum(after.values()) > sum(before.values())
    first, last = said["tasks"][""], said["tasks"]["orphans"]
    assert len(last) == 2 and all(last[executor] > first.get(executor, 0) for executor in last)
    folders = {each.split()[0] for each in said["workers"]}
    assert {Path(folder).relative_to(tmp_path).parts[0] for folder in folders} == {"work-0", "work-1"}
    assert {each.split()[1] for each in said["workers"]} == {str(REPOSITORY / "artemis_lifecycle")}
