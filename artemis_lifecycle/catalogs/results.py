"""Result tables: Iceberg tables of namespace `lifecycle` in the live catalog, for people. Nothing decides by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMESPACE = "lifecycle"
"""Left out of discovery, of sensors and of the tables' schedules."""


def replace_rows(
    spark: SparkSession, catalog: str, name: str, columns: str, partition: str, key: str, value: str, rows: DataFrame
) -> None:
    """Make `rows` all that `<catalog>.lifecycle.<name>` has where `key` is `value`. Creates the table at first use.

    When as many rows stand there already nothing is committed. Two steps (delete, append) where an earlier run left
    others: dying between them leaves none, and a caller that runs again writes them again.
    """
    from pyspark.sql import functions as F

    table = f"{catalog}.{NAMESPACE}.{name}"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.{NAMESPACE}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING iceberg PARTITIONED BY ({partition}) "
        # Every table's job appends here, two at a time or more.
        "TBLPROPERTIES ('commit.retry.num-retries' = '20', 'write.delete.isolation-level' = 'snapshot')"
    )
    present = spark.table(table).where(F.col(key) == value).count()
    if present:
        if present == rows.count():
            return
        spark.sql(f"DELETE FROM {table} WHERE {key} = :value", args={"value": value})
    rows.writeTo(table).append()
