"""A job's files, cut into batches exactly once, so that another process can resume at batch level.

    <root>/deletions/<job_id>/batches/batches.json and the Parquet parts that it names, one per batch (columns: `BATCH`)

Order: data and delete files first, then statistics, manifests, manifest lists and metadata files. Any order would be
safe, because the sealed list alone makes a job resumable. This order frees the most bytes first. If both the list and
the journal are lost, the remaining files can still be found from the metadata that is deleted last.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.errors import ExistingFile, StorageError
from artemis_lifecycle.metadata.types import MANIFEST, MANIFEST_LIST, METADATA, NAMED_BY_SNAPSHOT
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.journal import JobKind
from artemis_lifecycle.protection.protection import WAITING
from artemis_lifecycle.spark.runner import Cost, Rows, Runner, Spark, first_of_each
from artemis_lifecycle.storage.columnar import ParquetReader, parquet_bytes
from artemis_lifecycle.storage.frames import arrow_schema, frame_batches, read_frame, sealed_part
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.storage.types import NO_TAG, NO_TIME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# --- outcomes ---------------------------------------------------------------------------------------------------------
# The outcomes of a job's files.
#
#     <root>/deletions/<job_id>/outcomes/batch-<n>.parquet (columns: `OUTCOMES`)

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


BATCH = "path string, kind string, size_in_bytes bigint, reason string, last_modified timestamp, tag bigint"

MOST_PER_BATCH = 4_000
"""What S3 deletes at once: a request of a thousand keys for each thread."""

_ORDER = (*NAMED_BY_SNAPSHOT.values(), MANIFEST, MANIFEST_LIST, METADATA)
_WRITTEN = "rank bigint, first string, name string, files bigint, bytes bigint, sha256 string"
_WRITERS = 8
_MIXED = 1_000
"""Files of a job whose batch may have files of every rank."""


@dataclass(frozen=True)
class DeletionJob:
    """A sealed list of files to delete: of an expiration plan after its commit, of an orphan scan, or of the scan of a
    dropped table.

    `files_location` is the folder of a sealed frame with columns path, kind, size_in_bytes, reason (and last_modified
    and tag, if the store was asked). `files` is its number of rows according to its record. `snapshot_ids` are the
    plan's expired snapshots. `sealed_at` is when a plan was sealed, by the clock of its files' store (microseconds).
    """

    job_id: str
    kind: JobKind
    table_uuid: str
    table: str
    files_location: str
    files: int
    snapshot_ids: tuple[int, ...] = ()
    sealed_at: int | None = None


@dataclass(frozen=True)
class BatchPart:
    """The stored rows of one batch: their number, the total size of their files, and the part's checksum."""

    batch: int
    name: str
    files: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Batches:
    """The sealed batches of a job, by number."""

    folder: str
    parts: Mapping[int, BatchPart]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(files, bytes) of each batch, in order."""
        return [(self.parts[batch].files, self.parts[batch].bytes) for batch in sorted(self.parts)]


def job_folder(root: str, job_id: str) -> str:
    return f"{root}/deletions/{job_id}"


def seal_batches(spark: Spark, stores: Stores, job: DeletionJob, root: str, files_per_batch: int) -> Batches:
    """Cut the job into batches, or return the existing ones: the first process to seal decides for all later processes.

    Raises StorageError if the job's list cannot be read, or if its number of rows differs from its record.
    """
    folder = f"{job_folder(root, job.job_id)}/batches"
    seal = f"{folder}/batches.json"
    if stores.head(seal) is None:
        parts = _written(Runner(spark), stores, job, folder, files_per_batch)
        _require_parts(job, parts, folder)
        content = json.dumps([asdict(parts[batch]) for batch in sorted(parts)]).encode()
        # If another worker sealed in the meantime, its parts are used, and the parts written here are garbage.
        with around("deletion.seal_batches"), suppress(ExistingFile):
            stores.write(seal, content)
    try:
        found = [BatchPart(**part) for part in json.loads(stores.read(seal))]
    except (ValueError, TypeError) as error:
        raise StorageError(
            f"The seal of the batches of {job.job_id} is damaged: {error}",
            table=job.table,
            path=seal,
            untouched="all files of the job that were not deleted before",
            hint="plan or scan again",
        ) from error
    batches = Batches(folder, {part.batch: part for part in found})
    _require_parts(job, batches.parts, folder)
    return batches


def _written(
    runner: Runner, stores: Stores, job: DeletionJob, folder: str, files_per_batch: int
) -> dict[int, BatchPart]:
    """Write the batches of the job's list, and number them in the order of deletion."""
    listed = read_frame(runner, job.files_location, stores)
    if job.files:
        _require_columns(job, listed.schema.names)
    cut = _Cut(folder, stores, files_per_batch, mixed=job.files <= min(files_per_batch, _MIXED))
    written = runner.meet([listed], "path", cut, arrow_schema(_WRITTEN), Cost(rows=job.files)).table()
    ordered = written.sort_by([("rank", "ascending"), ("first", "ascending")]).drop_columns(["rank", "first"])
    return {batch: BatchPart(batch, **row) for batch, row in enumerate(ordered.to_pylist())}


