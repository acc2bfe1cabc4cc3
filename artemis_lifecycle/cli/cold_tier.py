"""Commands of the cold tier: restores, costs, the deep archive and its thaws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from artemis_lifecycle.cli.command import ASKS, WHO, WHY, command
from artemis_lifecycle.cli.output import Result, cell, grid, print_fields, say, show, show_list, show_rows, show_table

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle
    from artemis_lifecycle.operations.cold_tier import ThawRecord
    from artemis_lifecycle.upkeep.costs import TierCost

app = typer.Typer()


@command(app, "restoring {table}")
def restore(
    lifecycle: Lifecycle,
    table: str,
    branch: Annotated[str, typer.Option(help="A new branch of the live table for its rows.")],
    snapshot_id: Annotated[int | None, typer.Argument(help="An expired snapshot.", metavar="[SNAPSHOT]")] = None,
    as_of: datetime | None = None,
    why: Annotated[str, typer.Option(*WHY, help="Recorded with the restore.")] = "",
    ticket: Annotated[str | None, typer.Option(help="Stored in the snapshot's summary.")] = None,
    owner: Annotated[str | None, typer.Option(*WHO, help="Who requests it; default: you.")] = None,
) -> Iterator[object]:
    """Restore an expired snapshot from the cold tier, as a new snapshot on a branch of the live table."""
    done = lifecycle.restore(table, snapshot_id, branch, as_of=as_of, why=why, who=owner, ticket=ticket)
    return show(done, title=f"{table}: snapshot {done.source_snapshot_id} on branch {branch}")


@command(app, "reading the restores")
def restores(lifecycle: Lifecycle, table: str) -> Iterator[object]:
    """Show restores from the cold tier, newest first, including unfinished ones."""
    return show_list(
        lifecycle.restores(table),
        f"Restores of {table}",
        "restore=restore_id, snapshot=source_snapshot_id, branch, new snapshot=snapshot_id, who, why, "
        "begun=started_at, ended",
        ended=lambda each: each.finished_at or (each.abandoned_at and f"abandoned {cell(each.abandoned_at)}"),
    )


@command(app, "adding up {table}", plots=True)
def costs(lifecycle: Lifecycle, table: str) -> Iterator[object]:
    """Show what a table holds in each tier and for each tag, and what that costs by the price table in
    lifecycle.yaml."""
    found = lifecycle.costs(table)
    yield Result({**asdict(found), "per_month": found.per_month}, picture=found.plot)

    def money(amount: float | None) -> str:
        return "" if amount is None else "<0.0001" if 0 < amount < 0.0001 else f"{amount:,.4f}"

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
    show_table(f"Costs of {table}", ("figure", *(tier.tier for tier in found.tiers)), rows)
    if found.tags:
        columns = "ref, tier, snapshot=snapshot_id, files:,, bytes=size, a month=price"
        size, price = lambda each: decimal(each.size_in_bytes), lambda each: money(each.per_month)
        show_table("What only a tag holds", *grid(found.tags, columns, size=size, price=price))
    if found.per_month is None:
        say("no price for every class: set them in lifecycle.yaml (prices)", dim=True)


@command(app, "archiving {table}", name="deep-archive")
def deep_archive(
    lifecycle: Lifecycle, table: str, now: datetime | None = None, dry_run: bool = False
) -> Iterator[object]:
    """Move cold snapshots past their retention to the deep archive. Files that others read, or that a hold keeps,
    stay."""
    done = lifecycle.deep_archive(table, now, dry_run=dry_run)
    return show(done, title=f"Deep archive of {table}{' (dry run)' if dry_run else ''}")


@command(app, "reading the cold files of {table}", name="scrub-cold")
def scrub_cold(
    lifecycle: Lifecycle,
    table: str,
    now: datetime | None = None,
    limit: Annotated[int | None, typer.Option(help="Read about this many files; default: all that are due.")] = None,
    losses: Annotated[bool, typer.Option("--losses", help="List the files that are still lost; read nothing.")] = False,
) -> Iterator[object]:
    """Read the due cold files and compare checksums. Copies lost files again while the live table has them."""
    if losses:
        yield from show_list(
            lifecycle.cold_losses(table),
            f"Lost cold files of {table}",
            "path, copy of=source, reason, found=found_at, checked=checked_at",
        )
        return
    done = lifecycle.scrub_cold(table, now, limit=limit)
    yield Result(done, exit_code=1 if done.open_losses else 0)
    print_fields({**asdict(done), "problems": len(done.problems)}, title=f"Cold files of {table}")
    if done.problems:
        found = grid(
            done.problems, "path, outcome, reason", outcome=lambda each: "repaired" if each.repaired else "lost"
        )
        show_table("Problems", *found)


@command(app, "comparing the files of {table}", "Identities of {table}", name="renew-identities")
def renew_identities(lifecycle: Lifecycle, table: str, who: str, why: str) -> object:
    """Compare archived files with the live store by content, after the whole store was copied or re-encrypted."""
    return lifecycle.renew_identities(table, who=who, why=why)


@command(app, "publishing the archive of {table}", "Archive of {table}", name="recover-archive")
def recover_archive(lifecycle: Lifecycle, table: str, who: str, why: str) -> object:
    """Publish a table's newest archive again, after the cold catalog was put back to an earlier state."""
    return lifecycle.recover_archive(table, who=who, why=why)


