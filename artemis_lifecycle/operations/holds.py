"""Holds: named reasons to keep snapshots, or a whole table, whatever the retention rule says."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, func, insert, or_, select, update

from artemis_lifecycle.errors import BadInput, NaiveDatetime, NoSuchPlan
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.tables import holds, to_record


@dataclass(frozen=True)
class Hold:
    """`snapshot_ids` () is the whole table; `until` None is until it is released."""

    hold_id: str
    table_uuid: str
    table: str
    owner: str
    reason: str
    snapshot_ids: tuple[int, ...]
    created_at: datetime
    until: datetime | None
    released_at: datetime | None


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
        timeout: float = 30.0,
    ) -> Hold:
        """Place a hold, under the table's lock: no deletion batch is between its last look and its deletes.

        Raises Busy when that lock is not free within `timeout` seconds; NaiveDatetime, or BadInput for a past `until`.
        """
        if until is not None and until.tzinfo is None:
            raise NaiveDatetime(
                f"until={until.isoformat()} has no time zone",
                table=table,
                untouched="everything",
                do="pass an aware one",
            )
        with (
            table_lock(self._engine, table_uuid, timeout, table=table),
            around("holds.place"),
            self._engine.begin() as connection,
        ):
            row = connection.execute(
                insert(holds)
                .values(
                    hold_id=f"hold-{uuid.uuid4().hex}",
                    table_uuid=table_uuid,
                    table_name=table,
                    owner=owner,
                    reason=reason,
                    snapshot_ids=list(snapshot_ids),
                    until=until,
                )
                .returning(holds)
            ).one()
            hold = to_record(Hold, row)
            if until is not None and until <= hold.created_at:
                raise BadInput(
                    f"The hold would end at {until.isoformat()}, before it begins ({hold.created_at.isoformat()})",
                    table=table,
                    untouched="everything",
                    do="name a later instant, or none",
                )
        return hold

    def release(self, hold_id: str) -> Hold:
        """End a hold; releasing it again changes nothing. Raises NoSuchPlan."""
        with around("holds.release"), self._engine.begin() as connection:
            row = connection.execute(
                update(holds)
                .where(holds.c.hold_id == hold_id)
                .values(released_at=func.coalesce(holds.c.released_at, func.clock_timestamp()))
                .returning(holds)
            ).first()
        if row is None:
            raise _no_such(hold_id)
        return to_record(Hold, row)

    def get(self, hold_id: str) -> Hold:
        """Raises NoSuchPlan."""
        with self._engine.connect() as connection:
            row = connection.execute(select(holds).where(holds.c.hold_id == hold_id)).first()
        if row is None:
            raise _no_such(hold_id)
        return to_record(Hold, row)

    def active(self, table_uuid: str | None = None, now: datetime | None = None) -> tuple[Hold, ...]:
        """Holds in force, of one table or of all, oldest first.

        `now` can only lengthen them: of it and Postgres' clock the older one counts.
        """
        instant = func.clock_timestamp() if now is None else func.least(now, func.clock_timestamp())
        query = (
            select(holds)
            .where(holds.c.released_at.is_(None), or_(holds.c.until.is_(None), holds.c.until > instant))
            .order_by(holds.c.created_at, holds.c.hold_id)
        )
        if table_uuid is not None:
            query = query.where(holds.c.table_uuid == table_uuid)
        with self._engine.connect() as connection:
            return tuple(to_record(Hold, row) for row in connection.execute(query))


def _no_such(hold_id: str) -> NoSuchPlan:
    return NoSuchPlan(f"No hold {hold_id} is stored", untouched="everything", do="list holds with: artemis holds TABLE")
