"""Manifest lists. Source: format/spec.md, "Manifest Lists"; Iceberg's ManifestFile and V1Metadata to V4Metadata for
what writers really wrote.

Fields are found by their Avro `field-id`, or by name if a writer omitted ids: names changed between versions
(`added_data_files_count` became `added_files_count`), ids did not. A list is checked against its snapshot's summary,
because a file truncated at an Avro block boundary still parses, only shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.format_versions import LIST_FIELDS, all_resolved, is_draft, require_known, resolved
from artemis_lifecycle.metadata.avro.container import Container, field_names, open_container
from artemis_lifecycle.metadata.avro.scan import Scan, read_records, scan_container
from artemis_lifecycle.metadata.types import (
    UNKNOWN_LENGTH,
    UNKNOWN_SNAPSHOT,
    ManifestList,
    ManifestListEntry,
    PartitionSummary,
    Snapshot,
)
from artemis_lifecycle.metadata.unreadable import encrypted, read_file, unreadable
from artemis_lifecycle.storage.bounded import within_memory
from artemis_lifecycle.storage.local.store import is_text

if TYPE_CHECKING:
    from artemis_lifecycle.storage.stores import Stores

_MANIFEST_FILE = {
    500: "manifest_path",
    501: "manifest_length",
    502: "partition_spec_id",
    517: "content",
    515: "sequence_number",
    516: "min_sequence_number",
    503: "added_snapshot_id",
    504: "added_files_count",
    505: "existing_files_count",
    506: "deleted_files_count",
    512: "added_rows_count",
    513: "existing_rows_count",
    514: "deleted_rows_count",
    507: "partitions",
    519: "key_metadata",
    520: "first_row_id",
}
_LISTED = (
    "manifest_path",
    "manifest_length",
    "partition_spec_id",
    "content",
    "added_snapshot_id",
    "added_files_count",
    "existing_files_count",
    "deleted_files_count",
    "key_metadata",
)
_TEXTS = frozenset({"manifest_path", "key_metadata"})
_OLD_NAMES = {
    "added_data_files_count": "added_files_count",
    "existing_data_files_count": "existing_files_count",
    "deleted_data_files_count": "deleted_files_count",
}
"""Names that writers used for the same field before the spec was final; used only if ids are missing."""


def read_manifest_list(stores: Stores, path: str, *, expected: Snapshot | None = None) -> ManifestList:
    """Read the manifest list at `path`. `expected` is its snapshot: without it, a relative path is refused.

    Raises UnreadableMetadata if the file is missing, broken, lacks a required field, or lists fewer live data or delete
    files than the snapshot's summary counts; EncryptedTable if a manifest is encrypted.
    """
    with within_memory(path):
        data = read_file(stores, path)
        container = _open_list(data, path, stores)
        names = list_names(container.schema, path)
        base = None if expected is None else expected.base
        draft = is_draft(container.header)
        entries = tuple(_list_entry(record, names, path, base, draft) for record in read_records(container, path))
        found = ManifestList(path, len(data), entries)
        if expected is not None:
            _check_listed(listed_entries(found), expected)
        return found


@dataclass(frozen=True)
class Manifests:
    """Manifests as recorded in lists: path (large_string), length, content, the snapshot that added them,
    counts.

    An unknown length or count is -1, an unknown snapshot UNKNOWN_SNAPSHOT.
    """

    paths: pa.Array
    lengths: NDArray[np.int64]
    contents: NDArray[np.int8]
    added_by: NDArray[np.int64]
    existing: NDArray[np.int64]
    added: NDArray[np.int64]
    deleted: NDArray[np.int64]

    @classmethod
    def none(cls) -> Manifests:
        numbers = np.empty(0, np.int64)
        return cls(pa.array([], pa.large_string()), numbers, np.empty(0, np.int8), *[numbers] * 4)

    def __len__(self) -> int:
        return len(self.lengths)

    def path(self, row: int) -> str:
        path: str = self.paths[row].as_py()
        return path

    def entry(self, row: int, base: str | None) -> ManifestListEntry:
        """Return the manifest in the form that `live_files` needs. `base` is that of the snapshots."""
        counts = [int(column[row]) for column in (self.existing, self.added, self.deleted)]
        existing, added, deleted = (None if count < 0 else count for count in counts)
        added_by = int(self.added_by[row])
        return ManifestListEntry(
            manifest_path=self.path(row),
            manifest_length=int(self.lengths[row]),
            partition_spec_id=0,
            content=int(self.contents[row]),
            sequence_number=0,
            min_sequence_number=0,
            added_snapshot_id=None if added_by == UNKNOWN_SNAPSHOT else added_by,
            added_files_count=added,
            existing_files_count=existing,
            deleted_files_count=deleted,
            base=base,
        )

    def keys(self) -> pa.Array:
        """The identity of manifests: path and length."""
        return pc.binary_join_element_wise(
            self.paths, pc.cast(pa.array(self.lengths), pa.large_string()), pa.scalar("\n", pa.large_string())
        )

    def take(self, rows: NDArray[np.int64]) -> Manifests:
        """Return the given rows, in that order."""
        columns = (getattr(self, name)[rows] for name in NUMBERS)
        return Manifests(self.paths.take(pa.array(rows)), *columns)


NUMBERS = tuple(field.name for field in fields(Manifests) if field.name != "paths")


@dataclass(frozen=True)
class ListedManifests:
    """The entries of one manifest list. `path` is None, and the size 0, for v1's inline manifests."""

    path: str | None
    size_in_bytes: int
    manifests: Manifests


