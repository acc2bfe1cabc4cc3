"""Publishes a table's metadata file to a SQL catalog, by compare-and-swap in the caller's transaction.

Only the handoff commits to the cold catalog, and its journal row belongs to the same transaction.
"""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.catalogs.entry import CatalogEntry
from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.catalogs.pointer import conflict, require_storable, swap
from artemis_lifecycle.catalogs.tables import iceberg_namespace_properties, iceberg_tables, is_v0


def publish(
    connection: Connection, catalog: str, table: str, *, expected_location: str | None, new_location: str
) -> CatalogEntry:
    """Point `table` of the catalog named `catalog` to `new_location` if it points to `expected_location` (None: if it
    does not exist). Also adds the namespace's row. The caller commits.

    Raises CommitConflict if the table points elsewhere; BadInput for names and locations that no row can store.
    """
    identifier = parse(table)
    namespace, name = identifier.row
    require_storable(identifier, new_location)
    connection.execute(
        upsert(iceberg_namespace_properties)
        .values(catalog_name=catalog, namespace=namespace, property_key="exists", property_value="true")
        .on_conflict_do_nothing()
    )
    if expected_location is not None:
        swap(connection, catalog, identifier, expected_location, new_location)
        return CatalogEntry(catalog, identifier, new_location, expected_location)
    done = connection.execute(
        upsert(iceberg_tables)
        .values(
            catalog_name=catalog,
            table_namespace=namespace,
            table_name=name,
            metadata_location=new_location,
            **({} if is_v0(connection) else {"iceberg_type": "TABLE"}),
        )
        .on_conflict_do_nothing()
        .returning(iceberg_tables.c.metadata_location)
    ).first()
    if done is None:
        raise conflict(connection, catalog, identifier, None, new_location)
    return CatalogEntry(catalog, identifier, new_location)
