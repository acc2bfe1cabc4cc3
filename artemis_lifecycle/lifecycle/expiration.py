"""Expiration: the plan, what became of plans, and the commit that removes snapshots from a table's metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from shlex import quote

from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Steps, TableState, Step
from artemis_lifecycle.lifecycle.retention import Retention
from artemis_lifecycle.lifecycle.indexes import Indexes
from artemis_lifecycle.lifecycle.reading import Reading
from artemis_lifecycle.lifecycle.copies import Copies
from artemis_lifecycle.catalogs.commit import no_whole_compare
from artemis_lifecycle.cold_tier.handoff import NOTHING_ARCHIVED, read_outcome
from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.cold_tier.paths import PathMapping, read_identity
from artemis_lifecycle.cold_tier.presence import ColdCopies, PromisedCopy, absent_among
from artemis_lifecycle.cold_tier.repair import repair
from artemis_lifecycle.config.policies import TablePolicy
from artemis_lifecycle.errors import HandoffFailed, NoSuchTable, PlanStateError
from artemis_lifecycle.expiration.commit import ExpirationCommit, made_by, removal
from artemis_lifecycle.expiration.commit import commit_expiration as commit_plan
from artemis_lifecycle.expiration.plan import ExpirationPlan, PlanRequest, load_plan, overtaken
from artemis_lifecycle.expiration.plan import plan_expiration as seal_plan
from artemis_lifecycle.expiration.results import publish_plan
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.plans import UNCOMMITTED, PlanRecord, PlanStatus
from artemis_lifecycle.protection.limits import Amount, require_approval
from artemis_lifecycle.reachability.index import IndexSettings, IndexView
from artemis_lifecycle.reachability.walk import tidy
from artemis_lifecycle.storage.frames import frame_batches


@dataclass(frozen=True)
class Expiration:
    """Plans, and their commits."""

    resources: Resources
    steps: Steps
    retention: Retention
    indexes: Indexes
    reading: Reading
    copies: Copies

    def plan_expiration(
        self,
        table: str,
        now: datetime | None = None,
        older_than: datetime | None = None,
        retain_last: int | None = None,
        snapshot_ids: Sequence[int] | None = None,
    ) -> ExpirationPlan:
        """Decide which snapshots and refs go, find the files that only they reach, and seal both. Changes no table.

        `older_than` replaces the policy's window; `retain_last` its count; `snapshot_ids` adds snapshots by name. The
        plan supersedes the table's other uncommitted one; its rows are also in `<live>.lifecycle.plan_files`.

        If another tool expired snapshots of the uncommitted plan, no new plan reaches their files. While their history
        is not in the cold tier, or if nothing is left but to commit, that plan is returned instead: hand it off and
        commit it, then plan again. Raises PlanStateError then for a call that asks for something else; HandoffFailed
        for a table whose uuid another name has, and whose archive is that one's; Refused in a REST catalog, which could
        not commit the plan safely.
        """
        live = self.resources.config.catalogs.live
        if live.type == "rest":
            # The commit refuses it too, but only after the whole copy to the cold tier.
            raise no_whole_compare(live.name, table)
        state = self.steps.table_state(table)
        instant = self.resources.instant("now", now)
        with self.steps.run(state, "plan") as step:
            self.reading.require_own_archive(table, state.metadata.table_uuid)
            earlier = self._unfinished(state, asked=(older_than, retain_last, snapshot_ids) != (None, None, None))
            if earlier is not None:
                step.counts = _counts(earlier)
                return earlier
            holds, tags = self.retention.guards(state.metadata.table_uuid)
            request = PlanRequest(
                table=table,
                metadata=state.metadata,
                settings=self.retention.settings(table, instant, older_than, retain_last, snapshot_ids),
                now=instant,
                holds=holds,
                tags=tags,
            )
            plan = seal_plan(
                self.resources.spark,
                self.resources.live_stores,
                self.resources.operations,
                request,
                root=self.resources.root,
                rules=self.resources.rules(table),
                night=step.night,
                index=IndexSettings.from_config(self.resources.config, table),
            )
            publish_plan(self.resources.spark, self.resources.config.catalogs.live.name, plan)
            # When nobody waits for it any more.
            tidy(self.resources.live_stores, state.metadata, self.resources.rules(table), self.resources.root)
            step.counts = _counts(plan)
        return plan

    def _unfinished(self, state: TableState, *, asked: bool) -> ExpirationPlan | None:
        """The uncommitted plan, if a new one must not supersede it: another tool expired snapshots of it. `asked`: the
        caller asks for a plan of its own.

        A plan whose own commit the table's metadata proves is recorded as committed: its worker died between the swap
        and the record. An absence of its snapshots alone proves nothing; another tool's expiration looks the same.
        """
        record = self.resources.operations.plans.uncommitted(state.metadata.table_uuid)
        if record is None or record.expired_snapshots == 0:
            return None
        plan, policy = self.plan(record.plan_id), self.resources.config.policy(state.name)
        gone = overtaken(plan, state.metadata)
        if not gone:
            return None
        refs_left = any(ref in state.metadata.refs for ref in plan.expired_refs)
        whole = len(gone) == len(plan.expired_snapshots) and not refs_left
        if whole and made_by(record.swap_base_location, record.swap_updated_ms, state.metadata):
            self.resources.operations.plans.mark(
                record.plan_id,
                UNCOMMITTED,
                PlanStatus.COMMITTED,
                due_in=policy.deletion.grace,
                committed_metadata_location=state.metadata.metadata_location,
                attempts=0,
            )
            return None
        unarchived = record.status == PlanStatus.OPEN and policy.cold_tier.enabled
        if unarchived and asked:
            raise PlanStateError(
                f"Another tool expired {len(gone)} snapshots of plan {plan.plan_id}, which is not handed off yet: no "
                "other plan can archive them",
                table=state.name,
                untouched="the table, and all files of the plan",
                hint=f"artemis hand-off {plan.plan_id}, or close it (artemis close {plan.plan_id}); then plan again",
            )
        return plan if unarchived or (whole and not asked) else None

    def plan(self, plan_id: str) -> ExpirationPlan:
        """The sealed plan of that id. Raises NoSuchPlan."""
        return load_plan(self.resources.spark, self.resources.live_stores, self.resources.operations, plan_id)

    def plans(self, table: str) -> list[PlanRecord]:
        """Every plan of the table, newest first, with its status."""
        return list(self.resources.operations.plans.of_table(self.steps.table_state(table).metadata.table_uuid))

    def uncommitted_plan(self, table: str) -> ExpirationPlan | None:
        """The table's plan that waits for its handoff or its commit, if there is one."""
        record = self.resources.operations.plans.uncommitted(self.steps.table_state(table).metadata.table_uuid)
        return None if record is None else self.plan(record.plan_id)

    def due_plans(self, table: str) -> list[PlanRecord]:
        """Committed plans of the table whose grace is over, oldest first."""
        table_uuid = self.steps.table_state(table).metadata.table_uuid
        due = self.resources.operations.plans.due(self.resources.operations.clock.now())
        return [record for record in due if record.table_uuid == table_uuid]

    def loaded(self, plan: ExpirationPlan | str) -> tuple[ExpirationPlan, PlanRecord]:
        found = self.plan(plan) if isinstance(plan, str) else plan
        return found, self.resources.operations.plans.get(found.plan_id)

    def commit_expiration(self, plan: ExpirationPlan | str, *, dry_run: bool = False) -> ExpirationCommit:
        """Remove the plan's snapshots and refs from the table in one commit, and start the grace of its files.

        Before that, the cold store is asked for the copy of each file that only the plan's snapshots read; a lost copy
        is made again from the live file.

        Runs its guards on the base of every attempt. A committed plan is a no-op that reports what was; so is an empty
        one, with `attempts` 0. `dry_run` runs the guards on the table as it is now and changes nothing.

        Raises PlanStateError (superseded, closed, or not handed off while the table has a cold tier), StalePlan,
        ApprovalNeeded, HandoffFailed (a copy is lost and cannot be made again), CommitConflict, CommitStateUnknown,
        LeaseTaken.
        """
        plan, record = self.loaded(plan)
        if record.status in (PlanStatus.COMMITTED, PlanStatus.DELETING, PlanStatus.DONE):
            return _commit_of(record)
        state = self.steps.table_state(plan.table)
        policy = self.resources.config.policy(plan.table)
        self._require_committable(plan, record, policy)
        require_approval(
            plan.plan_id,
            plan.table,
            policy.deletion,
            self._amount(plan, state.metadata),
            approved_by=record.approved_by,
        )
        if dry_run:
            holds, tags = self.retention.guards(plan.table_uuid)
            change = removal(plan, state.metadata, holds, tags)
            absent = self.copies.absent(plan, record)
            return ExpirationCommit(
                plan_id=plan.plan_id,
                metadata_location=state.metadata.metadata_location,
                attempts=0,
                snapshots_removed=len(change.expire_snapshot_ids) if change else 0,
                refs_removed=len(change.remove_refs) if change else 0,
                absent_copies=len(absent),
                dry_run=True,
            )
        with self.steps.run(state, "commit") as step:
            recopied = self.copies.repair(plan, record, step)
            if plan.expired_snapshots or plan.expired_refs:
                # Under the lock that placing a hold takes: none is placed between the guard and the swap.
                with table_lock(self.resources.operations.engine, plan.table_uuid, table=plan.table):
                    self.resources.require_deployment()
                    done = commit_plan(
                        self.resources.spark,
                        self.resources.live_stores,
                        self.resources.config.catalogs.live.name,
                        plan,
                        lambda: self.retention.guards(plan.table_uuid),
                        lambda base, updated_ms: self._begin_swap(plan, base, updated_ms),
                    )
            else:
                done = ExpirationCommit(plan.plan_id, state.metadata.metadata_location, attempts=0)
            crash_points.reach("commit:swapped")
            step.check()
            record = self.resources.operations.plans.mark(
                plan.plan_id,
                UNCOMMITTED,
                PlanStatus.COMMITTED,
                due_in=policy.deletion.grace,
                committed_metadata_location=done.metadata_location,
                attempts=done.attempts,
            )
            step.counts = {
                "snapshots_removed": done.snapshots_removed,
                "attempts": done.attempts,
                "files_recopied": recopied,
            }
        return replace(done, absent_copies=recopied, committed_at=record.committed_at, due_at=record.due_at)

    def _begin_swap(self, plan: ExpirationPlan, base_location: str, updated_ms: int) -> None:
        self.operations.plans.begin_swap(plan.plan_id, base_location, updated_ms)
        self.operations.table_locations.attempts_of(plan.table_uuid)(base_location, updated_ms)

    def cold_copies(self, table: str, table_uuid: str) -> ColdCopies | None:
        """The archived copies of the table's files; None before its first handoff."""
        identity = read_identity(self.live_stores, self.root, table_uuid)
        if identity is None:
            return None

        def cold() -> IndexView | None:
            metadata = self._cold_metadata(table_uuid)
            return None if metadata is None else self._cold_index(table, metadata)

        return ColdCopies(
            spark=self.spark,
            cold_stores=self.cold_stores,
            mapping=PathMapping(identity),
            ledger=handoff_ledger(self.live_stores, self.root, table_uuid),
            cold=cold,
        )

    def absent_copies(self, plan: ExpirationPlan, record: PlanRecord) -> list[PromisedCopy]:
        """The promised copies of the plan's files that are not in the cold store, with their size, at this moment.

        Raises HandoffFailed when the plan was handed off and the cold tables do not have its snapshots.
        """
        if record.cold_metadata_location not in (None, NOTHING_ARCHIVED):
            self._require_published(plan)
        copies = self.cold_copies(plan.table, plan.table_uuid)
        if copies is None:
            return []
        batches = frame_batches(plan.files_location, self.live_stores)
        return absent_among(copies, (batch.column("path").to_pylist() for batch in batches))

    def _require_published(self, plan: ExpirationPlan) -> None:
        outcome = read_outcome(self.live_stores, self.root, plan.plan_id)
        try:
            tables = self.cold_tables(plan.table_uuid)
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

    def _copy_again(self, plan: ExpirationPlan, record: PlanRecord, step: Step) -> int:
        """Have every promised copy of the plan's files in cold; how many had to be made again. Raises HandoffFailed."""
        absent = self.absent_copies(plan, record)
        if not absent:
            return 0
        copies = self.cold_copies(plan.table, plan.table_uuid)
        assert copies is not None  # it said which are absent
        failed = [each for each in repair(copies, self.live_stores, absent, check=step.check) if each.error is not None]
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

    def _amount(self, plan: ExpirationPlan, metadata: TableMetadata) -> Amount:
        current = metadata.current_snapshot
        data = None if current is None else current.summary.count("total-data-files")
        deletes = None if current is None else current.summary.count("total-delete-files")
        left = None
        if current is not None and plan.summary.files:
            left = self.indexes.live(plan.table, metadata).entries_of([current.snapshot_id])
        return Amount(
            files=plan.summary.files,
            size_in_bytes=plan.summary.size_in_bytes,
            files_in_table=None if data is None else data + plan.summary.files,
            left_files=left,
            current_files=None if data is None else data + (deletes or 0),
        )

    def _require_committable(self, plan: ExpirationPlan, record: PlanRecord, policy: TablePolicy) -> None:
        if record.status not in (PlanStatus.OPEN, PlanStatus.HANDED_OFF):
            raise PlanStateError(
                f"Plan {plan.plan_id} is {record.status}",
                table=plan.table,
                untouched="the table and all files",
                hint=f"plan again: artemis plan {quote(plan.table)}",
            )
        if record.status == PlanStatus.OPEN and policy.cold_tier.enabled and plan.expired_snapshots:
            raise PlanStateError(
                f"Plan {plan.plan_id} is not handed off to the cold tier",
                table=plan.table,
                untouched="the table and all files",
                hint=f"artemis hand-off {plan.plan_id}, then commit",
            )


def _counts(plan: ExpirationPlan) -> dict[str, int]:
    return {
        "snapshots_kept": plan.summary.snapshots_kept,
        "snapshots_expired": plan.summary.snapshots_expired,
        "files": plan.summary.files,
        "bytes": plan.summary.size_in_bytes,
    }


def _commit_of(record: PlanRecord) -> ExpirationCommit:
    assert record.committed_metadata_location is not None
    return ExpirationCommit(
        plan_id=record.plan_id,
        metadata_location=record.committed_metadata_location,
        attempts=record.attempts or 0,
        snapshots_removed=record.expired_snapshots,
        refs_removed=len(record.expired_refs),
        committed_at=record.committed_at,
        due_at=record.due_at,
    )
