"""Commands that answer questions: a file's fate, rows of any tier, SQL."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from artemis_lifecycle.cli.command import INSTANT, WHO, WHY, command, instant_option, picture
from artemis_lifecycle.cli.output import (
    as_json,
    collected,
    err,
    grid,
    plain,
    print_rows,
    say,
    show,
    show_rows,
    show_table,
)
from artemis_lifecycle.cli.tags_and_holds import print_tag
from artemis_lifecycle.config.durations import format_duration
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.escaping import terminal

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle
    from artemis_lifecycle.audit.answers import Lineage
    from artemis_lifecycle.cold_tier.queries import Query, TagStatement
    from artemis_lifecycle.cold_tier.reads import Route

app = typer.Typer()
audit = typer.Typer()


@command(app, "searching for the file")
def explain(
    lifecycle: Lifecycle,
    table: str,
    path: Annotated[str, typer.Argument(help="A file's path, in the spelling of the metadata or the store.")],
) -> Iterator[object]:
    """Show what holds this file, since when and until when; or which plan or scan deleted it. Exits with 2 for a path
    that nothing knows."""
    found = lifecycle.explain(table, path)
    # A script that checks a file before it removes it must not take `unknown` for an answer.
    return show(found, title=path, exit_code=2 if found.verdict == "unknown" else 0)


@command(app, "reading {table}")
def read(
    lifecycle: Lifecycle,
    table: str,
    as_of: datetime | None = None,
    snapshot_id: int | None = None,
    tag: str | None = None,
    limit: int = 20,
) -> Iterator[object]:
    """Read rows of a table now, at an instant, of a snapshot or a tag, from the live or the cold catalog. Shows
    which."""
    route = lifecycle.route(table, as_of=as_of, snapshot_id=snapshot_id, tag=tag)
    if route.readable_in is not None:
        yield from _show_in_archive({table: route})
        return
    frame = lifecycle.read(table, as_of=as_of, snapshot_id=snapshot_id, tag=tag)
    began = time.monotonic()
    yield from show_rows(
        frame, limit=limit, title=f"{table} from the {route.tier} catalog, snapshot {route.snapshot_id}"
    )
    _show_latency([route], time.monotonic() - began)


@command(app, "querying")
def query(
    lifecycle: Lifecycle,
    sql: Annotated[
        str,
        typer.Argument(
            help="SELECT … FROM namespace.table FOR TAG 'x', or TAG SNAPSHOT n AS 'x' WITH RETENTION FOREVER."
        ),
    ],
    table: Annotated[str | None, typer.Option(help="The table of a TAG statement without one.")] = None,
    as_of: Annotated[
        datetime | None, instant_option("--as-of", help="An instant, for tables without a FOR clause.")
    ] = None,
    reason: Annotated[str, typer.Option(*WHY, help="Recorded with a tag.")] = "",
    owner: Annotated[str | None, typer.Option(*WHO, help="Who is responsible for a tag; default: you.")] = None,
    translate: Annotated[bool, typer.Option("--translate", help="Show the Spark SQL; run nothing.")] = False,
    limit: int = 20,
) -> Iterator[object]:
    """Read a table's history in SQL, from the tier that has it, and tag snapshots in SQL. Also shows the Spark SQL."""
    from artemis_lifecycle.api import Tagged
    from artemis_lifecycle.cold_tier.queries import Query

    found = lifecycle.translate(sql, table=table, as_of=as_of)
    shown: dict[str, object] = {"sql": found.sql, "spark_sql": found.spark_sql}
    if isinstance(found, Query):
        shown["sources"] = as_json(found.sources)
    sources = {source.table: source for source in getattr(found, "sources", ())}
    if any(source.readable_in is not None for source in sources.values()) and not translate:
        waiting = _show_in_archive(sources)
        yield next(waiting)
        _show_translation(found)
        next(waiting, None)
        return
    if translate:
        yield shown
        _show_translation(found)
        return
    began = time.monotonic()
    try:
        result = lifecycle.query(found, who=owner, why=reason)
        rows = [] if isinstance(result, Tagged) else collected(result, limit)
    except LifecycleError:
        # The statement that failed, beside what is wrong with it.
        err.print(plain(found.spark_sql), style="dim", soft_wrap=True)
        raise
    seconds = time.monotonic() - began
    if isinstance(result, Tagged):
        yield shown | {"tag": as_json(result)}
        _show_translation(found)
        print_tag(result)
    else:
        yield shown | {"rows": rows, "seconds": round(seconds, 3)}
        _show_translation(found)
        print_rows(result.columns, rows, limit, "Rows")
        _show_latency(getattr(found, "sources", ()), seconds)


