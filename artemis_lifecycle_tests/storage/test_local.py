from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from artemis_lifecycle.errors import CopyMismatch, ExistingFile, MissingFile, StorageError
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.local import store as local_listing
from artemis_lifecycle.storage.local import store as local_store
from artemis_lifecycle.storage.local.store import local_path
from artemis_lifecycle.storage.stores import DeleteOutcome, Stores
from artemis_lifecycle.storage.types import ABSENT, FAILED, REMOVED, FileStatuses

pytestmark = pytest.mark.seconds


@pytest.fixture
def stores() -> Stores:
    return Stores()


def _names(stores: Stores, root: Path) -> list[str]:
    return sorted(file.path.removeprefix(f"{root}/") for file in stores.list(str(root)))


def _leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*.tmp")]


# --- listing --------------------------------------------------------------------------------------------------------


def test_a_missing_prefix_is_empty_and_a_file_is_not_a_prefix(stores: Stores, tmp_path: Path) -> None:
    assert list(stores.list(f"{tmp_path}/none")) == []
    stores.write(f"{tmp_path}/x", b"")
    with pytest.raises(StorageError, match="cannot be listed"):
        list(stores.list(f"{tmp_path}/x"))


def test_a_listing_neither_follows_nor_shows_symbolic_links(stores: Stores, tmp_path: Path) -> None:
    outside, table = tmp_path / "outside", tmp_path / "table"
    stores.write(f"{outside}/precious", b"1")
    stores.write(f"{table}/own", b"1")
    (table / "folder").symlink_to(outside)
    (table / "file").symlink_to(outside / "precious")
    (table / "dangling").symlink_to(tmp_path / "nowhere")
    (table / "round").symlink_to(table)
    assert _names(stores, table) == ["own"]
    assert stores.children(str(table))[0] == []
    # A prefix that is itself a link was named on purpose, and counts as what it leads to.
    assert [file.path for file in stores.list(f"{table}/folder")] == [f"{table}/folder/precious"]


