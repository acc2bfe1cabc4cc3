"""Sealed frames: a Spark DataFrame stored once, whole or not at all, on any store. Belongs here: writing, addressing by
content and reading back. Does not belong: what the rows mean.

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
from typing import TYPE_CHECKING, TypeVar

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.spark.readers import read_here
from artemis_lifecycle.spark.worker_errors import worker_errors
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
_PART_ROWS = 1_000_000  # Bounds a worker's memory: a row of paths is some 200 bytes before compression.

_READERS = 4
"""Parts that `map_parts` has in memory at once: some 30 MB each, compressed."""

T = TypeVar("T")


@dataclass(frozen=True)
class FramePart:
    name: str
    rows: int
    size_in_bytes: int
    sha256: str


@dataclass(frozen=True)
class SealedFrame:
    """A stored frame. `digest` depends on the rows alone: neither on their order nor on how they were partitioned."""

    folder: str
    schema: str
    rows: int
    digest: str
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
    from pyspark.sql import functions as F

    # Two seeds make a 128-bit sum: order-independent, and stable across partitionings and Spark versions.
    columns = [F.col(f"`{name}`") for name in frame.columns]
    hashed = frame.withColumn("_h1", F.xxhash64(F.lit(1), *columns)).withColumn("_h2", F.xxhash64(F.lit(2), *columns))
    written = hashed.mapInArrow(
        _part_writer(folder, stores, kept),
        "name string, rows bigint, size_in_bytes bigint, sha256 string, h1 bigint, h2 bigint",
    )
    with worker_errors():
        rows = written.collect()
    return _seal(
        folder,
        frame.schema.simpleString(),
        [FramePart(row["name"], row["rows"], row["size_in_bytes"], row["sha256"]) for row in rows],
        (sum(row["h1"] for row in rows), sum(row["h2"] for row in rows)),
        stores,
    )


def write_table(table: pa.Table, folder: str, stores: Stores) -> SealedFrame:
    """Store an Arrow table of string, int64 and timestamp (microseconds, UTC) columns from this process, as
    `write_frame` stores the same rows.

    The digest is that of `write_frame`: a plan has one id, wherever it was made.
    """
    return write_batches(table.to_batches(max_chunksize=_PART_ROWS), table.schema, folder, stores)


def write_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema, folder: str, stores: Stores) -> SealedFrame:
    """As `write_table`, of rows that come little by little: memory holds one part of them."""
    import numpy as np
    import pyarrow as pa

    columns = ",".join(f"{field.name}:{_SPARK_TYPES[str(field.type)]}" for field in schema)
    sums = [0, 0]
    parts: list[FramePart] = []
    waiting: list[pa.RecordBatch] = []

    def write() -> None:
        piece = pa.Table.from_batches(waiting, schema).combine_chunks()
        for seed in (1, 2):
            sums[seed - 1] += int(np.sum(row_hashes(piece, seed), dtype=np.uint64))
        parts.append(_write_part(piece, folder, stores))
        waiting.clear()

    for batch in batches:
        if waiting and sum(each.num_rows for each in waiting) + batch.num_rows > _PART_ROWS:
            write()
        if batch.num_rows:
            waiting.append(batch)
    if waiting:
        write()
    return _seal(folder, f"struct<{columns}>", parts, (sums[0], sums[1]), stores)


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


def row_hashes(table: pa.Table, seed: int) -> NDArray[np.uint64]:
    """Spark's `xxhash64(seed, *columns)` of each row (string, int64 and timestamp columns), as unsigned numbers."""
    import numpy as np
    import pyarrow as pa

    from artemis_lifecycle.storage.hash_kernels import chain_bytes, chain_longs

    hashes = np.full(table.num_rows, begun_with(seed), np.uint64)
    for column in table.columns:
        (array,) = column.chunks or [pa.array([], column.type)]
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


def _seal(folder: str, schema: str, parts: Sequence[FramePart], sums: tuple[int, int], stores: Stores) -> SealedFrame:
    total = sum(part.rows for part in parts)
    digest = hashlib.sha256()
    for number in sums:
        digest.update((number % 2**64).to_bytes(8, "big"))
    digest.update(total.to_bytes(8, "big"))
    ordered = tuple(sorted(parts, key=lambda part: part.name))
    sealed = SealedFrame(folder, schema, total, digest.hexdigest(), ordered)
    stores.write(f"{folder}/{SEAL}", json.dumps(asdict(sealed), indent=1).encode())
    return sealed


def describe_frame(folder: str, stores: Stores) -> SealedFrame | None:
    """The seal under `folder`; None when there is none."""
    path = f"{folder}/{SEAL}"
    if stores.head(path) is None:
        return None
    try:
        seal = json.loads(stores.read(path))
        parts = tuple(FramePart(**part) for part in seal.pop("parts"))
        return SealedFrame(**{**seal, "folder": folder, "parts": parts})
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"The seal of a stored frame is damaged: {error}",
            path=path,
            untouched="all files that it lists",
            do="plan or scan again, which writes a new one",
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
            untouched="everything",
            do="plan or scan again; if operations.root was moved, move it back",
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
        rows, h1, h2 = 0, 0, 0

        def finish() -> pa.RecordBatch:
            assert writer is not None and buffer is not None
            writer.close()
            part = _store_part(buffer.getvalue(), rows, self.folder, self.stores)
            return pa.RecordBatch.from_pydict(
                {
                    "name": [part.name],
                    "rows": [part.rows],
                    "size_in_bytes": [part.size_in_bytes],
                    "sha256": [part.sha256],
                    "h1": pa.array([h1], pa.int64()),
                    "h2": pa.array([h2], pa.int64()),
                }
            )

        for given in batches:
            batch = given if self.kept is None else self.kept(given)
            if batch.num_rows == 0:
                continue
            kept = batch.select([name for name in batch.schema.names if name not in ("_h1", "_h2")])
            if writer is None:
                buffer = io.BytesIO()
                writer = pq.ParquetWriter(
                    buffer, kept.schema, compression="zstd", use_dictionary=_repeated(kept.schema)
                )
                rows, h1, h2 = 0, 0, 0
            writer.write_batch(kept)
            rows += batch.num_rows
            h1 = _wrapped_sum(h1, batch.column("_h1"))
            h2 = _wrapped_sum(h2, batch.column("_h2"))
            if rows >= _PART_ROWS:
                yield finish()
                writer = None
        if writer is not None:
            yield finish()


def _wrapped_sum(start: int, column: pa.Array) -> int:
    import numpy as np

    # Integer sums wrap at 64 bits on purpose: addition modulo 2^64 is what makes the digest independent of order.
    total = int(np.sum(column.to_numpy(zero_copy_only=False).view(np.uint64), dtype=np.uint64))
    wrapped = (start + total) % 2**64
    return wrapped - 2**64 if wrapped >= 2**63 else wrapped


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
    import pyarrow.parquet as pq

    path = f"{folder}/{name}"
    data = stores.read(path)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise StorageError(
            "A part of a sealed frame differs from its checksum",
            path=path,
            untouched="all files that it lists",
            do="plan or scan again, which writes a new one",
        )
    yield from pq.ParquetFile(io.BytesIO(data)).iter_batches(batch_size=65_536, columns=columns)
