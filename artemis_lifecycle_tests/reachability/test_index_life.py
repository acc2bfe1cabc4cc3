"""The index is a cache, and never more: whatever befalls it, the answers are those of the metadata; whatever befalls
the metadata, there is no answer. And what is healthy is not read twice."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from artemis_lifecycle.errors import EncryptedTable, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index import IndexSettings, ManifestIndex, array_file, lookups, segments
from artemis_lifecycle.reachability.index import index as index_module
from artemis_lifecycle.reachability.index import refresh as refresh_module
from artemis_lifecycle.reachability.index.files import deletable, reachable
from artemis_lifecycle.reachability.index.refresh import compact, refresh
from artemis_lifecycle.reachability.index.state import IndexState
from artemis_lifecycle.storage import location
from artemis_lifecycle_tests.reachability.answers import check_deletable, examples, mentions, same
from artemis_lifecycle_tests.reachability.avro_by_hand import block_ends, records_before
from artemis_lifecycle_tests.reachability.conftest import Folders
from artemis_lifecycle_tests.reachability.damage import Damage, contents, restore
from artemis_lifecycle_tests.reachability.metadata_tables import (
    OPENINGS,
    OPERATIONS,
    RULES,
    STEPS,
    STRICT_RULES,
    File,
    Killed,
    MetadataTable,
    Tape,
    built,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny tables would never fill a segment of the index, nor give it enough of them to join."""
    monkeypatch.setattr(segments, "SEGMENT_ROWS", 6)
    monkeypatch.setattr(refresh_module, "SMALL_SEGMENTS", 2)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Each rebuild is a warning; here they come by the thousand."""
    caplog.set_level(logging.ERROR, logger="artemis_lifecycle.reachability.index")


LIVES = st.lists(st.tuples(st.binary(min_size=64, max_size=64), st.binary(min_size=16, max_size=16)), max_size=10)


def opened(table: MetadataTable, root: str, rules: Any = None) -> ManifestIndex:
    settings = IndexSettings(threads=1)
    return ManifestIndex.open(table.stores, root, table.table_uuid, rules or table.rules, settings)


def some(tape: Tape, table: MetadataTable) -> tuple[int, ...]:
    return tuple(snapshot_id for snapshot_id in table.ids() if tape.once_in(2))


def other_tables_index(folder: str) -> dict[str, bytes]:
    """The index files of a table of the same shape, with another uuid."""
    os.mkdir(f"{folder}/other")
    table = built(b"", [b"", b"\x06", b"\x09", b"\x0c"], f"{folder}/other")
    table.table_uuid = "00000000-0000-4000-8000-00000000beef"
    refresh(opened(table, f"{folder}/other/index"), table.read_metadata())
    return contents(f"{folder}/other/index/{table.table_uuid}")


# --- incremental equals full ------------------------------------------------------------------------------------------


@examples(80)
@given(opening=OPENINGS, first=STEPS, life=LIVES, rules=st.sampled_from(RULES))
def test_after_every_commit_the_answers_are_those_of_a_new_index_whatever_befell_the_old(
    folders: Folders, opening: bytes, first: list[bytes], life: list[tuple[bytes, bytes]], rules: Any
) -> None:
    with folders() as folder:
        table = built(opening, first[:4], folder, rules)
        root = f"{folder}/index"
        damage = Damage(f"{root}/{table.table_uuid}", other_tables_index(folder))
        earlier: list[TableMetadata] = []
        for number, (decisions, fate) in enumerate([(b"", b""), *life]):
            tape = Tape(fate)
            if number:
                table.step(decisions)
            metadata = table.read_metadata()
            damage.remember()
            late = tape.once_in(3)
            if not late:
                befall(table, root, metadata, damage, tape)
            if tape.once_in(8) and earlier and readable(table, earlier[-1]):
                # A run that started before the last commit, and comes to the index after it.
                refresh(opened(table, root), earlier[-1])
            index = opened(table, root)
            view = refresh(index, metadata)
            if late:
                befall(table, root, metadata, damage, tape)
            fresh = refresh(opened(table, f"{folder}/new-{number}"), metadata)
            same(view, fresh, some(tape, table), some(tape, table))
            earlier.append(metadata)
        check_deletable(table, view, some(tape, table), mentions(table))


def befall(table: MetadataTable, root: str, metadata: TableMetadata, damage: Damage, tape: Tape) -> None:
    """What may happen to an index between two runs, or while one is asking."""
    happens = tape.below(8)
    if happens in (1, 2, 3, 4):
        damage.strike(tape)
    elif happens == 5:
        made_by_another(table, root, metadata, tape.of(OTHERS))
    elif happens == 6:
        killed_while_writing(table, root, metadata, tape)
    elif happens == 7:
        compact(opened(table, root), metadata)


def readable(table: MetadataTable, metadata: TableMetadata) -> bool:
    """Whether no snapshot has gone since, with its files."""
    return {snapshot.snapshot_id for snapshot in metadata.snapshots} <= set(table.ids())


def killed_while_writing(table: MetadataTable, root: str, metadata: TableMetadata, tape: Tape) -> None:
    table.stores.dies_at, table.stores.leaves_half = tape.below(3), tape.once_in(2)
    index = opened(table, root)
    try:
        refresh(index, metadata)
    except Killed:
        pass
    finally:
        table.stores.dies_at = None


@examples(80)
@given(opening=OPENINGS, first=STEPS, life=LIVES, rules=st.sampled_from(RULES))
def test_a_healthy_index_reads_each_manifest_and_list_once_ever(
    folders: Folders, opening: bytes, first: list[bytes], life: list[tuple[bytes, bytes]], rules: Any
) -> None:
    with folders() as folder:
        table = built(opening, first[:4], folder, rules)
        # Snapshots in another order than before have to be laid out anew, and are read for it.
        table.may_reorder = False
        root, known = f"{folder}/index", {}
        opened_files: Counter[File] = Counter()
        for number, (decisions, fate) in enumerate([(b"", b""), *life]):
            if number:
                table.step(decisions)
            metadata = table.read_metadata()
            known |= mentions(table)
            tape = Tape(fate)
            table.stores.reads.clear()
            view = refresh(opened(table, root), metadata)
            deletable(view, some(tape, table))
            reachable(view, some(tape, table))
            found = [known[path] for path in table.stores.reads if path in known]
            assert view.manifests_read == sum(file.kind == "manifest" for file in found)
            # A snapshot of manifests inline counts as a list, though there is no file to read.
            inline = sum(snapshot.manifest_list is None for snapshot in metadata.snapshots)
            assert 0 <= view.lists_read - sum(file.kind == "manifest_list" for file in found) <= inline
            opened_files.update(file for file in found)
            again = refresh(opened(table, root), metadata)
            assert (again.lists_read, again.manifests_read) == (0, 0)
        twice = {file for file, count in opened_files.items() if count > 1}
        assert twice <= respelt(table), "read twice"


def respelt(table: MetadataTable) -> set[File]:
    """Manifests that lists spell in several ways, or that stand inline and in lists: each way is read by itself."""
    ways: dict[File, set[Any]] = {}
    for held in table.every_snapshot:
        for manifest, path in held.manifests:
            ways.setdefault(manifest.file, set()).add((path, held.list_file is None))
    return {file for file, paths in ways.items() if len(paths) > 1}


# --- indexes of other tables and versions -----------------------------------------------------------------------------


def _other_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "FORMAT", index_module.FORMAT - 1)


def _other_normalizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "NORMALIZER_VERSION", location.NORMALIZER_VERSION + 1)


def _other_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "HASH_NAME", "crc32 of the path, upside down")


OTHERS: tuple[Callable[[pytest.MonkeyPatch], None] | None, ...] = (
    None,  # other equalities
    _other_format,
    _other_normalizer,
    _other_hash,
)


def made_by_another(
    table: MetadataTable, root: str, metadata: TableMetadata, change: Callable[[pytest.MonkeyPatch], None] | None
) -> None:
    """The table's index is now one that other code, or other rules, have made."""
    if change is None:
        refresh(opened(table, root, RULES[0] if table.rules is STRICT_RULES else STRICT_RULES), metadata)
        return
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        refresh(opened(table, root), metadata)


