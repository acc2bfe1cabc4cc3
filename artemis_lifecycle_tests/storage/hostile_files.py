"""The files that every reader of the project reads: valid ones, and bombs made by hand. Belongs here: making them, and
which function reads them. Does not belong: mutations and limits (`limited_worker`)."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from pyarrow import orc

from artemis_lifecycle.cold_tier.rewriting import (
    rewrite_deletion_vectors,
    rewrite_manifest,
    rewrite_manifest_list,
    rewrite_position_deletes,
)
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.deletion.report import read_receipt
from artemis_lifecycle.metadata import manifest_lists, manifests
from artemis_lifecycle.metadata.table_metadata import metadata_json, read_table_metadata
from artemis_lifecycle.metadata.types import Snapshot
from artemis_lifecycle.orphans.external_listing import read_inventory, read_parquet_listing
from artemis_lifecycle.storage.frames import describe_frame, frame_batches
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.metadata.avro_files import (
    MANIFEST_LIST,
    SYNC,
    avro_file,
    entry_for,
    file_record,
    list_record,
    manifest_schema,
)
from artemis_lifecycle_tests.metadata.metadata_json import metadata_bytes, snapshot_node

CODECS = ("null", "deflate", "snappy", "zstandard")
ROWS = 300


@dataclass(frozen=True)
class Reader:
    """`read` is given the path of the file, which stands in `name` of an empty folder, with `beside` around it."""

    name: str
    read: Callable[[Stores, str], object]
    valid: bytes
    bombs: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
    packed: tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]] | None = None
    beside: Callable[[bytes], Mapping[str, bytes]] = lambda data: {}


def readers() -> dict[str, Reader]:
    found = {
        "metadata": Reader("v1.metadata.json", read_table_metadata, _metadata(), _JSON_BOMBS),
        "metadata.gz": Reader(
            "v1.gz.metadata.json", read_table_metadata, gzip.compress(_metadata()), _GZIP_BOMBS, _GZIPPED
        ),
        "cold metadata": Reader("v1.metadata.json", _cold_json, gzip.compress(_metadata()), _COLD_BOMBS, _GZIPPED),
        "deletion vectors": Reader("dv.puffin", _vectors, _puffin(), {"lz4 footer": _lz4_footer}),
        "listing": Reader("list.parquet", _listing, _parquet(), _PARQUET_BOMBS),
        "position deletes in Parquet": Reader("d.parquet", _deletes("parquet"), _parquet_deletes(), _PARQUET_BOMBS),
        "position deletes in ORC": Reader("d.orc", _deletes("orc"), _orc(_delete_rows()), _ORC_BOMBS),
        "position deletes in Avro": Reader("d.avro", _deletes("avro"), _avro_deletes(), _AVRO_BOMBS),
        "inventory": Reader("manifest.json", _inventory, _manifest("CSV", b""), {"nested": _nested}),
        "receipt": Reader("receipt.json", _receipt, _receipt_json(), {"nested": _nested}),
        "lifecycle.yaml": Reader("lifecycle.yaml", lambda _, path: load_config(_local(path), {}), _yaml(), _YAML_BOMBS),
        "seal of a frame": Reader("_sealed.json", _seal, b"{}", {"nested": _nested}),
        "part of a frame": Reader("part.parquet", _frame, _parquet(), _PARQUET_BOMBS, beside=_sealing),
    }
    for kind, data, bombs, packed in (
        ("CSV", gzip.compress(_csv()), {**_CSV_BOMBS}, _GZIPPED),
        ("Parquet", _parquet(_inventory_rows()), _PARQUET_BOMBS, None),
        ("ORC", _orc(_inventory_rows()), _ORC_BOMBS, None),
    ):
        found[f"inventory in {kind}"] = Reader("part", _report, data, bombs, packed, _reporting(kind))
    for codec in CODECS:
        listed = avro_file(MANIFEST_LIST, [list_record(f"s3://b/m{n}.avro", 7) for n in range(ROWS)], codec=codec)
        entries = [file_record(number) for number in range(ROWS)]
        # A bomb has a codec of its own.
        bombs = _AVRO_BOMBS if codec == "null" else {}
        found[f"manifest list, {codec}"] = Reader("snap.avro", _list, listed, bombs)
        found[f"manifest, {codec}"] = Reader(
            "m.avro", _manifest_file, avro_file(manifest_schema(), entries, codec=codec), bombs
        )
    return found


# --- how each is read -------------------------------------------------------------------------------------------------


def _local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def _cold_json(stores: Stores, path: str) -> object:
    return metadata_json(stores.read(path), path, stores.limits)


def _snapshot(path: str) -> Snapshot:
    from artemis_lifecycle.metadata.types import NO_SUMMARY

    return Snapshot(1, None, 1, 1, path, (), 0, NO_SUMMARY, None, None, None)


def _list(stores: Stores, path: str) -> None:
    _each(
        lambda: manifest_lists.listed_manifests(stores, _snapshot(path)),
        lambda: manifest_lists.read_manifest_list(stores, path),
        lambda: rewrite_manifest_list(stores.read(path), path, str, _Any(), limits=stores.limits),
    )


class _Any(dict[str, int]):
    """Has the length of every manifest."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> int:
        return 7


