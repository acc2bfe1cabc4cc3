"""Values as keys that compare as Iceberg's Java planner compares them. Belongs here: types, single-value serialization
and the order of values. Does not belong here: what a predicate means.

A key is a 64-bit integer where the type has one, else bytes:

- Booleans, integers, dates and times: the number. Promoted types are stored in 4 bytes and compare as 8.
- float, double: their total order (−0.0 before 0.0, every NaN after infinity), as Double.compare has it.
- string, binary, fixed: the bytes, unsigned. UUIDs: two signed halves, as java.util.UUID compares them.
- decimal: 16 bytes, big-endian, with the sign bit flipped.

Source: format/spec.md, "Appendix D: Single-value serialization"; Iceberg's Conversions, Comparators, Literals.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.metadata.statistics import Numbers
from artemis_lifecycle.metadata.unreadable import unreadable

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

Key: TypeAlias = int | bytes
Mask: TypeAlias = NDArray[np.bool_]

_DECIMAL_BYTES = 16
_NAN = 0x7FF8000000000000
_POSITIVE = 0x7FFFFFFFFFFFFFFF


@dataclass(frozen=True)
class Keys:
    """One key per row; `known` is False where there is no value. Comparisons are False for those rows."""

    values: NDArray[np.int64] | pa.Array
    known: Mask
    nan: Mask | None = None
    """Where a known value is NaN; None for types that have none."""

    @property
    def nans(self) -> Mask:
        return np.zeros(len(self.known), np.bool_) if self.nan is None else self.nan

    def less(self, key: Key) -> Mask:
        return self._compared("less", key)

    def less_equal(self, key: Key) -> Mask:
        return self._compared("less_equal", key)

    def greater(self, key: Key) -> Mask:
        return self._compared("greater", key)

    def equal(self, key: Key) -> Mask:
        return self._compared("equal", key)

    def among(self, keys: Sequence[Key]) -> Mask:
        if isinstance(self.values, np.ndarray):
            return np.isin(self.values, np.array(keys, np.int64)) & self.known
        return _mask(pc.is_in(self.values, value_set=pa.array(keys, pa.large_binary()))) & self.known

    def starts_with(self, prefix: Key) -> Mask:
        return _mask(pc.starts_with(self.values, prefix))

    def equals(self, other: Keys) -> Mask:
        """Where both are known and equal."""
        if isinstance(self.values, np.ndarray):
            return np.asarray(self.values == other.values) & self.known & other.known
        return _mask(pc.equal(self.values, other.values))

    def _compared(self, how: str, key: Key) -> Mask:
        if isinstance(self.values, np.ndarray):
            found: Mask = getattr(np, how)(self.values, key) & self.known
            return found
        return _mask(getattr(pc, how)(self.values, pa.scalar(key, pa.large_binary())))


def _mask(values: pa.Array) -> Mask:
    found: Mask = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return found


def value_keys(kind: IcebergType, stored: Numbers | pa.Array | None, rows: int) -> Keys:
    """Return the keys of partition values as manifests store them (see `LiveEntries.partition`)."""
    if stored is None:
        return _nothing(kind, rows)
    if isinstance(stored, Numbers):
        return Keys(stored.values, stored.known)
    return bound_keys(kind, stored)


def bound_keys(kind: IcebergType, bounds: pa.Array) -> Keys:
    """Return the keys of values in Iceberg's single-value serialization, a large_binary array. Raises
    UnreadableMetadata for a value that the type cannot have."""
    from pyiceberg.types import (
        BinaryType,
        BooleanType,
        DecimalType,
        DoubleType,
        FixedType,
        FloatType,
        StringType,
        UnknownType,
        UUIDType,
    )

    known = _mask(bounds.is_valid())
    if isinstance(kind, StringType | BinaryType | FixedType | UnknownType):
        # Unknown: the partition field's column was dropped. Its values are equal or not.
        return Keys(bounds, known)
    sizes, starts, data = _layout(bounds, known)
    if isinstance(kind, DecimalType):
        return Keys(_decimals(sizes, starts, data, known), known)
    if isinstance(kind, UUIDType):
        return Keys(_uuids(sizes, starts, data, known), known)
    out = np.zeros(len(known), np.int64)
    if isinstance(kind, BooleanType):
        out[known] = data[starts[known]] != 0
        return Keys(out, known)
    floating = isinstance(kind, FloatType | DoubleType)
    wide = known & (sizes >= 8)
    narrow = known & (sizes >= 4) & ~wide
    if (known & ~wide & ~narrow).any():
        raise unreadable(f"A bound of a {kind} column has too few bytes", "a manifest")
    if isinstance(kind, FloatType) or str(kind) in ("int", "date"):
        narrow, wide = known, np.zeros_like(known)
    for rows, width in ((narrow, 4), (wide, 8)):
        if rows.any():
            found = _rectangle(data, starts[rows], width)
            out[rows] = _ordered(found, width) if floating else found.view(f"<i{width}").ravel()
    return Keys(out, known, out == _NAN if floating else None)


def literal_key(kind: IcebergType, value: Any) -> Key:
    """Return the key of a literal of that type, as pyiceberg has it."""
    from pyiceberg.types import DecimalType, DoubleType, FloatType, StringType, UUIDType

    if isinstance(kind, StringType):
        return str(value).encode("utf-8", "surrogatepass")
    if isinstance(kind, DecimalType):
        return _flipped(_unscaled(value).to_bytes(_DECIMAL_BYTES, "big", signed=True), (0,))
    if isinstance(kind, UUIDType):
        return _flipped(value, (0, 8))
    if isinstance(kind, FloatType):
        return _float_key(np.float64(np.float32(value)))
    if isinstance(kind, DoubleType):
        return _float_key(np.float64(value))
    return bytes(value) if isinstance(value, bytes) else int(value)


def _float_key(value: np.float64) -> int:
    return int(_ordered(np.frombuffer(struct.pack("<d", value), np.uint8).reshape(1, 8), 8)[0])


def _unscaled(value: Decimal) -> int:
    sign, digits, _ = value.as_tuple()
    found = int("".join(map(str, digits)) or "0")
    return -found if sign else found


def _flipped(value: bytes, places: tuple[int, ...]) -> bytes:
    out = bytearray(value)
    for place in places:
        out[place] ^= 0x80
    return bytes(out)


def _nothing(kind: IcebergType, rows: int) -> Keys:
    return bound_keys(kind, pa.nulls(rows, pa.large_binary()))


def _layout(bounds: pa.Array, known: Mask) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    _, offsets, data = bounds.buffers()
    places = np.frombuffer(offsets, np.int64)[bounds.offset : bounds.offset + len(bounds) + 1]
    if data is None or not data.size:
        return np.zeros(len(bounds), np.int64), places[:-1], np.zeros(1, np.uint8)
    return np.where(known, np.diff(places), 0), places[:-1], np.frombuffer(data, np.uint8)


def _rectangle(data: NDArray[np.uint8], starts: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Return `width` bytes from each start, one row each."""
    return np.ascontiguousarray(data[starts[:, None] + np.arange(width)])


