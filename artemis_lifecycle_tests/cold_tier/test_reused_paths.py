"""A path is not a file: a job that names its files itself writes a path again, and each file's rows stay in one of the
tiers; a file whose time or token changed, but not its content, stays the same file."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.cold_tier.rewriting import rewrite_manifest_list
from artemis_lifecycle.errors import HandoffFailed, LifecycleError
from artemis_lifecycle.metadata.manifest_lists import read_manifest_list
from artemis_lifecycle.session.contexts import cold_copies
from artemis_lifecycle.storage.local.store import LocalStore
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.storage import s3_server

TABLE = "db.t"


def on_disk(path: str) -> Path:
    return Path(path.removeprefix("file://"))


class Job:
    """A table, and a job that names its files itself."""

    def __init__(self, lifecycle: Lifecycle, version: int = 2) -> None:
        self.lifecycle, self.live = lifecycle, lifecycle.config.catalogs.live.name
        self.folder = f"{lifecycle.config.catalogs.live.warehouse}/db/t/data"
        self.stores = lifecycle.resources.live_stores
        self.read: dict[int, list[int]] = {}
        self.sql("CREATE NAMESPACE IF NOT EXISTS {live}.db")
        self.sql(
            f"CREATE TABLE {{live}}.db.t (id int) USING iceberg TBLPROPERTIES ('format-version'='{version}', "
            "'write.delete.mode'='merge-on-read')"
        )

    def sql(self, statement: str) -> None:
        core_tables.sql(self.lifecycle.spark, statement.replace("{live}", self.live))

    @property
    def java(self) -> Any:
        spark: Any = self.lifecycle.spark
        loaded = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            spark._jsparkSession, f"{self.live}.{TABLE}"
        )
        loaded.refresh()
        return loaded

    def write(self, path: str, *ids: int) -> int:
        """The job's own file at a path that it may have used before."""
        field = pa.field("id", pa.int32(), metadata={"PARQUET:field_id": "1"})
        out = io.BytesIO()
        pq.write_table(pa.table({"id": pa.array(ids, pa.int32())}, pa.schema([field])), out, compression="none")
        return self.stores.write(path, out.getvalue(), overwrite=True).size_in_bytes

    def exists(self, path: str) -> bool:
        return self.stores.head(path) is not None

    def add(self, path: str, *ids: int) -> int:
        """Replace the table's rows by a file of the job."""
        return self.added(path, self.write(path, *ids), *ids)

    def added(self, path: str, size: int, *ids: int) -> int:
        return self.commit({path: (size, ids)})

    def commit(self, files: Mapping[str, tuple[int, tuple[int, ...]]]) -> int:
        """Replace the table's rows by files of these sizes and ids."""
        table, jvm = self.java, self.lifecycle.spark._jvm
        assert jvm is not None
        iceberg = jvm.org.apache.iceberg
        time.sleep(0.02)
        commit = table.newOverwrite().overwriteByRowFilter(iceberg.expressions.Expressions.alwaysTrue())
        for path, (size, ids) in files.items():
            file = iceberg.DataFiles.builder(table.spec()).withPath(path).withFormat("parquet")
            commit = commit.addFile(file.withFileSizeInBytes(size).withRecordCount(len(ids)).build())
        commit.commit()
        return self.seen(*(each for _, ids in files.values() for each in ids))

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
    with open_lifecycle(make_config(defaults=AT_ONCE), spark=spark) as opened:
        yield Job(opened)


def test_a_file_at_the_path_of_an_archived_one_is_archived_too(job: Job, tmp_path: Path) -> None:
    """Of the same size and of another one, in the table's folder and outside it: four paths of one job."""
    places = {"inside": job.folder, "outside": f"file://{tmp_path}/landing"}
    parts = {(place, rows): f"{at}/part-{rows}.parquet" for place, at in places.items() for rows in (2, 4)}

    def add(first: int, *, again: bool) -> None:
        """Each path gets two rows, or as many as its name says."""
        ids = {
            path: tuple(range(first + 10 * number, first + 10 * number + (rows if again else 2)))
            for number, ((_, rows), path) in enumerate(parts.items())
        }
        job.commit({path: (job.write(path, *each), each) for path, each in ids.items()})

    add(100, again=False)
    job.overwrite(90)
    job.lifecycle.expire(TABLE)

    add(200, again=True)
    job.overwrite(91)
    job.lifecycle.expire(TABLE)
    for (place, _), path in parts.items():
        assert job.exists(path) == (place == "outside")  # Which is not owned: the job itself replaces it.

    add(300, again=False)
    job.overwrite(92)
    job.lifecycle.expire(TABLE)
    job.expect_all_rows()


