"""The live entries of a manifest with the column statistics that planning a scan needs, checked against the manifest
list. Source: format/spec.md, "Manifests"; field ids 104 to 145.

A planner asks for a few of a table's columns. The compiled scan steps over the others: a reader that builds records
takes twelve times as long where a table has a hundred.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.metadata.avro.container import Container, field_type, read_long, record_fields, structure
from artemis_lifecycle.metadata.avro.scan import Further, Program, Scan, compile_scan, scan_records, strange_schema
from artemis_lifecycle.metadata.manifests import checked_scan, entry_names, file_names, open_manifest, readable
from artemis_lifecycle.metadata.types import DATA, EntryStatus, Kind, ManifestListEntry, kind_of
from artemis_lifecycle.metadata.unreadable import unreadable
from artemis_lifecycle.storage.bounded import within_memory

if TYPE_CHECKING:
    from artemis_lifecycle.storage.stores import Stores

_OF_ENTRY = ("status", "snapshot_id", "sequence_number")
_TEXTS = ("file_path", "file_format", "referenced_data_file")
_OF_FILE = ("content", "file_size_in_bytes", "record_count", "key_metadata", *_TEXTS)
_OF_COLUMN = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
_ALL_TEXTS = frozenset({*_TEXTS, "key_metadata"})
_VALUE = "value of"
"""Columns with the places of partition values; those of null have none."""


@dataclass(frozen=True)
class Wanted:
    """Which columns' statistics and which partition fields to take, by their ids."""

    columns: tuple[int, ...] = ()
    partition_fields: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveEntry:
    """One live data or delete file. `partition` has the wanted fields, as numbers, or else in single-value
    serialization; None is null, or not in the manifest. Data files have no `referenced_data_file` and `equality_ids`.
    """

    kind: Kind
    path: str
    size_in_bytes: int
    record_count: int
    sequence_number: int
    referenced_data_file: str | None
    equality_ids: tuple[int, ...]
    partition: tuple[int | bytes | None, ...]
    _statistics: tuple[Any, ...]
    _places: Mapping[int, int]

    def statistics(self, field_id: int) -> tuple[int | None, int | None, int | None, bytes | None, bytes | None]:
        """Return the counts of values, nulls and NaNs of a wanted column, and its bounds in single-value serialization;
        None is not recorded."""
        first = len(_OF_COLUMN) * self._places[field_id]
        values, nulls, nans, lower, upper = self._statistics[first : first + len(_OF_COLUMN)]
        return values, nulls, nans, lower, upper


def live_statistics(stores: Stores, entry: ManifestListEntry, wanted: Wanted) -> list[LiveEntry]:
    """Return the live entries of the manifest `entry`.

    Raises UnreadableMetadata if the manifest is missing, broken, not of the recorded length, or its entries differ from
    what the list records; EncryptedTable.
    """
    path = entry.manifest_path
    with within_memory(path):
        container = open_manifest(stores, entry)
        if isinstance(container, Container):
            program = _program(container.schema_text, wanted)
            if program is None:
                raise strange_schema(path)
            scan = scan_records(program, container.payload, container.records, path)
        else:
            ways, further = _ways(container.schema, wanted)
            scan = container.scan(ways, _ALL_TEXTS, further)
        scan = readable(container, scan, path, entry.base)
        contents, _ = checked_scan(scan, entry)
        if not scan.is_set("record_count").all():
            raise unreadable("A manifest entry has no record_count", path)
        live = np.flatnonzero(scan.longs["status"] != EntryStatus.DELETED)
        nothing = [()] * len(live)
        kinds: list[Kind] = [DATA] * len(live)
        referenced: list[Any] = [None] * len(live)
        equality: list[tuple[int, ...]] = [()] * len(live)
        try:
            paths = _column(scan, "file_path", live)
            if entry.content == 1:
                formats, referenced = (_column(scan, name, live) for name in ("file_format", "referenced_data_file"))
                kinds = list(map(kind_of, contents[live].tolist(), formats))
                equality = [_longs(each) if each else () for each in _column(scan, "equality_ids", live)]
        except pa.ArrowInvalid as error:
            raise unreadable("A path or format of a manifest entry is not text", path) from error
        statistics = [_column(scan, f"{kind} {field_id}", live) for field_id in wanted.columns for kind in _OF_COLUMN]
        partition = [_column(scan, f"partition {field_id}", live) for field_id in wanted.partition_fields]
        places = {field_id: place for place, field_id in enumerate(wanted.columns)}
        columns: list[Iterable[Any]] = [
            kinds,
            paths,
            scan.longs["file_size_in_bytes"][live].tolist(),
            scan.longs["record_count"][live].tolist(),
            _sequence_numbers(scan, entry, live),
            referenced,
            equality,
            zip(*partition, strict=True) if partition else nothing,
            zip(*statistics, strict=True) if statistics else nothing,
            repeat(places, len(live)),
        ]
        return [LiveEntry(*values) for values in zip(*columns, strict=True)]


