"""Arguments and options that several commands have, and what they are read as."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from artemis_lifecycle.errors import BadInput, NaiveDatetime

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="lifecycle.yaml; default $ARTEMIS_CONFIG, then ./lifecycle.yaml.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
TableArgument = Annotated[str, typer.Argument(help="namespace.table", metavar="TABLE")]
PlanArgument = Annotated[str, typer.Argument(help="The id that `artemis plan` printed.", metavar="PLAN")]
ThawArgument = Annotated[str, typer.Argument(help="The id that `artemis thaw` printed.", metavar="THAW")]
NowOption = Annotated[str | None, typer.Option("--now", help="Decide as of this instant, e.g. 2026-01-31T00:00:00Z.")]
OlderThanOption = Annotated[str | None, typer.Option("--older-than", help="An instant with its time zone.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; touch nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask where a window, grace or min_age is zero.")]
FilesOption = Annotated[bool, typer.Option("--files", help="List the files too.")]
AsOfOption = Annotated[str | None, typer.Option("--as-of", help="An instant with its time zone.")]
PlotOption = Annotated[Path | None, typer.Option("--plot", help="Draw it into this file (.png or .svg).")]
PersonOption = Annotated[str, typer.Option(prompt=True)]
ReasonOption = Annotated[str, typer.Option(prompt=True)]


def instant(text: str | None) -> datetime | None:
    """An ISO 8601 instant. Raises BadInput for what is none, NaiveDatetime for one without a time zone."""
    if text is None:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"{text!r} is not an instant", hint="write it as 2026-01-31T00:00:00Z") from error
    if parsed.tzinfo is None:
        raise NaiveDatetime(f"{text!r} has no time zone", hint=f"append Z or an offset: {text}Z")
    return parsed


def require_picture(plot: Path | None) -> None:
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise BadInput(f"{plot} is no .png or .svg", hint="name a picture")
