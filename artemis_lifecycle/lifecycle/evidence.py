"""Evidence for checks: the files that the store has, of the live table and of the cold one. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier.handoff_outcome import HandoffOutcome, read_outcome
from artemis_lifecycle.cold_tier.verify import cold_index, verify_copies
from artemis_lifecycle.deletion.outcomes import GONE, outcome_frame
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.reachability.walk import indexed, reachable_files
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.frames import read_frame
from artemis_lifecycle.storage.location import is_under, normalize, normalize_column
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAMED = 20
"""Offenders that a check names; it counts all."""

VERIFIED_BYTES = 4 << 30
"""What a check reads again of a plan's cold copies, at most; of a larger plan the same share each time."""

_HEADS = 16
_JOBS = 50  # Newest plans and scans whose deletions may be younger than the newest listing.


@dataclass(frozen=True)
class Presence:
    """Which files that the table's snapshots reach are not in the store. `absent` names some of `absent_files`."""

    metadata_location: str
    reachable_files: int
    looked_at: int
    absent_files: int
    absent: tuple[str, ...]


def reachable_presence(lifecycle: Lifecycle, table: str) -> Presence:
    """Walk every snapshot of the table as it is now, and see that each file is in the store.

    A file that the newest listing has, and that no deletion since took, is there; every other one is asked for by name.
    Raises UnreadableMetadata when the walk itself misses a manifest or a list.
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
    """(how many were looked at, those that the store does not have)."""
    remaining, looked_at, absent = iter(paths), 0, []
    with ThreadPoolExecutor(_HEADS) as pool:
        while chunk := list(islice(remaining, 1000)):
            looked_at += len(chunk)
            absent += [path for path, found in zip(chunk, pool.map(stores.head, chunk), strict=True) if found is None]
    return looked_at, absent


@dataclass(frozen=True)
class ColdCopy:
    """How a plan's snapshots stand in the cold tier. `problems` are in words; none means that all is well."""

    cold_table: str | None
    snapshots: int
    files: int
    verified_files: int
    verified_bytes: int
    problems: tuple[str, ...]


def cold_copy(lifecycle: Lifecycle, plan: ExpirationPlan) -> ColdCopy:
    """Look at the cold table alone: it has each snapshot of the plan that is to be there, each manifest of theirs reads
    and says what the list says, no path leads out of the cold warehouse, and the copies read back with the checksums
    of their sources. Snapshots that the handoff left out by policy or consent need not be there.
    """
    outcome = read_outcome(lifecycle.live_stores, lifecycle.root, plan.plan_id) or HandoffOutcome()
    left_out = {*outcome.lost, *outcome.overtaken, *outcome.thinned}
    wanted = [snapshot for snapshot in plan.expired_snapshots if snapshot not in left_out]
    if not wanted:
        return ColdCopy(None, 0, 0, 0, 0, ())
    found = lifecycle.cold_tables(plan.table_uuid)
    if found is None:
        return ColdCopy(None, 0, 0, 0, 0, ("the cold catalog does not have the table",))
    name, metadata = found.newest.name, found.whole()
    there = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    problems = [f"snapshot {snapshot} is not in it" for snapshot in wanted if snapshot not in there]
    present = [snapshot for snapshot in wanted if snapshot in there]
    rules = lifecycle.rules(plan.table)
    root = normalize(lifecycle.config.catalogs.cold.warehouse or "", rules)
    with worker_errors():
        view = cold_index(
            lifecycle.spark, lifecycle.cold_stores, lifecycle.live_stores, metadata, rules, lifecycle.root
        )
        files = reachable_files(Runner(lifecycle.spark), view, present).frame().persist()
        try:
            strays = files.filter(~files.location.startswith(root.rstrip("/") + "/")).limit(NAMED).collect()
            total, size = files.agg({"path": "count", "size_in_bytes": "sum"}).collect()[0]
        finally:
            files.unpersist()
    problems += [f"{row['path']} is not in the cold warehouse" for row in strays if not is_under(row["location"], root)]
    again = verify_copies(
        lifecycle.spark,
        lifecycle.live_stores,
        lifecycle.cold_stores,
        lifecycle.root,
        plan.table_uuid,
        plan_id=plan.plan_id,
        share=min(1.0, VERIFIED_BYTES / max(1, int(size or 0))),
    )
    problems += [f"{path}: {reason}" for path, reason in again.damaged]
    return ColdCopy(name, len(present), int(total or 0), again.checked_files, again.checked_bytes, tuple(problems))
