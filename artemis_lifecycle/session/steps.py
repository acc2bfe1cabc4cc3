"""What all steps share: the state of a table at one moment; the lease, the record and the pauses around the work."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from shlex import quote
from typing import Literal, TypeVar

from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.results import NAMESPACE
from artemis_lifecycle.catalogs.siblings import Beside
from artemis_lifecycle.code_version import commit_hash, package_version
from artemis_lifecycle.contracts import CommitLineage
from artemis_lifecycle.errors import (
    ApprovalNeeded,
    LifecycleError,
    NoSuchPlan,
    NoSuchTable,
    NotApplicable,
    UnreadableMetadata,
    require_uuid,
)
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.metadata.lines import is_written_once
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.decisions import Watch, paused
from artemis_lifecycle.operations.known_tables import KnownTable, Seen, beside_catalog
from artemis_lifecycle.operations.leases import Lease, mark
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle.operations.rest_commits import RestCommit
from artemis_lifecycle.operations.scans import ScanRecord
from artemis_lifecycle.orphans.dropped import is_moved as is_line_elsewhere
from artemis_lifecycle.orphans.dropped import observe
from artemis_lifecycle.protection.future import lost_since
from artemis_lifecycle.protection.limits import in_quiet_window as is_in_quiet_window
from artemis_lifecycle.protection.ownership import own_locations
from artemis_lifecycle.session.formats import TableState as TableState
from artemis_lifecycle.session.live_catalogs import catalogs_of_database, require_own_keys
from artemis_lifecycle.session.progress import Progress
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.spark.java_errors import java_errors
from artemis_lifecycle.spark.session import driver_pid

R = TypeVar("R", ExpirationPlan, ScanRecord)

_LOOKING = frozenset({"deletion", "orphan_deletion", "quarantine_purge"})
_DELETING = frozenset({"plan", "commit", "deletion", "orphan_deletion"})
"""Steps that depend on what became of earlier commits through a REST catalog."""

_DESTRUCTIVE = frozenset(
    {"commit", "deletion", "dropped_deletion", "orphan_deletion", "quarantine_purge", "rollback", "untag"}
)
"""Steps that need the record of the deployment, wherever the catalog can keep it."""

_COLD = frozenset({"cold_scan", "deep_archive"})
"""Steps that evaluate the age of files in the cold warehouse."""


@dataclass(frozen=True)
class Steps:
    """Reads the state of tables, and runs steps on them. `ways_out` raise errors again with what to do."""

    resources: Resources
    ways_out: list[Callable[..., None]] = field(default_factory=list, compare=False)

    @contextmanager
    def advised(self, table: str, live: TableMetadata | None) -> Iterator[None]:
        """Let errors of missing metadata in the block name the way out. `live` is None before it is read."""
        try:
            yield
        except UnreadableMetadata as error:
            error.table = error.table or table
            # One that has its way out is raised from the error without it.
            for way_out in () if isinstance(error.__cause__, UnreadableMetadata) else self.ways_out:
                way_out(table, live, error)
            raise

    def tables(self) -> list[str]:
        """The tables of all live catalogs, without the project's own result tables. Raises OperationsUnavailable if one
        does not answer."""
        found, errors = self.answering_tables()
        for error in errors.values():
            raise error
        return found

    def answering_tables(self) -> tuple[list[str], dict[str, LifecycleError]]:
        """Return `tables()` of the catalogs that answer in time, and the errors of the others by name. Raises the error
        of `catalogs.live`."""
        answers, errors = self.resources.catalogs.answering(CatalogReader.tables)
        live, *named = answers.values()
        found = [name for name in live if parse(name).namespace[0] != NAMESPACE]
        require_own_keys(self.resources.config.catalogs, found)
        return [*found, *(name for tables in named for name in tables)], errors

    def table_state(self, table: str) -> TableState:
        """Return the current table of the live catalog. Raises NoSuchTable, UnreadableMetadata; NotApplicable for a
        table of another catalog, whose format has no such step."""
        other = self.resources.other(table)
        if other is not None:
            raise NotApplicable(
                f"This step is for Iceberg tables of the live catalog; the table's kind is {other.kind}",
                table=table,
                hint="docs/formats.md lists what each kind of table has",
            )
        # The instant before the read: metadata counts as newer than a listing only if all of it was read after the
        # listing.
        read_at = self.resources.clock.now()
        entry = self.resources.catalogs.entry(table)
        with self.advised(table, None):
            metadata = read_table_metadata(self.resources.live_stores, entry.metadata_location)
        return TableState(entry, metadata, read_at)

    def any_state(self, table: str) -> TableState:
        """Return the current table, of any kind. Raises NoSuchTable, UnreadableMetadata."""
        other = self.resources.other(table)
        return self.table_state(table) if other is None else other.state(table)

    def state_of(self, table: str, table_uuid: str, job_id: str = "PLAN") -> TableState:
        """Return the current table with that uuid, under the name that it has now. `table` was its name when a plan, a
        scan or a hold was recorded: none is acted on by the name alone.

        Raises AnotherTable if another table has the name, NoSuchTable if no table continues it, UnreadableMetadata.
        """
        found = None
        with suppress(NoSuchTable):
            found = self.any_state(table)
        if found is None or found.metadata.table_uuid != table_uuid:
            renamed = self._name_of(table_uuid, table)
            found = found if renamed is None else self.any_state(renamed)
        if found is None:
            what = f"No table of the catalog is known to continue the one with the uuid {table_uuid}"
            hint, known = "list dropped tables: artemis dropped", self.resources.operations.known_tables
            others = [each.table for each in known.of_uuid(table_uuid) if not each.missing_since]
            if others:
                what = f"{what}; {others[0]} has it"
                hint = f"if it moved there: artemis close {job_id}, then artemis plan {quote(others[0])}; else {hint}"
            raise NoSuchTable(what, table=table, untouched="all its files", hint=hint)
        require_uuid(found.name, found.metadata.table_uuid, table_uuid)
        return found

    def resumed(self, record: R) -> tuple[R, TableState]:
        """Return what was recorded of a table under its current name, with its state. Raises as `state_of`."""
        job_id = record.scan_id if isinstance(record, ScanRecord) else record.plan_id
        state = self.state_of(record.table, record.table_uuid, job_id)
        return (record if state.name == record.table else replace(record, table=state.name)), state

    def again(self, state: TableState) -> TableState:
        """Return the table as it is now, e.g. under its lease. Raises as `state_of`; NoSuchTable if it was renamed."""
        if state.catalog is None:
            entry = self.resources.catalogs.entry(state.name)
            now_at = entry.metadata_location
            if now_at == state.metadata.metadata_location and is_written_once(now_at):
                return state
        now = self.any_state(state.name)
        require_uuid(state.name, now.metadata.table_uuid, state.metadata.table_uuid)
        return now

    def _name_of(self, table_uuid: str, table: str) -> str | None:
        """Return the current name of a table, as far as its catalog was seen."""
        catalog = self.resources.config.catalogs.of(table).name
        if self.resources.other(table) is None:
            self.observe()
        else:
            catalog = table.partition(":")[0]
        known = self.resources.operations.known_tables.of_catalog(catalog)
        lines = [each for each in known if each.table_uuid == table_uuid]
        # Another name of a uuid that was dropped under this one is a clone, or a replica, with files of its own. So may
        # one of several names be.
        if any(each.table == table and each.missing_since for each in lines):
            return None
        names = [each.table for each in lines if not each.missing_since]
        return names[0] if len(names) == 1 else None

    def observe(self, most: int | None = None) -> tuple[list[KnownTable], dict[str, str]]:
        """Record the tables of all live catalogs. See `orphans.dropped.observe`. What a named one had last stays known
        while it does not answer."""
        resources, catalogs = self.resources, self.resources.config.catalogs
        # A table that is missing from now on becomes due some time later.
        resources.require_clocks()
        stores, operations, rules = resources.live_stores, resources.operations, resources.rules
        missing, problems = list[KnownTable](), dict[str, str]()

        def seen(reader: CatalogReader) -> tuple[Beside, Beside]:
            # Tables of the other catalogs of the database are readers, too: also once they are dropped.
            siblings = catalogs_of_database(catalogs, reader, resources.cold_catalog).beside()
            return Beside(reader.pointers(), reader.others()), siblings

        known = operations.known_tables.of_catalog
        before = {each: known(each) for name in resources.catalogs.names for each in (beside_catalog(name), name)}
        answers, errors = resources.catalogs.answering(seen)
        for name in resources.catalogs.names:
            if name in errors:
                problems[f"catalog {name}"] = errors[name].what
                missing += operations.known_tables.missing(name)
                continue
            tables, siblings = answers[name]
            beside = beside_catalog(name)
            observe(siblings, stores, operations, beside, rules, most, before=before[beside])
            lost, unread = observe(tables, stores, operations, name, rules, most, before=before[name])
            missing, problems = missing + lost, problems | unread
        is_asked = len(answers) > 1 and any(each.kept_at is None and each.gone_at is None for each in missing)
        now = {name: each.pointers() for name, (each, _) in answers.items()} if is_asked else {}
        lines = [
            each
            for name, pointers in now.items()
            for each in known(name)
            if (there := pointers.get(each.table)) and there.metadata_location == each.metadata_location
        ]

        def is_moved(each: KnownTable) -> bool:
            keep = max(policy.dropped.keep for policy in resources.config.policies(each.table))
            return is_line_elsewhere(each, lines, stores, operations, rules, keep)

        return [each for each in missing if each.catalog not in now or not is_moved(each)], problems

    def saw(self, state: TableState) -> None:
        """Record a table before anything is done to it: if it is dropped or moves, its files are found by this."""
        operations, uuid = self.resources.unchecked_operations, state.metadata.table_uuid
        catalog = state.catalog or self.resources.config.catalogs.of(state.name).name
        names, rules = operations.known_tables.names(catalog, uuid), self.resources.rules(state.name)
        known, seen = names.get(state.name), _seen(state)
        if state.catalog is None and known is not None and not seen.follows(known):
            # Another step may have seen a commit since `state` was read.
            state = self.again(state)
            seen = _seen(state)
        if state.catalog is None and names and (known is None or known.missing_since or not seen.continues(known)):
            # Renamed, a second name, or another line under its name: all names together tell.
            live, stores = self.resources.catalogs.reader(catalog), self.resources.live_stores
            observe(live, stores, operations, catalog, self.resources.rules, complete=False)
        former = [] if known is None or state.catalog is not None else [known.metadata_location]
        at, locations = seen.metadata_location, own_locations(state.metadata, rules)
        is_same = known is None or seen.continues(known, alone=len(names) == 1)
        operations.table_locations.saw(uuid, locations, at, lost_since(former, at, seen.log or (), rules), left=is_same)
        operations.known_tables.saw(catalog, uuid, seen)

    def settle(self, state: TableState) -> None:
        """Prove the table's earlier commits through a REST catalog that are not proven yet, of which any may have
        happened since. Raises CommitStateUnknown for one that may have lost a ref: until then, no file is deleted. What
        cannot be proven of a plan that a person closed is not waited for."""
        rest, plans = self.resources.rest_of(state.name), self.resources.operations.plans

        def closed(attempt: RestCommit) -> str | None:
            plan = None if attempt.plan_id is None else plans.get(attempt.plan_id)
            return plan.closed_why or "closed" if plan is not None and plan.status is PlanStatus.CLOSED else None

        if rest is not None:
            rest.settle(state.name, state.metadata.table_uuid, closed)

    def table_uuid(self, table: str) -> str:
        """Return the uuid of the table, of any kind, that currently has the name. Raises NoSuchTable,
        UnreadableMetadata."""
        return self.any_state(table).metadata.table_uuid

    def worker(self, what: str) -> CommitLineage:
        """Return the lineage of a step's commits."""
        scheduled = self.resources.run_id is not None
        return CommitLineage(
            writer_id=f"artemis-lifecycle/{what}",
            writer_host=socket.gethostname(),
            commit_hash=commit_hash(),
            invocation_id=self.resources.run_id or uuid.uuid4().hex,
            trigger_type="schedule" if scheduled else "manual",
            operator=None if scheduled else self.resources.owner,
            dagster_run_id=self.resources.run_id,
            code_version=package_version() if scheduled else None,
        )

    @contextmanager
    def run(self, state: TableState, step: str, *, dry_run: bool = False, pausable: bool = True) -> Iterator[Step]:
        """Hold the table's lease and keep a record of the step during the work. A dry run takes no lease, because it
        changes nothing.

        A pause, or the end of the quiet window (if this object observes it), stops the work within seconds: at its next
        check, or by canceling its Spark jobs. Then raises Paused; finished work counts for the next run.

        First raises OtherDeployment if the catalog belongs to another deployment, or the operations database was
        restored to an earlier state; ClocksDisagree, for steps that may be paused: restores and holds need no clock.
        """
        ours = self.resources.require_deployment(state.name, record=not dry_run, destructive=step in _DESTRUCTIVE)
        progress = self.resources.progress(ours)
        progress.require()
        if not pausable:
            with self._leased(state, step, progress, dry_run=dry_run) as running:
                yield running
            return
        managed = self.resources.other(state.name) is None and self.resources.config.catalogs.of(state.name).managed
        self.resources.require_clocks(None if managed else state.metadata.location, cold=step in _COLD)
        tag = f"artemis-{uuid.uuid4().hex}"
        with self._watched(state, tag) as watch:
            if watch.why is not None:
                raise paused(state.name, watch.why)
            leased = self._leased(state, step, progress, dry_run=dry_run, watch=watch)
            with leased as running, self._tagged_jobs(tag):
                try:
                    yield running
                except LifecycleError:
                    raise
                except Exception as error:
                    if watch.why is None:
                        raise
                    # Its Spark jobs were canceled.
                    raise paused(state.name, watch.why) from error

    def _watched(self, state: TableState, tag: str) -> Watch:
        """Check every second whether work on the table must stop; then cancel the Spark jobs with that tag."""
        table_uuid, window = state.metadata.table_uuid, self.resources.config.policy(state.name).quiet_window

        def why() -> str | None:
            pause = self.resources.unchecked_operations.pauses.of_table(table_uuid, state.name)
            if pause is not None:
                return str(pause)
            if self.resources.in_quiet_window and not is_in_quiet_window(window, self.resources.operations.clock.now()):
                return f"the quiet window ({window.start} to {window.end} {window.timezone}) is over"
            return None

        def cancel() -> None:
            session = self.resources.started_spark()
            if session is not None:
                session.sparkContext.cancelJobsWithTag(tag)

        return Watch(why, cancel)

    @contextmanager
    def _tagged_jobs(self, tag: str) -> Iterator[None]:
        """Tag the Spark jobs of this thread, and of others that ask for Spark meanwhile."""
        try:
            with self.resources.calling_with_spark(lambda session: session.sparkContext.addJobTag(tag)):
                yield
        finally:
            session = self.resources.started_spark()
            if session is not None:
                session.sparkContext.removeJobTag(tag)

    @contextmanager
    def _leased(
        self, state: TableState, step: str, progress: Progress, *, dry_run: bool, watch: Watch | None = None
    ) -> Iterator[Step]:
        table, resources, operations = state.name, self.resources, self.resources.unchecked_operations
        resources.require_apart()
        # It stays where an interrupt ends the step, whose command says what that means.
        resources.under_way = f"{step} of {table}{' (dry run)' if dry_run else ''}"
        policy = resources.config.policy(table)
        lease: AbstractContextManager[Lease | None] = (
            nullcontext()
            if dry_run
            else operations.leases.hold(
                state.metadata.table_uuid,
                step=step,
                owner=resources.owner,
                table=table,
                run_id=resources.run_id,
                process=self._processes(),
            )
        )
        with lease as held:
            if held is not None:
                progress.reached()
                if step in _LOOKING and state.catalog is None:
                    # A reader that a deletion asks is a dropped table once it is dropped.
                    self.observe()
                if not state.is_dropped:
                    # The name may lead to another table by now.
                    state = self.again(state)
                    self.saw(state)
                    if step in _DELETING and state.catalog is None:
                        self.settle(state)
                # What this step trusts must outlive a backup of the database.
                progress.send()
            window_day = policy.quiet_window.day(resources.clock.now() if held is None else held.acquired_at)
            step_id = operations.steps.start(
                state.metadata.table_uuid,
                table,
                step,
                window_day=window_day,
                owner=resources.owner,
                run_id=resources.run_id,
                dry_run=dry_run,
                policy=policy.retention.digest,
            )

            def confirm() -> None:
                resources.require_apart()
                if watch is not None:
                    resources.require_clocks()

            running = Step(table, window_day, held, watch, confirm)
            # What recovers an archive is the way out itself.
            is_advised = resources.other(table) is None and not state.is_dropped and step != "recover_archive"
            try:
                with (
                    self.advised(table, state.metadata) if is_advised else nullcontext(),
                    java_errors(table, lambda: self.any_state(table).metadata.last_updated_ms),
                    self._named_driver(held),
                ):
                    yield running
            except BaseException as error:
                with _known(progress):
                    operations.steps.finish(step_id, state="failed", counts={}, error=str(error))
                raise
            with _known(progress):
                operations.steps.finish(step_id, state=running.state, counts=running.counts)
            resources.under_way = None

    def _processes(self) -> str | None:
        """Return the mark of the processes that work under the leases of this object: this process, and Spark's driver
        if it is started."""
        if self.resources.started_spark() is None:
            return mark([os.getpid()])
        driver = driver_pid()
        return None if driver is None else mark([os.getpid(), driver])

    @contextmanager
    def _named_driver(self, lease: Lease | None) -> Iterator[None]:
        """Add Spark's driver to the lease when it starts, before it works: it may outlive this process."""
        if lease is None or self.resources.started_spark() is not None:
            yield
            return
        with self.resources.calling_with_spark(lambda _: lease.worked_on_by(self._processes())):
            yield


