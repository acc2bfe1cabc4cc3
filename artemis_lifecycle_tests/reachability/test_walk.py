"""The walk on real tables: exact, equal wherever it runs, and closed when any file of it cannot be trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.config import LifecycleConfig
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.walk import WalkSettings, deletable_files, reachable_files
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores

RULES = LocationRules()
EXECUTORS = WalkSettings(here_rows=0)


@pytest.fixture(scope="module")
def metadata(module_config: LifecycleConfig, spark: SparkSession) -> TableMetadata:
    """Appends, merge-on-read deletes, a compaction, a branch, statistics: seven snapshots or more, of format 2."""
    name = f"{module_config.catalogs.live.name}.db.walk"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {module_config.catalogs.live.name}.db")
    spark.sql(
        f"CREATE TABLE {name} (id int, part string) USING iceberg PARTITIONED BY (part) "
        "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
    )
    for start in (0, 10, 20):
        spark.sql(f"INSERT INTO {name} SELECT id, 'p' || id % 2 FROM range({start}, {start + 10})")
    spark.sql(f"DELETE FROM {name} WHERE id IN (3, 14)")
    procedures = f"{module_config.catalogs.live.name}.system"
    spark.sql(f"CALL {procedures}.rewrite_data_files(table => 'db.walk', options => map('rewrite-all', 'true'))")
    spark.sql(f"CALL {procedures}.compute_table_stats(table => 'db.walk')")
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH side")
    spark.sql(f"INSERT INTO {name}.branch_side VALUES (99, 'p0')")
    with Lifecycle.open(module_config, spark=spark) as lifecycle:
        return read_table_metadata(Stores(), lifecycle.snapshot_history("db.walk").metadata_location)


def _rows(frame: object) -> set[tuple[object, ...]]:
    with worker_errors():
        return {tuple(row) for row in frame.collect()}  # type: ignore[attr-defined]


def _files_by_spark(spark: SparkSession, table: str) -> set[str]:
    files = {row["file_path"] for row in spark.sql(f"SELECT file_path FROM {table}.all_files").collect()}
    manifests = {row["path"] for row in spark.sql(f"SELECT path FROM {table}.all_manifests").collect()}
    lists = {row["manifest_list"] for row in spark.sql(f"SELECT manifest_list FROM {table}.snapshots").collect()}
    return files | manifests | lists


def test_all_snapshots_reach_what_icebergs_own_metadata_tables_name(
    spark: SparkSession, module_config: LifecycleConfig, metadata: TableMetadata
) -> None:
    everything = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    found = reachable_files(spark, Stores(), metadata, everything, RULES)
    statistics = {file.path for file in metadata.statistics}
    assert statistics
    assert {row[0] for row in _rows(found)} == (
        _files_by_spark(spark, f"{module_config.catalogs.live.name}.db.walk") | statistics
    )
    sizes = {row["path"]: row["size_in_bytes"] for row in found.collect()}
    assert all(size == Stores().head(path).size_in_bytes for path, size in sizes.items())  # type: ignore[union-attr]


def test_the_executors_and_this_process_find_the_same(spark: SparkSession, metadata: TableMetadata) -> None:
    ids = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    here, there = (
        _rows(reachable_files(spark, Stores(), metadata, ids, RULES, settings))
        for settings in (WalkSettings(), EXECUTORS)
    )
    assert here == there
    here, there = (
        _rows(deletable_files(spark, Stores(), metadata, ids[:4], RULES, settings))
        for settings in (WalkSettings(), EXECUTORS)
    )
    assert here == there


def test_deletable_is_what_expired_snapshots_reach_without_what_any_other_does(
    spark: SparkSession, metadata: TableMetadata
) -> None:
    ids = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    for count in range(len(ids)):
        doomed, kept = ids[:count], ids[count:]
        expected = {row[0] for row in _rows(reachable_files(spark, Stores(), metadata, doomed, RULES))}
        expected -= {row[0] for row in _rows(reachable_files(spark, Stores(), metadata, kept, RULES))}
        assert {row[0] for row in _rows(deletable_files(spark, Stores(), metadata, doomed, RULES))} == expected


@pytest.mark.parametrize("settings", [WalkSettings(), EXECUTORS], ids=["here", "executors"])
@pytest.mark.parametrize("victim", ["manifest_list", "manifest"])
@pytest.mark.parametrize("harm", ["missing", "cut", "emptied"])
def test_any_harm_to_a_file_of_the_walk_stops_it(
    spark: SparkSession, metadata: TableMetadata, settings: WalkSettings, victim: str, harm: str
) -> None:
    ids = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    rows = reachable_files(spark, Stores(), metadata, ids[-1:], RULES).filter(f"kind = '{victim}'").collect()
    path = Path(rows[0]["path"].removeprefix("file:"))
    kept = path.read_bytes()
    try:
        if harm == "missing":
            path.unlink()
        else:
            path.write_bytes({"cut": kept[:-20], "emptied": b""}[harm])
        with pytest.raises(UnreadableMetadata) as caught, worker_errors():
            deletable_files(spark, Stores(), metadata, ids[:2], RULES, settings).collect()
        assert path.name in str(caught.value)
    finally:
        path.write_bytes(kept)


def test_a_snapshot_that_the_metadata_does_not_have_is_an_error(spark: SparkSession, metadata: TableMetadata) -> None:
    with pytest.raises(UnreadableMetadata, match="no snapshot 42"):
        reachable_files(spark, Stores(), replace(metadata), [42], RULES)
