"""Measures and scores the health of tables, and keeps their scores."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from shlex import quote

from artemis_lifecycle.lifecycle.lineage import Recording
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.retention import holds_and_tags, retention_settings
from artemis_lifecycle.lifecycle.steps import Steps, TableState
from artemis_lifecycle.lifecycle.tiers import present_index
from artemis_lifecycle.lineage.ledger import unrecorded
from artemis_lifecycle.maintenance.health import TableHealth, of_record, record_of
from artemis_lifecycle.maintenance.health import table_health as health_of
from artemis_lifecycle.maintenance.health_history import HealthHistory
from artemis_lifecycle.maintenance.score import Rates, StepAge, Upkeep, scored
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.fleet import last_done_of
from artemis_lifecycle.operations.health import HealthRecord
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle.operations.roles import where_allowed
from artemis_lifecycle.operations.scans import ScanState
from artemis_lifecycle.retention.rules import decide
from artemis_lifecycle.retention.views import view_of
from artemis_lifecycle.spark.java_errors import java_errors
from artemis_lifecycle.storage.instants import in_calendar, milliseconds

STANDARD = "STANDARD"
"""The default storage class of S3."""

SCORED_EVERY = timedelta(hours=12)
"""Checks of a table that does not change record its score so often, or when it has moved by a point: steps grow old,
and snapshots expire."""

_NEXT = {PlanStatus.OPEN: "hand-off", PlanStatus.HANDED_OFF: "commit"}
"""The command that a plan waits for; all others wait for `delete`."""


@dataclass(frozen=True)
class Measuring:
    """Measures a table's current snapshot once per metadata file; scores it by what is known now."""

    resources: Resources
    steps: Steps
    recording: Recording

    def table_health(self, table: str) -> TableHealth:
        return self.measured(self.steps.table_state(table))

    def health(self, table: str) -> TableHealth:
        state = self.steps.table_state(table)
        record = self._record(state)
        return self.measured(state) if record is None else self._noted(state, *_figures(record, state))

    def measured(self, state: TableState) -> TableHealth:
        """Read the manifests, score what they have, and record both."""
        resources = self.resources
        # Iceberg reads a manifest that was cut between two blocks as a shorter one, and a rewrite would drop the rest.
        present_index(resources, state.name, state.metadata)
        with java_errors(state.name):
            found = health_of(resources.start_spark, resources.live_stores, state.name, state.metadata, state.read_at)
        return self._noted(state, found, state.read_at)

    def known(self, state: TableState) -> TableHealth:
        """Return the recorded figures if the table's metadata file is still the same, else measure; with the score of
        now, which is recorded from time to time."""
        record = self._record(state)
        if record is None:
            return self.measured(state)
        figures, measured_at = _figures(record, state)
        found = self._scored(state, figures)
        if state.read_at - record.scored_at > SCORED_EVERY or abs((found.score or 0) - record.score) >= 1:
            self._note(state, found, measured_at)
        return found

    def history(self, table: str) -> HealthHistory:
        points = self.resources.operations.health.history(self.steps.table_uuid(table))
        return HealthHistory(table, points)

    def _record(self, state: TableState) -> HealthRecord | None:
        """Return what was measured of the table's metadata file; None if nothing was."""
        record = self.resources.operations.health.of_table(state.metadata.table_uuid)
        same = record is not None and record.metadata_location == state.metadata.metadata_location
        return record if same else None

    def _noted(self, state: TableState, health: TableHealth, measured_at: datetime) -> TableHealth:
        found = self._scored(state, health)
        self._note(state, found, measured_at)
        return found

    def _note(self, state: TableState, found: TableHealth, measured_at: datetime) -> None:
        record = record_of(found, state.metadata.table_uuid, measured_at, state.read_at)
        with where_allowed():
            self.resources.operations.health.note(record, {part.name: part.score for part in found.parts})

    def _scored(self, state: TableState, health: TableHealth) -> TableHealth:
        config = self.resources.config
        rates = Rates(config.prices, config.catalogs.live.storage_class or STANDARD)
        return scored(health, self._upkeep(state), config.policy(state.name), rates)

    def _upkeep(self, state: TableState) -> Upkeep:
        resources, metadata, now = self.resources, state.metadata, state.read_at
        policy = resources.config.policy(state.name)
        late, window = self._unrecorded(metadata, now - policy.checks.metadata_age), policy.retention.window
        at_risk = sum(min(1.0, (now - each) / window) if window else 1.0 for each in late)
        expirable = self._expirable(state, now - policy.checks.overdue_after)
        scans = resources.operations.scans.of_table(metadata.table_uuid)
        newest = scans[0] if scans else None
        left = newest is not None and newest.state is not ScanState.DONE
        return Upkeep(
            expirable_snapshots=len(expirable),
            expirable_bytes=sum(
                each.summary.count("removed-files-size") or 0
                for each in metadata.snapshots
                if each.parent_snapshot_id in expirable
            ),
            orphan_bytes=None if newest is None else newest.bytes if left else 0,
            orphan_command="" if newest is None else f"artemis delete-orphans {newest.scan_id}",
            unrecorded_snapshots=len(late),
            lineage_at_risk=at_risk / len(metadata.snapshots) if late else 0.0,
            steps=self._steps(state),
        )

    def _expirable(self, state: TableState, now: datetime) -> frozenset[int]:
        """The snapshots that the table's policy let go at `now`."""
        holds, tags = holds_and_tags(self.resources, state.metadata.table_uuid)
        settings = retention_settings(self.resources, state.name)
        decision = decide(view_of(state.metadata), settings, milliseconds(now), holds=holds, tags=tags)
        return frozenset(decision.expired)

    def _unrecorded(self, metadata: TableMetadata, before: datetime) -> list[datetime]:
        """When the snapshots were committed that the ledger lacks, those before an instant."""
        progress = self.resources.operations.ledger_progress.of_table(metadata.table_uuid)
        found = unrecorded(metadata, progress, lambda: self.recording.recorded_ids(metadata.table_uuid))
        times = (in_calendar(each.timestamp_ms) for each in found)
        return [each for each in times if each < before]

    def _steps(self, state: TableState) -> tuple[StepAge, ...]:
        """A table that a step never ran for is as late as it is old."""
        operations, policy, now = self.resources.operations, self.resources.config.policy(state.name), state.read_at
        began = min((each.timestamp_ms for each in state.metadata.snapshots), default=None)
        age = timedelta(0) if began is None else now - in_calendar(began)
        done = last_done_of(operations.engine, state.name)

        def last(step: str, name: str, allowed: timedelta, command: str) -> StepAge:
            if step in done:
                return StepAge(f"since the last {name}", now - done[step], allowed, command)
            return StepAge(f"without any {name}", age, allowed, command)

        table = quote(state.name)
        plans = operations.plans.holding(state.metadata.table_uuid)
        oldest = min(plans, key=lambda plan: plan.planned_at, default=None)
        return (
            last("plan", "plan", policy.checks.overdue_after, f"artemis plan {table}"),
            last("orphan_scan", "orphan scan", policy.checks.listing_age, f"artemis scan-orphans {table}"),
            *(
                ()
                if oldest is None
                else (
                    StepAge(
                        "since the oldest open plan",
                        now - oldest.planned_at,
                        policy.checks.plan_age + policy.deletion.grace,
                        f"artemis {_NEXT.get(oldest.status, 'delete')} {oldest.plan_id}",
                    ),
                )
            ),
        )


def _figures(record: HealthRecord, state: TableState) -> tuple[TableHealth, datetime]:
    """The recorded figures of the table, and when they were measured."""
    return of_record(record, state.name, state.metadata, state.read_at), record.measured_at
