"""Avro files written by hand from the Avro specification, with every freedom that it leaves to a writer: codecs, many
or empty blocks, arrays and maps in several chunks of positive or negative count, unions of any order, any type as a
field.

It shares no code with the readers under test, nor with fastavro.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

Schema = Any
Chunks = Literal["one", "sized", "single", "mixed"]
"""How arrays and maps are cut: one chunk; one of negative count with its size; an item each; an item, then the rest."""

CHUNKS: tuple[Chunks, ...] = ("one", "sized", "single", "mixed")
CODECS = ("null", "deflate", "snappy", "zstandard")
SYNC = bytes(range(200, 216))
_MAGIC = b"Obj\x01"


class Chosen(NamedTuple):
    """A value of the union's branch of that position, where the value alone does not tell."""

    branch: int
    value: Any


def long(value: int) -> bytes:
    """An int or a long: zigzag, then seven bits a byte."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return bytes((rest,))
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def text(value: str | bytes) -> bytes:
    """A string or bytes: the length, then the bytes."""
    raw = value.encode() if isinstance(value, str) else value
    return long(len(raw)) + raw


def encode(schema: Schema, value: Any, chunks: Chunks = "one", names: dict[str, Schema] | None = None) -> bytes:
    """`value` under `schema`. Records and maps are dicts; a union takes None, a Chosen, or its one other branch."""
    names = {} if names is None else names
    if isinstance(schema, list):
        if isinstance(value, Chosen):
            # The branches before it may define names that it uses.
            for branch in schema:
                _define(branch, names)
            return long(value.branch) + encode(schema[value.branch], value.value, chunks, names)
        branch = schema.index("null") if value is None else next(i for i, s in enumerate(schema) if s != "null")
        _define(schema, names)
        return long(branch) + encode(schema[branch], value, chunks, names)
    if isinstance(schema, str):
        if schema in names:
            return encode(names[schema], value, chunks, names)
        return _primitive(schema, value)
    kind = schema["type"]
    _define(schema, names)
    if isinstance(kind, dict | list):
        return encode(kind, value, chunks, names)
    if kind in ("record", "error"):
        return b"".join(encode(field["type"], value[field["name"]], chunks, names) for field in schema["fields"])
    if kind == "array":
        return cut([encode(schema["items"], item, chunks, names) for item in value], chunks)
    if kind == "map":
        items = [text(key) + encode(schema["values"], item, chunks, names) for key, item in value.items()]
        return cut(items, chunks)
    if kind == "fixed":
        assert len(value) == schema["size"]
        return bytes(value)
    if kind == "enum":
        return long(schema["symbols"].index(value))
    return _primitive(kind, value)


def _primitive(kind: str, value: Any) -> bytes:
    if kind == "null":
        return b""
    if kind == "boolean":
        return b"\x01" if value else b"\x00"
    if kind in ("int", "long"):
        return long(value)
    if kind == "float":
        return struct.pack("<f", value)
    if kind == "double":
        return struct.pack("<d", value)
    if kind in ("bytes", "string"):
        return text(value)
    raise ValueError(f"{kind!r} is not a type of Avro")


def _define(schema: Schema, names: dict[str, Schema]) -> None:
    """Remember the types that `schema` names, wherever in it they stand: a later field may refer to them."""
    if isinstance(schema, list):
        for branch in schema:
            _define(branch, names)
    elif isinstance(schema, dict):
        if schema.get("type") in ("record", "error", "fixed", "enum"):
            if schema["name"] in names:
                return
            names[schema["name"]] = schema
        for field in schema.get("fields", ()):
            _define(field["type"], names)
        for key in ("type", "items", "values"):
            if isinstance(schema.get(key), dict | list):
                _define(schema[key], names)


def cut(items: Sequence[bytes], chunks: Chunks) -> bytes:
    """The encoded items of an array or a map, in chunks, with the closing zero."""
    if not items:
        return b"\x00"
    if chunks == "one":
        groups = [items]
    elif chunks == "sized":
        return _sized(items) + b"\x00"
    elif chunks == "single":
        groups = [[item] for item in items]
    else:
        return _sized(items[:1]) + (long(len(items) - 1) + b"".join(items[1:]) if items[1:] else b"") + b"\x00"
    return b"".join(long(len(group)) + b"".join(group) for group in groups) + b"\x00"


def _sized(items: Sequence[bytes]) -> bytes:
    body = b"".join(items)
    return long(-len(items)) + long(len(body)) + body


def container(
    schema: Schema | str,
    blocks: Iterable[Sequence[bytes]],
    *,
    codec: str = "null",
    header: Mapping[str, str] | None = None,
    sized_header: bool = False,
) -> bytes:
    """An Avro file of these blocks of encoded records. `schema` may be its JSON text already.

    The codec `null` is left out of the header, as the specification allows, where there is another key in it.
    """
    keys: dict[str, str] = {"avro.schema": schema if isinstance(schema, str) else json.dumps(schema)}
    if codec != "null" or not header:
        keys["avro.codec"] = codec
    keys.update(header or {})
    pairs = [text(key) + text(value) for key, value in keys.items()]
    out = [_MAGIC, cut(pairs, "mixed" if sized_header else "one"), SYNC]
    for block in blocks:
        body = _compressed(b"".join(block), codec)
        out += [long(len(block)), long(len(body)), body, SYNC]
    return b"".join(out)


def _compressed(body: bytes, codec: str) -> bytes:
    if codec == "deflate":
        deflate = zlib.compressobj(1, zlib.DEFLATED, -15)
        return deflate.compress(body) + deflate.flush()
    if codec == "snappy":
        return bytes(pa.compress(body, "snappy")) + zlib.crc32(body).to_bytes(4, "big")
    if codec == "zstandard":
        return bytes(pa.compress(body, "zstd"))
    assert codec == "null"
    return body


def block_ends(data: bytes) -> list[int]:
    """Where the header and each block of a file of `container` end: a file cut there still parses, only shorter."""
    ends, found = [], data.find(SYNC)
    while found >= 0:
        ends.append(found + 16)
        found = data.find(SYNC, found + 16)
    return ends


def records_before(data: bytes, end: int) -> int:
    """How many records a file of `container` has left when it is cut at `end`, one of its `block_ends`."""
    ends = [each for each in block_ends(data) if each <= end]
    return sum(_long_at(data, start) for start in ends[:-1])


def _long_at(data: bytes, at: int) -> int:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return (value >> 1) ^ -(value & 1)
        at, shift = at + 1, shift + 7
