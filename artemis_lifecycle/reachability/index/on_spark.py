"""Reading metadata on Spark's executors. Belongs here: splitting the work into tasks, and collecting the results."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.metadata.manifests import ENTRY_KINDS
from artemis_lifecycle.metadata.types import ManifestListEntry, Snapshot
from artemis_lifecycle.reachability.index.array_file import DamagedIndex
from artemis_lifecycle.reachability.index.index import ManifestIndex
from artemis_lifecycle.reachability.index.manifests import ListChunk, read_lists
from artemis_lifecycle.reachability.index.rows import rows_of
from artemis_lifecycle.reachability.index.segments import (
    SEGMENT_ROWS,
    Blocks,
    Rows,
    Segment,
    checksum_of,
    read_block,
    read_manifest,
    write_segments,
)
from artemis_lifecycle.reachability.index.state import IndexState
from artemis_lifecycle.reachability.index.view import IndexView
from artemis_lifecycle.spark.runner import Runner, Spark
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.location import normalize
from artemis_lifecycle.storage.stores import is_local

_ROWS_PER_SHARE = 100_000
_ENTRY_BYTES = 60
"""Minimum size of an entry in a compressed manifest: it limits the expected rows of a task."""


def read_lists_there(spark: Spark, index: ManifestIndex, chunks: Sequence[Sequence[Snapshot]]) -> Iterator[ListChunk]:
    """`read_lists` of each chunk, in order. Raises UnreadableMetadata, EncryptedTable."""
    task = _ListTask(index.shared_by(min(_cores(spark), len(chunks))))
    payloads = [pickle.dumps(tuple(chunk)) for chunk in chunks]
    for _, result in sorted(_run(spark, task, payloads, index.settings.concurrency)):
        yield pickle.loads(result)


def write_segments_there(
    spark: Spark,
    index: ManifestIndex,
    entries: Sequence[tuple[int, ManifestListEntry]],
    lengths: NDArray[np.int64],
) -> Iterator[tuple[Segment, Blocks]]:
    """`write_segments` of all manifests, in tasks with about equal bytes. Raises UnreadableMetadata, EncryptedTable."""
    cores = _cores(spark)
    bytes_per_task = SEGMENT_ROWS * _ENTRY_BYTES
    tasks = max(1, min(len(entries), max(cores, -(-int(lengths.sum()) // bytes_per_task))))
    ends = np.searchsorted(np.cumsum(lengths), np.linspace(0, int(lengths.sum()), tasks + 1)[1:-1])
    groups = np.split(np.arange(len(entries)), ends)
    payloads = [pickle.dumps([entries[row] for row in group.tolist()]) for group in groups if len(group)]
    task = _ManifestTask(index.shared_by(min(_cores(spark), len(payloads))))
    for _, result in sorted(_run(spark, task, payloads, index.settings.concurrency)):
        yield from pickle.loads(result)


def _cores(spark: Spark) -> int:
    return int(Runner(spark).session.sparkContext.defaultParallelism)


def _run(spark: Spark, task: Any, payloads: Sequence[bytes], concurrency: int | None) -> list[tuple[int, bytes]]:
    partitions = len(payloads) if concurrency is None else min(concurrency, len(payloads))
    with worker_errors():
        context = Runner(spark).session.sparkContext
        return list(context.parallelize(list(enumerate(payloads)), partitions).mapPartitions(task).collect())


def _readers(index: ManifestIndex, path: str | None) -> int:
    """Return the threads per task that hide an object store's latency. On a disk, the tasks themselves are the
    threads."""
    return 1 if path is None or is_local(path) else index.settings.threads


class _ListTask:
    def __init__(self, index: ManifestIndex) -> None:
        self.index = index

    def __call__(self, payloads: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        for number, payload in payloads:
            snapshots = pickle.loads(payload)
            threads = _readers(self.index, snapshots[0].manifest_list)
            yield number, pickle.dumps(read_lists(self.index.stores, snapshots, threads))


class _ManifestTask:
    def __init__(self, index: ManifestIndex) -> None:
        self.index = index

    def __call__(self, payloads: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        for number, payload in payloads:
            entries = pickle.loads(payload)
            threads = _readers(self.index, entries[0][1].manifest_path)
            yield number, pickle.dumps(list(write_segments(self.index, entries, threads)))


def shares(view: IndexView, snapshot_ids: Sequence[int]) -> pa.Table:
    """Return the manifests of the snapshots in shares of about `_ROWS_PER_SHARE` entries, for `rows_of_shares`."""
    state = view.state
    manifests = np.flatnonzero(state.listed_by(view.chosen(snapshot_ids)))
    held = manifests[state.segment_of[manifests] >= 0]
    order = held[np.lexsort((state.block_offsets[held], state.segment_of[held]))]
    rows = np.maximum(state.manifests.existing[order] + state.manifests.added[order], 1)
    count = -(-int(rows.sum()) // _ROWS_PER_SHARE)
    ends = np.searchsorted(np.cumsum(rows), np.linspace(0, int(rows.sum()), count + 1)[1:-1])
    payloads = [pickle.dumps(_Share.of(view, group)) for group in np.split(order, ends) if len(group)]
    return pa.table({"share": pa.array(payloads, pa.binary())})


class _Share:
    """What one task needs to read its manifests' rows: only that part of the state."""

    def __init__(self, index: ManifestIndex, state: IndexState) -> None:
        self.index = index
        self.state = state

    @classmethod
    def of(cls, view: IndexView, manifests: NDArray[np.int64]) -> _Share:
        return cls(view.index, view.state.part(manifests))

    def batches(self) -> Iterator[pa.RecordBatch]:
        numbers = np.arange(len(self.state.manifests))
        pending: set[int] = set(numbers.tolist())
        try:
            for number, rows in rows_of(self.index, self.state, numbers):
                yield self._batch(rows)
                pending.discard(number)
        except DamagedIndex:
            for number in sorted(pending):
                read = read_manifest(self.index.stores, number, self.state.manifests.entry(number), self.index.rules)
                yield self._batch(read_block(read.block, checksum_of(read.block)))

    def _batch(self, rows: Rows) -> pa.RecordBatch:
        paths = rows.paths.cast(pa.string())
        kinds = pa.DictionaryArray.from_arrays(pa.array(rows.kinds), pa.array(ENTRY_KINDS)).dictionary_decode()
        rules = self.index.rules
        return pa.RecordBatch.from_pydict(
            {
                "path": paths,
                "kind": kinds,
                "size_in_bytes": pa.array(rows.sizes),
                "location": pa.array([normalize(path, rules) for path in paths.to_pylist()], pa.string()),
            }
        )


def rows_of_shares(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield path, kind, size_in_bytes and location of all entries of the shares, one row per reference. If a share's
    part of the index is damaged, it is read from the metadata."""
    for batch in batches:
        for payload in batch.column("share").to_pylist():
            share: _Share = pickle.loads(payload)
            yield from share.batches()
