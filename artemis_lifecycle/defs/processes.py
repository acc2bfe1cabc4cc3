"""Runs that are under way in Dagster's books while their process is over: killed runs leave STARTED behind forever."""

import os

from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from artemis_lifecycle.operations.processes import is_over, mark

PROCESS_TAG = "artemis/process"
"""The mark of the process that executes a run; all its steps do, under the in-process executor."""


def sign(instance: DagsterInstance, run_id: str) -> None:
    """Write into the run's tags that this process executes it; nothing where the system does not tell who that is."""
    here = mark([os.getpid()])
    if here is not None and instance.has_run(run_id):
        instance.add_run_tags(run_id, {PROCESS_TAG: here})


def end_runs_without_process(instance: DagsterInstance) -> list[str]:
    """Fail the runs under way whose process, on this machine, is known to be over; returns their ids.

    Left as they are they would hold back the next run of their table, which the queue starts when they have ended.
    """
    ended = []
    for run in instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING])):
        if is_over(run.tags.get(PROCESS_TAG)):
            instance.report_run_failed(
                run,
                "The process of the run has ended, and the run had not. What it had done is in the journal; the next "
                "run goes on from there.",
            )
            ended.append(run.run_id)
    return ended
