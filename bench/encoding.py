"""Manifests and manifest lists as Iceberg 1.12 writes them for a table of format version 2, byte by byte, in numpy.

A manifest entry is put together from columns of fixed width: values are drawn from ranges whose Avro varints all have
the same length, so that the rows of one day are one matrix. Layout, field ids, header keys, block size and codec are
those of files that Iceberg's ManifestWriter wrote; only the deflate level differs (6, where Iceberg uses 9: the same
bytes within a thousandth, at twice the speed).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

BLOCK_BYTES = 64_000
"""Avro's default: a block ends after the first record that reaches it."""
DEFLATE_LEVEL = 6

EXISTING, ADDED, DELETED = 0, 1, 2

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "event_id", "required": True, "type": "long"},
        {"id": 2, "name": "event_time", "required": True, "type": "timestamptz"},
        {"id": 3, "name": "user_id", "required": False, "type": "long"},
        {"id": 4, "name": "amount", "required": False, "type": "double"},
        {"id": 5, "name": "quantity", "required": False, "type": "int"},
        {"id": 6, "name": "country", "required": False, "type": "string"},
        {"id": 7, "name": "state", "required": False, "type": "string"},
        {"id": 8, "name": "session", "required": False, "type": "string"},
    ],
}
SPEC_FIELDS = [{"name": "event_time_day", "transform": "day", "source-id": 2, "field-id": 1000}]

_FIRST_DAY = 19_723  # 2024-01-01, in days since the epoch.
_COLUMNS = 8
# Shares of a file's bytes by column.
_SHARES = (0.20, 0.12, 0.20, 0.18, 0.06, 0.02, 0.03, 0.19)


def day_number(day: int) -> int:
    """Days since the epoch of the table's day `day` (0 is 2024-01-01)."""
    return _FIRST_DAY + day


# --- varints --------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """Avro's zigzag varint of one number."""
    z = (value << 1) ^ (value >> 63)
    out = bytearray()
    while z > 0x7F:
        out.append((z & 0x7F) | 0x80)
        z >>= 7
    out.append(z)
    return bytes(out)


def text(value: bytes | str) -> bytes:
    """Avro's string or bytes."""
    data = value.encode() if isinstance(value, str) else value
    return varint(len(data)) + data


def varints(values: NDArray[np.int64], width: int) -> Bytes:
    """Zigzag varints of non-negative `values`, all exactly `width` bytes long; ValueError for one that is not."""
    z = values.astype(np.uint64) << np.uint64(1)
    if len(z) and (int(z.max()) >> (7 * width) or (width > 1 and not int(z.min()) >> (7 * (width - 1)))):
        raise ValueError(f"{values.min()} to {values.max()} do not all take {width} bytes")
    out = np.empty((len(z), width), np.uint8)
    for position in range(width):
        byte = (z >> np.uint64(7 * position)).astype(np.uint8) & 0x7F
        out[:, position] = byte | (0x80 if position < width - 1 else 0)
    return out


def _constant(data: bytes, rows: int) -> Bytes:
    return np.broadcast_to(np.frombuffer(data, np.uint8), (rows, len(data)))


