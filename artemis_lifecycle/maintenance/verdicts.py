"""Checks of a table's health, and of what a compaction left unchanged. Pure: the evidence comes as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from artemis_lifecycle.config.policies import Checks, ScoreLimits
from artemis_lifecycle.expiration.verdicts import Verdict
from artemis_lifecycle.maintenance.commit_costs import CommitCosts
from artemis_lifecycle.maintenance.health import TableHealth
from artemis_lifecycle.metadata.types import Ref

DATA_FILES_UNCHANGED, MANIFESTS_UNCHANGED = "data_compaction_changed_nothing", "manifest_compaction_changed_nothing"


COMMIT_COSTS = "commit_cost_follows_the_change"


def health_check(part: str) -> str:
    """The name of the check of a part of a table's health."""
    return f"health_{part}"


@dataclass(frozen=True)
class CompactionEffect:
    """A compaction's snapshot and the one before it, with the rows that each returns. `refs_before` and `refs_after`
    are those of the metadata files around its commit; None if one of them cannot be read any more."""

    snapshot_id: int
    rows_before: int
    rows_after: int
    refs_before: Mapping[str, Ref] | None
    refs_after: Mapping[str, Ref] | None


def judge_part(health: TableHealth, name: str, checks: Checks) -> Verdict:
    """Check that a part of the scored `health` is within its limits. An unknown part passes: the score counts it, and
    the staleness of its step has its own check."""
    part = next(part for part in health.parts if part.name == name)
    limits: ScoreLimits = getattr(checks.health, name)
    text = part.why[0].upper() + part.why[1:]
    next_step = "" if part.next_step is None else f" Next: {part.next_step}"
    if part.score is None:
        return Verdict(health_check(name), True, f"Unknown: {text}.{next_step}")
    if part.wasted_bytes is not None:
        is_felt = part.wasted_bytes >= checks.health.wasted_bytes
    else:
        is_felt = part.seconds is None or part.seconds >= checks.health.seconds
    return Verdict(
        health_check(name),
        part.score >= limits.warn or not is_felt,
        f"{part.score:g} of 100 (warns below {limits.warn:g}, fails below {limits.error:g}). {text}.{next_step}",
        figures={"score": part.score}
        | ({"figure": part.figure} if part.figure is not None else {})
        | ({"seconds": round(part.seconds, 3)} if part.seconds is not None else {}),
        warns=part.score >= limits.error,
    )


def judge_commit_costs(costs: CommitCosts) -> Verdict:
    """Check that what a commit writes for each changed file does not grow with the table."""
    growing = costs.warnings
    return Verdict(
        COMMIT_COSTS,
        not growing,
        f"What commits write for each changed file grows with the table: {len(growing)} of {len(costs.trends)} parts."
        if growing
        else "What commits write for each changed file does not grow with the table, or is too little to notice.",
        growing,
        {"commits": len(costs.rows), "unknown_metadata_files": costs.unknown},
        warns=True,
    )


def judge_compaction(check: str, effect: CompactionEffect | None, branch: str = "main") -> Verdict:
    """Check that a compaction left the table's rows, and all refs but its own `branch`, as they were. `effect` is None
    if there is none to compare."""
    if effect is None:
        text = "No compaction of the last two days has its previous snapshot still in the table."
        return Verdict(check, True, text, judged=False)
    broken = []
    if effect.rows_before != effect.rows_after:
        broken.append(f"the table had {effect.rows_before:,} rows before, and {effect.rows_after:,} after")
    if effect.refs_before is not None and effect.refs_after is not None:
        before = {name: ref for name, ref in effect.refs_before.items() if name != branch}
        after = {name: ref for name, ref in effect.refs_after.items() if name != branch}
        broken += [f"{ref.type} {name} is gone" for name, ref in before.items() if name not in after]
        broken += [f"{ref.type} {name} is new" for name, ref in after.items() if name not in before]
        broken += [
            f"{ref.type} {name} was at snapshot {ref.snapshot_id}, and is at {after[name].snapshot_id}"
            for name, ref in before.items()
            if name in after and after[name] != ref
        ]
        refs = f"{len(before)} other refs are"
    else:
        refs = "the metadata files around it cannot be read, so its refs were not"
    return Verdict(
        check,
        not broken,
        f"The compaction in snapshot {effect.snapshot_id} changed what it must not."
        if broken
        else f"The compaction in snapshot {effect.snapshot_id} kept all {effect.rows_after:,} rows; {refs} compared.",
        tuple(broken),
        {"compacted_snapshot": str(effect.snapshot_id), "rows": effect.rows_after},
    )
