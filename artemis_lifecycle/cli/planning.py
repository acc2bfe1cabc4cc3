"""`artemis plan-query`: what a query's scan reads, pass by pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from artemis_lifecycle.cli.command import FilesOption, PlotOption, TableArgument, command
from artemis_lifecycle.cli.output import say, show_table

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle
    from artemis_lifecycle.planning.plan import QueryPlan


app = typer.Typer()


@command(app, "planning a query of {table}", name="plan-query")
def plan_query(
    lifecycle: Lifecycle,
    table: TableArgument,
    predicate: Annotated[str, typer.Argument(help="A row filter, e.g. \"day >= '2024-03-15' and region = 'eu'\".")],
    snapshot_id: Annotated[int | None, typer.Option(help="Plan on this snapshot.")] = None,
    ref: Annotated[str | None, typer.Option(help="Plan on this branch or tag.")] = None,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", help="Match column names in any case.")] = False,
    footers: Annotated[int, typer.Option(help="Read the Parquet footers of at most so many selected files.")] = 0,
    files: FilesOption = False,
    limit: Annotated[int, typer.Option(help="The most files to list.")] = 20,
    plot: PlotOption = None,
) -> Iterator[object]:
    """Show what a query reads: manifests, files, row groups; and what maintenance would spare it. Starts no Spark."""
    plan = lifecycle.plan_query(
        table, predicate, snapshot_id=snapshot_id, ref=ref, case_sensitive=not ignore_case, footers=footers
    )
    if plot is not None:
        plot.write_bytes(plan.plot(plot.suffix[1:]))
    listed = plan.to_arrow().slice(0, limit).to_pylist() if files else []
    yield {**plan.figures(), "files": listed} if files else plan.figures()
    _show(plan)
    if files:
        rows = [
            (
                row["path"],
                decimal(row["size_in_bytes"]),
                f"{row['record_count']:,}",
                len(row["deletes"]),
                row["residual"],
            )
            for row in listed
        ]
        show_table("Data files", ("path", "bytes", "records", "deletes", "left to filter"), rows)
        if plan.files_selected > limit:
            say(f"(the first {limit} of {plan.files_selected:,}; --limit shows more)", dim=True)
    if plot is not None:
        say(f"Written to {plot}", dim=True)


def _show(plan: QueryPlan) -> None:
    show_table(
        f"{plan.table}: {plan.predicate}",
        ("pass", "read", "bytes", "left", "bytes left", "pruned"),
        [
            (
                f"{number} {each.name}",
                f"{each.total:,}",
                decimal(each.bytes_total),
                f"{each.selected:,}",
                decimal(each.bytes_selected),
                f"{each.pruned_share:.1%}",
            )
            for number, each in enumerate(plan.passes, 1)
        ],
    )
    total = "" if plan.files_total is None else f" of the {plan.files_total:,} in the snapshot"
    say(f"A scan reads {plan.files_selected:,} data files{total}: {plan.records_selected:,} records.")
    if plan.delete_files:
        kinds = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in plan.delete_files.items())
        say(f"Deletes apply: {kinds}, {decimal(plan.delete_bytes)}, opened {plan.delete_opens:,} times.")
    for reason, count in plan.footers_skipped.items():
        say(f"Footers not read, {reason}: {count:,} files.")
    if not plan.advice:
        say("No maintenance would spare this query anything.")
        return
    show_table(
        "What maintenance would spare it, one request after another",
        ("maintenance", "why", "reads", "then", "bytes saved", "seconds saved"),
        [
            (
                each.command.replace("TABLE", plan.table),
                each.what,
                f"{each.now:,}",
                f"{each.then:,}",
                decimal(max(each.bytes_saved, 0)),
                f"{each.seconds_saved:,.1f}",
            )
            for each in plan.advice
        ],
    )
