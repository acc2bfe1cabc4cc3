"""The fleet at a glance: what it says of each table is what is so, and it reads no metadata and starts no Spark."""

from __future__ import annotations

import queue
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.cli.serving import serve
from artemis_lifecycle.errors import ApprovalNeeded
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle.lifecycle.fleet import FleetTable
from artemis_lifecycle.operations.steps import steps
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.expiration.aged import make_table


def _of(lifecycle: Lifecycle, table: str) -> FleetTable:
    (found,) = (each for each in lifecycle.fleet().tables if each.table == table)
    return found


def test_each_table_shows_what_it_waits_for_until_that_is_over(make_config: MakeConfig, spark: SparkSession) -> None:
    config = make_config(
        defaults={"cold_tier": {"enabled": False}, "deletion": {"grace": "0s", "max_files": 1}},
        tables={"db.*": {}},
    )
    with Lifecycle.open(config, spark=spark) as lifecycle:
        make_table(lifecycle, "t"), make_table(lifecycle, "idle")
        assert lifecycle.fleet().windows == ()
        started = lifecycle.operations.clock.now() - timedelta(hours=30)
        lifecycle.operations.run_times.note("run", "db.t", "plan", started, 1)
        (window,) = lifecycle.fleet().windows
        assert set(window.late) == {"db.t", "db.idle"} and lifecycle.fleet().summary["late"] == 2
        assert "will not suffice" in lifecycle.fleet().html
        assert _of(lifecycle, "db.t").overdue and _of(lifecycle, "db.t").planned_at is None
        plan = lifecycle.plan_expiration("db.t", older_than=datetime.now(UTC), retain_last=1)
        found = _of(lifecycle, "db.t")
        assert not found.overdue and found.plan_status == "open" and not found.waits_for
        assert found.freeable_bytes == plan.summary.size_in_bytes > 0
        for dry_run in (True, False):
            with pytest.raises(ApprovalNeeded):
                lifecycle.commit_expiration(plan, dry_run=dry_run)
        (wait,) = lifecycle.operations.waits.open()
        assert wait.job_id == plan.plan_id and "max_files" in wait.why
        assert plan.plan_id in _of(lifecycle, "db.t").waits_for[0]
        lifecycle.operations.verdicts.add(plan.plan_id, "plan_keeps_every_ref", "a tag", passed=False)
        assert _of(lifecycle, "db.t").red_checks == ("plan_keeps_every_ref",)
        lifecycle.operations.verdicts.add(plan.plan_id, "plan_keeps_every_ref", "fine", passed=True)
        page = lifecycle.fleet().html
        assert plan.plan_id in page and page.index(">db.t<") < page.index(">db.idle<")
        lifecycle.approve(plan.plan_id, who="ada", why="as agreed")
        assert not _of(lifecycle, "db.t").waits_for
        hold = lifecycle.hold("db.t", owner="legal", reason="case 7")
        lifecycle.pause("db.idle", who="ada", why="an incident")
        assert _of(lifecycle, "db.t").holds == 1 and _of(lifecycle, "db.idle").paused
        assert all("db.idle" not in window.late for window in lifecycle.fleet().windows)
        lifecycle.release(hold.hold_id)
        lifecycle.commit_expiration(plan)
        report = lifecycle.delete_files(plan)
        done = _of(lifecycle, "db.t")
        assert (done.freed_bytes, done.freeable_bytes, done.plan_status) == (report.bytes, 0, None)
        assert done.committed_at is not None and done.deleted_at is not None
        assert lifecycle.fleet().summary["paused"] == 1
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(steps.update().values(finished_at=datetime(2026, 1, 1, tzinfo=UTC)))
        assert _of(lifecycle, "db.t").overdue


def test_it_reads_no_metadata_and_starts_no_session(
    make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tables={"db.*": {}})
    with Lifecycle.open(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "gone")
        location = lifecycle.snapshot_history(table).metadata_location
    Path(location.removeprefix("file:")).unlink()
    monkeypatch.setattr("artemis_lifecycle.lifecycle.resources.live_session", lambda: pytest.fail("asked for Spark"))
    with Lifecycle.open(config) as lifecycle:
        assert [each.table for each in lifecycle.fleet().tables] == [table]
        assert lifecycle.resources.started_spark() is None


def test_names_and_reasons_that_others_wrote_are_text_on_the_page(make_config: MakeConfig, spark: SparkSession) -> None:
    config = make_config(tables={"*": {}})
    with Lifecycle.open(config, spark=spark) as lifecycle:
        live = config.catalogs.live.name
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {live}.db")
        spark.sql(f"CREATE TABLE {live}.db.`<script>alert(1)</script>` (id int) USING iceberg")
        page = lifecycle.fleet().html
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page


def test_metrics_are_served_by_table(make_config: MakeConfig, spark: SparkSession) -> None:
    config = make_config(
        defaults={"cold_tier": {"enabled": False}, "deletion": {"grace": "0s"}}, tables={"db.*": {}, "odd.*": {}}
    )
    with Lifecycle.open(config, spark=spark) as lifecycle:
        make_table(lifecycle, "metered")
        spark.sql(f"CREATE NAMESPACE {config.catalogs.live.name}.odd")
        spark.sql(f'CREATE TABLE {config.catalogs.live.name}.odd.`a"b` (id int) USING iceberg')
        report = lifecycle.expire("db.metered", older_than=datetime.now(UTC), retain_last=1)
        port: queue.Queue[int] = queue.Queue()
        serving = threading.Thread(
            target=serve, args=("127.0.0.1", 0, lifecycle.metrics), kwargs={"ready": port.put}, daemon=True
        )
        serving.start()
        address = f"http://127.0.0.1:{port.get(timeout=30)}"
        with urllib.request.urlopen(f"{address}/metrics") as answer:
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{address}/other")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['artemis_files_deleted_total{table="db.metered"}']) == report.deleted > 0
    assert float(values['artemis_bytes_deleted_total{table="db.metered"}']) == pytest.approx(report.bytes, rel=1e-5)
    assert float(values['artemis_snapshots_expired_total{table="db.metered"}']) == 3
    assert values['artemis_overdue{table="db.metered"}'] == "0"
    assert float(values['artemis_expiry_to_deletion_seconds{table="db.metered"}']) > 0
    assert sum(r"odd.a\"b" in name for name in values) > 5
