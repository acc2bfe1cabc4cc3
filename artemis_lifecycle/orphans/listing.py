"""Listings: what a store shows under a table's locations, sealed, with the times between which it was taken.

A listing comes before the metadata that it is compared with. Taken the other way round, a commit in between makes its
files look like orphans.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

from artemis_lifecycle.errors import BadInput, LocationConflict
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.scans import ListingRecord
from artemis_lifecycle.orphans.listing_files import LISTED
from artemis_lifecycle.orphans.listing_tasks import SPAN_FILES, Lister, SpanFile, span_files
from artemis_lifecycle.protection.ownership import is_root, outermost
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.frames import (
    ROWS_HERE,
    arrow_schema,
    map_parts,
    read_frame,
    read_table,
    write_batches,
    write_frame,
    write_table,
)
from artemis_lifecycle.storage.location import LocationRules, normalise
from artemis_lifecycle.storage.stores import Stores, is_local
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.storage.types import Span

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_ROUNDS = 8
_FILES_OF_A_TASK = 50_000
"""What a task lists of a span in the first round; in each round twice as many."""

_SPLITTERS = 8
_CHECKED_EVERY = 1.0


@dataclass(frozen=True)
class Listing:
    """A sealed listing. Times are Postgres' clock, before the first and after the last request to the store.

    `files_location` is the folder of a sealed frame: path, last_modified (null where the store does not tell),
    size_in_bytes. `locations` are what was listed, as the table's metadata spells them.
    """

    listing_id: str
    locations: tuple[str, ...]
    started_at: datetime
    finished_at: datetime
    files_location: str
    files: int
    bytes: int

    def record(self, table_uuid: str, table: str) -> ListingRecord:
        """What `operations.scans.store_listing` stores."""
        return ListingRecord(
            listing_id=self.listing_id,
            table_uuid=table_uuid,
            table=table,
            location=json.dumps(self.locations),
            files_location=self.files_location,
            started_at=self.started_at,
            finished_at=self.finished_at,
            files=self.files,
            bytes=self.bytes,
        )

    @classmethod
    def of_record(cls, record: ListingRecord) -> Listing:
        return cls(
            record.listing_id,
            tuple(json.loads(record.location)),
            record.started_at,
            record.finished_at,
            record.files_location,
            record.files,
            record.bytes,
        )


def list_table(
    spark: SparkSession,
    stores: Stores,
    locations: Sequence[str],
    *,
    root: str,
    clock: Callable[[], datetime],
    rules: LocationRules,
    listing_id: str | None = None,
    sealed_by: Stores | None = None,
    check: Callable[[], None] = lambda: None,
) -> Listing:
    """List everything below `locations` and seal it under `root`, which `sealed_by` reach where `stores` do not.

    `locations` are folders in the spelling that the listed paths shall have; nested ones are listed once. This process
    lists its own disk, however much there is. On S3 it lists some ten thousand files; where it finds more, executors
    list spans of keys, each as far as a task may go, and what is left of a span is divided anew: also one flat prefix
    keeps all of them busy. The driver then sees spans, and no files. `clock` is Postgres' (`operations.clock.now`);
    `check` is asked again and again, and may raise.

    Raises StorageError, sealing nothing, when any prefix cannot be listed: a listing with holes is worse than none;
    LocationConflict for a location that is a whole file system or bucket.
    """
    records = stores if sealed_by is None else sealed_by
    folders = listing_folders(locations, rules)
    listing_id = listing_id or f"listing-{uuid.uuid4().hex}"
    folder = f"{root}/listings/{listing_id}"
    started_at = clock()
    if all(is_local(each) for each in folders):
        return _listed_on_disk(stores, records, folders, listing_id, folder, started_at, clock, check)
    small, ordered = _listed_here(stores, folders)
    if small is not None:
        with around("orphans.seal_listing"):
            write_table(small, f"{folder}/files", records)
        return _taken(listing_id, folders, started_at, clock(), f"{folder}/files", small)
    levels: list[DataFrame] = []
    try:
        for spans, most in _rounds(spark, stores, folders, ordered, levels):
            check()
            listed = _listed(spark, stores, spans, most)
            # Of the last round only the files are asked for, once.
            levels.append(listed if most is None else listed.persist())
        everything = reduce(lambda one, other: one.unionByName(other), levels)
        files = everything.where("NOT is_rest").select("path", "last_modified", "size_in_bytes")
        return seal_listed(files, f"{folder}/files", records, listing_id, folders, started_at, clock)
    finally:
        for listed in levels:
            listed.unpersist()


def _listed_on_disk(
    stores: Stores,
    records: Stores,
    folders: Sequence[str],
    listing_id: str,
    folder: str,
    started_at: datetime,
    clock: Callable[[], datetime],
    check: Callable[[], None],
) -> Listing:
    import pyarrow.compute as pc

    size = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal size
        asked_at = time.monotonic()
        for each in folders:
            for batch in stores.batches(each):
                size += pc.sum(batch.column("size_in_bytes")).as_py() or 0
                if time.monotonic() - asked_at > _CHECKED_EVERY:
                    check()
                    asked_at = time.monotonic()
                yield batch

    with around("orphans.seal_listing"):
        sealed = write_batches(batches(), arrow_schema(LISTED), f"{folder}/files", records)
    return Listing(listing_id, tuple(folders), started_at, clock(), f"{folder}/files", sealed.rows, size)


def _rounds(
    spark: SparkSession, stores: Stores, folders: Sequence[str], ordered: bool, levels: Sequence[DataFrame]
) -> Iterator[tuple[Sequence[Span], int | None]]:
    """The spans that executors should list next, and the most files that a task should list of one (None: all).
    `levels` gets what they listed before the next round is asked for."""
    enough = int(spark.sparkContext.defaultParallelism) * 4
    spans: Sequence[Span] = [Span(each) for each in folders]
    if not ordered:
        # Without an order there are no spans. Nobody can tell what another server would leave out.
        yield spans, None
        return
    most = _FILES_OF_A_TASK
    for turn in range(_ROUNDS):
        wanted = -(-enough // len(spans))
        if wanted > 1:
            divided = threaded(lambda span: _divided(stores, span, wanted), spans, _SPLITTERS)  # noqa: B023
            spans = [piece for pieces in divided for piece in pieces]
        last = turn == _ROUNDS - 1
        yield spans, None if last else most
        if last:
            return
        with worker_errors():
            # Kept, so that the files of this round are not listed a second time.
            rests = levels[-1].where("is_rest").select("path").collect()
        if not rests:
            return
        spans = [Span(**json.loads(row["path"])) for row in rests]
        most *= 2


def _divided(stores: Stores, span: Span, wanted: int) -> Sequence[Span]:
    return [span] if is_local(span.prefix) else stores.split(span, wanted)


def listed_files(spark: SparkSession, stores: Stores, listing: Listing) -> DataFrame:
    """DataFrame[path, last_modified, size_in_bytes] of a sealed listing."""
    return read_frame(spark, listing.files_location, stores)


def seal_listed(
    files: DataFrame,
    location: str,
    stores: Stores,
    listing_id: str,
    folders: Sequence[str],
    started_at: datetime,
    clock: Callable[[], datetime],
) -> Listing:
    """Seal `files` as a listing that was begun at `started_at` and ends once they are written: they are read from their
    source only now."""
    with around("orphans.seal_listing"), worker_errors():
        sealed = write_frame(files, location, stores)
    finished_at = clock()
    small = read_table(location, stores)
    if small is not None:
        return _taken(listing_id, folders, started_at, finished_at, location, small)
    size = sum(map_parts(location, stores, _size, ["size_in_bytes"]))
    return Listing(listing_id, tuple(folders), started_at, finished_at, location, sealed.rows, size)


def _taken(
    listing_id: str,
    folders: Sequence[str],
    started_at: datetime,
    finished_at: datetime,
    location: str,
    files: pa.Table,
) -> Listing:
    import pyarrow.compute as pc

    size = pc.sum(files.column("size_in_bytes")).as_py() or 0
    return Listing(listing_id, tuple(folders), started_at, finished_at, location, files.num_rows, size)


def _listed_here(stores: Stores, folders: Sequence[str]) -> tuple[pa.Table | None, bool]:
    """All files below `folders`; None once there are more than this process should list on its own. And whether they
    came in the order of their names."""
    import pyarrow as pa

    rows: list[SpanFile] = []
    ordered = True
    for folder in folders:
        last = ""
        for file in stores.list(folder):
            ordered = ordered and (is_local(folder) or last < file.path)
            last = file.path
            rows.append((file.path, file.last_modified, file.size_in_bytes, False))
            if len(rows) > ROWS_HERE:
                return None, ordered
    names = ["path", "last_modified", "size_in_bytes"]
    return pa.Table.from_batches([span_files(rows).select(names)]), ordered


def listing_folders(locations: Sequence[str], rules: LocationRules) -> list[str]:
    """The outermost of `locations`, each in its first spelling, without a closing slash."""
    spelled: dict[str, str] = {}
    for location in locations:
        trimmed = location.rstrip("/")
        normal = normalise(trimmed, rules)
        if not trimmed or is_root(normal):
            raise LocationConflict(
                "A whole file system or bucket cannot be a table's location: all in it would be taken for the table's",
                path=location,
                hint="name the table's own folder",
            )
        spelled.setdefault(normal, trimmed)
    if not spelled:
        raise BadInput("There is no location to list", hint="name the table's location")
    return [spelled[normal] for normal in outermost(spelled)]


def _listed(spark: SparkSession, stores: Stores, spans: Sequence[Span], most: int | None) -> DataFrame:
    tasks = min(len(spans), int(spark.sparkContext.defaultParallelism) * 4)
    rows = spark.createDataFrame([(json.dumps(asdict(span)),) for span in spans], "span string")
    rows = rows.repartition(tasks) if tasks > 1 else rows.coalesce(1)
    return rows.mapInArrow(Lister(stores, most), SPAN_FILES)


def _size(_: int, batches: Iterator[pa.RecordBatch]) -> int:
    import pyarrow.compute as pc

    return sum(pc.sum(batch.column("size_in_bytes")).as_py() or 0 for batch in batches)
