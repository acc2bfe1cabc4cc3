"""What a Paimon table's documents reach. Source: Paimon's FileDeletionBase, SnapshotDeletion, ChangelogDeletion,
TagDeletion and OrphanFilesClean.

A snapshot reaches its lists, their manifests, its index manifest and statistics, the data files that its base and delta
add and do not delete, index files, and changelog files. A tag reaches the same without the changelog, which goes with
its snapshot. A long-lived changelog reaches its changelog files; of a table without a changelog producer, whose
changelog are the appended files, its delta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.errors import MissingFile, UnreadableMetadata
from artemis_lifecycle.formats.paimon.documents import MAIN, Document
from artemis_lifecycle.formats.paimon.folders import Folders
from artemis_lifecycle.formats.paimon.manifests import (
    Entries,
    IndexManifest,
    Listed,
    ManifestList,
    read_index_manifest,
    read_list,
    read_manifest,
)
from artemis_lifecycle.formats.paimon.options import follows_deltas, produces_changelog
from artemis_lifecycle.formats.paimon.table import Branch, PaimonTable
from artemis_lifecycle.metadata import types
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.metadata.unreadable import unreadable
from artemis_lifecycle.reachability.index.files import DELETABLE
from artemis_lifecycle.reachability.index.lookups import Meant, directly_in
from artemis_lifecycle.storage.location import LocationRules, among, distinct, hash_column
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

_READERS = 16
_NO_HASHES = np.empty(0, np.uint64)


@dataclass(frozen=True)
class Reader:
    """Reads each list and manifest of a table once: their names are never used again for other content."""

    stores: Stores
    rules: LocationRules
    _lists: dict[str, ManifestList] = field(default_factory=dict, init=False, repr=False, compare=False)
    _entries: dict[str, Entries] = field(default_factory=dict, init=False, repr=False, compare=False)
    _indexes: dict[str, IndexManifest] = field(default_factory=dict, init=False, repr=False, compare=False)

    def list(self, folders: Folders, name: str, size: int | None) -> ManifestList:
        if name not in self._lists:
            self._lists[name] = read_list(self.stores, folders, name, size)
        return self._lists[name]

    def index(self, folders: Folders, name: str) -> IndexManifest:
        if name not in self._indexes:
            self._indexes[name] = read_index_manifest(self.stores, folders, name)
        return self._indexes[name]

    def entries(self, listed: Listed) -> Entries:
        """Return a manifest that `load` has read."""
        return self._entries[listed.path]

    def load(self, folders: Folders, manifests: Iterable[Listed]) -> None:
        """Read these manifests, several at once."""
        new = list({each.path: each for each in manifests if each.path not in self._entries}.values())
        readers = self.stores.readers(folders.location, _READERS)
        found = threaded(lambda each: read_manifest(self.stores, folders, each, self.rules), new, readers)
        self._entries.update(zip((each.path for each in new), found, strict=True))


@dataclass(frozen=True)
class Reach:
    """What one document reaches. `live` are the manifests whose added files live unless deleted in them, `changelog`
    those whose added files are changelog files, `delta` those of the document's own changes; `followed` says that the
    appended files of the delta are a changelog."""

    document: Document
    lists: tuple[ManifestList, ...]
    live: tuple[Listed, ...]
    delta: tuple[Listed, ...]
    changelog: tuple[Listed, ...]
    followed: bool
    index: IndexManifest | None
    statistics: str | None

    @property
    def manifests(self) -> Iterator[Listed]:
        for each in self.lists:
            yield from each.manifests

    def above(self) -> Iterator[tuple[str, types.Kind, int]]:
        """Yield what is above the data files: path, kind and size (0 where nothing records it)."""
        for listed in self.lists:
            yield listed.path, types.MANIFEST_LIST, listed.size_in_bytes
            for each in listed.manifests:
                yield each.path, types.MANIFEST, each.size_in_bytes
                yield from ((path, types.MANIFEST, 0) for path in each.extra)
        if self.index is not None:
            yield self.index.path, types.MANIFEST, self.index.size_in_bytes
            yield from ((each.path, each.kind, each.size_in_bytes) for each in self.index.files)
        if self.statistics is not None:
            yield self.statistics, types.STATISTICS, 0


def reach_of(reader: Reader, table: PaimonTable, document: Document) -> Reach:
    """Read what `document` reaches, except data files. Raises UnreadableMetadata."""
    branch, folders = table.branches[document.branch], table.folders(document.branch)
    if document.role == "changelog":
        return _changelog(reader, branch, folders, document)
    base = reader.list(folders, document.base, document.base_size)
    delta = reader.list(folders, document.delta, document.delta_size)
    changes = None
    if document.role == "snapshot" and document.changelog is not None:
        # Who expires the main branch's snapshot removes its changelog, although a branch has a copy of the snapshot, or
        # a tag from which a rollback makes it anew: it is then the oldest.
        copied = document.branch != MAIN and any(tag.snapshot_id == document.snapshot_id for tag in branch.tags)
        read = _if_there if copied or document.snapshot_id == branch.snapshots[0].snapshot_id else Reader.list
        changes = read(reader, folders, document.changelog, document.changelog_size)
    return Reach(
        document,
        tuple(each for each in (base, delta, changes) if each is not None),
        (*base.manifests, *delta.manifests),
        delta.manifests,
        () if changes is None else changes.manifests,
        document.role == "snapshot" and follows_deltas(branch.schema.options),
        None if document.index_manifest is None else reader.index(folders, document.index_manifest),
        None if document.statistics is None else folders.in_statistics(document.statistics),
    )


def _changelog(reader: Reader, branch: Branch, folders: Folders, document: Document) -> Reach:
    if document.changelog is not None:
        changes = reader.list(folders, document.changelog, document.changelog_size)
        return Reach(document, (changes,), (), (), changes.manifests, False, None, None)
    since = [schema.options for schema in branch.schemas if schema.schema_id >= document.schema_id]
    if since and produces_changelog(since[0]):
        # The expiration of the snapshot has removed both lists: an empty changelog needs neither.
        return Reach(document, (), (), (), (), False, None, None)
    read = _if_there if any(map(produces_changelog, since)) else Reader.list
    delta = read(reader, folders, document.delta, document.delta_size)
    base = read(reader, folders, document.base, document.base_size)
    lists = tuple(each for each in (base, delta) if each is not None)
    return Reach(document, lists, (), () if delta is None else delta.manifests, (), True, None, None)


def _if_there(reader: Reader, folders: Folders, name: str, size: int | None) -> ManifestList | None:
    try:
        return reader.list(folders, name, size)
    except UnreadableMetadata as error:
        if isinstance(error.__cause__, MissingFile):
            return None
        raise


def reaches_of(reader: Reader, table: PaimonTable, documents: Iterable[Document]) -> list[Reach]:
    """Read everything that these documents reach. Raises UnreadableMetadata."""
    found = [reach_of(reader, table, document) for document in documents]
    for branch in table.branches:
        needed = (each for reach in found if reach.document.branch == branch for each in _needed(reach))
        reader.load(table.folders(branch), needed)
    return found


def _needed(reach: Reach) -> Iterator[Listed]:
    yield from reach.live
    yield from reach.changelog
    yield from reach.delta


def live_hashes(reader: Reader, reaches: Sequence[Reach]) -> NDArray[np.uint64]:
    """Return the sorted location hashes of the data files that live in any of these documents.

    Raises UnreadableMetadata for a document that deletes a file which it does not add: its manifests are not complete.
    """
    manifests = {each.path: reader.entries(each) for reach in reaches for each in reach.live}
    every = [_NO_HASHES, *(entries.hashes for entries in manifests.values())]
    deleted = distinct(np.concatenate([_NO_HASHES, *(each.hashes[each.signs < 0] for each in manifests.values())]))
    if not len(deleted):
        return distinct(np.concatenate(every))
    # Files that no manifest deletes live; only of the others it matters which manifests a document has.
    found = [each.hashes[(each.signs > 0) & ~among(deleted, each.hashes)] for each in manifests.values()]
    changed: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    for path, entries in manifests.items():
        rows = among(deleted, entries.hashes)
        changed[path] = deleted.searchsorted(entries.hashes[rows]), entries.signs[rows]
    alive = np.zeros(len(deleted), np.bool_)
    seen: set[frozenset[str]] = set()
    for reach in reaches:
        paths = frozenset(each.path for each in reach.live)
        if paths in seen:
            continue
        seen.add(paths)
        net = np.zeros(len(deleted), np.int64)
        for path in paths:
            np.add.at(net, *changed[path])
        if (net < 0).any():
            raise unreadable(
                f"{reach.document.title} deletes {int((net < 0).sum())} files that its manifests do not add",
                reach.document.path,
            )
        alive |= net > 0
    return distinct(np.concatenate([_NO_HASHES, *found, deleted[alive]]))


FileRows = tuple[types.Kind, pa.Array, NDArray[np.uint64], NDArray[np.int64]]
"""Files of one kind: their paths, location hashes and sizes (0 where nothing records it)."""


@dataclass(frozen=True)
class PaimonFiles:
    """Everything that the documents of a table reach (a `ReachedFiles`)."""

    metadata: TableMetadata
    reader: Reader
    found: Sequence[Reach]

    @cached_property
    def live(self) -> NDArray[np.uint64]:
        return live_hashes(self.reader, self.found)

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        """The sorted location hashes of all reached files."""
        rules = self.reader.rules
        above = pa.array(sorted({path for reach in self.found for path, _, _ in reach.above()}), pa.large_string())
        others = [rows.hashes for _, rows in self._others()]
        return distinct(np.concatenate([self.live, hash_column(above, rules), *others]))

    def _others(self) -> Iterator[tuple[types.Kind, Entries]]:
        """Yield changelog files, and appended files that are a changelog, manifest by manifest."""
        seen: set[tuple[str, bool]] = set()
        for reach in self.found:
            parts = ((reach.changelog, False), (reach.delta if reach.followed else (), True))
            for manifests, appended in parts:
                for each in manifests:
                    if (each.path, appended) in seen:
                        continue
                    seen.add((each.path, appended))
                    rows = self.reader.entries(each)
                    if appended:
                        yield types.DATA, rows.only(rows.appended)
                    else:
                        yield types.CHANGELOG, rows.only(rows.signs > 0)

    def rows(self) -> Iterator[FileRows]:
        """Yield all reached files as kind, paths, location hashes and sizes; a file may come more than once."""
        yield from _above(self.reader, self.found)
        manifests = {each.path: each for reach in self.found for each in reach.live}
        live = self.live
        for each in manifests.values():
            entries = self.reader.entries(each)
            rows = entries.only((entries.signs > 0) & among(live, entries.hashes))
            yield types.DATA, rows.paths, rows.hashes, rows.sizes
        for kind, rows in self._others():
            yield kind, rows.paths, rows.hashes, rows.sizes

    def reaches(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return among(self.hashes, hashes)

    def folders(self) -> Iterable[str]:
        found: dict[str, None] = {}
        for _, paths, _, _ in self.rows():
            found.update(dict.fromkeys(path.rpartition("/")[0] for path in paths.to_pylist()))
        return found

    def visit(self, each: Callable[[pa.Array], None]) -> None:
        for _, paths, _, _ in self.rows():
            each(paths)

    def outside(self, before_ms: int, hashes: NDArray[np.uint64], is_meant: Meant, *, at_most: int) -> list[str]:
        # A writer's clock may be ahead, so that old documents seem young: these come last, but they come.
        old = [reach for reach in self.found if reach.document.committed_ms < before_ms]
        young = [reach for reach in self.found if reach.document.committed_ms >= before_ms]
        found: list[str] = []
        for reaches in (old, young):
            for _, paths, theirs, _ in PaimonFiles(self.metadata, self.reader, reaches).rows():
                missing = paths.filter(pa.array(~among(hashes, theirs)))
                found += directly_in(missing, is_meant)[: at_most - len(found)]
        return found


Candidate = tuple[types.Kind, pa.Array, NDArray[np.uint64], NDArray[np.int64], str]


def deletable(
    reader: Reader, table: PaimonTable, gone: Sequence[Document], kept: PaimonFiles, following: Document | None
) -> pa.Table:
    """Return the files that documents in `gone` reach or delete, and that nothing in `kept` reaches, one row each.

    `gone` are in the order of ids, and `following` is the snapshot after the last that goes. Of data files, the deltas
    say what no later snapshot has, so that the work follows the change; what the first delta deletes went with the
    snapshot before it. Columns: path, kind, size_in_bytes, reason.
    """
    snapshots = [each for each in gone if each.role == "snapshot"]
    found = reaches_of(reader, table, gone)
    parts: list[Candidate] = []
    for reach in found:
        document = reach.document
        reason = f"last reached by {document.title}, which goes; by no kept one"
        parts += ((*rows, reason) for rows in _above(reader, [reach]))
        for each in reach.changelog:
            added = reader.entries(each).only(reader.entries(each).signs > 0)
            parts.append((types.CHANGELOG, added.paths, added.hashes, added.sizes, reason))
        if document.role == "tag":
            parts += ((*rows, reason) for rows in PaimonFiles(kept.metadata, reader, [reach]).rows())
        elif document.role == "changelog" or document is not snapshots[0] or reach.followed:
            parts += _deleted(reader, reach)
    if snapshots and following is not None:
        parts += _deleted(reader, reaches_of(reader, table, [following])[0])
    return _without(parts, kept, reader.stores)


def _above(reader: Reader, reaches: Iterable[Reach]) -> Iterator[FileRows]:
    """Yield what is above the data files of these documents, kind by kind."""
    by_kind: dict[types.Kind, dict[str, int]] = {}
    for reach in reaches:
        for path, kind, size in reach.above():
            by_kind.setdefault(kind, {})[path] = size
    for kind, sizes in by_kind.items():
        paths = pa.array(list(sizes), pa.large_string())
        yield kind, paths, hash_column(paths, reader.rules), np.array(list(sizes.values()), np.int64)


def _deleted(reader: Reader, reach: Reach) -> Iterator[Candidate]:
    reason = f"deleted by the changes of {reach.document.title}; reached by no kept snapshot"
    for each in reach.delta:
        rows = reader.entries(each).only(reader.entries(each).signs < 0)
        yield types.DATA, rows.paths, rows.hashes, rows.sizes, reason


def _without(parts: Sequence[Candidate], kept: PaimonFiles, stores: Stores) -> pa.Table:
    rows: dict[int, tuple[str, types.Kind, int, str]] = {}
    for kind, paths, hashes, sizes, reason in parts:
        doomed = np.flatnonzero(~kept.reaches(hashes))
        for row in doomed.tolist():
            # A later reason wins: the last that reached the file.
            rows[int(hashes[row])] = (paths[row].as_py(), kind, int(sizes[row]), reason)
    unsized = [key for key, (_, _, size, _) in rows.items() if size == 0]
    for key, head in zip(unsized, stores.heads([rows[key][0] for key in unsized]), strict=True):
        path, kind, _, reason = rows[key]
        rows[key] = (path, kind, 0 if head is None else head.size_in_bytes, reason)
    columns: Mapping[str, list[object]] = {
        name: [row[at] for row in rows.values()] for at, name in enumerate(DELETABLE.names)
    }
    return pa.table(columns, schema=DELETABLE)
