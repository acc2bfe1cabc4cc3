"""Manifest lists and manifests as different writers lay them out, encoded by hand. A `Writer` is a set of habits."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from artemis_lifecycle_tests.reachability.avro_by_hand import Chosen, Chunks, Schema, container, encode, long, text

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, DELETES = 0, 1


class Listed(NamedTuple):
    """One entry of a manifest list. Counts are (existing, added, deleted), as the entries' status numbers them."""

    path: str
    length: int
    spec: int
    content: int
    sequence_number: int
    snapshot_id: int
    counts: tuple[int, int, int]


class Entry(NamedTuple):
    """One entry of a manifest: `content` is 0 (data), 1 (position deletes, deletion vectors) or 2 (equality deletes).

    `number` varies what does not matter here: partition, metrics, split offsets.
    """

    status: int
    path: str
    content: int
    format: str
    size: int
    snapshot_id: int
    sequence_number: int
    number: int
    offset: int | None = None
    referenced: str | None = None


@dataclass(frozen=True)
class Writer:
    """How one engine writes the metadata of a table. The first value of each is the plainest."""

    codec: str = "null"
    block_records: int = 1_000
    empty_block: bool = False
    chunks: Chunks = "one"
    ids: bool = True
    counts: bool = True
    """Whether lists have the counts that format version 1 leaves optional."""
    null_first: bool = True
    lean: bool = False
    """Only what the format requires."""
    order: int = 0
    extras: int = 0
    """Which fields that no spec knows stand among the others."""
    upper_format: bool = True
    totals: bool = True
    """Whether summaries count the table's files."""
    names: int = 0
    """Names of lists' counts: of today, or old. With ids also: made-up names for everything."""
    key: bytes | None = None
    """The key metadata that all entries have; None where nothing is encrypted."""


# --- what no spec knows -----------------------------------------------------------------------------------------------

