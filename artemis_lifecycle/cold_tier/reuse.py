"""Paths that a table used for several files. A use is a path and the snapshot that added the file there. Belongs here:
which use the file at a path belongs to now, and whether it is the one that the ledger has. Does not belong here: which
uses are doubtful (`needed`), and where another file goes (`paths`).

Only one file is at a path. If it was written after a use was committed, and a later use is known, then the earlier
use's file was overwritten. What cannot be decided counts as lost, so that a person decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.cold_tier.demand import (
    MANIFESTS,
    Demand,
    named_manifests,
    read_lists,
    read_manifests,
    readers,
)
from artemis_lifecycle.cold_tier.evolution import SAME_IDS
from artemis_lifecycle.cold_tier.ledger import PRESENT, CopiedFile, Ledger, is_still
from artemis_lifecycle.cold_tier.needed import use_keys
from artemis_lifecycle.cold_tier.paths import PathMapping
from artemis_lifecycle.cold_tier.work import Problem
from artemis_lifecycle.metadata.kinds import MANIFEST_LIST
from artemis_lifecycle.metadata.types import UNKNOWN_LENGTH, Snapshot, TableMetadata
from artemis_lifecycle.spark.runner import Runner, first_of_each
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.identity import NO_TIME
from artemis_lifecycle.storage.instants import of_microseconds
from artemis_lifecycle.storage.location import LocationRules, normalize
from artemis_lifecycle.storage.stores import StoredFile, Stores, is_local

_USES = arrow_schema("destination string, added_by bigint")
_DISK_GRAIN, _STORE_GRAIN = 10_000, 1_000_000
"""Microseconds by which a file may be newer than its modification time."""
_PICKED_FROM = "source-snapshot-id"
"""In the summary of a snapshot: it added the files of that snapshot again (a cherry-pick, as after an audit)."""

Uses = Mapping[str, tuple[int, ...]]
"""The snapshots that added a file at a location, for locations with several."""


def uses_of(runner: Runner, source: Stores, metadata: TableMetadata, rules: LocationRules) -> Uses:
    """Return the locations that the table's snapshots used several times. Reads all manifests, but it is rarely needed.
    Those that cannot be read are omitted."""
    demand = Demand(metadata, tuple(snapshot.snapshot_id for snapshot in metadata.snapshots), _Located(rules))
    with runner.keeping() as keep:
        lists = keep(read_lists(runner, source, demand))
        named = lists.map(named_manifests, MANIFESTS)
        manifests = keep(runner.meet([named], "destination", _distinct_uses, MANIFESTS))
        files = read_manifests(source, demand, manifests).map(_used, _USES)
        both = runner.concat(files, named.map(_used, _USES), lists.map(_lists_used, _USES))
        rows = runner.meet([both], "destination", _several, _USES).table().to_pylist()
    found: dict[str, set[int]] = {}
    for row in rows:
        found.setdefault(row["destination"], set()).add(row["added_by"])
    return {location: tuple(sorted(ids)) for location, ids in found.items()}


def _distinct_uses(named: pa.Table) -> pa.Table:
    return first_of_each(named.append_column("use", use_keys(named)), "use")


def _used(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.is_valid(batch.column("destination"))).select(_USES.names)


def _lists_used(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [batch.column("list_destination"), batch.column("snapshot_id")]
        yield pa.RecordBatch.from_arrays(columns, schema=_USES).filter(pc.is_valid(columns[0]))


def _several(uses: pa.Table) -> pa.Table:
    uses = uses.filter(pc.field("added_by").is_valid()).group_by(["destination", "added_by"]).aggregate([])
    counted = uses.group_by("destination").aggregate([([], "count_all")])
    several = counted.filter(pc.field("count_all") > 1).column("destination").combine_chunks()
    return uses.filter(pc.is_in(uses.column("destination"), several))


@dataclass(frozen=True)
class _Located:
    """Maps each path to its location."""

    rules: LocationRules
    ids = SAME_IDS

    def __call__(self, path: str) -> str:
        return normalize(path, self.rules)

    def used(self, path: str, added_by: int | None) -> str:
        return self(path)

    meant = used

    def owns(self, path: str) -> bool:
        return False


Decided = tuple[Demand, list[tuple[str, int, int]], list[CopiedFile], tuple[Problem, ...]]
"""The demand with the decisions; the uses of other files than the ledger has, as `ColdIdentity.reused`; records of uses
of the same files; and problems: uses of files that are gone or cannot be told apart."""


class Reuse:
    """Decides for one table. `current` is its metadata as of now, if it is newer than the demand's. `committed` and
    `archived` are when each snapshot of the live table and of the archive was committed, in microseconds since 1970."""

    def __init__(
        self,
        runner: Runner,
        source: Stores,
        target: Stores,
        metadata: TableMetadata,
        current: TableMetadata | None,
        archived: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        known = {snapshot.snapshot_id: snapshot for each in (current, metadata) if each for snapshot in each.snapshots}
        self._runner, self._source, self._target = runner, source, target
        self._metadata = replace(metadata, snapshots=tuple(known.values()))
        self._known: Mapping[int, Snapshot] = known
        self._uses: Uses | None = None
        self._archived = archived
        self.committed = {each.snapshot_id: each.timestamp_ms * 1000 for each in known.values()}

    def overwritten(self, path: str, use: int | None, rules: LocationRules) -> int | None:
        """Return a snapshot that added another file at `path` after `use` did; None if none is known."""
        if self._uses is None:
            self._uses = uses_of(self._runner, self._source, self._metadata, rules)
        return self._later(use, self._uses.get(normalize(path, rules), ()))

    def occupied(self, rows: pa.Table) -> pa.Table:
        """Return the files of `rows` (SEALED) whose place in the target has another file. It is another table's, which
        took up a file at that path before."""
        there = self._target.heads(rows.column("destination").to_pylist())
        sources = rows.column("source").to_pylist()
        return rows.filter(pa.array(map(self._is_occupied, there, sources), pa.bool_()))

    def _is_occupied(self, there: StoredFile | None, source: str) -> bool:
        found = None if there is None else self._source.head(source)
        if there is None or found is None:
            return False
        other_size = there.size_in_bytes != found.size_in_bytes
        return other_size or self._target.checksum(there.path) != self._source.checksum(source)

    def decide(self, demand: Demand, ledger: Ledger, rows: pa.Table) -> Decided:
        """Decide for these uses (SEALED rows)."""
        mapping = demand.mapping
        assert isinstance(mapping, PathMapping)
        uses: dict[str, dict[int | None, list[dict[str, Any]]]] = {}
        for row in rows.to_pylist():
            uses.setdefault(normalize(row["source"], mapping.rules), {}).setdefault(row["added_by"], []).append(row)
        firsts = [next(iter(by.values()))[0] for by in uses.values()]
        heads = self._source.heads([row["source"] for row in firsts])
        places = [(row["destination"], *mapping.places(row["source"])) for row in firsts]
        records = ledger.among(self._runner, {place for several in places for place in several})
        same = set(demand.same)
        reused: list[tuple[str, int, int]] = []
        aliases: list[CopiedFile] = []
        lost: list[tuple[str, int | None, list[dict[str, Any]]]] = []
        for (path, by), head, several in zip(uses.items(), heads, places, strict=True):
            copies = [records[place] for place in several if place in records]
            held = copies[-1] if copies else None
            for use in sorted(by, key=self._order):
                place, size = by[use][0]["destination"], by[use][0]["size_in_bytes"]
                here = held is not None and held.destination == place
                why = None
                if held is not None and here and self._origin(use) == held.added_by:
                    aliases.append(replace(held, added_by=use, action=PRESENT))
                elif head is None:
                    why = "it is gone, and another file was archived from its path"
                elif (later := self._successor(path, use, by, head.since, mapping.rules)) is not None:
                    when = of_microseconds(head.since).isoformat()
                    why = f"it was overwritten (the file at its path is of {when}, and snapshot {later} added it there)"
                elif (other := self._archived_before(copies, use, head.since, path)) is not None:
                    why = f"it was overwritten: snapshot {other} added another file there, which was archived before it"
                elif held is None and (mapping.owns(place) or not self._is_occupied(self._target.head(place), path)):
                    if size not in (head.size_in_bytes, UNKNOWN_LENGTH):
                        why = f"the file at its path has {head.size_in_bytes} bytes, but the metadata records {size}"
                elif (
                    held is not None
                    and here
                    and size in (held.source_size, UNKNOWN_LENGTH)
                    # A rewrite in place may keep all that a disk says of a file, so only the content counts.
                    and is_still(None, held.source_checksum, head, self._source)
                ):
                    alias = replace(held, added_by=use, action=PRESENT)
                    aliases.append(alias.of(head.identity, held.source_checksum))
                elif use is None or use not in self._known:
                    why = f"several files were at its path, and snapshot {use}, which added it, is unknown"
                else:
                    reused.append((path, use, self._order(use)[0]))
                    continue
                if why is None:
                    same.add((place, use))
                else:
                    lost.append((why, use, by[use]))
        grown = replace(mapping.identity, reused=(*mapping.identity.reused, *reused))
        decided = replace(demand, mapping=PathMapping(grown, mapping.ids, mapping.sequences), same=frozenset(same))
        return decided, reused, aliases, self._problems(demand, lost)

    def _order(self, use: int | None) -> tuple[int, int]:
        snapshot = None if use is None else self._known.get(use)
        return (-1, -1) if snapshot is None else (snapshot.sequence_number, snapshot.timestamp_ms)

    def _origin(self, use: int | None) -> int | None:
        snapshot = None if use is None else self._known.get(use)
        return use if snapshot is None else snapshot.summary.count(_PICKED_FROM) or use

    def _later(self, use: int | None, others: Iterable[int | None]) -> int | None:
        later = (
            each
            for each in others
            if each is not None and self._origin(each) != self._origin(use) and self._order(each) >= self._order(use)
        )
        return max(later, key=self._order, default=None)

    def _successor(
        self, path: str, use: int | None, others: Iterable[int | None], since: int, rules: LocationRules
    ) -> int | None:
        """Return the snapshot to which the file at `path` (`StoredFile.since`) belongs now, if that is another than
        `use`."""
        if self._is_older(path, use, since):
            return None
        return self._later(use, others) or self.overwritten(path, use, rules)

    def _is_older(self, path: str, use: int | None, since: int) -> bool:
        """Return True if the file has been at its path since before `use` was committed."""
        committed = None if use is None else self.committed.get(use)
        grain = _DISK_GRAIN if is_local(path) else _STORE_GRAIN
        return since != NO_TIME and committed is not None and since + grain <= committed

    def _archived_before(self, copies: Sequence[CopiedFile], use: int | None, since: int, path: str) -> int | None:
        """Return a later snapshot whose file the one at `path` may be: it was archived first, and the live table no
        longer has the snapshot."""
        committed = None if use is None else self.committed.get(use)
        if committed is None or self._is_older(path, use, since):
            return None
        gone = (each.added_by for each in copies if each.added_by not in self._known)
        return next((each for each in gone if each and self._archived.get(each, committed) >= committed), None)

    def _problems(
        self, demand: Demand, lost: Sequence[tuple[str, int | None, list[dict[str, Any]]]]
    ) -> tuple[Problem, ...]:
        named = {row["manifest"] or row["destination"] for _, _, rows in lost for row in rows}
        users = readers(read_lists(self._runner, self._source, demand), named) if lost else {}
        problems = []
        for why, use, rows in lost:
            ids = set[int]()
            for row in rows:
                # Lists and statistics belong to the snapshot itself.
                read_by = set() if row["kind"] == MANIFEST_LIST else users[row["manifest"] or row["destination"]]
                ids |= read_by or {use or 0}
            wanted = ids.intersection(demand.snapshot_ids) or demand.snapshot_ids
            problems.append(Problem(rows[0]["source"], why, tuple(sorted(wanted))))
        return tuple(problems)
