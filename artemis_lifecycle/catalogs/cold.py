"""Publishes a table's metadata file to a SQL catalog, by compare-and-swap in the caller's transaction.

Only the handoff commits to the cold catalog, and its journal row belongs to the same transaction.
"""

from __future__ import annotations

from sqlalchemy import Connection, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.catalogs.entry import CatalogEntry
from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.catalogs.tables import IS_TABLE, iceberg_namespace_properties, iceberg_tables
from artemis_lifecycle.errors import BadInput, CommitConflict

_LONGEST_LOCATION = 1000


def publish(
    connection: Connection, catalog: str, table: str, *, expected_location: str | None, new_location: str
) -> CatalogEntry:
    """Point `table` of the catalog named `catalog` to `new_location` if it points to `expected_location` (None: if it
    does not exist). Also adds the namespace's row. The caller commits.

    Raises CommitConflict if the table points elsewhere; BadInput for names and locations that no row can store.
    """
    identifier = parse(table)
    namespace, name = identifier.row
    if len(new_location) > _LONGEST_LOCATION:
        raise BadInput(
            f"The metadata location has {len(new_location)} characters; the catalog's column takes {_LONGEST_LOCATION}",
            table=table,
            path=new_location,
            untouched="the catalog",
            hint="use a shorter warehouse path",
        )
    connection.execute(
        upsert(iceberg_namespace_properties)
        .values(catalog_name=catalog, namespace=namespace, property_key="exists", property_value="true")
        .on_conflict_do_nothing()
    )
    key = (
        iceberg_tables.c.catalog_name == catalog,
        iceberg_tables.c.table_namespace == namespace,
        iceberg_tables.c.table_name == name,
    )
    if expected_location is None:
        done = connection.execute(
            upsert(iceberg_tables)
            .values(
                catalog_name=catalog,
                table_namespace=namespace,
                table_name=name,
                metadata_location=new_location,
                iceberg_type="TABLE",
            )
            .on_conflict_do_nothing()
            .returning(iceberg_tables.c.metadata_location)
        ).first()
    else:
        done = connection.execute(
            update(iceberg_tables)
            .where(*key, iceberg_tables.c.metadata_location == expected_location, IS_TABLE)
            .values(metadata_location=new_location, previous_metadata_location=expected_location)
            .returning(iceberg_tables.c.metadata_location)
        ).first()
    if done is None:
        actual = connection.execute(select(iceberg_tables.c.metadata_location).where(*key)).scalar_one_or_none()
        raise CommitConflict(
            f"Catalog {catalog} has {actual or 'no such table'}, not {expected_location or 'no such table'}",
            table=table,
            path=new_location,
            untouched="the catalog's row",
            hint="run the handoff again: it starts from the catalog's current state",
        )
    return CatalogEntry(catalog, identifier, new_location, expected_location)
