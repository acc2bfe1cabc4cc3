"""A catalog without references, as a source of them: each table is one reference, and each of its snapshots one commit
with one put."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.catalogs.references import TABLE, Commit, Content, Reference
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.reached import Pointer
from artemis_lifecycle.storage.instants import in_calendar
from artemis_lifecycle.storage.stores import Stores


class HasPointers(Protocol):
    def pointers(self) -> Mapping[str, Pointer]: ...


class PlainReferences:
    """Implements `catalogs.references.ReferenceSource` for a plain Iceberg catalog. A head is a metadata file, and a
    commit is `<metadata file>#<snapshot id>`.

    Raises UnreadableMetadata for a metadata file that is missing or damaged.
    """

    def __init__(self, catalog: HasPointers, stores: Stores) -> None:
        self._catalog = catalog
        self._stores = stores
        self._names: dict[str, str] = {}

    def references(self) -> Sequence[Reference]:
        pointers = self._catalog.pointers()
        self._names = {each.metadata_location: name for name, each in pointers.items()}
        return [Reference(name, "table", each.metadata_location) for name, each in sorted(pointers.items())]

    def commits(self, head: str) -> Iterator[Commit]:
        location, _, after = head.partition("#")
        metadata = self._metadata(location)
        newest_first = sorted(metadata.snapshots, key=lambda each: (each.timestamp_ms, each.snapshot_id), reverse=True)
        commits = [f"{location}#{each.snapshot_id}" for each in newest_first]
        start = commits.index(head) if after else 0
        for name, snapshot in zip(commits[start:], newest_first[start:], strict=True):
            puts = (self._content(metadata, snapshot.snapshot_id),)
            yield Commit(name, in_calendar(snapshot.timestamp_ms), puts)
        if not newest_first:
            # A new table: its metadata file is all that it has.
            yield Commit(location, in_calendar(metadata.last_updated_ms), (self._content(metadata, None),))

    def contents_at(self, commit: str) -> Iterator[Content]:
        """Yield the table as of its current snapshot, which every reader of the catalog sees."""
        metadata = self._metadata(commit.partition("#")[0])
        yield self._content(metadata, metadata.current_snapshot_id)

    def _metadata(self, location: str) -> TableMetadata:
        return read_table_metadata(self._stores, location)

    def _content(self, metadata: TableMetadata, snapshot_id: int | None) -> Content:
        key = parse(self._names[metadata.metadata_location]).parts
        return Content(metadata.table_uuid, key, TABLE, metadata.metadata_location, snapshot_id)
