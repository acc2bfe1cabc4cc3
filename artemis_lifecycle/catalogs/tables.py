"""The two tables of a SQL catalog on Postgres, in the schema that Iceberg's JdbcCatalog (schema version V1) and
pyiceberg's SqlCatalog share. They are in the first schema of the connection's search path, where both look for them."""

from __future__ import annotations

from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, column, table, text
from sqlalchemy.schema import CreateTable

from artemis_lifecycle.operations.locks import starters_lock

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
    "publications", column("catalog_name", String), column("table_identifier", String), schema="artemis_cold"
)
"""What handoffs published in cold catalogs (`guard.py`)."""

# V1: a row is a table or a view, or is older than views.
IS_TABLE = (iceberg_tables.c.iceberg_type == "TABLE") | iceberg_tables.c.iceberg_type.is_(None)


def can_read_publications(connection: Connection) -> bool:
    """Return False before the first handoff."""
    probe = text(
        "SELECT EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = "
        "'artemis_cold' AND c.relname = 'publications' AND has_schema_privilege(n.oid, 'USAGE') "
        "AND has_table_privilege(c.oid, 'SELECT'))"
    )
    return bool(connection.execute(probe).scalar_one())


def has_tables(engine: Engine) -> bool:
    """Return True if the tables exist, in version V1."""
    probe = text(
        "SELECT to_regclass('iceberg_namespace_properties') IS NOT NULL AND EXISTS (SELECT 1 FROM pg_attribute WHERE "
        "attrelid = to_regclass('iceberg_tables') AND attname = 'iceberg_type' AND NOT attisdropped)"
    )
    with engine.connect() as connection:
        return bool(connection.execute(probe).scalar_one())


def ensure_tables(engine: Engine) -> None:
    """Create the tables, or migrate V0 to V1. If they exist, nothing is written, and no right to create is needed."""
    if has_tables(engine):
        return
    with engine.begin() as connection:
        starters_lock(connection, "artemis-catalog-tables")
        for each in (iceberg_tables, iceberg_namespace_properties):
            connection.execute(CreateTable(each, if_not_exists=True))
        connection.execute(text("ALTER TABLE iceberg_tables ADD COLUMN IF NOT EXISTS iceberg_type VARCHAR(5)"))
