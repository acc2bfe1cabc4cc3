"""Listings of a table's files: taken in a step of their own or in another one, and the newest."""

from __future__ import annotations

from dataclasses import dataclass

from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Step, Steps, TableState
from artemis_lifecycle.orphans.listing import Listing, list_table
from artemis_lifecycle.orphans.locations import folders_to_list
from artemis_lifecycle.protection.ownership import former_locations, spelled_locations


@dataclass(frozen=True)
class Listings:
    """Lists tables, and seals what it lists."""

    resources: Resources
    steps: Steps

    def list_objects(self, table: str, location: str | None = None) -> Listing:
        """List every file below the table's locations (or below `location` inside them), and seal the listing.

        Taken before any metadata that it will be compared with; `scan_orphans(listing=...)` reads that anew.
        """
        state = self.steps.table_state(table)
        with self.steps.run(state, "listing") as step:
            listing = self.take(state, location, step)
            step.counts = {"files": listing.files, "bytes": listing.bytes}
        return listing

    def latest_listing(self, table: str) -> Listing | None:
        """The newest sealed listing of the table, if there is one."""
        record = self.resources.operations.scans.latest_listing(self.steps.table_state(table).metadata.table_uuid)
        return None if record is None else Listing.of_record(record)

    def take(self, state: TableState, location: str | None, step: Step) -> Listing:
        """A sealed listing of the table's locations, or of `location` in them."""
        listing = list_table(
            self.resources.spark,
            self.resources.live_stores,
            self.locations(state, location),
            root=self.resources.root,
            clock=self.resources.operations.clock.now,
            rules=self.resources.rules(state.name),
            check=step.check,
        )
        self.resources.operations.scans.store_listing(listing.record(state.metadata.table_uuid, state.name))
        return listing

    def locations(self, state: TableState, location: str | None = None) -> list[str]:
        """The folders to list: the table's locations, or `location`, which may be a former one, or a folder in any.
        Raises BadInput for another."""
        metadata, rules, live = state.metadata, self.resources.rules(state.name), self.resources.config.catalogs.live
        recorded = self.resources.operations.table_locations.of_table(metadata.table_uuid)
        return folders_to_list(
            state.name,
            spelled_locations(metadata),
            [*recorded, *former_locations(self.resources.live_stores, metadata, rules)],
            location,
            rules,
            [root for root in (live.warehouse, *live.roots) if root is not None],
        )
