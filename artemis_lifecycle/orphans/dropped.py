"""Dropped tables that left their files: found from the catalog's history, kept for a retention, then deleted like
orphans.

`DROP TABLE` without `PURGE` removes only a row, and every file stays forever, because orphan scans check only existing
tables. The risk is a table that is missing from the catalog but not dropped. If it was renamed, or registered under
another name, its uuid is found behind one of the catalog's pointers. It may also be in another catalog, which cannot be
queried from here. If someone commits there, a metadata file newer than the drop shows it. If it is only read there,
nothing shows it, so a person approves each deletion.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import numpy as np

from artemis_lifecycle.catalogs.results import NAMESPACE
from artemis_lifecycle.config.durations import format_duration
from artemis_lifecycle.errors import ExistingFile, MissingFile, Refused, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.lines import is_written_once
from artemis_lifecycle.metadata.table_metadata import parse_table_metadata, read_table_metadata
from artemis_lifecycle.metadata.types import METADATA, TableMetadata
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.known_tables import KnownTable, Seen
from artemis_lifecycle.operations.scans import ScanRecord, new_scan_id
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.origins import Origins
from artemis_lifecycle.orphans.scan import OrphanScanResult, candidates, listed_parts, require_after, seal_scan
from artemis_lifecycle.protection.absence import Absence, Behind, saved_metadata, tables_behind
from artemis_lifecycle.protection.context import Asking, DeletionContext, TablesOfCatalog
from artemis_lifecycle.protection.future import evidence, later_files, lost_since, may_be_of, version_of
from artemis_lifecycle.protection.ownership import normal_locations
from artemis_lifecycle.protection.protection import TOO_YOUNG, Ages, Protection
from artemis_lifecycle.storage.frames import describe_frame, frame_batches, owner_folder
from artemis_lifecycle.storage.location import LocationRules, normalize
from artemis_lifecycle.storage.stores import Stores

DROPPED = "dropped_table"
"""The origin of files whose table was dropped."""

_SHOWN = 3
_MOVES_WITHIN = timedelta(hours=1)
"""How long a table that moves to another catalog may be in both."""
_SKEW = timedelta(minutes=1)
"""How far the store's clock may be ahead of the Postgres clock."""

State = Literal["waiting", "due", "kept", "gone", "purged"]


@dataclass(frozen=True)
class DroppedTable:
    """A table that the catalog no longer has. `missing_since` is when that was noticed; `due_at` is the end of its
    retention. `scan_id` is its newest scan; `approved_by` approved that scan. `state`: waiting, due, kept (a person
    decided so), gone (its files were deleted), purged (its metadata file is missing, because the drop also deleted
    files)."""

    table: str
    table_uuid: str
    metadata_location: str
    last_seen: datetime
    missing_since: datetime
    due_at: datetime
    state: State
    kept_by: str | None = None
    kept_why: str | None = None
    scan_id: str | None = None
    approved_by: str | None = None


@dataclass(frozen=True)
class Cleared:
    """What was done about one dropped table. `files` were found by `scan_id`. `problem` is what it waits for, or the
    error. `waits`: for an approval."""

    dropped: DroppedTable
    scan_id: str | None = None
    files: int = 0
    deleted: int = 0
    problem: str | None = None
    waits: bool = False


