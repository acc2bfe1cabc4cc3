"""Commands for orphan files, and for tables that were dropped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from artemis_lifecycle.cli.command import DroppedArgument, command, instant_option
from artemis_lifecycle.cli.output import grid, say, show, show_list, show_rows, show_table

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle
    from artemis_lifecycle.orphans.cold import ColdScan
    from artemis_lifecycle.orphans.external_listing import Inventory, ParquetListing
    from artemis_lifecycle.orphans.live_inventory import LiveInventory
    from artemis_lifecycle.orphans.scan import OrphanScanResult

app = typer.Typer()

LocationOption = Annotated[str | None, typer.Option(help="A folder inside the table's locations.")]


@command(app, "listing {table}", "Listing of {table}", name="list-objects")
def list_objects(lifecycle: Lifecycle, table: str, location: LocationOption = None) -> object:
    """List the files below the table's locations, and seal the listing."""
    return lifecycle.list_objects(table, location)


@command(app, "scanning {table}", name="scan-orphans")
def scan_orphans(
    lifecycle: Lifecycle,
    table: str,
    now: datetime | None = None,
    older_than: datetime | None = None,
    location: LocationOption = None,
    inventory: Annotated[
        str | None,
        typer.Option(
            help="The manifest.json of an S3 Inventory, or CATALOG:b_BUCKET.inventory of S3 Metadata.",
            metavar="PATH",
        ),
    ] = None,
    listing: Annotated[
        str | None,
        typer.Option(
            help="A Parquet file, or a folder of them (path, last_modified, size_in_bytes), instead of a listing.",
            metavar="PATH",
        ),
    ] = None,
    listed_at: Annotated[
        datetime | None,
        instant_option(help="When that listing was started (with its time zone), if earlier than its files."),
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="Also list the orphans.")] = False,
    limit: int = 50,
) -> Iterator[object]:
    """List the table's files, then read its metadata, and seal the orphans. Changes nothing."""
    if inventory is not None and listing is not None:
        raise typer.BadParameter("--inventory and --listing exclude each other: use one of them.")
    if listed_at is not None and listing is None:
        raise typer.BadParameter("--listed-at needs --listing.")
    given: Inventory | LiveInventory | ParquetListing | None = None
    if inventory is not None:
        given = lifecycle.inventory(inventory)
    elif listing is not None:
        given = lifecycle.parquet_listing(listing)
    scan = lifecycle.scan_orphans(
        table, now=now, older_than=older_than, location=location, listing=given, listed_at=listed_at
    )
    yield from _show_scan(scan, f"Orphan scan of {table}", f"Orphans of scan {scan.scan_id}", limit if files else None)
    if scan.summary.orphan_files:
        say(f"Next: artemis delete-orphans {scan.scan_id}", unbroken=True)


def _show_scan(
    scan: OrphanScanResult | ColdScan, title: str, title_of_files: str, limit: int | None
) -> Iterator[object]:
    """Show a scan, or (with a `limit`) its files."""
    if limit is None:
        return show(scan, title=title)
    return show_rows(scan.files().orderBy("path"), limit=limit, title=title_of_files)


@command(app, "scanning the cold tier of {table}", name="scan-cold")
def scan_cold(lifecycle: Lifecycle, table: str, files: bool = False, limit: int = 50) -> Iterator[object]:
    """Find unreferenced files in the cold tier. Changes nothing, and no deletion uses the result."""
    scan = lifecycle.scan_cold(table)
    return _show_scan(scan, f"Cold tier of {table}", f"Unknown in {scan.location}", limit if files else None)


@command(app, "deleting orphans", "Deletion of scan {scan}", name="delete-orphans", confirm="scan")
def delete_orphans(
    lifecycle: Lifecycle,
    scan: Annotated[str, typer.Argument(help="The id from `artemis scan-orphans`.", metavar="SCAN")],
    dry_run: bool = False,
) -> object:
    """Delete the orphans of a stored scan, and check each one again first."""
    return lifecycle.delete_orphans(scan, dry_run=dry_run)


@command(app, "settling {table}", name="settle-metadata")
def settle_metadata(lifecycle: Lifecycle, table: str, who: str, why: str) -> Iterator[object]:
    """Confirm the catalog's pointer if newer metadata files of the table stop its orphan scans."""
    settled = lifecycle.settle_metadata(table, who=who, why=why)
    return show_list(settled, f"Metadata files that do not belong to the history of {table}", "path", path=str)


@command(app, "checking for dropped tables")
def dropped(lifecycle: Lifecycle) -> Iterator[object]:
    """List tables that the catalog no longer has, until when their files are kept, and their state."""
    found = lifecycle.dropped_tables()
    yield found
    names, rows = grid(
        found,
        "table, uuid=table_uuid, state, missed since=missing_since, kept until=due_at, keeps",
        keeps=lambda each: f"{each.kept_by}: {each.kept_why}" if each.kept_by else each.scan_id or "",
    )
    show_table("Dropped tables", [*names[:-1], "scan, or who keeps it and why"], rows)


@command(app, "scanning what is left of {table}", name="scan-dropped")
def scan_dropped(
    lifecycle: Lifecycle, table: DroppedArgument, files: bool = False, limit: int = 50
) -> Iterator[object]:
    """List what a dropped table has left, except what others read, and seal it. Changes nothing."""
    scan = lifecycle.scan_dropped(table)
    return _show_scan(scan, f"What is left of {table}", f"Left: scan {scan.scan_id}", limit if files else None)


@command(
    app, "deleting what a dropped table has left", "Deletion of scan {scan}", name="delete-dropped", confirm="scan"
)
def delete_dropped(
    lifecycle: Lifecycle,
    scan: Annotated[str, typer.Argument(help="The id from `artemis scan-dropped`.", metavar="SCAN")],
    dry_run: bool = False,
) -> object:
    """Delete the files of a dropped table, once its retention is over and a person has approved the scan."""
    return lifecycle.delete_dropped(scan, dry_run=dry_run)


@command(app, "registering {table} again", "Table {table}")
def undrop(
    lifecycle: Lifecycle,
    table: DroppedArgument,
    uuid: Annotated[str | None, typer.Option(help="Which one, if several tables of that name were dropped.")] = None,
    as_name: Annotated[str | None, typer.Option("--as", help="Another name for it.", metavar="NAME")] = None,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Also if files of its current state are missing (--who, --why).")
    ] = False,
    who: str = "",
    why: str = "",
) -> object:
    """Register a dropped table again, once every file of its current state is there."""
    return lifecycle.undrop(table, uuid, as_name, incomplete=incomplete, who=who or None, why=why)


@command(app, "deciding on {table}", "Dropped table {table}", name="keep-dropped")
def keep_dropped(
    lifecycle: Lifecycle,
    table: DroppedArgument,
    who: str = "",
    why: str = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let its retention continue.")] = False,
) -> object:
    """Decide to keep the files of a dropped table (with --who and --why); with --undo, end that."""
    return lifecycle.unkeep_dropped(table, who=who or None) if undo else lifecycle.keep_dropped(table, who=who, why=why)
