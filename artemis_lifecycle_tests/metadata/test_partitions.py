"""Partition values compare as people write them, and no manifest is skipped that may have the value."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.types import DateType, IntegerType, StringType

from artemis_lifecycle.errors import BadInput, UnreadableMetadata
from artemis_lifecycle.metadata.types import ManifestListEntry, PartitionSummary
from artemis_lifecycle.metadata.values import matches, may_have, parse_partition, partition_of, partition_spec
from artemis_lifecycle_tests.audit.test_ledger import _metadata

SCHEMA = json.dumps(
    {
        "type": "struct",
        "schema-id": 0,
        "fields": [
            {"id": 1, "name": "at", "required": False, "type": "timestamptz"},
            {"id": 2, "name": "region", "required": False, "type": "string"},
            {"id": 3, "name": "site", "required": False, "type": "int"},
        ],
    }
)
FIELDS = [("at_day", 1, "day"), ("region", 2, "identity"), ("site_bucket", 3, "bucket[8]"), ("at_hour", 1, "hour")]
SPEC = json.dumps(
    {
        "spec-id": 0,
        "fields": [
            {"name": name, "source-id": source, "field-id": 1000 + place, "transform": transform}
            for place, (name, source, transform) in enumerate(FIELDS)
        ],
    }
)
_values = st.tuples(
    st.none() | st.integers(0, 30_000),
    st.none() | st.sampled_from(["null", "eu", "us", "ü"]),
    st.none() | st.integers(0, 7),
    st.none() | st.integers(0, 500_000),
)


def _summary(values: list[object], kind: object) -> PartitionSummary:
    known = sorted(each for each in values if each is not None)  # type: ignore[type-var]
    ends = [to_bytes(kind, each) for each in (known[0], known[-1])] if known else [None, None]  # type: ignore[arg-type]
    return PartitionSummary(None in values, False, ends[0], ends[1])


@given(st.lists(_values, min_size=1, max_size=4), _values)
def test_a_manifest_with_the_partition_is_never_skipped(
    entries: list[tuple[object, ...]], other: tuple[object, ...]
) -> None:
    entries = [*entries, (0, "eu", 0, 0)]
    kinds = (DateType(), StringType(), IntegerType(), IntegerType())
    summaries = tuple(_summary([each[place] for each in entries], kind) for place, kind in enumerate(kinds))
    listed = ManifestListEntry("m", 1, 0, 0, 1, 1, 1, 1, 0, 0, partitions=summaries)
    metadata = _metadata(2)
    object.__setattr__(metadata, "schemas", {0: SCHEMA})
    object.__setattr__(metadata, "partition_specs", {0: SPEC})
    for values in (*entries, other):
        wanted = partition_of(values, SPEC, SCHEMA)
        has = any(matches(partition_of(each, SPEC, SCHEMA), wanted) for each in entries)
        assert may_have(listed, metadata, wanted) or not has
    assert not may_have(listed, metadata, {"at_day": "1900-01-01", "region": "zz"})
    assert not may_have(listed, metadata, {"of_another_spec": "1"})


def test_values_are_in_the_human_readable_form() -> None:
    assert partition_of((19_797, "eu", 3, 475_138), SPEC, SCHEMA) == {
        "at_day": "2024-03-15", "region": "eu", "site_bucket": "3", "at_hour": "2024-03-15-10",
    }  # fmt: skip
    assert partition_of((None, None, None, None), SPEC, SCHEMA)["at_day"] == "null"


def test_a_partition_is_given_as_a_mapping_or_as_a_text() -> None:
    assert parse_partition("day=2024-03-15/region=eu=x") == {"day": "2024-03-15", "region": "eu=x"}
    assert parse_partition({"day": date(2024, 3, 15), "n": None, "yes": True}) == {
        "day": "2024-03-15", "n": "null", "yes": "true",
    }  # fmt: skip
    for text in ("", "day", "=x"):
        with pytest.raises(BadInput, match="is not a partition"):
            parse_partition(text)


@pytest.mark.parametrize("transform", ["bucket[0]", "truncate[0]"])
def test_a_transform_that_divides_by_zero_is_unreadable_metadata(transform: str) -> None:
    field = {"source-id": 1, "field-id": 1000, "name": "part", "transform": transform}
    spec = json.dumps({"spec-id": 0, "fields": [field]})
    with pytest.raises(UnreadableMetadata, match="Partition spec 0 cannot be read"):
        partition_spec(replace(_metadata(2), partition_specs={0: spec}), 0)


@pytest.mark.parametrize(
    "kind", ["geography(OGC:CRS84, spherical)", "geometry(srid:4326)", "variant", "a-type-to-come"]
)
def test_a_partition_is_read_whatever_the_types_of_other_columns(kind: str) -> None:
    columns = [{"id": number, "name": f"c{number}", "required": False, "type": kind} for number in (1, 2)]
    columns[0]["type"] = "date"
    schema = json.dumps({"type": "struct", "schema-id": 0, "fields": columns})
    field = {"source-id": 1, "field-id": 1000, "name": "day", "transform": "identity"}
    assert partition_of((19_797,), json.dumps([field]), schema) == {"day": "2024-03-15"}
    with pytest.raises(ValueError, match="column 9"):
        partition_of((1,), json.dumps([{**field, "source-id": 9}]), schema)
