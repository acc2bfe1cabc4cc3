"""The two tables of a SQL catalog on Postgres, in the schema that Iceberg's JdbcCatalog (schema version V1) and
pyiceberg's SqlCatalog share. They are in the first schema of the connection's search path, where both look for them."""

from __future__ import annotations

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    column,
    func,
    literal_column,
    table,
    text,
)
from sqlalchemy.schema import CreateTable

from artemis_lifecycle import escaping
from artemis_lifecycle.operations.locks import starters_lock
from artemis_lifecycle.operations.roles import refusing

_log = escaping.logger(__name__)
_metadata = MetaData()

iceberg_tables = Table(
    "iceberg_tables",
    _metadata,
    Column("catalog_name", String(255), primary_key=True),
    Column("table_namespace", String(255), primary_key=True),
    Column("table_name", String(255), primary_key=True),
    Column("metadata_location", String(1000)),
    Column("previous_metadata_location", String(1000)),
    Column("iceberg_type", String(5)),
)

iceberg_namespace_properties = Table(
    "iceberg_namespace_properties",
    _metadata,
    Column("catalog_name", String(255), primary_key=True),
    Column("namespace", String(255), primary_key=True),
    Column("property_key", String(255), primary_key=True),
    Column("property_value", String(1000)),
)

publications = table(
    "publications",
    *(column(name, String) for name in ("catalog_name", "table_identifier", "new_location", "publication_id")),
    schema="artemis_cold",
)
"""What handoffs published in cold catalogs (`guard.py`)."""

POINTER = tuple(column for column in iceberg_tables.c if column.name != "iceberg_type")
"""The columns of every schema version: V0 has no `iceberg_type`."""

# Of V0 too, whose rows are all tables, as those of V1 without a type are.
ICEBERG_TYPE: ColumnElement[str] = func.coalesce(literal_column("to_jsonb(iceberg_tables) ->> 'iceberg_type'"), "TABLE")
IS_TABLE = ICEBERG_TYPE == "TABLE"


def can_read_publications(connection: Connection) -> bool:
    """Return False before the first handoff."""
    probe = text(
        "SELECT EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = "
        "'artemis_cold' AND c.relname = 'publications' AND has_schema_privilege(n.oid, 'USAGE') "
        "AND has_table_privilege(c.oid, 'SELECT'))"
    )
    return bool(connection.execute(probe).scalar_one())


def is_v0(connection: Connection) -> bool:
    """Whether the catalog has `iceberg_tables` without `iceberg_type`: Iceberg's schema version V0."""
    there, typed = connection.execute(_PROBE).one()[:2]
    return bool(there) and not typed


def has_tables(engine: Engine) -> bool:
    """Whether the catalog has both tables, of schema version V1."""
    with engine.connect() as connection:
        return all(connection.execute(_PROBE).one())


_PROBE = text(
    "SELECT to_regclass('iceberg_tables') IS NOT NULL, EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = "
    "to_regclass('iceberg_tables') AND attname = 'iceberg_type' AND NOT attisdropped), "
    "to_regclass('iceberg_namespace_properties') IS NOT NULL"
)


def ensure_tables(engine: Engine, *, upgrade: bool = False) -> None:
    """Create the tables that do not exist; `upgrade` V0 to V1, which only `artemis init` and the gate do. Otherwise
    nothing is written, and no right to create is needed."""
    with engine.connect() as connection:
        there, typed, has_namespaces = connection.execute(_PROBE).one()
    if there and has_namespaces and (typed or not upgrade):
        return
    allowed = refusing(
        f"Login {engine.url.username} may not {'alter' if there else 'make'} the catalog's tables",
        hint="their owner runs: artemis init; or says: "
        + (
            "ALTER TABLE iceberg_tables ADD COLUMN iceberg_type VARCHAR(5)"
            if there and has_namespaces
            else f"GRANT CREATE ON SCHEMA public TO {engine.url.username}"
        ),
    )
    with allowed, engine.begin() as connection:
        starters_lock(connection, "artemis-catalog-tables")
        for each in (iceberg_tables, iceberg_namespace_properties):
            connection.execute(CreateTable(each, if_not_exists=True))
        if upgrade:
            connection.execute(text("ALTER TABLE iceberg_tables ADD COLUMN IF NOT EXISTS iceberg_type VARCHAR(5)"))
    _log.warning("Tables of a SQL catalog were %s in %s", "upgraded" if there else "made", engine.url.database)
