"""Explanations: a file's fate, a file's place in a plan, and the difference of two plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa

from artemis_lifecycle.audit.answers import IngestedFile
from artemis_lifecycle.audit.incident import Incident, IncidentFacts, incident
from artemis_lifecycle.audit.questions import Auditing
from artemis_lifecycle.catalogs.results import Where
from artemis_lifecycle.deletion.batches import GONE, job_outcomes
from artemis_lifecycle.deletion.identities import CHANGED
from artemis_lifecycle.deletion.report import DELETIONS
from artemis_lifecycle.errors import BadInput, InDeepArchive, NoSuchSnapshot, StorageError, UnreadableMetadata
from artemis_lifecycle.expiration.difference import PlanDifference
from artemis_lifecycle.expiration.difference import plan_difference as compare_plans
from artemis_lifecycle.expiration.plan import ExpirationPlan, PlanExplanation, base_metadata, held_until, why_kept
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.protection.context import Asking
from artemis_lifecycle.protection.places import NOT_OWNED
from artemis_lifecycle.protection.protection import ANOTHER_FILE, Protection
from artemis_lifecycle.reachability.walk import holders_of
from artemis_lifecycle.retention.rules import held_by, view_of
from artemis_lifecycle.session.contexts import (
    active_holds,
    cold_tables,
    deletion_context,
    keepers,
    live_index,
    retention_settings,
)
from artemis_lifecycle.session.formats import Explanation as Explanation
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps, TableState
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.frames import read_frame
from artemis_lifecycle.storage.instants import if_in_calendar, in_calendar, milliseconds
from artemis_lifecycle.storage.location import LocationRules, hash_column, hash_location, normalize
from artemis_lifecycle.walk.expiration import Expiration
from artemis_lifecycle.walk.orphans import Orphans

_GONE = (*GONE, "absent")


@dataclass(frozen=True)
class Explaining:
    """Explains files and plans. Changes nothing."""

    resources: Resources
    steps: Steps
    expiration: Expiration
    orphans: Orphans

    def plan_difference(self, before: ExpirationPlan | str, after: ExpirationPlan | str) -> PlanDifference:
        """Return what plan `after` removes and `before` does not, and the opposite: snapshots, with the other plan's
        reasons to keep them, refs, and files with bytes by kind. Raises NoSuchPlan; BadInput for plans of different
        tables."""
        first, second = (self.expiration.plan(plan) if isinstance(plan, str) else plan for plan in (before, after))
        return compare_plans(first, second, self.resources.rules(second.table))

    def explain_in_plan(self, plan: ExpirationPlan | str, path: str) -> PlanExplanation:
        """Return why a file is in a plan; or, with every reason of the snapshots that keep it, why it is not.

        Uses the plan's own base, regardless of the table's current state. Raises NoSuchPlan, UnreadableMetadata.
        """
        found = self.expiration.plan(plan) if isinstance(plan, str) else plan
        require_path(found.table, path)
        rules = self.resources.rules(found.table)
        location = normalize(path, rules)
        row = self._row_at(found.files_location, location, rules)
        if row is not None:
            return PlanExplanation(
                found.plan_id, found.table, path, True, row["reason"], row["kind"], row["size_in_bytes"]
            )
        base = base_metadata(self.resources.live_stores, found)
        holders = holders_of(live_index(self.resources, found.table, base), location)
        return why_kept(found, path, [(holder.snapshot_id, str(holder)) for holder in holders])

    def explain(self, table: str, path: str) -> Explanation:
        require_path(table, path)
        state = self.steps.any_state(table)
        metadata, rules = state.metadata, self.resources.rules(table)
        holders = holders_of(live_index(self.resources, table, metadata), normalize(path, rules))
        if not holders:
            return self.explain_held(state, path, ())
        holds = active_holds(self.resources, metadata.table_uuid)
        by_holds = held_by(view_of(metadata), holds, milliseconds(state.read_at))
        every = [reason for holder in holders for reason in by_holds.get(holder.snapshot_id or 0, ())]
        held = tuple(dict.fromkeys(every))
        since, until = self._lifetime(state, [h.snapshot_id for h in holders if h.snapshot_id is not None])
        return self.explain_held(state, path, tuple(str(holder) for holder in holders) + held, since, until)

    def explain_held(
        self,
        state: TableState,
        path: str,
        holders: tuple[str, ...],
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Explanation:
        """Explain a file of a table of any format. `holders` are what of the table reaches it."""
        table, metadata, rules = state.name, state.metadata, self.resources.rules(state.name)
        location = normalize(path, rules)
        plans = [
            record
            for record in self.resources.operations.plans.holding(metadata.table_uuid)
            if self._row_at(record.files_location, location, rules) is not None
        ]
        planned = tuple(f"plan {record.plan_id} ({record.status})" for record in plans)
        if planned:
            return Explanation(path, "planned", planned, holders or planned, since)
        if holders:
            reached = f"reached from {table} at {metadata.metadata_location}"
            return Explanation(path, "kept", (reached,), holders, since, until)
        fate = self._fate(metadata.table_uuid, location, rules, _is_gone)
        if fate is not None and self.resources.live_stores.head(path) is None:
            return Explanation(path, "deleted", (fate,), ())
        stayed = fate or self._fate(metadata.table_uuid, location, rules, _stayed)
        there = "has another file than the one that expired" if fate is None else "has a file again"
        another = () if stayed is None else (f"{stayed}: the path {there}",)
        why = self._protected(state, path)
        if why is not None and why != NOT_OWNED:
            return Explanation(path, "kept", (f"{why}: nothing deletes it as an orphan", *another), (why,))
        scan = self.orphans.latest_scan(table)
        if why is None and scan is not None and self._row_at(scan.files_location, location, rules) is not None:
            return Explanation(path, "orphan", (f"scan {scan.scan_id} found that nothing has it", *another), ())
        beats = self.resources.operations.heartbeats.live(metadata.table_uuid)
        writers = tuple(f"writer {beat.writer_id}, until {beat.expires_at.isoformat()}" for beat in beats)
        unnamed = "check its spelling: no snapshot, open plan, journal or scan of the table names this path"
        outside = "" if why is None else ", and it is outside the locations that the table owns"
        reasons = (f"{unnamed}{outside}",)
        return Explanation(path, "kept" if another else "unknown", another or reasons, writers)

    def _protected(self, state: TableState, path: str) -> str | None:
        """Return why an orphan deletion of the table would keep the file now, if it would."""
        protection = Protection(
            deletion_context(self.resources, state.name),
            Asking("explain", "orphans", state.name, state.metadata.table_uuid),
        )
        paths = pa.array([path], pa.string())
        protection.refresh_neighbors()
        protection.full(lambda: [paths])
        return protection.protected().reasons(pa.table({"path": paths})).get(0)

    def _lifetime(self, state: TableState, snapshot_ids: Sequence[int]) -> tuple[datetime | None, datetime | None]:
        held = [snapshot for snapshot in state.metadata.snapshots if snapshot.snapshot_id in set(snapshot_ids)]
        if not held:
            return None, None
        instant = self.resources.instant("now", None)
        known = keepers(self.resources, state.name, state.metadata.table_uuid)
        settings = retention_settings(self.resources, state.name)
        until = held_until(state.metadata, snapshot_ids, settings, milliseconds(instant), known)
        since = in_calendar(min(snapshot.timestamp_ms for snapshot in held))
        return since, if_in_calendar(until)

    def _fate(
        self, table_uuid: str, location: str, rules: LocationRules, is_meant: Callable[[Mapping[str, Any]], bool]
    ) -> str | None:
        ended = [(record.plan_id, "plan") for record in self.resources.operations.plans.of_table(table_uuid)]
        ended += [(record.scan_id, "scan") for record in self.resources.operations.scans.of_table(table_uuid)]
        for job_id, kind in ended:
            if self.resources.operations.journal.job(job_id) is None:
                continue
            resources = self.resources
            outcomes = job_outcomes(resources.start_spark, resources.live_stores, resources.root, job_id)
            for row in outcomes.map(partial(_rows_at, location, rules), outcomes.schema).table().to_pylist():
                if is_meant(row):
                    return f"{kind} {job_id}: {row['outcome']}, {row['reason']}"
        return self._recorded_fate(table_uuid, location, rules, {job_id for job_id, _ in ended}, is_meant)

    def _recorded_fate(
        self,
        table_uuid: str,
        location: str,
        rules: LocationRules,
        jobs: Collection[str],
        is_meant: Callable[[Mapping[str, Any]], bool],
    ) -> str | None:
        """The same from the result table, for deletions whose outcomes are no longer stored."""
        known = [self.resources.operations.journal.job(job_id) for job_id in jobs]
        if not any(job is not None and job.forgotten_at is not None for job in known):
            return None
        columns = ("job_id", "job_kind", "path", "outcome", "reason")
        recorded = self.resources.results.rows(DELETIONS.name, columns, (Where("table_uuid", "=", table_uuid),))
        for row in (each for batch in _rows_at(location, rules, recorded) for each in batch.to_pylist()):
            if is_meant(row):
                kind = "plan" if row["job_kind"] == "expiration" else "scan"
                return f"{kind} {row['job_id']}: {row['outcome']}, {row['reason']}"
        return None

    def _row_at(self, files_location: str, location: str, rules: LocationRules) -> dict[str, Any] | None:
        """Return the row of a sealed list whose path is at `location`."""
        files = read_frame(Runner(self.resources.start_spark), files_location, self.resources.live_stores)
        return next(iter(files.map(partial(_rows_at, location, rules), files.schema).table().to_pylist()), None)


def _is_gone(row: Mapping[str, Any]) -> bool:
    return row["outcome"] in _GONE


def _stayed(row: Mapping[str, Any]) -> bool:
    return row["outcome"] == "kept" and row["reason"] in (ANOTHER_FILE, CHANGED)


def _rows_at(location: str, rules: LocationRules, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows whose path is at a location."""
    wanted = hash_location(location)
    for batch in batches:
        rows = np.flatnonzero(hash_column(batch.column("path"), rules) == wanted).tolist()
        at = [row for row in rows if normalize(batch.column("path")[row].as_py(), rules) == location]
        if at:
            yield batch.take(pa.array(at))


