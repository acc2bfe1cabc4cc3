"""Totals over all tables, for the fleet page. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, distinct_on

from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.journal import JobRecord, batches, jobs
from artemis_lifecycle.operations.known_tables import known_tables
from artemis_lifecycle.operations.plans import HOLDING, plans, verdicts
from artemis_lifecycle.operations.scans import ENDED, scans
from artemis_lifecycle.operations.steps import step_totals, steps

# --- run times --------------------------------------------------------------------------------------------------------
# How long the runs of maintenance windows took, by table and step: what a forecast of a window adds up.

Seconds = float


@dataclass(frozen=True)
class DayScan:
    """The last orphan scan of a table on one day: the orphans among the listed files."""

    table: str
    day: date
    orphans: int
    listed: int


_ENDED_WELL = (steps.c.state.in_(("done", "skipped")), steps.c.dry_run.is_(False))


_LAST_DONE = sa.text("""
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


def last_done(engine: sa.Engine) -> dict[str, dict[str, datetime]]:
    """Return when each step of each table (by name) last ended well or had nothing to do, without dry runs."""
    return db.nested(db.rows(engine, _LAST_DONE))


def last_done_of(engine: sa.Engine, table: str) -> dict[str, datetime]:
    """Return `last_done` of one table."""
    newest = (
        sa.select(steps.c.step, sa.func.max(steps.c.finished_at).label("at"))
        .where(steps.c.table_name == table, *_ENDED_WELL)
        .group_by(steps.c.step)
    )
    return {row.step: row.at for row in db.rows(engine, newest)}


def newest_states(engine: sa.Engine, step: str) -> dict[str, str]:
    """Return for each table whether that step last was `done`, or was `skipped` because it had nothing to do."""
    query = (
        sa.select(steps.c.table_name, steps.c.state)
        .where(steps.c.step == step, *_ENDED_WELL)
        .order_by(steps.c.table_name, steps.c.finished_at.desc())
        .ext(distinct_on(steps.c.table_name))
    )
    return {row.table_name: row.state for row in db.rows(engine, query)}


def freed_by_day(engine: sa.Engine, since: datetime) -> dict[str, dict[date, int]]:
    """Return the bytes that deletions started since then have freed, by table and day in UTC of their start."""
    recent = sa.select(jobs).where(jobs.c.started_at >= since).subquery()
    by_job = (
        sa.select(batches.c.job_id, sa.func.sum(batches.c.deleted_bytes).label("bytes"))
        .where(batches.c.job_id == recent.c.job_id)
        .group_by(batches.c.job_id)
        .lateral()
    )
    freed = sa.func.sum(sa.func.coalesce(by_job.c.bytes, recent.c.deleted_bytes))
    day = sa.cast(sa.func.timezone("UTC", recent.c.started_at), sa.Date)
    joined = recent.join(by_job, sa.true(), isouter=True)
    query = sa.select(recent.c.table_name, day, freed).select_from(joined).group_by(recent.c.table_name, day)
    return db.nested((table, on, int(size or 0)) for table, on, size in db.rows(engine, query))


def freed_by_job(engine: sa.Engine, job_ids: Collection[str]) -> dict[str, int]:
    """Return the bytes that each of these unfinished deletions has freed so far."""
    query = sa.select(batches.c.job_id, sa.func.sum(batches.c.deleted_bytes)).group_by(batches.c.job_id)
    return {job_id: int(size) for job_id, size in db.rows(engine, query.where(batches.c.job_id.in_(job_ids)))}


def newest_deletions(engine: sa.Engine, since: datetime) -> tuple[JobRecord, ...]:
    """Return the newest finished deletion with files of each table, of those started since then."""
    ended = (jobs.c.started_at >= since, jobs.c.finished_at.is_not(None), jobs.c.files > 0, jobs.c.kind != "dropped")
    newest = (
        sa.select(jobs.c.job_id)
        .where(*ended)
        .order_by(jobs.c.table_name, jobs.c.finished_at.desc())
        .ext(distinct_on(jobs.c.table_name))
    )
    return db.records(engine, JobRecord, jobs.c.job_id.in_(newest))


