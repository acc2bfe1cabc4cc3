"""What steps report back as properties of a table, for those who see only its catalog: when, which step, how much, and
of which plan or scan. Nothing decides by them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from artemis_lifecycle import escaping
from artemis_lifecycle.catalogs.commit import BaseState, Change
from artemis_lifecycle.commits.gate import Gate
from artemis_lifecycle.contracts.summary import OPERATION
from artemis_lifecycle.errors import LifecycleError, require_uuid
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.operations.plans import ENDED, PlanStatus
from artemis_lifecycle.operations.scans import ScanState
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Step, Steps, TableState
from artemis_lifecycle.storage.instants import milliseconds

_LOG = escaping.logger(__name__)

PREFIX = "artemis.report."
_KINDS = {
    "commit": "snapshot-expiry",
    "deletion": "file-deletion",
    "orphan_deletion": "orphan-file-removal",
    "compaction": "data-compaction",
    "manifest_compaction": "metadata-compaction",
}
"""The steps that report, by the names that Polaris has for the policies; `file-deletion` ends an expiration."""


def expiration_notes(resources: Resources, plan: ExpirationPlan, change: Change) -> dict[str, str]:
    """Return the properties that an expiration's commit sets: its own outcome, and those of earlier steps."""
    if not resources.config.policy(plan.table).report.properties:
        return {}
    counts = {"snapshots_removed": len(change.expire_snapshot_ids), "refs_removed": len(change.remove_refs)}
    try:
        own = _property("commit", resources.clock.now(), counts, plan.plan_id)
        return {**_of_earlier(resources, plan.table_uuid), **own}
    except LifecycleError as error:
        _LOG.warning("The outcome of %s is not reported to %s: %s", plan.plan_id, plan.table, error)
        return {}


def report_back(steps: Steps, state: TableState, step: Step, name: str, job_id: str) -> None:
    """Set the properties of a deletion that has ended, by a commit of its own, which changes no snapshot. Where anybody
    committed within `report.quiet`, or only Spark could commit and no session is started, the next expiration's commit
    sets them. A failure is logged."""
    resources, report = steps.resources, steps.resources.config.policy(state.name).report
    if not report.properties or step.state != "done" or not any(step.counts.values()):
        return
    needs_spark = resources.rest_of(state.name) is None
    if resources.other(state.name) is not None or (needs_spark and resources.started_spark() is None):
        return
    uuid = state.metadata.table_uuid

    def change(base: BaseState) -> Change | None:
        now = resources.clock.now()
        require_uuid(state.name, base.table_uuid, uuid)
        found = read_table_metadata(resources.live_stores, base.metadata_location)
        # Also after a lost attempt: whoever was faster has committed just now.
        if found.last_updated_ms > milliseconds(now - report.quiet):
            return None
        step.check()
        return Change(notes={**_of_earlier(resources, uuid), **_property(name, now, step.counts, job_id)})

    try:
        resources.committer(state.name)(
            state.name,
            change,
            swaps=resources.swaps(state.name, uuid),
            lineage=Gate(resources).noted(state.name, {**steps.worker("report").summary(), OPERATION: "report"}),
        )
    except LifecycleError as error:
        _LOG.warning("The outcome of %s was not reported to %s: %s", job_id, state.name, error)


def _of_earlier(resources: Resources, table_uuid: str) -> dict[str, str]:
    """Return the outcome of each kind of step that ended last."""
    operations, found = resources.operations, dict[str, str]()
    plans = operations.plans.of_table(table_uuid, ENDED)
    scans = operations.scans.of_table(table_uuid, (ScanState.DONE,))
    jobs = {
        "commit": next((each.plan_id for each in plans if each.committed_at is not None), None),
        "deletion": next((each.plan_id for each in plans if each.status is PlanStatus.DONE), None),
        "orphan_deletion": next((each.scan_id for each in scans), None),
    }
    for each in reversed(operations.steps.history(table_uuid)):
        ended = each.state == "done" and not each.dry_run and each.finished_at is not None
        if each.step in _KINDS and ended and any(each.counts.values()):
            assert each.finished_at is not None
            found |= _property(each.step, each.finished_at, each.counts, jobs.get(each.step))
    return found


def _property(step: str, at: datetime, counts: Mapping[str, int], job_id: str | None) -> dict[str, str]:
    job = {} if job_id is None else {"job": job_id}
    said = {"at": at.isoformat(timespec="seconds"), "step": step, **job, **counts}
    return {f"{PREFIX}{_KINDS[step]}": json.dumps(said)}
