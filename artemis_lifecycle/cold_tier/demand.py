"""The snapshots that are wanted in the other tier, and the metadata that references their files, as rows."""

from __future__ import annotations

import json
import pickle
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.cold_tier.ledger import Ledger
from artemis_lifecycle.cold_tier.paths import Placing
from artemis_lifecycle.errors import ExistingFile, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.manifests import live_entries
from artemis_lifecycle.metadata.types import MANIFEST, ManifestListEntry, Snapshot, TableMetadata, kind_of
from artemis_lifecycle.spark.runner import Cost, Rows, Runner, first_of_each, record_batch
from artemis_lifecycle.storage.frames import arrow_schema, drop_frame
from artemis_lifecycle.storage.stores import Stores

# --- work -------------------------------------------------------------------------------------------------------------
# The sealed work of transferring snapshots from one tier to the other: its contents, and how it is stored.

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


LISTED = arrow_schema(
    "snapshot_id bigint, list_source string, list_destination string, list_size bigint, source string, "
    "destination string, size_in_bytes bigint, live_files bigint, added_by bigint, entry binary, error string"
)
"""A (snapshot, manifest in its list). An empty list has a row without a manifest; an unreadable list has a row with
`error`. `entry` is the list's entry for the manifest, pickled; only one of a manifest's rows may have it."""

MANIFESTS = arrow_schema(
    "source string, destination string, size_in_bytes bigint, live_files bigint, added_by bigint, entry binary"
)

FILES = arrow_schema(
    "phase bigint, kind string, file_format string, source string, destination string, size_in_bytes bigint, "
    "added_by bigint, role string, manifest string, error string"
)
"""A (manifest, live entry). An unreadable manifest has a row with `error`, and itself as `source`. `manifest` is its
destination. `added_by` is the snapshot that added the file: two uses of one path with different ones may be different
files."""


@dataclass(frozen=True)
class Demand:
    """The snapshots wanted in the other tier, their metadata, and the path mapping.

    `origin` recorded the sources when they were copied to their current place: a source that differs is damaged.
    `same` are uses (destination, snapshot that added it) of files that are in the ledger for another snapshot.
    """

    metadata: TableMetadata
    snapshot_ids: tuple[int, ...]
    mapping: Placing
    origin: Ledger | None = None
    same: frozenset[tuple[str, int | None]] = frozenset()

    def snapshots(self) -> list[Snapshot]:
        wanted = set(self.snapshot_ids)
        return [snapshot for snapshot in self.metadata.snapshots if snapshot.snapshot_id in wanted]

    def statistics(self) -> dict[tuple[str, int], tuple[str, str, int]]:
        """Return kind, path and size of the wanted snapshots' statistics files, by destination and snapshot."""
        wanted = set(self.snapshot_ids)
        return {
            (self.mapping.used(file.path, file.snapshot_id), file.snapshot_id): (
                file.kind,
                file.path,
                file.size_in_bytes,
            )
            for file in self.metadata.statistics
            if file.snapshot_id in wanted
        }


def read_lists(runner: Runner, source: Stores, demand: Demand) -> Rows:
    """Return the manifest lists of the wanted snapshots (LISTED)."""
    pickled = [pickle.dumps(snapshot) for snapshot in demand.snapshots()]
    snapshots = pa.table({"snapshot": pa.array(pickled, pa.binary())})
    return runner.map(snapshots, partial(_lists, source, demand.mapping), LISTED, Cost(files=len(pickled)))


def read_manifests(source: Stores, demand: Demand, manifests: Rows) -> Rows:
    """Return the live entries of `manifests` (MANIFESTS) as FILES. Reads `manifests` twice."""
    files, size, entries = manifests.sums("size_in_bytes", "live_files")
    return manifests.map(partial(_entries, source, demand.mapping), FILES, Cost(files, entries, max(size, 0)))