def test_a_file_put_in_place_with_the_size_and_time_of_the_archived_one_is_archived_too(job: Job) -> None:
    part = f"{job.folder}/part-0.parquet"
    job.add(part, 1, 2)
    was = on_disk(part).stat()
    job.overwrite(90)
    plan = job.lifecycle.plan_expiration(TABLE)
    job.lifecycle.hand_off(plan)
    size = job.write(part, 4, 5)
    os.utime(on_disk(part), ns=(was.st_atime_ns, was.st_mtime_ns))
    job.added(part, size, 4, 5)
    job.lifecycle.commit_expiration(plan)
    job.lifecycle.delete_files(plan)
    assert job.exists(part)
    job.overwrite(91)
    job.lifecycle.expire(TABLE)
    job.expect_all_rows()


@pytest.mark.parametrize("how", ["moved in", "linked", "written with the old time"])
def test_a_file_that_took_an_unarchived_ones_place_is_never_archived_as_that(job: Job, how: str) -> None:
    """Its modification time is before the commit of the file whose path it took."""
    part, staged = f"{job.folder}/part-0.parquet", f"{job.folder}/staged.parquet"
    job.write(staged, 4, 5)
    first = job.add(part, 1, 2)
    was = on_disk(part).stat()
    job.overwrite(90)
    plan = job.lifecycle.plan_expiration(TABLE)
    if how == "moved in":
        on_disk(staged).replace(on_disk(part))
    elif how == "linked":
        on_disk(part).unlink()
        os.link(on_disk(staged), on_disk(part))
    else:
        job.write(part, 4, 5)
        os.utime(on_disk(part), ns=(was.st_atime_ns, was.st_mtime_ns))
    job.added(part, was.st_size, 4, 5)
    with pytest.raises(HandoffFailed, match="overwritten") as refused:
        job.lifecycle.hand_off(plan)
    assert str(first) in str(refused.value)


def test_of_two_files_at_a_path_in_one_plan_the_overwritten_one_is_lost_and_never_another_ones_rows(job: Job) -> None:
    part = f"{job.folder}/part-0.parquet"
    first = job.add(part, 1, 2)
    job.overwrite(90)
    second = job.add(part, 4, 5)
    job.overwrite(91)
    plan = job.lifecycle.plan_expiration(TABLE)
    with pytest.raises(HandoffFailed, match=r"overwritten.*cannot be archived") as refused:
        job.lifecycle.hand_off(plan)
    assert part in str(refused.value) and str(first) in str(refused.value)
    assert job.exists(part)

    job.lifecycle.approve(plan.plan_id, who="ann", why="the job overwrote it", what="lost")
    done = job.lifecycle.hand_off(plan)
    assert (done.lost, second in done.archived) == ((first,), True)
    job.lifecycle.commit_expiration(plan)
    job.lifecycle.delete_files(plan)
    assert not job.exists(part)
    del job.read[first]
    job.expect_all_rows()


def test_a_file_overwritten_by_one_that_stays_live_is_lost_to_its_snapshot(job: Job) -> None:
    part = f"{job.folder}/part-0.parquet"
    first = job.add(part, 1, 2)
    job.overwrite(90)
    job.add(part, 4, 5)
    with pytest.raises(HandoffFailed, match="overwritten") as refused:
        job.lifecycle.hand_off(job.lifecycle.plan_expiration(TABLE, snapshot_ids=[first]))
    assert str(first) in str(refused.value)


def test_a_file_that_was_only_touched_is_archived_once_and_deleted(job: Job) -> None:
    part = f"{job.folder}/part-0.parquet"
    first = job.add(part, 1, 2)
    job.overwrite(90)
    os.utime(on_disk(part))  # Later than all commits.
    plan = job.lifecycle.plan_expiration(TABLE)
    assert job.lifecycle.hand_off(plan).archived == (first,)
    os.utime(on_disk(part), (1, 1))
    job.lifecycle.commit_expiration(plan)
    job.lifecycle.delete_files(plan)
    assert not job.exists(part)
    job.expect_all_rows()


def test_a_file_put_at_an_archived_path_before_the_deletion_stays(job: Job) -> None:
    part = f"{job.folder}/part-0.parquet"
    job.add(part, 1, 2)
    job.overwrite(90)
    plan = job.lifecycle.plan_expiration(TABLE)
    job.lifecycle.hand_off(plan)
    job.lifecycle.commit_expiration(plan)
    job.write(part, 4, 5)
    os.utime(on_disk(part), (1, 1))  # Not by its time.
    job.lifecycle.delete_files(plan)
    assert job.exists(part)
    said = job.lifecycle.explain(TABLE, part)
    assert said.verdict == "kept" and any("another_file" in reason for reason in said.reasons)
    job.expect_all_rows()


