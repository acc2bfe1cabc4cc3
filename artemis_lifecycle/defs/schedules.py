"""Maintenance by the calendar: archives, purges and records. Sensors start the walk and the compactions. All schedules
are stopped until an operator starts them."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import dagster as dg

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.policies import QuietWindow, window_of
from artemis_lifecycle.defs import jobs
from artemis_lifecycle.defs.progress import governed_tables, under_way
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.defs.tags import resource_tags
from artemis_lifecycle.escaping import table_of, terminal


def maintenance_requests(
    job: str, lifecycle: Lifecycle, instance: dg.DagsterInstance, now: datetime, *, by_day: bool = False
) -> jobs.Asked:
    """Return one request of `job` per governed table that has none under way. `by_day` omits tables in their quiet
    window, and requests at most one run of a table per day."""
    busy = under_way(instance, job)
    asked = []
    for table in governed_tables(lifecycle, instance):
        window = window_of(now, lifecycle.config.policy(table).quiet_window)
        if table in busy or (by_day and window.excludes(now)):
            continue
        since = window.day if by_day else now.isoformat(timespec="minutes")
        asked.append(jobs.run_of(lifecycle.config, job, table, f"{since}:{terminal(table)}:{job}"))
    return asked or dg.SkipReason("no governed table is free: each has a run of this job or is in its quiet window")


_Requests = Callable[[Lifecycle, dg.DagsterInstance, datetime], jobs.Asked]


def _schedule(
    name: str, cron: str, timezone: str, job: Any, description: str, requests: _Requests
) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=name,
        cron_schedule=cron,
        job=job,
        execution_timezone=timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=description,
    )
    def evaluate(context: dg.ScheduleEvaluationContext, lifecycle: LifecycleResource) -> jobs.Asked:
        opened = lifecycle.get()
        # A late tick, after the daemon was down, must not start a night job during the day.
        now = max(context.scheduled_execution_time, opened.operations.clock.now())
        return requests(opened, context.instance, now)

    return evaluate


def maintenance(job: str, *, by_day: bool = False) -> _Requests:
    """Return a function that requests a run of a job for each governed table."""
    return lambda lifecycle, instance, now: maintenance_requests(job, lifecycle, instance, now, by_day=by_day)


def scrub_requests(lifecycle: Lifecycle, instance: dg.DagsterInstance, now: datetime) -> jobs.Asked:
    """Request runs only for tables with a cold tier whose policy includes scrubs."""
    found = maintenance_requests("cold_scrub", lifecycle, instance, now, by_day=True)
    if isinstance(found, dg.SkipReason):
        return found

    def wanted(table: str) -> bool:
        policy = lifecycle.config.policy(table).cold_tier
        return policy.enabled and policy.scrubs is not None

    due = [request for request in found if wanted(str(request.partition_key))]
    return due or dg.SkipReason("no table with a cold tier has scrubs in its policy")


def purge_requests(lifecycle: Lifecycle, instance: dg.DagsterInstance, now: datetime) -> jobs.Asked:
    """Request runs only for tables that have something to purge, because a run starts a Spark session."""
    known = [
        each
        for catalog in lifecycle.config.catalogs.iceberg
        for each in lifecycle.operations.known_tables.of_catalog(catalog.name)
    ]
    # By their current names; those of dropped tables are purged by uuid (artemis purge-quarantine).
    known.sort(key=lambda each: each.missing_since is None)
    names = {each.table_uuid: None if each.missing_since else each.table for each in known}
    due = {names.get(record.table_uuid, record.table) for record in lifecycle.operations.quarantines.due()}
    if not due:
        return dg.SkipReason("nothing in quarantine is past its retention")
    found = maintenance_requests("quarantine_purge", lifecycle, instance, now)
    if isinstance(found, dg.SkipReason):
        return found
    return [request for request in found if table_of(request.partition_key or "") in due] or dg.SkipReason(
        "those tables are busy"
    )


def one_run(job: str, tables: Iterable[str] = ()) -> _Requests:
    """Return a function that requests a single run of a job without partitions, which works on these tables."""

    def requests(lifecycle: Lifecycle, instance: dg.DagsterInstance, now: datetime) -> jobs.Asked:
        if under_way(instance, job):
            return dg.SkipReason("a run of this job is under way")
        tags, run_key = resource_tags(lifecycle.config.run(*tables)), f"{now:%Y-%m-%dT%H:%M}:{job}"
        return [dg.RunRequest(run_key=run_key, job_name=job, run_config=jobs.for_real(job), tags=tags)]

    return requests


def dropped_requests(lifecycle: Lifecycle, instance: dg.DagsterInstance, now: datetime) -> jobs.Asked:
    """Request a run only if a dropped table's retention is over, because a run starts a Spark session."""
    due = [each.table for each in lifecycle.dropped_tables() if each.state == "due"]
    if not due:
        return dg.SkipReason("no dropped table is past its retention")
    return one_run("dropped_tables", due)(lifecycle, instance, now)


