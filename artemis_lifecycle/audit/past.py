"""The compacted history of tables: which snapshot was current at an instant of all the past."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier.cold_metadata import (
    ARCHIVE_OF,
    COMPLETE_UNTIL,
    SEEN_UNTIL,
    UNKNOWN_SNAPSHOT,
    entry_at,
    line_of,
    seen_until,
    whole_log,
)
from artemis_lifecycle.cold_tier.cold_split import CLOSED_TABLES
from artemis_lifecycle.cold_tier.cold_tables import ColdTables
from artemis_lifecycle.cold_tier.evolution import SCHEMAS, same_ids
from artemis_lifecycle.cold_tier.reads import current_entry
from artemis_lifecycle.errors import (
    BadInput,
    NaiveDatetime,
    NoSuchSnapshot,
    NoSuchTable,
    OperationsUnavailable,
    UnreadableMetadata,
)
from artemis_lifecycle.expiration.curve import RetentionCurve
from artemis_lifecycle.expiration.curve import retention_curve as curve_of
from artemis_lifecycle.expiration.history_index import (
    CurrentSnapshot,
    HistoryIndex,
    Log,
    RecentEntry,
    Recorded,
    extend_history,
    history_folders,
    read_history,
)
from artemis_lifecycle.metadata.lines import CLOCK_TOLERANCE_MS, Line, Marks, went_back
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.walk import ReachableSet as ReachableSet
from artemis_lifecycle.reachability.walk import reachable_files, reachable_set
from artemis_lifecycle.retention.rules import decide, view_of
from artemis_lifecycle.session.contexts import (
    cold_metadata,
    cold_tables,
    keepers,
    present_index,
    retention_settings,
)
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.instants import in_calendar, milliseconds
from artemis_lifecycle.tabular import Shown

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class HistoryCompaction(Shown):
    """A table's compacted history: `entries` of the snapshot log, up to `until`, are in `ranges` ranges.
    `size_in_bytes` is that of the index, which is what a question reads."""

    table: str
    location: str
    until: datetime
    ranges: int
    entries: int
    size_in_bytes: int
    _index: HistoryIndex

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per range, oldest first: first_at, last_at datetime64[ns, UTC]; first_snapshot_id,
        last_snapshot_id, entries int64; writer, operation, trigger, metadata_location object; schema_id Int64."""
        import pandas as pd

        frame: pd.DataFrame = self._index.ranges.to_pandas(integer_object_nulls=True)
        for name in ("first", "last"):
            frame[f"{name}_ms"] = pd.to_datetime(frame[f"{name}_ms"], unit="ms", utc=True)
        return frame.rename(columns={"first_ms": "first_at", "last_ms": "last_at"}).astype({"schema_id": "Int64"})


