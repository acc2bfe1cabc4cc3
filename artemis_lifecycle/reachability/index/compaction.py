"""Keeps the index's segments few and current. Belongs here: merging small segments and dropping rows of manifests that
no snapshot lists any more. Does not belong here: the metadata; everything comes from the segments themselves.

Every refresh appends a segment. Small ones are merged once there are eight of them, so that a row is rewritten only a
logarithmic number of times. A segment is rewritten once half of it is dead, so that the index grows with the table.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle.reachability.index.array_file import DamagedIndex
from artemis_lifecycle.reachability.index.index import ManifestIndex
from artemis_lifecycle.reachability.index.rows import columns_of, sizes_of
from artemis_lifecycle.reachability.index.segments import ReadManifest, SegmentWriter, checksum_of
from artemis_lifecycle.reachability.index.state import IndexState

SMALL_ROWS = 250_000
SMALL_SEGMENTS = 8
DEAD_SHARE = 0.5


def compacted(index: ManifestIndex, state: IndexState) -> int:
    """Rewrite the segments that need it, in `state`. Return how many were replaced. Raises DamagedIndex.

    Memory: one new segment's rows. The files of replaced segments stay until the index sweeps them.
    """
    chosen = _worth_rewriting(state)
    if not len(chosen):
        return 0
    writer = SegmentWriter(index)
    for number in chosen.tolist():
        for manifest in _members(index, state, number):
            for segment, blocks in writer.add(manifest):
                state.add_rows(segment, blocks)
    for segment, blocks in writer.finish():
        state.add_rows(segment, blocks)
    gone = np.zeros(len(state.segments), np.bool_)
    gone[chosen] = True
    state.drop_segments(gone)
    return len(chosen)


def _worth_rewriting(state: IndexState) -> NDArray[np.int64]:
    held = state.segment_of >= 0
    rows = state.manifests.existing + state.manifests.added
    alive = np.bincount(state.segment_of[held], weights=rows[held], minlength=len(state.segments))
    total = np.array([segment.rows for segment in state.segments], np.int64)
    dead = alive < (1 - DEAD_SHARE) * total
    small = ~dead & (alive < SMALL_ROWS)
    if small.sum() < SMALL_SEGMENTS:
        small[:] = False
    return np.flatnonzero(dead | small | (alive == 0))


def _members(index: ManifestIndex, state: IndexState, number: int) -> Iterator[ReadManifest]:
    """Yield the manifests of a segment that are still listed, as they were read."""
    members = np.flatnonzero(state.segment_of == number)
    if not len(members):
        return
    segment = state.segments[number]
    hashes, owners = columns_of(index, state, number)
    sizes = sizes_of(index, state, number)
    # Sorted by owner; the sort is stable, so each owner's rows stay sorted by hash.
    order = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[order], np.arange(segment.manifests + 1))
    for manifest in members[np.argsort(state.block_offsets[members])].tolist():
        place = int(state.place_of[manifest])
        block = index.read_part(segment.name, int(state.block_offsets[manifest]), int(state.block_lengths[manifest]))
        if checksum_of(block) != int(state.block_checksums[manifest]):
            raise DamagedIndex("a block differs from its checksum")
        counts = (
            int(state.manifests.existing[manifest]),
            int(state.manifests.added[manifest]),
            int(state.manifests.deleted[manifest]),
        )
        rows = order[ends[place] : ends[place + 1]]
        yield ReadManifest(manifest, block, hashes[rows], sizes[rows], counts)
