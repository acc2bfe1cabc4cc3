"""The whole walk on S3: Spark writes and reads through Iceberg's own S3 access, everything else through ours."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import instance_for_test
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.defs.tags import PARTITIONS_NAME
from artemis_lifecycle.orphans.external_listing import Inventory, ParquetListing
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.cold_tier.world import Print, fingerprint
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.defs.conftest import DAGSTERS_OWN, Project, said, written
from artemis_lifecycle_tests.people import approve_thaw
from artemis_lifecycle_tests.policies import AND_ARCHIVED, AT_ONCE
from artemis_lifecycle_tests.storage import s3_server
from artemis_lifecycle_tests.storage.s3_server import S3Server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server.running_anywhere() as server:
        yield server


def _keys(s3: S3Server, bucket: str, prefix: str = "") -> dict[str, str]:
    """Storage class by key of a bucket's objects."""
    pages = s3.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return {item["Key"]: item["StorageClass"] for page in pages for item in page.get("Contents", ())}


def _written_down(s3: S3Server, bucket: str, lifecycle: Lifecycle) -> list[Inventory | ParquetListing]:
    """What the bucket has, as an inventory and as a listing in Parquet files that stand in it, the later in two."""
    client = s3.client()
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="live/")
    objects = [item for page in pages for item in page["Contents"]]
    rows = {
        "size": [item["Size"] for item in objects],
        "last_modified_date": pa.array([item["LastModified"] for item in objects], pa.timestamp("ms", "UTC")),
    }
    report = _parquet(pa.table({"bucket": [bucket] * len(objects), "key": [item["Key"] for item in objects], **rows}))
    manifest = {
        "sourceBucket": bucket,
        "destinationBucket": f"arn:aws:s3:::{bucket}",
        "creationTimestamp": str(int(lifecycle.operations.clock.now().timestamp() * 1000)),
        "fileFormat": "Parquet",
        "fileSchema": "message s3.inventory {}",
        "files": [{"key": "reports/1.parquet", "size": len(report), "MD5checksum": hashlib.md5(report).hexdigest()}],
    }
    client.put_object(Bucket=bucket, Key="reports/1.parquet", Body=report)
    client.put_object(Bucket=bucket, Key="reports/manifest.json", Body=json.dumps(manifest).encode())
    listing = pa.table(
        {
            "path": [f"s3://{bucket}/{item['Key']}" for item in objects],
            "last_modified": rows["last_modified_date"],
            "size_in_bytes": rows["size"],
        }
    )
    for number, part in enumerate((listing.slice(0, 5), listing.slice(5))):
        client.put_object(Bucket=bucket, Key=f"listing/{number}.parquet", Body=_parquet(part))
    return [
        lifecycle.inventory(f"s3://{bucket}/reports/manifest.json"),
        lifecycle.parquet_listing(f"s3://{bucket}/listing"),
    ]


def _orphans_by_inventory(config: LifecycleConfig, spark: SparkSession, folder: Path, manifest: str) -> int:
    """The orphans of db.t that a scan from the launchpad finds in an inventory, in a dry run."""
    with instance_for_test() as instance:
        project = Project(config, written(config, folder), instance, spark)
        instance.add_dynamic_partitions(PARTITIONS_NAME, ["db.t"])
        result = project.definitions.resolve_job_def("orphans").execute_in_process(
            instance=instance,
            partition_key="db.t",
            run_config={"ops": {"orphan_scan": {"config": {"inventory": manifest}}}},
        )
        return int(said(result, "orphan_scan")["orphans"])


def _parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _access(s3: S3Server) -> dict[str, str]:
    return {
        "s3.endpoint": s3.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": s3_server.ACCESS_KEY,
        "s3.secret-access-key": s3_server.SECRET_KEY,
        **({} if s3.session_token is None else {"s3.session-token": s3.session_token}),
    }


@pytest.mark.parametrize("mark", ["?versionId=1", "#part"])
def test_a_path_that_engines_cut_is_the_object_that_they_read(
    make_config: MakeConfig, spark: SparkSession, s3: S3Server, mark: str
) -> None:
    """The current snapshot names an expired file's object by a longer path, which Iceberg and pyiceberg cut."""
    bucket = s3.bucket()
    config = make_config(
        catalogs={tier: {"warehouse": f"s3://{bucket}/{tier}", "properties": _access(s3)} for tier in ("live", "cold")},
        operations={"root": f"s3://{bucket}/state"},
        defaults={**AT_ONCE, "cold_tier": {"enabled": False}},
        tables={"db.*": {}},
    )
    lifecycle, name = Lifecycle.open(config, spark=spark), f"{config.catalogs.live.name}.db.t"
    core_tables.sql(spark, f"CREATE NAMESPACE {config.catalogs.live.name}.db")
    core_tables.sql(spark, f"CREATE TABLE {name} (id int) USING iceberg")
    core_tables.append(spark, name, [(1,), (2,)])
    table = core_tables.java_table(spark, name)
    (file,) = table.currentSnapshot().addedDataFiles(table.io())
    jvm: Any = spark._jvm
    longer = (
        jvm.org.apache.iceberg.DataFiles.builder(table.spec()).copy(file).withPath(f"{file.location()}{mark}").build()
    )
    table.newOverwrite().deleteFile(file).addFile(longer).commit()
    spark.sql(f"REFRESH TABLE {name}")
    assert spark.table(name).count() == 2
    # S3 tells whole seconds: what may have been written after the plan is another file, and stays.
    time.sleep(1.1)
    assert lifecycle.expire("db.t").deleted
    spark.sql(f"REFRESH TABLE {name}")
    assert sorted(row["id"] for row in spark.table(name).collect()) == [1, 2]


