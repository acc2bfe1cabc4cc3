"""Whether the file at a doomed path is still the doomed file: a path is only where it was.

A listing, a handoff and the commit each record what the store said of a file. Without any record, a file that was
modified since its plan was sealed, or that has another size than its metadata says, is another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.deletion.batches import DeletionJob, with_identity
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.protection.context import ArchivedFile, DeletionContext
from artemis_lifecycle.protection.protection import ANOTHER_FILE, UNPROVEN
from artemis_lifecycle.storage.frames import describe_frame, frame_batches, owner_folder, write_batches
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import NO_TAG, NO_TIME, OTHER, SAME, UNSURE, FileIdentity, FileStatuses, compare

CHANGED = "changed_since_listing"
"""An orphan job's file is not the listed one: its size differs, or it was written again."""

_SECOND = 1_000_000
_FAILURES = 20
"""Files that a store may refuse to answer for, one by one, before the deletion stops."""

_ABSENT = -1
"""The recorded token of a path that had no file at the first look."""

_HASHED_FILES, _HASHED_BYTES = 1_000, 20 << 30
"""What one run reads at most to compare content."""


@dataclass(frozen=True)
class Look:
    """What the store says of some files, one row each; `failed` has the error of each row that it does not answer."""

    now: FileStatuses
    failed: Mapping[int, str]


def look(stores: Stores, paths: pa.Array) -> Look:
    """Ask the store about these files. A few that it does not answer for are reported, more of them raise
    StorageError."""
    try:
        return Look(stores.statuses(paths), {})
    except StorageError:
        now, failed = FileStatuses.of([None] * len(paths)), dict[int, str]()
        for row, path in enumerate(paths.to_pylist()):
            try:
                now.put(row, stores.head(path))
            except StorageError as error:
                failed[row] = error.what
                if len(failed) > _FAILURES:
                    raise
        return Look(now, failed)


def same(before: FileStatuses, now: FileStatuses) -> NDArray[np.bool_]:
    """Return which rows have exactly the file that they had `before`."""
    equal = compare(before.sizes, before.modified, before.tags, now.sizes, now.modified, now.tags) == SAME
    result: NDArray[np.bool_] = before.found & now.found & equal
    return result


def first_look(stores: Stores, files_location: str, *, record: bool = True) -> str:
    """Record what the store says of a plan's files beside its list, and return the location of that list; if it is
    already recorded, return it. Ordinary buckets of S3 set a time with all that comes to a path, which says enough;
    elsewhere a file that is renamed keeps its own."""
    folder = f"{owner_folder(files_location)}/seen"
    if describe_frame(folder, stores) is not None:
        return folder
    if not record or not any(_may_be_renamed(batch) for batch in frame_batches(files_location, stores)):
        return files_location

    def seen() -> Iterator[pa.RecordBatch]:
        for batch in frame_batches(files_location, stores):
            found = look(stores, batch.column("path"))
            tags = np.where(found.now.found, found.now.tags, _ABSENT)
            tags[list(found.failed)] = NO_TAG
            times = pa.array(found.now.modified, pa.int64(), mask=~found.now.found | (found.now.modified == NO_TIME))
            columns = {"last_modified": times.cast(pa.timestamp("us", "UTC")), "tag": pa.array(tags, pa.int64())}
            yield from with_identity(pa.Table.from_batches([batch]), columns).to_batches()

    rows = seen()
    looked = next(rows)
    write_batches(chain([looked], rows), looked.schema, folder, stores)
    return folder


def _may_be_renamed(files: pa.RecordBatch) -> bool:
    """Whether any of these is not in an ordinary bucket of S3: a directory bucket's name ends in `--x-s3`."""
    paths = files.column("path")
    in_buckets = pc.match_substring_regex(paths, "^s3[an]?://")
    return not pc.all(pc.and_not(in_buckets, pc.match_substring_regex(paths, "^[^/]*//[^/]*--x-s3/"))).as_py()


