"""The sealed work of transferring snapshots from one tier to the other: its contents, and how it is stored. Belongs
here: batches and the seal. Does not belong here: finding the files (`needed`) and copying them (`transfer`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from artemis_lifecycle.errors import ExistingFile, StorageError
from artemis_lifecycle.storage.frames import arrow_schema, drop_frame
from artemis_lifecycle.storage.stores import Stores

PHASES = 3
"""Contents and statistics first; then manifests, which record the contents' new sizes; then manifest lists."""

COPY, DELETE, NAMED, REUSED = "copy", "delete", "manifest", "reused"
"""Roles of the sealed rows: a file to copy; a delete file in a manifest; a manifest in a list. Rows of the last role
are never sealed: uses of a path for what may be several files, to be decided first."""

SEALED = arrow_schema(
    "phase bigint, kind string, file_format string, source string, destination string, size_in_bytes bigint, "
    "checksum string, added_by bigint, role string, manifest string, bucket bigint"
)
"""`checksum` is the required checksum of the source if a ledger recorded it, else null. Only files to copy have a
`phase`."""
BUCKETS = 4096


@dataclass(frozen=True)
class Problem:
    """A needed file that is missing or unreadable, and the snapshots that cannot be read without it."""

    path: str
    reason: str
    snapshot_ids: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """One batch of `phase`: the files whose destinations hash into these buckets. `number` is unique in the work. Sizes
    are the recorded ones, in bytes."""

    number: int
    phase: int
    first_bucket: int
    last_bucket: int
    files: int
    size_in_bytes: int


@dataclass(frozen=True)
class Work:
    """The sealed work of one handoff or restore: a frame of SEALED rows in `folder`, cut into batches. `problems` were
    approved, and their snapshots are not in `snapshot_ids`."""

    folder: str
    snapshot_ids: tuple[int, ...]
    batches: tuple[Batch, ...]
    problems: tuple[Problem, ...] = ()


def pack(sizes: Iterable[tuple[int, int, int, int]], files_per_batch: int, bytes_per_batch: int) -> tuple[Batch, ...]:
    """Pack neighboring buckets into batches within both limits. A single bucket above a limit is a batch of one."""
    batches: list[Batch] = []
    for phase, bucket, files, size in sorted(sizes):
        last = batches[-1] if batches and batches[-1].phase == phase else None
        if last and last.files + files <= files_per_batch and last.size_in_bytes + size <= bytes_per_batch:
            batches[-1] = replace(
                last, last_bucket=bucket, files=last.files + files, size_in_bytes=last.size_in_bytes + size
            )
        else:
            batches.append(Batch(len(batches), phase, bucket, bucket, files, size))
    return tuple(batches)


# --- the seal -------------------------------------------------------------------------------------------------------


def _work_path(folder: str) -> str:
    return f"{folder}/work.json"


def frame_folder(folder: str, name: str) -> str:
    return f"{folder}/needed-{name}"


def load_work(stores: Stores, folder: str) -> Work | None:
    """Return the work that an earlier run sealed in `folder`; None if it did not get that far. Raises StorageError if
    damaged."""
    path = _work_path(folder)
    if stores.head(path) is None:
        return None
    try:
        values = json.loads(stores.read(path))
        return Work(
            folder=f"{folder}/{values['rows']}",
            snapshot_ids=tuple(values["snapshot_ids"]),
            batches=tuple(Batch(**batch) for batch in values["batches"]),
            problems=tuple(
                Problem(item["path"], item["reason"], tuple(item["snapshot_ids"])) for item in values["problems"]
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"The sealed list of files to copy is damaged: {error}",
            path=path,
            untouched="both tiers",
            hint="remove that file and run the step again",
        ) from error


def store_work(stores: Stores, folder: str, work: Work) -> Work:
    """Seal `work` in `folder` and return it. Of two concurrent runs, the first one's work is returned, and `work` is
    dropped."""
    content = {
        "rows": work.folder.rpartition("/")[2],
        "snapshot_ids": work.snapshot_ids,
        "batches": [asdict(batch) for batch in work.batches],
        "problems": [asdict(problem) for problem in work.problems],
    }
    try:
        stores.write(_work_path(folder), json.dumps(content).encode())
    except ExistingFile:
        drop_frame(work.folder, stores)
        return load_work(stores, folder) or work
    return work
