"""Rewriting: every place that holds a path is mapped, everything else is as it was, broken bytes are refused."""

from __future__ import annotations

import io
import json
import zlib
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from artemis_lifecycle.cold_tier.rewriting import (
    DELETE_FILE_PATH,
    DELETE_POS,
    RewrittenDelete,
    rewrite_deletion_vectors,
    rewrite_manifest,
    rewrite_manifest_list,
    rewrite_position_deletes,
)
from artemis_lifecycle.errors import HandoffFailed, UnreadableMetadata
from artemis_lifecycle.metadata.avro.container import open_container
from artemis_lifecycle.metadata.avro.scan import read_records


def mapped(path: str) -> str:
    """Like a mapping with two roots: what is outside comes behind what is mirrored, though its live path is smaller."""
    if path.startswith("s3://live/"):
        return path.replace("s3://live/", "s3://cold/")
    assert path.startswith("file:///")
    return path.replace("file:///", "s3://cold/t/_outside/")


# --- manifests -------------------------------------------------------------------------------------------------------


def _map(key_id: int, value_id: int, value: str) -> Any:
    record = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [
            {"name": "key", "type": "int", "field-id": key_id},
            {"name": "value", "type": value, "field-id": value_id},
        ],
    }
    return ["null", {"type": "array", "items": record, "logicalType": "map"}]


ENTRY = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        {"name": "status", "type": "int", "field-id": 0},
        {"name": "snapshot_id", "type": ["null", "long"], "default": None, "field-id": 1},
        {"name": "sequence_number", "type": ["null", "long"], "default": None, "field-id": 3},
        {
            "name": "data_file",
            "field-id": 2,
            "type": {
                "type": "record",
                "name": "r2",
                "fields": [
                    {"name": "content", "type": "int", "field-id": 134},
                    {"name": "file_path", "type": "string", "field-id": 100},
                    {"name": "file_format", "type": "string", "field-id": 101},
                    {
                        "name": "partition",
                        "field-id": 102,
                        "type": {
                            "type": "record",
                            "name": "r102",
                            "fields": [
                                {"name": "looks", "type": ["null", "string"], "default": None, "field-id": 1000},
                                {
                                    "name": "day",
                                    "type": ["null", {"type": "int", "logicalType": "date"}],
                                    "default": None,
                                    "field-id": 1001,
                                },
                                {
                                    "name": "price",
                                    "type": [
                                        "null",
                                        {
                                            "type": "fixed",
                                            "name": "decimal_9_2",
                                            "size": 4,
                                            "logicalType": "decimal",
                                            "precision": 9,
                                            "scale": 2,
                                        },
                                    ],
                                    "default": None,
                                    "field-id": 1002,
                                },
                                {
                                    "name": "at",
                                    "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}],
                                    "default": None,
                                    "field-id": 1003,
                                },
                                {"name": "share", "type": ["null", "float"], "default": None, "field-id": 1004},
                            ],
                        },
                    },
                    {"name": "record_count", "type": "long", "field-id": 103},
                    {"name": "file_size_in_bytes", "type": "long", "field-id": 104},
                    {"name": "column_sizes", "type": _map(117, 118, "long"), "default": None, "field-id": 108},
                    {"name": "lower_bounds", "type": _map(126, 127, "bytes"), "default": None, "field-id": 125},
                    {"name": "upper_bounds", "type": _map(129, 130, "bytes"), "default": None, "field-id": 128},
                    {
                        "name": "split_offsets",
                        "type": ["null", {"type": "array", "items": "long", "element-id": 133}],
                        "default": None,
                        "field-id": 132,
                    },
                    {"name": "referenced_data_file", "type": ["null", "string"], "default": None, "field-id": 143},
                    {"name": "content_offset", "type": ["null", "long"], "default": None, "field-id": 144},
                    {
                        "name": "of_the_future",
                        "type": ["null", {"type": "map", "values": ["null", "double", "string"]}],
                        "default": None,
                        "field-id": 999,
                    },
                ],
            },
        },
    ],
}


