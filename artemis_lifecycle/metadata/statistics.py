"""The live entries of manifests with the column statistics that pruning needs, as columns over many manifests at once.
Source: format/spec.md, "Manifests"; field ids 104 to 145.

A planner asks for a few columns of very many small manifests. So manifests with one Avro schema are scanned together:
their decompressed records are consecutive, and the start of each record shows that every manifest ends where it should.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.metadata.avro.container import Container, read_long
from artemis_lifecycle.metadata.avro.programs import Further, Program, compile_scan
from artemis_lifecycle.metadata.avro.scan import Scan, scan_records
from artemis_lifecycle.metadata.avro.schema import field_type, record_fields, structure
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

_OF_ENTRY = ("status", "snapshot_id", "sequence_number")
_OF_FILE = (
    "content",
    "file_path",
    "file_format",
    "file_size_in_bytes",
    "record_count",
    "referenced_data_file",
    "key_metadata",
)
_REQUIRED = ("status", "file_path", "file_format", "file_size_in_bytes", "record_count")
_COUNTS = ("value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")
_START = "record"
"""The column with the place of each record."""

_VALUE = "value of"
"""Columns with the places of partition values; those of null have none."""


@dataclass(frozen=True)
class Wanted:
    """Which columns' statistics and which partition fields to take, by their ids."""

    columns: tuple[int, ...] = ()
    partition_fields: tuple[int, ...] = ()


@dataclass(frozen=True)
class Numbers:
    """int64 values, and where they are recorded."""

    values: NDArray[np.int64]
    known: NDArray[np.bool_]


