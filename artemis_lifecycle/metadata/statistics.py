"""The live entries of a manifest with what planning a scan needs of them, checked against the manifest list. Only the
statistics that a caller asks for become values. Source: format/spec.md, "Manifests"; field ids 104 to 145.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.metadata.avro.container import parsed_schema
from artemis_lifecycle.metadata.avro.records import read_records
from artemis_lifecycle.metadata.avro.schema import field_type, record_fields
from artemis_lifecycle.metadata.manifests import (
    check_added_by,
    check_contents,
    check_counts,
    entry_names,
    file_names,
    open_manifest,
)
from artemis_lifecycle.metadata.types import EntryStatus, ManifestListEntry
from artemis_lifecycle.metadata.unreadable import encrypted, unreadable
from artemis_lifecycle.storage.bounded import within_memory

if TYPE_CHECKING:
    from artemis_lifecycle.storage.stores import Stores

_REQUIRED = ("file_path", "file_format", "file_size_in_bytes", "record_count")
_TYPES = [str, str, int, int]


@dataclass(frozen=True, slots=True)
class LiveEntry:
    """One live data or delete file. `content` is 0 (data), 1 (position deletes) or 2 (equality deletes); `partition`
    has the values of the fields that were asked for, as Avro stores them, None where the manifest has none."""

    content: int
    path: str
    file_format: str
    size_in_bytes: int
    record_count: int
    sequence_number: int
    partition: tuple[object, ...]
    _stored: Mapping[str, Any]
    _names: Mapping[str, str]

    def value(self, name: str) -> Any:
        """Return `referenced_data_file` or `equality_ids`; None if not recorded."""
        return self._stored.get(self._names.get(name, ""))

    def statistic(self, name: str, field_id: int) -> Any:
        """Return a column's `value_counts`, `null_value_counts`, `nan_value_counts`, `lower_bounds` (single-value
        serialization) or `upper_bounds`; None if not recorded."""
        for pair in self._stored.get(self._names.get(name, "")) or ():
            if pair["key"] == field_id:
                return pair["value"]
        return None


def live_statistics(stores: Stores, entry: ManifestListEntry, partition_fields: Sequence[int]) -> list[LiveEntry]:
    """Return the live entries of the manifest `entry`, with the values of `partition_fields` (ids).

    Raises UnreadableMetadata if the manifest is missing, broken, not of the recorded length, or its entries differ from
    what the list records; EncryptedTable.
    """
    path = entry.manifest_path
    with within_memory(path):
        container = open_manifest(stores, entry)
        outer, inner, by_id = _names(container.schema_text)
        fields = [by_id.get(each) for each in partition_fields]
        counts, contents, added_by = [0, 0, 0], set(), set()
        found = []
        for record in read_records(container, path):
            status, stored = record[outer["status"]], record[outer["data_file"]]
            if status not in (0, 1, 2):
                raise unreadable("A manifest entry has a status that is not 0, 1 or 2", path)
            counts[status] += 1
            live = _live_entry(record, stored, outer, inner, fields, entry)
            contents.add(live.content)
            if status == EntryStatus.ADDED:
                added_by.add(record.get(outer.get("snapshot_id", "")))
            if status != EntryStatus.DELETED:
                found.append(live)
        check_counts(counts, entry)
        check_contents(contents, entry)
        check_added_by(added_by, entry)
        return found


def _live_entry(
    record: Mapping[str, Any],
    stored: Any,
    outer: Mapping[str, str],
    inner: Mapping[str, str],
    fields: Sequence[str | None],
    entry: ManifestListEntry,
) -> LiveEntry:
    if type(stored) is not dict:
        raise unreadable("A manifest entry has no data_file", entry.manifest_path)
    if stored.get(inner.get("key_metadata", "")) is not None:
        raise encrypted("A file of the manifest", entry.manifest_path)
    values: list[Any] = [stored.get(inner.get(name, "")) for name in _REQUIRED]
    if [type(value) for value in values] != _TYPES:
        missing = [name for name, value, kind in zip(_REQUIRED, values, _TYPES, strict=True) if type(value) is not kind]
        raise unreadable(f"A manifest entry has no {missing[0]}", entry.manifest_path)
    path, file_format, size_in_bytes, record_count = values
    own = record.get(outer.get("sequence_number", ""))
    if own is None and entry.sequence_number and record[outer["status"]] == EntryStatus.EXISTING:
        raise unreadable("An existing entry of the manifest has no sequence number", entry.manifest_path)
    partition = stored.get(inner.get("partition", "")) or {}
    return LiveEntry(
        stored.get(inner.get("content", "")) or 0,
        path,
        file_format,
        size_in_bytes,
        record_count,
        # An added entry without one has the manifest's, and in v1 all are 0 (spec, "Sequence Number Inheritance").
        entry.sequence_number if own is None else own,
        tuple(None if name is None else partition.get(name) for name in fields),
        stored,
        inner,
    )


@lru_cache(maxsize=256)
def _names(schema_text: str) -> tuple[Mapping[str, str], Mapping[str, str], Mapping[int, str]]:
    """Return this package's names of an entry's fields -> the file's; the same for `data_file`; and the names of
    partition fields by id."""
    schema = parsed_schema(schema_text)
    outer = entry_names(schema, "a manifest")
    inner = file_names(schema, outer, "a manifest")
    if "partition" not in inner:
        return outer, inner, {}
    fields = record_fields(field_type(schema, outer["data_file"], "a manifest"), inner["partition"])
    return outer, inner, {each["field-id"]: each["name"] for each in fields if isinstance(each.get("field-id"), int)}
