"""A small world for deletion and orphan tests: one catalog of real tables in Postgres, on a folder of their own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.config.policies import TablePolicy
from artemis_lifecycle.deletion.batches import DeletionJob
from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.deletion.worker import DeletionSettings, delete_job
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.leases import Lease
from artemis_lifecycle.orphans.listing import Listing, list_table
from artemis_lifecycle.orphans.scan import OrphanScanResult, ScanSettings, delete_orphans, scan_orphans
from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.reachability.index.files import deletable
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.frames import arrow_schema, read_frame, write_batches
from artemis_lifecycle.storage.location import DEFAULT_RULES, LocationRules
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests import core_tables

WEEK = timedelta(days=7)


@dataclass
class World:
    """`name` is the catalog's in Spark, `folder` its warehouse; `root` stands for operations.root."""

    spark: SparkSession
    operations: Operations
    reader: CatalogReader
    name: str
    folder: Path
    root: str
    stores: Stores = field(default_factory=Stores)
    dropped: list[Path] = field(default_factory=list)
    """What `drop_in` made, for a test to clear away."""

    # --- tables -----------------------------------------------------------------------------------------------------

    def create(self, table: str, *, location: Path | None = None, properties: str = "") -> str:
        core_tables.sql(self.spark, f"CREATE NAMESPACE IF NOT EXISTS {self.name}.{table.split('.')[0]}")
        place = f"LOCATION 'file://{location}'" if location is not None else ""
        options = f"TBLPROPERTIES ({properties})" if properties else ""
        core_tables.sql(
            self.spark, f"CREATE TABLE {self.name}.{table} (id bigint, name string) USING iceberg {place} {options}"
        )
        return table

    def append(self, table: str, *ids: int) -> int:
        """Append rows as one data file; returns the snapshot."""
        core_tables.append(self.spark, f"{self.name}.{table}", [(i, f"row {i}") for i in ids])
        return self.current_snapshot(table)

    def overwrite(self, table: str, *ids: int) -> int:
        """Replace all rows, which leaves the older data files to the older snapshots alone."""
        core_tables.overwrite(self.spark, f"{self.name}.{table}", [(i, f"row {i}") for i in ids])
        return self.current_snapshot(table)

    def deleted(self, job_id: str) -> int:
        """How many files the journal says were deleted."""
        return sum(batch.deleted for batch in self.operations.journal.batches(job_id))

    def metadata(self, table: str) -> TableMetadata:
        return read_table_metadata(self.stores, self.reader.entry(table).metadata_location)

    def current_snapshot(self, table: str) -> int:
        found = self.metadata(table).current_snapshot_id
        assert found is not None
        return found

    def rows(self, table: str, snapshot: int | None = None) -> list[int]:
        at = f" VERSION AS OF {snapshot}" if snapshot is not None else ""
        return sorted(row["id"] for row in self.spark.sql(f"SELECT id FROM {self.name}.{table}{at}").collect())

    def java(self, table: str) -> Any:
        return core_tables.java_table(self.spark, f"{self.name}.{table}")

    def data_file(self, table: str, snapshot: int) -> Any:
        """Iceberg's own object for the first data file that `snapshot` added."""
        loaded = self.java(table)
        return next(iter(loaded.snapshot(snapshot).addedDataFiles(loaded.io())))

    def expire(self, table: str, *snapshots: int) -> None:
        """Remove snapshots from the metadata by Iceberg's core, leaving every file where it is."""
        change = self.java(table).expireSnapshots()
        for snapshot in snapshots:
            change = change.expireSnapshotId(snapshot)
        change.cleanExpiredFiles(False).commit()

    # --- deletion ---------------------------------------------------------------------------------------------------

    def plan(self, table: str, *snapshots: int, commit: bool = True) -> DeletionJob:
        """Seal what only `snapshots` reach, and expire them."""
        metadata = self.metadata(table)
        job_id = f"plan-{uuid.uuid4().hex[:12]}"
        folder = f"{self.root}/plans/{job_id}/files"
        files = deletable(indexed(self.spark, self.stores, metadata, DEFAULT_RULES, self.root), snapshots)
        sealed = write_batches(files.to_batches(), files.schema, folder, self.stores)
        if commit:
            self.expire(table, *snapshots)
        return DeletionJob(job_id, "expiration", metadata.table_uuid, table, folder, sealed.rows, tuple(snapshots))

    def job_of(self, table: str, files: Sequence[tuple[str, str]], kind: str = "expiration") -> DeletionJob:
        """A job whose sealed list says just what it is given: (path, kind)."""
        metadata = self.metadata(table)
        job_id = f"job-{uuid.uuid4().hex[:12]}"
        folder = f"{self.root}/plans/{job_id}/files"
        schema = arrow_schema("path string, kind string, size_in_bytes bigint, reason string")
        rows = [dict(zip(schema.names, (path, kind, 1, "given by a test"), strict=True)) for path, kind in files]
        sealed = write_batches([pa.RecordBatch.from_pylist(rows, schema)], schema, folder, self.stores)
        return DeletionJob(job_id, kind, metadata.table_uuid, table, folder, sealed.rows)  # type: ignore[arg-type]

    def delete(
        self,
        job: DeletionJob,
        *,
        dry_run: bool = False,
        stores: Stores | None = None,
        pause: Callable[[], str | None] = lambda: None,
        **settings: Any,
    ) -> DeletionReport:
        with self.operations.leases.hold(job.table_uuid, step="delete", owner="test") as lease:
            return self.deleted_under(lease, job, dry_run=dry_run, stores=stores, pause=pause, **settings)

    def deleted_under(
        self,
        lease: Lease,
        job: DeletionJob,
        *,
        dry_run: bool = False,
        stores: Stores | None = None,
        pause: Callable[[], str | None] = lambda: None,
        **settings: Any,
    ) -> DeletionReport:
        return delete_job(
            self.context(job.table, stores=stores),
            job,
            lease=lease,
            settings=DeletionSettings(**settings),
            dry_run=dry_run,
            pause=pause,
        )

    def context(
        self, table: str, *, stores: Stores | None = None, rules: LocationRules = DEFAULT_RULES, **more: Any
    ) -> DeletionContext:
        """What protection judges the table's files with."""
        return DeletionContext(
            spark=self.spark,
            stores=stores or self.stores,
            operations=self.operations,
            catalog=self.reader,
            catalog_name=self.name,
            table=table,
            policy=TablePolicy(),
            root=self.root,
            rules=rules,
            rules_of=lambda _: rules,
            **more,
        )

    # --- orphans ----------------------------------------------------------------------------------------------------

    def list(self, table: str, *locations: str) -> Listing:
        return list_table(
            self.spark,
            self.stores,
            locations or [self.metadata(table).location],
            root=self.root,
            clock=self.operations.clock.now,
            rules=DEFAULT_RULES,
        )

    def scan(self, table: str, listing: Listing | None = None, **changes: Any) -> OrphanScanResult:
        settings = {"min_age": WEEK, "min_age_floor": timedelta(hours=24), "metadata_min_age": timedelta(days=30)}
        extra = {key: changes.pop(key) for key in ("history_read_at", "rules") if key in changes}
        context = self.context(table, rules=extra.pop("rules", DEFAULT_RULES))
        return scan_orphans(
            context,
            listing or self.list(table),
            ScanSettings(**{**settings, **changes}),
            table_uuid=self.metadata(table).table_uuid,
            **extra,
        )

    def delete_scan(self, scan: OrphanScanResult, **changes: Any) -> DeletionReport:
        with self.operations.leases.hold(scan.table_uuid, step="orphans", owner="test") as lease:
            return delete_orphans(
                self.context(scan.table), scan.scan_id, lease=lease, results_catalog=self.name, **changes
            )

    # --- files ------------------------------------------------------------------------------------------------------

    def place(self, table: str) -> Path:
        return local(self.metadata(table).location)

    def drop_in(self, table: str, name: str, *, age: timedelta = timedelta(days=20), data: bytes = b"PAR1") -> Path:
        """Put a file that nothing references under the table, last modified `age` ago."""
        path = self.place(table) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        make_old(path, age)
        self.dropped.append(path)
        return path

    def age_all(self, table: str, age: timedelta = timedelta(days=20)) -> None:
        """Make every file of the table `age` old, so that no age guard hides what another one must do."""
        for path in self.place(table).rglob("*"):
            if path.is_file():
                make_old(path, age)

    def on_disk(self, table: str) -> set[str]:
        return {str(path) for path in self.place(table).rglob("*") if path.is_file() and path.suffix != ".crc"}


def make_old(path: Path, age: timedelta) -> None:
    at = (datetime.now(UTC) - age).timestamp()
    os.utime(path, (at, at))


def local(path: str) -> Path:
    return Path(path.removeprefix("file:").replace("///", "/"))


def listed_files(spark: SparkSession, stores: Stores, listing: Listing) -> DataFrame:
    """DataFrame[path, last_modified, size_in_bytes] of a sealed listing."""
    return read_frame(Runner(spark), listing.files_location, stores).frame()


def outcomes(report: DeletionReport) -> dict[str, tuple[str, str]]:
    """File name to (outcome, reason)."""
    return {row["path"].rpartition("/")[2]: (row["outcome"], row["reason"]) for row in report.files().collect()}
