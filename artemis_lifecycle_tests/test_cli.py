"""The `artemis` command: output, exit codes, errors that say what to do. The steps are tested by the rooms."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
import typer
from pyspark.sql import SparkSession
from rich.console import Console

from artemis_lifecycle import cli
from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.cli.command import instant, instant_ahead
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import ColdTier
from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.operations.holds import holds
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table, set_ages
from artemis_lifecycle_tests.people import approve_thaw
from artemis_lifecycle_tests.protection.foreign import set_pointer


@pytest.fixture
def file(config: LifecycleConfig, tmp_path: Path) -> Path:
    """A lifecycle.yaml of the test's own catalogs (JSON is YAML)."""
    written = tmp_path / "lifecycle.yaml"
    written.write_text(config.model_dump_json(by_alias=True))
    return written


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["artemis", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_tables_and_history_of_a_real_table(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: Path,
    config: LifecycleConfig,
    spark: SparkSession,
) -> None:
    live = config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
    spark.sql(f"CREATE TABLE {live}.db.t (id int) USING iceberg")
    spark.sql(f"INSERT INTO {live}.db.t VALUES (1)")
    assert _run(monkeypatch, "tables", "--json", "-c", str(file)) == 0
    assert json.loads(capsys.readouterr().out) == {"db.t": None}
    assert _run(monkeypatch, "history", "db.t", "--json", "-c", str(file)) == 0
    history = json.loads(capsys.readouterr().out)
    assert history["table"] == "db.t" and len(history["snapshots"]) == 1
    assert _run(monkeypatch, "history", "db.t", "-c", str(file)) == 0
    assert str(history["snapshots"][0]["snapshot_id"]) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["history", "db.absent"], 2, "NoSuchTable"),
        (["history", "no_namespace"], 2, "BadInput"),
        (["plan", "db.t", "--now", "someday"], 2, "is not an instant"),
        (["plan", "db.t", "--now", "2026-01-31T00:00:00"], 2, "has no time zone"),
        (["commit", "0" * 32], 2, "NoSuchPlan"),
        (["release", "hold-of-nobody"], 2, "NoSuchPlan"),
    ],
)
def test_bad_input_is_an_error_that_names_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: Path,
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    assert _run(monkeypatch, *arguments, "-c", str(file)) == code
    output = " ".join(capsys.readouterr().err.split())
    assert says in output and "Next:" in output
    assert _run(monkeypatch, *arguments, "--json", "-c", str(file)) == code
    assert json.loads(capsys.readouterr().out)["message"]


def test_an_unreadable_configuration_names_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = tmp_path / "lifecycle.yaml"
    bad.write_text("defaults:\n  retention:\n    widnow: 30d\n")
    assert _run(monkeypatch, "tables", "-c", str(bad)) == 2
    assert "line 3" in " ".join(capsys.readouterr().err.split())
    assert _run(monkeypatch, "tables", "-c", str(tmp_path / "absent.yaml")) == 2


def test_an_unreachable_postgres_is_reported_without_its_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    monkeypatch.setenv("ARTEMIS_POSTGRES_URI", "postgresql+psycopg2://artemis:hush-hush@127.0.0.1:1/artemis")
    assert _run(monkeypatch, "tables", "-c", str(file)) == 5
    output = capsys.readouterr().err
    assert "OperationsUnavailable" in output and "hush-hush" not in output


