"""Manifest lists and manifests. Source: format/spec.md, "Manifests" and "Manifest Lists"; Iceberg's ManifestFile,
DataFile and V1Metadata to V3Metadata for what writers really wrote.

Fields are found by their Avro `field-id`, and by name where a writer left ids out: names changed between versions
(`added_data_files_count` became `added_files_count`), ids did not. Everything that is read is held against what the
level above records, because a file cut at an Avro block boundary still parses, only shorter.

`read_manifest` gives whole entries, through fastavro. `decode_entries`, `live_entries` and `live_files` give the few
columns that the reachable set needs, by a scan that steps over all else; fastavro reads what the scan cannot follow,
and both give the same.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from artemis_lifecycle.errors import EncryptedTable, StorageError, TooLarge, UnreadableMetadata
from artemis_lifecycle.metadata.containers import Container, open_container
from artemis_lifecycle.metadata.kinds import DATA, DELETION_VECTORS, EQUALITY_DELETES, POSITION_DELETES, kind_of
from artemis_lifecycle.metadata.scan import Program, Scan, compile_scan, require_bounded, scan_records
from artemis_lifecycle.metadata.types import (
    UNKNOWN_LENGTH,
    UNKNOWN_SNAPSHOT,
    DataFile,
    EntryStatus,
    FileFormat,
    Manifest,
    ManifestEntry,
    ManifestList,
    ManifestListEntry,
    PartitionSummary,
    Snapshot,
)
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, ReadLimits, within_memory
from artemis_lifecycle.storage.location_hash import text_buffers

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from artemis_lifecycle.storage.stores import Stores

_MANIFEST_FILE = {
    500: "manifest_path",
    501: "manifest_length",
    502: "partition_spec_id",
    517: "content",
    515: "sequence_number",
    516: "min_sequence_number",
    503: "added_snapshot_id",
    504: "added_files_count",
    505: "existing_files_count",
    506: "deleted_files_count",
    512: "added_rows_count",
    513: "existing_rows_count",
    514: "deleted_rows_count",
    507: "partitions",
    519: "key_metadata",
    520: "first_row_id",
}
_LISTED = (
    "manifest_path",
    "manifest_length",
    "partition_spec_id",
    "content",
    "added_snapshot_id",
    "added_files_count",
    "existing_files_count",
    "deleted_files_count",
    "key_metadata",
)
_ENTRY = {0: "status", 1: "snapshot_id", 3: "sequence_number", 4: "file_sequence_number", 2: "data_file"}
_DATA_FILE = {
    134: "content",
    100: "file_path",
    101: "file_format",
    102: "partition",
    103: "record_count",
    104: "file_size_in_bytes",
    131: "key_metadata",
    132: "split_offsets",
    135: "equality_ids",
    140: "sort_order_id",
    141: "spec_id",
    142: "first_row_id",
    143: "referenced_data_file",
    144: "content_offset",
    145: "content_size_in_bytes",
}
_REQUIRED = {
    500: {"manifest_path"},
    0: {"status", "data_file"},
    100: {"file_path", "file_format", "file_size_in_bytes"},
}
_OLD_NAMES = {
    "added_data_files_count": "added_files_count",
    "existing_data_files_count": "existing_files_count",
    "deleted_data_files_count": "deleted_files_count",
}
"""Names that writers used for the same field before the spec settled; consulted only where ids are missing."""


# --- manifest lists -------------------------------------------------------------------------------------------------


def read_manifest_list(stores: Stores, path: str, *, expected: Snapshot | None = None) -> ManifestList:
    """Read the manifest list at `path`. `expected` is the snapshot that names it.

    Raises UnreadableMetadata when the file is missing, broken, lacks a required field, or lists fewer live data or
    delete files than the snapshot's summary counts; EncryptedTable when a manifest is encrypted.
    """
    with within_memory(path):
        data = _read(stores, path)
        container = open_container(data, path, stores.limits)
        names = _names(container.schema, _MANIFEST_FILE, path)
        entries = tuple(_list_entry(record, names, path) for record in _records(container, path))
        found = ManifestList(path, len(data), entries)
        if expected is not None:
            _check_listed(_listed_slowly(found), expected)
        return found


@dataclass(frozen=True)
class ListedManifests:
    """The entries of one manifest list, as columns; paths stay bytes in `data` until wanted.

    `path` is None, and the size 0, for v1's inline manifests. Counts that an old writer left out are -1, an unknown
    length is UNKNOWN_LENGTH, an adding snapshot that is not named UNKNOWN_SNAPSHOT.
    """

    path: str | None
    size_in_bytes: int
    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    lengths: NDArray[np.int64]
    contents: NDArray[np.int64]
    added_by: NDArray[np.int64]
    added: NDArray[np.int64]
    existing: NDArray[np.int64]
    deleted: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)


def listed_manifests(stores: Stores, snapshot: Snapshot) -> ListedManifests:
    """What reachability needs of `manifests_of`, with the same checks and errors, without building an entry."""
    if snapshot.key_id is not None:
        raise _encrypted(f"The manifest list of snapshot {snapshot.snapshot_id}", snapshot.manifest_list)
    path = snapshot.manifest_list
    if path is None:
        return _listed_slowly(manifests_of(stores, snapshot))
    with within_memory(path):
        return _listed(stores, snapshot, path)


def _listed(stores: Stores, snapshot: Snapshot, path: str) -> ListedManifests:
    import numpy as np
    import pyarrow as pa

    data = _read(stores, path)
    container = open_container(data, path, stores.limits)
    program = _cached(_list_program, container, (), path)
    if program is None:
        return _listed_slowly(read_manifest_list(stores, path, expected=snapshot))
    scan = scan_records(program, container.payload, container.records, path)
    for name in ("manifest_path", "manifest_length", "partition_spec_id"):
        if not scan.has(name) or not scan.is_set(name).all():
            raise _unreadable(f"An entry of the manifest list has no {name}", path)
    if (scan.longs["manifest_length"] < 0).any():
        raise _negative("manifest_length", path)
    try:
        scan.texts("manifest_path")
    except pa.ArrowInvalid as error:
        raise _unreadable("The manifest_path of an entry of the manifest list is no text", path) from error
    if "key_metadata" in scan.sizes and scan.is_set("key_metadata").any():
        raise _encrypted("A manifest of the list", path)

    def column(name: str, absent: int) -> NDArray[np.int64]:
        if name not in scan.longs:
            return np.full(scan.rows, absent, np.int64)
        present = scan.is_set(name)
        if (scan.longs[name][present] < 0).any():
            raise _negative(name, path)
        return np.where(present, scan.longs[name], absent)

    listed = ListedManifests(
        path,
        len(data),
        scan.data,
        scan.starts["manifest_path"],
        scan.sizes["manifest_path"],
        scan.longs["manifest_length"],
        column("content", 0),
        _added_by(scan),
        column("added_files_count", -1),
        column("existing_files_count", -1),
        column("deleted_files_count", -1),
    )
    strange = listed.contents[(listed.contents != 0) & (listed.contents != 1)]
    if len(strange):
        raise _unreadable(f"The manifest list calls the content of a manifest {strange[0]}, not 0 or 1", path)
    _check_listed(listed, snapshot)
    return listed


def _added_by(scan: Scan) -> NDArray[np.int64]:
    import numpy as np

    if "added_snapshot_id" not in scan.longs:
        return np.full(scan.rows, UNKNOWN_SNAPSHOT, np.int64)
    ids = scan.longs["added_snapshot_id"]
    return np.where(scan.is_set("added_snapshot_id"), ids, UNKNOWN_SNAPSHOT)


def _check_listed(listed: ListedManifests, snapshot: Snapshot) -> None:
    summary = snapshot.summary
    totals = ((0, "data files", summary.total_data_files), (1, "delete files", summary.total_delete_files))
    for content, what, recorded in totals:
        chosen = listed.contents == content
        added, existing = listed.added[chosen], listed.existing[chosen]
        if recorded is None or (added < 0).any() or (existing < 0).any():
            # An old v1 list has nothing to add up.
            continue
        live = int(added.sum() + existing.sum())
        if live < recorded:
            raise _cut_list(snapshot, live, what, recorded, str(listed.path))


def _listed_slowly(found: ManifestList) -> ListedManifests:
    import numpy as np

    entries = found.entries
    paths = [entry.manifest_path.encode("utf-8", "surrogatepass") for entry in entries]
    sizes = np.array([len(path) for path in paths], np.int64)

    def column(name: str) -> NDArray[np.int64]:
        values: list[int | None] = [getattr(entry, name) for entry in entries]
        if any(value is not None and value < 0 for value in values):
            raise _negative(name, str(found.path))
        return np.array([-1 if value is None else value for value in values], np.int64)

    return ListedManifests(
        found.path,
        found.size_in_bytes,
        np.frombuffer(b"".join(paths), np.uint8),
        np.cumsum(sizes) - sizes,
        sizes,
        np.array([entry.manifest_length for entry in entries], np.int64),
        np.array([entry.content for entry in entries], np.int64),
        np.array(
            [UNKNOWN_SNAPSHOT if entry.added_snapshot_id is None else entry.added_snapshot_id for entry in entries],
            np.int64,
        ),
        column("added_files_count"),
        column("existing_files_count"),
        column("deleted_files_count"),
    )


def _negative(name: str, path: str) -> UnreadableMetadata:
    # -1 stands for "not recorded" from here on: what a list records must not pass for that.
    return _unreadable(f"The manifest list has an entry whose {name} is negative", path)


def manifests_of(stores: Stores, snapshot: Snapshot) -> ManifestList:
    """The manifests of `snapshot`: its manifest list's, or the paths that a v1 snapshot holds inline.

    Inline manifests come without lengths and counts, for nothing records them. Raises as `read_manifest_list` does.
    """
    if snapshot.key_id is not None:
        raise _encrypted(f"The manifest list of snapshot {snapshot.snapshot_id}", snapshot.manifest_list)
    if snapshot.manifest_list is not None:
        return read_manifest_list(stores, snapshot.manifest_list, expected=snapshot)
    return ManifestList(None, 0, tuple(map(_inline_entry, snapshot.manifests)))


def _inline_entry(path: str) -> ManifestListEntry:
    return ManifestListEntry(
        manifest_path=path,
        manifest_length=UNKNOWN_LENGTH,
        partition_spec_id=0,
        content=0,
        sequence_number=0,
        min_sequence_number=0,
        added_snapshot_id=None,
        added_files_count=None,
        existing_files_count=None,
        deleted_files_count=None,
    )


def _list_entry(record: Mapping[str, Any], names: Mapping[str, str], path: str) -> ManifestListEntry:
    def value(name: str) -> Any:
        return record.get(names[name]) if name in names else None

    def required(name: str, kind: type) -> Any:
        found = value(name)
        if type(found) is not kind:
            raise _unreadable(f"An entry of the manifest list has no {name}", path)
        return found

    def number(name: str) -> int | None:
        return _number(value(name), name, path)

    manifest_path = required("manifest_path", str)
    if value("key_metadata") is not None:
        raise _encrypted("The manifest", manifest_path)
    content = number("content") or 0
    if content not in (0, 1):
        raise _unreadable(f"The manifest list calls the content of {manifest_path} {content}, not 0 or 1", path)
    length = required("manifest_length", int)
    if length < 0:
        raise _negative("manifest_length", path)
    partitions = value("partitions") or ()
    if not isinstance(partitions, list | tuple) or not all(isinstance(each, dict) for each in partitions):
        raise _unreadable("An entry of the manifest list has partitions that are no list of records", path)
    return ManifestListEntry(
        manifest_path=manifest_path,
        manifest_length=length,
        partition_spec_id=required("partition_spec_id", int),
        content=content,
        sequence_number=number("sequence_number") or 0,
        min_sequence_number=number("min_sequence_number") or 0,
        added_snapshot_id=number("added_snapshot_id"),
        added_files_count=number("added_files_count"),
        existing_files_count=number("existing_files_count"),
        deleted_files_count=number("deleted_files_count"),
        added_rows_count=number("added_rows_count"),
        existing_rows_count=number("existing_rows_count"),
        deleted_rows_count=number("deleted_rows_count"),
        partitions=tuple(map(_partition_summary, partitions)),
        first_row_id=number("first_row_id"),
    )


def _number(found: Any, name: str, path: str) -> int | None:
    if found is not None and type(found) is not int:
        raise _unreadable(f"{name} is no number", path)
    return found


def _partition_summary(record: Mapping[str, Any]) -> PartitionSummary:
    # These names have never changed. A summary without the required one says nothing about nulls.
    return PartitionSummary(
        contains_null=record.get("contains_null", True),
        contains_nan=record.get("contains_nan"),
        lower_bound=record.get("lower_bound"),
        upper_bound=record.get("upper_bound"),
    )


def _cut_list(snapshot: Snapshot, listed: int, what: str, recorded: int, path: str) -> UnreadableMetadata:
    return _unreadable(
        f"The manifest list of snapshot {snapshot.snapshot_id} is cut: it lists {listed} live {what}, and the "
        f"snapshot's summary counts {recorded}",
        path,
    )


# --- manifests ------------------------------------------------------------------------------------------------------


def read_manifest(stores: Stores, entry: ManifestListEntry) -> Manifest:
    """Read the manifest that `entry` of a manifest list names, whole.

    Raises UnreadableMetadata when it is missing, broken, not of the recorded length, its entries are not those that
    the list counts, or were added by another snapshot than the list says; EncryptedTable when one of its files is
    encrypted.
    """
    with within_memory(entry.manifest_path):
        path = entry.manifest_path
        data = _read(stores, path)
        _check_length(data, entry)
        container = open_container(data, path, stores.limits)
        names = _names(container.schema, _ENTRY, path)
        file_names = _names(_field(container.schema, names["data_file"], path), _DATA_FILE, path)
        _check_content(container, entry)
        entries = tuple(_entry(record, names, file_names, path) for record in _records(container, path))
        counts = [0, 0, 0]
        for item in entries:
            counts[item.status] += 1
        _check_counts(counts, entry)
        _check_contents({item.data_file.content for item in entries}, entry)
        _check_added_by({item.snapshot_id for item in entries if item.status == EntryStatus.ADDED}, entry)
        return Manifest(path, len(data), entry.content, entries)


def _entry(
    record: Mapping[str, Any], names: Mapping[str, str], file_names: Mapping[str, str], path: str
) -> ManifestEntry:
    def value(name: str) -> Any:
        return record.get(names[name]) if name in names else None

    status = value("status")
    if type(status) is not int or status not in (0, 1, 2):
        raise _unreadable(f"A manifest entry has status {status}, not 0, 1 or 2", path)
    return ManifestEntry(
        status=EntryStatus(status),
        snapshot_id=value("snapshot_id"),
        sequence_number=value("sequence_number"),
        file_sequence_number=value("file_sequence_number"),
        data_file=_data_file(value("data_file"), file_names, path),
    )


def _data_file(record: Mapping[str, Any], names: Mapping[str, str], path: str) -> DataFile:
    if not isinstance(record, dict):
        raise _unreadable("A manifest entry has no data_file", path)

    def value(name: str) -> Any:
        return record.get(names[name]) if name in names else None

    def required(name: str, kind: type) -> Any:
        found = value(name)
        if type(found) is not kind:
            raise _unreadable(f"A manifest entry has no {name}", path)
        return found

    def number(name: str) -> int | None:
        return _number(value(name), name, path)

    def numbers(name: str) -> tuple[int, ...] | None:
        found = value(name)
        if found is None:
            return None
        if not isinstance(found, list) or not all(type(each) is int for each in found):
            raise _unreadable(f"A manifest entry has {name} that are no list of numbers", path)
        return tuple(found)

    file_path = required("file_path", str)
    if value("key_metadata") is not None:
        raise _encrypted("The file", file_path)
    spelt = required("file_format", str)
    try:
        file_format = FileFormat(spelt.lower())
    except ValueError:
        raise _unreadable(
            f"A manifest entry has the file format {spelt!r}, which the spec does not name", path
        ) from None
    return DataFile(
        content=number("content") or 0,
        file_path=file_path,
        file_format=file_format,
        partition=value("partition") or {},
        record_count=required("record_count", int),
        file_size_in_bytes=required("file_size_in_bytes", int),
        spec_id=number("spec_id"),
        sort_order_id=number("sort_order_id"),
        equality_ids=numbers("equality_ids"),
        split_offsets=numbers("split_offsets"),
        first_row_id=number("first_row_id"),
        referenced_data_file=value("referenced_data_file"),
        content_offset=number("content_offset"),
        content_size_in_bytes=number("content_size_in_bytes"),
    )


# --- the columns that reachability needs ----------------------------------------------------------------------------

_OF_ENTRY = ("status", "snapshot_id")
_REACHING = ("content", "file_path", "file_format", "file_size_in_bytes")
_COLUMNS = ("content", "file_path", "file_format", "file_size_in_bytes", "record_count", "referenced_data_file")


def live_entries(stores: Stores, entry: ManifestListEntry) -> pa.RecordBatch:
    """The live (existing and added) entries of the manifest that `entry` names, as `decode_entries` gives them.

    Raises what `read_manifest` raises, after the same checks.
    """
    with within_memory(entry.manifest_path):
        return _checked(_decode(_manifest(stores, entry), entry.manifest_path), entry)


def _checked(batch: pa.RecordBatch, entry: ManifestListEntry) -> pa.RecordBatch:
    """The live ones of a manifest's entries, after holding all of them against what the list records."""
    import pyarrow.compute as pc

    status = batch.column("status")
    tally = {item["values"].as_py(): item["counts"].as_py() for item in pc.value_counts(status)}
    _check_counts([tally.get(number, 0) for number in range(3)], entry)
    _check_contents(set(pc.unique(batch.column("content")).to_pylist()), entry)
    if tally.get(EntryStatus.ADDED):
        added = batch.column("snapshot_id").filter(pc.equal(status, int(EntryStatus.ADDED)))
        _check_added_by(pc.unique(added).to_pylist(), entry)
    return batch if not tally.get(2) else batch.filter(pc.not_equal(status, 2))


