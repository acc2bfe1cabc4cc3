"""Metadata files that are newer than the catalog's pointer, and for which a person confirmed the pointer."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import CheckConstraint, Column, Engine, Table, Text, select
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision
from artemis_lifecycle.operations.tables import CLOCK, Utc, metadata

settled_metadata = Table(
    "settled_metadata",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("metadata_location", Text, primary_key=True),
    Column("settled_at", Utc, nullable=False, server_default=CLOCK),
    Column("who", Text, nullable=False),
    Column("why", Text, nullable=False),
    CheckConstraint("btrim(who) <> '' AND btrim(why) <> ''", name="settled_metadata_said"),
)


class SettledMetadata:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def settle(self, table_uuid: str, locations: Iterable[str], who: str, why: str) -> None:
        """Record that these files do not belong to the table's history. Existing records do not change."""
        rows = [
            {"table_uuid": table_uuid, "metadata_location": location, "who": who, "why": why}
            for location in sorted(set(locations))
        ]
        if rows:
            with around("settled_metadata.settle"), self._engine.begin() as connection:
                connection.execute(upsert(settled_metadata).values(rows).on_conflict_do_nothing())
                NewDecision("settle-metadata", table_uuid, who, why).record(connection)

    def of_table(self, table_uuid: str) -> frozenset[str]:
        """Return the settled files."""
        query = select(settled_metadata.c.metadata_location).where(settled_metadata.c.table_uuid == table_uuid)
        with self._engine.connect() as connection:
            return frozenset(connection.execute(query).scalars())
