"""Commits by Iceberg's core in the session's JVM: for the history of a test that is not about how Spark writes.

The table is the one that the session's catalog loads, so what stands around Spark's commits (a gate, a lock, a property
of the catalog) stands around these, too. A commit costs 0.02 s of the processor; by Spark SQL it costs 0.1 s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from artemis_lifecycle_tests.foreign.core import compile_core

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def sql(spark: SparkSession, statement: str) -> DataFrame:
    """As `spark.sql`. An INSERT of one row of integers and texts is written by Iceberg's core: of more rows Spark makes
    as many files as it has cores, and a test may count on them."""
    found = _ONE_ROW.fullmatch(statement.strip())
    if found is None:
        return spark.sql(statement)
    how, name, branch, values = found.groups()
    row = tuple(None if each == "NULL" else each.strip("'") for each in re.findall(_VALUE, values))
    write = append if how == "INTO" else overwrite
    write(spark, name, [row], branch=branch or "main")
    return spark.range(0).toDF("id")


def _lines(rows: Values) -> str:
    return "\n".join("\t".join("\\N" if value is None else str(value) for value in row) for row in rows)
