"""What the index answers: which files are deletable, which are reachable, who holds one. Belongs here: the comparison
of sorted hashes and what follows from it. Does not belong: reading metadata, the index's own files.

Deletable = reached by an expired snapshot, and by no kept one. A hash found among the rows of kept manifests proves
"kept": a collision of two locations only keeps a file. Its absence proves "deletable", over segments whose checksums
hold and whose rows are as many as their manifests' entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.metadata.kinds import MANIFEST, MANIFEST_LIST
from artemis_lifecycle.metadata.manifests import ENTRY_KINDS
from artemis_lifecycle.reachability.index.reading import Rows
from artemis_lifecycle.storage.location import normalise
from artemis_lifecycle.storage.location_hash import among, distinct, hash_location, hash_paths
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from artemis_lifecycle.reachability.index.index import IndexView


@dataclass(frozen=True)
class _Named:
    """Files with what is told of them: one row per naming, `hashes` of their locations, `last` the place in the history
    of the last chosen snapshot that reaches them."""

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]
    hashes: NDArray[np.uint64]
    kinds: NDArray[np.int64]
    sizes: NDArray[np.int64]
    last: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.hashes)

    def only(self, rows: NDArray[np.int64]) -> _Named:
        import numpy as np

        from artemis_lifecycle.metadata.avro.scan_kernels import gather

        lengths = np.diff(self.offsets)
        out = np.empty(int(lengths[rows].sum()), np.uint8)
        offsets = np.empty(len(rows) + 1, np.int64)
        gather(self.data, self.offsets[:-1], lengths, rows, out, offsets)
        return _Named(offsets, out, self.hashes[rows], self.kinds[rows], self.sizes[rows], self.last[rows])

    def path(self, row: int) -> str:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes().decode("utf-8", "surrogatepass")


KINDS = (*ENTRY_KINDS, MANIFEST, MANIFEST_LIST, "statistics", "partition_statistics")


def deletable(view: IndexView, expired_ids: Sequence[int]) -> pa.Table:
    """See `IndexView.deletable`. Raises DamagedIndex."""
    import numpy as np
    import pyarrow as pa

    expired = view.chosen(expired_ids)
    state = view.state
    kept_manifests = state.listed_by(~expired)
    last = state.last_listed(expired, view.order)
    doomed = np.flatnonzero((last >= 0) & ~kept_manifests)
    gone = {int(i) for i in state.snapshot_ids[expired]}
    named = _together(
        [_entries(view, doomed, last), _manifests(view, doomed, last), _lists(view, expired), _statistics(view, gone)]
    )
    # One location may be named as several kinds (a Puffin file with statistics beside deletion vectors), and a manifest
    # stand there under two spellings: whoever keeps it as any, keeps it.
    held = np.concatenate([state.locations[kept_manifests], _texts(view, _other_paths(view, gone))[2]])
    rows = _not_kept(view, named.hashes, kept_manifests)
    found = _one_per_location(view, [named.only(rows[~np.isin(named.hashes[rows], held)])])
    reasons = _reasons(view, found.last)
    table = _table(found)
    return table.append_column("reason", reasons).cast(
        pa.schema(
            [("path", pa.string()), ("kind", pa.string()), ("size_in_bytes", pa.int64()), ("reason", pa.string())]
        )
    )


def reachable(view: IndexView, snapshot_ids: Sequence[int], *, entries: bool) -> pa.Table:
    """See `IndexView.reachable`. Raises DamagedIndex."""
    import numpy as np
    import pyarrow as pa

    chosen = view.chosen(snapshot_ids)
    last = view.state.last_listed(chosen, view.order)
    manifests = np.flatnonzero(last >= 0)
    parts = [
        _entries(view, manifests if entries else manifests[:0], last),
        _manifests(view, manifests, last),
        _lists(view, chosen),
        _statistics(view, {int(i) for i in view.state.snapshot_ids[chosen]}),
    ]
    table = _table(_one_per_location(view, parts))
    rules = view.index.rules
    locations = pa.array([normalise(path, rules) for path in table.column("path").to_pylist()], pa.string())
    return table.append_column("location", locations)


def reaches(view: IndexView, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """See `IndexView.reaches`. Raises DamagedIndex."""
    import numpy as np

    everything = view.chosen([snapshot.snapshot_id for snapshot in view.metadata.snapshots])
    listed = view.state.listed_by(everything)
    held = np.concatenate([view.state.locations[listed], _texts(view, _other_paths(view, set()))[2]])
    found = np.ones(len(hashes), np.bool_)
    rows = _not_kept(view, hashes, listed)
    found[rows] = np.isin(hashes[rows], held)
    return found


def outside(view: IndexView, snapshot_ids: Sequence[int], hashes: NDArray[np.uint64], at_most: int) -> list[str]:
    """See `IndexView.outside`. Raises DamagedIndex."""
    import numpy as np

    state, chosen = view.state, view.chosen(snapshot_ids)
    listed = state.listed_by(chosen)
    ids = {int(each) for each in state.snapshot_ids[chosen]}
    lists = [each.manifest_list for each in view.metadata.snapshots if each.snapshot_id in ids and each.manifest_list]
    encoded = [path.encode("utf-8", "surrogatepass") for path in lists]
    absent = ~among(hashes, _texts(view, encoded)[2])
    found = [lists[row] for row in np.flatnonzero(absent).tolist()]
    manifests = np.flatnonzero(listed)
    found += [state.manifests.path(n) for n in manifests[~among(hashes, state.locations[manifests])].tolist()]
    for segment in range(len(state.segments)):
        members = np.flatnonzero((state.segment_of == segment) & listed)
        if not len(members) or len(found) >= at_most:
            continue
        rows, owners = view.index.columns_of(state, segment)
        mine = np.zeros(state.segments[segment].manifests, np.bool_)
        mine[state.place_of[members]] = True
        open_rows = np.flatnonzero(~among(hashes, rows) & mine[owners])
        if not len(open_rows):
            continue
        wanted = distinct(rows[open_rows])
        holding = members[np.isin(state.place_of[members], distinct(owners[open_rows]))]
        for _, entries in view.index.rows_of(state, holding):
            found += _paths_with(entries, wanted, view)
            if len(found) >= at_most:
                break
    return list(dict.fromkeys(found))[:at_most]


def reaching(view: IndexView, hashes: NDArray[np.uint64]) -> tuple[int, ...]:
    """See `IndexView.reaching`. Raises DamagedIndex."""
    import numpy as np

    state = view.state
    wanted = distinct(hashes)
    touched = np.zeros(len(state.manifests), np.bool_)
    for segment in range(len(state.segments)):
        rows, owners = view.index.columns_of(state, segment)
        members = np.flatnonzero(state.segment_of == segment)
        places = distinct(owners[np.isin(rows, wanted)])
        touched[members[np.isin(state.place_of[members], places)]] = True
    ids = set(state.snapshot_ids[state.listing_any(touched)].tolist())
    return tuple(snapshot.snapshot_id for snapshot in view.metadata.snapshots if snapshot.snapshot_id in ids)


def holders(view: IndexView, location: str) -> tuple[int, ...]:
    """See `IndexView.holders`. Raises DamagedIndex."""
    import numpy as np

    state, rules = view.state, view.index.rules
    wanted = np.uint64(hash_location(location))
    listing = np.zeros(len(state.snapshot_ids), np.bool_)
    for number in np.flatnonzero(state.locations == wanted).tolist():
        if normalise(state.manifests.path(number), rules) == location:
            listing |= state.listing(number)
    for segment in range(len(state.segments)):
        hashes, owners = view.index.columns_of(state, segment)
        first, behind = np.searchsorted(hashes, wanted, "left"), np.searchsorted(hashes, wanted, "right")
        places = distinct(owners[first:behind])
        members = np.flatnonzero((state.segment_of == segment) & np.isin(state.place_of, places))
        for number, rows in view.index.rows_of(state, members):
            if any(normalise(path, rules) == location for path in _paths_with(rows, wanted, view)):
                listing |= state.listing(number)
    ids = set(state.snapshot_ids[listing].tolist())
    ids |= {file.snapshot_id for file in view.metadata.statistics if normalise(file.path, rules) == location}
    ids |= {
        snapshot.snapshot_id
        for snapshot in view.metadata.snapshots
        if snapshot.manifest_list is not None and normalise(snapshot.manifest_list, rules) == location
    }
    return tuple(snapshot.snapshot_id for snapshot in view.metadata.snapshots if snapshot.snapshot_id in ids)


def _paths_with(rows: Rows, wanted: Any, view: IndexView) -> list[str]:
    import numpy as np

    hashes = hash_paths(rows.data, rows.offsets[:-1], np.diff(rows.offsets), view.index.rules)
    return [
        rows.data[rows.offsets[row] : rows.offsets[row + 1]].tobytes().decode("utf-8", "surrogatepass")
        for row in np.flatnonzero(np.isin(hashes, wanted)).tolist()
    ]


# --- what there is to tell ------------------------------------------------------------------------------------------


def _entries(view: IndexView, manifests: NDArray[np.int64], last: NDArray[np.int64]) -> _Named:
    """The entries of the given manifests."""
    import numpy as np

    offsets, pieces, kinds, sizes, lasts = [np.zeros(1, np.int64)], [], [], [], []
    total = 0
    for number, rows in view.index.rows_of(view.state, manifests):
        offsets.append(rows.offsets[1:] + total)
        total += int(rows.offsets[-1])
        pieces.append(rows.data)
        kinds.append(rows.kinds)
        sizes.append(rows.sizes)
        lasts.append(np.full(len(rows), last[number], np.int64))
    joined_offsets = np.concatenate(offsets)
    data = np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
    return _Named(
        joined_offsets,
        data,
        hash_paths(data, joined_offsets[:-1], np.diff(joined_offsets), view.index.rules),
        np.concatenate(kinds).astype(np.int64) if kinds else np.empty(0, np.int64),
        np.concatenate(sizes) if sizes else np.empty(0, np.int64),
        np.concatenate(lasts) if lasts else np.empty(0, np.int64),
    )


def _not_kept(view: IndexView, hashes: NDArray[np.uint64], kept_manifests: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Rows whose hash no entry of a kept manifest has."""
    import numpy as np

    from artemis_lifecycle.reachability.index.kernels import mark_kept

    if not len(hashes):
        return np.empty(0, np.int64)
    state = view.state
    wanted, inverse = np.unique(hashes, return_inverse=True)

    def among(number: int) -> NDArray[np.bool_]:
        found = np.zeros(len(wanted), np.bool_)
        members = np.flatnonzero(state.segment_of == number)
        kept = np.zeros(state.segments[number].manifests, np.bool_)
        kept[state.place_of[members]] = kept_manifests[members]
        if kept.any():
            mark_kept(wanted, *view.index.columns_of(state, number), kept, found)
        return found

    found = np.zeros(len(wanted), np.bool_)
    threads = view.index.files.readers(view.index.folder, view.index.settings.threads)
    for part in threaded(among, range(len(state.segments)), threads):
        found |= part
    return np.flatnonzero(~found[inverse])


