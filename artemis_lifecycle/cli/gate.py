"""`artemis gate`: the lineage gate."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from artemis_lifecycle.cli.options import ConfigOption, JsonOption
from artemis_lifecycle.cli.output import say
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.embedded.addresses import fill
from artemis_lifecycle.errors import EnvironmentMissing

if TYPE_CHECKING:
    from artemis_lifecycle.gate.rules import Finding

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
