"""The walk from snapshots to files: manifest list, manifest, entry. Spec: Apache Iceberg table spec, "Snapshots",
"Manifest Lists", "Manifests".

Every file that the walk reads is held against what the level above records of it (lengths, counts, totals), because a
file cut at an Avro block boundary still parses, only shorter: a kept entry that is not seen would be deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata import avro
from artemis_lifecycle.metadata.kinds import kind_of
from artemis_lifecycle.metadata.types import ManifestListEntry, Snapshot, TableMetadata
from artemis_lifecycle.spark.readers import HERE_ROWS, read_here, read_there
from artemis_lifecycle.storage.location import LocationRules, normalise, normalise_column
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

FILES = "path string, kind string, size_in_bytes bigint, location string"
DELETABLE = "path string, kind string, size_in_bytes bigint, reason string"

_SNAPSHOTS = "position bigint, snapshot binary"
_MANIFESTS = (
    "position bigint, list_path string, list_size bigint, manifest_path string, manifest_location string, entry binary"
)
_LISTS_PER_TASK = 200
_ENTRIES_HERE = 100_000  # Bounds what this process holds when it reads a small table itself.


@dataclass(frozen=True)
class WalkSettings:
    """How the walk is cut into Spark tasks: `concurrency` bounds the tasks of one stage (None: by the work there is).

    Up to `here_rows` manifest lists or manifests are read in this process; 0 leaves all to the executors.
    """

    concurrency: int | None = None
    here_rows: int = HERE_ROWS

    def tasks(self, items: int, per_task: int, cores: int) -> int:
        wanted = max(1, min(-(-items // per_task), cores * 8), min(items, cores))
        return wanted if self.concurrency is None else min(wanted, self.concurrency)


def reachable_files(
    spark: SparkSession,
    stores: Stores,
    metadata: TableMetadata,
    snapshot_ids: Collection[int],
    rules: LocationRules,
    settings: WalkSettings = WalkSettings(),
) -> DataFrame:
    """All that the given snapshots reach: DataFrame[path, kind, size_in_bytes, location], one row per location.

    Manifest lists, manifests, live entries of every content, statistics files; not the table's metadata files. An
    action on the frame raises UnreadableMetadata (inside `worker_errors()`) when any file on the way cannot be read.
    """
    snapshots = _chosen(metadata, snapshot_ids)
    if not snapshots:
        return spark.createDataFrame([], FILES)
    lists = manifest_rows(spark, stores, metadata, snapshots, rules, settings)
    manifests = _distinct_manifests(lists)
    entries = _read_manifests(manifests, stores, rules, settings)
    files = entries.select("path", "kind", "size_in_bytes", "location")
    levels = _levels(lists, rules)
    others = _statistics(spark, metadata, snapshot_ids, rules)
    return _one_row_per_location(files.unionByName(levels).unionByName(others))


def deletable_files(
    spark: SparkSession,
    stores: Stores,
    metadata: TableMetadata,
    expired_ids: Sequence[int],
    rules: LocationRules,
    settings: WalkSettings = WalkSettings(),
) -> DataFrame:
    """Files that an expired snapshot reaches and no other snapshot of `metadata` does.

    DataFrame[path, kind, size_in_bytes, reason]. "Not reachable" alone is never enough: files of commits in flight are
    not reachable either (see `orphans/`). Raises UnreadableMetadata as `reachable_files` does.
    """
    from pyspark.sql import functions as F

    expired = set(expired_ids)
    if not expired:
        return spark.createDataFrame([], DELETABLE)
    lists = manifest_rows(spark, stores, metadata, list(metadata.snapshots), rules, settings)
    order = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    doomed_positions = [position for position, snapshot_id in enumerate(order) if snapshot_id in expired]
    ids = spark.createDataFrame([(p, order[p]) for p in doomed_positions], "position bigint, snapshot_id bigint")
    marked = lists.join(F.broadcast(ids), "position", "left").withColumn("kept", F.col("snapshot_id").isNull())

    manifests = (
        marked.filter("manifest_location is not null")
        .groupBy("manifest_location")
        .agg(
            F.first("manifest_path").alias("manifest_path"),
            F.first("entry").alias("entry"),
            F.max("kept").alias("kept"),
            F.max_by("snapshot_id", F.when(~F.col("kept"), F.col("position"))).alias("snapshot_id"),
            F.max(F.when(~F.col("kept"), F.col("position"))).alias("position"),
        )
    )
    entries = _read_manifests(manifests, stores, rules, settings)
    # A kept manifest reaches its entries for the kept snapshots, whoever else lists it.
    files = (
        entries.groupBy("location")
        .agg(
            F.max("kept").alias("kept"),
            F.min("path").alias("path"),
            F.min("kind").alias("kind"),
            F.max("size_in_bytes").alias("size_in_bytes"),
            F.max_by("snapshot_id", "position").alias("snapshot_id"),
        )
        .filter(~F.col("kept"))
    )
    doomed_manifests = manifests.filter(~F.col("kept")).select(
        F.col("manifest_path").alias("path"),
        F.lit("manifest").alias("kind"),
        _entry_length(F.col("entry")).alias("size_in_bytes"),
        F.col("manifest_location").alias("location"),
        "snapshot_id",
    )
    by_list = (
        marked.filter("list_path is not null")
        .groupBy("list_path")
        .agg(
            F.max("kept").alias("kept"),
            F.max("list_size").alias("size_in_bytes"),
            F.max_by("snapshot_id", "position").alias("snapshot_id"),
        )
        .filter(~F.col("kept"))
    )
    doomed_lists = by_list.select(
        F.col("list_path").alias("path"),
        F.lit("manifest_list").alias("kind"),
        "size_in_bytes",
        normalise_column(F.col("list_path"), rules).alias("location"),
        "snapshot_id",
    )
    doomed_statistics = _doomed_statistics(spark, metadata, expired, rules)
    columns = ["path", "kind", "size_in_bytes", "location", "snapshot_id"]
    union = files.select(columns).unionByName(doomed_manifests).unionByName(doomed_lists.select(columns))
    everything = union.unionByName(doomed_statistics)
    return everything.select(
        "path",
        "kind",
        "size_in_bytes",
        F.concat(
            F.lit("last reached by expired snapshot "), F.col("snapshot_id").cast("string"), F.lit("; by no kept one")
        ).alias("reason"),
    )


def _chosen(metadata: TableMetadata, snapshot_ids: Collection[int]) -> list[Snapshot]:
    wanted = set(snapshot_ids)
    chosen = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in wanted]
    if len(chosen) != len(wanted):
        absent = sorted(wanted - {snapshot.snapshot_id for snapshot in chosen})
        raise UnreadableMetadata(
            f"The metadata has no snapshot {', '.join(map(str, absent[:5]))}",
            path=metadata.metadata_location,
            untouched="all files",
            do="read the table's history again",
        )
    return chosen


def _cores(spark: SparkSession) -> int:
    return int(spark.sparkContext.defaultParallelism)


def manifest_rows(
    spark: SparkSession,
    stores: Stores,
    metadata: TableMetadata,
    snapshots: Sequence[Snapshot],
    rules: LocationRules,
    settings: WalkSettings = WalkSettings(),
) -> DataFrame:
    """One row per (snapshot, manifest), and one without a manifest for an empty list.

    DataFrame[position, list_path, list_size, manifest_path, manifest_location, entry]: `position` is the snapshot's in
    the metadata, `entry` what `unpacked` takes. Reads the lists at once; raises UnreadableMetadata.
    """
    import pickle

    import pyarrow as pa

    position = {snapshot.snapshot_id: index for index, snapshot in enumerate(metadata.snapshots)}
    rows = pa.table(
        {
            "position": pa.array([position[snapshot.snapshot_id] for snapshot in snapshots], pa.int64()),
            "snapshot": pa.array([pickle.dumps(snapshot) for snapshot in snapshots], pa.binary()),
        }
    )
    reader = _ListReader(stores, rules)
    if rows.num_rows <= settings.here_rows:
        return read_here(spark, rows, reader, _MANIFESTS)
    return read_there(spark, rows, reader, _MANIFESTS, settings.tasks(rows.num_rows, _LISTS_PER_TASK, _cores(spark)))


def _distinct_manifests(lists: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        lists.filter("manifest_location is not null")
        .groupBy("manifest_location")
        .agg(
            F.first("manifest_path").alias("manifest_path"),
            F.first("entry").alias("entry"),
            F.lit(True).alias("kept"),
            F.max("position").alias("snapshot_id"),
            F.max("position").alias("position"),
        )
    )


def _read_manifests(manifests: DataFrame, stores: Stores, rules: LocationRules, settings: WalkSettings) -> DataFrame:
    """Live entries: DataFrame[path, kind, size_in_bytes, location, kept, snapshot_id, position]."""
    rows = manifests.select("entry", "kept", "snapshot_id", "position")
    reader, schema = _ManifestReader(stores, rules), FILES + ", kept boolean, snapshot_id bigint, position bigint"
    if settings.here_rows and len(rows.take(settings.here_rows + 1)) <= settings.here_rows:
        few = rows.toArrow()
        if sum(_expected(packed) for packed in few.column("entry").to_pylist()) <= _ENTRIES_HERE:
            return read_here(manifests.sparkSession, few, reader, schema)
    if settings.concurrency is not None:
        rows = rows.coalesce(settings.concurrency)
    return rows.mapInArrow(reader, schema)


def _expected(packed: bytes) -> int:
    count = unpacked(packed).live_files_count
    return _ENTRIES_HERE // 10 if count is None else count


def _levels(lists: DataFrame, rules: LocationRules) -> DataFrame:
    from pyspark.sql import functions as F

    manifests = (
        lists.filter("manifest_location is not null")
        .groupBy("manifest_location")
        .agg(F.first("manifest_path").alias("path"), F.first("entry").alias("entry"))
    )
    named = manifests.select(
        "path",
        F.lit("manifest").alias("kind"),
        _entry_length(F.col("entry")).alias("size_in_bytes"),
        F.col("manifest_location").alias("location"),
    )
    paths = lists.filter("list_path is not null").groupBy("list_path").agg(F.max("list_size").alias("size_in_bytes"))
    return named.unionByName(
        paths.select(
            F.col("list_path").alias("path"),
            F.lit("manifest_list").alias("kind"),
            "size_in_bytes",
            normalise_column(F.col("list_path"), rules).alias("location"),
        )
    )


def _statistics(
    spark: SparkSession, metadata: TableMetadata, snapshot_ids: Collection[int], rules: LocationRules
) -> DataFrame:
    wanted = set(snapshot_ids)
    rows = [
        (file.path, file.kind, file.size_in_bytes, normalise(file.path, rules))
        for file in metadata.statistics
        if file.snapshot_id in wanted
    ]
    return spark.createDataFrame(rows, FILES)


def _doomed_statistics(
    spark: SparkSession, metadata: TableMetadata, expired: set[int], rules: LocationRules
) -> DataFrame:
    kept = {normalise(file.path, rules) for file in metadata.statistics if file.snapshot_id not in expired}
    doomed = {}
    for file in metadata.statistics:
        location = normalise(file.path, rules)
        # A statistics file may be registered for several snapshots; one kept registration keeps it.
        if file.snapshot_id in expired and location not in kept:
            doomed[location] = (file.path, file.kind, file.size_in_bytes, location, file.snapshot_id)
    return spark.createDataFrame(list(doomed.values()), FILES + ", snapshot_id bigint")


def _one_row_per_location(files: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        files.groupBy("location")
        .agg(F.min("path").alias("path"), F.min("kind").alias("kind"), F.max("size_in_bytes").alias("size_in_bytes"))
        .select("path", "kind", "size_in_bytes", "location")
    )


def _entry_length(entry: Column) -> Column:
    from pyspark.sql import functions as F

    # The list entry travels as bytes to the worker that reads the manifest; its length stands in front of it.
    return F.conv(F.hex(F.substring(entry, 1, 8)), 16, 10).cast("bigint")


def _packed(entry: ManifestListEntry) -> bytes:
    import pickle

    return max(entry.manifest_length, 0).to_bytes(8, "big") + pickle.dumps(entry)


def unpacked(data: bytes) -> ManifestListEntry:
    """The manifest list's entry behind the `entry` column of `manifest_rows`."""
    import pickle

    return pickle.loads(data[8:])  # type: ignore[no-any-return]


