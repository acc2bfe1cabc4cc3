"""A fleet under Dagster's own sensor daemon and run queue, tick by tick of a simulated clock."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dagster import AssetExecutionContext, DagsterEvent, DagsterEventType, DagsterInstance, DagsterRun, Failure
from dagster._core.launcher import LaunchRunContext, RunLauncher
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.test_utils import create_test_daemon_workspace_context
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import IWorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from dagster._daemon.sensor import execute_sensor_iteration
from dagster._serdes import ConfigurableClass, ConfigurableClassData

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.defs import alerts, sensors
from artemis_lifecycle.defs.common import Waiting, as_dagster_failure, delete_each, waiting
from artemis_lifecycle.defs.resources import OWNER, LifecycleResource
from artemis_lifecycle.defs.tags import PARTITION_TAG
from artemis_lifecycle.escaping import table_of
from artemis_lifecycle.pipes import newest_plan
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle_tests.nights.clock import SimulatedClock
from artemis_lifecycle_tests.nights.steps import NO_SPARK, Doubles, Killed

_LOG = logging.getLogger("nights")
STEPS = {
    "plan": ("plan",),
    "handoff": ("handoff",),
    "commit": ("commit",),
    "deletion": ("deletion",),
    "orphans": ("orphans",),
    "nightly_walk": ("plan", "handoff", "commit", "deletion", "orphans"),
}


class LateLauncher(RunLauncher, ConfigurableClass):
    """Starts runs, which the fleet ends when their time is over."""

    started: list[DagsterRun] = []  # noqa: RUF012

    def __init__(self, inst_data: ConfigurableClassData | None = None) -> None:
        self._inst_data = inst_data
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        return self._inst_data

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: object) -> LateLauncher:
        return cls(inst_data)

    def launch_run(self, context: LaunchRunContext) -> None:
        self.started.append(context.dagster_run)

    def terminate(self, run_id: str) -> bool:
        return False


@dataclass
class Fleet:
    """`posted` are the alerts; `running` the runs under way and when each ends."""

    instance: DagsterInstance
    workspace: IWorkspaceProcessContext[Any]
    lifecycle: Lifecycle
    clock: SimulatedClock
    doubles: Doubles
    dice: random.Random
    posted: list[str] = field(default_factory=list)
    running: dict[str, tuple[datetime, DagsterRun]] = field(default_factory=dict)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new daemon: all that the former one knew is in the storages."""
        self._queue = QueuedRunCoordinatorDaemon(interval_seconds=5)

    def tick(self, at: datetime) -> None:
        """End what ends until then, evaluate each sensor that is due, and launch from the queue."""
        for ends, run in sorted(self.running.values(), key=lambda each: each[0]):
            if ends <= at:
                self.clock.set(ends)
                del self.running[run.run_id]
                self._work(run)
        self.clock.set(at)
        for error in execute_sensor_iteration(self.workspace, _LOG, None, None):
            assert error is None, error.to_string()
        list(self._queue.run_iteration(self.workspace, fixed_iteration_time=at.timestamp()))
        for run in LateLauncher.started:
            self._event(run, DagsterEventType.RUN_START)
            minutes = self.dice.choice([1, 3, 3, 5, 8, 12, 50])
            self.running[run.run_id] = at + timedelta(minutes=minutes), run
        LateLauncher.started.clear()

    def kill_runs(self) -> None:
        """The machine of the runs ends: no run says anything more, and their leases stay."""
        for _, run in list(self.running.values()):
            self._leave_dead(run)
        self.running.clear()

    @contextmanager
    def killed_while_submitting(self, after: int) -> Iterator[None]:
        """The daemon is killed in the middle of a tick, after so many runs."""
        left, submit = [after], self.instance.submit_run

        def submit_or_die(*arguments: Any, **named: Any) -> DagsterRun:
            if left[0] == 0:
                # Dagster's tick records nothing of an interrupt, as of a kill.
                raise KeyboardInterrupt
            left[0] -= 1
            return submit(*arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.instance, "submit_run", submit_or_die)
            try:
                yield
            except KeyboardInterrupt:
                self.restart()

    def _work(self, run: DagsterRun) -> None:
        table = table_of(run.tags[PARTITION_TAG])
        resources = self.lifecycle.resources
        resources.run_id, resources.in_quiet_window = run.run_id, True
        context = cast("AssetExecutionContext", SimpleNamespace(log=_LOG, instance=self.instance, run=run))
        try:
            # A check of lineage, by day or by night, is no step of the walk.
            for step in () if run.job_name == "lineage_check" else STEPS[run.job_name]:
                try:
                    with as_dagster_failure():
                        self._step(step, table, context)
                except Waiting as late:
                    self.outcomes[f"waits for {waiting(context, late.error)['waits_for']}"] += 1
        except Failure as failure:
            self.outcomes[f"failed: {(failure.description or '')[:60]}"] += 1
            self.instance.report_run_failed(run, failure.description)
            return
        except Killed:
            self._leave_dead(run)
            return
        finally:
            resources.run_id, resources.in_quiet_window = None, False
        self.outcomes["succeeded"] += 1
        self._event(run, DagsterEventType.RUN_SUCCESS)

    def _step(self, step: str, table: str, context: AssetExecutionContext) -> None:
        """What the asset of the step calls."""
        lifecycle = self.lifecycle
        if step == "plan":
            lifecycle.plan_expiration(table)
        elif step == "handoff":
            lifecycle.hand_off(newest_plan(lifecycle, table).plan_id)
        elif step == "commit":
            lifecycle.commit_expiration(newest_plan(lifecycle, table).plan_id)
        elif step == "deletion":
            delete_each(context, [each.plan_id for each in lifecycle.due_plans(table)], lifecycle.delete_files)
        else:
            scan = lifecycle.approved_scan(table) or lifecycle.scan_orphans(table)
            begun = [each.scan_id for each in lifecycle.interrupted_scans(table) if each.scan_id != scan.scan_id]
            delete_each(context, [*begun, scan.scan_id], lifecycle.delete_orphans)

    def _leave_dead(self, run: DagsterRun) -> None:
        """The run's last sign of life was a lease, which nobody renews or releases."""
        self.outcomes["killed"] += 1
        table = table_of(run.tags[PARTITION_TAG])
        table_uuid = self.lifecycle.steps.table_uuid(table)
        operations = self.lifecycle.operations
        if operations.leases.live(table_uuid):
            return
        step, day = STEPS[run.job_name][0], self.clock.now.date()
        operations.leases._acquire(
            timedelta(minutes=2), table_uuid, table, step=step, owner=OWNER, run_id=run.run_id, process=None
        )
        operations.steps.start(table_uuid, table, step, day, OWNER, run.run_id)

    def _event(self, run: DagsterRun, kind: DagsterEventType) -> None:
        event = DagsterEvent(event_type_value=kind.value, job_name=run.job_name)
        self.instance.report_dagster_event(event, run_id=run.run_id)


