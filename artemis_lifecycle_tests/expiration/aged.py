"""Real tables with a past: Iceberg commits now, and a successor of the metadata file says that it was long ago."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.sql import publish
from artemis_lifecycle_tests import core_tables


def make_table(lifecycle: Lifecycle, name: str, commits: int = 4, *, properties: str = "") -> str:
    """`db.<name>` in the live catalog after `commits` appends of the rows 0, 1, …; returns its identifier."""
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE IF NOT EXISTS {live}.db")
    core_tables.sql(
        spark,
        f"CREATE TABLE {live}.db.{name} (id int) USING iceberg"
        + (f" TBLPROPERTIES ({properties})" if properties else ""),
    )
    for number in range(commits):
        core_tables.append(spark, f"{live}.db.{name}", [(number,)])
    return f"db.{name}"


def ids_of(lifecycle: Lifecycle, table: str) -> list[int]:
    return [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history(table).snapshots]


def set_ages(lifecycle: Lifecycle, table: str, ages: Sequence[timedelta], now: datetime | None = None) -> datetime:
    """Each snapshot, in the order of the metadata, was committed its age before `now`; returns that instant."""
    instant = (now or datetime.now(UTC)).replace(microsecond=0)
    entry = lifecycle.resources.live_catalog.entry(table)
    document: dict[str, Any] = json.loads(lifecycle.live_stores.read(entry.metadata_location))
    assert len(document["snapshots"]) == len(ages)
    times = {}
    for snapshot, age in zip(document["snapshots"], ages, strict=True):
        snapshot["timestamp-ms"] = int((instant - age).timestamp()) * 1000
        times[snapshot["snapshot-id"]] = snapshot["timestamp-ms"]
    latest = 0
    for logged in document.get("snapshot-log", ()):
        # A rollback came after what it rolled back; Iceberg reads no log that goes back in time.
        latest = max(times[logged["snapshot-id"]], latest + 1000)
        logged["timestamp-ms"] = latest
    document["metadata-log"] = []
    document["last-updated-ms"] = max(latest, *times.values())
    folder, _, name = entry.metadata_location.rpartition("/")
    location = f"{folder}/{int(name.split('-')[0]) + 1:05d}-{uuid.uuid4()}.metadata.json"
    lifecycle.live_stores.write(location, json.dumps(document).encode())
    with lifecycle.operations.engine.begin() as connection:
        publish(
            connection,
            entry.catalog,
            entry.identifier,
            expected_location=entry.metadata_location,
            new_location=location,
        )
    return instant
