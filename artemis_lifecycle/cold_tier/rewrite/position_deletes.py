"""Rewriting position-delete files in any supported format."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from artemis_lifecycle.cold_tier.rewrite.deletes import (
    DELETE_FILE_PATH,
    DELETE_POS,
    Mapped,
    RewrittenDelete,
    unreadable_deletes,
)
from artemis_lifecycle.errors import HandoffFailed, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.avro.container import open_container
from artemis_lifecycle.metadata.avro.records import decoding, read_records, with_records
from artemis_lifecycle.metadata.avro.schema import field_names
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, ReadLimits
from artemis_lifecycle.storage.columnar import ParquetReader
from artemis_lifecycle.storage.orc import read_orc

_COLUMNS = {DELETE_FILE_PATH: "file_path", DELETE_POS: "pos"}


def rewrite_position_deletes(
    data: bytes, path: str, file_format: str, mapped: Mapped, limits: ReadLimits = DEFAULT_LIMITS
) -> tuple[bytes, RewrittenDelete]:
    """Map the paths in the rows of the position-delete file at `path`, and sort the rows as the spec requires.

    Raises HandoffFailed for formats other than Parquet, ORC and Avro, and for a file that cannot be read.
    """
    formats = {"parquet": _rewrite_parquet, "orc": _rewrite_orc, "avro": _rewrite_avro}
    rewrite = formats.get(file_format.lower())
    if rewrite is not None:
        return rewrite(data, path, mapped, limits)
    raise HandoffFailed(
        f"Position-delete files in {file_format.upper()} cannot be rewritten",
        path=path,
        untouched="the table and all its files",
        hint="rewrite the position deletes as Parquet (write.delete.format.default, rewrite_position_delete_files), "
        "let the snapshots before that expire without a cold tier; or set cold_tier.enabled to false for this table",
    )


# --- Parquet


def _rewrite_parquet(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
    try:
        source = ParquetReader(data, path, limits)
        groups = list(source.groups())
    except (StorageError, pa.ArrowException, OSError, MemoryError) as error:
        raise unreadable_deletes(path, error) from error
    schema = source.schema
    index = _path_column(schema, path)
    _require_text(schema, index, path)
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
    if _order_changes(paths):
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


# --- ORC


def _rewrite_orc(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
    """Like the Parquet version. Iceberg's column ids are attributes of ORC's types, which Arrow reads and writes as
    field metadata. The file's user metadata (such as `delete-type`), which no reader needs, is lost."""
    try:
        source = read_orc(data, path, limits)
    except StorageError as error:
        raise unreadable_deletes(path, error) from error
    table, schema = source.table, source.table.schema
    ids = {(column.metadata or {}).get(b"iceberg.id"): index for index, column in enumerate(schema)}
    index = ids.get(str(DELETE_FILE_PATH).encode(), schema.get_field_index("file_path"))
    pos = ids.get(str(DELETE_POS).encode(), schema.get_field_index("pos"))
    if min(index, pos) < 0:
        raise unreadable_deletes(path, ValueError("it has no columns file_path and pos"))
    _require_text(schema, index, path)
    values = table.column(index).to_pylist()
    paths = {value: mapped(value) for value in dict.fromkeys(values)}
    table = table.set_column(index, schema.field(index), pa.array([paths[value] for value in values], pa.string()))
    if _order_changes(paths):
        table = table.sort_by([(schema.names[index], "ascending"), (schema.names[pos], "ascending")])
    out = io.BytesIO()
    orc.write_table(table, out, compression=source.compression)
    rewritten = out.getvalue()
    written = orc.ORCFile(io.BytesIO(rewritten))
    if written.nrows != table.num_rows or not pa.schema(list(written.schema)).equals(schema, check_metadata=True):
        raise unreadable_deletes(path, ValueError("it reads back with different rows or columns"))
    lower, upper = min(paths.values(), default=None), max(paths.values(), default=None)
    return rewritten, RewrittenDelete(len(rewritten), lower, upper)


# --- Avro


def _rewrite_avro(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
    try:
        with decoding(path):
            return _avro_rows(data, path, mapped, limits)
    except UnreadableMetadata as error:
        raise unreadable_deletes(path, error) from error


def _avro_rows(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
    container = open_container(data, path, limits)
    names = field_names(container.schema, _COLUMNS, frozenset(_COLUMNS.values()), path)
    path_name, pos_name = names["file_path"], names["pos"]
    records = list(read_records(container, path))
    for record in records:
        record[path_name] = mapped(record[path_name])
    records.sort(key=lambda record: (record[path_name].encode(), record[pos_name]))
    rewritten = with_records(container, records, path)
    paths = {record[path_name] for record in records}
    return rewritten, RewrittenDelete(len(rewritten), min(paths, default=None), max(paths, default=None))


# --- shared


def _order_changes(paths: Mapping[str, str]) -> bool:
    """Return True if rows sorted by these live paths are not sorted by the cold ones."""
    ordered = [cold for _, cold in sorted(paths.items())]
    return ordered != sorted(set(ordered))


def _require_text(schema: pa.Schema, index: int, path: str) -> None:
    found = schema.field(index).type
    if not pa.types.is_string(found) and not pa.types.is_large_string(found):
        raise unreadable_deletes(path, ValueError(f"its paths are {found}"))
