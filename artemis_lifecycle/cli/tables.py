"""Commands about the contents of tables: history, schemas and lineage, other windows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from click import STRING, Choice
from rich.filesize import decimal
from rich.status import Status

from artemis_lifecycle.cli.command import ConfigOption, JsonOption, chosen_config, command, instant, instant_option
from artemis_lifecycle.cli.output import Result, grid, opened, say, show_json, show_table, spinner
from artemis_lifecycle.config.durations import format_duration, parse_duration
from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.storage.instants import in_calendar

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle
    from artemis_lifecycle.expiration.curve import CurvePoint
    from artemis_lifecycle.planning.plan import QueryPlan

app = typer.Typer()
fleet_app = typer.Typer()


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


@command(fleet_app, "reading the fleet")
def fleet(
    lifecycle: Lifecycle,
    html: Annotated[Path | None, typer.Option(help="Also write the fleet page to this file.")] = None,
) -> Iterator[object]:
    """Show every governed table at a glance: what waits for a person, is overdue, was freed. Starts no Spark."""
    found = lifecycle.fleet()
    if html is not None:
        # The pages of tables are beside the fleet's own page.
        apart = replace(found, tables=tuple(replace(each, page=None) for each in found.tables))
        html.write_text(apart.html, encoding="utf-8")
    yield found
    names, rows = grid(
        found.tables,
        "table, due=overdue, health=score, waits for=waits_for, under way=plan_status, freed",
        overdue=lambda each: "overdue" if each.overdue else "",
        score=lambda each: "" if each.health_score is None else f"{each.health_score:.0f}",
        freed=lambda each: decimal(each.freed_bytes),
    )
    show_table(f"{len(rows)} tables", [*names[:-1], "freed, 30 days"], rows)
    say(*found.sentences)


@app.command(epilog="Example: artemis assess --uri postgresql+psycopg2://ada@db/lake --catalog-name prod")
def assess(
    pattern: Annotated[str, typer.Argument(help="A table, or a pattern of tables, e.g. 'sales.*'.")] = "*",
    listing: Annotated[
        str | None,
        typer.Option(
            help="Count orphan candidates: an S3 Inventory's manifest.json, Parquet, or CATALOG:b_BUCKET.inventory.",
            metavar="PATH",
        ),
    ] = None,
    listed_at: Annotated[
        datetime | None, instant_option("--listed-at", help="When that listing was begun, if before its files.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Read metadata files alone; the rest stays unknown.")] = False,
    uri: Annotated[str | None, typer.Option(help="A catalog's address, in place of a lifecycle.yaml.")] = None,
    catalog_type: Annotated[
        str | None, typer.Option(click_type=Choice(["sql", "rest", "hive", "glue"]), help="Its type; default: sql.")
    ] = None,
    catalog_name: Annotated[str, typer.Option(help="Its name, which in a sql catalog is part of each row.")] = "live",
    warehouse: Annotated[str | None, typer.Option(help="Its warehouse: a location, or a name that rest knows.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-p", help="KEY=VALUE of it, e.g. s3.endpoint=http://…")
    ] = None,
    window: Annotated[str | None, typer.Option(help="The retention window to assume for it; default: 30d.")] = None,
    gb_month: Annotated[float | None, typer.Option(help="The price of one GB of its storage for a month.")] = None,
    limit: Annotated[int, typer.Option(help="The most tables to show.", min=1)] = 30,
    html: Annotated[Path | None, typer.Option(help="Also write one page with plots to this file.")] = None,
    yaml: Annotated[Path | None, typer.Option(help="Also write a lifecycle.yaml to begin with.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show what tables would gain: what expiration frees, small files, metadata, what is at risk. Reads the catalog and
    its store, changes nothing, and needs no lifecycle.yaml, database or Spark (but for a live inventory)."""
    from artemis_lifecycle.config.loading import config_of, load_config
    from artemis_lifecycle.fleet.assess import assess as question
    from artemis_lifecycle.fleet.assess import problems_of
    from artemis_lifecycle.retention.views import few

    pairs = [each.partition("=") for each in properties or []]
    if not all(equals for _, equals, _ in pairs):
        raise typer.BadParameter("--property needs KEY=VALUE")
    if uri is None and catalog_type is None:
        if warehouse or pairs or window or gb_month is not None:
            raise typer.BadParameter("These options describe a catalog of --uri or --catalog-type.")
        found_in = load_config(config or chosen_config())
    else:
        given = {"uri": uri, "warehouse": warehouse, "properties": {key: value for key, _, value in pairs}}
        live = {"type": catalog_type or "sql", "name": catalog_name} | {
            key: said for key, said in given.items() if said
        }
        prices = {} if gb_month is None else {"prices": {"classes": {"STANDARD": {"gb_month": gb_month}}}}
        sections = {"catalogs": {"live": live}, "defaults": {"retention": {"window": window or "30d"}}, **prices}
        found_in = config_of(sections, "The options:")
    with spinner("reading the catalog") as shown:
        update = shown.update if isinstance(shown, Status) else lambda text: None
        found = question(found_in, pattern, listing, listed_at=listed_at, quick=quick, progress=update)
    for path, text in ((html, found.html), (yaml, found.lifecycle_yaml)):
        if path is not None:
            path.write_text(text, encoding="utf-8")
    if json:
        show_json(found)
        return
    columns = "table, past window=past, " + (
        "metadata file=metadata" if quick else "freeable, small files=small, manifests:,, metadata"
    )
    columns += ", orphan candidates=orphans" * (found.listed_at is not None)
    columns += ", {currency}/month=cost_per_month:,.2f" * (found.total("cost_per_month") is not None)
    rows = grid(
        found.tables[:limit],
        columns,
        currency=found.currency,
        past=lambda each: "" if each.snapshots is None else f"{each.snapshots_past_window:,} of {each.snapshots:,}",
        freeable=lambda each: "" if each.bytes_freeable is None else decimal(each.bytes_freeable),
        small=lambda each: "" if each.small_files is None else f"{each.small_files:,} of {each.data_files:,}",
        metadata=lambda each: decimal(size) if (size := each.metadata_bytes or each.metadata_file_bytes) else "",
        orphans=lambda each: (
            "" if each.orphan_bytes is None else f"{each.orphan_files:,}: {decimal(each.orphan_bytes)}"
        ),
    )
    show_table(f"{min(limit, len(found.tables)):,} of {len(found.tables):,} tables, most freeable first", *rows)
    risks: dict[str, list[str]] = {}
    for each in found.tables:
        for problem in problems_of(each):
            risks.setdefault(problem, []).append(each.table)
    say(*(f"! {few(names)}: {problem}" for problem, names in [*risks.items()][:limit]))
    if len(risks) > limit:
        say(f"! … and {len(risks) - limit:,} more, which --json has")
    say(*found.sentences)
    for path in (html, yaml):
        if path is not None:
            say(f"Written to {path}", dim=True)
    names = sorted({*re.findall(r"(?<!\$)\$\{(\w+)\}", found.lifecycle_yaml)})
    first = [*(f"export {name}=…" for name in names), "artemis doctor"]
    first += [f"artemis plan {quote(each.table)}" for each in found.tables[:1]]
    say("Next: " + ("; then ".join(first) if yaml else "the same with --html report.html --yaml lifecycle.yaml"))


