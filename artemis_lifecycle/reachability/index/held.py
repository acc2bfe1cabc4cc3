"""How much storage any choice of snapshots holds, for many choices at once. Belongs here: counting distinct files. Does
not belong here: which choices are worth comparing (`expiration/curve.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle.reachability.index.lookups import as_texts
from artemis_lifecycle.reachability.index.rows import columns_of, sizes_of
from artemis_lifecycle.reachability.index.view import IndexView, query
from artemis_lifecycle.storage.location_hash import hash_column

_ROWS_AT_ONCE = 2_000_000
"""Limits memory to about 100 MB, however large the table."""


@dataclass(frozen=True)
class Held:
    """Distinct files and their bytes. `metadata_*` are manifest lists and manifests, which are included in the
    others."""

    files: int
    size_in_bytes: int
    metadata_files: int
    metadata_size_in_bytes: int


@query
def held_files(view: IndexView, choices: Sequence[Sequence[int]]) -> list[Held]:
    """Return what each choice of snapshots (ids) reaches: distinct files and their bytes, without listing them.

    Files are distinguished by the hashes of their locations.
    """
    state, statistics = view.state, _statistics(view)
    chosen = [view.chosen(ids) for ids in choices]
    manifests_of = np.array([state.listed_by(mask) for mask in chosen]).reshape(len(choices), len(state.manifests))
    # Each statistics file counts as the only file of a manifest of its own.
    of_snapshots = np.array([mask[statistics.rows] for mask in chosen]).reshape(len(choices), len(statistics.rows))
    listed = np.concatenate([manifests_of, of_snapshots], axis=1)
    files, sizes = np.zeros(len(choices), np.int64), np.zeros(len(choices), np.int64)
    total = sum(segment.rows for segment in state.segments)
    bounds = np.linspace(0.0, float(2**64), max(1, -(-total // _ROWS_AT_ONCE)) + 1)[1:-1].astype(np.uint64)
    for hashes, manifests, bytes_ in _by_range(view, statistics, bounds):
        order = np.argsort(hashes, kind="stable")
        leads = np.flatnonzero(np.concatenate([[True], hashes[order[1:]] != hashes[order[:-1]]]))
        largest = np.maximum.reduceat(bytes_[order], leads)
        owners = manifests[order]
        for number in range(len(choices)):
            reached = np.maximum.reduceat(listed[number][owners], leads)
            files[number] += reached.sum()
            sizes[number] += largest[reached].sum()
    return [
        _with_metadata(view, mask, manifests_of[number], int(files[number]), int(sizes[number]))
        for number, mask in enumerate(chosen)
    ]


@dataclass(frozen=True)
class _Statistics:
    """Statistics files of existing snapshots: hashes of locations, sizes, and the snapshots' rows in the state."""

    hashes: NDArray[np.uint64]
    sizes: NDArray[np.int64]
    rows: NDArray[np.int64]


def _statistics(view: IndexView) -> _Statistics:
    row_of = {int(snapshot_id): row for row, snapshot_id in enumerate(view.state.snapshot_ids)}
    files = [file for file in view.metadata.statistics if file.snapshot_id in row_of]
    return _Statistics(
        hash_column(as_texts(file.path for file in files), view.index.rules),
        np.array([file.size_in_bytes for file in files], np.int64),
        np.array([row_of[file.snapshot_id] for file in files], np.int64),
    )


def _by_range(
    view: IndexView, statistics: _Statistics, bounds: NDArray[np.uint64]
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]]:
    """Yield (hashes, numbers of manifests, sizes) of all rows of listed manifests, range by range. Statistics files
    have the numbers after those of the manifests."""
    state = view.state
    edges: list[np.uint64 | None] = [None, *bounds, None]
    for low, high in pairwise(edges):
        inside = np.ones(len(statistics.hashes), np.bool_)
        if low is not None:
            inside &= statistics.hashes >= low
        if high is not None:
            inside &= statistics.hashes < high
        alone = np.flatnonzero(inside)
        parts = [(statistics.hashes[alone], len(state.manifests) + alone, statistics.sizes[alone])]
        for number, segment in enumerate(state.segments):
            hashes, owners = columns_of(view.index, state, number)
            start = 0 if low is None else int(np.searchsorted(hashes, low))
            end = len(hashes) if high is None else int(np.searchsorted(hashes, high))
            members = np.flatnonzero(state.segment_of == number)
            number_of = np.full(segment.manifests, -1, np.int64)
            number_of[state.place_of[members]] = members
            manifests = number_of[owners[start:end]]
            alive = manifests >= 0
            sizes = sizes_of(view.index, state, number)[start:end]
            parts.append((hashes[start:end][alive], manifests[alive], sizes[alive]))
        if any(len(part[0]) for part in parts):
            hashes, manifests, sizes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            yield hashes, manifests, sizes


def _with_metadata(
    view: IndexView, mask: NDArray[np.bool_], listed: NDArray[np.bool_], files: int, size_in_bytes: int
) -> Held:
    state = view.state
    manifests = np.flatnonzero(listed)
    _, first = np.unique(state.locations[manifests], return_index=True)
    lists: dict[str, int] = {}
    for row in np.flatnonzero(mask).tolist():
        path = view.metadata.snapshots[int(view.order[row])].manifest_list
        if path is not None:
            lists[path] = int(state.list_sizes[row])
    metadata_files = len(first) + len(lists)
    metadata_bytes = int(np.maximum(state.manifests.lengths[manifests[first]], 0).sum()) + sum(lists.values())
    return Held(files + metadata_files, size_in_bytes + metadata_bytes, metadata_files, metadata_bytes)