_FIXED = {"type": "fixed", "name": "hash16", "size": 16}
_UNKNOWN: tuple[tuple[str, Schema, Any], ...] = (
    ("x_map", {"type": "map", "values": "long"}, {"a": 1, "b": -(2**62)}),
    ("x_array", {"type": "array", "items": ["null", "string"]}, ["one", None, "zwei"]),
    ("x_fixed", _FIXED, b"0123456789abcdef"),
    ("x_again", ["null", "hash16"], b"f" * 16),
    ("x_enum", {"type": "enum", "name": "color", "symbols": ["RED", "GREEN"]}, "GREEN"),
    (
        "x_union",
        ["null", "boolean", "double", {"type": "array", "items": {"type": "map", "values": "bytes"}}],
        Chosen(3, [{"k": b"\x00\xff"}, {}]),
    ),
    (
        "x_record",
        {
            "type": "record",
            "name": "inner",
            "fields": [
                {"name": "file_path", "type": "string"},
                {"name": "status", "type": "int"},
                {"name": "ratio", "type": "float"},
                {"name": "deep", "type": ["null", {"type": "record", "name": "empty", "fields": []}]},
            ],
        },
        {"file_path": "s3://decoy/live.parquet", "status": 2, "ratio": 0.5, "deep": {}},
    ),
    ("x_maps", {"type": "map", "values": {"type": "array", "items": "int"}}, {"": [], "n": [1, 2, 3]}),
    ("x_nothing", "null", None),
    ("x_flag", "boolean", True),
)
# `x_again` uses the type that `x_fixed` defines, so they come together and in that order.
_EXTRAS: tuple[tuple[int, ...], ...] = ((), (0,), (1, 5), (2, 3, 4), (6, 8), (7, 9), (0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
EXTRAS = len(_EXTRAS)
ORDERS = 4


# --- schemas ----------------------------------------------------------------------------------------------------------


def _map_type(name: str, key: int, value: str) -> Schema:
    fields = [{"name": "key", "type": "int", "field-id": key}, {"name": "value", "type": value, "field-id": key + 1}]
    return {"type": "array", "logicalType": "map", "items": {"type": "record", "name": name, "fields": fields}}


def _pairs(*values: Any) -> list[dict[str, Any]]:
    return [{"key": number, "value": value} for number, value in enumerate(values, start=1)]


@dataclass(frozen=True)
class _Field:
    """`value` takes what is written, or is a tuple of values that are taken in turn by the entry's number."""

    name: str
    id: int
    type: Schema
    since: int
    """The format version from which on it is there."""
    required: int | None
    """The format version from which on it must be there."""
    value: Callable[[Any], Any] | tuple[Any, ...] = field(hash=False)


_PARTITIONS: tuple[tuple[list[Schema], tuple[Any, ...]], ...] = (
    ([], ({},)),
    (
        [{"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "field-id": 1000}],
        ({"day": 19_000}, {"day": None}),
    ),
    (
        [
            {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "field-id": 1000},
            {"name": "name_x2Dbucket", "type": ["null", "string"], "field-id": 1001},
            {
                "name": "price",
                "type": ["null", {"type": "fixed", "name": "decimal_9_2", "size": 4, "logicalType": "decimal",
                                  "precision": 9, "scale": 2}],
                "field-id": 1002,
            },
            {
                "name": "who",
                "type": ["null", {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}],
                "field-id": 1003,
            },
        ],
        (
            {"day": -719_529, "name_x2Dbucket": "ü/%20", "price": b"\xff\xff\xff\x00", "who": b"u" * 16},
            {"day": None, "name_x2Dbucket": None, "price": None, "who": None},
        ),
    ),
)  # fmt: skip
SPECS = len(_PARTITIONS)

_LIST = (
    _Field("manifest_path", 500, "string", 1, 1, lambda e: e.path),
    _Field("manifest_length", 501, "long", 1, 1, lambda e: e.length),
    _Field("partition_spec_id", 502, "int", 1, 1, lambda e: e.spec),
    _Field("content", 517, "int", 2, 2, lambda e: e.content),
    _Field("sequence_number", 515, "long", 2, 2, lambda e: e.sequence_number),
    _Field("min_sequence_number", 516, "long", 2, 2, lambda e: e.sequence_number),
    _Field("added_snapshot_id", 503, "long", 1, 1, lambda e: e.snapshot_id),
    _Field("added_files_count", 504, "int", 1, 2, lambda e: e.counts[ADDED]),
    _Field("existing_files_count", 505, "int", 1, 2, lambda e: e.counts[EXISTING]),
    _Field("deleted_files_count", 506, "int", 1, 2, lambda e: e.counts[DELETED]),
    _Field("added_rows_count", 512, "long", 1, 2, lambda e: 10 * e.counts[ADDED]),
    _Field("existing_rows_count", 513, "long", 1, 2, lambda e: 10 * e.counts[EXISTING]),
    _Field("deleted_rows_count", 514, "long", 1, 2, lambda e: 10 * e.counts[DELETED]),
    _Field(
        "partitions",
        507,
        {
            "type": "array",
            "element-id": 508,
            "items": {
                "type": "record",
                "name": "r508",
                "fields": [
                    {"name": "contains_null", "type": "boolean", "field-id": 509},
                    {"name": "contains_nan", "type": ["null", "boolean"], "field-id": 518},
                    {"name": "lower_bound", "type": ["null", "bytes"], "field-id": 510},
                    {"name": "upper_bound", "type": ["null", "bytes"], "field-id": 511},
                ],
            },
        },
        1,
        None,
        (
            None,
            [{"contains_null": True, "contains_nan": None, "lower_bound": b"\x01", "upper_bound": b"\xff" * 70}] * 3,
        ),
    ),
    _Field("key_metadata", 519, "bytes", 1, None, (None,)),
    _Field("first_row_id", 520, "long", 3, None, (None, 7)),
)

_ENTRY = (
    _Field("status", 0, "int", 1, 1, lambda e: e.status),
    # From version 2 on what was added takes id and sequence number from the list.
    _Field("snapshot_id", 1, "long", 1, 1, lambda e: e.snapshot_id),
    _Field("sequence_number", 3, "long", 2, None, lambda e: None if e.status == ADDED else e.sequence_number),
    _Field("file_sequence_number", 4, "long", 2, None, lambda e: None if e.status == ADDED else e.sequence_number),
)

_FILE = (
    _Field("content", 134, "int", 2, 2, lambda e: e.content),
    _Field("file_path", 100, "string", 1, 1, lambda e: e.path),
    _Field("file_format", 101, "string", 1, 1, lambda e: e.format),
    _Field("partition", 102, "partition", 1, 1, ()),
    _Field("record_count", 103, "long", 1, 1, (10, 2**40)),
    _Field("file_size_in_bytes", 104, "long", 1, 1, lambda e: e.size),
    _Field("block_size_in_bytes", 105, "long", 1, 1, (67_108_864,)),
    _Field("column_sizes", 108, _map_type("k117_v118", 117, "long"), 1, None, (_pairs(40, 2**33), None, [])),
    _Field("value_counts", 109, _map_type("k119_v120", 119, "long"), 1, None, (None, _pairs(10))),
    _Field("lower_bounds", 125, _map_type("k126_v127", 126, "bytes"), 1, None, (_pairs(b"\x00\xff", b""), None)),
    _Field("upper_bounds", 128, _map_type("k129_v130", 129, "bytes"), 1, None, (None, _pairs(b"z" * 80))),
    _Field("key_metadata", 131, "bytes", 1, None, (None,)),
    _Field("split_offsets", 132, {"type": "array", "items": "long", "element-id": 133}, 1, None, ([4, 2**31], None)),
    _Field("equality_ids", 135, {"type": "array", "items": "int", "element-id": 136}, 2, None, ()),
    _Field("sort_order_id", 140, "int", 1, None, (0, None)),
    _Field("first_row_id", 142, "long", 3, None, (None, 2**35)),
    _Field("referenced_data_file", 143, "string", 2, None, lambda e: e.referenced),
    _Field("content_offset", 144, "long", 3, None, lambda e: e.offset),
    _Field("content_size_in_bytes", 145, "long", 3, None, lambda e: None if e.offset is None else 40),
)

_OLD_NAMES = {
    "added_files_count": "added_data_files_count",
    "existing_files_count": "existing_data_files_count",
    "deleted_files_count": "deleted_data_files_count",
}

Part = bytes | Callable[[Any], bytes]
_DYNAMIC: dict[str, Callable[[Any], bytes]] = {"int": long, "long": long, "string": text, "bytes": text}


class _Layout(NamedTuple):
    schema: str
    encode: Callable[[Any], bytes]


def _shuffled(items: list[Any], order: int) -> list[Any]:
    """One of a few fixed orders; the first is the order given. `x_again` must stay behind what it refers to."""
    if order == 0:
        return items
    if order == 1:
        items = items[::-1]
    elif order == 2:
        items = items[1::2] + items[::2]
    else:
        items = items[len(items) // 2 :] + items[: len(items) // 2]
    names = [item[0]["name"] for item in items]
    if "x_again" in names and names.index("x_again") < names.index("x_fixed"):
        first, second = names.index("x_again"), names.index("x_fixed")
        items[first], items[second] = items[second], items[first]
    return items


def _columns(fields: Sequence[_Field], version: int, writer: Writer, spec: int, schema_id: int) -> list[Any]:
    """Each column as (its node of the schema, the parts that encode it)."""
    columns: list[tuple[Schema, Part]] = []
    for number, each in enumerate(fields):
        optional = each.required is None or each.required > version
        gone = each.name == "block_size_in_bytes" and version > 1
        if each.name == "snapshot_id" and version > 1:
            optional = True
        uncounted = not writer.counts and optional and each.name.endswith("_count")
        if each.since > version or gone or uncounted:
            continue
        dynamic = not isinstance(each.value, tuple)
        if writer.lean and optional and (not dynamic or each.name.endswith("rows_count")):
            continue
        kind, values = each.type, each.value
        if each.name == "partition":
            fields_of, values = _PARTITIONS[spec]
            kind = {"type": "record", "name": "r102", "fields": fields_of}
        options = [kind, "null"] if not writer.null_first else ["null", kind]
        node = {"name": _name(each.name, writer), "type": options if optional else kind, "field-id": each.id}
        if each.name == "equality_ids":
            null, ids = (encode(options, value, writer.chunks) for value in (None, [1, 2]))
            columns.append((node, lambda e, null=null, ids=ids: ids if e.content == 2 else null))  # type: ignore[misc]
        elif dynamic:
            write, read = _DYNAMIC[kind], values
            if optional:
                null = long(options.index("null"))
                present = long(options.index(kind))
                columns.append((node, _optional(read, write, null, present)))  # type: ignore[arg-type]
            else:
                columns.append((node, lambda e, write=write, read=read: write(read(e))))  # type: ignore[misc]
        else:
            # Metrics of a column that came with the schema's evolution; the values vary with the entry.
            if each.name == "key_metadata":
                values = (writer.key,)
            encoded = [encode(node["type"], value, writer.chunks) for value in values]  # type: ignore[union-attr]
            turn = number + schema_id
            if len(encoded) == 1:
                columns.append((node, encoded[0]))
            else:
                columns.append((node, lambda e, encoded=encoded, turn=turn: encoded[_turn(e, turn) % len(encoded)]))  # type: ignore[misc]
    return columns


def _turn(item: Any, turn: int) -> int:
    return turn + (item.number if isinstance(item, Entry) else item.length)


def _optional(
    read: Callable[[Any], Any], write: Callable[[Any], bytes], null: bytes, present: bytes
) -> Callable[[Any], bytes]:
    def encoded(item: Any) -> bytes:
        value = read(item)
        return null if value is None else present + write(value)

    return encoded


def _name(name: str, writer: Writer) -> str:
    if writer.names == 1:
        return _OLD_NAMES.get(name, name)
    if writer.names == 2 and writer.ids and name != "partition":
        return f"f_{name}"
    return name


def _with_extras(columns: list[Any], writer: Writer, suffix: str) -> list[Any]:
    names: dict[str, Schema] = {}
    extras = [_UNKNOWN[number] for number in _EXTRAS[writer.extras]]
    for number, (name, schema, value) in enumerate(extras):
        renamed = json.loads(
            json.dumps(schema)
            .replace('"hash16"', f'"hash16{suffix}"')
            .replace('"color"', f'"color{suffix}"')
            .replace('"inner"', f'"inner{suffix}"')
            .replace('"empty"', f'"empty{suffix}"')
        )
        node = {"name": name, "type": renamed, "field-id": 20_000 + number}
        columns.append((node, encode(renamed, value, writer.chunks, names)))
    if writer.names == 2 and writer.ids:
        # Names that the spec gives to other fields; the ids tell that these are not they.
        columns.append(
            ({"name": "file_path", "type": "string", "field-id": 20_100}, text("s3://decoy/by-name.parquet"))
        )
        columns.append(({"name": "manifest_path", "type": "string", "field-id": 20_101}, text("s3://decoy/m.avro")))
        columns.append(({"name": "status", "type": "int", "field-id": 20_102}, long(1)))
        columns.append(({"name": "content", "type": "int", "field-id": 20_103}, long(2)))
    return _shuffled(columns, writer.order)


def _layout(name: str, columns: list[Any], writer: Writer) -> _Layout:
    schema: Schema = {"type": "record", "name": name, "fields": [node for node, _ in columns]}
    encoded = json.dumps(schema if writer.ids else _without_ids(schema), separators=(",", ":"))
    return _Layout(encoded, _joined([part for _, part in columns]))


def _joined(parts: Sequence[Part]) -> Callable[[Any], bytes]:
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, bytes) and isinstance(last, bytes):
            merged[-1] = last + part
        else:
            merged.append(part)
    return lambda item: b"".join([part if part.__class__ is bytes else part(item) for part in merged])  # type: ignore[operator]


def _without_ids(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_ids(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _without_ids(value) for key, value in schema.items() if not key.endswith("-id")}
    return schema


@lru_cache(maxsize=4096)
def _list_layout(version: int, writer: Writer) -> _Layout:
    return _layout("manifest_file", _with_extras(_columns(_LIST, version, writer, 0, 0), writer, ""), writer)


@lru_cache(maxsize=4096)
def _manifest_layout(version: int, spec: int, schema_id: int, writer: Writer) -> _Layout:
    inner = _with_extras(_columns(_FILE, version, writer, spec, schema_id), writer, "_f")
    record = {"type": "record", "name": "r2", "fields": [node for node, _ in inner]}
    columns = _columns(_ENTRY, version, writer, spec, schema_id)
    columns.append(
        ({"name": _name("data_file", writer), "type": record, "field-id": 2}, _joined([p for _, p in inner]))
    )
    return _layout("manifest_entry", _with_extras(columns, writer, ""), writer)


# --- files ------------------------------------------------------------------------------------------------------------


def manifest_list_file(writer: Writer, version: int, entries: Sequence[Listed], snapshot_id: int) -> bytes:
    """The bytes of a manifest list."""
    header = {} if writer.lean else {"snapshot-id": str(snapshot_id), "format-version": str(version)}
    return _file(_list_layout(version, writer), entries, writer, header)


def manifest_file(
    writer: Writer, version: int, entries: Sequence[Entry], content: int, spec: int, schema_id: int
) -> bytes:
    """The bytes of a manifest."""
    header = {"schema-id": str(schema_id), "partition-spec-id": str(spec), "format-version": str(version)}
    if version > 1:
        header["content"] = ("data", "deletes")[content]
    return _file(_manifest_layout(version, spec, schema_id, writer), entries, writer, {} if writer.lean else header)


def _file(layout: _Layout, items: Sequence[Any], writer: Writer, header: dict[str, str]) -> bytes:
    encoded = [layout.encode(item) for item in items]
    size = writer.block_records
    blocks = [encoded[start : start + size] for start in range(0, len(encoded), size)]
    if writer.empty_block:
        blocks.insert(len(blocks) // 2, [])
    return container(
        layout.schema, blocks, codec=writer.codec, header=header, sized_header=writer.chunks in ("sized", "mixed")
    )
