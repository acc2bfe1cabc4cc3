"""Commands of the cold tier: restores, costs, the deep archive and its thaws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from artemis_lifecycle.cli.options import (
    AsOfOption,
    ConfigOption,
    DryRunOption,
    JsonOption,
    NowOption,
    PersonOption,
    PlotOption,
    ReasonOption,
    TableArgument,
    ThawArgument,
    instant,
    require_picture,
)
from artemis_lifecycle.cli.output import cell, opened, say, show, show_json, show_list, show_rows, show_table

if TYPE_CHECKING:
    from artemis_lifecycle.maintenance.costs import TierCost
    from artemis_lifecycle.operations.deep_archive import ThawRecord

app = typer.Typer()


@app.command()
def restore(
    table: TableArgument,
    branch: Annotated[str, typer.Option(help="A new branch of the live table for its rows.")],
    snapshot_id: Annotated[int | None, typer.Argument(help="An expired snapshot.", metavar="[SNAPSHOT]")] = None,
    as_of: AsOfOption = None,
    why: Annotated[str, typer.Option("--reason", "--why", help="Recorded with the restore.")] = "",
    ticket: Annotated[str | None, typer.Option(help="Stored in the snapshot's summary.")] = None,
    owner: Annotated[str | None, typer.Option(help="Who requests it; default: you.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Restore an expired snapshot from the cold tier, as a new snapshot on a branch of the live table."""
    with opened(config, f"restoring {table}") as lifecycle:
        done = lifecycle.restore(table, snapshot_id, branch, as_of=instant(as_of), why=why, who=owner, ticket=ticket)
        show(done, json=json, title=f"{table}: snapshot {done.source_snapshot_id} on branch {branch}")


