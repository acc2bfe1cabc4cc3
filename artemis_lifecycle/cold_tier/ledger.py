"""The record of copies, by destination: one Parquet file per finished batch, written completely or not at all. A
table's handoffs share one ledger (`handoff_ledger`). It is their journal, so that a killed handoff continues with the
next batch, and it ensures that no file is ever copied twice. Each restore has a separate ledger. If a manifest is in
it, all live files of that manifest are too."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.cold_tier.paths import PathMapping
from artemis_lifecycle.spark.runner import Cost, Rows, Runner, first_of_each
from artemis_lifecycle.storage.columnar import ParquetReader, parquet_bytes
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.location import hash_location, hash_strings, normalize
from artemis_lifecycle.storage.stores import StoredFile, Stores
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.storage.types import FileIdentity, Sameness

COPIED = "copied"
"""Copied byte for byte, read back and equal."""
REWRITTEN = "rewritten"
"""Rewritten with the other tier's paths, read back and equal to the intended bytes."""
PRESENT = "present"
"""Already there, with exactly the bytes to write."""
LOST = "lost"
"""The source is gone, or differs from its metadata."""
FAILED = "failed"
TAKEN = "taken"
"""Not copied: another file is at its destination, and only a record could say that it is a broken copy."""

LATE = "late"
"""Not copied: the source is newer than the commit that added it, so another file may have replaced it."""

RING = 1 << 20
"""Each copy has a place on a ring, from the hash of its path, so that a part of the ring is a fair share of all."""

_SHIFT = 64 - 20
_BYTES_PER_ROW = 100
_THREADS = 16

VERIFIED = (COPIED, REWRITTEN, PRESENT)

COPIES = arrow_schema(
    "kind string, file_format string, source string, destination string, source_size bigint, size_in_bytes bigint, "
    "checksum string, action string, rewritten string, error string, added_by bigint, source_modified bigint, "
    "source_tag bigint, source_checksum string, recorded_at bigint"
)


@dataclass(frozen=True)
class CopiedFile:
    """One file of a batch and its result. `checksum` is that of the copy as it was read back. `rewritten` is the JSON
    of a RewrittenDelete, for files whose manifest entries change. Sizes in bytes.

    `source_modified` and `source_tag` are the source's identity while it was copied, and `source_checksum` that of its
    bytes. `added_by` is the snapshot that added the source to the table, which may later use its path for another file.
    `recorded_at` (microseconds since 1970): of several records of one copy, the newest is valid.
    """

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
    added_by: int | None = None
    source_modified: int | None = None
    source_tag: int | None = None
    source_checksum: str | None = None
    recorded_at: int = 0

    @property
    def source_identity(self) -> FileIdentity | None:
        """What the source was, besides its path; None if it is not recorded."""
        if self.source_modified is None or self.source_tag is None:
            return None
        return FileIdentity(self.source_size, self.source_modified, self.source_tag)

    def of(self, source: FileIdentity, checksum: str | None) -> CopiedFile:
        """Return the record with this identity and checksum of its source."""
        size, modified, tag = source.size_in_bytes, source.modified, source.tag
        return replace(self, source_size=size, source_modified=modified, source_tag=tag, source_checksum=checksum)


@dataclass(frozen=True)
class Outcome:
    """The results of a work's files, by action, and the files whose loss a person approved."""

    counts: Mapping[str, int]
    sizes: Mapping[str, int]
    lost: tuple[CopiedFile, ...]

    def files(self, *actions: str) -> int:
        return sum(self.counts.get(action, 0) for action in actions)

    def bytes(self, *actions: str) -> int:
        return sum(self.sizes.get(action, 0) for action in actions)


