"""One configuration, two clients: the settings of a catalog for Spark and for pyiceberg, so that both see the same
tables.

Both use the catalog's name as the key of its rows in SQL, so the name must be the same in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from artemis_lifecycle.catalogs.sql import ensure_tables, is_v0
from artemis_lifecycle.config import deployment
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.schemes import kind_of, one_authority
from artemis_lifecycle.embedded.jars import GATED_CATALOG, GIVEN_CREDENTIALS, PACED_CLIENTS
from artemis_lifecycle.errors import ConfigError, OperationsUnavailable
from artemis_lifecycle.operations.database import Purpose, connect, connected, shown
from artemis_lifecycle.storage.location import split
from artemis_lifecycle.storage.pace import PaceSettings, jvm_options
from artemis_lifecycle.storage.settings import StoreSettings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as PyIcebergCatalog


_SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"
_FILE_IOS = {
    "s3": _S3_FILE_IO,
    "abfss": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
    "gs": "org.apache.iceberg.gcp.gcs.GCSFileIO",
}

# The Spark driver's commits are serial; discovery and the writers of a demo add a few.
_CLIENTS = {"lifecycle": "2", "ingest": "4"}

# libpq and pgjdbc have the same names for these; the rest of a SQLAlchemy query is specific to psycopg2. `options` may
# say in which schema the catalog's tables stand.
_SHARED_QUERY = ("options", "sslmode", "sslrootcert", "sslcert", "sslkey")


def jdbc_url(uri: str) -> tuple[str, str | None, str | None]:
    """Return (`jdbc:postgresql://host:port/database`, user, password) of a SQLAlchemy address of Postgres.

    Raises ConfigError for another database, and for a Unix socket: JDBC needs TCP.
    """
    try:
        url = sa.make_url(uri)
    except (ArgumentError, ValueError):
        raise ConfigError(
            "The address of the catalog cannot be read",
            hint="use postgresql+psycopg2://USER:PASSWORD@HOST:PORT/DATABASE",
        ) from None
    if url.get_backend_name() != "postgresql":
        raise ConfigError(
            f"{shown(url)} is not a PostgreSQL address: SQL catalogs in other databases are not supported",
            hint="use postgresql+psycopg2://USER:PASSWORD@HOST:PORT/DATABASE, or set the catalog's type",
        )
    if not url.host or url.host.startswith("/") or "host" in url.query:
        raise ConfigError(
            f"{shown(url)} has no TCP host, but Spark's JDBC needs one",
            hint="use postgresql+psycopg2://USER:PASSWORD@HOST:PORT/DATABASE",
        )
    host = f"[{url.host}]" if ":" in url.host else url.host
    shared = [
        f"{key}={quote(value, safe='')}"
        for key in _SHARED_QUERY
        for value in [url.query.get(key)]
        if isinstance(value, str)
    ]
    query = "?" + "&".join(shared) if shared else ""
    # Password and user are properties: in the address they would appear in error messages.
    return (
        f"jdbc:postgresql://{host}:{url.port or 5432}/{quote(url.database or '', safe='')}{query}",
        url.username,
        None if url.password is None else str(url.password),
    )


def lifecycle_conf(of: LifecycleConfig) -> dict[str, str]:
    """Return `spark.sql.catalog.*` of all catalogs for lifecycle steps: `spark_conf`, plus the shared rate limit.
    Iceberg's own requests to S3 (mainly a compaction's reads and writes) then draw from the bucket that all workers
    share.

    A catalog with a custom client factory, or with the analytics accelerator, is not rate-limited.
    """
    uri = of.operations.uri
    conf = spark_conf(of.catalogs, pace=None if uri is None else PaceSettings.of(of.defaults.budgets, uri))
    in_sql = [catalog for catalog in (*of.catalogs.iceberg, of.catalogs.cold) if catalog.type == "sql"]
    v0 = {uri: _is_v0(uri) for uri in dict.fromkeys(map(require_uri, in_sql))}
    for catalog in in_sql:
        # With V1, Iceberg's JdbcCatalog alters a table of V0 at its first use. With V0, it takes either as it is.
        if v0[require_uri(catalog)]:
            conf[f"spark.sql.catalog.{catalog.name}.jdbc.schema-version"] = "V0"
    return conf


def _is_v0(uri: str) -> bool:
    try:
        with connected(uri) as engine, engine.connect() as connection:
            return is_v0(connection)
    except OperationsUnavailable:
        return True


def spark_conf(
    catalogs: deployment.Catalogs, *, purpose: Purpose = "lifecycle", pace: PaceSettings | None = None
) -> dict[str, str]:
    """Return `spark.sql.catalog.*` of the live catalogs and the cold one. Raises ConfigError for a type that Spark does
    not support.

    A live catalog in SQL asks the lineage gate of its database, where that is enabled. `lineage.default.KEY` among its
    `properties` are summary keys of every snapshot that a session with these settings commits.

    Catalogs are not cached: a step must see what is committed now. For a warehouse in an object store, the session
    needs Iceberg's bundle for it (`iceberg-aws-bundle`, `iceberg-azure-bundle`, `iceberg-gcp-bundle`) in addition to
    the runtime.
    """
    found: dict[str, str] = {}
    for catalog in (*catalogs.iceberg, catalogs.cold):
        found |= catalog_conf(catalog, purpose=purpose, pace=pace, gated=True)
    return found


def catalog_conf(
    catalog: deployment.Catalog,
    *,
    purpose: Purpose = "lifecycle",
    pace: PaceSettings | None = None,
    gated: bool = False,
) -> dict[str, str]:
    """Return `spark.sql.catalog.<name>…` of one catalog. `gated`: if it is in SQL, its commits ask the lineage gate,
    and say what the database refuses."""
    options = {
        key: value
        for key, value in catalog.properties.items()
        if not key.startswith("py-") and key not in ("uri", "type")
    }
    options["cache-enabled"] = "false"
    if catalog.warehouse is not None:
        options["warehouse"] = catalog.warehouse
    kind = kind_of(catalog.root or "")
    if kind is not None:
        options.setdefault("io-impl", _FILE_IOS[kind])
    if kind == "abfss":
        options = _adls(catalog, options) | options
    if kind == "s3":
        if "s3.region" in options:
            options.setdefault("client.region", options["s3.region"])
        options = _keys(options, "s3") | options
        if "s3.endpoint" in options:
            options.setdefault("s3.path-style-access", "true")
    build = _SPARK_TYPES.get(catalog.type)
    if build is None:
        raise ConfigError(
            f"Catalog {catalog.name} is of type {catalog.type!r}, which Spark does not support",
            hint=f"use one of {', '.join(sorted(_SPARK_TYPES))}",
        )
    if pace is not None:
        options.update(_paced(options, pace))
    options.update(build(catalog, options, purpose))
    if gated and options["type"] == "jdbc":
        del options["type"]
        options["catalog-impl"] = GATED_CATALOG
    prefix = f"spark.sql.catalog.{catalog.name}"
    return {prefix: _SPARK_CATALOG, **{f"{prefix}.{key}": value for key, value in sorted(options.items())}}


def _paced(options: dict[str, str], pace: PaceSettings) -> dict[str, str]:
    accelerated = options.get("s3.analytics-accelerator.enabled", "").lower() == "true"
    own = "s3.client-factory-impl" in options or "client.factory" in options
    if options.get("io-impl") != _S3_FILE_IO or own or accelerated:
        return {}
    try:
        jdbc = jdbc_url(pace.uri)
    except ConfigError:
        # For example a Unix socket. What needs JDBC reports that itself; a local limit per JVM is better than none.
        jdbc = None
    return {"s3.client-factory-impl": PACED_CLIENTS, **jvm_options(pace, jdbc)}


def pyiceberg_properties(catalog: deployment.Catalog) -> dict[str, str]:
    """Return the arguments of `pyiceberg.catalog.load_catalog(catalog.name, **properties)`."""
    properties = {**catalog.properties, "type": catalog.type}
    if catalog.uri is not None:
        properties["uri"] = catalog.uri
    if catalog.warehouse is not None:
        properties["warehouse"] = catalog.warehouse
    if catalog.type == "sql":
        properties["uri"] = require_uri(catalog)
        properties.setdefault("pool_pre_ping", "true")
    return properties


def require_uri(catalog: deployment.Catalog) -> str:
    """Return the catalog's address. Raises ConfigError if it has none."""
    if catalog.uri is None:
        raise ConfigError(
            f"Catalog {catalog.name} has no address",
            hint=f"set catalogs.{catalog.name}.uri in lifecycle.yaml, or ARTEMIS_POSTGRES_URI",
        )
    return catalog.uri


