"""A table's health in numbers, from Iceberg's own metadata tables of the current snapshot. Reads only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

TARGET_FILE_SIZE = "write.target-file-size-bytes"
TARGET_FILE_SIZE_DEFAULT = 512 * 1024 * 1024
MIN_INPUT_FILES = 5
"""Iceberg's own `min-input-files`: fewer small files of a partition are not worth a rewrite."""

_SMALL = 0.75
"""Iceberg's own `min-file-size-bytes`, as a share of the target."""


@dataclass(frozen=True)
class TableHealth:
    """The current snapshot's files, and the metadata around it. Sizes in bytes, ages in seconds.

    A data file is small under three quarters of the table's target size. `rewritable_files` counts the small files in
    partitions that have at least MIN_INPUT_FILES of them: what a compaction would take. `delete_file_ratio` is delete
    files (deletion vectors too) per data file. `metadata_bytes` is what planning reads: metadata file, manifest list,
    manifests. All is 0 for a table without a snapshot.
    """

    table: str
    metadata_location: str
    snapshots: int
    refs: int
    snapshot_age_seconds: float
    oldest_snapshot_age_seconds: float
    metadata_age_seconds: float
    data_files: int
    data_bytes: int
    records: int
    small_files: int
    rewritable_files: int
    delete_files: int
    delete_bytes: int
    deleted_records: int
    manifests: int
    manifest_bytes: int
    manifest_list_bytes: int
    metadata_file_bytes: int
    target_file_bytes: int

    @property
    def small_files_share(self) -> float:
        """Small files among the data files, from 0 to 1."""
        return self.small_files / self.data_files if self.data_files else 0.0

    @property
    def rewritable_share(self) -> float:
        """Files that a compaction would take among the data files, from 0 to 1."""
        return self.rewritable_files / self.data_files if self.data_files else 0.0

    @property
    def delete_file_ratio(self) -> float:
        return self.delete_files / self.data_files if self.data_files else 0.0

    @property
    def average_manifest_bytes(self) -> float:
        return self.manifest_bytes / self.manifests if self.manifests else 0.0

    @property
    def metadata_bytes(self) -> int:
        return self.metadata_file_bytes + self.manifest_list_bytes + self.manifest_bytes

    def figures(self) -> dict[str, object]:
        """Every field and ratio above, by name."""
        return asdict(self) | {
            "small_files_share": self.small_files_share,
            "rewritable_share": self.rewritable_share,
            "delete_file_ratio": self.delete_file_ratio,
            "average_manifest_bytes": self.average_manifest_bytes,
            "metadata_bytes": self.metadata_bytes,
        }

    def to_pandas(self) -> pd.DataFrame:
        """Two columns, `figure` object and `value` object: every field and ratio above, one row each."""
        import pandas as pd

        return pd.DataFrame(list(self.figures().items()), columns=["figure", "value"]).astype("object")


def target_file_size(metadata: TableMetadata) -> int:
    """The size in bytes that the table's writers aim at."""
    return int(metadata.properties.get(TARGET_FILE_SIZE, TARGET_FILE_SIZE_DEFAULT))


def table_health(
    spark: SparkSession, stores: Stores, catalog: str, table: str, metadata: TableMetadata, now: datetime
) -> TableHealth:
    """Measure `table` as `metadata` has it; `now` is what ages count to."""
    current = metadata.current_snapshot
    target = target_file_size(metadata)
    data = deletes = manifests = (0, 0, 0)
    small = rewritable = 0
    list_bytes = 0
    if current is not None:
        from pyspark.sql import functions as F

        files = _metadata_table(spark, catalog, table, "files", current.snapshot_id)
        is_small = (F.col("content") == 0) & (F.col("file_size_in_bytes") < int(target * _SMALL))
        # An unpartitioned table's metadata tables have no column `partition`.
        keys = [column for column in ("spec_id", "partition") if column in files.columns]
        grouped = (
            files.groupBy("content", *keys)
            .agg(
                F.count("*").alias("files"),
                F.sum("file_size_in_bytes").alias("bytes"),
                F.sum("record_count").alias("records"),
                F.sum(F.when(is_small, 1).otherwise(0)).alias("small"),
            )
            .groupBy("content")
            .agg(
                F.sum("files").alias("files"),
                F.sum("bytes").alias("bytes"),
                F.sum("records").alias("records"),
                F.sum("small").alias("small"),
                F.sum(F.when(F.col("small") >= MIN_INPUT_FILES, F.col("small")).otherwise(0)).alias("rewritable"),
            )
            .collect()
        )
        for row in grouped:
            if row["content"] == 0:
                data = (row["files"], row["bytes"], row["records"])
                small, rewritable = row["small"], row["rewritable"]
            else:
                deletes = (deletes[0] + row["files"], deletes[1] + row["bytes"], deletes[2] + row["records"])
        found = _metadata_table(spark, catalog, table, "manifests", current.snapshot_id).agg(
            F.count("*").alias("files"), F.sum("length").alias("bytes")
        )
        row = found.collect()[0]
        manifests = (row["files"], row["bytes"] or 0, 0)
        list_bytes = _size(stores, current.manifest_list)
    times = [snapshot.timestamp_ms for snapshot in metadata.snapshots]
    return TableHealth(
        table=table,
        metadata_location=metadata.metadata_location,
        snapshots=len(metadata.snapshots),
        refs=len(metadata.refs),
        snapshot_age_seconds=_age(now, current.timestamp_ms if current is not None else None),
        oldest_snapshot_age_seconds=_age(now, min(times, default=None)),
        metadata_age_seconds=_age(now, metadata.last_updated_ms),
        data_files=data[0],
        data_bytes=data[1],
        records=data[2],
        small_files=small,
        rewritable_files=rewritable,
        delete_files=deletes[0],
        delete_bytes=deletes[1],
        deleted_records=deletes[2],
        manifests=manifests[0],
        manifest_bytes=manifests[1],
        manifest_list_bytes=list_bytes,
        metadata_file_bytes=_size(stores, metadata.metadata_location),
        target_file_bytes=target,
    )


def _metadata_table(spark: SparkSession, catalog: str, table: str, name: str, snapshot_id: int) -> DataFrame:
    return spark.read.option("versionAsOf", snapshot_id).table(f"{parse(table).sql(catalog)}.{name}")


def _size(stores: Stores, path: str | None) -> int:
    stored = None if path is None else stores.head(path)
    return 0 if stored is None else stored.size_in_bytes


def _age(now: datetime, timestamp_ms: int | None) -> float:
    if timestamp_ms is None:
        return 0.0
    return (now - datetime.fromtimestamp(0, tz=now.tzinfo) - timedelta(milliseconds=timestamp_ms)).total_seconds()
