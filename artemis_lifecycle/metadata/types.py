"""The types of an Iceberg table's metadata: plain, picklable values that are never changed once built.

Field names follow the Iceberg spec. Times are milliseconds since the epoch, sizes are bytes. A field that an old format
version lacks is None, never an invented value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.catalogs.identifier import CatalogEntry as CatalogEntry
from artemis_lifecycle.tabular import Shown

if TYPE_CHECKING:
    import pandas as pd


# --- kinds ------------------------------------------------------------------------------------------------------------
# The kinds of files in a table's metadata, in the spelling of all reports and stored frames.

Kind = Literal[
    "data",
    "position_deletes",
    "equality_deletes",
    "deletion_vectors",
    "manifest",
    "manifest_list",
    "metadata",
    "statistics",
    "partition_statistics",
    "index",
    "changelog",
]

DATA: Final = "data"
POSITION_DELETES: Final = "position_deletes"
EQUALITY_DELETES: Final = "equality_deletes"
DELETION_VECTORS: Final = "deletion_vectors"
MANIFEST: Final = "manifest"
MANIFEST_LIST: Final = "manifest_list"
METADATA: Final = "metadata"
STATISTICS: Final = "statistics"
PARTITION_STATISTICS: Final = "partition_statistics"
INDEX: Final = "index"
"""An index file of a Paimon table that holds no deletion vectors."""
CHANGELOG: Final = "changelog"
"""A changelog file of a Paimon table."""

CONTENT_KINDS: Final[frozenset[str]] = frozenset({DATA, POSITION_DELETES, EQUALITY_DELETES, DELETION_VECTORS})
"""The kinds in manifest entries."""


NAMED_BY_SNAPSHOT: Final[Mapping[str, Kind]] = {"statistics": STATISTICS, "partition-statistics": PARTITION_STATISTICS}
"""Files that the table's metadata has for a snapshot in addition to its manifest list: the field's name, and their
kind."""

_PARQUET_MANIFEST = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-m\d+\.parquet"
_MANIFEST_NAME = re.compile(rf".*-m\d+\.avro|{_PARQUET_MANIFEST}", re.IGNORECASE)
_NO_PLAIN_DATA = rf"(?i)(-deletes\.parquet|(\A|/)(partition-stats-[^/]*|{_PARQUET_MANIFEST}))\z"


def kind_of(content: int, file_format: str) -> Kind:
    """Return the kind of a manifest entry's file, from its `content` (0, 1, 2) and `file_format` in any case.

    A position delete in a Puffin file is a deletion vector (format/spec.md, "Deletion Vectors"). Raises ValueError for
    a content that no format version has.
    """
    if content == 0:
        return DATA
    if content == 1:
        return DELETION_VECTORS if file_format.lower() == "puffin" else POSITION_DELETES
    if content == 2:
        return EQUALITY_DELETES
    raise ValueError(f"content {content} is not 0 (data), 1 (position deletes) or 2 (equality deletes)")


def kind_by_name(path: str) -> Kind:
    """Return the kind that the file's name suggests; `data` if nothing else fits."""
    name = path.rpartition("/")[2].lower()
    if name.endswith((".metadata.json", ".metadata.json.gz")) or name == "version-hint.text":
        return METADATA
    if name.endswith(".avro") and name.startswith("snap-"):
        return MANIFEST_LIST
    if _MANIFEST_NAME.fullmatch(name):
        return MANIFEST
    if name.endswith(".puffin"):
        return DELETION_VECTORS if name.endswith("-deletes.puffin") else STATISTICS
    if name.endswith(".stats"):
        return STATISTICS
    if name.startswith("partition-stats-"):
        return PARTITION_STATISTICS
    return POSITION_DELETES if name.rpartition(".")[0].endswith("-deletes") else DATA


def kinds_by_name(paths: pa.Array) -> pa.Array:
    """`kind_by_name` for each path of an Arrow array. Most are plain data files."""
    plain = pc.and_not(pc.ends_with(paths, ".parquet"), pc.match_substring_regex(paths, _NO_PLAIN_DATA))
    if pc.all(plain).as_py() is not False:
        return pa.repeat(DATA, len(paths))
    rows = zip(plain.to_pylist(), paths.to_pylist(), strict=True)
    return pa.array([DATA if known else kind_by_name(path) for known, path in rows], pa.string())


MAIN_BRANCH = "main"

FOREVER_MS = 2**63 - 1
"""A `max-ref-age-ms` that never ends: the largest that Iceberg's metadata can store."""

UNKNOWN_LENGTH = -1
"""The length of a manifest that no manifest list records."""

