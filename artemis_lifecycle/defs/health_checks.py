"""The job that runs the checks of a table every day, whether or not something was materialized."""

from dagster import Failure, OpExecutionContext, job, op

from artemis_lifecycle.defs.checks import DAILY, LINEAGE_GATE, evaluation, judge_lineage
from artemis_lifecycle.defs.common import maintenance_job, waiting_op
from artemis_lifecycle.defs.partitions import table_of, tables
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.defs.tags import JOB_TAG


@maintenance_job(
    "health_checks",
    "Runs the checks of a table that need no new materialization: ages, health, lineage, schemas, compactions, "
    "listing, orphan share, cold losses. Changes nothing.",
)
def check_health(context: OpExecutionContext, lifecycle: LifecycleResource) -> None:
    """Run the checks of the table that rewrite, copy and walk nothing. One that cannot run does not stop the others."""
    red, broken = list[str](), list[Failure]()
    for (asset, name), judge in DAILY.items():
        try:
            # A job of checks alone has no partitions in Dagster 1.13, so this op runs them.
            result = judge(context, lifecycle)  # type: ignore[arg-type]
        except Failure as failure:
            broken.append(failure)
            continue
        if not result.passed:
            red.append(f"{asset}: {name}")
        found = evaluation(lifecycle.key(asset), name, context.partition_key, result)
        context.log_event(found)  # type: ignore[arg-type]  # Dagster accepts these; its annotation omits them.
    context.add_output_metadata({"checks": len(DAILY), "not_passed": ", ".join(red) or "none"})
    if broken:
        raise broken[0]


@op(tags={"kind": "postgres"})
@waiting_op
def check_lineage(context: OpExecutionContext, lifecycle: LifecycleResource) -> None:
    """Run the check `lineage_gate` of the table. Starts no Spark."""
    result = judge_lineage(lifecycle.get().check_lineage(table_of(context.partition_key)))
    found = evaluation(lifecycle.key("lineage_ledger"), LINEAGE_GATE, context.partition_key, result)
    context.log_event(found)  # type: ignore[arg-type]  # Dagster accepts these; its annotation omits them.


@job(partitions_def=tables, tags={JOB_TAG: "lineage_check"})
def lineage_check() -> None:
    """Turns the check `lineage_gate` red or green. The sensor `lineage_watch` requests it for new snapshots that do not
    meet their table's requirements: Dagster 1.13 stores one evaluation of a partition without a run, and no second."""
    check_lineage()