@app.command()
def restores(table: TableArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show restores from the cold tier, newest first, including unfinished ones."""
    with opened(config, "reading the restores") as lifecycle:
        found = lifecycle.restores(table)
    show_list(
        found,
        json=json,
        title=f"Restores of {table}",
        columns=("restore", "snapshot", "branch", "new snapshot", "who", "why", "begun", "ended"),
        row=lambda record: (
            record.restore_id,
            record.source_snapshot_id,
            record.branch,
            record.snapshot_id,
            record.who,
            record.why,
            record.started_at,
            record.finished_at or (record.abandoned_at and f"abandoned {cell(record.abandoned_at)}"),
        ),
    )


@app.command()
def costs(
    table: TableArgument,
    plot: PlotOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show what a table holds in each tier and for each tag, and what that costs by the price table in
    lifecycle.yaml."""
    require_picture(plot)
    with opened(config, f"adding up {table}") as lifecycle:
        found = lifecycle.costs(table)
    if plot is not None:
        plot.write_bytes(found.plot(plot.suffix[1:]))
    if json:
        show_json({**asdict(found), "per_month": found.per_month})
        return

    def money(amount: float | None) -> str:
        return "" if amount is None else f"{amount:,.4f}"

    figures: list[tuple[str, Callable[[TierCost], object]]] = [
        ("class", lambda tier: tier.storage_class),
        ("snapshots", lambda tier: f"{tier.snapshots:,}"),
        ("files", lambda tier: f"{tier.files:,}"),
        ("bytes", lambda tier: decimal(tier.size_in_bytes)),
        ("requests", lambda tier: f"{tier.requests:,}"),
        (f"{found.currency} a month", lambda tier: money(tier.per_month)),
        (f"{found.currency} for requests", lambda tier: money(tier.requests_price)),
        (f"{found.currency} to read it all", lambda tier: money(tier.read_price)),
    ]
    rows = [(name, *map(figure, found.tiers)) for name, figure in figures]
    show_table(f"Costs of {table}", ("", *(tier.tier for tier in found.tiers)), rows)
    tags = [
        (tag.ref, tag.tier, tag.snapshot_id, f"{tag.files:,}", decimal(tag.size_in_bytes), money(tag.per_month))
        for tag in found.tags
    ]
    if tags:
        show_table("What only a tag holds", ("ref", "tier", "snapshot", "files", "bytes", "a month"), tags)
    if found.per_month is None:
        say("no price for every class: set them in lifecycle.yaml (prices)", dim=True)
    if plot is not None:
        say(f"Written to {plot}", dim=True)


@app.command(name="deep-archive")
def deep_archive(
    table: TableArgument,
    now: NowOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Move cold snapshots past their retention to the deep archive. Files that others read, or that a hold keeps,
    stay."""
    with opened(config, f"archiving {table}") as lifecycle:
        done = lifecycle.deep_archive(table, instant(now), dry_run=dry_run)
        show(done, json=json, title=f"Deep archive of {table}{' (dry run)' if dry_run else ''}")


@app.command(name="scrub-cold")
def scrub_cold(
    table: TableArgument,
    now: NowOption = None,
    limit: Annotated[int | None, typer.Option(help="Read about this many files; default: all that are due.")] = None,
    losses: Annotated[bool, typer.Option("--losses", help="List the files that are still lost; read nothing.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Read the due cold files and compare checksums. Copies lost files again while the live table has them."""
    with opened(config, f"reading the cold files of {table}") as lifecycle:
        if losses:
            show_list(
                lifecycle.cold_losses(table),
                json=json,
                title=f"Lost cold files of {table}",
                columns=("path", "copy of", "reason", "found", "checked"),
                row=lambda loss: (loss.path, loss.source, loss.reason, loss.found_at, loss.checked_at),
            )
            return
        done = lifecycle.scrub_cold(table, instant(now), limit=limit)
    if json:
        show_json(done)
    else:
        show({**asdict(done), "problems": len(done.problems)}, json=False, title=f"Cold files of {table}")
        rows = [(each.path, "repaired" if each.repaired else "lost", each.reason) for each in done.problems]
        if rows:
            show_table("Problems", ("path", "outcome", "reason"), rows)
    if done.open_losses:
        raise typer.Exit(1)


@app.command(name="renew-identities")
def renew_identities(
    table: TableArgument,
    who: PersonOption,
    why: ReasonOption,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Compare archived files with the live store by content, after the whole store was copied or re-encrypted."""
    with opened(config, f"comparing the files of {table}") as lifecycle:
        done = lifecycle.renew_identities(table, who=who, why=why)
        show(done, json=json, title=f"Identities of {table}")


@app.command()
def thaw(
    table: TableArgument,
    case: Annotated[str, typer.Option(prompt=True, help="The case for which it is needed.")],
    requester: Annotated[str, typer.Option(prompt=True, help="Who requests it.")],
    reason: Annotated[str, typer.Option("--reason", "--why", prompt=True, help="Recorded with the thaw.")],
    snapshot_id: Annotated[list[int] | None, typer.Option(help="An archived snapshot; may be repeated.")] = None,
    as_of: AsOfOption = None,
    tag: str | None = None,
    days: Annotated[int | None, typer.Option(help="How long it stays readable; default: deep_archive.days.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Request that archived snapshots be readable. Nothing is thawed before a second person approves it."""
    with opened(config, f"asking for a thaw of {table}") as lifecycle:
        asked = lifecycle.request_thaw(
            table,
            tuple(snapshot_id or ()),
            case_id=case,
            requester=requester,
            reason=reason,
            as_of=instant(as_of),
            tag=tag,
            days=days,
        )
    _show_thaw(asked, json)


@app.command(name="approve-thaw")
def approve_thaw(
    thaw_id: ThawArgument,
    who: Annotated[str, typer.Option(prompt=True, help="You; not the requester.")],
    why: ReasonOption,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Approve a thaw as the second person, and request its files from the store."""
    with opened(config, "approving the thaw") as lifecycle:
        done = lifecycle.approve_thaw(thaw_id, who, why)
    _show_thaw(done, json)


@app.command(name="refuse-thaw")
def refuse_thaw(
    thaw_id: ThawArgument,
    who: PersonOption,
    why: ReasonOption,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """End a thaw that is unwanted or no longer needed."""
    with opened(config, "ending the thaw") as lifecycle:
        done = lifecycle.refuse_thaw(thaw_id, who, why)
    _show_thaw(done, json)


@app.command()
def thaws(
    table: Annotated[str | None, typer.Argument(help="namespace.table; default: every table.", metavar="TABLE")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Check the state of each, and record it.")] = False,
    ended: Annotated[bool, typer.Option("--ended", help="Include ended ones.")] = False,
    files: Annotated[str | None, typer.Option("--files", help="Show the files of this thaw instead.")] = None,
    limit: int = 20,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show thaws: case, requester, approver, state, and until when their files are readable."""
    with opened(config, "reading the thaws") as lifecycle:
        if files is not None:
            show_rows(lifecycle.thaw_files(files), json=json, limit=limit, title=f"Files of {files}")
            return
        if follow:
            for due in lifecycle.thaws(table):
                lifecycle.follow_thaw(due.thaw_id)
        found = lifecycle.thaws(table, ended=ended)
    if json:
        show_json([{"state": record.state, **asdict(record)} for record in found])
        return
    columns = ("thaw", "case", "requester", "approved by", "files", "state", "readable until", "ended")
    rows = [
        (
            record.thaw_id,
            *([] if table else [record.table]),
            record.case_id,
            record.requester,
            record.approved_by,
            record.files,
            record.state.value,
            record.readable_until,
            record.ended_why,
        )
        for record in found
    ]
    whole = columns if table else (columns[0], "table", *columns[1:])
    show_table(f"Thaws of {table}" if table else "Thaws", whole, rows)


def _show_thaw(record: ThawRecord, json: bool) -> None:
    said = {"state": record.state, **asdict(record)}
    if not json:
        # Unknown values are omitted; instants are written as in lists.
        known = {key: value for key, value in said.items() if value is not None}
        said = {key: cell(value) if isinstance(value, datetime) else value for key, value in known.items()}
    show(said, json=json, title=f"Thaw for case {record.case_id}")
