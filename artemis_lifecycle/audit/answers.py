"""Answers from the lineage ledger: who overwrote, what is downstream or upstream, when a partition was ingested. Pure:
Arrow tables of the ledger in, answers out. Below them, what manifests tell of ingests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.audit.graph import Direction, LineageEdge, SnapshotOfTable, layered_svg, reached
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.manifests import partitioned_entries
from artemis_lifecycle.metadata.types import EntryStatus, ManifestListEntry, Snapshot, TableMetadata
from artemis_lifecycle.metadata.values import Partition, matches, may_have, partition_of
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.index.lookups import manifests_with
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.location import normalize
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.tabular import Shown, frame_of

if TYPE_CHECKING:
    import pandas as pd


# --- ingests ----------------------------------------------------------------------------------------------------------
# Which snapshots ingested the rows of a partition, or of a data file, found in manifests of the live and the cold
# tier.
#
# A snapshot with operation `replace` moves rows and ingests none (Iceberg spec, "Snapshots"). What it rewrote are the
# entries of its own manifests with status DELETED; the snapshots that added those are in its parent's manifests.


@dataclass(frozen=True)
class Tier:
    """The table in one tier. `paths` returns how the tier may spell a path."""

    name: str
    metadata: TableMetadata
    stores: Stores
    index: Callable[[], IndexView]
    paths: Callable[[str], tuple[str, ...]]


class IngestedFile(NamedTuple):
    """A data file, the snapshot that added it, the tier whose manifest says so, and its partition (`day=2024-03-15`;
    empty if the table is not partitioned)."""

    path: str
    snapshot_id: int
    tier: str
    partition: str


@dataclass(frozen=True)
class Trace:
    """Data files with the rows in question, and the files that those were rewritten from. `untraced` are rewriting
    snapshots whose inputs are in no tier."""

    files: tuple[IngestedFile, ...]
    untraced: tuple[int, ...]


class _Entry(NamedTuple):
    path: str
    added_by: int
    status: int
    partition: Partition

    def in_tier(self, tier: str) -> IngestedFile:
        partition = "/".join(f"{name}={text}" for name, text in self.partition.items())
        return IngestedFile(self.path, self.added_by, tier, partition)


class Ingests:
    """Reads the manifests of a table's tiers, the nearest tier first. `operation_of` and `parent_of` also know
    snapshots that no tier has."""

    def __init__(
        self, tiers: Sequence[Tier], operation_of: Callable[[int], str | None], parent_of: Callable[[int], int | None]
    ) -> None:
        self._tiers = tiers
        self._operation_of = operation_of
        self._parent_of = parent_of
        self._read: dict[str, list[_Entry]] = {}

    def of_partition(self, wanted: Partition) -> Trace:
        """Trace the files of the newest snapshot that has the partition; without files, no tier has it."""
        for tier in self._tiers:
            for snapshot in _newest_first(tier.metadata):
                found = list(self._live(tier, snapshot, wanted))
                if found:
                    return self._traced([(tier, each) for each in found], exact=False)
        return Trace((), ())

    def of_path(self, path: str) -> Trace:
        """Trace the newest data file that was written to a path; without files, no tier has it."""
        for tier in self._tiers:
            view = tier.index()
            rules = view.index.rules
            found = [
                each
                for location in (normalize(each, rules) for each in tier.paths(path))
                for listed in manifests_with(view, location)
                for each in self._entries(tier, listed)
                if each.status != EntryStatus.DELETED and normalize(each.path, rules) == location
            ]
            if found:
                return self._traced([(tier, max(found, key=self._age))], exact=True)
        return Trace((), ())

    def _age(self, entry: _Entry) -> tuple[int, int]:
        """Return a key that is higher for newer files; the lowest if no tier has the snapshot that added it."""
        by = self._find(entry.added_by)
        return (-1, 0) if by is None else (by[1].sequence_number, by[1].timestamp_ms)

    def of_snapshot(self, snapshot_id: int) -> Trace:
        """Return the files that the snapshot added."""
        found = self._find(snapshot_id)
        if found is None:
            return Trace((), ())
        tier, snapshot = found
        added = [each for each in self._own(tier, snapshot) if each.status == EntryStatus.ADDED]
        return Trace(tuple(each.in_tier(tier.name) for each in added), ())

    def _traced(self, start: list[tuple[Tier, _Entry]], *, exact: bool) -> Trace:
        """Follow rewritten files back. `exact`: only files that were rewritten into the given ones, instead of all of
        their partition."""
        files: dict[tuple[str, int], IngestedFile] = {}
        untraced: dict[int, None] = {}
        done: set[tuple[int, tuple[tuple[str, str], ...]]] = set()
        waiting = list(start)
        while waiting:
            tier, entry = waiting.pop()
            files.setdefault((entry.path, entry.added_by), entry.in_tier(tier.name))
            step = (entry.added_by, tuple(sorted(entry.partition.items())))
            if self._operation_of(entry.added_by) != "replace" or step in done:
                continue
            done.add(step)
            behind = self._rewritten(entry, exact=exact)
            if not behind:
                untraced[entry.added_by] = None
            waiting += behind
        return Trace(tuple(files.values()), tuple(untraced))

    def _rewritten(self, entry: _Entry, *, exact: bool) -> list[tuple[Tier, _Entry]]:
        parent = self._parent_of(entry.added_by)
        before = None if parent is None else self._find(parent)
        if before is None:
            return []
        tier, snapshot = before
        if not exact:
            return [(tier, each) for each in self._live(tier, snapshot, entry.partition)]
        found = self._find(entry.added_by)
        if found is None:
            return []
        by, rewriting = found
        gone = [each for each in self._own(by, rewriting) if each.status == EntryStatus.DELETED]
        # Under another partition spec, any of them may be an input.
        gone = [each for each in gone if each.partition == entry.partition] or gone
        names = {spelled for each in gone for spelled in tier.paths(each.path)}
        return [(tier, each) for each in self._live(tier, snapshot, {}) if each.path in names]

    def _find(self, snapshot_id: int) -> tuple[Tier, Snapshot] | None:
        for tier in self._tiers:
            snapshot = tier.metadata.snapshot(snapshot_id)
            if snapshot is not None:
                return tier, snapshot
        return None

    def _live(self, tier: Tier, snapshot: Snapshot, wanted: Partition) -> Iterator[_Entry]:
        for listed in manifests_of(tier.stores, snapshot).entries:
            if listed.content == 0 and may_have(listed, tier.metadata, wanted):
                for each in self._entries(tier, listed):
                    if each.status != EntryStatus.DELETED and matches(each.partition, wanted):
                        yield each

    def _own(self, tier: Tier, snapshot: Snapshot) -> Iterator[_Entry]:
        """Yield the entries of the data manifests that the snapshot wrote."""
        for listed in manifests_of(tier.stores, snapshot).entries:
            if listed.content == 0 and listed.added_snapshot_id == snapshot.snapshot_id:
                for each in self._entries(tier, listed):
                    if each.added_by == snapshot.snapshot_id:
                        yield each

    def _entries(self, tier: Tier, listed: ManifestListEntry) -> list[_Entry]:
        """Return all entries of a manifest, each manifest read once."""
        if listed.manifest_path not in self._read:
            found = partitioned_entries(tier.stores, listed)
            columns = (found.entries.column(name).to_pylist() for name in ("file_path", "snapshot_id", "status"))
            self._read[listed.manifest_path] = [
                # An entry without an id has the one that added the manifest.
                _Entry(
                    path,
                    int(listed.added_snapshot_id or 0) if by is None else by,
                    status,
                    partition_of(values, found.spec, found.schema),
                )
                for path, by, status, values in zip(*columns, found.partitions, strict=True)
            ]
        return self._read[listed.manifest_path]


def _newest_first(metadata: TableMetadata) -> list[Snapshot]:
    """Return the snapshots, the current one first."""
    current = metadata.current_snapshot_id
    return sorted(
        metadata.snapshots,
        key=lambda each: (each.snapshot_id == current, each.sequence_number, each.timestamp_ms),
        reverse=True,
    )


OVERWRITE_COLUMNS = {
    "table": "table_name",
    "snapshot_id": "snapshot_id",
    "committed_at": "committed_at",
    "operation": "operation",
    "who": "trigger_operator",
    "writer": "writer_id",
    "why": "trigger_type",
    "ticket": "trigger_ticket",
}
"""The columns of an answer, and those of the ledger."""

REMOVING = ("delete", "overwrite")
"""The operations of commits that remove rows (Iceberg spec, "Snapshots"): pyiceberg's `overwrite()` commits a `delete`
and an `append`; TRUNCATE and a DELETE of complete files commit a `delete`."""

_REQUIRED = {"who": "trigger.operator", "writer": "writer.id", "why": "trigger.type", "ticket": "trigger.ticket"}
"""What an overwrite must say, and the key in its summary."""


@dataclass(frozen=True)
class Overwrite:
    """One overwrite. `operation` is Iceberg's. `why` is its trigger type. `missing` names keys of its summary that are
    absent or empty."""

    table: str
    snapshot_id: int
    committed_at: datetime
    operation: str
    who: str | None
    writer: str | None
    why: str | None
    ticket: str | None
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Overwrites(Shown):
    """The commits with `since` <= committed_at < `until` that removed rows, oldest first: overwrites, deletes, and what
    else `lineage.overwrite.operations` of their tables names. `unrecorded` snapshots of live tables were read from
    metadata, because the ledger does not have them yet. `unreadable` are
    live tables whose metadata could not be read: what the ledger lacks of them is missing here."""

    since: datetime
    until: datetime
    table: str | None
    rows: tuple[Overwrite, ...]
    unrecorded: int
    unreadable: tuple[str, ...] = ()

    @property
    def incomplete(self) -> tuple[Overwrite, ...]:
        """The overwrites whose summaries miss something."""
        return tuple(each for each in self.rows if each.missing)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per overwrite: table, operation, who, writer, why, ticket, missing (joined by commas) object;
        snapshot_id int64; committed_at datetime64[ms, UTC]."""
        return frame_of(Overwrite, self.rows)


