"""The checks of a plan that its commit and its deletion require. Verdicts are stored in Postgres, so that they apply in
every process: a check that failed in a Dagster run also stops the plan's next step from the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from artemis_lifecycle.cold_tier.handoff_outcome import NOTHING_ARCHIVED
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
from artemis_lifecycle.lifecycle.cold_evidence import NAMED, cold_copy
from artemis_lifecycle.lifecycle.formats import COPIED_BY_TAGS
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Steps
from artemis_lifecycle.operations.plans import PlanRecord

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
