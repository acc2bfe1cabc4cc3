"""Whether files may be deleted, and why not: the one answer that every deletion asks for.

Sources are read in this order, each as late as possible: holds, heartbeats, the catalog's pointers (the table's own,
then every other table's that is or reads here, dropped ones too), open plans, scans and undeletes of all of these,
folders of this machine by their identity, names, archived copies. A writer that stops between two reads has committed
before the pointer is read, or is seen by its heartbeat.

Nothing here trusts the plan, an asset or a cached table. A job's files are held against all that any snapshot of the
current metadata reaches, hash by hash in the manifest index; after that against what a moved pointer brought. What
cannot be read stops the deletion.

What stays open is the moment between reading the pointer and the store's delete call. A writer that commits a reference
to a doomed file inside it, without a heartbeat, a hold or a restore (which wait for the table's lock), loses that file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.errors import Busy, Held, UnreadableMetadata
from artemis_lifecycle.metadata import kinds
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.heartbeats import Heartbeat
from artemis_lifecycle.operations.holds import Hold
from artemis_lifecycle.operations.plans import PlanRecord, PlanStatus
from artemis_lifecycle.operations.scans import ScanState
from artemis_lifecycle.protection.context import Deletion, DeletionContext
from artemis_lifecycle.protection.identity import Aliases, Folders, may_be_same_file
from artemis_lifecycle.protection.neighbors import Neighbor, Neighbors, nested_locations
from artemis_lifecycle.protection.ownership import (
    former_locations,
    metadata_locations,
    own_locations,
    require_collectable,
    subject_array,
)
from artemis_lifecycle.protection.places import HELD, IN_FLIGHT, RECEIPTS, Places
from artemis_lifecycle.protection.prefixes import prefix_locations
from artemis_lifecycle.protection.table_state import (
    ColdTableState,
    DroppedTableState,
    LostNeighborState,
    TableState,
    hash_texts,
    metadata_files,
)
from artemis_lifecycle.protection.twins import Known, twins
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.index.folders import reached_folders
from artemis_lifecycle.reachability.index.lookups import reaches
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.storage.frames import frame_batches
from artemis_lifecycle.storage.instants import microseconds
from artemis_lifecycle.storage.location import LocationRules, is_under, normalize
from artemis_lifecycle.storage.location_hash import among, distinct, hash_column
from artemis_lifecycle.storage.many_files import ByFolder
from artemis_lifecycle.storage.stores import Stores, is_local

OPEN_PLAN = "open_plan"
"""An expiration plan holds the file: it waits for its handoff, its commit, its grace or its deletion."""

ATTEMPT = "commit_attempt"
"""A metadata file written on top of the pointer, which may be the next commit or a lost one, reaches the file."""

OPEN_SCAN = "open_scan"
"""Another scan of the table is being deleted, and names the file."""

UNDELETED = "undeleted"
"""The file was brought back from quarantine, and the undelete is not closed."""

PREFIX_MISMATCH = "prefix_mismatch"
"""A reachable file has the same path under another scheme or authority."""

COPY_MISSING = "copy_missing"
"""The file is the last copy: its archived one is promised, and not in the cold tier now."""

TOO_YOUNG = "too_young"
"""Younger than `min_age`, or a metadata file outside the log younger than the retention window."""

UNKNOWN_AGE = "unknown_age"
"""The listing does not tell when the file was last modified."""

WAITING = frozenset({IN_FLIGHT, HELD, OPEN_PLAN, OPEN_SCAN, COPY_MISSING})
"""Reasons that end by themselves, or by an action of another: an expired file that stays for one of them is tried
again."""

_FULL_LOOKS = 4

Considered = Callable[[], "Iterable[pa.Array]"]
"""Gives the paths of all files of a deletion, anew at each call."""


@dataclass(frozen=True)
class Ages:
    """Files last modified at `cutoff` (metadata files: `metadata_cutoff`) or later are too young."""

    cutoff: datetime
    metadata_cutoff: datetime


@dataclass(frozen=True)
class ProtectedFiles:
    """The answer as of one read of all sources, for the files that were considered. Picklable.

    `known` are reasons with the sorted location hashes of the files that stay for them, the strongest first; `twins`
    the hashes of those with a reachable twin under another scheme or authority.
    """

    known: tuple[tuple[str, NDArray[np.uint64]], ...]
    places: Places
    twins: NDArray[np.uint64] | None = None
    ages: Ages | None = None

    def reasons(self, files: pa.Table | pa.RecordBatch) -> dict[int, str]:
        """The rows of `files` (path; with `ages` also kind and last_modified) that stay, each with its reason. Of
        several reasons the first in the order of docs/protection.md is given."""
        column = files.column("path")
        paths = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        hashed = hash_column(subject_array(paths), self.places.rules)
        reasons: dict[int, str] = {}
        named, own = sidecar_hashes(paths, self.places.rules)
        for reason, hashes in self.known:
            for row in np.flatnonzero(among(hashes, hashed)).tolist():
                reasons.setdefault(row, reason)
            for row in named[among(hashes, own)].tolist():
                reasons.setdefault(row, reason)
        placed = self.places.of(paths)
        weak = {row: why for row, why in placed.items() if why == IN_FLIGHT}
        for row, why in placed.items():
            if row not in weak:
                reasons.setdefault(row, why)
        if self.twins is not None:
            for row in np.flatnonzero(among(self.twins, hashed)).tolist():
                reasons.setdefault(row, PREFIX_MISMATCH)
        for row, why in weak.items():
            reasons.setdefault(row, why)
        if self.ages is not None:
            for row, why in _young(files, self.ages):
                reasons.setdefault(row, why)
        return reasons


def _young(files: pa.Table | pa.RecordBatch, ages: Ages) -> Iterator[tuple[int, str]]:
    modified = pc.cast(files.column("last_modified"), pa.timestamp("us", "UTC"))
    since = pc.fill_null(pc.cast(modified, pa.int64()), 0).to_numpy()
    of_metadata = np.asarray(pc.equal(files.column("kind"), kinds.METADATA))
    cutoffs = np.where(of_metadata, microseconds(ages.metadata_cutoff), microseconds(ages.cutoff))
    unknown = np.asarray(pc.is_null(modified))
    yield from ((row, UNKNOWN_AGE) for row in np.flatnonzero(unknown).tolist())
    yield from ((row, TOO_YOUNG) for row in np.flatnonzero(~unknown & (since >= cutoffs)).tolist())


class Protection:
    """The sources of one deletion, read, and read again before each of its pieces."""

    def __init__(self, context: DeletionContext, deletion: Deletion) -> None:
        self._context = context
        self._deletion = deletion
        self._own: TableState
        if context.cold is not None:
            self._own = ColdTableState(context, deletion, context.cold)
        elif context.dropped is not None:
            self._own = DroppedTableState(context, deletion, context.dropped)
        else:
            self._own = TableState(context, deletion, deletion.table, deletion.table_uuid, context.entry)
        self.neighbors = Neighbors(context, deletion.table_uuid)
        self._found: tuple[Neighbor, ...] = ()
        self._others: dict[str, TableState] = {}
        self._heartbeats: Sequence[Heartbeat] = ()
        self._own_roots: tuple[str, ...] = ()
        self._former: tuple[str, ...] = ()
        # Hashes, sorted: of all files considered, and of those that a table reached at the last full look, by its name.
        self._hashes: NDArray[np.uint64] | None = None
        self._reached: dict[str, NDArray[np.uint64]] = {}
        # Those that sealed lists name, by where these stand: what is sealed never changes.
        self._frames: dict[str, NDArray[np.uint64]] = {}
        self._foreign: tuple[str, ...] = ()
        self._attempts: list[IndexView] = []
        # By plans and metadata files as of then: what waits for its handoff and no metadata reaches any more.
        self._unarchived: tuple[object, list[IndexView]] | None = None
        self._former_roots: tuple[str, ...] = ()
        self._known_files: list[Known] | None = None
        # Of the considered files, on this machine: their folders; and, row by row, the hashes of those that have other
        # names among the reachable ones, with the hashes of these names.
        self._folders: set[str] = set()
        self._second: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None

    # --- reading the sources ----------------------------------------------------------------------------------------

    @property
    def metadata(self) -> TableMetadata:
        """The table's own metadata, as of the last read."""
        assert self._own.metadata is not None
        return self._own.metadata

    @property
    def own_view(self) -> IndexView | None:
        """The index over all that the table reaches; None of a dropped table."""
        return self._own.view(self.metadata)

    @property
    def views(self) -> list[tuple[str, IndexView]]:
        """Every table here with the reason for which its files stay."""
        states = (self._own, *self._others.values())
        found = ((state.reason, state.view(state.metadata)) for state in states if state.metadata is not None)
        return [(reason, view) for reason, view in found if view is not None]

    def look_around(self) -> None:
        """See which tables read here from elsewhere, before the table's lock is taken: it may take its time."""
        self.neighbors.look_around()
        if self._context.dropped is not None:
            self._context.dropped.require()

    def read(self) -> None:
        """Read every source that does not depend on the files: heartbeats first, then the pointers.

        Raises StalePlan for a table that is gone, GarbageCollectionDisabled, UnreadableMetadata, StorageError.
        """
        self._read_heartbeats()
        metadata = self._own.read()
        self._require_collectable(metadata)
        if self._context.own is None:
            self._former = former_locations(self._context.stores, metadata, self._context.rules)
        self._settle_roots(metadata)
        self._others = {other.table: self._other(other) for other in self._found if other.is_readable}
        self._own.walked(metadata)
        for state in self._others.values():
            state.walked(state.read())

    def consider(self, paths: Iterable[pa.Array]) -> None:
        """Hold files, which come in Arrow arrays, against all that the tables reach. The driver has eight bytes for
        each, and no path. Call `read` first. Raises UnreadableMetadata."""
        rules = self._context.rules
        self._frames.clear()
        self._unarchived = None
        self._known_files = None
        self._folders = set()
        reached = [view for _, view in self.views] + self._unarchived_views()
        # An expiration names its files as the table does, and costs what they cost; others were listed.
        links = self._deletion.kind not in ("expiration", "deep_archive")
        aliases = Aliases(Folders(rules), self._reachable_folders(reached), links=links) if self._is_local else None
        hashes = [np.empty(0, np.uint64)]
        named, other_names = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
        for array in paths:
            subjects = subject_array(array)
            hashed = hash_column(subjects, rules)
            hashes += [hashed, sidecar_hashes(array, rules)[1]]
            if aliases is not None:
                self._folders.update(folder for folder, _, _, _ in self._by_folder(subjects))
                for rows, others in self._other_names(subjects, aliases):
                    named.append(hashed[rows])
                    other_names.append(others)
        self._hashes = distinct(np.concatenate(hashes))
        self._second = np.concatenate(named), np.concatenate(other_names)
        self._reached = {}
        for state in (self._own, *self._others.values()):
            self._reached[state.table] = self._reached_by(state.reaches)
            state.other_names = self._names_here

    def _reached_by(self, reached_of: Callable[[NDArray[np.uint64]], NDArray[np.bool_]]) -> NDArray[np.uint64]:
        """The considered files that are reached, under any of their names."""
        assert self._hashes is not None and self._second is not None
        reached = self._hashes[reached_of(self._hashes)]
        first, second = self._second
        if not len(second):
            return reached
        others = distinct(second)
        alive = others[reached_of(others)]
        return distinct(np.concatenate([reached, first[among(alive, second)]]))

    def full(self, considered: Considered) -> None:
        """`read` and `consider`."""
        self.read()
        self.consider(considered())

    def refresh(self, considered: Considered) -> None:
        """Read the sources again; hold all files against them again where more came than the driver reads, or a new
        neighbor.

        Raises Busy when the table keeps changing by more than the driver reads in the meantime.
        """
        self._read_heartbeats()
        for _ in range(_FULL_LOOKS):
            if self._refreshed():
                return
            # It took its time: what came meanwhile is still to be looked at.
            self.full(considered)
        raise Busy(
            "The table changes faster than it can be looked at",
            table=self._deletion.table,
            untouched="all files of the job that were not deleted before",
            hint="delete again at a quieter time",
        )

    def _refreshed(self) -> bool:
        enough = False not in [state.refresh() for state in (self._own, *self._others.values())]
        self._require_collectable(self.metadata)
        self._settle_roots(self.metadata)
        return {other.table for other in self._found if other.is_readable} == set(self._others) and enough

    def _read_heartbeats(self) -> None:
        # Only handoffs and restores write in the cold tier: what a heartbeat says is of the live one.
        self._heartbeats = self._context.operations.heartbeats.live(None) if self._context.cold is None else ()

    def _require_collectable(self, metadata: TableMetadata) -> None:
        # A cold table has the properties of the live one, of which this one is about live's own files.
        if self._context.cold is None:
            require_collectable(metadata, self._deletion.table)

    def require_no_hold(self) -> None:
        """Raise Held, naming it, when a hold covers the table or one of the job's snapshots."""
        deletion = self._deletion
        for hold in self._context.operations.holds.active(deletion.table_uuid):
            if self._is_held(hold):
                what = "the table" if not hold.snapshot_ids else "snapshots of the table"
                raise Held(
                    f"Hold {hold.hold_id} of {hold.owner} on {what} stops deletion {deletion.job_id}: {hold.reason}",
                    table=deletion.table,
                    untouched="all files of the job that were not deleted before",
                    hint=f"delete again when it is over, or artemis release {hold.hold_id}",
                )

    def _is_held(self, hold: Hold) -> bool:
        """Whether a hold stops this deletion. One on snapshots stops what deletes their files: an expiration of them;
        and where no record names files any more, all else, unless these snapshots are archived or still reach
        theirs."""
        held = set(hold.snapshot_ids)
        if not held or held & set(self._deletion.snapshot_ids):
            return True
        if self._deletion.snapshot_ids or self._deletion.kind == "expiration":
            return False
        metadata = self._own.metadata or self._own.read()
        live = {snapshot.snapshot_id for snapshot in metadata.snapshots} & held
        if self._context.dropped is not None and live:
            return True
        return bool(held - live) and not (held - live).issubset(self._context.archived(self._deletion.table_uuid))

    # --- the answer -------------------------------------------------------------------------------------------------

    def kept(self, files: pa.Table, considered: Considered) -> dict[int, str]:
        """The rows of `files` (column path) that stay, each with its reason, as of now. `considered` gives all files
        of the deletion, should they have to be held against everything again.

        Raises Held for a hold, StalePlan for a table that is gone, UnreadableMetadata for anything unreadable.
        """
        self._context.confirm()
        self.require_no_hold()
        self.refresh(considered)
        reasons = self.protected().reasons(files)
        if self._context.missing_copies is not None:
            rows = np.array([row for row in range(files.num_rows) if row not in reasons], np.int64)
            paths = files.column("path").combine_chunks().take(rows)
            missing = self._context.missing_copies(paths)
            reasons |= dict.fromkeys(rows[missing].tolist(), COPY_MISSING)
        return reasons

    def names(self, paths: pa.Array) -> NDArray[np.bool_]:
        """Which of these files, whatever they are beside, a table names as its own, as of the last read."""
        hashes = hash_column(paths, self._context.rules)
        named = np.zeros(len(hashes), np.bool_)
        for state in (self._own, *self._others.values()):
            view = None if state.metadata is None else state.view(state.metadata)
            named |= among(hash_texts(state.new, self._context.rules), hashes)
            if view is not None:
                named |= reaches(view, hashes)
        return named

    def protected(self, ages: Ages | None = None, twins: NDArray[np.uint64] | None = None) -> ProtectedFiles:
        """What protects the considered files, as of the last read; plans, scans and undeletes are read now."""
        states = (self._own, *self._others.values())
        known = [(state.reason, self._reached[state.table]) for state in states]
        known += [later for state in states for later in state.later()]
        known += self._sealed()
        return ProtectedFiles(tuple(known), self._places(), twins, ages)

    def protect(self, locations: Iterable[str], attempts: Iterable[TableMetadata] = ()) -> None:
        """Keep everything in these locations too, where tables are that no catalog here knows, and all that these
        metadata files reach: each may be the next commit, or one that the catalog has lost. Raises UnreadableMetadata.
        """
        self._foreign = tuple(locations)
        context = self._context
        self._attempts = [
            # An index of its own: these snapshots may never be the table's.
            indexed(context.spark, context.stores, metadata, context.rules, f"{context.root}/attempts")
            for metadata in attempts
        ]

    def twins(self, paths: Iterable[pa.Array]) -> NDArray[np.uint64]:
        """The sorted hashes of the files that have a known twin under another scheme or authority."""
        found = [np.empty(0, np.uint64)]
        for array in paths:
            rows = sorted({row for row, _ in self.twin_pairs(array)})
            found.append(hash_column(subject_array(array), self._context.rules)[rows])
        return distinct(np.concatenate(found))

    def twin_pairs(self, paths: pa.Array) -> Iterator[tuple[int, str]]:
        """Rows with a known twin, and where that is."""
        if self._known_files is None:
            context, rules = self._context, self._context.rules
            states = (self._own, *self._others.values())
            needed = {location for state in states for location in state.needed} | self._bases()
            views = [*(view for _, view in self.views), *self._unarchived_views(), *self._attempts]
            self._known_files = [Known.reached_by(view) for view in views]
            self._known_files += [Known.sealed_in(each, context.records, rules) for _, each in self._sealed_lists()]
            self._known_files.append(Known.at(needed, rules))
        return twins(paths, self._known_files, self._context.rules)

    def _sealed(self) -> list[tuple[str, NDArray[np.uint64]]]:
        """The considered files that open plans, scans and undeletes of the tables here name."""
        found = [(reason, self._named(location)) for reason, location in self._sealed_lists()]
        found += [(OPEN_PLAN, self._reached_by(partial(reaches, view))) for view in self._unarchived_views()]
        for view in self._attempts:
            found.append((ATTEMPT, self._reached_by(partial(reaches, view))))
            found.append((ATTEMPT, hash_texts(metadata_files(view.metadata, self._context.rules), self._context.rules)))
        return [*found, (OPEN_PLAN, hash_texts(self._bases(), self._context.rules, self._names_here))]

    @property
    def _uuids(self) -> list[str]:
        others = [other.table_uuid for other in self._found if other.table_uuid is not None]
        return list(dict.fromkeys([self._deletion.table_uuid, *others]))

    def _open_plans(self) -> list[PlanRecord]:
        deletion, holding = self._deletion, self._context.operations.plans.holding
        if self._context.cold is not None:
            return []  # They name live files.
        plans = [plan for each in self._uuids for plan in holding(each) if plan.plan_id != deletion.job_id]
        # A dropped table's own plans end with its deletion.
        return [plan for plan in plans if deletion.kind != "dropped" or plan.table_uuid != deletion.table_uuid]

    def _unarchived_views(self) -> list[IndexView]:
        """Indexes over what open plans of the tables here still have to archive, and another tool expired."""
        context = self._context
        states = {state.table_uuid: state for state in (self._own, *self._others.values())}
        plans = [plan for plan in self._open_plans() if plan.status is PlanStatus.OPEN and plan.expired_snapshots]
        now = [(plan.plan_id, states[plan.table_uuid].metadata) for plan in plans if plan.table_uuid in states]
        key = [(plan_id, metadata and metadata.metadata_location) for plan_id, metadata in now]
        if self._unarchived is None or self._unarchived[0] != key:
            views = []
            for plan in plans:
                metadata = states[plan.table_uuid].metadata if plan.table_uuid in states else None
                left = None if metadata is None else context.overtaken(plan, metadata)
                if left is not None:
                    # An index of its own: it is of other snapshots of the same table.
                    root = f"{context.root}/unarchived"
                    views.append(indexed(context.spark, context.stores, left, context.rules, root))
            self._unarchived = (key, views)
        return self._unarchived[1]

    def _bases(self) -> set[str]:
        """A handoff still reads the base of its plan; who asks what a plan was made of finds it too."""
        return {normalize(plan.base_metadata_location, self._context.rules) for plan in self._open_plans()}

    def _sealed_lists(self) -> list[tuple[str, str]]:
        """Why files stay that sealed lists name, and where these lists are."""
        operations, job_id = self._context.operations, self._deletion.job_id
        if self._context.cold is not None:
            return []
        found = [(OPEN_PLAN, plan.files_location) for plan in self._open_plans()]
        for table_uuid in self._uuids:
            for scan in operations.scans.of_table(table_uuid, [ScanState.DELETING]):
                if scan.scan_id != job_id:
                    found.append((OPEN_SCAN, scan.files_location))
            for record in operations.quarantines.undeleted(table_uuid):
                job = operations.journal.job(record.job_id)
                assert job is not None  # the journal has a job before its first file goes
                found.append((UNDELETED, job.files_location))
        return found

    def _named(self, files_location: str) -> NDArray[np.uint64]:
        """The considered files that a sealed list names."""
        assert self._hashes is not None
        if files_location not in self._frames:
            hashes = [np.empty(0, np.uint64)]
            for batch in frame_batches(files_location, self._context.records):
                subjects = subject_array(batch.column("path"))
                hashes += [hash_column(subjects, self._context.rules), *self._names_here(subjects)]
            named = distinct(np.concatenate(hashes))
            self._frames[files_location] = named[among(self._hashes, named)]
        return self._frames[files_location]

    def _places(self) -> Places:
        context, rules = self._context, self._context.rules
        is_expiration = self._deletion.kind == "expiration"
        folders = Folders(rules)
        in_flight: list[str] = []
        held: list[str] = []
        reads = {other.table: self.neighbors.reads(other) for other in self._found} if self._heartbeats else {}
        for state in (self._own, *self._others.values()):
            assert state.metadata is not None
            live = [heartbeat for heartbeat in self._heartbeats if heartbeat.table_uuid == state.table_uuid]
            had = context.operations.table_locations.of_table(state.table_uuid) if live else ()
            # A writer of a table that reads from here may have a file of here at hand.
            former = (*had, *(self._own_roots if state is self._own else reads.get(state.table, ())))
            in_flight += covered(live, state.metadata, rules, context.stores, former)
        on_hold = {hold.table_uuid for hold in context.operations.holds.active()} if self._found else set()
        for other in self._found:
            if other.table_uuid in on_hold:
                held += (*other.locations, *self.neighbors.reads(other))
        # What a plan names was the table's own, also inside another's location; at a former location it may not be.
        roots = self._former_roots if is_expiration else self._own_roots
        # The other tiers may lie in a folder that the table calls its own.
        reserved = (normalize(each, rules) for each in (context.root, *context.reserved))
        nested = (*nested_locations(self._found, roots, folders), *reserved, *self._foreign)
        kept_names = context.hidden == "keep" and not is_expiration and self._deletion.kind != "purge"
        return Places(
            own=self._own_roots,
            nested=nested,
            in_flight=tuple(dict.fromkeys(in_flight)),
            rules=rules,
            receipts=tuple(f"{folder}/{RECEIPTS}" for folder in metadata_locations(self.metadata, rules)),
            roots=() if is_expiration else tuple(normalize(root, rules) for root in context.roots),
            held=tuple(dict.fromkeys(held)),
            partition_fields=self.metadata.partition_fields if kept_names else None,
        )

    # --- tables around this one -------------------------------------------------------------------------------------

    def _settle_roots(self, metadata: TableMetadata) -> None:
        """The locations that the table owns: its own now, and those that it had, unless another table is there now."""
        rules, folders = self._context.rules, Folders(self._context.rules)
        if self._context.own is not None:
            self._own_roots = tuple(normalize(each, rules) for each in self._context.own)
            self._found = self._neighbors(self._own_roots)
            return
        current = own_locations(metadata, rules)
        had = (*self._context.operations.table_locations.of_table(self._deletion.table_uuid), *self._former)
        former = [each for each in dict.fromkeys(had) if not any(is_under(f"{each}/x", own, rules) for own in current)]
        found = self._neighbors((*current, *former))
        taken = [theirs for other in found for theirs in other.locations]
        self._former_roots = tuple(each for each in former if not any(folders.is_in(each, theirs) for theirs in taken))
        self._own_roots = (*current, *self._former_roots)
        self._found = found

    def _neighbors(self, locations: Sequence[str]) -> tuple[Neighbor, ...]:
        found = self.neighbors.overlapping(locations)
        for other in found:
            if other.problem is not None:
                raise self._unreadable(other.table, other.problem, other.metadata_location)
        for name, problem in self.neighbors.unread().items():
            raise self._unreadable(name, problem, None)
        return found

    def _unreadable(self, name: str, problem: str, path: str | None) -> UnreadableMetadata:
        return UnreadableMetadata(
            f"Table {name} shares or nests a location with this one, or may read from it, and cannot be read: "
            f"{problem}",
            table=self._deletion.table,
            path=path,
            untouched="all files that were not deleted before",
            hint=f"repair or drop {name}, or name it under catalogs.live.isolated if it reads no other table's files",
        )

    def _other(self, other: Neighbor) -> TableState:
        assert other.table_uuid is not None
        kind = LostNeighborState if other.dropped else TableState
        return kind(self._context, self._deletion, other.table, other.table_uuid, lambda: self.neighbors.entry(other))

    # --- folders with several names ---------------------------------------------------------------------------------

    @property
    def _is_local(self) -> bool:
        return any(is_local(root) for root in self._own_roots)

    def _reachable_folders(self, views: Iterable[IndexView]) -> Iterator[str]:
        for view in views:
            parts, _ = reached_folders(view, ())
            for part in parts:
                yield from (normalize(f"{folder}/x", self._context.rules)[: -len("/x")] for folder in part)

    def _by_folder(self, paths: pa.Array) -> Iterator[tuple[str, str, int, int]]:
        """Folders of `paths`, in normal form and as spelled, with their first row and the one behind their last."""
        files = ByFolder.of(paths)
        for low, high in pairwise([*files.starts.tolist(), len(paths)]):
            spelled = files.folder(low)
            if spelled is not None:
                yield normalize(f"{spelled}/x", self._context.rules)[: -len("/x")], spelled, low, high

    def _other_names(self, paths: pa.Array, aliases: Aliases) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
        """Rows of `paths` with the location hashes that their files have under other names of their folders."""
        for folder, spelled, low, high in self._by_folder(paths):
            others, linked = aliases.of(folder), aliases.linked(folder)
            if not others and not linked:
                continue
            names = [text[len(spelled) + 1 :] for text in paths.slice(low, high - low).to_pylist()]
            found = [
                (row, f"{other}/{name}")
                for other, is_same in others
                for row, name in enumerate(names)
                if is_same or may_be_same_file(f"{folder}/{name}", f"{other}/{name}")
            ]
            found += [(row, link) for row, name in enumerate(names) for link in linked.get(name, ())]
            rows = np.array([row for row, _ in found], np.int64) + low
            yield rows, hash_column(pa.array([other for _, other in found], pa.string()), self._context.rules)

    def _names_here(self, paths: pa.Array) -> list[NDArray[np.uint64]]:
        """The hashes of the other names that these files have in the considered files' folders."""
        if not self._folders:
            return []
        aliases = Aliases(Folders(self._context.rules), self._folders)
        return [others for _, others in self._other_names(paths, aliases)]


