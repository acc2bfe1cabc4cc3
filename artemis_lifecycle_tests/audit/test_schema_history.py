"""Each schema says what it changed, and when it was in use, also by snapshots that have gone."""

from __future__ import annotations

import json
from types import MappingProxyType

from artemis_lifecycle.audit.schema_history import SchemaUse, schema_history
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata


def _schema(schema_id: int, *fields: tuple[int, str, object, bool]) -> str:
    columns = [{"id": i, "name": name, "type": kind, "required": required} for i, name, kind, required in fields]
    return json.dumps({"type": "struct", "schema-id": schema_id, "fields": columns})


STRUCT = {"type": "struct", "fields": [{"id": 9, "name": "x", "type": "int", "required": False}]}
METADATA = TableMetadata(
    metadata_location="file:///t/metadata/3.metadata.json",
    location="file:///t",
    table_uuid="u",
    format_version=2,
    last_updated_ms=3000,
    last_sequence_number=3,
    current_snapshot_id=3,
    snapshots=(Snapshot(2, 1, 2, 2000, "l2", schema_id=0), Snapshot(3, 2, 3, 3000, "l3", schema_id=2)),
    refs=MappingProxyType({}),
    snapshot_log=(),
    metadata_log=(),
    statistics=(),
    properties=MappingProxyType({}),
    current_schema_id=2,
    schemas={
        0: _schema(0, (1, "a", "int", True), (2, "b", "string", False)),
        1: _schema(1, (1, "a", "long", False), (2, "b", "string", False), (3, "c", STRUCT, False)),
        2: _schema(2, (1, "a", "long", False), (3, "renamed", STRUCT, False)),
    },
    default_spec_id=0,
    partition_specs={},
)


def test_each_version_reports_what_it_changed() -> None:
    first, second, third = schema_history("ns.t", METADATA).versions
    assert (first.added, first.removed, first.changed) == ((), (), ())
    assert (second.added, second.removed, second.changed) == (("c",), (), ("a int → long optional",))
    assert (third.added, third.removed, third.changed) == ((), ("b",), ("c → renamed",))
    assert [version.is_current for version in (first, second, third)] == [False, False, True]
    assert json.loads(second.fields[2].type) == STRUCT


def test_times_are_those_of_the_snapshots_that_used_it() -> None:
    first, second, third = schema_history("ns.t", METADATA).versions
    assert (first.first_used_ms, first.last_used_ms, first.snapshots) == (2000, 2000, 1)
    assert (second.first_used_ms, second.last_used_ms, second.snapshots) == (None, None, 0)
    assert (third.first_snapshot_id, third.first_used_ms) == (3, 3000)


def test_the_ledger_fills_in_what_has_expired() -> None:
    earlier = [SchemaUse(1, 1000, 0), SchemaUse(2, 2000, 0)]
    first = schema_history("ns.t", METADATA, earlier).versions[0]
    assert (first.first_snapshot_id, first.first_used_ms, first.last_used_ms, first.snapshots) == (1, 1000, 2000, 2)


def test_pandas_has_a_row_per_version() -> None:
    frame = schema_history("ns.t", METADATA).to_pandas()
    assert list(frame["schema_id"]) == [0, 1, 2]
    assert list(frame["columns"]) == [2, 3, 2]
    assert frame["first_used"].isna().tolist() == [False, True, False]
    assert str(frame["first_used"].dt.tz) == "UTC"
    assert list(frame["removed"]) == ["", "", "b"]
