"""What one append adds to a table's metadata, as values: a manifest, a manifest list, and a metadata file with the new
snapshot. Everything else is reused as it is.

The commit is the caller's: write `files` in their order, then swap the catalog's pointer from the base's metadata file
to the new one. The lifecycle's own commits go through Iceberg's core instead (`catalogs/commit.py`); this is the model
of what such a commit does. Source: format/spec.md, "Manifests", "Manifest Lists", "Table Metadata Fields", "Row
Lineage".
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.errors import BadInput, UnreadableMetadata
from artemis_lifecycle.metadata.avro.container import new_container
from artemis_lifecycle.metadata.avro.records import with_records
from artemis_lifecycle.metadata.data_files import DataFile
from artemis_lifecycle.metadata.kinds import DATA
from artemis_lifecycle.metadata.table_metadata import metadata_json, parse_table_metadata, refuse_encrypted
from artemis_lifecycle.metadata.types import (
    MAIN_BRANCH,
    EntryStatus,
    ManifestList,
    ManifestListEntry,
    PartitionSummary,
    Snapshot,
    SnapshotSummary,
    TableMetadata,
)
from artemis_lifecycle.metadata.values import partition_spec, stored_decimal, table_schema

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

_LOG_LENGTH = "write.metadata.previous-versions-max"
_MAPS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to write: where, and its bytes."""

    path: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AppendSnapshot:
    """The snapshot of an append, its manifests, and the three files that the append writes. `reused` are the manifests
    of the base, which the new manifest list also lists."""

    snapshot: Snapshot
    manifests: tuple[ManifestListEntry, ...]
    reused: tuple[ManifestListEntry, ...]
    manifest: NewFile
    manifest_list: NewFile
    metadata: NewFile

    @property
    def files(self) -> tuple[NewFile, NewFile, NewFile]:
        """What to write, each after the files that it refers to."""
        return self.manifest, self.manifest_list, self.metadata


def build_append_snapshot(
    base: bytes,
    base_location: str,
    manifests: ManifestList | None,
    files: Sequence[DataFile],
    *,
    snapshot_id: int,
    now_ms: int,
    summary: Mapping[str, str] = MappingProxyType({}),
) -> AppendSnapshot:
    """Return what appending `files` to the main branch adds to the table. Reads and writes nothing.

    `base` are the bytes of the table's metadata file at `base_location`, `manifests` its current snapshot's manifest
    list (None: the table is empty), `files` data files that are written already, of the table's current partition spec.
    `summary` is added to what Iceberg counts, e.g. the lineage. Equal arguments give equal bytes. That no file is in
    the table already is not checked: it would read every manifest.

    Raises BadInput for arguments that do not fit together, and for a table of format version 1; UnreadableMetadata.
    """
    metadata = parse_table_metadata(base, base_location)
    _require_fitting(metadata, manifests, files, snapshot_id)
    parent = metadata.current_snapshot
    name = uuid.uuid5(uuid.UUID(metadata.table_uuid), f"{base_location} {snapshot_id}")
    folder = base_location.rpartition("/")[0]
    sequence = metadata.last_sequence_number + 1
    # Iceberg refuses metadata whose times go backwards.
    now_ms = max(now_ms, metadata.last_updated_ms, *(each.timestamp_ms for each in metadata.snapshots))
    reused = () if manifests is None else manifests.entries

    manifest, added = _manifest(metadata, files, f"{folder}/{name}-m0.avro", snapshot_id, sequence)
    first_row_id = metadata.next_row_id
    listed, next_row_id = _with_row_ids((*reused, added), first_row_id)
    manifest_list = _manifest_list(
        metadata, listed, f"{folder}/snap-{snapshot_id}-1-{name}.avro", snapshot_id, sequence, first_row_id
    )
    snapshot = Snapshot(
        snapshot_id,
        None if parent is None else parent.snapshot_id,
        sequence,
        now_ms,
        manifest_list.path,
        schema_id=metadata.current_schema_id,
        summary=_summary(parent, len(reused), files, summary),
        first_row_id=first_row_id,
        added_rows=None if first_row_id is None or next_row_id is None else next_row_id - first_row_id,
    )
    node = _appended(metadata_json(base, base_location), metadata, snapshot, next_row_id)
    version = base_location.rpartition("/")[2].partition("-")[0]
    location = f"{folder}/{int(version) + 1 if version.isdecimal() else 0:05d}-{name}.metadata.json"
    return AppendSnapshot(
        snapshot, listed, reused, manifest, manifest_list, NewFile(location, json.dumps(node).encode())
    )


