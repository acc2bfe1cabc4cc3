"""Evidence for a check: which reachable files of the live table are in the store. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.deletion.batches import GONE, job_outcomes
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.orphans.scan import files_themselves, listed_folders, listed_parts
from artemis_lifecycle.protection.context import Asking
from artemis_lifecycle.protection.protection import own_table
from artemis_lifecycle.reachability.walk import indexed, reachable_files
from artemis_lifecycle.session.contexts import deletion_context
from artemis_lifecycle.spark.java_errors import worker_errors
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.frames import arrow_schema, read_frame
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle.storage.location import LocationRules, normalize
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.walk.plan_checks import NAMED

_HEADS = 16
_JOBS = 50  # Newest plans and scans whose deletions may be later than the newest listing.


@dataclass(frozen=True)
class Presence:
    """Which files that the table's snapshots reach are missing from the store. `absent` lists some of
    `absent_files`."""

    metadata_location: str
    reachable_files: int
    checked_files: int
    absent_files: int
    absent: tuple[str, ...]


def reachable_presence(lifecycle: Lifecycle, table: str) -> Presence:
    """Walk every snapshot of the current table, and check that each file is in the store.

    A file exists if the newest listing has it and no deletion since then removed it. Every other file is looked up by
    name. Raises UnreadableMetadata if a manifest or a list is missing.
    """
    if lifecycle.kind(table) != "iceberg":
        return _presence_by_listing(lifecycle, table)
    resources, stores, rules = lifecycle.resources, lifecycle.live_stores, lifecycle.rules(table)
    runner = Runner(resources.start_spark)
    listing = lifecycle.latest_listing(table) or lifecycle.list_objects(table)
    metadata = read_table_metadata(stores, lifecycle.snapshot_history(table).metadata_location)
    everything = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    with worker_errors(), runner.keeping() as keep:
        view = indexed(resources.start_spark, stores, metadata, rules, lifecycle.root)
        reachable = keep(reachable_files(runner, view, everything))
        seen = [read_frame(runner, listing.files_location, stores).map(partial(_places, rules, exists=True), _SEEN)]
        for job_id in _deletions_since(lifecycle, metadata.table_uuid, listing.listing_id):
            outcomes = job_outcomes(resources.start_spark, stores, lifecycle.root, job_id)
            seen.append(outcomes.map(partial(_places, rules, exists=False), _SEEN))
        suspects = runner.meet([reachable, runner.concat(*seen)], "location", _suspects, reachable.schema)
        checked_files, absent = _absent(stores, (path for batch in suspects.batches() for path in _paths(batch)))
        (total,) = reachable.sums()
    return Presence(metadata.metadata_location, total, checked_files, len(absent), tuple(absent[:NAMED]))


def _presence_by_listing(lifecycle: Lifecycle, table: str) -> Presence:
    """The same for a table of another format: list it again, and look up what it reaches and the listing lacks."""
    stores, rules = lifecycle.live_stores, lifecycle.rules(table)
    listing = lifecycle.list_objects(table)
    listed = files_themselves(listed_parts(listing.files_location, stores, rules))
    asking = Asking("presence", "orphans", table, lifecycle.steps.table_uuid(table))
    own = own_table(deletion_context(lifecycle.resources, table), asking)
    metadata = own.read()
    files = own.files(metadata)
    assert files is not None
    count = 0

    def add(paths: pa.Array) -> None:
        nonlocal count
        count += len(paths)

    files.visit(add)
    folders = listed_folders(listing, rules)
    suspects = files.outside(milliseconds(listing.started_at), listed, folders, at_most=count)
    checked_files, absent = _absent(stores, suspects)
    return Presence(metadata.metadata_location, count, checked_files, len(absent), tuple(absent[:NAMED]))


def _deletions_since(lifecycle: Lifecycle, table_uuid: str, listing_id: str) -> list[str]:
    operations = lifecycle.operations
    began = operations.scans.listing(listing_id).started_at
    ids = [record.plan_id for record in operations.plans.of_table(table_uuid)[:_JOBS]]
    ids += [record.scan_id for record in operations.scans.of_table(table_uuid)[:_JOBS]]
    jobs = [job for job_id in ids if (job := operations.journal.job(job_id)) is not None]
    return [job.job_id for job in jobs if job.finished_at is None or job.finished_at >= began]


_SEEN = arrow_schema("location string, exists boolean")


def _places(rules: LocationRules, files: Iterable[pa.RecordBatch], *, exists: bool) -> Iterator[pa.RecordBatch]:
    """Yield the locations of listed files, or (not `exists`) of those that a deletion removed or did not find."""
    for batch in files:
        rows = batch if exists else batch.filter(pc.is_in(batch.column("outcome"), pa.array((*GONE, "absent"))))
        locations = [normalize(path, rules) for path in _paths(rows)]
        yield pa.RecordBatch.from_pydict({"location": locations, "exists": [exists] * rows.num_rows}, _SEEN)


def _suspects(reachable: pa.Table, seen: pa.Table) -> pa.Table:
    """Return the reachable files that are not listed, or that a deletion removed since."""
    listed, gone = (seen.filter(pc.equal(seen.column("exists"), each)).column("location") for each in (True, False))
    places = reachable.column("location")
    return reachable.filter(pc.or_(pc.invert(pc.is_in(places, listed)), pc.is_in(places, gone)))


def _paths(batch: pa.RecordBatch) -> list[str]:
    paths: list[str] = batch.column("path").to_pylist()
    return paths


def _absent(stores: Stores, paths: Iterable[str]) -> tuple[int, list[str]]:
    """Return (how many were looked up, those that the store does not have)."""
    remaining, checked_files, absent = iter(paths), 0, []
    with ThreadPoolExecutor(_HEADS) as pool:
        while chunk := list(islice(remaining, 1000)):
            checked_files += len(chunk)
            absent += [path for path, found in zip(chunk, pool.map(stores.head, chunk), strict=True) if found is None]
    return checked_files, absent
