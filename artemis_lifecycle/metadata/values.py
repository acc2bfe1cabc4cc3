"""Statistics of data files and manifests with names, and with bounds as Python values: what pruning compares. For
people and single files; planning reads the same by `statistics`.

Source: format/spec.md, "Appendix D: Single-value serialization".
"""

from __future__ import annotations

import base64
import json
import struct
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.metadata.manifests import DataFile
from artemis_lifecycle.metadata.types import ManifestListEntry, PartitionSummary, TableMetadata
from artemis_lifecycle.metadata.unreadable import unreadable

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType


# --- partitions -------------------------------------------------------------------------------------------------------
# Partition values as people write them, in Iceberg's human-readable form: `2024-03-15` for a day, `null` for none.

Partition = Mapping[str, str]
"""Texts of values by the name of the partition field."""


def parse_partition(given: Mapping[str, object] | str) -> dict[str, str]:
    """Return a partition given as a mapping, or as a text such as `day=2024-03-15/region=eu`. Raises BadInput."""
    if isinstance(given, str):
        parts = [part.partition("=") for part in given.split("/") if part]
        if not parts or not all(name and equals for name, equals, _ in parts):
            raise BadInput(f"{given!r} is not a partition", hint="use a form such as day=2024-03-15")
        return {name: value for name, _, value in parts}
    return {str(name): _given(value) for name, value in given.items()}


def _given(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | datetime) else str(value)


class _Field(NamedTuple):
    name: str
    text: Callable[[Any], str]
    kind: str
    bound: Callable[[bytes], Any]


def fields_of(kind: Any) -> Iterator[tuple[int, Any, Any]]:
    """Yield the id, type and initial default (None without one) of each field of a schema or a type (JSON)."""
    if not isinstance(kind, dict):
        return
    for each in kind.get("fields") or ():
        yield each["id"], each["type"], each.get("initial-default")
        yield from fields_of(each["type"])
    for id_key, type_key in (("element-id", "element"), ("key-id", "key"), ("value-id", "value")):
        if id_key in kind:
            yield kind[id_key], kind[type_key], None
            yield from fields_of(kind[type_key])


@lru_cache(maxsize=1024)
def _fields(spec: str, schema: str) -> tuple[_Field, ...]:
    """Return the fields of a partition spec. Both are JSON; the spec is an object, or only its list of fields."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.types import NestedField

    # pyiceberg does not know every type that another column may have.
    parsed, types = json.loads(spec), {number: kind for number, kind, _ in fields_of(json.loads(schema))}
    found = []
    for each in parsed["fields"] if isinstance(parsed, dict) else parsed:
        try:
            field = PartitionField.model_validate(each)
            if field.source_id not in types:
                raise ValueError(f"the schema has no column {field.source_id}, by which the table is partitioned")
            column = {"id": field.source_id, "name": field.name, "required": False, "type": types[field.source_id]}
            source = NestedField.model_validate(column).field_type
        except ValidationError as error:
            raise ValueError(f"a partition field cannot be read: {error}") from error
        result = field.transform.result_type(source)
        # Times have the form of their source; what a transform makes of them has its own.
        text = _texts(field.transform.to_human_string, result)
        kind = str(result) if str(field.transform) == "identity" else str(field.transform)
        found.append(_Field(field.name, text, kind, partial(from_bytes, result)))
    return tuple(found)


def _texts(human: Callable[[Any, Any], str], kind: IcebergType) -> Callable[[Any], str]:
    from pyiceberg.types import DecimalType, UUIDType

    @lru_cache(maxsize=65_536)
    def text(stored: Any) -> str:
        if isinstance(kind, DecimalType) and isinstance(stored, bytes):
            stored = stored_decimal(stored, kind.scale)
        elif isinstance(kind, UUIDType) and isinstance(stored, bytes):
            stored = uuid.UUID(bytes=stored)
        return human(kind, stored)

    return text


def partition_of(values: tuple[Any, ...], spec: str, schema: str) -> dict[str, str]:
    """Return the partition of an entry from its stored values, and the spec and schema of its manifest."""
    return {field.name: field.text(value) for field, value in zip(_fields(spec, schema), values, strict=True)}


def matches(partition: Partition, wanted: Partition) -> bool:
    """Return True if the partition has each wanted value."""
    return all(partition.get(name) == text for name, text in wanted.items())


def may_have(entry: ManifestListEntry, metadata: TableMetadata, wanted: Partition) -> bool:
    """Return False if the manifest list's summary shows that the manifest has no file of the partition."""
    spec, schema = metadata.partition_specs.get(entry.partition_spec_id), metadata.schemas[metadata.current_schema_id]
    if spec is None:
        return True
    try:
        fields = _fields(spec, schema)
    except ValueError:
        return True  # The spec's source column is no longer in the schema.
    if not set(wanted) <= {field.name for field in fields}:
        return False
    pairs = zip(fields, entry.partitions, strict=False)
    return all(_may_be(field, summary, wanted[field.name]) for field, summary in pairs if field.name in wanted)