def sidecar_hashes(paths: pa.Array, rules: LocationRules) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The rows with the name of a checksum file, and the hashes of these files' own locations: a table may name one as
    a file of its own, and not the file that it is beside."""
    rows = np.flatnonzero(np.asarray(pc.ends_with(paths, ".crc")))
    return rows, hash_column(paths.take(rows), rules) if len(rows) else np.empty(0, np.uint64)


def covered(
    heartbeats: Iterable[Heartbeat],
    metadata: TableMetadata,
    rules: LocationRules,
    stores: Stores,
    former: Sequence[str] = (),
) -> tuple[str, ...]:
    """The locations that live heartbeats cover: all the table's own, or a writer's prefix and the metadata folders. A
    writer that declares where its data goes still writes manifests, lists and a metadata file where the table says.

    A prefix that says nothing (`prefix_locations`), or where no file is yet, may be mistyped, and covers the whole
    table.
    """
    # Also where it was: a writer may give a file from there to the table again.
    own = tuple(dict.fromkeys((*own_locations(metadata, rules), *former)))
    roots: list[str] = []
    for heartbeat in heartbeats:
        named = () if heartbeat.prefix is None else prefix_locations(heartbeat.prefix, metadata, rules)
        if any(next(iter(stores.list(folder)), None) is not None for folder in named):
            roots += (*named, *metadata_locations(metadata, rules))
        else:
            roots += own
    return tuple(dict.fromkeys(roots))
