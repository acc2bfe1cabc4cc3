"""The fleet at a glance: what it says of each table is what is so, and it reads no metadata and starts no Spark."""

from __future__ import annotations

import queue
import re
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.cli.output import serve
from artemis_lifecycle.errors import ApprovalNeeded
from artemis_lifecycle.fleet.fleet import FleetTable
from artemis_lifecycle.operations.fleet import HeldBytes
from artemis_lifecycle.operations.known_tables import known_tables
from artemis_lifecycle.operations.steps import steps
from artemis_lifecycle_tests import core_tables
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


def _ran(lifecycle: Lifecycle, table: str, step: str, hours_ago: float, **counts: int) -> None:
    """A record of that step, as if it had ended then."""
    operations = lifecycle.operations
    ended = operations.clock.now() - timedelta(hours=hours_ago)
    step_id = operations.steps.start(f"uuid of {table}", table, step, ended.date(), "ada")
    operations.steps.finish(step_id, "done", counts)
    with operations.engine.begin() as connection:
        connection.execute(steps.update().where(steps.c.step_id == step_id).values(finished_at=ended))


def test_the_page_tells_costs_ages_and_days(make_config: MakeConfig, spark: SparkSession) -> None:
    prices = {"currency": "EUR", "classes": {"STANDARD": {"gb_month": 2}, "GLACIER_IR": {"gb_month": 1}}}
    config = make_config(prices=prices, tables={"db.*": {}, "db.late": {"checks": {"overdue_after": "10d"}}})
    with Lifecycle.open(config, spark=spark) as lifecycle:
        make_table(lifecycle, "priced"), make_table(lifecycle, "late")
        make_table(lifecycle, "archived")
        costs = lifecycle.costs("db.priced")
        operations, now = lifecycle.operations, lifecycle.operations.clock.now()
        operations.held_bytes.note(HeldBytes("an older one", "db.archived", now, 2**30, 2**31, 2**20))
        for hours in (1, 80, 120):
            _ran(lifecycle, "db.late", "plan", 24 * 3 + hours)
        _ran(lifecycle, "db.priced", "plan", 5)
        _ran(lifecycle, "db.priced", "handoff", 50)
        _ran(lifecycle, "db.priced", "history_compaction", 100)
        lifecycle.observe_catalog()
        with operations.engine.begin() as connection:
            connection.execute(known_tables.update().values(first_seen=now - timedelta(days=20)))
        fleet = lifecycle.fleet()
        found = {each.table: each for each in fleet.tables}
        page = fleet.html
    priced, late, archived = (found[f"db.{name}"] for name in ("priced", "late", "archived"))
    assert priced.stored_bytes == costs.tiers[0].size_in_bytes > 0
    assert priced.cost_per_month == pytest.approx(2 * costs.tiers[0].size_in_bytes / 2**30) == costs.per_month
    # The archive's class has no price.
    assert (archived.stored_bytes, archived.cost_per_month) == (3 * 2**30 + 2**20, None)
    assert (late.stored_bytes, late.cost_per_month) == (None, None)
    assert fleet.cost_per_month == priced.cost_per_month and "EUR a month" in fleet.cost
    assert re.findall(r": (\d+)", fleet.cost) == ["1", "1"] and escape(fleet.cost[1:]) in page
    assert (late.overdue, archived.overdue, priced.overdue) == (False, True, False)
    assert priced.handed_off_at is not None and fleet.at - priced.handed_off_at >= timedelta(hours=49)
    assert late.handed_off_at is None and priced.scrubbed_at is None
    # Known for 20 days: `archived` is overdue since, `priced` until today, and `late` before its first plan.
    by_day = [each.overdue for each in fleet.history]
    assert len(by_day) == 30 and by_day[:8] == [0] * 8 and by_day[-1] == fleet.summary["overdue"] == 1
    assert by_day[-11] == 3 and by_day[-3] == 2
    parsed = _Page()
    parsed.feed(page)
    assert parsed.figures == 4 and not parsed.addresses
    assert parsed.cell("db.priced", "plan", 1) == "5 h"
    assert parsed.cell("db.priced", "history compaction", 1) == "4 d"
    assert parsed.cell("db.late", "cost a month") == parsed.cell("db.archived", "cost a month") == "unknown"


class _Page(HTMLParser):
    """The page's tables by their headings, the number of its plots, and every address that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.figures, self.addresses, self.tables = 0, list[str](), list[list[list[str]]]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.figures += tag == "svg"
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "xlink:href")]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_data(self, data: str) -> None:
        if self.tables and self.tables[-1] and self.tables[-1][-1]:
            self.tables[-1][-1][-1] += data.strip()

    def cell(self, table: str, column: str, part: int = 0) -> str:
        """The cell of that table, in the page's first or second part."""
        heads, *rows = self.tables[part]
        (row,) = (each for each in rows if each[0] == table)
        return row[heads.index(column)]


