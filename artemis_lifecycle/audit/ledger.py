"""The lineage ledger: one row for every snapshot that a table ever had, in `<live catalog>.lifecycle.lineage_ledger`,
and one row for every input that it named, in `lineage_edges`. So who wrote what, and from what, outlives the snapshots.

A batch of rows is sealed under `operations.root`, then queued for publication in the transaction that saves the
progress. Recorded means sealed and queued: nothing waits for Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa

from artemis_lifecycle.catalogs.results import ResultTable
from artemis_lifecycle.contracts import CommitLineage, LineageRequirements, lineage_problems
from artemis_lifecycle.contracts.summary import CODE_VERSION, DAGSTER_RUN, INPUT_SNAPSHOTS, InputSnapshot, parse_inputs
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata
from artemis_lifecycle.operations.lineage import LedgerProgress
from artemis_lifecycle.storage.frames import arrow_schema, describe_frame, drop_frame, frame_batches, write_batches
from artemis_lifecycle.storage.instants import if_in_calendar
from artemis_lifecycle.storage.stores import Stores

_LINEAGE = """
    table_uuid string,
    table_name string,
    snapshot_id bigint COMMENT 'null for a commit without a snapshot: an expiration, a handoff',
    parent_snapshot_id bigint,
    sequence_number bigint,
    schema_id bigint,
    committed_at timestamp,
    operation string COMMENT 'append, replace, overwrite or delete, as Iceberg has it; or expiration, handoff',
    writer_id string,
    writer_host string,
    writer_commit_hash string,
    writer_invocation_id string,
    input_snapshot_ids string COMMENT 'as the writer wrote it; lineage_edges has one row for each',
    input_row_count bigint,
    input_bytes_compressed bigint,
    trigger_type string,
    trigger_operator string,
    trigger_ticket string,
    added_records bigint,
    deleted_records bigint,
    dagster_run_id string,
    code_version string,
    plan_id string COMMENT 'of an expiration or a handoff',
    metadata_location string COMMENT 'a metadata file that had the snapshot; for a plan, the one that it wrote',
    problems string COMMENT 'what the summary misses of the table\\'s lineage requirements; null when nothing',
    summary string COMMENT 'the whole summary, as JSON'
"""
_EDGES = """
    from_catalog string COMMENT 'null: this catalog',
    from_table string,
    from_uuid string COMMENT 'null for a table that this catalog does not know',
    from_id bigint,
    to_table string,
    to_uuid string,
    to_id bigint
"""
_BATCH = """,
    batch_id string,
    recorded_at timestamp
"""

LINEAGE_LEDGER = ResultTable("lineage_ledger", _LINEAGE + _BATCH, key="batch_id", instant="recorded_at")
LINEAGE_EDGES = ResultTable("lineage_edges", _EDGES + _BATCH, key="batch_id", instant="recorded_at")


def _schema(columns: str) -> pa.Schema:
    names = (line.split("COMMENT")[0].strip().rstrip(",") for line in columns.strip().splitlines())
    return arrow_schema(", ".join(names))


ROWS = _schema(_LINEAGE)
"""The columns of a sealed batch of the ledger."""
EDGE_ROWS = _schema(_EDGES)


@dataclass(frozen=True)
class LineageRecorded:
    """What one recording added to the ledger: `snapshots` of the table, which has `recorded` in all, the expired ones
    included. Of those, `incomplete` do not meet the table's lineage requirements."""

    table: str
    table_uuid: str
    metadata_location: str
    ledger: str
    snapshots: int
    recorded: int
    incomplete: int
    dry_run: bool = False


def unrecorded(
    metadata: TableMetadata, progress: LedgerProgress | None, recorded: Callable[[], Collection[int]]
) -> list[Snapshot]:
    """Return the snapshots of `metadata` that the ledger does not have, oldest first.

    If the newest recorded snapshot is still there, only snapshots after it can be new: sequence numbers ascend (spec,
    "Sequence Numbers"), except for a snapshot without a parent. `recorded` returns all recorded ids of the table; it is
    called only where sequence numbers do not decide: format version 1, a parentless snapshot, a table whose newest
    recorded snapshot is gone, and a table with more old snapshots than before, which was reset to an earlier state.
    """
    last = None if progress is None or progress.snapshot_id is None else metadata.snapshot(progress.snapshot_id)
    newer: list[Snapshot] = []
    doubtful = list(metadata.snapshots)
    if progress is not None and last is not None and last.sequence_number > 0:
        older = [each for each in metadata.snapshots if each.sequence_number <= last.sequence_number]
        if len(older) <= progress.present:
            newer = [each for each in metadata.snapshots if each.sequence_number > last.sequence_number]
            doubtful = [each for each in older if each.parent_snapshot_id is None and each is not last]
    if doubtful and progress is not None:
        known = recorded()
        doubtful = [each for each in doubtful if each.snapshot_id not in known]
    return sorted([*newer, *doubtful], key=lambda each: (each.sequence_number, each.timestamp_ms))


@dataclass(frozen=True)
class LedgerBatch:
    """The rows of one recording (columns: ROWS), and their inputs (EDGE_ROWS)."""

    rows: pa.Table
    edges: pa.Table

    @property
    def incomplete(self) -> int:
        """The number of rows whose summary does not meet the requirements."""
        problems: int = self.rows["problems"].null_count
        return int(self.rows.num_rows) - problems


