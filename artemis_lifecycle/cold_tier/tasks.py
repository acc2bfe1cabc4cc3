"""How work is cut into Spark tasks, and one request to a store for each of many files. Belongs here: the choice
between threads of this process and executors. Does not belong: what is asked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FILES_HERE = 512
"""Up to so many files are asked for by this process; more, by executors."""

_FILES_PER_TASK = 128
_THREADS = 16


def spread(frame: DataFrame, tasks: int) -> DataFrame:
    """`frame` in so many tasks, within four for each core: a Python worker's start costs more than many small files."""
    cores = int(frame.sparkSession.sparkContext.defaultParallelism)
    if tasks <= cores:
        return frame.coalesce(max(tasks, 1))
    return frame.repartition(min(tasks, 4 * cores))


class FileWork(ABC):
    """One request to a store for each of many files; picklable."""

    schema: str
    """What `one` returns, as DDL."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    @abstractmethod
    def one(self, path: str) -> tuple[Any, ...]:
        """What became of the file, or is known of it. What it raises ends the work."""

    def here(self, paths: Sequence[str]) -> list[tuple[Any, ...]]:
        """`one` of each, in threads of this process."""
        return list(threaded(self.one, paths, self.stores.readers(paths[0], _THREADS) if paths else 1))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        kinds = arrow_schema(self.schema)
        for batch in batches:
            rows = self.here(batch.column("path").to_pylist())
            if rows:
                columns = [
                    pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds.types, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=kinds)


def each_file(spark: SparkSession, work: FileWork, paths: Sequence[str]) -> list[tuple[Any, ...]]:
    """`work.one` of every path, in any order."""
    if len(paths) <= FILES_HERE:
        return work.here(paths)
    frame = spark.createDataFrame([(path,) for path in paths], "path string")
    with worker_errors():
        found = spread(frame, -(-len(paths) // _FILES_PER_TASK)).mapInArrow(work, work.schema).collect()
    return [tuple(row) for row in found]
