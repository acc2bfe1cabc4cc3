"""The bytes of each tier of a table when its costs were last added up: the source of the fleet's cost per month."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import Key, put_newest, records, table_of


@dataclass(frozen=True)
class HeldBytes:
    """What the tiers of a table held at `measured_at`. `cold` and `deep_archive` are None for a table that was never
    handed off."""

    table_uuid: Key
    table: str
    measured_at: datetime
    live: int
    cold: int | None
    deep_archive: int | None


held_bytes = table_of(HeldBytes, "held_bytes")


class Held:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def note(self, record: HeldBytes) -> None:
        """Replace the table's record, unless that one is newer."""
        with around("held_bytes.note"), self._engine.begin() as connection:
            put_newest(connection, held_bytes, record, "measured_at")

    def by_table(self) -> dict[str, HeldBytes]:
        """Return the newest record of each table name."""
        return {each.table: each for each in records(self._engine, HeldBytes, order_by=(held_bytes.c.measured_at,))}
