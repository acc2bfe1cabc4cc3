"""Answers audit questions from the lineage ledger, published and queued rows alike, and from what it does not have yet.
Starts no Spark, changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from shlex import quote
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.audit.answers import (
    OVERWRITE_COLUMNS,
    REMOVING,
    Graph,
    Ingested,
    IngestedFile,
    Ingests,
    Lineage,
    Overwrites,
    Tier,
    Trace,
    ingested_of,
    overwrites_of,
)
from artemis_lifecycle.audit.graph import EDGES, SnapshotOfTable
from artemis_lifecycle.audit.ledger import EDGE_ROWS, LINEAGE_EDGES, LINEAGE_LEDGER, ROWS, LedgerBatch
from artemis_lifecycle.audit.recording import Recording
from artemis_lifecycle.catalogs.identifier import parse, parse_in
from artemis_lifecycle.catalogs.results import NAMESPACE, Where
from artemis_lifecycle.cold_tier.paths import PathMapping, read_identity
from artemis_lifecycle.errors import (
    BadInput,
    NaiveDatetime,
    NoSuchSnapshot,
    NoSuchTable,
    StorageError,
    UnreadableMetadata,
)
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.metadata.values import parse_partition
from artemis_lifecycle.reachability.index import IndexSettings
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.session.contexts import cold_index, cold_tables
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps

_EDGE_COLUMNS = ("from_catalog", "from_table", "from_uuid", "from_id", "to_uuid", "to_id")
_NAMES = ("table_uuid", "table_name")
_INGEST_COLUMNS = ("snapshot_id", "parent_snapshot_id", "operation", "committed_at", "writer_id", "writer_commit_hash")


@dataclass(frozen=True)
class Unrecorded:
    """Rows of snapshots that the ledger does not have yet, read from the metadata of live tables; and the names of the
    tables that were read, by uuid. `unreadable` are tables that could not be read."""

    ledger: pa.Table
    edges: pa.Table
    names: Mapping[str, str]
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Auditing:
    """Answers the three questions."""

    resources: Resources
    steps: Steps
    recording: Recording

    def overwrites(self, since: datetime, until: datetime, table: str | None = None) -> Overwrites:
        """Return the overwrites and deletes of a table, or of all tables, with `since` <= time < `until`: who, why,
        under which ticket, and what their summaries miss. Of all tables, those that cannot be read are in
        `unreadable`. Starts no Spark. Raises NaiveDatetime, NoSuchTable, UnreadableMetadata."""
        for label, each in (("since", since), ("until", until)):
            NaiveDatetime.refuse(label, each)
        metadata = None if table is None else self.steps.table_state(table).metadata
        new = self.unrecorded() if table is None else self.unrecorded_of(table, metadata)
        configured = self._configured(table)
        where = [
            Where("operation", "in", (*REMOVING, *configured)),
            Where("committed_at", ">=", since),
            Where("committed_at", "<", until),
        ]
        if metadata is not None:
            where.append(Where("table_uuid", "=", metadata.table_uuid))
        rows = self.ledger([*OVERWRITE_COLUMNS.values(), "table_uuid"], new, where)
        for operation in configured:
            # Only where the table's own policy names it.
            others = rows.filter(pc.equal(rows["operation"], operation))
            names = [str(name) for name in pc.unique(others["table_name"]).to_pylist()]
            named = [name for name in names if operation in self._operations(name)]
            wanted = pc.is_in(rows["table_name"], value_set=pa.array(named, pa.string()))
            rows = rows.filter(pc.or_(pc.not_equal(rows["operation"], operation), wanted))
        return overwrites_of(rows, since, until, table, new.ledger.num_rows, new.unreadable)

    def _operations(self, table: str) -> tuple[str, ...]:
        return self.resources.config.policy(table).lineage.overwrite.counted

    def _configured(self, table: str | None) -> list[str]:
        """Return the operations that count as overwrites of the table, or of any table, because its policy says so."""
        config = self.resources.config
        if table is not None:
            found = set(self._operations(table))
        else:
            policies = [config.defaults, *map(config.policy, config.tables)]
            found = {operation for policy in policies for operation in policy.lineage.overwrite.counted}
        return sorted(found - set(REMOVING))

    def downstream(self, table: str, snapshot_id: int, *, states: bool = False) -> Lineage:
        """Return every snapshot that read this one, in any table, directly or through others.

        Only inputs that writers listed count. With `states`, a reader of a later state of a table also counts, because
        that state contains the snapshot; without, the answer's `left_out` counts what that would add. A table that
        cannot be read is in `unreadable`, and the answer is without what the ledger lacks of it. Starts no Spark.
        Raises NoSuchTable, UnreadableMetadata, StorageError.
        """
        return self.graph(table, snapshot_id).lineage("downstream", states=states)

    def upstream(self, table: str, snapshot_id: int, *, states: bool = False) -> Lineage:
        """Return every snapshot that this one read, directly or through others: the reverse of `downstream`."""
        return self.graph(table, snapshot_id).lineage("upstream", states=states)

    def graph(self, table: str, snapshot_id: int) -> Graph:
        table_uuid = self.steps.table_state(table).metadata.table_uuid
        new = self.unrecorded()

        @cache
        def parents() -> pa.Table:
            rows = self.ledger(["table_uuid", "snapshot_id", "parent_snapshot_id"], new, [])
            rows = rows.filter(pc.and_(rows["snapshot_id"].is_valid(), rows["parent_snapshot_id"].is_valid()))
            ends = [rows["table_uuid"], rows["parent_snapshot_id"], rows["table_uuid"], rows["snapshot_id"]]
            return pa.table(ends, schema=EDGES)

        start = SnapshotOfTable(table, snapshot_id, table_uuid)
        names = {uuid: name for name, uuid in self.recording.uuids.items()} | dict(new.names) | {table_uuid: table}
        edges, count = self._edges(new), new.ledger.num_rows
        return Graph(start, edges, parents, self._named(names), count, new.unreadable)

    def _named(self, names: Mapping[str, str]) -> Callable[[Collection[str]], Mapping[str, str]]:
        """Return the names of tables by uuid, for those in question; of dropped tables as the ledger has them."""

        def named(wanted: Collection[str]) -> Mapping[str, str]:
            gone = tuple(sorted(set(wanted) - names.keys()))
            if not gone:
                return names
            found: dict[str, str] = {}
            # The ledger knows a table that was recorded; the edges also one that was only read.
            for table, columns in ((LINEAGE_EDGES, ("from_uuid", "from_table")), (LINEAGE_LEDGER, _NAMES)):
                rows = self.recording.read(table, columns, (Where(columns[0], "in", gone),))
                found |= zip(*(rows[each].to_pylist() for each in columns), strict=True)
            return found | dict(names)

        return named

    def _edges(self, new: Unrecorded) -> pa.Table:
        """Return all edges. The names of inputs are only read where no uuid says whose they are."""
        known = self.recording.read(LINEAGE_EDGES, EDGES.names, (Where("from_uuid", "not null"),))
        named = self.recording.read(LINEAGE_EDGES, _EDGE_COLUMNS, (Where("from_uuid", "null"),))
        for column in ("from_catalog", "from_table"):
            known = known.append_column(column, pa.nulls(len(known), pa.string()))
        edges = pa.concat_tables([each.select(_EDGE_COLUMNS) for each in (new.edges, named, known)])
        # Names change hands between the writer's look and the recording. A snapshot's id is of one table.
        rows = self.ledger(["snapshot_id", "table_uuid"], new, [Where("snapshot_id", "not null")])
        rows = rows.group_by("snapshot_id").aggregate([("table_uuid", "min"), ("table_uuid", "max")])
        rows = rows.filter(pc.equal(rows["table_uuid_min"], rows["table_uuid_max"]))
        owners = rows["table_uuid_min"].take(pc.index_in(edges["from_id"], value_set=rows["snapshot_id"]))
        return self._resolved(_with_uuids(edges, pc.coalesce(owners, edges["from_uuid"])), new.names)

    def _resolved(self, edges: pa.Table, names: Mapping[str, str]) -> pa.Table:
        """Give edges from tables of this catalog whose uuid is still unknown the one that the name has now."""
        open_rows = pc.and_(edges["from_uuid"].is_null(), edges["from_catalog"].is_null())
        wanted = pc.unique(edges["from_table"].filter(open_rows)).to_pylist()
        if not wanted:
            return edges
        uuids: dict[str, str] = {}
        known = dict(self.recording.uuids) | {name: uuid for uuid, name in names.items()}
        for each in wanted:
            try:
                uuids[each] = known.get(each) or self.steps.table_uuid(each)
            except (NoSuchTable, BadInput, UnreadableMetadata, StorageError):
                continue  # Still unknown.
        at = pc.index_in(edges["from_table"], value_set=pa.array(uuids, pa.string()))
        found = pa.array(uuids.values(), pa.string()).take(at)
        return _with_uuids(edges, pc.if_else(open_rows, found, edges["from_uuid"]))

    def ingested(
        self, table: str, partition: Mapping[str, object] | str | None = None, path: str | None = None
    ) -> Ingested:
        """Return the newest snapshot that ingested rows of a partition, or of a data file, also of expired history; and
        who wrote it, at which commit hash. Without both: the table's newest ingest.

        `partition` maps partition fields to values, or is a text such as `day=2024-03-15`; values compare in Iceberg's
        human-readable form. Files that compactions wrote are traced to the snapshots that ingested their rows. Starts
        no Spark. Raises NoSuchTable; BadInput for an unknown partition field; NoSuchSnapshot if no tier has the
        partition or the file; UnreadableMetadata.
        """
        if partition is not None and path is not None:
            raise BadInput("A partition and a path exclude each other", table=table, hint="ask for one of them")
        metadata = self.steps.table_state(table).metadata
        new = self.unrecorded_of(table, metadata)
        rows = self.ledger(list(_INGEST_COLUMNS), new, [Where("table_uuid", "=", metadata.table_uuid)])
        places = {each: place for place, each in enumerate(rows["snapshot_id"].to_pylist())}

        def row_of(snapshot_id: int) -> dict[str, Any] | None:
            place = places.get(snapshot_id)
            return None if place is None else rows.slice(place, 1).to_pylist()[0]

        def value(column: str) -> Callable[[int], Any]:
            return lambda snapshot_id: (row_of(snapshot_id) or {}).get(column)

        ingests = Ingests(self._tiers(table, metadata), value("operation"), value("parent_snapshot_id"))
        wanted = None if partition is None else parse_partition(partition)
        if wanted is not None:
            unknown = sorted(set(wanted) - metadata.partition_fields)
            if unknown:
                known = ", ".join(sorted(metadata.partition_fields)) or "none: the table is not partitioned"
                raise BadInput(
                    f"No partition field has the name {unknown[0]}", table=table, hint=f"use one of: {known}"
                )
            trace, what = ingests.of_partition(wanted), f"partition {partition}"
        elif path is not None:
            trace, what = ingests.of_path(path), f"file {path}"
        else:
            newest = _newest_ingest(rows)
            if newest is None:
                raise NoSuchSnapshot("Nothing was ingested yet", table=table, hint="append rows first")
            trace = ingests.of_snapshot(newest)
            # Its files may be in no tier any more.
            listed: tuple[int, ...] = () if trace.files else (newest,)
            return ingested_of(table, None, None, trace, listed, row_of, new.ledger.num_rows)
        if not trace.files:
            catalog = self.resources.config.catalogs.of(table).name
            partitions = f"{catalog}.{parse_in(table, catalog).sql()}.partitions"
            raise NoSuchSnapshot(
                f"No snapshot in the live or the cold tier has {what}",
                table=table,
                hint=f"list what is there: SELECT * FROM {partitions}, or artemis history {quote(table)} --cold",
            )
        listed = self._listed_inputs(metadata.table_uuid, trace, new)
        return ingested_of(table, wanted, path, trace, listed, row_of, new.ledger.num_rows)

    def added_files(self, table: str, metadata: TableMetadata, snapshot_id: int) -> tuple[IngestedFile, ...]:
        """Return the data files that a snapshot added; none if no tier has it. Raises UnreadableMetadata."""
        nothing: Callable[[int], None] = lambda _: None  # noqa: E731
        return Ingests(self._tiers(table, metadata), nothing, nothing).of_snapshot(snapshot_id).files

    def _listed_inputs(self, table_uuid: str, trace: Trace, new: Unrecorded) -> tuple[int, ...]:
        """Return the snapshots of the table that the summaries of untraced compactions name as their inputs."""
        if not trace.untraced:
            return ()
        where = [Where("to_uuid", "=", table_uuid), Where("to_id", "in", trace.untraced)]
        rows = self.recording.read(LINEAGE_EDGES, _EDGE_COLUMNS, where)
        fresh = new.edges.select(_EDGE_COLUMNS)
        for condition in where:
            fresh = condition.matches(fresh)
        found = Where("from_uuid", "=", table_uuid).matches(pa.concat_tables([fresh, rows]))
        return tuple(sorted(set(found["from_id"].to_pylist()) - set(trace.untraced)))

    def _tiers(self, table: str, metadata: TableMetadata) -> list[Tier]:
        """The live table and its cold tables. Their indexes are brought up to date in this process."""
        resources = self.resources
        root, rules = resources.root, resources.rules(table)
        settings = IndexSettings.from_config(resources.config, table)
        live = resources.live_stores
        tiers = [
            Tier(
                "live",
                metadata,
                live,
                lambda: indexed(None, live, metadata, rules, root, settings),
                lambda path: (path,),
            )
        ]
        identity = read_identity(live, root, metadata.table_uuid)
        cold = None if identity is None else cold_tables(resources, metadata.table_uuid)
        if cold is None or identity is None:
            return tiers
        whole, to_cold = cold.whole(), PathMapping(identity)
        index = lambda: cold_index(resources, table, whole, in_process=True)  # noqa: E731
        # Each cold table has its own partition specs; the index is of all.
        for each in cold:
            paths = lambda path: (path, *to_cold.places(path))  # noqa: E731
            tiers.append(Tier("cold", each.metadata, resources.cold_stores, index, paths))
        return tiers

    def ledger(self, columns: list[str], new: Unrecorded, where: list[Where]) -> pa.Table:
        """Return these columns of the ledger's rows, recorded or not, that match."""
        fresh = new.ledger
        for condition in where:
            fresh = condition.matches(fresh)
        return pa.concat_tables([fresh.select(columns), self.recording.read(LINEAGE_LEDGER, columns, where)])

    def unrecorded(self) -> Unrecorded:
        """Return what the ledger lacks of all live tables. Reads the metadata of tables that changed since their last
        recording; one that cannot be read is named. Call it before reading the ledger: what is recorded meanwhile then
        counts once."""
        seen = {each.metadata_location for each in self.resources.operations.ledger_progress.all()}
        entries, unreadable = self.resources.catalogs.pointers()
        changed = {
            table: entry
            for table, entry in entries.items()
            if entry.metadata_location not in seen and parse(table).namespace[0] != NAMESPACE
        }
        parts = []
        for table, entry in changed.items():
            try:
                metadata = read_table_metadata(self.resources.live_stores, entry.metadata_location)
                parts.append((table, metadata.table_uuid, self._batch(table, metadata)))
            except (UnreadableMetadata, StorageError):
                unreadable.append(table)
        return Unrecorded(
            pa.concat_tables([ROWS.empty_table(), *(batch.rows for _, _, batch in parts)]),
            pa.concat_tables([EDGE_ROWS.empty_table(), *(batch.edges for _, _, batch in parts)]),
            {table_uuid: table for table, table_uuid, _ in parts},
            tuple(sorted(unreadable)),
        )

    def unrecorded_of(self, table: str, metadata: TableMetadata | None) -> Unrecorded:
        """The same of one table."""
        assert metadata is not None
        batch = self._batch(table, metadata)
        return Unrecorded(batch.rows, batch.edges, {metadata.table_uuid: table})

    def _batch(self, table: str, metadata: TableMetadata) -> LedgerBatch:
        progress = self.resources.operations.ledger_progress.of_table(metadata.table_uuid)
        return self.recording.unrecorded_batch(table, metadata, progress)


def _with_uuids(edges: pa.Table, uuids: pa.ChunkedArray) -> pa.Table:
    """Give edges from tables of this catalog these uuids."""
    own = pc.if_else(edges["from_catalog"].is_null(), uuids, edges["from_uuid"])
    return edges.set_column(edges.schema.get_field_index("from_uuid"), "from_uuid", own)


def _newest_ingest(rows: pa.Table) -> int | None:
    ingests = rows.filter(pc.is_in(rows["operation"], value_set=pa.array(["append", "overwrite"])))
    ingests = ingests.filter(ingests["committed_at"].is_valid())
    if not ingests.num_rows:
        return None
    newest = ingests.sort_by([("committed_at", "descending"), ("snapshot_id", "descending")])
    snapshot_id: int = newest["snapshot_id"][0].as_py()
    return snapshot_id
