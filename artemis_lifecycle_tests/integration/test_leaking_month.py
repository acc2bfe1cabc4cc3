"""A month of writers that leak, on a real table: scans when they are due and their deletions keep it clean, and no row
is lost. A week of it in every `make test`; the month in `make nightly`.
"""

from __future__ import annotations

import os
import random
import shutil
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.deletion.report import RECEIPTS
from artemis_lifecycle.orphans.trend import next_scan
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.end_report import add_lines

LONG = "ARTEMIS_SOAK" in os.environ
DAYS, MIN_AGE = (31, timedelta(days=7)) if LONG else (7, timedelta(days=2))
COMMITS, FILES = 8, 5
"""A day's commits, and the data files of each; every twentieth commit leaks what it wrote."""

LEAK = 0.05
DAY = timedelta(days=1)


class Writers:
    """Appends that name real Parquet files, and among them those that die."""

    def __init__(self, lifecycle: Lifecycle, table: str) -> None:
        self.lifecycle = lifecycle
        self.dice = random.Random(7)
        self.full = f"{lifecycle.config.catalogs.live.name}.{table}"
        core_tables.sql(lifecycle.spark, f"CREATE NAMESPACE {self.full.rpartition('.')[0]}")
        lifecycle.spark.sql(f"CREATE TABLE {self.full} USING iceberg AS SELECT id FROM range(10)")
        self.place = local(lifecycle.steps.table_state(table).metadata.location)
        self.template = next((self.place / "data").glob("*.parquet"))
        self.rows, self.committed = 10, 1
        self.leaked: list[Path] = []

    def day(self) -> None:
        for _ in range(COMMITS):
            self._commit(dies=self.dice.random() < LEAK)

    def _commit(self, *, dies: bool) -> None:
        jvm: Any = self.lifecycle.spark._jvm
        loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.lifecycle.spark._jsparkSession, self.full
        )
        append = loaded.newAppend()
        run, written = uuid.uuid4(), []
        for number in range(FILES):
            path = self.place / "data" / f"{number:05}-1-{run}-0-00001.parquet"
            shutil.copyfile(self.template, path)
            written.append(path)
            builder = jvm.org.apache.iceberg.DataFiles.builder(loaded.spec()).withPath(f"file:{path}")
            size = path.stat().st_size
            append.appendFile(builder.withFormat("parquet").withFileSizeInBytes(size).withRecordCount(10).build())
        if not dies:
            append.commit()
            self.rows += 10 * FILES
            self.committed += FILES
            return
        if self.dice.random() < 0.5:
            # Its manifest was written, and the swap was lost.
            manifest = self.place / "metadata" / f"{run}-m0.avro"
            manifest.write_bytes(b"Obj\x01")
            written.append(manifest)
        self.leaked += written

    def files(self) -> list[Path]:
        """The table's, without receipts and checksum files."""
        return [
            path
            for path in self.place.rglob("*")
            if path.is_file() and path.suffix != ".crc" and RECEIPTS not in path.parts
        ]

    def orphans(self) -> int:
        """Files beyond `min_age` (metadata files: beyond the window) that Iceberg's own metadata tables do not name, by
        the disk."""
        spark = self.lifecycle.spark
        known = {row[0] for row in spark.sql(f"SELECT file_path FROM {self.full}.all_files").collect()}
        known |= {row[0] for row in spark.sql(f"SELECT path FROM {self.full}.all_manifests").collect()}
        known |= {row[0] for row in spark.sql(f"SELECT manifest_list FROM {self.full}.snapshots").collect()}
        known |= {row[0] for row in spark.sql(f"SELECT file FROM {self.full}.metadata_log_entries").collect()}
        names = {local(path) for path in known}
        return sum(path not in names and self.is_old(path) for path in self.files())

    def is_old(self, path: Path) -> bool:
        policy = self.lifecycle.config.policy("month.leaks")
        age = policy.retention.window if path.name.endswith(".metadata.json") else policy.orphans.min_age
        return path.stat().st_mtime < self.lifecycle.operations.clock.now().timestamp() - age.total_seconds()

    def a_day_passes(self) -> None:
        """Everything is a day older: the files, and what is on record of scans."""
        for path in self.place.rglob("*"):
            if path.is_file():
                at = path.stat().st_mtime - DAY.total_seconds()
                os.utime(path, (at, at))
        with self.lifecycle.operations.engine.begin() as connection:
            columns = ("listed_at", "listing_finished_at", "metadata_read_at", "created_at")
            values = ", ".join(f"{column} = {column} - interval '1 day'" for column in columns)
            connection.execute(text(f"UPDATE lifecycle.scans SET {values}"))


@pytest.mark.nightly
def test_writers_that_leak_leave_a_clean_table(make_config: MakeConfig, spark: SparkSession) -> None:
    policy = {"orphans": {"min_age": f"{MIN_AGE.days}d", "min_age_floor": "24h"}}
    with Lifecycle.open(make_config(defaults=policy), spark=spark) as lifecycle:
        writers = Writers(lifecycle, "month.leaks")
        every = lifecycle.config.defaults.orphans.scan_every
        scans = deleted = 0
        shares: list[float] = []
        for _ in range(DAYS):
            writers.day()
            writers.a_day_passes()
            due = next_scan(lifecycle.scan_trend("month.leaks").points, every, MIN_AGE)
            if due is None or due <= lifecycle.operations.clock.now():
                report = lifecycle.delete_orphans(lifecycle.scan_orphans("month.leaks"))
                assert (report.kept, report.failed) == (0, 0)
                scans += 1
                deleted += report.deleted
            shares.append(writers.orphans() / len(writers.files()))
        left = [path for path in writers.leaked if path.exists()]
        said = (
            f"{DAYS} days, {writers.committed} files committed, {len(writers.leaked)} leaked, {scans} scans, {deleted} "
            f"deleted, {len(left)} too young, at most {max(shares):.2%} orphans beyond their age after a night"
        )
        add_lines("writers that leak", [said])
        assert len(writers.leaked) >= FILES and deleted >= len(writers.leaked) - len(left) > 0
        assert not any(writers.is_old(path) for path in left)
        assert max(shares) <= 0.001
        spark.sql(f"REFRESH TABLE {writers.full}")
        assert lifecycle.read("month.leaks").count() == writers.rows
