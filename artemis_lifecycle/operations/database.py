"""Access to Postgres: engines by purpose, migrations, and `Operations`, which combines all parts of this room."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import BadInput, ConfigError, OperationsUnavailable
from artemis_lifecycle.operations.cold_tier import DeepMoves, Restores, Scrubs, Thaws
from artemis_lifecycle.operations.decisions import Decisions, Pauses
from artemis_lifecycle.operations.fleet import CheckResults, Health, Held, RunTimes, Waits
from artemis_lifecycle.operations.holds import Heartbeats, Holds, Tags
from artemis_lifecycle.operations.journal import HandoffBatches, Journal
from artemis_lifecycle.operations.known_tables import KnownTables, SettledMetadata, TableLocations
from artemis_lifecycle.operations.leases import Leases
from artemis_lifecycle.operations.lineage import GateAttempts, LedgerProgresses, LineageWatch, Publications
from artemis_lifecycle.operations.live_sets import LiveSets
from artemis_lifecycle.operations.locks import starters_lock
from artemis_lifecycle.operations.migrations import HEAD
from artemis_lifecycle.operations.outbox import Outbox
from artemis_lifecycle.operations.plans import Plans, Verdicts
from artemis_lifecycle.operations.quarantines import Quarantines
from artemis_lifecycle.operations.records import Records
from artemis_lifecycle.operations.rest_commits import RestCommits
from artemis_lifecycle.operations.roles import refusing
from artemis_lifecycle.operations.scans import Scans
from artemis_lifecycle.operations.steps import Steps
from artemis_lifecycle.operations.tables import SCHEMA, Part, metadata, rows
from artemis_lifecycle.postgres import CONNECT_SECONDS, STATEMENT_SECONDS, engine_for

_log = escaping.logger(__name__)

Purpose = Literal["lifecycle", "ingest", "gate"]

# Ingest commits are many and short. The lifecycle's are few, and its locks hold a connection for a while.
_FEWEST = 4
"""Characters of an id that may stand for it."""

_POOLS: dict[Purpose, tuple[int, int]] = {"lifecycle": (4, 12), "ingest": (8, 8), "gate": (2, 0)}
# Clients of the REST gate wait while it records what it refused; they get their answer without a record, too.
_SECONDS: dict[Purpose, tuple[float, int, float]] = {
    "lifecycle": (STATEMENT_SECONDS, CONNECT_SECONDS, 30),
    "ingest": (STATEMENT_SECONDS, CONNECT_SECONDS, 30),
    "gate": (2, 2, 2),
}
"""Seconds for a statement, for a connection, and for a free connection of the pool."""


def connect(uri: str, *, purpose: Purpose = "lifecycle") -> sa.Engine:
    """Return an engine with its own pool and `application_name` artemis-<purpose>, after a first successful connection.

    Raises OperationsUnavailable, without the password, if Postgres does not answer. The engine also raises it if the
    connection breaks later. Raises ConfigError for an invalid address.
    """
    url = _url(uri)
    size, overflow = _POOLS[purpose]
    statement_seconds, connect_seconds, pool_seconds = _SECONDS[purpose]
    engine = engine_for(
        url,
        statement_seconds=statement_seconds,
        # Transactions wait for locks, and must then see what was committed in the meantime. A server may have another
        # default.
        isolation_level="READ COMMITTED",
        pool_size=size,
        max_overflow=overflow,
        pool_timeout=pool_seconds,
        pool_pre_ping=True,
        connect_args={
            "application_name": f"artemis-{purpose}",
            "connect_timeout": connect_seconds,
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
        },
    )

    @sa.event.listens_for(engine, "handle_error")
    def _gone(context: ExceptionContext) -> None:
        if context.is_pre_ping or not isinstance(context.original_exception, Exception):
            # The pool makes a new connection in place of one that a restarted server has forgotten. An interrupt says
            # nothing about Postgres.
            return
        # Only for errors that mean that Postgres is unavailable; a failed statement keeps its error.
        broken = context.is_disconnect or (
            context.connection is None and isinstance(context.sqlalchemy_exception, OperationalError)
        )
        if broken:
            raise _unavailable(url, context.original_exception) from None
        if isinstance(context.original_exception, ValueError):
            # Raised by the driver before anything is sent: NUL, or an unpaired surrogate.
            raise BadInput(
                "A name or a text has a character that Postgres cannot store",
                untouched="the database",
                hint="leave out NUL characters and unpaired surrogates",
            ) from None

    try:
        engine.connect().close()
    except OperationsUnavailable:
        engine.dispose()
        raise
    except DBAPIError as error:
        engine.dispose()
        raise _unavailable(url, error.orig or error) from None
    return engine


@contextmanager
def connected(uri: str) -> Iterator[sa.Engine]:
    """Yield the engine of `connect`, and dispose of it at the end of the block."""
    engine = connect(uri)
    try:
        yield engine
    finally:
        engine.dispose()


def migrate(engine: sa.Engine) -> None:
    """Migrate schema `lifecycle` to this version, in one transaction. Concurrent starters wait for each other.

    An up-to-date schema is only read, so that a role without the right to create tables can open it. Raises
    OperationsUnavailable if the schema has a newer version than this package, or is not this project's.
    """
    revision = _usable(engine)
    if revision == HEAD:
        return
    from artemis_lifecycle.operations.migrations.running import upgrade

    with engine.begin() as connection:
        starters_lock(connection, "artemis-migrate")
        # Creating one that exists needs a right on the database, too.
        if connection.execute(sa.text(f"SELECT to_regnamespace('{SCHEMA}') IS NULL")).scalar():
            connection.execute(sa.text(f"CREATE SCHEMA {SCHEMA}"))
        if not upgrade(connection):
            raise OperationsUnavailable(
                f"Schema {SCHEMA} of {shown(engine.url)} is at revision {revision}, which this version does not know",
                untouched="the database",
                hint="use the version of artemis-lifecycle that created it, or a newer one",
            )


def schema_state(engine: sa.Engine) -> tuple[str | None, bool, str]:
    """Return (revision of schema `lifecycle` or None, whether this version knows it, the newest revision). Only
    reads. Raises OperationsUnavailable for a schema that is not this project's."""
    from artemis_lifecycle.operations.migrations.running import revisions

    found = _usable(engine)
    return found, found in revisions(), HEAD


