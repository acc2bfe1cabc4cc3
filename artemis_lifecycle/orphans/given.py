"""A listing that somebody else made, sealed as one of ours. Belongs here: what such a listing has to be, which of its
rows are the table's, and each path once. Does not belong: how the files of one are read (`listing_files`, `inventory`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from artemis_lifecycle.errors import BadInput, NaiveDatetime
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.orphans.listing import Listing, listing_folders, seal_listed
from artemis_lifecycle.orphans.listing_files import LISTED, ListingInFiles
from artemis_lifecycle.orphans.listing_tasks import Below
from artemis_lifecycle.storage.frames import drop_frame, map_parts, read_frame, row_hashes, write_frame, write_sources
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.location_hash import distinct
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

FILES_HERE = 512 * 2**20
"""Up to so many bytes of a listing's files are read in this process: some ten million rows."""

Noted = tuple["NDArray[np.uint64]", int]
"""A hash of each path as it is spelled, and the files' bytes."""


def given_listing(
    spark: SparkSession,
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
    """Seal a listing that somebody else made: DataFrame[path, last_modified, size_in_bytes], or one in files.

    `taken_at` is when its making began; `scheme` as in `ListingInFiles.reader`. Rows outside `locations` are left out;
    a path listed twice counts once, as its youngest. Files are read here, or by executors where they are large.

    Raises BadInput for a missing or mistyped column, a path that is null or no UTF-8, or a `taken_at` in the future;
    StorageError for a file that cannot be read.
    """
    import numpy as np
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    if taken_at.tzinfo is None or taken_at.utcoffset() is None:
        raise NaiveDatetime(f"taken_at={taken_at.isoformat()} has no time zone", hint="pass an aware datetime")
    if isinstance(listing, DataFrame):
        _require_columns(listing)
    now = clock()
    if taken_at > now:
        raise BadInput(
            f"The listing was taken at {taken_at.isoformat()}, and it is {now.isoformat()}",
            hint="pass the time at which the listing was begun, in UTC",
        )
    folders = listing_folders(locations, rules)
    listing_id = f"listing-{uuid.uuid4().hex}"
    folder = f"{root}/listings/{listing_id}"
    started_at = taken_at.astimezone(UTC)
    below = Below(folders, rules)
    with around("orphans.seal_listing"):
        if isinstance(listing, DataFrame):
            given = listing.select(
                "path", "last_modified", F.col("size_in_bytes").cast("bigint").alias("size_in_bytes")
            )
            files, noted = write_frame(given, f"{folder}/files", stores, below).rows, None
        else:
            files, noted = _sealed_here_or_there(spark, stores, listing, scheme, f"{folder}/files", below)
    finished_at = clock()
    if noted is None:
        noted = list(map_parts(f"{folder}/files", stores, _noted_of, ["path", "size_in_bytes"]))
    hashes = np.concatenate([np.empty(0, np.uint64), *(hashed for hashed, _ in noted)])
    # Two paths of one hash count as one here, and are told apart below.
    if len(distinct(hashes)) == len(hashes):
        size = sum(size for _, size in noted)
        return Listing(listing_id, tuple(folders), started_at, finished_at, f"{folder}/files", files, size)
    # Rare, and dear: every path goes through a shuffle.
    once = (
        read_frame(spark, f"{folder}/files", stores)
        .groupBy("path")
        .agg(
            # One row without a time makes the time unknown: unknown means kept.
            F.when(F.count("last_modified") == F.count("*"), F.max("last_modified")).alias("last_modified"),
            F.max("size_in_bytes").alias("size_in_bytes"),
        )
        .select("path", F.col("last_modified").cast("timestamp").alias("last_modified"), "size_in_bytes")
    )
    listed = seal_listed(once, f"{folder}/once", stores, listing_id, folders, started_at, clock)
    drop_frame(f"{folder}/files", stores)
    return listed


def _sealed_here_or_there(
    spark: SparkSession, stores: Stores, listing: ListingInFiles, scheme: str, folder: str, below: Below
) -> tuple[int, list[Noted] | None]:
    """The rows that were sealed, and what was noted of them where this process has seen them."""
    reader = listing.reader(stores, scheme)
    sizes = [file.size_in_bytes for file in listing.files]
    if None in sizes or sum(size or 0 for size in sizes) > FILES_HERE:
        return write_sources(listing.files, reader, LISTED, folder, stores, below, spark=spark).rows, None
    noted: list[Noted] = []

    def kept(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = below(batch)
        noted.append(_noted(rows))
        return rows

    return write_sources(listing.files, reader, LISTED, folder, stores, kept).rows, noted


def _noted(rows: pa.RecordBatch) -> Noted:
    import pyarrow.compute as pc

    return row_hashes(rows.select(["path"]), 1), pc.sum(rows.column("size_in_bytes")).as_py() or 0


def _noted_of(_: int, batches: Iterator[pa.RecordBatch]) -> Noted:
    import numpy as np

    noted = [_noted(batch) for batch in batches]
    return np.concatenate([np.empty(0, np.uint64), *(hashes for hashes, _ in noted)]), sum(size for _, size in noted)


def _require_columns(listing: DataFrame) -> None:
    from pyspark.sql.types import IntegerType, LongType, StringType, TimestampType

    wanted = {"path": (StringType,), "last_modified": (TimestampType,), "size_in_bytes": (LongType, IntegerType)}
    types = {column.name: column.dataType for column in listing.schema.fields}
    for name, accepted in wanted.items():
        if name not in types or not isinstance(types[name], accepted):
            found = types[name].simpleString() if name in types else "nothing"
            raise BadInput(
                f"A listing needs path string, last_modified timestamp, size_in_bytes bigint; {name} is {found}",
                hint="name and cast the columns so",
            )