def decode_entries(data: bytes, path: str = "manifest", limits: ReadLimits = DEFAULT_LIMITS) -> pa.RecordBatch:
    """All entries of a manifest's bytes, in the file's order.

    Columns: status int8 (EntryStatus), content int8, file_path string, file_format string in lower case,
    file_size_in_bytes int64, record_count int64, referenced_data_file string and snapshot_id int64 (nullable, as is
    nothing else).
    Raises UnreadableMetadata for a broken file or an entry without a required field; EncryptedTable.
    """
    with within_memory(path):
        return _decode(open_container(data, path, limits), path)


def _decode(container: Container, path: str) -> pa.RecordBatch:
    import pyarrow.compute as pc

    batch = decode_by_scan(container, path)
    if batch is None:
        batch = decode_with_fastavro(container, path)
    if batch.num_rows != container.records:
        raise _unreadable(f"The Avro file holds {container.records} entries, and {batch.num_rows} came out", path)
    for name in ("status", "content", "file_path", "file_format", "file_size_in_bytes", "record_count"):
        if batch.column(name).null_count:
            raise _unreadable(f"A manifest entry has no {name}", path)
    bounds = pc.min_max(batch.column("status")).as_py()
    if batch.num_rows and not 0 <= bounds["min"] <= bounds["max"] <= 2:
        raise _unreadable("A manifest entry has a status that is not 0, 1 or 2", path)
    return batch


