"""The mapping of names to field ids, for reading files without field ids (`add_files`). A table has one mapping for all
its files; an archive has files that were read with different ones. No store, no Spark. Source: format/spec.md, "Name
Mapping Serialization", "Column Projection"."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from artemis_lifecycle.cold_tier.cold_split import Json
from artemis_lifecycle.cold_tier.evolution import field_ids
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.avro.container import schema_of
from artemis_lifecycle.storage.bounded import bounded_json

NAME_MAPPING = "schema.name-mapping.default"
"""The table property."""


@dataclass(frozen=True)
class Joint:
    """A mapping under which the snapshots of two tables read as under their own mappings; None means no mapping."""

    mapping: str | None


NO_MAPPING = Joint(None)


def mapping_of(metadata: Json) -> str | None:
    found = (metadata.get("properties") or {}).get(NAME_MAPPING)
    return None if found is None else str(found)


def fields_read(metadata: Json, snapshot_ids: Collection[int]) -> set[int]:
    """Return the field ids in the schemas of these snapshots; those of every schema for a snapshot without a schema
    id."""
    named = {each.get("schema-id") for each in metadata.get("snapshots") or () if each["snapshot-id"] in snapshot_ids}
    schemas = {item["schema-id"]: item for item in metadata.get("schemas") or ()}
    if not named <= set(schemas):
        named = set(schemas)
    return {number for each in named for number in field_ids(schemas[each])}


def joint(one: str | None, other: str | None, read_by_one: set[int], read_by_other: set[int]) -> Joint | None:
    """Return one mapping for what is read with `one` and what is read with `other`; None if none exists. `read_by_…`
    are the fields in the schemas of each.

    If only one mapping has a file's column, the other table must not read that field. Without a mapping, such files are
    read by the order of their columns, which is compatible with no mapping.
    """
    if one == other:
        return Joint(one)
    if one is None or other is None:
        return None
    try:
        first, second = (bounded_json(text, "schema.name-mapping.default") for text in (one, other))
        names, others = dict(_paths(first)), dict(_paths(second))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if any(others.get(path, number) != number for path, number in names.items()):
        return None
    if {number for path, number in others.items() if path not in names} & read_by_one:
        return None
    if {number for path, number in names.items() if path not in others} & read_by_other:
        return None
    return Joint(json.dumps(_merged(first, second)))


def _paths(fields: list[Json], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int | None]]:
    """Yield each name of each field, with the names in which it is nested, and the field's id."""
    for each in fields:
        for name in each["names"]:
            yield (*above, name), each.get("field-id")
            yield from _paths(each.get("fields") or [], (*above, name))


def _merged(first: list[Json], second: list[Json]) -> list[Json]:
    merged = [dict(each) for each in first]
    known: Mapping[int | None, Json] = {each.get("field-id"): each for each in merged if "field-id" in each}
    for each in second:
        same = known.get(each.get("field-id")) if "field-id" in each else None
        if same is None:
            merged.append(each)
            continue
        same["names"] = list(dict.fromkeys([*same["names"], *each["names"]]))
        nested = _merged(same.get("fields") or [], each.get("fields") or [])
        if nested:
            same["fields"] = nested
    return merged


_HEAD = 16 << 20
"""Enough bytes for the header of any Avro file."""


def names_its_fields(file: BinaryIO, file_format: str, path: str) -> bool:
    """Return True if a data or delete file has field ids, so that it needs no mapping.

    Raises UnreadableMetadata for a file that does not have that format.
    """
    from pyarrow import orc

    try:
        match file_format.lower():
            case "parquet":
                return _any_id(pq.ParquetFile(file).schema_arrow, b"PARQUET:field_id")
            case "orc":
                return _any_id(pa.schema(list(orc.ORCFile(file).schema)), b"iceberg.id")
            case "avro":
                return "field-id" in json.dumps(schema_of(file.read(_HEAD), path))
    except (pa.ArrowException, OSError) as error:
        raise UnreadableMetadata(
            f"The file is not in {file_format} format, as its manifest says: {error}",
            path=path,
            untouched="all files",
            hint="check what wrote it; restore it from a copy of the store",
        ) from error
    return True  # Puffin has no columns.


def _any_id(schema: pa.Schema, key: bytes) -> bool:
    waiting = list(schema)
    while waiting:
        each = waiting.pop()
        if key in (each.metadata or {}):
            return True
        waiting += [each.type.field(number) for number in range(each.type.num_fields)]
    return False
