"""Snapshots that a handoff leaves out: only those whose loss a person approved, or that another tool expired."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import HandoffFailed, StalePlan
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.cold_tier.test_put_back import Place, put_back
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.expiration.aged import set_ages
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.protection.foreign import expire_in_metadata

WHO: dict[str, Any] = {"who": "bob", "why": "the disk is gone"}


@pytest.fixture
def make(make_config: MakeConfig, spark: SparkSession) -> Iterator[Callable[..., Place]]:
    opened = []

    def made(**cold_tier: str) -> Place:
        config = make_config(defaults={**AT_ONCE, "cold_tier": cold_tier}, tables={"db.*": {}})
        opened.append(open_lifecycle(config, spark=spark))
        place = Place(opened[-1].__enter__(), "t")
        core_tables.sql(spark, f"CREATE NAMESPACE {place.lifecycle.config.catalogs.live.name}.db")
        core_tables.sql(spark, f"CREATE TABLE {place.qualified} (id int) USING iceberg")
        for number in range(4):
            place.run(f"INSERT OVERWRITE {{t}} VALUES ({number})")
        return place

    yield made
    for each in opened:
        each.__exit__(None, None, None)


def data_file(place: Place, number: int) -> Path:
    rows = place.lifecycle.spark.sql(
        f"SELECT file_path FROM {place.qualified}.files VERSION AS OF {ids(place)[number]}"
    )
    return Path(str(rows.collect()[0][0]).removeprefix("file:"))


def list_file(place: Place, number: int) -> Path:
    snapshot = place.metadata.snapshot(ids(place)[number])
    assert snapshot is not None and snapshot.manifest_list is not None
    return Path(snapshot.manifest_list.removeprefix("file:"))


def ids(place: Place) -> list[int]:
    return [snapshot_id for _, snapshot_id in place.at]


@contextmanager
def away(path: Path) -> Iterator[None]:
    aside = path.with_name(f"{path.name}.away")
    path.rename(aside)
    try:
        yield
    finally:
        aside.rename(path)


@pytest.mark.parametrize("other", [data_file, list_file])
def test_an_approval_is_for_the_snapshots_that_the_refused_handoff_named(
    make: Callable[..., Place], other: Callable[[Place, int], Path]
) -> None:
    place = make()
    plan = place.lifecycle.plan_expiration(place.table)
    first, later = data_file(place, 0), other(place, 1)
    place.lifecycle.approve(plan, what="lost", **WHO)  # Of nothing.
    with away(first):
        with pytest.raises(HandoffFailed, match=str(ids(place)[0])):
            place.lifecycle.hand_off(plan)
        place.lifecycle.approve(plan, what="lost", **WHO)
        with away(later), pytest.raises(HandoffFailed, match=str(ids(place)[1])):
            place.lifecycle.hand_off(plan)
        done = place.lifecycle.hand_off(plan)
    assert (done.lost, done.archived) == ((ids(place)[0],), tuple(ids(place)[1:3]))


def test_a_file_of_another_size_is_a_loss_and_never_archived(make: Callable[..., Place]) -> None:
    place = make()
    plan = place.lifecycle.plan_expiration(place.table)
    victim = data_file(place, 1)
    victim.write_bytes(victim.read_bytes() * 2)
    with pytest.raises(HandoffFailed, match="the metadata records"):
        place.lifecycle.hand_off(plan)
    place.lifecycle.approve(plan, what="lost", **WHO)
    done = place.lifecycle.hand_off(plan)
    assert (done.lost, done.archived) == ((ids(place)[1],), (ids(place)[0], ids(place)[2]))


def test_a_list_lost_after_the_first_attempt_leaves_its_snapshot_out(make: Callable[..., Place]) -> None:
    place = make()
    plan = place.lifecycle.plan_expiration(place.table)
    with away(data_file(place, 0)), pytest.raises(HandoffFailed):
        place.lifecycle.hand_off(plan)
    list_file(place, 1).unlink()
    with pytest.raises(HandoffFailed, match=f"1 snapshots cannot be archived: {ids(place)[1]}"):
        place.lifecycle.hand_off(plan)
    place.lifecycle.approve(plan, what="lost", **WHO)
    done = place.lifecycle.hand_off(plan)
    assert (done.lost, done.archived) == ((ids(place)[1],), (ids(place)[0], ids(place)[2]))


def test_what_was_left_out_as_overtaken_and_is_back_stops_the_commit(make: Callable[..., Place]) -> None:
    place = make()
    plan = place.lifecycle.plan_expiration(place.table)
    backup, victim = place.metadata.metadata_location, data_file(place, 1)
    kept = victim.read_bytes()
    expire_in_metadata(place.lifecycle, place.table, [ids(place)[1]])
    place.refresh()
    victim.unlink()
    assert place.lifecycle.hand_off(plan).overtaken == (ids(place)[1],)
    victim.write_bytes(kept)
    put_back(place.lifecycle, place.table, backup)
    place.refresh()
    for _ in range(2):
        with pytest.raises(StalePlan, match=str(ids(place)[1])):
            place.lifecycle.commit_expiration(plan)
        place.lifecycle.hand_off(plan)
    place.lifecycle.close_plan(plan.plan_id, **WHO)
    place.lifecycle.expire(place.table)
    assert [row[0] for row in place.lifecycle.read(place.table, snapshot_id=ids(place)[1]).collect()] == [1]


def test_a_file_that_is_there_but_cannot_be_told_apart_is_never_left_out_as_overtaken(
    make: Callable[..., Place],
) -> None:
    """One snapshot's file is added again by a later one, and touched: by its time it may be either's."""
    place = make()
    spark: Any = place.lifecycle.spark
    table = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, place.qualified)
    table.refresh()
    again = data_file(place, 1)
    file = next(iter(table.snapshot(ids(place)[1]).addedDataFiles(table.io())))
    table.newAppend().appendFile(file).commit()
    place.refresh()
    place.run("INSERT OVERWRITE {t} VALUES (9)")
    again.touch()
    plan = place.lifecycle.plan_expiration(place.table)
    expire_in_metadata(place.lifecycle, place.table, [ids(place)[1]])
    place.refresh()
    with pytest.raises(HandoffFailed, match=str(ids(place)[1])):
        place.lifecycle.hand_off(plan)
    assert again.exists()


def test_a_commit_waits_for_what_the_policy_of_now_archives(
    make: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make(archive="daily")
    plan = place.lifecycle.plan_expiration(place.table)
    done = place.lifecycle.hand_off(plan)
    assert done.thinned
    policy = place.lifecycle.config.policy(place.table)
    every = policy.cold_tier.model_copy(update={"archive": "every"})
    changed = policy.model_copy(update={"cold_tier": every})
    monkeypatch.setattr(LifecycleConfig, "policy", lambda *_: changed)
    with pytest.raises(StalePlan, match=f"left out: {min(done.thinned)}"):
        place.lifecycle.commit_expiration(plan)
    place.lifecycle.close_plan(plan.plan_id, **WHO)
    place.lifecycle.expire(place.table)
    for number in done.thinned:
        assert place.lifecycle.read(place.table, snapshot_id=number).count() == 1


@pytest.mark.parametrize("when", ["before the handoff", "before the commit"])
def test_a_tag_that_was_moved_since_the_plan_is_not_removed_with_what_it_names_now(
    make: Callable[..., Place], when: str
) -> None:
    place = make(archive="daily")
    first, second = ids(place)[:2]
    place.lifecycle.spark.sql(f"ALTER TABLE {place.qualified} CREATE TAG x AS OF VERSION {first} RETAIN 5 DAYS")
    later = datetime.now(UTC) + timedelta(days=60)
    plan = place.lifecycle.plan_expiration(place.table, now=later)
    assert plan.expired_refs == ("x",) and {first, second} <= set(plan.expired_snapshots)
    move = f"ALTER TABLE {place.qualified} REPLACE TAG x AS OF VERSION {second} RETAIN 5 DAYS"
    if when == "before the handoff":
        place.lifecycle.spark.sql(move)
    place.lifecycle.hand_off(plan)
    place.lifecycle.spark.sql(move)
    with pytest.raises(StalePlan, match="refs x, which name other snapshots"):
        place.lifecycle.commit_expiration(plan)
    place.lifecycle.expire(place.table, now=later)
    assert [row["id"] for row in place.lifecycle.read(place.table, tag="x").collect()] == [1]


@pytest.mark.parametrize("gone", [data_file, list_file])
def test_of_a_period_the_newest_snapshot_that_is_still_there_is_archived(
    make: Callable[..., Place], gone: Callable[[Place, int], Path]
) -> None:
    """The first three snapshots are of one day. Another tool expires the newest of them before the handoff."""
    place = make(archive="daily")
    noon = datetime.now(UTC).replace(hour=12, minute=0) - timedelta(days=1)
    ages = [timedelta(days=9, hours=hours) for hours in (3, 2, 1)]
    set_ages(place.lifecycle, place.table, [*ages, timedelta(days=4)], noon)
    place.refresh()
    place.run("INSERT OVERWRITE {t} VALUES (9)")
    plan = place.lifecycle.plan_expiration(place.table)
    victim = gone(place, 2)
    expire_in_metadata(place.lifecycle, place.table, [ids(place)[2]])
    place.refresh()
    victim.unlink()
    if gone is list_file:
        assert set(place.lifecycle.hand_off(plan).archived) == {ids(place)[1], ids(place)[3]}
    else:  # Found too late to choose another: a person decides.
        with pytest.raises(HandoffFailed, match=rf"{ids(place)[2]}\. Each stands for its period"):
            place.lifecycle.hand_off(plan)
