"""`artemis`: the steps of the walk for a terminal. Belongs here: arguments, output, exit codes. Does not belong:
anything that a caller of `Lifecycle` would miss.

Exit codes: 0 done, 2 bad input, 3 a guard refused, 4 unreadable metadata or a failing store, 5 the environment, 6 busy
or unknown: try again; 1 anything else.
"""

from __future__ import annotations

import json as json_module
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from artemis_lifecycle.config import format_duration, parse_duration
from artemis_lifecycle.errors import BadInput, LifecycleError, NaiveDatetime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from artemis_lifecycle.cold_tier.queries import Query, TagStatement
    from artemis_lifecycle.cold_tier.reads import Route
    from artemis_lifecycle.expiration.plan import ExpirationPlan
    from artemis_lifecycle.lifecycle import Lifecycle, Tagged
    from artemis_lifecycle.operations.deep_archive import ThawRecord
    from artemis_lifecycle.operations.holds import Hold
    from artemis_lifecycle.operations.plans import Approval, PlanRecord
    from artemis_lifecycle.operations.scans import ScanRecord

app = typer.Typer(
    name="artemis",
    help="The life of Apache Iceberg tables: what stays, what expires, what goes to the cold tier, what is deleted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="lifecycle.yaml; default $ARTEMIS_CONFIG, then ./lifecycle.yaml.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
TableArgument = Annotated[str, typer.Argument(help="namespace.table", metavar="TABLE")]
PlanArgument = Annotated[str, typer.Argument(help="The id that `artemis plan` printed.", metavar="PLAN")]
ThawArgument = Annotated[str, typer.Argument(help="The id that `artemis thaw` printed.", metavar="THAW")]
NowOption = Annotated[str | None, typer.Option("--now", help="Decide as of this instant, e.g. 2026-01-31T00:00:00Z.")]
OlderThanOption = Annotated[str | None, typer.Option("--older-than", help="An instant with its time zone.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; touch nothing.")]


class HoldKind(StrEnum):
    LEGAL = "legal"
    LEASE = "lease"
    CONSUMER = "consumer"


out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def instant(text: str | None) -> datetime | None:
    """An ISO 8601 instant. Raises BadInput for what is none, NaiveDatetime for one without a time zone."""
    if text is None:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(
            f"{text!r} is no instant", untouched="everything", do="write it as 2026-01-31T00:00:00Z"
        ) from error
    if parsed.tzinfo is None:
        raise NaiveDatetime(f"{text!r} has no time zone", untouched="everything", do=f"append Z or an offset: {text}Z")
    return parsed


def as_json(value: object) -> object:
    """`value` as what JSON can hold: dataclasses by their public fields, instants in ISO 8601, durations in seconds."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: as_json(getattr(value, field.name)) for field in fields(value) if not field.name.startswith("_")
        }
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [as_json(item) for item in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def show_json(value: object) -> None:
    """Print one JSON document."""
    print(json_module.dumps(as_json(value), indent=2, ensure_ascii=False))


def show(value: object, *, json: bool, title: str) -> None:
    """Print one result: as JSON, or as a two-column table of its public fields."""
    if json:
        show_json(value)
        return
    plain = as_json(value)
    table = Table(title=escape(title), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, item in plain.items() if isinstance(plain, dict) else [("result", plain)]:
        table.add_row(key.replace("_", " "), escape(_short(item)))
    out.print(table)


def _short(value: object) -> str:
    if isinstance(value, list):
        head = ", ".join(_short(item) for item in value[:8])
        return f"{head}, … ({len(value)} in all)" if len(value) > 8 else head or "none"
    if isinstance(value, dict):
        items = [f"{key}: {_short(item)}" for key, item in list(value.items())[:8]]
        return "\n".join(items) + (f"\n… ({len(value)} in all)" if len(value) > 8 else "")
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**15 else str(value)


_IDS = ("snapshot", "hold", "thaw", "kind", "on", "plan", "the newest")


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows of plain values; an unknown one is empty, an instant is in UTC. Ids stay whole, to be copied."""
    table = Table(title=escape(title), title_justify="left")
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in _IDS)
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row))
    out.print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return str(value)


def _collected(frame: DataFrame, limit: int) -> list[dict[str, object]]:
    """At most `limit` rows, ready for JSON. Raises BadInput for what Spark finds wrong with them."""
    from artemis_lifecycle.spark.statement_errors import statement_errors

    with statement_errors():
        rows = frame.limit(limit).collect()
    return [{name: as_json(value) for name, value in row.asDict(recursive=True).items()} for row in rows]


def show_rows(frame: DataFrame, *, json: bool, limit: int, title: str) -> None:
    """Print at most `limit` rows of a DataFrame."""
    rows = _collected(frame, limit)
    if json:
        show_json(rows)
        return
    table = Table(title=escape(title), title_justify="left")
    for name in frame.columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(item)) for item in row.values()))
    out.print(table)
    if len(rows) == limit:
        out.print(f"(the first {limit}; --limit shows more)", style="dim")


@contextmanager
def opened(config: Path | None, doing: str) -> Iterator[Lifecycle]:
    """An open Lifecycle, with a spinner on a terminal that says what is being done."""
    from artemis_lifecycle.lifecycle import Lifecycle

    with (
        err.status(escape(doing)) if err.is_terminal else _quiet(),
        Lifecycle.open(config, owner="artemis") as lifecycle,
    ):
        yield lifecycle


@contextmanager
def _quiet() -> Iterator[None]:
    yield


