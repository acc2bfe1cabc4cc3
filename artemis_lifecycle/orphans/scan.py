"""The orphan scan: listed, and neither reachable nor protected. Sealed, so that another process deletes or explains it.

In this order: the listing ends; then protection reads its sources. A writer that stops in between has committed before
the pointer is read, or is seen by its heartbeat.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING, Literal

from artemis_lifecycle.errors import (
    BadInput,
    NaiveDatetime,
    NoSuchTable,
    PrefixMismatch,
    StaleMetadata,
    StalePlan,
    StorageError,
)
from artemis_lifecycle.metadata import kinds
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.scans import ScanRecord
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.missing import require_nothing_missing
from artemis_lifecycle.orphans.names import Known as History
from artemis_lifecycle.orphans.names import kind_by_name, kinds_by_name, known, origins_of
from artemis_lifecycle.protection.context import Asking, DeletionContext
from artemis_lifecycle.protection.future import evidence, remember, require_no_future
from artemis_lifecycle.protection.ownership import own_locations, subject_array
from artemis_lifecycle.protection.places import IN_FLIGHT
from artemis_lifecycle.protection.protection import PREFIX_MISMATCH, TOO_YOUNG, Ages, ProtectedFiles, Protection
from artemis_lifecycle.protection.table_state import REACHABLE
from artemis_lifecycle.storage.frames import (
    arrow_schema,
    describe_frame,
    frame_batches,
    map_parts,
    read_frame,
    write_batches,
)
from artemis_lifecycle.storage.location import LocationRules, is_under, normalise, parent
from artemis_lifecycle.storage.location_hash import hash_column
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

ORPHAN = "orphan"

JUDGED = "path string, size_in_bytes bigint, last_modified timestamp, kind string, verdict string"

_REASON = "listed, and no snapshot, plan or writer has it"
_PAIRS_SHOWN = 10
_CANDIDATES_KEPT = 500_000
"""Up to as many unreferenced files stay in memory between the passes over them: about 100 MB."""


@dataclass(frozen=True)
class ScanSettings:
    """The policy of a scan. `min_age` counts back from the listing's start; `older_than` replaces it.

    `metadata_min_age` (the retention window) holds for metadata files outside the metadata log. `prefix_mismatch` is
    error, ignore or delete. `missing_files`: what a file means that snapshots reach and a whole listing does not have.
    `is_whole`: the listing has every file below the table's locations.
    """

    min_age: timedelta
    min_age_floor: timedelta
    metadata_min_age: timedelta
    prefix_mismatch: str = "error"
    older_than: datetime | None = None
    now: datetime | None = None
    missing_files: Literal["error", "ignore"] = "ignore"
    is_whole: bool = True


@dataclass(frozen=True)
class OrphanSummary:
    """Counts of a scan, in files; sizes in bytes. By reason: why listed files stay, or `orphan`."""

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
        """Orphans among the listed files, from 0 to 1."""
        return self.orphan_files / self.listed_files if self.listed_files else 0.0


@dataclass(frozen=True)
class OrphanScanResult:
    """A sealed scan. Nothing was changed.

    `skipped_in_flight` counts unreferenced files that a writer may still be writing: too young, or a live writer's; the
    summary tells the two apart.
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
    _spark: SparkSession = field(repr=False, compare=False)
    _stores: Stores = field(repr=False, compare=False)

    def files(self) -> DataFrame:
        """DataFrame[path, kind, size_in_bytes, last_modified, reason, origin], one row per orphan. `kind` and `origin`
        are guesses by name."""
        return read_frame(self._spark, self.files_location, self._stores)

    def unreferenced(self) -> DataFrame:
        """DataFrame[path, size_in_bytes, last_modified, verdict]: every listed file that the table does not reach, with
        `orphan` or why it stays."""
        return read_frame(self._spark, _unreferenced(self.files_location), self._stores)

    @property
    def orphan_data_files(self) -> DataFrame:
        """DataFrame[path] of data files and delete files."""
        files = self.files()
        return files.where(files.kind.isin(*sorted(kinds.CONTENT_KINDS))).select("path")

    @property
    def orphan_manifests(self) -> DataFrame:
        """DataFrame[path] of manifests and manifest lists."""
        files = self.files()
        return files.where(files.kind.isin(kinds.MANIFEST, kinds.MANIFEST_LIST)).select("path")