@contextmanager
def _known(progress: Progress) -> Iterator[None]:
    """Raise OtherDeployment where the block's record is unknown because the database was put back meanwhile."""
    try:
        yield
    except NoSuchPlan:
        progress.require(recall=False)
        raise


def _seen(state: TableState) -> Seen:
    log = [entry.metadata_file for entry in state.metadata.metadata_log]
    return Seen(state.name, state.metadata.metadata_location, log)


@contextmanager
def noted_wait(resources: Resources, job: object) -> Iterator[None]:
    """Record in Postgres that a plan or scan waits for approval, if the block raises that.

    If the block succeeds, the job's rows are published at the close, even by a process that finds the job of a dead
    process done.
    """
    try:
        yield
    except ApprovalNeeded as needed:
        job_id = job if isinstance(job, str) else getattr(job, "plan_id", None) or getattr(job, "scan_id", None)
        resources.operations.waits.note(str(job_id), needed.table or "", needed.what)
        raise
    resources.operations.publications.asked = True


class Step:
    """What a step reports about itself. `check` raises LeaseLost if another worker took over the table, Paused, and
    what `confirm` raises."""

    def __init__(
        self, table: str, window_day: date, lease: Lease | None, watch: Watch | None, confirm: Callable[[], None] | None
    ) -> None:
        self.table = table
        self.window_day = window_day
        self.lease = lease
        self._watch = watch
        self._confirm = confirm
        self.state: Literal["done", "pending", "skipped"] = "done"
        self.counts: Mapping[str, int] = {}

    def pause(self) -> str | None:
        """Return why the work has to stop, if it has to."""
        return None if self._watch is None else self._watch.why

    def check(self) -> None:
        """Raise what currently forbids continuing."""
        if self.lease is not None:
            self.lease.check()
        why = self.pause()
        if why is not None:
            raise paused(self.table, why)
        if self._confirm is not None:
            self._confirm()
