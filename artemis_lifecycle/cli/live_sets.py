"""Commands for garbage collection over a whole catalog."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from artemis_lifecycle.cli.command import ConfigOption, JsonOption, command
from artemis_lifecycle.cli.output import Result, grid, print_fields, say, show_list, show_table
from artemis_lifecycle.errors import BadInput

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle

app = typer.Typer()
sets = typer.Typer(
    name="live-sets", help="Live-contents sets: what marks of whole catalogs found alive.", invoke_without_command=True
)
app.add_typer(sets)

SetArgument = Annotated[str, typer.Argument(help="The id from `artemis mark`.", metavar="SET")]


@command(app, "marking {catalog}", "Live contents of {catalog}", name="mark")
def mark(
    lifecycle: Lifecycle,
    catalog: Annotated[str, typer.Argument(help="A live catalog, or a Nessie catalog in catalogs.others.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help="PATTERN=CUTOFF for references, in order: a number of commits, a duration, an instant, or none.",
        ),
    ] = None,
    snapshots: Annotated[
        str | None, typer.Option(help="all: every snapshot of a live version keeps its files; or referenced.")
    ] = None,
    now: datetime | None = None,
) -> object:
    """Record which versions of which contents the catalog's references keep alive. Changes nothing there."""
    if snapshots not in (None, "all", "referenced"):
        raise BadInput(f"{snapshots!r} is neither all nor referenced", hint="use --snapshots all, or leave it out")
    policies = None if policy is None else [_pair(each) for each in policy]
    return lifecycle.mark(catalog, policies, now=now, snapshots=snapshots)  # type: ignore[arg-type]


def _pair(text: str) -> tuple[str, str]:
    pattern, equals, cutoff = text.rpartition("=")
    if not equals or not pattern:
        raise BadInput(f"{text!r} is not PATTERN=CUTOFF", hint="write, for example, --policy 'main=30d'")
    return pattern, cutoff


@command(app, "sweeping {live_set}", name="sweep")
def sweep(
    lifecycle: Lifecycle,
    live_set: SetArgument,
    immediate: Annotated[
        bool, typer.Option("--immediate", help="Delete what is found at once; otherwise `artemis delete-orphans` does.")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="Sweep this many tables at a time.")] = 2,
) -> Iterator[object]:
    """Find the files that nothing live in a set reaches, table by table, and seal a scan of each."""
    done = lifecycle.sweep(live_set, deferred=not immediate, threads=threads)
    yield Result(done, exit_code=4 if any(each.error is not None for each in done.tables) else 0)
    columns = "table, scan=scan_id, files, bytes, deleted, why not=why"
    show_table(f"Sweep of {live_set}", *grid(done.tables, columns, why=lambda each: each.error or each.waits))
    for each in done.unseen:
        what = "no reference shows it" if each.location is None else f"{each.location} is no longer used"
        say(f"{each.table}: {what}; last seen {each.last_seen:%Y-%m-%d}, kept until {each.due_at:%Y-%m-%d}")


@sets.callback()
def all_sets(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the sets, newest first."""
    if context.invoked_subcommand is None:
        list_sets(config=config, json=json)


@command(sets, "reading the sets", name="list")
def list_sets(lifecycle: Lifecycle) -> Iterator[object]:
    """List the sets, newest first."""
    return show_list(
        lifecycle.live_sets(),
        "Live-contents sets",
        "set=live_set_id, catalog, state=state.value, created=created_at, references, commits, contents, versions, "
        "error",
    )


@command(sets, "reading {live_set}", name="show")
def show_set(lifecycle: Lifecycle, live_set: SetArgument) -> Iterator[object]:
    """Show one set: its references, its contents with their locations, and the scans of its sweep."""
    found = lifecycle.live_set(live_set)
    yield found
    print_fields(found.live_set, title=f"Set {live_set}")
    show_table("References", *grid(found.references, "name, kind, head"))
    show_table("Contents", *grid(found.contents, "table, type, versions, locations, content=content_id"))
    show_table("Swept tables", *grid(found.tables, "table, scan=scan_id, at=swept_at, error"))


@command(sets, "comparing the sets", "{before} and {after}", name="compare")
def compare_sets(lifecycle: Lifecycle, before: SetArgument, after: SetArgument) -> object:
    """Show which versions and contents only one of two sets has."""
    return lifecycle.compare_live_sets(before, after)


@command(sets, "deleting {live_set}", "Live-contents sets", name="delete")
def delete_set(lifecycle: Lifecycle, live_set: SetArgument) -> object:
    """Delete a set and its rows. Files are not touched."""
    lifecycle.delete_live_set(live_set)
    return {"deleted": live_set}
