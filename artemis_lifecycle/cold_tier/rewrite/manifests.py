"""Rewriting manifests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from artemis_lifecycle.cold_tier.evolution import SAME_IDS, Ids
from artemis_lifecycle.cold_tier.rewrite.deletes import DELETE_FILE_PATH, Mapped, RewrittenDelete, Used, not_copied
from artemis_lifecycle.errors import HandoffFailed
from artemis_lifecycle.metadata.avro.container import Container, open_container
from artemis_lifecycle.metadata.avro.records import decoding, read_records, with_records
from artemis_lifecycle.metadata.manifests import entry_names, file_names
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, ReadLimits

_SPEC_ID = "partition-spec-id"


def rewrite_manifest(
    data: bytes,
    path: str,
    mapped: Mapped,
    deletes: Mapping[str, RewrittenDelete],
    ids: Ids = SAME_IDS,
    limits: ReadLimits = DEFAULT_LIMITS,
    used: Used | None = None,
) -> bytes:
    """Map the paths of the manifest at `path`. `deletes` are the rewritten delete files, by cold path. `ids` has the
    partition specs and sort orders with a different id there. `used`, if given, replaces `mapped`.

    Raises HandoffFailed for a live delete file that `deletes` lacks, and UnreadableMetadata for bytes that are not a
    manifest.
    """
    with decoding(path):
        container = open_container(data, path, limits)
        entry = entry_names(container.schema, path)
        names = file_names(container.schema, entry, path)
        status, data_file, order = entry["status"], entry["data_file"], names.get("sort_order_id")
        added = entry.get("snapshot_id", "")

        def changed(record: dict[str, Any]) -> dict[str, Any]:
            file, live, own, other = record[data_file], record[status] != 2, mapped, mapped
            if used is not None and live:  # Of an entry marked "deleted", the snapshot is the one that deleted it.
                added_by = record.get(added)
                own = lambda path: used(path, added_by, False)  # noqa: E731
                other = lambda path: used(path, added_by, True)  # noqa: E731
            _map_entry(file, names, own, other, deletes, live=live)
            if order is not None and file[order] is not None:
                file[order] = ids.orders.get(file[order], file[order])
            return record

        return with_records(_with_spec(container, ids), map(changed, read_records(container, path)), path)


def _with_spec(container: Container, ids: Ids) -> Container:
    """Return the manifest with the other tier's partition spec id in its header."""
    try:
        number = int(container.header.get(_SPEC_ID, ""))
    except ValueError:
        return container  # Then only the list has it.
    other = ids.specs.get(number, number)
    return container if other == number else container.with_header(_SPEC_ID, str(other))


def _map_entry(
    file: dict[str, Any],
    names: Mapping[str, str],
    mapped: Mapped,
    meant: Mapped,
    deletes: Mapping[str, RewrittenDelete],
    *,
    live: bool,
) -> None:
    path_name, referenced_name = names["file_path"], names.get("referenced_data_file")
    live_path = file[path_name]
    file[path_name] = mapped(live_path)
    if referenced_name is not None and file[referenced_name] is not None:
        file[referenced_name] = meant(file[referenced_name])
    if "content" not in names or file[names["content"]] != 1:
        return
    rewritten = deletes.get(file[path_name])
    if rewritten is None:
        if live:
            raise not_copied("A delete file", live_path)
        # No reader opens the file of an entry marked "deleted". Only its bounds must not contain a live path.
        _map_bounds(file, names, *_single_path(file, names, meant))
        return
    file[names["file_size_in_bytes"]] = rewritten.size_in_bytes
    if str(file[names["file_format"]]).lower() == "puffin":
        referenced = None if referenced_name is None else file[referenced_name]
        _map_bounds(file, names, referenced, referenced)
        return
    splits, columns = names.get("split_offsets"), names.get("column_sizes")
    if splits is not None and file[splits] is not None:
        file[splits] = None if rewritten.split_offsets is None else list(rewritten.split_offsets)
    if columns is not None and file[columns] is not None:
        for pair in file[columns]:
            pair["value"] = rewritten.column_sizes.get(pair["key"], pair["value"])
    _map_bounds(file, names, rewritten.lower_path, rewritten.upper_path)


def _map_bounds(file: dict[str, Any], names: Mapping[str, str], lower: str | None, upper: str | None) -> None:
    """Map the bounds of the column `file_path` if it has any. Remove both if the true ones are unknown."""
    for name, bound in ((names.get("lower_bounds"), lower), (names.get("upper_bounds"), upper)):
        if name is None or file[name] is None:
            continue
        pairs = []
        for pair in file[name]:
            if pair["key"] != DELETE_FILE_PATH:
                pairs.append(pair)
            elif lower is not None and upper is not None and bound is not None:
                pairs.append({**pair, "value": bound.encode()})
        file[name] = pairs


def _single_path(file: dict[str, Any], names: Mapping[str, str], mapped: Mapped) -> tuple[str | None, str | None]:
    found = []
    for name in (names.get("lower_bounds"), names.get("upper_bounds")):
        pairs = (file[name] or []) if name is not None else []
        found.append(next((bytes(pair["value"]) for pair in pairs if pair["key"] == DELETE_FILE_PATH), None))
    if found[0] is None or found[0] != found[1]:
        return None, None
    try:
        path = mapped(found[0].decode())
    except (UnicodeDecodeError, HandoffFailed):
        return None, None
    return path, path
