"""Single files and hashes looked up in the index: which snapshots reach them.

A hash among the rows of kept manifests proves "kept": a collision of two locations can only keep a file. Its absence
proves "deletable", if the segments match their checksums and have as many rows as their manifests have entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.metadata.types import ManifestListEntry
from artemis_lifecycle.reachability.index.segments import Rows
from artemis_lifecycle.reachability.index.view import IndexView, columns_of, query, rows_of, sizes_of
from artemis_lifecycle.storage.location import among, distinct, hash_column, hash_location, normalize
from artemis_lifecycle.storage.threads import threaded


@query
def reaches(view: IndexView, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return whether any snapshot of the metadata reaches a file with each location hash (`storage.location_hash`):
    manifest lists, manifests, entries, statistics files. Two locations with one hash count as one, which can only keep
    a file."""
    listed = view.state.listed_by(view.chosen([snapshot.snapshot_id for snapshot in view.metadata.snapshots]))
    found = np.ones(len(hashes), np.bool_)
    rows = not_among_entries(view, hashes, listed)
    found[rows] = np.isin(hashes[rows], above_entries(view, listed, set()))
    return found


@query
def reaching(view: IndexView, hashes: NDArray[np.uint64]) -> tuple[int, ...]:
    """Return the ids of the snapshots that reach a data or delete file with any of these location hashes, in the order
    of the history. Two locations with one hash count as one."""
    state = view.state
    wanted = distinct(hashes)
    touched = np.zeros(len(state.manifests), np.bool_)
    for segment in range(len(state.segments)):
        rows, owners = columns_of(view.index, state, segment)
        members = np.flatnonzero(state.segment_of == segment)
        places = distinct(owners[np.isin(rows, wanted)])
        touched[members[np.isin(state.place_of[members], places)]] = True
    return _in_order(view, state.snapshot_ids[state.listing_any(touched)].tolist())


@query
def holders(view: IndexView, location: str) -> tuple[int, ...]:
    """Return the ids of the snapshots that reach the file at `location`, in the order of the history."""
    state, rules = view.state, view.index.rules
    wanted = np.uint64(hash_location(location))
    listing = np.zeros(len(state.snapshot_ids), np.bool_)
    for number in np.flatnonzero(state.locations == wanted).tolist():
        if normalize(state.manifests.path(number), rules) == location:
            listing |= state.listing(number)
    for number in _numbers_with(view, location):
        listing |= state.listing(number)
    ids = set(state.snapshot_ids[listing].tolist())
    ids |= {file.snapshot_id for file in view.metadata.statistics if normalize(file.path, rules) == location}
    ids |= {
        snapshot.snapshot_id
        for snapshot in view.metadata.snapshots
        if snapshot.manifest_list is not None and normalize(snapshot.manifest_list, rules) == location
    }
    return _in_order(view, ids)


@query
def manifests_with(view: IndexView, location: str) -> tuple[ManifestListEntry, ...]:
    """Return the manifests that have a live entry for the file at `location`."""
    return tuple(view.state.entry(number) for number in _numbers_with(view, location))


def _numbers_with(view: IndexView, location: str) -> Iterator[int]:
    state, rules = view.state, view.index.rules
    wanted = np.uint64(hash_location(location))
    for segment in range(len(state.segments)):
        hashes, owners = columns_of(view.index, state, segment)
        first, behind = np.searchsorted(hashes, wanted, "left"), np.searchsorted(hashes, wanted, "right")
        places = distinct(owners[first:behind])
        members = np.flatnonzero((state.segment_of == segment) & np.isin(state.place_of, places))
        for number, rows in rows_of(view.index, state, members):
            if any(normalize(path, rules) == location for path in _paths_with(rows, wanted, view).to_pylist()):
                yield number


Meant = Callable[[str], bool]
"""Whether a folder is asked about."""


def directly_in(paths: pa.Array, is_meant: Meant) -> list[str]:
    """Return those of many paths whose folder `is_meant`, which is asked once for each."""
    folders = pc.replace_substring_regex(paths, "/[^/]*$", "")
    meant = [folder for folder in folders.unique().to_pylist() if is_meant(folder)]
    found: list[str] = paths.filter(pc.is_in(folders, pa.array(meant, paths.type))).to_pylist()
    return found


