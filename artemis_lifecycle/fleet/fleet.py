"""The fleet at a glance: one row per governed table, from Postgres alone, and the page that shows it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.catalogs.identifier import is_addressable
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import MaintenanceWindow, QuietWindow, TablePolicy, coming_window, window_of
from artemis_lifecycle.deletion.report import receipt_folder
from artemis_lifecycle.errors import LifecycleError, NewerFormat, StorageError, UnreadableMetadata
from artemis_lifecycle.escaping import terminal
from artemis_lifecycle.fleet.page import NO_LINKS, FleetDay, Links, fleet_history, overdue_after, page, table_page
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.operations.fleet import (
    HeldBytes,
    Seconds,
    counted,
    freed_by_day,
    freed_by_job,
    last_done,
    newest_deletions,
    newest_states,
    red_checks,
    seconds_to_deletion,
)
from artemis_lifecycle.operations.journal import JobRecord
from artemis_lifecycle.operations.plans import UNCOMMITTED, PlanRecord, PlanStatus
from artemis_lifecycle.operations.scans import ScanRecord, ScanState
from artemis_lifecycle.operations.steps import StepRecord
from artemis_lifecycle.orphans.trend import next_scan, trend_of
from artemis_lifecycle.protection.future import claims
from artemis_lifecycle.reachability.reached import ReachedFolders
from artemis_lifecycle.scheduling.maintenance_window import (
    Progress,
    Step,
    WindowForecast,
    forecast,
    steps_left,
    work_of,
)
from artemis_lifecycle.session.formats import PLANNED
from artemis_lifecycle.session.live_catalogs import readers_in
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.tabular import Shown
from artemis_lifecycle.upkeep.maintenance import storage_classes

if TYPE_CHECKING:
    import pandas as pd

    from artemis_lifecycle.expiration.curve import RetentionCurve
    from artemis_lifecycle.metadata.types import SnapshotHistory
    from artemis_lifecycle.upkeep.costs import TableCosts
    from artemis_lifecycle.upkeep.score import HealthHistory

# --- unread -----------------------------------------------------------------------------------------------------------
# Readers of a catalog that stop or delay other tables' deletions, all at once: tables that cannot be read, and logs
# of other formats.

_READERS = 8


@dataclass(frozen=True)
class UnreadReaders:
    """`tables` and `folders` have a sentence for each kind of unreadable table, and for each folder with another
    format's log. `lines` is what lifecycle.yaml needs under `catalogs.CATALOG` if the tables read no others' files."""

    tables: tuple[str, ...]
    folders: tuple[str, ...]
    lines: str
    catalog: str = "live"

    @property
    def sentences(self) -> tuple[str, ...]:
        release = f"; if they read no other table's files, set catalogs.{self.catalog}.{self.lines}"
        return (*(f"{each}{release}" for each in self.tables), *self.folders)


def unread_readers(config: LifecycleConfig, catalog: CatalogReader, stores: Stores) -> UnreadReaders:
    """Return the tables that the last deletion or scan by any process could not read, or that cannot be read now, if it
    did not read them; and the folders of other formats that are still there."""
    live = config.catalogs.named_as(catalog.name)
    reached = ReachedFolders(None, stores, str(config.operations.root), lambda _: LocationRules({}, {}))
    pointers, never = readers_in(config.catalogs, catalog)
    problems, newest, unseen = reached.problems(), dict[str, str](), list[str]()
    for name, pointer in pointers.items():
        problem = pointer.problem or problems.get(name)
        if problem is not None:
            (newest if reached.knows(name, pointer) else never)[name] = problem
        elif not reached.knows(name, pointer):
            unseen.append(name)

    def read(name: str) -> str | None:
        try:
            read_table_metadata(stores, pointers[name].metadata_location)
        except NewerFormat:
            return None  # Iceberg itself may read it, which needs Spark.
        except (UnreadableMetadata, StorageError) as error:
            return error.what
        return None

    never |= {name: why for name, why in zip(unseen, threaded(read, unseen, _READERS), strict=True) if why is not None}
    kinds = {"never readable: they stop all deletions of other tables": never}
    kinds["of which the newest commits are not readable: other tables' files wait for them"] = newest
    sentences, named = list[str](), list[str]()
    for kind, tables in kinds.items():
        open_ones = sorted(name for name in tables if is_addressable(name) and not config.catalogs.is_isolated(name))
        named += open_ones
        if open_ones:
            sentences.append(f"tables {kind}: {'; '.join(f'{name} ({tables[name]})' for name in open_ones)}")
    folders = [
        f"{folder}, where {table} has files, has the log of another table format: what it names is kept"
        for table, seen in sorted(reached.formats().items())
        for folder in claims(stores, seen)
    ]
    lines = json.dumps([*live.isolated, *sorted(named)], ensure_ascii=False)
    key = "live" if live is config.catalogs.live else live.name
    return UnreadReaders(tuple(sentences), tuple(folders), f"isolated: {lines}", key)


# --- tonight ----------------------------------------------------------------------------------------------------------
# The position of each table in its maintenance window, from its plans, scans and step records in Postgres, and the
# forecast of what is left. Reads no metadata file.

MEASURED_OVER = timedelta(days=14)
"""How far back durations of runs count for a forecast."""

_BY_NAME = {step.value: step for step in Step}
_NO_PLAN_NEEDED = {("plan", "done"), ("plan", "skipped")}
"""Steps, and how they ended, after which the window needs no other plan."""

_DUE = (PlanStatus.COMMITTED, PlanStatus.DELETING)


@dataclass(frozen=True)
class TableWindow:
    """One table's window, the table's position in it, and the steps that run in it automatically.

    `whole_walk` means that they start in one run. `last_done` is when each step last ended for the table, and
    `freeable_bytes` is what its plans under way can free: both decide its place in the queue. `approved_at` is when a
    person last approved its plan or scan.
    """

    table: str
    window: MaintenanceWindow
    progress: Progress
    steps: frozenset[Step]
    whole_walk: bool
    last_done: Mapping[str, datetime]
    freeable_bytes: int
    approved_at: datetime | None


def tonight(resources: Resources, tables: Iterable[str], now: datetime) -> list[TableWindow]:
    """Return each table's position in the window of `now`, except for its runs. Reads unfinished plans, recent scans,
    and the records of these windows."""
    return _positions(resources, tables, lambda quiet: window_of(now, quiet), lambda window: now)


def forecasts(resources: Resources, tables: Iterable[str], now: datetime) -> tuple[WindowForecast, ...]:
    """Return whether each open window, or else the next one, will suffice. Empty before the first run of a window is
    recorded."""
    means = resources.operations.run_times.means(now - MEASURED_OVER)
    if not means:
        return ()
    # A deletion or a scan that becomes due in the window belongs to it.
    found = _positions(resources, tables, lambda quiet: coming_window(now, quiet), lambda window: window.closes)
    planned = newest_states(resources.operations.engine, "plan")
    work = []
    for each in found:
        cold_tier = resources.has_cold_tier(each.table)
        left = steps_left(each.progress, each.steps, is_busy=planned.get(each.table) != "skipped", cold_tier=cold_tier)
        work.append(work_of(each.table, each.window, left, means, whole_walk=each.whole_walk))
    return forecast(work, now, resources.operations.run_times.parallel_runs())


def _positions(
    resources: Resources,
    tables: Iterable[str],
    window_for: Callable[[QuietWindow], MaintenanceWindow],
    due_by: Callable[[MaintenanceWindow], datetime],
) -> list[TableWindow]:
    operations, config = resources.operations, resources.config
    windows = {table: window_for(config.policy(table).quiet_window) for table in tables}
    # Another table may have the name of a dropped one. The dropped one's plans and scans do not apply to it.
    known = [each for name in resources.catalogs.names for each in operations.known_tables.of_catalog(name)]
    dropped = {each.table_uuid for each in known if each.missing_since}
    dropped -= {each.table_uuid for each in known if not each.missing_since}
    plans = defaultdict(list)
    for holding in operations.plans.holding():
        if holding.table_uuid not in dropped:
            plans[holding.table].append(holding)
    done = last_done(operations.engine)
    uncommitted = {
        record.table: record
        for record in reversed(operations.plans.all_uncommitted())
        if record.table_uuid not in dropped
    }
    records: dict[tuple[str, date], list[StepRecord]] = defaultdict(list)
    for day in {window.day for window in windows.values()}:
        for record in operations.steps.of_window(day):
            if record.table_uuid not in dropped:
                records[record.table, day].append(record)
    scans = operations.scans.recent()
    found = []
    for table, window in windows.items():
        policy, plan, by = config.policy(table), uncommitted.get(table), due_by(window)
        own_scans = [scan for scan in scans.get(table, ()) if scan.table_uuid not in dropped]
        scan_at = next_scan(trend_of(table, own_scans).points, policy.orphans.scan_every, policy.orphans.min_age)
        # A later attempt by hand that failed makes nothing undone.
        # A plan under a former policy, such as a backfill's, leaves the window its own.
        mine = (None, policy.retention.digest)
        ended = {
            (record.step, record.state)
            for record in records[table, window.day]
            if record.step != "plan" or record.policy in mine
        }
        progress = Progress(
            planned=resources.kind(table) not in PLANNED or not ended.isdisjoint(_NO_PLAN_NEEDED),
            plan_needs=None
            if plan is None
            else next_step(plan, cold_tier=resources.has_cold_tier(table), cleans=policy.retention.clean_metadata),
            plans_due=sum(
                each.status in _DUE and each.due_at is not None and each.due_at <= by for each in plans[table]
            ),
            orphans_due=scan_at is None or scan_at <= window.closes or any(map(_is_unfinished, own_scans)),
            scanned=("orphan_deletion", "done") in ended,
        )
        steps = frozenset(_BY_NAME[name] for name in policy.quiet_window.steps)
        approvals = [scan.approved_at for scan in own_scans]
        approvals += [] if plan is None else [plan.approved_at, plan.lost_approved_at]
        found.append(
            TableWindow(
                table=table,
                window=window,
                progress=progress,
                steps=steps,
                whole_walk=policy.quiet_window.runs == "one_per_table" and steps == frozenset(Step),
                last_done=done.get(table, {}),
                freeable_bytes=sum(each.bytes for each in plans[table]),
                approved_at=max(filter(None, approvals), default=None),
            )
        )
    return found


def _is_unfinished(scan: ScanRecord) -> bool:
    """Return True for a deletion that was interrupted or that a person approved: it does not wait for the next scan."""
    return scan.state is ScanState.DELETING or (scan.state is ScanState.OPEN and scan.approved_at is not None)


def next_step(plan: PlanRecord, *, cold_tier: bool, cleans: bool = False) -> Step | None:
    """Return what an uncommitted plan needs next. An empty plan needs nothing, unless its commit `cleans` metadata."""
    if not plan.expired_snapshots and not plan.expired_refs:
        return Step.COMMIT if cleans else None
    if plan.status is PlanStatus.OPEN and cold_tier and plan.expired_snapshots:
        return Step.HANDOFF
    return Step.COMMIT


FREED_OVER = timedelta(days=30)


@dataclass(frozen=True)
class FleetTable:
    """One table. `red_checks` are those of its plans under way, and others (`<asset>: <check>`) whose newest result is
    an error, not a warning. `plan_status` is that of its newest plan under way. `freed_bytes` are from the last 30
    days. `freeable_bytes` are what plans under way and the newest scan still hold. `health_score`, 0 to 100, is the
    newest recorded one; None before the first. `receipt` is the location of that of the newest deletion in the last 30
    days, and `page` that of the table's page, beside the fleet's.

    `stored_bytes` are those of all tiers when the table's costs were last added up (`costed_at`), None before that.
    `cost_per_month` is their price, None while a price is missing. Other instants say when a step last ended for the
    table, or had nothing to do: None if it never did. `health_at` is when its health was measured, `scrubbed_at` when
    its cold copies were last read."""

    table: str
    governed_by: str
    overdue: bool
    waits_for: tuple[str, ...]
    holds: int
    paused: bool
    red_checks: tuple[str, ...]
    plan_status: str | None
    freed_bytes: int
    freeable_bytes: int
    orphan_share: float | None
    stored_bytes: int | None
    cost_per_month: float | None
    health_score: float | None
    planned_at: datetime | None
    handed_off_at: datetime | None
    committed_at: datetime | None
    deleted_at: datetime | None
    scanned_at: datetime | None
    orphans_deleted_at: datetime | None
    lineage_at: datetime | None
    health_at: datetime | None
    costed_at: datetime | None
    data_compacted_at: datetime | None
    manifests_compacted_at: datetime | None
    history_compacted_at: datetime | None
    scrubbed_at: datetime | None
    deep_archived_at: datetime | None
    receipt: str
    page: str | None


_STEPS = {
    "planned_at": "plan",
    "handed_off_at": "handoff",
    "committed_at": "commit",
    "deleted_at": "deletion",
    "orphans_deleted_at": "orphan_deletion",
    "lineage_at": "lineage",
    "data_compacted_at": "compaction",
    "manifests_compacted_at": "manifest_compaction",
    "history_compacted_at": "history_compaction",
    "deep_archived_at": "deep_archive",
}
"""The step that each instant is of."""


@dataclass(frozen=True)
class Fleet(Shown):
    """All governed tables at `at`. `windows` say whether the open quiet windows, or else the next ones, will suffice;
    empty until runs of a window are recorded. `history` are the last 30 days, today last; `other_waits` say
    what of other tables, such as dropped ones, waits for a person."""

    at: datetime
    tables: tuple[FleetTable, ...]
    windows: tuple[WindowForecast, ...] = ()
    history: tuple[FleetDay, ...] = ()
    other_waits: tuple[str, ...] = ()
    currency: str = "USD"
    links: Links = NO_LINKS

    @property
    def summary(self) -> dict[str, int]:
        """The number of tables of each kind, and total bytes."""
        return {
            "tables": len(self.tables),
            "overdue": sum(table.overdue for table in self.tables),
            "waiting": sum(bool(table.waits_for) for table in self.tables) + len(self.other_waits),
            "held": sum(bool(table.holds) for table in self.tables),
            "paused": sum(table.paused for table in self.tables),
            "red": sum(bool(table.red_checks) for table in self.tables),
            "late": sum(len(window.late) for window in self.windows),
            "freed_bytes": sum(table.freed_bytes for table in self.tables),
            "freeable_bytes": sum(table.freeable_bytes for table in self.tables),
            "stored_bytes": sum(table.stored_bytes or 0 for table in self.tables),
        }

    @property
    def cost_per_month(self) -> float | None:
        """Return the price of a month's storage of the tables whose cost is known; None if there is none."""
        known = [table.cost_per_month for table in self.tables if table.cost_per_month is not None]
        return sum(known) if known else None

    @property
    def cost(self) -> str:
        """Return the cost per month in a sentence, with what of it is unknown and why."""
        unmeasured = sum(table.stored_bytes is None for table in self.tables)
        unpriced = sum(table.cost_per_month is None for table in self.tables) - unmeasured
        text = "the cost of storage is unknown"
        if self.cost_per_month is not None:
            text = f"storage of all tiers costs {self.cost_per_month:,.2f} {self.currency} a month"
        if unmeasured:
            text += f"; tables without recorded costs (asset table_health, or artemis costs TABLE): {unmeasured:,}"
        if unpriced:
            text += f"; tables in a storage class that `prices` in lifecycle.yaml does not have: {unpriced:,}"
        return text

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the page and the command line say beside the table: the cost, the windows, and other waits."""
        return (self.cost, *map(str, self.windows), *self.other_waits)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per table, with the fields of FleetTable."""
        import pandas as pd

        return pd.DataFrame([asdict(table) for table in self.tables], columns=list(FleetTable.__dataclass_fields__))

    @property
    def html(self) -> str:
        """Return the fleet as one self-contained page: sortable, with plots."""
        tables = [asdict(table) for table in self.tables]
        return page(self.at, self.summary, self.sentences, tables, self.history, self.currency, self.links)


