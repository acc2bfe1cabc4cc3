"""Warm workers: processes that take one Dagster run after another, each with one live Spark session.

The run launcher is dagster-celery's `CeleryRunLauncher`: a run is a Celery task, and the monitoring of runs detects a
worker that died. One run is still one table, so history, retries and backfills are the same as with other launchers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import dagster as dg
import typer

from artemis_lifecycle import escaping
from artemis_lifecycle.defs.resources import keep_session
from artemis_lifecycle.errors import BadInput, EnvironmentMissing, LifecycleError

if TYPE_CHECKING:
    from celery import Celery

START_WITHIN = 300.0
"""Seconds that a process has for its Spark session before Celery replaces the process."""

_log = escaping.logger(__name__)


def application(instance: dg.DagsterInstance) -> Celery:
    """Return the Celery application of the instance's run launcher, with the tasks that run jobs.

    Raises EnvironmentMissing without the extra `workers`, BadInput if dagster.yaml has another launcher.
    """
    try:
        from dagster_celery.launcher import CeleryRunLauncher
        from dagster_celery.tasks import create_execute_job_task, create_resume_job_task
    except ImportError as error:
        raise EnvironmentMissing(
            "dagster-celery is not installed", hint="pip install 'artemis-lifecycle[workers]'"
        ) from error
    launcher = instance.run_launcher
    if not isinstance(launcher, CeleryRunLauncher):
        raise BadInput(
            f"The run launcher of this Dagster instance is {type(launcher).__name__}, which starts a process per run",
            hint="add deploy/warm-workers.yaml to the instance's dagster.yaml, and restart the daemon",
        )
    create_execute_job_task(launcher.celery)
    create_resume_job_task(launcher.celery)
    return launcher.celery


def work(app: Celery, *, count: int, recycle_after: int) -> None:
    """Take runs in `count` processes until this one is stopped. A process is replaced after `recycle_after` runs."""
    from celery.signals import worker_process_init

    worker_process_init.connect(_start, weak=False)
    app.conf.update(
        worker_concurrency=count,
        worker_max_tasks_per_child=recycle_after,
        worker_proc_alive_timeout=START_WITHIN,
        # Each waiting run belongs to the process that is free first.
        worker_prefetch_multiplier=1,
        # Dagster captures what a run writes to the process's own streams.
        worker_redirect_stdouts=False,
        worker_hijack_root_logger=False,
    )
    queue = app.conf.task_default_queue
    app.worker_main(["worker", "--pool=prefork", "--queues", queue, "--loglevel=WARNING", "--without-heartbeat"])


def _start(**_: Any) -> None:
    """Start the session before the first run, so that its JVM does not write to the log of one run forever."""
    try:
        keep_session()
    except LifecycleError as error:
        # Each run reports it, too.
        _log.warning("no Spark session: %s", error)


def main(
    count: Annotated[int, typer.Option(min=1, help="Processes, each with a Spark session of its own.")] = 2,
    recycle_after: Annotated[
        int, typer.Option(min=1, help="Replace a process after this many runs, which frees what its JVM holds.")
    ] = 50,
) -> None:
    """Take the runs of the Dagster instance of $DAGSTER_HOME."""
    try:
        try:
            instance = dg.DagsterInstance.get()
        except dg.DagsterError as error:
            raise BadInput(
                f"There is no Dagster instance: {str(error).partition('.')[0]}",
                hint="set DAGSTER_HOME to the absolute path of the folder with the instance's dagster.yaml",
            ) from None
        with instance:
            app = application(instance)
        work(app, count=count, recycle_after=recycle_after)
    except LifecycleError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    typer.run(main)
