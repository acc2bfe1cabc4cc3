"""The audit questions as Spark SQL, for readers of the result tables. Pure. What only metadata has so far is not in
these tables, so the queries answer for rows that are recorded and published."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from artemis_lifecycle.lineage.graph import Direction
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.spark.sql import literal, name

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

REQUIRED = {
    "who": "trigger.operator",
    "writer": "writer.id",
    "why": "trigger.type",
    "ticket": "trigger.ticket",
}
"""What an overwrite must say, and the key in its summary."""


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
        f"if(coalesce({OVERWRITE_COLUMNS[column]}, '') = '', {literal(key)}, NULL)" for column, key in REQUIRED.items()
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


_STEPS = 20
"""How far a query walks at least: cycles end only there."""


def lineage_query(
    catalog: str, table_uuid: str, snapshot_id: int, direction: Direction, deepest: int, *, states: bool
) -> str:
    """Return Spark SQL with the edges of `Lineage`, as depth, from_uuid, from_id, to_uuid, to_id. It walks at least as
    far as `deepest`.

    With `states`, a snapshot contains another of its table with a lower or the same sequence number. That is exact for
    a table without branches; commits to another branch count, too.
    """
    near, far = ("from", "to") if direction == "downstream" else ("to", "from")
    ledger, edges = (name(catalog, "lifecycle", table) for table in ("lineage_ledger", "lineage_edges"))
    ends = ("from_uuid", "from_id", "to_uuid", "to_id")
    of_e, listed = ", ".join(f"e.{each}" for each in ends), ", ".join(ends)
    begins = f"e.{near}_uuid = {literal(table_uuid)} AND e.{near}_id = {snapshot_id}"
    continues = f"e.{near}_uuid = w.{far}_uuid AND e.{near}_id = w.{far}_id"
    parts, also, columns = [f"e AS (SELECT DISTINCT {listed} FROM {edges})"], "", listed
    if states:
        contains = ">=" if direction == "downstream" else "<="
        known = f"SELECT DISTINCT table_uuid, snapshot_id, sequence_number FROM {ledger} WHERE snapshot_id IS NOT NULL"
        joins = " ".join(
            f"LEFT JOIN s {end} ON {end}.table_uuid = i.{each}_uuid AND {end}.snapshot_id = i.{each}_id"
            for end, each in (("f", "from"), ("t", "to"))
        )
        own = f"SELECT sequence_number FROM s WHERE table_uuid = {literal(table_uuid)} AND snapshot_id = {snapshot_id}"
        parts = [
            f"s AS ({known})",
            f"e AS (SELECT DISTINCT i.{', i.'.join(ends)}, f.sequence_number AS from_seq, t.sequence_number AS to_seq\n"
            f"    FROM {edges} i {joins})",
        ]
        same, later = f"e.{near}_id = {snapshot_id}", f"e.{near}_seq {contains} ({own})"
        begins = f"e.{near}_uuid = {literal(table_uuid)} AND ({same} OR {later})"
        continues = (
            f"e.{near}_uuid = w.{far}_uuid AND (e.{near}_id = w.{far}_id OR e.{near}_seq {contains} w.{far}_seq)"
        )
        also, columns = f", e.{far}_seq", f"{listed}, {far}_seq"
    walk = (
        f"w(depth, {columns}) AS (\n"
        f"    SELECT DISTINCT 1, {of_e}{also} FROM e WHERE {begins}\n"
        f"    UNION ALL\n"
        f"    SELECT DISTINCT w.depth + 1, {of_e}{also} FROM w JOIN e ON {continues}\n"
        f"    WHERE w.depth < {max(_STEPS, deepest + 1)})"
    )
    with_all = ",\n  ".join([*parts, walk])
    return (
        f"WITH RECURSIVE {with_all}\n"
        f"SELECT min(depth) AS depth, {listed} FROM w GROUP BY {listed} ORDER BY depth, {listed}"
    )


def ingested_query(
    catalog: str,
    table_uuid: str,
    tiers: Sequence[tuple[str, str, TableMetadata]],
    partition: Mapping[str, str] | None,
    paths: Sequence[str],
) -> str:
    """Return Spark SQL with the ingests of a partition, newest first; with the snapshots that added one of `paths`; or,
    without both, with the table's newest ingest.

    `tiers` has (tier, the table's name in SQL, its metadata). A file that a compaction wrote is not traced: of a
    partition, the query lists the ingests in all tiers; of a path, the compaction.
    """
    ledger = name(catalog, "lifecycle", "lineage_ledger")
    if partition is None and not paths:
        return (
            "SELECT snapshot_id, operation, committed_at, writer_id, writer_commit_hash AS commit_hash\n"
            f"FROM {ledger}\n"
            f"WHERE table_uuid = {literal(table_uuid)} AND operation IN ('append', 'overwrite')\n"
            "ORDER BY committed_at DESC, snapshot_id DESC LIMIT 1"
        )
    selects = []
    for tier, table, metadata in tiers:
        if partition is None:
            condition = f"data_file.file_path IN ({', '.join(map(literal, paths))})"
        elif set(partition) <= metadata.partition_fields:
            texts = _partition_texts(metadata)
            condition = " AND ".join(f"{texts[field]} = {literal(text)}" for field, text in partition.items())
        else:
            continue
        selects.append(
            f"SELECT data_file.file_path AS path, snapshot_id, {literal(tier)} AS tier\n"
            f"    FROM {table}.all_entries WHERE status < 2 AND {condition}"
        )
    entries = "\n    UNION\n    ".join(selects)
    no_compactions = "" if partition is None else "WHERE l.operation <> 'replace'\n"
    return (
        f"WITH e AS (\n    {entries})\n"
        "SELECT e.path, e.snapshot_id, l.operation, l.committed_at, l.writer_id, l.writer_commit_hash AS commit_hash, "
        "e.tier\n"
        f"FROM e JOIN {ledger} l ON l.table_uuid = {literal(table_uuid)} AND l.snapshot_id = e.snapshot_id\n"
        f"{no_compactions}ORDER BY l.committed_at DESC, e.snapshot_id DESC, e.path"
    )


_TEXTS = {
    "year": "CAST(1970 + {0} AS string)",
    "month": "date_format(add_months(DATE '1970-01-01', {0}), 'yyyy-MM')",
    "hour": "concat(date_add(DATE '1970-01-01', CAST(floor({0} / 24) AS int)), '-', lpad(pmod({0}, 24), 2, '0'))",
}
"""Iceberg's human-readable form of a partition value, where it is not Spark's."""


def _partition_texts(metadata: TableMetadata) -> dict[str, str]:
    """Return the SQL of the human-readable value of each partition field, by name."""
    found: dict[str, str] = {}
    for text in metadata.partition_specs.values():
        for field in json.loads(text).get("fields", ()):
            column = name("data_file", "partition", field["name"])
            readable = _TEXTS.get(field["transform"], "CAST({0} AS string)").format(column)
            found[field["name"]] = f"coalesce({readable}, 'null')"
    return found
