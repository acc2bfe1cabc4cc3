"""A large handoff, on executors: its walk over lists and manifests, what is needed, and the batches of its sealed rows.
Memory in the driver is bounded by the numbers of manifests and batches.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.cold_tier.copy import WANTED, Copier, copy_frame
from artemis_lifecycle.cold_tier.ledger import CopiedFile, Ledger
from artemis_lifecycle.cold_tier.paths import Placing
from artemis_lifecycle.cold_tier.tasks import spread
from artemis_lifecycle.cold_tier.work import (
    BUCKETS,
    COPY,
    DELETE,
    NAMED,
    SEALED,
    Batch,
    Demand,
    FileRow,
    ListRow,
    Losses,
    Phase,
    Problem,
    Work,
    list_problems,
    losses,
    manifest_problems,
    read_list,
    read_manifest,
)
from artemis_lifecycle.metadata.kinds import DELETION_VECTORS, MANIFEST, MANIFEST_LIST, POSITION_DELETES
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.frames import arrow_schema, read_frame, write_frame
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

_SEED = 7

_LISTS = (
    "snapshot_id bigint, list_source string, list_destination string, list_size bigint, manifest_source string, "
    "manifest_destination string, manifest_length bigint, entry binary, error string"
)
_FILES = (
    "manifest_destination string, kind string, file_format string, source string, destination string, "
    "size_in_bytes bigint, error string"
)
_OF_A_SOURCE = ("phase", "kind", "file_format", "source", "size_in_bytes", "checksum")
_LISTS_PER_TASK = 100
_MANIFESTS_PER_TASK = 50
_ROWS_PER_TASK = 200_000


@dataclass(frozen=True)
class FoundOnSpark:
    """Sealed rows to be, persisted while `find_on_spark`'s block runs; lists name manifests `listed` times."""

    rows: DataFrame
    listed: int

    def sizes(self) -> Iterable[tuple[int, int, int, int]]:
        return self._counted

    @cached_property
    def _counted(self) -> list[tuple[int, int, int, int]]:
        from pyspark.sql import functions as sf

        sizes = (
            self.rows.filter(self.rows.role == COPY)
            .groupBy("phase", "bucket")
            .agg(sf.count("*").alias("files"), sf.sum(sf.greatest("size_in_bytes", sf.lit(0))).alias("bytes"))
        )
        with worker_errors():
            return [(row["phase"], row["bucket"], row["files"], row["bytes"] or 0) for row in sizes.collect()]

    def store(self, folder: str, stores: Stores) -> None:
        count = self.listed + sum(files for _, _, files, _ in self.sizes())
        with worker_errors():
            rows = spread(self.rows, -(-count // _ROWS_PER_TASK))
            write_frame(Runner(self.rows.sparkSession).rows(rows, arrow_schema(SEALED)), folder, stores)


@contextmanager
def find_on_spark(
    spark: SparkSession, source: Stores, demand: Demand, ledger: Ledger
) -> Iterator[FoundOnSpark | tuple[Problem, ...]]:
    """What is needed, for as long as the block runs; or the metadata that cannot be read."""
    lists = _lists(spark, source, demand).persist()
    held = [lists]
    try:
        with worker_errors():
            listed, problems = _look_at_lists(lists)
            if not problems:
                known = ledger.verified(spark).select("destination").persist()
                manifests = _without(_distinct_manifests(lists), known)
                files = _files(manifests, source, demand, listed).persist()
                held += [known, files]
                problems = _problems_of_manifests(files, lists)
        if problems:
            yield problems
            return
        needed = _with_checksums(spark, demand, _without(_needed(spark, demand, lists, manifests, files), known))
        rows = _sealed_rows(needed, files, lists).persist()
        held.append(rows)
        yield FoundOnSpark(rows, listed)
    finally:
        for persisted in held:
            persisted.unpersist()


def losses_on_spark(spark: SparkSession, source: Stores, demand: Demand, lost: Sequence[CopiedFile]) -> Losses:
    """Which snapshots of the demand cannot be read without `lost` files. Reads all its manifests."""
    from pyspark.sql import functions as sf

    cold_paths = [file.destination for file in lost]
    lists = _lists(spark, source, demand).persist()
    try:
        with worker_errors():
            files = _files(_distinct_manifests(lists), source, demand, _look_at_lists(lists)[0])
            hit = files.filter(sf.col("destination").isin(*cold_paths)).select("destination", "manifest_destination")
            named = lists.select("snapshot_id", "list_destination", "manifest_destination")
            rows = hit.distinct().join(named, "manifest_destination").collect()
            users: dict[str, set[int]] = {}
            for row in rows:
                users.setdefault(row["destination"], set()).add(row["snapshot_id"])
            for name in ("list_destination", "manifest_destination"):
                level = named.filter(sf.col(name).isin(*cold_paths)).select(sf.col(name).alias("path"), "snapshot_id")
                for row in level.distinct().collect():
                    users.setdefault(row["path"], set()).add(row["snapshot_id"])
    finally:
        lists.unpersist()
    return losses(demand, lost, users, {row["manifest_destination"] for row in rows})


# --- the walk -------------------------------------------------------------------------------------------------------


def _lists(spark: SparkSession, source: Stores, demand: Demand) -> DataFrame:
    rows = [(pickle.dumps(snapshot),) for snapshot in demand.snapshots()]
    frame = spread(spark.createDataFrame(rows, "snapshot binary"), -(-len(rows) // _LISTS_PER_TASK))
    return frame.mapInArrow(_Reader(_ListReader(source, demand.mapping), "snapshot", _LISTS), _LISTS)


def _distinct_manifests(lists: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    return (
        lists.filter("manifest_destination is not null")
        .groupBy("manifest_destination")
        .agg(
            sf.min("manifest_source").alias("source"),
            sf.max("manifest_length").alias("size_in_bytes"),
            sf.first("entry").alias("entry"),
        )
        .withColumnRenamed("manifest_destination", "destination")
    )


def _without(frame: DataFrame, known: DataFrame) -> DataFrame:
    return frame.join(known, "destination", "left_anti")


def _files(manifests: DataFrame, source: Stores, demand: Demand, listed: int) -> DataFrame:
    """One FileRow per (manifest, live entry). At most `listed` manifests."""
    from pyspark.sql import functions as sf

    entries = spread(
        manifests.select(sf.struct("destination", "entry").alias("manifest")), -(-listed // _MANIFESTS_PER_TASK)
    )
    return entries.mapInArrow(_Reader(_ManifestReader(source, demand.mapping), "manifest", _FILES), _FILES)


def _needed(spark: SparkSession, demand: Demand, lists: DataFrame, manifests: DataFrame, files: DataFrame) -> DataFrame:
    """One row per destination, of the columns of SEALED up to its size."""
    from pyspark.sql import functions as sf

    contents = files.groupBy("destination").agg(
        sf.min("kind").alias("kind"),
        sf.min("file_format").alias("file_format"),
        sf.min("source").alias("source"),
        sf.max("size_in_bytes").alias("size_in_bytes"),
    )
    registered = spark.createDataFrame(
        [(kind, None, source, cold, size) for cold, (kind, source, size) in demand.statistics().items()],
        "kind string, file_format string, source string, destination string, size_in_bytes bigint",
    )
    by_list = (
        lists.filter("list_destination is not null")
        .groupBy(sf.col("list_destination").alias("destination"))
        .agg(sf.min("list_source").alias("source"), sf.max("list_size").alias("size_in_bytes"))
    )
    columns = arrow_schema(SEALED).names[:6]
    avro_format = sf.lit("avro").alias("file_format")
    parts = (
        (0, contents),
        # One Puffin file may hold deletion vectors, which are rewritten, and statistics.
        (0, _without(registered, contents)),
        (1, manifests.withColumn("kind", sf.lit(MANIFEST)).select("*", avro_format)),
        (2, by_list.withColumn("kind", sf.lit(MANIFEST_LIST)).select("*", avro_format)),
    )
    first, *others = (part.withColumn("phase", sf.lit(phase).cast("bigint")).select(columns) for phase, part in parts)
    for part in others:
        first = first.unionByName(part)
    return first


def _with_checksums(spark: SparkSession, demand: Demand, needed: DataFrame) -> DataFrame:
    """`needed` with what the sources' checksums must be."""
    from pyspark.sql import functions as sf

    if demand.origin is None:
        return needed.withColumn("checksum", sf.lit(None).cast("string"))
    recorded = demand.origin.verified(spark).select(sf.col("destination").alias("source"), "checksum")
    # A file may have been recorded by two handoffs at once; its content is one.
    return needed.join(recorded.groupBy("source").agg(sf.max("checksum").alias("checksum")), "source", "left")


def _sealed_rows(needed: DataFrame, files: DataFrame, lists: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    nothing = sf.lit(None)
    types = dict(part.split() for part in SEALED.split(", "))
    empty = {name: nothing.cast(types[name]) for name in _OF_A_SOURCE}
    deletes = files.filter(sf.col("kind").isin(POSITION_DELETES, DELETION_VECTORS)).select(
        sf.col("manifest_destination").alias("manifest"), "destination"
    )
    named = lists.filter("manifest_destination is not null").select(
        nothing.cast("string").alias("manifest"), sf.col("manifest_destination").alias("destination")
    )
    union = (
        needed.withColumns({"role": sf.lit(COPY), "manifest": nothing.cast("string")})
        .unionByName(deletes.distinct().withColumns({"role": sf.lit(DELETE), **empty}))
        .unionByName(named.distinct().withColumns({"role": sf.lit(NAMED), **empty}))
    )
    bucket = sf.pmod(sf.xxhash64(sf.lit(_SEED), "destination"), sf.lit(BUCKETS))
    return union.withColumn("bucket", bucket.cast("bigint")).select(list(types))


def _look_at_lists(lists: DataFrame) -> tuple[int, tuple[Problem, ...]]:
    """How many rows name a manifest, and the lists that cannot be read."""
    from pyspark.sql import functions as sf

    broken = sf.when(sf.col("error").isNotNull(), sf.struct("snapshot_id", "list_source", "error"))
    row = lists.agg(
        sf.count("manifest_destination").alias("listed"), sf.collect_list(broken).alias("broken")
    ).collect()[0]
    return row["listed"], list_problems(tuple(item) for item in row["broken"])


def _problems_of_manifests(files: DataFrame, lists: DataFrame) -> tuple[Problem, ...]:
    broken = files.filter("error is not null").select("manifest_destination", "source", "error")
    rows = broken.join(lists.select("manifest_destination", "snapshot_id").distinct(), "manifest_destination").collect()
    return manifest_problems((row["source"], row["error"], row["snapshot_id"]) for row in rows)


class _ListReader:
    def __init__(self, source: Stores, mapping: Placing) -> None:
        self._source = source
        self._mapping = mapping

    def __call__(self, pickled: bytes) -> list[tuple[Any, ...]]:
        rows = read_list(self._source, self._mapping, pickle.loads(pickled))
        return [row if row.entry is None else _pickled(row) for row in rows]


class _ManifestReader:
    def __init__(self, source: Stores, mapping: Placing) -> None:
        self._source = source
        self._mapping = mapping

    def __call__(self, manifest: dict[str, Any]) -> list[FileRow]:
        return read_manifest(self._source, self._mapping, manifest["destination"], pickle.loads(manifest["entry"]))


class _Reader:
    """Runs `read` on each value of a column: the rows that it gives, in the types of `schema`."""

    def __init__(self, read: Callable[[Any], Sequence[tuple[Any, ...]]], column: str, schema: str) -> None:
        self._read = read
        self._column = column
        self._schema = schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for value in batch.column(self._column).to_pylist():
                yield _to_batch(self._read(value), self._schema)


def _pickled(row: ListRow) -> tuple[Any, ...]:
    values = row._asdict()
    return tuple((values | {"entry": pickle.dumps(row.entry)}).values())


def _to_batch(rows: Sequence[tuple[Any, ...]], schema: str) -> pa.RecordBatch:
    import pyarrow as pa

    fields = arrow_schema(schema)
    columns: list[Collection[Any]] = list(zip(*rows, strict=True)) or [()] * len(fields)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, fields.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=fields)


# --- copying --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowsOnSpark:
    """The sealed rows of a handoff, persisted while `open_on_spark`'s block runs."""

    spark: SparkSession
    ledger: Ledger
    rows: DataFrame

    @contextmanager
    def phase(self, phase: int) -> Iterator[Phase]:
        from pyspark.sql import functions as sf

        rows, spark = self.rows, self.spark
        wanted = rows.filter((rows.role == COPY) & (rows.phase == phase))
        if phase == 0:
            yield _PhaseOnSpark(wanted)
        elif phase == 1:
            described = self.ledger.verified(spark).filter("rewritten is not null").select("destination", "rewritten")
            deletes = (
                rows.filter(rows.role == DELETE)
                .select("manifest", "destination")
                .join(described, "destination")
                .groupBy(sf.col("manifest").alias("destination"))
                .agg(sf.collect_list(sf.struct("destination", "rewritten")).alias("deletes"))
                .persist()
            )
            try:
                yield _PhaseOnSpark(wanted, deletes=deletes)
            finally:
                deletes.unpersist()
        else:
            manifests = self.ledger.verified(spark).filter(sf.col("kind") == MANIFEST)
            named = rows.filter(rows.role == NAMED).select("destination")
            with worker_errors():
                found = named.join(manifests.select("destination", "size_in_bytes"), "destination").collect()
            lengths = spark.sparkContext.broadcast({row["destination"]: row["size_in_bytes"] for row in found})
            try:
                yield _PhaseOnSpark(wanted, lengths=lengths)
            finally:
                lengths.unpersist()


@contextmanager
def open_on_spark(spark: SparkSession, stores: Stores, work: Work, ledger: Ledger) -> Iterator[RowsOnSpark]:
    rows = read_frame(Runner(spark), work.folder, stores).frame().persist()
    try:
        yield RowsOnSpark(spark, ledger, rows)
    finally:
        rows.unpersist()


@dataclass(frozen=True)
class _PhaseOnSpark:
    rows: DataFrame
    deletes: DataFrame | None = None
    lengths: Broadcast[dict[str, int]] | None = None

    def copy(self, batch: Batch, copier: Copier, excluded: Collection[str]) -> list[CopiedFile]:
        wanted = self.rows.filter(self.rows.bucket.between(batch.first_bucket, batch.last_bucket))
        if excluded:
            wanted = wanted.filter(~wanted.destination.isin(*excluded))
        wanted = wanted.select(*arrow_schema(WANTED).names)
        if self.deletes is not None:
            wanted = wanted.join(self.deletes, "destination", "left")
        return copy_frame(wanted, copier.with_lengths(self.lengths), batch.files, batch.size_in_bytes)
