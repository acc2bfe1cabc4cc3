"""Spark's commits to gated tables state their lineage, whatever commits: a statement, a procedure, this project."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError, ValidationException
from pyiceberg.table.update import AddSnapshotUpdate
from sqlalchemy import Engine, select, update
from sqlalchemy.exc import DBAPIError

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import catalog_conf, pyiceberg_properties, spark_conf
from artemis_lifecycle.catalogs.sql import iceberg_tables
from artemis_lifecycle.code_version import commit_hash
from artemis_lifecycle.commits.actions import compute_statistics
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.contracts import LineageRequirements, lineage_problems
from artemis_lifecycle.contracts.summary import COMMIT_PROPERTY
from artemis_lifecycle.errors import LineageRejected
from artemis_lifecycle.operations.database import connected
from artemis_lifecycle.spark.java_errors import as_ours
from artemis_lifecycle.spark.session import add_catalogs
from artemis_lifecycle_tests.conftest import MakeConfig, _forget
from artemis_lifecycle_tests.gate.upstream import gate_before, listening, rest_server
from artemis_lifecycle_tests.policies import AT_ONCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GATED, REPORTED, FREE = "ops.passes", "ops.drafts", "scratch.t"
LINEAGE = {
    "writer.id": "ingest",
    "writer.host": "station-3",
    "writer.commit_hash": "a1b2c3d",
    "writer.invocation_id": "run-1",
    "input.snapshot_ids": "[]",
    "input.row_count": "2",
    "input.bytes_compressed": "100",
    "trigger.type": "manual",
    "trigger.operator": "ada",
    "trigger.ticket": "OPS-7",
}
MakeSession = Callable[..., "SparkSession"]


@pytest.fixture
def config(make_config: MakeConfig) -> LifecycleConfig:
    return make_config(defaults=AT_ONCE, tables={"ops.*": {}, REPORTED: {"lineage": {"mode": "report"}}})


@pytest.fixture
def lifecycle(config: LifecycleConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    """With an enabled gate, and three empty tables."""
    live = config.catalogs.live.name
    with Lifecycle.open(config, spark=spark) as opened:
        opened.enable_gate()
        for table in (GATED, REPORTED, FREE):
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {live}.{table.split('.')[0]}")
            spark.sql(
                f"CREATE TABLE {live}.{table} (id bigint) USING iceberg TBLPROPERTIES ('format-version'='2', "
                "'commit.retry.num-retries'='60', 'commit.retry.min-wait-ms'='20', 'commit.retry.max-wait-ms'='400')"
            )
        yield opened
        opened.disable_gate()


@pytest.fixture
def session(config: LifecycleConfig, spark: SparkSession) -> Iterator[MakeSession]:
    """Makes sessions of writers: through the gated catalog or Iceberg's own, with or without defaults."""
    made = []
    live = config.catalogs.live

    def make(defaults: Mapping[str, str] | None = None, *, gated: bool = True) -> SparkSession:
        opened = spark.newSession()
        add_catalogs(opened, spark_conf(config.catalogs) if gated else catalog_conf(live))
        for key, value in (defaults or {}).items():
            opened.conf.set(f"spark.sql.catalog.{live.name}.lineage.default.{key}", value)
        made.append(opened)
        return opened

    yield make
    for opened in made:
        _forget(opened, live.name)


def _pyiceberg(config: LifecycleConfig, *, gated: bool) -> Catalog:
    properties = pyiceberg_properties(config.catalogs.live)
    if gated:
        del properties["type"]
        properties["py-catalog-impl"] = "artemis_lifecycle.catalogs.pyiceberg_gate.GatedSqlCatalog"
    return load_catalog(config.catalogs.live.name, **properties)


def _summaries(config: LifecycleConfig, table: str) -> list[dict[str, str]]:
    """Of every snapshot, the newest last, as pyiceberg reads them."""
    catalog = _pyiceberg(config, gated=False)
    try:
        found = [snapshot.summary for snapshot in catalog.load_table(table).metadata.snapshots]
        return [{"operation": each.operation.value, **each.additional_properties} for each in found if each is not None]
    finally:
        catalog.close()


def _require_lineage(config: LifecycleConfig, table: str) -> list[dict[str, str]]:
    found = _summaries(config, table)
    requirements = LineageRequirements.from_config(config.policy(table).lineage)
    assert [lineage_problems(summary, requirements) for summary in found] == [()] * len(found)
    return found


