"""The journal's retention: which old records may be deleted.

Records of decisions are permanent: plans, scans, holds, tags, approvals, thaws, quarantines, pauses. Only the details
of the work are deleted: batches, steps, run times, scores, results of checks, leases, listings, frames, and attempts to
commit without lineage or through a REST catalog.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.cold_tier import restores, thaws
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.fleet import check_results, health_history, run_times
from artemis_lifecycle.operations.holds import heartbeats
from artemis_lifecycle.operations.journal import batches, handoff_batches, jobs
from artemis_lifecycle.operations.leases import leases
from artemis_lifecycle.operations.lineage import gate_attempts, publications
from artemis_lifecycle.operations.plans import HOLDING, PlanStatus, plans
from artemis_lifecycle.operations.quarantines import quarantines
from artemis_lifecycle.operations.rest_commits import OPEN_STATES, rest_commits
from artemis_lifecycle.operations.scans import ENDED, ScanState, listings, scans
from artemis_lifecycle.operations.steps import step_totals, steps

_SUMS = ("deleted", "absent", "kept", "failed", "deleted_bytes")


@dataclass(frozen=True)
class OldListing:
    """A listing that is no longer needed, and where its rows are sealed."""

    listing_id: str
    files_location: str


OwnerKind = Literal["plans", "scans", "thaws", "restores"]


FrameKind = Literal["plans", "scans", "listings"]


@dataclass(frozen=True)
class Owner:
    """A plan, scan, thaw or restore whose frames nothing reads any more. `files_location` is null for a restore."""

    kind: OwnerKind
    job_id: str
    files_location: str | None = None
    is_committed: bool = False


class Records(db.Part):
    def jobs_before(self, cutoff: datetime) -> list[str]:
        """Return deletions that ended before `cutoff` and still have their batches, oldest first; except those with
        files in quarantine or with unpublished rows."""
        aside = sa.exists().where(quarantines.c.job_id == jobs.c.job_id, quarantines.c.purged_at.is_(None))
        pending = sa.exists().where(publications.c.job_id == jobs.c.job_id, publications.c.pending)
        query = (
            sa.select(jobs.c.job_id)
            .where(jobs.c.finished_at < cutoff, jobs.c.forgotten_at.is_(None), ~aside, ~pending)
            .order_by(jobs.c.finished_at)
        )
        return [str(each) for each in db.scalars(self.engine, query)]

    def forget_job(self, job_id: str) -> int:
        """Store the totals of a job's batches in its own row, and delete the batches. Return how many there were; 0 if
        the job is not over."""
        with around("records.forget_job"), self.engine.begin() as connection:
            over = connection.execute(
                sa.select(jobs.c.job_id)
                .where(jobs.c.job_id == job_id, jobs.c.finished_at.is_not(None), jobs.c.forgotten_at.is_(None))
                .with_for_update()
            ).first()
            if over is None:
                return 0
            mine = batches.c.job_id == job_id
            sums = connection.execute(
                sa.select(*(sa.func.coalesce(sa.func.sum(batches.c[name]), 0).label(name) for name in _SUMS)).where(
                    mine
                )
            ).one()
            connection.execute(
                sa.update(jobs)
                .where(jobs.c.job_id == job_id)
                .values(forgotten_at=sa.func.clock_timestamp(), **{name: int(sums._mapping[name]) for name in _SUMS})
            )
            return connection.execute(sa.delete(batches).where(mine)).rowcount

    def listings_before(self, cutoff: datetime) -> list[OldListing]:
        """Return listings older than `cutoff`, except each table's newest and those that an unfinished scan uses."""
        newest = sa.select(sa.func.max(listings.c.started_at)).where(listings.c.table_uuid == _other.c.table_uuid)
        asked = sa.exists().where(scans.c.listing_id == _other.c.listing_id, scans.c.state.not_in(ENDED))
        query = (
            sa.select(_other.c.listing_id, _other.c.files_location)
            .where(_other.c.finished_at < cutoff, _other.c.started_at < newest.scalar_subquery(), ~asked)
            .order_by(_other.c.finished_at)
        )
        return [OldListing(*row) for row in db.rows(self.engine, query)]

    def forget_listing(self, listing_id: str) -> int:
        return self._delete("records.forget_listing", listings, listings.c.listing_id == listing_id)

    def owners_before(self, cutoff: datetime) -> list[Owner]:
        """Return what is over since before `cutoff` and still has frames, and what an interrupted run began to
        forget."""
        found: list[Owner] = []
        for kind, (table, key, over) in _owners(cutoff).items():
            place = table.c.files_location if "files_location" in table.c else sa.null()
            committed = table.c.committed_at.is_not(None) if "committed_at" in table.c else sa.false()
            query = sa.select(key, place, committed).where(over, table.c.forgotten_at.is_(None)).order_by(key)
            found += [Owner(kind, *row) for row in db.rows(self.engine, query)]
        return found

    def named(self, kind: FrameKind, folders: Collection[str]) -> set[str]:
        """Return which of these folder names a plan, scan or listing has its frames in."""
        table = {"plans": plans, "scans": scans, "listings": listings}[kind]
        place = table.c.files_location
        folder = sa.func.substring(place, r"([^/]+)(?:/files|/once)?$")
        query = sa.select(folder).where(folder.in_(list(folders)))
        return {str(each) for each in db.scalars(self.engine, query)}

    def begin_forgetting(self, owner: Owner, cutoff: datetime) -> bool:
        """Mark it as no longer usable, if it still is what `owners_before` returns. From then on no approval, deletion
        or new plan can need its frames."""
        table, key, over = _owners(cutoff)[owner.kind]
        values = {"forgetting_at": sa.func.coalesce(table.c.forgetting_at, sa.func.clock_timestamp())}
        return self._mark("records.begin_forgetting", table, values, key == owner.job_id, over)

    def forgotten(self, owner: Owner) -> None:
        """Record that its frames are gone."""
        table, key, _ = _owners(datetime.max.replace(tzinfo=UTC))[owner.kind]
        values = {"forgotten_at": sa.func.clock_timestamp()}
        self._mark("records.forgotten", table, values, key == owner.job_id, table.c.forgetting_at.is_not(None))

    def _mark(self, point: str, table: sa.Table, values: dict[str, Any], *where: sa.ColumnElement[bool]) -> bool:
        return db.write(self.engine, point, sa.update(table).where(*where).values(values)) == 1

    def before(self, cutoff: datetime) -> dict[str, int]:
        """Return how many rows of each kind `forget` would delete."""
        with self.engine.connect() as connection:
            return {
                table.name: connection.execute(sa.select(sa.func.count()).select_from(table).where(old)).scalar_one()
                for table, old in _old(cutoff)
            }

    def forget(self, cutoff: datetime) -> dict[str, int]:
        """Delete handoff copies, steps, run times, scores, leases, refused commits and settled ones through REST from
        before `cutoff`. Return the rows by kind. Each table's newest lease stays, because its token fences off older
        ones. What deleted steps counted is added to their totals. Heartbeats that lapsed so long ago protect nothing,
        and go, too."""
        self._delete("records.forget", heartbeats, heartbeats.c.expires_at < cutoff)
        return {
            table.name: self._forget_steps(old) if table is steps else self._delete("records.forget", table, old)
            for table, old in _old(cutoff)
        }

    def _forget_steps(self, condition: sa.ColumnElement[bool]) -> int:
        gone = sa.delete(steps).where(condition).returning(steps).cte("gone")
        each = sa.func.jsonb_each_text(gone.c.counts).table_valued("key", "value").render_derived()
        sums = (
            sa.select(gone.c.table_name, gone.c.step, each.c.key, sa.func.sum(sa.cast(each.c.value, sa.BigInteger)))
            .select_from(gone.join(each, sa.true()))
            .where(gone.c.dry_run.is_(False))
            .group_by(gone.c.table_name, gone.c.step, each.c.key)
        )
        added = upsert(step_totals).from_select(["table_name", "step", "figure", "total"], sums)
        added = added.on_conflict_do_update(
            index_elements=["table_name", "step", "figure"], set_={"total": step_totals.c.total + added.excluded.total}
        )
        # One statement: whoever reads the totals counts each row once, in one of the two tables.
        query = sa.select(sa.func.count()).select_from(gone).add_cte(added.returning(step_totals.c.total).cte("added"))
        with around("records.forget"), self.engine.begin() as connection:
            return connection.execute(query).scalar_one()

    def _delete(self, point: str, table: sa.Table, condition: sa.ColumnElement[bool]) -> int:
        return db.write(self.engine, point, sa.delete(table).where(condition))


