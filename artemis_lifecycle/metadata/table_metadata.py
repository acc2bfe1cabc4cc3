"""The metadata file (`*.metadata.json`), parsed strictly by the spec and tolerant of unknown fields.

Required are the fields that Iceberg's own TableMetadataParser, SnapshotParser and SnapshotRefParser require, and those
that prevent a truncated or incomplete file from being read as a shorter history. Format versions 1 to 3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from artemis_lifecycle.errors import NewerFormat
from artemis_lifecycle.metadata.fast_json import long_lists
from artemis_lifecycle.metadata.kinds import NAMED_BY_SNAPSHOT, Kind
from artemis_lifecycle.metadata.types import (
    MAIN_BRANCH,
    NO_SUMMARY,
    LogEntry,
    MetadataLogEntry,
    Ref,
    Snapshot,
    SnapshotSummary,
    StatisticsFile,
    TableMetadata,
)
from artemis_lifecycle.metadata.unreadable import encrypted, read_file, unreadable
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, ReadLimits, require_bounded_json, within_memory

if TYPE_CHECKING:
    from artemis_lifecycle.storage.stores import Stores

NEWEST_FORMAT_VERSION = 3

_GZIP_MAGIC = b"\x1f\x8b"


def read_table_metadata(stores: Stores, metadata_location: str) -> TableMetadata:
    """Read and parse the metadata file at `metadata_location`.

    Raises UnreadableMetadata if it is missing, cannot be fetched or is incomplete.
    """
    return parse_table_metadata(read_file(stores, metadata_location), metadata_location, stores.limits)


def is_gzip_location(metadata_location: str) -> bool:
    """Return True if Iceberg reads a metadata file with this name through gzip; covers both naming schemes."""
    return metadata_location.endswith((".gz.metadata.json", ".metadata.json.gz"))


def refuse_encrypted(metadata: TableMetadata, table: str | None = None) -> None:
    """Raise EncryptedTable if any part of the table's metadata says that files are encrypted."""
    if metadata.encrypted:
        raise encrypted("The table", metadata.metadata_location, table)


def parse_table_metadata(data: bytes, metadata_location: str, limits: ReadLimits = DEFAULT_LIMITS) -> TableMetadata:
    """Parse a metadata file's bytes, plain or gzip.

    Unknown fields are ignored. A ref to a missing snapshot is kept, and is in `invalid_refs`.

    Raises UnreadableMetadata with the field if the bytes are truncated, a required field is missing or of the wrong
    type, ids are duplicated, the current snapshot is not among the snapshots, or the format version is not 1, 2 or 3;
    its subclass TooLarge if the content exceeds `limits`.
    """
    try:
        with within_memory(metadata_location):
            plain = _plain(data, metadata_location, limits)
            node = _split(plain) or _object(plain, metadata_location)
            return _Parser(metadata_location).metadata(node)
    except _Malformed as error:
        raise unreadable(str(error), metadata_location) from None


def metadata_json(data: bytes, metadata_location: str, limits: ReadLimits = DEFAULT_LIMITS) -> dict[str, Any]:
    """Return a metadata file's bytes, plain or gzip, as a JSON object, including unknown fields.

    Raises UnreadableMetadata; its subclass TooLarge if the content exceeds `limits`.
    """
    with within_memory(metadata_location):
        return _object(_plain(data, metadata_location, limits), metadata_location)


def _plain(data: bytes, metadata_location: str, limits: ReadLimits) -> bytes:
    """Return the bytes without gzip, bounded as JSON. A file with a gzip name must be gzip."""
    if data[:2] == _GZIP_MAGIC:
        try:
            plain = limits.allowance(metadata_location, len(data)).undo("gzip", data)
        except ValueError as error:
            raise unreadable(f"The gzip stream of the metadata file is broken: {error}", metadata_location) from error
    elif is_gzip_location(metadata_location):
        raise unreadable("The metadata file is named as gzip and is not", metadata_location)
    else:
        plain = data
    require_bounded_json(plain, metadata_location, len(data))
    return plain


