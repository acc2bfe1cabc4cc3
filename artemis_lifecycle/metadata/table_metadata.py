"""The metadata file (`*.metadata.json`), parsed strictly by the spec and tolerant of unknown fields.

Required are the fields that Iceberg's own TableMetadataParser, SnapshotParser and SnapshotRefParser require, and those
that prevent a truncated or incomplete file from being read as a shorter history. Which format versions there are says
`format_versions`.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec

from artemis_lifecycle import format_versions
from artemis_lifecycle.errors import NewerFormat
from artemis_lifecycle.metadata.types import (
    MAIN_BRANCH,
    NAMED_BY_SNAPSHOT,
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
    type, ids are duplicated, the current snapshot is not among the snapshots, or the format version is not known;
    its subclass TooLarge if the content exceeds `limits`.
    """
    try:
        with within_memory(metadata_location), uncollected():
            return _table_metadata(_plain(data, metadata_location, limits), metadata_location)
    except _Malformed as error:
        raise unreadable(str(error), metadata_location) from None
    except msgspec.ValidationError as error:
        raise unreadable(f"The metadata file has a field of the wrong type: {error}", metadata_location) from None
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise unreadable(f"The metadata file is cut or is not JSON ({error})", metadata_location) from error


def read_metadata_json(stores: Stores, metadata_location: str) -> dict[str, Any]:
    """Read the metadata file at `metadata_location`, and return `metadata_json` of it."""
    return metadata_json(read_file(stores, metadata_location), metadata_location, stores.limits)


def metadata_json(data: bytes, metadata_location: str, limits: ReadLimits = DEFAULT_LIMITS) -> dict[str, Any]:
    """Return a metadata file's bytes, plain or gzip, as a JSON object, including unknown fields. A table-uuid is in
    small letters, however the file has it: writers spell one uuid in either, and compare them without case. Relative
    locations are resolved.

    Raises UnreadableMetadata; its subclass TooLarge if the content exceeds `limits`.
    """
    node = _plain_json(data, metadata_location, limits)
    format_versions.resolve_node(node, metadata_location)
    return node


def _plain_json(data: bytes, metadata_location: str, limits: ReadLimits) -> dict[str, Any]:
    with within_memory(metadata_location):
        node = _object(_plain(data, metadata_location, limits), metadata_location)
        if isinstance(node.get(_UUID_KEY), str):
            node[_UUID_KEY] = node[_UUID_KEY].lower()
        return node


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
    node = _plain_json(read_file(stores, metadata_location), metadata_location, stores.limits)
    with suppress(NewerFormat):
        format_versions.resolve_node(node, metadata_location)
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


_PLACE = re.compile(r"[^/]+:/.|/.")
_TABLE_FIELDS = frozenset({"table-uuid", "last-column-id", "current-snapshot-id", "snapshots"})
_UUID_KEY = "table-uuid"
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Node(msgspec.Struct, rename="kebab", kw_only=True, gc=False):
    """A JSON object of the file. Null is an error where None is no type; unknown fields are ignored."""


class _Version(_Node):
    format_version: _Long


class _Snapshot(_Node):
    snapshot_id: _Long
    timestamp_ms: _Long
    manifest_list: str | msgspec.UnsetType = msgspec.UNSET
    # Ignored if there is a manifest list, as in Iceberg.
    manifests: msgspec.Raw = msgspec.Raw()
    # Null and absent are equal for these, because Iceberg writes neither.
    parent_snapshot_id: _Long | None = None
    sequence_number: _Long | None = None
    schema_id: _Long | None = None
    summary: dict[str, str] = {}
    first_row_id: _Long | None = None
    added_rows: _Long | None = None
    key_id: str | None = None


class _Ref(_Node):
    snapshot_id: _Long
    type: str
    min_snapshots_to_keep: _Long | None = None
    max_snapshot_age_ms: _Long | None = None
    max_ref_age_ms: _Long | None = None


class _LogEntry(_Node):
    timestamp_ms: _Long
    snapshot_id: _Long


class _MetadataLogEntry(_Node):
    timestamp_ms: _Long
    metadata_file: str


class _StatisticsFile(_Node):
    snapshot_id: _Long
    statistics_path: str
    file_size_in_bytes: _Long


class _Key(_Node):
    key_id: str


class _Schema(_Node):
    id: _Long | None = msgspec.field(default=None, name="schema-id")


class _Spec(_Node):
    id: _Long = msgspec.field(name="spec-id")


class _SortOrder(_Node):
    id: _Long = msgspec.field(name="order-id")


