"""Maintenance: schemas, compaction, and what a table costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING

import pyarrow as pa

from artemis_lifecycle.audit.ledger import unrecorded
from artemis_lifecycle.audit.past import curve as curve_of
from artemis_lifecycle.audit.recording import Recording
from artemis_lifecycle.audit.schema_history import SchemaHistory
from artemis_lifecycle.audit.schema_history import schema_history as schemas_of
from artemis_lifecycle.cold_tier.deep_archive import archived_files
from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.commits.actions import compute_statistics, why_statistics
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import QuietWindow, window_of
from artemis_lifecycle.expiration.curve import RetentionCurve
from artemis_lifecycle.metadata.table_metadata import refuse_encrypted
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.fleet import HealthRecord, HeldBytes, last_done_of
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle.operations.roles import where_allowed
from artemis_lifecycle.operations.scans import ScanState
from artemis_lifecycle.planning.advice import Targets
from artemis_lifecycle.planning.plan import Query, QueryPlan
from artemis_lifecycle.planning.plan import plan_query as planned
from artemis_lifecycle.planning.predicates import text_of
from artemis_lifecycle.planning.pruning import Filter
from artemis_lifecycle.reachability.index.lookups import written_by_snapshot
from artemis_lifecycle.retention.rules import decide
from artemis_lifecycle.retention.views import view_of
from artemis_lifecycle.session.contexts import (
    cold_index,
    cold_metadata,
    keepers,
    live_index,
    present_index,
    retention_settings,
)
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps, TableState
from artemis_lifecycle.spark.java_errors import java_errors
from artemis_lifecycle.storage.instants import in_calendar, milliseconds
from artemis_lifecycle.upkeep.compaction import (
    CompactedDataFiles,
    CompactionPace,
    RankedPartition,
    compacted_data_files,
    ranked,
    why_compact,
)
from artemis_lifecycle.upkeep.costs import (
    ColdHoldings,
    CommitCosts,
    StorageClasses,
    TableCosts,
    commit_costs,
    table_costs,
)
from artemis_lifecycle.upkeep.health import (
    MIN_INPUT_FILES,
    Fitness,
    TableHealth,
    of_record,
    partitions_with_work,
    record_of,
    small_file_size,
    target_file_size,
    target_manifest_size,
)
from artemis_lifecycle.upkeep.health import table_health as health_of
from artemis_lifecycle.upkeep.manifests import CompactedManifests, compacted_manifests
from artemis_lifecycle.upkeep.score import HealthHistory, Rates, StepAge, Upkeep, scored
from artemis_lifecycle.walk.expiration import removed_parts

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

# --- health -----------------------------------------------------------------------------------------------------------
# Measures and scores the health of tables, and keeps their scores.

STANDARD = "STANDARD"
"""The default storage class of S3."""

SCORED_EVERY = timedelta(hours=12)
"""Checks of a table that does not change record its score so often, or when it has moved by a point: steps grow old,
and snapshots expire."""

_NEXT = {PlanStatus.OPEN: "hand-off", PlanStatus.HANDED_OFF: "commit"}
"""The command that a plan waits for; all others wait for `delete`."""


@dataclass(frozen=True)
class Measuring:
    """Measures a table's current snapshot once per metadata file; scores it by what is known now."""

    resources: Resources
    steps: Steps
    recording: Recording

    def table_health(self, table: str) -> TableHealth:
        """Return `health`, but read all manifests again."""
        return self.measured(self.steps.table_state(table))

    def health(self, table: str) -> TableHealth:
        """Return the table's score, 0 to 100, with its parts: what each costs, and what to do next. Figures that were
        recorded of the same metadata file are not measured again; then this reads the metadata file and Postgres, and
        starts no Spark. Records the score. Raises NoSuchTable, UnreadableMetadata."""
        state = self.steps.table_state(table)
        record = self._record(state)
        return self.measured(state) if record is None else self._noted(state, *_figures(record, state))

    def measured(self, state: TableState) -> TableHealth:
        """Read the manifests, score what they have, and record both."""
        resources = self.resources
        # Iceberg reads a manifest that was cut between two blocks as a shorter one, and a rewrite would drop the rest.
        present_index(resources, state.name, state.metadata)
        with java_errors(state.name):
            found = health_of(resources.start_spark, resources.live_stores, state.name, state.metadata, state.read_at)
        return self._noted(state, found, state.read_at)

    def known(self, state: TableState) -> TableHealth:
        """Return the recorded figures if the table's metadata file is still the same, else measure; with the score of
        now, which is recorded from time to time."""
        record = self._record(state)
        if record is None:
            return self.measured(state)
        figures, measured_at = _figures(record, state)
        found = self._scored(state, figures)
        if state.read_at - record.scored_at > SCORED_EVERY or abs((found.score or 0) - record.score) >= 1:
            self._note(state, found, measured_at)
        return found

    def history(self, table: str) -> HealthHistory:
        """Return the table's recorded scores, oldest first. Raises NoSuchTable."""
        return HealthHistory(table, self.resources.operations.health.history(self.steps.table_uuid(table)))

    def _record(self, state: TableState) -> HealthRecord | None:
        """Return what was measured of the table's metadata file; None if nothing was."""
        record = self.resources.operations.health.of_table(state.metadata.table_uuid)
        same = record is not None and record.metadata_location == state.metadata.metadata_location
        return record if same else None

    def _noted(self, state: TableState, health: TableHealth, measured_at: datetime) -> TableHealth:
        found = self._scored(state, health)
        self._note(state, found, measured_at)
        return found

    def _note(self, state: TableState, found: TableHealth, measured_at: datetime) -> None:
        record = record_of(found, state.metadata.table_uuid, measured_at, state.read_at)
        with where_allowed():
            self.resources.operations.health.note(record, {part.name: part.score for part in found.parts})

    def _scored(self, state: TableState, health: TableHealth) -> TableHealth:
        config = self.resources.config
        rates = Rates(config.prices, config.catalogs.of(state.name).storage_class or STANDARD)
        return scored(health, self._upkeep(state), config.policy(state.name), rates)

    def _upkeep(self, state: TableState) -> Upkeep:
        resources, metadata, now = self.resources, state.metadata, state.read_at
        policy = resources.config.policy(state.name)
        late, window = self._unrecorded(metadata, now - policy.checks.metadata_age), policy.retention.window
        at_risk = sum(min(1.0, (now - each) / window) if window else 1.0 for each in late)
        expirable = self._expirable(state, now - policy.checks.overdue_after)
        scans = resources.operations.scans.of_table(metadata.table_uuid)
        newest = scans[0] if scans else None
        left = newest is not None and newest.state is not ScanState.DONE
        return Upkeep(
            expirable_snapshots=len(expirable),
            expirable_bytes=sum(
                each.summary.count("removed-files-size") or 0
                for each in metadata.snapshots
                if each.parent_snapshot_id in expirable
            ),
            orphan_bytes=None if newest is None else newest.bytes if left else 0,
            orphan_command="" if newest is None else f"artemis delete-orphans {newest.scan_id}",
            unrecorded_snapshots=len(late),
            lineage_at_risk=at_risk / len(metadata.snapshots) if late else 0.0,
            steps=self._steps(state),
        )

    def _expirable(self, state: TableState, now: datetime) -> frozenset[int]:
        """The snapshots that the table's policy let go at `now`."""
        known = keepers(self.resources, state.name, state.metadata.table_uuid)
        settings = retention_settings(self.resources, state.name)
        return frozenset(decide(view_of(state.metadata), settings, milliseconds(now), **known).expired)

    def _unrecorded(self, metadata: TableMetadata, before: datetime) -> list[datetime]:
        """When the snapshots were committed that the ledger lacks, those before an instant."""
        progress = self.resources.operations.ledger_progress.of_table(metadata.table_uuid)
        found = unrecorded(metadata, progress, lambda: self.recording.recorded_ids(metadata.table_uuid))
        times = (in_calendar(each.timestamp_ms) for each in found)
        return [each for each in times if each < before]

    def _steps(self, state: TableState) -> tuple[StepAge, ...]:
        """A table that a step never ran for is as late as it is old."""
        operations, policy, now = self.resources.operations, self.resources.config.policy(state.name), state.read_at
        began = min((each.timestamp_ms for each in state.metadata.snapshots), default=None)
        age = timedelta(0) if began is None else now - in_calendar(began)
        done = last_done_of(operations.engine, state.name)

        def last(step: str, name: str, allowed: timedelta, command: str) -> StepAge:
            if step in done:
                return StepAge(f"since the last {name}", now - done[step], allowed, command)
            return StepAge(f"without any {name}", age, allowed, command)

        table = quote(state.name)
        plans = operations.plans.holding(state.metadata.table_uuid)
        oldest = min(plans, key=lambda plan: plan.planned_at, default=None)
        return (
            last("plan", "plan", policy.checks.overdue_after, f"artemis plan {table}"),
            last("orphan_scan", "orphan scan", policy.checks.listing_age, f"artemis scan-orphans {table}"),
            *(
                ()
                if oldest is None
                else (
                    StepAge(
                        "since the oldest open plan",
                        now - oldest.planned_at,
                        policy.checks.plan_age + policy.deletion.grace,
                        f"artemis {_NEXT.get(oldest.status, 'delete')} {oldest.plan_id}",
                    ),
                )
            ),
        )


