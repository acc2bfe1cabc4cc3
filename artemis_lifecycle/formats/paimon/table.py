"""A Paimon table as its documents say: every branch's snapshots, tags, changelogs, consumers and schemas. Source:
Paimon's SnapshotManager, TagManager, ChangelogManager, ConsumerManager, BranchManager and SchemaManager.

Only a listing shows what there is: hints may be stale, and are never trusted. A table is read until two listings in a
row show the same files, because a writer may expire, tag or roll back at the same time.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.errors import Busy, MissingFile, NoSuchTable, UnreadableMetadata
from artemis_lifecycle.formats.paimon.documents import (
    MAIN,
    Document,
    Role,
    Schema,
    next_snapshot,
    parse_document,
    parse_schema,
)
from artemis_lifecycle.formats.paimon.folders import BUCKET, Folders
from artemis_lifecycle.metadata.types import MAIN_BRANCH, LogEntry, Ref, Snapshot, SnapshotSummary, TableMetadata
from artemis_lifecycle.metadata.unreadable import read_file, unreadable
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

EARLIEST, LATEST = "EARLIEST", "LATEST"
HINTS = frozenset({EARLIEST, LATEST})

_LOOKS = 8
_READERS = 16


@dataclass(frozen=True)
class Branch:
    """One branch, in the order of snapshot ids. `consumers` are the first snapshots that each has yet to read."""

    name: str
    folder: str
    schemas: tuple[Schema, ...]
    snapshots: tuple[Document, ...]
    tags: tuple[Document, ...]
    changelogs: tuple[Document, ...]
    consumers: Mapping[str, int]

    @property
    def schema(self) -> Schema:
        """The newest schema, whose options count."""
        return self.schemas[-1]

    @property
    def documents(self) -> tuple[Document, ...]:
        return (*self.snapshots, *self.tags, *self.changelogs)

    def snapshot(self, snapshot_id: int) -> Document | None:
        return next((each for each in self.snapshots if each.snapshot_id == snapshot_id), None)


@dataclass(frozen=True)
class PaimonTable:
    """A table at one moment: all branches by name, the main one first. `table_uuid` is derived from what Paimon calls
    the table's uuid: its name, and the time of its first schema."""

    name: str
    location: str
    table_uuid: str
    branches: Mapping[str, Branch]

    @property
    def main(self) -> Branch:
        return self.branches[MAIN]

    @property
    def documents(self) -> Iterator[Document]:
        """Every document that keeps files."""
        for branch in self.branches.values():
            yield from branch.documents

    def folders(self, branch: str) -> Folders:
        """Return the folders of a branch: its files stand among the main branch's."""
        schema = self.branches[branch].schema
        return Folders(self.location, schema.partition_keys, schema.options)


def read_table(stores: Stores, name: str, location: str) -> PaimonTable:
    """Read the table at `location`, which the catalog calls `name`.

    Raises NoSuchTable, UnreadableMetadata; Busy if writers change it all the time.
    """
    location = location.rstrip("/")
    seen = _listed(stores, location)
    for _ in range(_LOOKS):
        if not any(found.schemas for found in seen if found.name == MAIN):
            raise NoSuchTable(f"{location} has no Paimon table: it has no schema", table=name, untouched="everything")
        try:
            branches = {found.name: found.read(stores) for found in seen}
        except MissingFile:
            # Another process removed a document in the meantime. If nobody did, the next listing lacks it too.
            branches = None
        again = _listed(stores, location)
        if branches is not None and again == seen:
            return PaimonTable(name, location, uuid_of(name, branches[MAIN]), branches)
        seen = again
    raise Busy(
        "The table's snapshots and tags change faster than they can be read",
        table=name,
        path=location,
        untouched="the table and all its files",
        hint="try again at a quieter time, or set write-only on its writers",
    )


def uuid_of(name: str, main: Branch) -> str:
    """Return the uuid of the table with this main branch, if its name is or was `name`."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"paimon:{name}.{main.schemas[0].created_ms}"))


def branch_folder(location: str, branch: str) -> str:
    return location if branch == MAIN else f"{location}/branch/branch-{branch}"


@dataclass(frozen=True)
class _Listed:
    """The names of one branch's documents."""

    name: str
    folder: str
    schemas: tuple[int, ...]
    snapshots: tuple[int, ...]
    tags: tuple[str, ...]
    changelogs: tuple[int, ...]
    consumers: tuple[str, ...]

    def read(self, stores: Stores) -> Branch:
        """Raises MissingFile if a document is gone, UnreadableMetadata."""
        if not self.schemas:
            raise unreadable(f"Branch {self.name} has no schema", self.folder)
        return Branch(
            self.name,
            self.folder,
            tuple(parse_schema(path, text) for path, text in self._texts(stores, "schema", "schema", self.schemas)),
            self._documents(stores, "snapshot", self.snapshots),
            tuple(sorted(self._tags(stores), key=lambda tag: (tag.snapshot_id, tag.name))),
            self._documents(stores, "changelog", self.changelogs),
            {
                name: next_snapshot(path, text)
                for name, (path, text) in zip(
                    self.consumers, self._texts(stores, "consumer", "consumer", self.consumers), strict=True
                )
            },
        )

    def _documents(self, stores: Stores, role: Role, ids: tuple[int, ...]) -> tuple[Document, ...]:
        texts = self._texts(stores, role, role, ids)
        found = tuple(parse_document(role, self.name, path, text) for path, text in texts)
        for snapshot_id, document in zip(ids, found, strict=True):
            if document.snapshot_id != snapshot_id:
                raise unreadable(f"The file of {role} {snapshot_id} says {document.snapshot_id}", document.path)
        return found

    def _tags(self, stores: Stores) -> Iterator[Document]:
        for name, (path, text) in zip(self.tags, self._texts(stores, "tag", "tag", self.tags), strict=True):
            yield parse_document("tag", self.name, path, text, name)

    def _texts(
        self, stores: Stores, folder: str, prefix: str, names: tuple[int, ...] | tuple[str, ...]
    ) -> list[tuple[str, bytes]]:
        paths = [f"{self.folder}/{folder}/{prefix}-{name}" for name in names]
        texts = threaded(lambda path: _read(stores, path), paths, stores.readers(self.folder, _READERS, 1))
        return list(zip(paths, texts, strict=True))