@query
def outside(
    view: IndexView, snapshot_ids: Sequence[int], hashes: NDArray[np.uint64], is_meant: Meant, *, at_most: int
) -> list[str]:
    """Return paths of lists, manifests and entries, of folders `is_meant`, that the given snapshots reach and whose
    location hash is not in `hashes` (sorted, unique); at most `at_most`."""
    state, chosen = view.state, view.chosen(snapshot_ids)
    listed = state.listed_by(chosen)
    ids = {int(each) for each in state.snapshot_ids[chosen]}
    lists = [each.manifest_list for each in view.metadata.snapshots if each.snapshot_id in ids and each.manifest_list]
    absent = ~among(hashes, hash_column(as_texts(lists), view.index.rules))
    open_lists = [lists[row] for row in np.flatnonzero(absent).tolist()]
    manifests = np.flatnonzero(listed)
    open_lists += [state.manifests.path(n) for n in manifests[~among(hashes, state.locations[manifests])].tolist()]
    is_meant = cache(is_meant)
    found = directly_in(as_texts(open_lists), is_meant)
    for segment in range(len(state.segments)):
        members = np.flatnonzero((state.segment_of == segment) & listed)
        if not len(members) or len(found) >= at_most:
            continue
        rows, owners = columns_of(view.index, state, segment)
        mine = np.zeros(state.segments[segment].manifests, np.bool_)
        mine[state.place_of[members]] = True
        open_rows = np.flatnonzero(~among(hashes, rows) & mine[owners])
        if not len(open_rows):
            continue
        wanted = distinct(rows[open_rows])
        holding = members[np.isin(state.place_of[members], distinct(owners[open_rows]))]
        for _, entries in rows_of(view.index, state, holding):
            found += directly_in(_paths_with(entries, wanted, view), is_meant)
            if len(found) >= at_most:
                break
    return list(dict.fromkeys(found))[:at_most]


def entries_of(view: IndexView, snapshot_ids: Collection[int]) -> int:
    """Return the total number of entries in the given snapshots' manifests."""
    manifests = view.state.manifests
    listed = np.flatnonzero(view.state.listed_by(view.chosen(list(snapshot_ids))))
    return int(manifests.existing[listed].sum() + manifests.added[listed].sum())