def observe(
    catalog: TablesOfCatalog,
    stores: Stores,
    operations: Operations,
    name: str,
    rules_of: Callable[[str], LocationRules],
    most: int | None = None,
    *,
    before: Sequence[KnownTable] | None = None,
    names_are_lines: bool = True,
    complete: bool = True,
) -> tuple[list[KnownTable], dict[str, str]]:
    """Check the current contents of the catalog `name`, and record them: its tables, and where they are. Return
    (missing tables, why tables were unreadable).

    Reads the metadata files of new and changed tables, at most `most` of them; the next call reads more. A table that
    is not read, or cannot be read or loaded, counts as the one known under its name. If none is known, it is the one
    whose pointer it has, or may be any table, so no table counts as missing until it is read; nor does one without
    `complete`, when only new names count. Without `names_are_lines`, a table has one name at a time.

    What was known `before` is read before the catalog: a commit of another step in between is not lost.
    """
    before = operations.known_tables.of_catalog(name) if before is None else before
    once = [known for known in before if is_written_once(known.metadata_location)]
    uuids = {known.metadata_location: known.table_uuid for known in once}
    # Another row may have the state to which a table was put back: only its own says that nothing changed.
    own = {(known.table, known.metadata_location): known.table_uuid for known in once}
    by_name = {known.table: known for known in before if known.missing_since is None}
    pointers = {table: each for table, each in catalog.pointers().items() if not table.startswith(f"{NAMESPACE}.")}
    named = {(table, each.metadata_location) for table, each in pointers.items() if each.problem is None}
    unread = {at for _, at in named.difference(own)}
    read = tables_behind(stores, set(sorted(unread)[:most]))
    present: dict[tuple[str, str], Seen] = {}
    problems: dict[str, str] = {}

    def saw(table: str, location: str, behind: object) -> Seen:
        log = behind.log if isinstance(behind, Behind) else ()
        return Seen(table, location, log if names_are_lines else None)

    strangers = False
    for table, pointer in pointers.items():
        at, known = pointer.metadata_location, by_name.get(table)
        behind, uuid = read.get(at), own.get((table, at))
        if isinstance(behind, Behind):
            uuid, rules = behind.table_uuid, rules_of(table)
            was = next((each for each in before if (each.table_uuid, each.table) == (uuid, table)), None)
            lost = set() if was is None else lost_since([was.metadata_location], at, behind.log, rules)
            alone = {each.table for each in before if each.table_uuid == uuid} <= {table}
            # The row may be of another line that had this name.
            is_same = was is None or saw(table, at, behind).continues(was, alone=alone)
            places = normal_locations(behind.locations, rules)
            operations.table_locations.saw(uuid, places, None, lost, left=is_same)
        elif uuid is None:
            problem = pointer.problem if behind is None else behind.what
            problems |= {} if problem is None else {table: problem}
            if known is not None:
                present[known.table_uuid, table] = Seen(table, known.metadata_location, is_read=False)
                continue
            uuid = uuids.get(at)
        if uuid is None:
            strangers = True
        else:
            present[uuid, table] = saw(table, at, behind)
    if {(known.table_uuid, known.table) for known in before if known.missing_since is None}.difference(present):
        # One of them may be in the catalog as another kind of object.
        others = {each.metadata_location: each.identifier for each in catalog.others() if each.metadata_location}
        for location, other in tables_behind(stores, others).items():
            if isinstance(other, Behind):
                key = other.table_uuid, others[location]
                present.setdefault(key, saw(others[location], location, other))
    return operations.known_tables.observe(name, present, before, complete=complete and not strangers), problems


def is_moved(
    known: KnownTable,
    lines: Iterable[KnownTable],
    stores: Stores,
    operations: Operations,
    rules_of: Callable[[str], LocationRules],
    keep: timedelta,
) -> bool:
    """Return True, and forget a dropped table, if its line lives on: one of `lines`, which other live catalogs have
    now, continues its last state. Like a renamed table, it goes on under that name.

    One that was there beside it for longer than a move takes is a second name: what it expires stays for `keep`.
    A person's `keep_dropped`, what can come back from quarantine, and a commit that no look saw keep the table dropped.
    """
    assert known.missing_since is not None
    since, at = known.last_seen - _MOVES_WITHIN, known.metadata_location
    lines = [each for each in lines if each.table_uuid == known.table_uuid and each.catalog != known.catalog]
    if lines and operations.clock.now() < known.missing_since + keep:
        lines = [each for each in lines if each.first_seen > since]
    is_open = known.kept_at is None and known.gone_at is None and is_written_once(at)
    if not lines or not is_open or operations.quarantines.of_dropped()(known):
        return False
    with suppress(StorageError):
        behind = tables_behind(stores, [each.metadata_location for each in lines])
        later = [path for path in later_files(stores, at) if may_be_of(stores, path, known.table_uuid)]
        for each in lines:
            found, rules = behind[each.metadata_location], rules_of(each.table)
            if isinstance(found, Behind) and found.table_uuid == known.table_uuid:
                line = {normalize(path, rules) for path in (each.metadata_location, *found.log)}
                if line.issuperset(normalize(path, rules) for path in (at, *later)):
                    return operations.known_tables.moved(known)
    return False