def overwrites_of(
    ledger: pa.Table,
    since: datetime,
    until: datetime,
    table: str | None,
    unrecorded: int,
    unreadable: tuple[str, ...] = (),
) -> Overwrites:
    """Return the answer from ledger rows of overwrites in the time range."""
    rows = ledger.select(list(OVERWRITE_COLUMNS.values())).rename_columns(list(OVERWRITE_COLUMNS))
    rows = rows.sort_by([(each, "ascending") for each in ("committed_at", "table", "snapshot_id")])
    found = tuple(
        Overwrite(**row, missing=tuple(key for column, key in _REQUIRED.items() if not row[column]))
        for row in rows.to_pylist()
    )
    # A snapshot that was recorded while it was read from metadata has two rows.
    return Overwrites(since, until, table, tuple(dict.fromkeys(found)), unrecorded, unreadable)


LINEAGE_EDGE_ROWS = arrow_schema(
    "depth bigint, from_table string, from_uuid string, from_id bigint, to_table string, to_uuid string, to_id bigint"
)


@dataclass(frozen=True)
class Lineage(Shown):
    """What is downstream or upstream of a snapshot. With `states`, a reader of a later state of a table counts as a
    reader of every snapshot that the state contains. `unrecorded` and `unreadable` as in `Overwrites`."""

    table: str
    snapshot_id: int
    direction: Direction
    states: bool
    unrecorded: int
    unreadable: tuple[str, ...]
    _rows: pa.Table = field(repr=False, compare=False)
    _with_states: Callable[[], pa.Table] = field(repr=False, compare=False)

    @property
    def depth(self) -> int:
        """The depth of the farthest edge; 0 without edges."""
        return int(pc.max(self._rows["depth"]).as_py() or 0)

    @cached_property
    def edges(self) -> tuple[LineageEdge, ...]:
        """The edges, nearest first, each as (depth, from, to)."""
        return tuple(
            LineageEdge(depth, SnapshotOfTable(*source), SnapshotOfTable(*target))
            for depth, source, target in zip(
                self._rows["depth"].to_pylist(), self._ends("from"), self._ends("to"), strict=True
            )
        )

    @cached_property
    def snapshots(self) -> tuple[SnapshotOfTable, ...]:
        """The snapshots that were reached, nearest first, without the one in question."""
        ends = self._ends("to" if self.direction == "downstream" else "from")
        own = {(self.table, self.snapshot_id)}
        return tuple(dict.fromkeys(SnapshotOfTable(*each) for each in ends if (each[0], each[1]) not in own))

    @cached_property
    def left_out(self) -> int:
        """The number of snapshots that would count with `states`, and do not without. Walks the graph again."""
        if self.states:
            return 0
        far = "to" if self.direction == "downstream" else "from"
        here, all_of_them = (
            set(zip(rows[f"{far}_uuid"].to_pylist(), rows[f"{far}_id"].to_pylist(), strict=True))
            for rows in (self._rows, self._with_states())
        )
        return len({each for each in all_of_them - here if each[1] != self.snapshot_id})

    def _ends(self, end: str) -> list[tuple[str, int, str | None]]:
        columns = (self._rows[f"{end}_{part}"].to_pylist() for part in ("table", "id", "uuid"))
        return list(zip(*columns, strict=True))

    def svg(self) -> str:
        """Return the graph as a picture: one column per depth, at most twelve snapshots in each."""
        return layered_svg((self.table, self.snapshot_id), {self.direction: self.edges})

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per edge: depth, from_id, to_id int64; from_table, from_uuid, to_table, to_uuid object."""
        frame: pd.DataFrame = self._rows.to_pandas()
        return frame


@dataclass(frozen=True)
class Graph:
    """All inputs of all snapshots, read once, around one snapshot. `edges` has EDGES, and `from_table` where
    `from_uuid` is null. `parents` returns the edges (EDGES) from each snapshot to its child in the same table;
    `names_of` returns names by uuid for the tables in question, or more."""

    start: SnapshotOfTable
    edges: pa.Table
    parents: Callable[[], pa.Table]
    names_of: Callable[[Collection[str]], Mapping[str, str]]
    unrecorded: int
    unreadable: tuple[str, ...]

    def lineage(self, direction: Direction, *, states: bool) -> Lineage:
        """Return what is downstream or upstream of the snapshot."""
        start, edges, uuid = self.start, self.edges, str(self.start.table_uuid)
        found = reached(edges, uuid, start.snapshot_id, direction, self.parents() if states else None)
        uuids = {each for end in ("from_uuid", "to_uuid") for each in found[end].to_pylist()}
        names = self.names_of(uuids - {None})
        # What no table of this catalog has is named as its reader wrote it.
        named = pc.is_in(edges["from_id"], value_set=found["from_id"].combine_chunks())
        unknown = edges.filter(pc.and_(edges["from_uuid"].is_null(), named))
        written = dict(zip(unknown["from_id"].to_pylist(), unknown["from_table"].to_pylist(), strict=True))

        def tables(end: str) -> pa.Array:
            pairs = zip(found[f"{end}_uuid"].to_pylist(), found[f"{end}_id"].to_pylist(), strict=True)
            return pa.array([names[uuid] if uuid is not None else written[each] for uuid, each in pairs], pa.string())

        columns = {each: found[each] for each in found.column_names}
        columns |= {"from_table": tables("from"), "to_table": tables("to")}
        rows = pa.table({each: columns[each] for each in LINEAGE_EDGE_ROWS.names}, LINEAGE_EDGE_ROWS)
        with_states = lambda: reached(edges, uuid, start.snapshot_id, direction, self.parents())  # noqa: E731
        said = self.unrecorded, self.unreadable
        return Lineage(start.table, start.snapshot_id, direction, states, *said, rows, with_states)


FILE_ROWS = arrow_schema(
    "path string, snapshot_id bigint, operation string, committed_at timestamp, writer_id string, commit_hash string, "
    "tier string, partition string"
)


class IngestedRow(NamedTuple):
    """A data file, and the snapshot that added it."""

    path: str | None
    snapshot_id: int
    operation: str | None
    committed_at: datetime | None
    writer_id: str | None
    commit_hash: str | None
    tier: str | None
    partition: str | None


@dataclass(frozen=True)
class Ingested:
    """The newest snapshot that ingested rows of a partition, of a data file, or of a table. All None if only rewriting
    snapshots are known; `untraced` are those whose inputs are in no tier and not in the ledger. `unrecorded` as
    in `Overwrites`."""

    table: str
    partition: Mapping[str, str] | None
    path: str | None
    snapshot_id: int | None
    committed_at: datetime | None
    writer_id: str | None
    commit_hash: str | None
    untraced: tuple[int, ...]
    unrecorded: int
    _files: pa.Table = field(repr=False, compare=False)

    def files(self) -> pd.DataFrame:
        """Return the data files behind the answer, newest first: those that have the rows, and those that compactions
        rewrote into them. Columns: path, operation, writer_id, commit_hash, tier, partition object; snapshot_id int64;
        committed_at datetime64[us, UTC]. A snapshot that is only known as an input of a compaction has no path."""
        frame: pd.DataFrame = self._files.to_pandas()
        return frame

    def rows(self) -> list[IngestedRow]:
        """The same as plain values."""
        return [IngestedRow(**row) for row in self._files.to_pylist()]


def ingested_of(
    table: str,
    partition: Mapping[str, str] | None,
    path: str | None,
    trace: Trace,
    listed: Sequence[int],
    row_of: Callable[[int], Mapping[str, Any] | None],
    unrecorded: int,
) -> Ingested:
    """Return the answer from the files of a trace. `listed` are further snapshots, that the summaries of untraced
    compactions name as inputs. `row_of` returns the ledger's row of a snapshot."""
    rows = []
    for each in [*trace.files, *((None, snapshot_id, None, None) for snapshot_id in listed)]:
        file_path, snapshot_id, tier, partition_text = each
        row = row_of(snapshot_id) or {}
        rows.append(
            {
                "path": file_path,
                "snapshot_id": snapshot_id,
                "operation": row.get("operation"),
                "committed_at": row.get("committed_at"),
                "writer_id": row.get("writer_id"),
                "commit_hash": row.get("writer_commit_hash"),
                "tier": tier,
                "partition": partition_text,
            }
        )
    files = pa.Table.from_pylist(rows, FILE_ROWS).sort_by(
        [("committed_at", "descending"), ("snapshot_id", "descending"), ("path", "ascending")]
    )
    ingests = [row for row in files.to_pylist() if row["operation"] not in (None, "replace")]
    newest: Mapping[str, Any] = ingests[0] if ingests else {}
    return Ingested(
        table,
        partition,
        path,
        newest.get("snapshot_id"),
        newest.get("committed_at"),
        newest.get("writer_id"),
        newest.get("commit_hash"),
        tuple(each for each in trace.untraced if not listed),
        unrecorded,
        files,
    )
