"""A path is not a file: a job that names its files itself writes a path again, and each file's rows stay in one of the
tiers; a file whose time or token changed, but not its content, stays the same file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.errors import HandoffFailed
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle.lifecycle.copies import cold_copies
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.protection.foreign import warehouse

TABLE = "db.t"


class Job:
    """A table, and a job that names its files itself."""

    def __init__(self, lifecycle: Lifecycle, version: int = 2) -> None:
        self.lifecycle, self.live = lifecycle, lifecycle.config.catalogs.live.name
        self.folder = warehouse(lifecycle, "live") / "db" / "t" / "data"
        self.read: dict[int, list[int]] = {}
        self.sql("CREATE NAMESPACE IF NOT EXISTS {live}.db")
        self.sql(
            f"CREATE TABLE {{live}}.db.t (id int) USING iceberg TBLPROPERTIES ('format-version'='{version}', "
            "'write.delete.mode'='merge-on-read')"
        )

    def sql(self, statement: str) -> None:
        self.lifecycle.spark.sql(statement.replace("{live}", self.live))

    @property
    def java(self) -> Any:
        spark: Any = self.lifecycle.spark
        loaded = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            spark._jsparkSession, f"{self.live}.{TABLE}"
        )
        loaded.refresh()
        return loaded

    def write(self, path: Path, *ids: int) -> Path:
        """The job's own file at a path that it may have used before."""
        path.parent.mkdir(parents=True, exist_ok=True)
        field = pa.field("id", pa.int32(), metadata={"PARQUET:field_id": "1"})
        pq.write_table(pa.table({"id": pa.array(ids, pa.int32())}, pa.schema([field])), path, compression="none")
        return path

    def add(self, path: Path, *ids: int) -> int:
        """Replace the table's rows by a file of the job."""
        size = self.write(path, *ids).stat().st_size
        return self.added(path, size, *ids)

    def added(self, path: Path, size: int, *ids: int) -> int:
        table, jvm = self.java, self.lifecycle.spark._jvm
        assert jvm is not None
        iceberg = jvm.org.apache.iceberg
        file = iceberg.DataFiles.builder(table.spec()).withPath(f"file://{path}").withFormat("parquet")
        file = file.withFileSizeInBytes(size).withRecordCount(len(ids)).build()
        time.sleep(0.02)
        commit = table.newOverwrite().overwriteByRowFilter(iceberg.expressions.Expressions.alwaysTrue())
        commit.addFile(file).commit()
        return self.seen(*ids)

    def overwrite(self, number: int) -> int:
        self.sql(f"INSERT OVERWRITE {{live}}.db.t VALUES ({number})")
        return self.seen(number)

    def seen(self, *ids: int) -> int:
        now = int(self.java.currentSnapshot().snapshotId())
        self.read[now] = sorted(ids)
        return now

    def rows(self, snapshot_id: int) -> list[int]:
        return sorted(row["id"] for row in self.lifecycle.read(TABLE, snapshot_id=snapshot_id).collect())

    def expect_all_rows(self) -> None:
        assert {each: self.rows(each) for each in self.read} == self.read


@pytest.fixture
def job(make_config: MakeConfig, spark: SparkSession) -> Iterator[Job]:
    with Lifecycle.open(make_config(defaults=AT_ONCE), spark=spark) as opened:
        yield Job(opened)


@pytest.mark.parametrize("place", ["inside", "outside"])
@pytest.mark.parametrize("ids", [(4, 5), (4, 5, 6, 7)], ids=["same size", "other size"])
def test_a_file_at_the_path_of_an_archived_one_is_archived_too(
    job: Job, place: str, ids: tuple[int, ...], tmp_path: Path
) -> None:
    part = (job.folder if place == "inside" else tmp_path / "landing") / "part-0.parquet"
    job.add(part, 1, 2)
    job.overwrite(90)
    job.lifecycle.expire(TABLE)
    os.path.exists(part) and part.unlink()  # Files outside are not owned; the job itself removes them.

    job.add(part, *ids)
    job.overwrite(91)
    report = job.lifecycle.expire(TABLE)
    assert report.kept == 0 or place == "outside"
    assert part.exists() == (place == "outside")

    part.unlink(missing_ok=True)
    job.add(part, 8, 9)
    job.overwrite(92)
    job.lifecycle.expire(TABLE)
    job.expect_all_rows()


def test_of_two_files_at_a_path_in_one_plan_the_overwritten_one_is_lost_and_never_another_ones_rows(job: Job) -> None:
    part = job.folder / "part-0.parquet"
    first = job.add(part, 1, 2)
    job.overwrite(90)
    second = job.add(part, 4, 5)
    job.overwrite(91)
    plan = job.lifecycle.plan_expiration(TABLE)
    with pytest.raises(HandoffFailed, match=r"overwritten.*cannot be archived") as refused:
        job.lifecycle.hand_off(plan)
    assert str(part) in str(refused.value) and str(first) in str(refused.value)
    assert part.exists()

    job.lifecycle.approve(plan.plan_id, who="ann", why="the job overwrote it", what="lost")
    done = job.lifecycle.hand_off(plan)
    assert (done.lost, second in done.archived) == ((first,), True)
    job.lifecycle.commit_expiration(plan)
    job.lifecycle.delete_files(plan)
    assert not part.exists()
    del job.read[first]
    job.expect_all_rows()


