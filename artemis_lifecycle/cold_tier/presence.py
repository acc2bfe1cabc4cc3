"""Which copies must be in the cold tier, and whether they are. The cold store itself is asked, file by file, not a
record.

A copy must exist if the ledger has it, or if the cold table reaches it; losing one of the two changes nothing. Files of
snapshots that the policy does not archive, or whose loss a person approved, are in neither.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.cold_tier.copy import WANTED, Copier, copy_files
from artemis_lifecycle.cold_tier.evolution import SAME_IDS, Ids
from artemis_lifecycle.cold_tier.ledger import COPIES, VERIFIED, CopiedFile, Ledger, is_still
from artemis_lifecycle.cold_tier.paths import PathMapping
from artemis_lifecycle.errors import HandoffFailed, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.manifest_lists import read_manifest_list
from artemis_lifecycle.metadata.manifests import decode_entries
from artemis_lifecycle.metadata.types import MANIFEST, MANIFEST_LIST, UNKNOWN_LENGTH, kind_of
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.protection.context import ArchivedFile
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.index.files import reachable
from artemis_lifecycle.reachability.index.lookups import reaches
from artemis_lifecycle.spark.runner import Cost, Runner, Spark
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.location import hash_column, normalize
from artemis_lifecycle.storage.roots import same_file
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import FileIdentity

# --- repair -----------------------------------------------------------------------------------------------------------
# Copying files that cold has lost again from the live files, while they exist.
#
# A repaired copy is valid only if it matches the record, because the cold manifests describe that file.

_AT_ONCE = 200_000
_COMPARED_AT_ONCE = 1_000
_SIZES = arrow_schema("path string, size_in_bytes bigint, archived boolean")


@dataclass(frozen=True)
class RecordedCopy:
    """A live file and its required copy in cold, with its verified size. If the ledger is lost, this is the size in the
    cold table's metadata, or UNKNOWN_LENGTH. The rest is from the ledger: `checksum` is that of the copy;
    `source_identity` and `source_checksum` are those of the live file while it was copied (None: not recorded)."""

    source: str
    destination: str
    kind: str
    file_format: str | None
    size_in_bytes: int
    source_size: int = UNKNOWN_LENGTH
    checksum: str | None = None
    source_identity: FileIdentity | None = None
    source_checksum: str | None = None
    added_by: int | None = None

    @classmethod
    def of(cls, source: str, destination: str, copy: CopiedFile) -> RecordedCopy:
        """Create it from the ledger's record."""
        return cls(
            source,
            destination,
            copy.kind,
            copy.file_format,
            copy.size_in_bytes,
            copy.source_size,
            copy.checksum,
            copy.source_identity,
            copy.source_checksum,
            copy.added_by,
        )


