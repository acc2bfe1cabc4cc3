"""Rows and columns of segments, as referenced by a state of the index. Belongs here: reading them, and verifying them
against the state. Does not belong here: queries (`files.py`, `lookups.py` …)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle.reachability.index.array_file import DamagedIndex, Section, checked
from artemis_lifecycle.reachability.index.index import ManifestIndex
from artemis_lifecycle.reachability.index.segments import Rows, Segment, read_block
from artemis_lifecycle.reachability.index.state import IndexState

_GAP_BYTES, _RUN_BYTES = 64 << 10, 32 << 20


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
            block = data[at : at + int(state.block_lengths[number])]
            rows = read_block(block, int(state.block_checksums[number]))
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