def entry(path: str, *, status: int = 1, content: int = 0, **more: Any) -> dict[str, Any]:
    file = {
        "content": content,
        "file_path": path,
        "file_format": "PARQUET",
        # A year beyond 9999, a day before the epoch: what a logical type cannot say in Python must survive.
        "partition": {"looks": "s3://live/t/x", "day": 4_000_000, "price": b"\xff\xff\xff\x9c", "at": -1, "share": 0.1},
        "record_count": 3,
        "file_size_in_bytes": 100,
        "column_sizes": None,
        "lower_bounds": None,
        "upper_bounds": None,
        "split_offsets": None,
        "referenced_data_file": None,
        "content_offset": None,
        "of_the_future": {"a": 1.5, "b": "s3://live/not-a-path"},
        **more,
    }
    return {"status": status, "snapshot_id": None, "sequence_number": None, "data_file": file}


def avro(
    schema: Any, records: list[dict[str, Any]], codec: str = "null", header: dict[str, str] | None = None
) -> bytes:
    out = io.BytesIO()
    # Stored values pass through logical types as they are.
    fastavro.writer(out, schema, records, codec=codec if codec == "deflate" else "null", metadata=header)
    return out.getvalue() if codec in ("null", "deflate") else recoded(out.getvalue(), codec)


def recoded(data: bytes, codec: str) -> bytes:
    """An uncompressed Avro file in a codec that fastavro needs more libraries for: snappy or zstandard."""

    def field(value: bytes) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, "bytes", value)
        return out.getvalue()

    def long(value: int) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, "long", value)
        return out.getvalue()

    container = open_container(data, "test")
    header = {"avro.schema": json.dumps(container.schema), "avro.codec": codec, **container.header}
    pairs = b"".join(field(key.encode()) + field(value.encode()) for key, value in header.items())
    packed = bytes(pa.compress(container.payload, {"zstandard": "zstd"}.get(codec, codec), asbytes=True))
    if codec == "snappy":
        packed += zlib.crc32(container.payload).to_bytes(4, "big")
    sync = bytes(range(16))
    return b"Obj\x01" + long(len(header)) + pairs + long(0) + sync + long(container.records) + field(packed) + sync


def records(data: bytes) -> list[dict[str, Any]]:
    """The stored values: as dates and times some of them could not even be read."""
    return list(read_records(open_container(data, "test"), "test"))


def bounds(path: str) -> list[dict[str, Any]]:
    return [{"key": DELETE_FILE_PATH, "value": path.encode()}, {"key": DELETE_POS, "value": b"\0" * 8}]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard"])
def test_a_manifest_changes_in_its_paths_alone(codec: str) -> None:
    entries = [entry(f"s3://live/t/data/{number}", status=number % 3) for number in range(40)]
    header = {"schema": '{"type":"struct"}', "format-version": "2", "content": "data", "odd": "s3://live/t"}
    source = avro(ENTRY, entries, codec, header)
    result = rewrite_manifest(source, "m", mapped, {})
    before, after = open_container(source, "m"), open_container(result, "m")
    assert (after.schema, after.header, after.codec) == (before.schema, before.header, before.codec)
    assert "decimal" in json.dumps(after.schema)
    expected = [entry(f"s3://cold/t/data/{number}", status=number % 3) for number in range(40)]
    assert records(result) == records(avro(ENTRY, expected, "null"))
    assert after.payload == open_container(avro(ENTRY, expected, "null"), "m").payload
    assert rewrite_manifest(source, "m", mapped, {}) == result


