"""The pointer of a table in a SQL catalog on Postgres: one row, moved by compare-and-swap as by JdbcCatalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.schema import CreateTable
from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_exponential

from artemis_lifecycle import escaping
from artemis_lifecycle.catalogs.gate.rules import GatedRow, require_pass
from artemis_lifecycle.catalogs.identifier import CatalogEntry, Identifier, parse
from artemis_lifecycle.errors import BadInput, CommitConflict, CommitStateUnknown, OperationsUnavailable, Refused
from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.locks import starters_lock
from artemis_lifecycle.operations.roles import refusing

# --- tables -----------------------------------------------------------------------------------------------------------
# The two tables of a SQL catalog on Postgres, in the schema that Iceberg's JdbcCatalog (schema version V1) and
# pyiceberg's SqlCatalog share. They are in the first schema of the connection's search path, where both look for
# them.

_log = escaping.logger(__name__)
_metadata = sa.MetaData()

iceberg_tables = sa.Table(
    "iceberg_tables",
    _metadata,
    sa.Column("catalog_name", sa.String(255), primary_key=True),
    sa.Column("table_namespace", sa.String(255), primary_key=True),
    sa.Column("table_name", sa.String(255), primary_key=True),
    sa.Column("metadata_location", sa.String(1000)),
    sa.Column("previous_metadata_location", sa.String(1000)),
    sa.Column("iceberg_type", sa.String(5)),
)

iceberg_namespace_properties = sa.Table(
    "iceberg_namespace_properties",
    _metadata,
    sa.Column("catalog_name", sa.String(255), primary_key=True),
    sa.Column("namespace", sa.String(255), primary_key=True),
    sa.Column("property_key", sa.String(255), primary_key=True),
    sa.Column("property_value", sa.String(1000)),
)

publications = sa.table(
    "publications",
    *(sa.column(name, sa.String) for name in ("catalog_name", "table_identifier", "new_location", "publication_id")),
    schema="artemis_cold",
)
"""What handoffs published in cold catalogs (`guard.py`)."""

POINTER = tuple(column for column in iceberg_tables.c if column.name != "iceberg_type")
"""The columns of every schema version: V0 has no `iceberg_type`."""

# Of V0 too, whose rows are all tables, as those of V1 without a type are.
ICEBERG_TYPE: sa.ColumnElement[str] = sa.func.coalesce(
    sa.literal_column("to_jsonb(iceberg_tables) ->> 'iceberg_type'"), "TABLE"
)
IS_TABLE = ICEBERG_TYPE == "TABLE"


def can_read_publications(connection: sa.Connection) -> bool:
    """Return False before the first handoff."""
    probe = sa.text(
        "SELECT EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = "
        "'artemis_cold' AND c.relname = 'publications' AND has_schema_privilege(n.oid, 'USAGE') "
        "AND has_table_privilege(c.oid, 'SELECT'))"
    )
    return bool(connection.execute(probe).scalar_one())


def is_v0(connection: sa.Connection) -> bool:
    """Whether the catalog has `iceberg_tables` without `iceberg_type`: Iceberg's schema version V0."""
    there, typed = connection.execute(_PROBE).one()[:2]
    return bool(there) and not typed


def has_tables(engine: sa.Engine) -> bool:
    """Whether the catalog has both tables, of schema version V1."""
    with engine.connect() as connection:
        return all(connection.execute(_PROBE).one())


_PROBE = sa.text(
    "SELECT to_regclass('iceberg_tables') IS NOT NULL, EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = "
    "to_regclass('iceberg_tables') AND attname = 'iceberg_type' AND NOT attisdropped), "
    "to_regclass('iceberg_namespace_properties') IS NOT NULL"
)


def ensure_tables(engine: sa.Engine, *, upgrade: bool = False) -> None:
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
            connection.execute(sa.text("ALTER TABLE iceberg_tables ADD COLUMN IF NOT EXISTS iceberg_type VARCHAR(5)"))
    _log.warning("Tables of a SQL catalog were %s in %s", "upgraded" if there else "made", engine.url.database)


