"""The manifest indexes of live and cold tables."""

from __future__ import annotations

from dataclasses import dataclass

from artemis_lifecycle.cold_tier.verify import cold_index
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index import IndexSettings, IndexView
from artemis_lifecycle.reachability.walk import indexed


@dataclass(frozen=True)
class Indexes:
    """The index of any table, brought up to its metadata."""

    resources: Resources

    def live(self, table: str, metadata: TableMetadata) -> IndexView:
        """The index of a live table."""
        settings = IndexSettings.from_config(self.resources.config, table)
        return indexed(
            self.resources.spark,
            self.resources.live_stores,
            metadata,
            self.resources.rules(table),
            self.resources.root,
            settings,
        )

    def cold(self, table: str, cold: TableMetadata) -> IndexView:
        """The index of the cold tables of a live one."""
        return cold_index(
            self.resources.spark,
            self.resources.cold_stores,
            self.resources.live_stores,
            cold,
            self.resources.rules(table),
            self.resources.root,
        )
