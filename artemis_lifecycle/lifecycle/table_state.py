"""A table at one moment, as every step reads it first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from artemis_lifecycle.metadata.types import CatalogEntry, TableMetadata


@dataclass(frozen=True)
class TableState:
    """A table at one moment: its catalog row, and the row's metadata file. For a table of another catalog than the live
    one, `catalog` is that catalog's name."""

    entry: CatalogEntry
    metadata: TableMetadata
    read_at: datetime
    is_dropped: bool = False
    catalog: str | None = None

    @property
    def name(self) -> str:
        """The table's name in every command, plan and partition."""
        identifier = self.entry.identifier
        return identifier if self.catalog is None else f"{self.catalog}:{identifier}"
