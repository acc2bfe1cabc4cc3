"""Expiration: the plan, and the commit that removes its snapshots from a table's metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial

from artemis_lifecycle.audit.past import Past
from artemis_lifecycle.audit.recording import Recording
from artemis_lifecycle.catalogs.rest import require_provable
from artemis_lifecycle.catalogs.rest_commit import RestCommitter
from artemis_lifecycle.cold_tier.handoff import read_outcome
from artemis_lifecycle.commits.gate import Gate
from artemis_lifecycle.config.policies import TablePolicy
from artemis_lifecycle.contracts import CommitLineage
from artemis_lifecycle.contracts.summary import COMMIT_PROPERTY, OPERATION
from artemis_lifecycle.deletion.identities import first_look
from artemis_lifecycle.errors import (
    LifecycleError,
    PlanStateError,
    StalePlan,
    StorageError,
    TooLarge,
)
from artemis_lifecycle.expiration.commit import (
    ExpirationCommit,
    RemovedParts,
    Unused,
    Usage,
    made_by,
    removal,
    successor,
)
from artemis_lifecycle.expiration.commit import commit_expiration as commit_plan
from artemis_lifecycle.expiration.plan import (
    ExpirationPlan,
    PlanRequest,
    Wanted,
    WhatIf,
    base_metadata,
    load_plan,
    not_committable,
    overtaken,
    refuse_unexpirable,
)
from artemis_lifecycle.expiration.plan import plan_expiration as seal_plan
from artemis_lifecycle.expiration.plan import what_if as seal_nothing
from artemis_lifecycle.expiration.tags_and_holds import to_archive
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.known_tables import Swaps
from artemis_lifecycle.operations.locks import TableLock, table_lock
from artemis_lifecycle.operations.plans import UNCOMMITTED, PlanRecord, PlanStatus
from artemis_lifecycle.protection.limits import Amount, require_approval
from artemis_lifecycle.reachability.index import IndexSettings
from artemis_lifecycle.reachability.index.lookups import entries_of
from artemis_lifecycle.reachability.walk import tidy
from artemis_lifecycle.retention.rules import Keepers, RetentionSettings, decide, view_of
from artemis_lifecycle.session.contexts import (
    absent_copies,
    copy_again,
    keepers,
    live_index,
    present_index,
    retention_settings,
    was_main,
)
from artemis_lifecycle.session.policies import EXPIRY, effective_policy
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Step, Steps, TableState
from artemis_lifecycle.storage.bounded import bounded_json
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle.walk.plan_checks import PLAN_CHECKS, PlanChecks
from artemis_lifecycle.walk.reading import Reading
from artemis_lifecycle.walk.reporting import expiration_notes

# --- cleaning ---------------------------------------------------------------------------------------------------------
# Removes schemas, partition specs and sort orders that nothing uses from a table's metadata, with an expiration's
# commit; also where no snapshot leaves.


@dataclass(frozen=True)
class Cleaning:
    """What one expiration may clean. `confirm` raises if the table's lease is lost; None for a dry run, which records
    nothing."""

    resources: Resources
    table: str
    confirm: Callable[[], None] | None

    def __call__(self, base: TableMetadata, leaving: Collection[int]) -> Unused:
        """Return what to remove from `base`, together with the snapshots `leaving`. What leaves is recorded first, so
        that the past keeps its columns."""
        return self._found(base, leaving)[0]

    def is_due(self, base: TableMetadata) -> bool:
        """Return True if there is something to remove from `base`, or to record as unused, where no snapshot leaves."""
        return any(self._found(base, ()))

    def _found(self, base: TableMetadata, leaving: Collection[int]) -> tuple[Unused, bool]:
        """Return what to remove, and whether that changes the record of what was."""
        policy = self.resources.config.policy(self.table)
        if not policy.retention.clean_metadata:
            return Unused(), False
        compares_whole = self.resources.config.catalogs.of(self.table).type != "rest"
        if not compares_whole:
            # REST's protocol removes no sort orders.
            base = replace(base, sort_orders={})
        now = self.resources.clock.now()
        before_ms = milliseconds(now - policy.orphans.min_age)
        known = removed_parts(self.resources, base.table_uuid)
        unused = self._usage.unused(base, leaving, known, before_ms)
        parts = known.extended(base, unused, milliseconds(now))
        if parts != known and self.confirm is not None:
            self.confirm()
            path = _path(self.resources, base.table_uuid)
            self.resources.live_stores.write(path, parts.to_json(), overwrite=True)
        return parts.removable(unused, before_ms, compares_whole=compares_whole), parts != known

    @cached_property
    def _usage(self) -> Usage:
        return Usage(self.resources.live_stores)


def removed_parts(resources: Resources, table_uuid: str) -> RemovedParts:
    """Return what cleaning has taken from the table's metadata. Raises StorageError if the record is damaged."""
    path = _path(resources, table_uuid)
    if resources.live_stores.head(path) is None:
        return RemovedParts()
    try:
        return RemovedParts.from_json(resources.live_stores.read(path))
    except (ValueError, KeyError, AttributeError) as error:
        raise StorageError(
            f"The record of a table's removed schemas is damaged: {error}",
            path=path,
            untouched="the table",
            hint="restore the file; or move it aside, and only the columns of removed schemas are lost",
        ) from error


