"""The assets that rewrite a table's files without changing its contents."""

import dagster as dg

from artemis_lifecycle.defs.common import Changes, Materialized, data_version, opened, walk_asset
from artemis_lifecycle.defs.resources import ChangesResource, LifecycleResource
from artemis_lifecycle.escaping import terminal
from artemis_lifecycle.upkeep.health import Fitness

GROUP = "compaction"


@walk_asset(GROUP, {"iceberg", "spark"}, ("snapshot_history",))
def compacted_manifests(
    context: dg.AssetExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Materialized:
    """The table's manifests: many small ones rewritten into a few, if their average size is too small."""
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
            **_fitness(done.before, done.after),
            "snapshot_id": str(done.snapshot_id or "none"),
        },
    )


@walk_asset(GROUP, {"iceberg", "spark"}, ("snapshot_history",))
def compacted_data_files(
    context: dg.AssetExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Materialized:
    """The table's data files: small ones rewritten into larger ones with deletes applied, within the bandwidth
    budget."""
    steps, table = opened(context, lifecycle)
    done = steps.compact_data_files(table, dry_run=config.is_dry(changes))
    return Materialized(
        data_version=data_version(done.snapshot_id),
        metadata={
            "dry_run": config.is_dry(changes),
            "needed": done.needed,
            "why": terminal(done.why),
            **({} if done.stopped is None else {"stopped": terminal(done.stopped)}),
            **(
                {
                    "would_rewrite": done.needed,
                    "would_rewrite_partitions": done.partitions - done.left_partitions,
                    "would_rewrite_files": done.planned_files,
                    "would_rewrite_bytes": done.planned_bytes,
                }
                if config.is_dry(changes)
                else {
                    "partitions": done.partitions,
                    "partitions_left": done.left_partitions,
                    "batches": done.batches,
                    "bytes_per_second": done.bytes_per_second,
                    "seconds_waited": done.waited_seconds,
                    "statistics_file": terminal(done.statistics_file or "none"),
                    "files_rewritten": done.rewritten_files,
                    "files_added": done.added_files,
                    "files_failed": done.failed_files,
                    "delete_files_removed": done.removed_delete_files,
                    "bytes_rewritten": done.rewritten_bytes,
                }
            ),
            **_fitness(done.before, done.after),
            "snapshot_id": str(done.snapshot_id or "none"),
        },
    )


def _fitness(before: Fitness | None, after: Fitness | None) -> dict[str, str | float]:
    """The costs before and after, in words; and as figures, which Dagster plots, if there was a commit."""
    both = {"before": before, "after": after}
    found: dict[str, str | float] = {when: str(each) for when, each in both.items() if each is not None}
    if after is not None:
        for when, each in both.items():
            if each is not None:
                found |= {f"planning_seconds_{when}": each.planning_seconds}
                found |= {f"reading_seconds_{when}": each.reading_seconds}
    return found