@dataclass(frozen=True)
class LiveEntries:
    """The live entries of some manifests. `manifests` has the place of each entry's manifest among those asked for."""

    manifests: NDArray[np.int64]
    sequence_numbers: NDArray[np.int64]
    _scan: Scan
    _rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def contents(self) -> NDArray[np.int64]:
        """0 data, 1 position deletes, 2 equality deletes."""
        found = self.numbers("content")
        return np.where(found.known, found.values, 0)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each file."""
        return self.numbers("file_size_in_bytes").values

    @property
    def record_counts(self) -> NDArray[np.int64]:
        return self.numbers("record_count").values

    def texts(self, name: str, rows: NDArray[np.int64]) -> pa.Array:
        """Return `file_path`, `file_format` or `referenced_data_file` of some of the entries, as large_string."""
        if name not in self._scan.sizes:
            return pa.nulls(len(rows), pa.large_string())
        try:
            return self._scan.texts(name, self._rows[rows])
        except pa.ArrowInvalid as error:
            raise unreadable(f"The {name} of a manifest entry is not text", "manifest") from error

    def equality_ids(self, row: int) -> tuple[int, ...]:
        """Return the field ids by which an equality delete file deletes."""
        if "equality_ids" not in self._scan.sizes:
            return ()
        at = int(self._rows[row])
        start, size = int(self._scan.starts["equality_ids"][at]), int(self._scan.sizes["equality_ids"][at])
        return () if size < 0 else _longs(self._scan.data[start : start + size].tobytes())

    def partition(self, field_id: int) -> Numbers | pa.Array | None:
        """Return the stored values of a partition field: numbers, or large_binary of all else in single-value form.
        None if the manifests do not have the field."""
        name = f"partition {field_id}"
        if name not in self._scan.longs:
            return self._bytes(name)
        # The smallest long stands for null in scans, and is a partition value like any other.
        known = self._scan.sizes[f"{_VALUE} {field_id}"][self._rows] >= 0
        return Numbers(self._scan.longs[name][self._rows], known)

    def count(self, kind: str, field_id: int) -> Numbers:
        """Return `value_counts`, `null_value_counts` or `nan_value_counts` of a column."""
        return self.numbers(f"{kind} {field_id}")

    def bound(self, kind: str, field_id: int) -> pa.Array:
        """Return `lower_bounds` or `upper_bounds` of a column, as large_binary; null where there is none."""
        found = self._bytes(f"{kind} {field_id}")
        return pa.nulls(len(self), pa.large_binary()) if found is None else found

    def numbers(self, name: str) -> Numbers:
        scan = self._scan
        if name not in scan.longs:
            nothing = np.zeros(len(self), np.int64)
            return Numbers(nothing, nothing != 0)
        return Numbers(scan.longs[name][self._rows], scan.is_set(name)[self._rows])

    def _bytes(self, name: str) -> pa.Array | None:
        return self._scan.binary(name, self._rows) if name in self._scan.sizes else None


def live_statistics(stores: Stores, manifests: Sequence[ManifestListEntry], wanted: Wanted) -> Iterator[LiveEntries]:
    """Yield the live entries of `manifests`, those of one Avro schema together.

    Raises UnreadableMetadata if a manifest is missing, broken, not of the recorded length, or its entries differ from
    what the list records; EncryptedTable.
    """
    groups: dict[str, list[tuple[int, Container]]] = {}
    for place, entry in enumerate(manifests):
        with within_memory(entry.manifest_path):
            container = open_manifest(stores, entry)
            groups.setdefault(container.schema_text, []).append((place, container))
    for schema_text, found in groups.items():
        paths = [manifests[place].manifest_path for place, _ in found]
        with within_memory(paths[0]):
            yield _live(schema_text, found, manifests, wanted, paths[0])


def _live(
    schema_text: str,
    found: Sequence[tuple[int, Container]],
    manifests: Sequence[ManifestListEntry],
    wanted: Wanted,
    path: str,
) -> LiveEntries:
    program = _program(schema_text, wanted)
    if program is None:
        raise unreadable("The manifest's schema is not one that an Iceberg writer makes", path)
    records = np.array([container.records for _, container in found], np.int64)
    ends = np.cumsum([len(container.payload) for _, container in found])
    payload = found[0][1].payload if len(found) == 1 else b"".join(container.payload for _, container in found)
    scan = scan_records(program, payload, int(records.sum()), path)
    first = np.cumsum(records)[:-1]
    # A manifest without entries has no record that could begin there.
    begins = np.append(scan.starts[_START], len(payload))[first]
    if (begins != ends[:-1]).any():
        wrong = manifests[found[int(np.flatnonzero(begins != ends[:-1])[0])][0]].manifest_path
        raise unreadable("The manifest's records do not end where the manifest does", wrong)
    owners = np.repeat(np.array([place for place, _ in found], np.int64), records)
    _check(scan, owners, [place for place, _ in found], manifests)
    live = np.flatnonzero(scan.longs["status"] != EntryStatus.DELETED)
    return LiveEntries(owners[live], _sequence_numbers(scan, owners, manifests, live), scan, live)


def _check(
    scan: Scan, owners: NDArray[np.int64], places: Sequence[int], manifests: Sequence[ManifestListEntry]
) -> None:
    def path(wrong: NDArray[np.bool_]) -> str:
        return manifests[int(owners[np.flatnonzero(wrong)[0]])].manifest_path

    for name in _REQUIRED:
        missing = ~scan.is_set(name)
        if missing.any():
            raise unreadable(f"A manifest entry has no {name}", path(missing))
    status = scan.longs["status"]
    strange = (status < 0) | (status > 2)
    if strange.any():
        raise unreadable("A manifest entry has a status that is not 0, 1 or 2", path(strange))
    if scan.has("key_metadata") and scan.is_set("key_metadata").any():
        raise encrypted("A file of the manifest", path(scan.is_set("key_metadata")))
    counts = np.bincount(owners * 3 + status, minlength=3 * len(manifests)).reshape(-1, 3)
    content = scan.longs.get("content")
    contents = np.zeros(scan.rows, np.int64) if content is None else np.where(scan.is_set("content"), content, 0)
    listed = np.array([entry.content for entry in manifests], np.int64)[owners]
    wrong = np.where(listed == 0, contents != 0, (contents != 1) & (contents != 2))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        check_contents({int(contents[at])}, manifests[int(owners[at])])
    for place in places:
        check_counts(counts[place].tolist(), manifests[place])
    if scan.has("snapshot_id"):
        named = (status == EntryStatus.ADDED) & scan.is_set("snapshot_id")
        ids = scan.longs["snapshot_id"]
        by = np.array([entry.added_snapshot_id or 0 for entry in manifests], np.int64)[owners]
        for at in np.flatnonzero(named & (ids != by))[:1].tolist():
            check_added_by([int(ids[at])], manifests[int(owners[at])])


def _sequence_numbers(
    scan: Scan, owners: NDArray[np.int64], manifests: Sequence[ManifestListEntry], live: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the data sequence numbers (spec, "Sequence Number Inheritance": an added entry without one has the
    manifest's, and in v1 all are 0)."""
    inherited = np.array([entry.sequence_number for entry in manifests], np.int64)[owners][live]
    if not scan.has("sequence_number"):
        own, known = inherited, np.zeros(len(live), np.bool_)
    else:
        own, known = scan.longs["sequence_number"][live], scan.is_set("sequence_number")[live]
    lost = ~known & (inherited != 0) & (scan.longs["status"][live] != EntryStatus.ADDED)
    if lost.any():
        path = manifests[int(owners[live][np.flatnonzero(lost)[0]])].manifest_path
        raise unreadable("An existing entry of the manifest has no sequence number", path)
    return np.where(known, own, inherited)


