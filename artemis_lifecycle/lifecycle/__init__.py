"""The public face: each method is one step of the walk, callable from Python, the terminal and Dagster alike.

Belongs here: naming the steps, wiring rooms together, leases and step records around what changes something. Does not
belong: how a step does its work.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from artemis_lifecycle.deletion.worker import DeletionReport
from artemis_lifecycle.errors import GraceNotOver
from artemis_lifecycle.lifecycle.cold_tier import ColdTier
from artemis_lifecycle.lifecycle.explaining import Explaining, Explanation
from artemis_lifecycle.lifecycle.history import ReachableSet
from artemis_lifecycle.lifecycle.maintenance import Maintenance
from artemis_lifecycle.lifecycle.operating import Operating
from artemis_lifecycle.lifecycle.promises import Tagged
from artemis_lifecycle.lifecycle.quarantine import Quarantine
from artemis_lifecycle.lifecycle.queries import Queries

__all__ = ["Explanation", "Lifecycle", "ReachableSet", "Tagged"]


class Lifecycle(Queries, ColdTier, Explaining, Quarantine, Maintenance, Operating):
    """One configuration's catalogs, stores, Postgres and Spark session, and the steps of the walk on its tables.

    Open it with `Lifecycle.open` and use it as a context manager, or call `close`. Spark starts when a step first needs
    it; a session that was passed in is used as it is and left running.

    Each part of the walk is a class in a module of its own, and stands on those whose steps it uses:

    - `opened`, `base`: catalogs, stores and sessions; looks at tables, leases, records and pauses around the steps
    - `history`: what a table has, what its kept snapshots reach, what other windows would keep
    - `expiration`: plans, and their commits
    - `reading`, `queries`: which tier answers, rows, SQL with FOR TAG and TAG SNAPSHOT
    - `cold_tier`: the handoff, restoring, the deep archive and its thaws
    - `deletion`: approving and closing plans, deleting their files, receipts
    - `dropped`: tables that the catalog has no more
    - `orphans`: listings, scans, and deleting what nobody owns
    - `quarantine`: what deletions moved aside, and bringing it back
    - `explaining`: why a file is kept, planned or gone, and how plans differ
    - `promises`: tags, holds and the heartbeats of writers
    - `upkeep`: lineage, schemas, health, compaction, costs
    - `operating`: pauses, and forgetting old records
    """

    def expire(
        self,
        table: str,
        now: datetime | None = None,
        older_than: datetime | None = None,
        retain_last: int | None = None,
        snapshot_ids: Sequence[int] | None = None,
    ) -> DeletionReport:
        """Plan, hand off, commit and, when the grace is over, delete. While it runs the report says `pending_until`."""
        plan = self.plan_expiration(table, now, older_than, retain_last, snapshot_ids)
        self.hand_off(plan)
        done = self.commit_expiration(plan)
        try:
            return self.delete_files(plan)
        except GraceNotOver:
            return DeletionReport(
                job_id=plan.plan_id,
                table=table,
                deleted=0,
                already_absent=0,
                kept=0,
                failed=0,
                bytes=0,
                pending=plan.summary.files,
                pending_until=done.due_at,
            )