def advanced(progress: LedgerProgress, metadata: TableMetadata, batch: LedgerBatch) -> LedgerProgress:
    """Return the progress after recording the batch. The newest snapshot never goes back: a table that was reset to an
    earlier state may return to the later one."""
    latest = max(metadata.snapshots, key=lambda each: (each.sequence_number, each.timestamp_ms), default=None)
    if latest is not None and (progress.snapshot_id is None or latest.sequence_number > progress.sequence_number):
        progress = replace(progress, snapshot_id=latest.snapshot_id, sequence_number=latest.sequence_number)
    return replace(
        progress,
        metadata_location=metadata.metadata_location,
        present=len(metadata.snapshots),
        recorded=progress.recorded + batch.rows.num_rows,
        incomplete=progress.incomplete + batch.incomplete,
        recorded_at=None,
    )


def ledger_batch(
    table: str,
    table_uuid: str,
    snapshots: Iterable[tuple[Snapshot, str]],
    requirements: LineageRequirements,
    uuid_of: Callable[[str], str | None],
) -> LedgerBatch:
    """Return the rows of snapshots, each with a metadata file that has it. A value of the wrong form is null.
    `uuid_of` returns the uuid of a table of the live catalog by name."""
    rows: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []
    for snapshot, location in snapshots:
        summary = snapshot.summary
        whole = summary.whole()
        rows.append(
            _lineage_columns(whole)
            | {
                "table_uuid": table_uuid,
                "table_name": table,
                "snapshot_id": snapshot.snapshot_id,
                "parent_snapshot_id": snapshot.parent_snapshot_id,
                "sequence_number": snapshot.sequence_number,
                "schema_id": snapshot.schema_id,
                "committed_at": if_in_calendar(snapshot.timestamp_ms),
                "input_row_count": _count(summary.count("input.row_count")),
                "input_bytes_compressed": _count(summary.count("input.bytes_compressed")),
                "added_records": _count(summary.count("added-records")),
                "deleted_records": _count(summary.count("deleted-records")),
                "metadata_location": location,
                "problems": "; ".join(lineage_problems(whole, requirements)) or None,
                "summary": json.dumps(whole, sort_keys=True),
            }
        )
        for each in _inputs(whole):
            of_own = each.table is None
            edges.append(
                {
                    "from_catalog": each.catalog,
                    "from_table": table if of_own else each.table,
                    "from_uuid": table_uuid if of_own else None if each.catalog else uuid_of(str(each.table)),
                    "from_id": each.snapshot_id,
                    "to_table": table,
                    "to_uuid": table_uuid,
                    "to_id": snapshot.snapshot_id,
                }
            )
    return LedgerBatch(pa.Table.from_pylist(rows, ROWS), pa.Table.from_pylist(edges, EDGE_ROWS))


NoSnapshot = Literal["expiration", "handoff", "undrop"]
"""What changes a table and commits no snapshot."""


def row_of_plan(
    table: str,
    table_uuid: str,
    plan_id: str,
    lineage: CommitLineage,
    location: str,
    now: datetime,
    *,
    operation: NoSnapshot = "expiration",
) -> pa.Table:
    """Return the row of an expiration, a handoff or an undrop, which commit no snapshot that could have a summary."""
    keys = lineage.summary()
    columns = _lineage_columns(keys) | {
        "table_uuid": table_uuid,
        "table_name": table,
        "committed_at": now,
        "operation": operation,
        "plan_id": plan_id,
        "metadata_location": location,
        "summary": json.dumps(keys, sort_keys=True),
    }
    return pa.Table.from_pylist([columns], ROWS)


def _lineage_columns(summary: Mapping[str, str]) -> dict[str, Any]:
    return {
        "operation": summary.get("operation"),
        "writer_id": summary.get("writer.id"),
        "writer_host": summary.get("writer.host"),
        "writer_commit_hash": summary.get("writer.commit_hash"),
        "writer_invocation_id": summary.get("writer.invocation_id"),
        "input_snapshot_ids": summary.get(INPUT_SNAPSHOTS),
        "trigger_type": summary.get("trigger.type"),
        "trigger_operator": summary.get("trigger.operator"),
        "trigger_ticket": summary.get("trigger.ticket"),
        "dagster_run_id": summary.get(DAGSTER_RUN),
        "code_version": summary.get(CODE_VERSION),
    }


def _inputs(summary: Mapping[str, str]) -> Sequence[InputSnapshot]:
    try:
        return parse_inputs(summary.get(INPUT_SNAPSHOTS, ""))
    except ValueError:
        return ()


def _count(value: int | None) -> int | None:
    return value if value is not None and -(2**63) <= value < 2**63 else None


def seal_batch(stores: Stores, root: str, batch_id: str, batch: LedgerBatch) -> None:
    """Store a batch completely or not at all; once under one id. Without its publication in Postgres, it is
    garbage."""
    for name, rows in (("lineage_ledger", batch.rows), ("lineage_edges", batch.edges)):
        folder = batch_location(root, batch_id, name)
        if describe_frame(folder, stores) is None:
            write_batches(rows.to_batches(), rows.schema, folder, stores)


def sealed_rows(
    stores: Stores, root: str, batch_id: str, name: str, recorded_at: datetime | None = None
) -> Iterator[pa.Table]:
    """Yield the stored rows of a batch for the result table `name`; with `recorded_at`, as they are published."""
    for batch in frame_batches(batch_location(root, batch_id, name), stores):
        rows = pa.Table.from_batches([batch])
        if recorded_at is not None:
            instant = pa.scalar(recorded_at, pa.timestamp("us", "UTC"))
            rows = rows.append_column("batch_id", pa.repeat(batch_id, rows.num_rows))
            rows = rows.append_column("recorded_at", pa.repeat(instant, rows.num_rows))
        yield rows


def drop_batch(stores: Stores, root: str, batch_id: str, name: str) -> None:
    """Delete the stored rows of a batch that are published."""
    drop_frame(batch_location(root, batch_id, name), stores)


def batch_location(root: str, batch_id: str, name: str) -> str:
    """Return the folder of a batch's sealed rows."""
    return f"{root}/lineage/{batch_id}/{name}"
