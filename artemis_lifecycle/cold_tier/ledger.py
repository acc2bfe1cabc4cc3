"""What was copied, by destination: one Parquet file for each finished batch, which appears whole or not at all. A
table's handoffs share one ledger (`handoff_ledger`): it is both their journal (a killed one goes on with the next
batch) and the memory by which no file is copied twice in its life. A restore has one of its own. A manifest in it
means that every live file of that manifest is in it too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

from artemis_lifecycle.cold_tier.tasks import spread
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.columnar import ParquetReader
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.stores import StoredFile, Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Found = TypeVar("Found")

COPIED = "copied"
"""Byte for byte, read back and equal."""
REWRITTEN = "rewritten"
"""With the other tier's paths in it, read back and equal to what was to be written."""
PRESENT = "present"
"""Was there already, byte for byte what would have been written."""
LOST = "lost"
"""The source is gone, or not what the metadata records of it."""
FAILED = "failed"

_RECORDED = ("size_in_bytes", "rewritten", "checksum", "source", "kind", "file_format", "source_size")
_PARTS_PER_TASK = 20
_BYTES_HERE = 8 << 20
_THREADS = 16

VERIFIED = (COPIED, REWRITTEN, PRESENT)

SCHEMA = (
    "kind string, file_format string, source string, destination string, source_size bigint, size_in_bytes bigint, "
    "checksum string, action string, rewritten string, error string"
)


@dataclass(frozen=True)
class CopiedFile:
    """One file of a batch and what became of it. `checksum` is that of the copy as it was read back; `rewritten`
    the JSON of a RewrittenDelete, for files that manifests must describe anew. Sizes in bytes."""

    kind: str
    file_format: str | None
    source: str
    destination: str
    source_size: int
    size_in_bytes: int
    checksum: str | None
    action: str
    rewritten: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Outcome:
    """Files and bytes by action, and the files that a person let go."""

    files: Mapping[str, int]
    size_in_bytes: Mapping[str, int]
    lost: tuple[CopiedFile, ...]


@dataclass(frozen=True)
class Recorded:
    """What later work needs to know of a copy: its size in bytes, how it was rewritten, its checksum, and the file
    that it is a copy of, with its kind, format and size."""

    size_in_bytes: int
    rewritten: str | None
    checksum: str | None
    source: str
    kind: str
    file_format: str | None
    source_size: int


