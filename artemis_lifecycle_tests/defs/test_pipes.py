"""Steps of the walk as jobs outside Dagster's process: what they do, find, wait for and fail with comes back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_pipes import PipesContext

from artemis_lifecycle import pipes
from artemis_lifecycle.defs.build import build_definitions
from artemis_lifecycle.defs.common import by_command
from artemis_lifecycle.embedded.jars import needed, resolve
from artemis_lifecycle.errors import Refused
from artemis_lifecycle.pipes import STEPS, _delete
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.defs.conftest import TABLE, Project, said
from artemis_lifecycle_tests.defs.test_walk import AT_ONCE, failures
from artemis_lifecycle_tests.spark.standalone import briefly, standalone

JOB = [sys.executable, "-m", "artemis_lifecycle.pipes"]


class Here:
    """What a job does, in this process and its session, which a process of its own would start anew."""

    def __init__(self, command: list[str], *, env: Mapping[str, str], **_: object) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for key in (each for each in env if each.startswith("DAGSTER_PIPES")):
                patch.setenv(key, env[key])
            patch.setattr(sys, "argv", ["pipes", *command[-2:]])
            patch.setattr(PipesContext, "_instance", None)
            self.returncode = pipes.main()

    def wait(self) -> None:
        """It is over."""


@pytest.fixture
def make(make_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Project]:
    """Make a project whose jobs of the steps `apart` are processes, and all others are done `Here`."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))

    def made(*apart: str, command: list[str] = JOB, **sections: Any) -> Project:
        def start(asked: list[str], **options: Any) -> Any:
            return (subprocess.Popen if asked[-2] in apart else Here)(asked, **options)

        monkeypatch.setattr("dagster._core.pipes.subprocess.Popen", start)
        return make_project(tables=AT_ONCE, dagster={"pipes": command}, **sections)

    return made


def test_the_walk_by_jobs_does_what_its_steps_do(make: Callable[..., Project]) -> None:
    project = make("expiration_plan", "cold_tier_snapshots", "physical_deletion")
    project.create(TABLE, commits=3)
    with project.lifecycle() as lifecycle:
        before = [each.snapshot_id for each in lifecycle.snapshot_history(TABLE).snapshots]
        first = lifecycle.read(TABLE, snapshot_id=before[0]).collect()
        planned = project.run("plan", TABLE)
        assert not failures(planned)
        shown = said(planned, "expiration_plan")
        (record,) = lifecycle.plans(TABLE)
        assert (shown["plan_id"], shown["files"], shown["outcome"]) == (record.plan_id, record.files, "done")
        archived = project.run("handoff", TABLE, dry_run=False)
        assert said(archived, "cold_tier_snapshots")["copied_files"] > 0
        dry = project.run("commit", TABLE, dry_run=True)
        assert said(dry, "expiration_commit")["outcome"] == "dry_run"
        assert len(lifecycle.snapshot_history(TABLE).snapshots) == 3
        assert not failures(project.run("commit", TABLE, dry_run=False))
        done = project.run("deletion", TABLE, dry_run=False)
        (left,) = lifecycle.snapshot_history(TABLE).snapshots
        assert left.snapshot_id == before[-1]
        assert said(done, "physical_deletion")["deleted"] == lifecycle.plans(TABLE)[0].files
        assert lifecycle.read(TABLE, snapshot_id=before[0]).collect() == first
        runs = {each.run_id for each in lifecycle.operations.steps.history(record.table_uuid)}
        assert {planned.run_id, done.run_id} <= runs


def test_what_a_job_waits_for_and_its_errors_are_the_step_s(make: Callable[..., Project]) -> None:
    project = make("cold_tier_snapshots", "expiration_plan")
    project.create(TABLE, commits=2)
    without = project.run("handoff", TABLE, dry_run=False)
    assert "The table has no plan" in str(failures(without))
    with project.lifecycle() as lifecycle:
        lifecycle.pause(TABLE, who="Ada", why="the audit")
        waits = project.run("plan", TABLE)
        assert waits.success
        shown = said(waits, "expiration_plan")
        assert (shown["outcome"], shown["waits_for"]) == ("waiting", "Paused") and "the audit" in shown["why"]
        assert lifecycle.plans(TABLE) == []


def test_a_job_that_died_is_launched_again(make: Callable[..., Project], tmp_path: Path) -> None:
    """Its step resumes, and so a second job has no second effect."""
    die = f"test -e {tmp_path}/died || {{ touch {tmp_path}/died; kill -9 $$; }}"
    once = f"{sys.executable} -m artemis_lifecycle.pipes $0 $1; {die}"
    project = make("expiration_plan", command=["sh", "-c", once])
    project.create(TABLE, commits=2)
    assert project.run("plan", TABLE).success
    assert (tmp_path / "died").exists()
    with project.lifecycle() as lifecycle:
        assert len(lifecycle.plans(TABLE)) == 1


def test_a_client_of_one_s_own_launches_the_jobs(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    asked: list[tuple[list[str], dict[str, Any]]] = []

    def launch(context: dg.AssetExecutionContext, arguments: list[str], extras: dict[str, Any]) -> Any:
        asked.append((arguments, extras))
        return by_command(JOB)(context, [], extras)  # As jobs that take no arguments.

    project.definitions = build_definitions(project.path, launch=launch)
    project.create(TABLE)
    assert project.run("observe", TABLE).success
    assert [each for each, _ in asked] == [["snapshot_history", TABLE], ["table_health", TABLE]]
    assert all(extras["step"] in STEPS and extras["config_path"] == str(project.path) for _, extras in asked)


@pytest.mark.slow
def test_spark_submit_runs_a_step_on_a_cluster(
    make: Callable[..., Project], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in briefly().items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with standalone(tmp_path, workers=1) as master:
        project = make("compacted_data_files")
        jars = ",".join(map(str, resolve(project.config.home, needed(project.config))))
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
            "spark.ui.showConsoleProgress": "false",
        }
        settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        job = str(REPOSITORY / "artemis_lifecycle" / "pipes.py")
        command = str(Path(sys.executable).with_name("spark-submit"))
        submit = [command, "--master", master, "--jars", jars, *settings, job]
        project.definitions = build_definitions(project.path, launch=by_command(submit))
        project.create(TABLE, commits=6)
        done = project.run("data_compaction", TABLE, dry_run=False)
        assert not failures(done), failures(done)
        assert said(done, "compacted_data_files")["rewritten_files"] == 6
        assert list(tmp_path.glob("work-*/app-*"))


def test_a_refused_deletion_stops_no_other_and_waits_for_a_person() -> None:
    """As in the run's own process, by the same function."""

    def delete(job_id: str, *, dry_run: bool) -> Any:
        if job_id == "held":
            raise Refused("a hold keeps them", hint="release it")
        return SimpleDeleted(job_id, 3)

    found = _delete(delete, ["one", "held", "two"], dry_run=False)
    assert (found["deleted"], found["waits_for"], found["outcome"]) == (6, "Refused", "waiting")
    assert found["next"] == "release it"
    assert "held" in found["refused"] and found["jobs"] == "one, held, two"
    with pytest.raises(Refused, match="a hold"):
        _delete(delete, ["held"], dry_run=False)


@dataclass(frozen=True)
class SimpleDeleted:
    job_id: str
    deleted: int


def test_only_an_asset_launches_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipes.main() == 2 and "artemis command" in capsys.readouterr().err
