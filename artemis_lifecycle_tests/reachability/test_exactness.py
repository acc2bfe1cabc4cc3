"""Random history, random rule: the files named for deletion are those that some expired snapshot reaches and no kept
one does, every one of them and no other. 300 histories; `make nightly` walks 105,000."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index import IndexSettings, ManifestIndex, files, lookups, segments, state
from artemis_lifecycle.reachability.index.files import deletable, reachable
from artemis_lifecycle.reachability.index.lookups import holders, reaches, reaching
from artemis_lifecycle.reachability.index.refresh import refresh
from artemis_lifecycle.retention.rules import HoldView, RetentionSettings, decide, view_of
from artemis_lifecycle.storage.location import hash_location, normalize
from artemis_lifecycle_tests.reachability import oracle
from artemis_lifecycle_tests.reachability.answers import (
    by_file,
    check_deletable,
    check_held,
    check_reachable,
    examples,
    mentions,
)
from artemis_lifecycle_tests.reachability.conftest import Folders
from artemis_lifecycle_tests.reachability.metadata_tables import OPENINGS, RULES, STEPS, MetadataTable, Tape, built
from artemis_lifecycle_tests.retention import oracle as retention
from artemis_lifecycle_tests.retention.histories import MINUTE


def opened(table: MetadataTable, folder: str, threads: int = 2) -> ManifestIndex:
    settings = IndexSettings(threads=threads)
    return ManifestIndex.open(table.stores, f"{folder}/index", table.table_uuid, table.rules, settings)


@dataclass
class Retention:
    """What the three rules expire, each held against its restatement."""

    table: MetadataTable
    metadata: TableMetadata
    tape: Tape

    def expired(self) -> list[tuple[int, ...]]:
        tape, ids = self.tape, self.table.ids()
        self.now = self.table.clock + tape.below(6) * MINUTE
        self.history = view_of(self.metadata)
        self.held = {tape.of(ids)} if ids and tape.once_in(4) else set()
        return [self._iceberg(), self._as_of(), self._paimon()]

    def _decided(self, settings: RetentionSettings, kept: set[int]) -> tuple[int, ...]:
        holds = [HoldView("h", "owner", "reason", tuple(self.held))] if self.held else []
        decision = decide(self.history, settings, self.now, holds=holds)
        assert set(decision.kept) == kept
        assert set(decision.expired) == set(self.table.ids()) - kept
        return decision.expired

    def _iceberg(self) -> tuple[int, ...]:
        tape, ids = self.tape, self.table.ids()
        edge = None if tape.once_in(3) else self.now - tape.below(24) * MINUTE
        heads = {ref.snapshot_id for ref in retention.live_refs(self.history, self.now).values()}
        explicit = tuple({tape.of(ids)} - heads - self.held) if ids and tape.once_in(3) else ()
        settings = RetentionSettings(rule="iceberg", older_than_ms=edge, explicit_ids=explicit)
        kept = oracle.kept_by_iceberg(self.history, self.now, older_than=edge, explicit=explicit, held=self.held)
        return self._decided(settings, kept)

    def _as_of(self) -> tuple[int, ...]:
        window = self.tape.below(24) * MINUTE
        kept = oracle.kept_as_of(self.history, self.now, window=window, held=self.held)
        return self._decided(RetentionSettings(window_ms=window), kept)

    def _paimon(self) -> tuple[int, ...]:
        tape = self.tape
        window, least = tape.below(24) * MINUTE, 1 + tape.below(3)
        most = least + tape.below(4) if tape.once_in(3) else None
        limit = 1 + tape.below(4) if tape.once_in(3) else None
        settings = RetentionSettings(
            rule="paimon", window_ms=window, min_snapshots=least, max_snapshots=most, expire_limit=limit
        )
        kept = oracle.kept_by_paimon(
            self.history, self.now, window=window, least=least, most=most, limit=limit, held=self.held
        )
        return self._decided(settings, kept)


@contextmanager
def small_parts(tape: Tape) -> Iterator[None]:
    """Tiny tables would fill one segment of the index and no more, and one part of an answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENT_ROWS", tape.of((1_000_000, 1, 4)))
        patch.setattr(lookups, "_ROWS_AT_ONCE", tape.of((1_000_000, 1, 4)))
        patch.setattr(files, "_HASHED_AT_ONCE", tape.of((1_000_000, 1, 4)))
        yield


