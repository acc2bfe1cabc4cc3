"""The other tables around a table: those in the catalog, by their locations and the folders that they read, and dropped
tables whose files are still kept.

Two tables that shared or nested a location deleted each other's files (iceberg 4265, 12278; nessie 12363).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from artemis_lifecycle import escaping
from artemis_lifecycle.catalogs.identifier import UNANSWERED, CatalogEntry, is_addressable
from artemis_lifecycle.catalogs.results import is_result_table
from artemis_lifecycle.config.names import name_of
from artemis_lifecycle.errors import BadInput, LifecycleError, NewerFormat, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.lines import is_written_once
from artemis_lifecycle.metadata.table_metadata import Described, described, read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.known_tables import KnownTable, Seen, beside_catalog
from artemis_lifecycle.protection.absence import Behind, saved_later, saved_metadata, tables_behind
from artemis_lifecycle.protection.context import Deletion, DeletionContext
from artemis_lifecycle.protection.future import LostCommit, ahead_of, later_files
from artemis_lifecycle.protection.identity import Folders
from artemis_lifecycle.protection.ownership import outermost, own_locations
from artemis_lifecycle.protection.table_state import is_purged
from artemis_lifecycle.reachability.reached import Pointer, ReachedFolders
from artemis_lifecycle.storage.location import LocationRules, normalize, parent
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

_READERS = 8
_CLOCKS_MS = 600_000
"""By how much the clock of a writer may differ from that of Postgres."""
_QUICK = 1.0
"""Seconds. If a survey of other tables takes no longer, it runs before every piece of a deletion; otherwise it may take
one tenth of the time."""

_log = escaping.logger(__name__)


@dataclass(frozen=True)
class Neighbor:
    """Another table, with the locations from its metadata. `dropped` means that the catalog no longer has it.

    If its metadata cannot be read, `problem` says why, and `locations` are guessed from the path of its metadata file.
    For a dropped table its remaining files stay (`is_readable` False); `known_as` is the name that it had. Of one that
    can come back from quarantine, `moved` are the folders there; what it reaches stays, but it has no place.

    Any other object of the catalog, such as a view, has no snapshots (`is_readable` False): what is in its places is
    its own. `reads_folder`: a table of another format reads all files in its location, whoever wrote them.

    `unanswered`: a root of a catalog that does not answer; without `locations`, it may be anywhere.
    """

    table: str
    table_uuid: str | None
    metadata_location: str
    locations: tuple[str, ...]
    problem: str | None = None
    dropped: bool = False
    is_readable: bool = True
    is_result: bool = False
    reads_folder: bool = False
    known_as: str | None = None
    unanswered: str | None = None
    moved: tuple[str, ...] = ()


@dataclass(frozen=True)
class LastKnown:
    """The pointer of a table whose catalog lacks it, or does not answer."""

    metadata_location: str
    previous_metadata_location: str | None = None
    problem: str | None = None


def nested_locations(others: Iterable[Neighbor], ours: Sequence[str], folders: Folders) -> tuple[str, ...]:
    """Return the locations of others that equal one of `ours` or are inside it."""
    return tuple(
        theirs
        for other in others
        for theirs in other.locations
        if any(theirs == own or folders.is_in(theirs, own) for own in ours)
    )


def readable_neighbor(rules: LocationRules, name: str, metadata: TableMetadata) -> Neighbor:
    """Return a table with this metadata."""
    place = parent(normalize(metadata.metadata_location, rules))
    # Its metadata file may be outside its location: a table can be registered from any file.
    locations = outermost((*own_locations(metadata, rules), place))
    return Neighbor(name, metadata.table_uuid, metadata.metadata_location, locations)


def unreadable_neighbor(
    stores: Stores,
    rules: LocationRules,
    name: str,
    metadata_location: str,
    error: LifecycleError,
    places: Sequence[str] | None = None,
) -> Neighbor:
    """Return what a metadata file makes of a name if reading it as a table raised `error`: a table whose files are
    unknown, one of a newer format, or another object. `places` are those of an object that the catalog does not call a
    table."""
    place, guess = parent(normalize(metadata_location, rules)), guessed_locations(metadata_location, rules)
    found = Described(places is None, False, None, ())
    with suppress(UnreadableMetadata, StorageError):
        found = described(stores, metadata_location)
    theirs = [normalize(each, rules) for each in found.locations]
    if isinstance(error, NewerFormat) and found.table_uuid is not None:
        return Neighbor(name, found.table_uuid, metadata_location, outermost((*theirs, *guess)))
    if found.is_table or (places is None and not found.locations):
        return Neighbor(name, None, metadata_location, guess, str(error))
    # Nothing lists the other versions of a view: they are where its metadata files are written.
    own = (f"{theirs[0]}/metadata", *theirs[1:]) if found.is_view and theirs else (*theirs, *(places or guess))
    return Neighbor(name, None, metadata_location, outermost((place, *own)), is_readable=False)


def guessed_locations(metadata_location: str, rules: LocationRules) -> tuple[str, ...]:
    """Return where a table with this metadata file probably is."""
    folder = parent(normalize(metadata_location, rules))
    # <table>/metadata/<file>: the default layout of every writer.
    return outermost((folder, parent(folder)) if folder.endswith("/metadata") else (folder,))


class Neighbors:
    """The other tables of one catalog: those whose locations touch a table's, those that read from there wherever they
    are (add_files, clones), and dropped tables with files there.

    `overlapping` finds new names at each call. `refresh_neighbors` finds where all others read, which takes longer.
    """

    def __init__(self, context: DeletionContext, deletion: Deletion) -> None:
        self._context = context
        self._deletion = deletion
        # The name of a dropped table may now belong to another table.
        self._table = context.table if context.dropped is None else None
        self.reached = ReachedFolders(
            context.spark, context.stores, context.root, context.rules_of, context.root_stores, context.newer
        )
        self.unread_since: int | None = None
        """Epoch milliseconds since when a table that was readable may have taken up files in unreadable commits."""
        self._known: dict[str, Neighbor | None] = {}
        self._objects: dict[str, CatalogEntry] = {}
        # Tables and roots of catalogs that did not answer the last survey.
        self._unasked: Collection[str] = ()
        self._roots: Mapping[str, CatalogEntry] = {}
        self._read_at: Mapping[str, str] | None = None
        self._unread: dict[str, str] = {}
        self._planned: dict[str, list[str]] = {}
        self._held: dict[str, tuple[str, ...]] = {}
        self._lost: dict[tuple[str, str, str], tuple[KnownTable, tuple[str, ...], list[Neighbor]]] = {}
        self._moved_of: Callable[[KnownTable], tuple[str, ...]] = lambda known: ()
        self._ahead: dict[str, list[LostCommit]] = {}
        self._seen_pointers: dict[str, set[str]] = defaultdict(set)
        self._lost_pointers: dict[str, set[str]] = {}
        self._purged = set[str]()
        self._logs: dict[str, Collection[str]] = {}
        self._rested_until = float("-inf")

    def overlapping(self, locations: Sequence[str]) -> tuple[Neighbor, ...]:
        """Return the tables whose locations touch `locations`, readable or not, and the tables that read there, by
        name. Each table is read once by this object, and again after `refresh_neighbors` saw a change."""
        names = [name for name in self._context.catalog.tables() if name != self._table]
        names += self._list_objects()
        if self._read_at is not None and any(name not in self._read_at for name in names):
            # A new name may be a renamed table, which reads here as before.
            self._rested_until = float("-inf")
            self.refresh()
        self._known = {name: self._known[name] for name in names if name in self._known}
        unseen = [name for name in names if name not in self._known]
        self._known.update(zip(unseen, threaded(self._read, unseen, _READERS), strict=True))
        found = [other for name in sorted(names) if (other := self._known[name]) is not None]
        found += self._dropped(self._known_tables(), self._context.operations.clock.now())
        folders = Folders(self._context.rules)
        return tuple(other for other in found if self._touches(other, locations, folders))

    def refresh(self) -> None:
        """Find out where all other tables of the catalog read, by their current pointers. Reads commits since the last
        call. For an unreadable table, its last known state counts.

        For a slow catalog, this takes at most one tenth of the time: calls in between do nothing.
        """
        began = time.monotonic()
        if began < self._rested_until:
            return
        read_at = self._context.operations.clock.now()
        self._lost_pointers = self._context.operations.table_locations.all_lost_pointers()
        listed_now = self._context.catalog.pointers()
        # After the pointers, because a table that was dropped before them was recorded before; and before any metadata.
        own, outside = known_tables = self._known_tables()
        # Not of a catalog that is no longer named: the cold table of its table has the same uuid, and other pointers.
        for known in (*own, *(each for each in outside if each.catalog in self._beside)):
            self._seen_pointers[known.table_uuid].add(known.metadata_location)
        entries = {name: each for name, each in listed_now.items() if isinstance(each, CatalogEntry)}
        self._roots = {name: each for name, each in entries.items() if each.type == UNANSWERED}
        self._unasked = {name for name, each in listed_now.items() if isinstance(each, LastKnown)}
        apart = {self._table, *self._roots}
        pointers = {name: each for name, each in listed_now.items() if name not in apart}
        self._list_objects()
        pointers |= self._objects
        now = {name: pointer.metadata_location for name, pointer in pointers.items()}
        # Their locations may have changed too.
        changed = [name for name, at in now.items() if (self._read_at or {}).get(name) != at or not is_written_once(at)]
        read = threaded(lambda name: self._read(name, pointers[name]), changed, _READERS)
        self._known.update(zip(changed, read, strict=True))
        self._read_at = now
        self._known = {name: each for name, each in self._known.items() if name in now}
        # What is not a table reads no files of tables by their paths, nor do the project's own result tables.
        for name, other in self._known.items():
            if other is not None and (other.is_result or not other.is_readable):
                pointers.pop(name, None)
        dropped = [other for other in self._dropped(known_tables, read_at) if other.metadata_location]
        lost = {other.table: LastKnown(other.metadata_location) for other in dropped}
        self.reached.moved = {other.table: other.moved for other in dropped}
        # After an expiration, a table's metadata no longer reads the files, but its plan still needs them.
        holding = self._context.operations.plans.holding() if self._context.cold is None else []
        others = [plan for plan in holding if plan.table_uuid != self._deletion.table_uuid]
        plans = {f"plan {plan.plan_id}": plan for plan in others}
        self._planned = {}
        for name, plan in plans.items():
            self._planned.setdefault(plan.table_uuid, []).append(name)
        lists = {name: plan.files_location for name, plan in plans.items()}
        # A record, beside a cache that may be lost.
        self._held = {}
        for hold in self._context.operations.holds.active():
            self._held[hold.table_uuid] = (*self._held.get(hold.table_uuid, ()), *hold.reads)
        # A listed table without a pointer keeps its last known state.
        listed = {*listed_now, *self._objects, *self._context.catalog.tables()}
        problems = self.reached.refresh({**pointers, **lost}, listed, lists, round(read_at.timestamp() * 1000))
        for name, problem in problems.items():
            _log.warning("The folders that %s reads are currently unknown: %s", name, problem)
        # A table that was never readable may read any file here. One that was may read what was live since then.
        tables = {**{name: name for name in pointers}, **{name: plan.table for name, plan in plans.items()}}
        failed = {name: problem for name, problem in self.reached.problems().items() if name in tables}
        for other in dropped:
            if other.known_as and other.table in self.reached.problems() and not self._is_purged(other):
                # `isolated` has the name that it had.
                tables[other.table], failed[other.table] = other.known_as, self.reached.problems()[other.table]
        failed = {name: problem for name, problem in failed.items() if not self._is_isolated(tables[name])}
        self._unread = {
            name: problem for name, problem in failed.items() if not self.reached.knows(name, pointers.get(name))
        }
        seen = [self.reached.seen_ms(name) for name in failed if name not in self._unread]
        self.unread_since = min(seen) - _CLOCKS_MS if seen else None
        took = time.monotonic() - began
        self._rested_until = began + (10 * took if took > _QUICK else 0)

    def entry(self, other: Neighbor) -> Pointer:
        """Read the catalog's current entry of a neighbor."""
        if other.table in self._objects:
            self._list_objects()
            # Gone: like a dropped table, it counts with its last metadata until the next survey.
            return self._objects.get(other.table, LastKnown(other.metadata_location))
        if other.dropped or other.table in self._unasked:
            return LastKnown(other.metadata_location)
        return self._context.catalog.entry(other.table)

    def reads(self, other: Neighbor) -> tuple[str, ...]:
        """Return the folders that a neighbor and its open plans read, as far as known."""
        names = [other.table, *self._planned.get(other.table_uuid or "", ())]
        held = self._held.get(other.table_uuid or "", ())
        return tuple(dict.fromkeys([*held, *(folder for name in names for folder in self.reached.of(name))]))

    def unread(self) -> Mapping[str, str]:
        """Return the tables whose folders are unknown, with the reason."""
        return self._unread

    def _touches(self, other: Neighbor, locations: Sequence[str], folders: Folders) -> bool:
        if other.unanswered is not None:
            places = [(one, another) for one in other.locations for another in locations]
            return not places or any(folders.overlap(one, another) for one, another in places)
        reads = self.reads(other)
        if other.problem is not None and not is_addressable(other.table):
            # With a location `..`, its path surrounds all tables. That must not block files in their own places.
            inside = any(folders.is_in(one, another) for one in other.locations for another in locations)
            return inside or any(folders.overlap(one, another) for one in reads for another in locations)
        if other.problem is not None and not other.metadata_location:
            return not self._context.isolated(other.table)
        theirs = (*other.locations, *reads)
        return any(folders.overlap(one, another) for one in theirs for another in locations)

    def _is_purged(self, dropped: Neighbor) -> bool:
        # Once it is known, its lists are not looked for again before each batch.
        if dropped.metadata_location in self._purged:
            return True
        try:
            stores = self._context.stores.with_moved(dropped.moved)
            metadata = read_table_metadata(stores, dropped.metadata_location)
        except UnreadableMetadata:
            return True  # As its place says: that stays.
        self._purged |= {dropped.metadata_location} if is_purged(self._context, metadata) else set()
        return dropped.metadata_location in self._purged

    def _is_isolated(self, table: str) -> bool:
        """Return True if a table that was never readable counts only in its own place."""
        return self._context.isolated(table) or not is_addressable(table)

    def _read(self, name: str, pointer: Pointer | None = None) -> Neighbor | None:
        """Read a table by its pointer in the survey, or by its entry."""
        context = self._context
        if name in self._objects:
            return self._object(name, self._objects[name])
        try:
            entry = context.catalog.entry(name) if pointer is None else pointer
        except BadInput as error:  # Includes NoSuchTable; or the catalog rejects the name.
            if name not in context.catalog.tables():
                return None  # Dropped between the two calls: it has no entry that a reader could follow.
            # It is unknown where it reads, so it may read anywhere.
            return Neighbor(name, None, "", (), f"the catalog lists it, but cannot load it: {error.what}")
        if isinstance(entry, CatalogEntry) and entry.type == UNANSWERED:
            return self._object(name, entry)
        if entry.problem is not None:
            last = self.reached.last(name)
            place = "" if last is None else last.metadata_location
            return Neighbor(name, None, place, guessed_locations(place, context.rules) if place else (), entry.problem)
        return self._behind(name, entry.metadata_location)

    def _behind(self, name: str, metadata_location: str, places: Sequence[str] | None = None) -> Neighbor:
        """Return what a metadata file makes of a name, whatever the catalog calls it. `places` are those of an object
        that the catalog does not call a table: they are its own even if nothing says what it is."""
        stores, rules = self._context.stores, self._context.rules
        try:
            metadata = read_table_metadata(stores, metadata_location)
        except (UnreadableMetadata, StorageError) as error:
            return unreadable_neighbor(stores, rules, name, metadata_location, error, places)
        is_versioned = name.partition(":")[0] in self._context.marked
        if self._context.cold is None and not is_versioned:
            seen, lost = self._seen_pointers[metadata.table_uuid], self._lost_pointers.get(metadata.table_uuid, ())
            self._ahead[name] = ahead_of(stores, metadata, seen, lost, rules)
        return replace(readable_neighbor(rules, name, metadata), is_result=is_result_table(name, metadata.properties))

    def lost_commits(self) -> list[tuple[str, LostCommit]]:
        """Return the commits of tables that were seen, and that their catalog lost: it was put back in time."""
        return [(name, each) for name, several in self._ahead.items() for each in several]

    def _list_objects(self) -> list[str]:
        """Read the catalog's objects that are not tables, and forget what was read of those that changed. Return their
        names, which are impossible as table names."""
        others = (*self._roots.values(), *self._context.catalog.others())
        now = {f"{each.type} {each.catalog}:{each.identifier}": each for each in others}
        for name in [name for name, entry in self._objects.items() if now.get(name) != entry]:
            self._known.pop(name, None)
        self._objects = now
        return list(now)

    def _object(self, name: str, entry: CatalogEntry) -> Neighbor:
        places = outermost([normalize(entry.location.rstrip("/"), self._context.rules)] if entry.location else [])
        if entry.type == UNANSWERED:
            return Neighbor(name, None, "", places, entry.problem, is_readable=False, unanswered=entry.catalog)
        if not entry.metadata_location:
            return Neighbor(name, None, "", places, is_readable=False, reads_folder=True)
        return self._behind(name, entry.metadata_location, places)

    # --- tables that were dropped -----------------------------------------------------------------------------------

    def _dropped(self, known_tables: tuple[list[KnownTable], list[KnownTable]], now: datetime) -> list[Neighbor]:
        """Return the tables that the catalogs had and no longer have. Their names are impossible as table names."""
        found = []
        for known in self._not_present(*known_tables, now):
            key, moved = (known.catalog, known.table_uuid, known.table), self._moved_of(known)
            # Its last metadata file never changes; whether it is still dropped is checked each time.
            if key not in self._lost or self._lost[key][:2] != (known, moved) or not self._lost[key][2]:
                states = self._last_states(known, moved)
                self._lost[key] = known, moved, [replace(each, moved=moved) for each in states]
            found += self._lost[key][2]
        return found

    def _last_states(self, known: KnownTable, moved: tuple[str, ...]) -> list[Neighbor]:
        """Return a dropped table as it was seen last, and as of each later metadata file. Nothing if it was purged."""
        context, stores = self._context, self._context.stores.with_moved(moved)
        what = f"table of {known.catalog}" if known.catalog in context.marked else "dropped table"
        is_readable, name = True, f"{what} {known.table} ({known.table_uuid})"
        if self._is_out_of_reach(known):
            guess = guessed_locations(known.metadata_location, context.rules)
            return [Neighbor(name, known.table_uuid, "", guess, is_readable=False)]
        paths = (saved_metadata(context.root, known), known.metadata_location)
        place = next((path for path in paths if stores.head(path) is not None), None)
        holds = context.operations.holds.active(known.table_uuid) if place is None else ()
        # Its own writers may have deleted the file that was seen last, as their table property says.
        unseen = [*self._unseen_state(known, name, moved)]
        if place is None and not holds:
            # Without any file that is left it was purged, and nothing could be restored.
            return unseen
        try:
            metadata = read_table_metadata(stores, place or known.metadata_location)
            locations = () if known.gone_at else own_locations(metadata, context.rules)
        except NewerFormat:
            return [self._newer(known, name, place or known.metadata_location), *unseen]
        except (UnreadableMetadata, StorageError):
            locations, is_readable = guessed_locations(known.metadata_location, context.rules), False
        problem = f"it was purged, but has hold {holds[0].hold_id} of {holds[0].owner}" if holds else None
        other = Neighbor(
            name,
            known.table_uuid,
            place or known.metadata_location,
            locations,
            problem=problem,
            dropped=True,
            is_readable=is_readable,
            known_as=name_of(known.table),
        )
        return [other, *unseen]

    def _not_present(self, own: list[KnownTable], outside: list[KnownTable], now: datetime) -> Iterator[KnownTable]:
        """Yield the tables that were seen in a live catalog or beside it, and whose names are gone. A second name of a
        present table is a reader of its own, with its own last state."""
        context, operations = self._context, self._context.operations
        own, outside = ([known for known in each if not self._is_gone(known)] for each in (own, outside))
        present = self._present((*own, *outside))
        for known in own:
            if known not in present:
                yield known
        # No command lists or deletes those outside: they count for their time, and while a person keeps them.
        since = now - context.policy.dropped.keep
        on_hold: frozenset[str] | None = None
        for known in outside:
            if known in present:
                continue
            is_asked = known.catalog in self._beside or known.catalog in context.marked
            until = known.missing_since or (since if is_asked else known.last_seen)
            if until < since and known.kept_at is None and not self._moved_of(known):
                if on_hold is None:
                    on_hold = frozenset(hold.table_uuid for hold in operations.holds.active())
                if known.table_uuid not in on_hold:
                    continue
            yield known

    def _is_gone(self, known: KnownTable) -> bool:
        """Return True if a dropped table's files were deleted, and are not in quarantine, from which it can return."""
        return known.gone_at is not None and not self._moved_of(known)

    def _present(self, recorded: Sequence[KnownTable]) -> set[KnownTable]:
        """Return the recorded tables whose names are there, each with its own line: the name of a dropped one may have
        another line of its uuid before any look."""
        names, lines = defaultdict[str, set[str]](set), defaultdict[tuple[str | None, str], list[Neighbor]](list)
        for known in recorded:
            names[known.table_uuid].add(known.table)
        for name, other in self._known.items():
            if other is not None:
                lines[other.table_uuid, self._name_of(name)].append(other)

        def is_there(known: KnownTable) -> bool:
            key = known.table_uuid, known.table
            # References of a version store move between lines; a catalog that is named no longer has its own pointers.
            has_lines = known.catalog in {*self._catalogs, *self._beside}.difference(self._context.marked)
            is_one = len(names[known.table_uuid]) == 1 or not has_lines
            if key == (self._deletion.table_uuid, self._context.table) or (is_one and key in lines):
                return True
            pointers = [other.metadata_location for other in lines.get(key, ())]
            return known.metadata_location in pointers or any(
                Seen(known.table, at, self.log_of(at)).continues(known) for at in pointers
            )

        return set(filter(is_there, recorded))

    def log_of(self, metadata_location: str) -> Collection[str]:
        """Return the metadata files before this one; none of one that cannot be read."""
        if metadata_location not in self._logs:
            behind = tables_behind(self._context.stores, [metadata_location])[metadata_location]
            self._logs[metadata_location] = behind.log if isinstance(behind, Behind) else ()
        return self._logs[metadata_location]

    def _is_out_of_reach(self, known: KnownTable) -> bool:
        """Return True if the store of a catalog that is no longer named does not answer, because the credentials were
        part of that catalog's configuration. Then the table keeps its place, and stops nothing."""
        context = self._context
        if known.catalog in self._beside or known.catalog in (*context.configured, *context.marked):
            return False
        try:
            context.stores.head(known.metadata_location)
        except StorageError:
            return True
        return False

    def _known_tables(self) -> tuple[list[KnownTable], list[KnownTable]]:
        """Return the tables that were seen in the live catalogs, and in catalogs that the configuration does not name,
        or no longer."""
        operations = self._context.operations
        own, outside = operations.known_tables.around(self._catalogs, self._context.configured)
        # After them: what is gone was moved before. Its purge does not wait for itself.
        self._moved_of = operations.quarantines.of_dropped(self._deletion.job_id)
        return own, outside if self._context.configured else []

    @property
    def _beside(self) -> frozenset[str]:
        return frozenset(map(beside_catalog, self._catalogs))

    @property
    def _catalogs(self) -> tuple[str, ...]:
        return self._context.catalog_name, *self._context.other_catalogs

    def _name_of(self, name: str) -> str:
        return self._objects[name].identifier if name in self._objects else name

    def _unseen_state(self, known: KnownTable, name: str, moved: Sequence[str]) -> Iterator[Neighbor]:
        """Yield a dropped table as of each metadata file after the last seen one that no later file names: commits
        that nobody saw, more of them than a metadata log has entries for, attempts that lost their swaps, commits of
        another name of the uuid. All of these states count."""
        stores, rules = self._context.stores, self._context.rules
        followed = set[str]()
        saved = stores.list(saved_later(self._context.root, known)) if moved else ()
        for path in (*later_files(stores, normalize(known.metadata_location, rules)), *(file.path for file in saved)):
            if normalize(path, rules) in followed:
                continue
            found = self._following(known, f"{name} as of {path.rpartition('/')[2]}", path)
            if found is not None:
                followed |= found[1]
                yield found[0]

    def _following(self, known: KnownTable, name: str, path: str) -> tuple[Neighbor, set[str]] | None:
        """Return a dropped table as of a metadata file, and the files before it; None if it is not the table's."""
        stores, rules = self._context.stores, self._context.rules
        try:
            behind = described(stores, path)
            if behind.table_uuid != known.table_uuid:
                return None
            before = {normalize(each, rules) for each in behind.log}
            metadata = read_table_metadata(stores, path)
            locations = () if known.gone_at else own_locations(metadata, rules)
            return Neighbor(
                name, known.table_uuid, path, locations, dropped=True, known_as=name_of(known.table)
            ), before
        except NewerFormat:
            return self._newer(known, name, path), before
        except (UnreadableMetadata, StorageError) as error:
            # It may be the table's last commit, damaged since.
            problem = f"it was dropped, and its later metadata file {path} cannot be read: {error.what}"
            return Neighbor(known.table, None, "", (), problem, dropped=True), set()

    def _newer(self, known: KnownTable, name: str, path: str) -> Neighbor:
        """Return a dropped table as of a metadata file of a version that this release does not know. If Iceberg cannot
        read it either, it may have taken up any file: everything waits."""
        try:
            self._context.newer(path)
        except (UnreadableMetadata, StorageError) as error:
            problem = f"it was dropped, and its last state cannot be read: {error.what}"
            return Neighbor(known.table, None, "", (), problem, dropped=True)
        return Neighbor(name, known.table_uuid, path, guessed_locations(path, self._context.rules), dropped=True)
