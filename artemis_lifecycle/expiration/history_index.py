"""The compacted history of a table: which snapshot was current at any instant of its past, with which schema, and who
wrote it, from a few kilobytes.

A table's snapshot log loses an entry when its snapshot expires, and a log of a million entries takes seconds to parse.
Here, entries older than a cut are summarized into ranges: one for each unbroken run of the same writer, operation,
trigger and schema, with the first and the last snapshot and their count. The entries themselves are in immutable detail
files, so that an instant inside a range is still answered exactly, from one of them. The index, `ranges.parquet`, is
written aside and renamed into place (object stores replace it in one request).
"""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.metadata.lines import CLOCK_TOLERANCE_MS
from artemis_lifecycle.metadata.types import UNKNOWN_SNAPSHOT, Snapshot, SnapshotSummary
from artemis_lifecycle.storage.columnar import parquet_bytes
from artemis_lifecycle.storage.stores import Stores

_BY = ("writer", "operation", "trigger", "schema_id")

RANGES = pa.schema(
    [
        ("first_ms", pa.int64()),
        ("last_ms", pa.int64()),
        ("first_snapshot_id", pa.int64()),
        ("last_snapshot_id", pa.int64()),
        ("entries", pa.int64()),
        ("writer", pa.string()),
        ("operation", pa.string()),
        ("trigger", pa.string()),
        ("schema_id", pa.int64()),
        ("metadata_location", pa.string()),
    ]
)
"""A run of snapshot log entries. `first_ms` and `last_ms` are when its first and its last snapshot became current, in
epoch milliseconds. `metadata_location` is a metadata file, live or cold, that had the last snapshot in full. A snapshot
id of UNKNOWN_SNAPSHOT marks a time about which no tier has an entry."""

_DETAIL_ROWS = 65_536
_BEGINNING_MS = -(2**63)
_INDEX = "ranges.parquet"
_ABOUT = b"artemis.history"


Log = Sequence[tuple[int, int]]
"""(Epoch ms, snapshot id): from when on a snapshot was the table's current one."""


class CurrentSnapshot(NamedTuple):
    """The snapshot that was current, and since when (epoch ms); what is unknown is None."""

    snapshot_id: int
    since_ms: int
    schema_id: int | None
    writer: str | None
    operation: str | None
    trigger: str | None


@dataclass(frozen=True)
class _Detail:
    """A file of entries (since_ms, snapshot_id), the first of which begins at `first_ms`."""

    name: str
    first_ms: int
    rows: int
    sha256: str


class RecentEntry(NamedTuple):
    """An entry of the log that a late clock's commit may still precede, with what its snapshot says: the snapshot may
    leave the table before the entry is part of the ranges."""

    since_ms: int
    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    schema_id: int | None
    writer: str | None
    operation: str | None
    trigger: str | None
    metadata_location: str | None

    def snapshot(self) -> tuple[Snapshot, str]:
        """Return what is known of the snapshot, and the metadata file that had it."""
        named = {"writer.id": self.writer, "trigger.type": self.trigger}
        summary = SnapshotSummary(self.operation, {key: value for key, value in named.items() if value is not None})
        number, where = self.sequence_number, self.metadata_location or ""
        found = Snapshot(self.snapshot_id, self.parent_id, number, self.since_ms, None, (), self.schema_id, summary)
        return found, where


class Recorded(NamedTuple):
    """What a record was made from: the table by name, its line of metadata, and until when that was seen."""

    table: str
    file: str | None
    updated_ms: int
    marks: tuple[int, ...]
    seen_ms: int = 0


