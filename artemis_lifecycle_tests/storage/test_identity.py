"""A file is its location and what its store says of it: another file at the same path is never taken for it."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import NO_TAG, NO_TIME, FileIdentity, Sameness


def test_a_file_written_again_with_the_same_size_and_time_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / "part-0.parquet"
    path.write_bytes(b"one")
    first, status = Stores().head(str(path)), path.stat()
    other = tmp_path / "written-elsewhere"
    other.write_bytes(b"two")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(other, path)
    second = Stores().head(str(path))
    assert first is not None and second is not None
    assert first.last_modified == second.last_modified and first.size_in_bytes == second.size_in_bytes
    assert first.identity.compare(second.identity) is Sameness.UNSURE


def test_a_file_that_nobody_touched_is_the_same_in_every_way_to_ask(tmp_path: Path) -> None:
    stores, paths = Stores(), [f"{tmp_path}/{name}" for name in "abc"]
    for path in paths:
        stores.write(path, b"x")
    statuses = stores.statuses(pa.array(paths))
    listed = {file.path: file.identity for file in stores.list(str(tmp_path))}
    for row, path in enumerate(paths):
        head = stores.head(path)
        assert head is not None and statuses.tags[row] != NO_TAG
        assert head.identity == FileIdentity(1, int(statuses.modified[row]), int(statuses.tags[row])) == listed[path]


_IDENTITIES = st.builds(
    FileIdentity, st.integers(0, 2), st.sampled_from([NO_TIME, 1, 2]), st.sampled_from([NO_TAG, 1, -2])
)


@given(_IDENTITIES, _IDENTITIES)
def test_same_means_that_nothing_known_differs_and_something_besides_the_size_is_known(
    recorded: FileIdentity, now: FileIdentity
) -> None:
    known = [
        (a, b)
        for a, b, unknown in ((recorded.modified, now.modified, NO_TIME), (recorded.tag, now.tag, NO_TAG))
        if unknown not in (a, b)
    ]
    same = recorded.size_in_bytes == now.size_in_bytes
    expected = Sameness.OTHER if not same else Sameness.SAME
    if same and (not known or any(a != b for a, b in known)):
        expected = Sameness.UNSURE
    assert recorded.compare(now) is expected
