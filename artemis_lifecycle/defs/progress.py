"""What each table has done in its window, from three sources: the step records, the runs, the plans that are due."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from dagster import DagsterInstance, DagsterRunStatus, RunRecord, RunsFilter

from artemis_lifecycle.defs.partitions import partitioned_tables, table_of
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle.operations.steps import StepRecord
from artemis_lifecycle.orphans.trend import next_scan, trend_of
from artemis_lifecycle.scheduling.maintenance_window import Failures, MaintenanceWindow, Progress, Step, window_of

WINDOW_TAG = "artemis/window"
STEP_TAG = "artemis/step"
PARTITION_TAG = "dagster/partition"

_RECORDED_AS: Mapping[str, Step] = {
    "plan": Step.PLAN,
    "handoff": Step.HANDOFF,
    "hand_off": Step.HANDOFF,
    "commit": Step.COMMIT,
    "deletion": Step.DELETION,
    "orphan_deletion": Step.ORPHANS,
}
"""The step records whose end is the end of a step of the window."""

_NOT_FINISHED = [
    status
    for status in DagsterRunStatus
    if status not in (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
]

_BY_NAME = {step.value: step for step in Step}


@dataclass(frozen=True)
class TableWindow:
    """One table's window, and what it has done in it."""

    table: str
    window: MaintenanceWindow
    progress: Progress


def governed_tables(lifecycle: Lifecycle, instance: DagsterInstance) -> list[str]:
    """The partitions that an entry of lifecycle.yaml matches, that the catalog still has, and that nobody paused."""
    known = partitioned_tables(instance)
    paused = {pause.table for pause in lifecycle.pauses()}
    if None in paused:
        return []
    return [
        table
        for table in lifecycle.tables()
        if table in known and lifecycle.config.entry(table) is not None and table not in paused
    ]


def under_way(instance: DagsterInstance, job: str) -> set[str]:
    """The tables for which a run of `job` waits or runs."""
    records = instance.get_run_records(RunsFilter(job_name=job, statuses=_NOT_FINISHED))
    return {table_of(record.dagster_run.tags.get(PARTITION_TAG, "")) for record in records}


def table_windows(lifecycle: Lifecycle, instance: DagsterInstance, now: datetime) -> list[TableWindow]:
    """Every governed table's window at `now`."""
    tables = governed_tables(lifecycle, instance)
    windows = {table: window_of(now, lifecycle.config.policy(table).quiet_window) for table in tables}
    plans_due = Counter(record.table for record in lifecycle.operations.plans.due(now))
    records: dict[tuple[str, date], list[StepRecord]] = defaultdict(list)
    runs: dict[tuple[str, date], list[RunRecord]] = defaultdict(list)
    for day in {window.day for window in windows.values()}:
        for record in lifecycle.operations.steps.of_window(day):
            records[record.table, day].append(record)
        for run in instance.get_run_records(RunsFilter(tags={WINDOW_TAG: day.isoformat()})):
            runs[table_of(run.dagster_run.tags.get(PARTITION_TAG, "")), day].append(run)
    scans = lifecycle.operations.scans.recent()
    found = []
    for table, window in windows.items():
        policy = lifecycle.config.policy(table)
        progress = progress_of(
            records[table, window.day],
            runs[table, window.day],
            plans_due=plans_due[table],
            cold_tier=policy.cold_tier.enabled,
        )
        points = trend_of(table, scans.get(table, ())).points
        due = next_scan(points, policy.orphans.scan_every, policy.orphans.min_age)
        found.append(TableWindow(table, window, replace(progress, orphans_due=due is None or due <= window.closes)))
    return found


def progress_of(
    records: Iterable[StepRecord], runs: Sequence[RunRecord], *, plans_due: int, cold_tier: bool = True
) -> Progress:
    """One table's progress in one window.

    A step's own newest record tells whether it is done, whoever ran it; where there is none, a run that succeeded does.
    A table without a cold tier has its handoff behind it.
    """
    newest = {_RECORDED_AS[record.step]: record.state for record in records if record.step in _RECORDED_AS}
    done = {step for step, state in newest.items() if state == "done"}
    if not cold_tier:
        done.add(Step.HANDOFF)
    requested: set[Step] = set()
    failed: dict[Step, list[datetime]] = defaultdict(list)
    for run in runs:
        step = _BY_NAME.get(run.dagster_run.tags.get(STEP_TAG, ""))
        if step is None:
            continue
        status = run.dagster_run.status
        if status is DagsterRunStatus.SUCCESS:
            if step not in newest:
                done.add(step)
        elif status is DagsterRunStatus.FAILURE:
            ended = run.end_time or run.update_timestamp.timestamp()
            failed[step].append(datetime.fromtimestamp(ended, tz=UTC))
        else:
            requested.add(step)
    return Progress(
        done=frozenset(done),
        requested=frozenset(requested),
        failed={step: Failures(len(ends), max(ends)) for step, ends in failed.items()},
        plans_due=plans_due,
    )
