"""Makes archived snapshots readable again for a while: which files that needs, requesting them from the store, and
checking when they are readable. Requests and approvals are in Postgres (`operations/deep_archive`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.cold_tier.requests import Request, each_file
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.metadata.kinds import CONTENT_KINDS
from artemis_lifecycle.operations.deep_archive import MoveRecord
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.walk import reachable_files
from artemis_lifecycle.spark.java_errors import worker_errors
from artemis_lifecycle.spark.runner import Runner, Spark
from artemis_lifecycle.storage.frames import arrow_schema, frame_batches, read_frame, write_frame
from artemis_lifecycle.storage.location import normalize_column
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

_SAMPLE = 25


@dataclass(frozen=True)
class ThawedFiles:
    """The state of a thaw. `readable_until` is the earliest end of all readable files; None if the store reports
    none."""

    files: int
    readable: int
    readable_until: datetime | None = None

    @property
    def done(self) -> bool:
        return self.readable == self.files


def seal_files(
    spark: Spark,
    view: IndexView,
    snapshot_ids: Sequence[int],
    moves: Sequence[MoveRecord],
    records: Stores,
    folder: str,
) -> tuple[int, int]:
    """Write under `folder` the list of these snapshots' files that were moved to the archive. Return (files, bytes)."""
    rules = view.index.rules
    runner = Runner(spark)
    with worker_errors():
        files = reachable_files(runner, view, snapshot_ids).frame()
        files = files.filter(files.kind.isin(*CONTENT_KINDS))
        moved = runner.session.createDataFrame([], "location string")
        for move in moves:
            frame = read_frame(runner, move.files_location, records).frame()
            moved = moved.unionByName(frame.select(normalize_column(frame.path, rules).alias("location")))
        wanted = files.join(moved.distinct(), "location", "left_semi").select("path", "size_in_bytes")
        moved_rows = runner.rows(wanted, arrow_schema("path string, size_in_bytes bigint"))
        sealed = write_frame(moved_rows, folder, records)
    sizes = (pc.sum(batch.column("size_in_bytes")).as_py() or 0 for batch in frame_batches(folder, records))
    return sealed.rows, sum(sizes)


def ask(spark: Spark, cold_stores: Stores, records: Stores, folder: str, days: int, retrieval: str) -> None:
    """Request every file under `folder` from the store. Repeating a request is harmless. Raises StorageError for the
    first file that the store does not thaw, and MissingFile for one that is gone."""
    request = partial(_ask, days=days, retrieval=retrieval)
    _run(spark, cold_stores, records, folder, request, "path string")


def progress(spark: Spark, cold_stores: Stores, records: Stores, folder: str) -> ThawedFiles:
    """Return the state of all files under `folder`. Raises StorageError for one that is gone."""
    rows = _run(spark, cold_stores, records, folder, _state, "readable boolean, until timestamp")
    ends = [until for _, until in rows if until is not None]
    return ThawedFiles(
        files=len(rows),
        readable=sum(readable for readable, _ in rows),
        readable_until=min(ends, default=None),
    )


def may_be_done(cold_stores: Stores, records: Stores, folder: str) -> bool:
    """Return True if the first files under `folder` are all readable: a cheap check before `progress`."""
    first = _first(records, folder, _SAMPLE)
    return all(readable for readable, _ in threaded(partial(_state, cold_stores), first, _SAMPLE))


def end(cold_stores: Stores, records: Stores, folder: str, others: Collection[str]) -> None:
    """Remove the readable copies of the files under `folder`, except those that a thaw under one of `others` still
    needs. S3 does this itself at the end of a thaw."""
    needed = {path for other in others for batch in frame_batches(other, records) for path in _paths(batch)}
    for batch in frame_batches(folder, records):
        for path in _paths(batch):
            if path not in needed:
                cold_stores.end_thaw(path)


def _paths(batch: pa.RecordBatch) -> list[str]:
    return list(batch.column("path").to_pylist())


def _first(records: Stores, folder: str, most: int) -> list[str]:
    for batch in frame_batches(folder, records):
        if batch.num_rows:
            return _paths(batch.slice(0, most))
    return []


def _run(
    spark: Spark, cold_stores: Stores, records: Stores, folder: str, request: Request, schema: str
) -> list[tuple[Any, ...]]:
    """Return the answers to `request` for every path under `folder`."""
    runner = Runner(spark)
    batches = frame_batches(folder, records)
    return [row for batch in batches for row in each_file(runner, cold_stores, request, schema, _paths(batch))]


def _ask(stores: Stores, path: str, *, days: int, retrieval: str) -> tuple[str]:
    stores.thaw(path, days=days, retrieval=retrieval)
    return (path,)


def _state(stores: Stores, path: str) -> tuple[bool, datetime | None]:
    state = stores.archive_state(path)
    if state is None:
        raise StorageError(
            "An archived file is gone",
            path=path,
            hint="find out who deleted it: no snapshot that reads it can be thawed",
        )
    return state.readable, state.readable_until
