"""Jobs that run outside the walk: retention of the cold tier, quarantine, dropped tables and records, and thaws."""

from collections.abc import Iterator
from datetime import datetime

import dagster as dg
from dagster._core.storage.dagster_run import FINISHED_STATUSES

from artemis_lifecycle.cli.output import grid
from artemis_lifecycle.defs import ui_metadata
from artemis_lifecycle.defs.checks import judge_losses, noted, report
from artemis_lifecycle.defs.common import Changes, Shown, is_of_this_project, maintenance_job, waiting
from artemis_lifecycle.defs.resources import ChangesResource, LifecycleResource
from artemis_lifecycle.defs.tags import ASSETS
from artemis_lifecycle.errors import ApprovalNeeded
from artemis_lifecycle.escaping import table_of, terminal

ARCHIVED_FILES = {
    "path": ("string", "as the cold table's metadata records it"),
    "kind": ("string", "data, position_deletes, equality_deletes, deletion_vectors"),
    "size_in_bytes": ("bigint", ""),
}


@maintenance_job("deep_archive", "Moves cold snapshots past their retention to the deep archive.")
def move_to_deep_archive(
    context: dg.OpExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Shown:
    """Move the files that only cold snapshots past their retention read to the archive storage class."""
    steps, table = lifecycle.get(), table_of(context.partition_key)
    if steps.cold_metadata(table) is None:
        context.log.info("nothing of the table is in the cold tier yet")
        return None
    done = steps.deep_archive(table, dry_run=config.is_dry(changes))
    return {
        "dry_run": done.dry_run,
        "dagster/column_schema": ui_metadata.column_schema(ARCHIVED_FILES),
        "storage_class": done.storage_class,
        "cutoff": ui_metadata.instant(done.cutoff),
        "snapshots_due": len(done.snapshot_ids),
        "snapshots_held": len(done.held_snapshots),
        "files_due": done.due_files,
        "bytes_due": done.due_bytes,
        **({} if done.dry_run else {"files_moved": done.moved_files, "files_failed": done.failed_files}),
        "files_still_live": done.still_live,
        "files_needed_elsewhere": done.needed_elsewhere,
        "needed_by": terminal(", ".join(done.needed_by)),
        "failures": ui_metadata.table(["path", "error"], done.failures),
        **({"sealed_files": ui_metadata.place(done.files_location)} if done.files_location else {}),
    }


@maintenance_job(
    "cold_scrub",
    "Reads one day's share of a table's cold files, compares their checksums, and repairs files from the live table.",
)
def read_cold_files(context: dg.OpExecutionContext, lifecycle: LifecycleResource) -> Shown:
    """Read the cold files that are due, compare checksums, and copy lost files again while the live table has them."""
    steps, table = lifecycle.get(), table_of(context.partition_key)
    if steps.cold_metadata(table) is None:
        context.log.info("nothing of the table is in the cold tier yet")
        return None
    done = steps.scrub_cold(table)
    # The check must fail as soon as this run finds a loss, not when the next handoff evaluates it.
    judged = judge_losses(steps.cold_losses(table), done.repaired)
    asset, name = "cold_tier_snapshots", "cold_files_are_as_recorded"
    report(context, lifecycle, asset, name, noted(lifecycle, asset, name, context.partition_key, judged))
    return {
        "files_read": done.checked_files,
        "bytes_read": done.checked_bytes,
        "files_in_deep_archive": done.archived_files,
        "repaired": done.repaired,
        "lost": done.lost,
        "open_losses": done.open_losses,
        "rotation_began": ui_metadata.instant(done.began_at),
        "share_of_rotation": done.share_done,
        "problems": ui_metadata.table(*grid(done.problems, "path, repaired, reason")),
    }


@maintenance_job("thaws", "Checks the state of a table's thaws. Changes no table, and thaws nothing without approval.")
def follow_thaws(context: dg.OpExecutionContext, lifecycle: LifecycleResource) -> Shown:
    """Check the state of the table's thaws: readable, ended, or lapsed."""
    steps, table = lifecycle.get(), table_of(context.partition_key)
    followed = [steps.follow_thaw(thaw.thaw_id) for thaw in steps.thaws(table)]
    columns = "thaw=thaw_id, case=case_id, requester, approved by=approved_by, state, files, bytes, "
    return {"thaws": ui_metadata.table(*grid(followed, f"{columns}readable until=readable_until"))}


@maintenance_job("quarantine_purge", "Deletes permanently the quarantined files whose retention is over.")
def purge_quarantine(
    context: dg.OpExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Shown:
    """Delete permanently the quarantined files whose retention is over."""
    done = lifecycle.get().purge_quarantine(table_of(context.partition_key), dry_run=config.is_dry(changes))
    files, size = sum(each.deleted for each in done), sum(each.bytes for each in done)
    dry_run = config.is_dry(changes)
    figures = (
        {"would_purge_files": files, "would_purge_bytes": size}
        if dry_run
        else {"files": files, "bytes": size, "failed": sum(each.failed for each in done)}
    )
    shown = ui_metadata.table(*grid(done, "plan or scan=job_id, files=deleted, bytes, failed"))
    return {"dry_run": dry_run, **figures, "would_purge" if dry_run else "purged": shown}


@maintenance_job(
    "dropped_tables",
    "Scans the remaining files of dropped tables whose retention is over, and deletes them once a person approves.",
    by_table=False,
)
def clear_dropped_tables(
    context: dg.OpExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Shown:
    """Scan the remaining files of dropped tables whose retention is over, and delete the approved files."""
    done = lifecycle.get().clear_dropped(dry_run=config.is_dry(changes))
    for each in done:
        if each.problem:
            context.log.warning(terminal(f"{each.dropped.table}: {each.problem}"))
    columns = (
        "table=dropped.table, uuid=dropped.table_uuid, state=dropped.state, missed since=dropped.missing_since, "
        "kept until=dropped.due_at, scan=scan_id, files, deleted, waits for=problem"
    )
    shown = {
        "dry_run": config.is_dry(changes),
        "dropped_tables": len(done),
        **({} if config.is_dry(changes) else {"files_deleted": sum(each.deleted for each in done)}),
        "tables": ui_metadata.table(*grid(done, columns)),
    }
    if waits := [each.dropped.table for each in done if each.waits]:
        text = f"The files of {len(waits)} dropped tables wait for a person: {', '.join(waits)}"
        shown |= waiting(context, ApprovalNeeded(text, hint="approve each scan; or artemis keep-dropped TABLE"))
    return shown


@maintenance_job("records", "Deletes old journal records and listings.", kind="postgres", by_table=False)
def forget_records(
    context: dg.OpExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Shown:
    """Delete records that are older than the setting `records` in lifecycle.yaml allows."""
    done = lifecycle.get().forget_records(dry_run=config.is_dry(changes))
    would = "would_be_" if done.dry_run else ""
    return {
        "dry_run": config.is_dry(changes),
        f"{would}forgotten": ui_metadata.table(["records", "rows or frames"], done.counts.items()),
        f"{would}files_deleted": done.files,
        f"{would}bytes_deleted": done.bytes,
    }


@maintenance_job(
    "publication",
    "Publishes pending rows of the result tables. They are for people, and nothing decides by them.",
    by_table=False,
)
def publish_results(context: dg.OpExecutionContext, lifecycle: LifecycleResource) -> Shown:
    """Publish the rows of plans, deletions and lineage that no process with a Spark session has published."""
    return {"published": lifecycle.get().publish_results()}


@maintenance_job("result_tables", "Maintains the result tables for plans, deletions and lineage.", by_table=False)
def compact_result_tables(
    context: dg.OpExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Shown:
    """Publish pending rows, compact the tables of namespace `lifecycle`, and expire their old snapshots."""
    opened = lifecycle.get()
    published = 0 if config.is_dry(changes) else opened.publish_results()
    done = opened.compact_result_tables(dry_run=config.is_dry(changes))
    found = [(table, files, done.expired_snapshots[table]) for table, files in done.rewritten_files.items()]
    would = "would_be_" if config.is_dry(changes) else ""
    return {
        "dry_run": config.is_dry(changes),
        "published": published,
        "tables": ui_metadata.table(["table", f"files {would}rewritten", f"snapshots {would}expired"], found),
    }


# --- old runs ---------------------------------------------------------------------------------------------------------
# Runs past `records.runs`, and their events in Dagster's storage, which Dagster itself keeps forever.

_PAGE = 100
_EVENTS = (
    (dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterInstance.fetch_materializations),
    (dg.DagsterEventType.ASSET_OBSERVATION, dg.DagsterInstance.fetch_observations),
)


def old_runs_of(
    instance: dg.DagsterInstance, keys: frozenset[dg.AssetKey], before: datetime
) -> Iterator[dg.DagsterRun]:
    """Yield the ended runs of this project whose last change was before `before`; except those that have the newest
    materialization or observation of a partition of one of `keys`, which asset pages show.

    A run is of this project if it has its job tag, or materializes none but `keys`.
    """
    shown = {run_id for key in keys for run_id in _runs_shown(instance, key)}
    old, cursor = dg.RunsFilter(statuses=list(FINISHED_STATUSES), updated_before=before), None
    while page := instance.get_runs(old, cursor=cursor, limit=_PAGE):
        cursor = page[-1].run_id
        for run in page:
            if run.run_id not in shown and is_of_this_project(run, keys, alone=True):
                yield run


def _runs_shown(instance: dg.DagsterInstance, key: dg.AssetKey) -> Iterator[str]:
    """Yield the runs of the newest materialization and of the newest observation of each partition of an asset."""
    if (newest := instance.get_latest_materialization_event(key)) is not None:
        yield newest.run_id
    for kind, fetch in _EVENTS:
        ids = list(instance.event_log_storage.get_latest_storage_id_by_partition(key, kind).values())
        for first in range(0, len(ids), _PAGE):
            chunk = ids[first : first + _PAGE]
            yield from (
                record.run_id
                for record in fetch(instance, dg.AssetRecordsFilter(key, storage_ids=chunk), limit=_PAGE).records
            )


@maintenance_job(
    "old_runs", "Deletes this project's runs past records.runs, and their events.", kind="postgres", by_table=False
)
def delete_old_runs(
    context: dg.OpExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
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
