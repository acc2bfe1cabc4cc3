"""The end of a cold snapshot's retention: its files move to an archive class, at the same paths.

Only data and delete files are moved. Manifests and manifest lists stay readable, so that a snapshot's files can be
listed before anyone requests, or pays for, a thaw. The cold table's metadata does not change.

A file stays if another cold snapshot reads it, of this table or of another table that mirrors files from here. It also
stays if a table of a live catalog reads it (`add_files`, a cold metadata file registered there), and if the live table
still reaches what it was copied from, because snapshots that expire in later years will read it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.cold_tier.cold_tables import ColdSide
from artemis_lifecycle.cold_tier.copy import Request, each_file
from artemis_lifecycle.cold_tier.ledger import Ledger
from artemis_lifecycle.cold_tier.presence import ColdCopies, RecordedCopy, repair
from artemis_lifecycle.errors import Refused, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.types import CONTENT_KINDS, MAIN_BRANCH, LogEntry, Snapshot, TableMetadata
from artemis_lifecycle.operations.cold_tier import MoveRecord, new_id
from artemis_lifecycle.operations.crash_points import reach
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.protection.context import Asking, DeletionContext
from artemis_lifecycle.protection.places import NOT_OWNED, OTHER_TABLE
from artemis_lifecycle.protection.protection import Considered, Protection
from artemis_lifecycle.protection.table_state import REACHABLE, reaching_table
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.index.files import deletable, reachable
from artemis_lifecycle.reachability.index.lookups import reaches, reaching
from artemis_lifecycle.reachability.walk import reachable_files
from artemis_lifecycle.retention.rules import HistoryView, HoldView, RetentionSettings, decide, view_of
from artemis_lifecycle.spark.java_errors import worker_errors
from artemis_lifecycle.spark.runner import Runner, Spark
from artemis_lifecycle.storage.frames import (
    arrow_schema,
    describe_frame,
    frame_batches,
    frame_of,
    read_frame,
    write_batches,
    write_frame,
)
from artemis_lifecycle.storage.location import hash_column, normalize, with_locations
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


FILES = "path string, kind string, size_in_bytes bigint"

_MOVE = "deep"
"""How the ids of moves begin."""

_FILES_PER_BATCH = 1_000
"""Between two batches, a new hold can take effect, and a lost lease is detected."""
_LOOKED_UP_AT_ONCE = 200_000
_FAILURES_SHOWN = 20


@dataclass(frozen=True)
class DeepArchived:
    """What a move to the archive did, or would do (`dry_run`). Sizes in bytes.

    `snapshot_ids` are past the cold tier's retention, which ends at `cutoff`. Of the `due_files` that only they have,
    `moved_files` are now in the archive. These files stay readable in the cold tier: `still_live` are also in the live
    table; `needed_elsewhere` are read by other tables, cold or live (`needed_by`); `not_owned` are outside the table's
    own place; `unrecorded` are in no handoff's record. `held_snapshots` would be due without their holds.
    """

    table: str
    storage_class: str
    cutoff: datetime
    move_id: str | None = None
    snapshot_ids: tuple[int, ...] = ()
    held_snapshots: tuple[int, ...] = ()
    due_files: int = 0
    due_bytes: int = 0
    moved_files: int = 0
    failed_files: int = 0
    failures: tuple[tuple[str, str], ...] = ()
    still_live: int = 0
    needed_elsewhere: int = 0
    needed_by: tuple[str, ...] = ()
    not_owned: int = 0
    unrecorded: int = 0
    dry_run: bool = False
    files_location: str | None = None
    _files: Callable[[], DataFrame] | None = field(default=None, repr=False, compare=False)

    def files(self) -> DataFrame | None:
        """Return DataFrame[path, kind, size_in_bytes] of the files that this run moved; None if it moved none."""
        return None if self._files is None else self._files()


@dataclass(frozen=True)
class DeepArchiveContext:
    """What a move needs. `protection` checks files of the cold tier by its tables, and `readers` by those of the live
    catalogs; `root` is `operations.root`.

    `check` raises when the worker's lease is lost. `live` are the manifest indexes of what may yet be archived under
    that lease: the current live table, and what open plans lost to another tool's expiration. `holds` is queried again
    each time; it includes thaws, which act as holds.
    """

    protection: DeletionContext
    readers: DeletionContext
    table: str
    table_uuid: str
    root: str
    cold: ColdSide
    ledger: Ledger
    live: Sequence[IndexView]
    holds: Callable[[], tuple[HoldView, ...]]
    who: str
    check: Callable[[], None] = lambda: None

    @property
    def spark(self) -> Spark:
        return self.protection.spark

    @property
    def runner(self) -> Runner:
        return Runner(self.spark)

    @property
    def records(self) -> Stores:
        return self.protection.records

    @property
    def operations(self) -> Operations:
        return self.protection.operations

    @property
    def cold_stores(self) -> Stores:
        return self.protection.stores

    def folder(self, table_uuid: str, name: str) -> str:
        return f"{self.root}/deep-archive/{table_uuid}/{name}"


def due_snapshots(cold: HistoryView, retain: timedelta, now_ms: int, holds: Sequence[HoldView] = ()) -> tuple[int, ...]:
    """Return the snapshots of a cold table that are past its retention, in the order of the history.

    A query AS OF any instant inside the retention needs no thaw. The newest snapshot and held snapshots stay. A tag
    does not hold a snapshot here; it is only a name.
    """
    main = {name: ref for name, ref in cold.refs.items() if name == MAIN_BRANCH}
    newest = cold.current_snapshot_id
    if newest is None:
        return ()
    present = {snapshot.snapshot_id for snapshot in cold.snapshots}
    # The log also has snapshots that are still live, and snapshots that were never archived. This table cannot answer
    # those instants, now or later, and the log stays unchanged. They need only files that stay in any case.
    log = [entry if entry.snapshot_id in present else LogEntry(entry.timestamp_ms, newest) for entry in cold.log]
    settings = RetentionSettings(rule="as-of", window_ms=retain // timedelta(milliseconds=1))
    # A held snapshot that is not in this tier reads none of its files.
    holds = [replace(hold, archived=frozenset(hold.snapshot_ids)) for hold in holds]
    # The live table's properties about expiration do not apply to this tier.
    return decide(replace(cold, refs=main, log=log, properties={}), settings, now_ms, holds=holds).expired


def deep_archive(
    context: DeepArchiveContext, retain: timedelta, now: datetime, storage_class: str, *, dry_run: bool = False
) -> DeepArchived:
    """Move to the archive what only snapshots past `retain` have. The caller holds the table's lease: a running handoff
    may be about to reference a file from a new snapshot.

    After a kill, another run continues. A file that cannot be moved stays readable, is reported, and is tried again by
    the next run. If a complete batch fails, the rest is not tried. Raises Refused when a hold is placed between two
    batches; LeaseLost, Busy, UnreadableMetadata, StorageError.
    """
    if not dry_run:
        _settle_unfinished(context)
    cold, now_ms = context.cold.current(), int(now.timestamp() * 1000)
    history, holds = view_of(cold), context.holds()
    due = due_snapshots(history, retain, now_ms, holds)
    held = set(due_snapshots(history, retain, now_ms)).difference(due)
    found = DeepArchived(
        context.table,
        storage_class,
        cutoff=now - retain,
        snapshot_ids=due,
        held_snapshots=tuple(snapshot.snapshot_id for snapshot in cold.snapshots if snapshot.snapshot_id in held),
        dry_run=dry_run,
    )
    if not due:
        return found
    asking = Asking(new_id(_MOVE), "deep_archive", context.table, context.table_uuid, due)
    protection = _Readers(Protection(context.protection, asking), Protection(context.readers, asking))
    doomed, found = _only_theirs(context, protection, found)
    if dry_run or not doomed.num_rows:
        return found
    move = _begun(context, asking.job_id, found, doomed)
    try:
        moved, failures = _moved(context, protection, move, doomed.select(["path"]), holds)
    except Refused:
        _settle(context, move)
        raise
    whole = moved == doomed.num_rows
    move = context.operations.deep_moves.finish(move.move_id) if whole else _settle(context, move)
    return replace(
        found,
        move_id=move.move_id,
        moved_files=moved,
        failed_files=len(failures),
        failures=tuple(failures[:_FAILURES_SHOWN]),
        files_location=move.files_location,
        _files=lambda: frame_of(context.spark, move.files_location, context.records),
    )


def forgotten_moves(records: Stores, operations: Operations, root: str, table_uuid: str) -> list[str]:
    """Return the moves under `root` (`operations.root`) that an operations database does not know, because it was put
    back or is new."""
    known = {move.move_id for move in operations.deep_moves.of_table(table_uuid)}
    folders, _ = records.children(f"{root}/deep-archive/{table_uuid}")
    names = [folder.rstrip("/").rpartition("/")[2] for folder in folders]
    return [name for name in names if name.startswith(f"{_MOVE}-") and name not in known]


def recall(context: DeepArchiveContext, moves: Collection[str], storage_class: str) -> None:
    """Record forgotten moves again, by the lists of their files, and settle them. Their class is taken for this one."""
    for move_id in moves:
        location = context.folder(context.table_uuid, move_id)
        if describe_frame(location, context.records) is None:
            continue  # It died before its first file.
        files = pa.Table.from_batches(frame_batches(location, context.records), arrow_schema(FILES))
        _record(context, move_id, storage_class, context.operations.clock.now(), location, files)
    _settle_unfinished(context)


def recall_archived(context: DeepArchiveContext, storage_class: str) -> tuple[int, ...]:
    """List the archive, and record the files of its snapshots that are in an archive class and in no move: where
    `operations.root` was put back, too, the lists of their moves are lost. Return the snapshots that cannot be read."""
    cold, known = context.cold.current(), context.operations.deep_moves.of_table(context.table_uuid)
    (view, unreadable), rules = _readable(context, cold), context.cold.identity.rules
    listed = [normalize(file.path, rules) for file in context.cold_stores.list(cold.location) if file.archived]
    if not listed:
        return unreadable
    files = reachable(view, [snapshot.snapshot_id for snapshot in view.metadata.snapshots])
    moved = [batch.column("path") for batch in archived_files(context.records, known)]
    files = files.filter(pc.is_in(files.column("location"), pa.array(listed)))
    files = files.filter(pc.invert(pc.is_in(files.column("path"), pa.chunked_array(moved, pa.string()))))
    files = files.filter(pc.is_in(files.column("kind"), pa.array(CONTENT_KINDS)))
    if files.num_rows:
        schema, found = arrow_schema(FILES), DeepArchived(context.table, storage_class, context.operations.clock.now())
        move = _begun(context, new_id(_MOVE), found, files.select(schema.names).cast(schema).combine_chunks())
        context.operations.deep_moves.finish(move.move_id)
    return unreadable


def _readable(context: DeepArchiveContext, cold: TableMetadata) -> tuple[IndexView, tuple[int, ...]]:
    """Return the index of the snapshots of `cold` that can be read, and the others."""
    try:
        return context.cold.index(cold), ()
    except UnreadableMetadata as error:
        gone = tuple(each.snapshot_id for each in cold.snapshots if _needs(context.cold_stores, each, error.path))
        if not gone:
            raise
        left = tuple(each for each in cold.snapshots if each.snapshot_id not in gone)
        view, others = _readable(context, replace(cold, snapshots=left))
        return view, (*gone, *others)


def _needs(stores: Stores, snapshot: Snapshot, path: str | None) -> bool:
    """Return True if the file at `path` is the snapshot's manifest list, or on it."""
    with suppress(UnreadableMetadata):
        return path == snapshot.manifest_list or path in {
            each.manifest_path for each in manifests_of(stores, snapshot).entries
        }
    return False