def _figures(record: HealthRecord, state: TableState) -> tuple[TableHealth, datetime]:
    """The recorded figures of the table, and when they were measured."""
    return of_record(record, state.name, state.metadata, state.read_at), record.measured_at


def window_opening(quiet: QuietWindow, now: Callable[[], datetime]) -> Callable[[], str | None]:
    """Return what says why to stop once the quiet window opens. Work that began inside goes on."""
    began = now()
    if window_of(began, quiet).excludes(began):
        return lambda: None

    def opened() -> str | None:
        at = now()
        if not window_of(at, quiet).excludes(at):
            return None
        return f"the quiet window ({quiet.start} to {quiet.end} {quiet.timezone}) opened"

    return opened


def storage_classes(config: LifecycleConfig, table: str) -> StorageClasses:
    """Return what each tier's files of a table are stored as."""
    return StorageClasses(
        live=config.catalogs.of(table).storage_class or STANDARD,
        cold=config.catalogs.cold.storage_class or STANDARD,
        deep=config.deep_archive.storage_class,
    )


@dataclass(frozen=True)
class Maintenance:
    """Compacts tables, and reports schemas and costs."""

    resources: Resources
    steps: Steps
    recording: Recording
    measuring: Measuring

    def schema_history(self, table: str) -> SchemaHistory:
        """Return the schemas that the table has had, what each changed, and which snapshots used it; including expired
        ones if the ledger has them (`record_lineage`)."""
        metadata = self.steps.table_state(table).metadata
        removed = removed_parts(self.resources, metadata.table_uuid).schemas
        return schemas_of(table, metadata, self.recording.schema_uses(metadata.table_uuid), removed)

    def plan_query(self, table: str, query: Query) -> QueryPlan:
        metadata, resources = self.steps.table_state(table).metadata, self.resources
        refuse_encrypted(metadata, table)
        targets = Targets(
            target_file_size(metadata), target_manifest_size(metadata), small_file_size(metadata), MIN_INPUT_FILES
        )
        return planned(resources.live_stores, table, metadata, query, targets, resources.start_spark)

    def compact_data_files(
        self, table: str, *, where: str | BooleanExpression | None = None, dry_run: bool = False
    ) -> CompactedDataFiles:
        """Rewrite small data files within the bandwidth budget, if the table's health requires it.

        `where`, a row filter as of `plan_query`, asks for the partitions that may have matching rows, and only these:
        whatever the whole table's health. Raises BadInput for one that cannot be used."""
        resources, state = self.resources, self.steps.table_state(table)
        metadata = state.metadata
        asked = None if where is None else Filter.of(where, table, metadata, metadata.current_schema_id)
        policy, name = resources.config.policy(table), resources.config.catalogs.of(table).name
        with self.steps.run(state, "compaction", dry_run=dry_run) as step:
            health = self.measuring.measured(state)
            ranking: tuple[RankedPartition, ...] = ()
            if asked is not None or why_compact(health, policy.compaction) is not None:
                work = partitions_with_work(resources.start_spark, resources.live_stores, metadata)
                if asked is not None:
                    work = work.filter(pa.array(map(asked.may_match, work.column("partition").to_pylist()), pa.bool_()))
                ranking = ranked(work, policy.compaction, partial(self._seconds, table))
            pace = CompactionPace(
                policy.budgets.compaction_bandwidth_share,
                resources.config.defaults.budgets.object_store_bytes_per_second,
                resources.operations.engine,
                step.check,
            )
            stop = window_opening(policy.quiet_window, resources.operations.clock.now)
            done = compacted_data_files(
                resources.start_spark,
                name,
                table,
                health,
                self.steps.worker("compaction"),
                ranking,
                policy.compaction,
                pace=pace,
                stop=stop,
                asked=None if asked is None else f"asked for where {text_of(asked.residual)}",
                dry_run=dry_run,
            )
            why = why_statistics(health.unanalyzed_records, health.records, policy.compaction)
            if why is not None and done.stopped is None and asked is None:
                done = replace(done, needed=True, why=f"{done.why}; {why}" if done.needed else why)
                if not dry_run:
                    done = replace(done, stopped=pace.wait(stop))
                if not dry_run and done.stopped is None:
                    with pace.batch() as batch:
                        file = compute_statistics(resources.start_spark(), name, table)
                    pace.moved(health.data_bytes, batch.seconds)
                    done = replace(done, statistics_file=file)
            step.counts = {
                "files_rewritten": done.rewritten_files,
                "files_added": done.added_files,
                "bytes_rewritten": done.rewritten_bytes,
            }
        before, after = self._figures(table, health, changed=done.snapshot_id is not None)
        return replace(done, before=before, after=after)

    def compact_manifests(self, table: str, *, dry_run: bool = False) -> CompactedManifests:
        """Rewrite many small manifests into a few, if their average size is too small."""
        state = self.steps.table_state(table)
        with self.steps.run(state, "manifest_compaction", dry_run=dry_run) as step:
            health = self.measuring.measured(state)
            done = compacted_manifests(
                self.resources.start_spark,
                self.resources.config.catalogs.of(table).name,
                table,
                health,
                self.steps.worker("manifest-compaction"),
                self.resources.config.policy(table).compaction,
                dry_run=dry_run,
            )
            step.counts = {"manifests_rewritten": done.rewritten_manifests, "manifests_added": done.added_manifests}
            step.counts["rewrites"] = int(done.snapshot_id is not None)
        before, after = self._figures(table, health, changed=done.snapshot_id is not None)
        return replace(done, before=before, after=after)

    def _seconds(self, table: str, files: int, size_in_bytes: int) -> float:
        config = self.resources.config
        return config.prices.seconds(config.catalogs.of(table).storage_class or STANDARD, files, size_in_bytes)

    def _figures(self, table: str, before: TableHealth, *, changed: bool) -> tuple[Fitness, Fitness | None]:
        """What planning and reading cost before, and after a commit. Measured after the step has ended: a schedule may
        go on with what is left."""
        after = self.measuring.measured(self.steps.table_state(table)) if changed else None
        seconds = partial(self._seconds, table)
        return Fitness.of(before, seconds), None if after is None else Fitness.of(after, seconds)

    def commit_costs(self, table: str) -> CommitCosts:
        """Return what each commit of the table wrote besides its data, beside the size of its change; and whether that
        grows with the table. Only commits of snapshots that the table still has are complete, and the sizes of metadata
        files are known as far back as the metadata log goes. Raises NoSuchTable, UnreadableMetadata."""
        return commit_costs_of(self.resources, self.steps.table_state(table))

    def costs(self, table: str, curve: RetentionCurve | None = None) -> TableCosts:
        """Return what the table holds in each tier and for each tag, and what that costs by `prices` in lifecycle.yaml.

        Sizes are from the metadata. A `curve` of the table has what its refs hold; without it, they are counted.
        Changes nothing. Raises UnreadableMetadata.
        """
        state, config = self.steps.table_state(table), self.resources.config
        metadata = state.metadata
        view, cold = present_index(self.resources, table, metadata), cold_metadata(self.resources, metadata.table_uuid)
        known = curve or curve_of(self.resources, table, view, self.resources.instant("now", None), windows=())
        holdings = None if cold is None else self._cold_holdings(table, cold)
        found = table_costs(table, view, known.refs, holdings, storage_classes(config, table), config.prices)
        held = {tier.tier: tier.size_in_bytes for tier in found.tiers}
        with where_allowed():
            self.resources.operations.held_bytes.note(
                HeldBytes(
                    table_uuid=metadata.table_uuid,
                    table=table,
                    measured_at=state.read_at,
                    live=held["live"],
                    cold=held.get("cold"),
                    deep_archive=held.get("deep-archive"),
                )
            )
        return found

    def _cold_holdings(self, table: str, cold: TableMetadata) -> ColdHoldings:
        resources = self.resources
        deep: dict[str, int] = {}
        for batch in archived_files(resources.live_stores, resources.operations.deep_moves.of_table(cold.table_uuid)):
            deep |= zip(batch.column("path").to_pylist(), batch.column("size_in_bytes").to_pylist(), strict=True)
        asked = [
            each for each in resources.operations.thaws.list(cold.table_uuid, ended=True) if each.asked_at is not None
        ]
        return ColdHoldings(
            view=cold_index(resources, table, cold),
            copies=handoff_ledger(resources.live_stores, resources.root, cold.table_uuid).copies(),
            deep_snapshots=resources.operations.deep_moves.snapshots(cold.table_uuid),
            deep_files=len(deep),
            deep_bytes=sum(deep.values()),
            thawed_files=sum(thaw.files for thaw in asked),
        )


def commit_costs_of(resources: Resources, state: TableState) -> CommitCosts:
    """Return what the commits of a table wrote, from its index and the sizes of the metadata files that it names."""
    metadata, config = state.metadata, resources.config
    paths = [*(entry.metadata_file for entry in metadata.metadata_log), metadata.metadata_location]
    sizes = [None if found is None else found.size_in_bytes for found in resources.live_stores.heads(paths)]
    with java_errors(state.name):
        written = written_by_snapshot(live_index(resources, state.name, metadata))
    unfelt = config.prices.bytes_per_request(config.catalogs.of(state.name).storage_class or STANDARD)
    return commit_costs(state.name, metadata, written, dict(zip(paths, sizes, strict=True)), unfelt)
