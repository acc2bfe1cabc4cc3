"""Work for operators: taking over a catalog, and deleting old records."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from artemis_lifecycle.catalogs.deployments import DeploymentRecord
from artemis_lifecycle.catalogs.deployments import take_over as record_take_over
from artemis_lifecycle.deletion.records import Forgotten, forget
from artemis_lifecycle.expiration.plan import trim_plan
from artemis_lifecycle.lifecycle.gate import Gate
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.operations.pauses import paused
from artemis_lifecycle.operations.texts import require_said


def take_over(resources: Resources, *, who: str, why: str) -> list[DeploymentRecord]:
    """See `Lifecycle.take_over`."""
    require_said(f"catalog {resources.live_catalog.name}", who=who, why=why)
    records = resources.live_catalog.deployments(resources.live_stores)
    # This accepts a database that was restored to an earlier time.
    found = record_take_over(records, resources.deployment, who=who, why=why, anew=resources.progress.accept())
    # Another deployment may be taking it over at the same time.
    resources.require_deployment()
    return found


def forget_records(resources: Resources, gate: Gate, *, dry_run: bool) -> Forgotten:
    """See `Lifecycle.forget_records`."""
    # Reports are judged by the times of their store.
    resources.require_clocks()
    now, keep = resources.operations.clock.now(), resources.config.records

    def require_no_pause() -> None:
        for pause in resources.operations.pauses.in_force():
            if pause.table_uuid is None:
                raise paused("all tables", str(pause))

    done = forget(
        resources.live_stores,
        resources.operations,
        resources.root,
        records_before=now - keep.keep,
        listings_before=now - keep.listings,
        trim=partial(trim_plan, resources.live_stores, resources.operations),
        dry_run=dry_run,
        check=require_no_pause,
    )
    old_sets = resources.operations.live_sets.old(now - keep.live_sets)
    for live_set_id in () if dry_run else old_sets:
        require_no_pause()
        resources.operations.live_sets.delete(live_set_id)
    in_catalog = gate.forget_attempts(now - keep.keep, dry_run=dry_run)
    return replace(done, counts={**done.counts, "catalog_gate_attempts": in_catalog, "live_sets": len(old_sets)})
