"""The index as of one metadata file, which every query uses."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.manifests import ENTRY_KINDS
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index.array_file import DamagedIndex, Section, checked
from artemis_lifecycle.reachability.index.index import ManifestIndex
from artemis_lifecycle.reachability.index.segments import Rows, Segment, checksum_of, read_block, read_manifest
from artemis_lifecycle.reachability.index.state import IndexState
from artemis_lifecycle.storage.location import normalize

_log = escaping.logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class IndexView:
    """The index as of one metadata file. `order[i]` is the position in the history of the state's i-th snapshot.

    `lists_read` and `manifests_read` count the metadata's own files that had to be opened: the lists of the last
    snapshots of the state, and manifests among `seen`, which were opened or looked up. `rebuilt` reads all of them into
    a new view.
    """

    index: ManifestIndex
    metadata: TableMetadata
    state: IndexState
    order: NDArray[np.int64]
    lists_read: int
    manifests_read: int
    seen: NDArray[np.int64]
    rebuilt: Callable[[], IndexView]

    def in_order(self) -> bool:
        """Return True if the snapshots of each lane are in the history's order."""
        rows = np.argsort(self.state.coordinates(), kind="stable")
        lanes, order = self.state.lanes[rows], self.order[rows]
        return bool(((lanes[1:] != lanes[:-1]) | (order[1:] > order[:-1])).all())

    def chosen(self, snapshot_ids: Sequence[int]) -> NDArray[np.bool_]:
        """Return a mask over the state's snapshots. Raises UnreadableMetadata for an id that the metadata does not
        have."""
        wanted = np.unique(np.array(list(snapshot_ids), np.int64))
        mask: NDArray[np.bool_] = np.isin(self.state.snapshot_ids, wanted)
        if int(mask.sum()) != len(wanted):
            absent = np.setdiff1d(wanted, self.state.snapshot_ids)
            raise UnreadableMetadata(
                f"The metadata has no snapshot {', '.join(map(str, absent[:5].tolist()))}",
                path=self.metadata.metadata_location,
                untouched="all files",
                hint="read the table's history again",
            )
        return mask


def query(function: Callable[Concatenate[IndexView, P], T]) -> Callable[Concatenate[IndexView, P], T]:
    """Decorate a query on a view. If the index is damaged, rebuild it once and repeat the query."""

    @wraps(function)
    def asked(view: IndexView, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(view, *args, **kwargs)
        except DamagedIndex as damage:
            _log.warning("The manifest index in %s is rebuilt: %s", view.index.folder, damage)
            return function(view.rebuilt(), *args, **kwargs)

    return asked


_GAP_BYTES, _RUN_BYTES = 64 << 10, 32 << 20


# --- rows -------------------------------------------------------------------------------------------------------------
# Rows and columns of segments, as referenced by a state of the index.


def rows_of(index: ManifestIndex, state: IndexState, manifests: NDArray[np.int64]) -> Iterator[tuple[int, Rows]]:
    """Yield the entries of the given manifests one by one, by number. Raises DamagedIndex."""
    held = manifests[state.segment_of[manifests] >= 0]
    order = np.lexsort((state.block_offsets[held], state.segment_of[held]))
    for run in _runs(state, held[order]):
        first, last = run[0], run[-1]
        start = int(state.block_offsets[first])
        length = int(state.block_offsets[last] + state.block_lengths[last]) - start
        data = index.read_part(state.segments[int(state.segment_of[first])].name, start, length)
        for number in run:
            at = int(state.block_offsets[number]) - start
            rows = read_block(data[at : at + int(state.block_lengths[number])], int(state.block_checksums[number]))
            expected = int(state.manifests.existing[number] + state.manifests.added[number])
            if len(rows) != expected:
                raise DamagedIndex(f"a block has {len(rows)} rows, but the manifest has {expected}")
            yield number, rows


def columns_of(index: ManifestIndex, state: IndexState, number: int) -> tuple[Any, Any]:
    """Return a segment's (hashes, owners). Both match their checksums, and each manifest has as many rows as its list
    counts.

    Raises DamagedIndex.
    """
    segment = state.segments[number]
    hashes, owners = (_column(index, segment, part) for part in (segment.hashes, segment.owners))
    if not len(hashes) == len(owners) == segment.rows:
        raise DamagedIndex(f"{segment.name} has {len(hashes)} hashes and {len(owners)} owners, but {segment.rows} rows")
    members = np.flatnonzero(state.segment_of == number)
    expected = state.manifests.existing[members] + state.manifests.added[members]
    # The greatest first: a count for each owner may be larger than any memory.
    if (owners >= segment.manifests).any() or (
        np.bincount(owners, minlength=segment.manifests)[state.place_of[members]] != expected
    ).any():
        raise DamagedIndex(f"{segment.name} does not have the rows that its manifests have")
    return hashes, owners


def sizes_of(index: ManifestIndex, state: IndexState, number: int) -> NDArray[np.int64]:
    """Return the sizes in bytes of a segment's files, in the order of its hashes. Raises DamagedIndex."""
    segment = state.segments[number]
    sizes: NDArray[np.int64] = _column(index, segment, segment.sizes)
    return sizes


def _column(index: ManifestIndex, segment: Segment, section: Section) -> Any:
    return checked(index.read_part(segment.name, section.offset, section.length), section)


def _runs(state: IndexState, numbers: NDArray[np.int64]) -> Iterator[list[int]]:
    """Yield runs of manifests whose blocks are close together in one segment: each is one read of bounded size."""
    run: list[int] = []
    start = end = 0
    segment = -1
    for number in numbers.tolist():
        at, length, mine = (
            int(state.block_offsets[number]),
            int(state.block_lengths[number]),
            int(state.segment_of[number]),
        )
        if run and mine == segment and at - end <= _GAP_BYTES and at + length - start <= _RUN_BYTES:
            run.append(number)
            end = at + length
            continue
        if run:
            yield run
        run, segment, start, end = [number], mine, at, at + length
    if run:
        yield run


# --- on spark ---------------------------------------------------------------------------------------------------------
# The rows of many manifests, for tasks on Spark's executors.

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
                read = read_manifest(self.index.stores, number, self.state.entry(number), self.index.rules)
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
