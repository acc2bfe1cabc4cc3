"""An S3 Inventory as a listing, in each of its formats; what is not whole is an error."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from artemis_lifecycle.errors import BadInput, StorageError
from artemis_lifecycle.orphans.external_listing import read_inventory
from artemis_lifecycle.storage.stores import Stores

OLD = datetime(2026, 1, 1, 12, 30, 15, tzinfo=UTC)
BEGUN = OLD + timedelta(days=60)
# (key, size, is_latest, is_delete_marker): names that a careless reader decodes twice, or not at all.
OBJECTS = [
    ("t/data/plain.parquet", 10, True, False),
    ("t/data/a b+c%20d.parquet", 20, True, False),
    ('t/data/ümlaut,"quoted"\n.parquet', 30, True, False),
    ("t/data/overwritten.parquet", 40, False, False),
    ("t/data/deleted.parquet", None, True, True),
]


def report(folder: Path, file_format: str, **changes: Any) -> str:
    """An inventory in two report files, as S3 writes it; its manifest's path."""
    folder.mkdir()
    files = []
    for number, objects in enumerate((OBJECTS[:2], OBJECTS[2:])):
        data = written(file_format, objects)
        name = f"part-{number}.{file_format.lower()}"
        (folder / name).write_bytes(data)
        files.append({"key": name, "size": len(data), "MD5checksum": hashlib.md5(data).hexdigest()})
    manifest = {
        "sourceBucket": "lake",
        "destinationBucket": "arn:aws:s3:::reports",
        "version": "2016-11-30",
        "creationTimestamp": str(int(BEGUN.timestamp() * 1000)),
        "fileFormat": file_format,
        "fileSchema": "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate"
        if file_format == "CSV"
        else "message s3.inventory {}",
        "files": files,
        **changes,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return f"file://{folder}/manifest.json"


def written(file_format: str, objects: list[tuple[str, int | None, bool, bool]]) -> bytes:
    if file_format == "CSV":
        text = io.StringIO()
        writer = csv.writer(text, quoting=csv.QUOTE_ALL)
        for key, size, latest, marker in objects:
            stamp = OLD.strftime("%Y-%m-%dT%H:%M:%S.000Z")
            flags = [str(latest).lower(), str(marker).lower()]
            writer.writerow(["lake", quote_plus(key, safe="/"), "v1", *flags, "" if size is None else size, stamp])
        return gzip.compress(text.getvalue().encode())
    keys, sizes, latest, markers = zip(*objects, strict=True)
    table = pa.table(
        {
            "bucket": ["lake"] * len(keys),
            "key": keys,
            "version_id": ["v1"] * len(keys),
            "is_latest": latest,
            "is_delete_marker": markers,
            "size": pa.array(sizes, pa.int64()),
            "last_modified_date": pa.array([OLD.replace(tzinfo=None)] * len(keys), pa.timestamp("ms")),
        }
    )
    buffer = io.BytesIO()
    if file_format == "ORC":
        orc.write_table(table, buffer)
    else:
        pq.write_table(table, buffer)
    return buffer.getvalue()


def read(manifest: str, scheme: str = "s3") -> list[dict[str, Any]]:
    found = read_inventory(Stores(), manifest)
    reader = found.reader(Stores(), scheme)
    return [row for file in found.files for batch in reader(file) for row in batch.to_pylist()]


@pytest.mark.parametrize("file_format", ["CSV", "ORC", "Parquet"])
def test_existing_objects_are_listed(tmp_path: Path, file_format: str) -> None:
    manifest = report(tmp_path / "inventory", file_format)
    found = read_inventory(Stores(), manifest)
    assert (found.bucket, found.begun_at) == ("lake", BEGUN)
    rows = read(manifest, "s3a")
    assert {row["path"]: row["size_in_bytes"] for row in rows} == {
        f"s3a://lake/{key}": size for key, size, latest, marker in OBJECTS if latest and not marker
    }
    assert {row["last_modified"] for row in rows} == {OLD}


def test_what_is_not_whole_is_an_error(tmp_path: Path) -> None:
    manifest = report(tmp_path / "cut", "Parquet")
    part = tmp_path / "cut" / "part-1.parquet"
    part.write_bytes(part.read_bytes()[:-7])
    with pytest.raises(StorageError, match="checksum"):
        read(manifest)
    part.unlink()
    with pytest.raises(StorageError, match="absent"):
        read(manifest)
    garbage = b"not parquet"
    files = [{"key": "garbage", "MD5checksum": hashlib.md5(garbage).hexdigest()}]
    manifest = report(tmp_path / "none", "Parquet", files=files)
    (tmp_path / "none" / "garbage").write_bytes(garbage)
    with pytest.raises(StorageError, match="cannot be read"):
        read(manifest)


@pytest.mark.parametrize(
    "changes",
    [
        {"creationTimestamp": "soon"},
        {"fileFormat": "JSON"},
        {"fileSchema": "Bucket, Key"},
        {"files": [{"key": "x"}]},
        {"files": 7},
    ],
)
def test_a_file_that_is_not_an_inventory_is_reported(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        read_inventory(Stores(), report(tmp_path / "inventory", "CSV", **changes))
