from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField
from sqlalchemy import make_url, text

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import catalog_conf, jdbc_url, pyiceberg_properties, spark_conf
from artemis_lifecycle.config.deployment import Catalog, Catalogs
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.jars import GATED_CATALOG, ICEBERG_AWS, needed
from artemis_lifecycle.errors import ConfigError, EnvironmentMissing
from artemis_lifecycle.operations.database import connect
from artemis_lifecycle.spark.session import add_catalogs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = Schema(NestedField(1, "id", IntegerType(), required=False))


def _rows(uri: str) -> list[tuple[str, ...]]:
    engine = connect(uri)
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT catalog_name, table_namespace, table_name, iceberg_type FROM iceberg_tables ORDER BY 1, 2, 3")
        )
        rows = [tuple(row) for row in found]
    engine.dispose()
    return rows


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("postgresql+psycopg2://me:p%40ss@db:6543/cat", ("jdbc:postgresql://db:6543/cat", "me", "p@ss")),
        ("postgresql://db/cat", ("jdbc:postgresql://db:5432/cat", None, None)),
        ("postgresql+psycopg2://me@[::1]/cat", ("jdbc:postgresql://[::1]:5432/cat", "me", None)),
        (
            "postgresql+psycopg2://db/a b?sslmode=require&connect_timeout=3",
            ("jdbc:postgresql://db:5432/a%20b?sslmode=require", None, None),
        ),
        (
            "postgresql+psycopg2://db/a?options=-csearch_path%3Dteam_b",
            ("jdbc:postgresql://db:5432/a?options=-csearch_path%3Dteam_b", None, None),
        ),
    ],
)
def test_a_sqlalchemy_address_becomes_a_jdbc_one(uri: str, expected: tuple[str, str | None, str | None]) -> None:
    assert jdbc_url(uri) == expected


@pytest.mark.parametrize(
    "uri", ["sqlite:///c.db", "postgresql+psycopg2://u:s3cr3t@/cat?host=/run/postgresql", "no address", "http://h/p"]
)
def test_an_address_that_jdbc_cannot_use_is_a_configuration_error(uri: str) -> None:
    with pytest.raises(ConfigError) as raised:
        jdbc_url(uri)
    assert "s3cr3t" not in str(raised.value)


def test_both_catalogs_are_in_the_settings_and_never_cached() -> None:
    uri = "postgresql+psycopg2://me:secret@db/cat"
    conf = spark_conf(
        Catalogs(
            live=Catalog(name="live", uri=uri, warehouse="file:///w/live"),
            cold=Catalog(name="frozen", uri=uri, warehouse="file:///w/cold"),
        )
    )
    # The live one asks the lineage gate of its database, and both say what it refuses; Iceberg takes a type or a class.
    for name in ("live", "frozen"):
        prefix = f"spark.sql.catalog.{name}"
        assert conf[f"{prefix}.catalog-impl"] == GATED_CATALOG and f"{prefix}.type" not in conf
    for name, warehouse in (("live", "file:///w/live"), ("frozen", "file:///w/cold")):
        prefix = f"spark.sql.catalog.{name}"
        assert conf[prefix] == "org.apache.iceberg.spark.SparkCatalog"
        assert conf[f"{prefix}.uri"] == "jdbc:postgresql://db:5432/cat"
        assert (conf[f"{prefix}.jdbc.user"], conf[f"{prefix}.jdbc.password"]) == ("me", "secret")
        assert conf[f"{prefix}.jdbc.schema-version"] == "V1"
        assert conf[f"{prefix}.cache-enabled"] == "false"
        assert conf[f"{prefix}.warehouse"] == warehouse
        assert f"{prefix}.io-impl" not in conf


