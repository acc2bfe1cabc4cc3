"""Commands about what keeps snapshots and files: tags, holds, writers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from artemis_lifecycle.cli.command import ASKS, WHO, WHY, command, instant_ahead, instant_option
from artemis_lifecycle.cli.output import cell, grid, print_fields, say, show_list, show_table

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle, Tagged

app = typer.Typer()


class HoldKind(StrEnum):
    LEGAL = "legal"
    LEASE = "lease"
    CONSUMER = "consumer"


@command(app, "tagging")
def tag(
    lifecycle: Lifecycle,
    table: str,
    name: str,
    snapshot_id: int,
    retain: Annotated[str, typer.Option(help="forever, or a duration such as 90d, from now.")] = "forever",
    reason: Annotated[str, typer.Option(*WHY, help="Recorded with the tag.")] = "",
    owner: Annotated[str | None, typer.Option(*WHO, help="Who is responsible for it; default: you.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Move a tag of that name from another snapshot.")] = False,
) -> Iterator[object]:
    """Tag a snapshot, so that it is kept for that long. Records who, when and why: see `artemis tags`."""
    return show_tag(lifecycle.tag(table, name, snapshot_id, retain=retain, why=reason, who=owner, replace=replace))


def show_tag(tag: Tagged) -> Iterator[object]:
    """Show the tag and its record (see `command`)."""
    yield tag
    print_tag(tag)


def print_tag(tag: Tagged) -> None:
    """Print the tag and its record."""
    said: dict[str, object] = {"table": tag.table, "snapshot": tag.snapshot_id, "who": tag.who, "when": cell(tag.at)}
    said |= {"why": tag.why or "", "ends": cell(tag.ends_at) or "never"}
    if tag.snapshot_id is None:
        said = {"table": tag.table, "removed by": tag.who, "when": cell(tag.at), "why": tag.why or ""}
    print_fields(said, title=f"Tag {tag.name}")


@command(app, "removing the tag")
def untag(
    lifecycle: Lifecycle,
    table: str,
    name: str,
    reason: Annotated[str, typer.Option(*WHY, help="Recorded with the removal.")] = "",
    owner: Annotated[str | None, typer.Option(*WHO, help="Who is responsible for it; default: you.")] = None,
) -> Iterator[object]:
    """Remove a tag. From then on, its snapshot expires by the table's rule."""
    return show_tag(lifecycle.untag(table, name, why=reason, who=owner))


@command(app, "reading the refs")
def tags(
    lifecycle: Lifecycle,
    table: str,
    removed: Annotated[bool, typer.Option("--removed", help="Include removed tags.")] = False,
) -> Iterator[object]:
    """Show the table's tags and branches: on which snapshot, by whom, when and why, for how long and until when."""
    found = lifecycle.tags(table, with_removed=removed)
    yield found
    columns = "ref, snapshot=snapshot_id, who, when=created_at, why, retention, ends"
    ref, ends = lambda each: f"{each.type} {each.name}", lambda each: each.ends_at or "never"
    show_table(f"Refs of {table}", *grid(found.refs, columns, ref=ref, ends=ends))
    if removed:
        columns = "tag=name, snapshot=snapshot_id, made by=who, made=created_at, removed by=removed_by, "
        show_table(f"Former tags of {table}", *grid(found.removed, f"{columns}removed=removed_at, why=removed_why"))
    say(found.metadata_location, dim=True, unbroken=True)


@command(app, "placing the hold", "Hold on {table}")
def hold(
    lifecycle: Lifecycle,
    table: str,
    reason: Annotated[str, typer.Option(*WHY, prompt=ASKS, help="Why nothing may be removed.")],
    owner: Annotated[str, typer.Option(*WHO, prompt=ASKS, help="Who is responsible for it.")],
    kind: Annotated[
        HoldKind,
        typer.Option(help="legal; lease: for a reader, for a time; consumer: its next snapshot and all later ones."),
    ] = HoldKind.LEGAL,
    snapshot_id: Annotated[list[int] | None, typer.Option(help="Only this snapshot; may be repeated.")] = None,
    until: Annotated[
        datetime | None,
        instant_option(help="An instant, or so long from now: 7d; without it, until released.", callback=instant_ahead),
    ] = None,
    ttl: Annotated[str | None, typer.Option(help="How long from now, such as 2h; a lease must have an end.")] = None,
) -> object:
    """Hold a table, or some of its snapshots, against expiration and deletion."""
    return lifecycle.hold(
        table, owner, reason, snapshot_ids=tuple(snapshot_id or ()), until=until, kind=kind.value, ttl=ttl
    )


@command(app, "reading the holds")
def holds(
    lifecycle: Lifecycle,
    table: str,
    ended: Annotated[bool, typer.Option("--ended", help="Include ended ones.")] = False,
) -> Iterator[object]:
    """Show the holds on a table: their kind, owner, reason, snapshots and end."""
    return show_list(
        lifecycle.holds(table, ended=ended),
        f"Holds on {table}",
        "hold=hold_id, kind, owner, why=reason, on, until"
        + (", released=released_at, by=released_by, for=released_why" if ended else ""),
        on=lambda each: each.snapshot_ids or "the whole table",
        until=lambda each: each.until or "it is released",
    )


@command(app, "renewing", "Hold {hold_id}")
def renew(
    lifecycle: Lifecycle, hold_id: str, ttl: Annotated[str, typer.Option(help="How long from now, such as 2h.")]
) -> object:
    """Extend a reader's lease."""
    return lifecycle.renew(hold_id, ttl)


@command(app, "advancing", "Hold {hold_id}")
def advance(
    lifecycle: Lifecycle,
    hold_id: str,
    snapshot_id: Annotated[int, typer.Argument(help="The snapshot that the consumer reads next.")],
) -> object:
    """Move a consumer's position: what it has read may expire."""
    return lifecycle.advance(hold_id, snapshot_id)


@command(app, "releasing", "Hold {hold_id}")
def release(
    lifecycle: Lifecycle,
    hold_id: str,
    who: Annotated[str | None, typer.Option(*WHO, help="Default: the account.")] = None,
    why: Annotated[str | None, typer.Option(help="Recorded.")] = None,
) -> object:
    """Release a hold. Records who, when and why."""
    return lifecycle.release(hold_id, who=who, why=why)


@command(app, "reading heartbeats")
def writers(lifecycle: Lifecycle, table: str | None = None) -> Iterator[object]:
    """Show the active writers, by their heartbeats. No orphan scan touches their files."""
    from artemis_lifecycle.operations.holds import SHOWN

    found = lifecycle.writers(table)
    yield found
    show_table("Active writers", ("table", *SHOWN), [(beat.table, *beat.shown) for beat in found])
