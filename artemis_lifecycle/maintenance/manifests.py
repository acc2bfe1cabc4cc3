"""Many small manifests into few, by Iceberg's own action, where their average size asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from artemis_lifecycle.config.policies import Compaction
from artemis_lifecycle.contracts import CommitLineage
from artemis_lifecycle.maintenance.actions import jvm_table, reading_whole_table, spark_actions, with_summary
from artemis_lifecycle.maintenance.fitness import Fitness
from artemis_lifecycle.maintenance.health import TableHealth, figure
from artemis_lifecycle.operations.health import HealthRecord
from artemis_lifecycle.spark.runner import Runner, Spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class CompactedManifests:
    """What was rewritten. `needed` False: there are few manifests, or they are large enough."""

    table: str
    needed: bool
    why: str
    rewritten_manifests: int = 0
    added_manifests: int = 0
    snapshot_id: int | None = None
    dry_run: bool = False
    before: Fitness | None = None
    after: Fitness | None = None


def why_rewrite(health: TableHealth | HealthRecord, thresholds: Compaction) -> str | None:
    """The reason to rewrite the manifests, in a sentence; None when there is none."""
    if health.manifests < thresholds.min_manifests:
        return None
    mixed = figure(health, "mixed_manifests")
    if health.manifests <= 2 * health.fewest_manifests:
        if mixed <= thresholds.max_mixed_manifests:
            return None
        return f"a query of one partition reads {mixed:,} manifests of several partitions, where 2 would do"
    return (
        f"{health.manifests:,} manifests of {health.manifest_bytes / health.manifests:,.0f} bytes on average, "
        f"where {health.fewest_manifests:,} of {health.target_manifest_bytes:,} would do"
    )


def compacted_manifests(
    spark: Spark,
    catalog: str,
    table: str,
    health: TableHealth,
    worker: CommitLineage,
    thresholds: Compaction | None = None,
    *,
    dry_run: bool = False,
) -> CompactedManifests:
    """Rewrite the manifests where `health` asks for it, in one commit with its lineage. A dry run only says why."""
    why = why_rewrite(health, thresholds or Compaction())
    if why is None:
        return CompactedManifests(table, False, "the manifests are few, or large enough", dry_run=dry_run)
    if dry_run:
        return CompactedManifests(table, True, why, dry_run=True)
    return rewrite_manifests(Runner(spark).session, catalog, table, worker, why=why)


def rewrite_manifests(
    spark: SparkSession, catalog: str, table: str, worker: CommitLineage, *, why: str = "asked for"
) -> CompactedManifests:
    """Iceberg's `rewrite_manifests`, once for each partition spec, and the worker's lineage in the summary. It sorts
    the entries by partition, in the order of the spec's fields: the manifests of one partition are then neighbors."""
    loaded = jvm_table(spark, catalog, table)
    current = loaded.currentSnapshot()
    if current is None:
        return CompactedManifests(table, False, "the table has no snapshot")
    before, rewritten, added = current.snapshotId(), 0, 0
    for spec_id in sorted(loaded.specs()):
        loaded.refresh()
        action = spark_actions(spark).rewriteManifests(loaded).specId(spec_id)
        result = with_summary(action, reading_whole_table(worker, loaded.currentSnapshot())).execute()
        rewritten += sum(1 for _ in result.rewrittenManifests())
        added += sum(1 for _ in result.addedManifests())
    loaded.refresh()
    after = loaded.currentSnapshot().snapshotId()
    return CompactedManifests(
        table=table,
        needed=True,
        why=why,
        rewritten_manifests=rewritten,
        added_manifests=added,
        snapshot_id=after if after != before else None,
    )