def test_delete_entries_take_the_sizes_offsets_and_bounds_of_the_rewritten_files() -> None:
    source = avro(
        ENTRY,
        [
            entry(
                "s3://live/t/d1",
                content=1,
                lower_bounds=bounds("s3://live/t/a"),
                upper_bounds=bounds("s3://live/t/a"),
                split_offsets=[4, 50],
                column_sizes=[{"key": DELETE_FILE_PATH, "value": 7}, {"key": 5, "value": 8}],
            ),
            entry("s3://live/t/d2", content=1, lower_bounds=bounds("s3://live/t/a")[1:]),
            entry("s3://live/t/eq", content=2, lower_bounds=[{"key": 1, "value": b"s3://live/t/a"}], split_offsets=[4]),
            entry(
                "s3://live/t/gone",
                status=2,
                content=1,
                lower_bounds=bounds("s3://live/t/a"),
                upper_bounds=bounds("s3://live/t/b"),
            ),
            entry(
                "s3://live/t/gone",
                status=2,
                content=1,
                lower_bounds=bounds("s3://live/t/a"),
                upper_bounds=bounds("s3://live/t/a"),
            ),
            entry(
                "s3://live/t/dv",
                content=1,
                file_format="puffin",
                referenced_data_file="s3://live/t/a",
                content_offset=4,
                lower_bounds=bounds("s3://live/t/a"),
            ),
        ],
    )
    deletes = {
        "s3://cold/t/d1": RewrittenDelete(111, "s3://cold/t/a", "s3://cold/t/b", (4,), {DELETE_FILE_PATH: 9}),
        "s3://cold/t/d2": RewrittenDelete(112, "s3://cold/t/a", "s3://cold/t/a"),
        "s3://cold/t/dv": RewrittenDelete(113),
    }
    one, two, equality, range_gone, single_gone, vector = (
        item["data_file"] for item in records(rewrite_manifest(source, "m", mapped, deletes))
    )
    assert one["file_size_in_bytes"] == 111
    assert one["split_offsets"] == [4]
    assert one["column_sizes"] == [{"key": DELETE_FILE_PATH, "value": 9}, {"key": 5, "value": 8}]
    assert one["lower_bounds"] == bounds("s3://cold/t/a")
    assert one["upper_bounds"] == bounds("s3://cold/t/b")
    assert two["lower_bounds"] == bounds("")[1:]
    assert two["upper_bounds"] is None
    assert equality["lower_bounds"] == [{"key": 1, "value": b"s3://live/t/a"}]
    assert (equality["split_offsets"], equality["file_size_in_bytes"]) == ([4], 100)
    assert range_gone["lower_bounds"] == bounds("")[1:]
    assert single_gone["upper_bounds"] == bounds("s3://cold/t/a")
    assert vector["referenced_data_file"] == "s3://cold/t/a"
    assert vector["lower_bounds"] == bounds("s3://cold/t/a")
    assert (vector["content_offset"], vector["file_size_in_bytes"]) == (4, 113)


def test_a_live_delete_file_that_was_not_copied_is_refused() -> None:
    source = avro(ENTRY, [entry("s3://live/t/d1", content=1)])
    with pytest.raises(HandoffFailed, match="not copied"):
        rewrite_manifest(source, "m", mapped, {})


LIST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        {"name": "manifest_path", "type": "string", "field-id": 500},
        {"name": "manifest_length", "type": "long", "field-id": 501},
        {"name": "first_row_id", "type": ["null", "long"], "default": None, "field-id": 520},
        {"name": "added_files_count", "type": ["null", "int"], "default": None, "field-id": 504},
    ],
}


def test_a_manifest_list_takes_the_lengths_of_the_rewritten_manifests() -> None:
    rows = [
        {
            "manifest_path": f"s3://live/t/m{n}",
            "manifest_length": n,
            "first_row_id": None if n else 7,
            "added_files_count": n,
        }
        for n in range(3)
    ]
    source = avro(LIST, rows)
    lengths = {f"s3://cold/t/m{n}": 10 + n for n in range(3)}
    assert records(rewrite_manifest_list(source, "l", mapped, lengths)) == [
        {**row, "manifest_path": f"s3://cold/t/m{n}", "manifest_length": 10 + n} for n, row in enumerate(rows)
    ]
    with pytest.raises(HandoffFailed, match="not copied"):
        rewrite_manifest_list(source, "l", mapped, {"s3://cold/t/m0": 1})


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_cut_manifest_is_refused(cut: int) -> None:
    source = avro(ENTRY, [entry(f"s3://live/t/{number}") for number in range(5)])
    with pytest.raises(UnreadableMetadata):
        rewrite_manifest(source[:-cut], "m", mapped, {})


# --- position-delete files -------------------------------------------------------------------------------------------


def deletes(rows: list[tuple[str, int]], *, group: int = 4, with_row: bool = False, codec: str = "zstd") -> bytes:
    def column(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
        return pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(field_id)})

    fields = [column("file_path", pa.string(), DELETE_FILE_PATH), column("pos", pa.int64(), DELETE_POS)]
    arrays = [pa.array([path for path, _ in rows], pa.string()), pa.array([pos for _, pos in rows], pa.int64())]
    if with_row:
        inner = pa.field("id", pa.int32(), metadata={"PARQUET:field_id": "1"})
        fields.append(pa.field("row", pa.struct([inner]), metadata={"PARQUET:field_id": "2147483544"}))
        arrays.append(pa.array([{"id": pos} for _, pos in rows], pa.struct([inner])))
    schema = pa.schema(fields, metadata={"delete-type": "position", "iceberg.schema": '{"s3://live/": 1}'})
    out = io.BytesIO()
    with pq.ParquetWriter(out, schema, compression=codec, store_schema=False) as writer:
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=group)
    return out.getvalue()