@dataclass(frozen=True)
class Past:
    """Compacts and reads the histories of tables."""

    resources: Resources
    steps: Steps

    def compact_history(self, table: str, now: datetime | None = None) -> HistoryCompaction:
        """Summarize the table's history before the retention window into ranges: one for each unbroken run of the same
        writer, operation, trigger and schema. `snapshot_at` still answers for every instant, from a few kilobytes. The
        table itself does not change. Raises NoSuchTable, UnreadableMetadata, StorageError, LeaseTaken."""
        instant = self.resources.instant("now", now)
        state = self.steps.table_state(table)
        with self.steps.run(state, "history_compaction") as step:
            metadata = self.steps.again(state).metadata
            cut = instant - self.resources.config.policy(table).retention.window
            index = self.record(table, metadata, cut=cut, confirm=step.check)
            step.counts = {"compactions": 1, "entries": index.entries, "ranges": index.ranges.num_rows}
        return HistoryCompaction(
            table=table,
            location=index.folder,
            until=in_calendar(index.until_ms),
            ranges=index.ranges.num_rows,
            entries=index.entries,
            size_in_bytes=index.size_in_bytes(self.resources.live_stores),
            _index=index,
        )

    def record(
        self, table: str, metadata: TableMetadata, *, confirm: Callable[[], None], cut: datetime | None = None
    ) -> HistoryIndex:
        """Add the table's snapshot log to its history, all of it: also what a late clock may still precede, because its
        snapshots may leave before that is settled. Callers hold the table's lease; `confirm` raises if it is lost."""
        line = Line.of(metadata)
        return extend_history(
            self.resources.live_stores,
            self._index(table, metadata.table_uuid)[0],
            _own_log(metadata),
            lambda: self._log_of_both_tiers(metadata),
            {each.snapshot_id: (each, metadata.metadata_location) for each in metadata.snapshots},
            archived=lambda: self._archived(metadata),
            continued=lambda index: _continued(metadata, index, self._left_ms(metadata.table_uuid)),
            recorded=Recorded(table, line.file, line.updated_ms, astuple(line.marks), self.seen_ms(table, metadata)),
            until_ms=metadata.last_updated_ms - CLOCK_TOLERANCE_MS - 1,
            cut_ms=None if cut is None else milliseconds(cut),
            confirm=confirm,
        )

    def look(self, table: str, metadata: TableMetadata, *, confirm: Callable[[], None]) -> None:
        """Do `record`, unless the history already knows this state of the table: should its catalog be put back, no
        earlier snapshot answers for what was current now."""
        _, index = self._index(table, metadata.table_uuid)
        if index is None or index.recorded is None or index.recorded.file != Line.of(metadata).file:
            self.record(table, metadata, confirm=confirm)

    def seen_ms(self, table: str, metadata: TableMetadata) -> int:
        """Return when (epoch ms, by Postgres) the catalog was just seen to have this metadata; 0 if it has other."""
        now = milliseconds(self.resources.instant("now", None))
        here = self.resources.catalogs.entry(table).metadata_location == metadata.metadata_location
        return now if here else 0

    def current_at(self, table: str, instant: datetime) -> CurrentSnapshot:
        """Return the snapshot of `Lifecycle.snapshot_at`, with its schema and who wrote it."""
        NaiveDatetime.refuse("instant", instant, table=table)
        location = self.resources.catalogs.entry(table).metadata_location
        # Parsing a metadata file with a million snapshots takes seconds. Its uuid is in its first bytes.
        head = _UUID.match(self.resources.live_stores.read_range(location, 0, _HEAD).decode("utf-8", "replace"))
        table_uuid = self.steps.table_uuid(table) if head is None else head[1].lower()
        found = self.at(
            table,
            table_uuid,
            milliseconds(instant),
            lambda: self.steps.table_state(table).metadata,
            lambda: self.own_cold_tables(table, table_uuid),
        )
        if found is None:
            raise NoSuchSnapshot(
                f"No tier knows which snapshot was current at {instant.isoformat()}",
                table=table,
                hint=f"list the snapshots with: artemis history {quote(table)}",
            )
        return found

    def at(
        self,
        table: str,
        table_uuid: str,
        at_ms: int,
        live: Callable[[], TableMetadata],
        cold: Callable[[], ColdTables | None],
    ) -> CurrentSnapshot | None:
        """Return what was current at an instant; None if neither the history nor a tier knows it. Every question about
        an instant is answered here: reads, restores and `current_at` never differ. Raises NoSuchSnapshot, with what the
        archive saw last, for an instant at which the catalog may already have been put back in time."""
        stores = self.resources.live_stores
        _, index = self._index(table, table_uuid)
        found = index.at(stores, at_ms) if index is not None and at_ms <= index.until_ms else None
        if found is not None:
            return found
        metadata, entry, archive = live(), None, None
        if index is not None and at_ms > index.until_ms:
            entry = entry_at(_continued(metadata, index, self._left_ms(table_uuid)), at_ms)
        if entry is None or entry[1] == UNKNOWN_SNAPSHOT:
            archive = cold()
        if archive is not None or index is None:
            # What the history does not know, the table's own log alone does not know either.
            entry = current_entry(metadata, archive, at_ms, self._left_ms(table_uuid))
        if entry is None or entry[1] == UNKNOWN_SNAPSHOT:
            _refuse_lost_line(table, at_ms, metadata, archive, self._left_ms(table_uuid))
            return None
        since, snapshot_id = entry
        snapshot = metadata.snapshot(snapshot_id)
        if snapshot is None and index is not None:
            snapshot, _ = index.snapshots().get(snapshot_id, (None, ""))
        if snapshot is None:
            snapshot, _ = self._archived(metadata).get(snapshot_id, (None, ""))
        if snapshot is None:
            return CurrentSnapshot(snapshot_id, since, None, None, None, None)
        summary = snapshot.summary
        writer, trigger = summary.get("writer.id"), summary.get("trigger.type")
        return CurrentSnapshot(snapshot_id, since, snapshot.schema_id, writer, summary.operation, trigger)

    def own_cold_tables(self, table: str, table_uuid: str) -> ColdTables | None:
        """Return `cold_tables`; None if the table-uuid has two names, and the archive belongs to the other one."""
        tables = cold_tables(self.resources, table_uuid)
        if tables is None:
            return None
        cold = tables.newest.metadata
        other = self.other_name(table, table_uuid, cold.properties.get(ARCHIVE_OF), lambda: line_of(cold))
        return None if other is not None else tables

    def other_name(
        self, table: str, table_uuid: str, recorded_as: str | None, recorded: Callable[[], Line | None]
    ) -> str | None:
        """Return the other name of the table-uuid to which a record belongs, if the live catalog still has it: the name
        of the only line that surely contains what was recorded; if several or none do, the one that was recorded."""
        if recorded_as is None:
            return None
        known, catalogs = self.resources.unchecked_operations.known_tables, self.resources.catalogs.names
        there = (each for each in known.of_uuid(table_uuid) if each.missing_since is None and each.catalog in catalogs)
        names = {each.table for each in there}
        lines: dict[str, Line] = {}
        for name in sorted({recorded_as, *names} - {table}):
            try:
                found = self.steps.table_state(name).metadata
            except (NoSuchTable, BadInput):
                continue  # It was renamed.
            except (UnreadableMetadata, OperationsUnavailable):
                if name in names and name == recorded_as:
                    raise
                continue  # A stranger has the name by now, or it proves nothing.
            if found.table_uuid == table_uuid:
                lines[name] = Line.of(found)
        line = recorded() if lines else None
        if line is not None:
            both = lines | {table: Line.of(self.steps.table_state(table).metadata)}
            having = [name for name, each in both.items() if each.surely_follows(line)]
            own = both.get(recorded_as)
            # An idle copy's log keeps for ever what a busy table's loses.
            if len(having) == 1 and (own is None or own.follows(line) is False or went_back(own, line)):
                recorded_as = having[0]
        return recorded_as if recorded_as in lines else None

    def _left_ms(self, table_uuid: str) -> int:
        return self.resources.unchecked_operations.table_locations.left_ms(table_uuid)

    def _log_of_both_tiers(self, metadata: TableMetadata) -> Log:
        cold = cold_metadata(self.resources, metadata.table_uuid)
        if cold is None:
            return _own_log(metadata)
        log = [{"timestamp-ms": entry.timestamp_ms, "snapshot-id": entry.snapshot_id} for entry in cold.snapshot_log]
        properties = {key: value for key, value in cold.properties.items() if key != CLOSED_TABLES}
        snapshots = (*cold.snapshots, *metadata.snapshots)
        former = {"snapshot-log": log, "properties": properties}
        reset = went_back(Line.of(metadata, self._left_ms(metadata.table_uuid)), line_of(cold))
        return whole_log(metadata, former, snapshots, reset=reset)

    def _archived(self, metadata: TableMetadata) -> dict[int, tuple[Snapshot, str]]:
        """Return the snapshots of the cold tier, with the live table's schema ids, each with its cold metadata file."""
        found: dict[int, tuple[Snapshot, str]] = {}
        for cold in cold_tables(self.resources, metadata.table_uuid) or ():
            schemas = same_ids(cold.metadata.schemas, metadata.schemas, SCHEMAS)
            for each in cold.metadata.snapshots:
                own = None if each.schema_id is None else schemas.get(each.schema_id, each.schema_id)
                found.setdefault(each.snapshot_id, (replace(each, schema_id=own), cold.metadata.metadata_location))
        return found

    def _index(self, table: str, table_uuid: str) -> tuple[str, HistoryIndex | None]:
        """Return where the table's history is, and its index. Of two names with one uuid, each has its own."""
        folder, beside = history_folders(self.resources.root, table, table_uuid)
        index = read_history(self.resources.live_stores, folder)
        recorded = None if index is None else index.recorded
        if index is None or recorded is None:
            return folder, index
        line = partial(_line, table_uuid, recorded, index.recent)
        if self.other_name(table, table_uuid, recorded.table, line) is None:
            return folder, index
        return beside, read_history(self.resources.live_stores, beside)


