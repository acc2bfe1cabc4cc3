"""What statistics and values say of one comparison: a manifest's partition summaries, an entry's partition values, a
column's counts and bounds. Belongs here: values as keys that compare as Iceberg's Java planner compares them, and what
each comparison says of them. Does not belong here: reading statistics.

A key is a number where the type has one, else bytes or a tuple:

- Booleans, integers, dates and times: the number. Promoted types are stored in 4 bytes and compare as 8.
- float, double: a number in their total order (−0.0 before 0.0, every NaN after infinity), as in Double.compare.
- string, binary, fixed: the bytes, unsigned. UUIDs: two signed halves, as java.util.UUID compares them.
- decimal: the unscaled number.

Source: format/spec.md, "Appendix D: Single-value serialization"; Iceberg's Conversions, Comparators, ManifestEvaluator,
Evaluator, InclusiveMetricsEvaluator, ParquetMetricsRowGroupFilter.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from artemis_lifecycle.metadata.unreadable import unreadable

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

    from artemis_lifecycle.metadata.types import PartitionSummary
    from artemis_lifecycle.planning.predicates import Leaf

Key: TypeAlias = Any
"""A number, bytes, or a tuple of numbers; keys of one type compare with each other. None is null, or not recorded."""

IN_LIMIT = 200
"""Iceberg's own limit: more values of an IN are not compared with bounds."""

_COMPARE: dict[str, Callable[[Key, Key], bool]] = {
    "lt": operator.lt,
    "lt_eq": operator.le,
    "gt": operator.gt,
    "gt_eq": operator.ge,
}
_DECIMAL_BYTES = 16
NAN = 0x7FF8000000000000
_POSITIVE = 0x7FFFFFFFFFFFFFFF


@lru_cache(maxsize=256)
def key_of_bytes(kind: IcebergType) -> Callable[[bytes], Key]:
    """Return what makes a key of a value in Iceberg's single-value serialization. It raises UnreadableMetadata for
    bytes that the type cannot have."""
    from pyiceberg.types import BinaryType, BooleanType, DecimalType, FixedType, StringType, UnknownType, UUIDType

    if isinstance(kind, StringType | BinaryType | FixedType | UnknownType):
        # Unknown: the partition field's column was dropped. Its values are equal or not.
        return bytes
    if isinstance(kind, BooleanType):
        return lambda stored: int(stored[:1] != b"\0")
    if isinstance(kind, UUIDType):
        return _checked(kind, lambda stored: struct.unpack(">qq", stored))
    if isinstance(kind, DecimalType):
        return _checked(kind, _decimal)
    formats = {4: "<f", 8: "<d"} if is_float(kind) else {4: "<i", 8: "<q"}
    widest = 4 if str(kind) in ("int", "date", "float") else 8

    def number(stored: bytes) -> Key:
        size = widest if len(stored) >= widest else 4
        (value,) = struct.unpack(formats[size], stored[:size])
        return _float_key(value) if isinstance(value, float) else value

    return _checked(kind, number)


def _decimal(stored: bytes) -> int:
    if not 0 < len(stored) <= _DECIMAL_BYTES:
        raise struct.error
    return int.from_bytes(stored, "big", signed=True)


def _checked(kind: IcebergType, decode: Callable[[bytes], Key]) -> Callable[[bytes], Key]:
    def decoded(stored: bytes) -> Key:
        try:
            return decode(stored)
        except struct.error as error:
            raise unreadable(f"A bound of a {kind} column has {len(stored)} bytes", "a manifest") from error

    return decoded


def literal_key(kind: IcebergType, value: Any) -> Key:
    """Return the key of a literal of that type, as pyiceberg has it."""
    from pyiceberg.types import DecimalType, DoubleType, FloatType, StringType, UUIDType

    if isinstance(kind, StringType):
        return str(value).encode("utf-8", "surrogatepass")
    if isinstance(kind, DecimalType):
        sign, digits, _ = value.as_tuple()
        found = int("".join(map(str, digits)) or "0")
        return -found if sign else found
    if isinstance(kind, UUIDType):
        return struct.unpack(">qq", value)
    if isinstance(kind, FloatType):
        return _float_key(float(np.float32(value)))
    if isinstance(kind, DoubleType):
        return _float_key(float(value))
    return bytes(value) if isinstance(value, bytes) else int(value)


def is_float(kind: IcebergType) -> bool:
    return str(kind) in ("float", "double")


def _float_key(value: float) -> int:
    if value != value:
        return NAN
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits if bits >= 0 else bits ^ _POSITIVE)


def summary_matches(leaf: Leaf, summary: PartitionSummary) -> bool:
    """Return True if the manifest may have an entry whose partition value matches the (projected) leaf."""
    lower, upper = (
        None if each is None else key_of_bytes(leaf.kind)(each) for each in (summary.lower_bound, summary.upper_bound)
    )
    all_null = summary.contains_null and lower is None and (not leaf.is_float or summary.contains_nan is False)
    match leaf.op:
        case "is_null":
            return summary.contains_null
        case "not_null":
            return not all_null
        case "is_nan":
            return summary.contains_nan is not False and not all_null
        case "not_nan":
            return summary.contains_nan is not True or summary.contains_null or lower is not None
        case "not_eq" | "not_in" | "not_starts_with":
            may_be_nan = summary.contains_nan is not False and leaf.is_float
            return not _all_excluded(leaf, lower, upper, summary.contains_null, may_be_nan)
    return lower is not None and (_beyond_limit(leaf) or _in_bounds(leaf, lower, upper))


