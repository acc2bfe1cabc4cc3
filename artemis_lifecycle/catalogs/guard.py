"""Makes the cold catalog read-only in the database: triggers on the catalog's rows, which only a handoff passes, in the
transaction that records its publication.

The triggers are in the database of the cold catalog's rows. In schema `artemis_cold`, `catalogs` lists the guarded
catalogs, `publications` has a row for every commit of a handoff, and `restorations` for every time that the guard was
found broken. A row of `publications` permits only its own transaction and its own location. Triggers get lost: a
restore omits them, an owner disables them. So the guard is verified at every open, and again in the transaction of each
publication. It protects the owner of the database from accidents, not from malice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from artemis_lifecycle import escaping
from artemis_lifecycle.catalogs.cold import publish
from artemis_lifecycle.catalogs.entry import CatalogEntry
from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.errors import Busy, Refused
from artemis_lifecycle.operations.locks import starters_lock
from artemis_lifecycle.operations.roles import ANALYST, INGEST, LIFECYCLE, role_statements

VERSION = 3
"""The version of the statements below; a catalog with an older guard is upgraded."""

GuardCondition = Literal["present", "missing", "disabled", "altered"]

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
_SEARCH_PATH = "artemis_cold, pg_temp"

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


@dataclass(frozen=True)
class _Function:
    """One of the guard's functions. `types` are its argument types as named in pg_proc."""

    name: str
    arguments: str
    types: str
    returns: str
    body: str

    @property
    def statement(self) -> str:
        # They run as their owner: a refused login may have no right to read why.
        return (
            f"CREATE OR REPLACE FUNCTION artemis_cold.{self.name}({self.arguments}) RETURNS {self.returns} "
            f"LANGUAGE plpgsql SECURITY DEFINER SET search_path = {_SEARCH_PATH} AS $${self.body}$$"
        )


@dataclass(frozen=True)
class _Trigger:
    """One of the guard's triggers. `kind` is `pg_trigger.tgtype`: 31 before each row that is inserted, updated or
    deleted, 34 before a TRUNCATE."""

    name: str
    table: str
    function: str
    kind: Literal[31, 34]

    @property
    def statements(self) -> tuple[str, str]:
        events = "INSERT OR UPDATE OR DELETE" if self.kind == 31 else "TRUNCATE"
        return (
            f"CREATE OR REPLACE TRIGGER {self.name} BEFORE {events} ON {self.table} "
            f"FOR EACH {'ROW' if self.kind == 31 else 'STATEMENT'} EXECUTE FUNCTION artemis_cold.{self.function}()",
            # An ordinary trigger does not fire in a session with session_replication_role = replica.
            f"ALTER TABLE {self.table} ENABLE ALWAYS TRIGGER {self.name}",
        )


_FUNCTIONS = (
    _Function("refuse", "refused TEXT, what TEXT", "text, text", "void", _REFUSE),
    _Function("guard_tables", "", "", "trigger", _GUARD_TABLES),
    _Function("guard_namespaces", "", "", "trigger", _GUARD_NAMESPACES),
    _Function("guard_all", "", "", "trigger", _GUARD_ALL),
)
_TRIGGERS = (
    _Trigger("artemis_cold", _TABLES[0], "guard_tables", 31),
    _Trigger("artemis_cold", _TABLES[1], "guard_namespaces", 31),
    *(_Trigger("artemis_cold_all", table, "guard_all", 34) for table in _TABLES),
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
    # A row of a publication passes the guard, and a foreign function in this schema could replace one of the guard's.
    "REVOKE ALL ON SCHEMA artemis_cold FROM PUBLIC",
    "REVOKE ALL ON ALL TABLES IN SCHEMA artemis_cold FROM PUBLIC",
    *(function.statement for function in _FUNCTIONS),
    *(statement for trigger in _TRIGGERS for statement in trigger.statements),
    # They run as their owner, so no other login may call them or use one as a trigger of its own table.
    "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA artemis_cold FROM PUBLIC",
    *role_statements(_GRANTS),
)

