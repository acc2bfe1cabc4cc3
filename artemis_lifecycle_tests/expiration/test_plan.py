"""Plans and their commit: sealed, found again from elsewhere, refused when stale in a way that matters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs import commit as commits
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import (
    ApprovalNeeded,
    GarbageCollectionDisabled,
    GraceNotOver,
    NaiveDatetime,
    NoSuchPlan,
    NoSuchTable,
    PlanStateError,
    ReferencedSnapshot,
    StalePlan,
)
from artemis_lifecycle.expiration.commit import removal
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle.reachability.index import lookups
from artemis_lifecycle_tests import core_tables

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=60)
Open = Callable[..., Lifecycle]


@pytest.fixture
def opened(make_config: Callable[..., LifecycleConfig], spark: SparkSession) -> Open:
    """`opened(deletion=…)`: a Lifecycle without a cold tier, and a table `db.t` of four appends."""

    def make(**policy: Any) -> Lifecycle:
        defaults = {"retention": {"window": "1d"}, "cold_tier": {"enabled": False}} | policy
        lifecycle = Lifecycle.open(make_config(defaults=defaults), spark=spark)
        live = lifecycle.config.catalogs.live.name
        core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
        core_tables.sql(spark, f"CREATE TABLE {live}.db.t (id int) USING iceberg")
        for number in range(4):
            core_tables.sql(spark, f"INSERT INTO {live}.db.t VALUES ({number})")
        return lifecycle

    return make


def test_a_plan_is_its_content_and_is_found_from_another_process(opened: Open, spark: SparkSession) -> None:
    lifecycle = opened()
    plan = lifecycle.plan_expiration("db.t", now=LATER)
    history = lifecycle.snapshot_history("db.t")
    ids = [snapshot.snapshot_id for snapshot in history.snapshots]
    assert plan.expired_snapshots == tuple(ids[:-1])
    assert plan.base_metadata_location == history.metadata_location
    assert set(plan.kept) == {ids[-1]} and plan.kept[ids[-1]]
    assert lifecycle.plan_expiration("db.t", now=LATER).plan_id == plan.plan_id
    with Lifecycle.open(lifecycle.config, spark=spark) as other:
        again = other.plan(plan.plan_id)
        assert again == plan
        sealed = {tuple(row) for row in again.files().collect()}
    live = lifecycle.config.catalogs.live.name
    assert lifecycle.publish_results() == 1  # `other` only read, and published nothing.
    published = spark.sql(
        f"SELECT path, kind, size_in_bytes, reason FROM {live}.lifecycle.plan_files WHERE plan_id = '{plan.plan_id}'"
    )
    assert {tuple(row) for row in published.collect()} == sealed
    assert len(sealed) == plan.summary.files > 0
    assert sum(row[2] for row in sealed) == plan.summary.size_in_bytes
    assert lifecycle.plan_expiration("db.t", older_than=datetime(2020, 1, 1, tzinfo=UTC)).plan_id != plan.plan_id
    assert lifecycle.operations.plans.get(plan.plan_id).status == PlanStatus.SUPERSEDED
    with pytest.raises(PlanStateError):
        lifecycle.commit_expiration(plan)
    with pytest.raises(NoSuchPlan):
        lifecycle.commit_expiration("0" * 32)


def test_a_plan_of_many_parts_has_what_one_of_one_part_has(
    opened: Open, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large table, no process holds all the files of a plan."""
    lifecycle = opened()
    core_tables.sql(spark, f"INSERT OVERWRITE {lifecycle.config.catalogs.live.name}.db.t VALUES (9)")
    whole = lifecycle.what_if("db.t", now=LATER)
    assert whole.summary.files > 4
    monkeypatch.setattr(lookups, "_ROWS_AT_ONCE", 1)
    plan = lifecycle.plan_expiration("db.t", now=LATER)
    assert plan.summary == whole.summary
    assert {*plan.files().collect()} == {*whole.files().collect()}
    assert lifecycle.plan_expiration("db.t", now=LATER).plan_id == plan.plan_id
    lifecycle.close_plan(plan.plan_id, who="ada", why="not now")
    again = lifecycle.plan_expiration("db.t", now=LATER)
    assert again.plan_id == f"{plan.plan_id}-1" and again.summary == plan.summary


