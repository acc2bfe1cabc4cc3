"""Manifests. Source: format/spec.md, "Manifests"; Iceberg's DataFile and V1Metadata to V4Metadata for what writers
really wrote. The first bytes of a file say whether it is in Avro or in Parquet.

`decode_entries`, `live_entries` and `live_files` return the few columns that the reachable set needs, by a scan that
skips the rest. Everything is checked against the manifest list's records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.format_versions import ENTRY_FIELDS, FILE_FIELDS, all_resolved, is_draft, require_known, resolved
from artemis_lifecycle.metadata.avro.container import (
    Container,
    field_names,
    field_type,
    open_container,
    record_fields,
    record_names,
    structure,
)
from artemis_lifecycle.metadata.avro.scan import Scan, compile_scan, read_records, scan_container, scan_records
from artemis_lifecycle.metadata.parquet_manifests import MAGIC, ParquetManifest, open_parquet
from artemis_lifecycle.metadata.types import (
    DATA,
    DELETION_VECTORS,
    EQUALITY_DELETES,
    POSITION_DELETES,
    UNKNOWN_LENGTH,
    EntryStatus,
    Kind,
    ManifestListEntry,
    kind_of,
)
from artemis_lifecycle.metadata.unreadable import encrypted, read_file, unreadable
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, ReadLimits, within_memory

if TYPE_CHECKING:
    from artemis_lifecycle.storage.stores import Stores


_ENTRY = {0: "status", 1: "snapshot_id", 3: "sequence_number", 2: "data_file"}
_DATA_FILE = {
    134: "content",
    100: "file_path",
    101: "file_format",
    102: "partition",
    103: "record_count",
    104: "file_size_in_bytes",
    108: "column_sizes",
    109: "value_counts",
    110: "null_value_counts",
    137: "nan_value_counts",
    125: "lower_bounds",
    128: "upper_bounds",
    131: "key_metadata",
    132: "split_offsets",
    135: "equality_ids",
    140: "sort_order_id",
    143: "referenced_data_file",
}
_OF_ENTRY = ("status", "snapshot_id")
_REQUIRED = ("status", "file_path", "file_format", "file_size_in_bytes")
_REACHING = ("content", "file_path", "file_format", "file_size_in_bytes")
_TEXTS = frozenset({"file_path", "file_format", "referenced_data_file", "key_metadata"})
_TYPES = {
    "status": pa.int8(),
    "content": pa.int8(),
    "file_path": pa.string(),
    "file_format": pa.string(),
    "file_size_in_bytes": pa.int64(),
    "record_count": pa.int64(),
    "referenced_data_file": pa.string(),
    "snapshot_id": pa.int64(),
}


def live_entries(stores: Stores, entry: ManifestListEntry) -> pa.RecordBatch:
    """Return the live (existing and added) entries of the manifest `entry`, in the format of `decode_entries`.

    Raises UnreadableMetadata if the manifest is missing, broken, not of the recorded length, its entries differ from
    the list's counts, or were added by another snapshot than the list says; EncryptedTable if one of its files is
    encrypted.
    """
    with within_memory(entry.manifest_path):
        return _live(_decode(open_manifest(stores, entry), entry.manifest_path, entry))


def live_partitions(stores: Stores, entry: ManifestListEntry) -> pa.RecordBatch:
    """`live_entries` with a column `partition` string: two entries of a table have the same text exactly if they have
    the same values of the same partition spec."""
    path = entry.manifest_path
    with within_memory(path):
        container = open_manifest(stores, entry)
        whole = _decode(container, path, entry)
        spec = container.header.get("partition-spec-id", str(entry.partition_spec_id))
        texts = [json.dumps([spec, *values], default=_as_text) for values in _partition_values(container, path)]
        columns = [*whole.columns, pa.array(texts, pa.string())]
        return _live(pa.RecordBatch.from_arrays(columns, [*whole.schema.names, "partition"]))


@dataclass(frozen=True)
class PartitionedEntries:
    """All entries of a manifest, as of `decode_entries`, each with its stored partition values. `spec` and `schema` are
    the JSON texts of the manifest's header."""

    entries: pa.RecordBatch
    partitions: tuple[tuple[Any, ...], ...]
    spec: str
    schema: str


