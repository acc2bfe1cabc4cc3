"""Names with dots, spaces, quotes, backticks and other scripts go through every command as plain ones do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import text

from artemis_lifecycle import cli
from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.cold_tier.queries import Query, TagStatement
from artemis_lifecycle.spark.sql import name as sql_name
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deletion.world import local, make_old

POLICY: dict[str, Any] = {
    "retention": {"window": "1ms"},
    "deletion": {"grace": "0s"},
    "orphans": {"min_age": "1h", "min_age_floor": "1h"},
    "dropped": {"keep": "1d"},
}
NAMES: tuple[str, ...] = ("db.n.s.`x.y`", '`d``b\'s "l" ü`.`x.y`')
if "ARTEMIS_SOAK" in os.environ:
    NAMES += ("db.`x.y`", "db.`a...b [*]`", "db.with space", "db.quo\"te'", "db.日本-ü", "db.`back``tick`")
"""`make nightly` takes all. `db.n.s.` is how a SQL catalog lists the namespace that Spark made as ``db.`n.s` ``."""

SPELLED = {"db.n.s.`x.y`": "db.`n.s`.`x.y`"}

Run = Callable[..., Any]


@pytest.fixture
def lifecycle(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    config = make_config(defaults=POLICY, tables={"*": {}, **{name: {} for name in NAMES}})
    with Lifecycle.open(config, spark=spark) as opened:
        yield opened


@pytest.fixture(params=NAMES)
def table(request: pytest.FixtureRequest, lifecycle: Lifecycle) -> str:
    """A table of that name: the rows 1, 2, 3, each in a snapshot of its own."""
    name = str(request.param)
    _create(lifecycle, SPELLED.get(name, name))
    return name


def _create(lifecycle: Lifecycle, name: str) -> None:
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE IF NOT EXISTS {sql_name(live, *parse(name).namespace)}")
    core_tables.sql(spark, f"CREATE TABLE {_sql(lifecycle, name)} (id int) USING iceberg")
    for number in (1, 2, 3):
        core_tables.sql(spark, f"INSERT OVERWRITE {_sql(lifecycle, name)} VALUES ({number})")


def _sql(lifecycle: Lifecycle, name: str) -> str:
    return parse(name).sql(lifecycle.config.catalogs.live.name)


def _ids(frame: object) -> list[int]:
    assert isinstance(frame, DataFrame)
    return sorted(row["id"] for row in frame.collect())


def _files(lifecycle: Lifecycle, name: str) -> set[Path]:
    place = local(lifecycle.steps.table_state(name).metadata.location)
    return {path for path in place.rglob("*") if path.is_file()}


def test_the_whole_life_of_a_table(lifecycle: Lifecycle, table: str) -> None:
    spelled = parse(SPELLED.get(table, table)).sql()
    # What a table has, and what people say of it.
    assert table in lifecycle.tables()
    history = lifecycle.snapshot_history(table)
    assert history.table == table and len(history.snapshots) == 3
    first, second, third = (snapshot.snapshot_id for snapshot in history.snapshots)
    assert lifecycle.config.entry(table) == table
    lifecycle.tag(table, "kept", first, why="an audit")
    tagged = lifecycle.query(f"TAG SNAPSHOT {second} OF {spelled} AS 'short' WITH RETENTION 1 DAYS")
    assert getattr(tagged, "table", None) == table
    statement = lifecycle.translate(f"TAG SNAPSHOT {second} OF {spelled} AS 'again'")
    assert isinstance(statement, TagStatement)
    lifecycle.spark.sql(statement.spark_sql)
    for name in ("short", "again"):
        assert lifecycle.untag(table, name).table == table
    hold = lifecycle.hold(table, "owner", "a case", snapshot_ids=[third])
    assert [each.hold_id for each in lifecycle.holds(table)] == [hold.hold_id]
    assert lifecycle.release(hold.hold_id).table == table
    lifecycle.pause(table, who="w", why="y")
    assert {pause.table for pause in lifecycle.pauses()} == {table}
    lifecycle.resume(table, who="w")

    # Lineage and upkeep.
    assert lifecycle.record_lineage(table).snapshots == 3 and lifecycle.record_lineage(table).snapshots == 0
    assert lifecycle.schema_history(table).table == table
    assert lifecycle.table_health(table).data_files == 1
    assert lifecycle.retention_curve(table).table == table
    assert lifecycle.costs(table).table == table
    for dry_run in (True, False):
        lifecycle.compact_data_files(table, dry_run=dry_run)
        lifecycle.compact_manifests(table, dry_run=dry_run)

    # From the plan to the last file.
    committed_at = datetime.fromtimestamp(history.snapshots[1].timestamp_ms / 1000, UTC)
    assert lifecycle.reachable_set(table).data_file_paths.count() == 2
    plan = lifecycle.plan_expiration(table)
    assert plan.expired_snapshots == (second,)
    (gone,) = [row["path"] for row in plan.deletable_data_files.collect()]
    assert lifecycle.explain(table, gone).verdict == "planned"
    handoff = lifecycle.hand_off(plan)
    assert handoff.archived == (second,) and handoff.cold_table == table
    lifecycle.commit_expiration(plan)
    assert lifecycle.delete_files(plan, dry_run=True).would_delete == plan.summary.files
    assert lifecycle.delete_files(plan).deleted == plan.summary.files
    assert not local(gone).exists() and lifecycle.explain(table, gone).verdict == "deleted"
    assert lifecycle.receipt(plan).table == table
    assert [record.table for record in lifecycle.plans(table)] == [table]

    # Every tier answers, however it is asked.
    assert _ids(lifecycle.read(table)) == [3]
    assert _ids(lifecycle.read(table, tag="kept")) == [1]
    assert lifecycle.route(table, snapshot_id=second).tier == "cold"
    assert _ids(lifecycle.read(table, snapshot_id=second)) == [2]
    assert _ids(lifecycle.read(table, as_of=committed_at)) == [2]
    assert [row.cold_table for row in lifecycle.cold_history(table).snapshots] == [table]
    at, live = committed_at.isoformat(), lifecycle.config.catalogs.live.name
    for sql, rows in {
        f"SELECT id FROM {spelled}": [3],
        f"SELECT id FROM {spelled} FOR TAG 'kept'": [1],
        f"SELECT id FROM {live}.{spelled} FOR VERSION AS OF {second}": [2],
        f"SELECT id FROM {spelled} FOR TIMESTAMP AS OF '{at}'": [2],
        f"SELECT a.id FROM {spelled} a JOIN {spelled} FOR VERSION AS OF {second} b ON a.id = b.id + 1": [3],
    }.items():
        assert _ids(lifecycle.query(sql)) == rows, sql
    query = lifecycle.translate(f"SELECT id FROM {spelled}", as_of=committed_at)
    assert isinstance(query, Query) and [(s.table, s.tier) for s in query.sources] == [(table, "cold")]
    restored = lifecycle.restore(table, second, "brought_back", why="a case")
    assert _ids(lifecycle.query(f"SELECT id FROM {spelled} FOR VERSION AS OF {restored.snapshot_id}")) == [2]
    assert [record.table for record in lifecycle.restores(table)] == [table]
    lifecycle.scan_cold(table)

    # What nobody owns.
    place = local(lifecycle.steps.table_state(table).metadata.location)
    stray = place / "data" / "stray.parquet"
    stray.write_bytes(b"left behind")
    make_old(stray, timedelta(days=10))
    assert lifecycle.list_objects(table).files
    with lifecycle.writing(table, "a writer"):
        assert [beat.table for beat in lifecycle.writers(table)] == [table]
        assert lifecycle.scan_orphans(table).skipped_in_flight
    scan = lifecycle.scan_orphans(table)
    assert [local(row["path"]) for row in scan.orphan_data_files.collect()] == [stray]
    assert lifecycle.explain(table, str(stray)).verdict == "orphan"
    assert lifecycle.delete_orphans(scan, dry_run=True).would_delete == 1
    assert lifecycle.delete_orphans(scan).deleted == 1 and not stray.exists()
    assert lifecycle.scan_trend(table).table == table and lifecycle.in_flight(table) is not None
    assert (_ids(lifecycle.read(table)), _ids(lifecycle.read(table, tag="kept"))) == ([3], [1])


def test_a_dropped_table_is_found_kept_and_deleted(lifecycle: Lifecycle, table: str) -> None:
    table_uuid, place = lifecycle.steps.table_state(table).metadata.table_uuid, _files(lifecycle, table)
    for path in place:
        make_old(path, timedelta(days=60))
    assert not lifecycle.observe_catalog()
    lifecycle.spark.sql(f"DROP TABLE {_sql(lifecycle, table)}")

    (lost,) = [each for each in lifecycle.dropped_tables() if each.table_uuid == table_uuid]
    assert (lost.table, lost.state) == (table, "waiting")
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE lifecycle.known_tables SET missing_since = missing_since - interval '40 days' "
                "WHERE table_uuid = :uuid"
            ),
            {"uuid": table_uuid},
        )
    scan = lifecycle.scan_dropped(table_uuid)
    assert scan.table == table and scan.summary.orphan_files == len(place)
    lifecycle.keep_dropped(table_uuid, who="w", why="y")
    lifecycle.unkeep_dropped(table_uuid)
    lifecycle.approve(scan.scan_id, who="w", why="y")
    assert lifecycle.delete_dropped(scan.scan_id).deleted == scan.summary.orphan_files
    assert not any(path.exists() for path in place)


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lifecycle: Lifecycle, tmp_path: Path
) -> Run:
    """`run(*arguments)`: what `artemis … --json` prints."""
    written = tmp_path / "lifecycle.yaml"
    written.write_text(lifecycle.config.model_dump_json(by_alias=True))

    def call(*arguments: object) -> Any:
        monkeypatch.setattr(sys, "argv", ["artemis", *map(str, arguments), "--json", "-c", str(written)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out = capsys.readouterr().out
        assert not ended.value.code, out
        return json.loads(out)

    return call


def test_the_command_line_takes_the_name_and_prints_it(lifecycle: Lifecycle, run: Run, table: str) -> None:
    spelled = parse(SPELLED.get(table, table)).sql()
    assert table in run("tables")
    history = run("history", table)
    assert history["table"] == table
    first = history["snapshots"][0]["snapshot_id"]
    assert run("tag", table, "kept", first)["table"] == table
    assert run("tags", table) and run("health", table) and run("schema-history", table)
    assert run("record-lineage", table)["table"] == table
    plan = run("plan", table)
    assert plan["table"] == table
    assert run("plans", table)[0]["table"] == table
    assert run("hand-off", plan["plan_id"])["cold_table"] == table
    assert run("commit", plan["plan_id"])
    assert run("delete", plan["plan_id"])["deleted"]
    assert run("read", table) == [{"id": 3}]
    assert run("read", table, "--tag", "kept") == [{"id": 1}]
    assert run("query", f"SELECT id FROM {spelled} FOR TAG 'kept'")
    assert run("scan-orphans", table)["table"] == table
    assert run("list-objects", table) and run("scan-cold", table) and run("costs", table)
    assert run("holds", table) == [] and run("writers", table) == []
    assert run("untag", table, "kept")["table"] == table
