from __future__ import annotations

import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField
from sqlalchemy import text

from artemis_lifecycle.catalogs.identifier import Identifier, parse
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.sql import ensure_tables
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import BadInput, EnvironmentMissing, NoSuchTable, OperationsUnavailable
from artemis_lifecycle.operations.database import connect
from artemis_lifecycle_tests.catalogs.conftest import MakeTable, append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.seconds


def test_an_entry_is_what_the_catalog_says_now(
    spark: SparkSession, config: LifecycleConfig, make_table: MakeTable, reader: CatalogReader
) -> None:
    live = config.catalogs.live.name
    table = make_table("now", 1)
    before = reader.entry(table)
    append(spark, f"{live}.{table}", 2)
    after = reader.entry(table)
    assert (after.catalog, after.namespace, after.table, after.identifier) == (live, "space", "now", table)
    assert after.metadata_location != before.metadata_location
    assert after.previous_metadata_location == before.metadata_location
    assert reader.exists(table)


def test_views_are_not_tables(
    spark: SparkSession, config: LifecycleConfig, make_table: MakeTable, reader: CatalogReader
) -> None:
    live = config.catalogs.live.name
    table = make_table("seen", 1)
    spark.sql(f"CREATE VIEW {live}.space.a_view AS SELECT 1 AS one")
    assert reader.tables() == [table]
    assert not reader.exists("space.a_view")


def test_a_namespace_may_have_levels(config: LifecycleConfig, spark: SparkSession, reader: CatalogReader) -> None:
    live = config.catalogs.live.name
    spark.sql(f"CREATE NAMESPACE {live}.a")
    spark.sql(f"CREATE NAMESPACE {live}.a.b")
    spark.sql(f"CREATE TABLE {live}.a.b.t (id INT) USING iceberg")
    entry = reader.entry("a.b.t")
    assert (entry.namespace, entry.table) == ("a.b", "t")
    assert reader.tables() == ["a.b.t"]
    assert reader.namespaces() == ["a", "a.b"]


def test_a_dot_in_a_name_does_not_separate_namespaces(
    config: LifecycleConfig, spark: SparkSession, reader: CatalogReader
) -> None:
    live = config.catalogs.live.name
    spark.sql(f"CREATE NAMESPACE {live}.db")
    spark.sql(f"CREATE NAMESPACE {live}.db.x")
    for name in ("db.`x.y`", "db.x.y", "db.`a...b`", "db.` edge`", "db.`back``tick`"):
        spark.sql(f"CREATE TABLE {live}.{name} (id INT) USING iceberg")
    assert reader.tables() == sorted(["db.`x.y`", "db.x.y", "db.`a...b`", "db.` edge`", "db.`back``tick`"])
    assert list(reader.pointers()) == reader.tables()
    for table in reader.tables():
        assert reader.entry(table).identifier == table
        assert reader.entry(table) == reader.pointers()[table]
    assert reader.entry("db.`x.y`").metadata_location != reader.entry("db.x.y").metadata_location
    spark.sql(f"DROP TABLE {live}.db.x.y")
    assert reader.exists("db.`x.y`") and not reader.exists("db.x.y")


def test_a_table_has_one_name_where_the_catalog_joins_the_levels_of_a_namespace(
    config: LifecycleConfig, spark: SparkSession, reader: CatalogReader
) -> None:
    live = config.catalogs.live.name
    spark.sql(f"CREATE NAMESPACE {live}.db")
    spark.sql(f"CREATE NAMESPACE {live}.db.`x.y`")
    spark.sql(f"CREATE TABLE {live}.db.`x.y`.t (id INT) USING iceberg")
    assert reader.tables() == ["db.x.y.t"]
    with pytest.raises(BadInput, match=r"name it db\.x\.y\.t"):
        reader.entry("db.`x.y`.t")
    assert reader.listed_as(Identifier(("db", "x.y"), "t")) == "db.x.y.t"
    assert reader.listed_as(Identifier(("db", "x.y"), "u")) is None


def test_a_table_without_a_namespace_is_listed_and_read(
    config: LifecycleConfig, spark: SparkSession, reader: CatalogReader
) -> None:
    live = config.catalogs.live.name
    spark.sql(f"CREATE TABLE {live}.alone (id INT) USING iceberg")
    assert reader.tables() == ["``.alone"]
    assert reader.entry("``.alone").name.row == ("", "alone")
    assert spark.table(parse("``.alone").sql(live)).count() == 0


def test_an_unknown_table_and_an_invalid_name_have_different_errors(reader: CatalogReader) -> None:
    with pytest.raises(NoSuchTable, match=r"space\.none"):
        reader.entry("space.none")
    assert not reader.exists("space.none")
    for name in ("none", "", "a..b", ".t", "a."):
        with pytest.raises(BadInput):
            reader.entry(name)
    with pytest.raises(BadInput):
        reader.create_namespace("a..b")


