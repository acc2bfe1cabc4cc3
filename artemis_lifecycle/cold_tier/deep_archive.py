"""The end of a cold snapshot's own retention: its files go into an archive class, at their own paths. Belongs here:
which snapshots are due, which files they alone have, and moving those. Thawing is `thaw`'s.

Only data and delete files go. Manifests and manifest lists stay readable, so that what a snapshot needs can be listed
to the file before anybody asks, or pays, for a thaw; and the cold table's metadata changes not at all.

A file that any other cold snapshot reads stays, of this table or of another one that mirrors files from here. So does
one that the live table still reaches: it will be read by snapshots that expire in years to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier.ledger import Ledger
from artemis_lifecycle.cold_tier.paths import PathMapping
from artemis_lifecycle.cold_tier.tasks import FileWork, each_file
from artemis_lifecycle.errors import Refused, StorageError
from artemis_lifecycle.metadata.kinds import CONTENT_KINDS
from artemis_lifecycle.metadata.types import MAIN_BRANCH, LogEntry
from artemis_lifecycle.operations.crash_points import reach
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.deep_archive import MoveRecord, new_id
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.retention.rules import HistoryView, HoldView, RetentionSettings, decide, view_of
from artemis_lifecycle.storage.frames import arrow_schema, frame_batches, read_frame, write_table
from artemis_lifecycle.storage.location_hash import hash_column
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

FILES = "path string, kind string, size_in_bytes bigint"

_FILES_PER_BATCH = 1_000
"""Between two batches a hold may come in, and a lost lease is noticed."""
_LOOKED_UP_AT_ONCE = 200_000
_FAILURES_SHOWN = 20


@dataclass(frozen=True)
class DeepArchived:
    """What a move to the archive did, or (`dry_run`) would do. Sizes in bytes.

    `snapshot_ids` are past the cold tier's retention, and `cutoff` its edge; of `due_files` that they alone have,
    `moved_files` are in the archive now. Left in the cold tier, and readable: `still_live` files, that the live table
    has too; `needed_elsewhere`, that other cold tables (`needed_by`) read; `not_owned`, outside the table's own place
    there; `unrecorded`, that no handoff's record knows.
    `held_snapshots` would be due, were they not held.
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
        """DataFrame[path, kind, size_in_bytes] of the files that this run moved; None where it moved none."""
        return None if self._files is None else self._files()


@dataclass(frozen=True)
class DeepArchiveContext:
    """What a move works with. `check` raises when the worker's lease is lost. `cold` and `live` are the manifest
    indexes of the two tables as they are now, under that lease; `holds` answers anew each time it is asked, and so do
    `others`: the indexes, by name, of the other cold tables that may read files from this one's place."""

    spark: SparkSession
    cold_stores: Stores
    records: Stores
    operations: Operations
    root: str
    table: str
    mapping: PathMapping
    ledger: Ledger
    cold: IndexView
    live: IndexView
    holds: Callable[[], tuple[HoldView, ...]]
    others: Callable[[], Mapping[str, IndexView]]
    who: str
    check: Callable[[], None] = lambda: None


def due_snapshots(cold: HistoryView, retain: timedelta, now_ms: int, holds: Sequence[HoldView] = ()) -> tuple[int, ...]:
    """The snapshots of a cold table that are past its retention, in the order of the history.

    A query AS OF any instant inside the retention is answered without a thaw. The newest snapshot stays, and what is
    held; a tag does not hold here, where it is only a name.
    """
    main = {name: ref for name, ref in cold.refs.items() if name == MAIN_BRANCH}
    newest = cold.current_snapshot_id
    if newest is None:
        return ()
    present = {snapshot.snapshot_id for snapshot in cold.snapshots}
    # The log also names what the live table still has, and what was never archived. Those instants are not answered
    # here, now or later, and the log stays as it is: they need nothing but what stays in any case.
    log = [entry if entry.snapshot_id in present else LogEntry(entry.timestamp_ms, newest) for entry in cold.log]
    settings = RetentionSettings(rule="as-of", window_ms=retain // timedelta(milliseconds=1))
    # What the live table's properties say of its own expiration is not about this tier.
    return decide(replace(cold, refs=main, log=log, properties={}), settings, now_ms, holds=holds).expired


def deep_archive(
    context: DeepArchiveContext, retain: timedelta, now: datetime, storage_class: str, *, dry_run: bool = False
) -> DeepArchived:
    """Move to the archive what only snapshots past `retain` have. Call it under the table's lease: a handoff at work
    may be about to give a file to a snapshot of today.

    Run again after a kill it goes on with what is left. A file that cannot be moved stays readable, is told of, and is
    tried again by the next run; where none of a batch can, the rest is not tried. Raises Refused when a hold comes in
    between two batches; LeaseLost, Busy, UnreadableMetadata, StorageError.
    """
    if not dry_run:
        for earlier in context.operations.deep_moves.of_table(context.cold.metadata.table_uuid):
            if earlier.finished_at is None:
                _settle(context, earlier)
    cold, now_ms = context.cold.metadata, int(now.timestamp() * 1000)
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
    doomed, found = _only_theirs(context, found)
    if dry_run or not doomed.num_rows:
        return found
    move = _begun(context, found, doomed)
    try:
        moved, failures = _moved(context, move, doomed.column("path"), holds)
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
        _files=lambda: read_frame(context.spark, move.files_location, context.records),
    )


