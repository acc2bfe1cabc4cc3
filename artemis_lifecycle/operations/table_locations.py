"""What steps observed of a table: its locations over time, because it owns what it wrote there even after `SET
LOCATION`; its catalog pointers, from which a catalog that was reset is recognized; and the swaps that steps
attempted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

from sqlalchemy import BigInteger, Column, Engine, Table, Text, delete, func, select
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import CLOCK, Utc, metadata

table_locations = Table(
    "table_locations",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("location", Text, primary_key=True),
    Column("first_seen", Utc, nullable=False, server_default=CLOCK),
)
seen_pointers = Table(
    "seen_pointers",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("metadata_location", Text, primary_key=True),
    Column("seen_at", Utc, nullable=False, server_default=CLOCK),
)
swap_attempts = Table(
    "swap_attempts",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("base_location", Text, primary_key=True),
    Column("updated_ms", BigInteger, primary_key=True),
    Column("began_at", Utc, nullable=False, server_default=CLOCK),
)

_KEPT = timedelta(days=90)


class TableLocations:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def saw(self, table_uuid: str, locations: Iterable[str], pointer: str | None) -> None:
        """Record the table's current locations (normal form) and, for a step, its metadata file. Known values are not
        written again."""
        new = sorted(set(locations).difference(self.of_table(table_uuid)))
        if not new and (pointer is None or pointer in self.pointers(table_uuid)):
            return
        with around("table_locations.saw"), self._engine.begin() as connection:
            for location in new:
                row = {"table_uuid": table_uuid, "location": location}
                connection.execute(upsert(table_locations).values(row).on_conflict_do_nothing())
            if pointer is None:
                return
            row = {"table_uuid": table_uuid, "metadata_location": pointer}
            connection.execute(upsert(seen_pointers).values(row).on_conflict_do_nothing())
            old = seen_pointers.c.seen_at < func.clock_timestamp() - _KEPT
            connection.execute(delete(seen_pointers).where(seen_pointers.c.table_uuid == table_uuid, old))

    def of_table(self, table_uuid: str) -> tuple[str, ...]:
        """Return every location that the table was observed to have, oldest first."""
        query = (
            select(table_locations.c.location)
            .where(table_locations.c.table_uuid == table_uuid)
            .order_by(table_locations.c.first_seen, table_locations.c.location)
        )
        with self._engine.connect() as connection:
            return tuple(connection.execute(query).scalars())

    def pointers(self, table_uuid: str) -> frozenset[str]:
        """Return the metadata files that were the table's pointer when a step began, in the last 90 days."""
        query = select(seen_pointers.c.metadata_location).where(seen_pointers.c.table_uuid == table_uuid)
        with self._engine.connect() as connection:
            return frozenset(connection.execute(query).scalars())

    def attempts_of(self, table_uuid: str) -> Callable[[str, int], None]:
        """Return a function that records, right before a swap, the base and the `last-updated-ms` of the next metadata.
        With them, a file that a killed step left can be identified."""

        def record(base_location: str, updated_ms: int) -> None:
            row = {"table_uuid": table_uuid, "base_location": base_location, "updated_ms": updated_ms}
            with around("table_locations.attempt"), self._engine.begin() as connection:
                connection.execute(upsert(swap_attempts).values(row).on_conflict_do_nothing())
                old = swap_attempts.c.began_at < func.clock_timestamp() - _KEPT
                connection.execute(delete(swap_attempts).where(swap_attempts.c.table_uuid == table_uuid, old))

        return record

    def attempted(self, table_uuid: str) -> frozenset[tuple[str, int]]:
        """Return the base and `last-updated-ms` of each swap that a step attempted in the last 90 days."""
        query = select(swap_attempts.c.base_location, swap_attempts.c.updated_ms).where(
            swap_attempts.c.table_uuid == table_uuid
        )
        with self._engine.connect() as connection:
            return frozenset((base, updated_ms) for base, updated_ms in connection.execute(query))