def test_objects_whose_names_are_one_on_a_disk_keep_their_rows_there(
    make_config: MakeConfig, spark: SparkSession, s3: S3Server
) -> None:
    live = {"warehouse": f"s3://{s3.bucket()}/live", "properties": _access(s3)}
    config = make_config(catalogs={"live": live}, defaults=AT_ONCE, tables={"db.*": {}})
    lifecycle, name = Lifecycle.open(config, spark=spark), f"{config.catalogs.live.name}.db.t"
    core_tables.sql(spark, f"CREATE NAMESPACE {config.catalogs.live.name}.db")
    core_tables.sql(spark, f"CREATE TABLE {name} (id int) USING iceberg")
    table, jvm = core_tables.java_table(spark, name), spark._jvm
    assert jvm is not None
    for number, place in enumerate(("data/f.parquet", "data//f.parquet")):
        core_tables.append(spark, name, [(number,)])
        table.refresh()
        (file,) = table.currentSnapshot().addedDataFiles(table.io())
        named = f"{table.location()}/{place}"
        lifecycle.live_stores.write(named, lifecycle.live_stores.read(str(file.location())))
        moved = jvm.org.apache.iceberg.DataFiles.builder(table.spec()).copy(file).withPath(named).build()
        rows = jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
        table.newOverwrite().overwriteByRowFilter(rows).addFile(moved).commit()
    core_tables.append(spark, name, [(9,)])
    spark.sql(f"REFRESH TABLE {name}")
    ids = [each.snapshot_id for each in lifecycle.snapshot_history("db.t").snapshots]
    before = {each: sorted(row["id"] for row in lifecycle.read("db.t", snapshot_id=each).collect()) for each in ids}
    assert before[ids[1]] == [0] and before[ids[3]] == [1]
    lifecycle.expire("db.t")
    for each in ids[:-1]:
        assert lifecycle.route("db.t", snapshot_id=each).tier == "cold"
        assert sorted(row["id"] for row in lifecycle.read("db.t", snapshot_id=each).collect()) == before[each]


