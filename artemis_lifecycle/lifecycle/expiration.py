"""Expiration: the plan, what became of plans, and the commit that removes snapshots from a table's metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from artemis_lifecycle.config import TablePolicy
from artemis_lifecycle.deletion.guards import require_approval
from artemis_lifecycle.errors import PlanStateError
from artemis_lifecycle.expiration.commit import ExpirationCommit, made_by, removal
from artemis_lifecycle.expiration.commit import commit_expiration as commit_plan
from artemis_lifecycle.expiration.plan import ExpirationPlan, PlanRequest, load_plan, overtaken
from artemis_lifecycle.expiration.plan import plan_expiration as seal_plan
from artemis_lifecycle.expiration.results import publish_plan
from artemis_lifecycle.lifecycle.base import Base, Look
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.plans import UNCOMMITTED, PlanRecord, PlanStatus
from artemis_lifecycle.reachability.index import IndexSettings
from artemis_lifecycle.reachability.walk import tidy


class Expiration(Base):
    """Plans, and their commits."""

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
        commit it, then plan again. Raises PlanStateError then for a call that asks for something else.
        """
        look = self._look(table)
        instant = self._instant("now", now)
        with self._step(look, "plan") as step:
            earlier = self._unfinished(look, asked=(older_than, retain_last, snapshot_ids) != (None, None, None))
            if earlier is not None:
                step.counts = _counts(earlier)
                return earlier
            holds, tags = self._guards(look.metadata.table_uuid)
            request = PlanRequest(
                table=table,
                metadata=look.metadata,
                settings=self._settings(table, instant, older_than, retain_last, snapshot_ids),
                now=instant,
                holds=holds,
                tags=tags,
            )
            plan = seal_plan(
                self.spark,
                self.live_stores,
                self.operations,
                request,
                root=self.root,
                rules=self.rules(table),
                night=step.night,
                index=IndexSettings.from_config(self.config, table),
            )
            publish_plan(self.spark, self.config.catalogs.live.name, plan)
            # When nobody waits for it any more.
            tidy(self.live_stores, look.metadata, self.rules(table), self.root)
            step.counts = _counts(plan)
        return plan

    def _unfinished(self, look: Look, *, asked: bool) -> ExpirationPlan | None:
        """The uncommitted plan, if a new one must not supersede it: another tool expired snapshots of it. `asked`: the
        caller asks for a plan of its own.

        A plan whose own commit the table's metadata proves is recorded as committed: its worker died between the swap
        and the record. An absence of its snapshots alone proves nothing; another tool's expiration looks the same.
        """
        record = self.operations.plans.uncommitted(look.metadata.table_uuid)
        if record is None or record.expired_snapshots == 0:
            return None
        plan, policy = self.plan(record.plan_id), self.config.policy(look.name)
        gone = overtaken(plan, look.metadata)
        if not gone:
            return None
        refs_left = any(ref in look.metadata.refs for ref in plan.expired_refs)
        whole = len(gone) == len(plan.expired_snapshots) and not refs_left
        if whole and made_by(record.swap_base_location, record.swap_updated_ms, look.metadata):
            self.operations.plans.mark(
                record.plan_id,
                UNCOMMITTED,
                PlanStatus.COMMITTED,
                due_in=policy.deletion.grace,
                committed_metadata_location=look.metadata.metadata_location,
                attempts=0,
            )
            return None
        unarchived = record.status == PlanStatus.OPEN and policy.cold_tier.enabled
        if unarchived and asked:
            raise PlanStateError(
                f"Another tool expired {len(gone)} snapshots of plan {plan.plan_id}, which is not handed off yet: no "
                "other plan can archive them",
                table=look.name,
                untouched="the table, and all files of the plan",
                do=f"artemis hand-off {plan.plan_id}, or close it (artemis close {plan.plan_id}); then plan again",
            )
        return plan if unarchived or (whole and not asked) else None

    def plan(self, plan_id: str) -> ExpirationPlan:
        """The sealed plan of that id. Raises NoSuchPlan."""
        return load_plan(self.spark, self.live_stores, self.operations, plan_id)

    def plans(self, table: str) -> list[PlanRecord]:
        """Every plan of the table, newest first, with its status."""
        return list(self.operations.plans.of_table(self._look(table).metadata.table_uuid))

    def uncommitted_plan(self, table: str) -> ExpirationPlan | None:
        """The table's plan that waits for its handoff or its commit, if there is one."""
        record = self.operations.plans.uncommitted(self._look(table).metadata.table_uuid)
        return None if record is None else self.plan(record.plan_id)

    def due_plans(self, table: str) -> list[PlanRecord]:
        """Committed plans of the table whose grace is over, oldest first."""
        table_uuid = self._look(table).metadata.table_uuid
        due = self.operations.plans.due(self.operations.clock.now())
        return [record for record in due if record.table_uuid == table_uuid]

    def _loaded(self, plan: ExpirationPlan | str) -> tuple[ExpirationPlan, PlanRecord]:
        found = self.plan(plan) if isinstance(plan, str) else plan
        return found, self.operations.plans.get(found.plan_id)

    def commit_expiration(self, plan: ExpirationPlan | str, *, dry_run: bool = False) -> ExpirationCommit:
        """Remove the plan's snapshots and refs from the table in one commit, and start the grace of its files.

        Runs its guards on the base of every attempt. A committed plan is a no-op that reports what was; so is an empty
        one, with `attempts` 0. `dry_run` runs the guards on the table as it is now and changes nothing.

        Raises PlanStateError (superseded, closed, or not handed off while the table has a cold tier), StalePlan,
        ApprovalNeeded, CommitConflict, CommitStateUnknown, LeaseTaken.
        """
        plan, record = self._loaded(plan)
        if record.status in (PlanStatus.COMMITTED, PlanStatus.DELETING, PlanStatus.DONE):
            return _commit_of(record)
        look = self._look(plan.table)
        policy = self.config.policy(plan.table)
        self._require_committable(plan, record, policy)
        current = look.metadata.current_snapshot
        total = current.summary.total_data_files if current is not None else None
        require_approval(
            plan.plan_id,
            plan.table,
            policy.deletion,
            files=plan.summary.files,
            size_in_bytes=plan.summary.size_in_bytes,
            files_in_table=None if total is None else total + plan.summary.files,
            approved_by=record.approved_by,
        )
        if dry_run:
            holds, tags = self._guards(plan.table_uuid)
            change = removal(plan, look.metadata, holds, tags)
            return ExpirationCommit(
                plan_id=plan.plan_id,
                metadata_location=look.metadata.metadata_location,
                attempts=0,
                snapshots_removed=len(change.expire_snapshot_ids) if change else 0,
                refs_removed=len(change.remove_refs) if change else 0,
                dry_run=True,
            )
        with self._step(look, "commit") as step:
            if plan.expired_snapshots or plan.expired_refs:
                # Under the lock that placing a hold takes: none is placed between the guard and the swap.
                with table_lock(self.operations.engine, plan.table_uuid, table=plan.table):
                    done = commit_plan(
                        self.spark,
                        self.live_stores,
                        self.config.catalogs.live.name,
                        plan,
                        lambda: self._guards(plan.table_uuid),
                        lambda base, updated_ms: self.operations.plans.begin_swap(plan.plan_id, base, updated_ms),
                    )
            else:
                done = ExpirationCommit(plan.plan_id, look.metadata.metadata_location, attempts=0)
            crash_points.reach("commit:swapped")
            step.check()
            record = self.operations.plans.mark(
                plan.plan_id,
                UNCOMMITTED,
                PlanStatus.COMMITTED,
                due_in=policy.deletion.grace,
                committed_metadata_location=done.metadata_location,
                attempts=done.attempts,
            )
            step.counts = {"snapshots_removed": done.snapshots_removed, "attempts": done.attempts}
        return replace(done, committed_at=record.committed_at, due_at=record.due_at)

    def _require_committable(self, plan: ExpirationPlan, record: PlanRecord, policy: TablePolicy) -> None:
        if record.status not in (PlanStatus.OPEN, PlanStatus.HANDED_OFF):
            raise PlanStateError(
                f"Plan {plan.plan_id} is {record.status}",
                table=plan.table,
                untouched="the table and all files",
                do=f"plan again: artemis plan {plan.table}",
            )
        if record.status == PlanStatus.OPEN and policy.cold_tier.enabled and plan.expired_snapshots:
            raise PlanStateError(
                f"Plan {plan.plan_id} is not handed off to the cold tier",
                table=plan.table,
                untouched="the table and all files",
                do=f"artemis hand-off {plan.plan_id}, then commit",
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
