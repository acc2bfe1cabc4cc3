"""Statistics of data files and manifests with names, and with bounds as Python values: what pruning compares. For
people and single files; planning reads the same by `statistics`.

Source: format/spec.md, "Appendix D: Single-value serialization".
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.metadata.data_files import DataFile
from artemis_lifecycle.metadata.types import ManifestListEntry, TableMetadata
from artemis_lifecycle.metadata.unreadable import unreadable

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType


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
