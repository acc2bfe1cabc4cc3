"""Dropped tables: detection, decisions about their files, and the deletion of the files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from shlex import quote

from artemis_lifecycle.catalogs.identifier import parse_in
from artemis_lifecycle.config.names import name_of
from artemis_lifecycle.deletion.report import DeletionReport, report_of
from artemis_lifecycle.errors import (
    ApprovalNeeded,
    BadInput,
    GraceNotOver,
    LifecycleError,
    MissingFile,
    NoSuchPlan,
    NoSuchTable,
    PlanStateError,
    Refused,
    StalePlan,
)
from artemis_lifecycle.metadata.types import CatalogEntry
from artemis_lifecycle.operations.decisions import person
from artemis_lifecycle.operations.known_tables import KnownTable
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.quarantines import QuarantineState
from artemis_lifecycle.operations.scans import ScanRecord, ScanState
from artemis_lifecycle.operations.tables import require_said
from artemis_lifecycle.orphans import dropped
from artemis_lifecycle.orphans.dropped import Cleared, DroppedTable
from artemis_lifecycle.orphans.scan import OrphanScanResult, job_of
from artemis_lifecycle.protection.absence import Absence, is_of_this_drop, saved_later
from artemis_lifecycle.protection.context import Asking
from artemis_lifecycle.protection.future import later_files
from artemis_lifecycle.protection.protection import Protection
from artemis_lifecycle.session.contexts import deletion_context
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps, TableState, noted_wait
from artemis_lifecycle.walk.deletion import Deletion, deletion_counts, stored_receipt
from artemis_lifecycle.walk.listings import take_listing


@dataclass(frozen=True)
class DroppedTables:
    """Detects dropped tables, and scans and deletes their files."""

    resources: Resources
    steps: Steps
    deletion: Deletion

    def observe_catalog(self, most: int | None = None) -> dict[str, str]:
        # Not a question: what it records has to be there when a table is gone.
        """Record which tables the live catalog has now, so that dropped tables are detected. Reads the metadata files
        of new and changed tables, at most `most` of them; the next call reads more. Return the errors of unreadable
        tables."""
        self.resources.require_deployment()
        return self._observed(most)[1]

    def dropped_tables(self) -> list[DroppedTable]:
        """Return the tables that the live catalog no longer has: until when their files are kept, and their state."""
        return [self._dropped(known) for known in self._observed()[0]]

    def _observed(self, most: int | None = None) -> tuple[list[KnownTable], dict[str, str]]:
        return self.steps.observe(most)

    def _dropped(self, known: KnownTable) -> DroppedTable:
        assert known.missing_since is not None
        keep = max(each.dropped.keep for each in self.resources.config.policies(known.table))
        due_at = known.missing_since + keep
        scans = self.resources.operations.scans.of_table(known.table_uuid, kind="dropped")
        scans = tuple(each for each in scans if each.table == known.table)
        state: dropped.State = "due" if self.resources.operations.clock.now() >= due_at else "waiting"
        if known.kept_at is not None:
            state = "kept"
        elif known.gone_at is not None:
            state = "gone"
        elif not dropped.has_metadata(self.resources.live_stores, self.resources.root, known):
            state = "purged"
        return DroppedTable(
            table=known.table,
            table_uuid=known.table_uuid,
            metadata_location=known.metadata_location,
            last_seen=known.last_seen,
            missing_since=known.missing_since,
            due_at=due_at,
            state=state,
            kept_by=known.kept_by,
            kept_why=known.kept_why,
            scan_id=scans[0].scan_id if scans else None,
            approved_by=scans[0].approved_by if scans else None,
        )

    def missing(self, table: str, catalog: str | None = None, table_uuid: str | None = None) -> KnownTable:
        """Return the only dropped table with that name (and `table_uuid`, if given) or uuid; of another catalog, if its
        name begins so, or if that is given: of those that its last sweep missed."""
        other = table.partition(":")[0] if self.resources.other(table) is not None else catalog
        missing = self._observed()[0] if other is None else self.resources.operations.known_tables.missing(other)
        missing = [known for known in missing if table_uuid is None or table_uuid.lower() == known.table_uuid]
        having = [known for known in missing if table == known.table or table.lower() == known.table_uuid]
        having = having or [known for known in missing if table == name_of(known.table)]
        if table_uuid is not None and not having:
            having = missing
        if len(having) == 1:
            return having[0]
        if not having:
            raise NoSuchTable(
                "No such table is known to have been dropped",
                table=table,
                hint="list the dropped tables: artemis dropped",
            )
        each = (f"{known.table_uuid} (missed since {known.missing_since:%Y-%m-%d %H:%M:%S} UTC)" for known in having)
        raise BadInput(
            f"{len(having)} tables of that name were dropped: {', '.join(each)}",
            table=table,
            hint="select one by its uuid, or by its name where a uuid had several",
        )

    def scan_dropped(self, table: str, catalog: str | None = None, table_uuid: str | None = None) -> OrphanScanResult:
        known = self.missing(table, catalog, table_uuid)
        state, absence = self.lost(known)
        policy = self.resources.config.policy(known.table)
        with self.steps.run(state, "dropped_scan") as step:
            scan = dropped.scan_dropped(
                deletion_context(self.resources, known.table, absence),
                take_listing(self.resources, state, None, step),
                known,
                min_age=max(policy.orphans.min_age, policy.orphans.min_age_floor),
                prefix_mismatch=policy.orphans.prefix_mismatch,
            )
            step.counts = {"files": scan.summary.orphan_files, "bytes": scan.summary.orphan_bytes}
        return scan

    def delete_dropped(self, scan: OrphanScanResult | str, *, dry_run: bool = False) -> DeletionReport:
        resources = self.resources
        record = resources.operations.scans.get(scan if isinstance(scan, str) else scan.scan_id)
        if record.kind != "dropped":
            raise NoSuchPlan(
                f"{record.scan_id} is a scan for orphans, not of a dropped table",
                table=record.table,
                hint=f"artemis delete-orphans {record.scan_id}",
            )
        if not dry_run:
            # A reader that it asks is a dropped table once it is dropped.
            self.steps.observe()
        catalog = deletion_context(resources, record.table).catalog_name
        known = resources.operations.known_tables.get(catalog, record.table_uuid, record.table)
        job = job_of(record)
        if record.state == ScanState.DONE and not dry_run:
            if record.files:
                stored_receipt(self.steps, job)
            if known.missing_since is not None and known.gone_at is None:
                # The worker died after its last file.
                resources.operations.known_tables.gone(known)
            return report_of(resources.start_spark, resources.live_stores, resources.operations, job, resources.root)
        self._require_over(known, record, dry_run=dry_run)
        state, absence = self.lost(known)
        absence.expect(known.metadata_location, dropped.listed_metadata(resources.live_stores, record, known))
        if dry_run:
            return self.deletion.run_scan(record, None, dry_run=True, absence=absence)
        with self.steps.run(state, "dropped_deletion") as step:
            absence.require()
            # The plans of a uuid that has another name are that table's.
            lives_on = resources.operations.known_tables.lives_on(known.table_uuid)
            for plan in () if lives_on else resources.operations.plans.holding(known.table_uuid):
                resources.operations.plans.close(
                    plan.plan_id, record.approved_by or resources.owner, "its table was dropped"
                )
            if self.deletion.settings(record.table).quarantine is not None:
                # Until a purge, each of them may be the table's last state.
                saved = saved_later(resources.root, known)
                for path in later_files(resources.live_stores, known.metadata_location):
                    with suppress(MissingFile):
                        resources.live_stores.copy(path, f"{saved}/{path.rpartition('/')[2]}")
            report = self.deletion.run_scan(record, step.lease, pause=step.pause, absence=absence)
            step.state = "pending" if report.failed or report.pending else "done"
            step.counts = deletion_counts(report)
            if step.state == "done":
                if record.files:
                    stored_receipt(self.steps, job)
                resources.operations.known_tables.gone(known)
        return report

    def clear_dropped(self, *, dry_run: bool = False) -> list[Cleared]:
        """Process the dropped tables that an entry of lifecycle.yaml matches and whose retention is over: scan those
        without a recent scan, and delete what may be deleted. A refusal is reported with its table, and does not stop
        the others. A dry run scans nothing."""
        self.resources.require_deployment(record=not dry_run)
        return [
            self._clear(each, dry_run=dry_run)
            for each in self.dropped_tables()
            if each.state == "due" and self.resources.config.governs(each.table)
        ]

    def _clear(self, lost: DroppedTable, *, dry_run: bool) -> Cleared:
        policy = self.resources.config.policy(lost.table)
        states = (ScanState.OPEN, ScanState.DELETING)
        scans = self.resources.operations.scans.of_table(lost.table_uuid, states, kind="dropped")
        record = next((each for each in scans if each.table == lost.table), None)
        try:
            latest = self.resources.operations.clock.now() - policy.orphans.scan_every.most
            # A deletion follows its approval: an approved scan is not replaced.
            stale = record is None or (record.approved_by is None and record.listed_at < latest)
            # The scan is from an earlier drop, after which the table existed again.
            stale = stale or (record is not None and not is_of_this_drop(self.resources.root, record, lost))
            if stale and dry_run:
                return Cleared(lost, problem="it is to be scanned")
            if stale:
                scan = self.scan_dropped(lost.table, table_uuid=lost.table_uuid)
                record = self.resources.operations.scans.get(scan.scan_id)
            assert record is not None
            with noted_wait(self.resources, record.scan_id):
                if record.approved_by is None and policy.dropped.approval == "required":
                    # Not known to a dry run of the deletion.
                    raise _to_approve(record)
                report = self.delete_dropped(record.scan_id, dry_run=dry_run)
        except ApprovalNeeded as needed:
            assert record is not None
            waits = f"it waits for approval ({needed.what}): artemis approve {record.scan_id} --large --who … --why …"
            return Cleared(lost, record.scan_id, record.files, problem=waits, waits=True)
        except LifecycleError as error:
            return Cleared(lost, None if record is None else record.scan_id, problem=error.what)
        return Cleared(lost, record.scan_id, record.files, report.deleted, report.paused)

    def keep_dropped(self, table: str, *, who: str, why: str) -> DroppedTable:
        """Decide to keep the files of a dropped table (by name or uuid), also those in quarantine. Raises NoSuchTable,
        PlanStateError, Busy."""
        known = self.missing(table)
        require_said(known.table, who=who, why=why)
        operations = self.resources.operations
        # What a batch deletes is deleted before the decision, and no batch after it.
        with table_lock(operations.engine, known.table_uuid, table=known.table):
            kept = operations.known_tables.keep(known, who, why, quarantined=self._is_in_quarantine(known))
        return self._dropped(kept)

    def unkeep_dropped(self, table: str, *, who: str | None = None) -> DroppedTable:
        """End a `keep_dropped`: the retention counts from when the table was missed. `who` (default: the account,
        USER@HOST) is recorded. Raises NoSuchTable, PlanStateError."""
        resources = self.resources
        known = self.missing(table)
        operator, in_quarantine = person() if who is None else who, self._is_in_quarantine(known)
        return self._dropped(resources.operations.known_tables.unkeep(known, operator, quarantined=in_quarantine))

    def _is_in_quarantine(self, known: KnownTable) -> bool:
        """Return True if a purge could still delete files of a dropped table for good."""
        records = self.resources.operations.quarantines.of_table(known.table_uuid)
        return any(each.state is not QuarantineState.PURGED for each in records)

    def state_even_if_dropped(self, table: str, table_uuid: str | None = None) -> TableState:
        """Return the table with that name (and uuid, if given), or the dropped one. Raises NoSuchTable."""
        try:
            return self.steps.any_state(table) if table_uuid is None else self.steps.state_of(table, table_uuid)
        except BadInput as error:
            # Only a name without a namespace can be the uuid of a dropped table.
            if not isinstance(error, NoSuchTable) and "." in table:
                raise
        catalog = table.partition(":")[0] if self.resources.other(table) is not None else None
        return self.lost(self.missing(table, catalog, table_uuid))[0]

    def state_with_files(self, table: str) -> TableState:
        """Return the table with that name, or the dropped one (by name or uuid). Raises NoSuchTable, PlanStateError if
        nothing of it is left."""
        state = self.state_even_if_dropped(table)
        if state.is_dropped:
            known = self.missing(state.name, state.catalog, state.metadata.table_uuid)
            if known.gone_at is not None and not self._is_in_quarantine(known):
                raise PlanStateError(
                    f"Table {known.table_uuid} is gone, and its files with it",
                    table=known.table,
                    hint="list the dropped tables: artemis dropped",
                )
        return state

    def lost(self, known: KnownTable) -> tuple[TableState, Absence]:
        """Return a dropped table in its last seen state, and the check that it is absent from the catalog."""
        resources, now = self.resources, self.resources.operations.clock.now()
        # Oldest first.
        places = resources.operations.table_locations.of_table(known.table_uuid)[::-1]
        metadata = dropped.last_metadata(resources.live_stores, resources.root, known, places)
        other = known.catalog if resources.other(known.table) is not None else None
        name, catalogs = parse_in(known.table, known.catalog), resources.config.catalogs
        prefix = catalogs.prefix(catalogs.of(known.table))
        entry = CatalogEntry(known.catalog, name, metadata.metadata_location, prefix=prefix)
        # It may live on in a catalog that does not answer.
        catalog = resources.readers_of(known.table, strict=True)
        catalog = catalog if other is None else deletion_context(resources, known.table).catalog
        absence = dropped.absence_of(resources.operations, catalog, resources.live_stores, known, metadata)
        return TableState(entry, metadata, now, is_dropped=True, catalog=other), absence

    def _require_over(self, known: KnownTable, record: ScanRecord, *, dry_run: bool) -> None:
        """Raise what forbids the deletion of a dropped table's files now. A dry run may come before the end of the
        retention."""
        if known.missing_since is None:
            raise StalePlan(
                "The table is in the catalog again",
                table=known.table,
                untouched="all files",
                hint="nothing to do: its files belong to an existing table again",
            )
        if not is_of_this_drop(self.resources.root, record, known):
            raise StalePlan(
                f"Scan {record.scan_id} belongs to an earlier drop than the one noticed at "
                f"{known.missing_since.isoformat()}: the table was in the catalog again in between",
                table=known.table,
                untouched="all files",
                hint=f"scan again: artemis scan-dropped {quote(known.table)}",
            )
        policy = self.resources.config.policy(known.table)
        due_at = known.missing_since + policy.dropped.keep
        self._require_no_hold(known)
        if known.kept_at is not None and known.gone_at is None:
            raise Refused(
                f"{known.kept_by} decided that the dropped table's files stay: {known.kept_why}",
                table=known.table,
                untouched="all files",
                hint=f"artemis keep-dropped {known.table_uuid} --undo, if that is over",
            )
        if dry_run:
            return
        if self.resources.operations.clock.now() < due_at:
            raise GraceNotOver(
                f"The dropped table's files are kept until {due_at.isoformat()} (dropped.keep)",
                table=known.table,
                untouched="all files",
                hint=f"delete after that time: artemis delete-dropped {record.scan_id}",
            )
        # After a purge, nothing says which of the files were the table's.
        purged = not dropped.has_metadata(self.resources.live_stores, self.resources.root, known)
        if (purged or policy.dropped.approval == "required") and record.approved_by is None:
            raise _to_approve(record)
        self.deletion.require_small_or_approved(record)

    def _require_no_hold(self, known: KnownTable) -> None:
        context = deletion_context(self.resources, known.table, self.lost(known)[1])
        Protection(context, Asking(known.table_uuid, "dropped", known.table, known.table_uuid)).require_no_hold()


def _to_approve(record: ScanRecord) -> ApprovalNeeded:
    return ApprovalNeeded(
        f"{record.files:,} files ({record.bytes:,} bytes) are all that is left of the table",
        table=record.table,
        untouched="all files",
        hint=f"artemis approve {record.scan_id} --large --who … --why …, then delete",
    )
