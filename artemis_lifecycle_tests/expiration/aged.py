"""Real tables with a past: Iceberg commits now, and a successor of the metadata file says that it was long ago."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from artemis_lifecycle.catalogs.cold import publish
from artemis_lifecycle.lifecycle import Lifecycle

_SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": False, "type": "int"}]}
_ROWS = pa.schema([pa.field("id", pa.int32(), metadata={"PARQUET:field_id": "1"})])


def make_table(lifecycle: Lifecycle, name: str, commits: int = 4, *, properties: str = "") -> str:
    """`db.<name>` in the live catalog after `commits` appends of the rows 0, 1, …; returns its identifier.

    Made by Iceberg's Java library in the session's own catalog, without Spark's SQL: a statement costs ten times as
    much, and most tests want only a table.
    """
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    jvm: Any = spark._jvm
    # Loads the catalog with this session's settings, whichever session this thread of the JVM had last.
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {live}.db")
    loaded = spark._jsparkSession.sessionState().catalogManager().catalog(live)
    catalog, identifier = loaded.icebergCatalog(), jvm.org.apache.iceberg.catalog.TableIdentifier.parse(f"db.{name}")
    schema = jvm.org.apache.iceberg.SchemaParser.fromJson(json.dumps(_SCHEMA))
    build = catalog.buildTable(identifier, schema)
    for key, value in re.findall(r"'([^']*)'\s*=\s*'([^']*)'", properties):
        build = build.withProperty(key, value)
    table = build.create()
    metrics_of = jvm.org.apache.iceberg.MetricsConfig.forTable(table)
    for number in range(commits):
        path = table.locationProvider().newDataLocation(f"{number:05d}-{uuid.uuid4()}.parquet")
        local = Path(path.removeprefix("file:").replace("///", "/"))
        local.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [number]}, schema=_ROWS), local)
        written = table.io().newInputFile(path)
        file = jvm.org.apache.iceberg.DataFiles.builder(table.spec()).withInputFile(written)
        metrics = jvm.org.apache.iceberg.parquet.ParquetUtil.fileMetrics(written, metrics_of)
        table.newAppend().appendFile(file.withFormat("parquet").withMetrics(metrics).build()).commit()
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