@pytest.mark.parametrize("change", OTHERS)
def test_an_index_of_another_format_normalizer_hash_or_equalities_is_rebuilt(
    folders: Folders, change: Callable[[pytest.MonkeyPatch], None] | None
) -> None:
    with folders() as folder:
        table = built(b"\x00", [b"", b"\x06", b"\x09", b""], folder)
        metadata, root = table.read_metadata(), f"{folder}/index"
        whole = refresh(opened(table, f"{folder}/new"), metadata)
        made_by_another(table, root, metadata, change)
        view = refresh(opened(table, root), metadata)
        assert (view.lists_read, view.manifests_read) == (whole.lists_read, whole.manifests_read)
        assert whole.manifests_read > 0
        same(view, whole, table.ids(), table.ids()[:1])


# --- damage to the index ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "late", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["between runs", "while a run is asking"]
)
def test_no_flipped_cut_swapped_or_foreign_byte_of_the_index_is_believed(folders: Folders, late: bool) -> None:
    with folders() as folder:
        steps = [b"", b"\x00\x00\x02", b"\x06", b"\x00\x01\x02", b"\x0c", b"\x09", b"", b"\x0d"]
        table = built(b"\x02", steps, folder)
        root, old = f"{folder}/index", table.read_metadata()
        refresh(opened(table, root), old)
        damage = Damage(f"{root}/{table.table_uuid}", other_tables_index(folder))
        damage.remember()
        for step in (b"", b"\x06\x01", b"\x00\x02"):
            table.step(step)
            metadata = table.read_metadata()
            refresh(opened(table, root), metadata)
            damage.remember()
        healthy = contents(damage.folder)
        fresh = refresh(opened(table, f"{folder}/new"), metadata)
        half = table.ids()[::2]
        struck: Counter[str] = Counter()

        @examples(200)
        @given(blow=st.binary(min_size=12, max_size=12))
        def strike(blow: bytes) -> None:
            restore(damage.folder, healthy)
            view = refresh(opened(table, root), metadata) if late else None
            struck.update({damage.strike(Tape(blow))})
            view = view or refresh(opened(table, root), metadata)
            same(view, fresh, half, half)
            # And what the run left behind is as good as new.
            again = refresh(opened(table, root), metadata)
            same(again, fresh, half, half)

        strike()
        assert len(struck) == 11


