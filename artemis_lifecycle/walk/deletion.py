"""Deletion: approvals, and the files of committed plans and of stored scans."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from artemis_lifecycle.cold_tier.handoff import NOTHING_ARCHIVED, read_outcome
from artemis_lifecycle.cold_tier.presence import PlannedCopies
from artemis_lifecycle.deletion.batches import DeletionJob
from artemis_lifecycle.deletion.identities import first_look
from artemis_lifecycle.deletion.quarantine import QuarantinePlace
from artemis_lifecycle.deletion.report import (
    DeletionReport,
    Receipt,
    read_receipt,
    receipt_folder,
    report_of,
    write_receipt,
)
from artemis_lifecycle.deletion.worker import DeletionSettings, delete_job
from artemis_lifecycle.errors import AnotherTable, ApprovalNeeded, BadInput, ConfigError, NoSuchPlan, PlanStateError
from artemis_lifecycle.expiration.plan import ExpirationPlan, description_of, load_plan
from artemis_lifecycle.operations.leases import Lease
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.plans import UNCOMMITTED, Approval, PlanRecord, PlanStatus
from artemis_lifecycle.operations.quarantines import QuarantineRecord
from artemis_lifecycle.operations.scans import ScanRecord, ScanState, is_scan
from artemis_lifecycle.orphans.scan import OrphanScanResult, job_of
from artemis_lifecycle.orphans.scan import delete_orphans as delete_scan
from artemis_lifecycle.protection.absence import Absence, dropped_folder
from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.protection.limits import Amount, require_approval, require_grace_over
from artemis_lifecycle.protection.ownership import metadata_locations
from artemis_lifecycle.session.contexts import cold_copies, deletion_context, require_published
from artemis_lifecycle.session.resources import Folder, Resources
from artemis_lifecycle.session.steps import Steps
from artemis_lifecycle.storage.frames import frame_batches
from artemis_lifecycle.storage.instants import microseconds
from artemis_lifecycle.storage.location import parent
from artemis_lifecycle.storage.pace import requests_per_second
from artemis_lifecycle.walk.expiration import Expiration
from artemis_lifecycle.walk.reporting import report_back

# --- receipts ---------------------------------------------------------------------------------------------------------
# Receipts: what happened to every file of a finished deletion.


def receipt(steps: Steps, job: ExpirationPlan | OrphanScanResult | str) -> Receipt:
    """See `Lifecycle.receipt`."""
    job_id = job if isinstance(job, str) else id_of(job)
    known = steps.resources.operations.journal.job(job_id)
    if known is None:
        raise NoSuchPlan(
            f"No deletion {job_id} is in the journal",
            hint="a receipt is written when a deletion ends: artemis plans TABLE",
        )
    return stored_receipt(
        steps, DeletionJob(job_id, known.kind, known.table_uuid, known.table, known.files_location, known.files)
    )


def stored_receipt(steps: Steps, job: DeletionJob) -> Receipt:
    """Return the stored receipt. Write it if the job is over and has none."""
    resources = steps.resources
    if job.kind == "dropped":
        # Nothing is stored where a dropped table was.
        place, is_its = dropped_folder(resources.root, job.table_uuid), True
    else:
        try:
            metadata = steps.state_of(job.table, job.table_uuid).metadata
        except AnotherTable:
            metadata = steps.any_state(job.table).metadata
        place = metadata_locations(metadata, resources.rules(job.table))[0]
        is_its = metadata.table_uuid == job.table_uuid
    if resources.other(job.table) is None and resources.config.catalogs.of(job.table).managed:
        place = f"{resources.root}/receipts/{job.table_uuid}"
    folder = receipt_folder(place, job.job_id)
    journal = resources.operations.journal.job(job.job_id)
    missing = resources.live_stores.head(f"{folder}/receipt.json") is None
    if journal is None or journal.finished_at is None or not missing or not is_its:
        return read_receipt(resources.live_stores, folder, job.job_id, job.table)
    quarantine = resources.operations.quarantines.find(job.job_id)
    return write_receipt(
        resources.live_stores,
        resources.root,
        job,
        journal,
        folder=folder,
        by=resources.owner,
        ended_at=journal.finished_at,
        quarantine=None if quarantine is None else quarantine.folder,
        details=_details(resources, job),
    )


def _details(resources: Resources, job: DeletionJob) -> dict[str, Any]:
    if job.kind != "expiration":
        scan = resources.operations.scans.get(job.job_id)
        return {
            "scan": json.loads(scan.summary),
            "approved": None if scan.approved_by is None else f"{scan.approved_by}: {scan.approved_why}",
        }
    record = resources.operations.plans.get(job.job_id)
    outcome = read_outcome(resources.live_stores, resources.root, job.job_id)
    plan = load_plan(resources.start_spark, resources.live_stores, resources.operations, job.job_id)
    return {
        "rule": record.rule,
        "expired_snapshots": list(plan.expired_snapshots),
        "expired_refs": list(record.expired_refs),
        "planned_at": record.planned_at,
        "planned_on": record.base_metadata_location,
        "archived_snapshots": None if outcome is None else list(outcome.archived),
        "cold_metadata": record.cold_metadata_location,
        "committed_at": record.committed_at,
        "committed_as": record.committed_metadata_location,
        "refs_put_back": [
            asdict(ref)
            for each in resources.operations.rest_commits.proven(job.table_uuid, job.job_id)
            for ref in each.refs_put_back
        ],
        "due_at": record.due_at,
        "approved_large": None if record.approved_by is None else f"{record.approved_by}: {record.approved_why}",
        "approved_lost": None
        if record.lost_approved_by is None
        else f"{record.lost_approved_by}: {record.lost_approved_why}",
    }


def id_of(job: ExpirationPlan | OrphanScanResult) -> str:
    """Return the id of a plan or a scan."""
    return job.plan_id if isinstance(job, ExpirationPlan) else job.scan_id


@dataclass(frozen=True)
class Deletion:
    """Deletes the files of plans, and those of scans for the services that scan."""

    resources: Resources
    steps: Steps
    expiration: Expiration

    def approve(
        self,
        plan: ExpirationPlan | OrphanScanResult | str,
        *,
        who: str,
        why: str,
        what: Approval = "large",
        early: bool = True,
    ) -> PlanRecord | ScanRecord:
        """Let a plan pass one guard, and record who, when and why.

        "large" allows exceeding `max_files`, `max_bytes` and `max_share_of_table`, also for scans. "lost" allows its
        handoff to omit snapshots whose files are gone. Neither implies the other. Raises NoSuchPlan, PlanStateError;
        unless `early`, BadInput if nothing waits for the approval, and what forbids the plan's commit.
        """
        operations, plan_id = self.resources.operations, plan if isinstance(plan, str) else id_of(plan)
        is_scan = isinstance(plan, OrphanScanResult) or (what == "large" and self._is_scan(plan_id))
        if not early and not self._waits(plan_id, what, is_scan=is_scan):
            raise BadInput(
                f"Nothing of {plan_id} waits for this approval",
                untouched="the plan or scan",
                hint="approve it once a step waits: an approval in advance would count for what is found later",
            )
        approve = operations.scans.approve if is_scan else partial(operations.plans.approve, what=what)
        return approve(plan_id, who, why)

    def _waits(self, job_id: str, what: Approval, *, is_scan: bool) -> bool:
        """Return True if the next step needs an approval that it does not have."""
        operations = self.resources.operations
        if what == "lost":
            record = operations.plans.get(job_id)
            return not set(record.lost_snapshots or ()) <= set(record.lost_approved_snapshots or ())
        try:
            if is_scan:
                scan = operations.scans.get(job_id)
                self.require_small_or_approved(scan)
                # Those of dropped tables are approved for what they are.
                return scan.kind != "orphans" and scan.approved_by is None
            plan = self.expiration.plan(job_id)
            (self.resources.other(plan.table) or self.expiration).commit_expiration(plan, dry_run=True)
        except ApprovalNeeded:
            return True
        return False

    def _is_scan(self, scan_id: str) -> bool:
        try:
            self.resources.operations.scans.get(scan_id)
        except NoSuchPlan:
            return False
        return True

    def close_plan(
        self, plan: ExpirationPlan | OrphanScanResult | str, *, who: str, why: str
    ) -> PlanRecord | ScanRecord | QuarantineRecord:
        """End a plan or scan permanently. Orphan scans then take over the files that a committed plan had not deleted
        yet, and the files that an `undelete` of it (or of an orphan scan) had restored."""
        plan_id = plan if isinstance(plan, str) else id_of(plan)
        operations = self.resources.operations
        undeleted = operations.quarantines.find(plan_id)
        if undeleted is not None and undeleted.undeleted_at is not None:
            # Closing a closed undelete changes nothing, as for a plan.
            return operations.quarantines.close(plan_id, who, why) if undeleted.closed_at is None else undeleted
        kind = operations.scans if is_scan(plan_id) else operations.plans
        record = kind.get(plan_id)
        if isinstance(record, PlanRecord):
            self.expiration.settle(record)
        # A commit or batch that is under way ends first.
        with table_lock(operations.engine, record.table_uuid, table=record.table):
            record = kind.close(plan_id, who, why)
        # The retention of its quarantined files starts now.
        operations.quarantines.finish(plan_id)
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
            is_open = record.status in UNCOMMITTED
            raise PlanStateError(
                f"Plan {plan.plan_id} is {record.status.replace('_', ' ')}" + (", not committed" if is_open else ""),
                table=plan.table,
                untouched="all files of the plan",
                hint=f"artemis commit {plan.plan_id}, wait for the grace, then delete"
                if is_open
                else "it stays so; artemis scan-orphans finds what nothing reaches any more",
            )
        self.expiration.checks.require(plan, record)
        instant = None if now is None else resources.instant("now", now)
        require_grace_over(plan.plan_id, plan.table, record.due_at, resources.operations.clock.now(), instant)
        with self.steps.run(state, "deletion") as step:
            proven = self.expiration.proven(plan)
            put_back = set() if proven is None else {each.snapshot_id for each in proven.put_back}
            job = replace(job, snapshot_ids=tuple(each for each in job.snapshot_ids if each not in put_back))
            if record.cold_metadata_location not in (None, NOTHING_ARCHIVED):
                require_published(resources, plan)
            resources.operations.plans.mark(
                plan.plan_id, {PlanStatus.COMMITTED, PlanStatus.DELETING}, PlanStatus.DELETING
            )
            # The first look stands since before the commit was recorded, but for plans of earlier releases.
            job = replace(job, files_location=first_look(resources.live_stores, plan.files_location))
            report = self._delete(job, step.lease, plan.base_metadata_location, pause=step.pause)
            if report.failed == 0 and report.pending == 0:
                if job.files:
                    stored_receipt(self.steps, job)
                resources.operations.plans.mark(plan.plan_id, {PlanStatus.DELETING}, PlanStatus.DONE)
            else:
                step.state = "pending"
            step.counts = deletion_counts(report)
            report_back(self.steps, state, step, "deletion", plan.plan_id)
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
            self.context(job),
            job,
            lease=lease,
            settings=self.settings(job.table, metadata_location, job.job_id),
            dry_run=dry_run,
            pause=pause,
        )
        if not dry_run and report.has_outcomes:
            resources.operations.publications.deletion(resources.config.catalogs.results, job.job_id)
        return report

    def closed(self, job_id: str) -> str | None:
        """Return who closed a plan or scan, as a reason to stop; None if it is open. Raises NoSuchPlan."""
        if is_scan(job_id):
            scan = self.resources.operations.scans.get(job_id)
            return "the scan was closed" if scan.state is ScanState.CLOSED else None
        record = self.resources.operations.plans.get(job_id)
        return f"the plan was closed by {record.closed_by}" if record.status is PlanStatus.CLOSED else None

    def context(self, job: DeletionJob, dropped: Absence | None = None) -> DeletionContext:
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
            self.context(job_of(record), absence),
            record.scan_id,
            lease=lease,
            results_catalog=self.resources.config.catalogs.results,
            settings=self.settings(record.table, job_id=record.scan_id),
            dry_run=dry_run,
            pause=pause,
        )

    def settings(self, table: str, metadata_location: str | None = None, job_id: str | None = None) -> DeletionSettings:
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
            closed=(lambda: None) if job_id is None else partial(self.closed, job_id),
        )


def sealed_at(resources: Resources, plan: ExpirationPlan) -> int | None:
    """Return when the plan was sealed, in microseconds, by the clock that sets the times of the table's files. Where
    plans are kept by another clock, the base metadata file stands for it: it is newer than all files of the plan. Where
    they were copied since, the description of the plan is younger than it was; Postgres knows better, to a difference
    of clocks."""
    stores, described, base = resources.live_stores, description_of(plan), plan.base_metadata_location
    clocks = {Folder(parent(path), stores).clock for path in (described, base)}
    if len(clocks) > 1 and (found := stores.head(base)) is not None:
        return found.identity.modified + 1
    found = stores.head(described)
    at_most = resources.operations.plans.sealed_at(plan.plan_id) + resources.config.clocks.max_difference
    return None if found is None else min(found.identity.modified, microseconds(at_most))


def deletion_counts(report: DeletionReport) -> dict[str, int]:
    """Return the counts of a deletion for a step record."""
    return {
        "files_deleted": report.deleted,
        "files_absent": report.already_absent,
        "files_kept": report.kept,
        "files_failed": report.failed,
        "bytes_deleted": report.bytes,
    }
