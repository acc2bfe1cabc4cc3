"""A job's files, cut into batches once and for all, and the outcome of each. Spark writes the batches, the driver reads
one at a time; another process resumes at the grain of a batch.

    <root>/deletions/<job_id>/batches/batches.json and the Parquet parts that it names, one a batch (columns: `BATCH`)
    <root>/deletions/<job_id>/outcomes/batch-<n>.parquet (columns: `OUTCOMES`)

Order: data and delete files first, then statistics, manifests, manifest lists, metadata files, each by path. The sealed
list alone makes a job resumable, so any order would be safe; this one frees the most bytes first and leaves, should
both list and journal be lost, the files from which the rest can still be named.
"""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from artemis_lifecycle.errors import ExistingFile, StorageError
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.journal import JobKind
from artemis_lifecycle.spark.readers import read_here
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.columnar import ParquetReader
from artemis_lifecycle.storage.frames import arrow_schema, frame_batches, read_frame, read_table
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.storage.types import NO_TIME

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

BATCH = "batch bigint, path string, kind string, size_in_bytes bigint, reason string, last_modified timestamp"
OUTCOMES = "path string, kind string, size_in_bytes bigint, outcome string, reason string"

Outcome = Literal["deleted", "quarantined", "absent", "kept", "failed", "would_delete"]

_ORDER = ("statistics", "partition_statistics", "manifest", "manifest_list", "metadata")
_PARTS_HERE = 50
"""Up to as many batches are read in this process: starting workers costs more."""

_FILES_HERE = 500_000
"""Up to as many files are cut into batches in this process: about 250 MB."""

_ROWS_OF_A_FILE = 500_000
_READERS = 16
_WRITERS = 8
_SORTED_AT_ONCE = 500_000  # Rows that one Spark task sorts; more are spread over buckets by hash first.


@dataclass(frozen=True)
class DeletionJob:
    """A sealed list of files to delete: of an expiration plan after its commit, of an orphan scan, or of the scan of a
    dropped table.

    `files_location` is the folder of a sealed frame with columns path, kind, size_in_bytes, reason (and last_modified,
    for a scan); `files` is how many rows its record says it has; `snapshot_ids` are the plan's expired snapshots.
    """

    job_id: str
    kind: JobKind
    table_uuid: str
    table: str
    files_location: str
    files: int
    snapshot_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class FileOutcome:
    """What became of one file. `reason`: why it was doomed (deleted, quarantined, absent), why it stays (kept), what
    failed."""

    path: str
    kind: str
    size_in_bytes: int
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class BatchPart:
    """The stored rows of one batch: how many, the size of the files that they name, and the part's checksum."""

    batch: int
    name: str
    files: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Batches:
    """The sealed batches of a job, by number."""

    folder: str
    parts: Mapping[int, BatchPart]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(files, bytes) of each batch, in order."""
        return [(self.parts[batch].files, self.parts[batch].bytes) for batch in sorted(self.parts)]


def job_folder(root: str, job_id: str) -> str:
    return f"{root}/deletions/{job_id}"


def seal_batches(spark: SparkSession, stores: Stores, job: DeletionJob, root: str, files_per_batch: int) -> Batches:
    """Cut the job into batches, or find them cut already: who seals first decides, for every later process.

    Raises StorageError when the job's list cannot be read, or has not the number of rows that its record says.
    """
    folder = f"{job_folder(root, job.job_id)}/batches"
    seal = f"{folder}/batches.json"
    if stores.head(seal) is None:
        small = small_list(stores, job, at_most=_FILES_HERE)
        if small is not None:
            parts = _parts_here(small, folder, stores, files_per_batch)
        else:
            with worker_errors():
                listed = sealed_files(spark, stores, job)
                parts = _parts_on_spark(_assigned(listed, job.files, files_per_batch), folder, stores)
        _require_count(job, parts, folder)
        content = json.dumps([asdict(parts[batch]) for batch in sorted(parts)]).encode()
        # When another worker sealed meanwhile its parts count, and ours are garbage beside them.
        with around("deletion.seal_batches"), suppress(ExistingFile):
            stores.write(seal, content)
    try:
        found = [BatchPart(**part) for part in json.loads(stores.read(seal))]
    except (ValueError, TypeError) as error:
        raise StorageError(
            f"The seal of the batches of {job.job_id} is damaged: {error}",
            table=job.table,
            path=seal,
            untouched="all files of the job that were not deleted before",
            hint="plan or scan again",
        ) from error
    batches = Batches(folder, {part.batch: part for part in found})
    _require_count(job, batches.parts, folder)
    return batches


def sealed_files(spark: SparkSession, stores: Stores, job: DeletionJob) -> DataFrame:
    """The job's list: DataFrame[path, kind, size_in_bytes, reason, last_modified], one row per path."""
    from pyspark.sql import functions as F

    rows = read_frame(spark, job.files_location, stores)
    _require_columns(job, rows.columns)
    if "last_modified" not in rows.columns:
        rows = rows.withColumn("last_modified", F.lit(None).cast("timestamp"))
    return rows.select("path", "kind", "size_in_bytes", "reason", "last_modified")


