"""Predicates: parsed and bound by pyiceberg, whose comparisons become leaves that compare keys. Belongs here: what a
user may write, and where pyiceberg 0.12 binds differently from Iceberg's Java planner. Not here: evaluation.

The differences, each found by tests against the Java planner or by reading both:

- Values outside an int or long are dropped from IN and NOT IN; pyiceberg keeps the type's limit in their place.
- A decimal literal gets the column's scale where that loses nothing, and a float literal is one of 32 bits.
- A fraction is no value of an integer column; pyiceberg rounds it, which would drop matching rows.
- IS NULL of a required field in an optional struct is not always false.
- A string is hex for binary and fixed. IS NAN needs a float, and LIKE needs a string.
"""

from __future__ import annotations

import difflib
import operator
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.metadata.unreadable import unreadable

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

    from artemis_lifecycle.metadata.types import PartitionSummary

    pass
    from pyiceberg.expressions import BooleanExpression, BoundPredicate
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField


# --- evaluation -------------------------------------------------------------------------------------------------------
# What statistics and values say of one comparison: a manifest's partition summaries, an entry's partition values, a
# column's counts and bounds.
#
# A key is a number where the type has one, else bytes or a tuple:
#
# - Booleans, integers, dates and times: the number. Promoted types are stored in 4 bytes and compare as 8.
# - float, double: a number in their total order (−0.0 before 0.0, every NaN after infinity), as in Double.compare.
# - string, binary, fixed: the bytes, unsigned. UUIDs: two signed halves, as java.util.UUID compares them.
# - decimal: the unscaled number.
#
# Source: format/spec.md, "Appendix D: Single-value serialization"; Iceberg's Conversions, Comparators,
# ManifestEvaluator, Evaluator, InclusiveMetricsEvaluator, ParquetMetricsRowGroupFilter.

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
        return _checked(kind, _decimal_bound)
    formats = {4: "<f", 8: "<d"} if is_float(kind) else {4: "<i", 8: "<q"}
    widest = 4 if str(kind) in ("int", "date", "float") else 8

    def number(stored: bytes) -> Key:
        size = widest if len(stored) >= widest else 4
        (value,) = struct.unpack(formats[size], stored[:size])
        return _float_key(value) if isinstance(value, float) else value

    return _checked(kind, number)


def _decimal_bound(stored: bytes) -> int:
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


T = TypeVar("T")

_HINT = "use Iceberg's row filters, such as: day >= '2024-03-15' and region in ('eu', 'us') and name like 'a%'"
_MOST_DIGITS = 38
_WORD = re.compile("[A-Za-z_][A-Za-z0-9_$]*")


@dataclass(frozen=True)
class Leaf:
    """One bound comparison of a column (or partition field) with literals. `op` is one of is_null, not_null, is_nan,
    not_nan, lt, lt_eq, gt, gt_eq, eq, not_eq, in, not_in, starts_with, not_starts_with; `key` is the first of `keys`.
    """

    op: str
    field_id: int
    kind: IcebergType
    keys: tuple[Key, ...]
    key: Key
    is_float: bool
    bound: BoundPredicate

    def is_nan(self, key: Key) -> bool:
        return self.is_float and key == NAN


def pyiceberg_expressions() -> Any:
    """The module `pyiceberg.expressions`. Its constructors return other classes than their own, which types cannot
    follow."""
    from pyiceberg import expressions

    return expressions


def parse_predicate(predicate: str | BooleanExpression) -> BooleanExpression:
    """Return a row filter given as text, or as pyiceberg's expression. Raises BadInput."""
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.expressions.parser import parse
    from pyparsing import ParseBaseException

    if isinstance(predicate, BooleanExpression):
        return predicate
    try:
        found = parse(predicate)
    except ParseBaseException as error:
        near = predicate[error.loc : error.loc + 20] or "its end"
        raise BadInput(f"The predicate cannot be parsed at {near!r}: {predicate!r:.200}", hint=_HINT) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput(f"The predicate cannot be parsed: {error!s:.200}", hint=_HINT) from error
    if not isinstance(found, BooleanExpression):
        raise BadInput(f"The predicate is not a condition: {predicate!r:.200}", hint=_HINT)
    return found