class Ledger:
    """The copies recorded in one folder, each with the `work_id` (of a plan or a restore) that made it."""

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
        now = time.time_ns() // 1000
        rows = [asdict(replace(file, recorded_at=now)) for file in files]
        data = parquet_bytes(pa.Table.from_pylist(rows, schema=COPIES))
        self._stores.write(f"{self._folder}/{work_id}/batch-{batch:06d}.parquet", data, overwrite=True)

    def batches(self, work_id: str) -> dict[int, str]:
        """Return the finished batches of a work: number to path."""
        found = {}
        for file in self._stores.list(f"{self._folder}/{work_id}"):
            match = re.fullmatch(r"batch-(\d+)\.parquet", file.path.rpartition("/")[2])
            if match is not None:
                found[int(match[1])] = file.path
        return found

    def files(self, runner: Runner, work_id: str | None = None) -> Rows:
        """Return everything that one work, or all, recorded (COPIES), including lost files."""
        return self._read(runner, COPIES, work_id, None)

    def rows(self, runner: Runner, columns: Sequence[str] = COPIES.names, work_id: str | None = None) -> Rows:
        """Return these columns of the valid copies, of all works or of one. A destination may come twice."""
        return self._read(runner, pa.schema([COPIES.field(name) for name in columns]), work_id, VERIFIED)

    def newest(
        self,
        runner: Runner,
        keep: Callable[[Rows], Rows],
        columns: Sequence[str] = COPIES.names,
        work_id: str | None = None,
        *,
        first: int = 0,
        end: int = RING,
    ) -> Rows:
        """Return what must be in the store: the newest record of each valid copy whose place is from `first` to before
        `end`, with these columns and `place`. `keep` is that of `Runner.keeping`."""
        names = (*columns, *({"recorded_at"} - set(columns)))
        schema = pa.schema([*(COPIES.field(name) for name in names), ("place", pa.int64())])
        recorded = self.rows(runner, names, work_id).map(partial(_placed, first, end), schema)
        return keep(runner.meet([keep(recorded)], "destination", _newest, schema))

    def _read(
        self,
        runner: Runner,
        schema: pa.Schema,
        work_id: str | None,
        actions: Collection[str] | None,
        wanted: Collection[str] | None = None,
        under: str | None = None,
    ) -> Rows:
        parts = self._parts(work_id)
        size = sum(part.size_in_bytes for part in parts)
        paths = pa.table({"path": pa.array([part.path for part in parts], pa.string())})
        # Most parts are tiny, so the rows determine the work.
        cost = Cost(rows=size // _BYTES_PER_ROW, size_in_bytes=size)
        function = partial(_read_parts, self._stores, schema.names, actions, wanted, under)
        return runner.map(paths, function, schema, cost, self._stores.readers(self._folder, _THREADS))

    def _parts(self, work_id: str | None = None) -> list[StoredFile]:
        """Return the files of all works, or of one, by path."""
        folder = self._folder if work_id is None else f"{self._folder}/{work_id}"
        return sorted(
            (file for file in self._stores.list(folder) if file.path.endswith(".parquet")), key=lambda file: file.path
        )

    def outcome(self, work_id: str) -> Outcome:
        """Return the results of the files in a work's finished batches. Reads them here, batch by batch, without
        Spark."""
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
        """Return how many files all works together transferred. Reads all parts."""

        def sent(path: str) -> int:
            actions = (
                ParquetReader(self._stores.read(path), path, self._stores.limits).read(["action"]).column("action")
            )
            return int(pc.sum(pc.is_in(actions, pa.array([COPIED, REWRITTEN]))).as_py() or 0)

        parts = [part.path for part in self._parts()]
        return sum(threaded(sent, parts, self._stores.readers(self._folder, _THREADS)))

    def among(self, runner: Runner, destinations: Collection[str], under: str | None = None) -> dict[str, CopiedFile]:
        """Return the newest record of each valid copy among these destinations, and of all `under` a folder, by
        destination; those that were recorded last are last."""
        if not destinations:
            return {}
        found = self._read(runner, COPIES, None, VERIFIED, frozenset(destinations), under).table()
        found = found.sort_by("recorded_at")
        copies = map(CopiedFile, *(column.to_pylist() for column in found.columns))
        last: dict[str, CopiedFile] = {}
        for copy in copies:
            last.pop(copy.destination, None)
            last[copy.destination] = copy
        return last

    def of_locations(
        self, runner: Runner, mapping: PathMapping, places: Mapping[str, Collection[str]]
    ) -> dict[str, list[CopiedFile]]:
        """Return the valid copies of the files at these live paths, in all spellings that the table has for them, by
        path; those that were recorded last are last. `places` are those of each path."""
        rules, asked = mapping.rules, {place for several in places.values() for place in several}
        paths: dict[str, list[str]] = {}
        for path in places:
            paths.setdefault(normalize(path, rules), []).append(path)
            asked.update(mapping.places(mapping.plain(path)))
        found: dict[str, list[CopiedFile]] = {}
        for copy in self.among(runner, asked, mapping.spelled).values():
            for path in paths.get(normalize(copy.source, rules), ()):
                found.setdefault(path, []).append(copy)
        return found


def is_still(recorded: FileIdentity | None, checksum: str | None, now: StoredFile, stores: Stores) -> bool:
    """Return True if the file that is there `now` is the recorded one: by its identity, or, if that is not decisive, by
    its content."""
    sameness = Sameness.UNSURE if recorded is None else recorded.compare(now.identity)
    by_content = sameness is Sameness.UNSURE and checksum is not None
    return sameness is Sameness.SAME or (by_content and stores.checksum(now.path) == checksum)


def place_of(path: str) -> int:
    """Return a copy's place on the ring."""
    return hash_location(path) >> _SHIFT


def _placed(first: int, end: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        places = (hash_strings(batch.column("destination")) >> np.uint64(_SHIFT)).astype(np.int64)
        placed = pa.RecordBatch.from_arrays([*batch.columns, pa.array(places)], [*batch.schema.names, "place"])
        yield placed.filter(pa.array((places >= first) & (places < end)))


def _newest(copies: pa.Table) -> pa.Table:
    return first_of_each(copies.sort_by([("recorded_at", "descending")]), "destination")


def handoff_ledger(stores: Stores, root: str, table_uuid: str) -> Ledger:
    """Return the ledger of everything that handoffs copied for a table; `root` is `operations.root`."""
    return Ledger(stores, f"{root}/cold/{table_uuid}/copies")


def _read_parts(
    stores: Stores,
    columns: Sequence[str],
    actions: Collection[str] | None,
    wanted: Collection[str] | None,
    under: str | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield these columns of the parts, for rows with one of `actions` and to the `wanted` destinations, or to those
    `under` a folder. None means no filter."""
    needed = {*columns, "action", "destination"}
    read = [name for name in COPIES.names if name in needed]
    for path in (path for batch in batches for path in batch.column("path").to_pylist()):
        for rows in ParquetReader(stores.read(path), path, stores.limits).batches(read):
            if actions is not None:
                rows = rows.filter(pc.is_in(rows.column("action"), pa.array(actions)))
            if wanted is not None:
                places = rows.column("destination")
                chosen = pa.array([each in wanted for each in places.to_pylist()], pa.bool_())
                rows = rows.filter(chosen if under is None else pc.or_(chosen, pc.starts_with(places, under)))
            yield rows.select(columns)
