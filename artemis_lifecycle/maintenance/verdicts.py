"""Checks of a table's health, and of what a compaction left unchanged. Pure: the evidence comes as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from artemis_lifecycle.config.policies import Checks
from artemis_lifecycle.expiration.verdicts import Verdict
from artemis_lifecycle.maintenance.health import TableHealth
from artemis_lifecycle.metadata.types import Ref

HEALTH = "health_within_thresholds"
DATA_FILES_UNCHANGED, MANIFESTS_UNCHANGED = "data_compaction_changed_nothing", "manifest_compaction_changed_nothing"

FROM_FILES = 100
"""Fewer small files or delete files slow down no read that people notice."""


@dataclass(frozen=True)
class CompactionEffect:
    """A compaction's snapshot and the one before it, with the rows that each returns. `refs_before` and `refs_after`
    are those of the metadata files around its commit; None if one of them cannot be read any more."""

    snapshot_id: int
    rows_before: int
    rows_after: int
    refs_before: Mapping[str, Ref] | None
    refs_after: Mapping[str, Ref] | None


def judge_health(health: TableHealth, checks: Checks) -> Verdict:
    """Check that the parts of the table's health are within the thresholds. A failure asks for a compaction."""
    above = []
    if health.rewritable_files >= FROM_FILES and health.rewritable_share > checks.rewritable_share:
        above.append(
            f"{health.rewritable_files:,} of {health.data_files:,} data files are small and have company "
            f"({health.rewritable_share:.0%}; the threshold is {checks.rewritable_share:.0%})"
        )
    if health.delete_files >= FROM_FILES and health.delete_file_ratio > checks.delete_file_ratio:
        above.append(
            f"{health.delete_files:,} delete files against {health.data_files:,} data files "
            f"({health.delete_file_ratio:.2f} each; the threshold is {checks.delete_file_ratio:.2f})"
        )
    if health.metadata_bytes > checks.metadata_bytes:
        above.append(
            f"planning reads {health.metadata_bytes:,} bytes of metadata; the threshold is {checks.metadata_bytes:,}"
        )
    return Verdict(
        HEALTH,
        not above,
        f"{len(above)} parts of the table's health are above their thresholds."
        if above
        else "Small files, delete files and metadata are within their thresholds.",
        tuple(above),
        {
            "rewritable_share": round(health.rewritable_share, 6),
            "delete_file_ratio": round(health.delete_file_ratio, 6),
            "metadata_bytes": health.metadata_bytes,
        },
        warns=True,
    )


def judge_compaction(check: str, effect: CompactionEffect | None, branch: str = "main") -> Verdict:
    """Check that a compaction left the table's rows, and all refs but its own `branch`, as they were. `effect` is None
    if there is none to compare."""
    if effect is None:
        return Verdict(check, True, "No compaction of the last two days has its previous snapshot still in the table.")
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
