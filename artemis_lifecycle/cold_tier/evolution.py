"""Maps schemas, partition specs and sort orders to the other tier. They are compared by content, never by id alone: a
live table that dropped one may reuse its id (`expire_snapshots` with `clean_expired_metadata`), and the archive has
both. Pure. Source: format/spec.md, "Schemas and Data Types", "Partition Evolution", "Sorting".

The archive has its own ids. An id is the same as the live one, unless the archive uses that id for something else. Then
it is derived from the content, so that every attempt gets the same id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from artemis_lifecycle.cold_tier.cold_split import Json
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.avro.container import schema_of
from artemis_lifecycle.metadata.values import fields_of
from artemis_lifecycle.storage.bounded import bounded_json

SCHEMAS, SPECS, ORDERS = "schemas", "partition-specs", "sort-orders"
ID_KEYS: Mapping[str, str] = {SCHEMAS: "schema-id", SPECS: "spec-id", ORDERS: "order-id"}

FIRST_OWN_ID = 1_000_000
"""The start of the archive's own ids; no writer reaches such numbers."""

UNSORTED: Json = {"order-id": 0, "fields": []}

_UNPARTITIONED: Json = {"fields": []}


@dataclass(frozen=True)
class Ids:
    """Maps the ids of one tier to those of the other. Ids without an entry are the same. Picklable."""

    schemas: Mapping[int, int] = field(default_factory=dict)
    specs: Mapping[int, int] = field(default_factory=dict)
    orders: Mapping[int, int] = field(default_factory=dict)

    def of(self, key: str) -> Mapping[int, int]:
        return {SCHEMAS: self.schemas, SPECS: self.specs, ORDERS: self.orders}[key]


SAME_IDS = Ids()


class AlwaysUnsorted(dict[int, int]):
    """Maps every sort order to the unsorted one."""

    def get(self, key: int, default: Any = None) -> Any:
        return 0


_TYPES = frozenset({"type", "element", "key", "value", "transform"})
"""Keys whose text is a type or a transform, which writers write with or without blanks."""


def shape(item: Any, key: str = "") -> Any:
    """Return an item's content, independent of its spelling: Iceberg, pyiceberg and their versions differ in empty
    fields."""
    if isinstance(item, dict):
        shaped = {name: shape(value, name) for name, value in item.items()}
        return {name: value for name, value in shaped.items() if value is not None and value != []}
    if isinstance(item, list):
        return [shape(value) for value in item]
    return item.replace(" ", "") if isinstance(item, str) and key in _TYPES else item


def content(item: Json, key: str) -> Any:
    """Return `shape` without the item's id."""
    return shape({name: value for name, value in item.items() if name != ID_KEYS[key]})


def with_lists(metadata: Json) -> Json:
    """Return `metadata` with the lists of schemas and partition specs, which writers of format version 1 may omit."""
    new = dict(metadata)
    if SCHEMAS not in new and isinstance(new.get("schema"), dict):
        number = new["schema"].get("schema-id") or 0
        new[SCHEMAS] = [{**new["schema"], "schema-id": number}]
        new.setdefault("current-schema-id", number)
    if SPECS not in new and isinstance(new.get("partition-spec"), list):
        new[SPECS] = [{"spec-id": 0, "fields": new["partition-spec"]}]
        new.setdefault("default-spec-id", 0)
    if any("field-id" not in each for spec in new.get(SPECS) or () for each in spec.get("fields") or ()):
        new[SPECS] = [{**spec, "fields": _numbered(spec["fields"])} for spec in new[SPECS]]
        numbers = [each["field-id"] for spec in new[SPECS] for each in spec["fields"]]
        new["last-partition-id"] = max(new.get("last-partition-id") or 0, *numbers)
    return new


def _numbered(fields: Sequence[Json]) -> list[Json]:
    """Return partition fields with the ids that Iceberg assigns if a spec has none."""
    return [{**each, "field-id": each.get("field-id", 1000 + place)} for place, each in enumerate(fields)]


