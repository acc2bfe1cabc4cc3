"""What others wrote reaches no terminal, page or log as it is: a table, column, tag, branch, path, writer and person
whose names are terminal sequences, forged rows, hidden characters and HTML go through every command, every receipt and
every page of Dagster."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from dagster import (
    MarkdownMetadataValue,
    PathMetadataValue,
    TableMetadataValue,
    TextMetadataValue,
    UrlMetadataValue,
    instance_for_test,
)
from markdown_it import MarkdownIt
from pyspark.sql import SparkSession
from rich.console import Console

from artemis_lifecycle import cli, escaping
from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.identifier import Identifier
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.escaping import partition_key
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.defs.conftest import Project, written
from artemis_lifecycle_tests.deletion.world import local, make_old
from examples.mission.report import DemoReport, render

EVIL = (
    "\x1b[31mred\x1b]8;;http://evil\x07link\x1b[2K\rforged\nFORGED row\u2028FORGED too\x9b1A\x7f\u202eltr\u2066\u200b"
    "| FORGED | cell |\n| FORGED | row | <script>alert(1)</script> <img src=x onerror=alert(1)> `*_[a](http://evil)_*`"
    " :bomb: [bold]\u00ad\U000e0041\u3164"
)
"""What people may write where they are asked, and writers into a snapshot's summary."""
NAME = EVIL.replace("/", "").replace("\n", "\n ")
"""For what is also a folder's name."""
FORGED = "FORGED"
UNDECODABLE = b"undecodable \xff\xfe\x1b[2J.parquet"


def _harmful(shown: str) -> list[str]:
    """Not by the package's own list: controls, formats (directions, zero widths, tags), lines, halves of pairs."""
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return [c for c in shown if (c != "\n" and unicodedata.category(c) in kinds) or c == "\u3164"]


def _safe(shown: str, *, has_lines: bool = False) -> None:
    assert not _harmful(shown), ascii(shown)
    if has_lines:
        return
    rows = [line for line in shown.split("\n") if line.strip(" │|┃\\").startswith(FORGED)]
    assert not rows, rows


def _safe_markdown(shown: str) -> None:
    _safe(shown)
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(shown)
    assert not re.search(r"<(script|img|a) (?!src=.data:image/png)|<script", page), page
    assert not re.search(r"<t[dh]>\s*FORGED\s*</t[dh]>|<li>\s*FORGED", page), page


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *_strings(item))
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


POLICY: dict[str, Any] = {
    "retention": {"window": "1ms"},
    "deletion": {"grace": "0s", "mode": "quarantine"},
    "orphans": {"min_age": "1h", "min_age_floor": "1h", "max_share": 1},
}


