"""Up to where each table's snapshots were checked against its lineage requirements, and those that do not meet them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

import sqlalchemy as sa

from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision


@dataclass(frozen=True)
class WatchedTable:
    """A table whose snapshots are checked: the metadata file that was read last, its `last-sequence-number` and the
    newest time of its snapshots. `began_at`: when a table of its name was first read. A uuid can have several names."""

    table_uuid: str
    table: db.Key
    metadata_location: str
    last_sequence_number: int
    last_snapshot_ms: int
    began_at: db.Filled


@dataclass(frozen=True)
class UnmetSnapshot:
    """A snapshot that does not meet its table's requirements. A person may acknowledge it: who, why, when."""

    table_uuid: db.Key
    snapshot_id: Annotated[int, {"primary_key": True, "type_": sa.BigInteger, "autoincrement": False}]
    table: str
    committed_at: datetime | None
    problems: tuple[str, ...]
    found_at: db.Filled
    acknowledged_by: str | None
    acknowledged_why: str | None
    acknowledged_at: datetime | None


@dataclass(frozen=True)
class FoundSnapshot:
    """An unmet snapshot that is not recorded yet."""

    snapshot_id: int
    committed_at: datetime | None
    problems: tuple[str, ...]


watched_tables = db.table_of(WatchedTable, "watched_tables")
unmet_snapshots = db.table_of(
    UnmetSnapshot,
    "unmet_snapshots",
    sa.Index("unmet_snapshots_open", "table_uuid", postgresql_where=sa.text("acknowledged_at IS NULL")),
)


class LineageWatch(db.Part):
    def tables(self) -> tuple[WatchedTable, ...]:
        """Return every watched table, one for each name."""
        return db.records(self.engine, WatchedTable)

    def began_at(self) -> datetime | None:
        """Return when the first table was read; None before that."""
        return next(iter(db.scalars(self.engine, sa.select(sa.func.min(watched_tables.c.began_at)))), None)

    def checked(
        self,
        table_uuid: str,
        table: str,
        metadata_location: str,
        *,
        last_sequence_number: int,
        last_snapshot_ms: int,
        unmet: Sequence[FoundSnapshot],
    ) -> None:
        """Record that the table was checked up to this metadata file, and what was found. Known snapshots stay as they
        are, except one that was committed anew under its id: what a person acknowledged was another."""
        values = {
            "table_uuid": table_uuid,
            "metadata_location": metadata_location,
            "last_sequence_number": last_sequence_number,
            "last_snapshot_ms": last_snapshot_ms,
        }
        with around("lineage_watch.checked"), self.engine.begin() as connection:
            for each in unmet:
                row = {**db.values_of(each), "problems": list(each.problems)}
                anew = dict.fromkeys(("acknowledged_by", "acknowledged_why", "acknowledged_at"))
                statement = db.put(
                    unmet_snapshots,
                    {"table_uuid": table_uuid, "table_name": table, **row},
                    row,
                    lambda given: unmet_snapshots.c.committed_at.is_distinct_from(given.committed_at),
                    found_at=sa.func.clock_timestamp(),
                    **anew,
                )
                connection.execute(statement)
            connection.execute(db.put(watched_tables, {"table_name": table, **values}, values))

    def unmet(self, table_uuid: str | None = None, *, acknowledged: bool = False) -> tuple[UnmetSnapshot, ...]:
        """Return the snapshots, of one table or of all, that are not acknowledged (`acknowledged`: also the others),
        oldest first."""
        where = db.if_given(unmet_snapshots.c.table_uuid, table_uuid)
        if not acknowledged:
            where += (unmet_snapshots.c.acknowledged_at.is_(None),)
        order = (unmet_snapshots.c.found_at, unmet_snapshots.c.snapshot_id)
        return db.records(self.engine, UnmetSnapshot, *where, order_by=order)

    def acknowledge(self, table_uuid: str, who: str, why: str) -> tuple[UnmetSnapshot, ...]:
        """Acknowledge every open snapshot of the table, and return them. Raises BadInput without `who` or `why`."""
        with around("lineage_watch.acknowledge"), self.engine.begin() as connection:
            done = db.update_records(
                connection,
                UnmetSnapshot,
                unmet_snapshots.c.table_uuid == table_uuid,
                unmet_snapshots.c.acknowledged_at.is_(None),
                acknowledged_by=who,
                acknowledged_why=why,
                acknowledged_at=sa.func.clock_timestamp(),
            )
            if done:
                NewDecision("acknowledge-lineage", table_uuid, who, why).record(connection, done[0])
        return done


# --- ledger progress --------------------------------------------------------------------------------------------------
# How far the lineage ledger is, by table. Written in the transaction that queues the rows, so that no row is missing
# and none is queued twice.


@dataclass(frozen=True)
class LedgerProgress:
    """The newest recorded snapshot of a table, by sequence number; how many snapshots the metadata file had; how many
    are recorded in all, and how many of them do not meet the table's lineage requirements."""

    table_uuid: db.Key
    metadata_location: str
    snapshot_id: int | None
    sequence_number: int
    present: int
    recorded: int
    incomplete: int
    recorded_at: db.FilledLater = None


ledger_progress = db.table_of(LedgerProgress, "ledger_progress")


class LedgerProgresses(db.Part):
    def all(self) -> tuple[LedgerProgress, ...]:
        """Return the progress of all tables."""
        return db.records(self.engine, LedgerProgress)

    def of_table(self, table_uuid: str) -> LedgerProgress | None:
        return db.one(self.engine, LedgerProgress, ledger_progress.c.table_uuid == table_uuid)