def test_bad_input_is_refused_before_anything_is_touched(opened: Open, spark: SparkSession) -> None:
    lifecycle = opened()
    history = lifecycle.snapshot_history("db.t")
    with pytest.raises(NaiveDatetime):
        lifecycle.plan_expiration("db.t", now=datetime(2026, 1, 1))
    with pytest.raises(NoSuchTable):
        lifecycle.plan_expiration("db.absent")
    current = history.current_snapshot_id
    assert current is not None
    with pytest.raises(ReferencedSnapshot, match="main"):
        lifecycle.plan_expiration("db.t", snapshot_ids=[current])
    spark.sql(f"ALTER TABLE {lifecycle.config.catalogs.live.name}.db.t SET TBLPROPERTIES ('gc.enabled'='false')")
    with pytest.raises(GarbageCollectionDisabled):
        lifecycle.plan_expiration("db.t", now=LATER)
    assert lifecycle.plans("db.t") == []
    assert lifecycle.snapshot_history("db.t").snapshots == history.snapshots


def test_an_empty_plan_has_an_id_and_its_commit_is_a_no_op(opened: Open) -> None:
    lifecycle = opened(deletion={"grace": "0s"})
    plan = lifecycle.plan_expiration("db.t")
    assert plan.plan_id and plan.expired_snapshots == () and plan.files().count() == 0
    assert lifecycle.hand_off(plan).copied_files == 0
    before = lifecycle.snapshot_history("db.t").metadata_location
    assert lifecycle.commit_expiration(plan).attempts == 0
    assert lifecycle.snapshot_history("db.t").metadata_location == before
    assert lifecycle.delete_files(plan).deleted == 0


def test_a_what_if_is_the_plan_that_would_be_made_and_leaves_the_one_that_waits(opened: Open) -> None:
    lifecycle = opened()
    plan = lifecycle.plan_expiration("db.t", now=LATER)
    other = lifecycle.what_if("db.t", now=LATER, retain_last=3)
    assert other.expired_snapshots == plan.expired_snapshots[:1]
    assert [record.plan_id for record in lifecycle.plans("db.t")] == [plan.plan_id]
    same = lifecycle.what_if("db.t", now=LATER)
    assert (same.summary, same.kept, same.cutoff) == (plan.summary, plan.kept, plan.cutoff)
    assert {*same.files().collect()} == {*plan.files().collect()}
    assert lifecycle.what_if("db.t").files().count() == 0
    assert lifecycle.operations.plans.get(plan.plan_id).status == PlanStatus.OPEN
    assert lifecycle.commit_expiration(plan).snapshots_removed == 3


def test_an_append_after_the_plan_does_not_void_it(opened: Open, spark: SparkSession) -> None:
    lifecycle = opened(deletion={"grace": "0s"})
    plan = lifecycle.plan_expiration("db.t", now=LATER)
    core_tables.sql(spark, f"INSERT INTO {lifecycle.config.catalogs.live.name}.db.t VALUES (99)")
    done = lifecycle.commit_expiration(plan)
    assert done.attempts == 1 and done.snapshots_removed == 3 and done.overtaken == ()
    assert lifecycle.delete_files(plan).deleted == plan.summary.files
    rows = spark.table(f"{lifecycle.config.catalogs.live.name}.db.t").collect()
    assert sorted(row["id"] for row in rows) == [0, 1, 2, 3, 99]


def test_a_plan_overtaken_by_another_tool_still_ends(opened: Open, spark: SparkSession) -> None:
    """Nothing waits for ever: its snapshots left the table, and their files the store, before it was handed off."""
    lifecycle = opened(deletion={"grace": "0s"}, cold_tier={"enabled": True})
    plan = lifecycle.plan_expiration("db.t", now=LATER)
    live = lifecycle.config.catalogs.live.name
    listed = ", ".join(map(str, plan.expired_snapshots))
    spark.sql(f"CALL {live}.system.expire_snapshots(table => 'db.t', snapshot_ids => array({listed}))")

    handed = lifecycle.hand_off(plan)
    assert (handed.overtaken, handed.archived, handed.lost) == (plan.expired_snapshots, (), ())
    done = lifecycle.commit_expiration(plan)
    assert (done.attempts, done.overtaken) == (0, plan.expired_snapshots)
    report = lifecycle.delete_files(plan)
    assert (report.deleted + report.already_absent, report.failed) == (plan.summary.files, 0)
    assert lifecycle.hand_off(plan).copied_files == 0  # done already
    assert sorted(row["id"] for row in spark.table(f"{live}.db.t").collect()) == [0, 1, 2, 3]


