"""The quarantine: undelete, and the purge of files past their retention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from artemis_lifecycle.deletion.batches import DeletionJob
from artemis_lifecycle.deletion.quarantine import (
    JOB,
    Forgotten,
    Purged,
    Undeleted,
    moved_files,
    purge,
    put_back,
    quarantine_folder,
)
from artemis_lifecycle.errors import NoSuchPlan, NoSuchTable, PlanStateError, Refused, StorageError, UnreadableMetadata
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.operations.journal import JobRecord
from artemis_lifecycle.operations.known_tables import KnownTable
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.quarantines import QuarantineRecord
from artemis_lifecycle.operations.scans import is_scan
from artemis_lifecycle.operations.tables import require_said
from artemis_lifecycle.orphans.scan import OrphanScanResult
from artemis_lifecycle.protection.absence import Absence, Behind, tables_behind
from artemis_lifecycle.protection.context import Asking
from artemis_lifecycle.protection.future import version_of
from artemis_lifecycle.protection.protection import (
    ATTEMPT,
    COPY_MISSING,
    UNDELETED,
    UNREAD_READER,
    Considered,
    Protection,
)
from artemis_lifecycle.protection.table_state import CURRENT_METADATA, REACHABLE
from artemis_lifecycle.session.contexts import deletion_context
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps, TableState
from artemis_lifecycle.storage.pace import TokenBucket
from artemis_lifecycle.storage.stores import Stores, place_of
from artemis_lifecycle.walk.deletion import Deletion, id_of
from artemis_lifecycle.walk.dropped import DroppedTables
from artemis_lifecycle.walk.expiration import Expiration

if TYPE_CHECKING:
    import pyarrow as pa

_LISTED_AT_ONCE = 10_000


@dataclass(frozen=True)
class FormerPaths:
    """The paths from which a job's files were moved, by their places in quarantine, and what protects these."""

    stores: Stores
    protection: Protection
    paths: Mapping[str, str]

    def read(self) -> None:
        self.protection.refresh_neighbors()
        self.protection.full(self._considered)

    def kept(self, places: Sequence[str]) -> dict[str, str]:
        """Return which of these places' files must stay, and why: a copy in cold is gone, or a table reaches the former
        path, and no other file is there."""
        import pyarrow as pa

        asked = [place for place in places if place in self.paths]
        former = [self.paths[place] for place in asked]
        if not former:
            return {}
        reasons = self.protection.kept(pa.table({"path": pa.array(former, pa.string())}), self._considered)
        there = self.stores.heads(former)
        missed = (REACHABLE, CURRENT_METADATA, ATTEMPT, UNREAD_READER, UNDELETED)
        return {
            asked[row]: why
            for row, why in reasons.items()
            if why == COPY_MISSING or (there[row] is None and why.startswith(missed))
        }

    def _considered(self) -> Iterator[pa.Array]:
        import pyarrow as pa

        paths = iter(self.paths.values())
        while piece := list(islice(paths, _LISTED_AT_ONCE)):
            yield pa.array(piece, pa.string())


