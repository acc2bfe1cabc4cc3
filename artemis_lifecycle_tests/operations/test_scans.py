from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from artemis_lifecycle.errors import NoSuchPlan, PlanStateError
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.scans import ListingRecord, ScanRecord, ScanState

LISTED = datetime(2026, 3, 1, 6, tzinfo=UTC)


def _scan(table_uuid: str) -> ScanRecord:
    return ScanRecord(
        scan_id=uuid4().hex,
        table_uuid=table_uuid,
        table="a.b",
        listing_id=None,
        listed_at=LISTED,
        listing_finished_at=LISTED + timedelta(minutes=1),
        metadata_location="file:/m",
        metadata_read_at=LISTED + timedelta(minutes=2),
        files_location="file:/s",
        files=3,
        bytes=30,
        skipped_young=1,
        skipped_in_flight=2,
        summary="{}",
    )


def test_a_scan_is_stored_open_and_once(operations: Operations, table_uuid: str) -> None:
    stored = operations.scans.store(_scan(table_uuid))
    assert stored.state is ScanState.OPEN
    assert stored.created_at is not None
    assert operations.scans.store(stored) == stored
    assert operations.scans.get(stored.scan_id) == stored
    newer = operations.scans.store(_scan(table_uuid))
    assert operations.scans.of_table(table_uuid) == (newer, stored)
    with pytest.raises(NoSuchPlan, match="no-such"):
        operations.scans.get("no-such")


def test_a_scans_state_is_compared_and_set(operations: Operations, table_uuid: str) -> None:
    scan = operations.scans.store(_scan(table_uuid))
    assert operations.scans.approve(scan.scan_id, "ada", "looked").approved_by == "ada"
    deleting = operations.scans.mark(scan.scan_id, {ScanState.OPEN, ScanState.DELETING}, ScanState.DELETING)
    assert deleting.state is ScanState.DELETING
    operations.scans.mark(scan.scan_id, {ScanState.DELETING}, ScanState.DONE)
    with pytest.raises(PlanStateError, match="it is done, and would have to be deleting or open"):
        operations.scans.mark(scan.scan_id, {ScanState.OPEN, ScanState.DELETING}, ScanState.DELETING)
    with pytest.raises(PlanStateError, match="done"):
        operations.scans.approve(scan.scan_id, "ada", "late")
    assert operations.scans.of_table(table_uuid, {ScanState.OPEN}) == ()


def test_the_latest_listing_is_the_one_that_began_last(operations: Operations, table_uuid: str) -> None:
    def listing(started_at: datetime) -> ListingRecord:
        return ListingRecord(
            uuid4().hex, table_uuid, "a.b", "file:/t", "file:/l", started_at, started_at + timedelta(hours=1), 10, 100
        )

    assert operations.scans.latest_listing(table_uuid) is None
    late = operations.scans.store_listing(listing(LISTED + timedelta(days=1)))
    early = operations.scans.store_listing(listing(LISTED))
    assert operations.scans.store_listing(early) == early
    assert operations.scans.latest_listing(table_uuid) == late
    assert operations.scans.listing(early.listing_id) == early
    with pytest.raises(NoSuchPlan, match="no-such"):
        operations.scans.listing("no-such")
