"""Manifests in Parquet (format version 4), read to the same schemas, scans and records as those in Avro, so that all
else is the same for both. Source: Iceberg's V4Metadata and InternalParquet.

A scan decodes the columns that it wants. Values are as Avro stores them: days, microseconds, unscaled bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from artemis_lifecycle.errors import StorageError, TooLarge, UnreadableMetadata
from artemis_lifecycle.metadata.avro.container import long_bytes
from artemis_lifecycle.metadata.avro.scan import UNSET, Further, Scan
from artemis_lifecycle.metadata.unreadable import encrypted, unreadable
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.columnar import ParquetReader

MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
_KEPT = ("partition",)
"""Fields of `data_file` that are written back as they were read."""


@dataclass(frozen=True)
class ParquetManifest:
    """A manifest's footer. `schema` has the names and ids of all records' fields as an Avro schema has them, and no
    other types; `header` is as an Avro file's."""

    path: str
    reader: ParquetReader
    schema: Any
    header: Mapping[str, str]

    @property
    def records(self) -> int:
        return int(self.reader.metadata.num_rows)

    def scan(self, ways: Mapping[str, tuple[str, ...]], texts: frozenset[str], further: Further | None = None) -> Scan:
        """Read the fields `ways` (name -> its way through nested records), as `scan_records` does for Avro. Those in
        `texts` must be texts or bytes, all others numbers; with `further`, a partition's may be either.

        Raises UnreadableMetadata.
        """
        further = further or Further()
        wanted = {*ways.values(), *further.pairs, *further.spans}
        table = self._read(sorted(".".join(way) for way in wanted))
        with _naming(self.path):
            columns = _Columns(table.num_rows)
            for name, way in ways.items():
                found = _stored(_at(table, way))
                is_number = pa.types.is_integer(found.type)
                if is_number == (name in texts) and way not in further.spans:
                    kind = "text" if name in texts else "a number"
                    raise unreadable(f"The Parquet file's schema has a {name} that is not {kind}", self.path)
                columns.add(name, found)
            for way, keys in further.pairs.items():
                for key, name in keys.items():
                    columns.add(name, _of_key(_at(table, way), key, self.path))
            for way, name in further.spans.items():
                columns.add(name, _encoded(_at(table, way)))
            return columns.scan()

    def read_records(self) -> Iterator[dict[str, Any]]:
        """Yield the records as `avro.scan.read_records` does. Raises UnreadableMetadata."""
        table = self._read()
        with _naming(self.path):
            rows = pa.table([_stored(each.combine_chunks()) for each in table.columns], table.column_names).to_pylist()
        maps = [each.name for each in self._file_type() if pa.types.is_map(each.type)]
        for row in rows:
            file = row[self._data_file]
            if file is None:
                raise unreadable("A manifest entry has no data_file", self.path)
            for name in maps:
                file[name] = file[name] and [{"key": key, "value": value} for key, value in file[name]]
            yield row

    def with_records(self, records: Iterable[dict[str, Any]], header: Mapping[str, str] = {}) -> bytes:
        """Return the file with these records instead of its own, as many and in the same order. Partitions stay;
        `header` replaces values of the header."""
        table, rows = self._read(), list(records)
        with _naming(self.path):
            columns = []
            for column in table.schema:
                if column.name != self._data_file:
                    columns.append(pa.array([row[column.name] for row in rows], column.type))
                    continue
                old = table.column(column.name).combine_chunks()
                fields = list(self._file_type())
                values = [
                    old.field(each.name)
                    if each.name in _KEPT
                    else pa.array([_unpaired(row[column.name][each.name], each.type) for row in rows], each.type)
                    for each in fields
                ]
                columns.append(pa.StructArray.from_arrays(values, fields=fields))
            schema, out = self.reader.schema, io.BytesIO()
            codec = str(self.reader.metadata.row_group(0).column(0).compression) if self.records else "GZIP"
            codec = {"UNCOMPRESSED": "NONE"}.get(codec, codec)
            with pq.ParquetWriter(
                out, schema, compression=codec, store_schema=False, store_decimal_as_integer=True
            ) as writer:
                writer.add_key_value_metadata({**self.header, **header})
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            return out.getvalue()

    @property
    def _data_file(self) -> str:
        return str(next(each["name"] for each in self.schema["fields"] if isinstance(each["type"], dict)))

    def _file_type(self) -> pa.StructType:
        return self.reader.schema.field(self._data_file).type

    def _read(self, columns: list[str] | None = None) -> pa.Table:
        with _naming(self.path):
            groups = list(self.reader.groups(columns))
            if groups:
                return pa.concat_tables(groups).combine_chunks()
            return self.reader.schema.empty_table()


def open_parquet(data: bytes, path: str, limits: ReadLimits) -> ParquetManifest:
    """Parse the footer of `data`, the whole file at `path`. Raises UnreadableMetadata; EncryptedTable."""
    if data[-4:] == _ENCRYPTED:
        raise encrypted("The manifest", path)
    with _naming(path):
        reader = ParquetReader(data, path, limits)
        schema = _as_avro(reader.schema)
    metadata = reader.schema.metadata or {}
    header = {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in metadata.items()}
    return ParquetManifest(path, reader, schema, header)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except (UnreadableMetadata, TooLarge):
        raise
    except (StorageError, pa.ArrowException, LookupError, TypeError, ValueError, OverflowError) as error:
        raise unreadable(f"The Parquet manifest is cut or broken: {error!s:.300}", path) from error


