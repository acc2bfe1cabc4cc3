"""Garbage collection over a whole catalog: mark, sweep, and the sets between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from artemis_lifecycle.catalogs.identifier import CatalogEntry, parse
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.results import NAMESPACE
from artemis_lifecycle.errors import BadInput, LifecycleError, MissingFile, PlanStateError, UnreadableMetadata
from artemis_lifecycle.live_sets.mark import Given, PlainReferences, policies_of
from artemis_lifecycle.live_sets.sweep import (
    LiveSetComparison,
    Sweep,
    TableSweep,
    Unseen,
    compared,
    deleted,
    sweep_tables,
    unused_locations,
)
from artemis_lifecycle.live_sets.tables import LiveTables
from artemis_lifecycle.operations.live_sets import (
    BaseLocation,
    LiveContent,
    LiveSet,
    SetReference,
    Snapshots,
    SweptTable,
)
from artemis_lifecycle.orphans import dropped
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.scan import OrphanScanResult
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps
from artemis_lifecycle.storage.location import normalize
from artemis_lifecycle.walk.dropped import DroppedTables
from artemis_lifecycle.walk.marking import MarkedCatalog, mark_catalog
from artemis_lifecycle.walk.nessie import NessieTables
from artemis_lifecycle.walk.orphans import Orphans

_THREADS = 2


@dataclass(frozen=True)
class LiveSetDetails:
    """A set, with what was found. `tables` are those of its last sweep."""

    live_set: LiveSet
    references: tuple[SetReference, ...]
    contents: tuple[LiveContent, ...]
    tables: tuple[SweptTable, ...]


@dataclass(frozen=True)
class LiveSets:
    """Marks catalogs, sweeps sets."""

    resources: Resources
    steps: Steps
    orphans: Orphans
    dropped: DroppedTables

    def live_sets(self) -> list[LiveSet]:
        """Return all live-contents sets, newest first."""
        return list(self.resources.operations.live_sets.all())

    def live_set(self, live_set_id: str) -> LiveSetDetails:
        """Return a set with its references, contents and swept tables. Raises NoSuchPlan."""
        sets = self.resources.operations.live_sets
        found = sets.get(live_set_id)
        return LiveSetDetails(
            found, sets.references(live_set_id), sets.contents(live_set_id), sets.swept_tables(live_set_id)
        )

    def compare(self, before: str, after: str) -> LiveSetComparison:
        """Return which versions and contents only one of two sets has. Raises NoSuchPlan; BadInput for sets of
        different catalogs."""
        sets = self.resources.operations.live_sets
        first, second = sets.get(before), sets.get(after)
        if first.catalog != second.catalog:
            raise BadInput(
                f"The sets are of different catalogs: {first.catalog} and {second.catalog}",
                hint="list the sets: artemis live-sets list",
            )
        names = {each.content_id: each.table for live_set_id in (before, after) for each in sets.contents(live_set_id)}
        with sets.versions(before) as first_versions, sets.versions(after) as second_versions:
            return compared(before, after, first_versions, second_versions, names)

    def delete(self, live_set_id: str) -> None:
        """Delete a set. Raises PlanStateError while a deferred deletion needs it, NoSuchPlan."""
        self.resources.operations.live_sets.delete(live_set_id)

    def mark(
        self,
        catalog: str,
        policies: Mapping[str, Given] | Sequence[tuple[str, Given]] | None = None,
        *,
        now: datetime | None = None,
        snapshots: Snapshots | None = None,
    ) -> LiveSet:
        """Record which versions of which contents the references of `catalog` keep alive: a live catalog, with one
        reference per table, or a Nessie catalog in `catalogs.others`. Changes nothing in the catalog.

        `policies` have a cutoff by pattern of references, in order: a number of commits, a duration ("30d", which ends
        at `now`, which may only be in the past), an instant, or None or "none" for no cutoff. The first match wins;
        without one, all commits are live, and so is each head. None means those of lifecycle.yaml. `snapshots`: "all",
        or only "referenced" ones.

        Raises BadInput for another catalog or an unusable policy; ClocksDisagree, where a cutoff is a time; what the
        catalog raises, with the set `failed`.
        """
        resources, nessie = self.resources, self._nessie(catalog)
        reader = None if nessie is not None else resources.catalogs.reader(catalog)
        resources.require_deployment(resources.prefix_of(catalog))
        instant = resources.past(now)
        if nessie is not None:
            chosen = nessie.config.mark.policies if policies is None else policies
            return nessie.mark(policies_of(chosen, instant), snapshots)
        assert reader is not None
        source = PlainReferences(partial(_pointers, reader), resources.live_stores)
        marked = MarkedCatalog(catalog, source, reader.prefix, False)
        return mark_catalog(resources, marked, policies_of(policies, instant), snapshots or "all", _THREADS)

    def sweep(self, live_set_id: str, *, deferred: bool, threads: int) -> Sweep:
        sets = self.resources.operations.live_sets
        self.resources.require_deployment(self.resources.prefix_of(sets.get(live_set_id).catalog))
        # What is unseen becomes due some time later.
        self.resources.require_clocks()
        if (made := sets.get(live_set_id).created_at) > (now := self.resources.clock.now()):
            raise PlanStateError(
                f"Set {live_set_id} was made at {made.isoformat()}, which is after {now.isoformat()}, the time by "
                "Postgres' clock: that clock was wrong",
                untouched="all files",
                hint="mark again: artemis mark",
            )
        live_set = sets.sweeping(live_set_id)
        nessie = self._nessie(live_set.catalog)
        if nessie is None:
            # First of all: a table that is gone by now, or whose name has another one, keeps its files for its time.
            self.dropped.observe_catalog(None)
            pairs = {(each.table, each.table_uuid or "") for each in sets.contents(live_set_id)}
            swept = self._tables(live_set, sorted(pairs), deferred, threads)
            return self._finished(live_set, deferred, swept, self._gone(live_set.catalog))
        with nessie.sweeping(live_set) as tables:
            try:
                live = tables.live()
            except UnreadableMetadata as error:
                # Missing metadata never means that there are no files: nothing of the catalog is swept.
                sets.fail(live_set_id, str(error))
                raise
            sets.saw_locations(
                live_set.catalog, {(each.table_uuid, place): each.table for each in live for place in each.locations}
            )
            for each in live:
                places = [normalize(place, self.resources.rules(each.table)) for place in each.locations]
                self.resources.operations.table_locations.saw(each.table_uuid, places, each.metadata_location)
            resources = self.resources
            stores, operations, name = resources.live_stores, resources.operations, live_set.catalog
            dropped.observe(tables, stores, operations, name, resources.rules, names_are_lines=False)
            swept = self._tables(live_set, [(each.table, each.table_uuid) for each in live], deferred, threads)
            unseen = self._gone(live_set.catalog)
            if nessie.config.mark.unseen == "delete":
                if live:
                    swept += self._clear_gone(live_set, unseen, deferred=deferred)
                else:
                    # More likely the wrong server, or one that lost its version store, than one without any table.
                    why = "the catalog shows no table at all; artemis scan-dropped deletes the files of one"
                    swept += tuple(TableSweep(each.table, each.table_uuid, waits=why) for each in self._due(unseen))
            unused = self._unused(live_set, tables)
            if nessie.config.mark.unseen == "delete":
                swept += self._clear_unused(live_set, unused, tables, deferred=deferred)
            return self._finished(live_set, deferred, swept, [*unseen, *unused])

    def _finished(
        self, live_set: LiveSet, deferred: bool, swept: tuple[TableSweep, ...], unseen: Sequence[Unseen]
    ) -> Sweep:
        sets = self.resources.operations.live_sets
        # A sweep that left tables out can be repeated.
        failed = any(each.error is not None for each in swept)
        return Sweep(
            sets.get(live_set.live_set_id) if failed else sets.swept(live_set.live_set_id), deferred, swept, (*unseen,)
        )

    def _tables(
        self, live_set: LiveSet, tables: Sequence[tuple[str, str]], deferred: bool, threads: int
    ) -> tuple[TableSweep, ...]:
        return sweep_tables(
            live_set.live_set_id,
            tables,
            self.resources.operations.live_sets.swept_table,
            walk=self.orphans.list_objects,
            scan=partial(self._scan, live_set),
            name_of=self._name,
            delete=None if deferred else self.orphans.delete_orphans,
            threads=threads,
            check=partial(self.resources.require_deployment, self.resources.prefix_of(live_set.catalog)),
        )

    def _name(self, table: str, table_uuid: str) -> str:
        return self.steps.state_of(table, table_uuid).name

    def _scan(self, live_set: LiveSet, table: str, listing: Listing) -> OrphanScanResult:
        try:
            return self.orphans.scan_orphans(table, listing=listing)
        except (UnreadableMetadata, MissingFile) as error:
            if live_set.snapshots == "referenced" or self.resources.other(table) is None:
                raise
            # Collectors that keep only what references show leave snapshots without files (nessie 5282, 10046).
            raise UnreadableMetadata(
                f"Files that a snapshot in a live version's metadata needs are gone: {error.what}",
                table=table,
                path=error.path,
                untouched="all files of the table",
                hint="restore them; or, if an earlier collector removed snapshots that no reference shows, mark with "
                "snapshots: referenced",
            ) from error

    # --- what nothing live uses -------------------------------------------------------------------------------------

    def _gone(self, catalog: str) -> list[Unseen]:
        """Return the tables that the catalog had and that no live reference shows."""
        return [
            Unseen(
                known.table,
                known.table_uuid,
                None,
                known.first_seen,
                known.last_seen,
                known.missing_since + self._keep(known.table),
            )
            for known in self.resources.operations.known_tables.missing(catalog)
            if known.missing_since is not None and known.gone_at is None
        ]

    def _keep(self, table: str) -> timedelta:
        return max(each.dropped.keep for each in self.resources.config.policies(table))

    def _clear_gone(self, live_set: LiveSet, unseen: Sequence[Unseen], *, deferred: bool) -> tuple[TableSweep, ...]:
        done: list[TableSweep] = []
        for each in self._due(unseen):
            try:
                scan = self.dropped.scan_dropped(each.table, live_set.catalog, each.table_uuid)
            except LifecycleError as error:
                # Kept by a person, by a hold, or because files are young.
                done.append(TableSweep(each.table, each.table_uuid, waits=str(error)))
                continue
            done.append(self._settled(live_set, each, scan, deferred=deferred))
        return tuple(done)

    def _unused(self, live_set: LiveSet, tables: LiveTables) -> list[Unseen]:
        live = tables.live()
        used = [place for each in live for place in each.locations]
        rules = self.resources.rules(live_set.catalog)
        known = self.resources.operations.live_sets.locations(live_set.catalog)
        has_table = {each.table_uuid for each in live}
        found: list[BaseLocation] = unused_locations(
            [each for each in known if each.table_uuid in has_table], used, live_set.created_at, rules
        )
        keep = {each.table: self._keep(each.table) for each in found}
        return [
            Unseen(
                each.table,
                each.table_uuid,
                each.location,
                each.first_seen,
                each.last_seen,
                max(each.first_seen, each.last_seen) + keep[each.table],
            )
            for each in found
        ]

    def _clear_unused(
        self, live_set: LiveSet, unused: Sequence[Unseen], tables: LiveTables, *, deferred: bool
    ) -> tuple[TableSweep, ...]:
        names = {each.table_uuid: each.table for each in tables.live()}
        done: list[TableSweep] = []
        for each in self._due(unused):
            try:
                table = self._name(names[each.table_uuid], each.table_uuid)
                scan = self._scan(live_set, table, self.orphans.list_objects(table, each.location))
            except LifecycleError as error:
                done.append(TableSweep(each.table, each.table_uuid, error=str(error)))
                continue
            settled = self._settled(live_set, each, scan, deferred=deferred)
            done.append(settled)
            kept = scan.summary.listed_files - scan.summary.orphan_files
            if not deferred and settled.waits is None and not kept and each.location is not None:
                self.resources.operations.live_sets.forget_location(live_set.catalog, each.table_uuid, each.location)
        return tuple(done)

    def _settled(self, live_set: LiveSet, each: Unseen, scan: OrphanScanResult, *, deferred: bool) -> TableSweep:
        found = TableSweep(
            each.table, each.table_uuid, scan.scan_id, scan.summary.orphan_files, scan.summary.orphan_bytes
        )
        if each.location is None:
            row = SweptTable(live_set.live_set_id, each.table_uuid, each.table, scan.scan_id, None)
            self.resources.operations.live_sets.swept_table(row)
        return found if deferred else deleted(found, self.orphans.delete_orphans)

    def _due(self, unseen: Sequence[Unseen]) -> list[Unseen]:
        now = self.resources.operations.clock.now()
        return [each for each in unseen if each.due_at <= now]

    def _nessie(self, catalog: str) -> NessieTables | None:
        """Return the Nessie catalog of that name; None for a live catalog. Raises BadInput for any other."""
        found = self.resources.others.get(catalog)
        if isinstance(found, NessieTables):
            return found
        if catalog in self.resources.catalogs.names:
            return None
        raise BadInput(
            f"{catalog} is neither a live catalog nor a Nessie catalog",
            hint=f"name a live one ({', '.join(self.resources.catalogs.names)}), or one of type nessie",
        )


def _pointers(reader: CatalogReader) -> Mapping[str, CatalogEntry]:
    """Return a live catalog's tables by their names there, without the project's own result tables. Raises
    UnreadableMetadata for one that the catalog cannot load."""
    prefix, found = reader.prefix, reader.pointers()
    for key, each in found.items():
        if each.problem is not None:
            raise UnreadableMetadata.of(each.problem, None, key)
    tables = {key.removeprefix(prefix): each for key, each in found.items()}
    return {name: each for name, each in tables.items() if prefix or parse(name).namespace[0] != NAMESPACE}
