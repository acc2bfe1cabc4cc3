"""The health of each table: its figures when they were last measured, and its score over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import Key, one, put_newest, records, table_of, values_of


@dataclass(frozen=True)
class HealthRecord:
    """The figures of `maintenance.health.TableHealth` as of `metadata_location`, and the score at `scored_at`. Those
    that ask for a compaction have columns; `figures` has the others by name."""

    table_uuid: Key
    table: str
    metadata_location: str
    measured_at: datetime
    scored_at: datetime
    score: float
    data_files: int
    rewritable_files: int
    delete_files: int
    manifests: int
    manifest_bytes: int
    fewest_manifests: int
    target_manifest_bytes: int
    figures: Mapping[str, int]


@dataclass(frozen=True)
class HealthPoint:
    """The score of a table at one time, and those of its parts by name; unknown ones are None."""

    table_uuid: Key
    scored_at: Annotated[datetime, {"primary_key": True}]
    score: float
    parts: Mapping[str, float | None]


health = table_of(HealthRecord, "health")
health_history = table_of(HealthPoint, "health_history")


class Health:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def note(self, record: HealthRecord, parts: Mapping[str, float | None]) -> None:
        """Replace the table's record, unless that one is newer; and add its score to the history."""
        point = HealthPoint(record.table_uuid, record.scored_at, record.score, parts)
        added = upsert(health_history).values(values_of(point)).on_conflict_do_nothing()
        with around("health.note"), self._engine.begin() as connection:
            put_newest(connection, health, record, "measured_at")
            connection.execute(added)

    def of_table(self, table_uuid: str) -> HealthRecord | None:
        return one(self._engine, HealthRecord, health.c.table_uuid == table_uuid)

    def by_table(self) -> dict[str, HealthRecord]:
        """Return the newest record of each table name."""
        return {each.table: each for each in records(self._engine, HealthRecord, order_by=(health.c.measured_at,))}

    def history(self, table_uuid: str) -> tuple[HealthPoint, ...]:
        """Return the table's scores, oldest first."""
        mine = health_history.c.table_uuid == table_uuid
        return records(self._engine, HealthPoint, mine, order_by=(health_history.c.scored_at,))
