"""What a table has and keeps: its history, the files that kept snapshots reach, and what other windows would keep."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from artemis_lifecycle.expiration.curve import RetentionCurve
from artemis_lifecycle.expiration.curve import retention_curve as curve_of
from artemis_lifecycle.lifecycle.base import Base
from artemis_lifecycle.metadata.kinds import CONTENT_KINDS
from artemis_lifecycle.metadata.types import SnapshotHistory
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


class History(Base):
    """Reads metadata; changes nothing."""

    def snapshot_history(self, table: str) -> SnapshotHistory:
        """The table's snapshots, refs and snapshot log, pinned to one metadata file. Raises NoSuchTable."""
        look = self._look(table)
        return SnapshotHistory.of(table, look.metadata, look.read_at)

    def reachable_set(self, table: str, now: datetime | None = None) -> ReachableSet:
        """What the snapshots that the table's policy keeps at `now` reach. Reads manifests that it has not read before.

        Raises UnreadableMetadata when a metadata file that it reads is missing, unreadable or shorter than recorded.
        """
        look = self._look(table)
        instant = self._instant("now", now)
        holds, tags = self._guards(look.metadata.table_uuid)
        decision = decide(
            view_of(look.metadata), self._settings(table, instant), milliseconds(instant), holds=holds, tags=tags
        )
        folder = f"{self.root}/reachable/{look.metadata.table_uuid}/{uuid.uuid4().hex}"
        view = self._index(table, look.metadata)
        runner = Runner(self.spark)
        write_frame(reachable_files(runner, view, decision.kept), folder, self.live_stores)
        frame = read_frame(runner, folder, self.live_stores).frame()
        totals = frame.groupBy("kind").agg({"path": "count", "size_in_bytes": "sum"}).collect()
        return ReachableSet(
            table=table,
            metadata_location=look.metadata.metadata_location,
            snapshot_ids=tuple(decision.kept),
            counts={row["kind"]: row["count(path)"] for row in sorted(totals, key=lambda row: str(row["kind"]))},
            size_in_bytes=sum(row["sum(size_in_bytes)"] for row in totals),
            _frame=frame,
        )

    def retention_curve(
        self, table: str, now: datetime | None = None, windows: Sequence[timedelta] | None = None
    ) -> RetentionCurve:
        """What the table would hold under other windows (None: some over its whole age), and what each ref costs.

        Changes nothing, and goes by the policy's own rule, with its holds and tags. Raises UnreadableMetadata.
        """
        metadata = self._look(table).metadata
        return self._curve(table, self._index(table, metadata), self._instant("now", now), windows)

    def _curve(
        self, table: str, view: IndexView, instant: datetime, windows: Sequence[timedelta] | None
    ) -> RetentionCurve:
        holds, tags = self._guards(view.metadata.table_uuid)
        return curve_of(
            table,
            view,
            self._settings(table, instant),
            milliseconds(instant),
            holds=holds,
            tags=tags,
            windows_ms=None if windows is None else [window // timedelta(milliseconds=1) for window in windows],
        )
