"""Avro object container files: parsed and checked without decoding a record, and written.

Every block is walked and decompressed, and its sync marker compared. A file that ends anywhere except after a sync
marker is broken, even if a lenient reader accepts it. Codecs: those that Iceberg writes (null, deflate, snappy,
zstandard).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from artemis_lifecycle.errors import TooLarge
from artemis_lifecycle.metadata.unreadable import unreadable
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, Allowance, ReadLimits, require_bounded_json

# --- schema -----------------------------------------------------------------------------------------------------------
# Avro schemas of Iceberg's files: their structure alone, and the names of fields by `field-id`.


def structure(schema: Any, path: str) -> Any:
    """Return only the structure of a file's schema: no logical types, ids, docs or defaults.

    With it, every value is read as stored, and written back unchanged. Raises UnreadableMetadata.
    """
    try:
        return _bare(schema)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise unreadable(f"The Avro file's schema is broken ({error!r:.80})", path) from error


def _bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bare(option) for option in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if isinstance(kind, dict | list):
        return _bare(kind)
    if kind in ("record", "error"):
        fields = [{"name": field["name"], "type": _bare(field["type"])} for field in schema["fields"]]
        return {"type": "record", "name": schema["name"], "fields": fields}
    if kind == "array":
        return {"type": "array", "items": _bare(schema["items"])}
    if kind == "map":
        return {"type": "map", "values": _bare(schema["values"])}
    if kind == "fixed":
        size = schema["size"]
        if type(size) is not int or not 0 <= size < 2**31:
            raise ValueError(f"fixed of size {size!r:.30}")
        return {"type": "fixed", "name": schema["name"], "size": size}
    if kind == "enum":
        return {"type": "enum", "name": schema["name"], "symbols": schema["symbols"]}
    return kind


def field_names(
    schema: Any, by_id: Mapping[int, str], required: frozenset[str], path: str, aliases: Mapping[str, str] = {}
) -> Mapping[str, str]:
    """Map this project's name of each known field of the record `schema` to its name in the file.

    A field is identified by its id, or by its name if a writer omitted ids; `aliases` are other names for such fields.
    Raises UnreadableMetadata if `schema` is not a record, or lacks a required field.
    """
    record = _record_type(schema)
    if record is None:
        raise unreadable("The Avro file's schema is not a record", path)
    known = set(by_id.values())
    names: dict[str, str] = {}
    for field in _fields(record):
        stored = field["name"]
        field_id = field.get("field-id")
        name = by_id.get(field_id) if isinstance(field_id, int) else aliases.get(stored, stored)
        if name in known and name is not None:
            names[name] = stored
    if not required <= names.keys():
        raise unreadable(f"The Avro file's schema lacks {', '.join(sorted(required - names.keys()))}", path)
    return names


def field_type(schema: Any, name: str, path: str) -> Any:
    for field in _fields(_record_type(schema)):
        if field["name"] == name:
            return field.get("type")
    raise unreadable(f"The Avro file's schema lacks {name}", path)


def record_names(schema: Any, name: str) -> tuple[str, ...]:
    """Return the names of the fields of the record in field `name` of a record, in order; none if it has no such."""
    return tuple(field["name"] for field in record_fields(schema, name))


def record_fields(schema: Any, name: str) -> list[Mapping[str, Any]]:
    """Return the fields of the record in field `name` of a record, with their annotations; none if it has no such."""
    types = [field.get("type") for field in _fields(_record_type(schema)) if field["name"] == name]
    return _fields(_record_type(types[0] if types else None))


def _record_type(schema: Any) -> Mapping[str, Any] | None:
    if isinstance(schema, list):
        return next(filter(None, map(_record_type, schema)), None)
    if isinstance(schema, dict):
        if schema.get("type") == "record":
            return schema
        if isinstance(schema.get("type"), dict | list):
            return _record_type(schema["type"])
    return None


def _fields(record: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    fields = (record or {}).get("fields")
    if not isinstance(fields, list):
        return []
    return [field for field in fields if isinstance(field, dict) and isinstance(field.get("name"), str)]


_MAGIC = b"Obj\x01"


@dataclass(frozen=True)
class Container:
    """A decompressed Avro file: `records` values of the schema (JSON), consecutive in `payload`.

    `head` is the file up to its sync marker; `header` is the file's own metadata (texts), without Avro's own two keys.
    """

    head: bytes
    sync: bytes
    schema_text: str
    header: Mapping[str, str]
    codec: str
    records: int
    payload: bytes

    @property
    def schema(self) -> Any:
        """The schema as parsed JSON. All files with the same spelling share it: do not change it."""
        return _parsed(self.schema_text)

    def with_header(self, key: str, value: str) -> Container:
        """Return the same file with another value for `key` in its header; all other bytes of the head stay."""
        pairs, _ = _read_pairs(self.head)
        return replace(self, head=_head({**pairs, key.encode(): value.encode()}))

    def rewritten(self, blocks: Iterable[tuple[int, bytes]]) -> bytes:
        """Return a file with this head, codec and sync marker, and `blocks`: the number of records and their bytes."""
        out = [self.head, self.sync]
        for count, block in blocks:
            packed = _compress(self.codec, block)
            out.extend((long_bytes(count), long_bytes(len(packed)), packed, self.sync))
        return b"".join(out)


def open_container(data: bytes, path: str, limits: ReadLimits = DEFAULT_LIMITS) -> Container:
    """Parse `data`, the whole file at `path`.

    Raises UnreadableMetadata if it is not an Avro file, ends inside a block, has a broken sync marker, an unknown
    codec, or a block that cannot be decompressed; its subclass TooLarge if the content exceeds `limits`.
    """
    with _naming(path):
        return _open(data, limits.allowance(path, len(data)))


def schema_of(data: bytes, path: str) -> Any:
    """Return the schema (parsed JSON) of the Avro file at `path` that begins with `data`. Raises UnreadableMetadata."""
    with _naming(path):
        if data[:4] != _MAGIC:
            raise _Broken("it does not begin as an Avro file")
        return _parsed(_Head.of(data).schema_text)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except _Broken as error:
        raise unreadable(f"The Avro file is cut or broken: {error}", path) from error


class _Broken(Exception):  # noqa: N818  (becomes UnreadableMetadata)
    """Internal: what is wrong with the file."""


def _open(data: bytes, allowance: Allowance) -> Container:
    if data[:4] != _MAGIC:
        raise _Broken("it does not begin as an Avro file" if data else "it is empty")
    head = _Head.of(data)
    position = len(head.raw)
    sync = data[position : position + 16]
    if len(sync) != 16:
        raise _Broken("it ends inside its header")
    position += 16
    records = 0
    blocks: list[bytes] = []
    while position < len(data):
        count, position = read_long(data, position)
        size, position = read_long(data, position)
        end = position + size
        if count < 0 or size < 0 or end + 16 > len(data):
            raise _Broken(f"it ends inside a block, at byte {len(data)}")
        if data[end : end + 16] != sync:
            raise _Broken(f"a block ending at byte {end} is not followed by the file's sync marker")
        block = _decompress(head.codec, data[position:end], allowance)
        if count > len(block):
            # No metadata record is empty; readers allocate space for the claimed number of records.
            raise _Broken(f"a block of {len(block)} bytes claims to have {count} records")
        blocks.append(block)
        records += count
        position = end + 16
    payload = blocks[0] if len(blocks) == 1 else b"".join(blocks)
    return Container(head.raw, sync, head.schema_text, head.texts, head.codec, records, payload)


@lru_cache(maxsize=64)
def _parsed(schema_text: str) -> Any:
    return json.loads(schema_text)


_SCHEMA_VALUES = 100_000
_HEADER_KEYS = 1000


@dataclass(frozen=True)
class _Head:
    """The first bytes of a file, up to its sync marker, and their content."""

    raw: bytes
    schema_text: str
    codec: str
    texts: Mapping[str, str]

    @classmethod
    def of(cls, data: bytes) -> _Head:
        # A table's files begin with the same bytes, and there are tens of thousands: each head is parsed once.
        global _heads
        for known in _heads:
            if data.startswith(known.raw):
                return known
        head = cls._read(data)
        # A new tuple, because other threads iterate over the old one.
        _heads = (head, *_heads[: _HEADS_KEPT - 1])
        return head

    @classmethod
    def _read(cls, data: bytes) -> _Head:
        pairs, size = _read_pairs(data)
        codec = pairs.pop(b"avro.codec", b"null").decode("utf-8", "replace")
        try:
            schema_text = pairs.pop(b"avro.schema", b"").decode("utf-8")
            # Readers recurse to its depth, and keep the schemas of several files.
            require_bounded_json(schema_text.encode(), "its header", 0, _SCHEMA_VALUES)
            _parsed(schema_text)
        except (ValueError, RecursionError, TooLarge) as error:
            raise _Broken(f"its header has no schema ({error})") from error
        texts = {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in pairs.items()}
        return cls(data[:size], schema_text, codec, texts)


def _read_pairs(data: bytes) -> tuple[dict[bytes, bytes], int]:
    """Return the header's keys and values in order, and where they end."""
    position = len(_MAGIC)
    pairs: dict[bytes, bytes] = {}
    while True:
        count, position = read_long(data, position)
        if count == 0:
            return pairs, position
        if count < 0:
            _, position = read_long(data, position)
            count = -count
        for _ in range(count):
            key, position = _read_bytes(data, position)
            pairs[key], position = _read_bytes(data, position)
        if len(pairs) > _HEADER_KEYS:
            raise _Broken(f"its header has more than {_HEADER_KEYS} keys")


def _head(pairs: Mapping[bytes, bytes]) -> bytes:
    packed = b"".join(long_bytes(len(item)) + item for pair in pairs.items() for item in pair)
    return _MAGIC + long_bytes(len(pairs)) + packed + long_bytes(0)


_heads: tuple[_Head, ...] = ()
_HEADS_KEPT = 8


def _decompress(codec: str, block: bytes, allowance: Allowance) -> bytes:
    if codec == "null":
        return block
    if codec not in ("deflate", "snappy", "zstandard"):
        raise _Broken(f"codec {codec!r} is not one that Iceberg writes")
    try:
        if codec != "snappy":
            return allowance.undo("zstd" if codec == "zstandard" else codec, block)
        # The block ends in the CRC of its content, which is specific to Avro's snappy.
        raw = allowance.undo(codec, block[:-4])
    except ValueError as error:
        raise _Broken(f"a {codec} block cannot be decompressed ({error})") from error
    if zlib.crc32(raw) != int.from_bytes(block[-4:], "big"):
        raise _Broken("a snappy block differs from its checksum")
    return raw


def _compress(codec: str, block: bytes) -> bytes:
    if codec == "null":
        return block
    if codec == "deflate":
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        return deflate.compress(block) + deflate.flush()
    if codec == "snappy":
        return bytes(pa.compress(block, "snappy", asbytes=True)) + zlib.crc32(block).to_bytes(4, "big")
    return bytes(pa.compress(block, "zstd", asbytes=True))


def _read_unsigned(data: bytes, position: int) -> tuple[int, int]:
    if position < len(data) and data[position] < 0x80:
        return data[position], position + 1
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise _Broken(f"it ends inside a number, at byte {position}")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def read_long(data: bytes, position: int) -> tuple[int, int]:
    """Return an Avro int or long, and the position after it."""
    value, position = _read_unsigned(data, position)
    return (value >> 1) ^ -(value & 1), position


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    size, position = read_long(data, position)
    if size < 0 or position + size > len(data):
        raise _Broken("it ends inside its header")
    return data[position : position + size], position + size


def long_bytes(value: int) -> bytes:
    """Encode a long as Avro does: zigzag, seven bits per byte."""
    unsigned = (value << 1) ^ (value >> 63)
    out = bytearray()
    while unsigned > 0x7F:
        out.append((unsigned & 0x7F) | 0x80)
        unsigned >>= 7
    out.append(unsigned)
    return bytes(out)
