"""Brings a table's manifest index up to date with a metadata file.

Metadata that the index knows is never opened again: manifests and lists never change, and are identified by path and
length.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.types import ManifestListEntry, Snapshot, TableMetadata
from artemis_lifecycle.reachability.index.array_file import DamagedIndex, encode, read_whole
from artemis_lifecycle.reachability.index.index import ManifestIndex
from artemis_lifecycle.reachability.index.manifests import ListChunk, read_lists
from artemis_lifecycle.reachability.index.segments import (
    SEGMENT_ROWS,
    Blocks,
    ReadManifest,
    Segment,
    SegmentWriter,
    checksum_of,
    write_segments,
)
from artemis_lifecycle.reachability.index.state import UNREAD, IndexState, list_key
from artemis_lifecycle.reachability.index.view import IndexView, columns_of, sizes_of
from artemis_lifecycle.spark.runner import Cost, Runner, Spark, fits_in_process
from artemis_lifecycle.storage.location import parent
from artemis_lifecycle.storage.stores import is_local
from artemis_lifecycle.storage.threads import threaded

# --- presence ---------------------------------------------------------------------------------------------------------
# Whether the metadata that the index knows is still in the store.

_ONE_BY_ONE = 256
"""With more files in a folder than this, the folder is listed: one request returns a thousand names."""


def require_files(index: ManifestIndex, files: Mapping[str, int]) -> None:
    """Check files by path and length (-1: not recorded). Raises UnreadableMetadata for the first that differs."""
    stores = index.stores
    by_folder: dict[str, dict[str, int]] = {}
    for path, length in files.items():
        by_folder.setdefault(parent(path), {})[path] = length
    one_by_one: list[tuple[str, int]] = []
    for folder, those in by_folder.items():
        if len(those) <= _ONE_BY_ONE or stores.settings.moved:
            one_by_one += those.items()
            continue
        try:
            # By name, because a store may spell the folder differently than the metadata.
            found = {file.path.rsplit("/", 1)[-1]: file.size_in_bytes for file in stores.children(folder)[1]}
        except StorageError as error:
            raise _unusable(folder, f"cannot be listed: {error.what}") from error
        for path, length in those.items():
            _compare(path, length, found.get(path.rsplit("/", 1)[-1]))

    def look_up(item: tuple[str, int]) -> None:
        path, length = item
        try:
            found = stores.head(path)
        except StorageError as error:
            raise _unusable(path, f"cannot be looked up: {error.what}") from error
        _compare(path, length, None if found is None else found.size_in_bytes)

    if one_by_one:
        with ThreadPoolExecutor(index.settings.threads) as pool:
            list(pool.map(look_up, one_by_one))


def require_present(view: IndexView, *, without: Collection[int] = ()) -> None:
    """Check that every list and manifest of the metadata is in the store with its recorded length; except those that
    only the snapshots `without` list.

    Files that the index knows are not opened again. Before a step relies on the index, they must still exist: every
    step then says the same of a lost file. Those that making the view opened are not looked up once more. Raises
    UnreadableMetadata.
    """
    require_files(view.index, _known_files(view, set(without)))


def _known_files(view: IndexView, without: set[int]) -> dict[str, int]:
    """Return path -> recorded length (-1: not recorded) of the lists and manifests of all snapshots but these, except
    those that the view has seen."""
    state = view.state
    wanted = state.listed_by(~np.isin(state.snapshot_ids, np.array(list(without), np.int64)))
    wanted[view.seen] = False
    known = {state.manifests.path(row): int(state.manifests.lengths[row]) for row in np.flatnonzero(wanted).tolist()}
    sizes = dict(zip(state.snapshot_ids.tolist(), state.list_sizes.tolist(), strict=True))
    without = without.union(state.snapshot_ids[len(state.snapshot_ids) - view.lists_read :].tolist())
    for snapshot in view.metadata.snapshots:
        if snapshot.manifest_list is not None and snapshot.snapshot_id not in without:
            known[snapshot.manifest_list] = sizes[snapshot.snapshot_id]
    return known


def _compare(path: str, length: int, found: int | None) -> None:
    if found is None:
        raise UnreadableMetadata.missing(path)
    if length >= 0 and found != length:
        raise _unusable(path, f"has {found} bytes, but {length} are recorded")


def _unusable(path: str, what: str) -> UnreadableMetadata:
    return UnreadableMetadata.of(f"A metadata file that the table needs {what}", path)


# --- compaction -------------------------------------------------------------------------------------------------------
# Keeps the index's segments few and current.
#
# Every refresh appends a segment. Small ones are merged once there are eight of them, so that a row is rewritten only
# a logarithmic number of times. A segment is rewritten once half of it is dead, so that the index grows with the
# table.

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


_STATE = re.compile(r"state-(\d{12})$")
_KEEP_FOR = timedelta(hours=1)
_LISTS_PER_TASK = 500
_ENTRY_BYTES = 60
"""Minimum size of an entry in a compressed manifest: it limits the expected rows of a task."""

_log = escaping.logger(__name__)
T = TypeVar("T")


def refresh(index: ManifestIndex, metadata: TableMetadata, spark: Spark | None = None) -> IndexView:
    """Read what `metadata` references and the index lacks, and store it. Without `spark`, this process reads
    everything.

    Raises UnreadableMetadata or EncryptedTable if any of it is missing, damaged, or differs from the level above. Then
    nothing is stored.
    """
    try:
        generation, state = _stored(index)
    except DamagedIndex as damage:
        _log.warning("The manifest index in %s is rebuilt: %s", index.folder, damage)
        generation, state = _newest(index), IndexState.empty()
    return _brought_up(index, metadata, generation, state, spark)


def rebuild(index: ManifestIndex, metadata: TableMetadata, spark: Spark | None = None) -> IndexView:
    """`refresh` from scratch."""
    return _brought_up(index, metadata, _newest(index), IndexState.empty(), spark)


def compact(index: ManifestIndex, metadata: TableMetadata, spark: Spark | None = None) -> int:
    """Merge small segments, and rewrite those whose manifests are mostly gone. Return how many were replaced.

    It is not part of any plan: run it when there is time. Compaction does not read the metadata.
    """
    view = refresh(index, metadata, spark)
    try:
        gone = compacted(index, view.state)
    except DamagedIndex as damage:
        _log.warning("The manifest index in %s is rebuilt: %s", index.folder, damage)
        rebuild(index, metadata, spark)
        return 0
    if gone:
        _store(index, view.state, _newest(index) + 1)
    return gone


# --- bringing up to date ----------------------------------------------------------------------------------------


def _brought_up(
    index: ManifestIndex, metadata: TableMetadata, generation: int, state: IndexState, spark: Spark | None
) -> IndexView:
    base = next((snapshot.base for snapshot in metadata.snapshots), None)
    if base is not None and state.base not in (None, base):
        # The table's location has changed, and with it every relative path.
        return rebuild(index, metadata, spark)
    state.base = base or state.base
    ids = np.array([snapshot.snapshot_id for snapshot in metadata.snapshots], np.int64)
    keys = np.array([list_key(snapshot) for snapshot in metadata.snapshots], np.uint64)
    place = _places(ids, state.snapshot_ids)
    known = (place >= 0) & (keys[place] == state.list_keys) if len(ids) else place >= 0
    changed = not known.all()
    if changed:
        state.keep_lists(known)
    new = [metadata.snapshots[row] for row in np.flatnonzero(~np.isin(ids, state.snapshot_ids)).tolist()]
    if new:
        _read_new_lists(index, state, new, spark)
    empty = state.empty_unread()
    require_files(index, {state.manifests.path(n): int(state.manifests.lengths[n]) for n in empty.tolist()})
    state.skip(empty)
    unread = np.flatnonzero(state.segment_of == UNREAD)
    if len(unread):
        for segment, blocks in _read_new_manifests(index, state, unread, spark):
            state.add_rows(segment, blocks)
    view = IndexView(
        index,
        metadata,
        state,
        _places(ids, state.snapshot_ids),
        lists_read=len(new),
        manifests_read=len(unread),
        seen=np.concatenate([empty, unread]),
        rebuilt=partial(rebuild, index, metadata, spark),
    )
    if not view.in_order():
        # The metadata has its snapshots in another order than before: lanes would no longer be ascending.
        return rebuild(index, metadata, spark)
    # An older metadata file (such as a plan's base) can be viewed without discarding what newer ones added.
    if (changed or new or len(unread)) and metadata.last_updated_ms >= state.as_of_ms:
        state.as_of_ms = metadata.last_updated_ms
        _store(index, state, generation + 1)
    return view


def _read_new_lists(index: ManifestIndex, state: IndexState, new: Sequence[Snapshot], spark: Spark | None) -> None:
    if spark is None or fits_in_process(Cost(files=len(new))):
        usual = float(state.list_sizes.mean()) if len(state.list_sizes) else None
        threads = index.stores.readers(new[0].manifest_list or index.folder, index.settings.threads, usual)
        chunks = _chunks(new, min(-(-len(new) // (threads * 2)), 256))
        read: Iterable[ListChunk] = threaded(lambda chunk: read_lists(index.stores, chunk), chunks, threads)
    else:
        runner, chunks = Runner(spark), _chunks(new, _LISTS_PER_TASK)
        task = partial(_list_task, index.shared_by(min(runner.cores, len(chunks))))
        read = runner.tasks(task, chunks, index.settings.concurrency)
    state.add_lists(zip(chunks, read, strict=True), index.rules)


def _read_new_manifests(
    index: ManifestIndex, state: IndexState, unread: NDArray[np.int64], spark: Spark | None
) -> Iterator[tuple[Segment, Blocks]]:
    entries = [(number, state.entry(number)) for number in unread.tolist()]
    lengths = np.maximum(state.manifests.lengths[unread], 0)
    size = int(lengths.sum())
    if spark is None or fits_in_process(Cost(files=len(entries), size_in_bytes=size)):
        threads = index.stores.readers(entries[0][1].manifest_path, index.settings.threads, float(lengths.mean()))
        yield from write_segments(index, entries, threads)
        return
    # Tasks with about equal bytes.
    runner = Runner(spark)
    count = max(1, min(len(entries), max(runner.cores, -(-size // (SEGMENT_ROWS * _ENTRY_BYTES)))))
    ends = np.searchsorted(np.cumsum(lengths), np.linspace(0, size, count + 1)[1:-1])
    groups = [
        [entries[row] for row in group.tolist()] for group in np.split(np.arange(len(entries)), ends) if len(group)
    ]
    task = partial(_manifest_task, index.shared_by(min(runner.cores, len(groups))))
    for written in runner.tasks(task, groups, index.settings.concurrency):
        yield from written


def _list_task(index: ManifestIndex, snapshots: Sequence[Snapshot]) -> ListChunk:
    """`read_lists` of one chunk of snapshots, in another process."""
    return read_lists(index.stores, snapshots, _threads_of_task(index, snapshots[0].manifest_list))


def _manifest_task(
    index: ManifestIndex, entries: Sequence[tuple[int, ManifestListEntry]]
) -> list[tuple[Segment, Blocks]]:
    """`write_segments` of one group of manifests, in another process."""
    return list(write_segments(index, entries, _threads_of_task(index, entries[0][1].manifest_path)))


def _threads_of_task(index: ManifestIndex, path: str | None) -> int:
    # Threads hide an object store's latency. On a disk, the tasks themselves are the threads.
    return 1 if path is None or is_local(path) else index.settings.threads


# --- files ------------------------------------------------------------------------------------------------------


def _states(index: ManifestIndex) -> list[tuple[int, str]]:
    with contextlib.suppress(StorageError):
        found = [(_STATE.search(file.path), file.path) for file in index.files.list(index.folder)]
        return sorted((int(match[1]), path) for match, path in found if match is not None)
    return []


def _newest(index: ManifestIndex) -> int:
    states = _states(index)
    return states[-1][0] if states else 0


def _stored(index: ManifestIndex) -> tuple[int, IndexState]:
    states = _states(index)
    if not states:
        return 0, IndexState.empty()
    generation, path = states[-1]
    try:
        return generation, IndexState.of_arrays(read_whole(index.files, path, index.identity))
    except DamagedIndex:
        newest = _newest(index)
        if newest == generation:
            raise
        # Another run removed it after storing a newer one: no reason to read the whole table again.
        path = f"{index.folder}/state-{newest:012d}"
        return newest, IndexState.of_arrays(read_whole(index.files, path, index.identity))


def _store(index: ManifestIndex, state: IndexState, generation: int) -> None:
    data, _ = encode(index.identity, state.arrays())
    try:
        index.files.write(f"{index.folder}/state-{generation:012d}", data)
        _sweep(index, state, generation)
    except StorageError as error:
        # Another run was faster, or the store refuses. The data that was read is valid, only not stored.
        _log.info("The manifest index in %s was not stored: %s", index.folder, error.what)


def _sweep(index: ManifestIndex, state: IndexState, generation: int) -> None:
    """Remove states older than the previous one, and segments that no state references, once no reader can be using
    them."""
    named = {segment.name for segment in state.segments}
    earliest = datetime.now(UTC) - _KEEP_FOR
    gone = []
    for file in index.files.list(index.folder):
        name = file.path.rsplit("/", 1)[-1]
        match = _STATE.search(name)
        stale = int(match[1]) < generation - 1 if match else name.startswith("segment-") and name not in named
        if stale and (match is not None or file.last_modified is None or file.last_modified < earliest):
            gone.append(file.path)
    index.files.delete(gone)


def _places(ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each wanted id in `ids`, which has no duplicates; -1 if it is missing."""
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(ids)
    found = order[np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)]
    return np.where(ids[found] == wanted, found, -1)


def _chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