_FOUND_TRIGGERS = """
    SELECT t.tgname, c.relname, t.tgenabled::text, t.tgtype, n.nspname || '.' || p.proname AS function,
           t.tgqual IS NULL AND t.tgattr::text = '' AND t.tgnargs = 0 AS unconditional
    FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
    JOIN pg_proc AS p ON p.oid = t.tgfoid JOIN pg_namespace AS n ON n.oid = p.pronamespace
    WHERE t.tgrelid IN (to_regclass('iceberg_tables'), to_regclass('iceberg_namespace_properties'))
"""
_FOUND_FUNCTIONS = """
    SELECT p.proname, oidvectortypes(p.proargtypes) AS types, p.prosrc, p.oid::regprocedure::text AS signature,
           p.prosecdef AND l.lanname = 'plpgsql' AND p.proconfig = ARRAY['search_path=' || :path] AS as_made
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace JOIN pg_language AS l ON l.oid = p.prolang
    WHERE n.nspname = 'artemis_cold'
"""
# Reading the guard's own tables needs a right; the system catalogs, which list them and their grants, need none.
_FOUND_TABLES = """
    SELECT c.relname, c.relkind::text = 'r' AS ordinary,
           has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AS readable
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'artemis_cold' AND c.relname IN ('catalogs', 'publications', 'restorations')
"""
_OPEN_TO = """
    SELECT DISTINCT coalesce(r.rolname, 'PUBLIC') FROM (
        SELECT c.relacl AS acl FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'artemis_cold' AND c.relname IN ('catalogs', 'publications')
        UNION ALL SELECT nspacl FROM pg_namespace WHERE nspname = 'artemis_cold'
    ) AS every, aclexplode(every.acl) AS granted LEFT JOIN pg_roles AS r ON r.oid = granted.grantee
    WHERE granted.privilege_type NOT IN ('SELECT', 'USAGE')
      AND (granted.grantee = 0 OR r.rolname IN (:ingest, :analyst)) ORDER BY 1
"""
_OUTDATED = "version"


@dataclass(frozen=True)
class GuardProblem:
    """One broken part of the guard: which part, its condition, and what was found."""

    part: str
    condition: Literal["missing", "disabled", "altered"]
    found: str = ""

    def __str__(self) -> str:
        return f"{self.part} is {self.condition}" + (f" ({self.found})" if self.found else "")


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
    problems: tuple[GuardProblem, ...] = ()
    restorations: tuple[GuardRestoration, ...] = ()

    @property
    def condition(self) -> GuardCondition:
        """The worst condition of its parts: missing before disabled before altered; `present` if every part is
        intact."""
        found = {problem.condition for problem in self.problems}
        conditions: tuple[GuardCondition, ...] = ("missing", "disabled", "altered")
        return next((condition for condition in conditions if condition in found), "present")

    def __str__(self) -> str:
        return "; ".join(map(str, self.problems)) or "present"


def guard_state(connection: Connection, catalog: str) -> GuardState:
    """Return the current state of the guard of `catalog`. Changes nothing, and needs no right except to log in.

    `connection` is to the database that has the catalog's rows.
    """
    return _read(connection, catalog).state


def ensure_guard(engine: Engine, catalog: str, live_catalog: str) -> None:
    """Make the rows of `catalog` refuse every writer except handoffs; errors tell writers to use `live_catalog`.

    `engine` is for the database with the catalog's rows, whose tables must exist. If the guard is intact, nothing is
    written, and no right to create one is needed. Raises Refused for a role that may not restore it; Busy while other
    sessions keep the tables locked.
    """
    with engine.connect() as connection:
        if _stands(_read(connection, catalog), live_catalog):
            return
    try:
        with engine.begin() as connection:
            _install(connection, catalog, live_catalog)
    except DBAPIError as error:
        code = getattr(error.orig, "pgcode", None) or ""
        if code in _LOCKED:
            raise Busy(
                f"The guard of cold catalog {catalog} cannot be restored: its tables are locked by others",
                untouched="the cold catalog",
                hint="try again, or end the transactions that keep iceberg_tables locked",
            ) from error
        if code not in _NOT_ALLOWED:
            raise
        with engine.connect() as connection:
            found = guard_state(connection, catalog)
            owner = connection.execute(_OWNER).scalar()
        raise Refused(
            f"The guard of cold catalog {catalog} is {found.condition}, and this role may not restore it: {found}",
            untouched="the cold catalog, to which any engine can currently write",
            hint=f"run any artemis command, such as artemis tables, as {owner}, who owns iceberg_tables, or as a "
            "superuser: it restores the guard",
        ) from error