def last_metadata(stores: Stores, root: str, known: KnownTable, places: Sequence[str] = ()) -> TableMetadata:
    """Return the metadata of the table when it was last seen. It is saved before it is used, so that an interrupted
    deletion can continue after the file itself is deleted.

    If it does not exist, the table was purged: then returns metadata of a table without snapshots in `places`, all
    locations that it was seen to have. Raises MissingFile if there are none, UnreadableMetadata.
    """
    copy = saved_metadata(root, known)
    if stores.head(copy) is None:
        if stores.head(known.metadata_location) is None:
            if places:
                return _purged(known, places[0])
            raise MissingFile(
                "The dropped table's last metadata file is gone: it was purged, or deleted by hand",
                table=known.table,
                path=known.metadata_location,
                untouched="what is left of the table's files",
                hint="restore the file, if it was not purged",
            )
        _require_same(read_table_metadata(stores, known.metadata_location), known)
        with around("dropped.save_metadata"), suppress(ExistingFile):
            stores.copy(known.metadata_location, copy)
    metadata = read_table_metadata(stores, copy)
    _require_same(metadata, known)
    return metadata


def _purged(known: KnownTable, location: str) -> TableMetadata:
    none: dict[str, object] = {"last-sequence-number": 0, "last-updated-ms": 0, "last-column-id": 0, "snapshots": []}
    schema = {"current-schema-id": 0, "schemas": [{"schema-id": 0, "type": "struct", "fields": []}]}
    specs = {"default-spec-id": 0, "partition-specs": [{"spec-id": 0, "fields": []}]}
    own = {"format-version": 2, "table-uuid": known.table_uuid, "location": location}
    return parse_table_metadata(json.dumps(own | none | schema | specs).encode(), known.metadata_location)


def has_metadata(stores: Stores, root: str, known: KnownTable) -> bool:
    """Return True if the table's last metadata file, a saved copy of it, or a later one beside it exists: then it was
    not purged."""
    if any(stores.head(path) is not None for path in (known.metadata_location, saved_metadata(root, known))):
        return True
    later = later_files(stores, known.metadata_location)
    return any(may_be_of(stores, path, known.table_uuid) for path in later)


def _require_same(metadata: TableMetadata, known: KnownTable) -> None:
    if metadata.table_uuid != known.table_uuid:
        raise UnreadableMetadata(
            f"The metadata file belongs to table {metadata.table_uuid}, not {known.table_uuid}",
            table=known.table,
            path=known.metadata_location,
            untouched="all files",
            hint="find out who replaced it; nothing is deleted in the meantime",
        )


def absence_of(
    operations: Operations, catalog: TablesOfCatalog, stores: Stores, known: KnownTable, metadata: TableMetadata
) -> Absence:
    """Return an `Absence` that searches the catalog for the dropped table. Known uuids of other tables need no
    reading."""
    others = operations.known_tables.of_catalog(known.catalog)
    uuids = {
        each.metadata_location: each.table_uuid
        for each in others
        if each.table_uuid != known.table_uuid and is_written_once(each.metadata_location)
    }
    same = [each for each in others if each.table_uuid == known.table_uuid and each.missing_since is None]
    # A second name is a table of its own: a neighbor, which keeps what it reaches and what is in its place.
    return Absence(catalog, stores, metadata, known.table, uuids, [each.table for each in same])


