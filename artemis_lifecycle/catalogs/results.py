"""Result tables: Iceberg tables of namespace `lifecycle` in the live catalog, for people. Nothing decides by them."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.spark.sql import name as sql_name
from artemis_lifecycle.storage.instants import microseconds
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NAMESPACE = "lifecycle"
"""Left out of discovery, of sensors and of the tables' schedules."""

RESULT_TABLES = frozenset(f"{NAMESPACE}.{name}" for name in ("plan_files", "deletions", "lineage_ledger"))
"""The project's own tables there, which read no files of other tables."""


def ensure_table(spark: SparkSession, table: str, columns: str, partition: str, **properties: str) -> str:
    """Create `table` (catalog.namespace.name), and its namespace, at first use; returns its name in Spark SQL."""
    full = parse(table)
    # Every table's job appends here, two at a time or more.
    told = [f"'{key}' = '{value}'" for key, value in {"commit.retry.num-retries": "20", **properties}.items()]
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {sql_name(*full.namespace)}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {full.sql()} ({columns}) USING iceberg PARTITIONED BY ({partition}) "
        f"TBLPROPERTIES ({', '.join(told)})"
    )
    return full.sql()


def replace_rows(
    spark: SparkSession,
    table: str,
    columns: str,
    partition: str,
    key: str,
    value: str,
    rows: DataFrame,
    alike: Sequence[str] = (),
) -> None:
    """Make `rows` all that `table` (catalog.namespace.name) has where `key` is `value`. Creates it at first use.

    When as many rows stand there already, also of each value of the columns `alike`, nothing is committed. Two steps
    (delete, append) where an earlier run left others: dying between them leaves none, and a caller that runs again
    writes them again.
    """
    from pyspark.sql import functions as F

    def counted(frame: DataFrame) -> dict[tuple[object, ...], int]:
        return {tuple(row)[:-1]: row["count"] for row in frame.groupBy(*alike).count().collect() if row["count"]}

    table = ensure_table(spark, table, columns, partition, **{"write.delete.isolation-level": "snapshot"})
    present = counted(spark.table(table).where(F.col(key) == value))
    if present:
        if present == counted(rows):
            return
        spark.sql(f"DELETE FROM {table} WHERE {key} = :value", args={"value": value})
    rows.writeTo(table).append()


def append_new(
    spark: SparkSession,
    stores: Stores,
    table: str,
    key: str,
    value: str,
    month_of: tuple[str, datetime],
    since: datetime,
    rows: Iterable[pa.Table],
) -> bool:
    """Append `rows` to `table` (catalog.namespace.name), all of it in one commit, if it has no row whose `key` is
    `value`; each of `rows` becomes a file. `month_of` is the column by whose month the table is partitioned, and the
    instant that all of them have there; no row of `value` has an earlier one than `since`.

    This process writes the Parquet files and Iceberg's core appends them: no Spark job, whose planning and tasks take
    seconds for a handful of rows. False, with nothing done, where the table may have such rows, or has not the columns
    and the partitioning that this writes: Spark has to do it then.
    """
    import pyarrow.parquet as pq

    table = parse(table).sql()
    if not spark.catalog.tableExists(table):
        return False
    jvm: Any = spark._jvm
    # Iceberg asks for the active session of the thread; a thread that Python made may have none.
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    found = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)
    found.refresh()
    partition = _month(jvm, found, *month_of)
    if partition is None or _may_have(jvm, found, key, value, month_of[0], since):
        return False
    append = found.newAppend()
    config = jvm.org.apache.iceberg.MetricsConfig.forTable(found)
    for part in rows:
        numbered = _with_field_ids(part, found.schema())
        if numbered is None:
            return False
        place = found.locationProvider().newDataLocation(found.spec(), partition, f"{uuid.uuid4().hex}.parquet")
        buffer = io.BytesIO()
        pq.write_table(numbered, buffer, compression="zstd")
        with around("results.part"):
            stores.write(place, buffer.getvalue())
        metrics = jvm.org.apache.iceberg.parquet.ParquetUtil.fileMetrics(found.io().newInputFile(place), config)
        file = jvm.org.apache.iceberg.DataFiles.builder(found.spec()).withPath(place).withFormat("PARQUET")
        file = file.withFileSizeInBytes(buffer.getbuffer().nbytes).withPartition(partition).withMetrics(metrics)
        append.appendFile(file.build())
    append.commit()
    return True


def _month(jvm: Any, table: Any, column: str, instant: datetime) -> Any | None:
    """The partition of that month; None where the table is not partitioned by it."""
    fields = table.spec().fields()
    source = table.schema().findField(column)
    if fields.size() != 1 or source is None or fields.get(0).sourceId() != source.fieldId():
        return None
    if str(fields.get(0).transform()) != "month":
        return None
    partition = jvm.org.apache.iceberg.PartitionData(table.spec().partitionType())
    # As Iceberg counts them: since January 1970.
    partition.set(0, (instant.year - 1970) * 12 + instant.month - 1)
    return partition


def _may_have(jvm: Any, table: Any, key: str, value: str, column: str, since: datetime) -> bool:
    """Whether any file's bounds leave room for a row whose `key` is `value` and `column` not before `since`."""
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    # A compacted file has room for every key; by its times it is passed over.
    scan = table.newScan().filter(expressions.equal(key, value))
    tasks = scan.filter(expressions.greaterThanOrEqual(column, microseconds(since))).planFiles()
    try:
        return bool(tasks.iterator().hasNext())
    finally:
        tasks.close()


_TYPES = {"string": "string", "long": "int64", "timestamptz": "timestamp[us, tz=UTC]"}


def _with_field_ids(rows: pa.Table, schema: Any) -> pa.Table | None:
    """`rows` with the field ids by which Iceberg finds columns; None where the table's columns are others."""
    import pyarrow as pa

    fields = []
    for field in rows.schema:
        column = schema.findField(field.name)
        if column is None or _TYPES.get(str(column.type())) != str(field.type):
            return None
        fields.append(field.with_metadata({b"PARQUET:field_id": str(column.fieldId()).encode()}))
    if any(column.isRequired() and column.name() not in rows.column_names for column in schema.columns()):
        return None
    return rows.cast(pa.schema(fields))
