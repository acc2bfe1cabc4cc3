"""How far the rotation through each cold table's files is, and the copies that it found lost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, func, select, update
from sqlalchemy.dialects.postgresql import insert

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import cold_losses, cold_scrubs, to_record


@dataclass(frozen=True)
class ScrubRecord:
    """Where a rotation stands: every copy whose place on the ring is below `position` was read since `began_at`.
    `files` and `bytes` were read in this rotation."""

    table_uuid: str
    table: str
    position: int
    began_at: datetime
    files: int
    bytes: int
    updated_at: datetime


@dataclass(frozen=True)
class ColdLoss:
    """A cold copy that was gone or not as recorded when it was read; `settled_at`: it is as recorded again."""

    table_uuid: str
    table: str
    path: str
    source: str
    reason: str
    found_at: datetime
    checked_at: datetime
    settled_at: datetime | None


@dataclass(frozen=True)
class Found:
    """One copy that was not as recorded: its cold path, the live path that it is a copy of, and what was wrong."""

    path: str
    source: str
    reason: str


class Scrubs:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def of_table(self, table_uuid: str) -> ScrubRecord | None:
        with self._engine.connect() as connection:
            row = connection.execute(select(cold_scrubs).where(cold_scrubs.c.table_uuid == table_uuid)).first()
        return None if row is None else to_record(ScrubRecord, row)

    def moved(
        self,
        table_uuid: str,
        table: str,
        position: int,
        began_at: datetime,
        *,
        files: int,
        size_in_bytes: int,
        lost: Sequence[Found] = (),
        settled: Collection[str] = (),
    ) -> None:
        """Record that the rotation that began then has read all below `position`: so many files and bytes in all, and
        what was found lost, or as recorded again (`settled`, by path), on the way."""
        values = {"position": position, "began_at": began_at, "files": files, "bytes": size_in_bytes}
        now = func.clock_timestamp()
        with around("scrubs.moved"), self._engine.begin() as connection:
            connection.execute(
                insert(cold_scrubs)
                .values(table_uuid=table_uuid, table_name=table, **values)
                .on_conflict_do_update(
                    index_elements=["table_uuid"], set_={"table_name": table, "updated_at": now, **values}
                )
            )
            for found in lost:
                row = {"table_name": table, "source": found.source, "reason": found.reason}
                connection.execute(
                    insert(cold_losses)
                    .values(table_uuid=table_uuid, path=found.path, **row)
                    .on_conflict_do_update(
                        index_elements=["table_uuid", "path"],
                        set_={**row, "checked_at": now, "settled_at": None},
                    )
                )
            if settled:
                connection.execute(
                    update(cold_losses)
                    .where(
                        cold_losses.c.table_uuid == table_uuid,
                        cold_losses.c.path.in_(settled),
                        cold_losses.c.settled_at.is_(None),
                    )
                    .values(settled_at=now, checked_at=now)
                )

    def losses(self, table_uuid: str, limit: int | None = None) -> list[ColdLoss]:
        """The copies that are lost still, those first that were checked longest ago."""
        query = (
            select(cold_losses)
            .where(cold_losses.c.table_uuid == table_uuid, cold_losses.c.settled_at.is_(None))
            .order_by(cold_losses.c.checked_at, cold_losses.c.path)
            .limit(limit)
        )
        with self._engine.connect() as connection:
            return [to_record(ColdLoss, row) for row in connection.execute(query)]
