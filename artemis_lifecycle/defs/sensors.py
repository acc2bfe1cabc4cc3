"""Event-driven work: new tables, new metadata, dead runs, due steps and thaws."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import window_of
from artemis_lifecycle.defs import jobs
from artemis_lifecycle.defs.observation import LIVE_TABLE, observed
from artemis_lifecycle.defs.processes import end_runs_without_process
from artemis_lifecycle.defs.progress import cancel_late_runs, governed_tables, table_windows, under_way
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.defs.tags import (
    PRIORITY_TAG,
    STEP_TAG,
    TABLE_TAG,
    UNMET_TAG,
    WINDOW_TAG,
    partitioned_tables,
    tables,
)
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.escaping import partition_key, terminal
from artemis_lifecycle.fleet.fleet import TableWindow
from artemis_lifecycle.operations.fleet import HealthRecord, last_done
from artemis_lifecycle.scheduling.maintenance_window import (
    NIGHTLY_WALK,
    CompactionVerdict,
    Step,
    Verdict,
    due_compaction,
    due_step,
    opening,
    priority,
)
from artemis_lifecycle.storage.instants import elapsed

Result = dg.SensorResult | dg.SkipReason

_RECORDED_AS = {Step.ORPHANS: "orphan_deletion"}
"""The name of a step in the records, where it is not the job's."""

_NO_TABLE = "no table of the catalog has a partition and matches an entry of lifecycle.yaml"

_NEVER = datetime.min.replace(tzinfo=UTC)

IDLE_FOR = 20.0
"""Seconds for which one tick reads the metadata files of tables that may be idle. Dagster ends a tick after 60
seconds."""

AT_ONCE = 50
"""Maximum number of runs that one tick requests. The rest follow at the next tick."""

CHECKED_AT_MOST = 3
"""How often a lineage check is requested for the same snapshots, if its runs end without a verdict."""

WATCHED_FOR = 20.0
"""Seconds for which one tick reads changed metadata files. The rest follow at the next tick."""

OBSERVED_EVERY = timedelta(minutes=10)
"""How often the sensor records which tables exist. That reads the metadata files of changed tables."""

OBSERVED_AT_ONCE = 200
"""Maximum metadata files that one tick reads: Dagster ends a tick after 60 seconds."""


