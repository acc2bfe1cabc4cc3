"""What a user may write as a predicate, and what is refused before anything is read."""

from __future__ import annotations

import random
import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysFalse, BooleanExpression, EqualTo, GreaterThan, In, IsNull
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.planning.predicates import (
    bind_predicate,
    compiled,
    key_of_bytes,
    literal_key,
    parse_predicate,
    text_of,
    value_matches,
)
from artemis_lifecycle_tests.planning.random_tables import (
    TYPES,
    Column,
    hexed,
    iceberg_type,
    order,
    predicate,
    value_of,
)

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "price", DecimalType(9, 2), required=False),
    NestedField(4, "ratio", DoubleType(), required=False),
    NestedField(5, "place", StructType(NestedField(6, "city", StringType(), required=True)), required=False),
    NestedField(7, "count", iceberg_type("int"), required=False),
    NestedField(8, "tags", ListType(9, StringType(), element_required=False), required=False),
    NestedField(10, "sizes", MapType(11, StringType(), 12, LongType()), required=False),
    NestedField(13, "at", iceberg_type("timestamp_ns"), required=False),
)
NAMES = ("c", "c.1", 'q"1', "k'1", "É1", "1c", "a b", "not", "true", "s c", "is", "in.null", "x$")


def bound(predicate: str | BooleanExpression) -> BooleanExpression:
    return bind_predicate(parse_predicate(predicate), SCHEMA, "ns.t")


@pytest.mark.parametrize(
    ("predicate", "message"),
    [
        ("regiom = 'eu'", r"no column 'regiom'.*did you mean region\?"),
        ("id >", "cannot be parsed"),
        ("region like 'a%b'", "cannot be parsed"),
        ("id = 1.5", "not a value of id"),
        ("price = 1.005", "not a value of price"),
        ("id is nan", "has no NaN"),
        ("id like 'a%'", "needs a string"),
        ("tags.element = 'a'", "tags.element is inside a list or map"),
        ("sizes.value is null", "sizes.value is inside a list or map"),
        ("tags = 'a'", "tags is a list, which cannot be compared with a value.*tags is null"),
        ("place in ('a', 'b')", "place is a struct, which cannot be compared"),
        ("at > '2024-03-15T06:00:00'", "at is a timestamp_ns, which cannot be compared"),
        ("at = 5", "at is a timestamp_ns, which cannot be compared"),
        ("region > 5", "not a value of region"),
        (GreaterThan("price", Decimal(10) ** 40), "not a value of price"),
    ],
)
def test_a_predicate_that_cannot_be_used_is_refused_with_what_to_do(
    predicate: str | BooleanExpression, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        bound(predicate)


def test_values_beyond_a_type_are_equal_to_none_of_its_values() -> None:
    assert bound(EqualTo("count", 2**40)) == AlwaysFalse()
    assert text_of(bound(In("count", {5, 2**40, 2**41}))) == "count = 5"


def test_a_required_field_of_an_optional_struct_may_be_null() -> None:
    assert text_of(bound(IsNull("place.city"))) == "place.city is null"
    assert text_of(bound(IsNull("tags"))) == "tags is null"
    assert bound(IsNull("id")) == AlwaysFalse()


@given(st.integers(0, 2**32))
def test_the_text_of_a_predicate_is_the_same_predicate(seed: int) -> None:
    dice = random.Random(seed)
    # pyiceberg's parser has no binary literals and no exponents.
    kinds = [each for each in TYPES if each not in ("binary", "fixed[3]", "float", "double", "uuid")]
    names = dice.sample(NAMES, len(kinds))
    columns = [Column(place, f"s.{names[place]}", kind) for place, kind in enumerate(kinds)]
    fields = [NestedField(each.id, names[each.id], iceberg_type(each.kind), required=False) for each in columns]
    schema = Schema(NestedField(100, "s", StructType(*fields), required=False))
    made = predicate(dice, columns).python
    first = bind_predicate(made, schema, "ns.t")
    text = text_of(first)
    second = bind_predicate(parse_predicate(text), schema, "ns.t")
    assert text_of(second) == text


@given(st.sampled_from(TYPES), st.integers(0, 2**32))
def test_keys_have_the_order_of_values(kind: str, seed: int) -> None:
    dice = random.Random(seed)
    values = [value_of(dice, kind) for _ in range(6)]
    if kind == "float":
        values = [struct.unpack("<f", struct.pack("<f", each))[0] for each in values]
    typed = iceberg_type(kind)
    keys = [key_of_bytes(typed)(bytes.fromhex(hexed(kind, each))) for each in values]
    for right in values:
        key = literal_key(typed, right.bytes if kind == "uuid" else right)
        assert [each < key for each in keys] == [order(kind, left) < order(kind, right) for left in values]
        assert [each == key for each in keys] == [order(kind, left) == order(kind, right) for left in values]


def test_null_partition_values_are_less_than_any_literal_as_in_iceberg() -> None:
    matches = compiled(bound("id < 0"), lambda leaf: lambda value: value_matches(leaf, value))
    assert [matches(each) for each in (None, 1, -1)] == [True, False, True]
