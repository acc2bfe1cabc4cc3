"""Makes the cold catalog read-only in the database: triggers on the catalog's rows, which only a handoff passes, in the
transaction that records its publication.

The triggers are in the database of the cold catalog's rows. In schema `artemis_cold`, `catalogs` lists the guarded
catalogs, `publications` has a row for every commit of a handoff, and `restorations` for every time that the guard was
found broken. A row of `publications` permits only its own transaction and its own location. Triggers get lost: a
restore omits them, an owner disables them. So the guard is verified at every open, and again in the transaction of each
publication. It protects the owner of the database from accidents, not from malice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from artemis_lifecycle import escaping
from artemis_lifecycle.catalogs.identifier import CatalogEntry, parse
from artemis_lifecycle.catalogs.sql import publish
from artemis_lifecycle.catalogs.triggers import Condition, Function, Parts, Problem, Trigger, installing, worst
from artemis_lifecycle.errors import Busy, ConfigError, Refused
from artemis_lifecycle.operations.roles import ANALYST, INGEST, LIFECYCLE, role_statements

VERSION = 3
"""The version of the statements below; a catalog with an older guard is upgraded."""

_log = escaping.logger(__name__)

_TABLES = ("iceberg_tables", "iceberg_namespace_properties")
_CATALOG_ROWS = f"ON TABLE {', '.join(_TABLES)}"
_GRANTS = {
    # Writers of tables write rows of the live catalog; the triggers protect the cold one's rows.
    INGEST: (f"SELECT, INSERT, UPDATE, DELETE {_CATALOG_ROWS}",),
    LIFECYCLE: (
        f"SELECT, INSERT, UPDATE, DELETE {_CATALOG_ROWS}",
        "USAGE ON SCHEMA artemis_cold",
        "SELECT ON TABLE artemis_cold.catalogs, artemis_cold.restorations",
        "SELECT, INSERT ON TABLE artemis_cold.publications",
    ),
    ANALYST: (f"SELECT {_CATALOG_ROWS}",),
}

_REFUSE = """
    BEGIN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = 'catalog ' || refused || ' is the cold tier, which only a handoff writes to: ' || what
                || ' is refused',
            HINT = 'write to catalog ' || (SELECT live_catalog FROM catalogs WHERE catalog_name = refused);
    END """
# `xmin` shows which transaction wrote the row. The column alone could be set by whoever inserts it, and a row restored
# from another server's dump has a number that this server has not reached yet.
_THIS_TRANSACTION = "p.transaction = pg_current_xact_id() AND p.xmin = pg_current_xact_id()::xid"
_GUARD_TABLES = f"""
    BEGIN
        IF TG_OP <> 'INSERT' AND EXISTS (SELECT FROM catalogs WHERE catalog_name = OLD.catalog_name)
           AND (TG_OP = 'DELETE' OR (OLD.catalog_name, OLD.table_namespace, OLD.table_name)
                IS DISTINCT FROM (NEW.catalog_name, NEW.table_namespace, NEW.table_name)) THEN
            PERFORM refuse(OLD.catalog_name, CASE TG_OP WHEN 'DELETE' THEN 'dropping' ELSE 'renaming' END
                || ' table ' || OLD.table_namespace || '.' || OLD.table_name);
        END IF;
        IF TG_OP <> 'DELETE' AND EXISTS (SELECT FROM catalogs WHERE catalog_name = NEW.catalog_name)
           AND NOT EXISTS (
               SELECT FROM publications AS p
               WHERE {_THIS_TRANSACTION} AND p.catalog_name = NEW.catalog_name
                 AND p.table_identifier = NEW.table_namespace || '.' || NEW.table_name
                 AND p.new_location = NEW.metadata_location
           ) THEN
            PERFORM refuse(NEW.catalog_name, 'a commit to table ' || NEW.table_namespace || '.' || NEW.table_name);
        END IF;
        RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    END """
_GUARD_NAMESPACES = f"""
    BEGIN
        IF TG_OP <> 'INSERT' AND EXISTS (SELECT FROM catalogs WHERE catalog_name = OLD.catalog_name) THEN
            PERFORM refuse(OLD.catalog_name, 'a change of namespace ' || OLD.namespace);
        END IF;
        IF TG_OP <> 'DELETE' AND EXISTS (SELECT FROM catalogs WHERE catalog_name = NEW.catalog_name)
           AND NOT EXISTS (
               SELECT FROM publications AS p
               WHERE {_THIS_TRANSACTION} AND p.catalog_name = NEW.catalog_name
                 AND starts_with(p.table_identifier, NEW.namespace || '.')
           ) THEN
            PERFORM refuse(NEW.catalog_name, 'a change of namespace ' || NEW.namespace);
        END IF;
        RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    END """
_GUARD_ALL = """
    BEGIN
        PERFORM refuse((SELECT min(catalog_name) FROM catalogs), 'emptying ' || TG_TABLE_NAME);
        RETURN NULL;
    END """


_PARTS = Parts(
    schema="artemis_cold",
    functions=(
        Function("refuse", "refused TEXT, what TEXT", "text, text", "void", _REFUSE),
        Function("guard_tables", "", "", "trigger", _GUARD_TABLES),
        Function("guard_namespaces", "", "", "trigger", _GUARD_NAMESPACES),
        Function("guard_all", "", "", "trigger", _GUARD_ALL),
    ),
    triggers=(
        Trigger("artemis_cold", _TABLES[0], "guard_tables", 31),
        Trigger("artemis_cold", _TABLES[1], "guard_namespaces", 31),
        *(Trigger("artemis_cold_all", table, "guard_all", 34) for table in _TABLES),
    ),
    # A row of `publications` passes the guard.
    own_tables=("catalogs", "publications"),
    roles=(INGEST, ANALYST),
)
_STATEMENTS = (
    "CREATE SCHEMA IF NOT EXISTS artemis_cold",
    "CREATE TABLE IF NOT EXISTS artemis_cold.catalogs "
    "(catalog_name TEXT PRIMARY KEY, live_catalog TEXT NOT NULL, version INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS artemis_cold.publications (publication_id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY "
    "KEY, catalog_name TEXT NOT NULL, table_identifier TEXT NOT NULL, plan_id TEXT NOT NULL, expected_location TEXT, "
    "new_location TEXT NOT NULL, published_by TEXT NOT NULL DEFAULT session_user, "
    "published_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), transaction XID8 NOT NULL DEFAULT "
    "pg_current_xact_id())",
    "CREATE INDEX IF NOT EXISTS publications_of_a_transaction ON artemis_cold.publications (transaction)",
    "CREATE TABLE IF NOT EXISTS artemis_cold.restorations (catalog_name TEXT NOT NULL, found TEXT NOT NULL, "
    "restored_by TEXT NOT NULL DEFAULT session_user, restored_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp())",
    *_PARTS.statements(),
)

_OUTDATED = "version"


@dataclass(frozen=True)
class GuardRestoration:
    """A time at which the guard was found broken and was restored: what was found, and by which login."""

    found: str
    restored_by: str
    restored_at: datetime


@dataclass(frozen=True)
class GuardState:
    """The state of the guard of one cold catalog. `in_use` means that the catalog has rows, or had a handoff. Before
    its first use there is nothing to guard, and a missing guard is not an error. `restorations` are the newest ones,
    newest first, if the role may read them."""

    catalog: str
    in_use: bool
    problems: tuple[Problem, ...] = ()
    restorations: tuple[GuardRestoration, ...] = ()

    @property
    def condition(self) -> Condition:
        """The worst condition of its parts: missing before disabled before altered; `present` if every part is
        intact."""
        return worst(self.problems)

    def __str__(self) -> str:
        return "; ".join(map(str, self.problems)) or "present"


def guard_state(connection: sa.Connection, catalog: str) -> GuardState:
    """Return the current state of the guard of `catalog`. Changes nothing, and needs no right except to log in.

    `connection` is to the database that has the catalog's rows.
    """
    return _read(connection, catalog).state


def is_guarded(engine: sa.Engine, catalog: str) -> bool:
    """Whether the guard of `catalog` is intact. Changes nothing."""
    with engine.connect() as connection:
        return guard_state(connection, catalog).condition == "present"


def ensure_guard(engine: sa.Engine, catalog: str, live_catalog: str) -> None:
    """Make the rows of `catalog` refuse every writer except handoffs; errors tell writers to use `live_catalog`.

    `engine` is for the database with the catalog's rows, whose tables must exist. If the guard is intact, nothing is
    written, and no right to create one is needed. Raises Refused for a role that may not restore it; Busy while other
    sessions keep the tables locked.
    """
    with engine.connect() as connection:
        if _stands(_read(connection, catalog), live_catalog):
            return

    def refused(owner: str) -> Refused:
        with engine.connect() as connection:
            found = guard_state(connection, catalog)
        return Refused(
            f"The guard of cold catalog {catalog} is {found.condition}, and this role may not restore it: {found}",
            untouched="the cold catalog, to which any engine can currently write",
            hint=f"run any artemis command, such as artemis tables, as {owner}, who owns iceberg_tables, or as a "
            "superuser: it restores the guard",
        )

    busy = Busy(
        f"The guard of cold catalog {catalog} cannot be restored: its tables are locked by others",
        untouched="the cold catalog",
        hint="try again, or end the transactions that keep iceberg_tables locked",
    )
    with installing(engine, "artemis-cold-guard", busy=busy, refused=refused) as connection:
        _require_not_live(connection, catalog)
        _install(connection, catalog, live_catalog)


def _require_not_live(connection: sa.Connection, catalog: str) -> None:
    """Raise ConfigError if a deployment works on `catalog` as a live one: its writers would be refused for good."""
    may = "SELECT to_regnamespace('artemis_live') IS NOT NULL AND has_schema_privilege('artemis_live', 'USAGE')"
    if not connection.execute(sa.text(may)).scalar_one():
        return
    query = sa.text("SELECT count(*) FROM artemis_live.deployments WHERE catalog_name = :catalog")
    if connection.execute(query, {"catalog": catalog}).scalar_one():
        raise ConfigError(
            f"Catalog {catalog} is a deployment's live catalog, and cannot be a cold one: only handoffs write to those",
            untouched="both catalogs",
            hint="correct catalogs.cold.name, and what else differs from that deployment's lifecycle.yaml",
        )


def verify_guard(engine: sa.Engine, catalog: str, live_catalog: str) -> None:
    """Restore the guard of `catalog` if there is something to guard and the guard is not intact.

    Raises Refused if it cannot be restored and this role works on the cold tier; for all other roles, which only read
    it, a warning is logged.
    """
    with engine.connect() as connection:
        known = _read(connection, catalog)
        works_on_it = connection.execute(_WORKS_ON_IT, {"role": LIFECYCLE}).scalar_one()
    if not known.state.in_use or _stands(known, live_catalog):
        return
    try:
        ensure_guard(engine, catalog, live_catalog)
    except Refused as refused:
        if works_on_it:
            raise
        _log.warning("%s", refused)
    else:
        _log.warning("The guard of cold catalog %s was not intact, and was restored: %s", catalog, known.state)


def lift_guard(connection: sa.Connection, catalog: str) -> None:
    """Let every login write to `catalog` again. For removing a whole cold tier in the same transaction; the next open
    of a catalog that still has rows guards it again. Does nothing without a guard."""
    if connection.execute(sa.text("SELECT to_regclass('artemis_cold.catalogs') IS NOT NULL")).scalar_one():
        connection.execute(
            sa.text("DELETE FROM artemis_cold.catalogs WHERE catalog_name = :catalog"), {"catalog": catalog}
        )


def publish_guarded(
    connection: sa.Connection,
    catalog: str,
    table: str,
    *,
    plan_id: str,
    expected_location: str | None,
    new_location: str,
) -> CatalogEntry:
    """`publish` past the guard: the publication is recorded in the same transaction, and commits or fails with it.

    Raises what `publish` raises, and Refused unless the guard is intact from here to the commit.
    """
    # Disabling or dropping a trigger needs a stronger lock on its table, and waits for this transaction.
    connection.execute(sa.text(f"LOCK TABLE {', '.join(_TABLES)} IN ROW EXCLUSIVE MODE"))
    found = guard_state(connection, catalog)
    if found.condition != "present":
        raise Refused(
            f"The guard of cold catalog {catalog} is {found.condition}: {found}",
            table=table,
            path=new_location,
            untouched="the cold catalog",
            hint="find out who changes its triggers; then run the step again, which restores them first",
        )
    # In the same form in which the triggers join the columns of a row.
    as_row = ".".join(parse(table).row)
    connection.execute(
        sa.text(
            "INSERT INTO artemis_cold.publications (catalog_name, table_identifier, plan_id, expected_location, "
            "new_location) VALUES (:catalog, :table, :plan, :expected, :new)"
        ),
        {"catalog": catalog, "table": as_row, "plan": plan_id, "expected": expected_location, "new": new_location},
    )
    return publish(connection, catalog, table, expected_location=expected_location, new_location=new_location)


# --- state of the guard -----------------------------------------------------------------------------------------------

_WORKS_ON_IT = sa.text(
    "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = :role AND pg_has_role(oid, 'MEMBER')) OR EXISTS (SELECT FROM "
    "pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = 'artemis_cold' AND "
    "c.relname = 'publications' AND has_table_privilege(c.oid, 'INSERT'))"
)
_NEWEST_RESTORATIONS = sa.text(
    "SELECT found, restored_by, restored_at FROM artemis_cold.restorations WHERE catalog_name = :catalog "
    "ORDER BY restored_at DESC LIMIT 5"
)


@dataclass(frozen=True)
class _Known:
    """A state, the recorded name of the live catalog (None if this role may not read it), and foreign functions in the
    guard's schema."""

    state: GuardState
    live_catalog: str | None
    strangers: tuple[str, ...]


