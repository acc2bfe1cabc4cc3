"""What a catalog says about a table."""

from __future__ import annotations

from dataclasses import dataclass

from artemis_lifecycle.catalogs.identifier import Identifier


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table as its catalog names it: the pointer that every reader and every commit starts from."""

    catalog: str
    name: Identifier
    metadata_location: str
    previous_metadata_location: str | None = None

    @property
    def identifier(self) -> str:
        """The text of `name`, the key of the table's partition."""
        return str(self.name)

    @property
    def namespace(self) -> str:
        """As the row of a SQL catalog has it: levels are joined by dots."""
        return self.name.row[0]

    @property
    def table(self) -> str:
        """The name in the namespace."""
        return self.name.name
