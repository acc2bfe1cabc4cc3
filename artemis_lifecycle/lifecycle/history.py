"""What a table keeps: the files that its kept snapshots reach, and what other windows would keep."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from artemis_lifecycle.expiration.curve import RetentionCurve
from artemis_lifecycle.expiration.curve import retention_curve as curve_of
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.retention import holds_and_tags, retention_settings
from artemis_lifecycle.lifecycle.steps import Steps
from artemis_lifecycle.lifecycle.tiers import live_index
from artemis_lifecycle.metadata.kinds import CONTENT_KINDS
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.walk import reachable_files
from artemis_lifecycle.retention.rules import decide, view_of
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.frames import read_frame, write_frame
from artemis_lifecycle.storage.instants import milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ReachableSet:
    """What the kept snapshots of a table reach, by the metadata file that is named. `counts`: files by kind."""

    table: str
    metadata_location: str
    snapshot_ids: tuple[int, ...]
    counts: Mapping[str, int]
    size_in_bytes: int
    _frame: DataFrame

    def files(self) -> DataFrame:
        """DataFrame[path, kind], one row per file."""
        return self._frame.select("path", "kind")

    @property
    def data_file_paths(self) -> DataFrame:
        """DataFrame[path] of data files, delete files and deletion vectors."""
        return self._frame.filter(self._frame.kind.isin(*CONTENT_KINDS)).select("path")

    @property
    def manifest_paths(self) -> DataFrame:
        """DataFrame[path] of manifests."""
        return self._frame.filter("kind = 'manifest'").select("path")

    @property
    def manifest_list_paths(self) -> DataFrame:
        """DataFrame[path] of manifest lists."""
        return self._frame.filter("kind = 'manifest_list'").select("path")


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
        folder = f"{resources.root}/reachable/{state.metadata.table_uuid}/{uuid.uuid4().hex}"
        view = live_index(resources, table, state.metadata)
        runner = Runner(resources.spark)
        write_frame(reachable_files(runner, view, decision.kept), folder, resources.live_stores)
        frame = read_frame(runner, folder, resources.live_stores).frame()
        totals = frame.groupBy("kind").agg({"path": "count", "size_in_bytes": "sum"}).collect()
        return ReachableSet(
            table=table,
            metadata_location=state.metadata.metadata_location,
            snapshot_ids=tuple(decision.kept),
            counts={row["kind"]: row["count(path)"] for row in sorted(totals, key=lambda row: str(row["kind"]))},
            size_in_bytes=sum(row["sum(size_in_bytes)"] for row in totals),
            _frame=frame,
        )

    def retention_curve(
        self, table: str, now: datetime | None = None, windows: Sequence[timedelta] | None = None
    ) -> RetentionCurve:
        view = live_index(self.resources, table, self.steps.table_state(table).metadata)
        return curve(self.resources, table, view, self.resources.instant("now", now), windows)


def curve(
    resources: Resources, table: str, view: IndexView, instant: datetime, windows: Sequence[timedelta] | None
) -> RetentionCurve:
    """What a table holds under other windows, by its index."""
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