def partitioned_entries(stores: Stores, entry: ManifestListEntry) -> PartitionedEntries:
    """Return all entries of the manifest `entry`, deleted ones included. Raises as `live_entries` does."""
    path = entry.manifest_path
    with within_memory(path):
        container = open_manifest(stores, entry)
        whole, header = _decode(container, path, entry), container.header
        values = tuple(tuple(each) for each in _partition_values(container, path))
        return PartitionedEntries(whole, values, header.get("partition-spec", "[]"), header.get("schema", ""))


def _as_text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _partition_values(container: Manifest, path: str) -> Iterable[tuple[Any, ...]]:
    """Return the partition values of each entry, as stored."""
    entry = entry_names(container.schema, path)
    outer, inner = entry["data_file"], file_names(container.schema, entry, path).get("partition", "partition")
    fields = record_names(field_type(container.schema, outer, path), inner)
    if not fields:
        return [()] * container.records
    if isinstance(container, Container):
        program = compile_scan(structure(container.schema, path), {name: (outer, inner, name) for name in fields})
        # The scan takes no fractions, flags or fixed bytes.
        if program is not None and {*program.longs, *program.texts} == set(fields):
            scan = scan_records(program, container.payload, container.records, path)
            try:
                return zip(*[_scanned(scan, name, path).to_pylist() for name in fields], strict=True)
            except UnreadableMetadata:
                pass  # Bytes that are not text.
    partitions = (record[outer].get(inner) or {} for record in records_of(container, path))
    return (tuple(partition.get(name) for name in fields) for partition in partitions)


def _live(entries: pa.RecordBatch) -> pa.RecordBatch:
    return entries.filter(pc.not_equal(entries.column("status"), int(EntryStatus.DELETED)))


def decode_entries(data: bytes, path: str = "manifest", limits: ReadLimits = DEFAULT_LIMITS) -> pa.RecordBatch:
    """Return all entries of a manifest's bytes, in the file's order.

    Columns: status int8 (EntryStatus), content int8, file_path string, file_format string in lower case,
    file_size_in_bytes int64, record_count int64, referenced_data_file string and snapshot_id int64 (only these two are
    nullable). Raises UnreadableMetadata for a broken file or an entry without a required field; EncryptedTable.
    """
    with within_memory(path):
        return _decode(opened(data, path, limits), path)


def _decode(container: Manifest, path: str, entry: ManifestListEntry | None = None) -> pa.RecordBatch:
    """Return all entries; with `entry`, after checking them against the list's records."""
    scan = _scan_entries(container, path, tuple(_TYPES), None if entry is None else entry.base)
    _require_complete(scan, (*_REQUIRED, "record_count"), path)
    if entry is not None:
        checked_scan(scan, entry)
    arrays = []
    try:
        for name, kind in _TYPES.items():
            found = _scanned(scan, name, path)
            arrays.append(pa.nulls(scan.rows, kind) if found is None else found.cast(kind))
    except pa.ArrowInvalid as error:
        raise unreadable(f"A manifest entry has a value of the wrong type ({error})", path) from error
    # Format version 1 has no content field: all its files are data files.
    arrays[1] = pc.fill_null(arrays[1], pa.scalar(0, pa.int8()))
    arrays[3] = pc.utf8_lower(arrays[3])
    return pa.RecordBatch.from_arrays(arrays, names=list(_TYPES))


def _scanned(scan: Scan, name: str, path: str) -> Any:
    if name in scan.longs:
        values, present = scan.longs[name], scan.is_set(name)
        return pa.array(values) if present.all() else pa.array(values, mask=~present)
    if name not in scan.sizes:
        return None
    try:
        return scan.texts(name)
    except pa.ArrowInvalid as error:
        raise unreadable(f"The {name} of a manifest entry is not text", path) from error


@dataclass(frozen=True)
class LiveFiles:
    """The live (existing and added) entries of one manifest, as columns.

    `paths` are large_string; `kinds` are indexes into ENTRY_KINDS.
    """

    paths: pa.Array
    sizes: NDArray[np.int64]
    kinds: NDArray[np.int8]
    counts: tuple[int, int, int]
    """Entries by status: existing, added, deleted."""

    def __len__(self) -> int:
        return len(self.sizes)


