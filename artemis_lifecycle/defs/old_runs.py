"""Runs past `records.runs`, and their events in Dagster's storage, which Dagster itself keeps forever."""

from collections.abc import Iterator
from datetime import datetime

from dagster import (
    AssetKey,
    AssetRecordsFilter,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    OpExecutionContext,
    RunsFilter,
)
from dagster._core.storage.dagster_run import FINISHED_STATUSES

from artemis_lifecycle.defs.common import Changes, Shown, is_of_this_project, maintenance_job
from artemis_lifecycle.defs.resources import ChangesResource, LifecycleResource
from artemis_lifecycle.defs.tags import ASSETS

_PAGE = 100
_EVENTS = (
    (DagsterEventType.ASSET_MATERIALIZATION, DagsterInstance.fetch_materializations),
    (DagsterEventType.ASSET_OBSERVATION, DagsterInstance.fetch_observations),
)


def old_runs_of(instance: DagsterInstance, keys: frozenset[AssetKey], before: datetime) -> Iterator[DagsterRun]:
    """Yield the ended runs of this project whose last change was before `before`; except those that have the newest
    materialization or observation of a partition of one of `keys`, which asset pages show.

    A run is of this project if it has its job tag, or materializes none but `keys`.
    """
    shown = {run_id for key in keys for run_id in _runs_shown(instance, key)}
    old, cursor = RunsFilter(statuses=list(FINISHED_STATUSES), updated_before=before), None
    while page := instance.get_runs(old, cursor=cursor, limit=_PAGE):
        cursor = page[-1].run_id
        for run in page:
            if run.run_id not in shown and is_of_this_project(run, keys, alone=True):
                yield run


def _runs_shown(instance: DagsterInstance, key: AssetKey) -> Iterator[str]:
    """Yield the runs of the newest materialization and of the newest observation of each partition of an asset."""
    if (newest := instance.get_latest_materialization_event(key)) is not None:
        yield newest.run_id
    for kind, fetch in _EVENTS:
        ids = list(instance.event_log_storage.get_latest_storage_id_by_partition(key, kind).values())
        for first in range(0, len(ids), _PAGE):
            chunk = ids[first : first + _PAGE]
            yield from (
                record.run_id
                for record in fetch(instance, AssetRecordsFilter(key, storage_ids=chunk), limit=_PAGE).records
            )


@maintenance_job(
    "old_runs",
    "Deletes this project's runs past records.runs, and their events.",
    kind="postgres",
    by_table=False,
)
def delete_old_runs(
    context: OpExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Shown:
    """Delete this project's runs that ended longer ago than `records.runs`, with their events. Keeps the newest
    materialization of each partition."""
    opened = lifecycle.get()
    before = opened.operations.clock.now() - opened.config.records.runs
    keys = frozenset(map(lifecycle.key, ASSETS))
    # A cursor is a run, so the pages are read before the first one is deleted.
    found = [run.run_id for run in old_runs_of(context.instance, keys, before)]
    if not config.is_dry(changes):
        for run_id in found:
            context.instance.delete_run(run_id)
    return {
        "dry_run": config.is_dry(changes),
        "would_delete_runs" if config.is_dry(changes) else "runs_deleted": len(found),
        "before": before.isoformat(timespec="seconds"),
    }
