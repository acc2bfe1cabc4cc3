"""Writing the history: every event of the schedule as Spark does it, and then all of it set back in time.

Belongs here: commits and debris, by Spark and by Iceberg's own classes. Does not belong: what happens when
(`schedule`), what the rows are (`mission`), or moving the clock (`timeline`).
"""

from __future__ import annotations

import io
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import spark_conf
from artemis_lifecycle.code_version import commit_hash
from artemis_lifecycle.commits.actions import jvm_table
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.contracts import CommitLineage
from artemis_lifecycle.operations.database import connect
from artemis_lifecycle.spark.session import add_catalogs
from artemis_lifecycle.spark.sql import literal
from artemis_lifecycle.storage.stores import Stores, StoreSettings
from artemis_lifecycle.upkeep.compaction import rewrite_data_files
from artemis_lifecycle.upkeep.manifests import rewrite_manifests

from . import mission
from .schedule import ARCHIVE, REGISTRY, TELEMETRY, Action, Event, events, mission_start
from .timeline import Timeline, set_back

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Row = mission.RegistryRow | mission.ContactRow | mission.ConfigRow

OPERATOR, TICKET = "j.smith", "ARTEMIS-2024-03-15-3"


@dataclass(frozen=True)
class MissionTable:
    """How one of the mission's tables is made, and who writes it."""

    name: str
    row: type[Row]
    columns: tuple[str, ...]
    partitioning: str
    format_version: int
    writer_id: str
    properties: Mapping[str, str] = field(default_factory=dict)


TABLES: Mapping[str, MissionTable] = {
    REGISTRY: MissionTable(
        REGISTRY,
        mission.RegistryRow,
        tuple(each.name for each in fields(mission.RegistryRow) if each.name != "altitude_km"),
        "regime",
        2,
        "registry-ingest-1",
        {"write.delete.mode": "merge-on-read"},
    ),
    TELEMETRY: MissionTable(
        TELEMETRY,
        mission.ContactRow,
        tuple(each.name for each in fields(mission.ContactRow)),
        "days(acquired_at)",
        3,
        "telemetry-ingest-1",
        {
            "write.delete.mode": "merge-on-read",
            # The busiest table lets each commit drop what falls out of the metadata log.
            "write.metadata.previous-versions-max": "20",
            "write.metadata.delete-after-commit.enabled": "true",
        },
    ),
    ARCHIVE: MissionTable(
        ARCHIVE,
        mission.ConfigRow,
        tuple(each.name for each in fields(mission.ConfigRow)),
        "section",
        2,
        "configuration-service-1",
    ),
}

_SPARK_TYPES = {"int": "BIGINT", "float": "DOUBLE", "float | None": "DOUBLE", "str": "STRING", "datetime": "TIMESTAMP"}
_COMMON = {
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.parquet.compression-codec": "zstd",
}


@dataclass(frozen=True)
class Debris:
    """Files of a table that no snapshot has: `origin` says who left them, `paths` are theirs."""

    table: str
    origin: Action
    paths: tuple[str, ...]


@dataclass(frozen=True)
class InFlight:
    """A writer that has written its files and not committed yet. All of them are under `prefix`; `files` are Iceberg's
    own `DataFile` objects in the JVM, `expected` the rows as the writer has them."""

    table: str
    writer_id: str
    prefix: str
    paths: tuple[str, ...]
    lineage: Mapping[str, str]
    files: tuple[Any, ...] = field(repr=False, compare=False)
    expected: DataFrame = field(repr=False, compare=False)


@dataclass(frozen=True)
class TableHistory:
    """What was written of one table. `marks` are the snapshots to be tagged forever, by the tag's name; `writers` are
    the commits by who made them."""

    table: str
    table_uuid: str
    events: int
    commits: int
    writers: Mapping[str, int]
    debris: tuple[Debris, ...]
    marks: Mapping[str, int]
    in_flight: InFlight | None
    seconds: float


Progress = Callable[[str, int, int], None]
"""Called with the table, the events done and all of them."""


