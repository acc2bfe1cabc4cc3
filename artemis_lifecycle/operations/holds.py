"""Holds: recorded reasons to keep snapshots, or a whole table, regardless of the retention rule."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from shlex import quote
from typing import Annotated, Any, Literal

from sqlalchemy import ColumnElement, Engine, Index, func, or_, text

from artemis_lifecycle.errors import BadInput, NaiveDatetime, Refused
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision, change
from artemis_lifecycle.operations.locks import busy_after
from artemis_lifecycle.operations.tables import Filled, Key, if_given, insert_record, one, records, required, table_of
from artemis_lifecycle.operations.texts import require_said

HoldKind = Literal["legal", "lease", "consumer"]


@dataclass(frozen=True)
class Hold:
    """`snapshot_ids` () means the whole table; `until` None means until it is released.

    A `legal` hold keeps its snapshots. So does a reader's `lease`, which ends unless it is renewed. A `consumer` has
    read up to its one snapshot, and keeps that and every later one.
    """

    hold_id: Key
    table_uuid: str
    table: str
    kind: Annotated[HoldKind, {"server_default": text("'legal'")}]
    owner: str
    reason: str
    snapshot_ids: tuple[int, ...]
    created_at: Filled
    until: datetime | None
    released_at: datetime | None
    released_by: str | None = None
    released_why: str | None = None


holds = table_of(Hold, "holds", Index("holds_of_table", "table_uuid"))

_OLDEST = (holds.c.created_at, holds.c.hold_id)


class Holds:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def place(
        self,
        table_uuid: str,
        table: str,
        owner: str,
        reason: str,
        snapshot_ids: tuple[int, ...] = (),
        until: datetime | None = None,
        *,
        kind: HoldKind = "legal",
        ttl: timedelta | None = None,
        timeout: float = 30.0,
    ) -> Hold:
        """Place a hold under the table's lock (a trigger takes it), so that no deletion batch is between its last check
        and its deletes.

        `ttl` counts by the Postgres clock, and replaces `until`. Raises Busy if that lock is not free within `timeout`
        seconds; NaiveDatetime; BadInput for a past `until`, a lease without an end, a consumer without one position.
        """
        require_said(table, owner=owner, reason=reason)
        _require_sense(kind, table, snapshot_ids, until, ttl)
        if until is not None and until.tzinfo is None:
            raise NaiveDatetime(
                f"until={until.isoformat()} has no time zone",
                table=table,
                hint="pass an aware datetime",
            )
        with (
            around("holds.place"),
            self._engine.begin() as connection,
            busy_after(connection, timeout, table_uuid, table),
        ):
            hold = insert_record(
                connection,
                Hold,
                hold_id=f"hold-{uuid.uuid4().hex}",
                table_uuid=table_uuid,
                table=table,
                owner=owner,
                reason=reason,
                snapshot_ids=list(snapshot_ids),
                kind=kind,
                until=until if ttl is None else func.clock_timestamp() + ttl,
            )
            if kind == "legal":
                NewDecision("hold", hold.hold_id, owner, reason).record(connection, hold)
            if until is not None and until <= hold.created_at:
                raise BadInput(
                    f"The hold would end at {until.isoformat()}, before it begins ({hold.created_at.isoformat()})",
                    table=table,
                    hint="use a later instant, or none",
                )
        return hold

    def release(self, hold_id: str, who: str, why: str | None = None) -> Hold:
        """End a hold; releasing it again changes nothing. Raises NoSuchPlan; BadInput for a `who` without content."""
        hold = self.get(hold_id)
        require_said(hold.table, who=who)
        decision = NewDecision("release", hold_id, who, why) if hold.kind == "legal" else None
        released = {"released_at": func.clock_timestamp(), "released_by": who, "released_why": why}
        open_one = (holds.c.hold_id == hold_id, holds.c.released_at.is_(None))
        ended = change(self._engine, "holds.release", Hold, *open_one, decision=decision, **released)
        return ended or self.get(hold_id)

    def renew(self, hold_id: str, ttl: timedelta) -> Hold:
        """Extend a reader's lease until `ttl` from now; never shorten it.

        Raises BadInput for another kind, Refused if it has ended, because what it kept may be gone. Raises NoSuchPlan.
        """
        until = func.greatest(holds.c.until, func.clock_timestamp() + ttl)
        return self._alter(hold_id, "lease", {"until": until}, "a lease that has ended cannot be renewed")

    def advance(self, hold_id: str, snapshot_id: int) -> Hold:
        """Move a consumer's position to `snapshot_id`, which it has not read yet. The caller checks that it is later.

        Raises BadInput for another kind, Refused if it has ended, NoSuchPlan.
        """
        return self._alter(hold_id, "consumer", {"snapshot_ids": [snapshot_id]}, "its position can no longer move")

    def _alter(self, hold_id: str, kind: HoldKind, values: dict[str, Any], refusal: str) -> Hold:
        one_of_kind = (holds.c.hold_id == hold_id, holds.c.kind == kind)
        changed = change(self._engine, "holds.alter", Hold, *one_of_kind, *_in_force(func.clock_timestamp()), **values)
        if changed is not None:
            return changed
        hold = self.get(hold_id)
        if hold.kind != kind:
            raise BadInput(
                f"Hold {hold_id} is of kind {hold.kind}, not {kind}",
                table=hold.table,
                untouched="the hold",
                hint=f"list holds with: artemis holds {quote(hold.table)}",
            )
        raise Refused(
            f"Hold {hold_id} of {hold.owner} has ended: {refusal}",
            table=hold.table,
            untouched="the hold",
            hint="place a new one, on snapshots that the table still has",
        )

    def get(self, hold_id: str) -> Hold:
        """Raises NoSuchPlan."""
        found = one(self._engine, Hold, holds.c.hold_id == hold_id)
        return required(found, f"No hold {hold_id} is stored", "list holds with: artemis holds TABLE")

    def of_table(self, table_uuid: str) -> tuple[Hold, ...]:
        """Return all holds that a table ever had, oldest first."""
        return records(self._engine, Hold, holds.c.table_uuid == table_uuid, order_by=_OLDEST)

    def active(self, table_uuid: str | None = None, now: datetime | None = None) -> tuple[Hold, ...]:
        """Return active holds, of one table or of all, oldest first.

        `now` can only extend them: the earlier of it and the Postgres clock counts.
        """
        instant = func.clock_timestamp() if now is None else func.least(now, func.clock_timestamp())
        of_table = if_given(holds.c.table_uuid, table_uuid)
        return records(self._engine, Hold, *_in_force(instant), *of_table, order_by=_OLDEST)


def _in_force(instant: ColumnElement[datetime]) -> tuple[ColumnElement[bool], ...]:
    return holds.c.released_at.is_(None), or_(holds.c.until.is_(None), holds.c.until > instant)


def _require_sense(
    kind: HoldKind, table: str, snapshot_ids: tuple[int, ...], until: datetime | None, ttl: timedelta | None
) -> None:
    problem = None
    if until is not None and ttl is not None:
        problem = ("The hold has two ends, an instant and a time to live", "use one of them")
    elif ttl is not None and ttl <= timedelta(0):
        problem = ("A time to live of zero holds nothing", "use a duration such as 2h")
    elif kind == "lease" and until is None and ttl is None:
        problem = ("A reader's lease must end by itself, when its reader dies", "set a time to live (--ttl 2h)")
    elif kind == "consumer" and len(snapshot_ids) != 1:
        problem = ("A consumer has one position", "choose the one snapshot that it reads next")
    if problem is not None:
        raise BadInput(problem[0], table=table, hint=problem[1])
