"""Passes one and two: manifests by their partition summaries, then their entries by partition values and column
metrics. Belongs here: applying a predicate to what `metadata/` reads. Does not belong here: deletes, row groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.metadata.statistics import LiveEntries, Wanted, live_statistics
from artemis_lifecycle.metadata.summaries import SummarizedManifests, SummaryColumns
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.metadata.unreadable import unreadable
from artemis_lifecycle.metadata.values import partition_spec
from artemis_lifecycle.planning.evaluation import (
    ColumnMetrics,
    Summary,
    evaluate,
    metrics_match,
    summaries_match,
    values_match,
)
from artemis_lifecycle.planning.keys import Keys, Mask, bound_keys, value_keys
from artemis_lifecycle.planning.predicates import Constant, Leaf, Node, field_ids
from artemis_lifecycle.planning.projections import Projector
from artemis_lifecycle.planning.residuals import leaf_states, leaves
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

_CHUNK_MANIFESTS = 256
_CHUNK_BYTES = 8 << 20
_THREADS = 16


@dataclass(frozen=True)
class Filter:
    """A predicate bound to the schema of a scan, and the specs it is projected to.

    `pruning` has no negations, which projections need; `residual` has the predicate as it was written. `reads_all`: the
    predicate is the constant true, so that not even empty files are skipped, as in Iceberg.
    """

    pruning: Node
    residual: Node
    specs: Mapping[int, Projector]
    reads_all: bool

    @cached_property
    def columns(self) -> tuple[int, ...]:
        return field_ids(self.pruning)

    def projector(self, spec_id: int, path: str) -> Projector:
        """Return the projector of a spec. Raises UnreadableMetadata if the table's metadata does not have it."""
        found = self.specs.get(spec_id)
        if found is None:
            raise unreadable(f"The table's metadata has no partition spec {spec_id}", path)
        return found


def matching_manifests(found: SummarizedManifests, condition: Filter) -> Mask:
    """Pass one: return which manifests a scan reads. Reads nothing. Raises UnreadableMetadata."""
    listed = found.listed
    # A manifest without live entries is never read; an old list may not have the counts.
    selected: Mask = (listed.added != 0) | (listed.existing != 0)
    if condition.reads_all:
        return selected
    for spec_id in np.unique(found.spec_ids).tolist():
        rows = np.flatnonzero(found.spec_ids == spec_id)
        projector = condition.projector(spec_id, listed.path or "")
        matcher = _summary_matcher(found, rows, projector)
        selected[rows] &= evaluate(condition.pruning, len(rows), matcher)
    return selected


def _summary_matcher(
    found: SummarizedManifests, rows: NDArray[np.int64], projector: Projector
) -> Callable[[Leaf], Mask]:
    summaries: dict[int, Summary] = {}

    def matcher(leaf: Leaf) -> Mask:
        matches = np.ones(len(rows), np.bool_)
        for column, inclusive, _ in projector.of_leaf(leaf):
            position = column.position
            if isinstance(inclusive, Constant):
                matches &= inclusive.value
            elif inclusive is not None and position < len(found.summaries):
                if position not in summaries:
                    summaries[position] = _summary(found.summaries[position], rows, column.kind)
                matches &= summaries_match(inclusive, summaries[position])
        return matches

    return matcher


def _summary(columns: SummaryColumns, rows: NDArray[np.int64], kind: IcebergType) -> Summary:
    chosen = pa.array(rows)
    return Summary(
        columns.recorded[rows],
        columns.contains_null[rows] == 1,
        columns.contains_nan[rows],
        bound_keys(kind, columns.lower.take(chosen)),
        bound_keys(kind, columns.upper.take(chosen)),
        str(kind) in ("float", "double"),
    )


@dataclass(frozen=True)
class Entries:
    """Entries of one spec that a scan selects. `partitions` are by the spec's positions; `metrics` by column id.
    `states` has one column per leaf of the residual: 1 always true, -1 always false, 0 undecided."""

    spec_id: int
    live: LiveEntries
    rows: NDArray[np.int64]
    partitions: tuple[Keys, ...]
    metrics: Mapping[int, ColumnMetrics]
    states: NDArray[np.int8]
    seen: Seen

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sequence_numbers(self) -> NDArray[np.int64]:
        return self.live.sequence_numbers[self.rows]

    def texts(self, name: str) -> pa.Array:
        return self.live.texts(name, self.rows)


@dataclass(frozen=True)
class Seen:
    """All live entries of the manifests that were read: files and bytes; and those whose partition matches."""

    files: int
    size_in_bytes: int
    in_partition: int


