"""What other tools do to a table, by their own means."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.deletion.world import local, make_old
from artemis_lifecycle_tests.guardian import on_disk


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
    core_tables.sql(lifecycle.spark, f"CREATE NAMESPACE IF NOT EXISTS {live}.db")
    core_tables.sql(
        lifecycle.spark,
        f"CREATE TABLE {live}.db.{name} (id int, part int) USING iceberg PARTITIONED BY (part) "
        f"TBLPROPERTIES ('format-version'='2'{properties})",
    )
    core_tables.append(lifecycle.spark, f"{live}.db.{name}", [(0, 0), (100, 1)])
    for number in range(1, snapshots):
        core_tables.sql(
            lifecycle.spark,
            f"INSERT OVERWRITE {live}.db.{name} PARTITION (part = 0) VALUES ({number})"
            if number < snapshots - 1
            else f"INSERT OVERWRITE {live}.db.{name} VALUES ({number}, 0), (200, 2)",
        )
    return [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history(f"db.{name}").snapshots]


def rows(lifecycle: Lifecycle, table: str, snapshot_id: int) -> list[tuple[int, int]]:
    return sorted((row["id"], row["part"]) for row in lifecycle.read(table, snapshot_id=snapshot_id).collect())


def warehouse(lifecycle: Lifecycle, tier: str) -> Path:
    return Path(str(getattr(lifecycle.config.catalogs, tier).warehouse).removeprefix("file://"))


def files_below(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".crc")}


def name_of(lifecycle: Lifecycle, table: str) -> str:
    return f"{lifecycle.config.catalogs.live.name}.{table}"


def sql(lifecycle: Lifecycle, statement: str) -> list[Row]:
    """Run a statement in which {live} is the live catalog."""
    statement = statement.format(live=lifecycle.config.catalogs.live.name)
    return core_tables.answer(lifecycle.spark, statement)


def append(lifecycle: Lifecycle, table: str, number: int) -> None:
    core_tables.append(lifecycle.spark, name_of(lifecycle, table), [(number,)])


def overwrite(lifecycle: Lifecycle, table: str, number: int) -> None:
    core_tables.overwrite(lifecycle.spark, name_of(lifecycle, table), [(number,)])


def ids(lifecycle: Lifecycle, table: str) -> list[int]:
    """The rows of a table with one column, as an engine reads them now."""
    lifecycle.spark.catalog.refreshTable(name_of(lifecycle, table))
    return sorted(row["id"] for row in lifecycle.spark.table(name_of(lifecycle, table)).collect())


def ids_of_every_snapshot(lifecycle: Lifecycle, table: str) -> dict[int, list[int]]:
    found = {}
    for snapshot in lifecycle.snapshot_history(table).snapshots:
        rows = sql(lifecycle, f"SELECT id FROM {{live}}.{table} VERSION AS OF {snapshot.snapshot_id}")
        found[snapshot.snapshot_id] = sorted(row["id"] for row in rows)
    return found


def place(lifecycle: Lifecycle, table: str) -> Path:
    return local(lifecycle.steps.table_state(table).metadata.location)


def stray(folder: Path, name: str = "data/stray.parquet") -> Path:
    """A file that nothing names, a month old."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left by a writer")
    make_old(path, timedelta(days=30))
    return path


def make_all_old(*folders: Path) -> None:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                make_old(path, timedelta(days=30))


def to_version_5(lifecycle: Lifecycle, table: str) -> str:
    """Point the catalog at the same metadata with a format version that nobody has released. Its location."""
    with lifecycle.operations.engine.connect() as connection:
        now = connection.execute(
            text(
                "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = :catalog AND table_name = :name "
                "AND table_namespace = :namespace"
            ),
            {
                "catalog": lifecycle.config.catalogs.live.name,
                "namespace": table.split(".")[0],
                "name": table.split(".")[1],
            },
        ).scalar_one()
    path = on_disk(now)
    made = path.with_name(f"00099-{uuid.uuid4()}.metadata.json")
    made.write_text(json.dumps({**json.loads(path.read_text()), "format-version": 5}))
    # Spelled as the table's own: another spelling may be another table's.
    location = f"{now.rpartition('/')[0]}/{made.name}"
    set_pointer(lifecycle, table, location, previous=now, is_readable=False)
    return location


def set_pointer(
    lifecycle: Lifecycle, table: str, metadata_location: str, previous: str | None = None, *, is_readable: bool = True
) -> None:
    """What a restored backup of the catalog does to one table; with `previous`, what a commit does. Not `is_readable`:
    Spark is not shown it, because Iceberg tries for a minute and a half."""
    namespace, name = table.split(".")
    with lifecycle.operations.engine.begin() as connection:
        done = connection.execute(
            text(
                "UPDATE iceberg_tables SET previous_metadata_location = :previous, metadata_location = :location "
                "WHERE catalog_name = :catalog AND table_namespace = :namespace AND table_name = :name"
            ),
            {
                "location": metadata_location,
                "previous": previous,
                "catalog": lifecycle.config.catalogs.live.name,
                "namespace": namespace,
                "name": name,
            },
        )
    assert done.rowcount == 1
    if is_readable:
        lifecycle.spark.catalog.refreshTable(name_of(lifecycle, table))


def take_up(lifecycle: Lifecycle, table: str, folder: Path, pattern: str = "*.parquet") -> None:
    """Add the data files that stand in a folder to a table, under the names that they have there."""
    spark: Any = lifecycle.spark
    jvm = spark._jvm
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name_of(lifecycle, table))
    loaded.refresh()
    change = loaded.newAppend()
    for path in sorted(folder.glob(pattern)):
        built = jvm.org.apache.iceberg.DataFiles.builder(loaded.spec())
        built = built.withPath(f"file://{path}").withFileSizeInBytes(path.stat().st_size).withRecordCount(1)
        change = change.appendFile(built.withFormat("parquet").build())
    change.commit()
    lifecycle.spark.catalog.refreshTable(name_of(lifecycle, table))


def outcomes(report: DeletionReport) -> dict[str, tuple[str, str]]:
    """What became of each file, by its path."""
    return {str(local(row["path"])): (row["outcome"], row["reason"]) for row in report.files().collect()}


def pointer(lifecycle: Lifecycle, table: str) -> str:
    return lifecycle.resources.live_catalog.entry(table).metadata_location


def register(lifecycle: Lifecycle, table: str, location: str) -> None:
    sql(lifecycle, f"CALL {{live}}.system.register_table(table => '{table}', metadata_file => '{location}')")


def data_of(lifecycle: Lifecycle, table: str) -> set[Path]:
    rows = sql(lifecycle, f"SELECT file_path FROM {{live}}.{table}.all_data_files")
    return {local(row["file_path"]) for row in rows}
