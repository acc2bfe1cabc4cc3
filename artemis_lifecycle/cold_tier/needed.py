"""What has to be copied: everything that the wanted snapshots read, less what the ledger has already.

The answer is sealed before the first copy, so that a killed handoff or restore goes on with the same batches.
A manifest that was copied before is not even read again: the ledger has all its files. Cost follows the new manifests.
Small work is found and copied in this process (`here.py`), larger work on executors (`on_spark.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier import here
from artemis_lifecycle.cold_tier.ledger import CopiedFile, Ledger, Recorded
from artemis_lifecycle.cold_tier.on_spark import find_on_spark, losses_on_spark, open_on_spark
from artemis_lifecycle.cold_tier.work import (
    Demand,
    Found,
    Losses,
    Problem,
    Work,
    WorkRows,
    frame_folder,
    pack,
    store_work,
)
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def seal_work(
    spark: SparkSession,
    source: Stores,
    records: Stores,
    demand: Demand,
    ledger: Ledger,
    folder: str,
    *,
    files_per_batch: int,
    bytes_per_batch: int,
    problems: tuple[Problem, ...] = (),
) -> Work | tuple[Problem, ...]:
    """Find what is needed in `source` and seal it in `folder`, which `records` reach; or the problems, sealing nothing,
    when metadata cannot be read."""

    def sealed(found: Found) -> Work:
        # A name of its own: of two runs at once, or after a kill, one is sealed and the other is garbage.
        frame = frame_folder(folder, uuid.uuid4().hex)
        batches = pack(found.sizes(), files_per_batch, bytes_per_batch)
        found.store(frame, records)
        return store_work(records, folder, Work(frame, demand.snapshot_ids, batches, problems))

    def recorded(sources: Collection[str]) -> Mapping[str, Recorded]:
        return {} if demand.origin is None else demand.origin.among(spark, sources)

    small = here.find(source, demand, lambda paths: ledger.among(spark, paths), recorded)
    if small is not None:
        return small if isinstance(small, tuple) else sealed(small)
    with find_on_spark(spark, source, demand, ledger) as large:
        return large if isinstance(large, tuple) else sealed(large)


@contextmanager
def open_work(spark: SparkSession, records: Stores, work: Work, ledger: Ledger) -> Iterator[WorkRows]:
    """The sealed rows, for as long as the block runs. Raises StorageError when they are damaged."""
    small = here.RowsHere.open(spark, records, work, ledger)
    if small is not None:
        yield small
        return
    with open_on_spark(spark, records, work, ledger) as large:
        yield large


def losses_of(spark: SparkSession, source: Stores, demand: Demand, lost: Sequence[CopiedFile]) -> Losses:
    """Which snapshots of the demand cannot be read without `lost` files. Reads all its manifests, for something that is
    seldom."""
    if not lost:
        return Losses()
    found = here.losses_here(source, demand, lost)
    return losses_on_spark(spark, source, demand, lost) if found is None else found
