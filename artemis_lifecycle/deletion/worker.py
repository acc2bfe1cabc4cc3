"""The deletion worker: takes a sealed job batch by batch, looks once more, deletes, and writes down what became of each
file. Killed anywhere, it goes on from the journal, in this process or another.

For each piece of a batch, under the table's lock (which holds, heartbeats and restores take too): the lease, the
journal's fence, the last look, the delete. Waiting for the pace happens before the lock is taken.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from artemis_lifecycle.deletion.absence import Absence
from artemis_lifecycle.deletion.batches import (
    OUTCOMES,
    Batches,
    DeletionJob,
    Outcome,
    outcome_frame,
    outcomes_of_job,
    read_batch,
    read_outcomes,
    seal_batches,
    sealed_files,
    small_list,
    write_outcomes,
)
from artemis_lifecycle.deletion.last_look import LastLook, Sight, Verdicts
from artemis_lifecycle.deletion.ownership import Pointer, TablesOfCatalog, sidecar_array
from artemis_lifecycle.deletion.quarantine import (
    QUARANTINED,
    QuarantinePlace,
    is_aside,
    place_of,
    quarantine_folder,
    set_aside,
)
from artemis_lifecycle.errors import Busy, Refused, StorageError
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.journal import BatchRecord, BatchState, JobRecord
from artemis_lifecycle.operations.leases import Lease
from artemis_lifecycle.operations.locks import TableLock, table_lock
from artemis_lifecycle.spark.readers import read_here
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.frames import arrow_schema, frame_batches
from artemis_lifecycle.storage.location import LocationRules, is_under, normalise
from artemis_lifecycle.storage.pace import TokenBucket
from artemis_lifecycle.storage.stores import Stores, are_local
from artemis_lifecycle.storage.types import ABSENT, NO_TIME, REMOVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

CHANGED = "changed_since_listing"
"""An orphan job's file is not the one that was listed: it has another size, or was written again."""

_LOOK_LASTS = 10.0
"""Seconds after which a look no longer counts: a worker that was frozen between look and delete looks again."""

_LISTED_LASTS, _AND_EACH = 60.0, 0.1
"""The same for a look at listed files themselves, and for each of them: on S3 a request, at the pace of the store."""

_LOOKS = 5

_DELETES_LAST = 30.0
"""Seconds from the look at what is reachable on, after which no delete request goes out: well inside a lease."""

_MANY, _MOST_PER_BATCH = 4_000, 5_000

_CLOCK_GRAIN = 1_000_000  # Microseconds. S3 tells modification times by the second, inventories by the millisecond.

_NAMES: tuple[Outcome, ...] = ("deleted", "quarantined", "absent", "kept", "failed")
_NOT_TOLD = "the store did not say what became of it"

GONE: tuple[Outcome, ...] = ("deleted", QUARANTINED)
"""The outcomes of files that a job took from their paths."""


@dataclass(frozen=True)
class DeletionSettings:
    """How a job runs. `requests_per_second` None does not wait; in one run a failed file is tried `rounds` times.
    `files_per_batch` of a job of up to 4,000 files; of a larger one a quarter of them, up to 5,000.
    With a `quarantine` files are moved there, not deleted. `remove_empty_folders`: on a disk, those that the deletion
    left empty go when it is over."""

    requests_per_second: float | None = None
    files_per_batch: int = 1000
    rounds: int = 3
    quarantine: QuarantinePlace | None = None
    remove_empty_folders: bool = False


DEFAULT_SETTINGS = DeletionSettings()