def verify_guard(engine: Engine, catalog: str, live_catalog: str) -> None:
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


def lift_guard(connection: Connection, catalog: str) -> None:
    """Let every login write to `catalog` again. For removing a whole cold tier in the same transaction; the next open
    of a catalog that still has rows guards it again. Does nothing without a guard."""
    if connection.execute(text("SELECT to_regclass('artemis_cold.catalogs') IS NOT NULL")).scalar_one():
        connection.execute(
            text("DELETE FROM artemis_cold.catalogs WHERE catalog_name = :catalog"), {"catalog": catalog}
        )


def publish_guarded(
    connection: Connection,
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
    connection.execute(text(f"LOCK TABLE {', '.join(_TABLES)} IN ROW EXCLUSIVE MODE"))
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
        text(
            "INSERT INTO artemis_cold.publications (catalog_name, table_identifier, plan_id, expected_location, "
            "new_location) VALUES (:catalog, :table, :plan, :expected, :new)"
        ),
        {"catalog": catalog, "table": as_row, "plan": plan_id, "expected": expected_location, "new": new_location},
    )
    return publish(connection, catalog, table, expected_location=expected_location, new_location=new_location)


# --- state of the guard -----------------------------------------------------------------------------------------------

_LOCKED = ("55P03", "40P01")  # lock_not_available, deadlock_detected
_NOT_ALLOWED = ("42501", "25006")  # insufficient_privilege, read_only_sql_transaction
_OWNER = text("SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass('iceberg_tables')")
_WORKS_ON_IT = text(
    "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = :role AND pg_has_role(oid, 'MEMBER')) OR EXISTS (SELECT FROM "
    "pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = 'artemis_cold' AND "
    "c.relname = 'publications' AND has_table_privilege(c.oid, 'INSERT'))"
)
_OWN_TABLES = ("catalogs", "publications")
_NEWEST_RESTORATIONS = text(
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


def _read(connection: Connection, catalog: str) -> _Known:
    readable = {row.relname: row.readable for row in connection.execute(text(_FOUND_TABLES)) if row.ordinary}
    problems = [GuardProblem(f"table artemis_cold.{name}", "missing") for name in _OWN_TABLES if name not in readable]
    registered = None
    if readable.get("catalogs"):
        row = text("SELECT live_catalog, version FROM artemis_cold.catalogs WHERE catalog_name = :catalog")
        registered = connection.execute(row, {"catalog": catalog}).one_or_none()
        if registered is None:
            problems.append(GuardProblem(f"the row of {catalog} in artemis_cold.catalogs", "missing"))
        elif registered.version < VERSION:
            problems.append(GuardProblem(_OUTDATED, "altered", f"{registered.version}, and now {VERSION}"))
    # Triggers and functions of another version cannot be compared with these.
    comparable = registered is None or registered.version == VERSION
    strangers, of_functions = _functions(connection, compared=comparable)
    problems += of_functions
    problems += _triggers(connection, compared=registered is None or registered.version >= VERSION)
    rights = {"ingest": INGEST, "analyst": ANALYST}
    problems += [
        GuardProblem("the right to publish", "altered", f"open to {name}")
        for name in connection.execute(text(_OPEN_TO), rights).scalars()
    ]
    restorations: tuple[GuardRestoration, ...] = ()
    if readable.get("restorations"):
        rows = connection.execute(_NEWEST_RESTORATIONS, {"catalog": catalog})
        restorations = tuple(GuardRestoration(row.found, row.restored_by, row.restored_at) for row in rows)
    in_use = registered is not None or bool(restorations) or _has_rows(connection, catalog)
    state = GuardState(catalog, in_use, tuple(problems), restorations)
    return _Known(state, None if registered is None else registered.live_catalog, strangers)


def _functions(connection: Connection, *, compared: bool) -> tuple[tuple[str, ...], list[GuardProblem]]:
    found = {
        (row.proname, row.types): row for row in connection.execute(text(_FOUND_FUNCTIONS), {"path": _SEARCH_PATH})
    }
    problems = []
    for function in _FUNCTIONS:
        part = f"function artemis_cold.{function.name}"
        row = found.pop((function.name, function.types), None)
        if row is None:
            problems.append(GuardProblem(part, "missing"))
        elif compared and not (row.as_made and row.prosrc == function.body):
            problems.append(GuardProblem(part, "altered", "its definition is another"))
    if not compared:
        return (), problems
    strangers = tuple(row.signature for row in found.values())
    return strangers, problems + [GuardProblem(f"function {each}", "altered", "not the guard's") for each in strangers]


def _triggers(connection: Connection, *, compared: bool) -> Iterator[GuardProblem]:
    found = {(row.tgname, row.relname): row for row in connection.execute(text(_FOUND_TRIGGERS))}
    for trigger in _TRIGGERS:
        part = f"trigger {trigger.name} on {trigger.table}"
        row = found.get((trigger.name, trigger.table))
        if row is None:
            yield GuardProblem(part, "missing")
        elif row.tgenabled in ("D", "R"):
            # R: it fires only in sessions that replicate.
            yield GuardProblem(part, "disabled")
        elif compared and row.tgenabled != "A":
            yield GuardProblem(part, "altered", "it does not fire where session_replication_role is replica")
        elif compared and not (
            row.unconditional and row.tgtype == trigger.kind and row.function == f"artemis_cold.{trigger.function}"
        ):
            yield GuardProblem(part, "altered", "its definition is another")


def _has_rows(connection: Connection, catalog: str) -> bool:
    readable = text(
        "SELECT count(*) FROM unnest(CAST(:names AS TEXT[])) AS name "
        "WHERE to_regclass(name) IS NOT NULL AND has_table_privilege(to_regclass(name), 'SELECT')"
    )
    if connection.execute(readable, {"names": list(_TABLES)}).scalar_one() < len(_TABLES):
        return False
    exists = " OR ".join(f"EXISTS (SELECT FROM {table} WHERE catalog_name = :catalog)" for table in _TABLES)
    return bool(connection.execute(text(f"SELECT {exists}"), {"catalog": catalog}).scalar_one())


def _install(connection: Connection, catalog: str, live_catalog: str) -> None:
    # Commits of all engines queue behind a statement that waits for the tables.
    connection.execute(text("SET LOCAL lock_timeout = '10s'"))
    starters_lock(connection, "artemis-cold-guard")
    known = _read(connection, catalog)
    if _stands(known, live_catalog):
        return
    for statement in _STATEMENTS:
        connection.exec_driver_sql(statement)
    for stranger in known.strangers:
        connection.exec_driver_sql(f"DROP FUNCTION {stranger}")
    for role in (INGEST, ANALYST):
        if connection.execute(
            text("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = :role)"), {"role": role}
        ).scalar():
            connection.exec_driver_sql(f"REVOKE ALL ON ALL TABLES IN SCHEMA artemis_cold FROM {role}")
            connection.exec_driver_sql(f"REVOKE ALL ON SCHEMA artemis_cold FROM {role}")
    connection.execute(
        text(
            "INSERT INTO artemis_cold.catalogs VALUES (:catalog, :live, :version) ON CONFLICT (catalog_name) "
            "DO UPDATE SET live_catalog = excluded.live_catalog, version = excluded.version"
        ),
        {"catalog": catalog, "live": live_catalog, "version": VERSION},
    )
    broken = [str(problem) for problem in known.state.problems if problem.part != _OUTDATED]
    if known.state.in_use and broken:
        connection.execute(
            text("INSERT INTO artemis_cold.restorations (catalog_name, found) VALUES (:catalog, :found)"),
            {"catalog": catalog, "found": "; ".join(broken)},
        )
