"""What a handoff has to copy: everything that its snapshots read, less what was copied in earlier handoffs.

The answer is sealed under the plan's id before the first copy, so that a killed handoff goes on with the same batches.
A manifest that was copied before is not even read again: the ledger has all its files. Cost follows the new manifests.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.cold_tier.ledger import CopiedFile, Ledger
from artemis_lifecycle.cold_tier.paths import PathMapping
from artemis_lifecycle.cold_tier.tasks import spread
from artemis_lifecycle.errors import ExistingFile, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata import avro
from artemis_lifecycle.metadata.kinds import (
    DELETION_VECTORS,
    MANIFEST,
    MANIFEST_LIST,
    POSITION_DELETES,
    kind_of,
)
from artemis_lifecycle.metadata.types import ManifestListEntry, Snapshot, TableMetadata
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.frames import drop_frame, read_frame, write_frame
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NEEDED = "phase int, kind string, file_format string, source string, destination string, size_in_bytes bigint"
PHASES = 3
"""Contents and statistics first, then manifests, which name them and their new sizes, then manifest lists."""

_COPY, _DELETE, _MANIFEST = "copy", "delete", "manifest"
"""Roles of the sealed rows: a file to copy; a delete file that a manifest names; a manifest that some list names."""

_BUCKETS, _SEED = 4096, 7

_LISTS = (
    "snapshot_id bigint, list_source string, list_destination string, list_size bigint, manifest_source string, "
    "manifest_destination string, manifest_length bigint, entry binary, error string"
)
_FILES = (
    "manifest_destination string, kind string, file_format string, source string, destination string, "
    "size_in_bytes bigint, error string"
)
_LISTS_PER_TASK = 100
_MANIFESTS_PER_TASK = 50
_ROWS_PER_TASK = 200_000


@dataclass(frozen=True)
class Problem:
    """A file that a handoff needs and cannot have, and the snapshots that cannot be read without it."""

    path: str
    reason: str
    snapshot_ids: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """One batch of `phase`: the files whose cold paths hash into these buckets. `number` is unique in the plan; sizes
    are the recorded ones, in bytes."""

    number: int
    phase: int
    first_bucket: int
    last_bucket: int
    files: int
    size_in_bytes: int


@dataclass(frozen=True)
class Work:
    """The sealed work of one plan's handoff. `problems` were approved: their snapshots are not among `snapshot_ids`."""

    folder: str
    snapshot_ids: tuple[int, ...]
    batches: tuple[Batch, ...]
    problems: tuple[Problem, ...] = ()

    def rows(self, spark: SparkSession, stores: Stores) -> DataFrame:
        """All sealed rows; `of_batch`, `deletes_of` and `manifests_of` take out of them what a step needs."""
        return read_frame(spark, self.folder, stores)


def of_batch(rows: DataFrame, batch: Batch) -> DataFrame:
    """The files of a batch: DataFrame[NEEDED without phase], one row per cold path."""
    chosen = rows.filter(
        (rows.role == _COPY) & (rows.phase == batch.phase) & rows.bucket.between(batch.first_bucket, batch.last_bucket)
    )
    return chosen.drop("role", "phase", "bucket", "manifest")


def deletes_of(rows: DataFrame) -> DataFrame:
    """DataFrame[manifest, destination]: the delete files that each manifest of the handoff names."""
    return rows.filter(rows.role == _DELETE).select("manifest", "destination")


def manifests_of(rows: DataFrame) -> DataFrame:
    """DataFrame[destination] of all manifests that the lists of the handoff name, copied before or not."""
    return rows.filter(rows.role == _MANIFEST).select("destination")


def _work_path(root: str, plan_id: str) -> str:
    return f"{root}/handoffs/{plan_id}/work.json"


