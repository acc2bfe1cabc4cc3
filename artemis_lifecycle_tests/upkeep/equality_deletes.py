"""Equality deletes as Flink writes them, by Iceberg's Java API: no engine of these tests writes any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delete_by_equality(
    spark: SparkSession, table: Any, column: str, values: Sequence[int], partition: str | None = None
) -> None:
    """Commit one equality delete file to a table in the JVM: rows with these values of an int column, in a partition as
    `name=value`."""
    jvm: Any = spark._jvm
    iceberg, schema = jvm.org.apache.iceberg, table.schema().select(jvm.java.util.List.of(column))
    ids = spark.sparkContext._gateway.new_array(jvm.int, 1)  # type: ignore[union-attr]
    ids[0] = schema.findField(column).fieldId()
    where = None if partition is None else iceberg.DataFiles.data(table.spec(), partition)
    made = iceberg.io.OutputFileFactory.builderFor(table, 1, len(values)).build()
    target = made.newOutputFile() if where is None else made.newOutputFile(table.spec(), where)
    builder = getattr(iceberg.data, "GenericFileWriterFactory$Builder")(table)
    factory = builder.equalityFieldIds(ids).equalityDeleteRowSchema(schema).build()
    writer = factory.newEqualityDeleteWriter(target, table.spec(), where)
    for value in values:
        record = iceberg.data.GenericRecord.create(schema)
        record.setField(column, value)
        writer.write(record)
    writer.close()
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()
