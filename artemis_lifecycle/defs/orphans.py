"""The assets that find and delete orphan files. The listing comes first; the scan compares it with newer metadata."""

from typing import Optional

import dagster as dg
from pydantic import Field

from artemis_lifecycle import pipes
from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.cli.output import grid
from artemis_lifecycle.defs import ui_metadata
from artemis_lifecycle.defs.common import Changes, Materialized, Skipped, data_version, delete_each, opened, walk_asset
from artemis_lifecycle.defs.resources import ChangesResource, LifecycleResource
from artemis_lifecycle.operations.holds import SHOWN
from artemis_lifecycle.orphans.trend import next_scan
from artemis_lifecycle.scheduling.maintenance_window import NIGHTLY_WALK

GROUP = "orphans"


class Scanning(dg.Config):
    """What replaces the policy, or the listing by the store, in one scan."""

    older_than: Optional[str] = Field(
        default=None, description="In place of min_age: an instant with its time zone, such as 2026-01-31T00:00:00Z."
    )
    inventory: Optional[str] = Field(
        default=None,
        description="The manifest.json of an S3 Inventory report, or a live inventory: CATALOG:b_BUCKET.inventory.",
    )
    listing: Optional[str] = Field(
        default=None, description="Parquet files with path, last_modified and size_in_bytes, in place of a listing."
    )
    listed_at: Optional[str] = Field(
        default=None, description="When the creation of that listing began: an instant with its time zone."
    )


def _require_scan_due(context: dg.AssetExecutionContext, steps: Lifecycle, table: str) -> None:
    """Raise Skipped if `nightly_walk` has no scan due: an approved scan must be deleted first, or the table accumulates
    orphans so slowly that the next scan is later. Other jobs scan in each run."""
    if context.job_name != NIGHTLY_WALK:
        return
    if steps.approved_scan(table) is not None:
        raise Skipped("not_due", why="an approved scan is to be deleted first")
    policy = steps.config.policy(table).orphans
    due = next_scan(steps.scan_trend(table).points, policy.scan_every, policy.min_age)
    if due is not None and due > steps.operations.clock.now():
        raise Skipped("not_due", next_scan_at=ui_metadata.instant(due))


def _require_scan(context: dg.AssetExecutionContext, steps: Lifecycle, table: str) -> None:
    """Raise Skipped if `nightly_walk` has no scan whose orphans it could delete."""
    if context.job_name == NIGHTLY_WALK and steps.approved_scan(table) is None and steps.latest_scan(table) is None:
        raise Skipped("not_due", why="the table has no scan")


@walk_asset(GROUP, {"s3", "spark", "postgres"}, ("physical_deletion",), before=_require_scan_due)
def object_listing(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> Materialized:
    """Every file under the table's locations, as listed by the store, sealed with the start and end time of the
    listing."""
    steps, table = opened(context, lifecycle)
    listing = steps.list_objects(table)
    return Materialized(
        data_version=data_version(listing.listing_id),
        metadata={
            "dagster/uri": ui_metadata.uri(listing.files_location),
            "dagster/partition_row_count": listing.files,
            "dagster/column_schema": ui_metadata.column_schema(ui_metadata.LISTED_FILES),
            "listing_id": listing.listing_id,
            "files": listing.files,
            "bytes": listing.bytes,
            "listed_from": ui_metadata.instant(listing.started_at),
            "listed_until": ui_metadata.instant(listing.finished_at),
            "locations": ui_metadata.table(["location"], [(location,) for location in listing.locations]),
            "sealed_files": ui_metadata.place(listing.files_location),
        },
    )


@walk_asset(GROUP, {"iceberg", "spark", "postgres"}, ("object_listing", "reachable_set"), before=_require_scan_due)
def orphan_scan(context: dg.AssetExecutionContext, lifecycle: LifecycleResource, config: Scanning) -> Materialized:
    """Listed files that metadata read after the listing does not reach, and that are not young, a live writer's or in a
    plan."""
    steps, table = opened(context, lifecycle)
    scan = pipes.scanned(steps, table, config.model_dump())
    trend, policy = steps.scan_trend(table), steps.config.policy(table).orphans
    summary = scan.summary
    return Materialized(
        data_version=data_version(scan.scan_id),
        metadata={
            "dagster/uri": ui_metadata.uri(scan.files_location),
            "dagster/partition_row_count": summary.orphan_files,
            "dagster/column_schema": ui_metadata.column_schema(ui_metadata.ORPHAN_FILES),
            "scan_id": scan.scan_id,
            "orphans": summary.orphan_files,
            "bytes": summary.orphan_bytes,
            "files": summary.listed_files,
            "orphan_share": round(summary.orphan_share, 6),
            "skipped_in_flight": scan.skipped_in_flight,
            "skipped_young": summary.too_young,
            "listed_at": ui_metadata.instant(scan.listed_at),
            "metadata_read_at": ui_metadata.instant(scan.metadata_read_at),
            "metadata_location": ui_metadata.place(scan.metadata_location),
            "sealed_files": ui_metadata.place(scan.files_location),
            "why_files_stay": ui_metadata.table(
                ["reason", "files", "bytes"],
                [(why, files, summary.bytes_by_reason.get(why, 0)) for why, files in summary.files_by_reason.items()],
            ),
            "by_origin": ui_metadata.table(["origin", "orphans"], summary.orphans_by_origin.items()),
            **({"leaked_per_day": round(trend.leaked_per_day, 3)} if trend.leaked_per_day is not None else {}),
            "next_scan_at": ui_metadata.instant(next_scan(trend.points, policy.scan_every, policy.min_age)),
            "over_time": ui_metadata.picture(trend.plot, f"Orphans of {table}, scan by scan"),
            "scans": ui_metadata.table(
                *grid(
                    reversed(trend.points),
                    "scan=at, files=listed, orphans, orphan bytes=orphan_bytes, too young=too_young, "
                    "of live writers=live_writers, deleted",
                )
            ),
            "live_writers": ui_metadata.table(SHOWN, [beat.shown for beat in steps.writers(table)]),
        },
    )


@walk_asset(GROUP, {"s3", "spark", "postgres"}, ("orphan_scan",), changes=True, before=_require_scan)
def orphan_deletion(
    context: dg.AssetExecutionContext, lifecycle: LifecycleResource, changes: ChangesResource, config: Changes
) -> Materialized:
    """Deletes the newest scan's orphans in journaled batches, and checks each file again before it deletes it.

    An approved scan takes precedence over a newer one. Interrupted deletions of older scans are finished first: no
    newer scan names their files.
    """
    steps, table = opened(context, lifecycle)
    scans = pipes.scans_to_delete(steps, table)
    reports, refused = delete_each(
        context, scans, lambda scan_id: steps.delete_orphans(scan_id, dry_run=config.is_dry(changes))
    )
    return Materialized(
        data_version=data_version(scans[-1]),
        metadata={
            "dry_run": config.is_dry(changes),
            "dagster/column_schema": ui_metadata.column_schema(ui_metadata.DELETED_FILES),
            "scan_id": scans[-1],
            **ui_metadata.deletion(reports),
            **refused,
            "query": ui_metadata.query(steps.config.catalogs.results, "deletions", f"job_id = '{scans[-1]}'"),
        },
    )
