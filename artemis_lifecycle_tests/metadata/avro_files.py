"""Manifest lists and manifests for tests, written with fastavro: any codec, any number of blocks, any habits."""

from __future__ import annotations

import copy
import io
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import fastavro
import pyarrow as pa

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.metadata.types import ManifestListEntry
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS

Schema = dict[str, Any]
SYNC = bytes(range(200, 216))


def _field(name: str, field_id: int, kind: Any, *, optional: bool = True) -> Schema:
    if optional:
        return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}
    return {"name": name, "type": kind, "field-id": field_id}


def _map(name: str, key_id: int, value: str) -> Schema:
    fields = [_field("key", key_id, "int", optional=False), _field("value", key_id + 1, value, optional=False)]
    return {"type": "array", "logicalType": "map", "items": {"type": "record", "name": name, "fields": fields}}


MANIFEST_LIST: Schema = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field("manifest_path", 500, "string", optional=False),
        _field("manifest_length", 501, "long", optional=False),
        _field("partition_spec_id", 502, "int", optional=False),
        _field("content", 517, "int"),
        _field("sequence_number", 515, "long"),
        _field("min_sequence_number", 516, "long"),
        _field("added_snapshot_id", 503, "long"),
        _field("added_files_count", 504, "int"),
        _field("existing_files_count", 505, "int"),
        _field("deleted_files_count", 506, "int"),
        _field("added_rows_count", 512, "long"),
        _field("existing_rows_count", 513, "long"),
        _field("deleted_rows_count", 514, "long"),
        _field("key_metadata", 519, "bytes"),
    ],
}


def manifest_schema(partition: Sequence[Schema] = ()) -> Schema:
    """The schema of a v2 manifest, with the given partition fields."""
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field("status", 0, "int", optional=False),
            _field("snapshot_id", 1, "long"),
            _field("sequence_number", 3, "long"),
            _field("file_sequence_number", 4, "long"),
            _field(
                "data_file",
                2,
                {
                    "type": "record",
                    "name": "r2",
                    "fields": [
                        _field("content", 134, "int"),
                        _field("file_path", 100, "string", optional=False),
                        _field("file_format", 101, "string", optional=False),
                        _field(
                            "partition",
                            102,
                            {"type": "record", "name": "r102", "fields": list(partition)},
                            optional=False,
                        ),
                        _field("record_count", 103, "long", optional=False),
                        _field("file_size_in_bytes", 104, "long", optional=False),
                        _field("column_sizes", 108, _map("k117_v118", 117, "long")),
                        _field("lower_bounds", 125, _map("k126_v127", 126, "bytes")),
                        _field("key_metadata", 131, "bytes"),
                        _field("split_offsets", 132, {"type": "array", "items": "long", "element-id": 133}),
                        _field("equality_ids", 135, {"type": "array", "items": "int", "element-id": 136}),
                        _field("sort_order_id", 140, "int"),
                        _field("referenced_data_file", 143, "string"),
                        _field("content_offset", 144, "long"),
                        _field("content_size_in_bytes", 145, "long"),
                    ],
                },
                optional=False,
            ),
        ],
    }


def without_ids(schema: Any) -> Any:
    """`schema` as a writer that knows nothing of field ids would have it."""
    if isinstance(schema, list):
        return [without_ids(item) for item in schema]
    if isinstance(schema, Mapping):
        return {key: without_ids(value) for key, value in schema.items() if not key.endswith("-id")}
    return schema


def renamed(schema: Schema, names: Mapping[str, str]) -> Schema:
    """`schema` with its top-level fields renamed."""
    changed = copy.deepcopy(schema)
    for field in changed["fields"]:
        field["name"] = names.get(field["name"], field["name"])
    return changed


def avro_file(
    schema: Schema,
    records: Iterable[Mapping[str, Any]],
    *,
    codec: str = "deflate",
    block_bytes: int = 16_000,
    header: Mapping[str, str] | None = None,
) -> bytes:
    """An Avro file in any codec that Iceberg writes. A small `block_bytes` makes many blocks."""
    out = io.BytesIO()
    ours = {"snappy": _snappy, "zstandard": lambda block: bytes(pa.compress(block, "zstd"))}.get(codec)
    fastavro.writer(
        out,
        schema,
        records,
        codec="null" if ours else codec,
        sync_interval=block_bytes,
        metadata=dict(header or {}),
        sync_marker=SYNC,
    )
    return _recoded(out.getvalue(), codec, ours) if ours else out.getvalue()


def _snappy(block: bytes) -> bytes:
    return bytes(pa.compress(block, "snappy")) + zlib.crc32(block).to_bytes(4, "big")


def _recoded(data: bytes, codec: str, encode: Callable[[bytes], bytes]) -> bytes:
    """The file with each of its uncompressed blocks encoded: fastavro needs a package more for these codecs."""
    out = io.BytesIO()
    head, _, _ = data.partition(SYNC)
    out.write(head.replace(b"avro.codec" + _varint(4) + b"null", b"avro.codec" + _varint(len(codec)) + codec.encode()))
    out.write(SYNC)
    for block in fastavro.block_reader(io.BytesIO(data)):
        encoded = encode(block.bytes_.getvalue())  # type: ignore[attr-defined]
        out.write(_varint(block.num_records) + _varint(len(encoded)) + encoded + SYNC)
    return out.getvalue()


def _varint(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def block_ends(data: bytes) -> list[int]:
    """Where the header and each block of a file of `avro_file` end: where a cut leaves a file that still parses."""
    ends, found = [], data.find(SYNC)
    while found >= 0:
        ends.append(found + 16)
        found = data.find(SYNC, found + 16)
    return ends


def file_record(number: int, status: int = 1, content: int = 0, **fields: Any) -> dict[str, Any]:
    """A manifest entry; `fields` are the data file's."""
    data_file = {
        "content": content,
        "file_path": f"s3://bucket/t/data/{number:05d}.parquet",
        "file_format": "PARQUET",
        "partition": {},
        "record_count": 10 + number,
        "file_size_in_bytes": 1000 + number,
        "column_sizes": [{"key": 1, "value": 40}],
        "lower_bounds": [{"key": 1, "value": b"\x00\xff"}],
        "split_offsets": [4],
        **fields,
    }
    return {"status": status, "snapshot_id": 1, "sequence_number": 1, "file_sequence_number": 1, "data_file": data_file}


def list_record(
    path: str, length: int, content: int = 0, counts: tuple[Any, Any, Any] = (0, 0, 0), **fields: Any
) -> Any:
    """An entry of a manifest list; `counts` are (existing, added, deleted), as EntryStatus numbers them."""
    return {
        "manifest_path": path,
        "manifest_length": length,
        "partition_spec_id": 0,
        "content": content,
        "sequence_number": 1,
        "min_sequence_number": 1,
        "added_snapshot_id": 1,
        "existing_files_count": counts[0],
        "added_files_count": counts[1],
        "deleted_files_count": counts[2],
        **fields,
    }


def entry_for(path: str, data: bytes, content: int = 0, counts: tuple[Any, Any, Any] = (0, 0, 0)) -> ManifestListEntry:
    """What a manifest list would say of the manifest `data` at `path`."""
    return ManifestListEntry(
        manifest_path=path,
        manifest_length=len(data),
        partition_spec_id=0,
        content=content,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=1,
        existing_files_count=counts[0],
        added_files_count=counts[1],
        deleted_files_count=counts[2],
    )


class Shelf:
    """Files by path, read as `Stores` reads them."""

    limits = DEFAULT_LIMITS

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise StorageError("There is no such file", path=path)
        return self.files[path]