@contextmanager
def fleet(
    config: LifecycleConfig, path: Path, clock: SimulatedClock, doubles: Doubles, dice: random.Random
) -> Iterator[Fleet]:
    """Open it on the instance of $DAGSTER_HOME."""
    target = LoadableTargetOrigin(module_name="artemis_lifecycle.definitions", attribute="defs")
    with pytest.MonkeyPatch.context() as patch, DagsterInstance.get() as instance:
        patch.setenv("ARTEMIS_CONFIG", str(path))
        instance.optimize_for_webserver(statement_timeout=60_000, pool_recycle=600, max_overflow=20)
        lifecycle = Lifecycle(Resources(config, owner=OWNER, sessions=cast("Any", NO_SPARK)))
        # A tick opens both anew, which costs more than all that the tick does.
        patch.setattr(LifecycleResource, "get", lambda _: lifecycle)
        patch.setattr(DagsterInstance, "from_ref", lambda _: nullcontext(instance))
        patch.setattr(sensors.discovery, "_min_interval", 4 * 3600)
        patch.setattr(alerts.alerts, "_min_interval", 2 * 3600)
        doubles.install(patch)
        origin = InProcessCodeLocationOrigin(target, location_name="artemis")
        workspace = create_test_daemon_workspace_context(InProcessWorkspaceLoadTarget(origin), instance)
        with workspace as opened:
            made = Fleet(instance, opened, lifecycle, clock, doubles, dice)
            patch.setattr(alerts, "_post", lambda _, text: made.posted.append(text))
            (location,) = opened.create_request_context().code_locations
            (repository,) = location.get_repositories().values()
            for sensor in repository.get_sensors():
                if sensor.name in (sensors.maintenance_window.name, alerts.alerts.name):
                    instance.start_sensor(sensor)
                elif sensor.name == sensors.thaws_under_way.name:
                    instance.stop_sensor(sensor.get_remote_origin_id(), sensor.selector_id, sensor)
            yield made
        lifecycle.resources.close()
