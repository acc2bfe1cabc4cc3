"""Another tool expires the snapshots of an open plan in metadata only: the plan is not a commit of ours, and the
history still reaches the cold tier before any file goes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import HandoffFailed, PlanStateError
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import killed_at, lapse
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.protection.foreign import (
    expire_in_metadata,
    files_below,
    make_history,
    rows,
    warehouse,
)


@pytest.fixture
def walking(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    with open_lifecycle(make_config(defaults=AT_ONCE), spark=spark) as opened:
        yield opened


def age(lifecycle: Lifecycle) -> None:
    """As if every file of the live warehouse had been written two days ago."""
    for path in files_below(warehouse(lifecycle, "live")):
        os.utime(path, (time.time() - 172_800,) * 2)


def test_an_unarchived_plan_whose_snapshots_another_tool_expired_never_becomes_a_deletion(walking: Lifecycle) -> None:
    ids = make_history(walking)
    read = {each: rows(walking, "db.t", each) for each in ids}
    plan = walking.plan_expiration("db.t")
    assert plan.expired_snapshots == tuple(ids[:3])
    before = files_below(warehouse(walking, "live"))

    expire_in_metadata(walking, "db.t", ids[:3])
    again = walking.plan_expiration("db.t")

    [record] = walking.plans("db.t")
    assert (again.plan_id, record.status) == (plan.plan_id, PlanStatus.OPEN)
    for refused in (walking.commit_expiration, walking.delete_files):
        with pytest.raises(PlanStateError):
            refused(plan.plan_id)
    assert walking.due_plans("db.t") == []
    age(walking)
    assert walking.scan_orphans("db.t").summary.orphan_files == 0
    assert before <= files_below(warehouse(walking, "live"))

    done = walking.hand_off(plan.plan_id)
    assert (done.archived, done.overtaken, done.lost) == (tuple(ids[:3]), (), ())
    assert walking.commit_expiration(plan.plan_id).overtaken == tuple(ids[:3])
    assert walking.delete_files(plan.plan_id).deleted == plan.summary.files
    assert {each: rows(walking, "db.t", each) for each in ids} == read


def test_the_nightly_walk_finishes_an_overtaken_plan_by_itself(walking: Lifecycle) -> None:
    ids = make_history(walking)
    read = {each: rows(walking, "db.t", each) for each in ids}
    plan = walking.plan_expiration("db.t")
    expire_in_metadata(walking, "db.t", ids[1:2])
    live = walking.config.catalogs.live.name
    core_tables.sql(walking.spark, f"INSERT INTO {live}.db.t VALUES (300, 3)")

    walking.expire("db.t")
    assert [(record.plan_id, record.status) for record in walking.plans("db.t")] == [(plan.plan_id, PlanStatus.DONE)]
    walking.expire("db.t")
    assert {each: rows(walking, "db.t", each) for each in ids} == read


def test_a_plan_asked_for_by_name_says_what_must_be_finished_first(walking: Lifecycle) -> None:
    ids = make_history(walking)
    plan = walking.plan_expiration("db.t")
    expire_in_metadata(walking, "db.t", ids[:1])
    with pytest.raises(PlanStateError, match="not handed off yet") as refused:
        walking.plan_expiration("db.t", snapshot_ids=[ids[1]])
    assert f"artemis hand-off {plan.plan_id}" in str(refused.value)
    walking.close_plan(plan.plan_id, who="ann", why="not wanted")
    assert walking.plan_expiration("db.t", snapshot_ids=[ids[1]]).plan_id != plan.plan_id


def test_what_only_overtaken_snapshots_read_is_not_an_orphan(walking: Lifecycle) -> None:
    """A file that a kept snapshot shared at the time of the plan is not among the plan's own."""
    ids = make_history(walking)
    read = {each: rows(walking, "db.t", each) for each in ids}
    hold = walking.hold("db.t", "ann", "an audit", ids[1:3])
    plan = walking.plan_expiration("db.t")
    assert plan.expired_snapshots == (ids[0],)
    walking.release(hold.hold_id)
    expire_in_metadata(walking, "db.t", ids[:3])
    age(walking)

    scan = walking.scan_orphans("db.t")
    orphans = {row["path"] for row in scan.files().collect()}
    walking.approve(scan, who="ann", why="a test")
    walking.delete_orphans(scan)
    assert not orphans & {row["path"] for row in plan.files().collect()}
    assert walking.hand_off(plan.plan_id).archived == (ids[0],)
    assert rows(walking, "db.t", ids[0]) == read[ids[0]]


@pytest.mark.parametrize("handed_off", [False, True])
def test_our_killed_commit_is_distinguished_from_another_tools(walking: Lifecycle, handed_off: bool) -> None:
    """A worker died before its swap; then another tool made the very same change."""
    ids = make_history(walking)
    plan = walking.plan_expiration("db.t")
    if not handed_off:
        expire_in_metadata(walking, "db.t", ids[:3])
        walking.plan_expiration("db.t")
        assert walking.plans("db.t")[0].status is PlanStatus.OPEN
        return
    walking.hand_off(plan)

    with killed_at("catalog.commit:before"):
        walking.commit_expiration(plan)
    lapse(walking, "leases")
    assert walking.plans("db.t")[0].swap_updated_ms is not None
    expire_in_metadata(walking, "db.t", ids[:3])
    assert walking.plan_expiration("db.t").plan_id == plan.plan_id
    assert walking.plans("db.t")[0].status is PlanStatus.HANDED_OFF
    # Its own commit finds nothing left to remove, after all guards.
    assert walking.commit_expiration(plan).attempts == 0


def test_an_unrecorded_commit_is_recognized_by_the_metadata_log(walking: Lifecycle) -> None:
    ids = make_history(walking)
    plan = walking.plan_expiration("db.t")
    walking.hand_off(plan)

    with killed_at("commit:swapped"):
        walking.commit_expiration(plan)
    lapse(walking, "leases")
    core_tables.sql(walking.spark, f"INSERT INTO {walking.config.catalogs.live.name}.db.t VALUES (300, 3)")
    assert walking.plan_expiration("db.t").plan_id != plan.plan_id
    assert walking.plans("db.t")[1].status is PlanStatus.COMMITTED
    assert walking.snapshot_history("db.t").snapshots[0].snapshot_id == ids[3]


def test_a_plan_that_waits_for_an_approval_still_waits_when_another_tool_expired_its_snapshots(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    defaults = AT_ONCE | {"cold_tier": {"enabled": False}, "deletion": {"grace": "0s", "max_files": 0}}
    with open_lifecycle(make_config(defaults=defaults), spark=spark) as lifecycle:
        ids = make_history(lifecycle)
        plan = lifecycle.plan_expiration("db.t")
        expire_in_metadata(lifecycle, "db.t", ids[:3])
        assert lifecycle.plan_expiration("db.t").plan_id == plan.plan_id
        assert lifecycle.plans("db.t")[0].status is PlanStatus.OPEN
        with pytest.raises(PlanStateError):
            lifecycle.delete_files(plan)


def test_a_failed_handoff_of_an_overtaken_plan_can_be_run_again(walking: Lifecycle) -> None:
    ids = make_history(walking)
    plan = walking.plan_expiration("db.t")
    cold = warehouse(walking, "cold")
    cold.parent.mkdir(parents=True, exist_ok=True)
    cold.write_text("in the way")
    with pytest.raises(HandoffFailed):
        walking.hand_off(plan)
    expire_in_metadata(walking, "db.t", ids[:3])
    walking.plan_expiration("db.t")
    cold.unlink()
    assert walking.hand_off(plan).archived == tuple(ids[:3])
