"""The order of a window, on a real Postgres and a real instance: what is asked for when, and never twice."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
from dagster import DagsterRun, DagsterRunStatus, RunRequest, SkipReason, build_schedule_context
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.policies import QuietWindow, Weekday, window_of
from artemis_lifecycle.defs import jobs, schedules, sensors
from artemis_lifecycle.defs.schedules import maintenance_requests
from artemis_lifecycle.defs.sensors import step_requests
from artemis_lifecycle.defs.tags import DRIVER_TAG, STEP_TAG, WINDOW_TAG
from artemis_lifecycle.operations.fleet import HealthRecord
from artemis_lifecycle.operations.known_tables import Seen
from artemis_lifecycle.operations.plans import PlanRecord, PlanStatus
from artemis_lifecycle.scheduling.maintenance_window import MAX_FAILURES, Step
from artemis_lifecycle_tests.scheduling.test_compaction import HEALTHY

if TYPE_CHECKING:
    from collections.abc import Callable

    from artemis_lifecycle_tests.defs.conftest import Project

MIDNIGHT = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
DAY = MIDNIGHT.date()
ONE, TWO = "artemis.one", "artemis.two"


class Fleet:
    """Two governed tables, one that no entry matches, and one that was dropped."""

    def __init__(self, project: Project, lifecycle: Lifecycle) -> None:
        self.project, self.lifecycle, self.instance = project, lifecycle, project.instance
        with lifecycle.operations.engine.begin() as connection:  # the database is the whole module's
            connection.execute(text("DELETE FROM lifecycle.steps"))
            connection.execute(text("DELETE FROM lifecycle.plans"))
            connection.execute(text("DELETE FROM lifecycle.health"))

    def at(self, hour: int, minute: int = 0) -> datetime:
        return MIDNIGHT + timedelta(hours=hour, minutes=minute)

    def due(self, hour: int, minute: int = 0) -> dict[str, str]:
        """The step that is asked for at that time of the window, by table."""
        found = step_requests(self.lifecycle, self.instance, self.at(hour, minute))
        if isinstance(found, SkipReason):
            return {}
        return {str(request.partition_key): str(request.job_name) for request in found}

    def done(self, table: str, *steps: str, state: str = "done", dry_run: bool = False) -> None:
        """Record the end of steps, as the facade does for Dagster and the terminal alike."""
        for step in steps:
            step_id = self.lifecycle.operations.steps.start(
                "uuid-of-" + table, table, step, DAY, "test", dry_run=dry_run
            )
            self.lifecycle.operations.steps.finish(step_id, state)  # type: ignore[arg-type]

    def planned(self, table: str, snapshots: int = 2) -> PlanRecord:
        """A sealed plan of the table, made in this window by whomever."""
        plan_id = uuid.uuid4().hex
        self.done(table, "plan")
        return self.lifecycle.operations.plans.seal(
            PlanRecord(
                plan_id=plan_id,
                content_id=plan_id,
                table_uuid="uuid-of-" + table,
                table=table,
                status=PlanStatus.OPEN,
                base_metadata_location="file:/w/1.metadata.json",
                files_location=f"file:/w/plans/{plan_id}/files",
                rule="as-of",
                expired_snapshots=snapshots,
                expired_refs=(),
                files=1,
                bytes=1,
                summary="{}",
                planned_at=MIDNIGHT,
            )
        )

    def marked(self, plan: PlanRecord, status: PlanStatus) -> None:
        self.lifecycle.operations.plans.mark(plan.plan_id, {PlanStatus.OPEN, PlanStatus.HANDED_OFF}, status)

    def ran(self, table: str, step: Step, status: DagsterRunStatus) -> None:
        """A run of the step, as the daemon leaves it behind."""
        tags = {WINDOW_TAG: DAY.isoformat(), STEP_TAG: step.value, "dagster/partition": table}
        self.instance.add_run(DagsterRun(step.value, str(uuid.uuid4()), status=status, tags=tags))


def asked(found: list[RunRequest] | SkipReason) -> set[str]:
    return set() if isinstance(found, SkipReason) else {str(request.partition_key) for request in found}


_is_idle = sensors._is_idle


@pytest.fixture(autouse=True)
def _tables_have_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty tables stand for tables with something to expire."""
    monkeypatch.setattr(sensors, "_is_idle", lambda lifecycle, table: False)


