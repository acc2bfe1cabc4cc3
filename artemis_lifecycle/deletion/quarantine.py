"""Move files instead of deleting them: quarantine keeps a job's files for a retention, and they can be moved back.

    <quarantine root>/<table-uuid>/<job id>/files/<hash of the path>-<end of its name>
    <quarantine root>/<table-uuid>/<job id>/<name of the metadata file on which the plan is based>
    <quarantine root>/<table-uuid>/<job id>/job.json (`Forgotten`)

The location in quarantine depends only on the path, but does not contain it: whatever characters a path has, its file
stays inside the job's folder. A file is in quarantine before it is deleted from its path. It is back at its path before
any record says so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from artemis_lifecycle.deletion.batches import (
    QUARANTINED,
    DeletionJob,
    FileOutcome,
    outcome_frame,
    outcomes_of_job,
    sealed_pieces,
)
from artemis_lifecycle.deletion.identities import same
from artemis_lifecycle.errors import ExistingFile, MissingFile, StorageError
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.locks import TableLock
from artemis_lifecycle.operations.quarantines import QuarantineRecord
from artemis_lifecycle.protection.protection import ANOTHER_FILE
from artemis_lifecycle.spark.runner import Spark
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.stores import Stores, place_of
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.storage.types import NO_TAG, FileIdentity, FileStatuses, Sameness, StoredFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")

_THREADS = 8
_FILES_AT_ONCE = 1_000
_DELETES_LAST = 30.0  # Seconds; well inside a lease.
JOB = "job.json"
_TAKEN = "another file stands at its path"
_NO_COPY = "it is no longer in quarantine"


@dataclass(frozen=True)
class QuarantinePlace:
    """Where a job's files are moved, and for how long. `metadata_location` is the metadata file that describes them."""

    root: str
    retain: timedelta
    metadata_location: str | None = None


def quarantine_folder(root: str, table_uuid: str, job_id: str) -> str:
    return f"{root}/{table_uuid}/{job_id}"


@dataclass(frozen=True)
class Forgotten:
    """What undoes a job without the operations database, which may be put back to before the deletion."""

    job: DeletionJob
    place: QuarantinePlace

    def write(self, stores: Stores, folder: str) -> None:
        kept = {"metadata_location": self.place.metadata_location, "retain": self.place.retain.total_seconds()}
        values = {**asdict(self.job), **kept}
        stores.write(f"{folder}/{JOB}", json.dumps(values).encode(), overwrite=True)

    @classmethod
    def find(cls, stores: Stores, root: str, job_id: str) -> Forgotten | None:
        """Return what stands in the folder of that job; its own place counts, wherever the quarantine was then. Raises
        StorageError for a damaged record, and for one of another folder."""
        for table in stores.children(root)[0]:
            table_uuid = table.rstrip("/").rpartition("/")[2]
            path = f"{quarantine_folder(root, table_uuid, job_id)}/{JOB}"
            if stores.head(path) is not None:
                try:
                    values = json.loads(stores.read(path))
                    kept, retain = values.pop("metadata_location"), timedelta(seconds=values.pop("retain"))
                    place = QuarantinePlace(root, retain, kept and f"{path.removesuffix(JOB)}{kept.rpartition('/')[2]}")
                    job = DeletionJob(**values)
                    if (job.job_id, job.table_uuid) != (job_id, table_uuid):
                        raise ValueError(f"it is of {job.job_id} of table {job.table_uuid}")
                    return cls(job, place)
                except (ValueError, TypeError, KeyError) as error:
                    raise StorageError(
                        f"The record of a quarantine is damaged: {error}",
                        path=path,
                        untouched="all files",
                        hint="restore the file, or the operations database",
                    ) from error
        return None


def set_aside(stores: Stores, folder: str, paths: Sequence[str]) -> dict[str, str | None]:
    """Copy each file into quarantine. Return by path None if it is there, else the error. Omits files that no longer
    exist, because there is nothing to delete."""

    def one(path: str) -> tuple[str, str | None, bool]:
        try:
            place = place_of(folder, path)
            if stores.head(place) is not None and stores.checksum(path) != stores.checksum(place):
                # An interrupted attempt moved a file from this path; quarantine has its only copy.
                return path, ANOTHER_FILE, True
            stores.duplicate(path, place_of(folder, path))
        except MissingFile:
            return path, None, False
        except StorageError as error:
            return path, f"it cannot be put into quarantine: {error.what}", True
        return path, None, True

    with around("quarantine.set_aside"):
        return {path: why for path, why, existing in threaded(one, paths, _THREADS) if existing}