@dataclass(frozen=True)
class LiveFiles:
    """The live (existing and added) entries of one manifest, as columns; paths stay bytes in `data` until wanted.

    `kinds` are indexes into ENTRY_KINDS; `starts` and `lengths` say where each path stands in `data` (UTF-8).
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    sizes: NDArray[np.int64]
    kinds: NDArray[np.int8]
    counts: tuple[int, int, int]
    """Entries by status: existing, added, deleted."""

    def __len__(self) -> int:
        return len(self.sizes)


ENTRY_KINDS: Final = (DATA, POSITION_DELETES, EQUALITY_DELETES, DELETION_VECTORS)


def live_files(stores: Stores, entry: ManifestListEntry) -> LiveFiles:
    """What reachability needs of the manifest that `entry` names. Raises as `live_entries` does."""
    with within_memory(entry.manifest_path):
        return _live_files(stores, entry)


def _live_files(stores: Stores, entry: ManifestListEntry) -> LiveFiles:
    import numpy as np

    path = entry.manifest_path
    container = _manifest(stores, entry)
    scan = _scan_entries(container, path, _REACHING)
    if scan is None:
        return _live_slowly(container, entry)
    status, content = scan.longs["status"], scan.longs.get("content")
    content = np.zeros(scan.rows, np.int64) if content is None else np.where(scan.is_set("content"), content, 0)
    for name in ("status", "file_path", "file_format", "file_size_in_bytes"):
        if not scan.is_set(name).all():
            raise _unreadable(f"A manifest entry has no {name}", path)
    if scan.rows and not 0 <= int(status.min()) <= int(status.max()) <= 2:
        raise _unreadable("A manifest entry has a status that is not 0, 1 or 2", path)
    existing, added, deleted = np.bincount(status, minlength=3).tolist()
    _check_counts((existing, added, deleted), entry)
    _check_contents(set(np.unique(content).tolist()), entry)
    if added and entry.added_snapshot_id is not None and scan.has("snapshot_id"):
        _check_added_by(_named(scan, status == EntryStatus.ADDED), entry)
    live = np.flatnonzero(status != 2)
    kinds = content[live].astype(np.int8)
    vectors = np.flatnonzero((content[live] == 1) & (scan.sizes["file_format"][live] == len("puffin")))
    for row in vectors.tolist():
        start = int(scan.starts["file_format"][live[row]])
        if container.payload[start : start + len("puffin")].lower() == b"puffin":
            kinds[row] = ENTRY_KINDS.index(DELETION_VECTORS)
    return LiveFiles(
        scan.data,
        scan.starts["file_path"][live],
        scan.sizes["file_path"][live],
        scan.longs["file_size_in_bytes"][live],
        kinds,
        (existing, added, deleted),
    )


def _named(scan: Scan, rows: NDArray[np.bool_]) -> set[int]:
    """The snapshots that these entries name: nearly always one, which two bounds tell."""
    ids = scan.longs["snapshot_id"][rows & scan.is_set("snapshot_id")]
    return {int(ids.min()), int(ids.max())} if len(ids) else set()


def _live_slowly(container: Container, entry: ManifestListEntry) -> LiveFiles:
    import numpy as np

    whole = _decode(container, entry.manifest_path)
    existing, added, deleted = np.bincount(whole.column("status").to_numpy(), minlength=3).tolist()
    batch = _checked(whole, entry)
    content = batch.column("content").to_pylist()
    formats = batch.column("file_format").to_pylist()
    kinds = [ENTRY_KINDS.index(kind_of(*pair)) for pair in zip(content, formats, strict=True)]
    offsets, data = text_buffers(batch.column("file_path"))
    sizes = batch.column("file_size_in_bytes").to_numpy()
    return LiveFiles(data, offsets[:-1], np.diff(offsets), sizes, np.array(kinds, np.int8), (existing, added, deleted))


def _manifest(stores: Stores, entry: ManifestListEntry) -> Container:
    data = _read(stores, entry.manifest_path)
    _check_length(data, entry)
    container = open_container(data, entry.manifest_path, stores.limits)
    _check_content(container, entry)
    return container


def _scan_entries(container: Container, path: str, wanted: tuple[str, ...]) -> Scan | None:
    program = _cached(_entry_program, container, wanted, path)
    if program is None:
        return None
    scan = scan_records(program, container.payload, container.records, path)
    if scan.has("key_metadata") and scan.is_set("key_metadata").any():
        raise _encrypted("A file of the manifest", path)
    return scan


_Compile = Callable[[Any, tuple[str, ...], str], Program | None]


def _entry_program(schema: Any, wanted: tuple[str, ...], path: str) -> Program | None:
    names = _names(schema, _ENTRY, path)
    inner = names["data_file"]
    file_names = _names(_field(schema, inner, path), _DATA_FILE, path)
    fields: dict[str, tuple[str, ...]] = {name: (names[name],) for name in ("status", "snapshot_id") if name in names}
    fields |= {name: (inner, file_names[name]) for name in (*wanted, "key_metadata") if name in file_names}
    return _of_kinds(compile_scan(_structure(schema, path), fields), fields)


def _list_program(schema: Any, _: tuple[str, ...], path: str) -> Program | None:
    names = _names(schema, _MANIFEST_FILE, path)
    fields = {name: (names[name],) for name in _LISTED if name in names}
    return _of_kinds(compile_scan(_structure(schema, path), fields), fields)


_SCANNED_TEXTS = frozenset({"manifest_path", "file_path", "file_format", "referenced_data_file", "key_metadata"})


def _of_kinds(program: Program | None, fields: Iterable[str]) -> Program | None:
    """The program, if it takes each field as the spec types it; None leaves the file to who says what is wrong."""
    if program is None:
        return None
    right = all(name in (program.texts if name in _SCANNED_TEXTS else program.longs) for name in fields)
    return program if right else None


@lru_cache(maxsize=256)
def _program(compile_: _Compile, schema_text: str, wanted: tuple[str, ...]) -> Program | None:
    return compile_(json.loads(schema_text), wanted, "")


def _cached(compile_: _Compile, container: Container, wanted: tuple[str, ...], path: str) -> Program | None:
    """A table's files have one schema, and there are tens of thousands of them."""
    try:
        return _program(compile_, container.schema_text, wanted)
    except UnreadableMetadata:
        # Once more, for an error that names this file.
        return compile_(container.schema, wanted, path)