def not_among_entries(view: IndexView, hashes: NDArray[np.uint64], manifests: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the rows of `hashes` that no entry of these manifests (a mask over them) has. Raises DamagedIndex."""
    if not len(hashes):
        return np.empty(0, np.int64)
    state = view.state
    wanted, inverse = np.unique(hashes, return_inverse=True)

    def in_segment(number: int) -> NDArray[np.bool_]:
        members = np.flatnonzero(state.segment_of == number)
        kept = np.zeros(state.segments[number].manifests, np.bool_)
        kept[state.place_of[members]] = manifests[members]
        if not kept.any():
            return np.zeros(len(wanted), np.bool_)
        return _among_kept(wanted, *columns_of(view.index, state, number), kept)

    found = np.zeros(len(wanted), np.bool_)
    threads = view.index.files.readers(view.index.folder, view.index.settings.threads)
    for part in threaded(in_segment, range(len(state.segments)), threads):
        found |= part
    return np.flatnonzero(~found[inverse])


def _among_kept(
    wanted: NDArray[np.uint64], hashes: NDArray[np.uint64], owners: NDArray[np.uint32], kept: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which of `wanted`, sorted without duplicates, a row of the sorted `hashes` has whose owner is kept."""
    found = np.zeros(len(wanted), np.bool_)
    if len(hashes) < len(wanted):
        # The fewer are looked up among the others.
        listed = hashes[kept[owners]]
        nearest = np.minimum(wanted.searchsorted(listed), len(wanted) - 1)
        found[nearest[wanted[nearest] == listed]] = True
        return found
    rows, places = np.arange(len(wanted)), hashes.searchsorted(wanted)
    while len(rows):
        # Several rows may have one hash: each turn looks at the next of them.
        inside = places < len(hashes)
        rows, places = rows[inside], places[inside]
        same = hashes[places] == wanted[rows]
        rows, places = rows[same], places[same]
        found[rows] |= kept[owners[places]]
        places = places + 1
    return found


def above_entries(view: IndexView, manifests: NDArray[np.bool_], without: set[int]) -> NDArray[np.uint64]:
    """Return the location hashes of these manifests (a mask over them), and of the manifest lists and statistics files
    that the metadata has for snapshots other than `without`."""
    metadata = view.metadata
    paths = [
        snapshot.manifest_list
        for snapshot in metadata.snapshots
        if snapshot.snapshot_id not in without and snapshot.manifest_list is not None
    ]
    paths += [file.path for file in metadata.statistics if file.snapshot_id not in without]
    return np.concatenate([view.state.locations[manifests], hash_column(as_texts(paths), view.index.rules)])


def as_texts(paths: Iterable[str]) -> pa.Array:
    """Return paths of the metadata file as large_string. Unpaired surrogates, which JSON can contain, are kept."""
    encoded = [path.encode("utf-8", "surrogatepass") for path in paths]
    return pa.array(encoded, pa.large_binary()).view(pa.large_string())


def _in_order(view: IndexView, ids: Collection[int]) -> tuple[int, ...]:
    found = set(ids)
    return tuple(snapshot.snapshot_id for snapshot in view.metadata.snapshots if snapshot.snapshot_id in found)


def _paths_with(rows: Rows, wanted: Any, view: IndexView) -> pa.Array:
    return rows.paths.take(pa.array(np.flatnonzero(np.isin(hash_column(rows.paths, view.index.rules), wanted))))


# --- held -------------------------------------------------------------------------------------------------------------
# How much storage any choice of snapshots holds, for many choices at once.

_ROWS_AT_ONCE = 2_000_000
"""Limits memory, however large the table: to about 100 MB, and with paths to 1.6 GB."""


def hash_ranges(rows: int) -> list[tuple[np.uint64, np.uint64]]:
    """Return ranges (first and last hash) that have about `_ROWS_AT_ONCE` each of so many rows."""
    count = max(1, -(-rows // _ROWS_AT_ONCE))
    edges = [2**64 * number // count for number in range(count + 1)]
    return [(np.uint64(low), np.uint64(high - 1)) for low, high in pairwise(edges)]


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
    for hashes, manifests, bytes_ in _by_range(view, statistics, total):
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
    view: IndexView, statistics: _Statistics, total: int
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]]:
    """Yield (hashes, numbers of manifests, sizes) of all rows of listed manifests, range by range. Statistics files
    have the numbers after those of the manifests."""
    state = view.state
    for low, high in hash_ranges(total):
        alone = np.flatnonzero((statistics.hashes >= low) & (statistics.hashes <= high))
        parts = [(statistics.hashes[alone], len(state.manifests) + alone, statistics.sizes[alone])]
        for number, segment in enumerate(state.segments):
            hashes, owners = columns_of(view.index, state, number)
            start, end = int(hashes.searchsorted(low)), int(hashes.searchsorted(high, "right"))
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


# --- written ----------------------------------------------------------------------------------------------------------
# What each snapshot's commit wrote.


@dataclass(frozen=True)
class Written:
    """The manifests that a snapshot added, and its manifest list (0 bytes for v1's inline manifests)."""

    manifests: int
    manifest_bytes: int
    manifest_list_bytes: int


@query
def written_by_snapshot(view: IndexView) -> dict[int, Written]:
    """Return what the commit of each snapshot wrote, by snapshot id. A manifest with an unknown snapshot or length
    counts for none."""
    state = view.state
    added_by, lengths = state.manifests.added_by, state.manifests.lengths
    known = np.isin(added_by, state.snapshot_ids) & (lengths >= 0)
    order = np.argsort(state.snapshot_ids)
    place = order[np.searchsorted(state.snapshot_ids[order], added_by[known])]
    manifests = np.bincount(place, minlength=len(order))
    sizes = np.zeros(len(order), np.int64)
    np.add.at(sizes, place, lengths[known])
    columns = (each.tolist() for each in (state.snapshot_ids, manifests, sizes, state.list_sizes))
    return {snapshot_id: Written(*figures) for snapshot_id, *figures in zip(*columns, strict=True)}
