"""Whether files may be deleted, and why not: every deletion uses this answer.

Sources are read in this order, each as late as possible: holds, heartbeats, the catalog's pointers (the table's own,
then those of all tables that are or read here, including dropped ones), open plans, scans and undeletes of all of
these, folders of this machine by their identity, names, archived copies. A writer that stops between two reads has
committed before the pointer is read, or is seen by its heartbeat.

Nothing here trusts the plan, an asset or a cached table. A job's files are compared with everything that any snapshot
of the current metadata reaches, by hash in the manifest index. Later, they are compared with what a moved pointer
added. Anything unreadable stops the deletion.

One gap remains: between reading the pointer and the store's delete call. If a writer commits a reference to a doomed
file in that moment, without a heartbeat, a hold or a restore (which wait for the table's lock), it loses that file.
One file: the order in which sources are read is the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import (
    Busy,
    Held,
    MissingFile,
    OperationsUnavailable,
    StalePlan,
    StorageError,
    UnreadableMetadata,
)
from artemis_lifecycle.metadata import types
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.holds import Heartbeat, Hold
from artemis_lifecycle.operations.plans import PlanRecord, PlanStatus
from artemis_lifecycle.operations.quarantines import QuarantineRecord
from artemis_lifecycle.operations.scans import ScanState
from artemis_lifecycle.protection.context import Deletion, DeletionContext, ReachingTable
from artemis_lifecycle.protection.future import DELTA_LOG, ahead_of, claims, possible_roots, unsettled
from artemis_lifecycle.protection.identity import Aliases, Folders, may_be_same_file
from artemis_lifecycle.protection.neighbors import Neighbor, Neighbors, nested_locations
from artemis_lifecycle.protection.ownership import (
    Known,
    former_locations,
    metadata_locations,
    own_locations,
    prefix_locations,
    require_collectable,
    subject_array,
    twins,
)
from artemis_lifecycle.protection.places import HELD, IN_FLIGHT, OTHER_TABLE, RECEIPTS, Places
from artemis_lifecycle.protection.table_state import (
    REACHABLE,
    ColdTableState,
    DroppedTableState,
    LostNeighborState,
    TableState,
    files_since,
    has_no_list,
    hash_texts,
    metadata_files,
)
from artemis_lifecycle.reachability.files import IndexFiles, ReachedFiles
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.storage.frames import frame_batches
from artemis_lifecycle.storage.instants import microseconds
from artemis_lifecycle.storage.location import (
    ByFolder,
    LocationRules,
    among,
    distinct,
    hash_column,
    is_under,
    normalize,
)
from artemis_lifecycle.storage.stores import Stores, is_local

OPEN_PLAN = "open_plan"
"""An open expiration plan needs the file: it waits for its handoff, commit, grace or deletion."""

ATTEMPT = "commit_attempt"
"""The file is reached by a metadata file on top of the pointer, which may be the next commit or a lost one."""

OPEN_SCAN = "open_scan"
"""Another scan of the table lists the file and is being deleted."""

UNDELETED = "undeleted"
"""The file was restored from quarantine, and the undelete is not closed."""

PREFIX_MISMATCH = "prefix_mismatch"
"""A reachable file has the same path under another scheme or authority."""

COPY_MISSING = "copy_missing"
"""The file is the last copy: its required archived copy is missing from the cold tier."""

ANOTHER_FILE = "another_file"
"""The path has another file than the one that expired: somebody wrote it again."""

UNPROVEN = "identity_unproven"
"""Time or token of the file differ from its archived copy's record, and its content was not yet compared."""

TOO_YOUNG = "too_young"
"""Younger than `min_age`; or a metadata file outside the log, younger than the retention window."""

UNKNOWN_AGE = "unknown_age"
"""The listing does not have the file's modification time."""

UNREAD_READER = "unread_reader"
"""A table whose newest commits cannot be read may have taken up the file: it was live at its last readable commit, or
later."""

WAITING = frozenset({IN_FLIGHT, HELD, OPEN_PLAN, OPEN_SCAN, COPY_MISSING, UNPROVEN, UNREAD_READER})
"""Reasons that end by themselves or by a person's action. An expired file that is kept for one of them is tried
again."""