def bind_predicate(
    predicate: BooleanExpression, schema: Schema, table: str, *, case_sensitive: bool = True
) -> BooleanExpression:
    """Bind a predicate to the table's schema. Raises BadInput for unknown columns, and for literals that their column
    cannot have."""
    try:
        found: BooleanExpression = _map(predicate, lambda each: _bound(each, schema, table, case_sensitive))
        return found
    except RecursionError as error:
        raise BadInput("The predicate is nested too deeply", table=table) from error


def without_not(bound: BooleanExpression) -> BooleanExpression:
    """Return a bound expression with its negations pushed down to the comparisons."""
    from pyiceberg.expressions.visitors import rewrite_not

    return rewrite_not(bound)


def leaf_of(bound: BoundPredicate) -> Leaf:
    """Return one bound comparison as a leaf."""
    ex = pyiceberg_expressions()

    field = bound.term.ref().field
    keys: tuple[Key, ...] = ()
    if isinstance(bound, ex.BoundSetPredicate):
        keys = tuple(sorted({literal_key(field.field_type, each.value) for each in bound.literals}))
    elif isinstance(bound, ex.BoundLiteralPredicate):
        keys = (literal_key(field.field_type, bound.literal.value),)
    (op, _), key = _ops()[type(bound)], keys[0] if keys else None
    return Leaf(op, field.field_id, field.field_type, keys, key, is_float(field.field_type), bound)


def compiled(bound: Any, test: Callable[[Leaf], Callable[[T], bool]]) -> Callable[[T], bool]:
    """Return a bound expression as a function, from the functions of its leaves."""
    ex = pyiceberg_expressions()

    if isinstance(bound, ex.AlwaysTrue | ex.AlwaysFalse):
        value = isinstance(bound, ex.AlwaysTrue)
        return lambda _: value
    if isinstance(bound, ex.Not):
        child = compiled(bound.child, test)
        return lambda each: not child(each)
    if isinstance(bound, ex.And | ex.Or):
        left, right = compiled(bound.left, test), compiled(bound.right, test)
        if isinstance(bound, ex.And):
            return lambda each: left(each) and right(each)
        return lambda each: left(each) or right(each)
    return test(leaf_of(bound))


def with_decided(bound: Any, decided: Callable[[BoundPredicate], bool | None]) -> Any:
    """Return a bound expression without the comparisons that are decided, simplified."""
    ex = pyiceberg_expressions()

    def remaining(each: Any) -> Any:
        found = decided(each)
        return each if found is None else ex.AlwaysTrue() if found else ex.AlwaysFalse()

    return _map(bound, remaining)


def text_of(bound: Any) -> str:
    """Return a bound expression as a row filter that can be parsed again."""
    ex = pyiceberg_expressions()

    if isinstance(bound, ex.AlwaysTrue | ex.AlwaysFalse):
        return str(isinstance(bound, ex.AlwaysTrue)).lower()
    if isinstance(bound, ex.Not):
        return f"not ({text_of(bound.child)})"
    if not isinstance(bound, ex.And | ex.Or):
        return _text(bound)
    word, inner = ("and", ex.Or) if isinstance(bound, ex.And) else ("or", ex.And)
    sides = (f"({text_of(each)})" if isinstance(each, inner) else text_of(each) for each in (bound.left, bound.right))
    return f" {word} ".join(sides)


def _map(node: Any, leaf: Callable[[Any], Any]) -> Any:
    ex = pyiceberg_expressions()

    if isinstance(node, ex.And):
        return ex.And(_map(node.left, leaf), _map(node.right, leaf))
    if isinstance(node, ex.Or):
        return ex.Or(_map(node.left, leaf), _map(node.right, leaf))
    if isinstance(node, ex.Not):
        return ex.Not(_map(node.child, leaf))
    if isinstance(node, ex.AlwaysTrue | ex.AlwaysFalse):
        return node
    return leaf(node)


