"""Compiled loops over the bytes of paths and rows. Belongs here: XXH64 and its per-row callers. Import it inside
functions: numba takes half a second to load.

A loop here calls only loops of this module: numba caches machine code per module, and would not notice a change to a
loop in another module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

# One signature each, compiled when the module is first loaded. To numba, read-only and writable arrays are different
# types, and it would compile a loop again for each combination.
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_LONGS = types.Array(types.int64, 1, "C", readonly=True)
_SEEDS = types.Array(types.uint64, 1, "C", readonly=True)
_HASHES = types.uint64[::1]


@njit(cache=True, nogil=True)
def _rotated(value: Any, bits: Any) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@njit(cache=True, nogil=True)
def _word(data: Any, at: Any) -> Any:
    value = np.uint64(0)
    for byte in range(8):
        value |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
    return value


@njit(cache=True, nogil=True)
def _round(lane: Any, word: Any) -> Any:
    lane += word * np.uint64(0xC2B2AE3D27D4EB4F)
    return _rotated(lane, 31) * np.uint64(0x9E3779B185EBCA87)


@njit(cache=True, nogil=True)
def _merged(value: Any, lane: Any) -> Any:
    value ^= _round(np.uint64(0), lane)
    return value * np.uint64(0x9E3779B185EBCA87) + np.uint64(0x85EBCA77C2B2AE63)


@njit(cache=True, nogil=True)
def _avalanche(value: Any) -> Any:
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC2B2AE3D27D4EB4F)
    value ^= value >> np.uint64(29)
    value *= np.uint64(0x165667B19E3779F9)
    return value ^ (value >> np.uint64(32))


@njit(cache=True, nogil=True)
def xxh64(data: Any, start: Any, size: Any, seed: Any) -> Any:
    """Return the XXH64 of `size` bytes of `data` (uint8) from `start`, as np.uint64. For compiled callers."""
    prime1, prime2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
    prime3, prime4 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63)
    prime5 = np.uint64(0x27D4EB2F165667C5)
    at, end = start, start + size
    if size >= 32:
        one, two = seed + prime1 + prime2, seed + prime2
        three, four = seed, seed - prime1
        while at <= end - 32:
            one = _round(one, _word(data, at))
            two = _round(two, _word(data, at + 8))
            three = _round(three, _word(data, at + 16))
            four = _round(four, _word(data, at + 24))
            at += 32
        value = _rotated(one, 1) + _rotated(two, 7) + _rotated(three, 12) + _rotated(four, 18)
        value = _merged(_merged(_merged(_merged(value, one), two), three), four)
    else:
        value = seed + prime5
    value += np.uint64(size)
    while at <= end - 8:
        value ^= _round(np.uint64(0), _word(data, at))
        value = _rotated(value, 27) * prime1 + prime4
        at += 8
    if at <= end - 4:
        word = np.uint64(0)
        for byte in range(4):
            word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
        value ^= word * prime1
        value = _rotated(value, 23) * prime2 + prime3
        at += 4
    while at < end:
        value ^= np.uint64(data[at]) * prime5
        value = _rotated(value, 11) * prime1
        at += 1
    return _avalanche(value)


@njit(types.void(_BYTES, _LONGS, _LONGS, _SEEDS, _HASHES), cache=True, nogil=True)
def hash_slices(data: Any, starts: Any, sizes: Any, seeds: Any, out: Any) -> None:
    """Compute the XXH64 of each slice of `data`, with a seed per row."""
    for row in range(len(out)):
        out[row] = xxh64(data, starts[row], sizes[row], np.uint64(seeds[row]))


@njit(
    types.int64[::1](_BYTES, _LONGS, _LONGS, _LONGS, _BYTES, _BYTES, types.boolean, types.boolean, _HASHES),
    cache=True,
    nogil=True,
)
def hash_in_place(
    data: Any,
    offsets: Any,
    lengths: Any,
    rows: Any,
    spelled: Any,
    settled: Any,
    same: bool,
    is_file: bool,
    hashes: Any,
) -> Any:
    """Hash the rows whose path is `spelled` followed by a rest in normal form. Return the other rows."""
    left = np.empty(len(rows), np.int64)
    count = 0
    scratch = np.empty(4096, np.uint8)
    head = len(spelled)
    for index in range(len(rows)):
        row = rows[index]
        start, size = offsets[row], lengths[row]
        plain = size > head and data[start + head] == 47
        if plain:
            for at in range(head):
                if data[start + at] != spelled[at]:
                    plain = False
                    break
        if plain:
            before = np.uint8(0)
            for at in range(start + head, start + size):
                byte = data[at]
                if before == 47 and (byte == 47 or (is_file and byte == 46)):
                    plain = False
                    break
                before = byte
        if not plain:
            left[count] = row
            count += 1
        elif same:
            hashes[row] = xxh64(data, start, size, np.uint64(42))
        else:
            rest = size - head
            whole = len(settled) + rest
            if whole > len(scratch):
                scratch = np.empty(2 * whole, np.uint8)
            scratch[: len(settled)] = settled
            scratch[len(settled) : whole] = data[start + head : start + size]
            hashes[row] = xxh64(scratch, 0, whole, np.uint64(42))
    return left[:count]
