"""Holds and calendar thinning: they compose with every rule, and only ever keep more."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.errors import Refused
from artemis_lifecycle.metadata.types import LogEntry, Ref
from artemis_lifecycle.retention.rules import (
    HistoryView,
    HoldView,
    RetentionSettings,
    SnapshotView,
    ThinningTier,
    decide,
    held_by,
    newest_of_each,
)
from artemis_lifecycle_tests.retention.histories import MINUTE, TableModel, examples, tables

HOUR = 60 * MINUTE
DAY = 24 * HOUR
HOURLY_DAILY_MONTHLY = (ThinningTier("hour", DAY), ThinningTier("day", 30 * DAY), ThinningTier("month"))
RULES: tuple[Literal["as-of", "iceberg", "paimon"], ...] = ("as-of", "iceberg", "paimon")


def instant(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def on_main(times: list[int]) -> HistoryView:
    snapshots = [SnapshotView(n, n - 1 or None, at) for n, at in enumerate(times, start=1)]
    log = [LogEntry(s.timestamp_ms, s.snapshot_id) for s in snapshots]
    return HistoryView(snapshots, {"main": Ref("main", len(times), "branch")}, log, len(times))


@pytest.mark.seconds
@examples(400)
@given(
    table=tables(gaps=True),
    rule=st.sampled_from(RULES),
    window=st.integers(0, 20),
    held=st.lists(st.tuples(st.lists(st.integers(0, 40), max_size=3), st.none() | st.integers(-3, 3)), max_size=3),
    kind=st.sampled_from(["legal", "lease", "consumer"]),
    thin=st.booleans(),
)
def test_they_add_to_every_rule_and_take_nothing(
    table: TableModel,
    rule: Literal["as-of", "iceberg", "paimon"],
    window: int,
    held: list[tuple[list[int], int | None]],
    kind: Literal["legal", "lease", "consumer"],
    thin: bool,
) -> None:
    now, ids, view = table.clock + MINUTE, table.ids(), table.view()
    holds = [
        HoldView(
            f"h{number}",
            "owner",
            "reason",
            tuple(ids[n % len(ids)] for n in numbers) if ids else (404,),
            None if until is None else now + until,
            kind,
        )
        for number, (numbers, until) in enumerate(held)
        if numbers or kind != "consumer"
    ]
    plain = RetentionSettings(rule=rule, window_ms=window * MINUTE)
    more = RetentionSettings(
        rule=rule, window_ms=window * MINUTE, thinning=(ThinningTier("hour", HOUR), ThinningTier("day")) if thin else ()
    )
    without = decide(view, plain, now)
    decision = decide(view, more, now, holds=holds)
    assert set(without.kept) <= set(decision.kept)
    for snapshot_id, reasons in without.kept.items():
        if rule != "paimon":
            assert set(reasons) <= set(decision.kept[snapshot_id]) | {
                r for r in reasons if r.kind == "unreferenced_young"
            }
    for hold in holds:
        # They are in force, also where the plan is for a later instant. A consumer whose position is gone may have to
        # read anything.
        first = min((ids.index(i) for i in hold.snapshot_ids if i in ids), default=0)
        must = ids if not hold.snapshot_ids else ids[first:] if kind == "consumer" else hold.snapshot_ids
        for snapshot_id in must:
            if snapshot_id in ids:
                assert any(
                    reason.name == hold.hold_id and reason.owner == "owner" for reason in decision.kept[snapshot_id]
                )


_holding = st.fixed_dictionaries(
    {
        "numbers": st.lists(st.integers(0, 40), max_size=2),
        "until": st.none() | st.integers(-2, 2),
        "kind": st.sampled_from(["legal", "lease", "consumer"]),
    }
)
_thinning = st.lists(
    st.builds(
        ThinningTier,
        st.sampled_from(["hour", "day", "week", "month", "year"]),
        st.none() | st.integers(0, 3 * HOUR // MINUTE).map(lambda minutes: minutes * MINUTE),
    ),
    max_size=3,
).map(tuple)


@pytest.mark.slow
@examples(600)
@given(
    table=tables(gaps=True),
    rule=st.sampled_from(RULES),
    window=st.integers(0, 40),
    older_than=st.none() | st.integers(-3, 40),
    least=st.integers(1, 4),
    most=st.none() | st.integers(0, 4),
    held=st.lists(_holding, max_size=3),
    thinning=_thinning,
    limit=st.none() | st.integers(1, 4),
    explicit=st.lists(st.integers(0, 40), max_size=2),
    later=st.integers(0, 10),
)
def test_nothing_inside_the_window_is_removed_by_any_of_them(
    table: TableModel,
    rule: Literal["as-of", "iceberg", "paimon"],
    window: int,
    older_than: int | None,
    least: int,
    most: int | None,
    held: list[dict[str, Any]],
    thinning: tuple[ThinningTier, ...],
    limit: int | None,
    explicit: list[int],
    later: int,
) -> None:
    """Holds, thinning and a limit keep all that the rule keeps without them. Explicit ids, which do remove, remove
    nothing inside the window either, but for rule iceberg, where RemoveSnapshots lets them."""
    now, ids, view = table.clock + later * MINUTE, table.ids(), table.view()
    plain = RetentionSettings(
        rule=rule,
        window_ms=window * MINUTE,
        older_than_ms=None if older_than is None else now - older_than * MINUTE,
        min_snapshots=least,
        max_snapshots=least + most if rule == "paimon" and most is not None else None,
    )
    holds = [
        HoldView(
            f"h{number}",
            "owner",
            "reason",
            tuple(ids[n % len(ids)] for n in terms["numbers"]) if ids else (404,),
            None if terms["until"] is None else now + terms["until"],
            terms["kind"],
        )
        for number, terms in enumerate(held)
    ]
    without = decide(view, plain, now)
    more = replace(plain, thinning=thinning, expire_limit=limit if rule == "paimon" else None)
    decision = decide(view, more, now, holds=holds)
    assert set(without.kept) <= set(decision.kept)
    assert set(decision.expired_refs) <= set(without.expired_refs)
    if not ids:
        return
    for number in explicit:
        chosen = ids[number % len(ids)]
        try:
            named = decide(view, replace(more, explicit_ids=(chosen,)), now, holds=holds)
        except Refused:
            continue
        assert set(decision.kept) - set(named.kept) <= {chosen}
        if rule != "iceberg" and chosen not in decision.expired:
            at = next(s.timestamp_ms for s in view.snapshots if s.snapshot_id == chosen)
            assert at < decision.cutoff_ms
            assert not {reason.kind for reason in decision.kept[chosen]} & {"window", "window_edge", "hold", "lease"}


@pytest.mark.seconds
@examples(300)
@given(
    table=tables(skew=False),
    window=st.integers(0, 40),
    least=st.integers(1, 4),
    limit=st.none() | st.integers(1, 4),
    later=st.integers(0, 10),
)
def test_paimons_next_timestamp_reading_only_keeps_more(
    table: TableModel, window: int, least: int, limit: int | None, later: int
) -> None:
    """Where clocks go forward; it keeps what was current at the window's edge as well."""
    now, view = table.clock + later * MINUTE, table.view()
    own = RetentionSettings(rule="paimon", window_ms=window * MINUTE, min_snapshots=least, expire_limit=limit)
    kept = decide(view, own, now).kept
    longer = decide(view, replace(own, next_timestamp=True), now).kept
    assert set(kept) <= set(longer)