def _digits(values: NDArray[np.int64], width: int) -> Bytes:
    powers = 10 ** np.arange(width - 1, -1, -1)
    return (values[:, None] // powers % 10 + 48).astype(np.uint8)


def _little(values: NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)


# --- manifest entries -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Widths:
    """Bytes that the varints of one class of files take: of record counts, file sizes, sizes of a column."""

    records: int
    size: int
    column: int


SMALL = Widths(3, 4, 3)
LARGE = Widths(4, 5, 4)


def paths(
    *, location: str, day: int, partitions: NDArray[np.int64], tasks: NDArray[np.int64], operations: Bytes
) -> Bytes:
    """The paths of one day's files, one row each, all of one length.

    `partitions` and `tasks` are Spark's partition and task of each file, `operations` the write's uuid (36 bytes each):
    the three parts of the name that Spark's OutputFileFactory gives a file.
    """
    rows = len(tasks)
    folder = f"{location}/data/event_time_day={np.datetime64(day_number(day), 'D')}/"
    dash = _constant(b"-", rows)
    named = [_digits(partitions, 5), dash, _digits(tasks, 6), dash, operations, _constant(b"-0-00001.parquet", rows)]
    return np.hstack([_constant(folder.encode(), rows), *named])


def bodies(
    *,
    day: int,
    paths: Bytes,
    records: NDArray[np.int64],
    sizes: NDArray[np.int64],
    widths: Widths,
    rng: np.random.Generator,
) -> Bytes:
    """The `data_file` records of one day's files, one row each."""
    rows = len(records)
    low, high = (1 << (7 * (widths.column - 1) - 1)), (1 << (7 * widths.column - 1)) - 1
    counts = varints(records, widths.records)

    def by_column(values: Sequence[Bytes]) -> list[Bytes]:
        """An Avro array of key and value per column, behind the branch of the union that is not null."""
        parts = [_constant(b"\x02" + varint(len(values)), rows)]
        for key, value in enumerate(values, start=1):
            parts += [_constant(varint(key), rows), value]
        return [*parts, _constant(b"\x00", rows)]

    def bounds(upper: bool) -> list[Bytes]:
        start = day_number(day) * 86_400_000_000
        event_id = np.arange(rows, dtype=np.int64) * 20_000 + day * 2_000_000_000 + (19_999 if upper else 0)
        event_time = start + rng.integers(0, 43_200_000_000, rows) + (43_200_000_000 if upper else 0)
        user = rng.integers(0, 50_000, rows) + (9_950_000 if upper else 0)
        amount = rng.random(rows).round(2) + (999.0 if upper else 0.0)
        quantity = np.full(rows, 100 if upper else 1, np.int32)
        columns = [_little(v) for v in (event_id, event_time, user.astype(np.int64), amount, quantity)]
        country = _constant(b"ZW" if upper else b"AD", rows)
        return by_column([np.hstack([_constant(varint(c.shape[1]), rows), c]) for c in (*columns, country)])

    shares = [np.clip((sizes * share).astype(np.int64), low, high) for share in _SHARES]
    nulls = [_constant(b"\x00", rows)] * (_COLUMNS - 1) + [varints(np.clip(records // 64, 64, 8_191), 2)]
    parts = [
        _constant(b"\x00" + varint(paths.shape[1]), rows),
        paths,
        _constant(text("PARQUET") + b"\x02" + varint(day_number(day)), rows),
        counts,
        varints(sizes, widths.size),
        *by_column([varints(share, widths.column) for share in shares]),
        *by_column([counts] * _COLUMNS),
        *by_column(nulls),
        # NaN counts of the one floating-point column.
        _constant(b"\x02" + varint(1) + varint(4) + b"\x00" + b"\x00", rows),
        *bounds(upper=False),
        *bounds(upper=True),
        # No key metadata; one split offset, 4; no equality ids; sort order 0; no referenced data file.
        _constant(b"\x00" + b"\x02" + varint(1) + varint(4) + b"\x00" + b"\x00" + b"\x02\x00" + b"\x00", rows),
    ]
    return np.hstack(parts)


def committed_heads(snapshot_ids: NDArray[np.int64], sequence_numbers: NDArray[np.int64]) -> Bytes:
    """The fields in front of `data_file` of entries that an earlier commit added (status EXISTING).

    Snapshot ids take ten bytes (from 2^62 on), sequence numbers three (8,192 to 1,048,575).
    """
    rows = len(snapshot_ids)
    branch, sequences = _constant(b"\x02", rows), varints(sequence_numbers, 3)
    status = _constant(varint(EXISTING), rows)
    return np.hstack([status, branch, varints(snapshot_ids, 10), branch, sequences, branch, sequences])


def deleted_heads(heads: Bytes, snapshot_id: int) -> Bytes:
    """The same entries as `snapshot_id` deletes them: its id, and the sequence numbers of the commit that added."""
    out = heads.copy()
    out[:, :12] = np.frombuffer(varint(DELETED) + b"\x02" + varint(snapshot_id), np.uint8)
    return out


def added_head(snapshot_id: int, rows: int) -> Bytes:
    """Entries that `snapshot_id` adds; their sequence numbers are inherited, so null."""
    return _constant(varint(ADDED) + b"\x02" + varint(snapshot_id) + b"\x00\x00", rows)


# --- container files ------------------------------------------------------------------------------------------------


def container(header: bytes, sync: bytes, raw: bytes, ends: NDArray[np.int64]) -> bytes:
    """An Avro container file of the records in `raw`, which end at `ends`, in deflated blocks as Avro's writer cuts."""
    out = [header, sync]
    first, begin = 0, 0
    while first < len(ends):
        last = min(int(np.searchsorted(ends, begin + BLOCK_BYTES)), len(ends) - 1)
        end = int(ends[last])
        deflate = zlib.compressobj(DEFLATE_LEVEL, zlib.DEFLATED, -15)
        block = deflate.compress(raw[begin:end]) + deflate.flush()
        out += [varint(last + 1 - first), varint(len(block)), block, sync]
        first, begin = last + 1, end
    return b"".join(out)


def sync_marker(path: str) -> bytes:
    return hashlib.md5(path.encode(), usedforsecurity=False).digest()


def header(entries: Mapping[str, str]) -> bytes:
    """Magic and metadata map of a container file, without the sync marker."""
    pairs = b"".join(text(key) + text(value) for key, value in entries.items())
    return b"Obj\x01" + varint(len(entries)) + pairs + b"\x00"


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def manifest_header() -> bytes:
    entry = (
        ("status", 0, "int", True, None),
        ("snapshot_id", 1, "long", False, None),
        ("sequence_number", 3, "long", False, None),
        ("file_sequence_number", 4, "long", False, None),
    )
    fields = [
        ("content", 134, "int", True, "Contents of the file: 0=data, 1=position deletes, 2=equality deletes"),
        ("file_path", 100, "string", True, "Location URI with FS scheme"),
        ("file_format", 101, "string", True, "File format name: avro, orc, or parquet"),
        ("partition", 102, "partition", True, "Partition data tuple, schema based on the partition spec"),
        ("record_count", 103, "long", True, "Number of records in the file"),
        ("file_size_in_bytes", 104, "long", True, "Total file size in bytes"),
        ("column_sizes", 108, (117, 118, "long"), False, "Map of column id to total size on disk"),
        ("value_counts", 109, (119, 120, "long"), False, "Map of column id to total count, including null and NaN"),
        ("null_value_counts", 110, (121, 122, "long"), False, "Map of column id to null value count"),
        ("nan_value_counts", 137, (138, 139, "long"), False, "Map of column id to number of NaN values in the column"),
        ("lower_bounds", 125, (126, 127, "bytes"), False, "Map of column id to lower bound"),
        ("upper_bounds", 128, (129, 130, "bytes"), False, "Map of column id to upper bound"),
        ("key_metadata", 131, "bytes", False, "Encryption key metadata blob"),
        ("split_offsets", 132, (133, "long"), False, "Splittable offsets"),
        ("equality_ids", 135, (136, "int"), False, "Equality comparison field IDs"),
        ("sort_order_id", 140, "int", False, "Sort order ID"),
        (
            "referenced_data_file",
            143,
            "string",
            False,
            "Fully qualified location (URI with FS scheme) of a data file that all deletes reference",
        ),
    ]
    avro_entry = [_avro(*field) for field in entry]
    avro_file = {"type": "record", "name": "r2", "fields": [_avro(*field) for field in fields]}
    avro_entry.append({"name": "data_file", "type": avro_file, "field-id": 2})
    iceberg_entry = [_iceberg(*field) for field in entry]
    iceberg_file = {"type": "struct", "fields": [_iceberg(*field) for field in fields]}
    iceberg_entry.append({"id": 2, "name": "data_file", "required": True, "type": iceberg_file})
    return header(
        {
            "schema": _compact(SCHEMA),
            "avro.schema": _compact({"type": "record", "name": "manifest_entry", "fields": avro_entry}),
            "avro.codec": "deflate",
            "format-version": "2",
            "partition-spec-id": "0",
            "iceberg.schema": _compact({"type": "struct", "schema-id": 0, "fields": iceberg_entry}),
            "partition-spec": _compact(SPEC_FIELDS),
            "content": "data",
        }
    )


_LIST_FIELDS = (
    ("manifest_path", 500, "string", True, "Location URI with FS scheme"),
    ("manifest_length", 501, "long", True, "Total file size in bytes"),
    ("partition_spec_id", 502, "int", True, "Spec ID used to write"),
    ("content", 517, "int", True, "Contents of the manifest: 0=data, 1=deletes"),
    ("sequence_number", 515, "long", True, "Sequence number when the manifest was added"),
    ("min_sequence_number", 516, "long", True, "Lowest sequence number in the manifest"),
    ("added_snapshot_id", 503, "long", True, "Snapshot ID that added the manifest"),
    ("added_files_count", 504, "int", True, "Added entry count"),
    ("existing_files_count", 505, "int", True, "Existing entry count"),
    ("deleted_files_count", 506, "int", True, "Deleted entry count"),
    ("added_rows_count", 512, "long", True, "Added rows count"),
    ("existing_rows_count", 513, "long", True, "Existing rows count"),
    ("deleted_rows_count", 514, "long", True, "Deleted rows count"),
    ("partitions", 507, "summaries", False, "Summary for each partition"),
    ("key_metadata", 519, "bytes", False, "Encryption key metadata blob"),
)
_SUMMARY_FIELDS = (
    ("contains_null", 509, "boolean", True, "True if any file has a null partition value"),
    ("contains_nan", 518, "boolean", False, "True if any file has a nan partition value"),
    ("lower_bound", 510, "bytes", False, "Partition lower bound for all files"),
    ("upper_bound", 511, "bytes", False, "Partition upper bound for all files"),
)
_LIST_AVRO = ""
_LIST_ICEBERG = ""


def list_header(snapshot_id: int, parent_id: int | None, sequence_number: int) -> bytes:
    global _LIST_AVRO, _LIST_ICEBERG
    if not _LIST_AVRO:
        _LIST_AVRO = _compact(
            {"type": "record", "name": "manifest_file", "fields": [_avro(*field) for field in _LIST_FIELDS]}
        )
        _LIST_ICEBERG = _compact(
            {"type": "struct", "schema-id": 0, "fields": [_iceberg(*field) for field in _LIST_FIELDS]}
        )
    return header(
        {
            "avro.schema": _LIST_AVRO,
            "avro.codec": "deflate",
            "snapshot-id": str(snapshot_id),
            "format-version": "2",
            "sequence-number": str(sequence_number),
            "iceberg.schema": _LIST_ICEBERG,
            "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
        }
    )


def list_entry(
    *,
    path: str,
    length: int,
    sequence_number: int,
    min_sequence_number: int,
    snapshot_id: int,
    files: Sequence[int],
    rows: Sequence[int],
    first_day: int,
    last_day: int,
) -> bytes:
    """One manifest in a manifest list; `files` and `rows` by status: added, existing, deleted."""
    numbers = (sequence_number, min_sequence_number, snapshot_id, *files, *rows)
    bounds = b"".join(b"\x02" + text(day_number(day).to_bytes(4, "little")) for day in (first_day, last_day))
    return b"".join(
        (
            text(path),
            varint(length),
            b"\x00\x00",
            *map(varint, numbers),
            b"\x02" + varint(1) + b"\x00" + b"\x02\x00" + bounds + b"\x00",
            b"\x00",
        )
    )


def _avro(name: str, field_id: int, kind: object, required: bool, doc: str | None) -> dict[str, object]:
    match kind:
        case "partition":
            date = {"type": "int", "logicalType": "date"}
            field = {"name": "event_time_day", "type": ["null", date], "default": None, "field-id": 1000}
            avro: object = {"type": "record", "name": "r102", "fields": [field]}
        case "summaries":
            summary = {"type": "record", "name": "r508", "fields": [_avro(*field) for field in _SUMMARY_FIELDS]}
            avro = {"type": "array", "items": summary, "element-id": 508}
        case (int(key), int(value), value_type):
            pair = [
                {"name": "key", "type": "int", "field-id": key},
                {"name": "value", "type": value_type, "field-id": value},
            ]
            record = {"type": "record", "name": f"k{key}_v{value}", "fields": pair}
            avro = {"type": "array", "items": record, "logicalType": "map"}
        case (int(element), element_type):
            avro = {"type": "array", "items": element_type, "element-id": element}
        case _:
            avro = kind
    field = {"name": name, "type": avro if required else ["null", avro]}
    if doc is not None:
        field["doc"] = doc
    if not required:
        field["default"] = None
    return {**field, "field-id": field_id}


def _iceberg(name: str, field_id: int, kind: object, required: bool, doc: str | None) -> dict[str, object]:
    match kind:
        case "partition":
            field = {"id": 1000, "name": "event_time_day", "required": False, "type": "date"}
            iceberg: object = {"type": "struct", "fields": [field]}
        case "summaries":
            summary = {"type": "struct", "fields": [_iceberg(*field) for field in _SUMMARY_FIELDS]}
            iceberg = {"type": "list", "element-id": 508, "element": summary, "element-required": True}
        case (int(key), int(value), value_type):
            plain = "binary" if value_type == "bytes" else value_type
            iceberg = {"type": "map", "key-id": key, "key": "int", "value-id": value, "value": plain}
            iceberg["value-required"] = True
        case (int(element), element_type):
            iceberg = {"type": "list", "element-id": element, "element": element_type, "element-required": True}
        case _:
            iceberg = "binary" if kind == "bytes" else kind
    found: dict[str, object] = {"id": field_id, "name": name, "required": required, "type": iceberg}
    return found if doc is None else {**found, "doc": doc}