def archived_files(records: Stores, moves: Iterable[MoveRecord]) -> Iterator[pa.RecordBatch]:
    """Yield the files of all these moves, batch by batch (FILES). A file may come twice, after a move that was
    killed."""
    for move in moves:
        yield from frame_batches(move.files_location, records)


# --- which files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Readers:
    """What keeps files of the cold tier: the cold tables, and the tables of the live catalogs that reach them there."""

    cold: Protection
    live: Protection

    def refresh_neighbors(self) -> None:
        self.cold.refresh_neighbors()
        self.live.refresh_neighbors()

    def found(self, files: pa.Table) -> dict[int, str]:
        """Return the rows of `files` that are kept, each with its reason, from all sources."""
        for each in (self.cold, self.live):
            each.full(_paths_of(files))
        return _read(self.live.protected().reasons(files)) | self.cold.protected().reasons(files)

    def kept(self, batch: pa.Table, considered: Considered) -> dict[int, str]:
        """Return the rows of `batch` that are kept now, each with its reason. Raises as `Protection.kept`."""
        return _read(self.live.kept(batch, considered)) | self.cold.kept(batch, considered)


def _read(reasons: Mapping[int, str]) -> dict[int, str]:
    """Return the reasons that are tables: places, writers and plans of the live tier say nothing about the cold one."""
    return {row: why for row, why in reasons.items() if why == REACHABLE or reaching_table(why) is not None}