def _ordered(found: NDArray[np.uint8], width: int) -> NDArray[np.int64]:
    values = found.view(f"<f{width}").ravel().astype(np.float64)
    bits = np.where(np.isnan(values), _NAN, values.view(np.int64))
    return np.where(bits >= 0, bits, bits ^ _POSITIVE)


def _decimals(sizes: NDArray[np.int64], starts: NDArray[np.int64], data: NDArray[np.uint8], known: Mask) -> pa.Array:
    out = np.zeros((len(known), _DECIMAL_BYTES), np.uint8)
    for size in np.unique(sizes[known]).tolist():
        if not 0 < size <= _DECIMAL_BYTES:
            raise unreadable(f"A bound of a decimal column has {size} bytes", "a manifest")
        rows = np.flatnonzero(known & (sizes == size))
        found = _rectangle(data, starts[rows], size)
        out[rows, : _DECIMAL_BYTES - size] = np.where(found[:, :1] >= 0x80, 0xFF, 0)
        out[rows, _DECIMAL_BYTES - size :] = found
    out[:, 0] ^= 0x80
    return _fixed_width(out, known)


def _uuids(sizes: NDArray[np.int64], starts: NDArray[np.int64], data: NDArray[np.uint8], known: Mask) -> pa.Array:
    if (sizes[known] != 16).any():
        raise unreadable("A bound of a uuid column does not have 16 bytes", "a manifest")
    out = np.zeros((len(known), 16), np.uint8)
    out[known] = _rectangle(data, starts[known], 16)
    out[:, (0, 8)] ^= 0x80
    return _fixed_width(out, known)


def _fixed_width(rows: NDArray[np.uint8], known: Mask) -> pa.Array:
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
    mask = pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(pa.large_binary(), len(rows), [mask, pa.py_buffer(offsets), pa.py_buffer(rows)])