@pytest.fixture
def aged(config: LifecycleConfig, spark: SparkSession) -> list[int]:
    """`db.t`: four snapshots, 400, 300, 100 and 0 days old; their ids."""
    with Lifecycle.open(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t")
        set_ages(lifecycle, table, [timedelta(days=days) for days in (400, 300, 100, 0)])
        return ids_of(lifecycle, table)


Run = Callable[..., Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path) -> Run:
    """`run(*arguments)`: what the command prints, on one line; with `--json` among them, what that says."""

    def call(*arguments: object, code: int = 0) -> Any:
        monkeypatch.setattr("artemis_lifecycle.cli.output.out", Console(highlight=False, width=220))
        assert _run(monkeypatch, *map(str, arguments), "-c", str(file)) == code
        output = capsys.readouterr()
        assert "Traceback" not in output.err and "org.apache" not in output.err
        if "--json" in arguments:
            return json.loads(output.out)
        return " ".join((output.out + output.err).split())

    return call


def test_tags_are_made_listed_and_removed_with_who_and_why(run: Run, aged: list[int]) -> None:
    made = run(
        "tag", "db.t", "audit", aged[0], "--retain", "90d", "--reason", "the auditor asked", "--owner", "ada", "--json"
    )
    assert (made["who"], made["why"], made["snapshot_id"]) == ("ada", "the auditor asked", aged[0])
    shown = run("tags", "db.t")
    for what in (
        "branch main",
        "tag audit",
        str(aged[0]),
        "ada",
        "the auditor asked",
        "90d from its creation",
        "never",
    ):
        assert what in shown
    run("untag", "db.t", "audit", "--reason", "done", "--owner", "bob")
    assert "tag audit" not in run("tags", "db.t")
    removed = run("tags", "db.t", "--removed", "--json")["removed"]
    assert [(was["who"], was["removed_by"], was["removed_why"]) for was in removed] == [("ada", "bob", "done")]
    assert "Former tags" in run("tags", "db.t", "--removed")
    assert "BadInput" in run("tag", "db.t", "audit", aged[0], "--retain", "soon", code=2)


def test_a_query_is_shown_beside_sparks(run: Run, aged: list[int], config: LifecycleConfig) -> None:
    live = config.catalogs.live.name
    statement = f"TAG snapshot {aged[1]} AS 'incident' WITH RETENTION FOREVER;"
    tagged = run("query", statement, "--owner", "ada", "--json")
    assert tagged["spark_sql"] == f"ALTER TABLE {live}.db.t CREATE TAG incident AS OF VERSION {aged[1]}"
    assert (tagged["tag"]["table"], tagged["tag"]["who"], tagged["tag"]["ends_at"]) == ("db.t", "ada", None)
    sql = "SELECT id FROM db.t FOR TAG 'incident' ORDER BY id"
    found = run("query", sql, "--json")
    assert found["rows"] == [{"id": 0}, {"id": 1}]
    assert found["spark_sql"] == f"SELECT id FROM {live}.db.t VERSION AS OF 'incident' ORDER BY id"
    (source,) = found["sources"]
    assert (source["table"], source["tier"], source["snapshot_id"]) == ("db.t", "live", aged[1])
    assert source["clause"] == "FOR TAG 'incident'"
    assert found["seconds"] > 0
    at = datetime.now(UTC).isoformat()
    assert "VERSION AS OF" in run("query", "SELECT id FROM db.t", "--as-of", at, "--json")["spark_sql"]
    shown = run("query", sql)
    assert sql in shown and found["spark_sql"] in shown and "live catalog" in shown
    assert "answered in" in shown and "by live" in shown
    assert "rows" not in run("query", sql, "--translate", "--json")
    assert "does not begin as a query" in run("query", "DROP TABLE db.t", code=2)


def test_a_plan_says_what_goes_by_kind_and_why_the_rest_stays(run: Run, aged: list[int]) -> None:
    shown = run("plan", "db.t")
    for what in ("2 go, 2 stay", "manifest_list", "in all", "the window's edge", "Why snapshots stay", str(aged[2])):
        assert what in shown
    first = run("plan", "db.t", "--json")
    assert first["expired_snapshots"] == aged[:2]
    (path,) = {row["path"] for row in run("plan", "db.t", "--files", "--json") if str(aged[0]) in row["path"]}
    inside = run("plan", "db.t", "--explain", path, "--json")
    assert inside["in_plan"] and inside["kind"] == "manifest_list"
    run("tag", "db.t", "audit", aged[0])
    second = run("plan", "db.t", "--json")
    outside = run("plan", "db.t", "--explain", path, "--json")
    assert not outside["in_plan"]
    assert [keeper["snapshot_id"] for keeper in outside["kept_by"]] == [aged[0]]
    assert any("tag audit" in why for why in outside["kept_by"][0]["reasons"])
    difference = run("plan-diff", first["plan_id"], second["plan_id"], "--json")
    assert [(change["snapshot_id"], change["change"]) for change in difference["snapshots"]] == [(aged[0], "removed")]
    shown = run("plan-diff", first["plan_id"], second["plan_id"])
    assert str(aged[0]) in shown and "tag audit" in shown and "manifest_list" in shown
    files = run("plan-diff", first["plan_id"], second["plan_id"], "--files", "--json")
    assert path in {row["path"] for row in files} and {row["change"] for row in files} == {"removed"}


def test_a_dry_run_of_a_plan_or_of_all_steps_shows_what_would_go_and_seals_nothing(run: Run, aged: list[int]) -> None:
    for verb in ("plan", "expire"):
        shown = run(verb, "db.t", "--dry-run")
        assert "2 go, 2 stay" in shown and "a dry run seals nothing" in shown and "Next:" not in shown
        assert run(verb, "db.t", "--older-than", "200d", "--dry-run", "--json")["expired_snapshots"] == aged[:1]
    files = run("plan", "db.t", "--dry-run", "--files", "--json")
    assert any(str(aged[0]) in row["path"] for row in files)
    assert "explains no file" in run("plan", "db.t", "--dry-run", "--explain", files[0]["path"], code=2)
    assert run("plans", "db.t", "--json") == []


def test_each_command_explains_every_argument_and_shows_an_example_that_it_understands() -> None:
    root: Any = typer.main.get_command(cli.app)
    named = [((name,), each) for name, each in root.commands.items() if not hasattr(each, "commands")]
    for group in (each for each in root.commands.values() if hasattr(each, "commands")):
        named += [((group.name, name), each) for name, each in group.commands.items()]
    assert len(named) > 90
    for words, each in named:
        assert all(parameter.help for parameter in each.params), words
        artemis, *given = shlex.split(each.epilog.removeprefix("Example: "))
        assert (artemis, *given[: len(words)]) == ("artemis", *words)
        with each.make_context(words[-1], given[len(words) :]):
            pass
    assert all(each.rich_help_panel for each in root.commands.values())


@pytest.mark.parametrize(
    ("text", "ago", "ahead"),
    [("now", 0, 0), ("7d", 7, -7), ("36h", 1.5, -1.5), (str(datetime.now(UTC).date() - timedelta(days=9)), 9.5, 9.5)],
)
def test_an_instant_may_be_a_date_or_a_duration(text: str, ago: float, ahead: float) -> None:
    for parse, days in ((instant, ago), (instant_ahead, ahead)):
        found = parse(text)
        assert found is not None and abs(datetime.now(UTC) - found - timedelta(days=days)) < timedelta(days=0.51)


def test_a_step_says_what_is_next_and_takes_the_beginning_of_an_id_and_the_catalogs_name(
    run: Run, aged: list[int], config: LifecycleConfig, spark: SparkSession
) -> None:
    live = config.catalogs.live.name
    said = run("plan", f"{live}.db.t")
    plan = run("plans", "db.t", "--json")[0]["plan_id"]
    assert f"Next: artemis hand-off {plan}" in said
    assert f"Next: artemis commit {plan}" in run("hand-off", plan[:5])
    assert f"Next: artemis delete {plan}" in run("commit", plan[:6], "--yes")
    assert run("plans", "db.t", "--json")[0]["status"] == "committed"
    assert "artemis retention-curve db.t" in run("plan", "db.t")
    # What no id begins with, or too little of one, stands for nothing.
    assert "NoSuchPlan" in run("commit", plan[:3], "--yes", code=2)
    assert "did you mean db.t? artemis tables lists them" in run("history", "db.tt", code=2)
    # Once a namespace has the catalog's name, the name in front is the namespace's: also of a table that was dropped.
    core_tables.sql(spark, f"CREATE NAMESPACE {live}.{live}")
    spark.sql(f"CREATE TABLE {live}.{live}.other (id int) USING iceberg")
    with Lifecycle.open(config, spark=spark) as lifecycle:
        lifecycle.observe_catalog()
        spark.sql(f"DROP TABLE {live}.{live}.other")
        lifecycle.observe_catalog()
    assert "NoSuchTable" in run("history", f"{live}.db.t", code=2)


def test_an_id_stands_for_itself_and_what_several_begin_with_for_none(lifecycle: Lifecycle) -> None:
    columns = ("holds.hold_id",)
    with lifecycle.operations.engine.begin() as connection:
        for each in ("abcdef01", "abcdef02", "abcd", "wxyz99", "wx_z00", "hold-77aa12"):
            values = {"hold_id": each, "table_uuid": "u", "table_name": "db.t", "owner": "o", "reason": "r"}
            connection.execute(sa.insert(holds).values(snapshot_ids=(), **values))
    full = lifecycle.operations.full_id
    assert [full(each, columns) for each in ("abcdef01", "abcd", "wxyz", "wx_z", "wx%9", "wxy")] == [
        *("abcdef01", "abcd", "wxyz99", "wx_z00", "wx%9", "wxy")
    ]
    # The word of its kind names none, nor do three characters after it.
    assert [full(each, columns) for each in ("hold", "hold-", "hold-77a", "hold-77aa")] == [
        *("hold", "hold-", "hold-77a", "hold-77aa12")
    ]
    with pytest.raises(BadInput, match=r"Several ids begin with abcde.*abcdef01, abcdef02"):
        full("abcde", columns)


def test_an_approval_says_for_what_and_only_what_waits_takes_one(
    run: Run, aged: list[int], file: Path, config: LifecycleConfig, spark: SparkSession
) -> None:
    plan = run("plan", "db.t", "--json")["plan_id"]
    by = ("--who", "ada", "--why", "looked")
    assert "--large, or --lost" in run("approve", plan, *by, code=2)
    assert "NoSuchPlan" in run("approve", "63bc91ff", *by, "--large", code=2)
    for what in ("--large", "--lost"):
        assert f"Nothing of {plan} waits for this approval" in run("approve", plan, *by, what, code=2)
    assert "ada" not in run("plans", "db.t")
    with Lifecycle.open(config, spark=spark) as lifecycle:
        lifecycle.operations.plans.name_lost(plan, aged[:1])
    limited = json.loads(file.read_text())
    limited["defaults"]["deletion"]["max_files"] = 1
    file.write_text(json.dumps(limited))
    assert run("approve", plan, *by, "--lost", "--json")["approved_by"] is None
    both = run("approve", plan, "--who", "bob", "--why", "again", "--large", "--json")
    assert (both["approved_by"], both["lost_approved_by"]) == ("bob", "ada")
    shown = run("plans", "db.t")
    assert "large: bob" in shown and "lost: ada" in shown
    assert "waits for this approval" in run("approve", plan, *by, "--large", code=2)


def test_a_plan_of_nothing_is_closed(run: Run, aged: list[int]) -> None:
    shown = run("plan", "db.t", "--older-than", "900d")
    assert "Nothing expires, and the plan is closed. Next: artemis retention-curve db.t" in shown
    run("plan", "db.t", "--older-than", "901d", "--json")
    assert {(each["status"], each["closed_why"]) for each in run("plans", "db.t", "--json")} == {
        ("closed", "nothing expires")
    }
    assert "2 go" in run("plan", "db.t")


def test_holds_of_every_kind_are_placed_listed_moved_and_released(run: Run, aged: list[int]) -> None:
    by = ("--owner", "ana", "--reason", "reads", "--json")
    lease = run("hold", "db.t", *by, "--kind", "lease", "--ttl", "2h", "--snapshot-id", aged[0])
    consumer = run("hold", "db.t", *by, "--kind", "consumer", "--snapshot-id", aged[1])
    run("hold", "db.t", *by)
    assert (lease["kind"], consumer["kind"]) == ("lease", "consumer")
    shown = run("holds", "db.t")
    for what in (lease["hold_id"], "consumer", "legal", "the whole table", str(aged[1]), "released"):
        assert what in shown
    assert run("renew", lease["hold_id"], "--ttl", "3h", "--json")["until"] > lease["until"]
    assert run("advance", consumer["hold_id"], aged[2], "--json")["snapshot_ids"] == [aged[2]]
    assert "must end by itself" in run("hold", "db.t", "--owner", "a", "--reason", "b", "--kind", "lease", code=2)
    assert "of kind lease, not consumer" in run("advance", lease["hold_id"], aged[2], code=2)
    run("release", lease["hold_id"])
    assert lease["hold_id"] not in run("holds", "db.t")
    assert lease["hold_id"] in {held["hold_id"] for held in run("holds", "db.t", "--ended", "--json")}


def test_the_health_of_a_table_and_its_maintenance(
    run: Run, aged: list[int], config: LifecycleConfig, spark: SparkSession
) -> None:
    spark.sql(f"ALTER TABLE {config.catalogs.live.name}.db.t ADD COLUMN note string")
    versions = run("schema-history", "db.t", "--json")["versions"]
    assert [(each["added"], each["snapshots"], each["is_current"]) for each in versions] == [
        ([], 4, False),
        (["note"], 0, True),
    ]
    shown = run("schema-history", "db.t")
    assert "2 schemas; the current one is 1" in shown and "note" in shown
    compacted = run("compact-history", "db.t", "--json")
    assert compacted["entries"] <= 4 and compacted["size_in_bytes"] > 0
    assert "ranges" in run("compact-history", "db.t")
    past = run("snapshot-at", "db.t", datetime.now(UTC).isoformat(), "--json")
    assert (past["snapshot_id"], past["schema_id"], past["operation"]) == (aged[-1], 0, "append")
    assert str(aged[-1]) in run("snapshot-at", "db.t", datetime.now(UTC).isoformat())
    assert "has no time zone" in run("snapshot-at", "db.t", "2026-01-01T00:00:00", code=2)
    measured = run("health", "db.t", "--json")
    assert (measured["snapshots"], measured["data_files"], measured["small_files"]) == (4, 4, 4)
    assert "small files" in run("health", "db.t")
    assert run("compact", "db.t", "--dry-run", "--json")["needed"] is False
    assert "manifests" in run("compact", "db.t", "--manifests", "--json")["why"]
    assert run("record-lineage", "db.t", "--json")["snapshots"] == 4
    assert "recorded 4" in " ".join(run("record-lineage", "db.t").replace("│", " ").split())
    listed = run("list-objects", "db.t", "--json")
    assert listed["files"] > 8 and run("list-objects", "db.t", "--location", "s3://elsewhere/", code=2)


def test_a_scan_of_an_external_listing(
    run: Run, aged: list[int], config: LifecycleConfig, spark: SparkSession, tmp_path: Path
) -> None:
    old = datetime.now(UTC) - timedelta(days=60)
    files = spark.table(f"{config.catalogs.live.name}.db.t.files").select("file_path").collect()
    left = f"{files[0]['file_path'].rpartition('/')[0]}/left.parquet"
    rows = {"path": [left], "last_modified": pa.array([old]), "size_in_bytes": [7]}
    (tmp_path / "listing").mkdir()
    pq.write_table(pa.table(rows), tmp_path / "listing" / "1.parquet")
    scan = run("scan-orphans", "db.t", "--listing", tmp_path / "listing", "--json")
    assert (scan["summary"]["listed_files"], scan["summary"]["orphan_files"]) == (1, 1)
    # Ages count from the time at which it was taken.
    scan = run("scan-orphans", "db.t", "--listing", tmp_path / "listing", "--listed-at", old.isoformat(), "--json")
    assert (scan["summary"]["orphan_files"], scan["skipped_in_flight"]) == (0, 1)
    run("scan-orphans", "db.t", "--listed-at", old.isoformat(), code=2)
    run("scan-orphans", "db.t", "--listing", tmp_path / "listing", "--inventory", "manifest.json", code=2)
    assert "there are none" in run("scan-orphans", "db.t", "--listing", tmp_path / "nowhere", code=2)
    for catalog in (config.catalogs.live.name, "nowhere"):
        said = run("scan-orphans", "db.t", "--inventory", f"{catalog}:b_my-lake.inventory", code=2)
        assert f"{catalog}:b_my-lake.inventory cannot be a listing: its inventory cannot be found" in said, said


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT absent FROM db.t", "UNRESOLVED_COLUMN"),
        ("SELECT (id FROM db.t", "cannot parse"),
        ("SELECT 1 / (id - id) FROM db.t", "DIVIDE_BY_ZERO"),
    ],
)
@pytest.mark.parametrize("form", ["for people", "json"])
def test_what_is_wrong_with_a_query_is_reported_without_a_trace(
    run: Run, aged: list[int], sql: str, says: str, form: str
) -> None:
    said = run("query", sql, *(["--json"] if form == "json" else []), code=2)
    shown = said["message"] if form == "json" else said
    assert says in shown


