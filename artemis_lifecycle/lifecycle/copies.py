"""The archived copies of live files: where they are, which are lost, and making those again."""

from __future__ import annotations

from dataclasses import dataclass

from artemis_lifecycle.cold_tier.handoff import NOTHING_ARCHIVED, read_outcome
from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.cold_tier.paths import PathMapping, read_identity
from artemis_lifecycle.cold_tier.presence import ColdCopies, PromisedCopy, absent_among
from artemis_lifecycle.cold_tier.repair import repair
from artemis_lifecycle.errors import HandoffFailed, NoSuchTable
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.lifecycle.indexes import Indexes
from artemis_lifecycle.lifecycle.reading import Reading
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Step
from artemis_lifecycle.operations.plans import PlanRecord
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.storage.frames import frame_batches


@dataclass(frozen=True)
class Copies:
    """The copies in the cold store that live files have."""

    resources: Resources
    indexes: Indexes
    reading: Reading

    def of_table(self, table: str, table_uuid: str) -> ColdCopies | None:
        """The archived copies of the table's files; None before its first handoff."""
        identity = read_identity(self.resources.live_stores, self.resources.root, table_uuid)
        if identity is None:
            return None

        def cold() -> IndexView | None:
            metadata = self.reading.cold_metadata_of(table_uuid)
            return None if metadata is None else self.indexes.cold(table, metadata)

        return ColdCopies(
            spark=self.resources.spark,
            cold_stores=self.resources.cold_stores,
            mapping=PathMapping(identity),
            ledger=handoff_ledger(self.resources.live_stores, self.resources.root, table_uuid),
            cold=cold,
        )

    def absent(self, plan: ExpirationPlan, record: PlanRecord) -> list[PromisedCopy]:
        """The promised copies of the plan's files that are not in the cold store, with their size, at this moment.

        Raises HandoffFailed when the plan was handed off and the cold tables do not have its snapshots.
        """
        if record.cold_metadata_location not in (None, NOTHING_ARCHIVED):
            self.require_published(plan)
        copies = self.of_table(plan.table, plan.table_uuid)
        if copies is None:
            return []
        batches = frame_batches(plan.files_location, self.resources.live_stores)
        return absent_among(copies, (batch.column("path").to_pylist() for batch in batches))

    def require_published(self, plan: ExpirationPlan) -> None:
        outcome = read_outcome(self.resources.live_stores, self.resources.root, plan.plan_id)
        try:
            tables = self.reading.cold_tables(plan.table_uuid)
        except NoSuchTable:
            tables = None
        there = set() if tables is None else {each.snapshot_id for each in tables.newest.metadata.snapshots}
        if tables is not None and outcome is not None and not there.issuperset(outcome.archived):
            there = {each.snapshot_id for each in tables.whole().snapshots}
        if outcome is None or not there.issuperset(outcome.archived):
            raise HandoffFailed(
                f"Plan {plan.plan_id} was handed off, and the cold tables no longer have all its snapshots",
                table=plan.table,
                untouched="the live table and all its files",
                hint=f"restore the cold catalog's rows and metadata files; before the commit, artemis hand-off "
                f"{plan.plan_id} publishes them again",
            )

    def repair(self, plan: ExpirationPlan, record: PlanRecord, step: Step) -> int:
        """Have every promised copy of the plan's files in cold; how many had to be made again. Raises HandoffFailed."""
        absent = self.absent(plan, record)
        if not absent:
            return 0
        copies = self.of_table(plan.table, plan.table_uuid)
        assert copies is not None  # it said which are absent
        failed = [
            each
            for each in repair(copies, self.resources.live_stores, absent, check=step.check)
            if each.error is not None
        ]
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
