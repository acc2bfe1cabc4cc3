"""The compiled loop that walks Avro records. Import it inside functions: numba takes half a second to load.

Source: the Avro specification, "Binary Encoding". Every read is bounded by the payload's end: a value that does not fit
stops the walk, whatever the schema says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types

from artemis_lifecycle.metadata.avro.steps import (
    BLOCKS,
    END,
    END_MARK,
    JUMP,
    MARK,
    MAX_EMPTY,
    NEXT,
    SKIP_FIXED,
    SKIP_LONG,
    SKIP_PAIRS,
    TAKE_BYTES,
    TAKE_FIXED,
    TAKE_LONG,
    TAKE_PAIRS,
    UNION,
)

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_LONGS = types.Array(types.int64, 1, "C", readonly=True)
_TABLE = types.Array(types.int64, 2, "C", readonly=True)
_OUT = types.int64[:, ::1]

MAX_DEPTH = 32
"""Maximum nesting of arrays and maps."""

OK, CUT, MALFORMED = 0, 1, 2


def _compiled(signature: Any = None) -> Callable[[Any], Any]:
    """Compile a loop, and keep the machine code beside this file or in the user's cache; without either, as where the
    package and the home are read-only, each process compiles it (`artemis doctor` says so)."""

    def compiled(loop: Any) -> Any:
        try:
            return njit(signature, cache=True, nogil=True)(loop)
        except (RuntimeError, OSError):
            return njit(signature, nogil=True)(loop)

    return compiled


@_compiled()
def _long(data: Any, at: int, end: int) -> Any:
    """Return (value, position after it), or position -1 if the number does not end in time."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= np.uint64(byte & np.uint8(0x7F)) << shift
        if byte < 128:
            return np.int64((value >> np.uint64(1)) ^ (np.uint64(0) - (value & np.uint64(1)))), at
        shift += np.uint64(7)
    return np.int64(0), -1


@_compiled()
def _block(data: Any, at: int, end: int) -> Any:
    """Return (items of the block that begins here, position of the first), or position -1 if a number does not end in
    time. The last block has no items. Negative if the count is."""
    count, at = _long(data, at, end)
    if at >= 0 and count < 0:
        # The writer gave the block's size in bytes, for readers that skip it.
        count = -count
        _, at = _long(data, at, end)
    return count, at


@_compiled(types.UniTuple(types.int64, 2)(_BYTES, types.int64, _TABLE, _LONGS, _OUT, _OUT, _OUT))
def walk_records(data: Any, records: int, program: Any, targets: Any, longs: Any, starts: Any, sizes: Any) -> Any:
    """Run `program` once per record. Return (OK, CUT or MALFORMED; the record at which it stopped).

    `longs[column, record]` receives numbers; `starts` and `sizes` say where a text or bytes are in `data`. For values
    that a record does not set (a null branch), the caller's initial values stay. The records must end where the data
    does.
    """
    at, end = 0, len(data)
    empty = 0
    left = np.zeros(MAX_DEPTH, np.int64)
    begun = np.zeros(MAX_DEPTH, np.int64)
    for record in range(records):
        step, depth = 0, 0
        while True:
            code, one, two = program[step, 0], program[step, 1], program[step, 2]
            step += 1
            if code == END:
                break
            if code == SKIP_LONG:
                while at < end and data[at] >= 128:
                    at += 1
                at += 1
                if at > end:
                    return CUT, record
            elif code == SKIP_FIXED:
                at += one
                if at > end:
                    return CUT, record
            elif code == JUMP:
                step = one
            elif code == TAKE_LONG:
                value, at = _long(data, at, end)
                if at < 0:
                    return CUT, record
                longs[one, record] = value
            elif code == TAKE_FIXED:
                if two > end - at:
                    return CUT, record
                starts[one, record] = at
                sizes[one, record] = two
                at += two
            elif code == MARK:
                starts[one, record] = at
            elif code == END_MARK:
                sizes[one, record] = at - starts[one, record]
            elif code == TAKE_PAIRS:
                keys = targets[two]
                while True:
                    count, at = _block(data, at, end)
                    if at < 0:
                        return CUT, record
                    if count == 0:
                        break
                    if count < 0 or count > end - at:
                        return CUT, record
                    for _pair in range(count):
                        key, at = _long(data, at, end)
                        if at < 0:
                            return CUT, record
                        value, at = _long(data, at, end)
                        if at < 0:
                            return CUT, record
                        column = -1
                        for index in range(keys):
                            if targets[two + 1 + 2 * index] == key:
                                column = targets[two + 2 + 2 * index]
                        if one == 0:
                            if column >= 0:
                                longs[column, record] = value
                        else:
                            if value < 0 or value > end - at:
                                return CUT, record
                            if column >= 0:
                                starts[column, record] = at
                                sizes[column, record] = value
                            at += value
            elif code == SKIP_PAIRS:
                while True:
                    count, at = _block(data, at, end)
                    if at < 0:
                        return CUT, record
                    if count == 0:
                        break
                    if count < 0 or count > end - at:
                        # Each pair takes at least two bytes.
                        return CUT, record
                    for _pair in range(count):
                        while at < end and data[at] >= 128:
                            at += 1
                        at += 1
                        if one == 0:
                            while at < end and data[at] >= 128:
                                at += 1
                            at += 1
                        else:
                            value, at = _long(data, at, end)
                            if at < 0 or value < 0 or value > end - at:
                                return CUT, record
                            at += value
                        if at > end:
                            return CUT, record
            elif code in (BLOCKS, NEXT):
                if code == BLOCKS:
                    if depth == MAX_DEPTH:
                        return MALFORMED, record
                    left[depth] = 0
                    depth += 1
                    # `one` is the step after the NEXT that closes this; NEXT's own operand leads back here.
                    behind, body = one, step
                else:
                    left[depth - 1] -= 1
                    behind, body = step, one
                    if at == begun[depth - 1]:
                        # A zero-byte item is like all others of its kind.
                        if left[depth - 1] > MAX_EMPTY + end - empty:
                            return MALFORMED, record
                        empty += left[depth - 1] + 1
                        left[depth - 1] = 0
                if left[depth - 1] > 0:
                    begun[depth - 1] = at
                    step = body
                else:
                    count, at = _block(data, at, end)
                    if at < 0:
                        return CUT, record
                    if count < 0:
                        return MALFORMED, record
                    if count == 0:
                        depth -= 1
                        step = behind
                    else:
                        left[depth - 1] = count
                        begun[depth - 1] = at
                        step = body
            else:
                value, at = _long(data, at, end)
                if at < 0:
                    return CUT, record
                if code == UNION:
                    if value < 0 or value >= two:
                        return MALFORMED, record
                    step = targets[one + value]
                else:
                    if value < 0 or value > end - at:
                        return CUT, record
                    if code == TAKE_BYTES:
                        starts[one, record] = at
                        sizes[one, record] = value
                    at += value
    return (OK, records) if at == end else (MALFORMED, records)


@_compiled(types.void(_BYTES, _LONGS, _LONGS, _LONGS, types.uint8[::1], types.int64[::1]))
def gather(data: Any, starts: Any, sizes: Any, rows: Any, out: Any, offsets: Any) -> None:
    """Copy the given rows' bytes consecutively to `out`, and their start offsets to `offsets` (one more)."""
    at = 0
    for index in range(len(rows)):
        offsets[index] = at
        start, size = starts[rows[index]], sizes[rows[index]]
        for byte in range(size):
            out[at + byte] = data[start + byte]
        at += size
    offsets[len(rows)] = at