_HEAD = 4096
_UUID = re.compile(
    r'\s*\{(?:\s*"(?:format-version|location)"\s*:\s*(?:\d+|"(?:[^"\\]|\\.)*")\s*,)*\s*"table-uuid"\s*:\s*"([0-9a-fA-F-]{36})"'
)
"""The beginning of a metadata file as all known writers write it."""


def _refuse_lost_line(table: str, at_ms: int, live: TableMetadata, archive: ColdTables | None, left_ms: int) -> None:
    """Raise NoSuchSnapshot for an instant after the archive's last look at a line that the live table left."""
    cold = None if archive is None else archive.newest.metadata
    if cold is None or not cold.snapshot_log or not went_back(Line.of(live, left_ms), line_of(cold)):
        return
    seen, last = seen_until({"properties": cold.properties}), cold.snapshot_log[-1]
    if at_ms <= seen:
        return
    raise NoSuchSnapshot(
        f"Nobody saw which snapshot was current at {in_calendar(at_ms).isoformat()}: the table's catalog was put back "
        f"to an earlier state. The archive last saw snapshot {last.snapshot_id} (since "
        f"{in_calendar(last.timestamp_ms).isoformat()}), at {in_calendar(seen).isoformat()}; the live table committed "
        "again later",
        table=table,
        hint=f"read snapshot {last.snapshot_id} by its id, or an instant from the next commit on: artemis history "
        f"{quote(table)}",
    )


