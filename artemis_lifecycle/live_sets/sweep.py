"""Sweep: for each table of a set, its files that no live version reaches.

The walk of its locations, the comparison and the deletion are those of orphan scans: exact, and with every guard of
`protection/`. A file is kept if any table of the catalog reaches it, not only the one in whose place it is (nessie
12363). Belongs here: the order of the tables, and what is recorded of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.operations.live_sets import BaseLocation, LiveSet, SweptTable
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.result import OrphanScanResult
from artemis_lifecycle.storage.location import LocationRules, overlap
from artemis_lifecycle.storage.threads import threaded


class Name(Protocol):
    """Returns the current name of the table with a uuid, from the name that the set has."""

    def __call__(self, table: str, table_uuid: str, /) -> str: ...


class Walk(Protocol):
    """Lists the locations of a table, or one of them."""

    def __call__(self, table: str, location: str | None = None, /) -> Listing: ...


class Scan(Protocol):
    """Seals the files of a listing that nothing live reaches and nothing protects."""

    def __call__(self, table: str, listing: Listing, /) -> OrphanScanResult: ...


class Delete(Protocol):
    """Deletes the files of a sealed scan through the journal."""

    def __call__(self, scan_id: str, /) -> DeletionReport: ...


class SweepRows(Protocol):
    """Where results are recorded, such as `operations.live_sets.LiveSets`."""

    def swept_table(self, row: SweptTable) -> None: ...


@dataclass(frozen=True)
class TableSweep:
    """One table of a sweep: the sealed scan of its files, and what was deleted of it. `error` is why it was left out;
    `waits` what its deletion waits for."""

    table: str
    table_uuid: str
    scan_id: str | None = None
    files: int = 0
    bytes: int = 0
    deleted: int | None = None
    error: str | None = None
    waits: str | None = None


@dataclass(frozen=True)
class Unseen:
    """A table that no live reference shows any more, or a location that no live version uses (`location`). Its files
    stay until `due_at`, and after that until a policy or a person deletes them."""

    table: str
    table_uuid: str
    location: str | None
    first_seen: datetime
    last_seen: datetime
    due_at: datetime


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep. Nothing was deleted if it was `deferred`: the scans wait for `artemis delete-orphans`."""

    live_set: LiveSet
    deferred: bool
    tables: tuple[TableSweep, ...]
    unseen: tuple[Unseen, ...] = ()

    @property
    def files(self) -> int:
        """The files that nothing live reaches."""
        return sum(each.files for each in self.tables)


def sweep_tables(
    live_set_id: str,
    tables: Sequence[tuple[str, str]],
    rows: SweepRows,
    *,
    walk: Walk,
    scan: Scan,
    name_of: Name = lambda table, table_uuid: table,
    delete: Delete | None,
    threads: int = 2,
    check: Callable[[], None] = lambda: None,
) -> tuple[TableSweep, ...]:
    """Sweep `tables` (name and uuid), several at once. A table that cannot be swept is recorded with its error, and
    stops no other one. Without `delete`, the sealed scans wait."""

    def one(table: tuple[str, str]) -> TableSweep:
        check()
        name, table_uuid = table
        try:
            name = name_of(name, table_uuid)
            scanned = scan(name, walk(name))
        except LifecycleError as error:
            rows.swept_table(SweptTable(live_set_id, table_uuid, name, None, str(error)))
            return TableSweep(name, table_uuid, error=str(error))
        rows.swept_table(SweptTable(live_set_id, table_uuid, name, scanned.scan_id, None))
        summary = scanned.summary
        found = TableSweep(name, table_uuid, scanned.scan_id, summary.orphan_files, summary.orphan_bytes)
        return found if delete is None else deleted(found, delete)

    return tuple(threaded(one, list(tables), threads))


def deleted(found: TableSweep, delete: Delete) -> TableSweep:
    """Delete what the sweep of a table found. Whatever stops that, the scan stays and can be deleted later."""
    assert found.scan_id is not None
    try:
        report = delete(found.scan_id)
    except LifecycleError as error:
        return replace(found, waits=str(error))
    return replace(found, deleted=report.deleted, waits=report.paused)


def unused_locations(
    known: Sequence[BaseLocation], used: Sequence[str], marked_from: datetime, rules: LocationRules
) -> list[BaseLocation]:
    """Return the locations that no live version uses: last seen before this mark, and not around or inside a used one.
    Pure."""
    old = (each for each in known if each.last_seen < marked_from)
    return [each for each in old if not any(overlap(each.location, place, rules) for place in used)]
