"""Which rows of statistics a predicate may match, all at once. Belongs here: the three kinds of statistics (a
manifest's partition summaries, an entry's partition values, a column's counts and bounds) and what each comparison says
of them. Does not belong here: reading statistics.

Source: Iceberg's ManifestEvaluator, Evaluator, InclusiveMetricsEvaluator. A row that may match is True.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle.planning.keys import Keys, Mask
from artemis_lifecycle.planning.predicates import Both, Constant, Either, Leaf, Negation, Node

IN_LIMIT = 200
"""Iceberg's own limit: more values of an IN are not compared with bounds."""


def evaluate(node: Node, rows: int, leaf: Callable[[Leaf], Mask]) -> Mask:
    """Return the value of a tree for each row, from the values of its leaves."""
    if isinstance(node, Constant):
        return np.full(rows, node.value)
    if isinstance(node, Leaf):
        return leaf(node)
    if isinstance(node, Negation):
        return ~evaluate(node.child, rows, leaf)
    left, right = evaluate(node.left, rows, leaf), evaluate(node.right, rows, leaf)
    assert isinstance(node, Both | Either)
    return left & right if isinstance(node, Both) else left | right


@dataclass(frozen=True)
class Summary:
    """The partition summaries of one field, one per manifest. `contains_nan` is 1, 0 or -1 if not recorded."""

    recorded: Mask
    contains_null: Mask
    contains_nan: NDArray[np.int8]
    lower: Keys
    upper: Keys
    is_float: bool


def summaries_match(leaf: Leaf, summary: Summary) -> Mask:
    """Return which manifests may have an entry whose partition value matches the (projected) leaf."""
    return _by_summary(leaf, summary) | ~summary.recorded


def _by_summary(leaf: Leaf, summary: Summary) -> Mask:
    lower, upper = summary.lower, summary.upper
    may_be_nan: Mask = summary.contains_nan != 0
    only_nan: Mask = (summary.contains_nan == 1) & ~summary.contains_null & ~lower.known
    all_null: Mask = summary.contains_null & ~lower.known
    if summary.is_float:
        all_null &= summary.contains_nan == 0
    match leaf.op:
        case "is_null":
            return summary.contains_null
        case "not_null":
            return ~all_null
        case "is_nan":
            return may_be_nan & ~all_null
        case "not_nan":
            return ~only_nan
        case "not_eq" | "not_in" | "not_starts_with":
            return ~_all_excluded(leaf, lower, upper, summary.contains_null, may_be_nan & summary.is_float)
        case "in" if len(leaf.keys) > IN_LIMIT:
            return lower.known
        case _:
            return lower.known & _in_bounds(leaf, lower, upper)


@dataclass(frozen=True)
class ColumnMetrics:
    """Counts and bounds of one column, one row per file. Counts are -1 if not recorded."""

    values: NDArray[np.int64]
    nulls: NDArray[np.int64]
    nans: NDArray[np.int64]
    lower: Keys
    upper: Keys


def metrics_match(leaf: Leaf, metrics: ColumnMetrics) -> Mask:
    """Return which files may have a row that matches the leaf."""
    nulls_only: Mask = (metrics.values >= 0) & (metrics.nulls >= 0) & (metrics.values == metrics.nulls)
    may_be_nan: Mask = metrics.nans != 0
    nans_only: Mask = (metrics.nans >= 0) & (metrics.values >= 0) & (metrics.nans == metrics.values)
    match leaf.op:
        case "is_null":
            return np.asarray(metrics.nulls != 0)
        case "not_null":
            return ~nulls_only
        case "is_nan":
            return ~nulls_only & may_be_nan
        case "not_nan":
            return ~nans_only
        case "not_eq" | "not_in" | "not_starts_with":
            # Without a count of NaN, a float column may have some.
            some_nan = may_be_nan & (str(leaf.kind) in ("float", "double"))
            return ~_all_excluded(leaf, metrics.lower, metrics.upper, metrics.nulls != 0, some_nan)
        case "starts_with":
            return ~nulls_only & _in_bounds(leaf, metrics.lower, metrics.upper)
        case "in" if len(leaf.keys) > IN_LIMIT:
            return ~nulls_only & ~nans_only
        case _:
            return ~nulls_only & ~nans_only & _in_bounds(leaf, metrics.lower, metrics.upper)