def require_path(table: str, path: str) -> None:
    """Raise BadInput for a path that is not Unicode text."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise BadInput("The path is not Unicode text", table=table, hint="use the spelling of the metadata") from error


# --- incidents --------------------------------------------------------------------------------------------------------
# Collects what the incident report about a snapshot says. Starts no Spark, changes nothing.

_COLUMNS = ("table_uuid", "snapshot_id", "committed_at", "problems", "summary")


@dataclass(frozen=True)
class Incidents:
    """Reports about snapshots."""

    resources: Resources
    steps: Steps
    auditing: Auditing
    expiration: Expiration

    def incident(self, table: str, snapshot_id: int, *, states: bool = True) -> Incident:
        """Return a report about a snapshot to attach to a ticket, in Markdown and in HTML, both with the graph: who
        wrote it, its data files, its blast radius, its inputs, later overwrites, and where it is. The blast radius has
        readers of later states of a table, as `downstream` has with `states`; False narrows it. Raises
        NoSuchTable; NoSuchSnapshot if neither the table nor the ledger has it; UnreadableMetadata."""
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
            unrecorded=graph.unrecorded,
            unreadable=graph.unreadable,
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
        holds = active_holds(self.resources, metadata.table_uuid)
        for reason in held_by(view_of(metadata), holds, now_ms).get(snapshot_id, ()):
            yield "hold", reason
        if metadata.snapshot(snapshot_id) is None:
            for hold in self.resources.operations.holds.active(metadata.table_uuid):
                if snapshot_id in hold.snapshot_ids:
                    yield "hold", f"{hold.hold_id}, of {hold.owner}: {hold.reason}"
        for record in self.resources.operations.plans.holding(metadata.table_uuid):
            if snapshot_id in self.expiration.plan(record.plan_id).expired_snapshots:
                yield "plan", f"{record.plan_id} ({record.status})"
