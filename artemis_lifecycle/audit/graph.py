"""The graph of snapshots and their inputs: what is downstream of a snapshot, and what is upstream. Pure: edges in,
reached edges out. A snapshot is (table uuid, snapshot id), because registered copies of a table share snapshot ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.escaping import html, terminal

EDGES = pa.schema(
    [("from_uuid", pa.string()), ("from_id", pa.int64()), ("to_uuid", pa.string()), ("to_id", pa.int64())]
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


# --- drawing ----------------------------------------------------------------------------------------------------------
# The graph of a snapshot's inputs and readers, as SVG and Mermaid: one column per depth, inputs to the left, readers
# to the right. Self-contained, with all texts escaped.


class SnapshotOfTable(NamedTuple):
    """A snapshot, and its table's name. `table_uuid` None: of a table that this catalog does not know."""

    table: str
    snapshot_id: int
    table_uuid: str | None


class LineageEdge(NamedTuple):
    """`target` read `source`. `depth` is the number of edges from the snapshot in question, on the shortest way."""

    depth: int
    source: SnapshotOfTable
    target: SnapshotOfTable


Node = tuple[str, int]

_BOX_WIDTH, _BOX_HEIGHT, _COLUMN, _ROW, _MARGIN = 200, 42, 260, 58, 20
_MOST_ROWS, _MOST_COLUMNS = 12, 6
"""What is beyond is counted, not drawn. `_MOST_COLUMNS` is for each direction."""
_LONGEST = 26


class _Layout(NamedTuple):
    """`places` has (column, row) of each snapshot that is drawn; `hidden` the number of others, by column. `states`
    leads from a snapshot to another of its table that counts, because one contains the other."""

    places: dict[Node, tuple[int, int]]
    links: list[tuple[Node, Node]]
    states: list[tuple[Node, Node]]
    hidden: dict[int, int]


def _layout(start: Node, edges: Mapping[Direction, Sequence[LineageEdge]]) -> _Layout:
    layers = {start: 0}
    links: dict[tuple[Node, Node], None] = {}
    states: dict[tuple[Node, Node], None] = {}
    for direction, found in edges.items():
        sign = 1 if direction == "downstream" else -1
        nearest, ends = {start[0]: start}, {start}
        for depth, source, target in found:
            if depth > _MOST_COLUMNS:
                break
            near, far = ((each.table, each.snapshot_id) for each in ((source, target)[::sign]))
            layers.setdefault(near, sign * (depth - 1))
            layers.setdefault(far, sign * depth)
            if near not in ends and near[0] in nearest:
                states[nearest[near[0]], near] = None
            nearest.setdefault(far[0], far)
            ends.add(far)
            links[(source.table, source.snapshot_id), (target.table, target.snapshot_id)] = None
    columns: dict[int, list[Node]] = {}
    for node, layer in layers.items():
        columns.setdefault(layer, []).append(node)
    first = min(columns)
    places = {
        node: (layer - first, row)
        for layer, nodes in sorted(columns.items())
        for row, node in enumerate(nodes[:_MOST_ROWS])
    }
    drawn, dashed = ([(a, b) for a, b in pairs if {a, b} <= places.keys()] for pairs in (links, states))
    hidden = {layer - first: len(nodes) - _MOST_ROWS for layer, nodes in columns.items() if len(nodes) > _MOST_ROWS}
    return _Layout(places, drawn, dashed, hidden)


def mermaid(start: Node, edges: Mapping[Direction, Sequence[LineageEdge]]) -> str:
    """Return the same picture as text of Mermaid, which GitHub and GitLab draw from a code block of Markdown."""
    places, links, states, hidden = _layout(start, edges)
    names = {node: f"s{number}" for number, node in enumerate(places)}
    lines = [f'{name}["{_label(table)}<br/>{snapshot_id}"]' for (table, snapshot_id), name in names.items()]
    lines += [f"{names[source]} --> {names[target]}" for source, target in links]
    lines += [f"{names[source]} -. state .- {names[target]}" for source, target in states]
    for column, count in hidden.items():
        last = [names[node] for node, place in places.items() if place[0] == column][-1]
        lines.append(f'{last} -.- more{column}["and {count:,} more"]')
    lines.append(f"style {names[start]} fill:#fde7e7,stroke:#b71c1c")
    return "\n    ".join(["flowchart LR", *lines])


