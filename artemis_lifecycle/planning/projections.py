"""Predicates on columns as predicates on partition fields: pyiceberg's projections, and where Iceberg's Java planner
projects differently.

The differences (Iceberg's ProjectionUtil, Truncate, TruncateUtil):

- Before 0.11 writers put negative years, months, days of timestamps and hours one too high. Java's projections cover
  both values.
- Java adds one to a literal, and truncates, in 32 or 64 bits, so the smallest and largest values wrap around.
- A partition field is optional even if its column is required.
- Beyond the years 1 to 9999, which Python's dates cannot have, the transform is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from artemis_lifecycle.planning.predicates import Leaf, leaf_of, pyiceberg_expressions

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType


@dataclass(frozen=True)
class PartitionColumn:
    """One field of a partition spec: its position in the spec, its id, the type of its values."""

    position: int
    field_id: int
    kind: IcebergType
    field: PartitionField
    name: str


Projection: TypeAlias = Leaf | bool
"""A comparison of a partition field, or its value if that is the same for all partitions."""


def partition_columns(spec: PartitionSpec, schema: Schema) -> tuple[PartitionColumn, ...]:
    """Return the fields of a spec, bound to a schema."""
    from pyiceberg.types import UnknownType

    found = []
    for position, field in enumerate(spec.fields):
        name = schema.find_column_name(field.source_id)
        source = UnknownType() if name is None else schema.find_type(field.source_id)
        kind = source if isinstance(source, UnknownType) else field.transform.result_type(source)
        found.append(PartitionColumn(position, field.field_id, kind, field, field.name))
    return tuple(found)


def projections(
    leaf: Leaf, columns: Sequence[PartitionColumn], *, strict: bool
) -> list[tuple[PartitionColumn, Projection]]:
    """Return what the leaf implies for each partition field of its column (inclusive), or what implies the leaf
    (strict), in the spec's order; fields without a projection are left out."""
    own = [each for each in columns if each.field.source_id == leaf.field_id]
    found = [(each, _projected(leaf, each, strict=strict)) for each in own]
    return [(each, projection) for each, projection in found if projection is not None]


def _projected(leaf: Leaf, column: PartitionColumn, *, strict: bool) -> Projection | None:
    from pyiceberg.transforms import TimeTransform, TruncateTransform
    from pyiceberg.types import DateType

    transform: Any = column.field.transform
    bound: Any = leaf.bound
    truncates = isinstance(transform, TruncateTransform | TimeTransform)
    if truncates:
        bound = _wrapped_literal(leaf, bound, strict)
    try:
        found = (transform.strict_project if strict else transform.project)(column.name, bound)
    except (OverflowError, ValueError):
        if not isinstance(transform, TimeTransform):
            raise
        found = _beyond_years(transform, column, bound, strict)
    if found is None:
        return None
    if isinstance(transform, TimeTransform) and not (isinstance(leaf.kind, DateType) and str(transform) == "day"):
        found = _with_old_writers(found, strict)
    return None if found is None else _bound_to(found, column, str(leaf.kind) if truncates else "")


def _bound_to(unbound: Any, column: PartitionColumn, source: str) -> Projection:
    """Bind a projected comparison to its partition field."""
    ex = pyiceberg_expressions()
    from pyiceberg.schema import Accessor
    from pyiceberg.types import NestedField

    term = ex.BoundReference(
        NestedField(column.field_id, column.name, column.kind, required=False), Accessor(column.position)
    )
    if isinstance(unbound, ex.UnaryPredicate):
        found = unbound.as_bound(term)
    elif isinstance(unbound, ex.SetPredicate):
        found = unbound.as_bound(term, {_converted(each, column.kind, source) for each in unbound.literals})
    else:
        found = unbound.as_bound(term, _converted(unbound.literal, column.kind, source))
    if isinstance(found, ex.AlwaysTrue | ex.AlwaysFalse):
        return isinstance(found, ex.AlwaysTrue)
    return leaf_of(found)


def _converted(literal: Any, kind: IcebergType, source: str) -> Any:
    from pyiceberg.expressions.literals import LongLiteral

    if isinstance(literal.value, int) and not isinstance(literal.value, bool):
        bits = {"int": 32, "long": 64}.get(source)
        if bits is not None:
            # As Java's arithmetic wraps around.
            half = 1 << (bits - 1)
            return LongLiteral((literal.value + half) % (2 * half) - half)
        return literal
    return literal.to(kind)


