"""Orphan scans and their object listings: where they are sealed, and the state of each scan's deletion."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from shlex import quote
from typing import Annotated, Literal

import sqlalchemy as sa

from artemis_lifecycle.errors import PlanStateError
from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.decisions import NewDecision, change
from artemis_lifecycle.operations.roles import approving

ScanKind = Literal["orphans", "dropped"]


_PREFIX = "scan-"


def new_scan_id() -> str:
    return f"{_PREFIX}{uuid.uuid4().hex}"


def is_scan(job_id: str) -> bool:
    """Whether the id of a job is that of a scan, and not of a plan."""
    return job_id.startswith(_PREFIX)


class ScanState(StrEnum):
    OPEN = "open"
    DELETING = "deleting"
    DONE = "done"
    CLOSED = "closed"
    """By a person; or of a dropped table that was registered again."""


ENDED = (ScanState.DONE, ScanState.CLOSED)


@dataclass(frozen=True)
class ScanRecord:
    """One scan, for orphans or of a dropped table. `listed_at` is when its listing began; `metadata_read_at` is when
    the metadata was read, after the listing. `files` and `bytes` are the orphans; `summary` is JSON text; `listing_id`
    None means that the caller provided the listing. From `forgetting_at` on, its frames are being deleted, and its
    deletion can no longer begin; at `forgotten_at` they are gone."""

    scan_id: db.Key
    table_uuid: str
    table: str
    listing_id: str | None
    listed_at: datetime
    listing_finished_at: datetime
    metadata_location: str
    metadata_read_at: datetime
    files_location: str
    files: db.Count
    bytes: db.Count
    skipped_young: db.Count
    skipped_in_flight: db.Count
    summary: str
    state: ScanState = ScanState.OPEN
    created_at: db.FilledLater = None
    approved_by: str | None = None
    approved_at: datetime | None = None
    approved_why: str | None = None
    kind: Annotated[ScanKind, {"server_default": sa.text("'orphans'")}] = "orphans"
    forgetting_at: datetime | None = None
    forgotten_at: datetime | None = None

    @property
    def again(self) -> str:
        """What to do where it cannot be used."""
        return f"scan again: artemis scan-{self.kind} {quote(self.table)}"


scans = db.table_of(ScanRecord, "scans", sa.Index("scans_of_table", "table_uuid", "created_at"))

_LATER = frozenset({"created_at", "approved_by", "approved_at", "approved_why", "forgetting_at", "forgotten_at"})
_USABLE = scans.c.forgetting_at.is_(None)


@dataclass(frozen=True)
class ListingRecord:
    """One listing of every object under `location`; its rows are sealed at `files_location`."""

    listing_id: db.Key
    table_uuid: str
    table: str
    location: str
    files_location: str
    started_at: datetime
    finished_at: datetime
    files: db.Count
    bytes: db.Count


listings = db.table_of(
    ListingRecord,
    "listings",
    sa.Column("stored_at", db.Utc, nullable=False, server_default=db.CLOCK),
    sa.Index("listings_of_table", "table_uuid", "started_at"),
)


class Scans(db.Part):
    def store(self, record: ScanRecord) -> ScanRecord:
        """Store a scan as open; storing an id again returns what is stored."""
        values = {**db.values_of(record, without=_LATER), "state": ScanState.OPEN}
        db.write(self.engine, "scans.store", db.new(scans, values))
        return self.get(record.scan_id)

    def get(self, scan_id: str) -> ScanRecord:
        """Raises NoSuchPlan."""
        found = db.one(self.engine, ScanRecord, scans.c.scan_id == scan_id)
        return db.required(found, f"No orphan scan {scan_id} is stored", "scan again: artemis scan-orphans TABLE")

    def of_table(
        self, table_uuid: str, states: Collection[ScanState] = (), kind: ScanKind = "orphans"
    ) -> tuple[ScanRecord, ...]:
        """Newest first; every state if none is given."""
        of_kind = (scans.c.table_uuid == table_uuid, scans.c.kind == kind)
        in_state = (scans.c.state.in_(states),) if states else ()
        return db.records(self.engine, ScanRecord, *of_kind, *in_state, order_by=(scans.c.created_at.desc(),))

    def recent(self, limit: int = 5) -> dict[str, list[ScanRecord]]:
        """Return the newest orphan scans of every table, by table name, newest first."""
        known = sa.select(scans.c.table_uuid).distinct().subquery()
        # From the index of each table: scans are kept for good.
        newest = (
            sa.select(scans)
            .where(scans.c.table_uuid == known.c.table_uuid, scans.c.kind == "orphans")
            .order_by(scans.c.created_at.desc())
            .limit(limit)
            .lateral()
        )
        query = sa.select(newest).select_from(known.join(newest, sa.true())).order_by(newest.c.created_at.desc())
        found = (db.to_record(ScanRecord, row) for row in db.rows(self.engine, query))
        return db.grouped((each.table, each) for each in found)

    def mark(self, scan_id: str, expected: Collection[ScanState], state: ScanState) -> ScanRecord:
        """Set the state if it is one of `expected`. Raises PlanStateError with the actual one, and for a scan that is
        forgotten; NoSuchPlan."""
        mine = (scans.c.scan_id == scan_id, scans.c.state.in_(expected), _USABLE)
        changed = change(self.engine, f"scans.mark.{state}", ScanRecord, *mine, state=state)
        if changed is None:
            raise _refusal(self.get(scan_id), f"cannot become {state}", expected)
        return changed

    def close_dropped(self, table_uuid: str) -> None:
        """Close the scans of a dropped table that are not deleted yet: none of them can be approved or deleted."""
        mine = (scans.c.table_uuid == table_uuid, scans.c.kind == "dropped", scans.c.state.not_in(ENDED))
        db.write(self.engine, "scans.close_dropped", sa.update(scans).where(*mine).values(state=ScanState.CLOSED))

    def close(self, scan_id: str, who: str, why: str) -> ScanRecord:
        """End a scan that is not deleted yet, or only in part. Closing a closed one changes nothing. Raises
        PlanStateError for one that is done; NoSuchPlan."""
        mine = (scans.c.scan_id == scan_id, scans.c.state.not_in(ENDED))
        decision = NewDecision("close", scan_id, who, why)
        ended = change(self.engine, "scans.close", ScanRecord, *mine, decision=decision, state=ScanState.CLOSED)
        if ended is None and (known := self.get(scan_id)).state is not ScanState.CLOSED:
            raise _refusal(known, "cannot be closed", (ScanState.OPEN, ScanState.DELETING))
        return ended or known

    def approve(self, scan_id: str, who: str, why: str) -> ScanRecord:
        """Allow the deletion of a scan above its table's guards. The first approval counts; later ones are only added
        to the history of decisions. Raises PlanStateError if it is done or forgotten; Refused for a login that may not
        approve; BadInput without a person or a reason; NoSuchPlan."""
        said = {"approved_by": who, "approved_why": why, "approved_at": sa.func.clock_timestamp()}
        first = scans.c.approved_at.is_(None)
        values = {name: sa.case((first, value), else_=scans.c[name]) for name, value in said.items()}
        mine = (scans.c.scan_id == scan_id, scans.c.state.not_in(ENDED), _USABLE)
        with approving(scan_id):
            decision = NewDecision("approve-scan", scan_id, who, why)
            approved = change(self.engine, "scans.approve", ScanRecord, *mine, decision=decision, **values)
        if approved is None:
            raise _refusal(self.get(scan_id), "cannot be approved", (ScanState.OPEN, ScanState.DELETING))
        return approved

    def store_listing(self, record: ListingRecord) -> ListingRecord:
        """Store a finished listing; storing an id again returns what is stored."""
        db.write(self.engine, "scans.store_listing", db.new(listings, db.values_of(record)))
        return self.listing(record.listing_id)

    def listing(self, listing_id: str) -> ListingRecord:
        """Raises NoSuchPlan."""
        found = db.one(self.engine, ListingRecord, listings.c.listing_id == listing_id)
        return db.required(found, f"No listing {listing_id} is stored", "list the table again")

    def latest_listing(self, table_uuid: str) -> ListingRecord | None:
        """Return the listing that began last."""
        newest = (listings.c.started_at.desc(), listings.c.stored_at.desc())
        mine = listings.c.table_uuid == table_uuid
        return next(iter(db.records(self.engine, ListingRecord, mine, order_by=newest, limit=1)), None)


def _refusal(record: ScanRecord, what: str, expected: Collection[ScanState]) -> PlanStateError:
    why = f"it is {record.state}, and would have to be {' or '.join(sorted(expected))}"
    if record.forgetting_at is not None:
        why = f"its list was deleted on {record.forgetting_at:%Y-%m-%d}, after `records.keep`"
    return PlanStateError(
        f"Scan {record.scan_id} {what}: {why}",
        table=record.table,
        untouched="the scan and all files",
        hint=record.again,
    )
