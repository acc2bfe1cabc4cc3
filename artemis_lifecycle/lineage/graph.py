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


def reached(edges: pa.Table, table_uuid: str, snapshot_id: int, direction: Direction) -> pa.Table:
    """Return every edge on a way from the snapshot downstream (or upstream), each once, with the number of edges from
    the snapshot to its far end on the shortest way. A cycle ends where it closes.

    `edges` has the columns EDGES. Columns of the result: REACHED, ordered by depth.
    """
    near, far = ("from", "to") if direction == "downstream" else ("to", "from")
    codes, uuids = _codes(edges[f"{near}_uuid"], edges[f"{far}_uuid"])
    near_codes, far_codes = codes[: len(edges)], codes[len(edges) :]
    far_ids = edges[f"{far}_id"].to_numpy()
    order = np.argsort(edges[f"{near}_id"].to_numpy(), kind="stable")
    near_ids = edges[f"{near}_id"].to_numpy()[order]
    front_ids = np.array([snapshot_id], np.int64)
    front_codes = np.array([pc.index(uuids, pa.scalar(table_uuid, pa.string())).as_py()], np.int64)
    visited = np.zeros(len(edges), np.bool_)
    found: list[NDArray[np.int64]] = []
    while len(front_ids):
        begins, ends = (np.searchsorted(near_ids, front_ids, side) for side in ("left", "right"))
        counts = ends - begins
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        next_edges = order[np.repeat(begins, counts) + offsets]
        # Tables may share snapshot ids.
        next_edges = np.unique(next_edges[near_codes[next_edges] == np.repeat(front_codes, counts)])
        next_edges = next_edges[~visited[next_edges]]
        visited[next_edges] = True
        found.append(next_edges)
        front_ids, front_codes = far_ids[next_edges], far_codes[next_edges]
    depths = np.repeat(np.arange(1, len(found) + 1), [len(each) for each in found])
    rows = edges.select(EDGES.names).take(pa.array(np.concatenate(found)))
    rows = rows.add_column(0, "depth", pa.array(depths, pa.int64()))
    # The same edge may be recorded twice.
    distinct = rows.group_by(REACHED.names).aggregate([]).select(REACHED.names).cast(REACHED)
    return distinct.sort_by([(name, "ascending") for name in REACHED.names])


def _codes(*columns: pa.ChunkedArray) -> tuple[NDArray[np.int64], pa.Array]:
    """Return the texts of all columns, one after another, as indexes into the distinct ones."""
    texts = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
    encoded = texts.combine_chunks().dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary
