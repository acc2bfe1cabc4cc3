"""`@command`: opens the Lifecycle, calls a verb, and prints its result once, for a terminal or as JSON."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from click import STRING

from artemis_lifecycle.cli.output import Result, err, opened, plain, print_fields, say, show_json, spinner
from artemis_lifecycle.errors import BadInput, NaiveDatetime, Refused

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle


# --- options ----------------------------------------------------------------------------------------------------------
# Arguments and options that several commands share, and their parsing.


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


TABLE_OF: dict[str, Callable[[Lifecycle, str], str]] = {
    "table": lambda _, table: table,
    "plan": lambda lifecycle, plan: lifecycle.operations.plans.get(plan).table,
    "scan": lambda lifecycle, scan: lifecycle.operations.scans.get(scan).table,
}
"""The table that each kind of argument of a destructive verb is about. Raises NoSuchPlan."""

_COMMON = {"plot": PlotOption, "yes": YesOption, "config": ConfigOption, "json": JsonOption}

_BY_NAME: dict[tuple[str, str, bool], Any] = {
    ("table", "str", True): TableArgument,
    ("table", "str | None", False): AnyTableArgument,
    ("plan", "str", True): PlanArgument,
    ("thaw_id", "str", True): ThawArgument,
    ("who", "str", True): PersonOption,
    ("why", "str", True): ReasonOption,
    ("now", "datetime | None", False): NowOption,
    ("older_than", "datetime | None", False): OlderThanOption,
    ("as_of", "datetime | None", False): AsOfOption,
    ("dry_run", "bool", False): DryRunOption,
    ("files", "bool", False): FilesOption,
}
"""What a verb's argument is if it says no more than its type: by its name, its type, and whether it is required."""


def command(
    app: typer.Typer,
    doing: str,
    title: str = "",
    *,
    name: str | None = None,
    confirm: str | None = None,
    plots: bool = False,
) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Register a verb: a function of an open Lifecycle and the command's arguments, whose docstring is the help.
    Adds --config and --json; arguments that several commands share need only their type (`_BY_NAME`).

    A verb returns its result, shown as two columns below `title`. One with a display of its own yields the result (or
    a `Result` with an exit code), and then prints: with --json it is not resumed. `doing` is shown meanwhile. Both
    texts may name arguments. `confirm` adds --yes, and names the argument of `TABLE_OF` that says whose files or
    history are removed: if a delay is zero, a person confirms it first. `plots` adds --plot, a file for the picture of
    the `Result`.
    """

    def register(verb: Callable[..., object]) -> Callable[..., None]:
        def run(config: Path | None = None, json: bool = False, yes: bool = False, **arguments: object) -> None:
            activity, plot = doing.format_map(arguments), arguments.pop("plot", None) if plots else None
            with opened(config, activity) as lifecycle:
                if confirm is not None and not yes and not arguments.get("dry_run"):
                    table = TABLE_OF[confirm](lifecycle, str(arguments[confirm]))
                    _confirm(lifecycle, table, json=json)
                # Not printed under the spinner, which takes over the standard output.
                with spinner(activity):
                    found = verb(lifecycle, **arguments)
                    display = found if isinstance(found, Iterator) else None
                    value = found if display is None else next(display)
                    result = value if isinstance(value, Result) else Result(value)
                    if isinstance(plot, Path) and result.picture is not None:
                        plot.write_bytes(result.picture(plot.suffix[1:]))
                if json:
                    show_json(result.value)
                elif display is None:
                    print_fields(result.value, title=title.format_map(arguments))
                else:
                    next(display, None)
            if plot is not None and not json:
                say(f"Written to {plot}", dim=True)
            for warning in result.warnings:
                err.print(plain(warning), soft_wrap=True)
            if result.exit_code:
                raise typer.Exit(result.exit_code)

        own = list(inspect.signature(verb).parameters.values())[1:]
        only = {"plot": plots, "yes": confirm is not None}
        added = {key: kind for key, kind in _COMMON.items() if only.get(key, True)}
        # The annotation of the Lifecycle is not evaluated: to load it takes seconds.
        run.__annotations__ = {
            each.name: _BY_NAME.get((each.name, each.annotation, each.default is each.empty), each.annotation)
            for each in own
        }
        hints = get_type_hints(run, vars(inspect.getmodule(verb)), include_extras=True) | added
        defaults = {"plot": None, "yes": False, "config": None, "json": False}
        parameters = [each.replace(annotation=hints[each.name]) for each in own] + [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=defaults[key], annotation=kind)
            for key, kind in added.items()
        ]
        run.__annotations__ = hints
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        )
        run.__name__, run.__doc__ = verb.__name__, verb.__doc__
        app.command(name)(run)
        return run

    return register


def _confirm(lifecycle: Lifecycle, table: str, *, json: bool) -> None:
    """Confirm on the terminal before files or history of `table` are removed, if a delay of its policy is zero: there
    is no time to notice a mistake afterward.

    A program (`json`, no terminal) is not asked. Raises Refused without a terminal, and Abort on no.
    """
    zero = lifecycle.config.policy(table).zero_delays()
    if not zero or (json and not sys.stdin.isatty()):
        return
    why = "; ".join(f"{key} is 0: {what}" for key, what in zero.items())
    if not sys.stdin.isatty():
        raise Refused(
            f"Confirmation needs a terminal, and this cannot be undone: {why}",
            table=table,
            hint="set a delay in lifecycle.yaml, or confirm with --yes",
        )
    typer.confirm(f"{table}: {why}. This cannot be undone. Go on?", abort=True, err=True)