def test_a_branch_on_a_live_snapshot_and_the_list_of_restores(run: Run, aged: list[int]) -> None:
    done = run("restore", "db.t", aged[0], "--branch", "looked-at", "--why", "to look", "--json")
    assert (done["snapshot_id"], done["copied_files"]) == (aged[0], 0)
    assert "main is what" in run("restore", "db.t", aged[0], "--branch", "main", code=2)
    by_instant = run("restore", "db.t", "--as-of", datetime.now(UTC).isoformat(), "--branch", "by-instant", "--json")
    assert by_instant["source_snapshot_id"] == aged[-1]
    assert "No snapshot is selected" in run("restore", "db.t", "--branch", "none", code=2)
    assert run("restores", "db.t", "--json") == []


def test_the_archive_a_thaw_and_the_costs(
    run: Run, aged: list[int], config: LifecycleConfig, spark: SparkSession
) -> None:
    live = config.catalogs.live.name
    for _ in range(2):
        spark.sql(f"INSERT OVERWRITE {live}.db.t VALUES (7)")
    lifecycle = Lifecycle.open(config, spark=spark)
    plan = lifecycle.plan_expiration("db.t", older_than=datetime.now(UTC))
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    later = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    assert run("deep-archive", "db.t", "--now", later, "--json")["due_files"] == 0
    policy = config.defaults.model_copy(update={"cold_tier": ColdTier(retain=timedelta(0))})
    moved = Lifecycle.open(config.model_copy(update={"defaults": policy}), spark=spark).deep_archive("db.t")
    assert moved.moved_files == moved.due_files > 0
    waiting = run("query", f"SELECT * FROM db.t FOR VERSION AS OF {aged[0]}", "--json")
    assert [(each["tier"], each["hours_until_readable"]) for each in waiting] == [("deep-archive", 48.0)]
    assert "artemis thaw db.t" in run("read", "db.t", "--snapshot-id", str(aged[0]))
    said = ["--case", "C-7", "--requester", "ann", "--reason", "the audit"]
    asked = run("thaw", "db.t", "--snapshot-id", str(aged[0]), *said, "--json")
    assert (asked["state"], asked["files"], asked["approved_by"]) == ("requested", 1, None)
    assert run("thaws", "--files", asked["thaw_id"], "--json")[0]["path"].endswith(".parquet")
    tiers = {each["snapshot_id"]: each["tier"] for each in run("history", "db.t", "--cold", "--json")["snapshots"]}
    assert tiers[aged[0]] == "deep-archive" and "cold" in tiers.values()
    assert str(aged[0]) in run("history", "db.t", "--cold")
    assert "cannot approve" in run("approve-thaw", asked["thaw_id"], "--who", "ANN", "--why", "x", code=3)
    assert "whatever the name" in run("approve-thaw", asked["thaw_id"], "--who", "bob", "--why", "x", code=3)
    approve_thaw(lifecycle, asked["thaw_id"], "bob", "seen")
    said_by = {each["kind"]: each["who"] for each in run("decisions", "db.t", "--about", asked["thaw_id"], "--json")}
    assert said_by == {"request-thaw": "ann", "approve-thaw": "bob"}
    (found,) = run("thaws", "--follow", "--json")
    assert (found["state"], found["approved_by"], found["table"]) == ("readable", "bob", "db.t")
    rows = run("query", f"SELECT * FROM db.t FOR VERSION AS OF {aged[0]}", "--json")["rows"]
    assert len(rows) == 1
    assert run("refuse-thaw", asked["thaw_id"], "--who", "bob", "--why", "done", "--json")["ended_why"] == "done"
    assert "done" in run("thaws", "db.t", "--ended") and run("thaws", "--json") == []
    costs = run("costs", "db.t", "--json")
    assert [tier["tier"] for tier in costs["tiers"]] == ["live", "cold", "deep-archive"]
    assert costs["tiers"][2]["files"] == moved.moved_files and costs["per_month"] is None
    assert "no price for every class" in run("costs", "db.t")