# From the system catalogs, which every login may read; information_schema shows only what a login has rights to.
_COLUMNS = sa.text(
    "SELECT c.relname AS of_table, a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || "
    "CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END AS column_is FROM pg_class AS c "
    "JOIN pg_namespace AS n ON n.oid = c.relnamespace LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid "
    "AND a.attnum > 0 AND NOT a.attisdropped WHERE n.nspname = :schema AND c.relkind::text IN ('r', 'p', 'v', 'm', 'f')"
)
_VERSIONS = "alembic_version"


def _usable(engine: sa.Engine) -> str | None:
    """Return the revision of the schema, None where it has no tables. Reads Alembic's table without Alembic, which
    takes a tenth of a second to load. Raises OperationsUnavailable for a schema of others, and for one of this revision
    that has other columns than this version: until the first release, a revision is changed in place."""
    found = defaultdict[str, set[str]](set)
    with engine.connect() as connection:
        for of_table, column in connection.execute(_COLUMNS, {"schema": SCHEMA}):
            found[of_table].add(column)
        if not found:
            return None
        revision = None
        if found.get(_VERSIONS) == {"version_num character varying(32) NOT NULL"}:
            revision = connection.execute(sa.text(f"SELECT version_num FROM {SCHEMA}.{_VERSIONS}")).scalar()
    differences = list(_differences(found)) if revision == HEAD else []
    if revision is not None and not differences:
        return str(revision)
    said = f"has no {_VERSIONS} of this project, but {', '.join(sorted(found)[:5])}"
    if differences:
        said = f"is at revision {HEAD}, but not as this version makes it: {'; '.join(differences[:5])}"
    raise OperationsUnavailable(
        f"Schema {SCHEMA} of {shown(engine.url)} {said}",
        untouched="the database",
        hint="set operations.uri to a database whose schema of that name is this version's, or that has none; or use "
        "the version of artemis-lifecycle that made it",
    )