UNKNOWN_SNAPSHOT = -(2**63)
"""In columns of ids, represents a snapshot that the manifest list does not have."""


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    """A snapshot's summary: `operation`, and everything else in the writer's spelling. Operation is None in old v1."""

    operation: str | None
    properties: Mapping[str, str]

    def get(self, key: str, default: str | None = None) -> str | None:
        if key == "operation":
            return self.operation if self.operation is not None else default
        return self.properties.get(key, default)

    def whole(self) -> dict[str, str]:
        """Return every key of the summary, with its `operation`."""
        return dict(self.properties) | ({"operation": self.operation} if self.operation else {})

    def count(self, key: str) -> int | None:
        """Return the integer under `key`; None if there is no valid one."""
        value = self.properties.get(key)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError:
            return None

    @property
    def total_data_files(self) -> int | None:
        return self.count("total-data-files")

    @property
    def total_delete_files(self) -> int | None:
        return self.count("total-delete-files")

    @property
    def total_records(self) -> int | None:
        return self.count("total-records")

    @property
    def total_files_size(self) -> int | None:
        return self.count("total-files-size")


NO_SUMMARY = SnapshotSummary(None, {})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot of a metadata file. `manifests` are v1's inline manifest paths, if it has no list file. `base` is
    what relative paths are relative to; None before version 4."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    timestamp_ms: int
    manifest_list: str | None
    manifests: tuple[str, ...] = ()
    schema_id: int | None = None
    summary: SnapshotSummary = NO_SUMMARY
    first_row_id: int | None = None
    added_rows: int | None = None
    key_id: str | None = None
    base: str | None = None


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or a tag. None means that the table's property, or Iceberg's default, decides."""

    name: str
    snapshot_id: int
    type: Literal["branch", "tag"]
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None

    @property
    def is_branch(self) -> bool:
        return self.type == "branch"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """From `timestamp_ms` on, `snapshot_id` was the table's current snapshot."""

    timestamp_ms: int
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class MetadataLogEntry:
    timestamp_ms: int
    metadata_file: str


@dataclass(frozen=True, slots=True)
class StatisticsFile:
    snapshot_id: int
    path: str
    size_in_bytes: int
    kind: Kind


@dataclass(frozen=True)
class TableMetadata:
    """One metadata file, read completely.

    `schemas`, `partition_specs` and `sort_orders` map ids to their JSON text. `refs` always has `main` if there is a
    current snapshot, even if an old writer omitted refs. `invalid_refs` are refs whose snapshot is not among
    `snapshots`.
    """

    metadata_location: str
    location: str
    table_uuid: str
    format_version: int
    last_updated_ms: int
    last_sequence_number: int
    current_snapshot_id: int | None
    snapshots: tuple[Snapshot, ...]
    refs: Mapping[str, Ref]
    snapshot_log: tuple[LogEntry, ...]
    metadata_log: tuple[MetadataLogEntry, ...]
    statistics: tuple[StatisticsFile, ...]
    properties: Mapping[str, str]
    current_schema_id: int
    schemas: Mapping[int, str]
    default_spec_id: int
    partition_specs: Mapping[int, str]
    next_row_id: int | None = None
    encryption_key_ids: tuple[str, ...] = ()
    default_sort_order_id: int = 0
    sort_orders: Mapping[int, str] = field(default_factory=dict)
    last_column_id: int = 0
    last_partition_id: int = 0

    @cached_property
    def snapshots_by_id(self) -> Mapping[int, Snapshot]:
        return {snapshot.snapshot_id: snapshot for snapshot in self.snapshots}

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        """Return the snapshot with that id; None if the metadata does not have it."""
        return self.snapshots_by_id.get(snapshot_id)

    def ancestors(self, snapshot_id: int | None) -> Iterator[Snapshot]:
        """Yield a snapshot and its ancestors, newest first, as far as the metadata has them. The only walk over
        parents: it ends in every case, as parents that somebody else wrote can form a cycle."""
        seen: set[int] = set()
        while snapshot_id is not None and snapshot_id not in seen:
            seen.add(snapshot_id)
            snapshot = self.snapshot(snapshot_id)
            if snapshot is None:
                return
            yield snapshot
            snapshot_id = snapshot.parent_snapshot_id

    @property
    def current_snapshot(self) -> Snapshot | None:
        return None if self.current_snapshot_id is None else self.snapshots_by_id[self.current_snapshot_id]

    @cached_property
    def partition_fields(self) -> frozenset[str]:
        """The names of the fields of all partition specs in the metadata."""
        specs = (json.loads(text) for text in self.partition_specs.values())
        return frozenset(field["name"] for spec in specs for field in spec.get("fields", ()))

    @property
    def invalid_refs(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, ref in self.refs.items() if ref.snapshot_id not in self.snapshots_by_id))

    @property
    def gc_enabled(self) -> bool:
        """False only if `gc.enabled` has another value than true, in any case, as Iceberg reads it."""
        return self.properties.get("gc.enabled", "true").lower() == "true"

    @property
    def encrypted(self) -> bool:
        return (
            bool(self.encryption_key_ids)
            or "encryption.key-id" in self.properties
            or any(snapshot.key_id is not None for snapshot in self.snapshots)
        )


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """One field of a manifest's partition summary; bounds in Iceberg's single-value serialization."""

    contains_null: bool
    contains_nan: bool | None
    lower_bound: bytes | None
    upper_bound: bytes | None


