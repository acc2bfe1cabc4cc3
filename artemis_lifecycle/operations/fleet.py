"""Totals over all tables, for the fleet page. Reads only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from sqlalchemy import BigInteger, Date, Engine, Numeric, cast, func, select, text, true, union_all
from sqlalchemy.dialects.postgresql import JSONB, distinct_on

from artemis_lifecycle.operations.journal import batches, jobs
from artemis_lifecycle.operations.plans import plans
from artemis_lifecycle.operations.scans import scans
from artemis_lifecycle.operations.steps import step_totals, steps
from artemis_lifecycle.operations.verdicts import verdicts

Seconds = float


@dataclass(frozen=True)
class DayScan:
    """The last orphan scan of a table on one day: the orphans among the listed files."""

    table: str
    day: date
    orphans: int
    listed: int


_ENDED_WELL = (steps.c.state.in_(("done", "skipped")), steps.c.dry_run.is_(False))


_LAST_DONE = text("""
    WITH RECURSIVE ended AS NOT MATERIALIZED (
        SELECT table_name, step, finished_at FROM lifecycle.steps
        WHERE state IN ('done', 'skipped') AND dry_run IS FALSE
    ), newest AS (
        (SELECT * FROM ended ORDER BY table_name DESC, step DESC, finished_at DESC LIMIT 1)
        UNION ALL
        SELECT before.* FROM newest CROSS JOIN LATERAL (
            SELECT * FROM ended WHERE (ended.table_name, ended.step) < (newest.table_name, newest.step)
            ORDER BY table_name DESC, step DESC, finished_at DESC LIMIT 1
        ) before
    )
    SELECT table_name, step, finished_at FROM newest