def archive_ids(live: Json, cold: Json | None) -> Ids:
    """Return the archive's ids for the ids of `live`. `cold` is the archive's newest table; None before the first
    handoff."""
    found = {key: _new_ids(live.get(key) or (), (cold or {}).get(key) or (), key) for key in ID_KEYS}
    return Ids(found[SCHEMAS], found[SPECS], found[ORDERS])


def _new_ids(items: Iterable[Json], known: Iterable[Json], key: str) -> dict[int, int]:
    id_key = ID_KEYS[key]
    taken = {item[id_key]: content(item, key) for item in known}
    found = {}
    for item in items:
        number, means = item[id_key], content(item, key)
        if taken.get(number, means) == means:
            continue
        same = next((other for other, what in taken.items() if what == means), None)
        found[number] = _own_id(means, taken) if same is None else same
        taken[found[number]] = means
    return found


def _own_id(means: Any, taken: Mapping[int, Any]) -> int:
    digest = hashlib.sha256(json.dumps(means, sort_keys=True).encode()).digest()
    number = FIRST_OWN_ID + int.from_bytes(digest[:4], "big") % (2**31 - 2 * FIRST_OWN_ID)
    while taken.get(number, means) != means:
        number += 1
    return number


def same_ids(theirs: Mapping[int, str], ours: Mapping[int, str], key: str) -> dict[int, int]:
    """Map each of `theirs` to the equal one of `ours` (JSON text by id), by content. Those without an equal are
    omitted."""
    mine = {number: content(json.loads(text), key) for number, text in ours.items()}
    found = {}
    for number, text in theirs.items():
        means = content(json.loads(text), key)
        same = number if mine.get(number) == means else next((n for n, what in mine.items() if what == means), None)
        if same is not None:
            found[number] = same
    return found


def merged(live: Json, cold: Json | None, ids: Ids) -> dict[str, list[Json]]:
    """Return the schemas, specs and orders of both, with the archive's ids. Those of the archive are never lost or
    changed."""
    found = {}
    for key, id_key in ID_KEYS.items():
        if key not in live and key not in (cold or {}):
            continue
        items = {item[id_key]: item for item in (cold or {}).get(key) or ()}
        for item in live.get(key) or ():
            number = ids.of(key).get(item[id_key], item[id_key])
            items.setdefault(number, {**item, id_key: number})
        found[key] = [items[number] for number in sorted(items)]
    return found


def field_ids(schema: Json) -> dict[int, Any]:
    """Return the types of a schema's fields by id, including nested fields."""
    return {number: kind for number, kind, _ in fields_of(schema)}


def clashing_fields(one: Iterable[str], other: Iterable[str]) -> set[int]:
    """Return the column ids that two lines of schemas (JSON) both have, and no schema that both have: each line gave
    them to a column of its own. Only for lines that diverged; in one line, a rename looks the same."""
    mine, theirs = (
        {
            json.dumps(shape(each.get("fields")), sort_keys=True): field_ids(each).keys()
            for each in map(json.loads, line)
        }
        for line in (one, other)
    )
    shared = {number for text in mine.keys() & theirs for number in mine[text]}
    return set().union(*mine.values()) & set().union(*theirs.values()) - shared


