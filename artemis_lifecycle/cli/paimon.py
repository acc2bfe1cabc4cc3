"""`artemis paimon`: Paimon's own procedures, with their names and arguments."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from artemis_lifecycle.cli.command import command
from artemis_lifecycle.cli.output import show_list

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle

app = typer.Typer()
paimon = typer.Typer(name="paimon", no_args_is_help=True)
app.add_typer(paimon, help="Expire snapshots and tags of Paimon tables, remove orphans, roll back.")

PaimonTable = Annotated[str, typer.Argument(help="catalog:database.table", metavar="TABLE")]


@command(paimon, "expiring {table}", "Expiration of {table}", name="expire-snapshots")
def expire_snapshots(
    lifecycle: Lifecycle,
    table: PaimonTable,
    retain_max: Annotated[int | None, typer.Option(help="Keep at most this many snapshots.")] = None,
    retain_min: Annotated[int | None, typer.Option(help="Keep at least this many snapshots.")] = None,
    older_than: datetime | None = None,
    max_deletes: Annotated[int | None, typer.Option(help="Expire at most this many snapshots.")] = None,
    options: Annotated[
        str | None, typer.Option(help="Options of the table for this call, e.g. snapshot.expire.limit=1.")
    ] = None,
    now: datetime | None = None,
    dry_run: bool = False,
) -> object:
    """Expire snapshots by the table's options, and delete the files that only they reach."""
    return lifecycle.paimon(table).expire_snapshots(
        table,
        retain_max=retain_max,
        retain_min=retain_min,
        older_than=older_than,
        max_deletes=max_deletes,
        options=options,
        now=now,
        dry_run=dry_run,
    )


@command(paimon, "expiring tags of {table}", "Tags of {table}", name="expire-tags")
def expire_tags(
    lifecycle: Lifecycle, table: PaimonTable, older_than: datetime | None = None, dry_run: bool = False
) -> object:
    """Delete the tags whose retention is over, and the files that only they reach."""
    return lifecycle.paimon(table).expire_tags(table, older_than=older_than, dry_run=dry_run)


@command(paimon, "rolling back {table}", "Rollback of {table}", name="rollback-to")
def rollback_to(
    lifecycle: Lifecycle,
    table: PaimonTable,
    snapshot_id: Annotated[int | None, typer.Option(help="The snapshot that becomes the latest.")] = None,
    tag: Annotated[str | None, typer.Option(help="The tag whose snapshot becomes the latest.")] = None,
    dry_run: bool = False,
) -> object:
    """Make an earlier snapshot the latest again: later snapshots, changelogs and tags go."""
    return lifecycle.paimon(table).rollback_to(table, snapshot_id=snapshot_id, tag=tag, dry_run=dry_run)


@command(paimon, "removing orphans of {table}", name="remove-orphan-files")
def remove_orphan_files(
    lifecycle: Lifecycle,
    table: Annotated[
        str, typer.Argument(help="catalog:database.table, or catalog:database.* for all its tables", metavar="TABLE")
    ],
    older_than: datetime | None = None,
    dry_run: bool = False,
) -> Iterator[object]:
    """Delete the files that no snapshot, tag, branch or changelog reaches."""
    return show_list(
        lifecycle.paimon(table).remove_orphan_files(table, older_than=older_than, dry_run=dry_run),
        f"Orphans of {table}",
        "table, scan=scan_id, files=deleted_file_count, bytes=deleted_file_total_len_in_bytes",
    )
