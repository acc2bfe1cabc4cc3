"""The state of the index: what two lists may say of one manifest."""

from __future__ import annotations

import numpy as np
import pytest

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.reachability.index.reading import Manifests
from artemis_lifecycle.reachability.index.state import IndexState
from artemis_lifecycle.storage.location import DEFAULT_RULES


def _listed(existing: int, added: int, deleted: int) -> Manifests:
    path = np.frombuffer(b"s3://bucket/t/metadata/m0.avro", np.uint8)
    one = [np.array([value], np.int64) for value in (4_096, existing, added, deleted)]
    return Manifests(np.array([0, len(path)], np.int64), path, one[0], np.zeros(1, np.int8), *one[1:])


def test_a_count_that_one_list_left_out_may_stand_in_the_next() -> None:
    state = IndexState.empty()
    numbers = state.number(_listed(0, 0, -1), DEFAULT_RULES)
    assert state.empty_unread().tolist() == [0]
    state.skip(numbers)
    assert state.number(_listed(0, 0, 3), DEFAULT_RULES).tolist() == [0]
    with pytest.raises(UnreadableMetadata, match="0 added entries, and a manifest list records 2") as raised:
        state.number(_listed(0, 2, 3), DEFAULT_RULES)
    assert raised.value.path == "s3://bucket/t/metadata/m0.avro"