def _only_theirs(
    context: DeepArchiveContext, protection: _Readers, so_far: DeepArchived
) -> tuple[pa.Table, DeepArchived]:
    """Return the content files that only the due snapshots have, without those of finished moves. Also return the
    counts of these files, and of the files that are not moved."""
    schema = arrow_schema(FILES)
    found = deletable(context.cold.index(context.cold.current()), so_far.snapshot_ids)
    found = found.filter(pc.is_in(found.column("kind"), pa.array(CONTENT_KINDS)))
    gone = _finished(context)
    if gone is not None:
        found = found.filter(pc.invert(pc.is_in(found.column("path"), gone)))
    found = found.select(schema.names).cast(schema).combine_chunks()
    protection.refresh_neighbors()
    reasons = protection.found(found)
    found = _without(found, reasons)
    parts = []
    still_live = unrecorded = 0
    for start in range(0, found.num_rows, _LOOKED_UP_AT_ONCE):
        piece = found.slice(start, _LOOKED_UP_AT_ONCE)
        recorded = context.ledger.among(context.runner, piece.column("path").to_pylist())
        known = piece.filter(pa.array([path in recorded for path in piece.column("path").to_pylist()], pa.bool_()))
        unrecorded += piece.num_rows - known.num_rows
        sources = pa.array([recorded[path].source for path in known.column("path").to_pylist()], pa.string())
        by_each = [reaches(view, hash_column(sources, view.index.rules)) for view in context.live]
        needed = np.logical_or.reduce(by_each)
        still_live += int(needed.sum())
        parts.append(known.filter(pa.array(~needed)))
    kept = (pa.concat_tables(parts) if parts else schema.empty_table()).combine_chunks()
    not_owned = sum(why in (NOT_OWNED, OTHER_TABLE) for why in reasons.values())
    counted = replace(
        so_far,
        due_files=kept.num_rows,
        due_bytes=pc.sum(kept.column("size_in_bytes")).as_py() or 0,
        still_live=still_live,
        needed_elsewhere=len(reasons) - not_owned,
        needed_by=tuple(sorted({other for why in reasons.values() if (other := reaching_table(why)) is not None})),
        not_owned=not_owned,
        unrecorded=unrecorded,
    )
    return kept, counted