def _path(resources: Resources, table_uuid: str) -> str:
    return f"{resources.root}/history/{table_uuid}/removed.json"


@dataclass(frozen=True)
class Expiration:
    """Plans expirations, and commits them."""

    resources: Resources
    steps: Steps
    reading: Reading
    checks: PlanChecks
    recording: Recording
    past: Past

    def plan_expiration(self, table: str, wanted: Wanted) -> ExpirationPlan:
        rest = self._require_plannable(table)
        state = self.steps.table_state(table)
        instant = self.resources.instant("now", wanted.now)
        with self.steps.run(state, "plan") as step:
            self.reading.require_own_archive(table, state.metadata.table_uuid)
            # A ref may have been put back when the step began.
            state = state if rest is None else self.steps.again(state)
            asked = wanted.is_specific
            earlier = self._unfinished(state, asked=asked) or self._approved(state, asked=asked)
            if isinstance(earlier, ExpirationPlan):
                step.counts = plan_counts(earlier)
                return earlier
            request = self._request(table, state, wanted._replace(now=instant))
            plan = seal_plan(
                self.resources.start_spark,
                self.resources.live_stores,
                self.resources.operations,
                request,
                root=self.resources.root,
                rules=self.resources.rules(table),
                window_day=step.window_day,
                stale=earlier,
                index=IndexSettings.from_config(self.resources.config, table),
            )
            record = self.resources.operations.plans.get(plan.plan_id)
            self.checks.check(plan, record, PLAN_CHECKS)
            if record.files:
                catalog = self.resources.config.catalogs.results
                self.resources.operations.publications.plan(catalog, plan.plan_id, record.planned_at)
            self.past.look(table, state.metadata, confirm=step.check)
            # Nothing depends on this.
            tidy(self.resources.live_stores, state.metadata, self.resources.rules(table), self.resources.root)
            step.counts = plan_counts(plan)
        return plan

    def what_if(
        self,
        table: str,
        now: datetime | None = None,
        older_than: datetime | None = None,
        retain_last: int | None = None,
        snapshot_ids: Sequence[int] | None = None,
    ) -> WhatIf:
        """Return what `plan_expiration` with the same arguments would remove, and seal nothing: a plan that waits, also
        an approved one, stays as it is. Raises as it does; NotApplicable for tables of other formats."""
        self._require_plannable(table)
        state = self.steps.table_state(table)
        wanted = Wanted(now, older_than, retain_last, snapshot_ids)
        with self.steps.run(state, "plan", dry_run=True):
            return seal_nothing(
                self.resources.start_spark,
                self.resources.live_stores,
                self._request(table, state, wanted),
                root=self.resources.root,
                rules=self.resources.rules(table),
                index=IndexSettings.from_config(self.resources.config, table),
            )

    def _require_plannable(self, table: str) -> RestCommitter | None:
        """Return the committer of a table of a REST catalog. Raises what forbids an expiration of the table."""
        rest = self.resources.rest_of(table)
        if rest is not None:
            # Before anything is copied for it.
            require_provable(rest.answer(table), self.resources.config.policy(table).deletion.grace, table)
        effective_policy(self.resources, table).require(EXPIRY)
        return rest

    def _request(self, table: str, state: TableState, wanted: Wanted) -> PlanRequest:
        return PlanRequest(
            table=table,
            metadata=state.metadata,
            settings=retention_settings(self.resources, table, *wanted[1:]),
            now=self.resources.instant("now", wanted.now),
            keepers=keepers(self.resources, table, state.metadata.table_uuid),
        )

    def proven(self, plan: ExpirationPlan, done: ExpirationCommit | None = None) -> ExpirationCommit | None:
        """Return the plan's commit through a REST catalog; None if none of its attempts is proven to have happened.
        What only the commit itself knows is from `done`."""
        found = self.resources.operations.rest_commits.proven(plan.table_uuid, plan.plan_id)
        if not found:
            return None
        put_back = tuple(ref for each in found for ref in each.refs_put_back)
        removed = {number for each in found for number in each.snapshot_ids}
        return ExpirationCommit(
            plan.plan_id,
            str(found[-1].metadata_location),
            attempts=len(self.resources.operations.rest_commits.of_table(plan.table_uuid, plan.plan_id)),
            snapshots_removed=len(removed - {each.snapshot_id for each in put_back}),
            refs_removed=len({ref for each in found for ref in each.refs}),
            schemas_removed=0 if done is None else done.schemas_removed,
            specs_removed=0 if done is None else done.specs_removed,
            overtaken=tuple(each for each in plan.expired_snapshots if each not in removed),
            put_back=put_back,
        )

    def skip_if_idle(self, table: str) -> bool:
        state = self.steps.table_state(table)
        metadata, operations = state.metadata, self.resources.operations
        if operations.plans.uncommitted(metadata.table_uuid) is not None:
            return False
        refuse_unexpirable(metadata, table)
        now = self.resources.clock.now()
        known = keepers(self.resources, table, metadata.table_uuid)
        settings = retention_settings(self.resources, table)
        decision = decide(view_of(metadata), settings, milliseconds(now), **known)
        due = decision.expired or decision.expired_refs or Cleaning(self.resources, table, None).is_due(metadata)
        if due and EXPIRY not in effective_policy(self.resources, table).disabled:
            return False
        policy = self.resources.config.policy(table)
        day, digest = policy.quiet_window.day(now), policy.retention.digest
        operations.steps.skip(metadata.table_uuid, table, "plan", day, self.resources.owner, digest)
        return True

    def settle(self, record: PlanRecord) -> None:
        """Record a plan's commit whose worker died between the swap and the record, where the table proves it."""
        if record.status in UNCOMMITTED and record.swap_base_location is not None:
            with suppress(LifecycleError):
                self._unfinished(self.steps.table_state(record.table), asked=False)

    def _unfinished(self, state: TableState, *, asked: bool) -> ExpirationPlan | None:
        """Return the uncommitted plan if a new one must not supersede it, because another tool expired snapshots of it.
        `asked` means that the caller requests a specific plan.

        If the table's metadata proves that a plan's own commit succeeded, the plan is recorded as committed, and its
        expiration in the lineage ledger: its worker died between the swap and the record. Missing snapshots alone prove
        nothing, because another tool's expiration looks the same.
        """
        record = self.resources.operations.plans.uncommitted(state.metadata.table_uuid)
        if record is None or record.expired_snapshots == 0:
            return None
        plan, policy = self.plan(record.plan_id), self.resources.config.policy(state.name)
        gone = overtaken(plan, state.metadata)
        proven = self.proven(plan)
        if not gone and proven is None:
            return None
        refs_left = any(ref in state.metadata.refs for ref in plan.expired_refs)
        whole = len(gone) == len(plan.expired_snapshots) and not refs_left
        made = whole and made_by(record.swap_base_location, record.swap_updated_ms, state.metadata)
        if made or proven is not None:
            swapped = (
                successor(record.swap_base_location, state.metadata) if proven is None else proven.metadata_location
            )
            lineage = self._lineage_of(state.metadata, record)
            first_look(self.resources.live_stores, plan.files_location)
            with table_lock(self.resources.operations.engine, plan.table_uuid, table=plan.table):
                self.recording.record_expiration(state.name, plan.table_uuid, plan.plan_id, lineage, swapped)
                self.resources.operations.plans.mark(
                    record.plan_id,
                    UNCOMMITTED,
                    PlanStatus.COMMITTED,
                    due_in=policy.deletion.grace,
                    committed_metadata_location=state.metadata.metadata_location if proven is None else swapped,
                    attempts=0 if proven is None else proven.attempts,
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

    def _lineage_of(self, metadata: TableMetadata, record: PlanRecord) -> CommitLineage:
        """Return the lineage of a plan's swap: as the table notes it, where a gate made it do so, else of this step."""
        try:
            noted = bounded_json(metadata.properties.get(COMMIT_PROPERTY, "{}"), metadata.metadata_location)
            if noted.get("base") == record.swap_base_location:
                return CommitLineage.parse(noted)
        except (ValueError, TypeError, AttributeError, TooLarge):
            pass  # Another tool wrote the property.
        return self.steps.worker("expiration")

    def _approved(self, state: TableState, *, asked: bool) -> ExpirationPlan | str | None:
        """Return the uncommitted plan if a person approved it and it still fits the table. Return the id of an approved
        plan that is stale: a new one supersedes it and needs another approval. Raises PlanStateError if the caller
        requests a specific plan while an approved one waits."""
        record = self.resources.operations.plans.uncommitted(state.metadata.table_uuid)
        if record is None or not record.is_approved:
            return None
        plan = self.plan(record.plan_id)
        try:
            removal(plan, state.metadata, *self._guards(plan))
        except StalePlan:
            return plan.plan_id
        if asked:
            raise PlanStateError(
                f"Plan {plan.plan_id} is approved, and waits to be committed",
                table=state.name,
                untouched="the approved plan, the table and all files",
                hint=f"first commit it, artemis commit {plan.plan_id}, or close it, artemis close {plan.plan_id}",
            )
        return plan

    def plan(self, plan_id: str) -> ExpirationPlan:
        return load_plan(self.resources.start_spark, self.resources.live_stores, self.resources.operations, plan_id)

    def loaded(self, plan: ExpirationPlan | str) -> tuple[ExpirationPlan, PlanRecord]:
        """Return the plan and its current record. Raises NoSuchPlan."""
        found = self.plan(plan) if isinstance(plan, str) else plan
        return found, self.resources.operations.plans.get(found.plan_id)

    def commit_expiration(self, plan: ExpirationPlan | str, *, dry_run: bool = False) -> ExpirationCommit:
        plan, record = self.loaded(plan)
        if record.status in (PlanStatus.COMMITTED, PlanStatus.DELETING, PlanStatus.DONE):
            proven = self.proven(plan)
            return replace(commit_of(record), put_back=() if proven is None else proven.put_back)
        plan, state = self.steps.resumed(plan)
        policy = self.resources.config.policy(plan.table)
        self._require_committable(plan, record, policy, dry_run=dry_run)
        effective_policy(self.resources, plan.table).require(EXPIRY)
        self._require_left_out_gone(plan, record, state)
        self.checks.require(plan, record)
        self.require_kept(plan, state)
        require_approval(
            plan.plan_id,
            plan.table,
            policy.deletion,
            self._amount(plan, state.metadata),
            approved_by=record.approved_by,
        )
        if dry_run:
            change = removal(plan, state.metadata, *self._guards(plan))
            absent = absent_copies(self.resources, plan, record)
            would = Cleaning(self.resources, plan.table, None)
            unused = would(state.metadata, change.expire_snapshot_ids if change else ())
            return ExpirationCommit(
                plan_id=plan.plan_id,
                metadata_location=state.metadata.metadata_location,
                attempts=0,
                snapshots_removed=len(change.expire_snapshot_ids) if change else 0,
                refs_removed=len(change.remove_refs) if change else 0,
                schemas_removed=len(unused.schemas),
                specs_removed=len(unused.specs),
                orders_removed=len(unused.orders),
                absent_copies=len(absent),
                dry_run=True,
            )
        worker = self.steps.worker("expiration")
        with self.steps.run(state, "commit") as step:
            recopied = copy_again(self.resources, plan, record, step)
            cleaning = Cleaning(self.resources, plan.table, step.check)
            expires = bool(plan.expired_snapshots or plan.expired_refs)
            done = self.proven(plan)
            if plan.expired_snapshots:
                # Who wrote a snapshot, and when it was current, leaves with it.
                metadata = self.steps.again(state).metadata
                self.recording.record(plan.table, metadata)
                self.past.record(plan.table, metadata, confirm=step.check)
            # From now on, somebody may put another file at one of these paths.
            first_look(self.resources.live_stores, plan.files_location)

            def guards() -> tuple[Keepers, RetentionSettings]:
                self._require_left_out_gone(plan, record, self.steps.again(state))
                return self._guards(plan)

            # Placing a hold and closing the plan take the same lock: neither comes between guard, swap and record.
            with table_lock(self.resources.operations.engine, plan.table_uuid, table=plan.table) as lock:
                if done is None and (expires or cleaning(state.metadata, ())):
                    self.resources.require_deployment(plan.table)
                    rest = self.resources.rest_of(plan.table)
                    done = commit_plan(
                        self.resources.committer(plan.table) if rest is None else rest.of_plan(plan.plan_id),
                        self.resources.live_stores,
                        plan,
                        guards,
                        self._swaps(plan, lock, step),
                        cleaning,
                        Gate(self.resources).noted(plan.table, {**worker.summary(), OPERATION: "expiration"}),
                        partial(expiration_notes, self.resources, plan),
                    )
                    done = self.proven(plan, done) or done
                elif done is None:
                    done = ExpirationCommit(plan.plan_id, state.metadata.metadata_location, attempts=0)
                crash_points.reach("commit:swapped")
                step.check()
                if expires:
                    self.recording.record_expiration(
                        plan.table, plan.table_uuid, plan.plan_id, worker, done.metadata_location
                    )
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
                "refs_put_back": len(done.put_back),
            }
        return replace(done, absent_copies=recopied, committed_at=record.committed_at, due_at=record.due_at)

    def _require_left_out_gone(self, plan: ExpirationPlan, record: PlanRecord, state: TableState) -> None:
        """Raise StalePlan if the table has snapshots again that the handoff left out, because another tool had expired
        them, or if the policy of now archives some that it left out: nobody archived what they read."""
        outcome = read_outcome(self.resources.live_stores, self.resources.root, plan.plan_id)
        # A handoff that is run again calls them lost.
        left_out = set() if outcome is None else {*outcome.overtaken, *outcome.lost}
        left_out -= set(record.lost_approved_snapshots or ())
        back = sorted(each.snapshot_id for each in state.metadata.snapshots if each.snapshot_id in left_out)
        if back:
            raise StalePlan(
                "The handoff left out snapshots that another tool had expired, and the table has them again: "
                f"{', '.join(map(str, back))}",
                table=plan.table,
                untouched="the table and all files",
                hint=f"artemis close {plan.plan_id}, then plan again: the next handoff archives them",
            )
        thinned = set[int]() if outcome is None else {*outcome.thinned}
        named = sorted(thinned.intersection(self.to_archive(plan, state.metadata))) if thinned else []
        if named:
            raise StalePlan(
                "The policy of now (cold_tier.archive) archives snapshots of the plan that its handoff left out: "
                f"{', '.join(map(str, named[:10]))}",
                table=plan.table,
                untouched="the table and all files",
                hint=f"artemis close {plan.plan_id}, then plan again: the next handoff archives them",
            )

    def to_archive(self, plan: ExpirationPlan, now: TableMetadata, approved: Collection[int] = ()) -> tuple[int, ...]:
        """Return which of the plan's snapshots the policy archives: of each period the newest that is still there."""
        archive_what = self.resources.config.policy(plan.table).cold_tier.archive
        if archive_what == "every" or not plan.expired_snapshots:
            return plan.expired_snapshots
        base = base_metadata(self.resources.live_stores, plan)
        expired = [each for each in base.snapshots if each.manifest_list and now.snapshot(each.snapshot_id) is None]
        heads = self.resources.live_stores.heads([each.manifest_list or "" for each in expired])
        gone = {each.snapshot_id for each, head in zip(expired, heads, strict=True) if head is None}.union(approved)
        left = tuple(each for each in base.snapshots if each.snapshot_id not in gone)
        known = partial(was_main, self.resources, plan.table, plan.table_uuid)
        return to_archive(plan.expired_snapshots, view_of(replace(base, snapshots=left)), known, archive_what)

    def require_kept(self, plan: ExpirationPlan, state: TableState) -> None:
        """Raise UnreadableMetadata if a metadata file that the snapshots outside the plan need is missing. The handoff
        finds what only the plan's snapshots need: a person can approve that loss."""
        with self.steps.advised(plan.table, state.metadata):
            present_index(self.resources, plan.table, state.metadata, without=plan.expired_snapshots)

    def _guards(self, plan: ExpirationPlan) -> tuple[Keepers, RetentionSettings]:
        """Return what may keep a plan's snapshots by now: holds, tags, and the table's policy with the plan's own
        arguments."""
        policy, made = retention_settings(self.resources, plan.table), plan.settings
        policy = replace(
            policy, older_than_ms=made.older_than_ms, retain_last=made.retain_last, explicit_ids=made.explicit_ids
        )
        return keepers(self.resources, plan.table, plan.table_uuid), policy

    def _swaps(self, plan: ExpirationPlan, lock: TableLock, step: Step) -> Swaps:
        swaps, plans = self.resources.swaps(plan.table, plan.table_uuid), self.resources.operations.plans

        def begin(base_location: str, updated_ms: int) -> None:
            plans.begin_swap(plan.plan_id, base_location, updated_ms)
            swaps.begin(base_location, updated_ms)
            # The guards were read under them.
            lock.check()
            step.check()

        return replace(swaps, begin=begin)

    def _amount(self, plan: ExpirationPlan, metadata: TableMetadata) -> Amount:
        current = metadata.current_snapshot
        data = None if current is None else current.summary.count("total-data-files")
        deletes = None if current is None else current.summary.count("total-delete-files")
        left = None
        if current is not None and plan.summary.files:
            left = entries_of(live_index(self.resources, plan.table, metadata), [current.snapshot_id])
        return Amount(
            files=plan.summary.files,
            size_in_bytes=plan.summary.size_in_bytes,
            files_in_table=None if data is None else data + plan.summary.files,
            left_files=left,
            current_files=None if data is None else data + (deletes or 0),
        )

    def _require_committable(
        self, plan: ExpirationPlan, record: PlanRecord, policy: TablePolicy, *, dry_run: bool
    ) -> None:
        if record.status not in (PlanStatus.OPEN, PlanStatus.HANDED_OFF):
            raise not_committable(plan, record.status)
        not_archived = record.status == PlanStatus.OPEN and policy.cold_tier.enabled and plan.expired_snapshots
        if not_archived and not dry_run:
            raise PlanStateError(
                f"Plan {plan.plan_id} is not handed off to the cold tier",
                table=plan.table,
                untouched="the table and all files",
                hint=f"artemis hand-off {plan.plan_id}, then commit",
            )


def plan_counts(plan: ExpirationPlan) -> dict[str, int]:
    """Return the counts of a plan for a step record."""
    return {
        "snapshots_kept": plan.summary.snapshots_kept,
        "snapshots_expired": plan.summary.snapshots_expired,
        "files": plan.summary.files,
        "bytes": plan.summary.size_in_bytes,
    }


def commit_of(record: PlanRecord) -> ExpirationCommit:
    """Return the result of a commit that is recorded."""
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