def _manifest_file(stores: Stores, path: str) -> None:
    data = stores.read(path)
    entry = replace(entry_for(path, data), existing_files_count=None, added_files_count=None, deleted_files_count=None)
    _each(
        lambda: manifests.live_files(stores, entry),
        lambda: manifests.live_entries(stores, entry),
        lambda: manifests.decode_entries(data, path, stores.limits),
        lambda: rewrite_manifest(data, path, str, {}, limits=stores.limits),
    )


def _each(*reads: Callable[[], object]) -> None:
    """All of these, also where one of them raises; then the first error."""
    from artemis_lifecycle.errors import LifecycleError

    first: LifecycleError | None = None
    for read in reads:
        try:
            read()
        except LifecycleError as error:
            first = first or error
    if first is not None:
        raise first


def _vectors(stores: Stores, path: str) -> object:
    return rewrite_deletion_vectors(stores.read(path), path, str, stores.limits)


def _deletes(kind: str) -> Callable[[Stores, str], object]:
    return lambda stores, path: rewrite_position_deletes(stores.read(path), path, kind, str, stores.limits)


def _listing(stores: Stores, path: str) -> object:
    found = read_parquet_listing(stores, path)
    reader = found.reader(stores, "file")
    return [batch.num_rows for file in found.files for batch in reader(file)]


def _inventory(stores: Stores, path: str) -> object:
    return read_inventory(stores, path)


def _report(stores: Stores, path: str) -> object:
    found = read_inventory(stores, path.rpartition("/")[0] + "/manifest.json")
    reader = found.reader(stores, "s3")
    return [batch.num_rows for file in found.files for batch in reader(file)]


def _receipt(stores: Stores, path: str) -> object:
    return read_receipt(stores, path.rpartition("/")[0], "job", "db.t")


def _seal(stores: Stores, path: str) -> object:
    return describe_frame(path.rpartition("/")[0], stores)


def _frame(stores: Stores, path: str) -> object:
    return [batch.num_rows for batch in frame_batches(path.rpartition("/")[0], stores)]


# --- valid files ------------------------------------------------------------------------------------------------------


def _metadata() -> bytes:
    return metadata_bytes(
        [snapshot_node(number, number - 1 or None, number * 1000, number) for number in range(1, 40)],
        current=39,
        log=[(number * 1000, number) for number in range(1, 40)],
        properties={"owner": "ada"},
    )


def _rows() -> pa.Table:
    when = pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * ROWS, pa.timestamp("us", "UTC"))
    paths = [f"file:///w/t/data/part-{number:05d}.parquet" for number in range(ROWS)]
    return pa.table({"path": paths, "last_modified": when, "size_in_bytes": pa.array(range(ROWS), pa.int64())})


def _inventory_rows() -> pa.Table:
    rows = _rows()
    return pa.table(
        {
            "bucket": ["lake"] * ROWS,
            "key": rows.column("path"),
            "size": rows.column("size_in_bytes"),
            "last_modified_date": rows.column("last_modified"),
            "is_latest": [True] * ROWS,
            "is_delete_marker": [False] * ROWS,
        }
    )


def _delete_rows() -> pa.Table:
    return pa.table({"file_path": _rows().column("path"), "pos": pa.array(range(ROWS), pa.int64())})


