"""Rule `paimon`: the worked example of Paimon's "Manage Snapshots", and a restatement of its expiration."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.metadata.types import LogEntry, Ref
from artemis_lifecycle.retention.rules import (
    Decision,
    HistoryView,
    HoldView,
    RetentionSettings,
    SnapshotView,
    decide,
)
from artemis_lifecycle_tests.retention import oracle
from artemis_lifecycle_tests.retention.histories import examples

MINUTE = 60_000
HOUR = 60 * MINUTE


def clock(text: str) -> int:
    hour, minute = map(int, text.split(":"))
    return int(datetime(2023, 7, 6, hour, minute, tzinfo=UTC).timestamp() * 1000)


def linear(times: dict[int, int], refs: dict[str, Ref] | None = None) -> HistoryView:
    """Snapshots numbered and committed on main in the order of their numbers."""
    numbers = sorted(times)
    snapshots = [SnapshotView(n, n - 1 if n - 1 in times else None, times[n]) for n in numbers]
    log = [LogEntry(times[n], n) for n in numbers]
    return HistoryView(snapshots, {"main": Ref("main", numbers[-1], "branch"), **(refs or {})}, log, numbers[-1])


COMMITS = ("10:00", "10:20", "10:40", "11:00", "11:20", "11:30", "11:35", "11:36")
SURVIVORS = (
    {1},
    {1, 2},
    {1, 2, 3},
    {1, 2, 3, 4},
    {2, 3, 4, 5},
    {3, 4, 5, 6},
    {3, 4, 5, 6, 7},
    {4, 5, 6, 7, 8},
)
"""All snapshots after the expiration check that follows each commit, as Paimon's page has them."""


def walk(rule: RetentionSettings) -> list[set[int]]:
    """The survivors after each commit of the example, where every commit is followed by an expiration."""
    alive: dict[int, int] = {}
    rows = []
    for number, text in enumerate(COMMITS, start=1):
        alive[number] = clock(text)
        kept = decide(linear(alive), rule, clock(text)).kept
        alive = {n: at for n, at in alive.items() if n in kept}
        rows.append(set(alive))
    return rows


def test_the_worked_example_of_paimons_documentation() -> None:
    rule = RetentionSettings(rule="paimon", min_snapshots=2, max_snapshots=5, window_ms=HOUR)
    assert walk(rule) == list(SURVIVORS)


def test_the_worked_example_under_the_next_timestamp_reading() -> None:
    # A snapshot goes once its successor, too, is older than an hour: at 11:30 snapshot 1 (2 is from 10:20), at 11:35
    # none, and at 11:36 the fifth-newest bound alone removes 2 and 3.
    rule = RetentionSettings(rule="paimon", min_snapshots=2, max_snapshots=5, window_ms=HOUR, next_timestamp=True)
    assert walk(rule) == [
        {1},
        {1, 2},
        {1, 2, 3},
        {1, 2, 3, 4},
        {1, 2, 3, 4, 5},
        {2, 3, 4, 5, 6},
        {3, 4, 5, 6, 7},
        {4, 5, 6, 7, 8},
    ]


@pytest.mark.seconds
@examples(600)
@given(
    steps=st.lists(st.integers(-1, 5), min_size=1, max_size=20),
    first=st.integers(1, 5),
    retained=st.integers(0, 30),
    least=st.integers(1, 6),
    more=st.none() | st.integers(0, 8),
    limit=st.none() | st.integers(1, 8),
    consumer=st.none() | st.integers(0, 19),
    later=st.integers(0, 10),
    next_timestamp=st.booleans(),
)
def test_survivors_are_paimons(
    steps: list[int],
    first: int,
    retained: int,
    least: int,
    more: int | None,
    limit: int | None,
    consumer: int | None,
    later: int,
    next_timestamp: bool,
) -> None:
    at, times = 0, {}
    for number, step in enumerate(steps, start=first):
        at += step * MINUTE
        times[number] = at
    now = at + later * MINUTE
    position = None if consumer is None else first + consumer % len(steps)
    rule = RetentionSettings(
        rule="paimon",
        window_ms=retained * MINUTE,
        min_snapshots=least,
        max_snapshots=None if more is None else least + more,
        expire_limit=limit,
        next_timestamp=next_timestamp,
    )
    holds = [] if position is None else [HoldView("c", "flink", "reads on", (position,), kind="consumer")]
    decision = decide(linear(times), rule, now, holds=holds)
    assert set(decision.kept) == oracle.paimon_survivors(
        times,
        now=now,
        time_retained=retained * MINUTE,
        retain_min=least,
        retain_max=2**31 - 1 if more is None else least + more,
        limit=2**31 - 1 if limit is None else limit,
        consumer=position,
        next_timestamp=next_timestamp,
    )
    assert all(decision.kept.values())


def kinds(decision: Decision, snapshot_id: int) -> set[str]:
    return {reason.kind for reason in decision.kept[snapshot_id]}


def test_each_kept_snapshot_says_which_options_keep_it() -> None:
    times = {number: clock(text) for number, text in enumerate(COMMITS, start=1)}
    rule = RetentionSettings(rule="paimon", min_snapshots=2, window_ms=10 * MINUTE, expire_limit=4)
    decision = decide(linear(times), rule, clock("11:40"))
    assert decision.expired == (1, 2, 3, 4)
    assert kinds(decision, 5) == {"expire_limit"}
    assert kinds(decision, 6) == {"time_retained", "expire_limit"}
    assert kinds(decision, 8) == {"num_retained_min", "time_retained", "expire_limit", "ref"}


def test_a_tag_keeps_its_snapshot_and_does_not_use_up_the_limit() -> None:
    times = {number: clock(text) for number, text in enumerate(COMMITS, start=1)}
    rule = RetentionSettings(rule="paimon", window_ms=0, expire_limit=1)
    decision = decide(linear(times, {"t": Ref("t", 1, "tag")}), rule, clock("23:00"))
    assert decision.expired == (2,)
    assert "ref" in kinds(decision, 1)


def test_a_hold_keeps_its_snapshot_and_lets_later_ones_go() -> None:
    times = {number: clock(text) for number, text in enumerate(COMMITS, start=1)}
    hold = HoldView("h1", "legal", "case 12", (3,))
    decision = decide(linear(times), RetentionSettings(rule="paimon", window_ms=0), clock("23:00"), holds=[hold])
    assert set(decision.kept) == {3, 8}


def test_a_maximum_below_the_minimum_is_an_error() -> None:
    with pytest.raises(BadInput, match="must not be less than min_snapshots"):
        decide(linear({1: 0}), RetentionSettings(rule="paimon", min_snapshots=5, max_snapshots=2), 0)
