"""The public face: each method is one step of the walk, callable from Python, the terminal and Dagster alike.

Belongs here: naming the steps, wiring rooms together, leases and step records around what changes something. Does not
belong: how a step does its work.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from artemis_lifecycle.catalogs.commit import BaseState, Change, TagChange, commit_with_retry
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import spark_conf
from artemis_lifecycle.cold_tier import thaw as thawing
from artemis_lifecycle.cold_tier.cold_tables import ColdTables
from artemis_lifecycle.cold_tier.deep_archive import DeepArchiveContext, DeepArchived, archived_files
from artemis_lifecycle.cold_tier.deep_archive import deep_archive as move_to_archive
from artemis_lifecycle.cold_tier.handoff import Handoff, HandoffContext, HandoffInput, read_outcome
from artemis_lifecycle.cold_tier.handoff import hand_off as archive
from artemis_lifecycle.cold_tier.history import ColdHistory
from artemis_lifecycle.cold_tier.history import cold_history as archived_history
from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.cold_tier.paths import PathMapping, no_cold_table, read_identity
from artemis_lifecycle.cold_tier.queries import Query, Tables, TagStatement, parse_tag, spark_tag
from artemis_lifecycle.cold_tier.queries import translate as translate_query
from artemis_lifecycle.cold_tier.reads import Route, Selector
from artemis_lifecycle.cold_tier.reads import read as read_rows
from artemis_lifecycle.cold_tier.reads import route as find_route
from artemis_lifecycle.cold_tier.restore import RestoreContext, Restored, RestoreRequest
from artemis_lifecycle.cold_tier.restore import restore as bring_back
from artemis_lifecycle.cold_tier.verify import cold_index
from artemis_lifecycle.config import Catalog, LifecycleConfig, TablePolicy, load_config, parse_duration
from artemis_lifecycle.deletion.absence import Absence
from artemis_lifecycle.deletion.batches import DeletionJob, outcome_frame
from artemis_lifecycle.deletion.guards import in_quiet_window as is_in_quiet_window
from artemis_lifecycle.deletion.guards import require_approval, require_grace_over
from artemis_lifecycle.deletion.ownership import LOCATION_PROPERTIES, metadata_locations
from artemis_lifecycle.deletion.quarantine import Purged, QuarantinePlace, Undeleted, purge, put_back
from artemis_lifecycle.deletion.receipt import Receipt, read_receipt, receipt_folder, write_receipt
from artemis_lifecycle.deletion.records import Forgotten, forget
from artemis_lifecycle.deletion.results import record_outcomes
from artemis_lifecycle.deletion.worker import GONE, DeletionReport, DeletionSettings, delete_job, report_of
from artemis_lifecycle.errors import (
    ApprovalNeeded,
    BadInput,
    CommitStateUnknown,
    ConfigError,
    GraceNotOver,
    InDeepArchive,
    LifecycleError,
    NaiveDatetime,
    NoSuchPlan,
    NoSuchSnapshot,
    NoSuchTable,
    Paused,
    PlanStateError,
    Refused,
    StalePlan,
)
from artemis_lifecycle.expiration.commit import ExpirationCommit, removal
from artemis_lifecycle.expiration.commit import commit_expiration as commit_plan
from artemis_lifecycle.expiration.curve import RetentionCurve
from artemis_lifecycle.expiration.curve import retention_curve as curve_of
from artemis_lifecycle.expiration.difference import PlanDifference
from artemis_lifecycle.expiration.difference import plan_difference as compare_plans
from artemis_lifecycle.expiration.explained import PlanExplanation, why_kept
from artemis_lifecycle.expiration.lifetime import held_until
from artemis_lifecycle.expiration.plan import (
    ExpirationPlan,
    PlanRequest,
    base_metadata,
    load_plan,
    milliseconds,
    read_base,
)
from artemis_lifecycle.expiration.plan import plan_expiration as seal_plan
from artemis_lifecycle.expiration.promises import (
    TableRefs,
    hold_views,
    max_ref_age_ms,
    table_refs,
    tag_views,
    thaw_views,
    thinning_tiers,
    to_archive,
)
from artemis_lifecycle.expiration.results import publish_plan
from artemis_lifecycle.lineage.ledger import LEDGER, LedgerUpdate, recorded_schema_uses
from artemis_lifecycle.lineage.ledger import record_lineage as append_lineage
from artemis_lifecycle.lineage.requirements import LineageRequirements
from artemis_lifecycle.lineage.schema_history import SchemaHistory, SchemaUse
from artemis_lifecycle.lineage.schema_history import schema_history as schemas_of
from artemis_lifecycle.local.addresses import fill
from artemis_lifecycle.local.jars import needed, resolve
from artemis_lifecycle.metadata.kinds import CONTENT_KINDS
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import NO_SUMMARY, CatalogEntry, Ref, SnapshotHistory, TableMetadata
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.deep_archive import LAPSED, OVER, ThawRecord, ThawState, new_id
from artemis_lifecycle.operations.heartbeats import Heartbeat, Writing, writing
from artemis_lifecycle.operations.holds import Hold, HoldKind
from artemis_lifecycle.operations.known_tables import KnownTable, Seen
from artemis_lifecycle.operations.leases import Lease
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.pauses import Pause, Watch
from artemis_lifecycle.operations.plans import ENDED, UNCOMMITTED, Approval, PlanRecord, PlanStatus
from artemis_lifecycle.operations.processes import mark
from artemis_lifecycle.operations.quarantines import QuarantineRecord
from artemis_lifecycle.operations.restores import RestoreRecord
from artemis_lifecycle.operations.scans import ScanRecord, ScanState
from artemis_lifecycle.operations.texts import require_said
from artemis_lifecycle.orphans import dropped
from artemis_lifecycle.orphans.cold import ColdScan, scan_cold
from artemis_lifecycle.orphans.delete import delete_orphans as delete_scan
from artemis_lifecycle.orphans.delete import job_of
from artemis_lifecycle.orphans.dropped import Cleared, DroppedTable
from artemis_lifecycle.orphans.inventory import Inventory, read_inventory
from artemis_lifecycle.orphans.listing import Listing, given_listing, list_table
from artemis_lifecycle.orphans.scan import OrphanScanResult, ScanSettings, load_scan
from artemis_lifecycle.orphans.scan import scan_orphans as find_orphans
from artemis_lifecycle.orphans.trend import InFlight, ScanTrend, trend_of
from artemis_lifecycle.orphans.trend import in_flight as judge_in_flight
from artemis_lifecycle.reachability.holders import holders_of
from artemis_lifecycle.reachability.index import IndexSettings, IndexView
from artemis_lifecycle.reachability.walk import ROWS_HERE, indexed, reachable_files, tidy
from artemis_lifecycle.retention.rules import HoldView, RetentionSettings, TagView, decide, held_by, view_of
from artemis_lifecycle.spark.java_errors import java_errors
from artemis_lifecycle.spark.session import add_catalogs, driver_pid, live_session, open_session, session_conf
from artemis_lifecycle.spark.statement_errors import statement_errors
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.frames import read_frame, write_frame, write_table
from artemis_lifecycle.storage.location import LocationRules, is_under, normalise, normalise_column, split
from artemis_lifecycle.storage.pace import TokenBucket, requests_per_second
from artemis_lifecycle.storage.stores import Stores, StoreSettings
from artemis_lifecycle.upkeep.actions import Worker
from artemis_lifecycle.upkeep.compaction import CompactedDataFiles, CompactionSettings, compacted_data_files
from artemis_lifecycle.upkeep.costs import ColdHoldings, StorageClasses, TableCosts, table_costs
from artemis_lifecycle.upkeep.health import TableHealth
from artemis_lifecycle.upkeep.health import table_health as health_of
from artemis_lifecycle.upkeep.manifests import CompactedManifests, compacted_manifests

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STANDARD = "STANDARD"
"""The storage class of S3 where none is named."""

RESULTS = "lifecycle"
"""The namespace of the project's own result tables: never discovered, never expired by the tables' schedule."""


@dataclass(frozen=True)
class ReachableSet:
    """What the kept snapshots of a table reach, by the metadata file that is named. `counts`: files by kind."""

    table: str
    metadata_location: str
    snapshot_ids: tuple[int, ...]
    counts: Mapping[str, int]
    size_in_bytes: int
    _frame: DataFrame

    def files(self) -> DataFrame:
        """DataFrame[path, kind], one row per file."""
        return self._frame.select("path", "kind")

    @property
    def data_file_paths(self) -> DataFrame:
        """DataFrame[path] of data files, delete files and deletion vectors."""
        return self._frame.filter(self._frame.kind.isin(*CONTENT_KINDS)).select("path")

    @property
    def manifest_paths(self) -> DataFrame:
        """DataFrame[path] of manifests."""
        return self._frame.filter("kind = 'manifest'").select("path")

    @property
    def manifest_list_paths(self) -> DataFrame:
        """DataFrame[path] of manifest lists."""
        return self._frame.filter("kind = 'manifest_list'").select("path")


@dataclass(frozen=True)
class Tagged:
    """A tag that was set, or removed (then `snapshot_id` is None). `who`, `at` and `why` are what is on record of it;
    `ends_at` None is for ever."""

    table: str
    name: str
    snapshot_id: int | None
    metadata_location: str
    who: str | None = None
    at: datetime | None = None
    why: str | None = None
    ends_at: datetime | None = None


@dataclass(frozen=True)
class Explanation:
    """A file's fate. `verdict`: kept, planned, deleted, orphan or unknown; `holders` name snapshots, refs and holds.

    `since` is the commit of the first snapshot that still holds it; `until` the first instant at which a plan would let
    it go if nothing were committed until then (None: while a branch or a tag has it, or nobody holds it).
    """

    path: str
    verdict: str
    reasons: tuple[str, ...]
    holders: tuple[str, ...]
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True)
class _Table:
    """One look at a table: its catalog row and the metadata file that the row named."""

    entry: CatalogEntry
    metadata: TableMetadata
    read_at: datetime
    is_dropped: bool = False

    @property
    def name(self) -> str:
        return f"{self.entry.namespace}.{self.entry.table}"


class Lifecycle:
    """One configuration's catalogs, stores, Postgres and Spark session, and the steps of the walk on its tables.

    Open it with `Lifecycle.open` and use it as a context manager, or call `close`. Spark starts when a step first needs
    it; a session that was passed in is used as it is and left running.
    """

    def __init__(
        self,
        config: LifecycleConfig,
        spark: SparkSession | None = None,
        *,
        owner: str | None = None,
        run_id: str | None = None,
        in_quiet_window: bool = False,
    ) -> None:
        """`config` must have every address (see `open`, which fills them). `owner` and `run_id` name the worker in
        leases and step records; the default owner is user and host. `in_quiet_window`: steps stop when their table's
        quiet window closes, and the next run goes on (schedules run so)."""
        self.config = config
        self.owner = owner or f"{getpass.getuser()}@{socket.gethostname()}:{os.getpid()}"
        self.run_id = run_id
        self.in_quiet_window = in_quiet_window
        self._given_spark = spark
        self._own_spark: SparkSession | None = None
        self._prepared = False

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
        """Open the configuration at a path (None: `$ARTEMIS_CONFIG`, then lifecycle.yaml, then the embedded defaults).

        Addresses that it leaves out are filled with the embedded stack's, which is started when it is not running.
        Raises ConfigError, EnvironmentMissing, OperationsUnavailable.
        """
        loaded = config if isinstance(config, LifecycleConfig) else load_config(config)
        return cls(fill(loaded), spark, owner=owner, run_id=run_id, in_quiet_window=in_quiet_window)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the Spark session that this object started, and give back its connections."""
        if self._own_spark is not None:
            self._own_spark.stop()
            self._own_spark = None
        for name in ("operations", "_live", "_cold"):
            opened = self.__dict__.pop(name, None)
            if opened is not None:
                opened.close()

    # --- parts ------------------------------------------------------------------------------------------------------

    @property
    def spark(self) -> SparkSession:
        """The Spark session: the given one, or one of our own, started at first use."""
        if self._own_spark is None and self._given_spark is None:
            # A session that lives in this process already is its owner's to stop.
            self._given_spark = live_session()
        if self._given_spark is not None:
            if not self._prepared:
                add_catalogs(self._given_spark, spark_conf(self.config.catalogs))
                self._prepared = True
            return self._given_spark
        if self._own_spark is None:
            jars = resolve(self.config.home, needed(self.config))
            self._own_spark = open_session(session_conf(self.config, spark_conf(self.config.catalogs), jars))
        return self._own_spark

    @cached_property
    def operations(self) -> Operations:
        """Plans, journal, leases, holds and heartbeats in Postgres."""
        assert self.config.operations.uri is not None
        return Operations.open(self.config.operations.uri)

    @cached_property
    def live_stores(self) -> Stores:
        """The object stores of the live warehouse, and of sealed plans, listings and scans."""
        return Stores(self._store_settings(self.config.catalogs.live))

    @cached_property
    def cold_stores(self) -> Stores:
        """The object stores of the cold warehouse."""
        return Stores(self._store_settings(self.config.catalogs.cold))

    @cached_property
    def _live(self) -> CatalogReader:
        return CatalogReader(self.config.catalogs.live)

    @cached_property
    def _cold(self) -> CatalogReader:
        return CatalogReader(self.config.catalogs.cold)

    def _reserved(self) -> tuple[str, ...]:
        """The roots of the other tiers, which no table of the live catalog owns, whatever its metadata says."""
        roots = (self.config.catalogs.cold.warehouse, self.config.quarantine.root)
        return tuple(root.rstrip("/") for root in roots if root is not None)

    def _store_settings(self, catalog: Catalog) -> StoreSettings:
        return StoreSettings.from_catalog(catalog, self.config.defaults.budgets, self.config.operations.uri)

    @property
    def root(self) -> str:
        """Where sealed plans, listings and scans stand."""
        assert self.config.operations.root is not None
        return self.config.operations.root

    def rules(self, table: str) -> LocationRules:
        """How paths of `table` become locations."""
        return LocationRules.from_config(self.config.policy(table).orphans)

    def _look(self, table: str) -> _Table:
        # The instant before the reading: metadata counts as newer than a listing only when all of it is.
        read_at = self.operations.clock.now()
        entry = self._live.entry(table)
        return _Table(entry, read_table_metadata(self.live_stores, entry.metadata_location), read_at)

    def _index(self, table: str, metadata: TableMetadata) -> IndexView:
        settings = IndexSettings.from_config(self.config, table)
        return indexed(self.spark, self.live_stores, metadata, self.rules(table), self.root, settings)

    def _cold_index(self, table: str, cold: TableMetadata) -> IndexView:
        return cold_index(self.spark, self.cold_stores, self.live_stores, cold, self.rules(table), self.root)

    def _instant(self, name: str, given: datetime | None) -> datetime:
        """`given`, or Postgres' time, in UTC and whole milliseconds, as Iceberg counts them."""
        instant = self.operations.clock.now() if given is None else given
        if instant.tzinfo is None or instant.utcoffset() is None:
            raise NaiveDatetime(
                f"{name}={given!r} has no time zone", untouched="everything", do="pass a datetime with tzinfo, e.g. UTC"
            )
        return instant.astimezone(UTC).replace(microsecond=instant.microsecond // 1000 * 1000)

    @contextmanager
    def _step(self, look: _Table, step: str, *, dry_run: bool = False, pausable: bool = True) -> Iterator[_Step]:
        """The table's lease and a record of the step around the work; a dry run takes no lease: it changes nothing.

        A pause, or the end of the quiet window where this object keeps to it, stops the work within seconds: at its
        next check, or by cancelling its Spark jobs. Raises Paused then; whatever was finished counts for the next run.
        """
        if not pausable:
            with self._leased(look, step, dry_run=dry_run) as state:
                yield state
            return
        tag = f"artemis-{uuid.uuid4().hex}"
        with self._watched(look, tag) as watch:
            if watch.why is not None:
                raise _paused(look.name, watch.why)
            with self._leased(look, step, dry_run=dry_run, watch=watch) as state, self._tagged_jobs(tag):
                try:
                    yield state
                except LifecycleError:
                    raise
                except Exception as error:
                    if watch.why is None:
                        raise
                    # Its Spark jobs were cancelled under it.
                    raise _paused(look.name, watch.why) from error

    def _watched(self, look: _Table, tag: str) -> Watch:
        """A look each second at what stops work on the table; Spark jobs with that tag are cancelled then."""
        table_uuid, window = look.metadata.table_uuid, self.config.policy(look.name).quiet_window

        def why() -> str | None:
            pause = self.operations.pauses.of_table(table_uuid)
            if pause is not None:
                return str(pause)
            if self.in_quiet_window and not is_in_quiet_window(window, self.operations.clock.now()):
                return f"the quiet window ({window.start} to {window.end} {window.timezone}) is over"
            return None

        def cancel() -> None:
            session = self._started_spark()
            if session is not None:
                session.sparkContext.cancelJobsWithTag(tag)

        return Watch(why, cancel)

    @contextmanager
    def _tagged_jobs(self, tag: str) -> Iterator[None]:
        """Tag this thread's Spark jobs. Inside the lease, which names Spark's driver and so has started it."""
        session = self._started_spark()
        if session is None:
            yield
            return
        session.sparkContext.addJobTag(tag)
        try:
            yield
        finally:
            session.sparkContext.removeJobTag(tag)

    def _started_spark(self) -> SparkSession | None:
        """The session, if there is one already; None rather than starting one."""
        return self._given_spark or self._own_spark

    @contextmanager
    def _leased(self, look: _Table, step: str, *, dry_run: bool, watch: Watch | None = None) -> Iterator[_Step]:
        table = look.name
        if not dry_run:
            self.operations.leases.require_free(look.metadata.table_uuid)
        night = self.config.policy(table).quiet_window.night(self.operations.clock.now())
        lease: AbstractContextManager[Lease | None] = (
            nullcontext()
            if dry_run
            else self.operations.leases.hold(
                look.metadata.table_uuid,
                step=step,
                owner=self.owner,
                table=table,
                run_id=self.run_id,
                process=self._processes(),
            )
        )
        if not dry_run and not look.is_dropped:
            # Should it be dropped, its files are found by this.
            self.operations.known_tables.saw(
                self._live.name, look.metadata.table_uuid, Seen(table, look.metadata.metadata_location)
            )
        with lease as held:
            step_id = self.operations.steps.start(
                look.metadata.table_uuid,
                table,
                step,
                night=night,
                owner=self.owner,
                run_id=self.run_id,
                dry_run=dry_run,
            )
            state = _Step(table, night, held, watch)
            try:
                with java_errors(table):
                    yield state
            except BaseException as error:
                self.operations.steps.finish(step_id, state="failed", counts={}, error=str(error))
                raise
            self.operations.steps.finish(step_id, state=state.state, counts=state.counts)

    def _processes(self) -> str | None:
        """The mark of what works under our leases: this process, and Spark's driver, which is started for it."""
        driver = driver_pid() if self.spark is not None else None
        return None if driver is None else mark([os.getpid(), driver])

    # --- history ----------------------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        """Identifiers (`namespace.table`) of the live catalog's tables, without the project's own result tables."""
        return [name for name in self._live.tables() if name.split(".", 1)[0] != RESULTS]

    def snapshot_history(self, table: str) -> SnapshotHistory:
        """The table's snapshots, refs and snapshot log, pinned to one metadata file. Raises NoSuchTable."""
        look = self._look(table)
        return SnapshotHistory.of(table, look.metadata, look.read_at)

    def _settings(
        self,
        table: str,
        now: datetime,
        older_than: datetime | None = None,
        retain_last: int | None = None,
        snapshot_ids: Sequence[int] | None = None,
    ) -> RetentionSettings:
        retention = self.config.policy(table).retention
        return RetentionSettings(
            rule=retention.rule,
            window_ms=retention.window // timedelta(milliseconds=1),
            min_snapshots=retention.min_snapshots,
            max_snapshots=retention.max_snapshots,
            expire_limit=retention.expire_limit,
            next_timestamp=retention.next_timestamp,
            thinning=thinning_tiers(retention.thin),
            older_than_ms=None if older_than is None else milliseconds(self._instant("older_than", older_than)),
            retain_last=retain_last,
            explicit_ids=tuple(snapshot_ids or ()),
            explicit_window=self.config.explicit_window(table) is not None,
        )

    def _guards(self, table_uuid: str) -> tuple[tuple[HoldView, ...], tuple[TagView, ...]]:
        holds = self.operations.holds.active(table_uuid, self.operations.clock.now())
        return hold_views(holds), tag_views(self.operations.tags.of_table(table_uuid))

    def reachable_set(self, table: str, now: datetime | None = None) -> ReachableSet:
        """What the snapshots that the table's policy keeps at `now` reach. Reads manifests that it has not read before.

        Raises UnreadableMetadata when a metadata file that it reads is missing, unreadable or shorter than recorded.
        """
        look = self._look(table)
        instant = self._instant("now", now)
        holds, tags = self._guards(look.metadata.table_uuid)
        decision = decide(
            view_of(look.metadata), self._settings(table, instant), milliseconds(instant), holds=holds, tags=tags
        )
        folder = f"{self.root}/reachable/{look.metadata.table_uuid}/{uuid.uuid4().hex}"
        view = self._index(table, look.metadata)
        with worker_errors():
            if view.entries_of(decision.kept) <= ROWS_HERE:
                write_table(view.reachable(list(decision.kept)), folder, self.live_stores)
            else:
                write_frame(reachable_files(self.spark, view, decision.kept), folder, self.live_stores)
        frame = read_frame(self.spark, folder, self.live_stores)
        totals = frame.groupBy("kind").agg({"path": "count", "size_in_bytes": "sum"}).collect()
        return ReachableSet(
            table=table,
            metadata_location=look.metadata.metadata_location,
            snapshot_ids=tuple(decision.kept),
            counts={row["kind"]: row["count(path)"] for row in sorted(totals, key=lambda row: str(row["kind"]))},
            size_in_bytes=sum(row["sum(size_in_bytes)"] for row in totals),
            _frame=frame,
        )

    def retention_curve(
        self, table: str, now: datetime | None = None, windows: Sequence[timedelta] | None = None
    ) -> RetentionCurve:
        """What the table would hold under other windows (None: some over its whole age), and what each ref costs.

        Changes nothing, and goes by the policy's own rule, with its holds and tags. Raises UnreadableMetadata.
        """
        metadata = self._look(table).metadata
        return self._curve(table, self._index(table, metadata), self._instant("now", now), windows)

    def _curve(
        self, table: str, view: IndexView, instant: datetime, windows: Sequence[timedelta] | None
    ) -> RetentionCurve:
        holds, tags = self._guards(view.metadata.table_uuid)
        return curve_of(
            table,
            view,
            self._settings(table, instant),
            milliseconds(instant),
            holds=holds,
            tags=tags,
            windows_ms=None if windows is None else [window // timedelta(milliseconds=1) for window in windows],
        )

    def costs(self, table: str, curve: RetentionCurve | None = None) -> TableCosts:
        """What the table holds in each tier and for each tag, and what that costs by `prices` of lifecycle.yaml.

        Sizes are what the metadata records. A `curve` of the table that is there already says what its refs hold, so
        that it is not counted again. Changes nothing. Raises UnreadableMetadata.
        """
        metadata, catalogs = self._look(table).metadata, self.config.catalogs
        view, cold = self._index(table, metadata), self._cold_metadata(metadata.table_uuid)
        known = curve or self._curve(table, view, self._instant("now", None), windows=())
        classes = StorageClasses(
            live=catalogs.live.storage_class or STANDARD,
            cold=catalogs.cold.storage_class or STANDARD,
            deep=self.config.deep_archive.storage_class,
        )
        holdings = None if cold is None else self._cold_holdings(table, cold)
        return table_costs(table, view, known.refs, holdings, classes, self.config.prices)

    def _cold_holdings(self, table: str, cold: TableMetadata) -> ColdHoldings:
        deep: dict[str, int] = {}
        for batch in archived_files(self.live_stores, self.operations.deep_moves.of_table(cold.table_uuid)):
            deep |= zip(batch.column("path").to_pylist(), batch.column("size_in_bytes").to_pylist(), strict=True)
        asked = [each for each in self.operations.thaws.list(cold.table_uuid, ended=True) if each.asked_at is not None]
        return ColdHoldings(
            view=self._cold_index(table, cold),
            copies=handoff_ledger(self.live_stores, self.root, cold.table_uuid).copies(),
            deep_snapshots=self.operations.deep_moves.snapshots(cold.table_uuid),
            deep_files=len(deep),
            deep_bytes=sum(deep.values()),
            thawed_files=sum(thaw.files for thaw in asked),
        )

    # --- expiration -------------------------------------------------------------------------------------------------

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
        """
        look = self._look(table)
        instant = self._instant("now", now)
        with self._step(look, "plan") as step:
            self._record_lost_commit(look)
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
            step.counts = {
                "snapshots_kept": plan.summary.snapshots_kept,
                "snapshots_expired": plan.summary.snapshots_expired,
                "files": plan.summary.files,
                "bytes": plan.summary.size_in_bytes,
            }
        return plan

    def _record_lost_commit(self, look: _Table) -> None:
        """Record the commit of a worker that died between its swap and its record, before a new plan supersedes the
        old one: else the files of that one would wait for the orphan scan."""
        record = self.operations.plans.uncommitted(look.metadata.table_uuid)
        if record is None or record.expired_snapshots == 0:
            return
        plan = self.plan(record.plan_id)
        if any(look.metadata.snapshot(snapshot) is not None for snapshot in plan.expired_snapshots):
            return
        if any(ref in look.metadata.refs for ref in plan.expired_refs):
            return
        self.operations.plans.mark(
            record.plan_id,
            UNCOMMITTED,
            PlanStatus.COMMITTED,
            due_in=self.config.policy(look.name).deletion.grace,
            committed_metadata_location=look.metadata.metadata_location,
            attempts=0,
        )

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

    def approve(
        self, plan: ExpirationPlan | OrphanScanResult | str, *, who: str, why: str, what: Approval = "large"
    ) -> PlanRecord | ScanRecord:
        """Let a plan pass one guard; who, when and why are kept.

        "large": `max_files`, `max_bytes` and `max_share_of_table`, of scans too. "lost": its handoff may leave out
        snapshots whose files are gone. Neither is the other. Raises NoSuchPlan, PlanStateError.
        """
        if isinstance(plan, OrphanScanResult):
            return self.operations.scans.approve(plan.scan_id, who, why)
        plan_id = plan if isinstance(plan, str) else plan.plan_id
        try:
            return self.operations.plans.approve(plan_id, who, why, what)
        except NoSuchPlan:
            if what != "large" or not self._is_scan(plan_id):
                raise
        return self.operations.scans.approve(plan_id, who, why)

    def _is_scan(self, scan_id: str) -> bool:
        try:
            self.operations.scans.get(scan_id)
        except NoSuchPlan:
            return False
        return True

    def plan_difference(self, before: ExpirationPlan | str, after: ExpirationPlan | str) -> PlanDifference:
        """What plan `after` removes and `before` does not, and the other way round: snapshots, with the reasons for
        which the other plan keeps them, refs, and files with bytes by kind. Raises NoSuchPlan; BadInput for two tables.
        """
        first, second = (self.plan(plan) if isinstance(plan, str) else plan for plan in (before, after))
        return compare_plans(first, second, self.rules(second.table))

    def explain_in_plan(self, plan: ExpirationPlan | str, path: str) -> PlanExplanation:
        """Why a file is in a plan; or, with every reason of the snapshots that keep it, why it is not.

        Goes by the plan's own base, whatever the table says now. Raises NoSuchPlan, UnreadableMetadata.
        """
        found = self.plan(plan) if isinstance(plan, str) else plan
        _require_path(found.table, path)
        rules = self.rules(found.table)
        location = normalise(path, rules)
        files = found.files()
        row = files.filter(normalise_column(files.path, rules) == location).first()
        if row is not None:
            return PlanExplanation(
                found.plan_id, found.table, path, True, row["reason"], row["kind"], row["size_in_bytes"]
            )
        base = base_metadata(self.live_stores, found)
        holders = holders_of(self._index(found.table, base), location)
        return why_kept(found, path, [(holder.snapshot_id, str(holder)) for holder in holders])

    def close_plan(
        self, plan: ExpirationPlan | OrphanScanResult | str, *, who: str, why: str
    ) -> PlanRecord | QuarantineRecord:
        """End a plan for good. What a committed plan had not deleted yet becomes the orphan scan's, and so does what an
        `undelete` of it (or of an orphan scan) had brought back."""
        plan_id = plan if isinstance(plan, str) else _job_id(plan)
        undeleted = self.operations.quarantines.find(plan_id)
        if undeleted is not None and undeleted.undeleted_at is not None:
            # Closing what is closed changes nothing, as of a plan.
            closed = undeleted.closed_at is not None
            return undeleted if closed else self.operations.quarantines.close(plan_id, who, why)
        return self.operations.plans.close(plan_id, who, why)

    def hand_off(self, plan: ExpirationPlan | str) -> Handoff:
        """Copy all that the plan's snapshots read to the cold tier, verify every copy, and publish them in the cold
        catalog in one commit. Goes on where an earlier run stopped; a plan that is handed off changes nothing more.

        The policy may archive one snapshot of each calendar unit; those that it leaves out are `thinned`.
        Snapshots that somebody else expired since the plan are archived if their files are still there, and stay out as
        `overtaken` if not. A table without a cold tier, and a plan without snapshots, are no-ops. Raises HandoffFailed
        (the plan stays open and holds its files), PlanStateError, UnreadableMetadata, LeaseTaken.
        """
        plan, record = self._loaded(plan)
        if record.status not in UNCOMMITTED:
            if record.cold_metadata_location is not None or not plan.expired_snapshots:
                return Handoff(plan.plan_id, plan.table, cold_metadata_location=record.cold_metadata_location)
            raise PlanStateError(
                f"Plan {plan.plan_id} is {record.status.replace('_', ' ')}, and was not handed off",
                table=plan.table,
                untouched="both tiers",
                do=f"plan again: artemis plan {plan.table}",
            )
        look = self._look(plan.table)
        with self._step(look, "handoff") as step:
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
            }
        return done

    def _to_archive(self, plan: ExpirationPlan) -> tuple[int, ...]:
        archive_what = self.config.policy(plan.table).cold_tier.archive
        if archive_what == "every" or not plan.expired_snapshots:
            return plan.expired_snapshots
        base = base_metadata(self.live_stores, plan)
        return to_archive(plan.expired_snapshots, view_of(base), archive_what)

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

    def delete_files(
        self, plan: ExpirationPlan | str, now: datetime | None = None, *, dry_run: bool = False
    ) -> DeletionReport:
        """Delete the files of a committed plan whose grace is over; goes on where an earlier run stopped.

        Each batch looks at the table once more before it goes: what is reachable again is kept and reported. `now` can
        only make the grace end later. `dry_run` looks and deletes nothing; it also takes a plan that is not committed.

        Raises PlanStateError (not committed, closed), GraceNotOver, Refused (a hold), StalePlan (the table is gone or
        another), UnreadableMetadata, StorageError, LeaseTaken; what was not deleted until then is untouched.
        """
        plan, record = self._loaded(plan)
        job = DeletionJob(
            job_id=plan.plan_id,
            kind="expiration",
            table_uuid=plan.table_uuid,
            table=plan.table,
            files_location=plan.files_location,
            files=plan.summary.files,
            snapshot_ids=plan.expired_snapshots,
        )
        if dry_run and record.status in UNCOMMITTED:
            # The table still reaches the files: a look at it would only say so. What would go is what the plan names.
            return DeletionReport.foreseen(job, plan.summary.size_in_bytes, plan.files)
        if dry_run:
            return self._delete(job, None, plan.base_metadata_location, dry_run=True)
        if record.status == PlanStatus.DONE:
            if job.files:
                self._receipt(job)
            return report_of(self.spark, self.live_stores, self.operations, job, self.root)
        if record.status not in (PlanStatus.COMMITTED, PlanStatus.DELETING) or record.due_at is None:
            raise PlanStateError(
                f"Plan {plan.plan_id} is {record.status.replace('_', ' ')}, not committed",
                table=plan.table,
                untouched="all files of the plan",
                do=f"artemis commit {plan.plan_id}, wait for the grace, then delete",
            )
        instant = None if now is None else self._instant("now", now)
        require_grace_over(plan.plan_id, plan.table, record.due_at, self.operations.clock.now(), instant)
        with self._step(self._look(plan.table), "deletion") as step:
            self.operations.plans.mark(plan.plan_id, {PlanStatus.COMMITTED, PlanStatus.DELETING}, PlanStatus.DELETING)
            report = self._delete(job, step.lease, plan.base_metadata_location, pause=step.pause)
            if report.failed == 0 and report.pending == 0:
                if job.files:
                    self._receipt(job)
                self.operations.plans.mark(plan.plan_id, {PlanStatus.DELETING}, PlanStatus.DONE)
            else:
                step.state = "pending"
            step.counts = _deletion_counts(report)
        return report

    def _delete(
        self,
        job: DeletionJob,
        lease: Lease | None,
        metadata_location: str,
        *,
        dry_run: bool = False,
        pause: Callable[[], str | None] = lambda: None,
    ) -> DeletionReport:
        report = delete_job(
            self.spark,
            self.live_stores,
            self.operations,
            job,
            current=lambda: self._live.entry(job.table),
            catalog=self._live,
            lease=lease,
            root=self.root,
            rules=self.rules(job.table),
            settings=self._deletion_settings(job.table, metadata_location),
            dry_run=dry_run,
            pause=pause,
            reserved=self._reserved(),
            rules_of=self.rules,
        )
        if not dry_run:
            catalog = self.config.catalogs.live.name
            record_outcomes(self.spark, self.operations, catalog, job, report, self.live_stores, self.root)
        return report

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

    # --- orphans ------------------------------------------------------------------------------------------------------

    def list_objects(self, table: str, location: str | None = None) -> Listing:
        """List every file below the table's locations (or below `location` inside them), and seal the listing.

        Taken before any metadata that it will be compared with; `scan_orphans(listing=...)` reads that anew.
        """
        look = self._look(table)
        with self._step(look, "listing") as step:
            listing = list_table(
                self.spark,
                self.live_stores,
                self._locations(look, location),
                root=self.root,
                clock=self.operations.clock.now,
                rules=self.rules(table),
                check=step.check,
            )
            self.operations.scans.store_listing(listing.record(look.metadata.table_uuid, table))
            step.counts = {"files": listing.files, "bytes": listing.bytes}
        return listing

    def latest_listing(self, table: str) -> Listing | None:
        """The newest sealed listing of the table, if there is one."""
        record = self.operations.scans.latest_listing(self._look(table).metadata.table_uuid)
        return None if record is None else Listing.of_record(record)

    def _locations(self, look: _Table, location: str | None) -> list[str]:
        metadata, rules = look.metadata, self.rules(look.name)
        moved = [metadata.properties[key] for key in LOCATION_PROPERTIES if key in metadata.properties]
        spelled = [metadata.location, *moved]
        if location is None:
            return spelled
        if not any(is_under(normalise(location, rules), normalise(own, rules)) for own in spelled):
            raise BadInput(
                f"{location} is not inside the table's locations ({', '.join(spelled)})",
                table=look.name,
                untouched="all files",
                do="name the table's location or a folder in it",
            )
        return [location]

    def scan_orphans(
        self,
        table: str,
        now: datetime | None = None,
        older_than: datetime | None = None,
        location: str | None = None,
        listing: DataFrame | Listing | Inventory | None = None,
        *,
        listed_at: datetime | None = None,
    ) -> OrphanScanResult:
        """Find files that nothing owns: listed, not reachable, old, no writer's, in no open plan. Changes nothing.

        Lists the table first, unless `listing` is given: one of `list_objects`, an S3 `inventory`, or any
        DataFrame[path, last_modified, size_in_bytes] with `listed_at`, the time at which it was begun (default: now).
        Then reads the metadata, anew.

        Raises StaleMetadata, PrefixMismatch, BadInput (an `older_than` inside `min_age_floor`), UnreadableMetadata,
        StorageError: then there is no scan.
        """
        instant = None if now is None else self._instant("now", now)
        limit = None if older_than is None else self._instant("older_than", older_than)
        policy, rules = self.config.policy(table), self.rules(table)
        if isinstance(listing, Inventory):
            spelled = split(self._look(table).metadata.location).scheme or "s3"
            listed_at = listing.begun_at
            listing = listing.listing(self.spark, self.live_stores, spelled)
        whole = listing is None or isinstance(listing, Listing)
        if listing is None:
            taken = self.list_objects(table, location)
        elif isinstance(listing, Listing):
            taken = listing
        else:
            taken = given_listing(
                self.spark,
                self.live_stores,
                listing,
                self._locations(self._look(table), location),
                taken_at=self._instant("listed_at", listed_at),
                root=self.root,
                clock=self.operations.clock.now,
                rules=rules,
            )
        look = self._look(table)
        with self._step(look, "orphan_scan") as step:
            scan = find_orphans(
                self.spark,
                self.live_stores,
                self.operations,
                taken,
                table=table,
                table_uuid=look.metadata.table_uuid,
                current=lambda: self._live.entry(table),
                catalog=self._live,
                root=self.root,
                rules=rules,
                settings=ScanSettings(
                    min_age=policy.orphans.min_age,
                    min_age_floor=policy.orphans.min_age_floor,
                    metadata_min_age=policy.retention.window,
                    prefix_mismatch=policy.orphans.prefix_mismatch,
                    older_than=limit,
                    now=instant,
                    # A listing that the caller gives need not be whole.
                    missing_files=policy.orphans.missing_files if whole else "ignore",
                ),
                history_read_at=look.read_at,
                reserved=self._reserved(),
                rules_of=self.rules,
            )
            step.counts = {
                "orphans": scan.summary.orphan_files,
                "bytes": scan.summary.orphan_bytes,
                "skipped_in_flight": scan.skipped_in_flight,
            }
        return scan

    def inventory(self, manifest: str) -> Inventory:
        """An S3 Inventory report by its `manifest.json`, for `scan_orphans(listing=…)`. Raises BadInput and
        StorageError."""
        return read_inventory(self.live_stores, manifest)

    def scan_cold(self, table: str) -> ColdScan:
        """Find the files under the cold table's location that nothing there has: what refused writers left, and killed
        handoffs. Changes nothing, and nothing deletes by it: what is in the archive exists nowhere else.

        Files younger than the policy's `orphans.min_age` are left out. Raises NoSuchTable before the first handoff,
        UnreadableMetadata, StorageError, LeaseTaken.
        """
        look = self._look(table)
        table_uuid, policy = look.metadata.table_uuid, self.config.policy(table).orphans
        with self._step(look, "cold_scan") as step:
            found = scan_cold(
                self.spark,
                self.cold_stores,
                self.live_stores,
                read_identity(self.live_stores, self.root, table_uuid),
                lambda: self._cold_metadata(table_uuid),
                table=table,
                root=self.root,
                clock=self.operations.clock.now,
                rules=self.rules(table),
                min_age=max(policy.min_age, policy.min_age_floor),
                check=step.check,
            )
            step.counts = {"files": found.unknown_files, "bytes": found.unknown_bytes}
        return found

    def scan(self, scan_id: str) -> OrphanScanResult:
        """The stored scan of that id. Raises NoSuchPlan."""
        return load_scan(self.spark, self.live_stores, self.operations, scan_id)

    def latest_scan(self, table: str) -> OrphanScanResult | None:
        """The newest stored scan of the table, if there is one."""
        records = self.operations.scans.of_table(self._look(table).metadata.table_uuid)
        return self.scan(records[0].scan_id) if records else None

    def interrupted_scans(self, table: str) -> list[ScanRecord]:
        """Scans of the table whose deletion was begun and not finished, oldest first. They hold their files: no newer
        scan names them."""
        table_uuid = self._look(table).metadata.table_uuid
        return list(reversed(self.operations.scans.of_table(table_uuid, [ScanState.DELETING])))

    def scan_trend(self, table: str, limit: int = 30) -> ScanTrend:
        """The table's last scans: orphans, what was skipped as in flight, how fast the table leaks."""
        return trend_of(table, self.operations.scans.of_table(self._look(table).metadata.table_uuid)[:limit])

    def in_flight(self, table: str) -> InFlight | None:
        """Whether the files that scans skip as in flight settle, and of which kind they are; None without a scan."""
        table_uuid, policy = self._look(table).metadata.table_uuid, self.config.policy(table).orphans
        points = self.scan_trend(table).points
        if not points:
            return None
        return judge_in_flight(
            points,
            self.operations.heartbeats.live(table_uuid),
            max_share=policy.in_flight.max_share,
            scans=policy.in_flight.scans,
            now=self.operations.clock.now(),
            min_age=policy.min_age,
        )

    def delete_orphans(self, scan: OrphanScanResult | str, *, dry_run: bool = False) -> DeletionReport:
        """Delete the files of a stored scan, each batch after a last look: what a snapshot, a plan or a writer has got
        hold of since the scan is kept and reported. Goes on where an earlier run stopped."""
        record = self.operations.scans.get(scan if isinstance(scan, str) else scan.scan_id)
        if record.kind == "dropped":
            return self.delete_dropped(record.scan_id, dry_run=dry_run)
        if dry_run or record.state == ScanState.DONE:
            if not dry_run and record.files:
                self._receipt(job_of(record))
            return self._delete_orphans(record, None, dry_run=dry_run)
        require_approval(
            record.scan_id,
            record.table,
            self.config.policy(record.table).deletion,
            files=record.files,
            size_in_bytes=record.bytes,
            files_in_table=json.loads(record.summary)["listed_files"],
            approved_by=record.approved_by,
        )
        with self._step(self._look(record.table), "orphan_deletion") as step:
            report = self._delete_orphans(record, step.lease, pause=step.pause)
            step.state = "pending" if report.failed or report.pending else "done"
            step.counts = _deletion_counts(report)
            if step.state == "done" and record.files:
                self._receipt(job_of(record))
        return report

    def _delete_orphans(
        self,
        record: ScanRecord,
        lease: Lease | None,
        *,
        dry_run: bool = False,
        pause: Callable[[], str | None] = lambda: None,
        absence: Absence | None = None,
    ) -> DeletionReport:
        return delete_scan(
            self.spark,
            self.live_stores,
            self.operations,
            record.scan_id,
            current=lambda: self._live.entry(record.table),
            catalog=self._live,
            lease=lease,
            root=self.root,
            rules=self.rules(record.table),
            results_catalog=self.config.catalogs.live.name,
            settings=self._deletion_settings(record.table),
            dry_run=dry_run,
            pause=pause,
            reserved=self._reserved(),
            rules_of=self.rules,
            dropped=absence,
        )

    # --- dropped tables -----------------------------------------------------------------------------------------------

    def observe_catalog(self) -> dict[str, str]:
        """Write down which tables the live catalog has now, so that those that it loses are found. Reads the metadata
        files of tables that are new or have changed; returns why, for those that cannot be read."""
        return dropped.observe(self._live, self.live_stores, self.operations, self._live.name)[1]

    def dropped_tables(self) -> list[DroppedTable]:
        """The tables that the live catalog has no more, as of now: until when their files are kept, and what became of
        them."""
        missing, _ = dropped.observe(self._live, self.live_stores, self.operations, self._live.name)
        return [self._dropped(known) for known in missing]

    def _dropped(self, known: KnownTable) -> DroppedTable:
        assert known.missing_since is not None
        due_at = known.missing_since + self.config.policy(known.table).dropped.keep
        scans = self.operations.scans.of_table(known.table_uuid, kind="dropped")
        state: dropped.State = "due" if self.operations.clock.now() >= due_at else "waiting"
        if known.gone_at is not None:
            state = "gone"
        elif known.kept_at is not None:
            state = "kept"
        elif not dropped.has_metadata(self.live_stores, self.root, known):
            state = "purged"
        return DroppedTable(
            table=known.table,
            table_uuid=known.table_uuid,
            metadata_location=known.metadata_location,
            last_seen=known.last_seen,
            missing_since=known.missing_since,
            due_at=due_at,
            state=state,
            kept_by=known.kept_by,
            kept_why=known.kept_why,
            scan_id=scans[0].scan_id if scans else None,
            approved_by=scans[0].approved_by if scans else None,
        )

    def _missing(self, table: str) -> KnownTable:
        """The one dropped table of that name or uuid."""
        missing, _ = dropped.observe(self._live, self.live_stores, self.operations, self._live.name)
        having = [known for known in missing if table in (known.table_uuid, known.table)]
        if len(having) == 1:
            return having[0]
        if not having:
            raise NoSuchTable(
                "The catalog has lost no such table, as far as is known",
                table=table,
                untouched="everything",
                do="see which tables were dropped: artemis dropped",
            )
        raise BadInput(
            f"{len(having)} tables of that name were dropped: {', '.join(known.table_uuid for known in having)}",
            table=table,
            untouched="everything",
            do="name the one by its uuid",
        )

    def scan_dropped(self, table: str) -> OrphanScanResult:
        """Find what a dropped table (by name, or uuid) has left, as `delete_dropped` would delete it. Changes nothing.

        What other tables read or own is kept, also a table that was made again in the same place. Raises NoSuchTable
        for a table that was not dropped, Refused for a hold and for a table that seems to live in another catalog,
        StalePlan for one that is in this one, GarbageCollectionDisabled, UnreadableMetadata, StorageError.
        """
        known = self._missing(table)
        look, absence = self._lost(known)
        policy, rules = self.config.policy(known.table), self.rules(known.table)
        with self._step(look, "dropped_scan") as step:
            listing = list_table(
                self.spark,
                self.live_stores,
                self._locations(look, None),
                root=self.root,
                clock=self.operations.clock.now,
                rules=rules,
                check=step.check,
            )
            self.operations.scans.store_listing(listing.record(known.table_uuid, known.table))
            scan = dropped.scan_dropped(
                self.spark,
                self.live_stores,
                self.operations,
                listing,
                known,
                absence,
                catalog=self._live,
                root=self.root,
                rules=rules,
                reserved=self._reserved(),
                rules_of=self.rules,
                min_age=max(policy.orphans.min_age, policy.orphans.min_age_floor),
                prefix_mismatch=policy.orphans.prefix_mismatch,
            )
            step.counts = {"files": scan.summary.orphan_files, "bytes": scan.summary.orphan_bytes}
        return scan

    def delete_dropped(self, scan: OrphanScanResult | str, *, dry_run: bool = False) -> DeletionReport:
        """Delete what a scan of a dropped table found, when the policy's time is over and, unless the policy says
        otherwise, a person has approved it (`approve`). Goes on where an earlier run stopped; ends the table's plans.

        Raises GraceNotOver, ApprovalNeeded, Refused (a hold; somebody decided to keep the files), StalePlan when the
        table is in the catalog again, NoSuchPlan, UnreadableMetadata, StorageError, LeaseTaken.
        """
        record = self.operations.scans.get(scan if isinstance(scan, str) else scan.scan_id)
        if record.kind != "dropped":
            raise NoSuchPlan(
                f"{record.scan_id} is a scan for orphans, not of a dropped table",
                table=record.table,
                untouched="everything",
                do=f"artemis delete-orphans {record.scan_id}",
            )
        known = self.operations.known_tables.get(self._live.name, record.table_uuid)
        job = job_of(record)
        if record.state == ScanState.DONE and not dry_run:
            if record.files:
                self._receipt(job)
            if known.missing_since is not None and known.gone_at is None:
                # The worker died after its last file.
                self.operations.known_tables.gone(known.catalog, known.table_uuid)
            return report_of(self.spark, self.live_stores, self.operations, job, self.root)
        self._require_over(known, record, dry_run=dry_run)
        look, absence = self._lost(known)
        if dry_run:
            return self._delete_orphans(record, None, dry_run=True, absence=absence)
        with self._step(look, "dropped_deletion") as step:
            for plan in self.operations.plans.holding(known.table_uuid):
                self.operations.plans.close(plan.plan_id, record.approved_by or self.owner, "its table was dropped")
            report = self._delete_orphans(record, step.lease, pause=step.pause, absence=absence)
            step.state = "pending" if report.failed or report.pending else "done"
            step.counts = _deletion_counts(report)
            if step.state == "done":
                if record.files:
                    self._receipt(job)
                self.operations.known_tables.gone(known.catalog, known.table_uuid)
        return report

    def clear_dropped(self, *, dry_run: bool = False) -> list[Cleared]:
        """Go through the dropped tables that an entry of lifecycle.yaml matches and whose time is over: scan what has
        no scan, or an old one, and delete what may be deleted. What stands against one is told of it, and holds up no
        other. A dry run scans nothing."""
        return [
            self._clear(each, dry_run=dry_run)
            for each in self.dropped_tables()
            if each.state == "due" and self.config.entry(each.table) is not None
        ]

    def _clear(self, lost: DroppedTable, *, dry_run: bool) -> Cleared:
        policy = self.config.policy(lost.table)
        states = (ScanState.OPEN, ScanState.DELETING)
        scans = self.operations.scans.of_table(lost.table_uuid, states, kind="dropped")
        record = scans[0] if scans else None
        try:
            latest = self.operations.clock.now() - policy.orphans.scan_every.most
            # What a person has approved is deleted as it was approved.
            stale = record is None or (record.approved_by is None and record.listed_at < latest)
            if stale and dry_run:
                return Cleared(lost, problem="it is to be scanned")
            if stale:
                record = self.operations.scans.get(self.scan_dropped(lost.table_uuid).scan_id)
            assert record is not None
            if record.approved_by is None and policy.dropped.approval == "required":
                waits = f"somebody's word: artemis approve {record.scan_id} --large --who … --why …"
                return Cleared(lost, record.scan_id, record.files, problem=waits)
            report = self.delete_dropped(record.scan_id, dry_run=dry_run)
        except LifecycleError as error:
            return Cleared(lost, None if record is None else record.scan_id, problem=error.what)
        return Cleared(lost, record.scan_id, record.files, report.deleted, report.paused)

    def keep_dropped(self, table: str, *, who: str, why: str) -> DroppedTable:
        """Decide that the files of a dropped table (by name, or uuid) stay. Raises NoSuchTable, PlanStateError."""
        known = self._missing(table)
        require_said(known.table, who=who, why=why)
        return self._dropped(self.operations.known_tables.keep(known.catalog, known.table_uuid, who, why))

    def unkeep_dropped(self, table: str) -> DroppedTable:
        """End a `keep_dropped`: the time runs from when the table was missed. Raises NoSuchTable, PlanStateError."""
        known = self._missing(table)
        return self._dropped(self.operations.known_tables.unkeep(known.catalog, known.table_uuid))

    def _look_even_if_dropped(self, table: str, table_uuid: str | None = None) -> _Table:
        """The table of that name (and uuid, if one is given), or the one that was dropped. Raises NoSuchTable."""
        try:
            look = self._look(table)
        except NoSuchTable:
            return self._lost(self._missing(table_uuid or table))[0]
        if table_uuid in (None, look.metadata.table_uuid):
            return look
        return self._lost(self._missing(table_uuid or table))[0]

    def _lost(self, known: KnownTable) -> tuple[_Table, Absence]:
        """A dropped table as it was last seen, and what looks for it in the catalog."""
        metadata = dropped.last_metadata(self.live_stores, self.root, known)
        namespace, _, name = known.table.rpartition(".")
        entry = CatalogEntry(known.catalog, namespace, name, metadata.metadata_location)
        absence = dropped.absence_of(self.operations, self._live, self.live_stores, known, metadata)
        return _Table(entry, metadata, self.operations.clock.now(), is_dropped=True), absence

    def _require_over(self, known: KnownTable, record: ScanRecord, *, dry_run: bool) -> None:
        """Raise what stands against deleting a dropped table's files now; a dry run may come before its time."""
        found = self._dropped_or_stale(known)
        policy = self.config.policy(known.table)
        dropped.require_no_hold(self.operations, known)
        if found.state == "kept":
            raise Refused(
                f"{found.kept_by} decided that the dropped table's files stay: {found.kept_why}",
                table=known.table,
                untouched="all files",
                do=f"artemis keep-dropped {known.table_uuid} --undo, if that is over",
            )
        if dry_run:
            return
        if self.operations.clock.now() < found.due_at:
            raise GraceNotOver(
                f"The dropped table's files are kept until {found.due_at.isoformat()} (dropped.keep)",
                table=known.table,
                untouched="all files",
                do=f"delete then: artemis delete-dropped {record.scan_id}",
            )
        if policy.dropped.approval == "required" and record.approved_by is None:
            raise ApprovalNeeded(
                f"{record.files:,} files ({record.bytes:,} bytes) are all that is left of the table",
                table=known.table,
                untouched="all files",
                do=f"artemis approve {record.scan_id} --large --who … --why …, then delete",
            )
        require_approval(
            record.scan_id,
            record.table,
            policy.deletion,
            files=record.files,
            size_in_bytes=record.bytes,
            files_in_table=json.loads(record.summary)["listed_files"],
            approved_by=record.approved_by,
        )

    def _dropped_or_stale(self, known: KnownTable) -> DroppedTable:
        if known.missing_since is None:
            raise StalePlan(
                "The table is in the catalog again",
                table=known.table,
                untouched="all files",
                do="nothing: its files are a living table's again",
            )
        return self._dropped(known)

    def _deletion_settings(self, table: str, metadata_location: str | None = None) -> DeletionSettings:
        """`metadata_location`: the metadata file that a plan was made of, to be kept beside what is quarantined."""
        policy, place = self.config.policy(table), None
        if policy.deletion.mode == "quarantine":
            if self.config.quarantine.root is None:
                raise ConfigError(
                    "quarantine.root has no address", untouched="everything", do="set it in lifecycle.yaml"
                )
            place = QuarantinePlace(self.config.quarantine.root, self.config.quarantine.retain, metadata_location)
        return DeletionSettings(
            requests_per_second=requests_per_second(policy),
            quarantine=place,
            remove_empty_folders=policy.deletion.remove_empty_folders,
        )

    # --- records ------------------------------------------------------------------------------------------------------

    def forget_records(self, *, dry_run: bool = False) -> Forgotten:
        """Delete the details of what has ended longer ago than `records.keep`: a deletion's batches and outcomes,
        steps, leases; and listings older than `records.listings`. Plans, scans, decisions and receipts stay.

        Raises StorageError when the store refuses; run again it goes on. A pause of all tables stops it.
        """
        now, keep = self.operations.clock.now(), self.config.records
        return forget(
            self.live_stores,
            self.operations,
            self.root,
            records_before=now - keep.keep,
            listings_before=now - keep.listings,
            dry_run=dry_run,
            check=self._require_no_pause,
        )

    def _require_no_pause(self) -> None:
        for pause in self.operations.pauses.in_force():
            if pause.table_uuid is None:
                raise _paused("all tables", str(pause))

    # --- receipts -----------------------------------------------------------------------------------------------------

    def receipt(self, job: ExpirationPlan | OrphanScanResult | str) -> Receipt:
        """What became of every file of a finished deletion, by whose decision. It stands in the table's metadata folder
        as JSON, Markdown and Parquet, and is written when the deletion ends. Raises NoSuchPlan before that."""
        job_id = job if isinstance(job, str) else _job_id(job)
        known = self.operations.journal.job(job_id)
        if known is None:
            raise NoSuchPlan(
                f"No deletion {job_id} is in the journal",
                untouched="everything",
                do="a receipt is written when a deletion ends: artemis plans TABLE",
            )
        return self._receipt(
            DeletionJob(job_id, known.kind, known.table_uuid, known.table, known.files_location, known.files)
        )

    def _receipt(self, job: DeletionJob) -> Receipt:
        """The stored receipt; written now if its job is over and has none."""
        if job.kind == "dropped":
            # Where the table was nothing is to stay.
            place, is_its = dropped.dropped_folder(self.root, job.table_uuid), True
        else:
            metadata = self._look(job.table).metadata
            place, is_its = (
                metadata_locations(metadata, self.rules(job.table))[0],
                metadata.table_uuid == job.table_uuid,
            )
        folder = receipt_folder(place, job.job_id)
        journal = self.operations.journal.job(job.job_id)
        missing = self.live_stores.head(f"{folder}/receipt.json") is None
        if journal is None or journal.finished_at is None or not missing or not is_its:
            return read_receipt(self.live_stores, folder, job.job_id, job.table)
        quarantine = self.operations.quarantines.find(job.job_id)
        return write_receipt(
            self.live_stores,
            self.root,
            job,
            journal,
            folder=folder,
            by=self.owner,
            ended_at=journal.finished_at,
            quarantine=None if quarantine is None else quarantine.folder,
            details=self._receipt_details(job),
        )

    def _receipt_details(self, job: DeletionJob) -> dict[str, Any]:
        if job.kind != "expiration":
            scan = self.operations.scans.get(job.job_id)
            return {
                "scan": json.loads(scan.summary),
                "approved": None if scan.approved_by is None else f"{scan.approved_by}: {scan.approved_why}",
            }
        record = self.operations.plans.get(job.job_id)
        outcome = read_outcome(self.live_stores, self.root, job.job_id)
        return {
            "rule": record.rule,
            "expired_snapshots": list(self.plan(job.job_id).expired_snapshots),
            "expired_refs": list(record.expired_refs),
            "planned_at": record.planned_at,
            "planned_on": record.base_metadata_location,
            "archived_snapshots": None if outcome is None else list(outcome.archived),
            "cold_metadata": record.cold_metadata_location,
            "committed_at": record.committed_at,
            "committed_as": record.committed_metadata_location,
            "due_at": record.due_at,
            "approved_large": None if record.approved_by is None else f"{record.approved_by}: {record.approved_why}",
            "approved_lost": None
            if record.lost_approved_by is None
            else f"{record.lost_approved_by}: {record.lost_approved_why}",
        }

    # --- the kill switch ----------------------------------------------------------------------------------------------

    def pause(self, table: str | None = None, *, who: str, why: str) -> Pause:
        """Stop all work on a table, or on every table, wherever it runs: workers notice within seconds, stop between
        two pieces of work, and new ones do not begin. Reading, holding, restoring and undeleting go on."""
        require_said(table or "all tables", who=who, why=why)
        table_uuid = None if table is None else self._look(table).metadata.table_uuid
        return self.operations.pauses.begin(who, why, table_uuid, table)

    def resume(self, table: str | None = None, *, who: str) -> list[Pause]:
        """End the pause of a table, or (without one) the pause of all; the pauses that this ended. A table's own pause
        outlives that of all."""
        return self.operations.pauses.end(who, None if table is None else self._look(table).metadata.table_uuid)

    def pauses(self) -> list[Pause]:
        """The pauses that are in force."""
        return self.operations.pauses.in_force()

    # --- quarantine ---------------------------------------------------------------------------------------------------

    def quarantined(self, table: str) -> list[QuarantineRecord]:
        """What deletions of the table moved into quarantine, newest first; also of one that was dropped."""
        return self.operations.quarantines.of_table(self._look_even_if_dropped(table).metadata.table_uuid)

    def undelete(self, job: ExpirationPlan | OrphanScanResult | str, *, who: str, why: str) -> Undeleted:
        """Put the files that a deletion moved into quarantine back to their paths, where nothing else stands now. `job`
        is the plan or the orphan scan.

        They are protected there, from orphan scans and every other deletion, until `close_plan`; the quarantine keeps
        its own until its retention is over. The table's metadata is not changed: the expired snapshots are read from
        the metadata file that the answer names, or brought back from the cold tier by `restore`. Again does what is
        left. Raises BadInput where nobody, or no reason, is said; NoSuchPlan
        when nothing of it is in quarantine; PlanStateError while it is being deleted, and when
        it is purged; LeaseTaken, StorageError.
        """
        job_id = job if isinstance(job, str) else _job_id(job)
        record = self.operations.quarantines.get(job_id)
        require_said(record.table, who=who, why=why)
        look = self._look_even_if_dropped(record.table, record.table_uuid)
        with self._step(look, "undelete", pausable=False) as step:
            self._require_ended(job_id, record.table)
            # On record first, under the lock of those who delete: nobody takes away again what is put back.
            with table_lock(self.operations.engine, record.table_uuid, table=record.table):
                record = self.operations.quarantines.undelete(job_id, who, why)
            if look.is_dropped:
                self.operations.known_tables.back(self._live.name, record.table_uuid)
            done = put_back(self.spark, self.live_stores, self.root, record, check=step.check)
            step.state = "pending" if done.failed else "done"
            step.counts = {"restored": done.restored, "taken": done.taken, "failed": done.failed}
        return done

    def _require_ended(self, job_id: str, table: str) -> None:
        job = self.operations.journal.job(job_id)
        if job is not None and job.finished_at is not None:
            return
        try:
            if self.operations.plans.get(job_id).status is PlanStatus.CLOSED:
                return
        except NoSuchPlan:
            pass
        raise PlanStateError(
            f"{job_id} is still being deleted",
            table=table,
            untouched="all files",
            do=f"let it end, or end it: artemis close {job_id}; then undelete",
        )

    def purge_quarantine(self, table: str, *, dry_run: bool = False) -> list[Purged]:
        """Delete for good what was in quarantine for longer than `quarantine.retain`, job by job; what was brought back
        stays until that is closed. A dry run tells what would go. Raises LeaseTaken, StorageError."""
        look = self._look_even_if_dropped(table)
        bucket = TokenBucket(self._deletion_settings(table).requests_per_second)
        done: list[Purged] = []
        with self._step(look, "quarantine_purge", dry_run=dry_run) as step:
            for record in self.operations.quarantines.due(look.metadata.table_uuid):
                if not dry_run:
                    record = self.operations.quarantines.purge(record.job_id)
                purged = purge(self.live_stores, record, dry_run=dry_run, take=bucket.take, check=step.check)
                if not dry_run and not purged.failed:
                    self.operations.quarantines.purged(record.job_id)
                done.append(purged)
            step.state = "pending" if any(each.failed for each in done) else "done"
            step.counts = {"deleted": sum(each.deleted for each in done), "bytes": sum(each.bytes for each in done)}
        return done

    # --- reading ------------------------------------------------------------------------------------------------------

    def cold_tables(self, table_uuid: str) -> ColdTables | None:
        """The tables of the cold catalog that have the history of the live table with that uuid; None before its first
        handoff. Raises UnreadableMetadata."""
        return ColdTables.open(self._cold, self.cold_stores, self.live_stores, self.root, table_uuid)

    def cold_metadata(self, table: str) -> TableMetadata | None:
        """The table's metadata in the cold catalog, that of several cold tables as one; None before its first
        handoff."""
        return self._cold_metadata(self._look(table).metadata.table_uuid)

    def cold_history(self, table: str) -> ColdHistory:
        """The snapshots that the cold tier has of the table, and which of them are in the deep archive. Raises
        NoSuchTable before the first handoff."""
        table_uuid = self._look(table).metadata.table_uuid
        cold = self.cold_tables(table_uuid)
        if cold is None:
            raise no_cold_table(table)
        return archived_history(table, cold, self.operations.deep_moves.snapshots(table_uuid))

    def _cold_metadata(self, table_uuid: str) -> TableMetadata | None:
        tables = self.cold_tables(table_uuid)
        return None if tables is None else tables.whole()

    def route(
        self, table: str, as_of: datetime | None = None, snapshot_id: int | None = None, tag: str | None = None
    ) -> Route:
        """The tier and the snapshot that answer: by the stored snapshot log, the live tier where both could.

        A snapshot in the deep archive says how long it will take until it can be read. Raises BadInput for two
        selectors, NaiveDatetime, NoSuchSnapshot when no tier has what was asked for.
        """
        selector = Selector(as_of, snapshot_id, tag)
        live = self._look(table).metadata
        return self._told(live.table_uuid, find_route(table, live, self.cold_tables(live.table_uuid), selector))

    def _told(self, table_uuid: str, found: Route) -> Route:
        """`found`, with what is to be told of its tier; a cold snapshot may be in the archive."""
        cold_ids = [found.snapshot_id] if found.tier == "cold" and found.snapshot_id is not None else []
        if self.operations.deep_moves.snapshots(table_uuid, among=cold_ids):
            return self._route_to_archive(table_uuid, found)
        catalog = self.config.catalogs.live if found.tier == "live" else self.config.catalogs.cold
        return replace(found, storage_class=catalog.storage_class, expected_latency=catalog.expected_latency)

    def _route_to_archive(self, table_uuid: str, found: Route) -> Route:
        archive, now = self.config.deep_archive, self.operations.clock.now()
        route = replace(
            found,
            tier="deep-archive",
            storage_class=archive.storage_class,
            expected_latency=archive.expected_latency,
            readable_in=archive.expected_latency,
        )
        for thaw in self.operations.thaws.list(table_uuid):
            if found.snapshot_id not in thaw.snapshot_ids:
                continue
            said = f"{thaw.thaw_id} ({thaw.state}, case {thaw.case_id})"
            if thaw.state is ThawState.READABLE and thaw.readable_until is not None and now < thaw.readable_until:
                # Once thawed it answers as the cold tier does.
                latency = self.config.catalogs.cold.expected_latency
                return replace(route, expected_latency=latency, readable_in=None, thaw=said)
            if thaw.state is ThawState.THAWING and thaw.asked_at is not None:
                left = max(timedelta(0), thaw.asked_at + archive.expected_latency - now)
                route = replace(route, readable_in=left, thaw=said)
            elif route.thaw is None:
                route = replace(route, thaw=said)
        return route

    def read(
        self, table: str, as_of: datetime | None = None, snapshot_id: int | None = None, tag: str | None = None
    ) -> DataFrame:
        """The table's rows now, at an instant, of a snapshot or a tag: from the live or the cold catalog (`route`).

        Raises InDeepArchive for what has to be thawed first, and what `route` raises.
        """
        found = self.route(table, as_of, snapshot_id, tag)
        _require_readable(table, found)
        catalogs = self.config.catalogs
        with java_errors(table):
            if found.cold_table is None:
                return read_rows(self.spark, catalogs.live.name, table, found)
            return read_rows(self.spark, catalogs.cold.name, found.cold_table, found)

    def translate(self, sql: str, *, table: str | None = None, as_of: datetime | None = None) -> Query | TagStatement:
        """What `query` would run for `sql`, in Spark's words; changes nothing.

        A query: names of live tables get their catalog, and `FOR TAG 'x'`, `FOR VERSION AS OF` and
        `FOR TIMESTAMP AS OF` are answered by the tier that has the snapshot (`route`). `TAG SNAPSHOT n [OF table] AS
        'x' [WITH RETENTION FOREVER | 90 DAYS]`: where neither the statement nor `table` names the table, it is the one
        that has snapshot `n`. With `as_of` a query's tables without a clause of their own are read at that instant.
        Raises BadInput, with the right form; NaiveDatetime; NoSuchTable; NoSuchSnapshot.
        """
        statement = parse_tag(sql)
        if statement is not None:
            if as_of is not None:
                raise BadInput(
                    "A TAG statement names a snapshot and no instant", untouched="everything", do="leave out as_of"
                )
            return self._tag_statement(statement, table)
        return translate_query(
            self.spark,
            sql,
            Tables(
                live=self.config.catalogs.live.name,
                cold=self.config.catalogs.cold.name,
                exists=self._live.exists,
                route=lambda name, asked: self.route(name, asked.as_of, asked.snapshot_id, asked.tag),
            ),
            as_of,
        )

    def _tag_statement(self, statement: TagStatement, table: str | None) -> TagStatement:
        live = self.config.catalogs.live.name
        # The catalog may be named too, as it is in Spark SQL.
        named = statement.table and statement.table.removeprefix(f"{live}.")
        if named and table and named != table:
            raise BadInput(
                f"The statement tags {named}, and the call names {table}",
                untouched="both tables",
                do="name one of them",
            )
        found = named or table or self._table_of(statement.snapshot_id)
        snapshot = self._look(found).metadata.snapshot(statement.snapshot_id)
        if snapshot is None:
            raise _no_such_snapshot(found, statement.snapshot_id, "its refs")
        age = max_ref_age_ms(statement.retain, self._instant("now", None), snapshot.timestamp_ms)
        return spark_tag(statement, found, live, age)

    def _table_of(self, snapshot_id: int) -> str:
        """The one live table that has the snapshot. Reads every table's metadata file."""
        having = [name for name in self.tables() if self._look(name).metadata.snapshot(snapshot_id) is not None]
        if len(having) == 1:
            return having[0]
        if not having:
            raise NoSuchSnapshot(
                f"No live table has snapshot {snapshot_id}",
                untouched="all refs",
                do="artemis history TABLE lists the snapshots that a table has",
            )
        raise BadInput(
            f"{len(having)} tables have snapshot {snapshot_id}: {', '.join(having[:5])}",
            untouched="all refs",
            do=f"name the table: TAG SNAPSHOT {snapshot_id} OF {having[0]} AS …",
        )

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
        refuses, InDeepArchive for one that has to wait for a thaw; what is wrong with single rows shows when they are
        collected.
        """
        if not isinstance(sql, str) and (table is not None or as_of is not None):
            raise BadInput(
                "A translated statement has its tables and its instants already",
                untouched="everything",
                do="give table and as_of to translate, or the statement as text",
            )
        found = self.translate(sql, table=table, as_of=as_of) if isinstance(sql, str) else sql
        if isinstance(found, Query):
            for source in found.sources:
                _require_readable(source.table, source)
            with statement_errors():
                return self.spark.sql(found.spark_sql)
        assert found.table is not None  # translate settled it
        retain = "forever" if found.retain is None else found.retain
        return self.tag(found.table, found.name, found.snapshot_id, retain, who=who, why=why)

    # --- explaining ---------------------------------------------------------------------------------------------------

    def explain(self, table: str, path: str) -> Explanation:
        """A file's fate: who holds it, which plan has it, which plan or scan deleted it, or that it is an orphan.

        A file that a snapshot of the table's metadata reaches is `kept`, or `planned` when an open plan removes all
        those snapshots. `deleted` files are found in the journal's outcomes, orphans in the newest scan.
        """
        _require_path(table, path)
        look = self._look(table)
        metadata, rules = look.metadata, self.rules(table)
        location = normalise(path, rules)
        holders = holders_of(self._index(table, metadata), location)
        plans = [
            record
            for record in self.operations.plans.holding(metadata.table_uuid)
            if _names(self.spark, self.live_stores, record.files_location, location, rules)
        ]
        planned = tuple(f"plan {record.plan_id} ({record.status})" for record in plans)
        if holders:
            holds, _ = self._guards(metadata.table_uuid)
            by_holds = held_by(view_of(metadata), holds, milliseconds(look.read_at))
            every = [reason for holder in holders for reason in by_holds.get(holder.snapshot_id or 0, ())]
            held = tuple(dict.fromkeys(every))
            names = tuple(str(holder) for holder in holders) + held
            verdict = "planned" if planned else "kept"
            reasons = planned or (f"reached from {table} at {metadata.metadata_location}",)
            since, until = self._lifetime(look, [h.snapshot_id for h in holders if h.snapshot_id is not None])
            return Explanation(path, verdict, reasons, names, since, until)
        if planned:
            return Explanation(path, "planned", planned, planned)
        fate = self._fate(metadata.table_uuid, location, rules)
        if fate is not None:
            return Explanation(path, "deleted", (fate,), ())
        scan = self.latest_scan(table)
        if scan is not None and _names(self.spark, self.live_stores, scan.files_location, location, rules):
            return Explanation(path, "orphan", (f"scan {scan.scan_id} found that nothing has it",), ())
        beats = self.operations.heartbeats.live(metadata.table_uuid)
        writers = tuple(f"writer {beat.writer_id}, until {beat.expires_at.isoformat()}" for beat in beats)
        return Explanation(path, "unknown", ("no snapshot, open plan, journal or scan of the table names it",), writers)

    def _lifetime(self, look: _Table, snapshot_ids: Sequence[int]) -> tuple[datetime | None, datetime | None]:
        held = [snapshot for snapshot in look.metadata.snapshots if snapshot.snapshot_id in set(snapshot_ids)]
        if not held:
            return None, None
        instant = self._instant("now", None)
        holds, tags = self._guards(look.metadata.table_uuid)
        settings = self._settings(look.name, instant)
        until = held_until(look.metadata, snapshot_ids, settings, milliseconds(instant), holds=holds, tags=tags)
        since = datetime.fromtimestamp(min(snapshot.timestamp_ms for snapshot in held) / 1000, UTC)
        return since, None if until is None else datetime.fromtimestamp(until / 1000, UTC)

    def _fate(self, table_uuid: str, location: str, rules: LocationRules) -> str | None:
        ended = [(record.plan_id, "plan") for record in self.operations.plans.of_table(table_uuid)]
        ended += [(record.scan_id, "scan") for record in self.operations.scans.of_table(table_uuid)]
        for job_id, kind in ended:
            if self.operations.journal.job(job_id) is None:
                continue
            outcomes = outcome_frame(self.spark, self.live_stores, self.root, job_id)
            at = normalise_column(outcomes.path, rules) == location
            row = outcomes.filter(at & outcomes.outcome.isin(*GONE, "absent")).first()
            if row is not None:
                return f"{kind} {job_id}: {row['outcome']}, {row['reason']}"
        return self._recorded_fate(table_uuid, location, rules, {job_id for job_id, _ in ended})

    def _recorded_fate(self, table_uuid: str, location: str, rules: LocationRules, jobs: Collection[str]) -> str | None:
        """The same by the table for people, of deletions whose outcomes were forgotten."""
        known = [self.operations.journal.job(job_id) for job_id in jobs]
        if not any(job is not None and job.forgotten_at is not None for job in known):
            return None
        if not self._live.exists(f"{RESULTS}.deletions"):
            return None
        rows = self.spark.table(f"{self.config.catalogs.live.name}.{RESULTS}.deletions")
        rows = rows.filter((rows.table_uuid == table_uuid) & rows.outcome.isin(*GONE, "absent"))
        row = rows.filter(normalise_column(rows.path, rules) == location).first()
        if row is None:
            return None
        kind = "plan" if row["job_kind"] == "expiration" else "scan"
        return f"{kind} {row['job_id']}: {row['outcome']}, {row['reason']}"

    # --- lineage and upkeep -------------------------------------------------------------------------------------------

    def record_lineage(self, table: str) -> LedgerUpdate:
        """Append to the ledger (`<live>.lifecycle.lineage_ledger`) the snapshots that it does not have yet."""
        look = self._look(table)
        requirements = LineageRequirements.from_config(self.config.policy(table).lineage)
        with self._step(look, "lineage") as step:
            update = append_lineage(
                self.spark, self.config.catalogs.live.name, table, look.metadata, requirements, look.read_at
            )
            step.counts = {"snapshots_added": update.added}
        return update

    def schema_history(self, table: str) -> SchemaHistory:
        """The schemas that the table has had, what each changed, and which snapshots used it: those that expired since
        too, where the ledger had recorded them (`record_lineage`)."""
        metadata = self._look(table).metadata
        earlier: tuple[SchemaUse, ...] = ()
        # Looking at it would make it; who only reads makes no table.
        if self._live.exists(f"{RESULTS}.{LEDGER}"):
            earlier = recorded_schema_uses(self.spark, self.config.catalogs.live.name, metadata.table_uuid)
        return schemas_of(table, metadata, earlier)

    def table_health(self, table: str) -> TableHealth:
        """Small files, deletes, manifests and metadata of the current snapshot: what makes reading the table slow."""
        return self._health(self._look(table))

    def _health(self, look: _Table) -> TableHealth:
        live = self.config.catalogs.live.name
        return health_of(self.spark, self.live_stores, live, look.name, look.metadata, look.read_at)

    def compact_data_files(self, table: str, *, dry_run: bool = False) -> CompactedDataFiles:
        """Rewrite small data files, where the table's health asks for it, within the bandwidth budget."""
        look = self._look(table)
        settings = CompactionSettings(bandwidth_share=self.config.policy(table).budgets.compaction_bandwidth_share)
        with self._step(look, "compaction", dry_run=dry_run) as step:
            done = compacted_data_files(
                self.spark,
                self.config.catalogs.live.name,
                table,
                self._health(look),
                self._worker("compaction"),
                settings,
                dry_run=dry_run,
            )
            step.counts = {"files_rewritten": done.rewritten_files, "files_added": done.added_files}
        return done

    def compact_manifests(self, table: str, *, dry_run: bool = False) -> CompactedManifests:
        """Rewrite many small manifests into few, where their average size asks for it."""
        look = self._look(table)
        with self._step(look, "manifest_compaction", dry_run=dry_run) as step:
            done = compacted_manifests(
                self.spark,
                self.config.catalogs.live.name,
                table,
                self._health(look),
                look.metadata,
                self._worker("manifest-compaction"),
                dry_run=dry_run,
            )
            step.counts = {"manifests_rewritten": done.rewritten_manifests, "manifests_added": done.added_manifests}
        return done

    def _worker(self, what: str) -> Worker:
        return Worker(
            writer_id=f"artemis-lifecycle/{what}",
            invocation_id=self.run_id or uuid.uuid4().hex,
            commit_hash=os.environ.get("ARTEMIS_COMMIT_HASH") or f"artemis-lifecycle {version('artemis-lifecycle')}",
            trigger_type="schedule" if self.run_id else "manual",
            operator=None if self.run_id else self.owner,
        )

    # --- restoring ----------------------------------------------------------------------------------------------------

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
            live, tables = self._look(table).metadata, self.cold_tables(table_uuid)
            holder = None if tables is None else tables.holding(snapshot_id)
            cold = None if holder is None else holder.metadata
            archived = None if cold is None else cold.snapshot(snapshot_id)
            if archived is not None and live.snapshot(snapshot_id) is None:
                _require_readable(table, self._told(table_uuid, Route("cold", snapshot_id)))
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
                    who=who or _person(),
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

    # --- deep archive -------------------------------------------------------------------------------------------------

    def deep_archive(self, table: str, now: datetime | None = None, *, dry_run: bool = False) -> DeepArchived:
        """Move the files of cold snapshots past `cold_tier.retain` to the archive, at their own paths; only those that
        no other cold snapshot has, nor the live table. Where the policy says `then: keep`, nothing moves.

        A hold on a snapshot, or on the table, keeps it out. `now` may only be in the past. A dry run tells what would
        move. Raises NoSuchTable before the first handoff; Refused when a hold comes in meanwhile; UnreadableMetadata,
        LeaseTaken, Busy.
        """
        instant = min(self._instant("now", now), self._instant("now", None))
        policy, archive = self.config.policy(table).cold_tier, self.config.deep_archive
        look = self._look(table)
        with self._step(look, "deep_archive", dry_run=dry_run) as step:
            live = self._look(table).metadata
            table_uuid = live.table_uuid
            identity, cold = read_identity(self.live_stores, self.root, table_uuid), self._cold_metadata(table_uuid)
            if identity is None or cold is None:
                raise no_cold_table(table)
            if not policy.enabled or policy.then == "keep":
                return DeepArchived(table, archive.storage_class, cutoff=instant - policy.retain, dry_run=dry_run)
            done = move_to_archive(
                DeepArchiveContext(
                    spark=self.spark,
                    cold_stores=self.cold_stores,
                    records=self.live_stores,
                    operations=self.operations,
                    root=self.root,
                    table=table,
                    mapping=PathMapping(identity),
                    ledger=handoff_ledger(self.live_stores, self.root, table_uuid),
                    cold=self._cold_index(table, cold),
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
            raise BadInput("A thaw lasts for at least a day", table=table, untouched="everything", do="give --days 1")
        if snapshot_ids and (as_of is not None or tag is not None):
            raise BadInput("Two selectors at once", table=table, untouched="everything", do="give one of them")
        selectors = [Selector(snapshot_id=each) for each in dict.fromkeys(snapshot_ids)] or [Selector(as_of, tag=tag)]
        live = self._look(table).metadata
        table_uuid, cold = live.table_uuid, self.cold_tables(live.table_uuid)
        routes = [self._told(table_uuid, find_route(table, live, cold, selector)) for selector in selectors]
        readable = next((route for route in routes if route.tier != "deep-archive"), None)
        if readable is not None:
            raise BadInput(
                f"Snapshot {readable.snapshot_id} is in the {readable.tier} tier, and can be read now",
                table=table,
                untouched="everything",
                do=f"read it: artemis read {table} --snapshot-id {readable.snapshot_id}",
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
            requested_from=_person(),
            approve_within=self.config.deep_archive.approve_within,
        )

    def approve_thaw(self, thaw_id: str, who: str, why: str = "") -> ThawRecord:
        """A second person's approval: the store is asked for every file. Run again after a kill it asks for the rest.

        Raises Refused for the requester's own approval, and for a thaw that lapsed or ended; NoSuchPlan; StorageError.
        """
        thaw = self.operations.thaws.approve(thaw_id, who, why, _person())
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
        return read_frame(self.spark, self.operations.thaws.get(thaw_id).files_location, self.live_stores)

    def thaws(self, table: str | None = None, *, ended: bool = False) -> list[ThawRecord]:
        """Thaws that have not ended (with `ended`, all), of one table or of every, newest first."""
        table_uuid = None if table is None else self._look(table).metadata.table_uuid
        return self.operations.thaws.list(table_uuid, ended=ended)

    # --- tags, holds, writers -----------------------------------------------------------------------------------------

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
        kept = None if retain == "forever" else _duration("retain", retain)
        look = self._look(table)
        snapshot = look.metadata.snapshot(snapshot_id)
        if snapshot is None:
            raise _no_such_snapshot(table, snapshot_id, "its refs")
        with self._step(look, "tag", pausable=False), table_lock(self.operations.engine, look.metadata.table_uuid):
            created_at = self._instant("now", None)
            age = max_ref_age_ms(kept, created_at, snapshot.timestamp_ms)

            def change(base: BaseState) -> Change:
                found = base.metadata.ref(name)
                if found is not None and found.isTag() and found.snapshotId() != snapshot_id and not replace:
                    raise BadInput(
                        f"Tag {name!r} is on snapshot {found.snapshotId()} already",
                        table=table,
                        untouched="its refs",
                        do="choose another name, or move the tag with --replace (replace=True)",
                    )
                return Change(set_tags=(TagChange(name, snapshot_id, age),))

            record = self.operations.tags.record(
                look.metadata.table_uuid,
                table,
                name,
                snapshot_id,
                who or _person(),
                why,
                kept,
                created_at=created_at,
                max_ref_age_ms=age,
            )
            try:
                result = commit_with_retry(self.spark, self.config.catalogs.live.name, table, change)
            except CommitStateUnknown:
                raise
            except LifecycleError:
                self.operations.tags.withdraw(record)
                raise
        ends = None if kept is None else created_at + kept
        return Tagged(table, name, snapshot_id, result.metadata_location, record.who, created_at, why or None, ends)

    def untag(self, table: str, name: str, *, why: str = "", who: str | None = None) -> Tagged:
        """Remove a tag; who, when and `why` are kept, whoever made it. Raises NoSuchSnapshot when the table has no such
        tag, BadInput when it was moved meanwhile."""
        look = self._look(table)
        ref = look.metadata.refs.get(name) or self._removed_unsaid(look, name)
        if ref is None or ref.is_branch:
            raise NoSuchSnapshot(
                f"The live table has no tag {name!r}",
                table=table,
                untouched="its refs",
                do=f"artemis tags {table} lists the refs that it has",
            )

        def change(base: BaseState) -> Change | None:
            found = base.metadata.ref(name)
            if found is not None and (found.isBranch() or found.snapshotId() != ref.snapshot_id):
                raise BadInput(
                    f"Tag {name!r} was moved to snapshot {found.snapshotId()} meanwhile",
                    table=table,
                    untouched="its refs",
                    do=f"look again (artemis tags {table}), then remove it",
                )
            return Change(remove_refs=(name,)) if found is not None else None

        with self._step(look, "untag", pausable=False):
            result = commit_with_retry(self.spark, self.config.catalogs.live.name, table, change)
            record = self.operations.tags.removed(
                look.metadata.table_uuid, table, name, ref.snapshot_id, who or _person(), why or None
            )
        return Tagged(
            table, name, None, result.metadata_location, record.removed_by, record.removed_at, record.removed_why
        )

    def _removed_unsaid(self, look: _Table, name: str) -> Ref | None:
        """A tag that is gone, and not because it expired, while its record is in force: who removed it died before that
        was written down."""
        table_uuid = look.metadata.table_uuid
        record = next((each for each in self.operations.tags.of_table(table_uuid) if each.name == name), None)
        if record is None or any(
            name in plan.expired_refs for plan in self.operations.plans.of_table(table_uuid, ENDED)
        ):
            return None
        return Ref(name, record.snapshot_id, "tag")

    def tags(self, table: str, *, with_removed: bool = False) -> TableRefs:
        """The table's branches and tags, each with its snapshot, its terms and its end, and who made it, when and why,
        where that is known. `with_removed` adds the records of tags that are no more."""
        look = self._look(table)
        return table_refs(
            table,
            look.metadata,
            self.operations.tags.of_table(look.metadata.table_uuid, with_removed=True),
            self._settings(table, look.read_at),
            milliseconds(look.read_at),
            with_removed=with_removed,
        )

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
        look = self._look(table)
        self._require_snapshots(look, snapshot_ids, kind)
        placed = self.operations.holds.place(
            table_uuid=look.metadata.table_uuid,
            table=table,
            owner=owner,
            reason=reason,
            snapshot_ids=tuple(snapshot_ids),
            until=None if until is None else self._instant("until", until),
            kind=kind,
            ttl=None if ttl is None else _duration("ttl", ttl),
        )
        try:
            # Placing waited for commits under way; what they removed, no hold brings back.
            self._require_snapshots(self._look(table), snapshot_ids, kind)
        except BadInput:
            self.operations.holds.release(placed.hold_id)
            raise
        return placed

    def _require_snapshots(self, look: _Table, snapshot_ids: Sequence[int], kind: HoldKind = "lease") -> None:
        absent = [snapshot_id for snapshot_id in snapshot_ids if look.metadata.snapshot(snapshot_id) is None]
        if absent and kind == "legal":
            # A legal hold also keeps a snapshot of the cold tier from the archive.
            cold = self.cold_tables(look.metadata.table_uuid)
            absent = [each for each in absent if cold is None or cold.holding(each) is None]
        if absent:
            raise _no_such_snapshot(look.name, absent[0], "its holds")

    def holds(self, table: str, *, ended: bool = False) -> list[Hold]:
        """The table's holds in force, oldest first; with `ended`, those that were, too."""
        table_uuid = self._look(table).metadata.table_uuid
        found = self.operations.holds.of_table(table_uuid) if ended else self.operations.holds.active(table_uuid)
        return list(found)

    def renew(self, hold_id: str, ttl: str | timedelta) -> Hold:
        """Let a reader's lease last until `ttl` from now. Raises Refused when it has ended, BadInput for another kind,
        NoSuchPlan for an id that no hold has."""
        return self.operations.holds.renew(hold_id, _duration("ttl", ttl))

    def advance(self, hold_id: str, snapshot_id: int) -> Hold:
        """Move a consumer's position: that snapshot, and every later one, stay from now on.

        Raises NoSuchSnapshot when the table has it no more, Refused when the hold has ended, BadInput for another kind,
        NoSuchPlan for an id that no hold has.
        """
        hold = self.operations.holds.get(hold_id)
        with table_lock(self.operations.engine, hold.table_uuid, table=hold.table):
            look = self._look(hold.table)
            if look.metadata.table_uuid != hold.table_uuid:
                raise NoSuchTable(
                    f"The name now belongs to another table ({look.metadata.table_uuid}, not {hold.table_uuid})",
                    table=hold.table,
                    untouched="the hold",
                    do=f"release the hold: artemis release {hold_id}",
                )
            self._require_snapshots(look, [snapshot_id])
            return self.operations.holds.advance(hold_id, snapshot_id)

    def release(self, hold_id: str) -> Hold:
        """Release a hold. Raises NoSuchPlan for an id that no hold has."""
        return self.operations.holds.release(hold_id)

    def writers(self, table: str | None = None) -> list[Heartbeat]:
        """The writers at work, by their heartbeats, of one table or of all, longest at work first."""
        return self.operations.heartbeats.live(None if table is None else self._look(table).metadata.table_uuid)

    def writing(
        self, table: str, writer_id: str, prefix: str | None = None, ttl: str | timedelta = "10m"
    ) -> AbstractContextManager[Writing]:
        """A heartbeat while the block runs: every unreferenced file of the table (or under `prefix`) is a writer's."""
        look = self._look(table)
        return writing(
            self.operations,
            look.metadata.table_uuid,
            table,
            writer_id,
            prefix,
            parse_duration(ttl),
        )


class _Step:
    """What a step reports of itself. `check` raises LeaseLost when another worker took the table over, and Paused."""

    def __init__(self, table: str, night: date, lease: Lease | None, watch: Watch | None) -> None:
        self.table = table
        self.night = night
        self.lease = lease
        self._watch = watch
        self.state: Literal["done", "pending", "skipped"] = "done"
        self.counts: Mapping[str, int] = {}

    def pause(self) -> str | None:
        """Why the work has to stop, if it has to."""
        return None if self._watch is None else self._watch.why

    def check(self) -> None:
        if self.lease is not None:
            self.lease.check()
        why = self.pause()
        if why is not None:
            raise _paused(self.table, why)


def _paused(table: str, why: str) -> Paused:
    return Paused(
        f"The work stopped: {why}",
        table=table,
        untouched="what was not finished before; it is gone on with by the next run",
        do="let it go on with artemis resume, or wait for the next night",
    )


def _require_readable(table: str, found: Route) -> None:
    if found.readable_in is None:
        return
    under_way = f"; {found.thaw}" if found.thaw else ""
    raise InDeepArchive(
        f"Snapshot {found.snapshot_id} is in the deep archive ({found.storage_class}), readable about "
        f"{found.hours_until_readable:.0f} hours after a thaw was approved{under_way}",
        table=table,
        untouched="everything",
        do=f"artemis thaw {table} --snapshot-id {found.snapshot_id} --case … --requester … --reason …",
    )


def _job_id(job: ExpirationPlan | OrphanScanResult) -> str:
    return job.plan_id if isinstance(job, ExpirationPlan) else job.scan_id


def _person() -> str:
    """Who acts, where nobody is named."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def _duration(name: str, given: str | timedelta) -> timedelta:
    try:
        duration = parse_duration(given)
    except ValueError as error:
        raise BadInput(f"{name}: {error}", untouched="everything", do="write it as 90d or 12h") from error
    if duration < timedelta(milliseconds=1):
        raise BadInput(f"{name} is no time at all: {given}", untouched="everything", do="write it as 90d or 12h")
    return duration


def _no_such_snapshot(table: str, snapshot_id: int, untouched: str) -> NoSuchSnapshot:
    return NoSuchSnapshot(
        f"The live table has no snapshot {snapshot_id}",
        table=table,
        untouched=untouched,
        do=f"artemis history {table} lists the snapshots that it has",
    )


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


def _deletion_counts(report: DeletionReport) -> dict[str, int]:
    return {
        "files_deleted": report.deleted,
        "files_absent": report.already_absent,
        "files_kept": report.kept,
        "files_failed": report.failed,
        "bytes_deleted": report.bytes,
    }


def _require_path(table: str, path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            "The path is no Unicode text", table=table, untouched="everything", do="give it as the metadata spells it"
        ) from error


def _names(spark: SparkSession, stores: Stores, files_location: str, location: str, rules: LocationRules) -> bool:
    files = read_frame(spark, files_location, stores)
    return bool(files.filter(normalise_column(files.path, rules) == location).take(1))
