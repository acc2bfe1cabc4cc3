"""Files that hold paths, as bytes to bytes: manifest lists, manifests, position-delete files, deletion vectors. Pure:
no store, no Spark, only a path mapping. Source: format/spec.md ("Manifest Lists", "Manifests", "Delete Formats") and
format/puffin-spec.md.

Where paths stand, in format versions 1 to 3:

- manifest list: `manifest_path` (500), beside it `manifest_length` (501);
- manifest: `file_path` (100) and `referenced_data_file` (143); beside them `file_size_in_bytes` (104), and for
  rewritten delete files `split_offsets` (132), `column_sizes` (108) and the bounds (125, 128) of the column
  `file_path`;
- position-delete file: the column `file_path` (field id 2147483546), in rows, dictionaries and statistics;
- manifest list and manifest: the partition spec's id, as field 502 and in the header, and the sort order's (140), where
  the other tier has another one for it (`evolution`);
- deletion vector: the blob property `referenced-data-file` in the Puffin footer. Blobs stand before the footer, so
  `content_offset` and `content_size_in_bytes` stay true; only the file's size changes.

Nothing else is touched: a value that merely looks like a path stays. Every header, unknown field, inherited null
(sequence numbers, snapshot ids, first row ids, which the list entry carries) and the order of entries, which row
lineage counts by, is kept.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.cold_tier.evolution import SAME_IDS, Ids
from artemis_lifecycle.errors import HandoffFailed, LifecycleError, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.containers import Container, encoded_long, open_container
from artemis_lifecycle.metadata.scan import require_bounded
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, Allowance, ReadLimits, within_memory
from artemis_lifecycle.storage.columnar import ParquetReader
from artemis_lifecycle.storage.orc import read_orc

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Mapped = Callable[[str], str]
"""The cold path of a live path."""

DELETE_FILE_PATH = 2147483546
DELETE_POS = 2147483545
"""Field ids that the spec reserves for the columns of position-delete files."""

_BLOCK = 64 * 1024
_SPEC_ID = b"partition-spec-id"


@dataclass(frozen=True)
class RewrittenDelete:
    """What manifests must say of a rewritten delete file. Paths are the least and greatest that its rows name.

    `split_offsets` None means that the manifest's own, if any, no longer apply; `column_sizes` are bytes by field id.
    """

    size_in_bytes: int
    lower_path: str | None = None
    upper_path: str | None = None
    split_offsets: tuple[int, ...] | None = None
    column_sizes: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(
            {
                "size": self.size_in_bytes,
                "lower": self.lower_path,
                "upper": self.upper_path,
                "splits": self.split_offsets,
                "columns": [[key, size] for key, size in sorted(self.column_sizes.items())],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> RewrittenDelete:
        values = json.loads(text)
        splits = values["splits"]
        return cls(
            values["size"],
            values["lower"],
            values["upper"],
            None if splits is None else tuple(splits),
            dict(values["columns"]),
        )


# --- manifest lists and manifests -----------------------------------------------------------------------------------


def rewrite_manifest_list(
    data: bytes,
    path: str,
    mapped: Mapped,
    lengths: Mapping[str, int],
    ids: Ids = SAME_IDS,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> bytes:
    """The manifest list at `path` with its manifests' cold paths; `lengths` are those of the cold manifests, by cold
    path. `ids` say which partition specs have another id there.

    Raises HandoffFailed for a manifest without a length, UnreadableMetadata for bytes that are no manifest list.
    """
    with _decoding(path):
        container = open_container(data, path, limits)
        names = _Names(container.schema, path)
        path_name, length_name = names.of(500, "manifest_path"), names.of(501, "manifest_length")
        spec_name = names.find(502, "partition_spec_id")

        def change(record: dict[str, Any]) -> None:
            cold = mapped(record[path_name])
            if cold not in lengths:
                raise _not_copied("A manifest", record[path_name])
            record[path_name], record[length_name] = cold, lengths[cold]
            if spec_name is not None:
                record[spec_name] = ids.specs.get(record[spec_name], record[spec_name])

        return _rewrite_avro(data, path, container, change)


def rewrite_manifest(
    data: bytes,
    path: str,
    mapped: Mapped,
    deletes: Mapping[str, RewrittenDelete],
    ids: Ids = SAME_IDS,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> bytes:
    """The manifest at `path` with its files' cold paths; `deletes` are the rewritten delete files, by cold path. `ids`
    say which partition specs and sort orders have another id there.

    Raises HandoffFailed for a live delete file that `deletes` lacks, UnreadableMetadata for bytes that are no manifest.
    """
    with _decoding(path):
        container = open_container(data, path, limits)
        entry = _Names(container.schema, path)
        status_name, file_name = entry.of(0, "status"), entry.of(2, "data_file")
        files = _Names(entry.type_of(file_name), path)
        keys = _FileKeys.of(files)

        def change(record: dict[str, Any]) -> None:
            file = record[file_name]
            _map_entry(file, keys, mapped, deletes, live=record[status_name] != 2)
            if keys.order is not None and file[keys.order] is not None:
                file[keys.order] = ids.orders.get(file[keys.order], file[keys.order])

        return _with_spec(_rewrite_avro(data, path, container, change), ids)


def _with_spec(data: bytes, ids: Ids) -> bytes:
    """The manifest, saying in its header which spec it is of by the other tier's id."""
    header = _header(data)
    entries = _header_entries(header)
    try:
        number = int(entries.get(_SPEC_ID, b""))
    except ValueError:
        return data  # Then only the list says it.
    if ids.specs.get(number, number) == number:
        return data
    entries[_SPEC_ID] = str(ids.specs[number]).encode()
    packed = b"".join(_bytes(key) + _bytes(value) for key, value in entries.items())
    return header[:4] + encoded_long(len(entries)) + packed + encoded_long(0) + header[-16:] + data[len(header) :]


