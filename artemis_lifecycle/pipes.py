"""One step of the walk as a job of EMR Serverless, Glue, Databricks, Spark's operator or any other place:

    python -m artemis_lifecycle.pipes STEP TABLE        (STEP is the asset's name)

The asset launches it by Dagster Pipes (https://docs.dagster.io/guides/build/external-pipelines), and gets the step's
figures, or its error. The job needs neither Dagster nor its database. Under spark-submit it uses that session, which
must have the jars that `python -m artemis_lifecycle.embedded jars` gets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

from dagster_pipes import (
    PipesCliArgsParamsLoader,
    PipesContext,
    PipesEnvVarParamsLoader,
    PipesS3ContextLoader,
    PipesS3MessageWriter,
    open_dagster_pipes,
)

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.cli.command import instant
from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.errors import BadInput, LifecycleError, NoSuchPlan, Refused
from artemis_lifecycle.operations.plans import PlanRecord, PlanStatus
from artemis_lifecycle.orphans.external_listing import Inventory, ParquetListing
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.live_inventory import LiveInventory
from artemis_lifecycle.orphans.scan import OrphanScanResult

ERROR = "artemis_lifecycle.error"
"""The key of a message with the parts of a step's error."""

Asked = Mapping[str, Any]
"""What the asset's configuration sets: texts, lists of texts, and `dry_run`."""


def newest_plan(lifecycle: Lifecycle, table: str) -> PlanRecord:
    """Return the table's newest plan that is neither superseded nor closed. Raises NoSuchPlan."""
    for record in lifecycle.plans(table):
        if record.status not in (PlanStatus.SUPERSEDED, PlanStatus.CLOSED):
            return record
    raise NoSuchPlan(
        "The table has no plan", table=table, untouched="the table", hint="materialize expiration_plan for it first"
    )


def planned(lifecycle: Lifecycle, table: str, asked: Asked) -> Any:
    """Plan an expiration."""
    return lifecycle.plan_expiration(
        table,
        older_than=instant(asked.get("older_than")),
        retain_last=asked.get("retain_last"),
        snapshot_ids=[snapshot_id(each) for each in asked.get("snapshot_ids") or ()] or None,
    )


def due(lifecycle: Lifecycle, table: str, *, dry_run: bool) -> list[str]:
    """Return the plans whose files are to be deleted; of a dry run, also the uncommitted one."""
    plans = [record.plan_id for record in lifecycle.due_plans(table)]
    open_plan = lifecycle.uncommitted_plan(table) if dry_run else None
    return plans if open_plan is None else [*plans, open_plan.plan_id]


def scanned(lifecycle: Lifecycle, table: str, asked: Asked) -> OrphanScanResult:
    """Return the approved scan, or a new one. A person who sets anything wants a new one."""
    if not any(asked.get(each) for each in ("older_than", "inventory", "listing", "listed_at")):
        return lifecycle.approved_scan(table) or lifecycle.scan_orphans(table, listing=lifecycle.latest_listing(table))
    inventory, listing = asked.get("inventory"), asked.get("listing")
    if inventory is not None and listing is not None:
        raise BadInput(
            "An inventory and a listing exclude each other", table=table, untouched="all files", hint="set one of them"
        )
    given: Inventory | LiveInventory | ParquetListing | Listing | None = lifecycle.latest_listing(table)
    if inventory is not None:
        given = lifecycle.inventory(inventory)
    elif listing is not None:
        given = lifecycle.parquet_listing(listing)
    older_than, listed_at = instant(asked.get("older_than")), instant(asked.get("listed_at"))
    return lifecycle.scan_orphans(table, older_than=older_than, listing=given, listed_at=listed_at)


def scans_to_delete(lifecycle: Lifecycle, table: str) -> list[str]:
    """Return the interrupted scans of a table, then its approved or newest one. Raises NoSuchPlan without a scan."""
    scan = lifecycle.approved_scan(table) or lifecycle.latest_scan(table)
    if scan is None:
        raise NoSuchPlan(
            "The table has no scan", table=table, untouched="all files", hint="materialize orphan_scan first"
        )
    begun = [record.scan_id for record in lifecycle.interrupted_scans(table) if record.scan_id != scan.scan_id]
    return [*begun, scan.scan_id]


def snapshot_id(text: str) -> int:
    """Return a snapshot id. Raises BadInput."""
    try:
        return int(text)
    except ValueError as error:
        raise BadInput(f"{text!r} is not a snapshot id", untouched="everything", hint="use its digits") from error


def delete_each(
    ids: Sequence[str], delete: Callable[[str], DeletionReport]
) -> tuple[list[DeletionReport], list[tuple[str, Refused]]]:
    """Delete each plan or scan. Return the reports, and those that a guard refused, which wait for a person.

    A refused one does not stop the others. Raises the first refusal if no other was deleted.
    """
    reports, refused = list[DeletionReport](), list[tuple[str, Refused]]()
    for each in ids:
        try:
            reports.append(delete(each))
        except Refused as refusal:
            refused.append((each, refusal))
    if refused and not reports:
        raise refused[0][1]
    return reports, refused


