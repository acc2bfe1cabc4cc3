"""The work of bringing snapshots from one tier to the other: what it is made of, how it is stored, and how metadata is
read for it. Belongs here: what finding it in this process (`here.py`) and on executors (`on_spark.py`) have in common.
Does not belong: either way of finding.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple, Protocol

from artemis_lifecycle.cold_tier.copy import Copier
from artemis_lifecycle.cold_tier.ledger import CopiedFile, Ledger
from artemis_lifecycle.cold_tier.paths import Placing
from artemis_lifecycle.errors import ExistingFile, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata import manifest_lists, manifests
from artemis_lifecycle.metadata.kinds import MANIFEST, kind_of
from artemis_lifecycle.metadata.types import ManifestListEntry, Snapshot, TableMetadata
from artemis_lifecycle.storage.frames import drop_frame
from artemis_lifecycle.storage.stores import Stores

PHASES = 3
"""Contents and statistics first, then manifests, which name them and their new sizes, then manifest lists."""

COPY, DELETE, NAMED = "copy", "delete", "manifest"
"""Roles of the sealed rows: a file to copy; a delete file that a manifest names; a manifest that some list names."""

SEALED = (
    "phase bigint, kind string, file_format string, source string, destination string, size_in_bytes bigint, "
    "checksum string, role string, manifest string, bucket bigint"
)
"""`checksum` is what the source's must be, where somebody recorded it; null else."""
BUCKETS = 4096


@dataclass(frozen=True)
class Problem:
    """A file that is needed and cannot be had, and the snapshots that cannot be read without it."""

    path: str
    reason: str
    snapshot_ids: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """One batch of `phase`: the files whose destinations hash into these buckets. `number` is unique in the work; sizes
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
    approved: their snapshots are not among `snapshot_ids`."""

    folder: str
    snapshot_ids: tuple[int, ...]
    batches: tuple[Batch, ...]
    problems: tuple[Problem, ...] = ()


class Found(Protocol):
    """What is needed, and not sealed yet."""

    def sizes(self) -> Iterable[tuple[int, int, int, int]]:
        """(phase, bucket, files, bytes) of all that is to be copied."""

    def store(self, folder: str, stores: Stores) -> None:
        """Write the SEALED rows as a frame."""


class Phase(Protocol):
    """The rows of one phase, with what its files need to know of those before."""

    def copy(self, batch: Batch, copier: Copier, excluded: Collection[str]) -> list[CopiedFile]:
        """Copy the files of a batch but those to `excluded` ones; one answer for each, by destination."""


class WorkRows(Protocol):
    """The sealed rows, opened."""

    def phase(self, phase: int) -> AbstractContextManager[Phase]:
        """The rows of a phase, as the ledger stands now: the phase before must be in it."""


@dataclass(frozen=True)
class Demand:
    """Which snapshots are wanted in the other tier, of which metadata, and by what mapping.

    `origin` recorded the sources when they were copied to where they are: whatever is not as it says is damaged.
    """

    metadata: TableMetadata
    snapshot_ids: tuple[int, ...]
    mapping: Placing
    origin: Ledger | None = None

    def snapshots(self) -> list[Snapshot]:
        wanted = set(self.snapshot_ids)
        return [snapshot for snapshot in self.metadata.snapshots if snapshot.snapshot_id in wanted]

    def statistics(self) -> dict[str, tuple[str, str, int]]:
        """Kind, path and size of the wanted snapshots' statistics files, by destination."""
        wanted = set(self.snapshot_ids)
        return {
            self.mapping(file.path): (file.kind, file.path, file.size_in_bytes)
            for file in self.metadata.statistics
            if file.snapshot_id in wanted
        }


@dataclass(frozen=True)
class Losses:
    """What lost files mean: problems, and destinations of manifests and lists that must not be made without them."""

    problems: tuple[Problem, ...] = ()
    excluded: frozenset[str] = frozenset()

    @property
    def snapshot_ids(self) -> frozenset[int]:
        return frozenset(snapshot for problem in self.problems for snapshot in problem.snapshot_ids)