@dataclass(frozen=True)
class HistoryIndex:
    """The compacted history. It is complete for instants up to `until_ms`. From there on, `recent` has the log as it
    was when the table's metadata was `recorded`, beginning with what was current at `until_ms`; the live log continues
    it."""

    folder: str
    until_ms: int
    ranges: pa.Table
    recent: tuple[RecentEntry, ...] = ()
    recorded: Recorded | None = None
    _details: tuple[_Detail, ...] = field(default=())
    _superseded: tuple[str, ...] = field(default=())
    """Detail files that the last merge replaced. A reader of the index before it may still want them, so the next
    merge deletes them."""

    @property
    def entries(self) -> int:
        """The number of snapshot log entries that it covers."""
        return int(pc.sum(self.ranges["entries"]).as_py() or 0)

    def size_in_bytes(self, stores: Stores) -> int:
        """Return the size of the stored index, without its detail files."""
        found = stores.head(f"{self.folder}/{_INDEX}")
        return 0 if found is None else found.size_in_bytes

    def at(self, stores: Stores, instant_ms: int) -> CurrentSnapshot | None:
        """Return what was current at an instant up to `until_ms`; None before the history begins, and in a time about
        which no tier has an entry. Reads at most one detail file. Raises StorageError if that is damaged."""
        place = int(np.searchsorted(self.ranges["first_ms"].to_numpy(), instant_ms, "right")) - 1
        if place < 0:
            return None
        found = self.ranges.slice(place, 1).to_pylist()[0]
        since, snapshot_id = found["first_ms"], found["first_snapshot_id"]
        if found["entries"] > 1:
            since, snapshot_id = self._entry(stores, instant_ms)
        if snapshot_id == UNKNOWN_SNAPSHOT:
            return None
        return CurrentSnapshot(
            snapshot_id, since, found["schema_id"], found["writer"], found["operation"], found["trigger"]
        )

    def _entry(self, stores: Stores, instant_ms: int) -> tuple[int, int]:
        begins = [detail.first_ms for detail in self._details]
        detail = self._details[int(np.searchsorted(begins, instant_ms, "right")) - 1]
        rows = _read_detail(stores, self.folder, detail)
        row = int(np.searchsorted(rows["since_ms"].to_numpy(), instant_ms, "right")) - 1
        return rows["since_ms"][row].as_py(), rows["snapshot_id"][row].as_py()

    def snapshots(self) -> dict[int, tuple[Snapshot, str]]:
        """Return the snapshots of `recent`, as far as the record knows them."""
        return {each.snapshot_id: each.snapshot() for each in self.recent if each.metadata_location is not None}

    def snapshot_ids(self, stores: Stores) -> set[int]:
        """Return every snapshot that was the table's current one, as far as the history knows."""
        return {number for _, number in self._since(stores, _BEGINNING_MS)} | {each.snapshot_id for each in self.recent}

    def _since(self, stores: Stores, first_ms: int) -> set[tuple[int, int]]:
        """Return the entries from `first_ms` on."""
        found: set[tuple[int, int]] = set()
        for detail, following in zip_longest(self._details, self._details[1:]):
            if following is None or following.first_ms > first_ms:
                rows = _read_detail(stores, self.folder, detail)
                found.update(zip(rows["since_ms"].to_pylist(), rows["snapshot_id"].to_pylist(), strict=True))
        return found


def history_folders(root: str, table: str, table_uuid: str) -> tuple[str, str]:
    """Return where a table's history is, and where it is if another name has the same uuid and the first folder."""
    folder = f"{root}/history/{table_uuid}"
    return folder, f"{folder}/{hashlib.sha256(table.encode()).hexdigest()[:16]}"


def read_history(stores: Stores, folder: str) -> HistoryIndex | None:
    """Return the history stored in `folder`; None before the first compaction. Raises StorageError if it is damaged."""
    path = f"{folder}/{_INDEX}"
    if stores.head(path) is None:
        return None
    try:
        table = pq.read_table(io.BytesIO(stores.read(path)))
        about = json.loads(table.schema.metadata[_ABOUT])
        details = tuple(_Detail(**detail) for detail in about["details"])
        ranges = table.cast(RANGES).replace_schema_metadata(None)
        recent = tuple(RecentEntry(*each) for each in about["recent"])
        recorded = None
        if about["recorded"] is not None:
            name, file, updated_ms, marks, seen_ms = about["recorded"]
            recorded = Recorded(name, file, updated_ms, tuple(marks), seen_ms)
        return HistoryIndex(folder, about["until_ms"], ranges, recent, recorded, details, tuple(about["superseded"]))
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        raise _damaged(path, str(error)) from error


