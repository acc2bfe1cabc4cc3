"""What the index knows about a table: its manifests, and which snapshots list them.

A snapshot's manifests are stored as changes. Snapshots are arranged in lanes, one after another, and a manifest is
present over stretches of a lane. A new snapshot joins the lane whose last snapshot differs least from it (nearly always
its parent's). So the number of stretches depends on what commits change, not on snapshots times manifests. A branch
that diverged gets a separate lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.manifest_lists import NUMBERS, Manifests
from artemis_lifecycle.metadata.types import UNKNOWN_SNAPSHOT, ManifestListEntry, Snapshot
from artemis_lifecycle.reachability.index.array_file import DamagedIndex, Section
from artemis_lifecycle.reachability.index.manifests import ListChunk, joined, merged
from artemis_lifecycle.reachability.index.segments import COLUMNS, Blocks, Segment, large_texts
from artemis_lifecycle.storage.location import LocationRules, distinct, hash_column, text_buffers

OPEN = 2**31 - 1
"""The end of a stretch that extends to its lane's last snapshot."""

UNREAD = -2
_NO_ROWS = -1
_LANES_TRIED = 8


@dataclass
class IndexState:
    """Arrays over manifests (by number), lists (one per snapshot) and stretches; `segments` by position.

    `segment_of[n]` is the segment with manifest n's rows (UNREAD before it is read, -1 if it has none), `place_of[n]`
    its place there. `locations` are the hashes of the manifests' own locations. A stretch means: manifest
    `stretch_manifest` is listed by the snapshots of lane `stretch_lane` from position `stretch_start` up to
    `stretch_end`, exclusive.
    """

    manifests: Manifests
    locations: NDArray[np.uint64]
    segment_of: NDArray[np.int64]
    place_of: NDArray[np.int64]
    block_offsets: NDArray[np.int64]
    block_lengths: NDArray[np.int64]
    block_checksums: NDArray[np.uint64]
    snapshot_ids: NDArray[np.int64]
    list_keys: NDArray[np.uint64]
    list_sizes: NDArray[np.int64]
    lanes: NDArray[np.int32]
    positions: NDArray[np.int32]
    stretch_manifest: NDArray[np.int64]
    stretch_lane: NDArray[np.int32]
    stretch_start: NDArray[np.int32]
    stretch_end: NDArray[np.int32]
    segments: list[Segment] = field(default_factory=list)
    as_of_ms: int = 0
    """`last-updated-ms` of the metadata file to which the state was updated."""
    base: str | None = None
    """What the relative paths of its manifests were resolved against; None if none may have one (version 3)."""

    def entry(self, number: int) -> ManifestListEntry:
        """Return a manifest as `live_files` needs it."""
        return self.manifests.entry(number, self.base)

    @classmethod
    def empty(cls) -> IndexState:
        wide, narrow, hashes = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.uint64)
        return cls(
            Manifests.none(),
            hashes,
            wide,
            wide,
            wide,
            wide,
            hashes,
            wide,
            hashes,
            wide,
            narrow,
            narrow,
            wide,
            narrow,
            narrow,
            narrow,
        )

    # --- growing ----------------------------------------------------------------------------------------------------

    def number(self, found: Manifests, rules: LocationRules) -> NDArray[np.int64]:
        """Return the numbers of these manifests. Unknown ones get new numbers at the end, and stay UNREAD.

        Raises UnreadableMetadata if a list contradicts what was found in a known manifest.
        """
        known = pc.index_in(found.keys(), value_set=self.manifests.keys()).fill_null(-1)
        numbers: NDArray[np.int64] = known.to_numpy().astype(np.int64)
        rows = np.flatnonzero(numbers >= 0)
        numbers[rows[found.contents[rows] != self.manifests.contents[numbers[rows]]]] = -1
        self._require_counts(found, numbers)
        new = np.flatnonzero(numbers < 0)
        numbers[new] = len(self.manifests) + np.arange(len(new))
        count, fresh = len(new), found.take(new)
        self.manifests = joined(self.manifests, fresh)
        self.locations = np.concatenate([self.locations, hash_column(fresh.paths, rules)])
        self.segment_of = np.concatenate([self.segment_of, np.full(count, UNREAD, np.int64)])
        for name in ("place_of", "block_offsets", "block_lengths"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(count, np.int64)]))
        self.block_checksums = np.concatenate([self.block_checksums, np.zeros(count, np.uint64)])
        return numbers

    def _require_counts(self, found: Manifests, numbers: NDArray[np.int64]) -> None:
        rows = np.flatnonzero(numbers >= 0)
        rows = rows[self.segment_of[numbers[rows]] != UNREAD]
        for name in ("existing", "added", "deleted"):
            recorded, held = getattr(found, name)[rows], getattr(self.manifests, name)[numbers[rows]]
            # If a manifest was never opened, a count that its list lacks is still unknown.
            wrong = np.flatnonzero((recorded >= 0) & (held >= 0) & (recorded != held))
            if len(wrong):
                raise UnreadableMetadata(
                    f"The manifest has {held[wrong[0]]} {name} entries, and a manifest list records "
                    f"{recorded[wrong[0]]}",
                    path=found.path(int(rows[wrong[0]])),
                    untouched="the table and all its files",
                    hint="find out which list is damaged; nothing of this table is planned or deleted until they agree",
                )

    def empty_unread(self) -> NDArray[np.int64]:
        """Return unread manifests without live entries according to their lists: deletions of an earlier commit.

        No engine opens them to plan a scan (Iceberg's ManifestGroup), so no supported read reaches a file through them.
        """
        return np.flatnonzero(
            (self.segment_of == UNREAD) & (self.manifests.existing == 0) & (self.manifests.added == 0)
        )

    def skip(self, numbers: NDArray[np.int64]) -> None:
        """Leave these manifests unread: they have no rows."""
        self.segment_of = self.segment_of.copy()
        self.segment_of[numbers] = _NO_ROWS

    def add_rows(self, segment: Segment, blocks: Blocks) -> None:
        """Add a segment that was written for manifests with known numbers."""
        for name in ("segment_of", "place_of", "block_offsets", "block_lengths", "block_checksums"):
            # Arrays from a file are read-only.
            setattr(self, name, getattr(self, name).copy())
        self.segments.append(segment)
        numbers = blocks.numbers
        rows = blocks.counts[:, 0] + blocks.counts[:, 1]
        self.segment_of[numbers] = len(self.segments) - 1
        self.segment_of[numbers[rows == 0]] = _NO_ROWS
        self.place_of[numbers] = np.arange(len(numbers))
        self.block_offsets[numbers] = blocks.offsets
        self.block_lengths[numbers] = blocks.lengths
        self.block_checksums[numbers] = blocks.checksums
        for column, name in enumerate(("existing", "added", "deleted")):
            counts = getattr(self.manifests, name).copy()
            counts[numbers] = blocks.counts[:, column]
            self.manifests = replace(self.manifests, **{name: counts})

    def add_lists(self, found: Iterable[tuple[Sequence[Snapshot], ListChunk]], rules: LocationRules) -> None:
        """Add the lists of new snapshots, in the history's order. Raises as `number` does."""
        parts = list(found)
        chunk = merged([chunk for _, chunk in parts])
        numbers = self.number(chunk.manifests, rules)
        lanes, listed = Lanes(self), numbers[chunk.numbers]
        snapshots = [snapshot for part, _ in parts for snapshot in part]
        for snapshot, start, end, size in zip(
            snapshots, chunk.bounds[:-1].tolist(), chunk.bounds[1:].tolist(), chunk.sizes.tolist(), strict=True
        ):
            lanes.place(distinct(listed[start:end]), snapshot, size)
        lanes.store()

    # --- shrinking --------------------------------------------------------------------------------------------------

    def keep_lists(self, rows: NDArray[np.bool_]) -> None:
        """Remove all other snapshots, and every manifest that no snapshot lists any more."""
        for name in _BY_LIST:
            setattr(self, name, getattr(self, name)[rows])
        alive = self.stretches_with(np.ones(len(self.snapshot_ids), np.bool_))
        for name in _STRETCHES:
            setattr(self, name, getattr(self, name)[alive])
        listed = np.zeros(len(self.manifests), np.bool_)
        listed[self.stretch_manifest] = True
        if listed.all():
            return
        self.stretch_manifest = (np.cumsum(listed) - 1)[self.stretch_manifest]
        numbers = np.flatnonzero(listed)
        self.manifests = self.manifests.take(numbers)
        for name in _BY_MANIFEST:
            setattr(self, name, getattr(self, name)[numbers])

    def drop_segments(self, gone: NDArray[np.bool_]) -> None:
        """Remove the given segments, which no longer have any manifest's rows."""
        renumbered = np.cumsum(~gone) - 1
        held = self.segment_of >= 0
        self.segment_of = np.where(held, renumbered[np.where(held, self.segment_of, 0)], self.segment_of)
        self.segments = [segment for segment, drop in zip(self.segments, gone.tolist(), strict=True) if not drop]

    # --- queries
    # --------------------------------------------------------------------------------------------------------

    def coordinates(self) -> NDArray[np.int64]:
        """Return a number per snapshot that orders the snapshots of one lane, and keeps lanes apart."""
        coordinates: NDArray[np.int64] = (self.lanes.astype(np.int64) << 32) | self.positions
        return coordinates

    def _within(self, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the chosen snapshots' rows, sorted by coordinate; and for each stretch, the first one and the one
        after its last."""
        rows = np.flatnonzero(chosen)
        coordinates = self.coordinates()[rows]
        order = np.argsort(coordinates, kind="stable")
        lane = self.stretch_lane.astype(np.int64) << 32
        first = np.searchsorted(coordinates[order], lane | self.stretch_start)
        behind = np.searchsorted(coordinates[order], lane | self.stretch_end)
        return rows[order], first, behind

    def stretches_with(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return whether each stretch covers any of the chosen snapshots (a mask over `snapshot_ids`)."""
        _, first, behind = self._within(chosen)
        covered: NDArray[np.bool_] = behind > first
        return covered

    def listed_by(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return whether each manifest is listed by any of the chosen snapshots."""
        listed = np.zeros(len(self.manifests), np.bool_)
        listed[self.stretch_manifest[self.stretches_with(chosen)]] = True
        return listed

    def last_listed(self, chosen: NDArray[np.bool_], order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each manifest the highest `order` of the chosen snapshots (one number per snapshot, ascending in a
        lane); -1 if none."""
        rows, first, behind = self._within(chosen)
        covered = behind > first
        last = np.full(len(self.manifests), -1, np.int64)
        np.maximum.at(last, self.stretch_manifest[covered], order[rows[behind[covered] - 1]])
        return last

    def listing(self, manifest: int) -> NDArray[np.bool_]:
        """Return which snapshots list the manifest, as a mask over `snapshot_ids`."""
        mine = self.stretch_manifest == manifest
        found = np.zeros(len(self.snapshot_ids), np.bool_)
        for lane, start, end in zip(
            self.stretch_lane[mine], self.stretch_start[mine], self.stretch_end[mine], strict=True
        ):
            found |= (self.lanes == lane) & (self.positions >= start) & (self.positions < end)
        return found

    def listing_any(self, manifests: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which snapshots list any of the manifests (a mask over them), as a mask over `snapshot_ids`."""
        rows, first, behind = self._within(np.ones(len(self.snapshot_ids), np.bool_))
        mine = manifests[self.stretch_manifest]
        # Each stretch opens at its first snapshot and closes after its last.
        edges = np.zeros(len(rows) + 1, np.int64)
        np.add.at(edges, first[mine], 1)
        np.add.at(edges, behind[mine], -1)
        found = np.zeros(len(self.snapshot_ids), np.bool_)
        found[rows] = np.cumsum(edges[:-1]) > 0
        return found

    def part(self, manifests: NDArray[np.int64]) -> IndexState:
        """Return a state with only these manifests, without snapshots: enough to read their rows."""
        found = IndexState.empty()
        found.manifests = self.manifests.take(manifests)
        for name in _BY_MANIFEST:
            setattr(found, name, getattr(self, name)[manifests])
        found.segments, found.base = self.segments, self.base
        return found

    # --- storing ----------------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Any]:
        """Return the state as named arrays, for a file."""
        found: dict[str, Any] = {name: getattr(self, name) for name in (*_BY_MANIFEST, *_BY_LIST, *_STRETCHES)}
        found |= {f"manifest_{name}": getattr(self.manifests, name) for name in NUMBERS}
        offsets, data = text_buffers(self.manifests.paths)
        found["manifest_offsets"], found["manifest_data"] = offsets - offsets[0], data[offsets[0] : offsets[-1]]
        found["as_of_ms"] = np.array([self.as_of_ms], np.int64)
        if self.base is not None:
            found["base"] = self.base.encode()
        found["segment_names"] = "\n".join(segment.name for segment in self.segments).encode()
        found["segment_numbers"] = np.array(
            [
                [segment.rows, segment.manifests]
                + [value for part in segment.columns for value in (part.offset, part.length)]
                for segment in self.segments
            ],
            np.int64,
        ).reshape(-1)
        found["segment_checksums"] = np.array(
            [part.checksum for segment in self.segments for part in segment.columns], np.uint64
        )
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any]) -> IndexState:
        """Return the state from the result of `arrays`. Raises DamagedIndex if it is inconsistent."""
        try:
            # An older index lacks this column; its manifests were read, and their counts are valid.
            unknown = np.full(len(arrays["manifest_lengths"]), UNKNOWN_SNAPSHOT, np.int64)
            stored = {"manifest_added_by": unknown, **arrays}
            paths = _stored_paths(arrays["manifest_offsets"], arrays["manifest_data"])
            manifests = Manifests(paths, **{name: stored[f"manifest_{name}"] for name in NUMBERS})
            names = arrays["segment_names"].decode().split("\n") if len(arrays["segment_names"]) else []
            numbers = arrays["segment_numbers"].reshape(-1, 2 + 2 * len(COLUMNS)).tolist()
            checksums = arrays["segment_checksums"].reshape(-1, len(COLUMNS)).tolist()
            segments = [
                Segment(
                    name,
                    rows,
                    count,
                    *(
                        Section(dtype, offset, length, checksum)
                        for dtype, offset, length, checksum in zip(
                            COLUMNS, places[::2], places[1::2], sums, strict=True
                        )
                    ),
                )
                for name, (rows, count, *places), sums in zip(names, numbers, checksums, strict=True)
            ]
            state = cls(
                manifests=manifests,
                segments=segments,
                as_of_ms=int(arrays["as_of_ms"][0]),
                base=arrays["base"].decode() if "base" in arrays else None,
                **{name: arrays[name] for name in (*_BY_MANIFEST, *_BY_LIST, *_STRETCHES)},
            )
        except (KeyError, ValueError, IndexError, UnicodeDecodeError) as error:
            raise DamagedIndex(f"the state is inconsistent: {error!r}") from error
        sound = (
            len({len(paths), *(len(getattr(manifests, name)) for name in NUMBERS)}) == 1
            and all(len(getattr(state, name)) == len(paths) for name in _BY_MANIFEST)
            and len({len(getattr(state, name)) for name in _BY_LIST}) == 1
            and len({len(getattr(state, name)) for name in _STRETCHES}) == 1
            and (state.segment_of < len(segments)).all()
            and (state.segment_of != UNREAD).all()
        )
        if not sound:
            raise DamagedIndex("the state is inconsistent")
        return state


def _stored_paths(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> pa.Array:
    """Raises ValueError if they are not consecutive texts."""
    if not len(offsets) or int(offsets[-1]) != len(data):
        raise ValueError("the paths of manifests have the wrong length")
    paths = large_texts(offsets, pa.py_buffer(data))
    paths.validate(full=True)
    return paths


_BY_MANIFEST = ("locations", "segment_of", "place_of", "block_offsets", "block_lengths", "block_checksums")
_BY_LIST = ("snapshot_ids", "list_keys", "list_sizes", "lanes", "positions")
_STRETCHES = ("stretch_manifest", "stretch_lane", "stretch_start", "stretch_end")


def list_key(snapshot: Snapshot) -> int:
    """Identifies a snapshot's manifests: the list's path, or v1's inline manifests."""
    named = snapshot.manifest_list
    if named is None:
        named = "\0".join(("", *snapshot.manifests))
    key: int = xxhash.xxh3_64_intdigest(named.encode("utf-8", "surrogatepass"))
    return key


class Lanes:
    """The lanes' last snapshots, while new ones are placed."""

    def __init__(self, state: IndexState) -> None:
        self._state = state
        self._next: dict[int, int] = {}
        for name, shift in (("positions", 1), ("stretch_start", 1), ("stretch_end", 1)):
            lanes = state.lanes if name == "positions" else state.stretch_lane
            values = getattr(state, name)
            for lane in np.unique(lanes).tolist():
                ends = values[(lanes == lane) & (values != OPEN)]
                if len(ends):
                    self._next[lane] = max(self._next.get(lane, 0), int(ends.max()) + shift)
        self._tails: dict[int, NDArray[np.int64]] = {}
        self._open: dict[int, dict[int, int]] = {}
        is_open = state.stretch_end == OPEN
        for lane in self._next:
            mine = np.flatnonzero(is_open & (state.stretch_lane == lane))
            self._tails[lane] = np.sort(state.stretch_manifest[mine])
            self._open[lane] = dict(zip(state.stretch_manifest[mine].tolist(), mine.tolist(), strict=True))
        rows = np.argsort(state.coordinates(), kind="stable")
        lanes = state.lanes[rows]
        last = rows[np.flatnonzero(np.append(lanes[1:] != lanes[:-1], True))] if len(rows) else rows
        self._last = {
            lane: (position, snapshot_id)
            for lane, position, snapshot_id in zip(
                state.lanes[last].tolist(),
                state.positions[last].tolist(),
                state.snapshot_ids[last].tolist(),
                strict=True,
            )
        }
        self._recent = sorted(self._last, key=lambda lane: self._last[lane][0])
        self._ends = state.stretch_end.copy()
        self._new: list[list[int]] = []
        self._placed: list[tuple[int, int, int, int, int]] = []

    def place(self, manifests: NDArray[np.int64], snapshot: Snapshot, list_size: int) -> None:
        """Assign a lane and a position to a snapshot that lists `manifests` (sorted, no duplicates)."""
        best: tuple[int, int, Any, Any] | None = None
        for lane in self._candidates(snapshot.parent_snapshot_id):
            added, removed = _without(manifests, self._tails[lane]), _without(self._tails[lane], manifests)
            cost = len(added) + len(removed)
            if best is None or cost < best[0]:
                best = cost, lane, added, removed
            if cost <= len(manifests) // 4 + 4:
                break
        if best is None or best[0] > len(manifests):
            lane = max(self._next, default=-1) + 1
            added, removed = manifests, manifests[:0]
            self._open[lane], self._next[lane] = {}, 0
        else:
            _, lane, added, removed = best
        position = self._next[lane]
        opened = self._open[lane]
        old = len(self._ends)
        for manifest in removed.tolist():
            stretch = opened.pop(manifest)
            if stretch < old:
                self._ends[stretch] = position
            else:
                self._new[stretch - old][3] = position
        for manifest in added.tolist():
            opened[manifest] = old + len(self._new)
            self._new.append([manifest, lane, position, OPEN])
        self._tails[lane] = manifests
        self._next[lane] = position + 1
        self._last[lane] = position, snapshot.snapshot_id
        if not self._recent or self._recent[-1] != lane:
            self._recent = [other for other in self._recent if other != lane] + [lane]
        self._placed.append((snapshot.snapshot_id, list_key(snapshot), list_size, lane, position))

    def _candidates(self, parent: int | None) -> Iterator[int]:
        tried = 0
        first = next((lane for lane in reversed(self._recent) if self._last[lane][1] == parent), None)
        if first is not None:
            yield first
        for lane in reversed(self._recent):
            if lane != first:
                yield lane
                tried += 1
                if tried == _LANES_TRIED:
                    return

    def store(self) -> None:
        state = self._state
        ids, keys, sizes, lanes, positions = zip(*self._placed, strict=True) if self._placed else ((),) * 5
        state.snapshot_ids = np.concatenate([state.snapshot_ids, np.array(ids, np.int64)])
        state.list_keys = np.concatenate([state.list_keys, np.array(keys, np.uint64)])
        state.list_sizes = np.concatenate([state.list_sizes, np.array(sizes, np.int64)])
        state.lanes = np.concatenate([state.lanes, np.array(lanes, np.int32)])
        state.positions = np.concatenate([state.positions, np.array(positions, np.int32)])
        new = np.array(self._new, np.int64).reshape(-1, 4)
        state.stretch_end = np.concatenate([self._ends, new[:, 3].astype(np.int32)])
        state.stretch_manifest = np.concatenate([state.stretch_manifest, new[:, 0]])
        state.stretch_lane = np.concatenate([state.stretch_lane, new[:, 1].astype(np.int32)])
        state.stretch_start = np.concatenate([state.stretch_start, new[:, 2].astype(np.int32)])


def _without(these: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of `these` that are not among `others`, which are sorted."""
    if not len(others):
        return these
    places = others.searchsorted(these)
    places[places == len(others)] = 0
    missing: NDArray[np.int64] = these[others[places] != these]
    return missing
