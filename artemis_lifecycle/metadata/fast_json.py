"""The long lists of a metadata file, parsed directly into values by msgspec. Does not belong here: reporting what is
wrong with a file (`table_metadata.py`), which is used if the result is None."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec

from artemis_lifecycle.metadata.types import NO_SUMMARY, LogEntry, Snapshot, SnapshotSummary

_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Snapshot(msgspec.Struct, rename="kebab", gc=False):
    snapshot_id: _Long
    timestamp_ms: _Long
    manifest_list: str | None = None
    parent_snapshot_id: _Long | None = None
    sequence_number: _Long | None = None
    manifests: tuple[str, ...] = ()
    schema_id: _Long | None = None
    summary: dict[str, str] = {}
    first_row_id: _Long | None = None
    added_rows: _Long | None = None
    key_id: str | None = None


class _LogEntry(msgspec.Struct, rename="kebab", gc=False):
    timestamp_ms: _Long
    snapshot_id: _Long


_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_SNAPSHOT = msgspec.json.Decoder(_Snapshot)
_ENTRY = msgspec.json.Decoder(_LogEntry)


def long_lists(data: bytes) -> tuple[dict[str, Any], tuple[Snapshot, ...], tuple[LogEntry, ...]] | None:
    """Return (everything else as parsed JSON, the snapshots, the snapshot log); None if any of it is unusual.

    As in Iceberg, an inline list of manifests is ignored if there is a manifest list.
    """
    try:
        with _no_collection():
            parts = _PARTS.decode(data)
            if "snapshots" not in parts:
                return None
            snapshots = tuple(_value(_SNAPSHOT.decode(raw)) for raw in _ITEMS.decode(parts.pop("snapshots")))
            log = parts.pop("snapshot-log", None)
            entries = () if log is None else tuple(map(_entry, _ITEMS.decode(log)))
            return {name: json.loads(bytes(raw)) for name, raw in parts.items()}, snapshots, entries
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _value(node: _Snapshot) -> Snapshot:
    summary = NO_SUMMARY
    if node.summary:
        # Iceberg treats a summary without an operation as an overwrite, so that it stays readable.
        summary = SnapshotSummary(node.summary.pop("operation", "overwrite"), node.summary)
    return Snapshot(
        node.snapshot_id,
        node.parent_snapshot_id,
        node.sequence_number or 0,
        node.timestamp_ms,
        node.manifest_list,
        () if node.manifest_list is not None else node.manifests,
        node.schema_id,
        summary,
        node.first_row_id,
        node.added_rows,
        node.key_id,
    )


def _entry(raw: msgspec.Raw) -> LogEntry:
    node = _ENTRY.decode(raw)
    return LogEntry(node.timestamp_ms, node.snapshot_id)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the garbage collector: it would scan all snapshots repeatedly as they are added, and there is no cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
