"""Commands about what keeps snapshots and files: tags, holds, writers."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from artemis_lifecycle.cli.options import ConfigOption, JsonOption, TableArgument, instant
from artemis_lifecycle.cli.output import cell, opened, say, show, show_json, show_list, show_table

if TYPE_CHECKING:
    from artemis_lifecycle.lifecycle import Tagged

app = typer.Typer()


class HoldKind(StrEnum):
    LEGAL = "legal"
    LEASE = "lease"
    CONSUMER = "consumer"


@app.command()
def tag(
    table: TableArgument,
    name: str,
    snapshot_id: int,
    retain: Annotated[str, typer.Option(help="forever, or a duration such as 90d, from now.")] = "forever",
    reason: Annotated[str, typer.Option("--reason", "--why", help="Recorded with the tag.")] = "",
    owner: Annotated[str | None, typer.Option(help="Who is responsible for it; default: you.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Move a tag of that name from another snapshot.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Tag a snapshot, so that it is kept for that long. Records who, when and why: see `artemis tags`."""
    with opened(config, "tagging") as lifecycle:
        made = lifecycle.tag(table, name, snapshot_id, retain=retain, why=reason, who=owner, replace=replace)
        show_tag(made, json)


def show_tag(tag: Tagged, json: bool) -> None:
    """Show the tag and its record."""
    if json:
        show_json(tag)
        return
    said: dict[str, object] = {"table": tag.table, "snapshot": tag.snapshot_id, "who": tag.who, "when": cell(tag.at)}
    said |= {"why": tag.why or "", "ends": cell(tag.ends_at) or "never"}
    if tag.snapshot_id is None:
        said = {"table": tag.table, "removed by": tag.who, "when": cell(tag.at), "why": tag.why or ""}
    show(said, json=False, title=f"Tag {tag.name}")


@app.command()
def untag(
    table: TableArgument,
    name: str,
    reason: Annotated[str, typer.Option("--reason", "--why", help="Recorded with the removal.")] = "",
    owner: Annotated[str | None, typer.Option(help="Who is responsible for it; default: you.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a tag. From then on, its snapshot expires by the table's rule."""
    with opened(config, "removing the tag") as lifecycle:
        show_tag(lifecycle.untag(table, name, why=reason, who=owner), json)


@app.command()
def tags(
    table: TableArgument,
    removed: Annotated[bool, typer.Option("--removed", help="Include removed tags.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show the table's tags and branches: on which snapshot, by whom, when and why, for how long and until when."""
    with opened(config, "reading the refs") as lifecycle:
        found = lifecycle.tags(table, with_removed=removed)
    if json:
        show_json(found)
        return
    rows = [
        (
            f"{ref.type} {ref.name}",
            ref.snapshot_id,
            ref.who,
            ref.created_at,
            ref.why,
            ref.retention,
            ref.ends_at or "never",
        )
        for ref in found.refs
    ]
    columns = ("ref", "snapshot", "who", "when", "why", "retention", "ends")
    show_table(f"Refs of {table}", columns, rows)
    if removed:
        names = ("tag", "snapshot", "made by", "made", "removed by", "removed", "why")
        gone = [
            (was.name, was.snapshot_id, was.who, was.created_at, was.removed_by, was.removed_at, was.removed_why)
            for was in found.removed
        ]
        show_table(f"Former tags of {table}", names, gone)
    say(found.metadata_location, dim=True, unbroken=True)


@app.command()
def hold(
    table: TableArgument,
    reason: Annotated[str, typer.Option(prompt=True, help="Why nothing may be removed.")],
    owner: Annotated[str, typer.Option(prompt=True, help="Who is responsible for it.")],
    kind: Annotated[
        HoldKind,
        typer.Option(help="legal; lease: for a reader, for a time; consumer: its next snapshot and all later ones."),
    ] = HoldKind.LEGAL,
    snapshot_id: Annotated[list[int] | None, typer.Option(help="Only this snapshot; may be repeated.")] = None,
    until: Annotated[str | None, typer.Option(help="An instant; without it, until released.")] = None,
    ttl: Annotated[str | None, typer.Option(help="How long from now, such as 2h; a lease must have an end.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Hold a table, or some of its snapshots, against expiration and deletion."""
    with opened(config, "placing the hold") as lifecycle:
        placed = lifecycle.hold(
            table,
            owner,
            reason,
            snapshot_ids=tuple(snapshot_id or ()),
            until=instant(until),
            kind=kind.value,
            ttl=ttl,
        )
        show(placed, json=json, title=f"Hold on {table}")


@app.command()
def holds(
    table: TableArgument,
    ended: Annotated[bool, typer.Option("--ended", help="Include ended ones.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show the holds on a table: their kind, owner, reason, snapshots and end."""
    with opened(config, "reading the holds") as lifecycle:
        found = lifecycle.holds(table, ended=ended)
    show_list(
        found,
        json=json,
        title=f"Holds on {table}",
        columns=("hold", "kind", "owner", "why", "on", "until", *(["released", "by", "for"] if ended else [])),
        row=lambda held: (
            held.hold_id,
            held.kind,
            held.owner,
            held.reason,
            held.snapshot_ids or "the whole table",
            held.until or "released",
            *([held.released_at, held.released_by, held.released_why] if ended else []),
        ),
    )


@app.command()
def renew(
    hold_id: str,
    ttl: Annotated[str, typer.Option(help="How long from now, such as 2h.")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Extend a reader's lease."""
    with opened(config, "renewing") as lifecycle:
        show(lifecycle.renew(hold_id, ttl), json=json, title=f"Hold {hold_id}")


@app.command()
def advance(
    hold_id: str,
    snapshot_id: Annotated[int, typer.Argument(help="The snapshot that the consumer reads next.")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Move a consumer's position: what it has read may expire."""
    with opened(config, "advancing") as lifecycle:
        show(lifecycle.advance(hold_id, snapshot_id), json=json, title=f"Hold {hold_id}")


@app.command()
def release(
    hold_id: str,
    who: Annotated[str | None, typer.Option(help="Default: the account.")] = None,
    why: Annotated[str | None, typer.Option(help="Recorded.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Release a hold. Records who, when and why."""
    with opened(config, "releasing") as lifecycle:
        show(lifecycle.release(hold_id, who=who, why=why), json=json, title=f"Hold {hold_id}")


@app.command()
def writers(
    table: Annotated[str | None, typer.Argument(help="namespace.table; default: all tables", metavar="TABLE")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show the active writers, by their heartbeats. No orphan scan touches their files."""
    from artemis_lifecycle.operations.heartbeats import SHOWN

    with opened(config, "reading heartbeats") as lifecycle:
        found = lifecycle.writers(table)
    show_list(
        found,
        json=json,
        title="Active writers",
        columns=("table", *SHOWN),
        row=lambda beat: (beat.table, *beat.shown),
    )
