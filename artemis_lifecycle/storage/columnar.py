"""Parquet files within the limits of `bounded`.

Arrow trusts a page's header and a dictionary's count, whatever the footer says, and allocates the claimed sizes. So
this module reads a row group completely in its stored form, counts its pages, and decodes its rows in small batches. A
batch stays within bounds even if every row has the longest value that a page can hold.

Sources: parquet-format's parquet.thrift and Encodings.md, Thrift's compact protocol.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.bounded import Allowance, ReadLimits

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ROWS = 65_536
BATCH_BYTES = 64 << 20
"""Maximum bytes of a decoded batch, if every row had the longest value that a page can hold."""

VALUE = 16
"""Bytes of a decoded value, without its text."""

_DELTA_BYTE_ARRAY = 7
_DICTIONARY_PAGE = 2


class ParquetReader:
    """A Parquet file whose rows are read within `limits`. `options` are passed to pyarrow's ParquetFile.

    Raises TooLarge, and StorageError for a broken file or one whose rows need more memory than is available.
    """

    def __init__(self, source: BinaryIO | bytes, path: str, limits: ReadLimits, **options: Any) -> None:
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        size = file.seek(0, io.SEEK_END)
        self._window = _Window(file, size)
        self._path = path
        self._limits = limits
        self._size = size
        with naming("Parquet", path):
            self._file: pq.ParquetFile = pq.ParquetFile(self._window, **options)
            require_text_names(self._file.schema_arrow)
            self._spans = self._columns()

    @property
    def schema(self) -> pa.Schema:
        return self._file.schema_arrow

    @property
    def metadata(self) -> pq.FileMetaData:
        return self._file.metadata

    def batches(self, columns: Sequence[str] | None = None, rows: int = ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the rows, or some of their columns, in batches of at most `rows`."""
        for group in self.groups(columns):
            yield from group.to_batches(max_chunksize=rows)

    def groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of each row group; a large row group in several pieces."""
        with naming("Parquet", self._path):
            yield from self._groups(columns)

    def _groups(self, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        pages = self._limits.allowance(self._path, self._size)
        # Decoded data has no ratio limit: a position delete file repeats its data file's path in every row.
        decoded = Allowance(self._limits, self._path, self._limits.max_bytes)
        for number in range(self._file.num_row_groups):
            at_once = self._load(number, pages)
            waiting: list[pa.RecordBatch] = []
            count = 0
            for batch in self._file.iter_batches(at_once, row_groups=[number], columns=columns):
                decoded.take(batch.nbytes)
                waiting.append(batch)
                count += batch.num_rows
                if count >= ROWS:
                    yield pa.Table.from_batches(waiting).combine_chunks()
                    waiting, count = [], 0
            if waiting:
                yield pa.Table.from_batches(waiting).combine_chunks()

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows."""
        found = list(self.groups(columns))
        if found:
            return pa.concat_tables(found)
        schema = self.schema
        return (schema if columns is None else pa.schema([schema.field(each) for each in columns])).empty_table()

    def close(self) -> None:
        self._file.close()

    def _columns(self) -> list[list[tuple[int, int]]]:
        """Return the start and end of each row group's columns, from the footer itself. Asking pyarrow for a column
        would crash the process if the footer contradicts itself."""
        tail = self._window.hold(max(0, self._size - 8), self._size)
        size = int.from_bytes(tail.data[:4], "little")
        start = self._size - 8 - size
        if start < 0:
            raise ValueError("its footer is longer than the file")
        try:
            footer, _ = _struct(self._window.hold(start, self._size - 8).data, 0, 0)
            return [[_span(column[3]) for column in group[1]] for group in footer[4]]
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"its footer is broken ({error!r:.60})") from error

    def _load(self, number: int, allowance: Allowance) -> int:
        """Read a row group in its stored form, count the decoded size of its pages, and return how many rows to decode
        at once."""
        spans = self._spans[number]
        if any(not 0 <= start <= end <= self._size for start, end in spans):
            raise ValueError("a column is outside the file")
        stored = self._window.hold(min(spans, default=(0, 0))[0], max((end for _, end in spans), default=0))
        longest = VALUE
        for start, end in spans:
            at = start
            while at < end:
                page, at = _page(stored, at)
                allowance.take(page.uncompressed)
                if page.type == _DICTIONARY_PAGE:
                    # Arrow allocates space for as many values as the page claims.
                    allowance.take(VALUE * page.values)
                if page.type == _DICTIONARY_PAGE or page.encoding == _DELTA_BYTE_ARRAY:
                    longest = max(longest, page.uncompressed)
                at += page.compressed
        return max(1, min(ROWS, BATCH_BYTES // longest))


def parquet_bytes(rows: pa.Table, **options: Any) -> bytes:
    """Return a Parquet file with these rows. `options` are passed to pyarrow's `write_table`."""
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd", **options)
    return buffer.getvalue()


@contextmanager
def naming(kind: str, path: str) -> Iterator[None]:
    """Turn errors that a broken file causes in the block into StorageError with the file's path."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise StorageError(
            f"The {kind} file cannot be read: {error!s:.300}",
            path=path,
            hint="check what wrote it; restore it, or write it again",
        ) from error


def require_text_names(fields: Iterable[pa.Field]) -> None:
    """Raise UnicodeDecodeError for a name that is not UTF-8: Arrow does so only when the name is read."""
    for field in fields:
        _ = field.name
        require_text_names(field.type.field(each) for each in range(field.type.num_fields))


def _span(column: Mapping[int, Any]) -> tuple[int, int]:
    """Return the start and end of a column chunk's pages, from its metadata."""
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
    """Return the header of the page at `at`, and the start of its data. Raises ValueError."""
    try:
        fields, end = _struct(data.data, at - data.start, 0)
        at = data.start + end
        kind, uncompressed, compressed = fields[1], fields[2], fields[3]
        header: dict[int, Any] = next((fields[each] for each in (5, 7, 8) if each in fields), {})
        values, encoding = header.get(1, 0), header.get(4 if 8 in fields else 2)
        if min(uncompressed, compressed, values) < 0 or at + compressed > len(data):
            raise ValueError("it does not end where its header says")
        return _Page(kind, uncompressed, compressed, values, encoding), at
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a page's header is broken ({error!r:.60})") from error


_DEPTH = 16


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return a struct of Thrift's compact protocol: its numbers, structs and lists by field id."""
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


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
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
                # A boolean in a list takes one byte.
                item, at = _value(data, at, 3 if head & 15 in (1, 2) else head & 15, depth + 1)
                items.append(item)
            return items, at
        case 12:
            return _struct(data, at, depth + 1)
    raise IndexError(f"type {kind} is unknown")


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
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
    """A range of a file, addressed by offsets in the file."""

    def __init__(self, start: int, data: bytes) -> None:
        self.start = start
        self.data = data

    def __len__(self) -> int:
        """Return the offset of its end."""
        return self.start + len(self.data)


class _Window(io.RawIOBase):
    """A file that keeps the range of one row group in memory, so that no byte of it is fetched twice."""

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
