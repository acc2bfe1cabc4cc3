"""Functions and triggers that this project puts on the tables of a SQL catalog: what they should be, what the database
has, and the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from artemis_lifecycle.errors import Busy, LifecycleError
from artemis_lifecycle.operations.locks import starters_lock

Condition = Literal["present", "missing", "disabled", "altered"]

_EVENTS = {
    31: "BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW",
    23: "BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW",
    34: "BEFORE TRUNCATE ON {table} FOR EACH STATEMENT",
}


@dataclass(frozen=True)
class Function:
    """A function in PL/pgSQL. `types` are its argument types as named in pg_proc."""

    name: str
    arguments: str
    types: str
    returns: str
    body: str


@dataclass(frozen=True)
class Trigger:
    """A trigger. `kind` is `pg_trigger.tgtype`: 31 before each row that is inserted, updated or deleted, 23 the same
    without deletes, 34 before a TRUNCATE."""

    name: str
    table: str
    function: str
    kind: Literal[23, 31, 34]


@dataclass(frozen=True)
class Problem:
    """One broken part of an installation: which part, its condition, and what was found."""

    part: str
    condition: Literal["missing", "disabled", "altered"]
    found: str = ""

    def __str__(self) -> str:
        return f"{self.part} is {self.condition}" + (f" ({self.found})" if self.found else "")


def worst(problems: Sequence[Problem]) -> Condition:
    """Return the worst condition: missing before disabled before altered; `present` without problems."""
    found = {problem.condition for problem in problems}
    conditions: tuple[Condition, ...] = ("missing", "disabled", "altered")
    return next((condition for condition in conditions if condition in found), "present")


@dataclass(frozen=True)
class Parts:
    """What is installed in a schema of its own: functions, triggers that call them, and tables that only the owner
    changes. `roles` are the group roles that may not change those tables."""

    schema: str
    functions: tuple[Function, ...]
    triggers: tuple[Trigger, ...]
    own_tables: tuple[str, ...]
    roles: tuple[str, ...]

    def statements(self) -> Iterator[str]:
        """Yield the statements that create the functions and the triggers, or replace them."""
        for function in self.functions:
            # They run as their owner: a refused login may have no right to read why.
            yield (
                f"CREATE OR REPLACE FUNCTION {self.schema}.{function.name}({function.arguments}) "
                f"RETURNS {function.returns} LANGUAGE plpgsql SECURITY DEFINER SET search_path = {self._path} "
                f"AS $${function.body}$$"
            )
        for trigger in self.triggers:
            yield (
                f"CREATE OR REPLACE TRIGGER {trigger.name} {_EVENTS[trigger.kind].format(table=trigger.table)} "
                f"EXECUTE FUNCTION {self.schema}.{trigger.function}()"
            )
            # An ordinary trigger does not fire in a session with session_replication_role = replica.
            yield f"ALTER TABLE {trigger.table} ENABLE ALWAYS TRIGGER {trigger.name}"
        # They run as their owner, so no other login may call them or use one as a trigger of its own table.
        yield f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {self.schema} FROM PUBLIC"

    def closed(self, connection: sa.Connection) -> Iterator[str]:
        """Yield the statements that take all rights on the schema from everybody but its owner."""
        known = sa.text("SELECT rolname FROM pg_roles WHERE rolname = ANY(:roles)")
        found = connection.execute(known, {"roles": list(self.roles)}).scalars()
        for grantee in ("PUBLIC", *found):
            yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {self.schema} FROM {grantee}"
            yield f"REVOKE ALL ON SCHEMA {self.schema} FROM {grantee}"

    def readable(self, connection: sa.Connection) -> dict[str, bool]:
        """Return whether this login may read each of the schema's tables. Needs no right on them."""
        rows = connection.execute(sa.text(_FOUND_TABLES), {"schema": self.schema})
        return {row.relname: row.readable for row in rows}

    def open_to(self, connection: sa.Connection) -> list[str]:
        """Return those of PUBLIC and `roles` that may change one of `own_tables`, or create in the schema."""
        values = {"schema": self.schema, "tables": list(self.own_tables), "roles": list(self.roles)}
        return list(connection.execute(sa.text(_OPEN_TO), values).scalars())

    def compare_functions(
        self, connection: sa.Connection, *, compared: bool = True
    ) -> tuple[tuple[str, ...], list[Problem]]:
        """Return the signatures of foreign functions in the schema, and the problems. `compared` False: only whether
        each function exists."""
        rows = connection.execute(sa.text(_FOUND_FUNCTIONS), {"schema": self.schema, "path": self._path})
        found = {(row.proname, row.types): row for row in rows}
        problems = []
        for function in self.functions:
            part = f"function {self.schema}.{function.name}"
            row = found.pop((function.name, function.types), None)
            if row is None:
                problems.append(Problem(part, "missing"))
            elif compared and not (row.as_made and row.prosrc == function.body):
                problems.append(Problem(part, "altered", "its definition is another"))
        if not compared:
            return (), problems
        strangers = tuple(row.signature for row in found.values())
        return strangers, problems + [Problem(f"function {each}", "altered", "not the guard's") for each in strangers]

    def compare_triggers(self, connection: sa.Connection, *, compared: bool = True) -> Iterator[Problem]:
        """Yield the problems. `compared` False: only whether each trigger exists and fires."""
        tables = sorted({trigger.table for trigger in self.triggers})
        found = {
            (row.tgname, row.relname): row for row in connection.execute(sa.text(_FOUND_TRIGGERS), {"tables": tables})
        }
        for trigger in self.triggers:
            part = f"trigger {trigger.name} on {trigger.table}"
            row = found.get((trigger.name, trigger.table))
            if row is None:
                yield Problem(part, "missing")
            elif row.tgenabled in ("D", "R"):
                # R: it fires only in sessions that replicate.
                yield Problem(part, "disabled")
            elif compared and row.tgenabled != "A":
                yield Problem(part, "altered", "it does not fire where session_replication_role is replica")
            elif compared and not (
                row.unconditional and row.tgtype == trigger.kind and row.function == f"{self.schema}.{trigger.function}"
            ):
                yield Problem(part, "altered", "its definition is another")

    @property
    def _path(self) -> str:
        return f"{self.schema}, pg_temp"


