"""Several live tables, a cold catalog and an operations database, as one seed of the machine sees them.

A world is new catalogs and folders in the databases that all worlds of a process share; what the last world left in the
operations schema goes first. What others do to it stands in `writers`, `catalog`, `tools` and `stores`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psycopg2
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import lifecycle_conf
from artemis_lifecycle.config.deployment import Operations
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle_tests.conftest import configs
from artemis_lifecycle_tests.foreign.actions import CannotNowError, Draw
from artemis_lifecycle_tests.foreign.core import Core, Described, made_up, write_rows
from artemis_lifecycle_tests.guardian import on_disk

NAMES = ("a", "b", "c", "k", "n", "q", "x.y")
"""Table names. The files of `q` go to quarantine, `k` has its old metadata cleaned, `n` has no archive, and the last
one has a dot."""
UNARCHIVED = "n"
MANY_DAYS = timedelta(days=20)

SHADOW = """
CREATE SCHEMA IF NOT EXISTS shadow;
CREATE TABLE IF NOT EXISTS shadow.skew (days double precision NOT NULL);
DELETE FROM shadow.skew;
INSERT INTO shadow.skew VALUES (0);
CREATE OR REPLACE FUNCTION shadow.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  'SELECT pg_catalog.clock_timestamp() + make_interval(secs => 86400 * (SELECT days FROM shadow.skew))';
"""
"""A clock of Postgres that can be set, before its own in every later session's search path."""

POLICIES: dict[str, Any] = {
    "defaults": {
        "retention": {"window": "1ms"},
        "deletion": {"grace": "0s"},
        "orphans": {"min_age": "24h", "min_age_floor": "24h"},
        "cold_tier": {"retain": "1ms", "scrub_every": "1s"},
    },
    "tables": {
        "db.*": {},
        "db.k": {"retention": {"window": "1ms", "clean_metadata": True}},
        "db.n": {"cold_tier": {"enabled": False}},
        "db.q": {"deletion": {"grace": "0s", "mode": "quarantine"}},
    },
}
"""All but the current snapshot expire, and their files may go at once. Orphans must be a day old by their times."""


def libpq(uri: str) -> str:
    return uri.replace("+psycopg2", "", 1)


@contextmanager
def connected(uri: str) -> Iterator[Any]:
    """A cursor whose statements are one transaction."""
    connection = psycopg2.connect(libpq(uri))
    try:
        with connection, connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def prepare_clock(uri: str) -> None:
    """Before anything else connects to the database."""
    with connected(uri) as cursor:
        cursor.execute(SHADOW)
        cursor.execute("SELECT current_database()")
        cursor.execute(f'ALTER DATABASE "{cursor.fetchone()[0]}" SET search_path = public, shadow, pg_catalog')


def of_operations(cursor: Any) -> Sequence[str]:
    cursor.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'lifecycle' AND tablename <> 'alembic_version' ORDER BY 1"
    )
    return [row[0] for row in cursor.fetchall()]


def called(name: str) -> str:
    """The table's name for the lifecycle."""
    return f"db.`{name}`" if "." in name else f"db.{name}"


class Object(NamedTuple):
    """What a catalog names: `kind` is TABLE or VIEW."""

    catalog: str
    namespace: str
    name: str
    kind: str
    location: str


@dataclass(frozen=True)
class Held:
    """A hold: the deployment that it was placed in, the table's uuid, and the snapshots."""

    lifecycle: Lifecycle
    table_uuid: str
    snapshots: frozenset[int]