class _Cut:
    """Sorts files by rank and path, and stores them as batches. A batch has one rank, unless `mixed`."""

    def __init__(self, folder: str, stores: Stores, files_per_batch: int, mixed: bool) -> None:
        self.folder = folder
        self.stores = stores
        self.files_per_batch = files_per_batch
        self.mixed = mixed

    def __call__(self, files: pa.Table) -> pa.Table:
        files = with_identity(first_of_each(files, "path"))
        rank = pc.fill_null(pc.add(pc.index_in(files.column("kind"), pa.array(_ORDER)), 1), 0).cast(pa.int64())
        ordered = files.append_column("rank", rank).sort_by([("rank", "ascending"), ("path", "ascending")])
        each_rank = (ordered.filter(pc.field("rank") == each) for each in range(len(_ORDER) + 1))
        size = self.files_per_batch
        pieces = [
            rows.slice(start, size)
            for rows in ([ordered] if self.mixed else each_rank)
            for start in range(0, rows.num_rows, size)
        ]
        # Each write waits for its store, including a disk: the call returns once the part is on it.
        return pa.Table.from_pylist(list(threaded(self._store, pieces, _WRITERS)), arrow_schema(_WRITTEN))

    def _store(self, files: pa.Table) -> dict[str, object]:
        data = parquet_bytes(files.select(arrow_schema(BATCH).names))
        name = f"batch-{uuid.uuid4().hex}.parquet"
        self.stores.write(f"{self.folder}/{name}", data)
        return {
            "rank": files.column("rank")[0].as_py(),
            "first": files.column("path")[0].as_py(),
            "name": name,
            "files": files.num_rows,
            "bytes": pc.sum(files.column("size_in_bytes")).as_py() or 0,
            "sha256": hashlib.sha256(data).hexdigest(),
        }


def with_identity(files: pa.Table, columns: Mapping[str, pa.Array] | None = None) -> pa.Table:
    """Add what the store said of the files: these `columns`, or nulls in those that the list lacks."""
    for name, kind in (("last_modified", pa.timestamp("us", "UTC")), ("tag", pa.int64())):
        if name not in files.column_names:
            files = files.append_column(name, pa.nulls(files.num_rows, kind) if columns is None else columns[name])
    return files


def _require_columns(job: DeletionJob, found: Sequence[str]) -> None:
    missing = {"path", "kind", "size_in_bytes", "reason"} - set(found)
    if missing:
        raise StorageError(
            f"The sealed list of {job.job_id} lacks the columns {', '.join(sorted(missing))}",
            table=job.table,
            path=job.files_location,
            untouched="all files of the job",
            hint="plan or scan again",
        )


def batch_paths(stores: Stores, batches: Batches) -> Iterator[pa.Array]:
    """Yield the paths of each batch in turn. Each part is verified against its checksum as it is read."""
    parts = [batches.parts[batch] for batch in sorted(batches.parts)]

    def read(part: BatchPart) -> pa.Array:
        return _part(stores, batches, part).column("path").combine_chunks()

    return threaded(read, parts, stores.readers(batches.folder, _READERS))


def read_batch(stores: Stores, batches: Batches, batch: int) -> pa.Table:
    """Return the files of one batch, as `BATCH`. `last_modified` is in microseconds since 1970 (NO_TIME for a file that
    the store was not asked about; its tag is NO_TAG). An unknown size is 0. Raises StorageError if the part is missing
    or differs from its seal."""
    part = batches.parts.get(batch)
    if part is None:
        raise StorageError(
            f"The journal has batch {batch}, which was never sealed",
            path=batches.folder,
            untouched="the files of the batch",
            hint="plan or scan again",
        )
    return _as_numbers(_part(stores, batches, part))


def _part(stores: Stores, batches: Batches, part: BatchPart) -> pa.Table:
    return sealed_part(f"{batches.folder}/{part.name}", part.sha256, stores).read()


def sealed_pieces(stores: Stores, job: DeletionJob, most: int) -> Iterator[pa.Table]:
    """Yield the job's list in the format of `read_batch`, in pieces of at most `most` files, in the order of the
    list."""
    for batch in frame_batches(job.files_location, stores):
        _require_columns(job, batch.schema.names)
        rows = with_identity(pa.Table.from_batches([batch]))
        yield from (_as_numbers(rows.slice(start, most)) for start in range(0, rows.num_rows, most))


def _as_numbers(rows: pa.Table) -> pa.Table:
    modified = rows.column("last_modified").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    changed = {
        "size_in_bytes": pc.fill_null(rows.column("size_in_bytes"), 0),
        "last_modified": pc.fill_null(modified, NO_TIME),
        "tag": pc.fill_null(rows.column("tag"), NO_TAG),
    }
    return pa.table({name: changed.get(name, rows.column(name)) for name in rows.column_names}).combine_chunks()


def _require_parts(job: DeletionJob, parts: Mapping[int, BatchPart], folder: str) -> None:
    whole = sorted(parts) == list(range(len(parts)))
    require_count(job, sum(part.files for part in parts.values()), folder, whole=whole)


def require_count(job: DeletionJob, found: int, path: str, *, whole: bool = True) -> None:
    """Raise StorageError unless the list at `path` is `whole` and has as many files as the job's record says."""
    if found != job.files or not whole:
        raise StorageError(
            f"The sealed list of {job.job_id} has {found:,} paths, but its record says {job.files:,}",
            table=job.table,
            path=path,
            untouched="all files of the job",
            hint="plan or scan again; the stored list was damaged",
        )