class Identities:
    """Compares a job's files with what was recorded of them. Remembers content that it has compared."""

    def __init__(self, context: DeletionContext, job: DeletionJob) -> None:
        self._context = context
        self._job = job
        self._proven: dict[str, tuple[int, int, int]] = {}
        self._files, self._bytes = 0, 0

    def others(self, files: pa.Table, now: FileStatuses) -> dict[int, str]:
        """Return the rows that now have another file than the recorded one, or may have, each with its reason."""
        sizes, modified, tags = (files.column(name).to_numpy() for name in ("size_in_bytes", "last_modified", "tag"))
        if self._job.kind != "expiration":
            changed = now.found & _changed(sizes, modified, tags, now)
            return dict.fromkeys(np.flatnonzero(changed).tolist(), CHANGED)
        # A plan has sizes from metadata, which says nothing about some kinds of files.
        seen = (modified != NO_TIME) | (tags != NO_TAG)
        another = seen & (compare(now.sizes, modified, tags, now.sizes, now.modified, now.tags) != SAME)
        if self._job.sealed_at is not None:
            another |= ((sizes > 0) & (now.sizes != sizes)) | (now.modified >= self._job.sealed_at)
        reasons = dict.fromkeys(np.flatnonzero(another & now.found).tolist(), ANOTHER_FILE)
        for row, (recorded, result) in self._archived(files, now).items():
            if result == UNSURE and recorded.checksum is None:
                continue
            reasons.pop(row, None)
            if result != SAME:
                reasons[row] = ANOTHER_FILE if result == OTHER else UNPROVEN
        return reasons

    def _archived(self, files: pa.Table, now: FileStatuses) -> dict[int, tuple[ArchivedFile, int]]:
        """Return the rows of files whose archived copy has a record of its source, and how they compare with it."""
        if self._context.archived_files is None or not now.found.any():
            return {}
        paths = files.column("path").to_pylist()
        known = self._context.archived_files(paths)
        rows = [row for row, path in enumerate(paths) if path in known and now.found[row]]
        if not rows:
            return {}
        recorded = [known[paths[row]] for row in rows]
        then = np.array(
            [(each.identity.size_in_bytes, each.identity.modified, each.identity.tag) for each in recorded], np.int64
        ).T
        current = np.stack([now.sizes[rows], now.modified[rows], now.tags[rows]])
        results = compare(*then, *current)
        for at in np.flatnonzero(results == UNSURE).tolist():
            proven = self._proven.get(paths[rows[at]])
            if proven is not None:
                results[at] = SAME if proven == tuple(current[:, at].tolist()) else OTHER
        return {row: (recorded[at], int(results[at])) for at, row in enumerate(rows)}

    def prove(self, files: pa.Table) -> bool:
        """Compare the content of those of these files whose record is not decisive with the recorded checksums, and
        renew the records of equal ones. Slow: no lock may be held. Return True if any was compared; what is beyond the
        bounds of one run stays unproven."""
        paths, stores = files.column("path").combine_chunks(), self._context.stores
        before = look(stores, paths).now
        equal: dict[str, FileIdentity] = {}
        tried = False
        for row, (recorded, result) in self._archived(files, before).items():
            size = int(before.sizes[row])
            within = self._files < _HASHED_FILES and self._bytes + size <= _HASHED_BYTES
            if result != UNSURE or recorded.checksum is None or not within:
                continue
            tried = True
            self._files, self._bytes = self._files + 1, self._bytes + size
            path = paths[row].as_py()
            try:
                is_equal = stores.checksum(path) == recorded.checksum
            except StorageError:
                continue
            now = look(stores, paths.slice(row, 1)).now
            seen = (size, int(before.modified[row]), int(before.tags[row]))
            if (int(now.sizes[0]), int(now.modified[0]), int(now.tags[0])) == seen:
                # What was not equal is another file as long as it is what was read.
                self._proven[path] = seen if is_equal else (-1, NO_TIME, NO_TAG)
                if is_equal:
                    equal[path] = FileIdentity(*seen)
        if equal and self._context.renew is not None:
            self._context.renew(equal)
        return tried


def _changed(
    sizes: NDArray[np.int64], modified: NDArray[np.int64], tags: NDArray[np.int64], now: FileStatuses
) -> NDArray[np.bool_]:
    """Return which files are not the listed ones. Where the listing has no tokens, times count as precisely as both
    sides have them: S3 answers in seconds, inventories in milliseconds."""
    exact = compare(sizes, modified, tags, now.sizes, now.modified, now.tags) != SAME
    grain = np.zeros(len(sizes), np.int64)
    for step in (1_000, _SECOND):
        grain[(modified % step == 0) | (now.modified % step == 0)] = step
    times = (modified != NO_TIME) & (now.modified != NO_TIME)
    roughly = (now.sizes != sizes) | ~times | (np.abs(now.modified - modified) > grain)
    changed: NDArray[np.bool_] = np.where((tags != NO_TAG) & (now.tags != NO_TAG), exact, roughly)
    changed &= (modified != NO_TIME) | (tags != NO_TAG)
    return changed
