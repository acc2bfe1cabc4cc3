"""The order of a window, on a real Postgres and a real instance: what is asked for when, and never twice."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterRun, DagsterRunStatus, RunRequest, SkipReason, build_schedule_context
from sqlalchemy import text

from artemis_lifecycle.defs import jobs, schedules
from artemis_lifecycle.defs.progress import STEP_TAG, WINDOW_TAG
from artemis_lifecycle.defs.schedules import maintenance_requests, step_requests
from artemis_lifecycle.defs.sensors import CLOCK_FIRST, late_requests
from artemis_lifecycle.scheduling.maintenance_window import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from artemis_lifecycle.lifecycle import Lifecycle
    from artemis_lifecycle_tests.defs.conftest import Project

RECORDED = {
    Step.PLAN: "plan",
    Step.HANDOFF: "handoff",
    Step.COMMIT: "commit",
    Step.DELETION: "deletion",
    Step.ORPHANS: "orphan_deletion",
}
HOURS = {Step.PLAN: 0, Step.HANDOFF: 2, Step.COMMIT: 4, Step.ORPHANS: 6}
MIDNIGHT = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
NIGHT = MIDNIGHT.date()
ONE, TWO = "artemis.one", "artemis.two"


class Fleet:
    """Two governed tables, one that no entry matches, and one that was dropped."""

    def __init__(self, project: Project, lifecycle: Lifecycle) -> None:
        self.project, self.lifecycle, self.instance = project, lifecycle, project.instance
        with lifecycle.operations.engine.begin() as connection:  # the database is the whole module's
            connection.execute(text("DELETE FROM lifecycle.steps"))

    def at(self, hour: int, minute: int = 0) -> datetime:
        return MIDNIGHT + timedelta(hours=hour, minutes=minute)

    def clock(self, step: Step, hour: int, minute: int = 0) -> set[str]:
        """Tables for which the step's schedule asks for a run at that time of the window."""
        return asked(step_requests(step, self.lifecycle, self.instance, self.at(hour, minute)))

    def late(self, hour: int, minute: int = 0) -> dict[str, str]:
        """The step that `late_steps` asks for at that time, by table."""
        found = late_requests(self.lifecycle, self.instance, self.at(hour, minute), set(Step))
        if isinstance(found, SkipReason):
            return {}
        return {str(request.partition_key): str(request.job_name) for request in found}

    def done(self, table: str, *steps: Step, state: str = "done", dry_run: bool = False) -> None:
        """Record the end of steps, as the facade does for Dagster and the terminal alike."""
        for step in steps:
            step_id = self.lifecycle.operations.steps.start(
                "uuid-of-" + table, table, RECORDED[step], NIGHT, "test", dry_run=dry_run
            )
            self.lifecycle.operations.steps.finish(step_id, state)  # type: ignore[arg-type]

    def ran(self, table: str, step: Step, status: DagsterRunStatus) -> None:
        """A run of the step, as the daemon leaves it behind."""
        tags = {WINDOW_TAG: NIGHT.isoformat(), STEP_TAG: step.value, "dagster/partition": table}
        self.instance.add_run(DagsterRun(step.value, str(uuid.uuid4()), status=status, tags=tags))


def asked(found: list[RunRequest] | SkipReason) -> set[str]:
    return set() if isinstance(found, SkipReason) else {str(request.partition_key) for request in found}


@pytest.fixture
def fleet(make_project: Callable[..., Project]) -> Iterator[Fleet]:
    project = make_project(tables={"artemis.*": {}})
    project.register(ONE, TWO, "scratch.ungoverned", "lifecycle.results")
    project.instance.add_dynamic_partitions("table", ["artemis.dropped"])
    with project.lifecycle() as lifecycle:
        yield Fleet(project, lifecycle)


def test_a_tick_asks_for_one_run_of_each_governed_table_that_is_there(fleet: Fleet) -> None:
    assert fleet.clock(Step.PLAN, 0) == {ONE, TWO}