def _as_avro(fields: Iterable[pa.Field]) -> Any:
    named = []
    for field in fields:
        number, kind = (field.metadata or {}).get(b"PARQUET:field_id"), field.type
        inner = _as_avro(kind.field(at) for at in range(kind.num_fields)) if pa.types.is_struct(kind) else "bytes"
        named.append({"name": field.name, "type": inner} | ({} if number is None else {"field-id": int(number)}))
    return {"type": "record", "name": "manifest", "fields": named}


def _at(table: pa.Table, way: tuple[str, ...]) -> pa.Array:
    column = table.column(way[0]).combine_chunks()
    return pc.struct_field(column, way[1:]) if way[1:] else column


def _stored(values: pa.Array) -> pa.Array:
    """Return values as Avro stores them."""
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return values.storage
    if pa.types.is_date32(kind):
        return values.cast(pa.int32())
    if pa.types.is_time64(kind) or (pa.types.is_timestamp(kind) and kind.unit in ("us", "ns")):
        return values.cast(pa.int64())
    if pa.types.is_decimal128(kind):
        size = next(size for size in range(1, 17) if 2 ** (8 * size - 1) > 10**kind.precision)
        little = np.frombuffer(values.buffers()[1], np.uint8).reshape(-1, 16)[values.offset :][: len(values)]
        packed = np.ascontiguousarray(little[:, ::-1][:, 16 - size :])
        mask = pc.is_valid(values).cast(pa.uint8()).to_numpy(zero_copy_only=False)
        buffers = [pa.py_buffer(np.packbits(mask, bitorder="little")), pa.py_buffer(packed)]
        return pa.Array.from_buffers(pa.binary(size), len(values), buffers)
    if pa.types.is_struct(kind):
        names = [kind.field(at).name for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays([_stored(each) for each in values.flatten()], names, mask=pc.is_null(values))
    if pa.types.is_timestamp(kind) or pa.types.is_decimal(kind) or pa.types.is_time(kind) or pa.types.is_date(kind):
        raise ValueError(f"Iceberg does not write {kind}")
    return values


def _of_key(pairs: pa.Array, key: int, path: str) -> pa.Array:
    """Return the value that each row's map has for `key`."""
    if not pa.types.is_map(pairs.type):
        raise unreadable("The Parquet file's schema has statistics that are not maps", path)
    offsets = pairs.offsets.to_numpy()
    rows = np.repeat(np.arange(len(pairs)), np.diff(offsets))
    places = np.full(len(pairs), -1, np.int64)
    at = np.flatnonzero(pairs.keys.to_numpy()[offsets[0] : offsets[-1]] == key)
    places[rows[at]] = at + offsets[0]
    return pairs.items.take(pa.array(places, mask=places < 0))


def _encoded(values: pa.Array) -> pa.Array:
    """Return lists of numbers in Avro's encoding. Of other values, only whether there is one."""
    if not pa.types.is_list(values.type):
        return pa.array(np.full(len(values), b""), pa.binary(), mask=pc.is_null(values).to_numpy(zero_copy_only=False))
    every = ([len(each), *each, 0] if each else each for each in values.to_pylist())
    return pa.array([None if each is None else b"".join(map(long_bytes, each or [0])) for each in every], pa.binary())


def _unpaired(value: Any, kind: pa.DataType) -> Any:
    return [(each["key"], each["value"]) for each in value] if value is not None and pa.types.is_map(kind) else value


class _Columns:
    """Arrow's columns as those of a scan."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._longs: dict[str, NDArray[np.int64]] = {}
        self._starts: dict[str, NDArray[np.int64]] = {}
        self._sizes: dict[str, NDArray[np.int64]] = {}
        self._data: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)]
        self._end = 0

    def add(self, name: str, values: pa.Array) -> None:
        if pa.types.is_integer(values.type):
            self._longs[name] = pc.fill_null(values.cast(pa.int64()), UNSET).to_numpy()
            return
        if pa.types.is_floating(values.type) or pa.types.is_boolean(values.type):
            whole = pc.fill_null(values, values.type.to_pandas_dtype()(0)).to_numpy(zero_copy_only=False)
            fixed = pa.py_buffer(np.ascontiguousarray(whole))
            size = whole.dtype.itemsize
            values = pa.Array.from_buffers(pa.binary(size), len(values), [values.is_valid().buffers()[1], fixed])
        found = values.cast(pa.large_binary())
        offsets = np.frombuffer(found.buffers()[1], np.int64)[found.offset :][: self._rows + 1]
        data = found.buffers()[2]
        valid = pc.is_valid(found).to_numpy(zero_copy_only=False)
        self._starts[name] = offsets[:-1] + self._end
        self._sizes[name] = np.where(valid, np.diff(offsets), -1)
        if data is not None:
            self._data.append(np.frombuffer(data, np.uint8))
            self._end += len(self._data[-1])

    def scan(self) -> Scan:
        return Scan(self._rows, np.concatenate(self._data), self._longs, self._starts, self._sizes)
