"""The audit answers of real tables, before and after recording, compaction, expiration and the move to cold."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import NoReturn

import pytest
from pyspark.sql import DataFrame, SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import BadInput, NoSuchSnapshot, UnreadableMetadata
from artemis_lifecycle.metadata import read_table_metadata
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig

HOSTILE = 'o\'hara <script>alert(1)</script> | "x" \u202e\x1b[31m'


@pytest.fixture
def config(make_config: MakeConfig) -> LifecycleConfig:
    return make_config(defaults={"deletion": {"grace": "0s"}})


class World:
    """Telemetry by day, and passes made from it, with writers that say who they are."""

    def __init__(self, lifecycle: Lifecycle, spark: SparkSession) -> None:
        self.lifecycle, self.spark, self.live = lifecycle, spark, lifecycle.config.catalogs.live.name
        core_tables.sql(spark, f"CREATE NAMESPACE {self.live}.ns")
        spark.sql(f"CREATE TABLE {self.live}.ns.raw (id int, day date) USING iceberg PARTITIONED BY (day)")
        spark.sql(f"CREATE TABLE {self.live}.ns.passes (id int) USING iceberg")
        spark.sql(f"CREATE TABLE {self.live}.ns.report (id int) USING iceberg")
        lifecycle.observe_catalog()

    def write(self, table: str, sql: str, keys: dict[str, str], *, overwrite: bool = False) -> int:
        writer = self.spark.sql(sql).coalesce(1).writeTo(f"{self.live}.ns.{table}")
        for key, value in keys.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        if overwrite:
            writer.overwritePartitions()
        else:
            writer.append()
        return self.newest(table)

    def newest(self, table: str) -> int:
        current = self.lifecycle.snapshot_history(f"ns.{table}").current_snapshot_id
        assert current is not None
        return current


def _rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return [
        tuple(value.astimezone(UTC) if isinstance(value, datetime) else value for value in row)
        for row in frame.collect()
    ]


def _documented(world: World) -> list[str]:
    """The queries of docs/audit.md, for this world's catalogs and `ns.raw`."""
    texts = re.findall("```sql\n(.*?)```", (Path(__file__).parents[2] / "docs/audit.md").read_text(), re.DOTALL)
    catalogs = {"live": world.live, "cold": world.lifecycle.config.catalogs.cold.name}
    named = [text.replace("flight.telemetry", "ns.raw") for text in texts]
    return [re.sub(r"\b(live|cold)(?=\.)", lambda match: catalogs[match[1]], text) for text in named]


def _by(writer: str, **more: str) -> dict[str, str]:
    return {"writer.id": writer, "writer.commit_hash": "a1b2c3d", "trigger.type": "schedule", **more}