def scan_orphans(
    context: DeletionContext,
    listing: Listing,
    settings: ScanSettings,
    *,
    table_uuid: str,
    history_read_at: datetime | None = None,
    failed_compactions: Sequence[tuple[datetime, datetime]] = (),
) -> OrphanScanResult:
    """Find the orphans in `listing` and seal them. Reads the table's metadata anew, after the listing; changes nothing.

    `history_read_at` is when the caller read what it shows beside the scan; it too must come after the listing.

    Raises StaleMetadata for metadata read before the listing ended, and for metadata files newer than the catalog's
    pointer; PrefixMismatch naming pairs; BadInput for an `older_than` inside the floor; NoSuchTable when the table is
    gone or another; UnreadableMetadata and StorageError for whatever cannot be read: then there is no scan.
    """
    table = context.table
    if history_read_at is not None:
        require_after(listing, history_read_at, table)
    ages = cutoffs(listing, settings, table)
    asking = Asking(f"scan-{uuid.uuid4().hex}", "orphans", table, table_uuid)
    protection = Protection(context, asking)
    protection.look_around()
    unlisted = [] if settings.is_whole else _metadata_files(context, table_uuid, listing.locations)
    read_at = context.operations.clock.now()
    require_after(listing, read_at, table)
    try:
        protection.read()
    except StalePlan as error:
        raise NoSuchTable(error.what, table=table, untouched="all files", hint="list and scan the new table") from error
    metadata = protection.metadata
    parts = listed_hashes(listing.files_location, context.stores, context.rules)
    view = protection.own_view
    assert view is not None
    if settings.missing_files == "error":
        require_nothing_missing(context.stores, view, listing, parts, context.rules, table)
    candidates = Candidates(listing, context.stores, [~view.reaches(part) for part in parts])
    # Without those of a listing that need not have them all.
    named = dict.fromkeys([*candidates.metadata_files(), *unlisted])
    found = evidence(context.stores, metadata, named, context.rules, context.operations.table_locations)
    remember(found.newer, context.stores, context.operations.table_locations, table_uuid, read_at)
    settled = context.operations.settled_metadata.of_table(table_uuid)
    require_no_future(found.newer, settled, table, metadata.metadata_location, context.rules)
    unsettled = [each for each in found.attempts if normalise(each.metadata_location, context.rules) not in settled]
    protection.protect(found.foreign, unsettled)
    return seal_scan(
        context,
        asking,
        protection,
        listing,
        candidates,
        ages,
        Origins(known(metadata, failed_compactions)),
        read_at=read_at,
        mismatches=settings.prefix_mismatch,
    )