@pytest.fixture
def fleet(make_project: Callable[..., Project]) -> Iterator[Fleet]:
    project = make_project(tables={"artemis.*": {"compaction": {"manifests_on": list(get_args(Weekday))}}})
    project.register(ONE, TWO, "scratch.ungoverned", "lifecycle.results")
    project.instance.add_dynamic_partitions("table", ["artemis.dropped"])
    with project.lifecycle() as lifecycle:
        yield Fleet(project, lifecycle)


def test_a_tick_requests_one_run_of_each_existing_governed_table(fleet: Fleet) -> None:
    assert fleet.due(0) == {ONE: "plan", TWO: "plan"}


def test_a_plan_under_a_former_policy_leaves_the_window_its_own(fleet: Fleet) -> None:
    """A backfill planned in the window; then lifecycle.yaml changed."""
    steps, digest = fleet.lifecycle.operations.steps, fleet.lifecycle.config.policy(ONE).retention.digest
    for table, policy in ((ONE, "a former policy"), (TWO, digest)):
        step_id = steps.start(f"uuid-of-{table}", table, "plan", DAY, "a backfill", policy=policy)
        steps.finish(step_id, "done")
    assert fleet.due(0) == {ONE: "plan"}


def test_a_request_names_window_step_and_table_and_means_it(fleet: Fleet) -> None:
    fleet.marked(fleet.planned(ONE), PlanStatus.HANDED_OFF)
    fleet.ran(TWO, Step.PLAN, DagsterRunStatus.STARTED)
    found = step_requests(fleet.lifecycle, fleet.instance, fleet.at(4))
    assert isinstance(found, list)
    (request,) = found
    assert request.partition_key == ONE
    assert request.job_name == "commit"
    assert request.run_key == f"{DAY}:{ONE}:commit"
    assert request.tags[WINDOW_TAG] == DAY.isoformat()
    assert request.tags[STEP_TAG] == "commit"
    assert request.run_config == {"resources": {"changes": {"config": {"dry_run": False}}}}


def test_the_whole_walk_starts_in_one_run_if_the_window_says_so(make_project: Callable[..., Project]) -> None:
    project = make_project(
        tables={ONE: {"quiet_window": {"runs": "one_per_table"}}, TWO: {"quiet_window": {"runs": "one_per_step"}}}
    )
    project.register(ONE, TWO)
    with project.lifecycle() as lifecycle:
        fleet = Fleet(project, lifecycle)
        found = step_requests(lifecycle, fleet.instance, fleet.at(0))
        assert isinstance(found, list)
        jobs_of = {request.partition_key: (request.job_name, request.tags[STEP_TAG]) for request in found}
        assert jobs_of == {ONE: ("nightly_walk", "plan"), TWO: ("plan", "plan")}
        (walk,) = (request for request in found if request.partition_key == ONE)
        assert walk.run_config == {"resources": {"changes": {"config": {"dry_run": False}}}}
        # What the run left behind goes on step by step.
        fleet.marked(fleet.planned(ONE), PlanStatus.HANDED_OFF)
        left = step_requests(lifecycle, fleet.instance, fleet.at(4))
        assert isinstance(left, list)
        assert {request.partition_key: request.job_name for request in left}[ONE] == "commit"


def test_the_table_that_waits_longest_is_asked_for_first(fleet: Fleet) -> None:
    steps = fleet.lifecycle.operations.steps
    done = steps.start("uuid", ONE, "plan", window_day=DAY - timedelta(days=1), owner="o", run_id=None, dry_run=False)
    steps.finish(done, state="done", counts={})
    found = step_requests(fleet.lifecycle, fleet.instance, fleet.at(0))
    assert isinstance(found, list)
    assert [request.partition_key for request in found] == [TWO, ONE]
    first, second = (int(request.tags["dagster/priority"]) for request in found)
    assert first > second
    assert {request.tags["artemis/table"] for request in found} == {ONE, TWO}


