"""Paimon's own procedures, with its names and arguments, on the tables of a Paimon warehouse."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.errors import BadInput, Held
from artemis_lifecycle.expiration.plan import ExpirationPlan, PlanRequest
from artemis_lifecycle.formats.paimon.commit import Rollback, later_than, removal_of, roll_back, target_of, whole_table
from artemis_lifecycle.formats.paimon.decision import expired_tags
from artemis_lifecycle.formats.paimon.documents import MAIN, Document
from artemis_lifecycle.formats.paimon.options import is_async, parse_options
from artemis_lifecycle.formats.paimon.service import PaimonTables
from artemis_lifecycle.formats.paimon.table import metadata_of
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle.retention.rules import Decision, RetentionSettings
from artemis_lifecycle.retention.views import NO_KEEPERS
from artemis_lifecycle.walk.deletion import Deletion
from artemis_lifecycle.walk.orphans import Orphans

_DAY = timedelta(days=1)
_ALL = ".*"


@dataclass(frozen=True)
class Expired:
    """What a call of `expire_snapshots` or `expire_tags` expired, or (`dry_run`) would. `deletion` is None if the files
    wait: for the grace, after an asynchronous call; `due_at` is when it ends."""

    table: str
    plan_id: str
    deleted_snapshots_count: int
    expired_tags: tuple[str, ...]
    files: int
    size_in_bytes: int
    warnings: tuple[str, ...]
    due_at: datetime | None = None
    deletion: DeletionReport | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class OrphansRemoved:
    """What `remove_orphan_files` deleted of one table, or (`dry_run`) would delete."""

    table: str
    scan_id: str
    deleted_file_count: int
    deleted_file_total_len_in_bytes: int
    dry_run: bool = False


@dataclass(frozen=True)
class PaimonProcedures:
    """`sys.expire_snapshots`, `rollback_to`, `remove_orphan_files` and `expire_tags`."""

    tables: PaimonTables
    deletion: Deletion
    orphans: Orphans

    def expire_snapshots(
        self,
        table: str,
        *,
        retain_max: int | None = None,
        retain_min: int | None = None,
        older_than: datetime | None = None,
        max_deletes: int | None = None,
        options: str | None = None,
        now: datetime | None = None,
        dry_run: bool = False,
    ) -> Expired:
        """Expire snapshots by the table's options, which the arguments override.

        With `snapshot.expire.execution-mode` sync (the default), the files are deleted in this call; with async, after
        the grace of the table's policy. Raises BadInput for options that contradict each other, before anything is
        touched; UnreadableMetadata; StalePlan if the table was rolled back in the meantime; ApprovalNeeded; Held.
        """
        overrides = parse_options(options)
        waits = is_async({**self.tables.read(table).main.schema.options, **overrides})
        if not dry_run:
            # A call of `expire_tags` that was killed is finished first.
            begun = self.tables.begun(table)
            if begun is not None and begun.expired_refs:
                self._expire(begun, waits=is_async(self.tables.read(table).main.schema.options), dry_run=False)
        plan = self.tables.plan(
            table,
            now,
            lambda found: self.tables.options(
                found,
                overrides=overrides,
                retain_max=retain_max,
                retain_min=retain_min,
                older_than=older_than,
                max_deletes=max_deletes,
            ),
            asked=True,
            overrides=overrides,
        )
        return self._expire(plan, waits=waits, dry_run=dry_run)

    def expire_tags(
        self, table: str, *, older_than: datetime | None = None, now: datetime | None = None, dry_run: bool = False
    ) -> Expired:
        """Delete the tags whose retention is over, and those made before `older_than`, with the files that only they
        reach. Paimon stores when a tag was made as local time; this reads it in the time zone of this process."""
        tables, resources = self.tables, self.tables.resources
        begun = None if dry_run else tables.begun(table)
        if begun is not None:
            done = self._expire(begun, waits=is_async(tables.read(table).main.schema.options), dry_run=False)
            if begun.expired_refs:
                return done
        read_at, reader = resources.clock.now(), tables.reader(table)
        found, _ = whole_table(reader, lambda: tables.read(table))
        instant = resources.instant("now", now)
        before = None if older_than is None else resources.instant("older_than", older_than)
        holds = tables.holds(found)
        held = {snapshot_id for hold in holds for snapshot_id in hold.snapshot_ids}
        is_held = any(not hold.snapshot_ids for hold in holds)
        over = expired_tags(found.main, _local(instant), None if before is None else _local(before), self._modified_at)
        # A snapshot that has expired lives on in its tag, and so does a hold on it.
        tags = tuple(tag for tag in over if not is_held and tag.snapshot_id not in held)
        kept = {each.snapshot_id: () for each in found.main.snapshots}
        names = tuple(sorted(tag.name for tag in tags if tag.name is not None))
        settings = RetentionSettings(
            rule="paimon", older_than_ms=None if before is None else int(before.timestamp() * 1000)
        )
        with tables.steps.run(tables.state_of(found, read_at), "plan"):
            plan = tables.seal(
                reader,
                found,
                PlanRequest(table, metadata_of(found), settings, instant, NO_KEEPERS),
                Decision(kept, (), names, int(instant.timestamp() * 1000)),
                removal_of(found, MAIN, (), (), (), None, tags),
                tags,
            )
        return self._expire(plan, waits=is_async(found.main.schema.options), dry_run=dry_run)

    def _modified_at(self, tag: Document) -> datetime | None:
        head = self.tables.resources.live_stores.head(tag.path)
        return None if head is None or head.last_modified is None else _local(head.last_modified)

    def _expire(self, plan: ExpirationPlan, *, waits: bool, dry_run: bool) -> Expired:
        summary = plan.summary
        done = self.tables.commit_expiration(plan, dry_run=dry_run, grace=None if waits else timedelta(0))
        report = None
        if not waits and not dry_run:
            report = self.deletion.delete_files(plan)
            self._delete_due(plan)
        warnings = summary.warnings
        if waits and not dry_run and done.due_at is not None:
            warnings += (
                "snapshot.expire.execution-mode is async: no file is deleted yet, and this process waits for none. "
                f"From {done.due_at:%Y-%m-%d %H:%M} UTC, delete them with: artemis delete {plan.plan_id}",
            )
        return Expired(
            plan.table,
            plan.plan_id,
            done.snapshots_removed,
            plan.expired_refs,
            summary.files,
            summary.size_in_bytes,
            warnings,
            done.due_at,
            report,
            dry_run,
        )

    def _delete_due(self, plan: ExpirationPlan) -> None:
        """Delete the files of earlier calls that were killed after their commit, or whose grace is over."""
        operations = self.tables.resources.operations
        now = operations.clock.now()
        for record in operations.plans.of_table(plan.table_uuid, (PlanStatus.COMMITTED, PlanStatus.DELETING)):
            if record.plan_id != plan.plan_id and record.due_at is not None and record.due_at <= now:
                self.deletion.delete_files(record.plan_id)

    def rollback_to(
        self, table: str, *, snapshot_id: int | None = None, tag: str | None = None, dry_run: bool = False
    ) -> Rollback:
        """Make a snapshot, or the snapshot of a tag, the latest again: later snapshots, changelogs and tags go.

        Files that only these reached are orphans from then on. Raises NoSuchSnapshot, and Held if a hold covers what
        would go.
        """
        if (snapshot_id is None) == (tag is None):
            raise BadInput("Name either a snapshot or a tag", table=table, untouched="the table")
        tables, operations = self.tables, self.tables.resources.operations
        read_at = tables.resources.clock.now()
        found = tables.read(table)
        with (
            tables.steps.run(tables.state_of(found, read_at), "rollback", dry_run=dry_run) as step,
            table_lock(operations.engine, found.table_uuid, table=table) as lock,
        ):
            branch = tables.read(table).main
            target = target_of(branch, table, snapshot_id, tag)
            later = list(later_than(branch, target))
            ids = {each.snapshot_id for each in later}
            for hold in tables.holds(found):
                if not hold.snapshot_ids or ids.intersection(hold.snapshot_ids):
                    raise Held(
                        f"Hold {hold.hold_id} of {hold.owner} covers what would go: {hold.reason}",
                        table=table,
                        untouched="the table",
                        hint=f"artemis release {hold.hold_id}, or go back to a later snapshot",
                    )

            def check() -> None:
                lock.check()
                step.check()

            if not dry_run:
                tables.resources.require_deployment(table)
                roll_back(tables.resources.live_stores, branch, target, check)
            step.counts = {"snapshots_removed": sum(each.role == "snapshot" for each in later)}

        def numbers(role: str) -> tuple[int, ...]:
            return tuple(sorted(each.snapshot_id for each in later if each.role == role))

        latest = branch.snapshots[-1] if branch.snapshots else target
        tags = tuple(sorted(each.name for each in later if each.role == "tag" and each.name is not None))
        return Rollback(
            table, latest.snapshot_id, target.snapshot_id, numbers("snapshot"), tags, numbers("changelog"), dry_run
        )

    def remove_orphan_files(
        self, table: str, *, older_than: datetime | None = None, dry_run: bool = False
    ) -> list[OrphansRemoved]:
        """Delete the files of a table, or of every table of a database (`<catalog>:<database>.*`), that nothing
        reaches. By default, a file must be older than a day and than `orphans.min_age` of the table's policy."""
        database = table.partition(":")[2].removesuffix(_ALL)
        names = self.tables.tables_of(database) if table.endswith(_ALL) else [table]
        return [self._remove_orphans(name, older_than, dry_run=dry_run) for name in names]

    def _remove_orphans(self, table: str, older_than: datetime | None, *, dry_run: bool) -> OrphansRemoved:
        resources = self.tables.resources
        before = older_than
        if before is None and resources.config.policy(table).orphans.min_age < _DAY:
            before = resources.clock.now() - _DAY
        scan = self.orphans.scan_orphans(table, older_than=before)
        report = self.orphans.delete_orphans(scan, dry_run=dry_run)
        deleted = report.would_delete if dry_run else report.deleted
        size = report.would_delete_bytes if dry_run else report.bytes
        return OrphansRemoved(table, scan.scan_id, deleted, size, dry_run)


def _local(instant: datetime) -> datetime:
    """Return the local time of this process, without its zone, as Paimon writes it."""
    return instant.astimezone(UTC).astimezone().replace(tzinfo=None)