@pytest.mark.parametrize("revival", ["tag", "branch", "hold", "rollback"])
def test_what_came_alive_since_the_plan_stops_its_commit(opened: Open, spark: SparkSession, revival: str) -> None:
    lifecycle = opened()
    live = lifecycle.config.catalogs.live.name
    plan = lifecycle.plan_expiration("db.t", now=LATER)
    doomed = plan.expired_snapshots[1]
    if revival == "tag":
        lifecycle.tag("db.t", "kept", doomed, why="an auditor asked")
    elif revival == "branch":
        spark.sql(f"ALTER TABLE {live}.db.t CREATE BRANCH kept AS OF VERSION {doomed}")
    elif revival == "hold":
        lifecycle.hold("db.t", "legal", "case 7", snapshot_ids=[doomed])
    else:
        spark.sql(f"CALL {live}.system.rollback_to_snapshot(table => 'db.t', snapshot_id => {doomed})")
    with pytest.raises(StalePlan, match=str(doomed)):
        lifecycle.commit_expiration(plan)
    assert doomed in {snapshot.snapshot_id for snapshot in lifecycle.snapshot_history("db.t").snapshots}
    assert lifecycle.operations.plans.get(plan.plan_id).status == PlanStatus.OPEN


def test_a_tag_made_between_guard_and_swap_wins(
    opened: Open, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle = opened()
    live = lifecycle.config.catalogs.live.name
    plan = lifecycle.plan_expiration("db.t", now=LATER)
    doomed = plan.expired_snapshots[0]
    guarded = []

    def guard_then_tag(*args: Any) -> commits.Change | None:
        found = removal(*args)
        if not guarded:
            spark.sql(f"ALTER TABLE {live}.db.t CREATE TAG late AS OF VERSION {doomed}")
        guarded.append(found)
        return found

    monkeypatch.setattr("artemis_lifecycle.expiration.commit.removal", guard_then_tag)
    with pytest.raises(StalePlan, match="late"):
        lifecycle.commit_expiration(plan)
    assert len(guarded) == 1  # the first attempt's guard passed; the second, on the new base, refused
    history = lifecycle.snapshot_history("db.t")
    assert history.refs["late"].snapshot_id == doomed
    assert {snapshot.snapshot_id for snapshot in history.snapshots} >= set(plan.expired_snapshots)


def test_grace_runs_by_postgres_clock_and_large_plans_wait_for_a_person(opened: Open) -> None:
    lifecycle = opened(deletion={"grace": "1h", "max_files": 1})
    plan = lifecycle.plan_expiration("db.t", now=LATER)
    with pytest.raises(ApprovalNeeded, match="max_files"):
        lifecycle.commit_expiration(plan)
    lifecycle.approve(plan, who="j.smith", why="looked at them")
    lifecycle.commit_expiration(plan)
    with pytest.raises(GraceNotOver):
        lifecycle.delete_files(plan)
    with pytest.raises(GraceNotOver):
        lifecycle.delete_files(plan, now=LATER)
    assert lifecycle.due_plans("db.t") == []


def test_a_commit_that_was_not_recorded_is_found_done(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    lifecycle = opened(deletion={"grace": "0s"})
    plan = lifecycle.plan_expiration("db.t", now=LATER)

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lifecycle.operations.plans, "mark", dies)
        with pytest.raises(KeyboardInterrupt):
            lifecycle.commit_expiration(plan)
    metadata = read_table_metadata(lifecycle.live_stores, lifecycle.snapshot_history("db.t").metadata_location)
    assert len(metadata.snapshots) == 1
    done = lifecycle.commit_expiration(plan)
    assert done.snapshots_removed == 0 and done.metadata_location == metadata.metadata_location
    assert lifecycle.delete_files(plan).deleted == plan.summary.files
