"""The checks of a plan that its commit and its deletion require. Verdicts are stored in Postgres, so that they apply in
every process: a check that failed in a Dagster run also stops the plan's next step from the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from artemis_lifecycle.cold_tier.handoff import NOTHING_ARCHIVED, HandoffOutcome, read_outcome
from artemis_lifecycle.cold_tier.scrub import verify_copies
from artemis_lifecycle.errors import CheckFailed
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.expiration.verdicts import (
    COPY_VERIFIED,
    KEEPS_EVERY_REF,
    KEEPS_WINDOW_EDGE,
    Verdict,
    judge_refs,
    judge_window_edge,
)
from artemis_lifecycle.operations.plans import PlanRecord
from artemis_lifecycle.reachability.walk import reachable_files
from artemis_lifecycle.session.contexts import cold_index, cold_tables
from artemis_lifecycle.session.formats import COPIED_BY_TAGS
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps
from artemis_lifecycle.spark.java_errors import worker_errors
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.location import is_under, normalize

# --- cold evidence ----------------------------------------------------------------------------------------------------
# Evidence for a check: the state of a plan's snapshots in the cold tier. Reads only.

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
    root = normalize(resources.config.catalogs.cold.root or "", rules)
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


PLAN_CHECKS = (KEEPS_EVERY_REF, KEEPS_WINDOW_EDGE)
ALL_CHECKS = (*PLAN_CHECKS, COPY_VERIFIED)


@dataclass(frozen=True)
class PlanChecks:
    """Runs the checks of plans, stores their verdicts, and requires them."""

    resources: Resources
    steps: Steps

    def check(self, plan: ExpirationPlan, record: PlanRecord, names: Sequence[str]) -> list[Verdict]:
        """Run these checks now, and store their results."""
        return [self.store(plan.plan_id, self._judge(plan, record, name)) for name in names]

    def store(self, plan_id: str, verdict: Verdict) -> Verdict:
        """Store a verdict. From now on, it is the one that counts."""
        detail = "; ".join((verdict.text, *verdict.offenders[:NAMED]))
        self.resources.operations.verdicts.add(plan_id, verdict.check, detail, passed=verdict.passed)
        return verdict

    def require(self, plan: ExpirationPlan, record: PlanRecord, names: Sequence[str] = ALL_CHECKS) -> None:
        """Raise CheckFailed if the newest verdict of any of these checks failed. Checks without a verdict run now."""
        applies = {
            KEEPS_EVERY_REF: plan.expired_snapshots or plan.expired_refs,
            KEEPS_WINDOW_EDGE: plan.expired_snapshots or plan.expired_refs,
            COPY_VERIFIED: record.cold_metadata_location not in (None, NOTHING_ARCHIVED),
        }
        wanted = [name for name in names if applies[name]]
        known = self.resources.operations.verdicts.newest(plan.plan_id)
        missing = [name for name in wanted if name not in known]
        if missing:
            self.check(plan, record, missing)
            known = self.resources.operations.verdicts.newest(plan.plan_id)
        red = [known[name] for name in wanted if not known[name].passed]
        if red:
            raise CheckFailed(
                f"Check {red[0].check_name} of plan {plan.plan_id} failed: {red[0].detail}",
                table=plan.table,
                untouched="the table, and all files of the plan",
                hint=f"fix what it found, and run the checks again: artemis check {plan.plan_id}",
            )

    def _judge(self, plan: ExpirationPlan, record: PlanRecord, name: str) -> Verdict:
        if name == KEEPS_EVERY_REF:
            refs = self.steps.resumed(plan)[1].metadata.refs
            if self.resources.kind(plan.table) in COPIED_BY_TAGS:
                # What a tag reaches is in no plan.
                refs = {name: ref for name, ref in refs.items() if ref.is_branch}
            return judge_refs(plan, refs)
        if name == KEEPS_WINDOW_EDGE:
            return judge_window_edge(plan)
        if record.cold_metadata_location in (None, NOTHING_ARCHIVED):
            return Verdict(COPY_VERIFIED, True, f"Plan {plan.plan_id} has no copies in the cold tier.")
        found = cold_copy(self.resources, plan)
        return Verdict(
            COPY_VERIFIED,
            not found.problems,
            f"The cold copy of plan {plan.plan_id} has {len(found.problems):,} problems."
            if found.problems
            else f"{found.verified_files:,} copies still match their checksums; {found.snapshots:,} snapshots of "
            f"plan {plan.plan_id} need only the {found.files:,} files that are in cold storage.",
            found.problems,
            {
                "snapshots": found.snapshots,
                "files": found.files,
                "files_verified": found.verified_files,
                "bytes_verified": found.verified_bytes,
            },
        )
