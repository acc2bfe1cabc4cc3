"""The cold catalog's entries for one live table, and the table's place in the cold tier. Belongs here: reading them.
Does not belong here: changing them (`publication`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from artemis_lifecycle.catalogs.guard import publishing_by_hand
from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.cold_tier.cold_metadata import metadata_path, snapshot_ids
from artemis_lifecycle.cold_tier.cold_split import Json, closed_tables
from artemis_lifecycle.cold_tier.evolution import with_lists
from artemis_lifecycle.cold_tier.handoff_context import HandoffContext
from artemis_lifecycle.cold_tier.paths import ColdIdentity, place, settle
from artemis_lifecycle.errors import ConfigError, HandoffFailed
from artemis_lifecycle.metadata.table_metadata import metadata_json
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores


@dataclass(frozen=True)
class ColdEntry:
    """A cold table's catalog entry. Both values are None if the table does not exist yet."""

    location: str | None = None
    metadata: Json | None = None

    @property
    def snapshot_ids(self) -> set[int]:
        return snapshot_ids(self.metadata)

    @property
    def table_uuid(self) -> str | None:
        return None if self.metadata is None else self.metadata.get("table-uuid")


@dataclass(frozen=True)
class ColdEntries:
    """The cold catalog, open for one live table."""

    catalog: CatalogReader
    stores: Stores
    table: str
    table_uuid: str
    handed_off: str | None = None

    def entry(self, name: str) -> ColdEntry:
        location = self._location(name)
        if location is None:
            return ColdEntry()
        stores = self.stores
        return ColdEntry(location, with_lists(metadata_json(stores.read(location), location, stores.limits)))

    def _location(self, name: str) -> str | None:
        return self.catalog.entry(name).metadata_location if self.catalog.exists(name) else None

    def newest(self, identity: ColdIdentity, plan_id: str | None = None) -> ColdEntry:
        """Return the cold table that new snapshots go to. Raises HandoffFailed if the name belongs to another table,
        or if the catalog was put back: what is published then would leave out the snapshots of the newer metadata.
        The handoff `plan_id` may publish its own file again."""
        # Before the pointer: a publication in between is no step back.
        recorded = {self.handed_off, self.catalog.published(identity.cold_table)}
        newest = self.entry(identity.cold_table)
        if self._is_of_another(newest):
            raise HandoffFailed(
                f"The cold catalog's {identity.cold_table} has a different table-uuid, {newest.table_uuid}",
                table=self.table,
                path=newest.location,
                untouched="the cold catalog",
                hint="drop or rename that entry, which no handoff created, and run the handoff again",
            )
        if plan_id is not None:
            recorded -= {metadata_path(identity, plan_id, newest.location, identity.cold_table)}
        self._require_newest(identity.cold_table, newest, recorded, self.table_uuid)
        for closed in closed_tables((newest.metadata or {}).get("properties")):
            published = self.catalog.published(closed.name)
            # Its metadata can be large, and is only read if it is not the published one.
            if published not in (None, self._location(closed.name)):
                self._require_newest(closed.name, self.entry(closed.name), {published})
        return newest

    def _require_newest(
        self, name: str, current: ColdEntry, recorded: set[str | None], table_uuid: str | None = None
    ) -> None:
        now = current.metadata or {}
        passed = {None, current.location, *(each["metadata-file"] for each in now.get("metadata-log") or ())}
        stored = [path for path in recorded - passed if path is not None and self.stores.head(path) is not None]
        read = [(path, metadata_json(self.stores.read(path), path, self.stores.limits)) for path in stored]
        ours = [each for each in read if table_uuid in (None, each[1].get("table-uuid"))]
        newer, lost = max(ours, key=lambda each: each[1]["last-updated-ms"], default=(None, now))
        if newer is not None and lost["last-updated-ms"] > now.get("last-updated-ms", -1):
            raise HandoffFailed(
                f"The cold catalog was put back in time: its {name} is at {current.location}, but a handoff has since "
                f"published {newer} (snapshots only there: {len(snapshot_ids(lost) - current.snapshot_ids)})",
                table=self.table,
                path=newer,
                untouched="both tiers; plans stay as they are and hold their files",
                hint="register the newer file again, in the cold catalog's database as a member of "
                f"artemis_lifecycle: {publishing_by_hand(self.catalog.name, name, newer)}; then run the step again",
            )

    def closed(self, name: str) -> ColdEntry:
        """Return a cold table that covers a past period. Raises HandoffFailed if it is missing."""
        entry = self.entry(name)
        if entry.metadata is None:
            raise HandoffFailed(
                f"The cold catalog has no table {name}, which contains older snapshots of the table",
                table=self.table,
                untouched="both tiers",
                hint="restore the catalog's row, and run the handoff again",
            )
        return entry

    def free_name(self, identity: ColdIdentity, label: str) -> str:
        """Return a name in the cold catalog for a closed table that no other live table uses."""
        name = parse(identity.cold_table).suffixed(f"_{label}")
        return str(name.suffixed(f"__{identity.table_uuid[:8]}") if self.catalog.exists(str(name)) else name)

    def name_is_taken(self) -> bool:
        """Return True if the live table's name belongs to an entry of another table."""
        return self._is_of_another(self.entry(self.table))

    def _is_of_another(self, entry: ColdEntry) -> bool:
        return entry.metadata is not None and entry.table_uuid != self.table_uuid


@contextmanager
def open_entries(context: HandoffContext, table: str, table_uuid: str) -> Iterator[ColdEntries]:
    with CatalogReader(context.config.catalogs.cold) as catalog:
        yield ColdEntries(catalog, context.cold_stores, table, table_uuid, context.handed_off)


def cold_identity(
    context: HandoffContext, table: str, table_uuid: str, live_location: str, *, dry_run: bool = False
) -> ColdIdentity:
    """Return the table's place in the cold tier, and record it if it has none. `dry_run` records nothing."""
    catalogs = context.config.catalogs
    if catalogs.live.warehouse is None or catalogs.cold.warehouse is None:
        raise ConfigError(
            "A catalog has no warehouse",
            hint="set catalogs.live.warehouse and catalogs.cold.warehouse",
        )
    live_warehouse, cold_warehouse = catalogs.live.warehouse, catalogs.cold.warehouse
    rules = LocationRules.from_config(context.config.policy(table).orphans)

    def choose(cold_locations: list[str]) -> ColdIdentity:
        with open_entries(context, table, table_uuid) as entries:
            taken = entries.name_is_taken()
        return place(
            table=table,
            table_uuid=table_uuid,
            live_location=live_location,
            live_warehouse=live_warehouse,
            cold_warehouse=cold_warehouse,
            rules=rules,
            name_is_taken=taken,
            cold_locations=cold_locations,
        )

    return settle(context.live_stores, context.root, table_uuid, choose, dry_run=dry_run)
