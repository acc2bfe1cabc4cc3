"""A look at a catalog writes what it read minutes ago: steps that recorded tables meanwhile are not undone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from artemis_lifecycle.operations import known_tables
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.known_tables import Seen


def test_a_name_that_a_step_recorded_during_a_look_is_not_renamed_to(operations: Operations, table_uuid: str) -> None:
    catalog, tables = f"live-{uuid4()}", operations.known_tables
    tables.observe(catalog, {(table_uuid, "db.a"): Seen("db.a", "file:/1")}, [])
    before = tables.of_catalog(catalog)
    # Registered as db.b, too, and seen there by a step; db.a is dropped.
    tables.saw(catalog, table_uuid, Seen("db.b", "file:/1"))
    tables.observe(catalog, {(table_uuid, "db.b"): Seen("db.b", "file:/1")}, before)
    found = tables.names(catalog, table_uuid)
    assert found.keys() == {"db.a", "db.b"} and found["db.b"].missing_since is None
    (gone,) = tables.observe(catalog, {(table_uuid, "db.b"): Seen("db.b", "file:/1")}, found.values())
    assert gone.table == "db.a"


def test_a_look_does_not_take_a_pointer_back(
    operations: Operations, table_uuid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_tables, "_SEEN_EVERY", timedelta(0))
    catalog, tables = f"live-{uuid4()}", operations.known_tables
    present = {(table_uuid, "db.a"): Seen("db.a", "file:/1")}
    tables.observe(catalog, present, [])
    before = tables.of_catalog(catalog)
    tables.saw(catalog, table_uuid, Seen("db.a", "file:/2"))
    tables.observe(catalog, present, before)
    (known,) = tables.of_catalog(catalog)
    assert known.metadata_location == "file:/2" and known.last_seen < datetime.now(UTC)
    tables.observe(catalog, {(table_uuid, "db.a"): Seen("db.a", "file:/3")}, [known])
    assert tables.of_catalog(catalog)[0].metadata_location == "file:/3"
