"""The other tables around one: those that the catalog has, by where they are and where they read, and those that it
lost and whose files are still kept.

Two tables that shared or nested a location deleted each other's files (iceberg 4265, 12278; nessie 12363).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from artemis_lifecycle import escaping
from artemis_lifecycle.catalogs.identifier import is_addressable
from artemis_lifecycle.catalogs.results import RESULT_TABLES
from artemis_lifecycle.errors import BadInput, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.operations.known_tables import KnownTable
from artemis_lifecycle.protection.absence import saved_metadata
from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.protection.identity import Folders
from artemis_lifecycle.protection.ownership import outermost, own_locations
from artemis_lifecycle.reachability.reached import Pointer, ReachedFolders
from artemis_lifecycle.storage.location import normalize, parent
from artemis_lifecycle.storage.threads import threaded

_READERS = 8
_QUICK = 1.0
"""Seconds. A look around that takes no longer is made before every piece of a deletion; of others, one in ten of its
lengths."""

_log = escaping.logger(__name__)


@dataclass(frozen=True)
class Neighbor:
    """Another table, by what its metadata says of locations. `dropped`: the catalog has it no more.

    When its metadata cannot be read, `problem` says why and `locations` are guessed from where its metadata file is. Of
    a dropped table that is no problem: what is left stays in its place (`is_readable` False).
    """

    table: str
    table_uuid: str | None
    metadata_location: str
    locations: tuple[str, ...]
    problem: str | None = None
    dropped: bool = False
    is_readable: bool = True


@dataclass(frozen=True)
class _LastKnown:
    """The pointer of a table that was dropped."""

    metadata_location: str
    previous_metadata_location: str | None = None


def nested_locations(others: Iterable[Neighbor], ours: Sequence[str], folders: Folders) -> tuple[str, ...]:
    """The locations of other tables that equal one of `ours` or lie inside it."""
    return tuple(
        theirs
        for other in others
        for theirs in other.locations
        if any(theirs == own or folders.is_in(theirs, own) for own in ours)
    )


class Neighbors:
    """The other tables of one catalog: those whose locations touch a table's, those that read from there wherever they
    are themselves (add_files, clones), and those that were dropped and still have files there.

    `overlapping` finds new names at each call; `look_around` where all others read, which takes longer.
    """

    def __init__(self, context: DeletionContext, table_uuid: str) -> None:
        self._context = context
        self._table_uuid = table_uuid
        # The name of a dropped table may be another table's by now.
        self._table = context.table if context.dropped is None else None
        self._reached = ReachedFolders(
            context.spark, context.stores, context.root, context.rules_of, context.root_stores
        )
        self._known: dict[str, Neighbor | None] = {}
        self._looked_at: Mapping[str, str] = {}
        self._unread: dict[str, str] = {}
        self._planned: dict[str, list[str]] = {}
        self._lost: dict[str, tuple[KnownTable, Neighbor]] = {}
        self._rested_until = float("-inf")

    def overlapping(self, locations: Sequence[str]) -> tuple[Neighbor, ...]:
        """Tables whose locations touch `locations`, readable or not, and tables that read there, by name. A table is
        read once in the life of this object, and again when `look_around` saw it change."""
        names = [name for name in self._context.catalog.tables() if name != self._table]
        if self._looked_at and any(name not in self._looked_at and name not in RESULT_TABLES for name in names):
            # A new name may be a table that was renamed, and reads here as before.
            self._rested_until = float("-inf")
            self.look_around()
        self._known = {name: self._known[name] for name in names if name in self._known}
        unseen = [name for name in names if name not in self._known]
        self._known.update(zip(unseen, threaded(self._read, unseen, _READERS), strict=True))
        found = [other for name in sorted(names) if (other := self._known[name]) is not None]
        found += self._dropped()
        folders = Folders(self._context.rules)
        return tuple(other for other in found if self._touches(other, locations, folders))

    def look_around(self) -> None:
        """Find out where all other tables of the catalog read, as of their pointers now; reads what they have committed
        since the last time. A table that cannot be read counts with what was last known of it.

        Where a catalog needs its time for that, looking takes a tenth of the time at most: calls in between do nothing.
        """
        began = time.monotonic()
        if began < self._rested_until:
            return
        there = self._context.catalog.pointers()
        pointers = {
            name: pointer
            for name, pointer in there.items()
            # Our own results are no clones of anybody's.
            if name != self._table and name not in RESULT_TABLES
        }
        now = {name: pointer.metadata_location for name, pointer in pointers.items()}
        # Their locations may have changed too.
        changed = [name for name, place in now.items() if self._looked_at.get(name) != place]
        self._known.update(zip(changed, threaded(self._read, changed, _READERS), strict=True))
        self._looked_at = now
        lost = {other.table: _LastKnown(other.metadata_location) for other in self._dropped()}
        # What a table has expired, its metadata no longer reads, and its plan still needs.
        holding = self._context.operations.plans.holding() if self._context.cold is None else []
        others = [plan for plan in holding if plan.table_uuid != self._table_uuid]
        plans = {f"plan {plan.plan_id}": plan for plan in others}
        self._planned = {}
        for name, plan in plans.items():
            self._planned.setdefault(plan.table_uuid, []).append(name)
        lists = {name: plan.files_location for name, plan in plans.items()}
        # What is listed without a pointer stays known as it was.
        listed = {*there, *self._context.catalog.tables()}
        problems = self._reached.look({**pointers, **lost}, listed, lists)
        for name, problem in problems.items():
            _log.warning("Where %s reads is not known as of now: %s", name, problem)
        # Of a table that could never be read, every file here may be one that it reads.
        tables = {**{name: name for name in pointers}, **{name: plan.table for name, plan in plans.items()}}
        self._unread = {
            name: problem
            for name, problem in (self._unread | problems).items()
            if name in tables and not self._reached.knows(name, there.get(name)) and not self._is_isolated(tables[name])
        }
        took = time.monotonic() - began
        self._rested_until = began + (10 * took if took > _QUICK else 0)

    def entry(self, other: Neighbor) -> Pointer:
        """The catalog's own entry of a neighbor, read now."""
        return _LastKnown(other.metadata_location) if other.dropped else self._context.catalog.entry(other.table)

    def reads(self, other: Neighbor) -> tuple[str, ...]:
        """The folders that a neighbor and its open plans read, as far as is known."""
        names = [other.table, *self._planned.get(other.table_uuid or "", ())]
        return tuple(folder for name in names for folder in self._reached.of(name))

    def unread(self) -> Mapping[str, str]:
        """Tables whose files are unknown, each with the error that prevents reading it."""
        return self._unread

    def _touches(self, other: Neighbor, locations: Sequence[str], folders: Folders) -> bool:
        reads = self.reads(other)
        if other.problem is not None and not is_addressable(other.table):
            # Named `..`, it is around all tables by its path alone: no reason to stop what lies in their own places.
            inside = any(folders.is_in(one, another) for one in other.locations for another in locations)
            return inside or any(folders.overlap(one, another) for one in reads for another in locations)
        if not other.metadata_location:
            return not self._context.isolated(other.table)
        theirs = (*other.locations, *reads)
        return any(folders.overlap(one, another) for one in theirs for another in locations)

    def _is_isolated(self, table: str) -> bool:
        """Whether a table that could never be read counts in its own place only."""
        return self._context.isolated(table) or not is_addressable(table)

    def _read(self, name: str) -> Neighbor | None:
        context = self._context
        try:
            entry = context.catalog.entry(name)
        except BadInput as error:  # NoSuchTable among them; or the name is none by which the catalog is asked.
            if name not in context.catalog.tables():
                return None  # Dropped between the two questions: it has no entry that a reader could follow.
            # Where it reads is not known, so it may read anywhere.
            return Neighbor(name, None, "", (), f"the catalog lists it, and cannot load it: {error.what}")
        try:
            metadata = read_table_metadata(context.stores, entry.metadata_location)
        except (UnreadableMetadata, StorageError) as error:
            return Neighbor(name, None, entry.metadata_location, self._guess(entry.metadata_location), str(error))
        # Its metadata file need not be at its location: a table can be registered from any file.
        place = parent(normalize(entry.metadata_location, context.rules))
        locations = outermost((*own_locations(metadata, context.rules), place))
        return Neighbor(name, metadata.table_uuid, entry.metadata_location, locations)

    # --- tables that were dropped -----------------------------------------------------------------------------------

    def _dropped(self) -> list[Neighbor]:
        """What the catalog is known to have had and has no more, under any name; named as no table can be."""
        context = self._context
        present = {other.table_uuid for other in self._known.values() if other is not None} | {self._table_uuid}
        found = []
        for known in context.operations.known_tables.of_catalog(context.catalog_name):
            if known.gone_at is not None or known.table_uuid in present:
                continue
            if known.table_uuid in self._lost and self._lost[known.table_uuid][0] == known:
                found.append(self._lost[known.table_uuid][1])
                continue
            place = next(
                (
                    path
                    for path in (saved_metadata(context.root, known), known.metadata_location)
                    if context.stores.head(path) is not None
                ),
                None,
            )
            holds = context.operations.holds.active(known.table_uuid) if place is None else ()
            if place is None and not holds:
                continue  # Purged: nothing is left by which anybody could bring it back.
            is_readable = True
            try:
                metadata = read_table_metadata(context.stores, place or known.metadata_location)
                locations = own_locations(metadata, context.rules)
            except (UnreadableMetadata, StorageError):
                locations, is_readable = self._guess(known.metadata_location), False
            name = f"dropped table {known.table} ({known.table_uuid})"
            problem = f"it was purged, and is on hold {holds[0].hold_id} of {holds[0].owner}" if holds else None
            other = Neighbor(
                name,
                known.table_uuid,
                place or known.metadata_location,
                locations,
                problem=problem,
                dropped=True,
                is_readable=is_readable,
            )
            # Its last metadata file never changes; whether it is still lost is asked each time.
            self._lost[known.table_uuid] = (known, other)
            found.append(other)
        return found

    def _guess(self, metadata_location: str) -> tuple[str, ...]:
        folder = parent(normalize(metadata_location, self._context.rules))
        # <table>/metadata/<file>: by the layout that every writer uses unless it is told otherwise.
        return outermost((folder, parent(folder)) if folder.endswith("/metadata") else (folder,))