def test_quotes_in_a_name_are_only_a_name(reader: CatalogReader) -> None:
    reader.create_namespace("x'; DROP TABLE iceberg_tables; --")
    assert "x'; DROP TABLE iceberg_tables; --" in reader.namespaces()
    assert not reader.exists("x'; DROP TABLE iceberg_tables; --.t")
    assert reader.tables() == []


def test_creating_a_namespace_twice_is_once(reader: CatalogReader) -> None:
    reader.create_namespace("twice")
    reader.create_namespace("twice")
    assert reader.namespaces().count("twice") == 1


def test_a_catalog_that_does_not_answer_is_not_an_empty_one() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with pytest.raises(OperationsUnavailable):
        CatalogReader(Catalog(name="live", uri=f"postgresql+psycopg2://me@127.0.0.1:{port}/db", warehouse="file:///w"))
    with pytest.raises(OperationsUnavailable, match="does not answer"):
        CatalogReader(Catalog(name="live", type="rest", uri=f"http://127.0.0.1:{port}", warehouse="w"))


def test_a_catalog_of_the_first_layout_is_brought_to_the_present_one(postgres_uri: str) -> None:
    engine = connect(postgres_uri)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS iceberg_tables, iceberg_namespace_properties"))
        connection.execute(
            text(
                "CREATE TABLE iceberg_tables (catalog_name VARCHAR(255) NOT NULL,"
                " table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,"
                " metadata_location VARCHAR(1000),"
                " previous_metadata_location VARCHAR(1000), PRIMARY KEY (catalog_name, table_namespace, table_name))"
            )
        )
        connection.execute(text("INSERT INTO iceberg_tables VALUES ('old', 'ns', 't', 'file:/m', NULL)"))
    ensure_tables(engine)
    engine.dispose()
    with CatalogReader(Catalog(name="old", uri=postgres_uri, warehouse="file:///w")) as reader:
        assert reader.entry("ns.t").metadata_location == "file:/m"


def test_a_reader_without_the_right_to_create_reads(config: LifecycleConfig, reader: CatalogReader) -> None:
    from sqlalchemy import make_url

    assert config.catalogs.live.uri is not None
    engine = connect(config.catalogs.live.uri)
    with engine.begin() as connection:
        connection.execute(text("CREATE ROLE reader_only LOGIN PASSWORD 'p'"))
        connection.execute(text("GRANT SELECT ON iceberg_tables, iceberg_namespace_properties TO reader_only"))
    uri = make_url(config.catalogs.live.uri).set(username="reader_only", password="p")
    try:
        plain = config.catalogs.live.model_copy(update={"uri": uri.render_as_string(hide_password=False)})
        with CatalogReader(plain) as poor:
            assert poor.tables() == reader.tables()
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP OWNED BY reader_only"))
            connection.execute(text("DROP ROLE reader_only"))
        engine.dispose()


def test_another_kind_of_catalog_is_read_through_pyiceberg(tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    from artemis_lifecycle.catalogs.settings import pyiceberg_properties

    catalog = Catalog(
        name="other", type="in-memory", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w"
    )
    writer = load_catalog("other", **pyiceberg_properties(catalog))
    with CatalogReader(catalog) as reader:
        reader.create_namespace("a.b")
        reader.create_namespace("a.b")
        table = writer.create_table("a.b.t", Schema(NestedField(1, "id", IntegerType(), required=False)))
        assert reader.tables() == ["a.b.t"]
        assert "a.b" in reader.namespaces()
        assert reader.entry("a.b.t").metadata_location == table.metadata_location
        with table.transaction() as transaction:
            transaction.set_properties(x="y")
        assert reader.entry("a.b.t").previous_metadata_location is not None
        assert reader.entry("a.b.t").metadata_location == table.metadata_location
        with pytest.raises(NoSuchTable):
            reader.entry("a.b.none")
        assert not reader.exists("no.such")
        writer.create_table(("a", "b", "x.y"), Schema(NestedField(1, "id", IntegerType(), required=False)))
        assert reader.tables() == ["a.b.`x.y`", "a.b.t"]
        assert list(reader.pointers()) == reader.tables()
    writer.close()


def test_a_table_that_is_listed_and_cannot_be_loaded_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError

    from artemis_lifecycle.catalogs.settings import pyiceberg_properties

    catalog = Catalog(
        name="other", type="in-memory", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w"
    )
    writer = load_catalog("other", **pyiceberg_properties(catalog))
    with CatalogReader(catalog) as reader:
        reader.create_namespace("db")
        for name in ("seen", "unseen"):
            writer.create_table(f"db.{name}", Schema(NestedField(1, "id", IntegerType(), required=False)))
        loaded = reader._source._catalog().load_table  # type: ignore[attr-defined]

        def load(identifier: tuple[str, ...]) -> object:
            if identifier[-1] == "unseen":
                raise NoSuchTableError("not here")
            return loaded(identifier)

        monkeypatch.setattr(reader._source._catalog(), "load_table", load)  # type: ignore[attr-defined]
        found = reader.pointers()
        assert found["db.seen"].problem is None and found["db.seen"].metadata_location
        assert "cannot load" in str(found["db.unseen"].problem) and not found["db.unseen"].metadata_location
        writer.drop_table("db.unseen")
        assert list(reader.pointers()) == ["db.seen"]
    writer.close()


def test_hive_without_thrift_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] in ("thrift", "hive_metastore")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "pyiceberg.catalog.hive", raising=False)
    monkeypatch.setitem(sys.modules, "thrift", None)
    with pytest.raises(EnvironmentMissing, match=r"pip install 'pyiceberg\[hive\]'"):
        CatalogReader(Catalog(name="live", type="hive", uri="thrift://127.0.0.1:1"))


