"""The status of expiration plans. A plan's content is sealed elsewhere; this module has its state."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import date, datetime, timedelta
from enum import StrEnum
from shlex import quote
from typing import Annotated, Any, Literal, NoReturn

import sqlalchemy as sa

from artemis_lifecycle.errors import PlanStateError
from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision, change
from artemis_lifecycle.operations.locks import lock_row
from artemis_lifecycle.operations.roles import approving


class PlanStatus(StrEnum):
    OPEN = "open"
    SUPERSEDED = "superseded"
    HANDED_OFF = "handed_off"
    COMMITTED = "committed"
    DELETING = "deleting"
    DONE = "done"
    CLOSED = "closed"


UNCOMMITTED = frozenset({PlanStatus.OPEN, PlanStatus.HANDED_OFF})
"""At most one plan of a table has one of these."""

HOLDING = frozenset({PlanStatus.OPEN, PlanStatus.HANDED_OFF, PlanStatus.COMMITTED, PlanStatus.DELETING})
"""A plan with one of these protects its files from orphan scans and other deletions."""

ENDED = frozenset({PlanStatus.COMMITTED, PlanStatus.DELETING, PlanStatus.DONE, PlanStatus.CLOSED})
"""A plan with one of these can never be open again; a new plan with the same content needs another id."""


Approval = Literal["large", "lost"]
"""What a person allows a plan: to be larger than the table's guards permit, or to omit snapshots with missing files
from the cold tier. Neither implies the other."""

_APPROVALS: dict[Approval, str] = {"large": "approved", "lost": "lost_approved"}


@dataclass(frozen=True)
class PlanRecord:
    """One plan. `bytes` is the size of its files; `summary` is JSON text; `due_at` is when its files may be deleted.

    `swap_…` describe the commit that was started last: its base metadata file, and the `last-updated-ms` of the next
    metadata. `approved_…` is the approval of its size, `lost_approved_…` the approval of lost snapshots in the handoff:
    of those that were `lost_snapshots` then, which the last refused handoff named.

    `content_id` is the digest of the plan's content. `plan_id` differs from it if a plan with equal content has ended.

    From `forgetting_at` on, its frames are being deleted, and it can never be open again. At `forgotten_at` they are
    gone.
    """

    plan_id: db.Key
    content_id: str
    table_uuid: str
    table: str
    status: PlanStatus
    base_metadata_location: str
    files_location: str
    rule: str
    expired_snapshots: db.Count
    expired_refs: tuple[str, ...]
    files: db.Count
    bytes: db.Count
    summary: str
    planned_at: datetime
    superseded_by: str | None = None
    handed_off_at: datetime | None = None
    cold_metadata_location: str | None = None
    swap_base_location: str | None = None
    swap_updated_ms: int | None = None
    committed_at: datetime | None = None
    committed_metadata_location: str | None = None
    attempts: Annotated[int | None, {"type_": sa.Integer}] = None
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
    lost_snapshots: tuple[int, ...] | None = None
    lost_approved_snapshots: tuple[int, ...] | None = None
    window_day: date | None = None
    forgetting_at: datetime | None = None
    forgotten_at: datetime | None = None

    @property
    def is_approved(self) -> bool:
        """Whether a person approved it, for its size or for lost snapshots."""
        return self.approved_at is not None or self.lost_approved_at is not None


plan_order = sa.Sequence("plan_order", schema=db.SCHEMA, metadata=db.metadata)

plans = db.table_of(
    PlanRecord,
    "plans",
    sa.Column("sealed_at", db.Utc, nullable=False, server_default=db.CLOCK),
    # The order for newest first, because the caller's `now` may set planned_at back.
    sa.Column(
        "ordinal", sa.BigInteger, nullable=False, server_default=sa.func.nextval(f"{db.SCHEMA}.{plan_order.name}")
    ),
    sa.Index("plans_content", "content_id"),
    sa.Index("plans_of_table", "table_uuid", "ordinal"),
    sa.Index("plans_by_status", "status", "due_at"),
    sa.Index(
        "plans_one_uncommitted", "table_uuid", unique=True, postgresql_where=sa.text("status IN ('open', 'handed_off')")
    ),
)

_NEWEST = (plans.c.ordinal.desc(),)

_LATER = frozenset(field.name for field in fields(PlanRecord) if field.default is None) - {"window_day"}
"""Columns that are set during a plan's life."""

