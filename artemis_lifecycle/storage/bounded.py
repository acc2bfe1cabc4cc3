"""Limits on what somebody else wrote, when it is read. Belongs here: the limits, and the only places that decompress
it or parse its JSON. Does not belong here: what the bytes mean, or Parquet and ORC, whose readers decompress themselves
(`columnar`, `orc`).

A few kilobytes of a hostile or damaged file can expand to gigabytes. Each file has an allowance, computed from its size
and the limits in lifecycle.yaml. No memory is allocated beyond it. Bytes do not bound objects: `[],` takes 3 bytes in a
file, and 70 in memory. So JSON is also bounded by its values and its depth, before it is parsed.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
from isal import isal_zlib

from artemis_lifecycle.errors import TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _typeshed import WriteableBuffer

_CHUNK = 4 << 20
_DEFLATE_RATIO = 1032
"""The maximum ratio of deflate: a match of 258 bytes takes at least two bits."""


@dataclass(frozen=True)
class ReadLimits:
    """The section `reading` of lifecycle.yaml. `max_bytes` limits one file, both stored and decompressed. Above
    `ratio_above` bytes, the decompressed size is also limited to `max_ratio` times the stored size."""

    max_bytes: int = 4 << 30
    max_ratio: int = 500
    ratio_above: int = 64 << 20

    def require(self, size: int, path: str) -> None:
        """Raise TooLarge for a stored file of more than `max_bytes`."""
        if size > self.max_bytes:
            raise _too_large(f"The file has {size:,} bytes, more than reading.max_bytes ({self.max_bytes:,})", path)

    def allowance(self, path: str, stored: int) -> Allowance:
        """Return the decompression allowance of the file at `path`, which has `stored` bytes."""
        self.require(stored, path)
        return Allowance(self, path, stored)


DEFAULT_LIMITS = ReadLimits()


class Allowance:
    """The number of bytes that one file may still expand to."""

    def __init__(self, limits: ReadLimits, path: str, stored: int) -> None:
        self.path = path
        self.left = min(limits.max_bytes, max(limits.ratio_above, limits.max_ratio * stored))
        self._limits = limits
        self._stored = stored

    def take(self, size: int) -> None:
        """Count `size` bytes. Raises TooLarge beyond the allowance."""
        if size > self.left:
            limits = self._limits
            raise _too_large(
                f"The file's {self._stored:,} bytes expand to more than reading.max_bytes ({limits.max_bytes:,}), or "
                f"more than reading.max_ratio ({limits.max_ratio}) times its size above {limits.ratio_above:,}",
                self.path,
            )
        self.left -= size

    def undo(self, codec: str, data: bytes) -> bytes:
        """Decompress `data`: gzip, deflate (raw), zstd, snappy, lz4 (framed). Raises TooLarge, and ValueError for bytes
        that the codec did not produce."""
        refused: Any = isal_zlib.error  # the stub types it as an instance
        try:
            return self._undo(codec, data)
        except (refused, zlib.error, EOFError, OSError, MemoryError, OverflowError) as error:
            if isinstance(error, TooLarge):
                raise
            raise ValueError(f"{codec} data cannot be decompressed ({error})") from error

    def _undo(self, codec: str, data: bytes) -> bytes:
        if codec == "deflate":
            return self._inflated(data)
        if codec == "gzip":
            return self._drained(gzip.GzipFile(fileobj=io.BytesIO(data)).read)

        if codec in ("zstd", "lz4"):
            return self._drained(pa.CompressedInputStream(pa.BufferReader(data), codec).read)
        if codec != "snappy":
            raise ValueError(f"codec {codec!r} is unknown")
        # The length is a prefix of the data.
        size = shift = 0
        for byte in data[:10]:
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        self.take(size)
        return bytes(pa.Codec("snappy").decompress(data, decompressed_size=size))

    def _inflated(self, data: bytes) -> bytes:
        if len(data) * _DEFLATE_RATIO <= self.left:
            # It refuses a stream that ends early. The size is an estimate; the buffer grows if needed.
            raw = isal_zlib.decompress(data, -15, 6 * len(data) + 1024)
            self.take(len(raw))
            return raw
        undoing = zlib.decompressobj(-15)
        pieces, rest = [], data
        while not undoing.eof:
            piece = undoing.decompress(rest, _CHUNK)
            self.take(len(piece))
            rest = undoing.unconsumed_tail
            if not piece and not rest and not undoing.eof:
                raise EOFError("the stream ends early")
            pieces.append(piece)
        return b"".join(pieces)

    def _drained(self, read: Callable[[int], bytes]) -> bytes:
        pieces = []
        while piece := read(min(_CHUNK, self.left + 1)):
            self.take(len(piece))
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def gunzipped(self, file: BinaryIO) -> BinaryIO:
        """Return the content of a gzip stream, as a stream that raises TooLarge beyond the allowance."""
        return io.BufferedReader(_Counted(gzip.GzipFile(fileobj=file), self))


class _Counted(io.RawIOBase):
    def __init__(self, file: gzip.GzipFile, allowance: Allowance) -> None:
        super().__init__()
        self._file = file
        self._allowance = allowance

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        found = self._file.readinto(buffer)
        self._allowance.take(found)
        return found


_VALUES = 1_000_000
_LEVELS = 200
_OPENS, _CLOSES, _CASE = ord("["), ord("]"), 0xDF
"""Brackets and braces differ in this one bit."""


def require_bounded_json(data: bytes, path: str, stored: int | None = None, values: int = _VALUES) -> None:
    """Raise TooLarge for JSON that takes far more memory than bytes, or that is nested deeper than readers recurse.

    More than `values` values need 8 bytes each; if `data` was compressed, a quarter of a byte each of the `stored`
    bytes. Metadata of real tables has 10 to 60 bytes for each. Text inside strings counts, too: a scan that parses
    strings would take longer than the parsing.
    """
    found = data.count(b",") + data.count(b"[") + data.count(b"{")
    most = max(values, min(len(data) // 8, 4 * (len(data) if stored is None else stored)))
    if found > most:
        raise _too_large(f"The JSON has up to {found:,} values in {len(data):,} bytes, more than {most:,}", path)
    level = 0
    for start in range(0, len(data), _CHUNK // 16):
        folded = np.frombuffer(data, np.uint8, min(_CHUNK // 16, len(data) - start), start) & _CASE
        ends = folded[(folded == _OPENS) | (folded == _CLOSES)]
        if ends.size:
            levels = np.cumsum(np.where(ends == _OPENS, 1, -1)) + level
            if levels.max() > _LEVELS:
                raise _too_large(f"The JSON is nested deeper than {_LEVELS} levels", path)
            level = int(levels[-1])


def bounded_json(data: bytes | str, path: str, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parse JSON that somebody else wrote; `path` says where it is from. `hook` as `object_pairs_hook` of `json`.

    Raises TooLarge as `require_bounded_json`, ValueError for what is not JSON in UTF-8.
    """
    content = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    require_bounded_json(content, path)
    try:
        with within_memory(path):
            return json.loads(content.decode("utf-8", "surrogatepass"), object_pairs_hook=hook)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


@contextmanager
def within_memory(path: str) -> Iterator[None]:
    """Raise TooLarge with the file's path if reading it needs more memory than is available."""
    try:
        yield
    except MemoryError as error:
        raise _too_large("The file's content needs more memory than is available", path) from error


def _too_large(what: str, path: str) -> TooLarge:
    return TooLarge(
        what,
        path=path,
        hint="check what wrote the file; if it is correct, raise reading.* in lifecycle.yaml, or add memory",
    )
