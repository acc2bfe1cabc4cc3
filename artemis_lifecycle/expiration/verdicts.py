"""Checks of a sealed plan that use only the table's refs and snapshot log. They share no code with the retention
rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.metadata.types import Ref
from artemis_lifecycle.storage.instants import if_in_calendar, instant_text, milliseconds

KEEPS_EVERY_REF, KEEPS_WINDOW_EDGE, COPY_VERIFIED = (
    "plan_keeps_every_ref",
    "plan_keeps_window_edge",
    "cold_copy_verified",
)
"""The checks that a commit and a deletion require. The names are those of the Dagster checks."""


@dataclass(frozen=True)
class Verdict:
    """The result of a check: `offenders` violate it; `figures` are counts, shares and instants for a report. A failure
    with `warns` asks for maintenance; nothing is broken. A check that had nothing to judge is not `judged`."""

    check: str
    passed: bool
    text: str
    offenders: tuple[str, ...] = ()
    figures: Mapping[str, int | float | str | datetime] = field(default_factory=dict)
    warns: bool = False
    judged: bool = True


def judge_refs(plan: ExpirationPlan, refs: Mapping[str, Ref]) -> Verdict:
    """Check that each of `refs` that `plan` does not expire points to a snapshot that `plan` does not remove."""
    doomed, expired = set(plan.expired_snapshots), set(plan.expired_refs)
    broken = sorted(
        f"{ref.type} {ref.name} at snapshot {ref.snapshot_id}"
        for ref in refs.values()
        if ref.snapshot_id in doomed and ref.name not in expired
    )
    if "main" in expired:
        broken.append("branch main, which is never expired")
    return Verdict(
        KEEPS_EVERY_REF,
        not broken,
        f"Plan {plan.plan_id} removes snapshots that refs still hold."
        if broken
        else f"Plan {plan.plan_id} keeps the snapshot of each of {len(refs) - len(plan.expired_refs)} refs.",
        tuple(broken),
        {"refs": len(refs), "refs_expired": len(plan.expired_refs)},
    )


def judge_window_edge(plan: ExpirationPlan) -> Verdict:
    """Check that the plan keeps each snapshot that was current at any instant of the window, including the one at its
    edge.

    The rules `iceberg` and `paimon` do not guarantee this; for them the check passes and says so.
    """
    if plan.settings.rule != "as-of":
        return Verdict(KEEPS_WINDOW_EDGE, True, f"Rule {plan.settings.rule} does not guarantee the window's edge.")
    limit = plan.settings.older_than_ms
    edge_ms = milliseconds(plan.decided_at) - plan.settings.window_ms if limit is None else limit
    log = sorted(plan.snapshot_log, key=lambda entry: entry.timestamp_ms)
    before = [entry for entry in log if entry.timestamp_ms <= edge_ms]
    inside = before[-1:] + [entry for entry in log if entry.timestamp_ms > edge_ms]
    doomed = set(plan.expired_snapshots)
    broken = tuple(
        f"snapshot {entry.snapshot_id}, current from {instant_text(entry.timestamp_ms)}"
        for entry in inside
        if entry.snapshot_id in doomed
    )
    return Verdict(
        KEEPS_WINDOW_EDGE,
        not broken,
        f"Plan {plan.plan_id} removes what an AS OF query inside the window answers from."
        if broken
        else f"All {len(inside)} entries of the log from the window's edge on keep their snapshot.",
        broken,
        {"log_entries_in_window": len(inside), "window_edge": if_in_calendar(edge_ms) or instant_text(edge_ms)},
    )