_FULL_LOOKS = 4
_log = escaping.logger(__name__)

Considered = Callable[[], "Iterable[pa.Array]"]
"""Returns the paths of all files of a deletion, read again at each call."""


@dataclass(frozen=True)
class Ages:
    """Files last modified at `cutoff` (metadata files: `metadata_cutoff`) or later are too young."""

    cutoff: datetime
    metadata_cutoff: datetime


@dataclass(frozen=True)
class ProtectedFiles:
    """The answer from one read of all sources, for the considered files. Picklable.

    `known` has reasons with the sorted location hashes of the files that they keep, strongest first. `twins` are the
    hashes of files with a reachable twin under another scheme or authority.
    """

    known: tuple[tuple[str, NDArray[np.uint64]], ...]
    places: Places
    twins: NDArray[np.uint64] | None = None
    ages: Ages | None = None

    def reasons(self, files: pa.Table | pa.RecordBatch) -> dict[int, str]:
        """Return the rows of `files` (path; with `ages` also kind and last_modified) that are kept, each with its
        reason. If there are several reasons, the first in the order of docs/protection.md counts."""
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
    of_metadata = np.asarray(pc.equal(files.column("kind"), types.METADATA))
    cutoffs = np.where(of_metadata, microseconds(ages.metadata_cutoff), microseconds(ages.cutoff))
    unknown = np.asarray(pc.is_null(modified))
    yield from ((row, UNKNOWN_AGE) for row in np.flatnonzero(unknown).tolist())
    yield from ((row, TOO_YOUNG) for row in np.flatnonzero(~unknown & (since >= cutoffs)).tolist())


def own_table(context: DeletionContext, deletion: Deletion) -> ReachingTable:
    """Return what the deletion's own table reaches, before its first read."""
    if context.own_state is not None:
        return context.own_state(context, deletion)
    if context.cold is not None:
        return ColdTableState(context, deletion, context.cold)
    if context.dropped is not None:
        return DroppedTableState(context, deletion, context.dropped)
    return TableState(context, deletion, deletion.table, deletion.table_uuid, context.entry)