def named_manifests(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the manifests of LISTED rows as MANIFESTS. A manifest may come several times."""
    for batch in batches:
        yield batch.filter(batch.column("entry").is_valid()).select(MANIFESTS.names)


def distinct_manifests(named: pa.Table) -> pa.Table:
    """Return each of these MANIFESTS once: the row with the largest size."""
    return first_of_each(named.sort_by([("size_in_bytes", "descending"), ("source", "ascending")]), "destination")


def readers(lists: Rows, paths: Collection[str]) -> dict[str, set[int]]:
    """Return the snapshots that use each of these manifest lists and manifests, by destination."""
    rows = lists.map(partial(_naming, pa.array(sorted(paths), pa.string())), LISTED).table()
    users: dict[str, set[int]] = {path: set() for path in paths}
    columns = (rows.column(name).to_pylist() for name in ("snapshot_id", "list_destination", "destination"))
    for snapshot_id, *named in zip(*columns, strict=True):
        for path in named:
            if path in users:
                users[path].add(snapshot_id)
    return users


def list_problems(lists: Rows) -> tuple[Problem, ...]:
    """Return the manifest lists that cannot be read."""
    rows = lists.map(unreadable, LISTED).table().sort_by("snapshot_id").to_pylist()
    return tuple(
        Problem(
            row["list_source"] or f"the manifests of snapshot {row['snapshot_id']}", row["error"], (row["snapshot_id"],)
        )
        for row in rows
    )


def manifest_problems(files: Rows, lists: Rows) -> tuple[Problem, ...]:
    """Return the manifests that cannot be read, with the snapshots whose lists contain them."""
    rows = files.map(unreadable, FILES).table().to_pylist()
    if not rows:
        return ()
    users = readers(lists, {row["manifest"] for row in rows})
    grouped: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        grouped.setdefault((row["source"], row["error"]), set()).update(users[row["manifest"]])
    return tuple(Problem(path, reason, tuple(sorted(ids))) for (path, reason), ids in sorted(grouped.items()))


def unreadable(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows with an `error`."""
    for batch in batches:
        yield batch.filter(batch.column("error").is_valid())


def _naming(paths: pa.Array, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        named = (pc.is_in(batch.column(name), paths) for name in ("list_destination", "destination"))
        yield batch.filter(pc.or_(*named))


def _lists(source: Stores, mapping: Placing, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    described: set[tuple[str, int, int | None]] = set()
    for batch in batches:
        for pickled in batch.column("snapshot").to_pylist():
            yield record_batch(list(_manifests_of(source, mapping, pickle.loads(pickled), described)), LISTED)


def _manifests_of(
    stores: Stores, mapping: Placing, snapshot: Snapshot, described: set[tuple[str, int, int | None]]
) -> Iterator[tuple[Any, ...]]:
    nothing, source = (None,) * 6, snapshot.manifest_list
    try:
        listed = manifests_of(stores, snapshot)
    except (UnreadableMetadata, StorageError) as error:
        yield (snapshot.snapshot_id, source, None, None, *nothing, error.what)
        return
    place = None if source is None else mapping.used(source, snapshot.snapshot_id)
    head = (snapshot.snapshot_id, source, place, listed.size_in_bytes)
    if not listed.entries:
        yield (*head, *nothing, None)
    for entry in listed.entries:
        path, size = mapping.used(entry.manifest_path, entry.added_snapshot_id), entry.manifest_length
        files, added_by = entry.live_files_count, entry.added_snapshot_id
        pickled = None if (path, size, added_by) in described else pickle.dumps(entry)
        described.add((path, size, added_by))
        yield (*head, entry.manifest_path, path, size, files, added_by, pickled, None)


def _entries(source: Stores, mapping: Placing, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for destination, pickled in zip(
            batch.column("destination").to_pylist(), batch.column("entry").to_pylist(), strict=True
        ):
            yield _files_of(source, mapping, destination, pickle.loads(pickled))


def _files_of(stores: Stores, mapping: Placing, manifest: str, entry: ManifestListEntry) -> pa.RecordBatch:
    try:
        found = live_entries(stores, entry)
    except (UnreadableMetadata, StorageError) as error:
        row = (None, MANIFEST, None, entry.manifest_path, None, None, None, None, manifest, error.what)
        return record_batch([row], FILES)
    contents, formats = (found.column(name).to_pylist() for name in ("content", "file_format"))
    paths, rows = found.column("file_path"), found.num_rows
    added_by = found.column("snapshot_id")
    if entry.added_snapshot_id is not None:
        added_by = added_by.fill_null(entry.added_snapshot_id)
    columns = {
        "phase": pa.array([0] * rows, pa.int64()),
        "kind": pa.array(map(kind_of, contents, formats), pa.string()),
        "file_format": found.column("file_format"),
        "source": paths,
        "destination": pa.array(map(mapping.used, paths.to_pylist(), added_by.to_pylist()), pa.string()),
        "size_in_bytes": found.column("file_size_in_bytes"),
        "added_by": added_by,
        "role": pa.array([COPY] * rows, pa.string()),
        "manifest": pa.array([manifest] * rows, pa.string()),
        "error": pa.nulls(rows, pa.string()),
    }
    return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in FILES], schema=FILES)
