"""Passes one and two: manifests by their partition summaries, then their entries by partition values and column
metrics.

Entries of one partition have one answer: what depends on partition values alone, the residual included, is evaluated
once for each partition.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from artemis_lifecycle.metadata.statistics import LiveEntry, Wanted, live_statistics
from artemis_lifecycle.metadata.types import ManifestListEntry, PartitionSummary, TableMetadata
from artemis_lifecycle.metadata.unreadable import unreadable
from artemis_lifecycle.metadata.values import partition_spec, table_schema
from artemis_lifecycle.planning.predicates import (
    ColumnMetrics,
    Key,
    Leaf,
    bind_predicate,
    compiled,
    key_of_bytes,
    leaf_of,
    metrics_match,
    parse_predicate,
    summary_matches,
    value_matches,
    with_decided,
    without_not,
)
from artemis_lifecycle.planning.projections import PartitionColumn, Projection, partition_columns, projections
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression, BoundPredicate
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

_THREADS = 16

PartitionKey: TypeAlias = tuple[int, tuple[Key, ...]]
"""A spec's id and the keys of its partition values: equal for two files exactly if they are in one partition."""


@dataclass(frozen=True)
class Partition:
    """What a predicate says of one partition: whether its inclusive projection holds, and what is left of it."""

    key: PartitionKey
    matches: bool
    residual: BooleanExpression


@dataclass(frozen=True)
class Filter:
    """A predicate bound to the schema of a scan.

    `pruning` has no negations, which projections need; `residual` has the predicate as it was written. `reads_all`: the
    predicate is the constant true, so that not even empty files are skipped, as in Iceberg.
    """

    metadata: TableMetadata
    schema: Schema
    pruning: BooleanExpression
    residual: BooleanExpression
    reads_all: bool

    @classmethod
    def of(
        cls,
        predicate: str | BooleanExpression,
        table: str,
        metadata: TableMetadata,
        schema_id: int,
        *,
        case_sensitive: bool = True,
    ) -> Filter:
        """Raises BadInput for a predicate that cannot be used."""
        from pyiceberg.expressions import AlwaysTrue

        parsed, schema = parse_predicate(predicate), table_schema(metadata, schema_id)
        bound = bind_predicate(parsed, schema, table, case_sensitive=case_sensitive)
        return cls(metadata, schema, without_not(bound), bound, reads_all=isinstance(parsed, AlwaysTrue))

    def may_match(self, partition: str) -> bool:
        """Return False if no row of the partition, a text as of `live_partitions`, can match."""
        spec_id, *values = json.loads(partition)
        spec = self.of_spec(int(spec_id), self.metadata.metadata_location)
        if len(values) != len(spec.columns):
            return True
        pairs = zip(spec.columns, values, strict=True)
        return spec.partition([_stored(column.kind, value) for column, value in pairs]).matches

    @cached_property
    def columns(self) -> set[int]:
        """The ids of the predicate's columns."""
        from pyiceberg.expressions.visitors import extract_field_ids

        return extract_field_ids(self.pruning)

    @cached_property
    def metrics(self) -> Callable[[Callable[[int, IcebergType], ColumnMetrics]], bool]:
        """What decides whether a file may have a matching row, by the metrics of its columns."""

        def test(leaf: Leaf) -> Callable[[Callable[[int, IcebergType], ColumnMetrics]], bool]:
            return lambda column: metrics_match(leaf, column(leaf.field_id, leaf.kind))

        return compiled(self.pruning, test)

    @cached_property
    def _specs(self) -> dict[int, SpecFilter]:
        return {}

    def of_spec(self, spec_id: int, path: str) -> SpecFilter:
        """Return the predicate for partitions of a spec. Raises UnreadableMetadata if the table's metadata does not
        have it."""
        if spec_id not in self.metadata.partition_specs:
            raise unreadable(f"The table's metadata has no partition spec {spec_id}", path)
        if spec_id not in self._specs:
            columns = partition_columns(partition_spec(self.metadata, spec_id), self.schema)
            self._specs[spec_id] = SpecFilter(spec_id, columns, self.pruning, self.residual)
        return self._specs[spec_id]


def _stored(kind: IcebergType, value: int | float | str | None) -> int | bytes | None:
    """Return a value of a partition's text as manifests store it."""
    if isinstance(value, float):
        return struct.pack("<f" if str(kind) == "float" else "<d", value)
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


