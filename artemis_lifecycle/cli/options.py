"""Arguments and options that several commands share, and their parsing."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from click import STRING

from artemis_lifecycle.errors import BadInput, NaiveDatetime


def instant(text: str | None) -> datetime | None:
    """Parse an ISO 8601 instant. Raises BadInput if it is invalid, NaiveDatetime if it has no time zone."""
    if text is None:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"{text!r} is not an instant", hint="use a form such as 2026-01-31T00:00:00Z") from error
    if parsed.tzinfo is None:
        raise NaiveDatetime(f"{text!r} has no time zone", hint=f"append Z or an offset: {text}Z")
    return parsed


def instant_option(*names: str, help: str) -> Any:
    """Return an option that is an instant. Not a `parser`: its errors would be Typer's, without --json."""
    return typer.Option(*names, click_type=STRING, callback=instant, help=help)


def picture(plot: Path | None) -> Path | None:
    """Return the path of a picture. Raises BadInput for another kind of file."""
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise BadInput(f"{plot} is not a .png or .svg file", hint="use a picture file")
    return plot


ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="lifecycle.yaml; default $ARTEMIS_CONFIG, then ./lifecycle.yaml.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
TableArgument = Annotated[str, typer.Argument(help="namespace.table", metavar="TABLE")]
PlanArgument = Annotated[str, typer.Argument(help="The id from `artemis plan`.", metavar="PLAN")]
ThawArgument = Annotated[str, typer.Argument(help="The id from `artemis thaw`.", metavar="THAW")]
NowOption = Annotated[
    datetime | None, instant_option("--now", help="Decide as of this instant, e.g. 2026-01-31T00:00:00Z.")
]
OlderThanOption = Annotated[datetime | None, instant_option("--older-than", help="An instant with its time zone.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Report what would be done; change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask if a window, grace or min_age is zero.")]
FilesOption = Annotated[bool, typer.Option("--files", help="Also list the files.")]
AsOfOption = Annotated[datetime | None, instant_option("--as-of", help="An instant with its time zone.")]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", callback=picture, help="Write a picture to this file (.png or .svg).")
]
PersonOption = Annotated[str, typer.Option(prompt=True)]
ReasonOption = Annotated[str, typer.Option(prompt=True)]
AnyTableArgument = Annotated[str | None, typer.Argument(help="namespace.table; default: all tables", metavar="TABLE")]
DroppedArgument = Annotated[str, typer.Argument(help="namespace.table, or its uuid", metavar="TABLE")]
PlanOrScanArgument = Annotated[str, typer.Argument(help="The id of a plan, or of an orphan scan.", metavar="PLAN")]