_LONGEST_LOCATION = 1000
_STATUS = sa.text("SELECT pg_xact_status(CAST(:xid AS XID8))")


def swap(connection: sa.Connection, catalog: str, name: Identifier, expected_location: str, new_location: str) -> str:
    """Point the table to `new_location` if it points to `expected_location`, in the caller's transaction. Return the
    transaction's id.

    Two such statements on one row wait for each other, and the second compares what the first committed: so
    READ COMMITTED is enough. Raises CommitConflict if the table points elsewhere, or does not exist.
    """
    at = row_of(catalog, name)
    xid: str | None = connection.execute(
        sa.update(iceberg_tables)
        .where(*at, iceberg_tables.c.metadata_location == expected_location, IS_TABLE)
        .values(metadata_location=new_location, previous_metadata_location=expected_location)
        .returning(sa.literal_column("pg_current_xact_id()::text", sa.String))
    ).scalar_one_or_none()
    if xid is None:
        raise conflict(connection, catalog, name, expected_location, new_location)
    return xid


def conflict(
    connection: sa.Connection, catalog: str, name: Identifier, expected_location: str | None, new_location: str
) -> CommitConflict:
    """Return the error for a table that does not point to `expected_location` (None: for one that exists)."""
    query = sa.select(iceberg_tables.c.metadata_location).where(*row_of(catalog, name))
    actual = connection.execute(query).scalar_one_or_none()
    return CommitConflict(
        f"Catalog {catalog} has {actual or 'no such table'}, not {expected_location or 'no such table'}",
        table=str(name),
        path=new_location,
        untouched="the catalog's row",
        hint="run the step again: it starts from the catalog's current state",
    )


def require_storable(name: Identifier, location: str) -> None:
    """Raise BadInput for a location that the catalog's column cannot store."""
    if len(location) > _LONGEST_LOCATION:
        raise BadInput(
            f"The metadata location has {len(location)} characters; the catalog's column takes {_LONGEST_LOCATION}",
            table=str(name),
            path=location,
            untouched="the catalog",
            hint="use a shorter warehouse path",
        )


def compare_and_swap(
    engine: sa.Engine,
    catalog: str,
    name: Identifier,
    expected_location: str,
    new_location: str,
    summaries: Sequence[Mapping[str, str]],
) -> CatalogEntry:
    """`swap` in a transaction of its own, past the lineage gate if the database has one. `summaries` are those of the
    new snapshots.

    If the connection breaks before the transaction is to end, Postgres rolls it back: OperationsUnavailable, and the
    pointer did not move. If it breaks in the commit, Postgres is asked for the transaction's state: committed returns,
    rolled back raises OperationsUnavailable, and only without an answer it is CommitStateUnknown.

    Raises also BadInput, CommitConflict, LineageRejected; Refused for a row that the login may not change,
    or a swap that a trigger refuses.
    """
    require_storable(name, new_location)
    if new_location == expected_location:
        raise BadInput("The new metadata location is the expected one", table=str(name), hint="write a new file")
    require_pass(engine, GatedRow(catalog, *name.row), summaries, base=expected_location, location=new_location)
    with engine.connect() as connection, around("catalog.swap"):
        with _refused(name):
            xid = swap(connection, catalog, name, expected_location, new_location)
        try:
            connection.commit()
        except OperationsUnavailable as broken:
            _settle(engine, xid, name, new_location, broken)
    return CatalogEntry(catalog, name, new_location, expected_location)


def register(
    engine: sa.Engine, catalog: str, name: Identifier, location: str, summaries: Sequence[Mapping[str, str]]
) -> None:
    """Add the row of a table that is in no catalog, past the lineage gate if there is one. `summaries` are those of
    snapshots that are new under this name. Raises Refused, BadInput, LineageRejected."""
    require_storable(name, location)
    namespace, table = name.row
    require_pass(engine, GatedRow(catalog, *name.row), summaries, base=None, location=location)
    values = {"catalog_name": catalog, "table_namespace": namespace, "table_name": table, "iceberg_type": "TABLE"}
    try:
        with around("catalog.register"), _refused(name), engine.begin() as connection:
            connection.execute(sa.insert(iceberg_tables).values(**values, metadata_location=location))
    except IntegrityError as error:
        raise name_taken(name) from error