def _own_log(metadata: TableMetadata) -> Log:
    return [(entry.timestamp_ms, entry.snapshot_id) for entry in metadata.snapshot_log]


def _line(table_uuid: str, recorded: Recorded, recent: Sequence[RecentEntry]) -> Line:
    """Return the line of metadata of which a history has a record."""
    logged = {each.snapshot_id: each.since_ms for each in recent if each.snapshot_id > UNKNOWN_SNAPSHOT}
    return Line(table_uuid, Marks(*recorded.marks), recorded.file, recorded.updated_ms, logged=logged)


def _continued(metadata: TableMetadata, index: HistoryIndex, left_ms: int) -> Log:
    """Return the log from the end of the index on: its recent entries, continued by the table's own log."""
    recorded = index.recorded
    if recorded is None or not index.recent:
        return [entry for entry in _own_log(metadata) if entry[0] > index.until_ms]
    # An unknown snapshot has another id there.
    known = [(each.since_ms, max(each.snapshot_id, UNKNOWN_SNAPSHOT)) for each in index.recent]
    reset = went_back(Line.of(metadata, left_ms), _line(metadata.table_uuid, recorded, index.recent))
    former = {
        "snapshot-log": [{"timestamp-ms": since, "snapshot-id": snapshot_id} for since, snapshot_id in known],
        "properties": {
            COMPLETE_UNTIL: str(max(recorded.updated_ms, *(since for since, _ in known))),
            SEEN_UNTIL: str(recorded.seen_ms),
            CLOSED_TABLES: json.dumps([["", index.until_ms]]),
        },
    }
    snapshots = [*(snapshot for snapshot, _ in index.snapshots().values()), *metadata.snapshots]
    return whole_log(metadata, former, snapshots, reset=reset)


# --- history ----------------------------------------------------------------------------------------------------------
# What a table keeps: the files that its kept snapshots reach, and what other windows would keep.


@dataclass(frozen=True)
class History:
    """Reads metadata and manifests. Changes nothing."""

    resources: Resources
    steps: Steps

    def reachable_set(self, table: str, now: datetime | None = None) -> ReachableSet:
        resources = self.resources
        state = self.steps.table_state(table)
        instant = resources.instant("now", now)
        decision = decide(
            view_of(state.metadata),
            retention_settings(resources, table),
            milliseconds(instant),
            **keepers(resources, table, state.metadata.table_uuid),
        )
        view = present_index(resources, table, state.metadata)
        rows = reachable_files(Runner(resources.start_spark), view, decision.kept)
        return reachable_set(table, state.metadata.metadata_location, decision.kept, rows)

    def retention_curve(
        self, table: str, now: datetime | None = None, windows: Sequence[timedelta] | None = None
    ) -> RetentionCurve:
        """Return what the table would hold under other windows (None: a selection over its age), and what each ref
        costs.

        Changes nothing, and uses the policy's own rule, holds and tags. Raises UnreadableMetadata.
        """
        view = present_index(self.resources, table, self.steps.table_state(table).metadata)
        return curve(self.resources, table, view, self.resources.instant("now", now), windows)


def curve(
    resources: Resources, table: str, view: IndexView, instant: datetime, windows: Sequence[timedelta] | None
) -> RetentionCurve:
    """Return what a table holds under other windows, from its index."""
    return curve_of(
        table,
        view,
        retention_settings(resources, table),
        milliseconds(instant),
        keepers(resources, table, view.metadata.table_uuid),
        windows_ms=None if windows is None else [window // timedelta(milliseconds=1) for window in windows],
    )
