"""A catalog with references, as protection sees catalogs: a name and one metadata file for each table.

The tables are those of a live-contents set, and whatever references show since: before each answer the heads of all
references are read again. New commits make more live. A reference that was reassigned or deleted since the mark makes
nothing dead: what it kept alive stays until the next mark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, takewhile
from threading import RLock
from typing import Any

from artemis_lifecycle.catalogs.identifier import CatalogEntry, dotted, parts_of
from artemis_lifecycle.catalogs.references import VIEW, Commit, Content, Reference, ReferenceSource
from artemis_lifecycle.errors import ExistingFile, NoSuchTable, PlanStateError, UnreadableMetadata
from artemis_lifecycle.format_versions import DRAFT
from artemis_lifecycle.live_sets.mark import Policies, mark
from artemis_lifecycle.metadata.table_metadata import metadata_json, parse_table_metadata, refuse_encrypted
from artemis_lifecycle.metadata.types import NAMED_BY_SNAPSHOT
from artemis_lifecycle.metadata.unreadable import read_file
from artemis_lifecycle.operations.live_sets import (
    NO_SNAPSHOT,
    LiveContent,
    LiveSet,
    LiveSets,
    LiveVersion,
    SetReference,
    Snapshots,
)
from artemis_lifecycle.protection.ownership import spelled_locations
from artemis_lifecycle.reachability.reached import Pointer
from artemis_lifecycle.storage.location import parent
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

# --- versions ---------------------------------------------------------------------------------------------------------
# All live versions of one table as one table: a metadata file that has what each of their metadata files has.
#
# Branches of a catalog write to one table from several metadata files. Protection, the manifest index and the orphan
# scan know tables as one metadata file. So what must stay is written as one: the snapshots of every live version, its
# metadata files, statistics and partition specs. No reader of the catalog sees that file. Schemas, specs and sort
# orders of the live versions stay where they are: nothing here changes a table's own metadata.


@dataclass(frozen=True)
class VersionMetadata:
    """One metadata file: as JSON, its table's uuid, and the locations that it gives the table."""

    location: str
    node: Mapping[str, Any]
    table_uuid: str
    locations: tuple[str, ...]


FilesOfVersions = Callable[[str], VersionMetadata]
"""Reads the metadata file of a live version, from which everything else that it needs is found. Raises
UnreadableMetadata for a file that is missing or damaged: it never means "no files"."""


def version_metadata(stores: Stores, metadata_location: str) -> VersionMetadata:
    """Read a metadata file. Raises UnreadableMetadata; EncryptedTable."""
    data = read_file(stores, metadata_location)
    metadata = parse_table_metadata(data, metadata_location, stores.limits)
    refuse_encrypted(metadata)
    node = metadata_json(data, metadata_location, stores.limits)
    return VersionMetadata(metadata_location, node, metadata.table_uuid, spelled_locations(metadata))


