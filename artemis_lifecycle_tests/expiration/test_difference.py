"""Plans beside each other and in detail: what changed between two, why a file is in one or not, who let it pass."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import ApprovalNeeded, BadInput, HandoffFailed, NoSuchPlan, PlanStateError
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table, set_ages
from artemis_lifecycle_tests.expiration.conftest import MakeLifecycle
from artemis_lifecycle_tests.simulated_time import set_modified

DAY = timedelta(days=1)


def _overwritten(lifecycle: Lifecycle, name: str = "t") -> str:
    """Four commits, 40, 30, 20 and 0 days old; the last replaces every row, so that older data files can go."""
    table = make_table(lifecycle, name, 3)
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {lifecycle.config.catalogs.live.name}.{table} VALUES (9)")
    set_ages(lifecycle, table, [40 * DAY, 30 * DAY, 20 * DAY, 0 * DAY])
    return table


def _files(plan: ExpirationPlan) -> dict[str, tuple[str, int]]:
    return {row["path"]: (row["kind"], row["size_in_bytes"]) for row in plan.files().collect()}


def test_the_difference_of_two_plans_is_exactly_what_one_alone_removes(
    make_lifecycle: MakeLifecycle, spark: SparkSession
) -> None:
    lifecycle = make_lifecycle()
    table = _overwritten(lifecycle)
    ids = ids_of(lifecycle, table)
    name = f"{lifecycle.config.catalogs.live.name}.{table}"
    spark.sql(f"ALTER TABLE {name} CREATE TAG stale AS OF VERSION {ids[0]} RETAIN 1 DAYS")
    first = lifecycle.plan_expiration(table)
    assert (first.expired_snapshots, first.expired_refs) == ((ids[0], ids[1]), ("stale",))
    spark.sql(f"ALTER TABLE {name} REPLACE TAG stale AS OF VERSION {ids[0]} RETAIN 1000 DAYS")
    # AS OF one day ago answers from the third; with a window of a second it may go.
    second = lifecycle.plan_expiration(table, older_than=lifecycle.operations.clock.now())
    assert second.expired_snapshots == (ids[1], ids[2])

    found = lifecycle.plan_difference(first.plan_id, second)
    assert (found.before, found.after, found.table) == (first.plan_id, second.plan_id, table)
    assert (found.snapshots_added, found.snapshots_removed) == ((ids[2],), (ids[0],))
    assert (found.refs_added, found.refs_removed) == ((), ("stale",))
    why = {change.snapshot_id: change.why for change in found.snapshots}
    assert any("the window's edge" in reason for reason in why[ids[2]])
    assert any(reason.startswith("tag stale") for reason in why[ids[0]])
    before, after = _files(first), _files(second)
    rows = {row["path"]: (row["change"], row["kind"], row["size_in_bytes"]) for row in found.files().collect()}
    assert rows == {path: ("added", *what) for path, what in after.items() if path not in before} | {
        path: ("removed", *what) for path, what in before.items() if path not in after
    }
    assert {row[0] for row in rows.values()} == {"added", "removed"}
    frame = found.to_pandas().set_index("kind")
    for kind in {what[1] for what in rows.values()}:
        for change in ("added", "removed"):
            sizes = [what[2] for what in rows.values() if what[:2] == (change, kind)]
            assert frame.loc[kind, f"{change}_files"] == len(sizes)
            assert frame.loc[kind, f"{change}_bytes"] == sum(sizes)


def test_a_plan_does_not_differ_from_itself_nor_compare_with_another_tables(make_lifecycle: MakeLifecycle) -> None:
    lifecycle = make_lifecycle()
    plan = lifecycle.plan_expiration(_overwritten(lifecycle))
    same = lifecycle.plan_difference(plan, plan)
    assert (same.snapshots, same.by_kind, same.files().count(), len(same.to_pandas())) == ((), (), 0, 0)
    other = lifecycle.plan_expiration(make_table(lifecycle, "u", 1))
    with pytest.raises(BadInput, match=r"db\.t .* db\.u"):
        lifecycle.plan_difference(plan, other)
    with pytest.raises(NoSuchPlan):
        lifecycle.plan_difference(plan, "0" * 32)


def test_a_file_is_explained_by_the_reasons_of_whatever_keeps_it(
    make_lifecycle: MakeLifecycle, spark: SparkSession
) -> None:
    lifecycle = make_lifecycle()
    table = _overwritten(lifecycle)
    ids = ids_of(lifecycle, table)
    lifecycle.tag(table, "audit", ids[1])
    lifecycle.hold(table, "legal", "case 7", snapshot_ids=[ids[1]])
    plan = lifecycle.plan_expiration(table)
    assert plan.expired_snapshots == (ids[0],)
    doomed = {path: what for path, what in _files(plan).items() if what[0] == "manifest_list"}
    ((path, (kind, size)),) = doomed.items()
    inside = lifecycle.explain_in_plan(plan.plan_id, path.replace("file:/", "file:///").replace("////", "///"))
    assert (inside.in_plan, inside.kind, inside.size_in_bytes) == (True, kind, size)
    assert str(ids[0]) in inside.reason and inside.kept_by == ()

    name = f"{lifecycle.config.catalogs.live.name}.{table}"
    first = spark.sql(f"SELECT file_path FROM {name}.files VERSION AS OF {ids[0]}").first()
    assert first is not None
    # The tagged second snapshot and the third, which answers for the window's edge, have the first's file too.
    outside = lifecycle.explain_in_plan(plan, first["file_path"])
    assert not outside.in_plan
    assert {keeper.snapshot_id for keeper in outside.kept_by} == {ids[1], ids[2]}
    for keeper in outside.kept_by:
        assert keeper.snapshot_id is not None and keeper.reasons == plan.kept[keeper.snapshot_id]
    (tagged,) = (keeper for keeper in outside.kept_by if keeper.snapshot_id == ids[1])
    assert tagged.what == f"snapshot {ids[1]} (tag audit)"
    assert [reason.split(" ")[0] for reason in tagged.reasons[:2]] == ["tag", "legal"]

    metadata = lifecycle.explain_in_plan(plan, plan.base_metadata_location)
    assert [keeper.what for keeper in metadata.kept_by] == ["the table's metadata log"]
    unnamed = lifecycle.explain_in_plan(plan, f"{Path(path).parent}/never.parquet")
    assert (unnamed.in_plan, unnamed.kept_by) == (False, ()) and "no snapshot" in unnamed.reason
    # The plan's own base counts, whatever the table says now.
    lifecycle.untag(table, "audit")
    assert lifecycle.explain_in_plan(plan, first["file_path"]) == outside


def test_to_let_a_plan_be_large_is_not_to_let_it_lose_snapshots(make_lifecycle: MakeLifecycle) -> None:
    lifecycle = make_lifecycle(cold_tier={"enabled": True}, deletion={"grace": "0s", "max_files": 1})
    table = _overwritten(lifecycle)
    plan = lifecycle.plan_expiration(table)
    lost = next(path for path, what in _files(plan).items() if what[0] == "manifest_list")
    Path(lost.removeprefix("file:")).unlink()
    lifecycle.approve(plan, who="ada", why="the table was rewritten")
    with pytest.raises(HandoffFailed, match=r"approve \w+ --lost"):
        lifecycle.hand_off(plan)
    assert lifecycle.operations.plans.get(plan.plan_id).status is PlanStatus.OPEN

    record = lifecycle.approve(plan, who="bob", why="the disk is gone", what="lost")
    assert (record.approved_by, getattr(record, "lost_approved_by", None)) == ("ada", "bob")
    done = lifecycle.hand_off(plan)
    assert len(done.lost) == 1 and len(done.archived) == 1
    assert lifecycle.commit_expiration(plan).snapshots_removed == 2


def test_to_let_a_plan_lose_snapshots_is_not_to_let_it_be_large(make_lifecycle: MakeLifecycle) -> None:
    lifecycle = make_lifecycle(deletion={"grace": "0s", "max_share_of_table": 0.01})
    table = _overwritten(lifecycle)
    plan = lifecycle.plan_expiration(table)
    lifecycle.approve(plan.plan_id, who="bob", why="the disk is gone", what="lost")
    with pytest.raises(ApprovalNeeded, match=r"max_share_of_table .* --large"):
        lifecycle.commit_expiration(plan)
    assert len(ids_of(lifecycle, table)) == 4
    lifecycle.approve(plan.plan_id, who="ada", why="the table was rewritten")
    assert lifecycle.commit_expiration(plan).snapshots_removed == 2


def test_a_large_scan_is_approved_by_the_same_verb(make_lifecycle: MakeLifecycle) -> None:
    lifecycle = make_lifecycle(deletion={"max_files": 0})
    table = make_table(lifecycle, "t", 1)
    stray = (
        Path(lifecycle.resources.live_catalog.entry(table).metadata_location.removeprefix("file:")).parent.parent
        / "data/stray"
    )
    stray.write_bytes(b"nobody's")
    set_modified(f"file:{stray}", lifecycle.operations.clock.now() - 30 * DAY)
    scan = lifecycle.scan_orphans(table)
    assert scan.summary.orphan_files == 1
    with pytest.raises(ApprovalNeeded, match=f"artemis approve {scan.scan_id} --large"):
        lifecycle.delete_orphans(scan)
    with pytest.raises(NoSuchPlan):
        lifecycle.approve(scan.scan_id, who="ada", why="looked", what="lost")
    assert lifecycle.approve(scan.scan_id, who="ada", why="looked").approved_by == "ada"
    assert lifecycle.delete_orphans(scan).deleted == 1


def test_a_closed_plan_is_over_and_the_same_decision_gets_a_new_id(make_lifecycle: MakeLifecycle) -> None:
    lifecycle = make_lifecycle()
    table = _overwritten(lifecycle)
    now = lifecycle.operations.clock.now()
    plan = lifecycle.plan_expiration(table, now=now)
    closed = lifecycle.close_plan(plan, who="ada", why="wrong window")
    assert (closed.status, closed.closed_by, closed.closed_why) == (PlanStatus.CLOSED, "ada", "wrong window")
    with pytest.raises(PlanStateError, match="closed"):
        lifecycle.commit_expiration(plan)
    with pytest.raises(PlanStateError, match="closed"):
        lifecycle.approve(plan, who="ada", why="late")
    assert lifecycle.uncommitted_plan(table) is None
    again = lifecycle.plan_expiration(table, now=now)
    assert again.plan_id == f"{plan.plan_id}-1" and again.expired_snapshots == plan.expired_snapshots
    assert lifecycle.commit_expiration(again).snapshots_removed == 2