def _delete(delete: Callable[..., DeletionReport], ids: list[str], *, dry_run: bool) -> dict[str, Any]:
    reports, refused = delete_each(ids, lambda job_id: delete(job_id, dry_run=dry_run))
    found: dict[str, Any] = {"jobs": ", ".join(ids) or "none"}
    if refused:
        first = refused[0][1]
        said = {"waits_for": type(first).__name__, "why": str(first), "next": first.hint or "", "outcome": "waiting"}
        found |= said | {"refused": "; ".join(f"{each}: {why}" for each, why in refused)}
    for report in reports:
        for name, value in figures(report).items():
            found[name] = value if isinstance(value, str | bool) else found.get(name, 0) + value
    return found


STEPS: Mapping[str, Callable[[Lifecycle, str, Asked], object]] = {
    "snapshot_history": lambda lifecycle, table, asked: lifecycle.snapshot_history(table),
    "reachable_set": lambda lifecycle, table, asked: lifecycle.reachable_set(table),
    "expiration_plan": planned,
    "cold_tier_snapshots": lambda lifecycle, table, asked: lifecycle.hand_off(
        newest_plan(lifecycle, table).plan_id, dry_run=asked["dry_run"]
    ),
    "expiration_commit": lambda lifecycle, table, asked: lifecycle.commit_expiration(
        newest_plan(lifecycle, table).plan_id, dry_run=asked["dry_run"]
    ),
    "physical_deletion": lambda lifecycle, table, asked: _delete(
        lifecycle.delete_files, due(lifecycle, table, dry_run=asked["dry_run"]), dry_run=asked["dry_run"]
    ),
    "object_listing": lambda lifecycle, table, asked: lifecycle.list_objects(table),
    "orphan_scan": scanned,
    "orphan_deletion": lambda lifecycle, table, asked: _delete(
        lifecycle.delete_orphans, scans_to_delete(lifecycle, table), dry_run=asked["dry_run"]
    ),
    "table_health": lambda lifecycle, table, asked: lifecycle.table_health(table),
    "compacted_manifests": lambda lifecycle, table, asked: lifecycle.compact_manifests(table, dry_run=asked["dry_run"]),
    "compacted_data_files": lambda lifecycle, table, asked: lifecycle.compact_data_files(
        table, dry_run=asked["dry_run"]
    ),
}
"""What each asset does, by its name."""


def figures(result: object) -> dict[str, Any]:
    """Return the plain values of a result, and of its summary."""
    if isinstance(result, dict):
        return result
    found: dict[str, Any] = {}
    for each in fields(result) if is_dataclass(result) else ():
        value = getattr(result, each.name)
        if each.name == "summary":
            found |= figures(value)
        elif isinstance(value, str | int | float):
            found[each.name] = str(value) if each.name.endswith("_id") else value
        elif isinstance(value, datetime):
            found[each.name] = value.isoformat(timespec="seconds")
    return found


def main() -> int:
    """Run the step of the command line, or of the asset's message where a job takes no arguments; and report to
    Dagster. An error of this project is reported; the job itself does not fail."""
    loaders = (PipesCliArgsParamsLoader(), PipesEnvVarParamsLoader())  # type: ignore[no-untyped-call]
    params = next((each for each in loaders if each.is_dagster_pipes_process()), None)
    if params is None:
        sys.stderr.write("No Dagster asset launched this job: use the artemis command instead.\n")
        return 2
    context, messages = None, None
    in_bucket = ["bucket" in each for each in (params.load_context_params(), params.load_messages_params())]
    if any(in_bucket):
        import boto3

        client = boto3.client("s3")
        context = PipesS3ContextLoader(client) if in_bucket[0] else None
        messages = PipesS3MessageWriter(client) if in_bucket[1] else None
    with open_dagster_pipes(context_loader=context, message_writer=messages, params_loader=params) as pipes:
        given = [] if len(sys.argv) < 3 or sys.argv[1].startswith("--") else sys.argv[1:3]
        step, table = given or (pipes.get_extra("step"), pipes.get_extra("table"))
        if step not in STEPS:
            sys.stderr.write(f"{step} is not a step: it is one of {', '.join(STEPS)}\n")
            return 2
        _run(pipes, step, table)
    return 0


def _run(pipes: PipesContext, step: str, table: str) -> None:
    asked = dict(pipes.extras)
    asked["dry_run"] = asked.get("dry_run") is not False
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark.sql import SparkSession

        # The session that spark-submit configured; another master would be one of its driver alone.
        SparkSession.builder.getOrCreate()
    try:
        with Lifecycle.open(
            asked.pop("config_path", None),
            owner="dagster",
            run_id=pipes.run_id,
            in_quiet_window=asked.pop("in_quiet_window", False),
        ) as lifecycle:
            found = figures(STEPS[step](lifecycle, table, asked))
    except LifecycleError as error:
        parts = {name: getattr(error, name) for name in ("what", "table", "path", "untouched", "hint")}
        pipes.report_custom_message({ERROR: {"type": type(error).__name__, **parts}})
        return
    pipes.report_asset_materialization(metadata=found)


if __name__ == "__main__":
    raise SystemExit(main())
