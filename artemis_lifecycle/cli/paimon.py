"""`artemis paimon`: Paimon's own procedures, with their names and arguments."""

from __future__ import annotations

from typing import Annotated

import typer

from artemis_lifecycle.cli.options import ConfigOption, DryRunOption, JsonOption, NowOption, OlderThanOption, instant
from artemis_lifecycle.cli.output import opened, show, show_list

app = typer.Typer()
paimon = typer.Typer(no_args_is_help=True)
app.add_typer(paimon, name="paimon", help="Expire snapshots and tags of Paimon tables, remove orphans, roll back.")

PaimonTable = Annotated[str, typer.Argument(help="catalog:database.table", metavar="TABLE")]


@paimon.command("expire-snapshots")
def expire_snapshots(
    table: PaimonTable,
    retain_max: Annotated[int | None, typer.Option(help="Keep at most this many snapshots.")] = None,
    retain_min: Annotated[int | None, typer.Option(help="Keep at least this many snapshots.")] = None,
    older_than: OlderThanOption = None,
    max_deletes: Annotated[int | None, typer.Option(help="Expire at most this many snapshots.")] = None,
    options: Annotated[
        str | None, typer.Option(help="Options of the table for this call, e.g. snapshot.expire.limit=1.")
    ] = None,
    now: NowOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Expire snapshots by the table's options, and delete the files that only they reach."""
    with opened(config, f"expiring {table}") as lifecycle:
        done = lifecycle.paimon(table).expire_snapshots(
            table,
            retain_max=retain_max,
            retain_min=retain_min,
            older_than=instant(older_than),
            max_deletes=max_deletes,
            options=options,
            now=instant(now),
            dry_run=dry_run,
        )
        show(done, json=json, title=f"Expiration of {table}")


@paimon.command("expire-tags")
def expire_tags(
    table: PaimonTable,
    older_than: OlderThanOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete the tags whose retention is over, and the files that only they reach."""
    with opened(config, f"expiring tags of {table}") as lifecycle:
        done = lifecycle.paimon(table).expire_tags(table, older_than=instant(older_than), dry_run=dry_run)
        show(done, json=json, title=f"Tags of {table}")


@paimon.command("rollback-to")
def rollback_to(
    table: PaimonTable,
    snapshot_id: Annotated[int | None, typer.Option(help="The snapshot that becomes the latest.")] = None,
    tag: Annotated[str | None, typer.Option(help="The tag whose snapshot becomes the latest.")] = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Make an earlier snapshot the latest again: later snapshots, changelogs and tags go."""
    with opened(config, f"rolling back {table}") as lifecycle:
        done = lifecycle.paimon(table).rollback_to(table, snapshot_id=snapshot_id, tag=tag, dry_run=dry_run)
        show(done, json=json, title=f"Rollback of {table}")


@paimon.command("remove-orphan-files")
def remove_orphan_files(
    table: Annotated[
        str, typer.Argument(help="catalog:database.table, or catalog:database.* for all its tables", metavar="TABLE")
    ],
    older_than: OlderThanOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete the files that no snapshot, tag, branch or changelog reaches."""
    with opened(config, f"removing orphans of {table}") as lifecycle:
        done = lifecycle.paimon(table).remove_orphan_files(table, older_than=instant(older_than), dry_run=dry_run)
        show_list(
            done,
            json=json,
            title=f"Orphans of {table}",
            columns=("table", "scan", "files", "bytes"),
            row=lambda each: (each.table, each.scan_id, each.deleted_file_count, each.deleted_file_total_len_in_bytes),
        )
