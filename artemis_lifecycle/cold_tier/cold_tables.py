"""The cold tables of one live table: the newest, and the closed ones of past years or months (`cold_split`). Belongs
here: finding the one that has a snapshot, reading no more metadata files than that takes.
"""

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
    """A table of the cold catalog. `metadata` has the live table's uuid, whatever the cold one's own is."""

    name: str
    metadata: TableMetadata


class ColdTables:
    """`newest`, and the closed tables that its properties list. `read`: the location and the bytes of a closed table's
    metadata file, by name; asked for when it is needed, each time.

    Raises UnreadableMetadata for a damaged list, and where a closed table is not what it should be.
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
        """Those of the live table with that uuid; None before its first handoff. `records` reach `root`."""
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
                    hint="bring the catalog's row back; the metadata file of the newest table is whole",
                ) from error
            return location, cold_stores.read(location)

        try:
            entry = catalog.entry(name)
        except NoSuchTable:
            return None
        return cls(ColdTable(name, read_table_metadata(cold_stores, entry.metadata_location)), read, cold_stores.limits)

    def __iter__(self) -> Iterator[ColdTable]:
        """All of them, the newest first."""
        yield self.newest
        for closed in reversed(self.closed):
            yield self._parsed(closed, *self._read(closed.name))

    def holding(self, snapshot_id: int) -> ColdTable | None:
        """The table that has a snapshot."""
        if self.newest.metadata.snapshot(snapshot_id) is not None:
            return self.newest
        found = self._naming(str(snapshot_id))
        return next((table for table in found if table.metadata.snapshot(snapshot_id) is not None), None)

    @cached_property
    def tags(self) -> tuple[Meaning, ...]:
        """What the live table's refs meant, as far as handoffs saw. Raises UnreadableMetadata."""
        return history_of(self.newest.metadata.properties)

    @property
    def tags_known_until(self) -> int:
        """Up to which instant (epoch ms) `tags` tells."""
        return int(self.newest.metadata.properties.get(COMPLETE_UNTIL, 0))

    def tagged(self, tag: str) -> tuple[int, str] | None:
        """A tag's snapshot, and the name of the table that has it; the newest one, where two have the tag. For tags
        from before their history was kept."""
        for table in (self.newest, *self._naming(json.dumps(tag, ensure_ascii=False))):
            ref = table.metadata.refs.get(tag)
            if ref is not None and not ref.is_branch:
                return ref.snapshot_id, table.name
        return None

    def closed_log(self, at_ms: int) -> tuple[LogEntry, ...] | None:
        """The snapshot log of the closed table that covers an instant; None where the newest one does."""
        closed = covering(self.closed, at_ms)
        return None if closed is None else self._parsed(closed, *self._read(closed.name)).metadata.snapshot_log

    def whole(self) -> TableMetadata:
        """All of them as one: the newest table's metadata with everybody's snapshots, tags, log and statistics. Its
        metadata log names every closed table's metadata files, too."""
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
            # A table that was closed for its name mapping has the log of the one that it was closed from.
            snapshot_log=tuple(dict.fromkeys(entry for table in tables for entry in table.snapshot_log)),
            statistics=tuple(file for table in tables for file in table.statistics),
            metadata_log=tuple(
                entry
                for table in tables
                for entry in (*table.metadata_log, MetadataLogEntry(table.last_updated_ms, table.metadata_location))
            ),
        )

    def _naming(self, text: str) -> Iterator[ColdTable]:
        """The closed tables whose metadata file has the text anywhere: a file of 100 MB is searched in a moment, and
        parsed in many."""
        wanted = text.encode()
        for closed in reversed(self.closed):
            location, data = self._read(closed.name)
            if wanted in data:
                yield self._parsed(closed, location, data)

    def _parsed(self, closed: ClosedTable, location: str, data: bytes) -> ColdTable:
        metadata = parse_table_metadata(data, location, self._limits)
        return ColdTable(closed.name, replace(metadata, table_uuid=self.newest.metadata.table_uuid))