def _column(scan: Scan, name: str, rows: NDArray[np.int64]) -> list[Any]:
    """Return a column of the scan as Python values; None is null, or that the manifest does not have it."""
    if name in scan.sizes:
        found: list[Any] = (scan.texts if name in _TEXTS else scan.binary)(name, rows).to_pylist()
        return found
    if name not in scan.longs:
        return [None] * len(rows)
    # The smallest long stands for null in scans, and is a partition value like any other.
    span = name.replace("partition", _VALUE)
    known = scan.sizes[span][rows] >= 0 if span in scan.sizes else scan.is_set(name)[rows]
    values: list[Any] = scan.longs[name][rows].tolist()
    return values if known.all() else [each if is_known else None for each, is_known in zip(values, known, strict=True)]


def _sequence_numbers(scan: Scan, entry: ManifestListEntry, live: NDArray[np.int64]) -> list[int]:
    """Return the data sequence numbers (spec, "Sequence Number Inheritance": an added entry without one has the
    manifest's, and in v1 all are 0)."""
    own = _column(scan, "sequence_number", live)
    inherited = entry.sequence_number
    if inherited and None in own:
        added = (scan.longs["status"][live] == EntryStatus.ADDED).tolist()
        if any(number is None and not is_added for number, is_added in zip(own, added, strict=True)):
            raise unreadable("An existing entry of the manifest has no sequence number", entry.manifest_path)
    return [inherited if each is None else each for each in own]


@lru_cache(maxsize=256)
def _program(schema_text: str, wanted: Wanted) -> Program | None:
    schema = json.loads(schema_text)
    ways, further = _ways(schema, wanted)
    program = compile_scan(structure(schema, "manifest"), ways, further)
    if program is None:
        return None
    plain = [name for name, way in ways.items() if way not in further.spans]
    return program if all(name in (program.texts if name in _ALL_TEXTS else program.longs) for name in plain) else None


def _ways(schema: Any, wanted: Wanted) -> tuple[dict[str, tuple[str, ...]], Further]:
    entry = entry_names(schema, "manifest")
    outer = entry["data_file"]
    inner = file_names(schema, entry, "manifest")
    ways: dict[str, tuple[str, ...]] = {name: (entry[name],) for name in _OF_ENTRY if name in entry}
    ways |= {name: (outer, inner[name]) for name in _OF_FILE if name in inner}
    names = _partition_names(schema, outer, inner)
    fields = [each for each in wanted.partition_fields if each in names]
    ways |= {f"partition {each}": (outer, inner["partition"], names[each]) for each in fields}
    pairs: dict[tuple[str, ...], Mapping[int, str]] = {
        (outer, inner[kind]): {each: f"{kind} {each}" for each in wanted.columns}
        for kind in _OF_COLUMN
        if kind in inner and wanted.columns
    }
    spans = {ways[f"partition {each}"]: f"{_VALUE} {each}" for each in fields}
    if "equality_ids" in inner:
        spans[outer, inner["equality_ids"]] = "equality_ids"
    return ways, Further(pairs, spans)


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
