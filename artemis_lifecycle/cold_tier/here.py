"""A small handoff, in this process. What Spark's actions cost on small data, most of all in a fresh JVM, is many times
what a night's few hundred files take. The same work as `on_spark.py` finds, for what fits the bounds.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.cold_tier.copy import Copier, copy_here, copy_rows
from artemis_lifecycle.cold_tier.ledger import CopiedFile, Ledger, Recorded
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
from artemis_lifecycle.metadata.types import ManifestListEntry
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.frames import arrow_schema, read_frame, write_batches
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

LISTS = 512
MANIFESTS = 512
MANIFEST_BYTES = 32 << 20
ROWS = 50_000
"""Snapshots, unread manifests, their bytes, and rows, beyond any of which a handoff is found on executors."""

BATCH_FILES = 512
BATCH_BYTES = 256 << 20
"""A batch beyond either is copied on executors."""

_THREADS = 16

Known = Callable[[Collection[str]], Mapping[str, Recorded]]
"""What the ledger has of these destinations."""


@dataclass(frozen=True)
class FoundHere:
    """Needed files, by destination, each (phase, kind, format, source, size); what manifests and lists name; what is
    known of the sources, by source."""

    files: Mapping[str, tuple[int, str, str | None, str, int | None]]
    deletes: Collection[tuple[str, str]]
    named: Collection[str]
    origin: Mapping[str, Recorded]

    def sizes(self) -> Iterable[tuple[int, int, int, int]]:
        files: Counter[tuple[int, int]] = Counter()
        sizes: Counter[tuple[int, int]] = Counter()
        for destination, (phase, _, _, _, size) in self.files.items():
            files[phase, _bucket(destination)] += 1
            sizes[phase, _bucket(destination)] += max(size or 0, 0)
        return [(*key, files[key], sizes[key]) for key in files]

    def store(self, folder: str, stores: Stores) -> None:
        import pyarrow as pa

        rows: list[tuple[Any, ...]] = [
            (
                phase,
                kind,
                file_format,
                source,
                destination,
                size,
                self._checksum(source),
                COPY,
                None,
                _bucket(destination),
            )
            for destination, (phase, kind, file_format, source, size) in self.files.items()
        ]
        rows += [
            (None, None, None, None, destination, None, None, DELETE, manifest, _bucket(destination))
            for manifest, destination in sorted(self.deletes)
        ]
        rows += [
            (None, None, None, None, destination, None, None, NAMED, None, _bucket(destination))
            for destination in sorted(self.named)
        ]
        schema = arrow_schema(SEALED)
        columns = zip(*rows, strict=True) if rows else [()] * len(schema)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
        write_batches([pa.RecordBatch.from_arrays(arrays, schema=schema)], schema, folder, stores)

    def _checksum(self, source: str) -> str | None:
        recorded = self.origin.get(source)
        return None if recorded is None else recorded.checksum


def find(stores: Stores, demand: Demand, known: Known, origin: Known) -> FoundHere | tuple[Problem, ...] | None:
    """What is needed and not `known`; or the metadata that cannot be read; or None when that is too much for this
    process. `origin` looks sources up where the demand's origin recorded them."""
    lists = _lists(stores, demand)
    if lists is None:
        return None
    if broken := [(row.snapshot_id, row.list_source, row.error) for row in lists if row.error is not None]:
        return list_problems(broken)
    manifests = _manifests(lists)
    copied = known(manifests)
    new = {destination: row for destination, row in manifests.items() if destination not in copied}
    files = _files(stores, demand, new)
    if files is None:
        return None
    if unread := [(row.source, row.error, row.manifest_destination) for row in files if row.error is not None]:
        users = _users(lists)
        return manifest_problems(
            (source, error, snapshot_id) for source, error, manifest in unread for snapshot_id in users[manifest]
        )
    needed: dict[str, tuple[int, str, str | None, str, int | None]] = {}
    for row in files:
        if row.destination is not None:
            # By the smallest of each, as the executors would: the order of manifests must not decide.
            found = (0, row.kind, row.file_format, row.source, row.size_in_bytes)
            other = needed.get(row.destination)
            needed[row.destination] = found if other is None else _merged(found, other)
    for destination, (kind, source, size) in demand.statistics().items():
        needed.setdefault(destination, (0, kind, None, source, size))
    for destination, listed in new.items():
        assert listed.manifest_source is not None
        needed[destination] = (1, MANIFEST, "avro", listed.manifest_source, listed.manifest_length)
    for listed in lists:
        if listed.list_destination is not None and listed.list_source is not None:
            needed[listed.list_destination] = (2, MANIFEST_LIST, "avro", listed.list_source, listed.list_size)
    copied = known(needed)
    left = {destination: file for destination, file in needed.items() if destination not in copied}
    return FoundHere(
        left,
        {
            (row.manifest_destination, row.destination)
            for row in files
            if row.kind in (POSITION_DELETES, DELETION_VECTORS) and row.destination is not None
        },
        manifests.keys(),
        origin([source for _, _, _, source, _ in left.values()]),
    )


def losses_here(stores: Stores, demand: Demand, lost: Sequence[CopiedFile]) -> Losses | None:
    """Which snapshots of the demand cannot be read without `lost` files; None when that is too much for this
    process."""
    lists = _lists(stores, demand)
    files = None if lists is None else _files(stores, demand, _manifests(lists))
    if lists is None or files is None:
        return None
    paths = {file.destination for file in lost}
    readers = _users(lists)
    users: dict[str, set[int]] = {path: set(readers.get(path, ())) for path in paths}
    hit = [row for row in files if row.destination in paths]
    for row in hit:
        assert row.destination is not None
        users[row.destination] |= readers[row.manifest_destination]
    for listed in lists:
        if listed.list_destination in paths:
            users[listed.list_destination].add(listed.snapshot_id)
    return losses(demand, lost, users, {row.manifest_destination for row in hit})