def _label(text: str) -> str:
    """Return text for a quoted label: whatever could be markup as a character's code."""
    text = terminal(text)
    return "".join(each if each.isalnum() or each in "._- " else f"#{ord(each)};" for each in text)


def layered_svg(start: Node, edges: Mapping[Direction, Sequence[LineageEdge]]) -> str:
    """Draw the edges around a snapshot, given as (table, id)."""
    layout = _layout(start, edges)
    places = {node: (_MARGIN + column * _COLUMN, _MARGIN + row * _ROW) for node, (column, row) in layout.places.items()}
    parts = [
        f'<text x="{_MARGIN + column * _COLUMN}" y="{_MARGIN + _MOST_ROWS * _ROW + 20}" class="more">'
        f"… and {count:,} more</text>"
        for column, count in layout.hidden.items()
    ]
    lines = [_state(places[source], places[target]) for source, target in layout.states]
    lines += [_line(places[source], places[target]) for source, target in layout.links]
    boxes = [_box(node, place, is_start=node == start) for node, place in places.items()]
    rows = max(row for _, row in layout.places.values()) + 1 + bool(layout.hidden)
    width = 2 * _MARGIN + max(column for column, _ in layout.places.values()) * _COLUMN + _BOX_WIDTH
    height = 2 * _MARGIN + rows * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" font-family="sans-serif" font-size="12">'
        "<style>.box{fill:#f4f6f8;stroke:#607d8b}.start{fill:#fde7e7;stroke:#b71c1c;stroke-width:2}"
        ".id,.more{fill:#546e7a;font-size:11px}.line,.state{fill:none;stroke:#90a4ae;stroke-width:1.5}"
        ".state{stroke-dasharray:4 3}</style>"
        '<defs><marker id="arrow" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#90a4ae"/></marker></defs>'
        f"{''.join(lines)}{''.join(boxes)}{''.join(parts)}</svg>"
    )


def _line(source: tuple[int, int], target: tuple[int, int]) -> str:
    (x, y), (to_x, to_y) = source, target
    begin, end, half = x + _BOX_WIDTH, to_x, _BOX_HEIGHT // 2
    if to_x <= x:  # Back to an earlier column: around, below the boxes.
        bend = 40
        path = f"M{begin},{y + half} C{begin + bend},{y + 60} {end - bend},{to_y + 60} {end},{to_y + half}"
    else:
        middle = (begin + end) // 2
        path = f"M{begin},{y + half} C{middle},{y + half} {middle},{to_y + half} {end},{to_y + half}"
    return f'<path class="line" d="{path}" marker-end="url(#arrow)"/>'


def _state(one: tuple[int, int], other: tuple[int, int]) -> str:
    """A dashed line between two snapshots of a table, of which one contains the other."""
    (x, y), (to_x, to_y) = one, other
    return f'<path class="state" d="M{x + 24},{y + _BOX_HEIGHT} L{to_x + 24},{to_y}"/>'


def _box(node: Node, place: tuple[int, int], *, is_start: bool) -> str:
    (x, y), (table, snapshot_id) = place, node
    shown = table if len(table) <= _LONGEST else f"{table[: _LONGEST - 1]}…"
    return (
        f'<g><title>{html(table)} {snapshot_id}</title><rect class="{"start" if is_start else "box"}" x="{x}" y="{y}" '
        f'width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="5"/><text x="{x + 10}" y="{y + 18}">{html(shown)}</text>'
        f'<text class="id" x="{x + 10}" y="{y + 34}">{snapshot_id}</text></g>'
    )
