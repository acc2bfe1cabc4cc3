"""The jobs: selections of assets with their checks, and the ops of `archive`. Each run is for one table, except runs
for dropped tables, which have no partition, and for records."""

import operator
from collections.abc import Mapping
from functools import reduce
from typing import Any

import dagster as dg

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.defs import archive, checks, manual
from artemis_lifecycle.defs.tags import ASSET_TAG, TABLE_TAG, WALK, resource_tags
from artemis_lifecycle.escaping import partition_key
from artemis_lifecycle.scheduling.maintenance_window import NIGHTLY_WALK, Step

CHANGING: Mapping[str, tuple[str, ...]] = {
    "whole_walk": (
        "cold_tier_snapshots",
        "expiration_commit",
        "physical_deletion",
        "orphan_deletion",
        "compacted_manifests",
        "compacted_data_files",
    ),
    NIGHTLY_WALK: ("cold_tier_snapshots", "expiration_commit", "physical_deletion", "orphan_deletion"),
    Step.HANDOFF: ("cold_tier_snapshots",),
    Step.COMMIT: ("expiration_commit",),
    Step.DELETION: ("physical_deletion",),
    Step.ORPHANS: ("orphan_deletion",),
    "manifest_compaction": ("compacted_manifests",),
    "data_compaction": ("compacted_data_files",),
    "deep_archive": ("move_to_deep_archive",),
    "quarantine_purge": ("purge_quarantine",),
    "dropped_tables": ("clear_dropped_tables",),
    "records": ("forget_records",),
    "result_tables": ("compact_result_tables",),
    "old_runs": ("delete_old_runs",),
}
"""By job, the assets and ops that change a table or delete. They only report, unless the run's `dry_run` is false."""


def for_real(job: str, *, dry_run: bool = False) -> dict[str, Any]:
    """Return the run config with which `job` makes the changes that it otherwise only reports."""
    return {"resources": {"changes": {"config": {"dry_run": dry_run}}}} if job in CHANGING else {}


def run_of(
    config: LifecycleConfig, job: str, table: str, run_key: str, tags: Mapping[str, str] | None = None
) -> dg.RunRequest:
    """Return the request of a run of `job` for a table, which makes changes. Its tags keep two runs of the table
    apart, and give it the table's resources."""
    partition = partition_key(table)
    return dg.RunRequest(
        run_key=run_key,
        job_name=job,
        partition_key=partition,
        run_config=for_real(job),
        tags={TABLE_TAG: partition, **resource_tags(config.run(table)), **(tags or {})},
    )


Asked = list[dg.RunRequest] | dg.SkipReason
"""What a tick of a schedule or a sensor asks for: runs, or why there are none."""

SELECTIONS: list[Any] = []
"""The jobs that are selections of assets."""


def _job(name: str, description: str, selection: dg.AssetSelection) -> Any:
    SELECTIONS.append(
        dg.define_asset_job(str(name), selection, description=description, tags={"artemis/job": str(name)})
    )
    return SELECTIONS[-1]


def _assets(*names: str) -> dg.AssetSelection:
    """Select by tag: the keys may have a prefix, and other assets may be in the same code location."""
    return reduce(operator.or_, (dg.AssetSelection.tag(ASSET_TAG, name) for name in names))


whole_walk = _job(
    "whole_walk",
    "Every asset of a table in the order of the walk. Steps that change or delete only report, unless the "
    "run's dry_run is false.",
    _assets(*WALK),
)
fleet_page = _job("fleet_page", "The page of all tables, from Postgres.", _assets("fleet"))
nightly_walk = _job(
    NIGHTLY_WALK,
    "Every due step of a table in one run: plan, handoff, commit, due deletions, orphans. Steps that change or delete "
    "only report, unless the run's dry_run is false.",
    _assets(
        "expiration_plan",
        "cold_tier_snapshots",
        "expiration_commit",
        "physical_deletion",
        "object_listing",
        "orphan_scan",
        "orphan_deletion",
    ),
)
plan = _job(
    Step.PLAN,
    "Read the history, walk what it reaches, seal an expiration plan. Changes nothing.",
    _assets("snapshot_history", "reachable_set", "expiration_plan"),
)
handoff = _job(
    Step.HANDOFF, "Copy the plan's snapshots to the cold tier, verify and publish them.", _assets("cold_tier_snapshots")
)
commit = _job(
    Step.COMMIT, "Remove the plan's snapshots from the table, in one metadata commit.", _assets("expiration_commit")
)
deletion = _job(Step.DELETION, "Delete the files of plans whose grace is over.", _assets("physical_deletion"))
orphans = _job(
    Step.ORPHANS,
    "List the table's files, read its metadata after that, seal the orphans, delete them.",
    _assets("object_listing", "orphan_scan", "orphan_deletion"),
)
observe = _job(
    "observe",
    "History, lineage, schemas and health of a table. Reads only.",
    _assets("snapshot_history", "lineage_ledger", "schema_history", "table_health"),
)
schema_record = _job(
    "schema_record", "All schemas of the table over time, with the snapshots of each.", _assets("schema_history")
)
manifest_compaction = _job(
    "manifest_compaction",
    "Rewrite many small manifests into few, then measure the table's health.",
    _assets("compacted_manifests", "table_health"),
)
data_compaction = _job(
    "data_compaction",
    "Rewrite small data files into larger ones, within the bandwidth budget, then measure the table's health.",
    _assets("compacted_data_files", "table_health"),
)

health_checks, lineage_check, old_runs = checks.check_health, checks.lineage_check, archive.delete_old_runs
deep_archive, cold_scrub, thaws = archive.move_to_deep_archive, archive.read_cold_files, archive.follow_thaws
quarantine_purge, dropped_tables = archive.purge_quarantine, archive.clear_dropped_tables
records, publication = archive.forget_records, archive.publish_results
result_tables = archive.compact_result_tables

ALL = (
    *SELECTIONS,
    *(health_checks, lineage_check, old_runs),
    *(deep_archive, cold_scrub, thaws, quarantine_purge, dropped_tables, records, publication, result_tables),
    *manual.ALL,
)

BY_STEP = {Step.PLAN: plan, Step.HANDOFF: handoff, Step.COMMIT: commit, Step.DELETION: deletion, Step.ORPHANS: orphans}