def mixed_manifests(entries: Iterable[ManifestListEntry], metadata: TableMetadata) -> int:
    """Return how many data manifests of several partitions a query of one value of the first partition field reads, on
    average over the manifests of the current spec, rounded up. Sorted by partition they are at most two: those at the
    ends of the value's range. 0 for a table without partitions."""
    try:
        fields = _fields(
            metadata.partition_specs[metadata.default_spec_id], metadata.schemas[metadata.current_schema_id]
        )
        ranges = [
            (fields[0].bound(each.partitions[0].lower_bound), fields[0].bound(each.partitions[0].upper_bound))
            for each in entries
            if fields and each.content == 0 and each.partition_spec_id == metadata.default_spec_id and each.partitions
            if each.partitions[0].lower_bound is not None and each.partitions[0].upper_bound is not None
        ]
    except (ValueError, IndexError):
        return 0  # The spec's source column is no longer in the schema, or a bound has another type.
    mixed = [each for each in ranges if each[0] != each[1]]
    lowest, highest = (sorted(side) for side in zip(*mixed, strict=True)) if mixed else ([], [])
    read = sum(bisect_right(lowest, value) - bisect_left(highest, value) for value, _ in ranges)
    return -(-read // len(ranges)) if ranges else 0


_PARSED: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "long": int,
    "string": str,
    "date": lambda text: date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal(),
    "day": lambda text: date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal(),
    "month": lambda text: (int(text[:4]) - 1970) * 12 + int(text[5:]) - 1,
    "year": lambda text: int(text) - 1970,
}
"""The values of texts, where their order is that of the bounds."""


def _may_be(field: _Field, summary: PartitionSummary, wanted: str) -> bool:
    if wanted == "null" and (summary.contains_null or field.kind != "string"):
        return summary.contains_null
    parse = int if field.kind.startswith("bucket[") else _PARSED.get(field.kind)
    if parse is None or summary.lower_bound is None or summary.upper_bound is None:
        return True
    try:
        value, bounds = parse(wanted), (summary.lower_bound, summary.upper_bound)
        lower, upper = (field.bound(each) for each in bounds)
    except (ValueError, IndexError):
        return True
    return bool(lower <= value <= upper)


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """One column's statistics in one file. `size_in_bytes` and counts are None if the writer recorded none.

    `lower` and `upper` are Python values (a date, a datetime, a Decimal, a UUID); None if not recorded. Those of texts
    and bytes may be truncated: no value is less than `lower` or greater than `upper`, but none need be equal.
    """

    field_id: int
    name: str
    type: str
    size_in_bytes: int | None
    value_count: int | None
    null_count: int | None
    nan_count: int | None
    lower: object
    upper: object


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The values of one partition field over all files of a manifest. `contains_nan` is None if not recorded; a bound
    is None if no file has a value. Bounds of `year`, `month` and `hour` count from 1970, as the spec stores them."""

    name: str
    transform: str
    contains_null: bool
    contains_nan: bool | None
    lower: object
    upper: object


def column_statistics(metadata: TableMetadata, file: DataFile) -> tuple[ColumnStatistics, ...]:
    """Return the statistics of each column that the file has any of, by field id. Raises UnreadableMetadata for a bound
    that its column's type cannot have."""
    recorded = (file.column_sizes, file.value_counts, file.null_value_counts, file.nan_value_counts)
    ids = sorted(set().union(*recorded, file.lower_bounds, file.upper_bounds))
    schemas = [table_schema(metadata, each) for each in _newest_first(metadata)]
    return tuple(_column(file, each, *named) for each in ids if (named := _named(schemas, each)) is not None)