def is_aside(stores: Stores, folder: str, path: str) -> bool:
    return stores.head(place_of(folder, path)) is not None


@dataclass(frozen=True)
class Undeleted:
    """The result of an undelete. Counts are files: `restored` are at their paths again, `present` were already there
    (an earlier attempt), `taken` found another file at their path and left it alone, and `failed` could not be copied.

    `metadata_location` is the metadata file on which the deletion's plan was based, kept in quarantine. Engines can
    read snapshots from it that the table no longer has. None for orphans.
    """

    job_id: str
    table: str
    restored: int
    present: int
    taken: int
    failed: int
    bytes: int
    metadata_location: str | None
    problems: tuple[tuple[str, str], ...] = ()
    """(path, reason), as a rule at most 1,000."""
    _files: Callable[[], DataFrame] | None = field(default=None, repr=False, compare=False)

    def files(self) -> DataFrame | None:
        """Return DataFrame[path, kind, size_in_bytes, outcome, reason] of the files that the deletion moved."""
        return None if self._files is None else self._files()


def put_back(
    spark: Spark,
    stores: Stores,
    root: str,
    record: QuarantineRecord,
    job: DeletionJob,
    *,
    again: bool = False,
    check: Callable[[], None] = lambda: None,
    most: float = 1_000,
) -> Undeleted:
    """Copy every quarantined file of the job back to its path, if no file exists there. A second call does the rest.
    The result has the first `most` problems. `again`: an earlier call may have put files back.

    The caller holds the table's lease, and has recorded the undelete: from then on, no job deletes those paths. `root`
    is `operations.root`. `check` is called between pieces.
    """

    def one(moved: FileOutcome) -> tuple[str, FileOutcome, str]:
        place = place_of(record.folder, moved.path)
        try:
            now = stores.head(moved.path)
            if stores.head(place) is None:
                if now is None:
                    return "failed", moved, _NO_COPY
                why = _another(gone.get(moved.path), now, again=again)
                return ("taken", moved, f"{why}; {_NO_COPY}") if why else ("present", moved, "")
            stores.duplicate(place, moved.path, overwrite=False)
        except ExistingFile:
            return "taken", moved, _TAKEN
        except StorageError as error:
            return "failed", moved, error.what
        return "restored" if now is None else "present", moved, ""

    gone: dict[str, FileIdentity] = {}
    counts: Counter[str] = Counter()
    size = 0
    problems: list[tuple[str, str]] = []
    for piece in _pieces(moved_files(stores, job, record, outcomes_of_job(stores, root, record.job_id), gone)):
        check()
        with around("quarantine.put_back"):
            for outcome, moved, why in threaded(one, piece, _THREADS):
                counts[outcome] += 1
                size += moved.size_in_bytes if outcome == "restored" else 0
                if why and len(problems) < most:
                    problems.append((moved.path, why))
    return Undeleted(
        job_id=record.job_id,
        table=record.table,
        restored=counts["restored"],
        present=counts["present"],
        taken=counts["taken"],
        failed=counts["failed"],
        bytes=size,
        metadata_location=record.metadata_location,
        problems=tuple(problems),
        _files=lambda: outcome_frame(spark, stores, root, record.job_id).where(f"outcome = '{QUARANTINED}'"),
    )


def _another(was: FileIdentity | None, now: StoredFile, *, again: bool) -> str | None:
    """Return why the file at a path is not the moved one, or may not be; None if it is. A copy that was put back has
    another time, and on disk another token, too."""
    if was is None or not was.size_in_bytes:  # Metadata says nothing about the size of some kinds of files.
        was = replace(was or FileIdentity(0), size_in_bytes=now.size_in_bytes)
    found = was.compare(now.identity)
    if found is Sameness.OTHER:
        return _TAKEN
    is_same = found is Sameness.SAME or was.tag == now.tag != NO_TAG
    return None if is_same or again else "the file at its path may be another one"


