"""The tables of a Nessie catalog, for the walk: each as what all its live versions have together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from threading import Condition, RLock
from typing import TYPE_CHECKING

from artemis_lifecycle.catalogs.identifier import CatalogEntry, Identifier, dotted, parse
from artemis_lifecycle.catalogs.references import TABLE, VIEW
from artemis_lifecycle.config.deployment import OtherCatalog
from artemis_lifecycle.errors import NotApplicable
from artemis_lifecycle.expiration.commit import ExpirationCommit
from artemis_lifecycle.expiration.plan import ExpirationPlan, Wanted
from artemis_lifecycle.live_sets.mark import Policies, policies_of
from artemis_lifecycle.live_sets.tables import LiveTables
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.operations.live_sets import USABLE, LiveSet, Snapshots
from artemis_lifecycle.protection.context import DeletionContext, TablesOfCatalog
from artemis_lifecycle.reachability.reached import Pointer
from artemis_lifecycle.reachability.walk import ReachableSet, reachable_files, reachable_set
from artemis_lifecycle.session.contexts import context_of, live_index
from artemis_lifecycle.session.formats import Explanation, Kind, TableState
from artemis_lifecycle.session.live_catalogs import MarkedTables
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.walk.marking import MarkedCatalog, mark_catalog

if TYPE_CHECKING:
    from artemis_lifecycle.nessie.references import NessieReferences


@dataclass(frozen=True)
class _BesideLive:
    """The tables of a Nessie catalog, and those of the live catalog: one that was registered there, or took files by
    add_files, reads what no reference shows any more."""

    nessie: TablesOfCatalog
    live: TablesOfCatalog
    prefix: str

    def tables(self) -> list[str]:
        return [*self.nessie.tables(), *self.live.tables()]

    def entry(self, table: str) -> Pointer:
        return (self.nessie if table.startswith(self.prefix) else self.live).entry(table)

    def pointers(self) -> Mapping[str, Pointer]:
        return {**self.live.pointers(), **self.nessie.pointers()}

    def others(self) -> Sequence[CatalogEntry]:
        return self.live.others()


@dataclass(frozen=True)
class _Readers:
    """The tables of a Nessie catalog as readers of other catalogs' files."""

    nessie: NessieTables

    def tables(self) -> list[str]:
        return self.nessie.marked().tables()

    def entry(self, table: str) -> Pointer:
        return self.nessie.marked().entry(table)

    def pointers(self) -> Mapping[str, Pointer]:
        return self.nessie.marked().pointers()

    def observed(self) -> Mapping[str, Pointer]:
        return self.nessie.marked().observed()

    def others(self) -> Sequence[CatalogEntry]:
        """Return the folders with the metadata files of views."""
        folders = enumerate(self.nessie.marked().view_folders())
        names = ((Identifier(("views",), str(number)), folder) for number, folder in folders)
        return [CatalogEntry(self.nessie.name, name, "", type=VIEW, location=folder) for name, folder in names]


