"""The lineage ledger: one row per snapshot that a table ever had, in `<live catalog>.lifecycle.lineage_ledger`, so that
who wrote what is known after the snapshot has expired. Belongs here: rows out of summaries, and appending them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.catalogs.result_rows import ResultReader
from artemis_lifecycle.catalogs.results import NAMESPACE, ensure_table
from artemis_lifecycle.contracts import LineageRequirements, lineage_problems
from artemis_lifecycle.contracts.summary import INPUT_SNAPSHOTS, parse_inputs
from artemis_lifecycle.lineage.schema_history import SchemaUse
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata
from artemis_lifecycle.spark.runner import Runner, Spark
from artemis_lifecycle.storage.instants import milliseconds, of_milliseconds

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

LEDGER = "lineage_ledger"

COLUMNS = """
    table_uuid string,
    table_name string,
    snapshot_id bigint,
    parent_snapshot_id bigint,
    sequence_number bigint,
    schema_id int,
    committed_at timestamp,
    operation string,
    writer_id string,
    writer_host string,
    writer_commit_hash string,
    writer_invocation_id string,
    input_snapshot_ids array<bigint>,
    input_row_count bigint,
    input_bytes_compressed bigint,
    trigger_type string,
    trigger_operator string,
    trigger_ticket string,
    added_records bigint,
    deleted_records bigint,
    problems string COMMENT 'what the lineage requirements of the table miss in the summary; null when nothing',
    summary string COMMENT 'the whole summary, as JSON',
    recorded_at timestamp
"""

LedgerRow = tuple[
    str, str, int, int | None, int, int | None, datetime | None, str | None, str | None, str | None, str | None,
    str | None, list[int] | None, int | None, int | None, str | None, str | None, str | None, int | None, int | None,
    str | None, str, datetime,
]  # fmt: skip


@dataclass(frozen=True)
class LedgerUpdate:
    """What one look at a table added to the ledger. `incomplete` counts snapshots, of all that the table has now, whose
    summary misses something that its requirements name."""

    table: str
    table_uuid: str
    metadata_location: str
    ledger: str
    added: int
    recorded: int
    incomplete: int
    dry_run: bool = False


@dataclass(frozen=True)
class Lineage:
    """The ledger's rows of one table, oldest first."""

    table: str
    table_uuid: str
    _frame: pd.DataFrame

    def to_pandas(self) -> pd.DataFrame:
        """One row per snapshot ever recorded; the columns of the ledger (see COLUMNS)."""
        return self._frame.copy()


def whole_summary(snapshot: Snapshot) -> dict[str, str]:
    """The snapshot's summary, with its `operation`, as the requirements read it."""
    summary = snapshot.summary
    return dict(summary.properties) | ({"operation": summary.operation} if summary.operation else {})


def ledger_rows(
    table: str,
    table_uuid: str,
    snapshots: Iterable[Snapshot],
    requirements: LineageRequirements,
    recorded_at: datetime,
) -> list[LedgerRow]:
    """The rows of `snapshots`, in the order of COLUMNS. A value that is not what it should be is null."""
    rows: list[LedgerRow] = []
    for snapshot in snapshots:
        summary = snapshot.summary
        whole = whole_summary(snapshot)
        problems = lineage_problems(whole, requirements)
        try:
            inputs = (
                [each.snapshot_id for each in parse_inputs(whole[INPUT_SNAPSHOTS])]
                if INPUT_SNAPSHOTS in whole
                else None
            )
        except ValueError:
            inputs = None
        rows.append(
            (
                table_uuid,
                table,
                snapshot.snapshot_id,
                snapshot.parent_snapshot_id,
                snapshot.sequence_number,
                snapshot.schema_id,
                _instant(snapshot.timestamp_ms),
                summary.operation,
                whole.get("writer.id"),
                whole.get("writer.host"),
                whole.get("writer.commit_hash"),
                whole.get("writer.invocation_id"),
                inputs,
                summary.count("input.row_count"),
                summary.count("input.bytes_compressed"),
                whole.get("trigger.type"),
                whole.get("trigger.operator"),
                whole.get("trigger.ticket"),
                summary.count("added-records"),
                summary.count("deleted-records"),
                "; ".join(problems) or None,
                json.dumps(whole, sort_keys=True),
                recorded_at,
            )
        )
    return rows


def _instant(since_ms: int) -> datetime | None:
    try:
        return of_milliseconds(since_ms)
    except OverflowError:
        return None  # A writer may put any number into metadata.


def record_lineage(
    spark: Spark,
    results: ResultReader,
    table: str,
    metadata: TableMetadata,
    requirements: LineageRequirements,
    now: datetime,
    *,
    dry_run: bool = False,
) -> LedgerUpdate:
    """Append the snapshots of `metadata` that the ledger does not have yet (by table uuid and snapshot id).

    Doing it again appends nothing, and starts no Spark. Two at once for one table could both append: callers hold the
    table's lease.
    """
    known = results.rows(LEDGER, ["snapshot_id"], table_uuid=metadata.table_uuid)
    recorded = {snapshot_id for batch in known for snapshot_id in batch.column("snapshot_id").to_pylist()}
    new = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in recorded]
    rows = ledger_rows(table, metadata.table_uuid, metadata.snapshots, requirements, now)
    incomplete = sum(1 for row in rows if row[-3] is not None)
    if new and not dry_run:
        ids = {snapshot.snapshot_id for snapshot in new}
        session = Runner(spark).session
        frame = session.createDataFrame([row for row in rows if row[2] in ids], COLUMNS_DDL)
        frame.coalesce(1).writeTo(_ensure(session, results.catalog.name)).append()
    return LedgerUpdate(
        table=table,
        table_uuid=metadata.table_uuid,
        metadata_location=metadata.metadata_location,
        ledger=parse(f"{results.catalog.name}.{NAMESPACE}.{LEDGER}").sql(),
        added=len(new),
        recorded=len(recorded) + (0 if dry_run else len(new)),
        incomplete=incomplete,
        dry_run=dry_run,
    )


def read_lineage(spark: SparkSession, catalog: str, table: str, table_uuid: str) -> Lineage:
    """What the ledger knows of a table, its expired snapshots included."""
    from pyspark.sql import functions as F

    rows = spark.table(_ensure(spark, catalog)).where(F.col("table_uuid") == table_uuid).orderBy("sequence_number")
    return Lineage(table, table_uuid, rows.toPandas())


def recorded_snapshots(results: ResultReader, table_uuid: str) -> frozenset[int]:
    """The ids of the snapshots that the ledger has of a table."""
    batches = results.rows(LEDGER, ["snapshot_id"], table_uuid=table_uuid)
    return frozenset(snapshot_id for batch in batches for snapshot_id in batch.column("snapshot_id").to_pylist())


def recorded_schema_uses(results: ResultReader, table_uuid: str) -> tuple[SchemaUse, ...]:
    """Which schema each snapshot of a table was written with, its expired ones included; for `schema_history`."""
    batches = results.rows(LEDGER, ["snapshot_id", "committed_at", "schema_id"], table_uuid=table_uuid)
    rows = (row for batch in batches for row in batch.to_pylist() if row["schema_id"] is not None)
    return tuple(SchemaUse(row["snapshot_id"], milliseconds(row["committed_at"]), row["schema_id"]) for row in rows)


def _ensure(spark: SparkSession, catalog: str) -> str:
    return ensure_table(spark, f"{catalog}.{NAMESPACE}.{LEDGER}", COLUMNS, "table_uuid")


COLUMNS_DDL = " ".join(COLUMNS.split())