@dataclass(frozen=True)
class SpecFilter:
    spec_id: int
    columns: tuple[PartitionColumn, ...]
    pruning: BooleanExpression
    residual: BooleanExpression
    _partitions: dict[tuple[Key, ...], Partition] = field(default_factory=dict)
    _of_residual: dict[int, list[tuple[int, Projection, Projection]]] = field(default_factory=dict)

    @cached_property
    def summaries(self) -> Callable[[Sequence[PartitionSummary]], bool]:
        """What decides whether a manifest may have a matching entry, by its partition summaries."""

        def one(position: int, projection: Projection, recorded: Sequence[PartitionSummary]) -> bool:
            if isinstance(projection, bool) or position >= len(recorded):
                return projection is not False
            return summary_matches(projection, recorded[position])

        return compiled(self.pruning, lambda leaf: self._all(leaf, one))

    @cached_property
    def _values(self) -> Callable[[tuple[Key, ...]], bool]:
        return compiled(self.pruning, lambda leaf: self._all(leaf, _holds))

    def _all(self, leaf: Leaf, one: Callable[[int, Projection, Any], bool]) -> Callable[[Any], bool]:
        found = [(column.position, each) for column, each in projections(leaf, self.columns, strict=False)]
        return lambda given: all(one(position, each, given) for position, each in found)

    @cached_property
    def _keys(self) -> tuple[Callable[[bytes], Key], ...]:
        return tuple(key_of_bytes(column.kind) for column in self.columns)

    def partition(self, stored: Sequence[int | bytes | None]) -> Partition:
        """Return what the predicate says of the partition with these values."""
        pairs = zip(self._keys, stored, strict=True)
        keys = tuple([key(value) if isinstance(value, bytes) else value for key, value in pairs])
        found = self._partitions.get(keys)
        if found is None:
            residual = with_decided(self.residual, lambda each: self._decided(each, keys))
            found = Partition((self.spec_id, keys), self._values(keys), residual)
            self._partitions[keys] = found
        return found

    def _decided(self, bound: BoundPredicate, keys: tuple[Key, ...]) -> bool | None:
        """Return True if a comparison is true for all rows of the partition, False if for none. Source: Iceberg's
        ResidualEvaluator: the first partition field that decides."""
        for position, strict, inclusive in self._projected(bound):
            if _holds(position, strict, keys):
                return True
            if not _holds(position, inclusive, keys):
                return False
        return None

    def _projected(self, bound: BoundPredicate) -> list[tuple[int, Projection, Projection]]:
        if id(bound) not in self._of_residual:
            leaf = leaf_of(bound)
            strict, inclusive = (
                {column.position: each for column, each in projections(leaf, self.columns, strict=strictly)}
                for strictly in (True, False)
            )
            self._of_residual[id(bound)] = [
                (position, strict.get(position, False), inclusive.get(position, True))
                for position in sorted(strict.keys() | inclusive.keys())
            ]
        return self._of_residual[id(bound)]


def _holds(position: int, projection: Projection, keys: tuple[Key, ...]) -> bool:
    return projection if isinstance(projection, bool) else value_matches(projection, keys[position])


def manifest_matches(entry: ManifestListEntry, condition: Filter, path: str) -> bool:
    """Pass one: return True if a scan reads the manifest that the list at `path` names. Reads nothing."""
    # A manifest without live entries is never read; an old list may not have the counts.
    if entry.live_files_count == 0:
        return False
    return condition.reads_all or condition.of_spec(entry.partition_spec_id, path).summaries(entry.partitions)


@dataclass(frozen=True, slots=True)
class Selected:
    """An entry that a scan selects."""

    live: LiveEntry
    partition: Partition


@dataclass(frozen=True)
class Entries:
    """The live entries of one manifest: files and bytes of all, those whose partition matches, those selected."""

    files: int
    size_in_bytes: int
    in_partition: int
    selected: list[Selected]


def matching_entries(
    stores: Stores, manifests: Sequence[ManifestListEntry], condition: Filter, further: Iterable[int]
) -> Iterator[Entries]:
    """Pass two: read the manifests and yield what a scan selects of each. `further` are columns whose metrics the
    caller needs. Raises UnreadableMetadata, EncryptedTable."""
    if not manifests:
        return
    average = sum(max(each.manifest_length, 0) for each in manifests) / len(manifests)
    threads = stores.readers(manifests[0].manifest_path, _THREADS, average)
    columns = tuple(sorted({*condition.columns, *further}))

    def read(entry: ManifestListEntry) -> Entries:
        spec = condition.of_spec(entry.partition_spec_id, entry.manifest_path)
        entries = live_statistics(stores, entry, Wanted(columns, tuple(column.field_id for column in spec.columns)))
        placed = [Selected(live, spec.partition(live.partition)) for live in entries]
        if not condition.reads_all:
            placed = [each for each in placed if each.partition.matches]
        selected = [each for each in placed if _may_match(each.live, condition)]
        return Entries(len(entries), sum(live.size_in_bytes for live in entries), len(placed), selected)

    yield from threaded(read, manifests, threads)


def _may_match(live: LiveEntry, condition: Filter) -> bool:
    if condition.reads_all or live.record_count < 0:
        # Imported Avro files may have the count -1, which says nothing.
        return True
    known: dict[int, ColumnMetrics] = {}

    def column(field_id: int, kind: IcebergType) -> ColumnMetrics:
        if field_id not in known:
            known[field_id] = metrics_of(live, field_id, kind)
        return known[field_id]

    return live.record_count != 0 and condition.metrics(column)


def metrics_of(live: LiveEntry, field_id: int, kind: IcebergType) -> ColumnMetrics:
    """Return the counts and bounds of a column in one file. Raises UnreadableMetadata."""
    *counts, lower, upper = live.statistics(field_id)
    values, nulls, nans = [None if each is None or each < 0 else each for each in counts]
    if not kind.is_primitive:
        return ColumnMetrics(values, nulls, nans, None, None)
    key = key_of_bytes(kind)
    return ColumnMetrics(
        values, nulls, nans, None if lower is None else key(lower), None if upper is None else key(upper)
    )
