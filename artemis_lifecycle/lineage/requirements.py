"""What a commit must say of itself, in its snapshot's summary. Pure: a summary and the table's requirements in, a
refusal or nothing out.

Iceberg's own `operation` is one of append, replace, overwrite and delete (spec, "Snapshots"): a compaction is a
`replace`, and what the mission calls a correction is an `overwrite`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from artemis_lifecycle.config.policies import Lineage
from artemis_lifecycle.errors import LineageRejected

OPERATIONS = frozenset({"append", "replace", "overwrite", "delete"})
"""What the spec allows `operation` to be."""

INPUT_SNAPSHOTS = "input.snapshot_ids"
COUNTS = ("input.row_count", "input.bytes_compressed")

_COMMIT_HASH = re.compile(r"[0-9a-fA-F]{7,64}")

TriggerValidator = Callable[[Mapping[str, str]], str | None]
"""Looks at the summary of a commit with its trigger type; what is wrong with it, or None."""


def needs(*keys: str) -> TriggerValidator:
    """A validator for triggers that must name `keys`."""

    def validator(summary: Mapping[str, str]) -> str | None:
        missing = [key for key in keys if not summary.get(key, "").strip()]
        return f"trigger.type={summary['trigger.type']} needs {', '.join(missing)}" if missing else None

    return validator


TRIGGERS: Mapping[str, TriggerValidator | None] = {
    "schedule": None,
    "manual": needs("trigger.operator"),
    "incident-response": needs("trigger.ticket"),
    "replay": needs(INPUT_SNAPSHOTS),
}
"""The trigger types of the mission, and what each asks for."""


@dataclass(frozen=True)
class LineageRequirements:
    """What one table asks of its commits. Empty permissions let every writer, or every operator, overwrite."""

    required_keys: tuple[str, ...] = Lineage().required
    allowed_operations: frozenset[str] = OPERATIONS
    triggers: Mapping[str, TriggerValidator | None] = field(default_factory=lambda: dict(TRIGGERS))
    overwrite_writers: frozenset[str] = frozenset()
    overwrite_operators: frozenset[str] = frozenset()

    @classmethod
    def from_config(cls, lineage: Lineage) -> LineageRequirements:
        """What lifecycle.yaml asks of a table."""
        return cls(
            required_keys=lineage.required,
            overwrite_writers=frozenset(lineage.overwrite.writers),
            overwrite_operators=frozenset(lineage.overwrite.operators),
        )


def snapshot_ids(text: str) -> tuple[int, ...]:
    """The ids in `input.snapshot_ids`: a JSON list, or numbers with commas between. Raises ValueError for all else."""
    stripped = text.strip()
    if not stripped:
        return ()
    parts = json.loads(stripped) if stripped.startswith("[") else stripped.split(",")
    if not isinstance(parts, list) or any(isinstance(part, bool | float) for part in parts):
        raise ValueError(f"{text!r} is not a list of snapshot ids")
    try:
        return tuple(int(part) for part in parts)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{text!r} is not a list of snapshot ids") from error


def lineage_problems(summary: Mapping[str, str], requirements: LineageRequirements) -> tuple[str, ...]:
    """Everything that `summary` (with its `operation`) lacks or says wrongly; empty when it may pass."""
    problems = [
        f"required key {key} is missing" for key in requirements.required_keys if not summary.get(key, "").strip()
    ]
    operation = summary.get("operation")
    if operation and operation not in requirements.allowed_operations:
        problems.append(
            f"operation {operation!r} is none of {', '.join(sorted(requirements.allowed_operations))} "
            "(Iceberg reserves the key; say what kind of job it was in writer.id)"
        )
    commit_hash = summary.get("writer.commit_hash", "")
    if commit_hash and not _COMMIT_HASH.fullmatch(commit_hash):
        problems.append(f"writer.commit_hash={commit_hash!r} is not a hash")
    problems += [
        f"{key}={summary[key]!r} is not a count" for key in COUNTS if summary.get(key) and not summary[key].isdecimal()
    ]
    if summary.get(INPUT_SNAPSHOTS):
        try:
            snapshot_ids(summary[INPUT_SNAPSHOTS])
        except ValueError as error:
            problems.append(f"{INPUT_SNAPSHOTS}: {error}")
    elif operation == "replace":
        problems.append(f"a replace (a compaction) must name what it read in {INPUT_SNAPSHOTS}")
    trigger = summary.get("trigger.type")
    if trigger and trigger not in requirements.triggers:
        problems.append(f"trigger.type={trigger!r} is none of {', '.join(sorted(requirements.triggers))}")
    elif trigger and (validator := requirements.triggers[trigger]) is not None:
        problem = validator(summary)
        if problem:
            problems.append(problem)
    if operation == "overwrite":
        problems += _overwrite_problems(summary, requirements)
    return tuple(dict.fromkeys(problems))


def _overwrite_problems(summary: Mapping[str, str], requirements: LineageRequirements) -> list[str]:
    missing = [key for key in ("trigger.operator", "trigger.ticket") if not summary.get(key, "").strip()]
    problems = []
    if missing:
        problems.append(f"an overwrite must be traced to a person and a ticket: {', '.join(missing)} is missing")
    writer, operator = summary.get("writer.id", ""), summary.get("trigger.operator", "")
    if requirements.overwrite_writers and writer not in requirements.overwrite_writers:
        problems.append(f"writer {writer!r} may not overwrite")
    if requirements.overwrite_operators and operator not in requirements.overwrite_operators:
        problems.append(f"operator {operator!r} may not trigger an overwrite")
    return problems


def validate_lineage(
    summary: Mapping[str, str], requirements: LineageRequirements, *, table: str | None = None
) -> None:
    """Refuse a commit whose summary does not meet the table's requirements; to be called before its compare-and-swap.

    Raises LineageRejected, which names every problem at once.
    """
    problems = lineage_problems(summary, requirements)
    if problems:
        raise LineageRejected(
            f"The commit's lineage is incomplete: {'; '.join(problems)}",
            table=table,
            untouched="the table",
            hint="set the missing summary keys (Spark: write options `snapshot-property.<key>`) and commit again",
        )