def _noted(config: LifecycleConfig) -> dict[str, str]:
    """The lineage of the newest commit, which added no snapshot."""
    catalog = _pyiceberg(config, gated=False)
    try:
        metadata = catalog.load_table(GATED).metadata
    finally:
        catalog.close()
    noted = json.loads(metadata.properties[COMMIT_PROPERTY])
    assert noted["base"] == metadata.metadata_log[-1].metadata_file
    return {key: str(value) for key, value in noted.items()}


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and path.suffix != ".crc"}


def _refused(run: Callable[[], object]) -> str:
    with pytest.raises(Exception, match="lineage gate") as raised:
        run()
    ours = as_ours(raised.value)
    assert isinstance(ours, LineageRejected), raised.value
    return str(ours)


def test_every_statement_and_procedure_needs_lineage_and_a_refused_one_leaves_no_file(
    config: LifecycleConfig, lifecycle: Lifecycle, session: MakeSession, tmp_path: Path
) -> None:
    live = config.catalogs.live.name
    table, system = f"{live}.{GATED}", f"{live}.system"
    writer, rogue = session(LINEAGE), session()
    for number in range(3):
        writer.sql(f"INSERT INTO {table} VALUES ({number}), ({number + 10})")
    writer.sql(f"ALTER TABLE {table} CREATE BRANCH side")
    writer.sql(f"INSERT INTO {table}.branch_side VALUES (20)")
    (side,) = writer.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = 'side'").first()  # type: ignore[misc]
    writer.sql(f"INSERT INTO {table} VALUES (5)")
    commits = (
        f"INSERT INTO {table} VALUES (30)",
        f"MERGE INTO {table} t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET id = 31",
        f"DELETE FROM {table} WHERE id = 12",
        f"UPDATE {table} SET id = 32 WHERE id = 2",
        f"CALL {system}.cherrypick_snapshot('{GATED}', {side})",
        f"CALL {system}.rewrite_manifests('{GATED}')",
        f"CALL {system}.rewrite_data_files(table => '{GATED}', options => map('min-input-files', '2'))",
        f"INSERT OVERWRITE {table} SELECT * FROM {table}",
        f"CREATE TABLE {live}.ops.made USING iceberg AS SELECT * FROM {table}",
        f"CREATE OR REPLACE TABLE {table} USING iceberg AS SELECT 1L AS id",
    )
    names = LineageRequirements.from_config(config.policy(GATED).lineage).required_keys
    for statement in commits:
        before, rows = _files(tmp_path), writer.table(table).count()
        said = _refused(lambda statement=statement: rogue.sql(statement))  # type: ignore[misc]
        assert all(f"required key {key} is missing" in said for key in names if key != "operation"), said
        left = _files(tmp_path) - before
        # Of a replaced table, Spark leaves the data files: they are orphans. No other file stays.
        assert not left or ("OR REPLACE" in statement and {file.suffix for file in left} == {".parquet"}), statement
        assert _files(tmp_path) >= before and writer.table(table).count() == rows, statement
        writer.sql(statement)
    orphans = {Path(row.path.removeprefix("file:")) for row in lifecycle.scan_orphans(GATED).files().collect()}
    assert {file for file in orphans if file.suffix != ".crc"} == left
    _require_lineage(config, "ops.made")
    operations = {summary["operation"] for summary in _require_lineage(config, GATED)}
    assert operations == {"append", "overwrite", "delete", "replace"}
    # A commit without a new snapshot has no summary.
    rogue.sql(f"ALTER TABLE {table} CREATE TAG kept")
    rogue.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('a' = 'b')")
    refused = lifecycle.gate_attempts(GATED)
    assert {each.refused for each in refused} == {True} and len(refused) >= len(commits) - 1
    assert refused[-1].application == "artemis-lifecycle-spark"