def _paths_of(files: pa.Table) -> Considered:
    return lambda: iter(files.column("path").chunks)


def _without(files: pa.Table, reasons: Collection[int]) -> pa.Table:
    stays = np.zeros(files.num_rows, np.bool_)
    stays[list(reasons)] = True
    return files.filter(pa.array(~stays)).combine_chunks()


def _finished(context: DeepArchiveContext) -> pa.Array | None:
    """Return the paths of earlier moves that finished."""
    moves = context.operations.deep_moves.of_table(context.table_uuid)
    ended = (move for move in moves if move.finished_at is not None)
    pieces = [batch.column("path") for batch in archived_files(context.records, ended)]
    return pa.chunked_array(pieces).combine_chunks() if pieces else None


# --- moving ---------------------------------------------------------------------------------------------------------


def _begun(context: DeepArchiveContext, move_id: str, found: DeepArchived, doomed: pa.Table) -> MoveRecord:
    location = context.folder(context.table_uuid, move_id)
    reach("deep_archive.seal:before")
    write_batches(doomed.to_batches(), doomed.schema, location, context.records)
    reach("deep_archive.seal:after")
    return _record(context, move_id, found.storage_class, found.cutoff, location, doomed)


def _record(
    context: DeepArchiveContext, move_id: str, storage_class: str, cutoff: datetime, location: str, files: pa.Table
) -> MoveRecord:
    size, table = pc.sum(files.column("size_in_bytes")).as_py() or 0, (context.table_uuid, context.table)
    move = MoveRecord(move_id, *table, storage_class, cutoff, location, files.num_rows, size, context.who)
    return context.operations.deep_moves.begin(move, _reading(context, files))


