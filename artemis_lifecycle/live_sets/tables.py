"""A catalog with references, as protection sees catalogs: a name and one metadata file for each table.

The tables are those of a live-contents set, and whatever references show since: before each answer the heads of all
references are read again. New commits make more live. A reference that was reassigned or deleted since the mark makes
nothing dead: what it kept alive stays until the next mark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from threading import RLock
from typing import Protocol

from artemis_lifecycle.catalogs.entry import CatalogEntry
from artemis_lifecycle.catalogs.references import VIEW, Commit, Content, Reference, ReferenceSource
from artemis_lifecycle.errors import NoSuchTable, PlanStateError, UnreadableMetadata
from artemis_lifecycle.live_sets.contents import at_reference
from artemis_lifecycle.live_sets.mark import mark
from artemis_lifecycle.live_sets.policies import Policies
from artemis_lifecycle.live_sets.versions import FilesOfVersions, MergedTable, merged_tables, version_metadata
from artemis_lifecycle.operations.live_sets import LiveContent, LiveSet, LiveVersion, SetReference
from artemis_lifecycle.reachability.reached import Pointer
from artemis_lifecycle.storage.location import parent
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

_READERS = 4


class SetRows(Protocol):
    """The rows of a set, such as `operations.live_sets.LiveSets` has them."""

    def references(self, live_set_id: str) -> Sequence[SetReference]: ...

    def contents(self, live_set_id: str) -> Sequence[LiveContent]: ...

    def versions(self, live_set_id: str, content_ids: Collection[str] | None = None) -> Iterator[LiveVersion]: ...


@dataclass(frozen=True)
class LiveTable:
    """One table: its name, and the file that has what all its live versions have. `locations` are theirs, in the
    metadata's spelling."""

    table: str
    table_uuid: str
    metadata_location: str
    locations: tuple[str, ...]
    previous_metadata_location: str | None = None