@pytest.mark.parametrize("codec", ["zstd", "gzip", "snappy", "none"])
@pytest.mark.parametrize("with_row", [False, True])
def test_position_deletes_change_in_their_paths_alone(codec: str, with_row: bool) -> None:
    rows = [(f"s3://live/t/{name}", position) for name in "abc" for position in range(3)]
    source = deletes(rows, codec=codec, with_row=with_row)
    result, described = rewrite_position_deletes(source, "d", "PARQUET", mapped)
    before, after = pq.ParquetFile(io.BytesIO(source)), pq.ParquetFile(io.BytesIO(result))
    assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
    assert after.metadata.metadata == before.metadata.metadata
    assert after.schema.equals(before.schema)
    assert [after.metadata.row_group(n).num_rows for n in range(after.num_row_groups)] == [4, 4, 1]
    assert after.metadata.row_group(0).column(0).compression == before.metadata.row_group(0).column(0).compression
    expected = before.read().to_pydict()
    expected["file_path"] = [mapped(path) for path in expected["file_path"]]
    assert after.read().to_pydict() == expected
    assert (described.size_in_bytes, described.lower_path, described.upper_path) == (
        len(result),
        "s3://cold/t/a",
        "s3://cold/t/c",
    )
    assert described.split_offsets is not None
    assert len(described.split_offsets) == 3
    assert described.split_offsets[0] == 4
    assert set(described.column_sizes) == {DELETE_FILE_PATH, DELETE_POS}
    assert b"s3://live/t" not in result
    assert RewrittenDelete.from_json(described.to_json()) == described


def test_position_deletes_of_several_places_are_sorted_again() -> None:
    rows = [("file:///a", 5), ("file:///a", 9), ("s3://live/b", 1), ("s3://live/b", 2), ("s3://live/z", 0)]
    result, described = rewrite_position_deletes(deletes(rows, group=2), "d", "parquet", mapped)
    after = pq.ParquetFile(io.BytesIO(result))
    pairs = list(zip(*after.read().to_pydict().values(), strict=True))
    assert pairs == sorted((mapped(path), position) for path, position in rows)
    assert pairs != [(mapped(path), position) for path, position in rows]
    assert (described.lower_path, described.upper_path) == (pairs[0][0], pairs[-1][0])
    assert [after.metadata.row_group(n).num_rows for n in range(after.num_row_groups)] == [2, 2, 1]


def test_an_empty_position_delete_file_stays_one() -> None:
    result, described = rewrite_position_deletes(deletes([]), "d", "parquet", mapped)
    assert pq.read_table(io.BytesIO(result)).num_rows == 0
    assert described.lower_path is None


def test_position_deletes_in_avro_are_rewritten() -> None:
    schema = {
        "type": "record",
        "name": "position_delete",
        "fields": [
            {"name": "file_path", "type": "string", "field-id": DELETE_FILE_PATH},
            {"name": "pos", "type": "long", "field-id": DELETE_POS},
        ],
    }
    rows = [{"file_path": "file:///a", "pos": 1}, {"file_path": "s3://live/b", "pos": 0}]
    result, described = rewrite_position_deletes(avro(schema, rows), "d", "avro", mapped)
    assert [(row["file_path"], row["pos"]) for row in records(result)] == [
        ("s3://cold/b", 0),
        ("s3://cold/t/_outside/a", 1),
    ]
    assert described == RewrittenDelete(len(result), "s3://cold/b", "s3://cold/t/_outside/a")


@pytest.mark.parametrize("codec", ["zlib", "zstd", "uncompressed"])
@pytest.mark.parametrize("with_row", [False, True])
def test_position_deletes_in_orc_are_rewritten(codec: str, with_row: bool) -> None:
    rows = [("file:///a", 5), ("file:///a", 9), ("s3://live/b", 1), ("s3://live/z", 0)]
    result, described = rewrite_position_deletes(orc_deletes(rows, codec, with_row=with_row), "d", "ORC", mapped)
    before, after = (
        orc.ORCFile(io.BytesIO(orc_deletes(rows, codec, with_row=with_row))),
        orc.ORCFile(io.BytesIO(result)),
    )
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.schema.field(0).metadata[b"iceberg.id"] == str(DELETE_FILE_PATH).encode()
    assert after.compression == before.compression
    found = after.read().to_pydict()
    pairs = sorted((mapped(path), position) for path, position in rows)
    assert list(zip(found["file_path"], found["pos"], strict=True)) == pairs
    if with_row:
        assert [row["id"] for row in found["row"]] == [position for _, position in pairs]
    assert described == RewrittenDelete(len(result), pairs[0][0], pairs[-1][0])
    assert codec != "uncompressed" or b"s3://live/" not in result