def _manifests(view: IndexView, numbers: NDArray[np.int64], last: NDArray[np.int64]) -> _Named:
    import numpy as np

    from artemis_lifecycle.reachability.index.reading import taken

    chosen = taken(view.state.manifests, numbers)
    return _Named(
        chosen.offsets,
        chosen.data,
        view.state.locations[numbers],
        np.full(len(numbers), KINDS.index(MANIFEST), np.int64),
        np.maximum(chosen.lengths, 0),
        last[numbers],
    )


def _lists(view: IndexView, chosen: NDArray[np.bool_]) -> _Named:
    """Manifest lists of the chosen snapshots."""
    import numpy as np

    places = view.order[chosen]
    sizes = dict(zip(places.tolist(), view.state.list_sizes[chosen].tolist(), strict=True))
    paths = {
        place: snapshot.manifest_list.encode("utf-8", "surrogatepass")
        for place, snapshot in enumerate(view.metadata.snapshots)
        if place in sizes and snapshot.manifest_list is not None
    }
    return _Named(
        *_texts(view, list(paths.values())),
        np.full(len(paths), KINDS.index(MANIFEST_LIST), np.int64),
        np.array([sizes[place] for place in paths], np.int64),
        np.array(list(paths), np.int64),
    )


def _statistics(view: IndexView, chosen: set[int]) -> _Named:
    """Statistics files registered for the chosen snapshots."""
    import numpy as np

    place = {snapshot.snapshot_id: at for at, snapshot in enumerate(view.metadata.snapshots)}
    mine = [file for file in view.metadata.statistics if file.snapshot_id in chosen]
    return _Named(
        *_texts(view, [file.path.encode("utf-8", "surrogatepass") for file in mine]),
        np.array([KINDS.index(file.kind) for file in mine], np.int64),
        np.array([file.size_in_bytes for file in mine], np.int64),
        np.array([place[file.snapshot_id] for file in mine], np.int64),
    )