def _reading(context: DeepArchiveContext, files: pa.Table) -> frozenset[int]:
    """Return the cold snapshots that read any of these files."""
    view = context.cold.index(context.cold.current())
    return frozenset(reaching(view, hash_column(files.column("path").combine_chunks(), view.index.rules)))


def _files_of(context: DeepArchiveContext, move: MoveRecord) -> pa.Table:
    batches = list(frame_batches(move.files_location, context.records))
    return pa.Table.from_batches(batches, batches[0].schema if batches else arrow_schema(FILES)).cast(
        arrow_schema(FILES)
    )


def _moved(
    context: DeepArchiveContext, protection: _Readers, move: MoveRecord, files: pa.Table, holds: Sequence[HoldView]
) -> tuple[int, list[tuple[str, str]]]:
    """Return how many files are in the archive, and (path, error) of the others."""
    moved, failures = 0, []
    known = {hold.hold_id for hold in holds}
    request = partial(_move, storage_class=move.storage_class)
    for start in range(0, files.num_rows, _FILES_PER_BATCH):
        batch = files.slice(start, _FILES_PER_BATCH)
        protection.refresh_neighbors()
        # Placing a hold takes the same lock, so no hold can come between the check and the move.
        with table_lock(context.operations.engine, move.table_uuid, table=context.table) as lock:
            context.check()
            placed = [hold for hold in context.holds() if hold.hold_id not in known]
            if placed:
                what = f"{placed[0].owner} placed a hold ({placed[0].reason})"
                raise _stopped(context, what, moved, files.num_rows)
            kept = protection.kept(batch, _paths_of(files))
            if kept:
                # Another table may have published a handoff since then.
                what = f"{len(kept)} files are needed since the move began ({', '.join(sorted(set(kept.values())))})"
                raise _stopped(context, what, moved, files.num_rows)
            # If the lock's session ended during the check, a hold may have been placed since.
            lock.check()
            context.check()
            reach("deep_archive.batch:before")
            paths = batch.column("path").to_pylist()
            moving = each_file(context.runner, context.cold_stores, request, "path string, error string", paths)
            refused = [(path, error) for path, error in moving if error is not None]
            reach("deep_archive.batch:after")
        moved += batch.num_rows - len(refused)
        failures += refused
        if len(refused) == batch.num_rows:
            break
    return moved, failures


def _stopped(context: DeepArchiveContext, what: str, moved: int, files: int) -> Refused:
    return Refused(
        f"{what}, after {moved} of {files} files were moved",
        table=context.table,
        untouched="the other files, which stay readable in the cold tier",
        hint="run it again: it continues with the files that are neither held nor needed",
    )


