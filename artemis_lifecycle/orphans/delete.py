"""Deleting the orphans of a stored scan: runs the deletion worker on the scan's sealed files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from artemis_lifecycle.deletion.batches import DeletionJob
from artemis_lifecycle.deletion.report import DeletionReport, report_of
from artemis_lifecycle.deletion.worker import DEFAULT_SETTINGS, DeletionSettings, delete_job
from artemis_lifecycle.operations.leases import Lease
from artemis_lifecycle.operations.scans import ScanRecord, ScanState
from artemis_lifecycle.protection.context import DeletionContext


def job_of(scan: ScanRecord) -> DeletionJob:
    """Return the deletion job of a stored scan."""
    return DeletionJob(
        job_id=scan.scan_id,
        kind=scan.kind,
        table_uuid=scan.table_uuid,
        table=scan.table,
        files_location=scan.files_location,
        files=scan.files,
    )


def delete_orphans(
    context: DeletionContext,
    scan_id: str,
    *,
    lease: Lease | None,
    results_catalog: str,
    settings: DeletionSettings = DEFAULT_SETTINGS,
    dry_run: bool = False,
    pause: Callable[[], str | None] = lambda: None,
) -> DeletionReport:
    """Delete the files of the scan, or continue deleting them. For a finished scan, return its report.

    The arguments are those of `delete_job`. Each file is checked again. It is kept if a snapshot now reaches it, if a
    writer's heartbeat covers it, or if it differs from the listed file. The outcomes are queued for publication to
    `<results_catalog>.lifecycle.deletions`. Raises NoSuchPlan for an unknown scan, and what `delete_job` raises.
    """
    operations = context.operations
    scan = operations.scans.get(scan_id)
    # The table may have another name by now.
    job = replace(job_of(scan), table=context.table)
    if scan.state == ScanState.DONE:
        return report_of(context.spark, context.stores, operations, job, context.root)
    if not dry_run:
        operations.scans.mark(scan_id, {ScanState.OPEN, ScanState.DELETING}, ScanState.DELETING)
    report = delete_job(context, job, lease=lease, settings=settings, dry_run=dry_run, pause=pause)
    if not dry_run:
        if report.has_outcomes:
            operations.publications.deletion(results_catalog, job.job_id)
        if not report.pending and not report.failed:
            operations.scans.mark(scan_id, {ScanState.DELETING}, ScanState.DONE)
    return report