_MARKABLE = frozenset(
    {
        "handed_off_at",
        "cold_metadata_location",
        "committed_at",
        "committed_metadata_location",
        "attempts",
        "due_at",
        "done_at",
        "window_day",
        "summary",
    }
)

_STAMPS = {PlanStatus.HANDED_OFF: "handed_off_at", PlanStatus.COMMITTED: "committed_at", PlanStatus.DONE: "done_at"}


class Plans(db.Part):
    """Plans by id and by table. Every change is a compare-and-set on the status."""

    def seal(self, record: PlanRecord, *, stale: str | None = None) -> PlanRecord:
        """Store an open plan. The table's other uncommitted plan becomes superseded in the same transaction.

        An approved plan is superseded only if it is `stale`, the id of the plan that no longer fits its table.

        An id that is already uncommitted is returned unchanged. A superseded one becomes open again, without its
        earlier handoff and approval. Raises PlanStateError for an id that is committed or has ended, and if another
        plan was approved in the meantime.
        """
        with around("plans.seal"), self.engine.begin() as connection:
            # Serializes seals of one table; with only the partial unique index, the loser would fail instead of
            # waiting.
            lock_row(connection, f"plans:{record.table_uuid}")
            existing = db.one(connection, PlanRecord, plans.c.plan_id == record.plan_id, for_update=True)
            if existing is not None:
                is_over = existing.status in ENDED or existing.forgetting_at is not None
                if is_over or existing.table_uuid != record.table_uuid:
                    raise PlanStateError(
                        f"Plan {record.plan_id} is already stored, with status {existing.status}",
                        table=existing.table,
                        untouched="the stored plan",
                        hint="seal the new plan under another id",
                    )
                if existing.status in UNCOMMITTED:
                    return existing
            uncommitted = (plans.c.table_uuid == record.table_uuid, plans.c.status.in_(UNCOMMITTED))
            other = db.one(connection, PlanRecord, *uncommitted, for_update=True)
            if other is not None and other.is_approved and other.plan_id != stale:
                raise PlanStateError(
                    f"Plan {other.plan_id} is approved, and waits to be committed",
                    table=record.table,
                    untouched="the approved plan, the table and all files",
                    hint=f"first commit it, artemis commit {other.plan_id}, or close it, artemis close {other.plan_id}",
                )
            connection.execute(
                sa.update(plans).where(*uncommitted).values(status=PlanStatus.SUPERSEDED, superseded_by=record.plan_id)
            )
            values = {**db.values_of(record, without=_LATER), "status": PlanStatus.OPEN}
            if existing is None:
                return db.insert_record(connection, PlanRecord, **values)
            values |= dict.fromkeys(_LATER)
            now, ordinal = sa.func.clock_timestamp(), plan_order.next_value()
            mine = plans.c.plan_id == record.plan_id
            (sealed,) = db.update_records(connection, PlanRecord, mine, **values, sealed_at=now, ordinal=ordinal)
            return sealed

    def get(self, plan_id: str) -> PlanRecord:
        """Raises NoSuchPlan."""
        found = db.one(self.engine, PlanRecord, plans.c.plan_id == plan_id)
        return db.required(found, f"No plan {plan_id} is stored", "list plans with: artemis plans TABLE")

    def sealed_at(self, plan_id: str) -> datetime:
        """Return when the plan was stored, by the Postgres clock."""
        found: datetime = db.scalars(self.engine, sa.select(plans.c.sealed_at).where(plans.c.plan_id == plan_id))[0]
        return found

    def of_table(self, table_uuid: str, statuses: Collection[PlanStatus] = ()) -> tuple[PlanRecord, ...]:
        """Newest first; every status if none is given."""
        of_status = (plans.c.status.in_(statuses),) if statuses else ()
        return db.records(self.engine, PlanRecord, plans.c.table_uuid == table_uuid, *of_status, order_by=_NEWEST)

    def uncommitted(self, table_uuid: str) -> PlanRecord | None:
        """Return the table's open or handed-off plan; there is at most one."""
        return next(iter(self.of_table(table_uuid, UNCOMMITTED)), None)

    def all_uncommitted(self) -> tuple[PlanRecord, ...]:
        """Return the open or handed-off plans of all tables."""
        return db.records(self.engine, PlanRecord, plans.c.status.in_(UNCOMMITTED), order_by=_NEWEST)

    def due(self, now: datetime | None = None) -> tuple[PlanRecord, ...]:
        """Return committed and deleting plans whose grace is over, oldest due first.

        `now` can only delay that: the earlier of it and the Postgres clock counts.
        """
        instant = sa.func.clock_timestamp() if now is None else sa.func.least(now, sa.func.clock_timestamp())
        due = (plans.c.status.in_((PlanStatus.COMMITTED, PlanStatus.DELETING)), plans.c.due_at <= instant)
        return db.records(self.engine, PlanRecord, *due, order_by=(plans.c.due_at, plans.c.ordinal))

    def holding(self, table_uuid: str | None = None) -> tuple[PlanRecord, ...]:
        """Return the plans that protect their files, of one table or of all, newest first."""
        of_table = db.if_given(plans.c.table_uuid, table_uuid)
        return db.records(self.engine, PlanRecord, plans.c.status.in_(HOLDING), *of_table, order_by=_NEWEST)

    def generation(self, content_id: str) -> int:
        """Return how many plans with that content are committed, have ended or are forgotten."""
        is_over = sa.or_(plans.c.status.in_(ENDED), plans.c.forgetting_at.is_not(None))
        query = sa.select(sa.func.count()).where(plans.c.content_id == content_id, is_over)
        return int(db.scalars(self.engine, query)[0])

    def mark(
        self,
        plan_id: str,
        expected: Collection[PlanStatus],
        status: PlanStatus,
        *,
        due_in: timedelta | None = None,
        **values: str | int | datetime | date | None,
    ) -> PlanRecord:
        """Set the status if it is one of `expected`; `values` are columns to set with it.

        `due_in` sets `due_at` from the Postgres clock. The clock also sets `handed_off_at`, `committed_at` and
        `done_at` when their status is first reached, unless a value is given. Raises PlanStateError with the actual
        status; NoSuchPlan.
        """
        unknown = set(values) - _MARKABLE
        if unknown:
            raise TypeError(f"not to be set with a status: {', '.join(sorted(unknown))}")
        changes: dict[str, Any] = {"status": status, **values}
        if due_in is not None:
            changes["due_at"] = sa.func.clock_timestamp() + due_in
        stamp = _STAMPS.get(status)
        if stamp is not None and stamp not in values:
            changes[stamp] = sa.func.coalesce(plans.c[stamp], sa.func.clock_timestamp())
        mine = (plans.c.plan_id == plan_id, plans.c.status.in_(expected))
        changed = change(self.engine, f"plans.mark.{status}", PlanRecord, *mine, **changes)
        return changed or self._refuse(plan_id, f"cannot become {status}", expected)

    def begin_swap(self, plan_id: str, base_location: str, updated_ms: int) -> None:
        """Record, before the table's pointer is swapped, which metadata follows `base_location` if the swap succeeds.

        Raises PlanStateError if the plan was superseded or closed in the meantime; NoSuchPlan.
        """
        mine = (plans.c.plan_id == plan_id, plans.c.status.in_(UNCOMMITTED))
        changed = change(
            self.engine,
            "plans.begin_swap",
            PlanRecord,
            *mine,
            swap_base_location=base_location,
            swap_updated_ms=updated_ms,
        )
        if changed is None:
            self._refuse(plan_id, "cannot be committed", UNCOMMITTED)

    def approve(self, plan_id: str, who: str, why: str, what: Approval = "large") -> PlanRecord:
        """Let a plan pass one guard, and record who, when and why. The first approval counts, and of losses the first
        one of these; later ones are only added to the history of decisions.

        Raises PlanStateError if it is superseded or over; Refused for a login that may not approve; BadInput without a
        person or a reason; NoSuchPlan.
        """
        column = _APPROVALS[what]
        said = {f"{column}_by": who, f"{column}_why": why, f"{column}_at": sa.func.clock_timestamp()}
        first: sa.ColumnElement[bool] = plans.c[f"{column}_at"].is_(None)
        if what == "lost":
            first |= plans.c.lost_approved_snapshots.is_distinct_from(plans.c.lost_snapshots)
            said["lost_approved_snapshots"] = plans.c.lost_snapshots
        values = {name: sa.case((first, value), else_=plans.c[name]) for name, value in said.items()}
        mine = (plans.c.plan_id == plan_id, plans.c.status.in_(HOLDING))
        decision = NewDecision("approve-large" if what == "large" else "approve-lost", plan_id, who, why)
        with approving(plan_id):
            approved = change(self.engine, "plans.approve", PlanRecord, *mine, decision=decision, **values)
        return approved or self._refuse(plan_id, "cannot be approved", HOLDING)

    def name_lost(self, plan_id: str, snapshot_ids: Collection[int]) -> None:
        """Record which snapshots a refused handoff would have left out: the next approval is for these."""
        mine = (plans.c.plan_id == plan_id, plans.c.status.in_(UNCOMMITTED))
        change(self.engine, "plans.name_lost", PlanRecord, *mine, lost_snapshots=sorted(snapshot_ids))

    def close(self, plan_id: str, who: str, why: str) -> PlanRecord:
        """End a plan permanently; it no longer protects its files. Closing a closed plan changes nothing.

        Raises PlanStateError for one that is done; NoSuchPlan.
        """
        may_end = HOLDING | {PlanStatus.SUPERSEDED}
        closed = {"closed_by": who, "closed_why": why, "closed_at": sa.func.clock_timestamp()}
        ended = change(
            self.engine,
            "plans.close",
            PlanRecord,
            plans.c.plan_id == plan_id,
            plans.c.status.in_(may_end),
            decision=NewDecision("close", plan_id, who, why),
            status=PlanStatus.CLOSED,
            **closed,
        )
        if ended is None and (known := self.get(plan_id)).status is PlanStatus.CLOSED:
            return known
        return ended or self._refuse(plan_id, "cannot be closed", may_end)

    def _refuse(self, plan_id: str, what: str, expected: Collection[PlanStatus]) -> NoReturn:
        """Raise PlanStateError with the actual status; NoSuchPlan."""
        record = self.get(plan_id)
        by = f" by {record.superseded_by}" if record.status is PlanStatus.SUPERSEDED and record.superseded_by else ""
        wanted = " or ".join(sorted(status.replace("_", " ") for status in expected))
        raise PlanStateError(
            f"Plan {plan_id} {what}: it is {record.status.replace('_', ' ')}{by}, and would have to be {wanted}",
            table=record.table,
            untouched="the plan, the table and all files",
            hint=f"check its status with: artemis plans {quote(record.table)}",
        )


# --- verdicts ---------------------------------------------------------------------------------------------------------
# The results of the checks of expiration plans. Verdicts are append-only; the newest of each check counts.


@dataclass(frozen=True)
class VerdictRecord:
    """One result of one check of one plan; `detail` says what the check found."""

    verdict_id: db.Serial
    plan_id: str
    check_name: str
    passed: bool
    detail: str
    judged_at: db.Filled


verdicts = db.table_of(VerdictRecord, "verdicts", sa.Index("verdicts_of_plan", "plan_id", "verdict_id"))


class Verdicts(db.Part):
    def add(self, plan_id: str, check_name: str, detail: str, *, passed: bool) -> VerdictRecord:
        """Record one result; it counts from now on."""
        with around("verdicts.add"), self.engine.begin() as connection:
            return db.insert_record(
                connection, VerdictRecord, plan_id=plan_id, check_name=check_name, passed=passed, detail=detail
            )

    def newest(self, plan_id: str) -> dict[str, VerdictRecord]:
        """Return the newest result of each check of the plan, by check name."""
        found = db.records(self.engine, VerdictRecord, verdicts.c.plan_id == plan_id, order_by=(verdicts.c.verdict_id,))
        return {record.check_name: record for record in found}