def test_a_writer_s_own_keys_win_over_its_session_s_defaults(
    config: LifecycleConfig, lifecycle: Lifecycle, session: MakeSession
) -> None:
    live = config.catalogs.live.name
    plain, writer = session(), session(LINEAGE)
    rows = plain.range(2)
    append = rows.writeTo(f"{live}.{GATED}")
    for key, value in LINEAGE.items():
        append = append.option(f"snapshot-property.{key}", value)
    append.append()
    writer.range(2).writeTo(f"{live}.{GATED}").option("snapshot-property.writer.id", "replay").append()
    first, second = _require_lineage(config, GATED)
    assert first["writer.id"] == "ingest" and second["writer.id"] == "replay"
    assert {key: second[key] for key in LINEAGE if key != "writer.id"}.items() <= LINEAGE.items()
    # Tables that the gate does not refuse: recorded, or left alone. A session's defaults are in all that it commits.
    for name in (REPORTED, FREE):
        plain.sql(f"INSERT INTO {live}.{name} VALUES (1)")
        writer.sql(f"INSERT INTO {live}.{name} VALUES (2)")
        without, with_defaults = _summaries(config, name)
        assert "writer.id" not in without and with_defaults["trigger.ticket"] == "OPS-7"
    (recorded,) = lifecycle.gate_attempts(REPORTED)
    assert not recorded.refused and "required key writer.id is missing" in recorded.problems
    assert lifecycle.gate_attempts(FREE) == []
    # A name does not bring a table in that lacks lineage.
    (location,) = plain.sql(f"SELECT file FROM {live}.{FREE}.metadata_log_entries ORDER BY timestamp DESC").first()  # type: ignore[misc]
    for statement in (
        f"ALTER TABLE {live}.{FREE} RENAME TO ops.renamed",
        f"CALL {live}.system.register_table('ops.registered', '{location}')",
    ):
        assert "writer.id is missing" in _refused(lambda statement=statement: plain.sql(statement))  # type: ignore[misc]
    plain.sql(f"DROP TABLE {live}.{REPORTED}")
    plain.sql(f"ALTER TABLE {live}.{FREE} RENAME TO {REPORTED}")
    assert [each.refused for each in lifecycle.gate_attempts(REPORTED)] == [False, False]
    plain.sql(f"ALTER TABLE {live}.{GATED} RENAME TO ops.renamed")
    assert plain.table(f"{live}.ops.renamed").count() == 4


@pytest.mark.parametrize("what", ["summary", "manifest-list", "timestamp-ms"])
def test_another_snapshot_under_a_known_id_is_a_new_one(
    config: LifecycleConfig, lifecycle: Lifecycle, session: MakeSession, what: str
) -> None:
    writer = session(LINEAGE)
    name = f"{config.catalogs.live.name}.{GATED}"
    writer.sql(f"INSERT INTO {name} VALUES (1)")
    plain = session()
    jvm: Any = plain._jvm
    load = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable
    parser = jvm.org.apache.iceberg.TableMetadataParser

    def replace(more: Mapping[str, str]) -> None:
        operations = load(plain._jsparkSession, name).operations()
        base = operations.current()
        content = json.loads(parser.toJson(base))
        (snapshot,) = content["snapshots"]
        other = {"manifest-list": "file:/elsewhere.avro", "timestamp-ms": snapshot["timestamp-ms"] - 1}
        content["snapshots"] = [snapshot | ({what: other[what]} if what in other else {})]
        content["snapshots"][0]["summary"] = {"operation": "append", **more}
        operations.commit(base, parser.fromJson(json.dumps(content)))

    said = _refused(lambda: replace({"added-records": "1"}))
    assert "required key writer.id is missing" in said
    _require_lineage(config, GATED)
    replace(LINEAGE)
    _require_lineage(config, GATED)


def _swap_by_hand(engine: Engine, catalog: str) -> None:
    """As an engine that never heard of the gate: with its own metadata file, compare and swap the pointer."""
    columns = iceberg_tables.c
    is_row = (columns.catalog_name == catalog) & (columns.table_namespace + "." + columns.table_name == GATED)
    swapped = 0
    while not swapped:
        with engine.begin() as connection:
            base = connection.execute(select(columns.metadata_location).where(is_row)).scalar_one()
            content = json.loads(Path(base.removeprefix("file:")).read_bytes())
            for snapshot in content.get("snapshots", ()):
                snapshot["summary"] = {"operation": "append"}
            own = Path(base.removeprefix("file:")).with_name(f"{uuid4()}.metadata.json")
            own.write_text(json.dumps(content))
            swap = update(iceberg_tables).where(is_row, columns.metadata_location == base)
            swapped = connection.execute(swap.values(metadata_location=f"file:{own}")).rowcount