@dataclass
class MergedTable:
    """The live versions of one table, so far. Add versions with `add`, and read the result as `data`."""

    table_uuid: str
    snapshots: Snapshots
    locations: dict[str, None] = field(default_factory=dict)
    _base: Mapping[str, Any] = field(default_factory=dict)
    _current: int | None = None
    _snapshots: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    _files: dict[str, dict[str, Mapping[str, Any]]] = field(
        default_factory=lambda: {key: {} for key in NAMED_BY_SNAPSHOT}
    )
    _specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _log: dict[str, int] = field(default_factory=dict)

    def add(self, version: VersionMetadata, snapshot_ids: Iterable[int]) -> None:
        """Add one metadata file, of which references show these snapshots. With `snapshots: all`, all of its snapshots
        stay, and the files of its metadata log; with `referenced`, only those that references show.

        Raises UnreadableMetadata if it lacks a snapshot that a reference shows, or if two versions have different
        snapshots under one id.
        """
        node, shown = version.node, set(snapshot_ids)
        has = {each["snapshot-id"]: each for each in node.get("snapshots") or ()}
        if NO_SNAPSHOT in shown:
            # Nessie's client then reads the current snapshot of the metadata file, if it has one.
            shown = (shown - {NO_SNAPSHOT}) | {each for each in has if each == node.get("current-snapshot-id")}
        if not shown <= has.keys():
            raise _unusable(
                f"A reference shows snapshot {min(shown - has.keys())}, which the metadata file does not have",
                version.location,
            )
        is_all = self.snapshots == "all"
        self._add(version, has if is_all else {each: has[each] for each in shown}, with_log=is_all)
        self._log[version.location] = node["last-updated-ms"]
        if not self._base or _rank(node) > _rank(self._base):
            self._base = {key: value for key, value in node.items() if key not in ("snapshots", "metadata-log")}
            current = node.get("current-snapshot-id")
            if shown and current not in shown:
                # Nessie's client makes the content's snapshot the current one.
                current = min(shown)
            self._current = current if current in self._snapshots else None

    def include(self, merged: VersionMetadata) -> None:
        """Add what an earlier `data` of the table has."""
        has = {each["snapshot-id"]: each for each in merged.node["snapshots"]}
        self._add(merged, has, with_log=True)

    def _add(self, version: VersionMetadata, snapshots: Mapping[int, Mapping[str, Any]], *, with_log: bool) -> None:
        node = version.node
        places = {each.get("location") for each in (node, self._base) if each.get("format-version", 0) >= DRAFT}
        if self._base and len(places) > 1:
            # Paths in their manifests may be relative to either.
            raise _unusable("Live versions of a table of format version 4 have different locations", version.location)
        for snapshot_id, snapshot in snapshots.items():
            known = self._snapshots.setdefault(snapshot_id, snapshot)
            if any(known.get(key) != snapshot.get(key) for key in ("manifest-list", "manifests")):
                raise _unusable(
                    f"Two live versions have different snapshots under the id {snapshot_id}", version.location
                )
        for key in NAMED_BY_SNAPSHOT:
            # Those of dropped snapshots stay too: nothing says which reader still opens them (nessie 9879).
            self._files[key] |= {each["statistics-path"]: each for each in node.get(key) or ()}
        for spec in node.get("partition-specs") or [{"fields": node.get("partition-spec") or []}]:
            self._specs.setdefault(json.dumps(spec.get("fields", []), sort_keys=True), spec)
        if with_log:
            self._log |= {each["metadata-file"]: each["timestamp-ms"] for each in node.get("metadata-log") or ()}
        self.locations |= dict.fromkeys(version.locations)

    def data(self) -> bytes:
        """Return the metadata file. The same versions give the same bytes."""
        base = dict(self._base)
        snapshots = sorted(self._snapshots.values(), key=_order)
        refs = {
            name: ref for name, ref in (base.get("refs") or {}).items() if ref.get("snapshot-id") in self._snapshots
        }
        refs.pop("main", None)
        if self._current is not None:
            refs["main"] = {"snapshot-id": self._current, "type": "branch"}
        log = [each for each in base.get("snapshot-log") or () if each["snapshot-id"] in self._snapshots]
        numbers = [each.get("sequence-number", 0) for each in snapshots]
        # Only names of partition fields are read from specs here, and two branches may have used one id.
        specs = [{**spec, "spec-id": number} for number, (_, spec) in enumerate(sorted(self._specs.items()))]
        # Nessie's client sets it on each table, against Iceberg's own collectors, which see one reference at a time.
        properties = {key: value for key, value in (base.get("properties") or {}).items() if key != "gc.enabled"}
        base |= {
            "snapshots": snapshots,
            "current-snapshot-id": -1 if self._current is None else self._current,
            "refs": refs,
            "snapshot-log": log,
            "metadata-log": [
                {"metadata-file": path, "timestamp-ms": at}
                for path, at in sorted(self._log.items(), key=lambda item: (item[1], item[0]))
            ],
            "last-sequence-number": max([base.get("last-sequence-number", 0), *numbers]),
            "partition-specs": specs,
            "default-spec-id": 0,
            "properties": properties,
            **{key: [files[path] for path in sorted(files)] for key, files in self._files.items()},
        }
        return json.dumps(base, sort_keys=True).encode()

    def write(self, stores: Stores, folder: str) -> str:
        """Store the file below `folder`, and return its path. A file that is there already has the same content."""
        data = self.data()
        path = f"{folder}/{self.table_uuid}/{hashlib.sha256(data).hexdigest()[:32]}.metadata.json"
        with suppress(ExistingFile):
            stores.write(path, data)
        return path


def _unusable(what: str, path: str) -> UnreadableMetadata:
    return UnreadableMetadata(
        what,
        path=path,
        untouched="all files",
        hint="find out who wrote the file; nothing of this catalog is deleted meanwhile",
    )


def _order(snapshot: Mapping[str, Any]) -> tuple[int, int, int]:
    return snapshot.get("sequence-number", 0), snapshot["timestamp-ms"], snapshot["snapshot-id"]


def _rank(node: Mapping[str, Any]) -> tuple[int, int, str]:
    return node["format-version"], node["last-updated-ms"], str(node.get("current-snapshot-id"))


