"""What snapshots reach, as Spark sees it: a query over the manifest index (`index/`), brought up to date first.

Small answers are made in this process; large ones by executors, each reading its share of the index's blocks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import pyarrow as pa

from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index import DEFAULT_SETTINGS, IndexSettings, IndexView, ManifestIndex
from artemis_lifecycle.reachability.index.files import reachable
from artemis_lifecycle.reachability.index.lookups import entries_of
from artemis_lifecycle.reachability.index.refresh import compact, refresh
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = "path string, kind string, size_in_bytes bigint, location string"

ROWS_HERE = 200_000
"""Up to as many entries are put together in this process: about 100 MB."""


def indexed(
    spark: SparkSession | None,
    stores: Stores,
    metadata: TableMetadata,
    rules: LocationRules,
    root: str,
    settings: IndexSettings = DEFAULT_SETTINGS,
    files: Stores | None = None,
) -> IndexView:
    """The table's manifest index under `root`, as of `metadata`; reads only what it does not know yet.

    `files` reach `root` where `stores`, which reach the metadata, do not.

    Raises UnreadableMetadata or EncryptedTable when anything that it has to read is missing, damaged, or not what the
    level above records.
    """
    index = ManifestIndex.open(stores, f"{root}/index", metadata.table_uuid, rules, settings, files)
    return refresh(index, metadata, spark)


def tidy(stores: Stores, metadata: TableMetadata, rules: LocationRules, root: str) -> int:
    """Join and rewrite segments of the table's index where that is worth it; returns how many were replaced."""
    return compact(ManifestIndex.open(stores, f"{root}/index", metadata.table_uuid, rules), metadata)


def reachable_files(
    spark: SparkSession, view: IndexView, snapshot_ids: Collection[int], *, rows_here: int = ROWS_HERE
) -> DataFrame:
    """All that the given snapshots reach: DataFrame[path, kind, size_in_bytes, location], one row per location.

    Manifest lists, manifests, live entries of every content, statistics files; not the table's metadata files. An
    action on the frame may raise UnreadableMetadata inside `worker_errors()`.
    """
    from artemis_lifecycle.reachability.index.on_spark import rows_there

    if not snapshot_ids:
        return spark.createDataFrame([], FILES)
    if entries_of(view, snapshot_ids) <= rows_here:
        return _local(spark, reachable(view, list(snapshot_ids)))
    others = _local(spark, reachable(view, list(snapshot_ids), entries=False))
    entries = rows_there(spark, view, list(snapshot_ids), FILES)
    return _one_row_per_location(entries.unionByName(others))


def _local(spark: SparkSession, table: pa.Table) -> DataFrame:
    if not table.num_rows:
        return spark.createDataFrame([], FILES)
    # One chunk: PySpark 4.1 takes an empty batch in an Arrow table for its end, and drops all rows behind it.
    return spark.createDataFrame(table.combine_chunks())


def _one_row_per_location(files: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        files.groupBy("location")
        .agg(F.min("path").alias("path"), F.min("kind").alias("kind"), F.max("size_in_bytes").alias("size_in_bytes"))
        .select("path", "kind", "size_in_bytes", "location")
    )
