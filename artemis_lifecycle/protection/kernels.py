"""Compiled loops of protection. A loop here calls only loops of this module: numba caches machine code per module, and
would not notice a change to a loop in another module."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_LONGS = types.Array(types.int64, 1, "C", readonly=True)


@njit(types.int64[::1](_BYTES, _LONGS, _LONGS, _BYTES, types.boolean), cache=True, nogil=True)
def not_beginning(data: Any, offsets: Any, rows: Any, wanted: Any, bare: Any) -> Any:
    """Return those of `rows` whose bytes (of `data`, between `offsets`) do not begin with `wanted`; if `bare`, also
    those that have another slash, or nothing, after it."""
    left = np.empty(len(rows), np.int64)
    count = 0
    for index in range(len(rows)):
        start, size = offsets[rows[index]], offsets[rows[index] + 1] - offsets[rows[index]]
        same = size > len(wanted) if bare else size >= len(wanted)
        if same:
            for place in range(len(wanted)):
                if data[start + place] != wanted[place]:
                    same = False
                    break
        if same and bare:
            same = data[start + len(wanted)] != ord("/")
        if not same:
            left[count] = rows[index]
            count += 1
    return left[:count]
