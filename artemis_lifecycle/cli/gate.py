"""`artemis gate`: the lineage gate in a database or before a REST catalog, what it refused, what the watch found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from artemis_lifecycle.cli.command import ConfigOption, JsonOption, chosen_config, command
from artemis_lifecycle.cli.output import grid, say, show, show_list, show_table
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.embedded.addresses import fill
from artemis_lifecycle.errors import EnvironmentMissing

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle
    from artemis_lifecycle.commits.gate import GateStatus
    from artemis_lifecycle.commits.requests import Finding

app = typer.Typer()
gate = typer.Typer(name="gate", no_args_is_help=True)
app.add_typer(gate, help="Refuse commits without lineage.")


@gate.command(epilog="Example: artemis gate serve --upstream https://catalog.example/api")
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
        from artemis_lifecycle.commits import server
    except ImportError as error:
        raise EnvironmentMissing.extra("gate", error) from error

    def found(finding: Finding, who: str) -> None:
        if json:
            print(dumps({"who": who, **asdict(finding)}), flush=True)
        else:
            did = "refused" if finding.refused else "reported"
            say(f"{did} {finding.table}: {'; '.join(finding.problems)} ({who})", unbroken=True)

    server.serve(
        fill(load_config(config or chosen_config())),
        upstream,
        host,
        port,
        found=found,
        ready=lambda at: print(dumps({"serving": at}), flush=True) if json else say(at, unbroken=True),
    )


@command(gate, "enabling the gate")
def enable(lifecycle: Lifecycle, dry_run: bool = False) -> Iterator[object]:
    """Refuse commits without lineage to tables whose lineage.mode is reject, or bring the gate's rules up to date."""
    return _show(lifecycle.enable_gate(dry_run=dry_run))


@command(gate, "disabling the gate")
def disable(lifecycle: Lifecycle, dry_run: bool = False) -> Iterator[object]:
    """Let every engine commit again. Recorded attempts stay."""
    return _show(lifecycle.disable_gate(dry_run=dry_run))


@command(gate, "reading the gate")
def status(lifecycle: Lifecycle) -> Iterator[object]:
    """Show whether the gate is enabled and whole, and how its rules differ from lifecycle.yaml."""
    found = lifecycle.gate_status()
    return _show(found, exit_code=3 if found.problems else 0)


def _show(found: GateStatus, exit_code: int = 0) -> Iterator[object]:
    return show(found, title=f"Lineage gate of catalog {found.catalog}", exit_code=exit_code)


@command(gate, "reading the gate's attempts")
def attempts(lifecycle: Lifecycle, table: str | None = None) -> Iterator[object]:
    """List commits that the gate refused, or recorded in mode report, newest first."""
    return show_list(
        lifecycle.gate_attempts(table),
        "Commits with problems",
        "when=attempted_at, table, login=attempted_by, application, refused, problems",
    )


@command(gate, "reading the watch of {table}")
def unmet(lifecycle: Lifecycle, table: str) -> Iterator[object]:
    """List the snapshots that do not meet the table's requirements and are not acknowledged."""
    found = lifecycle.check_lineage(table)
    return show_list(
        found.unmet,
        f"Unmet snapshots of {table}, whose mode is {found.mode}",
        "snapshot=snapshot_id, committed=committed_at, found=found_at, problems",
    )


@command(gate, "acknowledging the snapshots of {table}")
def acknowledge(lifecycle: Lifecycle, table: str, who: str, why: str) -> Iterator[object]:
    """Accept the table's unmet snapshots: the check lineage_gate is green again. Records who, when and why."""
    found = lifecycle.acknowledge_lineage(table, who=who, why=why)
    yield found
    if not found:
        say("nothing to acknowledge")
        return
    columns = "snapshot=snapshot_id, committed=committed_at, problems"
    show_table(f"Acknowledged snapshots of {table}", *grid(found, columns))
