"""Rewriting position-delete files in any supported format."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from artemis_lifecycle.cold_tier.evolution import SAME_IDS, Ids
from artemis_lifecycle.errors import HandoffFailed, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.avro.container import field_names, open_container
from artemis_lifecycle.metadata.avro.scan import decoding, read_records, with_records
from artemis_lifecycle.metadata.manifest_lists import list_names
from artemis_lifecycle.metadata.manifests import entry_names, file_names, opened, records_of
from artemis_lifecycle.metadata.parquet_manifests import ParquetManifest
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, Allowance, ReadLimits, bounded_json
from artemis_lifecycle.storage.columnar import ParquetReader
from artemis_lifecycle.storage.orc import read_orc

# --- deletes ----------------------------------------------------------------------------------------------------------
# What all formats of delete files share: the manifest's description of a rewritten file, field ids, errors.

Mapped = Callable[[str], str]
"""Returns the cold path of a live path."""

Used = Callable[[str, int | None, bool], str]
"""Returns the cold path of a live path in a manifest entry, or in an entry of a list, that this snapshot added (None:
inherited); `True` for the path of a file of which the entry deletes rows. A path may be used for several files."""

DELETE_FILE_PATH = 2147483546
DELETE_POS = 2147483545
"""Field ids that the spec reserves for the columns of position-delete files."""


@dataclass(frozen=True)
class RewrittenDelete:
    """The manifest's description of a rewritten delete file. Paths are the least and greatest in its rows.

    `split_offsets` None means that the manifest's offsets, if any, are no longer valid. `column_sizes` are bytes by
    field id.
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


def unreadable_deletes(path: str, error: Exception) -> HandoffFailed:
    return HandoffFailed(
        f"A position-delete file cannot be read completely: {error}",
        path=path,
        untouched="the table and all its files",
        hint="restore the file, then run the handoff again",
    )


def not_copied(what: str, path: str) -> HandoffFailed:
    return HandoffFailed(
        f"{what} that the cold tier must reference was not copied",
        path=path,
        untouched="the table and all its files",
        hint="run the handoff again, which copies what is missing",
    )


# --- deletion vectors -------------------------------------------------------------------------------------------------
# Rewriting files of deletion vectors (Puffin).

_PUFFIN = b"PFA1"
_FOOTER_COMPRESSED = 0x01


def rewrite_deletion_vectors(
    data: bytes, path: str, mapped: Mapped, limits: ReadLimits = DEFAULT_LIMITS
) -> tuple[bytes, RewrittenDelete]:
    """Map the paths of the data files to which the blobs of the Puffin file at `path` belong. The blobs do not change.

    Raises HandoffFailed for a file with a broken structure.
    """
    try:
        start, footer = _puffin_footer(data, limits.allowance(path, len(data)))
        for blob in footer["blobs"]:
            if blob["offset"] < 4 or blob["length"] < 0 or blob["offset"] + blob["length"] > start:
                raise ValueError("a blob is outside the file's body")
            properties = blob.get("properties", {})
            if "referenced-data-file" in properties:
                properties["referenced-data-file"] = mapped(properties["referenced-data-file"])
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise HandoffFailed(
            f"A file of deletion vectors cannot be read completely: {error!r:.200}",
            path=path,
            untouched="the table and all its files",
            hint="restore the file, then run the handoff again",
        ) from error
    payload = json.dumps(footer, separators=(",", ":"), ensure_ascii=False).encode()
    tail = _PUFFIN + payload + len(payload).to_bytes(4, "little") + bytes(4) + _PUFFIN
    rewritten = data[:start] + tail
    return rewritten, RewrittenDelete(len(rewritten))


def _puffin_footer(data: bytes, allowance: Allowance) -> tuple[int, dict[str, Any]]:
    """Return where the footer begins, and its payload."""
    if len(data) < 20 or data[:4] != _PUFFIN or data[-4:] != _PUFFIN:
        raise ValueError("it does not have the magic bytes of a Puffin file")
    flags = data[-8:-4]
    size = int.from_bytes(data[-12:-8], "little")
    start = len(data) - 12 - size - 4
    if start < 4 or data[start : start + 4] != _PUFFIN:
        raise ValueError("its footer has the wrong length")
    payload = data[start + 4 : len(data) - 12]
    if flags[0] & ~_FOOTER_COMPRESSED or any(flags[1:]):
        raise ValueError(f"it has flags that the Puffin specification does not define ({flags.hex()})")
    if flags[0] & _FOOTER_COMPRESSED:
        payload = allowance.undo("lz4", payload)
    footer = bounded_json(payload, allowance.path)
    if not isinstance(footer, dict):
        raise ValueError("its footer is not a JSON object")
    return start, footer


