"""A 64-bit hash of locations: Spark's `xxhash64` of the location's UTF-8 bytes. Belongs here: hashing many paths at
once in their buffers, without a Python string for each. Does not belong here: the meaning of a hash.

Spark SQL computes xxHash64 with seed 42, so executors, the driver and queries agree. Source: the xxHash specification
(XXH64), Spark's `XxHash64Function`.

Most paths of a table are in normal form except for their scheme and authority. Those are hashed in place, as the
normalized prefix and the rest. All other paths are passed to `normalize`.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from artemis_lifecycle.storage.location import LocationRules, normalize, split

_Number = TypeVar("_Number", bound="np.generic")

HASH_NAME = "xxhash64/42"
"""Identifies the hash in the header of files that store its values."""

SEED = 42
_PREFIXES = 16


def hash_location(location: str) -> int:
    """Return the hash of one location, unsigned."""
    return xxhash.xxh64_intdigest(location.encode("utf-8", "surrogatepass"), SEED)


def begun_with(number: int) -> int:
    """Return Spark's `xxhash64(number)` of a 32-bit integer, unsigned. It is the start of a chain of columns."""
    return xxhash.xxh64_intdigest(number.to_bytes(4, "little"), SEED)


def hash_paths(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], lengths: NDArray[np.int64], rules: LocationRules
) -> NDArray[np.uint64]:
    """Return the hash of each path's location. Paths are `lengths` bytes of UTF-8 in `data`, starting at `offsets`."""
    from artemis_lifecycle.storage.hash_kernels import hash_in_place

    hashes = np.zeros(len(offsets), np.uint64)
    open_rows = np.arange(len(offsets), dtype=np.int64)
    for _ in range(_PREFIXES):
        if not len(open_rows):
            return hashes
        first = _text(data, offsets, lengths, int(open_rows[0]))
        spelled, settled, is_file = _prefixes(first, rules)
        if spelled is None:
            hashes[open_rows[0]] = hash_location(normalize(first, rules))
            open_rows = open_rows[1:]
            continue
        left = hash_in_place(
            data, offsets, lengths, open_rows, _bytes(spelled), _bytes(settled), spelled == settled, is_file, hashes
        )
        if len(left) and left[0] == open_rows[0]:
            hashes[left[0]] = hash_location(normalize(first, rules))
            left = left[1:]
        open_rows = left
    for row in open_rows.tolist():
        hashes[row] = hash_location(normalize(_text(data, offsets, lengths, row), rules))
    return hashes


def hash_column(paths: pa.Array, rules: LocationRules) -> NDArray[np.uint64]:
    """Return the hash of each path's location, for an Arrow array of strings without nulls."""
    starts, data = text_buffers(paths)
    return hash_paths(data, starts[:-1], np.diff(starts), rules)


def hash_strings(texts: pa.Array) -> NDArray[np.uint64]:
    """Return the hash of each string of an Arrow array without nulls, in its original spelling."""
    from artemis_lifecycle.storage.hash_kernels import hash_slices

    starts, data = text_buffers(texts)
    hashes = np.empty(len(texts), np.uint64)
    hash_slices(data, starts[:-1], np.diff(starts), np.full(len(texts), SEED, np.uint64), hashes)
    return hashes


def distinct(numbers: NDArray[_Number]) -> NDArray[_Number]:
    """Return the distinct numbers in ascending order. From version 2.3, `numpy.unique` uses a hash table for numbers:
    fifty times slower for millions of mostly distinct ones."""
    ordered = np.sort(numbers)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def among(hashes: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which of `wanted` are in `hashes`, which must be sorted."""
    if not len(hashes):
        return np.zeros(len(wanted), np.bool_)
    places = np.minimum(hashes.searchsorted(wanted), len(hashes) - 1)
    return np.asarray(hashes[places] == wanted)


def text_buffers(texts: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the offsets (one more than rows) and the bytes of a string array, without a copy. A null has no bytes."""
    large = texts.cast(pa.large_string())
    _, offsets, data = large.buffers()
    if not len(large):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    starts = np.frombuffer(offsets, np.int64)[large.offset : large.offset + len(large) + 1]
    return starts, np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _text(data: NDArray[np.uint8], offsets: NDArray[np.int64], lengths: NDArray[np.int64], row: int) -> str:
    start = int(offsets[row])
    return data[start : start + int(lengths[row])].tobytes().decode("utf-8", "surrogatepass")


def _prefixes(path: str, rules: LocationRules) -> tuple[str | None, str, bool]:
    """Return the path's scheme and authority in the original spelling, and in its location. None for a relative
    path."""
    rest = split(path).path
    if not rest.startswith("/"):
        # Relative, or an authority without a path: too rare for a special rule.
        return None, "", False
    spelled = path[: len(path) - len(rest)]
    settled = normalize(f"{spelled}/x", rules)[: -len("/x")]
    schemes = {split(f"{spelled}/x").scheme, split(f"{settled}/x").scheme}
    return spelled, settled, not schemes.isdisjoint(("", "file"))


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
