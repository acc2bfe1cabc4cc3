"""Copying: each file is copied or rewritten, read back and compared before it counts. Belongs here: what is done with
one file, and where: in threads of this process or on executors. Does not belong: which files, in which order, and what
a failure means to the plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.cold_tier.ledger import (
    COPIED,
    FAILED,
    LOST,
    PRESENT,
    REWRITTEN,
    SCHEMA,
    CopiedFile,
    to_batch,
)
from artemis_lifecycle.cold_tier.paths import Placing
from artemis_lifecycle.cold_tier.rewrite.deletes import RewrittenDelete
from artemis_lifecycle.cold_tier.rewrite.deletion_vectors import rewrite_deletion_vectors
from artemis_lifecycle.cold_tier.rewrite.manifest_lists import rewrite_manifest_list
from artemis_lifecycle.cold_tier.rewrite.manifests import rewrite_manifest
from artemis_lifecycle.cold_tier.rewrite.position_deletes import rewrite_position_deletes
from artemis_lifecycle.cold_tier.tasks import spread
from artemis_lifecycle.errors import CopyMismatch, HandoffFailed, MissingFile, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.kinds import DELETION_VECTORS, MANIFEST, MANIFEST_LIST, POSITION_DELETES
from artemis_lifecycle.metadata.types import UNKNOWN_LENGTH
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.roots import same_file
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

_FILES_PER_TASK = 50
_BYTES_PER_TASK = 256 << 20
_THREADS = 8

WANTED = "kind string, file_format string, source string, destination string, size_in_bytes bigint, checksum string"
"""What a batch's rows must have (`checksum`: what the source's must be, or null); for manifests also `deletes
array<struct<destination string, rewritten string>>`."""


def copy_here(rows: Sequence[Mapping[str, Any]], copier: Copier) -> list[CopiedFile]:
    """Copy every file of `rows` (the columns of WANTED) in threads of this process, whatever becomes of the others; one
    answer for each, by destination. Memory is, for each thread, one part of a file, or one whole file where it is
    rewritten."""
    return sorted(threaded(copier.one, rows, _THREADS), key=lambda file: file.destination)


def copy_rows(
    spark: SparkSession,
    rows: Sequence[Mapping[str, Any]],
    copier: Copier,
    lengths: Mapping[str, int],
    files: int,
    size_in_bytes: int,
) -> list[CopiedFile]:
    """As `copy_here`, on executors. `lengths` as for `Copier.with_lengths`."""
    if not rows:
        return []
    names = arrow_schema(WANTED).names
    values = [(*(row[name] for name in names), [tuple(item.values()) for item in row["deletes"]]) for row in rows]
    frame = spark.createDataFrame(values, f"{WANTED}, deletes array<struct<destination string, rewritten string>>")
    broadcast = spark.sparkContext.broadcast(dict(lengths))
    try:
        return copy_frame(frame, copier.with_lengths(broadcast), files, size_in_bytes)
    finally:
        broadcast.unpersist()


def copy_frame(wanted: DataFrame, copier: Copier, files: int, size_in_bytes: int) -> list[CopiedFile]:
    """As `copy_here`, for a DataFrame[WANTED] of about so many `files` and bytes, on executors."""
    tasks = max(-(-files // _FILES_PER_TASK), -(-size_in_bytes // _BYTES_PER_TASK))
    with worker_errors():
        rows = spread(wanted, tasks).mapInArrow(copier, SCHEMA).collect()
    return sorted((CopiedFile(**row.asDict()) for row in rows), key=lambda file: file.destination)


class Copier:
    """Copies one file at a time from `source` to `target`. Picklable.

    `accept_sizes` copies a file whose size is not the recorded one, as it is.
    """

    def __init__(
        self,
        source: Stores,
        target: Stores,
        mapping: Placing,
        *,
        accept_sizes: bool = False,
        lengths: Mapping[str, int] | Broadcast[dict[str, int]] | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._mapping = mapping
        self._accept_sizes = accept_sizes
        self._lengths = lengths

    def with_lengths(self, lengths: Mapping[str, int] | Broadcast[dict[str, int]] | None) -> Copier:
        """The same with the sizes of the copied manifests, by destination, which manifest lists are rewritten with."""
        return Copier(self._source, self._target, self._mapping, accept_sizes=self._accept_sizes, lengths=lengths)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield to_batch([self.one(row)])

    def one(self, row: Mapping[str, Any]) -> CopiedFile:
        """What became of one file; a failure is an answer."""
        wanted = CopiedFile(
            kind=row["kind"],
            file_format=row["file_format"],
            source=row["source"],
            destination=row["destination"],
            source_size=row["size_in_bytes"],
            size_in_bytes=row["size_in_bytes"],
            checksum=None,
            action=FAILED,
        )
        try:
            return self._copied(wanted, row)
        except MissingFile as error:
            gone = error.path in (None, wanted.source)
            return replace(wanted, action=LOST if gone else FAILED, error=error.what)
        except _Damaged as error:
            return replace(wanted, action=LOST, error=str(error))
        except (CopyMismatch, HandoffFailed, StorageError, UnreadableMetadata) as error:
            return replace(wanted, action=FAILED, error=str(error))

    def _copied(self, wanted: CopiedFile, row: Mapping[str, Any]) -> CopiedFile:
        if same_file(wanted.source, wanted.destination, self._mapping.rules):
            raise HandoffFailed(
                "The place of the copy is the file itself, under another name",
                path=wanted.source,
                untouched="the file",
                hint=f"see which link or mount leads {wanted.destination} there, remove it, then rerun",
            )
        rewrite = self._rewriter(wanted, row)
        if rewrite is None:
            return self._as_it_is(wanted, row["checksum"])
        data = self._source.read(wanted.source)
        _compare(_checksum(data), row["checksum"])
        wanted = self._sized(wanted, len(data))
        written, description = rewrite(data)
        checksum = _checksum(written)
        found = self._checksum_there(wanted.destination, len(written))
        action = PRESENT if found == checksum else REWRITTEN
        if found != checksum:
            self._refuse_to_replace(wanted.destination)
            self._write(wanted.destination, written, checksum)
        return replace(
            wanted,
            size_in_bytes=len(written),
            checksum=checksum,
            action=action,
            rewritten=None if description is None else description.to_json(),
        )

    def _rewriter(
        self, wanted: CopiedFile, row: Mapping[str, Any]
    ) -> Callable[[bytes], tuple[bytes, RewrittenDelete | None]] | None:
        """What makes the copy's bytes of the source's; None where they are the same."""
        source, mapped, limits = wanted.source, self._mapping, self._source.limits
        if wanted.kind == POSITION_DELETES:
            return lambda data: rewrite_position_deletes(data, source, wanted.file_format or "", mapped, limits)
        if wanted.kind == DELETION_VECTORS:
            return lambda data: rewrite_deletion_vectors(data, source, mapped, limits)
        if wanted.kind == MANIFEST:
            deletes = {
                item["destination"]: RewrittenDelete.from_json(item["rewritten"]) for item in row.get("deletes") or ()
            }
            return lambda data: (rewrite_manifest(data, source, mapped, deletes, mapped.ids, limits), None)
        if wanted.kind == MANIFEST_LIST:
            lengths: Mapping[str, int] = {}
            if self._lengths is not None:
                lengths = self._lengths if isinstance(self._lengths, Mapping) else self._lengths.value
            return lambda data: (rewrite_manifest_list(data, source, mapped, lengths, mapped.ids, limits), None)
        return None

    def _as_it_is(self, wanted: CopiedFile, recorded: str | None) -> CopiedFile:
        found = self._source.head(wanted.source)
        if found is None:
            raise _Damaged("the file is gone")
        wanted = self._sized(wanted, found.size_in_bytes)
        there = self._checksum_there(wanted.destination, found.size_in_bytes)
        if there is not None and there == (recorded or self._source.checksum(wanted.source)):
            return replace(wanted, checksum=there, action=PRESENT)
        if there is not None or self._target.head(wanted.destination) is not None:
            self._refuse_to_replace(wanted.destination)
        outcome = self._target.copy(wanted.source, wanted.destination, source_stores=self._source)
        _compare(outcome.checksum, recorded)
        return replace(wanted, size_in_bytes=outcome.size_in_bytes, checksum=outcome.checksum, action=COPIED)

    def _sized(self, wanted: CopiedFile, size: int) -> CopiedFile:
        # v1's inline manifests come without a recorded size. A manifest or a list that changed is never to be accepted.
        acceptable = self._accept_sizes and wanted.kind not in (MANIFEST, MANIFEST_LIST)
        if wanted.source_size not in (size, UNKNOWN_LENGTH) and not acceptable:
            raise _Damaged(f"the file has {size} bytes, and the metadata records {wanted.source_size}")
        return replace(wanted, source_size=size, size_in_bytes=size)

    def _checksum_there(self, destination: str, size: int) -> str | None:
        """The checksum of the file at `destination` when it has that size."""
        found = self._target.head(destination)
        return self._target.checksum(destination) if found is not None and found.size_in_bytes == size else None

    def _refuse_to_replace(self, destination: str) -> None:
        # Where nothing else writes, what differs is a broken copy, to be redone.
        if not self._mapping.owns(destination) and self._target.head(destination) is not None:
            raise HandoffFailed(
                "Another file stands at the mirrored path, outside the table's own location in the cold tier",
                path=destination,
                untouched="both files",
                hint="see whose file that is; move it, or set cold_tier.enabled to false for this table",
            )

    def _write(self, destination: str, data: bytes, checksum: str) -> None:
        for _ in range(self._target.settings.copy_attempts):
            self._target.write(destination, data, overwrite=True)
            if self._target.checksum(destination) == checksum:
                return
        raise CopyMismatch(
            f"A rewritten file reads back differently, {self._target.settings.copy_attempts} times",
            path=destination,
            untouched="the file it was made of",
            hint="check that store, then run the step again: finished batches are kept",
        )


def _checksum(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _compare(found: str, recorded: str | None) -> None:
    if recorded not in (None, found):
        raise _Damaged(f"the file is {found}, and was {recorded} when it was copied here")


class _Damaged(Exception):  # noqa: N818  (control flow inside `Copier`)
    """The source is not what the metadata, or the record of its copying, says."""