@dataclass(frozen=True)
class DeletionReport:
    """What became of a job's files, over all runs so far. Counts are files; `bytes` is the size of the deleted ones.
    Files that were moved into quarantine count as deleted: they are gone from the table; `quarantine` is the folder.

    `pending` files wait for another run: `paused` says why, `pending_until` when the grace of their plan is over. A dry
    run leaves all counts but `kept` at 0 and tells `would_delete` and `would_delete_bytes` instead.
    """

    job_id: str
    table: str
    deleted: int
    already_absent: int
    kept: int
    failed: int
    bytes: int
    pending: int = 0
    pending_until: datetime | None = None
    paused: str | None = None
    quarantine: str | None = None
    dry_run: bool = False
    would_delete: int = 0
    would_delete_bytes: int = 0
    _files: Callable[[], DataFrame] | None = field(default=None, repr=False, compare=False)

    def files(self) -> DataFrame:
        """DataFrame[path, kind, size_in_bytes, outcome, reason] of every file with an outcome.

        `outcome` is deleted, quarantined, absent, kept or failed, and would_delete in a dry run.
        """
        if self._files is None:
            from pyspark.sql import SparkSession

            return SparkSession.builder.getOrCreate().createDataFrame([], OUTCOMES)
        return self._files()

    @classmethod
    def foreseen(cls, job: DeletionJob, size_in_bytes: int, files: Callable[[], DataFrame]) -> DeletionReport:
        """The dry run of a job whose time has not come: all its files, DataFrame[path, kind, size_in_bytes, reason]."""

        def judged() -> DataFrame:
            from pyspark.sql import functions as F

            return files().select("path", "kind", "size_in_bytes", F.lit("would_delete").alias("outcome"), "reason")

        return cls(
            job_id=job.job_id,
            table=job.table,
            deleted=0,
            already_absent=0,
            kept=0,
            failed=0,
            bytes=0,
            dry_run=True,
            would_delete=job.files,
            would_delete_bytes=size_in_bytes,
            _files=judged,
        )


def delete_job(
    spark: SparkSession,
    stores: Stores,
    operations: Operations,
    job: DeletionJob,
    *,
    current: Callable[[], Pointer],
    catalog: TablesOfCatalog,
    lease: Lease | None,
    root: str,
    rules: LocationRules,
    settings: DeletionSettings = DEFAULT_SETTINGS,
    dry_run: bool = False,
    pause: Callable[[], str | None] = lambda: None,
    reserved: Sequence[str] = (),
    rules_of: Callable[[str], LocationRules] | None = None,
    dropped: Absence | None = None,
) -> DeletionReport:
    """Delete the files of `job`, or go on deleting them.

    `current` reads the table's entry in the live catalog, `catalog` its other tables; `root` is `operations.root`;
    `lease` is the table's, held by the caller (None only for a dry run, which changes nothing). `pause` is asked before
    each batch, and between its pieces of a second's work: a text stops the run there, and the next run goes on. Nothing
    goes that lies in a `reserved` location: the roots of the other tiers. `rules_of` are other tables' own rules, by
    name (None: these). `dropped` is given of a table that the catalog has no more: then nothing of it is reachable, and
    `current` is not asked.

    Raises StalePlan (table gone or another), Refused (a hold), GarbageCollectionDisabled,
    UnreadableMetadata, StorageError, LeaseLost; what was deleted until then is in the journal, the rest is untouched.
    """
    sight = Sight.around(
        spark,
        stores,
        operations,
        current,
        catalog,
        # The name of a dropped table may be another table's by now.
        job.table if dropped is None else None,
        root=root,
        rules=rules,
        reserved=reserved,
        rules_of=rules_of,
        dropped=dropped,
    )
    if dry_run:
        return _dry_run(sight, job)
    if lease is None:
        raise Refused("A deletion needs the table's lease", table=job.table, untouched="all files", do="take the lease")
    return _Run(sight, job, lease, settings, pause).run()


def report_of(
    spark: SparkSession, stores: Stores, operations: Operations, job: DeletionJob, root: str
) -> DeletionReport:
    """The report of a job as the journal has it now; of a job that never began, all its files are pending."""
    return _report(spark, stores, operations, job, root, paused=None)