def decode_by_scan(container: Container, path: str) -> pa.RecordBatch | None:
    """As `decode_entries`; None where the scan cannot follow the file's schema."""
    scan = _scan_entries(container, path, _COLUMNS)
    if scan is None:
        return None
    return _batch({name: _scanned(scan, name, path) for name in (*_OF_ENTRY, *_COLUMNS)}, scan.rows, path)


def _scanned(scan: Scan, name: str, path: str) -> Any:
    import pyarrow as pa

    if name in scan.longs:
        values, present = scan.longs[name], scan.is_set(name)
        return pa.array(values) if present.all() else pa.array(values, mask=~present)
    if name not in scan.sizes:
        return None
    try:
        return scan.texts(name)
    except pa.ArrowInvalid as error:
        raise _unreadable(f"The {name} of a manifest entry is no text", path) from error


def decode_with_fastavro(container: Container, path: str) -> pa.RecordBatch:
    """The same, slowly, for any schema."""
    names = _names(container.schema, _ENTRY, path)
    file_names = _names(_field(container.schema, names["data_file"], path), _DATA_FILE, path)
    columns: dict[str, Any] = {name: [] for name in (*_OF_ENTRY, *_COLUMNS)}
    key = file_names.get("key_metadata")
    for record in _records(container, path):
        data_file = record[names["data_file"]]
        if not isinstance(data_file, dict):
            raise _unreadable("A manifest entry has no data_file", path)
        if key is not None and data_file.get(key) is not None:
            raise _encrypted("A file of the manifest", path)
        for name in _OF_ENTRY:
            columns[name].append(record[names[name]] if name in names else None)
        for name in _COLUMNS:
            stored = file_names.get(name)
            columns[name].append(None if stored is None else data_file.get(stored))
    return _batch(columns, len(columns["status"]), path)


