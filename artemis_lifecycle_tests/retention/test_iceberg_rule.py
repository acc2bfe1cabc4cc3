"""Rule `iceberg` is RemoveSnapshots: against a restatement, against Iceberg's core itself, and case by case."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.errors import BadInput, ReferencedSnapshot
from artemis_lifecycle.metadata.table_metadata import parse_table_metadata
from artemis_lifecycle.metadata.types import FOREVER_MS, LogEntry, Ref
from artemis_lifecycle.retention.rules import HistoryView, RetentionSettings, SnapshotView, TagView, decide, view_of
from artemis_lifecycle_tests.retention import oracle
from artemis_lifecycle_tests.retention.histories import MINUTE, TableModel, examples, tables

DAY = 24 * 60 * MINUTE
NOW = 1_700_000_000_000


def chain(*ages: int, refs: dict[str, Ref] | None = None, properties: dict[str, str] | None = None) -> HistoryView:
    """Snapshots 1, 2, … on main, each so many milliseconds old."""
    snapshots = [SnapshotView(n, n - 1 if n > 1 else None, NOW - age) for n, age in enumerate(ages, start=1)]
    log = [LogEntry(snapshot.timestamp_ms, snapshot.snapshot_id) for snapshot in snapshots]
    heads = {"main": Ref("main", len(ages), "branch"), **(refs or {})} if ages else {}
    return HistoryView(snapshots, heads, log, len(ages) or None, properties or {})


def expired(history: HistoryView, **options: Any) -> tuple[int, ...]:
    return decide(history, RetentionSettings(rule="iceberg", **options), NOW).expired


@pytest.mark.seconds
@examples(400)
@given(
    table=tables(gaps=True),
    later=st.integers(0, 10),
    older_than=st.none() | st.integers(-3, 40),
    retain_last=st.none() | st.integers(1, 6),
    explicit=st.lists(st.integers(0, 40), max_size=2),
)
def test_keeps_what_the_restatement_keeps(
    table: TableModel, later: int, older_than: int | None, retain_last: int | None, explicit: list[int]
) -> None:
    now = table.clock + later * MINUTE
    history = table.view()
    ids = table.ids()
    chosen = tuple(ids[number % len(ids)] for number in explicit) if ids else (404,)
    edge = None if older_than is None else now - older_than * MINUTE
    rule = RetentionSettings(rule="iceberg", older_than_ms=edge, retain_last=retain_last, explicit_ids=chosen)
    heads = {ref.snapshot_id for ref in oracle.live_refs(history, now).values()}
    if heads & set(chosen):
        with pytest.raises(ReferencedSnapshot, match=r"Still referenced by refs: \["):
            decide(history, rule, now)
        return
    kept, refs = oracle.kept_by_iceberg(history, now, older_than=edge, retain_last=retain_last, explicit=chosen)
    decision = decide(history, rule, now)
    assert set(decision.kept) == kept
    assert decision.expired == tuple(snapshot_id for snapshot_id in ids if snapshot_id not in kept)
    assert set(decision.expired_refs) == set(history.refs) - refs
    assert all(decision.kept.values()), "a kept snapshot has no reason"


def test_agrees_with_icebergs_core(spark: Any) -> None:
    """Differential: the same metadata through `ExpireSnapshots.apply()` and the builder's snapshot log, in the JVM."""
    iceberg = spark.sparkContext._jvm.org.apache.iceberg
    compared: list[int] = []

    @examples(250)
    @given(
        # Iceberg's action reads the machine's clock: histories end half a minute ago, on whole minutes.
        table=tables(start=0),
        older_than=st.none() | st.integers(0, 30),
        retain_last=st.none() | st.integers(1, 6),
        explicit=st.lists(st.integers(0, 40), max_size=2),
    )
    def compare(table: TableModel, older_than: int | None, retain_last: int | None, explicit: list[int]) -> None:
        now = int(time.time() * 1000)
        shift = now - MINUTE // 2 - table.clock
        moved = TableModel(
            table.clock + shift,
            [s._replace(timestamp_ms=s.timestamp_ms + shift) for s in table.snapshots],
            table.refs,
            [LogEntry(entry.timestamp_ms + shift, entry.snapshot_id) for entry in table.log],
            table.properties,
        )
        if "main" in moved.refs and moved.log[-1].snapshot_id != moved.current:
            return
        text = json.dumps(moved.metadata())
        heads = {ref.snapshot_id for ref in oracle.live_refs(moved.view(), now).values()}
        chosen = tuple(
            i for i in (moved.ids()[n % len(moved.ids())] for n in explicit if moved.ids()) if i not in heads
        )
        edge = None if older_than is None else now - older_than * MINUTE
        java = iceberg.TableMetadataParser.fromJson(text)
        action = iceberg.BaseTable(iceberg.StaticTableOperations(java, None), "t").expireSnapshots()
        if edge is not None:
            action = action.expireOlderThan(edge)
        if retain_last is not None:
            action = action.retainLast(retain_last)
        for snapshot_id in chosen:
            action = action.expireSnapshotId(snapshot_id)
        removed = {snapshot.snapshotId() for snapshot in action.apply()}

        parsed = parse_table_metadata(text.encode(), "file:///t/metadata/v1.metadata.json")
        rule = RetentionSettings(rule="iceberg", older_than_ms=edge, retain_last=retain_last, explicit_ids=chosen)
        decision = decide(view_of(parsed), rule, now)
        assert set(decision.expired) == removed

        gone = spark.sparkContext._jvm.java.util.HashSet()
        for snapshot_id in decision.expired:
            gone.add(snapshot_id)
        after = iceberg.TableMetadata.buildFrom(java).removeSnapshots(gone).build()
        assert [(entry.timestampMillis(), entry.snapshotId()) for entry in after.snapshotLog()] == [
            (entry.timestamp_ms, entry.snapshot_id)
            for entry in oracle.log_after(parsed.snapshot_log, set(decision.kept), bool(decision.expired))
        ]
        compared.append(len(removed))

    compare()
    assert sum(count > 0 for count in compared) > 20, "too few of the histories had anything to expire"


