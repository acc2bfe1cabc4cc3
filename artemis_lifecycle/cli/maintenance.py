"""Commands that show what a table's maintenance is worth: its health's score."""

from __future__ import annotations

import typer

from artemis_lifecycle.cli.options import ConfigOption, JsonOption, PlotOption, TableArgument, require_picture
from artemis_lifecycle.cli.output import opened, say, show_json, show_table

app = typer.Typer()


@app.command()
def health(
    table: TableArgument, plot: PlotOption = None, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Show the table's score, what each part costs, and what to do next. Measures a table that changed; else starts no
    Spark."""
    require_picture(plot)
    with opened(config, f"measuring {table}") as lifecycle:
        found = lifecycle.health(table)
        currency = lifecycle.config.prices.currency
        if plot is not None:
            plot.write_bytes(lifecycle.health_history(table).plot(plot.suffix[1:]))
    if json:
        show_json(found.figures() | {"parts": found.parts, "next_part": found.next_part})
        return
    show_table(
        f"{table}: {found.score:.0f} of 100",
        ("part", "score", "figure", "seconds", f"{currency}/month"),
        [
            (
                part.name.replace("_", " "),
                "unknown" if part.score is None else f"{part.score:.0f}",
                part.unit if part.figure is None else f"{part.figure:,g} {part.unit}",
                "" if part.seconds is None else f"{part.seconds:,.1f}",
                "" if part.per_month is None else f"{part.per_month:,.2f}",
            )
            for part in found.parts
        ],
    )
    for part in sorted(found.parts, key=lambda part: -part.gain):
        if part.next_step is not None:
            say(f"{part.name.replace('_', ' ')}: {part.why} (+{part.gain:.0f})")
    if found.next_part is None:
        say("Nothing is due.")
    else:
        say("Next:", found.next_part.next_step or "", unbroken=True)
    if plot is not None:
        say(f"Written to {plot}", dim=True)