@pytest.fixture
def lifecycle(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    config = make_config(defaults=POLICY, tables={TABLE: {"lineage": {"required": ["who"]}}, "*": {}})
    with Lifecycle.open(config, spark=spark) as opened:
        yield opened


TABLE = str(Identifier(("db",), NAME))
Run = Callable[..., Any]


@pytest.fixture
def made(lifecycle: Lifecycle) -> list[int]:
    """The table, with three snapshots, a hostile branch and column, and stray files; the snapshots' ids."""
    spark = lifecycle.spark
    full = Identifier(("db",), NAME).sql(lifecycle.config.catalogs.live.name)
    quoted = EVIL.replace("`", "``")
    core_tables.sql(spark, f"CREATE NAMESPACE {lifecycle.config.catalogs.live.name}.db")
    core_tables.sql(spark, f"CREATE TABLE {full} (id int, `{quoted}` string) USING iceberg")
    for number in (1, 2, 3):
        frame = spark.createDataFrame([(number, EVIL)], f"id int, `{quoted}` string").coalesce(1)
        frame.writeTo(full).option("snapshot-property.writer-id", EVIL).overwritePartitions()
    spark.sql(f"ALTER TABLE {full} CREATE BRANCH `{quoted}`")
    data = local(lifecycle.steps.table_state(TABLE).metadata.location) / "data"
    for name in (os.fsencode(NAME[:80]) + b".parquet", UNDECODABLE):
        path = os.fsencode(data) + b"/" + name
        Path(os.fsdecode(path)).write_bytes(b"left behind")
        make_old(Path(os.fsdecode(path)), timedelta(days=9))
    return [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history(TABLE).snapshots]


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], lifecycle: Lifecycle, tmp_path: Path
) -> Run:
    """`run(*arguments)`: the command as a person calls it and then, unless it changes something, with --json. Both are
    safe to look at; JSON reads back."""
    file = written(lifecycle.config, tmp_path)

    def once(arguments: list[str], codes: tuple[int, ...]) -> str:
        out = StringIO()
        # So wide that nothing is wrapped: what begins a line is what a line break put there.
        wide = Console(file=out, width=20_000, highlight=False, emoji=False)
        monkeypatch.setattr("artemis_lifecycle.cli.output.out", wide)
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["artemis", *arguments, "-c", str(file)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        output = capfd.readouterr()
        err = "\n".join(line for line in output.err.split("\n") if not re.match(r"[\d:]{8} (WARN|ERROR|INFO)", line))
        shown = out.getvalue() + output.out
        assert int(ended.value.code or 0) in codes, (arguments, shown, err)
        assert "Traceback" not in err, err
        # A statement is shown with the line breaks that it was given with.
        _safe(shown + err, has_lines=arguments[0] == "query")
        return shown

    def call(*arguments: object, code: int | tuple[int, ...] = 0) -> Any:
        used.add(str(arguments[0]))
        shown = once(list(map(str, arguments)), code if isinstance(code, tuple) else (code,))
        return json.loads(shown) if "--json" in arguments else shown

    used: set[str] = set()
    call.used = used  # type: ignore[attr-defined]
    return call


@pytest.mark.no_guardian(reason="its readers decode percent signs in paths")
def test_no_command_prints_what_others_wrote_as_it_is(lifecycle: Lifecycle, made: list[int], run: Run) -> None:
    first, second, third = made
    by = ("--who", EVIL, "--why", EVIL)
    given = ("--owner", EVIL, "--reason", EVIL)
    run("tables"), run("fleet"), run("metrics"), run("publish")
    assert TABLE in run("tables", "--json")
    run("history", TABLE)
    assert run("history", TABLE, "--json")["table"] == TABLE
    run("schema-history", TABLE), run("health", TABLE), run("commit-costs", TABLE), run("reachable", TABLE)
    run("plan-query", TABLE, "true", "--files"), run("plan-query", TABLE, EVIL, code=2)
    run("ingested", TABLE), run("downstream", TABLE, first), run("upstream", TABLE, first)
    run("overwrites", "--since", "2020-01-01T00:00:00Z"), run("incident", TABLE, first)
    run("record-lineage", TABLE), run("retention-curve", TABLE), run("compact", TABLE, "--dry-run")
    # People, refs, holds, writers, pauses.
    run("tag", TABLE, NAME, third, *given)
    assert EVIL in set(_strings(run("tags", TABLE, "--json")))
    run("untag", TABLE, NAME, *given)
    run("tags", TABLE, "--removed")
    hold = lifecycle.hold(TABLE, EVIL, EVIL, kind="lease", ttl="2h", snapshot_ids=[third]).hold_id
    consumer = lifecycle.hold(TABLE, EVIL, EVIL, kind="consumer", snapshot_ids=[third]).hold_id
    run("hold", TABLE, *given, "--snapshot-id", third)
    run("holds", TABLE)
    assert EVIL in set(_strings(run("holds", TABLE, "--json")))
    run("renew", hold, "--ttl", "3h"), run("advance", consumer, third)
    for each in lifecycle.holds(TABLE):
        run("release", each.hold_id)
    run("holds", TABLE, "--ended")
    with lifecycle.writing(TABLE, EVIL[:200], ttl="10m"):
        run("writers")
        assert EVIL[:200] in set(_strings(run("writers", "--json")))
    run("pause", TABLE, *by)
    run("pauses")
    run("scan-orphans", TABLE, code=6)
    run("resume", TABLE, "--who", EVIL)
    # Plans, and what becomes of their files.
    run("plan", TABLE)
    plan = run("plan", TABLE, "--json")["plan_id"]
    run("plan", TABLE, "--files", "--limit", "99")
    path = lifecycle.plan(plan).files().collect()[0]["path"]
    run("plan", TABLE, "--explain", path)
    run("plan-diff", plan, plan), run("plan-diff", plan, plan, "--files")
    run("approve", plan, *by, "--large", code=2)
    for what in ("large", "lost"):
        lifecycle.approve(plan, who=EVIL, why=EVIL, what=what)
    run("plans", TABLE)
    run("hand-off", plan), run("check", plan), run("commit", plan, "--yes")
    run("delete", plan, "--dry-run"), run("delete", plan, "--yes")
    run("receipt", plan)
    receipt = run("receipt", plan, "--json")
    found = lifecycle.receipt(plan)
    assert receipt["table"] == TABLE and any(EVIL in each for each in _strings(receipt["details"]))
    for stored in (found.to_markdown(), local(found.location).with_name("receipt.md").read_text()):
        _safe_markdown(stored)
    _safe(local(found.location).read_text())
    run("explain", TABLE, path), run("explain", TABLE, EVIL, code=(0, 2))
    run("quarantine", TABLE), run("undelete", plan, *by), run("quarantine", TABLE)
    run("purge-quarantine", TABLE, "--dry-run")
    # Every tier.
    run("history", TABLE, "--cold")
    run("compact-history", TABLE), run("snapshot-at", TABLE, "2100-01-01T00:00:00Z")
    run("read", TABLE, "--snapshot-id", first)
    assert run("read", TABLE, "--snapshot-id", first, "--json")[0][EVIL] == EVIL
    spelled = Identifier(("db",), NAME).sql()
    run("query", f"SELECT *, '{EVIL.splitlines()[0]}' FROM {spelled}", code=(0, 2))
    run("restore", TABLE, first, "--branch", NAME[:60], "--why", EVIL, "--owner", EVIL, "--ticket", EVIL)
    run("restores", TABLE), run("costs", TABLE), run("scan-cold", TABLE, "--files"), run("scrub-cold", TABLE)
    run("scrub-cold", TABLE, "--losses"), run("renew-identities", TABLE, *by), run("recover-archive", TABLE, *by)
    run("deep-archive", TABLE, "--dry-run")
    thaw = ("--case", EVIL, "--requester", EVIL, "--reason", EVIL)
    run("thaw", TABLE, *thaw, "--snapshot-id", second, code=(0, 2, 3))
    run("thaws", "--ended")
    run("approve-thaw", EVIL, *by, code=2), run("refuse-thaw", EVIL, *by, code=2)
    # What nobody owns.
    run("list-objects", TABLE), run("settle-metadata", TABLE, *by)
    run("scan-orphans", TABLE, "--files")
    scan = run("scan-orphans", TABLE, "--files", "--json")
    assert [row for row in scan if NAME[:80] in row["path"]]
    run("explain", TABLE, os.fsdecode(UNDECODABLE), code=(0, 2))
    newest = lifecycle.latest_scan(TABLE)
    assert newest is not None
    run("delete-orphans", newest.scan_id, "--dry-run")
    run("delete-orphans", newest.scan_id, "--yes")
    _safe_markdown(lifecycle.receipt(newest.scan_id).to_markdown())
    # A whole catalog, and what is for tables of another format.
    catalog = lifecycle.config.catalogs.live.name
    marked = run("mark", catalog, "--json")["live_set_id"]
    run("mark", catalog, "--policy", f"{EVIL}=10", code=(0, 2)), run("mark", EVIL, code=2)
    run("sweep", marked), run("sweep", EVIL, code=2)
    run("live-sets", "list"), run("live-sets", "show", marked), run("live-sets", "show", EVIL, code=2)
    run("live-sets", "compare", marked, marked), run("live-sets", "delete", EVIL, code=2)
    run("paimon", "expire-snapshots", TABLE, code=2), run("paimon", "rollback-to", TABLE, "--tag", EVIL, code=2)
    run("doctor", code=(0, 1))
    run("expire", TABLE, "--yes")
    run("decisions")
    run("close", plan, *by, code=(0, 3))
    run("forget-records", "--dry-run")
    run("take-over", *by)
    run("explain-policy", TABLE)
    run("assess", "*"), run("assess", TABLE, "--quick"), run("assess", EVIL, code=(0, 2))
    assert not lifecycle.observe_catalog()
    uuid = lifecycle.steps.table_state(TABLE).metadata.table_uuid
    lifecycle.spark.sql(f"DROP TABLE {Identifier(('db',), NAME).sql(lifecycle.config.catalogs.live.name)}")
    run("dropped")
    run("scan-dropped", uuid, "--files", code=(0, 3))
    run("keep-dropped", uuid, *by)
    run("delete-dropped", EVIL, code=2)
    run("undrop", TABLE, *by), run("init", "--dry-run")
    lifecycle.spark.sql(f"DROP TABLE {Identifier(('db',), NAME).sql(lifecycle.config.catalogs.live.name)}")
    run("gate", "status"), run("gate", "attempts", TABLE, code=(0, 2, 3))
    # Errors quote what they were asked for.
    run("history", TABLE, code=2), run("commit", EVIL, code=2)
    every = set(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]
    assert every - run.used == {"demo", "deployment", "pack-environment", "workers"}  # type: ignore[attr-defined]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
@pytest.mark.no_guardian(reason="its readers decode percent signs in paths")
def test_no_page_of_dagster_and_no_picture_shows_what_others_wrote_as_it_is(
    lifecycle: Lifecycle, made: list[int], tmp_path: Path
) -> None:
    lifecycle.tag(TABLE, NAME, made[2], why=EVIL, who=EVIL)
    shown = 0
    with instance_for_test() as instance:
        project = Project(lifecycle.config, written(lifecycle.config, tmp_path), instance, lifecycle.spark)
        key = partition_key(TABLE)
        assert not _harmful(key)
        instance.add_dynamic_partitions("table", [key])
        with lifecycle.writing(TABLE, EVIL[:200], prefix=None, ttl="10m"):
            result = project.run("whole_walk", key, dry_run=False)
        for event in result.all_events:
            _safe(event.message or "")
            data = event.event_specific_data
            for said in (
                getattr(data, "description", None),
                getattr(getattr(data, "materialization", None), "description", None),
            ):
                _safe(said or "")
            metadata = getattr(getattr(data, "materialization", data), "metadata", None) or {}
            for value in dict(metadata).values():
                if isinstance(value, MarkdownMetadataValue):
                    _safe_markdown(value.md_str or "")
                elif isinstance(value, TableMetadataValue):
                    for record in value.records:
                        for cell in (*record.data, *record.data.values()):
                            _safe(str(cell))
                elif isinstance(value, TextMetadataValue | PathMetadataValue | UrlMetadataValue):
                    _safe(str(value.value))
                else:
                    continue
                shown += 1
    assert shown > 30
    for picture in (lifecycle.retention_curve(TABLE), lifecycle.costs(TABLE), lifecycle.scan_trend(TABLE)):
        svg = picture.plot("svg").decode()
        _safe(svg)
        assert "<script" not in svg and "<img" not in svg


def test_the_demos_report_shows_no_failure_as_it_was_written() -> None:
    out = StringIO()
    failed = DemoReport((), (), {"walk": 1.0})
    object.__setattr__(failed, "proofs", ())
    Console(file=out, width=200).print(render(failed))
    _safe(out.getvalue())


def test_a_log_line_of_ours_is_one_line_whatever_it_names(caplog: pytest.LogCaptureFixture) -> None:
    modules = [module for name, module in sys.modules.items() if name.startswith("artemis_lifecycle.")]
    ours = {each for module in modules for each in vars(module).values() if isinstance(each, logging.Logger)}
    assert len(ours) > 5
    for each in ours:
        each.error("%s: %s", EVIL, OSError(EVIL))
    for line in caplog.messages:
        _safe(line)
        assert "\n" not in line


def test_an_error_is_one_line_and_its_parts_stay_as_they_are() -> None:
    error = StorageError(f"It broke: {EVIL}", table=TABLE, path=EVIL + "\udcff")
    _safe(str(error))
    assert "\n" not in str(error) and error.path == EVIL + "\udcff"
    assert r"\x1b[31mred" in str(error) and r"\udcff" in str(error), "names can be read, and copied"


def test_texts_without_anything_hidden_stay_as_they_are() -> None:
    for name in ("db.with space", "s3://bucket/a_b/c=1/x.parquet", "日本-ü 🚀", "a\\b"):
        assert escaping.terminal(name) == name
        assert escaping.markdown(name, code=True) == f"`{name}`"
        assert MarkdownIt("commonmark").render(escaping.markdown(name)) == f"<p>{name}</p>\n"
        assert json.loads(escaping.json_text({"name": name}, indent=1)) == {"name": name}
        assert name in escaping.json_text({"name": name.replace("\\", "")}, indent=1) or "\\" in name
    assert escaping.markdown("a``b`", code=True) == "``` a``b` ```"
