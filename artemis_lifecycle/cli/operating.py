"""Commands for operators: approvals, receipts, pauses, the quarantine, old records, the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from click import Choice
from rich.filesize import decimal

from artemis_lifecycle.cli.command import (
    WHO,
    ConfigOption,
    JsonOption,
    PersonOption,
    PlanOrScanArgument,
    ReasonOption,
    chosen_config,
    command,
)
from artemis_lifecycle.cli.expiration import approvals
from artemis_lifecycle.cli.output import (
    grid,
    print_fields,
    say,
    say_check,
    show,
    show_json,
    show_list,
    show_table,
    spinner,
)
from artemis_lifecycle.code_version import package_version
from artemis_lifecycle.errors import BadInput

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle
    from artemis_lifecycle.operations.plans import Approval

app = typer.Typer()


@command(app, "approving")
def approve(
    lifecycle: Lifecycle,
    plan: Annotated[str, typer.Argument(help="The id of a plan, or of a scan.", metavar="PLAN")],
    who: str,
    why: str,
    large: Annotated[
        bool,
        typer.Option(
            "--large", help="It may exceed max_files, max_bytes, max_share_of_table, or delete a dropped table's files."
        ),
    ] = False,
    lost: Annotated[bool, typer.Option("--lost", help="Its handoff may omit snapshots whose files are gone.")] = False,
) -> Iterator[object]:
    """Let a plan pass a guard. Each approval is for one thing: --large, --lost, or both. Records who, when and why."""
    if not large and not lost:
        raise BadInput(
            "The option that says what is approved is missing",
            untouched="the plan",
            hint=f"artemis approve {plan} --large, or --lost",
        )
    # The narrower one first: a scan, which can lose nothing, refuses it before anything is approved.
    wanted: list[tuple[Approval, bool]] = [("lost", lost), ("large", large)]
    for what in (what for what, asked in wanted if asked):
        approved = lifecycle.approve(plan, who=who, why=why, what=what, early=False)
    yield approved
    print_fields({"table": approved.table, "approved": approvals(approved)}, title=f"Plan {plan}")


@command(app, "closing", "Plan {plan}")
def close(lifecycle: Lifecycle, plan: str, who: str, why: str) -> object:
    """End a plan or scan permanently. Orphan scans take over the files of a committed plan."""
    return lifecycle.close_plan(plan, who=who, why=why)


@command(app, "reading a receipt")
def receipt(lifecycle: Lifecycle, plan: PlanOrScanArgument) -> Iterator[object]:
    """Print the receipt of a finished deletion as Markdown: what happened to the files, who decided it, and where every
    path is listed."""
    found = lifecycle.receipt(plan)
    yield found
    say(*found.to_markdown().splitlines(), unbroken=True)
    say(found.location, dim=True, unbroken=True)


@command(app, "taking the catalog over", name="take-over")
def take_over(lifecycle: Lifecycle, who: str, why: str) -> Iterator[object]:
    """Transfer the live catalog to this deployment, if another operations database is recorded for it."""
    return show_list(
        lifecycle.take_over(who=who, why=why),
        "Deployment of the live catalog",
        "catalog, operations database=deployment.address, root=deployment.root, since=recorded_at, who, why",
    )


@command(app, "preparing the databases")
def init(lifecycle: Lifecycle, dry_run: bool = False) -> Iterator[object]:
    """Make ahead what the first steps would make in the databases, as a login that may, and list where it is. No step
    needs it where its own login has the rights."""
    return show_list(
        lifecycle.prepare(dry_run=dry_run), "In the databases", "where, what, making it needs=needs, state"
    )


@app.command(epilog="Example: artemis doctor --write-probe")
def doctor(
    write_probe: Annotated[
        bool,
        typer.Option("--write-probe", help="Write, read and delete a small file in each root; compare stores' clocks."),
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Check the configuration and everything that it references in one pass, and show how to fix problems. Writes
    nothing, without --write-probe."""
    from artemis_lifecycle.doctor.diagnosis import diagnose

    with spinner("checking"):
        found = diagnose(config or chosen_config(), write_probe=write_probe)
    if json:
        show_json(found)
    else:
        for each in found:
            say_check(each.status, each.name, each.detail, each.fix)
    if any(each.status == "failed" for each in found):
        raise typer.Exit(1)


