"""The orphan scan: from a listing of the table's locations to a sealed list of unreferenced files.

1. `listing` (or `external_listing`) lists the files, and ends. 2. `scan_orphans` reads the table's metadata again, and
what protects its files. A writer that stops in between has
  committed before the pointer is read, or is seen by its heartbeat.
3. `candidates` are the listed files that no snapshot reaches. `missing` stops the scan if the listing lacks files. 4.
`seal_scan` asks protection about each candidate. It seals the verdicts, and the orphans with a guess of their origin
  (`origins`), so that another process can explain (`result`) or delete (`delete`) them.

`dropped` scans the files of a dropped table, `cold` those of a cold table; `trend` compares scans.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.deletion.batches import DeletionJob
from artemis_lifecycle.deletion.report import DeletionReport, report_of
from artemis_lifecycle.deletion.worker import DEFAULT_SETTINGS, DeletionSettings, delete_job
from artemis_lifecycle.errors import (
    BadInput,
    MissingFile,
    NaiveDatetime,
    NoSuchTable,
    PrefixMismatch,
    StaleMetadata,
    StalePlan,
    StorageError,
)
from artemis_lifecycle.metadata import types
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.leases import Lease
from artemis_lifecycle.operations.scans import ScanRecord, ScanState, new_scan_id
from artemis_lifecycle.orphans.listing import LISTED, Listing
from artemis_lifecycle.orphans.origins import ORPHAN, ORPHANS, Origins, known
from artemis_lifecycle.protection.context import Asking, DeletionContext
from artemis_lifecycle.protection.future import evidence, remember, require_no_future, unsettled
from artemis_lifecycle.protection.ownership import own_locations, sidecars, subject_array
from artemis_lifecycle.protection.places import IN_FLIGHT
from artemis_lifecycle.protection.protection import PREFIX_MISMATCH, TOO_YOUNG, Ages, ProtectedFiles, Protection
from artemis_lifecycle.protection.table_state import REACHABLE
from artemis_lifecycle.protection.table_state import metadata_files as own_metadata_files
from artemis_lifecycle.reachability.files import ReachedFiles
from artemis_lifecycle.reachability.index.lookups import Meant
from artemis_lifecycle.spark.runner import Rows, Runner, Spark
from artemis_lifecycle.storage.frames import (
    arrow_schema,
    describe_frame,
    frame_batches,
    frame_of,
    map_parts,
    owner_folder,
    read_frame,
    write_batches,
)
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle.storage.location import LocationRules, distinct, hash_column, is_under, normalize, parent
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.tabular import Shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# --- result -----------------------------------------------------------------------------------------------------------
# The result of an orphan scan: its counts, and the location of its sealed files.


@dataclass(frozen=True)
class OrphanSummary:
    """Counts of a scan, in files; sizes in bytes. By reason: why listed files are kept, or `orphan`."""

    listed_files: int
    listed_bytes: int
    orphan_files: int
    orphan_bytes: int
    too_young: int
    live_writers: int
    files_by_reason: Mapping[str, int]
    bytes_by_reason: Mapping[str, int]
    orphans_by_kind: Mapping[str, int]
    orphans_by_origin: Mapping[str, int]

    @property
    def orphan_share(self) -> float:
        """The share of orphans among the listed files, from 0 to 1."""
        return self.orphan_files / self.listed_files if self.listed_files else 0.0

    @property
    def in_flight_bytes(self) -> int:
        """The bytes of the files that the scan skipped as in flight."""
        return sum(self.bytes_by_reason.get(reason, 0) for reason in (TOO_YOUNG, IN_FLIGHT))


@dataclass(frozen=True)
class OrphanScanResult(Shown):
    """A sealed scan. Nothing was changed.

    `skipped_in_flight` counts unreferenced files that a writer may still be writing: files that are too young or belong
    to a live writer. The summary distinguishes the two.
    """

    scan_id: str
    table: str
    table_uuid: str
    listing_id: str
    metadata_location: str
    listed_at: datetime
    metadata_read_at: datetime
    files_location: str
    skipped_in_flight: int
    summary: OrphanSummary
    _spark: Spark = field(repr=False, compare=False)
    _stores: Stores = field(repr=False, compare=False)

    def files(self) -> DataFrame:
        """Return DataFrame[path, kind, size_in_bytes, last_modified, reason, origin], one row per orphan. `kind` and
        `origin` are guesses from the name."""
        return frame_of(self._spark, self.files_location, self._stores).drop("tag")

    def unreferenced(self) -> DataFrame:
        """Return DataFrame[path, size_in_bytes, last_modified, verdict]: every listed file that the table does not
        reach, with `orphan` or the reason why it is kept."""
        folder = f"{owner_folder(self.files_location)}/unreferenced"
        return frame_of(self._spark, folder, self._stores).drop("tag")

    @property
    def orphan_data_files(self) -> DataFrame:
        """Return DataFrame[path] of data files and delete files."""
        files = self.files()
        return files.where(files.kind.isin(*sorted(types.CONTENT_KINDS))).select("path")

    @property
    def orphan_manifests(self) -> DataFrame:
        """Return DataFrame[path] of manifests and manifest lists."""
        files = self.files()
        return files.where(files.kind.isin(types.MANIFEST, types.MANIFEST_LIST)).select("path")


def load_scan(spark: Spark, stores: Stores, operations: Operations, scan_id: str) -> OrphanScanResult:
    """Return the stored scan with that id; works from any process. Raises NoSuchPlan; StorageError if its seal is
    missing."""
    record = operations.scans.get(scan_id)
    if record.forgetting_at is not None:
        return result_of(record, spark, stores)  # Its list is gone on purpose; its counts are in its record.
    sealed = describe_frame(record.files_location, stores)
    if sealed is None or sealed.rows != record.files:
        raise StorageError(
            f"The sealed files of scan {scan_id} are missing, or not the {record.files:,} in its record",
            table=record.table,
            path=record.files_location,
            untouched="all files",
            hint=record.again,
        )
    return result_of(record, spark, stores)


def result_of(record: ScanRecord, spark: Spark, stores: Stores) -> OrphanScanResult:
    return OrphanScanResult(
        scan_id=record.scan_id,
        table=record.table,
        table_uuid=record.table_uuid,
        listing_id=record.listing_id or "",
        metadata_location=record.metadata_location,
        listed_at=record.listed_at,
        metadata_read_at=record.metadata_read_at,
        files_location=record.files_location,
        skipped_in_flight=record.skipped_in_flight,
        summary=OrphanSummary(**json.loads(record.summary)),
        _spark=spark,
        _stores=stores,
    )


class ScanCounts:
    """Counts files and bytes of the rows that pass through, by columns."""

    def __init__(self) -> None:
        self.files: dict[str, Counter[str]] = defaultdict(Counter)
        self.sizes: dict[str, Counter[str]] = defaultdict(Counter)

    def of(self, batches: Iterable[pa.RecordBatch], *columns: str) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for column in columns:
                totals = rows.group_by(column).aggregate([("path", "count"), ("size_in_bytes", "sum")]).to_pylist()
                for total in totals:
                    self.files[column][total[column]] += total["path_count"]
                    self.sizes[column][total[column]] += total["size_in_bytes_sum"] or 0
            yield batch

    def summary(self, listing: Listing) -> OrphanSummary:
        """Return the summary of the scan of `listing`."""
        files, sizes = (dict(sorted(counter["verdict"].items())) for counter in (self.files, self.sizes))
        # Some are reached under a different name than the listed one.
        files.pop(REACHABLE, None)
        sizes.pop(REACHABLE, None)
        reached, reached_bytes = listing.files - sum(files.values()), listing.bytes - sum(sizes.values())
        return OrphanSummary(
            listed_files=listing.files,
            listed_bytes=listing.bytes,
            orphan_files=files.get(ORPHAN, 0),
            orphan_bytes=sizes.get(ORPHAN, 0),
            too_young=files.get(TOO_YOUNG, 0),
            live_writers=files.get(IN_FLIGHT, 0),
            files_by_reason={REACHABLE: reached} | files,
            bytes_by_reason={REACHABLE: reached_bytes} | sizes,
            orphans_by_kind=dict(sorted(self.files["kind"].items())),
            orphans_by_origin=dict(sorted(self.files["origin"].items())),
        )


# --- missing ----------------------------------------------------------------------------------------------------------
# Files that snapshots reach and that are missing from a complete listing.
#
# Such a file was lost, or its path in the metadata is damaged: Avro has no checksum, and a flipped bit may still
# decode to another path. Then the real file is in the listing, unreached: it looks like an orphan, but is live. An
# incorrect or incomplete listing shows in the same way.

LOOKED_UP = 10_000
"""Maximum number of unlisted files that are looked up individually."""

_HEADS = 16
_SHOWN = 5
_PARTS_AT_ONCE = 8


def listed_folders(listing: Listing, rules: LocationRules) -> Meant:
    """Return what says of a folder whether the listing has the files that are directly in it."""
    roots = [normalize(location, rules) for location in listing.locations]
    return lambda folder: any(is_under(f"{normalize(folder, rules)}/-", root, rules) for root in roots)


def require_nothing_missing(
    stores: Stores, files: ReachedFiles, listing: Listing, parts: Sequence[ListedPart], rules: LocationRules, table: str
) -> None:
    """Look up each file that a snapshot older than `listing` reaches below its locations and that the listing lacks (by
    `parts`; a checksum file does not stand for its file). Raises MissingFile if the store does not have one either, and
    for more than are looked up."""
    began = milliseconds(listing.started_at)
    listed = files_themselves(parts)
    unlisted = files.outside(began, listed, listed_folders(listing, rules), at_most=LOOKED_UP + 1)
    if len(unlisted) > LOOKED_UP:
        raise MissingFile(
            f"The listing lacks more than {LOOKED_UP:,} files that snapshots reach, too many to look up each, e.g. "
            f"{', '.join(unlisted[:_SHOWN])}: it is not of the whole table, or they were lost",
            table=table,
            path=unlisted[0],
            untouched="all files",
            hint="list the table again, or give no listing of your own; orphans.missing_files: ignore lets scans "
            "go on without",
        )
    # A file exists if it was written after the listing, by a writer whose clock is behind.
    found = threaded(stores.head, unlisted, stores.readers(listing.locations[0], _HEADS))
    missing = [path for path, file in zip(unlisted, found, strict=True) if file is None]
    if missing:
        raise MissingFile(
            f"{len(missing):,} files that snapshots reach are not in the store, e.g. {', '.join(missing[:_SHOWN])}: "
            "they were lost, or damaged metadata names them wrongly, and the right ones would look like orphans",
            table=table,
            path=missing[0],
            untouched="all files",
            hint="check which snapshots reach them (artemis explain TABLE PATH) and fix or expire those; "
            "orphans.missing_files: ignore lets scans go on without",
        )


# --- candidates -------------------------------------------------------------------------------------------------------
# Candidates: the listed files that a table does not reach.

CANDIDATE = f"{LISTED}, tag bigint, kind string"


@dataclass(frozen=True)
class Candidates:
    """The listed files that the table does not reach (columns: `CANDIDATE`). Each method reads them again."""

    rows: Rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self.rows.batches()

    def paths(self) -> Iterator[pa.Array]:
        return (batch.column("path") for batch in self.batches())

    def metadata_files(self) -> Iterator[str]:
        """Yield the paths of those that are metadata files by name."""
        for batch in self.batches():
            yield from batch.column("path").filter(pc.equal(batch.column("kind"), types.METADATA)).to_pylist()


@contextmanager
def candidates(
    spark: Spark, listing: Listing, stores: Stores, reached: Sequence[NDArray[np.bool_]]
) -> Iterator[Candidates]:
    """Yield the files of `listing` that are not `reached`, which has a mask for each part. They are readable until the
    block ends."""
    runner = Runner(spark)
    with runner.keeping() as keep:
        rows = read_frame(runner, listing.files_location, stores, [~mask for mask in reached])
        yield Candidates(keep(rows.map(_with_kinds, arrow_schema(CANDIDATE))))


def _with_kinds(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [batch.column(name) for name in arrow_schema(LISTED).names]
        # Only a listing that this project took has the store's tokens.
        tags = batch.column("tag") if "tag" in batch.schema.names else pa.nulls(batch.num_rows, pa.int64())
        columns += [tags, types.kinds_by_name(subject_array(batch.column("path")))]
        yield pa.RecordBatch.from_arrays(columns, schema=arrow_schema(CANDIDATE))


@dataclass(frozen=True)
class ListedPart:
    """One part of a sealed listing: the location hash of the file to which each path belongs, and which paths are that
    file itself, not a checksum beside it."""

    hashes: NDArray[np.uint64]
    itself: NDArray[np.bool_]


def listed_parts(folder: str, stores: Stores, rules: LocationRules) -> list[ListedPart]:
    """Return the parts of a sealed listing, in order."""

    def hashed(batches: Iterator[pa.RecordBatch]) -> ListedPart:
        hashes, itself = [np.empty(0, np.uint64)], [np.empty(0, np.bool_)]
        for batch in batches:
            hashes.append(hash_column(subject_array(batch.column("path")), rules))
            itself.append(~sidecars(batch.column("path")))
        return ListedPart(np.concatenate(hashes), np.concatenate(itself))

    return list(map_parts(folder, stores, hashed, ["path"]))


def reached_parts(files: ReachedFiles, parts: Sequence[ListedPart]) -> list[NDArray[np.bool_]]:
    """Return which files of each part are reached. Each question reads the whole index, so it is about many parts."""
    found: list[NDArray[np.bool_]] = []
    for start in range(0, len(parts), _PARTS_AT_ONCE):
        hashes = [part.hashes for part in parts[start : start + _PARTS_AT_ONCE]]
        reached = files.reaches(np.concatenate(hashes))
        found += np.split(reached, np.cumsum([len(each) for each in hashes])[:-1])
    return found


def files_themselves(parts: Sequence[ListedPart]) -> NDArray[np.uint64]:
    """Return the sorted location hashes of the listed files, without those of which only a checksum file is listed."""
    return distinct(np.concatenate([np.empty(0, np.uint64), *(part.hashes[part.itself] for part in parts)]))


def metadata_files(listing: Listing, stores: Stores) -> Iterator[str]:
    """Yield the paths of the listed files that are metadata files by name."""
    for batch in frame_batches(listing.files_location, stores):
        paths = batch.column("path")
        yield from paths.filter(pc.equal(types.kinds_by_name(subject_array(paths)), types.METADATA)).to_pylist()


JUDGED = "path string, size_in_bytes bigint, last_modified timestamp, tag bigint, kind string, verdict string"

_PAIRS_SHOWN = 10


@dataclass(frozen=True)
class ScanSettings:
    """The policy of a scan. `min_age` is relative to the listing's start; `older_than` replaces it.

    `metadata_min_age` (the retention window) applies to metadata files outside the metadata log. `prefix_mismatch` is
    error, ignore or delete. `missing_files` says how to treat files that snapshots reach and a complete listing lacks.
    `is_whole` means that the listing has every file below the table's locations.
    """

    min_age: timedelta
    min_age_floor: timedelta
    metadata_min_age: timedelta
    prefix_mismatch: str = "error"
    older_than: datetime | None = None
    now: datetime | None = None
    missing_files: Literal["error", "ignore"] = "ignore"
    is_whole: bool = True


def scan_orphans(
    context: DeletionContext,
    listing: Listing,
    settings: ScanSettings,
    *,
    table_uuid: str,
    history_read_at: datetime | None = None,
) -> OrphanScanResult:
    """Find the orphans in `listing` and seal them. Reads the table's metadata again after the listing; changes nothing.

    `history_read_at` is when the caller read the history that it shows with the scan; it must also be after the
    listing.

    Raises StaleMetadata for metadata read before the listing ended, and for metadata files newer than the catalog's
    pointer; PrefixMismatch with pairs of paths; BadInput for an `older_than` inside the floor; NoSuchTable if the table
    is gone or replaced; UnreadableMetadata and StorageError for anything unreadable: then there is no scan.
    """
    table = context.table
    if history_read_at is not None:
        require_after(listing, history_read_at, table)
    ages = cutoffs(listing, settings, table)
    if context.is_branched:
        # Which metadata files stay is decided by the references: no reader finds another one by the table's log.
        ages = replace(ages, metadata_cutoff=ages.cutoff)
    asking = Asking(new_scan_id(), "orphans", table, table_uuid)
    protection = Protection(context, asking)
    protection.refresh_neighbors()
    unlisted = (
        []
        if settings.is_whole or context.layout is not None
        else _metadata_files(context, table_uuid, listing.locations)
    )
    read_at = context.operations.clock.now()
    require_after(listing, read_at, table)
    try:
        protection.read()
    except StalePlan as error:
        raise NoSuchTable(error.what, table=table, untouched="all files", hint="list and scan the new table") from error
    metadata = protection.metadata
    parts = listed_parts(listing.files_location, context.stores, context.rules)
    files = protection.own_files
    assert files is not None
    if settings.missing_files == "error":
        require_nothing_missing(context.stores, files, listing, parts, context.rules, table)
    reached = reached_parts(files, parts)
    with candidates(context.spark, listing, context.stores, reached) as unreached:
        # Exclude those of a listing that need not be complete.
        named = dict.fromkeys([*unreached.metadata_files(), *unlisted] if context.layout is None else ())
        found = evidence(context.stores, metadata, named, context.rules, context.operations.table_locations)
        if not context.is_branched:
            remember(found.newer, context.stores, context.operations.table_locations, table_uuid, read_at)
        newer = () if context.is_branched else found.newer
        settled = context.operations.settled_metadata.of_table(table_uuid)
        left = unsettled(context.stores, newer, settled, context.rules)
        require_no_future(left, table, metadata.metadata_location)
        tried = [each.metadata_location for each in found.attempts]
        tried = unsettled(context.stores, tried, settled, context.rules)
        attempts = [each for each in found.attempts if each.metadata_location in tried]
        protection.protect(found.foreign, attempts, found.strangers)
        return seal_scan(
            context,
            asking,
            protection,
            listing,
            unreached,
            ages,
            Origins(known(metadata)),
            read_at=read_at,
            mismatches=settings.prefix_mismatch,
        )


def _metadata_files(context: DeletionContext, table_uuid: str, listed: Sequence[str]) -> list[str]:
    """Return the metadata files in all current and former folders of the table, and around what was `listed`. This runs
    before the pointer is read: a file that is committed in between is not a later commit."""
    metadata = read_table_metadata(context.stores, context.entry().metadata_location)
    had = context.operations.table_locations
    places = [metadata.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    folders = {parent(normalize(place, context.rules)) for place in (*places, *had.pointers(table_uuid))}
    folders |= {f"{location}/metadata" for location in had.of_table(table_uuid)}
    # Include folders around the listed locations, which may have a table that no known catalog has.
    for location in (normalize(each.rstrip("/"), context.rules) for each in listed):
        around = location
        while any(is_under(around, own, context.rules) for own in own_locations(metadata, context.rules)):
            folders.add(f"{around}/metadata")
            around = parent(around)
    found = (file.path for folder in sorted(folders) for file in context.stores.list(folder))
    return [path for path in found if types.kind_by_name(path) == types.METADATA]


def require_newest(context: DeletionContext, table_uuid: str) -> None:
    """Raise StaleMetadata for metadata files that are newer than the catalog's pointer. It may have been put back since
    a scan was sealed: then what a commit in between took up still looks like an orphan."""
    if context.is_branched or context.layout is not None:
        return
    listed = _metadata_files(context, table_uuid, ())
    metadata = read_table_metadata(context.stores, context.entry().metadata_location)
    own = own_metadata_files(metadata, context.rules)
    named = [path for path in dict.fromkeys(listed) if normalize(path, context.rules) not in own]
    found = evidence(context.stores, metadata, named, context.rules, context.operations.table_locations)
    settled = context.operations.settled_metadata.of_table(table_uuid)
    left = unsettled(context.stores, found.newer, settled, context.rules)
    require_no_future(left, context.table, metadata.metadata_location)


def seal_scan(
    context: DeletionContext,
    asking: Asking,
    protection: Protection,
    listing: Listing,
    unreached: Candidates,
    ages: Ages,
    origins: Origins,
    *,
    read_at: datetime,
    mismatches: str,
) -> OrphanScanResult:
    """Ask protection for each candidate whether it may be deleted. Seal the verdicts and the orphans among them."""
    spark, stores = context.spark, context.stores
    folder = f"{context.root}/scans/{asking.job_id}"
    protection.consider(unreached.paths())
    twins = None if mismatches == "delete" else protection.twins(unreached.paths())
    counts = ScanCounts()
    judged = counts.of(_judged(protection.protected(ages, twins), unreached), "verdict")
    write_batches(judged, arrow_schema(JUDGED), f"{folder}/unreferenced", stores)
    if mismatches == "error" and counts.files["verdict"][PREFIX_MISMATCH]:
        raise _mismatch(context, protection, f"{folder}/unreferenced", counts.files["verdict"][PREFIX_MISMATCH])
    orphans = (batch for batch in map(origins, frame_batches(f"{folder}/unreferenced", stores)) if batch.num_rows)
    counted = counts.of(orphans, "kind", "origin")
    with around("orphans.seal_scan"):
        write_batches(counted, arrow_schema(ORPHANS), f"{folder}/files", stores)
    summary = counts.summary(listing)
    metadata = protection.metadata
    record = context.operations.scans.store(
        ScanRecord(
            scan_id=asking.job_id,
            table_uuid=metadata.table_uuid,
            table=context.table,
            listing_id=listing.listing_id,
            listed_at=listing.started_at,
            listing_finished_at=listing.finished_at,
            metadata_location=metadata.metadata_location,
            metadata_read_at=read_at,
            files_location=f"{folder}/files",
            files=summary.orphan_files,
            bytes=summary.orphan_bytes,
            skipped_young=summary.too_young,
            skipped_in_flight=summary.too_young + summary.live_writers,
            summary=json.dumps(asdict(summary)),
            kind="dropped" if asking.kind == "dropped" else "orphans",
        )
    )
    return result_of(record, spark, stores)


def _judged(protected: ProtectedFiles, unreached: Candidates) -> Iterator[pa.RecordBatch]:
    """Yield each candidate with its verdict (columns: `JUDGED`)."""
    for batch in unreached.batches():
        verdicts = np.full(batch.num_rows, ORPHAN, object)
        for row, why in protected.reasons(batch).items():
            verdicts[row] = why
        columns = [batch.column(name) for name in ("path", "size_in_bytes", "last_modified", "tag", "kind")]
        yield pa.RecordBatch.from_arrays([*columns, pa.array(verdicts, pa.string())], schema=arrow_schema(JUDGED))


def _mismatch(context: DeletionContext, protection: Protection, judged: str, count: int) -> PrefixMismatch:
    paths: list[str] = []
    for batch in frame_batches(judged, context.stores):
        found = batch.column("path").filter(pc.equal(batch.column("verdict"), PREFIX_MISMATCH)).to_pylist()
        paths = sorted([*paths, *found])[:_PAIRS_SHOWN]
    pairs = dict(protection.twin_pairs(pa.array(paths, pa.string())))
    named = "; ".join(f"{paths[row]} and {twin}" for row, twin in pairs.items())
    return PrefixMismatch(
        f"{count:,} listed files have a reachable twin under another scheme or authority: {named}",
        table=context.table,
        untouched="all files",
        hint="if both are the same place, set it in orphans.equal_schemes or equal_authorities; "
        "if not, set orphans.prefix_mismatch: ignore (or delete)",
    )


def require_after(listing: Listing, read_at: datetime, table: str) -> None:
    """Raise StaleMetadata if metadata was read before the listing ended: all files of a commit in between would be
    orphans."""
    if read_at < listing.finished_at:
        raise StaleMetadata(
            f"The metadata was read at {read_at.isoformat()}, before the listing ended at "
            f"{listing.finished_at.isoformat()}: files committed in between would look like orphans",
            table=table,
            untouched="all files",
            hint="read the history again and scan with that",
        )


def cutoffs(listing: Listing, settings: ScanSettings, table: str) -> Ages:
    """Return the times from which on files are too young.

    Ages are relative to the listing's start, or to `now` if that is earlier: a listed file may have been finished since
    then.
    """
    for name, value in (("now", settings.now), ("older_than", settings.older_than)):
        NaiveDatetime.refuse(name, value, table=table, untouched="all files")
    base = listing.started_at if settings.now is None else min(settings.now, listing.started_at)
    newest = base - settings.min_age_floor
    if settings.older_than is not None and settings.older_than > newest:
        raise BadInput(
            f"older_than {settings.older_than.isoformat()} is later than {newest.isoformat()}, which is min_age_floor "
            f"({settings.min_age_floor}) before the listing: files of commits in flight would count as orphans",
            table=table,
            untouched="all files",
            hint="use an earlier instant, or lower orphans.min_age_floor in lifecycle.yaml",
        )
    by_age = base - max(settings.min_age, settings.min_age_floor)
    cutoff = by_age if settings.older_than is None else settings.older_than
    return Ages(cutoff, min(cutoff, base - settings.metadata_min_age))


# --- delete -----------------------------------------------------------------------------------------------------------
# Deleting the orphans of a stored scan: runs the deletion worker on the scan's sealed files.


def job_of(scan: ScanRecord) -> DeletionJob:
    """Return the deletion job of a stored scan."""
    return DeletionJob(
        job_id=scan.scan_id,
        kind=scan.kind,
        table_uuid=scan.table_uuid,
        table=scan.table,
        files_location=scan.files_location,
        files=scan.files,
    )


def delete_orphans(
    context: DeletionContext,
    scan_id: str,
    *,
    lease: Lease | None,
    results_catalog: str,
    settings: DeletionSettings = DEFAULT_SETTINGS,
    dry_run: bool = False,
    pause: Callable[[], str | None] = lambda: None,
) -> DeletionReport:
    """Delete the files of the scan, or continue deleting them. For a finished scan, return its report.

    The arguments are those of `delete_job`. Each file is checked again. It is kept if a snapshot now reaches it, if a
    writer's heartbeat covers it, or if it differs from the listed file. The outcomes are queued for publication to
    `<results_catalog>.lifecycle.deletions`. Raises NoSuchPlan for an unknown scan, and what `delete_job` raises.
    """
    operations = context.operations
    scan = operations.scans.get(scan_id)
    # The table may have another name by now.
    job = replace(job_of(scan), table=context.table)
    if scan.state == ScanState.DONE:
        return report_of(context.spark, context.stores, operations, job, context.root)
    if not dry_run:
        operations.scans.mark(scan_id, {ScanState.OPEN, ScanState.DELETING}, ScanState.DELETING)
    report = delete_job(context, job, lease=lease, settings=settings, dry_run=dry_run, pause=pause)
    if not dry_run:
        if report.has_outcomes:
            operations.publications.deletion(results_catalog, job.job_id)
        if not report.pending and not report.failed:
            operations.scans.mark(scan_id, {ScanState.DELETING}, ScanState.DONE)
    return report