def small_list(stores: Stores, job: DeletionJob, at_most: int | None = None) -> pa.Table | None:
    """The job's list, as `sealed_files`, read without Spark; None when it is a long one (`frames.read_table`)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = read_table(job.files_location, stores, at_most)
    if table is None:
        return None
    if table.num_rows:
        _require_columns(job, table.column_names)
    names = ("path", "kind", "size_in_bytes", "reason", "last_modified")
    absent = pa.nulls(table.num_rows, pa.timestamp("us", "UTC"))
    columns = {name: table.column(name) if name in table.column_names else absent for name in names}
    if pc.count_distinct(columns["path"]).as_py() == table.num_rows:
        return pa.table(columns)
    # One row per path, as of Spark's list.
    rows = {path: row for row, path in reversed(list(enumerate(columns["path"].to_pylist())))}
    return pa.table(columns).take(pa.array(sorted(rows.values()), pa.int64()))


def _require_columns(job: DeletionJob, found: Sequence[str]) -> None:
    missing = {"path", "kind", "size_in_bytes", "reason"} - set(found)
    if missing:
        raise StorageError(
            f"The sealed list of {job.job_id} has no column {', '.join(sorted(missing))}",
            table=job.table,
            path=job.files_location,
            untouched="all files of the job",
            hint="plan or scan again",
        )


def batch_paths(stores: Stores, batches: Batches) -> Iterator[pa.Array]:
    """The paths of each batch in turn, each part held against its checksum as it is read."""
    parts = [batches.parts[batch] for batch in sorted(batches.parts)]

    def read(part: BatchPart) -> pa.Array:
        return _read_part(stores, f"{batches.folder}/{part.name}", part.sha256).column("path").combine_chunks()

    return threaded(read, parts, stores.readers(batches.folder, _READERS))


def read_batch(stores: Stores, batches: Batches, batch: int) -> pa.Table:
    """The files of one batch, as `BATCH`; `last_modified` in microseconds since 1970 (NO_TIME for a file that no
    listing saw), and an unknown size is 0. Raises StorageError when the part is missing or differs from its seal."""
    part = batches.parts.get(batch)
    if part is None:
        raise StorageError(
            f"The journal names batch {batch}, which was never sealed",
            path=batches.folder,
            untouched="the files of the batch",
            hint="plan or scan again",
        )
    return _numbered(_read_part(stores, f"{batches.folder}/{part.name}", part.sha256))


def sealed_pieces(stores: Stores, job: DeletionJob, most: int) -> Iterator[pa.Table]:
    """The job's list as `read_batch` gives it, in pieces of at most so many files, in the order of the list."""
    import pyarrow as pa

    for batch in frame_batches(job.files_location, stores):
        _require_columns(job, batch.schema.names)
        rows = pa.Table.from_batches([batch])
        if "last_modified" not in rows.column_names:
            rows = rows.append_column("last_modified", pa.nulls(rows.num_rows, pa.timestamp("us", "UTC")))
        yield from (_numbered(rows.slice(start, most)) for start in range(0, rows.num_rows, most))


def _numbered(rows: pa.Table) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    modified = rows.column("last_modified").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    changed = {
        "size_in_bytes": pc.fill_null(rows.column("size_in_bytes"), 0),
        "last_modified": pc.fill_null(modified, NO_TIME),
    }
    return pa.table({name: changed.get(name, rows.column(name)) for name in rows.column_names}).combine_chunks()


def write_outcomes(stores: Stores, root: str, job_id: str, batch: int, outcomes: pa.Table) -> None:
    """Store the outcomes of a batch (columns: `OUTCOMES`), whole, in the place of any earlier attempt's."""
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(outcomes, buffer, compression="zstd")
    stores.write(_outcome_path(root, job_id, batch), buffer.getvalue(), overwrite=True)