def fleet_of(resources: Resources, tables: Sequence[str], *, history: bool = True) -> Fleet:
    """See `Lifecycle.fleet`."""
    operations, config = resources.operations, resources.config
    now = operations.clock.now()
    done = last_done(operations.engine)
    freed = freed_by_day(operations.engine, now - FREED_OVER)
    under_way = defaultdict(list)
    for plan in operations.plans.holding():
        under_way[plan.table].append(plan)
    of_plans = red_checks(operations.engine, [plan.plan_id for plans in under_way.values() for plan in plans])
    of_tables = operations.check_results.red()
    holds = Counter(hold.table for hold in operations.holds.active())
    waits: dict[str, list[str]] = defaultdict(list)
    for wait in operations.waits.open():
        waits[wait.table].append(f"approval of {wait.job_id} since {wait.since:%Y-%m-%d %H:%M}: {wait.why}")
    for thaw in operations.thaws.to_approve():
        waits[thaw.table].append(f"approval of {thaw.thaw_id} since {thaw.requested_at:%Y-%m-%d %H:%M}: {thaw.what}")
    pauses = {pause.table for pause in operations.pauses.in_force()}
    scans = operations.scans.recent(1)
    jobs = [plan.plan_id for plans in under_way.values() for plan in plans]
    jobs += [scan.scan_id for (scan, *_) in scans.values()]
    gone = freed_by_job(operations.engine, jobs)
    pages, deletions, folders, problems = set[str](), dict[str, JobRecord](), dict[str, str](), list[str]()
    if history:
        deletions = {job.table: job for job in newest_deletions(operations.engine, now - FREED_OVER)}
        known = (each for name in resources.catalogs.names for each in operations.known_tables.of_catalog(name))
        folders = {each.table_uuid: each.metadata_location.rpartition("/")[0] for each in known}
        try:
            pages = {
                each.path.rpartition("/")[2] for each in resources.live_stores.list(f"{resources.root}/{FOLDER}/tables")
            }
        except StorageError as error:
            problems.append(f"which tables have a page is unknown: {error.what}")
    healths, scrubbed, held = operations.health.by_table(), operations.scrubs.last(), operations.held_bytes.by_table()
    found, governed = list[FleetTable](), dict[str, TablePolicy]()
    for table in tables:
        if not config.governs(table):
            continue
        (entry,), governed[table] = config.matching(table), config.policy(table)
        steps, plans = done.get(table, {}), under_way.get(table, [])
        planned_at, limit = steps.get("plan"), overdue_after(governed[table])
        scan = next(iter(scans.get(table, ())), None)
        listed = 0 if scan is None else json.loads(scan.summary)["listed_files"]
        left = sum(plan.bytes - gone.get(plan.plan_id, 0) for plan in plans)
        if scan is not None and scan.state != "done":
            left += scan.bytes - gone.get(scan.scan_id, 0)
        health = healths.get(table)
        job, place = deletions.get(table), page_name(held[table].table_uuid if table in held else "")
        ended: dict[str, Any] = {name: steps.get(step) for name, step in _STEPS.items()}
        found.append(
            FleetTable(
                table=table,
                governed_by=entry,
                overdue=limit is not None and (planned_at is None or now - planned_at > limit),
                waits_for=tuple(waits.pop(table, ())),
                holds=holds.get(table, 0),
                paused=None in pauses or table in pauses,
                red_checks=(
                    *dict.fromkeys(check for plan in plans for check in of_plans.get(plan.plan_id, ())),
                    *of_tables.get(table, ()),
                ),
                plan_status=next((plan.status.value for plan in plans if plan.status in UNCOMMITTED), None)
                or next((plan.status.value for plan in plans if plan.status is not PlanStatus.OPEN), None),
                freed_bytes=sum(freed.get(table, {}).values()),
                freeable_bytes=left,
                orphan_share=scan.files / listed if scan is not None and listed else None,
                **_costs(config, table, held.get(table)),
                health_score=None if health is None else health.score,
                scanned_at=None if scan is None else scan.created_at,
                health_at=None if health is None else health.measured_at,
                scrubbed_at=scrubbed.get(table),
                receipt=_receipt(resources, job, "" if job is None else folders.get(job.table_uuid, "")),
                page=place if place.rpartition("/")[2] in pages else None,
                **ended,
            )
        )
    walked = [table.table for table in found if not table.paused]
    days: tuple[FleetDay, ...] = ()
    if history:
        overdue = sum(table.overdue for table in found)
        days = fleet_history(operations, config.catalogs.results, governed, freed, now, FREED_OVER, overdue)
    others = tuple(
        f"outside of the tables below, {table} waits for {each}" for table, those in waits.items() for each in those
    )
    try:
        answers, errors = resources.catalogs.answering(lambda each: unread_readers(config, each, resources.live_stores))
        others += tuple(said for unread in answers.values() for said in unread.sentences)
        others += tuple(error.what for error in errors.values())
    except LifecycleError as error:
        others += (f"which tables cannot be read is unknown: {error.what}",)
    windows, others = forecasts(resources, walked, now), (*others, *problems)
    links = Links.of(config.alerts, config.dagster)
    return Fleet(now, tuple(found), windows, days, others, config.prices.currency, links)


