"""Commands that show what a table's maintenance is worth: its health's score, and what its commits cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from artemis_lifecycle.cli.command import PlotOption, TableArgument, command
from artemis_lifecycle.cli.output import say, show_table

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle

app = typer.Typer()


@command(app, "measuring {table}")
def health(lifecycle: Lifecycle, table: TableArgument, plot: PlotOption = None) -> Iterator[object]:
    """Show the table's score, what each part costs, and what to do next. Measures a table that changed; else starts no
    Spark."""
    found = lifecycle.health(table)
    currency = lifecycle.config.prices.currency
    if plot is not None:
        plot.write_bytes(lifecycle.health_history(table).plot(plot.suffix[1:]))
    yield found.figures() | {"parts": found.parts, "next_part": found.next_part}
    show_table(
        f"{table}: {found.score:.3g} of 100",
        ("part", "score", "figure", "seconds", f"{currency}/month"),
        [
            (
                part.name.replace("_", " "),
                "unknown" if part.score is None else f"{part.score:.0f}",
                "" if part.figure is None else f"{part.figure:,g} {part.unit}",
                "" if part.seconds is None else f"{part.seconds:,.1f}",
                "" if part.per_month is None else f"{part.per_month:,.2f}",
            )
            for part in found.parts
        ],
    )
    for part in sorted(found.parts, key=lambda part: -part.gain):
        if part.next_step is not None:
            say(f"{part.name.replace('_', ' ')}: {part.why} (gain {part.gain:.3g})")
    if found.next_part is None:
        say("Nothing is due.")
    else:
        say("Next:", found.next_part.next_step or "", unbroken=True)
    if plot is not None:
        say(f"Written to {plot}", dim=True)


@command(app, "reading the commits of {table}", name="commit-costs")
def commit_costs(
    lifecycle: Lifecycle,
    table: TableArgument,
    plot: PlotOption = None,
    limit: Annotated[int, typer.Option(help="Show so many of the newest commits.", min=1)] = 10,
) -> Iterator[object]:
    """Show the metadata that each commit wrote, beside the size of its change, and warn if that grows with the
    table."""
    found = lifecycle.commit_costs(table)
    if plot is not None:
        plot.write_bytes(found.plot(plot.suffix[1:]))
    yield {
        "table": found.table,
        "rows": found.rows,
        "unknown": found.unknown,
        "trends": found.trends,
        "warnings": found.warnings,
    }
    show_table(
        f"{table}: {len(found.rows)} commits",
        ("committed", "operation", "files", "metadata", "list", "manifests", "requests"),
        [
            (
                f"{row.committed_at:%m-%d %H:%M}",
                row.operation or "no snapshot",
                f"{row.files_changed:,}",
                "unknown" if row.metadata_bytes is None else decimal(row.metadata_bytes),
                decimal(row.manifest_list_bytes),
                f"{row.manifests:,}: {decimal(row.manifest_bytes)}",
                row.requests,
            )
            for row in found.rows[-limit:]
        ],
    )
    say(*map(str, found.trends))
    if found.unknown:
        say(f"{found.unknown:,} metadata files have an unknown size: the table's metadata log does not name them.")
    for warning in found.warnings:
        say(f"Warning: {warning}")
    if plot is not None:
        say(f"Written to {plot}", dim=True)
