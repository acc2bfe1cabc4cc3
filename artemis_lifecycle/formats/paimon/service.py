"""The tables of a Paimon warehouse: their state, plans and commits, in the form of all other tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from shlex import quote
from typing import Literal

import numpy as np
import pyarrow as pa

from artemis_lifecycle import escaping
from artemis_lifecycle.catalogs.identifier import CatalogEntry, parse
from artemis_lifecycle.config.deployment import OtherCatalog
from artemis_lifecycle.deletion.identities import first_look
from artemis_lifecycle.errors import BadInput, NoSuchTable, PlanStateError, StalePlan, StorageError, require_uuid
from artemis_lifecycle.expiration.commit import ExpirationCommit
from artemis_lifecycle.expiration.plan import (
    ExpirationPlan,
    PlanRequest,
    Wanted,
    load_plan,
    not_committable,
    read_beside,
    seal_plan,
)
from artemis_lifecycle.expiration.tags_and_holds import hold_views
from artemis_lifecycle.formats.paimon.commit import (
    PaimonState,
    Removal,
    files_of,
    removal_of,
    remove_documents,
    whole_table,
    without,
)
from artemis_lifecycle.formats.paimon.decision import PaimonDecision, changelog_of, decide_expiration
from artemis_lifecycle.formats.paimon.documents import MAIN, Document
from artemis_lifecycle.formats.paimon.options import (
    ExpireOptions,
    cleans_empty_folders,
    expire_options,
    expires_by_itself,
)
from artemis_lifecycle.formats.paimon.reached import PaimonFiles, Reader, deletable
from artemis_lifecycle.formats.paimon.table import Layout, PaimonTable, metadata_of, read_table, uuid_of
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.holds import Hold
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.plans import UNCOMMITTED, PlanRecord, PlanStatus
from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.protection.limits import Amount, require_approval
from artemis_lifecycle.reachability.walk import ReachableSet, reachable_set
from artemis_lifecycle.retention.rules import Decision
from artemis_lifecycle.retention.views import NO_KEEPERS
from artemis_lifecycle.session.contexts import context_of
from artemis_lifecycle.session.formats import Explanation, TableState
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.instants import if_in_calendar, milliseconds
from artemis_lifecycle.storage.location import hash_location, normalize
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.walk.expiration import commit_of, plan_counts
from artemis_lifecycle.walk.explaining import Explaining, require_path
from artemis_lifecycle.walk.plan_checks import PLAN_CHECKS, PlanChecks

_DATABASE = ".db"
_EXTERNAL = ("data-file.external-paths", "global-index.external-path")

_log = escaping.logger(__name__)

_NONE: Mapping[str, str] = {}


@dataclass(frozen=True)
class PaimonTables:
    """The tables of the warehouse of catalog `name`, as a file system catalog of Paimon lays them out: each in
    `<warehouse>/<database>.db/<table>`."""

    resources: Resources
    steps: Steps
    checks: PlanChecks
    explaining: Explaining
    name: str
    catalog: OtherCatalog

    @property
    def kind(self) -> Literal["paimon"]:
        return "paimon"

    @property
    def _stores(self) -> Stores:
        return self.resources.live_stores

    @property
    def _warehouse(self) -> str:
        assert self.catalog.warehouse is not None
        return self.catalog.warehouse.rstrip("/")

    def readers(self) -> None:
        """A table of Paimon reads only its own folder."""

    def close(self) -> None:
        """There is nothing to close."""

    # --- reading --------------------------------------------------------------------------------------------------

    def databases(self) -> list[str]:
        """Raises StorageError for a warehouse without any: it may not be mounted."""
        folders, _ = self._stores.children(self._warehouse)
        names = [folder.rstrip("/").rpartition("/")[2] for folder in folders]
        found = sorted(name.removesuffix(_DATABASE) for name in names if name.endswith(_DATABASE))
        if not found:
            raise StorageError(
                f"The warehouse of catalog {self.name} has no database",
                path=self._warehouse,
                hint=f"check catalogs.others.{self.name}.warehouse, and that its store is mounted",
            )
        return found

    def tables(self) -> list[str]:
        return [table for database in self.databases() for table in self.tables_of(database)]

    def tables_of(self, database: str) -> list[str]:
        """Return the names of a database's tables, sorted. Raises NoSuchTable if there is no such database."""
        places = self._folders(database)
        if not places and database not in self.databases():
            raise NoSuchTable(
                f"Catalog {self.name} has no database {database}",
                table=f"{self.name}:{database}.*",
                untouched="all files",
            )
        found = [place.rpartition("/")[2] for place in places if self._stores.children(f"{place}/schema")[1]]
        return [f"{self.name}:{database}.{table}" for table in sorted(found)]

    def _folders(self, database: str) -> list[str]:
        """Return every folder of a database, in which there may be a table: one listing."""
        place = f"{self._warehouse}/{database}{_DATABASE}"
        return [f"{place}/{folder.rstrip('/').rpartition('/')[2]}" for folder in self._stores.children(place)[0]]

    def location(self, table: str) -> str:
        """Return the folder of a table. Raises NoSuchTable for a name that no table can have."""
        identifier = parse(table.partition(":")[2])
        if len(identifier.namespace) != 1 or "/" in identifier.name:
            raise NoSuchTable("A Paimon table is named <catalog>:<database.table>", table=table)
        return f"{self._warehouse}/{identifier.namespace[0]}{_DATABASE}/{identifier.name}"

    def read(self, table: str) -> PaimonTable:
        """Read the table's documents. Raises NoSuchTable, UnreadableMetadata, Busy."""
        return read_table(self._stores, table, self.location(table))

    def state(self, table: str) -> TableState:
        read_at = self.resources.clock.now()
        return self.state_of(self.read(table), read_at)

    def state_of(self, table: PaimonTable, read_at: datetime) -> TableState:
        """Return a table that was read at `read_at`."""
        metadata = metadata_of(table)
        entry = CatalogEntry(self.name, parse(table.name.partition(":")[2]), metadata.metadata_location)
        return TableState(entry, metadata, read_at, catalog=self.name)

    def reader(self, table: str) -> Reader:
        return Reader(self._stores, self.resources.rules(table))

    def context(self, table: str) -> DeletionContext:
        resources, config = self.resources, self.resources.config
        now, reader = self.read(table), self.reader(table)
        options = now.main.schema.options
        external = [each.strip() for key in _EXTERNAL for each in options.get(key, "").split(",") if each.strip()]
        # Neither the other tiers nor other tables of the warehouse may lie in what this table owns.
        live = (each.root for each in config.catalogs.iceberg)
        tiers = (config.catalogs.cold.root, *live, config.quarantine.root)
        others = [place for each in self.databases() for place in self._folders(each) if place != now.location]
        return replace(
            context_of(resources, table),
            reserved=tuple(place.rstrip("/") for place in (*tiers, *others) if place is not None),
            roots=(self._warehouse, *self.catalog.roots),
            own=(now.location, *external),
            holds=lambda: self.holds(now),
            own_state=lambda _, deletion: PaimonState(reader, deletion, lambda: self.read(table)),
            layout=Layout.of(now),
            data_folder=now.folders(MAIN).data,
            removes_empty_folders=cleans_empty_folders(options),
        )

    # --- what stays -----------------------------------------------------------------------------------------------

    def holds(self, table: PaimonTable) -> tuple[Hold, ...]:
        """Return the active holds of a table, also those that it had before it was renamed: its uuid has its name."""
        operations = self.resources.operations
        every = operations.holds.active(None, operations.clock.now())
        return tuple(each for each in every if each.table_uuid in (table.table_uuid, uuid_of(each.table, table.main)))

    def options(
        self,
        table: PaimonTable,
        *,
        overrides: Mapping[str, str] = _NONE,
        retain_max: int | None = None,
        retain_min: int | None = None,
        older_than: datetime | None = None,
        max_deletes: int | None = None,
    ) -> ExpireOptions:
        """Return what decides an expiration: arguments, then `overrides` of the table's options, then these. Raises
        BadInput."""
        return expire_options(
            {**table.main.schema.options, **overrides},
            limit_source=self.catalog.expire.limit,
            next_timestamp=self.catalog.expire.next_timestamp,
            retain_max=retain_max,
            retain_min=retain_min,
            older_than=None if older_than is None else self.resources.instant("older_than", older_than),
            max_deletes=max_deletes,
        )

    def skip_if_idle(self, table: str) -> bool:
        now, instant = self.read(table), self.resources.clock.now()
        operations = self.resources.operations
        if operations.plans.uncommitted(now.table_uuid) is not None:
            return False
        decision = self._decide(now, self.options(now), instant)
        if decision.snapshots or decision.changelogs:
            return False
        policy = self.resources.config.policy(table)
        day, digest = policy.quiet_window.day(instant), policy.retention.digest
        operations.steps.skip(now.table_uuid, table, "plan", day, self.resources.owner, digest)
        return True

    def _decide(self, table: PaimonTable, options: ExpireOptions, instant: datetime) -> PaimonDecision:
        return decide_expiration(table.main, options, milliseconds(instant), hold_views(self.holds(table)))

    def reachable_set(self, table: str, now: datetime | None) -> ReachableSet:
        instant, reader = self.resources.instant("now", now), self.reader(table)
        found, _ = whole_table(reader, lambda: self.read(table))
        decision = self._decide(found, self.options(found), instant)
        gone = (*decision.snapshots, *decision.changelogs)
        files = files_of(reader, without(found, gone, map(changelog_of, decision.outlived)))
        rows = Runner(self.resources.start_spark).rows(_one_per_file(files))
        return reachable_set(table, files.metadata.metadata_location, tuple(decision.rule.kept), rows)

    def explain(self, table: str, path: str) -> Explanation:
        require_path(table, path)
        read_at = self.resources.clock.now()
        found, files = whole_table(self.reader(table), lambda: self.read(table))
        wanted = np.array([hash_location(normalize(path, files.reader.rules))], np.uint64)
        reaching = [each.document for each in files.found if replace(files, found=[each]).reaches(wanted)[0]]
        instant = if_in_calendar(min((document.committed_ms for document in reaching), default=None))
        titles = tuple(document.title for document in reaching)
        return self.explaining.explain_held(self.state_of(found, read_at), path, titles, instant)

    # --- plans ----------------------------------------------------------------------------------------------------

    def plan_expiration(self, table: str, wanted: Wanted) -> ExpirationPlan:
        if wanted.snapshot_ids:
            raise BadInput(
                "Snapshots of a Paimon table expire from the old end only, not by their ids",
                table=table,
                untouched="the table",
                hint="use older_than, or retain_last",
            )
        return self.plan(
            table,
            wanted.now,
            lambda found: self.options(found, retain_min=wanted.retain_last, older_than=wanted.older_than),
            asked=wanted.is_specific,
        )

    def plan(
        self,
        table: str,
        now: datetime | None,
        options_of: Callable[[PaimonTable], ExpireOptions],
        *,
        asked: bool,
        overrides: Mapping[str, str] = _NONE,
    ) -> ExpirationPlan:
        """Plan an expiration by options of the table, some of them overridden. `asked` means that the caller requests a
        specific plan.

        A plan whose commit has begun, and one that a person approved, is returned again as long as it fits the table.
        Raises BadInput for options, before anything is touched; UnreadableMetadata; PlanStateError.
        """
        instant, read_at = self.resources.instant("now", now), self.resources.clock.now()
        first = self.read(table)
        # Before the manifests are read, the options are checked.
        options_of(first)
        reader = self.reader(table)
        found, _ = whole_table(reader, lambda: self.read(table), first)
        options = options_of(found)
        with self.steps.run(self.state_of(found, read_at), "plan") as step:
            earlier = self._earlier(found, asked=asked)
            if isinstance(earlier, ExpirationPlan):
                step.counts = plan_counts(earlier)
                return earlier
            decision = self._decide(found, options, instant)
            removal = removal_of(
                found, MAIN, decision.snapshots, decision.changelogs, decision.outlived, decision.following
            )
            removal = replace(removal, first_changelog=decision.first_changelog, overrides=overrides)
            plan = self.seal(
                reader,
                found,
                PlanRequest(table, metadata_of(found), options.settings, instant, NO_KEEPERS),
                replace(decision.rule, expired_refs=()),
                removal,
                (*decision.snapshots, *decision.changelogs),
                decision.outlived,
                decision.following,
                stale=earlier,
            )
            step.counts = plan_counts(plan)
        return plan

    def seal(
        self,
        reader: Reader,
        table: PaimonTable,
        request: PlanRequest,
        decision: Decision,
        removal: Removal,
        gone: Sequence[Document],
        outlived: Sequence[Document] = (),
        following: Document | None = None,
        *,
        stale: str | None = None,
    ) -> ExpirationPlan:
        """Find the files that only `gone` reach, and seal the plan. `reader` has read the whole table, also what goes:
        a plan is made of a table that is complete."""
        resources = self.resources
        kept = files_of(reader, without(table, gone, map(changelog_of, outlived)))
        files = deletable(reader, table, gone, kept, following)
        warnings = _warnings(table)
        for warning in warnings:
            _log.warning("%s: %s", request.table, warning)
        plan = seal_plan(
            resources.start_spark,
            self._stores,
            resources.operations,
            request,
            decision,
            [files],
            root=resources.root,
            window_day=resources.config.policy(request.table).quiet_window.day(resources.clock.now()),
            stale=stale,
            warnings=warnings,
            beside=removal.to_json(),
        )
        record = resources.operations.plans.get(plan.plan_id)
        self.checks.check(plan, record, PLAN_CHECKS)
        if record.files:
            catalog = resources.config.catalogs.results
            resources.operations.publications.plan(catalog, plan.plan_id, record.planned_at)
        return plan

    def loaded(self, plan_id: str) -> ExpirationPlan:
        resources = self.resources
        return load_plan(resources.start_spark, self._stores, resources.operations, plan_id)

    def begun(self, table: str) -> ExpirationPlan | None:
        """Return the table's plan whose commit a killed call has begun, if it still fits the table."""
        found = self.read(table)
        record = self.resources.operations.plans.uncommitted(found.table_uuid)
        if record is None or record.swap_base_location is None:
            return None
        plan = self.loaded(record.plan_id)
        return plan if self._fits(found, plan) and _has_begun(found, self._removal(plan)) else None

    def _earlier(self, table: PaimonTable, *, asked: bool) -> ExpirationPlan | str | None:
        """Return the uncommitted plan if it has to go on; its id if a person approved it, but it no longer fits."""
        record = self.resources.operations.plans.uncommitted(table.table_uuid)
        if record is None:
            return None
        plan = self.loaded(record.plan_id)
        if not self._fits(table, plan):
            return record.plan_id if record.is_approved else None
        if record.swap_base_location is not None and _has_begun(table, self._removal(plan)):
            # Its worker died: what it removed is in no other plan.
            return plan
        if record.is_approved and asked:
            raise PlanStateError(
                f"Plan {plan.plan_id} is approved, and waits to be committed",
                table=table.name,
                untouched="the approved plan, the table and all files",
                hint=f"first commit it, artemis commit {plan.plan_id}, or close it, artemis close {plan.plan_id}",
            )
        return plan if record.is_approved else None

    def _fits(self, table: PaimonTable, plan: ExpirationPlan) -> bool:
        try:
            self._require_fit(table, plan, self._removal(plan))
        except StalePlan:
            return False
        return True

    def _removal(self, plan: ExpirationPlan) -> Removal:
        return Removal.from_json(read_beside(self._stores, plan))

    # --- commits --------------------------------------------------------------------------------------------------

    def commit_expiration(
        self, plan: ExpirationPlan, *, dry_run: bool, grace: timedelta | None = None
    ) -> ExpirationCommit:
        """Remove the plan's documents from the table. `grace` replaces that of the table's policy."""
        operations = self.resources.operations
        record = operations.plans.get(plan.plan_id)
        if record.status in (PlanStatus.COMMITTED, PlanStatus.DELETING, PlanStatus.DONE):
            return commit_of(record)
        if record.status not in UNCOMMITTED:
            raise not_committable(plan, record.status)
        self.checks.require(plan, record)
        policy, removal = self.resources.config.policy(plan.table), self._removal(plan)
        read_at = self.resources.clock.now()
        found = self.read(plan.table)
        self._require_approval(found, plan, record)
        if dry_run:
            self._require_fit(found, plan, removal)
            counts = _left(found, removal)
            return ExpirationCommit(plan.plan_id, metadata_of(found).metadata_location, 0, *counts, dry_run=True)
        with self.steps.run(self.state_of(found, read_at), "commit") as step:
            first_look(self._stores, plan.files_location)
            # Placing a hold and closing the plan take the same lock: neither comes between guard, removal and record.
            with table_lock(operations.engine, plan.table_uuid, table=plan.table) as lock:
                self.resources.require_deployment(plan.table)
                # Tags, consumers and snapshots as they are now, and not as they were at the plan.
                found = self.read(plan.table)
                self._require_fit(found, plan, removal)
                metadata = metadata_of(found)
                operations.plans.begin_swap(plan.plan_id, metadata.metadata_location, metadata.last_updated_ms)

                def check() -> None:
                    lock.check()
                    step.check()

                removed = remove_documents(self._stores, removal, plan.table, check)
                crash_points.reach("commit:swapped")
                step.check()
                attempts = 1 if removal.gone else 0
                record = operations.plans.mark(
                    plan.plan_id,
                    UNCOMMITTED,
                    PlanStatus.COMMITTED,
                    due_in=policy.deletion.grace if grace is None else grace,
                    committed_metadata_location=metadata.metadata_location,
                    attempts=attempts,
                )
            step.counts = {"snapshots_removed": removed.snapshots, "refs_removed": removed.tags, "attempts": attempts}
        return ExpirationCommit(
            plan.plan_id,
            metadata.metadata_location,
            attempts,
            removed.snapshots,
            removed.tags,
            committed_at=record.committed_at,
            due_at=record.due_at,
        )

    def _require_fit(self, table: PaimonTable, plan: ExpirationPlan, removal: Removal) -> None:
        """Raise StalePlan if the table now keeps what the plan removes: because of a consumer that went back, a hold,
        a rollback, or a tag that was made anew. A tag or a branch on an expired snapshot keeps its files, not the
        snapshot. Raises NoSuchTable if another table has the name."""
        require_uuid(plan.table, table.table_uuid, plan.table_uuid)
        branch = table.branches[removal.branch]
        texts = {each.path: each.text for each in branch.documents}
        other = [each for each in removal.gone if each.path in texts and texts[each.path] != each.text]
        if other:
            raise _stale(plan, f"{other[0].role} {other[0].name or other[0].number} is another one now")
        left = [each for each in removal.gone if each.path in texts and each.role != "tag"]
        if not left:
            return
        snapshots = {each.number for each in left if each.role == "snapshot"}
        if snapshots and not any(each.snapshot_id >= (removal.following or 0) for each in branch.snapshots):
            raise _stale(plan, f"snapshot {removal.following}, the first that would stay, is gone")
        # The limit counts from the oldest snapshot at the plan, some of which may be gone.
        options = self.options(table, overrides=removal.overrides)
        options = replace(options, settings=replace(plan.settings, expire_limit=None))
        decision = self._decide(table, options, plan.decided_at)
        kept = snapshots - {each.snapshot_id for each in decision.snapshots}
        if kept:
            reasons = "; ".join(map(str, decision.rule.kept[min(kept)]))
            raise _stale(plan, f"snapshot {min(kept)}: {reasons}")
        outlive = {each.snapshot_id for each in decision.outlived}
        lost = {each.number for each in left if each.role == "snapshot" and each.changelog is None} & outlive
        lost |= {each.number for each in left if each.role == "changelog"} - {
            each.snapshot_id for each in decision.changelogs
        }
        if lost:
            raise _stale(plan, f"changelog {min(lost)}, which the table's options or a consumer keep")

    def _require_approval(self, table: PaimonTable, plan: ExpirationPlan, record: PlanRecord) -> None:
        limits, files = self.resources.config.policy(plan.table).deletion, plan.summary.files
        in_table = None
        if limits.max_share_of_table is not None and files and record.approved_by is None:
            in_table = len(files_of(self.reader(plan.table), table).hashes)
        amount = Amount(files, plan.summary.size_in_bytes, in_table)
        require_approval(plan.plan_id, plan.table, limits, amount, approved_by=record.approved_by)


