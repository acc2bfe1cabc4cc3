"""What each snapshot's commit wrote. Belongs here: counting manifests by the snapshot that added them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from artemis_lifecycle.reachability.index.view import IndexView, query


@dataclass(frozen=True)
class Written:
    """The manifests that a snapshot added, and its manifest list (0 bytes for v1's inline manifests)."""

    manifests: int
    manifest_bytes: int
    manifest_list_bytes: int


@query
def written_by_snapshot(view: IndexView) -> dict[int, Written]:
    """Return what the commit of each snapshot wrote, by snapshot id. A manifest with an unknown snapshot or length
    counts for none."""
    state = view.state
    added_by, lengths = state.manifests.added_by, state.manifests.lengths
    known = np.isin(added_by, state.snapshot_ids) & (lengths >= 0)
    order = np.argsort(state.snapshot_ids)
    place = order[np.searchsorted(state.snapshot_ids[order], added_by[known])]
    manifests = np.bincount(place, minlength=len(order))
    sizes = np.zeros(len(order), np.int64)
    np.add.at(sizes, place, lengths[known])
    columns = (each.tolist() for each in (state.snapshot_ids, manifests, sizes, state.list_sizes))
    return {snapshot_id: Written(*figures) for snapshot_id, *figures in zip(*columns, strict=True)}
