"""The position of each table in its maintenance window: what Postgres records of it, and Dagster's runs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter

import dagster as dg

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.policies import window_of
from artemis_lifecycle.defs.common import WILL_NOT_PASS
from artemis_lifecycle.defs.tags import PARTITION_TAG, STEP_TAG, WAITS_FOR_TAG, WINDOW_TAG, partitioned_tables
from artemis_lifecycle.errors import ApprovalNeeded, Held, LeaseTaken
from artemis_lifecycle.escaping import table_of
from artemis_lifecycle.fleet.fleet import TableWindow, tonight
from artemis_lifecycle.scheduling.maintenance_window import Progress, Runs, Step, WaitsFor

NOT_FINISHED = [
    status
    for status in dg.DagsterRunStatus
    if status not in (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
]

_BY_NAME = {step.value: step for step in Step}
_WAITS_FOR: dict[str, WaitsFor] = {
    ApprovalNeeded.__name__: "approval",
    Held.__name__: "hold",
    LeaseTaken.__name__: "lease",
    **dict.fromkeys(WILL_NOT_PASS, "file"),
}


def governed_tables(lifecycle: Lifecycle, instance: dg.DagsterInstance) -> list[str]:
    """Return the partitions that an entry of lifecycle.yaml matches, that exist in the catalog, and that are not
    paused."""
    known = partitioned_tables(instance)
    paused = {pause.table for pause in lifecycle.pauses()}
    if None in paused:
        return []
    return [
        table
        for table in lifecycle.answering_tables()[0]
        if table in known and lifecycle.config.governs(table) and table not in paused
    ]


def under_way(instance: dg.DagsterInstance, job: str | None = None) -> set[str]:
    """Return the tables for which a run of `job`, or of any, is queued or running."""
    records = instance.get_run_records(dg.RunsFilter(job_name=job, statuses=NOT_FINISHED))
    return {table_of(record.dagster_run.tags.get(PARTITION_TAG, "")) for record in records}


def cancel_late_runs(lifecycle: Lifecycle, instance: dg.DagsterInstance, now: datetime) -> list[str]:
    """Cancel runs of steps that still wait in the queue when their window is over. Return their ids."""
    canceled = []
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])):
        day = run.tags.get(WINDOW_TAG)
        table = table_of(run.tags.get(PARTITION_TAG, ""))
        if day is None or len(lifecycle.config.matching(table)) > 1:
            continue
        window = window_of(now, lifecycle.config.policy(table).quiet_window)
        if window.day.isoformat() == day and now < window.closes:
            continue
        # In the same way as the queue's coordinator cancels runs.
        instance.report_run_canceling(
            run, message="Its quiet window is over. The remaining steps run in the next window."
        )
        instance.report_run_canceled(run)
        canceled.append(run.run_id)
    return canceled


def table_windows(lifecycle: Lifecycle, instance: dg.DagsterInstance, now: datetime) -> list[TableWindow]:
    """Return every governed table's window at `now`. Reads unfinished plans and runs, and the records of these
    windows."""
    found = tonight(lifecycle.resources, governed_tables(lifecycle, instance), now)
    runs: dict[tuple[str, str], list[dg.RunRecord]] = defaultdict(list)
    for day in {each.window.day.isoformat() for each in found}:
        for run in instance.get_run_records(dg.RunsFilter(tags={WINDOW_TAG: day})):
            runs[table_of(run.dagster_run.tags.get(PARTITION_TAG, "")), day].append(run)
    return [
        replace(
            each, progress=with_runs(each.progress, runs[each.table, each.window.day.isoformat()], each.approved_at)
        )
        for each in found
    ]


def with_runs(progress: Progress, runs: Sequence[dg.RunRecord], approved_at: datetime | None) -> Progress:
    """Add a table's runs of one window to its position in it."""
    canceled: set[Step] = set()
    under_way: Step | None = None
    ended: dict[Step, list[_Ended]] = defaultdict(list)
    for run in runs:
        step = _BY_NAME.get(run.dagster_run.tags.get(STEP_TAG, ""))
        if step is None:
            continue
        status = run.dagster_run.status
        if status in NOT_FINISHED:
            under_way = step
        elif status is dg.DagsterRunStatus.CANCELED:
            canceled.add(step)
        else:
            at = datetime.fromtimestamp(run.end_time or run.update_timestamp.timestamp(), tz=UTC)
            waits_for = _WAITS_FOR.get(run.dagster_run.tags.get(WAITS_FOR_TAG, ""))
            ended[step].append(_Ended(at, status is dg.DagsterRunStatus.SUCCESS, waits_for))
    return replace(
        progress,
        under_way=under_way,
        canceled=frozenset(canceled),
        runs={step: _runs(sorted(each, key=attrgetter("at")), approved_at) for step, each in ended.items()},
    )


@dataclass(frozen=True)
class _Ended:
    """A run that ended; `waits_for` as in `Runs`."""

    at: datetime
    succeeded: bool
    waits_for: WaitsFor | None


def _runs(ended: Sequence[_Ended], approved_at: datetime | None) -> Runs:
    failures = 0
    for run in ended:
        # A failure before a person approved the plan was due to the missing approval.
        overcome = run.succeeded or (approved_at is not None and run.at <= approved_at)
        failures = 0 if overcome else failures + 1
    last = ended[-1]
    approved = approved_at is not None and last.at <= approved_at
    return Runs(len(ended), failures, last.at, None if approved else last.waits_for)
