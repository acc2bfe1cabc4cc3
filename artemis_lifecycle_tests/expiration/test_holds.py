"""Holds on real tables: legal, a reader's lease, a consumer's position; and thinning from lifecycle.yaml."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs import commit as commits
from artemis_lifecycle.errors import BadInput, NoSuchSnapshot, NoSuchTable, Refused, StalePlan
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table, set_ages
from artemis_lifecycle_tests.expiration.conftest import MakeLifecycle

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
RULES = ("as-of", "iceberg", "paimon")


def _table(lifecycle: Lifecycle, name: str = "t") -> tuple[str, list[int]]:
    """Five snapshots, 50, 40, 30, 20 and 0 days old; under a window of a day the first three go."""
    table = make_table(lifecycle, name, 5)
    set_ages(lifecycle, table, [50 * DAY, 40 * DAY, 30 * DAY, 20 * DAY, 0 * DAY])
    return table, ids_of(lifecycle, table)


@pytest.mark.parametrize("rule", RULES)
def test_each_kind_keeps_what_it_says_and_every_reason_names_it(make_lifecycle: MakeLifecycle, rule: str) -> None:
    lifecycle = make_lifecycle(retention={"rule": rule, "window": "1d"})
    table, ids = _table(lifecycle)
    free = lifecycle.plan_expiration(table)
    assert set(free.expired_snapshots) >= set(ids[:3])
    legal = lifecycle.hold(table, "legal", "case 7", snapshot_ids=[ids[0]])
    lease = lifecycle.hold(table, "ana", "a long query", snapshot_ids=[ids[1]], kind="lease", ttl="2h")
    held = lifecycle.plan_expiration(table)
    assert held.expired_snapshots == tuple(i for i in free.expired_snapshots if i not in ids[:2])
    assert any(why.startswith(f"legal hold {legal.hold_id} of legal: case 7") for why in held.kept[ids[0]])
    assert any(why.startswith(f"reader's lease {lease.hold_id} of ana") for why in held.kept[ids[1]])
    consumer = lifecycle.hold(table, "flink", "reads on", snapshot_ids=[ids[2]], kind="consumer")
    assert lifecycle.plan_expiration(table).expired_snapshots == ()
    for later in ids[2:]:
        assert any(consumer.hold_id in why for why in lifecycle.plan_expiration(table).kept[later])
    for placed in (legal, lease, consumer):
        lifecycle.release(placed.hold_id)
    assert lifecycle.plan_expiration(table).expired_snapshots == free.expired_snapshots
    assert lifecycle.holds(table) == []
    assert [hold.kind for hold in lifecycle.holds(table, ended=True)] == ["legal", "lease", "consumer"]


def test_a_consumer_that_advances_releases_what_it_has_read(make_lifecycle: MakeLifecycle) -> None:
    lifecycle = make_lifecycle()
    table, ids = _table(lifecycle)
    consumer = lifecycle.hold(table, "flink", "reads on", snapshot_ids=[ids[1]], kind="consumer")
    assert lifecycle.plan_expiration(table).expired_snapshots == (ids[0],)
    lifecycle.advance(consumer.hold_id, ids[2])
    plan = lifecycle.plan_expiration(table)
    assert plan.expired_snapshots == (ids[0], ids[1])
    assert lifecycle.commit_expiration(plan).snapshots_removed == 2
    with pytest.raises(NoSuchSnapshot, match=str(ids[1])):
        lifecycle.advance(consumer.hold_id, ids[1])
    with pytest.raises(NoSuchSnapshot):
        lifecycle.hold(table, "flink", "reads on", snapshot_ids=[ids[0]], kind="consumer")


def test_a_lease_that_was_not_renewed_no_longer_holds(make_lifecycle: MakeLifecycle) -> None:
    lifecycle = make_lifecycle()
    table, ids = _table(lifecycle)
    lease = lifecycle.hold(table, "ana", "a long query", snapshot_ids=[ids[0]], kind="lease", ttl="10m")
    renewed = lifecycle.renew(lease.hold_id, "2h")
    assert renewed.until is not None and lease.until is not None and renewed.until - lease.until > HOUR
    assert lifecycle.plan_expiration(table).expired_snapshots == tuple(ids[1:3])
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(
            text("UPDATE lifecycle.holds SET until = clock_timestamp() - interval '1 ms' WHERE hold_id = :it"),
            {"it": lease.hold_id},
        )
    assert lifecycle.plan_expiration(table).expired_snapshots == tuple(ids[:3])
    with pytest.raises(Refused, match="has ended"):
        lifecycle.renew(lease.hold_id, "2h")
    with pytest.raises(BadInput, match="ttl"):
        lifecycle.renew(lease.hold_id, "a while")


def test_an_explicit_id_under_a_hold_is_refused_and_a_hold_after_the_plan_voids_it(
    make_lifecycle: MakeLifecycle,
) -> None:
    lifecycle = make_lifecycle(retention={"rule": "iceberg", "window": "365d"})
    table, ids = _table(lifecycle)
    plan = lifecycle.plan_expiration(table, snapshot_ids=[ids[2]])
    assert ids[2] in plan.expired_snapshots
    consumer = lifecycle.hold(table, "flink", "reads on", snapshot_ids=[ids[1]], kind="consumer")
    with pytest.raises(StalePlan, match=f"consumer's position {consumer.hold_id}"):
        lifecycle.commit_expiration(plan)
    with pytest.raises(Refused, match=f"consumer's position {consumer.hold_id}"):
        lifecycle.plan_expiration(table, snapshot_ids=[ids[2]])
    assert ids_of(lifecycle, table) == ids


def test_no_hold_slips_in_between_guard_and_swap(
    make_lifecycle: MakeLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle = make_lifecycle()
    table, ids = _table(lifecycle)
    plan = lifecycle.plan_expiration(table)
    swap, raised = commits._swap, []
    waiting: list[threading.Thread] = []

    def hold_meanwhile() -> None:
        try:
            lifecycle.hold(table, "legal", "case 7", snapshot_ids=[ids[0]])
        except NoSuchSnapshot as error:
            raised.append(error)

    def swapped(*args: Any) -> None:
        waiting.append(threading.Thread(target=hold_meanwhile))
        waiting[0].start()
        waiting[0].join(1.0)
        assert waiting[0].is_alive(), "the hold was placed between guard and swap"
        swap(*args)

    monkeypatch.setattr(commits, "_swap", swapped)
    assert lifecycle.commit_expiration(plan).snapshots_removed == 3
    waiting[0].join(30.0)
    # The error says that it came too late. It leaves no hold behind that would hold nothing.
    assert [str(ids[0]) in str(error) for error in raised] == [True]
    assert lifecycle.holds(table) == []


def test_a_position_in_a_table_made_anew_is_not_moved(make_lifecycle: MakeLifecycle) -> None:
    lifecycle = make_lifecycle()
    table, ids = _table(lifecycle)
    consumer = lifecycle.hold(table, "flink", "reads on", snapshot_ids=[ids[0]], kind="consumer")
    lifecycle.spark.sql(f"DROP TABLE {lifecycle.config.catalogs.live.name}.{table}")
    table, ids = _table(lifecycle)
    with pytest.raises(NoSuchTable, match="another table"):
        lifecycle.advance(consumer.hold_id, ids[0])


def test_who_holds_a_file_is_reported_with_consumers_and_leases(make_lifecycle: MakeLifecycle) -> None:
    lifecycle = make_lifecycle()
    table, ids = _table(lifecycle)
    lifecycle.hold(table, "legal", "case 7", snapshot_ids=[ids[0]])
    consumer = lifecycle.hold(table, "flink", "reads on", snapshot_ids=[ids[3]], kind="consumer")
    newest = lifecycle.snapshot_history(table).snapshots[-1].manifest_list
    assert newest is not None
    found = lifecycle.explain(table, newest)
    assert found.holders == (
        f"snapshot {ids[4]} (branch main)",
        f"consumer's position {consumer.hold_id} of flink: reads on",
    )


@pytest.mark.parametrize("rule", RULES)
def test_thinning_from_lifecycle_yaml_keeps_the_newest_of_each_bucket(make_lifecycle: MakeLifecycle, rule: str) -> None:
    thin = [{"keep": "daily", "for": "35d"}, {"keep": "yearly", "for": "forever"}]
    lifecycle = make_lifecycle(retention={"rule": rule, "window": "1d", "thin": thin})
    table = make_table(lifecycle, "t", 6)
    # Two in one day of 2001, one 50 days ago, two on one day 30 days ago, and one at the last noon: an hour before noon
    # is the same day, whenever the test runs.
    now = (lifecycle.operations.clock.now() - 12 * HOUR).replace(hour=12, minute=0)
    then = now.replace(year=2001, month=6, day=15)
    ages = [now - then + HOUR, now - then, 50 * DAY, 30 * DAY + HOUR, 30 * DAY, timedelta(0)]
    instant = set_ages(lifecycle, table, ages, now)
    ids = ids_of(lifecycle, table)
    plan = lifecycle.plan_expiration(table, now=instant)
    assert ids[0] in plan.expired_snapshots and ids[3] in plan.expired_snapshots
    assert any("the newest of its year" in why for why in plan.kept[ids[1]])
    assert any("the newest of its day" in why and "until" in why for why in plan.kept[ids[4]])
    # A stored plan knows its tiers: the guard at the commit decides by the same.
    assert lifecycle.plan(plan.plan_id).settings == plan.settings and plan.settings.thinning
    assert lifecycle.commit_expiration(plan.plan_id).snapshots_removed == len(plan.expired_snapshots)
    assert ids[1] in ids_of(lifecycle, table)


def test_what_thinning_kept_keeps_its_place_from_branches(make_lifecycle: MakeLifecycle) -> None:
    """Neither a later commit of a branch that is dropped nor a branch that goes on from it takes it."""
    thin = [{"keep": "daily", "for": "35d"}, {"keep": "yearly", "for": "forever"}]
    lifecycle = make_lifecycle(retention={"window": "1d", "thin": thin})
    table, spark = make_table(lifecycle, "t", 4), lifecycle.spark
    now = (lifecycle.operations.clock.now() - 12 * HOUR).replace(hour=12, minute=0)
    ages = [now - now.replace(year=2001, month=6, day=15), 40 * DAY, 30 * DAY, timedelta(0)]
    instant = set_ages(lifecycle, table, ages, now)
    old, gone, month, head = ids_of(lifecycle, table)
    assert lifecycle.commit_expiration(lifecycle.plan_expiration(table, now=instant)).snapshots_removed == 1
    name = f"{lifecycle.config.catalogs.live.name}.{table}"
    for branch, on in (("again", old), ("audit", month)):
        spark.sql(f"ALTER TABLE {name} CREATE BRANCH {branch} AS OF VERSION {on}")
        spark.sql(f"INSERT INTO {name}.branch_{branch} SELECT * FROM {name} LIMIT 1")
    # The audit branch's commit is of the same day, and later.
    ages = [ages[0], *ages[2:], timedelta(hours=2), 30 * DAY - HOUR]
    instant = set_ages(lifecycle, table, ages, now)
    spark.catalog.refreshTable(name)
    spark.sql(f"ALTER TABLE {name} DROP BRANCH audit")
    *_, audit = ids_of(lifecycle, table)
    plan = lifecycle.plan_expiration(table, now=instant)
    assert plan.expired_snapshots == (audit,) and gone not in ids_of(lifecycle, table)
    assert any("the newest of its year" in why for why in plan.kept[old])
    assert any("the newest of its day" in why for why in plan.kept[month])
    # The guard at the commit goes by the same.
    assert lifecycle.commit_expiration(plan).snapshots_removed == 1
    assert {old, month, head} < set(ids_of(lifecycle, table))


def test_paimons_limit_and_reading_come_from_lifecycle_yaml(make_lifecycle: MakeLifecycle) -> None:
    limited = make_lifecycle(retention={"rule": "paimon", "window": "1d", "expire_limit": 1})
    table, ids = _table(limited)
    assert limited.plan_expiration(table).expired_snapshots == (ids[0],)
    newer = make_lifecycle(retention={"rule": "paimon", "window": "1d", "next_timestamp": True})
    table, ids = _table(newer)
    # The fourth was current until today: its successor is young.
    assert newer.plan_expiration(table).expired_snapshots == tuple(ids[:3])
    own = make_lifecycle(retention={"rule": "paimon", "window": "1d"})
    table, ids = _table(own)
    assert own.plan_expiration(table).expired_snapshots == tuple(ids[:4])
