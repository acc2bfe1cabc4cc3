"""The deletion worker: takes a sealed job batch by batch, checks the files again, deletes them, and records each
outcome. If it is killed, any process can continue from the journal.

Each piece of a batch is processed under the table's lock, which holds, heartbeats and restores also take. The order is:
the lease, the journal's fence, the last check, the delete. The worker waits for the rate limit before it takes the
lock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from shlex import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.deletion.batches import (
    GONE,
    MOST_PER_BATCH,
    OUTCOMES,
    QUARANTINED,
    Batches,
    DeletionJob,
    PieceOutcomes,
    batch_paths,
    outcomes_of_job,
    read_batch,
    read_outcomes,
    require_count,
    seal_batches,
    sealed_pieces,
    waiting_rows,
    write_outcomes,
)
from artemis_lifecycle.deletion.identities import Identities, look, same
from artemis_lifecycle.deletion.quarantine import (
    Forgotten,
    QuarantinePlace,
    is_aside,
    quarantine_folder,
    set_aside,
)
from artemis_lifecycle.deletion.report import DeletionReport, report_of
from artemis_lifecycle.errors import Busy, Refused
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import CHANGELOG, DATA
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.journal import BatchRecord, BatchState, JobRecord
from artemis_lifecycle.operations.leases import Lease
from artemis_lifecycle.operations.locks import TableLock, table_lock
from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.protection.ownership import sidecar_array
from artemis_lifecycle.protection.places import IN_FLIGHT
from artemis_lifecycle.protection.protection import ANOTHER_FILE, UNPROVEN, Considered, Protection
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.frames import arrow_schema, frame_batches
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.location import is_under, normalize
from artemis_lifecycle.storage.pace import TokenBucket
from artemis_lifecycle.storage.stores import are_local, place_of
from artemis_lifecycle.storage.types import ABSENT, NOT_TRIED, REMOVED, FileStatuses, Removals

# --- recheck ----------------------------------------------------------------------------------------------------------
# The last check of a job's files before deletion: first against the store, then against protection. Real runs and dry
# runs use the same check.


@dataclass(frozen=True)
class Rechecked:
    """The result of the check for a piece's files, by row: which are kept and why, which are gone, for which the store
    gives an error, and when it was checked. `now` is what the store said."""

    kept: Mapping[int, str]
    gone: NDArray[np.bool_]
    failed: Mapping[int, str]
    now: FileStatuses
    asked_at: float
    protected_at: float

    @property
    def going(self) -> NDArray[np.bool_]:
        going: NDArray[np.bool_] = ~self.gone
        going[[*self.kept, *self.failed]] = False
        return going

    @property
    def unproven(self) -> list[int]:
        """The rows that are kept because their content was not yet compared."""
        return [row for row, why in self.kept.items() if why == UNPROVEN]


def recheck(
    context: DeletionContext,
    protection: Protection,
    considered: Considered,
    identities: Identities,
    files: pa.Table,
    before: FileStatuses | None = None,
) -> Rechecked:
    """Check all files against the store, then against protection. A file that is not the one that it was `before` is
    kept."""
    paths = files.column("path").combine_chunks()
    asked_at = elapsed()
    found = look(context.stores, paths)
    others = identities.others(files, found.now)
    if before is not None:
        others |= dict.fromkeys(np.flatnonzero(found.now.found & ~same(before, found.now)).tolist(), ANOTHER_FILE)
    gone = ~found.now.found
    gone[list(found.failed)] = False
    protected_at = elapsed()
    kept = others | protection.kept(files, considered)
    return Rechecked(kept, gone, found.failed, found.now, asked_at, protected_at)


# --- dry run ----------------------------------------------------------------------------------------------------------
# The dry run of a deletion: it makes the same checks as a real run, and changes nothing.


def dry_run_of(context: DeletionContext, job: DeletionJob) -> DeletionReport:
    """Make the checks of a real run for every file. Deletes and writes nothing."""
    protection = Protection(context, job)
    identities = Identities(replace(context, renew=None), job)

    def considered() -> Iterator[pa.Array]:
        return (batch.column("path") for batch in frame_batches(job.files_location, context.stores))

    protection.require_no_hold()
    protection.refresh_neighbors()
    protection.full(considered)
    found: list[pa.Table] = []
    for piece in sealed_pieces(context.stores, job, MOST_PER_BATCH):
        judged = recheck(context, protection, considered, identities, piece)
        if judged.unproven and identities.prove(piece.take(judged.unproven)):
            judged = recheck(context, protection, considered, identities, piece)
        piece_outcomes = PieceOutcomes(piece)
        piece_outcomes.put(np.flatnonzero(~judged.going), "absent")
        piece_outcomes.put(np.flatnonzero(judged.going), "would_delete")
        piece_outcomes.put_each(judged.failed, "failed")
        piece_outcomes.put_each(judged.kept, "kept")
        found.append(piece_outcomes.table(""))
    outcomes = pa.concat_tables([arrow_schema(OUTCOMES).empty_table(), *found])
    require_count(job, outcomes.num_rows, job.files_location)
    totals = outcomes.group_by("outcome").aggregate([("path", "count"), ("size_in_bytes", "sum")]).to_pylist()
    files = Counter({row["outcome"]: row["path_count"] for row in totals})
    sizes = Counter({row["outcome"]: row["size_in_bytes_sum"] or 0 for row in totals})
    return DeletionReport(
        job_id=job.job_id,
        table=job.table,
        already_absent=files["absent"],
        kept=files["kept"],
        failed=files["failed"],
        dry_run=True,
        would_delete=files["would_delete"],
        would_delete_bytes=sizes["would_delete"],
        _files=lambda: Runner(context.spark).rows(outcomes).frame(),
    )


_LOOK_LASTS = 10.0
"""Seconds after which a check expires: a worker that was frozen between check and delete checks again."""

_LISTED_LASTS, _AND_EACH = 60.0, 0.1
"""The same for the check of listed files, plus a time for each file: on S3 each one is a rate-limited request."""

_LOOKS = 5

_DELETES_LAST = 30.0
"""Seconds after the reachability check until which delete requests may be sent: well below a lease's duration."""