class _Table(_Version):
    last_updated_ms: _Long
    last_column_id: _Long
    location: str | None = None
    table_uuid: str | None = None
    last_sequence_number: _Long | None = None
    schema: msgspec.Raw = msgspec.Raw()
    schemas: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    current_schema_id: _Long | None = None
    partition_spec: list[Any] | None = None
    partition_specs: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    default_spec_id: _Long | None = None
    last_partition_id: _Long | None = None
    sort_orders: list[msgspec.Raw] = []
    # Before they were added to the format, tables had neither: all were unsorted, which is order 0.
    default_sort_order_id: _Long | None = None
    properties: dict[str, str] | None = None
    current_snapshot_id: _Long | None = None
    snapshots: list[_Snapshot] = []
    refs: dict[str, msgspec.Raw] = {}
    snapshot_log: list[_LogEntry] = []
    metadata_log: list[_MetadataLogEntry] = []
    statistics: list[_StatisticsFile] = []
    partition_statistics: list[_StatisticsFile] = []
    next_row_id: _Long | None = None
    encryption_keys: list[_Key] = []


_VERSION = msgspec.json.Decoder(_Version)
_TABLE = msgspec.json.Decoder(_Table)
_REF = msgspec.json.Decoder(_Ref)
_SCHEMA = msgspec.json.Decoder(_Schema)
_SPEC = msgspec.json.Decoder(_Spec)
_SORT_ORDER = msgspec.json.Decoder(_SortOrder)
_PATHS = msgspec.json.Decoder(tuple[str, ...])


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector: it would scan all snapshots repeatedly as they are added, and there is no cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _table_metadata(data: bytes, metadata_location: str) -> TableMetadata:
    # First and alone: a newer format may have other types everywhere.
    version = _VERSION.decode(data).format_version
    if version > format_versions.NEWEST:
        raise NewerFormat.version(version, format_versions.NEWEST, metadata_location)
    if version < 1:
        raise _Malformed(f"Format version {version} is not among the supported, 1 to {format_versions.NEWEST}")
    node = _TABLE.decode(data)
    if node.location is None and version >= format_versions.DRAFT:
        raise format_versions.drafted("The metadata file has no location", metadata_location)
    location = _required(node.location, "location")
    if node.table_uuid is None:
        raise _Malformed("The metadata file has no table-uuid, which is the key of plans, holds and the journal")
    if _UUID.fullmatch(node.table_uuid) is None:
        # Folders are named after it, so no other characters are allowed.
        raise _Malformed(f"table-uuid is not a UUID: {node.table_uuid!r:.80}")
    last_sequence_number = _required(node.last_sequence_number, "last-sequence-number") if version > 1 else 0
    schemas, current_schema_id = _schemas(node)
    specs, default_spec_id = _specs(node)
    base = location if version >= format_versions.DRAFT else None
    if base is not None:
        format_versions.resolved(base, None, metadata_location)
        format_versions.require_known_keys(msgspec.json.decode(data), metadata_location)
        # `format_versions.resolve_node` of what was decoded with types.
        for key, name in format_versions.LOCATIONS.items():
            field = name.replace("-", "_")
            for each in getattr(node, key.replace("-", "_")):
                if isinstance(relative := getattr(each, field), str):
                    setattr(each, field, format_versions.resolved(relative, base, metadata_location))
    snapshots = tuple(_snapshot(each, base) for each in node.snapshots)
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
    current = None if node.current_snapshot_id == -1 else node.current_snapshot_id
    if current is not None and current not in ids:
        raise _Malformed(f"current-snapshot-id {current} is not among the snapshots")
    return TableMetadata(
        metadata_location=metadata_location,
        location=location.rstrip("/") or "/",
        table_uuid=node.table_uuid.lower(),
        format_version=version,
        last_updated_ms=node.last_updated_ms,
        last_sequence_number=last_sequence_number,
        current_snapshot_id=current,
        snapshots=snapshots,
        refs=_refs(node, current),
        snapshot_log=tuple(LogEntry(each.timestamp_ms, each.snapshot_id) for each in node.snapshot_log),
        metadata_log=tuple(MetadataLogEntry(each.timestamp_ms, each.metadata_file) for each in node.metadata_log),
        statistics=tuple(
            StatisticsFile(each.snapshot_id, each.statistics_path, each.file_size_in_bytes, kind)
            for key, kind in NAMED_BY_SNAPSHOT.items()
            for each in getattr(node, key.replace("-", "_"))
        ),
        properties=node.properties or {},
        current_schema_id=current_schema_id,
        schemas=schemas,
        default_spec_id=default_spec_id,
        partition_specs=specs,
        next_row_id=_required(node.next_row_id, "next-row-id") if version >= 3 else None,
        encryption_key_ids=tuple(each.key_id for each in node.encryption_keys),
        default_sort_order_id=node.default_sort_order_id or 0,
        sort_orders=_texts(node.sort_orders, _SORT_ORDER, "sort-orders"),
        last_column_id=node.last_column_id,
        last_partition_id=node.last_partition_id or 0,
    )


