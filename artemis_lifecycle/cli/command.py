"""`@command`: opens the Lifecycle, calls a verb, and prints its result once, for a terminal or as JSON."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from click import STRING, get_current_context

from artemis_lifecycle.cli.output import Result, err, opened, plain, print_fields, say, show_json, spinner
from artemis_lifecycle.config.durations import parse_duration
from artemis_lifecycle.errors import BadInput, NaiveDatetime, NoSuchTable, Refused

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle


# --- options ----------------------------------------------------------------------------------------------------------
# Arguments and options that several commands share, and their parsing.


def instant(text: str | None) -> datetime | None:
    """Parse an instant: in ISO 8601 with its time zone; a date, where its day begins in UTC; `now`, `today`,
    `yesterday`; or a duration, so long ago. Raises BadInput if it is invalid, NaiveDatetime if it has no time zone."""
    return _instant(text, -1)


def instant_ahead(text: str | None) -> datetime | None:
    """Parse an instant as `instant` does; a duration is so long from now."""
    return _instant(text, 1)


def _instant(text: str | None, direction: int) -> datetime | None:
    if text is None:
        return None
    now = datetime.now(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if (named := {"now": now, "today": today, "yesterday": today - timedelta(days=1)}.get(text)) is not None:
        return named
    try:
        return now + direction * parse_duration(text)
    except (ValueError, OverflowError):
        pass
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        hint = "use a form such as 2026-01-31T00:00:00Z, 2026-01-31, yesterday or 7d"
        raise BadInput(f"{text!r} is not an instant", hint=hint) from error
    if _DATE.fullmatch(text):
        return parsed.replace(tzinfo=UTC)
    if parsed.tzinfo is None:
        raise NaiveDatetime(f"{text!r} has no time zone", hint=f"append Z or an offset: {text}Z")
    return parsed


_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def instant_option(*names: str, help: str, callback: Callable[[str | None], datetime | None] = instant) -> Any:
    """Return an option that is an instant. Not a `parser`: its errors would be Typer's, without --json."""
    return typer.Option(*names, click_type=STRING, callback=callback, help=help)


def picture(plot: Path | None) -> Path | None:
    """Return the path of a picture. Raises BadInput for another kind of file."""
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise BadInput(f"{plot} is not a .png or .svg file", hint="use a picture file")
    return plot


INSTANT = "2026-01-31T00:00:00Z, a date, yesterday, or so long ago: 7d."
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="lifecycle.yaml; default $ARTEMIS_CONFIG, then ./lifecycle.yaml.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
TableArgument = Annotated[str, typer.Argument(help="namespace.table", metavar="TABLE")]
PlanArgument = Annotated[str, typer.Argument(help="The id from `artemis plan`.", metavar="PLAN")]
ThawArgument = Annotated[str, typer.Argument(help="The id from `artemis thaw`.", metavar="THAW")]
NowOption = Annotated[
    datetime | None, instant_option("--now", help="Decide as of this instant: 2026-01-31T00:00:00Z, 2026-01-31, 7d.")
]
OlderThanOption = Annotated[datetime | None, instant_option("--older-than", help=INSTANT)]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Report what would be done; change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask if a window, grace or min_age is zero.")]
FilesOption = Annotated[bool, typer.Option("--files", help="Also list the files.")]
AsOfOption = Annotated[datetime | None, instant_option("--as-of", help=INSTANT)]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", callback=picture, help="Write a picture to this file (.png or .svg).")
]
WHO, WHY = ("--who", "--owner"), ("--why", "--reason")
ASKS = sys.stdin is not None and sys.stdin.isatty()
"""True if a missing option is prompted for. A program gets an error that names it."""
_PERSON, _REASON = "Who decides this: you.", "Recorded with the decision."
PersonOption = Annotated[str, typer.Option(*WHO, prompt=ASKS, help=_PERSON)]
ReasonOption = Annotated[str, typer.Option(*WHY, prompt=ASKS, help=_REASON)]
RetainLastOption = Annotated[int | None, typer.Option(help="Keep at least this many snapshots of each branch.")]
LimitOption = Annotated[int, typer.Option(help="Show at most so many rows.")]
AnyTableArgument = Annotated[str | None, typer.Argument(help="namespace.table; default: all tables", metavar="TABLE")]
DroppedArgument = Annotated[str, typer.Argument(help="namespace.table, or its uuid", metavar="TABLE")]
SnapshotArgument = Annotated[int, typer.Argument(help="A snapshot's id.", metavar="SNAPSHOT")]
ScanArgument = Annotated[str, typer.Argument(help="The id from `artemis scan-orphans`.", metavar="SCAN")]
HoldArgument = Annotated[str, typer.Argument(help="The id from `artemis hold`.", metavar="HOLD")]
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
    ("scan", "str", True): ScanArgument,
    ("thaw_id", "str", True): ThawArgument,
    ("hold_id", "str", True): HoldArgument,
    ("snapshot_id", "int", True): SnapshotArgument,
    ("snapshot_id", "int | None", False): Annotated[int | None, typer.Option(help="This snapshot.")],
    ("tag", "str | None", False): Annotated[str | None, typer.Option(help="The snapshot of this tag.")],
    ("name", "str", True): Annotated[str, typer.Argument(help="The tag's name.", metavar="NAME")],
    ("retain_last", "int | None", False): RetainLastOption,
    ("limit", "int", False): LimitOption,
    ("who", "str", True): PersonOption,
    ("why", "str", True): ReasonOption,
    ("who", "str", False): Annotated[str, typer.Option(*WHO, help=_PERSON)],
    ("why", "str", False): Annotated[str, typer.Option(*WHY, help=_REASON)],
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
            plot = arguments.pop("plot", None) if plots else None
            activity = doing.format_map(arguments)
            with opened(config or chosen_config(), activity) as lifecycle, _suggestions(lifecycle):
                arguments |= _in_full(lifecycle, arguments)
                if confirm is not None and not yes and not arguments.get("dry_run"):
                    _confirm(lifecycle, TABLE_OF[confirm](lifecycle, str(arguments[confirm])), json=json)
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
        app.command(name, epilog=_example(app.info.name, name or verb.__name__, own))(run)
        return run

    return register


