"""Which step of the walk a table needs now, from the state of its plan and of its scans. Pure: no I/O.

Two chains per table. One expires: plan, handoff, commit. One cleans: due deletions, orphans. A chain that waits does
not stop the other. The clock opens a step; a step that is late is due all the same, until the window closes.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from statistics import fmean
from typing import Literal
from zoneinfo import ZoneInfo

from artemis_lifecycle.commits.actions import why_statistics
from artemis_lifecycle.config.policies import Compaction, MaintenanceWindow
from artemis_lifecycle.operations.fleet import HealthRecord
from artemis_lifecycle.upkeep.compaction import why_compact
from artemis_lifecycle.upkeep.health import figure
from artemis_lifecycle.upkeep.manifests import why_rewrite


class Step(StrEnum):
    """The steps of a window; each is the name of the job that runs it."""

    PLAN = "plan"
    HANDOFF = "handoff"
    COMMIT = "commit"
    DELETION = "deletion"
    ORPHANS = "orphans"


NIGHTLY_WALK = "nightly_walk"
"""The job that runs every due step of a table in one run."""

OPENS: Mapping[Step, float] = {
    Step.PLAN: 0.0,
    Step.HANDOFF: 0.25,
    Step.COMMIT: 0.5,
    Step.DELETION: 0.0,
    Step.ORPHANS: 0.75,
}
"""When a step opens, as a share of the quiet window: 00:00, 02:00, 04:00, all the time, 06:00 of the default one."""

MAX_FAILURES = 5
"""Failed runs of one step for one table in one window. A step that keeps failing waits for a person."""

FIRST_BACKOFF = timedelta(minutes=5)
"""Between a failed run and the next; it doubles each time."""

AGAIN_AFTER = timedelta(hours=1)
"""Between a run that succeeded and the next one of the same step, where its plan still needs that step."""


WaitsFor = Literal["approval", "hold", "lease", "file"]


@dataclass(frozen=True)
class Runs:
    """The ended runs of one step in one window. `failures` are those since the last success or approval.

    `waits_for`: why the last one ended without an effect. For an approval, no person has approved since; `file` means
    that a file of the table is missing or damaged, which another attempt does not change.
    """

    attempts: int
    failures: int
    last_ended: datetime
    waits_for: WaitsFor | None = None


@dataclass(frozen=True)
class Progress:
    """Where one table is in one window.

    `planned` and `scanned` say that a plan and an orphan scan with its deletion ended in this window, for real and
    by any caller. `plan_needs` is the step that the uncommitted plan needs next; None without such a plan, and for
    an empty one. `plans_due` are committed plans whose grace is over. `orphans_due` says that, at the rate at which the
    table leaks, it is time for a scan. `under_way` waits or runs; `canceled` steps were canceled by hand.
    """

    planned: bool = False
    plan_needs: Step | None = None
    plans_due: int = 0
    orphans_due: bool = True
    scanned: bool = False
    under_way: Step | None = None
    canceled: frozenset[Step] = frozenset()
    runs: Mapping[Step, Runs] = field(default_factory=dict)


def priority(waited: timedelta | None, freeable_bytes: int) -> int:
    """How early a requested run leaves the queue; a larger number leaves first.

    One point for each hour since the step last ended for the table, and one for each doubling of the bytes that its
    plan can free, in MiB: a day of waiting outweighs 16 TiB. So every table's turn comes. A step that never ended has
    waited for 1,000 hours.
    """
    hours = 1_000.0 if waited is None else waited / timedelta(hours=1)
    return int(min(1_000.0, max(0.0, hours))) + (freeable_bytes >> 20).bit_length()


def opening(window: MaintenanceWindow, step: Step) -> datetime:
    """When the clock opens `step`."""
    return window.opens + (window.closes - window.opens) * OPENS[step]


@dataclass(frozen=True)
class Verdict:
    """The step to request now, as the `attempt`th of this window, or None; `why` is shown at the tick."""

    step: Step | None
    why: str
    attempt: int = 0


def due_step(now: datetime, window: MaintenanceWindow, progress: Progress, steps: frozenset[Step]) -> Verdict:
    """The step of `steps` that the table needs now. At most one: two would wait for one lease."""
    if not window.opens <= now < window.closes:
        return Verdict(None, f"outside the quiet window {window.opens:%H:%M}-{window.closes:%H:%M} UTC")
    if progress.under_way is not None:
        return Verdict(None, f"{progress.under_way} is under way")
    waiting = []
    to_expire = progress.plan_needs if progress.planned else Step.PLAN
    for step in (to_expire, _to_clean(progress, steps)):
        if step is None:
            continue
        verdict = _asked(step, now, window, progress) if step in steps else Verdict(None, f"{step} is switched off")
        if verdict.step is not None:
            return verdict
        waiting.append(verdict.why)
    return Verdict(None, "; ".join(waiting) or "every step of this window is done")


def _to_clean(progress: Progress, steps: frozenset[Step]) -> Step | None:
    runs = progress.runs.get(Step.DELETION)
    # A deletion that waits for a person does not hold the scan back.
    stuck = runs is not None and (runs.waits_for in ("approval", "hold", "file") or runs.failures >= MAX_FAILURES)
    scans = progress.orphans_due and not progress.scanned
    if progress.plans_due and not stuck and Step.DELETION in steps - progress.canceled:
        return Step.DELETION
    if scans and Step.ORPHANS in steps:
        return Step.ORPHANS
    # A hold can end during the night.
    if progress.plans_due:
        return Step.DELETION
    return Step.ORPHANS if scans else None


def _asked(step: Step, now: datetime, window: MaintenanceWindow, progress: Progress) -> Verdict:
    if step in progress.canceled:
        return Verdict(None, f"{step} was canceled by hand")
    if now < opening(window, step):
        return Verdict(None, f"{step} opens at {opening(window, step):%H:%M} UTC")
    runs = progress.runs.get(step)
    if runs is None:
        return Verdict(step, f"{step} is due", attempt=1)
    if runs.waits_for == "approval":
        return Verdict(None, f"{step} waits for approval")
    if runs.waits_for == "file":
        return Verdict(None, f"{step} waits for a person: a file of the table is missing or damaged")
    if runs.failures >= MAX_FAILURES:
        return Verdict(None, f"{step} failed {runs.failures} times in this window and waits for a person")
    soon = FIRST_BACKOFF if runs.waits_for == "lease" else AGAIN_AFTER
    wait = FIRST_BACKOFF * 2 ** (runs.failures - 1) if runs.failures else soon
    if now < runs.last_ended + wait:
        ended = "failed" if runs.failures else "ended"
        return Verdict(None, f"{step} {ended} and is tried again at {runs.last_ended + wait:%H:%M} UTC")
    return Verdict(step, f"{step} ran {runs.attempts} times before", attempt=runs.attempts + 1)


# --- compaction -------------------------------------------------------------------------------------------------------
# Which compaction a table needs now, from its recorded health. Pure: no I/O.

CompactionJob = Literal["data_compaction", "manifest_compaction"]

_STEPS = ("compaction", "manifest_compaction")


@dataclass(frozen=True)
class CompactionVerdict:
    """The job to request now, or None; `why` is shown at the tick. `waited` is the time since the table was last
    compacted; None if it never was."""

    job: CompactionJob | None
    why: str
    waited: timedelta | None = None


def due_compaction(
    now: datetime,
    window: MaintenanceWindow,
    health: HealthRecord | None,
    thresholds: Compaction,
    last_done: Mapping[str, datetime],
    timezone: str = "UTC",
) -> CompactionVerdict:
    """Return the compaction that `health` asks for: of data files outside the quiet `window`, of manifests inside it.
    Data files come first: their rewrite replaces manifests, too. Manifests have their days of the week, in `timezone`:
    each rewrite writes all of them.

    A table is not compacted again before its health is measured again. `last_done` is when its steps last ended.
    """
    if health is None:
        return CompactionVerdict(None, "its health is not recorded")
    ended = max((last_done[step] for step in _STEPS if step in last_done), default=None)
    if ended is not None and health.measured_at <= ended:
        return CompactionVerdict(None, "compacted since its health was measured")
    waited = None if ended is None else now - ended
    changed, records = (figure(health, name) for name in ("unanalyzed_records", "records"))
    why = why_compact(health, thresholds) or why_statistics(changed, records, thresholds)
    if why is not None:
        if window.excludes(now):
            return CompactionVerdict(None, f"{why}; it is in its quiet window")
        return CompactionVerdict("data_compaction", why, waited)
    why = why_rewrite(health, thresholds)
    if why is not None:
        today = f"{now.astimezone(ZoneInfo(timezone)):%A}".lower()
        if today not in thresholds.manifests_on or not window.opens <= now < window.closes:
            days = " and ".join(thresholds.manifests_on) or "no day"
            return CompactionVerdict(None, f"{why}; they are rewritten in the quiet window, on {days}")
        return CompactionVerdict("manifest_compaction", why, waited)
    return CompactionVerdict(None, "its health asks for none")


# --- forecast ---------------------------------------------------------------------------------------------------------
# Whether a quiet window will suffice: what its tables still need, and how long that takes. Pure: no I/O.
# The forecast places each run as the queue would: in the order in which runs become due, as many at once as the
# instance allows, one at a time for each table.

NEXT_REQUEST = timedelta(minutes=1)
"""Between the end of a table's run and the tick that requests its next one."""

