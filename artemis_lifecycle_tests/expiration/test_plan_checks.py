"""What a plan has behind it holds in every process: red checks stop it, an approval is not planned away, a dry handoff
says what a real one copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import ApprovalNeeded, CheckFailed, PlanStateError, StalePlan
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.expiration.verdicts import COPY_VERIFIED, KEEPS_EVERY_REF, KEEPS_WINDOW_EDGE
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table
from artemis_lifecycle_tests.policies import AT_ONCE


@pytest.fixture
def config(make_config: MakeConfig) -> LifecycleConfig:
    policy = {**AT_ONCE, "deletion": {"grace": "0s"}}
    guarded = {**policy, "deletion": {"grace": "0s", "max_files": 1}, "cold_tier": {"enabled": False}}
    return make_config(defaults=policy, tables={"db.guarded": guarded, "db.*": {}})


@pytest.fixture
def lifecycle(config: LifecycleConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    with open_lifecycle(config, spark=spark) as opened:
        yield opened


def cold_files(config: LifecycleConfig) -> list[Path]:
    root = Path((config.catalogs.cold.warehouse or "").removeprefix("file://"))
    return [path for path in sorted(root.rglob("*")) if path.is_file()]


def rot(path: Path) -> Callable[[], object]:
    """Flip a bit in the middle of the file; returns what puts it back."""
    good = path.read_bytes()
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 1
    path.write_bytes(bytes(bad))
    return lambda: path.write_bytes(good)


class TestVerdicts:
    def test_a_plan_and_its_handoff_leave_green_verdicts(self, lifecycle: Lifecycle) -> None:
        plan = lifecycle.plan_expiration(make_table(lifecycle, "t", 3))
        known = lifecycle.operations.verdicts.newest(plan.plan_id)
        assert {name: each.passed for name, each in known.items()} == {KEEPS_EVERY_REF: True, KEEPS_WINDOW_EDGE: True}
        lifecycle.hand_off(plan)
        assert lifecycle.operations.verdicts.newest(plan.plan_id)[COPY_VERIFIED].passed

    def test_a_red_check_stops_commit_and_deletion_in_every_process(
        self, lifecycle: Lifecycle, config: LifecycleConfig, spark: SparkSession
    ) -> None:
        table = make_table(lifecycle, "t", 3)
        plan = lifecycle.plan_expiration(table)
        lifecycle.hand_off(plan)
        victim = next(path for path in cold_files(config) if path.suffix == ".parquet")
        put_back = rot(victim)
        red = {each.check: each.passed for each in lifecycle.check_plan(plan)}
        assert red == {KEEPS_EVERY_REF: True, KEEPS_WINDOW_EDGE: True, COPY_VERIFIED: False}
        before = lifecycle.snapshot_history(table).metadata_location
        with open_lifecycle(config, spark=spark) as elsewhere:
            for dry_run in (True, False):
                with pytest.raises(CheckFailed, match=f"{COPY_VERIFIED} of plan {plan.plan_id} failed"):
                    elsewhere.commit_expiration(plan.plan_id, dry_run=dry_run)
        assert lifecycle.snapshot_history(table).metadata_location == before
        put_back()
        lifecycle.check_plan(plan, COPY_VERIFIED)
        lifecycle.commit_expiration(plan)
        # Between the commit and the deletion the copies are all there will be.
        put_back = rot(victim)
        lifecycle.check_plan(plan, COPY_VERIFIED)
        with pytest.raises(CheckFailed):
            lifecycle.delete_files(plan)
        put_back()
        lifecycle.check_plan(plan, COPY_VERIFIED)
        assert lifecycle.delete_files(plan).deleted == plan.summary.files > 0

    def test_checks_that_did_not_run_run_at_the_commit(self, lifecycle: Lifecycle, spark: SparkSession) -> None:
        plan = lifecycle.plan_expiration(make_table(lifecycle, "t", 3))
        lifecycle.hand_off(plan)
        with lifecycle.operations.engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM lifecycle.verdicts")
        lifecycle.commit_expiration(plan)
        assert set(lifecycle.operations.verdicts.newest(plan.plan_id)) == {
            KEEPS_EVERY_REF,
            KEEPS_WINDOW_EDGE,
            COPY_VERIFIED,
        }


class TestApprovedPlans:
    def approved(self, lifecycle: Lifecycle) -> ExpirationPlan:
        plan = lifecycle.plan_expiration(make_table(lifecycle, "guarded", 4))
        with pytest.raises(ApprovalNeeded):
            lifecycle.commit_expiration(plan)
        lifecycle.approve(plan, who="ada", why="a month of commits")
        return plan

    def test_planning_again_resumes_it(self, lifecycle: Lifecycle, spark: SparkSession) -> None:
        plan = self.approved(lifecycle)
        spark.sql(
            f"INSERT INTO {lifecycle.config.catalogs.live.name}.{plan.table} SELECT * FROM "
            f"{lifecycle.config.catalogs.live.name}.{plan.table} LIMIT 1"
        )
        assert lifecycle.plan_expiration(plan.table).plan_id == plan.plan_id
        with pytest.raises(PlanStateError, match="is approved, and waits"):
            lifecycle.plan_expiration(plan.table, retain_last=2)
        lifecycle.commit_expiration(plan)
        assert lifecycle.plan_expiration(plan.table).plan_id != plan.plan_id

    def test_a_stale_one_is_superseded_and_approved_again(self, lifecycle: Lifecycle) -> None:
        plan = self.approved(lifecycle)
        lifecycle.tag(plan.table, "audit", ids_of(lifecycle, plan.table)[0])
        again = lifecycle.plan_expiration(plan.table)
        assert again.plan_id != plan.plan_id
        assert lifecycle.operations.plans.get(plan.plan_id).superseded_by == again.plan_id
        with pytest.raises(ApprovalNeeded):
            lifecycle.commit_expiration(again)

    @pytest.mark.parametrize("setting", [{"window": "900d"}, {"min_snapshots": 10}])
    def test_one_that_removes_what_the_policy_keeps_by_now_is_not_committed(
        self, lifecycle: Lifecycle, config: LifecycleConfig, spark: SparkSession, setting: dict[str, Any]
    ) -> None:
        plan = self.approved(lifecycle)
        longer = config.model_dump(exclude_unset=True)
        longer["tables"][plan.table]["retention"] |= setting
        with open_lifecycle(LifecycleConfig.model_validate(longer), spark=spark) as changed:
            with pytest.raises(StalePlan, match="would remove what the table now keeps"):
                changed.commit_expiration(plan.plan_id)
            assert changed.plan_expiration(plan.table).plan_id != plan.plan_id

    def test_a_closed_one_makes_room(self, lifecycle: Lifecycle) -> None:
        plan = self.approved(lifecycle)
        lifecycle.close_plan(plan, who="ada", why="not now")
        assert lifecycle.plan_expiration(plan.table, retain_last=2).plan_id != plan.plan_id


def test_a_dry_handoff_copies_nothing_and_says_what_a_real_one_copies(
    lifecycle: Lifecycle, config: LifecycleConfig
) -> None:
    plan = lifecycle.plan_expiration(make_table(lifecycle, "t", 4))
    dry = lifecycle.hand_off(plan, dry_run=True)
    assert dry.dry_run
    assert cold_files(config) == []
    assert dry.copied_files == dry.copied_bytes == 0
    done = lifecycle.hand_off(plan)
    assert (dry.would_copy_files, done.would_copy_files) == (done.copied_files, 0)
    # Manifests and lists are written anew, with other sizes.
    assert dry.would_copy_bytes == pytest.approx(done.copied_bytes, rel=0.2)
    again = lifecycle.hand_off(plan, dry_run=True)
    assert again.would_copy_files == again.would_copy_bytes == 0
