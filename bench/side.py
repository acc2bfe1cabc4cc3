"""One side of the comparison, in a process of its own: a session, a warm-up on a small table, then the timed plans.

`python -m bench.side JOB.json` writes one JSON line per event to the job's `events` file: `idle` (the session at
rest before its first plan, from `begin` to `end`), `plan` (one timed plan with what it named), `commit` (the peer's
commit alone). Instants are of the monotonic clock, which all processes share.

The peer is `ExpireSnapshotsSparkAction.expireFiles()`. Inside its time, as Iceberg has it: the commit that removes the
snapshots, and the dataset that it returns, counted and hashed by Spark so that every row is made; nothing is collected
to the driver, which `execute()` would do. Outside: loading the table. It works on a HadoopTables copy of the metadata
file, because the commit changes the table; manifests and lists are the same files.

Ours is what a user calls: `Lifecycle.plan_expiration` and `.files().count()`. Inside its time: the catalog's pointer,
the metadata file, lease and records in Postgres, decide, read, settle, seal, the checks of the plan, and the result
read back. Outside, timed apart: publishing the plan to the result table, which nothing waits for.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.spark.session import open_session, session_conf
from bench import metadata
from bench.metadata import Stage, Table
from bench.sampling import processor_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from artemis_lifecycle.expiration.plan import ExpirationPlan


@dataclass(frozen=True)
class Job:
    """What one process does. `conf` is laid over the session's settings; a value of None takes a setting out. `tuning`:
    settings of a running session, under each of which the first table is planned in full before anything else."""

    side: str
    work: str
    home: str
    jars: str
    cores: int
    events: str
    warm: str
    tables: tuple[str, ...]
    full: int
    nights: int
    conf: Mapping[str, str | None]
    tuning: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class Named:
    """The files that a plan names: how many, and two sums of hashes of their paths, which no order changes."""

    files: int
    hash1: str
    hash2: str


class Events:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def write(self, event: str, **fields: object) -> None:
        self._file.write(json.dumps({"event": event, **fields}) + "\n")
        self._file.flush()


def run(job: Job) -> None:
    events = Events(Path(job.events))
    config = LifecycleConfig.model_validate({"home": job.home, "spark": {"master": f"local[{job.cores}]"}})
    conf = session_conf(config, {}, resolve(Path(job.jars)))
    for key, value in job.conf.items():
        if value is None:
            conf.pop(key, None)
        else:
            conf[key] = value
    spark = open_session(conf)
    side: Side = Peer(spark, job) if job.side == "peer" else Ours(spark, job)
    try:
        tables = [metadata.load(Path(folder)) for folder in job.tables]
        warm = metadata.load(Path(job.warm))
        # At rest before its first plan: what a warm-up leaves in the heap is memory that the plans took.
        spark.range(1).count()
        _rest(spark)
        begin = time.monotonic()
        time.sleep(2)
        events.write("idle", begin=begin, end=time.monotonic())
        began = time.monotonic()
        for _ in range(2):
            for stage in warm.stages:
                side.plan(warm, stage)
            side.forget(warm)
        for table in tables:
            read_all(Path(table.folder))
        events.write("warm", seconds=time.monotonic() - began, java=_java(spark), spark=spark.version)
        for conf in job.tuning:
            for key, value in conf.items():
                spark.conf.set(key, value)
            events.write("tuning", conf=conf, **_timed(spark, side, tables[0], 0, 0))
        for table in tables:
            for repetition in range(job.full):
                side.forget(table)
                events.write("plan", **_timed(spark, side, table, 0, repetition))
            if job.nights:
                if job.side == "ours" and not job.full:
                    side.forget(table)
                    events.write("plan", **_timed(spark, side, table, 0, 0))
                for night in range(1, job.nights + 1):
                    events.write("plan", **_timed(spark, side, table, night, night - 1))
        side.finish(tables, events)
    finally:
        side.close()
        spark.stop()


def _timed(spark: SparkSession, side: Side, table: Table, number: int, repetition: int) -> dict[str, object]:
    stage = table.stages[number]
    loading = time.monotonic()
    ready = side.load(table, stage)
    loaded = time.monotonic()
    _rest(spark)
    processor = processor_seconds()
    begin = time.monotonic()
    done = ready()
    end = time.monotonic()
    used = processor_seconds() - processor
    return {
        "table": table.shape.key,
        "stage": number,
        "repetition": repetition,
        "begin": begin,
        "end": end,
        "seconds": end - begin,
        "load_seconds": loaded - loading,
        "cpu_seconds": used,
        "load_average": psutil.getloadavg()[0],
        **done(),
    }


def _rest(spark: SparkSession) -> None:
    gc.collect()
    spark._jvm.java.lang.System.gc()  # type: ignore[union-attr]
    time.sleep(0.5)


def _java(spark: SparkSession) -> str:
    system = spark._jvm.java.lang.System  # type: ignore[union-attr]
    return f"{system.getProperty('java.vm.name')} {system.getProperty('java.version')}"


def read_all(folder: Path) -> None:
    # Neither side is to be the one that brings the files into the system's cache.
    for path in (folder / "metadata").iterdir():
        path.read_bytes()


def named(frame: DataFrame) -> Named:
    """Count and hashes of the frame's `path`, in one pass without a grouping."""
    row = frame.selectExpr(
        "count(*) AS files",
        "coalesce(sum(cast(xxhash64(path) AS decimal(20, 0))), 0) AS hash1",
        "coalesce(sum(cast(xxhash64(1, path) AS decimal(20, 0))), 0) AS hash2",
    ).collect()[0]
    return Named(row["files"], str(row["hash1"]), str(row["hash2"]))