class _ListReader:
    """Reads manifest lists; a snapshot of format 1 that has no list names its manifests itself."""

    def __init__(self, stores: Stores, rules: LocationRules) -> None:
        self.stores = stores
        self.rules = rules

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle

        import pyarrow as pa

        schema = pa.schema(
            [
                ("position", pa.int64()),
                ("list_path", pa.string()),
                ("list_size", pa.int64()),
                ("manifest_path", pa.string()),
                ("manifest_location", pa.string()),
                ("entry", pa.binary()),
            ]
        )
        for batch in batches:
            rows: list[tuple[object, ...]] = []
            for position, pickled in zip(
                batch.column("position").to_pylist(), batch.column("snapshot").to_pylist(), strict=True
            ):
                snapshot: Snapshot = pickle.loads(pickled)
                listed = avro.manifests_of(self.stores, snapshot)
                for entry in listed.entries:
                    path = entry.manifest_path
                    rows.append(
                        (position, listed.path, listed.size_in_bytes, path, normalise(path, self.rules), _packed(entry))
                    )
                if not listed.entries:
                    rows.append((position, listed.path, listed.size_in_bytes, None, None, None))
                if len(rows) >= 20_000:
                    yield _batch(rows, schema)
                    rows = []
            if rows:
                yield _batch(rows, schema)


