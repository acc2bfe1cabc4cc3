"""The rows of the storm's tables, and a sum over them that any engine computes and no order changes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTS = ("p0", "p1", "p 2", "p=3", "p%4")
"""Partition values, some of which no path may have as they are."""

BITS = 40
"""Of `id` and `mark`: sums of millions of them fit into a long."""

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("mark", pa.int64()),
        pa.field("part", pa.string()),
        pa.field("said", pa.string()),
    ]
)

Total = tuple[int, int, int, int]
"""Rows; the sums of their ids and marks, which are random, so that no two sets of rows are alike; letters said."""

NOTHING: Total = (0, 0, 0, 0)


def make(dice: random.Random, number: int) -> pa.Table:
    """So many new rows."""
    return pa.table(
        {
            "id": [dice.getrandbits(BITS) for _ in range(number)],
            "mark": [dice.getrandbits(BITS) for _ in range(number)],
            "part": [dice.choice(PARTS) for _ in range(number)],
            "said": ["x" * dice.randrange(40) for _ in range(number)],
        },
        schema=SCHEMA,
    )


def total(table: pa.Table) -> Total:
    said = pc.sum(pc.utf8_length(table.column("said"))).as_py() or 0
    return (
        table.num_rows,
        pc.sum(table.column("id")).as_py() or 0,
        pc.sum(table.column("mark")).as_py() or 0,
        said,
    )


def add(one: Total, other: Total) -> Total:
    return tuple(a + b for a, b in zip(one, other, strict=True))  # type: ignore[return-value]


def totaled(frame: DataFrame) -> DataFrame:
    """One row of a frame's total, as Spark computes it."""
    from pyspark.sql import functions as F

    return frame.agg(
        F.count(F.lit(1)).alias("rows"),
        F.coalesce(F.sum("id"), F.lit(0)).alias("ids"),
        F.coalesce(F.sum("mark"), F.lit(0)).alias("marks"),
        F.coalesce(F.sum(F.length("said")), F.lit(0)).alias("said"),
    )
