"""What every store promises, each promise once, for all of them. A new store is one more `Place`; what only one store
has (links, multipart uploads, a server that is busy) stands in its own file."""

from __future__ import annotations

import hashlib
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from artemis_lifecycle.errors import ExistingFile, MissingFile, StorageError
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.storage.object_servers import ObjectServer
from artemis_lifecycle_tests.storage.s3_server import S3Server

pytestmark = pytest.mark.seconds

NIGHTLY = pytest.param("azure", marks=pytest.mark.nightly)
STORES = ("disk", "s3", "gcs", NIGHTLY)
PAIRS = [
    pytest.param(source, target, marks=[*(() if "azure" not in (source, target) else (pytest.mark.nightly,))])
    for source in ("disk", "s3", "gcs", "azure")
    for target in ("disk", "s3", "gcs", "azure")
    # Between two object stores of different kinds, bytes go as from a disk and to a disk.
    if source == target or "disk" in (source, target)
]


@dataclass(frozen=True)
class Place:
    """`stems`: the spellings of `root`. `leftovers` names what a write left half-done."""

    stores: Stores
    root: str
    stems: tuple[str, ...]
    leftovers: Callable[[], list[Any]]

    def names(self) -> list[str]:
        return sorted(file.path.removeprefix(f"{self.root}/") for file in self.stores.list(self.root))


MakePlace = Callable[[str], Place]


@pytest.fixture
def make_place(request: pytest.FixtureRequest, tmp_path: Path) -> MakePlace:
    def make(store: str) -> Place:
        if store == "disk":
            spellings = ("{}", "{}/", "file:{}", "file://{}", "FILE://{}", "{}//")
            return Place(Stores(), f"{tmp_path}/table", spellings, lambda: list(tmp_path.rglob("*.tmp")))
        if store in ("gcs", "azure"):
            other: ObjectServer = request.getfixturevalue(store)
            root = f"{other.root()}/table"
            stems = ("gs://{}",)
            if store == "azure":
                container, _, rest = root.removeprefix("abfss://").partition("@")
                blob = rest.replace(".dfs.", ".blob.")
                stems = ("abfss://{}", "ABFS://{}", f"wasbs://{container}@{blob}", f"wasb://{container}@{blob}")
            return Place(other.stores(), root, stems, list)
        server: S3Server = request.getfixturevalue("s3")
        bucket: str = request.getfixturevalue("bucket")

        def uploads() -> list[Any]:
            return list(server.client().list_multipart_uploads(Bucket=bucket).get("Uploads", ()))

        return Place(server.stores(), f"s3://{bucket}/table", ("s3://{}", "s3a://{}", "s3n://{}", "S3A://{}"), uploads)

    return make


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, make_place: MakePlace) -> Place:
    return make_place(request.param)


# --- reading and writing ----------------------------------------------------------------------------------------------


def test_a_file_reads_as_it_was_written(place: Place) -> None:
    stores, path = place.stores, f"{place.root}/deep/er/x"
    data = os.urandom(3_000_017)
    written = stores.write(path, data)
    found = stores.head(path)
    assert found is not None and found.last_modified is not None
    assert (found.path, found.size_in_bytes) == (written.path, written.size_in_bytes) == (path, len(data))
    assert found.last_modified.utcoffset() is not None
    assert written.last_modified is None or found == written
    assert stores.read(path) == data
    assert stores.read_range(path, 2, 3) == data[2:5]
    assert stores.read_range(path, len(data) - 2, 100) == data[-2:]
    assert stores.read_range(path, len(data), 5) == b""
    assert stores.checksum(path) == "sha256:" + hashlib.sha256(data).hexdigest()
    with stores.open(path) as file:
        assert file.read(10) == data[:10]
        file.seek(-100, os.SEEK_END)
        assert file.read() == data[-100:]
        file.seek(5)
        assert file.tell() == 5
        assert file.read() == data[5:]
        assert file.read() == b""


