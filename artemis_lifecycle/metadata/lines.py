"""How two lines of metadata of one table relate. A catalog that comes back from a backup, or an older metadata file
that somebody registers, begins a second line: both go on from the same past, and give the same numbers to different
things.

Pure. Restores, reads, the history index and handoffs ask `relate` before they take the archive for a table's past.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from typing import Any

from artemis_lifecycle.catalogs.rest import PUT_BACK
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata

CLOCK_TOLERANCE_MS = 60_000
"""How much earlier than the previous commit Iceberg allows a commit to be."""

CONTINUES = "artemis.continues"
"""A table property, set by a restore into a table whose catalog was put back: the metadata file of the lost line above
all of whose numbers this line goes on."""


_PUT_BACK = re.compile(rf"{re.escape(PUT_BACK)}-?\d{{1,20}}")


class Relation(StrEnum):
    """What one line is to another: `ahead` has all of the other's past, `behind` is a part of it, and of two that
    `diverged`, each has commits that the other's past excludes."""

    SAME = "same"
    AHEAD = "ahead"
    BEHIND = "behind"
    DIVERGED = "diverged"


@dataclass(frozen=True)
class Marks:
    """The highest numbers that a line has given out. Format version 1 has no sequence numbers, 1 and 2 no row ids."""

    sequence_number: int = 0
    column_id: int = 0
    partition_id: int = 0
    next_row_id: int = 0

    @classmethod
    def of(cls, metadata: TableMetadata) -> Marks:
        """Return a table's marks."""
        rows = metadata.next_row_id or 0
        return cls(metadata.last_sequence_number, metadata.last_column_id, metadata.last_partition_id, rows)

    def exceeds(self, other: Marks) -> bool:
        """Return True if any of these marks is higher than the other's."""
        return any(mine > theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True))


@dataclass(frozen=True)
class Line:
    """A line of metadata, as far as one document shows it. `file` is its newest metadata file, `files` are those before
    (both by name, with when they were written), `continues` is one that it is declared to follow. `logged` has when
    snapshots became current, `parts` the schemas and specs without their ids, `schemas` the schemas by id. `put_back`
    has all numbers of each snapshot that a REST catalog dropped and a step set again. `left_ms` is when (by Postgres)
    the table was last found to have left a line, which its metadata log soon no longer shows; 0 for never."""

    table_uuid: str
    marks: Marks
    file: str | None
    updated_ms: int
    snapshots: Mapping[int, Snapshot] = field(default_factory=dict)
    logged: Mapping[int, int] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    continues: str | None = None
    parts: frozenset[str] = frozenset()
    put_back: Mapping[int, frozenset[str]] = field(default_factory=dict)
    left_ms: int = 0
    schemas: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: TableMetadata, left_ms: int = 0) -> Line:
        """Return the line of which a table's metadata file is the newest."""
        schemas = {number: _part(text) for number, text in metadata.schemas.items()}
        return cls(
            metadata.table_uuid,
            Marks.of(metadata),
            file_name(metadata.metadata_location),
            metadata.last_updated_ms,
            metadata.snapshots_by_id,
            {each.snapshot_id: each.timestamp_ms for each in metadata.snapshot_log},
            {file_name(each.metadata_file): each.timestamp_ms for each in metadata.metadata_log},
            metadata.properties.get(CONTINUES),
            frozenset((*schemas.values(), *map(_part, metadata.partition_specs.values()))),
            {
                int(key.removeprefix(PUT_BACK)): frozenset(value.split())
                for key, value in metadata.properties.items()
                if _PUT_BACK.fullmatch(key)
            },
            left_ms,
            schemas,
        )

    def follows(self, other: Line) -> bool | None:
        """Return True if the metadata log proves that this line contains the other one, False if it proves that it does
        not; None if it does not reach that far back."""
        if other.file is None or self.file is None:
            return None
        if other.file in (self.file, self.continues) or other.file in self.files:
            return True
        reaches = min(self.files.values(), default=self.updated_ms) <= other.updated_ms
        return False if reaches or self.updated_ms < other.updated_ms else None

    def surely_follows(self, other: Line) -> bool:
        """Return True if this line is proven to contain the other one: by the metadata log, or because it has the
        snapshot that got the other one's last numbers. That no number contradicts it proves nothing."""
        if self.follows(other):
            return True
        last = max(other.logged, key=lambda number: other.logged[number], default=None)
        known = {last} if other.marks.sequence_number == 0 else other.snapshots.keys() | other.logged.keys()
        shared = (each for number, each in self.snapshots.items() if number in known)
        has_last = any(each.sequence_number == other.marks.sequence_number for each in shared)
        # The archive has specs of its own.
        return has_last and set(other.schemas.values()) <= set(self.schemas.values())

    def raised_above(self, other: Line) -> bool:
        """Return True if this line went back to an earlier state than the other one, and a restore then raised it above
        all of the other's numbers."""
        return (
            self.continues is not None and self.continues == other.file and other.file not in (*self.files, self.file)
        )


def went_back(one: Line, other: Line) -> bool:
    """Return True if `one` does not go on from the state of `other`, but from an earlier one."""
    return one.raised_above(other) or relate(one, other) in (Relation.BEHIND, Relation.DIVERGED)


Same = Callable[[Snapshot, Snapshot], bool]


def same_snapshot(one: Snapshot, other: Snapshot) -> bool:
    """Return True if two snapshots with one id are the same. A list's name has a UUID, and copies keep it."""
    return _numbers(one) == _numbers(other) and _one_list(one, other)


