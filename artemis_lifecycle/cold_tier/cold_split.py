"""Keeps cold metadata small for a long history: a cold table above its limit moves past years (or months) to separate
tables. Pure: JSON in, JSON out. Data files, manifests and manifest lists are not moved; only the metadata file that
references them changes.

The newest table keeps the name, and lists the others in its properties. Together they cover all time without gap or
overlap. A snapshot belongs to the table that covers the time of its commit; a log entry to the table that covers its
time. The log of each table starts with the snapshot that was current at its begin, wherever that snapshot is. So the
answer for an instant is the same as from the undivided log.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from artemis_lifecycle.metadata.lines import CLOCK_TOLERANCE_MS
from artemis_lifecycle.metadata.types import NAMED_BY_SNAPSHOT
from artemis_lifecycle.storage.instants import in_calendar, milliseconds

Json = dict[str, Any]
Period = Literal["year", "month"]

CLOSED_TABLES = "artemis.cold-tables"
"""A property of the newest cold table: the closed tables in time order, as JSON `[[name, until-ms], …]`."""

UNKNOWN_SNAPSHOT = 0
"""The id in the log for a period of which nothing is known. No snapshot has it."""

_LABELS: Mapping[Period, str] = {"year": "%Y", "month": "%Y_%m"}


@dataclass(frozen=True)
class ClosedTable:
    """A cold table that covers a past period, up to `until_ms` (epoch ms, exclusive)."""

    name: str
    until_ms: int


def closed_tables(properties: Mapping[str, str] | None) -> tuple[ClosedTable, ...]:
    """Return the closed tables from the newest cold table's properties, in time order. Raises ValueError for a damaged
    list."""
    listed = json.loads((properties or {}).get(CLOSED_TABLES, "[]"))
    return tuple(ClosedTable(str(name), int(until)) for name, until in listed)


def covering(closed: Sequence[ClosedTable], at_ms: int) -> ClosedTable | None:
    """Return the closed table that covers an instant; None if the newest table does."""
    return next((table for table in closed if at_ms < table.until_ms), None)


def begins_at(closed: Sequence[ClosedTable]) -> int | None:
    """Return when the newest table begins (epoch ms); None if it covers all time."""
    return closed[-1].until_ms if closed else None


def log_between(log: Sequence[Json], since: int | None, until: int | None) -> list[Json]:
    """Return the log entries of a period, starting with the snapshot that was current at its begin."""
    inside = [
        entry
        for entry in log
        if (since is None or entry["timestamp-ms"] >= since) and (until is None or entry["timestamp-ms"] < until)
    ]
    if since is None or any(entry["timestamp-ms"] == since for entry in inside):
        return inside
    before = [entry for entry in log if entry["timestamp-ms"] < since]
    if not before:
        return inside
    # The first of equal times, like Iceberg's SnapshotUtil.
    current = max(before, key=lambda entry: entry["timestamp-ms"])
    return [{"timestamp-ms": since, "snapshot-id": current["snapshot-id"]}, *inside]


def split(
    newest: Json, by: Period, above: int, known_until: int, name_for: Callable[[str], str]
) -> tuple[Json, dict[str, Json]]:
    """Return the newest cold table without all periods before its last one, and the metadata of a new table for each of
    those periods, by name. Return `newest` unchanged if it has at most `above` snapshots, if all are in one period
    (UTC), or if its log, which is complete up to `known_until`, may still get an entry in an earlier period.

    `name_for` returns a free name for a period's label, `2024` or `2024_05`. A period without snapshots belongs to the
    table before it.
    """
    closed = list(closed_tables(newest.get("properties")))
    begins = begins_at(closed) or 0
    starts = {_start(max(snapshot["timestamp-ms"], begins), by) for snapshot in newest["snapshots"]}
    if len(newest["snapshots"]) <= above or len(starts) < 2 or max(starts) > known_until - CLOCK_TOLERANCE_MS:
        return newest, {}
    pieces: dict[str, Json] = {}
    for start, until in pairwise(sorted(starts)):
        name = name_for(in_calendar(start).strftime(_LABELS[by]))
        piece = _piece(newest, begins_at(closed), until)
        piece["table-uuid"] = str(uuid.uuid5(uuid.UUID(newest["table-uuid"]), name))
        # The newest table's log of older metadata files does not apply to this table.
        piece["metadata-log"] = []
        piece["properties"] = {key: value for key, value in newest["properties"].items() if key != CLOSED_TABLES}
        pieces[name] = piece
        closed.append(ClosedTable(name, until))
    rest = _piece(newest, begins_at(closed), None)
    listed = json.dumps([[table.name, table.until_ms] for table in closed])
    rest["properties"] = {**newest["properties"], CLOSED_TABLES: listed}
    return rest, pieces


def close(newest: Json, name: str) -> tuple[Json, Json]:
    """Return the newest cold table without snapshots, and the metadata of a table `name` that has all of them. The
    latter covers no time: the newest table still covers what it covered."""
    closed = closed_tables(newest.get("properties"))
    piece = {
        **newest,
        "table-uuid": str(uuid.uuid5(uuid.UUID(newest["table-uuid"]), name)),
        "metadata-log": [],
        "properties": {key: value for key, value in newest["properties"].items() if key != CLOSED_TABLES},
    }
    listed = json.dumps(
        [[table.name, table.until_ms] for table in (*closed, ClosedTable(name, begins_at(closed) or 0))]
    )
    rest = {**newest, "snapshots": [], "refs": {}, "properties": {**newest["properties"], CLOSED_TABLES: listed}}
    return {**rest, **{key: [] for key in NAMED_BY_SNAPSHOT if key in newest}}, piece


def _start(at_ms: int, by: Period) -> int:
    first = in_calendar(at_ms).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return milliseconds(first.replace(month=1) if by == "year" else first)


def _piece(whole: Json, since: int | None, until: int | None) -> Json:
    """Return `whole` reduced to a period in which it has a snapshot."""
    # Snapshots older than the table's own period could go to no closed table (`close`), and stay with the oldest one
    # here.
    closed_until = begins_at(closed_tables(whole.get("properties")))
    snapshots = [
        snapshot
        for snapshot in whole["snapshots"]
        if (since in (None, closed_until) or snapshot["timestamp-ms"] >= since)
        and (until is None or snapshot["timestamp-ms"] < until)
    ]
    ids = {snapshot["snapshot-id"] for snapshot in snapshots}
    newest = max(snapshots, key=by_commit)["snapshot-id"]
    refs = {name: ref for name, ref in whole["refs"].items() if name != "main" and ref["snapshot-id"] in ids}
    refs["main"] = {"snapshot-id": newest, "type": "branch"}
    statistics: Json = {
        key: [entry for entry in whole[key] if entry["snapshot-id"] in ids] for key in NAMED_BY_SNAPSHOT if key in whole
    }
    return {
        **whole,
        **statistics,
        "snapshots": snapshots,
        "current-snapshot-id": newest,
        "refs": refs,
        "snapshot-log": log_between(whole["snapshot-log"], since, until) + ([] if until is None else [_end(until)]),
    }


def _end(until: int) -> Json:
    """Return the last entry of a closed table's log: an engine that is asked for a later instant fails."""
    return {"timestamp-ms": until, "snapshot-id": UNKNOWN_SNAPSHOT}


def history_order(snapshot: Json) -> tuple[int, int, int]:
    """Return the sort key for the order in which a cold table lists its snapshots."""
    return (snapshot.get("sequence-number") or 0, snapshot["timestamp-ms"], snapshot["snapshot-id"])


def by_commit(snapshot: Json) -> tuple[int, tuple[int, int, int]]:
    """Return a sort key. The greatest snapshot is the one that a cold table lists as current."""
    return (snapshot["timestamp-ms"], history_order(snapshot))