@pytest.mark.parametrize("rule", RULES)
def test_a_consumer_whose_position_is_gone_keeps_everything(rule: Literal["as-of", "iceberg", "paimon"]) -> None:
    consumer = HoldView("c", "flink", "reads on", (404,), kind="consumer")
    decision = decide(on_main([0, 1, 2]), RetentionSettings(rule=rule, window_ms=0), 10 * DAY, holds=[consumer])
    assert decision.expired == ()
    assert str(decision.kept[1][-1]) == "consumer's position c of flink: reads on"


def test_the_holds_on_each_snapshot_are_reported_by_kind() -> None:
    holds = [
        HoldView("h1", "legal", "case 12", (1,)),
        HoldView("h2", "ana", "reads", (2,), 11 * DAY, "lease"),
        HoldView("h3", "flink", "reads on", (2,), kind="consumer"),
    ]
    assert held_by(on_main([0, 1, 2]), holds, 10 * DAY) == {
        1: ("legal hold h1 of legal: case 12",),
        2: (
            "consumer's position h3 of flink: reads on",
            "reader's lease h2 of ana: reads, until 1970-01-12 00:00:00 UTC",
        ),
        3: ("consumer's position h3 of flink: reads on",),
    }


@pytest.mark.parametrize("rule", RULES)
def test_a_hold_on_the_whole_table_keeps_its_refs_too(rule: Literal["as-of", "iceberg", "paimon"]) -> None:
    view = on_main([0, 1, 2])
    refs = {**view.refs, "old": Ref("old", 1, "tag", max_ref_age_ms=1), "lost": Ref("lost", 99, "tag")}
    view = HistoryView(view.snapshots, refs, view.log, 3)
    options = RetentionSettings(rule=rule, window_ms=0)
    assert decide(view, options, 10 * DAY).expired_refs == ("lost", "old")
    held = decide(view, options, 10 * DAY, holds=[HoldView("h", "legal", "all of it")])
    assert (held.expired, held.expired_refs) == ((), ())


