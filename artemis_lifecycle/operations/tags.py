"""Who made which tag, when, why and for how long. Iceberg's own tags have no author and count their age from their
snapshot; these records count from the tag's creation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Engine, func, insert, select, update

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import tags, to_record


@dataclass(frozen=True)
class TagRecord:
    """`retain` None is for ever. The newest record of a name is the one in force, unless it is removed."""

    tag_record_id: int
    table_uuid: str
    table: str
    name: str
    snapshot_id: int
    who: str
    why: str | None
    retain: timedelta | None
    created_at: datetime
    removed_at: datetime | None
    removed_by: str | None
    removed_why: str | None


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
    ) -> TagRecord:
        """Write that the tag was made; a record in force under that name ends as replaced."""
        with around("tags.record"), self._engine.begin() as connection:
            connection.execute(
                update(tags)
                .where(tags.c.table_uuid == table_uuid, tags.c.name == name, tags.c.removed_at.is_(None))
                .values(removed_at=func.clock_timestamp(), removed_by=who, removed_why="replaced")
            )
            row = connection.execute(
                insert(tags)
                .values(
                    table_uuid=table_uuid,
                    table_name=table,
                    name=name,
                    snapshot_id=snapshot_id,
                    who=who,
                    why=why,
                    retain=retain,
                )
                .returning(tags)
            ).one()
        return to_record(TagRecord, row)

    def removed(self, table_uuid: str, name: str, who: str, why: str | None = None) -> TagRecord | None:
        """Write that the tag was removed; None when no record of it was in force."""
        with around("tags.removed"), self._engine.begin() as connection:
            row = connection.execute(
                update(tags)
                .where(tags.c.table_uuid == table_uuid, tags.c.name == name, tags.c.removed_at.is_(None))
                .values(removed_at=func.clock_timestamp(), removed_by=who, removed_why=why)
                .returning(tags)
            ).first()
        return None if row is None else to_record(TagRecord, row)

    def of_table(self, table_uuid: str, *, with_removed: bool = False) -> tuple[TagRecord, ...]:
        """Records in force, or all there ever were, oldest first."""
        query = select(tags).where(tags.c.table_uuid == table_uuid).order_by(tags.c.tag_record_id)
        if not with_removed:
            query = query.where(tags.c.removed_at.is_(None))
        with self._engine.connect() as connection:
            return tuple(to_record(TagRecord, row) for row in connection.execute(query))
