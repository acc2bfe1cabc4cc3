"""Partition values as people write them, in Iceberg's human-readable form: `2024-03-15` for a day, `null` for none.
Belongs here: stored values to texts, and which manifests cannot have a text. Does not belong here: reading manifests.
"""

from __future__ import annotations

import base64
import json
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.metadata.types import ManifestListEntry, PartitionSummary, TableMetadata
from artemis_lifecycle.metadata.values import stored_decimal

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

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


@lru_cache(maxsize=1024)
def _fields(spec: str, schema: str) -> tuple[_Field, ...]:
    """Return the fields of a partition spec. Both are JSON; the spec is an object, or only its list of fields."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.schema import Schema

    parsed, columns = json.loads(spec), Schema.model_validate_json(schema)
    found = []
    for each in parsed["fields"] if isinstance(parsed, dict) else parsed:
        try:
            field = PartitionField.model_validate(each)
        except ValidationError as error:
            raise ValueError(f"a partition field cannot be read: {error}") from error
        source = columns.find_type(field.source_id)
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