FOLDER = "fleet"
"""Under operations.root: index.html, and the pages of tables in a folder below."""


def page_name(table_uuid: str) -> str:
    """Return where a table's page is, from the folder of the fleet's."""
    return f"tables/{table_uuid}.html"


def _receipt(resources: Resources, job: JobRecord | None, metadata_folder: str) -> str:
    """Return the location of a deletion's receipt, for a table with its metadata in the usual folder; else nothing."""
    if job is None or job.finished_at is None or not job.files or not metadata_folder:
        return ""
    managed = resources.other(job.table) is None and resources.config.catalogs.of(job.table).managed
    place = f"{resources.root}/receipts/{job.table_uuid}" if managed else metadata_folder
    return f"{receipt_folder(place, job.job_id)}/receipt.md"


def table_page_of(
    resources: Resources, history: SnapshotHistory, scores: HealthHistory, curve: RetentionCurve, costs: TableCosts
) -> str:
    """See `Lifecycle.table_page`."""
    operations, table_uuid = resources.operations, history.table_uuid
    folder, jobs = history.metadata_location.rpartition("/")[0], operations.journal.of_table(table_uuid)
    freed = freed_by_job(operations.engine, [job.job_id for job in jobs])
    sized = [replace(job, deleted_bytes=freed.get(job.job_id, job.deleted_bytes)) for job in jobs]
    deletions = [replace(job, files_location=_receipt(resources, job, folder)) for job in sized]
    holds, plans = operations.holds.active(table_uuid), operations.plans.of_table(table_uuid)
    links = Links.of(resources.config.alerts, resources.config.dagster)
    return table_page(operations.clock.now(), history, scores, curve, costs, holds, plans, deletions, links)


