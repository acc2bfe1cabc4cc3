"""The cold tier: the handoff of expired snapshots, restores, the deep archive and its thaws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from shlex import quote

from artemis_lifecycle.cold_tier import deep_archive as thawing
from artemis_lifecycle.cold_tier.cold_tables import unrecorded_identity
from artemis_lifecycle.cold_tier.deep_archive import DeepArchiveContext, DeepArchived, keep_readable
from artemis_lifecycle.cold_tier.deep_archive import deep_archive as move_to_archive
from artemis_lifecycle.cold_tier.handoff import Handoff, RecoveredArchive
from artemis_lifecycle.cold_tier.handoff import hand_off as archive
from artemis_lifecycle.cold_tier.handoff import recover_archive as publish_again
from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.cold_tier.paths import identities, is_archive, no_cold_table, read_identity
from artemis_lifecycle.cold_tier.presence import RecordedCopy, repair
from artemis_lifecycle.cold_tier.reads import Route, Selector
from artemis_lifecycle.cold_tier.restore import restore as bring_back
from artemis_lifecycle.cold_tier.restore_ids import RestoreContext, Restored, RestoreRequest
from artemis_lifecycle.cold_tier.scrub import ColdScrub, ScrubContext, scrub
from artemis_lifecycle.cold_tier.transfer import HandoffInput
from artemis_lifecycle.commits.gate import Gate
from artemis_lifecycle.contracts import InputSnapshot
from artemis_lifecycle.errors import (
    BadInput,
    LeaseTaken,
    NoSuchSnapshot,
    PlanStateError,
    StorageError,
)
from artemis_lifecycle.expiration.plan import ExpirationPlan, read_base, unarchived
from artemis_lifecycle.expiration.tags_and_holds import thaw_views
from artemis_lifecycle.expiration.verdicts import COPY_VERIFIED, Verdict
from artemis_lifecycle.metadata.types import NO_SUMMARY, TableMetadata
from artemis_lifecycle.operations.cold_tier import LAPSED, OVER, ThawRecord, ThawState, new_id
from artemis_lifecycle.operations.decisions import NewDecision, person
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.plans import UNCOMMITTED, PlanStatus
from artemis_lifecycle.operations.tables import require_said
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.session.contexts import (
    active_holds,
    cold_context,
    cold_copies,
    cold_index,
    cold_metadata,
    cold_tables,
    context_of,
    copy_again,
    handoff_context,
    live_index,
    require_newest_archive,
)
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle.walk.expiration import Expiration
from artemis_lifecycle.walk.plan_checks import PLAN_CHECKS
from artemis_lifecycle.walk.reading import Reading, require_readable


@dataclass(frozen=True)
class RenewedIdentities:
    """How many archived files were compared with the live store, and had another time or token with the same content.
    `others` are paths with other files than the archived ones."""

    table: str
    compared: int
    renewed: int
    others: list[str]


@dataclass(frozen=True)
class ColdTier:
    """Archives expired snapshots, checks the archive, and restores from it."""

    resources: Resources
    steps: Steps
    expiration: Expiration
    reading: Reading

    def hand_off(self, plan: ExpirationPlan | str, *, dry_run: bool = False) -> Handoff:
        plan, record = self.expiration.loaded(plan)
        if record.status not in UNCOMMITTED:
            place = record.cold_metadata_location
            archived, done = place is not None, Handoff(plan.plan_id, plan.table, cold_metadata_location=place)
            if archived and not dry_run and record.status in (PlanStatus.COMMITTED, PlanStatus.DELETING):
                plan, state = self.steps.resumed(plan)
                with self.steps.run(state, "handoff") as step:
                    step.counts = {"files_recopied": copy_again(self.resources, plan, record, step)}
                return replace(done, table=plan.table, repaired_files=step.counts["files_recopied"])
            if archived or not plan.expired_snapshots:
                return replace(done, dry_run=dry_run)
            raise PlanStateError(
                f"Plan {plan.plan_id} is {record.status.replace('_', ' ')}, and was not handed off",
                table=plan.table,
                untouched="both tiers",
                hint=f"plan again: artemis plan {quote(plan.table)}",
            )
        plan, state = self.steps.resumed(plan)
        self.expiration.checks.require(plan, record, PLAN_CHECKS)
        worker = self.steps.worker("handoff")
        with self.steps.run(state, "handoff", dry_run=dry_run) as step:
            self.reading.require_own_archive(plan.table, plan.table_uuid)
            if record.lost_approved_by is None:
                self.expiration.require_kept(plan, state)
            context = handoff_context(self.resources, plan.table_uuid, step.check)
            approved = set(record.lost_approved_snapshots or ())
            wanted = self.expiration.to_archive(plan, state.metadata, approved)
            request = HandoffInput(
                plan_id=plan.plan_id,
                table=plan.table,
                table_uuid=plan.table_uuid,
                base_metadata_location=plan.base_metadata_location,
                snapshot_ids=wanted,
                thinned=tuple(sorted(set(plan.expired_snapshots).difference(wanted))),
                read_base=lambda: read_base(self.resources.live_stores, plan),
                current=state.metadata,
                # Not by this run: whoever ends an interrupted handoff writes the same metadata.
                seen_ms=milliseconds(record.planned_at) if record.planned_at <= self.resources.clock.now() else 0,
                named=lambda ids: self.resources.operations.plans.name_lost(plan.plan_id, approved.union(ids)),
            )
            in_table = {snapshot.snapshot_id for snapshot in state.metadata.snapshots}
            # One that stands for the others of its period is not left out without an approval.
            alone = in_table.union(wanted if wanted != plan.expired_snapshots else ())
            if not dry_run:
                self.recall_moves(plan.table, plan.table_uuid)
                # Until `_keep_readable`: a run that dies in between leaves copies of published snapshots archived.
                moves = self.resources.operations.deep_moves
                moves.mark(plan.table_uuid, {each.move_id: wanted for each in moves.of_table(plan.table_uuid)})
            done = archive(
                context,
                request,
                approved=approved,
                overtaken=[snapshot for snapshot in plan.expired_snapshots if snapshot not in alone],
                dry_run=dry_run,
            )
            if dry_run:
                step.counts = {"would_copy_files": done.would_copy_files, "would_copy_bytes": done.would_copy_bytes}
                return done
            location = done.cold_metadata_location
            if location is not None:
                # Copies of earlier handoffs are only known from the ledger; the store must still have them.
                published = replace(record, cold_metadata_location=location)
                done = replace(done, repaired_files=copy_again(self.resources, plan, published, step))
                self._keep_readable(plan, state.metadata, step.check)
                if done.archived:
                    # Not in the cold table: its metadata is the same whoever ends an interrupted handoff.
                    self.expiration.recording.record_expiration(
                        plan.table, plan.table_uuid, plan.plan_id, worker, location, operation="handoff"
                    )
                self.resources.operations.plans.mark(
                    plan.plan_id, UNCOMMITTED, PlanStatus.HANDED_OFF, cold_metadata_location=done.cold_metadata_location
                )
                if done.verified_files or done.archived:
                    text = f"{done.verified_files:,} copies were read back and compared by their handoff."
                    self.expiration.checks.store(plan.plan_id, Verdict(COPY_VERIFIED, True, text))
            step.counts = {
                "snapshots_archived": len(done.archived),
                "files_copied": done.copied_files,
                "bytes_copied": done.copied_bytes,
                "files_recopied": done.repaired_files,
            }
        return done

    def _keep_readable(self, plan: ExpirationPlan, live: TableMetadata, check: Callable[[], None]) -> None:
        """No snapshot that a handoff has archived needs a thaw from the beginning."""
        copies = cold_copies(self.resources, plan.table, plan.table_uuid)
        if copies is not None and self.resources.operations.deep_moves.of_table(plan.table_uuid):
            context = self._deep_context(plan.table, live, check)
            archived = {each.snapshot_id for each in context.cold.current().snapshots}
            wanted = archived.intersection(plan.expired_snapshots)
            keep_readable(context, copies, self.resources.live_stores, wanted)
            moves, left = self.resources.operations.deep_moves, set(plan.expired_snapshots) - archived
            moves.mark(plan.table_uuid, {}, instead_of=left)

    def recall_all_moves(self) -> None:
        """Record again what was moved to the deep archive and the operations database does not know, of all tables."""
        resources = self.resources
        for folder in resources.live_stores.children(f"{resources.root}/cold")[0]:
            table_uuid = folder.rstrip("/").rpartition("/")[2]
            identity = read_identity(resources.live_stores, resources.root, table_uuid)
            # Without a cold table, as before `recover_archive`, nobody reads them.
            if identity is not None and cold_tables(resources, table_uuid) is not None:
                self.recall_moves(identity.live_table, table_uuid, ask=True)

    def recall_moves(self, table: str, table_uuid: str, *, ask: bool = False) -> tuple[int, ...]:
        """The same for one table. `ask`: list its archive, too, and return the snapshots that cannot be read."""
        resources = self.resources
        forgotten = thawing.forgotten_moves(resources.live_stores, resources.operations, resources.root, table_uuid)
        if forgotten or ask:
            context, to_class = self._recall_context(table, table_uuid), resources.config.deep_archive.storage_class
            with table_lock(resources.operations.engine, table_uuid, table=table):
                thawing.recall(context, forgotten, to_class)
                if ask:
                    return thawing.recall_archived(context, to_class)
        return ()

    def _recall_context(self, table: str, table_uuid: str) -> DeepArchiveContext:
        # It moves nothing: what keeps a file is not known.
        resources, (cold, protection) = self.resources, cold_context(self.resources, table, table_uuid)
        return DeepArchiveContext(
            protection=protection,
            readers=protection,
            table=table,
            table_uuid=table_uuid,
            root=resources.root,
            cold=cold,
            ledger=handoff_ledger(resources.live_stores, resources.root, table_uuid),
            live=(),
            holds=lambda: (),
            who=resources.owner,
        )

    def _deep_context(self, table: str, live: TableMetadata, check: Callable[[], None]) -> DeepArchiveContext:
        resources, context = self.resources, self._recall_context(table, live.table_uuid)
        stores, rows = resources.live_stores, resources.cold_catalog.pointers
        return replace(
            context,
            # One that cannot be read stops only the moves of its own files.
            protection=replace(
                context.protection, isolated=lambda name: is_archive(stores, resources.root, name, rows().get(name))
            ),
            readers=replace(
                context_of(resources, table),
                own=context.protection.own,
                # A move has no hurry: a catalog that does not answer may have a reader since.
                catalog=resources.readers_of(table, strict=True),
            ),
            live=(live_index(resources, table, live), *self._waiting(table, live)),
            holds=lambda: (
                *active_holds(resources, context.table_uuid),
                *thaw_views(resources.operations.thaws.list(context.table_uuid)),
            ),
            check=check,
        )

    def restore(
        self,
        table: str,
        snapshot_id: int | None = None,
        branch: str = "",
        *,
        as_of: datetime | None = None,
        why: str = "",
        who: str | None = None,
        ticket: str | None = None,
    ) -> Restored:
        """Restore an expired snapshot's rows to the live table, as a new snapshot on a new `branch`. Its files are
        copied from the cold tier, and verified against the records of their archiving. In place of its id, `as_of`
        selects what was current at an instant.

        The branch's snapshot has no parent. Its summary has the id of the original snapshot and the `ticket`. `who`
        (default: user and host) and `why` are recorded in Postgres. Queries of the branch use the table's current
        schema. If the live table still has the snapshot, the branch is created on it. Another run after a kill resumes;
        another run after success changes nothing.

        If the table's catalog was put back in time, its numbers first go on above all that the archive has used
        (`numbered_anew`). The branch is read once before the restore succeeds.

        Raises NoSuchSnapshot if neither tier has it; InDeepArchive if it must be thawed first; BadInput for main, or a
        name that exists; RestoreFailed, with the table unchanged, if a file cannot be restored, or if a table whose
        catalog was put back has given ids of the snapshot's columns or rows to others; RestoreFailed, too, if the new
        branch cannot be read; LeaseTaken, Busy, CommitConflict.
        """
        state, selector = self.steps.table_state(table), Selector(as_of, snapshot_id)
        if selector == Selector():
            raise BadInput(
                "No snapshot is selected", table=table, untouched="the table", hint="give its id, or an instant"
            )
        table_uuid = state.metadata.table_uuid
        with self.steps.run(state, "restore", pausable=False) as step:
            # Under the lease, no handoff or expiration changes the tiers any more.
            live, tables = self.steps.again(state).metadata, self.reading.past.own_cold_tables(table, table_uuid)
            if snapshot_id is None:
                snapshot_id = self.reading.found(table, live, selector).snapshot_id
                assert snapshot_id is not None  # only without a selector
            holder = None if tables is None else tables.holding(snapshot_id)
            cold = None if holder is None else holder.metadata
            archived = None if cold is None else cold.snapshot(snapshot_id)
            if archived is not None and live.snapshot(snapshot_id) is None:
                require_readable(table, self.reading.described(table, table_uuid, Route("cold", snapshot_id)))
            source = archived or live.snapshot(snapshot_id)
            summary = NO_SUMMARY if source is None else source.summary
            operator = who or person()
            worker = replace(self.steps.worker("restore"), trigger_type="manual", operator=operator, ticket=ticket)
            done = bring_back(
                RestoreContext(
                    spark=self.resources.spark,
                    live_stores=self.resources.live_stores,
                    cold_stores=self.resources.cold_stores,
                    operations=self.resources.operations,
                    live_catalog=self.resources.config.catalogs.of(table).name,
                    commit_table=self.resources.committer(table),
                    managed=self.resources.config.catalogs.of(table).managed,
                    takes_whole_metadata=self.resources.rest_of(table) is None,
                    root=self.resources.root,
                    check=step.check,
                    require_lineage=partial(Gate(self.resources).require_pass, table),
                    noted=partial(Gate(self.resources).noted, table),
                    archive=None if tables is None else tables.newest.metadata,
                    rules=self.resources.rules(table),
                ),
                RestoreRequest(
                    table=table,
                    table_uuid=table_uuid,
                    snapshot_id=snapshot_id,
                    branch=branch,
                    who=operator,
                    why=why,
                    summary=worker.reading(
                        InputSnapshot(snapshot_id),
                        rows=summary.count("total-records") or 0,
                        size_in_bytes=summary.count("total-files-size") or 0,
                    ).summary(),
                ),
                live,
                cold,
                read_identity(self.resources.live_stores, self.resources.root, table_uuid),
            )
            step.counts = {"files_copied": done.copied_files, "bytes_copied": done.copied_bytes}
        return done

    def deep_archive(self, table: str, now: datetime | None = None, *, dry_run: bool = False) -> DeepArchived:
        """Move the files of cold snapshots past `cold_tier.retain` to the archive, at the same paths; only files that
        no other cold snapshot of any table has, nor a live table. If the policy has `then: keep`, nothing moves.

        A hold on a snapshot, or on the table, prevents its move. `now` may only be in the past. A dry run reports what
        would move. Raises NoSuchTable before the first handoff; Refused if a hold or another table's need arises in the
        meantime; UnreadableMetadata, also of a cold table that no handoff published; LeaseTaken, Busy.
        """
        instant = self.resources.past(now, table)
        policy, archive = self.resources.config.policy(table).cold_tier, self.resources.config.deep_archive
        state = self.steps.table_state(table)
        with self.steps.run(state, "deep_archive", dry_run=dry_run) as step:
            live = self.steps.again(state).metadata
            table_uuid = live.table_uuid
            require_newest_archive(self.resources, table, table_uuid, step.check)
            if not dry_run:
                self.recall_moves(table, table_uuid)
            context = self._deep_context(table, live, step.check)
            if not policy.enabled or policy.then == "keep":
                return DeepArchived(table, archive.storage_class, cutoff=instant - policy.retain, dry_run=dry_run)
            done = move_to_archive(context, policy.retain, instant, archive.storage_class, dry_run=dry_run)
            step.state = "pending" if done.failed_files else "done"
            step.counts = {"files_moved": done.moved_files, "bytes": done.due_bytes, "failed": done.failed_files}
        return done

    def _waiting(self, table: str, live: TableMetadata) -> list[IndexView]:
        """Return what open plans still have to archive, but another tool expired."""
        resources, found = self.resources, list[IndexView]()
        for plan in resources.operations.plans.holding(live.table_uuid):
            if plan.status is PlanStatus.OPEN and plan.expired_snapshots:
                left = unarchived(resources.live_stores, self.expiration.plan(plan.plan_id), live)
                if left is not None:
                    root, rules = f"{resources.root}/unarchived", resources.rules(table)
                    found.append(indexed(resources.start_spark, resources.live_stores, left, rules, root))
        return found

    def scrub_cold(self, table: str, now: datetime | None = None, *, limit: int | None = None) -> ColdScrub:
        """Read the due cold files of the table (at most about `limit`) and compare each with its checksum, so that each
        one is read once in `cold_tier.scrub_every`. Resumes where the last run stopped. Reads nothing if the policy
        says never.

        A missing or damaged file is copied again while the live table has it. Otherwise it is recorded as lost, until
        it matches its record again. Files in the deep archive are checked only for existence and size. Takes the
        table's lease only to copy; if the table is busy, the next run tries again.

        Raises NoSuchTable before the first handoff; UnreadableMetadata if a cold table's metadata is lost; StorageError
        if a store does not answer, or the ledger of copies is lost.
        """
        instant, every = self.resources.instant("now", now), self.resources.config.policy(table).cold_tier.scrubs
        state = self.steps.table_state(table)
        table_uuid = state.metadata.table_uuid
        if every is None:
            return ColdScrub(table, open_losses=len(self.resources.operations.scrubs.losses(table_uuid)))
        # It only reads, possibly for hours: the lease is for steps that change something.
        with self.steps.run(state, "cold_scrub", dry_run=True) as step:
            copies, cold = cold_copies(self.resources, table, table_uuid), cold_metadata(self.resources, table_uuid)
            if copies is None or cold is None:
                raise no_cold_table(table)
            if cold.snapshots and copies.ledger.is_empty():
                raise StorageError(
                    "The record of what was copied to the cold tier is lost: there are no checksums to compare with",
                    table=table,
                    path=copies.ledger.folder,
                    untouched="both tiers",
                    hint="restore the folder; until then only the cold table's metadata shows what must be there",
                )

            def again(lost: Sequence[RecordedCopy]) -> dict[str, str]:
                try:
                    with self.steps.run(state, "cold_repair") as repairing:
                        done = repair(copies, self.resources.live_stores, lost, check=repairing.check)
                except LeaseTaken as taken:
                    return {copy.destination: f"not tried yet: {taken.what}" for copy in lost}
                return {each.copy.destination: each.error for each in done if each.error is not None}

            done = scrub(
                ScrubContext(
                    spark=self.resources.start_spark,
                    cold_stores=self.resources.cold_stores,
                    ledger=copies.ledger,
                    scrubs=self.resources.operations.scrubs,
                    table=table,
                    table_uuid=table_uuid,
                    repair=again,
                    check=step.check,
                ),
                every,
                instant,
                limit,
            )
            step.counts = {
                "files_read": done.checked_files,
                "bytes_read": done.checked_bytes,
                "repaired": done.repaired,
                "lost": done.lost,
            }
            # Afterwards: the copies of the newer metadata are checked, too.
            require_newest_archive(self.resources, table, table_uuid, step.check)
        return done

    def recover_archive(self, table: str, *, who: str, why: str) -> RecoveredArchive:
        """Publish the newest metadata of the table's archive again, after the cold catalog was put back to an earlier
        state, in which it lacks snapshots or gave a name of the archive to another table: then under a free name.
        `table` may be a dropped one, by its name or uuid. Changes nothing if the catalog has the newest. Raises
        NoSuchTable before the first handoff; HandoffFailed, LeaseTaken; CommitConflict if somebody else publishes at
        that moment."""
        try:
            state = self.steps.table_state(table)
        except BadInput as error:
            table, table_uuid = self._dropped(table, error)
            with table_lock(self.resources.operations.engine, table_uuid, table=table) as lock:
                done = self._recovered(table, table_uuid, who, why, lock.check, None)
        else:
            table_uuid = state.metadata.table_uuid
            with self.steps.run(state, "recover_archive") as step:
                done = self._recovered(table, table_uuid, who, why, step.check, state.metadata)
                step.counts = {"published": len(done.published)}
        # It takes the table's lock itself.
        return replace(done, unreadable=self.recall_moves(table, table_uuid, ask=True))

    def _recovered(
        self, table: str, table_uuid: str, who: str, why: str, check: Callable[[], None], live: TableMetadata | None
    ) -> RecoveredArchive:
        context = handoff_context(self.resources, table_uuid, check)
        identity = read_identity(self.resources.live_stores, self.resources.root, table_uuid)
        if identity is None and live is not None:
            identity = unrecorded_identity(context, table, live)
        if identity is None:
            raise no_cold_table(table)
        with self.resources.operations.engine.begin() as connection:
            NewDecision("recover-archive", table_uuid, who, why).record(connection)
        return publish_again(context, table, identity)

    def renew_identities(self, table: str, *, who: str, why: str) -> RenewedIdentities:
        """Compare the sources of all archived copies that live still has with their records, after the whole live store
        was copied, replicated or re-encrypted: times and tokens changed, but not the content. Each file that differs is
        read once. Another run continues. Raises NoSuchTable before the first handoff."""
        state = self.steps.table_state(table)
        table_uuid = state.metadata.table_uuid
        with self.steps.run(state, "renew_identities") as step:
            copies = cold_copies(self.resources, table, table_uuid)
            if copies is None:
                raise no_cold_table(table)
            with self.resources.operations.engine.begin() as connection:
                NewDecision("renew-identities", table_uuid, who, why).record(connection)
            done = RenewedIdentities(table, *copies.renew_all(step.check))
            step.counts = {"files_compared": done.compared, "files_renewed": done.renewed}
        return done

    def request_thaw(
        self,
        table: str,
        snapshot_ids: Sequence[int] = (),
        *,
        case_id: str,
        requester: str,
        reason: str,
        as_of: datetime | None = None,
        tag: str | None = None,
        days: int | None = None,
    ) -> ThawRecord:
        """Request that archived snapshots be readable for some days: those with the given ids, or the one that `as_of`
        or `tag` finds. Lists their files; requests nothing from the store until a second person approves
        (`approve_thaw`).

        `table` may be a dropped one, by its name or uuid: its snapshots are given by their ids, and engines read them
        in the cold catalog.

        Raises BadInput if case, requester or reason is missing, or the snapshot is not in the archive; NoSuchTable;
        NoSuchSnapshot; NaiveDatetime.
        """
        resources = self.resources
        require_said(table, case_id=case_id, requester=requester, reason=reason)
        lasting = resources.config.deep_archive.days if days is None else days
        if lasting < 1:
            raise BadInput("A thaw lasts for at least a day", table=table, hint="give --days 1")
        if snapshot_ids and (as_of is not None or tag is not None):
            raise BadInput("Two selectors at once", table=table, hint="use one of them")
        selectors = [Selector(snapshot_id=each) for each in dict.fromkeys(snapshot_ids)] or [Selector(as_of, tag=tag)]
        try:
            live = self.steps.table_state(table).metadata
        except BadInput as error:
            table, table_uuid = self._dropped(table, error)
            wanted = list(resources.operations.deep_moves.snapshots(table_uuid, among=snapshot_ids))
            if not wanted or len(wanted) < len(set(snapshot_ids)):
                raise BadInput(
                    "Of a dropped table, snapshots are thawed by their ids, and these are not all in the archive",
                    table=table,
                    hint="list them in the cold catalog: SELECT snapshot_id FROM CATALOG.NAMESPACE.TABLE.snapshots",
                ) from error
        else:
            table_uuid, wanted = live.table_uuid, self._archived(table, live, selectors)
        cold = cold_tables(resources, table_uuid)
        if cold is None:
            raise no_cold_table(table)
        unknown = [each for each in wanted if cold.holding(each) is None]
        if unknown:
            raise NoSuchSnapshot(
                f"The cold tier has no snapshot {unknown[0]}",
                table=table,
                hint=f"artemis history --cold {quote(table)}",
            )
        thaw_id = new_id("thaw")
        folder = f"{resources.root}/thaws/{table_uuid}/{thaw_id}"
        moves = resources.operations.deep_moves.of_table(table_uuid)
        view = cold_index(resources, table, cold.whole())
        files, size = thawing.seal_files(resources.start_spark, view, wanted, moves, resources.live_stores, folder)
        if not files:
            # A handoff that died had marked them, in case it had to.
            resources.operations.deep_moves.mark(table_uuid, {}, instead_of=wanted)
            raise BadInput(
                "No file of these snapshots is in the archive, so they can be read now", table=table, hint="read them"
            )
        return resources.operations.thaws.request(
            thaw_id,
            table_uuid,
            table,
            snapshot_ids=wanted,
            case_id=case_id,
            requester=requester,
            reason=reason,
            days=lasting,
            files_location=folder,
            files=files,
            size_in_bytes=size,
            approve_within=resources.config.deep_archive.approve_within,
        )

    def _archived(self, table: str, live: TableMetadata, selectors: Sequence[Selector]) -> list[int]:
        """Return the ids of these snapshots. Raises BadInput if one can be read without a thaw."""
        routes = [
            self.reading.described(table, live.table_uuid, self.reading.found(table, live, each)) for each in selectors
        ]
        readable = next((route for route in routes if route.tier != "deep-archive"), None)
        if readable is not None:
            # Where the catalog came back from a backup, live may name files that are gone.
            raise BadInput(
                f"Snapshot {readable.snapshot_id} is in the {readable.tier} tier, and can be read now",
                table=table,
                hint=f"read it: artemis read {quote(table)} --snapshot-id {readable.snapshot_id}; or, if a file of it "
                f"is gone there, thaw it as a dropped table's: artemis thaw {live.table_uuid} --snapshot-id "
                f"{readable.snapshot_id}",
            )
        return [route.snapshot_id for route in routes if route.snapshot_id is not None]

    def _dropped(self, table: str, error: BadInput) -> tuple[str, str]:
        """Return the name and the uuid of the only dropped table with that name or uuid, also if its files are gone, or
        if a new operations database knows only its archive. Raises `error` if there is none."""
        names = [each.name for each in self.resources.config.catalogs.iceberg]
        every = [each for name in names for each in self.resources.operations.known_tables.of_catalog(name)]
        found = {each.table_uuid: each.table for each in every if table in (each.table, each.table_uuid)}
        if not found:
            known = identities(self.resources.live_stores, self.resources.root)
            found = {each.table_uuid: each.live_table for each in known if table in (each.live_table, each.table_uuid)}
        if not found:
            raise error
        if len(found) > 1:
            raise BadInput(
                f"Several tables of that name were dropped: {', '.join(sorted(found))}",
                table=table,
                hint="give the uuid of one",
            ) from error
        table_uuid, name = next(iter(found.items()))
        return name, table_uuid

    def approve_thaw(self, thaw_id: str, who: str, why: str = "") -> ThawRecord:
        """Record a second person's approval, and request every file from the store. Another run after a kill requests
        the rest.

        Raises Refused for the requester's own approval, and for a thaw that lapsed or ended; NoSuchPlan; StorageError.
        """
        thaw = self.resources.operations.thaws.approve(thaw_id, who, why)
        return self._asked(thaw)

    def _asked(self, thaw: ThawRecord) -> ThawRecord:
        if thaw.asked_at is not None:
            return thaw
        # The verb asked the catalog; a server without properties of namespaces has the record on the table.
        self.resources.require_deployment(thaw.table, record=False)
        retrieval = self.resources.config.deep_archive.retrieval
        thawing.ask(
            self.resources.start_spark,
            self.resources.cold_stores,
            self.resources.live_stores,
            thaw.files_location,
            days=thaw.days,
            retrieval=retrieval,
        )
        return self.resources.operations.thaws.asked(thaw.thaw_id)

    def refuse_thaw(self, thaw_id: str, who: str, why: str) -> ThawRecord:
        """End a thaw that is unwanted or no longer needed. From then on nothing reads through it, although S3 keeps its
        readable copies until their days are over. Raises NoSuchPlan, BadInput if who or why is missing."""
        thaw = self.resources.operations.thaws.get(thaw_id)
        require_said(thaw.table, who=who, why=why)
        return self._ended(thaw, who, why)

    def _ended(self, thaw: ThawRecord, who: str | None, why: str) -> ThawRecord:
        if thaw.asked_at is not None and thaw.ended_at is None:
            self.resources.require_deployment(thaw.table, record=False)
            others = [
                other.files_location
                for other in self.resources.operations.thaws.list(thaw.table_uuid)
                if other.thaw_id != thaw.thaw_id and other.asked_at is not None
            ]
            thawing.end(self.resources.cold_stores, self.resources.live_stores, thaw.files_location, others)
        return self.resources.operations.thaws.end(thaw.thaw_id, who, why)

    def follow_thaw(self, thaw_id: str) -> ThawRecord:
        """Check a thaw and record its state: readable if all its files are; ended if its days are over or it was not
        approved in time. Resumes a thaw whose approval was interrupted by a kill."""
        resources = self.resources
        thaws, now = resources.operations.thaws, resources.operations.clock.now()
        thaw = thaws.get(thaw_id)
        if thaw.state is ThawState.REQUESTED and now >= thaw.lapses_at:
            return self._ended(thaw, None, LAPSED)
        if thaw.state is ThawState.APPROVED:
            thaw = self._asked(thaw)
        if thaw.state is ThawState.THAWING:
            stores = resources.cold_stores, resources.live_stores
            found = thawing.progress(resources.start_spark, *stores, thaw.files_location)
            if found.done:
                # If the store reports no end, assume the requested days.
                thaw = thaws.readable(thaw_id, found.readable_until or now + timedelta(days=thaw.days))
        if thaw.state is ThawState.READABLE and thaw.readable_until is not None and now >= thaw.readable_until:
            return self._ended(thaw, None, OVER)
        return thaw

    def thaws_to_follow(self) -> list[ThawRecord]:
        """Return thaws for which `follow_thaw` has something to do now. Checks a few files of each, and starts no
        Spark."""
        now = self.resources.operations.clock.now()

        def is_due(thaw: ThawRecord) -> bool:
            if thaw.state is ThawState.REQUESTED:
                return now >= thaw.lapses_at
            if thaw.state is ThawState.THAWING:
                return thawing.may_be_done(self.resources.cold_stores, self.resources.live_stores, thaw.files_location)
            return thaw.readable_until is None or now >= thaw.readable_until

        return [thaw for thaw in self.resources.operations.thaws.list() if is_due(thaw)]