@pytest.mark.filterwarnings(*DAGSTERS_OWN)
def test_the_whole_walk_on_s3(make_config: MakeConfig, spark: SparkSession, s3: S3Server, tmp_path: Path) -> None:
    live_bucket, cold_bucket = s3.bucket(), s3.bucket()
    access = _access(s3)
    config = make_config(
        catalogs={
            "live": {"warehouse": f"s3://{live_bucket}/live", "properties": access},
            "cold": {
                "warehouse": f"s3://{cold_bucket}/cold",
                "properties": access,
                "storage_class": "GLACIER_IR",
            },
        },
        operations={"root": f"s3://{live_bucket}/state"},
        defaults=AND_ARCHIVED,
        tables={"db.*": {}},
    )
    lifecycle = Lifecycle.open(config, spark=spark)
    table = f"{config.catalogs.live.name}.db.t"
    spark.sql(f"CREATE NAMESPACE {config.catalogs.live.name}.db")
    spark.sql(
        f"CREATE TABLE {table} (id int, part string) USING iceberg PARTITIONED BY (part) "
        "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
    )
    spark.sql(f"INSERT INTO {table} SELECT id, 'p ' || id % 2 FROM range(0, 8)")
    spark.sql(f"DELETE FROM {table} WHERE id IN (3, 6)")
    spark.sql(f"INSERT INTO {table} VALUES (20, 'p 0')")
    for instead in (50, 98):
        spark.sql(f"INSERT OVERWRITE {table} VALUES ({instead}, 'p 0'), (99, 'p 0')")
    ids = [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history("db.t").snapshots]
    prints = {
        snapshot_id: fingerprint(spark.read.option("versionAsOf", snapshot_id).table(table)) for snapshot_id in ids
    }
    orphan = f"live/db/t/data/part=p%200/left-behind-{'0' * 8}.parquet"
    s3.client().put_object(Bucket=live_bucket, Key=orphan, Body=b"nobody's")

    lifecycle.compact_manifests("db.t", dry_run=True)
    plan = lifecycle.plan_expiration("db.t")
    assert plan.expired_snapshots == tuple(ids[:-1])
    handed_off = lifecycle.hand_off(plan)
    assert set(handed_off.archived) == set(ids[:-1]) and handed_off.lost == ()
    lifecycle.commit_expiration(plan)
    doomed = {row["path"].partition(f"{live_bucket}/")[2] for row in plan.files().collect()}
    assert doomed <= set(_keys(s3, live_bucket))
    report = lifecycle.delete_files(plan)
    assert (report.deleted, report.failed) == (len(doomed), 0)
    assert not doomed & set(_keys(s3, live_bucket))
    scan = lifecycle.scan_orphans("db.t")
    assert [row["path"] for row in scan.files().collect()] == [f"s3://{live_bucket}/{orphan}"]
    for listing in _written_down(s3, live_bucket, lifecycle):
        assert [row["path"] for row in lifecycle.scan_orphans("db.t", listing=listing).files().collect()] == [
            f"s3://{live_bucket}/{orphan}"
        ]
    assert _orphans_by_inventory(config, spark, tmp_path, f"s3://{live_bucket}/reports/manifest.json") == 1
    assert lifecycle.delete_orphans(scan).deleted == 1
    assert orphan not in _keys(s3, live_bucket)

    for snapshot_id in ids:
        tier = "live" if snapshot_id == ids[-1] else "cold"
        assert lifecycle.route("db.t", snapshot_id=snapshot_id).tier == tier
        assert fingerprint(lifecycle.read("db.t", snapshot_id=snapshot_id)) == prints[snapshot_id]
    archived = _keys(s3, cold_bucket)
    if s3.knows_classes:
        assert {kind for key, kind in archived.items() if "/data/" in key} == {"GLACIER_IR"}
    restored = lifecycle.restore("db.t", ids[1], "incident")
    assert fingerprint(spark.read.option("versionAsOf", restored.snapshot_id).table(table)) == prints[ids[1]]
    assert lifecycle.scan_orphans("db.t").summary.orphan_files == 0
    assert set(_keys(s3, live_bucket, "live/db/t/restored/").values()) == {"STANDARD"}
    if s3.knows_classes:
        _to_the_archive_and_back(lifecycle, s3, cold_bucket, ids, prints)
    else:
        move = lifecycle.deep_archive("db.t")
        assert (move.moved_files, move.failed_files) == (0, move.due_files)
        assert "storage class" in move.failures[0][1] and _keys(s3, cold_bucket).keys() == archived.keys()
        assert fingerprint(lifecycle.read("db.t", snapshot_id=ids[0])) == prints[ids[0]]
    # What was restored may become the table's present state.
    spark.sql(f"CALL {config.catalogs.live.name}.system.set_current_snapshot(table => 'db.t', ref => 'incident')")
    assert fingerprint(spark.table(table)) == prints[ids[1]]


def _to_the_archive_and_back(
    lifecycle: Lifecycle, s3: S3Server, cold_bucket: str, ids: list[int], prints: dict[int, Print]
) -> None:
    """Past the cold tier's retention, what nobody else reads goes to the archive, at its own keys."""
    spark, cold, archived = lifecycle.spark, lifecycle.config.catalogs.cold.name, _keys(s3, cold_bucket)
    doomed = lifecycle.deep_archive("db.t", dry_run=True)
    assert doomed.snapshot_ids and doomed.due_files and set(_keys(s3, cold_bucket).values()) == {"GLACIER_IR"}
    moved = lifecycle.deep_archive("db.t")
    assert (moved.moved_files, moved.failed_files) == (doomed.due_files, 0)
    assert _keys(s3, cold_bucket).keys() == archived.keys()
    assert list(_keys(s3, cold_bucket).values()).count("DEEP_ARCHIVE") == moved.moved_files
    gone = [each for each in ids[:-1] if lifecycle.route("db.t", snapshot_id=each).readable_in is not None]
    assert gone
    with pytest.raises(Exception, match=r"InvalidObjectState|storage class"):
        spark.sql(f"SELECT * FROM {cold}.db.t VERSION AS OF {gone[0]}").collect()
    for snapshot_id in set(ids[:-1]).difference(gone):
        assert fingerprint(lifecycle.read("db.t", snapshot_id=snapshot_id)) == prints[snapshot_id]
    thaw = lifecycle.request_thaw("db.t", gone, case_id="C-9", requester="Ann", reason="the audit")
    approve_thaw(lifecycle, thaw.thaw_id)
    until = lifecycle.follow_thaw(thaw.thaw_id).readable_until
    assert until is not None and timedelta(days=5) < until - datetime.now(UTC) <= timedelta(days=8)
    for snapshot_id in gone:
        assert fingerprint(lifecycle.read("db.t", snapshot_id=snapshot_id)) == prints[snapshot_id]
