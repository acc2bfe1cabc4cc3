"""Compiled loops of the index. Belongs here: merging sorted runs. A loop here calls only loops of this module: numba
caches machine code per module, and would not notice a change to a loop in another module."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

_LONGS = types.Array(types.int64, 1, "C", readonly=True)
_HASHES = types.Array(types.uint64, 1, "C", readonly=True)
_OWNERS = types.Array(types.uint32, 1, "C", readonly=True)
_FLAGS = types.Array(types.boolean, 1, "C", readonly=True)


@njit(types.UniTuple(types.int64[::1], 2)(_LONGS, _LONGS), cache=True, nogil=True)
def difference(one: Any, other: Any) -> Any:
    """Return (only in `other`, only in `one`) of two sorted arrays without duplicates."""
    added, removed = np.empty(len(other), other.dtype), np.empty(len(one), one.dtype)
    plus = minus = left = right = 0
    while left < len(one) or right < len(other):
        if right == len(other) or (left < len(one) and one[left] < other[right]):
            removed[minus] = one[left]
            minus += 1
            left += 1
        elif left == len(one) or one[left] > other[right]:
            added[plus] = other[right]
            plus += 1
            right += 1
        else:
            left += 1
            right += 1
    return added[:plus], removed[:minus]


@njit(types.void(_HASHES, _HASHES, _OWNERS, _FLAGS, types.boolean[::1]), cache=True, nogil=True)
def mark_kept(wanted: Any, hashes: Any, owners: Any, kept: Any, found: Any) -> None:
    """Set `found[i]` if `wanted[i]` is among `hashes` in a row whose owner is kept.

    Both arrays are sorted, `wanted` without duplicates. The shorter one leads, and the other is searched in leaps, so
    that the cost depends on the shorter one.
    """
    at = 0
    total = len(hashes)
    for index in range(len(wanted)):
        value = wanted[index]
        if at < total and hashes[at] < value:
            step = 1
            low = at
            while at + step < total and hashes[at + step] < value:
                low = at + step
                step *= 2
            high = min(at + step, total)
            low += 1
            while low < high:
                middle = (low + high) // 2
                if hashes[middle] < value:
                    low = middle + 1
                else:
                    high = middle
            at = low
        row = at
        while row < total and hashes[row] == value:
            if kept[owners[row]]:
                found[index] = True
                break
            row += 1
        if at == total:
            break


@njit(types.boolean(_OWNERS, types.int64[::1]), cache=True, nogil=True)
def count_by_owner(owners: Any, counts: Any) -> Any:
    """Add each owner's rows to `counts`; return False if an owner is not among them."""
    for row in range(len(owners)):
        owner = owners[row]
        if owner >= len(counts):
            return False
        counts[owner] += 1
    return True


@njit(types.int64[::1](_LONGS), cache=True, nogil=True)
def sorted_once(values: Any) -> Any:
    """Return the distinct values in ascending order."""
    ordered = np.sort(values)
    count = 0
    for row in range(len(ordered)):
        if row == 0 or ordered[row] != ordered[row - 1]:
            ordered[count] = ordered[row]
            count += 1
    return ordered[:count]
