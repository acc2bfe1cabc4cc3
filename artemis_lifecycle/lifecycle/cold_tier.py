"""The cold tier: the handoff of expired snapshots, bringing one back, the deep archive and its thaws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier import thaw as thawing
from artemis_lifecycle.cold_tier.deep_archive import DeepArchiveContext, DeepArchived
from artemis_lifecycle.cold_tier.deep_archive import deep_archive as move_to_archive
from artemis_lifecycle.cold_tier.handoff import Handoff
from artemis_lifecycle.cold_tier.handoff import hand_off as archive
from artemis_lifecycle.cold_tier.handoff_context import HandoffContext, HandoffInput
from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.cold_tier.paths import no_cold_table, read_identity
from artemis_lifecycle.cold_tier.presence import PromisedCopy
from artemis_lifecycle.cold_tier.reads import Route, Selector
from artemis_lifecycle.cold_tier.reads import route as find_route
from artemis_lifecycle.cold_tier.repair import repair
from artemis_lifecycle.cold_tier.restore import restore as bring_back
from artemis_lifecycle.cold_tier.restore_context import RestoreContext, Restored, RestoreRequest
from artemis_lifecycle.cold_tier.scrub import ColdScrub, ScrubContext, scrub
from artemis_lifecycle.errors import BadInput, LeaseTaken, PlanStateError, StorageError
from artemis_lifecycle.expiration.plan import ExpirationPlan, base_metadata, read_base
from artemis_lifecycle.expiration.promises import thaw_views, to_archive
from artemis_lifecycle.lifecycle.expiration import Expiration
from artemis_lifecycle.lifecycle.reading import require_readable
from artemis_lifecycle.metadata.types import NO_SUMMARY
from artemis_lifecycle.operations.decisions import person
from artemis_lifecycle.operations.deep_archive import LAPSED, OVER, ThawRecord, ThawState, new_id
from artemis_lifecycle.operations.plans import UNCOMMITTED, PlanStatus
from artemis_lifecycle.operations.restores import RestoreRecord
from artemis_lifecycle.operations.scrubs import ColdLoss
from artemis_lifecycle.operations.texts import require_said
from artemis_lifecycle.retention.rules import view_of
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.frames import read_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ColdTier(Expiration):
    """What goes to the cold tier, and what comes back."""

    def hand_off(self, plan: ExpirationPlan | str) -> Handoff:
        """Copy all that the plan's snapshots read to the cold tier, verify every copy, and publish them in the cold
        catalog in one commit. Goes on where an earlier run stopped. For a plan that is handed off, until its files are
        deleted, it copies again what cold has lost of them since, and publishes what the cold tables have lost.

        The policy may archive one snapshot of each calendar unit; those that it leaves out are `thinned`.
        Snapshots that somebody else expired since the plan are archived if their files are still there, and stay out as
        `overtaken` if not. A table without a cold tier, and a plan without snapshots, are no-ops. Raises HandoffFailed
        (the plan stays open and holds its files), PlanStateError, UnreadableMetadata, LeaseTaken.
        """
        plan, record = self._loaded(plan)
        if record.status not in UNCOMMITTED:
            archived = record.cold_metadata_location is not None
            if archived and record.status in (PlanStatus.COMMITTED, PlanStatus.DELETING):
                with self._step(self._look(plan.table), "handoff") as step:
                    step.counts = {"files_recopied": self._copy_again(plan, record, step)}
                return Handoff(
                    plan.plan_id,
                    plan.table,
                    cold_metadata_location=record.cold_metadata_location,
                    repaired_files=step.counts["files_recopied"],
                )
            if archived or not plan.expired_snapshots:
                return Handoff(plan.plan_id, plan.table, cold_metadata_location=record.cold_metadata_location)
            raise PlanStateError(
                f"Plan {plan.plan_id} is {record.status.replace('_', ' ')}, and was not handed off",
                table=plan.table,
                untouched="both tiers",
                hint=f"plan again: artemis plan {quote(plan.table)}",
            )
        look = self._look(plan.table)
        with self._step(look, "handoff") as step:
            self._require_own_archive(plan.table, plan.table_uuid)
            context = HandoffContext(
                spark=self.spark,
                live_stores=self.live_stores,
                cold_stores=self.cold_stores,
                config=self.config,
                batches=self.operations.handoffs,
                check=step.check,
            )
            wanted = self._to_archive(plan)
            request = HandoffInput(
                plan_id=plan.plan_id,
                table=plan.table,
                table_uuid=plan.table_uuid,
                base_metadata_location=plan.base_metadata_location,
                snapshot_ids=wanted,
                thinned=tuple(sorted(set(plan.expired_snapshots).difference(wanted))),
                read_base=lambda: read_base(self.live_stores, plan),
            )
            there = {snapshot.snapshot_id for snapshot in look.metadata.snapshots}
            done = archive(
                context,
                request,
                allow_lost=record.lost_approved_by is not None,
                overtaken=[snapshot for snapshot in plan.expired_snapshots if snapshot not in there],
            )
            if done.cold_metadata_location is not None:
                # What earlier handoffs copied counts by the ledger alone; the store has to have it still.
                published = replace(record, cold_metadata_location=done.cold_metadata_location)
                done = replace(done, repaired_files=self._copy_again(plan, published, step))
                self.operations.plans.mark(
                    plan.plan_id,
                    UNCOMMITTED,
                    PlanStatus.HANDED_OFF,
                    cold_metadata_location=done.cold_metadata_location,
                )
            step.counts = {
                "snapshots_archived": len(done.archived),
                "files_copied": done.copied_files,
                "bytes_copied": done.copied_bytes,
                "files_recopied": done.repaired_files,
            }
        return done

    def _to_archive(self, plan: ExpirationPlan) -> tuple[int, ...]:
        archive_what = self.config.policy(plan.table).cold_tier.archive
        if archive_what == "every" or not plan.expired_snapshots:
            return plan.expired_snapshots
        base = base_metadata(self.live_stores, plan)
        return to_archive(plan.expired_snapshots, view_of(base), archive_what)

    def restore(
        self,
        table: str,
        snapshot_id: int,
        branch: str,
        *,
        why: str = "",
        who: str | None = None,
        ticket: str | None = None,
    ) -> Restored:
        """Bring an expired snapshot's rows back into the live table, as a new snapshot on a new `branch`. Its files are
        copied from the cold tier, and verified against what was recorded when they were archived.

        The branch's snapshot has no parent; its summary names the snapshot that it was, and the `ticket`. `who` (the
        user and host, if none is given) and `why` are kept in Postgres. Queries of the branch see the table's present
        schema. A snapshot that the live table still has gets the branch as it is. Run again after a kill it goes on;
        run again when it is done it changes nothing.

        Raises NoSuchSnapshot when neither tier has it; InDeepArchive when it has to be thawed first; BadInput for main,
        or a name that is taken; RestoreFailed, the table unchanged, when a file cannot be brought back; LeaseTaken,
        Busy, CommitConflict.
        """
        look = self._look(table)
        table_uuid = look.metadata.table_uuid
        with self._step(look, "restore", pausable=False) as step:
            # Under the lease: no handoff or expiration changes what is where any more.
            live, tables = self._look(table).metadata, self._own_cold_tables(table, table_uuid)
            holder = None if tables is None else tables.holding(snapshot_id)
            cold = None if holder is None else holder.metadata
            archived = None if cold is None else cold.snapshot(snapshot_id)
            if archived is not None and live.snapshot(snapshot_id) is None:
                require_readable(table, self._told(table_uuid, Route("cold", snapshot_id)))
            summary = NO_SUMMARY if archived is None else archived.summary
            worker = replace(self._worker("restore"), ticket=ticket)
            done = bring_back(
                RestoreContext(
                    spark=self.spark,
                    live_stores=self.live_stores,
                    cold_stores=self.cold_stores,
                    operations=self.operations,
                    live_catalog=self.config.catalogs.live.name,
                    root=self.root,
                    check=step.check,
                ),
                RestoreRequest(
                    table=table,
                    table_uuid=table_uuid,
                    snapshot_id=snapshot_id,
                    branch=branch,
                    who=who or person(),
                    why=why,
                    summary=worker.summary(
                        input_snapshot_id=snapshot_id,
                        rows=summary.count("total-records") or 0,
                        size_in_bytes=summary.count("total-files-size") or 0,
                    ),
                ),
                live,
                cold,
                read_identity(self.live_stores, self.root, table_uuid),
            )
            step.counts = {"files_copied": done.copied_files, "bytes_copied": done.copied_bytes}
        return done

    def restores(self, table: str) -> list[RestoreRecord]:
        """What was brought back from the cold tier, newest first, and what is being brought back."""
        return self.operations.restores.of_table(self._look(table).metadata.table_uuid)

    def deep_archive(self, table: str, now: datetime | None = None, *, dry_run: bool = False) -> DeepArchived:
        """Move the files of cold snapshots past `cold_tier.retain` to the archive, at their own paths; only those that
        no other cold snapshot has, of any table, nor the live table. Where the policy says `then: keep`, nothing moves.

        A hold on a snapshot, or on the table, keeps it out. `now` may only be in the past. A dry run tells what would
        move. Raises NoSuchTable before the first handoff; Refused when a hold, or another table's need, comes in
        meanwhile; UnreadableMetadata, also of another cold table; LeaseTaken, Busy.
        """
        instant = min(self._instant("now", now), self._instant("now", None))
        policy, archive = self.config.policy(table).cold_tier, self.config.deep_archive
        look = self._look(table)
        with self._step(look, "deep_archive", dry_run=dry_run) as step:
            live = self._look(table).metadata
            table_uuid = live.table_uuid
            cold, protection = self._cold_side(table, table_uuid)
            if not policy.enabled or policy.then == "keep":
                return DeepArchived(table, archive.storage_class, cutoff=instant - policy.retain, dry_run=dry_run)
            done = move_to_archive(
                DeepArchiveContext(
                    protection=protection,
                    table=table,
                    table_uuid=table_uuid,
                    root=self.root,
                    cold=cold,
                    ledger=handoff_ledger(self.live_stores, self.root, table_uuid),
                    live=self._index(table, live),
                    holds=lambda: (*self._guards(table_uuid)[0], *thaw_views(self.operations.thaws.list(table_uuid))),
                    who=self.owner,
                    check=step.check,
                ),
                policy.retain,
                instant,
                archive.storage_class,
                dry_run=dry_run,
            )
            step.state = "pending" if done.failed_files else "done"
            step.counts = {"files_moved": done.moved_files, "bytes": done.due_bytes, "failed": done.failed_files}
        return done

    def scrub_cold(self, table: str, now: datetime | None = None, *, limit: int | None = None) -> ColdScrub:
        """Read what is due of the table's cold files (at most about `limit`) and compare each with its checksum, so
        that every one is read once in `cold_tier.scrub_every`. Resumes where the last run stopped; reads nothing where
        the policy says never.

        A file that is gone or damaged is copied again while live has it; else it is recorded as lost, until it is as
        recorded again. Files in the deep archive are checked for presence and size only. Takes the table's lease only
        to copy; a table that is busy then is tried again by the next run.

        Raises NoSuchTable before the first handoff; UnreadableMetadata when a cold table's metadata is lost;
        StorageError when a store does not answer, or the ledger of copies is lost.
        """
        instant, every = self._instant("now", now), self.config.policy(table).cold_tier.scrubs
        look = self._look(table)
        table_uuid = look.metadata.table_uuid
        if every is None:
            return ColdScrub(table, open_losses=len(self.operations.scrubs.losses(table_uuid)))
        # It reads only, and may read for hours: the lease is for those who change something.
        with self._step(look, "cold_scrub", dry_run=True) as step:
            copies, cold = self.cold_copies(table, table_uuid), self._cold_metadata(table_uuid)
            if copies is None or cold is None:
                raise no_cold_table(table)
            if cold.snapshots and copies.ledger.is_empty():
                raise StorageError(
                    "The record of what was copied to the cold tier is lost: no checksum to compare with",
                    table=table,
                    path=copies.ledger.folder,
                    untouched="both tiers",
                    hint="restore the folder; until then the cold table's metadata answers for what was promised",
                )

            def again(lost: Sequence[PromisedCopy]) -> dict[str, str]:
                try:
                    with self._step(look, "cold_repair") as repairing:
                        done = repair(copies, self.live_stores, lost, check=repairing.check)
                except LeaseTaken as taken:
                    return {copy.destination: f"not tried yet: {taken.what}" for copy in lost}
                return {each.copy.destination: each.error for each in done if each.error is not None}

            done = scrub(
                ScrubContext(
                    spark=self.spark,
                    cold_stores=self.cold_stores,
                    ledger=copies.ledger,
                    scrubs=self.operations.scrubs,
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
        return done

    def cold_losses(self, table: str) -> list[ColdLoss]:
        """Cold files that a scrub found lost and that are lost still, those first that were checked longest ago."""
        return self.operations.scrubs.losses(self._look(table).metadata.table_uuid)

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
        """Ask for archived snapshots to be made readable for some days: those of the ids, or the one that `as_of` or
        `tag` finds. Lists their files; asks nothing of the store until a second person approves (`approve_thaw`).

        Raises BadInput where case, requester or reason is not said, or the snapshot is not in the archive;
        NoSuchSnapshot; NaiveDatetime.
        """
        require_said(table, case_id=case_id, requester=requester, reason=reason)
        lasting = self.config.deep_archive.days if days is None else days
        if lasting < 1:
            raise BadInput("A thaw lasts for at least a day", table=table, hint="give --days 1")
        if snapshot_ids and (as_of is not None or tag is not None):
            raise BadInput("Two selectors at once", table=table, hint="give one of them")
        selectors = [Selector(snapshot_id=each) for each in dict.fromkeys(snapshot_ids)] or [Selector(as_of, tag=tag)]
        live = self._look(table).metadata
        table_uuid, cold = live.table_uuid, self.cold_tables(live.table_uuid)
        routes = [self._told(table_uuid, find_route(table, live, cold, selector)) for selector in selectors]
        readable = next((route for route in routes if route.tier != "deep-archive"), None)
        if readable is not None:
            raise BadInput(
                f"Snapshot {readable.snapshot_id} is in the {readable.tier} tier, and can be read now",
                table=table,
                hint=f"read it: artemis read {quote(table)} --snapshot-id {readable.snapshot_id}",
            )
        assert cold is not None  # the routes led there
        wanted = [route.snapshot_id for route in routes if route.snapshot_id is not None]
        thaw_id = new_id("thaw")
        folder = f"{self.root}/thaws/{table_uuid}/{thaw_id}"
        moves = self.operations.deep_moves.of_table(table_uuid)
        files, size = thawing.seal_files(
            self.spark, self._cold_index(table, cold.whole()), wanted, moves, self.live_stores, folder
        )
        return self.operations.thaws.request(
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
            approve_within=self.config.deep_archive.approve_within,
        )

    def approve_thaw(self, thaw_id: str, who: str, why: str = "") -> ThawRecord:
        """A second person's approval: the store is asked for every file. Run again after a kill it asks for the rest.

        Raises Refused for the requester's own approval, and for a thaw that lapsed or ended; NoSuchPlan; StorageError.
        """
        thaw = self.operations.thaws.approve(thaw_id, who, why)
        return self._asked(thaw)

    def _asked(self, thaw: ThawRecord) -> ThawRecord:
        if thaw.asked_at is not None:
            return thaw
        retrieval = self.config.deep_archive.retrieval
        thawing.ask(
            self.spark, self.cold_stores, self.live_stores, thaw.files_location, days=thaw.days, retrieval=retrieval
        )
        return self.operations.thaws.asked(thaw.thaw_id)

    def refuse_thaw(self, thaw_id: str, who: str, why: str) -> ThawRecord:
        """End a thaw that should not be, or is no longer needed. Nothing reads by it from then on, though S3 keeps its
        readable copies until their days are over. Raises NoSuchPlan, BadInput where who or why is not said."""
        thaw = self.operations.thaws.get(thaw_id)
        require_said(thaw.table, who=who, why=why)
        return self._ended(thaw, who, why)

    def _ended(self, thaw: ThawRecord, who: str | None, why: str) -> ThawRecord:
        if thaw.asked_at is not None and thaw.ended_at is None:
            others = [
                other.files_location
                for other in self.operations.thaws.list(thaw.table_uuid)
                if other.thaw_id != thaw.thaw_id and other.asked_at is not None
            ]
            thawing.end(self.cold_stores, self.live_stores, thaw.files_location, others)
        return self.operations.thaws.end(thaw.thaw_id, who, why)

    def follow_thaw(self, thaw_id: str) -> ThawRecord:
        """Look how far a thaw is, and write it down: readable when all its files are, ended when its days are over or
        nobody approved it in time. Goes on with one whose approval was followed by a kill."""
        thaws, now = self.operations.thaws, self.operations.clock.now()
        thaw = thaws.get(thaw_id)
        if thaw.state is ThawState.REQUESTED and now >= thaw.lapses_at:
            return self._ended(thaw, None, LAPSED)
        if thaw.state is ThawState.APPROVED:
            thaw = self._asked(thaw)
        if thaw.state is ThawState.THAWING:
            found = thawing.look(self.spark, self.cold_stores, self.live_stores, thaw.files_location)
            if found.done:
                # A store that does not tell an end keeps what it was asked for.
                thaw = thaws.readable(thaw_id, found.readable_until or now + timedelta(days=thaw.days))
        if thaw.state is ThawState.READABLE and thaw.readable_until is not None and now >= thaw.readable_until:
            return self._ended(thaw, None, OVER)
        return thaw

    def thaws_to_follow(self) -> list[ThawRecord]:
        """Thaws for which `follow_thaw` has something to do now. Looks at a few files of each, and starts no Spark."""
        now = self.operations.clock.now()

        def is_due(thaw: ThawRecord) -> bool:
            if thaw.state is ThawState.REQUESTED:
                return now >= thaw.lapses_at
            if thaw.state is ThawState.THAWING:
                return thawing.may_be_done(self.cold_stores, self.live_stores, thaw.files_location)
            return thaw.readable_until is None or now >= thaw.readable_until

        return [thaw for thaw in self.operations.thaws.list() if is_due(thaw)]

    def thaw_files(self, thaw_id: str) -> DataFrame:
        """DataFrame[path, size_in_bytes] of the files that a thaw asks for, or asked for. Raises NoSuchPlan."""
        location = self.operations.thaws.get(thaw_id).files_location
        return read_frame(Runner(self.spark), location, self.live_stores).frame()

    def thaws(self, table: str | None = None, *, ended: bool = False) -> list[ThawRecord]:
        """Thaws that have not ended (with `ended`, all), of one table or of every, newest first."""
        table_uuid = None if table is None else self._look(table).metadata.table_uuid
        return self.operations.thaws.list(table_uuid, ended=ended)
