"""What a table keeps: the files that its kept snapshots reach, and what other windows would keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from artemis_lifecycle.expiration.curve import RetentionCurve
from artemis_lifecycle.expiration.curve import retention_curve as curve_of
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.retention import holds_and_tags, retention_settings
from artemis_lifecycle.lifecycle.steps import Steps
from artemis_lifecycle.lifecycle.tiers import present_index
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.reachable_set import ReachableSet as ReachableSet
from artemis_lifecycle.reachability.reachable_set import reachable_set
from artemis_lifecycle.reachability.walk import reachable_files
from artemis_lifecycle.retention.rules import decide, view_of
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.instants import milliseconds


@dataclass(frozen=True)
class History:
    """Reads metadata and manifests. Changes nothing."""

    resources: Resources
    steps: Steps

    def reachable_set(self, table: str, now: datetime | None = None) -> ReachableSet:
        resources = self.resources
        state = self.steps.table_state(table)
        instant = resources.instant("now", now)
        holds, tags = holds_and_tags(resources, state.metadata.table_uuid)
        decision = decide(
            view_of(state.metadata), retention_settings(resources, table), milliseconds(instant), holds=holds, tags=tags
        )
        view = present_index(resources, table, state.metadata)
        rows = reachable_files(Runner(resources.start_spark), view, decision.kept)
        return reachable_set(table, state.metadata.metadata_location, decision.kept, rows)

    def retention_curve(
        self, table: str, now: datetime | None = None, windows: Sequence[timedelta] | None = None
    ) -> RetentionCurve:
        view = present_index(self.resources, table, self.steps.table_state(table).metadata)
        return curve(self.resources, table, view, self.resources.instant("now", now), windows)


def curve(
    resources: Resources, table: str, view: IndexView, instant: datetime, windows: Sequence[timedelta] | None
) -> RetentionCurve:
    """Return what a table holds under other windows, from its index."""
    holds, tags = holds_and_tags(resources, view.metadata.table_uuid)
    return curve_of(
        table,
        view,
        retention_settings(resources, table),
        milliseconds(instant),
        holds=holds,
        tags=tags,
        windows_ms=None if windows is None else [window // timedelta(milliseconds=1) for window in windows],
    )