def _require_fitting(
    metadata: TableMetadata, manifests: ManifestList | None, files: Sequence[DataFile], snapshot_id: int
) -> None:
    def refuse(what: str, hint: str) -> BadInput:
        return BadInput(what, path=metadata.metadata_location, hint=hint)

    if metadata.format_version < 2:
        raise refuse("The table has format version 1", "upgrade it to 2 or 3")
    refuse_encrypted(metadata)
    parent = metadata.current_snapshot
    if (parent is None) != (manifests is None) or (parent and manifests and parent.manifest_list != manifests.path):
        raise refuse(
            "The manifest list is not the one of the table's current snapshot",
            "pass manifests_of(stores, metadata.current_snapshot); None for a table without snapshots",
        )
    counts = ("added_files_count", "existing_files_count", "deleted_files_count")
    rows = ("added_snapshot_id", "added_rows_count", "existing_rows_count", "deleted_rows_count")
    if manifests is not None and any(
        getattr(each, name) is None for each in manifests.entries for name in counts + rows
    ):
        raise refuse("An old writer listed manifests without their counts", "rewrite the table's manifests first")
    if not 0 < snapshot_id < 2**63 or metadata.snapshot(snapshot_id) is not None:
        raise refuse(f"{snapshot_id} cannot be the id of a new snapshot", "use a positive random 63-bit number")
    if not files:
        raise refuse("There is no file to append", "pass the data files")
    if len({file.path for file in files}) < len(files):
        raise refuse("A data file is passed twice", "pass each once")
    for file in files:
        if file.kind != DATA:
            raise refuse(f"{file.path} has {file.kind}, and an append adds data", "pass data files alone")


def _manifest(
    metadata: TableMetadata, files: Sequence[DataFile], path: str, snapshot_id: int, sequence: int
) -> tuple[NewFile, ManifestListEntry]:
    """Return the manifest of `files`, and how a manifest list records it."""
    from pyiceberg.manifest import data_file_with_partition, manifest_entry_schema_with_data_file
    from pyiceberg.types import StructType

    schema, spec = (
        table_schema(metadata, metadata.current_schema_id),
        partition_spec(metadata, metadata.default_spec_id),
    )
    fields = _partition_fields(spec, schema)
    version: Any = metadata.format_version
    data_file = data_file_with_partition(partition_type=StructType(*fields), format_version=version)
    avro = _avro(manifest_entry_schema_with_data_file(format_version=version, data_file=data_file), "manifest_entry")
    partition = _field(_field(avro, "data_file")["type"], "partition")["type"]["fields"]
    for each in partition:
        if isinstance(each["type"][1], dict) and "name" in each["type"][1]:
            # Two fields of one decimal type would define one name twice.
            each["type"][1]["name"] = f"r{each['field-id']}"
    names = [each["name"] for each in partition]
    for file in files:
        if file.partition.keys() != set(names):
            raise BadInput(
                f"A data file has the partition fields {sorted(file.partition)}, and the table's spec has {names}",
                path=file.path,
                hint="write it with the table's current partition spec",
            )
    header = {
        "schema": metadata.schemas[metadata.current_schema_id],
        "schema-id": str(metadata.current_schema_id),
        "partition-spec": json.dumps(json.loads(metadata.partition_specs[spec.spec_id])["fields"]),
        "partition-spec-id": str(spec.spec_id),
        "format-version": str(metadata.format_version),
        "content": "data",
    }
    records = (
        {"status": int(EntryStatus.ADDED), "snapshot_id": snapshot_id, "data_file": _stored(file)} for file in files
    )
    written = NewFile(path, _encoded(avro, header, records, path))
    values = {name: [file.partition[name] for file in files] for name in names}
    return written, ManifestListEntry(
        path,
        len(written.data),
        spec.spec_id,
        content=0,
        sequence_number=sequence,
        min_sequence_number=sequence,
        added_snapshot_id=snapshot_id,
        added_files_count=len(files),
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=sum(file.record_count for file in files),
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=tuple(map(_partition_summary, (each.field_type for each in fields), values.values())),
    )