def _batch(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = list(zip(*rows, strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


class _ManifestReader:
    """Reads manifests, each held against its entry in the list that names it."""

    def __init__(self, stores: Stores, rules: LocationRules) -> None:
        self.stores = stores
        self.rules = rules

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for packed, kept, snapshot_id, position in zip(
                *(batch.column(name).to_pylist() for name in ("entry", "kept", "snapshot_id", "position")), strict=True
            ):
                live = avro.live_entries(self.stores, unpacked(packed))
                paths = live.column("file_path").to_pylist()
                kinds = [
                    kind_of(content, file_format)
                    for content, file_format in zip(
                        live.column("content").to_pylist(), live.column("file_format").to_pylist(), strict=True
                    )
                ]
                count = len(paths)
                yield pa.RecordBatch.from_pydict(
                    {
                        "path": pa.array(paths, pa.string()),
                        "kind": pa.array(kinds, pa.string()),
                        "size_in_bytes": live.column("file_size_in_bytes").cast(pa.int64()),
                        "location": pa.array([normalise(path, self.rules) for path in paths], pa.string()),
                        "kept": pa.array([kept] * count, pa.bool_()),
                        "snapshot_id": pa.array([snapshot_id] * count, pa.int64()),
                        "position": pa.array([position] * count, pa.int64()),
                    }
                )
