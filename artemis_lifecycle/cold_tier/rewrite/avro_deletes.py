"""Rewriting position-delete files in Avro."""

from __future__ import annotations

from artemis_lifecycle.cold_tier.rewrite.deletes import (
    DELETE_FILE_PATH,
    DELETE_POS,
    Mapped,
    RewrittenDelete,
    unreadable_deletes,
)
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.avro.container import open_container
from artemis_lifecycle.metadata.avro.records import decoding, read_records, with_records
from artemis_lifecycle.metadata.avro.schema import field_names
from artemis_lifecycle.storage.bounded import ReadLimits

_COLUMNS = {DELETE_FILE_PATH: "file_path", DELETE_POS: "pos"}


def rewrite_avro_deletes(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
    try:
        with decoding(path):
            return _avro_deletes(data, path, mapped, limits)
    except UnreadableMetadata as error:
        raise unreadable_deletes(path, error) from error


def _avro_deletes(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
    container = open_container(data, path, limits)
    names = field_names(container.schema, _COLUMNS, frozenset(_COLUMNS.values()), path)
    path_name, pos_name = names["file_path"], names["pos"]
    records = list(read_records(container, path))
    for record in records:
        record[path_name] = mapped(record[path_name])
    order = [(record[path_name].encode(), record[pos_name]) for record in records]
    if order != sorted(order):
        records.sort(key=lambda record: (record[path_name].encode(), record[pos_name]))
    rewritten = with_records(container, records, path)
    paths = sorted({record[path_name] for record in records})
    return rewritten, RewrittenDelete(len(rewritten), min(paths, default=None), max(paths, default=None))