def test_metadata_newer_than_the_pointer_is_settled_by_a_person(
    run: Run, aged: list[int], config: LifecycleConfig, spark: SparkSession
) -> None:
    with Lifecycle.open(config, spark=spark) as lifecycle:
        newest = lifecycle.snapshot_history("db.t").metadata_location
        spark.sql(f"INSERT INTO {config.catalogs.live.name}.db.t VALUES (9)")
        lost = lifecycle.snapshot_history("db.t").metadata_location
        set_pointer(lifecycle, "db.t", newest)
    assert "artemis settle-metadata db.t" in run("scan-orphans", "db.t", code=3)
    assert "BadInput" in run("settle-metadata", "db.t", "--who", "ada", "--why", " ", code=2)
    settled = run("settle-metadata", "db.t", "--who", "ada", "--why", "that load was wrong", "--json")
    assert [local(path) for path in settled] == [local(lost)]
    assert run("settle-metadata", "db.t", "--who", "ada", "--why", "again", "--json") == []
    assert "Orphan scan of db.t" in run("scan-orphans", "db.t")


def test_dropped_tables_writers_and_old_records(
    run: Run, aged: list[int], config: LifecycleConfig, spark: SparkSession
) -> None:
    with Lifecycle.open(config, spark=spark) as lifecycle, lifecycle.writing("db.t", "nightly-load"):
        assert "nightly-load" in run("writers", "db.t") and "the whole table" in run("writers")
    assert run("writers", "db.t", "--json") == []
    assert run("dropped", "--json") == []
    run("list-objects", "db.t", "--json")
    spark.sql(f"DROP TABLE {config.catalogs.live.name}.db.t")
    (lost,) = run("dropped", "--json")
    assert (lost["table"], lost["state"]) == ("db.t", "waiting") and lost["table_uuid"] in run("dropped")
    assert "younger than orphans.min_age" in run("scan-dropped", "db.t", code=3)
    assert "BadInput" in run("keep-dropped", "db.t", code=2)
    kept = run("keep-dropped", "db.t", "--who", "ada", "--why", "read elsewhere", "--json")
    assert (kept["state"], kept["kept_by"]) == ("kept", "ada") and "read elsewhere" in run("dropped")
    assert run("keep-dropped", "db.t", "--undo", "--json")["state"] == "waiting"
    assert run("forget-records", "--dry-run", "--json")["counts"]["jobs"] == 0