def test_a_request_names_window_step_and_table_and_means_it(fleet: Fleet) -> None:
    fleet.done(ONE, Step.PLAN, Step.HANDOFF)
    found = step_requests(Step.COMMIT, fleet.lifecycle, fleet.instance, fleet.at(4))
    assert isinstance(found, list)
    (request,) = found
    assert request.partition_key == ONE
    assert request.job_name == "commit"
    assert request.run_key == f"{NIGHT}:{ONE}:commit"
    assert request.tags[WINDOW_TAG] == NIGHT.isoformat()
    assert request.tags[STEP_TAG] == "commit"
    assert request.run_config == {"ops": {"expiration_commit": {"config": {"dry_run": False}}}}


def test_the_schedules_evaluate_as_dagster_evaluates_them(fleet: Fleet) -> None:
    repository = fleet.project.definitions.get_repository_def()
    for definition in schedules.ALL:
        context = build_schedule_context(
            instance=fleet.instance,
            scheduled_execution_time=MIDNIGHT,
            repository_def=repository,
            resources={"lifecycle": fleet.project.resource()},
        )
        with context:
            found = definition.evaluate_tick(context)
        expected = {"nightly_plan", "weekly_manifest_compaction", "monthly_schema_record", "monthly_deep_archive"}
        if definition.name in expected:
            assert {request.partition_key for request in found.run_requests or ()} == {ONE, TWO}, definition.name
            assert {request.tags["dagster/partition"] for request in found.run_requests or ()} == {ONE, TWO}
        elif definition.name == "monthly_records":
            (request,) = found.run_requests or ()
            assert (request.partition_key, request.run_config) == (None, jobs.for_real("records"))
        else:
            assert not found.run_requests, definition.name
            assert found.skip_message


@pytest.mark.parametrize("delayed", [Step.PLAN, Step.HANDOFF, Step.COMMIT])
def test_a_step_that_runs_past_the_next_ones_hour_is_followed_late_and_in_order(fleet: Fleet, delayed: Step) -> None:
    steps = list(HOURS)
    following = steps[steps.index(delayed) + 1]
    hour = HOURS[following]
    for table in (ONE, TWO):
        fleet.done(table, *steps[: steps.index(delayed)])
    fleet.done(TWO, delayed)
    fleet.ran(ONE, delayed, DagsterRunStatus.STARTED)

    assert fleet.clock(following, hour) == {TWO}, "the clock must not pass the delayed table"
    fleet.ran(TWO, following, DagsterRunStatus.STARTED)
    assert fleet.late(hour, 30) == {}

    fleet.done(ONE, delayed)
    assert fleet.late(hour, 31) == {ONE: following.value}
    fleet.ran(ONE, following, DagsterRunStatus.NOT_STARTED)
    assert fleet.late(hour, 32) == {}, "nothing is asked for twice"


