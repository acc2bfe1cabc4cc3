"""The result of an orphan scan: its counts, and the location of its sealed files."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING

import pyarrow as pa

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.metadata import kinds
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.scans import ScanRecord
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.origins import ORPHAN
from artemis_lifecycle.protection.places import IN_FLIGHT
from artemis_lifecycle.protection.protection import TOO_YOUNG
from artemis_lifecycle.protection.table_state import REACHABLE
from artemis_lifecycle.spark.runner import Runner, Spark
from artemis_lifecycle.storage.frames import describe_frame, owner_folder, read_frame
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class OrphanSummary:
    """Counts of a scan, in files; sizes in bytes. By reason: why listed files are kept, or `orphan`."""

    listed_files: int
    listed_bytes: int
    orphan_files: int
    orphan_bytes: int
    too_young: int
    live_writers: int
    files_by_reason: Mapping[str, int]
    bytes_by_reason: Mapping[str, int]
    orphans_by_kind: Mapping[str, int]
    orphans_by_origin: Mapping[str, int]

    @property
    def orphan_share(self) -> float:
        """The share of orphans among the listed files, from 0 to 1."""
        return self.orphan_files / self.listed_files if self.listed_files else 0.0

    @property
    def in_flight_bytes(self) -> int:
        """The bytes of the files that the scan skipped as in flight."""
        return sum(self.bytes_by_reason.get(reason, 0) for reason in (TOO_YOUNG, IN_FLIGHT))


@dataclass(frozen=True)
class OrphanScanResult:
    """A sealed scan. Nothing was changed.

    `skipped_in_flight` counts unreferenced files that a writer may still be writing: files that are too young or belong
    to a live writer. The summary distinguishes the two.
    """

    scan_id: str
    table: str
    table_uuid: str
    listing_id: str
    metadata_location: str
    listed_at: datetime
    metadata_read_at: datetime
    files_location: str
    skipped_in_flight: int
    summary: OrphanSummary
    _spark: Spark = field(repr=False, compare=False)
    _stores: Stores = field(repr=False, compare=False)

    def files(self) -> DataFrame:
        """Return DataFrame[path, kind, size_in_bytes, last_modified, reason, origin], one row per orphan. `kind` and
        `origin` are guesses from the name."""
        return read_frame(Runner(self._spark), self.files_location, self._stores).frame().drop("tag")

    def unreferenced(self) -> DataFrame:
        """Return DataFrame[path, size_in_bytes, last_modified, verdict]: every listed file that the table does not
        reach, with `orphan` or the reason why it is kept."""
        folder = f"{owner_folder(self.files_location)}/unreferenced"
        return read_frame(Runner(self._spark), folder, self._stores).frame().drop("tag")

    @property
    def orphan_data_files(self) -> DataFrame:
        """Return DataFrame[path] of data files and delete files."""
        files = self.files()
        return files.where(files.kind.isin(*sorted(kinds.CONTENT_KINDS))).select("path")

    @property
    def orphan_manifests(self) -> DataFrame:
        """Return DataFrame[path] of manifests and manifest lists."""
        files = self.files()
        return files.where(files.kind.isin(kinds.MANIFEST, kinds.MANIFEST_LIST)).select("path")


def load_scan(spark: Spark, stores: Stores, operations: Operations, scan_id: str) -> OrphanScanResult:
    """Return the stored scan with that id; works from any process. Raises NoSuchPlan; StorageError if its seal is
    missing."""
    record = operations.scans.get(scan_id)
    if record.forgetting_at is not None:
        return result_of(record, spark, stores)  # Its list is gone on purpose; its counts are in its record.
    sealed = describe_frame(record.files_location, stores)
    if sealed is None or sealed.rows != record.files:
        raise StorageError(
            f"The sealed files of scan {scan_id} are missing, or not the {record.files:,} in its record",
            table=record.table,
            path=record.files_location,
            untouched="all files",
            hint=f"scan again: artemis scan-orphans {quote(record.table)}",
        )
    return result_of(record, spark, stores)


def result_of(record: ScanRecord, spark: Spark, stores: Stores) -> OrphanScanResult:
    return OrphanScanResult(
        scan_id=record.scan_id,
        table=record.table,
        table_uuid=record.table_uuid,
        listing_id=record.listing_id or "",
        metadata_location=record.metadata_location,
        listed_at=record.listed_at,
        metadata_read_at=record.metadata_read_at,
        files_location=record.files_location,
        skipped_in_flight=record.skipped_in_flight,
        summary=OrphanSummary(**json.loads(record.summary)),
        _spark=spark,
        _stores=stores,
    )


class ScanCounts:
    """Counts files and bytes of the rows that pass through, by columns."""

    def __init__(self) -> None:
        self.files: dict[str, Counter[str]] = defaultdict(Counter)
        self.sizes: dict[str, Counter[str]] = defaultdict(Counter)

    def of(self, batches: Iterable[pa.RecordBatch], *columns: str) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for column in columns:
                totals = rows.group_by(column).aggregate([("path", "count"), ("size_in_bytes", "sum")]).to_pylist()
                for total in totals:
                    self.files[column][total[column]] += total["path_count"]
                    self.sizes[column][total[column]] += total["size_in_bytes_sum"] or 0
            yield batch

    def summary(self, listing: Listing) -> OrphanSummary:
        """Return the summary of the scan of `listing`."""
        files, sizes = (dict(sorted(counter["verdict"].items())) for counter in (self.files, self.sizes))
        # Some are reached under a different name than the listed one.
        files.pop(REACHABLE, None)
        sizes.pop(REACHABLE, None)
        reached, reached_bytes = listing.files - sum(files.values()), listing.bytes - sum(sizes.values())
        return OrphanSummary(
            listed_files=listing.files,
            listed_bytes=listing.bytes,
            orphan_files=files.get(ORPHAN, 0),
            orphan_bytes=sizes.get(ORPHAN, 0),
            too_young=files.get(TOO_YOUNG, 0),
            live_writers=files.get(IN_FLIGHT, 0),
            files_by_reason={REACHABLE: reached} | files,
            bytes_by_reason={REACHABLE: reached_bytes} | sizes,
            orphans_by_kind=dict(sorted(self.files["kind"].items())),
            orphans_by_origin=dict(sorted(self.files["origin"].items())),
        )
