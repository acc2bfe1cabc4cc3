"""The folders of the files that snapshots reach. Belongs here: reading them from the index. Does not belong here: what
is stored of them (`reachability/reached.py`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa

from artemis_lifecycle.reachability.index.rows import rows_of
from artemis_lifecycle.reachability.index.view import IndexView, query
from artemis_lifecycle.storage.location import ByFolder


@query
def reached_folders(view: IndexView, without: Collection[str] = ()) -> tuple[list[set[str]], tuple[str, ...]]:
    """Return the folders of everything that any snapshot reaches, in the metadata's spelling, in parts that may
    repeat a folder; and the names of the index's segments. Omits the entries of segments in `without`, which were
    read before."""
    return list(_parts(view, without)), tuple(segment.name for segment in view.state.segments)


def _parts(view: IndexView, without: Collection[str]) -> Iterator[set[str]]:
    state = view.state
    paths = [snapshot.manifest_list for snapshot in view.metadata.snapshots if snapshot.manifest_list is not None]
    paths += [file.path for file in view.metadata.statistics]
    yield {path.rpartition("/")[0] for path in paths}
    yield _folders(state.manifests.paths)
    fresh = np.array([segment.name not in without for segment in state.segments], np.bool_)
    for number in np.flatnonzero(fresh).tolist():
        yield _of_segment(view, number)


# A segment never changes and has a unique name, so a process reads it only once.
_KEPT, _LARGEST = 4_096, 10_000
_known: dict[tuple[str, str], set[str]] = {}


def _of_segment(view: IndexView, number: int) -> set[str]:
    state = view.state
    key = view.index.folder, state.segments[number].name
    known = _known.get(key)
    if known is None:
        known = set()
        for _, rows in rows_of(view.index, state, np.flatnonzero(state.segment_of == number)):
            known |= _folders(rows.paths)
        if len(known) <= _LARGEST:
            if len(_known) >= _KEPT:
                _known.clear()
            _known[key] = known
    return known


def _folders(paths: pa.Array) -> set[str]:
    # Paths come in runs with the same folder, so the first path of each run is sufficient.
    firsts = paths.take(pa.array(ByFolder.of(paths).starts))
    return {path.rpartition("/")[0] for path in firsts.to_pylist()}
