"""Orphan scans and the object listings under them: where they are sealed, and how far a scan's deletion is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from shlex import quote
from typing import Any, Literal

from sqlalchemy import Engine, Row, case, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.errors import NoSuchPlan, PlanStateError
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision
from artemis_lifecycle.operations.roles import approving
from artemis_lifecycle.operations.tables import listings, scans, to_record

ScanKind = Literal["orphans", "dropped"]


class ScanState(StrEnum):
    OPEN = "open"
    DELETING = "deleting"
    DONE = "done"


@dataclass(frozen=True)
class ScanRecord:
    """One scan, for orphans or of a dropped table. `listed_at` is when its listing began, `metadata_read_at` when the
    metadata was read, after it.
    `files` and `bytes` are the orphans; `summary` is JSON text; `listing_id` None is a listing that the caller gave."""

    scan_id: str
    table_uuid: str
    table: str
    listing_id: str | None
    listed_at: datetime
    listing_finished_at: datetime
    metadata_location: str
    metadata_read_at: datetime
    files_location: str
    files: int
    bytes: int
    skipped_young: int
    skipped_in_flight: int
    summary: str
    state: ScanState = ScanState.OPEN
    created_at: datetime | None = None
    approved_by: str | None = None
    approved_at: datetime | None = None
    approved_why: str | None = None
    kind: ScanKind = "orphans"


@dataclass(frozen=True)
class ListingRecord:
    """One listing of every object under `location`; its rows are sealed at `files_location`."""

    listing_id: str
    table_uuid: str
    table: str
    location: str
    files_location: str
    started_at: datetime
    finished_at: datetime
    files: int
    bytes: int


def _scan(row: Row[Any]) -> ScanRecord:
    record = to_record(ScanRecord, row)
    return replace(record, state=ScanState(record.state))


class Scans:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def store(self, record: ScanRecord) -> ScanRecord:
        """Store a scan, open; storing an id again returns what is stored."""
        values = _columns(record, without={"state", "created_at", "approved_by", "approved_at", "approved_why"})
        with around("scans.store"), self._engine.begin() as connection:
            connection.execute(upsert(scans).values(**values, state=ScanState.OPEN).on_conflict_do_nothing())
            row = connection.execute(select(scans).where(scans.c.scan_id == record.scan_id)).one()
        return _scan(row)

    def get(self, scan_id: str) -> ScanRecord:
        """Raises NoSuchPlan."""
        with self._engine.connect() as connection:
            row = connection.execute(select(scans).where(scans.c.scan_id == scan_id)).first()
        if row is None:
            raise _no_such(scan_id)
        return _scan(row)

    def of_table(
        self, table_uuid: str, states: Collection[ScanState] = (), kind: ScanKind = "orphans"
    ) -> tuple[ScanRecord, ...]:
        """Newest first; every state when none is named."""
        query = select(scans).where(scans.c.table_uuid == table_uuid, scans.c.kind == kind)
        query = query.order_by(scans.c.created_at.desc())
        if states:
            query = query.where(scans.c.state.in_(states))
        with self._engine.connect() as connection:
            return tuple(map(_scan, connection.execute(query)))

    def recent(self, limit: int = 5) -> dict[str, list[ScanRecord]]:
        """The newest orphan scans of every table, by its name, newest first."""
        rank = func.row_number().over(partition_by=scans.c.table_name, order_by=scans.c.created_at.desc())
        ranked = select(scans, rank.label("rank")).where(scans.c.kind == "orphans").subquery()
        query = select(ranked).where(ranked.c.rank <= limit).order_by(ranked.c.created_at.desc())
        found: dict[str, list[ScanRecord]] = {}
        with self._engine.connect() as connection:
            for row in connection.execute(query):
                found.setdefault(row.table_name, []).append(_scan(row))
        return found

    def mark(self, scan_id: str, expected: Collection[ScanState], state: ScanState) -> ScanRecord:
        """Set the state if it is one of `expected`. Raises PlanStateError, naming the actual one; NoSuchPlan."""
        with around(f"scans.mark.{state}"), self._engine.begin() as connection:
            row = connection.execute(
                update(scans)
                .where(scans.c.scan_id == scan_id, scans.c.state.in_(expected))
                .values(state=state)
                .returning(scans)
            ).first()
        if row is None:
            raise _refusal(self.get(scan_id), f"cannot become {state}", expected)
        return _scan(row)

    def approve(self, scan_id: str, who: str, why: str) -> ScanRecord:
        """Let a scan above its table's guards be deleted; the first approval stands, one more is only added to the
        history of decisions. Raises PlanStateError when it is done; Refused for a login that may not approve; BadInput
        where nobody is named, or no reason; NoSuchPlan."""
        first = scans.c.approved_at.is_(None)
        with approving(scan_id), around("scans.approve"), self._engine.begin() as connection:
            row = connection.execute(
                update(scans)
                .where(scans.c.scan_id == scan_id, scans.c.state != ScanState.DONE)
                .values(
                    approved_by=case((first, who), else_=scans.c.approved_by),
                    approved_why=case((first, why), else_=scans.c.approved_why),
                    approved_at=case((first, func.clock_timestamp()), else_=scans.c.approved_at),
                )
                .returning(scans)
            ).first()
            if row is not None:
                NewDecision("approve-scan", who, why).record(connection, scan_id, _scan(row))
        if row is None:
            raise _refusal(self.get(scan_id), "cannot be approved", (ScanState.OPEN, ScanState.DELETING))
        return _scan(row)

    def store_listing(self, record: ListingRecord) -> ListingRecord:
        """Store a finished listing; storing an id again returns what is stored."""
        with around("scans.store_listing"), self._engine.begin() as connection:
            connection.execute(upsert(listings).values(**_columns(record)).on_conflict_do_nothing())
            row = connection.execute(select(listings).where(listings.c.listing_id == record.listing_id)).one()
        return to_record(ListingRecord, row)

    def listing(self, listing_id: str) -> ListingRecord:
        """Raises NoSuchPlan."""
        with self._engine.connect() as connection:
            row = connection.execute(select(listings).where(listings.c.listing_id == listing_id)).first()
        if row is None:
            raise NoSuchPlan(f"No listing {listing_id} is stored", untouched="everything", do="list the table again")
        return to_record(ListingRecord, row)

    def latest_listing(self, table_uuid: str) -> ListingRecord | None:
        """The listing that began last."""
        query = (
            select(listings)
            .where(listings.c.table_uuid == table_uuid)
            .order_by(listings.c.started_at.desc(), listings.c.stored_at.desc())
            .limit(1)
        )
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        return None if row is None else to_record(ListingRecord, row)


def _columns(record: ScanRecord | ListingRecord, without: Collection[str] = ()) -> dict[str, Any]:
    return {
        "table_name" if field.name == "table" else field.name: getattr(record, field.name)
        for field in fields(record)
        if field.name not in without
    }


def _no_such(scan_id: str) -> NoSuchPlan:
    return NoSuchPlan(
        f"No orphan scan {scan_id} is stored", untouched="everything", do="scan again: artemis orphans TABLE"
    )


def _refusal(record: ScanRecord, what: str, expected: Collection[ScanState]) -> PlanStateError:
    return PlanStateError(
        f"Scan {record.scan_id} {what}: it is {record.state}, and would have to be {' or '.join(sorted(expected))}",
        table=record.table,
        untouched="the scan and all files",
        do=f"scan again: artemis orphans {quote(record.table)}",
    )