def _bound(predicate: Any, schema: Schema, table: str, case_sensitive: bool) -> Any:
    ex = pyiceberg_expressions()
    from pyiceberg.expressions.literals import AboveMax, BelowMin
    from pyiceberg.types import DoubleType, FloatType, StringType

    if not isinstance(predicate, ex.UnboundPredicate):
        raise BadInput("The predicate is bound already", table=table, hint="pass an unbound expression, or text")
    name = predicate.term.name
    term = _term(name, schema, table, case_sensitive)
    kind = term.ref().field.field_type
    if isinstance(predicate, ex.UnaryPredicate):
        if isinstance(predicate, ex.IsNaN | ex.NotNaN) and not isinstance(kind, FloatType | DoubleType):
            raise BadInput(f"{name} is a {kind}, which has no NaN", table=table, hint="omit the condition")
        return predicate.as_bound(term)
    if not kind.is_primitive or isinstance(kind, _without_literals()):
        word = str(kind).partition("<")[0]
        raise BadInput(
            f"{name} is a {word}, which cannot be compared with a value",
            table=table,
            hint=f"{name} is null, and {name} is not null, are possible",
        )
    if isinstance(predicate, ex.SetPredicate):
        found = {_literal(each, kind, name, table) for each in predicate.literals}
        return predicate.as_bound(term, {each for each in found if not isinstance(each, AboveMax | BelowMin)})
    assert isinstance(predicate, ex.LiteralPredicate)
    if isinstance(predicate, ex.StartsWith | ex.NotStartsWith) and not isinstance(kind, StringType):
        raise BadInput(f"{name} is a {kind}, and LIKE needs a string", table=table, hint=_HINT)
    literal = _literal(predicate.literal, kind, name, table)
    if isinstance(literal, AboveMax | BelowMin):
        # What is beyond the type is not equal to any value, and above or below all of them.
        above = isinstance(literal, AboveMax)
        always = (ex.LessThan, ex.LessThanOrEqual) if above else (ex.GreaterThan, ex.GreaterThanOrEqual)
        return ex.AlwaysTrue() if isinstance(predicate, (*always, ex.NotEqualTo)) else ex.AlwaysFalse()
    return predicate.as_bound(term, literal)


def _without_literals() -> tuple[type[IcebergType], ...]:
    """The primitive types of which pyiceberg 0.12 has no literal."""
    from pyiceberg.types import GeographyType, GeometryType, TimestampNanoType, TimestamptzNanoType, UnknownType

    return (GeographyType, GeometryType, TimestampNanoType, TimestamptzNanoType, UnknownType)


def _term(name: str, schema: Schema, table: str, case_sensitive: bool) -> Any:
    ex = pyiceberg_expressions()
    try:
        field = schema.find_field(name, case_sensitive=case_sensitive)
    except ValueError as error:
        names = schema.column_names
        near = difflib.get_close_matches(name.lower(), [each.lower() for each in names], n=3)
        like = [each for each in names if each.lower() in near] or names[:10]
        raise BadInput(
            f"The table has no column {name!r}",
            table=table,
            hint=f"{'did you mean' if near else 'it has'} {', '.join(like)}{'?' if near else ''}",
        ) from error
    try:
        accessor = schema.accessor_for_field(field.field_id)
    except (ValueError, KeyError) as error:
        raise BadInput(f"{name} is inside a list or map, which has no bounds", table=table, hint=_HINT) from error
    required = field.required and _ancestors_required(schema, name, case_sensitive)
    whole = schema.find_column_name(field.field_id)
    return ex.BoundReference(field.model_copy(update={"required": required, "name": whole}), accessor)


def _ancestors_required(schema: Schema, name: str, case_sensitive: bool) -> bool:
    parts = name.split(".")
    for end in range(1, len(parts)):
        try:
            parent: NestedField = schema.find_field(".".join(parts[:end]), case_sensitive=case_sensitive)
        except ValueError:
            continue  # A dot in the column's own name.
        if not parent.required:
            return False
    return True


def _literal(literal: Any, kind: IcebergType, name: str, table: str) -> Any:
    from pyiceberg.expressions.literals import BinaryLiteral, DecimalLiteral, DoubleLiteral, StringLiteral
    from pyiceberg.types import BinaryType, DecimalType, FixedType, IntegerType, LongType

    value = literal.value
    try:
        if isinstance(kind, DecimalType) and isinstance(literal, DecimalLiteral | StringLiteral | DoubleLiteral):
            return DecimalLiteral(_decimal(value, kind.scale))
        if isinstance(kind, BinaryType | FixedType) and isinstance(literal, StringLiteral):
            return BinaryLiteral(bytes.fromhex(value)).to(kind)
        if isinstance(literal, DecimalLiteral) and isinstance(kind, IntegerType | LongType):
            if value != value.to_integral_value():
                raise ValueError("it has a fraction")
            return literal.to(kind)
        return literal.to(kind)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise BadInput(
            f"{str(value)!r:.60} is not a value of {name}, a {kind}", table=table, hint=f"compare {name} with a {kind}"
        ) from error