def _parquet(rows: pa.Table | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(_rows() if rows is None else rows, out, **{"compression": "zstd", "row_group_size": 100, **options})
    return out.getvalue()


def _parquet_deletes() -> bytes:
    return _parquet(_delete_rows())


def _orc(rows: pa.Table) -> bytes:
    out = io.BytesIO()
    orc.write_table(rows, out, compression="zlib")
    return out.getvalue()


_DELETES = {
    "type": "record",
    "name": "delete",
    "fields": [
        {"name": "file_path", "type": "string", "field-id": 2147483546},
        {"name": "pos", "type": "long", "field-id": 2147483545},
    ],
}


def _avro_deletes() -> bytes:
    return avro_file(_DELETES, [{"file_path": f"s3://b/{n}.parquet", "pos": n} for n in range(ROWS)])


def _csv() -> bytes:
    return b"".join(b'"lake","t/%05d","%d","2026-01-01T00:00:00.000Z"\n' % (n, n) for n in range(ROWS))


def _manifest(kind: str, data: bytes) -> bytes:
    content = {
        "sourceBucket": "lake",
        "destinationBucket": "arn:aws:s3:::reports",
        "creationTimestamp": "1767225600000",
        "fileFormat": kind,
        "fileSchema": "Bucket, Key, Size, LastModifiedDate",
        "files": [{"key": "part", "size": len(data), "MD5checksum": hashlib.md5(data).hexdigest()}],
    }
    return json.dumps(content).encode()


def _reporting(kind: str) -> Callable[[bytes], Mapping[str, bytes]]:
    return lambda data: {"manifest.json": _manifest(kind, data)}


def _sealing(data: bytes) -> Mapping[str, bytes]:
    part = {"name": "part.parquet", "rows": 1, "size_in_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    schema = "struct<path:string,last_modified:timestamp,size_in_bytes:bigint>"
    return {"_sealed.json": json.dumps({"folder": "x", "schema": schema, "rows": 1, "parts": [part]}).encode()}


def _puffin() -> bytes:
    blob = b"roaring bitmap"
    footer = {
        "blobs": [
            {
                "type": "deletion-vector-v1",
                "fields": [],
                "snapshot-id": 1,
                "sequence-number": 1,
                "offset": 4,
                "length": len(blob),
                "properties": {"referenced-data-file": "s3://b/a.parquet", "cardinality": "1"},
            }
        ]
    }
    return _framed(blob, json.dumps(footer).encode(), 0)


def _framed(body: bytes, payload: bytes, flags: int) -> bytes:
    size = len(payload).to_bytes(4, "little")
    return b"PFA1" + body + b"PFA1" + payload + size + bytes([flags, 0, 0, 0]) + b"PFA1"


def _receipt_json() -> bytes:
    return json.dumps({"receipt": 1, "began_at": "2026-01-01T00:00:00+00:00", "ended_at": "x", "files": []}).encode()


def _yaml() -> bytes:
    return (Path(__file__).resolve().parents[2] / "lifecycle.yaml").read_bytes()


_GZIPPED = (gzip.decompress, gzip.compress)


# --- bombs ------------------------------------------------------------------------------------------------------------

MB = 1 << 20


def _repeated(packer: Any, begin: bytes, item: bytes, megabytes: int, end: bytes = b"") -> bytes:
    piece = item * (MB // len(item))
    out = [packer.compress(begin), *(packer.compress(piece) for _ in range(megabytes)), packer.compress(end)]
    return b"".join((*out, packer.flush()))


def _gzip(begin: bytes, item: bytes, megabytes: int, end: bytes = b"") -> bytes:
    return _repeated(zlib.compressobj(6, zlib.DEFLATED, 31), begin, item, megabytes, end)


def _nested() -> bytes:
    return b'{"files":' + b"[" * 2_000_000


_JSON_BOMBS: Mapping[str, Callable[[], bytes]] = {
    "nested": _nested,
    "empty objects": lambda: b'{"snapshots":[],"schemas":[' + b"{}," * 5_000_000 + b"{}]}",
    "a long number": lambda: b'{"snapshots":[],"format-version":' + b"9" * 2_000_000 + b"}",
}

_GZIP_BOMBS = {
    "a long text": lambda: _gzip(b'{"format-version":2,"x":"', b"a", 150, b'"}'),
    "a long text within the ratio": lambda: _gzip(b'{"format-version":2,"x":"', b"a", 60, b'"}'),
    "empty objects within the ratio": lambda: _gzip(b'{"snapshots":[],"schemas":[', b"{},", 20, b"{}]}"),
    "empty snapshots": lambda: _gzip(b'{"snapshots":[', b"{},", 20, b"{}]}"),
    "many members": lambda: gzip.compress(b"") * 200_000,
    "zeros": lambda: _gzip(b"", b"\0", 150),
}

_COLD_BOMBS = {"zeros": _GZIP_BOMBS["zeros"], "many members": _GZIP_BOMBS["many members"]}

_CSV_BOMBS = {
    "one line": lambda: _gzip(b"", b"a", 200),
    "one quoted value": lambda: _gzip(b'"', b"a\n", 200),
    "empty lines": lambda: _gzip(b"", b'"b","","",""\n', 100),
}


def _long(value: int) -> bytes:
    out, unsigned = bytearray(), (value << 1) ^ (value >> 63)
    while unsigned > 0x7F:
        out.append((unsigned & 0x7F) | 0x80)
        unsigned >>= 7
    return bytes((*out, unsigned))


def _container(schema: Any, codec: str, block: bytes, records: int = 1) -> bytes:
    def text(value: bytes) -> bytes:
        return _long(len(value)) + value

    header = text(b"avro.schema") + text(json.dumps(schema).encode()) + text(b"avro.codec") + text(codec.encode())
    return b"Obj\x01" + _long(2) + header + b"\0" + SYNC + _long(records) + _long(len(block)) + block + SYNC


def _with_field(kind: Any) -> Any:
    schema = json.loads(json.dumps(manifest_schema()))
    schema["fields"].insert(0, {"name": "bomb", "type": kind})
    return schema


def _raw(packed: Any, item: bytes, megabytes: int) -> bytes:
    return _repeated(packed, b"", item, megabytes)


def _deflate() -> Any:
    return zlib.compressobj(6, zlib.DEFLATED, -15)


def _laughs(levels: int) -> Any:
    """Records of records of records: ten of each in the one above it."""
    kind: Any = {"type": "record", "name": "r0", "fields": [{"name": "n", "type": "null"}]}
    for level in range(1, levels):
        fields = [{"name": "f0", "type": kind}]
        fields += [{"name": f"f{number}", "type": f"r{level - 1}"} for number in range(1, 10)]
        kind = {"type": "record", "name": f"r{level}", "fields": fields}
    return kind


_NULLS = {"type": "array", "items": "null"}

_AVRO_BOMBS = {
    "zstd zeros": lambda: _container(
        manifest_schema(), "zstandard", _raw(zstandard.ZstdCompressor().compressobj(), b"\0", 200)
    ),
    "deflate zeros": lambda: _container(manifest_schema(), "deflate", _raw(_deflate(), b"\0", 150)),
    "snappy of 32 GiB": lambda: _container(manifest_schema(), "snappy", b"\x80\x80\x80\x80\x80\x01" + b"x" * 30),
    "records of one byte": lambda: _container(manifest_schema(), "deflate", _raw(_deflate(), b"\0", 60), 60 * MB),
    "list records of one byte": lambda: _container(MANIFEST_LIST, "deflate", _raw(_deflate(), b"\0", 60), 60 * MB),
    "a list of nulls": lambda: _container(_with_field(_NULLS), "null", _long(2**40) + b"\0"),
    "many lists of nulls": lambda: _container(_with_field(_NULLS), "deflate", _raw(_deflate(), _long(60_000), 60)),
    "records that laugh": lambda: _container(_with_field(_laughs(30)), "null", b"\0" * 1000, 10),
    "a record in itself": lambda: _container(
        _with_field({"type": "record", "name": "r", "fields": [{"name": "f", "type": ["null", "r"]}]}),
        "deflate",
        _raw(_deflate(), b"\x02", 30),
    ),
    "many nulls": lambda: _container(
        {"type": "record", "name": "r", "fields": [{"name": f"n{n}", "type": "null"} for n in range(20_000)]},
        "null",
        b"\0" * 100,
        100,
    ),
    "a deep schema": lambda: b"Obj\x01" + _long(1) + _long(11) + b"avro.schema" + _long(MB) + b"[" * MB,
    "a header of many keys": lambda: b"Obj\x01" + _long(2**50) + b"\0" * 200_000,
}


def _lz4_footer() -> bytes:
    payload = bytes(pa.compress(b'{"blobs":[],"x":"' + b"a" * (100 * MB) + b'"}', "lz4"))
    return _framed(b"", payload, 1)


def _page_of_2_gib() -> bytes:
    # The size of the first page grows by some bytes, and is taken from the page itself.
    rows = pa.table({**{name: _rows().column(name) for name in ("path", "last_modified", "size_in_bytes")}})
    data = _parquet(rows, use_dictionary=False, compression="zstd", row_group_size=1000)
    plain = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(0)
    begin = plain.data_page_offset
    head = data[begin : begin + 40]
    assert head[:3] == b"\x15\x00\x15"
    return data[: begin + 3] + struct.pack("<5B", 0xFE, 0xFF, 0xFF, 0xFF, 0x0F) + data[begin + 8 :]


def _dictionary(megabytes: int, rows: int) -> bytes:
    value = "a" * (megabytes * MB)
    return _parquet(
        pa.table(
            {
                "path": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [value]),
                "file_path": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [value]),
                "bucket": ["b"] * rows,
                "key": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [value]),
                "size": pa.array([1] * rows, pa.int64()),
                "pos": pa.array([1] * rows, pa.int64()),
                "last_modified": pa.array([0] * rows, pa.timestamp("us", "UTC")),
                "last_modified_date": pa.array([0] * rows, pa.timestamp("us", "UTC")),
                "size_in_bytes": pa.array([1] * rows, pa.int64()),
            }
        ),
        row_group_size=rows,
        dictionary_pagesize_limit=64 * MB,
        store_schema=False,
        write_statistics=False,
    )


