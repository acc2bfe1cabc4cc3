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
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.errors import (
    BadInput,
    NaiveDatetime,
    NoSuchTable,
    PrefixMismatch,
    StaleMetadata,
    StalePlan,
)
from artemis_lifecycle.metadata import kinds
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.scans import ScanRecord
from artemis_lifecycle.orphans.candidates import Candidates, candidates, listed_parts
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.missing import require_nothing_missing
from artemis_lifecycle.orphans.origins import ORPHAN, ORPHANS, Origins, known
from artemis_lifecycle.orphans.result import OrphanScanResult, ScanCounts, result_of
from artemis_lifecycle.protection.context import Asking, DeletionContext
from artemis_lifecycle.protection.future import evidence, remember, require_no_future
from artemis_lifecycle.protection.ownership import own_locations
from artemis_lifecycle.protection.protection import PREFIX_MISMATCH, Ages, ProtectedFiles, Protection
from artemis_lifecycle.storage.frames import arrow_schema, frame_batches, write_batches
from artemis_lifecycle.storage.location import is_under, normalize, parent

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
    asking = Asking(f"scan-{uuid.uuid4().hex}", "orphans", table, table_uuid)
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
    reached = [files.reaches(part.hashes) for part in parts]
    with candidates(context.spark, listing, context.stores, reached) as unreached:
        # Exclude those of a listing that need not be complete.
        named = dict.fromkeys([*unreached.metadata_files(), *unlisted] if context.layout is None else ())
        found = evidence(context.stores, metadata, named, context.rules, context.operations.table_locations)
        if not context.is_branched:
            remember(found.newer, context.stores, context.operations.table_locations, table_uuid, read_at)
        newer = () if context.is_branched else found.newer
        settled = context.operations.settled_metadata.of_table(table_uuid)
        require_no_future(newer, settled, table, metadata.metadata_location, context.rules)
        unsettled = [each for each in found.attempts if normalize(each.metadata_location, context.rules) not in settled]
        protection.protect(found.foreign, unsettled, found.strangers)
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
    return [path for path in found if kinds.kind_by_name(path) == kinds.METADATA]


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
            f"({settings.min_age_floor}) before the listing: files of commits in flight would count as orphans",
            table=table,
            untouched="all files",
            hint="use an earlier instant, or lower orphans.min_age_floor in lifecycle.yaml",
        )
    by_age = base - max(settings.min_age, settings.min_age_floor)
    cutoff = by_age if settings.older_than is None else settings.older_than
    return Ages(cutoff, min(cutoff, base - settings.metadata_min_age))
