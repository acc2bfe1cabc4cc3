"""Java's errors that are other systems' doing come out as this project's own; all others stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from artemis_lifecycle.errors import (
    CommitConflict,
    CommitStateUnknown,
    LifecycleError,
    MissingFile,
    OperationsUnavailable,
    StorageError,
    UnreadableMetadata,
)
from artemis_lifecycle.spark.java_errors import java_errors, worker_errors

ICEBERG = "org.apache.iceberg.exceptions"


def _thrown(spark: SparkSession, outer: Any) -> None:
    """Have the JVM throw it."""
    jvm: Any = spark._jvm
    future = jvm.java.util.concurrent.CompletableFuture()
    future.completeExceptionally(outer)
    future.join()


def _made(spark: SparkSession, name: str, *arguments: Any) -> Any:
    jvm: Any = spark._jvm
    found = jvm
    for part in name.split("."):
        found = getattr(found, part)
    return found(*arguments)


def _of(spark: SparkSession, kind: str) -> Any:
    jvm: Any = spark._jvm
    nothing = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 0)  # type: ignore[union-attr]
    if kind == "gone":
        cause = _made(spark, "java.sql.SQLException", "terminating connection", "57P01")
        return _made(spark, "org.apache.iceberg.jdbc.UncheckedSQLException", cause, "Failed to get table", nothing)
    if kind == "refused":
        cause = _made(spark, "java.sql.SQLException", "permission denied", "42501")
        return _made(spark, "org.apache.iceberg.jdbc.UncheckedSQLException", cause, "Failed to get table", nothing)
    if kind == "conflict":
        cause = _made(spark, f"{ICEBERG}.ValidationException", "Missing required files", nothing)
        return _made(spark, "java.lang.RuntimeException", "Cannot commit rewrite", cause)
    if kind == "unknown":
        return _made(spark, f"{ICEBERG}.CommitStateUnknownException", _made(spark, "java.lang.Exception", "no answer"))
    if kind == "store":
        return _made(spark, "java.io.UncheckedIOException", _made(spark, "java.io.IOException", "reset by peer"))
    if kind == "stopped":
        return _made(spark, "java.io.UncheckedIOException", _made(spark, "java.io.InterruptedIOException", "stop"))
    return _made(spark, "java.lang.IllegalStateException", "a defect")


@pytest.mark.parametrize("around", [java_errors, worker_errors])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("gone", OperationsUnavailable),
        ("conflict", CommitConflict),
        ("unknown", CommitStateUnknown),
        ("store", StorageError),
    ],
)
def test_what_other_systems_did_is_reported_as_this_projects_errors(
    spark: SparkSession, around: Any, kind: str, expected: type[LifecycleError]
) -> None:
    with pytest.raises(expected) as raised, around():
        _thrown(spark, _of(spark, kind))
    assert "\n" not in str(raised.value) and "Exception: " in str(raised.value)
    assert isinstance(raised.value.__cause__, Py4JJavaError)


@pytest.mark.parametrize("kind", ["refused", "stopped", "defect"])
def test_all_else_keeps_its_trace(spark: SparkSession, kind: str) -> None:
    with pytest.raises(Py4JJavaError), java_errors():
        _thrown(spark, _of(spark, kind))
    with pytest.raises(ZeroDivisionError), java_errors():
        _ = 1 / 0


def test_the_table_is_named(spark: SparkSession) -> None:
    with pytest.raises(CommitConflict, match=r"\[table ns.t\]"), java_errors("ns.t"):
        _thrown(spark, _of(spark, "conflict"))


def test_what_executors_met_counts_too(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    broken = spark.range(1).select(F.raise_error(F.lit("java.net.SocketTimeoutException: Read timed out")))
    with pytest.raises(StorageError, match="Read timed out"), java_errors():
        broken.collect()


@pytest.mark.parametrize(
    ("said", "expected", "path"),
    [
        ("Location does not exist: s3://b/a c/x-m0.avro", UnreadableMetadata, "s3://b/a c/x-m0.avro"),
        ("Failed to open input stream for file: s3://b/snap-1.avro", UnreadableMetadata, "s3://b/snap-1.avro"),
        ("java.io.FileNotFoundException: File file:/t/x.parquet does not exist", MissingFile, "file:/t/x.parquet"),
        (
            "Failed to open file: file:/t/x-m1.avro\n"
            "Caused by: org.apache.iceberg.shaded.org.apache.avro.InvalidAvroMagicException: Not an Avro data file",
            UnreadableMetadata,
            "file:/t/x-m1.avro",
        ),
        (
            "Failed to open input stream for file: file:/t/x-m1.avro\n"
            "Caused by: java.io.FileNotFoundException: /t/x-m1.avro (Permission denied)",
            UnreadableMetadata,
            "file:/t/x-m1.avro",
        ),
        # Spark's own temporary file, and a store that is away: another try may do better.
        ("java.io.FileNotFoundException: /tmp/blockmgr-1/shuffle_0.index (No such file)", StorageError, None),
        (
            "java.io.UncheckedIOException: Failed to open input stream for file: s3://b/x-m0.avro\n"
            "Caused by: java.net.SocketTimeoutException: Read timed out",
            StorageError,
            None,
        ),
    ],
)
def test_a_file_that_is_gone_or_damaged_is_named(
    spark: SparkSession, said: str, expected: type[LifecycleError], path: str | None
) -> None:
    from pyspark.sql import functions as F

    if said.startswith(("Location", "Failed")):
        kind = "RuntimeIO" if "to open file" in said else "NotFound"
        said = f"{ICEBERG}.{kind}Exception: {said}"
    with pytest.raises(LifecycleError) as raised, java_errors("ns.t"):
        spark.range(1).select(F.raise_error(F.lit(f"{said}\n\tat x"))).collect()
    assert (type(raised.value), raised.value.path, raised.value.table) == (expected, path, "ns.t")
