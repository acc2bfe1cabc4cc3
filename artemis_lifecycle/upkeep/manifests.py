"""Many small manifests into few, by Iceberg's own action, where their average size asks for it."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from artemis_lifecycle.commits.actions import jvm_table, reading_whole_table, spark_actions, with_summary
from artemis_lifecycle.config.policies import Compaction
from artemis_lifecycle.contracts import CommitLineage
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.manifests import live_partitions
from artemis_lifecycle.metadata.types import MAIN_BRANCH, TableMetadata
from artemis_lifecycle.operations.fleet import HealthRecord
from artemis_lifecycle.retention.rules import RetentionSettings, decide
from artemis_lifecycle.retention.views import SnapshotView, view_of
from artemis_lifecycle.spark.runner import Runner, Spark
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.upkeep.health import SMALL, Fitness, TableHealth, figure, target_file_size, target_manifest_size

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


# --- foresight --------------------------------------------------------------------------------------------------------
# What Iceberg's own actions would do to a table, from its metadata: for dry runs, without Spark.

_LARGE = 1.8
"""Iceberg's own `max-file-size-bytes`, as a share of the target."""


def files_to_rewrite(stores: Stores, metadata: TableMetadata, min_input_files: int) -> int:
    """Return how many data files `rewrite_data_files` would rewrite, of a table without delete files whose partitions
    each fit in one file group (100 GB). Raises UnreadableMetadata."""
    target = target_file_size(metadata)
    groups: dict[str, list[int]] = defaultdict(list)
    current = metadata.current_snapshot
    for manifest in () if current is None else manifests_of(stores, current).entries:
        found = live_partitions(stores, manifest)
        # Files of all earlier partition specs make one group.
        is_current = manifest.partition_spec_id == metadata.default_spec_id
        columns = (found.column(name).to_pylist() for name in ("content", "partition", "file_size_in_bytes"))
        for content, partition, size in zip(*columns, strict=True):
            if content == 0 and not target * SMALL <= size <= target * _LARGE:
                groups[partition if is_current else ""].append(size)
    return sum(
        len(sizes)
        for sizes in groups.values()
        if len(sizes) >= min_input_files or (len(sizes) > 1 and sum(sizes) > target) or sum(sizes) > target * _LARGE
    )


def would_rewrite_manifests(stores: Stores, metadata: TableMetadata) -> bool:
    """Return True if `rewrite_manifests` would commit: manifests of one kind are several, or one is too large."""
    sizes: dict[int, list[int]] = defaultdict(list)
    current = metadata.current_snapshot
    for manifest in () if current is None else manifests_of(stores, current).entries:
        if manifest.partition_spec_id == metadata.default_spec_id:
            sizes[manifest.content].append(manifest.manifest_length)
    target = target_manifest_size(metadata)
    return any(len(each) > 1 or math.ceil(sum(each) / target) > 1 for each in sizes.values())


def snapshots_to_expire(metadata: TableMetadata, older_than_ms: int, now_ms: int, *, after_commit: bool) -> int:
    """Return how many snapshots `expire_snapshots` would expire with that time and `retain_last` 1; with
    `after_commit`, after a commit to the main branch at `now_ms`, which is then its last snapshot."""
    history = view_of(metadata)
    head = metadata.current_snapshot_id
    if after_commit and head is not None:
        new = SnapshotView(max(each.snapshot_id for each in history.snapshots) + 1, head, now_ms)
        refs = {**history.refs, MAIN_BRANCH: replace(history.refs[MAIN_BRANCH], snapshot_id=new.snapshot_id)}
        history = replace(history, snapshots=[*history.snapshots, new], refs=refs, current_snapshot_id=new.snapshot_id)
    settings = RetentionSettings(rule="iceberg", older_than_ms=older_than_ms, retain_last=1)
    return len(decide(history, settings, now_ms).expired)
