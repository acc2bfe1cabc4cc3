"""`artemis`: the steps of the walk for a terminal. Belongs here: arguments, output, exit codes. Does not belong here:
anything that callers of `Lifecycle` also need.

Exit codes: 0 done, 2 bad input, 3 a guard refused, 4 unreadable metadata or a failing store, 5 the environment, 6 busy
or unknown: try again; 1 anything else.
"""

from __future__ import annotations

import gc
import sys
import traceback
from importlib.metadata import version
from threading import Timer
from typing import Annotated

import typer

from artemis_lifecycle.cli import (
    cold_tier,
    expiration,
    gate,
    live_sets,
    operating,
    orphans,
    paimon,
    reading,
    tables,
    tags_and_holds,
)
from artemis_lifecycle.cli.command import ConfigOption
from artemis_lifecycle.cli.output import err, interrupted, plain, show_json
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.spark.session import Terminated, interruptible

app = typer.Typer(
    name="artemis",
    no_args_is_help=True,
    # Click suggests a command, too.
    suggest_commands=False,
    pretty_exceptions_enable=False,
)
# In the order of `artemis --help`.
for panel, commands in (
    ("Walk", (expiration.app, orphans.app)),
    ("Tables", (tables.app,)),
    ("Archive", (cold_tier.app,)),
    ("Questions", (reading.app,)),
    ("Audit", (reading.audit,)),
    ("Holds and tags", (tags_and_holds.app,)),
    ("Operation", (operating.app,)),
    ("Fleet", (tables.fleet_app,)),
    ("Gate", (gate.app,)),
    ("Formats and whole catalogs", (live_sets.app, paimon.app)),
):
    for each in commands:
        for registered in each.registered_commands:
            registered.rich_help_panel = panel
        for group in each.registered_groups:
            group.rich_help_panel = panel
        app.add_typer(each)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(version("artemis-lifecycle"))
        raise typer.Exit


@app.callback()
def _before(
    config: ConfigOption = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Manages the life of Apache Iceberg tables: what is kept, expired, moved to the cold tier and deleted."""


_SHORT_SECONDS = 5.0


def main() -> None:
    """Entry point of the `artemis` command."""
    # A short command keeps what it loads: to search that for cycles, again and again, took a fifth of its time.
    gc.disable()
    collector = Timer(_SHORT_SECONDS, gc.enable)
    collector.daemon = True
    collector.start()
    try:
        with interruptible():
            app()
    except SystemExit as end:
        # Typer ends the process itself, with "Aborted".
        error: BaseException | None = end
        while error is not None and not isinstance(error, KeyboardInterrupt):
            error = error.__cause__ or error.__context__
        if error is None:
            raise
        _say_what_was_interrupted()
        raise SystemExit(143 if isinstance(error, Terminated) else 130) from None
    except LifecycleError as error:
        if "--json" in sys.argv:
            show_json({"error": type(error).__name__, "message": str(error), "table": error.table, "path": error.path})
        else:
            err.print(f"[red]{type(error).__name__}[/red]: {plain(str(error))}", soft_wrap=True)
        raise SystemExit(error.exit_code) from None
    except Exception as error:
        # What a database says, with its statement and parameters, would fill a screen. SQLAlchemy is loaded late.
        said = getattr(error, "orig", None)
        if said is not None:
            first = str(said).partition("\n")[0]
            err.print(f"[red]{type(error).__name__}[/red]: {plain(first)}. Next: docs/roles.md", soft_wrap=True)
            raise SystemExit(1) from None
        # An unexpected error also quotes names and paths.
        for line in traceback.format_exc().splitlines():
            err.print(plain(line), soft_wrap=True)
        raise SystemExit(1) from None


def _say_what_was_interrupted() -> None:
    doing = interrupted[0] if interrupted else "nothing of a table"
    message = (
        f"Interrupted. Under way: {doing}. Safe: what was not finished counts as not done. A catalog moves in one "
        "statement, each finished batch is recorded, and no live file was touched. Next: run the same command again, "
        "which resumes; artemis plans TABLE shows how far it came."
    )
    if "--json" in sys.argv:
        show_json({"error": "Interrupted", "message": message, "table": None, "path": None})
    else:
        err.print(plain(message), soft_wrap=True)