@dataclass(frozen=True)
class ColdCopies:
    """The copies of one table's files. `cold` opens the index of all its cold tables in their published state; None if
    nothing is published. `moved` yields what moves to the deep archive recorded, `ids` returns the archive's ids of the
    live table's specs and sort orders."""

    spark: Spark
    live_stores: Stores
    cold_stores: Stores
    mapping: PathMapping
    ledger: Ledger
    cold: Callable[[], IndexView | None]
    moved: Callable[[], Iterator[pa.RecordBatch]]
    ids: Callable[[], Ids] = lambda: SAME_IDS

    @property
    def runner(self) -> Runner:
        return Runner(self.spark)

    def recorded(self, paths: Sequence[str]) -> dict[str, tuple[RecordedCopy, ...]]:
        """Return the required copies of these live files, by live path: one for each spelling by which the table's
        archive names the file; the one that was recorded last is last. Files without one are omitted. Of a path that
        was used for several files, it is the copy of the last one.

        Raises UnreadableMetadata if the ledger lacks a file and the cold table cannot be read.
        """
        placed = {path: places for path in paths if (places := self._places(path))}
        copies = self.ledger.of_locations(self.runner, self.mapping, placed)
        found = {
            path: tuple(RecordedCopy.of(path, copy.destination, copy) for copy in self._of_last_uses(several))
            for path, several in copies.items()
        }
        unknown = [path for path in placed if path not in found]
        return {**found, **self._reached(unknown)} if unknown else found

    def _of_last_uses(self, copies: Sequence[CopiedFile]) -> list[CopiedFile]:
        places = {copy.source: self.mapping.places(copy.source) for copy in copies}
        known = {copy.destination for copy in copies}
        last = {next((each for each in reversed(several) if each in known), None) for several in places.values()}
        # A copy that was made again has the spelling that was asked for as its source, not the one of its place.
        return [each for each in copies if each.destination in last or each.destination not in places[each.source]]

    def absent(self, copies: Sequence[RecordedCopy]) -> list[RecordedCopy]:
        """Return those for which cold has no file of the right size, or only the live file itself under another name,
        or one in an archive class that no record of a move names: nobody would know that it needs a thaw."""
        paths = pa.table({"path": pa.array([copy.destination for copy in copies], pa.string())})
        found = self.runner.map(paths, partial(_sizes, self.cold_stores), _SIZES, Cost(len(copies)), threads=1).table()
        sizes = dict(zip(*(column.to_pylist() for column in found.columns[:2]), strict=True))
        aside = set(found.column("path").filter(found.column("archived")).to_pylist())
        if aside:
            for batch in self.moved():
                aside.difference_update(batch.column("path").to_pylist())

        def stands(copy: RecordedCopy) -> bool:
            size = sizes[copy.destination]
            if size is None or copy.size_in_bytes not in (size, UNKNOWN_LENGTH) or copy.destination in aside:
                return False
            return not same_file(copy.source, copy.destination, self.mapping.rules)

        return [copy for copy in copies if not stands(copy)]

    def renew(self, identities: Mapping[str, FileIdentity]) -> None:
        """Record the current identities of sources, by the destination of their copies: their content is the same."""
        known = self.ledger.among(self.runner, identities)
        rows = [known[place].of(identity, known[place].source_checksum) for place, identity in identities.items()]
        if rows:
            self.ledger.write(f"renewed-{uuid.uuid4().hex}", 0, rows)

    def renew_all(self, check: Callable[[], None]) -> tuple[int, int, list[str]]:
        """Compare all recorded sources that still exist with the live store, and renew the identities of those with the
        same content. Return how many were compared and renewed, and the paths with other files. Another run continues:
        renewed files are not read again."""
        compared = renewed = 0
        others: list[str] = []
        with self.runner.keeping() as keep:
            for batch in self.ledger.newest(self.runner, keep).batches():
                for start in range(0, batch.num_rows, _COMPARED_AT_ONCE):
                    check()
                    rows = batch.slice(start, _COMPARED_AT_ONCE).select(COPIES.names).to_pylist()
                    copies = [CopiedFile(**row) for row in rows]
                    heads = self.live_stores.heads([copy.source for copy in copies])
                    found = [(copy, head) for copy, head in zip(copies, heads, strict=True) if head is not None]
                    changed = [pair for pair in found if pair[0].source_identity not in (None, pair[1].identity)]
                    equal = {
                        copy.destination: head.identity
                        for copy, head in changed
                        if is_still(copy.source_identity, copy.source_checksum, head, self.live_stores)
                    }
                    self.renew(equal)
                    compared, renewed = compared + len(found), renewed + len(equal)
                    others += [copy.source for copy, _ in changed if copy.destination not in equal]
        return compared, renewed, others

    def _places(self, path: str) -> tuple[str, ...]:
        try:
            return self.mapping.places(path)
        except HandoffFailed:
            return ()  # No handoff can archive a snapshot with such a path.

    def _reached(self, paths: Sequence[str]) -> dict[str, tuple[RecordedCopy, ...]]:
        """Return the required copies that the ledger does not have, but that the cold table reaches."""
        view, rules, mapping = self.cold(), self.mapping.rules, self.mapping
        if view is None:
            return {}
        spellings = {path: {path, mapping.plain(path)} for path in paths}
        places = {mapping.places(each)[-1]: path for path, several in spellings.items() for each in several}
        reached = reaches(view, hash_column(pa.array(places, pa.string()), view.index.rules))
        if not reached.any():
            return {}
        wanted = {normalize(place, rules): path for place, path in places.items()}
        by_location = {normalize(path, rules): path for path in paths}
        found: dict[str, tuple[RecordedCopy, ...]] = {}
        for row in reachable(view, [snapshot.snapshot_id for snapshot in view.metadata.snapshots]).to_pylist():
            path = wanted.get(normalize(row["path"], rules))
            if path is None and row["path"].startswith(mapping.spelled):
                path = by_location.get(mapping.spelled_location(row["path"]))
            if path is not None:
                copy = RecordedCopy(path, row["path"], row["kind"], None, row["size_in_bytes"])
                found[path] = (*found.get(path, ()), copy)
        return found


