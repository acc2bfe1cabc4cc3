"""The metadata commit of a plan: one compare-and-swap removes snapshots and refs from the table, and changes nothing
else, except that a table property says who did it.

The guards run at every attempt, on exactly the metadata file that the swap compares: a check of another base proves
nothing.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from shlex import quote
from types import MappingProxyType
from typing import NamedTuple

from artemis_lifecycle.catalogs.commit import BaseState, Change
from artemis_lifecycle.catalogs.rest_commit import CommitTable
from artemis_lifecycle.errors import Refused, StalePlan, require_uuid
from artemis_lifecycle.expiration.plan import ExpirationPlan, refuse_unexpirable
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.manifests import live_sort_orders
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import ManifestListEntry, Snapshot, TableMetadata
from artemis_lifecycle.operations.known_tables import Swaps
from artemis_lifecycle.operations.rest_commits import PutBack
from artemis_lifecycle.retention.rules import Keepers, RetentionSettings, decide, view_of
from artemis_lifecycle.retention.views import few
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.tabular import Shown

# --- unused -----------------------------------------------------------------------------------------------------------
# Schemas, partition specs and sort orders that nothing uses, and that an expiration may remove from a table.

_THREADS = 8


class Unused(NamedTuple):
    """Ids of schemas, of partition specs and of sort orders. `witnesses` proves why other orders stay: a manifest of a
    remaining snapshot whose live files have it."""

    schemas: frozenset[int] = frozenset()
    specs: frozenset[int] = frozenset()
    orders: frozenset[int] = frozenset()
    witnesses: Mapping[int, str] = MappingProxyType({})

    def __bool__(self) -> bool:
        return bool(self.schemas or self.specs or self.orders)


class _Uses(NamedTuple):
    specs: frozenset[int]
    has_deletes: bool


@dataclass(frozen=True)
class RemovedParts:
    """What cleaning has taken from a table's metadata, or soon will: schemas, specs and sort orders by id, as JSON
    text. Also since when (epoch ms) they are known to be unused; for orders in use, the witnesses."""

    schemas: dict[int, str] = field(default_factory=dict)
    specs: dict[int, str] = field(default_factory=dict)
    specs_unused_since: dict[int, int] = field(default_factory=dict)
    orders: dict[int, str] = field(default_factory=dict)
    orders_unused_since: dict[int, int] = field(default_factory=dict)
    order_witnesses: dict[int, str] = field(default_factory=dict)
    schemas_unused_since: dict[int, int] = field(default_factory=dict)

    def extended(self, base: TableMetadata, unused: Unused, now_ms: int) -> RemovedParts:
        """Return it with what is unused in `base` at `now_ms`. What is used again loses its time."""
        schemas = unused.schemas | (self.schemas.keys() - base.schemas.keys())
        specs = unused.specs | (self.specs.keys() - base.partition_specs.keys())
        return RemovedParts(
            self.schemas | {number: base.schemas[number] for number in sorted(unused.schemas)},
            self.specs | {number: base.partition_specs[number] for number in sorted(unused.specs)},
            _since(self.specs_unused_since, specs, now_ms),
            self.orders | {number: base.sort_orders[number] for number in sorted(unused.orders)},
            _since(self.orders_unused_since, unused.orders | (self.orders.keys() - base.sort_orders.keys()), now_ms),
            dict(sorted(unused.witnesses.items())),
            _since(self.schemas_unused_since, schemas, now_ms),
        )

    def removable(self, unused: Unused, before_ms: int, *, compares_whole: bool) -> Unused:
        """Return what of `unused` may go: of the specs and orders, those that are unused since `before_ms` or longer. A
        writer that began while one was the default may still commit its files; and, in a catalog that does not compare
        whole metadata, a snapshot with a schema that was the current one when it began."""
        return unused._replace(
            schemas=unused.schemas if compares_whole else _due(self.schemas_unused_since, unused.schemas, before_ms),
            specs=_due(self.specs_unused_since, unused.specs, before_ms),
            orders=_due(self.orders_unused_since, unused.orders, before_ms),
        )

    def to_json(self) -> bytes:
        """Return the stored form."""
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> RemovedParts:
        """Read the stored form. Raises ValueError, KeyError, AttributeError for another one."""
        parts = {"schemas_unused_since": {}, **json.loads(data)}
        return cls(*({int(number): value for number, value in parts[each.name].items()} for each in fields(cls)))


def _since(known: Mapping[int, int], unused: Collection[int], now_ms: int) -> dict[int, int]:
    return {number: known.get(number, now_ms) for number in sorted(unused)}


def _due(since: Mapping[int, int], unused: Collection[int], before_ms: int) -> frozenset[int]:
    return frozenset(number for number in unused if since.get(number, before_ms + 1) <= before_ms)


@dataclass(frozen=True)
class Usage:
    """Finds what a table's metadata has without use. Manifest lists and manifests never change, so each is read
    once."""

    stores: Stores
    _lists: dict[str, _Uses] = field(default_factory=dict)
    _manifests: dict[str, ManifestListEntry] = field(default_factory=dict)
    _orders: dict[str, frozenset[int]] = field(default_factory=dict)

    def unused(self, base: TableMetadata, leaving: Collection[int], known: RemovedParts, before_ms: int) -> Unused:
        """Return what is unused in `base` once the snapshots `leaving` are gone.

        A schema is used by the snapshots that name it, and as the current one; a spec by the manifests of the remaining
        snapshots, and as the default one; a sort order by their live files, and as the default one. Of each, the
        highest id stays: Iceberg gives the next id after it, and no id may ever mean something else. Schemas stay while
        a remaining snapshot has delete files: an equality delete names its columns by id, and only an old schema may
        know them. Everything stays in a table with manifests that no list has (format version 1).

        Only sort orders cost reads of manifests, and only where `known` does not answer: an order with a witness that
        is still listed is used, and one that may not leave before `before_ms` counts as unused, as it did when first
        seen. Raises UnreadableMetadata, EncryptedTable.
        """
        remaining = [each for each in base.snapshots if each.snapshot_id not in leaving]
        named = {each.schema_id for each in remaining} | {base.current_schema_id, max(base.schemas)}
        schemas = frozenset(base.schemas) - named
        specs = frozenset(base.partition_specs) - {base.default_spec_id, max(base.partition_specs)}
        orders = frozenset(base.sort_orders) - {0, base.default_sort_order_id, max(base.sort_orders, default=0)}
        if not schemas and not specs and not orders:
            return Unused()
        if any(each.manifest_list is None and each.manifests for each in remaining):
            return Unused()
        waiting = frozenset(each for each in orders if known.orders_unused_since.get(each, before_ms) > before_ms)
        if not schemas and not specs and orders == waiting:
            return Unused(orders=orders)
        listed = [each for each in remaining if each.manifest_list is not None]
        if not schemas and not specs:
            self._read([each for each in listed if each.snapshot_id == base.current_snapshot_id], base)
            witnesses = self._listed(orders - waiting, known)
            if witnesses.keys() == orders - waiting:
                return Unused(orders=waiting, witnesses=witnesses)
        found = self._read(listed, base)
        used = frozenset[int]().union(*(each.specs for each in found))
        witnesses = self._witnesses(orders - waiting, known, base)
        return Unused(
            frozenset() if any(each.has_deletes for each in found) else schemas,
            specs - used,
            orders - witnesses.keys(),
            witnesses,
        )

    def _read(self, listed: Collection[Snapshot], base: TableMetadata) -> list[_Uses]:
        new = [each for each in listed if each.manifest_list not in self._lists]
        readers = self.stores.readers(base.metadata_location, _THREADS)
        for snapshot, found in zip(new, threaded(partial(manifests_of, self.stores), new, readers), strict=True):
            specs = frozenset(each.partition_spec_id for each in found.entries)
            self._lists[str(snapshot.manifest_list)] = _Uses(specs, any(each.content for each in found.entries))
            for each in found.entries:
                self._manifests.setdefault(each.manifest_path, each)
        return [self._lists[str(each.manifest_list)] for each in listed]

    def _listed(self, sought: Collection[int], known: RemovedParts) -> dict[int, str]:
        found = known.order_witnesses.items()
        return {order: path for order, path in found if order in sought and path in self._manifests}

    def _witnesses(self, sought: Collection[int], known: RemovedParts, base: TableMetadata) -> dict[int, str]:
        """Return, for each of the orders `sought` that is used, a manifest that has it."""
        found = self._listed(sought, known)

        def add(path: str) -> None:
            for order in self._orders[path]:
                if order in sought:
                    found.setdefault(order, path)

        for path in self._orders:
            add(path)
        if len(found) == len(sought):
            return found
        unread = [entry for path, entry in self._manifests.items() if path not in self._orders]
        readers = self.stores.readers(base.metadata_location, _THREADS)
        read = threaded(partial(live_sort_orders, self.stores), unread, readers)
        for entry, orders in zip(unread, read, strict=False):
            self._orders[entry.manifest_path] = orders
            add(entry.manifest_path)
            if len(found) == len(sought):
                break
        return found


@dataclass(frozen=True)
class ExpirationCommit(Shown):
    """The result of the commit. `attempts` is 0 if there was nothing to remove. `overtaken` are planned snapshots that
    another tool had already expired. `absent_copies` are archived copies that were lost in cold: the commit first
    copied them again from live, or, in a dry run, would have to. `put_back` are refs that others made while a REST
    catalog committed, with their snapshots: the plan keeps what these reach."""

    plan_id: str
    metadata_location: str
    attempts: int
    snapshots_removed: int = 0
    refs_removed: int = 0
    schemas_removed: int = 0
    specs_removed: int = 0
    orders_removed: int = 0
    overtaken: tuple[int, ...] = ()
    absent_copies: int = 0
    put_back: tuple[PutBack, ...] = ()
    committed_at: datetime | None = None
    due_at: datetime | None = None
    dry_run: bool = False


def removal(
    plan: ExpirationPlan,
    base: TableMetadata,
    keepers: Keepers,
    policy: RetentionSettings | None = None,
) -> Change | None:
    """Return what `plan` still removes from `base`; None if all of it is already gone. `policy` has the settings that
    the plan would be made with now.

    A plan is stale if the same rule, at the plan's own instant, or `policy`, would now keep what it removes: because of
    a new ref or hold on an expired snapshot, a rollback to one, a longer setting on a branch, or a longer window; or if
    a ref that it removes was moved. A
    concurrent append does not make it stale. Raises StalePlan, AnotherTable, and what `refuse_unexpirable` raises.
    """
    require_uuid(plan.table, base.table_uuid, plan.table_uuid)
    refuse_unexpirable(base, plan.table)
    present = {snapshot.snapshot_id for snapshot in base.snapshots}
    doomed = [snapshot for snapshot in plan.expired_snapshots if snapshot in present]
    doomed_refs = [ref for ref in plan.expired_refs if ref in base.refs]
    if not doomed and not doomed_refs:
        return None
    moved = _moved_refs(plan, base)
    if moved:
        # The handoff archived what it named: what it names now may be archived by nobody.
        raise _stale(plan, base, f"refs {', '.join(moved[:3])}, which name other snapshots by now")
    view, at = view_of(base), milliseconds(plan.decided_at)
    for settings in dict.fromkeys((plan.settings, policy or plan.settings)):
        try:
            decision = decide(view, settings, at, **keepers)
        except Refused as refusal:
            # For snapshots selected by id, what forbids them now did not exist when the plan was made.
            raise _stale(plan, base, refusal.what) from refusal
        revived = [snapshot for snapshot in doomed if snapshot in decision.kept]
        still_expired = set(decision.expired_refs)
        revived_refs = [ref for ref in doomed_refs if ref not in still_expired]
        if revived or revived_refs:
            reasons = "; ".join(f"snapshot {snapshot}: {few(decision.kept[snapshot])}" for snapshot in revived[:3])
            refs = f"refs {', '.join(revived_refs[:3])}" if revived_refs else ""
            raise _stale(plan, base, "; ".join(filter(None, (reasons, refs))))
    return Change(expire_snapshot_ids=tuple(doomed), remove_refs=tuple(doomed_refs))


def _moved_refs(plan: ExpirationPlan, base: TableMetadata) -> list[str]:
    planned = zip(plan.expired_refs, plan.ref_snapshots, strict=True)
    return [ref for ref, snapshot_id in planned if ref in base.refs and base.refs[ref].snapshot_id != snapshot_id]


def _stale(plan: ExpirationPlan, base: TableMetadata, why: str) -> StalePlan:
    return StalePlan(
        f"Plan {plan.plan_id} would remove what the table now keeps: {why}",
        table=plan.table,
        path=base.metadata_location,
        untouched="the table's metadata and all files",
        hint=f"plan again: artemis plan {quote(plan.table)}",
    )


def made_by(base_location: str | None, updated_ms: int | None, metadata: TableMetadata) -> bool:
    """Return True if the metadata log proves that a recorded swap succeeded: its base is followed by the metadata of
    the swap. A log that no longer reaches back to the base proves nothing."""
    return any(
        before == base_location and after_ms == updated_ms
        for (before, _), (_, after_ms) in itertools.pairwise(_whole_log(metadata))
    )


def successor(base_location: str | None, metadata: TableMetadata) -> str:
    """Return the metadata file that replaced a base, as the metadata log has it; the current one if it does not say."""
    pairs = itertools.pairwise(_whole_log(metadata))
    return next((after for (before, _), (after, _) in pairs if before == base_location), metadata.metadata_location)


def _whole_log(metadata: TableMetadata) -> list[tuple[str, int]]:
    log = [(entry.metadata_file, entry.timestamp_ms) for entry in metadata.metadata_log]
    return [*log, (metadata.metadata_location, metadata.last_updated_ms)]


def commit_expiration(
    commit: CommitTable,
    stores: Stores,
    plan: ExpirationPlan,
    guards: Callable[[], tuple[Keepers, RetentionSettings]],
    swaps: Swaps,
    clean: Callable[[TableMetadata, Collection[int]], Unused],
    lineage: Mapping[str, str] = MappingProxyType({}),
    notes: Callable[[Change], Mapping[str, str]] = lambda change: {},
) -> ExpirationCommit:
    """Commit `plan` to the live catalog, and retry while others win the swap.

    `guards` reads the active holds, tag records and settings at each attempt. `swaps` records the attempts (`made_by`
    recognizes them). `clean` returns the schemas, specs and sort orders to remove from an attempt's base, together
    with these snapshots. `lineage` (keys and `operation`) goes into the table's properties, and so do the `notes` of an
    attempt's change. Raises what `removal` raises, CommitConflict if every attempt lost, and CommitStateUnknown if the
    catalog did not report the result.
    """
    removed: list[Change] = []

    def change(base: BaseState) -> Change | None:
        metadata = read_table_metadata(stores, base.metadata_location)
        found = removal(plan, metadata, *guards())
        unused = clean(metadata, () if found is None else found.expire_snapshot_ids)
        if found is not None or unused:
            found = replace(
                found or Change(),
                remove_schema_ids=sorted(unused.schemas),
                remove_spec_ids=sorted(unused.specs),
                remove_order_ids=sorted(unused.orders),
            )
            found = found.noting(notes(found))
        removed[:] = [found] if found is not None else []
        return found

    result = commit(plan.table, change, swaps=swaps, lineage=lineage)
    done = removed[0] if removed and result.changed else Change()
    gone = set(done.expire_snapshot_ids)
    return ExpirationCommit(
        plan_id=plan.plan_id,
        metadata_location=result.metadata_location,
        attempts=result.attempts if result.changed else 0,
        snapshots_removed=len(gone),
        refs_removed=len(done.remove_refs),
        schemas_removed=len(done.remove_schema_ids),
        specs_removed=len(done.remove_spec_ids),
        orders_removed=len(done.remove_order_ids),
        overtaken=tuple(snapshot for snapshot in plan.expired_snapshots if snapshot not in gone),
    )
