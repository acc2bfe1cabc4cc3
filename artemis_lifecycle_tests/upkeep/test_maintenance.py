"""Maintenance measures before it works, works once, says who did it, and loses no row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import Compaction, Lineage
from artemis_lifecycle.contracts import CommitLineage, LineageRequirements, lineage_problems
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.storage.stores import Stores, StoreSettings
from artemis_lifecycle.upkeep.compaction import CompactedDataFiles, compacted_data_files, ranked, why_compact
from artemis_lifecycle.upkeep.health import TableHealth, partitions_with_work, table_health
from artemis_lifecycle.upkeep.manifests import compacted_manifests, why_rewrite
from artemis_lifecycle_tests import core_tables

STORES = Stores(StoreSettings())
WORKER = CommitLineage("compaction-worker-2", "station-3", "a1b2c3d4", "run-1", "schedule")
REQUIREMENTS = LineageRequirements.from_config(Lineage())


class World:
    """A table of nine small appends and a merge-on-read delete, in two partitions."""

    def __init__(self, config: LifecycleConfig, spark: SparkSession) -> None:
        self.spark, self.catalog = spark, config.catalogs.live.name
        self._live = config.catalogs.live
        name = f"{self.catalog}.ns.t"
        core_tables.sql(spark, f"CREATE NAMESPACE {self.catalog}.ns")
        core_tables.sql(
            spark,
            f"CREATE TABLE {name} (a int, part string) USING iceberg PARTITIONED BY (part) "
            "TBLPROPERTIES ('write.delete.mode' = 'merge-on-read', 'format-version' = '2', "
            "'write.distribution-mode' = 'none')",
        )
        for number in range(9):
            part = "x" if number else "lonely"
            rows = spark.createDataFrame([(number * 10 + i, part) for i in range(10)], "a int, part string")
            rows.coalesce(1).writeTo(name).append()
        spark.sql(f"DELETE FROM {name} WHERE a = 11")

    def metadata(self) -> TableMetadata:
        reader = CatalogReader(self._live)
        try:
            return read_table_metadata(STORES, reader.entry("ns.t").metadata_location)
        finally:
            reader.close()

    def health(self) -> TableHealth:
        now = datetime.now(UTC) + timedelta(hours=1)
        return table_health(self.spark, STORES, "ns.t", self.metadata(), now)

    def compacted(
        self, health: TableHealth, thresholds: Compaction | None = None, *, dry_run: bool = False
    ) -> CompactedDataFiles:
        thresholds = thresholds or Compaction()
        work = partitions_with_work(self.spark, STORES, self.metadata())
        partitions = ranked(work, thresholds, lambda files, size: files + size / 10**6)
        return compacted_data_files(
            self.spark, self.catalog, "ns.t", health, WORKER, partitions, thresholds, dry_run=dry_run
        )

    def rows(self) -> list[int]:
        return sorted(row["a"] for row in self.spark.table(f"{self.catalog}.ns.t").collect())

    def summary(self) -> dict[str, str]:
        current = self.metadata().current_snapshot
        assert current is not None
        return {**current.summary.properties, "operation": current.summary.operation or ""}


@pytest.fixture
def world(config: LifecycleConfig, spark: SparkSession) -> World:
    return World(config, spark)


def test_maintenance_of_a_table_from_its_figures_to_its_commits(world: World) -> None:
    health = world.health()
    assert (health.data_files, health.records, health.delete_files, health.deleted_records) == (9, 90, 1, 1)
    # Eight small files share a partition; the lonely one has no company.
    assert (health.small_files, health.rewritable_files, health.rewritten_files) == (9, 8, 1)
    assert (health.snapshots, health.refs, health.manifests) == (10, 1, 10)
    assert 3600 < health.snapshot_age_seconds <= health.oldest_snapshot_age_seconds < 3600 + 600
    assert health.metadata_bytes == health.metadata_file_bytes + health.manifest_list_bytes + health.manifest_bytes > 0
    assert dict(health.to_pandas().itertuples(index=False, name=None))["rewritable_share"] == pytest.approx(8 / 9)
    before, old = world.rows(), world.metadata()

    rehearsal = world.compacted(health, dry_run=True)
    assert (rehearsal.needed, rehearsal.snapshot_id) == (True, None)
    assert compacted_manifests(world.spark, world.catalog, "ns.t", health, WORKER, dry_run=True).needed
    assert world.metadata() == old

    manifests = compacted_manifests(world.spark, world.catalog, "ns.t", health, WORKER)
    assert manifests.rewritten_manifests >= 9
    assert 1 <= manifests.added_manifests <= 2
    assert lineage_problems(world.summary(), REQUIREMENTS) == ()

    files = world.compacted(world.health())
    assert (rehearsal.planned_files, rehearsal.partitions) == (files.rewritten_files, 1)
    assert (files.rewritten_files, files.added_files, files.failed_files) == (8, 1, 0)
    assert "8 of 9" in files.why
    assert lineage_problems(world.summary(), REQUIREMENTS) == ()
    assert world.summary()["writer.id"] == "compaction-worker-2"
    assert world.metadata().current_snapshot_id == files.snapshot_id
    assert world.rows() == before

    after = world.health()
    assert (after.data_files, after.rewritable_files) == (2, 0)
    settled = world.compacted(after, Compaction(min_delete_file_ratio=0.9))
    assert (settled.needed, settled.snapshot_id) == (False, None)
    again = compacted_manifests(world.spark, world.catalog, "ns.t", after, WORKER)
    assert (again.needed, again.snapshot_id) == (False, None)


def test_a_table_without_a_snapshot_has_figures_and_needs_nothing(config: LifecycleConfig, spark: SparkSession) -> None:
    catalog = config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE {catalog}.ns")
    core_tables.sql(spark, f"CREATE TABLE {catalog}.ns.t (a int) USING iceberg")
    reader = CatalogReader(config.catalogs.live)
    metadata = read_table_metadata(STORES, reader.entry("ns.t").metadata_location)
    reader.close()
    health = table_health(spark, STORES, "ns.t", metadata, datetime.now(UTC))
    assert (health.data_files, health.manifests, health.small_files_share, health.average_manifest_bytes) == (
        0,
        0,
        0,
        0,
    )
    assert not compacted_data_files(spark, catalog, "ns.t", health, WORKER, ()).needed
    assert not compacted_manifests(spark, catalog, "ns.t", health, WORKER).needed


HEALTH = TableHealth(
    table="ns.t",
    metadata_location="file:///m",
    snapshots=1,
    refs=1,
    snapshot_age_seconds=0,
    oldest_snapshot_age_seconds=0,
    metadata_age_seconds=0,
    data_files=100,
    data_bytes=1,
    records=1,
    small_files=100,
    rewritable_files=0,
    rewritten_files=0,
    delete_files=0,
    delete_bytes=0,
    deleted_records=0,
    manifests=4,
    manifest_bytes=1000,
    manifest_list_bytes=1,
    metadata_file_bytes=1,
    target_file_bytes=512 << 20,
    target_manifest_bytes=8 << 20,
    fewest_manifests=2,
)


def test_small_files_without_company_and_few_deletes_ask_for_no_compaction() -> None:
    settings = Compaction()
    assert why_compact(HEALTH, settings) is None
    assert why_compact(replace(HEALTH, rewritable_files=19), settings) is None
    assert why_compact(replace(HEALTH, rewritable_files=20), settings) is not None
    assert why_compact(replace(HEALTH, delete_files=49), settings) is None
    assert why_compact(replace(HEALTH, delete_files=50), settings) is not None


def test_few_or_large_manifests_ask_for_no_rewrite() -> None:
    thresholds = Compaction()
    assert why_rewrite(HEALTH, thresholds) is None
    assert why_rewrite(replace(HEALTH, manifests=100), thresholds) is not None
    assert why_rewrite(replace(HEALTH, manifests=100), Compaction(min_manifests=101)) is None
    assert why_rewrite(replace(HEALTH, manifests=100, fewest_manifests=50), thresholds) is None
