"""The commit of a restore: a new snapshot on a branch of the live table, or a branch on a snapshot that it still
has."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from artemis_lifecycle.catalogs.commit import BaseState, BranchChange, Change, CommitResult, commit_with_retry
from artemis_lifecycle.cold_tier.cold_metadata import RESTORED_SNAPSHOT as RESTORED_SNAPSHOT
from artemis_lifecycle.cold_tier.evolution import Ids
from artemis_lifecycle.cold_tier.paths import ColdIdentity
from artemis_lifecycle.cold_tier.restore_context import RestoreContext, Restored, RestoreRequest
from artemis_lifecycle.cold_tier.restore_copies import check_protected
from artemis_lifecycle.cold_tier.restore_ids import Placement, live_ids
from artemis_lifecycle.contracts.summary import OPERATION, Operation
from artemis_lifecycle.errors import BadInput, NoSuchSnapshot, RestoreFailed
from artemis_lifecycle.metadata.lines import CONTINUES, Marks, Relation
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.restores import RestoreRecord

RESTORE_ID = "artemis.restore-id"
RESTORED_FROM = "artemis.restored-from"
"""Keys of a restored snapshot's summary: the restore, and the cold table."""

RESTORED_AS: Operation = "overwrite"


def commit_restored(
    context: RestoreContext,
    request: RestoreRequest,
    record: RestoreRecord,
    source: Snapshot,
    cold: TableMetadata,
    identity: ColdIdentity,
    ids: Ids,
    manifest_list: str,
) -> tuple[int, CommitResult]:
    made = secrets.randbits(63)

    def change(base: BaseState) -> Change | None:
        nonlocal made
        _check_table(request, base)
        ref = base.metadata.ref(request.branch)
        if ref is not None:
            head = base.metadata.snapshot(ref.snapshotId())
            if ref.isBranch() and head is not None and dict(head.summary()).get(RESTORE_ID) == record.restore_id:
                made = int(ref.snapshotId())
                return None
            raise taken(request, int(ref.snapshotId()), "branch" if ref.isBranch() else "tag")
        while made == 0 or base.metadata.snapshot(made) is not None:
            made = secrets.randbits(63)
        check_protected(context, record)
        # Copying took time, so use the current specs, column types and name mapping.
        now = read_table_metadata(context.live_stores, base.metadata_location)
        found = live_ids(context, request, source, cold, now)
        if found.ids.specs != ids.specs:
            raise RestoreFailed(
                "The ids of the live table's partition specs changed during the restore",
                table=request.table,
                path=base.metadata_location,
                untouched="the live table",
                hint="run the restore again: it starts over",
            )
        made_as = _snapshot(request, record, base, made, source, identity, found, manifest_list)
        raises, lost = found.raises(now), found.lost_file
        # A table that was only put back, and not written to, goes on from the archive's line with this commit.
        return Change(
            add_snapshots={made: made_as},
            set_branches=(BranchChange(request.branch, made),),
            set_properties={CONTINUES: lost} if lost is not None and found.relation is Relation.BEHIND else {},
            add_schemas=found.schemas,
            add_specs=found.specs,
            raise_to=_fields(found.marks, now) if raises else {},
        )

    with table_lock(context.operations.engine, request.table_uuid, table=request.table), around("restore.commit"):
        result = _commit(context, request, change)
    return made, result


def _commit(
    context: RestoreContext,
    request: RestoreRequest,
    change: Callable[[BaseState], Change | None],
    lineage: Mapping[str, str] = MappingProxyType({}),
) -> CommitResult:
    return commit_with_retry(
        context.spark,
        context.live_catalog,
        request.table,
        change,
        before_swap=context.operations.table_locations.attempts_of(request.table_uuid),
        lineage=lineage,
    )


