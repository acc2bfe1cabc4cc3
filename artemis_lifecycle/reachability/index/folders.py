"""The folders of the files that snapshots reach. Belongs here: reading them out of the index. Does not belong: what is
kept of them (`reachability/reached.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from artemis_lifecycle.storage.many_files import ByFolder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from artemis_lifecycle.reachability.index.index import IndexView


def folders(view: IndexView, without: Collection[str] = ()) -> Iterator[set[str]]:
    """The folders, as the metadata spells them, of lists, manifests, statistics files, and of the entries in segments
    other than those named; in parts, which may name a folder again. Raises DamagedIndex."""
    import numpy as np

    state = view.state
    paths = [snapshot.manifest_list for snapshot in view.metadata.snapshots if snapshot.manifest_list is not None]
    paths += [file.path for file in view.metadata.statistics]
    yield {path.rpartition("/")[0] for path in paths}
    yield _folders(state.manifests.offsets, state.manifests.data)
    fresh = np.array([segment.name not in without for segment in state.segments], np.bool_)
    for number in np.flatnonzero(fresh).tolist():
        yield _of_segment(view, number)


# A segment never changes, and has a name of its own: a process that asks again does not read it again.
_KEPT, _LARGEST = 4_096, 10_000
_known: dict[tuple[str, str], set[str]] = {}


def _of_segment(view: IndexView, number: int) -> set[str]:
    import numpy as np

    state = view.state
    key = view.index.folder, state.segments[number].name
    known = _known.get(key)
    if known is None:
        known = set()
        for _, rows in view.index.rows_of(state, np.flatnonzero(state.segment_of == number)):
            known |= _folders(rows.offsets, rows.data)
        if len(known) <= _LARGEST:
            if len(_known) >= _KEPT:
                _known.clear()
            _known[key] = known
    return known


def _folders(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> set[str]:
    # Paths come in runs of one folder: the first of each tells it.
    starts = ByFolder.at(offsets, data).starts
    first = zip(offsets[starts].tolist(), offsets[starts + 1].tolist(), strict=True)
    found = {data[low:high].tobytes().rpartition(b"/")[0] for low, high in first}
    return {folder.decode("utf-8", "surrogatepass") for folder in found}
