"""The kill switch: whatever is under way stops, nothing new begins, and all of it goes on afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import BadInput, NoSuchTable, Paused
from artemis_lifecycle.operations import crash_points, decisions
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table
from artemis_lifecycle_tests.policies import AT_ONCE

POLICY: dict[str, Any] = {**AT_ONCE, "cold_tier": {"enabled": False}, "deletion": {"grace": "0s"}}


@pytest.fixture
def lifecycle(make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lifecycle]:
    monkeypatch.setattr(decisions, "CHECKED_EVERY", 0.05)
    slow = {**POLICY, "deletion": {"grace": "0s", "requests_per_second": 1}}
    with Lifecycle.open(make_config(defaults=POLICY, tables={"db.slow": slow, "db.*": {}}), spark=spark) as opened:
        yield opened


def test_nothing_begins_while_it_is_paused(lifecycle: Lifecycle) -> None:
    one, other = make_table(lifecycle, "one", 3), make_table(lifecycle, "other", 3)
    first = ids_of(lifecycle, one)[0]
    plan = lifecycle.plan_expiration(one)
    pause = lifecycle.pause(one, who="ada", why="bill runs high")
    assert lifecycle.pause(one, who="bob", why="me too") == pause
    for step in (lambda: lifecycle.plan_expiration(one), lambda: lifecycle.commit_expiration(plan)):
        with pytest.raises(Paused, match=r"db\.one is paused by ada.*bill runs high"):
            step()
    with pytest.raises(Paused):
        lifecycle.scan_orphans(one)
    # What protects, and what reads, goes on; so do other tables.
    lifecycle.tag(one, "kept", first)
    hold = lifecycle.hold(one, "legal", "a case", snapshot_ids=[first])
    lifecycle.release(hold.hold_id)
    assert lifecycle.read(one).count() == 3
    assert lifecycle.expire(other).deleted > 0
    everybody = lifecycle.pause(who="ada", why="the store is down")
    assert {each.pause_id for each in lifecycle.pauses()} == {pause.pause_id, everybody.pause_id}
    with pytest.raises(Paused, match="all tables are paused"):
        lifecycle.expire(other)
    # The table's own pause outlives that of all.
    assert [each.pause_id for each in lifecycle.resume(who="bob")] == [everybody.pause_id]
    with pytest.raises(Paused, match="bill runs high"):
        lifecycle.expire(one)
    assert [(each.pause_id, each.ended_by) for each in lifecycle.resume(one, who="bob")] == [(pause.pause_id, "bob")]
    assert lifecycle.resume(one, who="bob") == []
    lifecycle.expire(one)
    with pytest.raises(BadInput):
        lifecycle.pause(who="ada", why=" ")


def test_the_pause_of_a_dropped_table_ends_by_the_name_that_it_had(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "gone", 1)
    pause = lifecycle.pause(table, who="ada", why="looks odd")
    lifecycle.spark.sql(f"DROP TABLE {lifecycle.config.catalogs.live.name}.{table}")
    everybody = lifecycle.pause(who="ada", why="the store is down")
    assert [each.pause_id for each in lifecycle.resume(table, who="bob")] == [pause.pause_id]
    with pytest.raises(NoSuchTable):
        lifecycle.resume(table, who="bob")
    assert lifecycle.pauses() == [everybody]  # A name that nothing has never ends the pause of all.


def test_a_dropped_table_takes_a_pause_by_its_name(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "left", 2)
    lifecycle.observe_catalog()
    lifecycle.spark.sql(f"DROP TABLE {lifecycle.config.catalogs.live.name}.{table}")
    lifecycle.pause(table, who="ada", why="looks odd")
    with pytest.raises(Paused, match="looks odd"):
        lifecycle.scan_dropped(table)
    assert lifecycle.resume(table, who="ada")


def test_a_pause_counts_for_the_table_and_for_whatever_has_its_name(lifecycle: Lifecycle) -> None:
    table, live = make_table(lifecycle, "word", 2), lifecycle.config.catalogs.live.name
    pause = lifecycle.pause(table, who="ada", why="looks odd")
    lifecycle.spark.sql(f"ALTER TABLE {live}.{table} RENAME TO db.renamed")
    make_table(lifecycle, "word", 2)
    for each in (table, "db.renamed"):
        with pytest.raises(Paused, match=rf"{pause.table_uuid}, and any table with that name.*looks odd"):
            lifecycle.expire(each)
    assert lifecycle.resume(table, who="bob")
    assert lifecycle.expire(table).deleted and lifecycle.expire("db.renamed").deleted


def test_a_deletion_stops_between_two_pieces_and_goes_on(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "slow", 4)
    plan = lifecycle.plan_expiration(table)
    lifecycle.commit_expiration(plan)
    deleted = 0

    def pause_at_the_second(name: str) -> None:
        nonlocal deleted
        if name != "deletion.delete_files:after":
            return
        deleted += 1
        if deleted == 2:
            lifecycle.pause(table, who="ada", why="too many 503")
            _seen(lifecycle)

    with crash_points.installed(pause_at_the_second):
        report = lifecycle.delete_files(plan)
    assert report.paused is not None and "too many 503" in report.paused
    assert report.deleted == 0 and report.pending == plan.summary.files  # of a batch that is not over
    with pytest.raises(Paused):
        lifecycle.delete_files(plan)
    lifecycle.resume(table, who="ada")
    report = lifecycle.delete_files(plan)
    assert (report.deleted, report.failed, report.pending) == (plan.summary.files, 0, 0)


@pytest.mark.parametrize("fresh", [False, True], ids=["session", "first step"])
def test_spark_jobs_of_a_step_are_cancelled(lifecycle: Lifecycle, fresh: bool) -> None:
    table = make_table(lifecycle, f"busy_{fresh}", 1)
    if fresh:
        # As a command does: its first step is what asks for Spark.
        lifecycle = Lifecycle.open(lifecycle.config)
    state = lifecycle.steps.table_state(table)

    ended: list[str] = []

    def long_step() -> None:
        with lifecycle.steps.run(state, "a long one"):
            lifecycle.pause(table, who="ada", why="stop it")
            lifecycle.spark.range(2).mapInArrow(_for_minutes, "id long").collect()
            ended.append("by itself")

    with pytest.raises(Paused, match="stop it"):
        long_step()
    assert not ended
    lifecycle.resume(table, who="ada")
    # Jobs of others on the session were never meant.
    assert lifecycle.spark.range(3).count() == 3
    assert lifecycle.plan_expiration(table).expired_snapshots == ()


def test_scheduled_work_ends_with_its_quiet_window(make_config: MakeConfig, spark: SparkSession) -> None:
    now = datetime.now(UTC)
    over = {"from": f"{now - timedelta(hours=3):%H:%M}", "to": f"{now - timedelta(hours=1):%H:%M}"}
    config = make_config(defaults={**POLICY, "quiet_window": over}, tables={"db.*": {}})
    with Lifecycle.open(config, spark=spark, in_quiet_window=True) as nightly:
        table = make_table(nightly, "night", 2)
        with pytest.raises(Paused, match=r"quiet window .* is over"):
            nightly.plan_expiration(table)
    with Lifecycle.open(config, spark=spark) as by_hand:
        assert by_hand.expire(table).deleted > 0


def _for_minutes(rows: Any) -> Any:
    time.sleep(120)
    yield from rows


def _seen(lifecycle: Lifecycle) -> None:
    """Until the watch has checked: it checks twenty times a second here."""
    time.sleep(0.5)