def _has_begun(table: PaimonTable, removal: Removal) -> bool:
    there = {each.path for each in table.documents}
    return any(each.path not in there for each in removal.gone)


def _left(table: PaimonTable, removal: Removal) -> tuple[int, int]:
    """Return how many snapshots and tags are still there to remove."""
    there = {each.path for each in table.documents}
    left = [each.role for each in removal.gone if each.path in there]
    return left.count("snapshot"), left.count("tag")


def _warnings(table: PaimonTable) -> tuple[str, ...]:
    options = table.main.schema.options
    if not expires_by_itself(options):
        return ()
    kept = options.get("snapshot.num-retained.min", "10"), options.get("snapshot.time-retained", "1 h")
    return (
        f"the table's writers expire snapshots by themselves at each commit, beyond {kept[0]} snapshots and {kept[1]}: "
        "set write-only=true on the table, or a longer snapshot.num-retained.min and snapshot.time-retained, so that "
        "only one of the two expires",
    )


def _one_per_file(files: PaimonFiles) -> pa.Table:
    found: dict[int, tuple[str, str, int]] = {}
    for kind, paths, hashes, sizes in files.rows():
        for path, key, size in zip(paths.to_pylist(), hashes.tolist(), sizes.tolist(), strict=True):
            found.setdefault(key, (path, kind, size))
    columns = list(zip(*found.values(), strict=True)) or [(), (), ()]
    types = (pa.string(), pa.string(), pa.int64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, names=["path", "kind", "size_in_bytes"])


def _stale(plan: ExpirationPlan, why: str) -> StalePlan:
    return StalePlan(
        f"Plan {plan.plan_id} would remove what the table now keeps: {why}",
        table=plan.table,
        path=plan.base_metadata_location,
        untouched="the table's snapshots and tags, and all files",
        hint=f"plan again: artemis plan {quote(plan.table)}",
    )