@pytest.mark.slow
@examples(300)
@given(opening=OPENINGS, steps=STEPS, rules=st.sampled_from(RULES), choices=st.binary(min_size=32, max_size=32))
def test_exactly_what_only_expired_snapshots_reach_is_deletable(
    folders: Folders, opening: bytes, steps: list[bytes], rules: Any, choices: bytes
) -> None:
    with folders() as folder:
        table = built(opening, steps, folder, rules)
        metadata = table.read_metadata()
        tape = Tape(choices)
        known = mentions(table)
        with small_parts(tape):
            view = refresh(opened(table, folder, tape.of((1, 1, 1, 8))), metadata)
            some = tuple(snapshot_id for snapshot_id in table.ids() if tape.once_in(2))
            for expired in dict.fromkeys([some, *Retention(table, metadata, tape).expired()]):
                check_deletable(table, view, expired, known)
            check_reachable(table, view, some, known)
            check_held(table, view, [(), some, table.ids()])
        paths = sorted(known)
        hashes = np.array([hash_location(normalize(path, rules)) for path in [*paths, "s3://nobody/x"]], np.uint64)
        # Statistics stay as long as the metadata names them, be their snapshot there or not.
        named = {normalize(file.path, rules) for file in metadata.statistics}
        held = [bool(oracle.holders(table, known[path])) or normalize(path, rules) in named for path in paths]
        assert reaches(view, hashes).tolist() == [*held, False]
        if known:
            path = tape.of(sorted(known))
            assert holders(view, normalize(path, rules)) == oracle.holders(table, known[path])
        listed = [manifest for held in table.held.values() for manifest, _ in held.manifests]
        # A file may be known as something else, too: that is not asked.
        others = {each.file for each in table.statistics} | {manifest.file for manifest in listed}
        others |= {held.list_file for held in table.held.values() if held.list_file is not None}
        contents = sorted({e.path for manifest in listed for e, file in manifest.entries if file not in others})
        chosen = [path for path in contents if tape.once_in(3)]
        reached = {snapshot_id for path in chosen for snapshot_id in oracle.holders(table, known[path])}
        hashes = np.array([hash_location(normalize(path, rules)) for path in chosen], np.uint64)
        assert reaching(view, hashes) == tuple(each for each in table.ids() if each in reached)


@pytest.mark.slow
@examples(60)
@given(
    opening=OPENINGS,
    steps=STEPS,
    rules=st.sampled_from(RULES),
    bits=st.integers(0, 4),
    choices=st.binary(min_size=8, max_size=8),
)
def test_a_hash_that_many_locations_share_keeps_files_and_deletes_none(
    folders: Folders, opening: bytes, steps: list[bytes], rules: Any, bits: int, choices: bytes
) -> None:
    """With 64 bits no test would ever meet a collision: here there are at most 16 hashes."""
    mask = (1 << bits) - 1
    with folders() as folder, pytest.MonkeyPatch.context() as patch:
        for module in (files, lookups, segments, state):
            whole = module.hash_column
            patch.setattr(module, "hash_column", lambda *args, whole=whole: whole(*args) & np.uint64(mask))
        patch.setattr(lookups, "hash_location", lambda location: hash_location(location) & mask)
        table, tape = built(opening, steps, folder, rules), Tape(choices)
        view = refresh(opened(table, folder), table.read_metadata())
        known = mentions(table)
        some = tuple(snapshot_id for snapshot_id in table.ids() if tape.once_in(2))
        found = by_file(deletable(view, some), known)
        assert found.keys() <= oracle.deletable(table, some).keys()
        check_reachable(table, view, some, known)
        for path, file in list(known.items())[:3]:
            assert holders(view, normalize(path, rules)) == oracle.holders(table, file)


def test_nothing_is_deletable_when_nothing_expires(folders: Folders) -> None:
    with folders() as folder:
        table = built(b"", [b"", b"\x06", b"\x09"], folder)
        view = refresh(opened(table, folder), table.read_metadata())
        assert deletable(view, ()).num_rows == 0
        assert reachable(view, ()).num_rows == 0
        assert holders(view, "s3://nobody/knows.parquet") == ()


def test_a_missing_snapshot_is_an_error_and_not_an_empty_answer(folders: Folders) -> None:
    with folders() as folder:
        table = built(b"", [b"", b""], folder)
        view = refresh(opened(table, folder), table.read_metadata())
        for ask in (deletable, reachable):
            with pytest.raises(UnreadableMetadata, match="404"):
                ask(view, (404,))


def test_a_table_without_snapshots_has_no_files(folders: Folders) -> None:
    with folders() as folder:
        table = built(b"", [], folder)
        view = refresh(opened(table, folder), table.read_metadata())
        assert deletable(view, ()).num_rows == reachable(view, ()).num_rows == 0


def test_the_index_lies_under_the_tables_uuid(folders: Folders) -> None:
    """Two tables under one root, of one location even, never meet."""
    with folders() as folder:
        table = built(b"", [b"", b""], folder)
        view = refresh(opened(table, folder), table.read_metadata())
        assert (view.lists_read, view.manifests_read) == (2, 2)
        table.table_uuid = "00000000-0000-4000-8000-00000000beef"
        other = refresh(opened(table, folder), table.read_metadata())
        assert (other.lists_read, other.manifests_read) == (2, 2)
        again = refresh(opened(table, folder), table.read_metadata())
        assert (again.lists_read, again.manifests_read) == (0, 0)
