"""Schemas and partition specs that nothing uses, and that an expiration may remove from a table's metadata.

Belongs here: which these are, from one metadata file, and the record of them. Does not belong here: the commit.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

_THREADS = 8


class Unused(NamedTuple):
    """Ids of schemas and of partition specs."""

    schemas: frozenset[int] = frozenset()
    specs: frozenset[int] = frozenset()


class _Uses(NamedTuple):
    specs: frozenset[int]
    has_deletes: bool


@dataclass(frozen=True)
class Usage:
    """Finds what a table's metadata has without use. Manifest lists never change, so each is read once."""

    stores: Stores
    _lists: dict[str, _Uses] = field(default_factory=dict)

    def unused(self, base: TableMetadata, leaving: Collection[int]) -> Unused:
        """Return what is unused in `base` once the snapshots `leaving` are gone.

        A schema is used by the snapshots that name it, and as the current one; a spec by the manifests of the remaining
        snapshots, and as the default one. Of each, the highest id stays: Iceberg gives the next id after it, and no id
        may ever mean something else. Schemas stay while a remaining snapshot has delete files: an equality delete names
        its columns by id, and only an old schema may know them. So do specs, and schemas too, of a table with manifests
        that no list has (format version 1). Raises UnreadableMetadata, EncryptedTable.
        """
        remaining = [each for each in base.snapshots if each.snapshot_id not in leaving]
        named = {each.schema_id for each in remaining} | {base.current_schema_id, max(base.schemas)}
        schemas = frozenset(base.schemas) - named
        specs = frozenset(base.partition_specs) - {base.default_spec_id, max(base.partition_specs)}
        if not schemas and not specs:
            return Unused()
        if any(each.manifest_list is None and each.manifests for each in remaining):
            return Unused()
        listed = [each for each in remaining if each.manifest_list is not None]
        new = [each for each in listed if each.manifest_list not in self._lists]
        readers = self.stores.readers(base.metadata_location, _THREADS)
        for snapshot, uses in zip(new, threaded(partial(_uses, self.stores), new, readers), strict=True):
            self._lists[str(snapshot.manifest_list)] = uses
        found = [self._lists[str(each.manifest_list)] for each in listed]
        used = frozenset[int]().union(*(each.specs for each in found))
        return Unused(frozenset() if any(each.has_deletes for each in found) else schemas, specs - used)


def _uses(stores: Stores, snapshot: Snapshot) -> _Uses:
    entries = manifests_of(stores, snapshot).entries
    return _Uses(frozenset(each.partition_spec_id for each in entries), any(each.content for each in entries))


@dataclass(frozen=True)
class RemovedParts:
    """What cleaning has taken from a table's metadata, or soon will: schemas and specs by id, as JSON text. For specs,
    also since when (epoch ms) they are known to be unused."""

    schemas: dict[int, str] = field(default_factory=dict)
    specs: dict[int, str] = field(default_factory=dict)
    specs_unused_since: dict[int, int] = field(default_factory=dict)

    def extended(self, base: TableMetadata, unused: Unused, now_ms: int) -> RemovedParts:
        """Return it with what is unused in `base` at `now_ms`. A spec in use again is no longer unused."""
        gone = set(self.specs) - set(base.partition_specs)
        since = {number: ms for number, ms in self.specs_unused_since.items() if number in unused.specs | gone}
        return RemovedParts(
            self.schemas | {number: base.schemas[number] for number in sorted(unused.schemas)},
            self.specs | {number: base.partition_specs[number] for number in sorted(unused.specs)},
            dict.fromkeys(sorted(unused.specs), now_ms) | since,
        )

    def removable(self, unused: Unused, before_ms: int) -> Unused:
        """Return what of `unused` may go: of the specs, those that are unused since `before_ms` or longer. A writer
        that began while the spec was the default one may still commit its files."""
        old = (number for number in unused.specs if self.specs_unused_since.get(number, before_ms + 1) <= before_ms)
        return Unused(unused.schemas, frozenset(old))

    def to_json(self) -> bytes:
        """Return the stored form."""
        parts = {"schemas": self.schemas, "specs": self.specs, "specs-unused-since-ms": self.specs_unused_since}
        return json.dumps(parts, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> RemovedParts:
        """Read the stored form. Raises ValueError, KeyError, AttributeError for another one."""
        parts = json.loads(data)
        names = ("schemas", "specs", "specs-unused-since-ms")
        return cls(*({int(number): value for number, value in parts[name].items()} for name in names))