_NAMED = 5


@dataclass(frozen=True)
class DueRun:
    """A run that a table needs: not before `due`, for as long as `takes`."""

    step: str
    due: datetime
    takes: timedelta


@dataclass(frozen=True)
class TableWork:
    """The runs that one table needs in its window, in their order."""

    table: str
    window: MaintenanceWindow
    runs: tuple[DueRun, ...]


@dataclass(frozen=True)
class PlacedRun:
    """When a run would begin and end."""

    table: str
    step: str
    begins: datetime
    ends: datetime


@dataclass(frozen=True)
class WindowForecast:
    """One window: how many runs of how many tables are left, when the last one would end with `parallel_runs` at once
    (None: no limit), and the tables that would not be done when the window closes."""

    opens: datetime
    closes: datetime
    tables: int
    runs: int
    parallel_runs: int | None
    ends: datetime
    late: tuple[str, ...]

    @property
    def suffices(self) -> bool:
        return not self.late

    def __str__(self) -> str:
        at_once = "all at once" if self.parallel_runs is None else f"{self.parallel_runs} at once"
        window = f"the quiet window from {self.opens:%Y-%m-%d %H:%M} to {self.closes:%H:%M} UTC"
        needs = f"{self.runs:,} runs of {self.tables:,} tables need until {self.ends:%Y-%m-%d %H:%M}, {at_once}"
        if self.suffices:
            return f"{window} suffices: {needs}"
        more = f" and {len(self.late) - _NAMED:,} more" if len(self.late) > _NAMED else ""
        return f"{window} will not suffice: {needs}. Not done by then: {', '.join(self.late[:_NAMED])}{more}"


