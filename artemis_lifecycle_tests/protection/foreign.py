"""What other tools do to a table, by their own means."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from artemis_lifecycle.lifecycle import Lifecycle


def expire_in_metadata(lifecycle: Lifecycle, table: str, snapshot_ids: Iterable[int]) -> None:
    """Iceberg's own expiration, which leaves all files where they are."""
    spark: Any = lifecycle.spark
    name = f"{lifecycle.config.catalogs.live.name}.{table}"
    loaded = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
    loaded.refresh()
    expiration = loaded.expireSnapshots().cleanExpiredFiles(False)
    for snapshot_id in snapshot_ids:
        expiration = expiration.expireSnapshotId(snapshot_id)
    expiration.commit()


def make_history(lifecycle: Lifecycle, name: str = "t", snapshots: int = 4, properties: str = "") -> list[int]:
    """Table db.`name` of so many snapshots; each replaces one row and leaves the others, so that files are shared."""
    live = lifecycle.config.catalogs.live.name
    lifecycle.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {live}.db")
    lifecycle.spark.sql(
        f"CREATE TABLE {live}.db.{name} (id int, part int) USING iceberg PARTITIONED BY (part) "
        f"TBLPROPERTIES ('format-version'='2'{properties})"
    )
    lifecycle.spark.sql(f"INSERT INTO {live}.db.{name} VALUES (0, 0), (100, 1)")
    for number in range(1, snapshots):
        lifecycle.spark.sql(
            f"INSERT OVERWRITE {live}.db.{name} PARTITION (part = 0) VALUES ({number})"
            if number < snapshots - 1
            else f"INSERT OVERWRITE {live}.db.{name} VALUES ({number}, 0), (200, 2)"
        )
    return [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history(f"db.{name}").snapshots]


def rows(lifecycle: Lifecycle, table: str, snapshot_id: int) -> list[tuple[int, int]]:
    return sorted((row["id"], row["part"]) for row in lifecycle.read(table, snapshot_id=snapshot_id).collect())


def warehouse(lifecycle: Lifecycle, tier: str) -> Path:
    return Path(str(getattr(lifecycle.config.catalogs, tier).warehouse).removeprefix("file://"))


def files_below(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".crc")}
