"""Rewriting manifest lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from artemis_lifecycle.cold_tier.evolution import SAME_IDS, Ids
from artemis_lifecycle.cold_tier.rewrite.deletes import Mapped, Used, not_copied
from artemis_lifecycle.metadata.avro.container import open_container
from artemis_lifecycle.metadata.avro.records import decoding, read_records, with_records
from artemis_lifecycle.metadata.manifest_lists import list_names
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, ReadLimits


def rewrite_manifest_list(
    data: bytes,
    path: str,
    mapped: Mapped,
    lengths: Mapping[str, int],
    ids: Ids = SAME_IDS,
    limits: ReadLimits = DEFAULT_LIMITS,
    used: Used | None = None,
) -> bytes:
    """Map the paths of the manifest list at `path`. `lengths` are those of the cold manifests, by cold path. `ids` has
    the partition specs with a different id there.

    Raises HandoffFailed for a manifest without a length, and UnreadableMetadata for bytes that are not a manifest list.
    """
    with decoding(path):
        container = open_container(data, path, limits)
        names = list_names(container.schema, path)
        path_name, length_name = names["manifest_path"], names["manifest_length"]
        spec_name, added_by = names.get("partition_spec_id"), names.get("added_snapshot_id", "")

        def changed(record: dict[str, Any]) -> dict[str, Any]:
            path = record[path_name]
            cold = mapped(path) if used is None else used(path, record.get(added_by), False)
            if cold not in lengths:
                raise not_copied("A manifest", record[path_name])
            record[path_name], record[length_name] = cold, lengths[cold]
            if spec_name is not None:
                record[spec_name] = ids.specs.get(record[spec_name], record[spec_name])
            return record

        return with_records(container, map(changed, read_records(container, path)), path)
