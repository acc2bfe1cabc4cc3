"""The cold tables of one live table: the newest, and the closed ones of past years or months (`cold_split`). Belongs
here: finding the table that has a snapshot, with as few metadata files read as possible."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.cold_tier.cold_metadata import COMPLETE_UNTIL
from artemis_lifecycle.cold_tier.cold_split import ClosedTable, closed_tables, covering
from artemis_lifecycle.cold_tier.paths import read_identity
from artemis_lifecycle.cold_tier.tags import Meaning, history_of
from artemis_lifecycle.errors import NoSuchTable, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import parse_table_metadata, read_table_metadata
from artemis_lifecycle.metadata.types import LogEntry, MetadataLogEntry, TableMetadata
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, ReadLimits
from artemis_lifecycle.storage.stores import Stores


@dataclass(frozen=True)
class ColdTable:
    """A table of the cold catalog. `metadata` has the live table's uuid, even if the cold table's own uuid differs."""

    name: str
    metadata: TableMetadata


class ColdTables:
    """`newest`, and the closed tables that its properties list. `read` returns the location and the bytes of a closed
    table's metadata file, by name. It is called whenever a file is needed.

    Raises UnreadableMetadata for a damaged list, and for an invalid closed table.
    """

    def __init__(
        self, newest: ColdTable, read: Callable[[str], tuple[str, bytes]], limits: ReadLimits = DEFAULT_LIMITS
    ) -> None:
        self.newest = newest
        self._read = read
        self._limits = limits
        try:
            self.closed = closed_tables(newest.metadata.properties)
        except (ValueError, TypeError) as error:
            raise UnreadableMetadata(
                f"The cold table's list of closed tables cannot be read: {error}",
                path=newest.metadata.metadata_location,
                untouched="both tiers",
                hint="restore that metadata file",
            ) from error

    @classmethod
    def open(
        cls, catalog: CatalogReader, cold_stores: Stores, records: Stores, root: str, table_uuid: str
    ) -> ColdTables | None:
        """Return the tables of the live table with that uuid; None before its first handoff. `records` can access
        `root`."""
        identity = read_identity(records, root, table_uuid)
        if identity is None:
            return None
        name = identity.cold_table

        def read(closed: str) -> tuple[str, bytes]:
            try:
                location = catalog.entry(closed).metadata_location
            except NoSuchTable as error:
                raise UnreadableMetadata(
                    f"The cold catalog has no table {closed}, which {name} lists",
                    table=name,
                    untouched="both tiers",
                    hint="restore the catalog's row; the metadata file of the newest table is intact",
                ) from error
            return location, cold_stores.read(location)

        try:
            entry = catalog.entry(name)
        except NoSuchTable:
            return None
        return cls(ColdTable(name, read_table_metadata(cold_stores, entry.metadata_location)), read, cold_stores.limits)

    def __iter__(self) -> Iterator[ColdTable]:
        """Yield all tables, newest first."""
        yield self.newest
        for closed in reversed(self.closed):
            yield self._parsed(closed, *self._read(closed.name))

    def holding(self, snapshot_id: int) -> ColdTable | None:
        """Return the table that has a snapshot."""
        if self.newest.metadata.snapshot(snapshot_id) is not None:
            return self.newest
        found = self._naming(str(snapshot_id))
        return next((table for table in found if table.metadata.snapshot(snapshot_id) is not None), None)

    @cached_property
    def tags(self) -> tuple[Meaning, ...]:
        """Return what the live table's refs pointed to over time, as recorded by handoffs. Raises
        UnreadableMetadata."""
        return history_of(self.newest.metadata.properties)

    @property
    def tags_known_until(self) -> int:
        """Return up to which time (epoch ms) `tags` is complete."""
        return int(self.newest.metadata.properties.get(COMPLETE_UNTIL, 0))

    def tagged(self, tag: str) -> tuple[int, str] | None:
        """Return a tag's snapshot and the name of the table that has it; the newest table if two have the tag. For tags
        older than the recorded history."""
        for table in (self.newest, *self._naming(json.dumps(tag, ensure_ascii=False))):
            ref = table.metadata.refs.get(tag)
            if ref is not None and not ref.is_branch:
                return ref.snapshot_id, table.name
        return None

    def closed_log(self, at_ms: int) -> tuple[LogEntry, ...] | None:
        """Return the snapshot log of the closed table that covers an instant; None if the newest one does."""
        closed = covering(self.closed, at_ms)
        return None if closed is None else self._parsed(closed, *self._read(closed.name)).metadata.snapshot_log

    def whole(self) -> TableMetadata:
        """Return all tables as one: the newest table's metadata with the snapshots, tags, logs and statistics of all.
        Its metadata log also has every closed table's metadata files."""
        tables = [table.metadata for table in self][::-1]
        if len(tables) == 1:
            return self.newest.metadata
        return replace(
            self.newest.metadata,
            snapshots=tuple(
                sorted(
                    (snapshot for table in tables for snapshot in table.snapshots),
                    key=lambda each: (each.sequence_number, each.timestamp_ms, each.snapshot_id),
                )
            ),
            refs={name: ref for table in tables for name, ref in table.refs.items()},
            # A table that was closed because of its name mapping has the log of the table from which it was split.
            snapshot_log=tuple(dict.fromkeys(entry for table in tables for entry in table.snapshot_log)),
            statistics=tuple(file for table in tables for file in table.statistics),
            metadata_log=tuple(
                entry
                for table in tables
                for entry in (*table.metadata_log, MetadataLogEntry(table.last_updated_ms, table.metadata_location))
            ),
        )

    def _naming(self, text: str) -> Iterator[ColdTable]:
        """Yield the closed tables whose metadata file contains the text: searching a 100 MB file is much faster than
        parsing it."""
        wanted = text.encode()
        for closed in reversed(self.closed):
            location, data = self._read(closed.name)
            if wanted in data:
                yield self._parsed(closed, location, data)

    def _parsed(self, closed: ClosedTable, location: str, data: bytes) -> ColdTable:
        metadata = parse_table_metadata(data, location, self._limits)
        return ColdTable(closed.name, replace(metadata, table_uuid=self.newest.metadata.table_uuid))