def test_errors_of_thrift_and_of_aws_are_errors_of_this_project(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(400)
            self.end_headers()
            self.wfile.write(b'{"__type": "AccessDeniedException", "Message": "not for you"}')

        def log_message(self, *_: object) -> None:
            pass

    keys = {"glue.access-key-id": "K", "glue.secret-access-key": "topsecret", "glue.region": "us-east-1"}
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = {"glue.endpoint": f"http://127.0.0.1:{server.server_port}"}
        glue = Catalog(name="live", type="glue", warehouse="s3://b/w", properties=keys | address)
        with pytest.raises(OperationsUnavailable, match=r"does not answer: AccessDenied.*not for you") as refused:
            CatalogReader(glue).tables()
        server.shutdown()
    assert "topsecret" not in str(refused.value)

    # As Thrift's own, which is not installed.
    broken = type("TTransportException", (Exception,), {"__module__": "thrift.transport.TTransport"})

    def load(name: str, **properties: str) -> None:
        raise broken("Could not connect to any of [('127.0.0.1', 1)]")

    monkeypatch.setattr("pyiceberg.catalog.load_catalog", load)
    with pytest.raises(OperationsUnavailable, match="TTransportException: Could not connect to any"):
        CatalogReader(Catalog(name="live", type="hive", uri="thrift://127.0.0.1:1"))


@pytest.mark.parametrize(("kind", "loads"), [("hive", 5), ("rest", 1)])
def test_threads_share_no_thrift_transport(monkeypatch: pytest.MonkeyPatch, kind: str, loads: int) -> None:
    users: dict[int, set[int]] = {}

    class OneTransport:
        def list_namespaces(self, _parent: tuple[str, ...]) -> list[tuple[str, ...]]:
            users.setdefault(id(self), set()).add(threading.get_ident())
            return []

    made: list[OneTransport] = []

    def load(name: str, **properties: str) -> OneTransport:
        made.append(OneTransport())
        return made[-1]

    monkeypatch.setattr("pyiceberg.catalog.load_catalog", load)
    reader = CatalogReader(Catalog(name="live", type=kind, uri="thrift://127.0.0.1:1"))
    together = threading.Barrier(4)

    def ask() -> None:
        for _ in range(2):
            together.wait()
            reader.namespaces()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == loads
    assert all(len(threads_of) == 1 for threads_of in users.values()) is (kind == "hive")


VIEW = {"view-uuid": "u", "format-version": 9, "location": "s3://b/w/db/v"}


class _Rest(BaseHTTPRequestHandler):
    """A REST server with a view of a format that pyiceberg rejects, and a table of one."""

    def do_GET(self) -> None:
        answers: dict[str, object] = {
            "/v1/config?warehouse=w": {"defaults": {}, "overrides": {}},
            "/v1/namespaces": {"namespaces": [["db"]]},
            "/v1/namespaces?parent=db": {"namespaces": []},
            "/v1/namespaces/db/tables": {"identifiers": [{"namespace": ["db"], "name": "t"}]},
            "/v1/namespaces/db/tables/t": {
                "metadata-location": "s3://b/w/db/t.json",
                "metadata": {"format-version": 5},
            },
            "/v1/namespaces/db/views": {"identifiers": [{"namespace": ["db"], "name": name} for name in ("v", "gone")]},
            "/v1/namespaces/db/views/v": {"metadata-location": "s3://b/w/db/v.json", "metadata": VIEW},
        }
        path = self.path.partition("?snapshots")[0]
        content = json.dumps(answers.get(path, {"error": {"message": path, "type": "No", "code": 404}})).encode()
        self.send_response(200 if path in answers else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_a_rest_catalog_lists_its_views_and_tables_of_any_format() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Rest) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        with CatalogReader(Catalog(name="live", type="rest", uri=uri, warehouse="w")) as reader:
            [view] = reader.others()
            assert (view.identifier, view.metadata_location, view.location) == (
                "db.v",
                "s3://b/w/db/v.json",
                VIEW["location"],
            )
            assert reader.pointers()["db.t"].metadata_location == "s3://b/w/db/t.json"
        server.shutdown()


ROWS = {
    "t": ("EXTERNAL_TABLE", {"table_type": "ICEBERG", "metadata_location": "s3://b/w/db/t.json"}, "s3://b/w/db/t"),
    "v": ("VIRTUAL_VIEW", {"table_type": "iceberg-view", "metadata_location": "s3://b/w/db/v.json"}, "s3://b/w/db/v"),
    "raw": ("EXTERNAL_TABLE", {}, "s3://b/w/raw"),
    "plain": ("VIRTUAL_VIEW", None, None),
    # As Spark makes one that Hive cannot read.
    "events": ("MANAGED_TABLE", {"spark.sql.sources.provider": "json"}, "s3://b/w/db/events-__PLACEHOLDER__"),
    "parts": ("EXTERNAL_TABLE", {}, "s3://b/w/parts"),
}
SERDE = {"events": {"path": "s3://b/w/db/t/data/events"}}
PARTITIONS = {"parts": ["s3://b/w/parts/region=us", "s3://b/w/db/t/data/region=eu"]}
OTHERS = [
    ("db.events", "MANAGED_TABLE", "", "s3://b/w/db/events-__PLACEHOLDER__"),
    ("db.events (s3://b/w/db/t/data/events)", "MANAGED_TABLE", "", "s3://b/w/db/t/data/events"),
    ("db.parts", "EXTERNAL_TABLE", "", "s3://b/w/parts"),
    ("db.parts (s3://b/w/db/t/data/region=eu)", "EXTERNAL_TABLE", "", "s3://b/w/db/t/data/region=eu"),
    ("db.plain", "VIRTUAL_VIEW", "", None),
    ("db.raw", "EXTERNAL_TABLE", "", "s3://b/w/raw"),
    ("db.v", "VIRTUAL_VIEW", "s3://b/w/db/v.json", "s3://b/w/db/v"),
]


def _others(reader: CatalogReader) -> list[tuple[object, ...]]:
    return sorted((each.identifier, each.type, each.metadata_location, each.location) for each in reader.others())


def test_a_hive_catalog_lists_views_and_tables_of_other_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None: ...

        def get_all_tables(self, db_name: str) -> list[str]:
            return list(ROWS)

        def get_table_objects_by_name(self, dbname: str, tbl_names: list[str]) -> list[SimpleNamespace]:
            stored = {
                name: SimpleNamespace(location=place, serdeInfo=SimpleNamespace(parameters=SERDE.get(name)))
                for name, (_, _, place) in ROWS.items()
                if place is not None
            }
            return [
                SimpleNamespace(
                    tableName=name,
                    tableType=kind,
                    parameters=parameters,
                    sd=stored.get(name),
                    partitionKeys=[name] if name in PARTITIONS else None,
                )
                for name, (kind, parameters, _) in ROWS.items()
            ]

        def get_partitions(self, db_name: str, tbl_name: str, max_parts: int) -> list[SimpleNamespace]:
            assert max_parts == -1
            return [SimpleNamespace(sd=SimpleNamespace(location=each)) for each in PARTITIONS[tbl_name]]

    hive = SimpleNamespace(_client=Client(), list_namespaces=lambda parent: [] if parent else [("db",)])
    monkeypatch.setattr("pyiceberg.catalog.load_catalog", lambda name, **properties: hive)
    assert _others(CatalogReader(Catalog(name="live", type="hive", uri="thrift://127.0.0.1:1"))) == OTHERS


def test_a_glue_catalog_lists_views_and_tables_of_other_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3
    from moto import mock_aws

    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "k")
    with mock_aws():
        client = boto3.client("glue", region_name="us-east-1")
        client.create_database(DatabaseInput={"Name": "db"})
        for name, (kind, parameters, place) in ROWS.items():
            row: dict[str, Any] = {"Name": name, "TableType": kind, "Parameters": parameters or {}}
            if place:
                row["StorageDescriptor"] = {"Location": place, "SerdeInfo": {"Parameters": SERDE.get(name, {})}}
            row["PartitionKeys"] = [{"Name": "region", "Type": "string"}] if name in PARTITIONS else []
            client.create_table(DatabaseName="db", TableInput=row)
            for at in PARTITIONS.get(name, ()):
                part = {"Values": [at], "StorageDescriptor": {"Location": at}}
                client.create_partition(DatabaseName="db", TableName=name, PartitionInput=part)
        glue = Catalog(name="live", type="glue", warehouse="s3://b/w", properties={"glue.region": "us-east-1"})
        assert _others(CatalogReader(glue)) == OTHERS
