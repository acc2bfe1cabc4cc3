"""Where a Paimon table's writers put files: everything else below its location is no orphan. Source: Paimon's
OrphanFilesClean."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.paimon.documents import MAIN
from artemis_lifecycle.paimon.folders import BUCKET
from artemis_lifecycle.paimon.table import HINTS, PaimonTable


@dataclass(frozen=True)
class Layout:
    """The patterns of paths that a scan may collect, and of the documents and hints among them, which it may not."""

    collected: str
    documents: str

    @classmethod
    def of(cls, table: PaimonTable) -> Layout:
        location, folders = re.escape(table.location), table.folders(MAIN)
        partition = "[^/]+=[^/]+/" * len(folders.partition_keys)
        places = [
            rf"{location}/(?:manifest|index|statistics)/[^/]+",
            rf"{re.escape(folders.data)}/{partition}{BUCKET}[^/]+/[^/]+",
            rf"{location}/(?:branch/branch-[^/]+/)?(?:snapshot|changelog)/[^/]+",
        ]
        hints = "|".join(sorted(HINTS))
        return cls(
            rf"\A(?:{'|'.join(places)})\z", rf"/(?:snapshot/snapshot-[^/]*|changelog/changelog-[^/]*|(?:{hints}))\z"
        )

    def __call__(self, paths: pa.Array) -> NDArray[np.bool_]:
        collected = np.asarray(pc.match_substring_regex(paths, self.collected))
        found: NDArray[np.bool_] = collected & ~np.asarray(pc.match_substring_regex(paths, self.documents))
        return found
