"""Reads the cold tier again to check whether copies still match their verified state. Changes nothing."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from artemis_lifecycle.cold_tier.ledger import COPIES, handoff_ledger
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.spark.runner import Cost, Runner, Spark, first_of_each, record_batch
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.location_hash import hash_strings
from artemis_lifecycle.storage.stores import Stores

_DRAWS = 10_000
_DAMAGED_SHOWN = 1_000
_CHECKED = pa.schema([COPIES.field(name) for name in ("destination", "size_in_bytes", "checksum")])
_DAMAGED = arrow_schema("destination string, reason string")


@dataclass(frozen=True)
class Verification:
    """The result of reading cold files again. `damaged` are (cold path, reason), at most 1,000."""

    checked_files: int
    checked_bytes: int
    damaged: tuple[tuple[str, str], ...]


def cold_index(
    spark: Spark | None,
    cold_stores: Stores,
    root_stores: Stores,
    metadata: TableMetadata,
    rules: LocationRules,
    root: str,
) -> IndexView:
    """Return what the cold table reaches, as a manifest index in a separate folder: the cold table has the live table's
    uuid, but other files. Raises UnreadableMetadata."""
    return indexed(spark, cold_stores, metadata, rules, f"{root}/cold", files=root_stores)


def verify_copies(
    spark: Spark,
    root_stores: Stores,
    cold_stores: Stores,
    root: str,
    table_uuid: str,
    *,
    plan_id: str | None = None,
    share: float = 1.0,
) -> Verification:
    """Read the cold files of a table (or of one plan, or a `share` of them from 0 to 1, always the same ones) and
    compare size and checksum with the verified record. `root_stores` can access `operations.root`."""
    runner, ledger = Runner(spark), handoff_ledger(root_stores, root, table_uuid)
    with runner.keeping() as keep:
        recorded = ledger.rows(runner, _CHECKED.names, plan_id)
        drawn = keep(recorded.map(partial(_drawn, int(share * _DRAWS)), _CHECKED))
        chosen = keep(runner.meet([drawn], "destination", partial(first_of_each, column="destination"), _CHECKED))
        files, size = chosen.sums("size_in_bytes")
        damaged = chosen.map(partial(_damaged, cold_stores), _DAMAGED, Cost(files, files, size))
        rows = (row for batch in damaged.batches() for row in batch.to_pylist())
        shown = heapq.nsmallest(_DAMAGED_SHOWN, ((row["destination"], row["reason"]) for row in rows))
    return Verification(files, size, tuple(shown))


def _drawn(draws: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pa.array(hash_strings(batch.column("destination")) % np.uint64(_DRAWS) < draws))


def _damaged(stores: Stores, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path, size, checksum in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            try:
                _, reason, _ = compared(stores, path, recorded={path: (size, checksum)})
            except StorageError as error:
                reason = error.what
            if reason is not None:
                yield record_batch([(path, reason)], _DAMAGED)


def compared(
    stores: Stores, path: str, *, recorded: Mapping[str, tuple[int, str | None]]
) -> tuple[str, str | None, bool]:
    """Return the path, why the copy differs from its `recorded` size and checksum (None if it does not), and whether it
    is archived, so that only its presence and size can be checked.

    Raises StorageError if the store does not answer; a copy that exists and cannot be read is such a case.
    """
    size, checksum = recorded[path]
    head = stores.head(path)
    if head is None:
        return path, "the file is gone", False
    if head.size_in_bytes != size:
        return path, f"the file has {head.size_in_bytes} bytes, but had {size}", False
    state = stores.archive_state(path)
    if state is not None and not state.readable:
        return path, None, True
    try:
        now = stores.checksum(path)
    except StorageError as error:
        if stores.head(path) is not None:
            # A store that does not answer is not a loss: the rotation of a scrub does not advance.
            raise
        return path, error.what, False
    return path, None if now == checksum else f"the file is {now}, but was {checksum}", False
