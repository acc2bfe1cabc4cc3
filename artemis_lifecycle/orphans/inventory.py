"""An Amazon S3 Inventory as a listing: a report that the bucket itself writes, instead of paged list requests.

Source: the S3 user guide, "Amazon S3 Inventory" (manifest.json; CSV, ORC and Parquet reports). Each report file is
verified against its checksum in the manifest: a missing or damaged part is an error, not a shorter listing.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.errors import BadInput, StorageError
from artemis_lifecycle.orphans.external_listing import FileReader, ListingFile, in_utc
from artemis_lifecycle.storage.bounded import bounded_json
from artemis_lifecycle.storage.columnar import ParquetReader
from artemis_lifecycle.storage.location import split
from artemis_lifecycle.storage.orc import read_orc
from artemis_lifecycle.storage.stores import Stores

# The CSV report has its column names in the manifest, the others in their own schema.
_COLUMNS = {
    "Bucket": "bucket",
    "Key": "key",
    "Size": "size",
    "LastModifiedDate": "last_modified_date",
    "IsLatest": "is_latest",
    "IsDeleteMarker": "is_delete_marker",
}
_NEEDED = ("bucket", "key", "size", "last_modified_date")


@dataclass(frozen=True)
class Inventory:
    """One report of a bucket. `begun_at` is when S3 began to write it: it cannot have later objects, and metadata that
    is read later is read after the listing."""

    location: str
    bucket: str
    begun_at: datetime
    file_format: str
    columns: tuple[str, ...]
    files: tuple[ListingFile, ...]

    def reader(self, stores: Stores, scheme: str) -> FileReader:
        """Reads the existing objects: in a bucket with versions, the latest ones without delete markers."""
        return _Reader(stores, self.file_format, self.columns, scheme)


def read_inventory(stores: Stores, manifest: str) -> Inventory:
    """Return the inventory of a `manifest.json`. Raises BadInput if it is not one, and StorageError if it cannot be
    read."""
    data = stores.read(manifest)
    try:
        content: dict[str, Any] = bounded_json(data, manifest)
        begun_at = datetime.fromtimestamp(int(content["creationTimestamp"]) / 1000, UTC)
        destination = str(content["destinationBucket"]).removeprefix("arn:aws:s3:::")
        columns = tuple(_COLUMNS.get(name.strip(), name.strip()) for name in str(content["fileSchema"]).split(","))
        scheme = split(manifest).scheme
        # The manifest gives only the destination's bucket; on a local disk, the destination is a folder.
        root = f"{scheme}://{destination}" if scheme.startswith("s3") else manifest.rpartition("/")[0]
        files = tuple(
            ListingFile(f"{root}/{file['key']}", _size(file.get("size")), str(file["MD5checksum"]))
            for file in content["files"]
        )
        found = Inventory(manifest, str(content["sourceBucket"]), begun_at, content["fileFormat"], columns, files)
    except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError) as error:
        raise BadInput(
            f"This is not a manifest of an S3 inventory: {type(error).__name__} {error}",
            path=manifest,
            hint="use the manifest.json of an inventory, in the folder of its date",
        ) from error
    if found.file_format not in ("CSV", "ORC", "Parquet"):
        raise _unusable(f"its format {found.file_format!r} is not among CSV, ORC and Parquet", manifest)
    missing = [name for name in ("size", "last_modified_date") if found.file_format == "CSV" and name not in columns]
    if missing:
        raise _unusable(f"it has no {' and no '.join(missing)}", manifest)
    return found


def _size(given: Any) -> int | None:
    return None if given is None else int(given)


def _unusable(why: str, path: str) -> BadInput:
    return BadInput(
        f"The S3 inventory cannot be a listing: {why}",
        path=path,
        hint="configure the inventory with Size and LastModifiedDate, and wait for the next report",
    )


class _Reader:
    """Reads a report file after verifying its checksum."""

    def __init__(self, stores: Stores, file_format: str, columns: tuple[str, ...], scheme: str) -> None:
        self.stores = stores
        self.file_format = file_format
        self.columns = columns
        self.scheme = scheme

    def __call__(self, file: ListingFile) -> Iterator[pa.RecordBatch]:
        data = self.stores.read(file.path)
        if hashlib.md5(data, usedforsecurity=False).hexdigest() != file.md5:
            raise StorageError(
                "A file of the S3 inventory differs from its checksum",
                path=file.path,
                hint="use another inventory, or list the table",
            )
        try:
            for found in self._batches(data, file.path):
                yield self._rows(found)
        except (OSError, EOFError, zlib.error, ValueError, KeyError, MemoryError) as error:
            raise StorageError(
                f"A file of the S3 inventory cannot be read: {error}",
                path=file.path,
                hint="use another inventory, or list the table",
            ) from error

    def _batches(self, data: bytes, path: str) -> Iterator[pa.RecordBatch]:
        if self.file_format == "Parquet":
            yield from ParquetReader(data, path, self.stores.limits).batches()
        elif self.file_format == "ORC":
            yield from read_orc(data, path, self.stores.limits).table.to_batches()
        else:
            from pyarrow import csv

            rows = self.stores.limits.allowance(path, len(data)).gunzipped(io.BytesIO(data))
            options = csv.ReadOptions(column_names=list(self.columns))
            text = csv.ConvertOptions(column_types=dict.fromkeys(self.columns, "string"), strings_can_be_null=True)
            parse = csv.ParseOptions(newlines_in_values=True)
            yield from csv.open_csv(rows, options, parse, text)

    def _rows(self, found: pa.RecordBatch) -> pa.RecordBatch:
        missing = [name for name in _NEEDED if name not in found.schema.names]
        if missing:
            raise KeyError(f"no column {', '.join(missing)}")
        current: Any = pa.array([True] * found.num_rows)
        for name, wanted in (("is_latest", True), ("is_delete_marker", False)):
            if name in found.schema.names:
                flags = found.column(name)
                if pa.types.is_string(flags.type):
                    flags = pc.equal(pc.utf8_lower(flags), "true")
                # A bucket without versions leaves them empty.
                current = pc.and_(current, pc.equal(pc.fill_null(flags, wanted), wanted))
        kept = found.filter(current)
        keys = kept.column("key").to_pylist()
        if None in keys:
            raise KeyError("a row without a key")
        if self.file_format == "CSV":
            keys = [unquote_plus(key) for key in keys]
        buckets = kept.column("bucket").to_pylist()
        modified = kept.column("last_modified_date")
        if pa.types.is_string(modified.type):
            modified = pc.cast(modified, pa.timestamp("us", "UTC"))
        return pa.RecordBatch.from_pydict(
            {
                "path": pa.array(
                    [f"{self.scheme}://{bucket}/{key}" for bucket, key in zip(buckets, keys, strict=True)], pa.string()
                ),
                "last_modified": pc.cast(in_utc(modified), pa.timestamp("us", "UTC")),
                "size_in_bytes": pc.cast(kept.column("size"), pa.int64()),
            }
        )
