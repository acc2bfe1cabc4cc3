"""Archive classes: on S3 and on a disk a file that was archived is listed, unreadable and not to be overwritten, until
it is thawed."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from artemis_lifecycle.errors import ExistingFile, MissingFile, StorageError
from artemis_lifecycle.storage.s3 import S3Requests
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.storage.s3_server import S3Server


@dataclass
class Place:
    stores: Stores
    root: str
    server: S3Server | None = None


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "disk":
        return Place(Stores(), f"file://{tmp_path}/cold")
    server: S3Server = request.getfixturevalue("s3")
    return Place(Stores(server.settings()), f"s3://{server.bucket()}/cold", server)


def test_an_archived_file_is_there_and_unreadable_until_it_is_thawed(place: Place) -> None:
    stores, path, other = place.stores, f"{place.root}/a b%20/one.parquet", f"{place.root}/two.parquet"
    stores.write(path, b"one")
    stores.write(other, b"two")
    assert stores.archive_state(path) is not None
    assert stores.archive(path) is True
    assert stores.archive(path) is False
    state = stores.archive_state(path)
    assert state is not None and (state.archived, state.readable) == (True, False)
    found = stores.head(path)
    assert found is not None and found.size_in_bytes == 3
    assert sorted(file.path for file in stores.list(place.root)) == [path, other]
    folders, files = stores.children(f"{place.root}/a b%20")
    assert (folders, [file.path for file in files]) == ([], [path])
    for unreadable in (stores.read, stores.open, stores.checksum):
        with pytest.raises(StorageError) as refused:
            unreadable(path)
        assert not isinstance(refused.value, MissingFile)
    with pytest.raises(ExistingFile):
        stores.write(path, b"another")
    assert stores.read(other) == b"two"

    stores.thaw(path, days=3)
    stores.thaw(path, days=3)
    state = stores.archive_state(path)
    assert state is not None and state.readable and state.readable_until is not None
    assert timedelta(days=1) < state.readable_until - datetime.now(UTC) <= timedelta(days=4)
    assert stores.read(path) == b"one"
    assert sorted(file.path for file in stores.list(place.root)) == [path, other]
    assert stores.archive(path) is False
    assert stores.read(path) == b"one"


def test_what_is_not_archived_is_readable_and_needs_no_thaw(place: Place) -> None:
    stores, path = place.stores, f"{place.root}/plain"
    stores.write(path, b"x")
    stores.thaw(path, days=1)
    state = stores.archive_state(path)
    assert state is not None and (state.archived, state.readable) == (False, True)
    stores.end_thaw(path)
    assert stores.read(path) == b"x"
    absent = f"{place.root}/absent"
    assert stores.archive_state(absent) is None
    for work in (lambda: stores.archive(absent), lambda: stores.thaw(absent, days=1)):
        with pytest.raises(MissingFile):
            work()
    with pytest.raises(StorageError, match="not an archive class"):
        stores.archive(path, "GLACIER_IR")


def test_a_disk_ends_a_thaw_itself_and_deletes_nothing_that_is_archived(tmp_path: Path) -> None:
    stores, path = Stores(), f"file://{tmp_path}/one.parquet"
    stores.write(path, b"one")
    stores.archive(path)
    for outcome in (stores.delete([path]), stores.delete([path])):
        assert [(each.outcome, each.error) for each in outcome] == [("failed", "it is in the archive")]
    with pytest.raises(StorageError, match="cannot be replaced"):
        stores.write(path, b"another", overwrite=True)
    stores.thaw(path, days=1)
    stores.thaw(path, days=9)
    state = stores.archive_state(path)
    assert state is not None and state.readable_until is not None
    assert state.readable_until > datetime.now(UTC) + timedelta(days=8)
    assert stores.delete([path])[0].outcome == "failed"
    stores.end_thaw(path)
    stores.end_thaw(path)
    state = stores.archive_state(path)
    assert state is not None and (state.archived, state.readable, state.readable_until) == (True, False, None)
    # Hard links or not: the archived bytes are those that were put aside.
    assert sorted(os.listdir(tmp_path)) == [".deep-archive"]
    assert (tmp_path / ".deep-archive" / "one.parquet").read_bytes() == b"one"


def test_a_disk_without_links_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores, path = Stores(), f"file://{tmp_path}/one.parquet"
    stores.write(path, b"one")
    stores.archive(path)

    def no_links(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    stores.thaw(path, days=1)
    assert stores.read(path) == b"one"
    assert sorted(os.listdir(tmp_path)) == [".deep-archive", "one.parquet"]
    stores.end_thaw(path)
    assert (tmp_path / ".deep-archive" / "one.parquet").read_bytes() == b"one"


def test_a_large_object_goes_in_parts_and_keeps_its_own_metadata(s3: S3Server) -> None:
    stores, bucket = Stores(s3.settings(multipart_bytes=5 << 20)), s3.bucket()
    data = os.urandom(11 << 20)
    s3.client().put_object(Bucket=bucket, Key="large", Body=data, Metadata={"who": "ingest"}, StorageClass="GLACIER_IR")
    assert stores.archive(f"s3://{bucket}/large") is True
    head = s3.client().head_object(Bucket=bucket, Key="large")
    assert (head["StorageClass"], head["ContentLength"], head["Metadata"]) == (
        "DEEP_ARCHIVE",
        len(data),
        {"who": "ingest"},
    )
    stores.thaw(f"s3://{bucket}/large", days=1)
    assert stores.read(f"s3://{bucket}/large") == data


def test_the_states_of_a_thaw_are_read_from_s3(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    stores, path = Stores(s3.settings()), f"s3://{s3.bucket()}/one"
    stores.write(path, b"one")
    answer = {"StorageClass": "DEEP_ARCHIVE", "ContentLength": 3, "LastModified": datetime.now(UTC)}
    for restore, expected in (
        ("", (True, False, False, None)),
        ('ongoing-request="true"', (True, False, True, None)),
        (
            'ongoing-request="false", expiry-date="Fri, 21 Dec 2012 00:00:00 GMT"',
            (True, True, False, datetime(2012, 12, 21, tzinfo=UTC)),
        ),
    ):
        monkeypatch.setattr(
            S3Requests, "ask", lambda *_, restore=restore: answer | ({"Restore": restore} if restore else {})
        )
        state = stores.archive_state(path)
        assert state is not None
        assert (state.archived, state.readable, state.thawing, state.readable_until) == expected


def test_a_file_comes_back_from_the_archive_for_good(place: Place) -> None:
    """A disk puts it back; an object is written again, from what it was a copy of, also while it is thawed."""
    stores, source = place.stores, f"{place.root}/source.parquet"
    stores.write(source, b"one")
    for thawed in (False, True):
        path = f"{place.root}/{thawed}.parquet"
        stores.write(path, b"one")
        stores.archive(path)
        if thawed:
            stores.thaw(path, days=1)
        if not stores.unarchive(path):
            stores.copy(source, path, overwrite=True)
        state = stores.archive_state(path)
        assert state is not None and (state.archived, state.readable) == (False, True)
        stores.end_thaw(path)
        assert stores.read(path) == b"one"
        assert stores.archive(path) is True