def _object(plain: bytes, metadata_location: str) -> dict[str, Any]:
    try:
        node = json.loads(plain.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise unreadable(f"The metadata file is cut or is not JSON ({error})", metadata_location) from error
    if not isinstance(node, dict):
        raise unreadable("The metadata file is not a JSON object", metadata_location)
    return node


@dataclass(frozen=True)
class Described:
    """What a metadata file of any object and any version says of itself. `locations` are its own and the one that its
    properties set for metadata, without relative ones. `is_table` is False for anything without a table's fields. `log`
    has the metadata files before it."""

    is_table: bool
    is_view: bool
    table_uuid: str | None
    locations: tuple[str, ...]
    log: tuple[str, ...] = ()


def described(stores: Stores, metadata_location: str) -> Described:
    """Read a metadata file as far as every object's can be read. Raises UnreadableMetadata if it is not JSON."""
    node = metadata_json(read_file(stores, metadata_location), metadata_location, stores.limits)
    properties = node.get("properties")
    places = (node.get("location"), properties.get("write.metadata.path") if isinstance(properties, dict) else None)
    uuid, log = node.get("table-uuid"), node.get("metadata-log")
    log = log if isinstance(log, list) else []
    return Described(
        not _TABLE_FIELDS.isdisjoint(node),
        "view-uuid" in node,
        uuid if isinstance(uuid, str) and _UUID.fullmatch(uuid) else None,
        tuple(each.rstrip("/") for each in places if isinstance(each, str) and _PLACE.match(each)),
        tuple(str(each.get("metadata-file")) for each in log if isinstance(each, dict))
        if isinstance(log, list)
        else (),
    )


class _Malformed(Exception):  # noqa: N818  (becomes UnreadableMetadata)
    """Internal: which field is wrong. Becomes UnreadableMetadata with the path."""


_LONG_LIMIT = 2**63
_PLACE = re.compile(r"[^/]+://.|/.")
_TABLE_FIELDS = frozenset({"table-uuid", "last-column-id", "current-snapshot-id", "snapshots"})
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def _split(data: bytes) -> dict[str, Any] | None:
    """Return the metadata with its two long lists, snapshots and log, already as values; the rest as parsed JSON.

    It parses snapshot by snapshot, so that 100,000 of them are never dictionaries at the same time. None for anything
    unusual: then the complete parser reads the whole file again, and reports what is wrong.
    """
    found = long_lists(data)
    if found is None:
        return None
    node, snapshots, log = found
    if any(not snapshot.manifest_list and not snapshot.manifests for snapshot in snapshots):
        return None
    return {**node, "snapshots": snapshots, "snapshot-log": log}


class _Parser:
    def __init__(self, metadata_location: str) -> None:
        self._location = metadata_location

    def metadata(self, node: dict[str, Any]) -> TableMetadata:
        version = _integer(node, "format-version")
        if version > NEWEST_FORMAT_VERSION:
            raise NewerFormat.version(version, NEWEST_FORMAT_VERSION, self._location)
        if version < 1:
            raise _Malformed(f"Format version {version} is not among the supported, 1 to {NEWEST_FORMAT_VERSION}")
        table_uuid = _optional_text(node, "table-uuid")
        if table_uuid is None:
            raise _Malformed("The metadata file has no table-uuid, which is the key of plans, holds and the journal")
        if _UUID.fullmatch(table_uuid) is None:
            # Folders are named after it, so no other characters are allowed.
            raise _Malformed(f"table-uuid is not a UUID: {table_uuid!r:.80}")
        last_column_id = _integer(node, "last-column-id")
        last_sequence_number = _integer(node, "last-sequence-number") if version > 1 else 0
        schemas, current_schema_id = _schemas(node, version)
        specs, default_spec_id = _specs(node, version)
        snapshots = _values(node, "snapshots", _snapshot)
        ids = {snapshot.snapshot_id for snapshot in snapshots}
        if len(ids) != len(snapshots):
            raise _Malformed("Two snapshots have one snapshot-id")
        if version > 1:
            for snapshot in snapshots:
                if snapshot.sequence_number > last_sequence_number:
                    raise _Malformed(
                        f"Snapshot {snapshot.snapshot_id} has sequence-number {snapshot.sequence_number}, beyond the "
                        f"table's last-sequence-number {last_sequence_number}"
                    )
        current = _optional_integer(node, "current-snapshot-id")
        if current == -1:
            current = None
        if current is not None and current not in ids:
            raise _Malformed(f"current-snapshot-id {current} is not among the snapshots")
        return TableMetadata(
            metadata_location=self._location,
            location=_text(node, "location").rstrip("/") or "/",
            table_uuid=table_uuid,
            format_version=version,
            last_updated_ms=_integer(node, "last-updated-ms"),
            last_sequence_number=last_sequence_number,
            current_snapshot_id=current,
            snapshots=snapshots,
            refs=_refs(node, current),
            snapshot_log=_values(node, "snapshot-log", _log_entry),
            metadata_log=tuple(
                MetadataLogEntry(_integer(entry, "timestamp-ms"), _text(entry, "metadata-file"))
                for entry in _objects(node, "metadata-log")
            ),
            statistics=tuple(file for key, kind in NAMED_BY_SNAPSHOT.items() for file in _statistics(node, key, kind)),
            properties=_text_map(node, "properties"),
            current_schema_id=current_schema_id,
            schemas=schemas,
            default_spec_id=default_spec_id,
            partition_specs=specs,
            next_row_id=_integer(node, "next-row-id") if version >= 3 else None,
            encryption_key_ids=tuple(_text(key, "key-id") for key in _objects(node, "encryption-keys")),
            # Before they were added to the format, tables had neither: all were unsorted, which is order 0.
            default_sort_order_id=_optional_integer(node, "default-sort-order-id") or 0,
            sort_orders={_integer(each, "order-id"): json.dumps(each) for each in _objects(node, "sort-orders")},
            last_column_id=last_column_id,
            last_partition_id=_optional_integer(node, "last-partition-id") or 0,
        )


T = TypeVar("T")


def _values(node: dict[str, Any], key: str, parse: Callable[[dict[str, Any]], T]) -> tuple[T, ...]:
    """Return the list under `key`; unchanged if it is already parsed."""
    found = node.get(key)
    return found if isinstance(found, tuple) else tuple(map(parse, _objects(node, key)))


def _log_entry(node: dict[str, Any]) -> LogEntry:
    return LogEntry(_integer(node, "timestamp-ms"), _integer(node, "snapshot-id"))


def _snapshot(node: dict[str, Any]) -> Snapshot:
    # One call per snapshot, and there may be millions: fields are checked inline where that is cheaper.
    snapshot_id = _integer(node, "snapshot-id")
    try:
        manifest_list = node.get("manifest-list")
        manifests: tuple[str, ...] = ()
        if manifest_list is None:
            if "manifest-list" in node:
                raise _Malformed("manifest-list is null")
            inline = node.get("manifests")
            if not isinstance(inline, list) or not all(isinstance(path, str) for path in inline):
                raise _Malformed("there is neither a manifest-list nor an inline list of manifests")
            manifests = tuple(inline)
        elif not isinstance(manifest_list, str) or not manifest_list:
            raise _Malformed("manifest-list is not a path")
        # Null and absent are equal for these, because Iceberg writes neither.
        return Snapshot(
            snapshot_id,
            _optional_integer(node, "parent-snapshot-id"),
            _optional_integer(node, "sequence-number") or 0,
            _integer(node, "timestamp-ms"),
            manifest_list,
            manifests,
            _optional_integer(node, "schema-id"),
            _summary(node.get("summary")) if "summary" in node else NO_SUMMARY,
            _optional_integer(node, "first-row-id"),
            _optional_integer(node, "added-rows"),
            _optional_text(node, "key-id"),
        )
    except _Malformed as error:
        raise _Malformed(f"Snapshot {snapshot_id}: {error}") from None


def _summary(node: Any) -> SnapshotSummary:
    if not isinstance(node, dict):
        raise _Malformed("summary is not a JSON object")
    for value in node.values():
        if type(value) is not str:
            raise _Malformed("summary has a value that is not text")
    if not node:
        return NO_SUMMARY
    # Iceberg treats a summary without an operation as an overwrite, so that it stays readable.
    operation = node.pop("operation", "overwrite")
    return SnapshotSummary(operation, node)


def _refs(node: dict[str, Any], current: int | None) -> Mapping[str, Ref]:
    raw = node.get("refs")
    refs: dict[str, Ref] = {}
    if raw is not None or "refs" in node:
        if not isinstance(raw, dict):
            raise _Malformed("refs is not a JSON object")
        for name, body in raw.items():
            if not isinstance(body, dict):
                raise _Malformed(f"Ref {name} is not a JSON object")
            try:
                refs[name] = Ref(
                    name=name,
                    snapshot_id=_integer(body, "snapshot-id"),
                    type=_ref_type(_text(body, "type")),
                    min_snapshots_to_keep=_optional_integer(body, "min-snapshots-to-keep"),
                    max_snapshot_age_ms=_optional_integer(body, "max-snapshot-age-ms"),
                    max_ref_age_ms=_optional_integer(body, "max-ref-age-ms"),
                )
            except _Malformed as error:
                raise _Malformed(f"Ref {name}: {error}") from None
    main = refs.get(MAIN_BRANCH)
    if main is None:
        # The spec: main always points to the current snapshot, even if refs are omitted.
        if current is not None:
            refs[MAIN_BRANCH] = Ref(MAIN_BRANCH, current, "branch")
    elif not main.is_branch or main.snapshot_id != current:
        raise _Malformed(f"main is a {main.type} at {main.snapshot_id}, and the current snapshot is {current}")
    return refs


def _ref_type(text: str) -> Literal["branch", "tag"]:
    lowered = text.lower()
    if lowered == "branch":
        return "branch"
    if lowered == "tag":
        return "tag"
    raise _Malformed(f"type {text!r} is neither branch nor tag")


def _schemas(node: dict[str, Any], version: int) -> tuple[Mapping[int, str], int]:
    if "schemas" not in node:
        if version > 1:
            raise _Malformed(f"schemas must exist in format version {version}")
        single = node.get("schema")
        if not isinstance(single, dict):
            raise _Malformed("schema is missing or no JSON object")
        schema_id = _optional_integer(single, "schema-id") or 0
        return {schema_id: json.dumps(single)}, schema_id
    current = _integer(node, "current-schema-id")
    schemas = {_optional_integer(schema, "schema-id") or 0: json.dumps(schema) for schema in _objects(node, "schemas")}
    if current not in schemas:
        raise _Malformed(f"current-schema-id {current} is not among the schemas")
    return schemas, current


def _specs(node: dict[str, Any], version: int) -> tuple[Mapping[int, str], int]:
    if "partition-specs" not in node:
        if version > 1:
            raise _Malformed(f"partition-specs must exist in format version {version}")
        fields = node.get("partition-spec")
        if not isinstance(fields, list):
            raise _Malformed("partition-spec is missing or no list")
        return {0: json.dumps({"spec-id": 0, "fields": fields})}, 0
    default = _integer(node, "default-spec-id")
    specs = {_integer(spec, "spec-id"): json.dumps(spec) for spec in _objects(node, "partition-specs")}
    if default not in specs:
        raise _Malformed(f"default-spec-id {default} is not among the partition-specs")
    return specs, default


def _statistics(node: dict[str, Any], key: str, kind: Kind) -> list[StatisticsFile]:
    return [
        StatisticsFile(
            snapshot_id=_integer(entry, "snapshot-id"),
            path=_text(entry, "statistics-path"),
            size_in_bytes=_integer(entry, "file-size-in-bytes"),
            kind=kind,
        )
        for entry in _objects(node, key)
    ]


def _integer(node: Mapping[str, Any], key: str) -> int:
    value = node.get(key)
    # A bool is an int in Python but not in JSON; Iceberg has no integers beyond 64 bits.
    if type(value) is not int or not -_LONG_LIMIT <= value < _LONG_LIMIT:
        raise _Malformed(f"{key} is missing" if key not in node else f"{key} is not a 64-bit integer: {value!r:.80}")
    return value


def _optional_integer(node: Mapping[str, Any], key: str) -> int | None:
    return None if node.get(key) is None else _integer(node, key)


def _text(node: Mapping[str, Any], key: str) -> str:
    value = node.get(key)
    if type(value) is not str:
        raise _Malformed(f"{key} is missing" if key not in node else f"{key} is not text: {value!r:.80}")
    return value


def _optional_text(node: Mapping[str, Any], key: str) -> str | None:
    return None if node.get(key) is None else _text(node, key)


def _text_map(node: Mapping[str, Any], key: str) -> Mapping[str, str]:
    value = node.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(type(item) is str for item in value.values()):
        raise _Malformed(f"{key} is not a map of texts")
    return value


def _objects(node: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    if key not in node:
        return []
    value = node[key]
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _Malformed(f"{key} is not a list of JSON objects")
    return value