def listed_manifests(stores: Stores, snapshot: Snapshot) -> ListedManifests:
    """Return the part of `manifests_of` that reachability needs, with the same checks and errors, without building
    entries."""
    if snapshot.key_id is not None:
        raise encrypted(f"The manifest list of snapshot {snapshot.snapshot_id}", snapshot.manifest_list)
    path = snapshot.manifest_list
    if path is None:
        return listed_entries(manifests_of(stores, snapshot))
    with within_memory(path):
        return _listed(stores, snapshot, path)


def _listed(stores: Stores, snapshot: Snapshot, path: str) -> ListedManifests:
    data = read_file(stores, path)
    container = _open_list(data, path, stores)
    scan = scan_container(container, _ways, _LISTED, _TEXTS, path)
    for name in ("manifest_path", "manifest_length", "partition_spec_id"):
        if not scan.has(name) or not scan.is_set(name).all():
            raise unreadable(f"An entry of the manifest list has no {name}", path)
    if (scan.longs["manifest_length"] < 0).any():
        raise _negative("manifest_length", path)
    try:
        paths = scan.texts("manifest_path")
    except pa.ArrowInvalid as error:
        raise unreadable("The manifest_path of an entry of the manifest list is not text", path) from error
    if is_draft(container.header):
        paths = all_resolved(paths, snapshot.base, path)
    if "key_metadata" in scan.sizes and scan.is_set("key_metadata").any():
        raise encrypted("A manifest of the list", path)

    def column(name: str, absent: int) -> NDArray[np.int64]:
        if name not in scan.longs:
            return np.full(scan.rows, absent, np.int64)
        present = scan.is_set(name)
        if (scan.longs[name][present] < 0).any():
            raise _negative(name, path)
        return np.where(present, scan.longs[name], absent)

    contents = column("content", 0)
    strange = contents[(contents != 0) & (contents != 1)]
    if len(strange):
        raise unreadable(f"The manifest list has a manifest with content {strange[0]}, not 0 or 1", path)
    counts = (column(f"{name}_files_count", -1) for name in ("existing", "added", "deleted"))
    found = Manifests(paths, scan.longs["manifest_length"], contents.astype(np.int8), _added_by(scan), *counts)
    listed = ListedManifests(path, len(data), found)
    _check_listed(listed, snapshot)
    return listed


def _open_list(data: bytes, path: str, stores: Stores) -> Container:
    container = open_container(data, path, stores.limits)
    if is_draft(container.header):
        list_names(container.schema, path)
        require_known(container.schema["fields"], LIST_FIELDS, path)
    return container


def _added_by(scan: Scan) -> NDArray[np.int64]:
    if "added_snapshot_id" not in scan.longs:
        return np.full(scan.rows, UNKNOWN_SNAPSHOT, np.int64)
    return np.where(scan.is_set("added_snapshot_id"), scan.longs["added_snapshot_id"], UNKNOWN_SNAPSHOT)


def _check_listed(listed: ListedManifests, snapshot: Snapshot) -> None:
    summary, found = snapshot.summary, listed.manifests
    totals = ((0, "data files", summary.total_data_files), (1, "delete files", summary.total_delete_files))
    for content, what, recorded in totals:
        chosen = found.contents == content
        added, existing = found.added[chosen], found.existing[chosen]
        if recorded is None or (added < 0).any() or (existing < 0).any():
            # An old v1 list has no counts to add up.
            continue
        live = int(added.sum() + existing.sum())
        if live < recorded:
            raise unreadable(
                f"The manifest list of snapshot {snapshot.snapshot_id} is cut: it lists {live} live {what}, and the "
                f"snapshot's summary counts {recorded}",
                str(listed.path),
            )