def write_histories(
    spark: SparkSession,
    config: LifecycleConfig,
    now: datetime,
    progress: Progress = lambda *_: None,
    *,
    during: AbstractContextManager[object] | None = None,
) -> tuple[TableHistory, ...]:
    """Create the mission's tables and everything that happened to them until `now`; a thread per table.

    `config` must have its addresses, and a live warehouse on this machine's disk. All commits are made inside `during`;
    after it, they are set back in time. Raises what Spark raises.
    """
    _without_checksum_files(spark)
    writers = [_HistoryWriter(spark, config, table, now, progress) for table in TABLES.values()]
    catalog = CatalogReader(config.catalogs.live, "ingest")
    try:
        with ThreadPoolExecutor(len(TABLES), thread_name_prefix="history") as pool:
            with during or nullcontext():
                catalog.create_namespace("artemis")
                list(pool.map(_HistoryWriter.write, writers))
            return tuple(pool.map(lambda writer: writer.finish(catalog), writers))
    finally:
        catalog.close()


def _without_checksum_files(spark: SparkSession) -> None:
    """Have Hadoop write no `.<name>.crc` beside each local file: an object store has none either, and metadata files
    that are set back would no longer match theirs."""
    jvm: Any = spark._jvm
    conf = spark._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), conf).setWriteChecksum(False)


def _singleton(spark: SparkSession, name: str) -> Any:
    """The one object of a class with a static `get()`; py4j does not find it beside a method of that name."""
    jvm: Any = spark._jvm
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    loaded = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    getter = loaded.getMethod("get", gateway.new_array(jvm.java.lang.Class, 0))
    return getter.invoke(None, gateway.new_array(jvm.java.lang.Object, 0))


