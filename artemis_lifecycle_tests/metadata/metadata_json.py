"""Metadata files for tests: JSON that Iceberg's own TableMetadataParser reads, around any history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

TABLE_UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"

_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}],
}


def snapshot_node(
    snapshot_id: int, parent_id: int | None, timestamp_ms: int, sequence_number: int | None = 1, **fields: Any
) -> dict[str, Any]:
    """One snapshot of a metadata file; `fields` replace or add keys, with `_` for `-`, and None removes one."""
    node: dict[str, Any] = {
        "snapshot-id": snapshot_id,
        "sequence-number": sequence_number,
        "timestamp-ms": timestamp_ms,
        "summary": {"operation": "append"},
        "manifest-list": f"file:///tables/t/metadata/snap-{snapshot_id}.avro",
        "schema-id": 0,
    }
    if parent_id is not None:
        node["parent-snapshot-id"] = parent_id
    for key, value in fields.items():
        node[key.replace("_", "-")] = value
    return {key: value for key, value in node.items() if value is not None}


def metadata_node(
    snapshots: Iterable[Mapping[str, Any]] = (),
    *,
    current: int | None = None,
    refs: Mapping[str, Mapping[str, Any]] | None = None,
    log: Iterable[tuple[int, int]] = (),
    properties: Mapping[str, str] | None = None,
    format_version: int = 2,
    last_updated_ms: int = 0,
    **fields: Any,
) -> dict[str, Any]:
    """A whole metadata file; `log` as (timestamp_ms, snapshot_id); `fields` as in `snapshot_node`."""
    listed = [dict(snapshot) for snapshot in snapshots]
    entries = [{"timestamp-ms": at, "snapshot-id": snapshot_id} for at, snapshot_id in log]
    node: dict[str, Any] = {
        "format-version": format_version,
        "table-uuid": TABLE_UUID,
        "location": "file:///tables/t",
        "last-sequence-number": max((s.get("sequence-number", 0) for s in listed), default=0),
        "last-updated-ms": max([last_updated_ms, *(entry["timestamp-ms"] for entry in entries)]),
        "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [_SCHEMA],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": dict(properties or {}),
        "current-snapshot-id": -1 if current is None else current,
        "refs": dict(refs if refs is not None else {}),
        "snapshots": listed,
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": entries,
        "metadata-log": [],
    }
    if refs is None and current is not None:
        node["refs"] = {"main": {"snapshot-id": current, "type": "branch"}}
    if format_version >= 3:
        node["next-row-id"] = 0
    if format_version == 1:
        node["schema"] = _SCHEMA
        node["partition-spec"] = []
        del node["last-sequence-number"]
    for key, value in fields.items():
        node[key.replace("_", "-")] = value
    return {key: value for key, value in node.items() if value is not None}


def metadata_bytes(*args: Any, **kwargs: Any) -> bytes:
    """`metadata_node` as the bytes of a file."""
    return json.dumps(metadata_node(*args, **kwargs)).encode()