def test_the_cutoff_is_inclusive() -> None:
    assert expired(chain(3000, 2000, 1000, 0), older_than_ms=NOW - 2000) == (1,)


def test_an_empty_table_expires_nothing() -> None:
    assert decide(chain(), RetentionSettings(rule="iceberg"), NOW).expired == ()


def test_icebergs_default_is_five_days_and_one_snapshot() -> None:
    assert expired(chain(5 * DAY + 1, 5 * DAY, 0)) == (1,)
    assert expired(chain(90 * DAY, 80 * DAY)) == (1,)


def test_precedence_runs_from_the_ref_to_the_default() -> None:
    ages = (9 * DAY, 7 * DAY, 3 * DAY, 0)
    properties = {"history.expire.max-snapshot-age-ms": str(8 * DAY)}
    assert expired(chain(*ages)) == (1, 2)
    assert expired(chain(*ages, properties=properties)) == (1,)
    # The shipped window does not apply; one that lifecycle.yaml sets for the table does, and beats the property.
    assert expired(chain(*ages, properties=properties), window_ms=DAY) == (1,)
    assert expired(chain(*ages, properties=properties), window_ms=DAY, explicit_window=True) == (1, 2, 3)
    argument: dict[str, Any] = {"window_ms": DAY, "explicit_window": True, "older_than_ms": NOW - 4 * DAY}
    assert expired(chain(*ages, properties=properties), **argument) == (1, 2)
    own = {"main": Ref("main", 4, "branch", max_snapshot_age_ms=10 * DAY)}
    assert expired(chain(*ages, properties=properties, refs=own), **argument) == ()


def test_counts_follow_the_same_precedence() -> None:
    ages = (90 * DAY, 80 * DAY, 70 * DAY, 60 * DAY, 50 * DAY)
    properties = {"history.expire.min-snapshots-to-keep": "2"}
    assert expired(chain(*ages, properties=properties)) == (1, 2, 3)
    assert expired(chain(*ages, properties=properties), min_snapshots=3) == (1, 2)
    assert expired(chain(*ages, properties=properties), min_snapshots=3, retain_last=1) == (1, 2, 3, 4)
    own = {"main": Ref("main", 5, "branch", min_snapshots_to_keep=4)}
    assert expired(chain(*ages, properties=properties, refs=own), retain_last=1) == (1,)


def test_a_branch_stops_at_its_first_old_snapshot() -> None:
    history = chain(10_000, 1_000, 9_000, 0)
    assert expired(history, older_than_ms=NOW - 5_000) == (1, 2, 3)


def test_a_tag_keeps_only_its_own_snapshot_and_dies_with_its_snapshots_age() -> None:
    tag = {"tag": Ref("tag", 2, "tag", max_ref_age_ms=20 * DAY)}
    assert expired(chain(30 * DAY, 20 * DAY, 10 * DAY, 0, refs=tag)) == (1, 3)
    older = decide(chain(30 * DAY, 20 * DAY + 1, 10 * DAY, 0, refs=tag), RetentionSettings(rule="iceberg"), NOW)
    assert (older.expired, older.expired_refs) == ((1, 2, 3), ("tag",))


