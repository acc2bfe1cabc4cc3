"""The progress of the rotation through each cold table's files, and the lost copies that it found."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, Index, func, text, update
from sqlalchemy.dialects.postgresql import insert

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import Count, Filled, Key, one, records, table_of


@dataclass(frozen=True)
class ScrubRecord:
    """The state of a rotation: every copy with a position on the ring below `position` was read since `began_at`.
    `files` and `bytes` were read in this rotation."""

    table_uuid: Key
    table: str
    position: int
    began_at: datetime
    files: Count
    bytes: Count
    updated_at: Filled


@dataclass(frozen=True)
class ColdLoss:
    """A cold copy that was missing or differed from its record when it was read. `settled_at`: it matches its record
    again."""

    table_uuid: Key
    table: str
    path: Key
    source: str
    reason: str
    found_at: Filled
    checked_at: Filled
    settled_at: datetime | None


cold_scrubs = table_of(ScrubRecord, "cold_scrubs")
cold_losses = table_of(
    ColdLoss, "cold_losses", Index("cold_losses_open", "table_uuid", postgresql_where=text("settled_at IS NULL"))
)


@dataclass(frozen=True)
class Found:
    """One copy that differed from its record: its cold path, the live path of the original, and what was wrong."""

    path: str
    source: str
    reason: str


class Scrubs:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def of_table(self, table_uuid: str) -> ScrubRecord | None:
        return one(self._engine, ScrubRecord, cold_scrubs.c.table_uuid == table_uuid)

    def last(self) -> dict[str, datetime]:
        """Return when cold copies of each table were last read, by its name."""
        found = records(self._engine, ScrubRecord, order_by=(cold_scrubs.c.updated_at,))
        return {each.table: each.updated_at for each in found}

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
        """Record that the rotation that began at `began_at` has read everything below `position`: the total files and
        bytes, and the copies that were found lost, or that match their records again (`settled`, by path)."""
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
        """Return the copies that are still lost, longest unchecked first."""
        still = (cold_losses.c.table_uuid == table_uuid, cold_losses.c.settled_at.is_(None))
        order = (cold_losses.c.checked_at, cold_losses.c.path)
        return list(records(self._engine, ColdLoss, *still, order_by=order, limit=limit))