def scan_shares(engine: sa.Engine, since: datetime) -> list[DayScan]:
    """Return the newest orphan scan of each table and day since then, oldest first."""
    day = sa.cast(sa.func.timezone("UTC", scans.c.created_at), sa.Date)
    listed = sa.cast(sa.cast(scans.c.summary, JSONB)["listed_files"].astext, sa.BigInteger)
    query = (
        sa.select(scans.c.table_name, day, scans.c.files, listed)
        .where(scans.c.kind == "orphans", scans.c.created_at >= since)
        .order_by(day, scans.c.table_name, scans.c.created_at.desc())
        .ext(distinct_on(day, scans.c.table_name))
    )
    return [DayScan(*row) for row in db.rows(engine, query)]


def planned_since(engine: sa.Engine, since: datetime) -> dict[str, list[datetime]]:
    """Return when plans ended well or had nothing to do since then, by table, oldest first; without dry runs."""
    query = (
        sa.select(steps.c.table_name, steps.c.finished_at)
        .where(steps.c.step == "plan", steps.c.finished_at >= since, *_ENDED_WELL)
        # For the index. A window is named by the day on which it opens, in its own time zone.
        .where(steps.c.window_day >= since.date() - timedelta(days=2))
        .order_by(steps.c.finished_at)
    )
    return db.grouped(db.rows(engine, query))


def red_checks(engine: sa.Engine, plan_ids: list[str]) -> dict[str, list[str]]:
    """Return, for each of these plans, the checks whose newest verdict failed."""
    newest = (
        sa.select(sa.func.max(verdicts.c.verdict_id))
        .where(verdicts.c.plan_id.in_(plan_ids))
        .group_by(verdicts.c.plan_id, verdicts.c.check_name)
    )
    red = sa.select(verdicts.c.plan_id, verdicts.c.check_name)
    query = red.where(verdicts.c.verdict_id.in_(newest), verdicts.c.passed.is_(False)).order_by(verdicts.c.check_name)
    return db.grouped(db.rows(engine, query))


def counted(engine: sa.Engine) -> dict[tuple[str, str, str], int]:
    """Return the totals that steps counted, without dry runs, by table, step and figure. They include deleted records,
    so they never fall."""
    each = sa.func.jsonb_each_text(steps.c.counts).table_valued("key", "value").render_derived()
    kept = (
        sa.select(
            steps.c.table_name,
            steps.c.step,
            each.c.key.label("figure"),
            sa.cast(each.c.value, sa.Numeric).label("total"),
        )
        .select_from(steps.join(each, sa.true()))
        .where(steps.c.dry_run.is_(False))
    )
    gone = sa.select(step_totals.c.table_name, step_totals.c.step, step_totals.c.figure, step_totals.c.total)
    every = sa.union_all(kept, gone).subquery()
    key = (every.c.table_name, every.c.step, every.c.figure)
    query = sa.select(*key, sa.func.sum(every.c.total).label("sum")).group_by(*key)
    return {(row.table_name, row.step, row.figure): int(row.sum) for row in db.rows(engine, query)}


def seconds_to_deletion(engine: sa.Engine) -> dict[str, Seconds]:
    """Return for each table how long its newest finished plan took from its commit to the end of its deletion."""
    query = (
        sa.select(plans.c.table_name, sa.func.extract("epoch", plans.c.done_at - plans.c.committed_at).label("seconds"))
        .where(plans.c.done_at.is_not(None), plans.c.committed_at.is_not(None))
        .order_by(plans.c.table_name, plans.c.done_at.desc())
        .ext(distinct_on(plans.c.table_name))
    )
    return {row.table_name: float(row.seconds) for row in db.rows(engine, query)}


# --- health -----------------------------------------------------------------------------------------------------------
# The health of each table: its figures when they were last measured, and its score over time.


@dataclass(frozen=True)
class HealthRecord:
    """The figures of `maintenance.health.TableHealth` as of `metadata_location`, and the score at `scored_at`. Those
    that ask for a compaction have columns; `figures` has the others by name."""

    table_uuid: db.Key
    table: str
    metadata_location: str
    measured_at: datetime
    scored_at: datetime
    score: float
    data_files: int
    rewritable_files: int
    delete_files: int
    manifests: int
    manifest_bytes: int
    fewest_manifests: int
    target_manifest_bytes: int
    figures: Mapping[str, int]


