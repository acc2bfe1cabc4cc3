"""The locations that a table has had: a table owns what it wrote there, also after `ALTER TABLE … SET LOCATION`."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Engine, func, select
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import table_locations


class TableLocations:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def saw(self, table_uuid: str, locations: Iterable[str]) -> None:
        """Record locations (normal form) that the table has now. What is known already is not written again."""
        new = set(locations).difference(self.of_table(table_uuid))
        if not new:
            return
        rows = [{"table_uuid": table_uuid, "location": location} for location in sorted(new)]
        with around("table_locations.saw"), self._engine.begin() as connection:
            connection.execute(upsert(table_locations).values(rows).on_conflict_do_nothing())

    def of_table(self, table_uuid: str) -> tuple[str, ...]:
        """Every location that the table was seen to have, oldest first."""
        query = (
            select(table_locations.c.location)
            .where(table_locations.c.table_uuid == table_uuid, table_locations.c.first_seen <= func.clock_timestamp())
            .order_by(table_locations.c.first_seen, table_locations.c.location)
        )
        with self._engine.connect() as connection:
            return tuple(connection.execute(query).scalars())
