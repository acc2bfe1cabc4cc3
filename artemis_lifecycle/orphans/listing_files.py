"""A listing that stands in files: what an S3 Inventory and Parquet files have in common, and the Parquet files. Belongs
here: which files they are, and reading one. Does not belong: what becomes of the rows (`given`).

They are read by pyarrow through `Stores`: no row of theirs passes through the JVM, and Spark needs no connector for the
place where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from artemis_lifecycle.errors import BadInput, StorageError
from artemis_lifecycle.storage.columnar import ParquetReader
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import pyarrow as pa

LISTED = "path string, last_modified timestamp, size_in_bytes bigint"
"""What a listing tells of each file: when it was last modified is null where the store does not tell."""


@dataclass(frozen=True)
class ListingFile:
    """One of the files of a listing; `md5` (hex) where somebody wrote down what it has to be. An unknown size is
    None."""

    path: str
    size_in_bytes: int | None
    md5: str | None = None


FileReader = Callable[[ListingFile], Iterator["pa.RecordBatch"]]
"""Rows as LISTED of one file. Picklable. Raises StorageError, BadInput."""


class ListingInFiles(Protocol):
    """A listing that stands in `files`. No object can be in it that was made after `begun_at`."""

    @property
    def begun_at(self) -> datetime: ...

    @property
    def files(self) -> Sequence[ListingFile]: ...

    def reader(self, stores: Stores, scheme: str) -> FileReader:
        """`scheme` is what paths begin with where the listing has only buckets and keys."""
        ...


@dataclass(frozen=True)
class ParquetListing:
    """Parquet files with the columns of LISTED among theirs. Timestamps without a zone are in UTC, as Spark writes
    them. `begun_at` is when the first of the files was written."""

    location: str
    begun_at: datetime
    files: tuple[ListingFile, ...]

    def reader(self, stores: Stores, scheme: str) -> FileReader:
        return _Reader(stores)


def read_parquet_listing(stores: Stores, location: str) -> ParquetListing:
    """The listing in the Parquet file `location`, or in the Parquet files below that folder, hidden ones (`_SUCCESS`,
    `.crc`) left out. Raises BadInput where there is none, or something else beside them; StorageError."""
    location = location.rstrip("/")
    one = stores.head(location)
    below = [one] if one is not None else [file for file in stores.list(location) if _shown(file.path, location)]
    other = [file.path for file in below if one is None and not file.path.endswith(".parquet")]
    if not below or other:
        raise BadInput(
            f"This is no listing in Parquet files: {'something else is among them' if other else 'there are none'}",
            path=other[0] if other else location,
            hint="name a Parquet file, or a folder of Parquet files and nothing else",
        )
    times = [file.last_modified for file in below if file.last_modified is not None]
    if not times:
        raise BadInput(
            "The store does not tell when this listing was written",
            path=location,
            hint="read it as a DataFrame, and pass that with listed_at",
        )
    files = tuple(ListingFile(file.path, file.size_in_bytes) for file in below)
    return ParquetListing(location, min(times), files)


def _shown(path: str, folder: str) -> bool:
    return not any(name.startswith(("_", ".")) for name in path[len(folder) :].split("/"))


class _Reader:
    """Reads Parquet files of a listing, some row groups at a time."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    def __call__(self, file: ListingFile) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        try:
            with self.stores.open(file.path) as stream:
                found = ParquetReader(stream, file.path, self.stores.limits, coerce_int96_timestamp_unit="us")
                _require_columns(found.schema, file.path)
                for batch in found.batches(["path", "last_modified", "size_in_bytes"]):
                    yield _as_listed(batch)
        except (pa.ArrowException, OverflowError, MemoryError) as error:
            raise StorageError(
                f"A file of the listing cannot be read: {error}",
                path=file.path,
                hint="take another listing, or leave it to this project to list the table",
            ) from error


def _require_columns(schema: pa.Schema, path: str) -> None:
    import pyarrow.types as kind

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
                hint="name and cast the columns so",
            )


def _as_listed(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    times: Any = in_utc(batch.column("last_modified"))
    return pa.RecordBatch.from_arrays(
        [
            pc.cast(batch.column("path"), pa.string()),
            # What is below a microsecond is cut off, which makes a file older by less than that; no more is lost.
            pc.cast(times, pa.timestamp("us", "UTC"), safe=times.type.unit != "ns"),
            pc.cast(batch.column("size_in_bytes"), pa.int64()),
        ],
        names=["path", "last_modified", "size_in_bytes"],
    )


def in_utc(times: Any) -> Any:
    """Times that do not name their zone are in UTC: so Spark and S3 write them."""
    import pyarrow.compute as pc

    return times if times.type.tz is not None else pc.assume_timezone(times, "UTC")
