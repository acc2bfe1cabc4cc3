"""The schemas that a table has had, and when. From one metadata file: every schema of it, and the snapshots that name a
schema id; and from the ledger, where snapshots have expired. Pure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from artemis_lifecycle.config.policies import Checks
from artemis_lifecycle.contracts import LineageRequirements, lineage_problems
from artemis_lifecycle.expiration.verdicts import Verdict
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle.tabular import Shown

if TYPE_CHECKING:
    import pandas as pd


_NONE: Mapping[int, str] = MappingProxyType({})


class SchemaUse(NamedTuple):
    """A snapshot and the schema it was written with."""

    snapshot_id: int
    timestamp_ms: int
    schema_id: int


@dataclass(frozen=True)
class SchemaField:
    """A column, by its field id; nested types as their JSON text."""

    field_id: int
    name: str
    type: str
    required: bool


@dataclass(frozen=True)
class SchemaVersion:
    """A schema, what it changed against the version before, and the commits it was used by. Times are epoch
    milliseconds: of the first and the last snapshot that is known to have used it, None when none is."""

    schema_id: int
    fields: tuple[SchemaField, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    first_snapshot_id: int | None
    first_used_ms: int | None
    last_used_ms: int | None
    snapshots: int
    is_current: bool


@dataclass(frozen=True)
class SchemaHistory(Shown):
    """Schema versions in the order of their ids, which is the order in which they were made."""

    table: str
    metadata_location: str
    versions: tuple[SchemaVersion, ...]

    def to_pandas(self) -> pd.DataFrame:
        """One row per version.

        Columns: schema_id int64; columns int64; added, removed, changed object (names, comma separated); first_used and
        last_used datetime64[ms, UTC] (NaT when no known snapshot used it); snapshots int64; is_current bool.
        """
        import pandas as pd

        def times(values: Iterable[int | None]) -> pd.Series[pd.Timestamp]:
            stamps = [pd.NaT if value is None else pd.Timestamp(value, unit="ms", tz="UTC") for value in values]
            return pd.Series(stamps, dtype="datetime64[ms, UTC]")

        versions = self.versions
        return pd.DataFrame(
            {
                "schema_id": pd.Series([version.schema_id for version in versions], dtype="int64"),
                "columns": pd.Series([len(version.fields) for version in versions], dtype="int64"),
                "added": pd.Series([", ".join(version.added) for version in versions], dtype="object"),
                "removed": pd.Series([", ".join(version.removed) for version in versions], dtype="object"),
                "changed": pd.Series([", ".join(version.changed) for version in versions], dtype="object"),
                "first_used": times(version.first_used_ms for version in versions),
                "last_used": times(version.last_used_ms for version in versions),
                "snapshots": pd.Series([version.snapshots for version in versions], dtype="int64"),
                "is_current": pd.Series([version.is_current for version in versions], dtype="bool"),
            }
        )


def schema_history(
    table: str, metadata: TableMetadata, earlier: Iterable[SchemaUse] = (), removed: Mapping[int, str] = _NONE
) -> SchemaHistory:
    """Every schema that `metadata` knows. `earlier`: uses by snapshots that it no longer has (the ledger has them).
    `removed`: schemas that an expiration removed from it (JSON text by id)."""
    schemas = {**removed, **metadata.schemas}
    uses: dict[int, SchemaUse] = {use.snapshot_id: use for use in earlier}
    for snapshot in metadata.snapshots:
        if snapshot.schema_id is not None:
            uses[snapshot.snapshot_id] = SchemaUse(snapshot.snapshot_id, snapshot.timestamp_ms, snapshot.schema_id)
    by_schema: dict[int, list[SchemaUse]] = {}
    for use in sorted(uses.values(), key=lambda use: use.timestamp_ms):
        by_schema.setdefault(use.schema_id, []).append(use)
    versions: list[SchemaVersion] = []
    before: Mapping[int, SchemaField] = {}
    for schema_id in sorted(schemas):
        fields = _fields(schemas[schema_id])
        now = {field.field_id: field for field in fields}
        used = by_schema.get(schema_id, [])
        versions.append(
            SchemaVersion(
                schema_id=schema_id,
                fields=fields,
                added=tuple(field.name for field in fields if field.field_id not in before) if versions else (),
                removed=tuple(field.name for key, field in before.items() if key not in now),
                changed=tuple(
                    _change(before[key], field) for key, field in now.items() if before.get(key, field) != field
                ),
                first_snapshot_id=used[0].snapshot_id if used else None,
                first_used_ms=used[0].timestamp_ms if used else None,
                last_used_ms=used[-1].timestamp_ms if used else None,
                snapshots=len(used),
                is_current=schema_id == metadata.current_schema_id,
            )
        )
        before = now
    return SchemaHistory(table, metadata.metadata_location, tuple(versions))


def _fields(text: str) -> tuple[SchemaField, ...]:
    return tuple(
        SchemaField(
            field_id=int(field["id"]),
            name=str(field["name"]),
            type=field["type"] if isinstance(field["type"], str) else json.dumps(field["type"], sort_keys=True),
            required=bool(field["required"]),
        )
        for field in json.loads(text)["fields"]
    )


def _change(old: SchemaField, new: SchemaField) -> str:
    parts = [old.name if old.name == new.name else f"{old.name} → {new.name}"]
    if old.type != new.type:
        parts.append(f"{old.type} → {new.type}")
    if old.required != new.required:
        parts.append("required" if new.required else "optional")
    return " ".join(parts)


RECORDED, DESCRIBED, SCHEMAS = "every_snapshot_is_recorded", "summaries_are_complete", "schemas_are_consistent"


# --- verdicts ---------------------------------------------------------------------------------------------------------
# Checks of a table's lineage and schemas: is every snapshot recorded and described, and do its schemas fit together?
# Pure.

_PROMOTIONS = {("int", "long"), ("float", "double"), ("date", "timestamp"), ("date", "timestamp_ns")}
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
        fields = list(_nested_fields(json.loads(metadata.schemas[schema_id]), ""))
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


def _nested_fields(node: Mapping[str, Any], within: str) -> Iterator[tuple[int, str, str]]:
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
            yield from _nested_fields(kind, path)


def _may_become(before: str, after: str) -> bool:
    if before in (after, "unknown") or (before, after) in _PROMOTIONS:
        return True
    if before.startswith("decimal(") and after.startswith("decimal("):
        (precision, scale), (wider, same) = (each[8:-1].split(",") for each in (before, after))
        return int(wider) >= int(precision) and int(scale) == int(same)
    return False