def extend_history(
    stores: Stores,
    folder: str,
    log: Log,
    earlier: Callable[[], Log],
    snapshots: Mapping[int, tuple[Snapshot, str]],
    *,
    until_ms: int,
    cut_ms: int | None,
    archived: Callable[[], Mapping[int, tuple[Snapshot, str]]] = dict,
    continued: Callable[[HistoryIndex], Log] | None = None,
    recorded: Recorded | None = None,
    confirm: Callable[[], None] = lambda: None,
) -> HistoryIndex:
    """Add the log's entries up to `until_ms` to the history in `folder`, and store it. With `cut_ms`, also join the
    ranges that end before it, and small detail files. Run by one process at a time: callers hold the table's lease, and
    `confirm` raises if it is lost. It runs right before the index is replaced.

    `log` is the table's current snapshot log: (epoch ms, snapshot id), in any order; of entries with one time, the
    first counts. `earlier` returns the log of both tiers, for a history that begins; `continued` returns what follows
    the end of an index, from its recent entries and the current log. `recorded` says from what this is. `snapshots`
    has the known snapshots by id, each with a metadata file that has it; `archived` returns those of the cold tier, for
    a history that begins, and with `cut_ms`, when ranges learn which metadata file has their last snapshot now.

    If the log begins after the history ends, the time between
    is unknown. If it has another past than the history, because the table was reset to an earlier state or registered
    anew, the former index is set aside beside the new one, which begins with what both tiers have. Raises StorageError.
    """
    known = read_history(stores, folder)
    if known is not None and not _continues(stores, known, _steps(log)):
        data = stores.read(f"{folder}/{_INDEX}")
        aside = f"{folder}/ranges-{known.until_ms}-{hashlib.sha256(data).hexdigest()[:8]}.parquet"
        stores.write(aside, data, overwrite=True)
        known = None
    if known is None or cut_ms is not None:
        snapshots = {**archived(), **snapshots}
    details: tuple[_Detail, ...] = ()
    superseded: tuple[str, ...] = ()
    ranges = RANGES.empty_table()
    if known is None:
        log = earlier()
    elif continued is not None:
        log = continued(known)
    log = [(since, snapshot_id or UNKNOWN_SNAPSHOT) for since, snapshot_id in log]
    steps = _steps(log)
    if known is not None:
        snapshots = {**known.snapshots(), **snapshots}
        details, superseded, ranges = known._details, known._superseded, known.ranges
        last, first = known.until_ms, steps["since_ms"][0].as_py() if steps.num_rows else None
        hole = ranges.num_rows > 0 and first is not None and first > last + 1
        steps = steps.filter(pc.greater(steps["since_ms"], last))
        if hole:
            unknown = pa.table({"since_ms": [last + 1], "snapshot_id": [UNKNOWN_SNAPSHOT]}, _STEPS)
            steps = pa.concat_tables([unknown, steps])
        until_ms = max(until_ms, known.until_ms)
    steps = steps.filter(pc.less_equal(steps["since_ms"], until_ms))
    details = (*details, *_write_details(stores, folder, steps))
    ranges = pa.concat_tables([ranges, _singles(steps, snapshots)]).combine_chunks()
    unneeded: tuple[str, ...] = ()
    if cut_ms is not None:
        ranges = _joined(_refreshed(ranges, snapshots), cut_ms)
        small = next((place for place, each in enumerate(details) if each.rows < _DETAIL_ROWS), len(details))
        if len(details) - small > 1:
            # Each expiration adds one, and the index names them all.
            merged = pa.concat_tables([_read_detail(stores, folder, each) for each in details[small:]])
            unneeded, superseded = superseded, tuple(each.name for each in details[small:])
            details = (*details[:small], *_write_details(stores, folder, merged))
    recent = () if recorded is None else _recent(log, snapshots, until_ms)
    extended = HistoryIndex(folder, until_ms, ranges, recent, recorded, details, superseded)
    if extended != known:
        about = {
            "until_ms": until_ms,
            "details": [asdict(detail) for detail in extended._details],
            "superseded": superseded,
            "recent": recent,
            "recorded": recorded,
        }
        data = parquet_bytes(ranges.replace_schema_metadata({_ABOUT: json.dumps(about)}))
        confirm()
        stores.write(f"{folder}/{_INDEX}", data, overwrite=True)
    # One that stays because of an error is small, and nothing references it.
    stores.delete([f"{folder}/{name}" for name in unneeded])
    return extended


