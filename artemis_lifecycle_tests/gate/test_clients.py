"""Spark, pyiceberg, Iceberg's own Java client and DuckDB through `artemis gate serve`, before a real REST catalog: a
commit with lineage passes, one without is refused by name, once, and leaves the table as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError, ValidationException
from pyspark.sql import SparkSession
from sqlalchemy import Engine, text

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.lineage import GateAttempt
from artemis_lifecycle_tests.contracts.test_requirements import COMPLETE
from artemis_lifecycle_tests.gate.upstream import gate_before
from artemis_lifecycle_tests.nessie import server as rest_catalog
from artemis_lifecycle_tests.nessie.server import Nessie
from artemis_lifecycle_tests.storage import s3_server
from artemis_lifecycle_tests.storage.s3_server import S3Server

# Before a server in a JVM of its own.
pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
LINEAGE = {key: value for key, value in COMPLETE.items() if key != "operation"}
TOKEN = "never-show-this-token"
ROW, ROGUE = (pa.table({"id": pa.array([each], pa.int64())}) for each in (1, -1))


@dataclass
class World:
    """The catalog, the gate before it, and what each client sees of them."""

    s3: S3Server
    nessie: Nessie
    gate: str
    process: subprocess.Popen[bytes]
    output: Path
    operations: Operations
    number: int = 0

    def client(self, uri: str, **properties: str) -> Catalog:
        return load_catalog("rest", type="rest", uri=uri, token=TOKEN, **self.nessie.files, **properties)

    def table(self, namespace: str = "gated") -> str:
        """A new, empty table of the catalog."""
        self.number += 1
        name = f"{namespace}.t{self.number}"
        self.client(self.nessie.uri).create_table(name, ROW.schema)
        return name

    def location(self, table: str) -> str:
        return self.client(self.nessie.uri).load_table(table).metadata_location

    def summaries(self, table: str) -> list[dict[str, str]]:
        snapshots = self.client(self.nessie.uri).load_table(table).metadata.snapshots
        return [dict(each.summary.additional_properties) for each in snapshots if each.summary]

    def files(self, table: str) -> set[str]:
        """The files in the table's folder."""
        bucket, _, folder = self.location(table).removeprefix("s3://").partition("/")
        listed = self.s3.client().list_objects_v2(Bucket=bucket, Prefix=folder.partition("/metadata/")[0])
        return {each["Key"] for each in listed["Contents"]}

    def attempts(self, table: str) -> tuple[GateAttempt, ...]:
        return self.operations.gate_attempts.of(table)