# --- names ------------------------------------------------------------------------------------------------------------
# What a person may write in place of a full name: the beginning of an id, or a table with its catalog in front.

_IDS = {
    "plan": ("plans.plan_id", "scans.scan_id"),
    "before": ("plans.plan_id", "live_sets.live_set_id"),
    "after": ("plans.plan_id", "live_sets.live_set_id"),
    "scan": ("scans.scan_id",),
    "hold_id": ("holds.hold_id",),
    "thaw_id": ("thaws.thaw_id",),
    "live_set": ("live_sets.live_set_id",),
}
"""The columns in which the id of each argument stands."""


def chosen_config() -> Path | None:
    """Return the --config before the command, if there is one."""
    found: Path | None = get_current_context().find_root().params.get("config")
    return found


def _in_full(lifecycle: Lifecycle, arguments: dict[str, object]) -> dict[str, object]:
    """Return the arguments that stand for a longer text. Raises BadInput for what several ids begin with."""
    found: dict[str, object] = {}
    for name, given in arguments.items():
        if isinstance(given, str) and name in _IDS:
            found[name] = lifecycle.operations.full_id(given, _IDS[name])
        elif isinstance(given, str) and name == "table":
            found[name] = _without_catalog(lifecycle, given)
    return found


def _without_catalog(lifecycle: Lifecycle, given: str) -> str:
    catalog, _, rest = given.partition(".")
    prefixes = {each.name: lifecycle.config.catalogs.prefix(each) for each in lifecycle.config.catalogs.iceberg}
    if catalog not in prefixes or "." not in rest:
        return given
    tables, known = lifecycle.answering_tables()[0], lifecycle.operations.known_tables
    key = prefixes[catalog] + rest
    # A namespace may have, or may have had, the catalog's name.
    names = [*tables, *(each.table for name in prefixes for each in known.of_catalog(name))]
    return key if key in tables and not any(each.startswith(f"{catalog}.") for each in names) else given


@contextmanager
def _suggestions(lifecycle: Lifecycle) -> Iterator[None]:
    """An error about a table that is not there names those that may be meant."""
    try:
        yield
    except NoSuchTable as error:
        from artemis_lifecycle.doctor.services import near_tables

        names = [each.name for each in lifecycle.config.catalogs.iceberg]
        near = near_tables(error.table, lifecycle.answering_tables()[0], names) if error.table else []
        if not near:
            raise
        hint = f"did you mean {' or '.join(near)}? artemis tables lists them"
        raise NoSuchTable(error.what, table=error.table, untouched=error.untouched, hint=hint) from error


_EXAMPLES = {
    "table": "db.orders",
    "plan": "63bc91",
    "scan": "7f02aa",
    "thaw_id": "0c41d7",
    "hold_id": "9be2f0",
    "live_set": "5d13c8",
    "before": "63bc91",
    "after": "b5207e",
    "snapshot_id": "4358109269873137077",
    "catalog": "live",
    "name": "month-end",
    "path": "s3://lake/db/orders/data/00000-1.parquet",
    "at": "2026-01-31",
    "predicate": "\"region = 'eu'\"",
    "sql": "\"SELECT count(*) FROM db.orders FOR SYSTEM_TIME AS OF '2026-01-31T00:00:00Z'\"",
    "who": "--who ana",
    "owner": "--who ana",
    "requester": "--who ana",
    "why": '--why "ticket 4711"',
    "reason": '--why "ticket 4711"',
    "case": "--case 4711",
    "since": "--since 7d",
    "branch": "--branch back",
    "ttl": "--ttl 2h",
    "to": "--to 2026-01-31",
    "as_of": "--as-of 2026-01-31",
}


def _example(group: object, name: str, parameters: Iterable[inspect.Parameter]) -> str:
    """Return a command line with what the verb requires: it names a snapshot, or an instant."""
    words = ["artemis", group if isinstance(group, str) else "", name.replace("_", "-")]
    words += [_EXAMPLES[each.name] for each in parameters if each.default is each.empty or each.name == "as_of"]
    return f"Example: {' '.join(filter(None, words))}"


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