def test_two_committed_plans_that_name_one_path_do_not_wait_for_each_other(job: Job) -> None:
    part = f"{job.folder}/part-0.parquet"
    plans = []
    for ids in ((1, 2), (4, 5)):
        job.add(part, *ids)
        job.overwrite(ids[0] * 10)
        plans.append(job.lifecycle.plan_expiration(TABLE))
        job.lifecycle.hand_off(plans[-1])
        job.lifecycle.commit_expiration(plans[-1])
    older, younger = plans
    job.lifecycle.delete_files(older)
    assert job.exists(part)  # The younger plan's file: that one's grace counts.
    job.lifecycle.delete_files(younger)
    assert not job.exists(part)
    job.lifecycle.delete_files(older)
    assert [record.status for record in job.lifecycle.plans(TABLE)] == ["done", "done"]
    job.expect_all_rows()


def test_a_restore_takes_from_the_archive_what_a_job_has_overwritten_in_live(job: Job) -> None:
    path = f"{job.folder}/part-0.parquet"
    first = job.add(path, 1, 2)
    job.overwrite(3)
    job.lifecycle.hand_off(job.lifecycle.plan_expiration(TABLE))
    same = job.lifecycle.restore(TABLE, first, "same")
    assert not same.copied_files and same.snapshot_id == first
    job.write(path, 8, 9)
    done = job.lifecycle.restore(TABLE, first, "back")
    assert done.copied_files
    rows = job.lifecycle.spark.sql(f"SELECT id FROM {job.live}.db.t VERSION AS OF 'back'").collect()
    assert sorted(row["id"] for row in rows) == job.read.pop(first)


def test_the_same_file_added_again_is_compared_once_and_not_copied_again(job: Job) -> None:
    part = f"{job.folder}/part-0.parquet"
    first = job.add(part, 1, 2)
    job.overwrite(90)
    hold = job.lifecycle.hold(TABLE, "ann", "still in use", [first])
    size = on_disk(part).stat().st_size
    again = job.added(part, size, 1, 2)
    job.overwrite(91)
    job.lifecycle.release(hold.hold_id)
    job.lifecycle.hand_off(job.lifecycle.plan_expiration(TABLE, snapshot_ids=[first]))
    plan = job.lifecycle.plan_expiration(TABLE)
    done = job.lifecycle.hand_off(plan)
    assert again in done.archived
    copies = cold_copies(job.lifecycle.resources, TABLE, plan.table_uuid)
    assert copies is not None
    assert copies.recorded([part])[part][-1].destination.endswith("/db/t/data/part-0.parquet")
    job.expect_all_rows()


@pytest.mark.parametrize(
    "version", [2, 3, 4], ids=["position deletes", "deletion vectors", "deletion vectors in Parquet"]
)
def test_deletes_apply_to_the_file_that_they_meant(make_config: MakeConfig, spark: SparkSession, version: int) -> None:
    with open_lifecycle(make_config(defaults=AT_ONCE), spark=spark) as lifecycle:
        job = Job(lifecycle, version)
        part = f"{job.folder}/part-0.parquet"
        for ids in ((1, 2, 3), (4, 5, 6)):
            job.add(part, *ids)
            job.sql(f"DELETE FROM {{live}}.db.t WHERE id = {ids[0]}")
            job.seen(*ids[1:])
            job.overwrite(90 + ids[0])
            lifecycle.expire(TABLE)
            assert not job.exists(part)
        job.expect_all_rows()
        # And back in live, beside a third file at the path.
        job.add(part, 7, 8)
        for number, (snapshot_id, ids) in enumerate(list(job.read.items())[:-2]):
            if job.lifecycle.restore(TABLE, snapshot_id, f"back_{number}").copied_files:
                found = spark.sql(f"SELECT id FROM {job.live}.db.t.branch_back_{number}").collect()
                assert sorted(row["id"] for row in found) == ids
        assert pq.read_table(on_disk(part)).column("id").to_pylist() == [7, 8]