class Ledger:
    """The copies recorded in one folder, each by the `work_id` (a plan's, a restore's) that made it."""

    def __init__(self, stores: Stores, folder: str) -> None:
        self._stores = stores
        self._folder = folder

    @property
    def folder(self) -> str:
        return self._folder

    def is_empty(self) -> bool:
        """Return True if nothing is recorded, or the records are lost."""
        return not self._parts()

    def write(self, work_id: str, batch: int, files: Sequence[CopiedFile]) -> None:
        """Record a finished batch. Recording it again replaces it."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        out = io.BytesIO()
        table = pa.Table.from_pylist([asdict(file) for file in files], schema=arrow_schema(SCHEMA))
        pq.write_table(table, out, compression="zstd")
        self._stores.write(f"{self._folder}/{work_id}/batch-{batch:06d}.parquet", out.getvalue(), overwrite=True)

    def batches(self, work_id: str) -> dict[int, str]:
        """The finished batches of a work: number to path."""
        found = {}
        for file in self._stores.list(f"{self._folder}/{work_id}"):
            match = re.fullmatch(r"batch-(\d+)\.parquet", file.path.rpartition("/")[2])
            if match is not None:
                found[int(match[1])] = file.path
        return found

    def files(self, spark: SparkSession, work_id: str | None = None) -> DataFrame:
        """DataFrame of CopiedFile's fields: everything ever copied, or by one work (lost files too)."""
        return read_parts(spark, self._stores, [part.path for part in self._parts(work_id)])

    def _parts(self, work_id: str | None = None) -> list[StoredFile]:
        """The files of all works, or of one, by path."""
        folder = self._folder if work_id is None else f"{self._folder}/{work_id}"
        return sorted(
            (file for file in self._stores.list(folder) if file.path.endswith(".parquet")), key=lambda file: file.path
        )

    def _each_part(self, read: Callable[[str], Found], parts: Sequence[StoredFile]) -> Iterator[Found]:
        """What `read` makes of each part's path, in their order; in threads of this process."""
        return threaded(read, [part.path for part in parts], self._stores.readers(self._folder, _THREADS))

    def outcome(self, work_id: str) -> Outcome:
        """What became of the files of a work's finished batches. Read here, batch by batch, without Spark."""
        import pyarrow.compute as pc

        files: dict[str, int] = {}
        sizes: dict[str, int] = {}
        lost: list[CopiedFile] = []
        for path in self.batches(work_id).values():
            table = ParquetReader(self._stores.read(path), path, self._stores.limits).read()
            sums = (
                table.group_by("action").aggregate([("size_in_bytes", "sum"), ("size_in_bytes", "count")]).to_pylist()
            )
            for row in sums:
                files[row["action"]] = files.get(row["action"], 0) + row["size_in_bytes_count"]
                sizes[row["action"]] = sizes.get(row["action"], 0) + row["size_in_bytes_sum"]
            lost += [CopiedFile(**row) for row in table.filter(pc.field("action") == LOST).to_pylist()]
        return Outcome(files, sizes, tuple(sorted(lost, key=lambda file: file.source)))

    def copies(self) -> int:
        """How many files were ever sent, by all works together: all parts are read."""
        import pyarrow as pa
        import pyarrow.compute as pc

        def sent(path: str) -> int:
            actions = (
                ParquetReader(self._stores.read(path), path, self._stores.limits).read(["action"]).column("action")
            )
            return int(pc.sum(pc.is_in(actions, pa.array([COPIED, REWRITTEN]))).as_py() or 0)

        return sum(self._each_part(sent, self._parts()))

    def verified(self, spark: SparkSession) -> DataFrame:
        """The copies that count: `files`, without those that were lost."""
        files = self.files(spark)
        return files.filter(files.action.isin(*VERIFIED))

    def verified_here(self, work_id: str | None = None) -> list[CopiedFile] | None:
        """`verified` (of one work), each destination once, without Spark; None for a large ledger."""
        import pyarrow.compute as pc

        parts = self._parts(work_id)
        if sum(file.size_in_bytes for file in parts) > _BYTES_HERE:
            return None

        def read(path: str) -> list[CopiedFile]:
            table = ParquetReader(self._stores.read(path), path, self._stores.limits).read()
            return [CopiedFile(**row) for row in table.filter(pc.field("action").isin(VERIFIED)).to_pylist()]

        found = [file for files in self._each_part(read, parts) for file in files]
        return list({file.destination: file for file in found}.values())

    def among(self, spark: SparkSession, destinations: Collection[str]) -> dict[str, Recorded]:
        """What counts of these destinations, by destination. A small ledger is read in this process."""
        if not destinations:
            return {}
        parts = self._parts()
        if sum(file.size_in_bytes for file in parts) > _BYTES_HERE:
            wanted = spark.createDataFrame([(path,) for path in destinations], "destination string")
            found = self.verified(spark).join(wanted, "destination", "left_semi")
            with worker_errors():
                rows = found.select("destination", *_RECORDED).collect()
            return {row["destination"]: Recorded(*row[1:]) for row in rows}
        wanted_paths = frozenset(destinations)
        recorded: dict[str, Recorded] = {}
        for found_here in self._each_part(lambda path: self._counting(path, wanted_paths), parts):
            recorded |= found_here
        return recorded

    def _counting(self, path: str, wanted: Collection[str]) -> dict[str, Recorded]:

        columns = ["destination", "action", *_RECORDED]
        table = ParquetReader(self._stores.read(path), path, self._stores.limits).read(columns)
        rows = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
        return {
            destination: Recorded(*recorded)
            for destination, action, *recorded in rows
            if action in VERIFIED and destination in wanted
        }


def handoff_ledger(stores: Stores, root: str, table_uuid: str) -> Ledger:
    """Everything that handoffs ever copied for a table; `root` is `operations.root`."""
    return Ledger(stores, f"{root}/cold/{table_uuid}/copies")


def read_parts(spark: SparkSession, stores: Stores, paths: Sequence[str]) -> DataFrame:
    """The rows of these Parquet files, read through `stores` on the executors."""
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    frame = spark.createDataFrame([(path,) for path in paths], "path string")
    return spread(frame, -(-len(paths) // _PARTS_PER_TASK)).mapInArrow(_PartReader(stores), SCHEMA)


class _PartReader:
    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:

        for batch in batches:
            for path in batch.column("path").to_pylist():
                yield from ParquetReader(self._stores.read(path), path, self._stores.limits).batches()


def to_batch(files: Sequence[CopiedFile]) -> pa.RecordBatch:
    """These files as Arrow, for a Spark worker to hand back under SCHEMA."""
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([asdict(file) for file in files], schema=arrow_schema(SCHEMA))