def publication_requests(lifecycle: Lifecycle, instance: dg.DagsterInstance, now: datetime) -> jobs.Asked:
    """Request a run only if rows are pending, because a run starts a Spark session."""
    if not lifecycle.operations.publications.pending(lifecycle.config.catalogs.results):
        return dg.SkipReason("no row of a result table is pending")
    return one_run("publication")(lifecycle, instance, now)


def schedules_for(quiet: QuietWindow) -> tuple[dg.ScheduleDefinition, ...]:
    """Return the schedules, at hours that follow the window `quiet` and its time zone.

    Each has a minute of the hour to itself, so no two start at once.
    """
    start, end = (int(text[:2]) * 60 + int(text[3:]) for text in (quiet.start, quiet.end))
    length = (end - start) % (24 * 60) or 24 * 60

    def at(share: float, minute: int, days: str = "* * *") -> str:
        """Return the cron schedule of the first time with that `minute` from a share of the window on: 0 is its start,
        1 its end. If that is after the window, an hour earlier."""
        wanted = start + share * length
        time = int(wanted) // 60 * 60 + minute
        time += 60 * (time < wanted)
        time -= 60 * (time >= start + length)
        return f"{minute} {time // 60 % 24} {days}"

    middle = int(start + length / 2) // 60 % 12
    return tuple(
        _schedule(name, cron, quiet.timezone, job, description, requests)
        for name, cron, job, description, requests in (
            ("hourly_fleet", "5 * * * *", jobs.fleet_page, "Each hour: the page of all tables.", one_run("fleet_page")),
            (
                "monthly_schema_record",
                at(0.125, 10, "1 * *"),
                jobs.schema_record,
                "On the 1st of each month.",
                maintenance("schema_record"),
            ),
            (
                "monthly_deep_archive",
                at(0.375, 15, "1 * *"),
                jobs.deep_archive,
                "On the 1st of each month, after the handoff.",
                maintenance("deep_archive"),
            ),
            (
                "monthly_records",
                at(0.625, 20, "2 * *"),
                jobs.records,
                "On the 2nd of each month, for records past their retention.",
                one_run("records"),
            ),
            (
                "daily_publication",
                at(0.9375, 55),
                jobs.publication,
                "At the window's end, if rows of the result tables are pending.",
                publication_requests,
            ),
            (
                "monthly_result_tables",
                at(0.75, 25, "2 * *"),
                jobs.result_tables,
                "On the 2nd of each month: compact the result tables.",
                one_run("result_tables"),
            ),
            (
                "monthly_old_runs",
                at(0.875, 30, "2 * *"),
                jobs.old_runs,
                "On the 2nd of each month, for runs past records.runs.",
                one_run("old_runs"),
            ),
            (
                "daily_quarantine_purge",
                at(0.8125, 35),
                jobs.quarantine_purge,
                "After the time of the orphan scan, for tables with quarantined files past their retention.",
                purge_requests,
            ),
            (
                "daily_dropped_tables",
                at(0.875, 40),
                jobs.dropped_tables,
                "After the time of the orphan scan, if a dropped table is past its retention.",
                dropped_requests,
            ),
            (
                "daily_health_checks",
                f"50 {middle},{middle + 12} * * *",
                jobs.health_checks,
                "Once a day for each table, outside its quiet window.",
                maintenance("health_checks", by_day=True),
            ),
            (
                # A table is in its window at one of the two hours at most, unless its window is half a day long.
                "daily_cold_scrub",
                f"45 {middle},{middle + 12} * * *",
                jobs.cold_scrub,
                "Once a day for each table with scrubs in its policy, outside its quiet window.",
                scrub_requests,
            ),
        )
    )
