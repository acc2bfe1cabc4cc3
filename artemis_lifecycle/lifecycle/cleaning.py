"""Removes schemas, partition specs and sort orders that nothing uses from a table's metadata, with an expiration's
commit; also where no snapshot leaves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.expiration.unused import RemovedParts, Unused, Usage
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.storage.instants import milliseconds


@dataclass(frozen=True)
class Cleaning:
    """What one expiration may clean. `confirm` raises if the table's lease is lost; None for a dry run, which records
    nothing."""

    resources: Resources
    table: str
    confirm: Callable[[], None] | None

    def __call__(self, base: TableMetadata, leaving: Collection[int]) -> Unused:
        """Return what to remove from `base`, together with the snapshots `leaving`. What leaves is recorded first, so
        that the past keeps its columns."""
        return self._found(base, leaving)[0]

    def is_due(self, base: TableMetadata) -> bool:
        """Return True if there is something to remove from `base`, or to record as unused, where no snapshot leaves."""
        return any(self._found(base, ()))

    def _found(self, base: TableMetadata, leaving: Collection[int]) -> tuple[Unused, bool]:
        """Return what to remove, and whether that changes the record of what was."""
        policy = self.resources.config.policy(self.table)
        if not policy.retention.clean_metadata:
            return Unused(), False
        now = self.resources.clock.now()
        before_ms = milliseconds(now - policy.orphans.min_age)
        known = removed_parts(self.resources, base.table_uuid)
        unused = self._usage.unused(base, leaving, known, before_ms)
        parts = known.extended(base, unused, milliseconds(now))
        if parts != known and self.confirm is not None:
            self.confirm()
            path = _path(self.resources, base.table_uuid)
            self.resources.live_stores.write(path, parts.to_json(), overwrite=True)
        return parts.removable(unused, before_ms), parts != known

    @cached_property
    def _usage(self) -> Usage:
        return Usage(self.resources.live_stores)


def removed_parts(resources: Resources, table_uuid: str) -> RemovedParts:
    """Return what cleaning has taken from the table's metadata. Raises StorageError if the record is damaged."""
    path = _path(resources, table_uuid)
    if resources.live_stores.head(path) is None:
        return RemovedParts()
    try:
        return RemovedParts.from_json(resources.live_stores.read(path))
    except (ValueError, KeyError, AttributeError) as error:
        raise StorageError(
            f"The record of a table's removed schemas is damaged: {error}",
            path=path,
            untouched="the table",
            hint="restore the file; or move it aside, and only the columns of removed schemas are lost",
        ) from error


def _path(resources: Resources, table_uuid: str) -> str:
    return f"{resources.root}/history/{table_uuid}/removed.json"
