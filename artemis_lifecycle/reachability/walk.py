"""What snapshots reach: a query on the manifest index (`index/`) after bringing it up to date."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from artemis_lifecycle.metadata.types import CONTENT_KINDS, TableMetadata
from artemis_lifecycle.reachability.index import (
    DEFAULT_SETTINGS,
    IndexInMemory,
    IndexSettings,
    IndexView,
    ManifestIndex,
)
from artemis_lifecycle.reachability.index.files import reachable
from artemis_lifecycle.reachability.index.lookups import entries_of, holders
from artemis_lifecycle.reachability.index.refresh import compact, refresh
from artemis_lifecycle.reachability.index.view import rows_of_shares, shares
from artemis_lifecycle.spark.runner import Cost, Rows, Runner, Spark
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.location import LocationRules, normalize
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.tabular import Shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# --- holders ----------------------------------------------------------------------------------------------------------
# What holds a file: the snapshots that reach it, and the refs on them.


@dataclass(frozen=True)
class Holder:
    """A snapshot that reaches the file, with the refs on it; or, without an id, the metadata file that references
    it."""

    snapshot_id: int | None
    refs: tuple[str, ...] = ()
    what: str | None = None

    def __str__(self) -> str:
        if self.snapshot_id is None:
            return self.what or "the table's metadata"
        return f"snapshot {self.snapshot_id}" + (f" ({', '.join(self.refs)})" if self.refs else "")


def holders_of(view: IndexView, location: str) -> tuple[Holder, ...]:
    """Return every snapshot of the view's metadata that reaches the file at `location`, in the order of the history."""
    metadata, rules = view.metadata, view.index.rules
    own = [metadata.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    if location in {normalize(path, rules) for path in own}:
        return (Holder(None, what="the table's metadata log"),)
    refs: dict[int, list[str]] = {}
    for name, ref in sorted(metadata.refs.items()):
        refs.setdefault(ref.snapshot_id, []).append(f"{ref.type} {name}")
    return tuple(Holder(snapshot_id, tuple(refs.get(snapshot_id, ()))) for snapshot_id in holders(view, location))


# --- reachable set ----------------------------------------------------------------------------------------------------
# What the kept snapshots of a table reach, as a result for people and programs.


@dataclass(frozen=True)
class ReachableSet(Shown):
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
    counted = rows.map(_counted, _COUNTED).table().group_by("kind")
    totals = counted.aggregate([("files", "sum"), ("bytes", "sum")]).sort_by("kind").to_pylist()
    return ReachableSet(
        table=table,
        metadata_location=metadata_location,
        snapshot_ids=tuple(snapshot_ids),
        counts={row["kind"]: row["files_sum"] for row in totals},
        size_in_bytes=sum(row["bytes_sum"] for row in totals),
        _rows=rows,
    )


_COUNTED = arrow_schema("kind string, files bigint, bytes bigint")


def _counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = pa.table(batch).group_by("kind").aggregate([("path", "count"), ("size_in_bytes", "sum")])
        named = found.select(["kind", "path_count", "size_in_bytes_sum"]).rename_columns(_COUNTED.names)
        yield from named.cast(_COUNTED).to_batches()


FILES = "path string, kind string, size_in_bytes bigint, location string"


def indexed(
    spark: Spark | None,
    stores: Stores,
    metadata: TableMetadata,
    rules: LocationRules,
    root: str,
    settings: IndexSettings = DEFAULT_SETTINGS,
    files: Stores | IndexInMemory | None = None,
) -> IndexView:
    """Return the table's manifest index under `root`, as of `metadata`. Reads only what the index lacks.

    `files` can access `root` if `stores`, which access the metadata, cannot; or they are in memory.

    Raises UnreadableMetadata or EncryptedTable if anything that it has to read is missing, damaged, or differs from the
    level above.
    """
    index = ManifestIndex.open(stores, f"{root}/index", metadata.table_uuid, rules, settings, files)
    return refresh(index, metadata, spark)


def tidy(stores: Stores, metadata: TableMetadata, rules: LocationRules, root: str) -> int:
    """Merge and rewrite segments of the table's index where it pays off. Return how many were replaced."""
    return compact(ManifestIndex.open(stores, f"{root}/index", metadata.table_uuid, rules), metadata)


def reachable_files(runner: Runner, view: IndexView, snapshot_ids: Collection[int]) -> Rows:
    """Return everything that the given snapshots reach: rows of `FILES`, one per location.

    These are manifest lists, manifests, live entries of every content, and statistics files, but not the table's
    metadata files. Reading the rows may raise UnreadableMetadata.
    """
    ids, schema = list(snapshot_ids), arrow_schema(FILES)
    if not ids:
        return runner.rows(schema.empty_table())
    above = reachable(view, ids, entries=False).select(schema.names).cast(schema)
    count = entries_of(view, ids)
    entries = runner.map(shares(view, ids), rows_of_shares, schema, Cost(rows=count))
    return runner.meet([runner.concat(entries, above)], "location", _once, schema, Cost(rows=count + above.num_rows))


def _once(files: pa.Table) -> pa.Table:
    """Return one row per location."""
    kept = files.group_by("location").aggregate([("path", "min"), ("kind", "min"), ("size_in_bytes", "max")])
    return kept.rename_columns({"path_min": "path", "kind_min": "kind", "size_in_bytes_max": "size_in_bytes"})
