"""The cold tier's own scan: what a refused writer left is found, and nothing that the archive has ever is."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import NoSuchTable, UnreadableMetadata
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deaths import killed_at, lapse
from artemis_lifecycle_tests.policies import AT_ONCE


@dataclass
class Archive:
    lifecycle: Lifecycle

    def cold_files(self) -> set[str]:
        root = Path(str(self.lifecycle.config.catalogs.cold.warehouse).removeprefix("file://"))
        # Hadoop's checksum files beside what Spark wrote are files like any others.
        return {str(path) for path in root.rglob("*") if path.is_file()}

    def unknown(self) -> set[str]:
        scan = self.lifecycle.scan_cold("db.t")
        found = {row["path"].removeprefix("file://") for row in scan.files().collect()}
        assert len(found) == scan.unknown_files
        assert scan.listed_files == len(self.cold_files())
        return found


@pytest.fixture(scope="module")
def archive(module_configs: MakeConfig, spark: SparkSession) -> Archive:
    lifecycle = Lifecycle.open(module_configs(defaults=AT_ONCE, tables={"db.*": {}}), spark=spark)
    live = lifecycle.config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
    core_tables.sql(
        spark,
        f"CREATE TABLE {live}.db.t (id int) USING iceberg "
        "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')",
    )
    spark.sql(f"INSERT INTO {live}.db.t SELECT /*+ COALESCE(1) */ id FROM range(0, 8)")
    spark.sql(f"DELETE FROM {live}.db.t WHERE id = 3")
    with pytest.raises(NoSuchTable, match="not handed off yet"):
        lifecycle.scan_cold("db.t")
    core_tables.sql(spark, f"INSERT OVERWRITE {live}.db.t VALUES (1)")
    lifecycle.expire("db.t")
    return Archive(lifecycle)


def test_what_a_refused_writer_left_is_found_and_nothing_else(archive: Archive, spark: SparkSession) -> None:
    assert archive.unknown() == set()
    before = archive.cold_files()
    with pytest.raises(Exception, match="is the cold tier"):
        core_tables.sql(spark, f"INSERT INTO {archive.lifecycle.config.catalogs.cold.name}.db.t VALUES (7)")
    left = archive.cold_files() - before
    assert left  # The client removes its data files itself: a refusal is a definite outcome.
    assert archive.unknown() == left
    for path in left:
        Path(path).unlink()
    assert archive.unknown() == set()


def test_a_young_file_is_left_out_and_counted(archive: Archive) -> None:
    cold = Path(str(archive.lifecycle.config.catalogs.cold.warehouse).removeprefix("file://"))
    stray = cold / "db" / "t" / "data" / "stray.parquet"
    stray.write_bytes(b"nobody's")
    os.utime(stray, (time.time() + 60, time.time() + 60))
    scan = archive.lifecycle.scan_cold("db.t")
    assert (scan.unknown_files, scan.too_young) == (0, 1)
    os.utime(stray, (time.time() - 60, time.time() - 60))
    assert archive.unknown() == {str(stray)}
    stray.unlink()


def test_copies_that_are_not_published_yet_are_known(archive: Archive, spark: SparkSession) -> None:
    lifecycle = archive.lifecycle
    core_tables.sql(spark, f"INSERT OVERWRITE {lifecycle.config.catalogs.live.name}.db.t VALUES (2)")
    plan = lifecycle.plan_expiration("db.t")
    before = archive.cold_files()

    with killed_at("handoff.metadata:before"):
        lifecycle.hand_off(plan)
    lapse(lifecycle, "leases")
    assert archive.cold_files() > before
    assert archive.unknown() == set()
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    assert archive.unknown() == set()


def test_without_its_ledger_the_archive_is_known_by_what_it_reaches(archive: Archive) -> None:
    lifecycle = archive.lifecycle
    uuid = lifecycle.snapshot_history("db.t").table_uuid
    copies = Path(lifecycle.root.removeprefix("file://")) / "cold" / uuid / "copies"
    aside = copies.with_name("aside")
    shutil.move(copies, aside)
    try:
        assert archive.unknown() == set()
    finally:
        shutil.move(aside, copies)


def test_unreadable_cold_metadata_means_no_scan(archive: Archive) -> None:
    lifecycle = archive.lifecycle
    metadata = lifecycle.cold_metadata("db.t")
    assert metadata is not None and metadata.snapshots[0].manifest_list is not None
    shutil.rmtree(Path(lifecycle.root.removeprefix("file://")) / "cold" / "index", ignore_errors=True)
    path = Path(metadata.snapshots[0].manifest_list.removeprefix("file:").removeprefix("//"))
    whole = path.read_bytes()
    path.unlink()
    try:
        with pytest.raises(UnreadableMetadata):
            lifecycle.scan_cold("db.t")
    finally:
        path.write_bytes(whole)