def _one_list(one: Snapshot, other: Snapshot) -> bool:
    return len({None if each.manifest_list is None else file_name(each.manifest_list) for each in (one, other)}) == 1


def _numbers(snapshot: Snapshot) -> str:
    return f"{snapshot.sequence_number}:{snapshot.timestamp_ms}"


def relate(one: Line, other: Line, same: Same = same_snapshot) -> Relation:
    """Return what `one` is to `other`. `same` says if two snapshots with one id are one: a later record of snapshots
    that were put back (one id, another sequence number and time) is its place.

    The metadata log proves most of it. Where it is cut, numbers and times decide: a commit that the other line does not
    know, later than all of it, has a higher sequence number than all of it, and its schemas have ids of their own. A
    table that has left a line since the other one ended (`left_ms`) is only ahead of it where that is proven.
    """
    if one.table_uuid != other.table_uuid or _contradict(one, other, same):
        return Relation.DIVERGED
    if one.file is not None and one.file == other.file:
        return Relation.SAME
    follows, followed = one.follows(other), other.follows(one)
    if follows or followed:
        return Relation.AHEAD if follows else Relation.BEHIND
    if _out_of_turn(one, other) or _out_of_turn(other, one) or _renumbered(one, other):
        return Relation.DIVERGED
    lower, higher = other.marks.exceeds(one.marks), one.marks.exceeds(other.marks)
    if follows is None and one.updated_ms >= other.updated_ms and not lower:
        if other.updated_ms <= one.left_ms and not one.surely_follows(other):
            return Relation.DIVERGED
        return Relation.AHEAD if higher or one.updated_ms > other.updated_ms else Relation.SAME
    if followed is None and one.updated_ms <= other.updated_ms and not higher:
        return Relation.BEHIND
    # Properties, refs and expirations give out no numbers.
    if not higher and _within(one, other):
        return Relation.BEHIND
    return Relation.AHEAD if not lower and _within(other, one) else Relation.DIVERGED


def _within(one: Line, other: Line) -> bool:
    """Return True if `one` has nothing that the other line does not know."""
    known = other.snapshots.keys() | other.logged.keys()
    return one.snapshots.keys() | one.logged.keys() <= known and one.parts <= other.parts


def _part(text: str) -> str:
    item = {key: value for key, value in json.loads(text).items() if key not in ("schema-id", "spec-id")}
    return json.dumps(item, sort_keys=True)


def _contradict(one: Line, other: Line, same: Same) -> bool:
    """Return True if one id is two snapshots, or one sequence number is."""
    numbers = {each.sequence_number for each in other.snapshots.values()} - {0}
    for snapshot_id, snapshot in one.snapshots.items():
        known = other.snapshots.get(snapshot_id)
        had = one.put_back.get(snapshot_id, frozenset()) | other.put_back.get(snapshot_id, frozenset())
        if known is not None and had.issuperset(map(_numbers, (snapshot, known))) and _one_list(snapshot, known):
            continue
        if snapshot.sequence_number in numbers if known is None else not same(snapshot, known):
            return True
    return False


def _out_of_turn(one: Line, other: Line) -> bool:
    """Return True if `one` has a commit unknown to the other line that its numbers or times exclude."""
    # Of two commits, the later one may have the earlier time.
    times = (each.timestamp_ms for each in other.snapshots.values())
    last, latest = other.marks.sequence_number, max(other.updated_ms, *times, *other.logged.values(), 0)
    early = other.updated_ms - CLOCK_TOLERANCE_MS
    known = other.snapshots.keys() | other.logged.keys()
    unknown = (each for number, each in one.snapshots.items() if number not in known)
    return any(
        each.timestamp_ms > latest if each.sequence_number <= last else each.timestamp_ms < early
        for each in unknown
        if each.sequence_number
    )


def _renumbered(one: Line, other: Line) -> bool:
    """Return True if a schema's id, and in it a column's, were given twice. In one line, schemas that no snapshot needs
    may be removed: then a column that was renamed has two names, but not at one id of a schema."""
    if all(text == other.schemas.get(number, text) for number, text in one.schemas.items()):
        return False
    mine, theirs = _names(one), _names(other)
    return any(mine[number].isdisjoint(theirs[number]) for number in mine.keys() & theirs)


def _names(line: Line) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for number, name in _named(list(map(json.loads, line.schemas.values()))):
        found.setdefault(number, set()).add(name)
    return found


def _named(item: Any) -> Iterator[tuple[int, str]]:
    """Yield the id and the name of each column, also of nested ones."""
    if isinstance(item, dict):
        if "id" in item and "name" in item:
            yield item["id"], item["name"]
        item = list(item.values())
    for each in item if isinstance(item, list) else ():
        yield from _named(each)


_ONCE = re.compile(r"\d+-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(\.gz)?\.metadata\.json(\.gz)?")


def is_written_once(metadata_location: str) -> bool:
    """Return True if a metadata file's name has a UUID, as catalogs give it: nobody writes another file there. A name
    with a number alone (`v3.metadata.json`) may be that of a table that was made again in its folder."""
    return _ONCE.fullmatch(file_name(metadata_location)) is not None


def file_name(path: str) -> str:
    """Return the last part of a path. Names of metadata files and lists have a UUID, so they survive a move."""
    return path.rpartition("/")[2]
