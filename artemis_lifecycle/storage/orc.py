"""ORC files within the limits of `bounded`, read in a separate process, because Arrow's ORC library crashes on some
damaged files. Belongs here: checking a file's claimed sizes before Arrow allocates memory for them. Does not belong
here: what the columns mean.

Sources: orc_proto.proto and ORCv1.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.storage.bounded import Allowance, ReadLimits
from artemis_lifecycle.storage.columnar import BATCH_BYTES, ROWS, VALUE, naming, varint
from artemis_lifecycle.storage.isolated import isolated

if TYPE_CHECKING:
    import pyarrow as pa

_ORC_CODECS = {0: None, 1: "deflate", 2: "snappy", 4: "lz4", 5: "zstd"}
_DICTIONARY_DATA = 3


@dataclass(frozen=True)
class OrcFile:
    """The rows of an ORC file and its codec, by Arrow's name. The attributes of its types (Iceberg's column ids) are
    metadata of the fields."""

    table: pa.Table
    compression: str


def read_orc(data: bytes, path: str, limits: ReadLimits) -> OrcFile:
    """Read an ORC file within `limits`.

    Raises TooLarge, and StorageError for a file that is broken, uses LZO, or needs more memory than is available.
    """
    return isolated(_read, path, data, path, limits)


def _read(data: bytes, path: str, limits: ReadLimits) -> OrcFile:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow import orc

    rows = require_bounded_orc(data, path, limits)
    decoded = Allowance(limits, path, limits.max_bytes)
    batches = []
    with naming("ORC", path):
        file = orc.ORCFile(io.BytesIO(data))
        scanner = ds.OrcFileFormat().make_fragment(pa.BufferReader(data)).scanner(batch_size=rows, use_threads=False)
        for batch in scanner.to_batches():
            decoded.take(batch.nbytes)
            batches.append(batch)
        # Field by field: the table has the types, but not the attributes.
        schema = pa.schema(list(file.schema))
        table = pa.Table.from_batches(batches, schema.remove_metadata())
        if table.num_rows != file.nrows:
            raise ValueError(f"it has {table.num_rows} rows, but its footer says {file.nrows}")
        return OrcFile(pa.Table.from_arrays(table.columns, schema=schema), file.compression.lower())


def require_bounded_orc(data: bytes, path: str, limits: ReadLimits) -> int:
    """Check the claims of an ORC file's tail and stripes against `limits`. Return how many rows to decode at once."""
    with naming("ORC", path):
        return _orc_rows(data, path, limits)


def _orc_rows(data: bytes, path: str, limits: ReadLimits) -> int:
    allowance = limits.allowance(path, len(data))
    decoded = Allowance(limits, path, limits.max_bytes)
    try:
        size = data[-1]
        tail = _message(data[-1 - size : -1])
        codec, block = _ORC_CODECS[_one(tail, 2)], _one(tail, 3) or 256 << 10
        # Arrow allocates space for a block before it reads one.
        allowance.take(block)
        end = len(data) - 1 - size

        def undone(start: int, length: int) -> bytes:
            if min(start, length) < 0 or start + length > end:
                raise ValueError("a part of it is outside the file")
            return _orc_undone(data[start : start + length], codec, allowance)

        length = _one(tail, 1)
        footer = _message(undone(end - length, length))
        types = list(map(_message, footer.get(4, ())))
        for kind in types:
            for name in kind.get(3, ()):
                str(name, "utf-8")
        longest = VALUE
        for text in footer.get(3, ()):
            stripe = _message(text)
            decoded.take(VALUE * len(types) * _one(stripe, 5))
            start, indexes, body = (_one(stripe, number) for number in (1, 2, 3))
            for stream in map(_message, _message(undone(start + indexes + body, _one(stripe, 4))).get(1, ())):
                stored = _one(stream, 3)
                if _one(stream, 1) == _DICTIONARY_DATA:
                    chunks = 1 if codec is None else len(list(_chunks(data[start : start + stored])))
                    longest = max(longest, stored if codec is None else chunks * block)
                start += stored
        return max(1, min(ROWS, BATCH_BYTES // longest))
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"its tail is broken ({error!r:.60})") from error


def _orc_undone(data: bytes, codec: str | None, allowance: Allowance) -> bytes:
    if codec is None:
        return data
    pieces = []
    for original, piece in _chunks(data):
        framed = _lz4_frame(piece) if codec == "lz4" else piece
        pieces.append(piece if original else allowance.undo(codec, framed))
    return b"".join(pieces)


def _chunks(data: bytes) -> Iterator[tuple[bool, bytes]]:
    """Yield (whether it is stored uncompressed, its bytes) for each chunk of a stream."""
    at = 0
    while at < len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        yield bool(head & 1), data[at + 3 : at + 3 + (head >> 1)]
        at += 3 + (head >> 1)


def _lz4_frame(block: bytes) -> bytes:
    """Wrap a bare LZ4 block in a frame, which marks its end."""
    import xxhash

    described = b"\x60\x70"  # Version 1, blocks of 4 MiB at most, no checksums.
    check = xxhash.xxh32_intdigest(described) >> 8 & 0xFF
    size = len(block).to_bytes(4, "little")
    return b"\x04\x22\x4d\x18" + described + bytes([check]) + size + block + bytes(4)


def _message(data: bytes) -> Mapping[int, list[Any]]:
    """Return a Protocol Buffers message: numbers and bytes by field number."""
    fields: dict[int, list[Any]] = {}
    at = 0
    value: Any
    while at < len(data):
        key, at = varint(data, at)
        match key & 7:
            case 0:
                value, at = varint(data, at)
            case 1:
                value, at = None, at + 8
            case 2:
                size, at = varint(data, at)
                if at + size > len(data):
                    raise IndexError("a field does not end")
                value, at = data[at : at + size], at + size
            case 5:
                value, at = None, at + 4
            case _:
                raise IndexError(f"wire type {key & 7} is unknown")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _one(fields: Mapping[int, list[Any]], number: int) -> int:
    """Return a number, or 0 if it is missing. The last one counts."""
    found = fields.get(number, [0])[-1]
    if type(found) is not int:
        raise TypeError(f"field {number} is not a number")
    return found
