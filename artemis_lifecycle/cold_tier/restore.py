"""Restore an expired snapshot: copy its files from the cold tier to a folder of the live table, verify them against the
archive's records, and commit a new snapshot that references them, on a separate branch.

Iceberg refuses a snapshot without the newest sequence number, so the old one cannot return with its own id. But the
content of its manifests can: every entry keeps its sequence number, snapshot id and first row id. So deletes apply to
the same rows as before, and rows keep their ids. The new snapshot has no parent, because it has no ancestor in the live
table. Source: format/spec.md, "Snapshots", "Sequence Number Inheritance", "First Row ID Inheritance".

Restored files never get their old paths, because an unfinished deletion may still list those.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from shlex import quote
from types import MappingProxyType

import pyarrow as pa

from artemis_lifecycle.catalogs.commit import BaseState, BranchChange, Change, CommitResult
from artemis_lifecycle.catalogs.identifier import parse_in
from artemis_lifecycle.catalogs.rest import require_expressible
from artemis_lifecycle.cold_tier.cold_metadata import RESTORED_SNAPSHOT as RESTORED_SNAPSHOT
from artemis_lifecycle.cold_tier.demand import Demand
from artemis_lifecycle.cold_tier.evolution import Ids
from artemis_lifecycle.cold_tier.ledger import COPIED, PRESENT, REWRITTEN, Ledger, handoff_ledger, is_still
from artemis_lifecycle.cold_tier.paths import RESTORED, ColdIdentity
from artemis_lifecycle.cold_tier.restore_ids import (
    Placement,
    RestoreContext,
    Restored,
    RestoreMapping,
    RestoreRequest,
    live_ids,
    require_readable,
)
from artemis_lifecycle.cold_tier.transfer import Transfer, TransferErrors
from artemis_lifecycle.contracts.summary import OPERATION, Operation
from artemis_lifecycle.errors import BadInput, LeaseLost, MissingFile, NoSuchSnapshot, RestoreFailed, UnreadableMetadata
from artemis_lifecycle.metadata.lines import CONTINUES, Marks, Relation
from artemis_lifecycle.metadata.table_metadata import read_table_metadata, refuse_encrypted
from artemis_lifecycle.metadata.types import Ref, Snapshot, TableMetadata
from artemis_lifecycle.operations.cold_tier import RestoreRecord
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.reachability.files import IndexFiles
from artemis_lifecycle.reachability.walk import indexed, reachable_files
from artemis_lifecycle.spark.java_errors import brief
from artemis_lifecycle.spark.runner import Runner

# --- restore copies ---------------------------------------------------------------------------------------------------
# The copies of a restore: its record, the heartbeat over its folder, and the transfer from the cold tier.

_WRITER = "artemis-lifecycle/restore"
_PROTECTED = timedelta(hours=24)
"""How long a killed restore can be continued. After that, orphan deletion may take its copies, and it starts over."""


def begin(context: RestoreContext, request: RestoreRequest, live: TableMetadata) -> RestoreRecord:
    """Return the restore's record. Its folder is protected from before the first copy on."""
    restores = context.operations.restores
    # A managed store takes only what is where tables have their data.
    location = f"{live.location.rstrip('/')}/{'data/' if context.managed else ''}{RESTORED}"
    while True:
        record = restores.begin(
            request.table_uuid, request.table, request.snapshot_id, request.branch, location, request.who, request.why
        )
        since = _protect(context, record)
        if record.protected_since is None:
            return restores.protected(record.restore_id, since)
        if record.protected_since == since:
            return record
        # Earlier copies may have been deleted as orphans, or may be soon: none of them is used.
        abandon(context, record)


def abandon(context: RestoreContext, record: RestoreRecord) -> None:
    context.operations.restores.abandon(record.restore_id)
    stop_protecting(context, record.table_uuid, record.restore_id)


def stop_protecting(context: RestoreContext, table_uuid: str, restore_id: str) -> None:
    context.operations.heartbeats.stop(table_uuid, _WRITER, session=restore_id)


