"""The public API: each method is one step of the walk, callable from Python, the terminal and Dagster.

Belongs here: the names of the steps, and the services that run them. Does not belong here: how a step does its work.
One file: a caller finds every name of the contract in one class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from artemis_lifecycle.audit.answers import Ingested, Lineage, Overwrites
from artemis_lifecycle.audit.history_index import CurrentSnapshot
from artemis_lifecycle.audit.incident import Incident
from artemis_lifecycle.audit.ledger import LineageRecorded
from artemis_lifecycle.audit.open_lineage import require_open_lineage
from artemis_lifecycle.audit.past import History, HistoryCompaction, Past, ReachableSet
from artemis_lifecycle.audit.questions import Auditing
from artemis_lifecycle.audit.recording import LineageEvents, Recording
from artemis_lifecycle.audit.schema_history import SchemaHistory
from artemis_lifecycle.audit.watch import LineageCheck, LineageWatching, Watched
from artemis_lifecycle.catalogs.deployments import DeploymentRecord
from artemis_lifecycle.catalogs.gate.installation import GateAttempt
from artemis_lifecycle.catalogs.guard import GuardState
from artemis_lifecycle.catalogs.identifier import CatalogEntry
from artemis_lifecycle.cold_tier.cold_tables import ColdHistory, ColdTables
from artemis_lifecycle.cold_tier.deep_archive import DeepArchived
from artemis_lifecycle.cold_tier.handoff import Handoff
from artemis_lifecycle.cold_tier.queries import Query, TagStatement
from artemis_lifecycle.cold_tier.reads import Route
from artemis_lifecycle.cold_tier.restore_ids import Restored
from artemis_lifecycle.cold_tier.scrub import ColdScrub
from artemis_lifecycle.commits.gate import Gate, GateStatus, Pointer
from artemis_lifecycle.commits.writes import Commit, Commits
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.contracts import CommitLineage
from artemis_lifecycle.deletion.quarantine import Purged, Undeleted
from artemis_lifecycle.deletion.records import Forgotten
from artemis_lifecycle.deletion.report import DeletionReport, Receipt
from artemis_lifecycle.errors import GraceNotOver, LifecycleError, NoSuchTable, NotApplicable
from artemis_lifecycle.expiration.commit import ExpirationCommit
from artemis_lifecycle.expiration.curve import RetentionCurve
from artemis_lifecycle.expiration.difference import PlanDifference
from artemis_lifecycle.expiration.plan import ExpirationPlan, PlanExplanation, Wanted
from artemis_lifecycle.expiration.tags_and_holds import TableRefs
from artemis_lifecycle.expiration.verdicts import Verdict
from artemis_lifecycle.fleet.fleet import Fleet, fleet_of
from artemis_lifecycle.fleet.metrics import metrics
from artemis_lifecycle.formats.paimon.procedures import PaimonProcedures
from artemis_lifecycle.formats.paimon.service import PaimonTables
from artemis_lifecycle.live_sets.mark import Given
from artemis_lifecycle.live_sets.sweep import LiveSetComparison, Sweep
from artemis_lifecycle.metadata.types import SnapshotHistory, TableMetadata
from artemis_lifecycle.operations.cold_tier import ColdLoss, RestoreRecord, ThawRecord
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.decisions import Decision, Pause, person
from artemis_lifecycle.operations.holds import Heartbeat, Hold, HoldKind, Writing
from artemis_lifecycle.operations.lineage import UnmetSnapshot
from artemis_lifecycle.operations.live_sets import LiveSet, Snapshots
from artemis_lifecycle.operations.plans import Approval, PlanRecord
from artemis_lifecycle.operations.quarantines import QuarantineRecord
from artemis_lifecycle.operations.scans import ScanRecord, ScanState
from artemis_lifecycle.orphans.cold import ColdScan
from artemis_lifecycle.orphans.dropped import Cleared, DroppedTable
from artemis_lifecycle.orphans.external_listing import Inventory, ParquetListing, read_inventory, read_parquet_listing
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.scan import OrphanScanResult
from artemis_lifecycle.orphans.trend import InFlight, ScanTrend
from artemis_lifecycle.planning.plan import Query as ScanQuery
from artemis_lifecycle.planning.plan import QueryPlan
from artemis_lifecycle.session import contexts
from artemis_lifecycle.session.answers import ask_all
from artemis_lifecycle.session.formats import Kind
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps, noted_wait
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.frames import read_frame
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.upkeep.compaction import CompactedDataFiles
from artemis_lifecycle.upkeep.costs import CommitCosts, TableCosts
from artemis_lifecycle.upkeep.health import TableHealth
from artemis_lifecycle.upkeep.maintenance import Maintenance, Measuring
from artemis_lifecycle.upkeep.manifests import CompactedManifests
from artemis_lifecycle.upkeep.publishing import Publishing, ResultTablesCompacted
from artemis_lifecycle.upkeep.score import HealthHistory
from artemis_lifecycle.upkeep.table_checks import TableChecks
from artemis_lifecycle.walk import deletion
from artemis_lifecycle.walk.cold_tier import ColdTier, RenewedIdentities
from artemis_lifecycle.walk.deletion import Deletion
from artemis_lifecycle.walk.dropped import DroppedTables
from artemis_lifecycle.walk.expiration import Expiration
from artemis_lifecycle.walk.explaining import Explaining, Explanation, Incidents
from artemis_lifecycle.walk.live_sets import LiveSetDetails, LiveSets
from artemis_lifecycle.walk.nessie import NessieTables
from artemis_lifecycle.walk.operating import Part, forget_records, prepare, take_over
from artemis_lifecycle.walk.orphans import Orphans
from artemis_lifecycle.walk.plan_checks import ALL_CHECKS, PlanChecks
from artemis_lifecycle.walk.quarantine import Quarantine
from artemis_lifecycle.walk.reading import Queries, Reading
from artemis_lifecycle.walk.tags_and_holds import Tagged, TagsAndHolds
from artemis_lifecycle.walk.undrop import Undrop, Undropped

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Explanation", "Lifecycle", "ReachableSet", "Tagged"]


class Lifecycle:
    """One configuration's catalogs, stores, Postgres and Spark session, and the steps of the walk on its tables.

    Open it with `Lifecycle.open` and use it as a context manager, or call `close`. Spark starts when a step first needs
    it. A session that was passed in is used unchanged and left running.

    Each method calls one service, or reads a record. A service is a class in a separate module. Its constructor takes
    the `resources` (catalogs, stores, Postgres, Spark), the `steps` (a table's state; the lease, the record and the
    pauses around the work) and the services that it calls. What several services need is a function of the resources:
    see `tiers`, `contexts`, `copies`, `listings`, `receipts` and `retention`.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.config = resources.config
        if self.config.lineage_events.receiver is not None:
            require_open_lineage()
        self.steps = steps = Steps(resources)
        self._history = History(resources, steps)
        self._past = Past(resources, steps)
        self._reading = Reading(resources, steps, self._past)
        self._tags_and_holds = TagsAndHolds(resources, steps)
        self._queries = Queries(resources, steps, self._reading, self._tags_and_holds)
        self._checks = PlanChecks(resources, steps)
        self._events = LineageEvents(resources)
        self._recording = Recording(resources, steps, self._events)
        self._expiration = Expiration(resources, steps, self._reading, self._checks, self._recording, self._past)
        self._cold_tier = ColdTier(resources, steps, self._expiration, self._reading)
        self._deletion = Deletion(resources, steps, self._expiration)
        self._dropped = DroppedTables(resources, steps, self._deletion)
        self._orphans = Orphans(resources, steps, self._deletion, self._dropped)
        self._live_sets = LiveSets(resources, steps, self._orphans, self._dropped)
        self._quarantine = Quarantine(resources, steps, self._expiration, self._deletion, self._dropped)
        self._undrop = Undrop(steps, self._dropped, self._quarantine, self._recording)
        self._explaining = Explaining(resources, steps, self._expiration, self._orphans)
        self._measuring = Measuring(resources, steps, self._recording)
        self._maintenance = Maintenance(resources, steps, self._recording, self._measuring)
        self._table_checks = TableChecks(resources, steps, self._measuring, self._orphans, self._recording)
        self._publishing = Publishing(resources, self._events)
        self._gate = Gate(resources)
        self._commits = Commits(resources, self._gate)
        self._pointer = Pointer(resources)
        self._lineage_watching = LineageWatching(resources, steps, self._gate)
        self._auditing = Auditing(resources, steps, self._recording)
        self._incidents = Incidents(resources, steps, self._auditing, self._expiration)
        for name, catalog in self.config.catalogs.others.items():
            resources.others[name] = (
                PaimonTables(resources, steps, self._checks, self._explaining, name, catalog)
                if catalog.type == "paimon"
                else NessieTables(resources, name, catalog, self._explaining.explain)
            )

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
        """Open the configuration at a path (None: `$ARTEMIS_CONFIG`, then lifecycle.yaml in the working directory).

        Missing addresses are filled in with those of the embedded stack, which is started if necessary; but not for a
        file that does not exist or is empty, nor with `ARTEMIS_EMBEDDED=never`. The cold catalog's guard is verified,
        and restored if it is broken. Raises ConfigError (also if two tiers' roots are in one place),
        EnvironmentMissing, OperationsUnavailable; Refused if the guard cannot be restored.

        `owner` and `run_id` identify the worker in leases and step records; the default owner is user and host.
        `in_quiet_window` stops steps when their table's quiet window closes, and the next run resumes (as for scheduled
        runs).
        """
        return cls(Resources(config, spark, owner=owner, run_id=run_id, in_quiet_window=in_quiet_window))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.close()
        else:
            # An interrupt waits for no publication: the rows stay pending.
            self.resources.close()

    def close(self) -> None:
        """Publish pending rows of the result tables if this object planned or deleted and a Spark session is started.
        Stop the session that this object started, and close its connections."""
        try:
            self._publishing.publish_at_close()
        finally:
            self.resources.close()

    @property
    def spark(self) -> SparkSession:
        """The Spark session: the given one, or a new one, started at first use."""
        return self.resources.spark

    @property
    def operations(self) -> Operations:
        """Plans, journal, leases, holds and heartbeats in Postgres. Raises OtherDeployment if they do not belong to the
        live catalog's deployment."""
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
        """Return how paths of `table` become locations."""
        return self.resources.rules(table)

    def cold_guard(self) -> GuardState | None:
        """Return the current state of the cold catalog's guard; None for a catalog that is not in SQL, which has no
        guard. Changes nothing."""
        return self.resources.cold_guard()

    def tables(self) -> list[str]:
        """Return the names of all tables: `namespace.table` for those of the live catalog, without the project's own
        result tables; then `<catalog>:<namespace.table>` for those of `catalogs.others`. Raises OperationsUnavailable
        if a catalog does not answer."""
        found, errors = self.answering_tables()
        for error in errors.values():
            raise error
        return found

    def answering_tables(self) -> tuple[list[str], dict[str, LifecycleError]]:
        """Return `tables()` of the catalogs that answer in time, and the errors of those in `catalogs.others` that do
        not, by their names. Raises the live catalog's error."""
        found, errors = self.steps.tables(), dict[str, LifecycleError]()
        for name, answer in ask_all({name: other.tables for name, other in self.resources.others.items()}).items():
            if isinstance(answer, LifecycleError):
                errors[name] = answer
            else:
                found += answer
        return found, errors

    def kind(self, table: str) -> Kind:
        """Return the kind of the table: iceberg (of the live catalog), nessie or paimon."""
        return self.resources.kind(table)

    def paimon(self, table: str) -> PaimonProcedures:
        """Return Paimon's own procedures for a table of a Paimon warehouse, by its name. Raises NotApplicable for any
        other table."""
        tables = self.resources.other(table)
        if not isinstance(tables, PaimonTables):
            raise NotApplicable(
                f"This is for Paimon tables; the table's kind is {self.kind(table)}",
                table=table,
                hint="name a table as <catalog>:<database.table>, with a catalog of type paimon in catalogs.others",
            )
        return PaimonProcedures(tables, self._deletion, self._orphans)

    def get_current(self, table: str) -> CatalogEntry:
        """Return the table's pointer: its current metadata file, from the catalog itself. Raises NoSuchTable."""
        return self._pointer.current(table)

    def compare_and_swap(self, table: str, expected: str, new: str) -> CatalogEntry:
        """Move the table's pointer from the metadata file `expected` to the metadata file `new`, or leave it. Of
        writers with one `expected`, one succeeds. Checked before anything is touched: `new` is readable, of this table,
        and its metadata log ends with `expected`. New snapshots pass the lineage gate, if the database has one.

        Linearizable with `get_current` in a catalog on one Postgres primary. Raises CommitConflict if the table is
        elsewhere; BadInput, UnreadableMetadata for a `new` that cannot follow; LineageRejected; NoSuchTable;
        OperationsUnavailable: not moved; CommitStateUnknown; Refused for a catalog that is not in SQL.
        """
        return self._pointer.compare_and_swap(table, expected, new)

    def snapshot_history(self, table: str) -> SnapshotHistory:
        """Return the table's snapshots, refs and snapshot log, pinned to one metadata file. Raises NoSuchTable."""
        state = self.steps.any_state(table)
        return SnapshotHistory.of(table, state.metadata, state.read_at)

    def reachable_set(self, table: str, now: datetime | None = None) -> ReachableSet:
        """Return what the snapshots that the table's policy keeps at `now` reach. Reads only manifests that it has not
        read before.

        Raises UnreadableMetadata if a metadata file that it reads is missing, unreadable or shorter than recorded.
        """
        return (self.resources.other(table) or self._history).reachable_set(table, now)

    def retention_curve(
        self, table: str, now: datetime | None = None, windows: Sequence[timedelta] | None = None
    ) -> RetentionCurve:
        """Return what the table would hold under other windows (None: a selection over its age), and what each ref
        costs.

        Changes nothing, and uses the policy's own rule, holds and tags. Raises UnreadableMetadata.
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
        """Decide which snapshots and refs to remove, find the files that only they reach, and seal both. Changes no
        table.

        `older_than` replaces the policy's window; `retain_last` its count; `snapshot_ids` adds snapshots by id. The
        plan supersedes the table's other uncommitted one. Its rows are also queued for `<live>.lifecycle.plan_files`:
        see `publish_results`.

        If another tool expired snapshots of the uncommitted plan, no new plan reaches their files. If their history is
        not in the cold tier yet, or if only the commit remains, that plan is returned instead: hand it off and commit
        it, then plan again. In that case, raises PlanStateError for a call with other arguments. Also raises
        HandoffFailed for a table whose uuid has another name to which the archive belongs; Refused in a REST catalog,
        which could not commit the plan safely.
        """
        planner = self.resources.other(table) or self._expiration
        return planner.plan_expiration(table, Wanted(now, older_than, retain_last, snapshot_ids))

    def plan(self, plan_id: str) -> ExpirationPlan:
        """Return the sealed plan with that id. Raises NoSuchPlan."""
        return self._expiration.plan(plan_id)

    def plans(self, table: str) -> list[PlanRecord]:
        """Return every plan of the table, newest first, with its status."""
        return list(self.operations.plans.of_table(self.steps.table_uuid(table)))

    def uncommitted_plan(self, table: str) -> ExpirationPlan | None:
        """Return the table's plan that waits for its handoff or its commit, if any."""
        record = self.operations.plans.uncommitted(self.steps.table_uuid(table))
        return None if record is None else self.plan(record.plan_id)

    def due_plans(self, table: str) -> list[PlanRecord]:
        """Return committed plans of the table whose grace is over, oldest first."""
        table_uuid = self.steps.table_uuid(table)
        due = self.operations.plans.due(self.operations.clock.now())
        return [record for record in due if record.table_uuid == table_uuid]

    def skip_if_idle(self, table: str) -> bool:
        """Return True if a plan of the table would be empty now and no other plan waits. Then the table's window needs
        no plan, which is recorded. Reads the metadata file; needs no lease, and no Spark. Raises what planning raises
        before it reads manifests."""
        return (self.resources.other(table) or self._expiration).skip_if_idle(table)

    def commit_expiration(self, plan: ExpirationPlan | str, *, dry_run: bool = False) -> ExpirationCommit:
        """Remove the plan's snapshots and refs from the table in one commit, and start the grace of its files.

        Before that, it checks that the cold store has the copy of each file that only the plan's snapshots read. A lost
        copy is copied again from the live file.

        The guards run on the base of every attempt. For a committed plan, it does nothing and reports the earlier
        result; also for an empty one, with `attempts` 0. `dry_run` runs the guards on the current table and changes
        nothing.

        Raises PlanStateError (superseded, closed, or not handed off although the table has a cold tier), StalePlan,
        CheckFailed (the newest verdict of a check of the plan failed: see `check_plan`), ApprovalNeeded, HandoffFailed
        (a copy is lost and cannot be copied again), CommitConflict, CommitStateUnknown, LeaseTaken.
        """
        with noted_wait(self.resources, plan):
            loaded = self.plan(plan) if isinstance(plan, str) else plan
            committer = self.resources.other(loaded.table) or self._expiration
            return committer.commit_expiration(loaded, dry_run=dry_run)

    def check_plan(self, plan: ExpirationPlan | str, check: str | None = None) -> list[Verdict]:
        """Run the checks of the plan again, or only `check`, and store their verdicts. Commit and deletion refuse a
        plan with a failed verdict, from any caller. Raises NoSuchPlan, NoSuchTable, UnreadableMetadata."""
        loaded, record = self._expiration.loaded(plan)
        return self._checks.check(loaded, record, ALL_CHECKS if check is None else (check,))

    def check_table(self, table: str, check: str | None = None) -> list[Verdict]:
        """Run the checks of the table's health, lineage, schemas, compactions, listing and orphan share, or only
        `check`, against the thresholds `checks` of its policy. Changes and stores nothing. Raises NoSuchTable,
        UnreadableMetadata; BadInput for an unknown check."""
        return self._table_checks.judge(table, check)

    def hand_off(self, plan: ExpirationPlan | str, dry_run: bool = False) -> Handoff:
        """Copy everything that the plan's snapshots read to the cold tier, verify every copy, and publish the snapshots
        in the cold catalog in one commit. Resumes where an earlier run stopped. For a plan that is handed off, until
        its files are deleted, it copies files that cold has lost since again, and publishes snapshots that the cold
        tables have lost.

        The policy may archive one snapshot of each calendar unit; the omitted ones are `thinned`. Snapshots that
        another tool expired since the plan are archived if their files still exist; otherwise they are omitted as
        `overtaken`. For a table without a cold tier, and for a plan without snapshots, it does nothing. `dry_run`
        writes nothing, and reports what is not copied yet in `would_copy_files` and `would_copy_bytes`. Raises
        HandoffFailed (the plan stays open and protects its files), CheckFailed (see `check_plan`), PlanStateError,
        UnreadableMetadata, LeaseTaken.
        """
        with noted_wait(self.resources, plan):
            return self._cold_tier.hand_off(plan, dry_run=dry_run)

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
        return self._cold_tier.restore(table, snapshot_id, branch, as_of=as_of, why=why, who=who, ticket=ticket)

    def restores(self, table: str) -> list[RestoreRecord]:
        """Return restores from the cold tier, newest first, including unfinished ones."""
        return self.operations.restores.of_table(self.steps.table_uuid(table))

    def deep_archive(self, table: str, now: datetime | None = None, *, dry_run: bool = False) -> DeepArchived:
        """Move the files of cold snapshots past `cold_tier.retain` to the archive, at the same paths; only files that
        no other cold snapshot of any table has, nor the live table. If the policy has `then: keep`, nothing moves.

        A hold on a snapshot, or on the table, prevents its move. `now` may only be in the past. A dry run reports what
        would move. Raises NoSuchTable before the first handoff; Refused if a hold or another table's need arises in the
        meantime; UnreadableMetadata, also of another cold table; LeaseTaken, Busy.
        """
        return self._cold_tier.deep_archive(table, now, dry_run=dry_run)

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
        return self._cold_tier.scrub_cold(table, now, limit=limit)

    def renew_identities(self, table: str, *, who: str, why: str) -> RenewedIdentities:
        """Compare the sources of all archived copies that live still has with their records, after the whole live store
        was copied, replicated or re-encrypted: times and tokens changed, but not the content. Each file that differs is
        read once. Another run continues. Raises NoSuchTable before the first handoff."""
        return self._cold_tier.renew_identities(table, who=who, why=why)

    def cold_losses(self, table: str) -> list[ColdLoss]:
        """Return cold files that a scrub found lost and that are still lost, longest unchecked first."""
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
        """Request that archived snapshots be readable for some days: those with the given ids, or the one that `as_of`
        or `tag` finds. Lists their files; requests nothing from the store until a second person approves
        (`approve_thaw`).

        Raises BadInput if case, requester or reason is missing, or the snapshot is not in the archive; NoSuchSnapshot;
        NaiveDatetime.
        """
        return self._cold_tier.request_thaw(
            table, snapshot_ids, case_id=case_id, requester=requester, reason=reason, as_of=as_of, tag=tag, days=days
        )

    def approve_thaw(self, thaw_id: str, who: str, why: str = "") -> ThawRecord:
        """Record a second person's approval, and request every file from the store. Another run after a kill requests
        the rest.

        Raises Refused for the requester's own approval, and for a thaw that lapsed or ended; NoSuchPlan; StorageError.
        """
        return self._cold_tier.approve_thaw(thaw_id, who, why)

    def refuse_thaw(self, thaw_id: str, who: str, why: str) -> ThawRecord:
        """End a thaw that is unwanted or no longer needed. From then on nothing reads through it, although S3 keeps its
        readable copies until their days are over. Raises NoSuchPlan, BadInput if who or why is missing."""
        return self._cold_tier.refuse_thaw(thaw_id, who, why)

    def follow_thaw(self, thaw_id: str) -> ThawRecord:
        """Check a thaw and record its state: readable if all its files are; ended if its days are over or it was not
        approved in time. Resumes a thaw whose approval was interrupted by a kill."""
        return self._cold_tier.follow_thaw(thaw_id)

    def thaws_to_follow(self) -> list[ThawRecord]:
        """Return thaws for which `follow_thaw` has something to do now. Checks a few files of each, and starts no
        Spark."""
        return self._cold_tier.thaws_to_follow()

    def thaw_files(self, thaw_id: str) -> DataFrame:
        """Return DataFrame[path, size_in_bytes] of the files of a thaw. Raises NoSuchPlan."""
        location = self.operations.thaws.get(thaw_id).files_location
        return read_frame(Runner(self.resources.start_spark), location, self.live_stores).frame()

    def thaws(self, table: str | None = None, *, ended: bool = False) -> list[ThawRecord]:
        """Return thaws that have not ended (with `ended`, all), of one table or of all, newest first."""
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
        """Plan, hand off, commit and, once the grace is over, delete. During the grace, the report has
        `pending_until`."""
        plan = self.plan_expiration(table, now, older_than, retain_last, snapshot_ids)
        if self.resources.has_cold_tier(table):
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
        """Let a plan pass one guard, and record who, when and why.

        "large" allows exceeding `max_files`, `max_bytes` and `max_share_of_table`, also for scans. "lost" allows its
        handoff to omit snapshots whose files are gone. Neither implies the other. Raises NoSuchPlan, PlanStateError.
        """
        return self._deletion.approve(plan, who=who, why=why, what=what)

    def close_plan(
        self, plan: ExpirationPlan | OrphanScanResult | str, *, who: str, why: str
    ) -> PlanRecord | QuarantineRecord:
        """End a plan permanently. Orphan scans then take over the files that a committed plan had not deleted yet, and
        the files that an `undelete` of it (or of an orphan scan) had restored."""
        return self._deletion.close_plan(plan, who=who, why=why)

    def delete_files(
        self, plan: ExpirationPlan | str, now: datetime | None = None, *, dry_run: bool = False
    ) -> DeletionReport:
        """Delete the files of a committed plan whose grace is over. Resumes where an earlier run stopped.

        Each batch reads the table again before it deletes: files that are reachable again are kept and reported. `now`
        can only make the grace end later. `dry_run` checks without deleting; it also accepts an uncommitted plan.

        Raises PlanStateError (not committed, closed), GraceNotOver, Held (a hold), StalePlan (the table is gone or was
        replaced), UnreadableMetadata, StorageError, LeaseTaken; files that were not deleted before are untouched.
        """
        with noted_wait(self.resources, plan):
            return self._deletion.delete_files(plan, now, dry_run=dry_run)

    def receipt(self, job: ExpirationPlan | OrphanScanResult | str) -> Receipt:
        """Return the outcome of every file of a finished deletion, and who decided. The receipt is in the table's
        metadata folder as JSON, Markdown and Parquet, and is written when the deletion ends. Raises NoSuchPlan before
        that."""
        return deletion.receipt(self.steps, job)

    def list_objects(self, table: str, location: str | None = None) -> Listing:
        """List every file below the table's locations (or below `location` inside them), and seal the listing.

        It must be taken before the metadata with which it is compared; `scan_orphans(listing=...)` reads the metadata
        again.
        """
        return self._orphans.list_objects(table, location)

    def latest_listing(self, table: str) -> Listing | None:
        """Return the newest sealed listing of the table, if any."""
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
        """Find unreferenced files: listed, not reachable, old enough, not a writer's, in no open plan. Changes nothing.

        Lists the table first, unless `listing` is given: a result of `list_objects`, an S3 `inventory`, a
        `parquet_listing`, or any DataFrame[path, last_modified, size_in_bytes]. `listed_at` is when its creation began
        (no later than the inventory or the files say; default for a DataFrame: now). Then it reads the metadata again.

        Raises StaleMetadata, PrefixMismatch, BadInput (an `older_than` inside `min_age_floor`), UnreadableMetadata,
        StorageError, and then records no scan.
        """
        return self._orphans.scan_orphans(table, now, older_than, location, listing, listed_at=listed_at)

    def settle_metadata(self, table: str, *, who: str, why: str) -> tuple[str, ...]:
        """Decide that the catalog's pointer is correct, and that newer metadata files do not belong to the table's
        history. Orphan scans then resume, and collect what those commits wrote. Return the newly settled files.

        Newer files stop scans because the catalog may have been restored from a backup. Raises BadInput without `who`
        or `why`; UnreadableMetadata, StorageError, LeaseTaken.
        """
        return self._orphans.settle_metadata(table, who=who, why=why)

    def inventory(self, manifest: str) -> Inventory:
        """Return an S3 Inventory report from its `manifest.json`, for `scan_orphans(listing=…)`. Raises BadInput and
        StorageError."""
        return read_inventory(self.live_stores, manifest)

    def parquet_listing(self, location: str) -> ParquetListing:
        """Return a listing in a Parquet file, or in the Parquet files of a folder, with the columns path, last_modified
        and size_in_bytes, for `scan_orphans(listing=…)`. Raises BadInput and StorageError."""
        return read_parquet_listing(self.live_stores, location)

    def scan_cold(self, table: str) -> ColdScan:
        """Find the files under the cold table's location that no cold table reaches: leftovers of refused writers and
        of killed handoffs. Changes nothing, and no deletion uses the result: archived data exists nowhere else.

        Excludes files younger than the policy's `orphans.min_age`. Raises NoSuchTable before the first handoff,
        UnreadableMetadata, StorageError, LeaseTaken.
        """
        return self._orphans.scan_cold(table)

    def scan(self, scan_id: str) -> OrphanScanResult:
        """Return the stored scan with that id. Raises NoSuchPlan."""
        return self._orphans.scan(scan_id)

    def latest_scan(self, table: str) -> OrphanScanResult | None:
        """Return the newest stored scan of the table, if any."""
        return self._orphans.latest_scan(table)

    def interrupted_scans(self, table: str) -> list[ScanRecord]:
        """Return scans of the table whose deletion was started and not finished, oldest first. They protect their
        files, so no newer scan lists those."""
        table_uuid = self.steps.table_uuid(table)
        return list(reversed(self.operations.scans.of_table(table_uuid, [ScanState.DELETING])))

    def approved_scan(self, table: str) -> OrphanScanResult | None:
        """Return the newest scan of the table that a person approved and whose deletion has not started. It takes
        precedence: a newer scan would need another approval for the same files."""
        found = self.operations.scans.of_table(self.steps.table_uuid(table), [ScanState.OPEN])
        approved = next((each for each in found if each.approved_at is not None), None)
        return None if approved is None else self.scan(approved.scan_id)

    def scan_trend(self, table: str, limit: int = 30) -> ScanTrend:
        """Return the table's last scans: orphans, files skipped as in flight, and how fast the table accumulates
        orphans."""
        return self._orphans.scan_trend(table, limit)

    def in_flight(self, table: str) -> InFlight | None:
        """Return whether the files that scans skip as in flight settle, and of which kind they are; None without a
        scan."""
        return self._orphans.in_flight(table)

    def delete_orphans(self, scan: OrphanScanResult | str, *, dry_run: bool = False) -> DeletionReport:
        """Delete the files of a stored scan. Each batch is checked again: files that a snapshot, a plan or a writer
        uses since the scan are kept and reported. Resumes where an earlier run stopped."""
        with noted_wait(self.resources, scan):
            return self._orphans.delete_orphans(scan, dry_run=dry_run)

    # --- garbage collection over a whole catalog --------------------------------------------------------------------

    def mark(
        self,
        catalog: str,
        policies: Mapping[str, Given] | Sequence[tuple[str, Given]] | None = None,
        *,
        now: datetime | None = None,
        snapshots: Snapshots | None = None,
    ) -> LiveSet:
        """Record which versions of which contents the references of `catalog` keep alive: the live catalog, with one
        reference per table, or a Nessie catalog in `catalogs.others`. Changes nothing in the catalog.

        `policies` have a cutoff by pattern of references, in order: a number of commits, a duration ("30d", which ends
        at `now`), an instant, or None or "none" for no cutoff. The first match wins; without one, all commits are live,
        and so is each head. None means those of lifecycle.yaml. `snapshots`: "all", or only "referenced" ones.

        Raises BadInput for another catalog or an unusable policy; what the catalog raises, with the set `failed`.
        """
        return self._live_sets.mark(catalog, policies, now, snapshots)

    def sweep(self, live_set_id: LiveSet | str, deferred: bool = True, *, threads: int = 2) -> Sweep:
        """Find the files that nothing live in the set reaches, `threads` tables at a time. The sealed scans wait for
        `delete_orphans`, or are deleted at once (not `deferred`), each within its own guards and approvals.

        References are read again before files are judged or deleted: new commits protect their files. A table that
        cannot be swept has its error in the result. Raises UnreadableMetadata if the metadata file of any live version
        is missing, and the set is `failed`; PlanStateError for a set that is not usable; NoSuchPlan.
        """
        chosen = live_set_id if isinstance(live_set_id, str) else live_set_id.live_set_id
        return self._live_sets.sweep(chosen, deferred=deferred, threads=threads)

    def live_sets(self) -> list[LiveSet]:
        """Return all live-contents sets, newest first."""
        return self._live_sets.live_sets()

    def live_set(self, live_set_id: str) -> LiveSetDetails:
        """Return a set with its references, contents and swept tables. Raises NoSuchPlan."""
        return self._live_sets.live_set(live_set_id)

    def compare_live_sets(self, before: str, after: str) -> LiveSetComparison:
        """Return which versions and contents only one of two sets has. Raises NoSuchPlan; BadInput for sets of
        different catalogs."""
        return self._live_sets.compare(before, after)

    def delete_live_set(self, live_set_id: str) -> None:
        """Delete a set. Raises PlanStateError while a deferred deletion needs it, NoSuchPlan."""
        self._live_sets.delete(live_set_id)

    def observe_catalog(self, most: int | None = None) -> dict[str, str]:
        """Record which tables the live catalog has now, so that dropped tables are detected. Reads the metadata files
        of new and changed tables, at most `most` of them; the next call reads more. Return the errors of unreadable
        tables."""
        return self._dropped.observe_catalog(most)

    def dropped_tables(self) -> list[DroppedTable]:
        """Return the tables that the live catalog no longer has: until when their files are kept, and their state."""
        return self._dropped.dropped_tables()

    def scan_dropped(self, table: str) -> OrphanScanResult:
        """Find what a dropped table (by name or uuid) has left, in the same way as `delete_dropped`. Changes nothing.

        Files that other tables read or own are kept, including those of a table that was created again in the same
        place. Raises NoSuchTable for a table that was not dropped, Refused for a hold and for a table that seems to be
        in another catalog, StalePlan for one that is in this catalog, GarbageCollectionDisabled, UnreadableMetadata,
        StorageError.
        """
        return self._dropped.scan_dropped(table)

    def delete_dropped(self, scan: OrphanScanResult | str, *, dry_run: bool = False) -> DeletionReport:
        """Delete what a scan of a dropped table found, once the policy's retention is over and a person has approved it
        (`approve`; the policy may waive this). Resumes where an earlier run stopped; ends the table's plans.

        Raises GraceNotOver, ApprovalNeeded, Refused (a hold; a person decided to keep the files), StalePlan if the
        table is in the catalog again, NoSuchPlan, UnreadableMetadata, StorageError, LeaseTaken.
        """
        with noted_wait(self.resources, scan):
            return self._dropped.delete_dropped(scan, dry_run=dry_run)

    def clear_dropped(self, *, dry_run: bool = False) -> list[Cleared]:
        """Process the dropped tables that an entry of lifecycle.yaml matches and whose retention is over: scan those
        without a recent scan, and delete what may be deleted. A refusal is reported with its table, and does not stop
        the others. A dry run scans nothing."""
        return self._dropped.clear_dropped(dry_run=dry_run)

    def undrop(
        self,
        table: str,
        uuid: str | None = None,
        as_name: str | None = None,
        *,
        incomplete: bool = False,
        who: str | None = None,
        why: str = "",
    ) -> Undropped:
        """Register a dropped table (by name or uuid) in the live catalog again, in its last state, under its former
        name or `as_name`. Its open scan is closed, and what its deletion moved into quarantine is restored. Every file
        that the state reaches is compared with the store. If the current snapshot misses one, this names it and
        registers nothing, unless `incomplete`, which needs `who` and `why`.

        Raises NoSuchTable; BadInput with all candidates if several have the name; Refused if files are missing, or a
        table or view has the name; StalePlan if the table is in the catalog; LeaseTaken; MissingFile after a purge.
        """
        return self._undrop.undrop(table, uuid, as_name, incomplete=incomplete, who=who, why=why)

    def keep_dropped(self, table: str, *, who: str, why: str) -> DroppedTable:
        """Decide to keep the files of a dropped table (by name or uuid), also those in quarantine. Raises NoSuchTable,
        PlanStateError."""
        return self._dropped.keep_dropped(table, who=who, why=why)

    def unkeep_dropped(self, table: str, *, who: str | None = None) -> DroppedTable:
        """End a `keep_dropped`: the retention counts from when the table was missed. `who` (default: the account,
        USER@HOST) is recorded. Raises NoSuchTable, PlanStateError."""
        return self._dropped.unkeep_dropped(table, who=who)

    def quarantined(self, table: str) -> list[QuarantineRecord]:
        """Return what deletions of the table moved into quarantine, newest first; also for a dropped table."""
        return self.operations.quarantines.of_table(self._dropped.state_even_if_dropped(table).metadata.table_uuid)

    def undelete(self, job: ExpirationPlan | OrphanScanResult | str, *, who: str, why: str) -> Undeleted:
        """Move the files that a deletion moved into quarantine back to their paths, unless another file is there. `job`
        is the plan or the orphan scan.

        They are protected there from orphan scans and all other deletions until `close_plan`. The quarantine keeps its
        copies until its retention is over. The table's metadata is not changed: read the expired snapshots from the
        metadata file in the result, or restore them from the cold tier with `restore`. A second call does the rest.
        Raises BadInput without `who` or `why`; NoSuchPlan if nothing of the job is in quarantine; PlanStateError while
        it is being deleted, and after its purge; LeaseTaken, StorageError.
        """
        return self._quarantine.undelete(job, who=who, why=why)

    def purge_quarantine(self, table: str, *, dry_run: bool = False) -> list[Purged]:
        """Delete permanently what was in quarantine for longer than `quarantine.retain`, job by job. Restored files
        stay until the undelete is closed, and held files until the hold ends. A dry run reports what would be deleted.
        Raises LeaseTaken, Busy, StorageError; Refused if a hold is placed between two batches."""
        return self._quarantine.purge_quarantine(table, dry_run=dry_run)

    def plan_difference(self, before: ExpirationPlan | str, after: ExpirationPlan | str) -> PlanDifference:
        """Return what plan `after` removes and `before` does not, and the opposite: snapshots, with the other plan's
        reasons to keep them, refs, and files with bytes by kind. Raises NoSuchPlan; BadInput for plans of different
        tables."""
        return self._explaining.plan_difference(before, after)

    def explain_in_plan(self, plan: ExpirationPlan | str, path: str) -> PlanExplanation:
        """Return why a file is in a plan; or, with every reason of the snapshots that keep it, why it is not.

        Uses the plan's own base, regardless of the table's current state. Raises NoSuchPlan, UnreadableMetadata.
        """
        return self._explaining.explain_in_plan(plan, path)

    def explain(self, table: str, path: str) -> Explanation:
        """Return a file's fate: what holds it, which plan has it, which plan or scan deleted it, or that it is an
        orphan.

        A file that a snapshot of the table's metadata reaches is `kept`, or `planned` if an open plan removes all those
        snapshots. `deleted` files are found in the journal's outcomes, orphans in the newest scan.
        """
        return (self.resources.other(table) or self._explaining).explain(table, path)

    def cold_tables(self, table_uuid: str) -> ColdTables | None:
        """Return the tables of the cold catalog with the history of the live table with that uuid; None before its
        first handoff. Raises UnreadableMetadata."""
        return contexts.cold_tables(self.resources, table_uuid)

    def cold_metadata(self, table: str) -> TableMetadata | None:
        """Return the table's metadata in the cold catalog, with several cold tables as one; None before its first
        handoff."""
        return contexts.cold_metadata(self.resources, self.steps.table_uuid(table))

    def cold_history(self, table: str) -> ColdHistory:
        """Return the table's snapshots in the cold tier, and which of them are in the deep archive. Raises NoSuchTable
        before the first handoff."""
        return self._reading.cold_history(table)

    def route(
        self, table: str, as_of: datetime | None = None, snapshot_id: int | None = None, tag: str | None = None
    ) -> Route:
        """Return the tier and the snapshot that answer, from the stored snapshot log; the live tier if both can. A tag
        stands for the snapshot to which it points, or pointed at its end; with `as_of`, for the one to which it pointed
        then.

        For a snapshot in the deep archive, the result says how long it takes until it is readable. Raises BadInput for
        two selectors, NaiveDatetime, NoSuchSnapshot if no tier has it.
        """
        return self._reading.route(table, as_of, snapshot_id, tag)

    def read(
        self, table: str, as_of: datetime | None = None, snapshot_id: int | None = None, tag: str | None = None
    ) -> DataFrame:
        """Return the table's rows now, at an instant, of a snapshot or a tag: from the live or the cold catalog
        (`route`).

        Raises InDeepArchive for a snapshot that must be thawed first, and what `route` raises.
        """
        return self._reading.read(table, as_of, snapshot_id, tag)

    def translate(self, sql: str, *, table: str | None = None, as_of: datetime | None = None) -> Query | TagStatement:
        """Return what `query` would run for `sql`, as Spark SQL; changes nothing.

        In a query, names of live tables get their catalog, and `FOR TAG 'x'`, `FOR VERSION AS OF` and `FOR TIMESTAMP AS
        OF` are answered by the tier that has the snapshot (`route`). In `TAG SNAPSHOT n [OF table] AS 'x' [WITH
        RETENTION FOREVER | 90 DAYS]`, if neither the statement nor `table` has the table's name, it is the table that
        has snapshot `n`. With `as_of`, a query's tables without such a clause are read at that instant. Raises BadInput
        with the correct form; NaiveDatetime; NoSuchTable; NoSuchSnapshot.
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
        """Run the translation of `sql` (or an existing translation): return the rows of a query, or the tag that was
        set.

        `who` and `why` are recorded for a tag. Raises what `translate` and `tag` raise, BadInput for a query that Spark
        refuses, InDeepArchive for one that has to wait for a thaw. Errors in single rows appear when they are
        collected.
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
        """Tag a snapshot of the live table. `retain`: "forever", or a duration from now.

        Iceberg counts from the snapshot's commit; the value on the ref expresses the same end in its terms. `who`
        (default: user and host), when and `why` are recorded in Postgres. A tag with that name on another snapshot is
        moved only with `replace`.

        Raises NoSuchSnapshot; BadInput for an invalid duration, a name that a branch has, or such a tag.
        """
        return self._tags_and_holds.tag(table, name, snapshot_id, retain, why=why, who=who, replace=replace)

    def untag(self, table: str, name: str, *, why: str = "", who: str | None = None) -> Tagged:
        """Remove a tag, whoever created it, and record who, when and `why`. Raises NoSuchSnapshot if the table has no
        such tag, BadInput if it was moved in the meantime."""
        return self._tags_and_holds.untag(table, name, why=why, who=who)

    def tags(self, table: str, *, with_removed: bool = False) -> TableRefs:
        """Return the table's branches and tags, each with its snapshot, terms and end, and who created it, when and
        why, if known. `with_removed` adds the records of removed tags."""
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

        `kind`: "legal", which also keeps snapshots of the cold tier out of the deep archive; "lease", for a reader,
        which ends after `ttl` unless it is renewed; "consumer", whose snapshot is the next one that it reads: that and
        every later one stay. `until`, or `ttl` from now, ends any of them. A dropped table (by name or uuid) takes
        holds while any of its files are left, also in quarantine.

        Raises NoSuchSnapshot, also for one that expired while the hold was placed; BadInput; Busy.
        """
        return self._tags_and_holds.hold(
            table, owner, reason, snapshot_ids, until, kind=kind, ttl=ttl, state_of=self._dropped.state_with_files
        )

    def holds(self, table: str, *, ended: bool = False) -> list[Hold]:
        """Return the table's active holds, oldest first; with `ended`, also past ones."""
        table_uuid, holds = self._dropped.state_even_if_dropped(table).metadata.table_uuid, self.operations.holds
        return list(holds.of_table(table_uuid) if ended else holds.active(table_uuid))

    def renew(self, hold_id: str, ttl: str | timedelta) -> Hold:
        """Extend a reader's lease until `ttl` from now. Raises Refused if it has ended, BadInput for another kind,
        NoSuchPlan for an unknown id."""
        return self._tags_and_holds.renew(hold_id, ttl)

    def advance(self, hold_id: str, snapshot_id: int) -> Hold:
        """Move a consumer's position: that snapshot, and every later one, stay from now on.

        Raises NoSuchSnapshot if the table no longer has it, Refused if the hold has ended, BadInput for another kind,
        NoSuchPlan for an unknown id.
        """
        return self._tags_and_holds.advance(hold_id, snapshot_id)

    def release(self, hold_id: str, *, who: str | None = None, why: str | None = None) -> Hold:
        """Release a hold. `who` (default: the account, USER@HOST) and `why` are recorded. Raises NoSuchPlan for an
        unknown id; BadInput without a name."""
        return self.operations.holds.release(hold_id, person() if who is None else who, why)

    def writers(self, table: str | None = None) -> list[Heartbeat]:
        """Return the active writers, by their heartbeats, of one table or of all, longest active first."""
        return self.operations.heartbeats.live(None if table is None else self.steps.table_uuid(table))

    def writing(
        self, table: str, writer_id: str, prefix: str | None = None, ttl: str | timedelta = "10m"
    ) -> AbstractContextManager[Writing]:
        """Send a heartbeat while the block runs: every unreferenced file of the table (or under `prefix`) then counts
        as a writer's.

        `prefix` is a folder in a location of the table, or is relative to each of them. Raises BadInput for another;
        OtherDeployment, also from `check`: a heartbeat protects only if the catalog's own deployment sees it.
        """
        return self._tags_and_holds.writing(table, writer_id, prefix, ttl)

    def append(
        self, table: str, df: DataFrame, lineage: CommitLineage | Mapping[str, str], branch: str | None = None
    ) -> Commit:
        """Append rows to the table, or to one of its branches, in one commit whose summary has the lineage.

        `lineage` is a CommitLineage, or a mapping of the summary keys of docs/lineage.md. It is validated before
        anything is written. Raises LineageRejected, which names every problem; NoSuchTable; BadInput for rows that do
        not fit; CommitConflict, CommitStateUnknown.
        """
        return self._commits.append(table, df, lineage, branch)

    def overwrite(
        self,
        table: str,
        df: DataFrame,
        lineage: CommitLineage | Mapping[str, str],
        where: str | Column | None = None,
    ) -> Commit:
        """Replace the rows that match `where` (None: all rows) by `df`, in one commit whose summary has the lineage.

        `where` must match whole files, as in Spark's `DataFrameWriterV2.overwrite`. Validated as by `append`, as an
        `overwrite`, which lifecycle.yaml may permit to some writers and operators alone.
        """
        return self._commits.overwrite(table, df, lineage, where)

    def enable_gate(self, *, dry_run: bool = False) -> GateStatus:
        """Install the lineage gate in the live catalog's database, or bring it up to date with lifecycle.yaml. From
        then on, tables whose `lineage.mode` is `reject` take only commits that a gated catalog validated.

        `dry_run` changes nothing, and reports the current state. Raises Refused for a catalog that is not in SQL, and
        for a login that does not own its tables; ConfigError for a pattern that Postgres cannot read; Busy.
        """
        return self._gate.enable(dry_run=dry_run)

    def disable_gate(self, *, dry_run: bool = False) -> GateStatus:
        """Remove the gate's trigger and rules: every engine may commit again. Recorded attempts stay. Raises as
        `enable_gate`."""
        return self._gate.disable(dry_run=dry_run)

    def gate_status(self) -> GateStatus:
        """Return the state of the gate, and how its rules differ from lifecycle.yaml. Changes nothing. Raises Refused
        for a catalog that is not in SQL."""
        return self._gate.status()

    def gate_attempts(self, table: str | None = None) -> list[GateAttempt]:
        """Return the commits that a gate refused, or recorded in mode `report`, newest first; of one table or all: in
        the catalog's database, and over REST. Raises Refused for a login that may not read them."""
        return self._gate.attempts(table)

    def watch_lineage(self, seconds: float = 20.0) -> Watched:
        """Check the new snapshots of every governed table against its lineage requirements, and record those that do
        not meet them. Reads the metadata files that changed, for about `seconds`; the next call continues.

        The first call begins the watch: older snapshots are not checked. It works in every catalog, and also finds what
        got past a gate.
        """
        return self._lineage_watching.watch(seconds)

    def check_lineage(self, table: str) -> LineageCheck:
        """Check the table's new snapshots as `watch_lineage` does, and return those that do not meet its requirements
        and that are not acknowledged. Raises NoSuchTable, UnreadableMetadata."""
        return self._lineage_watching.check(table)

    def acknowledge_lineage(self, table: str, *, who: str, why: str) -> tuple[UnmetSnapshot, ...]:
        """Acknowledge the table's unmet snapshots: the check `lineage_gate` is green again. Return them. Raises
        BadInput without `who` or `why`, which are recorded."""
        return self._lineage_watching.acknowledge(table, who=who, why=why)

    def record_lineage(self, table: str) -> LineageRecorded:
        """Record the snapshots of the table that the lineage ledger does not have yet, and publish them in
        `<live>.lifecycle.lineage_ledger`, with their inputs in `lineage_edges`. Starts no Spark without a new snapshot.

        Raises NoSuchTable, UnreadableMetadata, LeaseTaken.
        """
        done = self._recording.record_lineage(table)
        self._publishing.publish()
        return done

    def ingested(
        self, table: str, partition: Mapping[str, object] | str | None = None, path: str | None = None
    ) -> Ingested:
        """Return the newest snapshot that ingested rows of a partition, or of a data file, also of expired history; and
        who wrote it, at which commit hash. Without both: the table's newest ingest.

        `partition` maps partition fields to values, or is a text such as `day=2024-03-15`; values compare in Iceberg's
        human-readable form. Files that compactions wrote are traced to the snapshots that ingested their rows. Starts
        no Spark. Raises NoSuchTable; BadInput for an unknown partition field; NoSuchSnapshot if no tier has the
        partition or the file; UnreadableMetadata.
        """
        return self._auditing.ingested(table, partition, path)

    def downstream(self, table: str, snapshot_id: int, *, states: bool = False) -> Lineage:
        """Return every snapshot that read this one, in any table, directly or through others.

        Only inputs that writers listed count. With `states`, a reader of a later state of a table also counts, because
        that state contains the snapshot; without, the answer's `left_out` counts what that would add. A table that
        cannot be read is in `unreadable`, and the answer is without what the ledger lacks of it. Starts no Spark.
        Raises NoSuchTable, UnreadableMetadata, StorageError.
        """
        return self._auditing.lineage(table, snapshot_id, "downstream", states=states)

    def upstream(self, table: str, snapshot_id: int, *, states: bool = False) -> Lineage:
        """Return every snapshot that this one read, directly or through others: the reverse of `downstream`."""
        return self._auditing.lineage(table, snapshot_id, "upstream", states=states)

    def overwrites(self, since: datetime, until: datetime, table: str | None = None) -> Overwrites:
        """Return the overwrites and deletes of a table, or of all tables, with `since` <= time < `until`: who, why,
        under which ticket, and what their summaries miss. Of all tables, those that cannot be read are in
        `unreadable`. Starts no Spark. Raises NaiveDatetime, NoSuchTable, UnreadableMetadata."""
        return self._auditing.overwrites(since, until, table)

    def incident(self, table: str, snapshot_id: int, *, states: bool = True) -> Incident:
        """Return a report about a snapshot to attach to a ticket, in Markdown and in HTML, both with the graph: who
        wrote it, its data files, its blast radius, its inputs, later overwrites, and where it is. The blast radius has
        readers of later states of a table, as `downstream` has with `states`; False narrows it. Raises
        NoSuchTable; NoSuchSnapshot if neither the table nor the ledger has it; UnreadableMetadata."""
        return self._incidents.incident(table, snapshot_id, states=states)

    def compact_history(self, table: str, now: datetime | None = None) -> HistoryCompaction:
        """Summarize the table's history before the retention window into ranges: one for each unbroken run of the same
        writer, operation, trigger and schema. `snapshot_at` still answers for every instant, from a few kilobytes. The
        table itself does not change. Raises NoSuchTable, UnreadableMetadata, StorageError, LeaseTaken."""
        return self._past.compact_history(table, now)

    def snapshot_at(self, table: str, instant: datetime) -> int:
        """Return the id of the snapshot that was current at an instant of all the table's past, also of snapshots that
        expired. Raises NoSuchTable; NoSuchSnapshot before the table's first snapshot and for a time that no tier has;
        NaiveDatetime, StorageError."""
        return self._past.current_at(table, instant).snapshot_id

    def current_at(self, table: str, instant: datetime) -> CurrentSnapshot:
        """Return the same snapshot, with its schema and who wrote it."""
        return self._past.current_at(table, instant)

    def schema_history(self, table: str) -> SchemaHistory:
        """Return the schemas that the table has had, what each changed, and which snapshots used it; including expired
        ones if the ledger has them (`record_lineage`)."""
        return self._maintenance.schema_history(table)

    def health(self, table: str) -> TableHealth:
        """Return the table's score, 0 to 100, with its parts: what each costs, and what to do next. Figures that were
        recorded of the same metadata file are not measured again; then this reads the metadata file and Postgres, and
        starts no Spark. Records the score. Raises NoSuchTable, UnreadableMetadata."""
        return self._measuring.health(table)

    def table_health(self, table: str) -> TableHealth:
        """Return the same, but read all manifests again."""
        return self._measuring.table_health(table)

    def health_history(self, table: str) -> HealthHistory:
        """Return the table's recorded scores, oldest first. Raises NoSuchTable."""
        return self._measuring.history(table)

    def plan_query(
        self,
        table: str,
        predicate: str | BooleanExpression = "true",
        *,
        snapshot_id: int | None = None,
        ref: str | None = None,
        case_sensitive: bool = True,
        footers: int = 0,
    ) -> QueryPlan:
        """Return what a scan with that predicate reads, pass by pass, and what maintenance would spare it.

        The files are those that Iceberg's planner selects. Changes nothing; only `QueryPlan.files()` starts Spark.

        `predicate` is a row filter as in pyiceberg, as text or as an expression. `snapshot_id` or `ref` (a branch or
        tag) replaces the current snapshot. `footers` is the most data files whose Parquet footers are read, for row
        groups: the only reads of data files.

        Raises NoSuchTable, NoSuchSnapshot; BadInput for a predicate that cannot be used, before manifests are read;
        UnreadableMetadata, EncryptedTable.
        """
        query = ScanQuery(predicate, snapshot_id, ref, case_sensitive, footers)
        return self._maintenance.plan_query(table, query)

    def compact_data_files(self, table: str, *, dry_run: bool = False) -> CompactedDataFiles:
        """Rewrite small data files within the bandwidth budget, if the table's health requires it."""
        return self._maintenance.compact_data_files(table, dry_run=dry_run)

    def compact_manifests(self, table: str, *, dry_run: bool = False) -> CompactedManifests:
        """Rewrite many small manifests into a few, if their average size is too small."""
        return self._maintenance.compact_manifests(table, dry_run=dry_run)

    def commit_costs(self, table: str) -> CommitCosts:
        """Return what each commit of the table wrote besides its data, beside the size of its change; and whether that
        grows with the table. Only commits of snapshots that the table still has are complete, and the sizes of metadata
        files are known as far back as the metadata log goes. Raises NoSuchTable, UnreadableMetadata."""
        return self._maintenance.commit_costs(table)

    def costs(self, table: str, curve: RetentionCurve | None = None) -> TableCosts:
        """Return what the table holds in each tier and for each tag, and what that costs by `prices` in lifecycle.yaml.

        Sizes are from the metadata. A `curve` of the table has what its refs hold; without it, they are counted.
        Changes nothing. Raises UnreadableMetadata.
        """
        return self._maintenance.costs(table, curve)

    def prepare(self, *, dry_run: bool = False) -> list[Part]:
        """Make ahead what the first writing steps would make: the operations schema with its roles, the catalogs'
        tables (V0 becomes V1), the record of the deployment, the cold catalog's guard. For logins that may not; no step
        needs it where its login has the rights. Return each part with its place and the right that it needs.

        Raises Refused, with the statement for the owner."""
        return prepare(self.resources, dry_run=dry_run)

    def take_over(self, *, who: str, why: str) -> list[DeploymentRecord]:
        """Transfer the live catalog to this deployment: the steps of its current deployment are refused from now on.
        Who, when and why are recorded next to the catalog. Does nothing if it already belongs to this deployment.

        From then on, the other operations database's holds, open plans, graces and heartbeats protect nothing. Return
        the active record. Raises BadInput without `who` or `why`; Refused for a role without rights.
        """
        return take_over(self.resources, who=who, why=why)

    def pause(self, table: str | None = None, *, who: str, why: str) -> Pause:
        """Stop all work on a table, or on all tables, on every machine: workers notice within seconds, stop between two
        pieces of work, and no new work begins. Reads, holds, restores and undeletes continue. A dropped table (by name
        or uuid) takes a pause while any of its files are left."""
        table_uuid = None if table is None else self._dropped.state_with_files(table).metadata.table_uuid
        return self.operations.pauses.begin(who, why, table_uuid, table)

    def resume(self, table: str | None = None, *, who: str, why: str | None = None) -> list[Pause]:
        """End the pause of a table, or (without one) the pause of all. Return the ended pauses. A table's own pause
        remains after the pause of all ends; it also ends by the name that the table had, if it was renamed or dropped
        since. Raises BadInput without `who`; NoSuchTable if nothing of the name exists or is paused."""
        try:
            table_uuid = None if table is None else self.steps.table_uuid(table)
        except NoSuchTable:
            if not (ended := self.operations.pauses.end(who, None, why, name=table)):
                raise
            return ended
        return self.operations.pauses.end(who, table_uuid, why, name=table)

    def decisions(self, table: str | None = None, *, about: str | None = None) -> list[Decision]:
        """Return who decided what, why and with which account, newest first, for one table or for all; or, oldest
        first, `about` one plan, scan, hold, pause or thaw. These records cannot be changed or deleted."""
        if about is not None:
            return self.operations.decisions.about(about)
        return self.operations.decisions.of_table(None if table is None else self.steps.table_uuid(table))

    def pauses(self) -> list[Pause]:
        """Return the active pauses."""
        return self.operations.pauses.in_force()

    def fleet(self, *, history: bool = True) -> Fleet:
        """Return every governed table at a glance: what runs, waits, is overdue, was freed, what it costs; and whether
        its quiet window will suffice. With `history`, also the last 30 days, for the page's plots. Reads Postgres and
        the catalog's list of tables; no metadata file, and no Spark."""
        return fleet_of(self.resources, self.answering_tables()[0], history=history)

    def metrics(self) -> str:
        """Return the fleet as Prometheus metrics by table, in the text exposition format. Reads Postgres; starts no
        Spark."""
        return metrics(self.resources, self.answering_tables()[0])

    def publish_results(self) -> int:
        """Append pending rows of plans and deletions to the result tables `<live>.lifecycle.plan_files` and
        `<live>.lifecycle.deletions`. Return the number of plans and deletions. `close` does this if a Spark session is
        started. Raises ConfigError for a result table that was changed manually."""
        return self._publishing.publish()

    def compact_result_tables(self, *, dry_run: bool = False) -> ResultTablesCompacted:
        """Compact the tables of namespace `lifecycle`, and expire their snapshots that are older than 30 days."""
        return self._publishing.compact(dry_run=dry_run)

    def forget_records(self, *, dry_run: bool = False) -> Forgotten:
        """Delete the details of what ended longer ago than `records.keep`: a deletion's batches and outcomes, steps,
        leases, refused commits; frames of plans, scans, thaws and restores; incident reports. Also delete listings and
        cold scans older than `records.listings`. The records of plans, scans and decisions stay, and so do receipts and
        each table's newest plan and scan.

        Raises StorageError if the store refuses; the next run resumes; ClocksDisagree. A pause of all tables stops it.
        """
        return forget_records(self.resources, self._gate, dry_run=dry_run)