def partition_ranges(metadata: TableMetadata, entry: ManifestListEntry) -> tuple[PartitionRange, ...]:
    """Return the partition summaries of a manifest, in the order of its spec's fields; none if the manifest list has
    none. Raises UnreadableMetadata."""
    schemas = [table_schema(metadata, each) for each in _newest_first(metadata)]
    fields = partition_spec(metadata, entry.partition_spec_id).fields
    found = []
    for field, summary in zip(fields, entry.partitions, strict=False):
        source = _named(schemas, field.source_id)
        # A spec's source column may be in no schema any more; its values are bytes then.
        kind = None if source is None else field.transform.result_type(source[1])
        lower, upper = (
            bound if kind is None or bound is None else decoded(kind, bound, entry.manifest_path)
            for bound in (summary.lower_bound, summary.upper_bound)
        )
        null, nan = summary.contains_null, summary.contains_nan
        found.append(PartitionRange(field.name, str(field.transform), null, nan, lower, upper))
    return tuple(found)


def partition_spec(metadata: TableMetadata, spec_id: int) -> PartitionSpec:
    """Return a partition spec as pyiceberg's. Raises UnreadableMetadata."""
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.partitioning import PartitionSpec

    try:
        spec = PartitionSpec.model_validate_json(metadata.partition_specs[spec_id])
        # Iceberg refuses them; pyiceberg divides by them.
        if any(str(field.transform) in ("bucket[0]", "truncate[0]") for field in spec.fields):
            raise ValueError("a transform divides by zero")
    except (KeyError, ValueError, ValidationError) as error:
        raise unreadable(f"Partition spec {spec_id} cannot be read", metadata.metadata_location) from error
    return spec


def table_schema(metadata: TableMetadata, schema_id: int) -> Schema:
    """Return one of the table's schemas as pyiceberg's. Raises UnreadableMetadata."""
    from pyiceberg.schema import Schema

    text = metadata.schemas.get(schema_id)
    if text is None:
        raise unreadable(f"The metadata has no schema {schema_id}", metadata.metadata_location)
    try:
        return Schema.model_validate_json(text)
    except ValueError as error:
        raise unreadable(f"Schema {schema_id} cannot be read", metadata.metadata_location) from error


def decoded(kind: Any, bound: bytes, path: str) -> object:
    """Return a value of pyiceberg's primitive type `kind` from its stored form. Raises UnreadableMetadata."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import DateType, TimestampType, TimestamptzType, UUIDType

    try:
        if isinstance(kind, UUIDType):
            return uuid.UUID(bytes=bound)
        value: Any = from_bytes(kind, bound)
    except (ValueError, TypeError, struct.error) as error:
        raise unreadable(f"A bound is not a value of type {kind}", path) from error
    try:
        if isinstance(kind, DateType):
            return date(1970, 1, 1) + timedelta(days=value)
        if isinstance(kind, TimestampType | TimestamptzType):
            zone = UTC if isinstance(kind, TimestamptzType) else None
            return datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=value)
    except OverflowError:
        pass  # Iceberg's times reach further than Python's.
    return value


def stored_decimal(stored: bytes, scale: int) -> Decimal:
    """Return a decimal of a partition. Exact: arithmetic would round to 28 digits."""
    return Decimal(f"{int.from_bytes(stored, 'big', signed=True)}E-{scale}")


def _column(file: DataFile, field_id: int, name: str, kind: IcebergType) -> ColumnStatistics:
    lower, upper = (
        None if bound is None else decoded(kind, bound, file.path)
        for bound in (file.lower_bounds.get(field_id), file.upper_bounds.get(field_id))
    )
    return ColumnStatistics(
        field_id,
        name,
        str(kind),
        file.column_sizes.get(field_id),
        file.value_counts.get(field_id),
        file.null_value_counts.get(field_id),
        file.nan_value_counts.get(field_id),
        lower,
        upper,
    )


def _newest_first(metadata: TableMetadata) -> Iterator[int]:
    """Yield the ids of the schemas: the current one, then the others from the newest."""
    yield metadata.current_schema_id
    yield from sorted(metadata.schemas.keys() - {metadata.current_schema_id}, reverse=True)


def _named(schemas: list[Schema], field_id: int) -> tuple[str, IcebergType] | None:
    """Return the name and the type of a column, by the newest schema that has it."""
    for schema in schemas:
        name = schema.find_column_name(field_id)
        if name is not None:
            return name, schema.find_field(field_id).field_type
    return None