def _costs(config: LifecycleConfig, table: str, held: HeldBytes | None) -> dict[str, Any]:
    if held is None:
        return {"stored_bytes": None, "cost_per_month": None, "costed_at": None}
    return {
        "stored_bytes": held.live + (held.cold or 0) + (held.deep_archive or 0),
        "cost_per_month": storage_classes(config, table).per_month(held, config.prices),
        "costed_at": held.measured_at,
    }


# --- metrics ----------------------------------------------------------------------------------------------------------
# The fleet as Prometheus metrics (text exposition format 0.0.4), from Postgres alone.

_COUNTERS: Mapping[str, tuple[tuple[str, str], str]] = {
    "files_compacted": (("compaction", "files_rewritten"), "Data files that compaction rewrote."),
    "bytes_compacted": (("compaction", "bytes_rewritten"), "Bytes of data files that compaction rewrote."),
    "manifest_compactions": (("manifest_compaction", "rewrites"), "Rewrites of manifests that were committed."),
    "manifests_rewritten": (("manifest_compaction", "manifests_rewritten"), "Manifests that were rewritten into few."),
    "history_compactions": (("history_compaction", "compactions"), "Compactions of a table's history."),
    "history_entries": (("history_compaction", "entries"), "Entries of the snapshot log that those read."),
    "snapshots_expired": (("commit", "snapshots_removed"), "Snapshots that commits removed."),
    "files_deleted": (("deletion", "files_deleted"), "Files of expired snapshots that were deleted."),
    "bytes_deleted": (("deletion", "bytes_deleted"), "Bytes of expired snapshots that were deleted."),
    "orphans_deleted": (("orphan_deletion", "files_deleted"), "Orphan files that were deleted."),
    "orphan_bytes_deleted": (("orphan_deletion", "bytes_deleted"), "Bytes of orphan files that were deleted."),
    "skipped_in_flight": (("orphan_scan", "skipped_in_flight"), "Unreferenced files that scans skipped as in flight."),
    "bytes_skipped_in_flight": (("orphan_scan", "skipped_in_flight_bytes"), "Bytes of those files."),
    "files_archived": (("handoff", "files_copied"), "Files that handoffs copied to the cold tier."),
    "bytes_archived": (("handoff", "bytes_copied"), "Bytes that handoffs copied to the cold tier."),
}
"""Each counter's step and figure, and its help. Deleted step records count on in totals, so that no counter falls."""


