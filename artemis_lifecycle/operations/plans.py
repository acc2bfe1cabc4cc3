"""The status of expiration plans. What a plan contains is sealed elsewhere; here is where it stands in its life."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import StrEnum
from shlex import quote
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Engine, Row, case, func, insert, select, update

from artemis_lifecycle.errors import NoSuchPlan, PlanStateError
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision
from artemis_lifecycle.operations.locks import lock_row
from artemis_lifecycle.operations.roles import approving
from artemis_lifecycle.operations.tables import plan_order, plans, to_record


class PlanStatus(StrEnum):
    OPEN = "open"
    SUPERSEDED = "superseded"
    HANDED_OFF = "handed_off"
    COMMITTED = "committed"
    DELETING = "deleting"
    DONE = "done"
    CLOSED = "closed"


UNCOMMITTED = frozenset({PlanStatus.OPEN, PlanStatus.HANDED_OFF})
"""At most one plan of a table is in one of these."""

HOLDING = frozenset({PlanStatus.OPEN, PlanStatus.HANDED_OFF, PlanStatus.COMMITTED, PlanStatus.DELETING})
"""A plan in one of these holds its files against the orphan scan and other deleters."""

ENDED = frozenset({PlanStatus.COMMITTED, PlanStatus.DELETING, PlanStatus.DONE, PlanStatus.CLOSED})
"""A plan in one of these can never be open again; the same content needs another id."""


Approval = Literal["large", "lost"]
"""What a person lets a plan do: be larger than the table's guards allow; or leave snapshots out of the cold tier whose
files are gone. Neither allows the other."""

_APPROVALS: dict[Approval, str] = {"large": "approved", "lost": "lost_approved"}


@dataclass(frozen=True)
class PlanRecord:
    """One plan. `bytes` is the size of its files; `summary` is JSON text; `due_at` is when its files may be deleted.

    `swap_…` say which commit was begun last: its base metadata file, and the `last-updated-ms` of what was to follow.
    `approved_…` is who let it be large, `lost_approved_…` who let it lose snapshots in the handoff.

    `content_id` is the digest of what the plan says; `plan_id` differs from it when a plan of equal content has ended.
    """

    plan_id: str
    content_id: str
    table_uuid: str
    table: str
    status: PlanStatus
    base_metadata_location: str
    files_location: str
    rule: str
    expired_snapshots: int
    expired_refs: tuple[str, ...]
    files: int
    bytes: int
    summary: str
    planned_at: datetime
    superseded_by: str | None = None
    handed_off_at: datetime | None = None
    cold_metadata_location: str | None = None
    swap_base_location: str | None = None
    swap_updated_ms: int | None = None
    committed_at: datetime | None = None
    committed_metadata_location: str | None = None
    attempts: int | None = None
    due_at: datetime | None = None
    done_at: datetime | None = None
    closed_at: datetime | None = None
    closed_by: str | None = None
    closed_why: str | None = None
    approved_by: str | None = None
    approved_at: datetime | None = None
    approved_why: str | None = None
    lost_approved_by: str | None = None
    lost_approved_at: datetime | None = None
    lost_approved_why: str | None = None
    night: date | None = None


_MARKABLE = frozenset(
    {
        "handed_off_at",
        "cold_metadata_location",
        "committed_at",
        "committed_metadata_location",
        "attempts",
        "due_at",
        "done_at",
        "night",
        "summary",
    }
)

_STAMPS = {
    PlanStatus.HANDED_OFF: "handed_off_at",
    PlanStatus.COMMITTED: "committed_at",
    PlanStatus.DONE: "done_at",
}


def _unless_said(column: str, name: str, value: object) -> ColumnElement[Any]:
    """`value`, or what the first approval left."""
    return case((plans.c[f"{column}_at"].is_(None), value), else_=plans.c[f"{column}_{name}"])


def _record(row: Row[Any]) -> PlanRecord:
    record = to_record(PlanRecord, row)
    return replace(record, status=PlanStatus(record.status))


class Plans:
    """Plans by id and by table. Every change is a compare-and-set on the status."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def seal(self, record: PlanRecord) -> PlanRecord:
        """Store an open plan; the table's other uncommitted plan becomes superseded in the same transaction.

        Sealing an id that is uncommitted already returns it as it stands; a superseded one is open again, without what
        its former life left (handoff, approval). Raises PlanStateError for an id that is committed or has ended.
        """
        with around("plans.seal"), self._engine.begin() as connection:
            # Serialises seals of one table; the partial unique index would make the loser fail rather than wait.
            lock_row(connection, f"plans:{record.table_uuid}")
            known = connection.execute(select(plans).where(plans.c.plan_id == record.plan_id).with_for_update()).first()
            if known is not None:
                existing = _record(known)
                if existing.status in ENDED or existing.table_uuid != record.table_uuid:
                    raise PlanStateError(
                        f"Plan {record.plan_id} is stored already and is {existing.status}",
                        table=existing.table,
                        untouched="the stored plan",
                        do="seal the new plan under another id",
                    )
                if existing.status in UNCOMMITTED:
                    return existing
            connection.execute(
                update(plans)
                .where(plans.c.table_uuid == record.table_uuid, plans.c.status.in_(UNCOMMITTED))
                .values(status=PlanStatus.SUPERSEDED, superseded_by=record.plan_id)
            )
            values = {
                "content_id": record.content_id,
                "table_uuid": record.table_uuid,
                "table_name": record.table,
                "status": PlanStatus.OPEN,
                "base_metadata_location": record.base_metadata_location,
                "files_location": record.files_location,
                "rule": record.rule,
                "expired_snapshots": record.expired_snapshots,
                "expired_refs": list(record.expired_refs),
                "files": record.files,
                "bytes": record.bytes,
                "summary": record.summary,
                "planned_at": record.planned_at,
                "night": record.night,
            }
            if known is None:
                row = connection.execute(insert(plans).values(plan_id=record.plan_id, **values).returning(plans)).one()
            else:
                former_life = (
                    "superseded_by",
                    "handed_off_at",
                    "cold_metadata_location",
                    "swap_base_location",
                    "swap_updated_ms",
                    "approved_by",
                    "approved_at",
                    "approved_why",
                    "lost_approved_by",
                    "lost_approved_at",
                    "lost_approved_why",
                )
                row = connection.execute(
                    update(plans)
                    .where(plans.c.plan_id == record.plan_id)
                    .values(
                        **values,
                        **dict.fromkeys(former_life),
                        sealed_at=func.clock_timestamp(),
                        ordinal=plan_order.next_value(),
                    )
                    .returning(plans)
                ).one()
        return _record(row)

    def get(self, plan_id: str) -> PlanRecord:
        """Raises NoSuchPlan."""
        with self._engine.connect() as connection:
            row = connection.execute(select(plans).where(plans.c.plan_id == plan_id)).first()
        if row is None:
            raise _no_such(plan_id)
        return _record(row)

    def of_table(self, table_uuid: str, statuses: Collection[PlanStatus] = ()) -> tuple[PlanRecord, ...]:
        """Newest first; every status when none is named."""
        query = select(plans).where(plans.c.table_uuid == table_uuid).order_by(plans.c.ordinal.desc())
        if statuses:
            query = query.where(plans.c.status.in_(statuses))
        with self._engine.connect() as connection:
            return tuple(map(_record, connection.execute(query)))

    def uncommitted(self, table_uuid: str) -> PlanRecord | None:
        """The table's open or handed-off plan; there is one at most."""
        return next(iter(self.of_table(table_uuid, UNCOMMITTED)), None)

    def due(self, now: datetime | None = None) -> tuple[PlanRecord, ...]:
        """Committed and deleting plans whose grace is over, oldest due first.

        `now` can only make that later: of it and Postgres' clock the older one counts.
        """
        instant = func.clock_timestamp() if now is None else func.least(now, func.clock_timestamp())
        query = (
            select(plans)
            .where(plans.c.status.in_((PlanStatus.COMMITTED, PlanStatus.DELETING)), plans.c.due_at <= instant)
            .order_by(plans.c.due_at, plans.c.ordinal)
        )
        with self._engine.connect() as connection:
            return tuple(map(_record, connection.execute(query)))

    def holding(self, table_uuid: str | None = None) -> tuple[PlanRecord, ...]:
        """The plans that hold their files, of one table or of all, newest first."""
        query = select(plans).where(plans.c.status.in_(HOLDING)).order_by(plans.c.ordinal.desc())
        if table_uuid is not None:
            query = query.where(plans.c.table_uuid == table_uuid)
        with self._engine.connect() as connection:
            return tuple(map(_record, connection.execute(query)))

    def generation(self, content_id: str) -> int:
        """How many plans of that content are committed or have ended."""
        query = select(func.count()).where(plans.c.content_id == content_id, plans.c.status.in_(ENDED))
        with self._engine.connect() as connection:
            return int(connection.execute(query).scalar_one())

    def mark(
        self,
        plan_id: str,
        expected: Collection[PlanStatus],
        status: PlanStatus,
        *,
        due_in: timedelta | None = None,
        **values: str | int | datetime | date | None,
    ) -> PlanRecord:
        """Set the status if it is one of `expected`; `values` are columns of the record that come with it.

        `due_in` sets `due_at` from Postgres' clock. `handed_off_at`, `committed_at` and `done_at` are stamped by it too
        when their status is reached for the first time and no value is given. Raises PlanStateError, naming the actual
        status; NoSuchPlan.
        """
        unknown = set(values) - _MARKABLE
        if unknown:
            raise TypeError(f"not to be set with a status: {', '.join(sorted(unknown))}")
        changes: dict[str, Any] = {"status": status, **values}
        if due_in is not None:
            changes["due_at"] = func.clock_timestamp() + due_in
        stamp = _STAMPS.get(status)
        if stamp is not None and stamp not in values:
            changes[stamp] = func.coalesce(plans.c[stamp], func.clock_timestamp())
        with around(f"plans.mark.{status}"), self._engine.begin() as connection:
            row = connection.execute(
                update(plans)
                .where(plans.c.plan_id == plan_id, plans.c.status.in_(expected))
                .values(**changes)
                .returning(plans)
            ).first()
            if row is None:
                raise self._refusal(connection, plan_id, f"cannot become {status}", expected)
        return _record(row)

    def begin_swap(self, plan_id: str, base_location: str, updated_ms: int) -> None:
        """Record, before the table's pointer is swapped, which metadata will follow `base_location` if it succeeds.

        Raises PlanStateError when the plan was superseded or closed meanwhile; NoSuchPlan.
        """
        with around("plans.begin_swap"), self._engine.begin() as connection:
            row = connection.execute(
                update(plans)
                .where(plans.c.plan_id == plan_id, plans.c.status.in_(UNCOMMITTED))
                .values(swap_base_location=base_location, swap_updated_ms=updated_ms)
                .returning(plans.c.plan_id)
            ).first()
            if row is None:
                raise self._refusal(connection, plan_id, "cannot be committed", UNCOMMITTED)

    def approve(self, plan_id: str, who: str, why: str, what: Approval = "large") -> PlanRecord:
        """Let a plan pass one guard; who, when and why are kept. The first approval stands; one more is only added to
        the history of decisions.

        Raises PlanStateError when it is superseded or over; Refused for a login that may not approve; BadInput where
        nobody is named, or no reason; NoSuchPlan.
        """
        column = _APPROVALS[what]
        said = {"by": who, "why": why, "at": func.clock_timestamp()}
        with approving(plan_id), around("plans.approve"), self._engine.begin() as connection:
            row = connection.execute(
                update(plans)
                .where(plans.c.plan_id == plan_id, plans.c.status.in_(HOLDING))
                .values({f"{column}_{name}": _unless_said(column, name, value) for name, value in said.items()})
                .returning(plans)
            ).first()
            if row is None:
                raise self._refusal(connection, plan_id, "cannot be approved", HOLDING)
            record = _record(row)
            kind: Literal["approve-large", "approve-lost"] = "approve-large" if what == "large" else "approve-lost"
            NewDecision(kind, who, why).record(connection, plan_id, record)
        return record

    def close(self, plan_id: str, who: str, why: str) -> PlanRecord:
        """End a plan for good; it no longer holds its files. Closing a closed plan changes nothing.

        Raises PlanStateError for one that is done; NoSuchPlan.
        """
        with around("plans.close"), self._engine.begin() as connection:
            row = connection.execute(
                update(plans)
                .where(
                    plans.c.plan_id == plan_id,
                    plans.c.status.in_(HOLDING | {PlanStatus.SUPERSEDED}),
                )
                .values(status=PlanStatus.CLOSED, closed_by=who, closed_why=why, closed_at=func.clock_timestamp())
                .returning(plans)
            ).first()
            if row is not None:
                NewDecision("close", who, why).record(connection, plan_id, _record(row))
            else:
                row = connection.execute(
                    select(plans).where(plans.c.plan_id == plan_id, plans.c.status == PlanStatus.CLOSED)
                ).first()
            if row is None:
                raise self._refusal(connection, plan_id, "cannot be closed", HOLDING | {PlanStatus.SUPERSEDED})
        return _record(row)

    @staticmethod
    def _refusal(
        connection: Connection, plan_id: str, what: str, expected: Collection[PlanStatus]
    ) -> NoSuchPlan | PlanStateError:
        row = connection.execute(select(plans).where(plans.c.plan_id == plan_id)).first()
        if row is None:
            return _no_such(plan_id)
        record = _record(row)
        by = f" by {record.superseded_by}" if record.status is PlanStatus.SUPERSEDED and record.superseded_by else ""
        wanted = " or ".join(sorted(status.replace("_", " ") for status in expected))
        return PlanStateError(
            f"Plan {plan_id} {what}: it is {record.status.replace('_', ' ')}{by}, and would have to be {wanted}",
            table=record.table,
            untouched="the plan, the table and all files",
            do=f"see where it stands with: artemis plans {quote(record.table)}",
        )


def _no_such(plan_id: str) -> NoSuchPlan:
    return NoSuchPlan(f"No plan {plan_id} is stored", untouched="everything", do="list plans with: artemis plans TABLE")
