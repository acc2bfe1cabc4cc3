"""What the steps share: one look at a table, the time, the policy's settings, and the lease, the record and the pauses
around the work. Does not belong here: anything that is one step's own.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from importlib.metadata import version
from shlex import quote
from typing import Literal

from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.catalogs.results import NAMESPACE
from artemis_lifecycle.cold_tier.cold_side import ColdSide
from artemis_lifecycle.cold_tier.cold_tables import ColdTables
from artemis_lifecycle.cold_tier.paths import no_cold_table, read_identity
from artemis_lifecycle.cold_tier.verify import cold_index
from artemis_lifecycle.errors import BadInput, LifecycleError, NaiveDatetime, NoSuchSnapshot, Paused
from artemis_lifecycle.expiration.plan import load_plan, unarchived
from artemis_lifecycle.expiration.promises import hold_views, tag_views, thinning_tiers
from artemis_lifecycle.lifecycle.opened import Opened
from artemis_lifecycle.maintenance.actions import Worker
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import CatalogEntry, TableMetadata
from artemis_lifecycle.operations.known_tables import Seen
from artemis_lifecycle.operations.leases import Lease
from artemis_lifecycle.operations.pauses import Watch
from artemis_lifecycle.operations.processes import mark
from artemis_lifecycle.orphans.listing import Listing, list_table
from artemis_lifecycle.protection.absence import Absence
from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.protection.identity import Folders
from artemis_lifecycle.protection.limits import in_quiet_window as is_in_quiet_window
from artemis_lifecycle.protection.ownership import former_locations, is_root, own_locations, spelled_locations
from artemis_lifecycle.reachability.index import IndexSettings, IndexView
from artemis_lifecycle.reachability.reached import ReachedFolders
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.retention.rules import HoldView, RetentionSettings, TagView
from artemis_lifecycle.spark.java_errors import java_errors
from artemis_lifecycle.spark.session import driver_pid
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle.storage.location import LocationRules, is_under, normalise

_COLD = frozenset({"cold_scan", "deep_archive"})
"""Steps that judge files of the cold warehouse by age."""


@dataclass(frozen=True)
class Look:
    """One look at a table: its catalog row and the metadata file that the row named."""

    entry: CatalogEntry
    metadata: TableMetadata
    read_at: datetime
    is_dropped: bool = False

    @property
    def name(self) -> str:
        return self.entry.identifier


class Base(Opened):
    """The tools of every step."""

    def tables(self) -> list[str]:
        """Identifiers (`namespace.table`) of the live catalog's tables, without the project's own result tables."""
        return [name for name in self._live.tables() if parse(name).namespace[0] != NAMESPACE]

    def _look(self, table: str) -> Look:
        # The instant before the reading: metadata counts as newer than a listing only when all of it is.
        read_at = self._operations.clock.now()
        entry = self._live.entry(table)
        return Look(entry, read_table_metadata(self.live_stores, entry.metadata_location), read_at)

    def _locations(self, look: Look, location: str | None) -> list[str]:
        """The folders to list: the table's locations, or `location`, which may be a former one, or a folder in any."""
        metadata, rules = look.metadata, self.rules(look.name)
        spelled = spelled_locations(metadata)
        had = (
            *self.operations.table_locations.of_table(metadata.table_uuid),
            *former_locations(self.live_stores, metadata, rules),
        )
        now = {normalise(own, rules) for own in spelled}
        former = [each for each in dict.fromkeys(had) if each not in now]
        if location is None:
            # Where no scan may collect there is nothing to find.
            return _each_once([*spelled, *(each for each in former if self._may_collect(each, rules))], rules)
        if not is_root(normalise(location, rules)):
            location = location.rstrip("/")
        own = [*spelled, *former]
        if not any(
            normalise(location, rules) == normalise(each, rules) or is_under(location, each, rules) for each in own
        ):
            raise BadInput(
                f"{location} is not one of the table's locations, nor a folder in one ({', '.join(own)})",
                table=look.name,
                untouched="all files",
                hint="name one of them, or a folder in it",
            )
        return [location]

    def _may_collect(self, location: str, rules: LocationRules) -> bool:
        live = self.config.catalogs.live
        folders = Folders(rules)
        return any(folders.overlap(location, root) for root in (live.warehouse, *live.roots) if root is not None)

    def _listed(self, look: Look, location: str | None, step: Step) -> Listing:
        """A sealed listing of the table's locations, or of `location` in them."""
        listing = list_table(
            self.spark,
            self.live_stores,
            self._locations(look, location),
            root=self.root,
            clock=self.operations.clock.now,
            rules=self.rules(look.name),
            check=step.check,
        )
        self.operations.scans.store_listing(listing.record(look.metadata.table_uuid, look.name))
        return listing

    def _deletion_context(self, table: str, dropped: Absence | None = None) -> DeletionContext:
        live, policy = self.config.catalogs.live, self.config.policy(table)
        # No table of the live catalog owns the roots of the other tiers, whatever its metadata says.
        tiers = (self.config.catalogs.cold.warehouse, self.config.quarantine.root)
        return DeletionContext(
            spark=self.spark,
            stores=self.live_stores,
            operations=self.operations,
            catalog=self._around,
            confirm=self.confirm,
            catalog_name=live.name,
            table=table,
            root=self.root,
            rules=self.rules(table),
            rules_of=self.rules,
            reserved=tuple(tier.rstrip("/") for tier in tiers if tier is not None),
            roots=tuple(root for root in (live.warehouse, *live.roots) if root is not None),
            hidden=policy.orphans.hidden,
            isolated=live.is_isolated,
            archived=self._archived,
            overtaken=lambda plan, metadata: unarchived(
                self.live_stores,
                load_plan(self.spark, self.live_stores, self.operations, plan.plan_id),
                metadata,
            ),
            dropped=dropped,
        )

    def _cold_side(self, table: str, table_uuid: str) -> tuple[ColdSide, DeletionContext]:
        """The cold tables of a live table, and what files of theirs are judged with. Raises NoSuchTable before the
        first handoff."""
        identity = read_identity(self.live_stores, self.root, table_uuid)
        if identity is None:
            raise no_cold_table(table)
        side = ColdSide(
            table,
            identity,
            self._cold,
            lambda: ColdTables.open(self._cold, self.cold_stores, self.live_stores, self.root, table_uuid),
            lambda metadata: self._cold_index(table, metadata),
        )
        side.current()
        others = (self.config.catalogs.live.warehouse, self.config.quarantine.root)
        return side, DeletionContext(
            spark=self.spark,
            stores=self.cold_stores,
            root_stores=self.live_stores,
            operations=self.operations,
            catalog=side,
            confirm=self.confirm,
            catalog_name=self._cold.name,
            table=identity.cold_table,
            # The tables around these have indexes of their own: as one with their closed tables they have others.
            root=f"{self.root}/cold/others",
            rules=self.rules(table),
            rules_of=self.rules,
            reserved=tuple(tier.rstrip("/") for tier in others if tier is not None),
            hidden="scan",
            own=(identity.cold_location,),
            cold=side,
        )

    def _archived(self, table_uuid: str) -> frozenset[int]:
        tables = ColdTables.open(self._cold, self.cold_stores, self.live_stores, self.root, table_uuid)
        return frozenset() if tables is None else frozenset(each.snapshot_id for each in tables.whole().snapshots)

    def _reached_folders(self) -> ReachedFolders:
        return ReachedFolders(self.spark, self.live_stores, self.root, self.rules)

    def _index(self, table: str, metadata: TableMetadata) -> IndexView:
        settings = IndexSettings.from_config(self.config, table)
        return indexed(self.spark, self.live_stores, metadata, self.rules(table), self.root, settings)

    def _cold_index(self, table: str, cold: TableMetadata) -> IndexView:
        return cold_index(self.spark, self.cold_stores, self.live_stores, cold, self.rules(table), self.root)

    def _instant(self, name: str, given: datetime | None) -> datetime:
        """`given`, or Postgres' time, in UTC and whole milliseconds, as Iceberg counts them."""
        instant = self._operations.clock.now() if given is None else given
        if instant.tzinfo is None or instant.utcoffset() is None:
            raise NaiveDatetime(f"{name}={given!r} has no time zone", hint="pass a datetime with tzinfo, e.g. UTC")
        return instant.astimezone(UTC).replace(microsecond=instant.microsecond // 1000 * 1000)

    def _settings(
        self,
        table: str,
        now: datetime,
        older_than: datetime | None = None,
        retain_last: int | None = None,
        snapshot_ids: Sequence[int] | None = None,
    ) -> RetentionSettings:
        retention = self.config.policy(table).retention
        return RetentionSettings(
            rule=retention.rule,
            window_ms=retention.window // timedelta(milliseconds=1),
            min_snapshots=retention.min_snapshots,
            max_snapshots=retention.max_snapshots,
            expire_limit=retention.expire_limit,
            next_timestamp=retention.next_timestamp,
            thinning=thinning_tiers(retention.thin),
            older_than_ms=None if older_than is None else milliseconds(self._instant("older_than", older_than)),
            retain_last=retain_last,
            explicit_ids=tuple(snapshot_ids or ()),
            explicit_window=self.config.explicit_window(table) is not None,
        )

    def _guards(self, table_uuid: str) -> tuple[tuple[HoldView, ...], tuple[TagView, ...]]:
        holds = self.operations.holds.active(table_uuid, self.operations.clock.now())
        return hold_views(holds), tag_views(self.operations.tags.of_table(table_uuid))

    def _worker(self, what: str) -> Worker:
        return Worker(
            writer_id=f"artemis-lifecycle/{what}",
            invocation_id=self.run_id or uuid.uuid4().hex,
            commit_hash=os.environ.get("ARTEMIS_COMMIT_HASH") or f"artemis-lifecycle {version('artemis-lifecycle')}",
            trigger_type="schedule" if self.run_id else "manual",
            operator=None if self.run_id else self.owner,
        )

    @contextmanager
    def _step(self, look: Look, step: str, *, dry_run: bool = False, pausable: bool = True) -> Iterator[Step]:
        """The table's lease and a record of the step around the work; a dry run takes no lease: it changes nothing.

        A pause, or the end of the quiet window where this object keeps to it, stops the work within seconds: at its
        next check, or by cancelling its Spark jobs. Raises Paused then; whatever was finished counts for the next run.

        Raises OtherDeployment before all else when the catalog is another deployment's, or the operations
        database was put back in time; ClocksDisagree, for steps that
        may be paused: what brings back or keeps needs no clock.
        """
        self.require_deployment()
        self._progress.require()
        if not pausable:
            with self._leased(look, step, dry_run=dry_run) as state:
                yield state
            return
        self.require_clocks(look.metadata.location, cold=step in _COLD)
        tag = f"artemis-{uuid.uuid4().hex}"
        with self._watched(look, tag) as watch:
            if watch.why is not None:
                raise paused(look.name, watch.why)
            with self._leased(look, step, dry_run=dry_run, watch=watch) as state, self._tagged_jobs(tag):
                try:
                    yield state
                except LifecycleError:
                    raise
                except Exception as error:
                    if watch.why is None:
                        raise
                    # Its Spark jobs were cancelled under it.
                    raise paused(look.name, watch.why) from error

    def _watched(self, look: Look, tag: str) -> Watch:
        """A look each second at what stops work on the table; Spark jobs with that tag are cancelled then."""
        table_uuid, window = look.metadata.table_uuid, self.config.policy(look.name).quiet_window

        def why() -> str | None:
            pause = self._operations.pauses.of_table(table_uuid)
            if pause is not None:
                return str(pause)
            if self.in_quiet_window and not is_in_quiet_window(window, self.operations.clock.now()):
                return f"the quiet window ({window.start} to {window.end} {window.timezone}) is over"
            return None

        def cancel() -> None:
            session = self._started_spark()
            if session is not None:
                session.sparkContext.cancelJobsWithTag(tag)

        return Watch(why, cancel)

    @contextmanager
    def _tagged_jobs(self, tag: str) -> Iterator[None]:
        """Tag this thread's Spark jobs. Inside the lease, which names Spark's driver and so has started it."""
        session = self._started_spark()
        if session is None:
            yield
            return
        session.sparkContext.addJobTag(tag)
        try:
            yield
        finally:
            session.sparkContext.removeJobTag(tag)

    @contextmanager
    def _leased(self, look: Look, step: str, *, dry_run: bool, watch: Watch | None = None) -> Iterator[Step]:
        table = look.name
        self.require_apart()
        if not dry_run:
            self._operations.leases.require_free(look.metadata.table_uuid)
        night = self.config.policy(table).quiet_window.night(self._operations.clock.now())
        lease: AbstractContextManager[Lease | None] = (
            nullcontext()
            if dry_run
            else self._operations.leases.hold(
                look.metadata.table_uuid,
                step=step,
                owner=self.owner,
                table=table,
                run_id=self.run_id,
                process=self._processes(),
            )
        )
        if not dry_run and not look.is_dropped:
            # Should it be dropped, its files are found by this.
            self._operations.known_tables.saw(
                self._live.name, look.metadata.table_uuid, Seen(table, look.metadata.metadata_location)
            )
            # Should it move, its files at this place stay its own.
            self._operations.table_locations.saw(
                look.metadata.table_uuid,
                own_locations(look.metadata, self.rules(table)),
                look.metadata.metadata_location,
            )
        with lease as held:
            if held is not None:
                self._progress.reached(held.token)
            step_id = self._operations.steps.start(
                look.metadata.table_uuid,
                table,
                step,
                night=night,
                owner=self.owner,
                run_id=self.run_id,
                dry_run=dry_run,
            )

            def confirm() -> None:
                self.require_apart()
                if watch is not None:
                    self.require_clocks()

            state = Step(table, night, held, watch, confirm)
            try:
                with java_errors(table):
                    yield state
            except BaseException as error:
                self._operations.steps.finish(step_id, state="failed", counts={}, error=str(error))
                raise
            self._operations.steps.finish(step_id, state=state.state, counts=state.counts)

    def _processes(self) -> str | None:
        """The mark of what works under our leases: this process, and Spark's driver, which is started for it."""
        driver = driver_pid() if self.spark is not None else None
        return None if driver is None else mark([os.getpid(), driver])


class Step:
    """What a step reports of itself. `check` raises LeaseLost when another worker took the table over, Paused, and what
    `confirm` raises."""

    def __init__(
        self,
        table: str,
        night: date,
        lease: Lease | None,
        watch: Watch | None,
        confirm: Callable[[], None] | None,
    ) -> None:
        self.table = table
        self.night = night
        self.lease = lease
        self._watch = watch
        self._confirm = confirm
        self.state: Literal["done", "pending", "skipped"] = "done"
        self.counts: Mapping[str, int] = {}

    def pause(self) -> str | None:
        """Why the work has to stop, if it has to."""
        return None if self._watch is None else self._watch.why

    def check(self) -> None:
        if self.lease is not None:
            self.lease.check()
        why = self.pause()
        if why is not None:
            raise paused(self.table, why)
        if self._confirm is not None:
            self._confirm()


def _each_once(locations: Sequence[str], rules: LocationRules) -> list[str]:
    """Without those that are another one, or in it, under a second name: a file is listed once."""
    folders = Folders(rules)
    found: list[str] = []
    for each in locations:
        if not any(folders.is_in(each, other) for other in found):
            found = [*(other for other in found if not folders.is_in(other, each)), each]
    return found


def paused(table: str, why: str) -> Paused:
    return Paused(
        f"The work stopped: {why}",
        table=table,
        untouched="what was not finished before; it is gone on with by the next run",
        hint="let it go on with artemis resume, or wait for the next night",
    )


def no_such_snapshot(table: str, snapshot_id: int, untouched: str) -> NoSuchSnapshot:
    return NoSuchSnapshot(
        f"The live table has no snapshot {snapshot_id}",
        table=table,
        untouched=untouched,
        hint=f"artemis history {quote(table)} lists the snapshots that it has",
    )
