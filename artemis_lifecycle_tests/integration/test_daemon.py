"""Dagster's own daemon, with warm workers: a backfill over all partitions, and a night with a worker that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from dagster import AssetKey, AssetRecordsFilter, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from artemis_lifecycle.defs.processes import PROCESS_TAG
from artemis_lifecycle.defs.tags import OUTCOME_TAG, PARTITION_TAG, WINDOW_TAG
from artemis_lifecycle.operations.fleet import last_done
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.defs.conftest import Project, with_tables, written
from artemis_lifecycle_tests.integration.test_browser import POLICY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from artemis_lifecycle.config.models import LifecycleConfig

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")

GOVERNED = ["artemis.first", "artemis.second", "artemis.third"]
BROKEN, UNGOVERNED = "artemis.broken", "scratch.own"
WALK = ["snapshot_history", "reachable_set", "expiration_plan", "cold_tier_snapshots", "expiration_commit"]
WALK += ["physical_deletion", "object_listing", "orphan_scan", "orphan_deletion"]
ENDED = (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
BACKFILL = """
mutation ($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
START = """
mutation ($selector: SensorSelector!) {
  startSensor(sensorSelector: $selector) {
    __typename
    ... on PythonError { message }
  }
}
"""


@pytest.fixture(scope="module")
def home(postgres_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A $DAGSTER_HOME with the repository's own dagster.yaml and warm workers, as `make ui WORKERS=1` sets it up."""
    folder = tmp_path_factory.mktemp("dagster")
    for name in ("runs", "control", "taken", "results"):
        (folder / "workers" / name).mkdir(parents=True)
    warm = (REPOSITORY / "deploy" / "warm-workers.yaml").read_text().replace("@HOME@", str(folder))
    own = (REPOSITORY / "dagster.yaml").read_text()
    assert own.count("poll_interval_seconds: 60") == 1
    # A worker that is gone is noticed sooner.
    (folder / "dagster.yaml").write_text(own.replace("poll_interval_seconds: 60", "poll_interval_seconds: 5") + warm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(folder))
        patch.setenv("ARTEMIS_DAGSTER_POSTGRES", postgres_uri)
        yield folder


@pytest.fixture(scope="module")
def project(home: Path, module_config: LifecycleConfig, spark: SparkSession) -> Iterator[Project]:
    now = datetime.now(UTC)
    window = {"from": f"{now - timedelta(hours=20):%H:%M}", "to": f"{now + timedelta(hours=3):%H:%M}"}
    policy = POLICY["artemis.*"] | {"quiet_window": {**window, "runs": "one_per_table"}}
    config = with_tables(module_config, {"artemis.*": policy})
    path = written(config, home)
    with DagsterInstance.get() as instance:
        project = Project(config, path, instance, spark)
        project.create(*GOVERNED, BROKEN, UNGOVERNED, commits=2)
        with project.lifecycle() as lifecycle:
            # What is known of a table stands for it while it cannot be read. Without it, the others' orphans wait.
            lifecycle.scan_orphans(GOVERNED[0])
            current = lifecycle.snapshot_history(BROKEN).metadata_location
        Path(current.removeprefix("file:").replace("///", "/")).write_bytes(b"{")
        yield project


@pytest.fixture(scope="module")
def workers(project: Project, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon and one warm worker. Returns the worker's parent process."""
    environment = {**os.environ, "ARTEMIS_CONFIG": str(project.path), "PYTHONPATH": str(REPOSITORY)}
    bin_folder = Path(sys.executable).parent
    commands = [
        [sys.executable, "-m", "artemis_lifecycle.cli", "workers", "--count", "1"],
        [str(bin_folder / "dagster-daemon"), "run", "--workspace", str(REPOSITORY / "workspace.yaml")],
    ]
    with (home / "processes.log").open("wb") as log:
        started = [
            subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=subprocess.STDOUT)
            for command in commands
        ]
        try:
            yield started[0]
        finally:
            for each in reversed(started):
                each.terminate()
            for each in reversed(started):
                try:
                    each.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    each.kill()


def _until(ready: Callable[[], bool], home: Path, within: float = 250) -> None:
    end = time.monotonic() + within
    while not ready():
        if time.monotonic() > end:
            pytest.fail(f"it did not happen:\n{(home / 'processes.log').read_text()[-6000:]}")
        time.sleep(1)


def _mutate(home: Path, project: Project, text: str, variables: dict[str, Any]) -> dict[str, Any]:
    """Send what the UI sends."""
    answer = subprocess.run(
        [
            str(Path(sys.executable).with_name("dagster-graphql")),
            *("--workspace", str(REPOSITORY / "workspace.yaml")),
            *("--text", text, "--variables", json.dumps(variables)),
        ],
        cwd=home,
        env={**os.environ, "ARTEMIS_CONFIG": str(project.path), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    # The log of the code server is on the same stream.
    answered, _ = json.JSONDecoder().raw_decode(answer.stdout[answer.stdout.index("{") :])
    (found,) = answered["data"].values()
    return dict(found)


def _backfill(home: Path, project: Project, tables: list[str], assets: list[str]) -> str:
    params = {"assetSelection": [{"path": [asset]} for asset in assets], "partitionNames": tables}
    found = _mutate(home, project, BACKFILL, {"params": params})
    assert found["__typename"] == "LaunchBackfillSuccess", found
    return str(found["backfillId"])


def _jvms() -> set[int]:
    """The JVMs of processes that this one started; its own session's is not among them."""

    def java(processes: Iterable[psutil.Process]) -> set[int]:
        found = set()
        for process in processes:
            with suppress(psutil.Error):
                if process.name() == "java":
                    found.add(process.pid)
        return found

    this = psutil.Process()
    return java(this.children(recursive=True)) - java(this.children())


def _runs(instance: DagsterInstance, backfill: str) -> list[DagsterRun]:
    return list(instance.get_runs(RunsFilter.for_backfill(backfill)))


def _failures(instance: DagsterInstance, runs: Iterable[DagsterRun]) -> str:
    logs = [entry for run in runs for entry in instance.all_logs(run.run_id)]
    said = [str(entry.dagster_event) for entry in logs if entry.dagster_event and entry.dagster_event.is_failure]
    return "\n".join(each[:1500] for each in said)


def _ended(instance: DagsterInstance, backfill: str, tables: int) -> bool:
    runs = _runs(instance, backfill)
    return len(runs) >= tables and all(run.status in ENDED for run in runs)


def test_a_night_ends_right_although_a_worker_is_killed(
    project: Project, home: Path, workers: subprocess.Popen[bytes], spark: SparkSession
) -> None:
    """The sensor `maintenance_window` starts the walks, on real tables. The killed worker is replaced, and its run
    starts again."""
    instance = project.instance
    with project.lifecycle() as lifecycle:
        expired = {table: lifecycle.snapshot_history(table).snapshots[0].snapshot_id for table in GOVERNED}
    selector = {"repositoryName": "__repository__", "repositoryLocationName": "artemis_lifecycle.definitions"}
    started = _mutate(home, project, START, {"selector": {**selector, "sensorName": "maintenance_window"}})
    assert started["__typename"] == "Sensor", started

    def runs() -> list[DagsterRun]:
        return [run for run in instance.get_runs() if WINDOW_TAG in run.tags]

    def signed() -> list[DagsterRun]:
        alive = [run for run in runs() if run.status not in ENDED and run.tags[PARTITION_TAG] in GOVERNED]
        return [run for run in alive if PROCESS_TAG in run.tags]

    seen: list[DagsterRun] = []
    _until(lambda: bool(seen.extend(signed()) or seen), home)
    killed = seen[0]
    ((process, _),) = json.loads(killed.tags[PROCESS_TAG])["processes"]
    os.kill(process, signal.SIGKILL)
    steps = {"plan", "handoff", "commit", "deletion", "orphan_deletion"}
    with project.lifecycle() as lifecycle:
        engine = lifecycle.operations.engine
        _until(lambda: all(steps <= last_done(engine)[table].keys() for table in GOVERNED), home)
        _until(lambda: all(run.status in ENDED for run in runs()), home)
        by_table = {table: [run.status for run in runs() if run.tags[PARTITION_TAG] == table] for table in GOVERNED}
        assert all(DagsterRunStatus.SUCCESS in statuses for statuses in by_table.values()), by_table
        assert DagsterRunStatus.SUCCESS not in {run.status for run in runs() if run.tags[PARTITION_TAG] == BROKEN}
        assert not [run for run in runs() if run.tags[PARTITION_TAG] == UNGOVERNED]
        retried = [run for run in runs() if run.tags[PARTITION_TAG] == killed.tags[PARTITION_TAG]]
        assert {run.tags[PROCESS_TAG] for run in retried} > {killed.tags[PROCESS_TAG]}
        for table in GOVERNED:
            (plan,) = (plan for plan in lifecycle.plans(table) if plan.status is PlanStatus.DONE)
            assert len(lifecycle.snapshot_history(table).snapshots) == 1
            history = lifecycle.operations.steps.history(plan.table_uuid)
            did = Counter(each.step for each in history if each.state == "done" and not each.dry_run)
            # The killed one may have ended its plan, which the next run finds.
            planned = 2 if table == killed.tags[PARTITION_TAG] else 1
            assert 1 <= did["plan"] <= planned
            others = {step: did[step] for step in {"plan"} | did.keys() - steps}
            assert did == dict.fromkeys(steps, 1) | others
            rows = lifecycle.read(table, snapshot_id=expired[table]).count()
            assert (rows, spark.table(f"{lifecycle.config.catalogs.live.name}.{table}").count()) == (1, 2)


def test_a_backfill_over_all_partitions_is_dry_and_one_broken_table_stops_no_other(
    project: Project, home: Path, workers: subprocess.Popen[bytes]
) -> None:
    every = [*GOVERNED, BROKEN, UNGOVERNED]
    for table in GOVERNED:
        project.append(table, 7)
    with project.lifecycle() as lifecycle:
        before = {table: len(lifecycle.snapshot_history(table).snapshots) for table in GOVERNED}
    backfill = _backfill(home, project, every, WALK)
    most = 0

    def ended() -> bool:
        nonlocal most
        most = max(most, len(_jvms()))
        return _ended(project.instance, backfill, len(every))

    _until(ended, home)
    runs = {run.tags[PARTITION_TAG]: run for run in _runs(project.instance, backfill)}
    failed = {table for table, run in runs.items() if run.status is not DagsterRunStatus.SUCCESS}
    assert failed == {BROKEN}, _failures(project.instance, runs.values())
    # One worker took all runs, in one JVM; neither the daemon nor its code server started another.
    assert len({run.tags[PROCESS_TAG] for run in runs.values()}) == most == 1
    with project.lifecycle() as lifecycle:
        assert {table: len(lifecycle.snapshot_history(table).snapshots) for table in GOVERNED} == before
    outcomes = {}
    for table in (*GOVERNED, UNGOVERNED):
        records = project.instance.fetch_materializations(
            AssetRecordsFilter(AssetKey("expiration_commit"), asset_partitions=[table]), limit=1
        ).records
        materialization = records[0].asset_materialization
        assert materialization is not None
        outcomes[table] = (materialization.tags or {})[OUTCOME_TAG]
    assert outcomes == {**dict.fromkeys(GOVERNED, "dry_run"), UNGOVERNED: "not_governed"}
