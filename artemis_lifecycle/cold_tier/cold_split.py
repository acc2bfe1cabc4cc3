"""Cold metadata that stays small however long the history is: a cold table that has grown beyond its bound gives its
past years (or months) to tables of their own. Pure: JSON in, JSON out. Data, manifests and manifest lists stay where
they are; only which metadata file names them changes.

The newest table keeps the name, and a list of the others in its properties. Together they cover all time without gap or
overlap: a snapshot stands in the table that covers the instant of its commit, and a log entry in the one that covers
its own. Where a table begins, its log names the snapshot that was current then, wherever that stands, so that the
answer for an instant is the one of the undivided log.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal

from artemis_lifecycle.metadata.kinds import NAMED_BY_SNAPSHOT

Json = dict[str, Any]
Period = Literal["year", "month"]

CLOSED_TABLES = "artemis.cold-tables"
"""The newest cold table's property: the closed ones in order of time, as JSON `[[name, until-ms], …]`."""

CLOCK_TOLERANCE = 60_000
"""By how many milliseconds Iceberg lets a commit be earlier than the one before it."""

_LABELS: Mapping[Period, str] = {"year": "%Y", "month": "%Y_%m"}


@dataclass(frozen=True)
class ClosedTable:
    """A cold table that covers a past stretch of time, up to `until_ms` (epoch ms, not included)."""

    name: str
    until_ms: int


def closed_tables(properties: Mapping[str, str] | None) -> tuple[ClosedTable, ...]:
    """Those that the newest cold table's properties list, in order of time. Raises ValueError for a damaged list."""
    listed = json.loads((properties or {}).get(CLOSED_TABLES, "[]"))
    return tuple(ClosedTable(str(name), int(until)) for name, until in listed)


def covering(closed: Sequence[ClosedTable], at_ms: int) -> ClosedTable | None:
    """The closed table that covers an instant; None for the newest table."""
    return next((table for table in closed if at_ms < table.until_ms), None)


def begins_at(closed: Sequence[ClosedTable]) -> int | None:
    """Where the newest table begins (epoch ms); None while it covers all time."""
    return closed[-1].until_ms if closed else None


def log_between(log: Sequence[Json], since: int | None, until: int | None) -> list[Json]:
    """The entries of a stretch of time, and at its beginning the snapshot that was current then."""
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
    # The first of equal times, as Iceberg's SnapshotUtil takes it.
    current = max(before, key=lambda entry: entry["timestamp-ms"])
    return [{"timestamp-ms": since, "snapshot-id": current["snapshot-id"]}, *inside]


def split(
    newest: Json, by: Period, above: int, known_until: int, name_for: Callable[[str], str]
) -> tuple[Json, dict[str, Json]]:
    """The newest cold table without the periods before its last one, and the metadata of a new table for each of those,
    by name; `newest` as it is while it has at most `above` snapshots, or all are of one period (UTC), or its log, which
    is whole up to `known_until`, may still get an entry of the periods before.

    `name_for` gives a free name to a period's label, `2024` or `2024_05`. A period without snapshots belongs to the
    table before it.
    """
    closed = list(closed_tables(newest.get("properties")))
    begins = begins_at(closed) or 0
    starts = {_start(max(snapshot["timestamp-ms"], begins), by) for snapshot in newest["snapshots"]}
    if len(newest["snapshots"]) <= above or len(starts) < 2 or max(starts) > known_until - CLOCK_TOLERANCE:
        return newest, {}
    pieces: dict[str, Json] = {}
    for start, until in pairwise(sorted(starts)):
        name = name_for(datetime.fromtimestamp(start / 1000, UTC).strftime(_LABELS[by]))
        piece = _piece(newest, begins_at(closed), until)
        piece["table-uuid"] = str(uuid.uuid5(uuid.UUID(newest["table-uuid"]), name))
        # The newest one's log of older metadata files is not its own.
        piece["metadata-log"] = []
        piece["properties"] = {key: value for key, value in newest["properties"].items() if key != CLOSED_TABLES}
        pieces[name] = piece
        closed.append(ClosedTable(name, until))
    rest = _piece(newest, begins_at(closed), None)
    listed = json.dumps([[table.name, table.until_ms] for table in closed])
    rest["properties"] = {**newest["properties"], CLOSED_TABLES: listed}
    return rest, pieces


def close(newest: Json, name: str) -> tuple[Json, Json]:
    """(The newest cold table without any snapshot, the metadata of a table `name` that has all of them.) That one
    covers no time: whatever the newest table gets from here on, it covers what it did."""
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
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    first = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return int((first.replace(month=1) if by == "year" else first).timestamp() * 1000)


def _piece(whole: Json, since: int | None, until: int | None) -> Json:
    """`whole`, of which nothing but a stretch of time is left; it has a snapshot there."""
    # What is older than the table itself could go to no closed one (`close`), and stays with its oldest.
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
        "snapshot-log": log_between(whole["snapshot-log"], since, until),
    }


def history_order(snapshot: Json) -> tuple[int, int, int]:
    """The order in which a cold table lists its snapshots."""
    return (snapshot.get("sequence-number") or 0, snapshot["timestamp-ms"], snapshot["snapshot-id"])


def by_commit(snapshot: Json) -> tuple[int, tuple[int, int, int]]:
    """The greatest is the snapshot that a cold table calls its current one."""
    return (snapshot["timestamp-ms"], history_order(snapshot))
