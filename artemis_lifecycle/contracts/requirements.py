"""What one table requires of its commits, as data, and the evaluation of a summary against it.

Each rule is data: keys, values and patterns. So the gate in a catalog's database evaluates the very same requirements
(`as_json`), and both report the same problems in the same words; a property test compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from artemis_lifecycle.config.policies import Lineage
from artemis_lifecycle.contracts.summary import OPERATION, TRIGGER, value_problems
from artemis_lifecycle.errors import LineageRejected

DELETES_HINT = "; lineage.overwrite.operations: [overwrite] lets all writers delete"
"""A delete counts as an overwrite by default where overwrites are for a few."""


@dataclass(frozen=True)
class LineageRequirements:
    """What one table requires of its commits.

    `needs` has (key, value, needed keys): a commit with that value of that key must set the needed keys. `permitted`
    has (operation, key, values): a commit with that operation must have one of the values. `patterns` has (key,
    pattern): a value that is set must match the pattern as a whole.
    """

    required_keys: tuple[str, ...]
    allowed_operations: tuple[str, ...]
    trigger_types: tuple[str, ...]
    patterns: tuple[tuple[str, str], ...] = ()
    needs: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    permitted: tuple[tuple[str, str, tuple[str, ...]], ...] = ()

    @classmethod
    def from_config(cls, lineage: Lineage) -> LineageRequirements:
        """Return the requirements in the section `lineage` of lifecycle.yaml."""
        overwrite = lineage.overwrite
        of_operations = [(operation, overwrite.needs) for operation in overwrite.counted if overwrite.needs]
        allow_lists = (("writer.id", overwrite.writers), ("trigger.operator", overwrite.operators))
        return cls(
            required_keys=lineage.required,
            allowed_operations=lineage.operations,
            trigger_types=tuple(lineage.triggers),
            patterns=tuple(sorted(lineage.patterns.items())),
            needs=(
                *((TRIGGER, trigger, keys) for trigger, keys in lineage.triggers.items() if keys),
                *((OPERATION, operation, keys) for operation, keys in of_operations),
                # What a compaction read is the only record of where its rows came from.
                (OPERATION, "replace", ("input.snapshot_ids",)),
            ),
            permitted=tuple(
                (operation, key, values) for operation in overwrite.counted for key, values in allow_lists if values
            ),
        )

    def as_json(self) -> str:
        """Return the requirements as the JSON object that the gate in the database reads."""
        return json.dumps(
            {
                "required": self.required_keys,
                "operations": self.allowed_operations,
                "triggers": self.trigger_types,
                "patterns": self.patterns,
                "needs": self.needs,
                "permitted": self.permitted,
            },
            ensure_ascii=False,
        )

    @cached_property
    def _compiled(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        # As in Postgres, a dot matches a line break.
        return tuple((key, re.compile(pattern, re.DOTALL)) for key, pattern in self.patterns)


def lineage_problems(summary: Mapping[str, str], requirements: LineageRequirements) -> tuple[str, ...]:
    """Return everything that `summary` (with its `operation`) lacks or states wrongly; empty if it may pass."""

    def value(key: str) -> str:
        return summary.get(key, "").strip(" ")

    operation, trigger = value(OPERATION), value(TRIGGER)
    problems = [f"required key {key} is missing" for key in requirements.required_keys if not value(key)]
    problems += value_problems(summary)
    if operation and operation not in requirements.allowed_operations:
        problems.append(f"operation {operation[:80]} is not one of {', '.join(requirements.allowed_operations)}")
    if trigger and trigger not in requirements.trigger_types:
        problems.append(f"trigger.type {trigger[:80]} is not one of {', '.join(requirements.trigger_types)}")
    problems += [
        f"{key}={value(key)[:80]} does not match {pattern.pattern}"
        for key, pattern in requirements._compiled
        if value(key) and not pattern.fullmatch(value(key))
    ]
    for key, wanted, needed in requirements.needs:
        missing = [each for each in needed if not value(each)]
        if value(key) == wanted and missing:
            problems.append(f"{key}={wanted} needs {', '.join(missing)}")
    for permitted_operation, key, values in requirements.permitted:
        if operation == permitted_operation and value(key) not in values:
            hint = DELETES_HINT if operation == "delete" else ""
            problems.append(f"{key}={value(key)[:80]} may not {operation}; permitted: {', '.join(values)}{hint}")
    return tuple(dict.fromkeys(problems))


def validate_lineage(
    summary: Mapping[str, str], requirements: LineageRequirements, *, table: str | None = None
) -> None:
    """Refuse a commit whose summary does not meet the table's requirements; call it before the commit's swap.

    Raises LineageRejected, which names every problem at once, and the allow-list if one is violated.
    """
    problems = lineage_problems(summary, requirements)
    if problems:
        raise rejected(problems, table)


def rejected(problems: tuple[str, ...], table: str | None) -> LineageRejected:
    """Return the error for a commit with these problems."""
    return LineageRejected(
        f"The lineage gate refuses the commit: {'; '.join(problems)}",
        table=table,
        untouched="the table",
        hint="set the keys in the snapshot's summary (Spark: write options snapshot-property.KEY; pyiceberg: "
        "snapshot_properties) and commit again",
    )
