"""Evidence for a check: which reachable files of the live table are in the store. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from artemis_lifecycle.deletion.outcomes import GONE, outcome_frame
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle.lifecycle.cold_evidence import NAMED
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.reachability.walk import indexed, reachable_files
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.frames import read_frame
from artemis_lifecycle.storage.location import normalize_column
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HEADS = 16
_JOBS = 50  # Newest plans and scans whose deletions may be later than the newest listing.


@dataclass(frozen=True)
class Presence:
    """Which files that the table's snapshots reach are missing from the store. `absent` lists some of
    `absent_files`."""

    metadata_location: str
    reachable_files: int
    looked_at: int
    absent_files: int
    absent: tuple[str, ...]


def reachable_presence(lifecycle: Lifecycle, table: str) -> Presence:
    """Walk every snapshot of the current table, and check that each file is in the store.

    A file exists if the newest listing has it and no deletion since then removed it. Every other file is looked up by
    name. Raises UnreadableMetadata if a manifest or a list is missing.
    """
    spark, stores, rules = lifecycle.spark, lifecycle.live_stores, lifecycle.rules(table)
    listing = lifecycle.latest_listing(table) or lifecycle.list_objects(table)
    metadata = read_table_metadata(stores, lifecycle.snapshot_history(table).metadata_location)
    everything = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    with worker_errors():
        view = indexed(spark, stores, metadata, rules, lifecycle.root)
        reachable = reachable_files(Runner(spark), view, everything).frame().select("path", "location").persist()
        try:
            listed = read_frame(Runner(spark), listing.files_location, stores).frame()
            listed = listed.select(normalize_column(listed.path, rules).alias("location")).distinct()
            suspects = reachable.join(listed, "location", "left_anti")
            for job_id in _deletions_since(lifecycle, metadata.table_uuid, listing.listing_id):
                outcomes = outcome_frame(spark, stores, lifecycle.root, job_id)
                gone = outcomes.filter(outcomes.outcome.isin(*GONE, "absent"))
                gone = gone.select(normalize_column(gone.path, rules).alias("location")).distinct()
                suspects = suspects.unionByName(reachable.join(gone, "location", "left_semi"))
            looked_at, absent = _absent(stores, _paths(suspects.select("path").distinct()))
            total = reachable.count()
        finally:
            reachable.unpersist()
    return Presence(metadata.metadata_location, total, looked_at, len(absent), tuple(absent[:NAMED]))


def _deletions_since(lifecycle: Lifecycle, table_uuid: str, listing_id: str) -> list[str]:
    operations = lifecycle.operations
    began = operations.scans.listing(listing_id).started_at
    ids = [record.plan_id for record in operations.plans.of_table(table_uuid)[:_JOBS]]
    ids += [record.scan_id for record in operations.scans.of_table(table_uuid)[:_JOBS]]
    jobs = [job for job_id in ids if (job := operations.journal.job(job_id)) is not None]
    return [job.job_id for job in jobs if job.finished_at is None or job.finished_at >= began]


def _paths(frame: DataFrame) -> Iterator[str]:
    return (row["path"] for row in frame.toLocalIterator())


def _absent(stores: Stores, paths: Iterable[str]) -> tuple[int, list[str]]:
    """Return (how many were looked up, those that the store does not have)."""
    remaining, looked_at, absent = iter(paths), 0, []
    with ThreadPoolExecutor(_HEADS) as pool:
        while chunk := list(islice(remaining, 1000)):
            looked_at += len(chunk)
            absent += [path for path, found in zip(chunk, pool.map(stores.head, chunk), strict=True) if found is None]
    return looked_at, absent
