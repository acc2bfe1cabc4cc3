"""Two live tables, one operations database, and everything that others do to them: engines, tools, stores, people.

The lifecycle does not hear of it. What an action cannot do just now (a name that is taken, a snapshot that is no
ancestor), it does not do.
"""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg2
from pyspark.sql import SparkSession

from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.config.deployment import Operations
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle_tests.guardian import GUARDIAN, on_disk
from artemis_lifecycle_tests.past_the_guard import past_the_guard

NAMES = ("a", "b", "c", "q", "x.y")
"""Table names; `q` has its files moved to quarantine, and the last one has a dot."""
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
    "tables": {"db.*": {}, "db.q": {"deletion": {"grace": "0s", "mode": "quarantine"}}},
}
"""All but the current snapshot expire, and their files may go at once. Orphans must be a day old by their times."""


def libpq(uri: str) -> str:
    return uri.replace("+psycopg2", "", 1)


def prepare_clock(uri: str) -> None:
    """Before anything else connects to the database."""
    with connected(uri) as cursor:
        cursor.execute(SHADOW)
        cursor.execute("SELECT current_database()")
        cursor.execute(f'ALTER DATABASE "{cursor.fetchone()[0]}" SET search_path = public, shadow, pg_catalog')


@contextmanager
def connected(uri: str) -> Iterator[Any]:
    connection = psycopg2.connect(libpq(uri))
    try:
        with connection, connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


class CannotNowError(Exception):
    """The world is not so that an action has something to do."""


