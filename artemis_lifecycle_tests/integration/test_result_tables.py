"""The result tables `lifecycle.plan_files` and `lifecycle.deletions`: every row once, whatever dies,
and off the path of the steps."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import ConfigError
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.expiration.aged import make_table, set_ages

_EACH = 6
"""Publications of one expired table: its plan, its deletion, and two of lineage (the snapshots, the expiration), each
of which has rows and inputs."""


class _Crash(Exception):  # noqa: N818
    pass


@pytest.fixture
def config(make_config: MakeConfig) -> LifecycleConfig:
    return make_config(defaults={"cold_tier": {"enabled": False}, "deletion": {"grace": "0s"}})


def _expired(lifecycle: Lifecycle, table: str) -> str:
    """A table with a history, expired and deleted; the plan's id."""
    make_table(lifecycle, table.removeprefix("db."))
    plan = lifecycle.plan_expiration(table, older_than=datetime.now(UTC), retain_last=1)
    lifecycle.commit_expiration(plan)
    assert lifecycle.delete_files(plan).deleted > 0
    return plan.plan_id


def _rows(lifecycle: Lifecycle, name: str) -> Counter[tuple[str, str]]:
    key = "plan_id" if name == "plan_files" else "job_id"
    full = f"{lifecycle.config.catalogs.live.name}.lifecycle.{name}"
    return Counter((row[key], row["path"]) for row in lifecycle.spark.table(full).select(key, "path").collect())


def _commits(lifecycle: Lifecycle, name: str) -> int:
    return lifecycle.spark.table(f"{lifecycle.config.catalogs.live.name}.lifecycle.{name}.snapshots").count()


def _pending(lifecycle: Lifecycle) -> list[str]:
    found = lifecycle.operations.publications.pending(lifecycle.config.catalogs.live.name)
    return sorted(f"{each.result_table} {each.job_id}" for each in found)


def test_plans_and_deletions_are_published_at_the_end_in_one_commit_each(
    config: LifecycleConfig, spark: SparkSession
) -> None:
    with Lifecycle.open(config, spark=spark) as lifecycle:
        plans = [_expired(lifecycle, f"db.t{number}") for number in range(2)]
        planned = {(plan, row["path"]) for plan in plans for row in lifecycle.plan(plan).files().collect()}
        assert len(_pending(lifecycle)) == 2 * _EACH and not lifecycle.resources.live_catalog.exists(
            "lifecycle.plan_files"
        )
    with Lifecycle.open(config, spark=spark) as lifecycle:
        assert _pending(lifecycle) == [] and lifecycle.publish_results() == 0
        assert _rows(lifecycle, "plan_files") == _rows(lifecycle, "deletions") == Counter(planned)
        assert _commits(lifecycle, "plan_files") == _commits(lifecycle, "deletions") == 1
        # A compacted file has room for every job. By its times it is passed over, and nothing is deleted from it.
        assert lifecycle.compact_result_tables(dry_run=True).rewritten_files["lifecycle.plan_files"] == 0
        more = _expired(lifecycle, "db.t2")
        assert lifecycle.publish_results() == _EACH
        done = lifecycle.compact_result_tables()
        assert done.rewritten_files["lifecycle.deletions"] == 2
        before = _commits(lifecycle, "deletions")
        _expired(lifecycle, "db.t3")
        assert lifecycle.publish_results() == _EACH and _commits(lifecycle, "deletions") == before + 1
        assert set(_rows(lifecycle, "plan_files").values()) == set(_rows(lifecycle, "deletions").values()) == {1}
        assert more in {plan for plan, _ in _rows(lifecycle, "plan_files")}