@pytest.mark.parametrize("rule", RULES)
def test_an_explicit_id_under_a_hold_is_refused_by_name(rule: Literal["as-of", "iceberg", "paimon"]) -> None:
    hold = HoldView("h-7", "legal", "case 12", (1,), until_ms=20 * DAY)
    options = RetentionSettings(rule=rule, window_ms=0, explicit_ids=(1,))
    with pytest.raises(Refused, match=r"Cannot expire 1: legal hold h-7 of legal: case 12, until 1970-01-21"):
        decide(on_main([0, 1, 2]), options, 10 * DAY, holds=[hold])


def test_a_snapshot_has_all_its_reasons() -> None:
    view = on_main([0, DAY, 2 * DAY])
    refs = {**view.refs, "audit": Ref("audit", 2, "tag"), "work": Ref("work", 2, "branch", min_snapshots_to_keep=2)}
    view = HistoryView(view.snapshots, refs, view.log, 3)
    holds = [HoldView("h1", "legal", "case 12", (2,)), HoldView("h2", "ana", "reads", (2,), 3 * DAY, "lease")]
    options = RetentionSettings(window_ms=DAY + HOUR, thinning=(ThinningTier("day"),))
    decision = decide(view, options, 3 * DAY, holds=holds)
    assert [(reason.kind, reason.name) for reason in decision.kept[2]] == [
        ("ref", "audit"),
        ("ref", "work"),
        ("hold", "h1"),
        ("lease", "h2"),
        ("branch_count", "work"),
        ("window_edge", None),
        ("thinning", "day"),
    ]
    assert str(decision.kept[2][3]) == "reader's lease h2 of ana: reads, until 1970-01-04 00:00:00 UTC"


def test_hourly_for_a_day_daily_for_a_month_monthly_for_ever() -> None:
    begin, end = instant("2024-01-01T00:00"), instant("2024-06-15T12:10")
    times = list(range(begin, end, 20 * MINUTE))
    now = end
    options = RetentionSettings(rule="iceberg", older_than_ms=now, thinning=HOURLY_DAILY_MONTHLY)
    kept = {times[snapshot_id - 1] for snapshot_id in decide(on_main(times), options, now).kept}

    def newest(buckets: dict[Any, int], since: int | None) -> set[int]:
        return {at for at in buckets.values() if since is None or at >= since}

    def by(form: str) -> dict[Any, int]:
        return {datetime.fromtimestamp(at / 1000, UTC).strftime(form): at for at in times}

    assert kept == (
        newest(by("%Y-%m-%d %H"), now - DAY) | newest(by("%Y-%m-%d"), now - 30 * DAY) | newest(by("%Y-%m"), None)
    )
    # The newest of 31 May is the newest of May.
    assert len(kept) == 24 + 30 + 5 - 1


@pytest.mark.parametrize("rule", RULES)
def test_what_thinning_once_chose_it_chooses_again_every_night(rule: Literal["as-of", "iceberg", "paimon"]) -> None:
    table = TableModel(instant("2024-01-01T00:30"))
    chosen: set[int] = set()
    last_of_month: dict[str, int] = {}
    was_main: set[int] = set()
    for number in range(200 * 4):
        table.append()
        if table.made % 5 == 0:
            table.stage()
        if number % 40 == 7 and table.current is not None:
            # An audit branch gets a later commit of the same day, and outlives the window before it is dropped.
            table.refs["audit"] = Ref("audit", table.current, "branch", max_snapshot_age_ms=9 * DAY)
        elif number % 40 == 8:
            table.append_to("audit")
        elif number % 40 == 39:
            del table.refs["audit"]
        if number % 60 == 30 and chosen:
            # Somebody goes on from a snapshot that thinning kept.
            table.refs["again"] = Ref("again", max(chosen, key=table.ids().index), "branch", max_snapshot_age_ms=1)
            table.append_to("again")
        head = table.current
        assert head is not None
        was_main.add(head)
        last_of_month[datetime.fromtimestamp(table.clock / 1000, UTC).strftime("%Y-%m")] = head
        table.clock += 6 * HOUR
        options = RetentionSettings(rule=rule, window_ms=3 * DAY, explicit_window=True, thinning=HOURLY_DAILY_MONTHLY)
        decision = decide(table.view(), options, table.clock, was_main=lambda: was_main)
        monthly = {
            snapshot_id
            for snapshot_id, reasons in decision.kept.items()
            if any(reason.kind == "thinning" and reason.name == "month" for reason in reasons)
        }
        past = {i for month, i in last_of_month.items() if i != head}
        assert past <= monthly, "the newest snapshot of a past month is gone"
        assert chosen - set(table.ids()) == set()
        chosen = past
        table.remove(set(decision.expired))
    assert len(last_of_month) == 7
    assert len(table.snapshots) < 70