_COLUMNS = {DELETE_FILE_PATH: "file_path", DELETE_POS: "pos"}


def rewrite_position_deletes(
    data: bytes, path: str, file_format: str, mapped: Mapped, limits: ReadLimits = DEFAULT_LIMITS
) -> tuple[bytes, RewrittenDelete]:
    """Map the paths in the rows of the position-delete file at `path`, and sort the rows as the spec requires.

    Raises HandoffFailed for formats other than Parquet, ORC and Avro, and for a file that cannot be read.
    """
    rewrite = {"parquet": _rewrite_parquet, "orc": _rewrite_orc, "avro": _rewrite_avro}.get(file_format.lower())
    if rewrite is not None:
        return rewrite(data, path, mapped, limits)
    raise HandoffFailed(
        f"Position-delete files in {file_format.upper()} cannot be rewritten",
        path=path,
        untouched="the table and all its files",
        hint="rewrite the position deletes as Parquet (write.delete.format.default, rewrite_position_delete_files), "
        "let the snapshots before that expire without a cold tier; or set cold_tier.enabled to false for this table",
    )


# --- Parquet


def _rewrite_parquet(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
    try:
        source = ParquetReader(data, path, limits)
        groups = list(source.groups())
    except (StorageError, pa.ArrowException, OSError, MemoryError) as error:
        raise unreadable_deletes(path, error) from error
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
    if _order_changes(paths):
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
        raise unreadable_deletes(path, ValueError(f"{source.metadata.num_rows} rows became {written.num_rows}"))
    return rewritten, RewrittenDelete(
        size_in_bytes=len(rewritten),
        lower_path=min(paths.values(), default=None),
        upper_path=max(paths.values(), default=None),
        split_offsets=tuple(_start(written.row_group(group)) for group in range(written.num_row_groups)),
        column_sizes=_column_sizes(written, schema),
    )


def _path_column(schema: pa.Schema, path: str) -> int:
    index = _by_field_id(schema).get(DELETE_FILE_PATH, int(schema.get_field_index("file_path")))
    if index < 0:
        raise unreadable_deletes(path, ValueError("it has no column file_path"))
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
    """Return the same rows sorted by path and position, in groups of the same sizes."""
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
    return int(min(offset for offset in (first.dictionary_page_offset, first.data_page_offset) if offset))


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


# --- ORC


def _rewrite_orc(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
    """Like the Parquet version. Iceberg's column ids are attributes of ORC's types, which Arrow reads and writes as
    field metadata. The file's user metadata (such as `delete-type`), which no reader needs, is lost."""
    try:
        source = read_orc(data, path, limits)
    except StorageError as error:
        raise unreadable_deletes(path, error) from error
    table, schema = source.table, source.table.schema
    ids = {(column.metadata or {}).get(b"iceberg.id"): index for index, column in enumerate(schema)}
    index = ids.get(str(DELETE_FILE_PATH).encode(), schema.get_field_index("file_path"))
    pos = ids.get(str(DELETE_POS).encode(), schema.get_field_index("pos"))
    if min(index, pos) < 0:
        raise unreadable_deletes(path, ValueError("it has no columns file_path and pos"))
    _require_text(schema, index, path)
    values = table.column(index).to_pylist()
    paths = {value: mapped(value) for value in dict.fromkeys(values)}
    table = table.set_column(index, schema.field(index), pa.array([paths[value] for value in values], pa.string()))
    if _order_changes(paths):
        table = table.sort_by([(schema.names[index], "ascending"), (schema.names[pos], "ascending")])
    out = io.BytesIO()
    orc.write_table(table, out, compression=source.compression)
    rewritten = out.getvalue()
    written = orc.ORCFile(io.BytesIO(rewritten))
    if written.nrows != table.num_rows or not pa.schema(list(written.schema)).equals(schema, check_metadata=True):
        raise unreadable_deletes(path, ValueError("it reads back with different rows or columns"))
    lower, upper = min(paths.values(), default=None), max(paths.values(), default=None)
    return rewritten, RewrittenDelete(len(rewritten), lower, upper)


# --- Avro


def _rewrite_avro(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
    try:
        with decoding(path):
            return _avro_rows(data, path, mapped, limits)
    except UnreadableMetadata as error:
        raise unreadable_deletes(path, error) from error


def _avro_rows(data: bytes, path: str, mapped: Mapped, limits: ReadLimits) -> tuple[bytes, RewrittenDelete]:
    container = open_container(data, path, limits)
    names = field_names(container.schema, _COLUMNS, frozenset(_COLUMNS.values()), path)
    path_name, pos_name = names["file_path"], names["pos"]
    records = list(read_records(container, path))
    for record in records:
        record[path_name] = mapped(record[path_name])
    records.sort(key=lambda record: (record[path_name].encode(), record[pos_name]))
    rewritten = with_records(container, records, path)
    paths = {record[path_name] for record in records}
    return rewritten, RewrittenDelete(len(rewritten), min(paths, default=None), max(paths, default=None))


# --- shared


def _order_changes(paths: Mapping[str, str]) -> bool:
    """Return True if rows sorted by these live paths are not sorted by the cold ones."""
    ordered = [cold for _, cold in sorted(paths.items())]
    return ordered != sorted(set(ordered))


def _require_text(schema: pa.Schema, index: int, path: str) -> None:
    found = schema.field(index).type
    if not pa.types.is_string(found) and not pa.types.is_large_string(found):
        raise unreadable_deletes(path, ValueError(f"its paths are {found}"))


# --- manifests --------------------------------------------------------------------------------------------------------
# Rewriting manifests.

_SPEC_ID = "partition-spec-id"


def rewrite_manifest(
    data: bytes,
    path: str,
    mapped: Mapped,
    deletes: Mapping[str, RewrittenDelete],
    ids: Ids = SAME_IDS,
    limits: ReadLimits = DEFAULT_LIMITS,
    used: Used | None = None,
) -> bytes:
    """Map the paths of the manifest at `path`. `deletes` are the rewritten delete files, by cold path. `ids` has the
    partition specs and sort orders with a different id there. `used`, if given, replaces `mapped`.

    Raises HandoffFailed for a live delete file that `deletes` lacks, and UnreadableMetadata for bytes that are not a
    manifest.
    """
    with decoding(path):
        container = opened(data, path, limits)
        entry = entry_names(container.schema, path)
        names = file_names(container.schema, entry, path)
        status, data_file, order = entry["status"], entry["data_file"], names.get("sort_order_id")
        added = entry.get("snapshot_id", "")

        def changed(record: dict[str, Any]) -> dict[str, Any]:
            file, live, own, other = record[data_file], record[status] != 2, mapped, mapped
            if used is not None and live:  # Of an entry marked "deleted", the snapshot is the one that deleted it.
                added_by = record.get(added)
                own = lambda path: used(path, added_by, False)  # noqa: E731
                other = lambda path: used(path, added_by, True)  # noqa: E731
            _map_entry(file, names, own, other, deletes, live=live)
            if order is not None and file[order] is not None:
                file[order] = ids.orders.get(file[order], file[order])
            return record

        records, spec = map(changed, records_of(container, path)), _other_spec(container.header, ids)
        if isinstance(container, ParquetManifest):
            return container.with_records(records, {} if spec is None else {_SPEC_ID: spec})
        return with_records(container if spec is None else container.with_header(_SPEC_ID, spec), records, path)


def _other_spec(header: Mapping[str, str], ids: Ids) -> str | None:
    """Return the other tier's id of the partition spec in a manifest's header, unless it is the same."""
    try:
        number = int(header.get(_SPEC_ID, ""))
    except ValueError:
        return None  # Then only the list has it.
    other = ids.specs.get(number, number)
    return None if other == number else str(other)


def _map_entry(
    file: dict[str, Any],
    names: Mapping[str, str],
    mapped: Mapped,
    meant: Mapped,
    deletes: Mapping[str, RewrittenDelete],
    *,
    live: bool,
) -> None:
    path_name, referenced_name = names["file_path"], names.get("referenced_data_file")
    live_path = file[path_name]
    file[path_name] = mapped(live_path)
    if referenced_name is not None and file[referenced_name] is not None:
        file[referenced_name] = meant(file[referenced_name])
    if "content" not in names or file[names["content"]] != 1:
        return
    rewritten = deletes.get(file[path_name])
    if rewritten is None:
        if live:
            raise not_copied("A delete file", live_path)
        # No reader opens the file of an entry marked "deleted". Only its bounds must not contain a live path.
        _map_bounds(file, names, *_single_path(file, names, meant))
        return
    file[names["file_size_in_bytes"]] = rewritten.size_in_bytes
    if str(file[names["file_format"]]).lower() == "puffin":
        referenced = None if referenced_name is None else file[referenced_name]
        _map_bounds(file, names, referenced, referenced)
        return
    splits, columns = names.get("split_offsets"), names.get("column_sizes")
    if splits is not None and file[splits] is not None:
        file[splits] = None if rewritten.split_offsets is None else list(rewritten.split_offsets)
    if columns is not None and file[columns] is not None:
        for pair in file[columns]:
            pair["value"] = rewritten.column_sizes.get(pair["key"], pair["value"])
    _map_bounds(file, names, rewritten.lower_path, rewritten.upper_path)


def _map_bounds(file: dict[str, Any], names: Mapping[str, str], lower: str | None, upper: str | None) -> None:
    """Map the bounds of the column `file_path` if it has any. Remove both if the true ones are unknown."""
    for name, bound in ((names.get("lower_bounds"), lower), (names.get("upper_bounds"), upper)):
        if name is None or file[name] is None:
            continue
        pairs = []
        for pair in file[name]:
            if pair["key"] != DELETE_FILE_PATH:
                pairs.append(pair)
            elif lower is not None and upper is not None and bound is not None:
                pairs.append({**pair, "value": bound.encode()})
        file[name] = pairs


def _single_path(file: dict[str, Any], names: Mapping[str, str], mapped: Mapped) -> tuple[str | None, str | None]:
    found = []
    for name in (names.get("lower_bounds"), names.get("upper_bounds")):
        pairs = (file[name] or []) if name is not None else []
        found.append(next((bytes(pair["value"]) for pair in pairs if pair["key"] == DELETE_FILE_PATH), None))
    if found[0] is None or found[0] != found[1]:
        return None, None
    try:
        path = mapped(found[0].decode())
    except (UnicodeDecodeError, HandoffFailed):
        return None, None
    return path, path


# --- manifest lists ---------------------------------------------------------------------------------------------------
# Rewriting manifest lists.


def rewrite_manifest_list(
    data: bytes,
    path: str,
    mapped: Mapped,
    lengths: Mapping[str, int],
    ids: Ids = SAME_IDS,
    limits: ReadLimits = DEFAULT_LIMITS,
    used: Used | None = None,
) -> bytes:
    """Map the paths of the manifest list at `path`. `lengths` are those of the cold manifests, by cold path. `ids` has
    the partition specs with a different id there.

    Raises HandoffFailed for a manifest without a length, and UnreadableMetadata for bytes that are not a manifest list.
    """
    with decoding(path):
        container = open_container(data, path, limits)
        names = list_names(container.schema, path)
        path_name, length_name = names["manifest_path"], names["manifest_length"]
        spec_name, added_by = names.get("partition_spec_id"), names.get("added_snapshot_id", "")

        def changed(record: dict[str, Any]) -> dict[str, Any]:
            path = record[path_name]
            cold = mapped(path) if used is None else used(path, record.get(added_by), False)
            if cold not in lengths:
                raise not_copied("A manifest", record[path_name])
            record[path_name], record[length_name] = cold, lengths[cold]
            if spec_name is not None:
                record[spec_name] = ids.specs.get(record[spec_name], record[spec_name])
            return record

        return with_records(container, map(changed, read_records(container, path)), path)
