"""Whether a window suffices: runs are placed as the queue places them, and no table is said to be late that is not."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.config.policies import MaintenanceWindow
from artemis_lifecycle.scheduling.maintenance_window import (
    NEXT_REQUEST,
    DueRun,
    PlacedRun,
    Progress,
    Step,
    TableWork,
    forecast,
    placed,
    steps_left,
    work_of,
)

MIDNIGHT = datetime(2026, 1, 31, tzinfo=UTC)
WINDOW = MaintenanceWindow(date(2026, 1, 31), MIDNIGHT, MIDNIGHT + timedelta(hours=8))
EVERY = frozenset(Step)
HOUR = 3_600.0


def at(hours: float) -> datetime:
    return MIDNIGHT + timedelta(hours=hours)


def work(table: str, *runs: tuple[float, float]) -> TableWork:
    """Runs as (hour at which the step opens, hours that it takes)."""
    return TableWork(table, WINDOW, tuple(DueRun("plan", at(due), timedelta(hours=takes)) for due, takes in runs))


class TestWhatIsLeft:
    def test_a_table_that_had_something_to_expire_is_expected_to_have_it_again(self) -> None:
        assert steps_left(Progress(), EVERY, is_busy=True, cold_tier=True) == (
            Step.PLAN,
            Step.HANDOFF,
            Step.COMMIT,
            Step.ORPHANS,
        )
        assert steps_left(Progress(), EVERY, is_busy=True, cold_tier=False) == (Step.PLAN, Step.COMMIT, Step.ORPHANS)
        assert steps_left(Progress(orphans_due=False), EVERY, is_busy=False, cold_tier=True) == ()

    def test_a_planned_table_needs_what_its_plan_needs(self) -> None:
        planned = Progress(planned=True, plan_needs=Step.COMMIT, plans_due=2, scanned=True)
        assert steps_left(planned, EVERY, is_busy=True, cold_tier=True) == (Step.COMMIT, Step.DELETION)
        empty = Progress(planned=True, scanned=True)
        assert steps_left(empty, EVERY, is_busy=True, cold_tier=True) == ()

    def test_what_does_not_run_by_itself_is_not_expected_and_stops_what_follows_it(self) -> None:
        off = EVERY - {Step.HANDOFF}
        assert steps_left(Progress(orphans_due=False), off, is_busy=True, cold_tier=True) == (Step.PLAN,)
        canceled = Progress(plans_due=1, canceled=frozenset({Step.PLAN, Step.ORPHANS}))
        assert steps_left(canceled, EVERY, is_busy=True, cold_tier=True) == (Step.DELETION,)


class TestDurations:
    MEANS = {"plan": {"a": 60.0, "b": 120.0}, "commit": {"b": 30.0}}  # noqa: RUF012

    def test_a_table_has_its_own_duration_else_the_mean_of_the_others(self) -> None:
        found = work_of("a", WINDOW, (Step.PLAN, Step.HANDOFF, Step.COMMIT), self.MEANS, whole_walk=False)
        assert [run.takes.total_seconds() for run in found.runs] == [60.0, 0.0, 30.0]
        assert [run.due for run in found.runs] == [at(0), at(2), at(4)]
        new = work_of("new", WINDOW, (Step.PLAN,), self.MEANS, whole_walk=False)
        assert new.runs[0].takes.total_seconds() == 90.0

    def test_the_whole_walk_is_one_run(self) -> None:
        means = {**self.MEANS, "nightly_walk": {"a": 200.0}}
        found = work_of("a", WINDOW, (Step.PLAN, Step.COMMIT), means, whole_walk=True)
        assert found.runs == (DueRun("nightly_walk", at(0), timedelta(seconds=200)),)
        # What a walk left behind is requested step by step.
        (left,) = work_of("a", WINDOW, (Step.COMMIT,), means, whole_walk=True).runs
        assert left.step == "commit"


class TestForecast:
    def test_a_window_suffices_or_names_the_tables_that_it_leaves_behind(self) -> None:
        fleet = [work("a", (0, 3)), work("b", (0, 3)), work("c", (0, 3))]
        (found,) = forecast(fleet, at(-5), 1)
        assert (found.runs, found.tables, found.ends, found.late) == (3, 3, at(9), ("c",))
        assert not found.suffices and "Not done by then: c" in str(found) and "1 at once" in str(found)
        (found,) = forecast(fleet, at(-5), 2)
        assert found.suffices and found.ends == at(6) and "suffices" in str(found)
        (found,) = forecast(fleet, at(4), 2)
        assert found.ends == at(10) and found.late == ("c",)
        (found,) = forecast(fleet, at(4), None)
        assert found.ends == at(7)

    def test_a_step_waits_for_its_hour_even_in_an_empty_window(self) -> None:
        (found,) = forecast([work("a", (0, 0.5), (6, 2.5))], at(0), 4)
        assert found.ends == at(8.5) and found.late == ("a",)

    def test_windows_in_two_time_zones_share_the_places(self) -> None:
        early = MaintenanceWindow(date(2026, 1, 31), at(0), at(2))
        fleet = [work("a", (0, 3)), TableWork("b", early, (DueRun("plan", at(0), timedelta(hours=1)),))]
        first, second = forecast(fleet, at(0), 1)
        assert (first.closes, first.late) == (at(2), ("b",))
        assert second.suffices

    def test_nothing_to_do_needs_no_window(self) -> None:
        assert forecast([], at(0), 2) == forecast([work("a")], at(0), 2) == ()


_fleets = st.lists(
    st.lists(st.tuples(st.integers(0, 600), st.integers(1, 120)), max_size=4), max_size=12
)  # minutes: (due, takes)


@given(fleet=_fleets, places=st.integers(1, 5), begins=st.integers(-60, 300))
def test_runs_are_placed_as_a_queue_with_so_many_places_does_it(
    fleet: list[list[tuple[int, int]]], places: int, begins: int
) -> None:
    tables = [work(str(number), *((due / 60, takes / 60) for due, takes in runs)) for number, runs in enumerate(fleet)]
    now = at(begins / 60)
    found = placed(tables, now, places)
    assert len(found) == sum(map(len, fleet))
    of_table: dict[str, list[PlacedRun]] = {}
    for run in found:
        of_table.setdefault(run.table, []).append(run)
    for table in tables:
        ready = now
        for due, run in zip(table.runs, of_table.get(table.table, ()), strict=True):
            ready = max(ready, due.due)
            assert run.begins >= ready and run.ends - run.begins == due.takes
            running = [each for each in found if each.begins < run.begins < each.ends]
            beside = [each for each in found if each.begins <= run.begins < each.ends]
            assert len(beside) <= places
            # No place is empty while a run waits.
            assert run.begins == ready or len(running) + sum(each.ends == run.begins for each in found) >= places
            ready = run.ends + NEXT_REQUEST
    alone = {run.table: run.ends for run in placed(tables, now, None)}
    assert all(run.ends <= of_table[run.table][-1].ends for run in found)
    assert all(runs[-1].ends >= alone[table] for table, runs in of_table.items())
