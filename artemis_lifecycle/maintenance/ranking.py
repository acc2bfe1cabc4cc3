"""Which partitions a compaction takes first: those that save a reader most time for each byte that is rewritten. Pure.

The time is what `score` counts: requests for small files that become one, and for delete files with their bytes. It is
that of a query that reads the whole partition. Which queries run is not in a table's metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from artemis_lifecycle.config.policies import Compaction

_PER_FILTER = 100
"""Partitions in one batch at most: each is a term of the filter that Iceberg evaluates for every file."""


@dataclass(frozen=True)
class RankedPartition:
    """`partition` as in `live_partitions`. `saved_seconds` is what one reader of all its files saves. `size_in_bytes`
    and `files` are what is rewritten for it. `for_deletes`: files of a good size with deletes are rewritten too."""

    partition: str
    saved_seconds: float
    size_in_bytes: int
    files: int
    for_deletes: bool


def ranked(
    partitions: pa.Table, thresholds: Compaction, seconds: Callable[[int, int], float]
) -> tuple[RankedPartition, ...]:
    """Return the partitions that are worth a rewrite, the greatest saving per byte first.

    `partitions` is as of `partitions_with_work`; `seconds` is the time to read so many files with so many bytes.
    """
    found = []
    for row in partitions.to_pylist():
        for_deletes = row["delete_files"] > 0 and row["delete_files"] >= thresholds.min_delete_file_ratio * row["files"]
        if not for_deletes and not row["rewritable"]:
            continue
        saved = seconds(row["rewritable"] - row["rewritten"], 0)
        if for_deletes:
            saved += seconds(row["delete_files"], row["delete_bytes"])
        found.append(
            RankedPartition(
                partition=row["partition"],
                saved_seconds=saved,
                size_in_bytes=row["bytes"] + row["delete_bytes"] if for_deletes else row["rewritable_bytes"],
                files=row["files"] if for_deletes else row["rewritable"],
                for_deletes=for_deletes,
            )
        )
    found.sort(key=lambda each: (-each.saved_seconds / max(1, each.size_in_bytes), each.partition))
    return tuple(found)


def batches(partitions: Sequence[RankedPartition], batch_bytes: int) -> Iterator[tuple[RankedPartition, ...]]:
    """Yield the partitions in their order, in batches of at most about `batch_bytes`; a larger partition is alone."""
    batch: list[RankedPartition] = []
    for each in partitions:
        size = sum(other.size_in_bytes for other in batch) + each.size_in_bytes
        if batch and (size > batch_bytes or len(batch) == _PER_FILTER):
            yield tuple(batch)
            batch = []
        batch.append(each)
    if batch:
        yield tuple(batch)