def test_an_empty_file_is_a_file(place: Place) -> None:
    place.stores.write(f"{place.root}/x", b"")
    assert place.stores.read(f"{place.root}/x") == b""
    with place.stores.open(f"{place.root}/x") as file:
        assert file.read() == b""
    assert place.stores.copy(f"{place.root}/x", f"{place.root}/y").size_in_bytes == 0
    assert place.names() == ["x", "y"]


def test_an_absent_file_says_so(place: Place) -> None:
    stores, path = place.stores, f"{place.root}/none"
    stores.write(f"{place.root}/x", b"")
    assert stores.head(path) is None
    assert stores.head(place.root) is None
    for reading in (stores.read, stores.open, stores.checksum, lambda path: stores.read_range(path, 0, 1)):
        with pytest.raises(MissingFile, match="absent"):
            reading(path)
    with pytest.raises(MissingFile):
        stores.copy(path, f"{place.root}/y")
    assert place.names() == ["x"]


def test_a_written_file_is_not_overwritten_unless_asked(place: Place) -> None:
    stores, path = place.stores, f"{place.root}/x"
    stores.write(path, b"first")
    with pytest.raises(ExistingFile, match="exists"):
        stores.write(path, b"second")
    assert stores.read(path) == b"first"
    stores.write(path, b"third", overwrite=True)
    assert stores.read(path) == b"third"
    assert place.leftovers() == []


def test_of_many_writers_at_once_exactly_one_wins(place: Place) -> None:
    for turn in range(5):
        path, barrier = f"{place.root}/{turn}", threading.Barrier(4)
        won: list[int] = []

        def write(number: int, path: str = path, barrier: Any = barrier, won: list[int] = won) -> None:
            barrier.wait()
            try:
                place.stores.write(path, str(number).encode())
                won.append(number)
            except ExistingFile:
                pass

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert place.stores.read(path) == str(won[0]).encode()
    assert place.leftovers() == []


# --- listing ----------------------------------------------------------------------------------------------------------


def test_a_listing_is_deep_and_shows_hidden_files_and_no_neighbors(place: Place) -> None:
    names = (".h/x", "data/.hidden", "data/_under", "data/a", "data/p=1/q=%2F/b c")
    for name in names:
        place.stores.write(f"{place.root}/{name}", b"1")
    for neighbor in ("2/x", ".bak/x"):
        place.stores.write(f"{place.root}{neighbor}", b"1")
    assert place.names() == list(names)
    assert list(place.stores.list(f"{place.root}/none")) == []


def test_a_listing_comes_in_its_prefixes_spelling(place: Place) -> None:
    place.stores.write(f"{place.root}/d/.x", b"12")
    for stem in place.stems:
        prefix = stem.format(place.root.partition("://")[2] or place.root)
        (file,) = place.stores.list(prefix)
        assert file.path == prefix.rstrip("/") + "/d/.x"
        assert file.size_in_bytes == 2
        assert file.last_modified is not None and file.last_modified.utcoffset() is not None
        assert place.stores.read(file.path) == b"12"
        assert place.stores.children(prefix)[0] == [prefix.rstrip("/") + "/d/"]


def test_children_are_one_level_and_make_up_the_whole_listing(place: Place) -> None:
    for name in ("a/x", "a/b/y", "z", "b/w"):
        place.stores.write(f"{place.root}/{name}", b"")
    folders, files = place.stores.children(place.root)
    assert folders == [f"{place.root}/a/", f"{place.root}/b/"]
    assert [file.path for file in files] == [f"{place.root}/z"]
    split = [file.path for folder in folders for file in place.stores.list(folder)] + [file.path for file in files]
    assert sorted(split) == sorted(file.path for file in place.stores.list(place.root))


# --- deleting and copying ---------------------------------------------------------------------------------------------


