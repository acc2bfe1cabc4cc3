"""What a handoff has to copy: everything that its snapshots read, less what was copied in earlier handoffs.

The answer is sealed under the plan's id before the first copy, so that a killed handoff goes on with the same batches.
A manifest that was copied before is not even read again: the ledger has all its files. Cost follows the new manifests.
Small work is found and copied in this process (`here.py`), larger work on executors (`on_spark.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier import here
from artemis_lifecycle.cold_tier.ledger import CopiedFile, Ledger
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
    live: Stores,
    demand: Demand,
    ledger: Ledger,
    root: str,
    plan_id: str,
    *,
    files_per_batch: int,
    bytes_per_batch: int,
    problems: tuple[Problem, ...] = (),
) -> Work | tuple[Problem, ...]:
    """Find what is needed and seal it for the plan; or the problems, sealing nothing, when metadata cannot be
    read."""

    def sealed(found: Found) -> Work:
        # A name of its own: of two runs at once, or after a kill, one is sealed and the other is garbage.
        folder = frame_folder(root, plan_id, uuid.uuid4().hex)
        batches = pack(found.sizes(), files_per_batch, bytes_per_batch)
        found.store(folder, live)
        return store_work(live, root, plan_id, Work(folder, demand.snapshot_ids, batches, problems))

    small = here.find(live, demand, lambda paths: ledger.among(spark, paths))
    if small is not None:
        return small if isinstance(small, tuple) else sealed(small)
    with find_on_spark(spark, live, demand, ledger) as large:
        return large if isinstance(large, tuple) else sealed(large)


@contextmanager
def open_work(spark: SparkSession, stores: Stores, work: Work, ledger: Ledger) -> Iterator[WorkRows]:
    """The sealed rows, for as long as the block runs. Raises StorageError when they are damaged."""
    small = here.RowsHere.open(spark, stores, work, ledger)
    if small is not None:
        yield small
        return
    with open_on_spark(spark, stores, work, ledger) as large:
        yield large


def losses_of(spark: SparkSession, live: Stores, demand: Demand, lost: Sequence[CopiedFile]) -> Losses:
    """Which snapshots of the demand cannot be read without `lost` files. Reads all its manifests, for something that is
    seldom."""
    if not lost:
        return Losses()
    found = here.losses_here(live, demand, lost)
    return losses_on_spark(spark, live, demand, lost) if found is None else found
