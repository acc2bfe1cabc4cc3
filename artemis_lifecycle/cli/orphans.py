"""Commands for orphan files, and for tables that were dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from artemis_lifecycle.cli.asking import agreed, table_of_scan
from artemis_lifecycle.cli.options import (
    ConfigOption,
    DryRunOption,
    FilesOption,
    JsonOption,
    NowOption,
    OlderThanOption,
    PersonOption,
    ReasonOption,
    TableArgument,
    YesOption,
    instant,
)
from artemis_lifecycle.cli.output import opened, show, show_list, show_rows

if TYPE_CHECKING:
    from artemis_lifecycle.orphans.external_listing import ParquetListing
    from artemis_lifecycle.orphans.inventory import Inventory

app = typer.Typer()


@app.command("list-objects")
def list_objects(
    table: TableArgument,
    location: Annotated[str | None, typer.Option(help="A folder inside the table's locations.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List the files below the table's locations, and seal the listing."""
    with opened(config, f"listing {table}") as lifecycle:
        show(lifecycle.list_objects(table, location), json=json, title=f"Listing of {table}")


@app.command("scan-orphans")
def scan_orphans(
    table: TableArgument,
    now: NowOption = None,
    older_than: OlderThanOption = None,
    location: str | None = None,
    inventory: Annotated[
        str | None, typer.Option(help="The manifest.json of an S3 Inventory, instead of a listing.", metavar="PATH")
    ] = None,
    listing: Annotated[
        str | None,
        typer.Option(
            help="A Parquet file, or a folder of them (path, last_modified, size_in_bytes), instead of a listing.",
            metavar="PATH",
        ),
    ] = None,
    listed_at: Annotated[
        str | None,
        typer.Option(help="When that listing was started (with its time zone), if earlier than its files."),
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="Also list the orphans.")] = False,
    limit: int = 50,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List the table's files, then read its metadata, and seal the orphans. Changes nothing."""
    if inventory is not None and listing is not None:
        raise typer.BadParameter("--inventory and --listing exclude each other: use one of them.")
    if listed_at is not None and listing is None:
        raise typer.BadParameter("--listed-at needs --listing.")
    with opened(config, f"scanning {table}") as lifecycle:
        given: Inventory | ParquetListing | None = None
        if inventory is not None:
            given = lifecycle.inventory(inventory)
        elif listing is not None:
            given = lifecycle.parquet_listing(listing)
        scan = lifecycle.scan_orphans(
            table,
            now=instant(now),
            older_than=instant(older_than),
            location=location,
            listing=given,
            listed_at=instant(listed_at),
        )
        if files:
            show_rows(scan.files().orderBy("path"), json=json, limit=limit, title=f"Orphans of scan {scan.scan_id}")
        else:
            show(scan, json=json, title=f"Orphan scan of {table}")


@app.command("scan-cold")
def scan_cold(
    table: TableArgument,
    files: FilesOption = False,
    limit: int = 50,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Find unreferenced files in the cold tier. Changes nothing, and no deletion uses the result."""
    with opened(config, f"scanning the cold tier of {table}") as lifecycle:
        scan = lifecycle.scan_cold(table)
        if files:
            show_rows(scan.files().orderBy("path"), json=json, limit=limit, title=f"Unknown in {scan.location}")
        else:
            show(scan, json=json, title=f"Cold tier of {table}")


@app.command("delete-orphans")
def delete_orphans(
    scan: Annotated[str, typer.Argument(help="The id from `artemis scan-orphans`.", metavar="SCAN")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete the orphans of a stored scan, and check each one again first."""
    first = agreed(table_of_scan(scan), yes=yes, json=json, dry_run=dry_run)
    with opened(config, "deleting orphans", first) as lifecycle:
        show(lifecycle.delete_orphans(scan, dry_run=dry_run), json=json, title=f"Deletion of scan {scan}")


@app.command("settle-metadata")
def settle_metadata(
    table: TableArgument,
    who: PersonOption,
    why: ReasonOption,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Confirm the catalog's pointer if newer metadata files of the table stop its orphan scans."""
    with opened(config, f"settling {table}") as lifecycle:
        settled = lifecycle.settle_metadata(table, who=who, why=why)
    title = f"Metadata files that do not belong to the history of {table}"
    show_list(settled, json=json, title=title, columns=("path",), row=lambda path: (path,))


@app.command()
def dropped(config: ConfigOption = None, json: JsonOption = False) -> None:
    """List tables that the catalog no longer has, until when their files are kept, and their state."""
    with opened(config, "checking for dropped tables") as lifecycle:
        found = lifecycle.dropped_tables()
    show_list(
        found,
        json=json,
        title="Dropped tables",
        columns=("table", "uuid", "state", "missed since", "kept until", "scan, or who keeps it and why"),
        row=lambda each: (
            each.table,
            each.table_uuid,
            each.state,
            each.missing_since,
            each.due_at,
            f"{each.kept_by}: {each.kept_why}" if each.kept_by else each.scan_id or "",
        ),
    )


@app.command("scan-dropped")
def scan_dropped(
    table: Annotated[str, typer.Argument(help="namespace.table, or its uuid", metavar="TABLE")],
    files: FilesOption = False,
    limit: int = 50,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List what a dropped table has left, except what others read, and seal it. Changes nothing."""
    with opened(config, f"scanning what is left of {table}") as lifecycle:
        scan = lifecycle.scan_dropped(table)
        if files:
            show_rows(scan.files().orderBy("path"), json=json, limit=limit, title=f"Left: scan {scan.scan_id}")
        else:
            show(scan, json=json, title=f"What is left of {table}")


@app.command("delete-dropped")
def delete_dropped(
    scan: Annotated[str, typer.Argument(help="The id from `artemis scan-dropped`.", metavar="SCAN")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete the files of a dropped table, once its retention is over and a person has approved the scan."""
    first = agreed(table_of_scan(scan), yes=yes, json=json, dry_run=dry_run)
    with opened(config, "deleting what a dropped table has left", first) as lifecycle:
        show(lifecycle.delete_dropped(scan, dry_run=dry_run), json=json, title=f"Deletion of scan {scan}")


@app.command()
def undrop(
    table: Annotated[str, typer.Argument(help="namespace.table, or its uuid", metavar="TABLE")],
    uuid: Annotated[str | None, typer.Option(help="Which one, if several tables of that name were dropped.")] = None,
    as_name: Annotated[str | None, typer.Option("--as", help="Another name for it.", metavar="NAME")] = None,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Also if files of its current state are missing (--who, --why).")
    ] = False,
    who: str = "",
    why: str = "",
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Register a dropped table again, once every file of its current state is there."""
    with opened(config, f"registering {table} again") as lifecycle:
        found = lifecycle.undrop(table, uuid, as_name, incomplete=incomplete, who=who or None, why=why)
    show(found, json=json, title=f"Table {table}")


@app.command("keep-dropped")
def keep_dropped(
    table: Annotated[str, typer.Argument(help="namespace.table, or its uuid", metavar="TABLE")],
    who: str = "",
    why: str = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let its retention continue.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Decide to keep the files of a dropped table (with --who and --why); with --undo, end that."""
    with opened(config, f"deciding on {table}") as lifecycle:
        found = (
            lifecycle.unkeep_dropped(table, who=who or None)
            if undo
            else lifecycle.keep_dropped(table, who=who, why=why)
        )
    show(found, json=json, title=f"Dropped table {table}")
