"""Sealed frames: rows stored once, completely or not at all, on any store.

A frame is a folder of Parquet parts and `_sealed.json`. That file is written last, and lists each part with its rows
and checksum. Unlisted parts (from a retried task) are ignored. A part that differs from its checksum is an error.
Executors read and write through `Stores`, so that Spark needs no connector for the store.
"""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.spark.runner import BatchFunction, Cost, Rows, Runner, Spark
from artemis_lifecycle.storage.columnar import ParquetReader
from artemis_lifecycle.storage.local.store import local_path
from artemis_lifecycle.storage.location import text_buffers
from artemis_lifecycle.storage.stores import Stores, is_local
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEAL = "_sealed.json"
_PART = "name string, rows bigint, size_in_bytes bigint, sha256 string"
_PART_ROWS = 1_000_000  # Limits a part's memory: a row of paths has about 200 bytes before compression.
_GROUP_ROWS = 100_000
"""Number of rows that are compressed at once."""

_READERS = 4
"""Number of parts that `map_parts` has in memory at once: about 30 MB each, compressed."""

_TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
}

T = TypeVar("T")

FILE_ROWS = 500_000
"""Approximate number of rows in a Parquet file that is kept for people."""


@dataclass(frozen=True)
class FramePart:
    name: str
    rows: int
    size_in_bytes: int
    sha256: str


@dataclass(frozen=True)
class SealedFrame:
    """A frame as its seal describes it. `schema` is what Spark calls a simple string."""

    folder: str
    schema: str
    rows: int
    parts: tuple[FramePart, ...]


def write_frame(
    rows: Rows,
    folder: str,
    stores: Stores,
    *,
    through: BatchFunction | None = None,
    schema: pa.Schema | None = None,
    cost: Cost | None = None,
) -> SealedFrame:
    """Store `rows` under `folder`, which must not have a seal yet. With `through`, store its result instead, which has
    `schema` (default: that of `rows`). `cost` is what `through` reads.

    Raises StorageError without writing a seal if a part cannot be written. Parts without a seal are garbage. Raises
    what `through` raises.
    """
    described = rows.map(_PartWriter(folder, stores, through), arrow_schema(_PART), cost).table()
    return _seal(folder, rows.schema if schema is None else schema, described.to_pylist(), stores)


def write_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema, folder: str, stores: Stores) -> SealedFrame:
    """Like `write_frame`, for rows that this process produces incrementally."""
    described = _PartWriter(folder, stores)(batches)
    return _seal(folder, schema, [part for batch in described for part in batch.to_pylist()], stores)


