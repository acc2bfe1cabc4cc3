"""The graph of snapshots and their inputs: what is downstream of a snapshot, and what is upstream. Pure: edges in,
reached edges out. A snapshot is (table uuid, snapshot id), because registered copies of a table share snapshot ids.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

EDGES = pa.schema(
    [
        ("from_uuid", pa.string()),
        ("from_id", pa.int64()),
        ("to_uuid", pa.string()),
        ("to_id", pa.int64()),
    ]
)
"""An edge leads from an input to the snapshot that read it. A uuid is null if nothing records whose snapshot it is."""

REACHED = pa.schema([("depth", pa.int64()), *EDGES])

Direction = Literal["downstream", "upstream"]


def reached(
    edges: pa.Table, table_uuid: str, snapshot_id: int, direction: Direction, states: pa.Table | None = None
) -> pa.Table:
    """Return every edge on a way from the snapshot downstream (or upstream), each once, with the number of edges from
    the snapshot to its far end on the shortest way. A cycle ends where it closes.

    `edges` has the columns EDGES. With `states`, whose edges (EDGES) lead from each snapshot to its child in the same
    table, an edge from a later state of a reached table also counts, because that state contains the reached one;
    upstream, the inputs of earlier states. Columns of the result: REACHED, ordered by depth.
    """
    near, far = ("from", "to") if direction == "downstream" else ("to", "from")
    both = [edges] if states is None else [edges, states]
    codes, uuids = _codes(*(table[f"{end}_uuid"] for table in both for end in (near, far)))
    steps, begin = [], 0
    for table in both:
        size = len(table)
        near_codes, far_codes = codes[begin : begin + size], codes[begin + size : begin + 2 * size]
        steps.append(_Steps(near_codes, far_codes, table[f"{near}_id"].to_numpy(), table[f"{far}_id"].to_numpy()))
        begin += 2 * size
    front = (
        np.array([pc.index(uuids, pa.scalar(table_uuid, pa.string())).as_py()], np.int64),
        np.array([snapshot_id], np.int64),
    )
    found: list[NDArray[np.int64]] = []
    while len(front[0]):
        if states is not None:
            front = _with_states(steps[1], front)
        next_edges = steps[0].take(front)
        found.append(next_edges)
        front = steps[0].ends(next_edges)
    depths = np.repeat(np.arange(1, len(found) + 1), [len(each) for each in found])
    rows = edges.select(EDGES.names).take(pa.array(np.concatenate(found)))
    rows = rows.add_column(0, "depth", pa.array(depths, pa.int64()))
    # The same edge may be recorded twice.
    distinct = rows.group_by(REACHED.names).aggregate([]).select(REACHED.names).cast(REACHED)
    return distinct.sort_by([(name, "ascending") for name in REACHED.names])


Front = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Snapshots: codes of their tables, and ids."""


class _Steps:
    """The edges from snapshots to the next ones; each is taken once."""

    def __init__(
        self,
        near_codes: NDArray[np.int64],
        far_codes: NDArray[np.int64],
        near_ids: NDArray[np.int64],
        far_ids: NDArray[np.int64],
    ) -> None:
        self._near_codes, self._far_codes, self._far_ids = near_codes, far_codes, far_ids
        self._order = np.argsort(near_ids, kind="stable")
        self._near_ids = near_ids[self._order]
        self._taken = np.zeros(len(near_ids), np.bool_)

    def take(self, front: Front) -> NDArray[np.int64]:
        """Return the edges that begin at the front and that no earlier call returned."""
        codes, ids = front
        begins, ends = (np.searchsorted(self._near_ids, ids, side) for side in ("left", "right"))
        counts = ends - begins
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        edges = self._order[np.repeat(begins, counts) + offsets]
        # Tables may share snapshot ids.
        edges = np.unique(edges[self._near_codes[edges] == np.repeat(codes, counts)])
        fresh: NDArray[np.int64] = edges[~self._taken[edges]]
        self._taken[fresh] = True
        return fresh

    def ends(self, edges: NDArray[np.int64]) -> Front:
        return self._far_codes[edges], self._far_ids[edges]


def _with_states(states: _Steps, front: Front) -> Front:
    """Return the front with all states that contain it."""
    parts = [front]
    while len(parts[-1][0]):
        parts.append(states.ends(states.take(parts[-1])))
    return np.concatenate([codes for codes, _ in parts]), np.concatenate([ids for _, ids in parts])


def _codes(*columns: pa.ChunkedArray) -> tuple[NDArray[np.int64], pa.Array]:
    """Return the texts of all columns, one after another, as indexes into the distinct ones."""
    texts = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
    encoded = texts.combine_chunks().dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary
