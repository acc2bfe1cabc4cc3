"""The whole walk on Google Cloud Storage and on Azure: Spark writes and reads through Iceberg's own FileIO of the
store, everything else through ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import pyiceberg_catalog
from artemis_lifecycle_tests.cold_tier.world import fingerprint
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.storage import object_servers
from artemis_lifecycle_tests.storage.object_servers import ObjectServer


@pytest.fixture(params=["gcs", pytest.param("azure", marks=pytest.mark.nightly)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectServer]:
    with ExitStack() as stack:
        run = object_servers.fake_gcs if request.param == "gcs" else object_servers.azurite
        yield stack.enter_context(run(tmp_path))


@pytest.mark.no_guardian(reason="it reads disks and S3 only; the reads at the end are held against those at the start")
def test_the_whole_walk(make_config: MakeConfig, spark: SparkSession, server: ObjectServer) -> None:
    live, cold = server.root(), server.root()
    config = make_config(
        catalogs={
            "live": {"warehouse": f"{live}/live", "properties": server.properties},
            "cold": {"warehouse": f"{cold}/cold", "properties": server.properties},
        },
        operations={"root": f"{live}/state"},
        defaults=AT_ONCE | {"cold_tier": {"then": "keep"}},
        tables={"db.*": {}},
    )
    lifecycle, stores = Lifecycle.open(config, spark=spark), server.stores()
    table = f"{config.catalogs.live.name}.db.t"
    spark.sql(f"CREATE NAMESPACE {config.catalogs.live.name}.db")
    spark.sql(
        f"CREATE TABLE {table} (id int, part string) USING iceberg PARTITIONED BY (part) "
        "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
    )
    # Names that are percent-encoded in paths.
    spark.sql(f"INSERT INTO {table} SELECT id, 'p/ %' || id % 2 FROM range(0, 8)")
    spark.sql(f"DELETE FROM {table} WHERE id IN (3, 6)")
    spark.sql(f"INSERT INTO {table} VALUES (20, 'p/ %0')")
    for instead in (50, 98):
        spark.sql(f"INSERT OVERWRITE {table} VALUES ({instead}, 'p/ %0'), (99, 'p/ %0')")
    ids = [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history("db.t").snapshots]
    prints = {each: fingerprint(spark.read.option("versionAsOf", each).table(table)) for each in ids}
    orphan = f"{live}/live/db/t/data/part=p0/left-behind-{'0' * 8}.parquet"
    stores.write(orphan, b"nobody's")

    if server.kind == "gcs":  # On Azure, pyiceberg needs adlfs.
        seen = pyiceberg_catalog(config.catalogs.live).load_table("db.t").metadata
        assert seen.current_snapshot_id == ids[-1]
    plan = lifecycle.plan_expiration("db.t")
    assert plan.expired_snapshots == tuple(ids[:-1])
    handed_off = lifecycle.hand_off(plan)
    assert set(handed_off.archived) == set(ids[:-1]) and handed_off.lost == ()
    lifecycle.commit_expiration(plan)
    doomed = {row["path"] for row in plan.files().collect()}
    assert doomed <= {file.path for file in stores.list(f"{live}/live")}
    report = lifecycle.delete_files(plan)
    assert (report.deleted, report.failed) == (len(doomed), 0)
    assert not doomed & {file.path for file in stores.list(f"{live}/live")}
    scan = lifecycle.scan_orphans("db.t")
    assert [row["path"] for row in scan.files().collect()] == [orphan]
    if server.kind == "azure":
        # By the other host of the account, every file is the same one.
        other = live.replace("abfss:", "wasbs:").replace(".dfs.", ".blob.")
        [found] = lifecycle.scan_orphans("db.t", location=f"{other}/live/db/t").files().collect()
        assert found["path"] == orphan.replace(live, other)
    assert lifecycle.delete_orphans(scan).deleted == 1
    assert stores.head(orphan) is None

    for each in ids:
        assert lifecycle.route("db.t", snapshot_id=each).tier == ("live" if each == ids[-1] else "cold")
        assert fingerprint(lifecycle.read("db.t", snapshot_id=each)) == prints[each]
    restored = lifecycle.restore("db.t", ids[1], "incident")
    assert fingerprint(spark.read.option("versionAsOf", restored.snapshot_id).table(table)) == prints[ids[1]]
    assert lifecycle.scan_orphans("db.t").summary.orphan_files == 0
    # What was restored may become the table's present state.
    spark.sql(f"CALL {config.catalogs.live.name}.system.set_current_snapshot(table => 'db.t', ref => 'incident')")
    assert fingerprint(spark.table(table)) == prints[ids[1]]
