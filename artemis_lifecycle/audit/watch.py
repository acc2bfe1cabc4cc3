"""The watch over governed tables: snapshots that do not meet the lineage requirements, whatever wrote them.

For catalogs that have no gate, and for what gets past one. It finds a snapshot after its commit; it prevents nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime

from artemis_lifecycle.catalogs.gate.rules import Mode, governed_mode
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.commits.gate import Gate
from artemis_lifecycle.contracts import LineageRequirements, lineage_problems
from artemis_lifecycle.errors import LifecycleError, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import CatalogEntry, Snapshot, TableMetadata
from artemis_lifecycle.operations.lineage import FoundSnapshot, UnmetSnapshot, WatchedTable
from artemis_lifecycle.operations.tables import require_said, storable
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps
from artemis_lifecycle.storage.instants import if_in_calendar, milliseconds

_V1_SKEW_MS = 60_000
"""Iceberg accepts a snapshot up to a minute older than the newest one. In v1 only times identify new snapshots."""


@dataclass(frozen=True)
class LineageCheck:
    """The snapshots of one table that do not meet its requirements and are not acknowledged, oldest first.

    `gate_missing`: the table's catalog could have a gate, and has none: `artemis gate enable`.
    """

    table: str
    mode: Mode
    unmet: tuple[UnmetSnapshot, ...]
    gate_missing: bool = False

    @property
    def passed(self) -> bool:
        """Return True if there are none, the table's mode does not reject them, or its gate is not enabled yet."""
        return not self.unmet or self.mode != "reject" or self.gate_missing


@dataclass(frozen=True)
class Watched:
    """What one pass of the watch did: the tables whose metadata it read, which of them have new unmet snapshots, and
    the error of each table that it could not read. `complete` is False if the time was over before the last table.

    `open`: each table with unmet snapshots that nobody acknowledged, whichever pass found them; and when the newest of
    them was found.
    """

    read: tuple[str, ...]
    unmet: tuple[str, ...]
    unreadable: Mapping[str, LifecycleError]
    complete: bool
    open: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True)