_STEPS = pa.schema([("since_ms", pa.int64()), ("snapshot_id", pa.int64())])


def _steps(log: Log) -> pa.Table:
    """Return the log as a step function: ascending times, each once."""
    since, ids = (np.array([entry[place] for entry in log], np.int64) for place in (0, 1))
    times, first = np.unique(since, return_index=True)
    return pa.table({"since_ms": times, "snapshot_id": ids[first]}, _STEPS)


def _recent(log: Log, snapshots: Mapping[int, tuple[Snapshot, str]], until_ms: int) -> tuple[RecentEntry, ...]:
    """Return the log after `until_ms`, beginning with what was current then."""
    before = max((each for each in log if each[0] <= until_ms), key=lambda each: each[0], default=None)
    entries = [] if before is None else [(until_ms, before[1])]
    found = []
    for since, snapshot_id in (*entries, *(each for each in log if each[0] > until_ms)):
        snapshot, where = snapshots.get(snapshot_id, (None, None))
        if snapshot is None:
            found.append(RecentEntry(since, snapshot_id, None, 0, None, None, None, None, None))
            continue
        summary, parent, number = snapshot.summary, snapshot.parent_snapshot_id, snapshot.sequence_number
        said = summary.get("writer.id"), summary.operation, summary.get("trigger.type")
        found.append(RecentEntry(since, snapshot_id, parent, number, snapshot.schema_id, *said, where))
    return tuple(found)


def _continues(stores: Stores, known: HistoryIndex, steps: pa.Table) -> bool:
    """Return True if every entry of the log for the time that the history covers is in the history, except a commit by
    a late clock. The log may lack some: an engine may remove expired snapshots from the middle."""
    covered = steps.filter(pc.less_equal(steps["since_ms"], known.until_ms - CLOCK_TOLERANCE_MS))
    if covered.num_rows == 0:
        return True
    entries = known._since(stores, covered["since_ms"][0].as_py())
    pairs = zip(covered["since_ms"].to_pylist(), covered["snapshot_id"].to_pylist(), strict=True)
    return all(pair in entries for pair in pairs)


def _singles(steps: pa.Table, snapshots: Mapping[int, tuple[Snapshot, str]]) -> pa.Table:
    ids = steps["snapshot_id"].to_pylist()
    found = [snapshots.get(snapshot_id) for snapshot_id in ids]
    summaries = [None if each is None else each[0].summary for each in found]
    columns = {
        "first_ms": steps["since_ms"],
        "last_ms": steps["since_ms"],
        "first_snapshot_id": steps["snapshot_id"],
        "last_snapshot_id": steps["snapshot_id"],
        "entries": np.ones(steps.num_rows, np.int64),
        "writer": [None if each is None else each.get("writer.id") for each in summaries],
        "operation": [None if each is None else each.operation for each in summaries],
        "trigger": [None if each is None else each.get("trigger.type") for each in summaries],
        "schema_id": [None if each is None else each[0].schema_id for each in found],
        "metadata_location": [None if each is None else each[1] for each in found],
    }
    return pa.table(columns, RANGES)