@dataclass(frozen=True)
class Quarantine:
    """Restores or purges the files that deletions moved to quarantine."""

    resources: Resources
    steps: Steps
    expiration: Expiration
    deletion: Deletion
    dropped: DroppedTables

    def undelete(self, job: ExpirationPlan | OrphanScanResult | str, *, who: str, why: str) -> Undeleted:
        """Move the files that a deletion moved into quarantine back to their paths, unless another file is there. `job`
        is the plan or the orphan scan.

        They are protected there from orphan scans and all other deletions until `close_plan`. The quarantine keeps its
        copies until its retention is over. The table's metadata is not changed: read the expired snapshots from the
        metadata file in the result, or restore them from the cold tier with `restore`. A second call does the rest.
        Raises BadInput without `who` or `why`; NoSuchPlan if nothing of the job is in quarantine; PlanStateError while
        it is being deleted, and after its purge; LeaseTaken, StorageError.
        """
        resources = self.resources
        job_id = job if isinstance(job, str) else id_of(job)
        require_said(job_id, who=who, why=why)
        record = self._record(job_id)
        try:
            state = self.dropped.state_even_if_dropped(record.table, record.table_uuid)
        except (UnreadableMetadata, NoSuchTable):
            # What is missing may be in quarantine, and without it the table has no state. A database that was put back
            # may not know the table.
            return self._put_back(record, who, why)
        with self.steps.run(state, "undelete", pausable=False) as step:
            done = self._put_back(
                record,
                who,
                why,
                step.check,
                lambda: resources.operations.known_tables.back(self._lost(state, record)) if state.is_dropped else None,
            )
            step.state = "pending" if done.failed else "done"
            step.counts = {"restored": done.restored, "taken": done.taken, "failed": done.failed}
        return done

    def _put_back(
        self,
        record: QuarantineRecord,
        who: str,
        why: str,
        check: Callable[[], None] = lambda: None,
        recorded: Callable[[], object] = lambda: None,
    ) -> Undeleted:
        resources, job_id = self.resources, record.job_id
        self._require_ended(job_id, record.table)
        # The record comes first, under the deletions' lock, so that no deletion removes the restored files again.
        again = record.undeleted_at is not None
        with table_lock(resources.operations.engine, record.table_uuid, table=record.table):
            record = resources.operations.quarantines.undelete(job_id, who, why)
        recorded()
        spark, stores = resources.start_spark, resources.live_stores
        return put_back(spark, stores, resources.root, record, self.job(job_id), again=again, check=check)

    def _record(self, job_id: str) -> QuarantineRecord:
        """Return the record of a job's quarantine; made anew, with the job's, if the database was put back to before
        the deletion."""
        operations, root = self.resources.operations, self.resources.config.quarantine.root
        found = None
        if root is not None and "/" not in job_id and operations.quarantines.find(job_id) is None:
            found = Forgotten.find(self.resources.live_stores, root, job_id)
        if found is None:
            return operations.quarantines.get(job_id)
        job, place = found.job, found.place
        if operations.journal.job(job_id) is None:
            operations.journal.begin(JobRecord(job_id, job.kind, job.table_uuid, job.table, job.files_location), ())
            operations.journal.finish(job_id)
        folder = quarantine_folder(place.root, job.table_uuid, job_id)
        operations.quarantines.begin(job_id, job.table_uuid, job.table, folder, place.retain, place.metadata_location)
        operations.quarantines.finish(job_id)
        return operations.quarantines.get(job_id)

    def _require_ended(self, job_id: str, table: str) -> None:
        job = self.resources.operations.journal.job(job_id)
        if job is not None and job.finished_at is not None:
            return
        with suppress(NoSuchPlan):
            if self.deletion.closed(job_id):
                return
        ending = f": artemis delete-orphans {job_id};" if is_scan(job_id) else ","
        do = f"let it finish{ending} or close it: artemis close {job_id}; then undelete"
        raise PlanStateError(f"{job_id} is still being deleted", table=table, untouched="all files", hint=do)

    def purge_quarantine(self, table: str, *, dry_run: bool = False) -> list[Purged]:
        """Delete permanently what was in quarantine for longer than `quarantine.retain`, job by job. Restored files
        stay until the undelete is closed, and held files until the hold ends. A dry run reports what would be deleted.
        Raises LeaseTaken, Busy, StorageError; Refused if a hold or a `keep_dropped` comes between two batches."""
        state = self.dropped.state_even_if_dropped(table)
        bucket = TokenBucket(self.deletion.settings(state.name).requests_per_second)
        done, absent = list[Purged](), None
        with self.steps.run(state, "quarantine_purge", dry_run=dry_run) as step:
            for record in self.resources.operations.quarantines.due(state.metadata.table_uuid):
                protection, considered = self._protection(state, record)
                try:
                    protection.require_no_hold()
                    self._require_not_kept(state, record)
                except Refused:
                    step.state = "pending"
                    continue
                protection.refresh_neighbors()
                protection.full(considered)
                former = self._former_paths(state, record)
                former.read()
                waiting = former.kept(list(former.paths))
                if waiting and record.purging_at is None:
                    done.append(Purged(record.job_id, record.table, 0, 0, 0, dry_run, len(waiting)))
                    continue
                if not any(self.resources.live_stores.list(record.folder)):
                    absent = record
                    continue
                if not dry_run:
                    record = self.resources.operations.quarantines.purge(record.job_id)
                purged = purge(
                    self.resources.live_stores,
                    record,
                    kept=partial(self._kept, state, record, protection, considered, former),
                    lock=nullcontext
                    if dry_run
                    else partial(table_lock, self.resources.operations.engine, record.table_uuid, table=record.table),
                    dry_run=dry_run,
                    take=bucket.take,
                    check=step.check,
                )
                if not dry_run and not purged.failed and not purged.kept:
                    self.resources.operations.quarantines.purged(record.job_id)
                    self.resources.live_stores.delete([f"{record.folder}/{JOB}"])
                done.append(purged)
            if any(each.failed or each.kept for each in done):
                step.state = "pending"
            step.counts = {"deleted": sum(each.deleted for each in done), "bytes": sum(each.bytes for each in done)}
            if absent is not None:
                raise StorageError(
                    f"Nothing is where {absent.job_id} was put into quarantine, not even its record",
                    table=absent.table,
                    path=absent.folder,
                    untouched="what is in it",
                    hint="mount its disk; if somebody deleted the folder, put any file there, and run this again",
                )
        return done

    def _kept(
        self,
        state: TableState,
        record: QuarantineRecord,
        protection: Protection,
        considered: Considered,
        former: FormerPaths,
        files: pa.Table,
    ) -> dict[int, str]:
        """Return which of these files must stay, and why. Raises Refused if a person keeps the dropped table, and
        PlanStateError if one has restored them since the purge began: neither needs a lease."""
        self._require_not_kept(state, record)
        if record.purging_at is not None and not self.resources.operations.quarantines.get(record.job_id).purging_at:
            raise PlanStateError(
                f"A person has restored the files of {record.job_id} since its purge began",
                table=record.table,
                untouched="what is left in quarantine",
                hint=f"nothing to do; to purge them after all: artemis close {record.job_id}",
            )
        places = files.column("path").to_pylist()
        by_place = former.kept(places)
        return {row: by_place[place] for row, place in enumerate(places) if place in by_place} | protection.kept(
            files, considered
        )

    def _former_paths(self, state: TableState, record: QuarantineRecord) -> FormerPaths:
        """Return what judges a job's files by the paths from which they were moved: a reader that came back since, and
        an archived copy that was lost since, have nothing else."""
        job = self.job(record.job_id)
        asking, absence = self._asking(state, record)
        moved = moved_files(self.resources.live_stores, job, record)
        paths = {place_of(record.folder, each.path): each.path for each in moved}
        # It may have had another name, or be one of several of a uuid.
        context = self.deletion.context(job if absence is not None else replace(job, table=state.name), absence)
        return FormerPaths(self.resources.live_stores, Protection(context, asking), paths)

    def _asking(self, state: TableState, record: QuarantineRecord) -> tuple[Asking, Absence | None]:
        """Return the purge as protection knows it, and the table's absence if it was dropped."""
        snapshot_ids: tuple[int, ...] = ()
        with suppress(NoSuchPlan):
            snapshot_ids = self.expiration.plan(record.job_id).expired_snapshots
        absence = self.dropped.lost(self._lost(state, record))[1] if state.is_dropped else None
        return Asking(record.job_id, "purge", state.name, record.table_uuid, snapshot_ids), absence

    def _protection(self, state: TableState, record: QuarantineRecord) -> tuple[Protection, Considered]:
        """Return the protection that a job's files need before they are purged, and the paths of all of them."""
        asking, absence = self._asking(state, record)
        cold = self.resources.config.catalogs.cold.root
        context = replace(
            deletion_context(self.resources, state.name, absence),
            reserved=() if cold is None else (cold,),
            roots=(),
            own=(record.folder,),
        )

        def considered() -> Iterator[pa.Array]:
            import pyarrow as pa

            files = iter(self.resources.live_stores.list(record.folder))
            while paths := [file.path for file in islice(files, _LISTED_AT_ONCE)]:
                yield pa.array(paths, pa.string())

        return Protection(context, asking), considered

    def _require_not_kept(self, state: TableState, record: QuarantineRecord) -> None:
        # A uuid can have another name, which is not dropped; and the table had another one when its files were moved.
        for known in self.resources.operations.known_tables.of_uuid(record.table_uuid):
            is_named = known.table == state.name
            if known.kept_at is not None and (is_named or not self._is_of_another(record, known)):
                raise Refused(
                    f"{known.kept_by} decided that the dropped table's files stay: {known.kept_why}",
                    table=known.table,
                    untouched="all files that are still in quarantine",
                    hint=f"artemis keep-dropped {known.table_uuid} --undo, if that is over",
                )

    def _is_of_another(self, record: QuarantineRecord, kept: KnownTable) -> bool:
        """Return True if a job's metadata file is surely not of a kept table's line: its log would have that file."""
        name, at = (record.metadata_location or "").rpartition("/")[2], kept.metadata_location
        behind = tables_behind(self.resources.live_stores, [at])[at]
        line = {each.rpartition("/")[2] for each in (at, *(behind.log if isinstance(behind, Behind) else ()))}
        numbers = [number for each in line if (number := version_of(each)) is not None]
        return name not in line and len(numbers) == len(line) and (version_of(name) or -1) >= min(numbers)

    def _lost(self, state: TableState, record: QuarantineRecord) -> KnownTable:
        """Return the dropped table whose files are in quarantine."""
        return self.dropped.missing(state.name if state.catalog else record.table, state.catalog, record.table_uuid)

    def job(self, job_id: str) -> DeletionJob:
        """Return the deletion that moved files into quarantine."""
        known = self.resources.operations.journal.job(job_id)
        assert known is not None  # the journal has a job before its quarantine begins
        return DeletionJob(job_id, known.kind, known.table_uuid, known.table, known.files_location, known.files)
