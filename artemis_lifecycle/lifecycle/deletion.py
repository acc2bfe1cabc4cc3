"""Deletion: approvals, and the files of committed plans and of stored scans."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from artemis_lifecycle.cold_tier.handoff_outcome import NOTHING_ARCHIVED
from artemis_lifecycle.cold_tier.presence import PlannedCopies
from artemis_lifecycle.deletion.batches import DeletionJob
from artemis_lifecycle.deletion.identities import first_look
from artemis_lifecycle.deletion.quarantine import QuarantinePlace
from artemis_lifecycle.deletion.report import DeletionReport, report_of
from artemis_lifecycle.deletion.worker import DeletionSettings, delete_job
from artemis_lifecycle.errors import ConfigError, NoSuchPlan, PlanStateError
from artemis_lifecycle.expiration.plan import ExpirationPlan, description_of
from artemis_lifecycle.lifecycle.clocks import Folder
from artemis_lifecycle.lifecycle.contexts import deletion_context
from artemis_lifecycle.lifecycle.copies import cold_copies, require_published
from artemis_lifecycle.lifecycle.expiration import Expiration
from artemis_lifecycle.lifecycle.receipts import id_of, stored_receipt
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Steps
from artemis_lifecycle.operations.leases import Lease
from artemis_lifecycle.operations.plans import UNCOMMITTED, Approval, PlanRecord, PlanStatus
from artemis_lifecycle.operations.quarantines import QuarantineRecord
from artemis_lifecycle.operations.scans import ScanRecord
from artemis_lifecycle.orphans.delete import delete_orphans as delete_scan
from artemis_lifecycle.orphans.delete import job_of
from artemis_lifecycle.orphans.result import OrphanScanResult
from artemis_lifecycle.protection.absence import Absence
from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.protection.limits import Amount, require_approval, require_grace_over
from artemis_lifecycle.storage.frames import frame_batches
from artemis_lifecycle.storage.location import parent
from artemis_lifecycle.storage.pace import requests_per_second


@dataclass(frozen=True)
class Deletion:
    """Deletes the files of plans, and those of scans for the services that scan."""

    resources: Resources
    steps: Steps
    expiration: Expiration

    def approve(
        self, plan: ExpirationPlan | OrphanScanResult | str, *, who: str, why: str, what: Approval = "large"
    ) -> PlanRecord | ScanRecord:
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
        plan_id = plan if isinstance(plan, str) else id_of(plan)
        undeleted = self.resources.operations.quarantines.find(plan_id)
        if undeleted is not None and undeleted.undeleted_at is not None:
            # Closing a closed undelete changes nothing, as for a plan.
            closed = undeleted.closed_at is not None
            return undeleted if closed else self.resources.operations.quarantines.close(plan_id, who, why)
        record = self.resources.operations.plans.close(plan_id, who, why)
        # The retention of its quarantined files starts now.
        self.resources.operations.quarantines.finish(plan_id)
        return record

    def delete_files(
        self, plan: ExpirationPlan | str, now: datetime | None = None, *, dry_run: bool = False
    ) -> DeletionReport:
        resources = self.resources
        plan, record = self.expiration.loaded(plan)
        if record.status in (*UNCOMMITTED, PlanStatus.COMMITTED, PlanStatus.DELETING):
            plan, state = self.steps.resumed(plan)
        job = DeletionJob(
            job_id=plan.plan_id,
            kind="expiration",
            table_uuid=plan.table_uuid,
            table=plan.table,
            files_location=plan.files_location,
            files=plan.summary.files,
            snapshot_ids=plan.expired_snapshots,
            sealed_at=sealed_at(resources, plan),
        )
        if dry_run and record.status in UNCOMMITTED:
            # The table still reaches the files, so a check would only say that. The plan lists what would be deleted.
            return DeletionReport.foreseen(job, plan.summary.size_in_bytes, plan.files)
        if dry_run:
            job = replace(job, files_location=first_look(resources.live_stores, plan.files_location, record=False))
            return self._delete(job, None, plan.base_metadata_location, dry_run=True)
        if record.status == PlanStatus.DONE:
            if job.files:
                stored_receipt(self.steps, job)
            return report_of(resources.start_spark, resources.live_stores, resources.operations, job, resources.root)
        if record.status not in (PlanStatus.COMMITTED, PlanStatus.DELETING) or record.due_at is None:
            raise PlanStateError(
                f"Plan {plan.plan_id} is {record.status.replace('_', ' ')}, not committed",
                table=plan.table,
                untouched="all files of the plan",
                hint=f"artemis commit {plan.plan_id}, wait for the grace, then delete",
            )
        self.expiration.checks.require(plan, record)
        instant = None if now is None else resources.instant("now", now)
        require_grace_over(plan.plan_id, plan.table, record.due_at, resources.operations.clock.now(), instant)
        with self.steps.run(state, "deletion") as step:
            if record.cold_metadata_location not in (None, NOTHING_ARCHIVED):
                require_published(resources, plan)
            resources.operations.plans.mark(
                plan.plan_id, {PlanStatus.COMMITTED, PlanStatus.DELETING}, PlanStatus.DELETING
            )
            # The commit has done so, unless it was killed.
            job = replace(job, files_location=first_look(resources.live_stores, plan.files_location))
            report = self._delete(
                job, step.lease, plan.base_metadata_location, pause=lambda: step.pause() or self._closed(plan.plan_id)
            )
            if report.failed == 0 and report.pending == 0:
                if job.files:
                    stored_receipt(self.steps, job)
                resources.operations.plans.mark(plan.plan_id, {PlanStatus.DELETING}, PlanStatus.DONE)
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
        resources = self.resources
        report = delete_job(
            self._context(job),
            job,
            lease=lease,
            settings=self.settings(job.table, metadata_location),
            dry_run=dry_run,
            pause=pause,
        )
        if not dry_run and report.has_outcomes:
            resources.operations.publications.deletion(resources.config.catalogs.live.name, job.job_id)
        return report

    def _closed(self, plan_id: str) -> str | None:
        record = self.resources.operations.plans.get(plan_id)
        return f"the plan was closed by {record.closed_by}" if record.status is PlanStatus.CLOSED else None

    def _context(self, job: DeletionJob, dropped: Absence | None = None) -> DeletionContext:
        """Return what protection needs for a job, with what the cold tier knows of its files. Also used for orphans:
        files of a closed plan are orphans, and are the only copy if the archived one was lost."""
        context, planned = deletion_context(self.resources, job.table, dropped), self._planned_copies(job)
        if planned is None:
            return context
        return replace(
            context, missing_copies=planned.missing, archived_files=planned.archived_files, renew=planned.renew
        )

    def _planned_copies(self, job: DeletionJob) -> PlannedCopies | None:
        """Return the copies of the job's files; None before the first handoff."""
        copies = cold_copies(self.resources, job.table, job.table_uuid)
        if copies is None:
            return None

        def paths() -> Iterator[Sequence[str]]:
            return (
                batch.column("path").to_pylist()
                for batch in frame_batches(job.files_location, self.resources.live_stores)
            )

        return PlannedCopies(copies, job.files, paths)

    def require_small_or_approved(self, record: ScanRecord) -> None:
        """Raise ApprovalNeeded for an unapproved scan above the policy's limits."""
        policy, summary = self.resources.config.policy(record.table), json.loads(record.summary)
        require_approval(
            record.scan_id,
            record.table,
            policy.deletion,
            Amount(record.files, record.bytes, summary["listed_files"], summary["listed_bytes"]),
            approved_by=record.approved_by,
            # All remaining files of a dropped table are its own.
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
        """Delete the files of a scan. The caller has checked that nothing forbids it."""
        return delete_scan(
            self._context(job_of(record), absence),
            record.scan_id,
            lease=lease,
            results_catalog=self.resources.config.catalogs.live.name,
            settings=self.settings(record.table),
            dry_run=dry_run,
            pause=pause,
        )

    def settings(self, table: str, metadata_location: str | None = None) -> DeletionSettings:
        """`metadata_location` is a plan's base metadata file, which is kept with the quarantined files."""
        policy, place = self.resources.config.policy(table), None
        if policy.deletion.mode == "quarantine":
            if self.resources.config.quarantine.root is None:
                raise ConfigError("quarantine.root is not set", hint="set it in lifecycle.yaml")
            place = QuarantinePlace(
                self.resources.config.quarantine.root, self.resources.config.quarantine.retain, metadata_location
            )
        return DeletionSettings(
            requests_per_second=requests_per_second(policy),
            quarantine=place,
            remove_empty_folders=policy.deletion.remove_empty_folders,
        )


def sealed_at(resources: Resources, plan: ExpirationPlan) -> int | None:
    """Return when the plan was sealed, in microseconds, by the clock that sets the times of the table's files. Where
    plans are kept by another clock, the base metadata file stands for it: it is newer than all files of the plan."""
    stores, described, base = resources.live_stores, description_of(plan), plan.base_metadata_location
    clocks = {Folder(parent(path), stores).clock for path in (described, base)}
    if len(clocks) > 1 and (found := stores.head(base)) is not None:
        return found.identity.modified + 1
    found = stores.head(described)
    return None if found is None else found.identity.modified


def deletion_counts(report: DeletionReport) -> dict[str, int]:
    """Return the counts of a deletion for a step record."""
    return {
        "files_deleted": report.deleted,
        "files_absent": report.already_absent,
        "files_kept": report.kept,
        "files_failed": report.failed,
        "bytes_deleted": report.bytes,
    }
