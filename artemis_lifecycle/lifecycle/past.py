"""The compacted history of tables: which snapshot was current at an instant of all the past."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier.cold_metadata import UNKNOWN_SNAPSHOT, Diverged, continued_log
from artemis_lifecycle.cold_tier.evolution import SCHEMAS, same_ids
from artemis_lifecycle.errors import NaiveDatetime, NoSuchSnapshot
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Steps
from artemis_lifecycle.lifecycle.tiers import cold_metadata, cold_tables
from artemis_lifecycle.lineage.history_index import (
    CLOCK_TOLERANCE_MS,
    CurrentSnapshot,
    HistoryIndex,
    Log,
    extend_history,
    read_history,
)
from artemis_lifecycle.metadata.types import LogEntry, Snapshot, TableMetadata
from artemis_lifecycle.storage.instants import in_calendar, milliseconds

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class HistoryCompaction:
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
        instant = self.resources.instant("now", now)
        state = self.steps.table_state(table)
        with self.steps.run(state, "history_compaction") as step:
            metadata = self.steps.table_state(table).metadata
            cut = instant - self.resources.config.policy(table).retention.window
            index = self.record(metadata, cut=cut, confirm=step.check)
            step.counts = {"entries": index.entries, "ranges": index.ranges.num_rows}
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
        self,
        metadata: TableMetadata,
        leaving: Collection[int] = (),
        *,
        confirm: Callable[[], None],
        cut: datetime | None = None,
    ) -> HistoryIndex:
        """Add the table's snapshot log to its history: what the snapshots that are about to leave have in it, and all
        else that no later commit can still change. Callers hold the table's lease; `confirm` raises if it is lost."""
        log, gone = _own_log(metadata), set(leaving)
        until = max((since for since, snapshot_id in log if snapshot_id in gone), default=0)
        return extend_history(
            self.resources.live_stores,
            self._folder(metadata.table_uuid),
            log,
            lambda: self._log_of_both_tiers(metadata),
            {each.snapshot_id: (each, metadata.metadata_location) for each in metadata.snapshots},
            archived=lambda: self._archived(metadata),
            until_ms=max(until, metadata.last_updated_ms - CLOCK_TOLERANCE_MS),
            cut_ms=None if cut is None else milliseconds(cut),
            confirm=confirm,
        )

    def current_at(self, table: str, instant: datetime) -> CurrentSnapshot:
        if instant.tzinfo is None:
            raise NaiveDatetime(
                f"{instant} has no time zone", table=table, hint="pass a datetime with tzinfo, e.g. UTC"
            )
        at_ms = milliseconds(instant)
        location = self.resources.live_catalog.entry(table).metadata_location
        # Parsing a metadata file with a million snapshots takes seconds. Its uuid is in its first bytes.
        head = self.resources.live_stores.read_range(location, 0, _HEAD)
        begins = _UUID.match(head.decode("utf-8", "replace"))
        index = None if begins is None else read_history(self.resources.live_stores, self._folder(begins[1]))
        if index is not None and at_ms <= index.until_ms:
            found = index.at(self.resources.live_stores, at_ms)
        else:
            found = self._current_since(self.steps.table_state(table).metadata, at_ms)
        if found is None:
            raise NoSuchSnapshot(
                f"No tier knows which snapshot was current at {instant.isoformat()}",
                table=table,
                hint=f"list the snapshots with: artemis history {quote(table)}",
            )
        return found

    def _current_since(self, metadata: TableMetadata, at_ms: int) -> CurrentSnapshot | None:
        """Answer for an instant that the history does not cover yet."""
        stores = self.resources.live_stores
        index = read_history(stores, self._folder(metadata.table_uuid))
        log = self._log_of_both_tiers(metadata) if index is None else _own_log(metadata)
        past = [entry for entry in log if entry[0] <= at_ms and (index is None or entry[0] > index.until_ms)]
        if not past:
            # Another tool may have cut the log after the history's end: then nothing knows the time between.
            cut = index is not None and bool(log) and min(log)[0] > index.until_ms + 1
            return None if index is None or cut else index.at(stores, index.until_ms)
        since, snapshot_id = max(past, key=lambda entry: entry[0])
        if snapshot_id == UNKNOWN_SNAPSHOT:
            return None
        snapshot = metadata.snapshot(snapshot_id)
        if snapshot is None:
            snapshot, _ = self._archived(metadata).get(snapshot_id, (None, ""))
        if snapshot is None:
            return CurrentSnapshot(snapshot_id, since, None, None, None, None)
        summary = snapshot.summary
        writer, trigger = summary.get("writer.id"), summary.get("trigger.type")
        return CurrentSnapshot(snapshot_id, since, snapshot.schema_id, writer, summary.operation, trigger)

    def _log_of_both_tiers(self, metadata: TableMetadata) -> Log:
        cold = cold_metadata(self.resources, metadata.table_uuid)
        if cold is None:
            return _own_log(metadata)
        known = (*cold.snapshots, *metadata.snapshots)
        lineage = {each.snapshot_id: (each.parent_snapshot_id, each.sequence_number) for each in known}
        former = {"snapshot-log": _as_json(cold.snapshot_log), "properties": cold.properties}
        try:
            log = continued_log(former, _as_json(metadata.snapshot_log), lineage)
        except Diverged:
            return _own_log(metadata)
        return [(entry["timestamp-ms"], entry["snapshot-id"]) for entry in log]

    def _archived(self, metadata: TableMetadata) -> dict[int, tuple[Snapshot, str]]:
        """Return the snapshots of the cold tier, with the live table's schema ids, each with its cold metadata file."""
        found: dict[int, tuple[Snapshot, str]] = {}
        for cold in cold_tables(self.resources, metadata.table_uuid) or ():
            schemas = same_ids(cold.metadata.schemas, metadata.schemas, SCHEMAS)
            for each in cold.metadata.snapshots:
                own = None if each.schema_id is None else schemas.get(each.schema_id, each.schema_id)
                found.setdefault(each.snapshot_id, (replace(each, schema_id=own), cold.metadata.metadata_location))
        return found

    def _folder(self, table_uuid: str) -> str:
        return f"{self.resources.root}/history/{table_uuid}"


_HEAD = 4096
_UUID = re.compile(
    r'\s*\{(?:\s*"(?:format-version|location)"\s*:\s*(?:\d+|"(?:[^"\\]|\\.)*")\s*,)*\s*"table-uuid"\s*:\s*"([0-9a-fA-F-]{36})"'
)
"""The beginning of a metadata file as all known writers write it."""


def _own_log(metadata: TableMetadata) -> Log:
    return [(entry.timestamp_ms, entry.snapshot_id) for entry in metadata.snapshot_log]


def _as_json(log: Sequence[LogEntry]) -> list[dict[str, int]]:
    return [{"timestamp-ms": entry.timestamp_ms, "snapshot-id": entry.snapshot_id} for entry in log]
