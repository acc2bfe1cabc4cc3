"""Schemas, partition specs and sort orders that nothing uses, and that an expiration may remove from a table.

Belongs here: which these are, from one metadata file, and the record of them. Does not belong here: the commit.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.manifests import live_sort_orders
from artemis_lifecycle.metadata.types import ManifestListEntry, Snapshot, TableMetadata
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

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
    text. For specs and orders, also since when (epoch ms) they are known to be unused; for orders in use, the
    witnesses."""

    schemas: dict[int, str] = field(default_factory=dict)
    specs: dict[int, str] = field(default_factory=dict)
    specs_unused_since: dict[int, int] = field(default_factory=dict)
    orders: dict[int, str] = field(default_factory=dict)
    orders_unused_since: dict[int, int] = field(default_factory=dict)
    order_witnesses: dict[int, str] = field(default_factory=dict)

    def extended(self, base: TableMetadata, unused: Unused, now_ms: int) -> RemovedParts:
        """Return it with what is unused in `base` at `now_ms`. A spec or order that is used again loses its time."""
        specs = unused.specs | (self.specs.keys() - base.partition_specs.keys())
        orders = unused.orders | (self.orders.keys() - base.sort_orders.keys())
        return RemovedParts(
            self.schemas | {number: base.schemas[number] for number in sorted(unused.schemas)},
            self.specs | {number: base.partition_specs[number] for number in sorted(unused.specs)},
            _since(self.specs_unused_since, specs, now_ms),
            self.orders | {number: base.sort_orders[number] for number in sorted(unused.orders)},
            _since(self.orders_unused_since, orders, now_ms),
            dict(sorted(unused.witnesses.items())),
        )

    def removable(self, unused: Unused, before_ms: int) -> Unused:
        """Return what of `unused` may go: of the specs and orders, those that are unused since `before_ms` or longer. A
        writer that began while one was the default may still commit its files."""
        return unused._replace(
            specs=_due(self.specs_unused_since, unused.specs, before_ms),
            orders=_due(self.orders_unused_since, unused.orders, before_ms),
        )

    def to_json(self) -> bytes:
        """Return the stored form."""
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> RemovedParts:
        """Read the stored form. Raises ValueError, KeyError, AttributeError for another one."""
        parts = json.loads(data)
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
