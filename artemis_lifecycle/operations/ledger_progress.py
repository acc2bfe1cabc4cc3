"""How far the lineage ledger is, by table. Written in the transaction that queues the rows, so that no row is missing
and none is queued twice. Does not belong here: the rows (`lineage/ledger.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.operations.tables import CLOCK, FilledLater, Key, one, records, table_of, values_of


@dataclass(frozen=True)
class LedgerProgress:
    """The newest recorded snapshot of a table, by sequence number; how many snapshots the metadata file had; how many
    are recorded in all, and how many of them do not meet the table's lineage requirements."""

    table_uuid: Key
    metadata_location: str
    snapshot_id: int | None
    sequence_number: int
    present: int
    recorded: int
    incomplete: int
    recorded_at: FilledLater = None


ledger_progress = table_of(LedgerProgress, "ledger_progress")


class LedgerProgresses:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self) -> tuple[LedgerProgress, ...]:
        """Return the progress of all tables."""
        return records(self._engine, LedgerProgress)

    def of_table(self, table_uuid: str) -> LedgerProgress | None:
        return one(self._engine, LedgerProgress, ledger_progress.c.table_uuid == table_uuid)


def save_progress(connection: Connection, progress: LedgerProgress) -> None:
    values = values_of(progress) | {"recorded_at": CLOCK}
    statement = upsert(ledger_progress).values(values)
    connection.execute(statement.on_conflict_do_update(constraint=ledger_progress.primary_key, set_=values))