def with_current(metadata: Json, specs_of: Callable[[Json], Sequence[int]]) -> Json:
    """Return `metadata` with the current schema, default spec and default order of its current snapshot, because
    engines bind filters to them. `specs_of` returns the specs of a snapshot's files, those that it wrote first.

    If a name stands for different columns in different schemas, the result has an unpartitioned spec. Iceberg's Spark
    runtime leaves a filter to the partitions if every spec decides it, and binds its names to the current schema
    (SparkScanBuilder.pushPredicates, ExpressionUtil.selectsPartitions; like apache/iceberg#16510). A filter on an older
    snapshot would then not be evaluated at all, and the result would have rows that do not match. A spec without fields
    never decides a filter.
    """
    current = next(
        (each for each in metadata["snapshots"] if each["snapshot-id"] == metadata.get("current-snapshot-id")), None
    )
    if current is None:
        return metadata
    new = dict(metadata)
    schemas = {item["schema-id"]: item for item in metadata.get(SCHEMAS) or ()}
    if current.get("schema-id") in schemas:
        new["current-schema-id"] = current["schema-id"]
    schema = schemas.get(new.get("current-schema-id", -1)) or metadata.get("schema") or {}
    known = set(field_ids(schema))
    specs = {item["spec-id"]: item for item in metadata.get(SPECS) or ()}
    new["default-spec-id"] = _first_bound(
        [*specs_of(current), metadata.get("default-spec-id"), *_unbound_first(specs)], specs, known
    )
    if _renamed(schemas.values()) and all(item.get("fields") for item in specs.values()):
        means = content(_UNPARTITIONED, SPECS)
        number = _own_id(means, {number: content(item, SPECS) for number, item in specs.items()})
        new[SPECS] = [*specs.values(), {"spec-id": number, **_UNPARTITIONED}]
    orders = {item["order-id"]: item for item in metadata.get(ORDERS) or ()}
    if orders:
        if not any(_sources(item) <= known for item in orders.values()):
            orders[0] = UNSORTED
            new[ORDERS] = [*metadata[ORDERS], UNSORTED]
        wanted = [metadata.get("default-sort-order-id"), *sorted(orders, reverse=True)]
        new["default-sort-order-id"] = _first_bound(wanted, orders, known)
    if "schema" in metadata:
        new["schema"] = schema
    if "partition-spec" in metadata and new["default-spec-id"] in specs:
        new["partition-spec"] = specs[new["default-spec-id"]]["fields"]
    return new


def _renamed(schemas: Iterable[Json]) -> bool:
    """Return True if any name, ignoring case, stands for different columns in different schemas."""
    columns: dict[str, int] = {}
    return any(columns.setdefault(name, number) != number for schema in schemas for name, number in _names(schema))


def _names(struct: Json, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield full names, in lower case, and ids of a struct's fields, including those of nested structs."""
    for each in struct.get("fields") or ():
        name = prefix + each["name"].lower()
        yield name, each["id"]
        if isinstance(each["type"], dict) and each["type"].get("type") == "struct":
            yield from _names(each["type"], f"{name}.")


def _unbound_first(items: Mapping[int, Json]) -> list[int]:
    return sorted(items, key=lambda number: (len(items[number].get("fields") or ()), number))


def _first_bound(wanted: Iterable[int | None], items: Mapping[int, Json], known: set[int]) -> int | None:
    candidates = [number for number in wanted if number is not None and number in items]
    bound = (number for number in candidates if _sources(items[number]) <= known)
    return next(bound, next(iter(candidates), None))


def _sources(item: Json) -> set[int]:
    """Return the source columns of a spec or an order."""
    found: set[int] = set()
    for each in item.get("fields") or ():
        found |= {each["source-id"]} if "source-id" in each else set(each.get("source-ids") or ())
    return found


_PROMOTIONS = {("int", "long"), ("float", "double"), ("date", "timestamp"), ("date", "timestamp_ns")}


def unreadable_fields(then: Json, now: Json) -> list[int]:
    """Return the fields of the schema `then` whose values `now` reads otherwise: by a type that cannot, or, in files
    that lack them, by another initial default."""
    known = {number: (kind, default) for number, kind, default in fields_of(now)}
    return [
        number
        for number, kind, default in fields_of(then)
        if number in known and not (_reads(kind, known[number][0]) and default == known[number][1])
    ]


def _reads(then: Any, now: Any) -> bool:
    if isinstance(then, dict) or isinstance(now, dict):
        return isinstance(then, dict) and isinstance(now, dict) and then["type"] == now["type"]
    one, other = shape(then, "type"), shape(now, "type")
    if one == other or (one, other) in _PROMOTIONS:
        return True
    decimals = [each.removeprefix("decimal(").removesuffix(")").split(",") for each in (one, other)]
    return all(len(each) == 2 for each in decimals) and (
        decimals[0][1] == decimals[1][1] and int(decimals[0][0]) <= int(decimals[1][0])
    )


# --- name mapping -----------------------------------------------------------------------------------------------------
# The mapping of names to field ids, for reading files without field ids (`add_files`). A table has one mapping for
# all its files; an archive has files that were read with different ones. No store, no Spark. Source: format/spec.md,
# "Name Mapping Serialization", "Column Projection".

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
