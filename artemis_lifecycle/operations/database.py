"""Access to Postgres: engines by purpose, migrations, and `Operations`, which combines all parts of this room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Self

from sqlalchemy import URL, Connection, Engine, event, make_url, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError

from artemis_lifecycle.errors import BadInput, ConfigError, OperationsUnavailable
from artemis_lifecycle.operations.check_results import CheckResults
from artemis_lifecycle.operations.clock import Clock
from artemis_lifecycle.operations.decisions import Decisions
from artemis_lifecycle.operations.deep_archive import DeepMoves, Thaws
from artemis_lifecycle.operations.gate_attempts import GateAttempts
from artemis_lifecycle.operations.health import Health
from artemis_lifecycle.operations.heartbeats import Heartbeats
from artemis_lifecycle.operations.held_bytes import Held
from artemis_lifecycle.operations.holds import Holds
from artemis_lifecycle.operations.journal import HandoffBatches, Journal
from artemis_lifecycle.operations.known_tables import KnownTables
from artemis_lifecycle.operations.leases import Leases
from artemis_lifecycle.operations.ledger_progress import LedgerProgresses
from artemis_lifecycle.operations.lineage_watch import LineageWatch
from artemis_lifecycle.operations.live_sets import LiveSets
from artemis_lifecycle.operations.locks import starters_lock
from artemis_lifecycle.operations.migrations import HEAD
from artemis_lifecycle.operations.pauses import Pauses
from artemis_lifecycle.operations.plans import Plans
from artemis_lifecycle.operations.publications import Publications
from artemis_lifecycle.operations.quarantines import Quarantines
from artemis_lifecycle.operations.records import Records
from artemis_lifecycle.operations.restores import Restores
from artemis_lifecycle.operations.roles import refusing
from artemis_lifecycle.operations.run_times import RunTimes
from artemis_lifecycle.operations.scans import Scans
from artemis_lifecycle.operations.scrubs import Scrubs
from artemis_lifecycle.operations.settled_metadata import SettledMetadata
from artemis_lifecycle.operations.steps import Steps
from artemis_lifecycle.operations.table_locations import TableLocations
from artemis_lifecycle.operations.tables import SCHEMA
from artemis_lifecycle.operations.tags import Tags
from artemis_lifecycle.operations.verdicts import Verdicts
from artemis_lifecycle.operations.waits import Waits
from artemis_lifecycle.postgres import CONNECT_SECONDS, STATEMENT_SECONDS, engine_for

Purpose = Literal["lifecycle", "ingest", "gate"]

# Ingest commits are many and short. The lifecycle's are few, and its locks hold a connection for a while.
_POOLS: dict[Purpose, tuple[int, int]] = {"lifecycle": (4, 12), "ingest": (8, 8), "gate": (2, 0)}
# Clients of the REST gate wait while it records what it refused; they get their answer without a record, too.
_SECONDS: dict[Purpose, tuple[float, int, float]] = {
    "lifecycle": (STATEMENT_SECONDS, CONNECT_SECONDS, 30),
    "ingest": (STATEMENT_SECONDS, CONNECT_SECONDS, 30),
    "gate": (2, 2, 2),
}
"""Seconds for a statement, for a connection, and for a free connection of the pool."""


def connect(uri: str, *, purpose: Purpose = "lifecycle") -> Engine:
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

    @event.listens_for(engine, "handle_error")
    def _gone(context: ExceptionContext) -> None:
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
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except OperationsUnavailable:
        engine.dispose()
        raise
    except DBAPIError as error:
        engine.dispose()
        raise _unavailable(url, error.orig or error) from None
    return engine


@contextmanager
def connected(uri: str) -> Iterator[Engine]:
    """Yield the engine of `connect`, and dispose of it at the end of the block."""
    engine = connect(uri)
    try:
        yield engine
    finally:
        engine.dispose()


def migrate(engine: Engine) -> None:
    """Migrate schema `lifecycle` to this version, in one transaction. Concurrent starters wait for each other.

    An up-to-date schema is only read, so that a role without the right to create tables can open it. Raises
    OperationsUnavailable if the schema has a newer version than this package.
    """
    with engine.connect() as connection:
        if _revision(connection) == HEAD:
            return
    from artemis_lifecycle.operations.migrations.running import upgrade

    with engine.begin() as connection:
        starters_lock(connection, "artemis-migrate")
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        if not upgrade(connection):
            raise OperationsUnavailable(
                f"Schema {SCHEMA} of {shown(engine.url)} is at revision {_revision(connection)}, which this "
                "version does not know",
                untouched="the database",
                hint="use the version of artemis-lifecycle that created it, or a newer one",
            )


def schema_state(engine: Engine) -> tuple[str | None, bool, str]:
    """Return (revision of schema `lifecycle` or None, whether this version knows it, the newest revision). Only
    reads."""
    from artemis_lifecycle.operations.migrations.running import revisions

    with engine.connect() as connection:
        found = _revision(connection)
    return found, found in revisions(), HEAD


def _revision(connection: Connection) -> str | None:
    """Return the schema's revision. Reads Alembic's table without Alembic, which takes a tenth of a second to load."""
    table = f"{SCHEMA}.alembic_version"
    if connection.execute(text("SELECT to_regclass(:table)"), {"table": table}).scalar() is None:
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {table}")).scalar()
    return found


class Operations:
    """All small mutable state, in one database."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
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
        self.table_locations = TableLocations(engine)
        self.settled_metadata = SettledMetadata(engine)
        self.verdicts = Verdicts(engine)
        self.check_results = CheckResults(engine)
        self.publications = Publications(engine)
        self.ledger_progress = LedgerProgresses(engine)
        self.waits = Waits(engine)
        self.health = Health(engine)
        self.held_bytes = Held(engine)
        self.run_times = RunTimes(engine)
        self.gate_attempts = GateAttempts(engine)
        self.lineage_watch = LineageWatch(engine)
        self.live_sets = LiveSets(engine)

    @classmethod
    def open(cls, uri: str, *, purpose: Purpose = "lifecycle") -> Self:
        """Connect and migrate. Raises OperationsUnavailable; Refused for a role without rights to the schema;
        ConfigError for an invalid address."""
        engine = connect(uri, purpose=purpose)
        try:
            with refusing(
                f"The role of {shown(engine.url)} has no rights to schema {SCHEMA}",
                hint="GRANT artemis_lifecycle to it, or artemis_ingest to what only writes tables (docs/roles.md)",
            ):
                migrate(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _url(uri: str) -> URL:
    try:
        url = make_url(uri)
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


def shown(url: URL) -> str:
    """Return an address in a form that is safe for messages: libpq accepts a password in the query, so the query is
    omitted."""
    return url.set(query={}).render_as_string(hide_password=True)


def _unavailable(url: URL, error: BaseException) -> OperationsUnavailable:
    reason = " ".join(str(error).split())
    if url.password:
        reason = reason.replace(str(url.password), "***")
    return OperationsUnavailable(
        f"Postgres at {shown(url)} cannot be reached: {reason}",
        untouched="everything that was not yet written",
        hint="start it, or fix operations.uri and catalogs.*.uri in lifecycle.yaml (or ARTEMIS_POSTGRES_URI)",
    )
