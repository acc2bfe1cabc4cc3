"""Compiled loops of system calls, each for one file of an open folder. They run without the GIL, so threads run them in
parallel. If a call fails, the loop leaves the file to Python, which asks again and reports the error.

Linux only: there, `statx` has the same layout on all machines. A loop here calls only loops of this module: numba
caches machine code per module, and would not notice a change to a loop in another module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_LONGS = types.Array(types.int64, 1, "C", readonly=True)
_ANSWERS = types.int8[::1]
_TEXT = types.CPointer(types.uint8)

_unlinkat: Any = types.ExternalFunction("unlinkat", types.int32(types.int32, _TEXT, types.int32))
_faccessat: Any = types.ExternalFunction("faccessat", types.int32(types.int32, _TEXT, types.int32, types.int32))
_statx: Any = types.ExternalFunction("statx", types.int32(types.int32, _TEXT, types.int32, types.uint32, _TEXT))
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.CPointer(types.int64)))

_LONGEST = 255  # Maximum bytes of a name on every Linux file system.
_CLOCK_BOOTTIME = 7  # As in `instants.elapsed`: it advances while the machine is suspended.
_STATX_BASIC_STATS = 0x7FF
FOLLOW, NO_FOLLOW = 0, 0x100
"""Whether to follow a symbolic link to its target."""
# struct statx, in bytes; statx(2).
_MODE, _INODE, _SIZE, _MTIME, _MTIME_NS, _MAJOR, _MINOR = 28, 32, 40, 112, 120, 136, 140
VALUES = 4
"""The number of values of a file: size in bytes, modification time in nanoseconds since 1970, inode, device."""
_S_IFMT, _S_IFREG = 0o170000, 0o100000


@njit(cache=True, nogil=True)
def _spelled(data: Any, start: Any, end: Any, name: Any) -> Any:
    """Copy the name to `name` as a C string. Return False for one that cannot be a C string."""
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
    types.void(_BYTES, _LONGS, _LONGS, _LONGS, types.int64, types.int64, types.int64, _ANSWERS, types.int64[:, ::1]),
    cache=True,
    nogil=True,
)
def stat(
    data: Any,
    names: Any,
    ends: Any,
    folders: Any,
    low: Any,
    high: Any,
    flags: Any,
    found: Any,
    values: Any,
) -> None:
    """For the rows from `low` to `high`, set `found` to 1 for a regular file, with its VALUES; to 0 otherwise. `flags`
    are those of statx(2): FOLLOW or NO_FOLLOW."""
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
        values[row, 0] = _number(answer, _SIZE, 8)
        values[row, 1] = _number(answer, _MTIME, 8) * 1_000_000_000 + _number(answer, _MTIME_NS, 4)
        values[row, 2] = _number(answer, _INODE, 8)
        # As glibc's makedev(3), which `os.stat_result.st_dev` has.
        major, minor = _number(answer, _MAJOR, 4), _number(answer, _MINOR, 4)
        values[row, 3] = (major & 0xFFFFF000) << 32 | (major & 0xFFF) << 8 | (minor & 0xFFFFFF00) << 12 | (minor & 0xFF)


@njit(types.void(_BYTES, _LONGS, _LONGS, _LONGS, types.int64, types.int64, _ANSWERS), cache=True, nogil=True)
def exist(data: Any, names: Any, ends: Any, folders: Any, low: Any, high: Any, found: Any) -> None:
    """For the rows from `low` to `high`, set `found` to 1 if something exists, 0 if the system says that nothing does,
    and -1 if it was not asked."""
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
    """Unlink the files of the rows from `low` to `high`. Set `done` to 1 if this call removed the file, 0 if the system
    did not remove it or was not asked, and -1 if its turn came too late. No file is tried once `instants.elapsed` is
    past `until` (seconds), because the process may be suspended between any two of them."""
    name, now = np.empty(_LONGEST + 1, np.uint8), np.empty(2, np.int64)
    for row in range(low, high):
        done[row] = -1
        _clock_gettime(_CLOCK_BOOTTIME, now.ctypes)
        if now[0] + now[1] * 1e-9 >= until:
            continue
        done[row] = 0
        if folders[row] >= 0 and _spelled(data, names[row], ends[row], name):
            done[row] = _unlinkat(folders[row], name.ctypes, 0) == 0