def _decimal(value: Any, scale: int) -> Decimal:
    """Return the value with `scale` digits behind the point. Raises ValueError if it has more."""
    exact, unit = Context(prec=2 * _MOST_DIGITS), Decimal((0, (1,), -scale))
    if isinstance(value, float):
        found = Decimal(repr(value)).quantize(unit, ROUND_HALF_UP, exact)
    else:
        given = Decimal(value)
        if not given.is_finite():
            raise ValueError("it is not finite")
        found = given.quantize(unit, context=exact)
        if found != given:
            raise ValueError(f"it has more than {scale} digits behind the point")
    if len(found.as_tuple().digits) > _MOST_DIGITS:
        raise ValueError(f"it has more than {_MOST_DIGITS} digits")
    return found


def _ops() -> dict[type, tuple[str, str]]:
    """The name of each comparison, and its words in a row filter."""
    ex = pyiceberg_expressions()

    return {
        ex.BoundIsNull: ("is_null", "is null"),
        ex.BoundNotNull: ("not_null", "is not null"),
        ex.BoundIsNaN: ("is_nan", "is nan"),
        ex.BoundNotNaN: ("not_nan", "is not nan"),
        ex.BoundLessThan: ("lt", "<"),
        ex.BoundLessThanOrEqual: ("lt_eq", "<="),
        ex.BoundGreaterThan: ("gt", ">"),
        ex.BoundGreaterThanOrEqual: ("gt_eq", ">="),
        ex.BoundEqualTo: ("eq", "="),
        ex.BoundNotEqualTo: ("not_eq", "!="),
        ex.BoundIn: ("in", "in"),
        ex.BoundNotIn: ("not_in", "not in"),
        ex.BoundStartsWith: ("starts_with", "like"),
        ex.BoundNotStartsWith: ("not_starts_with", "not like"),
    }


def _text(bound: Any) -> str:
    from pyiceberg.expressions import BoundLiteralPredicate, BoundSetPredicate

    op, word = _ops()[type(bound)]
    field = bound.term.ref().field
    # As pyiceberg parses a name: others than words are quoted, each part by itself, and a backslash stands for a quote.
    parts = (part if _WORD.fullmatch(part) else '"' + part.replace('"', "\\") + '"' for part in field.name.split("."))
    name = ".".join(parts)
    if isinstance(bound, BoundSetPredicate):
        values = sorted(bound.literals, key=lambda each: literal_key(field.field_type, each.value))
        inside = ", ".join(_literal_text(field.field_type, each.value) for each in values)
        return f"{name} {word} ({inside})"
    if not isinstance(bound, BoundLiteralPredicate):
        return f"{name} {word}"
    value = bound.literal.value
    if op in ("starts_with", "not_starts_with"):
        value = value.replace("%", "\\%") + "%"
    return f"{name} {word} {_literal_text(field.field_type, value)}"


def _literal_text(kind: Any, value: Any) -> str:
    from pyiceberg.types import DateType, TimestampType, TimestamptzType, TimeType, UUIDType
    from pyiceberg.utils import datetime as times

    by_type: dict[Any, Any] = {
        DateType: times.to_human_day,
        TimeType: times.to_human_time,
        TimestampType: times.to_human_timestamp,
        TimestamptzType: times.to_human_timestamptz,
    }
    human = by_type.get(type(kind))
    if human is not None:
        try:
            return f"'{human(value)}'"
        except (OverflowError, ValueError):
            return str(value)
    if isinstance(kind, UUIDType):
        import uuid

        return f"'{uuid.UUID(bytes=value)}'"
    if isinstance(value, bytes):
        return f"'{value.hex()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower() if isinstance(value, bool) else str(value)
