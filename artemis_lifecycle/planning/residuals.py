"""What is left of a predicate for the rows of a file, once its partition values are known.

Source: Iceberg's ResidualEvaluator. A comparison is decided if its strict projection holds for the partition, or its
inclusive projection does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle.planning.evaluation import values_match
from artemis_lifecycle.planning.keys import Keys, Mask
from artemis_lifecycle.planning.predicates import ALWAYS, NEVER, Both, Constant, Either, Leaf, Negation, Node
from artemis_lifecycle.planning.projections import Projector


def leaves(node: Node) -> tuple[Leaf, ...]:
    """Return the comparisons of a tree, from left to right."""
    if isinstance(node, Leaf):
        return (node,)
    if isinstance(node, Both | Either):
        return leaves(node.left) + leaves(node.right)
    return leaves(node.child) if isinstance(node, Negation) else ()


def leaf_states(leaf: Leaf, projector: Projector, partitions: Sequence[Keys], rows: int) -> NDArray[np.int8]:
    """Return, for each row of partition values: 1 the leaf is true for all rows of the file, -1 for none, 0 neither."""
    states = np.zeros(rows, np.int8)
    for column, inclusive, strict in projector.of_leaf(leaf):
        values = partitions[column.position]
        states[(states == 0) & _holds(strict, values, absent=False)] = 1
        states[(states == 0) & ~_holds(inclusive, values, absent=True)] = -1
    return states


def _holds(projected: Leaf | Constant | None, values: Keys, *, absent: bool) -> Mask:
    if isinstance(projected, Leaf):
        return values_match(projected, values)
    return np.full(len(values.known), absent if projected is None else projected.value)


def residual(node: Node, states: Sequence[int]) -> Node:
    """Return the tree with its decided leaves replaced by constants, simplified."""
    remaining = iter(states)

    def walk(each: Node) -> Node:
        if isinstance(each, Leaf):
            return {1: ALWAYS, -1: NEVER}.get(next(remaining), each)
        if isinstance(each, Negation):
            child = walk(each.child)
            return Constant(not child.value) if isinstance(child, Constant) else Negation(child)
        if isinstance(each, Constant):
            return each
        left, right = walk(each.left), walk(each.right)
        # The constant that decides, and the one that says nothing.
        decides, neutral = (NEVER, ALWAYS) if isinstance(each, Both) else (ALWAYS, NEVER)
        if decides in (left, right):
            return decides
        if left == neutral:
            return right
        return left if right == neutral else type(each)(left, right)

    return walk(node)