class Side:
    def load(self, table: Table, stage: Stage) -> Callable[[], Callable[[], dict[str, object]]]:
        """Everything before the clock starts; then what is timed; then what it found, after the clock stopped."""
        raise NotImplementedError

    def plan(self, table: Table, stage: Stage) -> None:
        self.load(table, stage)()()

    def forget(self, table: Table) -> None:
        """Drop what earlier plans of the table left behind."""

    def finish(self, tables: list[Table], events: Events) -> None:
        pass

    def close(self) -> None:
        pass


class Peer(Side):
    def __init__(self, spark: SparkSession, job: Job) -> None:
        self.spark = spark
        self.copies = Path(job.work) / "copies" / uuid.uuid4().hex
        jvm: Any = spark._jvm
        assert jvm is not None
        self.jvm = jvm
        self.hadoop = jvm.org.apache.iceberg.hadoop.HadoopTables(spark._jsc.hadoopConfiguration())

    def _table(self, stage: Stage) -> Any:
        folder = self.copies / uuid.uuid4().hex
        (folder / "metadata").mkdir(parents=True)
        shutil.copyfile(stage.metadata_location.removeprefix("file://"), folder / "metadata" / "v1.metadata.json")
        (folder / "metadata" / "version-hint.text").write_text("1")
        return self.hadoop.load(f"file://{folder}")

    def load(self, table: Table, stage: Stage) -> Callable[[], Callable[[], dict[str, object]]]:
        from pyspark.sql import DataFrame

        loaded = self._table(stage)
        actions = self.jvm.org.apache.iceberg.spark.actions.SparkActions.get(self.spark._jsparkSession)

        def work() -> Callable[[], dict[str, object]]:
            action = actions.expireSnapshots(loaded).expireOlderThan(stage.cutoff_ms).retainLast(1)
            found = named(DataFrame(action.expireFiles().toDF(), self.spark))
            return lambda: asdict(found)

        return work

    def finish(self, tables: list[Table], events: Events) -> None:
        """How much of the peer's time its commit is, which ours does not have."""
        for table in tables[:1]:
            for number, stage in enumerate(table.stages[:2]):
                for _ in range(3):
                    loaded = self._table(stage)
                    begin = time.monotonic()
                    removal = loaded.expireSnapshots().expireOlderThan(stage.cutoff_ms).retainLast(1)
                    removal.cleanExpiredFiles(False).commit()
                    events.write("commit", stage=number, seconds=time.monotonic() - begin)

    def close(self) -> None:
        shutil.rmtree(self.copies, ignore_errors=True)


