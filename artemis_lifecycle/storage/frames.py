"""Sealed frames: a Spark DataFrame stored once, whole or not at all, on any store. Belongs here: writing, reading back,
and what stands for rows by their content. Does not belong: what the rows mean.

A frame is a folder of Parquet parts and `_sealed.json`, which is written last and names each part with its rows and
checksum. Parts that it does not name (a retried task's) do not exist; a part that differs from it is an error.
Executors read and write through `Stores`, so that Spark needs no connector of its own for the store.
"""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.spark.readers import read_here
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.columnar import ParquetReader
from artemis_lifecycle.storage.location_hash import begun_with, text_buffers
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

SEAL = "_sealed.json"
ROWS_HERE = 50_000  # Up to as many rows are read in this process: starting workers costs more.
_PART = "name string, rows bigint, size_in_bytes bigint, sha256 string"
_PART_ROWS = 1_000_000  # Bounds a worker's memory: a row of paths is some 200 bytes before compression.

_READERS = 4
"""Parts that `map_parts` has in memory at once: some 30 MB each, compressed."""

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class FramePart:
    name: str
    rows: int
    size_in_bytes: int
    sha256: str


@dataclass(frozen=True)
class SealedFrame:
    """A frame as its seal tells of it. `schema` is what Spark calls a simple string."""

    folder: str
    schema: str
    rows: int
    parts: tuple[FramePart, ...]


def write_frame(
    frame: DataFrame,
    folder: str,
    stores: Stores,
    kept: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> SealedFrame:
    """Store `frame`, or what `kept` leaves of the rows of each batch, under `folder`, which must not hold a seal yet.

    Raises StorageError, leaving no seal, when a part cannot be written; parts without a seal are garbage. Raises what
    `kept` raises.
    """
    written = frame.mapInArrow(_part_writer(folder, stores, kept), _PART)
    with worker_errors():
        parts = [FramePart(**row.asDict()) for row in written.collect()]
    return _seal(folder, frame.schema.simpleString(), parts, stores)


def write_table(table: pa.Table, folder: str, stores: Stores) -> SealedFrame:
    """Store an Arrow table of string, int64 and timestamp (microseconds, UTC) columns from this process, as
    `write_frame` stores the same rows."""
    return write_batches(table.to_batches(max_chunksize=_PART_ROWS), table.schema, folder, stores)


def write_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema, folder: str, stores: Stores) -> SealedFrame:
    """As `write_table`, of rows that come little by little: memory holds one part of them."""
    import pyarrow as pa

    columns = ",".join(f"{field.name}:{_SPARK_TYPES[str(field.type)]}" for field in schema)
    parts: list[FramePart] = []
    waiting: list[pa.RecordBatch] = []

    def write() -> None:
        parts.append(_write_part(pa.Table.from_batches(waiting, schema), folder, stores))
        waiting.clear()

    for batch in batches:
        if waiting and sum(each.num_rows for each in waiting) + batch.num_rows > _PART_ROWS:
            write()
        if batch.num_rows:
            waiting.append(batch)
    if waiting:
        write()
    return _seal(folder, f"struct<{columns}>", parts, stores)


def write_sources(
    sources: Sequence[S],
    read: Callable[[S], Iterator[pa.RecordBatch]],
    ddl: str,
    folder: str,
    stores: Stores,
    kept: Callable[[pa.RecordBatch], pa.RecordBatch],
    *,
    spark: SparkSession | None = None,
) -> SealedFrame:
    """As `write_frame`, of the rows (columns as `ddl`) that `read` gives of each source: in threads of this process, or
    on executors where there is a session. Raises what `read` and `kept` raise."""
    writer = _source_writer(_part_writer(folder, stores, kept), read)
    if spark is None:
        # A part for each thread, not for each source: of a listing in a thousand files as well.
        threads = stores.readers(folder, _READERS)
        groups = [group for group in (sources[number::threads] for number in range(threads)) if group]
        parts = [part for found in threaded(lambda group: list(writer(group)), groups, threads) for part in found]
    else:
        tasks = max(1, min(len(sources), 4 * int(spark.sparkContext.defaultParallelism)))
        with worker_errors():
            parts = spark.sparkContext.parallelize(list(sources), tasks).mapPartitions(writer).collect()
    return _seal(folder, f"struct<{ddl.replace(', ', ',').replace(' ', ':')}>", parts, stores)


