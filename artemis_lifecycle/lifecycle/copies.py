"""The archived copies of live files: where they are, which are lost, and how to copy those again."""

from __future__ import annotations

from artemis_lifecycle.cold_tier.handoff_outcome import NOTHING_ARCHIVED, read_outcome
from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.cold_tier.paths import PathMapping, read_identity
from artemis_lifecycle.cold_tier.presence import ColdCopies, RecordedCopy, absent_among
from artemis_lifecycle.cold_tier.repair import repair
from artemis_lifecycle.errors import HandoffFailed, NoSuchTable
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Step
from artemis_lifecycle.lifecycle.tiers import cold_index, cold_metadata, cold_tables
from artemis_lifecycle.operations.plans import PlanRecord
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.storage.frames import frame_batches


def cold_copies(resources: Resources, table: str, table_uuid: str) -> ColdCopies | None:
    """Return the archived copies of the table's files; None before its first handoff."""
    identity = read_identity(resources.live_stores, resources.root, table_uuid)
    if identity is None:
        return None

    def cold() -> IndexView | None:
        metadata = cold_metadata(resources, table_uuid)
        return None if metadata is None else cold_index(resources, table, metadata)

    return ColdCopies(
        spark=resources.start_spark,
        live_stores=resources.live_stores,
        cold_stores=resources.cold_stores,
        mapping=PathMapping(identity),
        ledger=handoff_ledger(resources.live_stores, resources.root, table_uuid),
        cold=cold,
    )


def absent_copies(resources: Resources, plan: ExpirationPlan, record: PlanRecord) -> list[RecordedCopy]:
    """Return the required copies of the plan's files that are missing from the cold store, by size, at this moment.

    Raises HandoffFailed if the plan was handed off and the cold tables do not have its snapshots.
    """
    if record.cold_metadata_location not in (None, NOTHING_ARCHIVED):
        require_published(resources, plan)
    copies = cold_copies(resources, plan.table, plan.table_uuid)
    if copies is None:
        return []
    batches = frame_batches(plan.files_location, resources.live_stores)
    return absent_among(copies, (batch.column("path").to_pylist() for batch in batches))


def require_published(resources: Resources, plan: ExpirationPlan) -> None:
    """Raise HandoffFailed if the cold tables lack snapshots that the plan's handoff archived."""
    outcome = read_outcome(resources.live_stores, resources.root, plan.plan_id)
    try:
        tables = cold_tables(resources, plan.table_uuid)
    except NoSuchTable:
        tables = None
    in_cold = set() if tables is None else {each.snapshot_id for each in tables.newest.metadata.snapshots}
    if tables is not None and outcome is not None and not in_cold.issuperset(outcome.archived):
        in_cold = {each.snapshot_id for each in tables.whole().snapshots}
    if outcome is None or not in_cold.issuperset(outcome.archived):
        raise HandoffFailed(
            f"Plan {plan.plan_id} was handed off, but the cold tables no longer have all its snapshots",
            table=plan.table,
            untouched="the live table and all its files",
            hint=f"restore the cold catalog's rows and metadata files; before the commit, artemis hand-off "
            f"{plan.plan_id} publishes them again, or says which file to register",
        )


def copy_again(resources: Resources, plan: ExpirationPlan, record: PlanRecord, step: Step) -> int:
    """Copy again what cold has lost of the plan's files. Return how many files. Raises HandoffFailed."""
    absent = absent_copies(resources, plan, record)
    if not absent:
        return 0
    copies = cold_copies(resources, plan.table, plan.table_uuid)
    assert copies is not None  # it reported which are absent
    done = repair(copies, resources.live_stores, absent, check=step.check)
    failed = [each for each in done if each.error is not None]
    if failed:
        raise HandoffFailed(
            f"{len(absent)} archived copies are lost in cold, and {len(failed)} of them cannot be made again; the "
            f"first: {failed[0].error}",
            table=plan.table,
            path=failed[0].copy.destination,
            untouched="the live table and all its files",
            hint="restore the file in the cold store, or the live file that it is a copy of, then rerun",
        )
    return len(absent)
