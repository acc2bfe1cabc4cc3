"""The position of each table in its maintenance window, from its plans, its step records and Dagster's runs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from operator import attrgetter
from typing import Literal

from dagster import DagsterInstance, DagsterRunStatus, RunRecord, RunsFilter

from artemis_lifecycle.defs.partitions import partitioned_tables, table_of
from artemis_lifecycle.defs.tags import PARTITION_TAG, STEP_TAG, WAITS_FOR_TAG, WINDOW_TAG
from artemis_lifecycle.errors import ApprovalNeeded, LeaseTaken
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle.operations.fleet import last_done
from artemis_lifecycle.operations.plans import PlanRecord, PlanStatus
from artemis_lifecycle.operations.steps import StepRecord
from artemis_lifecycle.orphans.trend import next_scan, trend_of
from artemis_lifecycle.scheduling.maintenance_window import MaintenanceWindow, Progress, Runs, Step, window_of

NOT_FINISHED = [
    status
    for status in DagsterRunStatus
    if status not in (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
]

_BY_NAME = {step.value: step for step in Step}
_WAITS_FOR: dict[str, Literal["approval", "lease"]] = {
    ApprovalNeeded.__name__: "approval",
    LeaseTaken.__name__: "lease",
}


@dataclass(frozen=True)
class TableWindow:
    """One table's window, the table's position in it, and the steps that run in it automatically.

    `whole_walk` means that they start in one run. `last_done` is when each step last ended for the table, and
    `freeable_bytes` is what its plans under way can free: both decide its place in the queue.
    """

    table: str
    window: MaintenanceWindow
    progress: Progress
    steps: frozenset[Step]
    whole_walk: bool = False
    last_done: Mapping[str, datetime] = field(default_factory=dict)
    freeable_bytes: int = 0


def governed_tables(lifecycle: Lifecycle, instance: DagsterInstance) -> list[str]:
    """Return the partitions that an entry of lifecycle.yaml matches, that exist in the catalog, and that are not
    paused."""
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
    """Return the tables for which a run of `job` is queued or running."""
    records = instance.get_run_records(RunsFilter(job_name=job, statuses=NOT_FINISHED))
    return {table_of(record.dagster_run.tags.get(PARTITION_TAG, "")) for record in records}


def cancel_late_runs(lifecycle: Lifecycle, instance: DagsterInstance, now: datetime) -> list[str]:
    """Cancel runs of steps that still wait in the queue when their window is over. Return their ids."""
    canceled = []
    for run in instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.QUEUED])):
        day = run.tags.get(WINDOW_TAG)
        if day is None:
            continue
        window = window_of(now, lifecycle.config.policy(table_of(run.tags.get(PARTITION_TAG, ""))).quiet_window)
        if window.day.isoformat() == day and now < window.closes:
            continue
        # In the same way as the queue's coordinator cancels runs.
        instance.report_run_canceling(
            run, message="Its quiet window is over. The remaining steps run in the next window."
        )
        instance.report_run_canceled(run)
        canceled.append(run.run_id)
    return canceled


def table_windows(lifecycle: Lifecycle, instance: DagsterInstance, now: datetime) -> list[TableWindow]:
    """Return every governed table's window at `now`. Reads unfinished plans and runs, and the records of these
    windows."""
    tables = governed_tables(lifecycle, instance)
    windows = {table: window_of(now, lifecycle.config.policy(table).quiet_window) for table in tables}
    plans = lifecycle.operations.plans
    # Another table may have the name of a dropped one. The dropped one's plans are none of its business.
    known = lifecycle.operations.known_tables.missing(lifecycle.config.catalogs.live.name)
    dropped = {table.table_uuid for table in known}
    plans_due = Counter(record.table for record in plans.due(now) if record.table_uuid not in dropped)
    freeable: Counter[str] = Counter()
    for plan in plans.holding():
        if plan.table_uuid not in dropped:
            freeable[plan.table] += plan.bytes
    done = last_done(lifecycle.operations.engine)
    uncommitted = {
        record.table: record for record in reversed(plans.all_uncommitted()) if record.table_uuid not in dropped
    }
    records: dict[tuple[str, date], list[StepRecord]] = defaultdict(list)
    runs: dict[tuple[str, date], list[RunRecord]] = defaultdict(list)
    for day in {window.day for window in windows.values()}:
        for record in lifecycle.operations.steps.of_window(day):
            if record.table_uuid not in dropped:
                records[record.table, day].append(record)
        for run in instance.get_run_records(RunsFilter(tags={WINDOW_TAG: day.isoformat()})):
            runs[table_of(run.dagster_run.tags.get(PARTITION_TAG, "")), day].append(run)
    scans = lifecycle.operations.scans.recent()
    found = []
    for table, window in windows.items():
        policy = lifecycle.config.policy(table)
        mine = [scan for scan in scans.get(table, ()) if scan.table_uuid not in dropped]
        points = trend_of(table, mine).points
        due = next_scan(points, policy.orphans.scan_every, policy.orphans.min_age)
        progress = progress_of(
            records[table, window.day],
            runs[table, window.day],
            plan=uncommitted.get(table),
            plans_due=plans_due[table],
            orphans_due=due is None or due <= window.closes,
            scans_approved_at=[scan.approved_at for scan in mine],
            cold_tier=policy.cold_tier.enabled,
        )
        steps = frozenset(_BY_NAME[name] for name in policy.quiet_window.steps)
        whole_walk = policy.quiet_window.runs == "one_per_table" and steps == frozenset(Step)
        found.append(TableWindow(table, window, progress, steps, whole_walk, done.get(table, {}), freeable[table]))
    return found


def progress_of(
    records: Iterable[StepRecord],
    runs: Sequence[RunRecord],
    *,
    plan: PlanRecord | None,
    plans_due: int,
    orphans_due: bool,
    cold_tier: bool,
    scans_approved_at: Sequence[datetime | None] = (),
) -> Progress:
    """Return one table's position in one window, from its uncommitted plan, its step records and its runs."""
    newest = {record.step: record.state for record in records}
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
        elif status is DagsterRunStatus.CANCELED:
            canceled.add(step)
        else:
            at = datetime.fromtimestamp(run.end_time or run.update_timestamp.timestamp(), tz=UTC)
            waits_for = _WAITS_FOR.get(run.dagster_run.tags.get(WAITS_FOR_TAG, ""))
            ended[step].append(_Ended(at, status is DagsterRunStatus.SUCCESS, waits_for))
    approvals = () if plan is None else (plan.approved_at, plan.lost_approved_at)
    approved_at = max(filter(None, (*approvals, *scans_approved_at)), default=None)
    return Progress(
        planned=newest.get("plan") in ("done", "skipped"),
        plan_needs=None if plan is None else next_step(plan, cold_tier=cold_tier),
        plans_due=plans_due,
        orphans_due=orphans_due,
        scanned=newest.get("orphan_deletion") == "done",
        under_way=under_way,
        canceled=frozenset(canceled),
        runs={step: _runs(sorted(each, key=attrgetter("at")), approved_at) for step, each in ended.items()},
    )


def next_step(plan: PlanRecord, *, cold_tier: bool) -> Step | None:
    """Return what an uncommitted plan needs next. An empty plan needs nothing."""
    if not plan.expired_snapshots and not plan.expired_refs:
        return None
    if plan.status is PlanStatus.OPEN and cold_tier and plan.expired_snapshots:
        return Step.HANDOFF
    return Step.COMMIT


@dataclass(frozen=True)
class _Ended:
    """A run that ended; `waits_for` as in `Runs`."""

    at: datetime
    succeeded: bool
    waits_for: Literal["approval", "lease"] | None


def _runs(ended: Sequence[_Ended], approved_at: datetime | None) -> Runs:
    failures = 0
    for run in ended:
        # A failure before a person approved the plan was due to the missing approval.
        overcome = run.succeeded or (approved_at is not None and run.at <= approved_at)
        failures = 0 if overcome else failures + 1
    last = ended[-1]
    approved = approved_at is not None and last.at <= approved_at
    return Runs(len(ended), failures, last.at, None if approved else last.waits_for)
