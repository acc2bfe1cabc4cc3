"""Compiled loops of system calls, each about one file of an open folder: without Python's lock, so that threads make
them side by side. What a call does not simply answer is left for Python to ask again, which says what is wrong.

Linux alone: `statx` has one layout on all its machines. A loop here calls only loops of this module: numba keeps
machine code beside the module, and would not notice that a loop of another one has changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_LONGS = types.Array(types.int64, 1, "C", readonly=True)
_OUT, _ANSWERS = types.int64[::1], types.int8[::1]
_TEXT = types.CPointer(types.uint8)

_unlinkat: Any = types.ExternalFunction("unlinkat", types.int32(types.int32, _TEXT, types.int32))
_faccessat: Any = types.ExternalFunction("faccessat", types.int32(types.int32, _TEXT, types.int32, types.int32))
_statx: Any = types.ExternalFunction("statx", types.int32(types.int32, _TEXT, types.int32, types.uint32, _TEXT))
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.CPointer(types.int64)))

_LONGEST = 255  # Bytes of a name, on every file system of Linux.
_CLOCK_BOOTTIME = 7  # As `instants.elapsed`: it goes on while the machine is suspended.
_STATX_BASIC_STATS = 0x7FF
FOLLOW, NO_FOLLOW = 0, 0x100
"""Whether to follow a symbolic link."""
_MODE, _SIZE, _MTIME, _MTIME_NS = 28, 40, 112, 120  # struct statx, in bytes; statx(2).
_S_IFMT, _S_IFREG = 0o170000, 0o100000


@njit(cache=True, nogil=True)
def _spelled(data: Any, start: Any, end: Any, name: Any) -> Any:
    """Put the name into `name` as C has it; False for one that it cannot be."""
    if start < 0 or end - start > _LONGEST:
        return False
    for place in range(end - start):
        byte = data[start + place]
        if byte == 0:
            return False
        name[place] = byte
    name[end - start] = 0
    return True


@njit(cache=True, nogil=True)
def _number(data: Any, at: Any, size: Any) -> Any:
    value = np.int64(0)
    for byte in range(size):
        value |= np.int64(data[at + byte]) << np.int64(8 * byte)
    return value


@njit(
    types.void(_BYTES, _LONGS, _LONGS, _LONGS, types.int64, types.int64, types.int64, _ANSWERS, _OUT, _OUT),
    cache=True,
    nogil=True,
)
def look(
    data: Any,
    names: Any,
    ends: Any,
    folders: Any,
    low: Any,
    high: Any,
    flags: Any,
    found: Any,
    sizes: Any,
    modified: Any,
) -> None:
    """Of the rows from `low` to `high`: 1 in `found` for a plain file, with its size in bytes and its time of
    modification in microseconds since 1970; 0 for all else. `flags` are those of statx(2): FOLLOW or NO_FOLLOW."""
    name, answer = np.empty(_LONGEST + 1, np.uint8), np.empty(256, np.uint8)
    for row in range(low, high):
        found[row] = 0
        if folders[row] < 0 or not _spelled(data, names[row], ends[row], name):
            continue
        if _statx(folders[row], name.ctypes, flags, _STATX_BASIC_STATS, answer.ctypes) != 0:
            continue
        if _number(answer, _MODE, 2) & _S_IFMT != _S_IFREG:
            continue
        found[row] = 1
        sizes[row] = _number(answer, _SIZE, 8)
        modified[row] = _number(answer, _MTIME, 8) * 1_000_000 + _number(answer, _MTIME_NS, 4) // 1000


@njit(types.void(_BYTES, _LONGS, _LONGS, _LONGS, types.int64, types.int64, _ANSWERS), cache=True, nogil=True)
def there(data: Any, names: Any, ends: Any, folders: Any, low: Any, high: Any, found: Any) -> None:
    """Of the rows from `low` to `high`: 1 in `found` where something stands, 0 where the system says that there is
    nothing, -1 where it was not asked."""
    name = np.empty(_LONGEST + 1, np.uint8)
    for row in range(low, high):
        found[row] = -1
        if folders[row] >= 0 and _spelled(data, names[row], ends[row], name):
            found[row] = _faccessat(folders[row], name.ctypes, 0, 0) == 0


@njit(
    types.void(_BYTES, _LONGS, _LONGS, _LONGS, types.int64, types.int64, types.float64, _ANSWERS),
    cache=True,
    nogil=True,
)
def unlink(data: Any, names: Any, ends: Any, folders: Any, low: Any, high: Any, until: Any, done: Any) -> None:
    """Unlink the files of the rows from `low` to `high`: 1 in `done` for one that is gone by this, 0 for one that the
    system did not take away or was not asked to, -1 for one whose turn came too late. None is tried once
    `instants.elapsed` is past `until` (seconds): a process may be stopped between any two of them."""
    name, now = np.empty(_LONGEST + 1, np.uint8), np.empty(2, np.int64)
    for row in range(low, high):
        done[row] = -1
        _clock_gettime(_CLOCK_BOOTTIME, now.ctypes)
        if now[0] + now[1] * 1e-9 >= until:
            continue
        done[row] = 0
        if folders[row] >= 0 and _spelled(data, names[row], ends[row], name):
            done[row] = _unlinkat(folders[row], name.ctypes, 0) == 0