def _stands(known: _Known, live_catalog: str) -> bool:
    return known.state.condition == "present" and known.live_catalog in (None, live_catalog)


def _read(connection: sa.Connection, catalog: str) -> _Known:
    readable = _PARTS.readable(connection)
    problems = [Problem(f"table artemis_cold.{name}", "missing") for name in _PARTS.own_tables if name not in readable]
    registered = None
    if readable.get("catalogs"):
        row = sa.text("SELECT live_catalog, version FROM artemis_cold.catalogs WHERE catalog_name = :catalog")
        registered = connection.execute(row, {"catalog": catalog}).one_or_none()
        if registered is None:
            problems.append(Problem(f"the row of {catalog} in artemis_cold.catalogs", "missing"))
        elif registered.version < VERSION:
            problems.append(Problem(_OUTDATED, "altered", f"{registered.version}, and now {VERSION}"))
    # Triggers and functions of another version cannot be compared with these.
    comparable = registered is None or registered.version == VERSION
    strangers, of_functions = _PARTS.compare_functions(connection, compared=comparable)
    problems += of_functions
    problems += _PARTS.compare_triggers(connection, compared=registered is None or registered.version >= VERSION)
    problems += [Problem("the right to publish", "altered", f"open to {name}") for name in _PARTS.open_to(connection)]
    restorations: tuple[GuardRestoration, ...] = ()
    if readable.get("restorations"):
        rows = connection.execute(_NEWEST_RESTORATIONS, {"catalog": catalog})
        restorations = tuple(GuardRestoration(row.found, row.restored_by, row.restored_at) for row in rows)
    in_use = registered is not None or bool(restorations) or _has_rows(connection, catalog)
    state = GuardState(catalog, in_use, tuple(problems), restorations)
    return _Known(state, None if registered is None else registered.live_catalog, strangers)


