"""Sweep: for each table of a set, its files that no live version reaches.

The walk of its locations, the comparison and the deletion are those of orphan scans: exact, and with every guard of
`protection/`. A file is kept if any table of the catalog reaches it, not only the one in whose place it is (nessie
12363). Belongs here: the order of the tables, and what is recorded of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.operations.live_sets import BaseLocation, LiveSet, LiveVersion, SweptTable
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.scan import OrphanScanResult
from artemis_lifecycle.storage.location import LocationRules, overlap
from artemis_lifecycle.storage.threads import threaded

# --- comparison -------------------------------------------------------------------------------------------------------
# What changed between two sets. Pure.


class _Key(NamedTuple):
    content_id: str
    metadata_location: str
    snapshot_id: int


@dataclass(frozen=True)
class LiveSetComparison:
    """Versions that are live in both sets, or only in one; and contents that only one of them has, by name."""

    before: str
    after: str
    same_versions: int
    only_before: int
    only_after: int
    contents_gone: tuple[str, ...]
    contents_new: tuple[str, ...]
    versions_gone: tuple[str, ...]
    versions_new: tuple[str, ...]


_SHOWN = 1_000


def compared(
    before: str, after: str, first: Iterable[LiveVersion], second: Iterable[LiveVersion], names: Mapping[str, str]
) -> LiveSetComparison:
    """Compare two sets, whose versions come in the order of their keys, in one pass. `names` has the contents of both.
    At most 1,000 metadata files are listed of each, once each: many snapshots are in one."""
    same, gone, new = 0, 0, 0
    gone_files, new_files = dict[str, None](), dict[str, None]()
    contents: tuple[set[str], set[str]] = (set(), set())
    left, right = iter(first), iter(second)
    one, two = next(left, None), next(right, None)
    while one is not None or two is not None:
        key_one = None if one is None else _Key(one.content_id, one.metadata_location, one.snapshot_id)
        key_two = None if two is None else _Key(two.content_id, two.metadata_location, two.snapshot_id)
        take_one = key_two is None or (key_one is not None and key_one <= key_two)
        take_two = key_one is None or (key_two is not None and key_two <= key_one)
        same += take_one and take_two
        if take_one and one is not None:
            contents[0].add(one.content_id)
            if not take_two:
                gone += 1
                gone_files[one.metadata_location] = None
            one = next(left, None)
        if take_two and two is not None:
            contents[1].add(two.content_id)
            if not take_one:
                new += 1
                new_files[two.metadata_location] = None
            two = next(right, None)

    def named(ids: set[str]) -> tuple[str, ...]:
        return tuple(sorted(names.get(each, each) for each in ids))

    return LiveSetComparison(
        before,
        after,
        same,
        gone,
        new,
        named(contents[0] - contents[1]),
        named(contents[1] - contents[0]),
        tuple(islice(gone_files, _SHOWN)),
        tuple(islice(new_files, _SHOWN)),
    )


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
    record: Callable[[SweptTable], None],
    *,
    walk: Callable[[str], Listing],
    scan: Callable[[str, Listing], OrphanScanResult],
    name_of: Callable[[str, str], str] = lambda table, table_uuid: table,
    delete: Callable[[str], DeletionReport] | None,
    threads: int = 2,
    check: Callable[[], object] = lambda: None,
) -> tuple[TableSweep, ...]:
    """Sweep `tables` (name and uuid), several at once: by its current name (`name_of`), `walk` lists the locations of a
    table, `scan` seals what nothing live reaches and nothing protects, and `delete` deletes that through the journal.
    A table that cannot be swept is recorded with its error, and stops no other one. Without `delete`, the sealed scans
    wait."""

    def one(table: tuple[str, str]) -> TableSweep:
        check()
        name, table_uuid = table
        try:
            name = name_of(name, table_uuid)
            scanned = scan(name, walk(name))
        except LifecycleError as error:
            record(SweptTable(live_set_id, table_uuid, name, None, str(error)))
            return TableSweep(name, table_uuid, error=str(error))
        record(SweptTable(live_set_id, table_uuid, name, scanned.scan_id, None))
        summary = scanned.summary
        found = TableSweep(name, table_uuid, scanned.scan_id, summary.orphan_files, summary.orphan_bytes)
        return found if delete is None else deleted(found, delete)

    return tuple(threaded(one, list(tables), threads))


def deleted(found: TableSweep, delete: Callable[[str], DeletionReport]) -> TableSweep:
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