def arrow_schema(ddl: str) -> pa.Schema:
    """Return the Arrow schema of a DDL such as `path string, size_in_bytes bigint`. Raises KeyError for a type that
    frames do not use."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in (column.split(" ") for column in ddl.split(", "))])


def rows_digest(table: pa.Table) -> str:
    """Return a digest of the rows (string, int64 and timestamp columns) that does not depend on their order or chunks:
    the SHA-256, in hexadecimal, of the columns of the sorted rows."""
    digest = hashlib.sha256(table.num_rows.to_bytes(8, "big"))
    for column in table.sort_by([(name, "ascending") for name in table.schema.names]).combine_chunks().columns:
        digest.update(column.is_valid().to_numpy(zero_copy_only=False))
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            ends, data = text_buffers(column.combine_chunks())
            digest.update(np.diff(ends).tobytes())
            digest.update(data[ends[0] : ends[-1]].tobytes())
        else:
            digest.update(column.cast(pa.int64()).fill_null(0).to_numpy())
    return digest.hexdigest()


def _seal(folder: str, schema: pa.Schema, parts: Sequence[dict[str, Any]], stores: Stores) -> SealedFrame:
    spark_types = {kind: name for name, kind in _TYPES.items()} | {pa.large_string(): "string"}
    columns = ",".join(f"{field.name}:{spark_types[field.type]}" for field in schema)
    ordered = tuple(sorted((FramePart(**part) for part in parts), key=lambda part: part.name))
    sealed = SealedFrame(folder, f"struct<{columns}>", sum(part.rows for part in ordered), ordered)
    stores.write(f"{folder}/{SEAL}", json.dumps(asdict(sealed), indent=1).encode())
    return sealed


def describe_frame(folder: str, stores: Stores) -> SealedFrame | None:
    """Return the seal under `folder`, or None if it has none."""
    path = f"{folder}/{SEAL}"
    if stores.head(path) is None:
        return None
    try:
        seal = json.loads(stores.read(path))
        parts = tuple(FramePart(**part) for part in seal.pop("parts"))
        return SealedFrame(**{**seal, "folder": folder, "parts": parts})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StorageError(
            f"The seal of a stored frame is damaged: {error}",
            path=path,
            untouched="all files that it lists",
            hint="plan or scan again, which writes a new one",
        ) from error


def read_frame(runner: Runner, folder: str, stores: Stores, masks: Sequence[NDArray[np.bool_]] | None = None) -> Rows:
    """Return the rows under `folder`. Each part is verified against its checksum as it is read. With `masks`, one per
    part, return only the selected rows.

    Raises StorageError if there is no seal. A damaged part raises it now, or when executors read the rows.
    """
    sealed = _require_frame(folder, stores)
    parts, schema = _named(sealed), arrow_schema(_ddl(sealed.schema))
    cost = Cost(len(sealed.parts), sealed.rows, sum(part.size_in_bytes for part in sealed.parts))
    if masks is not None:
        # The number of selected rows decides where this runs: they stay in memory.
        cost = Cost(rows=sum(int(mask.sum()) for mask in masks))
        packed = [np.packbits(mask).tobytes() if mask.any() else None for mask in masks]
        parts = parts.append_column("mask", pa.array(packed, pa.binary())).filter(pc.field("mask").is_valid())
    return runner.map(parts, partial(_read_parts, folder, stores), schema, cost)


def frame_of(spark: Spark, folder: str, stores: Stores) -> DataFrame:
    """Return the rows under `folder`. A session that can read the parts itself does so, without Python; they are
    verified now. Raises what `read_frame` raises."""
    runner, sealed = Runner(spark), _require_frame(folder, stores)
    paths = [local_path(f"{folder}/{part.name}") for part in sealed.parts] if is_local(folder) else []
    frame = runner.parquet(paths, arrow_schema(_ddl(sealed.schema)))
    if frame is None:
        return read_frame(runner, folder, stores).frame()
    for part in sealed.parts:
        sealed_part(f"{folder}/{part.name}", part.sha256, stores)
    return frame


def map_parts(
    folder: str, stores: Stores, work: Callable[[Iterator[pa.RecordBatch]], T], columns: Sequence[str]
) -> Iterator[T]:
    """Call `work` with the rows of each part (batches of these columns) in threads of this process. Yield the results
    in the order of the parts. Raises what `read_frame` raises."""

    def read(part: FramePart) -> T:
        return work(_part_batches(folder, part.name, part.sha256, stores, columns))

    return threaded(read, _require_frame(folder, stores).parts, stores.readers(folder, _READERS))


def frame_batches(folder: str, stores: Stores) -> Iterator[pa.RecordBatch]:
    """Yield the rows under `folder` batch by batch, in bounded memory. Raises what `read_frame` raises."""
    return _read_parts(folder, stores, _named(_require_frame(folder, stores)).to_batches())


def pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in as few tables as memory allows. Each table becomes one stored file."""
    return _gathered(tables, FILE_ROWS, pa.concat_tables)