def test_the_orphan_scan_waits_for_a_deletion_that_is_due(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.done(ONE, Step.PLAN, Step.HANDOFF, Step.COMMIT)
    fleet.done(TWO, Step.PLAN, Step.HANDOFF, Step.COMMIT)
    due = [type("Due", (), {"table": ONE})()]
    monkeypatch.setattr(type(fleet.lifecycle.operations.plans), "due", lambda self, now=None: due)
    assert fleet.clock(Step.DELETION, 5) == {ONE}
    assert fleet.clock(Step.ORPHANS, 6) == {TWO}
    fleet.ran(ONE, Step.DELETION, DagsterRunStatus.STARTED)
    fleet.ran(TWO, Step.ORPHANS, DagsterRunStatus.SUCCESS)
    assert fleet.late(6, 30) == {}
    fleet.done(ONE, Step.DELETION)
    assert fleet.late(6, 31) == {ONE: "orphans"}


def test_a_deletion_stopped_half_way_goes_on_at_the_next_hour(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    due = [type("Due", (), {"table": ONE})()]
    monkeypatch.setattr(type(fleet.lifecycle.operations.plans), "due", lambda self, now=None: due)
    fleet.done(ONE, Step.PLAN, Step.HANDOFF, Step.COMMIT)
    fleet.done(ONE, Step.DELETION, state="pending")
    fleet.ran(ONE, Step.DELETION, DagsterRunStatus.SUCCESS)
    assert fleet.clock(Step.DELETION, 5) == {ONE}
    assert fleet.clock(Step.ORPHANS, 6) == set()


def test_a_dry_run_of_a_step_is_not_that_step(fleet: Fleet) -> None:
    fleet.done(ONE, Step.PLAN, dry_run=True)
    assert fleet.clock(Step.PLAN, 0, 30) == {ONE, TWO}


def test_a_step_done_from_the_terminal_counts(fleet: Fleet) -> None:
    fleet.done(ONE, Step.PLAN)
    assert fleet.clock(Step.PLAN, 0) == {TWO}
    assert fleet.late(2, 5) == {ONE: "handoff", TWO: "plan"}


def test_a_run_that_succeeded_and_left_no_record_counts(fleet: Fleet) -> None:
    fleet.ran(ONE, Step.PLAN, DagsterRunStatus.SUCCESS)
    assert fleet.late(2, 5)[ONE] == "handoff"


def test_a_failed_step_is_asked_for_again_later_under_another_key(fleet: Fleet) -> None:
    fleet.done(ONE, Step.PLAN)
    fleet.done(TWO, Step.PLAN, Step.HANDOFF)
    fleet.ran(ONE, Step.HANDOFF, DagsterRunStatus.FAILURE)
    found = late_requests(fleet.lifecycle, fleet.instance, fleet.at(3), set(Step))
    assert isinstance(found, list)
    (again,) = found
    assert again.run_key == f"{NIGHT}:{ONE}:handoff:2"


def test_a_step_cancelled_by_hand_is_left_alone_for_the_window(fleet: Fleet) -> None:
    fleet.ran(ONE, Step.PLAN, DagsterRunStatus.CANCELED)
    assert fleet.clock(Step.PLAN, 0) == {TWO}
    assert ONE not in fleet.late(7)


def test_the_clock_goes_first_and_outside_the_window_nobody_does(fleet: Fleet) -> None:
    minutes = int(CLOCK_FIRST.total_seconds() // 60)
    assert fleet.late(0, minutes - 1) == {}
    assert set(fleet.late(0, minutes)) == {ONE, TWO}
    assert fleet.late(8) == {}
    assert fleet.clock(Step.PLAN, 12) == set()


def test_a_table_without_a_cold_tier_goes_from_its_plan_to_its_commit(make_project: Callable[..., Project]) -> None:
    project = make_project(tables={"artemis.*": {"cold_tier": {"enabled": False}}})
    project.register(ONE)
    with project.lifecycle() as lifecycle:
        fleet = Fleet(project, lifecycle)
        fleet.done(ONE, Step.PLAN)
        assert fleet.clock(Step.HANDOFF, 2) == set()
        assert fleet.clock(Step.COMMIT, 4) == {ONE}


def test_a_table_with_its_own_quiet_window_is_started_in_it(make_project: Callable[..., Project]) -> None:
    window = {"from": "20:00", "to": "23:00", "timezone": "UTC"}
    project = make_project(tables={ONE: {"quiet_window": window}})
    project.register(ONE)
    with project.lifecycle() as lifecycle:
        fleet = Fleet(project, lifecycle)
        assert fleet.clock(Step.PLAN, 0) == set()
        assert fleet.late(20, 5) == {ONE: "plan"}


def test_upkeep_keeps_out_of_the_quiet_window_and_out_of_its_own_way(fleet: Fleet) -> None:
    job = jobs.data_compaction.name
    assert asked(maintenance_requests(job, fleet.lifecycle, fleet.instance, fleet.at(4), by_day=True)) == set()
    fleet.instance.add_run(
        DagsterRun(job, str(uuid.uuid4()), status=DagsterRunStatus.STARTED, tags={"dagster/partition": ONE})
    )
    found = maintenance_requests(job, fleet.lifecycle, fleet.instance, fleet.at(12), by_day=True)
    assert asked(found) == {TWO}
    assert isinstance(found, list)
    assert found[0].run_config == {"ops": {"compacted_data_files": {"config": {"dry_run": False}}}}
