from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.config.policies import QuietWindow, window_of
from artemis_lifecycle.scheduling.maintenance_window import (
    FIRST_BACKOFF,
    MAX_FAILURES,
    Progress,
    Runs,
    Step,
    WaitsFor,
    due_step,
    opening,
    priority,
)

pytestmark = pytest.mark.seconds

DEFAULT = QuietWindow()
EVERY = frozenset(Step)


def at(clock: str, day: str = "2026-01-31") -> datetime:
    return datetime.fromisoformat(f"{day}T{clock}:00+00:00")


def quiet_window(start: str, end: str, timezone: str = "UTC") -> QuietWindow:
    return QuietWindow.model_validate({"from": start, "to": end, "timezone": timezone})


def asked(clock: str, progress: Progress, quiet: QuietWindow = DEFAULT, day: str = "2026-01-31") -> Step | None:
    now = at(clock, day)
    return due_step(now, window_of(now, quiet), progress, EVERY).step


def planned(needs: Step | None = None, **values: Any) -> Progress:
    return Progress(planned=True, plan_needs=needs, **values)


class TestMaintenanceWindow:
    def test_the_default_window_opens_each_step_at_the_hour_of_the_design(self) -> None:
        window = window_of(at("03:00"), DEFAULT)
        assert window.day == date(2026, 1, 31)
        assert {step: opening(window, step).strftime("%H:%M") for step in Step} == {
            Step.PLAN: "00:00",
            Step.HANDOFF: "02:00",
            Step.COMMIT: "04:00",
            Step.DELETION: "00:00",
            Step.ORPHANS: "06:00",
        }

    def test_a_window_over_midnight_is_one_night(self) -> None:
        quiet = quiet_window("22:00", "06:00")
        before, after = window_of(at("23:30"), quiet), window_of(at("05:59", "2026-02-01"), quiet)
        assert before == after
        assert before.day == date(2026, 1, 31)
        assert before.closes - before.opens == timedelta(hours=8)

    def test_a_window_is_read_in_its_own_time_zone(self) -> None:
        window = window_of(at("22:00"), quiet_window("22:00", "06:00", "Europe/Berlin"))
        assert window.opens == at("21:00")

    def test_the_window_of_a_clock_change_is_an_hour_shorter_and_keeps_the_order(self) -> None:
        quiet = quiet_window("00:00", "08:00", "Europe/Berlin")
        window = window_of(datetime(2026, 3, 29, 0, 30, tzinfo=UTC), quiet)
        assert window.closes - window.opens == timedelta(hours=7)
        openings = [opening(window, step) for step in (Step.PLAN, Step.HANDOFF, Step.COMMIT, Step.ORPHANS)]
        assert openings == sorted(openings)

    def test_equal_ends_are_a_whole_day(self) -> None:
        window = window_of(at("11:00"), quiet_window("00:00", "00:00"))
        assert window.closes - window.opens == timedelta(days=1)