@dataclass(frozen=True, slots=True)
class ManifestListEntry:
    """One manifest, as recorded in a manifest list. Counts are None if an old v1 writer omitted them.

    `content` is 0 (data) or 1 (deletes). For v1's inline manifests, `manifest_length` is UNKNOWN_LENGTH. `base` as of a
    snapshot.
    """

    manifest_path: str
    manifest_length: int
    partition_spec_id: int
    content: int
    sequence_number: int
    min_sequence_number: int
    added_snapshot_id: int | None
    added_files_count: int | None
    existing_files_count: int | None
    deleted_files_count: int | None
    added_rows_count: int | None = None
    existing_rows_count: int | None = None
    deleted_rows_count: int | None = None
    partitions: tuple[PartitionSummary, ...] = ()
    first_row_id: int | None = None
    base: str | None = None

    @property
    def live_files_count(self) -> int | None:
        """The sum of added and existing entries; None if one of the two is not recorded."""
        if self.added_files_count is None or self.existing_files_count is None:
            return None
        return self.added_files_count + self.existing_files_count


@dataclass(frozen=True, slots=True)
class ManifestList:
    """A manifest list, read completely and checked. `path` is None, and the size 0, for v1's inline manifests."""

    path: str | None
    size_in_bytes: int
    entries: tuple[ManifestListEntry, ...]


class EntryStatus(IntEnum):
    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True)
class SnapshotHistory(Shown):
    """A table's history, pinned to one metadata file."""

    table: str
    metadata_location: str
    table_uuid: str
    snapshots: tuple[Snapshot, ...] = field(repr=False)
    refs: Mapping[str, Ref]
    log: tuple[LogEntry, ...] = field(repr=False)
    read_at: datetime
    current_snapshot_id: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, table: str, metadata: TableMetadata, read_at: datetime) -> SnapshotHistory:
        """Return `metadata`'s history, under the name `table`, read at `read_at`."""
        return cls(
            table=table,
            metadata_location=metadata.metadata_location,
            table_uuid=metadata.table_uuid,
            snapshots=metadata.snapshots,
            refs=metadata.refs,
            log=metadata.snapshot_log,
            current_snapshot_id=metadata.current_snapshot_id,
            read_at=read_at,
            properties=metadata.properties,
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per snapshot, in the metadata's order.

        Columns: snapshot_id int64; parent_snapshot_id Int64 (nullable); sequence_number int64; committed_at
        datetime64[ms, UTC]; current_since datetime64[ms, UTC], the last time when the snapshot log made it current (NaT
        if it never was, or the log does not reach that far); is_current bool; refs object, its branches and tags by
        name, comma-separated; operation object (None in old v1); added_data_files, deleted_data_files,
        total_data_files, total_delete_files, total_records, total_files_size Int64 (nullable), from the summary;
        manifest_list object (None for v1's inline manifests); schema_id Int64 (nullable).
        """
        import pandas as pd

        refs: dict[int, list[str]] = {}
        for name in sorted(self.refs):
            refs.setdefault(self.refs[name].snapshot_id, []).append(name)
        since = {entry.snapshot_id: entry.timestamp_ms for entry in self.log}
        snapshots = self.snapshots

        def counts(key: str) -> pd.Series[int]:
            return pd.Series([snapshot.summary.count(key) for snapshot in snapshots], dtype="Int64")

        def times(values: list[int | None]) -> pd.Series[pd.Timestamp]:
            # Through nullable integers: float64 cannot represent an epoch in ms above 2**53.
            milliseconds = pd.Series(values, dtype="Int64").to_numpy(dtype="int64", na_value=-(2**63))
            return pd.Series(milliseconds.view("datetime64[ms]")).dt.tz_localize("UTC")

        return pd.DataFrame(
            {
                "snapshot_id": pd.Series([snapshot.snapshot_id for snapshot in snapshots], dtype="int64"),
                "parent_snapshot_id": pd.Series([snapshot.parent_snapshot_id for snapshot in snapshots], dtype="Int64"),
                "sequence_number": pd.Series([snapshot.sequence_number for snapshot in snapshots], dtype="int64"),
                "committed_at": times([snapshot.timestamp_ms for snapshot in snapshots]),
                "current_since": times([since.get(snapshot.snapshot_id) for snapshot in snapshots]),
                "is_current": pd.Series(
                    [snapshot.snapshot_id == self.current_snapshot_id for snapshot in snapshots], dtype="bool"
                ),
                "refs": pd.Series(
                    [", ".join(refs.get(snapshot.snapshot_id, ())) for snapshot in snapshots], dtype="object"
                ),
                "operation": pd.Series([snapshot.summary.operation for snapshot in snapshots], dtype="object"),
                "added_data_files": counts("added-data-files"),
                "deleted_data_files": counts("deleted-data-files"),
                "total_data_files": counts("total-data-files"),
                "total_delete_files": counts("total-delete-files"),
                "total_records": counts("total-records"),
                "total_files_size": counts("total-files-size"),
                "manifest_list": pd.Series([snapshot.manifest_list for snapshot in snapshots], dtype="object"),
                "schema_id": pd.Series([snapshot.schema_id for snapshot in snapshots], dtype="Int64"),
            }
        )