def test_the_three_questions_have_the_same_answers_all_along_the_walk(
    lifecycle: Lifecycle, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(lifecycle, spark)
    began = datetime.now(UTC)
    first = world.write("raw", "SELECT 1 id, DATE '2024-03-14' day", _by("ingest-1"))
    second = world.write("raw", "SELECT 2 id, DATE '2024-03-15' day", _by("ingest-2"))
    third = world.write("raw", "SELECT 3 id, DATE '2024-03-15' day", _by("ingest-3"))
    (own_file,) = (
        row[0]
        for row in spark.sql(
            f"SELECT file_path FROM {world.live}.ns.raw.files WHERE partition.day = DATE '2024-03-14'"
        ).collect()
    )
    passes = world.write("passes", "SELECT 1 id", _by("passes", **{"input.snapshot_ids": f'{{"ns.raw": [{second}]}}'}))
    later = world.write(
        "report", "SELECT 1 id", _by("report", **{"input.snapshot_ids": f'{{"ns.passes": [{passes}]}}'})
    )
    other = world.write("report", "SELECT 2 id", _by("report", **{"input.snapshot_ids": f'{{"ns.raw": [{third}]}}'}))
    spark.sql(
        f"CALL {world.live}.system.rewrite_data_files(table => 'ns.raw', where => 'day = DATE \"2024-03-15\"', "
        "options => map('rewrite-all', 'true'))"
    )
    compaction = world.newest("raw")
    assert compaction not in (first, second, third)
    replay = world.write(
        "raw", "SELECT 9 id, DATE '2024-03-16' day", _by("replay", **{"trigger.operator": HOSTILE}), overwrite=True
    )
    (compacted,) = (
        row[0]
        for row in spark.sql(
            f"SELECT file_path FROM {world.live}.ns.raw.files WHERE partition.day = DATE '2024-03-15'"
        ).collect()
    )

    uuids = {
        table: read_table_metadata(lifecycle.live_stores, lifecycle.get_current(table).metadata_location).table_uuid
        for table in ("ns.raw", "ns.report")
    }

    def check(*, unrecorded: bool, expired: bool) -> None:
        until = datetime.now(UTC) + timedelta(minutes=1)
        with monkeypatch.context() as patch:
            patch.setattr(Resources, "_session", _refuse)
            day = lifecycle.ingested("ns.raw", {"day": "2024-03-15"})
            assert (day.snapshot_id, day.writer_id, day.commit_hash) == (third, "ingest-3", "a1b2c3d")
            assert {each.snapshot_id for each in day.rows()} == {second, third, compaction}
            assert day.untraced == () and bool(day.unrecorded) is unrecorded
            assert lifecycle.ingested("ns.raw", "day=2024-03-14").snapshot_id == first
            by_file = lifecycle.ingested("ns.raw", path=own_file)
            assert (by_file.snapshot_id, by_file.writer_id) == (first, "ingest-1")
            rewritten = lifecycle.ingested("ns.raw", path=compacted)
            assert rewritten.snapshot_id == third
            assert {each.snapshot_id for each in rewritten.rows()} == {second, third, compaction}
            tiers = {each.tier for each in rewritten.rows() if each.snapshot_id != compaction}
            assert tiers == ({"cold"} if expired else {"live"})
            newest = lifecycle.ingested("ns.raw")
            assert (newest.snapshot_id, newest.writer_id) == (replay, "replay")
            assert len(newest.files()) == 1

            down = lifecycle.downstream("ns.raw", second)
            assert [(d, s[:2], t[:2]) for d, s, t in down.edges] == [
                (1, ("ns.raw", second), ("ns.passes", passes)),
                (2, ("ns.passes", passes), ("ns.report", later)),
            ]
            assert [each.snapshot_id for each in down.snapshots] == [passes, later]
            assert down.left_out == 1, "the reader of the third ingest, whose state contains the second"
            states = lifecycle.downstream("ns.raw", first, states=True)
            assert {each.snapshot_id for each in states.snapshots} >= {passes, later, other}
            assert lifecycle.downstream("ns.raw", first).edges == () and states.left_out == 0
            up = lifecycle.upstream("ns.report", later)
            assert [each[:2] for each in up.snapshots] == [("ns.passes", passes), ("ns.raw", second)]
            over = lifecycle.overwrites(began - timedelta(hours=1), until)
            (row,) = over.rows
            assert (row.table, row.snapshot_id, row.who, row.ticket) == ("ns.raw", replay, HOSTILE, None)
            assert row.missing == ("trigger.ticket",) and over.incomplete == over.rows
            assert over.rows == lifecycle.overwrites(began - timedelta(hours=1), until, "ns.raw").rows
            assert lifecycle.overwrites(until, until + timedelta(days=1)).rows == ()
        if unrecorded:
            return
        of_day, walk, removals = _documented(world)
        swapped = re.sub(
            r"e\.from(_\w+) = (w\.to_\w+|:\w+)", lambda m: f"e.to{m[1]} = {m[2].replace('to', 'from')}", walk
        )
        for answer, text in ((down, walk), (up, swapped)):
            edges = [(d, s.table_uuid, s.snapshot_id, t.table_uuid, t.snapshot_id) for d, s, t in answer.edges]
            at = {"table_uuid": uuids[answer.table], "snapshot_id": answer.snapshot_id}
            assert edges and _rows(spark.sql(text, at)) == edges
        in_sql = _rows(spark.sql(removals, {"since": over.since, "until": over.until}))
        fields = ("table", "snapshot_id", "committed_at", "operation", "who", "writer", "why", "ticket")
        assert in_sql == [(*(getattr(row, name) for name in fields), ", ".join(row.missing))]
        wanted = {
            (e.path, e.snapshot_id, e.operation, e.committed_at, e.writer_id, e.commit_hash, e.tier)
            for e in day.rows()
            if e.operation != "replace"
        }
        if expired:
            in_sql = _rows(spark.sql(of_day, {"day": "2024-03-15", "table_uuid": uuids["ns.raw"]}))
            assert wanted <= set(in_sql) and in_sql[0][1] == day.snapshot_id
            # A file that both tiers have is listed in each.
            assert {each[1:6] for each in in_sql} == {each[1:6] for each in wanted}

    check(unrecorded=True, expired=False)
    for table in ("raw", "passes", "report"):
        lifecycle.record_lineage(f"ns.{table}")
    check(unrecorded=False, expired=False)

    plan = lifecycle.plan_expiration("ns.raw", older_than=datetime.now(UTC), retain_last=1)
    assert {first, second, third, compaction} <= set(plan.expired_snapshots)
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    lifecycle.delete_files(plan)
    lifecycle.publish_results()
    check(unrecorded=False, expired=True)

    with monkeypatch.context() as patch:
        patch.setattr(Resources, "_session", _refuse)
        report = lifecycle.incident("ns.raw", second)
        of_replay = lifecycle.incident("ns.raw", replay)
        narrow = lifecycle.incident("ns.raw", second, states=False)
    assert "It is in cold" in report.html and f"{passes}" in report.html and "<svg" in report.html
    assert "ingest-2" in report.markdown and f"| 2 | ns.report | {later} |" in report.markdown
    assert f"| {replay} |" in report.markdown, "a later overwrite"
    assert f"| {other} |" in report.markdown, "a reader of a later state"
    assert f"| {other} |" not in narrow.markdown and "Left out: 1 readers" in narrow.markdown
    graph = report.markdown.split("```mermaid")[1].split("```")[0]
    assert graph.strip().startswith("flowchart LR") and all(str(each) in graph for each in (second, passes, later))
    files = report.markdown.split("## Data files")[1].split("##")[0]
    assert "1 files, in 1 partitions" in files and "| day=2024-03-15 |" in files and ".parquet | cold |" in files
    assert "by ingest-2, code a1b2c3d" in files
    for text in (of_replay.html, of_replay.markdown):
        assert "<script" not in text and "\u202e" not in text and "\x1b" not in text and "alert(1)" in text
    parser = _Tags()
    parser.feed(of_replay.html)
    assert not parser.strange

    with pytest.raises(BadInput, match="No partition field"):
        lifecycle.ingested("ns.raw", "nothing=1")
    with pytest.raises(NoSuchSnapshot, match="No snapshot"):
        lifecycle.ingested("ns.raw", "day=1999-01-01")
    with pytest.raises(NoSuchSnapshot, match="Neither"):
        lifecycle.incident("ns.raw", 1)


def test_a_table_that_cannot_be_read_is_named_and_stops_no_question(lifecycle: Lifecycle, spark: SparkSession) -> None:
    world = World(lifecycle, spark)
    since = datetime.now(UTC) - timedelta(hours=1)
    first = world.write("raw", "SELECT 1 id, DATE '2024-03-14' day", _by("ingest"))
    read = world.write("passes", "SELECT 1 id", _by("passes", **{"input.snapshot_ids": f'{{"ns.raw": [{first}]}}'}))
    world.write("report", "SELECT 1 id", _by("report", **{"input.snapshot_ids": f'{{"ns.raw": [{first}]}}'}))
    broken = lifecycle.snapshot_history("ns.report").metadata_location
    lifecycle.live_stores.write(broken, b"{", overwrite=True)
    down = lifecycle.downstream("ns.raw", first)
    assert ([each.snapshot_id for each in down.snapshots], down.unreadable) == ([read], ("ns.report",))
    assert lifecycle.upstream("ns.passes", read).unreadable == ("ns.report",)
    assert lifecycle.overwrites(since, since + timedelta(hours=2)).unreadable == ("ns.report",)
    report = lifecycle.incident("ns.raw", first)
    assert "## Not read" in report.markdown and "ns.report" in report.html and report.unreadable == ("ns.report",)
    with pytest.raises(UnreadableMetadata):
        lifecycle.downstream("ns.report", 1)


def test_whatever_removes_rows_is_an_overwrite(make_config: MakeConfig, spark: SparkSession) -> None:
    """TRUNCATE and a DELETE of complete files are snapshots of operation `delete`, also in Spark."""
    for_appends = {"ns.report": {"lineage": {"overwrite": {"operations": ["append"]}}}}
    with Lifecycle.open(make_config(tables=for_appends), spark=spark) as lifecycle:
        world = World(lifecycle, spark)
        began = datetime.now(UTC) - timedelta(hours=1)
        until = began + timedelta(hours=2)
        for table in ("passes", "report"):
            world.write(table, "SELECT 1 id", _by(table))
        appended = world.newest("report")
        spark.sql(f"DELETE FROM {world.live}.ns.passes WHERE id > 0")
        deleted = world.newest("passes")
        world.write("passes", "SELECT 2 id", _by("passes"))
        spark.sql(f"TRUNCATE TABLE {world.live}.ns.passes")
        truncated = world.newest("passes")
        expected = [
            ("ns.report", "append", appended),
            ("ns.passes", "delete", deleted),
            ("ns.passes", "delete", truncated),
        ]
        for table in (None, "ns.passes", "ns.report"):
            found = lifecycle.overwrites(began, until, table)
            wanted = [each for each in expected if table in (None, each[0])]
            assert [(each.table, each.operation, each.snapshot_id) for each in found.rows] == wanted
        assert set(found.rows[0].missing) == {"trigger.operator", "trigger.ticket"}
        for table in ("passes", "report"):
            lifecycle.record_lineage(f"ns.{table}")
        lifecycle.publish_results()
        report = lifecycle.incident("ns.passes", deleted)
        assert f"| {truncated} | delete |" in report.markdown


def _refuse(_: Resources) -> NoReturn:
    raise AssertionError("Spark was started")


class _Tags(HTMLParser):
    """Tags and attributes that a self-contained report does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.strange: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {
            "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "table", "tr", "td", "th", "div",
            "svg", "defs", "marker", "path", "g", "rect", "text",
        }  # fmt: skip
        loads = {"src", "href", "onload", "onclick"}
        self.strange += [tag] * (tag not in known) + [name for name, _ in attrs if name in loads]
