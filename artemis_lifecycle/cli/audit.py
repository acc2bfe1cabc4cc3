"""Commands that answer audit questions: who ingested, what is downstream, who overwrote; and the incident report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from artemis_lifecycle.cli.command import TableArgument, command, instant_option, picture
from artemis_lifecycle.cli.output import as_json, say, show_table
from artemis_lifecycle.escaping import terminal

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle
    from artemis_lifecycle.audit.answers import Lineage

app = typer.Typer()

SnapshotArgument = Annotated[int, typer.Argument(help="The snapshot's id.", metavar="SNAPSHOT")]
StatesOption = Annotated[
    bool,
    typer.Option(
        "--states/--exact",
        help="Readers of later states of a table count, because these contain the snapshot; or only of the snapshot.",
    ),
]


def _graph(plot: Path | None) -> Path | None:
    if plot is not None and picture(plot) and plot.suffix != ".svg":
        raise typer.BadParameter("the graph is an .svg file")
    return plot


PlotOption = Annotated[
    Path | None, typer.Option("--plot", callback=_graph, help="Write the graph to this file (.svg).")
]


@command(app, "reading the lineage ledger")
def ingested(
    lifecycle: Lifecycle,
    table: TableArgument,
    partition: Annotated[str | None, typer.Option(help="Such as day=2024-03-15, or day=2024-03-15/region=eu.")] = None,
    path: Annotated[str | None, typer.Option(help="A data file's path, live or cold.")] = None,
) -> Iterator[object]:
    """Show when a partition or a data file was ingested, by which writer at which commit hash; also expired history."""
    found = lifecycle.ingested(table, partition, path)
    yield {**_fields(found), "files": [each._asdict() for each in found.rows()]}
    facts = ("snapshot_id", "committed_at", "writer_id", "commit_hash")
    show_table("", ("", ""), [(each.replace("_", " "), getattr(found, each)) for each in facts], header=False)
    columns = ("path", "snapshot", "operation", "committed", "writer", "commit", "tier", "partition")
    show_table("Data files", columns, found.rows())
    if found.untraced:
        say(f"The inputs of {len(found.untraced)} compactions are in no tier: earlier ingests may be missing.")
    _show_notes(found.unrecorded)


@command(app, "reading the lineage ledger")
def downstream(
    lifecycle: Lifecycle,
    table: TableArgument,
    snapshot_id: SnapshotArgument,
    states: StatesOption = True,
    plot: PlotOption = None,
) -> Iterator[object]:
    """Show every snapshot that read this one, in any table, directly or through others: its blast radius."""
    return _show_lineage(lifecycle.downstream(table, snapshot_id, states=states), plot)


@command(app, "reading the lineage ledger")
def upstream(
    lifecycle: Lifecycle,
    table: TableArgument,
    snapshot_id: SnapshotArgument,
    states: StatesOption = False,
    plot: PlotOption = None,
) -> Iterator[object]:
    """Show every snapshot that this one read, in any table, directly or through others."""
    return _show_lineage(lifecycle.upstream(table, snapshot_id, states=states), plot)


@command(app, "reading the lineage ledger")
def overwrites(
    lifecycle: Lifecycle,
    since: Annotated[datetime, instant_option(help="An instant with its time zone, e.g. 2026-01-31T00:00:00Z.")],
    until: Annotated[datetime | None, instant_option(help="An instant with its time zone; default: now.")] = None,
    table: Annotated[str | None, typer.Option(help="One table; default: all.")] = None,
) -> Iterator[object]:
    """Show who triggered overwrites and deletes, why and under which ticket, and what their summaries miss."""
    found = lifecycle.overwrites(since, until or datetime.now(UTC), table)
    _warn(found.unreadable)
    yield found
    columns = ("committed", "table", "snapshot", "operation", "who", "writer", "why", "ticket", "missing")
    rows = [
        (o.committed_at, o.table, o.snapshot_id, o.operation, o.who, o.writer, o.why, o.ticket, o.missing)
        for o in found.rows
    ]
    show_table(f"{len(rows):,} overwrites, {len(found.incomplete):,} incomplete", columns, rows)
    _show_notes(found.unrecorded)


@command(app, "reading the lineage ledger")
def incident(
    lifecycle: Lifecycle,
    table: TableArgument,
    snapshot_id: SnapshotArgument,
    html: Annotated[Path | None, typer.Option("--html", help="Write the report with its graph to this file.")] = None,
    states: StatesOption = True,
) -> Iterator[object]:
    """Print a report about a snapshot in Markdown, to attach to a ticket: writer, blast radius, inputs, overwrites."""
    report = lifecycle.incident(table, snapshot_id, states=states)
    _warn(report.unreadable)
    if html is not None:
        html.write_text(report.html, encoding="utf-8")
    yield report
    print(report.markdown)


def _show_lineage(found: Lineage, plot: Path | None) -> Iterator[object]:
    if plot is not None:
        plot.write_text(found.svg(), encoding="utf-8")
    edges = [{"depth": depth, "from": s._asdict(), "to": t._asdict()} for depth, s, t in found.edges]
    snapshots = [each._asdict() for each in found.snapshots]
    _warn(found.unreadable)
    yield {**_fields(found), "left_out": found.left_out, "edges": edges, "snapshots": snapshots}
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
    _show_notes(found.unrecorded)


def _fields(value: object) -> dict[str, object]:
    public = as_json(value)
    assert isinstance(public, dict)
    return public


def _warn(unreadable: Sequence[str]) -> None:
    if unreadable:
        names = ", ".join(map(terminal, unreadable))
        typer.echo(f"Cannot read the metadata of {names}: what the ledger does not have of it yet is missing", err=True)


def _show_notes(unrecorded: int) -> None:
    if unrecorded:
        say(f"Read from metadata, because the ledger does not have them yet: {unrecorded:,} snapshots", dim=True)
