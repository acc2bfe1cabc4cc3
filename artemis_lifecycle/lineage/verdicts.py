"""Checks of a table's lineage and schemas: is every snapshot recorded and described, and do its schemas fit together?
Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from artemis_lifecycle.config.policies import Checks
from artemis_lifecycle.contracts import LineageRequirements, lineage_problems
from artemis_lifecycle.expiration.verdicts import Verdict
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.storage.instants import milliseconds

RECORDED, DESCRIBED, SCHEMAS = "every_snapshot_is_recorded", "summaries_are_complete", "schemas_are_consistent"

_PROMOTIONS = {
    ("int", "long"),
    ("float", "double"),
    ("date", "timestamp"),
    ("date", "timestamp_ns"),
}
"""Iceberg's schema evolution, besides wider decimals and what `unknown` becomes."""


def judge_ledger(metadata: TableMetadata, recorded: Collection[int], now: datetime, checks: Checks) -> Verdict:
    """Check that the ledger has each snapshot of the table that is older than `metadata_age`."""
    missing = [each for each in metadata.snapshots if each.snapshot_id not in recorded]
    limit = milliseconds(now - checks.metadata_age)
    late = [each for each in missing if each.timestamp_ms < limit]
    return Verdict(
        RECORDED,
        not late,
        f"{len(late):,} of {len(metadata.snapshots):,} snapshots are not in the ledger. If they expire, who wrote them "
        "is lost."
        if late
        else f"{len(metadata.snapshots) - len(missing):,} of {len(metadata.snapshots):,} snapshots are in the ledger; "
        "the others are younger than checks.metadata_age.",
        tuple(f"snapshot {each.snapshot_id}" for each in late),
        {"snapshots": len(metadata.snapshots), "unrecorded": len(missing)},
    )


def judge_summaries(metadata: TableMetadata, requirements: LineageRequirements, checks: Checks) -> Verdict:
    """Check that at most `incomplete_snapshots` snapshots of the table miss summary keys that are required."""
    allowed = checks.incomplete_snapshots
    found = [
        (each, problems)
        for each in metadata.snapshots
        if (problems := lineage_problems(each.summary.whole(), requirements))
    ]
    return Verdict(
        DESCRIBED,
        allowed is None or len(found) <= allowed,
        f"The summaries of {len(found):,} of {len(metadata.snapshots):,} snapshots miss required lineage; "
        f"{'any number' if allowed is None else f'{allowed:,}'} may.",
        tuple(f"snapshot {each.snapshot_id}: {'; '.join(problems)}" for each, problems in found),
        {"snapshots": len(metadata.snapshots), "incomplete": len(found)},
        warns=True,
    )


def judge_schemas(metadata: TableMetadata) -> Verdict:
    """Check that the schema of each snapshot exists, that no field id is used twice in one schema, and that a
    field id keeps its type from schema to schema, but for promotions that Iceberg allows."""
    broken = [
        f"snapshot {each.snapshot_id} has schema {each.schema_id}, which does not exist"
        for each in metadata.snapshots
        if each.schema_id is not None and each.schema_id not in metadata.schemas
    ]
    types: dict[int, tuple[str, str]] = {}
    for schema_id in sorted(metadata.schemas):
        fields = list(_fields(json.loads(metadata.schemas[schema_id]), ""))
        twice = [key for key, count in Counter(key for key, _, _ in fields).items() if count > 1]
        broken += [f"schema {schema_id} uses the field id {key} twice" for key in twice]
        for key, name, kind in fields:
            before = types.get(key)
            if before is not None and not _may_become(before[1], kind):
                broken.append(f"schema {schema_id} makes field {key} ({name}) {kind}; it was {before[1]} ({before[0]})")
            types[key] = (name, kind)
    return Verdict(
        SCHEMAS,
        not broken,
        f"The table's schemas contradict each other or its snapshots in {len(broken):,} places."
        if broken
        else f"{len(metadata.schemas):,} schemas with {len(types):,} field ids fit together.",
        tuple(broken),
        {"schemas": len(metadata.schemas), "field_ids": len(types)},
    )


def _fields(node: Mapping[str, Any], within: str) -> Iterator[tuple[int, str, str]]:
    """Yield (field id, dotted name, type) of all fields of a struct, list or map; nested types by their kind alone."""
    if node["type"] == "struct":
        children = [(each["id"], each["name"], each["type"]) for each in node["fields"]]
    elif node["type"] == "list":
        children = [(node["element-id"], "element", node["element"])]
    else:
        children = [(node["key-id"], "key", node["key"]), (node["value-id"], "value", node["value"])]
    for key, name, kind in children:
        path = f"{within}.{name}" if within else str(name)
        yield int(key), path, kind if isinstance(kind, str) else kind["type"]
        if not isinstance(kind, str):
            yield from _fields(kind, path)


def _may_become(before: str, after: str) -> bool:
    if before in (after, "unknown") or (before, after) in _PROMOTIONS:
        return True
    if before.startswith("decimal(") and after.startswith("decimal("):
        (precision, scale), (wider, same) = (each[8:-1].split(",") for each in (before, after))
        return int(wider) >= int(precision) and int(scale) == int(same)
    return False