def _snapshot(
    request: RestoreRequest,
    record: RestoreRecord,
    base: BaseState,
    snapshot_id: int,
    source: Snapshot,
    identity: ColdIdentity,
    placement: Placement,
    manifest_list: str,
) -> str:
    """Return the new snapshot, which follows `base`, as JSON."""
    metadata = base.metadata
    totals = {key: value for key, value in source.summary.properties.items() if key.startswith("total-")}
    snapshot: dict[str, object] = {
        "snapshot-id": snapshot_id,
        "timestamp-ms": max(time.time_ns() // 1_000_000, int(metadata.lastUpdatedMillis())),
        "summary": {
            **totals,
            **request.summary,
            OPERATION: RESTORED_AS,
            RESTORE_ID: record.restore_id,
            RESTORED_SNAPSHOT: str(request.snapshot_id),
            RESTORED_FROM: identity.cold_table,
        },
        "manifest-list": manifest_list,
    }
    then = None if source.schema_id is None else placement.ids.schemas.get(source.schema_id)
    snapshot["schema-id"] = int(metadata.currentSchemaId()) if then is None else then
    if metadata.formatVersion() > 1:
        # Above all of the archive's: deletes on the branch apply to what was restored.
        snapshot["sequence-number"] = max(int(metadata.nextSequenceNumber()), placement.marks.sequence_number + 1)
    if metadata.formatVersion() > 2:
        # Its manifests already have their row ids.
        snapshot["first-row-id"] = max(int(metadata.nextRowId()), placement.marks.next_row_id)
        snapshot["added-rows"] = 0
    return json.dumps(snapshot)


def _fields(marks: Marks, live: TableMetadata) -> dict[str, int]:
    """Return the fields of the metadata file to raise. The new snapshot raises the last sequence number."""
    found = {"last-column-id": marks.column_id, "last-partition-id": marks.partition_id}
    return found if live.next_row_id is None else {**found, "next-row-id": marks.next_row_id}


def branch_on(context: RestoreContext, request: RestoreRequest) -> Restored:
    """Create a branch on a snapshot that the live table still has; nothing needs copying."""

    def change(base: BaseState) -> Change | None:
        _check_table(request, base)
        ref = base.metadata.ref(request.branch)
        if ref is not None and not (ref.isBranch() and ref.snapshotId() == request.snapshot_id):
            raise taken(request, int(ref.snapshotId()), "branch" if ref.isBranch() else "tag")
        return None if ref is not None else Change(set_branches=(BranchChange(request.branch, request.snapshot_id),))

    noted = context.noted({**request.summary, OPERATION: "branch"})
    with table_lock(context.operations.engine, request.table_uuid, table=request.table):
        result = _commit(context, request, change, noted)
    return Restored(
        table=request.table,
        source_snapshot_id=request.snapshot_id,
        branch=request.branch,
        snapshot_id=request.snapshot_id,
        metadata_location=result.metadata_location,
        attempts=result.attempts,
    )


def take_back(context: RestoreContext, request: RestoreRequest, snapshot_id: int) -> None:
    """Remove a restored branch and its snapshot, unless somebody has written to the branch."""

    def change(base: BaseState) -> Change | None:
        ref = base.metadata.ref(request.branch)
        if base.table_uuid != request.table_uuid or ref is None or int(ref.snapshotId()) != snapshot_id:
            return None
        return Change(remove_refs=(request.branch,), expire_snapshot_ids=(snapshot_id,))

    context.check()
    with table_lock(context.operations.engine, request.table_uuid, table=request.table):
        _commit(context, request, change)


def taken(request: RestoreRequest, snapshot_id: int, kind: str) -> BadInput:
    return BadInput(
        f"The table already has a {kind} {request.branch!r}, on snapshot {snapshot_id}",
        table=request.table,
        untouched="the table",
        hint="choose another branch, or drop that one first",
    )


def _check_table(request: RestoreRequest, base: BaseState) -> None:
    if base.table_uuid != request.table_uuid:
        raise NoSuchSnapshot(
            f"The name now belongs to another table ({base.table_uuid}, not {request.table_uuid})",
            table=request.table,
            untouched="both tables",
            hint="check the table, and run the restore again if it is the right one",
        )