class LiveTables:
    """The tables of one set. `prefix` begins their names. `root` is where merged metadata files are stored. Safe for
    several threads.

    Every method may raise what `source` raises, and UnreadableMetadata for a live version whose metadata file is
    missing or damaged: then nothing of the catalog may be deleted.
    """

    def __init__(
        self,
        live_set: LiveSet,
        rows: SetRows,
        source: ReferenceSource,
        stores: Stores,
        root: str,
        *,
        prefix: str,
        policies: Policies,
        read: FilesOfVersions | None = None,
    ) -> None:
        self.live_set = live_set
        self._rows = rows
        self._source = source
        self._stores = stores
        self._folder = f"{root}/live-sets/{live_set.catalog}"
        self._prefix = prefix
        self._policies = policies
        self._read = partial(version_metadata, stores) if read is None else read
        self._heads: dict[str, str] | None = None
        self._tables: dict[str, LiveTable] = {}
        self._by_uuid: dict[str, str] = {}
        self._registered: dict[str, str] = {}
        self._view_folders: set[str] = set()
        self._lock = RLock()

    def tables(self) -> list[str]:
        return sorted(self._current())

    def entry(self, table: str) -> LiveTable:
        """Raises NoSuchTable."""
        found = self._found(table)
        if found is None:
            raise NoSuchTable(
                f"Catalog {self.live_set.catalog} shows no such table on any reference",
                table=table,
                hint=f"list them: artemis live-sets show {self.live_set.live_set_id}",
            )
        return found

    def has(self, table: str) -> bool:
        return self._found(table) is not None

    def pointers(self) -> Mapping[str, Pointer]:
        return dict(self._current())

    def others(self) -> Sequence[CatalogEntry]:
        return ()  # Views count by `view_folders`.

    def live(self) -> tuple[LiveTable, ...]:
        """Return every table, by name."""
        return tuple(table for _, table in sorted(self._current().items()))

    def view_folders(self) -> tuple[str, ...]:
        """Return the folders with the metadata files of views. Nothing in them is deleted."""
        self._current()
        return tuple(sorted(self._view_folders))

    def _current(self) -> dict[str, LiveTable]:
        with self._lock:
            if self._heads is None:
                heads = {each.name: each.head for each in self._rows.references(self.live_set.live_set_id)}
                self._load()
                # Only now: after an error, the next call must not take a part of the catalog for all of it.
                self._heads = heads
            references = self._source.references()
            moved = [each for each in references if self._heads.get(each.name) != each.head]
            if moved:
                self._advance(moved)
                self._heads |= {each.name: each.head for each in moved}
            return self._tables

    def _found(self, table: str) -> LiveTable | None:
        """A table that is registered under several keys has one name among the tables, and is found by each."""
        tables = self._current()
        return tables.get(table) or tables.get(self._by_uuid.get(self._registered.get(table, ""), ""))

    def _load(self) -> None:
        """Merge the versions of the set. Each content is read by itself: only few of them are in memory at a time."""
        self._tables, self._by_uuid = {}, {}
        live_set_id = self.live_set.live_set_id
        contents = self._rows.contents(live_set_id)
        names = {each.content_id: each.table for each in contents}
        self._registered = {each.table: each.table_uuid for each in contents if each.table_uuid is not None}
        # Contents of one table are merged together.
        shared: dict[str, list[str]] = {}
        for each in contents:
            if each.table_uuid is not None:
                shared.setdefault(each.table_uuid, []).append(each.content_id)

        def merged(content_ids: Sequence[str]) -> list[tuple[str, MergedTable]]:
            try:
                found = merged_tables(
                    self._read, self._rows.versions(live_set_id, content_ids), self.live_set.snapshots
                )
            except UnreadableMetadata as error:
                raise UnreadableMetadata(
                    f"A live version cannot be read: {error.what}",
                    table=names[content_ids[0]],
                    path=error.path,
                    untouched="all files of the catalog",
                    hint="restore the file, or remove what shows it from all references; then mark again",
                ) from error
            return [(names[content_id], table) for content_id, table in found.values()]

        for tables in threaded(merged, list(shared.values()), _READERS):
            for name, table in tables:
                self._add(name, table)
        views = [each.content_id for each in contents if each.type == VIEW]
        if views:
            self._view_folders |= {parent(each.metadata_location) for each in self._rows.versions(live_set_id, views)}
        if len(self._rows.contents(live_set_id)) != self.live_set.contents:
            raise PlanStateError(
                f"Live-contents set {live_set_id} was deleted while it was read",
                untouched="all files of the catalog",
                hint=f"mark again: artemis mark {self.live_set.catalog}",
            )

    def _advance(self, moved: Sequence[Reference]) -> None:
        """Add what references show since: the commits after the known head, or, where a reference was created or
        reassigned, those that its policy keeps."""
        assert self._heads is not None
        found = _Found()
        for reference in moved:
            source = _Since(self._source, self._heads.get(reference.name))
            mark(source, self._policies, found, self.live_set.live_set_id, references=[reference], threads=1)
        versions = [each for each in found.versions if each.type != VIEW]
        self._view_folders |= {parent(each.metadata_location) for each in found.versions if each.type == VIEW}
        first = {each.content_id: each for each in reversed(versions)}
        for content_id, table in merged_tables(self._read, versions, self.live_set.snapshots).values():
            version = first[content_id]
            self._add(f"{self._prefix}{at_reference(version.key, version.reference)}", table)

    def _add(self, name: str, table: MergedTable) -> None:
        """Add versions of a table, which may have others already: those stay."""
        known = self._by_uuid.get(table.table_uuid)
        if known is not None:
            before = self._tables[known]
            table.include(version_metadata(self._stores, before.metadata_location))
            table.locations |= dict.fromkeys(before.locations)
            name = known
        elif name in self._tables:
            # Versions with several uuids under one content id: the table was replaced.
            name = f"{name}#{table.table_uuid[:8]}"
        path = table.write(self._stores, self._folder)
        self._by_uuid[table.table_uuid] = name
        self._tables[name] = LiveTable(name, table.table_uuid, path, tuple(table.locations))


class _Found:
    """Keeps the versions that a walk of a few references finds."""

    def __init__(self) -> None:
        self.versions: list[LiveVersion] = []

    def add_references(self, references: Sequence[SetReference]) -> None:
        pass

    def add_versions(self, versions: Sequence[LiveVersion]) -> None:
        self.versions += versions


class _Since:
    """The commits after `known`, if it is among the ancestors; otherwise all."""

    def __init__(self, source: ReferenceSource, known: str | None) -> None:
        self._source = source
        self._known = known

    def references(self) -> Sequence[Reference]:
        return self._source.references()

    def commits(self, head: str) -> Iterator[Commit]:
        return takewhile(lambda commit: commit.hash != self._known, self._source.commits(head))

    def contents_at(self, commit: str) -> Iterator[Content]:
        return self._source.contents_at(commit)