class Ours(Side):
    def __init__(self, spark: SparkSession | None, job: Job, state: str | None = None) -> None:
        """`state` names what another process goes on with; it is kept."""
        from artemis_lifecycle.api import Lifecycle
        from artemis_lifecycle.embedded.postgres import EmbeddedPostgres

        self.keeps = state is not None
        self.folder = Path(job.work) / "state" / (state or uuid.uuid4().hex)
        # Without plans of earlier runs, whose files are gone.
        self.server, self.database = EmbeddedPostgres(Path(job.home)), f"bench_{self.folder.name}"
        if not self.folder.exists():
            self._execute(f"CREATE DATABASE {self.database}")
        uri = self.server.uri(self.database)
        self.copies = self.folder / "copies"
        self.copies.mkdir(parents=True, exist_ok=True)
        self.catalog = f"bench_{self.folder.name}"
        # Tables stand beside the warehouses.
        roots = {"live": {"roots": [f"file://{Path(job.work).resolve()}"]}, "cold": {}}
        config = LifecycleConfig.model_validate(
            {
                "home": job.home,
                "catalogs": {
                    tier: {"name": f"{self.catalog}{tier}", "uri": uri, "warehouse": f"file://{self.folder}/{tier}"}
                    | roots[tier]
                    for tier in ("live", "cold")
                },
                "operations": {"uri": uri, "root": f"file://{self.folder}/root"},
                "defaults": {"retention": {"rule": "iceberg"}, "cold_tier": {"enabled": False}},
                "spark": {"master": f"local[{job.cores}]"},
            }
        )
        self.lifecycle = Lifecycle.open(config, spark=spark)

    def planned(self, table: Table, stage: Stage) -> Callable[[], ExpirationPlan]:
        """Return what plans the table as it is at that stage."""
        # Another metadata file is another plan: one that is sealed already would only be found again.
        copy = self.copies / f"{uuid.uuid4().hex}.metadata.json"
        shutil.copyfile(stage.metadata_location.removeprefix("file://"), copy)
        self._point(table, f"file://{copy}")
        now = datetime.fromtimestamp(stage.now_ms / 1000, UTC)
        cutoff = datetime.fromtimestamp(stage.cutoff_ms / 1000, UTC)
        return lambda: self.lifecycle.plan_expiration(self.name(table), now=now, older_than=cutoff, retain_last=1)

    def load(self, table: Table, stage: Stage) -> Callable[[], Callable[[], dict[str, object]]]:
        from artemis_lifecycle.metadata.table_metadata import read_table_metadata

        planned = self.planned(table, stage)
        # The peer's table is loaded before its clock starts, and this reading measures how long that takes here. Ours
        # reads the file again within its time.
        read_table_metadata(self.lifecycle.live_stores, stage.metadata_location)

        def work() -> Callable[[], dict[str, object]]:
            plan = planned()
            files = plan.files().count()

            def found() -> dict[str, object]:
                begin = time.monotonic()
                self.lifecycle.publish_results()
                publish_seconds = time.monotonic() - begin
                by_kind = {total.kind: total.files for total in plan.summary.by_kind}
                index = self.folder / "root" / "index" / table.table_uuid
                size = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
                names = named(plan.files())
                assert names.files == files
                return {**asdict(names), "by_kind": by_kind, "index_bytes": size, "publish_seconds": publish_seconds}

            return found

        return work

    def _execute(self, statement: str) -> None:
        import psycopg2

        connection = psycopg2.connect(self.server.uri("postgres", driver="postgresql"))
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.close()

    def name(self, table: Table) -> str:
        return f"bench.t_{table.table_uuid.replace('-', '')}"

    def _point(self, table: Table, metadata_location: str) -> None:
        """Make it the table's current metadata in the catalog, as a commit of another engine would."""
        from sqlalchemy.dialects.postgresql import insert

        from artemis_lifecycle.catalogs.sql import ensure_tables, iceberg_tables

        engine = self.lifecycle.operations.engine
        ensure_tables(engine)
        namespace, _, name = self.name(table).partition(".")
        row = {
            "catalog_name": self.lifecycle.config.catalogs.live.name,
            "table_namespace": namespace,
            "table_name": name,
            "metadata_location": metadata_location,
            "iceberg_type": "TABLE",
        }
        statement = insert(iceberg_tables).values(row)
        with engine.begin() as connection:
            connection.execute(
                statement.on_conflict_do_update(
                    constraint=iceberg_tables.primary_key, set_={"metadata_location": metadata_location}
                )
            )

    def forget(self, table: Table) -> None:
        shutil.rmtree(self.folder / "root" / "index" / table.table_uuid, ignore_errors=True)

    def close(self) -> None:
        self.lifecycle.close()
        if self.keeps:
            return
        self._execute(f"DROP DATABASE {self.database} WITH (FORCE)")
        shutil.rmtree(self.folder, ignore_errors=True)


def main() -> None:
    content = json.loads(Path(sys.argv[1]).read_text())
    run(replace(Job(**content), tables=tuple(content["tables"]), tuning=tuple(content.get("tuning", ()))))


if __name__ == "__main__":
    main()