def goes_by(context: RestoreContext, record: RestoreRecord, ids: Ids) -> bool:
    """Return True if the restore began with these partition spec ids. Records them if there are none yet."""
    path = f"{_folder(context, record.restore_id)}/specs.json"
    said = json.dumps(sorted(ids.specs.items())).encode()
    if context.live_stores.head(path) is None:
        with around("restore.specs"):
            context.live_stores.write(path, said, overwrite=True)
        return True
    return context.live_stores.read(path) == said


def _protect(context: RestoreContext, record: RestoreRecord) -> datetime:
    """Protect the restore's folder with a heartbeat. Return the start of its gapless protection."""
    return context.operations.heartbeats.beat(
        record.table_uuid, record.table, _WRITER, record.folder, _PROTECTED, session=record.restore_id
    ).started_at


def check_protected(context: RestoreContext, record: RestoreRecord) -> None:
    context.check()
    if _protect(context, record) != record.protected_since:
        raise LeaseLost(
            "The heartbeat over the restored files had a gap: some may have been deleted as orphans",
            table=record.table,
            path=record.folder,
            untouched="the table",
            hint="run the restore again: it starts over",
        )


def bring_back(
    context: RestoreContext,
    request: RestoreRequest,
    record: RestoreRecord,
    cold: TableMetadata,
    source: Snapshot,
    mapping: RestoreMapping,
) -> str:
    """Copy everything that the snapshot reads. Return the path of its manifest list."""
    origin = handoff_ledger(context.live_stores, context.root, request.table_uuid)
    # Statistics files contain the id of their snapshot. Those of the new snapshot must be computed again.
    metadata = replace(cold, statistics=())
    Transfer(
        runner=Runner(context.spark),
        source=context.cold_stores,
        target=context.live_stores,
        records=context.live_stores,
        folder=_folder(context, record.restore_id),
        work_id=record.restore_id,
        demand=Demand(metadata, (source.snapshot_id,), mapping, origin),
        ledger=restore_ledger(context, record.restore_id),
        errors=TransferErrors(
            RestoreFailed,
            request.table,
            untouched="the live table's metadata and all files that it had",
            if_failed="fix the cause and run the restore again: it starts over",
            gone=lambda problems: (
                f"{len(problems)} files of snapshot {request.snapshot_id} are gone from the cold tier, or damaged "
                f"there: {problems[0].reason}"
            ),
            if_gone="restore the file from a copy of the cold store, and run the restore again",
        ),
        settings=context.settings,
        check=lambda: check_protected(context, record),
    ).run()
    assert source.manifest_list is not None
    return mapping(source.manifest_list)


def _folder(context: RestoreContext, restore_id: str) -> str:
    return f"{context.root}/restores/{restore_id}"


def restore_ledger(context: RestoreContext, restore_id: str) -> Ledger:
    return Ledger(context.live_stores, f"{_folder(context, restore_id)}/copies")


