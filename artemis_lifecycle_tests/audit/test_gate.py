"""`Lifecycle` and `artemis gate`: the gate follows lifecycle.yaml, and what gets past is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from sqlalchemy import text
from typer.testing import CliRunner

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import catalog_conf, ingest_catalog
from artemis_lifecycle.cli import app
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.contracts import CommitLineage, InputSnapshot
from artemis_lifecycle.defs.checks import judge_lineage
from artemis_lifecycle.doctor.services import gate
from artemis_lifecycle.errors import BadInput, LineageRejected, NoSuchTable, Refused
from artemis_lifecycle.operations.database import connected
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig

LINEAGE = CommitLineage(
    writer_id="ingest",
    writer_host="station-3",
    commit_hash="a1b2c3d",
    invocation_id="run-1",
    trigger_type="schedule",
    input_rows=2,
    input_bytes=100,
    inputs=(InputSnapshot(7, "ops.raw"),),
)
BY_HAND = LINEAGE.summary() | {"trigger.type": "manual", "trigger.operator": "ada", "trigger.ticket": "OPS-1"}


@pytest.fixture
def config(make_config: MakeConfig) -> LifecycleConfig:
    return make_config(tables={"ops.*": {}, "ops.drafts": {"lineage": {"mode": "report"}}})


def _make(lifecycle: Lifecycle, *tables: str) -> str:
    live = lifecycle.config.catalogs.live.name
    for table in tables:
        core_tables.sql(lifecycle.spark, f"CREATE NAMESPACE IF NOT EXISTS {live}.{table.split('.')[0]}")
        lifecycle.spark.sql(f"CREATE TABLE {live}.{table} (id bigint, day int) USING iceberg PARTITIONED BY (day)")
    return live


def _rows(lifecycle: Lifecycle, *ids: int, day: int = 1) -> Any:
    return lifecycle.spark.createDataFrame([(each, day) for each in ids], "id bigint, day int")


def test_appends_and_overwrites_state_their_lineage_and_return_their_snapshot(lifecycle: Lifecycle) -> None:
    live = _make(lifecycle, "ops.passes")
    first = lifecycle.append("ops.passes", _rows(lifecycle, 1, 2), LINEAGE)
    second = lifecycle.append("ops.passes", _rows(lifecycle, 3, day=2), BY_HAND)
    third = lifecycle.overwrite("ops.passes", _rows(lifecycle, 4, day=2), BY_HAND, where="day = 2")
    assert sorted(row.id for row in lifecycle.spark.table(f"{live}.ops.passes").collect()) == [1, 2, 4]
    history = {each.snapshot_id: each for each in lifecycle.snapshot_history("ops.passes").snapshots}
    assert list(history) == [first.snapshot_id, second.snapshot_id, third.snapshot_id]
    assert (first.operation, third.operation) == ("append", "overwrite")
    assert CommitLineage.parse(history[first.snapshot_id].summary.whole()) == LINEAGE
    assert history[third.snapshot_id].summary.get("trigger.ticket") == "OPS-1"
    lifecycle.spark.sql(f"ALTER TABLE {live}.ops.passes CREATE BRANCH audit")
    staged = lifecycle.append("ops.passes", _rows(lifecycle, 5), LINEAGE, branch="audit")
    refs = {name: ref.snapshot_id for name, ref in lifecycle.snapshot_history("ops.passes").refs.items()}
    assert refs == {"main": third.snapshot_id, "audit": staged.snapshot_id}
    assert lifecycle.overwrite("ops.passes", _rows(lifecycle, 9), BY_HAND).operation == "overwrite"
    assert [row.id for row in lifecycle.spark.table(f"{live}.ops.passes").collect()] == [9]


def test_a_write_without_its_lineage_is_refused_before_anything_is_written(
    lifecycle: Lifecycle, tmp_path: Path
) -> None:
    _make(lifecycle, "ops.passes", "ops.drafts", "scratch.t")
    rows, files = _rows(lifecycle, 1), set(tmp_path.rglob("*"))
    with pytest.raises(LineageRejected, match=r"writer\.id is missing.*trigger\.type is missing"):
        lifecycle.append("ops.passes", rows, {})
    with pytest.raises(LineageRejected, match=r"operation=overwrite needs trigger\.operator, trigger\.ticket"):
        lifecycle.overwrite("ops.passes", rows, LINEAGE)
    with pytest.raises(BadInput, match="Iceberg sets operation"):
        lifecycle.append("ops.passes", rows, {"operation": "append"})
    with pytest.raises(NoSuchTable):
        lifecycle.append("ops.other", rows, LINEAGE)
    assert set(tmp_path.rglob("*")) == files
    with pytest.raises(BadInput, match="Spark refuses"):
        lifecycle.append("ops.passes", lifecycle.spark.sql("SELECT 'x' AS other"), LINEAGE)
    # Neither mode report nor a table that no entry governs refuses anything.
    for table in ("ops.drafts", "scratch.t"):
        lifecycle.append(table, rows, {})


def test_commits_on_a_given_session_pass_the_gate_whatever_its_catalog_of_that_name_is(
    config: LifecycleConfig, spark: SparkSession
) -> None:
    """The session has loaded Iceberg's own JdbcCatalog under the live catalog's name, which has no passes."""
    given = spark.newSession()
    for key, value in catalog_conf(config.catalogs.live).items():
        given.conf.set(key, value)
    live = config.catalogs.live.name
    core_tables.sql(given, f"CREATE NAMESPACE {live}.ops")
    given.sql(f"CREATE TABLE {live}.ops.passes (id bigint, day int) USING iceberg")
    with Lifecycle.open(config, spark=given) as lifecycle:
        lifecycle.enable_gate()
        rows = given.createDataFrame([(1, 1)], "id bigint, day int")
        with pytest.raises(Exception, match="has no pass"):
            rows.writeTo(f"{live}.ops.passes").append()
        assert lifecycle.append("ops.passes", rows, LINEAGE).operation == "append"
        assert lifecycle.overwrite("ops.passes", rows, BY_HAND).operation == "overwrite"
        assert [row.id for row in given.table(f"{live}.ops.passes").collect()] == [1]
        tagged = lifecycle.snapshot_history("ops.passes").snapshots[-1].snapshot_id
        lifecycle.tag("ops.passes", "kept", tagged)
        assert "kept" in lifecycle.snapshot_history("ops.passes").refs


def test_the_gate_follows_lifecycle_yaml(
    config: LifecycleConfig, spark: SparkSession, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lifecycle.open(config, spark=spark) as lifecycle:
        _make(lifecycle, "ops.passes")
        assert lifecycle.gate_status().enabled is False and gate(config).detail.startswith("not enabled")
        assert lifecycle.enable_gate(dry_run=True).enabled is False
        enabled = lifecycle.enable_gate()
        try:
            assert enabled.intact and enabled.rejecting == ("ops.*",) and enabled.reporting == ("ops.drafts",)
            assert gate(config).status == "ok"
            with pytest.raises(LineageRejected):
                lifecycle.append("ops.passes", _rows(lifecycle, 1), {})
            (attempt,) = lifecycle.gate_attempts("ops.passes")
            assert attempt.refused and attempt.metadata_location is None and not lifecycle.gate_attempts("ops.drafts")
            assert attempt in lifecycle.gate_attempts()
            # The project's own pyiceberg catalog passes the gate.
            catalog = ingest_catalog(config.catalogs.live)
            rows = catalog.load_table("ops.passes").scan().to_arrow()
            catalog.load_table("ops.passes").append(rows, snapshot_properties=LINEAGE.summary())
            tables = {"ops.*": {"lineage": {"triggers": {"whim": []}}}, "more.*": {}}
            changed = config.model_copy(update={"tables": {}})
            changed = LifecycleConfig.model_validate({**changed.model_dump(by_alias=True), "tables": tables})
            with Lifecycle.open(changed, spark=spark) as other:
                stale = other.gate_status()
                assert not stale.intact and stale.condition == "present"
                assert "the installed rule of ops.* differs from lifecycle.yaml" in stale.problems
                assert "more.* of lifecycle.yaml has no installed rule" in stale.problems
                assert "the installed rule of ops.drafts is not in lifecycle.yaml" in stale.problems
                assert gate(changed).status == "failed"
                assert other.enable_gate(dry_run=True).problems == stale.problems
                assert other.enable_gate().intact
            assert config.catalogs.live.uri is not None
            with connected(config.catalogs.live.uri) as engine, engine.begin() as connection:
                connection.execute(text("ALTER TABLE iceberg_tables DISABLE TRIGGER artemis_gate"))
            assert lifecycle.gate_status().condition == "disabled" and "disabled" in gate(config).detail
        finally:
            assert lifecycle.disable_gate().enabled is False
        assert lifecycle.gate_attempts("ops.passes") == [attempt]


def test_attempts_of_both_gates_are_listed_together_and_forgotten_when_they_are_old(
    config: LifecycleConfig, lifecycle: Lifecycle
) -> None:
    table = "ops.told"
    _make(lifecycle, table)
    lifecycle.enable_gate()
    for who in ("10.0.0.1 Writer/1", "10.0.0.2 Writer/1"):
        with pytest.raises(LineageRejected):
            lifecycle.append(table, _rows(lifecycle, 1), {})
        lifecycle.operations.gate_attempts.record(table, who, {"writer.id": "w"}, ("no ticket",), refused=True)
    found = lifecycle.gate_attempts(table)
    assert [each.application == "artemis gate serve" for each in found] == [True, False, True, False]
    assert (found[0].attempted_by, found[0].summaries) == ("10.0.0.2 Writer/1", ({"writer.id": "w"},))

    assert config.catalogs.live.uri is not None
    with connected(config.catalogs.live.uri) as engine:

        def age(which: str) -> None:
            with engine.begin() as connection:
                for rows, at in (("artemis_gate.attempts", "attempted_at"), ("lifecycle.gate_attempts", "at")):
                    connection.execute(
                        text(
                            f"UPDATE {rows} SET {at} = {at} - INTERVAL '500 days' "
                            f"WHERE table_name IN ('told', 'ops.told') AND attempt_id = (SELECT {which}(attempt_id) "
                            f"FROM {rows} WHERE table_name IN ('told', 'ops.told'))"
                        )
                    )

        age("min")
        kind = "catalog_gate_attempts"
        assert lifecycle.forget_records(dry_run=True).counts[kind] == 1 and len(lifecycle.gate_attempts(table)) == 4
        assert lifecycle.forget_records().counts[kind] == 1
        assert lifecycle.gate_attempts(table) == found[:2]
        assert lifecycle.forget_records().counts[kind] == 0
        # A gate that an older version enabled has no function for it.
        with engine.begin() as connection:
            connection.execute(text("DROP FUNCTION artemis_gate.forget_attempts"))
        age("max")
        with pytest.raises(Refused, match="artemis gate enable"):
            lifecycle.forget_records()
        assert lifecycle.enable_gate().intact
        assert lifecycle.forget_records().counts[kind] == 1
    assert lifecycle.disable_gate().enabled is False


def test_a_catalog_without_a_database_names_what_it_can_have(make_config: MakeConfig, tmp_path: Path) -> None:
    from artemis_lifecycle.commits.gate import require_sql

    rest = make_config().catalogs.live.model_copy(update={"type": "rest", "uri": "http://127.0.0.1:9"})
    with pytest.raises(Refused, match="artemis gate serve --upstream URL"):
        require_sql(rest, "enabled")


def test_the_watch_finds_what_no_gate_refused_until_a_person_acknowledges_it(
    config: LifecycleConfig, lifecycle: Lifecycle
) -> None:
    live = _make(lifecycle, "ops.passes", "ops.drafts", "scratch.t")
    lifecycle.spark.sql(f"INSERT INTO {live}.ops.passes VALUES (1, 1)")
    # What was there before anybody watched is not held against the table.
    assert lifecycle.watch_lineage().read == ("ops.drafts", "ops.passes")
    assert lifecycle.check_lineage("ops.passes").passed
    for table in ("ops.passes", "ops.drafts", "scratch.t"):
        lifecycle.spark.sql(f"INSERT INTO {live}.{table} VALUES (2, 1)")
    lifecycle.append("ops.passes", _rows(lifecycle, 3), LINEAGE)
    rogue = lifecycle.snapshot_history("ops.passes").snapshots[1].snapshot_id
    found = lifecycle.watch_lineage()
    assert found.unmet == ("ops.drafts", "ops.passes") and found.complete and not lifecycle.watch_lineage().read
    check = lifecycle.check_lineage("ops.passes")
    assert [each.snapshot_id for each in check.unmet] == [rogue]
    # Nothing promised to reject it: the catalog's gate is not enabled.
    warning = judge_lineage(check)
    assert check.passed and warning.severity.value == "WARN" and "artemis gate enable" in str(warning.description)
    lifecycle.enable_gate()
    try:
        gated = lifecycle.check_lineage("ops.passes")
    finally:
        lifecycle.disable_gate()
    assert not gated.passed
    red = judge_lineage(gated)
    assert not red.passed and red.severity.value == "ERROR" and str(rogue) in str(red.metadata["offenders"])
    reported = lifecycle.check_lineage("ops.drafts")
    assert reported.passed and reported.unmet and judge_lineage(reported).severity.value == "WARN"
    assert lifecycle.check_lineage("scratch.t").mode == "none"
    with pytest.raises(BadInput, match="needs why"):
        lifecycle.acknowledge_lineage("ops.passes", who="ada", why=" ")
    (done,) = lifecycle.acknowledge_lineage("ops.passes", who="ada", why="backfill before the gate")
    assert (done.snapshot_id, done.acknowledged_by) == (rogue, "ada")
    assert judge_lineage(lifecycle.check_lineage("ops.passes")).passed
    assert lifecycle.decisions("ops.passes")[0].kind == "acknowledge-lineage"
    # A table that is made while the watch runs is watched from its first snapshot.
    lifecycle.spark.sql(f"CREATE TABLE {live}.ops.late (id int) USING iceberg")
    lifecycle.spark.sql(f"INSERT INTO {live}.ops.late VALUES (1)")
    assert lifecycle.watch_lineage().unmet == ("ops.late",)


def test_the_command_line_enables_inspects_and_disables(config: LifecycleConfig, tmp_path: Path) -> None:
    file = tmp_path / "lifecycle.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True, exclude_defaults=True)))

    def artemis(*words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [*words, "-c", str(file), "--json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    assert artemis("gate", "enable", "--dry-run")["enabled"] is False
    assert artemis("gate", "enable")["enabled"] is True
    assert artemis("gate", "status")["problems"] == []
    assert artemis("gate", "attempts", "ops.passes") == []
    assert config.catalogs.live.uri is not None
    with connected(config.catalogs.live.uri) as engine, engine.begin() as connection:
        connection.execute(text("DELETE FROM artemis_gate.rules WHERE pattern = 'ops.drafts'"))
    assert artemis("gate", "status", code=3)["problems"]
    assert artemis("gate", "disable", "--dry-run")["enabled"] is True
    assert artemis("gate", "disable")["enabled"] is False
