"""Files in the cold tier that nothing there has: what refused writers and killed handoffs left. Belongs here: finding
them. Does not belong: deleting them; what is in the archive exists nowhere else, so a person looks first.

A cold file is somebody's when the ledger of the handoffs has it, the cold table reaches it, or its metadata log names
it. The first two are each enough: losing one of them makes no orphans.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.cold_tier.paths import ColdIdentity, no_cold_table
from artemis_lifecycle.cold_tier.verify import cold_index
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.orphans.listing import list_table, listed_files
from artemis_lifecycle.orphans.scan import require_after
from artemis_lifecycle.reachability.walk import reachable_files
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.frames import read_frame, write_frame
from artemis_lifecycle.storage.location import LocationRules, normalise_column
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class ColdScan:
    """What was found under a cold table's location; nothing was changed. Sizes in bytes. `too_young` are files that
    nothing has, and that a handoff may be writing."""

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
    _spark: SparkSession = field(repr=False, compare=False)
    _stores: Stores = field(repr=False, compare=False)

    def files(self) -> DataFrame:
        """DataFrame[path, size_in_bytes, last_modified], one row per file that nothing in cold has."""
        return read_frame(self._spark, self.files_location, self._stores)


def scan_cold(
    spark: SparkSession,
    cold_stores: Stores,
    records: Stores,
    identity: ColdIdentity | None,
    current: Callable[[], TableMetadata | None],
    *,
    table: str,
    root: str,
    clock: Callable[[], datetime],
    rules: LocationRules,
    min_age: timedelta,
    check: Callable[[], None] = lambda: None,
) -> ColdScan:
    """List the cold table's location, then read its metadata and its ledger, and seal what none of them has.

    `records` reach `root`; `current` reads the cold table's metadata anew. Call it under the table's lease: a handoff
    at work has files that only it knows. `check` is `list_table`'s.
    Raises NoSuchTable before the first handoff, UnreadableMetadata and StorageError for whatever cannot be read: then
    there is no scan.
    """
    from pyspark.sql import functions as F

    if identity is None:
        raise no_cold_table(table)
    listing = list_table(
        spark,
        cold_stores,
        [identity.cold_location],
        root=root,
        clock=clock,
        rules=rules,
        sealed_by=records,
        check=check,
    )
    read_at = clock()
    require_after(listing, read_at, table)
    metadata = current()
    if metadata is None:
        raise no_cold_table(table)
    view = cold_index(spark, cold_stores, records, metadata, rules, root)
    copied = handoff_ledger(records, root, identity.table_uuid).verified(spark)
    named = [metadata.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    folder = f"{root}/cold-scans/{uuid.uuid4().hex}"
    cutoff = listing.started_at - min_age
    with worker_errors():
        reached = reachable_files(spark, view, [snapshot.snapshot_id for snapshot in metadata.snapshots])
        known = (
            reached.select("path")
            .unionByName(copied.select(F.col("destination").alias("path")))
            .unionByName(spark.createDataFrame([(path,) for path in named], "path string"))
        )
        located = known.select(normalise_column(known.path, rules).alias("location")).distinct()
        listed = listed_files(spark, records, listing)
        listed = listed.withColumn("location", normalise_column(listed.path, rules))
        # Where the store does not tell its age, a file counts as young.
        is_old = F.coalesce(F.col("last_modified") < F.lit(cutoff), F.lit(False))
        unknown = listed.join(located, "location", "left_anti").withColumn("is_old", is_old).persist()
        try:
            old = unknown.where("is_old").select("path", "size_in_bytes", "last_modified")
            write_frame(old, f"{folder}/files", records)
            found = unknown.selectExpr(
                "count_if(is_old) AS files",
                "coalesce(sum(size_in_bytes) FILTER (WHERE is_old), 0) AS bytes",
                "count_if(NOT is_old) AS young",
            ).collect()[0]
        finally:
            unknown.unpersist()
    return ColdScan(
        scan_id=folder.rpartition("/")[2],
        table=table,
        cold_table=identity.cold_table,
        location=identity.cold_location,
        metadata_location=metadata.metadata_location,
        listed_at=listing.started_at,
        listed_files=listing.files,
        listed_bytes=listing.bytes,
        unknown_files=found["files"],
        unknown_bytes=found["bytes"],
        too_young=found["young"],
        files_location=f"{folder}/files",
        _spark=spark,
        _stores=records,
    )
