"""Alerts to people: failed runs, plans and scans that wait for approval, failed checks, windows that will not suffice.
Each alert is sent once."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import dagster as dg

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.defs.common import is_of_this_project
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.defs.tags import ASSETS, JOB_TAG, PARTITION_TAG
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.escaping import chat, table_of, terminal
from artemis_lifecycle.fleet.fleet import Fleet
from artemis_lifecycle.operations.scans import is_scan

_RECENT = timedelta(hours=6)
"""How far back the first tick checks for failed runs."""

_SLACK = timedelta(minutes=10)
"""How far before the last complete tick the next one checks for failed runs: clocks and transactions differ."""

_WINDOW = "window"

_TIMEOUT_SECONDS = 10.0
_AT_ONCE = 20
_AT_FIRST = 3
"""Refused posts after which a receiver that took none is left alone."""
_CONTENT = (400, 413, 422)
"""HTTP statuses by which a receiver refuses one text, and not its sender."""
_TRIES = 5
_LONGEST = 3000
"""Characters of an alert."""


@dg.sensor(
    name="alerts",
    description="Posts failed runs, waiting approvals, red checks and quiet windows that will not suffice to "
    "alerts.webhook (Slack's format), each once.",
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.STOPPED,
)
def alerts(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SkipReason:
    """The cursor has the alerts that were sent and are still true, how often others were refused, and the instant up to
    which all failed runs were posted. What a receiver refuses is tried again with later ticks, after all others, and
    given up after some; the tick fails if it takes none."""
    opened = lifecycle.get()
    webhook = opened.config.alerts.webhook
    if webhook is None:
        return dg.SkipReason("alerts.webhook is not set")
    now = opened.operations.clock.now()
    cursor: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
    refused = dict[str, int](cursor.get("refused", {}))
    sent, since = set[str](cursor.get("sent", ())), str(cursor.get("since", (now - _RECENT).isoformat()))
    keys = frozenset(map(lifecycle.key, ASSETS))
    found = conditions(opened, lifecycle.fleet(history=False), context.instance, datetime.fromisoformat(since), keys)
    new = sorted((key for key in found if key not in sent), key=lambda key: refused.get(key, 0))
    kept = {key for key in sent if key in found or _window_is_open(key, now)}
    refused, failure, posted, failed = {key: tries for key, tries in refused.items() if key in new}, None, 0, 0

    def remember() -> None:
        context.update_cursor(json.dumps({"sent": sorted(kept), "since": since, "refused": refused}))

    refused_alone = True
    for key in new[:_AT_ONCE]:
        try:
            _post(webhook, found[key])
        except StorageError as error:
            failure, refused[key] = error, refused.get(key, 0) + 1
            failed += 1
            refused_alone = refused_alone and getattr(error.__context__, "code", None) in _CONTENT
            if failed == _AT_FIRST and not posted:
                break  # It takes none now; others come first in the next tick.
        else:
            refused.pop(key, None)
            kept.add(key)
            posted += 1
            # Record it now, in case the process ends.
            remember()
    # A receiver that took others refuses these alone: a failed tick would keep no count of it.
    if failure is not None and not posted and not (kept and refused_alone):
        raise failure
    for key in [key for key, tries in refused.items() if tries >= _TRIES]:
        # The receiver takes others, and not this one.
        context.log.error(terminal(f"alerts.webhook has refused an alert {_TRIES} times: {found[key]}"))
        kept.add(key)
        del refused[key]
    if len(new) <= _AT_ONCE and not failed:
        since = (now - _SLACK).isoformat()
    remember()
    return dg.SkipReason(f"{posted} of {len(new)} alerts were sent" if new else "nothing new")


def conditions(
    lifecycle: Lifecycle, fleet: Fleet, instance: dg.DagsterInstance, since: datetime, keys: frozenset[dg.AssetKey]
) -> Mapping[str, str]:
    """Return what a person should know now, in one line each, by a key that stays the same as long as it is true. Of
    failed runs, those since `since`; `keys` are the project's assets, which people and backfills also materialize.
    Texts of others are no markup in it; it links to Dagster's pages of the run, the plan or scan, and the table."""
    found: dict[str, str] = {}
    pages = fleet.links
    links: dict[str, tuple[str, ...]] = {}
    for wait in lifecycle.operations.waits.open():
        key = f"wait {wait.job_id} {wait.since.isoformat()}"
        approve = f"artemis approve {wait.job_id} --large --who … --why …"
        found[key] = f"{wait.table} waits for approval: {wait.why}. {approve}"
        asset, shown = ("orphan_scan", "scan") if is_scan(wait.job_id) else ("expiration_plan", "plan")
        links[key] = _link(pages.asset(asset, wait.table), shown)
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
            if (asset := check.partition(":")[0]) in ASSETS:
                links[f"red {each.table} {check}"] = _link(pages.asset(asset, each.table), "table")
    for pause in lifecycle.operations.pauses.in_force():
        found[f"pause {pause.pause_id}"] = f"{pause.table or 'every table'} is paused by {pause.who}: {pause.why}"
        if pause.table:
            links[f"pause {pause.pause_id}"] = _link(pages.asset("snapshot_history", pause.table), "table")
    recent = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], updated_after=since)
    for run in instance.get_runs(recent, ascending=True):
        if is_of_this_project(run, keys, alone=False):
            table = table_of(run.tags[PARTITION_TAG]) if PARTITION_TAG in run.tags else "all tables"
            found[f"run {run.run_id}"] = f"{table}: a run of {run.tags.get(JOB_TAG, 'assets')} failed ({run.run_id})"
            links[f"run {run.run_id}"] = _link(pages.at(f"runs/{run.run_id}"), "run")
            if PARTITION_TAG in run.tags:
                links[f"run {run.run_id}"] += _link(pages.asset("snapshot_history", table), "table")
    return {key: " ".join((chat(text[:_LONGEST]), *links.get(key, ()))) for key, text in found.items()}


def _link(url: str | None, shown: str) -> tuple[str, ...]:
    """Return a link in Slack's form; none without the address of Dagster."""
    return () if url is None else (f"<{url.replace('&', '&amp;')}|{shown}>",)


def _window_is_open(key: str, now: datetime) -> bool:
    """Return True for the alert of a window that is not over: a forecast near the limit changes with each run, and is
    posted once per window."""
    kind, *times = key.split()
    return kind == _WINDOW and now < datetime.fromisoformat(times[0])


def _post(webhook: str, text: str) -> None:
    body = json.dumps({"text": text, "link_names": False, "unfurl_links": False, "unfurl_media": False}).encode()
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
