"""Collects what the incident report about a snapshot says. Starts no Spark, changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from shlex import quote
from typing import Any

from artemis_lifecycle.catalogs.result_rows import Where
from artemis_lifecycle.errors import InDeepArchive, NoSuchSnapshot, StorageError, UnreadableMetadata
from artemis_lifecycle.lifecycle.audit import Auditing
from artemis_lifecycle.lifecycle.expiration import Expiration
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.retention import holds_and_tags
from artemis_lifecycle.lifecycle.steps import Steps
from artemis_lifecycle.lifecycle.tiers import cold_tables
from artemis_lifecycle.lineage.incident import Incident, IncidentFacts, incident
from artemis_lifecycle.lineage.ingests import IngestedFile
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.retention.rules import held_by, view_of
from artemis_lifecycle.storage.instants import in_calendar, milliseconds

_COLUMNS = ("table_uuid", "snapshot_id", "committed_at", "problems", "summary")


@dataclass(frozen=True)
class Incidents:
    """Reports about snapshots."""

    resources: Resources
    steps: Steps
    auditing: Auditing
    expiration: Expiration

    def incident(self, table: str, snapshot_id: int, *, states: bool = True) -> Incident:
        state = self.steps.table_state(table)
        metadata = state.metadata
        row = self._row(table, metadata, snapshot_id)
        since = row["committed_at"] or in_calendar(0)  # A writer may put any number into metadata.
        overwrites = self.auditing.overwrites(since, state.read_at + timedelta(days=1), table)
        graph = self.auditing.graph(table, snapshot_id)
        facts = IncidentFacts(
            table=table,
            table_uuid=metadata.table_uuid,
            snapshot_id=snapshot_id,
            made_at=state.read_at,
            committed_at=row["committed_at"],
            lineage=json.loads(row["summary"]),
            problems=row["problems"],
            tiers=tuple(self._tiers(metadata, snapshot_id)),
            files=self._files(table, metadata, snapshot_id),
            held_by=tuple(self._held_by(metadata, snapshot_id, milliseconds(state.read_at))),
            downstream=graph.lineage("downstream", states=states),
            # All that earlier states were made from would bury what this snapshot read.
            upstream=graph.lineage("upstream", states=False),
            overwrites=overwrites,
            unrecorded=graph.new.ledger.num_rows,
            unreadable=graph.new.unreadable,
        )
        return incident(facts)

    def _row(self, table: str, metadata: TableMetadata, snapshot_id: int) -> dict[str, Any]:
        where = [Where("table_uuid", "=", metadata.table_uuid), Where("snapshot_id", "=", snapshot_id)]
        new = self.auditing.unrecorded_of(table, metadata)
        rows: list[dict[str, Any]] = self.auditing.ledger(list(_COLUMNS), new, where).to_pylist()
        if not rows:
            raise NoSuchSnapshot(
                f"Neither the table nor the lineage ledger has snapshot {snapshot_id}",
                table=table,
                hint=f"list the snapshots with: artemis history {quote(table)} --cold",
            )
        return rows[0]

    def _files(self, table: str, metadata: TableMetadata, snapshot_id: int) -> tuple[IngestedFile, ...] | None:
        try:
            return self.auditing.added_files(table, metadata, snapshot_id)
        except (UnreadableMetadata, StorageError, InDeepArchive):
            return None

    def _tiers(self, metadata: TableMetadata, snapshot_id: int) -> Iterator[str]:
        if metadata.snapshot(snapshot_id) is not None:
            yield "live"
        cold = cold_tables(self.resources, metadata.table_uuid)
        if cold is not None and cold.holding(snapshot_id) is not None:
            moves = self.resources.operations.deep_moves
            archived = moves.snapshots(metadata.table_uuid, among=[snapshot_id])
            yield "deep-archive" if archived else "cold"

    def _held_by(self, metadata: TableMetadata, snapshot_id: int, now_ms: int) -> Iterator[tuple[str, str]]:
        for name, ref in sorted(metadata.refs.items()):
            if ref.snapshot_id == snapshot_id:
                yield ref.type, name
            elif any(each.snapshot_id == snapshot_id for each in metadata.ancestors(ref.snapshot_id)):
                yield ref.type, f"{name}, in its history"
        holds, _ = holds_and_tags(self.resources, metadata.table_uuid)
        for reason in held_by(view_of(metadata), holds, now_ms).get(snapshot_id, ()):
            yield "hold", reason
        if metadata.snapshot(snapshot_id) is None:
            for hold in self.resources.operations.holds.active(metadata.table_uuid):
                if snapshot_id in hold.snapshot_ids:
                    yield "hold", f"{hold.hold_id}, of {hold.owner}: {hold.reason}"
        for record in self.resources.operations.plans.holding(metadata.table_uuid):
            if snapshot_id in self.expiration.plan(record.plan_id).expired_snapshots:
                yield "plan", f"{record.plan_id} ({record.status})"
