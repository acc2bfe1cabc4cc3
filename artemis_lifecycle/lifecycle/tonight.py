"""The position of each table in its maintenance window, from its plans, scans and step records in Postgres, and the
forecast of what is left. Reads no metadata file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from artemis_lifecycle.config.policies import MaintenanceWindow, QuietWindow, coming_window, window_of
from artemis_lifecycle.lifecycle.formats import PLANNED
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.operations.fleet import last_done, newest_states
from artemis_lifecycle.operations.plans import PlanRecord, PlanStatus
from artemis_lifecycle.operations.scans import ScanRecord, ScanState
from artemis_lifecycle.operations.steps import StepRecord
from artemis_lifecycle.orphans.trend import next_scan, trend_of
from artemis_lifecycle.scheduling.forecast import WindowForecast, forecast, steps_left, work_of
from artemis_lifecycle.scheduling.maintenance_window import Progress, Step

MEASURED_OVER = timedelta(days=14)
"""How far back durations of runs count for a forecast."""

_BY_NAME = {step.value: step for step in Step}
_NO_PLAN_NEEDED = {("plan", "done"), ("plan", "skipped")}
"""Steps, and how they ended, after which the window needs no other plan."""

_DUE = (PlanStatus.COMMITTED, PlanStatus.DELETING)


@dataclass(frozen=True)
class TableWindow:
    """One table's window, the table's position in it, and the steps that run in it automatically.

    `whole_walk` means that they start in one run. `last_done` is when each step last ended for the table, and
    `freeable_bytes` is what its plans under way can free: both decide its place in the queue. `approved_at` is when a
    person last approved its plan or scan.
    """

    table: str
    window: MaintenanceWindow
    progress: Progress
    steps: frozenset[Step]
    whole_walk: bool
    last_done: Mapping[str, datetime]
    freeable_bytes: int
    approved_at: datetime | None


def tonight(resources: Resources, tables: Iterable[str], now: datetime) -> list[TableWindow]:
    """Return each table's position in the window of `now`, except for its runs. Reads unfinished plans, recent scans,
    and the records of these windows."""
    return _positions(resources, tables, lambda quiet: window_of(now, quiet), lambda window: now)


def forecasts(resources: Resources, tables: Iterable[str], now: datetime) -> tuple[WindowForecast, ...]:
    """Return whether each open window, or else the next one, will suffice. Empty before the first run of a window is
    recorded."""
    means = resources.operations.run_times.means(now - MEASURED_OVER)
    if not means:
        return ()
    # A deletion or a scan that becomes due in the window belongs to it.
    found = _positions(resources, tables, lambda quiet: coming_window(now, quiet), lambda window: window.closes)
    planned = newest_states(resources.operations.engine, "plan")
    work = []
    for each in found:
        cold_tier = resources.has_cold_tier(each.table)
        left = steps_left(each.progress, each.steps, is_busy=planned.get(each.table) != "skipped", cold_tier=cold_tier)
        work.append(work_of(each.table, each.window, left, means, whole_walk=each.whole_walk))
    return forecast(work, now, resources.operations.run_times.parallel_runs())


def _positions(
    resources: Resources,
    tables: Iterable[str],
    window_for: Callable[[QuietWindow], MaintenanceWindow],
    due_by: Callable[[MaintenanceWindow], datetime],
) -> list[TableWindow]:
    operations, config = resources.operations, resources.config
    windows = {table: window_for(config.policy(table).quiet_window) for table in tables}
    # Another table may have the name of a dropped one. The dropped one's plans and scans do not apply to it.
    known = operations.known_tables.of_catalog(config.catalogs.live.name)
    dropped = {each.table_uuid for each in known if each.missing_since}
    dropped -= {each.table_uuid for each in known if not each.missing_since}
    plans = defaultdict(list)
    for holding in operations.plans.holding():
        if holding.table_uuid not in dropped:
            plans[holding.table].append(holding)
    done = last_done(operations.engine)
    uncommitted = {
        record.table: record
        for record in reversed(operations.plans.all_uncommitted())
        if record.table_uuid not in dropped
    }
    records: dict[tuple[str, date], list[StepRecord]] = defaultdict(list)
    for day in {window.day for window in windows.values()}:
        for record in operations.steps.of_window(day):
            if record.table_uuid not in dropped:
                records[record.table, day].append(record)
    scans = operations.scans.recent()
    found = []
    for table, window in windows.items():
        policy, plan, by = config.policy(table), uncommitted.get(table), due_by(window)
        own_scans = [scan for scan in scans.get(table, ()) if scan.table_uuid not in dropped]
        points = trend_of(table, own_scans).points
        scan_at = next_scan(points, policy.orphans.scan_every, policy.orphans.min_age)
        # A later attempt by hand that failed makes nothing undone.
        # A plan under a former policy, such as a backfill's, leaves the window its own.
        mine = (None, policy.retention.digest)
        ended = {
            (record.step, record.state)
            for record in records[table, window.day]
            if record.step != "plan" or record.policy in mine
        }
        progress = Progress(
            planned=resources.kind(table) not in PLANNED or not ended.isdisjoint(_NO_PLAN_NEEDED),
            plan_needs=None
            if plan is None
            else next_step(plan, cold_tier=resources.has_cold_tier(table), cleans=policy.retention.clean_metadata),
            plans_due=sum(_is_due(each, by) for each in plans[table]),
            orphans_due=scan_at is None or scan_at <= window.closes or any(map(_is_unfinished, own_scans)),
            scanned=("orphan_deletion", "done") in ended,
        )
        steps = frozenset(_BY_NAME[name] for name in policy.quiet_window.steps)
        approvals = [scan.approved_at for scan in own_scans]
        approvals += [] if plan is None else [plan.approved_at, plan.lost_approved_at]
        found.append(
            TableWindow(
                table=table,
                window=window,
                progress=progress,
                steps=steps,
                whole_walk=policy.quiet_window.runs == "one_per_table" and steps == frozenset(Step),
                last_done=done.get(table, {}),
                freeable_bytes=sum(each.bytes for each in plans[table]),
                approved_at=max(filter(None, approvals), default=None),
            )
        )
    return found


def _is_due(plan: PlanRecord, by: datetime) -> bool:
    return plan.status in _DUE and plan.due_at is not None and plan.due_at <= by


def _is_unfinished(scan: ScanRecord) -> bool:
    """Return True for a deletion that was interrupted or that a person approved: it does not wait for the next scan."""
    return scan.state is ScanState.DELETING or (scan.state is ScanState.OPEN and scan.approved_at is not None)


def next_step(plan: PlanRecord, *, cold_tier: bool, cleans: bool = False) -> Step | None:
    """Return what an uncommitted plan needs next. An empty plan needs nothing, unless its commit `cleans` metadata."""
    if not plan.expired_snapshots and not plan.expired_refs:
        return Step.COMMIT if cleans else None
    if plan.status is PlanStatus.OPEN and cold_tier and plan.expired_snapshots:
        return Step.HANDOFF
    return Step.COMMIT
