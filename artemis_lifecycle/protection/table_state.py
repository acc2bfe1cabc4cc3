"""What one table reaches according to its pointer: everything once, through its manifest index; later only what is
new."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle import escaping, format_versions
from artemis_lifecycle.errors import (
    MissingFile,
    NewerFormat,
    NoSuchTable,
    Refused,
    StalePlan,
    UnreadableMetadata,
    require_uuid,
)
from artemis_lifecycle.metadata.lines import is_written_once
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.manifests import live_entries
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import ManifestListEntry, TableMetadata
from artemis_lifecycle.operations.scans import ScanState
from artemis_lifecycle.protection.absence import Absence, is_of_this_drop, saved_metadata
from artemis_lifecycle.protection.context import ColdTables, Deletion, DeletionContext
from artemis_lifecycle.protection.ownership import metadata_locations
from artemis_lifecycle.reachability.files import IndexFiles, ReachedFiles
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.index.files import deletable
from artemis_lifecycle.reachability.index.lookups import reaches
from artemis_lifecycle.reachability.index.refresh import require_present
from artemis_lifecycle.reachability.reached import Pointer
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.storage.local.store import is_text
from artemis_lifecycle.storage.location import LocationRules, among, distinct, hash_column, normalize

REACHABLE = "reachable"
"""A snapshot of the table's current metadata reaches the file. For another table: `reachable from <table>`."""

CURRENT_METADATA = "current_metadata"
"""The file is the table's metadata file, in its metadata log, its version hint or a registered statistics file."""

_FROM = " from "

_log = escaping.logger(__name__)

_MANIFESTS_ON_DRIVER = 200  # With more new manifests than this, everything is checked again.


def reaching_table(reason: str) -> str | None:
    """Return the other table that reaches a file, from the reason for which it is kept."""
    other = reason.removeprefix(f"{REACHABLE}{_FROM}")
    return None if other == reason else other


def metadata_files(metadata: TableMetadata, rules: LocationRules) -> set[str]:
    """Return the locations that a metadata file needs in addition to its snapshots: itself, its log, version hints,
    statistics."""
    paths = [metadata.metadata_location]
    paths += [entry.metadata_file for entry in metadata.metadata_log]
    paths += [file.path for file in metadata.statistics]
    paths += [f"{folder}/version-hint.text" for folder in metadata_locations(metadata, rules)]
    return {normalize(path, rules) for path in paths}


def files_since(context: DeletionContext, metadata: TableMetadata, since_ms: int) -> ReachedFiles:
    """Return what any metadata file reaches that was current at `since_ms` or later, by the metadata log. Raises
    UnreadableMetadata if the log does not go back that far, or if any of it cannot be read."""
    log, stores = metadata.metadata_log, context.stores
    first = max((number for number, entry in enumerate(log) if entry.timestamp_ms < since_ms), default=None)
    before = [read_table_metadata(stores, entry.metadata_file) for entry in log[first or 0 :]]
    if first is None and before and before[0].metadata_log:
        raise UnreadableMetadata.of("The metadata log does not go back far enough", metadata.metadata_location)
    snapshots = {each.snapshot_id: each for each in chain(*(old.snapshots for old in before), metadata.snapshots)}
    whole = replace(metadata, snapshots=tuple(snapshots.values()))
    # A separate index, because it has other snapshots of the same table.
    view = indexed(context.spark, stores, whole, context.rules, f"{context.root}/unarchived")
    return IndexFiles(view)


def present_index(context: DeletionContext, metadata: TableMetadata) -> IndexView:
    """Return the table's index as of `metadata`. Raises UnreadableMetadata if any list or manifest is missing."""
    view = indexed(context.spark, context.stores, metadata, context.rules, context.root, files=context.root_stores)
    # Files that the index knows were not opened again, but a missing manifest must stop a deletion all the same; except
    # in quarantine, from which a purge takes them one by one.
    if not context.stores.settings.moved:
        require_present(view)
    return view


