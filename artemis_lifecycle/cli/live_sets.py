"""Commands for garbage collection over a whole catalog."""

from __future__ import annotations

from typing import Annotated

import typer

from artemis_lifecycle.cli.options import ConfigOption, JsonOption, NowOption, instant
from artemis_lifecycle.cli.output import opened, say, show, show_json, show_list, show_table
from artemis_lifecycle.errors import BadInput

app = typer.Typer()
sets = typer.Typer(help="Live-contents sets: what marks of whole catalogs found alive.", invoke_without_command=True)
app.add_typer(sets, name="live-sets")

SetArgument = Annotated[str, typer.Argument(help="The id from `artemis mark`.", metavar="SET")]


@app.command("mark")
def mark(
    catalog: Annotated[str, typer.Argument(help="The live catalog, or a Nessie catalog in catalogs.others.")],
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
    now: NowOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Record which versions of which contents the catalog's references keep alive. Changes nothing there."""
    if snapshots not in (None, "all", "referenced"):
        raise BadInput(f"{snapshots!r} is neither all nor referenced", hint="use --snapshots all, or leave it out")
    policies = None if policy is None else [_pair(each) for each in policy]
    with opened(config, f"marking {catalog}") as lifecycle:
        found = lifecycle.mark(catalog, policies, now=instant(now), snapshots=snapshots)  # type: ignore[arg-type]
    show(found, json=json, title=f"Live contents of {catalog}")


def _pair(text: str) -> tuple[str, str]:
    pattern, equals, cutoff = text.rpartition("=")
    if not equals or not pattern:
        raise BadInput(f"{text!r} is not PATTERN=CUTOFF", hint="write, for example, --policy 'main=30d'")
    return pattern, cutoff


@app.command("sweep")
def sweep(
    live_set: SetArgument,
    immediate: Annotated[
        bool, typer.Option("--immediate", help="Delete what is found at once; otherwise `artemis delete-orphans` does.")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="Sweep this many tables at a time.")] = 2,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Find the files that nothing live in a set reaches, table by table, and seal a scan of each."""
    with opened(config, f"sweeping {live_set}") as lifecycle:
        done = lifecycle.sweep(live_set, deferred=not immediate, threads=threads)
    if json:
        show_json(done)
    else:
        rows = [(t.table, t.scan_id, t.files, t.bytes, t.deleted, t.error or t.waits) for t in done.tables]
        show_table(f"Sweep of {live_set}", ("table", "scan", "files", "bytes", "deleted", "why not"), rows)
        for each in done.unseen:
            what = "no reference shows it" if each.location is None else f"{each.location} is no longer used"
            say(f"{each.table}: {what}; last seen {each.last_seen:%Y-%m-%d}, kept until {each.due_at:%Y-%m-%d}")
    if any(each.error is not None for each in done.tables):
        raise typer.Exit(4)


@sets.callback()
def all_sets(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the sets, newest first."""
    if context.invoked_subcommand is None:
        list_sets(config, json)


@sets.command("list")
def list_sets(config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the sets, newest first."""
    with opened(config, "reading the sets") as lifecycle:
        found = lifecycle.live_sets()
    show_list(
        found,
        json=json,
        title="Live-contents sets",
        columns=("set", "catalog", "state", "created", "references", "commits", "contents", "versions", "error"),
        row=lambda it: (
            *(it.live_set_id, it.catalog, it.state.value, it.created_at),
            *(it.references, it.commits, it.contents, it.versions, it.error),
        ),
    )


@sets.command("show")
def show_set(live_set: SetArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show one set: its references, its contents with their locations, and the scans of its sweep."""
    with opened(config, f"reading {live_set}") as lifecycle:
        found = lifecycle.live_set(live_set)
    if json:
        show_json(found)
        return
    show(found.live_set, json=False, title=f"Set {live_set}")
    show_table("References", ("name", "kind", "head"), [(it.name, it.kind, it.head) for it in found.references])
    contents = [(it.table, it.type, it.versions, it.locations, it.content_id) for it in found.contents]
    show_table("Contents", ("table", "type", "versions", "locations", "content"), contents)
    swept = [(it.table, it.scan_id, it.swept_at, it.error) for it in found.tables]
    show_table("Swept tables", ("table", "scan", "at", "error"), swept)


@sets.command("compare")
def compare_sets(
    before: SetArgument, after: SetArgument, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Show which versions and contents only one of two sets has."""
    with opened(config, "comparing the sets") as lifecycle:
        show(lifecycle.compare_live_sets(before, after), json=json, title=f"{before} and {after}")


@sets.command("delete")
def delete_set(live_set: SetArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Delete a set and its rows. Files are not touched."""
    with opened(config, f"deleting {live_set}") as lifecycle:
        lifecycle.delete_live_set(live_set)
    show({"deleted": live_set}, json=json, title="Live-contents sets")