@contextmanager
def serving(upstream: str, uri: str, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """`artemis gate serve`, as a user starts it: its address, process and output."""
    configuration = {
        "catalogs": {tier: {"uri": uri, "warehouse": f"file://{folder}/{tier}"} for tier in ("live", "cold")},
        "operations": {"uri": uri, "root": f"file://{folder}/state"},
        "tables": {"gated.*": {}, "watched.*": {"lineage": {"mode": "report"}}},
    }
    (folder / "lifecycle.yaml").write_text(json.dumps(configuration))
    output = folder / "gate.out"
    command = [sys.executable, "-m", "artemis_lifecycle.cli", "gate", "serve", "--upstream", upstream]
    with output.open("w") as log:
        process = subprocess.Popen(
            [*command, "--port", "0", "--config", str(folder / "lifecycle.yaml"), "--json"],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        while '"serving"' not in output.read_text() or not output.read_text().endswith("\n"):
            assert process.poll() is None, output.read_text()
            time.sleep(0.05)
        yield json.loads(output.read_text()[output.read_text().index("{") :])["serving"], process, output
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def world(postgres_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("gate")
    with (
        s3_server.running() as s3,
        rest_catalog.running(s3, folder) as nessie,
        serving(nessie.uri, postgres_uri, folder) as (address, process, output),
        Operations.open(postgres_uri) as operations,
    ):
        world = World(s3, nessie, address, process, output, operations)
        for namespace in ("gated", "free", "watched"):
            world.client(nessie.uri).create_namespace(namespace)
        yield world


@pytest.fixture(scope="module")
def catalog(world: World, spark: SparkSession) -> Iterator[str]:
    """The gate, as a catalog of the Spark session."""
    name = f"gate_{os.getpid()}"
    settings = {"type": "rest", "uri": world.gate, "token": TOKEN, "cache-enabled": "false", **world.nessie.files}
    spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{name}.{key}", value)
    yield name
    for key in ("", *(f".{each}" for each in settings)):
        spark.conf.unset(f"spark.sql.catalog.{name}{key}")


def refused(world: World, table: str, commit: Callable[[], object], error: type[Exception]) -> str:
    """The client's error for a commit that must change nothing and must be tried once."""
    before, attempts = world.location(table), len(world.attempts(table))
    with pytest.raises(error) as caught:
        commit()
    assert world.location(table) == before
    assert len(world.attempts(table)) == attempts + 1
    newest = world.attempts(table)[0]
    assert newest.refused and newest.who.startswith("127.0.0.1 ")
    assert all(problem in str(caught.value) for problem in newest.problems)
    return str(caught.value)


def test_spark_writes_with_lineage_and_not_without(world: World, catalog: str, spark: SparkSession) -> None:
    table = world.table()
    rows, files = spark.range(3), world.files(table)
    rogue = refused(world, table, lambda: rows.writeTo(f"{catalog}.{table}").append(), Py4JJavaError)
    assert "ForbiddenException" in rogue and "required key writer.id is missing" in rogue
    # Spark knows that nothing was committed, and takes its files back.
    assert "CommitStateUnknown" not in rogue and world.files(table) == files
    writer = rows.writeTo(f"{catalog}.{table}")
    for key, value in LINEAGE.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.append()
    assert spark.table(f"{catalog}.{table}").count() == 3
    refused(world, table, lambda: spark.sql(f"DELETE FROM {catalog}.{table} WHERE id = 1"), Exception)
    # The table's first commit comes with its creation.
    created = f"{catalog}.gated.created"
    with pytest.raises(Exception, match=r"required key writer\.id is missing"):
        spark.sql(f"CREATE TABLE {created} USING iceberg AS SELECT 1L AS id")
    assert not world.client(world.nessie.uri).table_exists("gated.created")
    # Commits without a snapshot have no summary.
    spark.sql(f"ALTER TABLE {catalog}.{table} SET TBLPROPERTIES ('a' = 'b')")
    spark.sql(f"CREATE TABLE {created} (id BIGINT) USING iceberg")


def test_pyiceberg_writes_with_lineage_and_not_without(world: World) -> None:
    name = world.table()
    table = world.client(world.gate).load_table(name)
    rogue = refused(world, name, lambda: table.append(ROW), ForbiddenError)
    assert "required key writer.id is missing" in rogue and "LineageRejected" in rogue
    table.append(ROW, snapshot_properties=LINEAGE)
    assert world.summaries(name)[0]["writer.id"] == LINEAGE["writer.id"]
    refused(world, name, lambda: table.delete("id = 1"), ForbiddenError)


def test_duckdb_is_refused_where_it_cannot_name_its_writer(world: World) -> None:
    """It writes no lineage, because it has no way to set a summary's keys; where the mode is report, it may."""
    client = _duckdb(world)
    gated, watched = world.table(), world.table("watched")
    rogue = refused(world, gated, lambda: client.execute(f"INSERT INTO lake.{gated} VALUES (-1)"), duckdb.Error)
    assert "Forbidden" in rogue and world.attempts(gated)[0].who.startswith("127.0.0.1 duckdb/")
    # It takes its data file back.
    assert not any(each.endswith(".parquet") for each in world.files(gated))
    world.client(world.gate).load_table(gated).append(ROW, snapshot_properties=LINEAGE)
    client.execute(f"INSERT INTO lake.{watched} VALUES (1)")
    for table in (gated, watched):
        assert client.execute(f"SELECT id FROM lake.{table}").fetchall() == [(1,)]
    assert len(world.summaries(watched)) == 1 and not world.attempts(watched)[0].refused
    client.close()


def _duckdb(world: World) -> duckdb.DuckDBPyConnection:
    """DuckDB, with the gate attached as `lake`. Its extensions come from wheels: it downloads none."""
    client = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    for name in ("avro", "httpfs", "iceberg"):
        (extension,) = files(f"duckdb_extension_{name}").glob("extensions/*/*.duckdb_extension")  # type: ignore[attr-defined]
        client.execute(f"LOAD '{extension}'")
    host = world.s3.endpoint.removeprefix("http://")
    keys = f"KEY_ID '{s3_server.ACCESS_KEY}', SECRET '{s3_server.SECRET_KEY}', REGION 'us-east-1'"
    client.execute(f"CREATE SECRET (TYPE s3, {keys}, ENDPOINT '{host}', URL_STYLE 'path', USE_SSL false)")
    access = f"ENDPOINT '{world.gate}', TOKEN '{TOKEN}', ACCESS_DELEGATION_MODE 'none'"
    client.execute(f"ATTACH 'tests' AS lake (TYPE iceberg, {access})")
    return client


def test_a_transaction_of_iceberg_java_is_refused_as_a_whole(world: World, spark: SparkSession) -> None:
    iceberg = spark._jvm.org.apache.iceberg  # type: ignore[union-attr]
    rest = iceberg.rest.RESTCatalog()
    rest.initialize("java", {"uri": world.gate, "token": TOKEN, **world.nessie.files})
    names = [world.table(), world.table()]

    def commit(*lineages: dict[str, str]) -> None:
        changes = spark._jvm.java.util.ArrayList()  # type: ignore[union-attr]
        for name, lineage in zip(names, lineages, strict=True):
            identifier = iceberg.catalog.TableIdentifier.parse(name)
            transaction = rest.loadTable(identifier).newTransaction()
            append = transaction.newFastAppend()
            for key, value in lineage.items():
                append.set(key, value)
            append.commit()
            changes.add(
                iceberg.catalog.TableCommit.create(
                    identifier, transaction.startMetadata(), transaction.currentMetadata()
                )
            )
        rest.commitTransaction(changes)

    first = world.location(names[0])
    rogue = refused(world, names[1], lambda: commit(LINEAGE, {"writer.id": "w"}), Py4JJavaError)
    assert "ForbiddenException" in rogue and "writer.host" in rogue and "writer.id is missing" not in rogue
    assert world.location(names[0]) == first and world.attempts(names[0]) == ()
    commit(LINEAGE, LINEAGE)
    assert [len(world.summaries(name)) for name in names] == [1, 1]
    rest.close()


def _added(world: World, table: str) -> dict[str, Any]:
    """A commit of one more snapshot that has no lineage, as the REST spec writes it."""
    metadata = world.client(world.nessie.uri).load_table(table).metadata
    current = metadata.current_snapshot()
    assert current is not None
    snapshot = {
        "snapshot-id": current.snapshot_id // 2,
        "parent-snapshot-id": current.snapshot_id,
        "sequence-number": metadata.last_sequence_number + 1,
        "timestamp-ms": current.timestamp_ms + 1,
        "manifest-list": current.manifest_list,
        "schema-id": 0,
        "summary": {"operation": "append"},
    }
    main = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
    updates = [{"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **main}]
    return {"requirements": [{"type": "assert-table-uuid", "uuid": str(metadata.table_uuid)}], "updates": updates}


@pytest.mark.parametrize("form", ["{0}", "{0}@main", "{0}/", "%74{1}", "{0};a=b", "/{0}"])
def test_other_spellings_of_a_tables_path_lead_past_nothing(world: World, form: str) -> None:
    """The catalog itself takes each of them for the table's path."""
    name = world.table()
    world.client(world.nessie.uri).load_table(name).append(ROW)
    table = name.partition(".")[2]
    spelled = f"/v1/main/namespaces/gated/tables/{form.format(table, table[1:])}"
    before = world.location(name)
    answer = httpx.post(world.gate + spelled, json=_added(world, name))
    assert answer.status_code in (400, 403) and world.location(name) == before
    assert httpx.post(world.nessie.uri + spelled, json=_added(world, name)).status_code == 200
    assert world.location(name) != before


def test_the_catalogs_own_interface_is_not_served_at_the_root_of_its_server(world: World) -> None:
    root = world.nessie.uri.removesuffix("/iceberg")
    config = LifecycleConfig.model_validate({"tables": {"gated.*": {}}})
    with gate_before(root, config) as served:
        assert httpx.get(f"{root}/api/v2/config").status_code == 200
        refused = httpx.get(f"http://127.0.0.1:{served.port}/api/v2/config")
    assert refused.status_code == 404 and "serves only /v1/" in refused.json()["error"]["message"]


def test_no_history_enters_by_a_rename_or_a_registration(world: World) -> None:
    source = world.table("free")
    client = world.client(world.gate)
    client.load_table(source).append(ROW)
    with pytest.raises(ForbiddenError, match="has snapshots that this table's requirements did not apply to"):
        client.rename_table(source, "gated.renamed")
    with pytest.raises(ForbiddenError, match="cannot be validated"):
        client.register_table("gated.registered", world.location(source))
    assert {name for _, name in client.list_tables("gated")}.isdisjoint({"renamed", "registered"})
    client.rename_table(world.table(), "gated.renamed_within")


def test_a_table_in_report_mode_is_recorded_and_written(world: World) -> None:
    name = world.table("watched")
    world.client(world.gate).load_table(name).append(ROW)
    assert len(world.summaries(name)) == 1
    (attempt,) = world.attempts(name)
    assert not attempt.refused and "required key writer.id is missing" in attempt.problems
    assert attempt.summary["operation"] == "append" and attempt.summary["added-records"] == "1"


def test_a_refusal_does_not_depend_on_its_record(world: World) -> None:
    name = world.table()
    table = world.client(world.gate).load_table(name)
    before = world.location(name)
    with _renamed(world.operations.engine), pytest.raises(ForbiddenError, match="required key"):
        table.append(ROW)
    assert world.location(name) == before and world.attempts(name) == ()


@contextmanager
def _renamed(engine: Engine) -> Iterator[None]:
    """Make every insert of an attempt fail."""
    for old, new in (("gate_attempts", "elsewhere"), ("elsewhere", "gate_attempts")):
        if old == "elsewhere":
            yield
        with engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE lifecycle.{old} RENAME TO {new}"))


@pytest.mark.slow
def test_a_race_lets_no_snapshot_in_without_lineage(world: World) -> None:
    name, commits = world.table(), 3
    passed: list[int] = []
    refusals: list[int] = []
    start = threading.Barrier(4)

    def write(lineage: dict[str, str]) -> None:
        client, row = world.client(world.gate), ROW if lineage == LINEAGE else ROGUE
        start.wait()
        for number in range(commits):
            while True:
                try:
                    client.load_table(name).append(row, snapshot_properties=lineage)
                    passed.append(number)
                except (CommitFailedException, ValidationException):
                    # Another writer was first; pyiceberg has a second error for it, when it finds no common base.
                    continue
                except ForbiddenError:
                    refusals.append(number)
                break

    writers = [threading.Thread(target=write, args=(each,)) for each in (LINEAGE, LINEAGE, {}, {"writer.id": "rogue"})]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(passed) == len(refusals) == len(world.attempts(name)) == 2 * commits
    # How many of the rows stay is between pyiceberg and Nessie, which lose one at times, also without the gate.
    assert set(world.client(world.nessie.uri).load_table(name).scan().to_arrow()["id"].to_pylist()) == {1}
    assert {each.get("trigger.type") for each in world.summaries(name)} == {"schedule"}


def test_the_gate_ends_with_sigterm_and_has_logged_each_refusal_without_credentials(world: World) -> None:
    world.process.send_signal(signal.SIGTERM)
    assert world.process.wait(60) == 0
    lines = world.output.read_text().splitlines()
    said = [json.loads(line) for line in lines if line.startswith("{")]
    recorded = world.operations.gate_attempts.of(limit=1000)
    assert len(recorded) > 10
    # One refusal could not be recorded, which is said beside it.
    assert len(said) == 1 + len(recorded) + 1
    assert [line for line in lines if "is not recorded" in line]
    assert {each["table"] for each in said[1:]} >= {each.table for each in recorded}
    assert TOKEN not in world.output.read_text()
    assert not any(TOKEN in str(each) for each in recorded)
