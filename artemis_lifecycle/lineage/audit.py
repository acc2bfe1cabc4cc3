"""Answers from the lineage ledger: who overwrote, what is downstream or upstream, when a partition was ingested. Pure:
Arrow tables of the ledger in, answers out, each with the Spark SQL query for the same rows. Does not belong here:
reading the ledger (`lifecycle/audit.py`) and manifests (`ingests`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.lineage.drawing import LineageEdge, SnapshotOfTable, layered_svg
from artemis_lifecycle.lineage.graph import Direction, reached
from artemis_lifecycle.lineage.ingests import Trace
from artemis_lifecycle.spark.sql import literal, name
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.tabular import frame_of

if TYPE_CHECKING:
    import pandas as pd

OVERWRITE_COLUMNS = {
    "table": "table_name",
    "snapshot_id": "snapshot_id",
    "committed_at": "committed_at",
    "operation": "operation",
    "who": "trigger_operator",
    "writer": "writer_id",
    "why": "trigger_type",
    "ticket": "trigger_ticket",
}
"""The columns of an answer, and those of the ledger."""

REMOVING = ("delete", "overwrite")
"""The operations of commits that remove rows (Iceberg spec, "Snapshots"): pyiceberg's `overwrite()` commits a `delete`
and an `append`; TRUNCATE and a DELETE of complete files commit a `delete`."""

_REQUIRED = {
    "who": "trigger.operator",
    "writer": "writer.id",
    "why": "trigger.type",
    "ticket": "trigger.ticket",
}
"""What an overwrite must say, and the key in its summary."""


@dataclass(frozen=True)
class Overwrite:
    """One overwrite. `operation` is Iceberg's. `why` is its trigger type. `missing` names keys of its summary that are
    absent or empty."""

    table: str
    snapshot_id: int
    committed_at: datetime
    operation: str
    who: str | None
    writer: str | None
    why: str | None
    ticket: str | None
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Overwrites:
    """The commits with `since` <= committed_at < `until` that removed rows, oldest first: overwrites, deletes, and what
    else `lineage.overwrite.operations` of their tables names. `unrecorded` snapshots of live tables were read from
    metadata, because the ledger does not have them yet. `query` is Spark SQL for the recorded rows."""

    since: datetime
    until: datetime
    table: str | None
    rows: tuple[Overwrite, ...]
    unrecorded: int
    query: str

    @property
    def incomplete(self) -> tuple[Overwrite, ...]:
        """The overwrites whose summaries miss something."""
        return tuple(each for each in self.rows if each.missing)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per overwrite: table, operation, who, writer, why, ticket, missing (joined by commas) object;
        snapshot_id int64; committed_at datetime64[ms, UTC]."""
        return frame_of(Overwrite, self.rows)


def overwrites_of(
    ledger: pa.Table, since: datetime, until: datetime, table: str | None, unrecorded: int, query: str
) -> Overwrites:
    """Return the answer from ledger rows of overwrites in the time range."""
    rows = ledger.select(list(OVERWRITE_COLUMNS.values())).rename_columns(list(OVERWRITE_COLUMNS))
    rows = rows.sort_by([(each, "ascending") for each in ("committed_at", "table", "snapshot_id")])
    found = tuple(
        Overwrite(**row, missing=tuple(key for column, key in _REQUIRED.items() if not row[column]))
        for row in rows.to_pylist()
    )
    # A snapshot that was recorded while it was read from metadata has two rows.
    return Overwrites(since, until, table, tuple(dict.fromkeys(found)), unrecorded, query)