class _Run:
    def __init__(
        self,
        sight: Sight,
        job: DeletionJob,
        lease: Lease,
        settings: DeletionSettings,
        pause: Callable[[], str | None],
    ) -> None:
        self.sight = sight
        self.job = job
        self.lease = lease
        self.settings = settings
        self.pause = pause
        self.bucket = TokenBucket(settings.requests_per_second)
        self.folder: str | None = None

    def run(self) -> DeletionReport:
        sight, job, journal = self.sight, self.job, self.sight.operations.journal
        known = journal.job(job.job_id)
        paused = None
        if known is None or known.finished_at is None:
            per_batch = self.settings.files_per_batch
            if job.files > _MANY:
                # What a batch costs beside its files is paid a few times, and not for each thousand of many.
                per_batch = max(per_batch, min(_MOST_PER_BATCH, job.files // 4))
            batches = seal_batches(sight.spark, sight.stores, job, sight.root, per_batch)
            if known is None:
                self._begin(batches)
            self._begin_quarantine()
            paused = self._batches(batches)
            if not journal.unfinished(job.job_id):
                if self.settings.remove_empty_folders:
                    self._remove_empty_folders()
                sight.operations.quarantines.finish(job.job_id)
                journal.finish(job.job_id)
        return _report(sight.spark, sight.stores, sight.operations, job, sight.root, paused)

    def _begin(self, batches: Batches) -> None:
        sight, job = self.sight, self.job
        record = JobRecord(
            job_id=job.job_id,
            kind=job.kind,
            table_uuid=job.table_uuid,
            table=job.table,
            files_location=job.files_location,
            started_at=sight.operations.clock.now(),
            finished_at=None,
            batches=len(batches.parts),
            files=sum(files for files, _ in batches.sizes),
            bytes=sum(size for _, size in batches.sizes),
        )
        sight.operations.journal.begin(record, batches.sizes)

    def _remove_empty_folders(self) -> None:
        """Below the table's `data`: a writer may be about to use the metadata folder, and finds that there. Of a
        dropped table all of them, and the table's own."""
        sight, job = self.sight, self.job
        if sight.dropped is None:
            location = read_table_metadata(sight.stores, sight.current().metadata_location).location
            top = f"{location}/data"
        else:
            location = sight.dropped.metadata.location
            top = location.rstrip("/").rpartition("/")[0]
        gone = (each for each in outcomes_of_job(sight.stores, sight.root, job.job_id) if each.outcome in GONE)
        folders = {each.path.rpartition("/")[0] for each in gone}
        for folder in sorted(folders, key=len, reverse=True):
            if is_under(folder, normalise(top, sight.rules), sight.rules):
                sight.stores.remove_empty(folder, top)

    def _begin_quarantine(self) -> None:
        """Write down where files will go, before the first goes, and put the plan's own metadata file beside them."""
        place, sight, job = self.settings.quarantine, self.sight, self.job
        begun = sight.operations.quarantines.find(job.job_id)
        if begun is not None or place is None:
            # A job that began to move files ends so, whatever the policy says by now.
            self.folder = None if begun is None else begun.folder
            return
        self.folder = quarantine_folder(place.root, job.table_uuid, job.job_id)
        kept = None
        if place.metadata_location is not None and sight.stores.head(place.metadata_location) is not None:
            kept = f"{self.folder}/{place.metadata_location.rpartition('/')[2]}"
            sight.stores.copy(place.metadata_location, kept)
        sight.operations.quarantines.begin(job.job_id, job.table_uuid, job.table, self.folder, place.retain, kept)

    def _batches(self, batches: Batches) -> str | None:
        """Go through what is not done, failed batches again up to `rounds` times; what a pause said, or None."""
        journal = self.sight.operations.journal
        look = LastLook(self.sight, self.job, batches)
        looked = False
        for _ in range(self.settings.rounds):
            todo = journal.unfinished(self.job.job_id)
            if not todo:
                break
            if not looked:
                look.require_no_hold()
                look.look_around()
                look.full()
                looked = True
            for record in sorted(todo, key=lambda record: record.batch):
                if (why := self.pause() or self._batch(look, batches, record)) is not None:
                    return why
        return None

    def _batch(self, look: LastLook, batches: Batches, record: BatchRecord) -> str | None:
        """Take one batch, piece by piece; what a pause said between two pieces, after which the next run goes on."""
        import pyarrow as pa
        import pyarrow.compute as pc

        sight, job, batch = self.sight, self.job, record.batch
        files = read_batch(sight.stores, batches, batch)
        settled = read_outcomes(sight.stores, sight.root, job.job_id, batch)
        settled = settled.filter(pc.not_equal(settled.column("outcome"), "failed"))
        todo = files
        if settled.num_rows:
            todo = files.filter(pc.invert(pc.is_in(files.column("path"), settled.column("path").combine_chunks())))
        # A batch that was being deleted when its worker died may have lost files whose outcome nobody wrote down.
        interrupted = record.state == BatchState.DELETING
        size = self.bucket.piece
        for start in range(0, max(1, todo.num_rows), size):
            piece = todo.slice(start, size).combine_chunks()
            if start and (why := self.pause()) is not None:
                return why
            self.bucket.take(piece.num_rows)
            aside = None
            if self.folder is not None:
                # A copy takes its time, and harms nothing: before the lock is taken.
                self.bucket.take(piece.num_rows)
                aside = set_aside(sight.stores, self.folder, piece.column("path").to_pylist())
            look.look_around()
            with table_lock(sight.operations.engine, job.table_uuid, table=job.table) as lock:
                self.lease.check()
                if start == 0:
                    sight.operations.journal.start_batch(job.job_id, batch, self.lease.token)
                settled = pa.concat_tables([settled, self._piece(look, lock, piece, aside, interrupted)])
                self.lease.check()
                with around("deletion.write_outcomes"):
                    write_outcomes(sight.stores, sight.root, job.job_id, batch, settled)
        totals = settled.group_by("outcome").aggregate([("path", "count"), ("size_in_bytes", "sum")]).to_pylist()
        count = Counter({row["outcome"]: row["path_count"] for row in totals})
        errors = settled.filter(pc.equal(settled.column("outcome"), "failed")).column("reason")
        sight.operations.journal.finish_batch(
            job.job_id,
            batch,
            self.lease.token,
            deleted=count["deleted"] + count[QUARANTINED],
            absent=count["absent"],
            kept=count["kept"],
            failed=count["failed"],
            deleted_bytes=sum(row["size_in_bytes_sum"] for row in totals if row["outcome"] in GONE),
            error=errors[0].as_py() if len(errors) else None,
        )
        return None

    def _piece(
        self,
        look: LastLook,
        lock: TableLock,
        files: pa.Table,
        aside: Mapping[str, str | None] | None,
        interrupted: bool,
    ) -> pa.Table:
        """Look and delete, under the table's lock; the outcomes (columns: `OUTCOMES`). `aside`: what is in quarantine
        by now (None), or why it is not; only those files may go."""
        import numpy as np

        if not files.num_rows:
            return arrow_schema(OUTCOMES).empty_table()
        paths = files.column("path").combine_chunks()
        for _ in range(_LOOKS):
            began = time.monotonic()
            changed, gone = self._as_listed(files, paths)
            looked = time.monotonic()
            kept = look.kept(paths)
            lock.check()
            self.lease.check()
            # Monotonic time runs on while a process is stopped: what it saw before may have come alive since.
            now = time.monotonic()
            if now - looked < _LOOK_LASTS and now - began < _LISTED_LASTS + _AND_EACH * len(paths):
                break
        else:
            raise Busy(
                f"A look at the table takes longer than the {_LOOK_LASTS:g} s for which it counts",
                table=self.job.table,
                untouched="all files of the job that were not deleted before",
                do="delete again when Postgres and the store answer faster",
            )
        kept = dict.fromkeys(np.flatnonzero(changed).tolist(), CHANGED) | kept
        staying = np.zeros(len(paths), np.bool_)
        staying[list(kept)] = True
        going = ~(staying | gone)
        moved: list[int] = []
        refused: dict[int, str] = {}
        rows = [] if aside is None else list(enumerate(paths.to_pylist()))
        if aside is not None:
            refused = {row: why for row, path in rows if (why := aside.get(path)) is not None}
            going &= np.array([path in aside and row not in refused for row, path in rows])
        asked = np.flatnonzero(going)
        # From the look on, and not from now: the process may be stopped in between as well.
        with around("deletion.delete_files"):
            removals = self.sight.stores.remove(paths.take(asked), until=looked + _DELETES_LAST)
        if aside is not None:
            # An interrupted attempt moved them; alive again or not, an undelete is what brings them back.
            moved = [row for row, path in rows if path not in aside and self._is_aside(path)]
            # Only copies of what stands at its path now: of what an interrupted attempt moved, it is the only one.
            self._take_out([path for row, path in rows if row in kept and path in aside and row not in refused])
        told = _Outcomes(files)
        told.put(np.flatnonzero(~going), "absent")
        told.put(asked[removals.outcomes == ABSENT], "absent")
        told.put(asked[removals.outcomes == REMOVED], "deleted" if aside is None else QUARANTINED)
        told.put_each({int(asked[row]): why for row, why in removals.errors.items()}, "failed")
        told.put_each(refused, "failed")
        told.put_each(kept, "kept")
        told.put(np.array(moved, np.int64), QUARANTINED)
        # Also of files that an interrupted attempt took away, and died.
        self._remove_sidecars(paths.filter(told.are(*GONE, "absent")))
        return told.table("; an interrupted attempt may have deleted it" if interrupted else "")

    def _is_aside(self, path: str) -> bool:
        return self.folder is not None and is_aside(self.sight.stores, self.folder, path)

    def _take_out(self, paths: Sequence[str]) -> None:
        """What stays at its path needs no copy in quarantine."""
        if self.folder is not None and paths:
            until = time.monotonic() + _DELETES_LAST
            self.sight.stores.delete([place_of(self.folder, path) for path in paths], until=until)

    def _remove_sidecars(self, paths: pa.Array) -> None:
        """Take away the checksum files that Hadoop left beside local files; most were never there, none is counted."""
        import pyarrow as pa

        beside = sidecar_array(paths.filter(are_local(paths)))
        there = beside.filter(pa.array(self.sight.stores.there(beside)))
        if len(there):
            self.sight.stores.remove(there, until=time.monotonic() + _DELETES_LAST)

    def _as_listed(self, files: pa.Table, paths: pa.Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Of files that a listing saw: those that are not what was listed, and those that are gone."""
        import numpy as np

        sizes, modified = (files.column(name).to_numpy() for name in ("size_in_bytes", "last_modified"))
        changed, gone = np.zeros(len(paths), np.bool_), np.zeros(len(paths), np.bool_)
        rows = np.flatnonzero(modified != NO_TIME)
        if len(rows):
            now = self.sight.stores.looks(paths.take(rows))
            another = (now.sizes != sizes[rows]) | (now.modified == NO_TIME)
            another |= np.abs(now.modified - modified[rows]) > _CLOCK_GRAIN
            changed[rows], gone[rows] = now.found & another, ~now.found
        return changed, gone


class _Outcomes:
    """The outcomes of a piece's files, by row; what is put later replaces what was put before. A row of which nothing
    is put failed: the store did not say what became of it."""

    def __init__(self, files: pa.Table) -> None:
        import numpy as np

        self._files = files
        self._codes = np.full(files.num_rows, -1, np.int8)
        self._reasons: dict[int, str] = {}

    def put(self, rows: NDArray[np.int64], outcome: Outcome) -> None:
        """These have this outcome, and the reason for which they were doomed."""
        self._codes[rows] = _NAMES.index(outcome)
        for row in set(self._reasons).intersection(rows.tolist()):
            del self._reasons[row]

    def put_each(self, reasons: Mapping[int, str], outcome: Outcome) -> None:
        """These have this outcome, each with a reason of its own."""
        self._codes[list(reasons)] = _NAMES.index(outcome)
        self._reasons.update(reasons)

    def are(self, *outcomes: Outcome) -> pa.Array:
        """Which rows have one of these outcomes."""
        import numpy as np
        import pyarrow as pa

        return pa.array(np.isin(self._codes, [_NAMES.index(outcome) for outcome in outcomes]))

    def table(self, why_absent: str) -> pa.Table:
        """The rows as `OUTCOMES`; `why_absent` is put behind the reasons of those that were absent."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        self.put_each(dict.fromkeys(np.flatnonzero(self._codes < 0).tolist(), _NOT_TOLD), "failed")
        reasons = self._files.column("reason")
        if why_absent:
            absent = pa.array(self._codes == _NAMES.index("absent"))
            reasons = pc.if_else(absent, pc.binary_join_element_wise(reasons, why_absent, ""), reasons)
        if self._reasons:
            own = pa.array([self._reasons.get(row) for row in range(len(self._codes))], pa.string())
            reasons = pc.coalesce(own, reasons)
        names = pa.DictionaryArray.from_arrays(pa.array(self._codes), pa.array(_NAMES)).cast(pa.string())
        files = {each: self._files.column(each) for each in ("path", "kind", "size_in_bytes")}
        return pa.table({**files, "outcome": names, "reason": reasons}).cast(arrow_schema(OUTCOMES))


def _report(
    spark: SparkSession,
    stores: Stores,
    operations: Operations,
    job: DeletionJob,
    root: str,
    paused: str | None,
) -> DeletionReport:
    quarantine = operations.quarantines.find(job.job_id)
    known = operations.journal.job(job.job_id)
    if known is not None and known.forgotten_at is not None:
        return DeletionReport(
            job_id=job.job_id,
            table=job.table,
            deleted=known.deleted,
            already_absent=known.absent,
            kept=known.kept,
            failed=known.failed,
            bytes=known.deleted_bytes,
            quarantine=None if quarantine is None else quarantine.folder,
            _files=lambda: outcome_frame(spark, stores, root, job.job_id),
        )
    records = operations.journal.batches(job.job_id)
    counted = [record for record in records if record.state in (BatchState.DONE, BatchState.FAILED)]
    files = sum(record.files for record in counted)
    return DeletionReport(
        job_id=job.job_id,
        table=job.table,
        deleted=sum(record.deleted for record in counted),
        already_absent=sum(record.absent for record in counted),
        kept=sum(record.kept for record in counted),
        failed=sum(record.failed for record in counted),
        bytes=sum(record.deleted_bytes for record in counted),
        pending=job.files - files,
        paused=paused,
        quarantine=None if quarantine is None else quarantine.folder,
        _files=lambda: outcome_frame(spark, stores, root, job.job_id),
    )


def _dry_run(sight: Sight, job: DeletionJob) -> DeletionReport:
    """Look at everything, delete and write nothing."""
    import pyarrow as pa

    look = LastLook(sight, job, None)
    look.require_no_hold()
    look.look_around()
    look.look_at(batch.column("path") for batch in frame_batches(job.files_location, sight.stores))
    judge = _Judge(look.verdicts())
    small = small_list(sight.stores, job)
    if small is not None:
        judged = read_here(sight.spark, small, judge, OUTCOMES)
        totals = pa.Table.from_batches(judge(small.to_batches()), arrow_schema(OUTCOMES)).group_by("outcome")
        rows = totals.aggregate([("path", "count"), ("size_in_bytes", "sum")]).to_pylist()
        by_outcome = {row["outcome"]: (row["path_count"], row["size_in_bytes_sum"] or 0) for row in rows}
    else:
        judged = sealed_files(sight.spark, sight.stores, job).mapInArrow(judge, OUTCOMES)
        with worker_errors():
            found = judged.groupBy("outcome").agg({"path": "count", "size_in_bytes": "sum"}).collect()
        by_outcome = {row["outcome"]: (row["count(path)"], row["sum(size_in_bytes)"] or 0) for row in found}
    count = sum(files for files, _ in by_outcome.values())
    if count != job.files:
        raise StorageError(
            f"The sealed list of {job.job_id} has {count:,} paths, and its record says {job.files:,}",
            table=job.table,
            path=job.files_location,
            untouched="all files of the job",
            do="plan or scan again; the stored list was damaged",
        )
    going, staying = by_outcome.get("would_delete", (0, 0)), by_outcome.get("kept", (0, 0))
    return DeletionReport(
        job_id=job.job_id,
        table=job.table,
        deleted=0,
        already_absent=0,
        kept=staying[0],
        failed=0,
        bytes=0,
        dry_run=True,
        would_delete=going[0],
        would_delete_bytes=going[1],
        _files=lambda: judged,
    )


class _Judge:
    """Files as a dry run tells them: what would be deleted, and what stays and why."""

    def __init__(self, verdicts: Verdicts) -> None:
        self.verdicts = verdicts

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            found = [self.verdicts.why(path) for path in batch.column("path").to_pylist()]
            reasons = batch.column("reason").to_pylist()
            columns = [
                *(batch.column(name) for name in ("path", "kind", "size_in_bytes")),
                ["would_delete" if why is None else "kept" for why in found],
                [reason if why is None else why for why, reason in zip(found, reasons, strict=True)],
            ]
            schema = arrow_schema(OUTCOMES)
            arrays = [
                pa.array(column, kind) if isinstance(column, list) else column
                for column, kind in zip(columns, schema.types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
