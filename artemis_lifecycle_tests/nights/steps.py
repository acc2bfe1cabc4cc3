"""What Spark and the stores do in a step, replaced: what is left of each step is real, with its records in Postgres."""

from __future__ import annotations

import json
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from artemis_lifecycle.cold_tier.handoff import Handoff
from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.expiration.commit import ExpirationCommit, removal
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.operations.scans import ScanRecord, ScanState
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.scan import OrphanSummary, result_of
from artemis_lifecycle_tests.nights.clock import SimulatedClock
from artemis_lifecycle_tests.nights.tables import Tables

FILES_OF_A_SNAPSHOT = 3
LISTED = 100
LEAKY = 20
"""Orphans of a table whose name begins with `leaky`: more than its policy lets go without a person."""


class Killed(BaseException):
    """The process is gone: nothing that follows in it happens."""


class Doubles:
    """The replaced work. `effects`: when each job changed what is outside Postgres, by (what, job)."""

    def __init__(self, tables: Tables, clock: SimulatedClock, dice: random.Random) -> None:
        self.tables, self.clock, self.dice = tables, clock, dice
        self.effects: dict[tuple[str, str], list[datetime]] = defaultdict(list)
        self.failing = 0.0
        self.killing = 0.0
        self._listed_by: dict[str, str] = {}
        self._died: set[tuple[str, str]] = set()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Replace the work until the patch ends."""
        package = "artemis_lifecycle"
        nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
        replaced: dict[str, Any] = {
            "expiration.plan.indexed": nothing,
            "expiration.plan.require_present": nothing,
            "expiration.plan.deletable_parts": self._deletable,
            "walk.expiration.tidy": nothing,
            "walk.expiration.present_index": nothing,
            "walk.expiration.live_index": nothing,
            "walk.expiration.entries_of": lambda *_: 2,
            "walk.expiration.copy_again": lambda *_: 0,
            "walk.expiration.commit_plan": self._commit,
            "walk.cold_tier.archive": self._archive,
            "walk.cold_tier.copy_again": lambda *_: 0,
            "walk.deletion.require_published": nothing,
            "walk.deletion.stored_receipt": nothing,
            "walk.deletion.Deletion._delete": lambda *given, **_: self._delete_plan(*given[:2]),
            "walk.deletion.Deletion.run_scan": lambda *given, **_: self._delete_scan(*given[:2]),
            "walk.orphans.stored_receipt": nothing,
            "walk.orphans.take_listing": self._list,
            "walk.orphans.find_orphans": self._scan,
            "walk.orphans.load_scan": lambda spark, stores, operations, scan_id: result_of(
                operations.scans.get(scan_id), spark, stores
            ),
            # The host's clock is not the simulated one.
            "session.resources.Resources.require_clocks": nothing,
        }
        for name, double in replaced.items():
            patch.setattr(f"{package}.{name}", double)

    def _fail(self) -> None:
        """At times, the store does not answer."""
        if self.dice.random() < self.failing:
            raise StorageError("The store does not answer", untouched="everything", hint="it is tried again")

    def _happened(self, what: str, job: str) -> None:
        """Note an effect; at times, the process ends before it can record it. The journal then has the effect, and the
        next run finds nothing left to do."""
        if (what, job) in self._died:
            self._died.remove((what, job))
            return
        self.effects[what, job].append(self.clock.now)
        if self.dice.random() < self.killing:
            self._died.add((what, job))
            raise Killed

    def _deletable(self, _view: None, expired: tuple[int, ...]) -> Iterator[pa.Table]:
        self._fail()
        rows = [(snapshot, number) for snapshot in expired for number in range(FILES_OF_A_SNAPSHOT)]
        yield pa.table(
            {
                "path": pa.array([f"file:///data/{snapshot}-{number}" for snapshot, number in rows], pa.string()),
                "kind": pa.array(["data"] * len(rows), pa.string()),
                "size_in_bytes": pa.array([1 << 20] * len(rows), pa.int64()),
                "reason": pa.array([f"snapshot {snapshot} expired" for snapshot, _ in rows], pa.string()),
            }
        )

    def _archive(self, _context: object, request: Any, **_: object) -> Handoff:
        self._fail()
        # What is in the cold tier already is verified, and not copied again.
        if not self.effects["handoff", request.plan_id]:
            self._happened("handoff", request.plan_id)
        return Handoff(
            request.plan_id,
            request.table,
            cold_metadata_location=f"file:///cold/{request.plan_id}",
            archived=tuple(request.snapshot_ids),
            verified_files=1,
        )

    def _commit(
        self, _committer: object, stores: Any, plan: Any, guards: Callable[[], Any], swaps: Any, *_: Any
    ) -> ExpirationCommit:
        self._fail()
        location = self.tables.location(plan.table)
        base = read_table_metadata(stores, location)
        change = removal(plan, base, *guards())
        if change is None:
            return ExpirationCommit(plan.plan_id, location, attempts=0)
        swaps.begin(location, int(self.clock.now.timestamp() * 1000))
        swapped = self.tables.remove(plan.table, change.expire_snapshot_ids, self.clock.now)
        swaps.made(swapped)
        self._happened("commit", plan.plan_id)
        return ExpirationCommit(plan.plan_id, swapped, 1, snapshots_removed=len(change.expire_snapshot_ids))

    def _delete_plan(self, service: Any, job: Any) -> DeletionReport:
        self._fail()
        if service.resources.operations.holds.active(job.table_uuid):
            return DeletionReport(job.job_id, job.table, 0, 0, job.files, 0, 0, pending=job.files)
        self._happened("deletion", job.job_id)
        return DeletionReport(job.job_id, job.table, job.files, 0, 0, 0, job.files << 20)

    def _list(self, resources: Any, state: Any, _location: None, _step: object) -> Listing:
        self._fail()
        now = resources.clock.now()
        listing = Listing(uuid.uuid4().hex, (state.metadata.location,), now, now, "file:///none", LISTED, LISTED)
        resources.operations.scans.store_listing(listing.record(state.metadata.table_uuid, state.name))
        self._listed_by[listing.listing_id] = state.metadata.metadata_location
        return listing

    def _scan(self, context: Any, listing: Listing, _settings: object, *, table_uuid: str, **_: object) -> Any:
        self._fail()
        orphans = LEAKY if context.table.split(".")[1].startswith("leaky") else self.dice.choice([0, 0, 1, 3])
        summary = OrphanSummary(LISTED, LISTED, orphans, orphans, 0, 0, {}, {}, {}, {})
        record = ScanRecord(
            scan_id=uuid.uuid4().hex,
            table_uuid=table_uuid,
            table=context.table,
            listing_id=listing.listing_id,
            listed_at=listing.started_at,
            listing_finished_at=listing.finished_at,
            metadata_location=self._listed_by[listing.listing_id],
            metadata_read_at=context.operations.clock.now(),
            files_location="file:///none",
            files=orphans,
            bytes=orphans,
            skipped_young=0,
            skipped_in_flight=0,
            summary=json.dumps(asdict(summary)),
        )
        return result_of(context.operations.scans.store(record), context.spark, context.stores)

    def _delete_scan(self, service: Any, record: ScanRecord) -> DeletionReport:
        scans = service.resources.operations.scans
        if record.state != ScanState.DONE:
            scans.mark(record.scan_id, {ScanState.OPEN, ScanState.DELETING}, ScanState.DELETING)
            self._fail()
            self._happened("orphans", record.scan_id)
            scans.mark(record.scan_id, {ScanState.DELETING}, ScanState.DONE)
        return DeletionReport(record.scan_id, record.table, record.files, 0, 0, 0, record.bytes)


_SESSION = SimpleNamespace(sparkContext=SimpleNamespace(addJobTag=lambda _: None, removeJobTag=lambda _: None))
NO_SPARK = SimpleNamespace(spark_session=_SESSION, started=None)