def test_a_table_is_overdue_only_if_its_plans_run_by_themselves(make_config: MakeConfig, spark: SparkSession) -> None:
    config = make_config(
        tables={"db.*": {}, "db.by_hand": {"quiet_window": {"steps": ["deletion", "orphans"]}}},
        defaults={"retention": {"rule": "as-of", "window": "365d"}},
    )
    with Lifecycle.open(config, spark=spark) as lifecycle:
        for name in ("by_hand", "idler"):
            make_table(lifecycle, name)
        assert not _of(lifecycle, "db.by_hand").overdue and _of(lifecycle, "db.idler").overdue
        assert lifecycle.skip_if_idle("db.idler")
        assert not _of(lifecycle, "db.idler").overdue and lifecycle.fleet().history[-1].overdue == 0


def test_no_counter_falls_when_old_records_are_forgotten(make_config: MakeConfig, spark: SparkSession) -> None:
    with Lifecycle.open(make_config(tables={"db.*": {}}), spark=spark) as lifecycle:
        make_table(lifecycle, "counted")
        for days, rewritten in ((500, 7), (450, 2**40), (1, 3)):
            counts = {"files_rewritten": rewritten, "bytes_rewritten": 10 * rewritten}
            _ran(lifecycle, "db.counted", "compaction", 24 * days, **counts)
        _ran(lifecycle, "db.counted", "orphan_scan", 1, skipped_in_flight=2, skipped_in_flight_bytes=2**41 + 1)
        before = _metrics(lifecycle, "db.counted")
        for _ in range(2):
            assert lifecycle.forget_records().counts["steps"] in (0, 2)
            assert _metrics(lifecycle, "db.counted") == before
        _ran(lifecycle, "db.counted", "compaction", 24 * 500, files_rewritten=1)
        assert lifecycle.forget_records().counts["steps"] == 1
        after = _metrics(lifecycle, "db.counted")
    assert before["files_compacted_total"] == "1099511627786" and before["bytes_compacted_total"] == "10995116277860"
    assert before["bytes_skipped_in_flight_total"] == "2199023255553"
    assert after["files_compacted_total"] == "1099511627787"


def _metrics(lifecycle: Lifecycle, table: str) -> dict[str, str]:
    """The counters of a table, as they are written."""
    label = f'{{table="{table}"}} '
    lines = [line.partition(label) for line in lifecycle.metrics().splitlines() if "_total{" in line and label in line]
    return {name.removeprefix("artemis_"): value for name, _, value in lines}


def test_it_reads_no_metadata_and_starts_no_session(
    make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tables={"db.*": {}})
    with Lifecycle.open(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "gone")
        location = lifecycle.snapshot_history(table).metadata_location
    Path(location.removeprefix("file:")).unlink()
    monkeypatch.setattr("artemis_lifecycle.session.resources.live_session", lambda: pytest.fail("asked for Spark"))
    with Lifecycle.open(config) as lifecycle:
        assert [each.table for each in lifecycle.fleet().tables] == [table]
        assert lifecycle.resources.started_spark() is None


def test_names_and_reasons_that_others_wrote_are_text_on_the_page(make_config: MakeConfig, spark: SparkSession) -> None:
    prices = {"currency": "<script>alert(2)", "classes": {"STANDARD": {"gb_month": 2}}}
    config = make_config(tables={"*": {}}, prices=prices)
    with Lifecycle.open(config, spark=spark) as lifecycle:
        live = config.catalogs.live.name
        # It is in a plot, too.
        now = lifecycle.operations.clock.now()
        held = HeldBytes("of a script", "db.<script>alert(1)</script>", now, 2**30, None, None)
        lifecycle.operations.held_bytes.note(held)
        # And in the forecast of the window.
        lifecycle.operations.run_times.note("run", "db.t", "plan", now - timedelta(hours=30), 1)
        core_tables.sql(spark, f"CREATE NAMESPACE IF NOT EXISTS {live}.db")
        core_tables.sql(spark, f"CREATE TABLE {live}.db.`<script>alert(1)</script>` (id int) USING iceberg")
        page = lifecycle.fleet().html
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page
    assert page.count("&lt;script&gt;alert(1)") >= 3 and "&lt;script&gt;alert(2)" in page and "2.00" in page


def test_metrics_are_served_by_table(make_config: MakeConfig, spark: SparkSession) -> None:
    config = make_config(
        defaults={"cold_tier": {"enabled": False}, "deletion": {"grace": "0s"}}, tables={"db.*": {}, "odd.*": {}}
    )
    with Lifecycle.open(config, spark=spark) as lifecycle:
        make_table(lifecycle, "metered")
        core_tables.sql(spark, f"CREATE NAMESPACE {config.catalogs.live.name}.odd")
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