class TestOrder:
    def test_each_step_is_asked_for_at_its_hour_when_the_plan_needs_it(self) -> None:
        assert asked("00:00", Progress()) is Step.PLAN
        assert asked("02:00", planned(Step.HANDOFF)) is Step.HANDOFF
        assert asked("04:00", planned(Step.COMMIT)) is Step.COMMIT
        assert asked("04:05", planned(plans_due=1)) is Step.DELETION
        assert asked("06:00", planned()) is Step.ORPHANS
        assert asked("06:30", planned(scanned=True)) is None

    def test_a_step_before_its_hour_waits_for_the_clock(self) -> None:
        assert asked("01:59", planned(Step.HANDOFF)) is None
        assert asked("05:59", planned()) is None

    def test_a_step_delayed_past_the_next_ones_hour_comes_first(self) -> None:
        assert asked("07:00", Progress(plans_due=1)) is Step.PLAN
        assert asked("07:00", planned(Step.HANDOFF, plans_due=1)) is Step.HANDOFF
        assert asked("07:00", planned(Step.COMMIT, plans_due=1)) is Step.COMMIT

    def test_a_plan_made_by_hand_after_the_handoff_is_handed_off_too(self) -> None:
        ran = {Step.HANDOFF: Runs(1, 0, at("02:10"))}
        assert asked("03:30", planned(Step.HANDOFF, runs=ran)) is Step.HANDOFF

    def test_an_empty_plan_needs_nothing(self) -> None:
        assert asked("04:30", planned()) is None

    @pytest.mark.parametrize("stuck", [Step.HANDOFF, Step.COMMIT])
    def test_an_expiration_that_waits_stops_neither_deletions_nor_orphans(self, stuck: Step) -> None:
        failed = {stuck: Runs(MAX_FAILURES, MAX_FAILURES, at("05:00"))}
        assert asked("06:00", planned(stuck, plans_due=1, runs=failed)) is Step.DELETION
        assert asked("06:00", planned(stuck, runs=failed)) is Step.ORPHANS
        assert asked("06:00", planned(stuck, canceled=frozenset({stuck}))) is Step.ORPHANS

    def test_a_deletion_that_waits_does_not_hold_the_scan_back(self) -> None:
        failed = {Step.DELETION: Runs(MAX_FAILURES, MAX_FAILURES, at("05:00"))}
        assert asked("06:00", planned(plans_due=1, runs=failed)) is Step.ORPHANS

    @pytest.mark.parametrize("why", ["approval", "hold", "file"])
    def test_nor_does_a_deletion_that_ended_green_without_effect(self, why: WaitsFor) -> None:
        waits = {Step.DELETION: Runs(1, 0, at("05:00"), waits_for=why)}
        assert asked("06:30", planned(plans_due=1, runs=waits)) is Step.ORPHANS
        # A hold can be released during the night; the others take a person, or another night.
        again = Step.DELETION if why == "hold" else None
        assert asked("06:30", planned(plans_due=1, runs=waits, scanned=True)) is again

    def test_nor_does_one_that_is_switched_off(self) -> None:
        now = at("07:00")
        steps = frozenset(Step) - {Step.DELETION}
        assert due_step(now, window_of(now, DEFAULT), planned(plans_due=1), steps).step is Step.ORPHANS
        verdict = due_step(now, window_of(now, DEFAULT), planned(plans_due=1, scanned=True), steps)
        assert verdict.step is None and verdict.why == "deletion is switched off"

    def test_a_lost_file_is_not_tried_again_in_this_window(self) -> None:
        lost = {Step.PLAN: Runs(1, 1, at("00:10"), waits_for="file")}
        verdict = due_step(at("05:00"), window_of(at("05:00"), DEFAULT), Progress(runs=lost, scanned=True), EVERY)
        assert verdict.step is None and "missing or damaged" in verdict.why

    def test_the_scan_follows_a_due_deletion(self) -> None:
        assert asked("06:00", planned(plans_due=2)) is Step.DELETION
        assert asked("06:00", planned()) is Step.ORPHANS
        assert asked("06:00", planned(orphans_due=False)) is None

    def test_one_run_of_a_table_at_a_time(self) -> None:
        assert asked("07:00", planned(Step.COMMIT, plans_due=1, under_way=Step.ORPHANS)) is None

    def test_nothing_starts_outside_the_window(self) -> None:
        assert asked("08:00", Progress()) is None
        assert asked("17:00", planned(Step.COMMIT)) is None
        assert asked("06:00", Progress(), quiet_window("22:00", "06:00"), "2026-02-01") is None

    def test_only_the_steps_that_are_switched_on_run_by_themselves(self) -> None:
        now = at("07:00")
        window = window_of(now, DEFAULT)
        assert due_step(now, window, Progress(plans_due=1), frozenset({Step.PLAN})).step is Step.PLAN
        assert due_step(now, window, planned(Step.HANDOFF), frozenset({Step.PLAN})).step is None
        assert due_step(now, window, Progress(), frozenset({Step.ORPHANS})).step is Step.ORPHANS

    @given(
        minute=st.integers(0, 24 * 60 - 1),
        planned=st.booleans(),
        needs=st.sampled_from([None, Step.HANDOFF, Step.COMMIT]),
        plans_due=st.integers(0, 2),
        scanned=st.booleans(),
        canceled=st.frozensets(st.sampled_from(Step)),
        steps=st.frozensets(st.sampled_from(Step)),
    )
    def test_what_is_asked_for_is_open_needed_and_allowed(
        self,
        minute: int,
        planned: bool,
        needs: Step | None,
        plans_due: int,
        scanned: bool,
        canceled: frozenset[Step],
        steps: frozenset[Step],
    ) -> None:
        now = at("00:00") + timedelta(minutes=minute)
        window = window_of(now, DEFAULT)
        progress = Progress(planned, needs, plans_due, scanned=scanned, canceled=canceled)
        step = due_step(now, window, progress, steps).step
        if step is None:
            return
        assert step in steps - canceled
        assert opening(window, step) <= now < window.closes
        assert {
            Step.PLAN: not planned,
            Step.HANDOFF: planned and needs is Step.HANDOFF,
            Step.COMMIT: planned and needs is Step.COMMIT,
            Step.DELETION: plans_due > 0,
            Step.ORPHANS: not scanned,
        }[step]


