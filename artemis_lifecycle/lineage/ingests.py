"""Which snapshots ingested the rows of a partition, or of a data file, found in manifests of the live and the cold
tier. Belongs here: reading manifests, and tracing rewritten files to their inputs. Does not belong here: who wrote a
snapshot, which the ledger says.

A snapshot with operation `replace` moves rows and ingests none (Iceberg spec, "Snapshots"). What it rewrote are the
entries of its own manifests with status DELETED; the snapshots that added those are in its parent's manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.manifests import partitioned_entries
from artemis_lifecycle.metadata.partitions import Partition, matches, may_have, partition_of
from artemis_lifecycle.metadata.types import EntryStatus, ManifestListEntry, Snapshot, TableMetadata
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.index.lookups import manifests_with
from artemis_lifecycle.storage.location import normalize
from artemis_lifecycle.storage.stores import Stores


@dataclass(frozen=True)
class Tier:
    """The table in one tier. `paths` returns how the tier may spell a path."""

    name: str
    metadata: TableMetadata
    stores: Stores
    index: Callable[[], IndexView]
    paths: Callable[[str], tuple[str, ...]]


class IngestedFile(NamedTuple):
    """A data file, the snapshot that added it, the tier whose manifest says so, and its partition (`day=2024-03-15`;
    empty if the table is not partitioned)."""

    path: str
    snapshot_id: int
    tier: str
    partition: str


@dataclass(frozen=True)
class Trace:
    """Data files with the rows in question, and the files that those were rewritten from. `untraced` are rewriting
    snapshots whose inputs are in no tier."""

    files: tuple[IngestedFile, ...]
    untraced: tuple[int, ...]


class _Entry(NamedTuple):
    path: str
    added_by: int
    status: int
    partition: Partition

    def in_tier(self, tier: str) -> IngestedFile:
        partition = "/".join(f"{name}={text}" for name, text in self.partition.items())
        return IngestedFile(self.path, self.added_by, tier, partition)


class Ingests:
    """Reads the manifests of a table's tiers, the nearest tier first. `operation_of` and `parent_of` also know
    snapshots that no tier has."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        operation_of: Callable[[int], str | None],
        parent_of: Callable[[int], int | None],
    ) -> None:
        self._tiers = tiers
        self._operation_of = operation_of
        self._parent_of = parent_of
        self._read: dict[str, list[_Entry]] = {}

    def of_partition(self, wanted: Partition) -> Trace:
        """Trace the files of the newest snapshot that has the partition; without files, no tier has it."""
        for tier in self._tiers:
            for snapshot in _newest_first(tier.metadata):
                found = list(self._live(tier, snapshot, wanted))
                if found:
                    return self._traced([(tier, each) for each in found], exact=False)
        return Trace((), ())

    def of_path(self, path: str) -> Trace:
        """Trace one data file; without files, no tier has it."""
        for tier in self._tiers:
            view = tier.index()
            rules = view.index.rules
            for location in (normalize(each, rules) for each in tier.paths(path)):
                for listed in manifests_with(view, location):
                    for each in self._entries(tier, listed):
                        if each.status != EntryStatus.DELETED and normalize(each.path, rules) == location:
                            return self._traced([(tier, each)], exact=True)
        return Trace((), ())

    def of_snapshot(self, snapshot_id: int) -> Trace:
        """Return the files that the snapshot added."""
        found = self._find(snapshot_id)
        if found is None:
            return Trace((), ())
        tier, snapshot = found
        added = [each for each in self._own(tier, snapshot) if each.status == EntryStatus.ADDED]
        return Trace(tuple(each.in_tier(tier.name) for each in added), ())

    def _traced(self, start: list[tuple[Tier, _Entry]], *, exact: bool) -> Trace:
        """Follow rewritten files back. `exact`: only files that were rewritten into the given ones, instead of all of
        their partition."""
        files: dict[tuple[str, int], IngestedFile] = {}
        untraced: dict[int, None] = {}
        done: set[tuple[int, tuple[tuple[str, str], ...]]] = set()
        waiting = list(start)
        while waiting:
            tier, entry = waiting.pop()
            files.setdefault((entry.path, entry.added_by), entry.in_tier(tier.name))
            step = (entry.added_by, tuple(sorted(entry.partition.items())))
            if self._operation_of(entry.added_by) != "replace" or step in done:
                continue
            done.add(step)
            behind = self._rewritten(entry, exact=exact)
            if not behind:
                untraced[entry.added_by] = None
            waiting += behind
        return Trace(tuple(files.values()), tuple(untraced))

    def _rewritten(self, entry: _Entry, *, exact: bool) -> list[tuple[Tier, _Entry]]:
        parent = self._parent_of(entry.added_by)
        before = None if parent is None else self._find(parent)
        if before is None:
            return []
        tier, snapshot = before
        if not exact:
            return [(tier, each) for each in self._live(tier, snapshot, entry.partition)]
        found = self._find(entry.added_by)
        if found is None:
            return []
        by, rewriting = found
        gone = [each for each in self._own(by, rewriting) if each.status == EntryStatus.DELETED]
        # Under another partition spec, any of them may be an input.
        gone = [each for each in gone if each.partition == entry.partition] or gone
        names = {spelled for each in gone for spelled in tier.paths(each.path)}
        return [(tier, each) for each in self._live(tier, snapshot, {}) if each.path in names]

    def _find(self, snapshot_id: int) -> tuple[Tier, Snapshot] | None:
        for tier in self._tiers:
            snapshot = tier.metadata.snapshot(snapshot_id)
            if snapshot is not None:
                return tier, snapshot
        return None

    def _live(self, tier: Tier, snapshot: Snapshot, wanted: Partition) -> Iterator[_Entry]:
        for listed in manifests_of(tier.stores, snapshot).entries:
            if listed.content == 0 and may_have(listed, tier.metadata, wanted):
                for each in self._entries(tier, listed):
                    if each.status != EntryStatus.DELETED and matches(each.partition, wanted):
                        yield each

    def _own(self, tier: Tier, snapshot: Snapshot) -> Iterator[_Entry]:
        """Yield the entries of the data manifests that the snapshot wrote."""
        for listed in manifests_of(tier.stores, snapshot).entries:
            if listed.content == 0 and listed.added_snapshot_id == snapshot.snapshot_id:
                for each in self._entries(tier, listed):
                    if each.added_by == snapshot.snapshot_id:
                        yield each

    def _entries(self, tier: Tier, listed: ManifestListEntry) -> list[_Entry]:
        """Return all entries of a manifest, each manifest read once."""
        if listed.manifest_path not in self._read:
            found = partitioned_entries(tier.stores, listed)
            columns = (found.entries.column(name).to_pylist() for name in ("file_path", "snapshot_id", "status"))
            self._read[listed.manifest_path] = [
                # An entry without an id has the one that added the manifest.
                _Entry(
                    path,
                    int(listed.added_snapshot_id or 0) if by is None else by,
                    status,
                    partition_of(values, found.spec, found.schema),
                )
                for path, by, status, values in zip(*columns, found.partitions, strict=True)
            ]
        return self._read[listed.manifest_path]


def _newest_first(metadata: TableMetadata) -> list[Snapshot]:
    """Return the snapshots, the current one first."""
    current = metadata.current_snapshot_id
    return sorted(
        metadata.snapshots,
        key=lambda each: (each.snapshot_id == current, each.sequence_number, each.timestamp_ms),
        reverse=True,
    )