@dataclass(frozen=True)
class _FileKeys:
    """The names that a manifest gives to the fields of `data_file`; None for one that it does not have."""

    path: str
    size: str
    content: str | None
    format: str
    referenced: str | None
    splits: str | None
    columns: str | None
    lower: str | None
    upper: str | None
    order: str | None

    @classmethod
    def of(cls, names: _Names) -> _FileKeys:
        return cls(
            path=names.of(100, "file_path"),
            size=names.of(104, "file_size_in_bytes"),
            content=names.find(134, "content"),
            format=names.of(101, "file_format"),
            referenced=names.find(143, "referenced_data_file"),
            splits=names.find(132, "split_offsets"),
            columns=names.find(108, "column_sizes"),
            lower=names.find(125, "lower_bounds"),
            upper=names.find(128, "upper_bounds"),
            order=names.find(140, "sort_order_id"),
        )


def _map_entry(
    file: dict[str, Any], keys: _FileKeys, mapped: Mapped, deletes: Mapping[str, RewrittenDelete], *, live: bool
) -> None:
    live_path = file[keys.path]
    file[keys.path] = mapped(live_path)
    if keys.referenced is not None and file[keys.referenced] is not None:
        file[keys.referenced] = mapped(file[keys.referenced])
    if keys.content is None or file[keys.content] != 1:
        return
    rewritten = deletes.get(file[keys.path])
    if rewritten is None:
        if live:
            raise _not_copied("A delete file", live_path)
        # An entry that says "deleted" names a file that nobody reads: its bounds only must not name a live path.
        _map_bounds(file, keys, *_single_path(file, keys, mapped))
        return
    file[keys.size] = rewritten.size_in_bytes
    if str(file[keys.format]).lower() == "puffin":
        referenced = file[keys.referenced] if keys.referenced is not None else None
        _map_bounds(file, keys, referenced, referenced)
        return
    if keys.splits is not None and file[keys.splits] is not None:
        file[keys.splits] = None if rewritten.split_offsets is None else list(rewritten.split_offsets)
    if keys.columns is not None and file[keys.columns] is not None:
        for pair in file[keys.columns]:
            pair["value"] = rewritten.column_sizes.get(pair["key"], pair["value"])
    _map_bounds(file, keys, rewritten.lower_path, rewritten.upper_path)


def _map_bounds(file: dict[str, Any], keys: _FileKeys, lower: str | None, upper: str | None) -> None:
    """Bounds of the column `file_path` where there are any; both go where the truth is not known."""
    for name, bound in ((keys.lower, lower), (keys.upper, upper)):
        if name is None or file[name] is None:
            continue
        pairs = []
        for pair in file[name]:
            if pair["key"] != DELETE_FILE_PATH:
                pairs.append(pair)
            elif lower is not None and upper is not None and bound is not None:
                pairs.append({**pair, "value": bound.encode()})
        file[name] = pairs


