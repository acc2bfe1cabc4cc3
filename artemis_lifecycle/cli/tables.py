"""Commands about the contents of tables: history, schemas and lineage, other windows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from click import STRING
from rich.filesize import decimal

from artemis_lifecycle.cli.command import (
    ConfigOption,
    DryRunOption,
    NowOption,
    PlotOption,
    TableArgument,
    command,
    instant,
)
from artemis_lifecycle.cli.output import Result, opened, say, show_table
from artemis_lifecycle.config.durations import parse_duration
from artemis_lifecycle.storage.instants import in_calendar

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle

app = typer.Typer()


@command(app, "reading the catalogs")
def tables(lifecycle: Lifecycle) -> Iterator[object]:
    """List the tables of all catalogs, and which entry of lifecycle.yaml governs each; `a = b` where two match
    equally well, which is an error before any step of the table. Fails, after the list, for a
    catalog in `catalogs.others` that does not answer."""
    names, errors = lifecycle.answering_tables()
    entries = {name: " = ".join(lifecycle.config.matching(name)) or None for name in names}
    code = max((error.exit_code for error in errors.values()), default=0)
    missing = [f"The tables of catalog {catalog} are missing here. {error}" for catalog, error in errors.items()]
    yield Result(entries, code, tuple(missing))
    rows = [(name, entry or "defaults, manual only") for name, entry in entries.items()]
    show_table("Tables", ("table", "governed by"), rows)


@command(app, "reading the fleet")
def fleet(
    lifecycle: Lifecycle,
    html: Annotated[Path | None, typer.Option(help="Also write the fleet page to this file.")] = None,
) -> Iterator[object]:
    """Show every governed table at a glance: what waits for a person, is overdue, was freed. Starts no Spark."""
    found = lifecycle.fleet()
    if html is not None:
        html.write_text(found.html, encoding="utf-8")
    yield found
    rows = [
        (
            each.table,
            "overdue" if each.overdue else "",
            "" if each.health_score is None else f"{each.health_score:.0f}",
            each.waits_for,
            each.plan_status,
            decimal(each.freed_bytes),
        )
        for each in found.tables
    ]
    show_table(f"{len(rows)} tables", ("table", "", "health", "waits for", "under way", "freed, 30 days"), rows)
    say(*found.sentences)


@app.command()
def metrics(
    port: Annotated[int | None, typer.Option(help="Serve them on this port of 127.0.0.1, until Ctrl-C.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    config: ConfigOption = None,
) -> None:
    """Print the fleet as Prometheus metrics by table, or serve them at /metrics. Starts no Spark."""
    from artemis_lifecycle.cli.output import serve

    with opened(config, "reading the fleet") as lifecycle:
        if port is None:
            typer.echo(lifecycle.metrics(), nl=False)
        else:
            serve(host, port, lifecycle.metrics)


@command(app, "reading the history of {table}")
def history(
    lifecycle: Lifecycle,
    table: TableArgument,
    cold: Annotated[bool, typer.Option("--cold", help="Show what the cold tier and the deep archive have.")] = False,
    limit: int = 20,
) -> Iterator[object]:
    """Show the snapshots, refs and log of a table, pinned to one metadata file."""
    found = lifecycle.cold_history(table) if cold else lifecycle.snapshot_history(table)
    yield found
    live = ["snapshot_id", "committed_at", "operation", "refs", "total_data_files", "total_records"]
    shown = ["snapshot_id", "committed_at", "tier", "operation", "tags", "data_files", "records"] if cold else live
    frame = found.to_pandas()
    if cold and frame["cold_table"].nunique() > 1:
        shown.insert(2, "cold_table")
    frame = frame[shown].tail(limit)
    frame["committed_at"] = frame["committed_at"].dt.strftime("%Y-%m-%d %H:%M:%S")
    columns = [name.removeprefix("total_").replace("_", " ") for name in shown]
    show_table(f"{table}: {len(found.snapshots)} snapshots", columns, frame.itertuples(index=False, name=None))
    say(found.metadata_location, dim=True, unbroken=True)


@command(app, "walking {table}", "Reachable set of {table}")
def reachable(lifecycle: Lifecycle, table: TableArgument, now: NowOption = None) -> object:
    """Count the files that the table's kept snapshots reach, by kind."""
    found = lifecycle.reachable_set(table, now=now)
    return {"table": table, "snapshots": len(found.snapshot_ids), "files": found.counts}