@dataclass
class World:
    """`second_uri`: the operations database of another deployment on the same catalogs."""

    config: LifecycleConfig
    spark: SparkSession
    second_uri: str
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
    _next: int = 0
    _backup: dict[str, bytes] | None = None

    def __post_init__(self) -> None:
        self.lifecycle = Lifecycle.open(self.config, spark=self.spark, owner="first")
        # Its database stands from the beginning.
        assert self.lifecycle.operations.clock.now()
        self.warehouse.mkdir(parents=True, exist_ok=True)
        self.other_spelling.symlink_to(self.warehouse)
        self.sql("CREATE NAMESPACE {live}.db")
        for name in ("a", "b"):
            self.create(name)

    # --- what it is made of -----------------------------------------------------------------------------------------

    @property
    def live(self) -> str:
        return self.config.catalogs.live.name

    @property
    def uri(self) -> str:
        return str(self.config.operations.uri)

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

    def close(self) -> None:
        self.lifecycle.close()
        if self.second is not None:
            self.second.close()
        with connected(self.uri) as cursor:
            cursor.execute("UPDATE shadow.skew SET days = 0")
            names = [self.live, self.config.catalogs.cold.name]
            # The next world's tables have no neighbors in this one.
            with past_the_guard(cursor.execute):
                cursor.execute("DELETE FROM iceberg_tables WHERE catalog_name = ANY(%s)", (names,))

    def sql(self, statement: str, **values: Any) -> list[Any]:
        return self.spark.sql(statement.format(live=self.live, **values)).collect()

    def tables(self) -> list[str]:
        """Names (without the namespace) of the live tables."""
        with connected(self.uri) as cursor:
            cursor.execute(
                "SELECT table_name FROM iceberg_tables WHERE catalog_name = %s AND table_namespace = 'db' ORDER BY 1",
                (self.live,),
            )
            return [row[0] for row in cursor.fetchall()]

    def pointer(self, name: str) -> str:
        with connected(self.uri) as cursor:
            cursor.execute(
                "SELECT metadata_location FROM iceberg_tables "
                "WHERE catalog_name = %s AND table_namespace = 'db' AND table_name = %s",
                (self.live, name),
            )
            row = cursor.fetchone()
        if row is None:
            raise CannotNowError(name)
        return str(row[0])

    def java(self, name: str) -> Any:
        jvm: Any = self.spark._jvm
        spark3 = jvm.org.apache.iceberg.spark.Spark3Util
        return spark3.loadIcebergTable(self.spark._jsparkSession, f"{self.live}.db.`{name}`")

    def place(self, name: str) -> Path:
        return on_disk(self.java(name).location())

    def uuid(self, name: str) -> str:
        return str(self.java(name).uuid().toString())

    def ids(self, name: str) -> list[int]:
        found = [snapshot.snapshotId() for snapshot in self.java(name).snapshots()]
        if not found:
            raise CannotNowError(name)
        return found

    def ancestors(self, name: str) -> list[int]:
        rows = self.sql("SELECT snapshot_id FROM {live}.db.`{name}`.history WHERE is_current_ancestor", name=name)
        return [row[0] for row in rows]

    def _data_file(self, name: str) -> Any:
        """Iceberg's own object for some data file that the table's current snapshot added."""
        table = self.java(name)
        for snapshot in reversed(list(table.snapshots())):
            for file in snapshot.addedDataFiles(table.io()):
                if on_disk(file.location()).exists():
                    return file
        raise CannotNowError(name)

    def number(self) -> int:
        self._next += 1
        return self._next

    # --- writers ----------------------------------------------------------------------------------------------------

    def create(self, name: str, location: Path | None = None) -> None:
        place = "" if location is None else f"LOCATION 'file://{location}'"
        self.sql(
            "CREATE TABLE {live}.db.`{name}` (id bigint, name string) USING iceberg {place} TBLPROPERTIES "
            "('format-version'='2', 'write.delete.mode'='merge-on-read', 'write.distribution-mode'='none')",
            name=name,
            place=place,
        )
        self.append(name)
        self.append(name)

    def append(self, name: str) -> None:
        start = 10 * self.number()
        self.sql(
            "INSERT INTO {live}.db.`{name}` SELECT /*+ COALESCE(1) */ id, 'row' FROM range({start}, {end})",
            name=name,
            start=start,
            end=start + 4,
        )

    def overwrite(self, name: str) -> None:
        start = 10 * self.number()
        self.sql("INSERT OVERWRITE {live}.db.`{name}` VALUES ({start}, 'instead')", name=name, start=start)

    def delete_rows(self, name: str) -> None:
        self.sql("DELETE FROM {live}.db.`{name}` WHERE id % 4 = 1", name=name)

    def compact(self, name: str) -> None:
        self.sql(
            "CALL {live}.system.rewrite_data_files(table => 'db.`{name}`', options => map('rewrite-all', 'true'))",
            name=name,
        )

    def rewrite_manifests(self, name: str) -> None:
        self.sql("CALL {live}.system.rewrite_manifests(table => 'db.`{name}`')", name=name)

    def compute_statistics(self, name: str) -> None:
        self.sql("CALL {live}.system.compute_table_stats(table => 'db.`{name}`')", name=name)

    def roll_back(self, name: str) -> None:
        older = self.ancestors(name)[:-1]
        if not older:
            raise CannotNowError(name)
        self.sql("CALL {live}.system.rollback_to_snapshot('db.`{name}`', {id})", name=name, id=older[-1])

    def set_current(self, name: str, which: int) -> None:
        ids = self.ids(name)
        self.sql("CALL {live}.system.set_current_snapshot('db.`{name}`', {id})", name=name, id=ids[which % len(ids)])

    def stage_and_pick(self, name: str, and_append: bool) -> None:
        """Write-audit-publish: a staged snapshot, cherry-picked."""
        wap = f"wap-{self.number()}"
        self.sql("ALTER TABLE {live}.db.`{name}` SET TBLPROPERTIES ('write.wap.enabled'='true')", name=name)
        self.spark.conf.set("spark.wap.id", wap)
        try:
            self.append(name)
        finally:
            self.spark.conf.unset("spark.wap.id")
        if and_append:
            self.append(name)
        self.sql("CALL {live}.system.publish_changes(table => 'db.`{name}`', wap_id => '{wap}')", name=name, wap=wap)

    def name_it(self, name: str, kind: str, which: int) -> None:
        ids = self.ids(name)
        self.sql(
            "ALTER TABLE {live}.db.`{name}` CREATE {kind} `{ref}` AS OF VERSION {id}",
            name=name,
            kind=kind,
            ref=f"{kind.lower()}-{self.number()}",
            id=ids[which % len(ids)],
        )

    def unname(self, name: str) -> None:
        refs = self.sql("SELECT name, type FROM {live}.db.`{name}`.refs WHERE name <> 'main'", name=name)
        if not refs:
            raise CannotNowError(name)
        self.sql("ALTER TABLE {live}.db.`{name}` DROP {kind} `{ref}`", name=name, kind=refs[0][1], ref=refs[0][0])

    def append_to_branch(self, name: str) -> None:
        refs = self.sql("SELECT name FROM {live}.db.`{name}`.refs WHERE type = 'BRANCH' AND name <> 'main'", name=name)
        if not refs:
            raise CannotNowError(name)
        self.sql(
            "INSERT INTO {live}.db.`{name}`.`branch_{ref}` VALUES ({id}, 'branched')",
            name=name,
            ref=refs[0][0],
            id=10 * self.number(),
        )

    def stage_file(self, name: str, beats: bool) -> None:
        """A writer's file that no snapshot has yet. It is young; or old, and the writer's heartbeat protects it."""
        self._require_right_clock()
        place = on_disk(self._data_file(name).location())
        target = place.with_name(f"in-flight-{self.number()}.parquet")
        shutil.copyfile(place, target)
        table_uuid = self.uuid(name)
        if beats:
            self.lifecycle.operations.heartbeats.beat(table_uuid, f"db.{name}", "writer", None, timedelta(hours=1))
            make_old(target)
        self.in_flight[str(target)] = (table_uuid, beats)

    def _require_right_clock(self) -> None:
        """By a clock that is 40 days late a heartbeat has lapsed when the clock is set right. Its writer would learn it
        at the next beat, and not commit; this one does not beat again."""
        with connected(self.uri) as cursor:
            cursor.execute("SELECT days FROM shadow.skew")
            if cursor.fetchone()[0]:
                raise CannotNowError("clock")

    def take_up_expired_file(self, name: str) -> None:
        """A writer that still has a file at hand that only an expired snapshot had, and says that it writes."""
        self._require_right_clock()
        table_uuid = self.uuid(name)
        for record in self.lifecycle.plans(f"db.{name}"):
            if record.status in ("committed", "deleting"):
                for row in self.lifecycle.plan(record.plan_id).files().where("kind = 'data'").collect():
                    if on_disk(row["path"]).exists():
                        self.lifecycle.operations.heartbeats.beat(
                            table_uuid, f"db.{name}", "writer", None, timedelta(hours=1)
                        )
                        self.in_flight[str(on_disk(row["path"]))] = (table_uuid, True)
                        return
        raise CannotNowError(name)

    def commit_staged(self, name: str) -> None:
        table_uuid = self.uuid(name)
        mine = [path for path, (owner, _) in self.in_flight.items() if owner == table_uuid]
        if not mine:
            raise CannotNowError(name)
        jvm: Any = self.spark._jvm
        table, like, append = self.java(name), self._data_file(name), self.java(name).newAppend()
        for path in mine:
            if "in-flight" in path:
                file = jvm.org.apache.iceberg.DataFiles.builder(table.spec()).copy(like).withPath(f"file:{path}")
                append.appendFile(file.withFileSizeInBytes(os.path.getsize(path)).build())
            del self.in_flight[path]
        append.commit()
        self.lifecycle.operations.heartbeats.stop(table_uuid, "writer")

    # --- other tools ------------------------------------------------------------------------------------------------

    def expire_by_iceberg(self, name: str, with_files: bool) -> None:
        if with_files:
            time.sleep(0.002)
            self.sql(
                "CALL {live}.system.expire_snapshots(table => 'db.`{name}`', older_than => TIMESTAMP '{now}', "
                "retain_last => 1)",
                name=name,
                now=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f"),
            )
            return
        table = self.java(name)
        old = [each for each in self.ids(name) if each != table.currentSnapshot().snapshotId()]
        change = table.expireSnapshots()
        for each in old:
            change = change.expireSnapshotId(each)
        change.cleanExpiredFiles(False).commit()

    def expire_by_pyiceberg(self, name: str) -> None:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(self.live, **pyiceberg_properties(self.config.catalogs.live))
        try:
            table = catalog.load_table(("db", name))
            kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
            old = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in kept]
            table.maintenance.expire_snapshots().by_ids(old).commit()
        finally:
            catalog.close()

    def remove_orphans_by_iceberg(self, name: str) -> None:
        """With a week's patience, as everybody has it."""
        self.sql("CALL {live}.system.remove_orphan_files(table => 'db.`{name}`')", name=name)

    def set_location(self, name: str, other: str, how: str) -> None:
        place = {
            "elsewhere": self.warehouse / f"moved-{self.number()}",
            "the other spelling": self.other_spelling / self.place(name).relative_to(self.warehouse.resolve())
            if self.place(name).resolve().is_relative_to(self.warehouse.resolve())
            else self.other_spelling / name,
            "in another's": self.place(other) / "inner",
            "around all": self.warehouse / "db",
        }[how]
        self.sql("ALTER TABLE {live}.db.`{name}` SET LOCATION 'file://{place}'", name=name, place=place)

    def point_at_documents(self, name: str) -> None:
        """`write.data.path` names a folder that is a person's."""
        home = self.warehouse.parent / f"home-{self.number()}"
        for path in ("docs/thesis.txt", ".ssh/id", "photo.parquet"):
            self._put(home / path)
        self.sql(
            "ALTER TABLE {live}.db.`{name}` SET TBLPROPERTIES ('write.data.path'='file://{home}')",
            name=name,
            home=home,
        )

    def stream(self, name: str) -> None:
        """What other systems keep below a table's location, under names that everybody leaves alone."""
        number = self.number()
        for folder in ("_checkpoints", "_spark_metadata", "_temporary", "_delta_log", ".hoodie", "data/.staging"):
            self._put(self.place(name) / folder / f"{number}.parquet")

    def _put(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1")
        make_old(path)
        self.untouchable.add(path)

    def rename(self, name: str, to: str) -> None:
        self.sql("ALTER TABLE {live}.db.`{name}` RENAME TO {live}.db.`{to}`", name=name, to=to)

    def drop(self, name: str, purge: bool) -> None:
        location = self.pointer(name)
        if len(self.tables()) == 1:
            # Without a table nothing happens any more.
            raise CannotNowError(name)
        self.sql("DROP TABLE {live}.db.`{name}`{purge}", name=name, purge=" PURGE" if purge else "")
        if not purge:
            self.elsewhere[location] = "dropped"

    def register(self, name: str, to: str) -> None:
        self.sql(
            "CALL {live}.system.register_table(table => 'db.`{to}`', metadata_file => '{at}')",
            to=to,
            at=self.pointer(name),
        )

    def undrop(self, to: str) -> None:
        """A person who has found out registers a dropped table again."""
        for location in [location for location, why in self.elsewhere.items() if why == "dropped"]:
            if on_disk(location).exists():
                self.sql(
                    "CALL {live}.system.register_table(table => 'db.`{to}`', metadata_file => '{at}')",
                    to=to,
                    at=location,
                )
                del self.elsewhere[location]
                return
        raise CannotNowError(to)

    def share_file(self, name: str, of: str) -> None:
        """The table reads a file of another one."""
        self.java(name).newAppend().appendFile(self._data_file(of)).commit()

    def add_files(self, name: str, of: str) -> None:
        """The same by the procedure, with all files of the other one's folder."""
        self.sql(
            "CALL {live}.system.add_files(table => 'db.`{name}`', source_table => '`parquet`.`{place}`')",
            name=name,
            place=self.place(of) / "data",
        )

    # --- stores, clocks, backups ------------------------------------------------------------------------------------

    def age_files(self) -> None:
        """As after many days in which nobody wrote, but the writers at work."""
        young = {path for path, (_, beats) in self.in_flight.items() if not beats}
        for path in self.warehouse.parent.rglob("*"):
            if path.is_file() and not path.is_symlink() and str(path) not in young and self.state not in path.parents:
                make_old(path)

    def leave_orphan(self, name: str) -> None:
        path = self.place(name) / "data" / f"orphan-{self.number()}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1")
        make_old(path)

    def lose_cold_file(self, which: int) -> None:
        path = self._cold_file(which)
        path.unlink()
        # A snapshot that shares it with the live table may be archived before a scrub makes it again.
        GUARDIAN.damaged.add(str(path))

    def flip_cold_file(self, which: int, keeps_size: bool) -> None:
        path = self._cold_file(which)
        data = path.read_bytes()
        half = len(data) // 2
        path.write_bytes(data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :] if keeps_size else data[:-1])
        if keeps_size:
            self.flipped.add(str(path))
        GUARDIAN.damaged.add(str(path))

    def _cold_file(self, which: int) -> Path:
        found = sorted(path for path in self.cold_warehouse.rglob("*.parquet") if path.is_file())
        if not found:
            raise CannotNowError("cold")
        return found[which % len(found)]

    def lose_records(self, what: str) -> None:
        """The ledger of what was copied, or the index of what manifests have: both are caches of what can be seen."""
        found = [path for path in self.state.rglob("*") if path.is_dir() and path.name == what]
        if not found:
            raise CannotNowError(what)
        for folder in found:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def clock_at(self, days: float) -> Iterator[None]:
        """Postgres' clock is wrong for a while."""
        self.set_clock(days)
        try:
            yield
        finally:
            self.set_clock(0)

    def set_clock(self, days: float) -> None:
        with connected(self.uri) as cursor:
            cursor.execute("UPDATE shadow.skew SET days = %s", (days,))

    def restore_catalog(self, name: str, which: int) -> None:
        """The catalog's pointer as an older backup has it; newer metadata stands beside."""
        log = self.sql("SELECT file FROM {live}.db.`{name}`.metadata_log_entries", name=name)
        older = [row[0] for row in log[:-1] if on_disk(row[0]).exists()]
        if not older:
            raise CannotNowError(name)
        now, back = self.pointer(name), older[which % len(older)]
        with connected(self.uri) as cursor:
            cursor.execute(
                "UPDATE iceberg_tables SET metadata_location = %s, previous_metadata_location = NULL "
                "WHERE catalog_name = %s AND table_namespace = 'db' AND table_name = %s",
                (back, self.live, name),
            )
        self.elsewhere[now] = "future"
        if back == log[-2][0]:
            self.single[now] = back

    def give_up_future(self) -> None:
        """A person says that the older pointer is right."""
        for location in [location for location, why in self.elsewhere.items() if why == "future"]:
            del self.elsewhere[location]

    def back_up_operations(self) -> None:
        self._backup = {}
        with connected(self.uri) as cursor:
            for table in _of_operations(cursor):
                out = io.BytesIO()
                cursor.copy_expert(f"COPY lifecycle.{table} TO STDOUT", out)
                self._backup[table] = out.getvalue()

    def restore_operations(self) -> None:
        if self._backup is None:
            raise CannotNowError("no backup")
        with connected(self.uri) as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            for table in _of_operations(cursor):
                cursor.execute(f"DELETE FROM lifecycle.{table}")
                cursor.copy_expert(f"COPY lifecycle.{table} FROM STDIN", io.BytesIO(self._backup[table]))
        alive = self.beating()
        self.in_flight = {
            path: (owner, beats) for path, (owner, beats) in self.in_flight.items() if not beats or owner in alive
        }

    def beating(self) -> set[str]:
        """Uuids of tables with a live heartbeat."""
        with connected(self.uri) as cursor:
            cursor.execute(
                "SELECT table_uuid FROM lifecycle.heartbeats WHERE expires_at > pg_catalog.clock_timestamp()"
            )
            return {row[0] for row in cursor.fetchall()}

    def second_deployment(self) -> Lifecycle:
        """Another installation on the same catalogs, with an operations database and a root of its own."""
        if self.second is None:
            home = Path(f"{self.config.home}-second")
            operations = Operations(uri=self.second_uri, root=f"file://{home}/state")
            config = self.config.model_copy(update={"operations": operations, "home": home})
            second = Lifecycle.open(config, spark=self.spark, owner="second")
            assert second.operations.clock.now()
            self.second = second
        return self.second

    def pass_time(self, change: str) -> None:
        """What time does to records: `change` is a statement on schema lifecycle."""
        with connected(self.uri) as cursor:
            cursor.execute(change)


def make_old(path: Path) -> None:
    at = (datetime.now(UTC) - MANY_DAYS).timestamp()
    os.utime(path, (at, at))


def _of_operations(cursor: Any) -> Sequence[str]:
    cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'lifecycle' ORDER BY 1")
    return [row[0] for row in cursor.fetchall()]