def test_a_race_over_all_four_gates_lets_no_ungated_snapshot_in(
    config: LifecycleConfig, lifecycle: Lifecycle, session: MakeSession
) -> None:
    """One table, and at once: Spark, pyiceberg, clients of a REST server over the same catalog, and engines that never
    heard of a gate; with lineage and without."""
    table = f"{config.catalogs.live.name}.{GATED}"
    gated, rogue, plain = session(LINEAGE), session(), session(gated=False)
    rows, each, writers = pa.table({"id": [1]}), 4, 10
    start = threading.Barrier(writers)
    told: list[str] = []
    arrived: list[AddSnapshotUpdate] = []

    def spark_writer(writer: SparkSession, *, lands: bool) -> None:
        start.wait()
        for _ in range(each):
            if lands:
                writer.sql(f"INSERT INTO {table} VALUES (1)")
                told.append("spark")
            else:
                _refused(lambda: writer.sql(f"INSERT INTO {table} VALUES (666)"))

    def pyiceberg_writer(catalog: Catalog, lineage: dict[str, str], *, lands: bool) -> None:
        start.wait()
        left = each
        while left:
            try:
                catalog.load_table(GATED).append(rows, snapshot_properties=lineage)
                told.append(catalog.name)
                said = ""
            except (CommitFailedException, ValidationException):
                # Another writer was first; pyiceberg has a second error for it, when it finds no common base.
                continue
            except (LineageRejected, DBAPIError, ForbiddenError) as error:
                said = str(error)
            assert ("lineage gate" not in said) is lands, said
            left -= 1

    def sql_writer() -> None:
        assert config.catalogs.live.uri is not None
        with connected(config.catalogs.live.uri) as engine:
            start.wait()
            for _ in range(each):
                with pytest.raises(DBAPIError, match="lineage gate refuses"):
                    _swap_by_hand(engine, config.catalogs.live.name)

    with ExitStack() as open_now:
        catalogs = [_pyiceberg(config, gated=True), _pyiceberg(config, gated=True), _pyiceberg(config, gated=False)]
        for catalog in catalogs:
            open_now.callback(catalog.close)
        upstream = open_now.enter_context(listening())
        upstream.act = rest_server(catalogs[0], arrived)
        gate = open_now.enter_context(gate_before(f"http://127.0.0.1:{upstream.port}", config))
        over_rest = [load_catalog("rest", type="rest", uri=f"http://127.0.0.1:{gate.port}") for _ in range(2)]
        with ThreadPoolExecutor(writers) as pool:
            runs = [
                pool.submit(spark_writer, gated, lands=True),
                pool.submit(spark_writer, gated, lands=True),
                pool.submit(spark_writer, rogue, lands=False),
                pool.submit(spark_writer, plain, lands=False),
                pool.submit(pyiceberg_writer, catalogs[1], LINEAGE, lands=True),
                pool.submit(pyiceberg_writer, catalogs[1], {}, lands=False),
                pool.submit(pyiceberg_writer, catalogs[2], LINEAGE, lands=False),
                pool.submit(pyiceberg_writer, over_rest[0], LINEAGE, lands=True),
                pool.submit(pyiceberg_writer, over_rest[1], {}, lands=False),
                pool.submit(sql_writer),
            ]
            for run in runs:
                run.result()
    for name in (GATED, REPORTED, FREE):
        assert len(_require_lineage(config, name)) == (len(told) if name == GATED else 0)
    assert sorted(told) == sorted(2 * each * ["spark"] + each * [config.catalogs.live.name] + each * ["rest"])
    assert [row.id for row in gated.table(table).collect()] == [1] * (4 * each)
    # The proxy itself refused what lacked lineage over REST, once each; nothing of it reached the server.
    assert len(gate.found) == each and all(finding.refused for finding, _ in gate.found)
    assert {each.snapshot.summary["writer.id"] for each in arrived if each.snapshot.summary} == {"ingest"}
    assert {attempt.refused for attempt in lifecycle.gate_attempts(GATED)} == {True}


