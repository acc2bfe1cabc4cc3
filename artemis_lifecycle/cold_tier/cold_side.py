"""The cold catalog from protection's view: the cold tables of one live table as one table, and all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from artemis_lifecycle.catalogs.live import CatalogEntry, CatalogReader
from artemis_lifecycle.cold_tier.cold_tables import ColdTables
from artemis_lifecycle.cold_tier.paths import ColdIdentity, no_cold_table
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index import IndexView


class ColdSide:
    """`table` is the live table. `open_tables` looks up its cold tables again; `index` covers what they reach together.

    Raises NoSuchTable if there is no cold table, and UnreadableMetadata for one that cannot be read.
    """

    def __init__(
        self,
        table: str,
        identity: ColdIdentity,
        catalog: CatalogReader,
        open_tables: Callable[[], ColdTables | None],
        index: Callable[[TableMetadata], IndexView],
    ) -> None:
        self.identity = identity
        self._table = table
        self._catalog = catalog
        self._open = open_tables
        self._index = index
        self._view: IndexView | None = None
        self._rows: dict[str, CatalogEntry | None] = {}
        self._whole: TableMetadata | None = None

    def current(self) -> TableMetadata:
        """Return all of the table's cold tables as one; the same object as long as their catalog rows do not change."""
        return self._as_of(self._catalog.pointers())

    def _as_of(self, rows: Mapping[str, CatalogEntry]) -> TableMetadata:
        if self._whole is None or any(rows.get(name) != row for name, row in self._rows.items()):
            tables = self._open()
            if tables is None:
                raise no_cold_table(self._table)
            names = [tables.newest.name, *(closed.name for closed in tables.closed)]
            self._rows, self._whole = {name: rows.get(name) for name in names}, tables.whole()
        return self._whole

    def index(self, metadata: TableMetadata) -> IndexView:
        """Return the index of everything that these tables reach, as of `metadata`."""
        if self._view is None or self._view.metadata is not metadata:
            self._view = self._index(metadata)
        return self._view

    def tables(self) -> list[str]:
        """Return the other tables of the cold catalog."""
        return list(self.pointers())

    def entry(self, table: str) -> CatalogEntry:
        return self._catalog.entry(table)

    def others(self) -> list[CatalogEntry]:
        return self._catalog.others()

    def pointers(self) -> dict[str, CatalogEntry]:
        rows = self._catalog.pointers()
        self._as_of(rows)
        return {name: row for name, row in rows.items() if name not in self._rows}