def _batch(columns: Mapping[str, Any], rows: int, path: str) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    types = {
        "status": pa.int8(),
        "content": pa.int8(),
        "file_path": pa.string(),
        "file_format": pa.string(),
        "file_size_in_bytes": pa.int64(),
        "record_count": pa.int64(),
        "referenced_data_file": pa.string(),
        "snapshot_id": pa.int64(),
    }
    try:
        arrays = [_column(columns[name], kind, rows) for name, kind in types.items()]
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise _unreadable(f"A manifest entry holds a value of the wrong kind ({error})", path) from error
    # Format version 1 has no content field: all its files are data files.
    arrays[1] = pc.fill_null(arrays[1], pa.scalar(0, pa.int8()))
    arrays[3] = pc.utf8_lower(arrays[3])
    return pa.RecordBatch.from_arrays(arrays, names=list(types))


def _column(given: Any, kind: Any, rows: int) -> Any:
    import pyarrow as pa

    if given is None:
        return pa.nulls(rows, kind)
    if isinstance(given, list) and pa.types.is_integer(kind) and any(type(v) not in (int, type(None)) for v in given):
        # Arrow would make 1 of 1.5.
        raise pa.ArrowInvalid("no whole number")
    return pa.array(given, kind) if isinstance(given, list) else given.cast(kind)