def test_a_warehouse_on_s3_is_read_by_icebergs_own_client_with_the_same_properties() -> None:
    catalog = Catalog(
        name="live",
        uri="postgresql://db/cat",
        warehouse="s3://bucket/live",
        properties={"s3.endpoint": "http://minio:9000", "s3.region": "eu-west-1", "s3.access-key-id": "k"},
    )
    conf = catalog_conf(catalog)
    prefix = "spark.sql.catalog.live"
    assert conf[f"{prefix}.io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert conf[f"{prefix}.client.region"] == "eu-west-1"
    assert conf[f"{prefix}.s3.endpoint"] == "http://minio:9000"
    assert conf[f"{prefix}.s3.path-style-access"] == "true"
    assert pyiceberg_properties(catalog)["s3.access-key-id"] == conf[f"{prefix}.s3.access-key-id"] == "k"
    own = catalog.model_copy(update={"properties": {"io-impl": "org.example.MyFileIO", "py-io-impl": "x.Y"}})
    assert catalog_conf(own)[f"{prefix}.io-impl"] == "org.example.MyFileIO"
    assert f"{prefix}.py-io-impl" not in catalog_conf(own)


def test_a_warehouse_on_azure_or_gcs_has_its_file_io_and_pyicebergs_names_in_javas() -> None:
    host, given = "acct.dfs.core.windows.net", {"adls.account-name": "acct", "adls.account-key": "a2V5"}
    catalog = Catalog(name="c", uri="postgresql://db/cat", warehouse=f"abfss://data@{host}/w", properties=given)
    conf, prefix = catalog_conf(catalog), "spark.sql.catalog.c."
    assert conf[f"{prefix}io-impl"] == "org.apache.iceberg.azure.adlsv2.ADLSFileIO"
    assert conf[f"{prefix}adls.auth.shared-key.account.name"] == "acct"
    assert conf[f"{prefix}adls.auth.shared-key.account.key"] == "a2V5"
    assert not [key for key in conf if "connection-string" in key or "sas-token" in key]
    properties = {"adls.sas-token": "?sig=x", "adls.blob-storage-authority": "h:1", "adls.blob-storage-scheme": "http"}
    other = catalog_conf(catalog.model_copy(update={"properties": properties}))
    for each in (host, "acct.blob.core.windows.net"):
        assert other[f"{prefix}adls.sas-token.{each}"] == "sig=x"
        assert other[f"{prefix}adls.connection-string.{each}"] == "http://h:1/acct"
    google = catalog.model_copy(update={"warehouse": "gs://b/w", "properties": {"gcs.oauth2.token": "t"}})
    assert catalog_conf(google)[f"{prefix}io-impl"] == "org.apache.iceberg.gcp.gcs.GCSFileIO"
    assert catalog_conf(google)[f"{prefix}gcs.oauth2.token"] == "t"


@pytest.mark.parametrize(
    ("catalog", "expected"),
    [
        (
            Catalog(name="c", type="rest", uri="https://polaris/api", warehouse="w", properties={"credential": "a:b"}),
            {"type": "rest", "uri": "https://polaris/api", "warehouse": "w", "credential": "a:b"},
        ),
        (
            Catalog(name="c", type="hive", uri="thrift://hms:9083", warehouse="s3://b/w"),
            {"type": "hive", "uri": "thrift://hms:9083", "io-impl": "org.apache.iceberg.aws.s3.S3FileIO"},
        ),
        (
            Catalog(name="c", type="glue", warehouse="s3://b/w", properties={"glue.region": "us-east-1"}),
            {"type": "glue", "client.region": "us-east-1", "warehouse": "s3://b/w"},
        ),
    ],
    ids=lambda value: value.type if isinstance(value, Catalog) else "",
)
def test_other_catalog_types_have_their_counterpart_in_spark(catalog: Catalog, expected: dict[str, str]) -> None:
    conf = catalog_conf(catalog)
    for key, value in expected.items():
        assert conf[f"spark.sql.catalog.c.{key}"] == value
    assert pyiceberg_properties(catalog)["type"] == catalog.type


@pytest.mark.parametrize(
    "catalog",
    [
        Catalog(name="c", type="in-memory"),
        Catalog(name="c", type="dynamodb"),
        Catalog(name="c", type="sql", uri="sqlite:///c.db", warehouse="file:///w"),
        Catalog(name="c", type="sql", warehouse="file:///w"),
        Catalog(name="c", type="sql", uri="postgresql://db/cat"),
    ],
)
def test_what_spark_and_pyiceberg_cannot_share_is_a_configuration_error(catalog: Catalog) -> None:
    with pytest.raises(ConfigError):
        catalog_conf(catalog)


@pytest.mark.parametrize("first", ["spark", "pyiceberg", "reader"])
def test_spark_and_pyiceberg_see_each_others_tables_whichever_comes_first(
    spark: SparkSession, config: LifecycleConfig, postgres_uri: str, first: str
) -> None:
    live = config.catalogs.live
    engine = connect(postgres_uri)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS iceberg_tables, iceberg_namespace_properties"))
    engine.dispose()

    def by_spark() -> None:
        spark.sql(f"CREATE NAMESPACE {live.name}.from_spark")
        spark.sql(f"CREATE TABLE {live.name}.from_spark.t (id INT) USING iceberg")
        spark.sql(f"INSERT INTO {live.name}.from_spark.t VALUES (1)")

    def by_pyiceberg() -> None:
        catalog = load_catalog(live.name, **pyiceberg_properties(live))
        catalog.create_namespace("from_python")
        table = catalog.create_table("from_python.t", SCHEMA)
        table.append(pa.table({"id": pa.array([2], pa.int32())}))
        catalog.close()

    def by_reader() -> None:
        with CatalogReader(live) as reader:
            reader.create_namespace("from_reader")

    makers = {"spark": by_spark, "pyiceberg": by_pyiceberg, "reader": by_reader}
    for maker in sorted(makers, key=lambda name: name != first):
        makers[maker]()

    assert _rows(postgres_uri) == [
        (live.name, "from_python", "t", "TABLE"),
        (live.name, "from_spark", "t", "TABLE"),
    ]
    assert spark.table(f"{live.name}.from_python.t").collect()[0]["id"] == 2
    seen = {row["namespace"] for row in spark.sql(f"SHOW NAMESPACES IN {live.name}").collect()}
    assert seen == {"from_python", "from_reader", "from_spark"}
    catalog = load_catalog(live.name, **pyiceberg_properties(live))
    assert catalog.load_table("from_spark.t").scan().to_arrow()["id"].to_pylist() == [1]
    assert {".".join(namespace) for namespace in catalog.list_namespaces()} == seen
    catalog.close()
    with CatalogReader(live) as reader:
        assert reader.tables() == ["from_python.t", "from_spark.t"]
        assert set(reader.namespaces()) == seen


def test_the_catalogs_name_keys_the_rows(config: LifecycleConfig) -> None:
    live = config.catalogs.live
    with CatalogReader(live) as reader, CatalogReader(config.catalogs.cold) as cold:
        reader.create_namespace("only_live")
        assert "only_live" in reader.namespaces()
        assert "only_live" not in cold.namespaces()


def test_the_password_is_not_in_the_address_that_spark_shows(config: LifecycleConfig) -> None:
    live = config.catalogs.live
    assert live.uri is not None
    password = make_url(live.uri).password
    shown = [value for key, value in catalog_conf(live).items() if not key.endswith("password")]
    assert password
    assert all(str(password) not in value for value in shown)


class Glue(BaseHTTPRequestHandler):
    """Answers as Glue without a database does, and notes who asked."""

    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"DatabaseList": []}')

    def log_message(self, *_: object) -> None:
        pass