def _gathered(parts: Iterable[T], rows: int, joined: Callable[[Sequence[T]], pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of all parts in tables of about `rows`."""
    waiting: list[Any] = []
    for part in parts:
        waiting.append(part)
        if sum(each.num_rows for each in waiting) >= rows:
            yield joined(waiting)
            waiting = []
    if waiting:
        yield joined(waiting)


def _require_frame(folder: str, stores: Stores) -> SealedFrame:
    sealed = describe_frame(folder, stores)
    if sealed is None:
        raise StorageError(
            "There is no sealed frame here",
            path=folder,
            hint="plan or scan again; frames of what ended before `records.keep` are deleted; if operations.root was "
            "moved, move it back",
        )
    return sealed


def _named(sealed: SealedFrame) -> pa.Table:
    return pa.table({"name": [part.name for part in sealed.parts], "sha256": [part.sha256 for part in sealed.parts]})


def owner_folder(files_location: str) -> str:
    """Return the folder of the plan or scan whose list is the frame at `files_location`; its other files are there."""
    return files_location.removesuffix("/files")


def drop_frame(folder: str, stores: Stores) -> None:
    """Delete a frame that nothing references. The seal is deleted first, so that no reader sees an incomplete
    frame."""
    stores.delete([f"{folder}/{SEAL}"])
    stores.delete([file.path for file in stores.list(folder)])


def _ddl(simple: str) -> str:
    # simpleString is struct<a:string,b:bigint>; the same text without the wrapper is a DDL.
    return simple.removeprefix("struct<").removesuffix(">").replace(":", " ").replace(",", ", ")


class _PartWriter:
    """Stores batches as Parquet parts, and describes the parts (columns: `_PART`)."""

    def __init__(self, folder: str, stores: Stores, through: BatchFunction | None = None) -> None:
        self.folder = folder
        self.stores = stores
        self.through = through

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written = batches if self.through is None else self.through(batches)
        filled = (batch for batch in written if batch.num_rows)
        groups = _gathered(filled, _GROUP_ROWS, pa.Table.from_batches)
        for first in groups:
            buffer, rows = io.BytesIO(), 0
            # Paths, sizes and times do not repeat, and what has a large dictionary is read in small batches.
            repeated = [each.name for each in first.schema if each.name != "path" and pa.types.is_string(each.type)]
            options = {"compression": "zstd", "use_dictionary": repeated}
            with pq.ParquetWriter(buffer, first.schema, **options) as writer:
                for group in chain((first,), groups):
                    writer.write_table(group)
                    rows += group.num_rows
                    if rows >= _PART_ROWS:
                        break
            part = self._store(buffer.getvalue(), rows)
            yield pa.RecordBatch.from_pylist([asdict(part)], arrow_schema(_PART))

    def _store(self, data: bytes, rows: int) -> FramePart:
        name = f"part-{uuid.uuid4().hex}.parquet"
        self.stores.write(f"{self.folder}/{name}", data)
        return FramePart(name, rows, len(data), hashlib.sha256(data).hexdigest())


def _read_parts(folder: str, stores: Stores, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for part in (part for batch in batches for part in batch.to_pylist()):
        rows = _part_batches(folder, part["name"], part["sha256"], stores)
        yield from rows if "mask" not in part else _selected(rows, part["mask"])


def _selected(batches: Iterable[pa.RecordBatch], mask: bytes) -> Iterator[pa.RecordBatch]:
    rows, start = np.unpackbits(np.frombuffer(mask, np.uint8)).astype(np.bool_), 0
    for batch in batches:
        yield batch.filter(pa.array(rows[start : start + batch.num_rows]))
        start += batch.num_rows


def _part_batches(
    folder: str, name: str, sha256: str, stores: Stores, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    yield from sealed_part(f"{folder}/{name}", sha256, stores).batches(columns)


def sealed_part(path: str, sha256: str, stores: Stores) -> ParquetReader:
    """Read one part, which must have its recorded checksum. Raises StorageError."""
    data = stores.read(path)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise StorageError(
            "A part of a sealed frame differs from its checksum",
            path=path,
            untouched="all files that it lists",
            hint="plan or scan again, which writes a new one",
        )
    return ParquetReader(data, path, stores.limits)
