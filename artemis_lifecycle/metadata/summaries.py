"""Manifest lists with their partition summaries, as columns: what a planner needs to decide which manifests to read.
Source: format/spec.md, "Manifest Lists".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.metadata.avro.container import open_container
from artemis_lifecycle.metadata.avro.programs import ITEM, Further, Program, compile_scan
from artemis_lifecycle.metadata.avro.scan import Scan, scan_records
from artemis_lifecycle.metadata.avro.schema import structure
from artemis_lifecycle.metadata.manifest_lists import (
    ListedManifests,
    list_names,
    listed_entries,
    listed_from,
    manifests_of,
)
from artemis_lifecycle.metadata.types import (
    UNKNOWN_SNAPSHOT,
    ManifestListEntry,
    Snapshot,
    TableMetadata,
)
from artemis_lifecycle.metadata.unreadable import encrypted, read_file
from artemis_lifecycle.storage.bounded import within_memory

if TYPE_CHECKING:
    from artemis_lifecycle.storage.stores import Stores

_NUMBERS = (
    "manifest_length",
    "partition_spec_id",
    "content",
    "sequence_number",
    "added_snapshot_id",
    "added_files_count",
    "existing_files_count",
    "deleted_files_count",
)
_SUMMARY = ("contains_null", "contains_nan", "lower_bound", "upper_bound")


@dataclass(frozen=True)
class SummaryColumns:
    """The partition summaries of one field, by its position in each manifest's spec.

    `recorded`: the manifest has such a summary. `contains_null` and `contains_nan` are 1, 0, or -1 if not recorded.
    Bounds are large_binary in Iceberg's single-value serialization; null if there is none.
    """

    recorded: NDArray[np.bool_]
    contains_null: NDArray[np.int8]
    contains_nan: NDArray[np.int8]
    lower: pa.Array
    upper: pa.Array


@dataclass(frozen=True)
class SummarizedManifests:
    """The manifests of one snapshot with their partition summaries. Row numbers are those of `listed`."""

    listed: ListedManifests
    spec_ids: NDArray[np.int64]
    sequence_numbers: NDArray[np.int64]
    summaries: tuple[SummaryColumns, ...]

    def __len__(self) -> int:
        return len(self.listed)

    def entry(self, row: int) -> ManifestListEntry:
        """Return one manifest with what is needed to read and check it."""
        listed = self.listed
        added, existing, deleted = (_count(each, row) for each in (listed.added, listed.existing, listed.deleted))
        by = int(listed.added_by[row])
        return ManifestListEntry(
            listed.paths[row].as_py(),
            int(listed.lengths[row]),
            int(self.spec_ids[row]),
            int(listed.contents[row]),
            int(self.sequence_numbers[row]),
            min_sequence_number=0,
            added_snapshot_id=None if by == UNKNOWN_SNAPSHOT else by,
            added_files_count=added,
            existing_files_count=existing,
            deleted_files_count=deleted,
        )


def _count(column: NDArray[np.int64], row: int) -> int | None:
    return int(column[row]) if column[row] >= 0 else None


def summarized_manifests(stores: Stores, snapshot: Snapshot, metadata: TableMetadata) -> SummarizedManifests:
    """Return the manifests of `snapshot`. Reads the manifest list alone. Raises UnreadableMetadata, EncryptedTable."""
    if snapshot.key_id is not None:
        raise encrypted(f"The manifest list of snapshot {snapshot.snapshot_id}", snapshot.manifest_list)
    path = snapshot.manifest_list
    if path is None:
        return _from_entries(manifests_of(stores, snapshot).entries, listed_entries(manifests_of(stores, snapshot)))
    most = max((len(_fields(text)) for text in metadata.partition_specs.values()), default=0)
    with within_memory(path):
        data = read_file(stores, path)
        container = open_container(data, path, stores.limits)
        program = _program(container.schema_text, most, path)
        if program is None:
            found = manifests_of(stores, snapshot)
            return _from_entries(found.entries, listed_entries(found))
        scan = scan_records(program, container.payload, container.records, path)
        listed = listed_from(scan, path, len(data), snapshot)
        return SummarizedManifests(
            listed,
            scan.longs["partition_spec_id"],
            _column(scan, "sequence_number"),
            tuple(_summary(scan, position) for position in range(most)),
        )


def _fields(spec: str) -> Sequence[Mapping[str, Any]]:
    parsed = json.loads(spec)
    fields: Sequence[Mapping[str, Any]] = parsed["fields"] if isinstance(parsed, dict) else parsed
    return fields


@lru_cache(maxsize=64)
def _program(schema_text: str, items: int, path: str) -> Program | None:
    schema = json.loads(schema_text)
    names = list_names(schema, path)
    ways: dict[str, tuple[str, ...]] = {
        name: (names[name],) for name in (*_NUMBERS, "manifest_path", "key_metadata") if name in names
    }
    if "partitions" in names and items:
        ways |= {name: (names["partitions"], ITEM, name) for name in _SUMMARY}
    program = compile_scan(structure(schema, path), ways, Further(items=items))
    wanted_texts = {"manifest_path", "key_metadata"}
    right = program is not None and all(
        name in (program.texts if name in wanted_texts else program.longs) for name in ways if name not in _SUMMARY
    )
    return program if right else None


def _column(scan: Scan, name: str) -> NDArray[np.int64]:
    if name not in scan.longs:
        return np.zeros(scan.rows, np.int64)
    return np.where(scan.is_set(name), scan.longs[name], 0)


def _summary(scan: Scan, position: int) -> SummaryColumns:
    present = f"contains_null[{position}]"
    if present not in scan.sizes:
        nothing = np.full(scan.rows, -1, np.int8)
        none = pa.nulls(scan.rows, pa.large_binary())
        return SummaryColumns(np.zeros(scan.rows, np.bool_), nothing, nothing, none, none)
    return SummaryColumns(
        scan.sizes[present] >= 0,
        _flag(scan, present),
        _flag(scan, f"contains_nan[{position}]"),
        _bound(scan, f"lower_bound[{position}]"),
        _bound(scan, f"upper_bound[{position}]"),
    )


def _flag(scan: Scan, name: str) -> NDArray[np.int8]:
    if name not in scan.sizes:
        return np.full(scan.rows, -1, np.int8)
    known = scan.sizes[name] >= 0
    values = scan.data[np.where(known, scan.starts[name], 0)] if scan.rows else np.zeros(0, np.uint8)
    return np.where(known, values != 0, -1).astype(np.int8)


def _bound(scan: Scan, name: str) -> pa.Array:
    return scan.binary(name) if name in scan.sizes else pa.nulls(scan.rows, pa.large_binary())


def _from_entries(entries: Sequence[ManifestListEntry], listed: ListedManifests) -> SummarizedManifests:
    most = max((len(entry.partitions) for entry in entries), default=0)

    def column(position: int) -> SummaryColumns:
        found = [entry.partitions[position] if position < len(entry.partitions) else None for entry in entries]

        def flag(name: str) -> NDArray[np.int8]:
            values = [None if each is None else getattr(each, name) for each in found]
            return np.array([-1 if value is None else int(value) for value in values], np.int8)

        def bound(name: str) -> pa.Array:
            return pa.array([None if each is None else getattr(each, name) for each in found], pa.large_binary())

        recorded = np.array([each is not None for each in found], np.bool_)
        return SummaryColumns(
            recorded, flag("contains_null"), flag("contains_nan"), bound("lower_bound"), bound("upper_bound")
        )

    return SummarizedManifests(
        listed,
        np.array([entry.partition_spec_id for entry in entries], np.int64),
        np.array([entry.sequence_number for entry in entries], np.int64),
        tuple(column(position) for position in range(most)),
    )