class TableState:
    """What a table reaches. `other_names` returns the hashes of the other names that new files have on this machine."""

    def __init__(
        self, context: DeletionContext, deletion: Deletion, table: str, table_uuid: str, current: Callable[[], Pointer]
    ) -> None:
        self._context = context
        self._deletion = deletion
        self._current = current
        self._seen: set[tuple[int, str | None]] = set()
        self._seen_manifests: set[str] = set()
        self._loaded: set[int] = set()
        self._new: set[str] = set()
        self._needed: set[str] = set()
        self._later: list[tuple[str, NDArray[np.uint64]]] | None = None
        self._files: ReachedFiles | None = None
        self.other_names: Callable[[pa.Array], Sequence[NDArray[np.uint64]]] = lambda locations: ()
        self.table = table
        self.table_uuid = table_uuid
        self.metadata: TableMetadata | None = None

    @property
    def reason(self) -> str:
        own = self.table_uuid == self._deletion.table_uuid and self.table == self._deletion.table
        return REACHABLE if own else f"{REACHABLE}{_FROM}{self.table}"

    def read(self) -> TableMetadata:
        """Read the table's metadata through its current catalog pointer.

        Raises StalePlan if the table is gone or another has its name: that does not mean that it has no files.
        """
        try:
            entry = self._current()
        except NoSuchTable as error:
            raise self._gone(f"The catalog has no table {self.table} any more") from error
        known, now = self.metadata, entry.metadata_location
        if known is not None and known.metadata_location == now and is_written_once(now):
            return known
        try:
            metadata = read_table_metadata(self._context.stores, entry.metadata_location)
        except NewerFormat:
            if self.reason == REACHABLE:
                raise
            metadata = self._context.newer(entry.metadata_location).metadata
        require_uuid(self.table, metadata.table_uuid, self.table_uuid)
        return metadata

    def files(self, metadata: TableMetadata) -> ReachedFiles | None:
        """Return everything that `metadata` reaches; None for a table that reaches nothing.

        Raises UnreadableMetadata.
        """
        if metadata.format_version > format_versions.NEWEST:
            return self._context.newer(metadata.metadata_location)
        if self._files is None or self._files.metadata is not metadata:
            self._files = IndexFiles(present_index(self._context, metadata))
        return self._files

    def reaches(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of these location hashes the table reaches, as of the last read. Raises UnreadableMetadata."""
        assert self.metadata is not None
        files = self.files(self.metadata)
        return np.zeros(len(hashes), np.bool_) if files is None else files.reaches(hashes)

    def walked(self, metadata: TableMetadata) -> None:
        """Record that every snapshot of `metadata` was walked: only others are new from now on."""
        self.metadata = metadata
        self._seen = {(snapshot.snapshot_id, snapshot.manifest_list) for snapshot in metadata.snapshots}
        self._seen_manifests, self._loaded, self._new = set(), set(), set()
        self._needed = metadata_files(metadata, self._context.rules)
        self._later = None

    def refresh(self) -> bool:
        """Read what the pointer added since the last check; return False if that is more than the driver should read.

        Raises UnreadableMetadata if any of it cannot be read: then nothing may be deleted.
        """
        metadata = self.read()
        if metadata is self.metadata:
            return True
        if metadata.format_version > format_versions.NEWEST:
            return False
        unread: dict[str, ManifestListEntry] = {}
        lists: set[str] = set()
        stores, rules = self._context.stores, self._context.rules
        for snapshot in metadata.snapshots:
            if (snapshot.snapshot_id, snapshot.manifest_list) in self._seen:
                continue
            self._load_parent(metadata, snapshot.parent_snapshot_id)
            listed = manifests_of(stores, snapshot)
            if listed.path is not None:
                lists.add(normalize(listed.path, rules))
            for entry in listed.entries:
                location = normalize(entry.manifest_path, rules)
                if location not in self._seen_manifests:
                    unread[location] = entry
            if len(unread) > _MANIFESTS_ON_DRIVER:
                return False
        found = set(unread) | lists
        for entry in unread.values():
            paths = live_entries(stores, entry).column("file_path").to_pylist()
            found.update(normalize(path, rules) for path in paths)
        # The new metadata counts as checked only now, after all of it was read.
        self._new |= found
        self._seen_manifests |= set(unread)
        self._seen |= {(snapshot.snapshot_id, snapshot.manifest_list) for snapshot in metadata.snapshots}
        self._needed |= metadata_files(metadata, rules)
        self._later = None
        self.metadata = metadata
        return True

    @property
    def new(self) -> set[str]:
        """The locations of files that were added after the walk."""
        return self._new

    @property
    def needed(self) -> set[str]:
        """The locations that the metadata needs in addition to its snapshots."""
        return self._needed

    def later(self) -> Sequence[tuple[str, NDArray[np.uint64]]]:
        """Return reasons with the sorted hashes of the files that they keep: files added after the full check, and
        files that the metadata needs."""
        if self._later is None:
            rules = self._context.rules
            reason = CURRENT_METADATA if self.reason == REACHABLE else self.reason
            self._later = [
                (why, hash_texts(found, rules, self.other_names))
                for why, found in ((self.reason, self._new), (reason, self._needed))
            ]
        return self._later

    def _load_parent(self, metadata: TableMetadata, parent: int | None) -> None:
        # A snapshot differs from its parent by few manifests, and the parent's were walked in the full check.
        snapshot = None if parent is None else metadata.snapshot(parent)
        if snapshot is None or snapshot.snapshot_id in self._loaded:
            return
        if (snapshot.snapshot_id, snapshot.manifest_list) not in self._seen:
            return
        self._loaded.add(snapshot.snapshot_id)
        listed = manifests_of(self._context.stores, snapshot)
        self._seen_manifests |= {normalize(entry.manifest_path, self._context.rules) for entry in listed.entries}

    def _gone(self, what: str) -> StalePlan:
        return StalePlan(
            what,
            table=self._deletion.table,
            untouched="all files of the job that were not deleted before",
            hint="find out who changed the catalog; if the table is gone for good, artemis close "
            f"{self._deletion.job_id}",
        )


class DroppedTableState(TableState):
    """A dropped table. It reaches nothing, unless the catalog has it again or a person decided to keep its files."""

    def __init__(self, context: DeletionContext, deletion: Deletion, dropped: Absence) -> None:
        super().__init__(
            context, deletion, f"dropped table {deletion.table_uuid}", deletion.table_uuid, dropped.pointer
        )
        self._dropped = dropped

    def read(self) -> TableMetadata:
        """Return its last known metadata. Raises StalePlan if it is in the catalog, Refused if a person decided to keep
        its files, and UnreadableMetadata if that is unknown."""
        self._dropped.require()
        known = self._context.operations.known_tables.get(
            self._context.catalog_name, self.table_uuid, self._deletion.table
        )
        if known.kept_at is not None:
            raise Refused(
                f"{known.kept_by} decided that the dropped table's files stay: {known.kept_why}",
                table=self._deletion.table,
                untouched="all files that were not deleted before",
                hint=f"artemis keep-dropped {self.table_uuid} --undo, if that is over",
            )
        return self._dropped.metadata

    def files(self, metadata: TableMetadata) -> ReachedFiles | None:
        return None

    def walked(self, metadata: TableMetadata) -> None:
        self.metadata = metadata

    def refresh(self) -> bool:
        self.metadata = self.read()
        return True


class ColdTableState(TableState):
    """The cold tables of a live table, treated as one table, without the snapshots whose files are moved."""

    def __init__(self, context: DeletionContext, deletion: Deletion, cold: ColdTables) -> None:
        super().__init__(context, deletion, context.table, deletion.table_uuid, context.entry)
        self._cold = cold
        self._view: IndexView | None = None
        self._leaving: tuple[IndexView, NDArray[np.uint64]] | None = None

    @property
    def reason(self) -> str:
        return REACHABLE

    def read(self) -> TableMetadata:
        return self._cold.current()

    def files(self, metadata: TableMetadata) -> ReachedFiles:
        return IndexFiles(self._index(metadata))

    def _index(self, metadata: TableMetadata) -> IndexView:
        if self._view is None or self._view.metadata is not metadata:
            self._view = self._cold.index(metadata)
            require_present(self._view)
        return self._view

    def reaches(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        assert self.metadata is not None
        view = self._index(self.metadata)
        reached = reaches(view, hashes)
        if self._deletion.snapshot_ids:
            if self._leaving is None or self._leaving[0] is not view:
                alone = deletable(view, self._deletion.snapshot_ids).column("path").combine_chunks()
                self._leaving = view, distinct(hash_column(alone, view.index.rules))
            reached &= ~among(self._leaving[1], hashes)
        return reached

    def refresh(self) -> bool:
        # Only a handoff changes them, and it needs the lease that the caller here holds.
        return self.read() is self.metadata


def is_purged(context: DeletionContext, metadata: TableMetadata) -> bool:
    """Return True if a dropped table's manifest lists are all gone, or its own deletion has begun since it was dropped,
    and moves nothing into quarantine: nothing could bring it back."""
    root, operations, at = context.root, context.operations, metadata.metadata_location
    lost = [each for each in operations.known_tables.of_uuid(metadata.table_uuid) if each.missing_since]
    mine = [each for each in lost if at in (each.metadata_location, saved_metadata(root, each))] or lost
    moved = tuple(chain(*map(operations.quarantines.of_dropped(), mine)))
    scans = operations.scans.of_table(metadata.table_uuid, (ScanState.DELETING,), kind="dropped")
    if mine and not moved and all(any(is_of_this_drop(root, scan, each) for scan in scans) for each in mine):
        return True
    return has_no_list(context, metadata, moved)


def has_no_list(context: DeletionContext, metadata: TableMetadata, moved: tuple[str, ...] = ()) -> bool:
    """Return True if a table's manifest lists are all gone, also from the folders to which they were `moved`."""
    lists = [each.manifest_list for each in metadata.snapshots if each.manifest_list is not None]
    return bool(lists) and not any(context.stores.with_moved(moved).heads(lists))


class LostNeighborState(TableState):
    """Another table that was dropped: what it reached is kept, until it is purged."""

    def files(self, metadata: TableMetadata) -> ReachedFiles | None:
        try:
            return super().files(metadata)
        except (UnreadableMetadata, MissingFile) as error:
            if not is_purged(self._context, metadata):
                raise
            _log.warning("%s was purged; files in its place are kept: %s", self.table, error.what)
            return None


def hash_texts(
    locations: Iterable[str],
    rules: LocationRules,
    other_names: Callable[[pa.Array], Sequence[NDArray[np.uint64]]] = lambda locations: (),
) -> NDArray[np.uint64]:
    """Return the sorted location hashes of these paths or locations, and of their other names."""
    # What is not text cannot be a job's path either.
    texts = pa.array(sorted(each for each in locations if each.isascii() or is_text(each)), pa.string())
    return distinct(np.concatenate([hash_column(texts, rules), *other_names(texts)]))
