"""The whole walk through the public face: nothing alive is destroyed, expired is not lost, and any step may die."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import NoSuchSnapshot
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle.walk.plan_checks import cold_copy
from artemis_lifecycle_tests.deaths import killed_at, lapse
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table, set_ages

LATER = datetime.now(UTC) + timedelta(days=60)
POLICY = {"retention": {"window": "1d"}, "deletion": {"grace": "0s"}}
Rows = list[tuple[object, ...]]


def _rows(spark: SparkSession, table: str, snapshot_id: int) -> Rows:
    return sorted(tuple(row) for row in spark.read.option("versionAsOf", snapshot_id).table(table).collect())


def _lived(lifecycle: Lifecycle, name: str) -> Mapping[int, Rows]:
    """A table of format 2: appends, a merge-on-read delete, a new column, a compaction, a tag; its rows by snapshot."""
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    table = f"{live}.db.{name}"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {live}.db")
    spark.sql(
        f"CREATE TABLE {table} (id int, part string) USING iceberg PARTITIONED BY (part) "
        "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
    )
    spark.sql(f"INSERT INTO {table} SELECT id, 'p' || id % 2 FROM range(0, 8)")
    spark.sql(f"INSERT INTO {table} SELECT id, 'p' || id % 2 FROM range(8, 16)")
    spark.sql(f"DELETE FROM {table} WHERE id IN (3, 12)")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN note string")
    spark.sql(f"INSERT INTO {table} VALUES (20, 'p0', 'new')")
    second = lifecycle.snapshot_history(f"db.{name}").snapshots[1].snapshot_id
    spark.sql(f"ALTER TABLE {table} CREATE TAG audit AS OF VERSION {second}")
    spark.sql(f"CALL {live}.system.rewrite_data_files(table => 'db.{name}', options => map('rewrite-all', 'true'))")
    ids = [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history(f"db.{name}").snapshots]
    return {snapshot_id: _rows(spark, table, snapshot_id) for snapshot_id in ids}


def _read(lifecycle: Lifecycle, name: str, snapshot_id: int) -> Rows:
    return sorted(tuple(row) for row in lifecycle.read(f"db.{name}", snapshot_id=snapshot_id).collect())


@pytest.fixture
def walking(make_config: Callable[..., LifecycleConfig], spark: SparkSession) -> Lifecycle:
    return Lifecycle.open(make_config(defaults=POLICY, tables={"db.*": {}}), spark=spark)


def test_the_walk_keeps_what_is_kept_and_cold_answers_for_the_rest(walking: Lifecycle, spark: SparkSession) -> None:
    before = _lived(walking, "t")
    table = f"{walking.config.catalogs.live.name}.db.t"
    history = walking.snapshot_history("db.t")
    tagged = history.refs["audit"].snapshot_id
    edge = datetime.fromtimestamp(history.snapshots[0].timestamp_ms / 1000, tz=UTC)

    plan = walking.plan_expiration("db.t", now=LATER)
    assert set(plan.kept) == {tagged, history.current_snapshot_id}
    doomed = {row["path"] for row in plan.files().collect()}
    foreseen = walking.delete_files(plan, dry_run=True)
    assert foreseen.would_delete == len(doomed) and foreseen.deleted == 0
    handoff = walking.hand_off(plan)
    assert set(handoff.archived) == set(plan.expired_snapshots) and handoff.lost == ()
    assert walking.commit_expiration(plan).attempts == 1
    report = walking.delete_files(plan)
    assert (report.deleted, report.kept, report.failed) == (len(doomed), 0, 0)
    assert report.bytes == plan.summary.size_in_bytes

    assert not any(Path(path.removeprefix("file:")).exists() for path in doomed)
    for snapshot_id in plan.kept:
        assert _rows(spark, table, snapshot_id) == before[snapshot_id]
    for snapshot_id in plan.expired_snapshots:
        assert walking.route("db.t", snapshot_id=snapshot_id).tier == "cold"
        assert _read(walking, "t", snapshot_id) == before[snapshot_id]
    assert walking.route("db.t", as_of=edge).tier == "cold"
    assert walking.route("db.t", tag="audit") == walking.route("db.t", snapshot_id=tagged)
    with pytest.raises(NoSuchSnapshot):
        walking.read("db.t", snapshot_id=42)

    gone = next(iter(doomed))
    assert walking.explain("db.t", gone).verdict == "deleted"
    kept = walking.reachable_set("db.t").data_file_paths.first()
    assert kept is not None
    explained = walking.explain("db.t", kept["path"])
    assert explained.verdict == "kept" and explained.holders
    scan = walking.scan_orphans("db.t")
    assert scan.summary.orphan_files == 0
    assert walking.delete_files(plan).deleted == len(doomed)  # done already: the same report, and no more is deleted


def test_a_file_that_comes_alive_after_the_commit_is_kept(walking: Lifecycle, spark: SparkSession) -> None:
    """A commit that takes up an expired data file again: the final check sees it."""
    _lived(walking, "t")
    live = walking.config.catalogs.live.name
    plan = walking.plan_expiration("db.t", now=LATER)
    walking.hand_off(plan)
    walking.commit_expiration(plan)
    file = plan.files().filter("kind = 'data'").first()
    assert file is not None
    jvm = spark._jvm
    assert jvm is not None
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, f"{live}.db.t")
    data_file = (
        jvm.org.apache.iceberg.DataFiles.builder(loaded.spec())
        .withPath(file["path"])
        .withFormat("parquet")
        .withFileSizeInBytes(file["size_in_bytes"])
        .withRecordCount(4)
        .withPartitionPath("part=p0" if "part=p0" in file["path"] else "part=p1")
        .build()
    )
    loaded.newAppend().appendFile(data_file).commit()
    report = walking.delete_files(plan)
    assert report.kept == 1 and report.deleted == plan.summary.files - 1
    outcomes = {row["path"]: row["outcome"] for row in report.files().collect()}
    assert outcomes[file["path"]] == "kept"
    assert Path(file["path"].removeprefix("file:")).exists()
    assert spark.table(f"{live}.db.t").count() > 0


def test_a_policy_that_archives_one_snapshot_a_day(
    make_config: Callable[..., LifecycleConfig], spark: SparkSession
) -> None:
    """Over two nights, whose edge lies inside a day; what is not archived is gone, and says so."""
    policy = {**POLICY, "cold_tier": {"archive": "daily"}}
    lifecycle = Lifecycle.open(make_config(defaults=policy, tables={"db.*": {}}), spark=spark)
    table, now = make_table(lifecycle, "t", 6), datetime.now(UTC)
    times = [datetime(2024, 3, day, hour, tzinfo=UTC) for day, hour in ((1, 5), (1, 9), (2, 1), (2, 7), (2, 8), (9, 1))]
    set_ages(lifecycle, table, [now - at for at in times], now)
    ids = ids_of(lifecycle, table)

    first = lifecycle.plan_expiration(table, older_than=datetime(2024, 3, 2, 2, tzinfo=UTC))
    assert first.expired_snapshots[:2] == tuple(ids[:2])
    done = lifecycle.hand_off(first)
    assert done.archived == (ids[1],)
    assert cold_copy(lifecycle.resources, first).problems == ()
    lifecycle.commit_expiration(first)
    lifecycle.delete_files(first)
    second = lifecycle.plan_expiration(table, now=now)
    assert second.expired_snapshots == tuple(ids[len(first.expired_snapshots) : -1])
    done = lifecycle.hand_off(second)
    assert (done.archived, done.lost, done.overtaken) == ((ids[4],), (), ())
    assert lifecycle.hand_off(second).thinned == done.thinned == tuple(sorted(set(second.expired_snapshots) - {ids[4]}))
    assert cold_copy(lifecycle.resources, second).problems == ()
    lifecycle.commit_expiration(second)
    assert lifecycle.delete_files(second).failed == 0
    for snapshot_id, at in zip(ids, times, strict=True):
        if snapshot_id in (ids[1], ids[4], ids[5]):
            rows = sorted(row["id"] for row in lifecycle.read(table, as_of=at).collect())
            assert rows == list(range(ids.index(snapshot_id) + 1))
        else:
            with pytest.raises(NoSuchSnapshot, match=f"snapshot {snapshot_id} was current then"):
                lifecycle.read(table, as_of=at)

    # A night of which the policy wants nothing still goes its way.
    spark.sql(f"INSERT INTO {lifecycle.config.catalogs.live.name}.{table} VALUES (6)")
    set_ages(lifecycle, table, [now - datetime(2024, 3, 9, hour, tzinfo=UTC) for hour in (1, 2)], now)
    third = lifecycle.plan_expiration(table, now=now)
    assert lifecycle.hand_off(third).archived == ()
    assert cold_copy(lifecycle.resources, third).problems == ()
    lifecycle.commit_expiration(third)
    assert lifecycle.delete_files(third).deleted > 0


def test_an_unrecorded_commit_is_found_by_the_next_walk(walking: Lifecycle) -> None:
    """Its worker died right after the swap; nobody says which plan it was."""
    before = _lived(walking, "t")

    with killed_at("commit:swapped"):
        walking.expire("db.t", now=LATER)
    lapse(walking, "leases")
    [lost] = walking.plans("db.t")
    assert lost.status is PlanStatus.HANDED_OFF
    walking.expire("db.t", now=LATER)
    assert [record.plan_id for record in walking.due_plans("db.t")] == [lost.plan_id]
    report = walking.delete_files(lost.plan_id)
    assert (report.deleted, report.failed) == (lost.files, 0)
    assert walking.scan_orphans("db.t").summary.orphan_files == 0
    for snapshot_id, rows in before.items():
        assert _read(walking, "t", snapshot_id) == rows


def test_closing_leaves_a_session_alone_that_it_did_not_start(config: LifecycleConfig, spark: SparkSession) -> None:
    with Lifecycle.open(config) as lifecycle:
        assert lifecycle.spark is spark
    assert spark.range(3).count() == 3
