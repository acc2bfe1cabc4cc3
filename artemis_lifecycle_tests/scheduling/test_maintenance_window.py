from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.config.policies import QuietWindow
from artemis_lifecycle.scheduling.maintenance_window import (
    FIRST_BACKOFF,
    MAX_ATTEMPTS,
    Failures,
    Progress,
    Step,
    deletion_due,
    due_step,
    window_of,
)

DEFAULT = QuietWindow()
STEPS = tuple(Step)


def at(clock: str, day: str = "2026-01-31") -> datetime:
    return datetime.fromisoformat(f"{day}T{clock}:00+00:00")


def quiet_window(start: str, end: str, timezone: str = "UTC") -> QuietWindow:
    return QuietWindow.model_validate({"from": start, "to": end, "timezone": timezone})


def asked(clock: str, progress: Progress, quiet: QuietWindow = DEFAULT, day: str = "2026-01-31") -> Step | None:
    now = at(clock, day)
    return due_step(now, window_of(now, quiet), progress).step


def done(*steps: Step, plans_due: int = 0) -> Progress:
    return Progress(done=frozenset(steps), plans_due=plans_due)


class TestMaintenanceWindow:
    def test_the_default_window_opens_each_step_at_the_hour_of_the_design(self) -> None:
        window = window_of(at("03:00"), DEFAULT)
        assert window.day == date(2026, 1, 31)
        assert {step: window.opening(step).strftime("%H:%M") for step in Step} == {
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
        openings = [window.opening(step) for step in (Step.PLAN, Step.HANDOFF, Step.COMMIT, Step.ORPHANS)]
        assert openings == sorted(openings)

    def test_equal_ends_are_a_whole_day(self) -> None:
        window = window_of(at("11:00"), quiet_window("00:00", "00:00"))
        assert window.closes - window.opens == timedelta(days=1)


class TestOrder:
    def test_each_step_is_asked_for_at_its_hour_when_the_one_before_is_done(self) -> None:
        assert asked("00:00", done()) is Step.PLAN
        assert asked("02:00", done(Step.PLAN)) is Step.HANDOFF
        assert asked("04:00", done(Step.PLAN, Step.HANDOFF)) is Step.COMMIT
        assert asked("04:05", done(Step.PLAN, Step.HANDOFF, Step.COMMIT, plans_due=1)) is Step.DELETION
        assert asked("06:00", done(*STEPS[:4])) is Step.ORPHANS
        assert asked("06:30", done(*STEPS)) is None

    def test_a_step_before_its_hour_waits_for_the_clock(self) -> None:
        assert asked("01:59", done(Step.PLAN)) is None
        assert asked("05:59", done(*STEPS[:4])) is None

    @pytest.mark.parametrize("late", range(4))
    def test_a_step_delayed_past_the_next_ones_hour_comes_first_and_the_next_follows_it_late(self, late: int) -> None:
        before, step, following = STEPS[:late], STEPS[late], STEPS[late + 1]
        now = "07:00"
        assert asked(now, done(*before, plans_due=1)) is step
        under_way = replace(done(*before, plans_due=1), requested=frozenset({step}))
        assert asked(now, under_way) is None
        assert asked(now, done(*before, step, plans_due=1)) is following

    def test_the_orphan_scan_waits_for_a_due_deletion_and_not_for_one_that_has_nothing_to_delete(self) -> None:
        committed = done(Step.PLAN, Step.HANDOFF, Step.COMMIT)
        assert asked("06:00", replace(committed, plans_due=2)) is Step.DELETION
        assert asked("06:00", committed) is Step.ORPHANS

    def test_deletion_waits_for_the_handoff_and_the_commit_of_the_window(self) -> None:
        assert asked("03:00", done(Step.PLAN, plans_due=3)) is Step.HANDOFF
        assert asked("03:00", done(Step.PLAN, Step.HANDOFF, plans_due=3)) is None

    def test_nothing_starts_outside_the_window(self) -> None:
        assert asked("08:00", done()) is None
        assert asked("17:00", done(Step.PLAN)) is None
        assert asked("06:00", done(), quiet_window("22:00", "06:00"), "2026-02-01") is None

    def test_the_next_window_begins_with_a_plan(self) -> None:
        assert asked("00:00", done(), day="2026-02-01") is Step.PLAN

    @given(
        minute=st.integers(0, 24 * 60 - 1),
        finished=st.frozensets(st.sampled_from(Step)),
        requested=st.frozensets(st.sampled_from(Step)),
        plans_due=st.integers(0, 2),
    )
    def test_no_step_is_asked_for_before_the_ones_before_it_are_done(
        self, minute: int, finished: frozenset[Step], requested: frozenset[Step], plans_due: int
    ) -> None:
        now = at("00:00") + timedelta(minutes=minute)
        window = window_of(now, DEFAULT)
        step = due_step(now, window, Progress(done=finished, requested=requested, plans_due=plans_due)).step
        if step is None:
            return
        assert step not in finished | requested
        assert window.opening(step) <= now < window.closes
        needed = set(STEPS[: STEPS.index(step)]) - ({Step.DELETION} if not plans_due else set())
        assert needed <= finished


class TestAgain:
    def failed(self, attempts: int, clock: str = "00:10") -> Progress:
        return Progress(failed={Step.PLAN: Failures(attempts, at(clock))})

    def test_a_failed_step_is_asked_for_again_after_a_pause_that_doubles(self) -> None:
        assert timedelta(minutes=5) == FIRST_BACKOFF
        assert asked("00:14", self.failed(1)) is None
        assert asked("00:15", self.failed(1)) is Step.PLAN
        assert asked("00:19", self.failed(2)) is None
        assert asked("00:20", self.failed(2)) is Step.PLAN

    def test_a_step_that_keeps_failing_waits_for_a_person(self) -> None:
        now = at("07:59")
        verdict = due_step(now, window_of(now, DEFAULT), self.failed(MAX_ATTEMPTS))
        assert verdict.step is None
        assert "waits for a person" in verdict.why

    def test_a_later_step_never_passes_one_that_failed(self) -> None:
        assert asked("07:00", replace(self.failed(MAX_ATTEMPTS), plans_due=1)) is None

    def test_plans_that_become_due_after_the_deletion_are_deleted_at_the_next_hour(self) -> None:
        now, progress = at("07:00"), done(*STEPS, plans_due=1)
        window = window_of(now, DEFAULT)
        assert due_step(now, window, progress).step is None
        assert deletion_due(now, window, progress).step is Step.DELETION
        assert deletion_due(now, window, done(*STEPS)).step is None
        assert deletion_due(at("08:00"), window, progress).step is None
        under_way = replace(progress, requested=frozenset({Step.DELETION}))
        assert deletion_due(now, window, under_way).step is None
