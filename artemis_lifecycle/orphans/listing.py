"""Listings: the files that a store lists under a table's locations, sealed, with start and end time.

A listing is taken before the metadata with which it is compared. In the opposite order, files of a commit in between
would look like orphans.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import islice, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.errors import BadInput, LocationConflict
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.scans import ListingRecord
from artemis_lifecycle.protection.identity import Folders
from artemis_lifecycle.protection.ownership import is_root, outermost
from artemis_lifecycle.spark.runner import Cost, Rows, Runner, Spark
from artemis_lifecycle.storage.frames import arrow_schema, map_parts, write_batches, write_frame
from artemis_lifecycle.storage.location import LocationRules, is_under, normalize
from artemis_lifecycle.storage.stores import Stores, is_local
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.storage.types import Span, StoredFile

# --- locations --------------------------------------------------------------------------------------------------------
# The folders of a table to list.


def folders_to_list(
    table: str,
    current: Sequence[str],
    earlier: Sequence[str],
    location: str | None,
    rules: LocationRules,
    collected_roots: Sequence[str],
) -> list[str]:
    """Return the folders to list: the table's `current` and `earlier` locations, or `location`, which is one of them or
    a folder in one. Of the earlier ones, only those that overlap a root where orphans may be collected."""
    now = {normalize(own, rules) for own in current}
    former = [each for each in dict.fromkeys(earlier) if each not in now]
    folders = Folders(rules)
    if location is None:
        # Where no scan may collect, there is nothing to find.
        collected = [each for each in former if any(folders.overlap(each, root) for root in collected_roots)]
        return _each_once([*current, *collected], folders)
    if not is_root(normalize(location, rules)):
        location = location.rstrip("/")
    own = [*current, *former]
    if not any(normalize(location, rules) == normalize(each, rules) or is_under(location, each, rules) for each in own):
        raise BadInput(
            f"{location} is not one of the table's locations, nor a folder in one ({', '.join(own)})",
            table=table,
            untouched="all files",
            hint="use one of them, or a folder in it",
        )
    return [location]


def _each_once(locations: Sequence[str], folders: Folders) -> list[str]:
    """Remove folders that are equal to, or inside, another one under a second name, so that a file is listed once."""
    found: list[str] = []
    for each in locations:
        if not any(folders.is_in(each, other) for other in found):
            found = [*(other for other in found if not folders.is_in(other, each)), each]
    return found


LISTED = "path string, last_modified timestamp, size_in_bytes bigint"
"""The columns of a listing. last_modified is null if the store does not report it."""

OWN_LISTED = f"{LISTED}, tag bigint"
"""The columns of a listing that this project takes, with the store's token of each file (`storage.identity`)."""

_SPAN_FILES = f"{OWN_LISTED}, is_rest boolean"
"""Files, and for a partly listed span the rest as JSON in `path`."""

_ROUNDS = 8
_FILES_OF_A_SPAN = 50_000
"""Files listed per span in the first round; each round doubles it."""

_SPANS_PER_CORE = 4
_SPLITTERS = 8
_CHECKED_EVERY = 1.0
_ROWS = 10_000


@dataclass(frozen=True)
class Listing:
    """A sealed listing. Times are from the Postgres clock, before the first and after the last request to the store.

    `files_location` is the folder of a sealed frame: path, last_modified (null if the store does not report it),
    size_in_bytes. `locations` are the listed locations in the spelling of the table's metadata.
    """

    listing_id: str
    locations: tuple[str, ...]
    started_at: datetime
    finished_at: datetime
    files_location: str
    files: int
    bytes: int

    def record(self, table_uuid: str, table: str) -> ListingRecord:
        """Return the record that `operations.scans.store_listing` stores."""
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
    spark: Spark,
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
    """List everything below `locations` and seal it under `root`, which `sealed_by` can access if `stores` cannot.

    `locations` are folders in the spelling that listed paths shall have; nested ones are listed once. This process
    lists its own disk completely. On other stores, the first round lists a limited number of files per folder. If there
    are more, further rounds list spans of keys and split the rest of each again, so that even one flat prefix uses all
    executors. `clock` is the Postgres clock (`operations.clock.now`); `check` is called repeatedly, and may raise.

    Raises StorageError and seals nothing if any prefix cannot be listed: an incomplete listing is worse than none.
    Raises LocationConflict for a location that is a whole file system or bucket.
    """
    records = stores if sealed_by is None else sealed_by
    folders = listing_folders(locations, rules)
    listing_id = listing_id or f"listing-{uuid.uuid4().hex}"
    folder = f"{root}/listings/{listing_id}"
    started_at = clock()
    if all(is_local(each) for each in folders):
        return _listed_on_disk(stores, records, folders, listing_id, folder, started_at, clock, check)
    runner = Runner(spark)
    with runner.keeping() as keep:
        listed: list[Rows] = []
        for spans, most in _rounds(runner, stores, folders, listed):
            check()
            rows = _listed(runner, stores, spans, most)
            # The last round has only files, so its rows are read once.
            listed.append(rows if most is None else keep(rows))
        files = runner.concat(*listed).between("is_rest", False, False).select(*arrow_schema(OWN_LISTED).names)
        return seal_listed(files, f"{folder}/files", records, listing_id, folders, started_at, clock)


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
        sealed = write_batches(batches(), arrow_schema(OWN_LISTED), f"{folder}/files", records)
    return Listing(listing_id, tuple(folders), started_at, clock(), f"{folder}/files", sealed.rows, size)


