"""The index as of one metadata file, which every query uses. Belongs here: the view, and repeating a query after
damage. Does not belong here: the queries (`files.py`, `lookups.py`, `held.py`, `folders.py`, `presence.py`), building a
view (`refresh.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index.array_file import DamagedIndex
from artemis_lifecycle.reachability.index.index import ManifestIndex
from artemis_lifecycle.reachability.index.state import IndexState

_log = escaping.logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class IndexView:
    """The index as of one metadata file. `order[i]` is the position in the history of the state's i-th snapshot.

    `lists_read` and `manifests_read` count the metadata's own files that had to be opened. `rebuilt` reads all of them
    into a new view.
    """

    index: ManifestIndex
    metadata: TableMetadata
    state: IndexState
    order: NDArray[np.int64]
    lists_read: int
    manifests_read: int
    rebuilt: Callable[[], IndexView]

    def in_order(self) -> bool:
        """Return True if the snapshots of each lane are in the history's order."""
        rows = np.argsort(self.state.coordinates(), kind="stable")
        lanes, order = self.state.lanes[rows], self.order[rows]
        return bool(((lanes[1:] != lanes[:-1]) | (order[1:] > order[:-1])).all())

    def chosen(self, snapshot_ids: Sequence[int]) -> NDArray[np.bool_]:
        """Return a mask over the state's snapshots. Raises UnreadableMetadata for an id that the metadata does not
        have."""
        wanted = np.unique(np.array(list(snapshot_ids), np.int64))
        mask: NDArray[np.bool_] = np.isin(self.state.snapshot_ids, wanted)
        if int(mask.sum()) != len(wanted):
            absent = np.setdiff1d(wanted, self.state.snapshot_ids)
            raise UnreadableMetadata(
                f"The metadata has no snapshot {', '.join(map(str, absent[:5].tolist()))}",
                path=self.metadata.metadata_location,
                untouched="all files",
                hint="read the table's history again",
            )
        return mask


def query(function: Callable[Concatenate[IndexView, P], T]) -> Callable[Concatenate[IndexView, P], T]:
    """Decorate a query on a view. If the index is damaged, rebuild it once and repeat the query."""

    @wraps(function)
    def asked(view: IndexView, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(view, *args, **kwargs)
        except DamagedIndex as damage:
            _log.warning("The manifest index in %s is rebuilt: %s", view.index.folder, damage)
            return function(view.rebuilt(), *args, **kwargs)

    return asked
