"""One request to a store for each of many files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from artemis_lifecycle.spark.runner import Cost, Runner, record_batch
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

_THREADS = 16

Request = Callable[[Stores, str], tuple[Any, ...]]
"""Returns a store's answer for a path. Picklable; an exception ends the work."""


def each_file(
    runner: Runner, stores: Stores, request: Request, schema: str, paths: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Return the answers to `request` (columns: the DDL `schema`) for all paths, in any order."""
    if not paths:
        return []
    answers = arrow_schema(schema)
    function = partial(_requested, stores, request, answers, stores.readers(paths[0], _THREADS))
    rows = runner.map(pa.table({"path": pa.array(paths, pa.string())}), function, answers, Cost(len(paths)), threads=1)
    return list(zip(*(column.to_pylist() for column in rows.table().columns), strict=True))


def _requested(
    stores: Stores, request: Request, answers: pa.Schema, threads: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = threaded(partial(request, stores), batch.column("path").to_pylist(), threads)
        yield record_batch(list(found), answers)