@contextmanager
def installing(
    engine: sa.Engine, lock: str, *, busy: Busy, refused: Callable[[str], LifecycleError]
) -> Iterator[sa.Connection]:
    """A transaction that changes triggers on the catalog's tables, one at a time by the starters' lock `lock`. Raises
    `busy` while other sessions keep the tables locked; `refused(owner)` for a login that may not change them."""
    try:
        with engine.begin() as connection:
            starters_lock(connection, lock)
            # Commits of all engines queue behind a statement that waits for the tables.
            connection.execute(sa.text("SET LOCAL lock_timeout = '10s'"))
            yield connection
    except DBAPIError as error:
        code = getattr(error.orig, "pgcode", None) or ""
        if code in _LOCKED:
            raise busy from error
        if code not in _NOT_ALLOWED:
            raise
        with engine.connect() as connection:
            owner = connection.execute(_OWNER).scalar()
        raise refused(str(owner)) from error


_LOCKED = ("55P03", "40P01")  # lock_not_available, deadlock_detected
_NOT_ALLOWED = ("42501", "25006")  # insufficient_privilege, read_only_sql_transaction
_OWNER = sa.text("SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass('iceberg_tables')")
_FOUND_TRIGGERS = """
    SELECT t.tgname, c.relname, t.tgenabled::text, t.tgtype, n.nspname || '.' || p.proname AS function,
           t.tgqual IS NULL AND t.tgattr::text = '' AND t.tgnargs = 0 AS unconditional
    FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
    JOIN pg_proc AS p ON p.oid = t.tgfoid JOIN pg_namespace AS n ON n.oid = p.pronamespace
    WHERE t.tgrelid IN (SELECT to_regclass(name) FROM unnest(CAST(:tables AS TEXT[])) AS name)
"""
_FOUND_FUNCTIONS = """
    SELECT p.proname, oidvectortypes(p.proargtypes) AS types, p.prosrc, p.oid::regprocedure::text AS signature,
           p.prosecdef AND l.lanname = 'plpgsql' AND p.proconfig = ARRAY['search_path=' || :path] AS as_made
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace JOIN pg_language AS l ON l.oid = p.prolang
    WHERE n.nspname = :schema
"""
# Reading the tables needs a right; the system catalogs, which list them and their grants, need none.
_FOUND_TABLES = """
    SELECT c.relname, has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AS readable
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = :schema AND c.relkind::text = 'r'
"""
_OPEN_TO = """
    SELECT DISTINCT coalesce(r.rolname, 'PUBLIC') FROM (
        SELECT c.relacl AS acl FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = :schema AND c.relname = ANY(:tables)
        UNION ALL SELECT nspacl FROM pg_namespace WHERE nspname = :schema
    ) AS every, aclexplode(every.acl) AS granted LEFT JOIN pg_roles AS r ON r.oid = granted.grantee
    WHERE granted.privilege_type NOT IN ('SELECT', 'USAGE')
      AND (granted.grantee = 0 OR r.rolname = ANY(:roles)) ORDER BY 1
"""
