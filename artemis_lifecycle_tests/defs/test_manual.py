"""What a person launches from the UI, on a real table and a real instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dagster import DagsterInvalidConfigError, ExecuteInProcessResult

from artemis_lifecycle_tests.defs.conftest import TABLE, Project, said

POLICY = {TABLE: {"retention": {"window": "1ms"}, "deletion": {"grace": "0ms", "max_files": 1}}}
WHO = {"who": "Ada", "why": "case 8"}


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    project = make_project(tables=POLICY)
    project.create(TABLE, commits=3)
    return project


def launch(project: Project, name: str, **config: Any) -> ExecuteInProcessResult:
    return project.definitions.resolve_job_def(name).execute_in_process(
        instance=project.instance, run_config={"ops": {f"{name}_step": {"config": config}}}, raise_on_error=False
    )


def failure(result: ExecuteInProcessResult) -> str:
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    data = failed.step_failure_data.user_failure_data
    assert data is not None
    return data.description or ""


def test_a_table_is_paused_held_planned_closed_and_explained_from_the_ui(project: Project) -> None:
    with project.lifecycle() as lifecycle:
        assert launch(project, "pause", table=TABLE, **WHO).success
        assert [(each.table, each.who) for each in lifecycle.pauses()] == [(TABLE, "Ada")]
        assert launch(project, "resume", table=TABLE, **WHO).success
        assert lifecycle.pauses() == []

        history = lifecycle.snapshot_history(TABLE)
        first = history.snapshots[0].snapshot_id
        assert launch(project, "hold", table=TABLE, owner="legal", reason="case 8", snapshot_ids=[str(first)]).success
        (held,) = lifecycle.holds(TABLE)
        assert held.snapshot_ids == (first,)
        assert launch(project, "release", hold=held.hold_id, **WHO).success
        assert lifecycle.holds(TABLE) == []

        plan = project.run("plan", TABLE)
        plan_id = said(plan, "expiration_plan")["plan_id"]
        assert launch(project, "approve", plan=plan_id, what="large", **WHO).success
        assert lifecycle.plans(TABLE)[0].approved_by == "Ada"
        path = lifecycle.plan(plan_id).files().first()["path"]
        explained = launch(project, "explain", table=TABLE, path=path)
        assert explained.success
        assert launch(project, "close", plan=plan_id, **WHO).success
        assert lifecycle.plans(TABLE)[0].status == "closed"


def test_bad_input_is_refused_before_anything_is_touched(project: Project) -> None:
    assert "The table is missing" in failure(launch(project, "pause", **WHO))
    assert "exclude each other" in failure(launch(project, "pause", table=TABLE, all_tables=True, **WHO))
    assert "no time zone" in failure(launch(project, "hold", table=TABLE, owner="a", reason="b", until="2027-01-31"))
    assert "not a snapshot id" in failure(
        launch(project, "restore", table=TABLE, snapshot_id="latest", branch="back", **WHO)
    )
    assert "no plan" in failure(launch(project, "close", plan="nobody-made-this", **WHO)).lower()
    with pytest.raises(DagsterInvalidConfigError):
        launch(project, "close", plan="p")
    with project.lifecycle() as lifecycle:
        assert (lifecycle.pauses(), lifecycle.holds(TABLE)) == ([], [])


def test_a_plan_from_the_launchpad_keeps_to_what_it_is_given(project: Project) -> None:
    def planned(**config: Any) -> ExecuteInProcessResult:
        return project.definitions.resolve_job_def("plan").execute_in_process(
            instance=project.instance,
            partition_key=TABLE,
            run_config={"ops": {"expiration_plan": {"config": config}}},
            raise_on_error=False,
        )

    def expired(**config: Any) -> int:
        return int(said(planned(**config), "expiration_plan")["snapshots_expired"])

    assert expired(retain_last=3) == 0
    assert expired(older_than="2001-01-01T00:00:00Z") == 0
    with project.lifecycle() as lifecycle:
        first = lifecycle.snapshot_history(TABLE).snapshots[0].snapshot_id
    assert "inside the window" in failure(planned(older_than="2001-01-01T00:00:00Z", snapshot_ids=[str(first)]))
    assert expired(retain_last=3, snapshot_ids=[str(first)]) == 1
    assert "no time zone" in failure(planned(older_than="2001-01-01"))
    assert expired() == 2


def test_an_incident_report_is_stored_and_shown_from_the_ui(project: Project) -> None:
    with project.lifecycle() as lifecycle:
        first = lifecycle.snapshot_history(TABLE).snapshots[0].snapshot_id
        result = launch(project, "incident", table=TABLE, snapshot_id=str(first))
        (output,) = (event for event in result.all_events if event.is_successful_output)
        shown = {key: value.value for key, value in output.step_output_data.metadata.items()}
        assert f"# Snapshot {first} of" in shown["report"]
        page = lifecycle.live_stores.read(shown["html"]).decode()
        assert "<svg" in page and str(first) in page
    assert "not a snapshot id" in failure(launch(project, "incident", table=TABLE, snapshot_id="x"))