_CHECKED_EVERY = 1.0
"""Seconds of deletes between two checks that the table's lock is still held."""


@dataclass(frozen=True)
class DeletionSettings:
    """How a job runs. `requests_per_second` None means no limit. A run tries a failed file `rounds` times. With a
    `quarantine`, files are moved there instead of deleted. With `remove_empty_folders`, a finished job removes the
    local folders that it emptied. `closed` returns why a person ended the job. It is asked again under the
    table's lock, for which that person waits."""

    requests_per_second: float | None = None
    files_per_batch: int = MOST_PER_BATCH
    rounds: int = 3
    quarantine: QuarantinePlace | None = None
    remove_empty_folders: bool = False
    closed: Callable[[], str | None] = lambda: None


DEFAULT_SETTINGS = DeletionSettings()


def delete_job(
    context: DeletionContext,
    job: DeletionJob,
    *,
    lease: Lease | None,
    settings: DeletionSettings = DEFAULT_SETTINGS,
    dry_run: bool = False,
    pause: Callable[[], str | None] = lambda: None,
) -> DeletionReport:
    """Delete the files of `job`, or continue an earlier run.

    The caller holds the table's `lease` (None only for a dry run, which changes nothing). `pause` is called before each
    batch, and between its pieces of one second's work. If it returns a text, the run stops, and the next run continues
    there. A dry run makes the same checks for each file, and deletes none.

    Raises StalePlan (the table is gone or was replaced), Held (a hold), GarbageCollectionDisabled,
    UnreadableMetadata, StorageError, LeaseLost. Earlier deletes are in the journal; the rest is untouched.
    """
    if dry_run:
        return dry_run_of(context, job)
    if lease is None:
        raise Refused(
            "A deletion needs the table's lease", table=job.table, untouched="all files", hint="take the lease"
        )
    return _Run(context, job, lease, settings, pause).run()