def orc_deletes(rows: list[tuple[str, int]], codec: str, *, with_row: bool) -> bytes:
    def named(name: str, kind: pa.DataType, field_id: int, *, required: bool = True) -> pa.Field:
        return pa.field(name, kind, True, {"iceberg.id": str(field_id), "iceberg.required": str(required).lower()})

    fields = [named("file_path", pa.string(), DELETE_FILE_PATH), named("pos", pa.int64(), DELETE_POS)]
    columns = [pa.array([path for path, _ in rows]), pa.array([position for _, position in rows], pa.int64())]
    if with_row:
        inner = pa.struct([named("id", pa.int32(), 1)])
        fields.append(named("row", inner, 2147483544, required=False))
        columns.append(pa.array([{"id": position} for _, position in rows], inner))
    out = io.BytesIO()
    orc.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)), out, compression=codec)
    return out.getvalue()


def test_position_deletes_in_another_format_are_refused_clearly() -> None:
    with pytest.raises(HandoffFailed, match="LANCE"):
        rewrite_position_deletes(b"LANC", "s3://live/t/d.lance", "lance", mapped)


@pytest.mark.parametrize("kept", [0, 3, 100])
def test_a_cut_position_delete_file_is_refused(kept: int) -> None:
    with pytest.raises(HandoffFailed, match="cannot be read"):
        rewrite_position_deletes(deletes([("s3://live/a", 1)])[:kept], "d", "parquet", mapped)


# --- deletion vectors ------------------------------------------------------------------------------------------------


def puffin(blobs: list[tuple[bytes, str | None]], *, compressed: bool = False) -> bytes:
    body, listed = b"PFA1", []
    for content, path in blobs:
        blob: dict[str, Any] = {
            "type": "deletion-vector-v1",
            "fields": [2147483645],
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": len(body),
            "length": len(content),
        }
        if path is not None:
            blob["properties"] = {"referenced-data-file": path, "cardinality": "1", "note": "s3://live/kept"}
        listed.append(blob)
        body += content
    payload = json.dumps(
        {"blobs": listed, "properties": {"created-by": "ü s3://live/kept"}}, ensure_ascii=False
    ).encode()
    if compressed:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "lz4") as stream:
            stream.write(payload)
        payload = sink.getvalue().to_pybytes()
    flags = bytes([1 if compressed else 0, 0, 0, 0])
    return body + b"PFA1" + payload + len(payload).to_bytes(4, "little") + flags + b"PFA1"


def footer(data: bytes) -> Any:
    size = int.from_bytes(data[-12:-8], "little")
    return json.loads(data[-12 - size : -12])


@pytest.mark.parametrize("compressed", [False, True])
def test_deletion_vectors_keep_their_blobs_and_offsets(compressed: bool) -> None:
    blobs: list[tuple[bytes, str | None]] = [
        (b"PFA1 first", "s3://live/t/a"),
        (b"", "s3://live/t/é"),
        (b"third" * 9, None),
    ]
    source = puffin(blobs, compressed=compressed)
    result, described = rewrite_deletion_vectors(source, "p", mapped)
    before, after = footer(puffin(blobs)), footer(result)
    for blob in before["blobs"]:
        if "properties" in blob:
            blob["properties"]["referenced-data-file"] = mapped(blob["properties"]["referenced-data-file"])
    assert after == before
    assert described == RewrittenDelete(len(result))
    for blob, (content, _) in zip(after["blobs"], blobs, strict=True):
        assert result[blob["offset"] : blob["offset"] + blob["length"]] == content


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[5:], lambda data: b"", lambda data: data[:30]]
)
def test_a_broken_puffin_file_is_refused(damage: Any) -> None:
    with pytest.raises(HandoffFailed, match="cannot be read"):
        rewrite_deletion_vectors(damage(puffin([(b"x" * 40, "s3://live/t/a")])), "p", mapped)


def test_a_blob_that_lies_beyond_the_body_is_refused() -> None:
    data = puffin([(b"x" * 40, "s3://live/t/a")]).replace(b'"length": 40', b'"length": 99')
    with pytest.raises(HandoffFailed, match="outside"):
        rewrite_deletion_vectors(data, "p", mapped)
