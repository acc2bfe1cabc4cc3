"""External listings: an S3 Inventory (`inventory`), Parquet files or a DataFrame, sealed as a listing of this project.

pyarrow reads the files through `Stores`: their rows do not pass through the JVM, and Spark needs no connector for their
store.
"""

from __future__ import annotations

import hashlib
import io
import json
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote_plus

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind
from numpy.typing import NDArray

from artemis_lifecycle.errors import BadInput, NaiveDatetime, StorageError
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.orphans.listing import LISTED, Listing, listing_folders, seal_listed
from artemis_lifecycle.spark.runner import BatchFunction, Cost, Runner, Spark
from artemis_lifecycle.storage.bounded import bounded_json
from artemis_lifecycle.storage.columnar import ParquetReader
from artemis_lifecycle.storage.frames import arrow_schema, drop_frame, map_parts, read_frame, write_frame
from artemis_lifecycle.storage.location import LocationRules, hash_strings, is_under, normalize, split
from artemis_lifecycle.storage.orc import read_orc
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# --- inventory --------------------------------------------------------------------------------------------------------
# An Amazon S3 Inventory as a listing: a report that the bucket itself writes, instead of paged list requests.
#
# Source: the S3 user guide, "Amazon S3 Inventory" (manifest.json; CSV, ORC and Parquet reports). Each report file is
# verified against its checksum in the manifest: a missing or damaged part is an error, not a shorter listing.

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


_UNKNOWN_SIZE = 1 << 30
"""The assumed size of a file of unknown size."""


@dataclass(frozen=True)
class ListingFile:
    """A file of a listing; `md5` (hex) is its required checksum, if known. An unknown size is None."""

    path: str
    size_in_bytes: int | None
    md5: str | None = None


FileReader = Callable[[ListingFile], Iterator["pa.RecordBatch"]]
"""Returns the rows of one file as LISTED. Picklable. Raises StorageError, BadInput."""


class ListingInFiles(Protocol):
    """A listing in `files`. It cannot have objects that were created after `begun_at`."""

    @property
    def begun_at(self) -> datetime: ...

    @property
    def files(self) -> Sequence[ListingFile]: ...

    def reader(self, stores: Stores, scheme: str) -> FileReader:
        """`scheme` is the scheme of paths if the listing has only buckets and keys."""
        ...


def given_listing(
    spark: Spark,
    stores: Stores,
    listing: DataFrame | ListingInFiles,
    locations: Sequence[str],
    *,
    taken_at: datetime,
    root: str,
    clock: Callable[[], datetime],
    rules: LocationRules,
    scheme: str = "s3",
) -> Listing:
    """Seal an external listing: DataFrame[path, last_modified, size_in_bytes], or one in files.

    `taken_at` is when its creation began; `scheme` as in `ListingInFiles.reader`. Rows outside `locations` are ignored.
    A path listed twice counts once, with the most recent time. Files are read here, or by executors if they are large.

    Raises BadInput for a missing or mistyped column, a path that is null or not UTF-8, or a `taken_at` in the future;
    StorageError for a file that cannot be read.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    NaiveDatetime.refuse("taken_at", taken_at)
    if isinstance(listing, DataFrame):
        _require_frame_columns(listing)
    now = clock()
    if taken_at > now:
        raise BadInput(
            f"The listing was taken at {taken_at.isoformat()}, but it is {now.isoformat()}",
            hint="pass the time at which the listing was started, in UTC",
        )
    folders = listing_folders(locations, rules)
    listing_id = f"listing-{uuid.uuid4().hex}"
    folder = f"{root}/listings/{listing_id}"
    started_at = taken_at.astimezone(UTC)
    below: BatchFunction = Below(folders, rules)
    runner, cost = Runner(spark), None
    if isinstance(listing, DataFrame):
        size = F.col("size_in_bytes").cast("bigint").alias("size_in_bytes")
        source = runner.rows(listing.select("path", "last_modified", size), arrow_schema(LISTED))
    else:
        source = runner.rows(pa.table({"file": [json.dumps(asdict(file)) for file in listing.files]}))
        sizes = (_UNKNOWN_SIZE if file.size_in_bytes is None else file.size_in_bytes for file in listing.files)
        cost = Cost(len(listing.files), size_in_bytes=sum(sizes))
        below = partial(_rows_of_files, listing.reader(stores, scheme), below)
    with around("orphans.seal_listing"):
        sealed = write_frame(source, f"{folder}/files", stores, through=below, schema=arrow_schema(LISTED), cost=cost)
    finished_at = clock()
    # Eight bytes for each file, once.
    hashes, filled, summed = np.empty(sealed.rows, np.uint64), 0, 0
    for hashed, size_of_part in map_parts(f"{folder}/files", stores, _noted, ["path", "size_in_bytes"]):
        hashes[filled : filled + len(hashed)] = hashed
        filled, summed = filled + len(hashed), summed + size_of_part
    hashes.sort()
    # Two paths with one hash count as one here, and are distinguished below.
    if not (hashes[1:] == hashes[:-1]).any():
        return Listing(listing_id, tuple(folders), started_at, finished_at, f"{folder}/files", sealed.rows, summed)
    # Rare and expensive: every path goes through a shuffle.
    listed = read_frame(runner, f"{folder}/files", stores)
    rows = runner.meet([listed], "path", once, listed.schema, Cost(rows=sealed.rows))
    found = seal_listed(rows, f"{folder}/once", stores, listing_id, folders, started_at, clock)
    drop_frame(f"{folder}/files", stores)
    return found


def rows_below(
    stores: Stores, listing: ListingInFiles, locations: Sequence[str], rules: LocationRules, scheme: str = "s3"
) -> pa.Table:
    """Return the rows of `given_listing` in memory, without sealing them."""
    read, kept = listing.reader(stores, scheme), Below(locations, rules)
    batches = [batch for file in listing.files for batch in kept(read(file)) if batch.num_rows]
    return once(pa.Table.from_batches(batches, arrow_schema(LISTED)))


def _rows_of_files(
    read: FileReader, kept: BatchFunction, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files that `kept` accepts. Each file is read when its turn comes."""
    for batch in batches:
        for file in batch.column("file").to_pylist():
            yield from kept(read(ListingFile(**json.loads(file))))