def _has_rows(connection: sa.Connection, catalog: str) -> bool:
    readable = sa.text(
        "SELECT count(*) FROM unnest(CAST(:names AS TEXT[])) AS name "
        "WHERE to_regclass(name) IS NOT NULL AND has_table_privilege(to_regclass(name), 'SELECT')"
    )
    if connection.execute(readable, {"names": list(_TABLES)}).scalar_one() < len(_TABLES):
        return False
    exists = " OR ".join(f"EXISTS (SELECT FROM {table} WHERE catalog_name = :catalog)" for table in _TABLES)
    return bool(connection.execute(sa.text(f"SELECT {exists}"), {"catalog": catalog}).scalar_one())


def _install(connection: sa.Connection, catalog: str, live_catalog: str) -> None:
    known = _read(connection, catalog)
    if _stands(known, live_catalog):
        return
    for statement in _STATEMENTS:
        connection.exec_driver_sql(statement)
    for stranger in known.strangers:
        connection.exec_driver_sql(f"DROP FUNCTION {stranger}")
    for statement in (*_PARTS.closed(connection), *role_statements(_GRANTS)):
        connection.exec_driver_sql(statement)
    connection.execute(
        sa.text(
            "INSERT INTO artemis_cold.catalogs VALUES (:catalog, :live, :version) ON CONFLICT (catalog_name) "
            "DO UPDATE SET live_catalog = excluded.live_catalog, version = excluded.version"
        ),
        {"catalog": catalog, "live": live_catalog, "version": VERSION},
    )
    broken = [str(problem) for problem in known.state.problems if problem.part != _OUTDATED]
    if known.state.in_use and broken:
        connection.execute(
            sa.text("INSERT INTO artemis_cold.restorations (catalog_name, found) VALUES (:catalog, :found)"),
            {"catalog": catalog, "found": "; ".join(broken)},
        )
