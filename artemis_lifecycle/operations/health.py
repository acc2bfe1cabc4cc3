"""The health of each table when it was last measured: what decides whether a compaction is requested."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import Key, records, table_of, values_of


@dataclass(frozen=True)
class HealthRecord:
    """The figures of `maintenance.health.TableHealth` that ask for a compaction, as of `metadata_location`."""

    table_uuid: Key
    table: str
    metadata_location: str
    measured_at: datetime
    data_files: int
    rewritable_files: int
    delete_files: int
    manifests: int
    manifest_bytes: int
    fewest_manifests: int
    target_manifest_bytes: int


health = table_of(HealthRecord, "health")


class Health:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def note(self, record: HealthRecord) -> None:
        """Replace the table's record, unless that one is newer."""
        statement = upsert(health).values(values_of(record))
        newer = statement.on_conflict_do_update(
            index_elements=["table_uuid"],
            set_=values_of(record, without=frozenset({"table_uuid"})),
            where=health.c.measured_at <= statement.excluded.measured_at,
        )
        with around("health.note"), self._engine.begin() as connection:
            connection.execute(newer)

    def by_table(self) -> dict[str, HealthRecord]:
        """Return the newest record of each table name."""
        return {each.table: each for each in records(self._engine, HealthRecord, order_by=(health.c.measured_at,))}