def _refreshed(ranges: pa.Table, snapshots: Mapping[int, tuple[Snapshot, str]]) -> pa.Table:
    """Return the ranges with the metadata file that has each one's last snapshot now: Iceberg removes old metadata
    files, and an expired snapshot is in the cold tier's. What was unknown of a single snapshot is filled in."""
    current = _singles(ranges.select(["last_ms", "last_snapshot_id"]).rename_columns(_STEPS.names), snapshots)
    known = pc.is_valid(current["metadata_location"])
    blank = pc.and_(known, pc.and_(pc.equal(ranges["entries"], 1), pc.is_null(ranges["operation"])))
    for name in ("metadata_location", *_BY):
        wanted = known if name == "metadata_location" else blank
        values = pc.if_else(wanted, current[name], ranges[name])
        ranges = ranges.set_column(ranges.schema.get_field_index(name), RANGES.field(name), values)
    return ranges


def _joined(ranges: pa.Table, cut_ms: int) -> pa.Table:
    """Join neighbors of the same writer, operation, trigger and schema that ended before the cut."""
    rows = ranges.num_rows
    if rows < 2:
        return ranges
    unlike = np.zeros(rows - 1, np.bool_)
    for name in _BY:
        codes = ranges[name].combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        unlike |= codes[1:] != codes[:-1]
    first, last = ranges["first_snapshot_id"].to_numpy(), ranges["last_ms"].to_numpy()
    # A time without an entry is not a snapshot of any writer.
    unlike |= (first[1:] == UNKNOWN_SNAPSHOT) | (first[:-1] == UNKNOWN_SNAPSHOT) | (last[1:] >= cut_ms)
    begins = np.flatnonzero(np.concatenate([[True], unlike]))
    ends = np.concatenate([begins[1:], [rows]]) - 1
    at_begin, at_end = ranges.take(pa.array(begins)), ranges.take(pa.array(ends))
    columns = {name: at_begin[name] for name in RANGES.names} | {
        "last_ms": at_end["last_ms"],
        "last_snapshot_id": at_end["last_snapshot_id"],
        "metadata_location": at_end["metadata_location"],
        "entries": pa.array(np.add.reduceat(ranges["entries"].to_numpy(), begins)),
    }
    return pa.table(columns, RANGES)


def _write_details(stores: Stores, folder: str, rows: pa.Table) -> tuple[_Detail, ...]:
    starts = range(0, rows.num_rows, _DETAIL_ROWS)
    return tuple(_write_detail(stores, folder, rows.slice(start, _DETAIL_ROWS)) for start in starts)


def _write_detail(stores: Stores, folder: str, rows: pa.Table) -> _Detail:
    data = parquet_bytes(rows, column_encoding={"since_ms": "DELTA_BINARY_PACKED"}, use_dictionary=False)
    name = f"entries-{uuid.uuid4().hex}.parquet"
    stores.write(f"{folder}/{name}", data)
    return _Detail(name, rows["since_ms"][0].as_py(), rows.num_rows, hashlib.sha256(data).hexdigest())


def _read_detail(stores: Stores, folder: str, detail: _Detail) -> pa.Table:
    path = f"{folder}/{detail.name}"
    data = stores.read(path)
    if hashlib.sha256(data).hexdigest() != detail.sha256:
        raise _damaged(path, "it differs from its checksum")
    return pq.read_table(io.BytesIO(data))


def _damaged(path: str, why: str) -> StorageError:
    return StorageError(
        f"A file of a table's compacted history is damaged: {why}",
        path=path,
        untouched="the table and its history",
        hint="restore the file; or move the folder aside, and the history begins with what both tiers still have",
    )
