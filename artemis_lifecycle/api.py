"""The public API: each method is one step of the walk, callable from Python, the terminal and Dagster.

Belongs here: the names of the steps, and the services that run them. Does not belong here: how a step does its work.
One file: a caller finds every name of the contract in one class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import wraps
from inspect import isfunction, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from artemis_lifecycle.audit.ledger import LineageRecorded
from artemis_lifecycle.audit.past import History, Past, ReachableSet
from artemis_lifecycle.audit.questions import Auditing
from artemis_lifecycle.audit.recording import LineageEvents, Recording, require_open_lineage
from artemis_lifecycle.audit.watch import LineageWatching
from artemis_lifecycle.catalogs.deployments import DeploymentRecord
from artemis_lifecycle.cold_tier.cold_tables import ColdTables
from artemis_lifecycle.cold_tier.handoff import Handoff
from artemis_lifecycle.commits.gate import Gate, Pointer
from artemis_lifecycle.commits.writes import Commits
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.deletion.records import Forgotten
from artemis_lifecycle.deletion.report import DeletionReport, Receipt
from artemis_lifecycle.errors import GraceNotOver, LifecycleError, NoSuchTable, NotApplicable
from artemis_lifecycle.expiration.commit import ExpirationCommit
from artemis_lifecycle.expiration.plan import ExpirationPlan, Wanted
from artemis_lifecycle.expiration.verdicts import Verdict
from artemis_lifecycle.fleet.assess import Assessment, assess
from artemis_lifecycle.fleet.fleet import Fleet, fleet_of, metrics, table_page_of
from artemis_lifecycle.formats.paimon.procedures import PaimonProcedures
from artemis_lifecycle.formats.paimon.service import PaimonTables
from artemis_lifecycle.live_sets.sweep import Sweep
from artemis_lifecycle.metadata.types import SnapshotHistory, TableMetadata
from artemis_lifecycle.operations.cold_tier import ColdLoss, RestoreRecord, ThawRecord
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.decisions import Decision, Pause, person
from artemis_lifecycle.operations.holds import Heartbeat, Hold, HoldKind
from artemis_lifecycle.operations.live_sets import LiveSet
from artemis_lifecycle.operations.plans import PlanRecord
from artemis_lifecycle.operations.quarantines import QuarantineRecord
from artemis_lifecycle.operations.scans import ScanRecord, ScanState
from artemis_lifecycle.orphans.external_listing import Inventory, ParquetListing, read_inventory, read_parquet_listing
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.live_inventory import LiveInventory, is_live_inventory, read_live_inventory
from artemis_lifecycle.orphans.scan import OrphanScanResult
from artemis_lifecycle.planning.plan import Query as ScanQuery
from artemis_lifecycle.planning.plan import QueryPlan
from artemis_lifecycle.session import contexts
from artemis_lifecycle.session.live_catalogs import ask_all
from artemis_lifecycle.session.policies import PolicyExplanation, effective_policy
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps, noted_wait
from artemis_lifecycle.storage.frames import frame_of
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.upkeep.maintenance import Maintenance, Measuring
from artemis_lifecycle.upkeep.publishing import Publishing, ResultTablesCompacted
from artemis_lifecycle.upkeep.table_checks import TableChecks
from artemis_lifecycle.walk import deletion
from artemis_lifecycle.walk.cold_tier import ColdTier
from artemis_lifecycle.walk.deletion import Deletion
from artemis_lifecycle.walk.dropped import DroppedTables
from artemis_lifecycle.walk.expiration import Expiration
from artemis_lifecycle.walk.explaining import Explaining, Explanation, Incidents
from artemis_lifecycle.walk.live_sets import LiveSets
from artemis_lifecycle.walk.nessie import NessieTables
from artemis_lifecycle.walk.operating import Part, forget_records, prepare, take_over
from artemis_lifecycle.walk.orphans import Orphans
from artemis_lifecycle.walk.plan_checks import ALL_CHECKS, PlanChecks
from artemis_lifecycle.walk.quarantine import Quarantine
from artemis_lifecycle.walk.reading import Queries, Reading, WaysOut
from artemis_lifecycle.walk.tags_and_holds import Tagged, TagsAndHolds
from artemis_lifecycle.walk.undrop import Undrop

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import DataFrame, SparkSession

    from artemis_lifecycle.expiration.curve import RetentionCurve
    from artemis_lifecycle.upkeep.costs import TableCosts

__all__ = ["Explanation", "Lifecycle", "ReachableSet", "Tagged"]

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L")


def _verb(service: str, method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Lifecycle, P], R]:
    """Return a method of `Lifecycle` that calls a method of its service, with the same signature and docstring."""

    def call(self: Lifecycle, /, *args: P.args, **kwargs: P.kwargs) -> R:
        found: R = getattr(getattr(self, service), method.__name__)(*args, **kwargs)
        return found

    # Not `wraps`: documentation would follow `__wrapped__` and leave the verb out.
    call.__name__, call.__doc__ = method.__name__, method.__doc__
    call.__signature__ = signature(method)  # type: ignore[attr-defined]
    return call


_QUESTIONS = frozenset(
    """
    answering_tables approved_scan assess cold_guard cold_history cold_losses cold_metadata cold_tables commit_costs
    compare_live_sets costs current_at decisions downstream dropped_tables due_plans explain explain_in_plan
    explain_policy fleet gate_attempts gate_status get_current health health_history holds in_flight incident ingested
    interrupted_scans inventory kind latest_listing latest_scan live_set live_sets metrics overwrites parquet_listing
    pauses plan plan_difference plan_query plans quarantined query reachable_set read receipt restores retention_curve
    route rules scan scan_trend schema_history snapshot_at snapshot_history table_health table_page tables tags
    thaw_files thaws thaws_to_follow translate uncommitted_plan upstream what_if writers
    """.split()  # noqa: SIM905
)
"""The verbs that change no table, file or decision."""

_NOT_ASKED = _QUESTIONS | {"append", "close", "compare_and_swap", "overwrite", "prepare", "take_over"}
"""They, what anybody may do who may write to the catalog, and what a deployment begins and ends with."""


def _asking(of: type[L]) -> type[L]:
    """Let each verb of the class that changes something first ask whether the live catalog is still this deployment's,
    however recently that was asked, and at its end record outside of the database what a person decided. Raises
    OtherDeployment."""

    def asking(verb: Callable[..., object]) -> Callable[..., object]:
        @wraps(verb)
        def call(self: Lifecycle, /, *args: object, **kwargs: object) -> object:
            self.resources.require_deployment(record=False)
            try:
                return verb(self, *args, **kwargs)
            finally:
                self.resources.note_decisions()

        return call

    for name, verb in list(vars(of).items()):
        if isfunction(verb) and not name.startswith("_") and name not in _NOT_ASKED:
            setattr(of, name, asking(verb))
    return of


@_asking
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
        steps.ways_out.append(WaysOut(resources, self._past).tell)
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

    rules = _verb("resources", Resources.rules)
    cold_guard = _verb("resources", Resources.cold_guard)

    def tables(self) -> list[str]:
        """Return the keys of all tables: `namespace.table` for those of the live catalog, without the project's own
        result tables; then `<catalog>:<namespace.table>` for those of the other catalogs. Raises OperationsUnavailable
        if a catalog does not answer."""
        found, errors = self.answering_tables()
        for error in errors.values():
            raise error
        return found

    def answering_tables(self) -> tuple[list[str], dict[str, LifecycleError]]:
        """Return `tables()` of the catalogs that answer in time, and the errors of those beside `catalogs.live` that do
        not, by their names. Raises the live catalog's error."""
        found, errors = self.steps.answering_tables()
        for name, answer in ask_all({name: other.tables for name, other in self.resources.others.items()}).items():
            if isinstance(answer, LifecycleError):
                errors[name] = answer
            else:
                found += answer
        return found, errors

    kind = _verb("resources", Resources.kind)

    def explain_policy(self, table: str) -> PolicyExplanation:
        """Return the settings of a table's retention with where each came from (`retention.from`): lifecycle.yaml, the
        table's properties, policies that its catalog keeps. The safer value wins. Raises OperationsUnavailable, Refused
        for a policy of the catalog that cannot be understood."""
        return effective_policy(self.resources, table).explanation

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

    get_current = _verb("_pointer", Pointer.current)
    compare_and_swap = _verb("_pointer", Pointer.compare_and_swap)

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

    retention_curve = _verb("_history", History.retention_curve)

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
        HandoffFailed for a table whose uuid has another name to which the archive belongs; Refused for a table
        of a REST catalog whose commit could not be proven afterwards (docs/catalogs.md), CommitStateUnknown for one
        with an earlier commit that is not proven yet.
        """
        planner = self.resources.other(table) or self._expiration
        return planner.plan_expiration(table, Wanted(now, older_than, retain_last, snapshot_ids))

    what_if = _verb("_expiration", Expiration.what_if)

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

    check_table = _verb("_table_checks", TableChecks.judge)

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

    restore = _verb("_cold_tier", ColdTier.restore)

    def restores(self, table: str) -> list[RestoreRecord]:
        """Return restores from the cold tier, newest first, including unfinished ones."""
        return self.operations.restores.of_table(self.steps.table_uuid(table))

    deep_archive = _verb("_cold_tier", ColdTier.deep_archive)
    scrub_cold = _verb("_cold_tier", ColdTier.scrub_cold)
    renew_identities = _verb("_cold_tier", ColdTier.renew_identities)
    recover_archive = _verb("_cold_tier", ColdTier.recover_archive)

    def cold_losses(self, table: str) -> list[ColdLoss]:
        """Return cold files that a scrub found lost and that are still lost, longest unchecked first."""
        return self.operations.scrubs.losses(self.steps.table_uuid(table))

    request_thaw = _verb("_cold_tier", ColdTier.request_thaw)
    approve_thaw = _verb("_cold_tier", ColdTier.approve_thaw)
    refuse_thaw = _verb("_cold_tier", ColdTier.refuse_thaw)
    follow_thaw = _verb("_cold_tier", ColdTier.follow_thaw)
    thaws_to_follow = _verb("_cold_tier", ColdTier.thaws_to_follow)

    def thaw_files(self, thaw_id: str) -> DataFrame:
        """Return DataFrame[path, size_in_bytes] of the files of a thaw. Raises NoSuchPlan."""
        location = self.operations.thaws.get(thaw_id).files_location
        return frame_of(self.resources.start_spark, location, self.live_stores)

    def thaws(self, table: str | None = None, *, ended: bool = False) -> list[ThawRecord]:
        """Return thaws that have not ended (with `ended`, all), of one table or of all, newest first."""
        return self.operations.thaws.list(None if table is None else self.steps.table_uuid(table), ended=ended)

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
            return DeletionReport(plan.plan_id, table, pending=plan.summary.files, pending_until=done.due_at)

    approve = _verb("_deletion", Deletion.approve)
    close_plan = _verb("_deletion", Deletion.close_plan)

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

    list_objects = _verb("_orphans", Orphans.list_objects)

    def latest_listing(self, table: str) -> Listing | None:
        """Return the newest sealed listing of the table, if any."""
        record = self.operations.scans.latest_listing(self.steps.table_uuid(table))
        return None if record is None else Listing.of_record(record)

    scan_orphans = _verb("_orphans", Orphans.scan_orphans)
    settle_metadata = _verb("_orphans", Orphans.settle_metadata)

    def inventory(self, name: str) -> Inventory | LiveInventory:
        """Return an S3 Inventory report from its `manifest.json`, or a live inventory table of S3 Metadata
        (`CATALOG:b_BUCKET.inventory`), for `scan_orphans(listing=…)`. Raises BadInput and StorageError."""
        if is_live_inventory(name):
            return read_live_inventory(self.spark, name, self.config.catalogs.live.name)
        return read_inventory(self.live_stores, name)

    def parquet_listing(self, location: str) -> ParquetListing:
        """Return a listing in a Parquet file, or in the Parquet files of a folder, with the columns path, last_modified
        and size_in_bytes, for `scan_orphans(listing=…)`. Raises BadInput and StorageError."""
        return read_parquet_listing(self.live_stores, location)

    scan_cold = _verb("_orphans", Orphans.scan_cold)
    scan = _verb("_orphans", Orphans.scan)
    latest_scan = _verb("_orphans", Orphans.latest_scan)

    def interrupted_scans(self, table: str) -> list[ScanRecord]:
        """Return scans of the table whose deletion was started and not finished, oldest first. They protect their
        files, so no newer scan lists those."""
        return list(reversed(self.operations.scans.of_table(self.steps.table_uuid(table), [ScanState.DELETING])))

    def approved_scan(self, table: str) -> OrphanScanResult | None:
        """Return the newest scan of the table that a person approved and whose deletion has not started. It takes
        precedence: a newer scan would need another approval for the same files."""
        found = self.operations.scans.of_table(self.steps.table_uuid(table), [ScanState.OPEN])
        approved = next((each for each in found if each.approved_at is not None), None)
        return None if approved is None else self.scan(approved.scan_id)

    scan_trend = _verb("_orphans", Orphans.scan_trend)
    in_flight = _verb("_orphans", Orphans.in_flight)

    def delete_orphans(self, scan: OrphanScanResult | str, *, dry_run: bool = False) -> DeletionReport:
        """Delete the files of a stored scan. Each batch is checked again: files that a snapshot, a plan or a writer
        uses since the scan are kept and reported. Resumes where an earlier run stopped."""
        with noted_wait(self.resources, scan):
            return self._orphans.delete_orphans(scan, dry_run=dry_run)

    # --- garbage collection over a whole catalog --------------------------------------------------------------------

    mark = _verb("_live_sets", LiveSets.mark)

    def sweep(self, live_set_id: LiveSet | str, deferred: bool = True, *, threads: int = 2) -> Sweep:
        """Find the files that nothing live in the set reaches, `threads` tables at a time. The sealed scans wait for
        `delete_orphans`, or are deleted at once (not `deferred`), each within its own guards and approvals.

        References are read again before files are judged or deleted: new commits protect their files. A table that
        cannot be swept has its error in the result. Raises UnreadableMetadata if the metadata file of any live version
        is missing, and the set is `failed`; PlanStateError for a set that is not usable; NoSuchPlan.
        """
        chosen = live_set_id if isinstance(live_set_id, str) else live_set_id.live_set_id
        return self._live_sets.sweep(chosen, deferred=deferred, threads=threads)

    live_sets = _verb("_live_sets", LiveSets.live_sets)
    live_set = _verb("_live_sets", LiveSets.live_set)
    compare_live_sets = _verb("_live_sets", LiveSets.compare)
    delete_live_set = _verb("_live_sets", LiveSets.delete)
    observe_catalog = _verb("_dropped", DroppedTables.observe_catalog)
    dropped_tables = _verb("_dropped", DroppedTables.dropped_tables)

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

    clear_dropped = _verb("_dropped", DroppedTables.clear_dropped)
    undrop = _verb("_undrop", Undrop.undrop)
    keep_dropped = _verb("_dropped", DroppedTables.keep_dropped)
    unkeep_dropped = _verb("_dropped", DroppedTables.unkeep_dropped)

    def quarantined(self, table: str) -> list[QuarantineRecord]:
        """Return what deletions of the table moved into quarantine, newest first; also for a dropped table."""
        return self.operations.quarantines.of_table(self._dropped.state_even_if_dropped(table).metadata.table_uuid)

    undelete = _verb("_quarantine", Quarantine.undelete)
    purge_quarantine = _verb("_quarantine", Quarantine.purge_quarantine)
    plan_difference = _verb("_explaining", Explaining.plan_difference)
    explain_in_plan = _verb("_explaining", Explaining.explain_in_plan)

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

    cold_history = _verb("_reading", Reading.cold_history)
    route = _verb("_reading", Reading.route)
    read = _verb("_reading", Reading.read)
    translate = _verb("_queries", Queries.translate)
    query = _verb("_queries", Queries.query)
    tag = _verb("_tags_and_holds", TagsAndHolds.tag)
    untag = _verb("_tags_and_holds", TagsAndHolds.untag)
    tags = _verb("_tags_and_holds", TagsAndHolds.tags)

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
        every later one stay. `until`, or `ttl` from now, ends any of them; now is the later of Postgres' clock and this
        host's. A dropped table (by name or uuid) takes holds while any of its files are left, also in quarantine.

        Raises NoSuchSnapshot, also for one that expired while the hold was placed; BadInput; Busy.
        """
        return self._tags_and_holds.hold(
            table, owner, reason, snapshot_ids, until, kind=kind, ttl=ttl, state_of=self._dropped.state_with_files
        )

    def holds(self, table: str, *, ended: bool = False) -> list[Hold]:
        """Return the table's active holds, oldest first; with `ended`, also past ones."""
        table_uuid, holds = self._dropped.state_even_if_dropped(table).metadata.table_uuid, self.operations.holds
        return list(holds.of_table(table_uuid) if ended else holds.active(table_uuid))

    renew = _verb("_tags_and_holds", TagsAndHolds.renew)
    advance = _verb("_tags_and_holds", TagsAndHolds.advance)

    def release(self, hold_id: str, *, who: str | None = None, why: str | None = None) -> Hold:
        """Release a hold. `who` (default: the account, USER@HOST) and `why` are recorded. Raises NoSuchPlan for an
        unknown id; BadInput without a name."""
        return self.operations.holds.release(hold_id, person() if who is None else who, why)

    def writers(self, table: str | None = None) -> list[Heartbeat]:
        """Return the active writers, by their heartbeats, of one table or of all, longest active first."""
        return self.operations.heartbeats.live(None if table is None else self.steps.table_uuid(table))

    writing = _verb("_tags_and_holds", TagsAndHolds.writing)
    append = _verb("_commits", Commits.append)
    overwrite = _verb("_commits", Commits.overwrite)
    enable_gate = _verb("_gate", Gate.enable)
    disable_gate = _verb("_gate", Gate.disable)
    gate_status = _verb("_gate", Gate.status)
    gate_attempts = _verb("_gate", Gate.attempts)
    watch_lineage = _verb("_lineage_watching", LineageWatching.watch)
    check_lineage = _verb("_lineage_watching", LineageWatching.check)
    acknowledge_lineage = _verb("_lineage_watching", LineageWatching.acknowledge)

    def record_lineage(self, table: str) -> LineageRecorded:
        """Record the snapshots of the table that the lineage ledger does not have yet, and publish them in
        `<live>.lifecycle.lineage_ledger`, with their inputs in `lineage_edges`. Starts no Spark without a new snapshot.

        Raises NoSuchTable, UnreadableMetadata, LeaseTaken.
        """
        done = self._recording.record_lineage(table)
        self._publishing.publish()
        return done

    ingested = _verb("_auditing", Auditing.ingested)
    downstream = _verb("_auditing", Auditing.downstream)
    upstream = _verb("_auditing", Auditing.upstream)
    overwrites = _verb("_auditing", Auditing.overwrites)
    incident = _verb("_incidents", Incidents.incident)
    compact_history = _verb("_past", Past.compact_history)

    def snapshot_at(self, table: str, instant: datetime) -> int:
        """Return the id of the snapshot that was current at an instant of all the table's past, also of snapshots that
        expired. Raises NoSuchTable; NoSuchSnapshot before the table's first snapshot and for a time that no tier has;
        NaiveDatetime, StorageError."""
        return self._past.current_at(table, instant).snapshot_id

    current_at = _verb("_past", Past.current_at)
    schema_history = _verb("_maintenance", Maintenance.schema_history)
    health = _verb("_measuring", Measuring.health)
    table_health = _verb("_measuring", Measuring.table_health)
    health_history = _verb("_measuring", Measuring.history)

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

    compact_data_files = _verb("_maintenance", Maintenance.compact_data_files)
    compact_manifests = _verb("_maintenance", Maintenance.compact_manifests)
    commit_costs = _verb("_maintenance", Maintenance.commit_costs)
    costs = _verb("_maintenance", Maintenance.costs)

    def prepare(self, *, dry_run: bool = False) -> list[Part]:
        """Make ahead what the first writing steps would make: the operations schema with its roles, the catalogs'
        tables (V0 becomes V1), the record of the deployment, the cold catalog's guard. For logins that may not; no step
        needs it where its login has the rights. Return each part with its place and the right that it needs.

        Raises Refused, with the statement for the owner."""
        return prepare(self.resources, dry_run=dry_run)

    def take_over(self, *, who: str, why: str) -> list[DeploymentRecord]:
        """Transfer the live catalog to this deployment: the steps of its current deployment are refused from now on.
        Who, when and why are recorded next to the catalog. Does nothing if it already belongs to this deployment. What
        the deep archive has and this operations database does not know is recorded again.

        From then on, the other operations database's holds, open plans, graces and heartbeats protect nothing. Return
        the active record. Raises BadInput without `who` or `why`; Refused for a role without rights.
        """
        taken = take_over(self.resources, who=who, why=why)
        self._cold_tier.recall_all_moves()
        return taken

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

    def table_page(self, table: str, curve: RetentionCurve | None = None, costs: TableCosts | None = None) -> str:
        """Return the page of one table as HTML: its snapshots and what each holds, its health over time, its plans,
        what was deleted, is held and archived, and what it costs. Measures what is not given."""
        curve = curve or self.retention_curve(table)
        costs = costs or self.costs(table, curve)
        return table_page_of(self.resources, self.snapshot_history(table), self.health_history(table), curve, costs)

    def assess(
        self,
        pattern: str = "*",
        listing: str | Inventory | LiveInventory | ParquetListing | None = None,
        *,
        listed_at: datetime | None = None,
        quick: bool = False,
    ) -> Assessment:
        """Return what the tables of the live catalogs would gain, as `fleet.assess.assess` does without a Lifecycle.
        Reads catalogs and stores alone; no operations database, and Spark for a live inventory alone."""
        return assess(self.config, pattern, listing, listed_at=listed_at, quick=quick)

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