def _metadata_files(context: DeletionContext, table_uuid: str, listed: Sequence[str]) -> list[str]:
    """The metadata files in all folders where the table's are or were, and around what was `listed`. Before its pointer
    is read: one that is committed in between is no later commit."""
    metadata = read_table_metadata(context.stores, context.entry().metadata_location)
    had = context.operations.table_locations
    places = [metadata.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    folders = {parent(normalise(place, context.rules)) for place in (*places, *had.pointers(table_uuid))}
    folders |= {f"{location}/metadata" for location in had.of_table(table_uuid)}
    # And around what was listed, where a table may be that no catalog here knows.
    for location in (normalise(each.rstrip("/"), context.rules) for each in listed):
        around = location
        while any(is_under(around, own, context.rules) for own in own_locations(metadata, context.rules)):
            folders.add(f"{around}/metadata")
            around = parent(around)
    found = (file.path for folder in sorted(folders) for file in context.stores.list(folder))
    return [path for path in found if kind_by_name(path) == kinds.METADATA]


class Candidates:
    """The listed files that the table does not reach. `masks` says which rows of each part of the listing they are."""

    def __init__(self, listing: Listing, stores: Stores, masks: Sequence[NDArray[np.bool_]]) -> None:
        self._listing = listing
        self._stores = stores
        self._masks = masks
        self._batches: list[pa.RecordBatch] | None = None
        self.count = sum(int(mask.sum()) for mask in masks)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Their rows (path, last_modified, size_in_bytes, kind), read again at each call where they are very many."""
        if self._batches is not None:
            yield from self._batches
        elif self.count <= _CANDIDATES_KEPT:
            self._batches = list(self._read())
            yield from self._batches
        else:
            yield from self._read()

    def paths(self) -> Iterator[pa.Array]:
        return (batch.column("path") for batch in self.batches())

    def metadata_files(self) -> Iterator[str]:
        """The paths of those that are metadata files by their names."""
        import pyarrow.compute as pc

        for batch in self.batches():
            yield from batch.column("path").filter(pc.equal(batch.column("kind"), kinds.METADATA)).to_pylist()

    def _read(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        def taken(number: int, batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
            mask, start, kept = self._masks[number], 0, []
            for batch in batches:
                rows = mask[start : start + batch.num_rows]
                start += batch.num_rows
                if rows.any():
                    kept.append(_with_kind(batch.filter(pa.array(rows))))
            return kept

        numbers = [number for number, mask in enumerate(self._masks) if mask.any()]
        names = ["path", "last_modified", "size_in_bytes"]
        for kept in map_parts(self._listing.files_location, self._stores, taken, names, numbers):
            yield from kept


def _with_kind(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [batch.column("path"), batch.column("last_modified").cast(pa.timestamp("us", "UTC"))]
    columns += [batch.column("size_in_bytes"), kinds_by_name(batch.column("path"))]
    return pa.RecordBatch.from_arrays(columns, ["path", "last_modified", "size_in_bytes", "kind"])


def metadata_files(listing: Listing, stores: Stores) -> Iterator[str]:
    """The paths of the listed files that are metadata files by their names."""
    import pyarrow.compute as pc

    for batch in frame_batches(listing.files_location, stores):
        paths = batch.column("path")
        yield from paths.filter(pc.equal(kinds_by_name(paths), kinds.METADATA)).to_pylist()


def listed_hashes(folder: str, stores: Stores, rules: LocationRules) -> list[NDArray[np.uint64]]:
    """The location hashes of the files that each part of a sealed listing is about, in order."""
    import numpy as np

    def hashed(_: int, batches: Iterator[pa.RecordBatch]) -> NDArray[np.uint64]:
        found = [hash_column(subject_array(batch.column("path")), rules) for batch in batches]
        return np.concatenate([np.empty(0, np.uint64), *found])

    return list(map_parts(folder, stores, hashed, ["path"]))


def seal_scan(
    context: DeletionContext,
    asking: Asking,
    protection: Protection,
    listing: Listing,
    candidates: Candidates,
    ages: Ages,
    origins: Origins,
    *,
    read_at: datetime,
    mismatches: str,
) -> OrphanScanResult:
    """Ask for each candidate whether it may go, and seal the verdicts and the orphans among them."""
    spark, stores = context.spark, context.stores
    folder = f"{context.root}/scans/{asking.job_id}"
    protection.consider(candidates.paths())
    twins = None if mismatches == "delete" else protection.twins(candidates.paths())
    counts = _Counts()
    judged = counts.of(_judged(protection.protected(ages, twins), candidates), "verdict")
    write_batches(judged, arrow_schema(JUDGED), f"{folder}/unreferenced", stores)
    if mismatches == "error" and counts.files["verdict"][PREFIX_MISMATCH]:
        raise _mismatch(context, protection, f"{folder}/unreferenced", counts.files["verdict"][PREFIX_MISMATCH])
    orphans = (batch for batch in map(origins, frame_batches(f"{folder}/unreferenced", stores)) if batch.num_rows)
    counted = counts.of(orphans, "kind", "origin")
    with around("orphans.seal_scan"):
        write_batches(counted, arrow_schema(_ORPHANS), f"{folder}/files", stores)
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
    return _result(record, spark, stores)


def _judged(protected: ProtectedFiles, candidates: Candidates) -> Iterator[pa.RecordBatch]:
    """Each candidate with its verdict (columns: `JUDGED`)."""
    import numpy as np
    import pyarrow as pa

    for batch in candidates.batches():
        verdicts = np.full(batch.num_rows, ORPHAN, object)
        for row, why in protected.reasons(batch).items():
            verdicts[row] = why
        columns = [batch.column(name) for name in ("path", "size_in_bytes", "last_modified", "kind")]
        yield pa.RecordBatch.from_arrays([*columns, pa.array(verdicts, pa.string())], schema=arrow_schema(JUDGED))


def _mismatch(context: DeletionContext, protection: Protection, judged: str, count: int) -> PrefixMismatch:
    import pyarrow as pa
    import pyarrow.compute as pc

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
        hint="if both are one place, say so under orphans.equal_schemes or equal_authorities; "
        "if not, set orphans.prefix_mismatch: ignore (or delete)",
    )


class _Counts:
    """Files and bytes of the rows that pass through, by columns."""

    def __init__(self) -> None:
        self.files: dict[str, Counter[str]] = defaultdict(Counter)
        self.sizes: dict[str, Counter[str]] = defaultdict(Counter)

    def of(self, batches: Iterable[pa.RecordBatch], *columns: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for column in columns:
                totals = rows.group_by(column).aggregate([("path", "count"), ("size_in_bytes", "sum")]).to_pylist()
                for total in totals:
                    self.files[column][total[column]] += total["path_count"]
                    self.sizes[column][total[column]] += total["size_in_bytes_sum"] or 0
            yield batch

    def summary(self, listing: Listing) -> OrphanSummary:
        """What the scan found in `listing`."""
        files, sizes = (dict(sorted(counter["verdict"].items())) for counter in (self.files, self.sizes))
        # Some are reached under another name than the listed one.
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


def load_scan(spark: SparkSession, stores: Stores, operations: Operations, scan_id: str) -> OrphanScanResult:
    """The stored scan of that id, from any process. Raises NoSuchPlan; StorageError when its seal is missing."""
    record = operations.scans.get(scan_id)
    sealed = describe_frame(record.files_location, stores)
    if sealed is None or sealed.rows != record.files:
        raise StorageError(
            f"The sealed files of scan {scan_id} are missing, or not the {record.files:,} that its record names",
            table=record.table,
            path=record.files_location,
            untouched="all files",
            hint=f"scan again: artemis scan-orphans {quote(record.table)}",
        )
    return _result(record, spark, stores)


def require_after(listing: Listing, read_at: datetime, table: str) -> None:
    """Raise StaleMetadata when metadata was read before the listing ended: a commit in between would be all orphans."""
    if read_at < listing.finished_at:
        raise StaleMetadata(
            f"The metadata was read at {read_at.isoformat()}, before the listing ended at "
            f"{listing.finished_at.isoformat()}: files committed in between would look like orphans",
            table=table,
            untouched="all files",
            hint="read the history again and scan with that",
        )


def cutoffs(listing: Listing, settings: ScanSettings, table: str) -> Ages:
    """From when on files are too young.

    Ages count from the listing's start, or from `now` where that is earlier: a file seen then may have been finished
    since.
    """
    for name, value in (("now", settings.now), ("older_than", settings.older_than)):
        if value is not None and (value.tzinfo is None or value.utcoffset() is None):
            raise NaiveDatetime(
                f"{name}={value.isoformat()} has no time zone",
                table=table,
                untouched="all files",
                hint="pass an aware datetime",
            )
    base = listing.started_at if settings.now is None else min(settings.now, listing.started_at)
    newest = base - settings.min_age_floor
    if settings.older_than is not None and settings.older_than > newest:
        raise BadInput(
            f"older_than {settings.older_than.isoformat()} is later than {newest.isoformat()}, which is min_age_floor "
            f"({settings.min_age_floor}) before the listing: files of commits in flight would be taken for orphans",
            table=table,
            untouched="all files",
            hint="name an earlier instant, or lower orphans.min_age_floor in lifecycle.yaml",
        )
    by_age = base - max(settings.min_age, settings.min_age_floor)
    cutoff = by_age if settings.older_than is None else settings.older_than
    return Ages(cutoff, min(cutoff, base - settings.metadata_min_age))


def _result(record: ScanRecord, spark: SparkSession, stores: Stores) -> OrphanScanResult:
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


def _unreferenced(files_location: str) -> str:
    return f"{files_location.removesuffix('/files')}/unreferenced"


_ORPHANS = "path string, kind string, size_in_bytes bigint, last_modified timestamp, reason string, origin string"


class Origins:
    """Guesses where orphans come from; without a history all have the one `origin`."""

    def __init__(self, history: History | None, origin: str = "", reason: str = _REASON) -> None:
        self.history = history
        self.origin = origin
        self.reason = reason

    def __call__(self, judged: pa.RecordBatch) -> pa.RecordBatch:
        """The orphans among judged files, as `_ORPHANS`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        batch = judged.filter(pc.equal(judged.column("verdict"), ORPHAN))
        path, kind, modified = (batch.column(name) for name in ("path", "kind", "last_modified"))
        count = batch.num_rows
        if self.history is None:
            origins = pa.repeat(self.origin, count)
        else:
            origins = origins_of(path, kind, modified.cast(pa.int64()), self.history)
        columns = [path, kind, batch.column("size_in_bytes"), modified, pa.repeat(self.reason, count), origins]
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(_ORPHANS))