@pytest.mark.parametrize(("opens", "closes"), [("00:00", "08:00"), ("22:30", "06:30"), ("23:45", "01:15")])
def test_what_belongs_to_the_window_is_scheduled_inside_it(opens: str, closes: str) -> None:
    start, end = (int(text[:2]) * 60 + int(text[3:]) for text in (opens, closes))
    quiet = QuietWindow.model_validate({"from": opens, "to": closes})
    for definition in schedules.schedules_for(quiet):
        minute, hours, *_ = str(definition.cron_schedule).split()
        if definition.name not in ("hourly_fleet", "daily_health_checks", "daily_cold_scrub"):
            assert (int(hours) * 60 + int(minute) - start) % 1440 < (end - start) % 1440, definition.name


def test_the_schedules_evaluate_as_dagster_evaluates_them(fleet: Fleet) -> None:
    repository = fleet.project.definitions.get_repository_def()
    for definition in schedules.schedules_for(QuietWindow()):
        context = build_schedule_context(
            instance=fleet.instance,
            scheduled_execution_time=MIDNIGHT,
            repository_def=repository,
            resources={"lifecycle": fleet.project.resource()},
        )
        with context:
            found = definition.evaluate_tick(context)
        if definition.name in {"monthly_schema_record", "monthly_deep_archive"}:
            assert {request.partition_key for request in found.run_requests or ()} == {ONE, TWO}, definition.name
            assert {request.tags["dagster/partition"] for request in found.run_requests or ()} == {ONE, TWO}
        elif definition.name in ("monthly_records", "monthly_result_tables", "monthly_old_runs", "hourly_fleet"):
            (request,) = found.run_requests or ()
            assert (request.partition_key, request.run_config) == (
                None,
                jobs.for_real(definition.job_name),
            )
        else:
            assert not found.run_requests, definition.name
            assert found.skip_message


def test_what_a_table_needs_follows_the_state_of_its_plan(fleet: Fleet) -> None:
    fleet.ran(TWO, Step.PLAN, DagsterRunStatus.STARTED)
    plan = fleet.planned(ONE)
    assert fleet.due(1) == {}
    assert fleet.due(2) == {ONE: "handoff"}
    fleet.marked(plan, PlanStatus.HANDED_OFF)
    assert fleet.due(4) == {ONE: "commit"}
    # A plan by hand in the middle of the window supersedes that one, and goes the whole way.
    again = fleet.planned(ONE)
    assert fleet.due(4, 30) == {ONE: "handoff"}
    fleet.marked(again, PlanStatus.HANDED_OFF)
    fleet.marked(again, PlanStatus.COMMITTED)
    assert fleet.due(5) == {}
    assert fleet.due(6) == {ONE: "orphans"}
    fleet.done(ONE, "orphan_deletion")
    assert fleet.due(7) == {}


def test_a_table_under_the_name_of_a_dropped_one_does_not_inherit_its_plans(fleet: Fleet) -> None:
    fleet.ran(TWO, Step.PLAN, DagsterRunStatus.STARTED)
    plan = fleet.planned(ONE)
    assert fleet.due(2) == {ONE: "handoff"}
    catalog = fleet.project.config.catalogs.live.name
    fleet.lifecycle.operations.known_tables.saw(catalog, plan.table_uuid, Seen(ONE, "file:/w/dropped.metadata.json"))
    # The catalog has another table under that name.
    fleet.lifecycle.observe_catalog()
    assert fleet.due(2) == {ONE: "plan"}
    fleet.marked(plan, PlanStatus.HANDED_OFF)
    plans = fleet.lifecycle.operations.plans
    plans.mark(plan.plan_id, {PlanStatus.HANDED_OFF}, PlanStatus.COMMITTED, due_in=timedelta(0))
    assert fleet.due(2) == {ONE: "plan"}


