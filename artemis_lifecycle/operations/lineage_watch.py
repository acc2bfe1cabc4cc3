"""Up to where each table's snapshots were checked against its lineage requirements, and those that do not meet them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from sqlalchemy import BigInteger, Engine, Index, func, select, text
from sqlalchemy.dialects.postgresql import insert

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision
from artemis_lifecycle.operations.tables import Filled, Key, if_given, records, table_of, update_records, values_of


@dataclass(frozen=True)
class WatchedTable:
    """A table whose snapshots are checked: the metadata file that was read last, its `last-sequence-number` and the
    newest time of its snapshots. `began_at`: when it was first read."""

    table_uuid: Key
    table: str
    metadata_location: str
    last_sequence_number: int
    last_snapshot_ms: int
    began_at: Filled


@dataclass(frozen=True)
class UnmetSnapshot:
    """A snapshot that does not meet its table's requirements. A person may acknowledge it: who, why, when."""

    table_uuid: Key
    snapshot_id: Annotated[int, {"primary_key": True, "type_": BigInteger, "autoincrement": False}]
    table: str
    committed_at: datetime | None
    problems: tuple[str, ...]
    found_at: Filled
    acknowledged_by: str | None
    acknowledged_why: str | None
    acknowledged_at: datetime | None


@dataclass(frozen=True)
class FoundSnapshot:
    """An unmet snapshot that is not recorded yet."""

    snapshot_id: int
    committed_at: datetime | None
    problems: tuple[str, ...]


watched_tables = table_of(WatchedTable, "watched_tables")
unmet_snapshots = table_of(
    UnmetSnapshot,
    "unmet_snapshots",
    Index("unmet_snapshots_open", "table_uuid", postgresql_where=text("acknowledged_at IS NULL")),
)


class LineageWatch:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def tables(self) -> dict[str, WatchedTable]:
        """Return every watched table, by uuid."""
        return {each.table_uuid: each for each in records(self._engine, WatchedTable)}

    def began_at(self) -> datetime | None:
        """Return when the first table was read; None before that."""
        with self._engine.connect() as connection:
            found: datetime | None = connection.execute(select(func.min(watched_tables.c.began_at))).scalar_one()
            return found

    def checked(
        self,
        table_uuid: str,
        table: str,
        metadata_location: str,
        *,
        last_sequence_number: int,
        last_snapshot_ms: int,
        unmet: Sequence[FoundSnapshot],
    ) -> None:
        """Record that the table was checked up to this metadata file, and what was found. Known snapshots stay as they
        are, except one that was committed anew under its id: what a person acknowledged was another."""
        values = {
            "table_name": table,
            "metadata_location": metadata_location,
            "last_sequence_number": last_sequence_number,
            "last_snapshot_ms": last_snapshot_ms,
        }
        with around("lineage_watch.checked"), self._engine.begin() as connection:
            for each in unmet:
                row = {**values_of(each), "problems": list(each.problems)}
                found = insert(unmet_snapshots).values(table_uuid=table_uuid, table_name=table, **row)
                anew = dict.fromkeys(("acknowledged_by", "acknowledged_why", "acknowledged_at"))
                connection.execute(
                    found.on_conflict_do_update(
                        constraint=unmet_snapshots.primary_key,
                        set_={**row, **anew, "found_at": func.clock_timestamp()},
                        where=unmet_snapshots.c.committed_at.is_distinct_from(found.excluded.committed_at),
                    )
                )
            connection.execute(
                insert(watched_tables)
                .values(table_uuid=table_uuid, **values)
                .on_conflict_do_update(index_elements=["table_uuid"], set_=values)
            )

    def unmet(self, table_uuid: str | None = None, *, acknowledged: bool = False) -> tuple[UnmetSnapshot, ...]:
        """Return the snapshots, of one table or of all, that are not acknowledged (`acknowledged`: also the others),
        oldest first."""
        where = if_given(unmet_snapshots.c.table_uuid, table_uuid)
        if not acknowledged:
            where += (unmet_snapshots.c.acknowledged_at.is_(None),)
        order = (unmet_snapshots.c.found_at, unmet_snapshots.c.snapshot_id)
        return records(self._engine, UnmetSnapshot, *where, order_by=order)

    def acknowledge(self, table_uuid: str, who: str, why: str) -> tuple[UnmetSnapshot, ...]:
        """Acknowledge every open snapshot of the table, and return them. Raises BadInput without `who` or `why`."""
        with around("lineage_watch.acknowledge"), self._engine.begin() as connection:
            done = update_records(
                connection,
                UnmetSnapshot,
                unmet_snapshots.c.table_uuid == table_uuid,
                unmet_snapshots.c.acknowledged_at.is_(None),
                acknowledged_by=who,
                acknowledged_why=why,
                acknowledged_at=func.clock_timestamp(),
            )
            if done:
                NewDecision("acknowledge-lineage", table_uuid, who, why).record(connection, done[0])
        return done
