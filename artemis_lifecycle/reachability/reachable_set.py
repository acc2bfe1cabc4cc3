"""What the kept snapshots of a table reach, as a result for people and programs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from artemis_lifecycle.metadata.kinds import CONTENT_KINDS
from artemis_lifecycle.spark.runner import Rows
from artemis_lifecycle.storage.frames import arrow_schema

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


def reachable_set(table: str, metadata_location: str, snapshot_ids: Collection[int], rows: Rows) -> ReachableSet:
    """Return `rows` (columns path, kind, size_in_bytes; one row per file) with their counts by kind."""
    totals = _totals(rows.map(_counted, _COUNTED).table())
    return ReachableSet(
        table=table,
        metadata_location=metadata_location,
        snapshot_ids=tuple(snapshot_ids),
        counts={row["kind"]: row["files"] for row in totals},
        size_in_bytes=sum(row["bytes"] for row in totals),
        _rows=rows,
    )


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
