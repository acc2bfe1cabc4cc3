"""The last check of a job's files before deletion: first against the store, then against protection. Real runs and dry
runs use the same check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.deletion.identities import Identities, look, same
from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.protection.protection import ANOTHER_FILE, UNPROVEN, Considered, Protection
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.types import FileStatuses


@dataclass(frozen=True)
class Rechecked:
    """The result of the check for a piece's files, by row: which are kept and why, which are gone, for which the store
    gives an error, and when it was checked. `now` is what the store said."""

    kept: Mapping[int, str]
    gone: NDArray[np.bool_]
    failed: Mapping[int, str]
    now: FileStatuses
    asked_at: float
    protected_at: float

    @property
    def going(self) -> NDArray[np.bool_]:
        going: NDArray[np.bool_] = ~self.gone
        going[[*self.kept, *self.failed]] = False
        return going

    @property
    def unproven(self) -> list[int]:
        """The rows that are kept because their content was not yet compared."""
        return [row for row, why in self.kept.items() if why == UNPROVEN]


def recheck(
    context: DeletionContext,
    protection: Protection,
    considered: Considered,
    identities: Identities,
    files: pa.Table,
    before: FileStatuses | None = None,
) -> Rechecked:
    """Check all files against the store, then against protection. A file that is not the one that it was `before` is
    kept."""
    paths = files.column("path").combine_chunks()
    asked_at = elapsed()
    found = look(context.stores, paths)
    others = identities.others(files, found.now)
    if before is not None:
        others |= dict.fromkeys(np.flatnonzero(found.now.found & ~same(before, found.now)).tolist(), ANOTHER_FILE)
    gone = ~found.now.found
    gone[list(found.failed)] = False
    protected_at = elapsed()
    kept = others | protection.kept(files, considered)
    return Rechecked(kept, gone, found.failed, found.now, asked_at, protected_at)