def lost(rows: Any, at: int) -> Any:
    return np.delete(rows, at)


def doubled(rows: Any, at: int) -> Any:
    return np.insert(rows, at, rows[at])


def moved(rows: Any, at: int) -> Any:
    """Only of owners: the row is now another manifest's."""
    changed = rows.copy()
    if rows.dtype.itemsize == 4:
        changed[at] = (changed[at] + 1) % (changed.max() + 1)
    return changed


@pytest.mark.parametrize("change", [lost, doubled, moved])
def test_a_row_lost_doubled_or_moved_is_noticed_although_the_segment_is_sound_in_itself(
    folders: Folders, change: Callable[[Any, int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a kept file of a rewritten manifest would go. The segment's own checksums hold; it is not the one that the
    index has written."""
    monkeypatch.setattr(segments, "SEGMENT_ROWS", 1_000)
    # In several parts: the first that meets the fault has the index rebuilt, and the others go on with that.
    monkeypatch.setattr(lookups, "_ROWS_AT_ONCE", 2)
    with folders() as folder:
        table, index, metadata = rewritten_table(folder)
        expired = table.ids()[:2]
        whole = refresh(opened(table, f"{folder}/new"), metadata)
        assert deletable(whole, expired).num_rows > 0
        rows = rows_of(refresh(index, metadata))
        healthy = contents(index.folder)
        for number, row in rows:
            restore(index.folder, healthy)
            if forge(index, number, row, change, in_state=False):
                same(refresh(opened(table, f"{folder}/index"), metadata), whole, table.ids(), expired)


@pytest.mark.parametrize("change", [lost, doubled, moved])
def test_joining_segments_counts_their_rows_against_their_manifests(
    folders: Folders, change: Callable[[Any, int], Any], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Also where every checksum holds, of the segment and in what names it: a fault is not handed on."""
    monkeypatch.setattr(segments, "SEGMENT_ROWS", 5)
    with folders() as folder:
        table, index, metadata = rewritten_table(folder)
        whole = refresh(opened(table, f"{folder}/new"), metadata)
        rows = rows_of(refresh(index, metadata))
        healthy = contents(index.folder)
        for number, row in rows:
            restore(index.folder, healthy)
            if not forge(index, number, row, change, in_state=True):
                continue
            caplog.clear()
            with caplog.at_level(logging.WARNING, logger="artemis_lifecycle.reachability.index"):
                compact(index, metadata)
            assert "is rebuilt" in caplog.text
            same(refresh(opened(table, f"{folder}/index"), metadata), whole, table.ids(), table.ids()[:2])


def rewritten_table(folder: str) -> tuple[MetadataTable, ManifestIndex, TableMetadata]:
    """Two manifests, then one that was written anew of both, and another."""
    append, rewrite = b"\x00\x00\x00\x02", bytes([OPERATIONS.index("rewrite")])
    table = built(b"", [append, append, rewrite, append], folder)
    assert len(table.snapshots) == 4
    return table, opened(table, f"{folder}/index"), table.read_metadata()


def rows_of(view: Any) -> list[tuple[int, int]]:
    """Every row of the index, as (segment, place)."""
    found = [(number, row) for number, segment in enumerate(view.state.segments) for row in range(segment.rows)]
    assert len(found) > 8
    return found


def forge(index: ManifestIndex, number: int, row: int, change: Callable[[Any, int], Any], *, in_state: bool) -> bool:
    """Change one row of a segment, with every checksum and place in it anew; `in_state`, also in what names it.

    False when nothing has changed by it.
    """
    folder = Path(index.folder)
    newest = max(folder.glob("state-*"))
    state = IndexState.of_arrays(array_file.decode(newest.read_bytes(), index.identity))
    segment = state.segments[number]
    arrays = array_file.decode((folder / segment.name).read_bytes(), index.identity)
    changed = {**arrays, **{name: change(arrays[name], row) for name in ("hashes", "owners")}}
    if all(np.array_equal(changed[name], arrays[name]) for name in ("hashes", "owners")):
        return False
    _, before = array_file.encode(index.identity, arrays)
    data, places = array_file.encode(index.identity, changed)
    (folder / segment.name).write_bytes(data)
    if in_state:
        state.segments[number] = replace(
            segment, rows=len(changed["hashes"]), hashes=places["hashes"], owners=places["owners"]
        )
        shift = places["blocks"].offset - before["blocks"].offset
        state.block_offsets = state.block_offsets + np.where(state.segment_of == number, shift, 0)
        newest.write_bytes(array_file.encode(index.identity, state.arrays())[0])
    return True


# --- damage to the metadata -------------------------------------------------------------------------------------------


def _missing(path: str, _: bytes, __: Tape) -> int:
    os.unlink(path)
    return 0


def _unreadable(path: str, _: bytes, __: Tape) -> int:
    os.unlink(path)
    os.mkdir(path)
    return 0


def _cut_anywhere(path: str, data: bytes, tape: Tape) -> int:
    end = (tape.below(256) * 256 + tape.below(256)) * len(data) >> 16
    Path(path).write_bytes(data[:end])
    return end


def _cut_at_a_block(path: str, data: bytes, tape: Tape) -> int:
    ends = block_ends(data)[:-1]
    end = tape.of(ends) if ends else 0
    Path(path).write_bytes(data[:end])
    return int(end)


def tells(table: MetadataTable, file: File, data: bytes, end: int) -> bool:
    """Whether the level above records enough to see that `file` ends at `end`, where it still parses.

    Of a listed manifest its length; of an inline one nothing. Of a list, its snapshot's totals, if the snapshot has
    any, if the entries that are left have counts, and if a live file is missing from them.
    """
    if end not in block_ends(data):
        return True
    if file.kind == "manifest":
        return any(
            held.list_file is not None and any(manifest.file is file for manifest, _ in held.manifests)
            for held in table.held.values()
        )
    (held,) = [held for held in table.held.values() if held.list_file is file]
    left = held.manifests[: records_before(data, end)]
    for content, total in ((0, "total-data-files"), (1, "total-delete-files")):
        mine = [manifest for manifest, _ in left if manifest.content == content]
        listed = sum(len(manifest.live) for manifest in mine)
        if (held.counts_recorded or not mine) and listed < int(held.totals.get(total, 0)):
            return True
    return False


@examples(200)
@given(opening=OPENINGS, steps=STEPS, known=st.integers(0, 6), blow=st.binary(min_size=8, max_size=8))
def test_no_answer_while_any_metadata_that_must_be_read_is_missing_cut_or_unreadable(
    folders: Folders, opening: bytes, steps: list[bytes], known: int, blow: bytes
) -> None:
    with folders() as folder:
        table = built(opening, steps[:known], folder)
        root, tape = f"{folder}/index", Tape(blow)
        already: set[File] = set()
        if known:
            # These the index knows from before; only what came since has to be read.
            refresh(opened(table, root), table.read_metadata())
            already = set(table.metadata_files())
        for decisions in steps[known:]:
            table.step(decisions)
        files = sorted(set(table.metadata_files()) - already, key=lambda file: file.number)
        assume(files)
        metadata = table.read_metadata()
        fresh = refresh(opened(table, f"{folder}/new"), metadata)
        file = tape.of(files)
        assert file.real is not None
        data = Path(file.real).read_bytes()
        end = tape.of((_cut_at_a_block, _cut_at_a_block, _cut_anywhere, _missing, _unreadable))(file.real, data, tape)
        assume(tells(table, file, data, end))
        for _ in range(2):
            with pytest.raises(UnreadableMetadata) as raised:
                refresh(opened(table, root), metadata)
            assert raised.value.path is not None
            assert mentions(table)[raised.value.path] is file
        if os.path.isdir(file.real):
            os.rmdir(file.real)
        Path(file.real).write_bytes(data)
        view = refresh(opened(table, root), metadata)
        same(view, fresh, table.ids(), some(tape, table))


@examples(60)
@given(opening=OPENINGS, steps=STEPS, blow=st.binary(min_size=4, max_size=4))
def test_a_truncated_metadata_file_is_not_a_shorter_history(
    folders: Folders, opening: bytes, steps: list[bytes], blow: bytes
) -> None:
    with folders() as folder:
        table = built(opening, steps, folder)
        path = table.write_metadata()
        real = f"{table.disk_home}{path.removeprefix(table.home[0])}"
        _cut_anywhere(real, Path(real).read_bytes(), Tape(blow))
        with pytest.raises(UnreadableMetadata):
            read_table_metadata(table.stores, path)


def test_files_that_the_index_knows_are_not_asked_of_the_metadata_again(folders: Folders) -> None:
    """What stands for them then is the index; whether they are still there is for the deletion to look up."""
    with folders() as folder:
        table = built(b"", [b"", b"", b"\x06", b""], folder)
        metadata, root = table.read_metadata(), f"{folder}/index"
        before = refresh(opened(table, root), metadata)
        before_rows = deletable(before, table.ids()[:2]).num_rows
        for file in set(table.metadata_files()):
            assert file.real is not None
            os.unlink(file.real)
        assert deletable(refresh(opened(table, root), metadata), table.ids()[:2]).num_rows == before_rows > 0


@pytest.mark.parametrize("what", ["list", "manifest", "file"])
def test_an_encrypted_table_is_refused(folders: Folders, what: str) -> None:
    with folders() as folder:
        table = built(b"", [b"", b""], folder)
        refresh(opened(table, f"{folder}/index"), table.read_metadata())
        table.encrypted = what
        table.step(b"")
        for _ in range(2):
            with pytest.raises(EncryptedTable):
                refresh(opened(table, f"{folder}/index"), table.read_metadata())