@fleet_app.command(epilog="Example: artemis metrics --port 9477")
def metrics(
    port: Annotated[int | None, typer.Option(help="Serve them on this port of 127.0.0.1, until Ctrl-C.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    config: ConfigOption = None,
) -> None:
    """Print the fleet as Prometheus metrics by table, or serve them at /metrics, with /healthz and /readyz for probes.
    Starts no Spark."""
    from artemis_lifecycle.cli.output import serve

    with opened(config or chosen_config(), "reading the fleet") as lifecycle:
        if port is None:
            typer.echo(lifecycle.metrics(), nl=False)
        else:
            serve(host, port, lifecycle.metrics, lifecycle.operations.require_answer)


@command(app, "reading the history of {table}")
def history(
    lifecycle: Lifecycle,
    table: str,
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
def reachable(lifecycle: Lifecycle, table: str, now: datetime | None = None) -> object:
    """Count the files that the table's kept snapshots reach, by kind."""
    found = lifecycle.reachable_set(table, now=now)
    return {"table": table, "snapshots": len(found.snapshot_ids), "files": found.counts}


@command(app, "reading the schemas of {table}", name="schema-history")
def schema_history(lifecycle: Lifecycle, table: str) -> Iterator[object]:
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
def compact_history(lifecycle: Lifecycle, table: str, now: datetime | None = None) -> object:
    """Summarize the history before the retention window into ranges, for `snapshot-at`. The table does not change."""
    return lifecycle.compact_history(table, now=now)


@command(app, "reading the past of {table}", "{table} at {at:%Y-%m-%d %H:%M:%S %Z}", name="snapshot-at")
def snapshot_at(
    lifecycle: Lifecycle,
    table: str,
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
    table: str,
    manifests: Annotated[bool, typer.Option("--manifests", help="Compact manifests instead of data files.")] = False,
    where: Annotated[
        str | None, typer.Option("--where", help="Compact the partitions with such rows, and only these.")
    ] = None,
    dry_run: bool = False,
) -> object:
    """Rewrite small data files, or small manifests, if the table's health requires it."""
    if manifests and where is not None:
        raise BadInput("--where is for data files", table=table, hint="leave out --manifests")
    if manifests:
        return lifecycle.compact_manifests(table, dry_run=dry_run)
    return lifecycle.compact_data_files(table, where=where, dry_run=dry_run)


@command(app, "recording the lineage of {table}", "Lineage of {table}", name="record-lineage")
def record_lineage(lifecycle: Lifecycle, table: str) -> object:
    """Append who wrote the table's snapshots to the lineage ledger, before the snapshots expire."""
    return lifecycle.record_lineage(table)


def _windows(alike: Sequence[CurvePoint]) -> str:
    """Return windows next to each other, which hold the same, as text."""
    texts = [format_duration(timedelta(milliseconds=each.window_ms)) for each in alike]
    policy = "".join(f" ◀ policy {text}" for text, each in zip(texts, alike, strict=True) if each.is_policy)
    return (texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}") + policy


@command(app, "comparing windows", name="retention-curve", plots=True)
def retention_curve(
    lifecycle: Lifecycle,
    table: str,
    window: Annotated[
        list[str] | None, typer.Option("--window", help="A window to compare, e.g. 7d; may be repeated.")
    ] = None,
) -> Iterator[object]:
    """Show what the table would hold under other windows, and what each tag and branch costs to keep. Changes
    nothing."""
    windows = None if not window else [parse_duration(text) for text in window]
    curve = lifecycle.retention_curve(table, windows=windows)
    yield Result(curve, picture=curve.plot)
    most = max((point.size_in_bytes for point in curve.points), default=0) or 1
    points = grid(
        # Windows that were asked for are shown one by one.
        [[*alike] for _, alike in groupby(curve.points, lambda each: (each.files, window and each))],
        "window, snapshots:,, files:,, bytes=size, held=bar",
        window=_windows,
        snapshots=lambda each: each[0].snapshots,
        files=lambda each: each[0].files,
        size=lambda each: decimal(each[0].size_in_bytes),
        bar=lambda each: "█" * round(24 * each[0].size_in_bytes / most),
    )
    show_table(f"What {table} would hold", *points)
    refs = grid(
        curve.refs,
        "ref, snapshot=snapshot_id, snapshots, files:,, bytes=size",
        ref=lambda each: f"{each.type} {each.ref}",
        size=lambda each: decimal(each.size_in_bytes),
    )
    if curve.refs:
        show_table("What each ref costs: freed if it were removed", *refs)


# --- planning ---------------------------------------------------------------------------------------------------------
# `artemis plan-query`: what a query's scan reads, pass by pass.


@command(app, "planning a query of {table}", name="plan-query", plots=True)
def plan_query(
    lifecycle: Lifecycle,
    table: str,
    predicate: Annotated[str, typer.Argument(help="A row filter, e.g. \"day >= '2024-03-15' and region = 'eu'\".")],
    snapshot_id: Annotated[int | None, typer.Option(help="Plan on this snapshot.")] = None,
    ref: Annotated[str | None, typer.Option(help="Plan on this branch or tag.")] = None,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", help="Match column names in any case.")] = False,
    footers: Annotated[int, typer.Option(help="Read the Parquet footers of at most so many selected files.")] = 0,
    files: bool = False,
    limit: Annotated[int, typer.Option(help="The most files to list.")] = 20,
) -> Iterator[object]:
    """Show what a query reads: manifests, files, row groups; and what maintenance would spare it. Starts no Spark."""
    plan = lifecycle.plan_query(
        table, predicate, snapshot_id=snapshot_id, ref=ref, case_sensitive=not ignore_case, footers=footers
    )
    listed = plan.to_arrow().slice(0, limit).to_pylist() if files else []
    yield Result({**plan.figures(), "files": listed} if files else plan.figures(), picture=plan.plot)
    _show(plan)
    if files:
        rows = [
            (
                row["path"],
                decimal(row["size_in_bytes"]),
                f"{row['record_count']:,}",
                len(row["deletes"]),
                row["residual"],
            )
            for row in listed
        ]
        show_table("Data files", ("path", "bytes", "records", "deletes", "left to filter"), rows)
        if plan.files_selected > limit:
            say(f"(the first {limit} of {plan.files_selected:,}; --limit shows more)", dim=True)


def _show(plan: QueryPlan) -> None:
    show_table(
        f"{plan.table}: {plan.predicate}",
        ("pass", "read", "bytes", "left", "bytes left", "pruned"),
        [
            (
                f"{number} {each.name}",
                f"{each.total:,}",
                decimal(each.bytes_total),
                f"{each.selected:,}",
                decimal(each.bytes_selected),
                f"{each.pruned_share:.1%}",
            )
            for number, each in enumerate(plan.passes, 1)
        ],
    )
    total = "" if plan.files_total is None else f" of the {plan.files_total:,} in the snapshot"
    say(f"A scan reads {plan.files_selected:,} data files{total}: {plan.records_selected:,} records.")
    if plan.delete_files:
        kinds = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in plan.delete_files.items())
        say(f"Deletes apply: {kinds}, {decimal(plan.delete_bytes)}, opened {plan.delete_opens:,} times.")
    for reason, count in plan.footers_skipped.items():
        say(f"Footers not read, {reason}: {count:,} files.")
    if not plan.advice:
        say("No maintenance would spare this query anything.")
        return
    advice = grid(
        plan.advice,
        "maintenance, why=what, reads=now:,, then:,, bytes saved=saved, seconds saved=seconds_saved:,.1f",
        maintenance=lambda each: each.command.replace("TABLE", plan.table),
        saved=lambda each: decimal(max(each.bytes_saved, 0)),
    )
    show_table("What maintenance would spare it, one request after another", *advice)


# --- maintenance ------------------------------------------------------------------------------------------------------
# Commands that show what a table's maintenance is worth: its health's score, and what its commits cost.


@command(app, "measuring {table}", plots=True)
def health(lifecycle: Lifecycle, table: str) -> Iterator[object]:
    """Show the table's score, what each part costs, and what to do next. Measures a table that changed; else starts no
    Spark."""
    found = lifecycle.health(table)
    said = found.figures() | {"parts": found.parts, "next_part": found.next_part}
    yield Result(said, picture=lambda kind: lifecycle.health_history(table).plot(kind))
    parts = grid(
        found.parts,
        "part, score, figure, seconds:,.1f, {currency}/month=per_month:,.2f",
        currency=lifecycle.config.prices.currency,
        part=lambda each: each.name.replace("_", " "),
        score=lambda each: "unknown" if each.score is None else f"{each.score:.0f}",
        figure=lambda each: "" if each.figure is None else f"{each.figure:,g} {each.unit}",
    )
    show_table(f"{table}: {found.score:.3g} of 100", *parts)
    for part in sorted(found.parts, key=lambda part: -part.gain):
        if part.next_step is not None:
            say(f"{part.name.replace('_', ' ')}: {part.why} (gain {part.gain:.3g})")
    if found.next_part is None:
        say("Nothing is due.")
    else:
        say("Next:", found.next_part.next_step or "", unbroken=True)


@command(app, "reading the commits of {table}", name="commit-costs", plots=True)
def commit_costs(
    lifecycle: Lifecycle,
    table: str,
    limit: Annotated[int, typer.Option(help="Show so many of the newest commits.", min=1)] = 10,
) -> Iterator[object]:
    """Show the metadata that each commit wrote, beside the size of its change, and warn if that grows with the
    table."""
    found = lifecycle.commit_costs(table)
    fields = ("table", "rows", "unknown", "trends", "warnings")
    yield Result({field: getattr(found, field) for field in fields}, picture=found.plot)
    rows = grid(
        found.rows[-limit:],
        "committed=committed_at:%m-%d %H:%M, operation, files=files_changed:,, metadata, list, manifests, requests",
        operation=lambda each: each.operation or "no snapshot",
        metadata=lambda each: "unknown" if each.metadata_bytes is None else decimal(each.metadata_bytes),
        list=lambda each: decimal(each.manifest_list_bytes),
        manifests=lambda each: f"{each.manifests:,}: {decimal(each.manifest_bytes)}",
    )
    show_table(f"{table}: {len(found.rows)} commits", *rows)
    say(*map(str, found.trends))
    if found.unknown:
        say(f"{found.unknown:,} metadata files have an unknown size: the table's metadata log does not name them.")
    for warning in found.warnings:
        say(f"Warning: {warning}")