def arrow_schema(ddl: str) -> pa.Schema:
    """The Arrow schema of a DDL such as `path string, size_in_bytes bigint`. Raises KeyError for a type that
    no frame here has."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
    }
    return pa.schema([(name, types[kind]) for name, kind in (column.split(" ") for column in ddl.split(", "))])


_SPARK_TYPES = {
    "string": "string",
    "large_string": "string",
    "int64": "bigint",
    "timestamp[us, tz=UTC]": "timestamp",
}


def rows_digest(table: pa.Table) -> str:
    """Stands for the rows (string, int64 and timestamp columns) alone: neither for their order nor for their chunks.

    Two sums of 64-bit hashes, which makes 128 bits, and the number of rows; as hexadecimal digits of their SHA-256.
    """
    import numpy as np

    digest = hashlib.sha256()
    for seed in (1, 2):
        sums = [int(np.sum(row_hashes(batch, seed), dtype=np.uint64)) for batch in table.to_batches()]
        digest.update((sum(sums) % 2**64).to_bytes(8, "big"))
    digest.update(table.num_rows.to_bytes(8, "big"))
    return digest.hexdigest()


def row_hashes(rows: pa.RecordBatch, seed: int) -> NDArray[np.uint64]:
    """Spark's `xxhash64(seed, *columns)` of each row (string, int64 and timestamp columns), as unsigned numbers."""
    import numpy as np
    import pyarrow as pa

    from artemis_lifecycle.storage.hash_kernels import chain_bytes, chain_longs

    hashes = np.full(rows.num_rows, begun_with(seed), np.uint64)
    for array in rows.columns:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_timestamp(array.type):
            array = array.view(pa.int64())  # Spark hashes a timestamp as its microseconds.
        if array.type == pa.int64():
            chain_longs(array.fill_null(0).to_numpy(), valid, hashes)
            continue
        starts, data = text_buffers(array)
        chain_bytes(data, starts, valid, hashes)
    return hashes


def _write_part(table: pa.Table, folder: str, stores: Stores) -> FramePart:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", use_dictionary=_repeated(table.schema))
    return _store_part(buffer.getvalue(), table.num_rows, folder, stores)


def _repeated(schema: pa.Schema) -> list[str]:
    """The columns that a dictionary is worth its while for: a path is there once."""
    return [name for name in schema.names if name != "path"]


def _store_part(data: bytes, rows: int, folder: str, stores: Stores) -> FramePart:
    name = f"part-{uuid.uuid4().hex}.parquet"
    stores.write(f"{folder}/{name}", data)
    return FramePart(name, rows, len(data), hashlib.sha256(data).hexdigest())


def _seal(folder: str, schema: str, parts: Sequence[FramePart], stores: Stores) -> SealedFrame:
    ordered = tuple(sorted(parts, key=lambda part: part.name))
    sealed = SealedFrame(folder, schema, sum(part.rows for part in parts), ordered)
    stores.write(f"{folder}/{SEAL}", json.dumps(asdict(sealed), indent=1).encode())
    return sealed


def describe_frame(folder: str, stores: Stores) -> SealedFrame | None:
    """The seal under `folder`; None when there is none."""
    path = f"{folder}/{SEAL}"
    if stores.head(path) is None:
        return None
    try:
        seal = json.loads(stores.read(path))
        seal.pop("digest", None)  # Seals of before were told it.
        parts = tuple(FramePart(**part) for part in seal.pop("parts"))
        return SealedFrame(**{**seal, "folder": folder, "parts": parts})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StorageError(
            f"The seal of a stored frame is damaged: {error}",
            path=path,
            untouched="all files that it lists",
            hint="plan or scan again, which writes a new one",
        ) from error


def read_frame(spark: SparkSession, folder: str, stores: Stores) -> DataFrame:
    """The rows under `folder`, each part held against the seal's checksum as it is read.

    Raises StorageError when there is no seal; a damaged part raises it here or in the action that reads it.
    """
    sealed = _require_frame(folder, stores)
    schema = _ddl(sealed.schema)
    if not sealed.parts:
        return spark.createDataFrame([], schema)
    reader = _part_reader(folder, stores)
    if sealed.rows <= ROWS_HERE:
        return read_here(spark, _named(sealed), reader, schema)
    parts = spark.createDataFrame([(part.name, part.sha256) for part in sealed.parts], "name string, sha256 string")
    return parts.repartition(len(sealed.parts)).mapInArrow(reader, schema)


