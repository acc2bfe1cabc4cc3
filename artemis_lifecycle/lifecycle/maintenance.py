"""Maintenance: schemas, compaction, and what a table costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from artemis_lifecycle.cold_tier.deep_archive import archived_files
from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import QuietWindow, window_of
from artemis_lifecycle.expiration.curve import RetentionCurve
from artemis_lifecycle.lifecycle.cleaning import removed_parts
from artemis_lifecycle.lifecycle.health import STANDARD, Measuring
from artemis_lifecycle.lifecycle.history import curve as curve_of
from artemis_lifecycle.lifecycle.lineage import Recording
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Steps, TableState
from artemis_lifecycle.lifecycle.tiers import cold_index, cold_metadata, live_index, present_index
from artemis_lifecycle.lineage.schema_history import SchemaHistory
from artemis_lifecycle.lineage.schema_history import schema_history as schemas_of
from artemis_lifecycle.maintenance.commit_costs import CommitCosts, commit_costs
from artemis_lifecycle.maintenance.compaction import CompactedDataFiles, compacted_data_files, why_compact
from artemis_lifecycle.maintenance.costs import ColdHoldings, StorageClasses, TableCosts, table_costs
from artemis_lifecycle.maintenance.fitness import Fitness
from artemis_lifecycle.maintenance.health import (
    MIN_INPUT_FILES,
    TableHealth,
    partitions_with_work,
    small_file_size,
    target_file_size,
    target_manifest_size,
)
from artemis_lifecycle.maintenance.manifests import CompactedManifests, compacted_manifests
from artemis_lifecycle.maintenance.pacing import CompactionPace
from artemis_lifecycle.maintenance.ranking import RankedPartition, ranked
from artemis_lifecycle.maintenance.statistics import compute_statistics, why_statistics
from artemis_lifecycle.metadata.table_metadata import refuse_encrypted
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.held_bytes import HeldBytes
from artemis_lifecycle.operations.roles import where_allowed
from artemis_lifecycle.planning.advice import Targets
from artemis_lifecycle.planning.plan import Query
from artemis_lifecycle.planning.plan import plan_query as planned
from artemis_lifecycle.planning.query_plan import QueryPlan
from artemis_lifecycle.reachability.index.written import written_by_snapshot
from artemis_lifecycle.spark.java_errors import java_errors


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


def storage_classes(config: LifecycleConfig) -> StorageClasses:
    """Return what each tier's files are stored as."""
    return StorageClasses(
        live=config.catalogs.live.storage_class or STANDARD,
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

    def compact_data_files(self, table: str, *, dry_run: bool = False) -> CompactedDataFiles:
        resources, state = self.resources, self.steps.table_state(table)
        policy, name = resources.config.policy(table), resources.config.catalogs.live.name
        with self.steps.run(state, "compaction", dry_run=dry_run) as step:
            health = self.measuring.measured(state)
            ranking: tuple[RankedPartition, ...] = ()
            if why_compact(health, policy.compaction) is not None:
                work = partitions_with_work(resources.start_spark, resources.live_stores, state.metadata)
                ranking = ranked(work, policy.compaction, self._seconds)
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
                dry_run=dry_run,
            )
            why = why_statistics(health.unanalyzed_records, health.records, policy.compaction)
            if why is not None and done.stopped is None:
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
        state = self.steps.table_state(table)
        with self.steps.run(state, "manifest_compaction", dry_run=dry_run) as step:
            health = self.measuring.measured(state)
            done = compacted_manifests(
                self.resources.start_spark,
                self.resources.config.catalogs.live.name,
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

    def _seconds(self, files: int, size_in_bytes: int) -> float:
        config = self.resources.config
        return config.prices.seconds(config.catalogs.live.storage_class or STANDARD, files, size_in_bytes)

    def _figures(self, table: str, before: TableHealth, *, changed: bool) -> tuple[Fitness, Fitness | None]:
        """What planning and reading cost before, and after a commit. Measured after the step has ended: a schedule may
        go on with what is left."""
        after = self.measuring.measured(self.steps.table_state(table)) if changed else None
        return Fitness.of(before, self._seconds), None if after is None else Fitness.of(after, self._seconds)

    def commit_costs(self, table: str) -> CommitCosts:
        return commit_costs_of(self.resources, self.steps.table_state(table))

    def costs(self, table: str, curve: RetentionCurve | None = None) -> TableCosts:
        state, config = self.steps.table_state(table), self.resources.config
        metadata = state.metadata
        view, cold = present_index(self.resources, table, metadata), cold_metadata(self.resources, metadata.table_uuid)
        known = curve or curve_of(self.resources, table, view, self.resources.instant("now", None), windows=())
        holdings = None if cold is None else self._cold_holdings(table, cold)
        found = table_costs(table, view, known.refs, holdings, storage_classes(config), config.prices)
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
    unfelt = config.prices.bytes_per_request(config.catalogs.live.storage_class or STANDARD)
    return commit_costs(state.name, metadata, written, dict(zip(paths, sizes, strict=True)), unfelt)