@command(app, "pausing", "Paused")
def pause(
    lifecycle: Lifecycle,
    table: Annotated[str | None, typer.Argument(help="namespace.table; default: every table.")] = None,
    who: PersonOption = "",
    why: ReasonOption = "",
) -> object:
    """Stop all work on a table, or on every table, on all machines. Workers notice within seconds."""
    return lifecycle.pause(table, who=who, why=why)


@command(app, "resuming")
def resume(
    lifecycle: Lifecycle,
    table: Annotated[str | None, typer.Argument(help="namespace.table; default: end the pause of all tables.")] = None,
    who: Annotated[str | None, typer.Option(*WHO, help="Default: the account.")] = None,
    why: Annotated[str | None, typer.Option(help="Recorded.")] = None,
) -> Iterator[object]:
    """End a pause. The next run continues what was stopped."""
    ended = lifecycle.resume(table, who=lifecycle.resources.owner if who is None else who, why=why)
    left = lifecycle.pauses()
    yield {"ended": ended, "in_force": left}
    over = [f"ended: {each}" for each in ended] or ["there was no such pause"]
    say(*over, *(f"still in force: {each}" for each in left))


@command(app, "reading decisions")
def decisions(
    lifecycle: Lifecycle,
    table: str | None = None,
    about: Annotated[str | None, typer.Option(help="The id of a plan, scan, hold, pause or thaw.")] = None,
) -> Iterator[object]:
    """Show who approved, closed, held, released, paused, resumed or restored what, when, why and with which account."""
    return show_list(
        lifecycle.decisions(table, about=about),
        "Decisions",
        "when=decided_at, decision=kind, about=subject, table, who, why, account, login of Postgres=login",
        login=lambda each: each.login if each.address is None else f"{each.login} from {each.address}",
    )


@command(app, "reading pauses")
def pauses(lifecycle: Lifecycle) -> Iterator[object]:
    """List the active pauses."""
    return show_list(
        lifecycle.pauses(), "Pauses in force", "table, who, why, since", table=lambda each: each.table or "every table"
    )


@command(app, "reading the quarantine of {table}")
def quarantine(lifecycle: Lifecycle, table: str) -> Iterator[object]:
    """Show what deletions moved into quarantine, until when it stays there, and what was restored."""
    found = lifecycle.quarantined(table)
    yield [asdict(record) | {"state": record.state} for record in found]
    rows = grid(
        found,
        "plan or scan=job_id, state, since=began_at, kept until=until, brought back by=by",
        until=lambda each: each.purge_after or "when its deletion is over",
        by=lambda each: f"{each.undeleted_by}: {each.undeleted_why}" if each.undeleted_by else "",
    )
    show_table(f"Quarantine of {table}", *rows)


@command(app, "bringing files back")
def undelete(lifecycle: Lifecycle, plan: PlanOrScanArgument, who: str, why: str) -> Iterator[object]:
    """Move files from quarantine back to their paths. They are protected there until `artemis close PLAN`."""
    done = lifecycle.undelete(plan, who=who, why=why)
    return show(done, title=f"Undelete of {plan}", exit_code=1 if done.failed else 0)


@command(app, "purging the quarantine of {table}", name="purge-quarantine", confirm="table")
def purge_quarantine(lifecycle: Lifecycle, table: str, dry_run: bool = False) -> Iterator[object]:
    """Delete permanently what was in quarantine for longer than `quarantine.retain`."""
    return show_list(
        lifecycle.purge_quarantine(table, dry_run=dry_run),
        f"Quarantine of {table}: {'would be purged' if dry_run else 'purged'}",
        "plan or scan=job_id, files=deleted, bytes, failed",
    )


@command(app, "checking old records", "Records", name="forget-records")
def forget_records(lifecycle: Lifecycle, dry_run: bool = False) -> object:
    """Delete the details of old work: batches, steps, leases, listings, refused commits (`records` in
    lifecycle.yaml)."""
    return lifecycle.forget_records(dry_run=dry_run)


@command(app, "publishing", "Result tables")
def publish(lifecycle: Lifecycle) -> object:
    """Append pending rows of plans and deletions to the result tables lifecycle.plan_files and deletions."""
    return {"plans_and_deletions": lifecycle.publish_results()}


@app.command(epilog="Example: artemis workers --count 2")
def workers(
    count: Annotated[int, typer.Option(min=1, help="Processes, each with a Spark session of its own.")] = 2,
    recycle_after: Annotated[
        int, typer.Option(min=1, help="Replace a process after this many runs, which frees what its JVM holds.")
    ] = 50,
) -> None:
    """Take Dagster's runs with live Spark sessions, so that no run starts a JVM. See docs/dagster.md."""
    arguments = ["-m", "artemis_lifecycle.defs.workers", "--count", str(count), "--recycle-after", str(recycle_after)]
    # In its place, so that it gets the signals: it loads Dagster, which the other commands do not need.
    os.execv(sys.executable, [sys.executable, *arguments])