def test_glue_credentials_that_are_given_once_reach_spark_too(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with ThreadingHTTPServer(("127.0.0.1", 0), Glue) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        properties = {
            "glue.endpoint": f"http://127.0.0.1:{server.server_port}",
            "glue.region": "us-east-1",
            "glue.access-key-id": "KEYOFGLUE",
            "glue.secret-access-key": "hush",
        }
        catalog = Catalog(name="by_glue", type="glue", warehouse="s3://b/w", properties=properties)
        add_catalogs(spark, catalog_conf(catalog))
        try:
            assert CatalogReader(catalog).namespaces() == []
            by_pyiceberg = len(Glue.asked)
            spark.sql("SHOW NAMESPACES IN by_glue").collect()
        finally:
            server.shutdown()
            for key in catalog_conf(catalog):
                spark.conf.unset(key)
    assert 0 < by_pyiceberg < len(Glue.asked)
    assert all("Credential=KEYOFGLUE/" in said for said in Glue.asked)
    own = catalog.model_copy(update={"properties": {**properties, "client.credentials-provider": "org.example.Mine"}})
    assert catalog_conf(own)["spark.sql.catalog.by_glue.client.credentials-provider"] == "org.example.Mine"


class Signed(BaseHTTPRequestHandler):
    """Answers as an empty REST catalog, and notes the signatures."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("Authorization", "none"))
        body = b'{"defaults": {}, "overrides": {}}' if "/v1/config" in self.path else b'{"namespaces": []}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_requests_to_the_rest_front_of_glue_are_signed_by_both_clients_with_keys_given_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with ThreadingHTTPServer(("127.0.0.1", 0), Signed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        properties = {
            "rest.sigv4-enabled": "true",
            "rest.signing-name": "glue",
            "rest.signing-region": "us-east-1",
            "client.region": "us-east-1",
            "client.access-key-id": "KEYOFALL",
            "client.secret-access-key": "hush",
        }
        uri = f"http://127.0.0.1:{server.server_port}/iceberg"
        catalog = Catalog(name="by_rest", type="rest", uri=uri, warehouse="123456789012", properties=properties)
        add_catalogs(spark, catalog_conf(catalog))
        try:
            assert CatalogReader(catalog).namespaces() == []
            by_pyiceberg = len(Signed.asked)
            spark.sql("SHOW NAMESPACES IN by_rest").collect()
        finally:
            server.shutdown()
            for key in catalog_conf(catalog):
                spark.conf.unset(key)
    assert 0 < by_pyiceberg < len(Signed.asked)
    assert all("Credential=KEYOFALL/" in said and "/us-east-1/glue/aws4_request" in said for said in Signed.asked)
    assert ICEBERG_AWS in needed(LifecycleConfig(catalogs=Catalogs(live=catalog)))


def test_a_session_without_the_class_for_glue_s_credentials_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("artemis_lifecycle.spark.session.GIVEN_CREDENTIALS", "artemis.lifecycle.Nowhere")
    with pytest.raises(EnvironmentMissing, match=r"credentials of lifecycle\.yaml"):
        add_catalogs(spark, {"spark.sql.catalog.c.client.credentials-provider": "artemis.lifecycle.Nowhere"})
