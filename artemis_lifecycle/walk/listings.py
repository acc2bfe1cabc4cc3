"""Listings of a table's files, and the folders that they cover."""

from __future__ import annotations

from artemis_lifecycle.orphans.listing import Listing, folders_to_list, list_table
from artemis_lifecycle.protection.ownership import former_locations, spelled_locations
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Step, TableState


def take_listing(resources: Resources, state: TableState, location: str | None, step: Step) -> Listing:
    """List the table's locations, or `location` inside them, and seal the listing."""
    listing = list_table(
        resources.start_spark,
        resources.live_stores,
        listed_locations(resources, state, location),
        root=resources.root,
        clock=resources.operations.clock.now,
        rules=resources.rules(state.name),
        check=step.check,
    )
    resources.operations.scans.store_listing(listing.record(state.metadata.table_uuid, state.name))
    return listing


def listed_locations(resources: Resources, state: TableState, location: str | None = None) -> list[str]:
    """Return the folders to list: the table's locations, or `location`, which may be a former one, or a folder in any.
    Raises BadInput for another."""
    metadata, rules, live = state.metadata, resources.rules(state.name), resources.config.catalogs.of(state.name)
    recorded = resources.operations.table_locations.of_table(metadata.table_uuid)
    return folders_to_list(
        state.name,
        spelled_locations(metadata),
        [*recorded, *former_locations(resources.live_stores, metadata, rules)],
        location,
        rules,
        live.places,
    )