def _differences(found: dict[str, set[str]]) -> Iterator[str]:
    for table in metadata.sorted_tables:
        expected = {
            f"{column.name} {column.type.compile(_DIALECT).lower()}{'' if column.nullable else ' NOT NULL'}"
            for column in table.columns
        }
        if table.name not in found:
            yield f"table {table.name} is missing"
        elif found[table.name] != expected:
            yield f"table {table.name} differs in {', '.join(sorted(found[table.name] ^ expected))}"


_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_OWN_NAME = re.compile(rf"\b{SCHEMA}\.(\w+)")
_WRITES = re.compile(
    r"(?is)\s*(?:WITH\b.*\b)?(?:INSERT INTO|UPDATE|DELETE FROM|LOCK TABLE)\b|.*\bFOR (?:UPDATE|SHARE)\b"
)
_OBSERVED = frozenset(
    """
    catalog_looks health health_history held_bytes known_tables outbox seen_pointers sent_files table_locations
    """.split()  # noqa: SIM905
)
"""What questions record of what they saw, where they may."""


def _temporary(table: sa.Table) -> str:
    columns = []
    for each in table.columns:
        default = str(getattr(each.server_default, "arg", "nextval"))
        kind = each.type.compile(_DIALECT) + ("" if "nextval" in default else f" DEFAULT {default}")
        columns.append(f'"{each.name}" {"BIGSERIAL" if each.autoincrement is True else kind}')
    keys = ", ".join(f'"{each.name}"' for each in table.primary_key)
    columns += [f"PRIMARY KEY ({keys})"] if keys else []
    return f"CREATE TEMP TABLE IF NOT EXISTS {table.name} ({', '.join(columns)})"


class Clock(Part):
    """The Postgres clock: one clock for all machines that work on the tables."""

    def now(self) -> datetime:
        """Return the instant of the call, not of a transaction's start; aware, in UTC."""
        now: datetime = rows(self.engine, sa.select(sa.func.clock_timestamp()))[0][0]
        return now.astimezone(UTC)