@command(app, "reading the schemas of {table}", name="schema-history")
def schema_history(lifecycle: Lifecycle, table: TableArgument) -> Iterator[object]:
    """Show the schemas that the table has had, what each changed, and since when and until when it was used for
    writes."""
    found = lifecycle.schema_history(table)
    yield found
    rows = found.to_pandas()
    used = [rows[name].dt.strftime("%Y-%m-%d %H:%M:%S").fillna("") for name in ("first_used", "last_used")]
    shown = [rows[name] for name in ("schema_id", "columns", "added", "removed", "changed")]
    show_table(
        f"{table}: {len(rows)} schemas; the current one is {rows.loc[rows['is_current'], 'schema_id'].iloc[0]}",
        ("schema", "columns", "added", "removed", "changed", "snapshots", "first used", "last used"),
        list(zip(*shown, rows["snapshots"], *used, strict=True)),
    )


@command(app, "compacting the history of {table}", "History of {table}", name="compact-history")
def compact_history(lifecycle: Lifecycle, table: TableArgument, now: NowOption = None) -> object:
    """Summarize the history before the retention window into ranges, for `snapshot-at`. The table does not change."""
    return lifecycle.compact_history(table, now=now)


@command(app, "reading the past of {table}", "{table} at {at:%Y-%m-%d %H:%M:%S %Z}", name="snapshot-at")
def snapshot_at(
    lifecycle: Lifecycle,
    table: TableArgument,
    at: Annotated[
        datetime,
        typer.Argument(click_type=STRING, callback=instant, help="An instant with its time zone.", metavar="INSTANT"),
    ],
) -> object:
    """Show which snapshot was current at an instant, also if it has expired: since when, with which schema, by which
    writer. Starts no Spark."""
    found = lifecycle.current_at(table, at)
    return {
        "snapshot_id": found.snapshot_id,
        "since": in_calendar(found.since_ms),
        "schema_id": found.schema_id,
        "writer": found.writer,
        "operation": found.operation,
        "trigger": found.trigger,
    }


@command(app, "compacting {table}", "Compaction of {table}")
def compact(
    lifecycle: Lifecycle,
    table: TableArgument,
    manifests: Annotated[bool, typer.Option("--manifests", help="Compact manifests instead of data files.")] = False,
    dry_run: DryRunOption = False,
) -> object:
    """Rewrite small data files, or small manifests, if the table's health requires it."""
    work = lifecycle.compact_manifests if manifests else lifecycle.compact_data_files
    return work(table, dry_run=dry_run)


@command(app, "recording the lineage of {table}", "Lineage of {table}", name="record-lineage")
def record_lineage(lifecycle: Lifecycle, table: TableArgument) -> object:
    """Append who wrote the table's snapshots to the lineage ledger, before the snapshots expire."""
    return lifecycle.record_lineage(table)


@command(app, "comparing windows", name="retention-curve")
def retention_curve(
    lifecycle: Lifecycle,
    table: TableArgument,
    window: Annotated[
        list[str] | None, typer.Option("--window", help="A window to compare, e.g. 7d; may be repeated.")
    ] = None,
    plot: PlotOption = None,
) -> Iterator[object]:
    """Show what the table would hold under other windows, and what each tag and branch costs to keep. Changes
    nothing."""
    windows = None if not window else [parse_duration(text) for text in window]
    curve = lifecycle.retention_curve(table, windows=windows)
    if plot is not None:
        plot.write_bytes(curve.plot(plot.suffix[1:]))
    yield curve
    most = max((point.size_in_bytes for point in curve.points), default=0) or 1
    show_table(
        f"What {table} would hold",
        ("window", "snapshots", "files", "bytes", ""),
        [
            (
                f"{timedelta(milliseconds=point.window_ms) / timedelta(days=1):.1f} d" + " ◀ policy" * point.is_policy,
                f"{point.snapshots:,}",
                f"{point.files:,}",
                decimal(point.size_in_bytes),
                "█" * round(24 * point.size_in_bytes / most),
            )
            for point in curve.points
        ],
    )
    show_table(
        "What each ref costs: freed if it were removed",
        ("ref", "snapshot", "snapshots", "files", "bytes"),
        [
            (
                f"{cost.type} {cost.ref}",
                cost.snapshot_id,
                cost.snapshots,
                f"{cost.files:,}",
                decimal(cost.size_in_bytes),
            )
            for cost in curve.refs
        ],
    )
    if plot is not None:
        say(f"Written to {plot}", dim=True)