def load_work(stores: Stores, root: str, plan_id: str) -> Work | None:
    """The work that a former run of this handoff sealed; None when it got not so far. Raises StorageError if
    damaged."""
    path = _work_path(root, plan_id)
    if stores.head(path) is None:
        return None
    try:
        values = json.loads(stores.read(path))
        return Work(
            folder=f"{path.rpartition('/')[0]}/{values['rows']}",
            snapshot_ids=tuple(values["snapshot_ids"]),
            batches=tuple(Batch(**batch) for batch in values["batches"]),
            problems=tuple(
                Problem(item["path"], item["reason"], tuple(item["snapshot_ids"])) for item in values["problems"]
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"The sealed work of a handoff is damaged: {error}",
            path=path,
            untouched="both tiers",
            do="remove that file and run the handoff again",
        ) from error


@dataclass(frozen=True)
class Demand:
    """Which snapshots are wanted in cold, of which metadata, and by what mapping."""

    metadata: TableMetadata
    snapshot_ids: tuple[int, ...]
    mapping: PathMapping

    def snapshots(self) -> list[Snapshot]:
        wanted = set(self.snapshot_ids)
        return [snapshot for snapshot in self.metadata.snapshots if snapshot.snapshot_id in wanted]


def seal_work(
    spark: SparkSession,
    live: Stores,
    demand: Demand,
    ledger: Ledger,
    root: str,
    plan_id: str,
    *,
    files_per_batch: int,
    bytes_per_batch: int,
    problems: tuple[Problem, ...] = (),
) -> Work | tuple[Problem, ...]:
    """Find what is needed and seal it for the plan; or the problems, sealing nothing, when metadata cannot be
    read."""

    lists = _lists(spark, live, demand).persist()
    held = [lists]
    try:
        with worker_errors():
            listed, found = _look_at_lists(lists)
            if found:
                return found
            known = ledger.verified(spark).select("destination").persist()
            manifests = _without(_distinct_manifests(lists), known)
            files = _files(manifests, live, demand, listed).persist()
            held += [known, files]
            found = _problems_of_manifests(files, lists)
            if found:
                return found
            needed = _without(_needed(spark, demand, lists, manifests, files), known)
            rows = _sealed_rows(needed, files, lists).persist()
            held.append(rows)
            batches = _batches(rows, files_per_batch, bytes_per_batch)
            count = listed + sum(batch.files for batch in batches)
            # A name of its own: of two runs at once, or after a kill, one is sealed and the other is garbage.
            frame = f"{root}/handoffs/{plan_id}/needed-{uuid.uuid4().hex}"
            write_frame(spread(rows, -(-count // _ROWS_PER_TASK)), frame, live)
    finally:
        for persisted in held:
            persisted.unpersist()
    work = Work(frame, demand.snapshot_ids, batches, problems)
    content = {
        "rows": frame.rpartition("/")[2],
        "snapshot_ids": work.snapshot_ids,
        "batches": [asdict(batch) for batch in work.batches],
        "problems": [asdict(problem) for problem in work.problems],
    }
    try:
        live.write(_work_path(root, plan_id), json.dumps(content).encode())
    except ExistingFile:
        drop_frame(frame, live)
        return load_work(live, root, plan_id) or work
    return work


@dataclass(frozen=True)
class Losses:
    """What lost files mean: problems, and the cold paths of manifests and lists that must not be made without them."""

    problems: tuple[Problem, ...] = ()
    excluded: frozenset[str] = frozenset()

    @property
    def snapshot_ids(self) -> frozenset[int]:
        return frozenset(snapshot for problem in self.problems for snapshot in problem.snapshot_ids)


def losses_of(spark: SparkSession, live: Stores, demand: Demand, lost: Sequence[CopiedFile]) -> Losses:
    """Which snapshots of the demand cannot be read without `lost` files. Reads all its manifests, for something that is
    seldom."""
    from pyspark.sql import functions as sf

    if not lost:
        return Losses()
    cold_paths = [file.destination for file in lost]
    lists = _lists(spark, live, demand).persist()
    try:
        with worker_errors():
            files = _files(_distinct_manifests(lists), live, demand, _look_at_lists(lists)[0])
            hit = files.filter(sf.col("destination").isin(*cold_paths)).select("destination", "manifest_destination")
            named = lists.select("snapshot_id", "list_destination", "manifest_destination")
            rows = hit.distinct().join(named, "manifest_destination").collect()
            by_file = [(row["destination"], row["snapshot_id"]) for row in rows]
            manifests = {row["manifest_destination"] for row in rows}
            by_level = [
                (row["destination"], row["snapshot_id"])
                for name in ("list_destination", "manifest_destination")
                for row in named.filter(sf.col(name).isin(*cold_paths))
                .select(sf.col(name).alias("destination"), "snapshot_id")
                .distinct()
                .collect()
            ]
    finally:
        lists.unpersist()
    wanted = set(demand.snapshot_ids)
    by_statistics = [
        (demand.mapping(file.path), file.snapshot_id)
        for file in demand.metadata.statistics
        if file.snapshot_id in wanted and demand.mapping(file.path) in cold_paths
    ]
    users: dict[str, set[int]] = {}
    for destination, snapshot_id in (*by_file, *by_level, *by_statistics):
        users.setdefault(destination, set()).add(snapshot_id)
    problems = tuple(
        Problem(file.source, file.error or "", tuple(sorted(users.get(file.destination, ())))) for file in lost
    )
    gone = {snapshot_id for ids in users.values() for snapshot_id in ids}
    of_gone = {
        demand.mapping(snapshot.manifest_list)
        for snapshot in demand.snapshots()
        if snapshot.snapshot_id in gone and snapshot.manifest_list is not None
    }
    return Losses(problems, frozenset(manifests | of_gone))


# --- the walk -------------------------------------------------------------------------------------------------------


def _lists(spark: SparkSession, live: Stores, demand: Demand) -> DataFrame:
    """One row per (snapshot, manifest), one without a manifest for an empty list, one with `error` for an
    unreadable."""
    import pickle

    rows = [(pickle.dumps(snapshot),) for snapshot in demand.snapshots()]
    frame = spread(spark.createDataFrame(rows, "snapshot binary"), -(-len(rows) // _LISTS_PER_TASK))
    return frame.mapInArrow(_ListReader(live, demand.mapping), _LISTS)


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


def _files(manifests: DataFrame, live: Stores, demand: Demand, listed: int) -> DataFrame:
    """One row per (manifest, live entry), one with `error` for a manifest that cannot be read. At most `listed`
    manifests."""
    entries = spread(manifests.select("destination", "entry"), -(-listed // _MANIFESTS_PER_TASK))
    return entries.mapInArrow(_ManifestReader(live, demand.mapping), _FILES)


def _needed(spark: SparkSession, demand: Demand, lists: DataFrame, manifests: DataFrame, files: DataFrame) -> DataFrame:
    """DataFrame[NEEDED], one row per cold path."""
    from pyspark.sql import functions as sf

    contents = files.groupBy("destination").agg(
        sf.min("kind").alias("kind"),
        sf.min("file_format").alias("file_format"),
        sf.min("source").alias("source"),
        sf.max("size_in_bytes").alias("size_in_bytes"),
    )
    wanted = set(demand.snapshot_ids)
    statistics = {
        demand.mapping(file.path): (file.kind, None, file.path, demand.mapping(file.path), file.size_in_bytes)
        for file in demand.metadata.statistics
        if file.snapshot_id in wanted
    }
    registered = spark.createDataFrame(
        list(statistics.values()),
        "kind string, file_format string, source string, destination string, size_in_bytes bigint",
    )
    by_list = (
        lists.filter("list_destination is not null")
        .groupBy(sf.col("list_destination").alias("destination"))
        .agg(sf.min("list_source").alias("source"), sf.max("list_size").alias("size_in_bytes"))
    )
    columns = [part.split()[0] for part in NEEDED.split(", ")]
    avro_format = sf.lit("avro").alias("file_format")
    parts = (
        contents.withColumn("phase", sf.lit(0)),
        registered.withColumn("phase", sf.lit(0)),
        manifests.withColumn("phase", sf.lit(1)).withColumn("kind", sf.lit(MANIFEST)).select("*", avro_format),
        by_list.withColumn("phase", sf.lit(2)).withColumn("kind", sf.lit(MANIFEST_LIST)).select("*", avro_format),
    )
    union = parts[0].select(columns)
    for part in parts[1:]:
        union = union.unionByName(part.select(columns))
    return union


def _sealed_rows(needed: DataFrame, files: DataFrame, lists: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    nothing = sf.lit(None)
    empty = {
        "phase": nothing.cast("int"),
        "kind": nothing.cast("string"),
        "file_format": nothing.cast("string"),
        "source": nothing.cast("string"),
        "size_in_bytes": nothing.cast("bigint"),
    }
    deletes = files.filter(sf.col("kind").isin(POSITION_DELETES, DELETION_VECTORS)).select(
        sf.col("manifest_destination").alias("manifest"), "destination"
    )
    named = lists.filter("manifest_destination is not null").select(
        nothing.cast("string").alias("manifest"), sf.col("manifest_destination").alias("destination")
    )
    parts = (
        needed.withColumns({"role": sf.lit(_COPY), "manifest": nothing.cast("string")}),
        deletes.distinct().withColumns({"role": sf.lit(_DELETE), **empty}),
        named.distinct().withColumns({"role": sf.lit(_MANIFEST), **empty}),
    )
    union = parts[0]
    for part in parts[1:]:
        union = union.unionByName(part)
    return union.withColumn("bucket", sf.pmod(sf.xxhash64(sf.lit(_SEED), "destination"), sf.lit(_BUCKETS)).cast("int"))


def _batches(rows: DataFrame, files_per_batch: int, bytes_per_batch: int) -> tuple[Batch, ...]:
    """Neighbouring buckets packed into batches within both bounds, or of one bucket where that alone is beyond."""
    from pyspark.sql import functions as sf

    sizes = (
        rows.filter(rows.role == _COPY)
        .groupBy("phase", "bucket")
        .agg(sf.count("*").alias("files"), sf.sum(sf.greatest("size_in_bytes", sf.lit(0))).alias("bytes"))
        .collect()
    )
    batches: list[Batch] = []
    for phase, bucket, files, size in sorted(tuple(row) for row in sizes):
        last = batches[-1] if batches and batches[-1].phase == phase else None
        if last and last.files + files <= files_per_batch and last.size_in_bytes + size <= bytes_per_batch:
            batches[-1] = replace(
                last, last_bucket=bucket, files=last.files + files, size_in_bytes=last.size_in_bytes + size
            )
        else:
            batches.append(Batch(len(batches), phase, bucket, bucket, files, size))
    return tuple(batches)


def _look_at_lists(lists: DataFrame) -> tuple[int, tuple[Problem, ...]]:
    """How many rows name a manifest, and the lists that cannot be read."""
    from pyspark.sql import functions as sf

    broken = sf.when(sf.col("error").isNotNull(), sf.struct("snapshot_id", "list_source", "error"))
    row = lists.agg(
        sf.count("manifest_destination").alias("listed"), sf.collect_list(broken).alias("broken")
    ).collect()[0]
    problems = tuple(
        Problem(
            item["list_source"] or f"the manifests of snapshot {item['snapshot_id']}",
            item["error"],
            (item["snapshot_id"],),
        )
        for item in sorted(row["broken"], key=lambda item: item["snapshot_id"])
    )
    return row["listed"], problems


def _problems_of_manifests(files: DataFrame, lists: DataFrame) -> tuple[Problem, ...]:
    broken = files.filter("error is not null").select("manifest_destination", "source", "error")
    rows = broken.join(lists.select("manifest_destination", "snapshot_id").distinct(), "manifest_destination").collect()
    grouped: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        grouped.setdefault((row["source"], row["error"]), set()).add(row["snapshot_id"])
    return tuple(Problem(path, reason, tuple(sorted(ids))) for (path, reason), ids in sorted(grouped.items()))


class _ListReader:
    def __init__(self, live: Stores, mapping: PathMapping) -> None:
        self._live = live
        self._mapping = mapping

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle

        for batch in batches:
            for pickled in batch.column("snapshot").to_pylist():
                snapshot: Snapshot = pickle.loads(pickled)
                yield _to_batch(self._rows(snapshot), _LISTS)

    def _rows(self, snapshot: Snapshot) -> list[tuple[Any, ...]]:
        import pickle

        source = snapshot.manifest_list
        try:
            listed = avro.manifests_of(self._live, snapshot)
        except (UnreadableMetadata, StorageError) as error:
            return [(snapshot.snapshot_id, source, None, None, None, None, None, None, error.what)]
        head = (
            snapshot.snapshot_id,
            source,
            None if source is None else self._mapping(source),
            listed.size_in_bytes,
        )
        return [
            (
                *head,
                entry.manifest_path,
                self._mapping(entry.manifest_path),
                entry.manifest_length,
                pickle.dumps(entry),
                None,
            )
            for entry in listed.entries
        ] or [(*head, None, None, None, None, None)]


class _ManifestReader:
    def __init__(self, live: Stores, mapping: PathMapping) -> None:
        self._live = live
        self._mapping = mapping

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle

        for batch in batches:
            for destination, pickled in zip(
                batch.column("destination").to_pylist(), batch.column("entry").to_pylist(), strict=True
            ):
                entry: ManifestListEntry = pickle.loads(pickled)
                yield _to_batch(self._rows(destination, entry), _FILES)

    def _rows(self, destination: str, entry: ManifestListEntry) -> list[tuple[Any, ...]]:
        try:
            found = avro.live_entries(self._live, entry)
        except (UnreadableMetadata, StorageError) as error:
            return [(destination, MANIFEST, None, entry.manifest_path, None, None, error.what)]
        columns = ("content", "file_format", "file_path", "file_size_in_bytes")
        return [
            (destination, kind_of(content, file_format), file_format, path, self._mapping(path), size, None)
            for content, file_format, path, size in zip(
                *(found.column(name).to_pylist() for name in columns), strict=True
            )
        ]


def _to_batch(rows: Sequence[tuple[Any, ...]], schema: str) -> pa.RecordBatch:
    import pyarrow as pa

    types = {"bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
    fields = [(name, types[kind]) for name, kind in (part.split() for part in schema.split(", "))]
    columns: list[Collection[Any]] = list(zip(*rows, strict=True)) or [()] * len(fields)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, (_, kind) in zip(columns, fields, strict=True)],
        names=[name for name, _ in fields],
    )
