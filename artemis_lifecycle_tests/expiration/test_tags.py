"""Tags: who, when and why are kept, and a tag lives as long as it was promised, counted from its creation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs import commit as commits
from artemis_lifecycle.errors import BadInput, CommitConflict, NoSuchSnapshot
from artemis_lifecycle.metadata.types import FOREVER_MS
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle_tests.deaths import killed_at, lapse
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table, set_ages
from artemis_lifecycle_tests.expiration.conftest import MakeLifecycle

DAY = timedelta(days=1)
MS = timedelta(milliseconds=1)


def _old_table(lifecycle: Lifecycle) -> tuple[str, list[int], datetime]:
    """Four snapshots, 400, 300, 10 and 0 days old."""
    table = make_table(lifecycle, "t")
    now = set_ages(lifecycle, table, [400 * DAY, 300 * DAY, 10 * DAY, 0 * DAY])
    return table, ids_of(lifecycle, table), now


def _ended(lifecycle: Lifecycle, table: str, now: datetime) -> tuple[str, ...]:
    return lifecycle.plan_expiration(table, now=now).expired_refs


@pytest.mark.parametrize("rule", ["as-of", "iceberg"])
def test_a_tag_on_an_old_snapshot_lives_from_its_creation_under_every_rule(
    make_lifecycle: MakeLifecycle, rule: str
) -> None:
    lifecycle = make_lifecycle(retention={"rule": rule, "window": "1d"})
    table, ids, _ = _old_table(lifecycle)
    made = lifecycle.tag(table, "audit", ids[0], retain="90d", why="the auditor asked", who="j.smith")
    assert made.at is not None and made.ends_at == made.at + 90 * DAY
    ref = lifecycle.snapshot_history(table).refs["audit"]
    committed = lifecycle.snapshot_history(table).snapshots[0].timestamp_ms
    # In Iceberg's terms, from the snapshot's commit: the same end.
    assert ref.max_ref_age_ms == milliseconds(made.ends_at) - committed
    assert _ended(lifecycle, table, made.ends_at) == ()
    assert _ended(lifecycle, table, made.ends_at + MS) == ("audit",)


def test_icebergs_own_expiration_lets_the_tag_live_too(make_lifecycle: MakeLifecycle, spark: SparkSession) -> None:
    lifecycle = make_lifecycle()
    table, ids, _ = _old_table(lifecycle)
    lifecycle.tag(table, "audit", ids[0], retain="1h")
    live = lifecycle.config.catalogs.live.name
    spark.sql(f"CALL {live}.system.expire_snapshots(table => '{table}', older_than => TIMESTAMP '2100-01-01 00:00:00')")
    history = lifecycle.snapshot_history(table)
    assert [snapshot.snapshot_id for snapshot in history.snapshots] == [ids[0], ids[-1]]
    assert history.refs["audit"].snapshot_id == ids[0]


def test_forever_is_written_on_the_ref_and_beats_the_tables_property(make_lifecycle: MakeLifecycle) -> None:
    lifecycle = make_lifecycle(retention={"rule": "iceberg"})
    table = make_table(lifecycle, "t", properties="'history.expire.max-ref-age-ms'='1'")
    now = set_ages(lifecycle, table, [400 * DAY, 300 * DAY, 10 * DAY, 0 * DAY])
    ids = ids_of(lifecycle, table)
    lifecycle.tag(table, "kept", ids[0])
    lifecycle.spark.sql(
        f"ALTER TABLE {lifecycle.config.catalogs.live.name}.{table} CREATE TAG plain AS OF VERSION {ids[1]}"
    )
    assert lifecycle.snapshot_history(table).refs["kept"].max_ref_age_ms == FOREVER_MS == 2**63 - 1
    assert _ended(lifecycle, table, now + 100_000 * DAY) == ("plain",)
    kept, plain = (ref for ref in lifecycle.tags(table).refs if ref.type == "tag")
    assert (kept.retention, kept.ends_at) == ("forever", None)
    assert plain.retention == "1ms from its snapshot's commit (table property)"
    assert plain.ends_at is not None and plain.committed_at is not None and plain.ends_at == plain.committed_at + MS


@pytest.mark.parametrize("change", ["moved", "shortened", "lengthened", "made anew"])
def test_a_ref_that_another_tool_changed_is_not_judged_by_our_record(
    make_lifecycle: MakeLifecycle, spark: SparkSession, change: str
) -> None:
    lifecycle = make_lifecycle()
    table, ids, now = _old_table(lifecycle)
    made = lifecycle.tag(table, "audit", ids[1], retain="90d", who="j.smith")
    name = f"{lifecycle.config.catalogs.live.name}.{table}"
    statement = {
        "moved": f"REPLACE TAG audit AS OF VERSION {ids[0]} RETAIN 401 DAYS",
        "shortened": f"REPLACE TAG audit AS OF VERSION {ids[1]} RETAIN 301 DAYS",
        "lengthened": f"REPLACE TAG audit AS OF VERSION {ids[1]} RETAIN 1000 DAYS",
        "made anew": f"CREATE TAG audit AS OF VERSION {ids[1]}",
    }[change]
    if change == "made anew":
        spark.sql(f"ALTER TABLE {name} DROP TAG audit")
    spark.sql(f"ALTER TABLE {name} {statement}")
    ends = {"moved": now + DAY, "shortened": now + DAY, "lengthened": now + 700 * DAY, "made anew": None}[change]
    (seen,) = (ref for ref in lifecycle.tags(table).refs if ref.name == "audit")
    assert (seen.who, seen.created_at, seen.ends_at) == (None, None, ends)
    assert made.ends_at is not None
    if ends is None:
        assert _ended(lifecycle, table, now + 10_000 * DAY) == ()
    else:
        assert _ended(lifecycle, table, ends) == ()
        assert _ended(lifecycle, table, ends + MS) == ("audit",)


def test_the_list_has_who_when_and_why_and_the_records_keep_what_was_removed(
    make_lifecycle: MakeLifecycle, spark: SparkSession
) -> None:
    lifecycle = make_lifecycle()
    table, ids, _ = _old_table(lifecycle)
    name = f"{lifecycle.config.catalogs.live.name}.{table}"
    keeps = "RETAIN 700 DAYS WITH SNAPSHOT RETENTION 3 SNAPSHOTS 5 DAYS"
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH work AS OF VERSION {ids[2]} {keeps}")
    spark.sql(f"ALTER TABLE {name} CREATE TAG foreign AS OF VERSION {ids[1]}")
    before = datetime.now(UTC) - timedelta(seconds=1)
    lifecycle.tag(table, "incident", ids[0], retain="400d", why="conjunction alert", who="j.smith")
    found = lifecycle.tags(table)
    main, foreign, incident, work = found.refs
    assert (main.name, main.snapshot_id, main.retention, main.ends_at) == ("main", ids[-1], "forever", None)
    assert (foreign.who, foreign.created_at, foreign.retention) == (None, None, "forever (nothing says otherwise)")
    assert (incident.who, incident.why, incident.retention) == (
        "j.smith",
        "conjunction alert",
        "400d from its creation",
    )
    assert incident.created_at is not None and before < incident.created_at < datetime.now(UTC) + timedelta(seconds=1)
    assert incident.ends_at == incident.created_at + 400 * DAY
    assert (work.retention, work.keeps) == (
        "100w from its snapshot's commit",
        "its newest 3 and what is younger than 5d",
    )
    frame = found.to_pandas()
    assert list(frame["name"]) == ["main", "foreign", "incident", "work"]
    assert list(frame["snapshot_id"]) == [ids[-1], ids[1], ids[0], ids[2]]
    assert list(frame["ends_at"].isna()) == [True, True, False, False]

    gone = lifecycle.untag(table, "incident", why="case closed", who="m.jones")
    assert (gone.who, gone.why) == ("m.jones", "case closed") and gone.at is not None
    lifecycle.untag(table, "foreign", why="nobody knows it", who="m.jones")
    assert [ref.name for ref in lifecycle.tags(table).refs] == ["main", "work"]
    removed = lifecycle.tags(table, with_removed=True).removed
    assert [(was.name, was.snapshot_id, was.who, was.removed_by, was.removed_why) for was in removed] == [
        ("incident", ids[0], "j.smith", "m.jones", "case closed"),
        ("foreign", ids[1], None, "m.jones", "nobody knows it"),
    ]
    with pytest.raises(NoSuchSnapshot, match="no tag 'incident'"):
        lifecycle.untag(table, "incident")


def test_a_removal_whose_worker_died_before_it_was_written_down_is_written_down_by_the_next(
    make_lifecycle: MakeLifecycle,
) -> None:
    lifecycle = make_lifecycle()
    table, ids, _ = _old_table(lifecycle)
    lifecycle.tag(table, "audit", ids[0], who="j.smith")

    with killed_at("tags.removed:before"):
        lifecycle.untag(table, "audit", why="case closed", who="m.jones")
    assert "audit" not in lifecycle.snapshot_history(table).refs
    lapse(lifecycle, "leases")
    assert lifecycle.untag(table, "audit", why="case closed", who="m.jones").who == "m.jones"
    [was] = lifecycle.tags(table, with_removed=True).removed
    assert (was.who, was.removed_by, was.removed_why) == ("j.smith", "m.jones", "case closed")
    with pytest.raises(NoSuchSnapshot):
        lifecycle.untag(table, "audit")

    # One that expired is not such a removal.
    ended = lifecycle.tag(table, "short", ids[0], retain="1h").ends_at
    assert ended is not None
    plan = lifecycle.plan_expiration(table, now=ended + DAY)
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    with pytest.raises(NoSuchSnapshot):
        lifecycle.untag(table, "short")


def test_a_tag_is_not_moved_unless_that_is_asked_for(make_lifecycle: MakeLifecycle) -> None:
    lifecycle = make_lifecycle()
    table, ids, _ = _old_table(lifecycle)
    lifecycle.tag(table, "audit", ids[0], who="ada")
    with pytest.raises(BadInput, match=r"on snapshot \d+ already"):
        lifecycle.tag(table, "audit", ids[1], who="bob")
    (seen,) = (ref for ref in lifecycle.tags(table).refs if ref.name == "audit")
    assert (seen.snapshot_id, seen.who) == (ids[0], "ada")
    # The failed attempt ended no record: the tag is ours to judge as before.
    assert [record.who for record in lifecycle.operations.tags.of_table(_uuid(lifecycle, table))] == ["ada"]
    lifecycle.tag(table, "audit", ids[1], who="bob", replace=True)
    lifecycle.tag(table, "audit", ids[1], retain="5d", who="eve")
    (seen,) = (ref for ref in lifecycle.tags(table).refs if ref.name == "audit")
    assert (seen.snapshot_id, seen.who, seen.retention) == (ids[1], "eve", "5d from its creation")


@pytest.mark.parametrize("retain", ["soon", "0d", "90", "99999999999999d", timedelta(0)])
def test_a_retention_that_is_none_is_refused(make_lifecycle: MakeLifecycle, retain: Any) -> None:
    lifecycle = make_lifecycle()
    table = make_table(lifecycle, "t", 1)
    with pytest.raises(BadInput, match="retain"):
        lifecycle.tag(table, "audit", ids_of(lifecycle, table)[0], retain=retain)
    with pytest.raises(NoSuchSnapshot, match="4711"):
        lifecycle.tag(table, "audit", 4711)
    assert list(lifecycle.snapshot_history(table).refs) == ["main"]


def test_a_tag_moved_while_it_is_removed_stays(
    make_lifecycle: MakeLifecycle, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle = make_lifecycle()
    table, ids, _ = _old_table(lifecycle)
    lifecycle.tag(table, "audit", ids[0])
    swap, name = commits._swap, f"{lifecycle.config.catalogs.live.name}.{table}"
    moved: list[int] = []

    def move_first(*args: Any) -> None:
        if not moved:
            moved.append(ids[1])
            spark.sql(f"ALTER TABLE {name} REPLACE TAG audit AS OF VERSION {ids[1]}")
        swap(*args)

    monkeypatch.setattr(commits, "_swap", move_first)
    with pytest.raises(BadInput, match="moved to snapshot"):
        lifecycle.untag(table, "audit")
    assert lifecycle.snapshot_history(table).refs["audit"].snapshot_id == ids[1]


def test_a_commit_that_lost_leaves_the_former_record_in_force(
    make_lifecycle: MakeLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle = make_lifecycle()
    table, ids, _ = _old_table(lifecycle)
    lifecycle.tag(table, "audit", ids[0], retain="90d", who="ada")

    def loses(*_: Any, **__: Any) -> Any:
        raise CommitConflict("others were faster", table=table)

    with monkeypatch.context() as patch:
        patch.setattr("artemis_lifecycle.session.resources.commit_with_retry", loses)
        with pytest.raises(CommitConflict):
            lifecycle.tag(table, "audit", ids[0], retain="1d", who="bob")
    (seen,) = (ref for ref in lifecycle.tags(table).refs if ref.name == "audit")
    assert (seen.who, seen.retention) == ("ada", "90d from its creation")
    assert [record.who for record in lifecycle.operations.tags.of_table(_uuid(lifecycle, table))] == ["ada"]


def _uuid(lifecycle: Lifecycle, table: str) -> str:
    return lifecycle.snapshot_history(table).table_uuid