def _partition_fields(spec: PartitionSpec, schema: Schema) -> list[NestedField]:
    """Return the partition's fields. A value may be null even if its column is required, as by `void`."""
    return [each.model_copy(update={"required": False}) for each in spec.partition_type(schema).fields]


def _partition_summary(kind: IcebergType, stored: Sequence[Any]) -> PartitionSummary:
    from pyiceberg.conversions import to_bytes
    from pyiceberg.types import DecimalType, UUIDType

    values = [value for value in stored if value is not None]
    numbers = [value for value in values if value == value]
    bounds: tuple[bytes | None, bytes | None] = (None, None)
    # Readers disagree about the order of UUIDs, so no bound is the safe one.
    if numbers and not isinstance(kind, UUIDType):
        if isinstance(kind, DecimalType):
            numbers = [stored_decimal(each, kind.scale) for each in numbers]
        # −0.0 is less than 0.0.
        key = (lambda each: (each, math.copysign(1, each))) if isinstance(numbers[0], float) else None
        least: Any = to_bytes(kind, min(numbers, key=key))  # type: ignore[arg-type]
        greatest: Any = to_bytes(kind, max(numbers, key=key))  # type: ignore[arg-type]
        bounds = least, greatest
    return PartitionSummary(len(values) < len(stored), len(numbers) < len(values), *bounds)


def _with_row_ids(
    entries: tuple[ManifestListEntry, ...], first: int | None
) -> tuple[tuple[ManifestListEntry, ...], int | None]:
    """Return the entries with a first row id for each data manifest that has none, and the next one (spec, "Row
    Lineage"). Unchanged before format version 3."""
    if first is None:
        return entries, None
    found, following = [], first
    for entry in entries:
        if entry.content == 0 and entry.first_row_id is None:
            found.append(replace(entry, first_row_id=following))
            following += (entry.added_rows_count or 0) + (entry.existing_rows_count or 0)
        else:
            found.append(entry)
    return tuple(found), following


def _manifest_list(
    metadata: TableMetadata,
    entries: Sequence[ManifestListEntry],
    path: str,
    snapshot_id: int,
    sequence: int,
    first_row_id: int | None,
) -> NewFile:
    from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS

    parent = metadata.current_snapshot
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent is None else str(parent.snapshot_id),
        "sequence-number": str(sequence),
        "format-version": str(metadata.format_version),
    }
    if first_row_id is not None:
        header["first-row-id"] = str(first_row_id)
    avro = _avro(MANIFEST_LIST_FILE_SCHEMAS[metadata.format_version], "manifest_file")
    # fastavro takes a tuple for a choice among a union's types.
    records = ({**asdict(each), "partitions": [asdict(field) for field in each.partitions]} for each in entries)
    return NewFile(path, _encoded(avro, header, records, path))


def _stored(file: DataFile) -> dict[str, Any]:
    """Return a data file as a manifest stores it. What an append has none of is null."""
    maps = {
        name: [{"key": key, "value": value} for key, value in sorted(found.items())] or None
        for name in _MAPS
        for found in (getattr(file, name),)
    }
    return {
        "content": 0,
        "file_path": file.path,
        "file_format": file.file_format.upper(),
        "partition": file.partition,
        "record_count": file.record_count,
        "file_size_in_bytes": file.size_in_bytes,
        **maps,
        "split_offsets": list(file.split_offsets) or None,
        "sort_order_id": file.sort_order_id,
    }


