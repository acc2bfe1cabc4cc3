"""Every entry of a manifest with all its fields, read record by record. The package reads a few columns instead; its
readers are compared with this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from artemis_lifecycle.metadata.avro.container import field_names, field_type, open_container
from artemis_lifecycle.metadata.avro.scan import read_records
from artemis_lifecycle.metadata.types import EntryStatus, Kind, ManifestListEntry, kind_of
from artemis_lifecycle.storage.stores import Stores

_ENTRY = {0: "status", 1: "snapshot_id", 3: "sequence_number", 2: "data_file"}
_DATA_FILE = {
    134: "content",
    100: "file_path",
    101: "file_format",
    102: "partition",
    103: "record_count",
    104: "file_size_in_bytes",
    132: "split_offsets",
    135: "equality_ids",
    140: "sort_order_id",
    143: "referenced_data_file",
    144: "content_offset",
    145: "content_size_in_bytes",
}
_AS_NAMED = {name: name for name in (*_ENTRY.values(), *_DATA_FILE.values())}
"""Iceberg's own names, which are those of this module."""


@dataclass(frozen=True)
class WholeFile:
    """A data or delete file. `partition` maps the partition field's name to its stored value."""

    content: int
    file_path: str
    file_format: str
    partition: Mapping[str, object]
    record_count: int
    file_size_in_bytes: int
    split_offsets: tuple[int, ...] | None
    equality_ids: tuple[int, ...] | None
    sort_order_id: int | None
    referenced_data_file: str | None
    content_offset: int | None
    content_size_in_bytes: int | None

    @property
    def kind(self) -> Kind:
        return kind_of(self.content, self.file_format)


@dataclass(frozen=True)
class WholeEntry:
    """One entry. Its sequence number and snapshot id are the stored ones: None means "inherit from the list"."""

    status: EntryStatus
    snapshot_id: int | None
    sequence_number: int | None
    data_file: WholeFile


def whole_entries(stores: Stores, entry: ManifestListEntry) -> list[WholeEntry]:
    path = entry.manifest_path
    data = stores.read(path)
    if data[:4] == b"PAR1":
        return [_entry(row, _AS_NAMED, _AS_NAMED) for row in pq.read_table(pa.BufferReader(data)).to_pylist()]
    container = open_container(data, path)
    names = field_names(container.schema, _ENTRY, frozenset({"status", "data_file"}), path)
    inner = field_names(field_type(container.schema, names["data_file"], path), _DATA_FILE, frozenset(), path)
    return [_entry(record, names, inner) for record in read_records(container, path)]


def _entry(record: Mapping[str, Any], names: Mapping[str, str], inner: Mapping[str, str]) -> WholeEntry:
    file: dict[str, Any] = {
        name: record[names["data_file"]].get(inner[name]) if name in inner else None for name in _DATA_FILE.values()
    }
    file["content"] = file["content"] or 0
    file["file_format"] = file["file_format"].lower()
    for name in ("split_offsets", "equality_ids"):
        file[name] = None if file[name] is None else tuple(file[name])
    return WholeEntry(
        EntryStatus(record[names["status"]]),
        record[names["snapshot_id"]] if "snapshot_id" in names else None,
        record[names["sequence_number"]] if "sequence_number" in names else None,
        WholeFile(**file),
    )
