"""How work is cut into Spark tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def spread(frame: DataFrame, tasks: int) -> DataFrame:
    """`frame` in so many tasks, within four for each core: a Python worker's start costs more than many small files."""
    cores = int(frame.sparkSession.sparkContext.defaultParallelism)
    if tasks <= cores:
        return frame.coalesce(max(tasks, 1))
    return frame.repartition(min(tasks, 4 * cores))
