"""The state of the index: what two lists may say of one manifest."""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.manifest_lists import Manifests
from artemis_lifecycle.metadata.types import Snapshot
from artemis_lifecycle.reachability.index.manifests import merged, read_lists
from artemis_lifecycle.reachability.index.segments import ReadManifest, read_manifest
from artemis_lifecycle.reachability.index.state import IndexState
from artemis_lifecycle.storage.location import DEFAULT_RULES
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.metadata.avro_files import (
    MANIFEST_LIST,
    Shelf,
    avro_file,
    file_record,
    list_record,
    manifest_schema,
)


def _listed(existing: int, added: int, deleted: int) -> Manifests:
    path = pa.array(["s3://bucket/t/metadata/m0.avro"], pa.large_string())
    one = [np.array([value], np.int64) for value in (4_096, 1, existing, added, deleted)]
    return Manifests(path, one[0], np.zeros(1, np.int8), *one[1:])


def test_a_count_missing_from_one_list_may_be_in_the_next() -> None:
    state = IndexState.empty()
    numbers = state.number(_listed(0, 0, -1), DEFAULT_RULES)
    assert state.empty_unread().tolist() == [0]
    state.skip(numbers)
    assert state.number(_listed(0, 0, 3), DEFAULT_RULES).tolist() == [0]
    with pytest.raises(UnreadableMetadata, match="0 added entries, and a manifest list records 2") as raised:
        state.number(_listed(0, 2, 3), DEFAULT_RULES)
    assert raised.value.path == "s3://bucket/t/metadata/m0.avro"


def test_a_manifest_is_held_against_the_snapshot_that_its_lists_name() -> None:
    manifest, lists = "s3://bucket/t/metadata/m.avro", [f"s3://bucket/t/metadata/snap-{n}.avro" for n in range(3)]

    def read(*added_by: int, by: int) -> ReadManifest:
        data = avro_file(manifest_schema(), [{**file_record(1), "snapshot_id": by}])
        files = {manifest: data}
        for path, each in zip(lists, added_by, strict=False):
            listed = list_record(manifest, len(data), 0, (0, 1, 0), added_snapshot_id=each)
            files[path] = avro_file(MANIFEST_LIST, [listed])
        stores = cast(Stores, Shelf(files))
        snapshots = [Snapshot(n, None, n, 1_000, path) for n, path in enumerate(lists[: len(added_by)], start=1)]
        state = IndexState.empty()
        # In two chunks, as executors read them, and as a stored index gives them back.
        chunks = [read_lists(stores, snapshots[:1]), read_lists(stores, snapshots[1:])]
        (number,) = state.number(merged(chunks).manifests, DEFAULT_RULES).tolist()
        state.skip(np.array([number]))
        for kept in (state, IndexState.of_arrays(state.arrays())):
            read_manifest(stores, number, kept.entry(number), DEFAULT_RULES)
        return read_manifest(stores, number, state.entry(number), DEFAULT_RULES)

    assert read(5, 5, 5, by=5).counts == (0, 1, 0)
    for by in (4, 2**62):
        with pytest.raises(UnreadableMetadata, match=f"entries that snapshot {by} added") as raised:
            read(5, 5, by=by)
        assert raised.value.path == manifest
    # Lists that name two snapshots say nothing: some writer copied them without care.
    assert read(5, 6, 5, by=7).counts == (0, 1, 0)


def test_a_state_of_before_that_column_is_read() -> None:
    state = IndexState.empty()
    state.skip(state.number(_listed(0, 0, 0), DEFAULT_RULES))
    arrays = state.arrays()
    del arrays["manifest_added_by"]
    assert IndexState.of_arrays(arrays).entry(0).added_snapshot_id is None
    assert IndexState.of_arrays(state.arrays()).entry(0).added_snapshot_id == 1