@dataclass(frozen=True)
class HealthPoint:
    """The score of a table at one time, and those of its parts by name; unknown ones are None."""

    table_uuid: db.Key
    scored_at: Annotated[datetime, {"primary_key": True}]
    score: float
    parts: Mapping[str, float | None]


health = db.table_of(HealthRecord, "health")
health_history = db.table_of(HealthPoint, "health_history")


class Health(db.Part):
    def note(self, record: HealthRecord, parts: Mapping[str, float | None]) -> None:
        """Replace the table's record, unless that one is newer; and add its score to the history."""
        point = HealthPoint(record.table_uuid, record.scored_at, record.score, parts)
        with around("health.note"), self.engine.begin() as connection:
            db.put_newest(connection, health, record, "measured_at")
            connection.execute(db.new(health_history, db.values_of(point)))

    def of_table(self, table_uuid: str) -> HealthRecord | None:
        return db.one(self.engine, HealthRecord, health.c.table_uuid == table_uuid)

    def by_table(self) -> dict[str, HealthRecord]:
        """Return the newest record of each table name."""
        return {each.table: each for each in db.records(self.engine, HealthRecord, order_by=(health.c.measured_at,))}

    def history(self, table_uuid: str) -> tuple[HealthPoint, ...]:
        """Return the table's scores, oldest first."""
        mine = health_history.c.table_uuid == table_uuid
        return db.records(self.engine, HealthPoint, mine, order_by=(health_history.c.scored_at,))


# --- held bytes -------------------------------------------------------------------------------------------------------
# The bytes of each tier of a table when its costs were last added up: the source of the fleet's cost per month.


@dataclass(frozen=True)
class HeldBytes:
    """What the tiers of a table held at `measured_at`. `cold` and `deep_archive` are None for a table that was never
    handed off."""

    table_uuid: db.Key
    table: str
    measured_at: datetime
    live: int
    cold: int | None
    deep_archive: int | None


held_bytes = db.table_of(HeldBytes, "held_bytes")


class Held(db.Part):
    def note(self, record: HeldBytes) -> None:
        """Replace the table's record, unless that one is newer."""
        with around("held_bytes.note"), self.engine.begin() as connection:
            db.put_newest(connection, held_bytes, record, "measured_at")

    def by_table(self) -> dict[str, HeldBytes]:
        """Return the newest record of each table name."""
        return {each.table: each for each in db.records(self.engine, HeldBytes, order_by=(held_bytes.c.measured_at,))}


@dataclass(frozen=True)
class RunTime:
    """One run that a window started. `step` is the step's job, or `nightly_walk`. `parallel_runs` is how many such runs
    the instance allowed at once; None without a limit."""

    run_id: db.Key
    table: str
    step: str
    parallel_runs: Annotated[int | None, {"type_": sa.Integer}]
    started_at: datetime
    finished_at: db.Filled


run_times = db.table_of(RunTime, "run_times", sa.Index("run_times_finished", "finished_at"))


class RunTimes(db.Part):
    def note(self, run_id: str, table: str, step: str, started_at: datetime, parallel_runs: int | None) -> None:
        """Record that the run ends now. The first record of a run counts."""
        row = {"run_id": run_id, "table_name": table, "step": step, "started_at": started_at}
        db.write(self.engine, "run_times.note", db.new(run_times, {**row, "parallel_runs": parallel_runs}))

    def means(self, since: datetime) -> dict[str, dict[str, Seconds]]:
        """Return the mean duration of the runs that ended since then, by step and table."""
        seconds = sa.func.extract("epoch", run_times.c.finished_at - run_times.c.started_at)
        query = (
            sa.select(run_times.c.step, run_times.c.table_name, sa.func.avg(seconds).label("mean"))
            .where(run_times.c.finished_at >= since)
            .group_by(run_times.c.step, run_times.c.table_name)
        )
        return db.nested((step, table, float(mean)) for step, table, mean in db.rows(self.engine, query))

    def parallel_runs(self) -> int | None:
        """Return how many runs the instance allowed at once at the newest run; None without a limit or a run."""
        query = sa.select(run_times.c.parallel_runs).order_by(run_times.c.finished_at.desc()).limit(1)
        return next(iter(db.scalars(self.engine, query)), None)


