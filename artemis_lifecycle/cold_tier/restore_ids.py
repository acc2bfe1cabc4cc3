"""What a cold snapshot needs to be read in the live table, and whether the table can have it: schemas, partition specs,
column types, name mapping, and numbers that mean one thing."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.catalogs.rest_commit import CommitTable
from artemis_lifecycle.cold_tier.cold_metadata import line_of
from artemis_lifecycle.cold_tier.copy import each_file
from artemis_lifecycle.cold_tier.evolution import (
    FIRST_OWN_ID,
    ID_KEYS,
    NAME_MAPPING,
    SCHEMAS,
    SPECS,
    AlwaysUnsorted,
    Ids,
    clashing_fields,
    field_ids,
    joint,
    names_its_fields,
    same_ids,
    unreadable_fields,
)
from artemis_lifecycle.cold_tier.paths import ColdIdentity
from artemis_lifecycle.cold_tier.transfer import TransferSettings
from artemis_lifecycle.errors import RestoreFailed
from artemis_lifecycle.metadata import manifest_lists, manifests
from artemis_lifecycle.metadata.lines import Line, Marks, Relation, relate
from artemis_lifecycle.metadata.manifests import read_manifest
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- restore context --------------------------------------------------------------------------------------------------
# The request, the context and the result of a restore.


@dataclass(frozen=True)
class RestoreRequest:
    """Restore `snapshot_id` of the cold tier to `branch` of the live table. `summary` has the lineage keys of the
    commit: who made it, and why."""

    table: str
    table_uuid: str
    snapshot_id: int
    branch: str
    who: str
    why: str | None = None
    summary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RestoreContext:
    """What a restore needs. `check` raises when the worker's lease is lost; `require_lineage` raises when the live
    table would refuse a commit with that summary. `noted` returns what of it a commit without a snapshot notes.
    `archive` is the table's newest cold table, where a closed one has the snapshot. `managed`: the live
    catalog's store is its own. `takes_whole_metadata`: the live catalog is not a REST catalog."""

    spark: SparkSession
    live_stores: Stores
    cold_stores: Stores
    operations: Operations
    live_catalog: str
    commit_table: CommitTable
    root: str
    settings: TransferSettings = field(default_factory=TransferSettings)
    check: Callable[[], None] = lambda: None
    require_lineage: Callable[[Mapping[str, str]], None] = lambda summary: None
    noted: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda summary: {}
    archive: TableMetadata | None = None
    managed: bool = False
    takes_whole_metadata: bool = True
    rules: LocationRules = field(default_factory=LocationRules)


@dataclass(frozen=True)
class Restored:
    """The result of a restore: `branch` has the rows of `source_snapshot_id` as its snapshot `snapshot_id`. If the live
    table still had the snapshot, both ids are equal and nothing was copied. Sizes in bytes; every copied file was
    verified. `numbered_anew` says that the table's catalog was put back, and from where its numbers go on."""

    table: str
    source_snapshot_id: int
    branch: str
    snapshot_id: int
    metadata_location: str
    restore_id: str | None = None
    copied_files: int = 0
    copied_bytes: int = 0
    rewritten_files: int = 0
    attempts: int = 0
    numbered_anew: str | None = None


class RestoreMapping:
    """Maps a path in the cold tier to the restore's folder. Picklable."""

    def __init__(self, identity: ColdIdentity, folder: str, ids: Ids) -> None:
        self._roots = (
            (identity.cold_location.rstrip("/") + "/", f"{folder}/table/"),
            (identity.cold_warehouse.rstrip("/") + "/", f"{folder}/warehouse/"),
        )
        self.rules = identity.rules
        self.ids = ids

    def __call__(self, path: str) -> str:
        for root, place in self._roots:
            if path.startswith(root):
                return place + path[len(root) :]
        raise RestoreFailed(
            "The cold table references a file outside the cold warehouse",
            path=path,
            untouched="the live table",
            hint="find out who wrote that metadata: no handoff did",
        )

    def used(self, path: str, added_by: int | None) -> str:
        return self(path)  # In cold, each file has its own path.

    def meant(self, path: str, deleted_by: int | None) -> str:
        return self(path)


