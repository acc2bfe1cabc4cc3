"""The ledger has one row for every snapshot that a table ever had, and keeps it when the snapshot expires."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.result_rows import ResultReader
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import Lineage
from artemis_lifecycle.contracts import LineageRequirements
from artemis_lifecycle.lineage.ledger import read_lineage, record_lineage, recorded_schema_uses
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.storage.stores import Stores, StoreSettings

NOW = datetime(2026, 3, 1, tzinfo=UTC)
REQUIREMENTS = LineageRequirements.from_config(Lineage())
KEYS = {
    "writer.id": "ingest-1",
    "writer.host": "here",
    "writer.commit_hash": "a1b2c3d4",
    "writer.invocation_id": "run-1",
    "input.row_count": "1",
    "input.bytes_compressed": "10",
    "input.snapshot_ids": "[7, 8]",
    "trigger.type": "manual",
    "trigger.operator": "j.smith",
}


def _metadata(config: LifecycleConfig) -> TableMetadata:
    reader = CatalogReader(config.catalogs.live)
    try:
        return read_table_metadata(Stores(StoreSettings()), reader.entry("ns.t").metadata_location)
    finally:
        reader.close()


@pytest.fixture
def live(config: LifecycleConfig, spark: SparkSession) -> str:
    name = config.catalogs.live.name
    spark.sql(f"CREATE NAMESPACE {name}.ns")
    spark.sql(f"CREATE TABLE {name}.ns.t (a int) USING iceberg")
    writer = spark.createDataFrame([(1,)], "a int").writeTo(f"{name}.ns.t")
    for key, value in KEYS.items():
        writer.option(f"snapshot-property.{key}", value)
    writer.append()
    spark.sql(f"INSERT INTO {name}.ns.t VALUES (2)")
    return name


def test_new_snapshots_are_appended_once_and_stay_after_they_expire(
    config: LifecycleConfig, spark: SparkSession, live: str
) -> None:
    metadata = _metadata(config)
    results = ResultReader(CatalogReader(config.catalogs.live), Stores(StoreSettings()))
    rehearsal = record_lineage(spark, results, "ns.t", metadata, REQUIREMENTS, NOW, dry_run=True)
    assert (rehearsal.added, rehearsal.recorded, rehearsal.dry_run) == (2, 0, True)
    first = record_lineage(spark, results, "ns.t", metadata, REQUIREMENTS, NOW)
    assert (first.added, first.recorded, first.incomplete) == (2, 2, 1)
    again = record_lineage(spark, results, "ns.t", metadata, REQUIREMENTS, NOW)
    assert (again.added, again.recorded) == (0, 2)

    gone = metadata.snapshots[0].snapshot_id
    spark.sql(f"CALL {live}.system.expire_snapshots(table => 'ns.t', snapshot_ids => ARRAY({gone}))")
    spark.sql(f"INSERT INTO {live}.ns.t VALUES (3)")
    later = record_lineage(spark, results, "ns.t", _metadata(config), REQUIREMENTS, NOW)
    assert (later.added, later.recorded) == (1, 3)

    frame = read_lineage(spark, live, "ns.t", metadata.table_uuid).to_pandas()
    row = frame[frame["snapshot_id"] == gone].iloc[0]
    assert (row["writer_id"], row["trigger_operator"], row["input_row_count"]) == ("ingest-1", "j.smith", 1)
    assert list(row["input_snapshot_ids"]) == [7, 8]
    assert row["problems"] is None
    assert "writer.id" in frame.iloc[1]["problems"]
    assert sorted(use.snapshot_id for use in recorded_schema_uses(results, metadata.table_uuid)) == sorted(
        frame["snapshot_id"]
    )
