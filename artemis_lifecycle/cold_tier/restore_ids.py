"""Checks whether the live table can read a cold snapshot's files: partition specs, column types, name mapping."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from artemis_lifecycle.cold_tier.evolution import (
    SCHEMAS,
    SPECS,
    AlwaysUnsorted,
    Ids,
    field_ids,
    same_ids,
    unreadable_fields,
)
from artemis_lifecycle.cold_tier.name_mapping import NAME_MAPPING, joint, names_its_fields
from artemis_lifecycle.cold_tier.requests import each_file
from artemis_lifecycle.cold_tier.restore_context import RestoreContext, RestoreRequest
from artemis_lifecycle.errors import RestoreFailed
from artemis_lifecycle.metadata import manifest_lists, manifests
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.stores import Stores


def live_ids(
    context: RestoreContext, request: RestoreRequest, source: Snapshot, cold: TableMetadata, live: TableMetadata
) -> Ids:
    """Return the live table's ids for the ids in the snapshot's files. Raises RestoreFailed if the table no longer has
    such a partition spec, or has a different column in its place."""

    def refusal(what: str) -> RestoreFailed:
        return RestoreFailed(
            what,
            table=request.table,
            path=live.metadata_location,
            untouched="the live table",
            hint=f"read it in place (lifecycle.read, artemis query … FOR VERSION AS OF {source.snapshot_id}) and "
            "insert what you need",
        )

    if source.manifest_list is None:
        raise refusal(
            f"Snapshot {source.snapshot_id} was written without a manifest list, as format version 1 once allowed"
        )
    specs = same_ids(cold.partition_specs, live.partition_specs, SPECS)
    for entry in manifest_lists.manifests_of(context.cold_stores, source).entries:
        if entry.partition_spec_id not in specs:
            raise refusal(
                f"The live table no longer has partition spec {entry.partition_spec_id}, by which the snapshot's files "
                "are partitioned"
            )
    then = cold.schemas.get(cold.current_schema_id if source.schema_id is None else source.schema_id)
    if then is not None:
        fields = unreadable_fields(json.loads(then), json.loads(live.schemas[live.current_schema_id]))
        if fields:
            raise refusal(
                f"The live table's columns with the ids {', '.join(map(str, fields))} have another type: the "
                "snapshot's values cannot be read with it"
            )
        _require_mapping(context, source, json.loads(then), cold, live, refusal)
    schemas = same_ids(cold.schemas, live.schemas, SCHEMAS)
    # Files in any order may be declared unsorted.
    return Ids(schemas, specs, AlwaysUnsorted())


def _require_mapping(
    context: RestoreContext,
    source: Snapshot,
    schema: dict[str, Any],
    cold: TableMetadata,
    live: TableMetadata,
    refusal: Callable[[str], RestoreFailed],
) -> None:
    """Raise if a file of the snapshot has no field ids, and the live table's name mapping would read it differently."""
    read = set(field_ids(schema))
    then, now = (metadata.properties.get(NAME_MAPPING) for metadata in (cold, live))
    if joint(then, now, read, read) is not None:
        return
    files: dict[str, str] = {}
    for entry in manifest_lists.manifests_of(context.cold_stores, source).entries:
        batch = manifests.live_entries(context.cold_stores, entry)
        files |= zip(batch.column("file_path").to_pylist(), batch.column("file_format").to_pylist(), strict=True)
    request, columns = partial(_has_field_ids, formats=files), "path string, named boolean"
    answers = each_file(Runner(context.spark), context.cold_stores, request, columns, sorted(files))
    bare = [path for path, named in answers if not named]
    if bare:
        raise refusal(
            f"{len(bare)} of the snapshot's files have no field ids (such as {bare[0]}), and the live table's "
            f"{NAME_MAPPING} would read their columns differently than the snapshot did"
        )


def _has_field_ids(stores: Stores, path: str, *, formats: Mapping[str, str]) -> tuple[str, bool]:
    with stores.open(path) as file:
        return path, names_its_fields(file, formats[path], path)