def test_a_staged_snapshot_does_not_take_its_bucket_from_main() -> None:
    view = on_main([0, 10 * MINUTE, 5 * DAY])
    staged = [*view.snapshots[:2], SnapshotView(50, 2, 20 * MINUTE), view.snapshots[2]]
    view = HistoryView(staged, view.refs, view.log, 3)
    options = RetentionSettings(rule="iceberg", older_than_ms=4 * DAY, thinning=(ThinningTier("hour"),))
    assert set(decide(view, options, 6 * DAY).kept) == {2, 3}


def test_buckets_are_calendar_buckets() -> None:
    days = ["2023-12-31T23:59", "2024-01-01T00:00", "2024-02-29T10:00", "2024-03-03T23:00", "2024-03-04T01:00"]
    view = on_main([instant(day) for day in [*days, "2025-01-01T00:00"]])

    def kept(every: Any) -> set[int]:
        options = RetentionSettings(
            rule="iceberg", older_than_ms=instant("2025-01-01"), thinning=(ThinningTier(every),)
        )
        return set(decide(view, options, instant("2025-01-01T00:01")).kept)

    assert kept("year") == {1, 5, 6}
    assert kept("month") == {1, 2, 3, 5, 6}
    assert kept("week") == {1, 2, 4, 5, 6}
    assert kept("day") == {1, 2, 3, 4, 5, 6}


@examples(200)
@given(
    gaps=st.lists(st.integers(1, 30 * 60), min_size=1, max_size=40),
    every=st.sampled_from(["hour", "day", "week", "month", "year"]),
    nights=st.lists(st.integers(1, 6), min_size=1, max_size=10),
)
def test_what_is_archived_of_each_calendar_unit_does_not_depend_on_the_nights(
    gaps: list[int], every: Literal["hour", "day", "week", "month", "year"], nights: list[int]
) -> None:
    """The oldest expire night by night, and what each night archives of them is, together, the newest of each unit."""
    times, at = [], instant("2023-12-30T22:00")
    for gap in gaps:
        at += gap * MINUTE
        times.append(at)
    whole = on_main(times)
    newest: dict[object, int] = {}
    for snapshot in whole.snapshots:
        day = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, tz=UTC)
        unit = {
            "hour": (day.date(), day.hour),
            "day": day.date(),
            "week": day.isocalendar()[:2],
            "month": (day.year, day.month),
            "year": day.year,
        }[every]
        newest[unit] = snapshot.snapshot_id
    assert newest_of_each(whole, every, frozenset) == set(newest.values())
    archived: set[int] = set()
    left = list(whole.snapshots)
    for night in nights:
        expired, left = left[: min(night, len(left) - 1)], left[min(night, len(left) - 1) :]
        base = replace(whole, snapshots=[*expired, *left])
        archived |= newest_of_each(base, every, frozenset) & {snapshot.snapshot_id for snapshot in expired}
    gone = {snapshot.snapshot_id for snapshot in whole.snapshots} - {snapshot.snapshot_id for snapshot in left}
    assert archived == set(newest.values()) & gone


def test_what_a_ref_names_is_archived_whatever_its_neighbors_are() -> None:
    times = [instant(f"2024-03-15T10:0{minute}") for minute in range(4)]
    history = on_main(times)
    first, second, _, last = (snapshot.snapshot_id for snapshot in history.snapshots)
    assert newest_of_each(history, "day", frozenset) == {last}
    tagged = replace(history, refs={**history.refs, "x": Ref("x", second, "tag")})
    assert newest_of_each(tagged, "day", frozenset) == {second, last}
    assert first not in newest_of_each(tagged, "hour", frozenset)