# --- checks against the level above ---------------------------------------------------------------------------------


def _check_length(data: bytes, entry: ManifestListEntry) -> None:
    if entry.manifest_length not in (UNKNOWN_LENGTH, len(data)):
        raise _unreadable(
            f"The manifest has {len(data)} bytes, and its manifest list records {entry.manifest_length}",
            entry.manifest_path,
        )


def _check_content(container: Container, entry: ManifestListEntry) -> None:
    named = container.header.get("content")
    if named is not None and named != ("data", "deletes")[entry.content]:
        raise _unreadable(
            f"The manifest says that it holds {named}, and its manifest list records content {entry.content}",
            entry.manifest_path,
        )


def _check_counts(counts: Sequence[int], entry: ManifestListEntry) -> None:
    recorded = (entry.existing_files_count, entry.added_files_count, entry.deleted_files_count)
    for status, count, expected in zip(("existing", "added", "deleted"), counts, recorded, strict=True):
        if expected is not None and expected != count:
            raise _unreadable(
                f"The manifest has {count} {status} entries, and its manifest list records {expected}",
                entry.manifest_path,
            )


def _check_added_by(named: Iterable[int | None], entry: ManifestListEntry) -> None:
    """The snapshot that adds a manifest is the one that adds its added files (spec, "Snapshot ID inheritance": an entry
    without one takes the manifest's). Another table's manifest, of the same length and counts, differs here."""
    by = entry.added_snapshot_id
    others = [] if by is None else [each for each in named if each is not None and each != by]
    if others:
        raise _unreadable(
            f"The manifest has entries that snapshot {others[0]} added, and its manifest list says that snapshot {by} "
            "added it: another table's, or another commit's, may stand in its place",
            entry.manifest_path,
        )


