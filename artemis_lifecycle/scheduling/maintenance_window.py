"""Which step of the walk a table needs now, in one maintenance window. Pure: no I/O.

The clock opens a step; it runs only when the step before it is done in that window. A step that is late is due all the
same, until the window closes; the next window begins with a new plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from enum import StrEnum
from zoneinfo import ZoneInfo

from artemis_lifecycle.config.policies import QuietWindow


class Step(StrEnum):
    """The steps of a window, in their order; each is the name of the job that runs it."""

    PLAN = "plan"
    HANDOFF = "handoff"
    COMMIT = "commit"
    DELETION = "deletion"
    ORPHANS = "orphans"


OPENS: Mapping[Step, float] = {
    Step.PLAN: 0.0,
    Step.HANDOFF: 0.25,
    Step.COMMIT: 0.5,
    Step.DELETION: 0.0,
    Step.ORPHANS: 0.75,
}
"""When a step opens, as a share of the quiet window: 00:00, 02:00, 04:00, all the time, 06:00 of the default one."""

MAX_ATTEMPTS = 5
"""Requests of one step for one table in one window. A step that keeps failing waits for a person."""

FIRST_BACKOFF = timedelta(minutes=5)
"""Between a failed attempt and the next; it doubles each time."""


@dataclass(frozen=True)
class MaintenanceWindow:
    """One quiet window: named by the `day` on which it opens in its own time zone; `opens` and `closes` in UTC."""

    day: date
    opens: datetime
    closes: datetime

    def opening(self, step: Step) -> datetime:
        """When the clock opens `step`."""
        return self.opens + (self.closes - self.opens) * OPENS[step]


def window_of(now: datetime, quiet: QuietWindow) -> MaintenanceWindow:
    """The window that `now` belongs to; outside of windows, the last one that opened."""
    zone = ZoneInfo(quiet.timezone)
    day = quiet.day(now)
    start, end = (time_of_day(int(text[:2]), int(text[3:])) for text in (quiet.start, quiet.end))
    closing_day = day if end > start else day + timedelta(days=1)
    utc = ZoneInfo("UTC")
    return MaintenanceWindow(
        day=day,
        opens=datetime.combine(day, start, zone).astimezone(utc),
        closes=datetime.combine(closing_day, end, zone).astimezone(utc),
    )


@dataclass(frozen=True)
class Failures:
    """Failed runs of one step in one window."""

    attempts: int
    last_ended: datetime


@dataclass(frozen=True)
class Progress:
    """What one table has done in one window.

    `done` steps succeeded, for real and not as a dry run; `requested` ones wait, run, or were canceled by hand;
    `plans_due` are committed plans whose grace is over; `orphans_due` says that, at the rate at which the table leaks,
    it is time for a scan.
    """

    done: frozenset[Step] = frozenset()
    requested: frozenset[Step] = frozenset()
    failed: Mapping[Step, Failures] = field(default_factory=dict)
    plans_due: int = 0
    orphans_due: bool = True


@dataclass(frozen=True)
class Verdict:
    """The step to request now, as the `attempt`th of this window, or None; `why` is shown at the tick."""

    step: Step | None
    why: str
    attempt: int = 0


def due_step(now: datetime, window: MaintenanceWindow, progress: Progress) -> Verdict:
    """The step that the table needs now. At most one: each waits for the one before it."""
    if not window.opens <= now < window.closes:
        return Verdict(None, f"outside the quiet window {window.opens:%H:%M}-{window.closes:%H:%M} UTC")
    for step in Step:
        not_needed = (step is Step.DELETION and not progress.plans_due) or (
            step is Step.ORPHANS and not progress.orphans_due
        )
        if step in progress.done or not_needed:
            continue
        return _asked(step, now, window, progress)
    return Verdict(None, "every step of this window is done")


def deletion_due(now: datetime, window: MaintenanceWindow, progress: Progress) -> Verdict:
    """The hourly check: plans that become due after this window's deletion do not wait for the next window."""
    first = due_step(now, window, progress)
    if first.step is Step.DELETION:
        return first
    settled = {Step.PLAN, Step.HANDOFF, Step.COMMIT} <= progress.done
    if settled and progress.plans_due and window.opens <= now < window.closes:
        return _asked(Step.DELETION, now, window, progress)
    return Verdict(None, f"no deletion now: {'no plan is due' if settled else first.why}")


def _asked(step: Step, now: datetime, window: MaintenanceWindow, progress: Progress) -> Verdict:
    if step in progress.requested:
        return Verdict(None, f"{step} is under way, or was canceled by hand")
    if now < window.opening(step):
        return Verdict(None, f"{step} opens at {window.opening(step):%H:%M} UTC")
    failures = progress.failed.get(step)
    if failures is None:
        return Verdict(step, f"{step} is due", attempt=1)
    if failures.attempts >= MAX_ATTEMPTS:
        return Verdict(None, f"{step} failed {failures.attempts} times in this window and waits for a person")
    again = failures.last_ended + FIRST_BACKOFF * 2 ** (failures.attempts - 1)
    if now < again:
        return Verdict(None, f"{step} failed and is tried again at {again:%H:%M} UTC")
    return Verdict(step, f"{step} failed {failures.attempts} times before", attempt=failures.attempts + 1)