def _rounds(
    runner: Runner, stores: Stores, folders: Sequence[str], listed: Sequence[Rows]
) -> Iterator[tuple[Sequence[Span], int | None]]:
    """Yield the spans to list next, and the maximum files to list of each (None: all). The caller appends results to
    `listed` before it requests the next round."""
    spans: Sequence[Span] = [Span(each) for each in folders]
    for turn in range(_ROUNDS):
        ordered = True
        if turn:
            rests = listed[-1].between("is_rest", True, True).table().column("path").to_pylist()
            if not rests:
                return
            spans = [Span(**json.loads(rest)) for rest in rests]
            # Without key order there are no spans: the server might omit keys between two.
            ordered = all(span.after is not None for span in spans)
            if ordered:
                spans = _divided(stores, spans, runner.cores * _SPANS_PER_CORE)
        last = turn == _ROUNDS - 1 or not ordered
        yield spans, None if last else _FILES_OF_A_SPAN << turn
        if last:
            return


def _divided(stores: Stores, spans: Sequence[Span], enough: int) -> Sequence[Span]:
    wanted = -(-enough // len(spans))
    if wanted <= 1:
        return spans
    divided = threaded(lambda span: stores.split(span, wanted), spans, _SPLITTERS)
    return [piece for pieces in divided for piece in pieces]


def _listed(runner: Runner, stores: Stores, spans: Sequence[Span], most: int | None) -> Rows:
    rows = pa.table({"span": [json.dumps(asdict(span)) for span in spans]})
    files = (_FILES_OF_A_SPAN << _ROUNDS if most is None else most) * len(spans)
    return runner.map(rows, _Lister(stores, most), arrow_schema(_SPAN_FILES), Cost(len(spans), files))


class _Lister:
    """Lists spans, at most `most` files of each (None: all). The rest of a span is a separate row."""

    def __init__(self, stores: Stores, most: int | None) -> None:
        self.stores = stores
        self.most = most

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for described in batch.column("span").to_pylist():
                span = Span(**json.loads(described))
                if span == Span(span.prefix):
                    yield from self._folder(span)
                else:
                    yield from self._span(span)

    def _folder(self, span: Span) -> Iterator[pa.RecordBatch]:
        found = self.stores.list(span.prefix)
        if self.most is None:
            yield from _batches(found)
            return
        first = list(islice(found, self.most))
        whole = len(first) < self.most
        ordered = self.stores.has_spans(span.prefix) and all(one.path < other.path for one, other in pairwise(first))
        if whole or ordered:
            yield from _batches(first)
        if not whole:
            yield _rest(replace(span, after=first[-1].path) if ordered else span)

    def _span(self, span: Span) -> Iterator[pa.RecordBatch]:
        last, count = span.after, 0
        for batch in _batches(islice(self.stores.list_span(span), self.most)):
            yield batch
            last, count = batch.column("path")[-1].as_py(), count + batch.num_rows
        if count == self.most:
            yield _rest(replace(span, after=last))


def _batches(files: Iterable[StoredFile]) -> Iterator[pa.RecordBatch]:
    """Columns as in `_SPAN_FILES`."""
    files = iter(files)
    while rows := [
        (file.path, file.last_modified, file.size_in_bytes, file.tag, False) for file in islice(files, _ROWS)
    ]:
        yield _batch(rows)


def _rest(span: Span) -> pa.RecordBatch:
    return _batch([(json.dumps(asdict(span)), None, None, None, True)])


def _batch(rows: Sequence[tuple[str, datetime | None, int | None, int | None, bool]]) -> pa.RecordBatch:
    schema = arrow_schema(_SPAN_FILES)
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def seal_listed(
    files: Rows,
    location: str,
    stores: Stores,
    listing_id: str,
    folders: Sequence[str],
    started_at: datetime,
    clock: Callable[[], datetime],
) -> Listing:
    """Seal `files` as a listing that was started at `started_at` and ends once they are written, because they are read
    from their source only now."""
    with around("orphans.seal_listing"):
        sealed = write_frame(files, location, stores)
    finished_at = clock()
    size = sum(map_parts(location, stores, _size, ["size_in_bytes"]))
    return Listing(listing_id, tuple(folders), started_at, finished_at, location, sealed.rows, size)


def listing_folders(locations: Sequence[str], rules: LocationRules) -> list[str]:
    """Return the outermost of `locations`, each in its first spelling, without a trailing slash."""
    spelled: dict[str, str] = {}
    for location in locations:
        trimmed = location.rstrip("/")
        normal = normalize(trimmed, rules)
        if not trimmed or is_root(normal):
            raise LocationConflict(
                "A whole file system or bucket cannot be a table's location: all in it would count as the table's",
                path=location,
                hint="use the table's own folder",
            )
        spelled.setdefault(normal, trimmed)
    if not spelled:
        raise BadInput("There is no location to list", hint="specify the table's location")
    return [spelled[normal] for normal in outermost(spelled)]


def _size(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(pc.sum(batch.column("size_in_bytes")).as_py() or 0 for batch in batches)