def _other_paths(view: IndexView, gone: set[int]) -> list[bytes]:
    """The manifest lists and statistics files that the metadata names for other snapshots than those."""
    metadata = view.metadata
    lists = [
        snapshot.manifest_list
        for snapshot in metadata.snapshots
        if snapshot.snapshot_id not in gone and snapshot.manifest_list is not None
    ]
    statistics = [file.path for file in metadata.statistics if file.snapshot_id not in gone]
    return [path.encode("utf-8", "surrogatepass") for path in (*lists, *statistics)]


def _texts(view: IndexView, paths: list[bytes]) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint64]]:
    import numpy as np

    from artemis_lifecycle.reachability.index.files import texts_to_arrays

    offsets, joined = texts_to_arrays(paths)
    data = np.frombuffer(joined, np.uint8)
    return offsets, data, hash_paths(data, offsets[:-1], np.diff(offsets), view.index.rules)


# --- one row per location -------------------------------------------------------------------------------------------


def _one_per_location(view: IndexView, parts: Sequence[_Named]) -> _Named:
    """All parts together; a file that is named more than once keeps its least path and kind, its largest size and last.

    Two locations of one hash are two files: paths decide, in the rare case that they differ.
    """
    import numpy as np

    from artemis_lifecycle.reachability.index.kernels import equal_slices

    every = _together(parts)
    order = np.argsort(every.hashes, kind="stable")
    hashes = every.hashes[order]
    leads = np.ones(len(order), np.bool_)
    leads[1:] = hashes[1:] != hashes[:-1]
    if leads.all():
        return every
    first = np.maximum.accumulate(np.where(leads, np.arange(len(order)), 0))
    same = np.empty(len(order), np.bool_)
    equal_slices(every.data, every.offsets, order, every.data, every.offsets, order[first], same)
    group = np.cumsum(leads) - 1
    spelled = np.unique(group[~same])
    group, paths = _respelled(view, every, order, group, spelled)
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
    chosen = every.only(rows)
    return _Named(chosen.offsets, chosen.data, chosen.hashes, kinds, sizes, last)