class Protection:
    """The sources of one deletion, read once, and again before each piece."""

    def __init__(self, context: DeletionContext, deletion: Deletion) -> None:
        self._context = context
        self._deletion = deletion
        self._own = own_table(context, deletion)
        self.neighbors = Neighbors(context, deletion)
        self._found: tuple[Neighbor, ...] = ()
        self._others: dict[str, ReachingTable] = {}
        self._heartbeats: Sequence[Heartbeat] = ()
        self._own_roots: tuple[str, ...] = ()
        self._former: tuple[str, ...] = ()
        # Sorted hashes of all considered files, and of those that a table reached at the last full check, by table
        # name.
        self._hashes: NDArray[np.uint64] | None = None
        self._reached: dict[str, NDArray[np.uint64]] = {}
        # Hashes from sealed lists, by location of the list: sealed lists never change.
        self._frames: dict[str, NDArray[np.uint64]] = {}
        self._foreign: tuple[str, ...] = ()
        self._claims: dict[str, frozenset[str] | None] = {}
        self._places_of_logs: set[str] = set()
        self._unread_since: int | None = None
        self._may_be_read = np.empty(0, np.uint64)
        self._attempts: list[tuple[str, ReachedFiles]] = []
        self._ahead: list[tuple[str, ReachedFiles]] = []
        # By plans and metadata files of that time: files that wait for their handoff, and that no metadata reaches any
        # more.
        self._unarchived: tuple[object, list[tuple[str, ReachedFiles]]] | None = None
        self._former_roots: tuple[str, ...] = ()
        self._known_files: list[Known] | None = None
        # For considered files on this machine: their folders; and, row by row, the hashes of files that have other
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
    def own_files(self) -> ReachedFiles | None:
        """Everything that the table reaches; None for a dropped table."""
        return self._own.files(self.metadata)

    def _reached_files(self) -> list[ReachedFiles]:
        """Return what each table here reaches."""
        states = (self._own, *self._others.values())
        found = (state.files(state.metadata) for state in states if state.metadata is not None)
        return [files for files in found if files is not None]

    def refresh_neighbors(self) -> None:
        """Find which tables read here from elsewhere. It may be slow, so it runs before the table's lock is taken."""
        self.neighbors.refresh()
        self._read_logs()
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
        self._read_lost_commits(metadata)
        self._own.walked(metadata)
        for state in self._others.values():
            state.walked(state.read())

    def _read_lost_commits(self, metadata: TableMetadata) -> None:
        """Read what the commits of a catalog that was put back in time reach, unless a person settled them. Raises
        UnreadableMetadata for one that is there and cannot be read."""
        if self._context.cold is not None:
            return
        operations, rules, stores = self._context.operations, self._context.rules, self._context.stores
        seen = operations.table_locations.pointers(metadata.table_uuid)
        gone = operations.table_locations.lost_pointers(metadata.table_uuid)
        # References of a version store move between lines.
        is_one_line = self._context.dropped is None and not self._context.is_branched
        lost = [(ATTEMPT, each) for each in (ahead_of(stores, metadata, seen, gone, rules) if is_one_line else ())]
        lost += [(f"{REACHABLE} from {name}", each) for name, each in self.neighbors.lost_commits()]
        settled = {each.table_uuid: operations.settled_metadata.of_table(each.table_uuid) for _, each in lost}
        self._ahead = []
        for reason, each in lost:
            if not unsettled(stores, [each.path], settled[each.table_uuid], rules):
                continue
            problem: UnreadableMetadata | MissingFile | None = each.problem
            if each.metadata is not None:
                try:
                    self._ahead.append((reason, self._files_of(each.metadata)))
                except (UnreadableMetadata, MissingFile) as error:
                    problem = None if has_no_list(self._context, each.metadata) else error
            if problem is None:
                continue
            # Of a uuid with two names it may be the other one's, which is a reader of its own; but not if one of them
            # was seen to leave it, and none goes on from it.
            rows = [known for known in operations.known_tables.of_uuid(each.table_uuid) if known.gone_at is None]
            lines = ((known.metadata_location, *self.neighbors.log_of(known.metadata_location)) for known in rows)
            is_left = each.path in operations.table_locations.lost_pointers(each.table_uuid)
            if len(rows) < 2 or (is_left and not any(each.path in line for line in lines)):
                raise self._unreadable_commit(each.path, problem) from problem
            _log.warning("What a lost commit reached is no longer known: %s", problem.what)

    def consider(self, paths: Iterable[pa.Array]) -> None:
        """Compare files, given as Arrow arrays, with everything that the tables reach. The driver holds eight bytes per
        file, and no paths. Call `read` first. Raises UnreadableMetadata."""
        rules = self._context.rules
        self._frames.clear()
        self._unarchived = None
        self._known_files = None
        self._folders = set()
        further = (*self._unarchived_files(self._open_plans()), *self._attempts, *self._ahead)
        reached = [*self._reached_files(), *(files for _, files in further)]
        # An expiration has its files from the table's metadata, so their spelling is the table's; other files were
        # listed.
        links = self._deletion.kind not in ("expiration", "deep_archive")
        aliases = Aliases(Folders(rules), self._reachable_folders(reached), links=links) if self._is_local else None
        hashes, folders = [np.empty(0, np.uint64)], set[str]()
        named, other_names = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
        for array in paths:
            subjects = subject_array(array)
            hashed = hash_column(subjects, rules)
            hashes += [hashed, sidecar_hashes(array, rules)[1]]
            folders.update(folder for folder, _, _, _ in self._by_folder(subjects))
            if aliases is not None:
                for rows, others in self._other_names(subjects, aliases):
                    named.append(hashed[rows])
                    other_names.append(others)
        self._folders = folders if aliases is not None else set()
        self._hashes = distinct(np.concatenate(hashes))
        self._second = np.concatenate(named), np.concatenate(other_names)
        self._reached = {}
        for state in (self._own, *self._others.values()):
            self._reached[state.table] = self._reached_by(state.reaches)
            state.other_names = self._names_in_folders
        self._unread_since = self.neighbors.unread_since if self._context.cold is None else None
        self._may_be_read = self._reached_since(self._unread_since)
        # A format with a layout of its own says which files can be orphans.
        if self._context.cold is None and self._context.own is None and self._context.layout is None:
            roots = [normalize(root, rules) for root in self._context.roots]
            self._places_of_logs = possible_roots(folders, self._own_roots, roots, rules)
        self._read_logs()

    def _read_logs(self) -> None:
        """Read the logs of other formats around the considered files, and directly below the table's locations."""
        own = self._own_roots if self._places_of_logs else ()
        self._claims = claims(self._context.stores, self._places_of_logs, own)
        self.neighbors.reached.saw_formats(self._deletion.table, self._claims)

    def _reached_since(self, since_ms: int | None) -> NDArray[np.uint64]:
        """Return the considered files that a table here reached at `since_ms` or later; all of them if that is not
        known."""
        assert self._hashes is not None
        found = [np.empty(0, np.uint64)]
        if since_ms is None:
            return found[0]
        try:
            for state in (self._own, *self._others.values()):
                if self._context.own_state is not None and state is self._own:
                    return self._hashes  # Its metadata has no log.
                if state.metadata is not None:
                    files = files_since(self._context, state.metadata, since_ms)
                    found.append(self._reached_by(files.reaches))
        except (UnreadableMetadata, StorageError) as error:
            _log.warning("All files of %s wait for a table that cannot be read: %s", self._deletion.job_id, error.what)
            return self._hashes
        return distinct(np.concatenate(found))

    def _reached_by(self, reached_of: Callable[[NDArray[np.uint64]], NDArray[np.bool_]]) -> NDArray[np.uint64]:
        """Return the considered files that are reached under any of their names."""
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
        """Read the sources again. Compare all files again if there is a new neighbor, or more changes than the driver
        reads.

        Raises Busy if the table keeps changing by more than the driver reads in the meantime.
        """
        self._read_heartbeats()
        for _ in range(_FULL_LOOKS):
            if self._refreshed():
                return
            # That took time, so check for changes in the meantime.
            self.full(considered)
        raise Busy(
            "The table changes faster than it can be checked",
            table=self._deletion.table,
            untouched="all files of the job that were not deleted before",
            hint="delete again at a quieter time",
        )

    def _refreshed(self) -> bool:
        enough = False not in [state.refresh() for state in (self._own, *self._others.values())]
        self._require_collectable(self.metadata)
        self._settle_roots(self.metadata)
        since = self.neighbors.unread_since if self._context.cold is None else None
        enough &= since == self._unread_since
        return {other.table for other in self._found if other.is_readable} == set(self._others) and enough

    def _read_heartbeats(self) -> None:
        # Only handoffs and restores write in the cold tier; heartbeats are about the live tier.
        self._heartbeats = self._context.operations.heartbeats.live(None) if self._context.cold is None else ()

    def _require_collectable(self, metadata: TableMetadata) -> None:
        # A cold table has the live one's properties; this one is about the live table's own files.
        if self._context.cold is None and self._deletion.kind != "deep_archive":
            require_collectable(metadata, self._deletion.table)

    def require_no_hold(self) -> None:
        """Raise Held with the hold's id if a hold covers the table or one of the job's snapshots."""
        deletion, of_table = self._deletion, self._context.holds
        active = self._context.operations.holds.active
        for hold in active(deletion.table_uuid) if of_table is None else of_table():
            if self._is_held(hold):
                what = "the table" if not hold.snapshot_ids else "snapshots of the table"
                raise Held(
                    f"Hold {hold.hold_id} of {hold.owner} on {what} stops deletion {deletion.job_id}: {hold.reason}",
                    table=deletion.table,
                    untouched="all files of the job that were not deleted before",
                    hint=f"delete again when it is over, or artemis release {hold.hold_id}",
                )

    def _is_held(self, hold: Hold) -> bool:
        """Return True if a hold stops this deletion. A hold on snapshots stops a deletion of their files: an expiration
        of them, and all deletions of unreferenced files, unless these snapshots are archived or still reach their
        files."""
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
        """Return the rows of `files` (column path) that are kept now, each with its reason. `considered` yields all
        files of the deletion, if all must be compared again.

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
        """Return which of these files a table references directly, as of the last read, whichever file they belong
        to."""
        hashes = hash_column(paths, self._context.rules)
        named = np.zeros(len(hashes), np.bool_)
        for state in (self._own, *self._others.values()):
            files = None if state.metadata is None else state.files(state.metadata)
            named |= among(hash_texts(state.new, self._context.rules), hashes)
            if files is not None:
                named |= files.reaches(hashes)
        return named

    def protected(self, ages: Ages | None = None, twins: NDArray[np.uint64] | None = None) -> ProtectedFiles:
        """Return what protects the considered files, as of the last read. Plans, scans and undeletes are read now."""
        states = (self._own, *self._others.values())
        known = [(state.reason, self._reached[state.table]) for state in states]
        known += [later for state in states for later in state.later()]
        known += self._sealed()
        known.append((UNREAD_READER, self._may_be_read))
        for named in self._claims.values():
            known.append((OTHER_TABLE, hash_texts(named or (), self._context.rules, self._names_in_folders)))
        return ProtectedFiles(tuple(known), self._places(), twins, ages)

    def protect(
        self, locations: Iterable[str], attempts: Iterable[TableMetadata] = (), strangers: Iterable[TableMetadata] = ()
    ) -> None:
        """Also keep everything in these locations, which contain tables that no known catalog has, and everything that
        these metadata files reach: attempts may be the next commit, or a lost one; strangers are other tables' newest.
        Where nobody can tell what a stranger reaches, its locations are kept. Raises UnreadableMetadata."""
        foreign = list(locations)
        self._attempts = [(ATTEMPT, self._files_of(metadata)) for metadata in attempts]
        for metadata in strangers:
            try:
                self._attempts.append((OTHER_TABLE, self._files_of(metadata)))
            except (UnreadableMetadata, StorageError):
                foreign += own_locations(metadata, self._context.rules)
        self._foreign = tuple(foreign)

    def _files_of(self, metadata: TableMetadata) -> ReachedFiles:
        # A separate index, because these snapshots may never belong to the table.
        context = self._context
        root = f"{context.root}/attempts"
        return IndexFiles(indexed(context.spark, context.stores, metadata, context.rules, root))

    def twins(self, paths: Iterable[pa.Array]) -> NDArray[np.uint64]:
        """Return the sorted hashes of the files that have a known twin under another scheme or authority."""
        found = [np.empty(0, np.uint64)]
        for array in paths:
            rows = sorted({row for row, _ in self.twin_pairs(array)})
            found.append(hash_column(subject_array(array), self._context.rules)[rows])
        return distinct(np.concatenate(found))

    def twin_pairs(self, paths: pa.Array) -> Iterator[tuple[int, str]]:
        """Yield rows with a known twin, and the twin's location."""
        if self._known_files is None:
            context, rules = self._context, self._context.rules
            states = (self._own, *self._others.values())
            plans = self._open_plans()
            needed = {location for state in states for location in state.needed} | self._bases(plans)
            reached = [
                *self._reached_files(),
                *(files for _, files in (*self._unarchived_files(plans), *self._attempts, *self._ahead)),
            ]
            self._known_files = [Known.reached_by(files, rules) for files in reached]
            self._known_files += [
                Known.sealed_in(each, context.records, rules) for _, each in self._sealed_lists(plans)
            ]
            self._known_files.append(Known.at(needed, rules))
        return twins(paths, self._known_files, self._context.rules)

    def _sealed(self) -> list[tuple[str, NDArray[np.uint64]]]:
        """Return the considered files that are in open plans, scans and undeletes of the tables here."""
        plans = self._open_plans()
        found = [(reason, self._named(location)) for reason, location in self._sealed_lists(plans)]
        found += [(reason, self._reached_by(files.reaches)) for reason, files in self._unarchived_files(plans)]
        for reason, files in (*self._attempts, *self._ahead):
            needed = metadata_files(files.metadata, self._context.rules)
            found.append((reason, self._reached_by(files.reaches)))
            found.append((reason, hash_texts(needed, self._context.rules, self._names_in_folders)))
        return [*found, (OPEN_PLAN, hash_texts(self._bases(plans), self._context.rules, self._names_in_folders))]

    @property
    def _uuids(self) -> list[str]:
        others = [other.table_uuid for other in self._found if other.table_uuid is not None]
        return list(dict.fromkeys([self._deletion.table_uuid, *others]))

    def _open_plans(self) -> list[PlanRecord]:
        deletion, holding = self._deletion, self._context.operations.plans.holding
        if self._context.cold is not None:
            return []  # They list live files.
        plans = [plan for each in self._uuids for plan in holding(each) if plan.plan_id != deletion.job_id]
        known = self._context.operations.known_tables
        if deletion.kind != "dropped" or known.lives_on(deletion.table_uuid):
            return plans
        # A dropped table's own plans end with its deletion.
        return [plan for plan in plans if plan.table_uuid != deletion.table_uuid]

    def _unarchived_files(self, plans: list[PlanRecord]) -> list[tuple[str, ReachedFiles]]:
        """Return what open plans of the tables here still have to archive, but another tool expired; and all that the
        snapshots of undeleted plans need, beyond the files that these plans had deleted."""
        context = self._context
        wanted: list[tuple[str, PlanRecord, str | None]]
        wanted = [(OPEN_PLAN, plan, None) for plan in plans if plan.status is PlanStatus.OPEN]
        wanted += [(UNDELETED, plan, record.metadata_location) for plan, record in self._undeleted_plans()]
        # Of a uuid with several names, what any of them lacks.
        now = [
            (reason, plan, kept_base, state.metadata)
            for reason, plan, kept_base in wanted
            for state in (self._own, *self._others.values())
            if plan.expired_snapshots and state.table_uuid == plan.table_uuid
        ]
        key = [(plan.plan_id, metadata and metadata.metadata_location) for _, plan, _, metadata in now]
        if self._unarchived is None or self._unarchived[0] != key:
            found: list[tuple[str, ReachedFiles]] = []
            # A separate index, because it has other snapshots of the same table.
            root, quarantines = f"{context.root}/unarchived", context.operations.quarantines
            for reason, plan, kept_base, metadata in now:
                # What an undeleted snapshot shares may be in a later plan's quarantine.
                stores = context.stores.with_moved(quarantines.folders(plan.table_uuid) if reason == UNDELETED else ())
                try:
                    left = None if metadata is None else context.overtaken(plan, metadata, kept_base)
                    index = None if left is None else indexed(context.spark, stores, left, context.rules, root)
                except (UnreadableMetadata, StalePlan) as error:
                    gone = isinstance(error, StalePlan) or isinstance(error.__cause__, MissingFile)
                    if reason != UNDELETED or not gone:
                        raise
                    # Its list protects what it brought back itself.
                    _log.warning("What undeleted plan %s needs is not all there: %s", plan.plan_id, error.what)
                    continue
                if index is not None:
                    found.append((reason, IndexFiles(index)))
            self._unarchived = (key, found)
        return self._unarchived[1]

    def _undeleted_plans(self) -> list[tuple[PlanRecord, QuarantineRecord]]:
        operations = self._context.operations
        records = [each for table_uuid in self._uuids for each in operations.quarantines.undeleted(table_uuid)]
        if not records or self._context.cold is not None:
            return []
        plans = {plan.plan_id: plan for table_uuid in self._uuids for plan in operations.plans.of_table(table_uuid)}
        return [(plans[each.job_id], each) for each in records if each.job_id in plans]

    def _bases(self, plans: list[PlanRecord]) -> set[str]:
        """Return the base metadata files of plans: a handoff still reads them, and they show what a plan was based
        on."""
        return {normalize(plan.base_metadata_location, self._context.rules) for plan in plans}

    def _sealed_lists(self, plans: list[PlanRecord]) -> list[tuple[str, str]]:
        """Return the reasons of sealed lists, and the locations of these lists."""
        operations, job_id = self._context.operations, self._deletion.job_id
        if self._context.cold is not None:
            return []
        found = [(OPEN_PLAN, plan.files_location) for plan in plans if not self._is_overtaken(plan)]
        for table_uuid in self._uuids:
            for scan in operations.scans.of_table(table_uuid, [ScanState.DELETING]):
                if scan.scan_id != job_id:
                    found.append((OPEN_SCAN, scan.files_location))
        # A table that the database has forgotten is nobody's neighbor.
        undeleted = {each.job_id for each in operations.quarantines.undeleted_of_unknown()}
        undeleted |= {each.job_id for uuid in self._uuids for each in operations.quarantines.undeleted(uuid)}
        for each in sorted(undeleted):
            job = operations.journal.job(each)
            assert job is not None  # the journal has a job before its first file is deleted
            found.append((UNDELETED, job.files_location))
        return found

    def _is_overtaken(self, plan: PlanRecord) -> bool:
        """Return True for a plan of this table that was committed before the one whose files are deleted. A file that
        both name was live again in between, and is the younger one's: they must not wait for each other."""
        if self._deletion.kind != "expiration" or plan.table_uuid != self._deletion.table_uuid:
            return False
        mine = self._context.operations.plans.get(self._deletion.job_id).committed_at
        return mine is not None and plan.committed_at is not None and plan.committed_at < mine

    def _named(self, files_location: str) -> NDArray[np.uint64]:
        """Return the considered files that are in a sealed list."""
        assert self._hashes is not None
        if files_location not in self._frames:
            hashes = [np.empty(0, np.uint64)]
            for batch in frame_batches(files_location, self._context.records):
                subjects = subject_array(batch.column("path"))
                hashes += [hash_column(subjects, self._context.rules), *self._names_in_folders(subjects)]
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
            # A writer of a table that had this name before goes on writing to the name.
            named = self._deletion.table if state is self._own else None
            live = [each for each in self._heartbeats if each.table_uuid == state.table_uuid or each.table == named]
            had = context.operations.table_locations.of_table(state.table_uuid) if live else ()
            # A writer of a table that reads from here may be using a file from here.
            former = (*had, *(self._own_roots if state is self._own else reads.get(state.table, ())))
            in_flight += covered(live, state.metadata, rules, context.stores, former)
        on_hold = {hold.table_uuid for hold in context.operations.holds.active()} if self._found else set()
        for other in self._found:
            if other.table_uuid in on_hold:
                held += (*other.locations, *self.neighbors.reads(other))
        # A plan's files belonged to the table, even inside another table's location; at a former location they may not.
        roots = self._former_roots if is_expiration else self._own_roots
        # The other tiers may be in a folder that the table owns.
        reserved = (normalize(each, rules) for each in (context.root, *context.reserved))
        readers = (other for other in self._found if other.reads_folder)
        nested = (
            *nested_locations(self._found, roots, folders),
            *nested_locations(readers, self._own_roots, folders),
            *reserved,
            *self._foreign,
            *(root if named is None else f"{root}/{DELTA_LOG}" for root, named in self._claims.items()),
        )
        # Only handoffs and restores write in the cold tier, and no other system.
        kept_names = context.policy.orphans.hidden == "keep" and context.cold is None
        kept_names &= not is_expiration and self._deletion.kind != "purge"
        return Places(
            own=self._own_roots,
            nested=nested,
            in_flight=tuple(dict.fromkeys(in_flight)),
            rules=rules,
            receipts=tuple(f"{folder}/{RECEIPTS}" for folder in metadata_locations(self.metadata, rules)),
            roots=() if is_expiration else tuple(normalize(root, rules) for root in context.roots),
            held=tuple(dict.fromkeys(held)),
            partition_fields=self.metadata.partition_fields if kept_names else None,
            layout=None if is_expiration else context.layout,
        )

    # --- tables around this one -------------------------------------------------------------------------------------

    def _settle_roots(self, metadata: TableMetadata) -> None:
        """Determine the locations that the table owns: its current ones, and former ones unless another table is there
        now."""
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
            if other.unanswered is not None:
                raise OperationsUnavailable(
                    f"Catalog {other.unanswered} does not answer, and its tables may read files of this one: their "
                    "roots overlap",
                    table=self._deletion.table,
                    path=next(iter(other.locations), None),
                    untouched="all files that were not deleted before",
                    hint=f"run this again when catalog {other.unanswered} answers; a catalog whose warehouse is not a "
                    "location counts everywhere",
                )
            if other.problem is not None:
                raise self._unreadable(other.table, other.problem, other.metadata_location)
        for name, problem in self.neighbors.unread().items():
            raise self._unreadable(name, problem, None)
        return found

    def _unreadable(self, name: str, problem: str, path: str | None) -> UnreadableMetadata:
        what = f"Table {name} shares or nests a location with this one, or may read from it, and cannot be read"
        hint = f"repair or drop {name}, or name it in isolated of its catalog if it reads no other table's files; "
        hint += "artemis doctor lists all such tables, with the lines to paste"
        plan_id = name.removeprefix("plan ")
        if any(each.plan_id == plan_id for each in self._context.operations.plans.holding()):
            what = f"The list of {name} of another table cannot be read, and may have files of this one"
            hint = f"restore it, below operations.root; or give the plan up: artemis close {plan_id}"
        untouched = "all files that were not deleted before"
        return UnreadableMetadata(
            f"{what}: {problem}", table=self._deletion.table, path=path, untouched=untouched, hint=hint
        )

    def _unreadable_commit(self, path: str, problem: UnreadableMetadata | MissingFile | None) -> UnreadableMetadata:
        return UnreadableMetadata(
            f"A commit that a catalog lost, when it was put back in time, cannot be read: {problem}",
            table=self._deletion.table,
            path=path,
            untouched="all files that were not deleted before",
            hint="restore the file; if nobody wants that commit, artemis settle-metadata its table, or move this "
            "metadata file out of its folder",
        )

    def _other(self, other: Neighbor) -> TableState:
        assert other.table_uuid is not None
        kind, context = LostNeighborState if other.dropped else TableState, self._context
        if other.moved:
            context = replace(context, stores=context.stores.with_moved(other.moved))
        return kind(context, self._deletion, other.table, other.table_uuid, lambda: self.neighbors.entry(other))

    # --- folders with several names ---------------------------------------------------------------------------------

    @property
    def _is_local(self) -> bool:
        return any(is_local(root) for root in self._own_roots)

    def _reachable_folders(self, reached: Iterable[ReachedFiles]) -> Iterator[str]:
        for files in reached:
            yield from (normalize(f"{folder}/x", self._context.rules)[: -len("/x")] for folder in files.folders())

    def _by_folder(self, paths: pa.Array) -> Iterator[tuple[str, str, int, int]]:
        """Yield the folders of `paths`, in normal form and as spelled, with their first row and the row after their
        last."""
        files = ByFolder.of(paths)
        for low, high in pairwise([*files.starts.tolist(), len(paths)]):
            spelled = files.folder(low)
            if spelled is not None:
                yield normalize(f"{spelled}/x", self._context.rules)[: -len("/x")], spelled, low, high

    def _other_names(self, paths: pa.Array, aliases: Aliases) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
        """Yield rows of `paths` with the location hashes that their files have under other names of their folders."""
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

    def _names_in_folders(self, paths: pa.Array) -> list[NDArray[np.uint64]]:
        """Return the hashes of the other names that these files have in the considered files' folders."""
        if not self._folders:
            return []
        aliases = Aliases(Folders(self._context.rules), self._folders)
        return [others for _, others in self._other_names(paths, aliases)]


