"""The schemas that a table has had, and when. From one metadata file: every schema of it, and the snapshots that name a
schema id; and from the ledger, where snapshots have expired. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from artemis_lifecycle.metadata.types import TableMetadata

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
class SchemaHistory:
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
                changed=tuple(_change(before[key], field) for key, field in now.items() if _differs(before, field)),
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


def _differs(before: Mapping[int, SchemaField], field: SchemaField) -> bool:
    return field.field_id in before and before[field.field_id] != field


def _change(old: SchemaField, new: SchemaField) -> str:
    parts = [old.name if old.name == new.name else f"{old.name} → {new.name}"]
    if old.type != new.type:
        parts.append(f"{old.type} → {new.type}")
    if old.required != new.required:
        parts.append("required" if new.required else "optional")
    return " ".join(parts)
