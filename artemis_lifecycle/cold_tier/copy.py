"""Copying: each file is copied or rewritten, read back and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.cold_tier.ledger import COPIED, COPIES, FAILED, LATE, LOST, PRESENT, REWRITTEN, TAKEN, CopiedFile
from artemis_lifecycle.cold_tier.paths import Placing, Undecidable
from artemis_lifecycle.cold_tier.rewriting import (
    RewrittenDelete,
    rewrite_deletion_vectors,
    rewrite_manifest,
    rewrite_manifest_list,
    rewrite_position_deletes,
)
from artemis_lifecycle.errors import (
    CopyMismatch,
    ExistingFile,
    HandoffFailed,
    MissingFile,
    StorageError,
    UnreadableMetadata,
)
from artemis_lifecycle.metadata.types import DELETION_VECTORS, MANIFEST, MANIFEST_LIST, POSITION_DELETES, UNKNOWN_LENGTH
from artemis_lifecycle.spark.runner import Cost, Rows, Runner, fits_in_process, record_batch
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.local.store import no_place
from artemis_lifecycle.storage.location import ambiguity
from artemis_lifecycle.storage.roots import same_file
from artemis_lifecycle.storage.stores import StoredFile, Stores, is_local
from artemis_lifecycle.storage.threads import threaded

# --- requests ---------------------------------------------------------------------------------------------------------
# One request to a store for each of many files.

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


DELETES = pa.field("deletes", pa.list_(pa.struct([("destination", pa.string()), ("rewritten", pa.string())])))
"""How the delete files of a manifest were rewritten; null for other files."""

WANTED = pa.schema(
    [
        *arrow_schema(
            "kind string, file_format string, source string, destination string, size_in_bytes bigint, "
            "checksum string, added_by bigint"
        ),
        DELETES,
    ]
)
"""The files to copy (`checksum`: the required checksum of the source, or null; `added_by`: the snapshot that added it).
Only manifests need `deletes`."""


_AT_ONCE, _IN_PROCESS = 32, 8
"""Copies of one task at once, where the server copies; and threads of this process for other files."""

_LITTLE = 64 << 20
"""Bytes of files that may be in memory at once: each file then has a thread, where the store has a latency to hide."""

_HASHED = 4
"""So many bytes that a server copies cost this process, which only hashes them, as one that it carries."""

_WHOLE = frozenset({POSITION_DELETES, DELETION_VECTORS, MANIFEST, MANIFEST_LIST})
"""Kinds of files that are rewritten, and held in memory for it."""


def copy_files(runner: Runner, rows: Rows | pa.Table, copier: Copier, cost: Cost) -> list[CopiedFile]:
    """Copy every file of `rows` (WANTED), even if others fail. Return one result per file, by destination. Memory per
    thread is one part of a file, or one complete file if it is rewritten."""
    data = rows if isinstance(rows, pa.Table) else rows.data
    threads = _IN_PROCESS
    if isinstance(data, pa.Table) and data.num_rows:
        if cost.size_in_bytes <= _LITTLE:
            threads = max(threads, copier.target.readers(data.column("destination")[0].as_py(), _AT_ONCE))
        others = data.filter(pc.invert(pc.is_in(data.column("kind"), pa.array(sorted(_WHOLE)))))
        # What a probe shows goes to executors with the stores.
        if any(
            copier.target.copies_within(copier.source, row["source"], row["destination"])
            for row in others.slice(0, 1).to_pylist()
        ):
            copied = pc.sum(others.column("size_in_bytes")).as_py() or 0
            cost = replace(cost, size_in_bytes=max(0, cost.size_in_bytes - copied + copied // _HASHED))
    if fits_in_process(cost):
        copier = replace(copier, carried_at_once=threads)
    done = runner.map(rows, copier, COPIES, cost, threads=1).table()
    return sorted((CopiedFile(**row) for row in done.to_pylist()), key=lambda file: file.destination)


@dataclass(frozen=True, eq=False)
class Copier:
    """Copies files from `source` to `target`: `at_once` where the server copies, others `carried_at_once`. Picklable.

    `lengths` are the sizes of the copied manifests, by destination, with which manifest lists are rewritten. Files
    to `excluded` destinations are skipped. `committed` is when each snapshot was committed (microseconds since
    1970): a source that is newer than the snapshot that added it is LATE, except to destinations in `checked`.
    None: nothing is late. A destination with another file is TAKEN unless it is in `replaceable` (None: all are).
    `required` are the checksums that rewritten files must have, by destination: others are not written.
    """

    source: Stores
    target: Stores
    mapping: Placing
    lengths: Mapping[str, int] = field(default_factory=dict)
    excluded: Collection[str] = ()
    committed: Mapping[int, int] | None = None
    checked: Collection[str] = ()
    replaceable: Collection[str] | None = None
    required: Mapping[str, str] = field(default_factory=dict)
    at_once: int = _AT_ONCE
    carried_at_once: int = 1

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            within: list[Mapping[str, Any]] = []
            others: list[Mapping[str, Any]] = []
            for row in batch.to_pylist():
                if row["destination"] in self.excluded:
                    continue
                by_server = row["kind"] not in _WHOLE and self.target.copies_within(
                    self.source, row["source"], row["destination"]
                )
                (within if by_server else others).append(row)
            copies = threaded(partial(self._one, by_server=True), within, self.at_once)
            for done in chain(copies, threaded(self._one, others, self.carried_at_once)):
                yield pa.RecordBatch.from_pylist([asdict(done)], schema=COPIES)

    def _one(self, row: Mapping[str, Any], by_server: bool = False) -> CopiedFile:
        """Return the result of one file; a failure is a result."""
        wanted = CopiedFile(
            kind=row["kind"],
            file_format=row["file_format"],
            source=row["source"],
            destination=row["destination"],
            source_size=row["size_in_bytes"],
            size_in_bytes=row["size_in_bytes"],
            checksum=None,
            action=FAILED,
            added_by=row["added_by"],
        )
        try:
            unclear = ambiguity(wanted.source, self.mapping.rules)
            if unclear is not None:
                raise _Damaged(f"engines may read another object by this path: {unclear}")
            read: str | None = None
            if by_server:
                found, read = self.source.head_and_checksum(wanted.source, lambda head: not self._is_late(wanted, head))
            else:
                found = self.source.head(wanted.source)
            if found is None:
                raise _Damaged("the file is gone")
            if self._is_late(wanted, found):
                return replace(wanted, action=LATE)
            done = self._copied(wanted, row, found, read)
            if done.action != COPIED:
                self.source.require_unchanged(wanted.source, found)
            return done.of(found.identity, done.source_checksum or done.checksum)
        except MissingFile as error:
            gone = error.path in (None, wanted.source)
            return replace(wanted, action=LOST if gone else FAILED, error=error.what)
        except _TakenError:
            return replace(wanted, action=TAKEN)
        except (_Damaged, Undecidable) as error:
            return replace(wanted, action=LOST, error=str(error))
        except (CopyMismatch, HandoffFailed, StorageError, UnreadableMetadata) as error:
            place = wanted.destination
            why = no_place(place) if is_local(place) else None
            if why is not None:
                return replace(wanted, action=LOST, error=f"the disk can have no copy of it at {place}: {why}")
            return replace(wanted, action=FAILED, error=str(error))

    def _is_late(self, wanted: CopiedFile, source: StoredFile) -> bool:
        if self.committed is None or wanted.destination in self.checked:
            return False
        # Without the snapshot, when it was committed is unknown. Commits are recorded in whole milliseconds.
        return source.since > self.committed.get(wanted.added_by or 0, -1) + 1000

    def _copied(self, wanted: CopiedFile, row: Mapping[str, Any], source: StoredFile, read: str | None) -> CopiedFile:
        if same_file(wanted.source, wanted.destination, self.mapping.rules):
            raise HandoffFailed(
                "The place of the copy is the file itself, under another name",
                path=wanted.source,
                untouched="the file",
                hint=f"find the link or mount through which {wanted.destination} leads there, remove it, then rerun",
            )
        rewrite = self._rewriter(wanted, row)
        if rewrite is None:
            return self._as_it_is(wanted, row["checksum"], source, read)
        data = self.source.read(wanted.source)
        source_checksum = _checksum(data)
        _compare(source_checksum, row["checksum"])
        wanted = self._sized(wanted, len(data))
        written, description = rewrite(data)
        checksum = _checksum(written)
        required = self.required.get(wanted.destination, checksum)
        if checksum != required:
            # What is there may be the last whole copy: one in the archive, whose place says nothing of its content.
            raise _Damaged(f"the new copy is {checksum}, but the lost one was {required}")
        there, stored = self._there(wanted.destination, len(written))
        action = PRESENT if stored == checksum else REWRITTEN
        if stored != checksum:
            self._write(wanted.destination, written, checksum, overwrite=self._replaces(wanted, there))
        return replace(
            wanted,
            size_in_bytes=len(written),
            checksum=checksum,
            action=action,
            rewritten=None if description is None else description.to_json(),
            source_checksum=source_checksum,
        )

    def _rewriter(
        self, wanted: CopiedFile, row: Mapping[str, Any]
    ) -> Callable[[bytes], tuple[bytes, RewrittenDelete | None]] | None:
        """Return the function that rewrites the source's bytes; None if the copy has the same bytes."""
        source, mapped, limits = wanted.source, self.mapping, self.source.limits
        inherited = wanted.added_by

        def meant(path: str) -> str:
            return mapped.meant(path, inherited)

        def used(path: str, added_by: int | None, is_referenced: bool) -> str:
            return (mapped.meant if is_referenced else mapped.used)(path, inherited if added_by is None else added_by)

        if wanted.kind == POSITION_DELETES:
            return lambda data: rewrite_position_deletes(data, source, wanted.file_format or "", meant, limits)
        if wanted.kind == DELETION_VECTORS:
            return lambda data: rewrite_deletion_vectors(data, source, meant, limits)
        if wanted.kind == MANIFEST:
            deletes = {
                item["destination"]: RewrittenDelete.from_json(item["rewritten"]) for item in row.get("deletes") or ()
            }
            return lambda data: (rewrite_manifest(data, source, mapped, deletes, mapped.ids, limits, used), None)
        if wanted.kind == MANIFEST_LIST:
            lengths = self.lengths
            return lambda data: (rewrite_manifest_list(data, source, mapped, lengths, mapped.ids, limits, used), None)
        return None

    def _as_it_is(self, wanted: CopiedFile, recorded: str | None, found: StoredFile, read: str | None) -> CopiedFile:
        """`read` is the checksum of the source if it was read, because its server copies."""
        wanted = self._sized(wanted, found.size_in_bytes)
        if read is not None and recorded in (None, read):
            # Where nothing is, as in nearly all cases, the copy needs no look before: it has the condition.
            source, place = wanted.source, wanted.destination
            if self.target.copy_new(source, place, source_stores=self.source, found=found, checksum=read):
                return replace(wanted, checksum=read, action=COPIED)
            self.source.require_unchanged(source, found)
        there, stored = self._there(wanted.destination, found.size_in_bytes)
        if stored is not None and stored == (recorded or read or self.source.checksum(wanted.source)):
            return replace(wanted, checksum=stored, action=PRESENT)

        # Without anything to replace, never over a file that came since: of a worker that finished this one's work.
        overwrite = self._replaces(wanted, there)
        try:
            outcome = self.target.copy(
                wanted.source,
                wanted.destination,
                source_stores=self.source,
                found=found,
                absent=there is None,
                overwrite=overwrite,
                confirm=lambda checksum: _compare(checksum, recorded),
            )
        except ExistingFile as error:
            raise _TakenError from error
        return replace(wanted, size_in_bytes=outcome.size_in_bytes, checksum=outcome.checksum, action=COPIED)

    def _sized(self, wanted: CopiedFile, size: int) -> CopiedFile:
        # Format v1's inline manifests have no recorded size.
        if wanted.source_size not in (size, UNKNOWN_LENGTH):
            raise _Damaged(f"the file has {size} bytes, but the metadata records {wanted.source_size}")
        return replace(wanted, source_size=size, size_in_bytes=size)

    def _there(self, destination: str, size: int) -> tuple[StoredFile | None, str | None]:
        """Return what is at `destination`, and its checksum if it has that size, and is not in the archive: that is
        written again."""
        there = self.target.head(destination)
        same_size = there is not None and there.size_in_bytes == size
        state = self.target.archive_state(destination) if same_size else None
        is_readable = state is not None and not state.archived
        return there, self.target.checksum(destination) if is_readable else None

    def _replaces(self, wanted: CopiedFile, there: StoredFile | None) -> bool:
        """Return True if there is a file at the destination, which may be replaced: only this table writes there, so a
        different file with a record is a broken copy. Raises _TakenError for any other one."""
        if there is None:
            return False
        if self.replaceable is not None and wanted.destination not in self.replaceable:
            raise _TakenError
        return True

    def _write(self, destination: str, data: bytes, checksum: str, *, overwrite: bool) -> None:
        for number in range(self.target.settings.copy_attempts):
            try:
                self.target.write(destination, data, overwrite=overwrite or number > 0)
            except ExistingFile as error:
                raise _TakenError from error
            if self.target.checksum(destination) == checksum:
                return
        raise CopyMismatch(
            f"A rewritten file reads back differently, {self.target.settings.copy_attempts} times",
            path=destination,
            untouched="the source file",
            hint="check that store, then run the step again: finished batches are kept",
        )


def _checksum(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _compare(found: str, recorded: str | None) -> None:
    if recorded not in (None, found):
        raise _Damaged(f"the file is {found}, but was {recorded} when it was copied here")


class _Damaged(Exception):  # noqa: N818  (control flow inside `Copier`)
    """The source differs from its metadata, or from the record of its copy."""


class _TakenError(Exception):
    """Another file is at the destination."""
