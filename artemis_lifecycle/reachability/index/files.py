"""The files that snapshots reach, and those that only expired ones reach, with kind and size.

Deletable = reached by an expired snapshot, and by no kept one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from artemis_lifecycle.metadata.manifests import ENTRY_KINDS
from artemis_lifecycle.metadata.types import MANIFEST, MANIFEST_LIST, NAMED_BY_SNAPSHOT
from artemis_lifecycle.reachability.index.lookups import above_entries, as_texts, hash_ranges, not_among_entries
from artemis_lifecycle.reachability.index.segments import Rows
from artemis_lifecycle.reachability.index.state import IndexState
from artemis_lifecycle.reachability.index.view import IndexView, query, rows_of
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.location import ByFolder, hash_column, normalize

DELETABLE = arrow_schema("path string, kind string, size_in_bytes bigint, reason string")
KINDS = (*ENTRY_KINDS, MANIFEST, MANIFEST_LIST, *NAMED_BY_SNAPSHOT.values())

_HASHED_AT_ONCE = 250_000
_LEAST, _MOST = hash_ranges(0)[0]


@dataclass(frozen=True)
class _Named:
    """Files, one row per reference: path (large_string), hash of the location, kind (index into KINDS), size, and the
    position in the history of the last chosen snapshot that reaches it."""

    paths: pa.Array
    hashes: NDArray[np.uint64]
    kinds: NDArray[np.int64]
    sizes: NDArray[np.int64]
    last: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.hashes)

    def only(self, rows: NDArray[np.int64]) -> _Named:
        return _Named(self.paths.take(pa.array(rows)), *(getattr(self, name)[rows] for name in _NUMBERS))

    def between(self, low: np.uint64, high: np.uint64) -> _Named:
        """Return the rows whose hash is between these, both included."""
        inside = (self.hashes >= low) & (self.hashes <= high)
        return self if inside.all() else self.only(np.flatnonzero(inside))

    def path(self, row: int) -> str:
        spelled: bytes = self.paths[row].as_buffer().to_pybytes()
        return spelled.decode("utf-8", "surrogatepass")


_NUMBERS = tuple(field.name for field in fields(_Named) if field.name != "paths")


def deletable(view: IndexView, expired_ids: Sequence[int]) -> pa.Table:
    """Return files that an expired snapshot reaches and no other snapshot of the metadata does, one row per location.

    Columns: path, kind, size_in_bytes, reason.
    """
    return pa.concat_tables(deletable_parts(view, expired_ids))


def deletable_parts(view: IndexView, expired_ids: Sequence[int]) -> Iterator[pa.Table]:
    """Yield the rows of `deletable` by ranges of their hashes: two million at a time, however many there
    are. The same metadata gives the same parts."""
    expired = view.chosen(expired_ids)
    doomed = view.state.listed_by(expired) & ~view.state.listed_by(~expired)
    manifests = view.state.manifests
    for low, high in hash_ranges(int(manifests.existing[doomed].sum() + manifests.added[doomed].sum())):
        part, view = _deletable(view, expired_ids, low, high)
        yield part


@query
def _deletable(
    view: IndexView, expired_ids: Sequence[int], low: np.uint64, high: np.uint64
) -> tuple[pa.Table, IndexView]:
    """Return those with these hashes, and the view that has them."""
    expired = view.chosen(expired_ids)
    state = view.state
    kept_manifests = state.listed_by(~expired)
    last = state.last_listed(expired, view.order)
    doomed = np.flatnonzero((last >= 0) & ~kept_manifests)
    gone = {int(i) for i in state.snapshot_ids[expired]}
    above = _together([_manifests(view, doomed, last), _lists(view, expired), _statistics(view, gone)])
    named = _together([*_entries(view, doomed, last, low, high), above.between(low, high)])
    # One location may be referenced as several kinds (a Puffin file with statistics and deletion vectors), and a
    # manifest under two spellings. If it is kept as one of them, it is kept.
    held = above_entries(view, kept_manifests, gone)
    rows = not_among_entries(view, named.hashes, kept_manifests)
    found = _one_per_location(view, named.only(rows[~np.isin(named.hashes[rows], held)]))
    table = _table(found).append_column("reason", _reasons(view, found.last))
    return table.cast(DELETABLE), view


@query
def reachable(view: IndexView, snapshot_ids: Sequence[int], *, entries: bool = True) -> pa.Table:
    """Return everything that the given snapshots reach, one row per location. Columns: path, kind, size_in_bytes,
    location.

    Without `entries`, only what is above them: manifest lists, manifests and statistics files.
    """
    chosen = view.chosen(snapshot_ids)
    last = view.state.last_listed(chosen, view.order)
    manifests = np.flatnonzero(last >= 0)
    parts = [
        *_entries(view, manifests if entries else manifests[:0], last),
        _manifests(view, manifests, last),
        _lists(view, chosen),
        _statistics(view, {int(i) for i in view.state.snapshot_ids[chosen]}),
    ]
    table = _table(_one_per_location(view, _together(parts)))
    rules = view.index.rules
    locations = pa.array([normalize(path, rules) for path in table.column("path").to_pylist()], pa.string())
    return table.append_column("location", locations)


# --- references -----------------------------------------------------------------------------------------------------


def _entries(
    view: IndexView,
    manifests: NDArray[np.int64],
    last: NDArray[np.int64],
    low: np.uint64 = _LEAST,
    high: np.uint64 = _MOST,
) -> Iterator[_Named]:
    """Yield the entries of the given manifests whose hashes are between `low` and `high`."""
    waiting: list[tuple[Rows, int]] = []
    count = 0
    for number, rows in rows_of(view.index, view.state, manifests):
        waiting.append((rows, int(last[number])))
        count += len(rows)
        if count >= _HASHED_AT_ONCE:
            yield _joined(view, waiting).between(low, high)
            waiting, count = [], 0
    if waiting:
        yield _joined(view, waiting).between(low, high)


def _joined(view: IndexView, entries: Sequence[tuple[Rows, int]]) -> _Named:
    paths = pa.concat_arrays([rows.paths for rows, _ in entries])
    return _Named(
        paths,
        hash_column(paths, view.index.rules),
        np.concatenate([rows.kinds for rows, _ in entries]).astype(np.int64),
        np.concatenate([rows.sizes for rows, _ in entries]),
        np.repeat([last for _, last in entries], [len(rows) for rows, _ in entries]),
    )


def _manifests(view: IndexView, numbers: NDArray[np.int64], last: NDArray[np.int64]) -> _Named:
    chosen = view.state.manifests.take(numbers)
    return _Named(
        chosen.paths,
        view.state.locations[numbers],
        np.full(len(numbers), KINDS.index(MANIFEST), np.int64),
        np.maximum(chosen.lengths, 0),
        last[numbers],
    )


def _lists(view: IndexView, chosen: NDArray[np.bool_]) -> _Named:
    """Return the manifest lists of the chosen snapshots."""
    sizes = dict(zip(view.order[chosen].tolist(), view.state.list_sizes[chosen].tolist(), strict=True))
    paths = {
        place: snapshot.manifest_list
        for place, snapshot in enumerate(view.metadata.snapshots)
        if place in sizes and snapshot.manifest_list is not None
    }
    texts = as_texts(paths.values())
    return _Named(
        texts,
        hash_column(texts, view.index.rules),
        np.full(len(paths), KINDS.index(MANIFEST_LIST), np.int64),
        np.array([sizes[place] for place in paths], np.int64),
        np.array(list(paths), np.int64),
    )


def _statistics(view: IndexView, chosen: set[int]) -> _Named:
    """Return the statistics files registered for the chosen snapshots."""
    place = {snapshot.snapshot_id: at for at, snapshot in enumerate(view.metadata.snapshots)}
    mine = [file for file in view.metadata.statistics if file.snapshot_id in chosen]
    texts = as_texts(file.path for file in mine)
    return _Named(
        texts,
        hash_column(texts, view.index.rules),
        np.array([KINDS.index(file.kind) for file in mine], np.int64),
        np.array([file.size_in_bytes for file in mine], np.int64),
        np.array([place[file.snapshot_id] for file in mine], np.int64),
    )


# --- one row per location -------------------------------------------------------------------------------------------


def _one_per_location(view: IndexView, every: _Named) -> _Named:
    """Merge rows for the same file: the least path and kind, and the largest size and last position.

    Two locations with one hash are two files: paths decide, in the rare case that they differ.
    """
    order = np.argsort(every.hashes, kind="stable")
    hashes = every.hashes[order]
    leads = np.ones(len(order), np.bool_)
    leads[1:] = hashes[1:] != hashes[:-1]
    if leads.all():
        return every
    first = np.maximum.accumulate(np.where(leads, np.arange(len(order)), 0))
    again = np.flatnonzero(~leads)
    one, other = (every.paths.take(pa.array(order[rows])) for rows in (again, first[again]))
    differs = np.asarray(pc.not_equal(one, other))
    group = np.cumsum(leads) - 1
    group, paths = _respelled(view, every, order, group, np.unique(group[again[differs]]))
    count = int(group.max()) + 1
    starts = np.full(count, len(order), np.int64)
    np.minimum.at(starts, group, np.arange(len(order)))
    kinds = np.full(count, len(KINDS), np.int64)
    np.minimum.at(kinds, group, every.kinds[order])
    sizes, last = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    np.maximum.at(sizes, group, every.sizes[order])
    np.maximum.at(last, group, every.last[order])
    rows = order[starts]
    for index, row in paths.items():
        rows[index] = row
    return replace(every.only(rows), kinds=kinds, sizes=sizes, last=last)


def _respelled(
    view: IndexView, every: _Named, order: NDArray[np.int64], group: NDArray[np.int64], spelled: NDArray[np.int64]
) -> tuple[NDArray[np.int64], dict[int, int]]:
    """Split groups of equal hashes whose paths differ, by location. Return the groups, and the row of the least path of
    each."""
    settled, paths = group.copy(), {}
    following = int(group.max()) + 1
    for number in spelled.tolist():
        by_location: dict[str, list[int]] = {}
        for index in np.flatnonzero(group == number).tolist():
            by_location.setdefault(normalize(every.path(int(order[index])), view.index.rules), []).append(index)
        for place, indexes in enumerate(by_location.values()):
            target = number if place == 0 else following
            following += place > 0
            settled[indexes] = target
            paths[target] = min((every.path(int(order[index])), int(order[index])) for index in indexes)[1]
    return settled, paths


def _together(parts: Sequence[_Named]) -> _Named:
    return _Named(
        pa.concat_arrays([part.paths for part in parts]),
        *(np.concatenate([getattr(part, name) for part in parts]) for name in _NUMBERS),
    )


def _table(found: _Named) -> pa.Table:
    kinds = pa.DictionaryArray.from_arrays(pa.array(found.kinds.astype(np.int8)), pa.array(KINDS))
    return pa.table(
        {"path": found.paths.cast(pa.string()), "kind": kinds.dictionary_decode(), "size_in_bytes": found.sizes}
    )


def _reasons(view: IndexView, last: NDArray[np.int64]) -> pa.Array:
    places, inverse = np.unique(last, return_inverse=True)
    texts = [
        f"last reached by expired snapshot {view.metadata.snapshots[place].snapshot_id}; by no kept one"
        for place in places.tolist()
    ]
    indices = pa.array(inverse.astype(np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string())).dictionary_decode()


# --- folders ----------------------------------------------------------------------------------------------------------
# The folders of the files that snapshots reach.


@query
def reached_folders(view: IndexView, without: Collection[str] = ()) -> tuple[list[set[str]], tuple[str, ...]]:
    """Return the folders of everything that any snapshot reaches, in the metadata's spelling, in parts that may
    repeat a folder; and names of what was read of the index's segments. Omits what is in `without`, which was read
    before."""
    names = [_names(view.state, number) for number in range(len(view.state.segments))]
    read = [next((name for name in each if name in without), each[-1]) for each in names]
    return list(_parts(view, without, names)), tuple(read)


def _names(state: IndexState, number: int) -> tuple[str, ...]:
    """Return the segment's name, which stands for all of its manifests, and a name for those of them that the view has
    if it lacks some, as the view of an older metadata file does."""
    segment, places = state.segments[number], np.sort(state.place_of[state.segment_of == number])
    if len(places) == segment.manifests:
        return (segment.name,)
    return segment.name, f"{segment.name}:{xxhash.xxh3_64_hexdigest(places.astype('<u8').tobytes())}"


def _parts(view: IndexView, without: Collection[str], names: Sequence[tuple[str, ...]]) -> Iterator[set[str]]:
    state = view.state
    paths = [snapshot.manifest_list for snapshot in view.metadata.snapshots if snapshot.manifest_list is not None]
    paths += [file.path for file in view.metadata.statistics]
    yield {path.rpartition("/")[0] for path in paths}
    yield _folders(state.manifests.paths)
    for number, each in enumerate(names):
        if not set(each).intersection(without):
            yield _of_segment(view, number, each)


# A segment never changes and has a unique name, so a process reads it only once.
_KEPT, _LARGEST = 4_096, 10_000
_known: dict[tuple[str, str], set[str]] = {}


def _of_segment(view: IndexView, number: int, names: tuple[str, ...]) -> set[str]:
    state = view.state
    key = view.index.folder, names[-1]
    known = next((_known[view.index.folder, name] for name in names if (view.index.folder, name) in _known), None)
    if known is None:
        known = set()
        for _, rows in rows_of(view.index, state, np.flatnonzero(state.segment_of == number)):
            known |= _folders(rows.paths)
        if len(known) <= _LARGEST:
            if len(_known) >= _KEPT:
                _known.clear()
            _known[key] = known
    return known


def _folders(paths: pa.Array) -> set[str]:
    # Paths come in runs with the same folder, so the first path of each run is sufficient.
    firsts = paths.take(pa.array(ByFolder.of(paths).starts))
    return {path.rpartition("/")[0] for path in firsts.to_pylist()}
