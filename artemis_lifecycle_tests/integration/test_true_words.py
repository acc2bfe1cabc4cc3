"""Small answers that were wrong or silent: each says what is so, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle import Lifecycle, cli
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import BadInput, ConfigError
from artemis_lifecycle.live_sets.sweep import compared
from artemis_lifecycle.operations.live_sets import LiveVersion
from artemis_lifecycle_tests import core_tables

MakeConfig = Callable[..., LifecycleConfig]


@pytest.fixture
def opened(make_config: MakeConfig, spark: SparkSession) -> Lifecycle:
    defaults = {"retention": {"window": "1d"}, "deletion": {"grace": "0s"}}
    config = make_config(defaults=defaults, tables={"db.*": {}})
    return Lifecycle.open(config, spark=spark)


def test_the_files_of_a_partition_that_was_expired_go_the_way_of_its_snapshots_and_are_counted(
    opened: Lifecycle,
) -> None:
    lifecycle, spark, live = opened, opened.spark, opened.config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
    core_tables.sql(spark, f"CREATE TABLE {live}.db.t (id int, day string) USING iceberg PARTITIONED BY (day)")
    core_tables.sql(spark, f"INSERT INTO {live}.db.t VALUES (1, 'old'), (2, 'new')")
    before = lifecycle.snapshot_history("db.t").snapshots[-1].snapshot_id
    old = {row[0] for row in lifecycle.reachable_set("db.t").data_file_paths.collect() if "day=old" in row[0]}
    spark.sql(f"DELETE FROM {live}.db.t WHERE day = 'old'")
    assert len(old) == 1
    # While an earlier snapshot has them, they are no orphans; a scan leaves them alone.
    assert lifecycle.explain("db.t", next(iter(old))).verdict == "kept"
    plan = lifecycle.plan_expiration("db.t", now=datetime.now(UTC) + timedelta(days=9))
    assert old == {row.path for row in plan.deletable_data_files.collect()}
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    assert lifecycle.delete_files(plan).deleted >= 1
    assert not any(Path(path.removeprefix("file:")).exists() for path in old)
    assert {row.id for row in lifecycle.read("db.t", snapshot_id=before).collect()} == {1, 2}

    lifecycle.compact_history("db.t")
    lifecycle.compact_manifests("db.t")
    values = dict(line.rsplit(" ", 1) for line in lifecycle.metrics().splitlines() if line[0] != "#")
    assert float(values['artemis_history_compactions_total{table="db.t"}']) == 1
    assert float(values['artemis_history_entries_total{table="db.t"}']) >= 0  # The last minute has not settled yet.
    assert float(values['artemis_manifest_compactions_total{table="db.t"}']) == 0
    assert float(values['artemis_manifests_rewritten_total{table="db.t"}']) == 0

    with pytest.raises(BadInput, match="by Postgres' clock"):
        lifecycle.deep_archive("db.t", now=datetime.now(UTC) + timedelta(days=3650), dry_run=True)
    with pytest.raises(Exception, match="is the cold tier") as refused:
        spark.sql(f"DROP TABLE {lifecycle.config.catalogs.cold.name}.db.t")
    assert refused.value is not None


def test_a_path_that_nothing_knows_is_said_in_words_and_is_no_success(
    opened: Lifecycle, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, live = opened.spark, opened.config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
    core_tables.sql(spark, f"CREATE TABLE {live}.db.t (id int) USING iceberg")
    file = tmp_path / "lifecycle.yaml"
    file.write_text(opened.config.model_dump_json(by_alias=True))
    for path in ("file:///elsewhere/x.parquet", f"{opened.config.catalogs.live.warehouse}/db/t/data/none.parquet"):
        monkeypatch.setattr("sys.argv", ["artemis", "explain", "db.t", path, "-c", str(file)])
        with pytest.raises(SystemExit, match="2"):
            cli.main()
        said = " ".join(capsys.readouterr().out.split())
        assert "unknown" in said and "check its spelling" in said and "not_owned" not in said


@pytest.mark.seconds
def test_workers_without_an_instance_of_dagster_say_what_to_set() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "DAGSTER_HOME"}
    for home in ({}, {"DAGSTER_HOME": "/nowhere/at/all"}):
        done = subprocess.run(
            [sys.executable, "-m", "artemis_lifecycle.cli", "workers"],
            env=environment | home,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 2 and done.stderr.startswith("BadInput: There is no Dagster instance")
        assert "DAGSTER_HOME" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_comparison_of_sets_names_each_metadata_file_once() -> None:
    gone = [LiveVersion("a", "c", "s3://b/m.json", number, "db.t", "table", "main") for number in range(109)]
    found = compared("a", "b", gone, [], {"c": "db.t"})
    assert found.only_before == 109 and found.versions_gone == ("s3://b/m.json",)


def test_patterns_that_tie_stop_the_steps_of_that_table_and_of_no_other(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    config = make_config(tables={"db.*": {}, "d*.t": {}})
    with Lifecycle.open(config, spark=spark) as lifecycle:
        live = config.catalogs.live.name
        core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
        for table in ("t", "u"):
            core_tables.sql(spark, f"CREATE TABLE {live}.db.{table} (id int) USING iceberg")
        for step in (lifecycle.plan_expiration, lifecycle.scan_orphans, lifecycle.compact_data_files):
            with pytest.raises(ConfigError, match=r"equally well: d\*\.t, db\.\*.*\[table db\.t\]"):
                step("db.t")  # type: ignore[operator]
        assert lifecycle.plan_expiration("db.u").plan_id and lifecycle.scan_orphans("db.u").summary.orphan_files == 0
        assert [each.table for each in lifecycle.fleet().tables] == ["db.u"]
        spark.sql(f"DROP TABLE {live}.db.t")
        assert [each.table for each in lifecycle.dropped_tables()] == ["db.t"] and lifecycle.clear_dropped() == []
        assert 'artemis_overdue{table="db.u"}' in lifecycle.metrics()