def test_nothing_is_asked_for_while_a_run_of_the_table_waits_or_runs(fleet: Fleet) -> None:
    fleet.ran(ONE, Step.PLAN, DagsterRunStatus.NOT_STARTED)
    fleet.ran(TWO, Step.PLAN, DagsterRunStatus.CANCELING)
    assert fleet.due(7) == {}


def test_an_empty_plan_needs_no_run(fleet: Fleet) -> None:
    fleet.planned(ONE, snapshots=0)
    assert ONE not in fleet.due(5)


def test_a_commit_that_waits_for_approval_stops_nothing_and_is_asked_for_when_it_is_approved(fleet: Fleet) -> None:
    fleet.ran(TWO, Step.PLAN, DagsterRunStatus.STARTED)
    plan = fleet.planned(ONE)
    fleet.marked(plan, PlanStatus.HANDED_OFF)
    for _ in range(MAX_FAILURES):
        fleet.ran(ONE, Step.COMMIT, DagsterRunStatus.FAILURE)
    assert fleet.due(6) == {ONE: "orphans"}
    fleet.lifecycle.approve(plan.plan_id, who="ada", why="a month of commits")
    assert fleet.due(6) == {ONE: "commit"}


def test_the_orphan_scan_follows_a_deletion_that_is_due(fleet: Fleet) -> None:
    plan = fleet.planned(ONE)
    fleet.marked(plan, PlanStatus.HANDED_OFF)
    fleet.marked(plan, PlanStatus.COMMITTED)
    fleet.done(TWO, "plan")
    assert fleet.due(5) == {}
    with fleet.lifecycle.operations.engine.begin() as connection:
        connection.execute(text("UPDATE lifecycle.plans SET due_at = :at"), {"at": fleet.at(4)})
    assert fleet.due(3) == {}
    assert fleet.due(5) == {ONE: "deletion"}
    assert fleet.due(6) == {ONE: "deletion", TWO: "orphans"}


def test_a_dry_run_of_a_step_is_not_that_step(fleet: Fleet) -> None:
    fleet.done(ONE, "plan", dry_run=True)
    assert fleet.due(0, 30)[ONE] == "plan"


def test_a_failed_step_is_asked_for_again_later_under_another_key(fleet: Fleet) -> None:
    fleet.planned(ONE)
    fleet.ran(TWO, Step.PLAN, DagsterRunStatus.STARTED)
    fleet.ran(ONE, Step.HANDOFF, DagsterRunStatus.FAILURE)
    found = step_requests(fleet.lifecycle, fleet.instance, fleet.at(3))
    assert isinstance(found, list)
    (again,) = found
    assert again.run_key == f"{DAY}:{ONE}:handoff:2"


def test_a_step_canceled_by_hand_is_left_alone_for_the_window(fleet: Fleet) -> None:
    fleet.ran(ONE, Step.PLAN, DagsterRunStatus.CANCELED)
    assert fleet.due(0) == {TWO: "plan"}
    assert fleet.due(6) == {ONE: "orphans", TWO: "plan"}


def test_nothing_is_asked_for_outside_the_window(fleet: Fleet) -> None:
    assert fleet.due(8) == {}
    assert fleet.due(12) == {}


def test_a_tick_is_bounded_and_who_waited_longest_goes_first(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "AT_ONCE", 1)
    fleet.planned(ONE)
    assert fleet.due(5) == {TWO: "plan"}
    fleet.ran(TWO, Step.PLAN, DagsterRunStatus.STARTED)
    assert fleet.due(5) == {ONE: "handoff"}


def test_a_table_without_a_cold_tier_goes_from_its_plan_to_its_commit(make_project: Callable[..., Project]) -> None:
    project = make_project(tables={"artemis.*": {"cold_tier": {"enabled": False}}})
    project.register(ONE)
    with project.lifecycle() as lifecycle:
        fleet = Fleet(project, lifecycle)
        fleet.planned(ONE)
        assert fleet.due(2) == {}
        assert fleet.due(4) == {ONE: "commit"}


