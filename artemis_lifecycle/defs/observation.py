"""The read-only assets: the live tables, lineage, schema history, table health, and the page of all tables."""

from datetime import timedelta

import dagster as dg

from artemis_lifecycle.audit.ledger import LINEAGE_LEDGER
from artemis_lifecycle.catalogs.identifier import CatalogEntry
from artemis_lifecycle.cli.output import grid, readable
from artemis_lifecycle.defs import ui_metadata
from artemis_lifecycle.defs.common import RETRIES, Materialized, as_dagster_failure, data_version, opened, walk_asset
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.defs.tags import ASSET_TAG, DATA_VERSION_TAG, tables
from artemis_lifecycle.escaping import partition_key, terminal
from artemis_lifecycle.fleet.fleet import FOLDER, page_name

GROUP = "observation"
_RECENT = timedelta(days=30)


@walk_asset(GROUP, {"iceberg", "spark"}, ("snapshot_history",))
def lineage_ledger(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> Materialized:
    """Who wrote each snapshot that the table ever had, when and why. Keeps commit summaries after snapshots expire."""
    steps, table = opened(context, lifecycle)
    update = steps.record_lineage(table)
    until = steps.operations.clock.now()
    overwrites = steps.overwrites(until - _RECENT, until, table)
    return Materialized(
        data_version=data_version(update.metadata_location),
        metadata={
            "dagster/partition_row_count": update.recorded,
            "dagster/column_schema": ui_metadata.ddl_schema(LINEAGE_LEDGER.columns),
            "snapshots": update.recorded,
            "snapshots_added": update.snapshots,
            "snapshots_incomplete": update.incomplete,
            "metadata_location": ui_metadata.place(update.metadata_location),
            "recent_overwrites": ui_metadata.table(
                *grid(
                    reversed(overwrites.rows),
                    "committed=committed_at, snapshot=snapshot_id, operation, who, writer, why, ticket, missing",
                    missing=lambda each: ", ".join(each.missing),
                )
            ),
            "recent_overwrites_incomplete": len(overwrites.incomplete),
            "query": ui_metadata.query(
                steps.config.catalogs.results, LINEAGE_LEDGER.name, f"table_uuid = '{update.table_uuid}'"
            ),
        },
    )


@walk_asset(GROUP, {"iceberg", "python"}, ("snapshot_history",))
def schema_history(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> Materialized:
    """All schemas of the table over time, what each one changed, and the snapshots that used it. Compacts the table's
    history, from which `artemis snapshot-at` answers."""
    steps, table = opened(context, lifecycle)
    history = steps.schema_history(table)
    compacted = steps.compact_history(table)
    frame = history.to_pandas()
    return Materialized(
        data_version=data_version(history.metadata_location),
        metadata={
            "dagster/partition_row_count": len(frame),
            "dagster/column_schema": ui_metadata.frame_schema(frame),
            "schemas": len(history.versions),
            "history_ranges": compacted.ranges,
            "history_entries": compacted.entries,
            "history_bytes": compacted.size_in_bytes,
            "metadata_location": ui_metadata.place(history.metadata_location),
            "versions": ui_metadata.table(list(frame.columns), frame.itertuples(index=False)),
        },
    )


@walk_asset(GROUP, {"iceberg", "spark"}, ("snapshot_history",))
def table_health(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> Materialized:
    """The table's score, 0 to 100, and its parts: what each costs in time and money, and what to do next."""
    steps, table = opened(context, lifecycle)
    health = steps.table_health(table)
    scores, next_part = steps.health_history(table), health.next_part
    curve = steps.retention_curve(table)
    costs = steps.costs(table, curve)
    commits = steps.commit_costs(table)
    most = max(point.size_in_bytes for point in curve.points) or 1
    policy = next(point for point in curve.points if point.is_policy)
    page = f"{steps.root}/{FOLDER}/{page_name(steps.steps.table_uuid(table))}"
    steps.live_stores.write(page, steps.table_page(table, curve, costs).encode(), overwrite=True)
    return Materialized(
        data_version=data_version(health.metadata_location),
        metadata={
            "score": health.score,
            **{f"score_{part.name}": part.score for part in health.parts if part.score is not None},
            "next_step": dg.MetadataValue.text(
                "Nothing is due." if next_part is None else terminal(f"{next_part.next_step} ({next_part.why})")
            ),
            "scores": ui_metadata.picture(scores.plot, f"Health by part and over time, {table}"),
            "parts": ui_metadata.table(
                *grid(
                    health.parts,
                    "part=name, score, figure, unit, seconds, {currency} a month=per_month, gain, "
                    "next step=next_step, why",
                    currency=costs.currency,
                )
            ),
            "commit_costs": ui_metadata.picture(commits.plot, f"Metadata written by each commit, {table}"),
            "commit_cost_trends": ui_metadata.table(["trend"], [(str(trend),) for trend in commits.trends]),
            "recent_commits": ui_metadata.table(
                *grid(
                    commits.rows[:-21:-1],
                    "committed=committed_at, operation, changed files=files_changed, metadata.json=metadata_bytes, "
                    "list=manifest_list_bytes, manifests, bytes=manifest_bytes, requests",
                )
            ),
            "files": health.data_files,
            "bytes": health.data_bytes,
            "records": health.records,
            "snapshots": health.snapshots,
            "small_files": health.small_files,
            "rewritable_files": health.rewritable_files,
            "delete_files": health.delete_files,
            "manifests": health.manifests,
            "metadata_bytes": health.metadata_bytes,
            "page": ui_metadata.place(page),
            "metadata_location": ui_metadata.place(health.metadata_location),
            "bytes_held_by_policy": policy.size_in_bytes,
            "files_held_by_policy": policy.files,
            "retention_curve": ui_metadata.picture(curve.plot, f"Storage held by retention window and by ref, {table}"),
            "held_by_window": ui_metadata.table(
                *grid(
                    curve.points,
                    "window, =bar, bytes=size_in_bytes, files, snapshots",
                    window=lambda each: f"{each.window_ms / 86_400_000:.1f} d{', the policy' * each.is_policy}",
                    bar=lambda each: "█" * round(24 * each.size_in_bytes / most),
                )
            ),
            "held_by_ref": ui_metadata.table(
                ["ref", "snapshot", "files", "bytes"],
                [(f"{cost.type} {cost.ref}", cost.snapshot_id, cost.files, cost.size_in_bytes) for cost in curve.refs],
            ),
            **{f"bytes_{tier.tier.replace('-', '_')}": tier.size_in_bytes for tier in costs.tiers},
            **({"price_per_month": costs.per_month} if costs.per_month is not None else {}),
            "costs": ui_metadata.picture(costs.plot, f"Storage held by tier and by tag, {table}"),
            "held_by_tier": ui_metadata.table(
                *grid(
                    costs.tiers,
                    "tier, class=storage_class, snapshots, files, bytes=size_in_bytes, {currency} a month=per_month",
                    currency=costs.currency,
                )
            ),
            "figures": ui_metadata.table(
                ["figure", "value"],
                [(name.removesuffix("_seconds"), readable(name, value)) for name, value in health.figures().items()],
            ),
        },
    )


# --- live table -------------------------------------------------------------------------------------------------------
# The external asset for the tables themselves. Other assets that write to them are upstream of it.

LIVE_TABLE = "live_table"

live_table = dg.AssetSpec(
    LIVE_TABLE,
    description="The table in the live catalog, whoever writes to it. The sensor `new_metadata` reports each new "
    "metadata file; its location is the data version.",
    group_name="live",
    kinds={"iceberg"},
    tags={ASSET_TAG: LIVE_TABLE},
    partitions_def=tables,
)


def observed(key: dg.AssetKey, table: str, entry: CatalogEntry) -> dg.AssetObservation:
    """Return the report that `table` has this metadata file."""
    return dg.AssetObservation(
        key,
        partition=partition_key(table),
        metadata={
            "dagster/uri": ui_metadata.uri(entry.metadata_location),
            "metadata_location": ui_metadata.place(entry.metadata_location),
        },
        tags={DATA_VERSION_TAG: terminal(entry.metadata_location)},
    )


# --- fleet ------------------------------------------------------------------------------------------------------------
# The asset that shows all tables at a glance. It is not partitioned: one process computes it, from Postgres alone.

_ROWS = 200


@dg.asset(group_name="fleet", kinds={"postgres"}, tags={ASSET_TAG: "fleet"}, retry_policy=RETRIES)
def fleet(lifecycle: LifecycleResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Every governed table: overdue, its health's score, waiting for a person, held, paused, red checks, bytes freed
    and freeable, orphan share, cost per month, the age of each step. Written as a page to
    `<operations.root>/fleet/index.html`. Starts no Spark."""
    with as_dagster_failure() as watch:
        opened = lifecycle.get()
        found = lifecycle.fleet()
        place = f"{opened.root}/{FOLDER}/index.html"
        opened.live_stores.write(place, found.html.encode(), overwrite=True)
    needs = sorted(
        found.tables, key=lambda each: (not (each.waits_for or each.red_checks), not each.overdue, each.table)
    )
    said = {
        **found.summary,
        "page": ui_metadata.place(place),
        "cost": terminal(found.cost),
        **({} if found.cost_per_month is None else {"cost_per_month": found.cost_per_month}),
        "windows": ui_metadata.table(["forecast"], [(str(window),) for window in found.windows]),
        "dagster/row_count": len(found.tables),
        "first_tables": ui_metadata.table(
            *grid(
                needs[:_ROWS],
                "table, overdue, health=health_score, waits for=waits, red, under way=plan_status, "
                "freed bytes=freed_bytes, freeable bytes=freeable_bytes, planned=planned_at",
                waits=lambda each: "; ".join(each.waits_for),
                red=lambda each: "; ".join(each.red_checks),
            )
        ),
        "seconds": watch.seconds,
    }
    return dg.MaterializeResult(metadata=ui_metadata.figures_first(said))