def _noted(batches: Iterator[pa.RecordBatch]) -> tuple[NDArray[np.uint64], int]:
    """Return a hash of each path in its original spelling, and the files' total bytes."""
    hashes, size = [np.empty(0, np.uint64)], 0
    for batch in batches:
        hashes.append(hash_strings(batch.column("path")))
        size += pc.sum(batch.column("size_in_bytes")).as_py() or 0
    return np.concatenate(hashes), size


def once(files: pa.Table) -> pa.Table:
    """Return one row per path, with the most recent time. One row without a time makes the time unknown, so the file is
    kept."""
    rows = files.append_column("untimed", pc.is_null(files.column("last_modified")))
    kept = rows.group_by("path").aggregate([("last_modified", "max"), ("size_in_bytes", "max"), ("untimed", "any")])
    times = kept.column("last_modified_max")
    times = pc.if_else(kept.column("untimed_any"), pa.scalar(None, times.type), times)
    sizes = kept.column("size_in_bytes_max")
    return pa.table({"path": kept.column("path"), "last_modified": times, "size_in_bytes": sizes})


def _require_frame_columns(listing: DataFrame) -> None:
    from pyspark.sql.types import IntegerType, LongType, StringType, TimestampType

    wanted = {"path": (StringType,), "last_modified": (TimestampType,), "size_in_bytes": (LongType, IntegerType)}
    types = {column.name: column.dataType for column in listing.schema.fields}
    for name, accepted in wanted.items():
        if name not in types or not isinstance(types[name], accepted):
            found = types[name].simpleString() if name in types else "nothing"
            raise BadInput(
                f"A listing needs path string, last_modified timestamp, size_in_bytes bigint; {name} is {found}",
                hint="rename and cast the columns accordingly",
            )


class Below:
    """Keeps the rows whose path is below one of the folders. Raises BadInput for a row without a path, or with a path
    that is not text."""

    def __init__(self, folders: Sequence[str], rules: LocationRules) -> None:
        self.folders = tuple(folders)
        self.roots = tuple(normalize(folder, rules) for folder in folders)
        self.rules = rules

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(self._kept, batches)

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        paths = batch.column("path")
        if paths.null_count:
            raise BadInput("The listing has a row without a path", hint="leave such rows out")
        try:
            paths.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BadInput(f"The listing has a path that is not UTF-8: {error}", hint="leave such rows out") from error
        below = self._plainly(paths)
        for row in np.flatnonzero(~below).tolist():
            below[row] = any(is_under(paths[row].as_py(), root, self.rules) for root in self.roots)
        return batch if below.all() else batch.filter(pa.array(below))

    def _plainly(self, paths: pa.Array) -> NDArray[np.bool_]:
        """Return which paths begin with a folder as spelled, and continue without a dot or slash that could lead
        elsewhere."""
        below = np.zeros(len(paths), np.bool_)
        for folder in self.folders:
            begun = pc.and_(pc.starts_with(paths, f"{folder}/"), pc.not_equal(paths, f"{folder}/"))
            if begun.true_count == 0:
                continue
            # A folder has no trailing slash: a plain path below it has exactly the folder's own occurrences.
            for odd in ("//", "/."):
                begun = pc.and_(begun, pc.equal(pc.count_substring(paths, odd), folder.count(odd)))
            below |= begun.to_numpy(zero_copy_only=False)
        return below


