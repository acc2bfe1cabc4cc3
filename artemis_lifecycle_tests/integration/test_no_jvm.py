"""Commands that read, or find little to do, start no JVM: each runs here while starting Spark is an error."""

from __future__ import annotations

import io
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from artemis_lifecycle import cli
from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.cli import output
from artemis_lifecycle.operations.leases import mark
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.spark.session import driver_pid
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.expiration.aged import make_table, set_ages

EMPTY_DATABASE = True

TABLE = "db.t"
OLD = [timedelta(days=days) for days in range(40, 0, -1)]


def _no_spark(_: Resources) -> NoReturn:
    raise AssertionError("Spark was started")


class Terminal:
    """`artemis` on a terminal of 80 columns, without Spark."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
        self._patch = monkeypatch
        self._config = config

    def run(self, *arguments: str) -> str:
        """The command's output; with --json what it means is in `parsed`."""
        text = io.StringIO()
        with self._patch.context() as patch:
            patch.setattr(Resources, "_session", _no_spark)
            patch.setattr(output, "out", Console(file=text, width=80))
            patch.setattr(sys, "stdout", text)
            patch.setattr(sys, "argv", ["artemis", *arguments, "-c", str(self._config)])
            with pytest.raises(SystemExit) as ended:
                cli.main()
        assert not ended.value.code, text.getvalue()
        return text.getvalue()

    def parsed(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))


@pytest.fixture
def world(make_config: MakeConfig, spark: SparkSession, tmp_path: Path) -> tuple[Lifecycle, Path]:
    """A table that lost snapshots and files yesterday, has others to lose today, and has an orphan."""
    config = make_config(
        defaults={
            "retention": {"window": "7d"},
            "deletion": {"grace": "0s"},
            "orphans": {"min_age": "1d", "min_age_floor": "1h", "max_share": 1},
        }
    )
    with Lifecycle.open(config, spark=spark) as lifecycle:
        make_table(lifecycle, "t", commits=3)
        live = f"{config.catalogs.live.name}.{TABLE}"
        spark.sql(f"ALTER TABLE {live} ADD COLUMN name string")
        spark.sql(f"DELETE FROM {live} WHERE id = 0")
        set_ages(lifecycle, TABLE, OLD[:4])
        lifecycle.record_lineage(TABLE)
        assert lifecycle.expire(TABLE).deleted
        for number in (7, 8):
            spark.sql(f"INSERT INTO {live} VALUES ({number}, 'x')")
        spark.sql(f"DELETE FROM {live} WHERE id = 7")
        set_ages(lifecycle, TABLE, [*OLD[4:7], timedelta(days=1)])
        lifecycle.record_lineage(TABLE)
    file = tmp_path / "lifecycle.yaml"
    file.write_text(config.model_dump_json(by_alias=True))
    return lifecycle, file


def test_reading_and_dry_runs_start_no_jvm(
    world: tuple[Lifecycle, Path], monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    closed, file = world
    config, artemis = closed.config, Terminal(monkeypatch, file)
    with Lifecycle.open(config, spark=spark) as lifecycle:
        data = lifecycle.live_stores.list(f"{config.catalogs.live.warehouse}/db/t/data")
        kept = next(stored.path for stored in data)
        (gone,) = {
            row["path"]
            for row in spark.table(f"{config.catalogs.live.name}.lifecycle.deletions").collect()
            if row["kind"] == "data"
        }
        orphan = f"{kept.rpartition('/')[0]}/orphan.parquet"
        lifecycle.live_stores.write(orphan, b"left behind")
    ago = (datetime.now(UTC) - timedelta(days=3)).timestamp()
    os.utime(orphan.removeprefix("file://"), (ago, ago))

    reads = [
        ("history", TABLE), ("history", TABLE, "--cold"), ("plans", TABLE), ("tags", TABLE), ("holds", TABLE),
        ("schema-history", TABLE), ("health", TABLE), ("retention-curve", TABLE), ("costs", TABLE), ("fleet",),
        ("reachable", TABLE), ("explain", TABLE, kept), ("compact", TABLE, "--dry-run"), ("record-lineage", TABLE),
        ("ingested", TABLE), ("overwrites", "--since", "2020-01-01T00:00:00Z"), ("list-objects", TABLE),
        ("scan-orphans", TABLE),
    ]  # fmt: skip
    for command in reads:
        shown = artemis.run(*command)
        assert all(len(line) <= 80 or " " not in line.strip() for line in shown.splitlines()), shown

    assert len(artemis.parsed("schema-history", TABLE)["versions"]) == 2
    assert artemis.parsed("schema-history", TABLE)["versions"][0]["snapshots"] == 3, "expired ones are in the ledger"
    assert artemis.parsed("record-lineage", TABLE)["snapshots"] == 0
    assert artemis.parsed("explain", TABLE, kept)["verdict"] == "kept"
    assert artemis.parsed("explain", TABLE, gone)["verdict"] == "deleted"
    assert artemis.parsed("explain", TABLE, orphan)["verdict"] == "orphan"
    scan = artemis.parsed("scan-orphans", TABLE)["scan_id"]
    assert artemis.parsed("delete-orphans", scan, "--dry-run")["would_delete"] == 1

    plan = artemis.parsed("plan", TABLE)
    assert plan["summary"]["snapshots_expired"] > 0 and plan["summary"]["files"] > 0
    assert artemis.parsed("hand-off", plan["plan_id"], "--dry-run")["would_copy_files"] > 0
    assert artemis.parsed("commit", plan["plan_id"], "--dry-run")["snapshots_removed"] > 0
    assert artemis.parsed("delete", plan["plan_id"], "--dry-run")["would_delete"] == plan["summary"]["files"]
    with Lifecycle.open(config, spark=spark) as lifecycle:
        lifecycle.hand_off(plan["plan_id"])
        assert artemis.parsed("commit", plan["plan_id"], "--dry-run")["absent_copies"] == 0
        lifecycle.commit_expiration(plan["plan_id"])
    assert artemis.parsed("delete", plan["plan_id"], "--dry-run")["would_delete"] == plan["summary"]["files"]
    # The deletion itself needs no Spark either.
    assert artemis.parsed("delete", plan["plan_id"], "--yes")["deleted"] == plan["summary"]["files"]
    assert artemis.parsed("delete-orphans", scan, "--yes")["deleted"] == 1


def test_a_lease_names_the_driver_once_it_works(lifecycle: Lifecycle, spark: SparkSession) -> None:
    make_table(lifecycle, "t", commits=1)
    with Lifecycle.open(lifecycle.config) as other:
        steps = other._orphans.steps
        state = steps.table_state(TABLE)

        def marked() -> str | None:
            (lease,) = other.operations.leases.live(state.metadata.table_uuid)
            return lease.process

        with steps.run(state, "listing") as step:
            assert marked() == mark([os.getpid()])
            assert other.spark is spark
            assert marked() == mark([os.getpid(), int(driver_pid() or 0)])
            step.check()
            tags = set(spark.sparkContext.getJobTags())
            assert any(tag.startswith("artemis-") for tag in tags), "a pause would not stop its jobs"
    assert not tags & set(spark.sparkContext.getJobTags())