def _settle_unfinished(context: DeepArchiveContext) -> None:
    for move in context.operations.deep_moves.of_table(context.table_uuid):
        if move.finished_at is None:
            _settle(context, move)


def _settle(context: DeepArchiveContext, move: MoveRecord) -> MoveRecord:
    """Ask the store which files of a move, interrupted or partly undone, are in the archive. Only those count as moved;
    snapshots that read none of them stay readable."""
    states, files = "path string, archived boolean", _files_of(context, move)
    found = each_file(context.runner, context.cold_stores, _is_archived, states, files.column("path").to_pylist())
    archived = pa.array([path for path, is_archived in found if is_archived], pa.string())
    files = files.filter(pc.is_in(files.column("path"), archived)).combine_chunks()
    location = context.folder(move.table_uuid, new_id("settled"))
    write_batches(files.to_batches(), files.schema, location, context.records)
    return context.operations.deep_moves.settle(
        move.move_id,
        files_location=location,
        files=files.num_rows,
        size_in_bytes=pc.sum(files.column("size_in_bytes")).as_py() or 0,
        snapshot_ids=_reading(context, files),
    )


def _move(stores: Stores, path: str, *, storage_class: str) -> tuple[str, str | None]:
    try:
        stores.archive(path, storage_class)
    except StorageError as error:
        return path, error.what
    return path, None


def _is_archived(stores: Stores, path: str) -> tuple[str, bool]:
    state = stores.archive_state(path)
    return path, state is not None and state.archived


# --- back from the archive --------------------------------------------------------------------------------------------
# A table that was rolled back, or put back in time, has new snapshots with files whose copies are in the archive.


def keep_readable(
    context: DeepArchiveContext, copies: ColdCopies, live_stores: Stores, snapshot_ids: Collection[int]
) -> None:
    """Take the copies that these snapshots read out of the archive: an archived object is written again, from its live
    file. Afterwards, those of them of which that cannot be done are recorded as in need of a thaw, and no others. The
    caller holds the lease."""
    operations, moves = context.operations, context.operations.deep_moves.of_table(context.table_uuid)
    marks = {move.move_id: _reading(context, _files_of(context, move)) for move in moves}
    if not any(not marks[move].isdisjoint(snapshot_ids) for move in marks):
        operations.deep_moves.mark(context.table_uuid, {}, instead_of=snapshot_ids)
        return
    view, folder = context.cold.index(context.cold.current()), context.folder(context.table_uuid, new_id("back"))
    seal_files(context.spark, view, tuple(snapshot_ids), moves, context.records, folder)
    wanted = {path for batch in frame_batches(folder, context.records) for path in _paths(batch)}
    lost = {path for path in wanted if not context.cold_stores.unarchive(path)}
    recorded = context.ledger.among(context.runner, lost)
    again = [RecordedCopy.of(copy.source, path, copy) for path, copy in recorded.items()]
    repair(copies, live_stores, again, check=context.check)
    for move in moves:
        if not wanted.isdisjoint(_files_of(context, move).column("path").to_pylist()):
            marks[move.move_id] = _reading(context, _files_of(context, _settle(context, move)))
    operations.deep_moves.mark(context.table_uuid, marks, instead_of=snapshot_ids)


# --- thaw -------------------------------------------------------------------------------------------------------------
# Makes archived snapshots readable again for a while: which files that needs, requesting them from the store, and
# checking when they are readable. Requests and approvals are in Postgres (`operations/deep_archive`).

_SAMPLE = 25


@dataclass(frozen=True)
class ThawedFiles:
    """The state of a thaw. `readable_until` is the earliest end of all readable files; None if the store reports
    none."""

    files: int
    readable: int
    readable_until: datetime | None = None

    @property
    def done(self) -> bool:
        return self.readable == self.files