_other = listings.alias("other")


def _owners(cutoff: datetime) -> dict[OwnerKind, tuple[sa.Table, sa.ColumnElement[str], sa.ColumnElement[bool]]]:
    """Return the table of each kind, its key, and the condition that no reader needs the frames of a row."""
    later_plan, later_scan = plans.alias(), scans.alias()
    newer_plan = sa.exists().where(
        later_plan.c.table_uuid == plans.c.table_uuid, later_plan.c.ordinal > plans.c.ordinal
    )
    newer_scan = sa.exists().where(
        later_scan.c.table_uuid == scans.c.table_uuid,
        later_scan.c.kind == scans.c.kind,
        later_scan.c.created_at > scans.c.created_at,
    )
    plan_ended = sa.or_(
        sa.and_(plans.c.status == PlanStatus.DONE, plans.c.done_at < cutoff),
        sa.and_(plans.c.status == PlanStatus.CLOSED, plans.c.closed_at < cutoff),
        sa.and_(plans.c.status == PlanStatus.SUPERSEDED, plans.c.sealed_at < cutoff),
    )
    scan_ended = sa.or_(
        scans.c.state.in_(ENDED), sa.and_(scans.c.state == ScanState.OPEN, scans.c.approved_at.is_(None))
    )
    over: dict[OwnerKind, tuple[sa.Table, sa.ColumnElement[str], sa.ColumnElement[bool]]] = {
        "plans": (plans, plans.c.plan_id, sa.and_(plan_ended, newer_plan, _is_settled(plans.c.plan_id))),
        "scans": (
            scans,
            scans.c.scan_id,
            sa.and_(scan_ended, scans.c.created_at < cutoff, newer_scan, _is_settled(scans.c.scan_id)),
        ),
        "thaws": (thaws, thaws.c.thaw_id, thaws.c.ended_at < cutoff),
        "restores": (
            restores,
            restores.c.restore_id,
            sa.or_(restores.c.finished_at < cutoff, restores.c.abandoned_at < cutoff),
        ),
    }
    return {
        kind: (table, key, sa.or_(table.c.forgetting_at.is_not(None), old)) for kind, (table, key, old) in over.items()
    }


