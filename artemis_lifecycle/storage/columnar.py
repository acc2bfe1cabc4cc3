"""Parquet and ORC files within the limits of `bounded`. Belongs here: what such a file claims, checked before Arrow
allocates it. Does not belong: what the columns mean.

Arrow believes a page's header, a dictionary's count and a stripe's rows, whatever the footer says, and allocates what
they claim. So a row group is read whole as it is stored, its pages are counted, and its rows are decoded in batches so
small that even the longest value that a page can hold, in every row, stays within bounds.

Sources: parquet-format's parquet.thrift and Encodings.md, Thrift's compact protocol; orc_proto.proto and ORCv1.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.bounded import Allowance, ReadLimits

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from _typeshed import WriteableBuffer

ROWS = 65_536
_BATCH_BYTES = 64 << 20
"""Of a batch as decoded, with the longest value that a page can hold in every row."""

_VALUE = 16
"""Bytes of a decoded value, beside its text."""

_DELTA_BYTE_ARRAY = 7
_DICTIONARY_PAGE = 2


class ParquetReader:
    """A Parquet file whose rows are read within `limits`. `options` are pyarrow's of a ParquetFile.

    Raises TooLarge; StorageError for a file that is broken, or whose rows take more memory than there is.
    """

    def __init__(self, source: BinaryIO | bytes, path: str, limits: ReadLimits, **options: Any) -> None:
        import pyarrow.parquet as pq

        file = io.BytesIO(source) if isinstance(source, bytes) else source
        size = file.seek(0, io.SEEK_END)
        self._window = _Window(file, size)
        self._path = path
        self._limits = limits
        self._size = size
        with _naming("Parquet", path):
            self._file: pq.ParquetFile = pq.ParquetFile(self._window, **options)
            _require_text_names(self._file.schema_arrow)
            self._spans = self._columns()

    @property
    def schema(self) -> pa.Schema:
        return self._file.schema_arrow

    @property
    def metadata(self) -> pq.FileMetaData:
        return self._file.metadata

    def batches(self, columns: Sequence[str] | None = None, rows: int = ROWS) -> Iterator[pa.RecordBatch]:
        """The rows, or some of their columns, in batches of at most so many."""
        for group in self.groups(columns):
            yield from group.to_batches(max_chunksize=rows)

    def groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows of each row group; of a large one, in several pieces."""
        with _naming("Parquet", self._path):
            yield from self._groups(columns)

    def _groups(self, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        import pyarrow as pa

        pages = self._limits.allowance(self._path, self._size)
        # What is decoded has no ratio: a position delete has its data file's path in every row.
        decoded = Allowance(self._limits, self._path, self._limits.max_bytes)
        for number in range(self._file.num_row_groups):
            at_once = self._load(number, pages)
            waiting: list[pa.RecordBatch] = []
            for batch in self._file.iter_batches(at_once, row_groups=[number], columns=columns):
                decoded.take(batch.nbytes)
                waiting.append(batch)
                if sum(each.num_rows for each in waiting) >= ROWS:
                    yield pa.Table.from_batches(waiting).combine_chunks()
                    waiting = []
            if waiting:
                yield pa.Table.from_batches(waiting).combine_chunks()

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows."""
        import pyarrow as pa

        found = list(self.groups(columns))
        if found:
            return pa.concat_tables(found)
        schema = self.schema
        return (schema if columns is None else pa.schema([schema.field(each) for each in columns])).empty_table()

    def close(self) -> None:
        self._file.close()

    def _columns(self) -> list[list[tuple[int, int]]]:
        """Where the columns of each row group begin and end. From the footer itself: to ask pyarrow of a column ends
        the process where what the footer says of it contradicts itself."""
        tail = self._window.hold(max(0, self._size - 8), self._size)
        size = int.from_bytes(tail.data[:4], "little")
        start = self._size - 8 - size
        if start < 0:
            raise ValueError("its footer is longer than the file")
        try:
            footer, _ = _struct(self._window.hold(start, self._size - 8), start, 0)
            return [[_span(column[3]) for column in group[1]] for group in footer[4]]
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"its footer is broken ({error!r:.60})") from error

    def _load(self, number: int, allowance: Allowance) -> int:
        """Read a row group as it is stored, count what its pages come to, and return how many rows to decode at
        once."""
        spans = self._spans[number]
        if any(not 0 <= start <= end <= self._size for start, end in spans):
            raise ValueError("a column lies outside the file")
        stored = self._window.hold(min(spans, default=(0, 0))[0], max((end for _, end in spans), default=0))
        longest = _VALUE
        for start, end in spans:
            at = start
            while at < end:
                page, at = _page(stored, at)
                allowance.take(page.uncompressed)
                if page.type == _DICTIONARY_PAGE:
                    # Arrow makes room for as many values as are said to be there.
                    allowance.take(_VALUE * page.values)
                if page.type == _DICTIONARY_PAGE or page.encoding == _DELTA_BYTE_ARRAY:
                    longest = max(longest, page.uncompressed)
                at += page.compressed
        return max(1, min(ROWS, _BATCH_BYTES // longest))


@contextmanager
def _naming(kind: str, path: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise StorageError(
            f"The {kind} file cannot be read: {error!s:.300}",
            path=path,
            untouched="everything",
            do="see what wrote it; restore it, or write it again",
        ) from error


def _require_text_names(fields: Iterable[pa.Field]) -> None:
    """Raise UnicodeDecodeError where a name is no UTF-8: Arrow does so only when somebody asks for the name."""
    for field in fields:
        _ = field.name
        _require_text_names(field.type.field(each) for each in range(field.type.num_fields))


def _span(column: Mapping[int, Any]) -> tuple[int, int]:
    """Where the pages of a column chunk begin and end, by its metadata."""
    start = min((at for at in (column.get(11), column[9]) if at), default=0)
    return start, start + int(column[7])


@dataclass(frozen=True)
class _Page:
    type: int
    uncompressed: int
    compressed: int
    values: int
    encoding: int | None


def _page(data: _Held, at: int) -> tuple[_Page, int]:
    """The header of the page at `at`, and where its bytes begin. Raises ValueError."""
    try:
        fields, at = _struct(data, at, 0)
        kind, uncompressed, compressed = fields[1], fields[2], fields[3]
        header: dict[int, Any] = next((fields[each] for each in (5, 7, 8) if each in fields), {})
        values, encoding = header.get(1, 0), header.get(4 if 8 in fields else 2)
        if min(uncompressed, compressed, values) < 0 or at + compressed > len(data):
            raise ValueError("it does not end where it says")
        return _Page(kind, uncompressed, compressed, values, encoding), at
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a page's header is broken ({error!r:.60})") from error


_DEPTH = 16


def _struct(data: _Held, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """A struct of Thrift's compact protocol: its numbers, structs and lists by field id."""
    if depth > _DEPTH:
        raise IndexError("it nests too deep")
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        head = data[at]
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _zigzag(data, at)
        fields[number], at = _value(data, at, head & 15, depth)
    return fields, at + 1


def _value(data: _Held, at: int, kind: int, depth: int) -> tuple[Any, int]:
    match kind:
        case 1 | 2:
            return kind == 1, at
        case 3:
            return data[at], at + 1
        case 4 | 5 | 6:
            return _zigzag(data, at)
        case 7:
            return None, at + 8
        case 8:
            size, at = _varint(data, at)
            return None, at + size
        case 9 | 10:
            head, at = data[at], at + 1
            count = head >> 4
            if count == 15:
                count, at = _varint(data, at)
            if count > len(data):
                raise IndexError("it has more items than bytes")
            items = []
            for _ in range(count):
                # A boolean in a list takes a byte.
                item, at = _value(data, at, 3 if head & 15 in (1, 2) else head & 15, depth + 1)
                items.append(item)
            return items, at
        case 12:
            return _struct(data, at, depth + 1)
    raise IndexError(f"type {kind} is unknown")


def _zigzag(data: _Held, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes | _Held, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError("a number does not end")


class _Held:
    """A range of a file, by the offsets in the file."""

    def __init__(self, start: int, data: bytes) -> None:
        self.start = start
        self.data = data

    def __getitem__(self, at: int) -> int:
        if at < self.start:
            raise IndexError
        return self.data[at - self.start]

    def __len__(self) -> int:
        """Where it ends."""
        return self.start + len(self.data)


class _Window(io.RawIOBase):
    """A file of which the range of one row group is held in memory, so that no byte of it is fetched twice."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__()
        self._file = file
        self._size = size
        self._at = 0
        self._held = _Held(0, b"")

    def hold(self, start: int, end: int) -> _Held:
        self._held = _Held(0, b"")
        self._file.seek(start)
        self._held = _Held(start, self._file.read(end - start))
        return self._held

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view, held = memoryview(buffer), self._held
        if held.start <= self._at and self._at + len(view) <= len(held):
            start = self._at - held.start
            data = held.data[start : start + len(view)]
        else:
            self._file.seek(self._at)
            data = self._file.read(len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


# --- ORC ------------------------------------------------------------------------------------------------------------

_ORC_CODECS = {0: None, 1: "deflate", 2: "snappy", 4: "lz4", 5: "zstd"}
_DICTIONARY_DATA = 3


def orc_batches(data: bytes, path: str, limits: ReadLimits) -> Iterator[pa.RecordBatch]:
    """The rows of an ORC file within `limits`. Raises as ParquetReader does; also for LZO."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    rows = require_bounded_orc(data, path, limits)
    decoded = Allowance(limits, path, limits.max_bytes)
    with _naming("ORC", path):
        scanner = ds.OrcFileFormat().make_fragment(pa.BufferReader(data)).scanner(batch_size=rows, use_threads=False)
        for batch in scanner.to_batches():
            decoded.take(batch.nbytes)
            yield batch


def require_bounded_orc(data: bytes, path: str, limits: ReadLimits) -> int:
    """Hold what an ORC file's tail and stripes claim against `limits`; returns how many rows to decode at once."""
    with _naming("ORC", path):
        return _orc_rows(data, path, limits)


def _orc_rows(data: bytes, path: str, limits: ReadLimits) -> int:
    allowance = limits.allowance(path, len(data))
    decoded = Allowance(limits, path, limits.max_bytes)
    try:
        size = data[-1]
        tail = _message(data[-1 - size : -1])
        codec, block = _ORC_CODECS[_one(tail, 2)], _one(tail, 3) or 256 << 10
        # Arrow makes room for a block before it reads one.
        allowance.take(block)
        end = len(data) - 1 - size

        def undone(start: int, length: int) -> bytes:
            if min(start, length) < 0 or start + length > end:
                raise ValueError("a part of it lies outside the file")
            return _orc_undone(data[start : start + length], codec, allowance)

        length = _one(tail, 1)
        footer = _message(undone(end - length, length))
        types = list(map(_message, footer.get(4, ())))
        for kind in types:
            for name in kind.get(3, ()):
                str(name, "utf-8")
        longest = _VALUE
        for text in footer.get(3, ()):
            stripe = _message(text)
            decoded.take(_VALUE * len(types) * _one(stripe, 5))
            start, indexes, body = (_one(stripe, number) for number in (1, 2, 3))
            for stream in map(_message, _message(undone(start + indexes + body, _one(stripe, 4))).get(1, ())):
                stored = _one(stream, 3)
                if _one(stream, 1) == _DICTIONARY_DATA:
                    chunks = 1 if codec is None else len(list(_chunks(data[start : start + stored])))
                    longest = max(longest, stored if codec is None else chunks * block)
                start += stored
        return max(1, min(ROWS, _BATCH_BYTES // longest))
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
    """(whether it is stored as it is, its bytes) of each chunk of a stream."""
    at = 0
    while at < len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        yield bool(head & 1), data[at + 3 : at + 3 + (head >> 1)]
        at += 3 + (head >> 1)


def _lz4_frame(block: bytes) -> bytes:
    """A bare block of LZ4 in a frame, which says where it ends."""
    import xxhash

    described = b"\x60\x70"  # Version 1, blocks of 4 MiB at most, no checksums.
    check = xxhash.xxh32_intdigest(described) >> 8 & 0xFF
    size = len(block).to_bytes(4, "little")
    return b"\x04\x22\x4d\x18" + described + bytes([check]) + size + block + bytes(4)


def _message(data: bytes) -> Mapping[int, list[Any]]:
    """A message of Protocol Buffers: numbers and bytes by field number."""
    fields: dict[int, list[Any]] = {}
    at = 0
    value: Any
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                value, at = _varint(data, at)
            case 1:
                value, at = None, at + 8
            case 2:
                size, at = _varint(data, at)
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
    """A number; 0 where it is left out. The last one counts."""
    found = fields.get(number, [0])[-1]
    if type(found) is not int:
        raise TypeError(f"field {number} is no number")
    return found
