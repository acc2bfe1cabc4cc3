"""Files in the cold tier that nothing there references: leftovers of refused writers and killed handoffs. Nothing
deletes them: archived data exists nowhere else, so a person must check first.

A cold file is referenced if the handoffs' ledger has it, the cold table reaches it, or its metadata log contains it.
Each of the first two is sufficient: losing one of them creates no orphans.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.cold_tier.cold_tables import ColdSide
from artemis_lifecycle.cold_tier.ledger import Ledger
from artemis_lifecycle.cold_tier.paths import OWNER, PUBLISHED
from artemis_lifecycle.orphans.listing import list_table
from artemis_lifecycle.orphans.scan import Candidates, candidates, listed_parts, require_after
from artemis_lifecycle.protection.context import Asking, DeletionContext
from artemis_lifecycle.protection.future import somebodys
from artemis_lifecycle.protection.ownership import subject
from artemis_lifecycle.protection.protection import TOO_YOUNG, UNKNOWN_AGE, Ages, ProtectedFiles, Protection
from artemis_lifecycle.reachability.index.lookups import reaches
from artemis_lifecycle.spark.runner import Runner, Spark
from artemis_lifecycle.storage.frames import arrow_schema, drop_frame, frame_of, write_batches
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES = "path string, size_in_bytes bigint, last_modified timestamp"


@dataclass(frozen=True)
class ColdScan:
    """The result of a scan under a cold table's location; nothing was changed. Sizes in bytes. `too_young` are
    unreferenced files that a handoff may be writing."""

    scan_id: str
    table: str
    cold_table: str
    location: str
    metadata_location: str
    listed_at: datetime
    listed_files: int
    listed_bytes: int
    unknown_files: int
    unknown_bytes: int
    too_young: int
    files_location: str
    _spark: Spark = field(repr=False, compare=False)
    _stores: Stores = field(repr=False, compare=False)

    def files(self) -> DataFrame:
        """Return DataFrame[path, size_in_bytes, last_modified], one row per unreferenced file in cold."""
        return frame_of(self._spark, self.files_location, self._stores)


def scan_cold(
    context: DeletionContext,
    cold: ColdSide,
    ledger: Ledger,
    *,
    table: str,
    root: str,
    min_age: timedelta,
    check: Callable[[], None] = lambda: None,
) -> ColdScan:
    """List the cold table's location, then read its metadata and its ledger. Seal the files that neither these nor
    another cold table reference.

    The caller holds the table's lease, because a running handoff has files that only it knows. `check` is passed to
    `list_table`. Raises NoSuchTable before the first handoff, UnreadableMetadata and StorageError for anything
    unreadable: then there is no scan.
    """
    identity, clock, records = cold.identity, context.operations.clock.now, context.records
    listing = list_table(
        context.spark,
        context.stores,
        [identity.cold_location],
        root=root,
        clock=clock,
        rules=context.rules,
        sealed_by=records,
        check=check,
    )
    folder = f"{root}/cold-scans/{uuid.uuid4().hex}"
    asking = Asking(folder.rpartition("/")[2], "cold_scan", table, identity.table_uuid)
    protection = Protection(context, asking)
    protection.refresh_neighbors()
    require_after(listing, clock(), table)
    protection.read()
    metadata = protection.metadata
    view = cold.index(metadata)
    parts = listed_parts(listing.files_location, records, context.rules)
    counts = _Counts()
    unreached_by = [reaches(view, part.hashes) for part in parts]
    with candidates(context.spark, listing, records, unreached_by) as unreached:
        named = list(unreached.metadata_files())
        protection.protect(somebodys(context.stores, named, context.rules, metadata.table_uuid))
        protection.consider(unreached.paths())
        cutoff = listing.started_at - min_age
        own = [f"{identity.cold_location}/{each}" for each in (OWNER, PUBLISHED)]
        unknown = _unknown(context, ledger, protection.protected(Ages(cutoff, cutoff)), unreached, counts, own)
        write_batches(unknown, arrow_schema(FILES), f"{folder}/files", records)
    # Only this scan reads it, and no record refers to it.
    drop_frame(listing.files_location, records)
    return ColdScan(
        scan_id=asking.job_id,
        table=table,
        cold_table=identity.cold_table,
        location=identity.cold_location,
        metadata_location=metadata.metadata_location,
        listed_at=listing.started_at,
        listed_files=listing.files,
        listed_bytes=listing.bytes,
        unknown_files=counts.files,
        unknown_bytes=counts.bytes,
        too_young=counts.young,
        files_location=f"{folder}/files",
        _spark=context.spark,
        _stores=records,
    )


@dataclass
class _Counts:
    files: int = 0
    bytes: int = 0
    young: int = 0


def _unknown(
    context: DeletionContext,
    ledger: Ledger,
    protected: ProtectedFiles,
    unreached: Candidates,
    counts: _Counts,
    own: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the candidates (columns: `FILES`) that are unreferenced and old enough."""
    for batch in unreached.batches():
        reasons = protected.reasons(batch)
        paths = batch.column("path").to_pylist()
        loose = [row for row in range(len(paths)) if reasons.get(row, TOO_YOUNG) in (TOO_YOUNG, UNKNOWN_AGE)]
        subjects = {row: subject(paths[row]) for row in loose}
        copied = ledger.among(Runner(context.spark), frozenset((*subjects.values(), *(paths[row] for row in loose))))
        known = {*own, *copied}
        loose = [row for row in loose if paths[row] not in known and subjects[row] not in known]
        old = [row for row in loose if row not in reasons]
        counts.young += len(loose) - len(old)
        found = batch.take(pa.array(old, pa.int64()))
        counts.files += len(old)
        counts.bytes += pc.sum(found.column("size_in_bytes")).as_py() or 0
        yield found.select(["path", "size_in_bytes", "last_modified"])
