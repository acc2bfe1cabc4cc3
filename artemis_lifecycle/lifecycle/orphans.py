"""Orphan files: listing, scanning, deleting, and how a table's scans develop."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Steps, Step
from artemis_lifecycle.lifecycle.contexts import Contexts
from artemis_lifecycle.lifecycle.listings import Listings
from artemis_lifecycle.lifecycle.deletion import Deletion
from artemis_lifecycle.lifecycle.dropped import DroppedTables
from artemis_lifecycle.lifecycle.receipts import Receipts
from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.deletion.worker import DeletionReport
from artemis_lifecycle.operations.scans import ScanRecord, ScanState
from artemis_lifecycle.operations.texts import require_said
from artemis_lifecycle.orphans.cold import ColdScan, scan_cold
from artemis_lifecycle.orphans.delete import job_of
from artemis_lifecycle.orphans.given import given_listing
from artemis_lifecycle.orphans.inventory import Inventory, read_inventory
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.listing_files import ParquetListing, read_parquet_listing
from artemis_lifecycle.orphans.scan import OrphanScanResult, ScanSettings, load_scan, metadata_files
from artemis_lifecycle.orphans.scan import scan_orphans as find_orphans
from artemis_lifecycle.orphans.trend import InFlight, ScanTrend, trend_of
from artemis_lifecycle.orphans.trend import in_flight as judge_in_flight
from artemis_lifecycle.protection.future import evidence
from artemis_lifecycle.storage.location import normalise, split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Orphans:
    """Scans, and the deletion of what scans found."""

    resources: Resources
    steps: Steps
    contexts: Contexts
    listings: Listings
    deletion: Deletion
    dropped: DroppedTables
    receipts: Receipts

    def scan_orphans(
        self,
        table: str,
        now: datetime | None = None,
        older_than: datetime | None = None,
        location: str | None = None,
        listing: DataFrame | Listing | Inventory | ParquetListing | None = None,
        *,
        listed_at: datetime | None = None,
    ) -> OrphanScanResult:
        """Find files that nothing owns: listed, not reachable, old, no writer's, in no open plan. Changes nothing.

        Lists the table first, unless `listing` is given: one of `list_objects`, an S3 `inventory`, a `parquet_listing`,
        or any DataFrame[path, last_modified, size_in_bytes]. `listed_at` is when its making was begun (no later than
        the inventory or the files say; default for a DataFrame: now). Then reads the metadata, anew.

        Raises StaleMetadata, PrefixMismatch, BadInput (an `older_than` inside `min_age_floor`), UnreadableMetadata,
        StorageError: then there is no scan.
        """
        instant = None if now is None else self.resources.instant("now", now)
        limit = None if older_than is None else self.resources.instant("older_than", older_than)
        policy = self.resources.config.policy(table)
        if isinstance(listing, (Inventory, ParquetListing)):
            # The earlier of the two, and never later than now by a store's clock that is ahead.
            known = (listing.begun_at, self.resources.operations.clock.now())
            listed_at = min(known if listed_at is None else (*known, self.resources.instant("listed_at", listed_at)))
        whole = listing is None or isinstance(listing, Listing)
        if listing is None:
            taken = self.listings.list_objects(table, location)
        elif isinstance(listing, Listing):
            taken = listing
        else:
            before = self.steps.table_state(table)
            taken = given_listing(
                self.resources.spark,
                self.resources.live_stores,
                listing,
                self.listings.locations(before, location),
                taken_at=self.resources.instant("listed_at", listed_at),
                root=self.resources.root,
                clock=self.resources.operations.clock.now,
                rules=self.resources.rules(table),
                scheme=split(before.metadata.location).scheme or "s3",
            )
        state = self.steps.table_state(table)
        with self.steps.run(state, "orphan_scan") as step:
            scan = find_orphans(
                self.contexts.of_table(table),
                taken,
                ScanSettings(
                    min_age=policy.orphans.min_age,
                    min_age_floor=policy.orphans.min_age_floor,
                    metadata_min_age=policy.retention.window,
                    prefix_mismatch=policy.orphans.prefix_mismatch,
                    older_than=limit,
                    now=instant,
                    # A listing that the caller gives need not be whole.
                    missing_files=policy.orphans.missing_files if whole else "ignore",
                    is_whole=listing is None and location is None,
                ),
                table_uuid=state.metadata.table_uuid,
                history_read_at=state.read_at,
            )
            step.counts = {
                "orphans": scan.summary.orphan_files,
                "bytes": scan.summary.orphan_bytes,
                "skipped_in_flight": scan.skipped_in_flight,
            }
        return scan

    def settle_metadata(self, table: str, *, who: str, why: str) -> tuple[str, ...]:
        """Decide that the catalog's pointer is right, and metadata files that are newer are no history of the table:
        orphan scans go on, and collect what those commits wrote. Returns the files, without what was settled before.

        They stop scans because the catalog may have been restored from a backup. Raises BadInput where nobody, or no
        reason, is said; UnreadableMetadata, StorageError, LeaseTaken.
        """
        require_said(table, who=who, why=why)
        state = self.steps.table_state(table)
        with self.steps.run(state, "settle_metadata") as step:
            listing = self.listings.take(state, None, step)
            # After the listing: what was committed meanwhile is not newer.
            metadata, rules = self.steps.table_state(table).metadata, self.resources.rules(table)
            named, known_here = (
                metadata_files(listing, self.resources.live_stores),
                self.resources.operations.table_locations,
            )
            found = evidence(self.resources.live_stores, metadata, named, rules, known_here)
            newer = (*found.newer, *(each.metadata_location for each in found.attempts))
            known = self.resources.operations.settled_metadata.of_table(metadata.table_uuid)
            new = {path: place for path in newer if (place := normalise(path, rules)) not in known}
            self.resources.operations.settled_metadata.settle(metadata.table_uuid, new.values(), who, why)
            step.counts = {"files": len(new)}
        return tuple(new)

    def inventory(self, manifest: str) -> Inventory:
        """An S3 Inventory report by its `manifest.json`, for `scan_orphans(listing=…)`. Raises BadInput and
        StorageError."""
        return read_inventory(self.resources.live_stores, manifest)

    def parquet_listing(self, location: str) -> ParquetListing:
        """A listing in a Parquet file, or in the Parquet files of a folder, with the columns path, last_modified and
        size_in_bytes, for `scan_orphans(listing=…)`. Raises BadInput and StorageError."""
        return read_parquet_listing(self.resources.live_stores, location)

    def scan_cold(self, table: str) -> ColdScan:
        """Find the files under the cold table's location that nothing there has: what refused writers left, and killed
        handoffs. Changes nothing, and nothing deletes by it: what is in the archive exists nowhere else.

        Files younger than the policy's `orphans.min_age` are left out. Raises NoSuchTable before the first handoff,
        UnreadableMetadata, StorageError, LeaseTaken.
        """
        state = self.steps.table_state(table)
        table_uuid, policy = state.metadata.table_uuid, self.resources.config.policy(table).orphans
        with self.steps.run(state, "cold_scan") as step:
            cold, context = self.contexts.of_cold_tables(table, table_uuid)
            found = scan_cold(
                context,
                cold,
                handoff_ledger(self.resources.live_stores, self.resources.root, table_uuid),
                table=table,
                root=self.resources.root,
                min_age=max(policy.min_age, policy.min_age_floor),
                check=step.check,
            )
            step.counts = {"files": found.unknown_files, "bytes": found.unknown_bytes}
        return found

    def scan(self, scan_id: str) -> OrphanScanResult:
        """The stored scan of that id. Raises NoSuchPlan."""
        return load_scan(self.resources.spark, self.resources.live_stores, self.resources.operations, scan_id)

    def latest_scan(self, table: str) -> OrphanScanResult | None:
        """The newest stored scan of the table, if there is one."""
        records = self.resources.operations.scans.of_table(self.steps.table_state(table).metadata.table_uuid)
        return self.scan(records[0].scan_id) if records else None

    def interrupted_scans(self, table: str) -> list[ScanRecord]:
        """Scans of the table whose deletion was begun and not finished, oldest first. They hold their files: no newer
        scan names them."""
        table_uuid = self.steps.table_state(table).metadata.table_uuid
        return list(reversed(self.resources.operations.scans.of_table(table_uuid, [ScanState.DELETING])))

    def scan_trend(self, table: str, limit: int = 30) -> ScanTrend:
        """The table's last scans: orphans, what was skipped as in flight, how fast the table leaks."""
        return trend_of(
            table, self.resources.operations.scans.of_table(self.steps.table_state(table).metadata.table_uuid)[:limit]
        )

    def in_flight(self, table: str) -> InFlight | None:
        """Whether the files that scans skip as in flight settle, and of which kind they are; None without a scan."""
        table_uuid, policy = (
            self.steps.table_state(table).metadata.table_uuid,
            self.resources.config.policy(table).orphans,
        )
        points = self.scan_trend(table).points
        if not points:
            return None
        return judge_in_flight(
            points,
            self.resources.operations.heartbeats.live(table_uuid),
            max_share=policy.in_flight.max_share,
            scans=policy.in_flight.scans,
            now=self.resources.operations.clock.now(),
            min_age=policy.min_age,
        )

    def delete_orphans(self, scan: OrphanScanResult | str, *, dry_run: bool = False) -> DeletionReport:
        """Delete the files of a stored scan, each batch after a last look: what a snapshot, a plan or a writer has got
        hold of since the scan is kept and reported. Goes on where an earlier run stopped."""
        record = self.resources.operations.scans.get(scan if isinstance(scan, str) else scan.scan_id)
        if record.kind == "dropped":
            return self.dropped.delete_dropped(record.scan_id, dry_run=dry_run)
        if dry_run or record.state == ScanState.DONE:
            if not dry_run and record.files:
                self.receipts.stored(job_of(record))
            return self.deletion.run_scan(record, None, dry_run=dry_run)
        self.deletion.require_small_or_approved(record)
        with self.steps.run(self.steps.table_state(record.table), "orphan_deletion") as step:
            report = self.deletion.run_scan(record, step.lease, pause=step.pause)
            step.state = "pending" if report.failed or report.pending else "done"
            step.counts = deletion_counts(report)
            if step.state == "done" and record.files:
                self.receipts.stored(job_of(record))
        return report