class LineageWatching:
    """Finds, reports and acknowledges unmet snapshots."""

    resources: Resources
    steps: Steps
    gate: Gate

    def watch(self, seconds: float = 20.0) -> Watched:
        """Check the new snapshots of every governed table against its lineage requirements, and record those that do
        not meet them. Reads the metadata files that changed, for about `seconds`; the next call continues.

        The first call begins the watch: older snapshots are not checked. It works in every catalog, and also finds what
        got past a gate.
        """
        answers, _ = self.resources.catalogs.answering(CatalogReader.pointers)
        rows = {table: entry for found in answers.values() for table, entry in found.items()}
        entries = {table: entry for table, entry in rows.items() if entry.problem is None}
        errors = {
            table: UnreadableMetadata.of(entry.problem, None, table)
            for table, entry in rows.items()
            if entry.problem is not None and self._governs(table)
        }
        watched = self._watch(entries.values(), seconds)
        unreadable = errors | dict(watched.unreadable)
        return replace(watched, unreadable=unreadable, open=self._open(entries.keys() | errors.keys()))

    def _governs(self, table: str) -> bool:
        return self.resources.config.governs(table) and governed_mode(self.resources.config, table) != "none"

    def _open(self, tables: Set[str]) -> Mapping[str, datetime]:
        watch = self.resources.operations.lineage_watch
        now_there = {each.table: each.table_uuid for each in watch.tables()}
        # They are in the order in which they were found.
        latest = {each.table_uuid: each.found_at for each in watch.unmet()}
        names = (name for name in now_there.keys() & tables if now_there[name] in latest and self._governs(name))
        return {name: latest[now_there[name]] for name in names}

    def _watch(self, entries: Iterable[CatalogEntry], seconds: float) -> Watched:
        resources = self.resources
        watch = resources.operations.lineage_watch
        known, began_at = watch.tables(), watch.began_at()
        # Older snapshots were committed before anybody watched.
        began_ms = milliseconds(began_at or resources.clock.now())
        seen = {(each.table, each.metadata_location) for each in known}
        until = time.monotonic() + seconds
        read, unmet, unreadable = list[str](), list[str](), dict[str, LifecycleError]()
        for entry in entries:
            table, location = entry.identifier, entry.metadata_location
            if not self._governs(table) or (table, location) in seen:
                continue
            if read and time.monotonic() > until:
                return Watched(tuple(read), tuple(unmet), unreadable, complete=False)
            try:
                metadata = read_table_metadata(resources.live_stores, location)
            except LifecycleError as error:
                unreadable[table] = error
                continue
            found = self._unmet(table, metadata, _last_look(table, metadata, known), began_ms)
            watch.checked(
                metadata.table_uuid,
                table,
                location,
                last_sequence_number=max((each.sequence_number for each in metadata.snapshots), default=0),
                last_snapshot_ms=max((each.timestamp_ms for each in metadata.snapshots), default=0),
                unmet=found,
            )
            read.append(table)
            if found:
                unmet.append(table)
        return Watched(tuple(read), tuple(unmet), unreadable, complete=True)

    def check(self, table: str) -> LineageCheck:
        """Check the table's new snapshots as `watch_lineage` does, and return those that do not meet its requirements
        and that are not acknowledged. Raises NoSuchTable, UnreadableMetadata."""
        watched = self._watch([self.resources.catalogs.entry(table)], seconds=0)
        if table in watched.unreadable:
            raise watched.unreadable[table]
        found = self.resources.operations.lineage_watch.unmet(self.steps.table_uuid(table))
        gate_missing = self.resources.config.catalogs.of(table).type == "sql" and not self.gate.is_enabled_for(table)
        return LineageCheck(table, governed_mode(self.resources.config, table), found, gate_missing)

    def acknowledge(self, table: str, *, who: str, why: str) -> tuple[UnmetSnapshot, ...]:
        """Acknowledge the table's unmet snapshots: the check `lineage_gate` is green again. Return them. Raises
        BadInput without `who` or `why`, which are recorded."""
        require_said(table, who=who, why=why)
        return self.resources.operations.lineage_watch.acknowledge(self.steps.table_uuid(table), who, why)

    def _unmet(
        self, table: str, metadata: TableMetadata, known: WatchedTable | None, began_ms: int
    ) -> list[FoundSnapshot]:
        requirements = LineageRequirements.from_config(self.resources.config.policy(table).lineage)
        found = []
        for snapshot in _new_snapshots(metadata, known, began_ms):
            problems = lineage_problems(snapshot.summary.whole(), requirements)
            if problems:
                said = tuple(storable(problem) or "" for problem in problems)
                found.append(FoundSnapshot(snapshot.snapshot_id, if_in_calendar(snapshot.timestamp_ms), said))
        return found


def _last_look(table: str, metadata: TableMetadata, known: Iterable[WatchedTable]) -> WatchedTable | None:
    """Return what was last seen of this line of the table, under any name; else of its name."""
    files = {metadata.metadata_location, *(each.metadata_file for each in metadata.metadata_log)}
    seen = [each for each in known if each.table_uuid == metadata.table_uuid]
    line = [each for each in seen if each.metadata_location in files] or [each for each in seen if each.table == table]
    return max(line, key=lambda each: (each.last_sequence_number, each.last_snapshot_ms), default=None)


def _new_snapshots(metadata: TableMetadata, known: WatchedTable | None, began_ms: int) -> Iterator[Snapshot]:
    for snapshot in metadata.snapshots:
        if known is None:
            is_new = snapshot.timestamp_ms >= began_ms
        elif metadata.format_version == 1:
            is_new = snapshot.timestamp_ms > known.last_snapshot_ms - _V1_SKEW_MS
        else:
            # A catalog that was put back gives sequence numbers again.
            is_new = snapshot.sequence_number > known.last_sequence_number
            is_new = is_new or snapshot.timestamp_ms > known.last_snapshot_ms
        if is_new:
            yield snapshot
