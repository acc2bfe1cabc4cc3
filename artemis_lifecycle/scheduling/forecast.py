"""Whether a quiet window will suffice: what its tables still need, and how long that takes. Pure: no I/O.

The forecast places each run as the queue would: in the order in which runs become due, as many at once as the instance
allows, one at a time for each table.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from statistics import fmean

from artemis_lifecycle.config.policies import MaintenanceWindow
from artemis_lifecycle.scheduling.maintenance_window import NIGHTLY_WALK, Progress, Step, opening

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