def test_a_table_with_its_own_quiet_window_is_started_in_it(make_project: Callable[..., Project]) -> None:
    window = {"from": "20:00", "to": "23:00", "timezone": "UTC"}
    project = make_project(tables={ONE: {"quiet_window": window}})
    project.register(ONE)
    with project.lifecycle() as lifecycle:
        fleet = Fleet(project, lifecycle)
        assert fleet.due(0) == {}
        assert fleet.due(20, 5) == {ONE: "plan"}


def test_a_run_is_requested_with_the_resources_of_its_table(make_project: Callable[..., Project]) -> None:
    project = make_project(tables={ONE: {"run": {"memory": "16Gi"}}, TWO: {}})
    project.register(ONE, TWO)
    pod = {"requests": {"memory": "16384Mi"}, "limits": {"memory": "16384Mi"}}
    with project.lifecycle() as lifecycle:
        night = Fleet(project, lifecycle).at(0, 5)
        steps = step_requests(lifecycle, project.instance, night)
        scrubs = maintenance_requests("cold_scrub", lifecycle, project.instance, night)
        for found in (steps, scrubs):
            assert isinstance(found, list)
            tags = {request.partition_key: request.tags for request in found}
            assert json.loads(tags[ONE]["dagster-k8s/config"])["container_config"]["resources"] == pod
            assert tags[ONE][DRIVER_TAG] == "8192m" and not {DRIVER_TAG, "dagster-k8s/config"} & tags[TWO].keys()


def test_maintenance_avoids_the_quiet_window_and_its_own_runs(fleet: Fleet) -> None:
    job = jobs.cold_scrub.name
    assert asked(maintenance_requests(job, fleet.lifecycle, fleet.instance, fleet.at(4), by_day=True)) == set()
    fleet.instance.add_run(
        DagsterRun(job, str(uuid.uuid4()), status=DagsterRunStatus.STARTED, tags={"dagster/partition": ONE})
    )
    found = maintenance_requests(job, fleet.lifecycle, fleet.instance, fleet.at(12), by_day=True)
    assert asked(found) == {TWO}
    # Two ticks of a day ask for one run: the later one is for tables that were in their window at the earlier one.
    again = maintenance_requests(job, fleet.lifecycle, fleet.instance, fleet.at(20), by_day=True)
    assert isinstance(found, list) and isinstance(again, list)
    assert found[0].run_key == again[0].run_key


def _measured(table: str, at: datetime, **figures: int) -> HealthRecord:
    return replace(HEALTHY, table_uuid=f"uuid-of-{table}", table=table, measured_at=at, **figures)  # type: ignore[arg-type]


def test_a_compaction_is_requested_where_recorded_health_asks_for_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def requests(hour: int) -> dict[str | None, str | None]:
        found = sensors.compaction_requests(fleet.lifecycle, fleet.instance, fleet.at(hour))
        return {} if isinstance(found, SkipReason) else {each.partition_key: each.job_name for each in found}

    assert requests(12) == {}
    health = fleet.lifecycle.operations.health
    health.note(_measured(ONE, fleet.at(-20), rewritable_files=30), {})
    health.note(_measured(TWO, fleet.at(-20)), {})
    health.note(_measured("scratch.ungoverned", fleet.at(-20), rewritable_files=99), {})
    assert requests(4) == {}, "data files wait until the window is over"
    assert requests(12) == {ONE: "data_compaction"}
    health.note(_measured(TWO, fleet.at(-19), manifests=40), {})
    assert requests(12) == {ONE: "data_compaction"}
    assert requests(4) == {TWO: "manifest_compaction"}
    health.note(_measured(TWO, fleet.at(-18), rewritable_files=30), {})
    assert requests(12) == {ONE: "data_compaction", TWO: "data_compaction"}
    # What a tick cannot request waits; who was never compacted comes first, whatever its name.
    monkeypatch.setattr(sensors, "AT_ONCE", 1)
    fleet.done(ONE, "compaction")
    health.note(_measured(ONE, fleet.at(2), rewritable_files=99), {})
    assert requests(12) == {TWO: "data_compaction"}
    begun = DagsterRun("data_compaction", status=DagsterRunStatus.STARTED, tags={"dagster/partition": TWO})
    fleet.instance.add_run(begun)
    (again,) = sensors.compaction_requests(fleet.lifecycle, fleet.instance, fleet.at(12))  # type: ignore[misc]
    assert (again.partition_key, again.run_config) == (
        ONE,
        {"resources": {"changes": {"config": {"dry_run": False}}}},
    )
    # An older measurement does not replace a newer one.
    health.note(_measured(ONE, fleet.at(1)), {})
    assert requests(12) == {ONE: "data_compaction"}


