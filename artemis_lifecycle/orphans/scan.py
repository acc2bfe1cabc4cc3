"""The orphan scan: listed, and neither reachable nor protected. Sealed, so that another process deletes or explains it.

In this order: the listing ends, heartbeats are read, the catalog's pointer is read, plans and other scans are read. A
writer that stops in between has committed before the pointer is read, or is seen by its heartbeat; a plan that commits
in between is seen by its status, or its files by the pointer.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal

from artemis_lifecycle.deletion.last_look import (
    CURRENT_METADATA,
    IN_FLIGHT,
    REACHABLE,
    Grounds,
    Sight,
    covered,
    metadata_files,
    present_index,
    receipt_folders,
)
from artemis_lifecycle.deletion.ownership import (
    Neighbour,
    Pointer,
    TablesOfCatalog,
    nested_locations,
    own_locations,
    require_collectable,
)
from artemis_lifecycle.deletion.quarantine import UNDELETED
from artemis_lifecycle.errors import (
    BadInput,
    NaiveDatetime,
    NoSuchTable,
    StaleMetadata,
    StorageError,
    UnreadableMetadata,
)
from artemis_lifecycle.expiration.plan import load_plan, unarchived
from artemis_lifecycle.metadata import kinds
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.heartbeats import Heartbeat
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle.operations.scans import ScanKind, ScanRecord, ScanState
from artemis_lifecycle.orphans.listing import Listing, listed_files
from artemis_lifecycle.orphans.missing import require_nothing_missing
from artemis_lifecycle.orphans.names import Known as History
from artemis_lifecycle.orphans.names import known, origins_of
from artemis_lifecycle.orphans.narrowing import CANDIDATES_HERE, Known, keys_of, listed_hashes, unreached
from artemis_lifecycle.orphans.verdicts import (
    OPEN_PLAN,
    OPEN_SCAN,
    ORPHAN,
    TOO_YOUNG,
    Limits,
    classified,
    classified_here,
    refuse_mismatches,
)
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.walk import indexed, reachable_files
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.frames import (
    ROWS_HERE,
    arrow_schema,
    describe_frame,
    read_frame,
    read_table,
    write_frame,
    write_table,
)
from artemis_lifecycle.storage.location import LocationRules, normalise, normalise_column
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

_REASON = "listed, and no snapshot, plan or writer has it"


@dataclass(frozen=True)
class ScanSettings:
    """The policy of a scan. `min_age` counts back from the listing's start; `older_than` replaces it.

    `metadata_min_age` (the retention window) holds for metadata files outside the metadata log. `prefix_mismatch` is
    error, ignore or delete. `missing_files`: what a file means that snapshots reach and a whole listing does not have.
    """

    min_age: timedelta
    min_age_floor: timedelta
    metadata_min_age: timedelta
    prefix_mismatch: str = "error"
    older_than: datetime | None = None
    now: datetime | None = None
    missing_files: Literal["error", "ignore"] = "ignore"


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
    spark: SparkSession,
    stores: Stores,
    operations: Operations,
    listing: Listing,
    *,
    table: str,
    table_uuid: str,
    current: Callable[[], Pointer],
    catalog: TablesOfCatalog,
    root: str,
    rules: LocationRules,
    settings: ScanSettings,
    history_read_at: datetime | None = None,
    failed_compactions: Sequence[tuple[datetime, datetime]] = (),
    reserved: Sequence[str] = (),
    rules_of: Callable[[str], LocationRules] | None = None,
) -> OrphanScanResult:
    """Find the orphans in `listing` and seal them. Reads the table's metadata anew, after the listing; changes nothing.

    `current` reads the table's entry in the live catalog, `catalog` its other tables. `history_read_at` is when the
    caller read what it shows beside the scan; it too must come after the listing. `reserved` are the roots of the other
    tiers: what lies in there is no table's of the catalog. `rules_of` are other tables' own rules (None: these).

    Raises StaleMetadata for metadata read before the listing ended, PrefixMismatch naming pairs, BadInput for an
    `older_than` inside the floor, NoSuchTable when the table is gone or another, UnreadableMetadata and StorageError
    for whatever cannot be read: then there is no scan.
    """
    if history_read_at is not None:
        require_after(listing, history_read_at, table)
    cutoff, metadata_cutoff = cutoffs(listing, settings, table)
    heartbeats = operations.heartbeats.live(None)
    read_at = operations.clock.now()
    require_after(listing, read_at, table)
    metadata = _current_metadata(stores, current, table, table_uuid)
    require_collectable(metadata, table)
    sight = Sight.around(
        spark,
        stores,
        operations,
        current,
        catalog,
        table,
        root=root,
        rules=rules,
        reserved=reserved,
        rules_of=rules_of,
    )
    sight.neighbours.look_around()
    own = own_locations(metadata, rules)
    neighbours = readable(sight.neighbours.overlapping(own), table)
    around_us = {other.table: neighbour_metadata(sight, other) for other in neighbours}
    in_flight = in_flight_roots(heartbeats, [metadata, *around_us.values()], rules)
    # They may lie in a folder that the table calls its own.
    nested = (*nested_locations(neighbours, own, rules), *sight.not_its_own)
    grounds = Grounds(own, nested, in_flight, rules, receipt_folders(metadata, rules))

    kept = kept_by(sight, {table: metadata, **around_us}, table)
    if settings.missing_files == "error":
        kept = replace(kept, hashes=listed_hashes(listing.files_location, stores, rules))
        own_view = next(view for view, reason in kept.tables if reason == REACHABLE)
        require_nothing_missing(stores, own_view, listing, kept.hashes, rules, table)
    limits = Limits(cutoff, metadata_cutoff, mismatches_go=settings.prefix_mismatch == "delete")
    return seal_scan(
        sight,
        listing,
        kept,
        grounds,
        limits,
        Origins(known(metadata, failed_compactions)),
        kind="orphans",
        table=table,
        metadata=metadata,
        read_at=read_at,
        refuses_mismatches=settings.prefix_mismatch == "error",
    )


def seal_scan(
    sight: Sight,
    listing: Listing,
    kept: Kept,
    grounds: Grounds,
    limits: Limits,
    origins: Origins,
    *,
    kind: ScanKind,
    table: str,
    metadata: TableMetadata,
    read_at: datetime,
    refuses_mismatches: bool,
) -> OrphanScanResult:
    """Judge what is listed by what is kept and protected, and seal the verdicts and the orphans among them."""
    spark, stores, rules = sight.spark, sight.stores, sight.rules
    scan_id = f"scan-{uuid.uuid4().hex}"
    folder = f"{sight.root}/scans/{scan_id}"
    looked_at = kept.narrowed(listing)
    if looked_at is not None:
        found = classified_here(*looked_at, grounds, rules, limits)
        write_table(found, f"{folder}/unreferenced", stores)
        if refuses_mismatches:
            refuse_mismatches(found, table)
        with around("orphans.seal_scan"):
            write_table(origins.of(found), f"{folder}/files", stores)
    else:
        frame = classified(listed_files(spark, stores, listing), kept.frame(), grounds, rules, limits)
        with worker_errors():
            write_frame(frame, f"{folder}/unreferenced", stores)
        judged = read_frame(spark, f"{folder}/unreferenced", stores)
        if refuses_mismatches:
            refuse_mismatches(judged, table)
        orphans = judged.where(judged.verdict == ORPHAN).mapInArrow(origins, _ORPHANS)
        with around("orphans.seal_scan"), worker_errors():
            write_frame(orphans, f"{folder}/files", stores)
    summary = _summary(spark, stores, folder, listing)
    record = sight.operations.scans.store(
        ScanRecord(
            scan_id=scan_id,
            table_uuid=metadata.table_uuid,
            table=table,
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
            kind=kind,
        )
    )
    return _result(record, spark, stores)


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
            do=f"scan again: artemis scan-orphans {record.table}",
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
            do="read the history again and scan with that",
        )


def cutoffs(listing: Listing, settings: ScanSettings, table: str) -> tuple[datetime, datetime]:
    """Files last modified at these instants or later are kept: (all files, metadata files outside the log).

    Ages count from the listing's start, or from `now` where that is earlier: a file seen then may have been finished
    since.
    """
    for name, value in (("now", settings.now), ("older_than", settings.older_than)):
        if value is not None and (value.tzinfo is None or value.utcoffset() is None):
            raise NaiveDatetime(
                f"{name}={value.isoformat()} has no time zone",
                table=table,
                untouched="all files",
                do="pass an aware datetime",
            )
    base = listing.started_at if settings.now is None else min(settings.now, listing.started_at)
    newest = base - settings.min_age_floor
    if settings.older_than is not None and settings.older_than > newest:
        raise BadInput(
            f"older_than {settings.older_than.isoformat()} is later than {newest.isoformat()}, which is min_age_floor "
            f"({settings.min_age_floor}) before the listing: files of commits in flight would be taken for orphans",
            table=table,
            untouched="all files",
            do="name an earlier instant, or lower orphans.min_age_floor in lifecycle.yaml",
        )
    by_age = base - max(settings.min_age, settings.min_age_floor)
    cutoff = by_age if settings.older_than is None else settings.older_than
    return cutoff, min(cutoff, base - settings.metadata_min_age)


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


def _current_metadata(stores: Stores, current: Callable[[], Pointer], table: str, table_uuid: str) -> TableMetadata:
    metadata = read_table_metadata(stores, current().metadata_location)
    if metadata.table_uuid != table_uuid:
        raise NoSuchTable(
            f"The name {table} now belongs to another table ({metadata.table_uuid}, not {table_uuid})",
            table=table,
            untouched="all files",
            do="list and scan the new table",
        )
    return metadata


def readable(others: Sequence[Neighbour], table: str) -> Sequence[Neighbour]:
    for other in others:
        if other.problem is not None:
            raise UnreadableMetadata(
                f"Table {other.table} shares or nests a location with this one, or reads from it, and cannot be "
                f"read: {other.problem}",
                table=table,
                path=other.metadata_location,
                untouched="all files",
                do=f"mend or drop {other.table}",
            )
    return others


def neighbour_metadata(sight: Sight, other: Neighbour) -> TableMetadata:
    # Read again: the neighbour's own commits since the first look are part of what it reaches.
    return read_table_metadata(sight.stores, sight.neighbours.entry(other.table).metadata_location)


def in_flight_roots(
    heartbeats: Sequence[Heartbeat], tables: Sequence[TableMetadata], rules: LocationRules
) -> tuple[str, ...]:
    roots: list[str] = []
    for metadata in tables:
        live = [heartbeat for heartbeat in heartbeats if heartbeat.table_uuid == metadata.table_uuid]
        roots += covered(live, metadata, rules)
    return tuple(dict.fromkeys(roots))


@dataclass(frozen=True)
class Kept:
    """What listed files are held against: all that `tables` reach, each with its reason; the sealed lists of plans and
    scans (`frames`); single locations, `needed`. Every reason with what it is for."""

    sight: Sight
    tables: Sequence[tuple[IndexView, str]]
    frames: Sequence[tuple[str, str]]
    needed: Sequence[tuple[str, str]]
    hashes: Sequence[NDArray[np.uint64]] = ()
    """Those of the listing, where they are known."""

    def frame(self) -> DataFrame:
        """DataFrame[location, reason], with several rows for a file that has several."""
        from pyspark.sql import functions as F

        spark, rules = self.sight.spark, self.sight.rules
        rows = spark.createDataFrame(list(self.needed), "location string, reason string")
        for view, reason in self.tables:
            everything = [snapshot.snapshot_id for snapshot in view.metadata.snapshots]
            reached = reachable_files(spark, view, everything)
            rows = rows.unionByName(reached.select("location", F.lit(reason).alias("reason")))
        for folder, reason in self.frames:
            files = read_frame(spark, folder, self.sight.stores)
            location = normalise_column(F.col("path"), rules)
            rows = rows.unionByName(files.select(location.alias("location"), F.lit(reason).alias("reason")))
        return rows

    def narrowed(self, listing: Listing) -> tuple[pa.Table, list[tuple[str, str]]] | None:
        """What this process needs for the verdicts: the listed files that may be unreferenced, and the known files
        (location, reason) that matter to them. None when these are very many, or begin in very many ways."""
        small = read_table(listing.files_location, self.sight.stores)
        known_here = None if small is None else self._here()
        if small is not None and known_here is not None:
            return small, known_here
        stores, rules = self.sight.stores, self.sight.rules
        own = next((view for view, reason in self.tables if reason == REACHABLE), None)
        # Of a table that is no more everything is unreached.
        candidates = None
        if own is not None:
            parts = self.hashes or listed_hashes(listing.files_location, stores, rules)
            candidates = unreached(listing.files_location, stores, own, parts)
        if candidates is None:
            return None
        rows = list(self.needed)
        keys = keys_of(candidates, rules)
        sources: list[Callable[[], Known | None]] = []
        sources += [partial(Known.reached_by, view, reason) for view, reason in self.tables]
        sources += [partial(Known.sealed_in, folder, stores, reason, rules) for folder, reason in self.frames]
        for source in sources if len(keys) else ():
            files = source()
            if files is None:
                return None
            rows += files.beside(keys, rules)
        return candidates, rows

    def _here(self) -> list[tuple[str, str]] | None:
        """As `frame`, in this process; None when that is much."""
        rows = list(self.needed)
        for view, reason in self.tables:
            everything = [snapshot.snapshot_id for snapshot in view.metadata.snapshots]
            if view.entries_of(everything) > ROWS_HERE:
                return None
            rows += ((location, reason) for location in view.reachable(everything).column("location").to_pylist())
        for folder, reason in self.frames:
            files = read_table(folder, self.sight.stores)
            if files is None:
                return None
            paths = files.column("path").to_pylist() if files.num_rows else []
            rows += ((normalise(path, self.sight.rules), reason) for path in paths)
        return rows


def kept_by(sight: Sight, tables: Mapping[str, TableMetadata], table: str) -> Kept:
    """What `tables` (by name; `table` is the scanned one) reach and need, and what open plans and scans of it hold."""
    own = tables[table]
    others = kept_by_neighbours(sight, {name: metadata for name, metadata in tables.items() if name != table})
    views = [(present_index(sight, own), REACHABLE), *others.tables]
    needed = [(location, CURRENT_METADATA) for location in sorted(metadata_files(own, sight.rules))]
    needed += others.needed
    frames = []
    for plan in sight.operations.plans.holding(own.table_uuid):
        frames.append((plan.files_location, OPEN_PLAN))
        # A handoff still reads the base; who asks what a plan was made of finds it too.
        needed.append((normalise(plan.base_metadata_location, sight.rules), OPEN_PLAN))
        if plan.status is PlanStatus.OPEN and plan.expired_snapshots:
            sealed = load_plan(sight.spark, sight.stores, sight.operations, plan.plan_id)
            metadata = unarchived(sight.stores, sealed, own)
            if metadata is not None:
                # An index of its own: it is of other snapshots of the same table.
                root = f"{sight.root}/unarchived"
                views.append((indexed(sight.spark, sight.stores, metadata, sight.rules, root), OPEN_PLAN))
    for scan in sight.operations.scans.of_table(own.table_uuid, [ScanState.DELETING]):
        frames.append((scan.files_location, OPEN_SCAN))
    for record in sight.operations.quarantines.undeleted(own.table_uuid):
        job = sight.operations.journal.job(record.job_id)
        assert job is not None  # the journal has a job before its first file goes
        frames.append((job.files_location, UNDELETED))
    return Kept(sight, views, frames, needed)


def kept_by_neighbours(sight: Sight, tables: Mapping[str, TableMetadata]) -> Kept:
    """What other tables reach and need, by their names."""
    views, needed = [], []
    for name, metadata in tables.items():
        reason = f"{REACHABLE} from {name}"
        views.append((present_index(sight, metadata), reason))
        needed += [(location, reason) for location in sorted(metadata_files(metadata, sight.rules))]
    return Kept(sight, views, (), needed)


_ORPHANS = "path string, kind string, size_in_bytes bigint, last_modified timestamp, reason string, origin string"


class Origins:
    """Guesses where orphans come from; without a history all have the one `origin`."""

    def __init__(self, history: History | None, origin: str = "", reason: str = _REASON) -> None:
        self.history = history
        self.origin = origin
        self.reason = reason

    def of(self, judged: pa.Table) -> pa.Table:
        """The orphans among judged files."""
        import pyarrow as pa
        import pyarrow.compute as pc

        orphans = judged.filter(pc.field("verdict") == ORPHAN).combine_chunks()
        return pa.Table.from_batches(self(orphans.to_batches()), arrow_schema(_ORPHANS))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            path, kind, modified = (batch.column(name) for name in ("path", "kind", "last_modified"))
            count = batch.num_rows
            if self.history is None:
                origins = pa.repeat(self.origin, count)
            else:
                origins = origins_of(path, kind, modified.cast(pa.int64()), self.history)
            reasons = pa.repeat(self.reason, count)
            yield pa.RecordBatch.from_arrays(
                [path, kind, batch.column("size_in_bytes"), modified, reasons, origins],
                ["path", "kind", "size_in_bytes", "last_modified", "reason", "origin"],
            )


def _summary(spark: SparkSession, stores: Stores, folder: str, listing: Listing) -> OrphanSummary:
    from pyspark.sql import functions as F

    def counted(name: str, column: str) -> tuple[dict[str, int], dict[str, int]]:
        small = read_table(f"{folder}/{name}", stores, at_most=CANDIDATES_HERE)
        if small is not None:
            totals = small.group_by(column).aggregate([("path", "count"), ("size_in_bytes", "sum")]).to_pylist()
            rows = [(row[column], row["path_count"], row["size_in_bytes_sum"]) for row in totals]
        else:
            frame = read_frame(spark, f"{folder}/{name}", stores).groupBy(column)
            with worker_errors():
                found = frame.agg(F.count("path").alias("files"), F.sum("size_in_bytes").alias("size")).collect()
            rows = [(row[column], row["files"], row["size"]) for row in found]
        rows.sort(key=lambda row: str(row[0]))
        return {key: files for key, files, _ in rows}, {key: int(size or 0) for key, _, size in rows}

    files, sizes = counted("unreferenced", "verdict")
    by_kind, _ = counted("files", "kind")
    by_origin, _ = counted("files", "origin")
    reached = listing.files - sum(files.values())
    return OrphanSummary(
        listed_files=listing.files,
        listed_bytes=listing.bytes,
        orphan_files=files.get(ORPHAN, 0),
        orphan_bytes=sizes.get(ORPHAN, 0),
        too_young=files.get(TOO_YOUNG, 0),
        live_writers=files.get(IN_FLIGHT, 0),
        files_by_reason={REACHABLE: reached} | files,
        bytes_by_reason={REACHABLE: listing.bytes - sum(sizes.values())} | sizes,
        orphans_by_kind=by_kind,
        orphans_by_origin=by_origin,
    )
