"""Who created which tag, when, why and for how long. Iceberg's own tags have no author, and count their age from their
snapshot. These records count from the tag's creation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from sqlalchemy import Engine, Index, func, select, text, update

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import CLOCK, Serial, insert_record, records, table_of, update_record


@dataclass(frozen=True)
class TagRecord:
    """`retain` None means forever. The newest record of a name is active, unless it is removed.

    `max_ref_age_ms` is the value written on the ref. If the ref has another value, another tool changed it, and this
    record does not apply. `who` and `created_at` are None if only the removal of a tag is known, which others had
    created.
    """

    tag_record_id: Serial
    table_uuid: str
    table: str
    name: str
    snapshot_id: int
    who: str | None
    why: str | None
    retain: timedelta | None
    max_ref_age_ms: int | None
    created_at: Annotated[datetime | None, {"server_default": CLOCK}]
    removed_at: datetime | None
    removed_by: str | None
    removed_why: str | None


tags = table_of(
    TagRecord,
    "tags",
    Index("tags_one_per_name", "table_uuid", "name", unique=True, postgresql_where=text("removed_at IS NULL")),
)

REPLACED = "replaced by a newer tag of that name"
NOT_MADE = "its commit failed"
MOVED = "moved to another snapshot by another tool"
"""Why records ended that no person removed."""


class Tags:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def record(
        self,
        table_uuid: str,
        table: str,
        name: str,
        snapshot_id: int,
        who: str,
        why: str | None = None,
        retain: timedelta | None = None,
        *,
        created_at: datetime | None = None,
        max_ref_age_ms: int | None = None,
    ) -> TagRecord:
        """Record that the tag was created (at the Postgres time if none is given). An active record under that name
        ends as replaced."""
        made = {} if created_at is None else {"created_at": created_at}
        with around("tags.record"), self._engine.begin() as connection:
            connection.execute(
                update(tags)
                .where(tags.c.table_uuid == table_uuid, tags.c.name == name, tags.c.removed_at.is_(None))
                .values(removed_at=func.clock_timestamp(), removed_by=who, removed_why=REPLACED)
            )
            return insert_record(
                connection,
                TagRecord,
                table_uuid=table_uuid,
                table=table,
                name=name,
                snapshot_id=snapshot_id,
                who=who,
                why=why,
                retain=retain,
                max_ref_age_ms=max_ref_age_ms,
                **made,
            )

    def withdraw(self, record: TagRecord) -> None:
        """Record that the tag of `record` was not created after all. The record that it replaced is active again."""
        mine = (tags.c.table_uuid == record.table_uuid, tags.c.name == record.name)
        with around("tags.withdraw"), self._engine.begin() as connection:
            gone = connection.execute(
                update(tags)
                .where(tags.c.tag_record_id == record.tag_record_id, tags.c.removed_at.is_(None))
                .values(removed_at=func.clock_timestamp(), removed_by=record.who, removed_why=NOT_MADE)
            )
            if not gone.rowcount:
                return
            former = connection.execute(
                select(tags)
                .where(*mine, tags.c.tag_record_id < record.tag_record_id)
                .order_by(tags.c.tag_record_id.desc())
            ).first()
            if former is not None and former.removed_why == REPLACED:
                connection.execute(
                    update(tags)
                    .where(tags.c.tag_record_id == former.tag_record_id)
                    .values(removed_at=None, removed_by=None, removed_why=None)
                )

    def removed(
        self, table_uuid: str, table: str, name: str, snapshot_id: int, who: str, why: str | None = None
    ) -> TagRecord:
        """Record that the tag was removed. If no record of it on that snapshot was active, others had created it; the
        removal is still recorded."""
        with around("tags.removed"), self._engine.begin() as connection:
            ended = {"removed_at": func.clock_timestamp(), "removed_by": who, "removed_why": why}
            mine = (tags.c.table_uuid == table_uuid, tags.c.name == name, tags.c.removed_at.is_(None))
            connection.execute(
                update(tags)
                .where(*mine, tags.c.snapshot_id != snapshot_id)
                .values(removed_at=func.clock_timestamp(), removed_why=MOVED)
            )
            removed = update_record(connection, TagRecord, *mine, tags.c.snapshot_id == snapshot_id, **ended)
            return removed or insert_record(
                connection,
                TagRecord,
                table_uuid=table_uuid,
                table=table,
                name=name,
                snapshot_id=snapshot_id,
                created_at=None,
                **ended,
            )

    def of_table(self, table_uuid: str, *, with_removed: bool = False) -> tuple[TagRecord, ...]:
        """Return active records, or all records ever made, oldest first."""
        in_force = () if with_removed else (tags.c.removed_at.is_(None),)
        mine = tags.c.table_uuid == table_uuid
        return records(self._engine, TagRecord, mine, *in_force, order_by=(tags.c.tag_record_id,))
