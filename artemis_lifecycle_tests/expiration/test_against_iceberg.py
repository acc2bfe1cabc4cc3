"""Rule `iceberg` and its commit on real tables, beside Iceberg's own RemoveSnapshots on a twin of the metadata."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import GarbageCollectionDisabled, ReferencedSnapshot
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table, set_ages
from artemis_lifecycle_tests.expiration.conftest import MakeLifecycle

DAY = timedelta(days=1)


def _metadata(lifecycle: Lifecycle, table: str) -> dict[str, Any]:
    location = lifecycle.resources.live_catalog.entry(table).metadata_location
    found: dict[str, Any] = json.loads(Path(location.removeprefix("file:")).read_text())
    return found


def _lived(lifecycle: Lifecycle, version: int) -> str:
    """Branches, tags with and without an age, a staged and a cherry-picked snapshot, a rollback, statistics of both
    kinds; committed two days apart, the last one today."""
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    table = make_table(
        lifecycle,
        "t",
        4,
        properties=f"'format-version'='{version}', 'write.wap.enabled'='true', 'history.expire.max-ref-age-ms'="
        f"'{12 * DAY // timedelta(milliseconds=1)}'",
    )
    name = f"{live}.{table}"
    ids = ids_of(lifecycle, table)
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD bucket(2, id)")
    spark.sql(f"INSERT INTO {name} VALUES (40), (41)")
    spark.sql(f"CALL {live}.system.compute_table_stats(table => '{table}')")
    spark.sql(f"CALL {live}.system.compute_partition_stats(table => '{table}')")
    spark.sql(f"ALTER TABLE {name} CREATE TAG by_property AS OF VERSION {ids[0]}")
    spark.sql(f"ALTER TABLE {name} CREATE TAG own_age AS OF VERSION {ids[1]} RETAIN 400 DAYS")
    spark.sql(f"ALTER TABLE {name} CREATE TAG aged_out AS OF VERSION {ids[1]} RETAIN 3 DAYS")
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH kept RETAIN 400 DAYS WITH SNAPSHOT RETENTION 2 SNAPSHOTS 1 DAYS")
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH dropped RETAIN 1 DAYS")
    for branch in ("kept", "kept", "dropped"):
        spark.sql(f"INSERT INTO {name}.branch_{branch} VALUES (50)")
    spark.conf.set("spark.wap.id", "audit")
    try:
        spark.sql(f"INSERT INTO {name} VALUES (60)")
        staged = ids_of(lifecycle, table)[-1]
    finally:
        spark.conf.unset("spark.wap.id")
    spark.sql(f"INSERT INTO {name} VALUES (61)")
    spark.sql(f"CALL {live}.system.cherrypick_snapshot('{table}', {staged})")
    wrong = ids_of(lifecycle, table)[-1]
    spark.sql(f"INSERT INTO {name} VALUES (62)")
    spark.sql(f"CALL {live}.system.rollback_to_snapshot('{table}', {wrong})")
    spark.sql(f"INSERT INTO {name} VALUES (63)")
    count = len(ids_of(lifecycle, table))
    set_ages(lifecycle, table, [2 * DAY * (count - 1 - number) for number in range(count)])
    return table


CALLS: tuple[dict[str, Any], ...] = (
    {},
    {"older_than": 9 * DAY},
    {"older_than": timedelta(0), "retain_last": 3},
    {"retain_last": 5},
    {"snapshots": [2, 7]},
    {"older_than": 9 * DAY, "snapshots": [3]},
    {"older_than": -DAY},
)


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_snapshots_refs_log_and_statistics_are_those_that_icebergs_own_leaves(
    make_lifecycle: MakeLifecycle, version: int
) -> None:
    # The shipped window does not apply under this rule: Iceberg's own default of five days does.
    lifecycle = make_lifecycle(retention={"rule": "iceberg"})
    lived = _lived(lifecycle, version)
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    before, location = _metadata(lifecycle, lived), lifecycle.resources.live_catalog.entry(lived).metadata_location
    ids = [snapshot["snapshot-id"] for snapshot in before["snapshots"]]
    assert before["statistics"] and before["partition-statistics"]
    jvm: Any = spark._jvm
    catalog = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(spark._jsparkSession, live)
    named = jvm.org.apache.iceberg.catalog.TableIdentifier.parse
    removed: set[tuple[int, ...]] = set()

    for number, call in enumerate(CALLS):
        mine, other = f"db.mine_{number}", f"db.other_{number}"
        catalog.registerTable(named(mine), location)
        now = lifecycle.operations.clock.now()
        older_than = None if "older_than" not in call else now - call["older_than"]
        chosen = [ids[position] for position in call.get("snapshots", ())]
        peer = catalog.registerTable(named(other), location).expireSnapshots().cleanExpiredFiles(False)
        if older_than is not None:
            peer = peer.expireOlderThan(int(older_than.timestamp() * 1000))
        if "retain_last" in call:
            peer = peer.retainLast(call["retain_last"])
        for snapshot in chosen:
            peer = peer.expireSnapshotId(snapshot)
        peer.commit()

        plan = lifecycle.plan_expiration(
            mine, older_than=older_than, retain_last=call.get("retain_last"), snapshot_ids=chosen or None
        )
        done = lifecycle.commit_expiration(plan)
        ours, theirs = _metadata(lifecycle, mine), _metadata(lifecycle, other)
        for own in (ours, theirs):
            for key in ("last-updated-ms", "metadata-log"):
                del own[key]
        assert ours == theirs, call
        left = {snapshot["snapshot-id"] for snapshot in theirs["snapshots"]}
        assert set(plan.expired_snapshots) == set(ids) - left, call
        assert done.snapshots_removed == len(ids) - len(left) > 0, call
        gone = set(before["refs"]) - set(theirs["refs"])
        assert set(plan.expired_refs) == gone >= {"by_property", "aged_out", "dropped"}, call
        # Parents that are gone are still named, as Iceberg's core leaves them.
        assert any(s.get("parent-snapshot-id") not in (None, *left) for s in ours["snapshots"]), call
        removed.add(plan.expired_snapshots)
    assert len(removed) >= 5, "the calls hardly differ in what they remove"


def test_an_explicit_id_of_a_kept_ref_is_refused_as_iceberg_does_and_of_an_aged_one_goes(
    make_lifecycle: MakeLifecycle,
) -> None:
    lifecycle = make_lifecycle(retention={"rule": "iceberg"})
    table = make_table(lifecycle, "t")
    ids = ids_of(lifecycle, table)
    set_ages(lifecycle, table, [4 * DAY, 3 * DAY, 2 * DAY, DAY])
    name = f"{lifecycle.config.catalogs.live.name}.{table}"
    for ref in ("TAG audit", "BRANCH work"):
        lifecycle.spark.sql(f"ALTER TABLE {name} CREATE {ref} AS OF VERSION {ids[1]}")
    lifecycle.spark.sql(f"ALTER TABLE {name} CREATE TAG old AS OF VERSION {ids[0]} RETAIN 1 DAYS")
    before = lifecycle.resources.live_catalog.entry(table)
    with pytest.raises(
        ReferencedSnapshot, match=rf"Cannot expire {ids[1]}\. Still referenced by refs: \[audit, work\]"
    ):
        lifecycle.plan_expiration(table, snapshot_ids=[ids[0], ids[1]])
    assert lifecycle.resources.live_catalog.entry(table) == before and lifecycle.plans(table) == []
    plan = lifecycle.plan_expiration(table, snapshot_ids=[ids[0], ids[2]])
    assert (plan.expired_snapshots, plan.expired_refs) == ((ids[0], ids[2]), ("old",))
    assert lifecycle.commit_expiration(plan).refs_removed == 1
    assert ids_of(lifecycle, table) == [ids[1], ids[3]]


@pytest.mark.parametrize("rule", ["as-of", "iceberg", "paimon"])
def test_an_empty_table_has_an_empty_plan_whose_steps_do_nothing(make_lifecycle: MakeLifecycle, rule: str) -> None:
    lifecycle = make_lifecycle(retention={"rule": rule}, cold_tier={"enabled": True})
    table = make_table(lifecycle, "t", 0)
    before = lifecycle.resources.live_catalog.entry(table)
    plan = lifecycle.plan_expiration(table)
    assert (plan.expired_snapshots, plan.expired_refs, dict(plan.kept), plan.summary.files) == ((), (), {}, 0)
    assert lifecycle.hand_off(plan).copied_files == 0
    assert lifecycle.commit_expiration(plan).attempts == 0
    assert lifecycle.delete_files(plan).deleted == 0
    assert lifecycle.tags(table).refs == () and len(lifecycle.tags(table).to_pandas()) == 0
    assert lifecycle.resources.live_catalog.entry(table) == before


def test_a_table_that_forbids_garbage_collection_meanwhile_stops_the_commit(make_lifecycle: MakeLifecycle) -> None:
    lifecycle = make_lifecycle()
    table = make_table(lifecycle, "t")
    set_ages(lifecycle, table, [400 * DAY, 300 * DAY, 10 * DAY, 0 * DAY])
    plan = lifecycle.plan_expiration(table)
    assert len(plan.expired_snapshots) == 2
    name = f"{lifecycle.config.catalogs.live.name}.{table}"
    lifecycle.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('gc.enabled'='false')")
    with pytest.raises(GarbageCollectionDisabled):
        lifecycle.commit_expiration(plan)
    assert len(ids_of(lifecycle, table)) == 4
    assert lifecycle.operations.plans.get(plan.plan_id).status is PlanStatus.OPEN


def test_a_cutoff_is_inclusive_to_the_millisecond(make_lifecycle: MakeLifecycle) -> None:
    """Every millisecond: a float of seconds would lose some."""
    from datetime import UTC, datetime

    from artemis_lifecycle.storage.instants import milliseconds

    begin = datetime(2026, 3, 15, 12, 30, 45, tzinfo=UTC)
    first = milliseconds(begin)
    assert [milliseconds(begin + timedelta(milliseconds=ms)) - first for ms in range(5000)] == list(range(5000))
    lifecycle = make_lifecycle(retention={"rule": "iceberg"})
    table = make_table(lifecycle, "t", 3)
    instant = set_ages(lifecycle, table, [3 * DAY, 2 * DAY, 0 * DAY])
    ids = ids_of(lifecycle, table)
    assert lifecycle.plan_expiration(table, older_than=instant - 2 * DAY).expired_snapshots == (ids[0],)
    later = instant - 2 * DAY + timedelta(milliseconds=1)
    assert lifecycle.plan_expiration(table, older_than=later).expired_snapshots == (ids[0], ids[1])