def test_a_tag_record_changes_nothing_under_this_rule() -> None:
    tag = {"tag": Ref("tag", 1, "tag", max_ref_age_ms=DAY)}
    made_today = TagView("tag", 1, NOW, retain_ms=None)
    decision = decide(chain(9 * DAY, 0, refs=tag), RetentionSettings(rule="iceberg"), NOW, tags=[made_today])
    assert decision.expired_refs == ("tag",)


def test_forever_is_forever() -> None:
    properties = {"history.expire.max-ref-age-ms": "1"}
    tag = {"tag": Ref("tag", 1, "tag", max_ref_age_ms=FOREVER_MS), "other": Ref("other", 2, "tag")}
    decision = decide(
        chain(NOW, NOW // 2, 0, refs=tag, properties=properties), RetentionSettings(rule="iceberg"), 3 * NOW
    )
    assert 1 in decision.kept
    assert decision.kept[1][0].until_ms is None
    assert decision.expired_refs == ("other",)


def test_a_ref_without_its_snapshot_is_removed() -> None:
    decision = decide(chain(DAY, 0, refs={"lost": Ref("lost", 77, "tag")}), RetentionSettings(rule="iceberg"), NOW)
    assert decision.expired_refs == ("lost",)


def test_young_unreferenced_snapshots_stay() -> None:
    history = chain(9 * DAY, 0)
    staged = [*history.snapshots, SnapshotView(50, 2, NOW - 6 * DAY), SnapshotView(51, 2, NOW - 4 * DAY)]
    decision = decide(HistoryView(staged, history.refs, history.log, 2), RetentionSettings(rule="iceberg"), NOW)
    assert decision.expired == (1, 50)
    assert [reason.kind for reason in decision.kept[51]] == ["unreferenced_young"]


def test_an_explicit_id_goes_even_when_young_and_a_ref_to_it_is_named() -> None:
    refs = {"audit": Ref("audit", 2, "tag"), "zebra": Ref("zebra", 2, "branch")}
    assert expired(chain(3, 2, 1, 0), explicit_ids=(2,)) == (2,)
    with pytest.raises(ReferencedSnapshot, match=r"Cannot expire 2\. Still referenced by refs: \[audit, zebra\]"):
        expired(chain(3, 2, 1, 0, refs=refs), explicit_ids=(2,))


def test_an_explicit_id_that_is_gone_already_is_reported() -> None:
    decision = decide(chain(1, 0), RetentionSettings(rule="iceberg", explicit_ids=(99, 99)), NOW)
    assert (decision.expired, decision.unknown_ids) == ((), (99,))


def test_a_property_that_must_be_a_number_is_an_error_otherwise() -> None:
    with pytest.raises(BadInput, match=r"history\.expire\.max-snapshot-age-ms is 'soon'"):
        expired(chain(1, 0, properties={"history.expire.max-snapshot-age-ms": "soon"}))


def test_never_as_an_age_keeps_everything() -> None:
    history = chain(NOW, 1, 0, properties={"history.expire.max-snapshot-age-ms": str(2**63 - 1)})
    assert expired(history) == ()


def test_retaining_no_snapshot_is_an_error() -> None:
    with pytest.raises(BadInput, match="retain_last"):
        expired(chain(1, 0), retain_last=0)


def test_a_loop_of_parents_ends() -> None:
    looped = [SnapshotView(1, 2, NOW), SnapshotView(2, 1, NOW)]
    history = HistoryView(looped, {"main": Ref("main", 2, "branch")}, [], 2)
    assert expired(history) == ()


def test_many_branches_on_one_long_history_cost_no_more_than_the_history() -> None:
    count = 100_000
    snapshots = [SnapshotView(n, n - 1 if n else None, NOW - (count - n) * 60_000) for n in range(count)]
    refs = {"main": Ref("main", count - 1, "branch")}
    refs |= {f"b{n}": Ref(f"b{n}", count - 1 - n, "branch", max_snapshot_age_ms=0) for n in range(500)}
    begun = time.monotonic()
    decision = decide(HistoryView(snapshots, refs, [], count - 1), RetentionSettings(rule="iceberg"), NOW)
    assert decision.expired
    assert time.monotonic() - begun < 10
