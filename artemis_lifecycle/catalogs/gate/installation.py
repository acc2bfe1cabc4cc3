"""Enabling, disabling and inspecting the gate in the database of a SQL catalog."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from artemis_lifecycle.catalogs.gate.rules import Rule
from artemis_lifecycle.catalogs.gate.statements import GRANTS, PARTS, SCHEMA, TABLES, TO_EVERYBODY, VERSION
from artemis_lifecycle.catalogs.identifier import Identifier
from artemis_lifecycle.catalogs.triggers import Condition, Problem, installing, worst
from artemis_lifecycle.errors import Busy, ConfigError, Refused
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.roles import refusing, role_statements

_INVALID_PATTERN = "2201B"
_REMOVED = tuple(f"DROP TRIGGER IF EXISTS {trigger.name} ON {trigger.table}" for trigger in PARTS.triggers)


@dataclass(frozen=True)
class GateState:
    """The gate of one catalog. `enabled`: the catalog is registered with it; None if this login may not read that.
    `problems` are broken parts of an enabled gate. `rules` are the installed ones; None if this login may not read
    them."""

    catalog: str
    enabled: bool | None
    problems: tuple[Problem, ...] = ()
    rules: tuple[Rule, ...] | None = None
    enabled_by: str | None = None
    enabled_at: datetime | None = None

    @property
    def condition(self) -> Condition:
        """The worst condition of its parts; `present` if every part is intact."""
        return worst(self.problems)


OVER_REST = "artemis gate serve"


@dataclass(frozen=True)
class GateAttempt:
    """A commit with problems, which the gate refused, or only recorded (mode `report`). `summaries` are the lineage
    keys of at most ten new snapshots.

    `attempted_by` is the login; of a commit over REST, the client's address and program, and `application` is then
    OVER_REST. Such a request has no metadata file.
    """

    attempted_at: datetime
    attempted_by: str
    application: str
    table: str
    base_location: str | None
    metadata_location: str | None
    summaries: tuple[dict[str, str], ...]
    problems: tuple[str, ...]
    refused: bool


def gate_state(connection: sa.Connection, catalog: str) -> GateState:
    """Return the current state of the gate of `catalog`. Changes nothing, and needs no right except to log in."""
    return _read(connection, catalog)[0]


def install_gate(engine: sa.Engine, catalog: str, rules: Sequence[Rule]) -> None:
    """Refuse every swap of a gated table of `catalog` without a pass; replace the catalog's rules by `rules`.

    `engine` is for the database with the catalog's rows, whose tables must exist. Writes nothing if the gate is intact
    with these rules. Raises Refused for a login that does not own `iceberg_tables`; Busy while other sessions keep it
    locked; ConfigError if Postgres cannot read a pattern.
    """
    with engine.connect() as connection:
        if _stands(gate_state(connection, catalog), rules):
            return
    with _changing(engine, catalog, "enabled") as connection:
        state, strangers = _read(connection, catalog)
        if _stands(state, rules):
            return
        for statement in (*TABLES, *PARTS.statements()):
            connection.exec_driver_sql(statement)
        for stranger in strangers:
            connection.exec_driver_sql(f"DROP FUNCTION {stranger}")
        for statement in (*PARTS.closed(connection), *role_statements(GRANTS), *TO_EVERYBODY):
            connection.exec_driver_sql(statement)
        require_patterns(connection, rules)
        register = (
            f"INSERT INTO {SCHEMA}.catalogs (catalog_name, version) VALUES (:catalog, :version) ON CONFLICT "
            "(catalog_name) DO UPDATE SET version = excluded.version"
        )
        connection.execute(sa.text(register), {"catalog": catalog, "version": VERSION})
        connection.execute(sa.text(f"DELETE FROM {SCHEMA}.rules WHERE catalog_name = :catalog"), {"catalog": catalog})
        add = (
            f"INSERT INTO {SCHEMA}.rules (catalog_name, rank, entry, pattern, exact, mode, requirements) "
            "VALUES (:catalog, :rank, :entry, :pattern, :exact, :mode, CAST(:requirements AS JSONB))"
        )
        for rank, rule in enumerate(rules):
            connection.execute(sa.text(add), {"catalog": catalog, "rank": rank, **vars(rule)})


def remove_gate(engine: sa.Engine, catalog: str) -> bool:
    """Let every login commit to `catalog` again. Removes the catalog's rules, and the trigger with the last catalog.
    Recorded attempts stay. Return False if the gate was not enabled. Raises Refused and Busy as `install_gate`."""
    with engine.connect() as connection:
        if not PARTS.readable(connection):
            return False
    with _changing(engine, catalog, "disabled") as connection:
        removed = connection.execute(
            sa.text(f"DELETE FROM {SCHEMA}.catalogs WHERE catalog_name = :catalog"), {"catalog": catalog}
        ).rowcount
        if not connection.execute(sa.text(f"SELECT EXISTS (SELECT FROM {SCHEMA}.catalogs)")).scalar_one():
            for statement in _REMOVED:
                connection.exec_driver_sql(statement)
    return bool(removed)


def attempts(connection: sa.Connection, catalog: str, table: Identifier | None = None) -> list[GateAttempt]:
    """Return the recorded attempts of `catalog`, newest first. Raises Refused for a login that may not read them."""
    readable = PARTS.readable(connection)
    if "attempts" not in readable:
        return []
    if not readable["attempts"]:
        raise Refused(
            f"This login may not read the attempts that the gate of catalog {catalog} recorded",
            hint="GRANT artemis_lifecycle or artemis_analyst to it (docs/roles.md)",
        )
    namespace, name = (None, None) if table is None else table.row
    rows = connection.execute(_ATTEMPTS, {"catalog": catalog, "namespace": namespace, "name": name})
    return [
        GateAttempt(
            row.attempted_at,
            row.attempted_by,
            row.application,
            str(Identifier.of_row(row.table_namespace, row.table_name)),
            row.base_location,
            row.metadata_location,
            tuple(row.summaries),
            tuple(row.problems),
            row.refused,
        )
        for row in rows
    ]


def forget_attempts(connection: sa.Connection, catalog: str, before: datetime, *, dry_run: bool) -> int:
    """Delete the attempts of `catalog` that are older than `before`. Return how many; a dry run only counts them.
    Raises Refused for a login that may not, and for a gate of a version that cannot."""
    if "attempts" not in PARTS.readable(connection):
        return 0
    what = f"The old attempts that the gate of catalog {catalog} recorded cannot be deleted"
    hint = "run artemis gate enable again, as the owner of iceberg_tables; then GRANT artemis_lifecycle to this login"
    values = {"catalog": catalog, "before": before}
    with refusing(what, untouched="these attempts", hint=hint):
        old = int(connection.execute(_OLD_ATTEMPTS, values).scalar_one())
        if dry_run or not old:
            return old
        if not connection.execute(_CAN_FORGET).scalar_one():
            raise Refused(f"{what}: it was enabled by an older version", untouched="these attempts", hint=hint)
        with around("gate.forget_attempts"):
            deleted = int(connection.execute(_FORGET, values).scalar_one())
            connection.commit()
    return deleted


_OLD_ATTEMPTS = sa.text(
    f"SELECT count(*) FROM {SCHEMA}.attempts WHERE catalog_name = :catalog AND attempted_at < :before"
)
_CAN_FORGET = sa.text(f"SELECT to_regprocedure('{SCHEMA}.forget_attempts(text, timestamptz)') IS NOT NULL")
_FORGET = sa.text(f"SELECT {SCHEMA}.forget_attempts(CAST(:catalog AS TEXT), CAST(:before AS TIMESTAMPTZ))")
_ATTEMPTS = sa.text(
    f"SELECT * FROM {SCHEMA}.attempts WHERE catalog_name = :catalog AND (CAST(:name AS TEXT) IS NULL OR "
    "(table_namespace = :namespace AND table_name = :name)) ORDER BY attempt_id DESC"
)
_REGISTERED = sa.text(f"SELECT version, enabled_by, enabled_at FROM {SCHEMA}.catalogs WHERE catalog_name = :catalog")
_RULES = sa.text(
    f"SELECT entry, pattern, exact, mode, requirements FROM {SCHEMA}.rules WHERE catalog_name = :catalog ORDER BY rank"
)


def _read(connection: sa.Connection, catalog: str) -> tuple[GateState, tuple[str, ...]]:
    """Return the state, and the signatures of foreign functions in the gate's schema."""
    readable = PARTS.readable(connection)
    if not readable:
        return GateState(catalog, enabled=False), ()
    registered = None
    if readable.get("catalogs"):
        registered = connection.execute(_REGISTERED, {"catalog": catalog}).one_or_none()
        if registered is None:
            return GateState(catalog, enabled=False), ()
    problems = [Problem(f"table {SCHEMA}.{name}", "missing") for name in PARTS.own_tables if name not in readable]
    if registered is not None and registered.version < VERSION:
        problems.append(Problem("version", "altered", f"{registered.version}, and now {VERSION}"))
    # Functions of another version cannot be compared with these.
    compared = registered is None or registered.version == VERSION
    strangers, of_functions = PARTS.compare_functions(connection, compared=compared)
    problems += of_functions
    problems += PARTS.compare_triggers(connection, compared=compared)
    problems += [
        Problem("the right to grant passes", "altered", f"open to {name}") for name in PARTS.open_to(connection)
    ]
    rules = None
    if readable.get("rules"):
        rules = tuple(
            Rule(
                row.entry,
                row.pattern,
                row.exact,
                row.mode,
                json.dumps(row.requirements, ensure_ascii=False, sort_keys=True),
            )
            for row in connection.execute(_RULES, {"catalog": catalog})
        )
    if registered is None:
        return GateState(catalog, None, tuple(problems), rules), strangers
    return (GateState(catalog, True, tuple(problems), rules, registered.enabled_by, registered.enabled_at), strangers)


