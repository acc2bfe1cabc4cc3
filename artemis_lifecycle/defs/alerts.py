"""Alerts to people: failed runs, plans and scans that wait for approval, failed checks, windows that will not suffice.
Each alert is sent once."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from dagster import (
    AssetKey,
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunsFilter,
    SensorEvaluationContext,
    SkipReason,
    sensor,
)

from artemis_lifecycle.defs.common import is_of_this_project
from artemis_lifecycle.defs.partitions import table_of
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.defs.tags import ASSETS, JOB_TAG, PARTITION_TAG
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.escaping import terminal
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle.lifecycle.fleet import Fleet

_RECENT = timedelta(hours=6)
"""How far back the first tick checks for failed runs."""

_SLACK = timedelta(minutes=10)
"""How far before the last complete tick the next one checks for failed runs: clocks and transactions differ."""

_WINDOW = "window"

_TIMEOUT_SECONDS = 10.0
_AT_ONCE = 20


@sensor(
    name="alerts",
    description="Posts failed runs, waiting approvals, red checks and quiet windows that will not suffice to "
    "alerts.webhook (Slack's format), each once.",
    minimum_interval_seconds=60,
    default_status=DefaultSensorStatus.STOPPED,
)
def alerts(context: SensorEvaluationContext, lifecycle: LifecycleResource) -> SkipReason:
    """The cursor has the alerts that were sent and are still true, and the instant up to which all failed runs were
    posted. If a post fails, the tick fails, and the next one repeats it."""
    opened = lifecycle.get()
    webhook = opened.config.alerts.webhook
    if webhook is None:
        return SkipReason("alerts.webhook is not set")
    now = opened.operations.clock.now()
    cursor: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
    sent, since = set[str](cursor.get("sent", ())), str(cursor.get("since", (now - _RECENT).isoformat()))
    keys = frozenset(map(lifecycle.key, ASSETS))
    fleet = opened.fleet(history=False)
    found = conditions(opened, fleet, context.instance, datetime.fromisoformat(since), keys)
    new = {key: text for key, text in found.items() if key not in sent}
    kept = {key for key in sent if key in found or _window_is_open(key, now)}
    for key, text in list(new.items())[:_AT_ONCE]:
        _post(webhook, text)
        kept.add(key)
        # Record sent alerts now, in case the next one fails.
        context.update_cursor(json.dumps({"sent": sorted(kept), "since": since}))
    if len(new) <= _AT_ONCE:
        since = (now - _SLACK).isoformat()
    context.update_cursor(json.dumps({"sent": sorted(kept), "since": since}))
    return SkipReason(f"{min(len(new), _AT_ONCE)} of {len(new)} alerts were sent" if new else "nothing new")


def conditions(
    lifecycle: Lifecycle,
    fleet: Fleet,
    instance: DagsterInstance,
    since: datetime,
    keys: frozenset[AssetKey],
) -> Mapping[str, str]:
    """Return what a person should know now, in one line each, by a key that stays the same as long as it is true. Of
    failed runs, those since `since`; `keys` are the project's assets, which people and backfills also materialize."""
    found: dict[str, str] = {}
    for wait in lifecycle.operations.waits.open():
        key = f"wait {wait.job_id} {wait.since.isoformat()}"
        approve = f"artemis approve {wait.job_id} --large --who … --why …"
        found[key] = f"{wait.table} waits for approval: {wait.why}. {approve}"
    for thaw in lifecycle.operations.thaws.to_approve():
        approve = f"artemis approve-thaw {thaw.thaw_id} --who … --why …"
        found[f"wait {thaw.thaw_id}"] = f"{thaw.table} waits for a second person: {thaw.what}. {approve}"
    for window in fleet.windows:
        if not window.suffices:
            found[f"{_WINDOW} {window.closes.isoformat()} {window.opens.isoformat()}"] = str(window)
    said = lifecycle.operations.check_results.red()
    for each in fleet.tables:
        for check in each.red_checks:
            why = said.get(each.table, {}).get(check, "Its plan is refused.")
            found[f"red {each.table} {check}"] = f"{each.table}: the check {check} is red. {why}"
    for pause in lifecycle.operations.pauses.in_force():
        found[f"pause {pause.pause_id}"] = f"{pause.table or 'every table'} is paused by {pause.who}: {pause.why}"
    recent = RunsFilter(statuses=[DagsterRunStatus.FAILURE], updated_after=since)
    for run in instance.get_runs(recent, ascending=True):
        if is_of_this_project(run, keys, alone=False):
            table = table_of(run.tags[PARTITION_TAG]) if PARTITION_TAG in run.tags else "all tables"
            found[f"run {run.run_id}"] = f"{table}: a run of {run.tags.get(JOB_TAG, 'assets')} failed ({run.run_id})"
    return {key: terminal(text) for key, text in found.items()}


def _window_is_open(key: str, now: datetime) -> bool:
    """Return True for the alert of a window that is not over: a forecast near the limit changes with each run, and is
    posted once per window."""
    kind, *times = key.split()
    return kind == _WINDOW and now < datetime.fromisoformat(times[0])


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