T = TypeVar("T")


def _required(value: T | msgspec.UnsetType | None, key: str) -> T:
    if value is None or isinstance(value, msgspec.UnsetType):
        raise _Malformed(f"{key} is missing or null")
    return value


def _texts(nodes: Sequence[msgspec.Raw | bytes], decoder: msgspec.json.Decoder[Any], key: str) -> dict[int, str]:
    """Return JSON objects by id, in one spelling, whoever wrote them."""
    with _naming(key):
        return {decoder.decode(each).id or 0: json.dumps(json.loads(bytes(each))) for each in nodes}


def _snapshot(node: _Snapshot, base: str | None) -> Snapshot:
    manifests: tuple[str, ...] = ()
    manifest_list = None if isinstance(node.manifest_list, msgspec.UnsetType) else node.manifest_list
    if manifest_list is None:
        if not bytes(node.manifests):
            raise _Malformed(
                f"Snapshot {node.snapshot_id}: there is neither a manifest-list nor an inline list of manifests"
            )
        with _naming(f"The inline manifests of snapshot {node.snapshot_id}"):
            manifests = _PATHS.decode(node.manifests)
    elif not manifest_list:
        raise _Malformed(f"Snapshot {node.snapshot_id}: manifest-list is not a path")
    summary = NO_SUMMARY
    if node.summary:
        # Iceberg treats a summary without an operation as an overwrite, so that it stays readable.
        summary = SnapshotSummary(node.summary.pop("operation", "overwrite"), node.summary)
    return Snapshot(
        node.snapshot_id,
        node.parent_snapshot_id,
        node.sequence_number or 0,
        node.timestamp_ms,
        manifest_list,
        manifests,
        node.schema_id,
        summary,
        node.first_row_id,
        node.added_rows,
        node.key_id,
        base,
    )


def _refs(node: _Table, current: int | None) -> Mapping[str, Ref]:
    refs: dict[str, Ref] = {}
    for name, raw in node.refs.items():
        with _naming(f"Ref {name}"):
            body = _REF.decode(raw)
            ages = body.min_snapshots_to_keep, body.max_snapshot_age_ms, body.max_ref_age_ms
            refs[name] = Ref(name, body.snapshot_id, _ref_type(body.type), *ages)
    main = refs.get(MAIN_BRANCH)
    if main is None:
        # The spec: main always points to the current snapshot, even if refs are omitted.
        if current is not None:
            refs[MAIN_BRANCH] = Ref(MAIN_BRANCH, current, "branch")
    elif not main.is_branch or main.snapshot_id != current:
        raise _Malformed(f"main is a {main.type} at {main.snapshot_id}, and the current snapshot is {current}")
    return refs


@contextmanager
def _naming(part: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, _Malformed) as error:
        raise _Malformed(f"{part}: {error}") from None


def _ref_type(text: str) -> Literal["branch", "tag"]:
    lowered = text.lower()
    if lowered == "branch":
        return "branch"
    if lowered == "tag":
        return "tag"
    raise _Malformed(f"type {text!r} is neither branch nor tag")


def _schemas(node: _Table) -> tuple[Mapping[int, str], int]:
    if isinstance(node.schemas, msgspec.UnsetType) and node.format_version == 1:
        (schema_id,) = schemas = _texts([_required(bytes(node.schema) or None, "schema")], _SCHEMA, "schema")
        return schemas, schema_id
    current = _required(node.current_schema_id, "current-schema-id")
    schemas = _texts(_required(node.schemas, "schemas"), _SCHEMA, "schemas")
    if current not in schemas:
        raise _Malformed(f"current-schema-id {current} is not among the schemas")
    return schemas, current


def _specs(node: _Table) -> tuple[Mapping[int, str], int]:
    if isinstance(node.partition_specs, msgspec.UnsetType) and node.format_version == 1:
        return {0: json.dumps({"spec-id": 0, "fields": _required(node.partition_spec, "partition-spec")})}, 0
    default = _required(node.default_spec_id, "default-spec-id")
    specs = _texts(_required(node.partition_specs, "partition-specs"), _SPEC, "partition-specs")
    if default not in specs:
        raise _Malformed(f"default-spec-id {default} is not among the partition-specs")
    return specs, default