def losses(
    demand: Demand, lost: Sequence[CopiedFile], users: Mapping[str, Collection[int]], manifests: Collection[str]
) -> Losses:
    """What it means that `lost` are: `users` are the snapshots that read each of them by way of a list or a manifest,
    by destination, and `manifests` the destinations of the manifests that name one."""
    wanted = set(demand.snapshot_ids)
    read_by = {file.destination: set(users.get(file.destination, ())) for file in lost}
    for file in demand.metadata.statistics:
        if file.snapshot_id in wanted and (destination := demand.mapping(file.path)) in read_by:
            read_by[destination].add(file.snapshot_id)
    gone = {snapshot_id for ids in read_by.values() for snapshot_id in ids}
    lists = {
        demand.mapping(snapshot.manifest_list)
        for snapshot in demand.snapshots()
        if snapshot.snapshot_id in gone and snapshot.manifest_list is not None
    }
    return Losses(
        tuple(Problem(file.source, file.error or "", tuple(sorted(read_by[file.destination]))) for file in lost),
        frozenset(manifests) | lists,
    )


def pack(sizes: Iterable[tuple[int, int, int, int]], files_per_batch: int, bytes_per_batch: int) -> tuple[Batch, ...]:
    """Neighbouring buckets packed into batches within both bounds, or of one bucket where that alone is beyond."""
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
    """The work that a former run sealed in `folder`; None when it got not so far. Raises StorageError if damaged."""
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
    """Seal `work` in `folder`. Of two runs at once the first one's counts: it is given back, and `work` is dropped."""
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


# --- reading metadata -----------------------------------------------------------------------------------------------


class ListRow(NamedTuple):
    """A (snapshot, manifest); without a manifest for an empty list, with `error` for one that cannot be read."""

    snapshot_id: int
    list_source: str | None
    list_destination: str | None
    list_size: int | None
    manifest_source: str | None = None
    manifest_destination: str | None = None
    manifest_length: int | None = None
    entry: ManifestListEntry | None = None
    error: str | None = None


class FileRow(NamedTuple):
    """A (manifest, live entry); with `error`, and the manifest as `source`, for a manifest that cannot be read."""

    manifest_destination: str
    kind: str
    file_format: str | None
    source: str
    destination: str | None
    size_in_bytes: int | None
    error: str | None = None


def read_list(source_stores: Stores, mapping: Placing, snapshot: Snapshot) -> list[ListRow]:
    source = snapshot.manifest_list
    try:
        listed = manifest_lists.manifests_of(source_stores, snapshot)
    except (UnreadableMetadata, StorageError) as error:
        return [ListRow(snapshot.snapshot_id, source, None, None, error=error.what)]
    head = ListRow(snapshot.snapshot_id, source, None if source is None else mapping(source), listed.size_in_bytes)
    return [
        head._replace(
            manifest_source=entry.manifest_path,
            manifest_destination=mapping(entry.manifest_path),
            manifest_length=entry.manifest_length,
            entry=entry,
        )
        for entry in listed.entries
    ] or [head]


def read_manifest(source_stores: Stores, mapping: Placing, destination: str, entry: ManifestListEntry) -> list[FileRow]:
    try:
        found = manifests.live_entries(source_stores, entry)
    except (UnreadableMetadata, StorageError) as error:
        return [FileRow(destination, MANIFEST, None, entry.manifest_path, None, None, error.what)]
    columns = ("content", "file_format", "file_path", "file_size_in_bytes")
    return [
        FileRow(destination, kind_of(content, file_format), file_format, path, mapping(path), size)
        for content, file_format, path, size in zip(*(found.column(name).to_pylist() for name in columns), strict=True)
    ]


def list_problems(rows: Iterable[tuple[int, str | None, str]]) -> tuple[Problem, ...]:
    """Of (snapshot, its list, why that cannot be read)."""
    return tuple(
        Problem(source or f"the manifests of snapshot {snapshot_id}", reason, (snapshot_id,))
        for snapshot_id, source, reason in sorted(rows, key=lambda row: row[0])
    )


def manifest_problems(rows: Iterable[tuple[str, str, int]]) -> tuple[Problem, ...]:
    """Of (manifest, why that cannot be read, a snapshot that reads it)."""
    grouped: dict[tuple[str, str], set[int]] = {}
    for source, reason, snapshot_id in rows:
        grouped.setdefault((source, reason), set()).add(snapshot_id)
    return tuple(Problem(path, reason, tuple(sorted(ids))) for (path, reason), ids in sorted(grouped.items()))