@dataclass(frozen=True, slots=True)
class ColumnMetrics:
    """Counts and bounds of one column in one file; None is not recorded."""

    values: int | None
    nulls: int | None
    nans: int | None
    lower: Key
    upper: Key

    @property
    def nulls_only(self) -> bool:
        return self.nulls is not None and self.values == self.nulls


def metrics_match(leaf: Leaf, metrics: ColumnMetrics) -> bool:
    """Return True if the file may have a row that matches the leaf."""
    nulls_only = metrics.nulls_only
    nans_only = metrics.nans is not None and metrics.nans == metrics.values
    match leaf.op:
        case "is_null":
            return metrics.nulls != 0
        case "not_null":
            return not nulls_only
        case "is_nan":
            return not nulls_only and metrics.nans != 0
        case "not_nan":
            return not nans_only
        case "not_eq" | "not_in" | "not_starts_with":
            # Without a count of NaN, a float column may have some.
            some_nan = leaf.is_float and metrics.nans != 0
            return not _all_excluded(leaf, metrics.lower, metrics.upper, metrics.nulls != 0, some_nan)
        case "starts_with":
            return not nulls_only and _in_bounds(leaf, metrics.lower, metrics.upper)
    if nulls_only or nans_only:
        return False
    return _beyond_limit(leaf) or _in_bounds(leaf, metrics.lower, metrics.upper)


def footer_matches(leaf: Leaf, metrics: ColumnMetrics) -> bool:
    """Return True if the row group may have a row that matches the leaf, by the statistics of a Parquet footer, which
    have no NaN counts; Iceberg compares only where both bounds are known."""
    bounded = metrics.lower is not None and metrics.upper is not None
    match leaf.op:
        case "is_null":
            return metrics.nulls != 0
        case "not_null" | "is_nan":
            return not metrics.nulls_only
        case "not_nan" | "not_eq" | "not_in":
            return True
        case "not_starts_with":
            return not (bounded and _all_excluded(leaf, metrics.lower, metrics.upper, metrics.nulls != 0, False))
    if metrics.nulls_only:
        return False
    return _beyond_limit(leaf) or not bounded or _in_bounds(leaf, metrics.lower, metrics.upper)


def value_matches(leaf: Leaf, value: Key) -> bool:
    """Return True if the partition value matches the (projected) leaf. As in Iceberg's Evaluator, null is less than any
    value."""
    match leaf.op:
        case "is_null":
            return value is None
        case "not_null":
            return value is not None
        case "is_nan":
            return leaf.is_nan(value)
        case "not_nan":
            return not leaf.is_nan(value)
        case "eq":
            return bool(value == leaf.key)
        case "not_eq":
            return bool(value != leaf.key)
        case "in":
            return value in leaf.keys
        case "not_in":
            return value not in leaf.keys
        case "not_starts_with":
            return value is None or not value.startswith(leaf.key)
        case "lt" | "lt_eq" if value is None:
            return True
        case "starts_with":
            return value is not None and value.startswith(leaf.key)
    return value is not None and _COMPARE[leaf.op](value, leaf.key)


def _beyond_limit(leaf: Leaf) -> bool:
    return leaf.op == "in" and len(leaf.keys) > IN_LIMIT


def _in_bounds(leaf: Leaf, lower: Key, upper: Key) -> bool:
    """Return True if the bounds, as far as they are known, admit a value that matches. A NaN as lower bound says
    nothing: ORC's statistics have one where the first value is NaN."""
    match leaf.op:
        case "lt" | "lt_eq":
            return lower is None or leaf.is_nan(lower) or _COMPARE[leaf.op](lower, leaf.key)
        case "gt" | "gt_eq":
            return upper is None or _COMPARE[leaf.op](upper, leaf.key)
        case "eq":
            below = lower is None or leaf.is_nan(lower) or lower <= leaf.key
            return below and (upper is None or upper >= leaf.key)
        case "in":
            if lower is None or leaf.is_nan(lower):
                return True
            return any(lower <= key and (upper is None or upper >= key) for key in leaf.keys)
        case "starts_with":
            # Java compares the upper bound only if there is a lower one.
            if lower is None:
                return True
            above = lower > leaf.key and not lower.startswith(leaf.key)
            return not above and (upper is None or upper >= leaf.key)
    raise AssertionError(leaf.op)


def _all_excluded(leaf: Leaf, lower: Key, upper: Key, may_be_null: bool, may_be_nan: bool) -> bool:
    """Return True if every value is one that a negative comparison excludes."""
    if may_be_null or lower is None or upper is None:
        return False
    if leaf.op == "not_starts_with":
        return bool(lower.startswith(leaf.key) and upper.startswith(leaf.key))
    if may_be_nan or lower != upper or leaf.is_nan(lower):
        return False
    return lower in leaf.keys