def test_the_project_s_own_commits_pass_the_gate_with_their_lineage(
    config: LifecycleConfig, lifecycle: Lifecycle, session: MakeSession, tmp_path: Path
) -> None:
    spark = lifecycle.spark
    lifecycle.append(GATED, spark.range(2), LINEAGE)
    first = lifecycle.overwrite(GATED, spark.range(5), LINEAGE).snapshot_id
    for _ in range(9):
        lifecycle.append(GATED, spark.range(2).repartition(1), LINEAGE)
    assert lifecycle.compact_manifests(GATED).snapshot_id is not None
    for _ in range(3):
        lifecycle.append(GATED, spark.range(2).repartition(1), LINEAGE)
    assert lifecycle.compact_data_files(GATED).snapshot_id is not None
    assert compute_statistics(lifecycle.spark, lifecycle.config.catalogs.live.name, GATED) is not None
    lifecycle.tag(GATED, "kept", first, who="ada")
    assert _noted(config)["operation"] == "tag" and _noted(config)["trigger.operator"] == "ada"
    lifecycle.record_lineage(GATED)
    plan = lifecycle.plan_expiration(GATED)
    source = plan.expired_snapshots[0]
    handoff = lifecycle.hand_off(plan)
    assert handoff.cold_metadata_location is not None
    lifecycle.hand_off(plan)
    assert lifecycle.commit_expiration(plan).snapshots_removed == len(plan.expired_snapshots)
    lifecycle.publish_results()
    ledger = spark.table(f"{config.catalogs.live.name}.lifecycle.lineage_ledger")
    of_plan = ledger.where(f"plan_id = '{plan.plan_id}'").orderBy("committed_at").collect()
    assert [(row["operation"], row["writer_id"]) for row in of_plan] == [
        ("handoff", "artemis-lifecycle/handoff"),
        ("expiration", "artemis-lifecycle/expiration"),
    ]
    assert of_plan[0]["metadata_location"] == handoff.cold_metadata_location
    assert of_plan[0]["writer_commit_hash"] == commit_hash()
    noted = _noted(config)
    assert noted["operation"] == "expiration" and noted["writer.id"] == "artemis-lifecycle/expiration"
    current = lifecycle.snapshot_history(GATED).current_snapshot_id
    assert current is not None
    lifecycle.restore(GATED, current, "fork", who="ada")
    noted = _noted(config)
    assert (noted["operation"], noted["trigger.operator"]) == ("branch", "ada")
    assert (noted["writer.id"], noted["input.snapshot_ids"]) == ("artemis-lifecycle/restore", f"[{current}]")
    before = _files(tmp_path)
    with pytest.raises(LineageRejected, match=r"operation=overwrite needs trigger\.ticket"):
        lifecycle.restore(GATED, source, "back", who="ada")
    assert _files(tmp_path) == before
    restored = lifecycle.restore(GATED, source, "back", who="ada", ticket="OPS-7", why="a case")
    rows = spark.sql(f"SELECT * FROM {config.catalogs.live.name}.{GATED} VERSION AS OF {restored.snapshot_id}")
    assert [row.id for row in rows.collect()] == [0, 1]
    found = _require_lineage(config, GATED)
    by_us = {summary["writer.id"] for summary in found if summary["writer.commit_hash"] == commit_hash()}
    assert by_us >= {"artemis-lifecycle/compaction", "artemis-lifecycle/restore"}
    assert found[-1]["trigger.operator"] == "ada" and found[-1]["operation"] == "overwrite"


def test_a_session_without_the_jar_writes_until_the_gate_is_enabled_and_then_gets_an_error_that_names_it(
    config: LifecycleConfig, lifecycle: Lifecycle, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("catalogs.settings", "spark.session"):
        monkeypatch.setattr(f"artemis_lifecycle.{module}.GATED_CATALOG", "artemis.lifecycle.Nowhere")
    own = spark.newSession()
    snapshot_id = lifecycle.append(GATED, spark.range(1), LINEAGE).snapshot_id
    try:
        with Lifecycle.open(config, spark=own) as opened:
            with pytest.raises(LineageRejected, match=r"add gate\.jar"):
                opened.append(GATED, own.range(1), LINEAGE)
            assert own.conf.get(f"spark.sql.catalog.{config.catalogs.live.name}.type") == "jdbc"
            with pytest.raises(LineageRejected, match=r"add gate\.jar"):
                opened.tag(GATED, "kept", snapshot_id)
            opened.append(FREE, own.range(1), {})
            opened.disable_gate()
            assert opened.append(GATED, own.range(1), LINEAGE).operation == "append"
    finally:
        _forget(own, config.catalogs.live.name)
