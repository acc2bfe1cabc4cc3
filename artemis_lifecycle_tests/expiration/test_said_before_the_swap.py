"""What an expiration's commit checked, and what somebody decided before its swap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import LifecycleError, StalePlan
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table, set_ages
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import make_all_old, overwrite, warehouse
from artemis_lifecycle_tests.protection.test_found_by_reading import end_the_locks_session

Opened = Callable[[dict[str, Any]], Lifecycle]


@pytest.fixture
def opened(make_config: MakeConfig, spark: SparkSession) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield lambda policy: stack.enter_context(
            open_lifecycle(make_config(defaults=policy, tables={"db.*": {}}), spark=spark)
        )


def meanwhile(point: str, do: Callable[[], object], commit: Callable[[], object], wait: float = 20) -> list[object]:
    """Do something in another thread when the commit reaches `point`, and give it some seconds. What came of it."""
    came: list[object] = []
    threads: list[threading.Thread] = []

    def run() -> None:
        try:
            came.append(do())
        except LifecycleError as error:
            came.append(error)

    def act(reached: str) -> None:
        if reached == point and not threads:
            threads.append(threading.Thread(target=run))
            threads[0].start()
            threads[0].join(wait)

    with crash_points.installed(act), suppress(LifecycleError):
        commit()
    for thread in threads:
        thread.join()
    return came


@pytest.mark.parametrize("lost", [False, True], ids=["the-lock-is-held", "its-session-ended"])
def test_a_hold_that_was_placed_holds(opened: Opened, lost: bool) -> None:
    """Every other change under the table's lock asks once more whether it still has it; the swap does not."""
    lifecycle = opened(WITHOUT_COLD)
    table = make_table(lifecycle, "locked", 3)
    first = ids_of(lifecycle, table)[0]
    plan = lifecycle.plan_expiration(table)
    assert first in plan.expired_snapshots

    def place() -> object:
        if lost:
            # What a restart, a failover or an administrator does to a session.
            assert end_the_locks_session(lifecycle, plan.table_uuid) == 1
        return lifecycle.hold(table, "legal", "case 7", snapshot_ids=[first])

    [came] = meanwhile("plans.begin_swap:before", place, lambda: lifecycle.commit_expiration(plan), 8)

    # Refused, because it waited and the snapshot is gone; or it holds.
    assert isinstance(came, LifecycleError) or first in ids_of(lifecycle, table)


@pytest.mark.parametrize("point", ["plans.begin_swap:before", "plans.begin_swap:after"])
def test_a_closed_plan_expires_nothing(opened: Opened, point: str) -> None:
    lifecycle = opened(WITHOUT_COLD)
    table = make_table(lifecycle, "closed", 3)
    overwrite(lifecycle, table, 9)
    before = ids_of(lifecycle, table)
    plan = lifecycle.plan_expiration(table)
    close = lambda: lifecycle.close_plan(plan, who="ada", why="the wrong window: nothing may expire")  # noqa: E731

    [came] = meanwhile(point, close, lambda: lifecycle.commit_expiration(plan), 8)

    after = ids_of(lifecycle, table)
    data = warehouse(lifecycle, "live") / "db/closed/data"
    files = set(data.rglob("*.parquet"))
    make_all_old(warehouse(lifecycle, "live"))
    lifecycle.delete_orphans(lifecycle.scan_orphans(table))
    gone = files - set(data.rglob("*.parquet"))
    # The person is told that the plan was committed, or nothing was.
    committed = isinstance(came, LifecycleError) or getattr(came, "committed_at", None) is not None
    said = f"closed, and {len(before) - len(after)} snapshots and {len(gone)} data files are gone"
    assert committed or (after == before and not gone), said


@pytest.mark.parametrize("until", [timedelta(days=3), timedelta(days=1)], ids=["longer-than-now", "shorter-than-now"])
def test_a_hold_in_force_keeps_its_snapshot_whatever_instant_a_plan_is_for(opened: Opened, until: timedelta) -> None:
    lifecycle = opened(WITHOUT_COLD)
    table = make_table(lifecycle, "held", 3)
    first, now = ids_of(lifecycle, table)[0], lifecycle.operations.clock.now()
    hold = lifecycle.hold(table, "legal", "case 7", snapshot_ids=[first], until=now + until)

    plan = lifecycle.plan_expiration(table, now=now + timedelta(days=2))
    with suppress(LifecycleError):
        lifecycle.commit_expiration(plan)

    assert [each.hold_id for each in lifecycle.operations.holds.active(plan.table_uuid)] == [hold.hold_id]
    assert first in ids_of(lifecycle, table)


@pytest.mark.parametrize("by_hand", [False, True], ids=["planned-by-policy", "planned-by-hand-before"])
def test_the_policy_of_now_keeps_what_it_keeps(make_config: MakeConfig, spark: SparkSession, by_hand: bool) -> None:
    """A plan's id is that of its content: a plan by the policy may be one that a person made by other arguments."""
    config = make_config(
        defaults={"retention": {"window": "7d"}, "deletion": {"grace": "0s"}, "cold_tier": {"enabled": False}},
        tables={"db.*": {}},
    )
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "raised", 4)
        ages = [timedelta(days=12), timedelta(days=11), timedelta(days=10), timedelta(minutes=5)]
        now = set_ages(lifecycle, table, ages)
        before = ids_of(lifecycle, table)
        if by_hand:
            asked = lifecycle.plan_expiration(table, older_than=now - timedelta(days=8))
            assert len(asked.expired_snapshots) == 2
        plan = lifecycle.plan_expiration(table)
        assert len(plan.expired_snapshots) == 2
    kept = config.defaults.retention.model_copy(update={"window": timedelta(days=60)})
    raised: LifecycleConfig = config.model_copy(
        update={"defaults": config.defaults.model_copy(update={"retention": kept})}
    )
    with open_lifecycle(raised, spark=spark) as lifecycle:
        assert lifecycle.config.policy(table).retention.window == timedelta(days=60)
        with pytest.raises(StalePlan):
            lifecycle.commit_expiration(plan.plan_id)
        assert ids_of(lifecycle, table) == before