def _read(stores: Stores, path: str) -> bytes:
    try:
        return read_file(stores, path)
    except UnreadableMetadata as error:
        if isinstance(error.__cause__, MissingFile):
            raise error.__cause__ from None
        raise


def _listed(stores: Stores, location: str) -> list[_Listed]:
    folders, _ = stores.children(f"{location}/branch")
    names = [folder.rstrip("/").rpartition("/")[2] for folder in folders]
    branches = [MAIN, *sorted(name.removeprefix("branch-") for name in names if name.startswith("branch-"))]
    return [_listed_branch(stores, name, branch_folder(location, name)) for name in branches]


def _listed_branch(stores: Stores, name: str, folder: str) -> _Listed:
    def named(kind: str) -> list[str]:
        _, files = stores.children(f"{folder}/{kind}")
        found = (file.path.rpartition("/")[2] for file in files)
        return [each.removeprefix(f"{kind}-") for each in found if each.startswith(f"{kind}-")]

    def numbered(kind: str) -> tuple[int, ...]:
        found = named(kind)
        strange = [each for each in found if not (each.isascii() and each.isdigit())]
        if strange:
            raise unreadable(f"The file {kind}-{strange[0]} has no number in its name", f"{folder}/{kind}")
        return tuple(sorted(map(int, found)))

    return _Listed(
        name,
        folder,
        numbered("schema"),
        numbered("snapshot"),
        tuple(sorted(named("tag"))),
        numbered("changelog"),
        tuple(sorted(named("consumer"))),
    )


def metadata_of(table: PaimonTable) -> TableMetadata:
    """Return the main branch in the form of which the shared rooms speak. Tags are refs; a tag's snapshot may have
    expired, and is then no snapshot here. Other branches number their own snapshots, and are not in it."""
    main = table.main
    present = {document.snapshot_id for document in main.snapshots}
    latest = main.snapshots[-1] if main.snapshots else None
    refs = {tag.name: Ref(tag.name, tag.snapshot_id, "tag") for tag in main.tags if tag.name is not None}
    if latest is not None:
        refs[MAIN_BRANCH] = Ref(MAIN_BRANCH, latest.snapshot_id, "branch")
    schema = main.schema
    return TableMetadata(
        metadata_location=(latest.path if latest is not None else f"{main.folder}/schema/schema-{schema.schema_id}"),
        location=table.location,
        table_uuid=table.table_uuid,
        format_version=0,
        last_updated_ms=schema.created_ms if latest is None else latest.committed_ms,
        last_sequence_number=0 if latest is None else latest.snapshot_id,
        current_snapshot_id=None if latest is None else latest.snapshot_id,
        snapshots=tuple(_snapshot(document, table, present) for document in main.snapshots),
        refs=refs,
        snapshot_log=tuple(LogEntry(document.committed_ms, document.snapshot_id) for document in main.snapshots),
        metadata_log=(),
        statistics=(),
        properties=schema.options,
        current_schema_id=schema.schema_id,
        schemas={each.schema_id: each.text for each in main.schemas},
        default_spec_id=0,
        partition_specs={
            0: json.dumps({"spec-id": 0, "fields": [{"name": name} for name, _ in schema.partition_keys]})
        },
    )


def _snapshot(document: Document, table: PaimonTable, present: set[int]) -> Snapshot:
    properties = {} if document.records is None else {"total-records": str(document.records)}
    parent = document.snapshot_id - 1
    return Snapshot(
        snapshot_id=document.snapshot_id,
        parent_snapshot_id=parent if parent in present else None,
        sequence_number=document.snapshot_id,
        timestamp_ms=document.committed_ms,
        manifest_list=table.folders(MAIN).in_manifests(document.delta),
        schema_id=document.schema_id,
        summary=SnapshotSummary(document.commit_kind.lower(), properties),
    )


# --- layout -----------------------------------------------------------------------------------------------------------
# Where a Paimon table's writers put files: everything else below its location is no orphan. Source: Paimon's
# OrphanFilesClean.


@dataclass(frozen=True)
class Layout:
    """The patterns of paths that a scan may collect, and of the documents and hints among them, which it may not."""

    collected: str
    documents: str

    @classmethod
    def of(cls, table: PaimonTable) -> Layout:
        location, folders = re.escape(table.location), table.folders(MAIN)
        partition = "[^/]+=[^/]+/" * len(folders.partition_keys)
        places = [
            rf"{location}/(?:manifest|index|statistics)/[^/]+",
            rf"{re.escape(folders.data)}/{partition}{BUCKET}[^/]+/[^/]+",
            rf"{location}/(?:branch/branch-[^/]+/)?(?:snapshot|changelog)/[^/]+",
        ]
        hints = "|".join(sorted(HINTS))
        return cls(
            rf"\A(?:{'|'.join(places)})\z", rf"/(?:snapshot/snapshot-[^/]*|changelog/changelog-[^/]*|(?:{hints}))\z"
        )

    def __call__(self, paths: pa.Array) -> NDArray[np.bool_]:
        collected = np.asarray(pc.match_substring_regex(paths, self.collected))
        found: NDArray[np.bool_] = collected & ~np.asarray(pc.match_substring_regex(paths, self.documents))
        return found