class TestAgain:
    def failed(self, failures: int, clock: str = "00:10") -> Progress:
        return Progress(runs={Step.PLAN: Runs(failures, failures, at(clock))})

    def test_a_failed_step_is_asked_for_again_after_a_pause_that_doubles(self) -> None:
        assert timedelta(minutes=5) == FIRST_BACKOFF
        assert asked("00:14", self.failed(1)) is None
        assert asked("00:15", self.failed(1)) is Step.PLAN
        assert asked("00:19", self.failed(2)) is None
        assert asked("00:20", self.failed(2)) is Step.PLAN

    def test_each_attempt_has_its_number(self) -> None:
        now = at("03:00")
        progress = planned(plans_due=1, runs={Step.DELETION: Runs(3, 1, at("02:00"))})
        assert due_step(now, window_of(now, DEFAULT), progress, EVERY).attempt == 4

    def test_a_step_that_keeps_failing_waits_for_a_person(self) -> None:
        now = at("05:59")
        verdict = due_step(now, window_of(now, DEFAULT), self.failed(MAX_FAILURES), EVERY)
        assert verdict.step is None
        assert "waits for a person" in verdict.why

    def test_a_deletion_stopped_half_way_goes_on_an_hour_later(self) -> None:
        progress = planned(plans_due=1, scanned=True, runs={Step.DELETION: Runs(1, 0, at("05:00"))})
        assert asked("05:59", progress) is None
        assert asked("06:00", progress) is Step.DELETION


class Simulated:
    """One table through its windows: steps fail at random, take their time, and change what the table needs."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.day: date | None = None
        self.needs: Step | None = None
        self.due_at: list[datetime] = []
        self.running: tuple[Step, datetime] | None = None
        self.asked: list[tuple[datetime, Step]] = []
        self.begin(None)

    def begin(self, day: date | None) -> None:
        self.day, self.planned, self.scanned = day, False, False
        self.runs: dict[Step, Runs] = {}

    def tick(self, now: datetime, quiet: QuietWindow) -> None:
        window = window_of(now, quiet)
        if self.running is not None and self.running[1] <= now:
            self.end(self.running[0], now)
        if window.day != self.day:
            self.begin(window.day)
        due = sum(at <= now for at in self.due_at)
        progress = Progress(
            planned=self.planned,
            plan_needs=self.needs,
            plans_due=due,
            scanned=self.scanned,
            under_way=None if self.running is None else self.running[0],
            runs=self.runs,
        )
        step = due_step(now, window, progress, EVERY).step
        if step is not None:
            assert self.running is None
            assert window.opens <= now < window.closes
            self.asked.append((now, step))
            self.running = step, now + timedelta(minutes=self.dice.choice([1, 5, 45]))

    def end(self, step: Step, now: datetime) -> None:
        self.running = None
        before = self.runs.get(step, Runs(0, 0, now))
        failed = self.dice.random() < 0.2
        self.runs[step] = Runs(before.attempts + 1, before.failures + 1 if failed else 0, now)
        if failed:
            return
        if step is Step.PLAN:
            self.planned, self.needs = True, Step.HANDOFF
        elif step is Step.HANDOFF:
            self.needs = Step.COMMIT
        elif step is Step.COMMIT:
            self.needs = None
            self.due_at.append(now + timedelta(days=1))
        elif step is Step.DELETION:
            self.due_at = [each for each in self.due_at if each > now]
        else:
            self.scanned = True


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("seed", range(10))
def test_thirty_windows_end_with_everything_done(zone: str, seed: int) -> None:
    """Over the end of summer time, with failures, plans by hand at 02:30 local, and hours without the daemon."""
    quiet, table = quiet_window("00:00", "08:00", zone), Simulated(random.Random(seed))
    now, handmade = datetime(2026, 10, 14, 12, tzinfo=UTC), 0
    for _ in range(30 * 24 * 12):
        now += timedelta(minutes=5)
        local = now.astimezone(ZoneInfo(zone))
        if (local.hour, local.minute) == (2, 30) and local.day % 7 == 0 and table.running is None:
            table.needs, handmade = Step.HANDOFF, handmade + 1
        if local.day % 5 == 0 and local.hour < 5:
            continue  # the daemon is down
        table.tick(now, quiet)
    table.tick(now, quiet)
    steps = Counter(step for _, step in table.asked)
    assert handmade > 0
    assert table.needs is None
    assert steps[Step.PLAN] >= 30
    assert len(table.due_at) <= 2
    # A window has one plan and one scan, but for those that failed.
    assert steps[Step.PLAN] <= 30 * 2
    assert steps[Step.ORPHANS] <= 30 * 2


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 1 << 60), st.integers(0, 1 << 60))
def test_priority_grows_with_the_wait_and_with_the_bytes(hours: int, more: int, size: int, larger: int) -> None:
    short, long = sorted((timedelta(hours=hours), timedelta(hours=more)))
    small, large = sorted((size, larger))
    assert priority(short, small) <= priority(long, small) <= priority(long, large) <= priority(None, large)


def test_a_day_of_waiting_outweighs_every_table_that_fits_in_16_tebibytes() -> None:
    assert priority(timedelta(hours=48), 0) >= priority(timedelta(hours=24), (1 << 44) - 1)
    assert priority(timedelta(hours=24), 1 << 45) > priority(timedelta(hours=24), 1 << 44)
