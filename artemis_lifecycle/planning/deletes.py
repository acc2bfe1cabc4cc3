"""The delete files that apply to each selected data file. Source: Iceberg's DeleteFileIndex; format/spec.md, "Scan
Planning".

A deletion vector or a position delete file applies to data that is not newer, an equality delete file to data that is
older. Equality deletes of an unpartitioned spec apply to every partition; what names one data file applies to that
file; everything else to its own partition of its own spec. A deletion vector replaces position delete files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.metadata.kinds import Kind, kind_of
from artemis_lifecycle.metadata.unreadable import unreadable
from artemis_lifecycle.planning.evaluation import ColumnMetrics
from artemis_lifecycle.planning.keys import Keys, Mask
from artemis_lifecycle.planning.pruning import Entries

if TYPE_CHECKING:
    from pyiceberg.types import NestedField

DELETE_PATH = 2147483546
"""The field id of `file_path` in position delete files (spec, "Reserved Field IDs")."""


@dataclass(frozen=True)
class DeleteFiles:
    """The delete files that a scan selects, and the data files they may apply to: `groups` are those of
    `partition_groups`, `targets` the one data file of a delete file, if it names one."""

    paths: pa.Array
    sizes: NDArray[np.int64]
    kinds: tuple[Kind, ...]
    sequence_numbers: NDArray[np.int64]
    groups: NDArray[np.int64]
    is_global: Mask
    targets: tuple[str | None, ...]
    equality_ids: tuple[tuple[int, ...], ...]
    metrics: Mapping[int, ColumnMetrics]

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class DataFiles:
    """The data files that a scan selects, as far as deletes depend on them."""

    paths: pa.Array
    sequence_numbers: NDArray[np.int64]
    groups: NDArray[np.int64]
    metrics: Mapping[int, ColumnMetrics]

    def __len__(self) -> int:
        return len(self.sequence_numbers)


def partition_groups(parts: Sequence[Entries]) -> list[NDArray[np.int64]]:
    """Number the partitions of all entries: two entries have one number exactly if they have one spec and equal
    partition values. One array for each of `parts`."""
    numbers: list[NDArray[np.int64]] = [np.zeros(len(part), np.int64) for part in parts]
    used = 0
    for spec_id in sorted({part.spec_id for part in parts}):
        places = [place for place, part in enumerate(parts) if part.spec_id == spec_id]
        width = len(parts[places[0]].partitions)
        codes = np.zeros(sum(len(parts[place]) for place in places), np.int64)
        for position in range(width):
            column = pa.concat_arrays([_arrow(parts[place].partitions[position]) for place in places])
            encoded = column.dictionary_encode(null_encoding="encode")
            own = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            codes = np.unique(codes * (len(encoded.dictionary) + 1) + own, return_inverse=True)[1].astype(np.int64)
        at = 0
        for place in places:
            numbers[place] = codes[at : at + len(parts[place])] + used
            at += len(parts[place])
        used += int(codes.max(initial=-1)) + 1
    return numbers


def _arrow(keys: Keys) -> pa.Array:
    if isinstance(keys.values, np.ndarray):
        return pa.array(keys.values, pa.int64(), mask=~keys.known)
    return keys.values


def equality_columns(parts: Sequence[Entries]) -> set[int]:
    """Return the ids of the columns by which any of these delete files deletes."""
    found: set[int] = set()
    for part in parts:
        for row in part.rows[part.live.contents[part.rows] == 2].tolist():
            found.update(part.live.equality_ids(row))
    return found


def delete_files(
    parts: Sequence[Entries], groups: Sequence[NDArray[np.int64]], fields: Mapping[int, NestedField]
) -> DeleteFiles:
    """Return the delete files of `parts`, whose partitions are numbered by `groups`. `fields`: the columns that they
    delete by. Raises UnreadableMetadata."""
    kinds: list[Kind] = []
    targets: list[str | None] = []
    equality: list[tuple[int, ...]] = []
    is_global: list[bool] = []
    for part in parts:
        formats, referenced = part.texts("file_format").to_pylist(), part.texts("referenced_data_file").to_pylist()
        lower, upper = (
            part.live.bound(kind, DELETE_PATH).take(pa.array(part.rows)).to_pylist()
            for kind in ("lower_bounds", "upper_bounds")
        )
        contents = part.live.contents[part.rows].tolist()
        for number, row in enumerate(part.rows.tolist()):
            kind = kind_of(contents[number], formats[number])
            kinds.append(kind)
            is_equality = kind == "equality_deletes"
            equality.append(part.live.equality_ids(row) if is_equality else ())
            is_global.append(is_equality and not part.partitions)
            named = referenced[number]
            if named is None and lower[number] is not None and lower[number] == upper[number]:
                named = lower[number].decode("utf-8", "surrogateescape")
            targets.append(None if is_equality else named)
    unknown = {each for ids in equality for each in ids} - fields.keys()
    if unknown:
        raise unreadable(
            f"An equality delete file deletes by field {min(unknown)}, which no schema has", "a delete manifest"
        )
    return DeleteFiles(
        paths=joined_texts(part.texts("file_path") for part in parts),
        sizes=concatenated(part.live.sizes[part.rows] for part in parts),
        kinds=tuple(kinds),
        sequence_numbers=concatenated(part.sequence_numbers for part in parts),
        groups=concatenated(groups),
        is_global=np.array(is_global, np.bool_),
        targets=tuple(targets),
        equality_ids=tuple(equality),
        metrics={each: joined_metrics([part.metrics[each] for part in parts]) for each in fields} if parts else {},
    )


def applicable(
    deletes: DeleteFiles, data: DataFiles, fields: Mapping[int, NestedField]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs (data file, delete file) of what applies, as row numbers, sorted. Raises UnreadableMetadata if
    one data file has two deletion vectors, or one that is older than its data."""
    pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    order = np.argsort(data.groups, kind="stable")
    sorted_groups = data.groups[order]
    named = _rows_of_targets(deletes, data)
    has_vector = np.zeros(len(data), np.bool_)
    for row, kind in enumerate(deletes.kinds):
        if kind == "deletion_vectors" and row in named:
            rows = named[row]
            if has_vector[rows].any():
                raise unreadable("A data file has two deletion vectors", data.paths[int(rows[0])].as_py())
            if (data.sequence_numbers[rows] > deletes.sequence_numbers[row]).any():
                raise unreadable("A deletion vector is older than its data file", data.paths[int(rows[0])].as_py())
            has_vector[rows] = True
            pairs.append((rows, np.full(len(rows), row, np.int64)))
    for row, kind in enumerate(deletes.kinds):
        if kind == "deletion_vectors" or deletes.sequence_numbers[row] <= 0:
            continue
        if deletes.is_global[row]:
            rows = np.arange(len(data))
        elif deletes.targets[row] is not None:
            rows = named.get(row, np.zeros(0, np.int64))
        else:
            group = deletes.groups[row]
            rows = order[np.searchsorted(sorted_groups, group) : np.searchsorted(sorted_groups, group, "right")]
        if not len(rows):
            continue
        sequence = deletes.sequence_numbers[row]
        if kind == "equality_deletes":
            rows = rows[data.sequence_numbers[rows] < sequence]
            rows = rows[_may_delete(deletes, row, data, rows, fields)]
        else:
            rows = rows[(data.sequence_numbers[rows] <= sequence) & ~has_vector[rows]]
        if len(rows):
            pairs.append((rows, np.full(len(rows), row, np.int64)))
    of_data = concatenated(each for each, _ in pairs)
    of_delete = concatenated(each for _, each in pairs)
    by_data = np.lexsort((of_delete, of_data))
    return of_data[by_data], of_delete[by_data]


