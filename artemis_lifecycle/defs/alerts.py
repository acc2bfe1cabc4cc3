"""Alerts to people: failed runs, plans and scans that wait for approval, failed checks. Each alert is sent once."""

import json
from collections.abc import Mapping
from datetime import timedelta
from urllib.error import URLError
from urllib.request import Request, urlopen

from dagster import (
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunsFilter,
    SensorEvaluationContext,
    SkipReason,
    sensor,
)

from artemis_lifecycle.defs.partitions import table_of
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.defs.tags import JOB_TAG, PARTITION_TAG
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.escaping import terminal
from artemis_lifecycle.lifecycle import Lifecycle

_RECENT = timedelta(hours=6)
"""How far back a tick checks for failed runs. A webhook that was down for longer misses some."""

_TIMEOUT_SECONDS = 10.0
_AT_ONCE = 20


@sensor(
    name="alerts",
    description="Posts failed runs, waiting approvals and failed checks to alerts.webhook (Slack's format), each once.",
    minimum_interval_seconds=60,
    default_status=DefaultSensorStatus.STOPPED,
)
def alerts(context: SensorEvaluationContext, lifecycle: LifecycleResource) -> SkipReason:
    """The cursor has the alerts that were sent and are still true. If a post fails, the tick fails, and the next one
    repeats it."""
    opened = lifecycle.get()
    webhook = opened.config.alerts.webhook
    if webhook is None:
        return SkipReason("alerts.webhook is not set")
    said = set(json.loads(context.cursor)) if context.cursor else set[str]()
    found = conditions(opened, context.instance)
    new = {key: text for key, text in found.items() if key not in said}
    for key, text in list(new.items())[:_AT_ONCE]:
        _post(webhook, text)
        said.add(key)
        # Record sent alerts now, in case the next one fails.
        context.update_cursor(json.dumps(sorted(said & found.keys())))
    context.update_cursor(json.dumps(sorted(said & found.keys())))
    return SkipReason(f"{len(new)} alerts were sent" if new else "nothing new")


def conditions(lifecycle: Lifecycle, instance: DagsterInstance) -> Mapping[str, str]:
    """Return what a person should know now, in one line each, by a key that stays the same as long as it is true."""
    found: dict[str, str] = {}
    for wait in lifecycle.operations.waits.open():
        key = f"wait {wait.job_id} {wait.since.isoformat()}"
        approve = f"artemis approve {wait.job_id} --large --who … --why …"
        found[key] = f"{wait.table} waits for approval: {wait.why}. {approve}"
    for each in lifecycle.fleet().tables:
        for check in each.red_checks:
            found[f"red {each.table} {check}"] = f"{each.table}: the check {check} is red. Its plan is refused."
    for pause in lifecycle.operations.pauses.in_force():
        found[f"pause {pause.pause_id}"] = f"{pause.table or 'every table'} is paused by {pause.who}: {pause.why}"
    recent = RunsFilter(statuses=[DagsterRunStatus.FAILURE], updated_after=lifecycle.operations.clock.now() - _RECENT)
    for run in instance.get_runs(recent, limit=200):
        if JOB_TAG in run.tags:
            table = table_of(run.tags[PARTITION_TAG]) if PARTITION_TAG in run.tags else "all tables"
            found[f"run {run.run_id}"] = f"{table}: a run of {run.job_name} failed ({run.run_id})"
    return {key: terminal(text) for key, text in found.items()}


def _post(webhook: str, text: str) -> None:
    body = json.dumps({"text": text}).encode()
    request = Request(webhook, data=body, headers={"Content-Type": "application/json"}, method="POST")
    try:
        with urlopen(request, timeout=_TIMEOUT_SECONDS):
            pass
    except (URLError, OSError, ValueError) as error:
        # The address is a secret: anyone who has it can post.
        reason = getattr(error, "code", None) or type(getattr(error, "reason", error)).__name__
        raise StorageError(
            f"alerts.webhook does not take an alert ({reason})", hint="check the address in lifecycle.yaml"
        ) from None


ALL = (alerts,)