@dataclass(frozen=True)
class ParquetListing:
    """Parquet files whose columns include those of LISTED. Timestamps without a zone are in UTC, as Spark writes them.
    `begun_at` is when the first of the files was written."""

    location: str
    begun_at: datetime
    files: tuple[ListingFile, ...]

    def reader(self, stores: Stores, scheme: str) -> FileReader:
        return partial(_read_parquet, stores)


def read_parquet_listing(stores: Stores, location: str) -> ParquetListing:
    """Return the listing in the Parquet file `location`, or in the Parquet files below that folder, without hidden ones
    (`_SUCCESS`, `.crc`). Raises BadInput if there are none, or other files among them; StorageError."""
    location = location.rstrip("/")
    one = stores.head(location)
    below = [one] if one is not None else [file for file in stores.list(location) if _shown(file.path, location)]
    other = [file.path for file in below if one is None and not file.path.endswith(".parquet")]
    if not below or other:
        raise BadInput(
            f"This is not a listing in Parquet files: {'something else is among them' if other else 'there are none'}",
            path=other[0] if other else location,
            hint="use a Parquet file, or a folder that has only Parquet files",
        )
    times = [file.last_modified for file in below if file.last_modified is not None]
    if not times:
        raise BadInput(
            "The store does not report when this listing was written",
            path=location,
            hint="read it as a DataFrame, and pass that with listed_at",
        )
    files = tuple(ListingFile(file.path, file.size_in_bytes) for file in below)
    return ParquetListing(location, min(times), files)


def _shown(path: str, folder: str) -> bool:
    return not any(name.startswith(("_", ".")) for name in path[len(folder) :].split("/"))


def _read_parquet(stores: Stores, file: ListingFile) -> Iterator[pa.RecordBatch]:
    """Read a Parquet file of a listing, a few row groups at a time."""
    try:
        with stores.open(file.path) as stream:
            found = ParquetReader(stream, file.path, stores.limits, coerce_int96_timestamp_unit="us")
            _require_columns(found.schema, file.path)
            for batch in found.batches(["path", "last_modified", "size_in_bytes"]):
                yield _as_listed(batch)
    except (pa.ArrowException, OverflowError, MemoryError) as error:
        raise StorageError(
            f"A file of the listing cannot be read: {error}",
            path=file.path,
            hint="use another listing, or let this project list the table",
        ) from error


def _require_columns(schema: pa.Schema, path: str) -> None:
    def text(found: pa.DataType) -> bool:
        spelled = found.value_type if kind.is_dictionary(found) else found
        return bool(kind.is_string(spelled) or kind.is_large_string(spelled))

    wanted = {"path": text, "last_modified": kind.is_timestamp, "size_in_bytes": kind.is_integer}
    for name, accepted in wanted.items():
        one = len(schema.get_all_field_indices(name)) == 1
        found = schema.field(name).type if one else None
        if found is None or not accepted(found):
            raise BadInput(
                f"A listing needs path string, last_modified timestamp, size_in_bytes bigint; {name} is "
                f"{'not one column' if found is None else found}",
                path=path,
                hint="rename and cast the columns accordingly",
            )


def _as_listed(batch: pa.RecordBatch) -> pa.RecordBatch:
    times: Any = in_utc(batch.column("last_modified"))
    return pa.RecordBatch.from_arrays(
        [
            pc.cast(batch.column("path"), pa.string()),
            # Precision below a microsecond is cut off, which makes a file look that much older.
            pc.cast(times, pa.timestamp("us", "UTC"), safe=times.type.unit != "ns"),
            pc.cast(batch.column("size_in_bytes"), pa.int64()),
        ],
        names=["path", "last_modified", "size_in_bytes"],
    )


def in_utc(times: Any) -> Any:
    """Interpret times without a zone as UTC, as Spark and S3 write them."""
    return times if times.type.tz is not None else pc.assume_timezone(times, "UTC")