def _show_translation(found: Query | TagStatement) -> None:
    rows: list[tuple[str, object]] = [
        ("yours", found.sql.strip().split("\n")),
        ("Spark's", found.spark_sql.split("\n")),
    ]
    for source in getattr(found, "sources", ()):
        at = "no snapshot yet" if source.snapshot_id is None else f"snapshot {source.snapshot_id}"
        where = "deep archive" if source.tier == "deep-archive" else f"{source.tier} catalog"
        rows.append(("reads", f"{source.table} {source.clause}".strip() + f" → {where}, {at}"))
    show_table("", ("", ""), rows, header=False)


def _show_in_archive(found: Mapping[str, Route]) -> Iterator[object]:
    """Say that there is an answer, and how long it takes until it is readable."""
    waiting = {table: source for table, source in found.items() if source.readable_in is not None}
    yield [
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
    for table, source in waiting.items():
        hours = source.hours_until_readable
        where = f"the deep archive ({source.storage_class})"
        say(f"{table}: snapshot {source.snapshot_id} is in {where}: not read")
        if source.thaw is None:
            say(f"readable about {hours:.0f} hours after a second person approves a thaw; request one:")
            how = f"artemis thaw {quote(table)} --snapshot-id {source.snapshot_id} --case … --who … --why …"
            say(f"    {how}", unbroken=True)
        else:
            say(f"readable in about {hours:.0f} hours: {source.thaw}")


def _show_latency(sources: Sequence[Route], seconds: float) -> None:
    """Show the expected latency of the tiers that answered, and the actual time."""
    tiers = {source.tier: source for source in sources}
    said = []
    for tier, source in sorted(tiers.items()):
        kind = f" ({source.storage_class})" if source.storage_class else ""
        expected = "" if source.expected_latency is None else f", expected {format_duration(source.expected_latency)}"
        said.append(f"{tier}{kind}{expected}")
    if said:
        say(f"answered in {seconds:.1f} s by {'; '.join(said)}", dim=True)


# --- audit ------------------------------------------------------------------------------------------------------------
# Commands that answer audit questions: who ingested, what is downstream, who overwrote; and the incident report.

StatesOption = Annotated[
    bool,
    typer.Option(
        "--states/--exact",
        help="Readers of later states of a table count, because these contain the snapshot; or only of the snapshot.",
    ),
]


def _graph(plot: Path | None) -> Path | None:
    if plot is not None and picture(plot) and plot.suffix != ".svg":
        raise typer.BadParameter("the graph is an .svg file")
    return plot


GraphOption = Annotated[
    Path | None, typer.Option("--plot", callback=_graph, help="Write the graph to this file (.svg).")
]


@command(audit, "reading the lineage ledger")
def ingested(
    lifecycle: Lifecycle,
    table: str,
    partition: Annotated[str | None, typer.Option(help="Such as day=2024-03-15, or day=2024-03-15/region=eu.")] = None,
    path: Annotated[str | None, typer.Option(help="A data file's path, live or cold.")] = None,
) -> Iterator[object]:
    """Show when a partition or a data file was ingested, by which writer at which commit hash; also expired history."""
    found = lifecycle.ingested(table, partition, path)
    yield {**_fields(found), "files": [each._asdict() for each in found.rows()]}
    facts = ("snapshot_id", "committed_at", "writer_id", "commit_hash")
    show_table("", ("", ""), [(each.replace("_", " "), getattr(found, each)) for each in facts], header=False)
    columns = ("path", "snapshot", "operation", "committed", "writer", "commit", "tier", "partition")
    show_table("Data files", columns, found.rows())
    if found.untraced:
        say(f"The inputs of {len(found.untraced)} compactions are in no tier: earlier ingests may be missing.")
    _show_notes(found.unrecorded)


@command(audit, "reading the lineage ledger")
def downstream(
    lifecycle: Lifecycle, table: str, snapshot_id: int, states: StatesOption = True, plot: GraphOption = None
) -> Iterator[object]:
    """Show every snapshot that read this one, in any table, directly or through others: its blast radius."""
    return _show_lineage(lifecycle.downstream(table, snapshot_id, states=states), plot)


@command(audit, "reading the lineage ledger")
def upstream(
    lifecycle: Lifecycle, table: str, snapshot_id: int, states: StatesOption = False, plot: GraphOption = None
) -> Iterator[object]:
    """Show every snapshot that this one read, in any table, directly or through others."""
    return _show_lineage(lifecycle.upstream(table, snapshot_id, states=states), plot)


@command(audit, "reading the lineage ledger")
def overwrites(
    lifecycle: Lifecycle,
    since: Annotated[datetime, instant_option(help=INSTANT)],
    until: Annotated[datetime | None, instant_option(help="An instant; default: now.")] = None,
    table: Annotated[str | None, typer.Option(help="One table; default: all.")] = None,
) -> Iterator[object]:
    """Show who triggered overwrites and deletes, why and under which ticket, and what their summaries miss."""
    found = lifecycle.overwrites(since, until or datetime.now(UTC), table)
    _warn(found.unreadable)
    yield found
    columns = "committed=committed_at, table, snapshot=snapshot_id, operation, who, writer, why, ticket, missing"
    show_table(f"{len(found.rows):,} overwrites, {len(found.incomplete):,} incomplete", *grid(found.rows, columns))
    _show_notes(found.unrecorded)


@command(audit, "reading the lineage ledger")
def incident(
    lifecycle: Lifecycle,
    table: str,
    snapshot_id: int,
    html: Annotated[Path | None, typer.Option("--html", help="Write the report with its graph to this file.")] = None,
    states: StatesOption = True,
) -> Iterator[object]:
    """Print a report about a snapshot in Markdown, to attach to a ticket: writer, blast radius, inputs, overwrites."""
    report = lifecycle.incident(table, snapshot_id, states=states)
    _warn(report.unreadable)
    if html is not None:
        html.write_text(report.html, encoding="utf-8")
    yield report
    print(report.markdown)


def _show_lineage(found: Lineage, plot: Path | None) -> Iterator[object]:
    if plot is not None:
        plot.write_text(found.svg(), encoding="utf-8")
    edges = [{"depth": depth, "from": s._asdict(), "to": t._asdict()} for depth, s, t in found.edges]
    snapshots = [each._asdict() for each in found.snapshots]
    _warn(found.unreadable)
    yield {**_fields(found), "left_out": found.left_out, "edges": edges, "snapshots": snapshots}
    rows = [
        (depth, f"{source.table} {source.snapshot_id}", f"{target.table} {target.snapshot_id}")
        for depth, source, target in found.edges
    ]
    title = f"{len(found.snapshots):,} snapshots {found.direction} of {found.table} {found.snapshot_id}"
    show_table(title, ("depth", "read", "by"), rows)
    if found.left_out:
        say(
            f"Left out: {found.left_out:,} snapshots that are {found.direction} of states of a table that "
            f"{'contain' if found.direction == 'downstream' else 'are in'} the ones above; with --states they count."
        )
    _show_notes(found.unrecorded)


def _fields(value: object) -> dict[str, object]:
    public = as_json(value)
    assert isinstance(public, dict)
    return public


def _warn(unreadable: Sequence[str]) -> None:
    if unreadable:
        names = ", ".join(map(terminal, unreadable))
        typer.echo(f"Cannot read the metadata of {names}: what the ledger does not have of it yet is missing", err=True)


def _show_notes(unrecorded: int) -> None:
    if unrecorded:
        say(f"Read from metadata, because the ledger does not have them yet: {unrecorded:,} snapshots", dim=True)