class _Run:
    def __init__(
        self,
        context: DeletionContext,
        job: DeletionJob,
        lease: Lease,
        settings: DeletionSettings,
        pause: Callable[[], str | None],
    ) -> None:
        self.context = context
        self.job = job
        self.lease = lease
        self.settings = settings
        self.pause: Callable[[], str | None] = lambda: pause() or settings.closed()
        self.bucket = TokenBucket(settings.requests_per_second)
        self.identities = Identities(context, job)
        self.folder: str | None = None
        self.unfinished: Sequence[BatchRecord] = ()

    def run(self) -> DeletionReport:
        context, job, journal = self.context, self.job, self.context.operations.journal
        known = journal.job(job.job_id)
        paused = None
        if known is None or known.finished_at is None:
            batches = seal_batches(context.spark, context.stores, job, context.root, self.settings.files_per_batch)
            if known is None:
                begun = JobRecord(job.job_id, job.kind, job.table_uuid, job.table, job.files_location)
                journal.begin(begun, batches.sizes)
            self._begin_quarantine()
            paused = self._batches(batches)
            if not self.unfinished:
                own_options = context.removes_empty_folders and job.kind == "expiration"
                if self.settings.remove_empty_folders or own_options:
                    self._remove_empty_folders()
                context.operations.quarantines.finish(job.job_id)
                journal.finish(job.job_id)
        return report_of(context.spark, context.stores, context.operations, job, context.root, paused)

    def _remove_empty_folders(self) -> None:
        """Remove empty folders below the table's `data` folder only: a writer may be about to use the metadata folder.
        For a dropped table, remove all empty folders, including the table's own. Of a format with its own layout, only
        the folders of data files."""
        context, job = self.context, self.job
        kinds = None
        if context.data_folder is not None:
            location = top = context.data_folder
            kinds = (DATA, CHANGELOG)
        elif context.dropped is None:
            location = read_table_metadata(context.stores, context.entry().metadata_location).location
            top = f"{location}/data"
        else:
            location = context.dropped.metadata.location
            top = location.rstrip("/").rpartition("/")[0]
        gone = (each for each in outcomes_of_job(context.stores, context.root, job.job_id) if each.outcome in GONE)
        folders = {each.path.rpartition("/")[0] for each in gone if kinds is None or each.kind in kinds}
        for folder in sorted(folders, key=len, reverse=True):
            if is_under(folder, normalize(top, context.rules), context.rules):
                context.stores.remove_empty(folder, top)

    def _begin_quarantine(self) -> None:
        """Record where files will be moved before the first move, and copy the plan's metadata file there."""
        place, context, job = self.settings.quarantine, self.context, self.job
        begun = context.operations.quarantines.find(job.job_id)
        if begun is not None or place is None:
            # A job that has begun to move files continues to do so, even if the policy has changed.
            self.folder = None if begun is None else begun.folder
            return
        self.folder = quarantine_folder(place.root, job.table_uuid, job.job_id)
        kept = None
        if place.metadata_location is not None and context.stores.head(place.metadata_location) is not None:
            kept = f"{self.folder}/{place.metadata_location.rpartition('/')[2]}"
            context.stores.copy(place.metadata_location, kept)
        Forgotten(job, replace(place, metadata_location=kept)).write(context.stores, self.folder)
        context.operations.quarantines.begin(job.job_id, job.table_uuid, job.table, self.folder, place.retain, kept)

    def _batches(self, batches: Batches) -> str | None:
        """Process unfinished batches, and failed ones up to `rounds` times. Return the text of a pause, or None."""
        journal = self.context.operations.journal
        protection = Protection(self.context, self.job)

        def considered() -> Iterator[pa.Array]:
            return batch_paths(self.context.stores, batches)

        began = False
        tried: set[int] = set()
        for _ in range(self.settings.rounds):
            # Do not retry at once a batch that waits for another process or a person.
            self.unfinished = journal.unfinished(self.job.job_id)
            todo = [each for each in self.unfinished if each.batch not in tried or each.state != BatchState.WAITING]
            if not todo:
                break
            if not began:
                protection.require_no_hold()
                protection.refresh_neighbors()
                protection.full(considered)
                began = True
            for record in sorted(todo, key=lambda record: record.batch):
                if (why := self.pause() or self._batch(protection, considered, batches, record)) is not None:
                    return why
                tried.add(record.batch)
        else:
            self.unfinished = journal.unfinished(self.job.job_id)
        return self._waits_for()

    def _waits_for(self) -> str | None:
        """Return why files of waiting batches are kept for now."""
        stores, root = self.context.stores, self.context.root
        reasons: Counter[str] = Counter()
        for record in self.unfinished:
            if record.state == BatchState.WAITING:
                settled = read_outcomes(stores, root, self.job.job_id, record.batch)
                reasons.update(settled.filter(waiting_rows(settled)).column("reason").to_pylist())
        waiting = ", ".join(f"{count:,} files: {reason}" for reason, count in sorted(reasons.items()))
        hint = (
            f"; artemis renew-identities {quote(self.job.table)} compares them all once" if UNPROVEN in reasons else ""
        )
        if IN_FLIGHT in reasons:
            beats = self.context.operations.heartbeats.live(None)
            said = [f"{each.writer_id} of {each.table}, until {each.expires_at:%Y-%m-%d %H:%M} UTC" for each in beats]
            hint += f"; live writers: {', '.join(said[:5]) or 'none any more'}" + (", …" if len(said) > 5 else "")
        return f"waits ({waiting}{hint})" if waiting else None

    def _batch(
        self, protection: Protection, considered: Considered, batches: Batches, record: BatchRecord
    ) -> str | None:
        """Process one batch, piece by piece. Return the text of a pause between two pieces; the next run continues
        there."""
        context, job, batch = self.context, self.job, record.batch
        files = read_batch(context.stores, batches, batch)
        settled = read_outcomes(context.stores, context.root, job.job_id, batch)
        settled = settled.filter(pc.not_equal(settled.column("outcome"), "failed"))
        if job.kind == "expiration":
            settled = settled.filter(pc.invert(waiting_rows(settled)))
        todo = files
        if settled.num_rows:
            todo = files.filter(pc.invert(pc.is_in(files.column("path"), settled.column("path").combine_chunks())))
        # If the worker died while it deleted this batch, files may be gone without a recorded outcome.
        interrupted = record.state == BatchState.DELETING
        size = self.bucket.piece
        if todo.num_rows:
            size = min(size, context.stores.deletes_at_once(todo.column("path")[0].as_py()))
        pieces = deque(todo.slice(start, size).combine_chunks() for start in range(0, max(1, todo.num_rows), size))
        begun = False
        while pieces:
            piece = pieces.popleft()
            if begun and (why := self.pause()) is not None:
                return why
            self.bucket.take(piece.num_rows)
            aside, before = None, None
            if self.folder is not None:
                # Copying is slow and harmless, so it happens before the lock is taken.
                self.bucket.take(piece.num_rows)
                before = look(context.stores, piece.column("path").combine_chunks()).now
                aside = set_aside(context.stores, self.folder, piece.column("path").to_pylist())
            context.stores.reserve_deletes(piece.column("path"))
            protection.refresh_neighbors()
            with table_lock(context.operations.engine, job.table_uuid, table=job.table) as lock:
                self.lease.check()
                if (why := self.settings.closed()) is not None:
                    return why
                if not begun:
                    context.operations.journal.start_batch(job.job_id, batch, self.lease.token)
                    begun = True
                done = self._piece(protection, considered, lock, piece, aside, before, interrupted)
                settled = pa.concat_tables([settled, done])
                self.lease.check()
                with around("deletion.write_outcomes"):
                    write_outcomes(context.stores, context.root, job.job_id, batch, settled)
            unproven = done.filter(pc.equal(done.column("reason"), UNPROVEN)).column("path").combine_chunks()
            if len(unproven):
                again = piece.filter(pc.is_in(piece.column("path"), unproven))
                if self.identities.prove(again):
                    settled = settled.filter(pc.invert(pc.is_in(settled.column("path"), unproven)))
                    pieces.append(again.combine_chunks())
        waits = job.kind == "expiration" and bool(pc.any(waiting_rows(settled)).as_py())
        totals = settled.group_by("outcome").aggregate([("path", "count"), ("size_in_bytes", "sum")]).to_pylist()
        count = Counter({row["outcome"]: row["path_count"] for row in totals})
        errors = settled.filter(pc.equal(settled.column("outcome"), "failed")).column("reason")
        context.operations.journal.finish_batch(
            job.job_id,
            batch,
            self.lease.token,
            deleted=count["deleted"] + count[QUARANTINED],
            absent=count["absent"],
            kept=count["kept"],
            failed=count["failed"],
            deleted_bytes=sum(row["size_in_bytes_sum"] for row in totals if row["outcome"] in GONE),
            error=errors[0].as_py() if len(errors) else None,
            waiting=waits,
        )
        return None

    def _piece(
        self,
        protection: Protection,
        considered: Considered,
        lock: TableLock,
        files: pa.Table,
        aside: Mapping[str, str | None] | None,
        before: FileStatuses | None,
        interrupted: bool,
    ) -> pa.Table:
        """Check and delete under the table's lock. Return the outcomes (columns: `OUTCOMES`). `aside` has None for each
        path that is in quarantine, else the error, and `before` what the files were when they were copied there. Only
        the paths with None may be deleted."""
        if not files.num_rows:
            return arrow_schema(OUTCOMES).empty_table()
        paths = files.column("path").combine_chunks()
        for _ in range(_LOOKS):
            judged = recheck(self.context, protection, considered, self.identities, files, before)
            lock.check()
            self.lease.check()
            # If the process was suspended, files may have become reachable since the check.
            now = elapsed()
            fresh = now - judged.protected_at < _LOOK_LASTS
            if fresh and now - judged.asked_at < _LISTED_LASTS + _AND_EACH * len(paths):
                break
        else:
            raise Busy(
                f"The protection check takes longer than the {_LOOK_LASTS:g} s for which it is valid",
                table=self.job.table,
                untouched="all files of the job that were not deleted before",
                hint="delete again when Postgres and the store answer faster",
            )
        kept, going = dict(judged.kept), judged.going
        moved: list[int] = []
        refused: dict[int, str] = {}
        rows = [] if aside is None else list(enumerate(paths.to_pylist()))
        if aside is not None:
            refused = {row: why for row, path in rows if (why := aside.get(path)) is not None}
            going &= np.array([path in aside and row not in refused for row, path in rows])
        asked = np.flatnonzero(going)
        # The deadline counts from the check, not from now: the process may also be suspended in between.
        with around("deletion.delete_files"):
            etags = {at: judged.now.etags[row] for at, row in enumerate(asked.tolist()) if row in judged.now.etags}
            removals = self._remove(paths.take(asked), etags, lock, judged.protected_at + _DELETES_LAST)
        if aside is not None:
            # An interrupted attempt moved them. Even if they are reachable again, only an undelete moves them back.
            moved = [row for row, path in rows if path not in aside and self._is_aside(path)]
            # Delete a quarantine copy only if the file is still at its path. If an interrupted attempt moved it, the
            # copy is the only one.
            # So it is if a writer has written the path again since.
            stays = {row for row in kept if kept[row] != ANOTHER_FILE and row not in refused}
            self._take_out([path for row, path in rows if row in stays and path in aside])
            kept |= {row: why for row, why in refused.items() if why == ANOTHER_FILE}
        outcomes = PieceOutcomes(files)
        outcomes.put(np.flatnonzero(judged.gone), "absent")
        outcomes.put(asked[removals.outcomes == ABSENT], "absent")
        outcomes.put(asked[removals.outcomes == REMOVED], "deleted" if aside is None else QUARANTINED)
        outcomes.put_each({int(asked[row]): why for row, why in removals.errors.items()}, "failed")
        outcomes.put_each(dict(judged.failed), "failed")
        outcomes.put_each(refused, "failed")
        outcomes.put_each(kept, "kept")
        outcomes.put(np.array(moved, np.int64), QUARANTINED)
        # Include files that an interrupted attempt deleted before it died.
        self._remove_sidecars(protection, paths.filter(outcomes.are(*GONE, "absent")), lock, judged)
        return outcomes.table("; an interrupted attempt may have deleted it" if interrupted else "")

    def _remove(self, paths: pa.Array, etags: Mapping[int, str], lock: TableLock, until: float) -> Removals:
        """Delete. Check every second that the table's lock is still held: if its session ended, a writer, a hold or a
        restore may have taken it."""
        removals = Removals(np.zeros(len(paths), np.int8))
        left = np.arange(len(paths))
        while len(left):
            lock.check()
            self.lease.check()
            remove = self.context.stores.remove
            if etags:
                remove = partial(remove, etags={at: etags[row] for at, row in enumerate(left.tolist()) if row in etags})
            part = remove(paths.take(left), until=min(until, elapsed() + _CHECKED_EVERY))
            removals.outcomes[left] = part.outcomes
            removals.errors.update({int(left[row]): why for row, why in part.errors.items()})
            if elapsed() >= until:
                break
            late = [row for row, why in part.errors.items() if why.startswith(NOT_TRIED)]
            left = left[sorted(late)]
            for row in left.tolist():
                del removals.errors[row]
        return removals

    def _is_aside(self, path: str) -> bool:
        return self.folder is not None and is_aside(self.context.stores, self.folder, path)

    def _take_out(self, paths: Sequence[str]) -> None:
        """Delete the quarantine copies of files that stay at their paths."""
        if self.folder is not None and paths:
            until = elapsed() + _DELETES_LAST
            self.context.stores.delete([place_of(self.folder, path) for path in paths], until=until)

    def _remove_sidecars(self, protection: Protection, paths: pa.Array, lock: TableLock, judged: Rechecked) -> None:
        """Delete the checksum files that Hadoop leaves next to local files. Most never existed, and none is counted. A
        checksum file that a table references is kept."""
        beside = sidecar_array(paths.filter(are_local(paths)))
        existing = beside.filter(pa.array(self.context.stores.exist(beside)))
        if len(existing):
            existing = existing.filter(pa.array(~protection.names(existing)))
            lock.check()
            self.context.stores.remove(existing, until=judged.protected_at + _DELETES_LAST)
