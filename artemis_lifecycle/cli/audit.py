"""Commands that answer audit questions: who ingested, what is downstream, who overwrote; and the incident report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from artemis_lifecycle.cli.options import ConfigOption, JsonOption, TableArgument, instant, require_picture
from artemis_lifecycle.cli.output import as_json, opened, say, show_json, show_table
from artemis_lifecycle.escaping import terminal

if TYPE_CHECKING:
    from artemis_lifecycle.lineage.audit import Lineage

app = typer.Typer()

SnapshotArgument = Annotated[int, typer.Argument(help="The snapshot's id.", metavar="SNAPSHOT")]
StatesOption = Annotated[
    bool,
    typer.Option(
        "--states/--exact",
        help="Readers of later states of a table count, because these contain the snapshot; or only of the snapshot.",
    ),
]
PlotOption = Annotated[Path | None, typer.Option("--plot", help="Write the graph to this file (.svg).")]


@app.command()
def ingested(
    table: TableArgument,
    partition: Annotated[str | None, typer.Option(help="Such as day=2024-03-15, or day=2024-03-15/region=eu.")] = None,
    path: Annotated[str | None, typer.Option(help="A data file's path, live or cold.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show when a partition or a data file was ingested, by which writer at which commit hash; also expired history."""
    with opened(config, "reading the lineage ledger") as lifecycle:
        found = lifecycle.ingested(table, partition, path)
    if json:
        show_json({**_fields(found), "files": [each._asdict() for each in found.rows()]})
        return
    facts = ("snapshot_id", "committed_at", "writer_id", "commit_hash")
    show_table("", ("", ""), [(each.replace("_", " "), getattr(found, each)) for each in facts], header=False)
    columns = ("path", "snapshot", "operation", "committed", "writer", "commit", "tier", "partition")
    show_table("Data files", columns, found.rows())
    if found.untraced:
        say(f"The inputs of {len(found.untraced)} compactions are in no tier: earlier ingests may be missing.")
    _show_notes(found.unrecorded, ())


@app.command()
def downstream(
    table: TableArgument,
    snapshot_id: SnapshotArgument,
    states: StatesOption = True,
    plot: PlotOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show every snapshot that read this one, in any table, directly or through others: its blast radius."""
    _require_svg(plot)
    with opened(config, "reading the lineage ledger") as lifecycle:
        _show_lineage(lifecycle.downstream(table, snapshot_id, states=states), plot, json=json)


@app.command()
def upstream(
    table: TableArgument,
    snapshot_id: SnapshotArgument,
    states: StatesOption = False,
    plot: PlotOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show every snapshot that this one read, in any table, directly or through others."""
    _require_svg(plot)
    with opened(config, "reading the lineage ledger") as lifecycle:
        _show_lineage(lifecycle.upstream(table, snapshot_id, states=states), plot, json=json)


@app.command()
def overwrites(
    since: Annotated[str, typer.Option(help="An instant with its time zone, e.g. 2026-01-31T00:00:00Z.")],
    until: Annotated[str | None, typer.Option(help="An instant with its time zone; default: now.")] = None,
    table: Annotated[str | None, typer.Option(help="One table; default: all.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show who triggered overwrites and deletes, why and under which ticket, and what their summaries miss."""
    begin, end = instant(since), instant(until) or datetime.now(UTC)
    assert begin is not None
    with opened(config, "reading the lineage ledger") as lifecycle:
        found = lifecycle.overwrites(begin, end, table)
    if json:
        _warn(found.unreadable)
        show_json(found)
        return
    columns = ("committed", "table", "snapshot", "operation", "who", "writer", "why", "ticket", "missing")
    rows = [
        (o.committed_at, o.table, o.snapshot_id, o.operation, o.who, o.writer, o.why, o.ticket, o.missing)
        for o in found.rows
    ]
    show_table(f"{len(rows):,} overwrites, {len(found.incomplete):,} incomplete", columns, rows)
    _show_notes(found.unrecorded, found.unreadable)


@app.command()
def incident(
    table: TableArgument,
    snapshot_id: SnapshotArgument,
    html: Annotated[Path | None, typer.Option("--html", help="Write the report with its graph to this file.")] = None,
    states: StatesOption = True,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Print a report about a snapshot in Markdown, to attach to a ticket: writer, blast radius, inputs, overwrites."""
    with opened(config, "reading the lineage ledger") as lifecycle:
        report = lifecycle.incident(table, snapshot_id, states=states)
    _warn(report.unreadable)
    if html is not None:
        html.write_text(report.html, encoding="utf-8")
    if json:
        show_json(report)
    else:
        print(report.markdown)


def _require_svg(plot: Path | None) -> None:
    require_picture(plot)
    if plot is not None and plot.suffix != ".svg":
        raise typer.BadParameter("the graph is an .svg file")


def _show_lineage(found: Lineage, plot: Path | None, *, json: bool) -> None:
    if plot is not None:
        plot.write_text(found.svg(), encoding="utf-8")
    if json:
        edges = [{"depth": depth, "from": s._asdict(), "to": t._asdict()} for depth, s, t in found.edges]
        _warn(found.unreadable)
        snapshots = [each._asdict() for each in found.snapshots]
        show_json({**_fields(found), "left_out": found.left_out, "edges": edges, "snapshots": snapshots})
        return
    rows = [
        (depth, f"{source.table} {source.snapshot_id}", f"{target.table} {target.snapshot_id}")
        for depth, source, target in found.edges
    ]
    title = f"{len(found.snapshots):,} snapshots {found.direction} of {found.table} {found.snapshot_id}"
    show_table(title, ("depth", "read", "by"), rows)
    if found.left_out:
        say(
            f"Left out: {found.left_out:,} snapshots that are {found.direction} of states of a table that "
            f"{'contain' if found.direction == 'downstream' else 'are in'} the ones above; with --states they count."
        )
    _show_notes(found.unrecorded, found.unreadable)


def _fields(value: object) -> dict[str, object]:
    public = as_json(value)
    assert isinstance(public, dict)
    return public


def _warn(unreadable: Sequence[str]) -> None:
    if unreadable:
        names = ", ".join(map(terminal, unreadable))
        typer.echo(f"Cannot read the metadata of {names}: what the ledger does not have of it yet is missing", err=True)


def _show_notes(unrecorded: int, unreadable: Sequence[str]) -> None:
    _warn(unreadable)
    if unrecorded:
        say(f"Read from metadata, because the ledger does not have them yet: {unrecorded:,} snapshots", dim=True)
