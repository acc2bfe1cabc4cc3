"""Rule `as-of`: a query AS OF any instant inside the window answers after the commit as it did before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.errors import LifecycleError, Refused
from artemis_lifecycle.metadata.types import LogEntry, Ref
from artemis_lifecycle.retention.rules import (
    Decision,
    HistoryView,
    HoldView,
    RetentionSettings,
    SnapshotView,
    TagView,
    ThinningTier,
    decide,
)
from artemis_lifecycle_tests.retention import oracle
from artemis_lifecycle_tests.retention.histories import MINUTE, TableModel, examples, tables

HOUR = 60 * MINUTE
DAY = 24 * HOUR
NOW = 1_700_000_000_000
WINDOW_KINDS = {"window", "window_edge", "log_continuity", "log_gap"}


def at(minutes: int) -> int:
    """`minutes` before NOW."""
    return NOW - minutes * MINUTE


def history(
    log: list[tuple[int, int]], *, absent: tuple[int, ...] = (), refs: dict[str, Ref] | None = None, **properties: str
) -> HistoryView:
    """A table from its log of (minutes ago, snapshot id); each snapshot was committed when it first became current."""
    first: dict[int, int] = {}
    for minutes, snapshot_id in log:
        first.setdefault(snapshot_id, at(minutes))
    snapshots = [SnapshotView(i, None, when) for i, when in first.items() if i not in absent]
    head = log[-1][1]
    heads = {"main": Ref("main", head, "branch"), **(refs or {})}
    entries = [LogEntry(at(minutes), snapshot_id) for minutes, snapshot_id in log]
    return HistoryView(snapshots, heads, entries, head, properties)


def decided(view: HistoryView, window: int, **options: Any) -> Decision:
    return decide(view, RetentionSettings(window_ms=window * MINUTE, **options), NOW)


def log_after(view: HistoryView, decision: Decision) -> list[LogEntry]:
    return oracle.log_after(view.log, set(decision.kept), bool(decision.expired))


_choices = st.fixed_dictionaries(
    {
        "window_ms": st.integers(0, 40).map(lambda minutes: minutes * MINUTE),
        "older_than_ms": st.none() | st.integers(-3, 40),
        "retain_last": st.none() | st.integers(1, 4),
        "explicit_ids": st.lists(st.integers(0, 40), max_size=2),
        "thinning": st.just(()) | st.just((ThinningTier("hour", HOUR), ThinningTier("day"))),
    }
)


@pytest.mark.slow
@examples(600)
@given(
    table=tables(gaps=True),
    later=st.integers(-2, 10),
    choices=_choices,
    held=st.none() | st.integers(0, 40),
)
def test_no_answer_inside_the_window_changes(
    table: TableModel, later: int, choices: dict[str, Any], held: int | None
) -> None:
    now = table.clock + later * MINUTE
    view, ids = table.view(), table.ids()
    if choices["older_than_ms"] is not None:
        choices["older_than_ms"] = now - choices["older_than_ms"] * MINUTE
    choices["explicit_ids"] = tuple(ids[number % len(ids)] for number in choices["explicit_ids"]) if ids else ()
    holds = [HoldView("h", "o", "r", (ids[held % len(ids)],))] if held is not None and ids else []
    rule = RetentionSettings(**choices)
    try:
        decision = decide(view, rule, now, holds=holds)
    except LifecycleError:
        # An explicit id that may not go stops the whole; without it the rest must hold.
        decision = decide(view, replace(rule, explicit_ids=()), now, holds=holds)
    cutoff = decision.cutoff_ms
    after = log_after(view, decision)
    for instant in oracle.instants(view.log, min(cutoff, now), now):
        before = oracle.answer(view.log, instant)
        answered = oracle.answer(after, instant)
        if before in decision.kept or answered is not None:
            assert answered == before, f"AS OF {instant} answered {before}, and now {answered}"
        else:
            assert before not in ids, f"AS OF {instant} answered {before}, which expired"


@pytest.mark.seconds
@examples(400)
@given(table=tables(gaps=True), window=st.integers(0, 40), later=st.integers(0, 10))
def test_keeps_all_that_rule_iceberg_keeps(table: TableModel, window: int, later: int) -> None:
    now = table.clock + later * MINUTE
    view = table.view()
    view = replace(view, properties={k: v for k, v in view.properties.items() if "max-snapshot-age" not in k})
    decision = decide(view, RetentionSettings(window_ms=window * MINUTE), now)
    kept, refs = oracle.kept_by_iceberg(view, now, older_than=now - window * MINUTE, retain_last=None)
    assert kept <= set(decision.kept)
    assert set(decision.expired_refs) == set(view.refs) - refs
    only_window = {i for i, why in decision.kept.items() if {reason.kind for reason in why} <= WINDOW_KINDS}
    assert set(decision.kept) - kept == only_window - kept


@pytest.mark.seconds
@examples(400)
@given(table=tables(skew=False), window=st.integers(0, 40), later=st.integers(0, 10))
def test_keeps_nothing_for_the_window_that_no_answer_needs(table: TableModel, window: int, later: int) -> None:
    now = table.clock + later * MINUTE
    view = table.view()
    decision = decide(view, RetentionSettings(window_ms=window * MINUTE), now)
    points = oracle.instants(view.log, decision.cutoff_ms, now)
    for snapshot_id, reasons in decision.kept.items():
        if {reason.kind for reason in reasons} <= WINDOW_KINDS:
            shorter = oracle.log_after(view.log, set(decision.kept) - {snapshot_id}, True)
            assert [oracle.answer(shorter, p) for p in points] != [oracle.answer(view.log, p) for p in points]


def test_the_snapshot_current_at_the_edge_stays_though_it_is_old() -> None:
    view = history([(1000, 1), (900, 2), (10, 3)])
    decision = decided(view, 100)
    assert decision.expired == (1,)
    assert [reason.kind for reason in decision.kept[2]] == ["window_edge"]
    assert [reason.kind for reason in decision.kept[3]] == ["ref", "branch_count", "branch_age", "window"]


def test_a_rollback_inside_the_window_keeps_both_what_was_and_what_is_current() -> None:
    # 3 was current for an hour and rolled back; 1 is current again, by an entry of its own.
    view = history([(1000, 1), (900, 2), (90, 3), (30, 1)])
    decision = decided(view, 100)
    assert decision.expired == ()
    decision = decided(view, 80)
    assert decision.expired == (2,)
    assert oracle.answer(log_after(view, decision), at(50)) == 3


def test_what_was_rolled_back_before_the_window_goes() -> None:
    view = history([(1000, 1), (900, 2), (800, 1), (10, 3)])
    assert decided(view, 100).expired == (2,)


def test_a_cut_behind_the_edge_is_prevented_where_clocks_disagree() -> None:
    # 2's entry comes after the edge's answer in the log and before it in time: its removal would clear the answer.
    view = history([(500, 9), (101, 1), (102, 2), (50, 3)])
    decision = decided(view, 100)
    assert decision.expired == (9,)
    assert [reason.kind for reason in decision.kept[2]] == ["log_continuity"]


def test_two_commits_in_one_millisecond_both_stay() -> None:
    view = history([(500, 9), (200, 1), (200, 2), (50, 3)])
    decision = decided(view, 100)
    assert decision.expired == (9,)
    assert oracle.answer(log_after(view, decision), at(100)) == 1


def test_a_gap_in_the_log_inside_the_window_stops_every_removal() -> None:
    view = history([(500, 1), (90, 2), (50, 3), (10, 4)], absent=(3,))
    decision = decided(view, 100)
    assert decision.expired == ()
    assert {reason.kind for reason in decision.kept[1]} >= {"log_gap"}


def test_a_gap_before_the_window_is_harmless() -> None:
    view = history([(500, 1), (400, 2), (300, 3), (10, 4)], absent=(2,))
    assert decided(view, 100).expired == (1,)


def test_older_than_replaces_the_window() -> None:
    view = history([(500, 1), (400, 2), (300, 3), (10, 4)])
    assert decided(view, 10_000, older_than_ms=at(350)).expired == (1,)
    assert decided(view, 10_000, older_than_ms=NOW + DAY).expired == (1, 2, 3)


def test_an_explicit_id_inside_the_window_is_refused() -> None:
    view = history([(500, 1), (400, 2), (50, 3), (10, 4)])
    for snapshot_id in (2, 3):
        with pytest.raises(Refused, match=rf"Cannot expire {snapshot_id}: current (at|inside)"):
            decided(view, 100, explicit_ids=(snapshot_id,))
    assert decided(view, 100, explicit_ids=(1,)).expired == (1,)


def test_an_explicit_staged_snapshot_inside_the_window_is_refused() -> None:
    view = history([(500, 1), (10, 4)])
    view = replace(view, snapshots=[*view.snapshots, SnapshotView(70, 1, at(60))])
    with pytest.raises(Refused, match="committed inside the window"):
        decided(view, 100, explicit_ids=(70,))


def test_an_explicit_id_kept_only_by_count_goes() -> None:
    snapshots = [SnapshotView(n, n - 1 or None, at(500 - n)) for n in (1, 2, 3)]
    view = HistoryView(
        snapshots, {"main": Ref("main", 3, "branch")}, [LogEntry(s.timestamp_ms, s.snapshot_id) for s in snapshots], 3
    )
    assert decided(view, 100, min_snapshots=3).expired == ()
    assert decided(view, 100, min_snapshots=3, explicit_ids=(2,)).expired == (2,)


class TestTagsMadeHere:
    """A tag's life counts from when it was made, not from its snapshot."""

    def tagged(self, created: int, retain: int | None, **ref: Any) -> Decision:
        tag = {"t": Ref("t", 1, "tag", **ref)}
        record = TagView("t", 1, at(created), None if retain is None else retain * MINUTE)
        view = history([(10_000, 1), (9_000, 2), (10, 3)], refs=tag)
        return decide(view, RetentionSettings(window_ms=100 * MINUTE), NOW, tags=[record])

    def test_a_new_tag_on_an_old_snapshot_lives(self) -> None:
        decision = self.tagged(created=5, retain=60)
        assert decision.expired_refs == ()
        reason = next(reason for reason in decision.kept[1] if reason.kind == "ref")
        assert (reason.name, reason.until_ms) == ("t", at(-55))

    def test_it_ends_when_its_time_is_over_and_not_a_millisecond_before(self) -> None:
        assert self.tagged(created=60, retain=60).expired_refs == ()
        assert self.tagged(created=61, retain=60).expired_refs == ("t",)

    def test_forever_outlives_the_tables_own_limit(self) -> None:
        tag = {"t": Ref("t", 1, "tag")}
        view = history([(10_000, 1), (10, 3)], refs=tag)
        view = replace(view, properties={"history.expire.max-ref-age-ms": "1"})
        rule = RetentionSettings(window_ms=100 * MINUTE)
        assert decide(view, rule, NOW).expired_refs == ("t",)
        assert decide(view, rule, NOW, tags=[TagView("t", 1, at(9_000), None)]).expired_refs == ()

    def test_a_tag_that_was_moved_since_has_its_own_terms(self) -> None:
        view = history([(10_000, 1), (9_000, 2), (10, 3)], refs={"t": Ref("t", 2, "tag", max_ref_age_ms=MINUTE)})
        record = TagView("t", 1, at(5), None)
        assert decide(view, RetentionSettings(), NOW, tags=[record]).expired_refs == ("t",)

    def test_a_tag_whose_age_was_altered_since_has_its_own_terms(self) -> None:
        view = history([(10_000, 1), (10, 3)], refs={"t": Ref("t", 1, "tag", max_ref_age_ms=20_000 * MINUTE)})
        record = TagView("t", 1, at(60), retain_ms=MINUTE, max_ref_age_ms=MINUTE)
        assert decide(view, RetentionSettings(), NOW, tags=[record]).expired_refs == ()

    def test_if_the_record_is_silent_the_longer_life_counts(self) -> None:
        assert self.tagged(created=61, retain=60, max_ref_age_ms=20_000 * MINUTE).expired_refs == ()
        assert self.tagged(created=61, retain=60, max_ref_age_ms=MINUTE).expired_refs == ("t",)


def test_settings_survive_json() -> None:
    import json
    from dataclasses import asdict

    rule = RetentionSettings(explicit_ids=(1, 2), thinning=(ThinningTier("hour", HOUR), ThinningTier("month")))
    assert RetentionSettings(**json.loads(json.dumps(asdict(rule)))) == rule
