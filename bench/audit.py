"""The audit questions on a large ledger. `python -m bench.audit WORK` prints JSON.

The ledger and its edges are Iceberg tables of 24 monthly files each, as the monthly compaction leaves them, with
`--snapshots` rows over `--tables` tables in four layers; each snapshot lists two snapshots of the layer before. The
catalog has all tables; `--behind` of them have a commit that is not recorded yet. One table has real data files in 200
partitions. Each question is asked once, then `--repetitions` times warm. Without Spark. Memory is the most that the
process has had (VmHWM), and that before the first question.
"""

from __future__ import annotations

import argparse
import json
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.audit.ledger import EDGE_ROWS, ROWS
from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.operations.lineage import LedgerProgress, save_progress
from bench.configuration import config_in
from bench.parsing import resident

_MONTHS, _LAYERS, _PARTITIONS = 24, 4, 200
_BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.audit")
    parser.add_argument("work")
    parser.add_argument("--snapshots", type=int, default=1_000_000)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--behind", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=5)
    chosen = parser.parse_args()
    folder = Path(chosen.work).resolve() / f"audit-{uuid.uuid4().hex[:8]}"
    home = folder / "home"
    home.mkdir(parents=True)
    for each in (folder, home):
        each.chmod(0o755)
    server = EmbeddedPostgres(home)
    server.start()
    try:
        config = config_in(folder, server.uri("postgres"), home, defaults={})
        with Lifecycle.open(config) as lifecycle:
            print(json.dumps(_measured(lifecycle, folder, chosen), indent=2))
    finally:
        server.remove()


