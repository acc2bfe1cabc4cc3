"""Commands about the contents of tables: history, schemas and lineage, other windows."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from artemis_lifecycle.cli.options import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    NowOption,
    PlotOption,
    TableArgument,
    instant,
    require_picture,
)
from artemis_lifecycle.cli.output import err, opened, plain, say, show, show_json, show_table
from artemis_lifecycle.config.durations import parse_duration
from artemis_lifecycle.storage.instants import in_calendar

app = typer.Typer()


@app.command()
def tables(config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the tables of all catalogs, and which entry of lifecycle.yaml governs each; `a = b` where two match
    equally well, which is an error before any step of the table. Fails, after the list, for a
    catalog in `catalogs.others` that does not answer."""
    with opened(config, "reading the catalogs") as lifecycle:
        names, errors = lifecycle.answering_tables()
        entries = {name: " = ".join(lifecycle.config.matching(name)) or None for name in names}
    if json:
        show_json(entries)
    else:
        rows = [(name, entry or "defaults, manual only") for name, entry in entries.items()]
        show_table("Tables", ("table", "governed by"), rows)
    for catalog, error in errors.items():
        err.print(f"The tables of catalog {plain(catalog)} are missing here. {plain(str(error))}", soft_wrap=True)
    if errors:
        raise typer.Exit(max(error.exit_code for error in errors.values()))


@app.command()
def fleet(
    html: Annotated[Path | None, typer.Option(help="Also write the fleet page to this file.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show every governed table at a glance: what waits for a person, is overdue, was freed. Starts no Spark."""
    with opened(config, "reading the fleet") as lifecycle:
        found = lifecycle.fleet()
    if html is not None:
        html.write_text(found.html, encoding="utf-8")
    if json:
        show_json(found)
        return
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
    with opened(config, "reading the fleet") as lifecycle:
        if port is None:
            typer.echo(lifecycle.metrics(), nl=False)
            return
        from artemis_lifecycle.cli.serving import serve

        serve(host, port, lifecycle.metrics)


@app.command()
def history(
    table: TableArgument,
    cold: Annotated[bool, typer.Option("--cold", help="Show what the cold tier and the deep archive have.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
    limit: int = 20,
) -> None:
    """Show the snapshots, refs and log of a table, pinned to one metadata file."""
    with opened(config, f"reading the history of {table}") as lifecycle:
        found = lifecycle.cold_history(table) if cold else lifecycle.snapshot_history(table)
    if json:
        show_json(found)
        return
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


@app.command()
def reachable(
    table: TableArgument, now: NowOption = None, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Count the files that the table's kept snapshots reach, by kind."""
    with opened(config, f"walking {table}") as lifecycle:
        found = lifecycle.reachable_set(table, now=instant(now))
        show(
            {"table": table, "snapshots": len(found.snapshot_ids), "files": found.counts},
            json=json,
            title=f"Reachable set of {table}",
        )


@app.command("schema-history")
def schema_history(table: TableArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show the schemas that the table has had, what each changed, and since when and until when it was used for
    writes."""
    with opened(config, f"reading the schemas of {table}") as lifecycle:
        found = lifecycle.schema_history(table)
    if json:
        show_json(found)
        return
    rows = found.to_pandas()
    used = [rows[name].dt.strftime("%Y-%m-%d %H:%M:%S").fillna("") for name in ("first_used", "last_used")]
    shown = [rows[name] for name in ("schema_id", "columns", "added", "removed", "changed")]
    show_table(
        f"{table}: {len(rows)} schemas; the current one is {rows.loc[rows['is_current'], 'schema_id'].iloc[0]}",
        ("schema", "columns", "added", "removed", "changed", "snapshots", "first used", "last used"),
        list(zip(*shown, rows["snapshots"], *used, strict=True)),
    )


@app.command("compact-history")
def compact_history(
    table: TableArgument, now: NowOption = None, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Summarize the history before the retention window into ranges, for `snapshot-at`. The table does not change."""
    with opened(config, f"compacting the history of {table}") as lifecycle:
        show(lifecycle.compact_history(table, now=instant(now)), json=json, title=f"History of {table}")


@app.command("snapshot-at")
def snapshot_at(
    table: TableArgument,
    at: Annotated[str, typer.Argument(help="An instant with its time zone.", metavar="INSTANT")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show which snapshot was current at an instant, also if it has expired: since when, with which schema, by which
    writer. Starts no Spark."""
    asked = instant(at)
    assert asked is not None
    with opened(config, f"reading the past of {table}") as lifecycle:
        found = lifecycle.current_at(table, asked)
    figures = {
        "snapshot_id": found.snapshot_id,
        "since": in_calendar(found.since_ms),
        "schema_id": found.schema_id,
        "writer": found.writer,
        "operation": found.operation,
        "trigger": found.trigger,
    }
    show(figures, json=json, title=f"{table} at {at}")


@app.command()
def compact(
    table: TableArgument,
    manifests: Annotated[bool, typer.Option("--manifests", help="Compact manifests instead of data files.")] = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Rewrite small data files, or small manifests, if the table's health requires it."""
    with opened(config, f"compacting {table}") as lifecycle:
        work = lifecycle.compact_manifests if manifests else lifecycle.compact_data_files
        show(work(table, dry_run=dry_run), json=json, title=f"Compaction of {table}")


@app.command("record-lineage")
def record_lineage(table: TableArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Append who wrote the table's snapshots to the lineage ledger, before the snapshots expire."""
    with opened(config, f"recording the lineage of {table}") as lifecycle:
        show(lifecycle.record_lineage(table), json=json, title=f"Lineage of {table}")


@app.command("retention-curve")
def retention_curve(
    table: TableArgument,
    window: Annotated[
        list[str] | None, typer.Option("--window", help="A window to compare, e.g. 7d; may be repeated.")
    ] = None,
    plot: PlotOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show what the table would hold under other windows, and what each tag and branch costs to keep. Changes
    nothing."""
    require_picture(plot)
    windows = None if not window else [parse_duration(text) for text in window]
    with opened(config, "comparing windows") as lifecycle:
        curve = lifecycle.retention_curve(table, windows=windows)
    if plot is not None:
        plot.write_bytes(curve.plot(plot.suffix[1:]))
    if json:
        show_json(curve)
        return
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