def read_table(folder: str, stores: Stores, at_most: int | None = None) -> pa.Table | None:
    """The rows under `folder`, in this process and without Spark; None where there are many (more than `at_most`), or
    they are of other types than `write_table` takes.

    Raises what `read_frame` raises.
    """
    import pyarrow as pa

    sealed = _require_frame(folder, stores)
    if sealed.rows > (ROWS_HERE if at_most is None else at_most):
        return None
    try:
        schema = arrow_schema(_ddl(sealed.schema))
    except KeyError:
        return None
    batches = list(_part_reader(folder, stores)(_named(sealed).to_batches()))
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def map_parts(
    folder: str,
    stores: Stores,
    work: Callable[[int, Iterator[pa.RecordBatch]], T],
    columns: Sequence[str],
    only: Collection[int] | None = None,
) -> Iterator[T]:
    """`work` on the rows of each part (its number, batches of these columns), in threads of this process; the results
    in the order of the parts. `only` leaves out the parts of other numbers. Raises what `read_frame` raises.
    """
    sealed = _require_frame(folder, stores)

    def read(number: int) -> T:
        part = sealed.parts[number]
        return work(number, _part_batches(folder, part.name, part.sha256, stores, columns))

    numbers = [number for number in range(len(sealed.parts)) if only is None or number in only]
    return threaded(read, numbers, stores.readers(folder, _READERS))


def frame_batches(folder: str, stores: Stores) -> Iterator[pa.RecordBatch]:
    """The rows under `folder`, batch by batch, however many there are. Raises what `read_frame` raises."""
    return _part_reader(folder, stores)(_named(_require_frame(folder, stores)).to_batches())


def _require_frame(folder: str, stores: Stores) -> SealedFrame:
    sealed = describe_frame(folder, stores)
    if sealed is None:
        raise StorageError(
            "There is no sealed frame here",
            path=folder,
            hint="plan or scan again; if operations.root was moved, move it back",
        )
    return sealed


def _named(sealed: SealedFrame) -> pa.Table:
    import pyarrow as pa

    return pa.table({"name": [part.name for part in sealed.parts], "sha256": [part.sha256 for part in sealed.parts]})


def drop_frame(folder: str, stores: Stores) -> None:
    """Remove a frame that nothing points at: the seal first, so that no half of it can be read."""
    stores.delete([f"{folder}/{SEAL}"])
    stores.delete([file.path for file in stores.list(folder)])


def _ddl(simple: str) -> str:
    # simpleString is struct<a:string,b:bigint>; the same text without the wrapper is a DDL.
    return simple.removeprefix("struct<").removesuffix(">").replace(":", " ").replace(",", ", ")


class _part_writer:  # noqa: N801  (a picklable function)
    def __init__(
        self, folder: str, stores: Stores, kept: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    ) -> None:
        self.folder = folder
        self.stores = stores
        self.kept = kept

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer: io.BytesIO | None = None
        writer: pq.ParquetWriter | None = None
        rows = 0

        def finish() -> pa.RecordBatch:
            assert writer is not None and buffer is not None
            writer.close()
            part = _store_part(buffer.getvalue(), rows, self.folder, self.stores)
            return pa.RecordBatch.from_pylist([asdict(part)], arrow_schema(_PART))

        for given in batches:
            batch = given if self.kept is None else self.kept(given)
            if batch.num_rows == 0:
                continue
            if writer is None:
                buffer = io.BytesIO()
                writer = pq.ParquetWriter(
                    buffer, batch.schema, compression="zstd", use_dictionary=_repeated(batch.schema)
                )
                rows = 0
            writer.write_batch(batch)
            rows += batch.num_rows
            if rows >= _PART_ROWS:
                yield finish()
                writer = None
        if writer is not None:
            yield finish()


class _source_writer:  # noqa: N801  (a picklable function)
    def __init__(self, writer: _part_writer, read: Callable[[Any], Iterator[pa.RecordBatch]]) -> None:
        self.writer = writer
        self.read = read

    def __call__(self, sources: Iterable[Any]) -> Iterator[FramePart]:
        for described in self.writer(batch for source in sources for batch in self.read(source)):
            yield from (FramePart(**part) for part in described.to_pylist())


class _part_reader:  # noqa: N801  (a picklable function)
    def __init__(self, folder: str, stores: Stores) -> None:
        self.folder = folder
        self.stores = stores

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for name, sha256 in zip(batch.column("name").to_pylist(), batch.column("sha256").to_pylist(), strict=True):
                yield from _part_batches(self.folder, name, sha256, self.stores)


def _part_batches(
    folder: str, name: str, sha256: str, stores: Stores, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one part, held against its checksum."""
    path = f"{folder}/{name}"
    data = stores.read(path)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise StorageError(
            "A part of a sealed frame differs from its checksum",
            path=path,
            untouched="all files that it lists",
            hint="plan or scan again, which writes a new one",
        )
    yield from ParquetReader(data, path, stores.limits).batches(columns)