def save_progress(connection: sa.Connection, progress: LedgerProgress) -> None:
    values = db.values_of(progress) | {"recorded_at": db.CLOCK}
    connection.execute(db.put(ledger_progress, values, values))


# --- publications -----------------------------------------------------------------------------------------------------
# The outbox of the result tables: which rows must still be published, and which were.

ResultTable = Literal["plan_files", "deletions", "lineage_ledger", "lineage_edges", "lineage_events"]


@dataclass(frozen=True)
class Publication:
    """The rows of one plan, one deletion or one recording in a result table, or a part of its lineage events.
    `recorded_at` is the instant in the rows; `first_at` is the earliest one that published rows of the job may have.
    `published_at` None: never published."""

    catalog: db.Key
    result_table: Annotated[ResultTable, {"primary_key": True}]
    job_id: db.Key
    recorded_at: datetime
    first_at: datetime
    pending: bool
    queued_at: db.Filled
    published_at: datetime | None = None


publications = db.table_of(
    Publication, "publications", sa.Index("publications_pending", "catalog", postgresql_where=sa.text("pending"))
)


class Publications(db.Part):
    asked = False
    """Whether this object requested a publication: a client that only reads may not have the right to publish."""

    def plan(self, catalog: str, plan_id: str, planned_at: datetime) -> None:
        """Request that a plan's files be published. A plan that was requested before has the same files."""
        self.asked = True
        values = _values(catalog, "plan_files", plan_id, planned_at)
        db.write(self.engine, "publications.plan", db.new(publications, values))

    def deletion(self, catalog: str, job_id: str) -> None:
        """Request that a deletion's outcomes be published; again if a later run changed them."""
        self.asked = True
        values = _values(catalog, "deletions", job_id, sa.func.clock_timestamp())
        # The transaction's start, before any instant in rows of the job: each clock_timestamp() differs.
        values["first_at"] = sa.func.now()
        statement = db.put(publications, values, recorded_at=sa.func.clock_timestamp(), pending=True)
        db.write(self.engine, "publications.deletion", statement)

    def lineage(self, catalog: str, batch_id: str, progress: LedgerProgress | None, events: Sequence[str] = ()) -> None:
        """Request that a batch of the lineage ledger be published, and these parts of its events sent, and save how far
        the ledger is now. Does nothing for a batch that was requested before."""
        self.asked = True
        batches = [_values(catalog, name, batch_id, sa.func.now()) for name in ("lineage_ledger", "lineage_edges")]
        batches += [_values(catalog, "lineage_events", part, sa.func.now()) for part in events]
        with around("publications.lineage"), self.engine.begin() as connection:
            connection.execute(db.new(publications, batches))
            if progress is not None:
                save_progress(connection, progress)

    def pending(self, catalog: str) -> tuple[Publication, ...]:
        """Return the pending publications, oldest first."""
        mine = (publications.c.catalog == catalog, publications.c.pending)
        return db.records(self.engine, Publication, *mine, order_by=(publications.c.queued_at,))

    def published(self, publication: Publication) -> None:
        """Record that these rows are published. If the job was requested again in the meantime, it stays pending."""
        statement = (
            sa.update(publications)
            .where(
                publications.c.catalog == publication.catalog,
                publications.c.result_table == publication.result_table,
                publications.c.job_id == publication.job_id,
            )
            .values(
                published_at=sa.func.clock_timestamp(), pending=publications.c.recorded_at != publication.recorded_at
            )
        )
        db.write(self.engine, "publications.published", statement)


def _values(catalog: str, table: str, job_id: str, instant: object) -> dict[str, object]:
    return {
        "catalog": catalog,
        "result_table": table,
        "job_id": job_id,
        "recorded_at": instant,
        "first_at": instant,
        "pending": True,
    }


# --- gate attempts ----------------------------------------------------------------------------------------------------
# Commits that the REST gate refused, or, where a table's mode is `report`, recorded and let pass.

_LONGEST = 1024
_MOST_KEYS = 100


@dataclass(frozen=True)
class GateAttempt:
    """One snapshot, or other change of a table, that lacked lineage. `who` is the client as the gate saw it: its
    address and program, no credentials. `summary` has the first keys of the snapshot's summary, and the beginning of
    each value."""

    attempt_id: db.Serial
    table: str
    who: str
    summary: Mapping[str, str]
    problems: tuple[str, ...]
    refused: bool
    at: db.Filled


gate_attempts = db.table_of(
    GateAttempt, "gate_attempts", sa.Index("gate_attempts_of_table", "table_name", "attempt_id")
)


class GateAttempts(db.Part):
    def record(
        self, table: str, who: str, summary: Mapping[str, str], problems: tuple[str, ...], *, refused: bool
    ) -> GateAttempt:
        kept = {_stored(key): _stored(value) for key, value in list(summary.items())[:_MOST_KEYS]}
        with around("gate_attempts.record"), self.engine.begin() as connection:
            return db.insert_record(
                connection,
                GateAttempt,
                table=_stored(table),
                who=_stored(who),
                summary=kept,
                problems=[_stored(each) for each in problems],
                refused=refused,
            )

    def of(self, table: str | None = None, limit: int | None = 100) -> tuple[GateAttempt, ...]:
        """Return attempts on `table`, or on all tables, newest first."""
        newest = (gate_attempts.c.attempt_id.desc(),)
        where = db.if_given(gate_attempts.c.table_name, table)
        return db.records(self.engine, GateAttempt, *where, order_by=newest, limit=limit)


def _stored(text: str) -> str:
    return db.storable(text[:_LONGEST]) or ""