class PlannedCopies:
    """The required copies of a plan's files, for a deletion that asks batch by batch. Which copies are required is
    looked up once, unless the plan is very large. Whether they exist is checked each time."""

    def __init__(self, copies: ColdCopies, files: int, paths: Callable[[], Iterator[Sequence[str]]]) -> None:
        self._copies = copies
        self._paths = paths
        self._few = files <= _AT_ONCE
        self._recorded: dict[str, tuple[RecordedCopy, ...]] | None = None

    def missing(self, paths: pa.Array) -> NDArray[np.bool_]:
        """Return True for each live path whose required copy is not in the cold store with its size: deleting it would
        delete the last copy. Raises UnreadableMetadata, StorageError: then the state of all paths is unknown."""
        recorded = self._of(asked := paths.to_pylist())
        copies = [copy for path in asked for copy in recorded.get(path, ())]
        absent = {copy.source for copy in self._copies.absent(copies)}
        return np.array([path in absent for path in asked], np.bool_)

    def archived_files(self, paths: Sequence[str]) -> dict[str, ArchivedFile]:
        """Return what those of these live files that are archived were when they were copied, as far as recorded."""
        recorded = self._of(paths)
        found = ((path, recorded[path][-1]) for path in paths if path in recorded)
        return {
            path: ArchivedFile(copy.source_identity, copy.source_checksum)
            for path, copy in found
            if copy.source_identity is not None
        }

    def renew(self, equal: Mapping[str, FileIdentity]) -> None:
        """Record that these live files are still those that were copied: their content was compared."""
        recorded = self._of(list(equal))
        self._copies.renew({recorded[path][-1].destination: identity for path, identity in equal.items()})
        if self._recorded is not None:
            for path, identity in equal.items():
                *others, last = recorded[path]
                self._recorded[path] = (*others, replace(last, source_identity=identity))

    def _of(self, paths: Sequence[str]) -> dict[str, tuple[RecordedCopy, ...]]:
        if self._few and self._recorded is None:
            self._recorded = {
                path: copy for each in self._paths() for path, copy in self._copies.recorded(each).items()
            }
        return self._copies.recorded(paths) if self._recorded is None else self._recorded


def absent_among(copies: ColdCopies, paths: Iterator[Sequence[str]]) -> list[RecordedCopy]:
    """Return the required copies of these live files that are not in cold. Holds one piece of the files in memory."""
    return [
        copy
        for several in paths
        for piece in _pieces(several)
        for copy in copies.absent([copy for several in copies.recorded(piece).values() for copy in several])
    ]