def test_no_table_waits_for_those_before_it_in_the_alphabet(
    make_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six tables, two runs in a tick and three metadata files read: the last in the alphabet waited longest."""
    project = make_project(tables={"artemis.*": {"compaction": {"manifests_on": list(get_args(Weekday))}}})
    names = [f"artemis.{letter}" for letter in "abcdef"]
    project.register(*names)
    read: list[str] = []
    monkeypatch.setattr(sensors, "AT_ONCE", 2)
    monkeypatch.setattr(sensors, "_is_idle", lambda lifecycle, table: read.append(table) or table == "artemis.e")
    with project.lifecycle() as lifecycle:
        fleet = Fleet(project, lifecycle)
        for hours, table in enumerate(names[:5]):
            step = lifecycle.operations.steps.start("u-" + table, table, "plan", DAY - timedelta(days=1), "test")
            lifecycle.operations.steps.finish(step, "done")
            with lifecycle.operations.engine.begin() as connection:
                at = {"at": MIDNIGHT - timedelta(hours=20 + hours), "table": table}
                connection.execute(text("UPDATE lifecycle.steps SET finished_at = :at WHERE table_name = :table"), at)
        found = step_requests(lifecycle, fleet.instance, fleet.at(0))
        assert isinstance(found, list)
        assert [each.partition_key for each in found] == ["artemis.f", "artemis.d"]
        assert read == ["artemis.f", "artemis.e", "artemis.d"]


def test_a_table_with_nothing_to_expire_costs_no_run_and_no_session(
    make_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "_is_idle", _is_idle)
    project = make_project(tables={"artemis.busy": {"retention": {"window": "1ms"}}, "artemis.*": {}})
    project.create("artemis.busy", commits=2)
    project.create("artemis.idle", commits=2)
    project.register("artemis.lost")
    with project.lifecycle() as lifecycle:
        location = lifecycle.snapshot_history("artemis.lost").metadata_location
        Path(location.removeprefix("file:").replace("//", "/")).unlink()
    monkeypatch.setattr("artemis_lifecycle.session.resources.live_session", lambda: pytest.fail("asked for Spark"))
    with Lifecycle.open(project.config) as lifecycle:
        window = window_of(lifecycle.operations.clock.now(), QuietWindow())

        def tick(minute: int) -> dict[str | None, str | None]:
            found = step_requests(lifecycle, project.instance, window.opens + timedelta(minutes=minute))
            assert not isinstance(found, SkipReason)
            return {request.partition_key: request.job_name for request in found}

        # One that cannot be read is for a run to report.
        assert tick(0) == tick(1) == {"artemis.busy": "plan", "artemis.lost": "plan"}
        skipped = [each for each in lifecycle.operations.steps.of_window(window.day) if each.state == "skipped"]
        assert [each.table for each in skipped] == ["artemis.idle"]
        # A plan that waits is not passed over.
        assert not lifecycle.skip_if_idle("artemis.busy")


def test_one_tick_reads_for_a_bounded_time(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "IDLE_FOR", -1.0)
    assert fleet.due(0) == {}
    monkeypatch.setattr(sensors, "IDLE_FOR", 20.0)
    assert fleet.due(0) == {ONE: "plan", TWO: "plan"}