@dataclass(frozen=True)
class Placement:
    """What a snapshot needs in the live table: `ids` for those in its files; `schemas` and `specs` (JSON) that the
    table lacks; `marks` above which the table goes on. `relation` is the live table's to its archive, and `lost_file`
    the archive's newest metadata file of the live table."""

    ids: Ids
    schemas: tuple[str, ...]
    specs: tuple[str, ...]
    marks: Marks
    relation: Relation
    lost_file: str | None

    def raises(self, live: TableMetadata) -> bool:
        """Return True if the archive has used numbers that the live table has still to give out."""
        return self.marks.exceeds(Marks.of(live))


def require_readable(table: str, snapshot_id: int, schema: str, live: TableMetadata) -> None:
    """Raise RestoreFailed if the live table's present columns, under which a branch is read, would read values of a
    snapshot with that `schema` (JSON) otherwise. A table that was replaced keeps the ids of columns by their names."""
    fields = unreadable_fields(json.loads(schema), json.loads(live.schemas[live.current_schema_id]))
    if fields:
        raise _refusal(
            table,
            snapshot_id,
            live,
            f"The live table's columns with the ids {', '.join(map(str, fields))} have another type or default: "
            "a branch would read the snapshot's values otherwise",
        )


def _refusal(table: str, snapshot_id: int, live: TableMetadata, what: str) -> RestoreFailed:
    return RestoreFailed(
        what,
        table=table,
        path=live.metadata_location,
        untouched="the live table",
        hint=f"read it in place (lifecycle.read, artemis query … FOR VERSION AS OF {snapshot_id}) and insert what you "
        "need",
    )


def live_ids(
    context: RestoreContext, request: RestoreRequest, source: Snapshot, cold: TableMetadata, live: TableMetadata
) -> Placement:
    """Return what the snapshot needs in the live table. Raises RestoreFailed if its files cannot be read there as they
    were written, or if the live table has given ids of their columns, partition fields or rows to something else."""

    refusal = partial(_refusal, request.table, source.snapshot_id, live)
    if source.manifest_list is None:
        raise refusal(
            f"Snapshot {source.snapshot_id} was written without a manifest list, as format version 1 once allowed"
        )
    if cold.format_version > live.format_version:
        raise refusal(
            f"The archive has format version {cold.format_version}, the live table {live.format_version}; upgrade the "
            f"table first (TBLPROPERTIES 'format-version'='{cold.format_version}')"
        )
    archive = context.archive or cold
    ours, theirs = Line.of(live, context.operations.table_locations.left_ms(live.table_uuid)), line_of(archive)
    related = relate(ours, theirs)
    apart = related in (Relation.BEHIND, Relation.DIVERGED)
    clashing = clashing_fields(live.schemas.values(), archive.schemas.values()) if apart else set()
    listed = manifest_lists.manifests_of(context.cold_stores, source).entries
    by_equality = {
        number
        for entry in listed
        if entry.content
        for file in read_manifest(context.cold_stores, entry)
        for number in file.equality_ids
    }
    read_as = cold.current_schema_id if source.schema_id is None else source.schema_id
    read = cold.schemas.get(read_as)
    then = json.loads(read) if read is not None else {}
    lost = sorted((by_equality | field_ids(then).keys()) & clashing)
    if lost:
        raise refusal(
            "The table's catalog was put back and written to: it has given the column ids "
            f"{', '.join(map(str, lost))}, which the snapshot uses, to other columns"
        )
    # Of a table that is behind, nothing was given out, and what it gives out goes on above the archive's.
    may_differ = related is Relation.DIVERGED or not (related is Relation.BEHIND or ours.surely_follows(theirs))
    if may_differ and _rows_twice(source, live, cold, archive):
        raise refusal(
            "The table's catalog was put back and written to: it has given the snapshot's row ids to other rows"
            if apart
            else "Nothing shows that the table goes on from its archive: its metadata log does not reach back to the "
            "last handoff, and the snapshot of then is gone. The snapshot's row ids may be of other rows"
        )
    if read is not None:
        require_readable(request.table, source.snapshot_id, read, live)
        _require_mapping(context, source, then, cold, live, refusal)
    wanted = {} if read is None else {read_as: read}
    known = {number for text in (*live.schemas.values(), *wanted.values()) for number in field_ids(json.loads(text))}
    for number in sorted(by_equality - known):
        # Only an old schema has a column that was dropped.
        having = (
            each for each in sorted(cold.schemas, reverse=True) if number in field_ids(json.loads(cold.schemas[each]))
        )
        wanted |= {each: cold.schemas[each] for each in (next(having, None),) if each is not None}
    schemas, new_schemas = _placed(
        wanted, cold.schemas, archive.schemas, live.schemas, SCHEMAS, raising=apart and not clashing
    )
    needed = {entry.partition_spec_id for entry in listed}
    lacking = needed - same_ids(cold.partition_specs, live.partition_specs, SPECS).keys()
    for number in sorted(lacking):
        if number not in cold.partition_specs or _unusable(cold.partition_specs[number], live, clashing):
            raise refusal(
                f"The live table no longer has partition spec {number}, by which the snapshot's files are partitioned, "
                "and cannot take it up again: its columns or the ids of its fields are others now"
            )
    highest = archive.partition_specs.get(_highest(archive.partition_specs))
    raising = apart and highest is not None and not _unusable(highest, live, clashing)
    wanted = {number: cold.partition_specs[number] for number in needed}
    specs, new_specs = _placed(
        wanted, cold.partition_specs, archive.partition_specs, live.partition_specs, SPECS, raising=raising
    )
    # Files in any order may be declared unsorted.
    ids = Ids(schemas, specs, AlwaysUnsorted())
    return Placement(ids, new_schemas, new_specs, Marks.of(archive), related, line_of(archive).file)


