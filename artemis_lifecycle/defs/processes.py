"""The processes of runs: how many run at once, and runs that Dagster lists as under way although their process ended:
killed runs stay STARTED forever."""

import os

import dagster as dg

from artemis_lifecycle.operations.leases import is_over, mark

SPARK_POOL = "artemis_spark"
"""The pool of the runs that need a Spark session: each is a JVM, or a warm worker."""

PROCESS_TAG = ".dagster/artemis-process"
"""The tag that identifies the process that executes a run. Under the in-process executor, it executes all steps. The UI
hides tags with this prefix."""


def sign(instance: dg.DagsterInstance, run_id: str) -> None:
    """Record in the run's tags that this process executes it. Does nothing where the operating system cannot identify
    it."""
    process = mark([os.getpid()])
    if process is not None and instance.has_run(run_id):
        instance.add_run_tags(run_id, {PROCESS_TAG: process})


def end_runs_without_process(instance: dg.DagsterInstance) -> list[str]:
    """Fail the runs under way whose process on this machine has ended. Return their ids.

    Otherwise they would block the next run of their table, which the queue starts only after they end.
    """
    ended = []
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING])):
        if is_over(run.tags.get(PROCESS_TAG)):
            instance.report_run_failed(
                run,
                "The process of the run ended before the run did. The journal has what the run completed; the next "
                "run continues from there.",
            )
            ended.append(run.run_id)
    return ended


def parallel_runs(instance: dg.DagsterInstance) -> int | None:
    """Return how many runs that need a Spark session the instance allows at once; None without a limit."""
    config = instance.get_concurrency_config()
    own = [each.limit for each in instance.event_log_storage.get_pool_limits() if each.name == SPARK_POOL]
    queue = config.run_queue_config
    limits = (
        own[0] if own else config.pool_config.default_pool_limit,
        None if queue is None else queue.max_concurrent_runs,
    )
    return min((limit for limit in limits if limit is not None and limit > 0), default=None)