def _wrapped_literal(leaf: Leaf, bound: Any, strict: bool) -> Any:
    """Return the comparison whose boundary is next to the literal, where that wraps around."""
    ex = pyiceberg_expressions()
    from pyiceberg.expressions.literals import LongLiteral

    limits = {"int": 31, "date": 31, "long": 63, "timestamp": 63, "timestamptz": 63}.get(str(leaf.kind))
    if limits is None or not isinstance(bound, ex.BoundLiteralPredicate):
        return bound
    lowest, highest = -(1 << limits), (1 << limits) - 1
    value = bound.literal.value
    kind: Callable[[int], Any] = type(bound.literal) if not isinstance(bound.literal, LongLiteral) else LongLiteral
    # Inclusively, x < n is x <= n - 1; strictly, x <= n is x < n + 1.
    turned = {
        (False, "lt", lowest): (ex.BoundLessThanOrEqual, highest),
        (False, "gt", highest): (ex.BoundGreaterThanOrEqual, lowest),
        (True, "lt_eq", highest): (ex.BoundLessThan, lowest),
        (True, "gt_eq", lowest): (ex.BoundGreaterThan, highest),
    }.get((strict, leaf.op, value))
    return bound if turned is None else turned[0](bound.term, kind(turned[1]))


def _beyond_years(transform: Any, column: PartitionColumn, bound: Any, strict: bool) -> Any:
    """Project a date or time that Python's own dates cannot have."""
    ex = pyiceberg_expressions()
    from pyiceberg.expressions.literals import LongLiteral
    from pyiceberg.types import DateType

    unit = "D" if isinstance(bound.term.ref().field.field_type, DateType) else "us"
    coarse = str(transform)[0].upper()

    def moved(value: int, by: int) -> LongLiteral:
        fine = np.array([value + by], np.int64).view(f"datetime64[{unit}]")
        return LongLiteral(int(fine.astype(f"datetime64[{coarse}]").astype(np.int64)[0]))

    if isinstance(bound, ex.BoundSetPredicate):
        if isinstance(bound, ex.BoundNotIn) != strict:
            return None
        return bound.as_unbound(column.name, {moved(each.value, 0) for each in bound.literals})
    if strict:
        made = {
            ex.BoundLessThan: (ex.LessThan, 0),
            ex.BoundLessThanOrEqual: (ex.LessThan, 1),
            ex.BoundGreaterThan: (ex.GreaterThan, 0),
            ex.BoundGreaterThanOrEqual: (ex.GreaterThan, -1),
            ex.BoundNotEqualTo: (ex.NotEqualTo, 0),
        }
    else:
        made = {
            ex.BoundLessThan: (ex.LessThanOrEqual, -1),
            ex.BoundLessThanOrEqual: (ex.LessThanOrEqual, 0),
            ex.BoundGreaterThan: (ex.GreaterThanOrEqual, 1),
            ex.BoundGreaterThanOrEqual: (ex.GreaterThanOrEqual, 0),
            ex.BoundEqualTo: (ex.EqualTo, 0),
        }
    if type(bound) not in made:
        return None
    kind, by = made[type(bound)]
    return kind(column.name, moved(bound.literal.value, by))


def _with_old_writers(projected: Any, strict: bool) -> Any:
    """Widen an inclusive projection, or narrow a strict one, for values that an old writer put one too high."""
    ex = pyiceberg_expressions()

    term = projected.term
    if isinstance(projected, ex.UnaryPredicate):
        return projected
    if isinstance(projected, ex.SetPredicate):
        values = {each.value for each in projected.literals}
        if isinstance(projected, ex.NotIn) != strict:
            return None
        return type(projected)(term, values | {value + 1 for value in values if value < 0})
    value = projected.literal.value
    if strict:
        if isinstance(projected, ex.EqualTo):
            return None
        if isinstance(projected, ex.NotEqualTo):
            return ex.NotIn(term, {value, value + 1}) if value < 0 else projected
        above = isinstance(projected, ex.GreaterThan | ex.GreaterThanOrEqual)
        return type(projected)(term, value + 1) if above and value <= 0 else projected
    if isinstance(projected, ex.NotEqualTo):
        return None
    if isinstance(projected, ex.EqualTo):
        return ex.In(term, {value, value + 1}) if value < 0 else projected
    below = isinstance(projected, ex.LessThan | ex.LessThanOrEqual)
    return type(projected)(term, value + 1) if below and value < 0 else projected