def _pieces(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    return (paths[start : start + _AT_ONCE] for start in range(0, len(paths), _AT_ONCE))


def _sizes(stores: Stores, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        heads = stores.heads(batch.column("path").to_pylist())
        sizes = pa.array([None if head is None else head.size_in_bytes for head in heads], pa.int64())
        archived = pa.array([head is not None and head.archived for head in heads], pa.bool_())
        yield pa.RecordBatch.from_arrays([batch.column("path"), sizes, archived], schema=_SIZES)


_REPAIRED_AT_ONCE = 256


@dataclass(frozen=True)
class Repaired:
    """The result of one lost copy. `error` None means that it is in cold again, as recorded."""

    copy: RecordedCopy
    error: str | None = None


def repair(
    copies: ColdCopies, live_stores: Stores, lost: Sequence[RecordedCopy], *, check: Callable[[], None] = lambda: None
) -> list[Repaired]:
    """Copy each lost file from live again and read it back. Return one result per file, in the order of the phases.
    Repaired copies are recorded in the ledger. `check` is called between pieces."""
    ids = copies.ids() if any(copy.kind in (MANIFEST, MANIFEST_LIST) for copy in lost) else SAME_IDS
    work = _Repair(copies, live_stores, f"repair-{uuid.uuid4().hex}", ids)
    done: list[Repaired] = []
    for phase in (
        [copy for copy in lost if copy.kind not in (MANIFEST, MANIFEST_LIST)],
        [copy for copy in lost if copy.kind == MANIFEST],
        [copy for copy in lost if copy.kind == MANIFEST_LIST],
    ):
        for start in range(0, len(phase), _REPAIRED_AT_ONCE):
            check()
            done += work.piece(phase[start : start + _REPAIRED_AT_ONCE])
    return done


class _Repair:
    def __init__(self, copies: ColdCopies, live_stores: Stores, work_id: str, ids: Ids) -> None:
        self._copies = copies
        self._live = live_stores
        self._work_id = work_id
        self._batches = 0
        identity, sequences = copies.mapping.identity, copies.mapping.sequences
        if identity.reused and (view := copies.cold()) is not None:
            sequences = {each.snapshot_id: each.sequence_number for each in view.metadata.snapshots}
        self._copier = Copier(live_stores, copies.cold_stores, PathMapping(identity, ids, sequences))

    def piece(self, lost: Sequence[RecordedCopy]) -> list[Repaired]:
        rows, failed = [], []
        for copy in lost:
            try:
                rows.append((copy, self._row(copy)))
            except (StorageError, UnreadableMetadata) as error:
                failed.append(Repaired(copy, error=error.what))
        lengths = self._lengths([copy.source for copy, _ in rows if copy.kind == MANIFEST_LIST])
        wanted = pa.Table.from_pylist([row for _, row in rows], WANTED)
        cost = Cost(len(rows), len(rows), sum(max(copy.size_in_bytes, 0) for copy, _ in rows))
        required = {copy.destination: copy.checksum for copy, _ in rows if copy.checksum is not None}
        made = copy_files(self._copies.runner, wanted, replace(self._copier, lengths=lengths, required=required), cost)
        by_place = {file.destination: file for file in made}
        done = [_held(copy, by_place[copy.destination]) for copy, _ in rows]
        self._record([by_place[each.copy.destination] for each in done if each.error is None])
        return done + failed

    def _row(self, copy: RecordedCopy) -> dict[str, Any]:
        """Return the copier's input (WANTED). The source must be the file of the first copy. Raises StorageError."""
        head = self._live.head(copy.source)
        known = copy.source_identity
        if head is not None and known and not is_still(known, copy.source_checksum, head, self._live):
            raise StorageError("Another file is at the live path now", path=copy.source, untouched="both files")
        return {
            "kind": copy.kind,
            "file_format": copy.file_format or copy.source.rpartition(".")[2],
            "source": copy.source,
            "destination": copy.destination,
            "size_in_bytes": copy.source_size,
            "checksum": copy.source_checksum,
            "added_by": copy.added_by,
            "deletes": self._deletes(copy) if copy.kind == MANIFEST else [],
        }

    def _deletes(self, manifest: RecordedCopy) -> list[dict[str, str]]:
        """Return how the position deletes of a manifest were rewritten. Those that the ledger has lost are rewritten
        again."""
        entries = decode_entries(self._live.read(manifest.source), manifest.source, self._live.limits)
        names = ("status", "content", "file_format", "file_path", "snapshot_id")
        columns = (entries.column(name).to_pylist() for name in names)
        mapping, inherited = self._copies.mapping, manifest.added_by
        named = {
            mapping.used(path, inherited if added_by is None else added_by): (path, file_format)
            for status, content, file_format, path, added_by in zip(*columns, strict=True)
            if status != 2 and content == 1
        }
        known = self._copies.ledger.among(self._copies.runner, named)
        absent = [
            RecordedCopy(path, place, kind_of(1, form), form, UNKNOWN_LENGTH)
            for place, (path, form) in named.items()
            if place not in known
        ]
        if absent:
            self.piece(absent)
            known = self._copies.ledger.among(self._copies.runner, named)
        return [
            {"destination": place, "rewritten": copy.rewritten}
            for place, copy in known.items()
            if copy.rewritten is not None
        ]

    def _lengths(self, lists: Iterable[str]) -> dict[str, int]:
        """Return the sizes of the cold manifests in these manifest lists, from the ledger or from cold."""
        places: set[str] = set()
        for path in lists:
            try:
                entries = read_manifest_list(self._live, path).entries
            except (StorageError, UnreadableMetadata):
                continue  # The copier reports the error for this list only.
            places |= {self._copies.mapping.used(entry.manifest_path, entry.added_snapshot_id) for entry in entries}
        known = self._copies.ledger.among(self._copies.runner, places)
        lengths = {place: copy.size_in_bytes for place, copy in known.items()}
        unknown = sorted(places - lengths.keys())
        heads = self._copies.cold_stores.heads(unknown)
        return lengths | {
            place: head.size_in_bytes for place, head in zip(unknown, heads, strict=True) if head is not None
        }

    def _record(self, files: Sequence[CopiedFile]) -> None:
        if files:
            with around("repair.batch"):
                self._copies.ledger.write(self._work_id, self._batches, files)
            self._batches += 1


def _held(copy: RecordedCopy, made: CopiedFile) -> Repaired:
    """Check whether the new copy matches the lost one."""
    if made.action not in VERIFIED:
        return Repaired(copy, error=made.error or made.action)
    if copy.size_in_bytes not in (made.size_in_bytes, UNKNOWN_LENGTH):
        return Repaired(
            copy, error=f"the new copy has {made.size_in_bytes} bytes, but the lost one had {copy.size_in_bytes}"
        )
    if copy.checksum not in (made.checksum, None):
        return Repaired(copy, error=f"the new copy is {made.checksum}, but the lost one was {copy.checksum}")
    return Repaired(replace(copy, checksum=made.checksum))