@lru_cache(maxsize=256)
def _program(schema_text: str, wanted: Wanted) -> Program | None:
    schema = json.loads(schema_text)
    entry = entry_names(schema, "manifest")
    outer = entry["data_file"]
    inner = file_names(schema, entry, "manifest")
    ways: dict[str, tuple[str, ...]] = {name: (entry[name],) for name in _OF_ENTRY if name in entry}
    ways |= {name: (outer, inner[name]) for name in _OF_FILE if name in inner}
    names = _partition_names(schema, outer, inner)
    partition = {
        field_id: (outer, inner["partition"], names[field_id])
        for field_id in wanted.partition_fields
        if field_id in names
    }
    ways |= {f"partition {field_id}": way for field_id, way in partition.items()}
    pairs: dict[tuple[str, ...], Mapping[int, str]] = {
        (outer, inner[kind]): {field_id: f"{kind} {field_id}" for field_id in wanted.columns}
        for kind in (*_COUNTS, *_BOUNDS)
        if kind in inner and wanted.columns
    }
    spans: dict[tuple[str, ...], str] = {(): _START}
    spans |= {way: f"{_VALUE} {field_id}" for field_id, way in partition.items()}
    if "equality_ids" in inner:
        spans[outer, inner["equality_ids"]] = "equality_ids"
    program = compile_scan(structure(schema, "manifest"), ways, Further(pairs, spans))
    texts = {"file_path", "file_format", "referenced_data_file", "key_metadata"}
    if program is None:
        return None
    plain = [name for name in ways if not name.startswith("partition ")]
    return program if all(name in (program.texts if name in texts else program.longs) for name in plain) else None


def _partition_names(schema: Any, outer: str, inner: Mapping[str, str]) -> dict[int, str]:
    if "partition" not in inner:
        return {}
    fields = record_fields(field_type(schema, outer, "manifest"), inner["partition"])
    return {field["field-id"]: field["name"] for field in fields if isinstance(field.get("field-id"), int)}


def _longs(encoded: bytes) -> tuple[int, ...]:
    """Decode an Avro array of ints or longs."""
    found: list[int] = []
    count, at = read_long(encoded, 0)
    while count:
        if count < 0:
            _, at = read_long(encoded, at)
        for _ in range(abs(count)):
            value, at = read_long(encoded, at)
            found.append(value)
        count, at = read_long(encoded, at)
    return tuple(found)