# --- restore commit ---------------------------------------------------------------------------------------------------
# The commit of a restore: a new snapshot on a branch of the live table, or a branch on a snapshot that it still has.

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
        # Copying took time, so use the current specs, column types and name mapping.
        now = read_table_metadata(context.live_stores, base.metadata_location)
        ref = now.refs.get(request.branch)
        if ref is not None:
            head = now.snapshot(ref.snapshot_id)
            if ref.is_branch and head is not None and head.summary.properties.get(RESTORE_ID) == record.restore_id:
                made = ref.snapshot_id
                return None
            raise taken(request, ref)
        while made == 0 or now.snapshot(made) is not None:
            made = secrets.randbits(63)
        check_protected(context, record)
        found = live_ids(context, request, source, cold, now)
        if found.ids.specs != ids.specs:
            raise RestoreFailed(
                "The ids of the live table's partition specs changed during the restore",
                table=request.table,
                path=base.metadata_location,
                untouched="the live table",
                hint="run the restore again: it starts over",
            )
        made_as = _snapshot(request, record, now, made, source, identity, found, manifest_list)
        lost = found.lost_file
        # A table that was only put back, and not written to, goes on from the archive's line with this commit.
        return Change(
            add_snapshots={made: made_as},
            set_branches=(BranchChange(request.branch, made),),
            set_properties={CONTINUES: lost} if lost is not None and found.relation is Relation.BEHIND else {},
            add_schemas=found.schemas,
            add_specs=found.specs,
            raise_to=_fields(found.marks, now),
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
    return context.commit_table(
        request.table,
        change,
        swaps=context.operations.table_locations.swaps(context.live_catalog, request.table, request.table_uuid),
        lineage=lineage,
    )


def _snapshot(
    request: RestoreRequest,
    record: RestoreRecord,
    metadata: TableMetadata,
    snapshot_id: int,
    source: Snapshot,
    identity: ColdIdentity,
    placement: Placement,
    manifest_list: str,
) -> str:
    """Return the new snapshot, which follows `metadata`, as JSON."""
    snapshot: dict[str, object] = {
        "snapshot-id": snapshot_id,
        "timestamp-ms": max(time.time_ns() // 1_000_000, metadata.last_updated_ms),
        "summary": {
            **{key: value for key, value in source.summary.properties.items() if key.startswith("total-")},
            **request.summary,
            OPERATION: RESTORED_AS,
            RESTORE_ID: record.restore_id,
            RESTORED_SNAPSHOT: str(request.snapshot_id),
            RESTORED_FROM: identity.cold_table,
        },
        "manifest-list": manifest_list,
    }
    then = None if source.schema_id is None else placement.ids.schemas.get(source.schema_id)
    snapshot["schema-id"] = metadata.current_schema_id if then is None else then
    if metadata.format_version > 1:
        # Above all of the archive's: deletes on the branch apply to what was restored.
        snapshot["sequence-number"] = max(metadata.last_sequence_number, placement.marks.sequence_number) + 1
    if metadata.next_row_id is not None:
        # Its manifests already have their row ids.
        snapshot["first-row-id"] = max(metadata.next_row_id, placement.marks.next_row_id)
        snapshot["added-rows"] = 0
    return json.dumps(snapshot)


def _fields(marks: Marks, live: TableMetadata) -> dict[str, int]:
    """Return the fields of the metadata file to raise. The new snapshot raises the last sequence number."""
    now = Marks.of(live)
    fields = {
        "last-column-id": (marks.column_id, now.column_id),
        "last-partition-id": (marks.partition_id, now.partition_id),
        "next-row-id": (marks.next_row_id, marks.next_row_id if live.next_row_id is None else now.next_row_id),
    }
    return {field: least for field, (least, has) in fields.items() if least > has}


def branch_on(context: RestoreContext, request: RestoreRequest) -> Restored:
    """Create a branch on a snapshot that the live table still has; nothing needs copying."""

    def change(base: BaseState) -> Change | None:
        _check_table(request, base)
        now = read_table_metadata(context.live_stores, base.metadata_location)
        ref, snapshot = now.refs.get(request.branch), now.snapshot(request.snapshot_id)
        if ref is not None and not (ref.is_branch and ref.snapshot_id == request.snapshot_id):
            raise taken(request, ref)
        schema = None if snapshot is None or snapshot.schema_id is None else now.schemas.get(snapshot.schema_id)
        if schema is not None:
            require_readable(request.table, request.snapshot_id, schema, now)
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
        ref = read_table_metadata(context.live_stores, base.metadata_location).refs.get(request.branch)
        if base.table_uuid != request.table_uuid or ref is None or ref.snapshot_id != snapshot_id:
            return None
        return Change(remove_refs=(request.branch,), expire_snapshot_ids=(snapshot_id,))

    context.check()
    with table_lock(context.operations.engine, request.table_uuid, table=request.table):
        _commit(context, request, change)


def taken(request: RestoreRequest, ref: Ref) -> BadInput:
    return BadInput(
        f"The table already has a {ref.type} {request.branch!r}, on snapshot {ref.snapshot_id}",
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


def restore(
    context: RestoreContext,
    request: RestoreRequest,
    live: TableMetadata,
    cold: TableMetadata | None,
    identity: ColdIdentity | None,
) -> Restored:
    """Restore the snapshot; `cold` and `identity` are None for a table without a cold table. The caller holds the
    table's lease. Another run continues after a kill, and does nothing if the restore is done.

    Raises NoSuchSnapshot if neither tier has it, and BadInput for a branch that cannot be created. Raises
    RestoreFailed, with the live table unchanged, if a file is gone, damaged, or cannot be copied, or if the live table
    cannot have the snapshot; and if the new branch cannot be read. Also raises LeaseLost, CommitConflict.
    """
    done = _done(context, request, live)
    if done is not None:
        return done
    source = None if cold is None else cold.snapshot(request.snapshot_id)
    if live.snapshot(request.snapshot_id) is not None:
        gone = _missing(context, live, request.snapshot_id)
        if gone is None and (cold is None or source is None or not _is_overwritten(context, cold, request.snapshot_id)):
            return branch_on(context, request)
        if source is None:
            raise RestoreFailed(
                f"The table's metadata names snapshot {request.snapshot_id}, but one of its files is gone, and the "
                "cold tier does not have the snapshot",
                table=request.table,
                path=gone,
                untouched="the live table",
                hint="find out whether the catalog was restored from a backup, and who deleted the file",
            )
    if source is None or cold is None or identity is None:
        raise NoSuchSnapshot(
            f"Neither tier has snapshot {request.snapshot_id}",
            table=request.table,
            untouched="the table",
            hint=f"list the snapshots with: artemis history {quote(request.table)}",
        )
    refuse_encrypted(cold, request.table)
    # Before files are copied for a commit that would be refused.
    context.require_lineage({**request.summary, OPERATION: RESTORED_AS})
    placement = live_ids(context, request, source, cold, live)
    ids = placement.ids
    if not context.takes_whole_metadata:
        needs = Change(
            add_schemas=placement.schemas, add_specs=placement.specs, raise_to=_fields(placement.marks, live)
        )
        require_expressible(needs, request.table, live.metadata_location)
    record = begin(context, request, live)
    if not goes_by(context, record, ids):
        # Manifests that were already copied use the partition spec ids of that time.
        abandon(context, record)
        record = begin(context, request, live)
        goes_by(context, record, ids)
    try:
        manifest_list = bring_back(context, request, record, cold, source, RestoreMapping(identity, record.folder, ids))
        snapshot_id, result = commit_restored(context, request, record, source, cold, identity, ids, manifest_list)
        done = _finished(context, request, record.restore_id, snapshot_id, result.metadata_location, result.attempts)
    except RestoreFailed:
        # Nobody knows if it is ever run again, and its heartbeat stops the deletions of others for a day.
        abandon(context, record)
        raise
    if not placement.raises(live):
        return done
    said = (
        f"The table's catalog was put back ({placement.relation} of its archive): sequence numbers go on above "
        f"{placement.marks.sequence_number}, column ids above {placement.marks.column_id}, row ids at "
        f"{placement.marks.next_row_id}"
    )
    return replace(done, numbered_anew=said)


def _finished(
    context: RestoreContext,
    request: RestoreRequest,
    restore_id: str,
    snapshot_id: int,
    metadata_location: str,
    attempts: int,
) -> Restored:
    try:
        _read_back(context, request, snapshot_id)
    except RestoreFailed:
        take_back(context, request, snapshot_id)
        raise
    context.operations.restores.finish(restore_id, snapshot_id, metadata_location)
    stop_protecting(context, request.table_uuid, restore_id)
    return _result(context, request, restore_id, snapshot_id, metadata_location, attempts)


def _result(
    context: RestoreContext,
    request: RestoreRequest,
    restore_id: str,
    snapshot_id: int,
    metadata_location: str,
    attempts: int,
) -> Restored:
    outcome = restore_ledger(context, restore_id).outcome(restore_id)
    return Restored(
        table=request.table,
        source_snapshot_id=request.snapshot_id,
        branch=request.branch,
        snapshot_id=snapshot_id,
        metadata_location=metadata_location,
        restore_id=restore_id,
        copied_files=outcome.files(COPIED, REWRITTEN, PRESENT),
        copied_bytes=outcome.bytes(COPIED, REWRITTEN, PRESENT),
        rewritten_files=outcome.files(REWRITTEN),
        attempts=attempts,
    )


def _missing(context: RestoreContext, live: TableMetadata, snapshot_id: int) -> str | None:
    """Return a file of a snapshot that is gone, though the live metadata names it: the catalog may have been restored
    from a backup. None if all are there."""
    kept = tuple(each for each in live.snapshots if each.snapshot_id == snapshot_id)
    only = replace(live, snapshots=kept, current_snapshot_id=None, refs={}, snapshot_log=(), statistics=())
    gone: list[str] = []

    def look(paths: pa.Array) -> None:
        texts = paths.to_pylist()
        gone.extend(path for path, found in zip(texts, context.live_stores.heads(texts), strict=True) if found is None)

    root, rules = f"{context.root}/unarchived", context.rules
    try:
        IndexFiles(indexed(context.spark, context.live_stores, only, rules, root)).visit(look)
    except (UnreadableMetadata, MissingFile) as error:
        return error.path or kept[0].manifest_list
    return gone[0] if gone else None


def _is_overwritten(context: RestoreContext, cold: TableMetadata, snapshot_id: int) -> bool:
    """Return True if another file than the archived one is at the live path of a file of the snapshot: a job has
    written the path again, and only the archive has the snapshot's rows."""
    live, runner = context.live_stores, Runner(context.spark)
    ledger = handoff_ledger(live, context.root, cold.table_uuid)
    view = indexed(context.spark, context.cold_stores, cold, context.rules, f"{context.root}/cold", files=live)
    for batch in reachable_files(runner, view, [snapshot_id]).batches():
        copies = ledger.among(runner, frozenset(batch.column("path").to_pylist())).values()
        known = [copy for copy in copies if copy.source_identity is not None]
        for copy, now in zip(known, live.heads([copy.source for copy in known]), strict=True):
            if now is not None and not is_still(copy.source_identity, copy.source_checksum, now, live):
                return True
    return False


def _read_back(context: RestoreContext, request: RestoreRequest, snapshot_id: int) -> None:
    """Read every row and column of the branch once, as a reader will."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    name = parse_in(request.table, context.live_catalog).sql(context.live_catalog)
    try:
        context.spark.sql(f"REFRESH TABLE {name}")
        # Iceberg's selector of a branch ends at a line break in its name.
        option = ("branch", request.branch) if len(request.branch.splitlines()) == 1 else ("versionAsOf", snapshot_id)
        context.spark.read.option(*option).table(name).write.format("noop").mode("overwrite").save()
    except (Py4JJavaError, PySparkException) as error:
        raise RestoreFailed(
            f"The restored branch {request.branch!r} cannot be read: {brief(error)}",
            table=request.table,
            untouched="the table: the new branch was removed again",
            hint=f"run the restore again; if that does not help, read snapshot {request.snapshot_id} in place "
            "(lifecycle.read; pyiceberg for types that Spark lacks)",
        ) from error


def _done(context: RestoreContext, request: RestoreRequest, live: TableMetadata) -> Restored | None:
    """Return the result if the branch already has the snapshot; None if it must still be restored."""
    if not request.branch.strip() or request.branch == "main":
        raise BadInput(
            "main is what the table's writers write to" if request.branch.strip() else "The branch has no name",
            table=request.table,
            untouched="the table",
            hint="restore to a separate branch, inspect it, and copy what you need from there",
        )
    ref = live.refs.get(request.branch)
    if ref is None or (ref.is_branch and ref.snapshot_id == request.snapshot_id):
        return None
    head = live.snapshot(ref.snapshot_id)
    restore_id = None if head is None else head.summary.get(RESTORE_ID)
    if (
        not ref.is_branch
        or head is None
        or restore_id is None
        or head.summary.get(RESTORED_SNAPSHOT) != str(request.snapshot_id)
    ):
        raise taken(request, ref)
    records = context.operations.restores.of_table(request.table_uuid)
    if any(each.restore_id == restore_id and each.finished_at is None for each in records):
        # Killed between the commit and its record.
        return _finished(context, request, restore_id, head.snapshot_id, live.metadata_location, 0)
    # People work on it, and its files may be nowhere else. A database that was put back forgot its record.
    stop_protecting(context, request.table_uuid, restore_id)
    return _result(context, request, restore_id, head.snapshot_id, live.metadata_location, 0)