def _avro(schema: Any, name: str) -> Any:
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    return AvroSchemaConversion().iceberg_to_avro(schema, schema_name=name)


def _field(record: Any, name: str) -> Any:
    return next(each for each in record["fields"] if each["name"] == name)


def _encoded(avro: Any, header: Mapping[str, str], records: Iterable[dict[str, Any]], path: str) -> bytes:
    try:
        return with_records(new_container(json.dumps(avro), header), records, path)
    except UnreadableMetadata as error:
        raise BadInput(
            f"A value does not fit the table's metadata: {error.what}",
            path=path,
            hint="pass data files as `read_manifest` reads them from a manifest of the same columns",
        ) from error


def _summary(parent: Snapshot | None, kept: int, files: Sequence[DataFile], more: Mapping[str, str]) -> SnapshotSummary:
    records, size = sum(file.record_count for file in files), sum(file.size_in_bytes for file in files)
    counted = {
        "added-data-files": len(files),
        "added-records": records,
        "added-files-size": size,
        "changed-partition-count": len({tuple(file.partition.values()) for file in files}),
        "manifests-created": 1,
        "manifests-kept": kept,
        "manifests-replaced": 0,
    }
    totals = {
        "total-data-files": len(files),
        "total-records": records,
        "total-files-size": size,
        "total-delete-files": 0,
        "total-position-deletes": 0,
        "total-equality-deletes": 0,
    }
    for key, added in totals.items():
        before = 0 if parent is None else parent.summary.count(key)
        if before is not None:
            counted[key] = before + added
    taken = sorted(more.keys() & (counted.keys() | totals.keys() | {"operation"}))
    if taken:
        raise BadInput(f"An append counts {', '.join(taken)} itself", hint="leave it out of the summary")
    return SnapshotSummary("append", {**more, **{key: str(value) for key, value in counted.items()}})


def _appended(node: dict[str, Any], base: TableMetadata, snapshot: Snapshot, next_row_id: int | None) -> dict[str, Any]:
    """Return the metadata file's JSON with the snapshot current on main; every other field stays as it was."""
    stored: dict[str, Any] = {
        "snapshot-id": snapshot.snapshot_id,
        "sequence-number": snapshot.sequence_number,
        "timestamp-ms": snapshot.timestamp_ms,
        "summary": snapshot.summary.whole(),
        "manifest-list": snapshot.manifest_list,
        "schema-id": snapshot.schema_id,
    }
    if snapshot.parent_snapshot_id is not None:
        stored["parent-snapshot-id"] = snapshot.parent_snapshot_id
    log = [
        *node.get("metadata-log", ()),
        {"timestamp-ms": base.last_updated_ms, "metadata-file": base.metadata_location},
    ]
    kept = base.properties.get(_LOG_LENGTH, "100")
    refs = node.get("refs") or {}
    # A branch keeps its retention settings.
    main = {"type": "branch", **refs.get(MAIN_BRANCH, {}), "snapshot-id": snapshot.snapshot_id}
    changed = {
        "last-sequence-number": snapshot.sequence_number,
        "last-updated-ms": snapshot.timestamp_ms,
        "current-snapshot-id": snapshot.snapshot_id,
        "snapshots": [*node.get("snapshots", ()), stored],
        "snapshot-log": [
            *node.get("snapshot-log", ()),
            {"timestamp-ms": snapshot.timestamp_ms, "snapshot-id": snapshot.snapshot_id},
        ],
        "metadata-log": log[-max(1, int(kept) if kept.isdecimal() else 100) :],
        "refs": {**refs, MAIN_BRANCH: main},
    }
    if next_row_id is not None:
        stored |= {"first-row-id": snapshot.first_row_id, "added-rows": snapshot.added_rows}
        changed["next-row-id"] = next_row_id
    return {**node, **changed}
