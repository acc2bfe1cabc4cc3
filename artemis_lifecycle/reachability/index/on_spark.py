"""The rows of many manifests, for tasks on Spark's executors. Belongs here: what a task needs of the index."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.metadata.manifests import ENTRY_KINDS
from artemis_lifecycle.reachability.index.array_file import DamagedIndex
from artemis_lifecycle.reachability.index.index import ManifestIndex
from artemis_lifecycle.reachability.index.rows import rows_of
from artemis_lifecycle.reachability.index.segments import (
    Rows,
    checksum_of,
    read_block,
    read_manifest,
)
from artemis_lifecycle.reachability.index.state import IndexState
from artemis_lifecycle.reachability.index.view import IndexView
from artemis_lifecycle.storage.location import normalize

_ROWS_PER_SHARE = 100_000


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
