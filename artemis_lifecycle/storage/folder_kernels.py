"""A compiled loop that splits paths at their folders. A loop here calls only loops of this module: numba caches machine
code per module, and would not notice a change to a loop in another module."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_LONGS = types.Array(types.int64, 1, "C", readonly=True)
_OUT = types.int64[::1]
_FLAGS = types.boolean[::1]


@njit(types.void(_BYTES, _LONGS, _OUT, _FLAGS, _FLAGS), cache=True, nogil=True)
def by_folder(data: Any, offsets: Any, names: Any, first: Any, cut: Any) -> None:
    """Set `names` to where each path's name begins in `data`, or to -1 if folder and name cannot be separated (see
    `location.folder_and_name`). Set `first` for each path whose folder differs from the previous path's. Set `cut` for
    each name with `?` or `#`, where some readers cut it."""
    before, before_size = np.int64(0), np.int64(-1)
    for row in range(len(names)):
        start, end = offsets[row], offsets[row + 1]
        slash = end - 1
        while slash >= start and data[slash] != ord("/"):
            slash -= 1
        size = slash - start
        length = end - slash - 1
        plain = size > 0 and data[slash - 1] != ord("/") and length > 0
        if plain and data[slash + 1] == ord("."):
            plain = not (length == 1 or (length == 2 and data[slash + 2] == ord(".")))
        cut[row] = False
        if not plain:
            names[row], first[row], before_size = -1, True, np.int64(-1)
            continue
        for place in range(slash + 1, end):
            if data[place] == ord("?") or data[place] == ord("#"):
                cut[row] = True
        same = size == before_size
        if same:
            for place in range(size):
                if data[start + place] != data[before + place]:
                    same = False
                    break
        names[row], first[row] = slash + 1, not same
        before, before_size = start, size
