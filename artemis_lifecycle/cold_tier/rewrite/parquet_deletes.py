"""Rewriting position-delete files in Parquet."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from artemis_lifecycle.cold_tier.rewrite.deletes import (
    DELETE_FILE_PATH,
    DELETE_POS,
    Mapped,
    RewrittenDelete,
    order_changes,
    require_text,
    unreadable_deletes,
)
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.columnar import ParquetReader


def rewrite_parquet_deletes(
    data: bytes, path: str, mapped: Mapped, limits: ReadLimits
) -> tuple[bytes, RewrittenDelete]:
    try:
        source = ParquetReader(data, path, limits)
        groups = list(source.groups())
    except (StorageError, pa.ArrowException, OSError, MemoryError) as error:
        raise unreadable_deletes(path, error) from error
    schema = source.schema
    index = _path_column(schema, path)
    require_text(schema, index, path)
    mapped_groups = []
    paths: dict[str, str] = {}
    for group in groups:
        encoded = group.column(index).combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        values = encoded.dictionary.to_pylist()
        for value in values:
            paths.setdefault(value, mapped(value))
        replaced = pa.array([paths[value] for value in values], schema.field(index).type).take(encoded.indices)
        mapped_groups.append(group.set_column(index, schema.field(index), replaced))
    if order_changes(paths):
        mapped_groups = _sorted_again(mapped_groups, index)
    out = io.BytesIO()
    with pq.ParquetWriter(
        out, schema, compression=_codec(source.metadata), store_schema=False, write_statistics=True, use_dictionary=True
    ) as writer:
        for group in mapped_groups:
            writer.write_table(group.cast(schema), row_group_size=max(group.num_rows, 1))
    rewritten = out.getvalue()
    written = pq.ParquetFile(io.BytesIO(rewritten)).metadata
    if written.num_rows != source.metadata.num_rows:
        raise unreadable_deletes(path, ValueError(f"{source.metadata.num_rows} rows became {written.num_rows}"))
    return rewritten, RewrittenDelete(
        size_in_bytes=len(rewritten),
        lower_path=min(paths.values(), default=None),
        upper_path=max(paths.values(), default=None),
        split_offsets=tuple(_start(written.row_group(group)) for group in range(written.num_row_groups)),
        column_sizes=_column_sizes(written, schema),
    )


def _path_column(schema: pa.Schema, path: str) -> int:
    index = _by_field_id(schema).get(DELETE_FILE_PATH, int(schema.get_field_index("file_path")))
    if index < 0:
        raise unreadable_deletes(path, ValueError("it has no column file_path"))
    return index


def _by_field_id(schema: pa.Schema) -> dict[int, int]:
    ids = {}
    for index, column in enumerate(schema):
        field_id = (column.metadata or {}).get(b"PARQUET:field_id")
        if field_id is not None:
            ids[int(field_id)] = index
    return ids


def _codec(source: pq.FileMetaData) -> str:
    codec = source.row_group(0).column(0).compression if source.num_row_groups else "ZSTD"
    return {"UNCOMPRESSED": "NONE", "LZO": "ZSTD"}.get(codec, codec)


def _sorted_again(groups: Sequence[pa.Table], index: int) -> list[pa.Table]:
    """Return the same rows sorted by path and position, in groups of the same sizes."""
    names = groups[0].schema.names
    pos = names.index("pos") if "pos" in names else 1
    table = pa.concat_tables(groups).sort_by([(names[index], "ascending"), (names[pos], "ascending")])
    result, start = [], 0
    for group in groups:
        result.append(table.slice(start, group.num_rows))
        start += group.num_rows
    return result


def _start(group: Any) -> int:
    first = group.column(0)
    offsets = [offset for offset in (first.dictionary_page_offset, first.data_page_offset) if offset]
    return int(min(offsets))


def _column_sizes(written: Any, schema: pa.Schema) -> dict[int, int]:
    by_name = {schema.names[index]: field_id for field_id, index in _by_field_id(schema).items()}
    sizes: dict[int, int] = {}
    for number in range(written.num_row_groups):
        group = written.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            field_id = by_name.get(column.path_in_schema)
            if field_id in (DELETE_FILE_PATH, DELETE_POS):
                sizes[field_id] = sizes.get(field_id, 0) + column.total_compressed_size
    return sizes