def merged_tables(
    read: FilesOfVersions, versions: Iterable[LiveVersion], snapshots: Snapshots
) -> dict[str, tuple[str, MergedTable]]:
    """Return the tables of these versions, by uuid, each with the first content that has it. Views are left out: they
    have no data files.

    Reads each metadata file once. Raises UnreadableMetadata for any that is missing or damaged.
    """
    shown: dict[tuple[str, str], list[int]] = {}
    for version in versions:
        if version.type != VIEW:
            shown.setdefault((version.content_id, version.metadata_location), []).append(version.snapshot_id)
    found: dict[str, tuple[str, MergedTable]] = {}
    for (content_id, location), snapshot_ids in shown.items():
        metadata = read(location)
        _, table = found.setdefault(metadata.table_uuid, (content_id, MergedTable(metadata.table_uuid, snapshots)))
        table.add(metadata, snapshot_ids)
    return found


# --- contents ---------------------------------------------------------------------------------------------------------
# The contents of a set: their names, and where their tables have files.


def contents_of(
    live_set_id: str,
    prefix: str,
    versions: Iterable[LiveVersion],
    default: Mapping[str, str] | None,
    read: FilesOfVersions,
) -> Iterator[LiveContent]:
    """Yield the contents of a set, whose `versions` come content by content.

    `default` has the keys of the default reference's head, by content id: their names are `<prefix><key>`. Others are
    named after a reference that shows them, `<prefix><key>@<reference>`. For each folder with metadata files of a
    content, the first and the last file by name are read. Without `default`, a key is a name.

    Raises UnreadableMetadata.
    """
    used = set() if default is None else set(default.values())
    for content_id, group in groupby(versions, lambda each: each.content_id):
        first: LiveVersion | None = None
        count, folders = 0, dict[str, tuple[str, str]]()
        for version in group:
            first = version if first is None or version.reference < first.reference else first
            count += 1
            place, location = parent(version.metadata_location), version.metadata_location
            folders[place] = (folders.get(place, (location,))[0], location)
        assert first is not None
        name = first.key if default is None else default.get(content_id)
        if name is None:
            name = _unique(at_reference(first.key, first.reference), content_id, used)
        if first.type == VIEW:
            yield LiveContent(live_set_id, content_id, f"{prefix}{name}", VIEW, None, (), count)
            continue
        found = [read(location) for location in dict.fromkeys(each for both in folders.values() for each in both)]
        locations = tuple(dict.fromkeys(each for metadata in found for each in metadata.locations))
        yield LiveContent(live_set_id, content_id, f"{prefix}{name}", first.type, found[0].table_uuid, locations, count)


def at_reference(key: str, reference: str) -> str:
    """Return the name of a key that only `reference` shows."""
    parts: Sequence[str] = parts_of(key, "key", "name it as Nessie does")
    return dotted((*parts[:-1], f"{parts[-1]}@{reference}"))


def _unique(name: str, content_id: str, used: set[str]) -> str:
    """A reference may have had two contents under one key, one after the other."""
    found = name if name not in used else at_reference(name, content_id[:8])
    used.add(found)
    return found


_READERS = 4


@dataclass(frozen=True)
class LiveTable:
    """One table: its name, and the file that has what all its live versions have. `locations` are theirs, in the
    metadata's spelling."""

    table: str
    table_uuid: str
    metadata_location: str
    locations: tuple[str, ...]
    previous_metadata_location: str | None = None
    problem: str | None = None


class LiveTables:
    """The tables of one set. `prefix` begins their names. `root` is where merged metadata files are stored. Safe for
    several threads.

    Every method may raise what `source` raises, and UnreadableMetadata for a live version whose metadata file is
    missing or damaged: then nothing of the catalog may be deleted.
    """

    def __init__(
        self,
        live_set: LiveSet,
        rows: LiveSets,
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

    def observed(self) -> Mapping[str, Pointer]:
        """Return the tables without asking the source: as of its last answer, at first those of the set."""
        with self._lock:
            self._known_heads()
            return dict(self._tables)

    def _current(self) -> dict[str, LiveTable]:
        with self._lock:
            heads, references = self._known_heads(), self._source.references()
            moved = [each for each in references if heads.get(each.name) != each.head]
            if moved:
                self._advance(moved)
                heads |= {each.name: each.head for each in moved}
            return self._tables

    def _known_heads(self) -> dict[str, str]:
        if self._heads is None:
            heads = {each.name: each.head for each in self._rows.references(self.live_set.live_set_id)}
            self._load()
            # Only now: after an error, the next call must not take a part of the catalog for all of it.
            self._heads = heads
        return self._heads

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
                with self._rows.versions(live_set_id, content_ids) as versions:
                    found = merged_tables(self._read, versions, self.live_set.snapshots)
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
            with self._rows.versions(live_set_id, views) as versions:
                self._view_folders |= {parent(each.metadata_location) for each in versions}
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
            name = f"{name}#{table.table_uuid}"
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
