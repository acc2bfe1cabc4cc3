"""Which plans and scans wait for a person, since when and why. A row counts until its plan or scan is approved or
over."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.known_tables import known_tables
from artemis_lifecycle.operations.plans import HOLDING, plans
from artemis_lifecycle.operations.scans import ENDED, scans


@dataclass(frozen=True)
class Wait:
    """A plan's or scan's wait for approval; `why` is the text of the refusal."""

    job_id: db.Key
    table: str
    why: str
    since: db.Filled


waits = db.table_of(Wait, "waits")


class Waits:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def note(self, job_id: str, table: str, why: str) -> None:
        """Record that it waits. `since` keeps the first time, unless it was approved in between."""
        statement = upsert(waits).values(job_id=job_id, table_name=table, why=why)
        approved = sa.or_(
            sa.select(plans.c.plan_id).where(plans.c.plan_id == job_id, plans.c.approved_at > waits.c.since).exists(),
            sa.select(scans.c.scan_id).where(scans.c.scan_id == job_id, scans.c.approved_at > waits.c.since).exists(),
        )
        since = sa.func.greatest(waits.c.since, sa.func.clock_timestamp())
        with around("waits.note"), self._engine.begin() as connection:
            connection.execute(statement.on_conflict_do_update(index_elements=["job_id"], set_={"why": why}))
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
        with self._engine.connect() as connection:
            return tuple(db.to_record(Wait, row) for row in connection.execute(query))
