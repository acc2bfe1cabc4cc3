"""Copying again what cold has lost, from the live files while they are there. Belongs here: one file at a time, in the
order of a handoff's phases. Does not belong: finding out what is lost (`presence`, `scrub`).

A repaired copy is what was recorded of it, or it does not count: the manifests in cold describe that one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from artemis_lifecycle.cold_tier.copy import Copier, copy_here
from artemis_lifecycle.cold_tier.ledger import VERIFIED, CopiedFile
from artemis_lifecycle.cold_tier.presence import ColdCopies, PromisedCopy
from artemis_lifecycle.errors import StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.kinds import DELETION_VECTORS, MANIFEST, MANIFEST_LIST, POSITION_DELETES, kind_of
from artemis_lifecycle.metadata.manifest_lists import read_manifest_list
from artemis_lifecycle.metadata.manifests import decode_entries
from artemis_lifecycle.metadata.types import UNKNOWN_LENGTH
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.storage.stores import Stores

_REWRITTEN = frozenset({MANIFEST, MANIFEST_LIST, POSITION_DELETES, DELETION_VECTORS})
_AT_ONCE = 256


@dataclass(frozen=True)
class Repaired:
    """What became of one lost copy; `error` None: it is in cold again, as it was recorded."""

    copy: PromisedCopy
    size_in_bytes: int = 0
    error: str | None = None


def repair(
    copies: ColdCopies,
    live_stores: Stores,
    lost: Sequence[PromisedCopy],
    *,
    check: Callable[[], None] = lambda: None,
) -> list[Repaired]:
    """Copy each lost file again from live and read it back; one answer for each, in the order of the phases. What is
    repaired is recorded in the ledger. `check` is called between pieces."""
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
        self._copier = Copier(live_stores, copies.cold_stores, copies.mapping)

    def piece(self, lost: Sequence[PromisedCopy]) -> list[Repaired]:
        rows, failed = [], []
        for copy in lost:
            try:
                rows.append((copy, self._row(copy)))
            except (StorageError, UnreadableMetadata) as error:
                failed.append(Repaired(copy, error=error.what))
        lengths = self._lengths([copy.source for copy, _ in rows if copy.kind == MANIFEST_LIST])
        made = copy_here([row for _, row in rows], self._copier.with_lengths(lengths))
        by_place = {file.destination: file for file in made}
        done = [_held(copy, by_place[copy.destination]) for copy, _ in rows]
        self._record([by_place[each.copy.destination] for each in done if each.error is None])
        return done + failed

    def _row(self, copy: PromisedCopy) -> dict[str, Any]:
        """What the copier is to do (WANTED). A byte-for-byte copy's source must be what was copied."""
        return {
            "kind": copy.kind,
            "file_format": copy.file_format or copy.source.rpartition(".")[2],
            "source": copy.source,
            "destination": copy.destination,
            "size_in_bytes": copy.source_size,
            "checksum": None if copy.kind in _REWRITTEN else copy.checksum,
            "deletes": self._deletes(copy) if copy.kind == MANIFEST else [],
        }

    def _deletes(self, manifest: PromisedCopy) -> list[dict[str, str]]:
        """How the position deletes of a manifest were rewritten; those that the ledger has lost are rewritten anew."""
        entries = decode_entries(self._live.read(manifest.source), manifest.source, self._live.limits)
        columns = (entries.column(name).to_pylist() for name in ("status", "content", "file_format", "file_path"))
        named = {
            self._copies.mapping(path): (path, file_format)
            for status, content, file_format, path in zip(*columns, strict=True)
            if status != 2 and content == 1
        }
        known = self._copies.ledger.among(self._copies.spark, named)
        absent = [
            PromisedCopy(path, place, kind_of(1, form), form, UNKNOWN_LENGTH)
            for place, (path, form) in named.items()
            if place not in known
        ]
        if absent:
            self.piece(absent)
            known = self._copies.ledger.among(self._copies.spark, named)
        return [
            {"destination": place, "rewritten": copy.rewritten}
            for place, copy in known.items()
            if copy.rewritten is not None
        ]

    def _lengths(self, lists: Iterable[str]) -> dict[str, int]:
        """The sizes of the cold manifests that these manifest lists name: the ledger's, or what stands in cold."""
        places: set[str] = set()
        for path in lists:
            try:
                entries = read_manifest_list(self._live, path).entries
            except (StorageError, UnreadableMetadata):
                continue  # Its copier says so of this list alone.
            places |= {self._copies.mapping(entry.manifest_path) for entry in entries}
        known = self._copies.ledger.among(self._copies.spark, places)
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


def _held(copy: PromisedCopy, made: CopiedFile) -> Repaired:
    """Whether what was made is what was lost."""
    if made.action not in VERIFIED:
        return Repaired(copy, error=made.error or made.action)
    if copy.size_in_bytes not in (made.size_in_bytes, UNKNOWN_LENGTH):
        return Repaired(copy, error=f"the new copy has {made.size_in_bytes} bytes, and had {copy.size_in_bytes}")
    if copy.checksum not in (made.checksum, None):
        return Repaired(copy, error=f"the new copy is {made.checksum}, and was {copy.checksum}")
    return Repaired(replace(copy, checksum=made.checksum), made.size_in_bytes)