def _in_bounds(leaf: Leaf, lower: Keys, upper: Keys) -> Mask:
    """Return where the bounds, as far as they are known, admit a value that matches. A NaN as lower bound says
    nothing: ORC's statistics have one where the first value is NaN."""
    match leaf.op:
        case "lt":
            return ~lower.known | lower.nans | lower.less(leaf.key)
        case "lt_eq":
            return ~lower.known | lower.nans | lower.less_equal(leaf.key)
        case "gt":
            return ~upper.known | upper.greater(leaf.key)
        case "gt_eq":
            return ~upper.known | ~upper.less(leaf.key)
        case "eq":
            below = ~lower.known | lower.nans | lower.less_equal(leaf.key)
            return below & (~upper.known | ~upper.less(leaf.key))
        case "in":
            return ~lower.known | lower.nans | _any_between(leaf, lower, upper)
        case "starts_with":
            above = lower.greater(leaf.key) & ~lower.starts_with(leaf.key)
            # Java compares the upper bound only if there is a lower one.
            return ~above & ~(lower.known & upper.less(leaf.key))
    raise AssertionError(leaf.op)


def _any_between(leaf: Leaf, lower: Keys, upper: Keys) -> Mask:
    if isinstance(lower.values, np.ndarray):
        keys = np.array(leaf.keys, np.int64)
        place = np.searchsorted(keys, lower.values)
        within = place < len(keys)
        first = keys[np.where(within, place, 0)]
        return within & (~upper.known | (first <= upper.values))
    found = np.zeros(len(lower.known), np.bool_)
    for key in leaf.keys:
        found |= lower.less_equal(key) & (~upper.known | ~upper.less(key))
    return found


def _all_excluded(leaf: Leaf, lower: Keys, upper: Keys, may_be_null: Mask, may_be_nan: Mask) -> Mask:
    """Return where every value is one that a negative comparison excludes."""
    if leaf.op == "not_starts_with":
        return ~may_be_null & lower.starts_with(leaf.key) & upper.starts_with(leaf.key)
    single = ~may_be_null & ~may_be_nan & lower.equals(upper) & ~lower.nans & ~upper.nans
    return single & (lower.equal(leaf.key) if leaf.op == "not_eq" else lower.among(leaf.keys))


def values_match(leaf: Leaf, values: Keys) -> Mask:
    """Return which rows' partition values match the (projected) leaf. As in Iceberg's Evaluator, null is less than any
    value."""
    null = ~values.known
    match leaf.op:
        case "is_null":
            return null
        case "not_null":
            return values.known
        case "is_nan":
            return values.nans & values.known
        case "not_nan":
            return ~(values.nans & values.known)
        case "lt":
            return null | values.less(leaf.key)
        case "lt_eq":
            return null | values.less_equal(leaf.key)
        case "gt":
            return values.greater(leaf.key)
        case "gt_eq":
            return values.known & ~values.less(leaf.key)
        case "eq":
            return values.equal(leaf.key)
        case "not_eq":
            return ~values.equal(leaf.key)
        case "in":
            return values.among(leaf.keys)
        case "not_in":
            return ~values.among(leaf.keys)
        case "starts_with":
            return values.starts_with(leaf.key)
        case "not_starts_with":
            return ~values.starts_with(leaf.key)
    raise AssertionError(leaf.op)


def footers_match(leaf: Leaf, metrics: ColumnMetrics) -> Mask:
    """Return which row groups may have a row that matches the leaf, by the statistics of a Parquet footer. Source:
    Iceberg's ParquetMetricsRowGroupFilter, which has no NaN counts and compares only where both bounds are known."""
    nulls_only: Mask = (metrics.nulls >= 0) & (metrics.values == metrics.nulls)
    bounded: Mask = metrics.lower.known & metrics.upper.known
    match leaf.op:
        case "is_null":
            return np.asarray(metrics.nulls != 0)
        case "not_null" | "is_nan":
            return ~nulls_only
        case "not_nan" | "not_eq" | "not_in":
            return np.ones(len(nulls_only), np.bool_)
        case "not_starts_with":
            return ~(bounded & _all_excluded(leaf, metrics.lower, metrics.upper, metrics.nulls != 0, nulls_only))
        case "in" if len(leaf.keys) > IN_LIMIT:
            return ~nulls_only
        case _:
            return ~nulls_only & (~bounded | _in_bounds(leaf, metrics.lower, metrics.upper))