def read_outcomes(stores: Stores, root: str, job_id: str, batch: int) -> pa.Table:
    """What an earlier attempt at the batch recorded (columns: `OUTCOMES`); empty when it recorded nothing."""
    path = _outcome_path(root, job_id, batch)
    if stores.head(path) is None:
        return arrow_schema(OUTCOMES).empty_table()
    return _outcome_table(stores, path)


def outcomes_of_job(stores: Stores, root: str, job_id: str) -> Iterator[FileOutcome]:
    """Every outcome that is recorded of a job, in the order of its batches."""
    for rows in outcome_tables(stores, root, job_id):
        for row in rows.to_pylist():
            yield FileOutcome(**row)


def outcome_tables(stores: Stores, root: str, job_id: str) -> Iterator[pa.Table]:
    """The outcomes of each batch of a job that has any, in the order of its batches (columns: `OUTCOMES`)."""
    parts = outcome_parts(stores, root, job_id)
    return threaded(lambda path: _outcome_table(stores, path), parts, stores.readers(root, _READERS, 0))


def outcome_pieces(stores: Stores, root: str, job_id: str) -> Iterator[pa.Table]:
    """The same in as few pieces as memory likes: each becomes a file that somebody has to keep."""
    import pyarrow as pa

    waiting: list[pa.Table] = []
    for rows in outcome_tables(stores, root, job_id):
        waiting.append(rows)
        if sum(each.num_rows for each in waiting) >= _ROWS_OF_A_FILE:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def outcome_parts(stores: Stores, root: str, job_id: str) -> list[str]:
    """The Parquet files with a job's outcomes, in the order of its batches."""
    listed = stores.list(f"{job_folder(root, job_id)}/outcomes")
    return sorted(file.path for file in listed if file.path.endswith(".parquet"))


def outcome_frame(spark: SparkSession, stores: Stores, root: str, job_id: str) -> DataFrame:
    """DataFrame[path, kind, size_in_bytes, outcome, reason] of all batches that have an outcome."""
    return _read_parts(spark, stores, [(path, None) for path in outcome_parts(stores, root, job_id)], OUTCOMES)


