from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle_tests import core_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeTable = Callable[..., str]


@pytest.fixture
def reader(config: LifecycleConfig) -> Iterator[CatalogReader]:
    with CatalogReader(config.catalogs.live) as opened:
        yield opened


@pytest.fixture
def make_table(spark: SparkSession, config: LifecycleConfig) -> MakeTable:
    """Makes `space.<name>` in the live catalog with `commits` appends of one row; returns its identifier."""

    def make(name: str, commits: int = 4, **properties: str) -> str:
        live = config.catalogs.live.name
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {live}.space")
        spark.sql(
            f"CREATE TABLE {live}.space.{name} (id INT) USING iceberg" + f" TBLPROPERTIES ({listed})" * bool(listed)
        )
        for number in range(commits):
            append(spark, f"{live}.space.{name}", number)
        return f"space.{name}"

    return make


def append(spark: SparkSession, full_name: str, number: int) -> None:
    core_tables.append(spark, full_name, [(number,)])


def jvm_table(spark: SparkSession, catalog: str, table: str) -> Any:
    """Iceberg's own table object, loaded anew."""
    jvm: Any = spark._jvm
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(spark._jsparkSession, catalog)
    return loaded.loadTable(jvm.org.apache.iceberg.catalog.TableIdentifier.parse(table))


def snapshot_ids(spark: SparkSession, catalog: str, table: str) -> list[int]:
    """In the order of the metadata file."""
    return [
        int(snapshot.snapshotId()) for snapshot in jvm_table(spark, catalog, table).operations().current().snapshots()
    ]