def matching_entries(
    stores: Stores,
    found: SummarizedManifests,
    selected: NDArray[np.int64],
    condition: Filter,
    further: Mapping[int, IcebergType],
) -> Iterator[Entries]:
    """Pass two: read the `selected` manifests and yield the entries that a scan selects, some manifests at a time.

    `further` are columns whose metrics the caller needs. Raises UnreadableMetadata, EncryptedTable.
    """
    if not len(selected):
        return
    listed = found.listed
    chunks = list(_chunks(found, selected))
    average = float(np.maximum(listed.lengths[selected], 0).mean())
    threads = stores.readers(listed.paths[int(selected[0])].as_py(), _THREADS, average)
    columns = tuple(sorted({*condition.columns, *further}))

    def read(rows: NDArray[np.int64]) -> list[Entries]:
        spec_id = int(found.spec_ids[rows[0]])
        entries = [found.entry(int(row)) for row in rows]
        projector = condition.projector(spec_id, entries[0].manifest_path)
        wanted = Wanted(columns, tuple(column.field_id for column in projector.columns))
        return [
            _matching(live, spec_id, projector, condition, further) for live in live_statistics(stores, entries, wanted)
        ]

    for part in threaded(read, chunks, threads):
        yield from part


def _chunks(found: SummarizedManifests, selected: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    lengths = np.maximum(found.listed.lengths, 0)
    for spec_id in np.unique(found.spec_ids[selected]).tolist():
        rows = selected[found.spec_ids[selected] == spec_id]
        piece = np.cumsum(lengths[rows]) // _CHUNK_BYTES * len(rows) + np.arange(len(rows)) // _CHUNK_MANIFESTS
        yield from np.split(rows, np.flatnonzero(np.diff(piece)) + 1)


def _matching(
    live: LiveEntries,
    spec_id: int,
    projector: Projector,
    condition: Filter,
    further: Mapping[int, IcebergType],
) -> Entries:
    count = len(live)
    partitions = tuple(value_keys(column.kind, live.partition(column.field_id), count) for column in projector.columns)
    metrics: dict[int, ColumnMetrics] = {}

    def column_metrics(field_id: int, kind: IcebergType) -> ColumnMetrics:
        if field_id not in metrics:
            metrics[field_id] = metrics_of(live, field_id, kind)
        return metrics[field_id]

    in_partition = matches = np.ones(count, np.bool_)
    if not condition.reads_all:
        in_partition = evaluate(
            condition.pruning, count, lambda leaf: _partition_matches(leaf, projector, partitions, count)
        )
        by_metrics = evaluate(
            condition.pruning, count, lambda leaf: metrics_match(leaf, column_metrics(leaf.field_id, leaf.kind))
        )
        records = live.record_counts
        # Imported Avro files may have the count -1, which says nothing.
        matches = in_partition & (records != 0) & (by_metrics | (records < 0))
    rows = np.flatnonzero(matches)
    kept = tuple(_taken(keys, rows) for keys in partitions)
    further_metrics = {each: _taken_metrics(column_metrics(each, kind), rows) for each, kind in further.items()}
    states = np.zeros((len(rows), len(leaves(condition.residual))), np.int8)
    for number, leaf in enumerate(leaves(condition.residual)):
        states[:, number] = leaf_states(leaf, projector, kept, len(rows))
    seen = Seen(count, int(live.sizes.sum()), int(in_partition.sum()))
    return Entries(spec_id, live, rows, kept, further_metrics, states, seen)


def _partition_matches(leaf: Leaf, projector: Projector, partitions: Sequence[Keys], rows: int) -> Mask:
    matches = np.ones(rows, np.bool_)
    for column, inclusive, _ in projector.of_leaf(leaf):
        if isinstance(inclusive, Constant):
            matches &= inclusive.value
        elif inclusive is not None:
            matches &= values_match(inclusive, partitions[column.position])
    return matches


def metrics_of(live: LiveEntries, field_id: int, kind: IcebergType) -> ColumnMetrics:
    """Return the counts and bounds of a column, for all live entries. Raises UnreadableMetadata."""

    def count(name: str) -> NDArray[np.int64]:
        found = live.count(name, field_id)
        return np.where(found.known, found.values, -1)

    has_bounds = kind.is_primitive
    nothing = pa.nulls(len(live), pa.large_binary())
    lower, upper = (live.bound(name, field_id) if has_bounds else nothing for name in ("lower_bounds", "upper_bounds"))
    return ColumnMetrics(
        count("value_counts"),
        count("null_value_counts"),
        count("nan_value_counts"),
        bound_keys(kind, lower) if has_bounds else Keys(nothing, np.zeros(len(live), np.bool_)),
        bound_keys(kind, upper) if has_bounds else Keys(nothing, np.zeros(len(live), np.bool_)),
    )


def _taken(keys: Keys, rows: NDArray[np.int64]) -> Keys:
    if len(rows) == len(keys.known):
        return keys
    values = keys.values[rows] if isinstance(keys.values, np.ndarray) else keys.values.take(pa.array(rows))
    return Keys(values, keys.known[rows], None if keys.nan is None else keys.nan[rows])


def _taken_metrics(metrics: ColumnMetrics, rows: NDArray[np.int64]) -> ColumnMetrics:
    return ColumnMetrics(
        metrics.values[rows],
        metrics.nulls[rows],
        metrics.nans[rows],
        _taken(metrics.lower, rows),
        _taken(metrics.upper, rows),
    )


def filter_specs(metadata: TableMetadata, schema: Schema) -> dict[int, Projector]:
    """Return the projector of each spec of the table, bound to `schema`. Raises UnreadableMetadata."""
    return {spec_id: Projector.of(partition_spec(metadata, spec_id), schema) for spec_id in metadata.partition_specs}