def _parts_here(files: pa.Table, folder: str, stores: Stores, per_batch: int) -> dict[int, BatchPart]:
    """As `_assigned` and `_parts_on_spark`, for a short list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # By the bytes of UTF-8, as Spark sorts.
    rank = pc.fill_null(pc.add(pc.index_in(files.column("kind"), pa.array(_ORDER)), 1), 0)
    ordered = files.append_column("_rank", rank).sort_by([("_rank", "ascending"), ("path", "ascending")])
    ordered = ordered.drop_columns("_rank")
    write = _PartWriter(folder, stores)

    def written(batch: int) -> BatchPart:
        piece = ordered.slice(batch * per_batch, per_batch)
        numbers = pa.array([batch] * piece.num_rows, pa.int64())
        return BatchPart(**write(piece.add_column(0, "batch", numbers)).to_pylist()[0])

    # Each waits for its store, a disk included: a part is on it when it is written.
    parts = threaded(written, range(-(-ordered.num_rows // per_batch)), _WRITERS)
    return {part.batch: part for part in parts}


def _parts_on_spark(frame: DataFrame, folder: str, stores: Stores) -> dict[int, BatchPart]:
    """Write `frame`, which has the columns of BATCH, as one Parquet part per batch."""
    write = _PartWriter(folder, stores)
    written = frame.groupBy("batch").applyInArrow(
        # Spark 4.1 fails on a callable whose type hints it cannot resolve; a lambda has none.
        lambda rows: write(rows),
        "batch bigint, name string, files bigint, bytes bigint, sha256 string",
    )
    return {row["batch"]: BatchPart(**row.asDict()) for row in written.collect()}


def _assigned(files: DataFrame, count: int, per_batch: int) -> DataFrame:
    """`files` with a column `batch`: the same for the same list, however Spark partitions it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not count:
        return files.sparkSession.createDataFrame([], BATCH)
    buckets = -(-count // _SORTED_AT_ONCE)
    ranked = files.dropDuplicates(["path"]).withColumn("_rank", _rank(F.col("kind")))
    if buckets == 1:
        row = F.row_number().over(Window.partitionBy(F.lit(0)).orderBy("_rank", "path")) - 1
        batch = F.floor(row / per_batch)
        placed = ranked
    else:
        ranked = ranked.withColumn("_bucket", F.pmod(F.xxhash64("path"), F.lit(buckets)))
        sizes = ranked.groupBy("_rank", "_bucket").count().orderBy("_rank", "_bucket").collect()
        first, offsets = 0, []
        for size in sizes:
            offsets.append((size["_rank"], size["_bucket"], first))
            first += -(-size["count"] // per_batch)
        starts = files.sparkSession.createDataFrame(offsets, "_rank int, _bucket bigint, _first bigint")
        placed = ranked.join(F.broadcast(starts), ["_rank", "_bucket"])
        row = F.row_number().over(Window.partitionBy("_rank", "_bucket").orderBy("path")) - 1
        batch = F.col("_first") + F.floor(row / per_batch)
    return placed.select(
        batch.cast("bigint").alias("batch"), "path", "kind", "size_in_bytes", "reason", "last_modified"
    )


def _rank(kind: Column) -> Column:
    from pyspark.sql import functions as F

    rank = F.lit(0)
    for position, name in enumerate(_ORDER, start=1):
        rank = F.when(kind == name, F.lit(position)).otherwise(rank)
    return rank


def _require_count(job: DeletionJob, parts: Mapping[int, BatchPart], folder: str) -> None:
    found = sum(part.files for part in parts.values())
    if found != job.files or sorted(parts) != list(range(len(parts))):
        raise StorageError(
            f"The sealed list of {job.job_id} has {found:,} paths in {len(parts):,} batches, and its record says "
            f"{job.files:,}",
            table=job.table,
            path=folder,
            untouched="all files of the job",
            hint="plan or scan again; the stored list was damaged",
        )


def _outcome_table(stores: Stores, path: str) -> pa.Table:

    return ParquetReader(stores.read(path), path, stores.limits).read().cast(arrow_schema(OUTCOMES))


def _outcome_path(root: str, job_id: str, batch: int) -> str:
    return f"{job_folder(root, job_id)}/outcomes/batch-{batch:08d}.parquet"


def _read_parts(spark: SparkSession, stores: Stores, parts: Sequence[tuple[str, str | None]], schema: str) -> DataFrame:
    if not parts:
        return spark.createDataFrame([], schema)
    if len(parts) <= _PARTS_HERE:
        import pyarrow as pa

        paths, checksums = zip(*parts, strict=True)
        named = pa.table({"path": paths, "sha256": pa.array(checksums, pa.string())})
        return read_here(spark, named, _PartReader(stores), schema)
    # A part is a thousand rows: many of them make one task.
    tasks = min(len(parts), int(spark.sparkContext.defaultParallelism) * 2)
    frame = spark.createDataFrame(list(parts), "path string, sha256 string").repartition(tasks)
    return frame.mapInArrow(_PartReader(stores), schema)


def _read_part(stores: Stores, path: str, sha256: str | None) -> pa.Table:

    data = stores.read(path)
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise StorageError(
            "A sealed batch differs from its checksum",
            path=path,
            untouched="the files of the batch",
            hint="plan or scan again; the stored list was damaged",
        )
    return ParquetReader(data, path, stores.limits).read()


class _PartWriter:
    def __init__(self, folder: str, stores: Stores) -> None:
        self.folder = folder
        self.stores = stores

    def __call__(self, rows: pa.Table) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        batch = rows.column("batch")[0].as_py()
        buffer = io.BytesIO()
        pq.write_table(rows, buffer, compression="zstd")
        data = buffer.getvalue()
        name = f"batch-{batch:08d}-{uuid.uuid4().hex}.parquet"
        self.stores.write(f"{self.folder}/{name}", data)
        size = pc.sum(rows.column("size_in_bytes")).as_py() or 0
        return pa.table(
            {
                "batch": pa.array([batch], pa.int64()),
                "name": [name],
                "files": pa.array([rows.num_rows], pa.int64()),
                "bytes": pa.array([size], pa.int64()),
                "sha256": [hashlib.sha256(data).hexdigest()],
            }
        )


class _PartReader:
    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            parts = zip(batch.column("path").to_pylist(), batch.column("sha256").to_pylist(), strict=True)
            for path, sha256 in parts:
                yield from _read_part(self.stores, path, sha256).to_batches()