def archived_files(records: Stores, moves: Iterable[MoveRecord]) -> Iterator[pa.RecordBatch]:
    """The files of all these moves, batch by batch (FILES). A file may come twice, after a move that was killed."""
    for move in moves:
        yield from frame_batches(move.files_location, records)


# --- which files ----------------------------------------------------------------------------------------------------


def _only_theirs(context: DeepArchiveContext, so_far: DeepArchived) -> tuple[pa.Table, DeepArchived]:
    """The content files that only the due snapshots have, without those that finished moves have; and the counts of
    them, and of the others that are left where they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = arrow_schema(FILES)
    found = context.cold.deletable(so_far.snapshot_ids)
    found = found.filter(pc.is_in(found.column("kind"), pa.array(CONTENT_KINDS)))
    gone = _finished(context)
    if gone is not None:
        found = found.filter(pc.invert(pc.is_in(found.column("path"), gone)))
    owned = pa.array([context.mapping.owns(path) for path in found.column("path").to_pylist()], pa.bool_())
    not_owned = found.num_rows - (pc.sum(owned).as_py() or 0)
    found = found.filter(owned).select(schema.names).cast(schema)
    parts = []
    still_live = unrecorded = 0
    for start in range(0, found.num_rows, _LOOKED_UP_AT_ONCE):
        piece = found.slice(start, _LOOKED_UP_AT_ONCE)
        recorded = context.ledger.among(context.spark, piece.column("path").to_pylist())
        known = piece.filter(pa.array([path in recorded for path in piece.column("path").to_pylist()], pa.bool_()))
        unrecorded += piece.num_rows - known.num_rows
        sources = pa.array([recorded[path].source for path in known.column("path").to_pylist()], pa.string())
        needed = context.live.reaches(hash_column(sources, context.live.index.rules))
        still_live += int(needed.sum())
        parts.append(known.filter(pa.array(~needed)))
    kept = (pa.concat_tables(parts) if parts else schema.empty_table()).combine_chunks()
    mirrored, needed_by = _needed_elsewhere(context, kept.column("path"))
    kept = kept.filter(pa.array(~mirrored)).combine_chunks()
    counted = replace(
        so_far,
        due_files=kept.num_rows,
        due_bytes=pc.sum(kept.column("size_in_bytes")).as_py() or 0,
        still_live=still_live,
        needed_elsewhere=int(mirrored.sum()),
        needed_by=needed_by,
        not_owned=not_owned,
        unrecorded=unrecorded,
    )
    return kept, counted


def _needed_elsewhere(context: DeepArchiveContext, paths: pa.ChunkedArray) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
    """Which of these cold paths other cold tables read now, and the names of those tables."""
    import numpy as np

    needed = np.zeros(len(paths), np.bool_)
    tables = []
    if len(paths):
        for name, view in context.others().items():
            found = view.reaches(hash_column(paths.combine_chunks(), view.index.rules))
            needed |= found
            if found.any():
                tables.append(name)
    return needed, tuple(sorted(tables))


def _finished(context: DeepArchiveContext) -> pa.Array | None:
    """Paths of earlier moves that came to their end."""
    import pyarrow as pa

    moves = context.operations.deep_moves.of_table(context.cold.metadata.table_uuid)
    ended = (move for move in moves if move.finished_at is not None)
    pieces = [batch.column("path") for batch in archived_files(context.records, ended)]
    return pa.chunked_array(pieces).combine_chunks() if pieces else None


# --- moving ---------------------------------------------------------------------------------------------------------


def _begun(context: DeepArchiveContext, found: DeepArchived, doomed: pa.Table) -> MoveRecord:
    move_id, table_uuid = new_id("deep"), context.cold.metadata.table_uuid
    location = f"{context.root}/deep-archive/{table_uuid}/{move_id}"
    reach("deep_archive.seal:before")
    write_table(doomed, location, context.records)
    reach("deep_archive.seal:after")
    return context.operations.deep_moves.begin(
        move_id,
        table_uuid,
        context.table,
        storage_class=found.storage_class,
        cutoff=found.cutoff,
        files_location=location,
        files=found.due_files,
        size_in_bytes=found.due_bytes,
        who=context.who,
        snapshot_ids=context.cold.reaching(_hashes(context, doomed)),
    )


def _hashes(context: DeepArchiveContext, files: pa.Table) -> NDArray[np.uint64]:
    return hash_column(files.column("path").combine_chunks(), context.cold.index.rules)


def _moved(
    context: DeepArchiveContext, move: MoveRecord, paths: pa.ChunkedArray, holds: Sequence[HoldView]
) -> tuple[int, list[tuple[str, str]]]:
    """How many files are in the archive, and (path, error) of those that are not."""
    moved, failures = 0, []
    known = {hold.hold_id for hold in holds}
    mover = _Mover(context.cold_stores, move.storage_class)
    for start in range(0, len(paths), _FILES_PER_BATCH):
        batch = paths.slice(start, _FILES_PER_BATCH)
        # The lock that placing a hold takes: none comes in between the look and the move.
        with table_lock(context.operations.engine, move.table_uuid, table=context.table):
            context.check()
            placed = [hold for hold in context.holds() if hold.hold_id not in known]
            if placed:
                raise Refused(
                    f"A hold of {placed[0].owner} came in ({placed[0].reason}) after {moved} of {len(paths)} files had "
                    "been moved",
                    table=context.table,
                    untouched="the other files, which stay readable in the cold tier",
                    do="run it again: it goes on with what is not held",
                )
            # Another table may have published a handoff since.
            needed, tables = _needed_elsewhere(context, batch)
            if needed.any():
                raise Refused(
                    f"{', '.join(tables)} reads files from here since the move began, after {moved} of {len(paths)} "
                    "files had been moved",
                    table=context.table,
                    untouched="the other files, which stay readable in the cold tier",
                    do="run it again: it goes on with what no other table reads",
                )
            reach("deep_archive.batch:before")
            moving = each_file(context.spark, mover, batch.to_pylist())
            refused = [(path, error) for path, error in moving if error is not None]
            reach("deep_archive.batch:after")
        moved += len(batch) - len(refused)
        failures += refused
        if len(refused) == len(batch):
            break
    return moved, failures


def _settle(context: DeepArchiveContext, move: MoveRecord) -> MoveRecord:
    """Ask the store which files of a move that stopped half-way are in the archive: those are the move, and the
    snapshots that read none of them are readable, as they were."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema, look = arrow_schema(FILES), _Looker(context.cold_stores)
    batches = list(frame_batches(move.files_location, context.records))
    files = pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()
    there = [path for path, archived in each_file(context.spark, look, files.column("path").to_pylist()) if archived]
    files = files.filter(pc.is_in(files.column("path"), pa.array(there, pa.string()))).combine_chunks()
    location = f"{context.root}/deep-archive/{move.table_uuid}/{new_id('settled')}"
    write_table(files, location, context.records)
    return context.operations.deep_moves.settle(
        move.move_id,
        files_location=location,
        files=files.num_rows,
        size_in_bytes=pc.sum(files.column("size_in_bytes")).as_py() or 0,
        snapshot_ids=context.cold.reaching(_hashes(context, files)),
    )


class _Mover(FileWork):
    schema = "path string, error string"

    def __init__(self, stores: Stores, storage_class: str) -> None:
        super().__init__(stores)
        self._storage_class = storage_class

    def one(self, path: str) -> tuple[str, str | None]:
        try:
            self.stores.archive(path, self._storage_class)
        except StorageError as error:
            return path, error.what
        return path, None


class _Looker(FileWork):
    schema = "path string, archived boolean"

    def one(self, path: str) -> tuple[str, bool]:
        state = self.stores.archive_state(path)
        return path, state is not None and state.archived
