"""Pass three: the row groups of the selected files, by the statistics in their Parquet footers. It reads data files, so
only up to a limit that the caller sets.

Source: Iceberg's ParquetMetricsRowGroupFilter. Readers also use dictionaries, bloom filters and page indexes, which
this pass does not read: they may skip more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.planning.predicates import (
    ColumnMetrics,
    Key,
    Leaf,
    compiled,
    footer_matches,
    key_of_bytes,
    value_matches,
)
from artemis_lifecycle.storage.columnar import ParquetReader
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.types import IcebergType


# --- passes -----------------------------------------------------------------------------------------------------------
# The figures of one pass.


@dataclass(frozen=True)
class Pass:
    """What one pass gets and what it leaves. `reads_bytes` is what the pass itself reads to decide that; bytes are
    those of the things that it counts: manifests, data files, or row groups."""

    name: str
    total: int
    selected: int
    bytes_total: int
    bytes_selected: int
    reads_requests: int
    reads_bytes: int
    seconds: float

    @property
    def pruned_share(self) -> float:
        """The share that the pass removes, from 0 to 1."""
        return 1 - self.selected / self.total if self.total else 0.0


_THREADS = 16


@dataclass(frozen=True)
class _Footer:
    """The bytes of each row group with rows, whether it matches; and of the footer."""

    sizes: list[int]
    matches: list[bool]
    footer_bytes: int


def read_row_groups(
    stores: Stores, files: Sequence[tuple[str, BooleanExpression]], most: int
) -> tuple[Pass, dict[str, int]]:
    """Read the footers of at most `most` of the selected files (path, residual), the first ones. Return the pass, whose
    requests are the footers read, and how many footers were not read by the reason: a file that is missing or broken,
    or of another format."""
    started = time.monotonic()
    chosen = files[:most]
    skipped: dict[str, int] = {}
    if len(files) > most:
        skipped["beyond the limit"] = len(files) - most

    def read(file: tuple[str, BooleanExpression]) -> _Footer | str:
        path, condition = file
        if not path.lower().endswith((".parquet", ".parq")):
            return "not Parquet"
        try:
            return _footer(stores, path, condition)
        except StorageError as error:
            return type(error).__name__

    threads = stores.readers(chosen[0][0], _THREADS) if chosen else 1
    found: list[_Footer] = []
    for each in threaded(read, chosen, threads):
        if isinstance(each, str):
            skipped[each] = skipped.get(each, 0) + 1
        else:
            found.append(each)
    groups = [pair for each in found for pair in zip(each.sizes, each.matches, strict=True)]
    figures = Pass(
        "row groups",
        len(groups),
        sum(matches for _, matches in groups),
        sum(size for size, _ in groups),
        sum(size for size, matches in groups if matches),
        len(found),
        sum(each.footer_bytes for each in found),
        time.monotonic() - started,
    )
    return figures, skipped


def _footer(stores: Stores, path: str, condition: BooleanExpression) -> _Footer:
    with stores.open(path) as source:
        reader = ParquetReader(source, path, stores.limits)
        try:
            metadata = reader.metadata
            places = _places(reader)
            matches = compiled(condition, lambda leaf: _matcher(leaf, places.get(leaf.field_id)))
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            sizes = [
                sum(group.column(place).total_compressed_size for place in range(group.num_columns)) for group in groups
            ]
            return _Footer(sizes, [group.num_rows > 0 and matches(group) for group in groups], metadata.serialized_size)
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


def _matcher(leaf: Leaf, place: int | None) -> Callable[[Any], bool]:
    """Return what decides whether a row group may match a leaf whose column has that place in the file."""
    if not leaf.kind.is_primitive:
        # A footer does not say which structs, lists and maps are null.
        return lambda _: True
    if place is None:
        # Readers fill a column that the file does not have with its default, or with nulls.
        by_default = _match_default(leaf)
        return lambda _: by_default
    return lambda group: footer_matches(leaf, _metrics(group.column(place), leaf.kind))


def _match_default(leaf: Leaf) -> bool:
    term: Any = leaf.bound.term
    by_null = leaf.op in ("is_null", "not_nan", "not_eq", "not_in", "not_starts_with")
    default = term.ref().field.initial_default
    if default is None:
        return by_null
    value = _key(default, leaf.kind)
    # A field of a null struct is null, whatever its default.
    may_be_null = by_null and term.accessor.inner is not None
    return value is None or value_matches(leaf, value) or may_be_null


def _metrics(column: Any, kind: IcebergType) -> ColumnMetrics:
    found = column.statistics if column.is_stats_set else None
    nulls = found.null_count if found is not None and found.has_null_count else None
    lower, upper = (found.min, found.max) if found is not None and found.has_min_max else (None, None)
    return ColumnMetrics(column.num_values, nulls, None, _key(lower, kind), _key(upper, kind))


def _key(value: Any, kind: Any) -> Key:
    """Return the key of a footer's value; None if it is of no type that the column can be read from."""
    from pyiceberg.conversions import to_bytes

    if value is None:
        return None
    try:
        return key_of_bytes(kind)(to_bytes(kind, value))
    except (TypeError, ValueError, AttributeError, OverflowError):
        return None
