"""The checks of a table outside its plans: health, lineage, schemas, compactions, listing, share of orphans. Collects
what the judges of the rooms need. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice

from artemis_lifecycle.audit import schema_history as lineage
from artemis_lifecycle.audit.recording import Recording
from artemis_lifecycle.catalogs.identifier import parse_in
from artemis_lifecycle.config.policies import TablePolicy
from artemis_lifecycle.contracts import LineageRequirements
from artemis_lifecycle.errors import BadInput, UnreadableMetadata
from artemis_lifecycle.expiration.verdicts import Verdict
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import Ref, Snapshot, TableMetadata
from artemis_lifecycle.orphans import trend as orphans
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps, TableState
from artemis_lifecycle.spark.java_errors import java_errors
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle.upkeep import health as maintenance
from artemis_lifecycle.upkeep.health import CompactionEffect
from artemis_lifecycle.upkeep.maintenance import Measuring, commit_costs_of
from artemis_lifecycle.upkeep.score import PARTS
from artemis_lifecycle.walk.listings import listed_locations
from artemis_lifecycle.walk.orphans import Orphans

COMPARED_FOR = timedelta(days=2)
"""How long a compaction's rows are counted again. Snapshots never change, so older ones were compared when they were
new."""

_OF_LISTINGS = (orphans.FRESH, orphans.INTACT, orphans.SHARE)
"""The checks of tables of all kinds. The others are about Iceberg's metadata."""

_METADATA_FILES = 50
"""Maximum number of metadata files to read in search of a compaction's commit."""


@dataclass(frozen=True)
class TableChecks:
    """Judges tables against the thresholds `checks` of their policies."""

    resources: Resources
    steps: Steps
    measuring: Measuring
    orphans: Orphans
    recording: Recording

    def judge(self, table: str, check: str | None = None) -> list[Verdict]:
        """Run the checks of the table's health, lineage, schemas, compactions, listing and orphan share, or only
        `check`, against the thresholds `checks` of its policy. Changes and stores nothing. Raises NoSuchTable,
        UnreadableMetadata; BadInput for an unknown check."""
        judges: Mapping[str, Callable[[TableState], Verdict]] = {
            **{maintenance.health_check(part): partial(self._health, part) for part in PARTS},
            maintenance.COMMIT_COSTS: lambda state: maintenance.judge_commit_costs(
                commit_costs_of(self.resources, state)
            ),
            maintenance.DATA_FILES_UNCHANGED: lambda state: self._compaction(
                state, maintenance.DATA_FILES_UNCHANGED, "compaction"
            ),
            maintenance.MANIFESTS_UNCHANGED: lambda state: self._compaction(
                state, maintenance.MANIFESTS_UNCHANGED, "manifest-compaction"
            ),
            lineage.RECORDED: self._ledger,
            lineage.DESCRIBED: self._summaries,
            lineage.SCHEMAS: lambda state: lineage.judge_schemas(state.metadata),
            orphans.FRESH: self._listing_age,
            orphans.INTACT: lambda state: orphans.judge_listing(self._listing(state), self.resources.live_stores),
            orphans.SHARE: self._orphan_share,
        }
        if check is not None and check not in judges:
            raise BadInput(f"There is no check {check}", hint=f"choose one of {', '.join(judges)}")
        of_any_kind = self.resources.other(table) is not None and check in (None, *_OF_LISTINGS)
        state = (self.steps.any_state if of_any_kind else self.steps.table_state)(table)
        wanted = {check} if check is not None else {*(_OF_LISTINGS if of_any_kind else judges)}
        return [judge(state) for name, judge in judges.items() if name in wanted]

    def _health(self, part: str, state: TableState) -> Verdict:
        return maintenance.judge_part(self.measuring.known(state), part, self._policy(state).checks)

    def _ledger(self, state: TableState) -> Verdict:
        recorded = frozenset(self.recording.recorded_ids(state.metadata.table_uuid))
        return lineage.judge_ledger(state.metadata, recorded, state.read_at, self._policy(state).checks)

    def _summaries(self, state: TableState) -> Verdict:
        policy = self._policy(state)
        return lineage.judge_summaries(state.metadata, LineageRequirements.from_config(policy.lineage), policy.checks)

    def _listing(self, state: TableState) -> Listing | None:
        record = self.resources.operations.scans.latest_listing(state.metadata.table_uuid)
        return None if record is None else Listing.of_record(record)

    def _listing_age(self, state: TableState) -> Verdict:
        folders, rules = listed_locations(self.resources, state), self.resources.rules(state.name)
        return orphans.judge_listing_age(
            self._listing(state), folders, rules, state.read_at, self._policy(state).checks
        )

    def _orphan_share(self, state: TableState) -> Verdict:
        checks = self._policy(state).checks
        points = self.orphans.scan_trend(state.name, limit=checks.orphan_share.scans).points
        return orphans.judge_orphan_share(points, checks)

    def _compaction(self, state: TableState, check: str, what: str) -> Verdict:
        writer, metadata = self.steps.worker(what).writer_id, state.metadata
        since = milliseconds(state.read_at - COMPARED_FOR)
        done = [
            each
            for each in metadata.snapshots
            if each.summary.get("writer.id") == writer
            and each.timestamp_ms >= since
            and each.parent_snapshot_id is not None
            and metadata.snapshot(each.parent_snapshot_id) is not None
        ]
        if not done:
            return maintenance.judge_compaction(check, None)
        newest = max(done, key=lambda each: each.sequence_number)
        assert newest.parent_snapshot_id is not None
        before, after = self._refs_around(metadata, newest)
        effect = CompactionEffect(
            newest.snapshot_id,
            self._rows(state, newest.parent_snapshot_id),
            self._rows(state, newest.snapshot_id),
            before,
            after,
        )
        return maintenance.judge_compaction(check, effect)

    def _rows(self, state: TableState, snapshot_id: int) -> int:
        """Count the rows that a reader gets. Iceberg answers from metadata, unless the snapshot has delete files."""
        catalog = self.resources.config.catalogs.of(state.name).name
        name = parse_in(state.name, catalog).sql(catalog)
        with java_errors(state.name):
            return int(self.resources.spark.read.option("versionAsOf", snapshot_id).table(name).count())

    def _refs_around(
        self, metadata: TableMetadata, snapshot: Snapshot
    ) -> tuple[Mapping[str, Ref] | None, Mapping[str, Ref] | None]:
        """Return the refs in the last metadata file without `snapshot`, and in the first one with it; None if one
        of the files cannot be read."""
        later = metadata
        for entry in islice(reversed(metadata.metadata_log), _METADATA_FILES):
            try:
                earlier = read_table_metadata(self.resources.live_stores, entry.metadata_file)
            except UnreadableMetadata:
                break
            if earlier.snapshot(snapshot.snapshot_id) is None:
                return earlier.refs, later.refs
            later = earlier
        return None, None

    def _policy(self, state: TableState) -> TablePolicy:
        return self.resources.config.policy(state.name)