def _is_settled(job_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """The condition that the deletion's own details are forgotten, nothing of it can be undeleted, and its rows are
    published."""
    aside = sa.exists().where(quarantines.c.job_id == job_id, quarantines.c.purged_at.is_(None))
    pending = sa.exists().where(publications.c.job_id == job_id, publications.c.pending)
    detailed = sa.exists().where(jobs.c.job_id == job_id, jobs.c.forgotten_at.is_(None))
    return sa.and_(~aside, ~pending, ~detailed)


def _old(cutoff: datetime) -> list[tuple[sa.Table, sa.ColumnElement[bool]]]:
    open_plans = sa.select(plans.c.plan_id).where(plans.c.status.in_(sorted(HOLDING)))
    forgotten = sa.select(plans.c.plan_id).where(plans.c.forgotten_at.is_not(None))
    later = leases.alias("later")
    newer = sa.exists().where(later.c.table_uuid == leases.c.table_uuid, later.c.token > leases.c.token)
    return [
        (handoff_batches, sa.and_(handoff_batches.c.updated_at < cutoff, handoff_batches.c.plan_id.not_in(open_plans))),
        (steps, steps.c.finished_at < cutoff),
        (health_history, health_history.c.scored_at < cutoff),
        (run_times, run_times.c.finished_at < cutoff),
        (check_results, check_results.c.evaluated_at < cutoff),
        (gate_attempts, gate_attempts.c.at < cutoff),
        (
            rest_commits,
            # Of its plan, each step asks for what is proven. A ref that was put back is a decision.
            sa.and_(
                rest_commits.c.settled_at < cutoff,
                rest_commits.c.state.not_in(sorted(OPEN_STATES)),
                sa.func.coalesce(sa.func.cardinality(rest_commits.c.put_back), 0) == 0,
                sa.or_(rest_commits.c.plan_id.is_(None), rest_commits.c.plan_id.in_(forgotten)),
            ),
        ),
        (
            leases,
            sa.and_(
                leases.c.acquired_at < cutoff,
                sa.or_(leases.c.released_at.is_not(None), leases.c.taken_over_by.is_not(None)),
                newer,
            ),
        ),
    ]
