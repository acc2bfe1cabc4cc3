"""Manifests in Parquet for tests, written by pyarrow with the schema of Iceberg's V4Metadata."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HEADER = {"schema": "{}", "partition-spec": "[]", "partition-spec-id": "0", "format-version": "4", "content": "data"}


def numbered(name: str, number: int, kind: pa.DataType, *, optional: bool = True) -> pa.Field:
    return pa.field(name, kind, optional, {"PARQUET:field_id": str(number)})


def _map(key: int, value: pa.DataType) -> pa.DataType:
    return pa.map_(numbered("key", key, pa.int32(), optional=False), numbered("value", key + 1, value, optional=False))


def _list(element: int, kind: pa.DataType) -> pa.DataType:
    return pa.list_(numbered("element", element, kind, optional=False))


FILE = (
    numbered("content", 134, pa.int32(), optional=False),
    numbered("file_path", 100, pa.string(), optional=False),
    numbered("file_format", 101, pa.string(), optional=False),
    numbered("record_count", 103, pa.int64(), optional=False),
    numbered("file_size_in_bytes", 104, pa.int64(), optional=False),
    numbered("column_sizes", 108, _map(117, pa.int64())),
    numbered("value_counts", 109, _map(119, pa.int64())),
    numbered("lower_bounds", 125, _map(126, pa.binary())),
    numbered("upper_bounds", 128, _map(129, pa.binary())),
    numbered("key_metadata", 131, pa.binary()),
    numbered("split_offsets", 132, _list(133, pa.int64())),
    numbered("equality_ids", 135, _list(136, pa.int32())),
    numbered("sort_order_id", 140, pa.int32()),
    numbered("referenced_data_file", 143, pa.string()),
)

_MAPS = ("column_sizes", "lower_bounds")


def manifest_in_parquet(
    records: Iterable[Mapping[str, Any]],
    *,
    header: Mapping[str, str] = {},
    of_entry: tuple[pa.Field, ...] = (),
    of_file: tuple[pa.Field, ...] = (),
) -> bytes:
    """A manifest of these records (`avro_files.file_record`), with further fields."""
    schema = pa.schema(
        [
            numbered("status", 0, pa.int32(), optional=False),
            numbered("snapshot_id", 1, pa.int64()),
            numbered("sequence_number", 3, pa.int64()),
            numbered("file_sequence_number", 4, pa.int64()),
            numbered("data_file", 2, pa.struct([*FILE, *of_file]), optional=False),
            *of_entry,
        ]
    )
    rows = [
        {
            **record,
            "data_file": {
                name: [(pair["key"], pair["value"]) for pair in value]
                if name in ("column_sizes", "lower_bounds")
                else value
                for name, value in record["data_file"].items()
            },
        }
        for record in records
    ]
    out = io.BytesIO()
    with pq.ParquetWriter(out, schema, compression="gzip", store_schema=False, store_decimal_as_integer=True) as writer:
        writer.add_key_value_metadata({**HEADER, **header})
        writer.write_table(pa.Table.from_pylist(rows, schema))
    return out.getvalue()