@dg.sensor(
    name="discovery",
    description="Adds a partition for each new table of the live catalog, except in the project's own namespace, and "
    "of the other catalogs; retires the partition of each table that its catalog no longer has.",
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def discovery(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> Result:
    """Changes partitions first, in a separate tick: reading the changed tables takes as long as Dagster allows for a
    tick. The history of a retired partition stays in the event log; a table with that name gets it back."""
    opened, seen = lifecycle.get(), datetime.fromisoformat(context.cursor) if context.cursor else None
    known, (present, errors) = partitioned_tables(context.instance), opened.answering_tables()
    for catalog, error in errors.items():
        context.log.warning(terminal(f"catalog {catalog} does not answer, and its partitions stay: {error}"))
    # A catalog without any table is more likely the wrong one, or a missing mount, than one that lost them all.
    new, gone = [table for table in present if table not in known], sorted(known - set(present)) if present else []
    gone = [table for table in gone if table.partition(":")[0] not in errors]
    if new or gone:
        busy = under_way(context.instance) if gone else set()
        retired = [table for table in gone if table not in busy]
        requests = [tables.build_add_request(list(map(partition_key, new)))] if new else []
        said = [f"new tables: {', '.join(new)}"] if new else []
        if retired:
            said.append(f"dropped tables: {', '.join(retired)}")
        if new or retired:
            return dg.SensorResult(
                dynamic_partitions_requests=[
                    *requests,
                    *([tables.build_delete_request(list(map(partition_key, retired)))] if retired else []),
                ],
                skip_reason=terminal("; ".join(said)),
                cursor=context.cursor,
            )
    now = opened.operations.clock.now()
    if seen is None or now - seen >= OBSERVED_EVERY:
        for table, problem in opened.observe_catalog(OBSERVED_AT_ONCE).items():
            context.log.warning(terminal(f"{table} cannot be read: {problem}"))
        context.update_cursor(now.isoformat())
    return dg.SkipReason(f"no new table; {len(known)} are known")


@dg.sensor(
    name="new_metadata",
    description="Requests `observe` for each governed table whose metadata file has changed since the last tick, and "
    "reports the file as the data version of `live_table`. Leaves the table's quiet window to the walk.",
    job=jobs.observe,
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.STOPPED,
)
def new_metadata(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> Result:
    """The cursor holds only one short digest per existing table."""
    opened = lifecycle.get()
    seen: dict[str, str] = json.loads(context.cursor) if context.cursor else {}
    # A catalog that does not answer holds up no other.
    pointers, _ = opened.resources.catalogs.pointers()
    present = {
        table: hashlib.sha256(pointers[table].metadata_location.encode()).hexdigest()[:16]
        for table in governed_tables(opened, context.instance)
        if table in pointers
    }
    # A table under observation is checked again afterward: several commits in between cause one run, not many. In its
    # window, the walk needs the table's only place.
    busy, now = under_way(context.instance, jobs.observe.name), opened.operations.clock.now()
    changed = [
        table
        for table, digest in present.items()
        if seen.get(table) != digest
        and table not in busy
        and not window_of(now, opened.config.policy(table).quiet_window).excludes(now)
    ]
    health = opened.operations.health.by_table()
    # The longest without an observation first, so that none waits for those before it in the alphabet.
    changed.sort(key=lambda table: health[table].measured_at.timestamp() if table in health else 0.0)
    changed = changed[:AT_ONCE]
    kept = {table: seen[table] for table in present if table in seen}
    cursor = json.dumps(kept | {table: present[table] for table in changed}, sort_keys=True)
    if not changed:
        context.update_cursor(cursor)
        return dg.SkipReason("no table has new metadata")
    return dg.SensorResult(
        run_requests=[
            jobs.run_of(opened.config, jobs.observe.name, table, terminal(f"{table}:{present[table]}"))
            for table in changed
        ],
        asset_events=[observed(lifecycle.key(LIVE_TABLE), table, pointers[table]) for table in changed],
        cursor=cursor,
    )


@dg.sensor(
    name="compaction",
    description="Requests a compaction for each governed table whose recorded health asks for it: of data files "
    "outside the table's quiet window, of manifests inside it.",
    jobs=[jobs.data_compaction, jobs.manifest_compaction],
    minimum_interval_seconds=600,
    default_status=dg.DefaultSensorStatus.STOPPED,
)
def compaction(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> Result:
    """`table_health` and each compaction record the health. A table that does not need a compaction costs no run."""
    opened = lifecycle.get()
    asked = compaction_requests(opened, context.instance, opened.operations.clock.now())
    return asked if isinstance(asked, dg.SkipReason) else dg.SensorResult(run_requests=asked)


def compaction_requests(lifecycle: Lifecycle, instance: dg.DagsterInstance, now: datetime) -> jobs.Asked:
    """Return at most AT_ONCE requests, one per table: never compacted ones first, then those that wait longest."""
    health, done = lifecycle.operations.health.by_table(), last_done(lifecycle.operations.engine)
    busy = set().union(*(under_way(instance, job.name) for job in (jobs.data_compaction, jobs.manifest_compaction)))
    reasons: dict[str, str] = {}
    asked: list[tuple[HealthRecord, CompactionVerdict]] = []
    for table in governed_tables(lifecycle, instance):
        policy, record = lifecycle.config.policy(table), health.get(table)
        window = window_of(now, policy.quiet_window)
        verdict = due_compaction(
            now, window, record, policy.compaction, done.get(table, {}), policy.quiet_window.timezone
        )
        if verdict.job is None or record is None or table in busy:
            reasons[table] = "a compaction is under way" if table in busy else verdict.why
        else:
            asked.append((record, verdict))
    asked.sort(key=lambda each: _longest_wait(*each))
    found = [_compaction(lifecycle.config, *each, now) for each in asked[:AT_ONCE]]
    return found or dg.SkipReason(_listed(reasons) or _NO_TABLE)


def _longest_wait(record: HealthRecord, verdict: CompactionVerdict) -> tuple[bool, timedelta, int]:
    waited = verdict.waited
    return waited is not None, -(waited or timedelta(0)), -record.rewritable_files - record.delete_files


def _compaction(
    config: LifecycleConfig, record: HealthRecord, verdict: CompactionVerdict, now: datetime
) -> dg.RunRequest:
    """Return the run that `verdict` requests: one per day for the same health."""
    assert verdict.job is not None
    run_key = f"{now:%Y-%m-%d}:{terminal(record.table)}:{verdict.job}:{record.measured_at.isoformat()}"
    return jobs.run_of(config, verdict.job, record.table, run_key)


@dg.sensor(
    name="stuck_runs",
    description="Fails a STARTED run whose process ended or whose lease lapsed, which the default launcher misses.",
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def stuck_runs(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SkipReason:
    """Fails a run at once if its process is known to have ended. Otherwise it waits one tick, so that a worker that
    lost its lease has time to end."""
    gone = end_runs_without_process(context.instance)
    lapsed = lifecycle.get().operations.leases.lapsed_runs()
    suspected: Sequence[str] = json.loads(context.cursor) if context.cursor else ()
    ended, waiting = end_stuck_runs(context.instance, lapsed, suspected)
    context.update_cursor(json.dumps(waiting))
    if gone or ended:
        return dg.SkipReason(f"ended {', '.join([*gone, *ended])}")
    return dg.SkipReason(f"{len(waiting)} runs may be stuck" if waiting else "no run is stuck")


def end_stuck_runs(
    instance: dg.DagsterInstance, lapsed: Sequence[str], suspected: Sequence[str]
) -> tuple[list[str], list[str]]:
    """End runs whose lease lapsed and that were suspected before. Return (ended, newly suspected)."""
    if not lapsed:
        return [], []
    alive = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    ended, waiting = [], []
    for run in instance.get_runs(dg.RunsFilter(run_ids=list(lapsed), statuses=alive)):
        if run.run_id not in suspected:
            waiting.append(run.run_id)
        elif run.status is dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, message="The run's process died during cancellation.")
            ended.append(run.run_id)
        else:
            instance.report_run_failed(
                run,
                "The run's lease on its table lapsed without being released: its process is dead. The journal has what "
                "the run completed; the next run continues from there.",
            )
            ended.append(run.run_id)
    return ended, waiting


@dg.sensor(
    name="maintenance_window",
    description="Requests the next step of each governed table, in the table's quiet window and time zone.",
    jobs=[*jobs.BY_STEP.values(), jobs.nightly_walk],
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.STOPPED,
)
def maintenance_window(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> Result:
    """The only driver of the walk: no other sensor or schedule requests its steps, so none is requested twice."""
    opened = lifecycle.get()
    now = opened.operations.clock.now()
    for run_id in cancel_late_runs(opened, context.instance, now):
        context.log.warning(f"run {run_id} waited in the queue until its window was over, and was canceled")
    asked = step_requests(opened, context.instance, now)
    return asked if isinstance(asked, dg.SkipReason) else dg.SensorResult(run_requests=asked)


def step_requests(lifecycle: Lifecycle, instance: dg.DagsterInstance, now: datetime) -> jobs.Asked:
    """Return a request for each table that needs a step at `now`, at most AT_ONCE; else the reasons why no table
    does."""
    reasons: dict[str, str] = {}
    due: list[tuple[TableWindow, Verdict]] = []
    for table in table_windows(lifecycle, instance, now):
        verdict = due_step(now, table.window, table.progress, table.steps)
        if verdict.step is None:
            reasons[table.table] = verdict.why
        else:
            due.append((table, verdict))
    # By priority before any limit applies, so that no table waits for those before it in the alphabet; among equals,
    # who waits longest, then the step that opened first.
    due.sort(
        key=lambda each: (
            -_place(each[0], each[1], now),
            _ended(each[0], each[1]) or _NEVER,
            opening(each[0].window, each[1].step or Step.PLAN),
        )
    )
    requests: list[dg.RunRequest] = []
    reading_ends = elapsed() + IDLE_FOR
    for table, verdict in due:
        if len(requests) == AT_ONCE:
            break
        if verdict.step is Step.PLAN and elapsed() > reading_ends:
            reasons[table.table] = "read at the next tick"
        elif verdict.step is Step.PLAN and _is_idle(lifecycle, table.table):
            # Steps for its files are requested at the next tick.
            reasons[table.table] = "nothing of it has expired"
        else:
            requests.append(_request(lifecycle.config, table, verdict, now))
    return requests or dg.SkipReason(_listed(reasons) or _NO_TABLE)


def _is_idle(lifecycle: Lifecycle, table: str) -> bool:
    """Return True if the table needs no run for its plan. For an unreadable table, a run reports what is wrong."""
    try:
        return lifecycle.skip_if_idle(table)
    except LifecycleError:
        return False


def _ended(table: TableWindow, verdict: Verdict) -> datetime | None:
    """Return when the step that `verdict` names last ended for the table."""
    step = verdict.step or Step.PLAN
    return table.last_done.get(_RECORDED_AS.get(step, step.value))


def _place(table: TableWindow, verdict: Verdict, now: datetime) -> int:
    """Return the priority of that step."""
    ended = _ended(table, verdict)
    return priority(None if ended is None else now - ended, table.freeable_bytes)


def _request(config: LifecycleConfig, table: TableWindow, verdict: Verdict, now: datetime) -> dg.RunRequest:
    """Return the run that `verdict` requests. It is not a dry run: an operator who starts the sensor wants the
    changes."""
    step, day = verdict.step, table.window.day.isoformat()
    assert step is not None
    job = NIGHTLY_WALK if table.whole_walk and step is Step.PLAN else step.value
    again = f":{verdict.attempt}" if verdict.attempt > 1 else ""
    tags = {WINDOW_TAG: day, STEP_TAG: step.value, PRIORITY_TAG: str(_place(table, verdict, now))}
    return jobs.run_of(config, job, table.table, f"{day}:{terminal(table.table)}:{step}{again}", tags)


def _listed(reasons: Mapping[str, str]) -> str:
    shown = "; ".join(f"{table}: {why}" for table, why in list(reasons.items())[:20])
    return terminal(shown) + (f"; and {len(reasons) - 20} more" if len(reasons) > 20 else "")


@dg.sensor(
    name="thaws_under_way",
    description="Follows thaws from the deep archive: requests a check of a table's thaws when their first files are "
    "readable, when their days are over, or when their approval time is over.",
    job_name=jobs.thaws.name,
    minimum_interval_seconds=300,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def thaws_under_way(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> Result:
    """Sends a few requests to the store for each thaw. The run does the complete check."""
    opened = lifecycle.get()
    due = opened.thaws_to_follow()
    busy = under_way(context.instance, jobs.thaws.name)
    known = partitioned_tables(context.instance)
    wanted = dict.fromkeys(thaw.table for thaw in reversed(due) if thaw.table in known and thaw.table not in busy)
    if not wanted:
        waiting = opened.thaws()
        return dg.SkipReason(
            f"{len(waiting)} thaws wait for the store or for approval" if waiting else "no thaw is open"
        )
    now = opened.operations.clock.now()
    return dg.SensorResult(
        run_requests=[
            jobs.run_of(opened.config, jobs.thaws.name, table, f"{now:%Y-%m-%dT%H:%M}:{terminal(table)}")
            for table in list(wanted)[:AT_ONCE]
        ]
    )


@dg.sensor(
    name="lineage_watch",
    description="Checks new snapshots of governed tables against their lineage requirements, and requests "
    "`lineage_check` for each table with one that does not meet them.",
    job_name="lineage_check",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def lineage_watch(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult:
    """The check is red within a minute or two of the commit, or as soon as a new table has its partition. The cursor
    has, for each table with open snapshots, up to which of them a check was requested, and how often: a run that ends
    without a verdict is requested again, at most CHECKED_AT_MOST times in all."""
    opened, known = lifecycle.get(), partitioned_tables(context.instance)
    found = opened.watch_lineage(WATCHED_FOR)
    for table, error in found.unreadable.items():
        context.log.warning(terminal(f"{table} cannot be read: {error}"))
    for table in found.unmet:
        context.log.warning(terminal(f"{table} has new snapshots that do not meet its lineage requirements"))
    requested: dict[str, tuple[str, int]] = json.loads(context.cursor) if context.cursor else {}
    newest = {table: at.isoformat() for table, at in found.open.items()}
    due: dict[str, int] = {}
    for table in (each for each in newest if each in known):
        at, attempt = requested.get(table, ("", 0))
        if at != newest[table]:
            due[table] = 1
        elif attempt < CHECKED_AT_MOST and _ended_without_verdict(context.instance, table, _unmet(at, attempt)):
            context.log.warning(terminal(f"the lineage check of {table} ended without a verdict"))
            due[table] = attempt + 1
        if len(due) == AT_ONCE:
            break
    kept = {table: pair for table, pair in requested.items() if table in newest}
    cursor = json.dumps(kept | {table: (newest[table], attempt) for table, attempt in due.items()}, sort_keys=True)
    if not due:
        said = (
            f"read {len(found.read)} changed tables; a check is requested, or waits for the partition, of {len(newest)}"
        )
        return dg.SensorResult(skip_reason=said, cursor=cursor)
    return dg.SensorResult(
        run_requests=[
            jobs.run_of(
                opened.config,
                jobs.lineage_check.name,
                table,
                f"{newest[table]}:{terminal(table)}:lineage_check" + (f":{attempt}" if attempt > 1 else ""),
                {UNMET_TAG: _unmet(newest[table], attempt)},
            )
            for table, attempt in due.items()
        ],
        cursor=cursor,
    )


def _unmet(at: str, attempt: int) -> str:
    return f"{at}:{attempt}"


def _ended_without_verdict(instance: dg.DagsterInstance, table: str, unmet: str) -> bool:
    """Return True if that requested check crashed, or was canceled. A red check fails its run, too. One that has not
    begun is not requested again."""
    wanted = dg.RunsFilter(job_name="lineage_check", tags={TABLE_TAG: partition_key(table), UNMET_TAG: unmet})
    run = next(iter(instance.get_runs(wanted, limit=1)), None)
    if run is None or run.status not in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED):
        return False
    return not instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)


ALL = (discovery, lineage_watch, new_metadata, compaction, stuck_runs, maintenance_window, thaws_under_way)