@command(app, "asking for a thaw of {table}")
def thaw(
    lifecycle: Lifecycle,
    table: str,
    case: Annotated[str, typer.Option(prompt=ASKS, help="The case for which it is needed.")],
    requester: Annotated[str, typer.Option("--requester", *WHO, prompt=ASKS, help="Who requests it.")],
    reason: Annotated[str, typer.Option(*WHY, prompt=ASKS, help="Recorded with the thaw.")],
    snapshot_id: Annotated[list[int] | None, typer.Option(help="An archived snapshot; may be repeated.")] = None,
    as_of: datetime | None = None,
    tag: str | None = None,
    days: Annotated[int | None, typer.Option(help="How long it stays readable; default: deep_archive.days.")] = None,
) -> Iterator[object]:
    """Request that archived snapshots be readable. Nothing is thawed before a second person approves it."""
    asked = lifecycle.request_thaw(
        table,
        tuple(snapshot_id or ()),
        case_id=case,
        requester=requester,
        reason=reason,
        as_of=as_of,
        tag=tag,
        days=days,
    )
    return _show_thaw(asked)


@command(app, "approving the thaw", name="approve-thaw")
def approve_thaw(
    lifecycle: Lifecycle,
    thaw_id: str,
    who: Annotated[str, typer.Option(*WHO, prompt=ASKS, help="You; not the requester.")],
    why: str,
) -> Iterator[object]:
    """Approve a thaw as the second person, and request its files from the store."""
    return _show_thaw(lifecycle.approve_thaw(thaw_id, who, why))


@command(app, "ending the thaw", name="refuse-thaw")
def refuse_thaw(lifecycle: Lifecycle, thaw_id: str, who: str, why: str) -> Iterator[object]:
    """End a thaw that is unwanted or no longer needed."""
    return _show_thaw(lifecycle.refuse_thaw(thaw_id, who, why))


@command(app, "reading the thaws")
def thaws(
    lifecycle: Lifecycle,
    table: Annotated[str | None, typer.Argument(help="namespace.table; default: every table.", metavar="TABLE")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Check the state of each, and record it.")] = False,
    ended: Annotated[bool, typer.Option("--ended", help="Include ended ones.")] = False,
    files: Annotated[str | None, typer.Option("--files", help="Show the files of this thaw instead.")] = None,
    limit: int = 20,
) -> Iterator[object]:
    """Show thaws: case, requester, approver, state, and until when their files are readable."""
    if files is not None:
        yield from show_rows(lifecycle.thaw_files(files), limit=limit, title=f"Files of {files}")
        return
    if follow:
        for due in lifecycle.thaws(table):
            lifecycle.follow_thaw(due.thaw_id)
    found = lifecycle.thaws(table, ended=ended)
    yield [{"state": record.state, **asdict(record)} for record in found]
    columns = (
        f"thaw=thaw_id, {'' if table else 'table, '}case=case_id, requester, approved by=approved_by, files, "
        "state=state.value, readable until=readable_until, ended=ended_why"
    )
    show_table(f"Thaws of {table}" if table else "Thaws", *grid(found, columns))


def _show_thaw(record: ThawRecord) -> Iterator[object]:
    said = {"state": record.state, **asdict(record)}
    yield said
    # Unknown values are omitted; instants are written as in lists.
    known = {key: value for key, value in said.items() if value is not None}
    said = {key: cell(value) if isinstance(value, datetime) else value for key, value in known.items()}
    print_fields(said, title=f"Thaw for case {record.case_id}")