def moved_files(
    stores: Stores,
    job: DeletionJob,
    record: QuarantineRecord,
    recorded: Iterable[FileOutcome] = (),
    gone: dict[str, FileIdentity] | None = None,
) -> Iterator[FileOutcome]:
    """Yield the job's files that are in quarantine now, whatever the outcomes say: a worker that was killed after it
    moved a batch recorded none. Then those that were moved as `recorded`, and are no longer there; before these, `gone`
    gets what the job's list says of them."""
    aside = {file.path.rpartition("/")[2] for file in stores.list(f"{record.folder}/files")}

    def is_aside(path: str) -> bool:
        return place_of(record.folder, path).rpartition("/")[2] in aside

    lost = {each.path: each for each in recorded if each.outcome == QUARANTINED and not is_aside(each.path)}
    for rows in sealed_pieces(stores, job, _FILES_AT_ONCE):
        for row in rows.to_pylist():
            if is_aside(row["path"]):
                yield FileOutcome(row["path"], row["kind"], row["size_in_bytes"], QUARANTINED, row["reason"])
            elif gone is not None and row["path"] in lost:
                gone[row["path"]] = FileIdentity(row["size_in_bytes"], row["last_modified"], row["tag"])
    yield from lost.values()


@dataclass(frozen=True)
class Purged:
    """What a purge deleted from quarantine, or would delete. If files `failed` or were `kept`, the next run tries
    again."""

    job_id: str
    table: str
    deleted: int
    failed: int
    bytes: int
    dry_run: bool = False
    kept: int = 0


def purge(
    stores: Stores,
    record: QuarantineRecord,
    *,
    kept: Callable[[pa.Table], dict[int, str]],
    lock: Callable[[], AbstractContextManager[TableLock | None]],
    dry_run: bool = False,
    take: Callable[[int], object] = lambda files: None,
    check: Callable[[], None] = lambda: None,
) -> Purged:
    """Delete the files in the job's quarantine folder, and nothing outside it; the metadata that describes them goes
    last, and JOB stays: until all is recorded as purged, an empty folder is none. A second call does the rest.

    `kept` returns which of some files (column path) must stay, and why: a table may reference a file in this folder. It
    is called under `lock`, and the files are deleted under the same lock. Raises OperationsUnavailable when the lock is
    lost, before it deletes more files.
    """
    deleted = failed = stayed = size = 0
    moved = f"{record.folder}/files/"

    def pieces() -> Iterator[list[StoredFile]]:
        yield from _pieces(stores.list(moved))
        if not failed and not stayed:
            # An undelete of what is left needs these.
            rest = (each for each in stores.list(record.folder) if not each.path.startswith(moved))
            yield from _pieces(each for each in rest if not each.path.endswith(f"/{JOB}"))

    for piece in pieces():
        check()
        take(0 if dry_run else len(piece))
        with lock() as held:
            paths = pa.array([file.path for file in piece], pa.string())
            # What came into this folder since it was listed is not what was moved there.
            unchanged = same(FileStatuses.of(piece), stores.statuses(paths))
            reasons = dict.fromkeys(np.flatnonzero(~unchanged).tolist(), ANOTHER_FILE) | kept(pa.table({"path": paths}))
            stayed += len(reasons)
            sizes = {file.path: file.size_in_bytes for row, file in enumerate(piece) if row not in reasons}
            if dry_run:
                deleted, size = deleted + len(sizes), size + sum(sizes.values())
                continue
            if held is not None:
                held.check()
            with around("quarantine.purge"):
                for answer in stores.delete(list(sizes), until=elapsed() + _DELETES_LAST):
                    if answer.outcome == "failed":
                        failed += 1
                    else:
                        deleted, size = deleted + 1, size + sizes[answer.path]
    return Purged(record.job_id, record.table, deleted, failed, size, dry_run, stayed)


def _pieces(items: Iterable[T]) -> Iterator[list[T]]:
    items = iter(items)
    while piece := list(islice(items, _FILES_AT_ONCE)):
        yield piece