class _HistoryWriter:
    def __init__(
        self, spark: SparkSession, config: LifecycleConfig, table: MissionTable, now: datetime, progress: Progress
    ) -> None:
        # A session of its own: settings of one table's writer are not another's.
        self._spark = spark.newSession()
        add_catalogs(self._spark, spark_conf(config.catalogs, purpose="ingest"))
        self._spark.conf.set("spark.sql.shuffle.partitions", "1")
        self._spark.conf.set("spark.sql.adaptive.enabled", "false")
        self._config = config
        self._catalog = config.catalogs.live.name
        self._table = table
        self._name = parse(table.name).sql(self._catalog)
        self._now = now
        self._start = mission_start(now)
        self._progress = progress
        self._timeline = Timeline()
        self._columns = table.columns
        self._revision = 0
        self._debris: list[Debris] = []
        self._marks: dict[str, int] = {}
        self._in_flight: InFlight | None = None
        self._began = time.monotonic()

    def write(self) -> None:
        planned = events(self._table.name, self._now)
        for done, event in enumerate(planned):
            self._begin(event)
            _ACTIONS[event.action](self, event)
            self._progress(self._table.name, done + 1, len(planned))

    def finish(self, catalog: CatalogReader) -> TableHistory:
        """Set the commits back in time."""
        stores = Stores(StoreSettings.from_catalog(self._config.catalogs.live))
        uri = self._config.catalogs.live.uri
        assert uri is not None
        engine = connect(uri, purpose="ingest")
        try:
            set_back(stores, catalog, engine, catalog.entry(self._table.name), self._timeline)
        finally:
            engine.dispose()
        table = jvm_table(self._spark, self._catalog, self._table.name)
        return TableHistory(
            table=self._table.name,
            table_uuid=str(table.uuid()),
            events=len(events(self._table.name, self._now)),
            commits=sum(1 for _ in table.snapshots()),
            writers=Counter(each.summary().get("writer.id") or "" for each in table.snapshots()),
            debris=tuple(self._debris),
            marks=self._marks,
            in_flight=self._in_flight,
            seconds=time.monotonic() - self._began,
        )

    def _begin(self, event: Event) -> None:
        real = time.time_ns() // 1_000_000
        if self._timeline.real_ms and real <= self._timeline.real_ms[-1]:
            time.sleep(0.002)
            real = time.time_ns() // 1_000_000
        self._timeline.begin(real, event.at)

    # --- commits ----------------------------------------------------------------------------------------------------

    def create(self, event: Event) -> None:
        types = {each.name: _SPARK_TYPES[str(each.type)] for each in fields(self._table.row)}
        columns = ", ".join(f"{name} {types[name]}" for name in self._columns)
        properties = {"format-version": str(self._table.format_version), **_COMMON, **self._table.properties}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        self._spark.sql(
            f"CREATE TABLE {self._name} ({columns}) USING iceberg PARTITIONED BY ({self._table.partitioning}) "
            f"TBLPROPERTIES ({listed})"
        )

    def append(self, event: Event) -> None:
        rows = self._rows(event)
        self._say(self._lineage(event, rows))
        self._frame(rows).writeTo(self._name).append()

    def overwrite(self, event: Event) -> None:
        rows = self._rows(event)
        self._say(self._lineage(event, rows, writer="correction-job", by_hand=True))
        self._frame(rows).writeTo(self._name).overwritePartitions()

    def delete(self, event: Event) -> None:
        self._say(self._lineage(event, None, writer="correction-job", by_hand=True))
        self._spark.sql(f"DELETE FROM {self._name} WHERE {event.where}")

    def compact(self, event: Event) -> None:
        # Files under a day's partition come in ones and twos here, so that two are enough.
        rewrite_data_files(
            self._spark,
            self._catalog,
            self._table.name,
            self._worker(event, "compaction-worker-2"),
            options={"min-input-files": "2", "max-concurrent-file-group-rewrites": "4"},
        )

    def rewrite_manifests(self, event: Event) -> None:
        rewrite_manifests(self._spark, self._catalog, self._table.name, self._worker(event, "manifest-worker-1"))

    def compute_statistics(self, event: Event) -> None:
        self._spark.sql(
            f"CALL {self._catalog}.system.compute_table_stats(table => {literal(parse(self._table.name).sql())})"
        )

    def add_column(self, event: Event) -> None:
        kind = {each.name: _SPARK_TYPES[str(each.type)] for each in fields(self._table.row)}[event.name]
        self._spark.sql(f"ALTER TABLE {self._name} ADD COLUMN {event.name} {kind}")
        self._columns = (*self._columns, event.name)

    def roll_back(self, event: Event) -> None:
        table = jvm_table(self._spark, self._catalog, self._table.name)
        table.manageSnapshots().rollbackTo(table.currentSnapshot().parentId()).commit()

    def tag(self, event: Event) -> None:
        retain = f" RETAIN {event.retain_days} DAYS" if event.retain_days is not None else ""
        self._spark.sql(f"ALTER TABLE {self._name} CREATE TAG `{event.name}`{retain}")

    def mark(self, event: Event) -> None:
        table = jvm_table(self._spark, self._catalog, self._table.name)
        self._marks[event.name] = table.currentSnapshot().snapshotId()

    def branch(self, event: Event) -> None:
        self._spark.sql(f"ALTER TABLE {self._name} CREATE BRANCH `{event.name}`")

    def append_to_branch(self, event: Event) -> None:
        rows = self._rows(event)
        self._say(self._lineage(event, rows, writer="reprocessing-job"))
        self._frame(rows).writeTo(f"{self._name}.branch_{event.name}").append()

    # --- what others left behind ------------------------------------------------------------------------------------

    def crashed_writer(self, event: Event) -> None:
        table = jvm_table(self._spark, self._catalog, self._table.name)
        staged = self._staged(table, self._frame(self._rows(event)))
        self._leave(event, (file.location() for file in staged))

    def lost_commit(self, event: Event) -> None:
        """Its first attempt got as far as a metadata file and lost the swap; the second, with the same data, won."""
        jvm: Any = self._spark._jvm
        rows = self._rows(event)
        table = jvm_table(self._spark, self._catalog, self._table.name)
        staged = self._staged(table, self._frame(rows))
        attempt = self._append_of(table, staged, self._lineage(event, rows))
        snapshot = attempt.apply()
        operations = table.operations()
        base = operations.current()
        lost = jvm.org.apache.iceberg.TableMetadata.buildFrom(base).setBranchSnapshot(snapshot, "main").build()
        version = int(str(base.metadataFileLocation()).rpartition("/")[2].split("-")[0]) + 1
        metadata_file = operations.metadataFileLocation(f"{version:05d}-{uuid.uuid4()}.metadata.json")
        jvm.org.apache.iceberg.TableMetadataParser.write(lost, table.io().newOutputFile(metadata_file))
        self._leave(event, [metadata_file, *self._own_manifests(table, snapshot)])
        self._append_of(table, staged, self._lineage(event, rows)).commit()

    def interrupted_compaction(self, event: Event) -> None:
        """It wrote its one large file and the manifests, and was killed before the swap."""
        table = jvm_table(self._spark, self._catalog, self._table.name)
        old = [task.file() for task in table.newScan().planFiles().iterator()]
        rows = self._spark.table(self._name).coalesce(1)
        staged = self._staged(table, rows)
        rewrite = table.newRewrite()
        for file in old:
            rewrite.deleteFile(file)
        for file in staged:
            rewrite.addFile(file)
        snapshot = rewrite.apply()
        self._leave(event, [*(file.location() for file in staged), *self._own_manifests(table, snapshot)])

    def writer_in_flight(self, event: Event) -> None:
        table = jvm_table(self._spark, self._catalog, self._table.name)
        rows = self._rows(event)
        frame = self._frame(rows)
        staged = self._staged(table, frame)
        paths = tuple(str(file.location()) for file in staged)
        folders = {path.rpartition("/")[0] for path in paths}
        if len(folders) != 1:
            raise AssertionError(f"the writer in flight wrote to {len(folders)} partitions: {sorted(folders)}")
        self._in_flight = InFlight(
            table=self._table.name,
            writer_id="backfill-worker-7",
            prefix=f"{folders.pop()}/",
            paths=paths,
            lineage=self._lineage(event, rows, writer="backfill-worker-7"),
            files=tuple(staged),
            expected=frame,
        )

    def young_file(self, event: Event) -> None:
        table = jvm_table(self._spark, self._catalog, self._table.name)
        staged = self._staged(table, self._frame(self._rows(event)).limit(1))
        self._leave(event, (file.location() for file in staged))

    def _leave(self, event: Event, paths: Iterable[Any]) -> None:
        self._debris.append(Debris(self._table.name, event.action, tuple(str(path) for path in paths)))

    def _own_manifests(self, table: Any, snapshot: Any) -> list[str]:
        """The manifest list of a snapshot that was never committed, and the manifests that only it has."""
        known = {str(manifest.path()) for manifest in table.currentSnapshot().allManifests(table.io())}
        manifests = [str(manifest.path()) for manifest in snapshot.allManifests(table.io())]
        return [str(snapshot.manifestListLocation()), *(path for path in manifests if path not in known)]

    def _append_of(self, table: Any, files: Sequence[Any], lineage: Mapping[str, str]) -> Any:
        append = table.newFastAppend()
        for file in files:
            append.appendFile(file)
        for key, value in lineage.items():
            append.set(key, value)
        return append

    def _staged(self, table: Any, frame: DataFrame) -> list[Any]:
        """Data files of the table with the frame's rows, written by Spark and in no snapshot: as Iceberg's own
        compaction stages what it will commit."""
        from pyspark.sql import functions as F

        jvm: Any = self._spark._jvm
        group = str(uuid.uuid4())
        if self._table.format_version >= 3:
            for column in ("_row_id", "_last_updated_sequence_number"):
                frame = frame.withColumn(column, F.lit(None).cast("bigint"))
        cache = _singleton(self._spark, "org.apache.iceberg.spark.SparkTableCache")
        coordinator = jvm.org.apache.iceberg.spark.FileRewriteCoordinator.get()
        cache.add(group, table)
        try:
            frame.write.format("iceberg").mode("append").save(group)
            return list(coordinator.fetchNewFiles(table, group))
        finally:
            cache.remove(group)
            coordinator.clearRewrite(table, group)

    # --- rows and lineage -------------------------------------------------------------------------------------------

    def _rows(self, event: Event) -> Sequence[Row]:
        if self._table.name == REGISTRY:
            return mission.registry(self._start, event.at, with_altitude="altitude_km" in self._columns)
        if self._table.name == TELEMETRY:
            since = event.since or event.at - timedelta(hours=1)
            midnight = since.replace(hour=0, minute=0, second=0, microsecond=0)
            # Live telemetry comes by the quarter of a day, all else by the day.
            live = event.at - since < timedelta(hours=7)
            until = since + timedelta(hours=6) if live else midnight + timedelta(days=1)
            return mission.contacts(self._start, since, until)
        self._revision += 1
        rows: list[Row] = []
        for section in event.sections or ("calibration",):
            if section == "station":
                rows += mission.station_table(event.at, self._revision)
            elif section == "tracking":
                rows += mission.tracking_thresholds(self._start, event.at, self._revision)
            else:
                rows += mission.calibration(self._start, event.at, self._revision)
        return rows

    def _frame(self, rows: Sequence[Row]) -> DataFrame:
        return self._spark.createDataFrame(arrow_table(rows, self._table.row, self._columns)).coalesce(1)

    def _worker(self, event: Event, writer_id: str) -> CommitLineage:
        run = f"run-{event.at:%Y-%m-%d-%H%M}"
        return CommitLineage(writer_id, socket.gethostname(), commit_hash(), run, "schedule")

    def _lineage(
        self, event: Event, rows: Sequence[Row] | None, *, writer: str | None = None, by_hand: bool = False
    ) -> dict[str, str]:
        read = 0 if not rows else compressed_bytes(arrow_table(rows, self._table.row, self._columns))
        keys = {
            "writer.id": writer or self._table.writer_id,
            "writer.host": socket.gethostname(),
            "writer.commit_hash": commit_hash(),
            "writer.invocation_id": f"run-{event.at:%Y-%m-%d-%H%M}",
            "input.row_count": str(len(rows or ())),
            "input.bytes_compressed": str(read),
            "trigger.type": "manual" if by_hand else "schedule",
        }
        return keys | ({"trigger.operator": OPERATOR, "trigger.ticket": TICKET} if by_hand else {})

    def _say(self, lineage: Mapping[str, str]) -> None:
        """Have every commit of this session carry `lineage` in its summary."""
        prefix = "spark.sql.iceberg.snapshot-property."
        for key in ("trigger.operator", "trigger.ticket"):
            self._spark.conf.unset(prefix + key)
        for key, value in lineage.items():
            self._spark.conf.set(prefix + key, value)