def _single_path(file: dict[str, Any], keys: _FileKeys, mapped: Mapped) -> tuple[str | None, str | None]:
    found = []
    for name in (keys.lower, keys.upper):
        pairs = (file[name] or []) if name is not None else []
        found.append(next((bytes(pair["value"]) for pair in pairs if pair["key"] == DELETE_FILE_PATH), None))
    if found[0] is None or found[0] != found[1]:
        return None, None
    try:
        path = mapped(found[0].decode())
    except (UnicodeDecodeError, HandoffFailed):
        return None, None
    return path, path


# --- position-delete files ------------------------------------------------------------------------------------------


def rewrite_position_deletes(
    data: bytes, path: str, file_format: str, mapped: Mapped, limits: ReadLimits = DEFAULT_LIMITS
) -> tuple[bytes, RewrittenDelete]:
    """The position-delete file at `path` with cold paths in its rows, sorted as the spec asks, all else as it was.

    Raises HandoffFailed for another format than Parquet, ORC and Avro, and for a file that cannot be read.
    """
    rewrite = {"parquet": _rewrite_parquet_deletes, "orc": _rewrite_orc_deletes, "avro": _rewrite_avro_deletes}.get(
        file_format.lower()
    )
    if rewrite is not None:
        return rewrite(data, path, mapped, limits)
    raise HandoffFailed(
        f"Position-delete files in {file_format.upper()} cannot be rewritten",
        path=path,
        untouched="the table and all its files",
        do="rewrite the position deletes as Parquet (write.delete.format.default, rewrite_position_delete_files), "
        "let the snapshots before that expire without a cold tier; or set cold_tier.enabled to false for this table",
    )


def _rewrite_parquet_deletes(
    data: bytes, path: str, mapped: Mapped, limits: ReadLimits
) -> tuple[bytes, RewrittenDelete]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = ParquetReader(data, path, limits)
        groups = list(source.groups())
    except (StorageError, pa.ArrowException, OSError, MemoryError) as error:
        raise _unreadable_deletes(path, error) from error
    schema = source.schema
    index = _path_column(schema, path)
    _require_text(schema, index, path)
    mapped_groups = []
    paths: dict[str, str] = {}
    for group in groups:
        encoded = group.column(index).combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        values = encoded.dictionary.to_pylist()
        for value in values:
            paths.setdefault(value, mapped(value))
        replaced = pa.array([paths[value] for value in values], schema.field(index).type).take(encoded.indices)
        mapped_groups.append(group.set_column(index, schema.field(index), replaced))
    ordered = [cold for _, cold in sorted(paths.items())]
    if ordered != sorted(set(ordered)):
        mapped_groups = _sorted_again(mapped_groups, index)
    out = io.BytesIO()
    with pq.ParquetWriter(
        out, schema, compression=_codec(source.metadata), store_schema=False, write_statistics=True, use_dictionary=True
    ) as writer:
        for group in mapped_groups:
            writer.write_table(group.cast(schema), row_group_size=max(group.num_rows, 1))
    rewritten = out.getvalue()
    written = pq.ParquetFile(io.BytesIO(rewritten)).metadata
    if written.num_rows != source.metadata.num_rows:
        raise _unreadable_deletes(path, ValueError(f"{source.metadata.num_rows} rows became {written.num_rows}"))
    return rewritten, RewrittenDelete(
        size_in_bytes=len(rewritten),
        lower_path=min(ordered, default=None),
        upper_path=max(ordered, default=None),
        split_offsets=tuple(_start(written.row_group(group)) for group in range(written.num_row_groups)),
        column_sizes=_column_sizes(written, schema),
    )


def _require_text(schema: pa.Schema, index: int, path: str) -> None:
    import pyarrow.types as kind

    found = schema.field(index).type
    if not kind.is_string(found) and not kind.is_large_string(found):
        raise _unreadable_deletes(path, ValueError(f"its paths are {found}"))


def _path_column(schema: pa.Schema, path: str) -> int:
    index = _by_field_id(schema).get(DELETE_FILE_PATH, int(schema.get_field_index("file_path")))
    if index < 0:
        raise _unreadable_deletes(path, ValueError("it has no column file_path"))
    return index


def _by_field_id(schema: pa.Schema) -> dict[int, int]:
    ids = {}
    for index, column in enumerate(schema):
        field_id = (column.metadata or {}).get(b"PARQUET:field_id")
        if field_id is not None:
            ids[int(field_id)] = index
    return ids


def _codec(source: pq.FileMetaData) -> str:
    codec = source.row_group(0).column(0).compression if source.num_row_groups else "ZSTD"
    return {"UNCOMPRESSED": "NONE", "LZO": "ZSTD"}.get(codec, codec)