ENTRY_KINDS: Final = (DATA, POSITION_DELETES, EQUALITY_DELETES, DELETION_VECTORS)


def live_files(stores: Stores, entry: ManifestListEntry) -> LiveFiles:
    """Return what reachability needs of the manifest `entry`. Raises as `live_entries` does."""
    with within_memory(entry.manifest_path):
        return _live_files(stores, entry)


def _live_files(stores: Stores, entry: ManifestListEntry) -> LiveFiles:
    path = entry.manifest_path
    scan = _scan_entries(open_manifest(stores, entry), path, _REACHING, entry.base)
    content, counts = checked_scan(scan, entry)
    live = np.flatnonzero(scan.longs["status"] != 2)
    kinds = content[live].astype(np.int8)
    vectors = np.flatnonzero((content[live] == 1) & (scan.sizes["file_format"][live] == len("puffin")))
    for row in vectors.tolist():
        start = int(scan.starts["file_format"][live[row]])
        if scan.data[start : start + len("puffin")].tobytes().lower() == b"puffin":
            kinds[row] = ENTRY_KINDS.index(DELETION_VECTORS)
    try:
        paths = scan.texts("file_path", live)
    except pa.ArrowInvalid as error:
        raise unreadable("A path of the manifest is not text", path) from error
    return LiveFiles(paths, scan.longs["file_size_in_bytes"][live], kinds, counts)


def live_sort_orders(stores: Stores, entry: ManifestListEntry) -> frozenset[int]:
    """Return the ids of the sort orders of the manifest's live files; 0 is for files without one. Raises as
    `live_entries` does."""
    path = entry.manifest_path
    with within_memory(path):
        scan = _scan_entries(open_manifest(stores, entry), path, (*_REACHING, "sort_order_id"), entry.base)
        checked_scan(scan, entry)
        live = scan.longs["status"] != 2
        if not scan.has("sort_order_id"):
            return frozenset({0} if live.any() else ())
        orders = np.where(scan.is_set("sort_order_id"), scan.longs["sort_order_id"], 0)
        return frozenset(np.unique(orders[live]).tolist())


def checked_scan(scan: Scan, entry: ManifestListEntry) -> tuple[NDArray[np.int64], tuple[int, int, int]]:
    """Return each entry's content, and the number of entries by status, after checking them against the list's
    records."""
    path, status, content = entry.manifest_path, scan.longs["status"], scan.longs.get("content")
    content = np.zeros(scan.rows, np.int64) if content is None else np.where(scan.is_set("content"), content, 0)
    _require_complete(scan, _REQUIRED, path)
    existing, added, deleted = np.bincount(status, minlength=3).tolist()
    check_counts((existing, added, deleted), entry)
    check_contents(set(np.unique(content).tolist()), entry)
    if added and entry.added_snapshot_id is not None and scan.has("snapshot_id"):
        check_added_by(_named(scan, status == EntryStatus.ADDED), entry)
    return content, (existing, added, deleted)


def _require_complete(scan: Scan, names: Iterable[str], path: str) -> None:
    for name in names:
        if not scan.has(name) or not scan.is_set(name).all():
            raise unreadable(f"A manifest entry has no {name}", path)
    status = scan.longs["status"]
    if scan.rows and not 0 <= int(status.min()) <= int(status.max()) <= 2:
        raise unreadable("A manifest entry has a status that is not 0, 1 or 2", path)


def _named(scan: Scan, rows: NDArray[np.bool_]) -> set[int]:
    """Return the snapshots in these entries: nearly always one, which minimum and maximum show."""
    ids = scan.longs["snapshot_id"][rows & scan.is_set("snapshot_id")]
    return {int(ids.min()), int(ids.max())} if len(ids) else set()


Manifest = Container | ParquetManifest


def open_manifest(stores: Stores, entry: ManifestListEntry) -> Manifest:
    """Return the manifest `entry`, after checking its length and content. Raises UnreadableMetadata."""
    data = read_file(stores, entry.manifest_path)
    if entry.manifest_length not in (UNKNOWN_LENGTH, len(data)):
        raise unreadable(
            f"The manifest has {len(data)} bytes, and its manifest list records {entry.manifest_length}",
            entry.manifest_path,
        )
    container = opened(data, entry.manifest_path, stores.limits)
    named = container.header.get("content")
    if named is not None and named != ("data", "deletes")[entry.content]:
        raise unreadable(
            f"The manifest's header says {named}, but its manifest list records content {entry.content}",
            entry.manifest_path,
        )
    return container