_DEPLOYMENT = {
    "compose": "compose.yaml",
    "dagster.yaml": "dagster.yaml",
    "helm-values": "helm-values.yaml",
    "workspace.yaml": "workspace.yaml",
}


_LOGS_ON_S3 = {
    "dagster.yaml": "compute_logs:\n  module: dagster_aws.s3.compute_log_manager\n  class: S3ComputeLogManager\n"
    "  config: {bucket: %s, prefix: %s, upload_interval: 30}",
    "helm-values": "computeLogManager:\n  type: S3ComputeLogManager\n  config:\n"
    "    s3ComputeLogManager: {bucket: %s, prefix: %s, uploadInterval: 30}",
}
"""With an upload every 30 seconds: without one, a killed run leaves no log."""


def _logs_on_s3(what: str, logs: str) -> str:
    """Return the part of the file by which Dagster keeps the logs of runs at that address."""
    scheme, _, place = logs.partition("://")
    bucket, _, prefix = place.strip("/").partition("/")
    if what not in _LOGS_ON_S3 or scheme != "s3" or not bucket:
        raise BadInput(
            f"{what} takes no logs at {logs}", hint="--logs s3://BUCKET/PREFIX is for dagster.yaml and helm-values"
        )
    keys = json.dumps(bucket), json.dumps(prefix or "dagster")
    return f"\n# Logs of runs, on S3.\n{_LOGS_ON_S3[what] % keys}\n"


def deployment_text(what: str, logs: str | None = None) -> str:
    """Return one of the files of a deployment, with this version as the image's, and `logs` of runs on S3."""
    package = Path(__file__).parents[1]
    # A wheel has them inside the package, a clone beside it.
    places = (
        folder / _DEPLOYMENT[what] for folder in (package / "deployment", package.parent / "deploy", package.parent)
    )
    text = next(each for each in places if each.is_file()).read_text("utf-8").replace("@VERSION@", package_version())
    return text if logs is None else text + _logs_on_s3(what, logs)


@app.command(epilog="Example: artemis deployment compose")
def deployment(
    what: Annotated[str, typer.Argument(click_type=Choice(list(_DEPLOYMENT)), help="Which file.", metavar="FILE")],
    logs: Annotated[str | None, typer.Option(help="Keep the logs of runs there: s3://BUCKET/PREFIX.")] = None,
) -> None:
    """Print a file to deploy Artemis with: Docker Compose, Dagster's instance and workspace, values for Dagster's Helm
    chart. docs/deploy.md says how they are used."""
    typer.echo(deployment_text(what, logs), nl=False)


@app.command(epilog="Example: artemis pack-environment environment.tar.gz")
def pack_environment(
    archive: Annotated[Path, typer.Argument(help="A .tar.gz to write.", metavar="ARCHIVE")],
    python: Annotated[
        Path | None, typer.Option(help="The interpreter on the executors' machines; default: the one used here.")
    ] = None,
) -> None:
    """Pack this package and what it requires for Spark's executors, and print what lifecycle.yaml then says.
    docs/deploy.md says how it is used."""
    from artemis_lifecycle.spark import packing

    with spinner("packing"):
        packed = packing.pack_environment(archive, python)
    say(f"{len(packed)} packages, {decimal(archive.stat().st_size)}", dim=True)
    say(*packing.SETTINGS.format(archive=archive).splitlines(), unbroken=True)


@app.command(
    epilog="Example: artemis demo", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def demo(context: typer.Context) -> None:
    """Create three tables with 400 days of history and run the whole walk on them, through Dagster."""
    # A wheel has the demo inside the package, a clone beside it.
    beside = (Path(__file__).parents[levels] / "examples" for levels in (1, 2))
    examples = next(folder for folder in beside if (folder / "mission").is_dir())
    path = os.pathsep.join(filter(None, [str(examples), os.environ.get("PYTHONPATH")]))
    # In a separate process: it loads Dagster, which the other commands do not need.
    arguments = [sys.executable, "-m", "mission", *context.args]
    raise typer.Exit(subprocess.call(arguments, env={**os.environ, "PYTHONPATH": path}))