def _sorted_again(groups: Sequence[pa.Table], index: int) -> list[pa.Table]:
    """The same rows by path and position, in groups of the same sizes."""
    import pyarrow as pa

    names = groups[0].schema.names
    pos = names.index("pos") if "pos" in names else 1
    table = pa.concat_tables(groups).sort_by([(names[index], "ascending"), (names[pos], "ascending")])
    result, start = [], 0
    for group in groups:
        result.append(table.slice(start, group.num_rows))
        start += group.num_rows
    return result


def _start(group: Any) -> int:
    first = group.column(0)
    offsets = [offset for offset in (first.dictionary_page_offset, first.data_page_offset) if offset]
    return int(min(offsets))


def _column_sizes(written: Any, schema: pa.Schema) -> dict[int, int]:
    by_name = {schema.names[index]: field_id for field_id, index in _by_field_id(schema).items()}
    sizes: dict[int, int] = {}
    for number in range(written.num_row_groups):
        group = written.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            field_id = by_name.get(column.path_in_schema)
            if field_id in (DELETE_FILE_PATH, DELETE_POS):
                sizes[field_id] = sizes.get(field_id, 0) + column.total_compressed_size
    return sizes


def _rewrite_orc_deletes(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
    """As for Parquet. Iceberg's column ids are attributes of ORC's types, which Arrow shows as metadata of its fields
    and writes again. The file's own user metadata (`delete-type` and the like), which no reader needs, is lost."""
    import pyarrow as pa
    from pyarrow import orc

    try:
        source = read_orc(data, path, limits)
    except StorageError as error:
        raise _unreadable_deletes(path, error) from error
    table, schema = source.table, source.table.schema
    rows = table.num_rows
    ids = {(column.metadata or {}).get(b"iceberg.id"): index for index, column in enumerate(schema)}
    index = ids.get(str(DELETE_FILE_PATH).encode(), schema.get_field_index("file_path"))
    pos = ids.get(str(DELETE_POS).encode(), schema.get_field_index("pos"))
    if min(index, pos) < 0:
        raise _unreadable_deletes(path, ValueError("it has no columns file_path and pos"))
    _require_text(schema, index, path)
    values = table.column(index).to_pylist()
    paths = {value: mapped(value) for value in dict.fromkeys(values)}
    table = table.set_column(index, schema.field(index), pa.array([paths[value] for value in values], pa.string()))
    ordered = [cold for _, cold in sorted(paths.items())]
    if ordered != sorted(set(ordered)):
        table = table.sort_by([(schema.names[index], "ascending"), (schema.names[pos], "ascending")])
    out = io.BytesIO()
    orc.write_table(table, out, compression=source.compression)
    rewritten = out.getvalue()
    written = orc.ORCFile(io.BytesIO(rewritten))
    if written.nrows != rows or not pa.schema(list(written.schema)).equals(schema, check_metadata=True):
        raise _unreadable_deletes(path, ValueError("it reads back with other rows or other columns"))
    return rewritten, RewrittenDelete(len(rewritten), min(ordered, default=None), max(ordered, default=None))


def _rewrite_avro_deletes(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
    try:
        with _decoding(path):
            return _avro_deletes(data, path, mapped, limits)
    except UnreadableMetadata as error:
        raise _unreadable_deletes(path, error) from error


def _avro_deletes(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
    container = open_container(data, path, limits)
    names = _Names(container.schema, path)
    path_name, pos_name = names.of(DELETE_FILE_PATH, "file_path"), names.of(DELETE_POS, "pos")
    records = list(_records(container, path))
    for record in records:
        record[path_name] = mapped(record[path_name])
    order = [(record[path_name].encode(), record[pos_name]) for record in records]
    if order != sorted(order):
        records.sort(key=lambda record: (record[path_name].encode(), record[pos_name]))
    rewritten = _write_avro(data, path, container, records)
    paths = sorted({record[path_name] for record in records})
    return rewritten, RewrittenDelete(len(rewritten), min(paths, default=None), max(paths, default=None))


def _unreadable_deletes(path: str, error: Exception) -> HandoffFailed:
    return HandoffFailed(
        f"A position-delete file cannot be read whole: {error}",
        path=path,
        untouched="the table and all its files",
        do="restore the file, then run the handoff again",
    )


# --- deletion vectors -----------------------------------------------------------------------------------------------

_PUFFIN = b"PFA1"
_FOOTER_COMPRESSED = 0x01


def rewrite_deletion_vectors(
    data: bytes, path: str, mapped: Mapped, limits: ReadLimits = DEFAULT_LIMITS
) -> tuple[bytes, RewrittenDelete]:
    """The Puffin file at `path` with the cold paths of the data files that its blobs belong to; the blobs as they are.

    Raises HandoffFailed for a file whose frame is broken.
    """
    try:
        start, footer = _puffin_footer(data, limits.allowance(path, len(data)))
        for blob in footer["blobs"]:
            if blob["offset"] < 4 or blob["length"] < 0 or blob["offset"] + blob["length"] > start:
                raise ValueError("a blob lies outside the file's body")
            properties = blob.get("properties", {})
            if "referenced-data-file" in properties:
                properties["referenced-data-file"] = mapped(properties["referenced-data-file"])
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise HandoffFailed(
            f"A file of deletion vectors cannot be read whole: {error!r:.200}",
            path=path,
            untouched="the table and all its files",
            do="restore the file, then run the handoff again",
        ) from error
    payload = json.dumps(footer, separators=(",", ":"), ensure_ascii=False).encode()
    tail = _PUFFIN + payload + len(payload).to_bytes(4, "little") + bytes(4) + _PUFFIN
    rewritten = data[:start] + tail
    return rewritten, RewrittenDelete(len(rewritten))


def _puffin_footer(data: bytes, allowance: Allowance) -> tuple[int, dict[str, Any]]:
    """Where the footer begins, and its payload."""
    if len(data) < 20 or data[:4] != _PUFFIN or data[-4:] != _PUFFIN:
        raise ValueError("it does not begin and end as a Puffin file")
    flags = data[-8:-4]
    size = int.from_bytes(data[-12:-8], "little")
    start = len(data) - 12 - size - 4
    if start < 4 or data[start : start + 4] != _PUFFIN:
        raise ValueError("its footer does not begin where its end says")
    payload = data[start + 4 : len(data) - 12]
    if flags[0] & ~_FOOTER_COMPRESSED or any(flags[1:]):
        raise ValueError(f"it has flags that the Puffin specification does not name ({flags.hex()})")
    if flags[0] & _FOOTER_COMPRESSED:
        payload = allowance.undo("lz4", payload)
    footer = json.loads(payload)
    if not isinstance(footer, dict):
        raise ValueError("its footer is no JSON object")
    return start, footer


# --- Avro files, header and all -------------------------------------------------------------------------------------


def _rewrite_avro(data: bytes, path: str, container: Container, change: Callable[[dict[str, Any]], None]) -> bytes:
    def changed() -> Iterator[dict[str, Any]]:
        for record in _records(container, path):
            change(record)
            yield record

    return _write_avro(data, path, container, changed())


@contextmanager
def _decoding(path: str) -> Iterator[None]:
    """Raise UnreadableMetadata where the file's schema or a record is not what a writer makes."""
    from fastavro.schema import SchemaParseException

    broken = (ValueError, EOFError, LookupError, TypeError, AttributeError, OverflowError, SchemaParseException)
    with within_memory(path):
        try:
            yield
        except LifecycleError:
            raise
        except broken as error:
            raise _unreadable(f"its records cannot be decoded: {error!r:.200}", path) from error


def _records(container: Container, path: str) -> Iterator[dict[str, Any]]:
    """Records with their stored values: no logical type is applied, so that every value is written back as it was."""
    import fastavro

    stream = io.BytesIO(container.payload)
    structure = _structure(container.schema)
    require_bounded(structure, container.payload, container.records, path)
    parsed = fastavro.parse_schema(structure)
    for _ in range(container.records):
        record = fastavro.schemaless_reader(stream, parsed, None)
        if not isinstance(record, dict):
            raise _unreadable("it holds no records", path)
        yield record
    if stream.tell() != len(container.payload):
        raise _unreadable("its blocks hold more than their records", path)


def _write_avro(data: bytes, path: str, container: Container, records: Iterable[dict[str, Any]]) -> bytes:
    """An Avro file with the header, codec and sync marker of `data` and these records."""
    import fastavro

    header = _header(data)
    sync = header[-16:]
    parsed = fastavro.parse_schema(_structure(container.schema))
    out = [header]
    block, count = io.BytesIO(), 0

    def close() -> None:
        nonlocal block, count
        if count:
            packed = _compress(container.codec, block.getvalue(), path)
            out.extend((encoded_long(count), encoded_long(len(packed)), packed, sync))
            block, count = io.BytesIO(), 0

    for record in records:
        fastavro.schemaless_writer(block, parsed, record)
        count += 1
        if block.tell() >= _BLOCK:
            close()
    close()
    return b"".join(out)


def _bytes(value: bytes) -> bytes:
    return encoded_long(len(value)) + value


def _header_entries(header: bytes) -> dict[bytes, bytes]:
    """The file's own key-value metadata, in its order."""
    found: dict[bytes, bytes] = {}
    position = 4
    while True:
        count, position = _read_long(header, position)
        if count == 0:
            return found
        if count < 0:
            _, position = _read_long(header, position)
            count = -count
        for _ in range(count):
            size, position = _read_long(header, position)
            key, position = header[position : position + size], position + size
            size, position = _read_long(header, position)
            found[key], position = header[position : position + size], position + size


def _header(data: bytes) -> bytes:
    """Everything before the first block, the sync marker last. `open_container` has been through it already."""
    position = 4
    while True:
        count, position = _read_long(data, position)
        if count == 0:
            return data[: position + 16]
        if count < 0:
            _, position = _read_long(data, position)
            count = -count
        for _ in range(2 * count):
            size, position = _read_long(data, position)
            position += size


def _compress(codec: str, block: bytes, path: str) -> bytes:
    if codec == "null":
        return block
    if codec == "deflate":
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        return deflate.compress(block) + deflate.flush()
    import pyarrow as pa

    if codec == "snappy":
        return bytes(pa.compress(block, "snappy", asbytes=True)) + zlib.crc32(block).to_bytes(4, "big")
    if codec == "zstandard":
        return bytes(pa.compress(block, "zstd", asbytes=True))
    raise _unreadable(f"its codec {codec!r} is none that Iceberg writes", path)


def _read_long(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


_COMPLEX = {"array": "items", "map": "values"}


def _structure(schema: Any) -> Any:
    """`schema` with what lays out its bytes alone: no logical types, ids, docs or defaults."""
    if isinstance(schema, list):
        return [_structure(option) for option in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _structure(kind)
    named = {key: schema[key] for key in ("name", "namespace") if key in schema}
    if kind in ("record", "error"):
        fields = [{"name": item["name"], "type": _structure(item["type"])} for item in schema["fields"]]
        return {"type": "record", **named, "fields": fields}
    if kind in _COMPLEX:
        return {"type": kind, _COMPLEX[kind]: _structure(schema[_COMPLEX[kind]])}
    if kind == "fixed":
        return {"type": kind, **named, "size": schema["size"]}
    if kind == "enum":
        return {"type": kind, **named, "symbols": schema["symbols"]}
    return kind


class _Names:
    """What a record of an Avro schema calls its fields: by `field-id`, and by name where a writer left ids out."""

    def __init__(self, schema: Any, path: str) -> None:
        self._path = path
        record = _record_of(schema)
        if record is None:
            raise _unreadable("its schema is no record", path)
        self._fields = record["fields"]
        self._by_id = {item["field-id"]: item["name"] for item in self._fields if "field-id" in item}
        self._by_name = {item["name"] for item in self._fields if "field-id" not in item}

    def find(self, field_id: int, name: str) -> str | None:
        return self._by_id.get(field_id, name if name in self._by_name else None)

    def of(self, field_id: int, name: str) -> str:
        found = self.find(field_id, name)
        if found is None:
            raise _unreadable(f"its schema lacks {name}", self._path)
        return found

    def type_of(self, name: str) -> Any:
        return next(item["type"] for item in self._fields if item["name"] == name)


def _record_of(schema: Any) -> Any:
    if isinstance(schema, list):
        return next(filter(None, map(_record_of, schema)), None)
    if isinstance(schema, dict):
        if schema.get("type") == "record":
            return schema
        if isinstance(schema.get("type"), dict | list):
            return _record_of(schema["type"])
    return None


def _unreadable(what: str, path: str) -> UnreadableMetadata:
    return UnreadableMetadata(
        f"The Avro file is not what it should be: {what}",
        path=path,
        untouched="the table and all its files",
        do="restore the file, then run the handoff again",
    )


def _not_copied(what: str, path: str) -> HandoffFailed:
    return HandoffFailed(
        f"{what} that is to be named in the cold tier was not copied",
        path=path,
        untouched="the table and all its files",
        do="run the handoff again, which copies what is missing",
    )