# --- check results ----------------------------------------------------------------------------------------------------
# The newest result of each check of each table that Dagster runs. Plans store the verdicts of their own checks.


@dataclass(frozen=True)
class CheckResult:
    """One result. `is_red` is False for a warning; `text` says what the check found."""

    table: db.Key
    asset: db.Key
    check_name: db.Key
    is_red: bool
    text: str
    evaluated_at: db.Filled


check_results = db.table_of(CheckResult, "check_results")


class CheckResults(db.Part):
    def note(self, table: str, asset: str, check_name: str, text: str, *, is_red: bool) -> None:
        """Replace the former result of this check of the table."""
        row = {"table_name": table, "asset": asset, "check_name": check_name, "is_red": is_red, "text": text}
        statement = db.put(check_results, row, ("is_red", "text"), evaluated_at=db.CLOCK)
        db.write(self.engine, "check_results.note", statement)

    def red(self) -> Mapping[str, Mapping[str, str]]:
        """Return what each red check says, by table, and by `<asset>: <check>`."""
        order = (check_results.c.asset, check_results.c.check_name)
        red = db.records(self.engine, CheckResult, check_results.c.is_red, order_by=order)
        return db.nested((each.table, f"{each.asset}: {each.check_name}", each.text) for each in red)


# --- waits ------------------------------------------------------------------------------------------------------------
# Which plans and scans wait for a person, since when and why. A row counts until its plan or scan is approved or over.


@dataclass(frozen=True)
class Wait:
    """A plan's or scan's wait for approval; `why` is the text of the refusal."""

    job_id: db.Key
    table: str
    why: str
    since: db.Filled


waits = db.table_of(Wait, "waits")


class Waits(db.Part):
    def note(self, job_id: str, table: str, why: str) -> None:
        """Record that it waits. `since` keeps the first time, unless it was approved in between."""
        approved = sa.or_(
            sa.select(plans.c.plan_id).where(plans.c.plan_id == job_id, plans.c.approved_at > waits.c.since).exists(),
            sa.select(scans.c.scan_id).where(scans.c.scan_id == job_id, scans.c.approved_at > waits.c.since).exists(),
        )
        since = sa.func.greatest(waits.c.since, sa.func.clock_timestamp())
        with around("waits.note"), self.engine.begin() as connection:
            connection.execute(db.put(waits, {"job_id": job_id, "table_name": table, "why": why}, ("why",)))
            connection.execute(waits.update().where(waits.c.job_id == job_id, approved).values(since=since))

    def open(self) -> tuple[Wait, ...]:
        """Return those that still wait, longest first."""
        plan = sa.and_(
            plans.c.plan_id == waits.c.job_id,
            plans.c.status.in_(sorted(HOLDING)),
            sa.func.coalesce(plans.c.approved_at, waits.c.since) <= waits.c.since,
            sa.func.coalesce(plans.c.lost_approved_at, waits.c.since) <= waits.c.since,
        )
        # A newer scan of the table supersedes an older one.
        other = scans.alias("other")
        newer = sa.select(other.c.scan_id).where(
            other.c.table_uuid == scans.c.table_uuid, other.c.created_at > scans.c.created_at
        )
        scan = sa.and_(
            scans.c.scan_id == waits.c.job_id,
            scans.c.state.not_in(ENDED),
            sa.func.coalesce(scans.c.approved_at, waits.c.since) <= waits.c.since,
            ~newer.exists(),
            # Of a dropped table: not once it is in the catalog again, its files are gone, or a person keeps them.
            sa.or_(
                scans.c.kind != "dropped",
                sa.select(known_tables.c.table_uuid)
                .where(
                    known_tables.c.table_uuid == scans.c.table_uuid,
                    known_tables.c.table_name == scans.c.table_name,
                    known_tables.c.missing_since.is_not(None),
                    known_tables.c.kept_at.is_(None),
                    known_tables.c.gone_at.is_(None),
                )
                .exists(),
            ),
        )
        waiting = sa.or_(
            sa.select(plans.c.plan_id).where(plan).exists(), sa.select(scans.c.scan_id).where(scan).exists()
        )
        query = sa.select(waits).where(waiting).order_by(waits.c.since)
        return tuple(db.to_record(Wait, row) for row in db.rows(self.engine, query))
