"""The manifest index of a table: what each manifest holds and which snapshots list it, read from the metadata once.
Belongs here: opening, bringing up to date, storing and throwing away. Does not belong: what is deletable (`settle.py`).

The index is a cache. It is keyed by table-uuid, holds nothing that the metadata does not say, and can be deleted at any
time. What of it is believed has its checksum and belongs to this table, this hash and these rules; anything else is
read again. Metadata that the index knows is not opened again: manifests and lists never change, and are known by path
and length. `docs/decisions/0008-manifest-index.md` has the whole reasoning.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from artemis_lifecycle import escaping
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata
from artemis_lifecycle.reachability.index.cache import cached
from artemis_lifecycle.reachability.index.files import DamagedIndex, Section, checked, encode, read_whole
from artemis_lifecycle.reachability.index.presence import known_files, require_files
from artemis_lifecycle.reachability.index.reading import (
    Blocks,
    Rows,
    Segment,
    read_block,
    read_lists,
    write_segments,
)
from artemis_lifecycle.reachability.index.state import UNREAD, IndexState, list_key
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.location_hash import HASH_NAME
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from artemis_lifecycle.config.models import LifecycleConfig
    from artemis_lifecycle.reachability.index.held import Held

FORMAT = 1
"""Raised whenever the layout or the meaning of the index's files changes: others are rebuilt."""

_STATE = re.compile(r"state-(\d{12})$")
_KEEP_FOR = timedelta(hours=1)

_log = escaping.logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class IndexSettings:
    """How metadata is read. Up to `lists_here` lists, and manifests of `bytes_here` in all, are read in `threads` of
    this process; more goes to Spark's executors, in at most `concurrency` tasks at a time (None: as many as there are
    cores).
    """

    threads: int = 8
    lists_here: int = 1_500
    bytes_here: int = 16 << 20
    concurrency: int | None = None
    cache: str | None = None
    """A Redis (redis://host:port/db) in front of segments on an object store. Nothing in it is believed unchecked."""
    cache_seconds: int = 7 * 86_400

    @classmethod
    def from_config(cls, config: LifecycleConfig, table: str) -> IndexSettings:
        """What lifecycle.yaml says. Nothing stays in the cache for longer than the table's window."""
        window = config.policy(table).retention.window
        given = config.reachability
        return cls(
            threads=given.threads,
            concurrency=given.concurrency,
            cache=given.cache,
            cache_seconds=max(1, min(cls.cache_seconds, int(window.total_seconds()))),
        )


DEFAULT_SETTINGS = IndexSettings()


