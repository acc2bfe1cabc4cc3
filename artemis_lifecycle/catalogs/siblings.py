"""The tables of every catalog that shares one `iceberg_tables`: the neighbors of a deletion.

A SQL catalog is a name in a column. Catalogs with different names in one database, often with one warehouse, are
neighbors just like the tables of one catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from artemis_lifecycle.catalogs.identifier import CatalogEntry
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.errors import LocationConflict


@dataclass(frozen=True)
class Beside:
    """The tables of sibling catalogs, as `<catalog>:<namespace.table>`."""

    rows: Mapping[str, CatalogEntry]

    def tables(self) -> list[str]:
        """Return every name, sorted."""
        return sorted(self.rows)

    def entry(self, table: str) -> CatalogEntry:
        """Return the table's row."""
        return self.rows[table]

    def pointers(self) -> Mapping[str, CatalogEntry]:
        """Return the row of every table, by name."""
        return self.rows

    def others(self) -> list[CatalogEntry]:
        """Return nothing: those of all catalogs are the live catalog's."""
        return []


class CatalogsOfDatabase:
    """The live catalog's tables by their names, and those of sibling catalogs as `<catalog>:<namespace.table>`.

    `without` are excluded catalogs, except tables that no handoff put there: the cold one, whose whole warehouse is
    off limits. A live catalog that is not in
    SQL has no siblings. `confirm` is called before all pointers are read, as happens before files are deleted, and
    raises if no more work may be done in the catalog.
    """

    def __init__(
        self, live: CatalogReader, without: Collection[str] = (), confirm: Callable[[], None] = lambda: None
    ) -> None:
        self._live = live
        self._without = tuple(without)
        self._confirm = confirm

    def tables(self) -> list[str]:
        """Return every name, sorted."""
        return sorted(self._apart(self._live.tables(), self._others()))

    def entry(self, table: str) -> CatalogEntry:
        """Return the table's row. Raises NoSuchTable; BadInput for an invalid identifier."""
        other = self._live.beside(self._without, table).get(table) if ":" in table else None
        return other or self._live.entry(table)

    def pointers(self) -> dict[str, CatalogEntry]:
        """Return the row of every table, by name."""
        self._confirm()
        live, others = self._live.pointers(), self._others()
        self._apart(live, others)
        return live | others

    def others(self) -> list[CatalogEntry]:
        """Return every object that is not a table, of the live catalog and of all catalogs in its database."""
        return self._live.others()

    def beside(self) -> Beside:
        """Return the tables of sibling catalogs alone."""
        return Beside(self._others())

    def _others(self) -> dict[str, CatalogEntry]:
        return self._live.beside(self._without)

    def _apart(self, live: Collection[str], others: Collection[str]) -> list[str]:
        """Return all these names. Raises LocationConflict if one would stand for two tables."""
        both = set(live).intersection(others)
        if both:
            raise LocationConflict(
                f"Catalog {self._live.name} has a table with the qualified name of a table in another catalog of the "
                "same database",
                table=min(both),
                untouched="all files",
                hint="rename one of the two",
            )
        return [*live, *others]
