"""The assets from a table's history to the deletion of the files that only its expired snapshots reached."""

from typing import Optional

import dagster as dg
from pydantic import Field

from artemis_lifecycle import pipes
from artemis_lifecycle.cli.output import grid
from artemis_lifecycle.defs import ui_metadata
from artemis_lifecycle.defs.common import Changes, Materialized, data_version, delete_each, opened, walk_asset
from artemis_lifecycle.defs.resources import ChangesResource, LifecycleResource
from artemis_lifecycle.escaping import terminal
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle.spark.sql import literal

GROUP = "expiration"


class Planning(dg.Config):
    """What replaces the policy in one plan."""

    older_than: Optional[str] = Field(
        default=None, description="In place of the window: an instant with its time zone, such as 2026-01-31T00:00:00Z."
    )
    retain_last: Optional[int] = Field(default=None, ge=1, description="In place of the policy's count.")
    snapshot_ids: list[str] = Field(
        default_factory=list, description="Snapshots to expire as well. As texts: the launchpad rounds large numbers."
    )


@walk_asset(GROUP, {"iceberg", "python"}, ("live_table",))
def snapshot_history(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> Materialized:
    """The table's snapshots, refs and snapshot log, pinned to the catalog's current metadata file."""
    steps, table = opened(context, lifecycle)
    history = steps.snapshot_history(table)
    frame = history.to_pandas()
    newest = frame.sort_values("committed_at", ascending=False)
    preview = newest[["snapshot_id", "committed_at", "operation", "refs", "total_data_files", "total_records"]]
    return Materialized(
        data_version=data_version(history.metadata_location),
        metadata={
            "dagster/uri": ui_metadata.uri(history.metadata_location),
            "dagster/partition_row_count": len(frame),
            "dagster/column_schema": ui_metadata.frame_schema(frame),
            "snapshots": len(history.snapshots),
            "refs": len(history.refs),
            "log_entries": len(history.log),
            "table_uuid": history.table_uuid,
            "metadata_location": ui_metadata.place(history.metadata_location),
            "read_at": ui_metadata.instant(history.read_at),
            "newest_snapshots": ui_metadata.table(list(preview.columns), preview.itertuples(index=False)),
        },
    )


@walk_asset(GROUP, {"iceberg", "spark"}, ("snapshot_history",))
def reachable_set(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> Materialized:
    """Every file that the snapshots kept by the policy reach: data, deletes, manifests, manifest lists, statistics."""
    steps, table = opened(context, lifecycle)
    reachable = steps.reachable_set(table)
    files = sum(reachable.counts.values())
    return Materialized(
        data_version=data_version(reachable.metadata_location, *reachable.snapshot_ids),
        metadata={
            "dagster/partition_row_count": files,
            "dagster/column_schema": ui_metadata.column_schema(ui_metadata.REACHABLE_FILES),
            "snapshots_kept": len(reachable.snapshot_ids),
            "files": files,
            "bytes": reachable.size_in_bytes,
            "metadata_location": ui_metadata.place(reachable.metadata_location),
            # Its rows are not stored: the manifest index answers as long as these snapshots stay.
            "open_with": terminal(f"lifecycle.reachable_set({table!r}).files()"),
            "by_kind": ui_metadata.table(["kind", "files"], reachable.counts.items()),
        },
    )


@walk_asset(GROUP, {"iceberg", "spark", "postgres"}, ("reachable_set",))
def expiration_plan(context: dg.AssetExecutionContext, lifecycle: LifecycleResource, config: Planning) -> Materialized:
    """A sealed plan of what an expiration removes: snapshots, refs, and each file with size and reason. Changes
    nothing."""
    steps, table = opened(context, lifecycle)
    plan = pipes.planned(steps, table, config.model_dump())
    summary = plan.summary
    return Materialized(
        data_version=data_version(plan.plan_id),
        metadata={
            "dagster/uri": ui_metadata.uri(plan.files_location),
            "dagster/partition_row_count": summary.files,
            "dagster/column_schema": ui_metadata.column_schema(ui_metadata.PLAN_FILES),
            "plan_id": plan.plan_id,
            "snapshots_kept": summary.snapshots_kept,
            "snapshots_expired": summary.snapshots_expired,
            "refs_expired": summary.refs_expired,
            "files": summary.files,
            "bytes": summary.size_in_bytes,
            "cutoff": ui_metadata.instant(plan.cutoff),
            "base_metadata_location": ui_metadata.place(plan.base_metadata_location),
            "sealed_files": ui_metadata.place(plan.files_location),
            "query": ui_metadata.query(steps.config.catalogs.results, "plan_files", f"plan_id = '{plan.plan_id}'"),
            "by_kind": ui_metadata.table(*grid(summary.by_kind, "kind, files, bytes=size_in_bytes")),
            "why_kept": ui_metadata.table(
                ["snapshot", "kept because"], [(snapshot, "; ".join(why)) for snapshot, why in plan.kept.items()]
            ),
        },
    )


@walk_asset(GROUP, {"iceberg", "spark", "postgres"}, ("expiration_plan",), changes=True)
def cold_tier_snapshots(
    context: dg.AssetExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Materialized:
    """The table's entry in the cold catalog: its expired snapshots, copied, verified and readable from cold storage
    alone.

    A dry run copies nothing, and reports what a handoff would copy.
    """
    steps, table = opened(context, lifecycle)
    plan = pipes.newest_plan(steps, table)
    done = steps.hand_off(plan.plan_id, dry_run=config.is_dry(changes))
    cold = steps.cold_tables(plan.table_uuid)
    times = [] if cold is None else [snapshot.timestamp_ms for snapshot in cold.whole().snapshots]
    return Materialized(
        data_version=data_version(done.plan_id),
        metadata={
            "plan_id": done.plan_id,
            "dry_run": done.dry_run,
            **(
                {
                    "would_copy_files": done.would_copy_files,
                    "would_copy_bytes": done.would_copy_bytes,
                    "would_lose_snapshots": len(done.lost),
                    "would_thin_snapshots": len(done.thinned),
                }
                if done.dry_run
                else {
                    "snapshots_archived": len(done.archived),
                    "snapshots_overtaken": len(done.overtaken),
                    "files_copied": done.copied_files,
                    "bytes_copied": done.copied_bytes,
                    "files_reused": done.reused_files,
                    "files_verified": done.verified_files,
                    "attempts": done.attempts,
                    "snapshots_lost": len(done.lost),
                    "snapshots_thinned": len(done.thinned),
                }
            ),
            "cold_catalog": steps.config.catalogs.cold.name,
            "cold_table": terminal(
                ", ".join(each.name for each in (*cold.closed, cold.newest)) if cold else "none yet"
            ),
            "snapshots": len(times),
            "snapshots_in_deep_archive": len(steps.operations.deep_moves.snapshots(plan.table_uuid)),
            "oldest_snapshot": ui_metadata.epoch(min(times, default=None)),
            "newest_snapshot": ui_metadata.epoch(max(times, default=None)),
            **(
                {"metadata_location": ui_metadata.place(cold.newest.metadata.metadata_location)}
                if cold is not None
                else {}
            ),
        },
    )


@walk_asset(GROUP, {"iceberg", "spark", "postgres"}, ("cold_tier_snapshots",), changes=True)
def expiration_commit(
    context: dg.AssetExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Materialized:
    """The metadata commit that removes the plan's snapshots and refs from the table, and starts the grace of its files.

    It first records the lineage of the removed snapshots. If that fails, it commits nothing.
    """
    steps, table = opened(context, lifecycle)
    done = steps.commit_expiration(pipes.newest_plan(steps, table).plan_id, dry_run=config.is_dry(changes))
    return Materialized(
        data_version=data_version(done.metadata_location),
        metadata={
            "dagster/uri": ui_metadata.uri(done.metadata_location),
            "plan_id": done.plan_id,
            "dry_run": done.dry_run,
            **(
                {"would_expire_snapshots": done.snapshots_removed, "would_expire_refs": done.refs_removed}
                if done.dry_run
                else {
                    "snapshots_expired": done.snapshots_removed,
                    "refs_expired": done.refs_removed,
                    "snapshots_overtaken": len(done.overtaken),
                    "attempts": done.attempts,
                    "refs_put_back": ", ".join(each.ref or str(each.snapshot_id) for each in done.put_back) or "none",
                }
            ),
            "metadata_location": ui_metadata.place(done.metadata_location),
            "files_due_at": ui_metadata.instant(done.due_at),
        },
    )


@walk_asset(GROUP, {"iceberg", "spark", "postgres"}, ("expiration_commit",), changes=True)
def physical_deletion(
    context: dg.AssetExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Materialized:
    """Deletes, in journaled batches, the files of every committed plan whose grace is over.

    A dry run includes the uncommitted plan, and reports which of its files it would delete today.
    """
    steps, table = opened(context, lifecycle)
    plans = pipes.due(steps, table, dry_run=config.is_dry(changes))
    reports, refused = delete_each(
        context, plans, lambda plan_id: steps.delete_files(plan_id, dry_run=config.is_dry(changes))
    )
    waiting = [record for record in steps.plans(table) if record.status == PlanStatus.COMMITTED]
    return Materialized(
        data_version=data_version(*plans),
        metadata={
            "dry_run": config.is_dry(changes),
            "dagster/column_schema": ui_metadata.column_schema(ui_metadata.DELETED_FILES),
            "plans": len(reports),
            **ui_metadata.deletion(reports),
            **refused,
            "plans_in_grace": ui_metadata.table(*grid(waiting, "plan=plan_id, files, bytes, due at=due_at")),
            "query": ui_metadata.query(steps.config.catalogs.results, "deletions", f"table_name = {literal(table)}"),
        },
    )