def scan_dropped(
    context: DeletionContext, listing: Listing, known: KnownTable, *, min_age: timedelta, prefix_mismatch: str = "error"
) -> OrphanScanResult:
    """Find what is left of a dropped table (`context.dropped`) in `listing`, and seal it. Changes nothing.

    Raises Refused if the table has a hold, if a metadata file is newer than the drop (the table is in use in another
    catalog), or if any file is younger than `min_age`. Raises StalePlan if it is in this catalog,
    GarbageCollectionDisabled, UnreadableMetadata, StorageError.
    """
    assert known.missing_since is not None and context.dropped is not None
    asking = Asking(new_scan_id(), "dropped", known.table, known.table_uuid)
    protection = Protection(context, asking)
    protection.require_no_hold()
    protection.refresh_neighbors()
    read_at = context.operations.clock.now()
    require_after(listing, read_at, known.table)
    protection.read()
    parts = listed_parts(listing.files_location, context.stores, context.rules)
    # For a dropped table, all files are unreached.
    reached = [np.zeros(len(part.hashes), np.bool_) for part in parts]
    with candidates(context.spark, listing, context.stores, reached) as unreached:
        found = evidence(context.stores, protection.metadata, unreached.metadata_files(), context.rules, None)
        protection.protect(found.foreign, strangers=found.strangers)
        cutoff = listing.started_at - min_age
        scan = seal_scan(
            context,
            asking,
            protection,
            listing,
            unreached,
            # Every commit writes a metadata file. Data files alone may be leftovers of a writer whose table was
            # dropped.
            Ages(cutoff, min(cutoff, known.missing_since + _SKEW)),
            Origins(None, DROPPED, f"its table was dropped; missed since {known.missing_since:%Y-%m-%d %H:%M} UTC"),
            read_at=read_at,
            mismatches=prefix_mismatch,
        )
    if scan.summary.too_young:
        _refuse_young(scan, known, min_age)
    return scan


def listed_metadata(stores: Stores, scan: ScanRecord, known: KnownTable) -> set[str]:
    """Return the names of the metadata files that a scan found: those to delete, and of those that stay, such as all in
    another table's place, the ones from before the drop."""
    assert known.missing_since is not None
    dropped_at = known.missing_since + _SKEW
    names = {path for batch in frame_batches(scan.files_location, stores) for path in batch.column("path").to_pylist()}
    judged = f"{owner_folder(scan.files_location)}/unreferenced"
    for batch in frame_batches(judged, stores) if describe_frame(judged, stores) is not None else ():
        columns = (batch.column(name).to_pylist() for name in ("path", "last_modified", "verdict"))
        names |= {path for path, at, why in zip(*columns, strict=True) if at and at < dropped_at and why != TOO_YOUNG}
    return {name for path in names if version_of(name := path.rpartition("/")[2]) is not None}


def _refuse_young(scan: OrphanScanResult, known: KnownTable, min_age: timedelta) -> None:
    from pyspark.sql import functions as F

    assert known.missing_since is not None
    young = scan.unreferenced().where(F.col("verdict") == TOO_YOUNG)
    commits = young.where((F.col("kind") == METADATA) & (F.col("last_modified") >= F.lit(known.missing_since + _SKEW)))
    named = ", ".join(row["path"] for row in commits.orderBy("path").limit(_SHOWN).collect())
    if named:
        raise Refused(
            f"Metadata files were written after the catalog lost the table ({known.missing_since:%Y-%m-%d %H:%M} UTC), "
            f"e.g. {named}: it lives elsewhere",
            table=known.table,
            untouched="all files",
            hint=f"find out who commits there; artemis keep-dropped {known.table_uuid} ends these requests",
        )
    raise Refused(
        f"{scan.summary.too_young:,} files are younger than orphans.min_age ({format_duration(min_age)}): a writer may "
        "still be at work",
        table=known.table,
        untouched="all files",
        hint="scan again when they are older",
    )