def _rows_of_targets(deletes: DeleteFiles, data: DataFiles) -> dict[int, NDArray[np.int64]]:
    """Return the data file rows of each delete file that names its data file."""
    naming = [row for row, target in enumerate(deletes.targets) if target is not None]
    if not naming:
        return {}
    wanted = pa.array([deletes.targets[row] for row in naming], pa.large_string()).dictionary_encode()
    found = pc.index_in(data.paths, value_set=wanted.dictionary)
    rows = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
    places = found.drop_null().to_numpy()
    by_path: dict[int, list[int]] = {}
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        by_path.setdefault(place, []).append(row)
    return {
        row: np.array(by_path[place], np.int64)
        for row, place in zip(naming, wanted.indices.to_pylist(), strict=True)
        if place in by_path
    }


def _may_delete(
    deletes: DeleteFiles, row: int, data: DataFiles, rows: NDArray[np.int64], fields: Mapping[int, NestedField]
) -> Mask:
    """Return which of these data files may have a row that the equality delete file deletes."""
    may = np.ones(len(rows), np.bool_)
    for field_id in deletes.equality_ids[row]:
        field = fields[field_id]
        if not field.field_type.is_primitive:
            continue
        own, theirs = data.metrics[field_id], deletes.metrics[field_id]
        nulls, values = own.nulls[rows], own.values[rows]
        deleted_nulls, deleted_values = int(theirs.nulls[row]), int(theirs.values[row])
        optional = not field.required
        both_null = (nulls != 0) & (deleted_nulls != 0) & optional
        only_nulls = (nulls >= 0) & (values == nulls) & optional
        deletes_only_nulls = optional and deleted_nulls >= 0 and deleted_values == deleted_nulls
        excluded = only_nulls & ((not optional) or deleted_nulls == 0)
        excluded |= deletes_only_nulls & ((not optional) | (nulls == 0))
        if theirs.lower.known[row] and theirs.upper.known[row]:
            bounded = own.lower.known[rows] & own.upper.known[rows]
            above = own.lower.greater(_key(theirs.upper, row))[rows]
            below = own.upper.less(_key(theirs.lower, row))[rows]
            excluded |= bounded & (above | below)
        may &= ~excluded | both_null
    return may


def _key(keys: Keys, row: int) -> int | bytes:
    value: int | bytes = keys.values[row] if isinstance(keys.values, np.ndarray) else keys.values[row].as_py()
    return value


def joined_metrics(parts: Sequence[ColumnMetrics]) -> ColumnMetrics:
    """Concatenate metrics of one column."""
    return ColumnMetrics(
        concatenated(part.values for part in parts),
        concatenated(part.nulls for part in parts),
        concatenated(part.nans for part in parts),
        joined_keys([part.lower for part in parts]),
        joined_keys([part.upper for part in parts]),
    )


def joined_keys(parts: Sequence[Keys]) -> Keys:
    first = parts[0].values
    values = (
        np.concatenate([part.values for part in parts])
        if isinstance(first, np.ndarray)
        else pa.concat_arrays([part.values for part in parts])
    )
    nan = None if parts[0].nan is None else np.concatenate([part.nans for part in parts])
    return Keys(values, np.concatenate([part.known for part in parts]), nan)


def joined_texts(parts: Iterable[pa.Array]) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.large_string()), *parts])


def concatenated(parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *parts])
