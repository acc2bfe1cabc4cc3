"""Manifests of many manifest lists, and which list contains which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.manifest_lists import NUMBERS, Manifests, listed_manifests
from artemis_lifecycle.metadata.types import UNKNOWN_SNAPSHOT, Snapshot
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded


def joined(*parts: Manifests) -> Manifests:
    """Concatenate the rows of all parts."""
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in NUMBERS)
    return Manifests(pa.concat_arrays([part.paths for part in parts]), *columns)


@dataclass(frozen=True)
class ListChunk:
    """Some manifest lists: list `i` contains the manifests `numbers[bounds[i]:bounds[i + 1]]`, rows of `manifests`."""

    sizes: NDArray[np.int64]
    bounds: NDArray[np.int64]
    numbers: NDArray[np.int64]
    manifests: Manifests


def read_lists(stores: Stores, snapshots: Sequence[Snapshot], threads: int = 1) -> ListChunk:
    """Read the manifest lists of `snapshots` in `threads` threads. Raises UnreadableMetadata, EncryptedTable.

    It also raises UnreadableMetadata if two lists disagree about a manifest with the same path and length.
    """
    lists = list(threaded(lambda snapshot: listed_manifests(stores, snapshot), snapshots, threads))
    distinct, numbers = _distinct(joined(Manifests.none(), *(listed.manifests for listed in lists)))
    bounds = np.cumsum([0, *(len(listed.manifests) for listed in lists)])
    return ListChunk(np.array([listed.size_in_bytes for listed in lists], np.int64), bounds, numbers, distinct)


def merged(chunks: Sequence[ListChunk]) -> ListChunk:
    """Merge all lists of the chunks, in order. Raises UnreadableMetadata if their lists disagree."""
    distinct, numbers = _distinct(joined(*(chunk.manifests for chunk in chunks)))
    manifests = np.cumsum([0, *(len(chunk.manifests) for chunk in chunks)])
    entries = np.cumsum([0, *(len(chunk.numbers) for chunk in chunks)])
    return ListChunk(
        np.concatenate([chunk.sizes for chunk in chunks]),
        np.concatenate([[0], *(chunk.bounds[1:] + start for chunk, start in zip(chunks, entries[:-1], strict=True))]),
        np.concatenate([numbers[chunk.numbers + start] for chunk, start in zip(chunks, manifests[:-1], strict=True)]),
        distinct,
    )


def _distinct(every: Manifests) -> tuple[Manifests, NDArray[np.int64]]:
    """Return each manifest once, and for every row its manifest. Raises UnreadableMetadata if two rows disagree."""
    numbers = every.keys().dictionary_encode().indices.to_numpy().astype(np.int64)
    # Numbered in order of first occurrence.
    first = np.flatnonzero(np.diff(np.maximum.accumulate(numbers), prepend=-1))
    found = every.take(first)
    _require_agreement(every, every.contents != found.contents[numbers])
    columns: dict[str, Any] = {}
    for name in ("existing", "added", "deleted"):
        # A list of an old writer may lack a count that another list has.
        recorded, best = getattr(every, name), np.full(len(first), -1, np.int64)
        np.maximum.at(best, numbers, recorded)
        _require_agreement(every, (recorded >= 0) & (recorded != best[numbers]))
        columns[name] = best
    # If lists have different snapshots for one manifest, it is unknown which one its entries must have.
    columns["added_by"] = found.added_by.copy()
    columns["added_by"][numbers[every.added_by != found.added_by[numbers]]] = UNKNOWN_SNAPSHOT
    return replace(found, **columns), numbers


def _require_agreement(every: Manifests, differing: NDArray[np.bool_]) -> None:
    if differing.any():
        raise UnreadableMetadata(
            "Two manifest lists do not agree on what a manifest holds",
            path=every.path(int(np.argmax(differing))),
            untouched="the table and all its files",
            hint="find out which list is damaged; nothing of this table is planned or deleted until they agree",
        )