def opened(data: bytes, path: str, limits: ReadLimits = DEFAULT_LIMITS) -> Manifest:
    """Parse the manifest at `path`, in Avro or in Parquet. Raises UnreadableMetadata, also for fields that only a later
    draft of its version has."""
    container = open_parquet(data, path, limits) if data[:4] == MAGIC else open_container(data, path, limits)
    if _is_draft(container):
        outer, schema = entry_names(container.schema, path)["data_file"], container.schema
        require_known(schema["fields"], ENTRY_FIELDS, path)
        require_known(record_fields(schema, outer), FILE_FIELDS, path)
    return container


def records_of(container: Manifest, path: str) -> Iterable[dict[str, Any]]:
    """Return the entries as stored. Raises UnreadableMetadata."""
    return read_records(container, path) if isinstance(container, Container) else container.read_records()


def _is_draft(container: Manifest) -> bool:
    return is_draft(container.header, "" if isinstance(container, Container) else "4")


def readable(container: Manifest, scan: Scan, path: str, base: str | None) -> Scan:
    """Return the scan with its paths resolved. Raises EncryptedTable if one of its files is encrypted;
    UnreadableMetadata for a path that is relative to nothing."""
    if scan.has("key_metadata") and scan.is_set("key_metadata").any():
        raise encrypted("A file of the manifest", path)
    if _is_draft(container):
        for name in ("file_path", "referenced_data_file"):
            found = _scanned(scan, name, path) if name in scan.sizes else None
            if found is not None and (whole := all_resolved(found, base, path)) is not found:
                scan = scan.with_texts(name, whole)
    return scan


def entry_names(schema: Any, path: str) -> Mapping[str, str]:
    """Return this module's name of each field of a manifest entry -> its name in the file. Raises
    UnreadableMetadata."""
    return field_names(schema, _ENTRY, frozenset({"status", "data_file"}), path)


def file_names(schema: Any, entry: Mapping[str, str], path: str) -> Mapping[str, str]:
    """The same for `data_file` of a schema whose `entry_names` are `entry`."""
    data_file = field_type(schema, entry["data_file"], path)
    return field_names(data_file, _DATA_FILE, frozenset({"file_path", "file_format", "file_size_in_bytes"}), path)


def _ways(schema: Any, wanted: tuple[str, ...], path: str) -> Mapping[str, tuple[str, ...]]:
    entry = entry_names(schema, path)
    inner, files = entry["data_file"], file_names(schema, entry, path)
    ways: dict[str, tuple[str, ...]] = {name: (entry[name],) for name in _OF_ENTRY if name in entry}
    return ways | {name: (inner, files[name]) for name in (*wanted, "key_metadata") if name in files}


def _scan_entries(container: Manifest, path: str, wanted: tuple[str, ...], base: str | None) -> Scan:
    if isinstance(container, Container):
        scan = scan_container(container, _ways, wanted, _TEXTS, path)
    else:
        scan = container.scan(_ways(container.schema, wanted, path), _TEXTS)
    return readable(container, scan, path, base)


# --- checks against the level above ---------------------------------------------------------------------------------


def check_counts(counts: Sequence[int], entry: ManifestListEntry) -> None:
    """Raise UnreadableMetadata unless the list records these existing, added and deleted entries."""
    recorded = (entry.existing_files_count, entry.added_files_count, entry.deleted_files_count)
    for status, count, expected in zip(("existing", "added", "deleted"), counts, recorded, strict=True):
        if expected is not None and expected != count:
            raise unreadable(
                f"The manifest has {count} {status} entries, and its manifest list records {expected}",
                entry.manifest_path,
            )


def check_added_by(named: Iterable[int | None], entry: ManifestListEntry) -> None:
    """The snapshot that adds a manifest is the one that adds its added files (spec, "Snapshot ID inheritance": an entry
    without one inherits the manifest's). Another table's manifest with the same length and counts differs here."""
    by = entry.added_snapshot_id
    others = [] if by is None else [each for each in named if each is not None and each != by]
    if others:
        raise unreadable(
            f"The manifest has entries that snapshot {others[0]} added, and its manifest list says that snapshot {by} "
            "added it: another table's, or another commit's, may stand in its place",
            entry.manifest_path,
        )


