"""Reading here and reading on the executors give the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from artemis_lifecycle.spark.readers import read_here, read_there


def _only_every_third(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One batch a row, and an empty one for most rows: as manifests without a live entry give."""
    for batch in batches:
        for number in batch.column("number").to_pylist():
            yield pa.RecordBatch.from_pydict({"number": pa.array([number] if number % 3 == 0 else [], pa.int64())})


def test_empty_batches_between_full_ones_lose_no_rows(spark: SparkSession) -> None:
    rows = pa.table({"number": pa.array(range(50), pa.int64())})
    expected = [number for number in range(50) if number % 3 == 0]
    here = read_here(spark, rows, _only_every_third, "number bigint")
    assert sorted(row["number"] for row in here.collect()) == expected
    there = read_there(spark, rows, _only_every_third, "number bigint", 2)
    assert sorted(row["number"] for row in there.collect()) == expected
