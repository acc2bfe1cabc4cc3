"""Evidence for a check: the state of a plan's snapshots in the cold tier. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from artemis_lifecycle.cold_tier.handoff_outcome import HandoffOutcome, read_outcome
from artemis_lifecycle.cold_tier.scrub import verify_copies
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.tiers import cold_index, cold_tables
from artemis_lifecycle.reachability.walk import reachable_files
from artemis_lifecycle.spark.java_errors import worker_errors
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.location import is_under, normalize

NAMED = 20
"""Maximum number of offenders that a check lists; it counts all."""

VERIFIED_BYTES = 4 << 30
"""Maximum bytes of a plan's cold copies that a check reads again; for a larger plan, always the same share."""


@dataclass(frozen=True)
class ColdCopy:
    """The state of a plan's snapshots in the cold tier. `problems` are texts; empty means that everything is
    correct."""

    cold_table: str | None
    snapshots: int
    files: int
    verified_files: int
    verified_bytes: int
    problems: tuple[str, ...]


def cold_copy(resources: Resources, plan: ExpirationPlan) -> ColdCopy:
    """Check the cold table by itself: it has each required snapshot of the plan, each of their manifests is readable
    and matches its list, no path leads outside the cold warehouse, and the copies have the checksums of their sources.
    Snapshots that the handoff omitted by policy or consent are not required."""
    outcome = read_outcome(resources.live_stores, resources.root, plan.plan_id) or HandoffOutcome()
    left_out = {*outcome.lost, *outcome.overtaken, *outcome.thinned}
    wanted = [snapshot for snapshot in plan.expired_snapshots if snapshot not in left_out]
    if not wanted:
        return ColdCopy(None, 0, 0, 0, 0, ())
    found = cold_tables(resources, plan.table_uuid)
    if found is None:
        return ColdCopy(None, 0, 0, 0, 0, ("the cold catalog does not have the table",))
    name, metadata = found.newest.name, found.whole()
    in_metadata = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    problems = [f"snapshot {snapshot} is not in it" for snapshot in wanted if snapshot not in in_metadata]
    present = [snapshot for snapshot in wanted if snapshot in in_metadata]
    rules = resources.rules(plan.table)
    root = normalize(resources.config.catalogs.cold.warehouse or "", rules)
    with worker_errors():
        view = cold_index(resources, plan.table, metadata)
        runner = Runner(resources.start_spark)
        with runner.keeping() as keep:
            files = keep(reachable_files(runner, view, present))
            strays = files.map(partial(_outside, root), files.schema).table().column("path").to_pylist()
            total, size = files.sums("size_in_bytes")
    problems += [f"{path} is not in the cold warehouse" for path in strays]
    again = verify_copies(
        resources.start_spark,
        resources.live_stores,
        resources.cold_stores,
        resources.root,
        plan.table_uuid,
        plan_id=plan.plan_id,
        share=min(1.0, VERIFIED_BYTES / max(1, size)),
    )
    problems += [f"{path}: {reason}" for path, reason in again.damaged]
    return ColdCopy(name, len(present), total, again.checked_files, again.checked_bytes, tuple(problems))


def _outside(root: str, files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the first files of each part that are not below `root`."""
    left = NAMED
    for batch in files:
        rows = [n for n, place in enumerate(batch.column("location").to_pylist()) if not is_under(place, root)][:left]
        left -= len(rows)
        if rows:
            yield batch.take(pa.array(rows))
