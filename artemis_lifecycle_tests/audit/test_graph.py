"""What is downstream of a snapshot is found across tables, by the shortest way, also in cycles."""

from __future__ import annotations

from collections import deque

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.audit.graph import EDGES, reached

Node = tuple[str | None, int]
Edge = tuple[Node, Node]

_nodes = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 5))
_edges = st.lists(st.tuples(_nodes | st.tuples(st.none(), st.integers(1, 5)), _nodes), max_size=25)


def _table(edges: list[Edge]) -> pa.Table:
    rows = [{"from_uuid": a, "from_id": i, "to_uuid": b, "to_id": j} for (a, i), (b, j) in edges]
    return pa.Table.from_pylist(rows, EDGES)


def _by_hand(edges: list[Edge], start: Node) -> set[tuple[int, Node, Node]]:
    """Breadth first, one edge at a time."""
    depths, queue = {start: 0}, deque([start])
    while queue:
        node = queue.popleft()
        for source, target in edges:
            if source == node and target not in depths:
                depths[target] = depths[node] + 1
                queue.append(target)
    return {(depths[source] + 1, source, target) for source, target in edges if source in depths}


@given(_edges, _nodes)
def test_it_reaches_what_a_search_by_hand_reaches(edges: list[Edge], start: tuple[str, int]) -> None:
    down = reached(_table(edges), *start, "downstream").to_pylist()
    up = reached(_table(edges), *start, "upstream").to_pylist()
    as_edges = {(row["depth"], (row["from_uuid"], row["from_id"]), (row["to_uuid"], row["to_id"])) for row in down}
    assert as_edges == _by_hand(edges, start) and len(down) == len(as_edges)
    reverse = {(row["depth"], (row["to_uuid"], row["to_id"]), (row["from_uuid"], row["from_id"])) for row in up}
    assert reverse == _by_hand([(target, source) for source, target in edges], start) and len(up) == len(reverse)


def test_an_unknown_snapshot_has_nothing_downstream() -> None:
    assert reached(_table([(("a", 1), ("b", 2))]), "z", 1, "downstream").num_rows == 0
    assert reached(_table([]), "a", 1, "downstream").num_rows == 0


def _with_states(edges: list[Edge], states: list[Edge], start: Node) -> set[tuple[int, Node, Node]]:
    """Relaxes one edge at a time until nothing gets nearer: a state costs nothing, an input one step."""
    depths, changed = {start: 0}, True
    while changed:
        changed = False
        for cost, some in ((0, states), (1, edges)):
            for source, target in some:
                if source in depths and depths[source] + cost < depths.get(target, 10_000):
                    depths[target], changed = depths[source] + cost, True
    return {(depths[source] + 1, source, target) for source, target in edges if source in depths}


@given(_edges, st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 5), st.integers(1, 5))), _nodes)
def test_with_states_a_reader_of_a_later_state_counts(
    edges: list[Edge], later: list[tuple[str, int, int]], start: tuple[str, int]
) -> None:
    states: list[Edge] = [((table, parent), (table, child)) for table, parent, child in later]
    for direction in ("downstream", "upstream"):
        near, far = ("from", "to") if direction == "downstream" else ("to", "from")
        rows = reached(_table(edges), *start, direction, _table(states)).to_pylist()
        found = {(r["depth"], (r[f"{near}_uuid"], r[f"{near}_id"]), (r[f"{far}_uuid"], r[f"{far}_id"])) for r in rows}
        turned = [
            pairs if direction == "downstream" else [(target, source) for source, target in pairs]
            for pairs in (edges, states)
        ]
        assert found == _with_states(turned[0], turned[1], start) and len(rows) == len(found)