def test_a_delete_answers_for_each_path_in_its_order_and_takes_no_other(place: Place) -> None:
    for name in ("x", "y", "kept"):
        place.stores.write(f"{place.root}/{name}", b"1")
    paths = [f"{place.root}/{name}" for name in ("y", "none", "x", "y")]
    outcomes = place.stores.delete([*paths, "hdfs://b/x"])
    assert [outcome.path for outcome in outcomes] == [*paths, "hdfs://b/x"]
    assert [outcome.outcome for outcome in outcomes][::2] == ["deleted", "deleted", "failed"]
    # S3 does not say whether there was an object.
    assert {outcome.outcome for outcome in outcomes[1::2]} <= {"deleted", "absent"}
    assert place.names() == ["kept"]


def test_a_delete_whose_time_is_over_tries_no_more(place: Place) -> None:
    place.stores.write(f"{place.root}/x", b"")
    (outcome,) = place.stores.delete([f"{place.root}/x"], until=elapsed())
    assert outcome.outcome == "failed"
    assert "not tried" in (outcome.error or "")
    assert place.stores.head(f"{place.root}/x") is not None


def test_a_copy_reports_the_checksum_that_was_read_back(place: Place) -> None:
    data = os.urandom(3_500_000)
    source, target = f"{place.root}/x", f"{place.root}/cold/deep/x"
    place.stores.write(source, data)
    copied = place.stores.copy(source, target)
    assert (copied.size_in_bytes, copied.checksum) == (len(data), "sha256:" + hashlib.sha256(data).hexdigest())
    assert place.stores.read(target) == data
    assert place.stores.copy(source, target) == copied
    assert place.leftovers() == []


def test_a_copy_onto_itself_is_refused(place: Place) -> None:
    place.stores.write(f"{place.root}/x", b"1")
    for stem in place.stems:
        again = stem.format(place.root.partition("://")[2] or place.root)
        with pytest.raises(StorageError, match="are one file"):
            place.stores.copy(f"{place.root}/x", f"{again.rstrip('/')}/x")
    assert place.stores.read(f"{place.root}/x") == b"1"


@pytest.mark.parametrize("there", [b"", b"dat", b"DATA", b"data and more"])
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_differing_copy_is_replaced(make_place: MakePlace, source: str, target: str, there: bytes) -> None:
    live, cold = make_place(source), make_place(target)
    live.stores.write(f"{live.root}/x", b"data")
    cold.stores.write(f"{cold.root}/y", there)
    cold.stores.copy(f"{live.root}/x", f"{cold.root}/y", source_stores=live.stores)
    assert cold.stores.read(f"{cold.root}/y") == b"data"
    assert cold.leftovers() == []


@pytest.mark.parametrize("size", [4, 3_500_000, 2 * 5 * 1024 * 1024])
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_what_is_not_confirmed_never_stands_at_its_place(
    make_place: MakePlace, source: str, target: str, size: int
) -> None:
    live, cold = make_place(source), make_place(target)
    live.stores.write(f"{live.root}/x", b"1" * size)

    def refuse(checksum: str) -> None:
        assert checksum == "sha256:" + hashlib.sha256(b"1" * size).hexdigest()
        assert cold.stores.head(f"{cold.root}/y") is None
        raise StorageError("another file's bytes", path="x", untouched="all", hint="none")

    with pytest.raises(StorageError, match="another file's bytes"):
        cold.stores.copy(f"{live.root}/x", f"{cold.root}/y", source_stores=live.stores, confirm=refuse)
    assert cold.stores.head(f"{cold.root}/y") is None
    assert cold.leftovers() == []


def test_stores_travel_to_executors(place: Place) -> None:
    again = pickle.loads(pickle.dumps(Stores(place.stores.settings, s3_client_factory=lambda: None)))
    assert again.settings == place.stores.settings
    again.write(f"{place.root}/x", b"1")
    assert place.stores.read(f"{place.root}/x") == b"1"
