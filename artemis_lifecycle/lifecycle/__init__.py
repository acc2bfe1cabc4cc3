"""The public face: each method is one step of the walk, callable from Python, the terminal and Dagster alike.

Belongs here: the names of the steps, and the services that carry them out. Does not belong: how a step does its work.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from artemis_lifecycle.catalogs.deployments import DeploymentRecord
from artemis_lifecycle.catalogs.guard import GuardState
from artemis_lifecycle.cold_tier.cold_tables import ColdTables
from artemis_lifecycle.cold_tier.deep_archive import DeepArchived
from artemis_lifecycle.cold_tier.handoff import Handoff
from artemis_lifecycle.cold_tier.history import ColdHistory
from artemis_lifecycle.cold_tier.queries import Query, TagStatement
from artemis_lifecycle.cold_tier.reads import Route
from artemis_lifecycle.cold_tier.restore_context import Restored
from artemis_lifecycle.cold_tier.scrub import ColdScrub
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.deletion.quarantine import Purged, Undeleted
from artemis_lifecycle.deletion.receipt import Receipt
from artemis_lifecycle.deletion.records import Forgotten
from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.errors import GraceNotOver
from artemis_lifecycle.expiration.commit import ExpirationCommit
from artemis_lifecycle.expiration.curve import RetentionCurve
from artemis_lifecycle.expiration.difference import PlanDifference
from artemis_lifecycle.expiration.explained import PlanExplanation
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.expiration.tags_and_holds import TableRefs
from artemis_lifecycle.expiration.verdicts import Verdict
from artemis_lifecycle.lifecycle import receipts, tiers
from artemis_lifecycle.lifecycle.cold_tier import ColdTier
from artemis_lifecycle.lifecycle.deletion import Deletion
from artemis_lifecycle.lifecycle.dropped import DroppedTables
from artemis_lifecycle.lifecycle.expiration import Expiration
from artemis_lifecycle.lifecycle.explaining import Explaining, Explanation
from artemis_lifecycle.lifecycle.fleet import Fleet, fleet_of
from artemis_lifecycle.lifecycle.history import History, ReachableSet
from artemis_lifecycle.lifecycle.maintenance import Maintenance
from artemis_lifecycle.lifecycle.metrics import metrics
from artemis_lifecycle.lifecycle.operating import forget_records, take_over
from artemis_lifecycle.lifecycle.orphans import Orphans
from artemis_lifecycle.lifecycle.plan_checks import ALL_CHECKS, PlanChecks
from artemis_lifecycle.lifecycle.publishing import Publishing, ResultTablesCompacted
from artemis_lifecycle.lifecycle.quarantine import Quarantine
from artemis_lifecycle.lifecycle.queries import Queries
from artemis_lifecycle.lifecycle.reading import Reading
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Steps, noted_wait
from artemis_lifecycle.lifecycle.tags_and_holds import Tagged, TagsAndHolds
from artemis_lifecycle.lineage.ledger import LedgerUpdate
from artemis_lifecycle.lineage.schema_history import SchemaHistory
from artemis_lifecycle.maintenance.compaction import CompactedDataFiles
from artemis_lifecycle.maintenance.costs import TableCosts
from artemis_lifecycle.maintenance.health import TableHealth
from artemis_lifecycle.maintenance.manifests import CompactedManifests
from artemis_lifecycle.metadata.types import SnapshotHistory, TableMetadata
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.decisions import Decision, person
from artemis_lifecycle.operations.deep_archive import ThawRecord
from artemis_lifecycle.operations.heartbeats import Heartbeat, Writing
from artemis_lifecycle.operations.holds import Hold, HoldKind
from artemis_lifecycle.operations.pauses import Pause
from artemis_lifecycle.operations.plans import Approval, PlanRecord
from artemis_lifecycle.operations.quarantines import QuarantineRecord
from artemis_lifecycle.operations.restores import RestoreRecord
from artemis_lifecycle.operations.scans import ScanRecord, ScanState
from artemis_lifecycle.operations.scrubs import ColdLoss
from artemis_lifecycle.orphans.cold import ColdScan
from artemis_lifecycle.orphans.dropped import Cleared, DroppedTable
from artemis_lifecycle.orphans.external_listing import ParquetListing, read_parquet_listing
from artemis_lifecycle.orphans.inventory import Inventory, read_inventory
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.result import OrphanScanResult
from artemis_lifecycle.orphans.trend import InFlight, ScanTrend
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.frames import read_frame
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Explanation", "Lifecycle", "ReachableSet", "Tagged"]


class Lifecycle:
    """One configuration's catalogs, stores, Postgres and Spark session, and the steps of the walk on its tables.

    Open it with `Lifecycle.open` and use it as a context manager, or call `close`. Spark starts when a step first needs
    it; a session that was passed in is used as it is and left running.

    Each method calls one service, or reads a record. A service is a class in a module of its own. Its constructor takes
    the `resources` (catalogs, stores, Postgres, Spark), the `steps` (a table's state; the lease, the record and the
    pauses around the work) and the services that it calls. What several services need is a function over the resources:
    see `tiers`, `contexts`, `copies`, `listings`, `receipts` and `retention`.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.config = resources.config
        self.steps = steps = Steps(resources)
        self._history = History(resources, steps)
        self._reading = Reading(resources, steps)
        self._tags_and_holds = TagsAndHolds(resources, steps)
        self._queries = Queries(resources, steps, self._reading, self._tags_and_holds)
        self._checks = PlanChecks(resources, steps)
        self._expiration = Expiration(resources, steps, self._reading, self._checks)
        self._cold_tier = ColdTier(resources, steps, self._expiration, self._reading)
        self._deletion = Deletion(resources, steps, self._expiration)
        self._dropped = DroppedTables(resources, steps, self._deletion)
        self._orphans = Orphans(resources, steps, self._deletion, self._dropped)
        self._quarantine = Quarantine(resources, steps, self._expiration, self._deletion, self._dropped)
        self._explaining = Explaining(resources, steps, self._expiration, self._orphans)
        self._maintenance = Maintenance(resources, steps)
        self._publishing = Publishing(resources)

    @classmethod
    def open(
        cls,
        config: LifecycleConfig | str | Path | None = None,
        spark: SparkSession | None = None,
        *,
        owner: str | None = None,
        run_id: str | None = None,
        in_quiet_window: bool = False,
    ) -> Self:
        """Open the configuration at a path (None: `$ARTEMIS_CONFIG`, then lifecycle.yaml in the working folder).

        Addresses that it leaves out are filled with the embedded stack's, which is started when it is not running; but
        not for a file that does not exist or is empty, nor with `ARTEMIS_EMBEDDED=never`. The cold catalog's guard is
        verified, and restored where it is broken. Raises ConfigError (also for two tiers' roots in one place),
        EnvironmentMissing, OperationsUnavailable; Refused where the guard cannot be restored.

        `owner` and `run_id` name the worker in leases and step records; the default owner is user and host.
        `in_quiet_window`: steps stop when their table's quiet window closes, and the next run resumes (schedules run
        so).
        """
        return cls(Resources(config, spark, owner=owner, run_id=run_id, in_quiet_window=in_quiet_window))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Publish what is pending of the result tables if this object planned or deleted and a Spark session is
        started. Stop the session that this object started, and give back its connections."""
        try:
            self._publishing.publish_at_close()
        finally:
            self.resources.close()

    @property
    def spark(self) -> SparkSession:
        """The Spark session: the given one, or one of our own, started at first use."""
        return self.resources.spark

    @property
    def operations(self) -> Operations:
        """Plans, journal, leases, holds and heartbeats in Postgres. Raises OtherDeployment where they are not those of
        the live catalog."""
        return self.resources.operations

    @property
    def live_stores(self) -> Stores:
        """The object stores of the live warehouse, and of sealed plans, listings and scans."""
        return self.resources.live_stores

    @property
    def cold_stores(self) -> Stores:
        """The object stores of the cold warehouse."""
        return self.resources.cold_stores

    @property
    def root(self) -> str:
        """The folder of sealed plans, listings and scans."""
        return self.resources.root

    def rules(self, table: str) -> LocationRules:
        """How paths of `table` become locations."""
        return self.resources.rules(table)

    def cold_guard(self) -> GuardState | None:
        """How the guard of the cold catalog stands, as of now; None for a catalog that is not in SQL, which has none.
        Changes nothing."""
        return self.resources.cold_guard()

    def tables(self) -> list[str]:
        """Identifiers (`namespace.table`) of the live catalog's tables, without the project's own result tables."""
        return self.steps.tables()

    def snapshot_history(self, table: str) -> SnapshotHistory:
        """The table's snapshots, refs and snapshot log, pinned to one metadata file. Raises NoSuchTable."""
        state = self.steps.table_state(table)
        return SnapshotHistory.of(table, state.metadata, state.read_at)

    def reachable_set(self, table: str, now: datetime | None = None) -> ReachableSet:
        """What the snapshots that the table's policy keeps at `now` reach. Reads manifests that it has not read before.

        Raises UnreadableMetadata when a metadata file that it reads is missing, unreadable or shorter than recorded.
        """
        return self._history.reachable_set(table, now)

    def retention_curve(
        self, table: str, now: datetime | None = None, windows: Sequence[timedelta] | None = None
    ) -> RetentionCurve:
        """What the table would hold under other windows (None: some over its whole age), and what each ref costs.

        Changes nothing, and goes by the policy's own rule, with its holds and tags. Raises UnreadableMetadata.
        """
        return self._history.retention_curve(table, now, windows)

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
        plan supersedes the table's other uncommitted one. Its rows also come to `<live>.lifecycle.plan_files`: see
        `publish_results`.

        If another tool expired snapshots of the uncommitted plan, no new plan reaches their files. While their history
        is not in the cold tier, or if nothing is left but to commit, that plan is returned instead: hand it off and
        commit it, then plan again. Raises PlanStateError then for a call that asks for something else; HandoffFailed
        for a table whose uuid another name has, and whose archive is that one's; Refused in a REST catalog, which could
        not commit the plan safely.
        """
        return self._expiration.plan_expiration(table, now, older_than, retain_last, snapshot_ids)

    def plan(self, plan_id: str) -> ExpirationPlan:
        """The sealed plan of that id. Raises NoSuchPlan."""
        return self._expiration.plan(plan_id)

    def plans(self, table: str) -> list[PlanRecord]:
        """Every plan of the table, newest first, with its status."""
        return list(self.operations.plans.of_table(self.steps.table_uuid(table)))

    def uncommitted_plan(self, table: str) -> ExpirationPlan | None:
        """The table's plan that waits for its handoff or its commit, if there is one."""
        record = self.operations.plans.uncommitted(self.steps.table_uuid(table))
        return None if record is None else self.plan(record.plan_id)

    def due_plans(self, table: str) -> list[PlanRecord]:
        """Committed plans of the table whose grace is over, oldest first."""
        table_uuid = self.steps.table_uuid(table)
        due = self.operations.plans.due(self.operations.clock.now())
        return [record for record in due if record.table_uuid == table_uuid]

    def skip_if_idle(self, table: str) -> bool:
        """True if a plan of the table would be empty now, and no other plan waits: then the table's window needs no
        plan, which is recorded. Reads the metadata file; needs no lease, and no Spark. Raises what planning raises
        before it reads manifests."""
        return self._expiration.skip_if_idle(table)

    def commit_expiration(self, plan: ExpirationPlan | str, *, dry_run: bool = False) -> ExpirationCommit:
        """Remove the plan's snapshots and refs from the table in one commit, and start the grace of its files.

        Before that, the cold store is asked for the copy of each file that only the plan's snapshots read; a lost copy
        is made again from the live file.

        Runs its guards on the base of every attempt. A committed plan is a no-op that reports what was; so is an empty
        one, with `attempts` 0. `dry_run` runs the guards on the table as it is now and changes nothing.

        Raises PlanStateError (superseded, closed, or not handed off while the table has a cold tier), StalePlan,
        CheckFailed (the newest verdict of a check of the plan is red: see `check_plan`),
        ApprovalNeeded, HandoffFailed (a copy is lost and cannot be made again), CommitConflict, CommitStateUnknown,
        LeaseTaken.
        """
        with noted_wait(self.resources, plan):
            return self._expiration.commit_expiration(plan, dry_run=dry_run)

    def check_plan(self, plan: ExpirationPlan | str, check: str | None = None) -> list[Verdict]:
        """Run the checks of the plan again, or the one named, and store their verdicts. Its commit and its deletion
        refuse a plan with a red one, whoever runs them. Raises NoSuchPlan, NoSuchTable, UnreadableMetadata."""
        loaded, record = self._expiration.loaded(plan)
        return self._checks.check(loaded, record, ALL_CHECKS if check is None else (check,))

    def hand_off(self, plan: ExpirationPlan | str, dry_run: bool = False) -> Handoff:
        """Copy all that the plan's snapshots read to the cold tier, verify every copy, and publish them in the cold
        catalog in one commit. Resumes where an earlier run stopped. For a plan that is handed off, until its files are
        deleted, it copies again what cold has lost of them since, and publishes what the cold tables have lost.

        The policy may archive one snapshot of each calendar unit; those that it leaves out are `thinned`. Snapshots
        that another tool expired since the plan are archived if their files are still there, and stay out as
        `overtaken` if not. A table without a cold tier, and a plan without snapshots, are no-ops. `dry_run` writes
        nothing, and says in `would_copy_files` and `would_copy_bytes` what is not copied yet. Raises HandoffFailed
        (the plan stays open and holds its files), CheckFailed (see `check_plan`), PlanStateError, UnreadableMetadata,
        LeaseTaken.
        """
        with noted_wait(self.resources, plan):
            return self._cold_tier.hand_off(plan, dry_run=dry_run)

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
        schema. A snapshot that the live table still has gets the branch as it is. Run again after a kill, it resumes;
        run again when it is done it changes nothing.

        Raises NoSuchSnapshot when neither tier has it; InDeepArchive when it has to be thawed first; BadInput for main,
        or a name that is taken; RestoreFailed, the table unchanged, when a file cannot be brought back; LeaseTaken,
        Busy, CommitConflict.
        """
        return self._cold_tier.restore(table, snapshot_id, branch, why=why, who=who, ticket=ticket)

    def restores(self, table: str) -> list[RestoreRecord]:
        """What was brought back from the cold tier, newest first, and what is being brought back."""
        return self.operations.restores.of_table(self.steps.table_uuid(table))

    def deep_archive(self, table: str, now: datetime | None = None, *, dry_run: bool = False) -> DeepArchived:
        """Move the files of cold snapshots past `cold_tier.retain` to the archive, at their own paths; only those that
        no other cold snapshot has, of any table, nor the live table. Where the policy says `then: keep`, nothing moves.

        A hold on a snapshot, or on the table, keeps it out. `now` may only be in the past. A dry run reports what would
        move. Raises NoSuchTable before the first handoff; Refused when a hold, or another table's need, comes in
        meanwhile; UnreadableMetadata, also of another cold table; LeaseTaken, Busy.
        """
        return self._cold_tier.deep_archive(table, now, dry_run=dry_run)

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
        return self._cold_tier.scrub_cold(table, now, limit=limit)

    def cold_losses(self, table: str) -> list[ColdLoss]:
        """Cold files that a scrub found lost and that are lost still, those first that were checked longest ago."""
        return self.operations.scrubs.losses(self.steps.table_uuid(table))

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
        return self._cold_tier.request_thaw(
            table, snapshot_ids, case_id=case_id, requester=requester, reason=reason, as_of=as_of, tag=tag, days=days
        )

    def approve_thaw(self, thaw_id: str, who: str, why: str = "") -> ThawRecord:
        """A second person's approval: the store is asked for every file. Run again after a kill it asks for the rest.

        Raises Refused for the requester's own approval, and for a thaw that lapsed or ended; NoSuchPlan; StorageError.
        """
        return self._cold_tier.approve_thaw(thaw_id, who, why)

    def refuse_thaw(self, thaw_id: str, who: str, why: str) -> ThawRecord:
        """End a thaw that should not be, or is no longer needed. Nothing reads by it from then on, though S3 keeps its
        readable copies until their days are over. Raises NoSuchPlan, BadInput where who or why is not said."""
        return self._cold_tier.refuse_thaw(thaw_id, who, why)

    def follow_thaw(self, thaw_id: str) -> ThawRecord:
        """Check a thaw and record its state: readable when all its files are, ended when its days are over or no one
        approved it in time. Resumes a thaw whose approval was followed by a kill."""
        return self._cold_tier.follow_thaw(thaw_id)

    def thaws_to_follow(self) -> list[ThawRecord]:
        """Thaws for which `follow_thaw` has something to do now. Checks a few files of each, and starts no Spark."""
        return self._cold_tier.thaws_to_follow()

    def thaw_files(self, thaw_id: str) -> DataFrame:
        """DataFrame[path, size_in_bytes] of the files that a thaw asks for, or asked for. Raises NoSuchPlan."""
        location = self.operations.thaws.get(thaw_id).files_location
        return read_frame(Runner(self.spark), location, self.live_stores).frame()

    def thaws(self, table: str | None = None, *, ended: bool = False) -> list[ThawRecord]:
        """Thaws that have not ended (with `ended`, all), of one table or of every, newest first."""
        table_uuid = None if table is None else self.steps.table_uuid(table)
        return self.operations.thaws.list(table_uuid, ended=ended)

    def expire(
        self,
        table: str,
        now: datetime | None = None,
        older_than: datetime | None = None,
        retain_last: int | None = None,
        snapshot_ids: Sequence[int] | None = None,
    ) -> DeletionReport:
        """Plan, hand off, commit and, when the grace is over, delete. While it runs the report says `pending_until`."""
        plan = self.plan_expiration(table, now, older_than, retain_last, snapshot_ids)
        self.hand_off(plan)
        done = self.commit_expiration(plan)
        try:
            return self.delete_files(plan)
        except GraceNotOver:
            return DeletionReport(
                job_id=plan.plan_id,
                table=table,
                deleted=0,
                already_absent=0,
                kept=0,
                failed=0,
                bytes=0,
                pending=plan.summary.files,
                pending_until=done.due_at,
            )

    def approve(
        self, plan: ExpirationPlan | OrphanScanResult | str, *, who: str, why: str, what: Approval = "large"
    ) -> PlanRecord | ScanRecord:
        """Let a plan pass one guard; who, when and why are kept.

        "large": `max_files`, `max_bytes` and `max_share_of_table`, of scans too. "lost": its handoff may leave out
        snapshots whose files are gone. Neither is the other. Raises NoSuchPlan, PlanStateError.
        """
        return self._deletion.approve(plan, who=who, why=why, what=what)

    def close_plan(
        self, plan: ExpirationPlan | OrphanScanResult | str, *, who: str, why: str
    ) -> PlanRecord | QuarantineRecord:
        """End a plan for good. What a committed plan had not deleted yet becomes the orphan scan's, and so does what an
        `undelete` of it (or of an orphan scan) had brought back."""
        return self._deletion.close_plan(plan, who=who, why=why)

    def delete_files(
        self, plan: ExpirationPlan | str, now: datetime | None = None, *, dry_run: bool = False
    ) -> DeletionReport:
        """Delete the files of a committed plan whose grace is over. Resumes where an earlier run stopped.

        Each batch reads the table once more before it deletes: what is reachable again is kept and reported. `now` can
        only make the grace end later. `dry_run` checks and deletes nothing; it also takes a plan that is not committed.

        Raises PlanStateError (not committed, closed), GraceNotOver, Refused (a hold), StalePlan (the table is gone or
        another), UnreadableMetadata, StorageError, LeaseTaken; what was not deleted until then is untouched.
        """
        with noted_wait(self.resources, plan):
            return self._deletion.delete_files(plan, now, dry_run=dry_run)

    def receipt(self, job: ExpirationPlan | OrphanScanResult | str) -> Receipt:
        """The outcome of every file of a finished deletion, and who decided. The receipt is in the table's metadata
        folder as JSON, Markdown and Parquet, and is written when the deletion ends. Raises NoSuchPlan before that."""
        return receipts.receipt(self.steps, job)

    def list_objects(self, table: str, location: str | None = None) -> Listing:
        """List every file below the table's locations (or below `location` inside them), and seal the listing.

        Taken before any metadata that it will be compared with; `scan_orphans(listing=...)` reads that anew.
        """
        return self._orphans.list_objects(table, location)

    def latest_listing(self, table: str) -> Listing | None:
        """The newest sealed listing of the table, if there is one."""
        record = self.operations.scans.latest_listing(self.steps.table_uuid(table))
        return None if record is None else Listing.of_record(record)

    def scan_orphans(
        self,
        table: str,
        now: datetime | None = None,
        older_than: datetime | None = None,
        location: str | None = None,
        listing: DataFrame | Listing | Inventory | ParquetListing | None = None,
        *,
        listed_at: datetime | None = None,
    ) -> OrphanScanResult:
        """Find files that nothing owns: listed, not reachable, old, no writer's, in no open plan. Changes nothing.

        Lists the table first, unless `listing` is given: one of `list_objects`, an S3 `inventory`, a `parquet_listing`,
        or any DataFrame[path, last_modified, size_in_bytes]. `listed_at` is when its making was begun (no later than
        the inventory or the files say; default for a DataFrame: now). Then reads the metadata, anew.

        Raises StaleMetadata, PrefixMismatch, BadInput (an `older_than` inside `min_age_floor`), UnreadableMetadata,
        StorageError: then there is no scan.
        """
        return self._orphans.scan_orphans(table, now, older_than, location, listing, listed_at=listed_at)

    def settle_metadata(self, table: str, *, who: str, why: str) -> tuple[str, ...]:
        """Decide that the catalog's pointer is right, and metadata files that are newer are no history of the table:
        orphan scans resume, and collect what those commits wrote. Returns the files that were not settled before.

        They stop scans because the catalog may have been restored from a backup. Raises BadInput without `who` or
        `why`; UnreadableMetadata, StorageError, LeaseTaken.
        """
        return self._orphans.settle_metadata(table, who=who, why=why)

    def inventory(self, manifest: str) -> Inventory:
        """An S3 Inventory report by its `manifest.json`, for `scan_orphans(listing=…)`. Raises BadInput and
        StorageError."""
        return read_inventory(self.live_stores, manifest)

    def parquet_listing(self, location: str) -> ParquetListing:
        """A listing in a Parquet file, or in the Parquet files of a folder, with the columns path, last_modified and
        size_in_bytes, for `scan_orphans(listing=…)`. Raises BadInput and StorageError."""
        return read_parquet_listing(self.live_stores, location)

    def scan_cold(self, table: str) -> ColdScan:
        """Find the files under the cold table's location that no cold table reaches: leftovers of refused writers and
        of killed handoffs. Changes nothing, and nothing deletes by it: what is in the archive exists nowhere else.

        Files younger than the policy's `orphans.min_age` are left out. Raises NoSuchTable before the first handoff,
        UnreadableMetadata, StorageError, LeaseTaken.
        """
        return self._orphans.scan_cold(table)

    def scan(self, scan_id: str) -> OrphanScanResult:
        """The stored scan of that id. Raises NoSuchPlan."""
        return self._orphans.scan(scan_id)

    def latest_scan(self, table: str) -> OrphanScanResult | None:
        """The newest stored scan of the table, if there is one."""
        return self._orphans.latest_scan(table)

    def interrupted_scans(self, table: str) -> list[ScanRecord]:
        """Scans of the table whose deletion was begun and not finished, oldest first. They hold their files: no newer
        scan names them."""
        table_uuid = self.steps.table_uuid(table)
        return list(reversed(self.operations.scans.of_table(table_uuid, [ScanState.DELETING])))

    def approved_scan(self, table: str) -> OrphanScanResult | None:
        """The newest scan of the table that a person approved and whose deletion is not begun. It is resumed: a newer
        scan would need an approval of its own for the same files."""
        found = self.operations.scans.of_table(self.steps.table_uuid(table), [ScanState.OPEN])
        approved = next((each for each in found if each.approved_at is not None), None)
        return None if approved is None else self.scan(approved.scan_id)

    def scan_trend(self, table: str, limit: int = 30) -> ScanTrend:
        """The table's last scans: orphans, what was skipped as in flight, how fast the table leaks."""
        return self._orphans.scan_trend(table, limit)

    def in_flight(self, table: str) -> InFlight | None:
        """Whether the files that scans skip as in flight settle, and of which kind they are; None without a scan."""
        return self._orphans.in_flight(table)

    def delete_orphans(self, scan: OrphanScanResult | str, *, dry_run: bool = False) -> DeletionReport:
        """Delete the files of a stored scan. Each batch is checked once more: what a snapshot, a plan or a writer uses
        since the scan is kept and reported. Resumes where an earlier run stopped."""
        with noted_wait(self.resources, scan):
            return self._orphans.delete_orphans(scan, dry_run=dry_run)

    def observe_catalog(self, most: int | None = None) -> dict[str, str]:
        """Record which tables the live catalog has now, so that those that it loses are found. Reads the metadata
        files of tables that are new or have changed, at most `most` of them; the next call reads more. Returns why, for
        those that cannot be read."""
        return self._dropped.observe_catalog(most)

    def dropped_tables(self) -> list[DroppedTable]:
        """The tables that the live catalog no longer has: until when their files are kept, and their state."""
        return self._dropped.dropped_tables()

    def scan_dropped(self, table: str) -> OrphanScanResult:
        """Find what a dropped table (by name, or uuid) has left, as `delete_dropped` would delete it. Changes nothing.

        What other tables read or own is kept, also a table that was made again in the same place. Raises NoSuchTable
        for a table that was not dropped, Refused for a hold and for a table that seems to live in another catalog,
        StalePlan for one that is in this one, GarbageCollectionDisabled, UnreadableMetadata, StorageError.
        """
        return self._dropped.scan_dropped(table)

    def delete_dropped(self, scan: OrphanScanResult | str, *, dry_run: bool = False) -> DeletionReport:
        """Delete what a scan of a dropped table found, when the policy's time is over and, unless the policy says
        otherwise, a person has approved it (`approve`). Resumes where an earlier run stopped; ends the table's plans.

        Raises GraceNotOver, ApprovalNeeded, Refused (a hold; a person decided to keep the files), StalePlan when the
        table is in the catalog again, NoSuchPlan, UnreadableMetadata, StorageError, LeaseTaken.
        """
        with noted_wait(self.resources, scan):
            return self._dropped.delete_dropped(scan, dry_run=dry_run)

    def clear_dropped(self, *, dry_run: bool = False) -> list[Cleared]:
        """Go through the dropped tables that an entry of lifecycle.yaml matches and whose time is over: scan what has
        no scan, or an old one, and delete what may be deleted. What forbids one is reported with it, and stops no
        other. A dry run scans nothing."""
        return self._dropped.clear_dropped(dry_run=dry_run)

    def keep_dropped(self, table: str, *, who: str, why: str) -> DroppedTable:
        """Decide that the files of a dropped table (by name, or uuid) stay. Raises NoSuchTable, PlanStateError."""
        return self._dropped.keep_dropped(table, who=who, why=why)

    def unkeep_dropped(self, table: str, *, who: str | None = None) -> DroppedTable:
        """End a `keep_dropped`: the time runs from when the table was missed. `who` (default: the account, USER@HOST)
        is kept. Raises NoSuchTable, PlanStateError."""
        return self._dropped.unkeep_dropped(table, who=who)

    def quarantined(self, table: str) -> list[QuarantineRecord]:
        """What deletions of the table moved into quarantine, newest first; also of one that was dropped."""
        return self.operations.quarantines.of_table(self._dropped.state_even_if_dropped(table).metadata.table_uuid)

    def undelete(self, job: ExpirationPlan | OrphanScanResult | str, *, who: str, why: str) -> Undeleted:
        """Put the files that a deletion moved into quarantine back to their paths, where nothing else is now. `job` is
        the plan or the orphan scan.

        They are protected there, from orphan scans and every other deletion, until `close_plan`; the quarantine keeps
        its own until its retention is over. The table's metadata is not changed: the expired snapshots are read from
        the metadata file that the answer names, or brought back from the cold tier by `restore`. Again does what is
        left. Raises BadInput without `who` or `why`; NoSuchPlan when nothing of it is in quarantine; PlanStateError
        while it is being deleted, and when it is purged; LeaseTaken, StorageError.
        """
        return self._quarantine.undelete(job, who=who, why=why)

    def purge_quarantine(self, table: str, *, dry_run: bool = False) -> list[Purged]:
        """Delete for good what was in quarantine for longer than `quarantine.retain`, job by job; what was brought back
        stays until that is closed, and what a hold covers until that ends. A dry run reports what would go. Raises
        LeaseTaken, Busy, StorageError; Refused when a hold comes in between two batches."""
        return self._quarantine.purge_quarantine(table, dry_run=dry_run)

    def plan_difference(self, before: ExpirationPlan | str, after: ExpirationPlan | str) -> PlanDifference:
        """What plan `after` removes and `before` does not, and the other way round: snapshots, with the reasons for
        which the other plan keeps them, refs, and files with bytes by kind. Raises NoSuchPlan; BadInput for two tables.
        """
        return self._explaining.plan_difference(before, after)

    def explain_in_plan(self, plan: ExpirationPlan | str, path: str) -> PlanExplanation:
        """Why a file is in a plan; or, with every reason of the snapshots that keep it, why it is not.

        Goes by the plan's own base, whatever the table says now. Raises NoSuchPlan, UnreadableMetadata.
        """
        return self._explaining.explain_in_plan(plan, path)

    def explain(self, table: str, path: str) -> Explanation:
        """A file's fate: who holds it, which plan has it, which plan or scan deleted it, or that it is an orphan.

        A file that a snapshot of the table's metadata reaches is `kept`, or `planned` when an open plan removes all
        those snapshots. `deleted` files are found in the journal's outcomes, orphans in the newest scan.
        """
        return self._explaining.explain(table, path)

    def cold_tables(self, table_uuid: str) -> ColdTables | None:
        """The tables of the cold catalog that have the history of the live table with that uuid; None before its first
        handoff. Raises UnreadableMetadata."""
        return tiers.cold_tables(self.resources, table_uuid)

    def cold_metadata(self, table: str) -> TableMetadata | None:
        """The table's metadata in the cold catalog, that of several cold tables as one; None before its first
        handoff."""
        return tiers.cold_metadata(self.resources, self.steps.table_uuid(table))

    def cold_history(self, table: str) -> ColdHistory:
        """The snapshots that the cold tier has of the table, and which of them are in the deep archive. Raises
        NoSuchTable before the first handoff."""
        return self._reading.cold_history(table)

    def route(
        self, table: str, as_of: datetime | None = None, snapshot_id: int | None = None, tag: str | None = None
    ) -> Route:
        """The tier and the snapshot that answer: by the stored snapshot log, the live tier where both could. A tag
        answers what it means, or meant at its end; with `as_of`, what it meant then.

        A snapshot in the deep archive says how long it will take until it can be read. Raises BadInput for two
        selectors, NaiveDatetime, NoSuchSnapshot when no tier has what was asked for.
        """
        return self._reading.route(table, as_of, snapshot_id, tag)

    def read(
        self, table: str, as_of: datetime | None = None, snapshot_id: int | None = None, tag: str | None = None
    ) -> DataFrame:
        """The table's rows now, at an instant, of a snapshot or a tag: from the live or the cold catalog (`route`).

        Raises InDeepArchive for what has to be thawed first, and what `route` raises.
        """
        return self._reading.read(table, as_of, snapshot_id, tag)

    def translate(self, sql: str, *, table: str | None = None, as_of: datetime | None = None) -> Query | TagStatement:
        """What `query` would run for `sql`, in Spark's words; changes nothing.

        A query: names of live tables get their catalog, and `FOR TAG 'x'`, `FOR VERSION AS OF` and `FOR TIMESTAMP AS
        OF` are answered by the tier that has the snapshot (`route`). `TAG SNAPSHOT n [OF table] AS 'x' [WITH RETENTION
        FOREVER | 90 DAYS]`: where neither the statement nor `table` names the table, it is the one that has snapshot
        `n`. With `as_of` a query's tables without a clause of their own are read at that instant. Raises BadInput, with
        the right form; NaiveDatetime; NoSuchTable; NoSuchSnapshot.
        """
        return self._queries.translate(sql, table=table, as_of=as_of)

    def query(
        self,
        sql: str | Query | TagStatement,
        *,
        table: str | None = None,
        as_of: datetime | None = None,
        who: str | None = None,
        why: str = "",
    ) -> DataFrame | Tagged:
        """Run what `translate` makes of `sql` (or has made of it): the rows of a query, or the tag that was set.

        `who` and `why` are kept of a tag. Raises what `translate` and `tag` raise, BadInput for a query that Spark
        refuses, InDeepArchive for one that has to wait for a thaw; errors of single rows show when they are collected.
        """
        return self._queries.query(sql, table=table, as_of=as_of, who=who, why=why)

    def tag(
        self,
        table: str,
        name: str,
        snapshot_id: int,
        retain: str | timedelta = "forever",
        *,
        why: str = "",
        who: str | None = None,
        replace: bool = False,
    ) -> Tagged:
        """Tag a snapshot of the live table. `retain`: "forever", or a duration counted from now.

        Iceberg counts from the snapshot's commit; what is written on the ref says the same end in its terms. `who` (the
        user and host, if none is given), when and `why` are kept in Postgres. A tag of that name on another snapshot is
        moved only with `replace`.

        Raises NoSuchSnapshot; BadInput for a duration that is none, a name that a branch has, or such a tag.
        """
        return self._tags_and_holds.tag(table, name, snapshot_id, retain, why=why, who=who, replace=replace)

    def untag(self, table: str, name: str, *, why: str = "", who: str | None = None) -> Tagged:
        """Remove a tag; who, when and `why` are kept, whoever made it. Raises NoSuchSnapshot when the table has no such
        tag, BadInput when it was moved meanwhile."""
        return self._tags_and_holds.untag(table, name, why=why, who=who)

    def tags(self, table: str, *, with_removed: bool = False) -> TableRefs:
        """The table's branches and tags, each with its snapshot, its terms and its end, and who made it, when and why,
        where that is known. `with_removed` adds the records of removed tags."""
        return self._tags_and_holds.tags(table, with_removed=with_removed)

    def hold(
        self,
        table: str,
        owner: str,
        reason: str,
        snapshot_ids: Sequence[int] = (),
        until: datetime | None = None,
        *,
        kind: HoldKind = "legal",
        ttl: str | timedelta | None = None,
    ) -> Hold:
        """Hold the whole table (no ids) or some of its snapshots against expiration and deletion, until released.

        `kind`: "legal", which also keeps snapshots of the cold tier from the deep archive; "lease", a reader's, which
        ends after `ttl` unless it is renewed; "consumer", whose one snapshot is what it reads next: that and every
        later one stay. `until`, or `ttl` from now, ends any of them.

        Raises NoSuchSnapshot, also for one that expired while the hold was placed; BadInput; Busy.
        """
        return self._tags_and_holds.hold(table, owner, reason, snapshot_ids, until, kind=kind, ttl=ttl)

    def holds(self, table: str, *, ended: bool = False) -> list[Hold]:
        """The table's holds in force, oldest first; with `ended`, those that were, too."""
        table_uuid, holds = self.steps.table_uuid(table), self.operations.holds
        return list(holds.of_table(table_uuid) if ended else holds.active(table_uuid))

    def renew(self, hold_id: str, ttl: str | timedelta) -> Hold:
        """Let a reader's lease last until `ttl` from now. Raises Refused when it has ended, BadInput for another kind,
        NoSuchPlan for an id that no hold has."""
        return self._tags_and_holds.renew(hold_id, ttl)

    def advance(self, hold_id: str, snapshot_id: int) -> Hold:
        """Move a consumer's position: that snapshot, and every later one, stay from now on.

        Raises NoSuchSnapshot when the table no longer has it, Refused when the hold has ended, BadInput for another
        kind, NoSuchPlan for an id that no hold has.
        """
        return self._tags_and_holds.advance(hold_id, snapshot_id)

    def release(self, hold_id: str, *, who: str | None = None, why: str | None = None) -> Hold:
        """Release a hold. `who` (default: the account, USER@HOST) and `why` are kept. Raises NoSuchPlan for an id that
        no hold has; BadInput without a name."""
        return self.operations.holds.release(hold_id, person() if who is None else who, why)

    def writers(self, table: str | None = None) -> list[Heartbeat]:
        """The writers at work, by their heartbeats, of one table or of all, longest at work first."""
        return self.operations.heartbeats.live(None if table is None else self.steps.table_uuid(table))

    def writing(
        self, table: str, writer_id: str, prefix: str | None = None, ttl: str | timedelta = "10m"
    ) -> AbstractContextManager[Writing]:
        """A heartbeat while the block runs: every unreferenced file of the table (or under `prefix`) is a writer's.

        `prefix` is a folder in a location of the table, or is relative to each of them. Raises BadInput for another;
        OtherDeployment, also by `check`: a heartbeat protects only where the catalog's own deployment sees it.
        """
        return self._tags_and_holds.writing(table, writer_id, prefix, ttl)

    def record_lineage(self, table: str) -> LedgerUpdate:
        """Append to the ledger (`<live>.lifecycle.lineage_ledger`) the snapshots that it does not have yet."""
        return self._maintenance.record_lineage(table)

    def schema_history(self, table: str) -> SchemaHistory:
        """The schemas that the table has had, what each changed, and which snapshots used it: those that expired since
        too, where the ledger had recorded them (`record_lineage`)."""
        return self._maintenance.schema_history(table)

    def table_health(self, table: str) -> TableHealth:
        """Small files, deletes, manifests and metadata of the current snapshot: what makes reading the table slow."""
        return self._maintenance.table_health(table)

    def compact_data_files(self, table: str, *, dry_run: bool = False) -> CompactedDataFiles:
        """Rewrite small data files, where the table's health asks for it, within the bandwidth budget."""
        return self._maintenance.compact_data_files(table, dry_run=dry_run)

    def compact_manifests(self, table: str, *, dry_run: bool = False) -> CompactedManifests:
        """Rewrite many small manifests into few, where their average size asks for it."""
        return self._maintenance.compact_manifests(table, dry_run=dry_run)

    def costs(self, table: str, curve: RetentionCurve | None = None) -> TableCosts:
        """What the table holds in each tier and for each tag, and what that costs by `prices` of lifecycle.yaml.

        Sizes are what the metadata records. A `curve` of the table says what its refs hold; without it they are
        counted. Changes nothing. Raises UnreadableMetadata.
        """
        return self._maintenance.costs(table, curve)

    def take_over(self, *, who: str, why: str) -> list[DeploymentRecord]:
        """Make the live catalog this deployment's: the steps of the one that has it are refused from now on. Who, when
        and why are kept beside the catalog. Does nothing where it is this one's already.

        The other operations database's holds, open plans, graces and heartbeats protect nothing from then on. Returns
        the record in force. Raises BadInput without `who` or `why`; Refused for a role without rights.
        """
        return take_over(self.resources, who=who, why=why)

    def pause(self, table: str | None = None, *, who: str, why: str) -> Pause:
        """Stop all work on a table, or on every table, wherever it runs: workers notice within seconds, stop between
        two pieces of work, and new ones do not begin. Reads, holds, restores and undeletes go on."""
        table_uuid = None if table is None else self.steps.table_uuid(table)
        return self.operations.pauses.begin(who, why, table_uuid, table)

    def resume(self, table: str | None = None, *, who: str, why: str | None = None) -> list[Pause]:
        """End the pause of a table, or (without one) the pause of all; the pauses that this ended. A table's own pause
        outlives that of all. Raises BadInput without a name."""
        table_uuid = None if table is None else self.steps.table_uuid(table)
        return self.operations.pauses.end(who, table_uuid, why)

    def decisions(self, table: str | None = None, *, about: str | None = None) -> list[Decision]:
        """Who decided what, why and by which account, newest first: of one table or of all; or, oldest first, `about`
        one plan, scan, hold, pause or thaw. No one can change or delete these records."""
        if about is not None:
            return self.operations.decisions.about(about)
        return self.operations.decisions.of_table(None if table is None else self.steps.table_uuid(table))

    def pauses(self) -> list[Pause]:
        """The pauses that are in force."""
        return self.operations.pauses.in_force()

    def fleet(self) -> Fleet:
        """Every governed table at a glance: what runs, waits, is overdue, was freed. Reads Postgres and the catalog's
        list of tables; no metadata file, and no Spark."""
        return fleet_of(self.resources, self.steps.tables())

    def metrics(self) -> str:
        """The fleet as Prometheus metrics by table, in the text exposition format. Reads Postgres; starts no Spark."""
        return metrics(self.resources, self.steps.tables())

    def publish_results(self) -> int:
        """Append what plans and deletions left to be published to the result tables `<live>.lifecycle.plan_files` and
        `<live>.lifecycle.deletions`; returns how many plans and deletions. `close` does it where a Spark session is
        started. Raises ConfigError for a result table that was changed by hand."""
        return self._publishing.publish()

    def compact_result_tables(self, *, dry_run: bool = False) -> ResultTablesCompacted:
        """Compact the tables of namespace `lifecycle`, and expire their snapshots of more than 30 days."""
        return self._publishing.compact(dry_run=dry_run)

    def forget_records(self, *, dry_run: bool = False) -> Forgotten:
        """Delete the details of what has ended longer ago than `records.keep`: a deletion's batches and outcomes,
        steps, leases; and listings older than `records.listings`. Plans, scans, decisions and receipts stay.

        Raises StorageError when the store refuses; the next run resumes. A pause of all tables stops it.
        """
        return forget_records(self.resources, dry_run=dry_run)
