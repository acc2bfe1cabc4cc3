"""What Iceberg's own actions would do to a table, from its metadata: for dry runs, without Spark."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

from artemis_lifecycle.maintenance.health import SMALL, target_file_size, target_manifest_size
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.manifests import live_partitions
from artemis_lifecycle.metadata.types import MAIN_BRANCH, TableMetadata
from artemis_lifecycle.retention.rules import RetentionSettings, decide
from artemis_lifecycle.retention.views import SnapshotView, view_of
from artemis_lifecycle.storage.stores import Stores

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
        snapshots = [*history.snapshots, new]
        history = replace(history, snapshots=snapshots, refs=refs, current_snapshot_id=new.snapshot_id)
    settings = RetentionSettings(rule="iceberg", older_than_ms=older_than_ms, retain_last=1)
    return len(decide(history, settings, now_ms).expired)
