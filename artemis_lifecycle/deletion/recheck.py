"""The last check of a job's files before they go: the store is asked about files that a listing saw, then protection
about all. A real run and a dry run ask the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.protection.protection import Considered, Protection
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.stores import Stores, are_local
from artemis_lifecycle.storage.types import NO_TIME

CHANGED = "changed_since_listing"
"""An orphan job's file is not the one that was listed: it has another size, or was written again."""

_CLOCK_GRAIN = 1_000_000  # Microseconds. S3 tells modification times by the second, inventories by the millisecond.


@dataclass(frozen=True)
class Rechecked:
    """What was found of a piece's files, by row: which stay and why, which are gone; and when it was asked."""

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
    """Ask the store about files that a listing saw, then protection about all of them: the one question that a real run
    and a dry run ask. `look_up`: also about the local files that no listing saw, which a real run finds absent when it
    deletes them."""
    paths = files.column("path").combine_chunks()
    asked_at = elapsed()
    changed, gone = _as_listed(context.stores, files, paths)
    if look_up:
        rows = np.flatnonzero(np.asarray(are_local(paths)) & ~gone)
        gone[rows] |= ~context.stores.looks(paths.take(rows)).found
    protected_at = elapsed()
    kept = dict.fromkeys(np.flatnonzero(changed).tolist(), CHANGED) | protection.kept(files, considered)
    return Rechecked(kept, gone, asked_at, protected_at)


def _as_listed(stores: Stores, files: pa.Table, paths: pa.Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of files that a listing saw: those that are not what was listed, and those that are gone."""
    sizes, modified = (files.column(name).to_numpy() for name in ("size_in_bytes", "last_modified"))
    changed, gone = np.zeros(len(paths), np.bool_), np.zeros(len(paths), np.bool_)
    rows = np.flatnonzero(modified != NO_TIME)
    if len(rows):
        now = stores.looks(paths.take(rows))
        another = (now.sizes != sizes[rows]) | (now.modified == NO_TIME)
        another |= np.abs(now.modified - modified[rows]) > _CLOCK_GRAIN
        changed[rows], gone[rows] = now.found & another, ~now.found
    return changed, gone
