"""Why a file is in a plan, or why it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from artemis_lifecycle.expiration.plan import ExpirationPlan


@dataclass(frozen=True)
class Keeper:
    """What keeps a file out of a plan: a snapshot of the plan's base, with every reason why it is kept, or (without an
    id) the metadata file itself."""

    snapshot_id: int | None
    what: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanExplanation:
    """A file and a plan. `in_plan` means that it may be deleted after the plan's commit, for `reason`. Otherwise
    `kept_by` says what keeps it; if that is empty, no snapshot of the plan's base reaches it."""

    plan_id: str
    table: str
    path: str
    in_plan: bool
    reason: str
    kind: str | None = None
    size_in_bytes: int | None = None
    kept_by: tuple[Keeper, ...] = ()


def why_kept(plan: ExpirationPlan, path: str, holders: Sequence[tuple[int | None, str]]) -> PlanExplanation:
    """Return the explanation of a file that is not in `plan`. `holders` are the snapshots of the plan's base that reach
    it, as (id, text); (None, text) for the metadata file itself."""
    keepers = tuple(
        Keeper(snapshot_id, text, plan.kept.get(snapshot_id, ()) if snapshot_id is not None else ())
        for snapshot_id, text in holders
        if snapshot_id is None or snapshot_id in plan.kept
    )
    if keepers:
        reason = f"{len(keepers)} of what the plan keeps reaches it"
    else:
        reason = (
            "no snapshot of the plan's base reaches it: it is of a newer commit, of a commit in flight, an orphan, or "
            "already deleted; artemis explain shows which"
        )
    return PlanExplanation(plan.plan_id, plan.table, path, False, reason, kept_by=keepers)