def _delta(megabytes: int, rows: int) -> bytes:
    """Each value is the one before it, which takes no bytes."""
    value = "a" * (megabytes * MB)
    when = pa.array([0] * rows, pa.timestamp("us", "UTC"))
    texts = pa.chunked_array([pa.array([value], pa.string())] * rows)
    sizes = pa.array([1] * rows, pa.int64())
    return _parquet(
        pa.table(
            {
                "path": texts,
                "file_path": texts,
                "pos": sizes,
                "key": texts,
                "bucket": ["b"] * rows,
                "size": sizes,
                "last_modified": when,
                "last_modified_date": when,
                "size_in_bytes": sizes,
            }
        ),
        row_group_size=rows,
        use_dictionary=False,
        column_encoding={"path": "DELTA_BYTE_ARRAY", "key": "DELTA_BYTE_ARRAY", "file_path": "DELTA_BYTE_ARRAY"},
        store_schema=False,
        write_statistics=False,
    )


_PARQUET_BOMBS: Mapping[str, Callable[[], bytes]] = {
    "a page of 2 GiB": _page_of_2_gib,
    "a long value in every row": lambda: _dictionary(2, 5_000),
    "a long value before every row": lambda: _delta(1, 70),
    "many equal rows": lambda: _dictionary(0, 1_000_000),
}

