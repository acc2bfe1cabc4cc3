"""The delete files that apply to each selected data file. Source: Iceberg's DeleteFileIndex; format/spec.md, "Scan
Planning". pyiceberg 0.12 refuses equality deletes.

A deletion vector or a position delete file applies to data that is not newer, an equality delete file to data that is
older. Equality deletes of an unpartitioned spec apply to every partition; what names one data file applies to that
file; everything else to its own partition of its own spec. A deletion vector replaces position delete files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artemis_lifecycle.metadata.kinds import Kind, kind_of
from artemis_lifecycle.metadata.statistics import LiveEntry
from artemis_lifecycle.metadata.unreadable import unreadable
from artemis_lifecycle.planning.evaluation import ColumnMetrics
from artemis_lifecycle.planning.pruning import Partition, Selected, metrics_of

if TYPE_CHECKING:
    from pyiceberg.types import NestedField

DELETE_PATH = 2147483546
"""The field id of `file_path` in position delete files (spec, "Reserved Field IDs")."""


@dataclass(frozen=True)
class DeleteFile:
    """A delete file that a scan selects. `target` is the one data file that it applies to, if it names one."""

    live: LiveEntry
    partition: Partition
    kind: Kind
    target: str | None

    @classmethod
    def of(cls, selected: Selected) -> DeleteFile:
        """Return a selected entry, read with the metrics of DELETE_PATH, as a delete file."""
        live = selected.live
        kind, target = kind_of(live.content, live.file_format), live.referenced_data_file
        *_, lower, upper = live.statistics(DELETE_PATH)
        if target is None and lower is not None and lower == upper:
            target = lower.decode("utf-8", "surrogateescape")
        return cls(live, selected.partition, kind, None if kind == "equality_deletes" else target)


def equality_ids(deletes: Iterable[Selected | DeleteFile]) -> set[int]:
    """Return the ids of the columns by which any of these files deletes."""
    return {each for delete in deletes if delete.live.content == 2 for each in delete.live.equality_ids}


class DeleteIndex:
    """Delete files by what they apply to. `fields` are the columns that equality deletes compare. Raises
    UnreadableMetadata if one of them is missing."""

    def __init__(self, deletes: Sequence[DeleteFile], fields: Mapping[int, NestedField]) -> None:
        unknown = equality_ids(deletes) - fields.keys()
        if unknown:
            raise unreadable(
                f"An equality delete file deletes by field {min(unknown)}, which no schema has", "a delete manifest"
            )
        self.deletes, self.fields = deletes, fields
        self._by_target: dict[object, list[int]] = {}
        for place, delete in enumerate(deletes):
            target: object = delete.target
            if target is None:
                everywhere = delete.kind == "equality_deletes" and not delete.partition.key[1]
                target = None if everywhere else delete.partition.key
            self._by_target.setdefault(target, []).append(place)

    def applicable(self, data: Selected) -> list[int]:
        """Return the places of the delete files that apply to a data file. Raises UnreadableMetadata if it has two
        deletion vectors, or one that is older."""
        if not self.deletes:
            return []
        targets = (None, data.live.path, data.partition.key)
        found = sorted(place for target in targets for place in self._by_target.get(target, ()))
        vectors = [place for place in found if self.deletes[place].kind == "deletion_vectors"]
        vectors = [place for place in vectors if self.deletes[place].target is not None]
        if len(vectors) > 1:
            raise unreadable("A data file has two deletion vectors", data.live.path)
        if any(data.live.sequence_number > self.deletes[place].live.sequence_number for place in vectors):
            raise unreadable("A deletion vector is older than its data file", data.live.path)
        return [place for place in found if place in vectors or self._applies(place, data, bool(vectors))]

    def _applies(self, place: int, data: Selected, has_vector: bool) -> bool:
        delete, sequence = self.deletes[place], self.deletes[place].live.sequence_number
        if delete.kind == "deletion_vectors" or sequence <= 0:
            return False
        if delete.kind == "equality_deletes":
            return data.live.sequence_number < sequence and self._may_delete(place, data)
        return data.live.sequence_number <= sequence and not has_vector

    def _may_delete(self, place: int, data: Selected) -> bool:
        """Return True if the data file may have a row that the equality delete file deletes."""
        return all(
            _may_share(
                metrics_of(data.live, each, field.field_type),
                metrics_of(self.deletes[place].live, each, field.field_type),
                optional=not field.required,
            )
            for each in self.deletes[place].live.equality_ids
            if (field := self.fields[each]).field_type.is_primitive
        )


def _may_share(data: ColumnMetrics, delete: ColumnMetrics, *, optional: bool) -> bool:
    """Return True if a column may have a common value in a data file and in an equality delete file."""
    if optional and data.nulls != 0 and delete.nulls != 0:
        return True
    if optional and ((data.nulls_only and delete.nulls == 0) or (delete.nulls_only and data.nulls == 0)):
        return False
    bounds = (data.lower, data.upper, delete.lower, delete.upper)
    return any(each is None for each in bounds) or bool(data.lower <= delete.upper and data.upper >= delete.lower)
