"""The tables of every catalog that shares one `iceberg_tables`: the neighbors of a deletion.

A SQL catalog is a name in a column. Catalogs with different names in one database, often with one warehouse, are
neighbors just like the tables of one catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from artemis_lifecycle.catalogs.identifier import CatalogEntry
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.errors import LocationConflict


@dataclass(frozen=True)
class Beside:
    """The tables of sibling catalogs, as `<catalog>:<namespace.table>`; or those of a catalog that was asked before,
    with its other objects."""

    rows: Mapping[str, CatalogEntry]
    objects: Sequence[CatalogEntry] = ()

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
        """Return nothing for siblings: those of all catalogs are the live catalog's."""
        return list(self.objects)


class CatalogsOfDatabase:
    """The live catalog's tables by their names, and those of sibling catalogs as `<catalog>:<namespace.table>`.

    `without` are excluded catalogs, except tables that no handoff put there: the cold one, whose whole warehouse is
    off limits. `cold` is the reader of a cold catalog that has a database of its own. A live catalog that is not in SQL
    has no other siblings. `confirm` is called before all pointers are read, as happens before files are deleted, and
    raises if no more work may be done in the catalog.

    In a deployment of several live catalogs, those in `named` are in the same database and answer for themselves.
    Siblings are `<live catalog>+<catalog>:…` where their name alone could be a key: `keys` are the catalogs of keys.
    Those in the cold catalog's own database are `<cold catalog>+<catalog>:…`.
    """

    def __init__(
        self,
        live: CatalogReader,
        without: Collection[str] = (),
        confirm: Callable[[], None] = lambda: None,
        *,
        named: Collection[str] = (),
        keys: Collection[str] = (),
        has_siblings: bool = True,
        cold: CatalogReader | None = None,
    ) -> None:
        self._live = live
        self._cold = cold
        self._without = tuple(without)
        self._confirm = confirm
        self._named = tuple(named)
        self._keys = frozenset(keys)
        self._has_siblings = has_siblings

    def tables(self) -> list[str]:
        """Return every name, sorted."""
        return sorted(self._apart(self._live.tables(), self._others()))

    def entry(self, table: str) -> CatalogEntry:
        """Return the table's row. Raises NoSuchTable; BadInput for an invalid identifier."""
        own = self._live.prefix
        is_own = ":" not in table or (own and table.startswith(own))
        return (None if is_own else self._others(table).get(table)) or self._live.entry(table)

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

    def _others(self, key: str | None = None) -> dict[str, CatalogEntry]:
        """Return the rows of sibling catalogs by key; only the one of `key`, if given."""
        found = {}
        if self._has_siblings:
            asked = None if key is None else key.removeprefix(f"{self._live.name}+")
            rows = self._live.beside(self._without, asked, self._named)
            found = {self._key(name): entry for name, entry in rows.items()}
        if self._cold is not None:
            before = f"{self._cold.name}+"
            asked = None if key is None else key.removeprefix(before)
            rows = self._cold.beside((self._cold.name,), asked)
            found |= {f"{before}{name}": entry for name, entry in rows.items()}
        return found

    def _key(self, name: str) -> str:
        plain = not self._live.prefix and name.partition(":")[0] not in self._keys
        return name if plain else f"{self._live.name}+{name}"

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
