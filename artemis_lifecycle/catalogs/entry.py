"""A catalog's entry for a table, or for any other object."""

from __future__ import annotations

from dataclasses import dataclass

from artemis_lifecycle.catalogs.identifier import Identifier

TABLE = "TABLE"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table as listed by its catalog: the pointer with which every read and every commit starts.

    For any other object of the catalog, `type` is the catalog's own word for it (a view, a function, a table of another
    format). `metadata_location` is empty if it has none, and `location` is its folder if the catalog names one.
    """

    catalog: str
    name: Identifier
    metadata_location: str
    previous_metadata_location: str | None = None
    type: str = TABLE
    location: str | None = None

    @property
    def identifier(self) -> str:
        """The text of `name`, the key of the table's partition."""
        return str(self.name)

    @property
    def namespace(self) -> str:
        """The namespace as in the row of a SQL catalog: levels joined by dots."""
        return self.name.row[0]

    @property
    def table(self) -> str:
        """The name in the namespace."""
        return self.name.name
