"""The delete files that apply to each selected data file. Source: Iceberg's DeleteFileIndex; format/spec.md, "Scan
Planning". pyiceberg 0.12 refuses equality deletes.

A deletion vector or a position delete file applies to data that is not newer, an equality delete file to data that is
older. Equality deletes of an unpartitioned spec apply to every partition; what names one data file applies to that
file; everything else to its own partition of its own spec. A deletion vector replaces position delete files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from artemis_lifecycle.metadata.statistics import LiveEntry
from artemis_lifecycle.metadata.types import DELETION_VECTORS, EQUALITY_DELETES, Kind
from artemis_lifecycle.metadata.unreadable import unreadable
from artemis_lifecycle.planning.predicates import ColumnMetrics
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
    target: str | None

    @classmethod
    def of(cls, selected: Selected) -> DeleteFile:
        """Return a selected entry, read with the metrics of DELETE_PATH, as a delete file."""
        live = selected.live
        target = live.referenced_data_file
        *_, lower, upper = live.statistics(DELETE_PATH)
        if target is None and lower is not None and lower == upper:
            target = lower.decode("utf-8", "surrogateescape")
        return cls(live, selected.partition, None if live.kind == EQUALITY_DELETES else target)


def equality_ids(deletes: Iterable[Selected | DeleteFile]) -> set[int]:
    """Return the ids of the columns by which any of these files deletes."""
    by_values = [delete.live for delete in deletes if delete.live.kind == EQUALITY_DELETES]
    return {each for live in by_values for each in live.equality_ids}


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
                everywhere = delete.live.kind == EQUALITY_DELETES and not delete.partition.key[1]
                target = None if everywhere else delete.partition.key
            self._by_target.setdefault(target, []).append(place)

    def applicable(self, data: Selected) -> list[int]:
        """Return the places of the delete files that apply to a data file. Raises UnreadableMetadata if it has two
        deletion vectors, or one that is older."""
        if not self.deletes:
            return []
        targets = (None, data.live.path, data.partition.key)
        found = sorted(place for target in targets for place in self._by_target.get(target, ()))
        sequence = data.live.sequence_number
        vectors = [place for place in self._by_target.get(data.live.path, ()) if self._kind(place) == DELETION_VECTORS]
        if len(vectors) > 1:
            raise unreadable("A data file has two deletion vectors", data.live.path)
        if any(sequence > self.deletes[place].live.sequence_number for place in vectors):
            raise unreadable("A deletion vector is older than its data file", data.live.path)
        own: dict[int, ColumnMetrics] = {}

        def applies(place: int) -> bool:
            kind, of_delete = self._kind(place), self.deletes[place].live.sequence_number
            if kind == DELETION_VECTORS or of_delete <= 0:
                return place in vectors
            if kind != EQUALITY_DELETES:
                return sequence <= of_delete and not vectors
            return sequence < of_delete and self._may_delete(place, data.live, own)

        return [place for place in found if applies(place)]

    def _kind(self, place: int) -> Kind:
        return self.deletes[place].live.kind

    @cached_property
    def _compared(self) -> list[dict[int, ColumnMetrics]]:
        """For each delete file the metrics of the columns by which it deletes, as far as they have bounds."""
        kinds = {each: field.field_type for each, field in self.fields.items() if field.field_type.is_primitive}
        return [
            {each: metrics_of(delete.live, each, kinds[each]) for each in delete.live.equality_ids if each in kinds}
            for delete in self.deletes
        ]

    def _may_delete(self, place: int, data: LiveEntry, own: dict[int, ColumnMetrics]) -> bool:
        """Return True if the data file may have a row that the equality delete file deletes. `own` are the metrics of
        the data file that were needed before."""
        for each, metrics in self._compared[place].items():
            field = self.fields[each]
            if each not in own:
                own[each] = metrics_of(data, each, field.field_type)
            if not _may_share(own[each], metrics, optional=not field.required):
                return False
        return True


def _may_share(data: ColumnMetrics, delete: ColumnMetrics, *, optional: bool) -> bool:
    """Return True if a column may have a common value in a data file and in an equality delete file."""
    if optional and data.nulls != 0 and delete.nulls != 0:
        return True
    if optional and ((data.nulls_only and delete.nulls == 0) or (delete.nulls_only and data.nulls == 0)):
        return False
    bounds = (data.lower, data.upper, delete.lower, delete.upper)
    return any(each is None for each in bounds) or bool(data.lower <= delete.upper and data.upper >= delete.lower)