def test_the_ledger_says_what_each_source_was(job: Job) -> None:
    part = f"{job.folder}/part-0.parquet"
    first = job.add(part, 1, 2)
    status = on_disk(part).stat()
    job.overwrite(90)
    plan = job.lifecycle.plan_expiration(TABLE)
    job.lifecycle.hand_off(plan)
    resources = job.lifecycle.resources
    ledger = handoff_ledger(resources.live_stores, resources.root, plan.table_uuid)
    copies = cold_copies(resources, TABLE, plan.table_uuid)
    assert copies is not None
    copy = copies.recorded([part])[part][-1]
    assert copy.source_identity is not None
    assert (copy.added_by, copy.source_identity.modified) == (first, status.st_mtime_ns // 1000)
    assert (copy.source_checksum, not ledger.is_empty()) == (copy.checksum, True)


def test_another_manifest_and_another_list_at_reused_paths_are_archived_too(job: Job) -> None:
    part = f"{job.folder}/part-0.parquet"
    job.add(part, 1, 2)
    before = job.java.currentSnapshot().manifestListLocation()
    manifest = read_manifest_list(job.stores, before).entries[0].manifest_path
    job.overwrite(90)
    job.lifecycle.expire(TABLE)
    assert not job.exists(before) and not job.exists(manifest)

    job.add(part, 4, 5)
    now = job.java.currentSnapshot().manifestListLocation()
    own = [each for each in read_manifest_list(job.stores, now).entries if each.added_files_count]
    data = job.stores.read(own[0].manifest_path)
    job.stores.write(manifest, data, overwrite=True)
    others = {each.manifest_path: each.manifest_length for each in read_manifest_list(job.stores, now).entries}
    moved = lambda path: manifest if path == own[0].manifest_path else path  # noqa: E731
    lengths = {moved(path): size for path, size in others.items()}
    job.stores.write(before, rewrite_manifest_list(job.stores.read(now), now, moved, lengths), overwrite=True)
    # The writer names all its files itself.
    pointer = job.java.operations().current().metadataFileLocation()
    metadata = job.stores.read(pointer).decode().replace(now.rpartition("/")[2], before.rpartition("/")[2])
    moved_pointer = pointer.replace("00", "10", 1)
    job.stores.write(moved_pointer, metadata.encode())
    with job.lifecycle.operations.engine.begin() as connection:
        connection.execute(
            text("UPDATE iceberg_tables SET metadata_location = :new WHERE metadata_location = :old"),
            {"new": moved_pointer, "old": pointer},
        )
    assert job.java.currentSnapshot().manifestListLocation() == before
    job.overwrite(91)
    job.lifecycle.expire(TABLE)
    job.expect_all_rows()


def test_a_night_without_reuse_asks_the_stores_nothing_about_known_files(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only new files are looked at: a shared file of yesterday costs no request."""
    job.sql("INSERT INTO {live}.db.t VALUES (1)")
    kept = str(job.lifecycle.spark.sql(f"SELECT _file FROM {job.live}.db.t").collect()[0][0])
    for number in range(3):
        job.sql(f"INSERT INTO {{live}}.db.t VALUES ({number + 2})")
    ids = [snapshot.snapshot_id for snapshot in job.lifecycle.snapshot_history(TABLE).snapshots]
    hold = job.lifecycle.hold(TABLE, "ann", "not yet", ids[2:])
    assert job.lifecycle.hand_off(job.lifecycle.plan_expiration(TABLE)).archived == tuple(ids[:2])
    job.lifecycle.release(hold.hold_id)
    plan = job.lifecycle.plan_expiration(TABLE)
    asked: list[str] = []

    def whole_table(*_: object) -> None:
        raise AssertionError("all manifests of the table were read")

    monkeypatch.setattr("artemis_lifecycle.cold_tier.needed.uses_of", whole_table)
    for name in ("head", "open", "read", "checksum"):
        inner = getattr(Stores, name)

        def noted(self: Stores, path: str, *args: Any, inner: Any = inner, **more: Any) -> Any:
            asked.append(path)
            return inner(self, path, *args, **more)

        monkeypatch.setattr(Stores, name, noted)
    heads = Stores.heads
    monkeypatch.setattr(Stores, "heads", lambda self, paths: [asked.extend(paths), heads(self, paths)][1])
    assert job.lifecycle.hand_off(plan).archived == tuple(ids[:3])
    assert kept.removeprefix("file:").lstrip("/") not in {path.removeprefix("file:").lstrip("/") for path in asked}
    new = [path for path in asked if "/live/" in path and "/data/" in path]
    assert new, asked
    assert len(new) <= 3 and len(set(new)) == 1  # Before and after its copy, and for its bytes.


def test_a_migrated_store_is_one_message_and_one_command(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("artemis_lifecycle.deletion.identities._HASHED_FILES", 1)
    for number in range(3):
        job.overwrite(number)
    plan = job.lifecycle.plan_expiration(TABLE)
    job.lifecycle.hand_off(plan)
    job.lifecycle.commit_expiration(plan)

    def moved(at: int) -> None:
        for file in on_disk(job.folder).parent.rglob("*"):
            if file.is_file():
                os.utime(file, (at, at))

    moved(2)
    assert job.lifecycle.delete_files(plan).kept > 0  # No endless reading by the deletion.
    moved(3)
    done = job.lifecycle.renew_identities(TABLE, who="ann", why="moved to new disks")
    assert done.renewed >= 3 and not done.others
    assert job.lifecycle.renew_identities(TABLE, who="ann", why="again").renewed == 0
    assert job.lifecycle.delete_files(plan).deleted > 0
    job.expect_all_rows()


def test_a_lost_copy_is_never_made_again_from_another_file_at_its_path(job: Job) -> None:
    part = f"{job.folder}/part-0.parquet"
    first = job.add(part, 1, 2)
    job.overwrite(90)
    plan = job.lifecycle.plan_expiration(TABLE)
    job.lifecycle.hand_off(plan)
    copies = cold_copies(job.lifecycle.resources, TABLE, plan.table_uuid)
    assert copies is not None
    on_disk(copies.recorded([part])[part][-1].destination).unlink()
    job.write(part, 4, 5)
    with pytest.raises(HandoffFailed, match="Another file is at the live path now"):
        job.lifecycle.commit_expiration(plan)
    job.write(part, 1, 2)  # The same content; its time and inode differ.
    job.lifecycle.commit_expiration(plan)
    assert job.lifecycle.delete_files(plan).deleted > 0
    assert job.rows(first) == [1, 2]


def test_a_reused_path_and_a_replicated_bucket_on_s3(make_config: MakeConfig, spark: SparkSession) -> None:
    with s3_server.running_anywhere() as s3:
        bucket = s3.bucket()
        access = {
            "s3.endpoint": s3.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": s3_server.ACCESS_KEY,
            "s3.secret-access-key": s3_server.SECRET_KEY,
            **({} if s3.session_token is None else {"s3.session-token": s3.session_token}),
        }
        catalogs = {tier: {"warehouse": f"s3://{bucket}/{tier}", "properties": access} for tier in ("live", "cold")}
        config = make_config(catalogs=catalogs, operations={"root": f"s3://{bucket}/state"}, defaults=AT_ONCE)
        with open_lifecycle(config, spark=spark) as lifecycle:
            job = Job(lifecycle)
            part = f"{job.folder}/part-0.parquet"
            for number, ids in enumerate(((1, 2), (4, 5))):
                job.add(part, *ids)
                job.overwrite(90 + number)
                plan = lifecycle.plan_expiration(TABLE)
                lifecycle.hand_off(plan)
                lifecycle.commit_expiration(plan)
                key = part.removeprefix(f"s3://{bucket}/")
                time.sleep(1.1)  # S3's times are of whole seconds.
                s3.client().copy_object(
                    Bucket=bucket,
                    Key=key,
                    CopySource=f"{bucket}/{key}",
                    MetadataDirective="REPLACE",
                    Metadata={"a": "b"},
                )
                lifecycle.delete_files(plan)
                assert not job.exists(part)
            job.expect_all_rows()


def test_files_that_an_audited_write_added_twice_are_not_taken_for_others(job: Job) -> None:
    """A cherry-pick adds the files of a staged snapshot again, within the grain of the store's times."""
    job.overwrite(1)
    part = f"{job.folder}/part-0.parquet"
    size = job.write(part, 2)
    jvm: Any = job.lifecycle.spark._jvm
    file = jvm.org.apache.iceberg.DataFiles.builder(job.java.spec()).withPath(part).withFormat("parquet")
    file = file.withFileSizeInBytes(size).withRecordCount(1).build()
    job.java.newAppend().appendFile(file).stageOnly().commit()
    staged = {int(each.snapshotId()) for each in job.java.snapshots()} - set(job.read)
    job.sql("INSERT INTO {live}.db.t VALUES (3)")
    job.seen(1, 3)
    job.java.manageSnapshots().cherrypick(*staged).commit()
    job.seen(1, 2, 3)
    job.overwrite(90)
    plan = job.lifecycle.plan_expiration(TABLE)
    assert set(job.lifecycle.hand_off(plan).archived) == {*staged, *job.read} - {list(job.read)[-1]}
    job.lifecycle.commit_expiration(plan)
    job.lifecycle.delete_files(plan)
    job.expect_all_rows()


def test_a_file_never_takes_the_place_of_an_archived_one_whose_record_was_lost(job: Job) -> None:
    part = f"{job.folder}/part-0.parquet"
    job.add(part, 1, 2)
    job.overwrite(90)
    job.lifecycle.expire(TABLE)
    uuid = job.lifecycle.steps.table_state(TABLE).metadata.table_uuid
    shutil.rmtree(on_disk(str(job.lifecycle.config.operations.root)) / "cold" / uuid / "copies")

    job.add(part, 4, 5)
    job.overwrite(91)
    plan = job.lifecycle.plan_expiration(TABLE)
    with pytest.raises(HandoffFailed, match="was not overwritten"):
        job.lifecycle.hand_off(plan)
    job.expect_all_rows()


def test_a_file_rewritten_in_place_with_its_old_size_and_time_is_another_file_once_it_is_committed(job: Job) -> None:
    part = f"{job.folder}/part-0.parquet"
    job.add(part, 1, 2)
    job.overwrite(90)
    job.lifecycle.hand_off(job.lifecycle.plan_expiration(TABLE))

    before, other = on_disk(part).stat(), f"{job.folder}/other.parquet"
    job.write(other, 4, 5)
    with on_disk(part).open("wb") as file:
        file.write(on_disk(other).read_bytes())
    on_disk(other).unlink()
    os.utime(part.removeprefix("file://"), ns=(before.st_atime_ns, before.st_mtime_ns))
    now = on_disk(part).stat()
    assert (now.st_ino, now.st_size, now.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    job.added(part, now.st_size, 4, 5)
    job.overwrite(91)
    for _ in range(2):
        with suppress(LifecycleError):
            job.lifecycle.expire(TABLE)
    job.expect_all_rows()


def test_a_file_at_a_path_that_another_table_archived_goes_to_the_tables_own_folder(job: Job) -> None:
    part = f"{job.folder}/part-0.parquet"
    first = job.add(part, 1, 2)
    job.overwrite(90)
    job.lifecycle.expire(TABLE)
    assert not job.exists(part)

    job.sql("CREATE TABLE {live}.db.other (id int) USING iceberg")
    spark: Any = job.lifecycle.spark
    load = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable
    other, iceberg = load(spark._jsparkSession, f"{job.live}.db.other"), spark._jvm.org.apache.iceberg
    size = job.write(part, 4, 5)
    file = iceberg.DataFiles.builder(other.spec()).withPath(part).withFormat("parquet")
    time.sleep(0.02)
    other.newAppend().appendFile(file.withFileSizeInBytes(size).withRecordCount(2).build()).commit()
    spark.catalog.refreshTable(f"{job.live}.db.other")
    second = job.lifecycle.snapshot_history("db.other").current_snapshot_id
    job.sql("INSERT OVERWRITE {live}.db.other VALUES (9)")
    job.lifecycle.expire("db.other")
    assert sorted(row["id"] for row in job.lifecycle.read("db.other", snapshot_id=second).collect()) == [4, 5]
    assert job.rows(first) == [1, 2]


@pytest.mark.parametrize("records", ["kept", "lost", "put back"])
@pytest.mark.parametrize("archived", [0, 1], ids=["the first", "the second"])
def test_an_older_file_whose_path_a_younger_one_took_and_was_archived_first_is_lost(
    job: Job, archived: int, records: str
) -> None:
    """By then the live table names only the older snapshot: the archive knows of the younger one, by its `records`.
    `archived`: files that were archived from the path before both."""
    path = f"{job.folder}/part-0.parquet"
    job.overwrite(88)
    if archived:
        job.add(path, 7, 8)
    job.overwrite(89)
    job.lifecycle.expire(TABLE)
    copies = on_disk(job.lifecycle.config.operations.root) / "cold" / job.lifecycle.steps.table_uuid(TABLE) / "copies"
    backup = copies.with_name("backup")
    shutil.copytree(copies, backup)
    older = job.add(path, 1, 2)
    job.sql("ALTER TABLE {live}.db.t CREATE TAG keep")
    job.overwrite(90)
    younger = job.add(path, 4, 5)
    job.overwrite(91)
    job.lifecycle.expire(TABLE)
    job.sql("ALTER TABLE {live}.db.t DROP TAG keep")
    if records != "kept":
        shutil.rmtree(copies)
    if records == "put back":
        backup.rename(copies)
    with pytest.raises(HandoffFailed) as failed:
        job.lifecycle.expire(TABLE)
    if records == "kept":
        assert "which was archived before it" in str(failed.value)
    if records != "lost" or not archived:
        assert str(older) in str(failed.value)
    assert job.exists(path)
    assert job.rows(younger) == [4, 5]


def test_a_file_that_a_younger_snapshot_added_again_is_archived_for_the_older_one_too(job: Job) -> None:
    path = f"{job.folder}/part-0.parquet"
    size = job.write(path, 1, 2)
    time.sleep(0.05)
    job.added(path, size, 1, 2)
    job.sql("ALTER TABLE {live}.db.t CREATE TAG keep")
    job.overwrite(90)
    job.added(path, size, 1, 2)
    job.overwrite(91)
    job.lifecycle.expire(TABLE)
    job.sql("ALTER TABLE {live}.db.t DROP TAG keep")
    job.lifecycle.expire(TABLE)
    job.expect_all_rows()


def test_a_copy_in_the_deep_archive_stands_for_no_file_that_was_written_again(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    """A deterministic job writes the same bytes at its path again: what a query can read now stays readable."""
    config = make_config(defaults={**AT_ONCE, "cold_tier": {"retain": "1ms"}}, tables={"db.*": {}})
    with Lifecycle.open(config, spark=spark) as lifecycle:
        job = Job(lifecycle)
        path = f"{job.folder}/part-0.parquet"
        first = job.add(path, 1, 2)
        for number in (88, 89, 90):
            job.overwrite(number)
        lifecycle.expire(TABLE)
        assert lifecycle.deep_archive(TABLE).moved_files
        assert lifecycle.route(TABLE, snapshot_id=first).tier != "cold"
        again = job.add(path, 1, 2)
        for number in (91, 92):
            job.overwrite(number)
        lifecycle.expire(TABLE)
        assert not job.exists(path)
        assert job.rows(again) == [1, 2]


# Of format version 4, a path without a scheme is refused: later drafts have relative ones.
@pytest.mark.parametrize("version", [2, 3])
def test_a_delete_of_one_spelling_of_a_file_leaves_the_other_in_every_tier(job: Job, version: int) -> None:
    """Iceberg reads a file that was added as `file:///x` and as `file:/x` twice, and deletes rows of one of them."""
    core_tables.sql(
        job.lifecycle.spark,
        f"CREATE TABLE {job.live}.db.s (id int, p int) USING iceberg PARTITIONED BY (p) TBLPROPERTIES ("
        f"'format-version'='{version}', 'write.delete.mode'='merge-on-read', 'write.delete.granularity'='partition')",
    )
    path = f"{job.lifecycle.config.catalogs.live.warehouse}/db/s/data/part-0.parquet"
    size = job.write(path, 1, 2, 3)
    jvm: Any = job.lifecycle.spark._jvm
    spark: Any = job.lifecycle.spark
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, f"{job.live}.db.s")
    append = table.newAppend()
    for number, spelled in enumerate([path, path.replace("file:///", "file:/"), path.removeprefix("file://")]):
        file = jvm.org.apache.iceberg.DataFiles.builder(table.spec()).withPath(spelled).withFormat("parquet")
        file = file.withPartitionPath(f"p={number}").withFileSizeInBytes(size).withRecordCount(3).build()
        append.appendFile(file)
    append.commit()
    truth: dict[int, list[tuple[int, int]]] = {}

    def change(statement: str) -> None:
        spark.sql(statement.replace("{}", f"{job.live}.db.s"))
        table.refresh()
        rows = spark.sql(f"SELECT p, id FROM {job.live}.db.s").collect()
        truth[int(table.currentSnapshot().snapshotId())] = sorted((row[0], row[1]) for row in rows)

    change("DELETE FROM {} WHERE id = 2 AND p = 1")
    change("DELETE FROM {} WHERE id = 1 AND p IN (0, 2)")
    assert [len(rows) for rows in truth.values()] == [8, 6]
    *deleted, last = truth.items()
    change("INSERT OVERWRITE {} VALUES (9, 9)")
    job.lifecycle.expire("db.s")
    assert not job.exists(path)
    for snapshot_id, rows in [*deleted, last]:
        found = job.lifecycle.read("db.s", snapshot_id=snapshot_id).collect()
        assert sorted((row["p"], row["id"]) for row in found) == rows
    job.lifecycle.restore("db.s", snapshot_id=last[0], branch="back", who="ann", why="a test")
    back = spark.sql(f"SELECT p, id FROM {job.live}.db.s VERSION AS OF 'back'").collect()
    assert sorted((row[0], row[1]) for row in back) == last[1]


@pytest.mark.parametrize("ledger", ["kept", "lost"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_copy_of_any_spelling_is_missed_before_the_file_goes(job: Job, lost: int, ledger: str) -> None:
    part = f"{job.folder}/part-0.parquet"
    size = job.write(part, 1, 2)
    job.added(part, size, 1, 2)
    job.added(part.replace("file:///", "file:/"), size, 1, 2)
    job.overwrite(90)
    plan = job.lifecycle.plan_expiration(TABLE)
    job.lifecycle.hand_off(plan)
    job.lifecycle.commit_expiration(plan)
    copies = sorted(on_disk(f"{job.lifecycle.config.catalogs.cold.warehouse}").rglob("part-0.parquet"))
    assert len(copies) == 2
    copies[lost].unlink()
    if ledger == "lost":
        uuid = job.lifecycle.steps.table_uuid(TABLE)
        folder = handoff_ledger(job.stores, job.lifecycle.resources.root, uuid).folder
        shutil.rmtree(on_disk(folder))
        job.lifecycle.delete_files(plan)
        assert job.exists(part)
        # It makes the copy again, and the record of it.
        job.lifecycle.hand_off(plan)
        assert copies[lost].exists()
        copies[lost].unlink()
    job.lifecycle.delete_files(plan)
    assert job.exists(part)


@pytest.mark.parametrize("archived_first", [True, False])
def test_a_path_written_again_under_another_spelling_is_another_file(job: Job, archived_first: bool) -> None:
    part = f"{job.folder}/part-0.parquet"
    job.add(part, 1, 2)
    job.overwrite(90)
    if archived_first:
        job.lifecycle.expire(TABLE)
    again = part.replace("file:///", "file:/")
    job.added(again, job.write(part, 4, 5), 4, 5)
    job.overwrite(91)
    if archived_first:
        job.lifecycle.expire(TABLE)
        job.expect_all_rows()
    else:
        with pytest.raises(HandoffFailed, match="overwritten"):
            job.lifecycle.expire(TABLE)
        assert job.exists(part)


@pytest.mark.parametrize("archived_first", ["the reader's", "the owner's"])
def test_two_tables_that_share_a_path_archive_copies_of_their_own(job: Job, archived_first: str) -> None:
    """A clone's rewritten delete files and manifests name its own places, and its file may be another one."""
    part, lifecycle = f"{job.folder}/part-0.parquet", job.lifecycle
    job.sql("CREATE TABLE {live}.db.other (id int) USING iceberg")
    size, spark = job.write(part, 1, 2), job.lifecycle.spark
    jvm: Any = spark._jvm
    path = f"{job.live}.db.other"
    other = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, path)
    file = jvm.org.apache.iceberg.DataFiles.builder(other.spec()).withPath(part).withFormat("parquet")
    other.newAppend().appendFile(file.withFileSizeInBytes(size).withRecordCount(2).build()).commit()
    taken = int(other.currentSnapshot().snapshotId())
    job.sql("INSERT OVERWRITE {live}.db.other VALUES (7)")

    if archived_first == "the reader's":
        lifecycle.expire("db.other")
    job.added(part, job.write(part, 4, 5, 6), 4, 5, 6)
    job.overwrite(90)
    if archived_first == "the owner's":
        lifecycle.hand_off(lifecycle.plan_expiration(TABLE))
        with pytest.raises(HandoffFailed, match=r"bytes, but the metadata records|overwritten"):
            lifecycle.expire("db.other")
    else:
        lifecycle.expire(TABLE)
        found = lifecycle.read("db.other", snapshot_id=taken).collect()
        assert sorted(row["id"] for row in found) == [1, 2]
        lifecycle.scrub_cold("db.other")
    job.expect_all_rows()


@pytest.mark.no_guardian(reason="the job writes over a file that a snapshot still reads")
def test_a_worker_that_was_stopped_before_a_copy_does_not_write_over_the_one_that_another_made(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on after another worker has finished its work, and a job has written the path again."""
    part = f"{job.folder}/part-0.parquet"
    job.add(part, 1, 2)
    job.overwrite(90)
    plan, put_stream, archived = job.lifecycle.plan_expiration(TABLE), LocalStore.put_stream, on_disk(part).read_bytes()
    places: list[Path] = []

    def late(self: LocalStore, path: str, chunks: Any, **more: Any) -> None:
        if path.endswith("/part-0.parquet") and not places:
            places.append(on_disk(path))
            places[0].parent.mkdir(parents=True, exist_ok=True)
            places[0].write_bytes(archived)
            job.write(part, 4, 5)
            chunks = [on_disk(part).read_bytes()]
        put_stream(self, path, chunks, **more)

    monkeypatch.setattr(LocalStore, "put_stream", late)
    with pytest.raises(HandoffFailed):
        job.lifecycle.hand_off(plan)
    assert places[0].read_bytes() == archived


def test_a_restored_file_that_two_snapshots_added_is_archived_again(job: Job) -> None:
    """A restore writes it once, later than both commits whose entries name it."""
    part = f"{job.folder}/part-0.parquet"
    size = job.write(part, 1, 2)
    table, jvm = job.java, job.lifecycle.spark._jvm
    assert jvm is not None
    for _ in range(2):
        file = jvm.org.apache.iceberg.DataFiles.builder(table.spec()).withPath(part).withFormat("parquet")
        table.newAppend().appendFile(file.withFileSizeInBytes(size).withRecordCount(2).build()).commit()
        table.refresh()
    twice = job.seen(1, 1, 2, 2)
    job.overwrite(90)
    job.lifecycle.expire(TABLE)
    restored = job.lifecycle.restore(TABLE, twice, "back")
    job.read[restored.snapshot_id] = job.read[twice]
    job.lifecycle.spark.sql(f"ALTER TABLE {job.live}.{TABLE} DROP BRANCH back")
    job.overwrite(91)
    job.lifecycle.expire(TABLE)
    job.expect_all_rows()