def _check_contents(contents: set[int], entry: ManifestListEntry) -> None:
    wrong = contents - ({0} if entry.content == 0 else {1, 2})
    if wrong:
        raise _unreadable(
            f"The manifest has entries of content {sorted(wrong)}, and its manifest list says content {entry.content}",
            entry.manifest_path,
        )


# --- Avro without its annotations -----------------------------------------------------------------------------------


def _records(container: Container, path: str) -> Iterator[Mapping[str, Any]]:
    """The records as stored: no logical type is applied, so that no odd partition value can fail to convert."""
    import fastavro
    from fastavro.schema import SchemaParseException

    schema = _structure(container.schema, path)
    require_bounded(schema, container.payload, container.records, path)
    count = 0
    try:
        for record in fastavro.reader(io.BytesIO(container.plain(schema))):
            if not isinstance(record, dict):
                raise _unreadable("The Avro file holds no records", path)
            count += 1
            yield record
    except (ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, SchemaParseException) as error:
        raise _unreadable(f"The Avro file's records cannot be decoded: {error!r:.200}", path) from error
    if count != container.records:
        raise _unreadable(f"The Avro file holds {container.records} records, and {count} came out", path)


def _structure(schema: Any, path: str) -> Any:
    """A file's schema with its structure alone: no logical types, ids, docs or defaults."""
    try:
        return _bare(schema)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _unreadable(f"The Avro file's schema is broken ({error!r:.80})", path) from error