def seal_files(
    spark: Spark,
    view: IndexView,
    snapshot_ids: Sequence[int],
    moves: Sequence[MoveRecord],
    records: Stores,
    folder: str,
) -> tuple[int, int]:
    """Write under `folder` the list of these snapshots' files that were moved to the archive. Return (files, bytes)."""
    rules = view.index.rules
    runner = Runner(spark)
    with worker_errors():
        files = reachable_files(runner, view, snapshot_ids).frame()
        files = files.filter(files.kind.isin(*CONTENT_KINDS))
        moved = runner.session.createDataFrame([], "location string")
        for move in moves:
            paths = read_frame(runner, move.files_location, records).select("path")
            located = paths.map(partial(with_locations, rules), arrow_schema("path string, location string"))
            moved = moved.unionByName(located.select("location").frame())
        wanted = files.join(moved.distinct(), "location", "left_semi").select("path", "size_in_bytes")
        moved_rows = runner.rows(wanted, arrow_schema("path string, size_in_bytes bigint"))
        sealed = write_frame(moved_rows, folder, records)
    sizes = (pc.sum(batch.column("size_in_bytes")).as_py() or 0 for batch in frame_batches(folder, records))
    return sealed.rows, sum(sizes)


def ask(spark: Spark, cold_stores: Stores, records: Stores, folder: str, days: int, retrieval: str) -> None:
    """Request every file under `folder` from the store. Repeating a request is harmless. Raises StorageError for the
    first file that the store does not thaw, and MissingFile for one that is gone."""
    _run(spark, cold_stores, records, folder, partial(_ask, days=days, retrieval=retrieval), "path string")


def progress(spark: Spark, cold_stores: Stores, records: Stores, folder: str) -> ThawedFiles:
    """Return the state of all files under `folder`. Raises StorageError for one that is gone."""
    rows = _run(spark, cold_stores, records, folder, _state, "readable boolean, until timestamp")
    ends = [until for _, until in rows if until is not None]
    return ThawedFiles(
        files=len(rows), readable=sum(readable for readable, _ in rows), readable_until=min(ends, default=None)
    )


def may_be_done(cold_stores: Stores, records: Stores, folder: str) -> bool:
    """Return True if the first files under `folder` are all readable: a cheap check before `progress`."""
    first = _first(records, folder, _SAMPLE)
    return all(readable for readable, _ in threaded(partial(_state, cold_stores), first, _SAMPLE))


def end(cold_stores: Stores, records: Stores, folder: str, others: Collection[str]) -> None:
    """Remove the readable copies of the files under `folder`, except those that a thaw under one of `others` still
    needs. S3 does this itself at the end of a thaw."""
    needed = {path for other in others for batch in frame_batches(other, records) for path in _paths(batch)}
    for batch in frame_batches(folder, records):
        for path in _paths(batch):
            if path not in needed:
                cold_stores.end_thaw(path)


def _paths(batch: pa.RecordBatch) -> list[str]:
    return list(batch.column("path").to_pylist())


def _first(records: Stores, folder: str, most: int) -> list[str]:
    for batch in frame_batches(folder, records):
        if batch.num_rows:
            return _paths(batch.slice(0, most))
    return []


def _run(
    spark: Spark, cold_stores: Stores, records: Stores, folder: str, request: Request, schema: str
) -> list[tuple[Any, ...]]:
    """Return the answers to `request` for every path under `folder`."""
    runner = Runner(spark)
    batches = frame_batches(folder, records)
    return [row for batch in batches for row in each_file(runner, cold_stores, request, schema, _paths(batch))]


def _ask(stores: Stores, path: str, *, days: int, retrieval: str) -> tuple[str]:
    stores.thaw(path, days=days, retrieval=retrieval)
    return (path,)


def _state(stores: Stores, path: str) -> tuple[bool, datetime | None]:
    state = stores.archive_state(path)
    if state is None:
        raise StorageError(
            "An archived file is gone",
            path=path,
            hint="find out who deleted it: no snapshot that reads it can be thawed",
        )
    return state.readable, state.readable_until
