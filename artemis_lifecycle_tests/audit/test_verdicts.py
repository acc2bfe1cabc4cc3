"""Schemas that evolve as Iceberg allows pass; any other change of a field id is found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.audit.schema_history import judge_schemas
from artemis_lifecycle.metadata.types import Snapshot, SnapshotSummary, TableMetadata

METADATA = TableMetadata(
    metadata_location="file:/w/t/metadata/1.metadata.json",
    location="file:/w/t",
    table_uuid="u",
    format_version=2,
    last_updated_ms=0,
    last_sequence_number=1,
    current_snapshot_id=None,
    snapshots=(),
    refs={},
    snapshot_log=(),
    metadata_log=(),
    statistics=(),
    properties={},
    current_schema_id=0,
    schemas={},
    default_spec_id=0,
    partition_specs={},
)

LADDERS = (
    ("int", "long"),
    ("float", "double"),
    ("decimal(9,2)", "decimal(12,2)", "decimal(38,2)"),
    ("string",),
    ("timestamptz",),
    ("unknown", "string"),
)
"""Types in the orders in which a column may become them, from Iceberg's specification."""


def schemas(*versions: dict[int, Any]) -> TableMetadata:
    """Metadata with a schema for each mapping from field id to type."""
    texts = {
        number: json.dumps(
            {
                "type": "struct",
                "schema-id": number,
                "fields": [
                    {"id": key, "name": f"c{key}", "required": False, "type": kind} for key, kind in version.items()
                ],
            }
        )
        for number, version in enumerate(versions)
    }
    return replace(METADATA, schemas=texts)


@given(st.lists(st.tuples(st.sampled_from(LADDERS), st.lists(st.integers(0, 2), min_size=3, max_size=3)), max_size=5))
def test_a_column_may_climb_its_ladder_and_never_down(columns: list[tuple[tuple[str, ...], list[int]]]) -> None:
    rungs = [(ladder, [min(each, len(ladder) - 1) for each in steps]) for ladder, steps in columns]
    found = schemas(*({key: ladder[steps[n]] for key, (ladder, steps) in enumerate(rungs, 1)} for n in range(3)))
    climbs = all(steps == sorted(steps) for _, steps in rungs)
    assert judge_schemas(found).passed == climbs


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("string", "long"),
        ("decimal(9,2)", "decimal(9,3)"),
        ("int", {"type": "struct", "fields": []}),
        (
            {"type": "list", "element-id": 7, "element": "int", "element-required": False},
            {"type": "list", "element-id": 7, "element": "string", "element-required": False},
        ),
        (
            {"type": "map", "key-id": 7, "key": "string", "value-id": 8, "value": "long", "value-required": False},
            {"type": "map", "key-id": 7, "key": "string", "value-id": 8, "value": "int", "value-required": False},
        ),
    ],
)
def test_a_field_id_with_another_type_is_named_with_both(before: Any, after: Any) -> None:
    found = judge_schemas(schemas({1: before}, {1: after}))
    assert not found.passed and len(found.offenders) == 1
    assert "it was" in found.offenders[0]
    # A field that was dropped and made again has another id.
    assert judge_schemas(schemas({1: before}, {2: "long"})).passed


def test_a_snapshot_with_a_schema_that_is_gone_and_an_id_twice() -> None:
    found = schemas({1: "long"})
    snapshot = Snapshot(
        snapshot_id=5,
        parent_snapshot_id=None,
        sequence_number=1,
        timestamp_ms=0,
        manifest_list="file:/w/t/metadata/snap-5.avro",
        summary=SnapshotSummary("append", {}),
        schema_id=4,
    )
    assert "snapshot 5 has schema 4" in judge_schemas(replace(found, snapshots=(snapshot,))).offenders[0]
    twice = {"type": "struct", "fields": [{"id": 1, "name": name, "type": "int"} for name in "ab"]}
    assert "the field id 1 twice" in judge_schemas(replace(found, schemas={0: json.dumps(twice)})).offenders[0]