_ACTIONS: Mapping[Action, Callable[[_HistoryWriter, Event], None]] = {
    action: getattr(_HistoryWriter, action.value.replace(" ", "_")) for action in Action
}


def arrow_table(rows: Sequence[Row], kind: type[Row], columns: Sequence[str]) -> pa.Table:
    """The rows' `columns`, typed as the table's are."""
    import pyarrow as pa

    types = {
        "int": pa.int64(),
        "float": pa.float64(),
        "float | None": pa.float64(),
        "str": pa.string(),
        "datetime": pa.timestamp("us", "UTC"),
    }
    declared = {each.name: types[str(each.type)] for each in fields(kind)}
    return pa.table(
        {name: pa.array([getattr(row, name) for row in rows], declared[name]) for name in columns},
        schema=pa.schema([(name, declared[name]) for name in columns]),
    )


def compressed_bytes(table: pa.Table) -> int:
    """Return what the rows take as a compressed Arrow stream, in bytes: what their writer says that it read."""
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return sink.tell()


def commit_in_flight(spark: SparkSession, catalog: str, writer: InFlight) -> int:
    """The writer's commit, by Iceberg's own append; the id of its snapshot."""
    table = jvm_table(spark, catalog, writer.table)
    append = table.newAppend()
    for file in writer.files:
        append.appendFile(file)
    for key, value in writer.lineage.items():
        append.set(key, value)
    append.commit()
    table.refresh()
    return int(table.currentSnapshot().snapshotId())
