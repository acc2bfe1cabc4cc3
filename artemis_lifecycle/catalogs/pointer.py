"""The pointer of a table in a SQL catalog on Postgres: one row, moved by compare-and-swap.

Belongs here: the one statement that moves it, and what is known when the connection breaks. Does not belong here: what
the pointer may be moved to (`lifecycle/pointer.py`), or commits through Iceberg's core (`commit`), whose JdbcCatalog
runs the same statement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from sqlalchemy import ColumnElement, Connection, Engine, String, insert, literal_column, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_exponential

from artemis_lifecycle.catalogs.entry import CatalogEntry
from artemis_lifecycle.catalogs.gate.passes import GatedRow, require_pass
from artemis_lifecycle.catalogs.identifier import Identifier
from artemis_lifecycle.catalogs.tables import IS_TABLE, iceberg_tables
from artemis_lifecycle.errors import (
    BadInput,
    CommitConflict,
    CommitStateUnknown,
    OperationsUnavailable,
    Refused,
)
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.roles import refusing

_LONGEST_LOCATION = 1000
_STATUS = text("SELECT pg_xact_status(CAST(:xid AS XID8))")


def swap(connection: Connection, catalog: str, name: Identifier, expected_location: str, new_location: str) -> str:
    """Point the table to `new_location` if it points to `expected_location`, in the caller's transaction. Return the
    transaction's id.

    Two such statements on one row wait for each other, and the second compares what the first committed: so
    READ COMMITTED is enough. Raises CommitConflict if the table points elsewhere, or does not exist.
    """
    at = row_of(catalog, name)
    xid: str | None = connection.execute(
        update(iceberg_tables)
        .where(*at, iceberg_tables.c.metadata_location == expected_location, IS_TABLE)
        .values(metadata_location=new_location, previous_metadata_location=expected_location)
        .returning(literal_column("pg_current_xact_id()::text", String))
    ).scalar_one_or_none()
    if xid is None:
        raise conflict(connection, catalog, name, expected_location, new_location)
    return xid


def conflict(
    connection: Connection, catalog: str, name: Identifier, expected_location: str | None, new_location: str
) -> CommitConflict:
    """Return the error for a table that does not point to `expected_location` (None: for one that exists)."""
    query = select(iceberg_tables.c.metadata_location).where(*row_of(catalog, name))
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
    engine: Engine,
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
    engine: Engine, catalog: str, name: Identifier, location: str, summaries: Sequence[Mapping[str, str]]
) -> None:
    """Add the row of a table that is in no catalog, past the lineage gate if there is one. `summaries` are those of
    snapshots that are new under this name. Raises Refused, BadInput, LineageRejected."""
    require_storable(name, location)
    namespace, table = name.row
    require_pass(engine, GatedRow(catalog, *name.row), summaries, base=None, location=location)
    values = {"catalog_name": catalog, "table_namespace": namespace, "table_name": table, "iceberg_type": "TABLE"}
    try:
        with around("catalog.register"), _refused(name), engine.begin() as connection:
            connection.execute(insert(iceberg_tables).values(**values, metadata_location=location))
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


def _settle(engine: Engine, xid: str, name: Identifier, location: str, broken: OperationsUnavailable) -> None:
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


def _final_status(engine: Engine, xid: str) -> str | None:
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


def row_of(catalog: str, name: Identifier) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for the row of a table."""
    namespace, table = name.row
    columns = iceberg_tables.c
    return (columns.catalog_name == catalog, columns.table_namespace == namespace, columns.table_name == table)