class ManifestIndex:
    """A table's index under `folder`. Nothing is read before `refresh`."""

    def __init__(
        self,
        stores: Stores,
        files: Stores,
        folder: str,
        table_uuid: str,
        rules: LocationRules,
        settings: IndexSettings,
    ) -> None:
        self.stores = stores
        self.files = files
        self.folder = folder
        self.rules = rules
        self.settings = settings
        self.identity = {
            "format": FORMAT,
            "table_uuid": table_uuid,
            "hash": HASH_NAME,
            "locations": rules.fingerprint(),
        }

    @classmethod
    def open(
        cls,
        stores: Stores,
        root: str,
        table_uuid: str,
        rules: LocationRules,
        settings: IndexSettings = DEFAULT_SETTINGS,
        files: Stores | None = None,
    ) -> ManifestIndex:
        """The index of the table with that uuid below `root`, whether it exists yet or not.

        `stores` reach the table's metadata, `files` the index's own files (None: the same).
        """
        return cls(stores, files or stores, f"{root.rstrip('/')}/{table_uuid}", table_uuid, rules, settings)

    def refresh(self, metadata: TableMetadata, spark: SparkSession | None = None) -> IndexView:
        """Read what `metadata` names and the index does not know, and store it. Without `spark` all is read here.

        Raises UnreadableMetadata or EncryptedTable when any of it is missing, damaged, or not what the level above
        records; nothing is stored then.
        """
        try:
            generation, state = self._stored()
        except DamagedIndex as damage:
            _log.warning("The manifest index in %s is rebuilt: %s", self.folder, damage)
            generation, state = self._newest(), IndexState.empty()
        return self._brought_up(metadata, generation, state, spark)

    def rebuild(self, metadata: TableMetadata, spark: SparkSession | None = None) -> IndexView:
        """As `refresh`, from nothing."""
        return self._brought_up(metadata, self._newest(), IndexState.empty(), spark)

    # --- bringing up to date ----------------------------------------------------------------------------------------

    def _brought_up(
        self, metadata: TableMetadata, generation: int, state: IndexState, spark: SparkSession | None
    ) -> IndexView:
        import numpy as np

        ids = np.array([snapshot.snapshot_id for snapshot in metadata.snapshots], np.int64)
        keys = np.array([list_key(snapshot) for snapshot in metadata.snapshots], np.uint64)
        place = _places(ids, state.snapshot_ids)
        known = (place >= 0) & (keys[place] == state.list_keys) if len(ids) else place >= 0
        changed = not known.all()
        if changed:
            state.keep_lists(known)
        new = [metadata.snapshots[row] for row in np.flatnonzero(~np.isin(ids, state.snapshot_ids)).tolist()]
        lists = len(new)
        if new:
            self._read_new_lists(state, new, spark)
        empty = state.empty_unread()
        require_files(self, {state.manifests.path(n): int(state.manifests.lengths[n]) for n in empty.tolist()})
        state.skip(empty)
        unread = np.flatnonzero(state.segment_of == UNREAD)
        if len(unread):
            for segment, blocks in self._read_new_manifests(state, unread, spark):
                state.add_rows(segment, blocks)
        view = IndexView(
            self,
            metadata,
            state,
            _places(ids, state.snapshot_ids),
            lists_read=lists,
            manifests_read=len(unread),
            spark=spark,
        )
        if not view.in_order():
            # The metadata tells its snapshots in another order than it did: lanes would not rise any more.
            return self.rebuild(metadata, spark)
        # An older metadata file (a plan's base, say) is looked at, and what newer ones said is not forgotten for it.
        if (changed or lists or len(unread)) and metadata.last_updated_ms >= state.as_of_ms:
            state.as_of_ms = metadata.last_updated_ms
            self._store(state, generation + 1)
        return view

    def _read_new_lists(self, state: IndexState, new: Sequence[Snapshot], spark: SparkSession | None) -> None:
        settings = self.settings
        if spark is None or len(new) <= settings.lists_here:
            usual = float(state.list_sizes.mean()) if len(state.list_sizes) else None
            threads = self.stores.readers(new[0].manifest_list or self.folder, settings.threads, usual)
            chunks = _chunks(new, min(-(-len(new) // (threads * 2)), 256))
            read = threaded(lambda chunk: read_lists(self.stores, chunk), chunks, threads)
        else:
            from artemis_lifecycle.reachability.index.on_spark import read_lists_there

            chunks = _chunks(new, 500)
            read = read_lists_there(spark, self, chunks)
        state.add_lists(zip(chunks, read, strict=True), self.rules)

    def _read_new_manifests(
        self, state: IndexState, unread: NDArray[np.int64], spark: SparkSession | None
    ) -> Iterator[tuple[Segment, Blocks]]:
        import numpy as np

        entries = [(number, state.manifests.entry(number)) for number in unread.tolist()]
        lengths = np.maximum(state.manifests.lengths[unread], 0)
        if spark is None or int(lengths.sum()) <= self.settings.bytes_here:
            threads = self.stores.readers(entries[0][1].manifest_path, self.settings.threads, float(lengths.mean()))
            yield from write_segments(self, entries, threads)
            return
        from artemis_lifecycle.reachability.index.on_spark import write_segments_there

        yield from write_segments_there(spark, self, entries, lengths)

    # --- files ------------------------------------------------------------------------------------------------------

    def _states(self) -> list[tuple[int, str]]:
        with contextlib.suppress(StorageError):
            found = [(_STATE.search(file.path), file.path) for file in self.files.list(self.folder)]
            return sorted((int(match[1]), path) for match, path in found if match is not None)
        return []

    def _newest(self) -> int:
        states = self._states()
        return states[-1][0] if states else 0

    def _stored(self) -> tuple[int, IndexState]:
        states = self._states()
        if not states:
            return 0, IndexState.empty()
        generation, path = states[-1]
        try:
            return generation, IndexState.of_arrays(read_whole(self.files, path, self.identity))
        except DamagedIndex:
            newest = self._newest()
            if newest == generation:
                raise
            # Swept away by another run, which has stored a newer one: no reason to read the whole table again.
            path = f"{self.folder}/state-{newest:012d}"
            return newest, IndexState.of_arrays(read_whole(self.files, path, self.identity))

    def _store(self, state: IndexState, generation: int) -> None:
        data, _ = encode(self.identity, state.arrays())
        try:
            self.files.write(f"{self.folder}/state-{generation:012d}", data)
            self._sweep(state, generation)
        except StorageError as error:
            # Another run was faster, or the store refuses: what was read is good all the same, only not kept.
            _log.info("The manifest index in %s was not stored: %s", self.folder, error.what)

    def _sweep(self, state: IndexState, generation: int) -> None:
        """Take away states before the last one, and segments that no state names, once no reader can be at them."""
        named = {segment.name for segment in state.segments}
        earliest = datetime.now(UTC) - _KEEP_FOR
        gone = []
        for file in self.files.list(self.folder):
            name = file.path.rsplit("/", 1)[-1]
            match = _STATE.search(name)
            stale = int(match[1]) < generation - 1 if match else name.startswith("segment-") and name not in named
            if stale and (match is not None or file.last_modified is None or file.last_modified < earliest):
                gone.append(file.path)
        self.files.delete(gone)

    def compact(self, metadata: TableMetadata, spark: SparkSession | None = None) -> int:
        """Join small segments, and rewrite those whose manifests are mostly gone; returns how many went.

        Not on any plan's path: run it when there is time. The metadata is not read for it.
        """
        from artemis_lifecycle.reachability.index.compaction import compacted

        view = self.refresh(metadata, spark)
        try:
            gone = compacted(self, view.state)
        except DamagedIndex as damage:
            _log.warning("The manifest index in %s is rebuilt: %s", self.folder, damage)
            self.rebuild(metadata, spark)
            return 0
        if gone:
            self._store(view.state, self._newest() + 1)
        return gone

    # --- rows -------------------------------------------------------------------------------------------------------

    def shared_by(self, tasks: int) -> ManifestIndex:
        """The index for each of so many tasks that read at once."""
        shared = copy(self)
        shared.stores, shared.files = self.stores.shared_by(tasks), self.files.shared_by(tasks)
        return shared

    def read_segment(self, segment: Segment, offset: int, length: int) -> bytes:
        """Bytes of a segment's file, from the cache where they are there. Raises DamagedIndex; check what comes."""
        path = self.segment_path(segment)
        if not length:
            return b""
        try:
            if self.settings.cache is None:
                return self.files.read_range(path, offset, length)
            return cached(
                self.settings.cache,
                f"artemis:{path}:{offset}:{length}",
                self.settings.cache_seconds,
                lambda: self.files.read_range(path, offset, length),
            )
        except StorageError as error:
            raise DamagedIndex(f"{path}: {error.what}") from error

    def segment_path(self, segment: Segment) -> str:
        return f"{self.folder}/{segment.name}"

    def rows_of(self, state: IndexState, manifests: NDArray[np.int64]) -> Iterator[tuple[int, Rows]]:
        """The entries of the given manifests, one after the other, by number. Raises DamagedIndex."""
        import numpy as np

        held = manifests[state.segment_of[manifests] >= 0]
        order = np.lexsort((state.block_offsets[held], state.segment_of[held]))
        for stretch in _neighbouring(state, held[order]):
            first, last = stretch[0], stretch[-1]
            start = int(state.block_offsets[first])
            length = int(state.block_offsets[last] + state.block_lengths[last]) - start
            data = self.read_segment(state.segments[int(state.segment_of[first])], start, length)
            for number in stretch:
                at = int(state.block_offsets[number]) - start
                block = data[at : at + int(state.block_lengths[number])]
                rows = read_block(block, int(state.block_checksums[number]))
                expected = int(state.manifests.existing[number] + state.manifests.added[number])
                if len(rows) != expected:
                    raise DamagedIndex(f"a block has {len(rows)} rows, and the manifest {expected}")
                yield number, rows

    def columns_of(self, state: IndexState, number: int) -> tuple[Any, Any]:
        """A segment's (hashes, owners): each has its checksum, and each manifest the rows that its list counts.

        Raises DamagedIndex.
        """
        import numpy as np

        from artemis_lifecycle.reachability.index.kernels import count_by_owner

        segment = state.segments[number]
        hashes, owners = (self._column(segment, part) for part in (segment.hashes, segment.owners))
        if not len(hashes) == len(owners) == segment.rows:
            raise DamagedIndex(
                f"{segment.name} has {len(hashes)} hashes and {len(owners)} owners, and {segment.rows} rows"
            )
        held = np.zeros(segment.manifests, np.int64)
        members = np.flatnonzero(state.segment_of == number)
        expected = state.manifests.existing[members] + state.manifests.added[members]
        if not count_by_owner(owners, held) or (held[state.place_of[members]] != expected).any():
            raise DamagedIndex(f"{segment.name} does not have the rows that its manifests have")
        return hashes, owners

    def sizes_of(self, state: IndexState, number: int) -> NDArray[np.int64]:
        """The sizes in bytes of a segment's files, in the order of its hashes. Raises DamagedIndex."""
        segment = state.segments[number]
        sizes: NDArray[np.int64] = self._column(segment, segment.sizes)
        return sizes

    def _column(self, segment: Segment, section: Section) -> Any:
        return checked(self.read_segment(segment, section.offset, section.length), section)


def _places(ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each wanted id stands among `ids`, in which none is twice; -1 for one that is not there."""
    import numpy as np

    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(ids)
    found = order[np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)]
    return np.where(ids[found] == wanted, found, -1)


@dataclass(frozen=True)
class IndexView:
    """The index as of one metadata file. `order[i]` is the place in the history of the state's i-th snapshot.

    `lists_read` and `manifests_read` count what the metadata's own files had to be opened for.
    """

    index: ManifestIndex
    metadata: TableMetadata
    state: IndexState
    order: NDArray[np.int64]
    lists_read: int
    manifests_read: int
    spark: SparkSession | None = None

    def in_order(self) -> bool:
        """Whether the snapshots of each lane rise in the history's order."""
        import numpy as np

        rows = np.argsort(self.state.coordinates(), kind="stable")
        lanes, order = self.state.lanes[rows], self.order[rows]
        return bool(((lanes[1:] != lanes[:-1]) | (order[1:] > order[:-1])).all())

    def chosen(self, snapshot_ids: Sequence[int]) -> NDArray[np.bool_]:
        """A mask over the state's snapshots. Raises UnreadableMetadata for an id that the metadata does not have."""
        import numpy as np

        from artemis_lifecycle.errors import UnreadableMetadata

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

    def deletable(self, expired_ids: Sequence[int]) -> pa.Table:
        """Files that an expired snapshot reaches and no other snapshot of the metadata does, one row per location.

        Columns: path, kind, size_in_bytes, reason.
        """
        from artemis_lifecycle.reachability.index.settle import deletable

        return self._settled(lambda view: deletable(view, expired_ids))

    def reachable(self, snapshot_ids: Sequence[int], *, entries: bool = True) -> pa.Table:
        """All that the given snapshots reach, one row per location. Columns: path, kind, size_in_bytes, location.

        Without `entries` only what stands above them: manifest lists, manifests and statistics files.
        """
        from artemis_lifecycle.reachability.index.settle import reachable

        return self._settled(lambda view: reachable(view, snapshot_ids, entries=entries))

    def reaches(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether any snapshot of the metadata reaches a file of that location hash (`storage.location_hash`): manifest
        lists, manifests, entries, statistics files. Two locations of one hash count as one: that only keeps a file."""
        from artemis_lifecycle.reachability.index.settle import reaches

        return self._settled(lambda view: reaches(view, hashes))

    def reaching(self, hashes: NDArray[np.uint64]) -> tuple[int, ...]:
        """Ids of the snapshots that reach a data or delete file of any of these location hashes, in the order of the
        history. Two locations of one hash count as one."""
        from artemis_lifecycle.reachability.index.settle import reaching

        return self._settled(lambda view: reaching(view, hashes))

    def entries_of(self, snapshot_ids: Collection[int]) -> int:
        """How many entries the given snapshots' manifests have together."""
        import numpy as np

        manifests = self.state.manifests
        listed = np.flatnonzero(self.state.listed_by(self.chosen(list(snapshot_ids))))
        total: int = manifests.existing[listed].sum() + manifests.added[listed].sum()
        return int(total)

    def require_present(self) -> None:
        """Look up that every list and manifest of the metadata is in the store, with the length that is recorded.

        What the index knows is not opened again; before something is deleted on its word, it has to be there still.
        Raises UnreadableMetadata.
        """
        require_files(self.index, known_files(self))

    def outside(self, snapshot_ids: Sequence[int], hashes: NDArray[np.uint64], *, at_most: int) -> list[str]:
        """Paths of lists, manifests and entries that the given snapshots reach and whose location hash is not among
        `hashes` (sorted, each once); of more than `at_most`, so many."""
        from artemis_lifecycle.reachability.index.settle import outside

        return self._settled(lambda view: outside(view, snapshot_ids, hashes, at_most))

    def folders(self, without: Collection[str] = ()) -> tuple[list[set[str]], tuple[str, ...]]:
        """The folders of all that any snapshot reaches, as spelled, in parts; and the index's segments by name. The
        entries of segments named in `without` are left out: they were read before."""
        from artemis_lifecycle.reachability.index.folders import folders

        return self._settled(
            lambda view: (list(folders(view, without)), tuple(segment.name for segment in view.state.segments))
        )

    def held(self, choices: Sequence[Sequence[int]]) -> list[Held]:
        """What each choice of snapshots (ids) reaches: distinct files and their bytes, counted without naming one."""
        from artemis_lifecycle.reachability.index.held import held

        return self._settled(lambda view: held(view, choices))

    def holders(self, location: str) -> tuple[int, ...]:
        """Ids of the snapshots that reach the file at `location`, in the order of the history."""
        from artemis_lifecycle.reachability.index.settle import holders

        return self._settled(lambda view: holders(view, location))

    def _settled(self, question: Callable[[IndexView], T]) -> T:
        try:
            return question(self)
        except DamagedIndex as damage:
            _log.warning("The manifest index in %s is rebuilt: %s", self.index.folder, damage)
            return question(self.index.rebuild(self.metadata, self.spark))


def _chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _neighbouring(state: IndexState, numbers: NDArray[np.int64]) -> Iterator[list[int]]:
    """Runs of manifests whose blocks stand close to each other in one segment: each is one read of bounded size."""
    run: list[int] = []
    start = end = 0
    segment = -1
    for number in numbers.tolist():
        at, length, mine = (
            int(state.block_offsets[number]),
            int(state.block_lengths[number]),
            int(state.segment_of[number]),
        )
        if run and mine == segment and at - end <= 64 << 10 and at + length - start <= 32 << 20:
            run.append(number)
            end = at + length
            continue
        if run:
            yield run
        run, segment, start, end = [number], mine, at, at + length
    if run:
        yield run
