"""Work for operators: taking over a catalog, and deleting old records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
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
    old_sets = _forget_live_sets(resources, now - keep.live_sets, require_no_pause, dry_run=dry_run)
    in_catalog = gate.forget_attempts(now - keep.keep, dry_run=dry_run)
    return replace(done, counts={**done.counts, "catalog_gate_attempts": in_catalog, "live_sets": old_sets})


def _forget_live_sets(resources: Resources, before: datetime, check: Callable[[], None], *, dry_run: bool) -> int:
    """Delete old live-contents sets, and merged metadata files that no table of a catalog has as its last one. Return
    how many sets."""
    operations, stores = resources.operations, resources.live_stores
    old = operations.live_sets.old(before)
    for live_set_id in () if dry_run else old:
        check()
        operations.live_sets.delete(live_set_id)
    names = resources.config.catalogs.others
    used = {known.metadata_location for name in names for known in operations.known_tables.of_catalog(name)}
    merged = [
        file.path
        for file in stores.list(f"{resources.root}/live-sets")
        if file.last_modified is not None and file.last_modified < before and file.path not in used
    ]
    if merged and not dry_run:
        check()
        stores.delete(merged)
    return len(old)