def _measured(lifecycle: Lifecycle, folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    live = lifecycle.config.catalogs.live
    catalog = SqlCatalog(live.name, uri=live.uri, warehouse=live.warehouse)
    uuids, target_ids = _tables(lifecycle, catalog, chosen)
    ids = _ledger(catalog, uuids, target_ids, chosen)
    start = int(ids[chosen.snapshots // 2 // chosen.tables * chosen.tables])
    last_layer = (_LAYERS - 1) * chosen.tables // _LAYERS
    end = int(ids[chosen.snapshots // 2 // chosen.tables * chosen.tables + last_layer])
    until = _BEGIN + timedelta(days=730)
    questions: dict[str, Callable[[], int]] = {
        "ingested, a partition": lambda: len(lifecycle.ingested("bench.t0", "day=d0100").files()),
        "ingested, newest of a table": lambda: len(lifecycle.ingested("bench.t0").files()),
        "downstream": lambda: len(lifecycle.downstream("bench.t0", start).edges),
        "upstream": lambda: len(lifecycle.upstream(f"bench.t{last_layer}", end).edges),
        "downstream, with states": lambda: len(lifecycle.downstream("bench.t0", start, states=True).snapshots),
        "overwrites of a week, all tables": lambda: len(lifecycle.overwrites(until - timedelta(days=7), until).rows),
        "overwrites of a year, all tables": lambda: len(lifecycle.overwrites(until - timedelta(days=365), until).rows),
        "overwrites of two years, one table": lambda: len(lifecycle.overwrites(_BEGIN, until, "bench.t7").rows),
        "incident": lambda: len(lifecycle.incident("bench.t0", int(target_ids[0])).html),
    }
    before = resident("VmHWM")
    answers: dict[str, Any] = {}
    for name, ask in questions.items():
        began = time.perf_counter()
        rows = ask()
        first, warm = time.perf_counter() - began, []
        for _ in range(chosen.repetitions):
            began = time.perf_counter()
            ask()
            warm.append(time.perf_counter() - began)
        answers[name] = {
            "rows": rows,
            "first_seconds": round(first, 2),
            "median_seconds": round(median(warm), 2),
            "most_seconds": round(max(warm), 2),
            "peak_bytes": resident("VmHWM"),
        }
    return {"snapshots": chosen.snapshots, "tables": chosen.tables, "peak_before": before, "answers": answers}


def _tables(lifecycle: Lifecycle, catalog: SqlCatalog, chosen: argparse.Namespace) -> tuple[list[str], list[int]]:
    """Create the live tables, and record how far the ledger has them. Return their uuids, and the snapshots of t0."""
    catalog.create_namespace_if_not_exists("bench")
    catalog.create_namespace_if_not_exists("lifecycle")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
    uuids, target_ids, progress = [], [], []
    for number in range(chosen.tables):
        table = catalog.create_table(f"bench.t{number}", schema, partition_spec=spec)
        days = _PARTITIONS if number == 0 else 1 if number <= chosen.behind else 0
        recorded = table.metadata_location
        for day in range(days):
            rows = pa.table({"id": pa.array([day], pa.int64()), "day": pa.array([f"d{day:04d}"], pa.string())})
            table.append(rows, snapshot_properties={"writer.id": "ingest"})
        if number == 0:
            recorded = table.metadata_location
            target_ids = [each.snapshot_id for each in table.metadata.snapshots]
        uuids.append(str(table.metadata.table_uuid))
        newest = target_ids[-1] if number == 0 else None
        progress.append(LedgerProgress(uuids[-1], recorded, newest, _PARTITIONS if newest else 0, _PARTITIONS, 0, 0))
    with lifecycle.operations.engine.begin() as connection:
        for each in progress:
            save_progress(connection, each)
    return uuids, target_ids


def _ledger(catalog: SqlCatalog, uuids: list[str], target_ids: list[int], chosen: argparse.Namespace) -> Any:
    """Write the ledger and its edges. Row i is a snapshot of table i % tables. Return the snapshot ids."""
    total, tables = chosen.snapshots, chosen.tables
    random = np.random.default_rng(1)
    ids = np.unique(random.integers(1, 2**62, total + total // 100))[:total]
    random.shuffle(ids)
    newest = np.arange(total - tables * len(target_ids), total, tables)
    ids[newest] = target_ids
    number = np.arange(total) % tables
    name_of, uuid_of = pa.array([f"bench.t{each}" for each in range(tables)]), pa.array(uuids)
    begin, span = int(_BEGIN.timestamp()), 730 * 86_400
    at = pa.array((begin + np.arange(total) * span // total) * 1_000_000).cast(pa.timestamp("us", "UTC"))
    draw = random.random(total)
    operations = pa.array(["append", "overwrite", "replace"]).take(pa.array((draw > 0.9).astype(int) + (draw > 0.95)))
    writers = pa.array([f"writer-{each}" for each in range(50)])
    people = pa.array(["j.smith", "a.jones", "k.lee", None])
    summary = json.dumps({f"key.{each}": "x" * 20 for each in range(15)})
    layer = tables // _LAYERS
    sources = np.flatnonzero(number >= layer)
    ledger = edges = None
    for month in range(_MONTHS):
        rows = np.arange(total * month // _MONTHS, total * (month + 1) // _MONTHS)
        take = pa.array(rows)
        columns: dict[str, Any] = {
            "table_uuid": uuid_of.take(pa.array(number[rows])),
            "table_name": name_of.take(pa.array(number[rows])),
            "snapshot_id": pa.array(ids[rows]),
            "parent_snapshot_id": pa.array(ids[np.maximum(rows - tables, 0)], mask=rows < tables),
            "committed_at": at.take(take),
            "operation": operations.take(take),
            "writer_id": writers.take(pa.array(rows % 50)),
            "writer_commit_hash": pa.array([f"{each:040x}" for each in rows % 1000]),
            "trigger_type": pa.repeat("schedule", len(rows)),
            "trigger_operator": people.take(pa.array(rows % 4)),
            "summary": pa.repeat(summary, len(rows)),
        }
        for field in ROWS:
            columns.setdefault(field.name, pa.nulls(len(rows), field.type))
        ledger = _append(catalog, ledger, "lineage_ledger", pa.table({each: columns[each] for each in ROWS.names}))
        readers = np.repeat(sources[(sources >= rows[0]) & (sources <= rows[-1])], 2)
        read = np.maximum(readers - layer - np.tile([0, 1], len(readers) // 2), 0)
        columns = {
            "from_catalog": pa.nulls(len(readers), pa.string()),
            "from_table": name_of.take(pa.array(number[read])),
            "from_uuid": uuid_of.take(pa.array(number[read])),
            "from_id": pa.array(ids[read]),
            "to_table": name_of.take(pa.array(number[readers])),
            "to_uuid": uuid_of.take(pa.array(number[readers])),
            "to_id": pa.array(ids[readers]),
        }
        edges = _append(catalog, edges, "lineage_edges", pa.table({each: columns[each] for each in EDGE_ROWS.names}))
    return ids


def _append(catalog: SqlCatalog, table: Any, name: str, rows: pa.Table) -> Any:
    rows = rows.append_column("batch_id", pa.repeat("bench", len(rows)))
    table = catalog.create_table(f"lifecycle.{name}", rows.schema) if table is None else table
    table.append(rows)
    return table


if __name__ == "__main__":
    main()