def check_contents(contents: set[int], entry: ManifestListEntry) -> None:
    """Raise UnreadableMetadata unless the list records a manifest of these contents."""
    wrong = contents - ({0} if entry.content == 0 else {1, 2})
    if wrong:
        raise unreadable(
            f"The manifest has entries of content {sorted(wrong)}, and its manifest list says content {entry.content}",
            entry.manifest_path,
        )


# --- data files -------------------------------------------------------------------------------------------------------
# Manifest entries as typed values, one object per file, with every statistic that they store. For single manifests;
# planning reads a few columns by `statistics`. Source: format/spec.md, "Manifests".


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data or delete file of a manifest, with the statistics of its columns by field id.

    `partition` maps the partition field's name to its value as Avro stores it. `values.column_statistics` decodes the
    rest. Counts and sizes (bytes) are empty if
    the writer recorded none. Bounds are in Iceberg's single-value serialization; they may be truncated. A sequence
    number is None if the entry inherits its manifest's.
    """

    status: EntryStatus
    kind: Kind
    path: str
    file_format: str
    record_count: int
    size_in_bytes: int
    partition: Mapping[str, object]
    snapshot_id: int | None
    sequence_number: int | None
    column_sizes: Mapping[int, int] = field(default_factory=dict)
    value_counts: Mapping[int, int] = field(default_factory=dict)
    null_value_counts: Mapping[int, int] = field(default_factory=dict)
    nan_value_counts: Mapping[int, int] = field(default_factory=dict)
    lower_bounds: Mapping[int, bytes] = field(default_factory=dict)
    upper_bounds: Mapping[int, bytes] = field(default_factory=dict)
    split_offsets: tuple[int, ...] = ()
    equality_ids: tuple[int, ...] = ()
    sort_order_id: int | None = None
    referenced_data_file: str | None = None


_BY_COLUMN = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


def read_manifest(stores: Stores, entry: ManifestListEntry) -> tuple[DataFile, ...]:
    """Return all entries of the manifest `entry`, deleted ones included. Raises UnreadableMetadata, EncryptedTable."""
    path = entry.manifest_path
    with within_memory(path):
        container = open_manifest(stores, entry)
        outer = entry_names(container.schema, path)
        inner = file_names(container.schema, outer, path)
        found = (_data_file(record, outer, inner, path) for record in records_of(container, path))
        return tuple(_resolved(each, entry.base, path) if _is_draft(container) else each for each in found)


def _resolved(file: DataFile, base: str | None, path: str) -> DataFile:
    meant = file.referenced_data_file
    return replace(
        file,
        path=resolved(file.path, base, path),
        referenced_data_file=None if meant is None else resolved(meant, base, path),
    )


def _data_file(record: Mapping[str, Any], outer: Mapping[str, str], inner: Mapping[str, str], path: str) -> DataFile:
    stored = record[outer["data_file"]]
    if not isinstance(stored, dict):
        raise unreadable("A manifest entry has no data_file", path)

    def value(name: str) -> Any:
        return stored.get(inner[name]) if name in inner else None

    if value("key_metadata") is not None:
        raise encrypted("A file of the manifest", path)
    try:
        return DataFile(
            status=EntryStatus(record[outer["status"]]),
            kind=kind_of(value("content") or 0, value("file_format")),
            path=value("file_path"),
            file_format=value("file_format").lower(),
            record_count=value("record_count"),
            size_in_bytes=value("file_size_in_bytes"),
            partition=value("partition") or {},
            snapshot_id=record.get(outer.get("snapshot_id", "")),
            sequence_number=record.get(outer.get("sequence_number", "")),
            **{name: {pair["key"]: pair["value"] for pair in value(name) or ()} for name in _BY_COLUMN},
            split_offsets=tuple(value("split_offsets") or ()),
            equality_ids=tuple(value("equality_ids") or ()),
            sort_order_id=value("sort_order_id"),
            referenced_data_file=value("referenced_data_file"),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise unreadable(f"A manifest entry cannot be read ({error!r:.80})", path) from error