class NessieTables:
    """Implements `formats.OtherTables`. Its tables are those of the newest live-contents set, or of the one that is
    being swept, and what references show since."""

    def __init__(
        self, resources: Resources, name: str, config: OtherCatalog, explain: Callable[[str, str], Explanation]
    ) -> None:
        self.name = name
        self._explain = explain
        self.config = config
        self._resources = resources
        self._opened: dict[str, LiveTables] = {}
        self._swept: str | None = None
        self._lock = RLock()
        self._turn = Condition()
        self._sweeps = 0

    @property
    def kind(self) -> Kind:
        return "nessie"

    @cached_property
    def source(self) -> NessieReferences:
        # They load an HTTP client, which takes 0.04 s, also where no Nessie catalog is.
        from artemis_lifecycle.nessie.references import NessieClient, NessieReferences

        assert self.config.uri is not None
        return NessieReferences(NessieClient(self.config.uri, self.config.properties.get("token")))

    def mark(self, policies: Policies, snapshots: Snapshots | None = None) -> LiveSet:
        """Record what is live now. See `mark_catalog`."""
        catalog = MarkedCatalog(self.name, self.source, f"{self.name}:", has_branches=True)
        kept = self.config.mark.snapshots if snapshots is None else snapshots
        return mark_catalog(self._resources, catalog, policies, kept, self.config.mark.threads)

    def of_set(self, live_set: LiveSet) -> LiveTables:
        """Return the tables of a set. Opened once, because its rows never change."""
        with self._lock:
            if live_set.live_set_id not in self._opened:
                self._opened[live_set.live_set_id] = LiveTables(
                    live_set,
                    self._resources.operations.live_sets,
                    self.source,
                    self._resources.live_stores,
                    self._resources.root,
                    prefix=f"{self.name}:",
                    policies=_policies(live_set),
                )
            return self._opened[live_set.live_set_id]

    @contextmanager
    def sweeping(self, live_set: LiveSet) -> Iterator[LiveTables]:
        """Inside the block, the catalog's tables are those of this set, even if there is a newer one."""
        with self._turn:
            # A sweep of another set waits. Threads of this one come here again for each deletion.
            self._turn.wait_for(lambda: self._swept in (None, live_set.live_set_id))
            self._swept, self._sweeps = live_set.live_set_id, self._sweeps + 1
        try:
            yield self.of_set(live_set)
        finally:
            with self._turn:
                self._sweeps -= 1
                if not self._sweeps:
                    self._swept = None
                    self._turn.notify_all()

    def current(self, table: str | None = None) -> LiveTables:
        """Return the tables of the newest usable set that keeps what lifecycle.yaml says. Without one, with one older
        than `mark.max_age`, or if it lacks `table`, which the default branch has, mark anew by those policies."""
        with self._lock:
            sets, swept = self._resources.operations.live_sets, self._swept
            if swept is not None:
                return self.of_set(sets.get(swept))
            now = self._resources.operations.clock.now()
            wanted = policies_of(self.config.mark.policies, now)
            found = next((each for each in sets.all(self.name) if self._decides(each, wanted, now)), None)
            if found is not None:
                tables = self.of_set(found)
                if table is None or tables.has(table) or not self._is_new(table, found):
                    return tables
            return self.of_set(self.mark(wanted))

    def readers(self) -> MarkedTables:
        """Return the tables of the newest set that keeps what lifecycle.yaml says, however old it is, with what
        references show since. Without one, the first question marks."""
        return _Readers(self)

    def marked(self) -> LiveTables:
        """Return the tables for `readers`."""
        with self._lock:
            sets = self._resources.operations.live_sets
            wanted = policies_of(self.config.mark.policies, self._resources.operations.clock.now())
            found = next((each for each in sets.all(self.name) if self._keeps(each, wanted)), None)
            return self.of_set(self.mark(wanted) if found is None else found)

    def _is_new(self, table: str, live_set: LiveSet) -> bool:
        """Return True if the table got its name after that mark: created, renamed, or merged."""
        known = {each.name: each.head for each in self._resources.operations.live_sets.references(live_set.live_set_id)}
        default = self.source.references()[0]
        return known.get(default.name) != default.head and table in self.tables()

    def _decides(self, live_set: LiveSet, wanted: Policies, now: datetime) -> bool:
        """Return True if files may be judged by a set that nobody named."""
        return now - self.config.mark.max_age <= live_set.created_at <= now and self._keeps(live_set, wanted)

    def _keeps(self, live_set: LiveSet, wanted: Policies) -> bool:
        """Return True if the set keeps what lifecycle.yaml says: a mark with other policies is a trial."""
        return (
            live_set.state in USABLE
            and live_set.snapshots in ("all", self.config.mark.snapshots)
            and _policies(live_set).keep_all_of(wanted)
        )

    # --- formats.OtherTables ----------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        """Return the tables of the default branch, and those that the newest set found on other references."""
        source, sets = self.source, self._resources.unchecked_operations.live_sets
        heads = source.contents_at(source.references()[0].head)
        found = {f"{self.name}:{dotted(content.key)}" for content in heads if content.type == TABLE}
        newest = sets.newest(self.name)
        if newest is not None:
            found |= {
                each.table for each in sets.contents(newest.live_set_id) if each.type == TABLE and "@" in each.table
            }
        return sorted(found)

    def state(self, table: str) -> TableState:
        read_at = self._resources.clock.now()
        found = self.current(table).entry(table)
        entry = CatalogEntry(self.name, parse(table.removeprefix(f"{self.name}:")), found.metadata_location)
        metadata = read_table_metadata(self._resources.live_stores, found.metadata_location)
        return TableState(entry, metadata, read_at, catalog=self.name)

    def context(self, table: str) -> DeletionContext:
        resources, config = self._resources, self._resources.config
        tables = self.current(table)
        others = (each.warehouse for name, each in config.catalogs.others.items() if name != self.name)
        live = (each.root for each in config.catalogs.iceberg)
        tiers = (*live, config.catalogs.cold.root, config.quarantine.root, *others)
        context = context_of(resources, table)
        return replace(
            context,
            catalog=_BesideLive(tables, resources.readers_of(table), f"{self.name}:"),
            catalog_name=self.name,
            other_catalogs=tuple(each.name for each in config.catalogs.iceberg),
            configured=(*context.configured, self.name),
            reserved=(*(tier.rstrip("/") for tier in tiers if tier is not None), *tables.view_folders()),
            roots=self.config.places,
            is_branched=True,
        )

    def reachable_set(self, table: str, now: datetime | None) -> ReachableSet:
        """Return what all live versions reach. `now` changes nothing: the set's policies decided what is live."""
        state = self.state(table)
        view = live_index(self._resources, table, state.metadata)
        snapshot_ids = [snapshot.snapshot_id for snapshot in state.metadata.snapshots]
        rows = reachable_files(Runner(self._resources.start_spark), view, snapshot_ids)
        return reachable_set(table, state.metadata.metadata_location, snapshot_ids, rows)

    def explain(self, table: str, path: str) -> Explanation:
        """Explain a file by the metadata file that has all live versions of the table."""
        return self._explain(table, path)

    def skip_if_idle(self, table: str) -> bool:
        raise self._by_references(table)

    def plan_expiration(self, table: str, wanted: Wanted) -> ExpirationPlan:
        raise self._by_references(table)

    def commit_expiration(self, plan: ExpirationPlan, *, dry_run: bool) -> ExpirationCommit:
        raise self._by_references(plan.table)

    def close(self) -> None:
        """Sessions close with their threads."""

    def _by_references(self, table: str) -> NotApplicable:
        return NotApplicable(
            "Which versions of a Nessie table stay is decided by its references, not by expiring snapshots",
            table=table,
            hint=f"artemis mark {self.name}, then artemis sweep",
        )


def _policies(live_set: LiveSet) -> Policies:
    """Return the policies of a set, whose durations became instants."""
    pairs = [tuple(text.rsplit(": ", 1)) for text in live_set.policies]
    return policies_of(pairs, datetime.max.replace(tzinfo=UTC))  # type: ignore[arg-type]