def test_a_file_overwritten_by_one_that_stays_live_is_lost_to_its_snapshot(job: Job) -> None:
    part = job.folder / "part-0.parquet"
    first = job.add(part, 1, 2)
    job.overwrite(90)
    job.add(part, 4, 5)
    with pytest.raises(HandoffFailed, match="overwritten") as refused:
        job.lifecycle.hand_off(job.lifecycle.plan_expiration(TABLE, snapshot_ids=[first]))
    assert str(first) in str(refused.value)


def test_a_file_that_was_only_touched_is_archived_once_and_deleted(job: Job) -> None:
    part = job.folder / "part-0.parquet"
    first = job.add(part, 1, 2)
    job.overwrite(90)
    os.utime(part)  # Later than all commits.
    plan = job.lifecycle.plan_expiration(TABLE)
    assert job.lifecycle.hand_off(plan).archived == (first,)
    os.utime(part, (1, 1))
    job.lifecycle.commit_expiration(plan)
    job.lifecycle.delete_files(plan)
    assert not part.exists()
    job.expect_all_rows()


def test_a_file_put_at_an_archived_path_before_the_deletion_stays(job: Job) -> None:
    part = job.folder / "part-0.parquet"
    job.add(part, 1, 2)
    job.overwrite(90)
    plan = job.lifecycle.plan_expiration(TABLE)
    job.lifecycle.hand_off(plan)
    job.lifecycle.commit_expiration(plan)
    job.write(part, 4, 5)
    os.utime(part, (1, 1))  # Not by its time.
    job.lifecycle.delete_files(plan)
    assert part.exists()
    job.expect_all_rows()


def test_the_same_file_added_again_is_compared_once_and_not_copied_again(job: Job) -> None:
    part = job.folder / "part-0.parquet"
    first = job.add(part, 1, 2)
    job.overwrite(90)
    hold = job.lifecycle.hold(TABLE, "ann", "still in use", [first])
    size = part.stat().st_size
    again = job.added(part, size, 1, 2)
    job.overwrite(91)
    job.lifecycle.release(hold.hold_id)
    job.lifecycle.hand_off(job.lifecycle.plan_expiration(TABLE, snapshot_ids=[first]))
    plan = job.lifecycle.plan_expiration(TABLE)
    done = job.lifecycle.hand_off(plan)
    assert again in done.archived
    copies = cold_copies(job.lifecycle.resources, TABLE, plan.table_uuid)
    assert copies is not None
    assert copies.recorded([f"file://{part}"])[f"file://{part}"].destination.endswith("/db/t/data/part-0.parquet")
    job.expect_all_rows()


@pytest.mark.parametrize("version", [2, 3], ids=["position deletes", "deletion vectors"])
def test_deletes_apply_to_the_file_that_they_meant(make_config: MakeConfig, spark: SparkSession, version: int) -> None:
    with Lifecycle.open(make_config(defaults=AT_ONCE), spark=spark) as lifecycle:
        job = Job(lifecycle, version)
        part = job.folder / "part-0.parquet"
        for ids in ((1, 2, 3), (4, 5, 6)):
            job.add(part, *ids)
            job.sql(f"DELETE FROM {{live}}.db.t WHERE id = {ids[0]}")
            job.seen(*ids[1:])
            job.overwrite(90 + ids[0])
            lifecycle.expire(TABLE)
            assert not part.exists()
        job.expect_all_rows()
        # And back in live, beside a third file at the path.
        job.add(part, 7, 8)
        for number, (snapshot_id, ids) in enumerate(list(job.read.items())[:-2]):
            if job.lifecycle.restore(TABLE, snapshot_id, f"back_{number}").copied_files:
                found = spark.sql(f"SELECT id FROM {job.live}.db.t.branch_back_{number}").collect()
                assert sorted(row["id"] for row in found) == ids
        assert pq.read_table(part).column("id").to_pylist() == [7, 8]


def test_the_ledger_says_what_each_source_was(job: Job) -> None:
    part = job.folder / "part-0.parquet"
    first = job.add(part, 1, 2)
    status = part.stat()
    job.overwrite(90)
    plan = job.lifecycle.plan_expiration(TABLE)
    job.lifecycle.hand_off(plan)
    resources = job.lifecycle.resources
    ledger = handoff_ledger(resources.live_stores, resources.root, plan.table_uuid)
    copies = cold_copies(resources, TABLE, plan.table_uuid)
    assert copies is not None
    copy = copies.recorded([f"file://{part}"])[f"file://{part}"]
    assert copy.source_identity is not None
    assert (copy.added_by, copy.source_identity.modified) == (first, status.st_mtime_ns // 1000)
    assert (copy.source_checksum, not ledger.is_empty()) == (copy.checksum, True)