def steps_left(progress: Progress, switched_on: frozenset[Step], *, is_busy: bool, cold_tier: bool) -> tuple[Step, ...]:
    """Return the steps that the table still needs in its window, in their order.

    `is_busy` says that its last window had something to expire: before a table is planned, that is the best guess. A
    step that waits for approval counts, because it runs once it is approved.
    """
    whole: tuple[Step, ...] = (Step.PLAN, *((Step.HANDOFF,) if cold_tier else ()), Step.COMMIT)
    if progress.planned:
        whole = whole[whole.index(progress.plan_needs) :] if progress.plan_needs in whole else ()
    elif not is_busy:
        whole = ()
    possible = switched_on - progress.canceled
    expire = tuple(takewhile(possible.__contains__, whole))
    deletes = progress.plans_due > 0 and Step.DELETION in possible
    scans = progress.orphans_due and not progress.scanned and Step.ORPHANS in possible
    return (*expire, *((Step.DELETION,) if deletes else ()), *((Step.ORPHANS,) if scans else ()))


def work_of(
    table: str,
    window: MaintenanceWindow,
    left: Sequence[Step],
    means: Mapping[str, Mapping[str, float]],
    *,
    whole_walk: bool,
) -> TableWork:
    """Return what the table needs, with the recorded mean durations: seconds by step and table.

    A table without its own record of a step gets the mean of the other tables. A step that was never recorded takes no
    time.
    """

    def takes(step: str) -> timedelta:
        known = means.get(step, {})
        return timedelta(seconds=known.get(table) or fmean(known.values() or (0.0,)))

    if whole_walk and Step.PLAN in left and NIGHTLY_WALK in means:
        return TableWork(table, window, (DueRun(NIGHTLY_WALK, window.opens, takes(NIGHTLY_WALK)),))
    return TableWork(table, window, tuple(DueRun(step, opening(window, step), takes(step)) for step in left))


def placed(work: Sequence[TableWork], now: datetime, parallel_runs: int | None) -> list[PlacedRun]:
    """Place each run: when it is due, the run before it of its table has ended, and one of `parallel_runs` is free."""
    ready = [(max(now, each.runs[0].due), number, 0) for number, each in enumerate(work) if each.runs]
    heapq.heapify(ready)
    free = [now] * min(parallel_runs or len(work), len(work))
    found = []
    while ready:
        due, number, place = heapq.heappop(ready)
        table, run = work[number], work[number].runs[place]
        begins = max(due, free[0])
        ends = begins + run.takes
        heapq.heapreplace(free, ends)
        found.append(PlacedRun(table.table, run.step, begins, ends))
        if place + 1 < len(table.runs):
            heapq.heappush(ready, (max(ends + NEXT_REQUEST, table.runs[place + 1].due), number, place + 1))
    return found


def forecast(work: Sequence[TableWork], now: datetime, parallel_runs: int | None) -> tuple[WindowForecast, ...]:
    """Return a forecast of each window with work, the first to close first. All windows share `parallel_runs`."""
    ends: dict[str, datetime] = {}
    for run in placed(work, now, parallel_runs):
        ends[run.table] = max(run.ends, ends.get(run.table, run.ends))
    by_window: dict[tuple[datetime, datetime], list[TableWork]] = defaultdict(list)
    for each in work:
        if each.runs:
            by_window[each.window.opens, each.window.closes].append(each)
    return tuple(
        WindowForecast(
            opens=opens,
            closes=closes,
            tables=len(tables),
            runs=sum(len(each.runs) for each in tables),
            parallel_runs=parallel_runs,
            ends=max(ends[each.table] for each in tables),
            late=tuple(each.table for each in tables if ends[each.table] > closes),
        )
        for (opens, closes), tables in sorted(by_window.items(), key=lambda item: item[0][::-1])
    )
