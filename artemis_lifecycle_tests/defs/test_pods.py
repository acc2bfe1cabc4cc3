"""A pod with the code server and its run ends by SIGTERM or SIGKILL in a commit or a deletion. Another pod, to which
its host name and process numbers mean nothing, finds that the run is dead, and resumes its step.

A pod is a process with namespaces of its own: when its first process ends, the kernel ends all others, as in a
container. What is left out is Kubernetes itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from dagster import DagsterRun, DagsterRunStatus
from dagster._core.test_utils import create_run_for_test
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import GrpcServerTarget

from artemis_lifecycle.defs.jobs import for_real
from artemis_lifecycle.defs.processes import PROCESS_TAG, end_runs_without_process
from artemis_lifecycle.defs.sensors import end_stuck_runs
from artemis_lifecycle.defs.tags import OUTCOME_TAG, PARTITION_TAG
from artemis_lifecycle.operations.leases import is_over
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.defs.conftest import TABLE, Project
from artemis_lifecycle_tests.policies import WITHOUT_COLD

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated"),
]

POD = ["unshare", "--user", "--map-root-user", "--pid", "--mount-proc", "--uts", "--fork", "--kill-child"]
ASSET = {"commit": "expiration_commit", "deletion": "physical_deletion"}
POINT = {"commit": "catalog.commit:after", "deletion": "deletion.delete_files:after"}
GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL; Kubernetes has 30."""


def until(ready: Callable[[], object], log: Path, within: float = 500) -> None:
    end = time.monotonic() + within
    while not ready():
        if time.monotonic() > end:
            pytest.fail(f"it did not happen:\n{log.read_text()[-6000:]}")
        time.sleep(0.2)


@contextmanager
def pod(project: Project, folder: Path, step: str) -> Iterator[tuple[psutil.Process, int]]:
    """Start a code server in a pod whose runs stand still in `step`. Returns its first process and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = f"exec {sys.executable} -m dagster api grpc -h 127.0.0.1 -p {port} -m artemis_lifecycle_tests.defs.halting"
    environment = {
        **os.environ,
        "ARTEMIS_CONFIG": str(project.path),
        "ARTEMIS_JARS": str(REPOSITORY / ".artemis" / "jars"),
        "ARTEMIS_TEST_HALTS_AT": POINT[step],
        "ARTEMIS_TEST_NOTE": str(folder / "note"),
        "PYTHONPATH": str(REPOSITORY),
    }
    with (folder / "pod.log").open("wb") as log:
        started = subprocess.Popen(
            [*POD, "sh", "-c", f"hostname artemis-0 && {server}"],
            env=environment,
            cwd=REPOSITORY,
            stdout=log,
            stderr=log,
        )
        try:
            until(lambda: listens(port), folder / "pod.log")
            (first,) = psutil.Process(started.pid).children()
            yield first, port
        finally:
            started.kill()
            started.wait()


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def launched(project: Project, port: int, job: str) -> DagsterRun:
    """Let the code server start a run of the job for the table, as the daemon does it."""
    target = GrpcServerTarget(host="127.0.0.1", port=port, socket=None, location_name="artemis")
    with WorkspaceProcessContext(project.instance, target) as process:
        request = process.create_request_context()
        (location,) = request.code_locations
        found = location.get_repository("__repository__").get_full_job(job)
        run: DagsterRun = create_run_for_test(
            project.instance,
            job_name=job,
            run_config=for_real(job),
            tags={PARTITION_TAG: TABLE},
            remote_job_origin=found.get_remote_origin(),
            job_code_origin=found.get_python_origin(),
        )
        project.instance.launch_run(run.run_id, request)
    return run


def ended(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def rows_of_each_snapshot(project: Project) -> dict[int, int]:
    """The rows of each snapshot of the live table, read from its files."""
    name = f"{project.config.catalogs.live.name}.{TABLE}"
    with project.lifecycle() as lifecycle:
        ids = [each.snapshot_id for each in lifecycle.snapshot_history(TABLE).snapshots]
    return {each: len(project.spark.sql(f"SELECT id FROM {name} VERSION AS OF {each}").collect()) for each in ids}


def outcome(result: Any, step: str) -> str:
    (materialization,) = result.asset_materializations_for_node(ASSET[step])
    return str((materialization.tags or {})[OUTCOME_TAG])


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    if subprocess.run([*POD, "hostname", "pod"], capture_output=True).returncode != 0:
        pytest.skip("namespaces are forbidden here")
    project = make_project(tables={"artemis.*": WITHOUT_COLD})
    project.create(TABLE, commits=4)
    assert project.run("plan", TABLE).success
    return project


@pytest.mark.parametrize("step", ["commit", pytest.param("deletion", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("sent", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_what_a_dead_pod_left_is_resumed_from_another(
    project: Project, tmp_path: Path, step: str, sent: signal.Signals
) -> None:
    if step == "deletion":
        assert outcome(project.run("commit", TABLE, dry_run=False), "commit") == "done"
    before = rows_of_each_snapshot(project)
    with pod(project, tmp_path, step) as (first, port):
        run = launched(project, port, step)
        until((tmp_path / "note").exists, tmp_path / "pod.log")
        first.send_signal(sent)
        with suppress(psutil.TimeoutExpired):
            first.wait(GRACE)
        if not ended(first):
            first.kill()
        until(lambda: ended(first), tmp_path / "pod.log")
    instance = project.instance
    with project.lifecycle() as lifecycle:
        leases = lifecycle.operations.leases
        # What the pod wrote of its processes says nothing here, although all of them are gone.
        (lease,) = leases.live()
        assert lease.process is not None and json.loads(lease.process)["kernel"][0] == "artemis-0"
        assert not is_over(lease.process) and end_runs_without_process(instance) == []
        dead = instance.get_run_by_id(run.run_id)
        assert dead is not None and PROCESS_TAG in dead.tags and dead.status is DagsterRunStatus.STARTED
        # So the next run waits for as long as a lease lasts that nobody renews.
        assert outcome(project.run(step, TABLE, dry_run=False), step) == "waiting"
        assert leases.lapse([run.run_id]) == 1
        lapsed = leases.lapsed_runs()
        assert end_stuck_runs(instance, lapsed, ()) == ([], [run.run_id])
        assert end_stuck_runs(instance, lapsed, [run.run_id]) == ([run.run_id], [])
        failed = instance.get_run_by_id(run.run_id)
        assert failed is not None and failed.status is DagsterRunStatus.FAILURE
        for following in ("commit", "deletion") if step == "commit" else ("deletion",):
            assert outcome(project.run(following, TABLE, dry_run=False), following) == "done"
        (plan,) = lifecycle.plans(TABLE)
        assert plan.status is PlanStatus.DONE
        assert len(lifecycle.snapshot_history(TABLE).snapshots) == 1
    after = rows_of_each_snapshot(project)
    assert after == {each: before[each] for each in after} and sum(after.values()) == 4
