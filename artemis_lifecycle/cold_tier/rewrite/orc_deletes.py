"""Rewriting position-delete files in ORC."""

from __future__ import annotations

import io

import pyarrow as pa
from pyarrow import orc

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
from artemis_lifecycle.storage.orc import read_orc


def rewrite_orc_deletes(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
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
    require_text(schema, index, path)
    values = table.column(index).to_pylist()
    paths = {value: mapped(value) for value in dict.fromkeys(values)}
    table = table.set_column(index, schema.field(index), pa.array([paths[value] for value in values], pa.string()))
    if order_changes(paths):
        table = table.sort_by([(schema.names[index], "ascending"), (schema.names[pos], "ascending")])
    out = io.BytesIO()
    orc.write_table(table, out, compression=source.compression)
    rewritten = out.getvalue()
    written = orc.ORCFile(io.BytesIO(rewritten))
    if written.nrows != table.num_rows or not pa.schema(list(written.schema)).equals(schema, check_metadata=True):
        raise unreadable_deletes(path, ValueError("it reads back with different rows or columns"))
    lower, upper = min(paths.values(), default=None), max(paths.values(), default=None)
    return rewritten, RewrittenDelete(len(rewritten), lower, upper)
