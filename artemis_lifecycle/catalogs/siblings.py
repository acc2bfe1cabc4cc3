"""The tables of every catalog that shares one `iceberg_tables`: the neighbors of a deletion.

A SQL catalog is a name in a column. Catalogs of several names in one database, often with one warehouse, are neighbors
as much as the tables of one catalog are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from artemis_lifecycle.catalogs.entry import CatalogEntry
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.errors import LocationConflict


class CatalogsOfDatabase:
    """The live catalog's tables by their names, and those of the others beside it as `<catalog>:<namespace.table>`.

    `without` are catalogs whose tables are left out: the cold one, whose whole warehouse is out of bounds. A live
    catalog that is not in SQL has none beside it. `confirm` is called before all pointers are read, as they are before
    files go, and raises when nothing may be done in the catalog any more.
    """

    def __init__(
        self, live: CatalogReader, without: Collection[str] = (), confirm: Callable[[], None] = lambda: None
    ) -> None:
        self._live = live
        self._without = tuple(without)
        self._confirm = confirm

    def tables(self) -> list[str]:
        """Every name, sorted."""
        return sorted(self._apart(self._live.tables(), self._others()))

    def entry(self, table: str) -> CatalogEntry:
        """The table's row. Raises NoSuchTable; BadInput for a name that is not an identifier."""
        other = self._live.beside(self._without, table).get(table) if ":" in table else None
        return other or self._live.entry(table)

    def pointers(self) -> dict[str, CatalogEntry]:
        """The row of every table, by name."""
        self._confirm()
        live, others = self._live.pointers(), self._others()
        self._apart(live, others)
        return live | others

    def _others(self) -> dict[str, CatalogEntry]:
        return self._live.beside(self._without)

    def _apart(self, live: Collection[str], others: Collection[str]) -> list[str]:
        """All of these names. Raises LocationConflict where one would stand for two tables."""
        both = set(live).intersection(others)
        if both:
            raise LocationConflict(
                f"Catalog {self._live.name} has a table with the name by which a table of another catalog in the same "
                "database is known",
                table=min(both),
                untouched="all files",
                hint="rename one of the two",
            )
        return [*live, *others]