def _placed(
    wanted: Mapping[int, str],
    theirs: Mapping[int, str],
    archived: Mapping[int, str],
    ours: Mapping[int, str],
    key: str,
    *,
    raising: bool,
) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return the live ids of `theirs`, and the items to add, so that the table has those `wanted`. With `raising`, also
    the archive's item with the highest id if the table's ids end below it: the next id follows the highest."""
    found, added = same_ids(theirs, ours, key), {}
    free = max(_highest(ours), _highest(archived)) + 1
    for number, text in sorted(wanted.items()):
        if number not in found:
            same = number < FIRST_OWN_ID and number not in ours and number not in added
            found[number] = number if same else free
            added[found[number]] = json.dumps({**json.loads(text), ID_KEYS[key]: found[number]})
            free += not same
    highest = _highest(archived)
    if raising and highest > max(_highest(ours), *added, -1):
        added[highest] = archived[highest]
    return found, tuple(added.values())


def _highest(items: Mapping[int, str]) -> int:
    """Return the highest id that a live table has given, also in the archive, which has higher ones of its own."""
    return max((number for number in items if number < FIRST_OWN_ID), default=-1)


def _unusable(spec: str, live: TableMetadata, clashing: Collection[int]) -> bool:
    """Return True if the live table cannot have the spec: a source column is gone or another one, or one of its fields'
    ids or names stands for something else."""
    columns = field_ids(json.loads(live.schemas[live.current_schema_id])).keys() - set(clashing)
    known = [each for text in live.partition_specs.values() for each in json.loads(text).get("fields") or ()]
    for item in json.loads(spec).get("fields") or ():
        what = (item.get("source-id"), item["transform"])
        same = [each for each in known if item["field-id"] == each.get("field-id") or item["name"] == each["name"]]
        if what[0] not in columns or any(
            (each.get("source-id"), each["transform"], each.get("field-id")) != (*what, item["field-id"])
            for each in same
        ):
            return True
    return False


def _rows_twice(source: Snapshot, live: TableMetadata, *archived: TableMetadata) -> bool:
    """Return True if the live table's own commits may have given out row ids of the snapshot: all that are above those
    of the last snapshot that both lines have."""

    def ids(metadata: TableMetadata) -> set[int]:
        return metadata.snapshots_by_id.keys() | {each.snapshot_id for each in metadata.snapshot_log}

    both = ids(live) & set().union(*map(ids, archived))
    known = (each for metadata in (live, *archived) for each in metadata.snapshots if each.snapshot_id in both)
    return live.next_row_id is not None and _next_row(source) > max(map(_next_row, known), default=0)


def _next_row(snapshot: Snapshot) -> int:
    return 0 if snapshot.first_row_id is None else snapshot.first_row_id + (snapshot.added_rows or 0)


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