@app.command()
def tables(config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the tables of the live catalog, and which entry of lifecycle.yaml governs each."""
    with opened(config, "reading the catalog") as lifecycle:
        names = lifecycle.tables()
        entries = {name: lifecycle.config.entry(name) for name in names}
    if json:
        print(json_module.dumps(entries, indent=2))
        return
    table = Table(title="Tables", title_justify="left")
    table.add_column("table")
    table.add_column("governed by")
    for name, entry in entries.items():
        table.add_row(escape(name), escape(entry or "defaults, by hand only"))
    out.print(table)


@app.command()
def history(
    table: TableArgument,
    cold: Annotated[bool, typer.Option("--cold", help="What the cold tier and the deep archive have of it.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
    limit: int = 20,
) -> None:
    """The snapshots, refs and log of a table, pinned to one metadata file."""
    with opened(config, f"reading the history of {table}") as lifecycle:
        found = lifecycle.cold_history(table) if cold else lifecycle.snapshot_history(table)
    if json:
        show(found, json=True, title="")
        return
    live = ["snapshot_id", "committed_at", "operation", "refs", "total_data_files", "total_records"]
    shown = ["snapshot_id", "committed_at", "tier", "operation", "tags", "data_files", "records"] if cold else live
    frame = found.to_pandas()
    if cold and frame["cold_table"].nunique() > 1:
        shown.insert(2, "cold_table")
    frame = frame[shown].tail(limit)
    frame["committed_at"] = frame["committed_at"].dt.strftime("%Y-%m-%d %H:%M:%S")
    rows = Table(title=escape(f"{table}: {len(found.snapshots)} snapshots"), title_justify="left")
    for name in shown:
        rows.add_column(name.replace("_", " "), no_wrap=name in ("snapshot_id", "committed_at"), overflow="fold")
    for values in frame.itertuples(index=False):
        rows.add_row(*(escape("" if value is None else str(value)) for value in values))
    out.print(rows)
    out.print(escape(found.metadata_location), style="dim", soft_wrap=True)


@app.command()
def reachable(
    table: TableArgument, now: NowOption = None, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Count the files that the table's kept snapshots reach, by kind."""
    with opened(config, f"walking {table}") as lifecycle:
        found = lifecycle.reachable_set(table, now=instant(now))
        show(
            {"table": table, "snapshots": len(found.snapshot_ids), "files": found.counts},
            json=json,
            title=f"Reachable set of {table}",
        )


@app.command("schema-history")
def schema_history(table: TableArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """The schemas that the table has had, what each changed, and since when and until when it was written with."""
    with opened(config, f"reading the schemas of {table}") as lifecycle:
        found = lifecycle.schema_history(table)
    if json:
        show(found, json=True, title="")
        return
    rows = found.to_pandas()
    used = [rows[name].dt.strftime("%Y-%m-%d %H:%M:%S").fillna("") for name in ("first_used", "last_used")]
    shown = [rows[name] for name in ("schema_id", "columns", "added", "removed", "changed")]
    show_table(
        f"{table}: {len(rows)} schemas; the current one is {rows.loc[rows['is_current'], 'schema_id'].iloc[0]}",
        ("schema", "columns", "added", "removed", "changed", "snapshots", "first used", "last used"),
        list(zip(*shown, rows["snapshots"], *used, strict=True)),
    )


@app.command()
def health(table: TableArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Small files, deletes, manifests and metadata of the current snapshot: what makes reading the table slow."""
    with opened(config, f"measuring {table}") as lifecycle:
        rows = lifecycle.table_health(table).to_pandas()
        show(dict(zip(rows["figure"], rows["value"], strict=True)), json=json, title=f"Health of {table}")


@app.command()
def compact(
    table: TableArgument,
    manifests: Annotated[bool, typer.Option("--manifests", help="Manifests instead of data files.")] = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Rewrite small data files, or small manifests, where the table's health asks for it."""
    with opened(config, f"compacting {table}") as lifecycle:
        work = lifecycle.compact_manifests if manifests else lifecycle.compact_data_files
        show(work(table, dry_run=dry_run), json=json, title=f"Compaction of {table}")


@app.command("record-lineage")
def record_lineage(table: TableArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Append to the lineage ledger what the table's snapshots say of their writers, before they expire."""
    with opened(config, f"recording the lineage of {table}") as lifecycle:
        show(lifecycle.record_lineage(table), json=json, title=f"Lineage of {table}")


@app.command("retention-curve")
def retention_curve(
    table: TableArgument,
    window: Annotated[
        list[str] | None, typer.Option("--window", help="A window to compare, e.g. 7d; may be repeated.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw it into this file (.png or .svg).")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """What the table would hold under other windows, and what each tag and branch costs to keep. Changes nothing."""
    _require_picture(plot)
    windows = None if not window else [parse_duration(text) for text in window]
    with opened(config, "comparing windows") as lifecycle:
        curve = lifecycle.retention_curve(table, windows=windows)
    if plot is not None:
        plot.write_bytes(curve.plot(plot.suffix[1:]))
    if json:
        show(curve, json=True, title="")
        return
    most = max((point.size_in_bytes for point in curve.points), default=0) or 1
    show_table(
        f"What {table} would hold",
        ("window", "snapshots", "files", "bytes", ""),
        [
            (
                f"{timedelta(milliseconds=point.window_ms) / timedelta(days=1):.1f} d" + " ◀ policy" * point.is_policy,
                f"{point.snapshots:,}",
                f"{point.files:,}",
                decimal(point.size_in_bytes),
                "█" * round(24 * point.size_in_bytes / most),
            )
            for point in curve.points
        ],
    )
    show_table(
        "What each ref costs: freed if it were removed",
        ("ref", "snapshot", "snapshots", "files", "bytes"),
        [
            (
                f"{cost.type} {cost.ref}",
                cost.snapshot_id,
                cost.snapshots,
                f"{cost.files:,}",
                decimal(cost.size_in_bytes),
            )
            for cost in curve.refs
        ],
    )
    if plot is not None:
        out.print(f"Drawn into {escape(str(plot))}", style="dim")


@app.command()
def plan(
    table: TableArgument,
    now: NowOption = None,
    older_than: OlderThanOption = None,
    retain_last: Annotated[int | None, typer.Option(help="Keep at least this many snapshots of each branch.")] = None,
    snapshot_id: Annotated[list[int] | None, typer.Option(help="Expire this snapshot; may be repeated.")] = None,
    files: Annotated[bool, typer.Option("--files", help="List the files too.")] = False,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="PATH", help="Why this file is in the plan, or why not.")
    ] = None,
    limit: int = 50,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Plan an expiration: seal which snapshots and files would go, and say why the others stay. Changes nothing of the
    table."""
    with opened(config, f"planning {table}") as lifecycle:
        made = lifecycle.plan_expiration(
            table, now=instant(now), older_than=instant(older_than), retain_last=retain_last, snapshot_ids=snapshot_id
        )
        if explain is not None:
            show(lifecycle.explain_in_plan(made, explain), json=json, title=f"Plan {made.plan_id}")
        elif files:
            show_rows(
                made.files().orderBy("kind", "path"), json=json, limit=limit, title=f"Files of plan {made.plan_id}"
            )
        elif json:
            show(made, json=True, title="")
        else:
            _show_plan(made, limit)


def _show_plan(plan: ExpirationPlan, limit: int) -> None:
    summary = plan.summary
    show(
        {
            "plan": plan.plan_id,
            "rule": plan.settings.rule,
            "decided at": plan.decided_at,
            "cutoff": plan.cutoff,
            "snapshots": f"{summary.snapshots_expired:,} go, {summary.snapshots_kept:,} stay",
            "refs": ", ".join(plan.expired_refs) or "all stay",
        },
        json=False,
        title=f"Plan of {plan.table}",
    )
    kinds = [(kind.kind, f"{kind.files:,}", f"{kind.size_in_bytes:,}") for kind in summary.by_kind]
    total = ("in all", f"{summary.files:,}", f"{summary.size_in_bytes:,}")
    show_table("Files that may go after the commit", ("kind", "files", "bytes"), [*kinds, total])
    by_reasons: dict[tuple[str, ...], list[int]] = {}
    for snapshot_id, reasons in plan.kept.items():
        by_reasons.setdefault(reasons, []).append(snapshot_id)
    rows = [
        (len(ids), ids[-1], "\n".join(reasons))
        for reasons, ids in sorted(by_reasons.items(), key=lambda kept: -len(kept[1]))
    ]
    show_table("Why snapshots stay", ("snapshots", "the newest", "because"), rows[:limit])
    if len(rows) > limit:
        out.print(f"({limit} of {len(rows)} sets of reasons; --limit shows more)", style="dim")


@app.command("plan-diff")
def plan_diff(
    before: Annotated[str, typer.Argument(help="A plan's id.", metavar="A")],
    after: Annotated[str, typer.Argument(help="Another's, of the same table.", metavar="B")],
    files: Annotated[bool, typer.Option("--files", help="List the files too.")] = False,
    limit: int = 50,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """What plan B removes and plan A does not, and the other way round: snapshots and why, refs, files and bytes."""
    with opened(config, "comparing the plans") as lifecycle:
        found = lifecycle.plan_difference(before, after)
        if files:
            listed = found.files().orderBy("change", "kind", "path")
            show_rows(listed, json=json, limit=limit, title=f"From plan {before} to {after}")
            return
    if json:
        show(found, json=True, title="")
        return
    refs = [f"+ {ref}" for ref in found.refs_added] + [f"- {ref}" for ref in found.refs_removed]
    out.print(escape(f"{found.table}: refs removed by one alone: {', '.join(refs) or 'none'}"))
    snapshots = [
        ({"added": "+", "removed": "-"}[change.change], change.snapshot_id, "\n".join(change.why))
        for change in found.snapshots
    ]
    show_table("Snapshots", ("", "snapshot", "the other plan keeps it because"), snapshots[:limit])
    if len(snapshots) > limit:
        out.print(f"({limit} of {len(snapshots)} snapshots; --limit shows more)", style="dim")
    kinds = [
        (
            kind.kind,
            f"{kind.added_files:,}",
            f"{kind.added_bytes:,}",
            f"{kind.removed_files:,}",
            f"{kind.removed_bytes:,}",
        )
        for kind in found.by_kind
    ]
    show_table("Files", ("kind", "+ files", "+ bytes", "- files", "- bytes"), kinds)


@app.command()
def plans(table: TableArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """The plans of a table, newest first, with their status."""
    with opened(config, "reading the plans") as lifecycle:
        found = lifecycle.plans(table)
    if json:
        show_json(found)
        return
    rows = [
        (
            record.plan_id,
            record.status.replace("_", " "),
            record.planned_at,
            f"{record.expired_snapshots:,}",
            f"{record.files:,}",
            f"{record.bytes:,}",
            record.due_at,
            _approvals(record),
        )
        for record in found
    ]
    columns = ("plan", "status", "planned at", "snapshots", "files", "bytes", "due at", "approved")
    show_table(f"Plans of {table}", columns, rows)


def _approvals(record: PlanRecord | ScanRecord) -> str:
    given = [("large", record.approved_by, record.approved_at, record.approved_why)]
    # A scan loses nothing.
    by, at, why = (getattr(record, f"lost_approved_{what}", None) for what in ("by", "at", "why"))
    given.append(("lost", by, at, why))
    return "\n".join(f"{what}: {who}, {_cell(at)}: {why}" for what, who, at, why in given if who)


@app.command("hand-off")
def hand_off(plan: PlanArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Copy a plan's expired snapshots to the cold tier, verify them, and publish them in the cold catalog."""
    with opened(config, "copying to the cold tier") as lifecycle:
        show(lifecycle.hand_off(plan), json=json, title=f"Handoff of {plan}")


@app.command()
def commit(
    plan: PlanArgument, dry_run: DryRunOption = False, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Remove a plan's snapshots from the table's metadata, in one commit."""
    with opened(config, "committing") as lifecycle:
        show(lifecycle.commit_expiration(plan, dry_run=dry_run), json=json, title=f"Commit of {plan}")


@app.command()
def delete(
    plan: PlanArgument,
    now: NowOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete the files of a committed plan whose grace is over. Resumes where an earlier run stopped."""
    with opened(config, "deleting") as lifecycle:
        show(lifecycle.delete_files(plan, now=instant(now), dry_run=dry_run), json=json, title=f"Deletion of {plan}")


@app.command()
def expire(
    table: TableArgument,
    now: NowOption = None,
    older_than: OlderThanOption = None,
    retain_last: int | None = None,
    snapshot_id: Annotated[list[int] | None, typer.Option()] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Plan, hand off, commit, and delete if the grace is over: the steps in their order."""
    with opened(config, f"expiring {table}") as lifecycle:
        report = lifecycle.expire(
            table, now=instant(now), older_than=instant(older_than), retain_last=retain_last, snapshot_ids=snapshot_id
        )
        show(report, json=json, title=f"Expiration of {table}")


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
    files: Annotated[bool, typer.Option("--files", help="List the orphans too.")] = False,
    limit: int = 50,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List the table's files, then read its metadata, and seal what nobody owns. Changes nothing."""
    with opened(config, f"scanning {table}") as lifecycle:
        listing = None if inventory is None else lifecycle.inventory(inventory)
        scan = lifecycle.scan_orphans(
            table, now=instant(now), older_than=instant(older_than), location=location, listing=listing
        )
        if files:
            show_rows(scan.files().orderBy("path"), json=json, limit=limit, title=f"Orphans of scan {scan.scan_id}")
        else:
            show(scan, json=json, title=f"Orphan scan of {table}")


@app.command("scan-cold")
def scan_cold(
    table: TableArgument,
    files: Annotated[bool, typer.Option("--files", help="List the files too.")] = False,
    limit: int = 50,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Find files of the cold tier that nothing there has. Changes nothing, and nothing deletes by it."""
    with opened(config, f"scanning the cold tier of {table}") as lifecycle:
        scan = lifecycle.scan_cold(table)
        if files:
            show_rows(scan.files().orderBy("path"), json=json, limit=limit, title=f"Unknown in {scan.location}")
        else:
            show(scan, json=json, title=f"Cold tier of {table}")


@app.command("delete-orphans")
def delete_orphans(
    scan: Annotated[str, typer.Argument(help="The id that `artemis scan-orphans` printed.", metavar="SCAN")],
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete the orphans of a stored scan, each looked at once more before it goes."""
    with opened(config, "deleting orphans") as lifecycle:
        show(lifecycle.delete_orphans(scan, dry_run=dry_run), json=json, title=f"Deletion of scan {scan}")


@app.command()
def dropped(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Tables that the catalog has no more, until when their files are kept, and what became of them."""
    with opened(config, "looking for dropped tables") as lifecycle:
        found = lifecycle.dropped_tables()
    if json:
        show(found, json=True, title="")
        return
    rows = [
        (
            each.table,
            each.table_uuid,
            each.state,
            each.missing_since,
            each.due_at,
            f"{each.kept_by}: {each.kept_why}" if each.kept_by else each.scan_id or "",
        )
        for each in found
    ]
    columns = ["table", "uuid", "state", "missed since", "kept until", "scan, or who keeps it and why"]
    show_table("Dropped tables", columns, rows)


@app.command("scan-dropped")
def scan_dropped(
    table: Annotated[str, typer.Argument(help="namespace.table, or its uuid", metavar="TABLE")],
    files: Annotated[bool, typer.Option("--files", help="List the files too.")] = False,
    limit: int = 50,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List what a dropped table has left, but for what others read, and seal it. Changes nothing."""
    with opened(config, f"scanning what is left of {table}") as lifecycle:
        scan = lifecycle.scan_dropped(table)
        if files:
            show_rows(scan.files().orderBy("path"), json=json, limit=limit, title=f"Left: scan {scan.scan_id}")
        else:
            show(scan, json=json, title=f"What is left of {table}")


@app.command("delete-dropped")
def delete_dropped(
    scan: Annotated[str, typer.Argument(help="The id that `artemis scan-dropped` printed.", metavar="SCAN")],
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete what a dropped table has left, when its time is over and somebody approved the scan."""
    with opened(config, "deleting what a dropped table has left") as lifecycle:
        show(lifecycle.delete_dropped(scan, dry_run=dry_run), json=json, title=f"Deletion of scan {scan}")


@app.command("keep-dropped")
def keep_dropped(
    table: Annotated[str, typer.Argument(help="namespace.table, or its uuid", metavar="TABLE")],
    who: str = "",
    why: str = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let its time run again.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Decide that the files of a dropped table stay (say --who and --why); with --undo, that they do not."""
    with opened(config, f"deciding on {table}") as lifecycle:
        found = lifecycle.unkeep_dropped(table) if undo else lifecycle.keep_dropped(table, who=who, why=why)
    show(found, json=json, title=f"Dropped table {table}")


@app.command()
def explain(
    table: TableArgument,
    path: Annotated[str, typer.Argument(help="A file's path, as the metadata or the store spells it.")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Who holds this file, since when and until when; or which plan or scan took it."""
    with opened(config, "looking for the file") as lifecycle:
        show(lifecycle.explain(table, path), json=json, title=path)


@app.command()
def read(
    table: TableArgument,
    as_of: Annotated[str | None, typer.Option("--as-of", help="An instant with its time zone.")] = None,
    snapshot_id: int | None = None,
    tag: str | None = None,
    limit: int = 20,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Rows of a table now, at an instant, of a snapshot or a tag: from the live or the cold catalog; says which."""
    with opened(config, f"reading {table}") as lifecycle:
        route = lifecycle.route(table, as_of=instant(as_of), snapshot_id=snapshot_id, tag=tag)
        if route.readable_in is not None:
            _show_in_archive({table: route}, json)
            return
        frame = lifecycle.read(table, as_of=instant(as_of), snapshot_id=snapshot_id, tag=tag)
        began = time.monotonic()
        show_rows(
            frame, json=json, limit=limit, title=f"{table} from the {route.tier} catalog, snapshot {route.snapshot_id}"
        )
        if not json:
            _show_latency([route], time.monotonic() - began)


@app.command()
def query(
    sql: Annotated[
        str,
        typer.Argument(
            help="SELECT … FROM namespace.table FOR TAG 'x', or TAG SNAPSHOT n AS 'x' WITH RETENTION FOREVER."
        ),
    ],
    table: Annotated[str | None, typer.Option(help="The table of a TAG statement that names none.")] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", help="An instant with its time zone, for tables without a FOR clause.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", "--why", help="Kept beside a tag.")] = "",
    owner: Annotated[str | None, typer.Option(help="Who answers for a tag; default: you.")] = None,
    translate: Annotated[bool, typer.Option("--translate", help="Show the Spark SQL; run nothing.")] = False,
    limit: int = 20,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Read a table where its history is, in SQL, and tag snapshots in SQL. Shows the Spark SQL beside it."""
    from artemis_lifecycle.cold_tier.queries import Query
    from artemis_lifecycle.lifecycle import Tagged

    with opened(config, "querying") as lifecycle:
        found = lifecycle.translate(sql, table=table, as_of=instant(as_of))
        shown: dict[str, object] = {"sql": found.sql, "spark_sql": found.spark_sql}
        if isinstance(found, Query):
            shown["sources"] = as_json(found.sources)
        if not json:
            _show_translation(found)
        sources = {source.table: source for source in getattr(found, "sources", ())}
        if any(source.readable_in is not None for source in sources.values()) and not translate:
            _show_in_archive(sources, json)
            return
        if not translate:
            began = time.monotonic()
            result = lifecycle.query(found, who=owner, why=reason)
            if isinstance(result, Tagged):
                shown["tag"] = as_json(result)
                if not json:
                    _show_tag(result, False)
            elif json:
                shown["rows"] = _collected(result, limit)
                shown["seconds"] = round(time.monotonic() - began, 3)
            else:
                show_rows(result, json=False, limit=limit, title="Rows")
                _show_latency(getattr(found, "sources", ()), time.monotonic() - began)
        if json:
            show_json(shown)


@app.command()
def restore(
    table: TableArgument,
    snapshot_id: Annotated[int, typer.Argument(help="A snapshot that expired.", metavar="SNAPSHOT")],
    branch: Annotated[str, typer.Option(help="A new branch of the live table, to hold its rows.")],
    why: Annotated[str, typer.Option("--reason", "--why", help="Kept beside the restore.")] = "",
    ticket: Annotated[str | None, typer.Option(help="Kept in the snapshot's summary.")] = None,
    owner: Annotated[str | None, typer.Option(help="Who wants it back; default: you.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Bring an expired snapshot back from the cold tier, as a new snapshot on a branch of the live table."""
    with opened(config, f"restoring {table}") as lifecycle:
        done = lifecycle.restore(table, snapshot_id, branch, why=why, who=owner, ticket=ticket)
        show(done, json=json, title=f"{table}: snapshot {snapshot_id} on branch {branch}")


@app.command()
def restores(table: TableArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """What was brought back from the cold tier, newest first, and what is being brought back."""
    with opened(config, "reading the restores") as lifecycle:
        found = lifecycle.restores(table)
    if json:
        show_json(found)
        return
    columns = ("restore", "snapshot", "branch", "new snapshot", "who", "why", "begun", "ended")
    rows = [
        (
            record.restore_id,
            record.source_snapshot_id,
            record.branch,
            record.snapshot_id,
            record.who,
            record.why,
            record.started_at,
            record.finished_at or (record.abandoned_at and f"abandoned {_cell(record.abandoned_at)}"),
        )
        for record in found
    ]
    show_table(f"Restores of {table}", columns, rows)


def _show_translation(found: Query | TagStatement) -> None:
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("yours", escape(found.sql.strip()))
    table.add_row("Spark's", escape(found.spark_sql))
    for source in getattr(found, "sources", ()):
        at = "no snapshot yet" if source.snapshot_id is None else f"snapshot {source.snapshot_id}"
        where = "deep archive" if source.tier == "deep-archive" else f"{source.tier} catalog"
        table.add_row("reads", escape(f"{source.table} {source.clause}".strip() + f" → {where}, {at}"))
    out.print(table)


def _show_in_archive(found: Mapping[str, Route], json: bool) -> None:
    """That there is an answer, and how long it will take until it can be read."""
    waiting = {table: source for table, source in found.items() if source.readable_in is not None}
    if json:
        show_json(
            [
                {
                    "table": table,
                    "tier": source.tier,
                    "snapshot_id": source.snapshot_id,
                    "storage_class": source.storage_class,
                    "hours_until_readable": round(source.hours_until_readable, 1),
                    "thaw": source.thaw,
                }
                for table, source in waiting.items()
            ]
        )
        return
    for table, source in waiting.items():
        hours = source.hours_until_readable
        where = f"the deep archive ({source.storage_class})"
        out.print(escape(f"{table}: snapshot {source.snapshot_id} is in {where}: not read"))
        if source.thaw is None:
            out.print(escape(f"readable about {hours:.0f} hours after a second person approved a thaw; ask for one:"))
            how = f"artemis thaw {table} --snapshot-id {source.snapshot_id} --case … --requester … --reason …"
            out.print(escape(f"    {how}"), soft_wrap=True)
        else:
            out.print(escape(f"readable in about {hours:.0f} hours: {source.thaw}"))


def _show_latency(sources: Sequence[Route], seconds: float) -> None:
    """What was to be expected of the tiers that answered, and what it took."""
    tiers = {source.tier: source for source in sources}
    said = []
    for tier, source in sorted(tiers.items()):
        kind = f" ({source.storage_class})" if source.storage_class else ""
        expected = "" if source.expected_latency is None else f", expected {format_duration(source.expected_latency)}"
        said.append(f"{tier}{kind}{expected}")
    if said:
        out.print(escape(f"answered in {seconds:.1f} s by {'; '.join(said)}"), style="dim")


@app.command()
def costs(
    table: TableArgument,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw it into this file (.png or .svg).")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """What a table holds in each tier and for each tag, and what that costs by the price table of lifecycle.yaml."""
    _require_picture(plot)
    with opened(config, f"adding up {table}") as lifecycle:
        found = lifecycle.costs(table)
    if plot is not None:
        plot.write_bytes(found.plot(plot.suffix[1:]))
    if json:
        show_json({**asdict(found), "per_month": found.per_month})
        return

    def money(amount: float | None) -> str:
        return "" if amount is None else f"{amount:,.4f}"

    columns = (
        "tier",
        "class",
        "snapshots",
        "files",
        "bytes",
        "requests",
        f"{found.currency} a month",
        "for requests",
        "to read it all",
    )
    rows = [
        (
            tier.tier,
            tier.storage_class,
            tier.snapshots,
            tier.files,
            tier.size_in_bytes,
            tier.requests,
            money(tier.per_month),
            money(tier.requests_price),
            money(tier.read_price),
        )
        for tier in found.tiers
    ]
    show_table(f"Costs of {table}", columns, rows)
    tags = [
        (tag.ref, tag.tier, tag.snapshot_id, tag.files, tag.size_in_bytes, money(tag.per_month)) for tag in found.tags
    ]
    if tags:
        show_table("What only a tag holds", ("ref", "tier", "snapshot", "files", "bytes", "a month"), tags)
    if found.per_month is None:
        out.print("no price for every class: give them in lifecycle.yaml (prices)", style="dim")
    if plot is not None:
        out.print(f"Drawn into {escape(str(plot))}", style="dim")


def _require_picture(plot: Path | None) -> None:
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise BadInput(f"{plot} is no .png or .svg", untouched="everything", do="name a picture")


@app.command(name="deep-archive")
def deep_archive(
    table: TableArgument,
    now: NowOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Move cold snapshots past their retention to the deep archive; files that others read, or a hold keeps, stay."""
    with opened(config, f"archiving {table}") as lifecycle:
        done = lifecycle.deep_archive(table, instant(now), dry_run=dry_run)
        show(done, json=json, title=f"Deep archive of {table}{' (dry run)' if dry_run else ''}")


@app.command()
def thaw(
    table: TableArgument,
    case: Annotated[str, typer.Option(prompt=True, help="The case that it is for.")],
    requester: Annotated[str, typer.Option(prompt=True, help="Who asks for it.")],
    reason: Annotated[str, typer.Option("--reason", "--why", prompt=True, help="Kept with the thaw.")],
    snapshot_id: Annotated[list[int] | None, typer.Option(help="An archived snapshot; may be repeated.")] = None,
    as_of: Annotated[str | None, typer.Option("--as-of", help="An instant with its time zone.")] = None,
    tag: str | None = None,
    days: Annotated[int | None, typer.Option(help="How long it stays readable; default: deep_archive.days.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Ask for archived snapshots to be made readable. Nothing is thawed before a second person approves it."""
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
    who: Annotated[str, typer.Option(prompt=True, help="You; not who asked for it.")],
    why: Annotated[str, typer.Option(prompt=True)],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Approve a thaw, as the second person: the store is asked for its files."""
    with opened(config, "approving the thaw") as lifecycle:
        done = lifecycle.approve_thaw(thaw_id, who, why)
    _show_thaw(done, json)


@app.command(name="refuse-thaw")
def refuse_thaw(
    thaw_id: ThawArgument,
    who: Annotated[str, typer.Option(prompt=True)],
    why: Annotated[str, typer.Option(prompt=True)],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """End a thaw that should not be, or is needed no longer."""
    with opened(config, "ending the thaw") as lifecycle:
        done = lifecycle.refuse_thaw(thaw_id, who, why)
    _show_thaw(done, json)


@app.command()
def thaws(
    table: Annotated[
        str | None, typer.Argument(help="namespace.table; every table without it.", metavar="TABLE")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Look how far each is, and write it down.")] = False,
    ended: Annotated[bool, typer.Option("--ended", help="Also those that are over.")] = False,
    files: Annotated[str | None, typer.Option("--files", help="The files of this thaw, instead.")] = None,
    limit: int = 20,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Thaws: for which case, by whom, approved by whom, how far they are and until when their files can be read."""
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
        # What is not known yet is left out; instants are told as in the lists.
        known = {key: value for key, value in said.items() if value is not None}
        said = {key: _cell(value) if isinstance(value, datetime) else value for key, value in known.items()}
    show(said, json=json, title=f"Thaw for case {record.case_id}")


@app.command()
def tag(
    table: TableArgument,
    name: str,
    snapshot_id: int,
    retain: Annotated[str, typer.Option(help="forever, or a duration such as 90d, from now.")] = "forever",
    reason: Annotated[str, typer.Option("--reason", "--why", help="Kept beside the tag.")] = "",
    owner: Annotated[str | None, typer.Option(help="Who answers for it; default: you.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Move a tag of that name from another snapshot.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Tag a snapshot, so that it stays for that long. Who, when and why are kept: see `artemis tags`."""
    with opened(config, "tagging") as lifecycle:
        made = lifecycle.tag(table, name, snapshot_id, retain=retain, why=reason, who=owner, replace=replace)
        _show_tag(made, json)


def _show_tag(tag: Tagged, json: bool) -> None:
    """What was done, and what is on record of it."""
    if json:
        show(tag, json=True, title="")
        return
    said: dict[str, object] = {"table": tag.table, "snapshot": tag.snapshot_id, "who": tag.who, "when": _cell(tag.at)}
    said |= {"why": tag.why or "", "ends": _cell(tag.ends_at) or "never"}
    if tag.snapshot_id is None:
        said = {"table": tag.table, "removed by": tag.who, "when": _cell(tag.at), "why": tag.why or ""}
    show(said, json=False, title=f"Tag {tag.name}")


@app.command()
def untag(
    table: TableArgument,
    name: str,
    reason: Annotated[str, typer.Option("--reason", "--why", help="Kept beside the tag's record.")] = "",
    owner: Annotated[str | None, typer.Option(help="Who answers for it; default: you.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a tag. Its snapshot expires by the table's rule from then on."""
    with opened(config, "removing the tag") as lifecycle:
        _show_tag(lifecycle.untag(table, name, why=reason, who=owner), json)


@app.command()
def tags(
    table: TableArgument,
    removed: Annotated[bool, typer.Option("--removed", help="Also the tags that are no more.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """The table's tags and branches: on which snapshot, by whom, when and why, for how long and until when."""
    with opened(config, "reading the refs") as lifecycle:
        found = lifecycle.tags(table, with_removed=removed)
    if json:
        show(found, json=True, title="")
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
    out.print(escape(found.metadata_location), style="dim", soft_wrap=True)


@app.command()
def hold(
    table: TableArgument,
    reason: Annotated[str, typer.Option(prompt=True, help="Why nothing may go.")],
    owner: Annotated[str, typer.Option(prompt=True, help="Who answers for it.")],
    kind: Annotated[
        HoldKind,
        typer.Option(help="legal; lease: a reader's, for a time; consumer: its next snapshot and all after it."),
    ] = HoldKind.LEGAL,
    snapshot_id: Annotated[list[int] | None, typer.Option(help="Only this snapshot; may be repeated.")] = None,
    until: Annotated[str | None, typer.Option(help="An instant; without it, until released.")] = None,
    ttl: Annotated[str | None, typer.Option(help="How long, from now, such as 2h; a lease must have an end.")] = None,
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
    ended: Annotated[bool, typer.Option("--ended", help="Also those that are over.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """The holds on a table: of which kind, whose and why, on what, until when."""
    with opened(config, "reading the holds") as lifecycle:
        found = lifecycle.holds(table, ended=ended)
    if json:
        show_json(found)
        return
    _show_holds(table, found, ended)


def _show_holds(table: str, found: Iterable[Hold], ended: bool) -> None:
    rows = [
        (
            held.hold_id,
            held.kind,
            held.owner,
            held.reason,
            "\n".join(map(str, held.snapshot_ids)) or "the whole table",
            held.until or "released",
            *([held.released_at] if ended else []),
        )
        for held in found
    ]
    columns = ("hold", "kind", "owner", "why", "on", "until", *(["released"] if ended else []))
    show_table(f"Holds on {table}", columns, rows)


@app.command()
def renew(
    hold_id: str,
    ttl: Annotated[str, typer.Option(help="How long from now, such as 2h.")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Let a reader's lease last longer."""
    with opened(config, "renewing") as lifecycle:
        show(lifecycle.renew(hold_id, ttl), json=json, title=f"Hold {hold_id}")


@app.command()
def advance(
    hold_id: str,
    snapshot_id: Annotated[int, typer.Argument(help="What the consumer reads next.")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Move a consumer's position: what it has read may expire."""
    with opened(config, "advancing") as lifecycle:
        show(lifecycle.advance(hold_id, snapshot_id), json=json, title=f"Hold {hold_id}")


@app.command()
def release(hold_id: str, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Release a hold."""
    with opened(config, "releasing") as lifecycle:
        show(lifecycle.release(hold_id), json=json, title=f"Hold {hold_id}")


@app.command()
def writers(
    table: Annotated[str | None, typer.Argument(help="namespace.table; all tables without it", metavar="TABLE")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """The writers at work, whose files no orphan scan touches, by their heartbeats."""
    with opened(config, "reading heartbeats") as lifecycle:
        found = lifecycle.writers(table)
    if json:
        show(found, json=True, title="")
        return
    rows = [
        (beat.table, beat.writer_id, beat.prefix or "the whole table", beat.host, beat.pid, beat.started_at,
         beat.expires_at)
        for beat in found
    ]  # fmt: skip
    columns = ["table", "writer", "protects", "host", "pid", "at work since", "unless it beats, until"]
    show_table("Writers at work", columns, rows)


@app.command()
def approve(
    plan: Annotated[str, typer.Argument(help="The id of a plan, or of a scan.", metavar="PLAN")],
    who: Annotated[str, typer.Option(prompt=True)],
    why: Annotated[str, typer.Option(prompt=True)],
    large: Annotated[
        bool,
        typer.Option(
            "--large", help="It may pass max_files, max_bytes, max_share_of_table; a dropped table's files may go."
        ),
    ] = False,
    lost: Annotated[
        bool, typer.Option("--lost", help="Its handoff may leave out snapshots whose files are gone.")
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Let a plan pass a guard. Each approval is for one thing: --large, --lost, or both. Who, when and why are kept."""
    if not large and not lost:
        raise BadInput(
            "It is not said what is approved", untouched="the plan", do=f"artemis approve {plan} --large, or --lost"
        )
    with opened(config, "approving") as lifecycle:
        # The narrower one first: a scan, which can lose nothing, refuses it before anything is approved.
        wanted: list[tuple[Approval, bool]] = [("lost", lost), ("large", large)]
        for what in (what for what, asked in wanted if asked):
            approved = lifecycle.approve(plan, who=who, why=why, what=what)
    if json:
        show(approved, json=True, title="")
    else:
        show({"table": approved.table, "approved": _approvals(approved)}, json=False, title=f"Plan {plan}")


@app.command()
def close(
    plan: PlanArgument,
    who: Annotated[str, typer.Option(prompt=True)],
    why: Annotated[str, typer.Option(prompt=True)],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """End a plan for good. Files of a committed one become the orphan scan's."""
    with opened(config, "closing") as lifecycle:
        show(lifecycle.close_plan(plan, who=who, why=why), json=json, title=f"Plan {plan}")


@app.command()
def receipt(
    plan: Annotated[str, typer.Argument(help="The id of a plan, or of an orphan scan.", metavar="PLAN")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """The receipt of a finished deletion, as Markdown: what became of the files, by whose decision, and where every
    path stands."""
    with opened(config, "reading a receipt") as lifecycle:
        found = lifecycle.receipt(plan)
    if json:
        show(found, json=True, title="")
    else:
        out.print(found.to_markdown(), markup=False, soft_wrap=True)
        out.print(escape(found.location), style="dim", soft_wrap=True)


@app.command()
def pause(
    table: Annotated[str | None, typer.Argument(help="namespace.table; none is every table.")] = None,
    who: Annotated[str, typer.Option(prompt=True)] = "",
    why: Annotated[str, typer.Option(prompt=True)] = "",
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Stop all work on a table, or on every table, wherever it runs; workers notice within seconds."""
    with opened(config, "pausing") as lifecycle:
        show(lifecycle.pause(table, who=who, why=why), json=json, title="Paused")


@app.command()
def resume(
    table: Annotated[str | None, typer.Argument(help="namespace.table; none ends the pause of all.")] = None,
    who: Annotated[str | None, typer.Option(help="Default: the account.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """End a pause. What was stopped goes on with the next run."""
    with opened(config, "resuming") as lifecycle:
        ended, left = lifecycle.resume(table, who=who or lifecycle.owner), lifecycle.pauses()
    if json:
        show({"ended": ended, "in_force": left}, json=True, title="")
        return
    out.print(escape("\n".join(f"ended: {each}" for each in ended) or "there was no such pause"))
    for each in left:
        out.print(escape(f"still in force: {each}"))


@app.command()
def pauses(config: ConfigOption = None, json: JsonOption = False) -> None:
    """The pauses that are in force."""
    with opened(config, "reading pauses") as lifecycle:
        found = lifecycle.pauses()
    if json:
        show(found, json=True, title="")
        return
    rows = [(each.table or "every table", each.who, each.why, each.since) for each in found]
    show_table("Pauses in force", ["table", "who", "why", "since"], rows)


@app.command()
def quarantine(table: TableArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """What deletions moved into quarantine, until when it stays there, and what was brought back."""
    with opened(config, f"reading the quarantine of {table}") as lifecycle:
        found = lifecycle.quarantined(table)
    if json:
        show([asdict(record) | {"state": record.state} for record in found], json=True, title="")
        return
    rows = [
        (
            record.job_id,
            record.state,
            record.began_at,
            record.purge_after or "when its deletion is over",
            f"{record.undeleted_by}: {record.undeleted_why}" if record.undeleted_by else "",
        )
        for record in found
    ]
    show_table(f"Quarantine of {table}", ["plan or scan", "state", "since", "kept until", "brought back by"], rows)


@app.command()
def undelete(
    plan: Annotated[str, typer.Argument(help="The id of a plan, or of an orphan scan.", metavar="PLAN")],
    who: Annotated[str, typer.Option(prompt=True)],
    why: Annotated[str, typer.Option(prompt=True)],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Put what a deletion moved into quarantine back to its paths. Protected there until `artemis close PLAN`."""
    with opened(config, "bringing files back") as lifecycle:
        done = lifecycle.undelete(plan, who=who, why=why)
    show(done, json=json, title=f"Undelete of {plan}")
    if done.failed:
        raise typer.Exit(1)


@app.command("purge-quarantine")
def purge_quarantine(
    table: TableArgument, dry_run: DryRunOption = False, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Delete for good what was in quarantine for longer than `quarantine.retain`."""
    with opened(config, f"purging the quarantine of {table}") as lifecycle:
        done = lifecycle.purge_quarantine(table, dry_run=dry_run)
    if json:
        show(done, json=True, title="")
        return
    rows = [(each.job_id, each.deleted, each.bytes, each.failed) for each in done]
    told = "would be purged" if dry_run else "purged"
    show_table(f"Quarantine of {table}: {told}", ["plan or scan", "files", "bytes", "failed"], rows)


@app.command("forget-records")
def forget_records(dry_run: DryRunOption = False, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Delete the details of what is long over (`records` in lifecycle.yaml): batches, steps, leases, listings."""
    with opened(config, "looking through old records") as lifecycle:
        show(lifecycle.forget_records(dry_run=dry_run), json=json, title="Records")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def demo(context: typer.Context) -> None:
    """Make three tables with 400 days of history and run the whole walk on them, through Dagster."""
    # A process of its own: the demo brings Dagster, which the other verbs do without.
    raise typer.Exit(subprocess.call([sys.executable, "-m", "artemis_lifecycle.demo", *context.args]))


def main() -> None:
    """Entry point of the `artemis` command."""
    try:
        app()
    except LifecycleError as error:
        if "--json" in sys.argv:
            failure = {"error": type(error).__name__, "message": str(error), "table": error.table, "path": error.path}
            print(json_module.dumps(failure, indent=2))
        else:
            err.print(f"[red]{type(error).__name__}[/red]: {escape(str(error))}", soft_wrap=True)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
