"""The outcomes of a job's files. Belongs here: their names, and storing them batch by batch. Does not belong here:
deciding them (`worker`), or the Iceberg table that people query (`results`).

    <root>/deletions/<job_id>/outcomes/batch-<n>.parquet (columns: `OUTCOMES`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.deletion.batches import MOST_PER_BATCH, job_folder
from artemis_lifecycle.protection.protection import WAITING
from artemis_lifecycle.spark.runner import Cost, Rows, Runner, Spark
from artemis_lifecycle.storage.columnar import ParquetReader, parquet_bytes
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUTCOMES = "path string, kind string, size_in_bytes bigint, outcome string, reason string"

Outcome = Literal["deleted", "quarantined", "absent", "kept", "failed", "would_delete"]

QUARANTINED: Final = "quarantined"
"""The outcome of a file that was moved from its path into quarantine."""

GONE: tuple[Outcome, ...] = ("deleted", QUARANTINED)
"""The outcomes of files that a job removed from their paths."""

_NAMES: tuple[Outcome, ...] = ("deleted", "quarantined", "absent", "kept", "failed", "would_delete")
_NOT_TOLD = "the store did not report what happened to it"
_READERS = 16


@dataclass(frozen=True)
class FileOutcome:
    """The outcome of one file. `reason` says why it was listed for deletion (deleted, quarantined, absent), why it was
    kept (kept), or what failed (failed)."""

    path: str
    kind: str
    size_in_bytes: int
    outcome: Outcome
    reason: str


class PieceOutcomes:
    """The outcomes of a piece's files, by row. A later outcome replaces an earlier one. A row without an outcome counts
    as failed, because the store did not report what happened to it."""

    def __init__(self, files: pa.Table) -> None:
        self._files = files
        self._codes = np.full(files.num_rows, -1, np.int8)
        self._reasons: dict[int, str] = {}

    def put(self, rows: NDArray[np.int64], outcome: Outcome) -> None:
        """Set this outcome for these rows. Their reason is the reason why they were listed for deletion."""
        self._codes[rows] = _NAMES.index(outcome)
        for row in set(self._reasons).intersection(rows.tolist()):
            del self._reasons[row]

    def put_each(self, reasons: Mapping[int, str], outcome: Outcome) -> None:
        """Set this outcome for these rows, each with a separate reason."""
        self._codes[list(reasons)] = _NAMES.index(outcome)
        self._reasons.update(reasons)

    def are(self, *outcomes: Outcome) -> pa.Array:
        """Return which rows have one of these outcomes."""
        return pa.array(np.isin(self._codes, [_NAMES.index(outcome) for outcome in outcomes]))

    def table(self, why_absent: str) -> pa.Table:
        """Return the rows as `OUTCOMES`. `why_absent` is appended to the reasons of absent files."""
        self.put_each(dict.fromkeys(np.flatnonzero(self._codes < 0).tolist(), _NOT_TOLD), "failed")
        reasons = self._files.column("reason")
        if why_absent:
            absent = pa.array(self._codes == _NAMES.index("absent"))
            reasons = pc.if_else(absent, pc.binary_join_element_wise(reasons, why_absent, ""), reasons)
        if self._reasons:
            own = pa.array([self._reasons.get(row) for row in range(len(self._codes))], pa.string())
            reasons = pc.coalesce(own, reasons)
        names = pa.DictionaryArray.from_arrays(pa.array(self._codes), pa.array(_NAMES)).cast(pa.string())
        files = {each: self._files.column(each) for each in ("path", "kind", "size_in_bytes")}
        return pa.table({**files, "outcome": names, "reason": reasons}).cast(arrow_schema(OUTCOMES))


def write_outcomes(stores: Stores, root: str, job_id: str, batch: int, outcomes: pa.Table) -> None:
    """Store the complete outcomes of a batch (columns: `OUTCOMES`), and replace those of an earlier attempt."""
    stores.write(_outcome_path(root, job_id, batch), parquet_bytes(outcomes), overwrite=True)


def read_outcomes(stores: Stores, root: str, job_id: str, batch: int) -> pa.Table:
    """Return the recorded outcomes of an earlier attempt at the batch (columns: `OUTCOMES`); empty if it recorded
    none."""
    path = _outcome_path(root, job_id, batch)
    if stores.head(path) is None:
        return arrow_schema(OUTCOMES).empty_table()
    return _outcome_table(stores, path)


def outcomes_of_job(stores: Stores, root: str, job_id: str) -> Iterator[FileOutcome]:
    """Yield every recorded outcome of a job, in the order of its batches."""
    for rows in outcome_tables(stores, root, job_id):
        for row in rows.to_pylist():
            yield FileOutcome(**row)


def outcome_tables(stores: Stores, root: str, job_id: str) -> Iterator[pa.Table]:
    """Yield the outcomes of each batch that has any, in the order of the job's batches (columns: `OUTCOMES`)."""
    parts = outcome_parts(stores, root, job_id)
    return threaded(lambda path: _outcome_table(stores, path), parts, stores.readers(root, _READERS, 0))


def outcome_parts(stores: Stores, root: str, job_id: str) -> list[str]:
    """Return the Parquet files with a job's outcomes, in the order of its batches."""
    listed = stores.list(f"{job_folder(root, job_id)}/outcomes")
    return sorted(file.path for file in listed if file.path.endswith(".parquet"))


def outcome_frame(spark: Spark, stores: Stores, root: str, job_id: str) -> DataFrame:
    """Return DataFrame[path, kind, size_in_bytes, outcome, reason] of all batches that have outcomes."""
    return job_outcomes(spark, stores, root, job_id).frame()


def job_outcomes(spark: Spark, stores: Stores, root: str, job_id: str) -> Rows:
    """Return the outcomes of all batches that have any (columns: `OUTCOMES`)."""
    parts = outcome_parts(stores, root, job_id)
    cost = Cost(len(parts), len(parts) * MOST_PER_BATCH)
    paths = pa.table({"path": pa.array(parts, pa.string())})
    return Runner(spark).map(paths, partial(_read_parts, stores), arrow_schema(OUTCOMES), cost)


def _read_parts(stores: Stores, paths: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in paths:
        for path in batch.column("path").to_pylist():
            yield from _outcome_table(stores, path).to_batches()


def _outcome_table(stores: Stores, path: str) -> pa.Table:
    return ParquetReader(stores.read(path), path, stores.limits).read().cast(arrow_schema(OUTCOMES))


def _outcome_path(root: str, job_id: str, batch: int) -> str:
    return f"{job_folder(root, job_id)}/outcomes/batch-{batch:08d}.parquet"


def waiting_rows(outcomes: pa.Table) -> pa.Array:
    """Return the rows of files that are kept only for now: the reason ends by itself, or a person can end it."""
    kept = pc.equal(outcomes.column("outcome"), "kept")
    return pc.and_(kept, pc.is_in(outcomes.column("reason"), pa.array(sorted(WAITING))))
