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
_ONE_ROW = re.compile(
    rf"INSERT (INTO|OVERWRITE) (?:TABLE )?(\S+?)(?:\.branch_(\w+))? VALUES \(({_VALUE}(?:, {_VALUE})*)\)"
)
_NAMESPACE = re.compile(r"CREATE NAMESPACE (IF NOT EXISTS )?(\w+)\.(\w+)")
_COMMANDS = ("ALTER ", "CREATE ", "DELETE ", "DROP ", "INSERT ", "MERGE ", "REFRESH ", "UPDATE ")


def sql(spark: SparkSession, statement: str) -> DataFrame:
    """As `spark.sql`. An INSERT of one row of integers and texts is written by Iceberg's core: of more rows Spark makes
    as many files as it has cores, and a test may count on them. A namespace is made by its catalog."""
    if found := _ONE_ROW.fullmatch(statement.strip()):
        how, name, branch, values = found.groups()
        row = tuple(None if each == "NULL" else each.strip("'") for each in re.findall(_VALUE, values))
        write = append if how == "INTO" else overwrite
        write(spark, name, [row], branch=branch or "main")
    elif found := _NAMESPACE.fullmatch(statement.strip()):
        _make_namespace(spark, found[2], found[3], bool(found[1]))
    else:
        return spark.sql(statement)
    return _nothing(spark)


def answer(spark: SparkSession, statement: str) -> list[Row]:
    """The rows that answer a question. A command has none, and is done when `sql` returns: `collect` is a job more."""
    found = sql(spark, statement)
    return [] if statement.lstrip().startswith(_COMMANDS) else found.collect()


def _make_namespace(spark: SparkSession, catalog: str, name: str, may_exist: bool) -> None:
    """With the property that Spark gives it."""
    jvm: Any = spark._jvm
    # The settings are those of the thread's active session.
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    of_spark: Any = spark._jsparkSession.sessionState().catalogManager().catalog(catalog)
    names = spark.sparkContext._gateway.new_array(jvm.java.lang.String, 1)  # type: ignore[union-attr]
    names[0] = name
    if not (may_exist and of_spark.namespaceExists(names)):
        of_spark.createNamespace(names, java_map(jvm, {"owner": spark.sparkContext.sparkUser()}))


@functools.cache
def _nothing(spark: SparkSession) -> DataFrame:
    return spark.range(0).toDF("id")


def _lines(rows: Values) -> str:
    return "\n".join("\t".join("\\N" if value is None else str(value) for value in row) for row in rows)