def name_taken(name: Identifier, kind: str = "table or view") -> Refused:
    """Return the error for a table that cannot get a name."""
    what = f"The catalog has a {kind} with the name {name}"
    return Refused(what, table=str(name), untouched="the catalog and all files", hint="choose another name (--as)")


def _refused(name: Identifier) -> AbstractContextManager[None]:
    return refusing(
        "The catalog's database refuses the row",
        table=str(name),
        untouched="the table",
        hint="check the login's rights (docs/roles.md) and the lineage gate (artemis gate status)",
    )


def _settle(engine: sa.Engine, xid: str, name: Identifier, location: str, broken: OperationsUnavailable) -> None:
    """Return if the transaction was committed."""
    try:
        status = _final_status(engine, xid)
    except (OperationsUnavailable, DBAPIError):
        # A server that took over may not know the transaction's number, which is an error.
        status = None
    if status == "committed":
        return
    if status == "aborted":
        raise broken
    raise CommitStateUnknown(
        f"The connection broke in the swap, and whether it happened is unknown: {broken.what}",
        table=str(name),
        path=location,
        untouched="all data files",
        hint="read the table again when the catalog answers: the swap happened if its metadata log has this file, or "
        "it is the current one",
    ) from broken


def _final_status(engine: sa.Engine, xid: str) -> str | None:
    def status() -> str | None:
        with engine.connect() as connection:
            found = connection.execute(_STATUS, {"xid": xid}).scalar_one()
        return None if found is None else str(found)

    # The server may not have noticed yet that its client is gone.
    waiting = Retrying(
        retry=retry_if_result(lambda found: found == "in progress"),
        stop=stop_after_attempt(8),
        wait=wait_exponential(0.05, max=2),
        retry_error_callback=lambda state: None,
    )
    return waiting(status)


def add_namespace(connection: sa.Connection, catalog: str, namespace: str) -> None:
    """Add the namespace, as a row names it, if it is not there. The caller commits."""
    row = {"catalog_name": catalog, "namespace": namespace, "property_key": "exists", "property_value": "true"}
    connection.execute(db.new(iceberg_namespace_properties, row))


def row_of(catalog: str, name: Identifier) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions for the row of a table."""
    namespace, table = name.row
    columns = iceberg_tables.c
    return (columns.catalog_name == catalog, columns.table_namespace == namespace, columns.table_name == table)


# --- cold -------------------------------------------------------------------------------------------------------------
# Publishes a table's metadata file to a SQL catalog, by compare-and-swap in the caller's transaction.
#
# Only the handoff commits to the cold catalog, and its journal row belongs to the same transaction.


def publish(
    connection: sa.Connection, catalog: str, table: str, *, expected_location: str | None, new_location: str
) -> CatalogEntry:
    """Point `table` of the catalog named `catalog` to `new_location` if it points to `expected_location` (None: if it
    does not exist). Also adds the namespace's row. The caller commits.

    Raises CommitConflict if the table points elsewhere; BadInput for names and locations that no row can store.
    """
    identifier = parse(table)
    namespace, name = identifier.row
    require_storable(identifier, new_location)
    add_namespace(connection, catalog, namespace)
    if expected_location is not None:
        swap(connection, catalog, identifier, expected_location, new_location)
        return CatalogEntry(catalog, identifier, new_location, expected_location)
    row = {"catalog_name": catalog, "table_namespace": namespace, "table_name": name, "metadata_location": new_location}
    row |= {} if is_v0(connection) else {"iceberg_type": "TABLE"}
    done = connection.execute(db.new(iceberg_tables, row).returning(iceberg_tables.c.metadata_location)).first()
    if done is None:
        raise conflict(connection, catalog, identifier, None, new_location)
    return CatalogEntry(catalog, identifier, new_location)
