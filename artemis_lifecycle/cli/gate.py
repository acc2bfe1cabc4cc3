"""`artemis gate`: the lineage gate in a database or before a REST catalog, what it refused, what the watch found."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from artemis_lifecycle.cli.options import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    PersonOption,
    ReasonOption,
    TableArgument,
)
from artemis_lifecycle.cli.output import opened, say, show, show_list
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.embedded.addresses import fill
from artemis_lifecycle.errors import EnvironmentMissing

if TYPE_CHECKING:
    from artemis_lifecycle.gate.rules import Finding
    from artemis_lifecycle.lifecycle.gate import GateStatus

app = typer.Typer()
gate = typer.Typer(no_args_is_help=True)
app.add_typer(gate, name="gate", help="Refuse commits without lineage.")


@gate.command()
def serve(
    upstream: Annotated[str, typer.Option(help="The address of an Iceberg REST catalog, with its path.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8181,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Refuse commits without lineage to an Iceberg REST catalog: a proxy before it, for every client.

    Uses the section `lineage` of the entries of `tables` in lifecycle.yaml, read at the start. With --json, prints one
    line per refused or reported commit.
    """
    try:
        from artemis_lifecycle.gate import server
    except ImportError as error:
        raise EnvironmentMissing.extra("gate", error) from error

    def found(finding: Finding, who: str) -> None:
        if json:
            print(dumps({"who": who, **asdict(finding)}), flush=True)
        else:
            did = "refused" if finding.refused else "reported"
            say(f"{did} {finding.table}: {'; '.join(finding.problems)} ({who})", unbroken=True)

    server.serve(
        fill(load_config(config)),
        upstream,
        host,
        port,
        found=found,
        ready=lambda at: print(dumps({"serving": at}), flush=True) if json else say(at, unbroken=True),
    )


@gate.command()
def enable(dry_run: DryRunOption = False, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Refuse commits without lineage to tables whose lineage.mode is reject, or bring the gate's rules up to date."""
    with opened(config, "enabling the gate") as lifecycle:
        _show(lifecycle.enable_gate(dry_run=dry_run), json=json)


@gate.command()
def disable(dry_run: DryRunOption = False, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Let every engine commit again. Recorded attempts stay."""
    with opened(config, "disabling the gate") as lifecycle:
        _show(lifecycle.disable_gate(dry_run=dry_run), json=json)


@gate.command()
def status(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show whether the gate is enabled and whole, and how its rules differ from lifecycle.yaml."""
    with opened(config, "reading the gate") as lifecycle:
        found = lifecycle.gate_status()
    _show(found, json=json)
    if found.problems:
        raise typer.Exit(3)


def _show(found: GateStatus, *, json: bool) -> None:
    show(found, json=json, title=f"Lineage gate of catalog {found.catalog}")


@gate.command()
def attempts(
    table: Annotated[str | None, typer.Argument(help="namespace.table; default: all tables", metavar="TABLE")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List commits that the gate refused, or recorded in mode report, newest first."""
    with opened(config, "reading the gate's attempts") as lifecycle:
        found = lifecycle.gate_attempts(table)
    show_list(
        found,
        json=json,
        title="Commits with problems",
        columns=("when", "table", "login", "application", "refused", "problems"),
        row=lambda each: (
            each.attempted_at, each.table, each.attempted_by, each.application, each.refused, each.problems,
        ),
    )  # fmt: skip


@gate.command()
def unmet(table: TableArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the snapshots that do not meet the table's requirements and are not acknowledged."""
    with opened(config, f"reading the watch of {table}") as lifecycle:
        found = lifecycle.check_lineage(table)
    show_list(
        found.unmet,
        json=json,
        title=f"Unmet snapshots of {table}, whose mode is {found.mode}",
        columns=("snapshot", "committed", "found", "problems"),
        row=lambda each: (each.snapshot_id, each.committed_at, each.found_at, each.problems),
    )


@gate.command()
def acknowledge(
    table: TableArgument,
    who: PersonOption,
    why: ReasonOption,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Accept the table's unmet snapshots: the check lineage_gate is green again. Records who, when and why."""
    with opened(config, f"acknowledging the snapshots of {table}") as lifecycle:
        found = lifecycle.acknowledge_lineage(table, who=who, why=why)
    if not json and not found:
        say("nothing to acknowledge")
        return
    show_list(
        found,
        json=json,
        title=f"Acknowledged snapshots of {table}",
        columns=("snapshot", "committed", "problems"),
        row=lambda each: (each.snapshot_id, each.committed_at, each.problems),
    )