def _bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bare(option) for option in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if isinstance(kind, dict | list):
        return _bare(kind)
    if kind in ("record", "error"):
        fields = [{"name": field["name"], "type": _bare(field["type"])} for field in schema["fields"]]
        return {"type": "record", "name": schema["name"], "fields": fields}
    if kind == "array":
        return {"type": "array", "items": _bare(schema["items"])}
    if kind == "map":
        return {"type": "map", "values": _bare(schema["values"])}
    if kind == "fixed":
        size = schema["size"]
        if type(size) is not int or not 0 <= size < 2**31:
            raise ValueError(f"fixed of size {size!r:.30}")
        return {"type": "fixed", "name": schema["name"], "size": size}
    if kind == "enum":
        return {"type": "enum", "name": schema["name"], "symbols": schema["symbols"]}
    return kind


def _record_type(schema: Any) -> Mapping[str, Any] | None:
    if isinstance(schema, list):
        return next(filter(None, map(_record_type, schema)), None)
    if isinstance(schema, dict):
        if schema.get("type") == "record":
            return schema
        if isinstance(schema.get("type"), dict | list):
            return _record_type(schema["type"])
    return None


def _names(schema: Any, by_id: Mapping[int, str], path: str) -> Mapping[str, str]:
    """Our name of each known field of the record `schema` -> the name it has in the file."""
    record = _record_type(schema)
    if record is None:
        raise _unreadable("The Avro file's schema is no record", path)
    known = set(by_id.values())
    names: dict[str, str] = {}
    for field in _fields(record):
        stored = field["name"]
        field_id = field.get("field-id")
        name = by_id.get(field_id) if isinstance(field_id, int) else _OLD_NAMES.get(stored, stored)
        if name in known and name is not None:
            names[name] = stored
    required = _REQUIRED[min(by_id)]
    if not required <= names.keys():
        raise _unreadable(f"The Avro file's schema lacks {', '.join(sorted(required - names.keys()))}", path)
    return names


def _fields(record: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    fields = (record or {}).get("fields")
    if not isinstance(fields, list):
        return []
    return [field for field in fields if isinstance(field, dict) and isinstance(field.get("name"), str)]


def _field(schema: Any, name: str, path: str) -> Any:
    for field in _fields(_record_type(schema)):
        if field["name"] == name:
            return field.get("type")
    raise _unreadable(f"The Avro file's schema lacks {name}", path)


def _read(stores: Stores, path: str) -> bytes:
    try:
        return stores.read(path)
    except TooLarge:
        raise
    except StorageError as error:
        raise _unreadable(f"The file cannot be read: {error.what}", path) from error


def _unreadable(what: str, path: str) -> UnreadableMetadata:
    return UnreadableMetadata(
        what,
        path=path,
        untouched="the table and all its files",
        do="restore the file; nothing of this table is planned or deleted until it reads",
    )


def _encrypted(what: str, path: str | None) -> EncryptedTable:
    return EncryptedTable(
        f"{what} is encrypted and cannot be read exactly without the table's keys",
        path=path,
        untouched="the table and all its files",
        do="leave this table out of lifecycle.yaml",
    )