def _lists(stores: Stores, demand: Demand) -> list[ListRow] | None:
    snapshots = demand.snapshots()
    if len(snapshots) > LISTS:
        return None
    paths = [snapshot.manifest_list for snapshot in snapshots if snapshot.manifest_list is not None]
    threads = stores.readers(paths[0], _THREADS) if paths else 1
    rows: list[ListRow] = []
    for found in threaded(lambda snapshot: read_list(stores, demand.mapping, snapshot), snapshots, threads):
        rows += found
        if len(rows) > ROWS:
            return None
    return rows


def _manifests(lists: Iterable[ListRow]) -> dict[str, ListRow]:
    """One row of each manifest, by its destination: of several the one with the largest length."""
    found: dict[str, ListRow] = {}
    for row in lists:
        if row.manifest_destination is not None:
            other = found.get(row.manifest_destination)
            if other is None or (row.manifest_length or 0) > (other.manifest_length or 0):
                found[row.manifest_destination] = row
    return found


def _files(stores: Stores, demand: Demand, manifests: Mapping[str, ListRow]) -> list[FileRow] | None:
    entries = [(destination, row.entry) for destination, row in manifests.items() if row.entry is not None]
    # Old lists do not count entries: their manifests' lengths bound what is read.
    size = sum(max(entry.manifest_length, 0) for _, entry in entries)
    if len(entries) > MANIFESTS or size > MANIFEST_BYTES:
        return None
    if sum(entry.live_files_count or 0 for _, entry in entries) > ROWS:
        return None

    def read(item: tuple[str, ManifestListEntry]) -> list[FileRow]:
        return read_manifest(stores, demand.mapping, *item)

    threads = stores.readers(entries[0][1].manifest_path, _THREADS) if entries else 1
    rows: list[FileRow] = []
    for found in threaded(read, entries, threads):
        rows += found
        if len(rows) > ROWS:
            return None
    return rows


def _users(lists: Iterable[ListRow]) -> dict[str, set[int]]:
    """The snapshots that read each manifest, by its destination."""
    users: dict[str, set[int]] = {}
    for row in lists:
        if row.manifest_destination is not None:
            users.setdefault(row.manifest_destination, set()).add(row.snapshot_id)
    return users


def _merged(
    one: tuple[int, str, str | None, str, int | None], other: tuple[int, str, str | None, str, int | None]
) -> tuple[int, str, str | None, str, int | None]:
    formats = [file_format for file_format in (one[2], other[2]) if file_format is not None]
    sizes = [size for size in (one[4], other[4]) if size is not None]
    return one[0], min(one[1], other[1]), min(formats, default=None), min(one[3], other[3]), max(sizes, default=None)


def _bucket(destination: str) -> int:
    return zlib.crc32(destination.encode()) % BUCKETS


# --- copying --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowsHere:
    """The sealed rows of a small handoff, in memory."""

    spark: SparkSession
    ledger: Ledger
    table: pa.Table

    @classmethod
    def open(cls, spark: SparkSession, stores: Stores, work: Work, ledger: Ledger) -> RowsHere | None:
        """None when they are too many for this process."""
        import pyarrow as pa

        rows = read_frame(Runner(spark), work.folder, stores).data
        return cls(spark, ledger, rows) if isinstance(rows, pa.Table) and rows.num_rows <= ROWS else None

    @contextmanager
    def phase(self, phase: int) -> Iterator[Phase]:
        rows = self.table.to_pylist()
        deletes: dict[str, list[dict[str, str]]] = {}
        lengths: dict[str, int] = {}
        if phase == 1:
            pairs = [(row["manifest"], row["destination"]) for row in rows if row["role"] == DELETE]
            known = self.ledger.among(self.spark, {destination for _, destination in pairs})
            for manifest, destination in pairs:
                rewritten = known[destination].rewritten if destination in known else None
                if rewritten is not None:
                    deletes.setdefault(manifest, []).append({"destination": destination, "rewritten": rewritten})
        elif phase == 2:
            known = self.ledger.among(self.spark, {row["destination"] for row in rows if row["role"] == NAMED})
            lengths = {destination: file.size_in_bytes for destination, file in known.items()}
        wanted = [row for row in rows if row["role"] == COPY and row["phase"] == phase]
        yield _PhaseHere(self.spark, wanted, deletes, lengths)


@dataclass(frozen=True)
class _PhaseHere:
    spark: SparkSession
    rows: Sequence[Mapping[str, Any]]
    deletes: Mapping[str, list[dict[str, str]]] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)

    def copy(self, batch: Batch, copier: Copier, excluded: Collection[str]) -> list[CopiedFile]:
        wanted = [
            {**row, "deletes": self.deletes.get(row["destination"], [])}
            for row in self.rows
            if batch.first_bucket <= row["bucket"] <= batch.last_bucket and row["destination"] not in excluded
        ]
        if batch.files <= BATCH_FILES and batch.size_in_bytes <= BATCH_BYTES:
            return copy_here(wanted, copier.with_lengths(self.lengths))
        return copy_rows(self.spark, wanted, copier, self.lengths, batch.files, batch.size_in_bytes)
