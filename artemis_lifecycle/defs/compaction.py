"""The assets that rewrite a table's files without changing its contents."""

from dagster import AssetExecutionContext

from artemis_lifecycle.defs.common import Changes, Materialized, data_version, opened, walk_asset
from artemis_lifecycle.defs.failures import as_dagster_failure
from artemis_lifecycle.defs.resources import ChangesResource, LifecycleResource
from artemis_lifecycle.escaping import terminal

GROUP = "compaction"


@walk_asset(GROUP, {"iceberg", "spark"}, ("snapshot_history",))
def compacted_manifests(
    context: AssetExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Materialized:
    """The table's manifests: many small ones rewritten into a few, if their average size is too small."""
    with as_dagster_failure() as watch:
        steps, table = opened(context, lifecycle)
        done = steps.compact_manifests(table, dry_run=config.is_dry(changes))
    return Materialized(
        data_version=data_version(done.snapshot_id),
        metadata={
            "dry_run": config.is_dry(changes),
            "needed": done.needed,
            "why": terminal(done.why),
            **(
                {"would_rewrite": done.needed}
                if config.is_dry(changes)
                else {"manifests_rewritten": done.rewritten_manifests, "manifests_added": done.added_manifests}
            ),
            "snapshot_id": str(done.snapshot_id or "none"),
            "seconds": watch.seconds,
        },
    )


@walk_asset(GROUP, {"iceberg", "spark"}, ("snapshot_history",))
def compacted_data_files(
    context: AssetExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Materialized:
    """The table's data files: small ones rewritten into larger ones with deletes applied, within the bandwidth
    budget."""
    with as_dagster_failure() as watch:
        steps, table = opened(context, lifecycle)
        done = steps.compact_data_files(table, dry_run=config.is_dry(changes))
    return Materialized(
        data_version=data_version(done.snapshot_id),
        metadata={
            "dry_run": config.is_dry(changes),
            "needed": done.needed,
            "why": terminal(done.why),
            **(
                {"would_rewrite": done.needed}
                if config.is_dry(changes)
                else {
                    "files_rewritten": done.rewritten_files,
                    "files_added": done.added_files,
                    "files_failed": done.failed_files,
                    "delete_files_removed": done.removed_delete_files,
                    "bytes_rewritten": done.rewritten_bytes,
                }
            ),
            "snapshot_id": str(done.snapshot_id or "none"),
            "seconds": watch.seconds,
        },
    )