def without_secrets(uri: str | None) -> str:
    """Return the host, port and path of an address, without credentials and options."""
    if uri is None:
        return ""
    parts = urlsplit(f"//{uri.partition('://')[2].partition('?')[0].rpartition('@')[2]}")
    return f"{parts.netloc}{parts.path}".rstrip("/").lower()


def in_one_database(one: deployment.Catalog, other: deployment.Catalog) -> bool:
    """Return True if two SQL catalogs have their rows in one database, according to their addresses."""
    if one.type != "sql" or other.type != "sql":
        return False
    first, second = sa.make_url(require_uri(one)), sa.make_url(require_uri(other))
    # The options may set another search path.
    return (first.host, first.port or 5432, first.database, first.query.get("options")) == (
        second.host,
        second.port or 5432,
        second.database,
        second.query.get("options"),
    )


def _jdbc(catalog: deployment.Catalog, options: dict[str, str], purpose: Purpose) -> dict[str, str]:
    url, user, password = jdbc_url(require_uri(catalog))
    if catalog.warehouse is None:
        raise ConfigError(
            f"Catalog {catalog.name} has no warehouse", hint=f"set catalogs.{catalog.name}.warehouse in lifecycle.yaml"
        )
    found = {
        "type": "jdbc",
        "uri": url,
        "jdbc.schema-version": "V1",
        "jdbc.ApplicationName": f"artemis-{purpose}-spark",
        "jdbc.tcpKeepAlive": "true",
        "jdbc.connectTimeout": options.get("jdbc.connectTimeout", "10"),
        # A server that vanished must not hold a commit forever; the result of the commit is looked up afterward.
        "jdbc.socketTimeout": options.get("jdbc.socketTimeout", "120"),
        # Iceberg's pool opens a connection anew after these, too: a server that is restarted ends all connections.
        "retryable_status_codes": options.get("retryable_status_codes", "57P01,57P02,57P03"),
        "clients": options.get("clients", _CLIENTS[purpose]),
    }
    if user is not None:
        found["jdbc.user"] = user
    if password is not None:
        found["jdbc.password"] = password
    return found


