from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField
from sqlalchemy import Connection, text

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import ingest_catalog, pyiceberg_catalog
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.operations.database import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWN_POOLS = True


def _applications(connection: Connection) -> set[str]:
    query = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database()"
    return {str(name) for name in connection.execute(text(query)).scalars()}


def test_ingest_and_lifecycle_have_pools_and_names_of_their_own(config: LifecycleConfig, spark: SparkSession) -> None:
    live = config.catalogs.live
    assert live.uri is not None
    ingest, lifecycle = ingest_catalog(live), pyiceberg_catalog(live)
    assert isinstance(ingest, SqlCatalog)
    assert isinstance(lifecycle, SqlCatalog)
    assert ingest.engine.pool is not lifecycle.engine.pool
    spark.sql(f"SHOW NAMESPACES IN {live.name}").collect()
    watcher = connect(live.uri)
    # Inside a transaction the view stays as it was first read.
    with watcher.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert {"artemis-ingest", "artemis-lifecycle", "artemis-lifecycle-spark"} <= _applications(connection)
        # One pool is exhausted; the other does not notice.
        held = [ingest.engine.connect() for _ in range(16)]
        assert lifecycle.list_namespaces() == []
        for one in held:
            one.close()
        ingest.close()
        lifecycle.close()
        until = time.monotonic() + 30
        while "artemis-ingest" in _applications(connection):
            assert time.monotonic() < until
            time.sleep(0.05)
    watcher.dispose()


def test_the_ingest_catalog_is_the_same_catalog(config: LifecycleConfig, spark: SparkSession) -> None:
    live = config.catalogs.live
    ingest = ingest_catalog(live)
    ingest.create_namespace("space")
    table = ingest.create_table("space.t", Schema(NestedField(1, "id", IntegerType(), required=False)))
    table.append(pa.table({"id": pa.array([1, 2], pa.int32())}))
    with CatalogReader(live) as reader:
        assert reader.entry("space.t").metadata_location == table.metadata_location
    assert spark.table(f"{live.name}.space.t").count() == 2
    ingest.close()
