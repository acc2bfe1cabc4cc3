"""The last check of a job's files before deletion: first against the store for files that a listing saw, then against
protection for all files. Real runs and dry runs use the same check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.protection.protection import Considered, Protection
from artemis_lifecycle.storage.identity import NO_TIME
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.stores import Stores, are_local

CHANGED = "changed_since_listing"
"""An orphan job's file is not the listed one: its size differs, or it was written again."""

_CLOCK_GRAIN = 1_000_000  # Microseconds. S3 has modification times in seconds, inventories in milliseconds.


@dataclass(frozen=True)
class Rechecked:
    """The result of the check for a piece's files, by row: which are kept and why, which are gone, and when it was
    checked."""

    kept: Mapping[int, str]
    gone: NDArray[np.bool_]
    asked_at: float
    protected_at: float

    @property
    def going(self) -> NDArray[np.bool_]:
        going: NDArray[np.bool_] = ~self.gone
        going[list(self.kept)] = False
        return going


def recheck(
    context: DeletionContext, protection: Protection, considered: Considered, files: pa.Table, *, look_up: bool = False
) -> Rechecked:
    """Check files that a listing saw against the store, then all files against protection. `look_up` also checks
    whether the other local files exist; a real run finds that out when it deletes them."""
    paths = files.column("path").combine_chunks()
    asked_at = elapsed()
    changed, gone = _as_listed(context.stores, files, paths)
    if look_up:
        rows = np.flatnonzero(np.asarray(are_local(paths)) & ~gone)
        gone[rows] |= ~context.stores.statuses(paths.take(rows)).found
    protected_at = elapsed()
    kept = dict.fromkeys(np.flatnonzero(changed).tolist(), CHANGED) | protection.kept(files, considered)
    return Rechecked(kept, gone, asked_at, protected_at)


def _as_listed(stores: Stores, files: pa.Table, paths: pa.Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of the files that a listing saw, return which ones have changed since, and which ones are gone."""
    sizes, modified = (files.column(name).to_numpy() for name in ("size_in_bytes", "last_modified"))
    changed, gone = np.zeros(len(paths), np.bool_), np.zeros(len(paths), np.bool_)
    rows = np.flatnonzero(modified != NO_TIME)
    if len(rows):
        now = stores.statuses(paths.take(rows))
        another = (now.sizes != sizes[rows]) | (now.modified == NO_TIME)
        another |= np.abs(now.modified - modified[rows]) > _CLOCK_GRAIN
        changed[rows], gone[rows] = now.found & another, ~now.found
    return changed, gone
