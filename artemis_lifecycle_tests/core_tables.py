"""Commits by Iceberg's core in the session's JVM: for the history of a test that is not about how Spark writes.

The table is the one that the session's catalog loads, so what stands around Spark's commits (a gate, a lock, a property
of the catalog) stands around these, too. A commit costs 0.02 s of the processor; by Spark SQL it costs 0.1 s.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.spark.jvm import java_map
from artemis_lifecycle_tests.foreign.core import compile_core

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Values = Iterable[tuple[object, ...]]
"""Rows: integers, texts without tabs, and None, in the order of the table's columns."""


def java_table(spark: SparkSession, name: str) -> Any:
    """Iceberg's own object for `catalog.namespace.table`, loaded anew."""
    jvm: Any = spark._jvm
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)


def append(spark: SparkSession, name: str, rows: Values, *, branch: str = "main") -> None:
    compile_core(spark).write(java_table(spark, name), branch, _lines(rows), False)


def overwrite(spark: SparkSession, name: str, rows: Values, *, branch: str = "main") -> None:
    """Replace all rows, as `INSERT OVERWRITE` does."""
    compile_core(spark).write(java_table(spark, name), branch, _lines(rows), True)


_VALUE = r"(?:-?\d+|'[^'\\\t\n]*'|NULL)"
_ROW = rf"\({_VALUE}(?:, {_VALUE})*\)"
_ROWS = re.compile(rf"INSERT (INTO|OVERWRITE) (?:TABLE )?(\S+?)(?:\.branch_(\w+))? VALUES ({_ROW}(?:, {_ROW})*)")
_HINTED = re.compile(
    r"INSERT (INTO|OVERWRITE) (?:TABLE )?(\S+?)(?:\.branch_(\w+))? SELECT /\*\+ COALESCE\(1\) \*/ "
    rf"(?:\* FROM VALUES ({_ROW}(?:, {_ROW})*)|id FROM range\((?:(\d+), )?(\d+)\))"
)
"""Rows in one file."""
_NAMESPACE = re.compile(r"CREATE NAMESPACE (IF NOT EXISTS )?(\w+)\.(\w+)")
_PROPERTY = r"'[^']*' ?= ?'[^']*'"
_TABLE = re.compile(
    r"CREATE TABLE (\w+)\.(\w+)\.(\w+) \(([\w, ]+)\) USING iceberg(?:\s+PARTITIONED BY \((\w+)\))?"
    rf"(?:\s+TBLPROPERTIES ?\(({_PROPERTY}(?:, {_PROPERTY})*)\))?"
)
_COMMANDS = ("ALTER ", "CREATE ", "DELETE ", "DROP ", "INSERT ", "MERGE ", "REFRESH ", "UPDATE ")
_PLAIN = re.compile(r"\[\] \[\] table \{(?:\s+\d+: \w+: optional (?:int|long|string))+\s+\}")
"""A table without partitions and order, whose columns Core.java writes."""


def sql(spark: SparkSession, statement: str) -> DataFrame:
    """As `spark.sql`. Rows of integers and texts are written by Iceberg's core, in as many files as by Spark; several
    only where they need no shuffle; nothing is staged (`spark.wap.id`). Namespaces and simple tables are made by their
    catalog."""
    plain = statement.strip()
    if _written(spark, plain):
        pass
    elif found := _NAMESPACE.fullmatch(plain):
        _make_namespace(spark, found[2], found[3], bool(found[1]))
    elif found := _TABLE.fullmatch(plain):
        _make_table(spark, *found.groups(""))
    else:
        return spark.sql(statement)
    return _nothing(spark)


def _written(spark: SparkSession, statement: str) -> bool:
    if found := _ROWS.fullmatch(statement):
        return _write(spark, *found.groups())
    found = _HINTED.fullmatch(statement)
    return found is not None and _write_one_file(spark, *found.groups())


def _write(spark: SparkSession, how: str, name: str, branch: str | None, values: str) -> bool:
    rows, table = _rows(values), java_table(spark, name)
    if len(rows) > 1 and not _is_plain(table):
        return False
    # Spark cuts them in two, for its two cores.
    parts = [each for each in (rows[: len(rows) // 2], rows[len(rows) // 2 :]) if each]
    compile_core(spark).write(table, branch or "main", "\n\f\n".join(map(_lines, parts)), how == "OVERWRITE")
    return True


def _write_one_file(
    spark: SparkSession, how: str, name: str, branch: str | None, values: str | None, first: str | None, end: str | None
) -> bool:
    rows = _rows(values) if values is not None else [(each,) for each in range(int(first or 0), int(end or 0))]
    table = java_table(spark, name)
    # Spark casts, and refuses what lacks a column.
    if not rows or not _is_plain(table) or len(table.schema().columns()) != len(rows[0]):
        return False
    compile_core(spark).write(table, branch or "main", _lines(rows), how == "OVERWRITE")
    return True


def _rows(values: str) -> list[tuple[object, ...]]:
    return [
        tuple(None if each == "NULL" else each.strip("'") for each in re.findall(_VALUE, row))
        for row in re.findall(_ROW, values)
    ]


def _is_plain(table: Any) -> bool:
    return _PLAIN.fullmatch(f"{table.spec()} {table.sortOrder()} {table.schema()}") is not None


def answer(spark: SparkSession, statement: str) -> list[Row]:
    """The rows that answer a question. A command has none, and is done when `sql` returns: `collect` is a job more."""
    found = sql(spark, statement)
    return [] if statement.lstrip().startswith(_COMMANDS) else found.collect()


def _catalog(spark: SparkSession, catalog: str) -> Any:
    """Spark's own object for a catalog of the session."""
    # The settings are those of the thread's active session.
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]
    return spark._jsparkSession.sessionState().catalogManager().catalog(catalog)


def _array(spark: SparkSession, kind: Any, *items: Any) -> Any:
    made = spark.sparkContext._gateway.new_array(kind, len(items))  # type: ignore[union-attr]
    for at, item in enumerate(items):
        made[at] = item
    return made


def _make_namespace(spark: SparkSession, catalog: str, name: str, may_exist: bool) -> None:
    """With the property that Spark gives it."""
    jvm: Any = spark._jvm
    of_spark, names = _catalog(spark, catalog), _array(spark, jvm.java.lang.String, name)
    if not (may_exist and of_spark.namespaceExists(names)):
        of_spark.createNamespace(names, java_map(jvm, {"owner": spark.sparkContext.sparkUser()}))


def _make_table(
    spark: SparkSession, catalog: str, namespace: str, name: str, columns: str, partition: str, properties: str
) -> None:
    """With the properties that Spark gives it."""
    jvm: Any = spark._jvm
    connector = jvm.org.apache.spark.sql.connector
    given = dict(re.findall(r"'([^']*)' ?= ?'([^']*)'", properties))
    _catalog(spark, catalog).createTable(
        connector.catalog.Identifier.of(_array(spark, jvm.java.lang.String, namespace), name),
        jvm.org.apache.spark.sql.types.StructType.fromDDL(columns),
        _array(
            spark,
            connector.expressions.Transform,
            *([connector.expressions.Expressions.identity(partition)] if partition else []),
        ),
        java_map(jvm, {**given, "provider": "iceberg", "owner": spark.sparkContext.sparkUser()}),
    )


@functools.cache
def _nothing(spark: SparkSession) -> DataFrame:
    return spark.range(0).toDF("id")


def _lines(rows: Values) -> str:
    return "\n".join("\t".join("\\N" if value is None else str(value) for value in row) for row in rows)
