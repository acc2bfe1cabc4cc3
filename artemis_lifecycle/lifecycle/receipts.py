"""Receipts: what happened to every file of a finished deletion."""

from __future__ import annotations

import json
from typing import Any

from artemis_lifecycle.cold_tier.handoff_outcome import read_outcome
from artemis_lifecycle.deletion.batches import DeletionJob
from artemis_lifecycle.deletion.receipt import Receipt, read_receipt, receipt_folder, write_receipt
from artemis_lifecycle.errors import AnotherTable, NoSuchPlan
from artemis_lifecycle.expiration.plan import ExpirationPlan, load_plan
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Steps
from artemis_lifecycle.orphans.result import OrphanScanResult
from artemis_lifecycle.protection.absence import dropped_folder
from artemis_lifecycle.protection.ownership import metadata_locations


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
        "due_at": record.due_at,
        "approved_large": None if record.approved_by is None else f"{record.approved_by}: {record.approved_why}",
        "approved_lost": None
        if record.lost_approved_by is None
        else f"{record.lost_approved_by}: {record.lost_approved_why}",
    }


def id_of(job: ExpirationPlan | OrphanScanResult) -> str:
    """Return the id of a plan or a scan."""
    return job.plan_id if isinstance(job, ExpirationPlan) else job.scan_id
