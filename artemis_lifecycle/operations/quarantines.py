"""Files that deletions moved into quarantine instead of deleting them, until when they stay there, and who restored
them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from shlex import quote
from typing import Any

import sqlalchemy as sa

from artemis_lifecycle.config.names import name_of
from artemis_lifecycle.errors import PlanStateError
from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.decisions import NewDecision, change
from artemis_lifecycle.operations.journal import jobs
from artemis_lifecycle.operations.known_tables import KnownTable, known_tables


class QuarantineState(StrEnum):
    KEPT = "kept"
    """The files are in quarantine, and gone from their paths."""

    UNDELETED = "undeleted"
    """The files were restored, and are also at their paths. Nothing deletes them there until the undelete is closed."""

    PURGING = "purging"
    PURGED = "purged"


@dataclass(frozen=True)
class QuarantineRecord:
    """The quarantine of one deletion job. `folder` has its files; `purge_after` is known once the job is over."""

    job_id: db.Key
    table_uuid: str
    table: str
    folder: str
    metadata_location: str | None
    retain_seconds: int
    began_at: db.Filled
    purge_after: datetime | None
    undeleted_at: datetime | None
    undeleted_by: str | None
    undeleted_why: str | None
    closed_at: datetime | None
    closed_by: str | None
    closed_why: str | None
    purging_at: datetime | None
    purged_at: datetime | None

    @property
    def state(self) -> QuarantineState:
        if self.purged_at is not None:
            return QuarantineState.PURGED
        if self.purging_at is not None:
            return QuarantineState.PURGING
        if self.undeleted_at is not None and self.closed_at is None:
            return QuarantineState.UNDELETED
        return QuarantineState.KEPT


quarantines = db.table_of(
    QuarantineRecord,
    "quarantines",
    sa.CheckConstraint("purging_at IS NULL OR purge_after IS NOT NULL", name="quarantines_purge"),
    sa.CheckConstraint("undeleted_at IS NULL OR btrim(undeleted_by) <> ''", name="quarantines_said"),
    sa.Index("quarantines_of_table", "table_uuid", "began_at"),
)


class Quarantines(db.Part):
    def begin(
        self,
        job_id: str,
        table_uuid: str,
        table: str,
        folder: str,
        retain: timedelta,
        metadata_location: str | None = None,
    ) -> QuarantineRecord:
        """Record where a job's files will be moved, before the first move. A second call returns what is stored."""
        row = {"job_id": job_id, "table_uuid": table_uuid, "table_name": table, "folder": folder}
        kept = {"metadata_location": metadata_location, "retain_seconds": int(retain.total_seconds())}
        db.write(self.engine, "quarantines.begin", db.new(quarantines, row | kept))
        return self.get(job_id)

    def get(self, job_id: str) -> QuarantineRecord:
        """Raises NoSuchPlan for a job that quarantined nothing."""
        return db.required(
            self.find(job_id),
            f"Nothing of {job_id} is in quarantine",
            "list quarantines: artemis quarantine TABLE (or, if the database was put back to before a deletion, the "
            "folders of <quarantine.root>/<table-uuid>); a table's deletion.mode decides before a deletion",
        )

    def find(self, job_id: str) -> QuarantineRecord | None:
        return db.one(self.engine, QuarantineRecord, quarantines.c.job_id == job_id)

    def of_table(self, table_uuid: str) -> list[QuarantineRecord]:
        """Newest first, including purged ones."""
        return self._all(quarantines.c.table_uuid == table_uuid)

    def kept(self, table: str, table_uuid: str | None) -> list[QuarantineRecord]:
        """Return those of a table's name or uuid whose files are only in quarantine."""
        found = self._all(sa.or_(quarantines.c.table_name == table, quarantines.c.table_uuid == table_uuid))
        return [record for record in found if record.state is QuarantineState.KEPT]

    def undeleted(self, table_uuid: str) -> list[QuarantineRecord]:
        """Return those whose files are at their paths again, and must stay there."""
        return [record for record in self.of_table(table_uuid) if record.state is QuarantineState.UNDELETED]

    def undeleted_of_unknown(self) -> list[QuarantineRecord]:
        """Return the `undeleted` of tables that no catalog was seen to have: the database was put back to before
        that."""
        is_known = sa.exists().where(known_tables.c.table_uuid == quarantines.c.table_uuid)
        found = self._all(quarantines.c.undeleted_at.is_not(None), ~is_known)
        return [record for record in found if record.state is QuarantineState.UNDELETED]

    def of_dropped(self, but: str = "") -> Callable[[KnownTable], tuple[str, ...]]:
        """Return a function: the folders from which a dropped table can come back, without that of one job."""
        dropped = sa.select(jobs.c.job_id).where(jobs.c.kind == "dropped", jobs.c.job_id != but)
        found: dict[tuple[str, str], tuple[str, ...]] = {}
        for each in self._all(quarantines.c.purged_at.is_(None), quarantines.c.job_id.in_(dropped)):
            key = each.table_uuid, name_of(each.table)
            found[key] = (*found.get(key, ()), each.folder)
        return lambda known: found.get((known.table_uuid, name_of(known.table)), ())

    def folders(self, table_uuid: str) -> tuple[str, ...]:
        """Return the folders of those that are not purged."""
        found = (each for each in self.of_table(table_uuid) if each.state is not QuarantineState.PURGED)
        return tuple(each.folder for each in found)

    def due(self, table_uuid: str | None = None) -> list[QuarantineRecord]:
        """Return those, of one table or of all, whose retention is over by the Postgres clock, and those with an
        interrupted purge; oldest first."""
        wanted = (quarantines.c.purge_after < sa.func.clock_timestamp()) & quarantines.c.purged_at.is_(None)
        found = self._all(wanted, *db.if_given(quarantines.c.table_uuid, table_uuid))
        return [record for record in reversed(found) if record.state is not QuarantineState.UNDELETED]

    def finish(self, job_id: str) -> None:
        """Record that the job is over and start its retention. Does nothing for a job without a quarantine, and the
        second time."""
        retain = sa.func.make_interval(0, 0, 0, 0, 0, 0, quarantines.c.retain_seconds)
        mine = (quarantines.c.job_id == job_id, quarantines.c.purge_after.is_(None))
        end = sa.func.clock_timestamp() + retain
        change(self.engine, "quarantines.finish", QuarantineRecord, *mine, purge_after=end)

    def undelete(self, job_id: str, who: str, why: str) -> QuarantineRecord:
        """Record that the files will be restored to their paths; ends a purge that has not deleted all of them. Raises
        PlanStateError if they are purged."""
        return self._set(
            job_id,
            quarantines.c.purged_at.is_(None),
            purging_at=None,
            undeleted_at=sa.func.coalesce(quarantines.c.undeleted_at, sa.func.clock_timestamp()),
            undeleted_by=who,
            undeleted_why=why,
            closed_at=None,
            closed_by=None,
            closed_why=None,
            decision=NewDecision("undelete", job_id, who, why),
        )

    def close(self, job_id: str, who: str, why: str) -> QuarantineRecord:
        """End an undelete: from now on, an orphan scan may find unreferenced files among them. Raises
        PlanStateError."""
        return self._set(
            job_id,
            quarantines.c.undeleted_at.is_not(None),
            closed_at=sa.func.coalesce(quarantines.c.closed_at, sa.func.clock_timestamp()),
            closed_by=who,
            closed_why=why,
            decision=NewDecision("close-undelete", job_id, who, why),
        )

    def purge(self, job_id: str) -> QuarantineRecord:
        """Record that the files in quarantine will be deleted. Raises PlanStateError while the retention runs, and for
        restored files."""
        return self._set(
            job_id,
            (quarantines.c.purge_after < sa.func.clock_timestamp())
            & (quarantines.c.undeleted_at.is_(None) | quarantines.c.closed_at.is_not(None)),
            purging_at=sa.func.coalesce(quarantines.c.purging_at, sa.func.clock_timestamp()),
        )

    def purged(self, job_id: str) -> QuarantineRecord:
        return self._set(
            job_id,
            quarantines.c.purging_at.is_not(None),
            purged_at=sa.func.coalesce(quarantines.c.purged_at, sa.func.now()),
        )

    def _set(
        self, job_id: str, only: sa.ColumnElement[bool], *, decision: NewDecision | None = None, **values: Any
    ) -> QuarantineRecord:
        mine = quarantines.c.job_id == job_id
        changed = change(self.engine, "quarantines.record", QuarantineRecord, mine, only, decision=decision, **values)
        if changed is None:
            found = self.get(job_id)
            raise PlanStateError(
                f"The quarantine of {job_id} is {found.state}, which does not allow this",
                table=found.table,
                untouched="all files",
                hint=f"check when it is purged, and what was restored: artemis quarantine {quote(found.table)}",
            )
        return changed

    def _all(self, *where: sa.ColumnElement[bool]) -> list[QuarantineRecord]:
        return list(db.records(self.engine, QuarantineRecord, *where, order_by=(quarantines.c.began_at.desc(),)))
