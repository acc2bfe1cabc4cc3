"""The job that runs the checks of a table every day, whether or not something was materialized."""

from dagster import Failure, OpExecutionContext, job, op

from artemis_lifecycle.defs.checks import DAILY, JUDGES, LINEAGE_GATE, report
from artemis_lifecycle.defs.common import maintenance_job, waiting_op
from artemis_lifecycle.defs.partitions import tables
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.defs.tags import JOB_TAG, is_judged


@maintenance_job(
    "health_checks",
    "Runs the checks of a table that need no new materialization: ages, health, lineage, schemas, compactions, "
    "listing, orphan share, cold losses. Changes nothing.",
)
def check_health(context: OpExecutionContext, lifecycle: LifecycleResource) -> None:
    """Run the checks of the table that rewrite, copy and walk nothing. One that cannot run does not stop the others."""
    judged, red, broken = 0, list[str](), list[Failure]()
    for asset, name in DAILY:
        try:
            # A job of checks alone has no partitions in Dagster 1.13, so this op runs them.
            result = JUDGES[asset, name](context, lifecycle)  # type: ignore[arg-type]
        except Failure as failure:
            broken.append(failure)
            continue
        if not is_judged(result.metadata):
            continue
        judged += 1
        if not result.passed:
            red.append(f"{asset}: {name}")
        report(context, lifecycle, asset, name, result)
    context.add_output_metadata({"checks": judged, "not_passed": ", ".join(red) or "none"})
    if broken:
        raise broken[0]


@op(tags={"kind": "postgres"})
@waiting_op
def check_lineage(context: OpExecutionContext, lifecycle: LifecycleResource) -> None:
    """Run the check `lineage_gate` of the table. Starts no Spark."""
    asset = "lineage_ledger"
    result = JUDGES[asset, LINEAGE_GATE](context, lifecycle)  # type: ignore[arg-type]
    report(context, lifecycle, asset, LINEAGE_GATE, result)


@job(partitions_def=tables, tags={JOB_TAG: "lineage_check"})
def lineage_check() -> None:
    """Turns the check `lineage_gate` red or green. The sensor `lineage_watch` requests it for new snapshots that do not
    meet their table's requirements: Dagster 1.13 stores one evaluation of a partition without a run, and no second."""
    check_lineage()
