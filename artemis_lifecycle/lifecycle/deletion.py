"""Deletion: who lets a plan pass a guard, the files of a committed plan, those of a stored scan, and the receipts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Steps, Step
from artemis_lifecycle.lifecycle.contexts import Contexts
from artemis_lifecycle.lifecycle.copies import Copies
from artemis_lifecycle.lifecycle.expiration import Expiration
from artemis_lifecycle.lifecycle.receipts import Receipts
from artemis_lifecycle.cold_tier.handoff import NOTHING_ARCHIVED, read_outcome
from artemis_lifecycle.cold_tier.presence import PlannedCopies
from artemis_lifecycle.deletion.batches import DeletionJob
from artemis_lifecycle.deletion.quarantine import QuarantinePlace
from artemis_lifecycle.deletion.receipt import Receipt, read_receipt, receipt_folder, write_receipt
from artemis_lifecycle.deletion.results import record_outcomes
from artemis_lifecycle.deletion.worker import DeletionReport, DeletionSettings, delete_job, report_of
from artemis_lifecycle.errors import ConfigError, NoSuchPlan, PlanStateError
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.operations.leases import Lease
from artemis_lifecycle.operations.plans import UNCOMMITTED, Approval, PlanRecord, PlanStatus
from artemis_lifecycle.operations.quarantines import QuarantineRecord
from artemis_lifecycle.operations.scans import ScanRecord
from artemis_lifecycle.orphans.delete import delete_orphans as delete_scan
from artemis_lifecycle.orphans.delete import job_of
from artemis_lifecycle.orphans.scan import OrphanScanResult
from artemis_lifecycle.protection.absence import Absence, dropped_folder
from artemis_lifecycle.protection.limits import Amount, require_approval, require_grace_over
from artemis_lifecycle.protection.ownership import metadata_locations
from artemis_lifecycle.storage.frames import frame_batches
from artemis_lifecycle.storage.pace import requests_per_second

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Deletion:
    """Deletes the files of plans, and of scans for those who know what stands against them."""

    resources: Resources
    steps: Steps
    contexts: Contexts
    copies: Copies
    expiration: Expiration
    receipts: Receipts

    def approve(
        self, plan: ExpirationPlan | OrphanScanResult | str, *, who: str, why: str, what: Approval = "large"
    ) -> PlanRecord | ScanRecord:
        """Let a plan pass one guard; who, when and why are kept.

        "large": `max_files`, `max_bytes` and `max_share_of_table`, of scans too. "lost": its handoff may leave out
        snapshots whose files are gone. Neither is the other. Raises NoSuchPlan, PlanStateError.
        """
        if isinstance(plan, OrphanScanResult):
            return self.resources.operations.scans.approve(plan.scan_id, who, why)
        plan_id = plan if isinstance(plan, str) else plan.plan_id
        try:
            return self.resources.operations.plans.approve(plan_id, who, why, what)
        except NoSuchPlan:
            if what != "large" or not self._is_scan(plan_id):
                raise
        return self.resources.operations.scans.approve(plan_id, who, why)

    def _is_scan(self, scan_id: str) -> bool:
        try:
            self.resources.operations.scans.get(scan_id)
        except NoSuchPlan:
            return False
        return True

    def close_plan(
        self, plan: ExpirationPlan | OrphanScanResult | str, *, who: str, why: str
    ) -> PlanRecord | QuarantineRecord:
        """End a plan for good. What a committed plan had not deleted yet becomes the orphan scan's, and so does what an
        `undelete` of it (or of an orphan scan) had brought back."""
        plan_id = plan if isinstance(plan, str) else id_of(plan)
        undeleted = self.resources.operations.quarantines.find(plan_id)
        if undeleted is not None and undeleted.undeleted_at is not None:
            # Closing what is closed changes nothing, as of a plan.
            closed = undeleted.closed_at is not None
            return undeleted if closed else self.resources.operations.quarantines.close(plan_id, who, why)
        record = self.resources.operations.plans.close(plan_id, who, why)
        # What it had moved aside stays for its retention from now on.
        self.resources.operations.quarantines.finish(plan_id)
        return record

    def delete_files(
        self, plan: ExpirationPlan | str, now: datetime | None = None, *, dry_run: bool = False
    ) -> DeletionReport:
        """Delete the files of a committed plan whose grace is over; goes on where an earlier run stopped.

        Each batch looks at the table once more before it goes: what is reachable again is kept and reported. `now` can
        only make the grace end later. `dry_run` looks and deletes nothing; it also takes a plan that is not committed.

        Raises PlanStateError (not committed, closed), GraceNotOver, Refused (a hold), StalePlan (the table is gone or
        another), UnreadableMetadata, StorageError, LeaseTaken; what was not deleted until then is untouched.
        """
        plan, record = self.expiration.loaded(plan)
        job = DeletionJob(
            job_id=plan.plan_id,
            kind="expiration",
            table_uuid=plan.table_uuid,
            table=plan.table,
            files_location=plan.files_location,
            files=plan.summary.files,
            snapshot_ids=plan.expired_snapshots,
        )
        if dry_run and record.status in UNCOMMITTED:
            # The table still reaches the files: a look at it would only say so. What would go is what the plan names.
            return DeletionReport.foreseen(job, plan.summary.size_in_bytes, plan.files)
        if dry_run:
            return self._delete(job, None, plan.base_metadata_location, dry_run=True)
        if record.status == PlanStatus.DONE:
            if job.files:
                self.receipts.stored(job)
            return report_of(
                self.resources.spark, self.resources.live_stores, self.resources.operations, job, self.resources.root
            )
        if record.status not in (PlanStatus.COMMITTED, PlanStatus.DELETING) or record.due_at is None:
            raise PlanStateError(
                f"Plan {plan.plan_id} is {record.status.replace('_', ' ')}, not committed",
                table=plan.table,
                untouched="all files of the plan",
                hint=f"artemis commit {plan.plan_id}, wait for the grace, then delete",
            )
        instant = None if now is None else self.resources.instant("now", now)
        require_grace_over(plan.plan_id, plan.table, record.due_at, self.resources.operations.clock.now(), instant)
        with self.steps.run(self.steps.table_state(plan.table), "deletion") as step:
            if record.cold_metadata_location not in (None, NOTHING_ARCHIVED):
                self.copies.require_published(plan)
            self.resources.operations.plans.mark(
                plan.plan_id, {PlanStatus.COMMITTED, PlanStatus.DELETING}, PlanStatus.DELETING
            )
            report = self._delete(
                job, step.lease, plan.base_metadata_location, pause=lambda: step.pause() or self._closed(plan.plan_id)
            )
            if report.failed == 0 and report.pending == 0:
                if job.files:
                    self.receipts.stored(job)
                self.resources.operations.plans.mark(plan.plan_id, {PlanStatus.DELETING}, PlanStatus.DONE)
            else:
                step.state = "pending"
            step.counts = deletion_counts(report)
        return report

    def _delete(
        self,
        job: DeletionJob,
        lease: Lease | None,
        metadata_location: str,
        *,
        dry_run: bool = False,
        pause: Callable[[], str | None] = lambda: None,
    ) -> DeletionReport:
        report = delete_job(
            replace(self.contexts.of_table(job.table), missing_copies=self._missing_copies(job)),
            job,
            lease=lease,
            settings=self.settings(job.table, metadata_location),
            dry_run=dry_run,
            pause=pause,
        )
        if not dry_run:
            catalog = self.resources.config.catalogs.live.name
            record_outcomes(
                self.resources.spark,
                self.resources.operations,
                catalog,
                job,
                report,
                self.resources.live_stores,
                self.resources.root,
            )
        return report

    def _closed(self, plan_id: str) -> str | None:
        record = self.resources.operations.plans.get(plan_id)
        return f"the plan was closed by {record.closed_by}" if record.status is PlanStatus.CLOSED else None

    def _missing_copies(self, job: DeletionJob) -> Callable[[pa.Array], NDArray[np.bool_]] | None:
        """What asks the cold store for the copies of the job's files; None before the first handoff. Also of orphans:
        what a closed plan left is an orphan, and the only copy where the archived one was lost."""
        copies = self.copies.of_table(job.table, job.table_uuid)
        if copies is None:
            return None

        def paths() -> Iterator[Sequence[str]]:
            return (
                batch.column("path").to_pylist()
                for batch in frame_batches(job.files_location, self.resources.live_stores)
            )

        return PlannedCopies(copies, job.files, paths).missing

    def require_small_or_approved(self, record: ScanRecord) -> None:
        policy, summary = self.resources.config.policy(record.table), json.loads(record.summary)
        require_approval(
            record.scan_id,
            record.table,
            policy.deletion,
            Amount(record.files, record.bytes, summary["listed_files"], summary["listed_bytes"]),
            approved_by=record.approved_by,
            # All that is left of a dropped table is its own.
            max_share=policy.orphans.max_share if record.kind == "orphans" else None,
        )

    def run_scan(
        self,
        record: ScanRecord,
        lease: Lease | None,
        *,
        dry_run: bool = False,
        pause: Callable[[], str | None] = lambda: None,
        absence: Absence | None = None,
    ) -> DeletionReport:
        return delete_scan(
            replace(self.contexts.of_table(record.table, absence), missing_copies=self._missing_copies(job_of(record))),
            record.scan_id,
            lease=lease,
            results_catalog=self.resources.config.catalogs.live.name,
            settings=self.settings(record.table),
            dry_run=dry_run,
            pause=pause,
        )

    def settings(self, table: str, metadata_location: str | None = None) -> DeletionSettings:
        """`metadata_location`: the metadata file that a plan was made of, to be kept beside what is quarantined."""
        policy, place = self.resources.config.policy(table), None
        if policy.deletion.mode == "quarantine":
            if self.config.quarantine.root is None:
                raise ConfigError("quarantine.root has no address", hint="set it in lifecycle.yaml")
            place = QuarantinePlace(self.config.quarantine.root, self.config.quarantine.retain, metadata_location)
        return DeletionSettings(
            requests_per_second=requests_per_second(policy),
            quarantine=place,
            remove_empty_folders=policy.deletion.remove_empty_folders,
        )

    def receipt(self, job: ExpirationPlan | OrphanScanResult | str) -> Receipt:
        """What became of every file of a finished deletion, by whose decision. It stands in the table's metadata folder
        as JSON, Markdown and Parquet, and is written when the deletion ends. Raises NoSuchPlan before that."""
        job_id = job if isinstance(job, str) else id_of(job)
        known = self.operations.journal.job(job_id)
        if known is None:
            raise NoSuchPlan(
                f"No deletion {job_id} is in the journal",
                hint="a receipt is written when a deletion ends: artemis plans TABLE",
            )
        return self._receipt(
            DeletionJob(job_id, known.kind, known.table_uuid, known.table, known.files_location, known.files)
        )

    def _receipt(self, job: DeletionJob) -> Receipt:
        """The stored receipt; written now if its job is over and has none."""
        if job.kind == "dropped":
            # Where the table was nothing is to stay.
            place, is_its = dropped_folder(self.root, job.table_uuid), True
        else:
            metadata = self._look(job.table).metadata
            place, is_its = (
                metadata_locations(metadata, self.rules(job.table))[0],
                metadata.table_uuid == job.table_uuid,
            )
        folder = receipt_folder(place, job.job_id)
        journal = self.operations.journal.job(job.job_id)
        missing = self.live_stores.head(f"{folder}/receipt.json") is None
        if journal is None or journal.finished_at is None or not missing or not is_its:
            return read_receipt(self.live_stores, folder, job.job_id, job.table)
        quarantine = self.operations.quarantines.find(job.job_id)
        return write_receipt(
            self.live_stores,
            self.root,
            job,
            journal,
            folder=folder,
            by=self.owner,
            ended_at=journal.finished_at,
            quarantine=None if quarantine is None else quarantine.folder,
            details=self._receipt_details(job),
        )

    def _receipt_details(self, job: DeletionJob) -> dict[str, Any]:
        if job.kind != "expiration":
            scan = self.operations.scans.get(job.job_id)
            return {
                "scan": json.loads(scan.summary),
                "approved": None if scan.approved_by is None else f"{scan.approved_by}: {scan.approved_why}",
            }
        record = self.operations.plans.get(job.job_id)
        outcome = read_outcome(self.live_stores, self.root, job.job_id)
        return {
            "rule": record.rule,
            "expired_snapshots": list(self.plan(job.job_id).expired_snapshots),
            "expired_refs": list(record.expired_refs),
            "planned_at": record.planned_at,
            "planned_on": record.base_metadata_location,
            "archived_snapshots": None if outcome is None else list(outcome.archived),
            "cold_metadata": record.cold_metadata_location,
            "committed_at": record.committed_at,
            "committed_as": record.committed_metadata_location,
            "due_at": record.due_at,
            "approved_large": None if record.approved_by is None else f"{record.approved_by}: {record.approved_why}",
            "approved_lost": None
            if record.lost_approved_by is None
            else f"{record.lost_approved_by}: {record.lost_approved_why}",
        }


def id_of(job: ExpirationPlan | OrphanScanResult) -> str:
    return job.plan_id if isinstance(job, ExpirationPlan) else job.scan_id


def deletion_counts(report: DeletionReport) -> dict[str, int]:
    return {
        "files_deleted": report.deleted,
        "files_absent": report.already_absent,
        "files_kept": report.kept,
        "files_failed": report.failed,
        "bytes_deleted": report.bytes,
    }