class Terminal(io.StringIO):
    """Standard input that is a terminal, with answers typed into it."""

    def isatty(self) -> bool:
        return True


def test_what_destroys_asks_on_the_terminal_where_a_delay_is_zero(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make_config: MakeConfig,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    config = make_config(defaults={"deletion": {"grace": "0s"}, "cold_tier": {"enabled": False}})
    with Lifecycle.open(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t")
        set_ages(lifecycle, table, [timedelta(days=days) for days in (400, 300, 100, 0)])
    file = tmp_path / "lifecycle.yaml"
    file.write_text(config.model_dump_json(by_alias=True))

    def call(*arguments: str, answer: str | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO() if answer is None else Terminal(answer))
        code = _run(monkeypatch, *arguments, "-c", str(file))
        output = capsys.readouterr()
        return code, output.out, output.err

    def kept() -> int:
        with Lifecycle.open(config, spark=spark) as lifecycle:
            return len(ids_of(lifecycle, table))

    plan = json.loads(call("plan", table, "--json")[1])["plan_id"]
    for command in (["commit", plan], ["expire", table], ["purge-quarantine", table]):
        code, _, output = call(*command)
        assert code == 3 and "deletion.grace is 0" in output and "--yes" in output
    assert call("commit", plan, "--dry-run")[0] == 0
    code, _, output = call("commit", plan, answer="n\n")
    assert code == 1 and "deletion.grace is 0" in output and "Go on?" in output
    assert kept() == 4
    assert call("commit", plan, "--json")[0] == 0  # A program: nobody is there to be asked.
    assert kept() == 2
    assert call("delete", plan)[0] == 3
    assert call("delete", plan, answer="y\n")[0] == 0
    scan = json.loads(call("scan-orphans", table, "--json")[1])["scan_id"]
    assert call("delete-orphans", scan)[0] == 3
    assert call("delete-orphans", scan, "--yes")[0] == 0