def test_a_dry_run_says_what_the_maintenance_then_does(
    config: LifecycleConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tables with one file and with several, whose snapshots are old or new, the last one too."""
    with Lifecycle.open(config, spark=spark) as lifecycle:
        for number in range(4):
            _expired(lifecycle, f"db.t{number}")
            lifecycle.publish_results()
        # One file again, in one manifest, and its snapshots are old: all but the last one go.
        full = f"{config.catalogs.live.name}.lifecycle.plan_files"
        spark.sql(f"CALL {config.catalogs.live.name}.system.rewrite_data_files(table => 'lifecycle.plan_files')")
        rows = spark.table(full).coalesce(1).writeTo(full)
        rows.overwritePartitions()
        # Several files, and all snapshots are old: a commit comes after the last one, which goes too.
        months = {"plan_files": [45] * (_commits(lifecycle, "plan_files") - 1) + [40], "deletions": [40, 35, 34, 33]}
        months["lineage_ledger"] = [40, *([1] * (_commits(lifecycle, "lineage_ledger") - 1))]
        for name, days in months.items():
            ages = [timedelta(days=each, hours=-place) for place, each in enumerate(days)]
            set_ages(lifecycle, f"lifecycle.{name}", ages)
            spark.sql(f"REFRESH TABLE {config.catalogs.live.name}.lifecycle.{name}")
    with monkeypatch.context() as patch:
        patch.setattr("artemis_lifecycle.session.resources.live_session", lambda: pytest.fail("asked for Spark"))
        with Lifecycle.open(config) as lifecycle:
            foreseen = lifecycle.compact_result_tables(dry_run=True)
            assert lifecycle.resources.started_spark() is None
    with Lifecycle.open(config, spark=spark) as lifecycle:
        done = lifecycle.compact_result_tables()
        again = lifecycle.compact_result_tables(dry_run=True)
    assert (foreseen.rewritten_files, foreseen.expired_snapshots) == (done.rewritten_files, done.expired_snapshots)
    assert (done.rewritten_files["lifecycle.plan_files"], done.rewritten_files["lifecycle.deletions"]) == (0, 4)
    assert (
        done.expired_snapshots["lifecycle.deletions"] == 4 and done.expired_snapshots["lifecycle.lineage_ledger"] == 1
    )
    assert set(again.rewritten_files.values()) == {0} == set(again.expired_snapshots.values())


@pytest.mark.nightly
def test_dying_anywhere_in_a_publication_leaves_every_row_once(lifecycle: Lifecycle) -> None:
    jobs = [_expired(lifecycle, "db.t")]
    points: list[str] = []
    with crash_points.installed(points.append):
        assert lifecycle.publish_results() == _EACH
    assert {"results.part:before", "publications.published:after"} <= set(points)
    # The first and the last of each kind.
    last = {point: number for number, point in enumerate(points)}
    for number in sorted({*map(points.index, points), *last.values()}):
        point = points[number]
        jobs.append(_expired(lifecycle, f"db.d{number}"))
        countdown = itertools.count(-number)

        def crash(name: str, countdown: Iterator[int] = countdown) -> None:
            if next(countdown) == 0:
                raise _Crash(name)

        with pytest.raises(_Crash), crash_points.installed(crash):
            lifecycle.publish_results()
        lifecycle.publish_results()
        assert _pending(lifecycle) == [], point
        for name in ("plan_files", "deletions"):
            found = _rows(lifecycle, name)
            assert set(found.values()) == {1} and {job for job, _ in found} == set(jobs), (point, name)
        ledger = lifecycle.spark.table(f"{lifecycle.config.catalogs.live.name}.lifecycle.lineage_ledger")
        recorded = Counter((row.table_uuid, row.snapshot_id, row.plan_id) for row in ledger.collect())
        assert set(recorded.values()) == {1} and {plan for *_, plan in recorded} == {*jobs, None}, point


def test_a_plan_whose_files_are_damaged_keeps_no_other_back(lifecycle: Lifecycle) -> None:
    bad, good = _expired(lifecycle, "db.bad"), _expired(lifecycle, "db.good")
    folder = Path(lifecycle.operations.plans.get(bad).files_location.removeprefix("file://"))
    for part in folder.glob("*.parquet"):
        part.write_bytes(b"damaged")
    lifecycle.resources.require_deployment()
    with pytest.raises(Exception, match=str(folder)):
        lifecycle.publish_results()
    with pytest.raises(Exception, match=str(folder)):
        lifecycle.publish_results()
    assert _pending(lifecycle)[-1:] == [f"plan_files {bad}"]
    assert {plan for plan, _ in _rows(lifecycle, "plan_files")} == {good}
    shutil.rmtree(folder)
    assert lifecycle.publish_results() > 0 and _pending(lifecycle) == []


def test_a_result_table_changed_by_hand(lifecycle: Lifecycle) -> None:
    """Other columns and partitions do no harm; a table that cannot be written is refused, and nothing is lost."""
    live = lifecycle.config.catalogs.live.name
    _expired(lifecycle, "db.a")
    lifecycle.publish_results()
    lifecycle.spark.sql(f"ALTER TABLE {live}.lifecycle.deletions ADD PARTITION FIELD table_uuid")
    lifecycle.spark.sql(f"ALTER TABLE {live}.lifecycle.deletions ADD COLUMN note string")
    _expired(lifecycle, "db.b")
    assert lifecycle.publish_results() == _EACH
    lifecycle.spark.sql(f"ALTER TABLE {live}.lifecycle.plan_files DROP COLUMN reason")
    plan = _expired(lifecycle, "db.c")
    with pytest.raises(ConfigError, match="has no column reason"):
        lifecycle.publish_results()
    assert f"plan_files {plan}" in _pending(lifecycle)
    lifecycle.spark.sql(f"ALTER TABLE {live}.lifecycle.plan_files RENAME TO lifecycle.old_plan_files")
    assert lifecycle.publish_results() > 0 and _pending(lifecycle) == []
    assert {found for found, _ in _rows(lifecycle, "plan_files")} == {plan}
