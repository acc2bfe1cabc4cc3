"""Copying files that cold has lost again from the live files, while they exist. Belongs here: one file at a time, in
the order of a handoff's phases. Does not belong here: finding lost files (`presence`, `scrub`).

A repaired copy is valid only if it matches the record, because the cold manifests describe that file.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from artemis_lifecycle.cold_tier.copy import WANTED, Copier, copy_files
from artemis_lifecycle.cold_tier.ledger import VERIFIED, CopiedFile, is_still
from artemis_lifecycle.cold_tier.paths import PathMapping
from artemis_lifecycle.cold_tier.presence import ColdCopies, RecordedCopy
from artemis_lifecycle.errors import StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.kinds import MANIFEST, MANIFEST_LIST, kind_of
from artemis_lifecycle.metadata.manifest_lists import read_manifest_list
from artemis_lifecycle.metadata.manifests import decode_entries
from artemis_lifecycle.metadata.types import UNKNOWN_LENGTH
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.spark.runner import Cost
from artemis_lifecycle.storage.stores import Stores

_AT_ONCE = 256


@dataclass(frozen=True)
class Repaired:
    """The result of one lost copy. `error` None means that it is in cold again, as recorded."""

    copy: RecordedCopy
    error: str | None = None


def repair(
    copies: ColdCopies,
    live_stores: Stores,
    lost: Sequence[RecordedCopy],
    *,
    check: Callable[[], None] = lambda: None,
) -> list[Repaired]:
    """Copy each lost file from live again and read it back. Return one result per file, in the order of the phases.
    Repaired copies are recorded in the ledger. `check` is called between pieces."""
    work = _Repair(copies, live_stores, f"repair-{uuid.uuid4().hex}")
    done: list[Repaired] = []
    for phase in (
        [copy for copy in lost if copy.kind not in (MANIFEST, MANIFEST_LIST)],
        [copy for copy in lost if copy.kind == MANIFEST],
        [copy for copy in lost if copy.kind == MANIFEST_LIST],
    ):
        for start in range(0, len(phase), _AT_ONCE):
            check()
            done += work.piece(phase[start : start + _AT_ONCE])
    return done


class _Repair:
    def __init__(self, copies: ColdCopies, live_stores: Stores, work_id: str) -> None:
        self._copies = copies
        self._live = live_stores
        self._work_id = work_id
        self._batches = 0
        mapping = copies.mapping
        if mapping.identity.reused and (view := copies.cold()) is not None:
            sequences = {each.snapshot_id: each.sequence_number for each in view.metadata.snapshots}
            mapping = PathMapping(mapping.identity, mapping.ids, sequences)
        self._copier = Copier(live_stores, copies.cold_stores, mapping)

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
        made = copy_files(self._copies.runner, wanted, replace(self._copier, lengths=lengths), cost)
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
