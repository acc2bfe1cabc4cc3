"""Calls of pypaimon, run by the Python of its own environment. It imports nothing of this project.

Reads a JSON list of [name, arguments] from standard input, and writes a JSON list of what each returns.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema
from pypaimon.consumer.consumer import Consumer

_COLUMNS = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), pa.field("p", pa.string(), nullable=False), ("v", pa.string())]
)


def _catalog(warehouse: str) -> Any:
    return CatalogFactory.create({"warehouse": warehouse})


def _table(warehouse: str, name: str, branch: str = "main", **options: str) -> Any:
    suffix = "" if branch == "main" else f"$branch_{branch}"
    table = _catalog(warehouse).get_table(name + suffix)
    return table.copy(options) if options else table


def create(
    warehouse: str, name: str, *, partitioned: bool = False, keyed: bool = False, options: dict[str, str]
) -> None:
    catalog = _catalog(warehouse)
    catalog.create_database(name.partition(".")[0], True)
    partition = ["p"] if partitioned else []
    keys = [*partition, "k"] if keyed else []
    schema = Schema.from_pyarrow_schema(_COLUMNS, partition_keys=partition, primary_keys=keys, options=options)
    catalog.create_table(name, schema, False)


def write(warehouse: str, name: str, rows: list[list[Any]], *, branch: str = "main", overwrite: bool = False) -> int:
    table = _table(warehouse, name, branch)
    builder = table.new_batch_write_builder()
    if overwrite:
        builder = builder.overwrite()
    written, commit = builder.new_write(), builder.new_commit()
    columns = [list(column) for column in zip(*rows, strict=True)]
    written.write_arrow(pa.Table.from_arrays([*map(pa.array, columns, _COLUMNS.types)], schema=_COLUMNS))
    commit.commit(written.prepare_commit())
    written.close()
    commit.close()
    return int(table.snapshot_manager().get_latest_snapshot().id)


def read(warehouse: str, name: str, *, branch: str = "main", options: dict[str, str]) -> list[list[Any]]:
    builder = _table(warehouse, name, branch, **options).new_read_builder()
    found = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    return sorted([row["k"], row["p"], row["v"]] for row in found.to_pylist())


def tag(warehouse: str, name: str, label: str, snapshot: int, *, retained: str | None = None) -> None:
    _table(warehouse, name).create_tag(label, snapshot, time_retained=retained)


def delete_tag(warehouse: str, name: str, label: str) -> bool:
    return bool(_table(warehouse, name).delete_tag(label))


def create_branch(warehouse: str, name: str, branch: str, label: str | None = None) -> None:
    _table(warehouse, name).branch_manager().create_branch(branch, label)


def consume(warehouse: str, name: str, consumer: str, next_snapshot: int) -> None:
    _table(warehouse, name).consumer_manager().reset_consumer(consumer, Consumer(next_snapshot))


def rollback_to(warehouse: str, name: str, target: int | str) -> None:
    _table(warehouse, name).rollback_to(target)


_CALLS = {each.__name__: each for each in (create, write, read, tag, delete_tag, create_branch, consume, rollback_to)}

if __name__ == "__main__":
    calls = json.load(sys.stdin)
    out, sys.stdout = sys.stdout, sys.stderr
    json.dump([_CALLS[name](*given, **named) for name, given, named in calls], out)
