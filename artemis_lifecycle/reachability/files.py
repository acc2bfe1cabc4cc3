"""What a table reaches, whatever its format: the questions that protection and the orphan scan ask about files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.index.files import reached_folders
from artemis_lifecycle.reachability.index.lookups import Meant, as_texts, outside, reaches
from artemis_lifecycle.reachability.index.view import query, rows_of


class ReachedFiles(Protocol):
    """Everything that any snapshot of `metadata` reaches. Location hashes are those of `storage.location_hash`; two
    locations with one hash count as one, which can only keep a file."""

    @property
    def metadata(self) -> TableMetadata: ...

    def reaches(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of these location hashes are reached. Raises UnreadableMetadata."""

    def folders(self) -> Iterable[str]:
        """Return the folders of all reached files, in the metadata's spelling; a folder may come more than once."""

    def visit(self, each: Callable[[pa.Array], None]) -> None:
        """Call `each` with the paths of all reached files, array by array; a path may come more than once."""

    def outside(self, before_ms: int, hashes: NDArray[np.uint64], is_meant: Meant, *, at_most: int) -> list[str]:
        """Return paths (at most `at_most`) that snapshots committed before `before_ms` reach, of folders `is_meant`,
        and whose location hash is not in `hashes` (sorted, unique)."""


@dataclass(frozen=True)
class IndexFiles:
    """What an Iceberg table reaches, from its manifest index."""

    view: IndexView

    @property
    def metadata(self) -> TableMetadata:
        return self.view.metadata

    def reaches(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return reaches(self.view, hashes)

    def folders(self) -> Iterable[str]:
        parts, _ = reached_folders(self.view, ())
        return (folder for part in parts for folder in part)

    def visit(self, each: Callable[[pa.Array], None]) -> None:
        _visit(self.view, each)

    def outside(self, before_ms: int, hashes: NDArray[np.uint64], is_meant: Meant, *, at_most: int) -> list[str]:
        before = [each.snapshot_id for each in self.metadata.snapshots if each.timestamp_ms < before_ms]
        return outside(self.view, before, hashes, is_meant, at_most=at_most)


@query
def _visit(view: IndexView, each: Callable[[pa.Array], None]) -> None:
    above = [snapshot.manifest_list for snapshot in view.metadata.snapshots if snapshot.manifest_list is not None]
    each(as_texts([*above, *(file.path for file in view.metadata.statistics)]))
    everything = view.chosen([snapshot.snapshot_id for snapshot in view.metadata.snapshots])
    manifests = np.flatnonzero(view.state.listed_by(everything))
    each(view.state.manifests.paths.take(pa.array(manifests)))
    for _, rows in rows_of(view.index, view.state, manifests):
        each(rows.paths)
