"""What a table keeps: the files that its kept snapshots reach, and what other windows would keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from artemis_lifecycle.expiration.curve import RetentionCurve
from artemis_lifecycle.expiration.curve import retention_curve as curve_of
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.retention import holds_and_tags, retention_settings
from artemis_lifecycle.lifecycle.steps import Steps
from artemis_lifecycle.lifecycle.tiers import present_index
from artemis_lifecycle.metadata.kinds import CONTENT_KINDS
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.walk import reachable_files
from artemis_lifecycle.retention.rules import decide, view_of
from artemis_lifecycle.spark.runner import Rows, Runner
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.instants import milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ReachableSet:
    """What the kept snapshots of a table reach, according to the given metadata file. `counts`: files by kind."""

    table: str
    metadata_location: str
    snapshot_ids: tuple[int, ...]
    counts: Mapping[str, int]
    size_in_bytes: int
    _rows: Rows = field(repr=False, compare=False)

    @cached_property
    def _frame(self) -> DataFrame:
        return self._rows.frame()

    def files(self) -> DataFrame:
        """Return DataFrame[path, kind], one row per file. Not stored: a set that is too large for this process is
        walked again."""
        return self._frame.select("path", "kind")

    @property
    def data_file_paths(self) -> DataFrame:
        """Return DataFrame[path] of data files, delete files and deletion vectors."""
        return self._frame.filter(self._frame.kind.isin(*CONTENT_KINDS)).select("path")

    @property
    def manifest_paths(self) -> DataFrame:
        """Return DataFrame[path] of manifests."""
        return self._frame.filter("kind = 'manifest'").select("path")

    @property
    def manifest_list_paths(self) -> DataFrame:
        """Return DataFrame[path] of manifest lists."""
        return self._frame.filter("kind = 'manifest_list'").select("path")


_COUNTED = arrow_schema("kind string, files bigint, bytes bigint")


def _counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = pa.table(batch).group_by("kind").aggregate([("path", "count"), ("size_in_bytes", "sum")])
        named = found.select(["kind", "path_count", "size_in_bytes_sum"]).rename_columns(_COUNTED.names)
        yield from named.cast(_COUNTED).to_batches()


def _totals(counted: pa.Table) -> list[dict[str, Any]]:
    """Return one row per kind, sorted by name."""
    found = counted.group_by("kind").aggregate([("files", "sum"), ("bytes", "sum")]).sort_by("kind")
    return [{"kind": row["kind"], "files": row["files_sum"], "bytes": row["bytes_sum"]} for row in found.to_pylist()]


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
        totals = _totals(rows.map(_counted, _COUNTED).table())
        return ReachableSet(
            table=table,
            metadata_location=state.metadata.metadata_location,
            snapshot_ids=tuple(decision.kept),
            counts={row["kind"]: row["files"] for row in totals},
            size_in_bytes=sum(row["bytes"] for row in totals),
            _rows=rows,
        )

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
