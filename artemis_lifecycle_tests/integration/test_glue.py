"""Iceberg tables in Glue, with one pair of keys in lifecycle.yaml: from the first commit to the deletion."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.catalogs.settings import catalog_conf, pyiceberg_catalog
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.spark.session import add_catalogs
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.storage import s3_server
from artemis_lifecycle_tests.storage.s3_server import S3Server

LATER = datetime.now(UTC) + timedelta(days=60)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """S3 and Glue. moto takes any VersionId; Glue updates a table only from the version that the request names."""
    from moto.glue.exceptions import ConcurrentRunsExceededException
    from moto.glue.responses import GlueResponse

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    lock, update_table = threading.Lock(), GlueResponse.update_table

    def from_the_named_version(self: Any) -> Any:
        with lock:
            given = self.parameters.get("TableInput")
            table = self.glue_backend.get_table(self.parameters.get("DatabaseName"), given["Name"])
            if self.parameters.get("VersionId") != table.as_dict()["VersionId"]:
                error = ConcurrentRunsExceededException("Update table failed due to concurrent modifications")
                error.error_type = error.code = "ConcurrentModificationException"
                raise error
            return update_table(self)

    monkeypatch.setattr(GlueResponse, "update_table", from_the_named_version)
    with s3_server.running() as server:
        yield server


@pytest.fixture
def config(make_config: MakeConfig, aws: S3Server) -> LifecycleConfig:
    bucket = aws.bucket()
    properties = {
        "s3.endpoint": aws.endpoint,
        "glue.endpoint": aws.endpoint,
        "client.region": "us-east-1",
        "client.access-key-id": s3_server.ACCESS_KEY,
        "client.secret-access-key": s3_server.SECRET_KEY,
    }
    warehouse = f"s3://{bucket}/live"
    return make_config(
        catalogs={"live": {"type": "glue", "uri": None, "warehouse": warehouse, "properties": properties}},
        operations={"root": f"s3://{bucket}/state"},
        defaults={
            "retention": {"window": "1d"},
            "cold_tier": {"enabled": False},
            "deletion": {"grace": "0s"},
            "orphans": {"max_share": 1},
        },
        tables={"db.*": {}},
    )


def test_a_glue_table_expires_by_its_version_with_keys_given_once(
    config: LifecycleConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = config.catalogs.live.name
    spark.sql(f"CREATE NAMESPACE {live}.db")
    spark.sql(f"CREATE TABLE {live}.db.t (id int) USING iceberg")
    for number in range(3):
        spark.sql(f"INSERT OVERWRITE {live}.db.t VALUES ({number})")
    # S3's times are whole seconds: a file of the second in which the plan is sealed may be another one, and is kept.
    time.sleep(1.1)
    with open_lifecycle(config, spark) as lifecycle:
        plan = lifecycle.plan_expiration("db.t", now=LATER)
        assert len(plan.expired_snapshots) == 2
        table = pyiceberg_catalog(config.catalogs.live).load_table("db.t")
        record, raced = type(lifecycle.operations.table_locations).swaps, list[bool]()

        def and_another_commits(self: Any, *which: str) -> Any:
            swaps = record(self, *which)

            def recorded(base: str, updated_ms: int) -> None:
                swaps.begin(base, updated_ms)
                if not raced:
                    # After the base was read, and before the swap: the first attempt must lose.
                    raced.append(True)
                    table.transaction().set_properties({"other": "writer"}).commit_transaction()

            return replace(swaps, begin=recorded)

        monkeypatch.setattr(type(lifecycle.operations.table_locations), "swaps", and_another_commits)
        commit = lifecycle.commit_expiration(plan)
        assert commit.attempts == 2
        now = table.refresh()
        assert now.properties["other"] == "writer" and len(now.metadata.snapshots) == 1
        report = lifecycle.delete_files(plan)
        assert report.deleted == plan.summary.files > 0 and report.failed == 0
        assert [row["id"] for row in lifecycle.read("db.t").collect()] == [2]


def test_spark_writes_objects_with_the_keys_of_glue(aws: S3Server, spark: SparkSession) -> None:
    """Iceberg gives the provider of those keys a property without a value, for the client of S3."""
    properties = {
        "s3.endpoint": aws.endpoint,
        "glue.endpoint": aws.endpoint,
        "glue.region": "us-east-1",
        "glue.access-key-id": s3_server.ACCESS_KEY,
        "glue.secret-access-key": s3_server.SECRET_KEY,
    }
    catalog = Catalog(name="glue_keys", type="glue", warehouse=f"s3://{aws.bucket()}/live", properties=properties)
    add_catalogs(spark, catalog_conf(catalog))
    try:
        spark.sql("CREATE NAMESPACE glue_keys.keys")
        spark.sql("CREATE TABLE glue_keys.keys.t (id int) USING iceberg")
        spark.sql("INSERT INTO glue_keys.keys.t VALUES (1)")
        assert spark.table("glue_keys.keys.t").count() == 1
    finally:
        for key in catalog_conf(catalog):
            spark.conf.unset(key)