def listed_entries(found: ManifestList) -> ListedManifests:
    """Return the entries of a manifest list as columns. Raises UnreadableMetadata."""
    entries = found.entries
    paths = [entry.manifest_path for entry in entries]
    strange = [path for path in paths if not is_text(path)]
    if strange:
        raise unreadable("The path of a manifest is not text", strange[0])

    def column(name: str) -> NDArray[np.int64]:
        values: list[int | None] = [getattr(entry, name) for entry in entries]
        if any(value is not None and value < 0 for value in values):
            raise _negative(name, str(found.path))
        return np.array([-1 if value is None else value for value in values], np.int64)

    manifests = Manifests(
        pa.array(paths, pa.large_string()),
        np.array([entry.manifest_length for entry in entries], np.int64),
        np.array([entry.content for entry in entries], np.int8),
        np.array(
            [UNKNOWN_SNAPSHOT if entry.added_snapshot_id is None else entry.added_snapshot_id for entry in entries],
            np.int64,
        ),
        *(column(f"{name}_files_count") for name in ("existing", "added", "deleted")),
    )
    return ListedManifests(found.path, found.size_in_bytes, manifests)


def _negative(name: str, path: str) -> UnreadableMetadata:
    # From here on -1 means "not recorded", so a recorded value must not look like that.
    return unreadable(f"The manifest list has an entry whose {name} is negative", path)


def manifests_of(stores: Stores, snapshot: Snapshot) -> ManifestList:
    """Return the manifests of `snapshot`: those of its manifest list, or the inline paths of a v1 snapshot.

    Inline manifests have no lengths and counts, because nothing records them. Raises as `read_manifest_list` does.
    """
    if snapshot.key_id is not None:
        raise encrypted(f"The manifest list of snapshot {snapshot.snapshot_id}", snapshot.manifest_list)
    if snapshot.manifest_list is not None:
        return read_manifest_list(stores, snapshot.manifest_list, expected=snapshot)
    entries = (
        ManifestListEntry(
            manifest_path=path,
            manifest_length=UNKNOWN_LENGTH,
            partition_spec_id=0,
            content=0,
            sequence_number=0,
            min_sequence_number=0,
            added_snapshot_id=None,
            added_files_count=None,
            existing_files_count=None,
            deleted_files_count=None,
        )
        for path in snapshot.manifests
    )
    return ManifestList(None, 0, tuple(entries))


def _list_entry(
    record: Mapping[str, Any], names: Mapping[str, str], path: str, base: str | None, draft: bool
) -> ManifestListEntry:
    def value(name: str) -> Any:
        return record.get(names[name]) if name in names else None

    def required(name: str, kind: type) -> Any:
        found = value(name)
        if type(found) is not kind:
            raise unreadable(f"An entry of the manifest list has no {name}", path)
        return found

    def number(name: str) -> int | None:
        found = value(name)
        if found is not None and type(found) is not int:
            raise unreadable(f"{name} is not a number", path)
        return found

    manifest_path = required("manifest_path", str)
    if draft:
        manifest_path = resolved(manifest_path, base, path)
    if value("key_metadata") is not None:
        raise encrypted("The manifest", manifest_path)
    content = number("content") or 0
    if content not in (0, 1):
        raise unreadable(f"The manifest list calls the content of {manifest_path} {content}, not 0 or 1", path)
    length = required("manifest_length", int)
    if length < 0:
        raise _negative("manifest_length", path)
    partitions = value("partitions") or ()
    if not isinstance(partitions, list | tuple) or not all(isinstance(each, dict) for each in partitions):
        raise unreadable("An entry of the manifest list has partitions that are not a list of records", path)
    return ManifestListEntry(
        manifest_path=manifest_path,
        manifest_length=length,
        partition_spec_id=required("partition_spec_id", int),
        content=content,
        sequence_number=number("sequence_number") or 0,
        min_sequence_number=number("min_sequence_number") or 0,
        added_snapshot_id=number("added_snapshot_id"),
        added_files_count=number("added_files_count"),
        existing_files_count=number("existing_files_count"),
        deleted_files_count=number("deleted_files_count"),
        added_rows_count=number("added_rows_count"),
        existing_rows_count=number("existing_rows_count"),
        deleted_rows_count=number("deleted_rows_count"),
        # These names have never changed. A summary without the required one has no information about nulls.
        partitions=tuple(
            PartitionSummary(
                contains_null=each.get("contains_null", True),
                contains_nan=each.get("contains_nan"),
                lower_bound=each.get("lower_bound"),
                upper_bound=each.get("upper_bound"),
            )
            for each in partitions
        ),
        first_row_id=number("first_row_id"),
        base=base,
    )


def list_names(schema: Any, path: str) -> Mapping[str, str]:
    """Return this module's name of each field of a manifest list -> its name in the file. Raises UnreadableMetadata."""
    return field_names(schema, _MANIFEST_FILE, frozenset({"manifest_path"}), path, _OLD_NAMES)


def _ways(schema: Any, wanted: tuple[str, ...], path: str) -> Mapping[str, tuple[str, ...]]:
    names = list_names(schema, path)
    return {name: (names[name],) for name in wanted if name in names}