""")
"""One row of the index for each table and step, however many records they have."""


def last_done(engine: Engine) -> dict[str, dict[str, datetime]]:
    """Return when each step of each table (by name) last ended well or had nothing to do, without dry runs."""
    found: dict[str, dict[str, datetime]] = defaultdict(dict)
    with engine.connect() as connection:
        for row in connection.execute(_LAST_DONE):
            found[row.table_name][row.step] = row.finished_at
    return found


def last_done_of(engine: Engine, table: str) -> dict[str, datetime]:
    """Return `last_done` of one table."""
    newest = (
        select(steps.c.step, func.max(steps.c.finished_at).label("at"))
        .where(steps.c.table_name == table, *_ENDED_WELL)
        .group_by(steps.c.step)
    )
    with engine.connect() as connection:
        return {row.step: row.at for row in connection.execute(newest)}


def newest_states(engine: Engine, step: str) -> dict[str, str]:
    """Return for each table whether that step last was `done`, or was `skipped` because it had nothing to do."""
    query = (
        select(steps.c.table_name, steps.c.state)
        .where(steps.c.step == step, *_ENDED_WELL)
        .order_by(steps.c.table_name, steps.c.finished_at.desc())
        .ext(distinct_on(steps.c.table_name))
    )
    with engine.connect() as connection:
        return {row.table_name: row.state for row in connection.execute(query)}


def freed_by_day(engine: Engine, since: datetime) -> dict[str, dict[date, int]]:
    """Return the bytes that deletions started since then have freed, by table and day in UTC of their start."""
    recent = select(jobs).where(jobs.c.started_at >= since).subquery()
    by_job = (
        select(batches.c.job_id, func.sum(batches.c.deleted_bytes).label("bytes"))
        .where(batches.c.job_id == recent.c.job_id)
        .group_by(batches.c.job_id)
        .lateral()
    )
    freed = func.sum(func.coalesce(by_job.c.bytes, recent.c.deleted_bytes))
    day = cast(func.timezone("UTC", recent.c.started_at), Date)
    joined = recent.join(by_job, true(), isouter=True)
    query = select(recent.c.table_name, day, freed).select_from(joined).group_by(recent.c.table_name, day)
    found: dict[str, dict[date, int]] = defaultdict(dict)
    with engine.connect() as connection:
        for table, on, size in connection.execute(query):
            found[table][on] = int(size or 0)
    return found


def freed_by_job(engine: Engine, job_ids: Collection[str]) -> dict[str, int]:
    """Return the bytes that each of these unfinished deletions has freed so far."""
    query = select(batches.c.job_id, func.sum(batches.c.deleted_bytes)).group_by(batches.c.job_id)
    with engine.connect() as connection:
        found = connection.execute(query.where(batches.c.job_id.in_(job_ids)))
        return {job_id: int(size) for job_id, size in found}


def scan_shares(engine: Engine, since: datetime) -> list[DayScan]:
    """Return the newest orphan scan of each table and day since then, oldest first."""
    day = cast(func.timezone("UTC", scans.c.created_at), Date)
    listed = cast(cast(scans.c.summary, JSONB)["listed_files"].astext, BigInteger)
    query = (
        select(scans.c.table_name, day, scans.c.files, listed)
        .where(scans.c.kind == "orphans", scans.c.created_at >= since)
        .order_by(day, scans.c.table_name, scans.c.created_at.desc())
        .ext(distinct_on(day, scans.c.table_name))
    )
    with engine.connect() as connection:
        return [DayScan(*row) for row in connection.execute(query)]


def planned_since(engine: Engine, since: datetime) -> dict[str, list[datetime]]:
    """Return when plans ended well or had nothing to do since then, by table, oldest first; without dry runs."""
    query = (
        select(steps.c.table_name, steps.c.finished_at)
        .where(steps.c.step == "plan", steps.c.finished_at >= since, *_ENDED_WELL)
        # For the index. A window is named by the day on which it opens, in its own time zone.
        .where(steps.c.window_day >= since.date() - timedelta(days=2))
        .order_by(steps.c.finished_at)
    )
    found: dict[str, list[datetime]] = defaultdict(list)
    with engine.connect() as connection:
        for table, at in connection.execute(query):
            found[table].append(at)
    return found


def red_checks(engine: Engine, plan_ids: list[str]) -> dict[str, list[str]]:
    """Return, for each of these plans, the checks whose newest verdict failed."""
    newest = (
        select(func.max(verdicts.c.verdict_id))
        .where(verdicts.c.plan_id.in_(plan_ids))
        .group_by(verdicts.c.plan_id, verdicts.c.check_name)
    )
    red = select(verdicts.c.plan_id, verdicts.c.check_name)
    query = red.where(verdicts.c.verdict_id.in_(newest), verdicts.c.passed.is_(False)).order_by(verdicts.c.check_name)
    found: dict[str, list[str]] = defaultdict(list)
    with engine.connect() as connection:
        for row in connection.execute(query):
            found[row.plan_id].append(row.check_name)
    return found


def counted(engine: Engine) -> dict[tuple[str, str, str], int]:
    """Return the totals that steps counted, without dry runs, by table, step and figure. They include deleted records,
    so they never fall."""
    each = func.jsonb_each_text(steps.c.counts).table_valued("key", "value").render_derived()
    kept = (
        select(steps.c.table_name, steps.c.step, each.c.key.label("figure"), cast(each.c.value, Numeric).label("total"))
        .select_from(steps.join(each, true()))
        .where(steps.c.dry_run.is_(False))
    )
    gone = select(step_totals.c.table_name, step_totals.c.step, step_totals.c.figure, step_totals.c.total)
    every = union_all(kept, gone).subquery()
    key = (every.c.table_name, every.c.step, every.c.figure)
    query = select(*key, func.sum(every.c.total).label("sum")).group_by(*key)
    with engine.connect() as connection:
        return {(row.table_name, row.step, row.figure): int(row.sum) for row in connection.execute(query)}


def seconds_to_deletion(engine: Engine) -> dict[str, Seconds]:
    """Return for each table how long its newest finished plan took from its commit to the end of its deletion."""
    query = (
        select(plans.c.table_name, func.extract("epoch", plans.c.done_at - plans.c.committed_at).label("seconds"))
        .where(plans.c.done_at.is_not(None), plans.c.committed_at.is_not(None))
        .order_by(plans.c.table_name, plans.c.done_at.desc())
        .ext(distinct_on(plans.c.table_name))
    )
    with engine.connect() as connection:
        return {row.table_name: float(row.seconds) for row in connection.execute(query)}
