"""The folders of the files that snapshots reach. Belongs here: reading them out of the index. Does not belong: what is
kept of them (`reachability/reached.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from artemis_lifecycle.reachability.index.index import IndexView


def folders(view: IndexView, without: Collection[str] = ()) -> Iterator[set[str]]:
    """The folders, as the metadata spells them, of lists, manifests, statistics files, and of the entries in segments
    other than those named; in parts, which may name a folder again. Raises DamagedIndex."""
    import numpy as np

    state = view.state
    paths = [snapshot.manifest_list for snapshot in view.metadata.snapshots if snapshot.manifest_list is not None]
    paths += [file.path for file in view.metadata.statistics]
    yield {path.rpartition("/")[0] for path in paths}
    yield _folders(_binary(state.manifests.offsets, state.manifests.data, len(state.manifests)))
    fresh = np.array([segment.name not in without for segment in state.segments], np.bool_)
    held = np.flatnonzero(state.segment_of >= 0)
    for _, rows in view.index.rows_of(state, held[fresh[state.segment_of[held]]]):
        yield _folders(_binary(rows.offsets, rows.data, len(rows)))


def _binary(offsets: object, data: object, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.large_binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _folders(paths: pa.Array) -> set[str]:
    import pyarrow.compute as pc

    found = pc.unique(pc.replace_substring_regex(paths, "/[^/]*$", "")).to_pylist()
    return {folder.decode("utf-8", "surrogatepass") for folder in found}
