"""Orphan files: listings, scans, the deletion of what a scan found, and the trend of a table's scans."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.errors import require_uuid
from artemis_lifecycle.operations.scans import ScanRecord, ScanState
from artemis_lifecycle.operations.tables import require_said
from artemis_lifecycle.orphans.cold import ColdScan, scan_cold
from artemis_lifecycle.orphans.external_listing import Inventory, ParquetListing, given_listing
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.live_inventory import LiveInventory
from artemis_lifecycle.orphans.scan import (
    OrphanScanResult,
    ScanSettings,
    job_of,
    load_scan,
    metadata_files,
    require_newest,
)
from artemis_lifecycle.orphans.scan import scan_orphans as find_orphans
from artemis_lifecycle.orphans.trend import InFlight, ScanTrend, trend_of
from artemis_lifecycle.orphans.trend import in_flight as judge_in_flight
from artemis_lifecycle.protection.future import evidence, unsettled
from artemis_lifecycle.session.contexts import cold_context, deletion_context
from artemis_lifecycle.session.policies import REMOVAL, effective_policy
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps
from artemis_lifecycle.storage.location import normalize, split
from artemis_lifecycle.walk.deletion import Deletion, deletion_counts, stored_receipt
from artemis_lifecycle.walk.dropped import DroppedTables
from artemis_lifecycle.walk.listings import listed_locations, take_listing
from artemis_lifecycle.walk.nessie import NessieTables
from artemis_lifecycle.walk.reporting import report_back

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Orphans:
    """Lists and scans tables, and deletes what scans found."""

    resources: Resources
    steps: Steps
    deletion: Deletion
    dropped: DroppedTables

    def list_objects(self, table: str, location: str | None = None) -> Listing:
        """List every file below the table's locations (or below `location` inside them), and seal the listing.

        It must be taken before the metadata with which it is compared; `scan_orphans(listing=...)` reads the metadata
        again.
        """
        state = self.steps.any_state(table)
        with self.steps.run(state, "listing") as step:
            listing = take_listing(self.resources, state, location, step)
            step.counts = {"files": listing.files, "bytes": listing.bytes}
        return listing

    def scan_orphans(
        self,
        table: str,
        now: datetime | None = None,
        older_than: datetime | None = None,
        location: str | None = None,
        listing: DataFrame | Listing | Inventory | LiveInventory | ParquetListing | None = None,
        *,
        listed_at: datetime | None = None,
    ) -> OrphanScanResult:
        """Find unreferenced files: listed, not reachable, old enough, not a writer's, in no open plan. Changes nothing.

        Lists the table first, unless `listing` is given: a result of `list_objects`, an S3 `inventory`, a
        `parquet_listing`, or any DataFrame[path, last_modified, size_in_bytes]. `listed_at` is when its creation began
        (no later than the inventory or the files say; default for a DataFrame: now). Then it reads the metadata again.

        Raises StaleMetadata, PrefixMismatch, BadInput (an `older_than` inside `min_age_floor`), UnreadableMetadata,
        StorageError, and then records no scan.
        """
        instant = None if now is None else self.resources.instant("now", now)
        limit = None if older_than is None else self.resources.instant("older_than", older_than)
        policy = self.resources.config.policy(table)
        if isinstance(listing, (Inventory, LiveInventory, ParquetListing)):
            # The earlier of the two, and never later than now because of a store's clock that is ahead.
            known = (listing.begun_at, self.resources.operations.clock.now())
            listed_at = min(known if listed_at is None else (*known, self.resources.instant("listed_at", listed_at)))
        whole = listing is None or isinstance(listing, Listing)
        if listing is None:
            taken = self.list_objects(table, location)
        elif isinstance(listing, Listing):
            taken = listing
        else:
            before, rules = self.steps.any_state(table), self.resources.rules(table)
            locations = listed_locations(self.resources, before, location)
            if isinstance(listing, LiveInventory):
                listing = listing.files(self.resources.spark, locations, rules)
            taken = given_listing(
                self.resources.start_spark,
                self.resources.live_stores,
                listing,
                locations,
                taken_at=self.resources.instant("listed_at", listed_at),
                root=self.resources.root,
                clock=self.resources.operations.clock.now,
                rules=rules,
                scheme=split(before.metadata.location).scheme or "s3",
            )
        state = self.steps.any_state(table)
        if whole:
            # Whoever took the listing, it may be of a table that had the name before.
            listed = self.resources.operations.scans.listing(taken.listing_id).table_uuid
            require_uuid(table, state.metadata.table_uuid, listed)
        if state.catalog is None:
            # What is dropped before the next scan is known by then, and keeps its files for its time.
            self.steps.observe()
        found = effective_policy(self.resources, table)
        found.require(REMOVAL)
        with self.steps.run(state, "orphan_scan") as step:
            scan = find_orphans(
                deletion_context(self.resources, table),
                taken,
                ScanSettings(
                    min_age=found.min_age,
                    min_age_floor=policy.orphans.min_age_floor,
                    metadata_min_age=policy.retention.window,
                    prefix_mismatch=policy.orphans.prefix_mismatch,
                    older_than=limit,
                    now=instant,
                    # A listing from the caller need not be complete.
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
                "skipped_in_flight_bytes": scan.summary.in_flight_bytes,
            }
        return scan

    def settle_metadata(self, table: str, *, who: str, why: str) -> tuple[str, ...]:
        """Decide that the catalog's pointer is correct, and that newer metadata files do not belong to the table's
        history. Orphan scans then resume, and collect what those commits wrote. Return the newly settled files.

        Newer files stop scans because the catalog may have been restored from a backup. Raises BadInput without `who`
        or `why`; UnreadableMetadata, StorageError, LeaseTaken.
        """
        require_said(table, who=who, why=why)
        state = self.steps.table_state(table)
        with self.steps.run(state, "settle_metadata") as step:
            listing = take_listing(self.resources, state, None, step)
            # After the listing: what was committed in the meantime is not newer.
            metadata, rules = self.steps.again(state).metadata, self.resources.rules(table)
            stores, named = self.resources.live_stores, metadata_files(listing, self.resources.live_stores)
            found = evidence(stores, metadata, named, rules, self.resources.operations.table_locations)
            newer = (*found.newer, *(each.metadata_location for each in found.attempts))
            settled = self.resources.operations.settled_metadata
            new = unsettled(stores, newer, settled.of_table(metadata.table_uuid), rules)
            checksums = {normalize(path, rules): stores.checksum(path) for path in new}
            settled.settle(metadata.table_uuid, checksums, who, why)
            step.counts = {"files": len(new)}
        return tuple(new)

    def scan_cold(self, table: str) -> ColdScan:
        """Find the files under the cold table's location that no cold table reaches: leftovers of refused writers and
        of killed handoffs. Changes nothing, and no deletion uses the result: archived data exists nowhere else.

        Excludes files younger than the policy's `orphans.min_age`. Raises NoSuchTable before the first handoff,
        UnreadableMetadata, StorageError, LeaseTaken.
        """
        state = self.steps.table_state(table)
        table_uuid, policy = state.metadata.table_uuid, self.resources.config.policy(table).orphans
        with self.steps.run(state, "cold_scan") as step:
            cold, context = cold_context(self.resources, table, table_uuid)
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
        """Return the stored scan with that id. Raises NoSuchPlan."""
        return load_scan(self.resources.start_spark, self.resources.live_stores, self.resources.operations, scan_id)

    def latest_scan(self, table: str) -> OrphanScanResult | None:
        """Return the newest stored scan of the table, if any."""
        records = self.resources.operations.scans.of_table(self.steps.table_uuid(table))
        return self.scan(records[0].scan_id) if records else None

    def scan_trend(self, table: str, limit: int = 30) -> ScanTrend:
        """Return the table's last scans: orphans, files skipped as in flight, and how fast the table accumulates
        orphans."""
        return trend_of(table, self.resources.operations.scans.of_table(self.steps.table_uuid(table))[:limit])

    def in_flight(self, table: str) -> InFlight | None:
        """Return whether the files that scans skip as in flight settle, and of which kind they are; None without a
        scan."""
        table_uuid, policy = self.steps.table_uuid(table), self.resources.config.policy(table).orphans
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

    def _judged(self, record: ScanRecord) -> AbstractContextManager[object]:
        """Return the block in which files of a scan are judged by the live-contents set that it was swept from, if a
        person approved the scan; otherwise by what lifecycle.yaml keeps."""
        other = self.resources.other(record.table)
        if not isinstance(other, NessieTables) or record.approved_at is None:
            return nullcontext()
        live_set = self.resources.operations.live_sets.set_of_scan(record.scan_id)
        return nullcontext() if live_set is None else other.sweeping(live_set)

    def delete_orphans(self, scan: OrphanScanResult | str, *, dry_run: bool = False) -> DeletionReport:
        record = self.resources.operations.scans.get(scan if isinstance(scan, str) else scan.scan_id)
        if record.kind == "dropped":
            return self.dropped.delete_dropped(record.scan_id, dry_run=dry_run)
        if dry_run or record.state == ScanState.DONE:
            if record.state != ScanState.DONE:
                record = self.steps.resumed(record)[0]
            if not dry_run and record.files:
                stored_receipt(self.steps, job_of(record))
            return self.deletion.run_scan(record, None, dry_run=dry_run)
        with self._judged(record):
            record, state = self.steps.resumed(record)
            effective_policy(self.resources, record.table).require(REMOVAL)
            self.deletion.require_small_or_approved(record)
            with self.steps.run(state, "orphan_deletion") as step:
                require_newest(deletion_context(self.resources, record.table), record.table_uuid)
                report = self.deletion.run_scan(record, step.lease, pause=step.pause)
                step.state = "pending" if report.failed or report.pending else "done"
                step.counts = deletion_counts(report)
                if step.state == "done" and record.files:
                    stored_receipt(self.steps, job_of(record))
                report_back(self.steps, state, step, "orphan_deletion", record.scan_id)
        return report
