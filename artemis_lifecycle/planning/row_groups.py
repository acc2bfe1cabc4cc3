"""Pass three: the row groups of the selected files, by the statistics in their Parquet footers. It reads data files, so
only up to a limit that the caller sets.

Source: Iceberg's ParquetMetricsRowGroupFilter. Readers also use dictionaries, bloom filters and page indexes, which
this pass does not read: they may skip more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.planning.evaluation import ColumnMetrics, evaluate, footers_match, values_match
from artemis_lifecycle.planning.keys import Keys, Mask, bound_keys
from artemis_lifecycle.planning.predicates import Leaf, Node
from artemis_lifecycle.storage.columnar import ParquetReader
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

_THREADS = 16


@dataclass(frozen=True)
class RowGroups:
    """Row groups of `files` files. `skipped` counts files whose footers were not read, by the reason."""

    files: int
    total: int
    selected: int
    bytes_total: int
    bytes_selected: int
    footer_bytes: int
    skipped: Mapping[str, int]


@dataclass(frozen=True)
class _Footer:
    sizes: NDArray[np.int64]
    matches: Mask
    footer_bytes: int


def read_row_groups(
    stores: Stores,
    files: pa.Table,
    residuals: tuple[Sequence[Node], NDArray[np.int64]],
    most: int,
) -> RowGroups:
    """Read the footers of at most `most` of the selected files (columns: FILES of the plan), the first ones.

    `residuals`: the distinct residuals, and the number of each file's. A file that is missing or broken is counted in
    `skipped`, as is one of another format.
    """
    paths = files.column("path").slice(0, most).to_pylist()
    nodes, codes = residuals
    skipped: dict[str, int] = {}
    if files.num_rows > most:
        skipped["beyond the limit"] = files.num_rows - most

    def read(place: int) -> _Footer | str:
        if not paths[place].lower().endswith((".parquet", ".parq")):
            return "not Parquet"
        try:
            return _footer(stores, paths[place], nodes[int(codes[place])])
        except StorageError as error:
            return type(error).__name__

    threads = stores.readers(paths[0], _THREADS) if paths else 1
    found: list[_Footer] = []
    for each in threaded(read, range(len(paths)), threads):
        if isinstance(each, str):
            skipped[each] = skipped.get(each, 0) + 1
        else:
            found.append(each)
    return RowGroups(
        files=len(found),
        total=sum(len(each.sizes) for each in found),
        selected=sum(int(each.matches.sum()) for each in found),
        bytes_total=sum(int(each.sizes.sum()) for each in found),
        bytes_selected=sum(int(each.sizes[each.matches].sum()) for each in found),
        footer_bytes=sum(each.footer_bytes for each in found),
        skipped=skipped,
    )


def _footer(stores: Stores, path: str, node: Node) -> _Footer:
    with stores.open(path) as source:
        reader = ParquetReader(source, path, stores.limits)
        try:
            metadata = reader.metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            places = _places(reader)
            sizes = [
                sum(group.column(place).total_compressed_size for place in range(group.num_columns)) for group in groups
            ]
            rows = np.array([group.num_rows for group in groups], np.int64)
            matches = evaluate(node, len(groups), _leaf_matcher(groups, places))
            return _Footer(np.array(sizes, np.int64), matches & (rows > 0), metadata.serialized_size)
        finally:
            reader.close()


def _places(reader: ParquetReader) -> dict[int, int]:
    """Return the number of each leaf column by its Iceberg field id; of leaves in structs, too."""
    found: dict[int, int] = {}
    place = 0

    def walk(each: pa.Field) -> None:
        nonlocal place
        children = [each.type.field(number) for number in range(each.type.num_fields)]
        if pa.types.is_map(each.type):
            children = [each.type.key_field, each.type.item_field]
        if children:
            for child in children:
                walk(child)
            return
        number = (each.metadata or {}).get(b"PARQUET:field_id")
        if number is not None:
            found[int(number)] = place
        place += 1

    for each in reader.schema:
        walk(each)
    return found


def _leaf_matcher(groups: Sequence[Any], places: Mapping[int, int]) -> Callable[[Leaf], Mask]:
    def matcher(leaf: Leaf) -> Mask:
        place = places.get(leaf.field_id)
        if not leaf.kind.is_primitive:
            # A footer does not say which structs, lists and maps are null.
            return np.ones(len(groups), np.bool_)
        if place is None:
            # Readers fill a column that the file does not have with its default, or with nulls.
            return _match_default(leaf, len(groups))
        return footers_match(leaf, _metrics(groups, place, leaf.kind))

    return matcher


def _match_default(leaf: Leaf, groups: int) -> Mask:
    term: Any = leaf.bound.term
    by_null = leaf.op in ("is_null", "not_nan", "not_eq", "not_in", "not_starts_with")
    default = term.ref().field.initial_default
    if default is None:
        return np.full(groups, by_null)
    value = _single_value(default, leaf.kind)
    if value is None:
        return np.ones(groups, np.bool_)
    # A field of a null struct is null, whatever its default.
    may_be_null = by_null and term.accessor.inner is not None
    return np.repeat(values_match(leaf, _keys([value], leaf.kind)) | may_be_null, groups)


def _metrics(groups: Sequence[Any], place: int, kind: IcebergType) -> ColumnMetrics:
    columns = [group.column(place) for group in groups]
    found = [column.statistics if column.is_stats_set else None for column in columns]
    values = np.array([column.num_values for column in columns], np.int64)
    nulls = np.array([each.null_count if each is not None and each.has_null_count else -1 for each in found], np.int64)
    bounds = [
        [None if each is None or not each.has_min_max else _single_value(getattr(each, name), kind) for each in found]
        for name in ("min", "max")
    ]
    lower, upper = (_keys(each, kind) for each in bounds)
    return ColumnMetrics(values, nulls, np.full(len(groups), -1, np.int64), lower, upper)


def _keys(values: Sequence[bytes | None], kind: IcebergType) -> Keys:
    return bound_keys(kind, pa.array(values, pa.large_binary()))


def _single_value(value: Any, kind: Any) -> bytes | None:
    """Return a footer's value as Iceberg would write it; None if it is of no type that the column can be read from."""
    from pyiceberg.conversions import to_bytes

    try:
        return to_bytes(kind, value)
    except (TypeError, ValueError, AttributeError, OverflowError):
        return None