def _rest(catalog: deployment.Catalog, options: dict[str, str], purpose: Purpose) -> dict[str, str]:
    signed = _keys(options, "rest") if catalog.is_signed else {}
    return {"type": "rest", "uri": require_uri(catalog), **signed}


def _hive(catalog: deployment.Catalog, options: dict[str, str], purpose: Purpose) -> dict[str, str]:
    return {"type": "hive", "uri": require_uri(catalog)}


def _glue(catalog: deployment.Catalog, options: dict[str, str], purpose: Purpose) -> dict[str, str]:
    region = options.get("client.region") or options.get("glue.region")
    return {"type": "glue", **({"client.region": region} if region else {}), **_credentials(options)}


def _adls(catalog: deployment.Catalog, options: dict[str, str]) -> dict[str, str]:
    """Return the `adls.…` keys of pyiceberg as Iceberg's Java names them, by the hosts of the catalog's places."""
    found = {}
    if "adls.account-name" in options and "adls.account-key" in options:
        found["adls.auth.shared-key.account.name"] = options["adls.account-name"]
        found["adls.auth.shared-key.account.key"] = options["adls.account-key"]
    azure = StoreSettings.from_catalog(catalog).azure
    authorities = {one_authority("abfss", split(place).authority) for place in catalog.places}
    hosts = {each.rpartition("@")[2] for each in authorities}
    for host in hosts | {host.replace(".dfs.", ".blob.") for host in hosts}:
        if azure.authority is not None:
            found[f"adls.connection-string.{host}"] = azure.endpoint(host)
        if azure.sas_token is not None:
            found[f"adls.sas-token.{host}"] = azure.sas_token
    return found


def _keys(options: dict[str, str], service: str) -> dict[str, str]:
    """Return the keys in `client.…`, which pyiceberg uses for all of AWS, as Iceberg's Java names them for `service`;
    none if `service` has its own."""
    if f"{service}.access-key-id" in options:
        return {}
    names = ("access-key-id", "secret-access-key", "session-token")
    return {f"{service}.{name}": options[f"client.{name}"] for name in names if f"client.{name}" in options}


def _credentials(options: dict[str, str]) -> dict[str, str]:
    """Return the credentials for Glue as pyiceberg reads them, in the only form that Iceberg's Java client accepts."""
    if "client.credentials-provider" in options:
        return {}
    given = {
        name: found
        for name in ("profile-name", "access-key-id", "secret-access-key", "session-token")
        if (found := options.get(f"glue.{name}") or options.get(f"client.{name}"))
    }
    if not given:
        return {}
    provider = "client.credentials-provider"
    return {provider: GIVEN_CREDENTIALS, **{f"{provider}.{name}": value for name, value in given.items()}}


_SPARK_TYPES: dict[str, Callable[[deployment.Catalog, dict[str, str], Purpose], dict[str, str]]] = {
    "sql": _jdbc,
    "rest": _rest,
    "hive": _hive,
    "glue": _glue,
}


# --- ingest -----------------------------------------------------------------------------------------------------------
# A pyiceberg catalog for writers with a separate connection pool, so that lifecycle work and ingest cannot exhaust
# each other's pool.


def ingest_catalog(catalog: deployment.Catalog) -> PyIcebergCatalog:
    """Return the catalog for writers: pyiceberg's own of that type; on Postgres with the ingest pool."""
    return pyiceberg_catalog(catalog, purpose="ingest")


def pyiceberg_catalog(catalog: deployment.Catalog, *, purpose: Purpose = "lifecycle") -> PyIcebergCatalog:
    """Return the catalog as pyiceberg's own type, with the pool of `purpose`. Raises OperationsUnavailable;
    ConfigError."""
    from pyiceberg.catalog import load_catalog

    from artemis_lifecycle.catalogs.pyiceberg_gate import GatedSqlCatalog

    properties = pyiceberg_properties(catalog)
    if catalog.type != "sql":
        return load_catalog(catalog.name, **properties)
    engine = connect(require_uri(catalog), purpose=purpose)
    ensure_tables(engine)

    return GatedSqlCatalog(catalog.name, engine, **properties)