def sidecar_hashes(paths: pa.Array, rules: LocationRules) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the rows with the name of a checksum file, and the hashes of these files' own locations: a table may
    reference a checksum file without the file next to it."""
    rows = np.flatnonzero(np.asarray(pc.ends_with(paths, ".crc")))
    return rows, hash_column(paths.take(rows), rules) if len(rows) else np.empty(0, np.uint64)


def covered(
    heartbeats: Iterable[Heartbeat],
    metadata: TableMetadata,
    rules: LocationRules,
    stores: Stores,
    former: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the locations that live heartbeats cover: all of the table's own, or a writer's prefix and the metadata
    folders. A writer that declares where its data goes still writes manifests, lists and a metadata file in the table's
    places.

    An uninterpretable prefix (`prefix_locations`), or one without any files yet, may be a typo, and covers the whole
    table.
    """
    # Include former locations: a writer may add a file from there to the table again.
    own = tuple(dict.fromkeys((*own_locations(metadata, rules), *former)))
    roots: list[str] = []
    for heartbeat in heartbeats:
        named = () if heartbeat.prefix is None else prefix_locations(heartbeat.prefix, metadata, rules)
        if any(next(iter(stores.list(folder)), None) is not None for folder in named):
            roots += (*named, *metadata_locations(metadata, rules))
        else:
            roots += own
    return tuple(dict.fromkeys(roots))