def _stands(state: GateState, rules: Sequence[Rule]) -> bool:
    return state.enabled is True and not state.problems and state.rules == tuple(rules)


def _changing(engine: sa.Engine, catalog: str, what: str) -> AbstractContextManager[sa.Connection]:
    def refused(owner: str) -> Refused:
        return Refused(
            f"The lineage gate of catalog {catalog} cannot be {what}: this login does not own iceberg_tables",
            untouched="the gate",
            hint=f"run it as {owner}, who owns iceberg_tables, or as a superuser",
        )

    busy = Busy(
        f"The lineage gate of catalog {catalog} cannot be {what}: iceberg_tables is locked by others",
        untouched="the gate",
        hint="try again, or end the transactions that keep iceberg_tables locked",
    )
    return installing(engine, "artemis-gate", busy=busy, refused=refused)


def require_patterns(connection: sa.Connection, rules: Sequence[Rule]) -> None:
    """Raise ConfigError for a pattern that Postgres cannot read: it would refuse every commit."""
    found = {rule.pattern for rule in rules if not rule.exact}
    for rule in rules:
        found.update(pattern for _, pattern in json.loads(rule.requirements)["patterns"])
    for pattern in sorted(found):
        try:
            connection.execute(sa.text("SELECT '' ~ ('^(?:' || CAST(:pattern AS TEXT) || ')$')"), {"pattern": pattern})
        except DBAPIError as error:
            if getattr(error.orig, "pgcode", None) != _INVALID_PATTERN:
                raise
            raise ConfigError(
                f"Postgres cannot read the pattern {pattern!r}: {str(error.orig).splitlines()[0]}",
                untouched="the gate",
                hint="change lineage.patterns, or the key of tables, in lifecycle.yaml",
            ) from error