def overwrites_query(
    catalog: str,
    since: datetime,
    until: datetime,
    table_uuid: str | None,
    configured: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str:
    """Return Spark SQL with the rows of `Overwrites`; `missing` is one text, joined by commas. `configured` has the
    tables where a further operation counts, by operation."""
    columns = ",\n  ".join(f"{theirs} AS {ours}" for ours, theirs in OVERWRITE_COLUMNS.items())
    missing = ", ".join(
        f"if(coalesce({OVERWRITE_COLUMNS[column]}, '') = '', {literal(key)}, NULL)" for column, key in _REQUIRED.items()
    )
    counts = [f"operation IN ({', '.join(map(literal, REMOVING))})"]
    for operation, tables in configured.items():
        counts.append(f"operation = {literal(operation)} AND table_name IN ({', '.join(map(literal, tables))})")
    either = counts[0] if len(counts) == 1 else f"({' OR '.join(counts)})"
    about = "" if table_uuid is None else f"\n  AND table_uuid = {literal(table_uuid)}"
    return (
        f"SELECT {columns},\n  concat_ws(', ', {missing}) AS missing\n"
        f"FROM {name(catalog, 'lifecycle', 'lineage_ledger')}\n"
        f"WHERE {either}\n"
        f"  AND committed_at >= timestamp {literal(since.isoformat())}\n"
        f"  AND committed_at < timestamp {literal(until.isoformat())}{about}\n"
        "ORDER BY committed_at, table, snapshot_id"
    )


LINEAGE_EDGE_ROWS = arrow_schema(
    "depth bigint, from_table string, from_uuid string, from_id bigint, to_table string, to_uuid string, to_id bigint"
)


@dataclass(frozen=True)
class Lineage:
    """What is downstream or upstream of a snapshot. With `states`, a reader of a later state of a table counts as a
    reader of every snapshot that the state contains. `unrecorded` as in `Overwrites`. `query` is None with states."""

    table: str
    snapshot_id: int
    direction: Direction
    states: bool
    unrecorded: int
    query: str | None
    _rows: pa.Table = field(repr=False, compare=False)

    @property
    def depth(self) -> int:
        """The depth of the farthest edge; 0 without edges."""
        return int(pc.max(self._rows["depth"]).as_py() or 0)

    @cached_property
    def edges(self) -> tuple[LineageEdge, ...]:
        """The edges, nearest first, each as (depth, from, to)."""
        return tuple(
            LineageEdge(depth, SnapshotOfTable(*source), SnapshotOfTable(*target))
            for depth, source, target in zip(
                self._rows["depth"].to_pylist(), self._ends("from"), self._ends("to"), strict=True
            )
        )

    @cached_property
    def snapshots(self) -> tuple[SnapshotOfTable, ...]:
        """The snapshots that were reached, nearest first, without the one in question."""
        ends = self._ends("to" if self.direction == "downstream" else "from")
        own = {(self.table, self.snapshot_id)}
        return tuple(dict.fromkeys(SnapshotOfTable(*each) for each in ends if (each[0], each[1]) not in own))

    def _ends(self, end: str) -> list[tuple[str, int, str | None]]:
        columns = (self._rows[f"{end}_{part}"].to_pylist() for part in ("table", "id", "uuid"))
        return list(zip(*columns, strict=True))

    def svg(self) -> str:
        """Return the graph as a picture: one column per depth, at most twelve snapshots in each."""
        return layered_svg((self.table, self.snapshot_id), {self.direction: self.edges})

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per edge: depth, from_id, to_id int64; from_table, from_uuid, to_table, to_uuid object."""
        frame: pd.DataFrame = self._rows.to_pandas()
        return frame


def lineage_of(
    edges: pa.Table,
    start: SnapshotOfTable,
    direction: Direction,
    states: pa.Table | None,
    unrecorded: int,
    catalog: str,
    names_of: Callable[[Collection[str]], Mapping[str, str]],
) -> Lineage:
    """Return the answer from edges (EDGES, and `from_table` where `from_uuid` is null). `names_of` returns names by
    uuid for the tables in question, or more."""
    uuid = str(start.table_uuid)
    found = reached(edges, uuid, start.snapshot_id, direction, states)
    uuids = {each for end in ("from_uuid", "to_uuid") for each in found[end].to_pylist()}
    names = names_of(uuids - {None})
    # What no table of this catalog has is named as its reader wrote it.
    unknown = edges.filter(pc.and_(edges["from_uuid"].is_null(), pc.is_in(edges["from_id"], value_set=_flat(found))))
    written = dict(zip(unknown["from_id"].to_pylist(), unknown["from_table"].to_pylist(), strict=True))

    def tables(end: str) -> pa.Array:
        pairs = zip(found[f"{end}_uuid"].to_pylist(), found[f"{end}_id"].to_pylist(), strict=True)
        return pa.array([names[uuid] if uuid is not None else written[each] for uuid, each in pairs], pa.string())

    columns = {each: found[each] for each in found.column_names} | {
        "from_table": tables("from"),
        "to_table": tables("to"),
    }
    rows = pa.table({each: columns[each] for each in LINEAGE_EDGE_ROWS.names}, LINEAGE_EDGE_ROWS)
    deepest = int(pc.max(rows["depth"]).as_py() or 0)
    query = None if states is not None else lineage_query(catalog, uuid, start.snapshot_id, direction, deepest + 1)
    return Lineage(start.table, start.snapshot_id, direction, states is not None, unrecorded, query, rows)


def _flat(found: pa.Table) -> pa.Array:
    ids: pa.Array = found["from_id"].combine_chunks()
    return ids


def lineage_query(catalog: str, table_uuid: str, snapshot_id: int, direction: Direction, depth: int) -> str:
    """Return Spark SQL with the edges of `Lineage` up to a depth, as depth, from_uuid, from_id, to_uuid, to_id."""
    near, far = ("from", "to") if direction == "downstream" else ("to", "from")
    ends = "from_uuid, from_id, to_uuid, to_id"
    levels = [
        f"d1 AS (SELECT * FROM e WHERE {near}_uuid = {literal(table_uuid)} AND {near}_id = {snapshot_id})",
        *(
            f"d{level} AS (SELECT DISTINCT e.* FROM e JOIN d{level - 1} d "
            f"ON e.{near}_uuid <=> d.{far}_uuid AND e.{near}_id = d.{far}_id)"
            for level in range(2, depth + 1)
        ),
    ]
    every = " UNION ALL ".join(f"SELECT {level} AS depth, * FROM d{level}" for level in range(1, depth + 1))
    edges = f"e AS (SELECT DISTINCT {ends} FROM {name(catalog, 'lifecycle', 'lineage_edges')})"
    with_levels = ",\n  ".join([edges, *levels])
    return (
        f"WITH {with_levels}\nSELECT min(depth) AS depth, {ends}\nFROM ({every})\n"
        f"GROUP BY {ends}\nORDER BY depth, {ends}"
    )


FILE_ROWS = arrow_schema(
    "path string, snapshot_id bigint, operation string, committed_at timestamp, writer_id string, commit_hash string, "
    "tier string"
)


class IngestedRow(NamedTuple):
    """A data file, and the snapshot that added it."""

    path: str | None
    snapshot_id: int
    operation: str | None
    committed_at: datetime | None
    writer_id: str | None
    commit_hash: str | None
    tier: str | None


@dataclass(frozen=True)
class Ingested:
    """The newest snapshot that ingested rows of a partition, of a data file, or of a table. All None if only rewriting
    snapshots are known; `untraced` are those whose inputs are in no tier and not in the ledger. `unrecorded` and
    `query` as in `Overwrites`."""

    table: str
    partition: Mapping[str, str] | None
    path: str | None
    snapshot_id: int | None
    committed_at: datetime | None
    writer_id: str | None
    commit_hash: str | None
    untraced: tuple[int, ...]
    unrecorded: int
    query: str
    _files: pa.Table = field(repr=False, compare=False)

    def files(self) -> pd.DataFrame:
        """Return the data files behind the answer, newest first: those that have the rows, and those that compactions
        rewrote into them. Columns: path, operation, writer_id, commit_hash, tier object; snapshot_id int64;
        committed_at datetime64[us, UTC]. A snapshot that is only known as an input of a compaction has no path."""
        frame: pd.DataFrame = self._files.to_pandas()
        return frame

    def rows(self) -> list[IngestedRow]:
        """The same as plain values."""
        return [IngestedRow(**row) for row in self._files.to_pylist()]


def ingested_of(
    table: str,
    partition: Mapping[str, str] | None,
    path: str | None,
    trace: Trace,
    listed: Sequence[int],
    row_of: Callable[[int], Mapping[str, Any] | None],
    unrecorded: int,
    query: str,
) -> Ingested:
    """Return the answer from the files of a trace. `listed` are further snapshots, that the summaries of untraced
    compactions name as inputs. `row_of` returns the ledger's row of a snapshot."""
    rows = []
    for each in [*trace.files, *((None, snapshot_id, None) for snapshot_id in listed)]:
        file_path, snapshot_id, tier = each
        row = row_of(snapshot_id) or {}
        rows.append(
            {
                "path": file_path,
                "snapshot_id": snapshot_id,
                "operation": row.get("operation"),
                "committed_at": row.get("committed_at"),
                "writer_id": row.get("writer_id"),
                "commit_hash": row.get("writer_commit_hash"),
                "tier": tier,
            }
        )
    files = pa.Table.from_pylist(rows, FILE_ROWS).sort_by(
        [("committed_at", "descending"), ("snapshot_id", "descending"), ("path", "ascending")]
    )
    ingests = [row for row in files.to_pylist() if row["operation"] not in (None, "replace")]
    newest: Mapping[str, Any] = ingests[0] if ingests else {}
    return Ingested(
        table,
        partition,
        path,
        newest.get("snapshot_id"),
        newest.get("committed_at"),
        newest.get("writer_id"),
        newest.get("commit_hash"),
        tuple(each for each in trace.untraced if not listed),
        unrecorded,
        query,
        files,
    )


def ingested_query(catalog: str, table_uuid: str, files: Sequence[int]) -> str:
    """Return Spark SQL with the ledger's rows of the snapshots of `Ingested.files()`, newest first."""
    ids = ", ".join(map(str, sorted(set(files)))) or "NULL"
    return (
        "SELECT snapshot_id, operation, committed_at, writer_id, writer_commit_hash AS commit_hash\n"
        f"FROM {name(catalog, 'lifecycle', 'lineage_ledger')}\n"
        f"WHERE table_uuid = {literal(table_uuid)} AND snapshot_id IN ({ids})\n"
        "ORDER BY committed_at DESC, snapshot_id DESC"
    )