class Operations:
    """All small mutable state, in one database."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._exists = True
        self.claim: Callable[[], object] | None = None
        self.clock = Clock(engine)
        self.plans = Plans(engine)
        self.journal = Journal(engine)
        self.handoffs = HandoffBatches(engine)
        self.leases = Leases(engine)
        self.holds = Holds(engine)
        self.decisions = Decisions(engine)
        self.heartbeats = Heartbeats(engine)
        self.steps = Steps(engine)
        self.scans = Scans(engine)
        self.tags = Tags(engine)
        self.restores = Restores(engine)
        self.deep_moves = DeepMoves(engine)
        self.thaws = Thaws(engine)
        self.quarantines = Quarantines(engine)
        self.pauses = Pauses(engine)
        self.scrubs = Scrubs(engine)
        self.known_tables = KnownTables(engine)
        self.records = Records(engine)
        self.outbox = Outbox(engine)
        self.table_locations = TableLocations(engine)
        self.settled_metadata = SettledMetadata(engine)
        self.verdicts = Verdicts(engine)
        self.check_results = CheckResults(engine)
        self.publications = Publications(engine)
        self.ledger_progress = LedgerProgresses(engine)
        self.waits = Waits(engine)
        self.rest_commits = RestCommits(engine)
        self.health = Health(engine)
        self.held_bytes = Held(engine)
        self.run_times = RunTimes(engine)
        self.gate_attempts = GateAttempts(engine)
        self.lineage_watch = LineageWatch(engine)
        self.live_sets = LiveSets(engine)

    @classmethod
    def open(cls, uri: str, *, purpose: Purpose = "lifecycle", make: bool = True) -> Self:
        """Connect and migrate. Without `make`, a schema that does not exist is made by the first write; until then its
        tables are empty. Raises OperationsUnavailable; Refused for a role without rights to the schema; ConfigError for
        an invalid address."""
        engine = connect(uri, purpose=purpose)
        opened = cls(engine)
        try:
            with refusing(
                f"The role of {shown(engine.url)} has no rights to schema {SCHEMA}",
                hint=f"its owner says: GRANT artemis_lifecycle TO {engine.url.username}; or artemis_ingest, to what "
                "only writes tables (docs/roles.md)",
            ):
                revision = _usable(engine)
            opened._exists = revision is not None
            if revision != HEAD and (make or opened._exists):
                opened.make()
        except BaseException:
            engine.dispose()
            raise
        sa.event.listen(engine, "before_cursor_execute", opened._before, retval=True)
        return opened

    def require_answer(self) -> None:
        """Raise OperationsUnavailable if Postgres does not answer on a new connection within seconds."""
        connect(self.engine.url.render_as_string(hide_password=False), purpose="gate").dispose()

    def full_id(self, given: str, columns: Iterable[str]) -> str:
        """Return the id that begins with `given`, with four characters or more after the word with which all ids of
        its kind begin (`hold-`), in any of `columns` (`plans.plan_id`); and `given` if none does. Raises BadInput for
        several."""
        found: set[str] = set()
        with self.engine.connect() as connection:
            for table, column in (each.split(".") for each in columns if len(given) >= _FEWEST):
                known = metadata.tables[f"{SCHEMA}.{table}"].c[column]
                query = sa.select(known).where(known.startswith(given, autoescape=True)).order_by(known).limit(4)
                # Nothing but the word of their kind names none.
                ids = connection.execute(query).scalars()
                found.update(each for each in ids if len(given) >= each.rfind("-") + 1 + _FEWEST)
        if given in found or not found:
            return given
        if len(found) > 1:
            raise BadInput(f"Several ids begin with {given}", hint=f"write more of it: {', '.join(sorted(found)[:4])}")
        return found.pop()

    @property
    def exists(self) -> bool:
        """Whether the schema is there. Until it is, each question looks: another process may have made it."""
        self._exists = self._exists or _usable(self.engine) is not None
        return self._exists

    def make(self) -> None:
        """Make or migrate the schema. Raises Refused, with the statement for the owner, where this login may not."""
        existed, claim = self._exists, self.claim
        self._exists, self.claim = True, None
        try:
            with self._may_not_make():
                migrate(self.engine)
        except BaseException:
            self._exists = existed
            raise
        finally:
            self.claim = claim
        if not existed:
            _log.warning("Schema %s was made in %s, with its roles (docs/roles.md)", SCHEMA, shown(self.engine.url))

    def _may_not_make(self) -> AbstractContextManager[None]:
        return refusing(
            f"Schema {SCHEMA} does not exist, and the role of {shown(self.engine.url)} may not make it",
            hint=f"run as a login that may: artemis init; or its administrator says: GRANT CREATE ON DATABASE "
            f"{self.engine.url.database} TO {self.engine.url.username}",
        )

    def _before(
        self, connection: sa.Connection, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool
    ) -> tuple[str, Any]:
        """Before the first write, make the schema and claim the catalog. A question before that finds empty tables of
        its own session, and leaves nothing behind."""
        names = set() if self._exists and self.claim is None else set(_OWN_NAME.findall(statement)) - {_VERSIONS}
        if not names:
            return statement, parameters
        # Another process may have made it: a daemon must not go on without its holds and plans.
        self._exists = self._exists or _usable(self.engine) is not None
        tables = [table for table in metadata.sorted_tables if table.name in names]
        writes = _WRITES.match(statement) is not None and not names <= _OBSERVED
        # A sequence or a function has no empty twin.
        if not self._exists and (writes or len(tables) < len(names)):
            self.make()
        # A writer of tables does not claim the catalog, because it may lack the right.
        if writes and self.claim is not None and not names <= {"heartbeats", "locks"}:
            claim, self.claim = self.claim, None
            try:
                claim()
            except BaseException:
                self.claim = claim
                raise
        if not self._exists:
            with self._may_not_make():
                for table in tables:
                    cursor.execute(_temporary(table))
            return _OWN_NAME.sub(r"pg_temp.\1", statement), parameters
        return statement, parameters

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _url(uri: str) -> sa.URL:
    try:
        url = sa.make_url(uri)
        url.get_dialect()
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError) as error:
        raise ConfigError(
            f"The address of Postgres cannot be used ({type(error).__name__})",
            hint="use postgresql+psycopg2://USER:PASSWORD@HOST:PORT/DATABASE",
        ) from None
    if url.get_backend_name() != "postgresql":
        raise ConfigError(
            f"{shown(url)} is not a PostgreSQL address",
            hint="use postgresql+psycopg2://USER:PASSWORD@HOST:PORT/DATABASE",
        )
    return url


def shown(url: sa.URL) -> str:
    """Return an address in a form that is safe for messages: libpq accepts a password in the query, so the query is
    omitted."""
    return url.set(query={}).render_as_string(hide_password=True)


def _unavailable(url: sa.URL, error: BaseException) -> OperationsUnavailable:
    reason = " ".join(str(error).split())
    if url.password:
        reason = reason.replace(str(url.password), "***")
    return OperationsUnavailable(
        f"Postgres at {shown(url)} cannot be reached: {reason}",
        untouched="everything that was not yet written",
        hint="start it, or fix its address or password: operations.uri, catalogs.*.uri, ARTEMIS_POSTGRES_URI or --uri",
    )


# --- identity ---------------------------------------------------------------------------------------------------------
# The identity of the operations database.

_SERVER = sa.text("SELECT system_identifier::text FROM pg_control_system()")
_IDENTITY = sa.text(
    "SELECT operations_id, (SELECT oid FROM pg_database WHERE datname = current_database()) || '/' || "
    "'lifecycle.identity'::regclass::oid, pg_postmaster_start_time(), "
    "has_function_privilege('pg_control_system()', 'EXECUTE') FROM lifecycle.identity"
)


@dataclass(frozen=True)
class Deployment:
    """An operations database and its root.

    `operations_id` is created once, and is copied with backups and clones. `server` (the Postgres system identifier;
    None if the role may not read it) and `place` (the oids of the database and of the identity table) are not copied.
    `address` is for people: host, port and database.
    """

    operations_id: str
    server: str | None
    place: str
    address: str
    root: str

    def difference(self, other: Deployment) -> str | None:
        """Return why the two are different deployments; None if they are the same."""
        if self.operations_id != other.operations_id:
            return "it is another operations database"
        servers = {self.server, other.server} - {None}
        if self.place != other.place or len(servers) > 1:
            return "it is a copy of the operations database, a clone or a restored backup"
        if self.root != other.root:
            return f"operations.root differs ({self.root}, not {other.root})"
        return None


NOT_MADE = Deployment("not made yet", None, "", "operations.uri", "operations.root")
"""Without its schema, a database has no identity: a catalog that belongs to any deployment is another's."""


def read_deployment(engine: sa.Engine, root: str) -> Deployment:
    """Read the current identity of the operations database behind `engine`; `root` in its normal form."""
    with engine.connect() as connection:
        operations_id, place, started_at, may_read = connection.execute(_IDENTITY).one()
        # A running server keeps its identifier. A pooler can put another server behind a connection.
        known = connection.info.get(_SERVER)
        if known is None or known[0] != (started_at, may_read):
            server = None
            if may_read:
                try:
                    server = str(connection.execute(_SERVER).scalar_one())
                except DBAPIError:
                    # Some managed servers have the function but refuse to answer; then only the oids distinguish
                    # clones.
                    connection.rollback()
            known = connection.info[_SERVER] = ((started_at, may_read), server)
    return Deployment(str(operations_id), known[1], str(place), _address(engine.url), root)


def _address(url: sa.URL) -> str:
    host = url.host or url.query.get("host") or "the local socket"
    return f"{host}:{url.port or 5432}/{url.database or ''}"