@dataclass
class World:
    """`uris`: the operations databases of this deployment, whose catalogs are there too, and of another one."""

    spark: SparkSession
    core: Core
    folder: Path
    uris: tuple[str, str]
    policies: dict[str, Any] = field(default_factory=lambda: POLICIES)
    config: LifecycleConfig = field(init=False)
    lifecycle: Lifecycle = field(init=False)
    second: Lifecycle | None = None
    in_flight: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Files of writers at work that no snapshot has yet: (table uuid, whether a heartbeat protects it)."""
    untouchable: set[Path] = field(default_factory=set)
    """Other systems' files, and people's."""
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Metadata files that no catalog names and that still count, and why: `dropped`, `future`."""
    single: dict[str, str] = field(default_factory=dict)
    """Futures of one commit, and the pointer below them: the next commit to that shows that the writer lost."""
    flipped: set[str] = field(default_factory=set)
    """Archived files whose bytes, and not whose size, others changed."""
    damaged: dict[str, int] = field(default_factory=dict)
    """Those, and those that others cut: their times since then."""
    holds: dict[str, Held] = field(default_factory=dict)
    unarchived: set[str] = field(default_factory=set)
    """Uuids of tables that had the name without an archive."""
    paths: dict[str, str] = field(default_factory=dict)
    """Data files that were ever written by name, and the table's uuid."""
    live_set: str | None = None
    """The latest mark that was not swept."""
    backup: dict[str, bytes] | None = None
    _next: int = 0

    def __post_init__(self) -> None:
        self._stack = ExitStack()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clear_operations()
        self.config = self._stack.enter_context(configs(self.uris[0], self.spark, self.folder))(**self.policies)
        self._connection = psycopg2.connect(libpq(self.uris[0]))
        self._connection.autocommit = True
        self._stack.callback(self._connection.close)
        self.lifecycle = Lifecycle.open(self.config, spark=self.spark, owner="first")
        self._stack.callback(self.lifecycle.resources.close)
        # Its database stands from the beginning.
        assert self.lifecycle.operations.clock.now()
        self.warehouse.mkdir(parents=True, exist_ok=True)
        self.other_spelling.symlink_to(self.warehouse)
        prefix = f"spark.sql.catalog.{self.live}."
        options = {
            key.removeprefix(prefix): value
            for key, value in lifecycle_conf(self.config).items()
            if key.startswith(prefix) and not key.endswith((".catalog-impl", ".type"))
        }
        self.catalog = self.core.open(self.live, {**options, "clients": "1"})
        self._stack.callback(self.catalog.close)
        self.core.java.makeNamespace(self.catalog)

    def _clear_operations(self) -> None:
        """What earlier worlds recorded. Schemas and indexes stay."""
        for uri in self.uris:
            with connected(uri) as cursor:
                cursor.execute("SET LOCAL session_replication_role = replica")
                found = [table for table in of_operations(cursor) if table != "identity"]
                if found:
                    cursor.execute(";".join(f"DELETE FROM lifecycle.{table}" for table in found))

    def close(self) -> None:
        self.set_clock(0)
        if self.second is not None:
            self.second.resources.close()
        self._stack.close()
        self.core.forget()

    # --- what it is made of -----------------------------------------------------------------------------------------

    @property
    def live(self) -> str:
        return self.config.catalogs.live.name

    @property
    def cold(self) -> str:
        return self.config.catalogs.cold.name

    @property
    def warehouse(self) -> Path:
        return on_disk(str(self.config.catalogs.live.warehouse))

    @property
    def other_spelling(self) -> Path:
        return self.warehouse.with_name("live-also")

    @property
    def cold_warehouse(self) -> Path:
        return on_disk(str(self.config.catalogs.cold.warehouse))

    @property
    def state(self) -> Path:
        return on_disk(str(self.config.operations.root))

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return [] if cursor.description is None else cursor.fetchall()

    def sql(self, statement: str, **values: Any) -> list[Any]:
        return self.spark.sql(statement.format(live=self.live, **values)).collect()

    def objects(self) -> list[Object]:
        """Of both catalogs, the live one's first."""
        rows = self.query(
            "SELECT catalog_name, table_namespace, table_name, coalesce(iceberg_type, 'TABLE'), metadata_location "
            "FROM iceberg_tables WHERE catalog_name IN (%s, %s) AND metadata_location IS NOT NULL "
            "ORDER BY catalog_name <> %s, 2, 3",
            self.live,
            self.cold,
            self.live,
        )
        return [Object(*row) for row in rows]

    def names(self, kind: str = "TABLE") -> list[str]:
        """Of the live catalog's tables, or views, without the namespace."""
        of = (self.live, "db", kind)
        return [each.name for each in self.objects() if (each.catalog, each.namespace, each.kind) == of]

    def pointer(self, name: str) -> str:
        rows = self.query(
            "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = %s AND table_namespace = 'db' "
            "AND table_name = %s AND coalesce(iceberg_type, 'TABLE') = 'TABLE'",
            self.live,
            name,
        )
        if not rows:
            raise CannotNowError(name)
        return str(rows[0][0])

    def described(self, name: str) -> Described:
        return self.core.describe(self.pointer(name))

    def java(self, name: str) -> Any:
        self.pointer(name)
        return self.core.java.load(self.catalog, name)

    def place(self, name: str) -> Path:
        return on_disk(self.described(name).base)

    def uuid(self, name: str) -> str:
        return self.described(name).uuid

    def ids(self, name: str) -> list[int]:
        """Snapshots in the order of their commits."""
        found = self.described(name).order
        if not found:
            raise CannotNowError(name)
        return found

    def one_table(self, draw: Draw) -> str:
        names, is_focused = self.names(), draw.chance(0.6)
        if is_focused and draw.focus in names:
            return draw.one([name for name in names if name == draw.focus])
        return draw.one(names)

    @property
    def next_number(self) -> int:
        return self._next + 1

    def number(self) -> int:
        self._next += 1
        return self._next

    def write(
        self,
        name: str,
        table: Any,
        *,
        records: int = 4,
        path: str | None = None,
        rows: Sequence[Mapping[str, object]] | None = None,
    ) -> str:
        """A data file that no snapshot has yet, of new rows or of such; returns its line."""
        number = self.number()
        path = path or table.locationProvider().newDataLocation(f"part-{number}.parquet")
        found = [line.split("\t") for line in self.core.java.columns(table).splitlines()]
        columns = [(int(field_id), column) for field_id, column in found]
        self.paths[path] = self.uuid(name)
        new = [made_up(10 * number + each, columns) for each in range(records)]
        return write_rows(path, new if rows is None else rows, columns)

    def create(self, name: str, location: Path | None, version: int) -> None:
        place = None if location is None else f"file://{location}"
        self.core.java.create(self.catalog, name, place, version)
        if name == UNARCHIVED:
            self.unarchived.add(self.uuid(name))
        for _ in range(2):
            table = self.java(name)
            self.core.java.append(table, "main", self.write(name, table))

    # --- clocks -----------------------------------------------------------------------------------------------------

    @contextmanager
    def clock_at(self, days: float) -> Iterator[None]:
        """Postgres' clock is wrong for a while."""
        if not days:
            yield
            return
        self.set_clock(days)
        try:
            yield
        finally:
            self.set_clock(0)

    def set_clock(self, days: float) -> None:
        self.query("UPDATE shadow.skew SET days = %s", days)

    def require_right_clock(self) -> None:
        """By a clock that is 40 days late a heartbeat has lapsed when the clock is set right. Its writer would learn it
        at the next beat, and not commit; this one does not beat again."""
        if self.query("SELECT days FROM shadow.skew")[0][0]:
            raise CannotNowError("clock")

    # --- deployments ------------------------------------------------------------------------------------------------

    def deployments(self) -> Iterator[tuple[Lifecycle, str]]:
        """With the databases of their operations."""
        yield self.lifecycle, self.uris[0]
        if self.second is not None:
            yield self.second, self.uris[1]

    def second_deployment(self) -> Lifecycle:
        """Another installation on the same catalogs, with an operations database and a root of its own."""
        if self.second is None:
            home = Path(f"{self.config.home}-second")
            operations = Operations(uri=self.uris[1], root=f"file://{home}/state")
            config = self.config.model_copy(update={"operations": operations, "home": home})
            second = Lifecycle.open(config, spark=self.spark, owner="second")
            assert second.operations.clock.now()
            self.second = second
        return self.second

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def make_old(path: Path) -> None:
    at = (datetime.now(UTC) - MANY_DAYS).timestamp()
    os.utime(path, (at, at))