def _respelled(
    view: IndexView, every: _Named, order: NDArray[np.int64], group: NDArray[np.int64], spelled: NDArray[np.int64]
) -> tuple[NDArray[np.int64], dict[int, int]]:
    """Groups of equal hashes whose paths differ: split by location, with the row of the least path of each."""
    import numpy as np

    settled, paths = group.copy(), {}
    following = int(group.max()) + 1
    for number in spelled.tolist():
        by_location: dict[str, list[int]] = {}
        for index in np.flatnonzero(group == number).tolist():
            location = normalise(every.path(int(order[index])), view.index.rules)
            by_location.setdefault(location, []).append(index)
        for place, indexes in enumerate(by_location.values()):
            target = number if place == 0 else following
            following += place > 0
            settled[indexes] = target
            paths[target] = min((every.path(int(order[index])), int(order[index])) for index in indexes)[1]
    return settled, paths


def _together(parts: Sequence[_Named]) -> _Named:
    import numpy as np

    offsets, total = [np.zeros(1, np.int64)], 0
    for part in parts:
        offsets.append(part.offsets[1:] + total)
        total += int(part.offsets[-1])
    return _Named(
        np.concatenate(offsets),
        np.concatenate([part.data for part in parts]),
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("hashes", "kinds", "sizes", "last")),
    )


def _table(found: _Named) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    paths = pa.Array.from_buffers(
        pa.large_string(), len(found), [None, pa.py_buffer(found.offsets), pa.py_buffer(found.data)]
    )
    kinds = pa.DictionaryArray.from_arrays(pa.array(found.kinds.astype(np.int8)), pa.array(KINDS))
    return pa.table(
        {"path": paths.cast(pa.string()), "kind": kinds.dictionary_decode(), "size_in_bytes": pa.array(found.sizes)}
    )


def _reasons(view: IndexView, last: NDArray[np.int64]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    places, inverse = np.unique(last, return_inverse=True)
    texts = [
        f"last reached by expired snapshot {view.metadata.snapshots[place].snapshot_id}; by no kept one"
        for place in places.tolist()
    ]
    indices = pa.array(inverse.astype(np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string())).dictionary_decode()