def metrics(resources: Resources, tables: Iterable[str]) -> str:
    """See `Lifecycle.metrics`."""
    fleet = fleet_of(resources, tuple(tables), history=False)
    governed = {table.table for table in fleet.tables}
    sums, waited = counted(resources.operations.engine), seconds_to_deletion(resources.operations.engine)
    lines: list[str] = []

    def metric(name: str, kind: str, text: str, values: Mapping[str, float]) -> None:
        lines.extend((f"# HELP artemis_{name} {text}", f"# TYPE artemis_{name} {kind}"))
        lines.extend(
            f'artemis_{name}{{table="{_label(table)}"}} {_number(value)}' for table, value in sorted(values.items())
        )

    for name, ((step, key), text) in _COUNTERS.items():
        of_step = {table: value for (table, *rest), value in sums.items() if rest == [step, key]}
        metric(f"{name}_total", "counter", text, {table: of_step.get(table, 0) for table in governed})

    def gauge(name: str, text: str, value: Callable[[FleetTable], float | None]) -> None:
        metric(name, "gauge", text, {row.table: it for row in fleet.tables if (it := value(row)) is not None})

    def plan_age(row: FleetTable) -> float | None:
        return None if row.planned_at is None else (fleet.at - row.planned_at).total_seconds()

    gauge("overdue", "1 if the table's plan is overdue.", lambda row: row.overdue)
    gauge("waiting", "Plans and scans that wait for approval.", lambda row: len(row.waits_for))
    gauge("paused", "1 if the table is paused.", lambda row: row.paused)
    gauge("red_checks", "Failed checks of plans under way, and of the table.", lambda row: len(row.red_checks))
    gauge("freeable_bytes", "Bytes that plans under way and the newest scan hold.", lambda row: row.freeable_bytes)
    gauge("orphan_share", "Orphans among the files of the newest scan, from 0 to 1.", lambda row: row.orphan_share)
    gauge("cost_per_month", "A month's storage, in the currency of `prices`.", lambda row: row.cost_per_month)
    gauge("health_score", "The table's newest health score, from 0 to 100.", lambda row: row.health_score)
    gauge("plan_age_seconds", "Seconds since the table was planned.", plan_age)
    known: dict[str, Seconds] = {name: waited[name] for name in governed & waited.keys()}
    text = "Seconds between the commit and the deletion of the newest finished plan."
    metric("expiry_to_deletion_seconds", "gauge", text, known)
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    # Six digits, as `g` has them, would hide what a large counter gained.
    return str(int(value)) if value == int(value) else repr(float(value))


def _label(text: str) -> str:
    return terminal(text).replace("\\", "\\\\").replace('"', '\\"')
