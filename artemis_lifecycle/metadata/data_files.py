"""Manifest entries as typed values, one object per file, with every statistic that they store. For single manifests;
planning reads a few columns by `statistics`. Source: format/spec.md, "Manifests".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.metadata.avro.records import read_records
from artemis_lifecycle.metadata.kinds import Kind, kind_of
from artemis_lifecycle.metadata.manifests import entry_names, file_names, open_manifest
from artemis_lifecycle.metadata.types import EntryStatus, ManifestListEntry
from artemis_lifecycle.metadata.unreadable import encrypted, unreadable
from artemis_lifecycle.storage.bounded import within_memory

if TYPE_CHECKING:
    from artemis_lifecycle.storage.stores import Stores


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


_BY_COLUMN = (
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
)


def read_manifest(stores: Stores, entry: ManifestListEntry) -> tuple[DataFile, ...]:
    """Return all entries of the manifest `entry`, deleted ones included. Raises UnreadableMetadata, EncryptedTable."""
    path = entry.manifest_path
    with within_memory(path):
        container = open_manifest(stores, entry)
        outer = entry_names(container.schema, path)
        inner = file_names(container.schema, outer, path)
        return tuple(_data_file(record, outer, inner, path) for record in read_records(container, path))


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