def test_a_listing_shows_no_pipes_and_no_names_that_metadata_cannot_hold(stores: Stores, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open(os.fsencode(tmp_path) + b"/bad-\xff", "wb"):
        pass
    stores.write(f"{tmp_path}/x", b"")
    assert _names(stores, tmp_path) == ["x"]


@pytest.mark.parametrize("spelling", ["{}", "{}/", "file:{}", "FILE://{}", "{}//"])
def test_a_listing_in_arrow_is_the_listing(
    stores: Stores, tmp_path: Path, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/1", "a/2", "a/b/3", ".h/x", "data/p=1/q=%2F/b c", "\u00e9/\u00fc", "top", "old/1", "old/2"):
        stores.write(f"{tmp_path}/{name}", b"x" * len(name))
    stores.archive(f"{tmp_path}/old/1")
    stores.archive(f"{tmp_path}/old/2")
    stores.thaw(f"{tmp_path}/old/2", days=1)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "top")
    os.mkfifo(tmp_path / "a" / "pipe")
    with suppress(OSError):  # Not every file system takes names that are no text.
        os.close(os.open(os.fsencode(tmp_path) + b"/a/\xff", os.O_CREAT))
        os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    prefix = spelling.format(tmp_path)
    for rows in (1, 2, 50_000):
        monkeypatch.setattr(local_listing, "_BATCH", rows)
        found = [row for batch in stores.batches(prefix) for row in batch.to_pylist()]
        assert sorted((row["path"], row["size_in_bytes"], row["last_modified"]) for row in found) == sorted(
            (file.path, file.size_in_bytes, file.last_modified) for file in stores.list(prefix)
        )
    assert list(stores.batches(f"{tmp_path}/none")) == []
    with pytest.raises(StorageError, match="cannot be listed"):
        list(stores.batches(f"{tmp_path}/top"))


def test_a_file_whose_status_cannot_be_read_stops_the_listing(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is gone by then does not."""
    for name in "abc":
        stores.write(f"{tmp_path}/{name}", b"1")
    scandir = os.scandir

    class Entry:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name, self.is_dir, self.entry = entry.name, entry.is_dir, entry

        def stat(self, **options: Any) -> os.stat_result:
            if self.name == "b":
                raise error
            return self.entry.stat(**options)

    @contextmanager
    def failing(path: str) -> Iterator[Iterator[Entry]]:
        with scandir(path) as entries:
            yield map(Entry, entries)

    monkeypatch.setattr(os, "scandir", failing)
    error: OSError = OSError(errno.EIO, "Input/output error")
    with pytest.raises(StorageError, match="cannot be listed: Input/output error"):
        list(stores.batches(str(tmp_path)))
    error = FileNotFoundError(errno.ENOENT, "No such file")
    (batch,) = stores.batches(str(tmp_path))
    assert sorted(batch.column("path").to_pylist()) == [f"{tmp_path}/a", f"{tmp_path}/c"]


def test_an_unreadable_folder_stops_the_listing(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.write(f"{tmp_path}/a/x", b"")
    stores.write(f"{tmp_path}/b/x", b"")
    scandir = os.scandir

    def refusing(path: Any) -> Any:
        if str(path).rstrip("/").endswith("/b"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(StorageError, match=r"cannot be listed: Permission denied \[path .*/b/?\]"):
        list(stores.list(str(tmp_path)))


# --- reading and writing --------------------------------------------------------------------------------------------


def test_what_is_below_a_file_is_absent(stores: Stores, tmp_path: Path) -> None:
    stores.write(f"{tmp_path}/x", b"")
    path = f"{tmp_path}/x/below-a-file"
    assert stores.head(path) is None
    for reading in (stores.read, stores.open, stores.checksum, lambda path: stores.read_range(path, 0, 1)):
        with pytest.raises(MissingFile, match="absent"):
            reading(path)


@pytest.mark.parametrize(
    "path", ["relative/x", "file:relative", "file://other-host/x", "hdfs://b/x", "hdfs:/x", "", "/a\0b", "/a\ud800"]
)
def test_a_path_that_is_not_ours_is_refused(stores: Stores, path: str) -> None:
    for attempt in (stores.read, stores.head, lambda path: stores.write(path, b"")):
        with pytest.raises(StorageError):
            attempt(path)
    assert stores.delete([path])[0].outcome == "failed"


def test_dots_in_a_path_mean_what_they_mean_to_hadoop(stores: Stores, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    stores.write(f"{tmp_path}/x", b"by text")
    stores.write(f"{tmp_path}/elsewhere/x", b"by link")
    assert stores.read(f"{tmp_path}/link/../x") == b"by text"


def _race(root: str, barrier: Any, wins: Any, number: int) -> None:
    stores = Stores()
    for turn in range(40):
        barrier.wait()
        try:
            stores.write(f"{root}/{turn}", f"{number}".encode() * 1000)
            wins.put((turn, number))
        except ExistingFile:
            pass


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_of_many_writers_at_once_exactly_one_wins(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not links:
        _without_links(monkeypatch)
    context = multiprocessing.get_context("fork")
    barrier, wins = context.Barrier(4), context.Queue()
    workers = [context.Process(target=_race, args=(str(tmp_path), barrier, wins, number)) for number in range(4)]
    for worker in workers:
        worker.start()
    won = dict(wins.get(timeout=60) for _ in range(40))
    for worker in workers:
        worker.join(timeout=60)
    assert wins.empty()
    assert sorted(won) == list(range(40))
    for turn, number in won.items():
        assert (tmp_path / str(turn)).read_bytes() == f"{number}".encode() * 1000
    assert _leftovers(tmp_path) == []


def _without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refusing)


def test_a_disk_without_hard_links_still_does_not_overwrite(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_links(monkeypatch)
    stores.write(f"{tmp_path}/x", b"first")
    with pytest.raises(ExistingFile):
        stores.write(f"{tmp_path}/x", b"second")
    assert stores.read(f"{tmp_path}/x") == b"first"


def test_a_full_disk_leaves_nothing_behind(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    stores.write(f"{tmp_path}/source", b"1")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        stores.write(f"{tmp_path}/x", b"1")
    with pytest.raises(StorageError, match="No space left"):
        stores.copy(f"{tmp_path}/source", f"{tmp_path}/y")
    assert _names(stores, tmp_path) == ["source"]


@pytest.mark.parametrize("step", ["write new", "overwrite", "copy"])
@pytest.mark.parametrize("point", ["fsync", "publish"])
def test_a_writer_that_is_killed_leaves_no_partial_file(tmp_path: Path, step: str, point: str) -> None:
    (tmp_path / "source").write_bytes(b"s" * 3_000_000)
    if step == "overwrite":
        (tmp_path / "x").write_bytes(b"before")
    script = f"""
        import os, signal
        from artemis_lifecycle.storage.stores import Stores
        def die(*_, **__):
            os.kill(os.getpid(), signal.SIGKILL)
        if {point!r} == "fsync":
            os.fsync = die
        else:
            os.link = os.replace = die
        root = {str(tmp_path)!r}
        if {step!r} == "copy":
            Stores().copy(root + "/source", root + "/x")
        else:
            Stores().write(root + "/x", b"n" * 3_000_000, overwrite={step == "overwrite"})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    target = tmp_path / "x"
    assert (target.read_bytes() if target.exists() else None) == (b"before" if step == "overwrite" else None)
    # What stays is one unreferenced file beside it, which an orphan scan lists, and the next attempt succeeds.
    assert len(_leftovers(tmp_path)) == 1
    Stores().write(f"{target}", b"after", overwrite=step == "overwrite")
    assert target.read_bytes() == b"after"


# --- deleting -------------------------------------------------------------------------------------------------------


def test_each_path_of_a_delete_has_its_own_outcome(stores: Stores, tmp_path: Path) -> None:
    stores.write(f"{tmp_path}/x", b"")
    stores.write(f"{tmp_path}/folder/kept", b"")
    paths = [
        f"{tmp_path}/x",
        f"{tmp_path}/none",
        f"{tmp_path}/folder",
        f"file:{tmp_path}/x",
        f"{tmp_path}/folder/kept/below",
        f"{tmp_path}/{'n' * 10_000}",
        "hdfs://b/x",
    ]
    outcomes = stores.delete(paths)
    assert [outcome.path for outcome in outcomes] == paths
    assert [outcome.outcome for outcome in outcomes] == [
        "deleted", "absent", "failed", "absent", "absent", "absent", "failed",
    ]  # fmt: skip
    assert outcomes[2] == DeleteOutcome(f"{tmp_path}/folder", "failed", "it is a folder")
    assert _names(stores, tmp_path) == ["folder/kept"]


def test_a_refused_delete_is_reported_and_stops_no_other(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        stores.write(f"{tmp_path}/{name}", b"")
    unlink = os.unlink

    def refusing(path: Any, *, dir_fd: int | None = None) -> None:
        if Path(path).name == "b":
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refusing)
    outcomes = stores.delete([f"{tmp_path}/{name}" for name in "abc"])
    assert [outcome.outcome for outcome in outcomes] == ["deleted", "failed", "deleted"]
    assert outcomes[1].error == "Permission denied"


@pytest.mark.parametrize("in_arrow", [False, True])
def test_bulk_deletes_and_statuses_match_single_ones(stores: Stores, tmp_path: Path, in_arrow: bool) -> None:
    """Folder by folder and mixed, in every spelling, with folders, links, archived files and absent ones among them."""

    def made(root: Path) -> list[str]:
        for folder in ("a", "a/b", "c d", "away", "kept"):
            (root / folder).mkdir(parents=True)
            for number in range(4):
                (root / folder / f"{number}").write_bytes(b"x" * number)
        (root / "link").symlink_to(root / "away")
        (root / "a" / "link").symlink_to(root / "kept" / "1")
        (root / "a" / "broken").symlink_to(root / "nowhere")
        stores.archive(f"{root}/c d/3")
        names = {
            "a": ("0", "1", "b", "link", "broken", "none", "", ".", "..", "x\0y", "\udcff"),
            "c d": ("0", "3", "none"),
            "link": ("0", "1", "2"),
        }
        paths = [f"{root}/{folder}/{name}" for folder, some in names.items() for name in some]
        paths += [f"file:{root}/c d/1", f"FILE://{root}/c d/2", f"file://{root}/a//2", f"{root}/a/../a/3"]
        paths += [f"{root}/{rest}" for rest in ("gone/0", "a/0/below", "a/b/0", "a/0")]
        return [*paths, "relative/x", "file://host/x"]

    def reported(answers: list[DeleteOutcome], root: Path) -> list[tuple[str, str, str | None]]:
        return [(answer.path.replace(str(root), ""), answer.outcome, answer.error) for answer in answers]

    one, other = tmp_path / "one", tmp_path / "other"
    several, single = made(one), made(other)
    # Those that a look refuses to answer for are refused by both.
    asked = [path for path in several if not path.startswith(("relative", "file://host")) and path.isprintable()]
    assert stores.heads(asked) == [stores.head(path) for path in asked]
    there = [
        path for path in asked if os.path.exists(local_path(path)) and path.rpartition("/")[2] not in ("", ".", "..")
    ]
    assert _as_rows(stores.statuses(pa.array(asked))) == _as_rows(FileStatuses.of(stores.heads(asked)))
    present = pa.array(asked).filter(pa.array(stores.exist(pa.array(asked)))).to_pylist()
    assert [path for path in present if path in set(there)] == there
    assert all(os.path.lexists(local_path(path)) for path in present)
    alone = reported([stores.delete([path])[0] for path in single], other)
    if in_arrow:
        # Arrow has no text with half of a surrogate pair, and what is removed so comes from Parquet.
        alone = [answer for path, answer in zip(several, alone, strict=True) if path.isascii()]
        several = [path for path in several if path.isascii()]
        here, elsewhere = (
            [path for path in several if (path.lower().startswith(("/", "file:/"))) is wanted]
            for wanted in (True, False)
        )
        answers = [
            (path.replace(str(one), ""), ("deleted", "absent", "failed")[code], removals.errors.get(row))
            for some in (here, elsewhere)
            for removals in [stores.remove(pa.array(some))]
            for row, (path, code) in enumerate(zip(some, removals.outcomes.tolist(), strict=True))
        ]
        assert sorted(answers, key=str) == sorted(alone, key=str)
    else:
        assert reported(stores.delete(several), one) == alone
    left = [sorted(str(path.relative_to(root)) for path in root.rglob("*")) for root in (one, other)]
    assert left[0] == left[1] and "kept/1" in left[0] and "away/3" in left[0]


def _as_rows(statuses: FileStatuses) -> list[tuple[int, int] | None]:
    rows = zip(statuses.found.tolist(), statuses.sizes.tolist(), statuses.modified.tolist(), strict=True)
    return [(size, modified) if found else None for found, size, modified in rows]


def test_many_files_in_many_folders_go_and_no_other_does(stores: Stores, tmp_path: Path) -> None:
    """The names of what goes begin, or end, as those of what stays."""
    folders = [f"{number:03d}" for number in range(200)]
    names = {folder: ["a", "ab", "b", ".a.crc"] for folder in folders} | {"large": [f"{n}" for n in range(3_000)]}
    for folder, some in names.items():
        (tmp_path / folder).mkdir()
        for name in some:
            (tmp_path / folder / name).write_bytes(b"1" * len(name))
    every = [f"{tmp_path}/{folder}/{name}" for folder, some in names.items() for name in some]
    going = [path for path in every if path.endswith("/ab") or (path.rpartition("/")[2].isdigit() and path[-1] in "37")]
    gone_before = [f"{tmp_path}/{folder}/gone" for folder in folders[::2]]
    asked = sorted([*(f"file://{path}" for path in going), *gone_before])

    statuses = stores.statuses(pa.array(asked))
    assert statuses.found.tolist() == [path not in gone_before for path in asked]
    assert {*statuses.sizes[statuses.found].tolist()} == {2, 1, 3, 4}
    assert stores.exist(pa.array(asked)).tolist() == statuses.found.tolist()

    late = stores.remove(pa.array(asked), until=elapsed())
    assert {*late.outcomes.tolist()} == {FAILED} and all("not tried" in late.errors[row] for row in range(len(asked)))
    assert sorted(_names(stores, tmp_path)) == sorted(path.removeprefix(f"{tmp_path}/") for path in every)

    removals = stores.remove(pa.array(asked), until=elapsed() + 600)
    assert removals.outcomes.tolist() == [ABSENT if path in gone_before else REMOVED for path in asked]
    assert not removals.errors
    left = {path.removeprefix(f"{tmp_path}/") for path in every} - {path.removeprefix(f"{tmp_path}/") for path in going}
    assert {*_names(stores, tmp_path)} == left


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_cannot_be_read_is_deleted_from(stores: Stores, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    tmp_path.chmod(0o300)
    try:
        assert stores.delete([f"{tmp_path}/x"]) == [DeleteOutcome(f"{tmp_path}/x", "deleted")]
    finally:
        tmp_path.chmod(0o700)


def test_deleting_a_symbolic_link_leaves_what_it_points_to(stores: Stores, tmp_path: Path) -> None:
    stores.write(f"{tmp_path}/precious", b"1")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    assert stores.delete([f"{tmp_path}/link"])[0].outcome == "deleted"
    assert stores.read(f"{tmp_path}/precious") == b"1"


def test_two_deleters_at_once_do_not_disturb_each_other(stores: Stores, tmp_path: Path) -> None:
    paths = [f"{tmp_path}/{number}" for number in range(300)]
    for path in paths:
        Path(path).write_bytes(b"")
    answers: list[list[DeleteOutcome]] = []
    threads = [threading.Thread(target=lambda: answers.append(stores.delete(paths))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(*answers, strict=True):
        assert {one.outcome, other.outcome} == {"deleted", "absent"}


# --- copying --------------------------------------------------------------------------------------------------------


def test_an_identical_copy_is_not_written_again(stores: Stores, tmp_path: Path) -> None:
    stores.write(f"{tmp_path}/x", b"same")
    stores.write(f"{tmp_path}/y", b"same")
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    os.utime(tmp_path / "y", (moment.timestamp(), moment.timestamp()))
    stores.copy(f"{tmp_path}/x", f"{tmp_path}/y")
    found = stores.head(f"{tmp_path}/y")
    assert found is not None
    assert found.last_modified == moment


def _spoiling(monkeypatch: pytest.MonkeyPatch, times: int, spoil: Any) -> list[int]:
    """The first `times` files that are written reach the disk spoiled."""
    write, done = local_store.write_durably, []

    def spoiled(temporary: Path, chunks: Any) -> None:
        write(temporary, chunks)
        done.append(1)
        if len(done) <= times:
            temporary.write_bytes(spoil(temporary.read_bytes()))

    monkeypatch.setattr(local_store, "write_durably", spoiled)
    return done


_SPOILS = {
    "a flipped bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "a cut end": lambda data: data[:-1],
    "nothing at all": lambda data: b"",
    "more at the end": lambda data: data + b"\0",
}


@pytest.mark.parametrize("how", list(_SPOILS))
def test_a_corrupted_copy_is_done_again(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    stores.write(f"{tmp_path}/x", b"same")
    done = _spoiling(monkeypatch, 2, _SPOILS[how])
    stores.copy(f"{tmp_path}/x", f"{tmp_path}/y")
    assert stores.read(f"{tmp_path}/y") == b"same"
    assert len(done) == 3


@pytest.mark.parametrize("how", list(_SPOILS))
def test_a_copy_that_stays_corrupted_is_refused(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    stores.write(f"{tmp_path}/x", b"same")
    _spoiling(monkeypatch, 99, _SPOILS[how])
    with pytest.raises(CopyMismatch, match="3 times"):
        stores.copy(f"{tmp_path}/x", f"{tmp_path}/y")
    assert _names(stores, tmp_path) == ["x"]


def test_a_source_that_is_cut_while_it_is_copied_is_refused(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.write(f"{tmp_path}/x", b"whole")
    found = stores.head(f"{tmp_path}/x")
    assert found is not None
    (tmp_path / "x").write_bytes(b"who")
    monkeypatch.setattr(stores, "head", lambda path: found if path.endswith("/x") else None)
    with pytest.raises(CopyMismatch, match="has 5 bytes, 3 were read"):
        stores.copy(f"{tmp_path}/x", f"{tmp_path}/y")
    assert not (tmp_path / "y").exists()


def test_local_stores_load_no_cloud_and_no_engine() -> None:
    script = (
        "import sys, artemis_lifecycle.storage.stores, artemis_lifecycle.storage.location\n"
        "print([m for m in ('boto3', 'botocore', 'pyspark', 'numba', 'matplotlib', 'dagster') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
