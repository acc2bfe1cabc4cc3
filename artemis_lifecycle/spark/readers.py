"""Running a reader of files where it costs least. Belongs here: the choice between this process and the executors.
Does not belong: what a reader reads.

A reader is a picklable function from Arrow batches to Arrow batches. Starting Python workers for a handful of files
costs more than reading them: up to `HERE_ROWS` rows the same reader runs in threads of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from artemis_lifecycle.spark.worker_errors import worker_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Reader = Callable[[Iterable["pa.RecordBatch"]], Iterable["pa.RecordBatch"]]

HERE_ROWS = 512
_THREADS = 8


def read_here(spark: SparkSession, rows: pa.Table, reader: Reader, schema: str) -> DataFrame:
    """Run `reader` over `rows` in threads of this process; the result is a local DataFrame of `schema` (DDL)."""
    import pyarrow as pa

    if rows.num_rows == 0:
        return spark.createDataFrame([], schema)
    size = -(-rows.num_rows // _THREADS)
    pieces = [rows.slice(start, size).combine_chunks().to_batches() for start in range(0, rows.num_rows, size)]
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        read = [batch for batches in pool.map(lambda piece: list(reader(piece)), pieces) for batch in batches]
    filled = [batch for batch in read if batch.num_rows]
    if not filled:
        return spark.createDataFrame([], schema)
    # One chunk, and no empty batch among them: PySpark 4.1 takes an empty batch in an Arrow table for its end, and
    # drops all rows behind it without a word.
    table = pa.Table.from_batches(filled).combine_chunks()
    return spark.createDataFrame(table, schema)


def read_there(spark: SparkSession, rows: pa.Table, reader: Reader, schema: str, tasks: int) -> DataFrame:
    """Run `reader` over `rows` on the executors, at once, in `tasks` tasks.

    The result is checkpointed: branches that start from it do not read again. Raises what the reader raises.
    """
    frame = spark.createDataFrame(rows).repartition(tasks)
    with worker_errors():
        return frame.mapInArrow(reader, schema).localCheckpoint(eager=True)