_ORC_BOMBS: Mapping[str, Callable[[], bytes]] = {
    "many equal rows": lambda: _orc(
        pa.table({name: pa.array(["x"] * 1_000_000) for name in ("bucket", "key", "file_path")})
    ),
    "a block of 1 TiB": lambda: _orc_block(),
    "a long value in every row": lambda: _orc_dictionary(),
}


def _orc_block() -> bytes:
    data = _orc(_delete_rows())
    size = data[-1]
    tail = data[-1 - size : -1]
    at = tail.index(b"\x18") + 1
    end = at
    while tail[end] & 0x80:
        end += 1
    tail = tail[:at] + b"\x80\x80\x80\x80\x80\x20" + tail[end + 1 :]
    return data[: -1 - size] + tail + bytes([len(tail)])


def _orc_dictionary() -> bytes:
    out = io.BytesIO()
    values = pa.array(["a" * MB] * 100)
    rows = pa.table({"file_path": values, "key": values, "bucket": ["b"] * 100, "pos": range(100), "size": range(100)})
    orc.write_table(rows, out, compression="zlib", dictionary_key_size_threshold=1.0, stripe_size=1 << 30)
    return out.getvalue()


_LAUGHS = b"".join(
    b"a%d: &a%d {%s}\n" % (level, level, b", ".join(b"k%d: *a%d" % (key, level - 1) for key in range(10)))
    for level in range(1, 12)
)
_YAML_BOMBS: Mapping[str, Callable[[], bytes]] = {
    "laughs": lambda: b"a0: &a0 {x: y}\n" + _LAUGHS,
    "itself": lambda: b"tables: &a {x: *a}\n",
    "nested": lambda: b"tables: " + b"[" * 100_000,
    "nested blocks": lambda: b"".join(b" " * depth + b"a:\n" for depth in range(3_000)),
    "a long number": lambda: b"defaults: {retention: {min_snapshots: " + b"9" * 100_000 + b"}}",
    "no date": lambda: b"tables: {2001-99-99: {}}",
    "50 MB": lambda: b"# " + b"x" * (50 * MB),
}
